//! Panics of users' code on threads that are not theirs: they are told, and cost nobody else anything.

use crate::common::{PATIENCE, together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, NodeId, Rank};
use sheave_mesh::{Expected, Lane, Member, Mesh, Request, Service};
use sheave_wire::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

fn node_of(mesh: &Mesh, rank: usize) -> NodeId {
    mesh.members()[rank].node
}

/// Answers with the name of the method, but for those that panic.
#[derive(Clone, Default)]
struct Parrot {
    inline: bool,
    panics_at_losses: bool,
    losses: Arc<AtomicU32>,
}

impl Service for Parrot {
    fn handle(&self, request: Request) {
        match request.method.as_str() {
            "panic" => panic!("a handler of a test"),
            "catch" => {
                let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                    let _request = request;
                    panic!("a handler that catches itself");
                }));
                assert!(caught.is_err());
            }
            "hold" => drop(request.refs),
            method => request.reply.value(method.to_owned()),
        }
    }

    fn lane(&self) -> Lane {
        if self.inline { Lane::Inline } else { Lane::default() }
    }

    fn lost(&self, _member: &Member, _error: &Error) {
        self.losses.fetch_add(1, SeqCst);
        assert!(!self.panics_at_losses, "a service of a test hears of a loss");
    }
}

/// Two nodes; rank 1 offers a service, rank 0 does `act` with it, and both leave.
fn with_parrot(inline: bool, act: impl Fn(&Mesh, NodeId) + Clone + Send + 'static) {
    for transport in TRANSPORTS {
        let act = act.clone();
        together(Expected::ranks(2), transport, move |mesh| {
            if mesh.me().rank == Rank(1) {
                mesh.serve("parrot", Parrot { inline, ..Parrot::default() }).expect("the name is free");
            }
            mesh.world().barrier().expect("both are there");
            if mesh.me().rank == Rank(0) {
                act(&mesh, node_of(&mesh, 1));
            }
            mesh.finish().expect("all are well");
        });
    }
}

#[test]
fn f53_the_progress_thread_outlives_a_panicking_callback() {
    with_parrot(true, |mesh, to| {
        for round in 0..3 {
            let heard = Arc::new(AtomicU32::new(0));
            let seen = heard.clone();
            let bad = mesh.call(to, "parrot", "bad", Value::None).expect("it is sent");
            bad.on_complete(|_| panic!("a callback of a test"));
            let good = mesh.call(to, "parrot", "good", Value::None).expect("it is sent");
            good.on_complete(move |_| {
                seen.fetch_add(1, SeqCst);
            });
            // Nobody waits, so the node's own thread is the one that hears the answers.
            until(&format!("callback {round}"), || heard.load(SeqCst) == 1);
        }
    });
}

#[test]
fn f53_a_wait_ends_well_whatever_panics_on_its_thread() {
    with_parrot(true, |mesh, to| {
        let bad: Vec<_> = (0..8).map(|_| mesh.call(to, "parrot", "bad", Value::None).expect("it is sent")).collect();
        bad.iter().for_each(|work| work.on_complete(|_| panic!("a callback of a test")));
        let good = mesh.call(to, "parrot", "good", Value::None).expect("it is sent");
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wait(&good)));
        let answer = outcome.expect("the wait did not unwind").expect("it is answered");
        assert_eq!(answer.value, Value::from("good"));
        bad.iter().for_each(|work| drop(work.wait_timeout(PATIENCE).expect("it is answered as well")));
    });
}

#[test]
fn f53_the_caller_reads_what_a_handler_panicked_with() {
    for inline in [true, false] {
        with_parrot(inline, |mesh, to| {
            for here in [to, mesh.me().node] {
                if here != to {
                    mesh.serve("parrot", Parrot::default()).expect("the name is free");
                }
                let call = |method| wait(&mesh.call(here, "parrot", method, Value::None).expect("it is sent"));
                let error = call("panic").expect_err("it panics");
                assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
                assert!(error.what().contains("a handler of a test"), "{error}");
                // One that catches its own panic has lost its reply all the same, and somebody waits.
                assert_eq!(call("catch").expect_err("no answer").kind(), ErrorKind::Remote);
                assert_eq!(call("good").expect("it goes on").value, Value::from("good"));
            }
        });
    }
}

/// Panics when it is dropped.
struct Touchy(Arc<AtomicU32>);

impl Drop for Touchy {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
        panic!("an object of a test is dropped");
    }
}

#[test]
fn f53_objects_that_panic_in_their_drop_are_freed_and_fail_no_call() {
    with_parrot(true, |mesh, to| {
        let drops = Arc::new(AtomicU32::new(0));
        for _ in 0..3 {
            let object = mesh.export(Arc::new(Touchy(drops.clone()))).expect("there is room");
            let call = mesh.call(to, "parrot", "hold", object.value()).expect("it is sent");
            drop(object);
            // The reply is dropped by the handler; the object is freed when its reference has come back.
            assert_eq!(wait(&call).expect_err("no answer").kind(), ErrorKind::Remote);
        }
        until("the objects' end", || drops.load(SeqCst) == 3);
        let own = mesh.export(Arc::new(Touchy(drops.clone()))).expect("there is room");
        drop(own);
        assert_eq!(drops.load(SeqCst), 4);
        let answer = wait(&mesh.call(to, "parrot", "good", Value::None).expect("it is sent"));
        assert_eq!(answer.expect("it goes on").value, Value::from("good"));
        // What is left at the end is dropped then, on whatever thread.
        std::mem::forget(mesh.export(Arc::new(Touchy(drops))).expect("there is room"));
    });
}

#[test]
fn f53_one_service_that_panics_at_a_loss_keeps_no_other_from_hearing_of_it() {
    for transport in TRANSPORTS {
        together(Expected::ranks(3), transport, |mesh| {
            let losses: Vec<_> = (0..4)
                .map(|number| {
                    let parrot = Parrot { inline: true, panics_at_losses: number % 2 == 0, ..Parrot::default() };
                    let losses = parrot.losses.clone();
                    mesh.serve(&format!("parrot {number}"), parrot).expect("the name is free");
                    losses
                })
                .collect();
            mesh.world().barrier().expect("all are there");
            if mesh.me().rank == Rank(2) {
                return mesh.abandon();
            }
            for (number, losses) in losses.iter().enumerate() {
                until(&format!("the news at service {number}"), || losses.load(SeqCst) == 1);
            }
            let pair = mesh.group("the rest", &[node_of(&mesh, 0), node_of(&mesh, 1)]).expect("both live");
            pair.barrier().expect("both are there");
            mesh.finish().expect_err("one is gone");
        });
    }
}
