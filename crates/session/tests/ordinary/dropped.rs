//! Registers that are dropped before their commands leave, beside others that somebody needs.

use crate::common;
use crate::common::{PATIENCE, each, functions};
use sheave_base::{ErrorKind, limits};
use sheave_session::{Args, Function, Register, Session, register_function};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};

/// Not a test, but what this binary's child processes run.
#[test]
fn actor() {
    common::act();
}

/// Commands that come behind one another are kept, and leave together.
const BURST: i64 = 1000;

#[test]
fn what_is_held_or_taken_by_another_command_is_there() {
    each(2, 1, |session| {
        let [add, echo, adder] = ["add one", "echo", "adder"].map(|name| session.function(name).unwrap());
        let mut held = Vec::new();
        for number in 0..BURST {
            let one = session.call(&add, &Args::new().value(number)).unwrap();
            match number % 5 {
                0 => held.push((number + 1, one)),
                1 => held.push((number + 2, session.call(&add, &Args::new().register(&one)).unwrap())),
                2 => drop(session.call(&echo, &Args::new().register(&one)).unwrap()),
                3 => {
                    // A function that nobody holds any more when it is called, behind other ones.
                    let function = session.call(&adder, &Args::new().value(number)).unwrap();
                    held.push((2 * number, session.call(&function, &Args::new().value(number)).unwrap()));
                    held.push((2 * number + 1, session.call(&function, &Args::new().register(&one)).unwrap()));
                }
                _ => {}
            }
        }
        for (number, register) in held {
            for worker in 0..2 {
                assert_eq!(register.get::<i64>(worker, PATIENCE).unwrap(), number);
            }
        }
        session.sync_all(PATIENCE).unwrap();
    });
}

#[test]
fn a_command_whose_register_nobody_holds_fails_aloud() {
    each(2, 1, |session| {
        let [fail, add] = ["fail on", "add one"].map(|name| session.function(name).unwrap());
        for number in 0..20 {
            session.call(&add, &Args::new().value(number)).unwrap();
        }
        let failed = session.call(&fail, &Args::new().value(1_u32).value("the disk is full")).unwrap();
        session.call(&add, &Args::new().register(&failed)).unwrap();
        drop(failed);
        session.call(&fail, &Args::new().value(1_u32).value("it is still full")).unwrap();
        session.sync(0, PATIENCE).unwrap();
        let error = session.sync(1, PATIENCE).unwrap_err();
        assert_eq!((error.kind(), error.at_sequence()), (ErrorKind::Mismatch, Some(23)), "{error}");
        for part in ["worker 1", "call of fail on", "the disk is full", "the first of 3"] {
            assert!(error.to_string().contains(part), "{part} is not in {error}");
        }
        session.sync(1, PATIENCE).expect("it was told");
    });
}

/// Threads that take registers from the one that issues commands, and drop or use them at any time.
#[test]
fn other_threads_drop_registers_while_their_commands_leave() {
    each(2, 1, |session| {
        let add = session.function("add one").unwrap();
        std::thread::scope(|scope| {
            let takers: Vec<Sender<(i64, Register)>> = (0..2_u32)
                .map(|worker| {
                    let (gives, takes) = channel::<(i64, Register)>();
                    scope.spawn(move || {
                        for (number, register) in takes {
                            if number % 16 == 3 {
                                assert_eq!(register.get::<i64>(worker, PATIENCE).unwrap(), number + 1);
                            }
                        }
                    });
                    gives
                })
                .collect();
            for number in 0..4 * BURST {
                let one = session.call(&add, &Args::new().value(number)).unwrap();
                takers[number as usize % 2].send((number, one)).expect("it takes all");
            }
        });
        session.sync_all(PATIENCE).unwrap();
    });
}

/// Opens a gate when it is dropped, so that nobody waits there behind a test that has failed.
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Drop for Gate {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// Promises that are not filled, up to so few that are left. All commands that have some of them come right, and the
/// first that has none is refused, whether it would have been kept for others or not.
#[test]
fn a_command_without_a_name_for_its_register_is_refused_when_it_is_issued() {
    functions();
    for left in [1, 170, 500] {
        let gate = Gate(Arc::default());
        let waits = Arc::clone(&gate.0);
        let name = format!("wait at the gate {left}");
        let wait = Function::typed(&name, move |()| {
            let mut is_open = waits.0.lock().unwrap();
            while !*is_open {
                is_open = waits.1.wait(is_open).unwrap();
            }
            Ok(())
        });
        register_function(wait).unwrap();
        let session = Session::threads(2, 1).unwrap();
        let [wait, add] = [name.as_str(), "add one"].map(|name| session.function(name).unwrap());
        session.sync_all(PATIENCE).unwrap();
        let waiting = session.call(&wait, &Args::new()).unwrap();
        let node = session.mesh().members()[1].node;
        let count = limits::REFERENCES_PROMISED_MAX - 1 - left;
        let promised: Vec<_> = (0..count).map(|_| session.mesh().promise(node).unwrap()).collect();
        let mut numbers = Vec::new();
        let error = loop {
            match session.call(&add, &Args::new().value(numbers.len() as i64)) {
                Ok(number) => numbers.push(number),
                Err(error) => break error,
            }
            assert!(numbers.len() <= left, "more than there are names");
        };
        assert_eq!((numbers.len(), error.kind()), (left, ErrorKind::LimitExceeded), "{error}");
        drop((gate, promised));
        for worker in 0..2 {
            for (number, register) in numbers.iter().enumerate() {
                assert_eq!(register.get::<usize>(worker, PATIENCE).unwrap(), number + 1);
            }
        }
        assert_eq!(session.call(&add, &Args::new().value(1)).unwrap().get::<i64>(1, PATIENCE).unwrap(), 2);
        waiting.get::<()>(1, PATIENCE).unwrap();
        session.shutdown().unwrap();
    }
}
