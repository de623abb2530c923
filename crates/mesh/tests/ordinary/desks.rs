//! Services on a thread of their own: it runs all of their handlers, in order, for as long as somebody lends it.

use crate::common::{PATIENCE, together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, NodeId, Rank};
use sheave_mesh::{Expected, Lane, Mesh, Request, Service};
use sheave_wire::Value;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Instant;

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

struct Desk<F>(F);

impl<F: Fn(Request) + Send + Sync + 'static> Service for Desk<F> {
    fn handle(&self, request: Request) {
        (self.0)(request);
    }

    fn lane(&self) -> Lane {
        Lane::Own
    }
}

type Notes = Arc<Mutex<Vec<(ThreadId, i64)>>>;

/// Serves "desk": it notes numbers and threads, and closes at -1.
fn serve(mesh: &Mesh, notes: &Notes) {
    let (own, notes) = (mesh.clone(), Arc::clone(notes));
    let note = move |request: Request| {
        let Value::Int(number) = request.args else { return };
        if number < 0 {
            own.serve_no_more("desk");
        } else {
            notes.lock().expect("nobody has panicked").push((std::thread::current().id(), number));
        }
        request.reply.value(number);
    };
    mesh.serve("desk", Desk(note)).expect("the name is free");
}

fn other(mesh: &Mesh) -> NodeId {
    mesh.members()[usize::from(mesh.me().rank == Rank(0))].node
}

#[test]
fn one_thread_runs_all_handlers_in_order_whatever_way_they_are_asked() {
    const COUNT: i64 = 2000;
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let notes = Notes::default();
            serve(&mesh, &notes);
            mesh.world().barrier().expect("both are there");
            if mesh.me().rank == Rank(0) {
                for number in 0..COUNT {
                    wait(&mesh.room(other(&mesh), "desk", Some(PATIENCE))).expect("there is room");
                    match number % 3 {
                        0 => drop(mesh.call(other(&mesh), "desk", "", Value::Int(number)).expect("it is sent")),
                        _ => mesh.cast(other(&mesh), "desk", "", Value::Int(number)).expect("it is sent"),
                    }
                }
                let last = mesh.call(other(&mesh), "desk", "", Value::Int(-1)).expect("it is sent");
                wait(&last).expect("it has come behind all others");
            } else {
                mesh.work("desk", None).expect("nobody else works there");
                let own = std::thread::current().id();
                let notes = notes.lock().unwrap();
                assert!(notes.iter().copied().eq((0..COUNT).map(|number| (own, number))), "{notes:?}");
            }
            mesh.finish().expect("all are well");
        });
    }
}

#[test]
fn what_waits_stays_when_a_thread_goes_and_is_done_by_the_next() {
    together(Expected::ranks(1), Transport::Shm, |mesh| {
        let notes = Notes::default();
        serve(&mesh, &notes);
        let me = mesh.me().node;
        let calls: Vec<_> = (0..50).map(|number| mesh.call(me, "desk", "", Value::Int(number)).unwrap()).collect();
        assert!(calls.iter().all(|call| call.result().is_none()), "nobody works there");
        let mut asked = 0;
        let mut stop = || {
            asked += 1;
            if asked > 2 { Err(Error::new(ErrorKind::Interrupted, "enough")) } else { Ok(()) }
        };
        let error = mesh.work("desk", Some(&mut stop)).expect_err("it is interrupted");
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        calls.iter().for_each(|call| drop(wait(call).expect("it was done")));
        let late = mesh.call(me, "desk", "", Value::Int(50)).expect("it is sent");
        let last = mesh.call(me, "desk", "", Value::Int(-1)).expect("it is sent");
        let own = mesh.clone();
        std::thread::spawn(move || own.work("desk", None)).join().unwrap().expect("the place is free again");
        wait(&late).expect("it was done");
        wait(&last).expect("it was done");
        let notes = notes.lock().unwrap();
        assert!(notes.iter().map(|(_, number)| *number).eq(0..=50), "{notes:?}");
        assert_ne!(notes[49].0, notes[50].0);
        mesh.finish().expect("all are well");
    });
}

/// Calls come while its thread is interrupted again and again: none is lost or done twice.
#[test]
fn a_thread_that_is_interrupted_while_requests_come_loses_none() {
    const COUNT: i64 = 3000;
    together(Expected::ranks(1), Transport::Shm, |mesh| {
        let notes = Notes::default();
        serve(&mesh, &notes);
        let own = mesh.clone();
        let caller = std::thread::spawn(move || {
            for number in (0..COUNT).chain([-1]) {
                let call = own.call(own.me().node, "desk", "", Value::Int(number)).expect("it is sent");
                wait(&call).expect("it is done");
            }
        });
        let interruptions = AtomicUsize::new(0);
        let mut stop = || {
            interruptions.fetch_add(1, SeqCst);
            Err(Error::new(ErrorKind::Interrupted, "again"))
        };
        let begun = Instant::now();
        while let Err(error) = mesh.work("desk", Some(&mut stop)) {
            assert!(begun.elapsed() < PATIENCE, "it goes on for ever");
            match error.kind() {
                ErrorKind::Interrupted => {}
                ErrorKind::NotFound => break,
                _ => panic!("{error}"),
            }
        }
        caller.join().unwrap();
        assert!(notes.lock().unwrap().iter().map(|(_, number)| *number).eq(0..COUNT));
        mesh.finish().expect("all are well");
    });
}

#[test]
fn nobody_works_twice_for_a_service_or_for_none() {
    together(Expected::ranks(1), Transport::Shm, |mesh| {
        let error = mesh.work("desk", None).expect_err("there is none");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("work for desk"), "{error}");
        mesh.serve("inline", |request: Request| request.reply.value(1)).expect("the name is free");
        assert_eq!(mesh.work("inline", None).expect_err("it needs nobody").kind(), ErrorKind::NotFound);
        let is_there = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_there);
        let answer = move |request: Request| {
            seen.store(true, SeqCst);
            request.reply.value(1);
        };
        mesh.serve("desk", Desk(answer)).expect("the name is free");
        let own = mesh.clone();
        let clerk = std::thread::spawn(move || own.work("desk", None));
        wait(&mesh.call(mesh.me().node, "desk", "", Value::None).expect("it is sent")).expect("it is done");
        until("somebody works there", || is_there.load(SeqCst));
        assert_eq!(mesh.work("desk", None).expect_err("somebody does").kind(), ErrorKind::AlreadyExists);
        mesh.finish().expect("all are well");
        clerk.join().unwrap().expect("it ends with the mesh");
    });
}

#[test]
fn what_has_not_begun_when_a_service_goes_is_refused() {
    together(Expected::ranks(2), Transport::Tcp, |mesh| {
        serve(&mesh, &Notes::default());
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank == Rank(0) {
            let calls: Vec<_> =
                (0..20).map(|number| mesh.call(other(&mesh), "desk", "", Value::Int(number)).unwrap()).collect();
            mesh.world().barrier().expect("the other one is there");
            for call in &calls {
                let error = wait(call).expect_err("nobody has worked there");
                assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Remote), "{error}");
            }
        } else {
            mesh.world().barrier().expect("the other one is there");
            mesh.serve_no_more("desk");
        }
        mesh.finish().expect("all are well");
    });
}
