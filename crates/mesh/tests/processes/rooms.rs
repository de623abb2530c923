//! A process is killed for whose room another one waits, which is told within a second.

use crate::common;
use crate::common::{PATIENCE, free_port, hear, job, note, part, say, start};
use sheave_base::ErrorKind;
use sheave_base::config::Transport;
use sheave_mesh::{Expected, Lane, Mesh, Request, Service};
use sheave_wire::Value;
use std::time::{Duration, Instant};

/// The bound of the design for everything that a killed process is needed for.
const BOUND: Duration = Duration::from_secs(1);

const SIGKILL: i32 = 9;

/// Never ends with what it has begun.
struct Stuck;

impl Service for Stuck {
    fn handle(&self, _: Request) {
        loop {
            std::thread::park();
        }
    }

    fn lane(&self) -> Lane {
        Lane::Serial
    }
}

/// Rank 1 is stuck, rank 0 fills its window, and rank 2 makes the two a majority.
#[test]
fn actor() {
    let Some(config) = part(Expected::ranks(3)) else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    mesh.serve("stuck", Stuck).expect("the name is free");
    mesh.world().barrier().expect("all are there");
    if mesh.me().rank.0 == 1 {
        say("ready");
        loop {
            std::thread::park();
        }
    }
    if mesh.me().rank.0 == 0 {
        let to = mesh.members()[1].node;
        while mesh.room(to, "stuck", None).is_done() {
            drop(mesh.call(to, "stuck", "x", Value::None).expect("it is sent"));
        }
        say("full");
        let error = mesh.room(to, "stuck", None).wait_timeout(PATIENCE).expect_err("nothing begins there");
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert_eq!(error.about().map(|peer| peer.name.as_str()), Some("rank-1"), "{error}");
        say("told");
    }
    common::until("its end is agreed", || !mesh.deaths().is_empty());
    mesh.leave().expect("the rest agrees");
    say("left");
}

#[test]
fn who_waits_for_room_is_told_within_a_second_that_the_callee_was_killed() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let (job, port) = (job(), free_port());
        let start = |part| start(&job, part, port, transport);
        let children: Vec<_> = ["rank-0", "rank-1", "rank-2"].into_iter().map(start).collect();
        hear(&children[1], "ready");
        hear(&children[0], "full");
        let begun = Instant::now();
        children[1].kill(SIGKILL).expect("it lives");
        hear(&children[0], "told");
        let took = begun.elapsed();
        hear(&children[0], "left");
        hear(&children[2], "left");
        note(&format!("{transport:?}: told {took:?} after the end of the callee"));
        assert!(took < BOUND, "{transport:?}: {took:?}");
    }
}
