//! Processes are killed that others call one way: whoever goes on calling, or waits for room, is told within a second.

use crate::common;
use crate::common::{PATIENCE, failed, free_port, hear, job, note, park, part, say, start};
use sheave_base::ErrorKind;
use sheave_base::config::Transport;
use sheave_mesh::{Expected, Lane, Mesh, Request, Service};
use sheave_wire::Value;
use std::time::{Duration, Instant};

/// The bound of the design for everything that a killed process is needed for.
const BOUND: Duration = Duration::from_secs(1);

const SIGKILL: i32 = 9;

/// Begins with its first request and never with another.
struct Stuck;

impl Service for Stuck {
    fn handle(&self, _: Request) {
        say("stuck");
        park();
    }

    fn lane(&self) -> Lane {
        Lane::Serial
    }
}

/// Rank 0 calls rank 1 until nothing more fits anywhere, and rank 1 is killed.
#[test]
fn actor() {
    let Some(config) = part(Expected::ranks(2)) else { return };
    let mesh = Mesh::join(config).expect("both come");
    mesh.serve("it", Stuck).expect("the name is free");
    mesh.world().barrier().expect("both are there");
    if mesh.me().rank.0 == 1 {
        park();
    }
    let they = mesh.members()[1].node;
    let held = mesh.promise(they).expect("there is room");
    mesh.cast(they, "it", "x", held.to_fill()).expect("it is sent");
    while mesh.cast(they, "it", "x", Value::None).is_ok() {}
    let room = mesh.room(they, "it", None);
    say("full");
    let error = failed(room.wait_timeout(PATIENCE));
    assert_eq!((error.kind(), error.about().map(|peer| peer.name.as_str())), (ErrorKind::PeerLost, Some("rank-1")));
    say("told");
    common::until("its end is agreed", || mesh.deaths().len() == 1);
    let used = held.get::<u8>().map(drop);
    for outcome in [mesh.cast(they, "it", "x", Value::None), mesh.promise(they).map(drop), used] {
        let error = failed(outcome);
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert!(error.to_string().contains("rank-1"), "{error}");
    }
    mesh.check_one_way(they, "it").expect("that it is gone was told");
    drop(held);
    mesh.leave().expect("it is alone");
    say("left");
}

#[test]
fn who_calls_one_way_is_told_within_a_second_that_its_callee_was_killed() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let job = job();
        let port = free_port();
        let children: Vec<_> =
            ["rank-0", "rank-1"].into_iter().map(|part| start(&job, part, port, transport)).collect();
        hear(&children[1], "stuck");
        hear(&children[0], "full");
        let begun = Instant::now();
        children[1].kill(SIGKILL).expect("it lives");
        hear(&children[0], "told");
        let told = begun.elapsed();
        hear(&children[0], "left");
        note(&format!("{transport:?}: told {told:?} after the end of the callee"));
        assert!(told < BOUND, "{transport:?}: {told:?}");
    }
}
