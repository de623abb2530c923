//! Real processes of every role, killed or stopped while the others exchange: whoever needs the victim hears within a
//! second who it was.

use crate::common::{
    PATIENCE, actor as command, floats, free_port, hear, job, note, part_of, roles, say, soon, until, zeros,
};
use sheave_base::config::Transport;
use sheave_base::{LinkId, Result};
use sheave_exchange::{Config, Pull, Push, Server, Worker};
use sheave_mesh::{Mesh, Role};
use sheave_process::Child;
use std::time::{Duration, Instant};

/// The bound of the design: who needs a process that was killed learns it within this time.
const BOUND: Duration = Duration::from_secs(1);
/// For a process that is stopped.
const LIVENESS_TIMEOUT: Duration = Duration::from_millis(1500);
/// Between the sign of life that was the last and the next that does not come.
const BEAT: Duration = Duration::from_millis(200);

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;

const SERVERS: u32 = 2;
const WORKERS: u32 = 2;
const PARTS: [&str; 5] = ["scheduler-0", "server-0", "server-1", "worker-0", "worker-1"];

/// What an actor does after some rounds: it does its part in no more of them, so that all others wait for it.
const VICTIM: &str = "SHEAVE_TEST_VICTIM";
const ROUNDS: u64 = 20;
/// Set for all: who has heard of the victim leaves, and a server answers its last batch when its workers have left.
const LATE: &str = "SHEAVE_TEST_LATE";

fn is_late() -> bool {
    std::env::var(LATE).is_ok()
}

/// Waits until no worker is linked to this node.
fn until_workers_left(mesh: &Mesh) {
    let workers: Vec<_> = mesh.of_role(Role::Worker).map(|worker| worker.node).collect();
    let is_worker = |link: LinkId| {
        let peer = mesh.node().link(link).ok().and_then(|link| link.peer().node);
        peer.is_some_and(|node| workers.contains(&node))
    };
    until("the workers leave", || !mesh.node().links().into_iter().any(is_worker));
}

fn work(mesh: &Mesh, is_victim: bool) -> Result<()> {
    let worker = Worker::open(mesh, Config::default())?;
    for round in 0.. {
        if is_victim && round == ROUNDS {
            say("waits");
            std::thread::sleep(PATIENCE);
        }
        let places = [zeros(1000), zeros(1000)];
        let pulls = [Pull::into(0, &places[0]), Pull::into(0, &places[1])];
        let request = worker.push_pull([Push::new(0, &floats(&[1.0; 1000]))], pulls)?;
        if !is_victim && round == ROUNDS {
            say("waits");
        }
        worker.wait(request, Some(soon()), None)?;
    }
    Ok(())
}

fn serve(mesh: &Mesh, is_victim: bool) -> Result<()> {
    let server = Server::open(mesh, Config::default())?;
    for round in 0.. {
        let batch = server.get_batch(Some(soon()), None)?;
        if round == ROUNDS {
            say("waits");
        }
        if is_victim && round == ROUNDS {
            std::thread::sleep(PATIENCE);
        }
        if is_late() && round == ROUNDS {
            until_workers_left(mesh);
        }
        for request in &batch {
            server.respond(request.handler, &request.tensors)?;
        }
        if round + 1 == ROUNDS {
            // A worker that is the victim makes no more requests.
            say("waits");
        }
    }
    Ok(())
}

/// Not a test: what the other processes of this binary do.
#[test]
fn actor() {
    let Some(mut config) = part_of(roles(SERVERS, WORKERS)) else { return };
    config.node.liveness.beat = BEAT;
    config.node.liveness.timeout = LIVENESS_TIMEOUT;
    let is_victim = std::env::var(VICTIM).is_ok();
    let mesh = Mesh::join(config).expect("everybody comes");
    let ended: Result<()> = match mesh.me().introduction.role {
        Role::Worker => work(&mesh, is_victim),
        Role::Server => serve(&mesh, is_victim),
        _ => mesh.until_gone(|_| true),
    };
    if let Err(error) = ended {
        say(&format!("ended {:?} {error}", error.kind()));
    }
    if is_late() {
        let _ = mesh.leave();
        return;
    }
    // Others may need to hear it from this node.
    std::thread::sleep(PATIENCE);
}

/// Starts everybody, ends the victim when all wait for it, and listens to those who need it.
fn hear_of(victim: &str, signal: i32, transport: Transport, needy: &[&str]) {
    hear_where(false, victim, signal, transport, needy);
}

fn hear_where(is_late: bool, victim: &str, signal: i32, transport: Transport, needy: &[&str]) {
    let (job, port) = (job(), free_port());
    let start = |part: &&str| {
        let command = command(part, port, transport);
        let command = if *part == victim { command.env(VICTIM, "1") } else { command };
        let command = if is_late { command.env(LATE, "1") } else { command };
        job.spawn(command).expect("a process")
    };
    let children: Vec<Child> = PARTS.iter().map(start).collect();
    let of = |part: &str| &children[PARTS.iter().position(|other| *other == part).expect("a part")];
    for child in &children[1..] {
        hear(child, "waits");
    }
    let bound = if signal == SIGKILL { BOUND } else { LIVENESS_TIMEOUT + BEAT + BOUND };
    let begun = Instant::now();
    of(victim).kill(signal).expect("it lives");
    for part in needy {
        let said = hear(of(part), "ended");
        let took = begun.elapsed();
        note(&format!("{part} after {} ms: {said}", took.as_millis()));
        assert!(took < bound, "{part} heard after {took:?}");
        assert!(said.starts_with("PeerLost") && said.contains(victim), "{part} says: {said}");
    }
}

#[test]
fn a_killed_server_is_named_to_the_workers() {
    for transport in [Transport::Shm, Transport::Tcp] {
        hear_of("server-1", SIGKILL, transport, &["worker-0", "worker-1"]);
    }
}

#[test]
fn a_killed_worker_is_named_to_servers_and_workers() {
    for transport in [Transport::Shm, Transport::Tcp] {
        hear_of("worker-1", SIGKILL, transport, &["server-0", "server-1", "worker-0"]);
    }
}

#[test]
fn a_stopped_worker_is_named_to_servers_and_workers() {
    for transport in [Transport::Shm, Transport::Tcp] {
        hear_of("worker-0", SIGSTOP, transport, &["server-0", "server-1", "worker-1"]);
    }
}

#[test]
fn a_stopped_server_is_named_to_the_workers() {
    hear_of("server-0", SIGSTOP, Transport::Shm, &["worker-0", "worker-1"]);
}

/// A server needs no other server, and learns of its death where it answers workers that have left because of it.
#[test]
fn an_answer_to_who_has_left_for_a_loss_names_who_was_lost() {
    for transport in [Transport::Shm, Transport::Tcp] {
        hear_where(true, "server-1", SIGKILL, transport, &["worker-0", "worker-1", "server-0"]);
    }
}
