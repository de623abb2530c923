//! Jobs for the tests of the store.

#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod deaths;
#[path = "../../../mesh/tests/common/meshes.rs"]
mod meshes;
pub(crate) mod raw;

pub(crate) use meshes::*;
use sheave_base::config::Transport;
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_process::{Child, Job};

const COUNTS: &str = "SHEAVE_TEST_COUNTS";

/// Starts a copy of this binary for every node of a job with these numbers of servers and workers. In each the test
/// function `actor` plays the part, with these variables in its environment.
#[track_caller]
pub(crate) fn start_all(job: &Job, expected: Expected, transport: Transport, variables: &[(&str, &str)]) -> Vec<Child> {
    let port = free_port();
    let counts = format!("{} {}", expected.servers, expected.workers);
    let mut children = Vec::new();
    for part in parts(expected) {
        let command = actor(&part, port, transport).env(COUNTS, &counts);
        let command = variables.iter().fold(command, |command, (name, value)| command.env(*name, *value));
        children.push(job.spawn(command).expect("a process"));
    }
    children
}

/// The parts of a job in the order of their ranks in the mesh.
pub(crate) fn parts(expected: Expected) -> Vec<String> {
    let part_of = |role: Role| (0..expected.of(role)).map(move |rank| format!("{role}-{rank}"));
    Role::ALL.into_iter().flat_map(part_of).collect()
}

/// The part that this process plays, if it is not the test itself.
pub(crate) fn part() -> Option<Config> {
    let counts = std::env::var(COUNTS).ok()?;
    let counts: Vec<u32> = counts.split(' ').map(|count| count.parse().expect("a number")).collect();
    part_of(roles(counts[0], counts[1]))
}

/// What every process of a job does: a worker acts, and all others serve until the workers have left.
pub(crate) fn play(mesh: &Mesh, server: sheave_store::ServerConfig, act: impl FnOnce(&Mesh)) {
    match mesh.me().introduction.role {
        Role::Server => {
            sheave_store::Server::start(mesh, server).and_then(|server| server.run()).expect("no worker dies");
        }
        Role::Worker => act(mesh),
        _ => mesh.until_gone(|_| true).expect("nobody dies"),
    }
    mesh.leave().expect("the others agree");
}

/// Waits for the good end of all processes.
pub(crate) fn ended_well(children: &[Child]) {
    for child in children {
        until("it has ended", || child.exit().is_some());
        let well = child.exit().is_some_and(|exit| exit.status.success());
        assert!(well, "{} has failed\n{}", child.name(), child.stderr_lines().join("\n"));
    }
}

/// Runs a job with servers: `act` as every worker, with what `serve` makes of every server. Returns what the workers
/// returned by rank.
pub(crate) fn job_of<T: Send + 'static>(
    servers: u32,
    workers: u32,
    transport: Transport,
    config: sheave_store::ServerConfig,
    act: impl Fn(&Mesh) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let outcomes = together(roles(servers, workers), transport, move |mesh| {
        let outcome = match mesh.me().introduction.role {
            Role::Server => {
                let server = sheave_store::Server::start(&mesh, config.clone()).expect("it is the first");
                server.run().expect("no worker dies");
                None
            }
            Role::Worker => Some(act(&mesh)),
            _ => {
                mesh.until_gone(|_| true).expect("nobody dies");
                None
            }
        };
        mesh.leave().expect("the others agree");
        outcome
    });
    outcomes.into_iter().flatten().collect()
}
