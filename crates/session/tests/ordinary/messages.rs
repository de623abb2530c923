//! Tensors from one worker to another, by sessions of every kind.

use crate::common;
use crate::common::{PATIENCE, each, is_none, numbers, own, shape};
use sheave_base::ErrorKind;
use sheave_session::{Args, Placement, Register, Session};
use sheave_tensor::{Dtype, Tensor};

/// Not a test, but what this binary's child processes run.
#[test]
fn actor() {
    common::act();
}

/// Has each of these workers tell one failure which says `text`, and the others none.
fn told_by(session: &Session, workers: &[u32], kind: ErrorKind, text: &str) {
    for worker in 0..session.workers() {
        match session.sync(worker, PATIENCE) {
            Ok(()) => assert!(!workers.contains(&worker), "worker {worker} tells nothing"),
            Err(error) => {
                assert!(workers.contains(&worker) && error.kind() == kind, "worker {worker}: {error}");
                assert!(error.to_string().contains(text), "worker {worker}: {text} is not in {error}");
            }
        }
    }
}

#[test]
fn one_worker_sends_to_another() {
    each(3, 1, |session| {
        // A short one, and one that is received where it lies.
        for length in [2, 100_000] {
            let source = own(session, length, 10.0);
            let made = session.send_between(2, &source, 0, None).unwrap();
            let given = session.empty([length / 2, 2], Dtype::F32, Placement::All).unwrap();
            session.send_between(1, &source, 2, Some(&given)).unwrap();
            assert_eq!((numbers(&made, 0)[..2].to_vec(), shape(&made, 0)), (vec![20.0, 21.0], vec![length]));
            assert_eq!((numbers(&given, 2)[..2].to_vec(), shape(&given, 2)), (vec![10.0, 11.0], vec![length / 2, 2]));
            assert!(is_none(&made, 1) && is_none(&made, 2));
        }
        for (from, to) in [(1, 1), (0, 3), (3, 0)] {
            let error = session.send_between(from, &own(session, 1, 1.0), to, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    });
}

#[test]
fn what_one_side_has_not_is_told_by_both_and_keeps_nobody_waiting() {
    each(3, 1, |session| {
        let half = session.function("tensor unless").unwrap();
        let half = session.call(&half, &Args::new().value(1).value(2_u64)).unwrap();
        assert!(session.sync(1, PATIENCE).is_err());
        let source = own(session, 2, 1.0);
        session.send_between(1, &half, 2, None).unwrap();
        told_by(session, &[1, 2], ErrorKind::Remote, "the source: argument 2: ");
        session.send_between(0, &source, 1, Some(&half)).unwrap();
        told_by(session, &[0, 1], ErrorKind::Remote, "the target: argument 4: ");
        let short = session.empty([3], Dtype::F32, Placement::All).unwrap();
        session.send_between(0, &source, 1, Some(&short)).unwrap();
        let expected = "worker 1 has room for f32[3]; expected f32[2], for worker 0 sends f32[2]";
        told_by(session, &[0, 1], ErrorKind::Mismatch, expected);
        let moved = session.send_between(0, &half, 2, None).unwrap();
        assert_eq!(numbers(&moved, 2), [0.5, 0.5], "the next one works");
    });
}

#[test]
fn groups_pass_tensors_on() {
    each(6, 3, |session| {
        let source = own(session, 3, 10.0);
        let passed = session.pass_to_next_group(&source, None).unwrap();
        let given = session.empty([3], Dtype::F32, Placement::All).unwrap();
        session.pass_to_next_group(&source, Some(&given)).unwrap();
        for worker in 0..6 {
            if worker < 2 {
                assert!(is_none(&passed, worker));
            } else {
                let first = (worker - 2) as f32 * 10.0;
                assert_eq!(numbers(&passed, worker), [first, first + 1.0, first + 2.0]);
                assert_eq!(numbers(&given, worker), numbers(&passed, worker));
            }
        }
        // In place: what comes takes the place of what goes.
        session.pass_to_next_group(&source, Some(&source)).unwrap();
        for worker in 0..6_u32 {
            assert_eq!(numbers(&source, worker)[0], worker.checked_sub(2).unwrap_or(worker) as f32 * 10.0);
        }
    });
}

#[test]
fn a_stage_that_fails_is_told_by_its_neighbours_alone() {
    each(6, 3, |session| {
        let half = session.function("tensor unless").unwrap();
        let half = session.call(&half, &Args::new().value(3).value(2_u64)).unwrap();
        assert!(session.sync(3, PATIENCE).is_err());
        let passed = session.pass_to_next_group(&half, None).unwrap();
        told_by(session, &[3, 5], ErrorKind::Remote, "it has no tensor");
        assert_eq!((numbers(&passed, 2), numbers(&passed, 4)), (vec![0.5; 2], vec![0.5; 2]));
        let first = session.function("tensor unless").unwrap();
        let first = session.call(&first, &Args::new().value(0).value(2_u64)).unwrap();
        assert!(session.sync(0, PATIENCE).is_err());
        session.pass_to_next_group(&first, None).unwrap();
        told_by(session, &[0, 2], ErrorKind::Remote, "it has no tensor");
        let name = |name: &str| session.function(name).unwrap();
        session.call(&name("sheave.send_to_next_group"), &Args::new().register(&half)).unwrap();
        session.call(&name("sheave.recv_from_previous_group"), &Args::new()).unwrap();
        // The last group has nothing to send, and says so; so it comes to receive what the one before sends, and so on.
        for (worker, text) in [
            (0, "this worker's group has no previous one"),
            (1, "this worker's group has no previous one"),
            (3, "it has no tensor"),
            (4, "this worker's group has no next one"),
            (5, "this worker's group has no next one"),
        ] {
            let error = session.sync(worker, PATIENCE).unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
        session.sync(2, PATIENCE).expect("it has sent and received");
    });
}

#[test]
fn functions_send_and_receive_by_themselves() {
    each(4, 2, |session| {
        let call = |name: &str, args: Args| session.call(&session.function(name).unwrap(), &args).unwrap();
        let source: Register = own(session, 2, 10.0);
        call("group 0 sends to 1", Args::new().register(&source));
        for worker in 0..4 {
            let first = (worker % 2) as f32 * 10.0;
            assert_eq!(numbers(&source, worker), [first, first + 1.0], "group 1 has what group 0 has");
        }
        let source = own(session, 2, 10.0);
        call("worker 2 sends to 0", Args::new().register(&source));
        assert_eq!((numbers(&source, 0), numbers(&source, 1)), (vec![20.0, 21.0], vec![10.0, 11.0]));
        let left = call("ring", Args::new());
        for worker in 0..4 {
            assert_eq!(left.get::<u32>(worker, PATIENCE).unwrap(), (worker + 3) % 4);
        }
        let tensor = Tensor::private(Dtype::F32, [1]).unwrap();
        call("sheave.send_to_worker", Args::new().value(tensor.clone()).value(4));
        told_by(session, &[0, 1, 2, 3], ErrorKind::InvalidArgument, "worker 4; expected another one than");
        call("sheave.recv_from_first", Args::new());
        let error = session.sync(0, PATIENCE).unwrap_err();
        assert!(error.to_string().contains("worker 0; expected another one than 0 of 4 workers"), "{error}");
        // The others wait for worker 0 still.
        for worker in 1..4 {
            call("first sends", Args::new().value(tensor.clone()).value(worker));
        }
        session.sync_all(PATIENCE).unwrap();
    });
}
