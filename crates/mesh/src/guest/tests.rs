//! Peers that know the secret and break the rules between a host and its guests.

use super::face::{Guest, GuestConfig, begin};
use super::{ATTACH, DOOR, Invitation};
use crate::call::{Callers, Lane, Request, Service};
use crate::endpoints::{ENGINE, REFERENCES, REQUESTS};
use crate::engine::Message as Word;
use crate::mesh::Mesh;
use crate::reference::Word as ReferenceWord;
use crate::{Call, Config, Expected};
use sheave_base::config::{Endpoint, Role, Transport};
use sheave_base::secret::Resolved;
use sheave_base::{Epoch, Error, ErrorKind, NodeId, Secret, Tag};
use sheave_net::{Envelope, Outgoing};
use sheave_wire::{Value, codec, to_control};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

fn secret() -> Option<Resolved> {
    let secret = Secret::new(b"known to the tests alone").expect("it is long enough");
    Some(Resolved { secret, source: "the test".into() })
}

fn ranks(count: u32) -> Vec<Mesh> {
    let port = sheave_base::port::free().expect("there are thousands");
    let join = |rank| {
        let root = Endpoint { host: "127.0.0.1".into(), port };
        let mut config = Config::new(Role::Rank, Some(rank), Expected::ranks(count), root);
        config.node.secret = secret();
        std::thread::spawn(move || Mesh::join(config).expect("everybody comes"))
    };
    let threads: Vec<_> = (0..count).map(join).collect();
    threads.into_iter().map(|thread| thread.join().expect("it has joined")).collect()
}

fn config(invitation: &Invitation) -> GuestConfig {
    let mut config = GuestConfig::new(invitation.clone());
    config.node.secret = secret();
    config.node.transport = Transport::Shm;
    config
}

fn guest_of(mesh: &Mesh) -> (Guest, NodeId) {
    let invitation = mesh.invite("guest").expect("there is room");
    let guest = Guest::attach(config(&invitation)).expect("it is invited");
    let node = mesh.guest_arrival(guest.name()).and_then(|work| work.wait()).expect("it has come").node;
    (guest, node)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: it never was");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn lost(mesh: &Mesh, node: NodeId) -> Error {
    let end = mesh.guest_end(node).expect("it is known");
    end.wait_timeout(Duration::from_secs(60)).expect_err("it was turned out")
}

impl Guest {
    /// Sends something that no honest guest sends.
    fn send(&self, envelope: Envelope, control: Vec<u8>) {
        let link = self.alone.shared.attached.link_of(self.host_node()).expect("it is attached");
        drop(self.node().isend(link, Outgoing::control(envelope, control)).expect("it is sent"));
    }
}

#[derive(Clone)]
struct Counting(Callers, Arc<AtomicUsize>);

impl Service for Counting {
    fn handle(&self, request: Request) {
        self.1.fetch_add(1, SeqCst);
        request.reply.value(1);
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }

    fn callers(&self, _: &str) -> Callers {
        self.0
    }
}

#[test]
fn a_guest_is_refused_what_is_for_members_before_its_arguments_are_decoded() {
    let mesh = ranks(1).remove(0);
    let handled = Arc::new(AtomicUsize::new(0));
    mesh.serve("it", Counting(Callers::Members, Arc::clone(&handled))).expect("the name is free");
    let (guest, _) = guest_of(&mesh);
    let answered = guest.call("it", "x", Value::None).and_then(|work| work.wait());
    let error = answered.expect_err("it is for members");
    assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
    assert_eq!(error.what(), "\"x\" is for members of the mesh, and the caller is rank-0.guest-1, a guest");
    // No value behind the method: whoever decodes it says something else, to a call that is noted but was not sent.
    let call = guest.call("nothing", "x", Value::None).expect("it is sent");
    drop(call);
    let mut control = codec::encode(&Value::Str("x".into())).expect("a name");
    control.push(0xff);
    guest.send(
        Envelope { correlation: 77, ..Envelope::of(REQUESTS, Tag(0), crate::call::ServiceName::new("it").number()) },
        control,
    );
    // Behind it on the same link.
    let _ = guest.call("it", "x", Value::None).and_then(|work| work.wait());
    assert_eq!(handled.load(SeqCst), 0);
    guest.leave().expect("nothing is in its way");
    mesh.leave().expect("it is alone");
}

#[test]
fn a_member_is_no_guest_and_a_guest_is_no_member() {
    let mut meshes = ranks(2);
    let (other, mesh) = (meshes.remove(1), meshes.remove(0));
    let invitation = mesh.invite("guest").expect("there is room");
    let show = |mesh: &Mesh, to: NodeId, host: NodeId, token: &[u8]| {
        let args = [Value::Str(invitation.name().to_owned()), Value::Bytes(token.to_vec())];
        let args: Vec<Value> = args.into_iter().chain([Value::Int(host.0.cast_signed())]).collect();
        mesh.shared.call(to, DOOR.into(), ATTACH, Call::from(Value::List(args))).and_then(|work| work.wait())
    };
    let (host, token) = (mesh.me().node, invitation.token.expose());
    let error = show(&other, host, host, token).expect_err("it is a member");
    assert_eq!(
        (error.kind(), error.what()),
        (ErrorKind::NotPermitted, "rank-1 is a member of the mesh, and no guest of it")
    );
    let error = show(&mesh, host, host, token).expect_err("it is the host itself");
    assert_eq!(error.what(), "a node cannot be its own guest");
    // A guest that speaks as a member does is turned out, and nobody else is.
    let (guest, node) = guest_of(&mesh);
    let introduction = mesh.me().introduction.clone();
    let words = [
        Word::Introduce(introduction, Expected::ranks(2)),
        Word::Accuse { epoch: Epoch(1), suspect: other.me().node, reason: "a lie".into(), has_ended: true },
    ];
    guest.send(Envelope::of(ENGINE, Tag(0), 0), to_control(&words[1]).expect("it is written"));
    let error = lost(&mesh, node);
    assert_eq!(error.about().map(|peer| &*peer.name), Some(guest.name()), "{error}");
    assert!(error.what().contains("a word of a member"), "{error}");
    let (guest, node) = guest_of(&mesh);
    guest.send(Envelope::of(ENGINE, Tag(0), 0), to_control(&words[0]).expect("it is written"));
    assert!(lost(&mesh, node).what().contains("a word of a member"));
    assert_eq!((mesh.epoch(), mesh.deaths()), (Epoch(1), Vec::new()));
    assert!(mesh.guests().is_empty(), "{:?}", mesh.guests());
    let passes = [&mesh, &other].map(|mesh| mesh.world().begin_barrier(None));
    passes.iter().for_each(|pass| pass.wait().expect("both are members"));
    let ends = [mesh, other].map(|mesh| std::thread::spawn(move || mesh.finish()));
    ends.into_iter().for_each(|end| end.join().expect("no panic").expect("both finish"));
}

#[test]
fn an_invitation_is_good_at_the_host_that_it_names_alone() {
    let mesh = ranks(1).remove(0);
    let invitation = mesh.invite("guest").expect("there is room");
    let alone = begin(&invitation, config(&invitation).node).expect("a node");
    let shared = &alone.shared;
    let link = shared.node.connect(&invitation.host, Instant::now() + Duration::from_secs(60)).expect("it listens");
    let host = shared.node.link(link).expect("it stands").peer().clone();
    shared.attached.attach_host(host, link, Role::Rank, shared.end_pair(invitation.host()));
    let show = |name: &str, host: NodeId| {
        let token = Value::Bytes(invitation.token.expose().to_vec());
        let args = vec![Value::Str(name.to_owned()), token, Value::Int(host.0.cast_signed())];
        let call = Call::from(Value::List(args));
        shared.call(invitation.host(), DOOR.into(), ATTACH, call).and_then(|work| work.wait())
    };
    let error = show(invitation.name(), NodeId(7)).expect_err("it names another host");
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert!(error.what().contains("one of node 7, not of this one"), "{error}");
    let error = show("rank-0.guest-9", invitation.host()).expect_err("it is called otherwise");
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    show(invitation.name(), invitation.host()).expect("it is invited");
    let error = show(invitation.name(), invitation.host()).expect_err("it is attached");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    alone.leave().expect("nothing is in its way");
    mesh.leave().expect("it is alone");
}

#[test]
fn a_guest_counts_nothing_for_third_nodes() {
    let mut meshes = ranks(2);
    let (other, mesh) = (meshes.remove(1), meshes.remove(0));
    mesh.serve("it", Counting(Callers::Guests, Arc::default())).expect("the name is free");
    let third = other.me().node;
    // A request with a reference that the guest cannot hold: the host says to nobody that it holds it.
    let (guest, node) = guest_of(&mesh);
    let mut control = codec::encode(&Value::Str("x".into())).expect("a name");
    control.extend(codec::encode(&Value::Ref { node: third, id: 1 }).expect("a value"));
    guest.send(
        Envelope { correlation: 77, ..Envelope::of(REQUESTS, Tag(1), crate::call::ServiceName::new("it").number()) },
        control,
    );
    guest.call("it", "x", Value::None).and_then(|work| work.wait()).expect("it is heard behind that");
    assert_eq!(mesh.shared.references.addressees(), Vec::<NodeId>::new(), "it wants to tell them something");
    // A word that asks for a count: the guest is turned out.
    let words = vec![ReferenceWord::Count { id: 1, giver: third, times: 1 }];
    guest.send(Envelope::of(REFERENCES, Tag(0), 0), to_control(&words).expect("it is written"));
    let error = lost(&mesh, node);
    assert!(error.what().contains("is not for node"), "{error}");
    assert_eq!(mesh.epoch(), Epoch(1));
    let ends = [mesh, other].map(|mesh| std::thread::spawn(move || mesh.finish()));
    ends.into_iter().for_each(|end| end.join().expect("no panic").expect("both finish"));
}

#[test]
fn a_guest_has_one_link() {
    let mesh = ranks(1).remove(0);
    mesh.serve("it", Counting(Callers::Guests, Arc::default())).expect("the name is free");
    let (guest, _) = guest_of(&mesh);
    let address = mesh.invite("guest").expect("there is room").host;
    let second = guest.node().connect(&address, Instant::now() + Duration::from_secs(10));
    if let Ok(second) = second {
        until("it is closed", || guest.node().link(second).is_err());
    }
    until("one is left", || mesh.node().links().len() == 1 && guest.node().links().len() == 1);
    guest.call("it", "x", Value::None).and_then(|work| work.wait()).expect("the first one stands");
    assert_eq!(mesh.guests().len(), 1);
    guest.leave().expect("nothing is in its way");
    mesh.leave().expect("it is alone");
}

#[test]
fn what_is_known_of_guests_that_are_gone_is_bounded() {
    use super::attached::{Attached, digest_of};
    use sheave_base::work::pair;
    use sheave_base::{LinkId, Peer, limits};
    let attached = Attached::default();
    let mut forgotten = 0;
    for number in 1..=1000_u32 {
        let draw = |name: String| Ok((name, digest_of(b"token")));
        let name = attached.invite(|number| format!("g-{number}"), |_| false, draw, pair("arrival"), false);
        let peer = Peer::named(name.expect("there is room")).node(NodeId(number.into()));
        let arrival =
            attached.admit((peer, LinkId(number)), b"token", pair("end"), pair("ready")).expect("it is invited");
        drop(arrival);
        let node = NodeId(number.into());
        let error = attached.ended(node, LinkId(number), &Error::new(ErrorKind::PeerLost, "it died"));
        let departed = attached.departs(node, &error.expect("it is the first to say so")).expect("it was there");
        forgotten += usize::from(departed.forgotten.is_some());
        assert_eq!(attached.loss(node).map(|error| error.kind()), Some(ErrorKind::PeerLost));
    }
    assert_eq!(forgotten, 1000 - limits::GUESTS_MAX);
    assert!(!attached.has(NodeId(1)) && attached.has(NodeId(1000)));
    assert!(attached.guests().is_empty() && attached.links().is_empty());
}
