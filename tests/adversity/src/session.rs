//! Sessions: `player lead ROOT STEPS PAUSE_MS` is the controller of two machines, `player node ROOT` the other machine,
//! and `player work` a worker of either.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sheave_base::config::Endpoint;
use sheave_base::{Error, ErrorKind, Result};
use sheave_process::Command;
use sheave_session::{Args, Function, Node, Nodes, Session, Worker, register_function, work, work_on_node};
use sheave_tensor::Tensor;

use super::{COUNTS, filled, holds, wrong};

/// Far longer than a step; a network that is gone is found before.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

pub(crate) fn play(words: &[&str]) -> Result<Duration> {
    register_function(Function::typed("add", |(tensor, step): (Tensor, f32)| {
        let id = Worker::current()?.id as f32;
        let sums: Vec<f32> = tensor.to_vec::<f32>()?.into_iter().map(|element| element + step + id).collect();
        Tensor::from_slice(&sums, [sums.len() as u64])
    }))?;
    match words {
        ["lead", root, steps, pause_ms] => lead(root, number(steps)?, Duration::from_millis(number(pause_ms)?)),
        ["node", root] => {
            let node = Node { root: endpoint(root)?, workers: 2, number: Some(1), secret: None };
            work_on_node(&node, &worker()?).map(|()| Duration::ZERO)
        }
        ["work"] => work().map(|()| Duration::ZERO),
        _ => Err(Error::new(ErrorKind::InvalidArgument, "expected: player lead|node|work …")),
    }
}

fn number(word: &str) -> Result<u64> {
    word.parse().map_err(|_| Error::new(ErrorKind::InvalidArgument, format!("{word} is no number")))
}

fn endpoint(word: &str) -> Result<Endpoint> {
    Endpoint::parse(word).ok_or_else(|| Error::new(ErrorKind::InvalidArgument, format!("{word} is no endpoint")))
}

fn worker() -> Result<Command> {
    let program: PathBuf = std::env::current_exe()?;
    Ok(Command::new(program).arg("work"))
}

fn lead(root: &str, steps: u64, pause: Duration) -> Result<Duration> {
    let nodes = Nodes { root: endpoint(root)?, nodes: 2, workers_per_node: 2, groups: 1, secret: None };
    let session = Session::on_nodes(&nodes, &worker()?)?;
    println!("joined");
    let add = session.function("add")?;
    let mut longest = Duration::ZERO;
    for step in 0..steps as usize {
        let begun = Instant::now();
        let tensor = filled(1.0, COUNTS[step % COUNTS.len()])?;
        let sum = session.call(&add, &Args::new().value(tensor).value(step as f32))?;
        let sum = session.call(&add, &Args::new().register(&sum).value(0.5_f32))?;
        for worker in 0..session.workers() {
            let fetched: Tensor = sum.get(worker, PATIENCE)?;
            if !holds(&fetched, 1.5 + step as f32 + 2.0 * worker as f32)? {
                return Err(wrong("a session", step));
            }
        }
        longest = longest.max(begun.elapsed());
        std::thread::sleep(pause);
    }
    session.shutdown().map(|()| longest)
}
