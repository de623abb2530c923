//! Operations on what the registers of all workers hold, by sessions of every kind.

use crate::common;
use crate::common::{PATIENCE, each, is_none, matrix, numbers, own, shape, told_by_all};
use sheave_base::{Error, ErrorKind, Result};
use sheave_collective::Operator;
use sheave_session::{Args, Placement, Register, Scope};
use sheave_tensor::{Dtype, Tensor};
use sheave_wire::Value;

/// Not a test, but what this binary's child processes run.
#[test]
fn actor() {
    common::act();
}

#[test]
fn all_reduce_by_every_operator() {
    for (operator, expected) in [
        (Operator::Sum, [6.0, 10.0]),
        (Operator::Product, [0.0, 24.0]),
        (Operator::Min, [0.0, 1.0]),
        (Operator::Max, [3.0, 4.0]),
        (Operator::Avg, [1.5, 2.5]),
    ] {
        each(4, 1, |session| {
            let own = own(session, 2, 1.0);
            let made = session.all_reduce(&own, None, operator, Scope::Group).unwrap();
            let given = session.empty([2], Dtype::F32, Placement::All).unwrap();
            let same = session.all_reduce(&own, Some(&given), operator, Scope::World).unwrap();
            for worker in 0..4 {
                for register in [&made, &given, &same] {
                    assert_eq!(numbers(register, worker), expected, "{operator:?}");
                }
                assert_eq!(numbers(&own, worker), [worker as f32, worker as f32 + 1.0], "it is left as it was");
            }
            session.all_reduce(&own, Some(&own), operator, Scope::World).unwrap();
            assert_eq!(numbers(&own, 3), expected, "in place");
        });
    }
}

#[test]
fn operations_of_groups_are_apart() {
    each(4, 2, |session| {
        let own = own(session, 2, 1.0);
        let sums = session.all_reduce(&own, None, Operator::Sum, Scope::Group).unwrap();
        let rows = session.all_gather(&own, None, Scope::Group).unwrap();
        let all = session.all_gather(&own, None, Scope::World).unwrap();
        let gathered = session.gather_to_first(&own, None, Scope::Group).unwrap();
        for worker in 0..4 {
            let (low, high) = if worker < 2 { (0.0, 1.0) } else { (2.0, 3.0) };
            assert_eq!(numbers(&sums, worker), [low + high, low + high + 2.0]);
            assert_eq!(numbers(&rows, worker), [low, low + 1.0, high, high + 1.0]);
            assert_eq!((shape(&rows, worker), shape(&all, worker)), (vec![2, 2], vec![4, 2]));
            assert_eq!(numbers(&all, worker), [0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0]);
            if worker % 2 == 0 {
                assert_eq!(numbers(&gathered, worker), [low, low + 1.0, high, high + 1.0]);
            } else {
                assert!(is_none(&gathered, worker));
            }
        }
    });
}

/// Item 9: what goes to groups goes to every leader.
#[test]
fn s09_broadcast_and_scatter_reach_all_groups() {
    each(4, 2, |session| {
        let data = matrix(2, 3);
        let given = session.empty([6], Dtype::F32, Placement::All).unwrap();
        let in_groups = session.broadcast(&data, None, Scope::Group).unwrap();
        let in_place = session.broadcast(&data, Some(&given), Scope::Group).unwrap();
        let of_all = session.broadcast(&data, None, Scope::World).unwrap();
        let rows = session.scatter(&data, None, Scope::Group).unwrap();
        let all_rows = session.scatter(&matrix(4, 2), None, Scope::World).unwrap();
        data.overwrite(&[0; 24], "test").unwrap();
        for worker in 0..4 {
            for register in [&in_groups, &in_place, &given, &of_all] {
                assert_eq!(numbers(register, worker), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "as it was when it was sent");
            }
            assert_eq!((shape(&in_groups, worker), shape(&rows, worker)), (vec![2, 3], vec![3]));
            let (rank, first) = ((worker % 2) as f32, worker as f32 * 2.0);
            assert_eq!(numbers(&rows, worker), [3.0 * rank, 3.0 * rank + 1.0, 3.0 * rank + 2.0]);
            assert_eq!(numbers(&all_rows, worker), [first, first + 1.0]);
        }
        for (scope, expected) in [
            (Scope::Group, "f32[4, 2]; expected 2 rows, one for each worker of a group"),
            (Scope::World, "f32[2, 3]; expected 4 rows, one for each worker"),
        ] {
            let data = if scope == Scope::Group { matrix(4, 2) } else { matrix(2, 3) };
            let error = session.scatter(&data, None, scope).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains(expected), "{error}");
        }
        session.sync_all(PATIENCE).expect("nothing was sent");
    });
}

#[test]
fn registers_of_first_workers_are_sent_and_reshaped_on_the_way() {
    each(4, 2, |session| {
        let leaders = session.empty([3, 4], Dtype::F32, Placement::Leaders).unwrap();
        assert!(is_none(&leaders, 1) && is_none(&leaders, 3));
        for leader in [0, 2] {
            leaders.set(leader, matrix(3, 4), PATIENCE).unwrap();
        }
        let copies = session.broadcast_from_first(&leaders, None, Scope::Group).unwrap();
        let halves = session.empty([3, 2], Dtype::F32, Placement::All).unwrap();
        session.scatter_from_first(&leaders, Some(&halves), Scope::Group).unwrap();
        let flat = session.scatter_from_first(&leaders, None, Scope::World).unwrap();
        let all: Vec<f32> = (0..12).map(|number| number as f32).collect();
        for worker in 0..4 {
            let (rank, quarter) = (worker as usize % 2, worker as usize * 3);
            assert_eq!((numbers(&copies, worker), shape(&copies, worker)), (all.clone(), vec![3, 4]));
            assert_eq!((numbers(&halves, worker), shape(&halves, worker)), (all[6 * rank..][..6].to_vec(), vec![3, 2]));
            assert_eq!((numbers(&flat, worker), shape(&flat, worker)), (all[quarter..][..3].to_vec(), vec![3]));
        }
        let back = session.empty([12], Dtype::F32, Placement::Leaders).unwrap();
        session.gather_to_first(&halves, Some(&back), Scope::Group).unwrap();
        assert_eq!((numbers(&back, 0), numbers(&back, 2)), (all.clone(), all.clone()));
        let scalar = session.broadcast(&Tensor::from_slice(&[7_i64], []).unwrap(), None, Scope::World).unwrap();
        let scalar = scalar.get::<Tensor>(3, PATIENCE).unwrap();
        assert_eq!((scalar.to_vec::<i64>().unwrap(), scalar.shape().dimensions().len()), (vec![7], 0));
        let nothing = session.broadcast(&Tensor::private(Dtype::U8, [0, 4]).unwrap(), None, Scope::World).unwrap();
        assert_eq!(shape(&nothing, 3), [0, 4]);
    });
}

/// Items 12 and 16: the controller's tensors are captured, and each copy knows its own.
#[test]
fn s12_copies_to_and_from_the_first_worker() {
    each(2, 1, |session| {
        let data = matrix(2, 2);
        let made = session.copy_to_first(&data, None).unwrap();
        data.overwrite(&[0; 16], "test").unwrap();
        assert!(is_none(&made, 1), "the others have none");
        let given = session.empty([4], Dtype::F32, Placement::First).unwrap();
        session.copy_to_first(&matrix(2, 2), Some(&given)).unwrap();
        let [one, other] = [(); 2].map(|()| Tensor::private(Dtype::F32, [2, 2]).unwrap());
        // One that cannot be copied in between moves none of the others.
        session.copy_from_first(&Tensor::private(Dtype::F32, [3]).unwrap(), &made).unwrap();
        session.copy_from_first(&one, &made).unwrap();
        session.copy_from_first(&other, &given).unwrap();
        let error = session.sync(0, PATIENCE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        assert!(error.to_string().contains("the target is f32[3]; expected f32[2, 2]"), "{error}");
        for copy in [one, other] {
            assert_eq!(copy.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0]);
        }
        let nothing = session.call(&session.function("nothing").unwrap(), &Args::new()).unwrap();
        session.copy_from_first(&data, &nothing).unwrap();
        let error = session.sync(0, PATIENCE).unwrap_err();
        assert!(error.to_string().contains("the source: a none; expected an array"), "{error}");
        session.sync(1, PATIENCE).expect("it has nothing to do with it");
    });
}

/// Item 22: whole numbers wrap, their averages are cut off, and what has no meaning is refused on all workers.
#[test]
fn s22_whole_numbers_wrap_and_averages_are_cut_off() {
    each(2, 1, |session| {
        let mine = session.empty([2], Dtype::I32, Placement::All).unwrap();
        let values = [[i32::MAX, -4], [1, -3]];
        for (worker, values) in (0..).zip(values) {
            mine.set(worker, Tensor::from_slice(&values, [2]).unwrap(), PATIENCE).unwrap();
        }
        for (operator, expected) in [
            (Operator::Sum, [i32::MIN, -7]),
            (Operator::Product, [i32::MAX, 12]),
            (Operator::Avg, [i32::MIN / 2, -3]),
            (Operator::Min, [1, -4]),
        ] {
            let made = session.all_reduce(&mine, None, operator, Scope::World).unwrap();
            for worker in 0..2 {
                let made: Tensor = made.get(worker, PATIENCE).unwrap();
                assert_eq!(made.to_vec::<i32>().unwrap(), expected, "{operator:?}");
            }
        }
        for (dtype, operator, is_possible) in [
            (Dtype::Bool, Operator::Sum, false),
            (Dtype::Bool, Operator::Max, true),
            (Dtype::I16, Operator::Avg, true),
            (Dtype::U64, Operator::Avg, true),
            (Dtype::Complex64, Operator::Avg, true),
            (Dtype::Complex64, Operator::Max, false),
            (Dtype::Fp8E4M3, Operator::Sum, false),
            (Dtype::Bf16, Operator::Avg, true),
        ] {
            let data = Tensor::private(dtype, [3]).unwrap();
            let zeros = session.broadcast(&data, None, Scope::World).unwrap();
            session.sync_all(PATIENCE).expect("all dtypes move");
            session.all_reduce(&zeros, None, operator, Scope::World).unwrap();
            for worker in 0..2 {
                let outcome = session.sync(worker, PATIENCE);
                let expected = (!is_possible).then_some(ErrorKind::Unsupported);
                assert_eq!(outcome.as_ref().err().map(Error::kind), expected, "{dtype} {operator:?}: {outcome:?}");
            }
        }
    });
}

/// Item 11: a shape that is wrong on one worker alone.
#[test]
fn s11_what_does_not_fit_is_told_by_all_and_nothing_moves() {
    each(4, 1, |session| {
        let (source, target) = (own(session, 4, 1.0), session.broadcast(&matrix(1, 4), None, Scope::World).unwrap());
        let (wide, all) = (own(session, 16, 1.0), own(session, 16, 9.0));
        session.sync_all(PATIENCE).unwrap();
        source.set(2, Tensor::from_slice(&[0.0_f32; 3], [3]).unwrap(), PATIENCE).unwrap();
        session.all_reduce(&source, Some(&target), Operator::Sum, Scope::World).unwrap();
        told_by_all(session, ErrorKind::Mismatch, "worker 2 gives f32[3]; expected f32[4], as worker 0 gives");
        session.all_gather(&source, Some(&all), Scope::World).unwrap();
        told_by_all(session, ErrorKind::Mismatch, "worker 2 gives f32[3]; expected f32[4], as worker 0 gives");
        source.set(2, Tensor::from_slice(&[0_i32; 4], [4]).unwrap(), PATIENCE).unwrap();
        session.gather_to_first(&source, None, Scope::World).unwrap();
        told_by_all(session, ErrorKind::Mismatch, "worker 2 gives i32[4]; expected f32[4], as worker 0 gives");
        let others = session.empty([4], Dtype::F32, Placement::All).unwrap();
        session.sync_all(PATIENCE).unwrap();
        others.set(3, Tensor::from_slice(&[0.0_f32; 5], [5]).unwrap(), PATIENCE).unwrap();
        let moves: [&dyn Fn() -> Result<Register>; 3] = [
            &|| session.broadcast_from_first(&target, Some(&others), Scope::World),
            &|| session.scatter_from_first(&wide, Some(&others), Scope::World),
            &|| session.all_reduce(&target, Some(&others), Operator::Max, Scope::World),
        ];
        for begin in moves {
            let (moved, expected) = (begin().unwrap(), "worker 3 has room for f32[5]; expected f32[4]");
            told_by_all(session, ErrorKind::Mismatch, expected);
            let error = moved.get::<Tensor>(1, PATIENCE).unwrap_err();
            assert!(error.to_string().contains(expected), "the result is poisoned: {error}");
        }
        session.scatter_from_first(&others, None, Scope::World).unwrap();
        session.sync_all(PATIENCE).unwrap();
        others.set(0, Tensor::from_slice(&[0.0_f32; 6], [2, 3]).unwrap(), PATIENCE).unwrap();
        session.scatter_from_first(&others, None, Scope::World).unwrap();
        told_by_all(session, ErrorKind::Mismatch, "worker 0 gives f32[6]; expected a multiple of 4 elements");
        for worker in 0..4 {
            assert_eq!(numbers(&target, worker), [0.0, 1.0, 2.0, 3.0], "nothing has moved");
            assert_eq!(numbers(&all, worker)[0], 9.0 * worker as f32, "nothing has moved");
        }
        let sums = session.all_reduce(&target, None, Operator::Sum, Scope::World).unwrap();
        assert_eq!(numbers(&sums, 3), [0.0, 4.0, 8.0, 12.0], "the next one works");
    });
}

/// Item 1 of collectives: what one worker alone has not is told by all, and keeps nobody waiting.
#[test]
fn s01_an_argument_that_is_poisoned_on_one_worker_alone() {
    each(3, 1, |session| {
        let (source, target) = (own(session, 2, 1.0), session.empty([2], Dtype::F32, Placement::All).unwrap());
        let fail = session.function("fail on").unwrap();
        let poisoned = session.call(&fail, &Args::new().value(1).value("the disk is full")).unwrap();
        assert_eq!(session.sync(1, PATIENCE).unwrap_err().kind(), ErrorKind::Mismatch);
        // Its other workers hold numbers, which are no tensors either: the first that has something is told.
        session.all_reduce(&poisoned, Some(&target), Operator::Sum, Scope::World).unwrap();
        told_by_all(session, ErrorKind::InvalidArgument, "worker 0: the source: a int; expected an array");
        let source_of_two = session.function("tensor unless").unwrap();
        let half = session.call(&source_of_two, &Args::new().value(1).value(2_u64)).unwrap();
        assert!(session.sync(1, PATIENCE).is_err());
        let moves: [&dyn Fn() -> Result<Register>; 6] = [
            &|| session.all_reduce(&half, None, Operator::Sum, Scope::World),
            &|| session.all_reduce(&half, Some(&target), Operator::Sum, Scope::Group),
            &|| session.all_reduce(&source, Some(&half), Operator::Sum, Scope::World),
            &|| session.all_gather(&half, None, Scope::World),
            &|| session.gather_to_first(&half, None, Scope::World),
            &|| session.broadcast_from_first(&source, Some(&half), Scope::World),
        ];
        for begin in moves {
            begin().unwrap();
            told_by_all(session, ErrorKind::Remote, "worker 1: ");
        }
        // What is not looked at does not matter.
        let sent = session.broadcast_from_first(&half, None, Scope::World).unwrap();
        assert_eq!(numbers(&sent, 1), [0.5, 0.5]);
        let gathered = session
            .gather_to_first(&source, Some(&session.empty([6], Dtype::F32, Placement::First).unwrap()), Scope::World)
            .unwrap();
        assert_eq!(numbers(&gathered, 0), [0.0, 1.0, 1.0, 2.0, 2.0, 3.0]);
        session.all_reduce(&source, Some(&gathered), Operator::Sum, Scope::World).unwrap();
        told_by_all(session, ErrorKind::InvalidArgument, "worker 1: the target: a none; expected an array");
        let sums = session.all_reduce(&source, None, Operator::Sum, Scope::World).unwrap();
        assert_eq!(numbers(&sums, 1), [3.0, 6.0], "the next one works");
    });
}

/// Item 15: a command that cannot be sent to all is sent to none.
#[test]
fn s15_a_tensor_that_is_being_written_is_refused_before_any_worker_has_the_command() {
    each(4, 2, |session| {
        let data = matrix(2, 2);
        let lease = data.write_lease("test").unwrap();
        let echo = session.function("echo").unwrap();
        let refused = [
            session.broadcast(&data, None, Scope::Group),
            session.copy_to_first(&data, None),
            session.call(&echo, &Args::new().value(data.clone())),
        ];
        for refused in refused {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::BufferInUse);
        }
        drop(lease);
        let sent = session.broadcast(&data, None, Scope::Group).unwrap();
        assert_eq!(numbers(&sent, 3), [0.0, 1.0, 2.0, 3.0]);
    });
}

#[test]
fn objects_of_other_languages_are_written_in_place() {
    each(2, 1, |session| {
        let [boxed, unbox] = ["box", "unbox"].map(|name| session.function(name).unwrap());
        let boxed = session.call(&boxed, &Args::new().register(&own(session, 2, 1.0))).unwrap();
        session.all_reduce(&boxed, Some(&boxed), Operator::Sum, Scope::World).unwrap();
        let held = session.call(&unbox, &Args::new().register(&boxed)).unwrap();
        assert_eq!(held.get::<Vec<f32>>(1, PATIENCE).unwrap(), [1.0, 3.0]);
        session.broadcast(&matrix(1, 2), Some(&boxed), Scope::World).unwrap();
        let held = session.call(&unbox, &Args::new().register(&boxed)).unwrap();
        assert_eq!(held.get::<Vec<f32>>(1, PATIENCE).unwrap(), [0.0, 1.0]);
        session.copy_to_first(&matrix(1, 2), Some(&boxed)).unwrap();
        assert_eq!(numbers(&boxed, 0), [0.0, 1.0]);
    });
}

#[test]
fn workers_know_who_they_are_by_built_in_functions() {
    each(4, 2, |session| {
        let asked = |name: &str| session.call(&session.function(name).unwrap(), &Args::new()).unwrap();
        let names = ["worker_id", "local_id", "group", "rank_in_group", "workers", "groups"];
        let told = names.map(|name| asked(&format!("sheave.{name}")));
        for worker in 0..4 {
            let numbers: Vec<u32> = told.iter().map(|register| register.get(worker, PATIENCE).unwrap()).collect();
            assert_eq!(numbers, [worker, worker, worker / 2, worker % 2, 4, 2]);
        }
    });
    let own = sheave_session::Function::typed("sheave.empty", |()| Ok(1));
    assert_eq!(sheave_session::register_function(own).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn names_that_mean_nothing_are_refused_by_all() {
    each(2, 1, |session| {
        let source = own(session, 2, 1.0);
        let call = |name: &str, args: Args| session.call(&session.function(name).unwrap(), &args).unwrap();
        call("sheave.all_reduce", Args::new().value("all").value("sum").register(&source));
        told_by_all(session, ErrorKind::InvalidArgument, "scope \"all\"; expected \"group\" or \"world\"");
        call("sheave.all_reduce", Args::new().value("world").value("median").register(&source));
        told_by_all(session, ErrorKind::InvalidArgument, "operator \"median\"; expected one of sum, product, min");
        call("sheave.all_reduce", Args::new().value("world").value("sum"));
        told_by_all(session, ErrorKind::InvalidArgument, "worker 0: the source: 2 arguments; expected more");
        call("sheave.no_such", Args::new());
        for worker in 0..2 {
            let error = session.sync(worker, PATIENCE).unwrap_err();
            assert!(error.to_string().contains("no function \"sheave.no_such\""), "{error}");
        }
        let product = call("sheave.all_reduce", Args::new().value("world").value("prod").register(&source));
        assert_eq!(numbers(&product, 0), [0.0, 2.0]);
    });
}

#[test]
fn lists_dicts_and_arrays_keep_their_types_in_registers() {
    each(2, 1, |session| {
        let echo = session.function("echo").unwrap();
        let array = || Tensor::from_slice(&[1_i16, 2], [2]).unwrap();
        let dict = std::collections::BTreeMap::from([("a".to_owned(), vec![array(), array()])]);
        let register = session.call(&echo, &Args::new().value(dict)).unwrap();
        let again = session.call(&echo, &Args::new().register(&register)).unwrap();
        for worker in 0..2 {
            let (value, tensors) = again.fetch(worker, PATIENCE).unwrap();
            let list = Value::List(vec![Value::Tensor(0), Value::Tensor(1)]);
            assert_eq!(value, Value::Map(vec![("a".to_owned(), list)]));
            assert_eq!((tensors.len(), tensors[1].dtype()), (2, Dtype::I16));
            assert_eq!(tensors[1].to_vec::<i16>().unwrap(), [1, 2]);
        }
        let tuple = session.call(&echo, &Args::new().value((1, "x", vec![2.5]))).unwrap();
        let list = Value::List(vec![Value::Float(2.5)]);
        assert_eq!(tuple.get::<Value>(1, PATIENCE).unwrap(), Value::Tuple(vec![1.into(), "x".into(), list]));
    });
}
