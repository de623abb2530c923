//! `sheave bench store`: two workers push to one server and pull from it, in rounds that both know beforehand.
//!
//! This process is worker 0. The others are this binary again, as in `bench link`; they join one mesh, and end with it.

use super::child::{self, Follower};
use super::link::{no_times, show_progress};
use super::pair::{draw_secret, node_config};
use super::report::{self, Row};
use super::{StoreArguments, Transport};
use crate::Failure;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sheave_base::config::Endpoint;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_store::{Key, Kind, KvStore, Server, ServerConfig};
use sheave_tensor::{Dtype, Tensor};
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

const EXPECTED: Expected = Expected { schedulers: 1, servers: 1, workers: 2, ranks: 0 };

/// A round that takes longer than this is a fault of the store, not a slow machine.
const ROUND_TIMEOUT: Duration = Duration::from_secs(60);

/// What is measured at once.
struct Cell {
    case: &'static str,
    keys: usize,
    /// Of each key.
    bytes: usize,
    iterations: usize,
}

const CELLS: [Cell; 3] = [
    Cell { case: "push_pull", keys: 1, bytes: 1 << 10, iterations: 10_000 },
    Cell { case: "push_pull", keys: 1, bytes: 5_760_000, iterations: 500 },
    Cell { case: "push_pull_10000", keys: 10_000, bytes: 64, iterations: 200 },
];

/// What another process of the job must know.
#[derive(Serialize, Deserialize)]
pub(super) struct Part {
    role: String,
    rank: u32,
    port: u16,
    secret: String,
    transport: Transport,
    /// Divides the iterations.
    thrift: usize,
}

/// Measures and reports.
pub(super) fn run(arguments: &StoreArguments) -> std::result::Result<(), Failure> {
    let mut transports = vec![Transport::Shm, Transport::Tcp];
    if !arguments.transport.is_empty() {
        transports.retain(|transport| arguments.transport.contains(transport));
        if arguments.transport.contains(&Transport::Inproc) {
            return Err(Failure::Usage("the processes of a store do not meet inproc; use shm or tcp".to_owned()));
        }
    }
    let thrift = if arguments.quick { 10 } else { 1 };
    let mut rows = Vec::new();
    for transport in transports {
        show_progress(transport.name());
        let times = measure(transport, thrift)?;
        rows.extend(CELLS.iter().zip(times).map(|(cell, times)| Row {
            bench: "store",
            case: cell.case,
            bytes: cell.bytes,
            ranks: EXPECTED.workers,
            transport: transport.name(),
            language: "rust",
            compared_with: None,
            times,
        }));
    }
    show_progress("");
    rows.sort_by_key(|row| CELLS.iter().position(|cell| (cell.case, cell.bytes) == (row.case, row.bytes)));
    let mut stdout = std::io::stdout().lock();
    if arguments.json { report::json(&rows, &mut stdout) } else { report::table(&rows, &mut stdout) }
}

/// Runs one job and returns the times of each cell.
fn measure(transport: Transport, thrift: usize) -> Result<Vec<Histogram<u64>>> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let secret = draw_secret()?;
    let part =
        |role: Role, rank| Part { role: role.to_string(), rank, port, secret: secret.clone(), transport, thrift };
    let others = [part(Role::Scheduler, 0), part(Role::Server, 0), part(Role::Worker, 1)];
    let followers: Vec<Follower> =
        others.iter().map(|part| Follower::start("store-child", part)).collect::<Result<_>>()?;
    let mesh = part(Role::Worker, 0).join()?;
    let mut times: Vec<Histogram<u64>> = CELLS.iter().map(|_| no_times()).collect();
    work(&mesh, thrift, &mut times)?;
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
pub(super) fn follow() -> std::result::Result<(), Failure> {
    let part: Part = child::invited("sheave bench store")?;
    match play(&part) {
        // The parent knows why.
        Err(error) if error.kind() == ErrorKind::PeerLost => std::process::exit(1),
        outcome => Ok(outcome?),
    }
}

fn play(part: &Part) -> Result<()> {
    let mesh = part.join()?;
    match mesh.me().introduction.role {
        Role::Server => Server::start(&mesh, ServerConfig::default())?.run()?,
        Role::Worker => {
            let mut unused: Vec<Histogram<u64>> = CELLS.iter().map(|_| no_times()).collect();
            work(&mesh, part.thrift, &mut unused)?;
        }
        _ => mesh.until_gone(|_| true)?,
    }
    mesh.leave()
}

/// What both workers do at once.
fn work(mesh: &Mesh, thrift: usize, times: &mut [Histogram<u64>]) -> Result<()> {
    let store = KvStore::open(mesh, Kind::DistSync)?;
    for (cell, times) in CELLS.iter().zip(times) {
        let tensors = |value: f32| -> Result<Vec<(Key, Tensor)>> {
            let one = |number: usize| {
                let mut tensor = Tensor::empty(mesh.node().arena(), Dtype::F32, [cell.bytes as u64 / 4])?;
                tensor.as_mut_slice::<f32>()?.fill(value);
                Ok((Key::from(format!("{} {} {number}", cell.case, cell.bytes)), tensor))
            };
            (0..cell.keys).map(one).collect()
        };
        let (values, places) = (tensors(1.5)?, tensors(0.0)?);
        store.init(&places)?;
        let iterations = (cell.iterations / thrift).max(3);
        for round in 0..iterations + iterations / 10 + 1 {
            let begun = Instant::now();
            store.push_pull(&values, &places)?.wait_timeout(ROUND_TIMEOUT)?;
            let round_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
            if round > iterations / 10 {
                // The histogram grows with its values, so that it refuses none.
                let _ = times.record(round_ns);
            }
        }
        let sum = 1.5 * EXPECTED.workers as f32;
        for (key, place) in &places {
            if !place.as_slice::<f32>()?.iter().all(|value| *value == sum) {
                return Err(Error::new(ErrorKind::Internal, format!("key {key} is not the sum of what was pushed")));
            }
        }
    }
    Ok(())
}
