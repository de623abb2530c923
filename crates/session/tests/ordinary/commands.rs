//! What sessions of every kind do: commands in order, registers, values, errors that come back.

use crate::common;
use crate::common::{PATIENCE, each, functions, playing};
use sheave_base::ErrorKind;
use sheave_session::{Args, Session};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Not a test, but what this binary's child processes run.
#[test]
fn actor() {
    common::act();
}

#[test]
fn results_stay_in_registers_and_are_arguments_of_later_commands() {
    each(3, 1, |session| {
        let add = session.function("add one").unwrap();
        let mut number = session.call(&add, &Args::new().value(0)).unwrap();
        for _ in 1..500 {
            number = session.call(&add, &Args::new().register(&number)).unwrap();
        }
        for worker in 0..3 {
            assert_eq!(number.get::<i64>(worker, PATIENCE).unwrap(), 500);
        }
        session.sync_all(PATIENCE).unwrap();
    });
}

#[test]
fn each_worker_knows_who_it_is_and_has_one_thread() {
    each(4, 2, |session| {
        let [id, group, thread] = ["id", "group", "thread"].map(|name| session.function(name).unwrap());
        let threads: Vec<_> = (0..20).map(|_| session.call(&thread, &Args::new()).unwrap()).collect();
        let (ids, groups) = (session.call(&id, &Args::new()).unwrap(), session.call(&group, &Args::new()).unwrap());
        for worker in 0..4 {
            assert_eq!(ids.get::<u32>(worker, PATIENCE).unwrap(), worker);
            assert_eq!(groups.get::<(u32, u32)>(worker, PATIENCE).unwrap(), (worker / 2, 2));
            let own: BTreeSet<String> = threads.iter().map(|thread| thread.get(worker, PATIENCE).unwrap()).collect();
            assert_eq!(own.len(), 1, "worker {worker}: {own:?}");
        }
    });
}

#[test]
fn values_and_tensors_keep_their_types_and_are_captured() {
    each(2, 1, |session| {
        let [echo, sum, tensor] = ["echo", "sum", "tensor"].map(|name| session.function(name).unwrap());
        for value in [
            Value::None,
            Value::Bool(true),
            Value::Int(-7),
            Value::Float(0.1),
            Value::from("text"),
            Value::Bytes(vec![0; 1000]),
            Value::List(vec![Value::Int(1), Value::Tuple(vec![Value::None])]),
            Value::Map(vec![("a".into(), Value::Set(vec![Value::Int(2)]))]),
        ] {
            let echoed = session.call(&echo, &Args::new().value(value.clone())).unwrap();
            assert_eq!(echoed.get::<Value>(1, PATIENCE).unwrap(), value);
        }
        let given = Tensor::from_slice(&[1.0_f32, 2.0, 3.0], [3]).unwrap();
        let pair = (given.clone(), Tensor::from_slice(&[7_i32], [1]).unwrap());
        let nested = session.call(&echo, &Args::new().value(vec![pair])).unwrap();
        let summed = session.call(&sum, &Args::new().value(given.clone()).value(2.0)).unwrap();
        given.overwrite(&[0; 12], "test").unwrap();
        let made = session.call(&tensor, &Args::new().value(100_000_u64)).unwrap();
        let of_made = session.call(&sum, &Args::new().register(&made).value(2.0)).unwrap();
        for worker in 0..2 {
            let pairs: Vec<(Tensor, Tensor)> = nested.get(worker, PATIENCE).unwrap();
            assert_eq!(pairs[0].0.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0], "as it was when it was sent");
            assert_eq!((pairs.len(), pairs[0].1.to_vec::<i32>().unwrap()), (1, vec![7]));
            assert_eq!(summed.get::<f32>(worker, PATIENCE).unwrap(), 12.0);
            assert_eq!(of_made.get::<f32>(worker, PATIENCE).unwrap(), 300_000.0);
            let fetched: Tensor = made.get(worker, PATIENCE).unwrap();
            assert_eq!(fetched.to_vec::<f32>().unwrap(), vec![1.5; 100_000]);
        }
    });
}

#[test]
fn functions_and_objects_stay_on_their_workers() {
    each(2, 1, |session| {
        let [adder, apply, log, write, read] =
            ["adder", "apply", "log", "write", "read"].map(|name| session.function(name).unwrap());
        let add = session.call(&adder, &Args::new().value(5)).unwrap();
        let twelve = session.call(&add, &Args::new().value(7)).unwrap();
        let applied = session.call(&apply, &Args::new().register(&add).register(&twelve)).unwrap();
        assert_eq!(applied.get::<i64>(1, PATIENCE).unwrap(), 17);
        let kept = session.call(&log, &Args::new()).unwrap();
        for number in 0..300 {
            session.call(&write, &Args::new().register(&kept).value(number)).unwrap();
        }
        let written = session.call(&read, &Args::new().register(&kept)).unwrap();
        for worker in 0..2 {
            assert_eq!(written.get::<Vec<i64>>(worker, PATIENCE).unwrap(), (0..300).collect::<Vec<_>>());
        }
        let error = add.get::<Value>(0, PATIENCE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("the function add stays where it is"), "{error}");
        assert_eq!(kept.get::<Value>(1, PATIENCE).unwrap_err().kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn a_register_is_set_on_one_worker_alone() {
    each(2, 1, |session| {
        let [nothing, add] = ["nothing", "add one"].map(|name| session.function(name).unwrap());
        let register = session.call(&nothing, &Args::new()).unwrap();
        for worker in 0..2 {
            assert_eq!(register.get::<Value>(worker, PATIENCE).unwrap(), Value::None);
        }
        register.set(1, 41, PATIENCE).unwrap();
        let added = session.call(&add, &Args::new().register(&register)).unwrap();
        assert_eq!(added.get::<i64>(1, PATIENCE).unwrap(), 42);
        let error = added.get::<i64>(0, PATIENCE).unwrap_err();
        assert!(error.to_string().contains("argument 1: a none; expected an int"), "{error}");
    });
}

#[test]
fn a_failure_comes_back_once_and_poisons_what_comes_of_it() {
    each(3, 1, |session| {
        let [fail, add, id] = ["fail on", "add one", "id"].map(|name| session.function(name).unwrap());
        let failed = session.call(&fail, &Args::new().value(1).value("the disk is full")).unwrap();
        let after = session.call(&add, &Args::new().register(&failed)).unwrap();
        let ids = session.call(&id, &Args::new()).unwrap();
        session.sync(0, PATIENCE).unwrap();
        session.sync(2, PATIENCE).unwrap();
        let error = session.sync(1, PATIENCE).unwrap_err();
        assert_eq!((error.kind(), error.at_sequence()), (ErrorKind::Mismatch, Some(4)), "{error}");
        for part in ["worker 1", "call of fail on", "the disk is full", "the first of 2"] {
            assert!(error.to_string().contains(part), "{part} is not in {error}");
        }
        session.sync(1, PATIENCE).expect("it was told");
        for register in [&failed, &after] {
            let error = register.get::<i64>(1, PATIENCE).unwrap_err();
            assert!(error.to_string().contains("the disk is full"), "{error}");
        }
        for worker in [0, 2] {
            assert_eq!(after.get::<u32>(worker, PATIENCE).unwrap(), worker + 1, "the others have gone on");
        }
        assert_eq!(ids.get::<u32>(1, PATIENCE).unwrap(), 1, "so has it");
    });
}

#[test]
fn missing_functions_panics_and_wrong_arguments_are_errors() {
    each(2, 1, |session| {
        let missing = session.function("no such").unwrap();
        for worker in 0..2 {
            let error = session.sync(worker, PATIENCE).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.to_string().contains("the worker has no function \"no such\""), "{error}");
        }
        let called = session.call(&missing, &Args::new()).unwrap();
        for worker in 0..2 {
            assert_eq!(called.get::<Value>(worker, PATIENCE).unwrap_err().kind(), ErrorKind::NotFound);
        }
        let told = |text: &str| {
            for worker in 0..2 {
                let error = session.sync(worker, PATIENCE).unwrap_err();
                assert!(error.to_string().contains(text), "{text} is not in {error}");
                session.sync(worker, PATIENCE).expect("it was told");
            }
        };
        let [panics, add] = ["panic", "add one"].map(|name| session.function(name).unwrap());
        session.call(&panics, &Args::new()).unwrap();
        told("it panicked: no luck");
        session.call(&add, &Args::new().value("one")).unwrap();
        told("argument 1: a string; expected an int");
        session.call(&add, &Args::new()).unwrap();
        told("0 arguments; expected 1");
        let torn = session.function("torn").unwrap();
        session.call(&torn, &Args::new().value(Tensor::from_slice(&[1], [1]).unwrap())).unwrap();
        told("the result: tensor 0 of a message with 0 parts");
        let number = session.call(&add, &Args::new().value(1)).unwrap();
        session.call(&number, &Args::new()).unwrap();
        told("a call of a int; expected a function");
    });
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    functions();
    for (workers, groups) in [(0, 1), (1, 0), (3, 2)] {
        let begun = [Session::threads(workers, groups), Session::processes(workers, groups, &playing("worker"))];
        for refused in begun {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument, "{workers} in {groups}");
        }
    }
    let other = Session::threads(1, 1).unwrap();
    let foreign = other.function("add one").unwrap();
    each(2, 1, |session| {
        let error = session.sync(2, PATIENCE).unwrap_err();
        assert!(error.to_string().contains("worker 2 of 2; they are counted from 0"), "{error}");
        let error = session.call(&foreign, &Args::new()).unwrap_err();
        assert!(error.to_string().contains("a register of another session"), "{error}");
        let sleep = session.function("sleep").unwrap();
        session.call(&sleep, &Args::new().value(300_u64)).unwrap();
        let begun = Instant::now();
        let error = session.sync(1, Some(Duration::from_millis(20))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        assert!(begun.elapsed() < Duration::from_millis(280), "it has waited for the command");
        session.sync_all(PATIENCE).expect("the command goes on");
    });
}

#[test]
fn after_the_end_everything_is_closed_and_nothing_hangs() {
    functions();
    for session in [Session::threads(2, 1), Session::processes(2, 1, &playing("worker"))] {
        let session = session.unwrap();
        let add = session.function("add one").unwrap();
        let two = session.call(&add, &Args::new().value(1)).unwrap();
        session.shutdown().unwrap();
        session.shutdown().expect("it has ended");
        assert_eq!(session.workers(), 2);
        assert_eq!(session.call(&add, &Args::new()).unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(session.sync(0, PATIENCE).unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(two.get::<i64>(0, PATIENCE).unwrap_err().kind(), ErrorKind::Closed);
        drop(two);
    }
}

#[test]
fn several_threads_issue_commands_and_drop_registers() {
    each(2, 1, |session| {
        let add = session.function("add one").unwrap();
        std::thread::scope(|scope| {
            for first in 0..4 {
                let add = &add;
                scope.spawn(move || {
                    let mut number = session.call(add, &Args::new().value(1000 * first)).unwrap();
                    for step in 1..200 {
                        number = session.call(add, &Args::new().register(&number)).unwrap();
                        if step % 50 == 0 {
                            assert_eq!(
                                number.get::<i64>(step as u32 / 50 % 2, PATIENCE).unwrap(),
                                1000 * first + step + 1
                            );
                        }
                    }
                    assert_eq!(number.get::<i64>(1, PATIENCE).unwrap(), 1000 * first + 200);
                });
            }
        });
    });
}

/// More commands than may be under way, behind one that takes long.
#[test]
fn the_controller_waits_for_room() {
    each(2, 1, |session| {
        let [sleep, add] = ["sleep", "add one"].map(|name| session.function(name).unwrap());
        session.call(&sleep, &Args::new().value(300_u64)).unwrap();
        let mut number = session.call(&add, &Args::new().value(0)).unwrap();
        for _ in 1..20_000 {
            number = session.call(&add, &Args::new().register(&number)).unwrap();
        }
        assert_eq!(number.get::<i64>(1, PATIENCE).unwrap(), 20_000);
        assert_eq!(number.get::<i64>(0, PATIENCE).unwrap(), 20_000);
    });
}

/// Workers that take no more: a call fails in time and on all of them alike, and the end of the session ends one that
/// waits.
#[test]
fn who_waits_for_room_is_told_in_time_and_by_the_end() {
    functions();
    for session in [Session::threads(2, 1), Session::processes(2, 1, &playing("worker"))] {
        let session = session.expect("there is room for some workers");
        let [sleep, add] = ["sleep", "add one"].map(|name| session.function(name).unwrap());
        session.call(&sleep, &Args::new().value(1500_u64)).unwrap();
        let mut number = session.call(&add, &Args::new().value(0)).unwrap();
        let mut count = 1;
        let error = loop {
            let span = Some(Duration::from_millis(50));
            match session.call_within(&add, &Args::new().register(&number), span) {
                Ok(next) => (number, count) = (next, count + 1),
                Err(error) => break error,
            }
            assert!(count < 1_000_000, "nothing bounds it");
        };
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        assert!(error.to_string().contains("takes no more commands") && error.about().is_some(), "{error}");
        for worker in 0..2 {
            assert_eq!(number.get::<i64>(worker, PATIENCE).unwrap(), count, "all have got the same commands");
        }
        session.call(&sleep, &Args::new().value(1500_u64)).unwrap();
        let (waiting, other) = (session.clone(), number.clone());
        let adds = add.clone();
        let caller = std::thread::spawn(move || {
            loop {
                if let Err(error) = waiting.call(&adds, &Args::new().register(&other)) {
                    return error;
                }
            }
        });
        // Most often it waits by then; the outcome is the same if it does not yet.
        std::thread::sleep(Duration::from_millis(200));
        let begun = Instant::now();
        session.shutdown().expect("nothing has failed");
        assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
        let error = caller.join().expect("it does not panic");
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
}

/// More than anything counts at a time: nobody waits for a worker meanwhile, and what has been done makes room.
#[test]
fn commands_go_on_without_end_though_nobody_waits() {
    each(2, 1, |session| {
        let add = session.function("add one").unwrap();
        let mut number = session.call(&add, &Args::new().value(0)).unwrap();
        for _ in 0..200_000 {
            let next = session.call_within(&add, &Args::new().register(&number), PATIENCE);
            number = next.unwrap();
        }
        assert_eq!(number.get::<i64>(1, PATIENCE).unwrap(), 200_001);
    });
}
