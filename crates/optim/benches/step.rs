//! Steps in cache and in memory, beside a copy of as many bytes.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::{bf16, f16};
use sheave_optim::{AdaGrad, AdamW, Float, Lamb, RmsProp, Rule, Sgd, Target, widen};

const ELEMENTS: [usize; 2] = [16 << 10, 8 << 20];

/// Every rule, and the floats of it that one element reads and writes.
fn rules() -> Vec<(&'static str, Rule, usize)> {
    let momentum = Sgd { momentum: 0.9, ..Sgd::default() };
    let clipped = Sgd { clip_gradient: Some(1.0), ..momentum.clone() };
    let nesterov = Sgd { nesterov: true, ..momentum.clone() };
    vec![
        ("sgd", Rule::sgd(0.01), 3),
        ("momentum", Rule::Sgd(momentum), 5),
        ("clipped", Rule::Sgd(clipped), 5),
        ("nesterov", Rule::Sgd(nesterov), 5),
        ("adam", Rule::adam(0.001), 7),
        ("adamw", Rule::AdamW(AdamW::default()), 7),
        ("adagrad", Rule::AdaGrad(AdaGrad::default()), 5),
        ("rmsprop", Rule::RmsProp(RmsProp::default()), 5),
        ("centered", Rule::RmsProp(RmsProp { centered: true, ..RmsProp::default() }), 9),
        // Its second half reads moments and weights once more.
        ("lamb", Rule::Lamb(Lamb::default()), 10),
    ]
}

fn steps(criterion: &mut Criterion) {
    for (name, rule, floats) in rules() {
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
                bencher.iter(|| target.copy_from_slice(black_box(&source)));
            });
        }
        group.finish();
    }
}

/// 16-bit weights, alone and with master copies, beside as many of 32 bits.
fn halves(criterion: &mut Criterion) {
    fn both<T: Float<Wide = f32>>(criterion: &mut Criterion, name: &str, of: fn(f32) -> T) {
        let elements = ELEMENTS[0];
        let rule = Rule::adam(0.001);
        let (mut weights, gradient) = (vec![of(0.5); elements], vec![of(0.25); elements]);
        let (mut state, mut master) = (rule.state(elements), widen(&weights));
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Elements(elements as u64));
        group.bench_function("step", |bencher| {
            bencher.iter(|| rule.step(&mut state, &mut weights, &gradient).unwrap());
        });
        group.bench_function("master", |bencher| {
            bencher.iter(|| {
                let mut target = Target::with_master(&mut master, &mut weights);
                rule.step_on(&mut state, &mut target, &gradient).unwrap();
            });
        });
        group.finish();
    }
    both(criterion, "f32", |x| x);
    both(criterion, "f16", f16::from_f32);
    both(criterion, "bf16", bf16::from_f32);
}

/// Every second row of a matrix, of rows from short to long.
fn rows(criterion: &mut Criterion) {
    let elements = ELEMENTS[0];
    let rule = Rule::adam(0.001);
    let mut group = criterion.benchmark_group("rows");
    for row_elements in [8, 64, 1024] {
        let rows: Vec<u64> = (0..(elements / row_elements) as u64).step_by(2).collect();
        let (mut weights, mut state) = (vec![0.5_f32; elements], rule.state(elements));
        let gradient = vec![0.25_f32; rows.len() * row_elements];
        group.throughput(Throughput::Elements(gradient.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(row_elements), |bencher| {
            bencher.iter(|| {
                rule.step_rows(&mut state, &mut Target::new(&mut weights), row_elements, &rows, &gradient).unwrap();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, steps, halves, rows);
criterion_main!(benches);
