//! Steps in cache and in memory, beside a copy of as many bytes.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sheave_optim::{Rule, Sgd};

const ELEMENTS: [usize; 2] = [16 << 10, 8 << 20];

fn steps(criterion: &mut Criterion) {
    let momentum = Rule::Sgd(Sgd { momentum: 0.9, ..Sgd::default() });
    // Floats that one element reads and writes.
    for (name, rule, floats) in [("sgd", Rule::sgd(0.01), 3), ("momentum", momentum, 5), ("adam", Rule::adam(0.001), 7)]
    {
        let mut group = criterion.benchmark_group(name);
        for elements in ELEMENTS {
            group.throughput(Throughput::Bytes((elements * floats * size_of::<f32>()) as u64));
            let (mut weights, gradient) = (vec![0.5_f32; elements], vec![0.25_f32; elements]);
            let mut state = rule.state(elements);
            group.bench_function(BenchmarkId::new("step", elements), |bencher| {
                bencher.iter(|| rule.step(&mut state, &mut weights, &gradient).unwrap());
            });
            let mut target = vec![0_u8; elements * floats * size_of::<f32>() / 2];
            let source = vec![1_u8; target.len()];
            group.bench_function(BenchmarkId::new("copy", elements), |bencher| {
                bencher.iter(|| target.copy_from_slice(&source));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, steps);
criterion_main!(benches);
