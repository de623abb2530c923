//! Words of one member that cross each other, and what ends while something else is said.

use crate::common::{failed, together};
use serde::{Deserialize, Serialize};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, NodeId};
use sheave_mesh::{Expected, Mesh, Request};
use sheave_rpc::Rpc;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Far enough for a loaded machine; nothing waits that long when all is well.
const LONG: Duration = Duration::from_secs(30);

/// As members say it to the first of a group.
#[derive(Serialize, Deserialize)]
struct Enter {
    name: String,
    members: Vec<NodeId>,
    generation: u64,
    patience_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct Abandon {
    name: String,
    generation: u64,
}

sheave_mesh::methods! {
    service "sheave.rpc";
    1, "enter": Enter[Enter] -> u64, Members;
    2, "abandon": Abandon[Abandon] -> u64, Members;
}

fn begin(mesh: &Mesh) -> Rpc {
    let rpc = Rpc::serve(mesh).expect("once");
    mesh.world().barrier().expect("all are there");
    rpc
}

fn all(mesh: &Mesh) -> Vec<NodeId> {
    mesh.members().iter().map(|member| member.node).collect()
}

fn enter(mesh: &Mesh, generation: u64) -> Enter {
    Enter { name: "it".to_owned(), members: all(mesh), generation, patience_ms: None }
}

#[test]
fn an_attempt_that_is_given_up_late_ends_no_other_one() {
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        let rpc = begin(&mesh);
        let first = mesh.members()[0].node;
        if mesh.me().rank.0 == 1 {
            let before = mesh.ask::<Enter>(first, &enter(&mesh, 1)).expect("it is sent");
            let work = mesh.ask::<Enter>(first, &enter(&mesh, 2)).expect("it is sent");
            let late = Abandon { name: "it".to_owned(), generation: 1 };
            mesh.ask::<Abandon>(first, &late).expect("it is sent").wait_timeout(LONG).expect("it is heard");
            let error = failed(before.wait_timeout(LONG));
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
            mesh.world().barrier().expect("all come");
            let generation = work.wait_timeout(LONG).expect("it is not given up").value;
            assert!(generation >= 2, "{generation}");
        } else {
            mesh.world().barrier().expect("all come");
            rpc.create_group("it", &all(&mesh), Some(LONG)).wait().expect("both have entered").destroy();
        }
        mesh.finish().expect("all end");
    });
}

/// The first member ends an attempt however soon its time is up, and its member need not do that itself.
#[test]
fn a_time_that_is_up_at_once_is_told_by_the_first_member() {
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        let rpc = begin(&mesh);
        if mesh.me().rank.0 == 1 {
            let first = Some(mesh.members()[0].introduction.name.clone());
            for round in 0..300 {
                let error = failed(rpc.create_group("it", &all(&mesh), Some(Duration::ZERO)).wait());
                let told_by = error.happened_on().map(|peer| peer.name.clone());
                assert_eq!((error.kind(), &told_by), (ErrorKind::DeadlineExceeded, &first), "round {round}: {error}");
            }
        }
        mesh.world().barrier().expect("all come");
        mesh.finish().expect("all end");
    });
}

/// Another thread enters in the moment in which an attempt ends.
#[test]
fn who_enters_again_at_once_stays_in_the_group() {
    let (told, enters) = channel::<()>();
    let enters = Arc::new(std::sync::Mutex::new(enters));
    together(Expected::ranks(2), Transport::Shm, move |mesh| {
        let rpc = begin(&mesh);
        let members = all(&mesh);
        for round in 0..100 {
            let group = if mesh.me().rank.0 == 1 {
                let short = rpc.create_group("it", &members, Some(Duration::from_millis(1)));
                let again = loop {
                    let work = rpc.create_group("it", &members, Some(LONG));
                    match work.result() {
                        Some(Err(error)) if error.kind() == ErrorKind::AlreadyExists => std::hint::spin_loop(),
                        _ => break work,
                    }
                };
                assert_eq!(failed(short.wait()).kind(), ErrorKind::DeadlineExceeded);
                told.send(()).expect("it waits");
                again.wait()
            } else {
                enters.lock().expect("nobody panics").recv_timeout(LONG).expect("it is told");
                rpc.create_group("it", &members, Some(LONG)).wait()
            };
            let group = group.unwrap_or_else(|error| panic!("round {round}: {error}"));
            let barrier = group.barrier(Some(LONG)).expect("it is a member");
            barrier.wait().unwrap_or_else(|error| panic!("round {round}: {error}"));
            if mesh.me().rank.0 == 1 {
                let service = |request: Request| request.reply.value(());
                let registered = group.register("one", service, Some(LONG)).expect("it is a member");
                registered.wait().unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
            mesh.world().barrier().expect("all come");
            assert!(
                group.is_registered("one", Some(LONG)).expect("begun").wait().expect("it answers"),
                "round {round}"
            );
            mesh.world().barrier().expect("all come");
            group.destroy();
            mesh.world().barrier().expect("all come");
        }
        mesh.finish().expect("all end");
    });
}

#[test]
fn who_is_told_that_it_enters_again_asks_at_once() {
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        let rpc = begin(&mesh);
        if mesh.me().rank.0 == 0 {
            let me = mesh.me().node;
            let (tells, hears) = channel();
            let (own, before) = (rpc.clone(), mesh.ask::<Enter>(me, &enter(&mesh, 1)).expect("it is sent"));
            before.on_complete(move |_| _ = tells.send(own.group("it").is_none()));
            let (again, other) = (enter(&mesh, 2), mesh.clone());
            // Where it waits for itself it does so for ever.
            std::thread::spawn(move || drop(other.ask::<Enter>(me, &again)));
            assert!(hears.recv_timeout(LONG / 3).expect("nothing waits for itself"));
        }
        // It is no member of a mesh that stands still.
        let ended = mesh.world().begin_barrier(Some(LONG)).wait();
        ended.and_then(|()| mesh.finish()).expect("all end");
    });
}

/// An object whose drop asks for a group.
struct Asks(Rpc, Sender<bool>);

impl Drop for Asks {
    fn drop(&mut self) {
        let _ = self.1.send(self.0.group("it").is_some());
    }
}

#[test]
fn an_object_that_is_refused_may_ask_when_it_is_dropped() {
    together(Expected::ranks(1), Transport::Shm, |mesh| {
        let rpc = begin(&mesh);
        let group = rpc.create_group("it", &all(&mesh), Some(LONG)).wait().expect("it is alone");
        group.pair_object("key", Arc::new(7), Some(LONG)).expect("a member").wait().expect("it is free");
        let (tells, hears) = channel();
        let (own, other) = (rpc, group);
        let caller = std::thread::spawn(move || {
            let asks = Arc::new(Asks(own, tells));
            failed(other.pair_object("key", asks, Some(LONG))).kind()
        });
        // Where it waits for itself it does so for ever.
        assert!(hears.recv_timeout(LONG / 3).expect("nothing waits for itself"));
        assert_eq!(caller.join().expect("it does not panic"), ErrorKind::AlreadyExists);
        mesh.finish().expect("all end");
    });
}

#[test]
fn what_is_taken_away_and_registered_again_is_found() {
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        let rpc = begin(&mesh);
        let group = rpc.create_group("it", &all(&mesh), Some(LONG)).wait().expect("both make it");
        if mesh.me().rank.0 == 1 {
            let register = || {
                let service = |request: Request| request.reply.value(());
                group.register("one", service, Some(LONG)).expect("this node does not have it")
            };
            register().wait().expect("it is free");
            for round in 0..10_000 {
                let (away, again) = (group.deregister("one", Some(LONG)).expect("it has it"), register());
                again.wait().expect("it is its own");
                away.wait().expect("it is heard");
                let is_there = group.is_registered("one", Some(LONG)).expect("begun").wait();
                assert!(is_there.expect("the index answers"), "round {round}");
            }
        }
        mesh.world().barrier().expect("all come");
        mesh.finish().expect("all end");
    });
}
