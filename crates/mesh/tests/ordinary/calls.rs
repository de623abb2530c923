//! Calls between nodes: answers, errors, tensors in place, circles, and what ends them.

use crate::common::{PATIENCE, config, free_port, together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, NodeId, Peer, Rank, UserError, limits};
use sheave_mesh::{Answer, Call, Expected, Lane, Mesh, Request, Role, Service};
use sheave_net::Part;
use sheave_tensor::{Dtype, Mode, Tensor};
use sheave_wire::Value;
use smallvec::smallvec;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

fn node_of(mesh: &Mesh, rank: usize) -> NodeId {
    mesh.members()[rank].node
}

/// Two nodes; rank 1 offers `service`, rank 0 does `act` with it, and both leave.
fn with_service(
    transport: Transport,
    service: impl Service + Clone,
    act: impl Fn(&Mesh, NodeId) + Clone + Send + 'static,
) {
    together(Expected::ranks(2), transport, move |mesh| {
        if mesh.me().rank == Rank(1) {
            mesh.serve("it", service.clone()).expect("the name is free");
        }
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank == Rank(0) {
            act(&mesh, node_of(&mesh, 1));
        }
        mesh.finish().expect("all are well");
    });
}

fn call(mesh: &Mesh, to: NodeId, method: &str, call: impl Into<Call>) -> sheave_base::Result<Answer> {
    wait(&mesh.call(to, "it", method, call)?)
}

/// Answers with what it got, tensors doubled.
fn echo(request: Request) {
    let Request { args, tensors, reply, .. } = request;
    let parts = tensors.into_iter().map(|mut tensor| {
        tensor.scale(2.0).expect("floats can be scaled");
        Part::new(tensor, Mode::Move)
    });
    let parts = parts.collect();
    reply.ok(args, parts);
}

#[derive(Clone)]
struct Inline<F>(F);

impl<F: Fn(Request) + Send + Sync + 'static> Service for Inline<F> {
    fn handle(&self, request: Request) {
        (self.0)(request);
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }
}

#[test]
fn values_and_tensors_go_there_and_back() {
    for transport in TRANSPORTS {
        let act = |mesh: &Mesh, to| {
            for elements in [0usize, 1, 7, 1 << 12, 1 << 20] {
                let values: Vec<f32> = (0..elements).map(|at| (at % 1000) as f32).collect();
                let tensor = Tensor::from_slice(&values, [elements as u64]).expect("it fits");
                let args = Value::List(vec![Value::Int(-7), Value::Str("é".into()), Value::Tensor(0)]);
                let request = Call::of(args.clone()).tensor(tensor, Mode::Copy);
                let answer = call(mesh, to, "echo", request).expect("it answers");
                assert_eq!(answer.value, args);
                let doubled: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
                assert_eq!(answer.tensors[0].to_vec::<f32>().expect("floats"), doubled);
            }
        };
        with_service(transport, echo, act);
        with_service(transport, Inline(echo), act);
    }
}

#[test]
fn an_answer_lands_where_the_caller_said() {
    for transport in TRANSPORTS {
        with_service(transport, Inline(echo), |mesh, to| {
            let arena = mesh.node().arena();
            let place = Tensor::empty(arena, Dtype::F32, [1 << 18]).expect("there is room");
            let at = place.ptr();
            let send = |place: Tensor, elements: usize| {
                let tensor = Tensor::from_slice(&vec![1.5f32; elements], [elements as u64]).expect("it fits");
                call(mesh, to, "echo", Call::default().tensor(tensor, Mode::Copy).place(place))
            };
            let answer = send(place.clone(), 1 << 18).expect("it fits");
            assert_eq!(answer.tensors[0].ptr(), at, "nothing was copied to elsewhere");
            assert!(place.to_vec::<f32>().expect("floats").iter().all(|value| *value == 3.0));
            let error = send(place.clone(), 5).expect_err("it does not fit");
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(place.to_vec::<f32>().expect("floats").iter().all(|value| *value == 3.0), "nothing was written");
            // An error comes in place of the tensors.
            let error = call(mesh, to, "echo", Call { places: smallvec![place.clone()], ..Call::default() });
            assert_eq!(error.expect_err("no tensors").kind(), ErrorKind::Mismatch);
            // The place is free again.
            drop(place.write_lease("test").expect("nobody holds it"));
        });
    }
}

#[test]
fn errors_keep_kind_text_and_origin() {
    let service = |request: Request| match request.method.as_str() {
        "fail" => request.reply.error(Error::new(ErrorKind::AlreadyExists, "key 7 exists").hint("take another key")),
        "panic" => panic!("on purpose"),
        "causes" => {
            let user = UserError::new("Bad", "Traceback\n").with_pickled(vec![1, 2, 3]);
            let raised = Error::new(ErrorKind::Remote, "no luck").user(user);
            let elsewhere = Error::new(ErrorKind::Io, "disk").origin(Peer::named("server-9"));
            request.reply.error(Error::new(ErrorKind::Remote, "it failed").cause(raised).cause(elsewhere));
        }
        "forget" => drop(request),
        "" => request.reply.error(Error::new(ErrorKind::Unsupported, "it has no name")),
        method => request.reply.value(method.to_owned()),
    };
    for transport in TRANSPORTS {
        with_service(transport, service, |mesh, to| {
            let error = call(mesh, to, "fail", Value::None).expect_err("it fails");
            assert_eq!((error.kind(), error.what()), (ErrorKind::AlreadyExists, "key 7 exists"));
            assert_eq!(error.advice(), Some("take another key"));
            assert_eq!(error.operation_name(), Some("fail"));
            let origin = error.happened_on().expect("it says where");
            assert_eq!((origin.name.as_str(), origin.rank), ("rank-1", Some(1)));
            assert!(error.after().is_some());
            let error = call(mesh, to, "causes", Value::None).expect_err("it fails");
            let [raised, root] = error.causes().collect::<Vec<_>>()[..] else { panic!("{error}") };
            let user = raised.user_error().expect("it says what was raised");
            assert_eq!((user.class(), user.traceback()), ("Bad", "Traceback\n"));
            assert_eq!((user.pickled(), raised.what(), root.what()), (Some(&[1, 2, 3][..]), "no luck", "disk"));
            // Who names no origin has it of the node that answers.
            assert_eq!(raised.happened_on().map(|peer| &*peer.name), Some("rank-1"));
            assert_eq!(root.happened_on().map(|peer| &*peer.name), Some("server-9"));
            assert!(error.to_string().contains("; caused by: disk"), "{error}");
            for method in ["panic", "forget"] {
                let error = call(mesh, to, method, Value::None).expect_err("nobody answers");
                assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
            }
            let error = call(mesh, to, "", Value::None).expect_err("it fails");
            assert_eq!(error.operation_name(), Some("it"), "the service stands for a method without a name");
            let error = wait(&mesh.call(to, "other", "x", Value::None).expect("it is sent")).expect_err("none such");
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            // The node lives.
            assert_eq!(call(mesh, to, "fine", Value::None).expect("it answers").value, Value::from("fine"));
            let error = mesh.call(NodeId(1), "it", "x", Value::None).expect_err("no member");
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        });
    }
}

#[test]
fn a_node_calls_itself_like_any_other() {
    together(Expected::ranks(1), Transport::Auto, |mesh| {
        mesh.serve("it", echo).expect("the name is free");
        let error = mesh.serve("it", echo).expect_err("it is taken");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        let mut source = Tensor::from_slice(&[1.0f32, 2.0], [2]).expect("it fits");
        let tensors = smallvec![Part::new(source.clone(), Mode::Copy)];
        let work = mesh.call(mesh.me().node, "it", "echo", Call { tensors, ..Call::default() }).expect("it is sent");
        source.as_mut_slice::<f32>().expect("it was captured")[0] = 9.0;
        let answer = wait(&work).expect("it answers");
        assert_eq!(answer.tensors[0].to_vec::<f32>().expect("floats"), [2.0, 4.0]);
        assert_eq!(source.to_vec::<f32>().expect("floats"), [9.0, 2.0]);
        mesh.serve_no_more("it");
        let error = mesh.call(mesh.me().node, "it", "echo", Value::None).expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        mesh.finish().expect("all are well");
    });
}

#[test]
fn nodes_that_call_each_other_in_circles_do_not_starve() {
    // Every handler calls the other node until the depth is reached: deeper than there are permits.
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let own = mesh.clone();
            mesh.serve("it", move |request: Request| {
                let Value::Int(depth) = request.args else { return };
                if depth == 0 {
                    return request.reply.value(0);
                }
                let answer = call(&own, request.from, "down", Value::Int(depth - 1));
                request.reply.send(answer.map(|answer| match answer.value {
                    Value::Int(sum) => (Value::Int(sum + depth), smallvec![]),
                    _ => (Value::None, smallvec![]),
                }));
            })
            .expect("the name is free");
            mesh.world().barrier().expect("both are there");
            let other = node_of(&mesh, 1 - mesh.me().rank.0 as usize);
            let answer = call(&mesh, other, "down", Value::Int(24)).expect("it comes back");
            assert_eq!(answer.value, Value::Int(24 * 25 / 2));
            // The other one's calls may still come this way.
            mesh.world().barrier().expect("both are there");
            mesh.serve_no_more("it");
            mesh.finish().expect("all are well");
        });
    }
}

#[test]
fn thousands_in_flight_are_answered_in_any_order_and_inline_ones_in_theirs() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    let service = Inline(move |request: Request| {
        if let Value::Int(number) = request.args {
            notes.lock().unwrap().push(number);
            request.reply.value(number);
        }
    });
    with_service(Transport::Auto, service, |mesh, to| {
        let works: Vec<_> =
            (0..5000).map(|number| mesh.call(to, "it", "n", Value::Int(number)).expect("it is sent")).collect();
        for (number, work) in (0..).zip(works) {
            assert_eq!(wait(&work).expect("it answers").value, Value::Int(number));
        }
    });
    assert!(seen.lock().unwrap().iter().copied().eq(0..5000));
}

/// An error of a call to rank 1 names it, the method and the time.
fn says_all(mesh: &Mesh, error: &Error, method: &str) {
    assert_eq!(error.about(), Some(&mesh.members()[1].peer()), "{error}");
    assert_eq!(error.operation_name(), Some(method), "{error}");
    assert!(error.after().is_some_and(|after| after > Duration::ZERO), "{error}");
}

#[test]
fn a_deadline_and_a_cancellation_end_a_call_and_its_late_answer_harms_nobody() {
    let held = Arc::new(Mutex::new(Vec::new()));
    let holding = Arc::clone(&held);
    let service = Inline(move |request: Request| match request.method.as_str() {
        "hold" => holding.lock().unwrap().push(request.reply),
        "let go" => {
            holding.lock().unwrap().drain(..).for_each(|reply| reply.value(1));
            request.reply.value(2);
        }
        _ => request.reply.value(3),
    });
    with_service(Transport::Shm, service, |mesh, to| {
        let begun = Instant::now();
        let short = Call::default().deadline(Duration::from_millis(50));
        let error = call(mesh, to, "hold", short).expect_err("nobody answers");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        says_all(mesh, &error, "hold");
        assert!(error.advice().is_some(), "{error}");
        assert!(begun.elapsed() >= Duration::from_millis(50) && begun.elapsed() < Duration::from_secs(20));
        let work = mesh.call(to, "it", "hold", Value::None).expect("it is sent");
        assert!(work.wait_timeout(Duration::from_millis(10)).is_err(), "it is held");
        work.cancel();
        let error = wait(&work).expect_err("cancelled");
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        says_all(mesh, &error, "hold");
        assert_eq!(call(mesh, to, "let go", Value::None).expect("it answers").value, Value::Int(2));
        assert_eq!(call(mesh, to, "more", Value::None).expect("it answers").value, Value::Int(3));
        assert_eq!(mesh.node().unexpected(), (0, 0), "late answers are dropped");
    });
}

#[test]
fn too_many_requests_push_back_and_all_are_answered() {
    // The handlers wait for a sign; requests beyond the limit stay on the link until it comes.
    let go = Arc::new(AtomicU32::new(0));
    let (sign, count) = (Arc::clone(&go), Arc::new(AtomicU32::new(0)));
    let answered = Arc::clone(&count);
    let service = move |request: Request| {
        until("the sign", || sign.load(SeqCst) > 0);
        answered.fetch_add(1, SeqCst);
        request.reply.value(());
    };
    with_service(Transport::Shm, service, move |mesh, to| {
        let mut works = Vec::new();
        let mut refused = 0;
        while refused == 0 && works.len() < 60_000 {
            match mesh.call(to, "it", "n", Value::None) {
                Ok(work) => works.push(work),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
                    refused += 1;
                }
            }
        }
        go.store(1, SeqCst);
        for work in &works {
            wait(work).expect("all that were taken are answered");
        }
        assert!(refused == 1, "{} calls were taken without a limit", works.len());
    });
    assert!(count.load(SeqCst) > 1000);
}

#[test]
fn when_the_callee_leaves_its_callers_are_told() {
    together(Expected::ranks(2), Transport::Auto, |mesh| {
        let held: Arc<Mutex<Vec<Request>>> = Arc::default();
        let holding = Arc::clone(&held);
        mesh.serve("it", Inline(move |request| holding.lock().unwrap().push(request))).expect("the name is free");
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank == Rank(1) {
            until("the call is there", || !held.lock().unwrap().is_empty());
            // The reply lives on, but nobody carries it.
            mesh.leave().expect("all agree");
            return held.lock().unwrap().clear();
        }
        let to = node_of(&mesh, 1);
        let work = mesh.call(to, "it", "hold", Value::None).expect("it is sent");
        let error = work.wait_timeout(PATIENCE).expect_err("it left");
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert_eq!(error.about().map(|peer| peer.name.as_str()), Some("rank-1"));
        let error = mesh.call(to, "it", "again", Value::None).expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert_eq!(error.operation_name(), Some("again"), "F59: {error}");
        mesh.leave().expect("alone");
    });
}

/// Rank 0 does `act` with a call whose answer has begun to land, and is far from done.
fn with_long_answer(act: impl Fn(&Mesh, Tensor, &sheave_base::Work<Answer>) + Clone + Send + 'static) {
    const BYTES: u64 = 256 << 20;
    together(Expected::ranks(2), Transport::Tcp, move |mesh| {
        let long = |request: Request| {
            request.reply.tensor(Tensor::private(Dtype::U8, [BYTES]).expect("there is memory"));
        };
        mesh.serve("it", Inline(long)).expect("the name is free");
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank != Rank(0) {
            // It leaves with bytes unread, which resets the connection; from here that may look like a death.
            let _ = mesh.until_gone(|_| true);
            return;
        }
        let place = Tensor::private(Dtype::U8, [BYTES]).expect("there is memory");
        let call = Call { places: smallvec![place.clone()], ..Call::default() };
        let work = mesh.call(node_of(&mesh, 1), "it", "long", call).expect("it is sent");
        until("the answer lands", || mesh.node().counts().bytes_streamed > 0);
        assert!(!work.is_done(), "most of it is still to come");
        act(&mesh, place, &work);
    });
}

#[test]
fn a_call_whose_answer_lands_ends_after_its_link() {
    with_long_answer(|mesh, place, work| {
        let (node, seen) = (mesh.node().clone(), Arc::new(Mutex::new(None)));
        let note = Arc::clone(&seen);
        work.on_complete(move |_| {
            *note.lock().unwrap() = Some((node.links().len(), place.write_lease("test").is_ok()));
        });
        // The first of two decides alone, so that nothing waits for the rest of the answer.
        mesh.leave().expect("it may");
        let error = wait(work).expect_err("this node has left");
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        let (links, is_free) = seen.lock().unwrap().take().expect("it has ended");
        assert_eq!((links, is_free), (0, true), "nobody writes any more, and its place is free");
    });
}

/// A thread that waits for something else serves calls. Another program that takes a core away disturbs a reading, so
/// it may be taken again.
#[test]
fn a_node_that_serves_one_call_after_the_other_is_not_woken_for_each() {
    const CALLS: u64 = 200;
    with_service(Transport::Shm, Inline(|request: Request| request.reply.value(())), |mesh, to| {
        let rings = || {
            let before = mesh.node().counts().doorbells_rung;
            for _ in 0..CALLS {
                call(mesh, to, "one more", Value::None).expect("it answers");
            }
            mesh.node().counts().doorbells_rung - before
        };
        // Beside strangers who want the cores it sleeps sooner, which is right; soon there is a time without them.
        let mut least = u64::MAX;
        until("a time when it is not woken for each", || {
            least = least.min(rings());
            least < CALLS / 4
        });
    });
}

#[test]
fn so_many_services_are_called_over_one_link_and_one_more_is_refused() {
    with_service(
        Transport::Shm,
        |request: Request| request.reply.value(()),
        |mesh, to| {
            let call = |name: String| mesh.call(to, name, "", Value::None).and_then(|work| wait(&work));
            // The name of each is new, though the other node has none of them.
            for number in 0..limits::SERVICES_MAX - 1 {
                let error = call(format!("service {number}")).expect_err("there is none");
                assert!(error.kind() == ErrorKind::NotFound && error.has_not_begun(), "{error}");
            }
            call("it".to_owned()).expect("there is room for one more");
            let error = call("one too many".to_owned()).expect_err("there is no room");
            let about = error.about().map(|peer| peer.name.as_str());
            assert_eq!((error.kind(), about), (ErrorKind::LimitExceeded, Some("rank-1")), "{error}");
            for _ in 0..1000 {
                call("it".to_owned()).expect("it was called before");
            }
        },
    );
}

/// Each calls all others as soon as it has joined, when they may not know yet that all have met.
#[test]
fn who_has_joined_is_heard_by_those_who_join() {
    let expected = Expected::ranks(3);
    for round in 0..40 {
        let transport = [Transport::Shm, Transport::Tcp][round % 2];
        let port = free_port();
        let joined = (0..3).map(|rank| {
            let config = config(Role::Rank, Some(rank), expected, port, transport);
            let act = move || {
                let hello = |request: Request| request.reply.value("hello");
                let mesh = Mesh::join_serving(config, None, |mesh| mesh.serve("hello", hello)).expect("all come");
                let calls: Vec<_> =
                    mesh.members().iter().map(|other| mesh.call(other.node, "hello", "", Value::None)).collect();
                for call in calls {
                    let answer = wait(&call.expect("it is sent")).expect("it is heard");
                    assert_eq!(answer.value, Value::from("hello"), "round {round}");
                }
                mesh.finish().expect("all are well");
            };
            std::thread::spawn(act)
        });
        let joined: Vec<_> = joined.collect();
        joined.into_iter().for_each(|thread| thread.join().expect("no node panics"));
    }
}
