//! Promises with real links between the nodes: used before they are filled, filled, poisoned, and never left open.

use crate::common::{together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_mesh::{Answer, Call, Expected, Mesh, Ref, Request, WeakMesh};
use sheave_wire::Value;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];
const MOMENT: Duration = Duration::from_millis(30);

/// What the objects are of that this node has made, and requests that it holds back.
#[derive(Clone, Default)]
struct Made {
    objects: Arc<Mutex<Vec<Weak<i64>>>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Made {
    fn fill(&self, request: &Request, name: &Value, number: i64) -> Result<()> {
        let object = Arc::new(number);
        self.objects.lock().expect("nobody panics").push(Arc::downgrade(&object));
        request.promises.fulfil(name, object)
    }

    fn are_freed(&self) -> bool {
        self.objects.lock().expect("nobody panics").iter().all(|object| object.strong_count() == 0)
    }
}

fn input(mesh: &Mesh, name: &Value) -> Result<i64> {
    mesh.object::<i64>(&mesh.hold(name)?, None).wait().map(|object| *object)
}

fn work(mesh: &Mesh, made: &Made, request: &Request) -> Result<Value> {
    let args = if let Value::List(args) = &request.args { args.as_slice() } else { &[] };
    match (request.method.as_str(), args) {
        ("make", [out, Value::Int(number)]) => made.fill(request, out, *number)?,
        ("add", [out, one, other]) => made.fill(request, out, input(mesh, one)? + input(mesh, other)?)?,
        ("read", [name]) => return input(mesh, name).map(Value::Int),
        ("ask", [Value::Int(rank), name]) => {
            let owner = other(mesh, usize::try_from(*rank).expect("a rank"));
            return mesh.call(owner, "it", "read", Value::List(vec![name.clone()]))?.wait().map(|answer| answer.value);
        }
        ("forget", [_]) => {}
        ("fail", [_]) => return Err(Error::new(ErrorKind::Mismatch, "it has another shape")),
        ("panic", [_]) => panic!("a handler of a test"),
        _ => return Err(Error::new(ErrorKind::NotFound, "no such method")),
    }
    Ok(Value::None)
}

fn serve(mesh: &Mesh) -> Made {
    let made = Made::default();
    let (weak, own): (WeakMesh, Made) = (mesh.downgrade(), made.clone());
    let handle = move |request: Request| {
        if request.method == "hold" {
            return own.requests.lock().expect("nobody panics").push(request);
        }
        let Some(mesh) = weak.upgrade() else { return };
        let outcome = work(&mesh, &own, &request);
        request.reply.send(outcome.map(|value| (value, Default::default())));
    };
    mesh.serve("it", handle).expect("the name is free");
    made
}

fn other(mesh: &Mesh, rank: usize) -> NodeId {
    mesh.members()[rank].node
}

fn call(mesh: &Mesh, rank: usize, method: &str, args: Vec<Value>) -> sheave_base::Work<Answer> {
    mesh.call(other(mesh, rank), "it", method, Value::List(args)).expect("sent")
}

/// Runs `act` on rank 0 of three, whose others serve; and looks that nothing is left.
fn with_servants(transport: Transport, act: impl Fn(&Mesh, &Made) + Clone + Send + 'static) {
    together(Expected::ranks(3), transport, move |mesh| {
        let made = serve(&mesh);
        let world = mesh.world();
        world.barrier().expect("all are there");
        if mesh.me().rank.0 == 0 {
            act(&mesh, &made);
        }
        world.barrier().expect("all are there");
        made.requests.lock().expect("nobody panics").clear();
        until("all that was made is freed", || made.are_freed());
        mesh.finish().expect("all are well");
    });
}

/// The outcome of a use of `held` on its owner, whose wait must end.
fn read(mesh: &Mesh, held: &Ref) -> Result<Answer> {
    let owner = mesh.members().iter().position(|member| member.node == held.owner()).expect("a member");
    wait(&call(mesh, owner, "read", vec![held.value()]))
}

fn is_poisoned(mesh: &Mesh, held: &Ref, kind: ErrorKind, text: &str) {
    let error = read(mesh, held).expect_err("nothing has filled it");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(text), "{error}: {text}");
}

#[test]
fn a_promise_is_used_at_once_by_its_owner_and_by_others() {
    for transport in TRANSPORTS {
        with_servants(transport, |mesh, _| {
            for owner in [1, 0] {
                let promise = || mesh.promise(other(mesh, owner)).expect("there is room");
                let (one, two, sum) = (promise(), promise(), promise());
                // A third node has it before its owner has heard of it, and waits there.
                let third = call(mesh, 2, "ask", vec![Value::Int(owner as i64), sum.value()]);
                let added = call(mesh, owner, "add", vec![sum.to_fill(), one.value(), two.value()]);
                std::thread::sleep(MOMENT);
                assert!(!third.is_done() && !added.is_done(), "nothing is there");
                wait(&call(mesh, owner, "make", vec![one.to_fill(), Value::Int(30)])).expect("made");
                wait(&call(mesh, owner, "make", vec![two.to_fill(), Value::Int(12)])).expect("made");
                assert_eq!(wait(&third).expect("it is filled").value, Value::Int(42));
                wait(&added).expect("made");
                assert_eq!(read(mesh, &sum).expect("it is there").value, Value::Int(42));
                let error = mesh.call(other(mesh, owner), "it", "make", sum.to_fill()).expect_err("twice");
                assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
                assert_eq!(read(mesh, &sum).expect("it is there still").value, Value::Int(42));
            }
        });
    }
}

#[test]
fn a_promise_that_is_dropped_at_once_is_filled_and_freed() {
    with_servants(Transport::Auto, |mesh, _| {
        for number in 0..1000 {
            let held = mesh.promise(other(mesh, 1)).expect("there is room");
            let made = call(mesh, 1, "make", vec![held.to_fill(), Value::Int(number)]);
            let read = call(mesh, 1, "read", vec![held.value()]);
            drop(held);
            assert_eq!(wait(&read).expect("it is there").value, Value::Int(number));
            wait(&made).expect("made");
        }
    });
}

#[test]
fn whatever_ends_the_call_poisons_the_promise() {
    for transport in TRANSPORTS {
        with_servants(transport, |mesh, _| {
            for owner in [1, 0] {
                let promise = || mesh.promise(other(mesh, owner)).expect("there is room");
                for (method, kind, text) in [
                    ("fail", ErrorKind::Mismatch, "(fail), which was to fill it, failed: it has another shape"),
                    ("panic", ErrorKind::Remote, "failed: the handler panicked: a handler of a test"),
                    ("forget", ErrorKind::Remote, "(forget), which was to fill it, failed: the handler has ended"),
                ] {
                    let held = promise();
                    let early = call(mesh, owner, "read", vec![held.value()]);
                    let called = call(mesh, owner, method, vec![held.to_fill()]);
                    assert_eq!(wait(&called).is_ok(), method == "forget");
                    is_poisoned(mesh, &held, kind, text);
                    assert_eq!(wait(&early).expect_err("poisoned").kind(), kind);
                }
                // Cancelled while its handler runs, and past its deadline.
                let held = promise();
                let called = call(mesh, owner, "hold", vec![held.to_fill()]);
                called.cancel();
                assert_eq!(wait(&called).expect_err("cancelled").kind(), ErrorKind::Cancelled);
                is_poisoned(mesh, &held, ErrorKind::Cancelled, "");
                let held = promise();
                let args = Value::List(vec![held.to_fill()]);
                let late = Call { args, deadline: Some(MOMENT), ..Call::default() };
                let called = mesh.call(other(mesh, owner), "it", "hold", late).expect("sent");
                assert_eq!(wait(&called).expect_err("late").kind(), ErrorKind::DeadlineExceeded);
                is_poisoned(mesh, &held, ErrorKind::DeadlineExceeded, "");
                // Refused: there is no such service.
                let held = promise();
                let called = mesh.call(other(mesh, owner), "nothing", "make", held.to_fill());
                assert_eq!(called.and_then(|work| wait(&work)).expect_err("refused").kind(), ErrorKind::NotFound);
                let used = mesh.call(other(mesh, owner), "it", "read", Value::List(vec![held.value()]));
                let used = used.and_then(|work| wait(&work)).expect_err("poisoned");
                assert_eq!(used.kind(), ErrorKind::NotFound, "{used}");
                assert!(used.to_string().contains("fill it"), "{used}");
            }
        });
    }
}

#[test]
fn a_promise_for_which_no_call_was_sent_is_poisoned_when_it_is_dropped() {
    for transport in TRANSPORTS {
        with_servants(transport, |mesh, _| {
            let held = mesh.promise(other(mesh, 1)).expect("there is room");
            let third = call(mesh, 2, "ask", vec![Value::Int(1), held.value()]);
            std::thread::sleep(MOMENT);
            assert!(!third.is_done(), "it may be asked for still");
            drop(held);
            let own = mesh.promise(mesh.me().node).expect("there is room");
            let here = mesh.object::<i64>(&own, None);
            assert!(!here.is_done(), "it may be asked for still");
            drop(own);
            for error in [wait(&third).map(drop), wait(&here).map(drop)] {
                let error = error.expect_err("nobody will fill it");
                assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                assert!(error.to_string().contains("dropped by who promised it"), "{error}");
            }
        });
    }
}

#[test]
fn only_who_was_promised_an_object_asks_for_it() {
    together(Expected::ranks(2), Transport::Auto, |mesh| {
        let made = serve(&mesh);
        let world = mesh.world();
        world.barrier().expect("all are there");
        let (me, they) = (mesh.me().node, other(&mesh, 1 - mesh.me().rank.0 as usize));
        let held = mesh.promise(they).expect("there is room");
        // To somebody else than its owner, and by an answer.
        let error = mesh.call(me, "it", "make", held.to_fill()).expect_err("this is not the owner");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        // A name that was drawn by the other node, and one that nobody has drawn.
        let Value::Ref { id, .. } = held.to_fill() else { panic!("a reference") };
        for wrong in [id ^ 1 << 2, id + (1 << 22)] {
            let wrong = Value::List(vec![Value::Ref { node: they, id: wrong }, Value::Int(1)]);
            let error = mesh.call(they, "it", "make", wrong).expect_err("it was not promised");
            assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
        }
        let error = mesh.promise(NodeId(7)).expect_err("no member");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        wait(&mesh.call(they, "it", "make", Value::List(vec![held.to_fill(), Value::Int(9)])).expect("sent"))
            .expect("what failed before has changed nothing");
        drop(held);
        world.barrier().expect("all are there");
        until("all is freed", || made.are_freed());
        mesh.finish().expect("all are well");
    });
}

#[test]
fn a_wait_for_an_object_says_who_is_to_fill_it_and_ends_at_its_deadline() {
    with_servants(Transport::Auto, |mesh, made| {
        let held = mesh.promise(mesh.me().node).expect("there is room");
        let error = held.get::<i64>().expect_err("it is not there");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        let error = wait(&mesh.object::<i64>(&held, Some(MOMENT))).expect_err("it is not there in time");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        assert!(error.to_string().contains("rank-0 to send the call that fills it"), "{error}");
        let cancelled = mesh.object::<i64>(&held, None);
        cancelled.cancel();
        assert_eq!(wait(&cancelled).expect_err("cancelled").kind(), ErrorKind::Cancelled);
        let called = call(mesh, 0, "hold", vec![held.to_fill()]);
        until("the handler has begun", || !made.requests.lock().expect("nobody panics").is_empty());
        let work = mesh.object::<i64>(&held, None);
        let waiting = work.clone();
        let thread = std::thread::spawn(move || waiting.wait());
        let said = |text: &str| mesh.node().waits().iter().any(|wait| wait.to_string().contains(text));
        until("the wait is noted", || said("object 1, promised by rank-0, has been waiting for call"));
        assert!(said("of rank-0 (hold) to fill it"), "{:?}", mesh.node().waits());
        let request = made.requests.lock().expect("nobody panics").pop().expect("it has come");
        // Answered before it is filled.
        let promises = request.promises.clone();
        request.reply.value(());
        wait(&called).expect("answered");
        assert!(!work.is_done());
        made.objects.lock().expect("nobody panics").clear();
        promises.fulfil(&held.value(), Arc::new(5i64)).expect("it is open");
        let error = promises.fulfil(&held.value(), Arc::new(6i64)).expect_err("twice");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        assert_eq!(*thread.join().expect("no panic").expect("it is filled"), 5);
        assert_eq!(*held.get::<i64>().expect("it is there"), 5);
        let error = wait(&mesh.object::<String>(&held, None)).expect_err("another type");
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    });
}
