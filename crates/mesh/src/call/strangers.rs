//! Who is no member, though it knows the secret, is heard by nobody.

use super::name::number_of;
use super::{Callers, Lane, Methods, Request, Service, TypedService};
use crate::endpoints::{ALL, REFERENCES, REQUESTS};
use crate::reference::Word;
use crate::{Config, Expected, Mesh};
use parking_lot::Mutex;
use sheave_base::config::{Endpoint, Role};
use sheave_base::secret::Resolved;
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Secret, Tag};
use sheave_net::{Envelope, Message, Node, NodeConfig, Outgoing};
use sheave_wire::{Value, codec, from_control, to_control};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Counts what it handles.
#[derive(Clone)]
struct Counting(Lane, Callers, Arc<AtomicUsize>);

impl Service for Counting {
    fn handle(&self, request: Request) {
        self.2.fetch_add(1, SeqCst);
        request.reply.value(1);
    }

    fn lane(&self) -> Lane {
        self.0
    }

    fn callers(&self, _: &str) -> Callers {
        self.1
    }
}

/// Takes the answers that a stranger gets.
#[derive(Default)]
struct Ear(Mutex<Vec<Message>>);

impl sheave_net::Endpoint for Ear {
    fn take(&self, message: Message) {
        self.0.lock().push(message);
    }
}

fn alone() -> Mesh {
    let port = sheave_base::port::free().expect("there are thousands");
    let root = Endpoint { host: "127.0.0.1".into(), port };
    let mut config = Config::new(Role::Rank, Some(0), Expected::ranks(1), root);
    let secret = Secret::new(b"known to the tests alone").expect("it is long enough");
    config.node.secret = Some(Resolved { secret, source: "the test".into() });
    Mesh::join(config).expect("nobody else is needed")
}

/// A node with a link to the mesh's, and what it hears.
fn stranger(mesh: &Mesh) -> (Node, LinkId, Arc<Ear>) {
    let node = Node::start(NodeConfig::named("stranger")).expect("a node");
    let ear = Arc::new(Ear::default());
    let endpoint = Arc::clone(&ear) as Arc<dyn sheave_net::Endpoint>;
    assert!(ALL.iter().all(|number| node.register(*number, &endpoint)));
    let (link, _) = sheave_net::inproc::connect(&node, mesh.node()).expect("they are in one process");
    (node, link, ear)
}

fn ask(node: &Node, link: LinkId, service: &str, number: u64) {
    let mut control = Vec::new();
    codec::encode_to(&Value::Str("x".into()), &mut control).expect("a name");
    // No value: whoever decodes it says something else.
    control.push(0xff);
    let envelope = Envelope { correlation: number, ..Envelope::of(REQUESTS, Tag(0), number_of(service)) };
    drop(node.isend(link, Outgoing::control(envelope, control)).expect("it is sent"));
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: it never was");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn f28_who_is_no_member_is_refused_before_its_arguments_are_decoded() {
    let mesh = alone();
    let handled = Arc::new(AtomicUsize::new(0));
    for (name, lane) in [("inline", Lane::Inline), ("serial", Lane::Serial), ("concurrent", Lane::default())] {
        mesh.serve(name, Counting(lane, Callers::Members, Arc::clone(&handled))).expect("the name is free");
    }
    let (node, link, ear) = stranger(&mesh);
    for (number, name) in (1..).zip(["inline", "serial", "concurrent"]) {
        ask(&node, link, name, number);
    }
    until("all are answered", || ear.0.lock().len() == 3);
    for message in ear.0.lock().iter() {
        let error = from_control::<Error>(&message.control[1..]).expect("an error");
        assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
        assert_eq!(error.what(), "\"x\" is for members of the mesh, and the caller is no member of this mesh");
        assert!(error.advice().is_some(), "{error}");
    }
    assert_eq!(handled.load(SeqCst), 0);
    mesh.finish().expect("it is alone");
}

/// Counts what it handles, by number.
#[derive(Default)]
struct Typed(AtomicUsize);

struct Count;

crate::methods! {
    service "typed";
    1, "count": Count[u64] -> u64, Members;
}

impl TypedService for Typed {
    const NAME: &'static str = "typed";

    fn methods(methods: Methods<Self>) -> Methods<Self> {
        methods.on::<Count>(|typed, request| {
            typed.0.fetch_add(1, SeqCst);
            request.reply.ok(&request.args);
        })
    }
}

/// Not only what it says, also how many methods there are is nobody else's business.
#[test]
fn f51_who_is_no_member_is_refused_before_the_arguments_of_a_number_are_decoded() {
    let mesh = alone();
    let typed = Arc::new(Typed::default());
    mesh.serve_typed(Arc::clone(&typed)).expect("the name is free");
    let (node, link, ear) = stranger(&mesh);
    // No arguments, no such method, a name, and references that are not there.
    for (number, tag) in (1..).zip([1 << 32, 7 << 32, 0, 1 << 32 | 1000]) {
        let envelope = Envelope { correlation: number, ..Envelope::of(REQUESTS, Tag(tag), number_of("typed")) };
        drop(node.isend(link, Outgoing::control(envelope, Vec::new())).expect("it is sent"));
    }
    until("all are answered", || ear.0.lock().len() == 4);
    for message in ear.0.lock().iter() {
        let error = from_control::<Error>(&message.control[1..]).expect("an error");
        assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
    }
    assert_eq!(typed.0.load(SeqCst), 0);
    assert_eq!(mesh.ask::<Count>(mesh.me().node, &7).and_then(|work| work.wait()).expect("it is one").value, 7);
    mesh.finish().expect("it is alone");
}

#[test]
fn f28_a_member_is_refused_what_is_for_others() {
    let mesh = alone();
    let handled = Arc::new(AtomicUsize::new(0));
    let callers = [Callers::Members, Callers::Workers, Callers::Servers, Callers::Coordinator];
    for (callers, is_allowed) in callers.into_iter().zip([true, true, false, true]) {
        mesh.serve("it", Counting(Lane::default(), callers, Arc::clone(&handled))).expect("the name is free");
        let called = mesh.call(mesh.me().node, "it", "x", Value::None).and_then(|work| work.wait());
        match called {
            Ok(_) => assert!(is_allowed, "{callers}"),
            Err(error) => {
                assert_eq!((error.kind(), is_allowed), (ErrorKind::NotPermitted, false), "{error}");
                assert_eq!(error.what(), "\"x\" is for servers, and the caller is rank-0, a rank");
            }
        }
        mesh.serve_no_more("it");
    }
    assert_eq!(handled.load(SeqCst), 3);
    mesh.finish().expect("it is alone");
}

#[test]
fn f17_nobody_is_looked_for_because_a_stranger_names_it() {
    let mesh = alone();
    let (node, link, ear) = stranger(&mesh);
    let words: Vec<Word> = (1..1000).map(|id| Word::Count { id: 4 * id, giver: NodeId(1000 + id), times: 1 }).collect();
    let envelope = Envelope::of(REFERENCES, Tag(0), 0);
    let control = to_control(&words).expect("it is written");
    drop(node.isend(link, Outgoing::control(envelope, control)).expect("it is sent"));
    // Behind it on the same link, so what was said before has been heard.
    ask(&node, link, "none", 1);
    until("it is answered", || ear.0.lock().len() == 1);
    assert_eq!(mesh.shared.references.addressees(), Vec::<NodeId>::new(), "it wants to tell them something");
    mesh.finish().expect("it is alone");
}
