//! Reductions and copies in cache and in memory, beside the loops they are judged by.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sheave_tensor::{Arena, ArenaConfig, Buffer, Dtype, Op, copy_bytes, reduce};

const SIZES: [usize; 3] = [16 << 10, 1 << 20, 16 << 20];

fn sums(criterion: &mut Criterion) {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        let mut group = criterion.benchmark_group(format!("sum_{dtype}"));
        for len_bytes in SIZES {
            group.throughput(Throughput::Bytes(len_bytes as u64));
            let mut accumulator = Buffer::private(len_bytes).unwrap();
            let operand = Buffer::private(len_bytes).unwrap();
            let (accumulator, operand) = (accumulator.bytes_mut().unwrap(), operand.bytes().unwrap());
            group.bench_function(BenchmarkId::from_parameter(len_bytes), |bencher| {
                bencher.iter(|| reduce(Op::Sum, dtype, accumulator, &operand).unwrap());
            });
        }
        group.finish();
    }
}

fn copies(criterion: &mut Criterion) {
    let arena = Arena::new(ArenaConfig::default());
    let mut group = criterion.benchmark_group("copy");
    for len_bytes in SIZES {
        group.throughput(Throughput::Bytes(len_bytes as u64));
        let (target, source) = (arena.allocate(len_bytes).unwrap(), arena.allocate(len_bytes).unwrap());
        let (target, source) = (target.ptr(), source.ptr());
        group.bench_function(BenchmarkId::new("copy_bytes", len_bytes), |bencher| {
            // SAFETY: two blocks of that length that nobody else uses.
            bencher.iter(|| unsafe { copy_bytes(target, source, len_bytes) });
        });
        group.bench_function(BenchmarkId::new("library", len_bytes), |bencher| {
            // SAFETY: as above.
            bencher.iter(|| unsafe { std::ptr::copy_nonoverlapping(source, target, len_bytes) });
        });
    }
    group.finish();
}

fn blocks(criterion: &mut Criterion) {
    let arena = Arena::new(ArenaConfig::default());
    let mut group = criterion.benchmark_group("allocate_and_drop");
    for len_bytes in [64, 1 << 20] {
        group.bench_function(BenchmarkId::from_parameter(len_bytes), |bencher| {
            bencher.iter(|| arena.allocate(len_bytes).unwrap());
        });
    }
    group.finish();
}

criterion_group!(benches, sums, copies, blocks);
criterion_main!(benches);
