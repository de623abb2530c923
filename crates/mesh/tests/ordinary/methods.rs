//! Methods that have numbers: there and back, and what is refused.

use crate::common;
use crate::common::{together, wait};
use serde::de::Error as _;
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, NodeId, Rank};
use sheave_mesh::{CallOptions, Expected, Lane, Mesh, Method, Methods, Ref, TypedReply, TypedRequest, TypedService};
use sheave_net::Part;
use sheave_tensor::{Dtype, Mode, Tensor};
use sheave_wire::{Value, to_control};
use smallvec::smallvec;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

/// Arguments with the shapes that real ones have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Scale {
    by: f32,
    names: Vec<(String, Option<u64>)>,
    note: Value,
}

/// As [`Scale`], for servers alone.
struct ForServers;
struct Hold;
struct LetGo;
struct Fail;

sheave_mesh::methods! {
    service "it";
    1, "scale": Scale[Scale] -> Scale, Members;
    2, "for_servers": ForServers[Scale] -> Scale, Servers;
    3, "hold": Hold[bool] -> u32, Members, runs anyway if |anyway| *anyway;
    4, "let_go": LetGo[()] -> (), Members;
    200, "fail": Fail[String] -> (), Members;
}

/// Bytes as they are, in place of the arguments of another method.
struct Raw(Vec<u8>);

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(self.0.len())?;
        self.0.iter().try_for_each(|byte| tuple.serialize_element(byte))?;
        tuple.end()
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(D::Error::custom("nobody reads it"))
    }
}

/// Lies about the arguments of the methods of the same numbers.
struct RawScale;
struct RawForServers;
/// Lies about the answer.
struct ScaleForText;
/// There is none.
struct Unknown;

sheave_mesh::methods! {
    service "it";
    1, "raw_scale": RawScale[Raw] -> Scale, Members;
    2, "raw_for_servers": RawForServers[Raw] -> Scale, Members;
    1, "scale_for_text": ScaleForText[Scale] -> (String, String), Members;
    7, "unknown": Unknown[()] -> (), Members;
}

struct Nowhere;

sheave_mesh::methods! {
    service "nowhere";
    1, "nothing": Nowhere[()] -> (), Members;
}

struct It {
    lane: Lane,
    handled: AtomicUsize,
    held: Mutex<Vec<TypedReply<u32>>>,
}

impl It {
    fn new(lane: Lane) -> Arc<Self> {
        Arc::new(Self { lane, handled: AtomicUsize::new(0), held: Mutex::default() })
    }

    /// Answers with its arguments, its tensors scaled, and its references.
    fn scale(self: &Arc<Self>, request: TypedRequest<Scale>) {
        self.handled.fetch_add(1, SeqCst);
        let TypedRequest { args, tensors, refs, reply, .. } = request;
        let parts = tensors.into_iter().map(|mut tensor| {
            tensor.scale(args.by.into()).expect("floats can be scaled");
            Part::new(tensor, Mode::Move)
        });
        let parts = parts.collect();
        reply.with(&args, parts, &refs);
    }
}

impl TypedService for It {
    const NAME: &'static str = "it";

    fn methods(methods: Methods<Self>) -> Methods<Self> {
        methods
            .on::<Scale>(Self::scale)
            .on::<ForServers>(|it, request| {
                it.handled.fetch_add(1, SeqCst);
                request.reply.ok(&request.args);
            })
            .on::<Hold>(|it, request| it.held.lock().expect("no panic").push(request.reply))
            .on::<LetGo>(|it, request| {
                it.held.lock().expect("no panic").drain(..).for_each(|reply| reply.ok(&7));
                request.reply.ok(&());
            })
            .on::<Fail>(|_, request| match request.args.as_str() {
                "panic" => panic!("on purpose"),
                "forget" => {}
                what => request.reply.error(Error::new(ErrorKind::AlreadyExists, what.to_owned()).hint("another")),
            })
    }

    fn lane(&self) -> Lane {
        self.lane
    }

    fn awaited(&self, _: NodeId, number: u64) -> Option<String> {
        let held = self.held.lock().expect("no panic");
        held.iter().any(|reply| reply.number() == number).then(|| "a word".to_owned())
    }
}

/// Does `act` with a service of each lane: of another node over each medium, and of this node itself.
fn everywhere(act: impl Fn(&Mesh, NodeId, &Arc<It>) + Copy + Send + 'static) {
    for lane in [Lane::Inline, Lane::Serial, Lane::default()] {
        for transport in TRANSPORTS {
            let it = It::new(lane);
            together(Expected::ranks(2), transport, move |mesh| {
                if mesh.me().rank == Rank(1) {
                    mesh.serve_typed(Arc::clone(&it)).expect("the name is free");
                }
                mesh.world().barrier().expect("both are there");
                if mesh.me().rank == Rank(0) {
                    act(&mesh, mesh.members()[1].node, &it);
                }
                mesh.finish().expect("all are well");
            });
        }
        let it = It::new(lane);
        together(Expected::ranks(1), Transport::Auto, move |mesh| {
            mesh.serve_typed(Arc::clone(&it)).expect("the name is free");
            act(&mesh, mesh.me().node, &it);
            mesh.finish().expect("all are well");
        });
    }
}

fn args() -> Scale {
    let names = vec![("é".to_owned(), Some(u64::MAX)), (String::new(), None)];
    Scale { by: 2.0, names, note: Value::List(vec![Value::Int(-7), Value::Float(0.5)]) }
}

#[test]
fn f51_arguments_tensors_and_references_go_there_and_back() {
    everywhere(|mesh, to, _| {
        let object: Ref = mesh.export(Arc::new(7u32)).expect("there is room");
        for elements in [0usize, 3, 1 << 16] {
            let values: Vec<f32> = (0..elements).map(|at| at as f32).collect();
            let tensor = Tensor::from_slice(&values, [elements as u64]).expect("it fits");
            let place = Tensor::empty(mesh.node().arena(), Dtype::F32, [elements as u64]).expect("there is room");
            let options = CallOptions {
                tensors: smallvec![Part::new(tensor, Mode::Copy)],
                refs: vec![object.clone(), object.clone()],
                places: smallvec![place.clone()],
                ..CallOptions::default()
            };
            let work = mesh.ask_with::<Scale>(to, &args(), options).expect("it is sent");
            let answer = wait(&work).expect("it answers");
            assert_eq!(answer.value, args());
            let doubled: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
            assert_eq!(place.to_vec::<f32>().expect("floats"), doubled);
            assert_eq!(answer.tensors[0].ptr(), place.ptr(), "nothing was copied to elsewhere");
            let found: Vec<u32> = answer.refs.iter().map(|held| *held.get().expect("it is this node's")).collect();
            assert_eq!(found, [7, 7]);
        }
        // A reference that is given away comes back, and then nobody has it.
        let name = object.value();
        drop(object);
        common::until("it is freed", || mesh.hold(&name).is_err());
    });
}

#[test]
fn f51_whoever_may_not_call_a_method_is_refused_before_its_arguments_are_read() {
    everywhere(|mesh, to, it| {
        let refused = |error: Error, method: &str| {
            assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
            assert!(error.what().starts_with("\"for_servers\" is for servers, and the caller is rank-0"), "{error}");
            assert_eq!(error.operation_name(), Some(method));
        };
        let called = mesh.ask::<ForServers>(to, &args()).and_then(|work| wait(&work));
        refused(called.expect_err("it is no server"), "for_servers");
        // What nobody could read says the same.
        let called = mesh.ask::<RawForServers>(to, &Raw(vec![0xff; 40])).and_then(|work| wait(&work));
        refused(called.expect_err("it is no server"), "raw_for_servers");
        assert_eq!(it.handled.load(SeqCst), 0);
    });
}

#[test]
fn f51_damaged_arguments_are_errors_and_no_handler_sees_them() {
    everywhere(|mesh, to, it| {
        let whole = to_control(&args()).expect("it can be written");
        let ask = |bytes: &[u8]| mesh.ask::<RawScale>(to, &Raw(bytes.to_vec())).and_then(|work| wait(&work));
        for length in 0..whole.len() {
            let error = ask(&whole[..length]).expect_err("it is cut off");
            assert_eq!((error.kind(), error.operation_name()), (ErrorKind::Protocol, Some("raw_scale")), "{error}");
        }
        let error = ask(&[&whole[..], &[0]].concat()).expect_err("something follows");
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        for byte in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[byte] = 0xff;
            // Whatever it says now: an answer or an error.
            let _ = ask(&damaged);
        }
        let before = it.handled.load(SeqCst);
        assert_eq!(ask(&whole).expect("it is whole").value, args());
        assert_eq!(it.handled.load(SeqCst), before + 1);
        // An answer of another type than was asked for is one that cannot be read.
        let error = mesh.ask::<ScaleForText>(to, &args()).and_then(|work| wait(&work)).expect_err("another type");
        assert_eq!((error.kind(), error.operation_name()), (ErrorKind::Protocol, Some("scale_for_text")), "{error}");
    });
}

#[test]
fn f59_errors_name_the_service_that_is_not_there_and_the_number_of_a_method() {
    everywhere(|mesh, to, _| {
        let error = mesh.ask::<Nowhere>(to, &()).and_then(|work| wait(&work)).expect_err("no such service");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert_eq!((error.what(), error.operation_name()), ("the node has no service \"nowhere\"", Some("nothing")));
        let error = mesh.call(to, "elsewhere", "x", Value::None).and_then(|work| wait(&work)).expect_err("none");
        assert_eq!((error.what(), error.operation_name()), ("the node has no service \"elsewhere\"", Some("x")));
        let error = mesh.ask::<Unknown>(to, &()).and_then(|work| wait(&work)).expect_err("no such method");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert_eq!((error.what(), error.operation_name()), ("service \"it\" has no method 7", Some("unknown")));
        let error = mesh.call(to, "it", "scale", Value::None).and_then(|work| wait(&work)).expect_err("a name");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.what().contains("\"it\"") && error.operation_name() == Some("scale"), "{error}");
        let error =
            mesh.ask::<Fail>(to, &"key 7 exists".to_owned()).and_then(|work| wait(&work)).expect_err("it fails");
        assert_eq!((error.kind(), error.what()), (ErrorKind::AlreadyExists, "key 7 exists"));
        assert_eq!((error.advice(), error.operation_name()), (Some("another"), Some("fail")));
        for what in ["panic", "forget"] {
            let error = mesh.ask::<Fail>(to, &what.to_owned()).and_then(|work| wait(&work)).expect_err("no answer");
            assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
        }
    });
    // The other way round: a number where methods have names.
    together(Expected::ranks(1), Transport::Auto, |mesh| {
        mesh.serve("it", |request: sheave_mesh::Request| request.reply.value(1)).expect("the name is free");
        let called = mesh.ask::<Scale>(mesh.me().node, &args()).and_then(|work| wait(&work));
        let error = called.expect_err("it has names");
        assert!(error.kind() == ErrorKind::NotFound && error.what().contains("number 1"), "{error}");
        mesh.finish().expect("all are well");
    });
}

#[test]
fn f51_a_call_that_waits_says_for_which_method_and_ends_at_its_deadline() {
    everywhere(|mesh, to, it| {
        let work = mesh.ask::<Hold>(to, &false).expect("it is sent");
        common::until("it is held", || !it.held.lock().expect("no panic").is_empty());
        let awaited = work.awaited().expect("it is known");
        let what = awaited.describe().and_then(|account| account.what).expect("it says what");
        assert!(what.starts_with("call ") && what.ends_with(", it.hold"), "{what}");
        let asked = awaited.ask().expect("the callee knows more");
        assert!(wait(&asked).expect("it says").contains("(a word)"));
        let options = CallOptions { deadline: Some(Duration::from_millis(30)), ..CallOptions::default() };
        let late = mesh.ask_with::<Hold>(to, &false, options).expect("it is sent");
        let error = wait(&late).expect_err("nobody answers");
        assert_eq!((error.kind(), error.operation_name()), (ErrorKind::DeadlineExceeded, Some("hold")), "{error}");
        wait(&mesh.ask::<LetGo>(to, &()).expect("it is sent")).expect("it answers");
        assert_eq!(wait(&work).expect("it answers").value, 7);
    });
}

/// One handler keeps the only mailbox, so what is behind it does not begin.
#[test]
fn f51_a_method_says_whether_it_runs_though_its_caller_has_gone() {
    struct Keep;
    struct Note;
    sheave_mesh::methods! {
        service "keep";
        1, "keep": Keep[()] -> (), Members;
        2, "note": Note[(u32, bool)] -> (), Members, runs anyway if |(_, anyway)| *anyway;
    }

    #[derive(Default)]
    struct Keeper {
        go: AtomicUsize,
        noted: Mutex<Vec<u32>>,
    }

    impl TypedService for Keeper {
        const NAME: &'static str = "keep";

        fn methods(methods: Methods<Self>) -> Methods<Self> {
            methods
                .on::<Keep>(|keeper, request| {
                    common::until("the sign", || keeper.go.load(SeqCst) > 0);
                    request.reply.ok(&());
                })
                .on::<Note>(|keeper, request| {
                    keeper.noted.lock().expect("no panic").push(request.args.0);
                    request.reply.ok(&());
                })
        }

        fn lane(&self) -> Lane {
            Lane::Serial
        }
    }

    assert!(Note::runs_anyway(&(1, true)) && !Note::runs_anyway(&(1, false)) && !Keep::runs_anyway(&()));
    let keeper = Arc::new(Keeper::default());
    together(Expected::ranks(2), Transport::Shm, move |mesh| {
        if mesh.me().rank == Rank(1) {
            mesh.serve_typed(Arc::clone(&keeper)).expect("the name is free");
        }
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank == Rank(0) {
            let to = mesh.members()[1].node;
            let kept = mesh.ask::<Keep>(to, &()).expect("it is sent");
            for note in [(1, false), (2, true)] {
                let work = mesh.ask::<Note>(to, &note).expect("it is sent");
                work.cancel();
                assert_eq!(wait(&work).expect_err("cancelled").kind(), ErrorKind::Cancelled);
            }
            let last = mesh.ask::<Note>(to, &(3, false)).expect("it is sent");
            keeper.go.store(1, SeqCst);
            wait(&kept).and_then(|_| wait(&last)).expect("they answer");
            assert_eq!(*keeper.noted.lock().expect("no panic"), [2, 3]);
        }
        mesh.finish().expect("all are well");
    });
}
