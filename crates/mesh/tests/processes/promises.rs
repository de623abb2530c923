//! Processes that have promised something, or own what was promised, are killed: whoever waits is told within a second.

use crate::common;
use crate::common::{failed, free_port, hear, job, note, park, part, say, start};
use sheave_base::ErrorKind;
use sheave_base::config::Transport;
use sheave_mesh::{Expected, Mesh, Ref, Request};
use sheave_wire::Value;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The bound of the design for everything that a killed process is needed for.
const BOUND: Duration = Duration::from_secs(1);

const SIGKILL: i32 = 9;

/// Rank 0 owns, rank 1 promises and is killed, rank 2 uses what it was given, and sees rank 0 killed.
#[test]
fn actor() {
    let Some(config) = part(Expected::ranks(3)) else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    let kept: Arc<Mutex<Vec<Ref>>> = Arc::default();
    let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
    let (keeping, holding, weak) = (Arc::clone(&kept), Arc::clone(&requests), mesh.downgrade());
    let handle = move |request: Request| match request.method.as_str() {
        "keep" => {
            keeping.lock().expect("nobody panics").extend(request.refs);
            request.reply.value(());
        }
        "hold" => holding.lock().expect("nobody panics").push(request),
        _ => {
            let object = weak.upgrade().map(|mesh| mesh.object::<u8>(&request.refs[0], None).wait());
            request.reply.send(object.expect("it is a member").map(|_| Default::default()));
        }
    };
    mesh.serve("it", handle).expect("the name is free");
    let world = mesh.world();
    world.barrier().expect("all are there");
    let call = |to: usize, method: &str, args: Value| mesh.call(mesh.members()[to].node, "it", method, args);
    if mesh.me().rank.0 == 1 {
        let held = mesh.promise(mesh.members()[0].node).expect("there is room");
        call(2, "keep", held.value()).expect("sent").wait_timeout(common::PATIENCE).expect("kept");
        say("promised");
        park();
    }
    if mesh.me().rank.0 == 0 {
        common::until("both calls hang here", || requests.lock().expect("nobody panics").len() == 1);
        say("holding");
        park();
    }
    common::until("it was given", || kept.lock().expect("nobody panics").len() == 1);
    let given = kept.lock().expect("nobody panics").remove(0);
    let read = call(0, "read", given.value()).expect("sent");
    say("waiting");
    let error = failed(read.wait_timeout(common::PATIENCE));
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    assert!(error.to_string().contains("rank-1") && error.to_string().contains("send the call"), "{error}");
    say("told");
    let held = mesh.promise(mesh.members()[0].node).expect("there is room");
    let filling = call(0, "hold", held.to_fill()).expect("sent");
    let read = call(0, "read", held.value()).expect("sent");
    say("asked");
    for work in [filling, read] {
        let error = failed(work.wait_timeout(common::PATIENCE));
        assert_eq!((error.kind(), error.about().map(|peer| peer.name.as_str())), (ErrorKind::PeerLost, Some("rank-0")));
    }
    say("lost");
    common::until("its end is agreed", || mesh.deaths().len() == 2);
    let errors = [
        failed(call(0, "read", held.value()).and_then(|work| work.wait_timeout(common::PATIENCE))),
        failed(mesh.promise(mesh.members()[0].node)),
        failed(held.get::<u8>()),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert!(error.to_string().contains("rank-0"), "{error}");
    }
    drop((held, given));
    mesh.leave().expect("it is alone");
    say("left");
}

#[test]
fn who_waits_for_a_promise_is_told_within_a_second_that_its_maker_or_its_owner_was_killed() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let job = job();
        let port = free_port();
        let children: Vec<_> =
            ["rank-0", "rank-1", "rank-2"].into_iter().map(|part| start(&job, part, port, transport)).collect();
        hear(&children[1], "promised");
        hear(&children[2], "waiting");
        let begun = Instant::now();
        children[1].kill(SIGKILL).expect("it lives");
        hear(&children[2], "told");
        let promiser = begun.elapsed();
        hear(&children[2], "asked");
        hear(&children[0], "holding");
        let begun = Instant::now();
        children[0].kill(SIGKILL).expect("it lives");
        hear(&children[2], "lost");
        let owner = begun.elapsed();
        hear(&children[2], "left");
        note(&format!(
            "{transport:?}: told {promiser:?} after the end of the maker, {owner:?} after that of the owner"
        ));
        assert!(promiser < BOUND && owner < BOUND, "{transport:?}: {promiser:?}, {owner:?}");
    }
}
