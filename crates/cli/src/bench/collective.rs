//! `sheave bench collective`: all_reduce among processes, and OpenMPI's beside it.

use super::child::{self, Follower};
use super::pair::{draw_secret, node_config};
use super::peer::{Peer, PeerTransport};
use super::report::{self, Row};
use super::traffic::DIGITS;
use super::{CollectiveArguments, Transport};
use crate::Failure;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sheave_base::config::Endpoint;
use sheave_base::{Error, ErrorKind, Result};
use sheave_collective::{Collectives, Operator};
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_tensor::{Dtype, Shape, Tensor};
use std::io::Write;
use std::time::{Duration, Instant};

const PROGRAM: &str = include_str!("collective.c");

/// A job that has not measured everything by then has hung.
const PATIENCE: Duration = Duration::from_secs(300);

/// From here on every rank rewrites its tensor before each operation, so that its bytes really cross cores.
const REWRITTEN_BYTES: usize = 64 << 10;

const SIZES_BYTES: [usize; 5] = [8, 64 << 10, 1 << 20, 16 << 20, 64 << 20];
const RANKS: [u32; 2] = [2, 4];

/// Where tensors lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Memory {
    Arena,
    Private,
}

impl Memory {
    fn case(self) -> &'static str {
        match self {
            Self::Arena => "all_reduce",
            Self::Private => "all_reduce_private",
        }
    }
}

/// What a rank must know, as one line of JSON.
#[derive(Clone, Serialize, Deserialize)]
struct Invitation {
    rank: u32,
    ranks: u32,
    port: u16,
    secret: String,
    transport: Transport,
    memory: Memory,
    /// Bytes and iterations.
    sizes: Vec<(usize, usize)>,
}

/// Measures and reports.
pub(super) fn run(arguments: &CollectiveArguments) -> std::result::Result<(), Failure> {
    let transports =
        if arguments.transport.is_empty() { vec![Transport::Shm, Transport::Tcp] } else { arguments.transport.clone() };
    if transports.contains(&Transport::Inproc) {
        return Err(Failure::Usage("the ranks of a collective are processes: use shm or tcp".to_owned()));
    }
    let bytes = if arguments.bytes.is_empty() { SIZES_BYTES.to_vec() } else { arguments.bytes.clone() };
    let ranks = if arguments.ranks.is_empty() { RANKS.to_vec() } else { arguments.ranks.clone() };
    let thrift = if arguments.quick { 10 } else { 1 };
    let sizes: Vec<_> = bytes.into_iter().map(|bytes| (bytes / 4 * 4, iterations(bytes, thrift))).collect();
    let peer = if arguments.no_peer { None } else { Peer::of(PROGRAM)? };
    let mut rows = Vec::new();
    for &transport in &transports {
        let peer_transport = if transport == Transport::Tcp { PeerTransport::Tcp } else { PeerTransport::Shm };
        for &ranks in &ranks {
            for memory in [Memory::Arena, Memory::Private] {
                for (bytes, times) in measure(ranks, transport, memory, &sizes)? {
                    let compared_with = Some(("all_reduce", peer_transport.name()));
                    rows.push(row(memory.case(), bytes, ranks, transport.name(), compared_with, &times)?);
                }
            }
            let Some(peer) = &peer else { continue };
            for (bytes, times) in peer.run_among(ranks, peer_transport, &sizes, PATIENCE)? {
                rows.push(row("all_reduce", bytes, ranks, peer_transport.name(), None, &times)?);
            }
        }
    }
    let mut stdout = std::io::stdout().lock();
    if arguments.json { report::json(&rows, &mut stdout) } else { report::table(&rows, &mut stdout) }
}

fn iterations(bytes: usize, thrift: usize) -> usize {
    let most: usize = match bytes {
        0..0x1_0000 => 10_000,
        0x1_0000..=0x10_0000 => 400,
        0x10_0001..=0x100_0000 => 40,
        _ => 16,
    };
    (most / thrift).max(5)
}

fn row(
    case: &'static str,
    bytes: usize,
    ranks: u32,
    transport: &'static str,
    compared_with: Option<(&'static str, &'static str)>,
    times_ns: &[u64],
) -> Result<Row> {
    let mut times = Histogram::new(DIGITS).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    // The histogram grows with its values, so that it refuses none.
    for time_ns in times_ns {
        let _ = times.record(*time_ns);
    }
    Ok(Row { bench: "collective", case, bytes, ranks, transport, language: "rust", compared_with, target: None, times })
}

/// Nanoseconds of rank 0, per size.
fn measure(
    ranks: u32,
    transport: Transport,
    memory: Memory,
    sizes: &[(usize, usize)],
) -> Result<Vec<(usize, Vec<u64>)>> {
    // Free a moment ago; the join says so if it is not any more.
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let secret = draw_secret()?;
    let start = |rank| {
        let (secret, sizes) = (secret.clone(), sizes.to_vec());
        let invitation = Invitation { rank, ranks, port, secret, transport, memory, sizes };
        Follower::start_speaking("collective-child", &invitation)
    };
    let mut followers = (0..ranks).map(start).collect::<Result<Vec<_>>>()?;
    let line = followers.first_mut().map_or_else(|| Ok(String::new()), Follower::line)?;
    let unexpected = |_| Error::new(ErrorKind::PeerLost, format!("rank 0 said '{line}' instead of its times"));
    let times = serde_json::from_str(&line).map_err(unexpected)?;
    followers.into_iter().try_for_each(Follower::finish)?;
    Ok(times)
}

/// The hidden command: one rank.
pub(super) fn follow() -> std::result::Result<(), Failure> {
    let invitation: Invitation = child::invited("sheave bench collective")?;
    std::thread::spawn(|| {
        std::thread::sleep(PATIENCE);
        std::process::exit(1);
    });
    Ok(take_part(&invitation)?)
}

fn take_part(invitation: &Invitation) -> Result<()> {
    let Invitation { rank, ranks, port, secret, transport, memory, sizes } = invitation;
    let root = Endpoint { host: "127.0.0.1".to_owned(), port: *port };
    let mut config = Config::new(Role::Rank, Some(*rank), Expected::ranks(*ranks), root);
    config.node = node_config("", *transport, secret)?;
    config.node.local_ranks = *ranks as usize;
    let mesh = Mesh::join(config)?;
    let world = Collectives::new(&mesh)?.group(&mesh.world())?;
    let mut measured = Vec::new();
    for &(bytes, iterations) in sizes {
        let shape = Shape::new(&[(bytes / 4) as u64])?;
        let mut tensor = match memory {
            Memory::Arena => Tensor::empty(mesh.node().arena(), Dtype::F32, shape)?,
            Memory::Private => Tensor::private(Dtype::F32, shape)?,
        };
        let (warm, mut times) = (iterations / 10 + 1, Vec::with_capacity(iterations));
        for round in 0..warm + iterations {
            tensor.as_mut_slice::<f32>()?.fill(1.0);
            if bytes >= REWRITTEN_BYTES {
                world.barrier().wait()?;
            }
            let begun = Instant::now();
            world.all_reduce(&tensor, &tensor, Operator::Sum).wait()?;
            if round >= warm {
                times.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
            }
        }
        measured.push((bytes, times));
    }
    if *rank == 0 {
        let line = serde_json::to_string(&measured);
        let line = line.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{line}").and_then(|()| stdout.flush())?;
    }
    mesh.finish()
}
