//! A job of ours: every rank is a process, and measures the same cells in the same order.

use super::case::{Case, REWRITTEN_BYTES};
use super::effort::{self, WARM_ROUNDS};
use super::part::Part;
use crate::Failure;
use crate::bench::Transport;
use crate::bench::child::{self, Follower, nanoseconds};
use crate::bench::pair::{node_config, pin_to_core};
use serde::{Deserialize, Serialize};
use sheave_base::config::Endpoint;
use sheave_base::{Error, ErrorKind, Rank, Result};
use sheave_collective::{Collectives, Communicator};
use sheave_fleet::draw_secret;
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_tensor::{Arena, Tensor};
use std::io::Write;
use std::time::{Duration, Instant};

/// A job that has not measured everything by then has hung.
const PATIENCE: Duration = Duration::from_secs(300);

/// One case of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) case: Case,
    pub(super) bytes: usize,
}

/// What a rank must know, as one line of JSON.
#[derive(Serialize, Deserialize)]
struct Invitation {
    rank: u32,
    ranks: u32,
    port: u16,
    secret: String,
    transport: Transport,
    cells: Vec<Cell>,
    budget: Duration,
    setting: Setting,
}

/// What is the same for all ranks, and not usual.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Setting {
    /// Each rank stays on a core of its own, counted round.
    pub(super) pin: bool,
    /// Another table of algorithms.
    pub(super) table: Option<String>,
}

/// Nanoseconds per operation of every round, as the slowest rank saw it, for each cell.
pub(super) fn measure(
    ranks: u32,
    transport: Transport,
    cells: &[Cell],
    budget: Duration,
    setting: &Setting,
) -> Result<Vec<Vec<u64>>> {
    // Free a moment ago; the join says so if it is not any more.
    let port = sheave_base::port::free()?;
    let secret = draw_secret()?;
    let start = |rank| {
        let (secret, cells, setting) = (secret.clone(), cells.to_vec(), setting.clone());
        let invitation = Invitation { rank, ranks, port, secret, transport, cells, budget, setting };
        Follower::start_speaking("collective-child", &invitation)
    };
    let followers = (0..ranks).map(start).collect::<Result<Vec<_>>>()?;
    slowest(followers, cells.len())
}

/// What all ranks measured, as lines of JSON, by the slowest one of every round.
pub(super) fn slowest(mut followers: Vec<Follower>, cells: usize) -> Result<Vec<Vec<u64>>> {
    let mut slowest: Vec<Vec<u64>> = vec![Vec::new(); cells];
    for follower in &mut followers {
        let line = follower.line()?;
        let unexpected = |_| Error::new(ErrorKind::PeerLost, format!("a rank said '{line}' instead of its times"));
        let times: Vec<Vec<u64>> = serde_json::from_str(&line).map_err(unexpected)?;
        for (slowest, times) in slowest.iter_mut().zip(times) {
            slowest.resize(times.len(), 0);
            slowest.iter_mut().zip(times).for_each(|(slowest, time)| *slowest = time.max(*slowest));
        }
    }
    followers.into_iter().try_for_each(Follower::finish)?;
    Ok(slowest)
}

/// Says what this rank measured.
pub(super) fn say(times: &[Vec<u64>]) -> Result<()> {
    let line = serde_json::to_string(times).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(Error::from)
}

/// The hidden command: one rank.
pub(in crate::bench) fn follow() -> std::result::Result<(), Failure> {
    let invitation: Invitation = child::invited("sheave bench collective")?;
    child::end_after(PATIENCE);
    Ok(take_part(&invitation)?)
}

fn take_part(invitation: &Invitation) -> Result<()> {
    let Invitation { rank, ranks, port, secret, transport, cells, budget, setting } = invitation;
    let root = Endpoint { host: "127.0.0.1".to_owned(), port: *port };
    let mut config = Config::new(Role::Rank, Some(*rank), Expected::ranks(*ranks), root);
    config.node = node_config("", *transport, secret)?;
    config.node.local_ranks = *ranks as usize;
    let mesh = Mesh::join(config)?;
    let collectives = match &setting.table {
        Some(table) => Collectives::with_table(&mesh, table.parse()?)?,
        None => Collectives::new(&mesh)?,
    };
    let world = collectives.group(&mesh.world())?;
    if setting.pin {
        // Only now, so that the node has seen all the cores that there are.
        pin_to_core(*rank as usize)?;
    }
    let measured = cells.iter().map(|cell| {
        let times = measure_cell(&world, mesh.node().arena(), *cell, *budget);
        times.map_err(|error| error.context(format!("{} of {} bytes", cell.case.name(), cell.bytes)))
    });
    say(&measured.collect::<Result<Vec<_>>>()?)?;
    mesh.finish()
}

fn measure_cell(world: &Communicator, arena: &Arena, cell: Cell, budget: Duration) -> Result<Vec<u64>> {
    let mut part = Part::new(world, arena, cell.case, cell.bytes)?;
    part.check()?;
    // Sums of zeros stay within numbers, however often they are summed.
    part.fill(0.0)?;
    let looped = effort::looped(cell.bytes);
    let mut round = |number: usize| {
        if cell.bytes >= REWRITTEN_BYTES {
            part.fill(1.0 + number as f32)?;
        }
        world.barrier().wait()?;
        let begun = Instant::now();
        (0..looped).try_for_each(|_| part.run())?;
        Ok::<u64, Error>(nanoseconds(begun.elapsed()) / looped as u64)
    };
    let mut last = Duration::ZERO;
    for number in 0..WARM_ROUNDS {
        let begun = Instant::now();
        round(number)?;
        last = begun.elapsed();
    }
    let rounds = agree(world, effort::rounds(budget, last))?;
    (0..rounds).map(round).collect()
}

/// Everybody's number is that of rank 0.
fn agree(world: &Communicator, number: usize) -> Result<usize> {
    let agreed = Tensor::from_slice(&[number as i64], [1])?;
    world.broadcast(&agreed, Rank(0)).wait()?;
    let agreed = agreed.to_vec::<i64>()?.first().copied().and_then(|agreed| usize::try_from(agreed).ok());
    agreed.ok_or_else(|| Error::new(ErrorKind::Internal, "the number of rounds did not arrive"))
}
