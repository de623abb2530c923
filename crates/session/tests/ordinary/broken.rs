//! Commands that get to some of the workers alone.

use crate::common;
use crate::common::together::counted;
use crate::common::{PATIENCE, functions, playing};
use sheave_base::{Error, ErrorKind, Result};
use sheave_session::{Args, Register, Session};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Less than after which the workers of a session are ended.
const SOON: Duration = Duration::from_secs(8);

/// Not a test, but what this binary's child processes run.
#[test]
fn actor() {
    common::act();
}

/// Has `test` tried by sessions of each kind.
fn each(test: impl Fn(&Session)) {
    functions();
    for session in [Session::threads(3, 1), Session::processes(3, 1, &playing("worker"))] {
        test(&session.expect("there is room for some workers"));
    }
}

/// Has a one-way call to a worker fail, of which the next command for it is told in its place.
fn fail_next_of(session: &Session, worker: u32) {
    let node = session.mesh().members()[worker as usize].node;
    session.mesh().cast(node, "session", "no such", Value::None).expect("it is sent");
    // Its answer takes the failure along.
    session.mesh().call(node, "session", "sync", Value::None).expect("it is sent").wait().expect("nothing else failed");
}

/// Adds up a tensor of this number; a command with a tensor leaves at once.
fn sum(session: &Session, all_reduce: &Register, number: f32) -> Result<Register> {
    let tensor = Tensor::from_slice(&[number], [1]).unwrap();
    session.call(all_reduce, &Args::new().value("world").value("sum").value(tensor))
}

fn first_of(register: &Register, worker: u32) -> f32 {
    register.get::<Tensor>(worker, PATIENCE).unwrap().to_vec::<f32>().unwrap()[0]
}

/// Has worker 1 get command 4 where command 3 was to come. Returns the function that sums, and what it has summed.
fn with_a_gap(session: &Session) -> (Register, Register) {
    let all_reduce = session.function("sheave.all_reduce").unwrap();
    let sums = sum(session, &all_reduce, 5.0).unwrap();
    assert_eq!(first_of(&sums, 1), 15.0);
    let node = session.mesh().members()[1].node;
    let promised = session.mesh().promise(node).unwrap();
    let command = vec![Value::Int(4), Value::None, promised.to_fill(), Value::from("id")];
    session.mesh().cast(node, "session", "do", Value::List(command)).unwrap();
    (all_reduce, sums)
}

/// The session says what has broken it, and that is all that it does.
fn is_broken(error: &Error, worker: u32, command: &str) {
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    for part in ["the session is broken", &format!("worker {worker} has not got {command}"), "no command \"no such\""] {
        assert!(error.to_string().contains(part), "{part} is not in {error}");
    }
}

fn ends_broken(session: &Session, before: &Register, worker: u32, command: &str) {
    let add = Args::new().value(1);
    let errors = [
        session.call(before, &add).map(drop),
        session.function("id").map(drop),
        session.sync(0, PATIENCE),
        session.sync_all(PATIENCE),
        before.fetch(2, PATIENCE).map(drop),
        before.set(0, 1, PATIENCE),
        session.send_between(0, before, 1, None).map(drop),
        session.renew_collectives(),
    ];
    errors.into_iter().for_each(|ended| is_broken(&ended.expect_err("it is broken"), worker, command));
    let begun = Instant::now();
    is_broken(&session.shutdown().expect_err("it is told"), worker, command);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    session.shutdown().expect("it has ended");
    assert_eq!(session.sync(0, PATIENCE).expect_err("it has ended").kind(), ErrorKind::Closed);
}

#[test]
fn a_command_that_one_worker_lacks_breaks_the_session() {
    each(|session| {
        let all_reduce = session.function("sheave.all_reduce").unwrap();
        let sums = sum(session, &all_reduce, 5.0).unwrap();
        assert_eq!(first_of(&sums, 2), 15.0);
        fail_next_of(session, 1);
        let error = sum(session, &all_reduce, 1.0).expect_err("worker 1 lacks it");
        // Worker 1 would add its ten to the ones of the others.
        if let Ok(shifted) = sum(session, &all_reduce, 10.0) {
            panic!("after {error}: {}, which is not 30", first_of(&shifted, 1));
        }
        is_broken(&error, 1, "command 3");
        ends_broken(session, &all_reduce, 1, "command 3");
    });
}

/// Those that are kept leave later, or with what comes next.
#[test]
fn commands_that_are_kept_break_it_too() {
    each(|session| {
        let add = session.function("add one").unwrap();
        let mut number = session.call(&add, &Args::new().value(0)).unwrap();
        session.sync_all(PATIENCE).unwrap();
        let (arms, armed) = channel();
        let error = std::thread::scope(|scope| {
            scope.spawn(move || {
                armed.recv().expect("commands are under way");
                fail_next_of(session, 2);
            });
            for count in 0..1_000_000 {
                match session.call(&add, &Args::new().register(&number)) {
                    Ok(next) => number = next,
                    Err(error) => return error,
                }
                if count == 1000 {
                    arms.send(()).expect("it waits");
                }
            }
            panic!("nothing is told");
        });
        is_broken(&error, 2, "command");
        ends_broken(session, &add, 2, "command");
    });
}

#[test]
fn a_command_that_no_worker_has_got_fails_and_that_is_all() {
    each(|session| {
        let all_reduce = session.function("sheave.all_reduce").unwrap();
        session.sync_all(PATIENCE).unwrap();
        fail_next_of(session, 0);
        let error = sum(session, &all_reduce, 1.0).expect_err("worker 0 does not take it");
        assert!(!error.to_string().contains("broken"), "{error}");
        for round in 1..4_u8 {
            let sums = sum(session, &all_reduce, round.into()).unwrap();
            for worker in 0..3 {
                assert_eq!(first_of(&sums, worker), f32::from(3 * round), "worker {worker}");
            }
        }
        session.shutdown().expect("it was told");
    });
}

#[test]
fn more_tensors_than_a_message_has_are_refused_before_any_worker_gets_them() {
    each(|session| {
        let echo = session.function("echo").unwrap();
        let tensor = Tensor::from_slice(&[1.0_f32], [1]).unwrap();
        let mut args = Args::new();
        for _ in 0..=sheave_base::limits::PARTS_MAX {
            args = args.value(tensor.clone());
        }
        let error = session.call(&echo, &args).expect_err("no message has so many");
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        let one = session.call(&echo, &Args::new().value(tensor)).expect("it is whole");
        assert_eq!(first_of(&one, 2), 1.0);
    });
}

/// Worker 0 is on the controller's node, where nothing has to fit into a message.
#[test]
fn what_is_too_long_for_a_message_is_refused_before_any_worker_gets_it() {
    // Beside the text a command has some bytes, as many as are tried.
    const LONGEST: usize = sheave_base::limits::CONTROL_BYTES_MAX - 16;
    each(|session| {
        let nothing = session.function("nothing").unwrap();
        let call = |length: usize| session.call(&nothing, &Args::new().value("x".repeat(length)));
        let fitting = (0..64).map(|shorter| LONGEST - shorter).find(|length| match call(*length) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{length}: {error}");
                assert!(!error.to_string().contains("broken"), "{length}: {error}");
                false
            }
        });
        assert!(fitting.is_some_and(|length| length < LONGEST), "{fitting:?}");
        session.sync_all(PATIENCE).expect("all have got what fits, and nothing else");
        session.shutdown().expect("all was told");
    });
}

/// A worker has heard of it, and says so to a call that wants no answer.
#[test]
fn a_loss_that_an_earlier_call_tells_of_is_no_death_of_its_worker() {
    each(|session| {
        let [hears, all_reduce] = ["hears of a loss", "sheave.all_reduce"].map(|name| session.function(name).unwrap());
        session.call(&hears, &Args::new().value(1)).unwrap();
        session.sync(2, PATIENCE).unwrap();
        let node = session.mesh().members()[1].node;
        session.mesh().cast(node, "session", "sync", Value::None).expect("it is sent");
        // Its answer takes the failure along.
        session.mesh().call(node, "session", "sync", Value::None).expect("it is sent").wait().expect("it was told");
        let error = sum(session, &all_reduce, 1.0).expect_err("worker 1 lives, and lacks it");
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        for part in ["worker 1 has not got command 4", "another one is gone"] {
            assert!(error.to_string().contains(part), "{part} is not in {error}");
        }
        session.shutdown().expect_err("it is broken");
    });
}

/// A worker that waits for the others, and a thread that waits for that worker.
#[test]
fn who_waits_in_a_session_that_breaks_is_told() {
    each(|session| {
        let [waits, all_reduce] = ["the first waits", "sheave.all_reduce"].map(|name| session.function(name).unwrap());
        session.call(&waits, &Args::new()).unwrap();
        session.sync(2, PATIENCE).unwrap();
        std::thread::scope(|scope| {
            let (tells, hears) = channel();
            scope.spawn(move || tells.send(session.sync(0, PATIENCE)));
            fail_next_of(session, 1);
            let error = sum(session, &all_reduce, 1.0).expect_err("worker 1 lacks it");
            is_broken(&error, 1, "command 4");
            // Either the session or the worker, which has given its wait up, is the first to tell.
            hears.recv_timeout(SOON).expect("it does not wait on").expect_err("it is broken");
            ends_broken(session, &all_reduce, 1, "command 4");
        });
    });
}

fn become_none(what: &str) {
    let until = Instant::now() + SOON;
    while counted() > 0 {
        assert!(Instant::now() < until, "{} live on {what}", counted());
        std::thread::yield_now();
    }
}

#[test]
fn registers_that_failed_commands_name_are_freed() {
    functions();
    let session = Session::threads(3, 1).unwrap();
    let [make, echo] = ["counted", "echo"].map(|name| session.function(name).unwrap());
    let tensor = Tensor::from_slice(&[1.0_f32], [1]).unwrap();
    for unlucky in 0..2 {
        let kept = session.call(&make, &Args::new()).unwrap();
        session.sync_all(PATIENCE).unwrap();
        assert_eq!(counted(), 3);
        fail_next_of(&session, unlucky);
        let args = Args::new().register(&kept).value(tensor.clone());
        session.call(&echo, &args).expect_err("some lack it");
        drop((args, kept));
        become_none(if unlucky == 0 { "though nobody has got the command" } else { "in a broken session" });
    }
    session.shutdown().expect_err("it is broken");
}

/// Whatever has lost them.
#[test]
fn a_worker_that_lacks_commands_finds_that_out() {
    each(|session| {
        let (all_reduce, _) = with_a_gap(session);
        // The others hear of it at the latest when they need worker 1.
        sum(session, &all_reduce, 1.0).unwrap();
        for _ in 0..2 {
            let error = session.sync(1, PATIENCE).expect_err("it lacks some");
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            let text = "worker 1: command 4 has come where command 3 was to come";
            assert!(error.to_string().contains(text), "{error}");
        }
        for worker in [0, 2] {
            let error = session.sync(worker, PATIENCE).expect_err("worker 1 has given up");
            assert_eq!(error.kind(), ErrorKind::Cancelled, "worker {worker}: {error}");
        }
        let begun = Instant::now();
        session.shutdown().expect_err("worker 1 says so still");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    });
}

/// It has never met that worker.
#[test]
fn who_waits_for_a_message_of_a_worker_that_lacks_commands_is_told() {
    each(|session| {
        let (_, sums) = with_a_gap(session);
        session.send_between(1, &sums, 2, None).unwrap();
        session.send_between(0, &sums, 1, None).unwrap();
        for worker in [0, 2] {
            let error = session.sync(worker, Some(SOON)).expect_err("worker 1 has given up");
            assert_eq!(error.kind(), ErrorKind::Cancelled, "worker {worker}: {error}");
        }
        session.shutdown().expect_err("worker 1 says so still");
    });
}

/// In groups that it knows nothing of, because it does nothing any more.
#[test]
fn who_waits_for_a_worker_that_lacks_commands_in_groups_made_again_is_told() {
    each(|session| {
        let (all_reduce, sums) = with_a_gap(session);
        session.renew_collectives().unwrap();
        sum(session, &all_reduce, 1.0).unwrap();
        session.send_between(2, &sums, 1, None).unwrap();
        for worker in [0, 2] {
            let error = session.sync(worker, Some(SOON)).expect_err("worker 1 has given up");
            assert_eq!(error.kind(), ErrorKind::Cancelled, "worker {worker}: {error}");
        }
        session.shutdown().expect_err("worker 1 says so still");
    });
}
