//! Workers that die while others work with them, or that do not come at all; and what agreement costs.

use crate::common;
use crate::common::{PATIENCE, each, functions, numbers, own, playing};
use sheave_base::ErrorKind;
use sheave_collective::Operator;
use sheave_session::{Args, Scope, Session};
use std::time::{Duration, Instant};

/// Not a test, but what this binary's child processes run.
#[test]
fn actor() {
    common::act();
}

/// Item 3: who waits in an operation for one that dies is told whom it waits for in vain, and goes on without.
#[test]
fn s03_a_worker_that_dies_ends_the_operations_of_the_others() {
    functions();
    let session = Session::processes(4, 2, &playing("worker")).expect("there is room for some workers");
    let source = own(&session, 2, 1.0);
    session.all_reduce(&source, None, Operator::Sum, Scope::World).unwrap();
    session.sync_all(PATIENCE).unwrap();
    let die = session.function("die on").unwrap();
    let begun = Instant::now();
    session.call(&die, &Args::new().value(3)).unwrap();
    let world = session.all_reduce(&source, None, Operator::Sum, Scope::World).unwrap();
    let groups = session.all_reduce(&source, None, Operator::Sum, Scope::Group).unwrap();
    assert_eq!(session.sync(3, PATIENCE).unwrap_err().kind(), ErrorKind::WorkerDied);
    for worker in 0..3 {
        let error = session.sync(worker, PATIENCE).unwrap_err();
        assert!(error.kind().is_loss(), "worker {worker}: {error}");
        assert!(error.to_string().contains("rank-3"), "worker {worker}: {error}");
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    for worker in 0..3 {
        assert!(world.get::<sheave_wire::Value>(worker, PATIENCE).unwrap_err().kind().is_loss());
    }
    for worker in [0, 1] {
        assert_eq!(numbers(&groups, worker), [1.0, 3.0], "a group that is whole goes on");
    }
    let again = session.broadcast_from_first(&source, None, Scope::Group).unwrap();
    assert_eq!(numbers(&again, 1), [0.0, 1.0]);
    let error = session.sync(2, PATIENCE).unwrap_err();
    assert!(error.kind().is_loss() && error.to_string().contains("rank-3"), "{error}");
    session.renew_collectives().unwrap();
    session.all_reduce(&source, None, Operator::Sum, Scope::World).unwrap();
    for worker in 0..3 {
        assert!(session.sync(worker, PATIENCE).unwrap_err().kind().is_loss(), "it is no less dead");
    }
    session.shutdown().expect("all was told");
}

/// So does a message to or from a worker that dies, and messages between others go on.
#[test]
fn s03_a_worker_that_dies_ends_the_messages_of_its_peers() {
    functions();
    let session = Session::processes(6, 3, &playing("worker")).expect("there is room for some workers");
    let source = own(&session, 2, 1.0);
    session.sync_all(PATIENCE).unwrap();
    let die = session.function("die on").unwrap();
    let begun = Instant::now();
    session.call(&die, &Args::new().value(3)).unwrap();
    let passed = session.pass_to_next_group(&source, None).unwrap();
    assert_eq!(session.sync(3, PATIENCE).unwrap_err().kind(), ErrorKind::WorkerDied);
    for worker in [1, 5] {
        let error = session.sync(worker, PATIENCE).unwrap_err();
        assert!(error.kind().is_loss() && error.to_string().contains("rank-3"), "worker {worker}: {error}");
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!((numbers(&passed, 2), numbers(&passed, 4)), (vec![0.0, 1.0], vec![2.0, 3.0]));
    session.send_between(0, &source, 3, None).unwrap();
    let error = session.sync(0, PATIENCE).unwrap_err();
    assert!(error.kind().is_loss() && error.to_string().contains("rank-3"), "{error}");
    let sent = session.send_between(0, &source, 5, None).unwrap();
    assert_eq!(numbers(&sent, 5), [0.0, 1.0], "others go on");
    session.shutdown().expect("all was told");
}

/// Item 21: functions that do not all call the same are ended by a limit, which says who is missing.
#[test]
fn s21_who_does_not_come_is_named_after_a_limit() {
    each(3, 1, |session| {
        let source = own(session, 2, 1.0);
        let meet = session.function("meet unless").unwrap();
        session.limit_collectives(Some(Duration::from_millis(200))).unwrap();
        session.call(&meet, &Args::new().value(3)).unwrap();
        session.sync_all(PATIENCE).expect("all have come");
        let begun = Instant::now();
        session.call(&meet, &Args::new().value(1)).unwrap();
        for worker in [0, 2] {
            let error = session.sync(worker, PATIENCE).unwrap_err();
            // One of them ends first, and that is what the other is told.
            assert!(matches!(error.kind(), ErrorKind::DeadlineExceeded | ErrorKind::Cancelled), "{error}");
            assert!(error.to_string().contains("rank 1 (rank-1)"), "{error}");
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        session.sync(1, PATIENCE).expect("it has done nothing wrong");
        session.all_reduce(&source, None, Operator::Sum, Scope::World).unwrap();
        for worker in 0..3 {
            assert!(session.sync(worker, PATIENCE).is_err(), "the group is broken");
        }
        session.renew_collectives().unwrap();
        session.limit_collectives(None).unwrap();
        let sums = session.all_reduce(&source, None, Operator::Sum, Scope::World).unwrap();
        assert_eq!(numbers(&sums, 1), [3.0, 6.0]);
    });
}

/// A session begins in a moment, though its workers are ready to work together.
#[test]
fn a_session_begins_in_a_moment() {
    functions();
    for (kind, begin) in [
        ("threads", (|| Session::threads(4, 2)) as fn() -> sheave_base::Result<Session>),
        ("processes", || Session::processes(4, 2, &playing("worker"))),
    ] {
        let best = (0..5).map(|_| {
            let begun = Instant::now();
            let session = begin().unwrap();
            let took = begun.elapsed();
            session.shutdown().unwrap();
            took
        });
        let best = best.min().unwrap();
        assert!(best < Duration::from_millis(250), "{kind}: {best:?}");
    }
}
