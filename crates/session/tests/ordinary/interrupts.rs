//! Waits that are interrupted, waits that a program makes itself, and what is had from worker 0.

use crate::common;
use crate::common::{PATIENCE, each, functions};
use sheave_base::{Error, ErrorKind};
use sheave_session::{Args, Function, Held, Session, registered_function, replace_function};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Not a test, but what this binary's child processes run.
#[test]
fn actor() {
    common::act();
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "that is enough")
}

#[test]
fn an_interrupt_ends_a_wait_and_loses_no_failure() {
    each(3, 1, |session| {
        let [sleep, fail] = ["sleep", "fail on"].map(|name| session.function(name).unwrap());
        session.call(&sleep, &Args::new().value(1000_u64)).unwrap();
        let failed = session.call(&fail, &Args::new().value(1_u32).value("later")).unwrap();
        let begun = Instant::now();
        let ends = [
            session.sync_interruptible(1, None, Some(&mut || Err(interrupted()))),
            session.sync_all_interruptible(None, Some(&mut || Err(interrupted()))),
            failed.fetch_interruptible(2, None, Some(&mut || Err(interrupted()))).map(drop),
            failed.set_interruptible(2, 1_u32, None, Some(&mut || Err(interrupted()))),
            failed.local(None, Some(&mut || Err(interrupted()))).map(drop),
        ];
        for end in ends {
            assert_eq!(end.unwrap_err().kind(), ErrorKind::Interrupted);
        }
        assert!(begun.elapsed() < Duration::from_millis(900), "each wait ends when it asks first");
        let told = session.sync(1, PATIENCE).unwrap_err();
        assert!(told.to_string().contains("later"), "{told}");
        assert_eq!(failed.get::<u32>(2, PATIENCE).unwrap(), 2);
        session.sync_all(PATIENCE).unwrap();
    });
}

/// The question of a wait that has ended goes on, and a worker tells what has failed once.
#[test]
fn what_a_wait_has_not_heard_is_told_by_the_next_one() {
    each(2, 1, |session| {
        let [sleep, fail, add] = ["sleep", "fail on", "add one"].map(|name| session.function(name).unwrap());
        let brief = Some(Duration::from_millis(20));
        for is_of_all in [true, false] {
            for is_got in [true, false] {
                session.call(&sleep, &Args::new().value(200_u64)).unwrap();
                session.call(&fail, &Args::new().value(1_u32).value("unheard")).unwrap();
                let late = if is_of_all { session.sync_all(brief) } else { session.sync(1, brief) }.unwrap_err();
                assert_eq!(late.kind(), ErrorKind::DeadlineExceeded, "{late}");
                let worker = if is_of_all { 0 } else { 1 };
                assert!(late.to_string().contains(&format!("worker {worker} has not done its commands")), "{late}");
                assert!(late.about().is_some() && late.advice().is_some(), "{late}");
                let two = session.call(&add, &Args::new().value(1)).unwrap();
                let told = if is_got { two.get::<i64>(1, PATIENCE).map(drop) } else { session.sync(1, PATIENCE) };
                let told = told.unwrap_err();
                assert!(told.to_string().contains("unheard"), "{told}");
                assert_eq!(two.get::<i64>(1, PATIENCE).unwrap(), 2);
                session.sync_all(PATIENCE).expect("it is told once");
            }
        }
    });
}

#[test]
fn a_program_makes_the_waits_of_its_commands_and_no_others() {
    each(2, 1, |session| {
        let [id, sleep] = ["id", "sleep"].map(|name| session.function(name).unwrap());
        let paused = AtomicBool::new(false);
        session.call(&sleep, &Args::new().value(500_u64)).unwrap();
        let mut count = 0;
        while !paused.load(SeqCst) && count < 100_000 {
            let called = session.call_pausing(&id, &Args::new(), PATIENCE, &mut |blocking| {
                paused.store(true, SeqCst);
                blocking(None)
            });
            called.unwrap();
            count += 1;
        }
        assert!(paused.load(SeqCst), "no worker takes {count} commands at once");
        session.sync_all(PATIENCE).unwrap();

        // What a pause says ends the command, before any worker has it.
        session.call(&sleep, &Args::new().value(500_u64)).unwrap();
        let ended = (0..100_000)
            .find_map(|_| session.call_pausing(&id, &Args::new(), None, &mut |_| Err(interrupted())).err())
            .unwrap();
        assert_eq!(ended.kind(), ErrorKind::Interrupted);
        session.sync_all(PATIENCE).unwrap();
    });
}

#[test]
fn what_worker_0_has_is_had_as_it_is() {
    each(2, 1, |session| {
        let adder = session.function("adder").unwrap();
        let made = session.call(&adder, &Args::new().value(3)).unwrap();
        let Held::Function(add) = made.local(PATIENCE, None).unwrap() else { panic!("it makes functions") };
        assert_eq!(add.call(vec![Held::of(4)]).unwrap().read::<i64>().unwrap(), 7);
    });
}

#[test]
fn a_beginning_is_interrupted() {
    functions();
    let begun = Instant::now();
    let ended = Session::threads_interruptible(3, 1, Some(&mut || Err(interrupted())));
    // It may have begun before it was asked.
    if let Err(error) = ended {
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    }
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_function_takes_the_place_of_another_one() {
    replace_function(Function::typed("placed", |()| Ok(1))).unwrap();
    let former = registered_function("placed").unwrap();
    replace_function(Function::typed("placed", |()| Ok(2))).unwrap();
    let now = registered_function("placed").unwrap();
    let called = |function: &Function| function.call(Vec::new()).unwrap().read::<i64>().unwrap();
    assert_eq!((called(&former), called(&now)), (1, 2));
    let refused = replace_function(Function::typed("sheave.placed", |()| Ok(3))).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
}
