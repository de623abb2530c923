//! Meshes for tests: as threads of one process, each with a node of its own and real links between them, or as
//! processes, which are copies of the running test binary. And the oracle: what operations must give, computed one
//! element after the other from the inputs of all ranks.

#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

pub(crate) mod oracle;
pub(crate) mod player;

#[path = "../../../mesh/tests/common/meshes.rs"]
mod meshes;
#[path = "../../../mesh/tests/common/seeds.rs"]
mod seeds;

pub(crate) use meshes::{PATIENCE, free_port, hear, job, note, now_ms, say, soon, until, wait};
pub(crate) use seeds::fresh_seeds;
use sheave_base::config::Transport;
use sheave_collective::{Collectives, Communicator, Table};
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_net::{Medium, Neighbourhood};
use sheave_process::{Child, Job};

const RANKS: &str = "SHEAVE_TEST_RANKS";
const ARENA_BYTES: u64 = 256 << 20;

/// The config of one rank of a mesh of ranks.
pub(crate) fn config(rank: u32, ranks: u32, port: u16, transport: Transport) -> Config {
    let mut config = meshes::config(Role::Rank, Some(rank), Expected::ranks(ranks), port, transport);
    config.node.local_ranks = ranks as usize;
    config.node.arena.capacity_bytes = ARENA_BYTES;
    config
}

/// What the links of a mesh of threads may run over.
pub(crate) const MEDIA: [Medium; 3] = [Medium::InProcess, Medium::SharedMemory, Medium::Tcp];

/// As [`config`], for links over one medium.
pub(crate) fn config_over(rank: u32, ranks: u32, port: u16, medium: Medium, here: &Neighbourhood) -> Config {
    let transport = match medium {
        Medium::Tcp => Transport::Tcp,
        Medium::SharedMemory => Transport::Shm,
        _ => Transport::Auto,
    };
    let mut config = config(rank, ranks, port, transport);
    config.node.neighbourhood = Some(here.clone());
    config
}

/// Runs `act` as every rank of a mesh at once, each on a thread of its own with the group of all, and returns what they
/// returned by rank. All links run over this medium. A rank that panics makes the test fail.
pub(crate) fn together<T: Send + 'static>(
    ranks: u32,
    medium: Medium,
    act: impl Fn(&Mesh, &Communicator) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let body = move |mesh: &Mesh, world: &Communicator| {
        let outcome = act(mesh, world);
        for link in mesh.node().links().into_iter().filter_map(|link| mesh.node().link(link).ok()) {
            assert_eq!(link.medium(), medium, "the link to {}", link.peer());
        }
        outcome
    };
    together_with(ranks, medium, |_, _| (), |_| Table::default(), body)
}

/// As [`together`], with a change to every config and a table for every rank.
pub(crate) fn together_with<T: Send + 'static>(
    ranks: u32,
    medium: Medium,
    change: impl Fn(u32, &mut Config),
    table: impl Fn(u32) -> Table,
    act: impl Fn(&Mesh, &Communicator) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let (port, neighbourhood) = (free_port(), Neighbourhood::default());
    let start = |rank: u32| {
        let mut config = config_over(rank, ranks, port, medium, &neighbourhood);
        change(rank, &mut config);
        let (act, table) = (act.clone(), table(rank));
        let body = move || {
            let mesh = Mesh::join(config).expect("everybody comes");
            let world = Collectives::with_table(&mesh, table).expect("it is the first").group(&mesh.world());
            let world = world.expect("few groups");
            let outcome = act(&mesh, &world);
            // The news of a leave may overtake the end of what others still do.
            let left = if world.broken().is_some() { mesh.leave() } else { mesh.finish() };
            // Whoever was cut off may find nobody who agrees.
            assert!(left.is_ok() || world.broken().is_some(), "{left:?}");
            outcome
        };
        std::thread::Builder::new().name(format!("rank-{rank}")).spawn(body).expect("a thread")
    };
    let threads: Vec<_> = (0..ranks).map(start).collect();
    threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
}

/// Starts a copy of this binary for every rank. In each the test function `actor` plays the part.
#[track_caller]
pub(crate) fn start_all(job: &Job, ranks: u32, transport: Transport, variables: &[(&str, &str)]) -> Vec<Child> {
    let port = free_port();
    let mut children = Vec::new();
    for rank in 0..ranks {
        let command = meshes::actor(&format!("rank-{rank}"), port, transport).env(RANKS, ranks.to_string());
        let command = variables.iter().fold(command, |command, (name, value)| command.env(*name, *value));
        children.push(job.spawn(command).expect("a process"));
    }
    children
}

/// The rank that this process plays, if it is not the test itself.
pub(crate) fn part() -> Option<Config> {
    let ranks: u32 = std::env::var(RANKS).ok()?.parse().expect("a number");
    let mut config = meshes::part_of(Expected::ranks(ranks))?;
    config.node.local_ranks = ranks as usize;
    config.node.arena.capacity_bytes = ARENA_BYTES;
    Some(config)
}
