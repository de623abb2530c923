//! One-way calls: in order with those that are answered, bounded, and with failures that are told once to whoever can
//! use them.

use crate::common::{together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, NodeId, Rank, Result, UserError, limits};
use sheave_mesh::{ArgList, Call, CallOptions, Expected, Lane, Mesh, Methods, Ref, Request, Service, TypedService};
use sheave_wire::Value;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

/// Puts numbers one behind the other; fails, panics, or waits, as it is told.
#[derive(Clone, Default)]
struct Log {
    numbers: Arc<Mutex<Vec<i64>>>,
    is_open: Arc<AtomicBool>,
}

impl Service for Log {
    fn handle(&self, request: Request) {
        let mut numbers = self.numbers.lock().expect("nobody panics with it");
        match (request.method.as_str(), &request.args) {
            ("put", Value::Int(number)) => numbers.push(*number),
            ("count", _) => request.reply.value(numbers.len() as i64),
            ("make", name) => {
                let _ = request.promises.fulfil(name, Arc::new(numbers.len() as i64));
            }
            ("make and fail", args) => {
                let name = if let Value::List(items) = args { &items[0] } else { args };
                let _ = request.promises.fulfil(name, Arc::new(7_i64));
                request.reply.error(Error::new(ErrorKind::Mismatch, "it has another shape"));
            }
            ("forget", _) => {}
            ("raise", _) => {
                let raised = UserError::new("ValueError", "Traceback: line 7");
                request.reply.error(Error::new(ErrorKind::Remote, "the handler raised").user(raised));
            }
            ("panic", _) => {
                drop(numbers);
                panic!("a handler of a test");
            }
            ("wait", _) => {
                drop(numbers);
                until("it may go on", || self.is_open.load(SeqCst));
            }
            ("read", _) => {
                drop(numbers);
                request.reply.error(Error::new(ErrorKind::Internal, "only for calls that are answered"));
            }
            _ => request.reply.error(Error::new(ErrorKind::Mismatch, "it has another shape")),
        }
    }

    fn lane(&self) -> Lane {
        Lane::Serial
    }
}

/// Two members that both serve; rank 0 acts, on the other one and on itself.
fn with_log(transport: Transport, act: impl Fn(&Mesh, NodeId, &Log) + Clone + Send + 'static) {
    let logs: [Log; 2] = Default::default();
    together(Expected::ranks(2), transport, move |mesh| {
        let own = &logs[mesh.me().rank.0 as usize];
        mesh.serve("log", own.clone()).expect("the name is free");
        let world = mesh.world();
        world.barrier().expect("both are there");
        if mesh.me().rank == Rank(0) {
            for (member, log) in mesh.members().iter().zip(&logs) {
                act(&mesh, member.node, log);
            }
        }
        world.barrier().expect("both are there");
        mesh.finish().expect("all are well");
    });
}

fn count(mesh: &Mesh, to: NodeId) -> Result<i64> {
    match wait(&mesh.call(to, "log", "count", Value::None)?)?.value {
        Value::Int(number) => Ok(number),
        other => panic!("{other:?} where a number was expected"),
    }
}

/// What is told of one-way calls once an answer of the same mailbox is there.
fn told(mesh: &Mesh, to: NodeId) -> Result<()> {
    count(mesh, to).expect("it answers");
    mesh.check_one_way(to, "log")
}

#[test]
fn they_keep_their_order_among_calls_that_are_answered() {
    for transport in TRANSPORTS {
        with_log(transport, |mesh, to, log| {
            for number in 0..5000 {
                wait(&mesh.room(to, "log", None)).expect("there is room some time");
                mesh.cast(to, "log", "put", Value::Int(number)).expect("it is sent");
                if number % 1000 == 999 {
                    assert_eq!(count(mesh, to).expect("it answers"), number + 1);
                }
            }
            assert_eq!(*log.numbers.lock().expect("nobody panics"), (0..5000).collect::<Vec<_>>());
            told(mesh, to).expect("nothing has failed");
        });
    }
}

#[test]
fn a_failure_is_told_once_with_its_method_and_its_node() {
    for transport in TRANSPORTS {
        with_log(transport, |mesh, to, _| {
            let cases = [
                ("fail", ErrorKind::Mismatch, "it has another shape"),
                ("panic", ErrorKind::Remote, "the handler panicked: a handler of a test"),
            ];
            for (method, kind, text) in cases {
                mesh.cast(to, "log", method, Value::None).expect("it is sent");
                let error = told(mesh, to).expect_err("it has failed");
                assert_eq!((error.kind(), error.operation_name()), (kind, Some(method)), "{error}");
                assert!(error.to_string().contains(text), "{error}");
                let origin = error.happened_on().map(|peer| peer.name.as_str());
                assert_eq!(origin, (to != mesh.me().node).then_some("rank-1"), "{error}");
                told(mesh, to).expect("it is told once");
            }
            // In place of the next one, which is not made.
            let before = count(mesh, to).expect("it answers");
            mesh.cast(to, "log", "fail", Value::None).expect("it is sent");
            count(mesh, to).expect("it answers");
            let error = mesh.cast(to, "log", "put", Value::Int(1)).expect_err("the one before has failed");
            assert!(error.to_string().contains("an earlier one-way call of this service"), "{error}");
            mesh.cast(to, "log", "put", Value::Int(2)).expect("that was told");
            assert_eq!(count(mesh, to).expect("it answers"), before + 1);
            // A handler may end without a word, and what it answers goes nowhere.
            mesh.cast(to, "log", "forget", Value::None).expect("it is sent");
            mesh.cast(to, "log", "count", Value::None).expect("it is sent");
            told(mesh, to).expect("nothing has failed");
        });
    }
}

#[test]
fn many_failures_are_one_error_that_counts_them() {
    for transport in TRANSPORTS {
        with_log(transport, |mesh, to, _| {
            const FAILURES: u64 = 2000;
            let mut heard = 0;
            let mut hear = |outcome: Result<()>| match outcome {
                Ok(()) => false,
                Err(error) => {
                    let count = error.what().split("the first of ").nth(1).and_then(|rest| rest.split(' ').next());
                    heard += count.map_or(1, |count| count.parse::<u64>().expect("a number"));
                    true
                }
            };
            let mut sent = 0;
            while sent < FAILURES {
                wait(&mesh.room(to, "log", None)).expect("there is room some time");
                if !hear(mesh.cast(to, "log", "fail", Value::None)) {
                    sent += 1;
                }
            }
            hear(told(mesh, to));
            assert_eq!(heard, FAILURES, "each is counted once");
            told(mesh, to).expect("all of them are told");
        });
    }
}

#[test]
fn who_refuses_says_so() {
    for transport in TRANSPORTS {
        with_log(transport, |mesh, to, _| {
            let gone = mesh.cast(to, "nothing", "x", Value::None);
            let error = match to == mesh.me().node {
                true => gone.expect_err("nobody serves that here"),
                false => {
                    gone.expect("it is sent");
                    let heard = std::cell::RefCell::new(None);
                    until("it is refused", || {
                        *heard.borrow_mut() = mesh.check_one_way(to, "nothing").err();
                        heard.borrow().is_some()
                    });
                    heard.into_inner().expect("it was refused")
                }
            };
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            let places = vec![sheave_tensor::Tensor::private(sheave_tensor::Dtype::U8, [8_u64]).expect("memory")];
            let late = Call { deadline: Some(Duration::from_secs(1)), ..Call::default() };
            for (call, text) in [(Call { places: places.into(), ..Call::default() }, "places"), (late, "deadline")] {
                let error = mesh.cast(to, "log", "put", call).expect_err("nothing would come of it");
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                assert!(error.to_string().contains(text), "{error}");
            }
            told(mesh, to).expect("nothing was sent");
        });
    }
    together(Expected::ranks(1), Transport::Auto, |mesh| {
        let error = mesh.cast(NodeId(7), "log", "put", Value::Int(1)).expect_err("no member");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        mesh.finish().expect("it is alone");
    });
}

fn object(mesh: &Mesh, to: NodeId, held: &Ref) -> Result<i64> {
    match wait(&mesh.call(to, "objects", "read", held.value())?)?.value {
        Value::Int(number) => Ok(number),
        other => panic!("{other:?} where a number was expected"),
    }
}

#[test]
fn a_promise_is_filled_or_poisoned_and_tells_of_the_failure_alone() {
    for transport in TRANSPORTS {
        let logs: [Log; 2] = Default::default();
        together(Expected::ranks(2), transport, move |mesh| {
            mesh.serve("log", logs[mesh.me().rank.0 as usize].clone()).expect("the name is free");
            let weak = mesh.downgrade();
            let read = move |request: Request| {
                let object = weak.upgrade().map(|mesh| mesh.object::<i64>(&request.refs[0], None).wait());
                request
                    .reply
                    .send(object.expect("it is a member").map(|number| (Value::Int(*number), Default::default())));
            };
            mesh.serve("objects", read).expect("the name is free");
            let world = mesh.world();
            world.barrier().expect("both are there");
            for to in mesh.members().iter().map(|member| member.node).filter(|_| mesh.me().rank == Rank(0)) {
                fill_and_poison(&mesh, to);
            }
            world.barrier().expect("both are there");
            mesh.finish().expect("all are well");
        });
    }
}

fn fill_and_poison(mesh: &Mesh, to: NodeId) {
    let promise = || mesh.promise(to).expect("there is room");
    let held = promise();
    let early = mesh.call(to, "objects", "read", held.value()).expect("it is sent");
    mesh.cast(to, "log", "make", held.to_fill()).expect("it is sent");
    assert_eq!(wait(&early).expect("it is filled").value, Value::Int(0));
    let error = mesh.cast(to, "log", "make", held.to_fill()).expect_err("twice");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    for (method, kind, text) in [
        (
            "fail",
            ErrorKind::Mismatch,
            "a one-way call of rank-0 (fail), which was to fill it, failed: it has another shape",
        ),
        ("panic", ErrorKind::Remote, "(panic), which was to fill it, failed: the handler panicked"),
        ("forget", ErrorKind::Remote, "(forget), which was to fill it, failed: the handler has ended without it"),
    ] {
        let held = promise();
        mesh.cast(to, "log", method, held.to_fill()).expect("it is sent");
        let error = object(mesh, to, &held).expect_err("it is poisoned");
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(text), "{error}: {text}");
        told(mesh, to).expect("whoever uses it has heard of it");
    }
    // What user code has raised is known to whoever uses what it should have made.
    let held = promise();
    mesh.cast(to, "log", "raise", held.to_fill()).expect("it is sent");
    let error = object(mesh, to, &held).expect_err("it is poisoned");
    assert_eq!(error.user_error().map(UserError::class), Some("ValueError"), "{error}");
    // Filled, and failed after that: only the caller can be told.
    let held = promise();
    mesh.cast(to, "log", "make and fail", held.to_fill()).expect("it is sent");
    assert_eq!(object(mesh, to, &held).expect("it is filled"), 7);
    assert_eq!(told(mesh, to).expect_err("it has failed").kind(), ErrorKind::Mismatch);
    // The same where there is an answer to tell it, to arguments that are written already.
    let (held, mut list) = (promise(), ArgList::default());
    list.push_to_fill(&held).expect("it is short");
    let called = mesh.call_list(to, "log", "make and fail", &mut list, None).expect("it is sent");
    assert_eq!(wait(&called).expect_err("it has failed").kind(), ErrorKind::Mismatch);
    assert_eq!(object(mesh, to, &held).expect("it is filled"), 7);
    told(mesh, to).expect("its caller was told by the answer");
    // Nobody serves that.
    let held = promise();
    let sent = mesh.cast(to, "nothing", "make", held.to_fill());
    assert_eq!(sent.is_ok(), to != mesh.me().node);
    let error = object(mesh, to, &held).expect_err("it is poisoned");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("fill it"), "{error}");
}

#[test]
fn more_than_a_drawer_may_promise_at_a_time_are_filled_one_after_the_other() {
    with_log(Transport::Auto, |mesh, to, _| {
        for _ in 0..limits::REFERENCES_PROMISED_MAX + 1000 {
            wait(&mesh.room(to, "log", None)).expect("there is room some time");
            let held = mesh.promise(to).expect("those before are filled");
            mesh.cast(to, "log", "make", held.to_fill()).expect("it is sent");
        }
        told(mesh, to).expect("nothing has failed");
    });
}

#[test]
fn what_waits_here_is_bounded() {
    for transport in TRANSPORTS {
        with_log(transport, |mesh, to, log| {
            log.is_open.store(false, SeqCst);
            mesh.cast(to, "log", "wait", Value::None).expect("it is sent");
            let mut sent = 0;
            let error = loop {
                match mesh.cast(to, "log", "put", Value::Int(0)) {
                    Ok(()) => sent += 1,
                    Err(error) => break error,
                }
                assert!(sent <= 2 * limits::CALLS_PENDING_MAX as i64, "nothing bounds them");
            };
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
            assert!(error.to_string().contains("wait for some"), "{error}");
            log.is_open.store(true, SeqCst);
            wait(&mesh.room(to, "log", None)).expect("there is room some time");
            assert_eq!(count(mesh, to).expect("it answers"), sent);
            log.numbers.lock().expect("nobody panics").clear();
            told(mesh, to).expect("nothing has failed");
        });
    }
}

struct Add;
struct Sum;
struct Keep;

sheave_mesh::methods! {
    service "sums";
    1, "add": Add[i64] -> (), Members;
    2, "sum": Sum[()] -> i64, Members;
    3, "keep": Keep[()] -> (), Members;
}

#[derive(Default)]
struct Sums(AtomicI64);

impl TypedService for Sums {
    const NAME: &'static str = "sums";

    fn methods(methods: Methods<Self>) -> Methods<Self> {
        methods
            .on::<Add>(|sums, request| match request.args {
                0 => request.reply.error(Error::new(ErrorKind::InvalidArgument, "nothing to add")),
                number => drop(sums.0.fetch_add(number, SeqCst)),
            })
            .on::<Sum>(|sums, request| request.reply.ok(&sums.0.load(SeqCst)))
            .on::<Keep>(|sums, request| {
                let [.., held] = request.promises.refs() else { return };
                request.reply.send(request.promises.fulfil(&held.value(), Arc::new(sums.0.load(SeqCst))));
            })
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }
}

#[test]
fn methods_with_numbers_are_told_and_fill_promises() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            mesh.serve_typed(Arc::new(Sums::default())).expect("the name is free");
            let world = mesh.world();
            world.barrier().expect("both are there");
            for to in mesh.members().iter().map(|member| member.node).filter(|_| mesh.me().rank == Rank(0)) {
                (1..=1000).for_each(|number| mesh.tell::<Add>(to, &number).expect("it is sent"));
                let sum = || wait(&mesh.ask::<Sum>(to, &()).expect("it is sent")).expect("it answers").value;
                assert_eq!(sum(), 500_500);
                mesh.tell::<Add>(to, &0).expect("it is sent");
                assert_eq!(sum(), 500_500);
                let error = mesh.check_one_way(to, "sums").expect_err("it has failed");
                assert_eq!(
                    (error.kind(), error.operation_name()),
                    (ErrorKind::InvalidArgument, Some("add")),
                    "{error}"
                );
                // By a call that is answered, and by one that is not.
                for is_one_way in [false, true] {
                    let held = mesh.promise(to).expect("there is room");
                    let options = CallOptions { fills: vec![held.clone()], ..CallOptions::default() };
                    match is_one_way {
                        true => mesh.tell_with::<Keep>(to, &(), options).expect("it is sent"),
                        false => drop(wait(&mesh.ask_with::<Keep>(to, &(), options).expect("sent")).expect("filled")),
                    }
                    let options = CallOptions { fills: vec![held.clone()], ..CallOptions::default() };
                    let error = mesh.tell_with::<Keep>(to, &(), options).expect_err("it is filled");
                    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
                    if to == mesh.me().node {
                        assert_eq!(*wait(&mesh.object::<i64>(&held, None)).expect("it is there"), 500_500);
                    }
                }
                mesh.check_one_way(to, "sums").expect("nothing has failed");
            }
            world.barrier().expect("both are there");
            mesh.finish().expect("all are well");
        });
    }
}
