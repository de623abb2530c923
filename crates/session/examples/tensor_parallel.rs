//! Inference of transformer blocks whose weights lie on four workers, a part of each matrix on each of them. Run it as
//! `cargo run --release -p sheave-session --example tensor_parallel -- threads`, or with `processes`.
//!
//! Attention is divided by heads and the MLP by its hidden units, as in Megatron-LM: the first matrix of each half is
//! cut along its rows and the second along its columns, so that a worker goes from one to the other by itself, and what
//! the workers have then is summed up. Two sums for each block are all that they tell each other.
//!
//! The result is compared with that of the whole weights on one thread. The sums add up in another order, in f32:
//! elements may differ by [`TOLERANCE`] of their size and of 1 together.

use sheave_base::{Error, ErrorKind, Result};
use sheave_collective::Operator;
use sheave_process::Command;
use sheave_session::{Args, Function, Scope, Session, ShardInfo, Worker, register_function, work};
use sheave_tensor::{Tensor, file};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

const WORKERS: u32 = 4;
const LAYERS: usize = 2;
/// Numbers that stand for a token, of which each head has its part, and hidden units.
const WIDTH: usize = 64;
const HEADS: usize = 8;
const HIDDEN: usize = 256;
const HEAD_WIDTH: usize = WIDTH / HEADS;
const TOKENS: usize = 12;
const TOLERANCE: f32 = 1e-5;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

/// Matrices of a layer: rows, columns, and the dimension that is cut.
const MATRICES: [(&str, usize, usize, u32); 6] = [
    ("query", WIDTH, WIDTH, 0),
    ("key", WIDTH, WIDTH, 0),
    ("value", WIDTH, WIDTH, 0),
    ("out", WIDTH, WIDTH, 1),
    ("up", HIDDEN, WIDTH, 0),
    ("down", WIDTH, HIDDEN, 1),
];

type Weights = BTreeMap<String, Tensor>;

fn main() -> Result<()> {
    register_function(Function::typed("blocks", |(tokens, weights): (Tensor, Weights)| {
        let group = Worker::current()?.within_group()?;
        blocks(&tokens, &weights, |part| {
            let tensor = Tensor::from_slice(part, [part.len() as u64])?;
            group.all_reduce(&tensor, &tensor, Operator::Sum).wait()?;
            part.copy_from_slice(&tensor.as_slice()?);
            Ok(())
        })
    }))?;
    let session = match std::env::args().nth(1).as_deref() {
        Some("worker") => return work(),
        Some("threads") => Session::threads(WORKERS, 1)?,
        Some("processes") => {
            let program = std::env::current_exe()?;
            Session::processes(WORKERS, 1, &Command::new(program).args(["worker"]))?
        }
        _ => return Err(Error::new(ErrorKind::InvalidArgument, "expected an argument: threads or processes")),
    };
    let path = std::env::temp_dir().join(format!("sheave-tensor-parallel-{}.safetensors", std::process::id()));
    let difference = save(&path).and_then(|()| compare(&session, &path));
    std::fs::remove_file(&path)?;
    session.shutdown()?;
    let difference = difference?;
    if difference > TOLERANCE {
        let what = format!("the results differ by {difference:e}; expected {TOLERANCE:e} at most");
        return Err(Error::new(ErrorKind::Mismatch, what));
    }
    Ok(())
}

/// Runs the blocks on all workers and here, and returns by how much they differ.
fn compare(session: &Session, path: &Path) -> Result<f32> {
    let infos = (0..LAYERS).flat_map(|layer| {
        MATRICES.map(|(name, _, _, dimension)| (format!("{layer}.{name}"), ShardInfo::Dimension(dimension)))
    });
    let weights = session.shard_loader(&[path], &infos.collect())?.load_all()?;
    let tokens = Tensor::from_slice(&noise(1, TOKENS * WIDTH, 1.0), [TOKENS as u64, WIDTH as u64])?;
    let blocks_of_workers = session.function("blocks")?;
    session.sync_all(PATIENCE)?;
    let begun = Instant::now();
    let sent = session.broadcast(&tokens, None, Scope::Group)?;
    let result = session.call(&blocks_of_workers, &Args::new().register(&sent).register(&weights))?;
    session.sync_all(PATIENCE)?;
    let took = begun.elapsed();
    let mut difference = 0.0_f32;
    let alone = blocks(&tokens, &file::load(path)?.tensors, |_| Ok(()))?.to_vec::<f32>()?;
    for worker in 0..WORKERS {
        let together = result.get::<Tensor>(worker, PATIENCE)?.to_vec::<f32>()?;
        let far = together.iter().zip(&alone).map(|(one, other)| (one - other).abs() / (1.0 + other.abs()));
        difference = far.fold(difference, f32::max);
    }
    let largest = alone.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
    writeln!(
        std::io::stdout(),
        "{LAYERS} blocks of {WORKERS} workers in {took:?}: they differ by {difference:e}, of numbers up to {largest}"
    )?;
    Ok(difference)
}

/// Weights for all layers.
fn save(path: &Path) -> Result<()> {
    let mut all = Vec::new();
    for layer in 0..LAYERS {
        for (place, (name, rows, columns, _)) in MATRICES.into_iter().enumerate() {
            let scale = 1.0 / (columns as f32).sqrt();
            let numbers = noise((layer * 100 + place + 2) as u64, rows * columns, scale);
            all.push((format!("{layer}.{name}"), Tensor::from_slice(&numbers, [rows as u64, columns as u64])?));
        }
        for name in ["before attention", "before mlp"] {
            let numbers = noise((layer + 7) as u64, WIDTH, 0.1).into_iter().map(|number| 1.0 + number);
            let scales: Vec<f32> = numbers.collect();
            all.push((format!("{layer}.{name}"), Tensor::from_slice(&scales, [WIDTH as u64])?));
        }
    }
    let all: Vec<(&str, &Tensor)> = all.iter().map(|(name, tensor)| (&**name, tensor)).collect();
    file::save(path, &all, &[])
}

/// Numbers between -`scale` and `scale`, the same everywhere.
fn noise(seed: u64, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
    };
    (0..count).map(next).collect()
}

/// All blocks on what this worker has of the weights; `sum` adds up what the workers have. Whole weights are those of
/// one worker that has nothing to add.
fn blocks(tokens: &Tensor, weights: &Weights, sum: impl Fn(&mut [f32]) -> Result<()>) -> Result<Tensor> {
    let mut stream = tokens.to_vec::<f32>()?;
    for layer in 0..LAYERS {
        let of = |name: &str| {
            let missing = || Error::new(ErrorKind::NotFound, format!("no weight {layer}.{name}"));
            weights.get(&format!("{layer}.{name}")).ok_or_else(missing)?.to_vec::<f32>()
        };
        let normed = normed(&stream, &of("before attention")?);
        let [query, key, value] = [of("query")?, of("key")?, of("value")?].map(|matrix| times(&normed, &matrix, WIDTH));
        let mut added = attention(&query, &key, &value, &of("out")?);
        sum(&mut added)?;
        stream.iter_mut().zip(&added).for_each(|(number, more)| *number += more);
        let mut hidden = times(&self::normed(&stream, &of("before mlp")?), &of("up")?, WIDTH);
        hidden.iter_mut().for_each(|number| *number /= 1.0 + (-*number).exp());
        let units = hidden.len() / TOKENS;
        let mut added = times(&hidden, &of("down")?, units);
        sum(&mut added)?;
        stream.iter_mut().zip(&added).for_each(|(number, more)| *number += more);
    }
    Tensor::from_slice(&stream, tokens.shape())
}

/// Each row divided by its root mean square, and scaled.
fn normed(rows: &[f32], scales: &[f32]) -> Vec<f32> {
    let one = |row: &[f32]| {
        let mean = row.iter().map(|number| number * number).sum::<f32>() / row.len() as f32;
        let by = 1.0 / (mean + 1e-6).sqrt();
        row.iter().zip(scales).map(|(number, scale)| number * by * scale).collect::<Vec<_>>()
    };
    rows.chunks_exact(scales.len()).flat_map(one).collect()
}

/// Rows of `width` numbers times the rows of a matrix.
fn times(rows: &[f32], matrix: &[f32], width: usize) -> Vec<f32> {
    let dot = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(one, other)| one * other).sum::<f32>();
    let row = |row| matrix.chunks_exact(width).map(move |other| dot(row, other));
    rows.chunks_exact(width).flat_map(row).collect()
}

/// Causal attention of as many heads as there are, and what their part of the last matrix makes of it.
fn attention(query: &[f32], key: &[f32], value: &[f32], out: &[f32]) -> Vec<f32> {
    let width = query.len() / TOKENS;
    let mut mixed = vec![0.0; query.len()];
    let part = |rows: &[f32], token: usize, head: usize| -> [f32; HEAD_WIDTH] {
        std::array::from_fn(|at| rows[token * width + head * HEAD_WIDTH + at])
    };
    for head in 0..width / HEAD_WIDTH {
        for token in 0..TOKENS {
            let own = part(query, token, head);
            let score = |other: usize| {
                let dot: f32 = own.iter().zip(part(key, other, head)).map(|(one, other)| one * other).sum();
                (dot / (HEAD_WIDTH as f32).sqrt()).exp()
            };
            let scores: Vec<f32> = (0..=token).map(score).collect();
            let total: f32 = scores.iter().sum();
            let target = &mut mixed[token * width + head * HEAD_WIDTH..][..HEAD_WIDTH];
            for (other, score) in scores.iter().enumerate() {
                let values = part(value, other, head);
                target.iter_mut().zip(values).for_each(|(number, value)| *number += score / total * value);
            }
        }
    }
    times(&mixed, out, width)
}
