//! All processes of a job but one are killed at once: the one that is left knows from the system that it is alone.

use crate::common::{free_port, hear, job, note, part, say, start_with, until};
use sheave_base::ErrorKind;
use sheave_base::config::Transport;
use sheave_mesh::{Expected, Mesh};
use std::time::{Duration, Instant};

/// A beat for each member that it had no link to: news of a leave might come.
const BOUND: Duration = Duration::from_secs(4);
const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

#[test]
fn actor() {
    let Some(config) = part(Expected::ranks(4)) else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    let world = mesh.world();
    world.barrier().expect("all are there");
    say("ready");
    if std::env::var("SHEAVE_TEST_VICTIM") != std::env::var("SHEAVE_TEST_PART") {
        loop {
            std::thread::park();
        }
    }
    let error = world.barrier().expect_err("nobody else enters");
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    let rest = world.shrink().expect("it goes on");
    assert_eq!((rest.size(), mesh.num_dead_node(|_| true)), (1, 3));
    rest.barrier().expect("it is alone");
    say("shrunk");
    mesh.leave().expect("nobody has to agree");
    say("left");
}

fn all_but(survivor: &str, transport: Transport) {
    let job = job();
    let port = free_port();
    let parts = ["rank-0", "rank-1", "rank-2", "rank-3"];
    let children: Vec<_> = parts.iter().map(|part| start_with(&job, part, port, transport, survivor)).collect();
    children.iter().for_each(|child| drop(hear(child, "ready")));
    let at = parts.iter().position(|part| *part == survivor).expect("it is one of them");
    // It sees all ends at the same time.
    children[at].kill(SIGSTOP).expect("it lives");
    for child in children.iter().enumerate().filter(|(number, _)| *number != at).map(|(_, child)| child) {
        child.kill(SIGKILL).expect("it lives");
        until("it has ended", || child.exit().is_some());
    }
    let begun = Instant::now();
    children[at].kill(SIGCONT).expect("it lives");
    hear(&children[at], "shrunk");
    let took = begun.elapsed();
    note(&format!("{transport:?}: {survivor} went on alone after {:.1} ms", took.as_secs_f64() * 1e3));
    assert!(took < BOUND, "{transport:?}: {took:?}");
    hear(&children[at], "left");
    until("it has ended well", || children[at].exit().is_some_and(|exit| exit.status.success()));
}

#[test]
fn f23_a_parent_goes_on_when_its_workers_are_killed_at_once() {
    for transport in [Transport::Shm, Transport::Tcp] {
        all_but("rank-0", transport);
    }
}

#[test]
fn f23_a_worker_goes_on_when_its_parent_and_the_others_are_killed_at_once() {
    for transport in [Transport::Shm, Transport::Tcp] {
        all_but("rank-3", transport);
    }
}
