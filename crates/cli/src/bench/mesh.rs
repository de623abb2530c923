//! `sheave bench mesh`: how fast a job stands, meets and calls; every node is a process.

use super::child::{self, Follower, no_times, record};
use super::pair::node_config;
use super::report::{self, Row};
use super::{MeshArguments, MeshCase, Transport};
use crate::Failure;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sheave_base::config::Endpoint;
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_fleet::draw_secret;
use sheave_mesh::{Answer, Call, Config, Expected, Lane, Mesh, Request, Role, Service, ServiceName};
use std::collections::VecDeque;
use std::io::Write;
use std::time::{Duration, Instant};

/// A mesh that has not done its part by then has hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a node says when it has passed its first barrier.
const THROUGH: &str = "through";

/// Calls outstanding in `call_pipelined`; as many are timed together.
const PIPELINED: usize = 64;

/// What a node must know, as one line of JSON.
#[derive(Clone, Serialize, Deserialize)]
struct Invitation {
    role: String,
    rank: u32,
    /// Schedulers, servers, workers, plain ranks.
    expected: [u32; 4],
    port: u16,
    secret: String,
    transport: Transport,
    case: MeshCase,
    iterations: usize,
}

/// Measures and reports.
pub(super) fn run(arguments: &MeshArguments) -> std::result::Result<(), Failure> {
    let transports =
        if arguments.transport.is_empty() { vec![Transport::Shm, Transport::Tcp] } else { arguments.transport.clone() };
    if transports.contains(&Transport::Inproc) {
        return Err(Failure::Usage("the nodes of a mesh are processes: use shm or tcp".to_owned()));
    }
    let cases = if arguments.case.is_empty() { MeshCase::ALL.to_vec() } else { arguments.case.clone() };
    let (starts, iterations) = if arguments.quick { (3, 500) } else { (20, 20_000) };
    let mut rows = Vec::new();
    for case in cases {
        for &ranks in case.ranks() {
            for &transport in &transports {
                let measured = match case {
                    MeshCase::StartUp => start_up(transport, starts),
                    _ => meet(case, ranks, transport, iterations),
                };
                let times =
                    measured.map_err(|error| error.context(format!("{} over {}", case.name(), transport.name())))?;
                let (name, transport) = (case.name(), transport.name());
                let (compared_with, target) = (None, None);
                rows.push(Row {
                    bench: "mesh",
                    case: name,
                    bytes: 0,
                    ranks,
                    transport,
                    language: "rust",
                    compared_with,
                    target,
                    times,
                });
            }
        }
    }
    let mut stdout = std::io::stdout().lock();
    if arguments.json { report::json(&rows, &mut stdout) } else { report::table(&rows, &mut stdout) }
}

/// The time from the start of the first process until all have passed their first barrier.
fn start_up(transport: Transport, starts: usize) -> Result<Histogram<u64>> {
    let mut times = no_times();
    for _ in 0..starts {
        let begun = Instant::now();
        let mut nodes = start(MeshCase::StartUp, [1, 1, 2, 0], transport, 0)?;
        for node in &mut nodes {
            expect(node, THROUGH)?;
        }
        record(&mut times, begun.elapsed());
        nodes.into_iter().try_for_each(Follower::finish)?;
    }
    Ok(times)
}

/// What rank 0 measures with the others.
fn meet(case: MeshCase, ranks: u32, transport: Transport, iterations: usize) -> Result<Histogram<u64>> {
    let mut nodes = start(case, [0, 0, 0, ranks], transport, iterations)?;
    for node in &mut nodes {
        expect(node, THROUGH)?;
    }
    let mut times = no_times();
    let line = nodes.first_mut().map_or_else(|| Ok(String::new()), Follower::line)?;
    let measured: Vec<u64> = serde_json::from_str(&line).map_err(|_| unexpected(&line))?;
    measured.into_iter().for_each(|time_ns| record(&mut times, Duration::from_nanos(time_ns)));
    nodes.into_iter().try_for_each(Follower::finish)?;
    Ok(times)
}

/// Starts all nodes of a mesh.
fn start(case: MeshCase, expected: [u32; 4], transport: Transport, iterations: usize) -> Result<Vec<Follower>> {
    // Free a moment ago; the join says so if it is not any more.
    let port = sheave_base::port::free()?;
    let secret = draw_secret()?;
    let mut nodes = Vec::new();
    for role in Role::ALL {
        for rank in 0..expected_of(expected).of(role) {
            let (role, secret) = (role.to_string(), secret.clone());
            let invitation = Invitation { role, rank, expected, port, secret, transport, case, iterations };
            nodes.push(Follower::start_speaking("mesh-child", &invitation)?);
        }
    }
    Ok(nodes)
}

fn expected_of([schedulers, servers, workers, ranks]: [u32; 4]) -> Expected {
    Expected { schedulers, servers, workers, ranks }
}

fn expect(node: &mut Follower, wanted: &str) -> Result<()> {
    let line = node.line()?;
    if line == wanted { Ok(()) } else { Err(unexpected(&line)) }
}

fn unexpected(line: &str) -> Error {
    let what = if line.is_empty() { "a node ended without a word".to_owned() } else { format!("a node said '{line}'") };
    Error::new(ErrorKind::PeerLost, what)
}

/// The hidden command: one node of the mesh.
pub(super) fn follow() -> std::result::Result<(), Failure> {
    let invitation: Invitation = child::invited("sheave bench mesh")?;
    child::end_after(PATIENCE);
    Ok(take_part(&invitation)?)
}

const EMPTY: ServiceName = ServiceName::new("empty");

/// Answers at once.
struct Empty {
    is_inline: bool,
}

impl Service for Empty {
    fn handle(&self, request: Request) {
        request.reply.value(());
    }

    fn lane(&self) -> Lane {
        if self.is_inline { Lane::Inline } else { Lane::default() }
    }
}

fn take_part(invitation: &Invitation) -> Result<()> {
    let Invitation { role, rank, expected, port, secret, transport, case, iterations } = invitation;
    let role = Role::from_name(role).ok_or_else(|| Error::new(ErrorKind::Protocol, "a role that there is not"))?;
    let root = Endpoint { host: "127.0.0.1".to_owned(), port: *port };
    let mut config = Config::new(role, Some(*rank), expected_of(*expected), root);
    config.node = node_config("", *transport, secret)?;
    config.node.local_ranks = config.expected.total() as usize;
    let mesh = Mesh::join(config)?;
    mesh.serve(EMPTY.as_str(), Empty { is_inline: *case != MeshCase::CallExecutor })?;
    let world = mesh.world();
    world.barrier()?;
    say(THROUGH)?;
    let to = mesh.members().last().map_or(mesh.me().node, |member| member.node);
    let mut in_flight = VecDeque::<Work<Answer>>::with_capacity(PIPELINED);
    let mut round = || match case {
        MeshCase::StartUp => Ok(()),
        MeshCase::Barrier => world.barrier(),
        _ if *rank != 0 => Ok(()),
        MeshCase::Call | MeshCase::CallExecutor => mesh.call(to, &EMPTY, "", Call::default())?.wait().map(drop),
        MeshCase::CallPipelined => {
            if in_flight.len() == PIPELINED {
                in_flight.pop_front().map_or(Ok(()), |call| call.wait().map(drop))?;
            }
            in_flight.push_back(mesh.call(to, &EMPTY, "", Call::default())?);
            Ok(())
        }
    };
    let at_once = if *case == MeshCase::CallPipelined { PIPELINED } else { 1 };
    for _ in 0..iterations / 10 {
        round()?;
    }
    let mut times = Vec::with_capacity(*iterations);
    for _ in 0..*iterations {
        let begun = Instant::now();
        for _ in 0..at_once {
            round()?;
        }
        times.push(child::nanoseconds(begun.elapsed() / at_once as u32));
    }
    if *case != MeshCase::StartUp && *rank == 0 {
        say(&serde_json::to_string(&times).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?)?;
    }
    mesh.finish()
}

fn say(line: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(Error::from)
}
