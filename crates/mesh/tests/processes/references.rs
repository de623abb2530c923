//! A process that holds and owns a hundred thousand objects is killed: what it held is freed within a second, and what
//! it owned is lost for those who hold it, by its name.

use crate::common;
use crate::common::{free_port, hear, job, note, part, say, start};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Rank};
use sheave_mesh::{Expected, Lane, Mesh, Ref, Request, Service};
use sheave_wire::Value;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The bound of the design for everything that a killed process is needed for.
const BOUND: Duration = Duration::from_secs(1);

const SIGKILL: i32 = 9;
const OBJECTS: usize = 100_000;
/// References that one call carries.
const BATCH: usize = 5000;

/// Keeps the references of all requests.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<Vec<Ref>>>);

impl Service for Keeper {
    fn handle(&self, request: Request) {
        self.0.lock().expect("nobody panics").extend(request.refs);
        request.reply.value(());
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }
}

/// Rank 0 owns; rank 1 gets half from the owner and half from rank 2, gives as many of its own to rank 0, and is
/// killed.
#[test]
fn actor() {
    let Some(config) = part(Expected::ranks(3)) else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    let keeper = Keeper::default();
    mesh.serve("it", keeper.clone()).expect("the name is free");
    let world = mesh.world();
    world.barrier().expect("all are there");
    let node = |rank: usize| mesh.members()[rank].node;
    let give = |to: usize, refs: &[Ref]| {
        for refs in refs.chunks(BATCH) {
            let names = Value::List(refs.iter().map(Ref::value).collect());
            let work = mesh.call(node(to), "it", "keep", names).expect("sent");
            work.wait_timeout(common::PATIENCE).expect("kept");
        }
    };
    let mut weaks: Vec<Weak<usize>> = Vec::new();
    if mesh.me().rank == Rank(0) {
        let objects: Vec<Arc<usize>> = (0..OBJECTS).map(Arc::new).collect();
        weaks = objects.iter().map(Arc::downgrade).collect();
        let refs: Vec<Ref> = objects.into_iter().map(|object| mesh.export(object).expect("there is room")).collect();
        give(1, &refs[..OBJECTS / 2]);
        give(2, &refs[OBJECTS / 2..]);
    }
    world.barrier().expect("all are there");
    if mesh.me().rank == Rank(2) {
        let refs = std::mem::take(&mut *keeper.0.lock().expect("nobody panics"));
        give(1, &refs);
    }
    let mut own = Vec::new();
    if mesh.me().rank == Rank(1) {
        own.extend((0..OBJECTS).map(|number| mesh.export(Arc::new(number)).expect("there is room")));
        give(0, &own);
    }
    world.barrier().expect("all are there");
    assert!(weaks.iter().all(|weak| weak.strong_count() == 1), "the victim holds them all");
    say("ready");
    if mesh.me().rank == Rank(1) {
        loop {
            std::thread::park();
        }
    }
    let error = world.barrier().expect_err("the victim never enters");
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    common::until("all is freed", || weaks.iter().all(|weak| weak.strong_count() == 0));
    say("freed");
    let lost = std::mem::take(&mut *keeper.0.lock().expect("nobody panics"));
    assert_eq!(lost.len(), if mesh.me().rank == Rank(0) { OBJECTS } else { 0 });
    for held in lost {
        let error = held.get::<usize>().expect_err("its owner is dead");
        let name = error.about().map(|peer| peer.name.as_str());
        assert_eq!((error.kind(), name), (ErrorKind::PeerLost, Some("rank-1")), "{error}");
    }
    mesh.leave().expect("the rest agrees");
    say("left");
}

#[test]
fn what_a_killed_process_held_is_freed_within_a_second() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let job = job();
        let port = free_port();
        let children: Vec<_> =
            ["rank-0", "rank-1", "rank-2"].into_iter().map(|part| start(&job, part, port, transport)).collect();
        children.iter().for_each(|child| drop(hear(child, "ready")));
        let begun = Instant::now();
        children[1].kill(SIGKILL).expect("it lives");
        hear(&children[0], "freed");
        let took = begun.elapsed();
        note(&format!("{transport:?}: {OBJECTS} objects were freed {:.1} ms after the kill", took.as_secs_f64() * 1e3));
        assert!(took < BOUND, "{transport:?}: {took:?}");
        hear(&children[0], "left");
        hear(&children[2], "left");
    }
}
