//! One job of a measurement: a scheduler, a server and two workers, of which this process is the first.
//!
//! The others are this binary again, as in `bench link`; they join one mesh, and end with it. Both workers know
//! beforehand in how many rounds they push and pull what.

use super::{Cell, StoreCase, table};
use crate::Failure;
use crate::bench::Transport;
use crate::bench::child::{self, Follower, no_times, record};
use crate::bench::pair::node_config;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sheave_base::config::Endpoint;
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_fleet::draw_secret;
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_store::{Compression, Key, Kind, KvStore, Rule, Server, ServerConfig};
use sheave_tensor::{Dtype, Tensor};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

pub(super) const EXPECTED: Expected = Expected { schedulers: 1, servers: 1, workers: 2, ranks: 0 };

/// A round that takes longer than this is a fault of the store, not a slow machine.
pub(super) const ROUND_TIMEOUT: Duration = Duration::from_secs(60);
/// A job that has not ended by then has hung.
const JOB_TIMEOUT: Duration = Duration::from_secs(300);

/// What every element of a gradient is.
pub(super) const GRADIENT: f32 = 1.5;
pub(super) const LEARNING_RATE: f64 = 0.01;

/// What another process of the job must know.
#[derive(Serialize, Deserialize)]
struct Part {
    role: String,
    rank: u32,
    port: u16,
    secret: String,
    transport: Transport,
    case: StoreCase,
    /// Divides the iterations.
    thrift: usize,
    /// All, if none is given.
    sizes: Vec<usize>,
}

/// Runs one job and returns the times of each cell of the case.
pub(super) fn measure(
    case: StoreCase,
    transport: Transport,
    thrift: usize,
    sizes: &[usize],
) -> Result<Vec<Histogram<u64>>> {
    let port = sheave_base::port::free()?;
    let secret = draw_secret()?;
    let part = |role: Role, rank| {
        let (role, secret, sizes) = (role.to_string(), secret.clone(), sizes.to_vec());
        Part { role, rank, port, secret, transport, case, thrift, sizes }
    };
    let others = [part(Role::Scheduler, 0), part(Role::Server, 0), part(Role::Worker, 1)];
    let followers: Vec<Follower> =
        others.iter().map(|part| Follower::start("store-child", part)).collect::<Result<_>>()?;
    let me = part(Role::Worker, 0);
    let mesh = me.join()?;
    let times = work(&mesh, &me)?;
    mesh.leave()?;
    followers.into_iter().try_for_each(Follower::finish).map(|()| times)
}

impl Part {
    fn join(&self) -> Result<Mesh> {
        let unknown = || Error::new(ErrorKind::InvalidArgument, format!("there is no role {}", self.role));
        let role = Role::from_name(&self.role).ok_or_else(unknown)?;
        let root = Endpoint { host: Ipv4Addr::LOCALHOST.to_string(), port: self.port };
        let mut config = Config::new(role, Some(self.rank), EXPECTED, root);
        config.join_timeout = child::PATIENCE;
        config.node = node_config("", self.transport, &self.secret)?;
        config.node.local_ranks = EXPECTED.total() as usize;
        Mesh::join(config)
    }
}

/// The hidden command: one of the other processes.
pub(crate) fn follow() -> std::result::Result<(), Failure> {
    let part: Part = child::invited("sheave bench store")?;
    child::end_after(JOB_TIMEOUT);
    match play(&part) {
        // The parent knows why.
        Err(error) if error.kind().is_loss() => std::process::exit(1),
        outcome => Ok(outcome?),
    }
}

fn play(part: &Part) -> Result<()> {
    let mesh = part.join()?;
    match mesh.me().introduction.role {
        Role::Server => Server::start(&mesh, ServerConfig::default())?.run()?,
        Role::Worker => work(&mesh, part).map(drop)?,
        _ => mesh.until_gone(|_| true)?,
    }
    mesh.leave()
}

/// What both workers do at once.
fn work(mesh: &Mesh, part: &Part) -> Result<Vec<Histogram<u64>>> {
    let case = part.case;
    let store = KvStore::open(mesh, case.kind())?;
    let compression = case.compression();
    if compression != Compression::None {
        store.set_gradient_compression(compression)?;
    }
    if case.has_optimizer() {
        store.set_optimizer(Rule::sgd(LEARNING_RATE))?;
    }
    store.barrier()?;
    let times_of = |cell: &Cell| {
        let iterations = (cell.iterations / part.thrift).max(3);
        match case {
            StoreCase::Rows => table::rounds(mesh, &store, iterations),
            _ => rounds(mesh, &store, case, cell, iterations),
        }
    };
    let times = case.cells_of(&part.sizes).map(times_of).collect::<Result<_>>()?;
    store.close()?;
    Ok(times)
}

fn rounds(mesh: &Mesh, store: &KvStore, case: StoreCase, cell: &Cell, iterations: usize) -> Result<Histogram<u64>> {
    let tensors = |value: f32| -> Result<Vec<(Key, Tensor)>> {
        let one = |number: usize| {
            let mut tensor = Tensor::empty(mesh.node().arena(), Dtype::F32, [cell.bytes as u64 / 4])?;
            tensor.as_mut_slice::<f32>()?.fill(value);
            Ok((Key::from(format!("{} {number}", cell.bytes)), tensor))
        };
        (0..cell.keys).map(one).collect()
    };
    let (values, places) = (tensors(GRADIENT)?, tensors(0.0)?);
    store.init(&places)?;
    let round = || store.push_pull(&values, &places);
    let (times, rounds) = timed(iterations, round)?;
    // In an asynchronous store the other worker may still push.
    store.barrier()?;
    store.pull(&places)?.wait_timeout(ROUND_TIMEOUT)?;
    let expected = expected(case, rounds);
    for (key, place) in &places {
        let is_right = |value: &f32| (f64::from(*value) - expected).abs() <= expected.abs() * 1e-2;
        if !place.as_slice::<f32>()?.iter().all(is_right) {
            return Err(Error::new(ErrorKind::Internal, format!("key {key} is not what was pushed should make it")));
        }
    }
    store.delete(&places.into_iter().map(|(key, _)| key).collect::<Vec<_>>())?;
    Ok(times)
}

/// The times of so many rounds, after some that are not counted, and how many rounds there were in all.
pub(super) fn timed(iterations: usize, round: impl Fn() -> Result<Work<()>>) -> Result<(Histogram<u64>, usize)> {
    let mut times = no_times();
    let warm_up = iterations / 10 + 1;
    for number in 0..warm_up + iterations {
        let begun = Instant::now();
        round()?.wait_timeout(ROUND_TIMEOUT)?;
        if number >= warm_up {
            record(&mut times, begun.elapsed());
        }
    }
    Ok((times, warm_up + iterations))
}

/// What every element is in the end.
fn expected(case: StoreCase, rounds: usize) -> f64 {
    let workers = f64::from(EXPECTED.workers);
    // A gradient above the threshold of the 2-bit code arrives as the threshold.
    let gradient = f64::from(case.compression().threshold().unwrap_or(GRADIENT));
    match case.kind() {
        Kind::DistAsync => -LEARNING_RATE * gradient * workers * rounds as f64,
        _ => gradient * workers,
    }
}
