//! Hosts and their guests, as nodes of one process with real links between them.

use crate::common;
use crate::common::{attach, guest_config, host, refused, secret, together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Epoch, Error, ErrorKind, NodeId, Rank, limits};
use sheave_mesh::{
    Answer, AttachedGuest, Call, Callers, Expected, Guest, GuestConfig, Invitation, Lane, Mesh, Ref, Request, Service,
};
use sheave_net::{Neighbourhood, Parts};
use sheave_tensor::{Dtype, Mode, Tensor};
use sheave_wire::Value;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

/// Answers with the method and keeps what it hears of guests.
#[derive(Clone)]
struct Desk {
    callers: Callers,
    lane: Lane,
    handled: Arc<AtomicUsize>,
    kept: Arc<Mutex<Vec<Request>>>,
    news: Arc<Mutex<Vec<String>>>,
}

impl Desk {
    fn of(callers: Callers, lane: Lane) -> Self {
        let (handled, kept, news) = Default::default();
        Self { callers, lane, handled, kept, news }
    }

    fn handled(&self) -> usize {
        self.handled.load(SeqCst)
    }

    fn news(&self) -> Vec<String> {
        self.news.lock().expect("nobody panics").clone()
    }

    fn say(&self, text: String) {
        self.news.lock().expect("nobody panics").push(text);
    }
}

impl Service for Desk {
    fn handle(&self, request: Request) {
        self.handled.fetch_add(1, SeqCst);
        match request.method.as_str() {
            "keep" => self.kept.lock().expect("nobody panics").push(request),
            "panic" => panic!("a handler of a test"),
            "give-back" => {
                let refs = request.refs.iter().map(Ref::value).collect();
                request.reply.value(Value::List(refs));
            }
            method => request.reply.value(method.to_owned()),
        }
    }

    fn lane(&self) -> Lane {
        self.lane
    }

    fn callers(&self, _: &str) -> Callers {
        self.callers
    }

    fn guest_attached(&self, guest: &AttachedGuest) {
        self.say(format!("{} has come", guest.name));
    }

    fn guest_lost(&self, guest: &AttachedGuest, error: &Error) {
        self.say(format!("{} is gone after {}: {}", guest.name, self.handled(), error.what()));
    }
}

fn done(called: sheave_base::Result<sheave_base::Work<Answer>>) -> sheave_base::Result<Answer> {
    called.and_then(|work| wait(&work))
}

fn call_each_other(mesh: &Mesh, guest: &Guest, known: &AttachedGuest) {
    let lane = Lane::default();
    mesh.serve("host", Desk::of(Callers::MembersAndGuests, lane)).expect("the name is free");
    guest.serve("guest", Desk::of(Callers::Members, lane)).expect("the name is free");
    assert_eq!((known.name.as_str(), known.pid), ("rank-0.guest-1", std::process::id()));
    assert_eq!((guest.name(), guest.host().name.as_str()), ("rank-0.guest-1", "rank-0"));
    assert_eq!((guest.host().rank, guest.host().node), (Some(0), Some(mesh.me().node)));
    assert_eq!(mesh.guests(), std::slice::from_ref(known));
    for round in 0..200 {
        let (up, down) = (format!("up-{round}"), format!("down-{round}"));
        assert_eq!(done(guest.call("host", &up, Value::None)).expect("it answers").value, Value::Str(up));
        let answer = done(mesh.call(known.node, "guest", &down, Value::None));
        assert_eq!(answer.expect("it answers").value, Value::Str(down));
    }
    assert!(guest.is_attached());
    guest.leave().expect("nothing is in its way");
    wait(&mesh.guest_end(known.node).expect("it is known")).expect("it has left in order");
    assert!(mesh.guests().is_empty() && !guest.is_attached());
    let (kind, text) = refused(done(mesh.call(known.node, "guest", "late", Value::None)));
    assert_eq!(kind, ErrorKind::PeerLost, "{text}");
    assert!(text.contains("the guest has left") && text.contains("rank-0.guest-1 (host "), "{text}");
    assert_eq!(mesh.epoch(), Epoch(1));
    mesh.serve_no_more("host");
    mesh.leave().expect("it is alone");
}

#[test]
fn a_host_and_its_guest_call_each_other() {
    for transport in TRANSPORTS {
        let mesh = host(transport);
        let (guest, known) = attach(&mesh, transport);
        call_each_other(&mesh, &guest, &known);
    }
}

#[test]
fn a_host_and_its_guest_call_each_other_within_a_process() {
    let neighbourhood = Some(Neighbourhood::default());
    let mut config =
        common::config(sheave_mesh::Role::Rank, Some(0), Expected::ranks(1), common::free_port(), Transport::Auto);
    config.node.neighbourhood = neighbourhood.clone();
    let mesh = Mesh::join(config).expect("nobody else is needed");
    let invitation = mesh.invite("guest").expect("there is room");
    let mut config = guest_config(&invitation, Transport::Auto);
    config.node.neighbourhood = neighbourhood;
    let guest = Guest::attach(config).expect("it is invited");
    let known = mesh.guests().remove(0);
    call_each_other(&mesh, &guest, &known);
}

#[test]
fn a_method_says_whether_guests_may_call_it() {
    let mesh = host(Transport::Shm);
    let (guest, known) = attach(&mesh, Transport::Shm);
    let callers = [
        (Callers::Members, true, false),
        (Callers::Workers, true, false),
        (Callers::Servers, false, false),
        (Callers::Coordinator, true, false),
        (Callers::Guests, false, true),
        (Callers::MembersAndGuests, true, true),
    ];
    for (callers, member, is_guest) in callers {
        mesh.serve("it", Desk::of(callers, Lane::default())).expect("the name is free");
        for (called, may, who) in [
            (mesh.call(mesh.me().node, "it", "x", Value::None), member, "rank-0, a rank"),
            (guest.call("it", "x", Value::None), is_guest, "rank-0.guest-1, a guest"),
        ] {
            match done(called) {
                Ok(_) => assert!(may, "{callers}: {who}"),
                Err(error) => {
                    assert_eq!((error.kind(), may), (ErrorKind::NotPermitted, false), "{callers}: {error}");
                    assert_eq!(error.what(), format!("\"x\" is for {callers}, and the caller is {who}"));
                }
            }
        }
        mesh.serve_no_more("it");
    }
    // At the guest its host counts as the member that it is.
    for (callers, may) in [(Callers::Members, true), (Callers::Workers, true), (Callers::Servers, false)] {
        guest.serve("it", Desk::of(callers, Lane::default())).expect("the name is free");
        let called = done(mesh.call(known.node, "it", "x", Value::None));
        assert_eq!(called.is_ok(), may, "{callers}: {called:?}");
        if let Err(error) = called {
            assert!(error.what().ends_with("the caller is rank-0, the host of this guest"), "{error}");
        }
        guest.serve_no_more("it");
    }
    guest.leave().expect("nothing is in its way");
    mesh.leave().expect("it is alone");
}

#[test]
fn who_shows_no_good_invitation_is_refused_with_the_reason() {
    let (mesh, other) = (host(Transport::Shm), host(Transport::Shm));
    let invitation = mesh.invite("guest").expect("there is room");
    let shown = |invitation: &Invitation, change: &dyn Fn(&mut GuestConfig)| {
        let mut config = guest_config(invitation, Transport::Shm);
        change(&mut config);
        refused(Guest::attach(config))
    };
    let edited = |from: &str, to: &str| -> Invitation {
        let text = invitation.to_text();
        assert!(text.contains(from), "{from}");
        text.replace(from, to).parse().expect("it reads well")
    };
    let (kind, text) = shown(&invitation, &|config| config.node.secret = secret("known to somebody else"));
    assert_eq!(kind, ErrorKind::Unauthenticated, "{text}");
    assert!(text.starts_with("attach: ") && text.contains("secret"), "{text}");
    let token = invitation.to_text()[..64].to_owned();
    let (kind, text) = shown(&edited(&token, &"5".repeat(64)), &|_| {});
    assert_eq!(kind, ErrorKind::Unauthenticated, "{text}");
    assert!(text.contains("the token is not that of the invitation of rank-0.guest-1"), "{text}");
    let (kind, text) = shown(&edited("#rank-0.guest-1", "#rank-0.guest-2"), &|_| {});
    assert_eq!(kind, ErrorKind::NotPermitted, "{text}");
    // Another host listens where the invitation leads, or another one is named.
    let elsewhere = other.invite("guest").expect("there is room").to_text();
    let place =
        |text: &str| text.split_once('@').and_then(|(_, rest)| rest.split_once('#')).expect("it has one").0.to_owned();
    let (own, others) = (place(&invitation.to_text()), place(&elsewhere));
    let node = |place: &str| place.split("node=").nth(1).expect("it is named")[..16].to_owned();
    let wrong = others.replace(&node(&others), &node(&own));
    let (kind, text) = shown(&edited(&own, &wrong), &|_| {});
    assert_eq!(kind, ErrorKind::Mismatch, "{text}");
    assert!(text.contains("another node listens"), "{text}");
    let (kind, text) = shown(&edited(&own, &others), &|_| {});
    assert_eq!(kind, ErrorKind::Unauthenticated, "the other host has not drawn that token: {text}");
    // None of these has used it up.
    let guest = Guest::attach(guest_config(&invitation, Transport::Shm)).expect("it is invited");
    let (kind, text) = shown(&invitation, &|_| {});
    assert_eq!(kind, ErrorKind::NotPermitted, "{text}");
    assert!(text.contains("no open invitation for rank-0.guest-1") && text.contains("good for one attach"), "{text}");
    guest.leave().expect("nothing is in its way");
    let withdrawn = mesh.invite("guest").expect("there is room");
    let arrival = mesh.guest_arrival(withdrawn.name()).expect("it is invited");
    assert!(mesh.withdraw_invitation(withdrawn.name()) && !mesh.withdraw_invitation(withdrawn.name()));
    assert_eq!(refused(wait(&arrival)).0, ErrorKind::Cancelled);
    assert_eq!(shown(&withdrawn, &|_| {}).0, ErrorKind::NotPermitted);
    // The host has left.
    let late = mesh.invite("guest").expect("there is room");
    let arrival = mesh.guest_arrival(late.name()).expect("it is invited");
    mesh.leave().expect("it is alone");
    assert_eq!(refused(wait(&arrival)).0, ErrorKind::Closed);
    let (kind, text) = shown(&late, &|_| {});
    assert_eq!(kind, ErrorKind::PeerLost, "{text}");
    assert!(text.contains("the host is gone") && text.contains("rank-0"), "{text}");
    assert_eq!(refused(mesh.invite("guest")).0, ErrorKind::Closed);
    other.leave().expect("it is alone");
}

#[test]
fn a_guest_that_leaves_loses_nothing_that_it_sent() {
    const REQUESTS: usize = 1000;
    for transport in TRANSPORTS {
        let mesh = host(transport);
        let desk = Desk::of(Callers::Guests, Lane::Inline);
        mesh.serve("it", desk.clone()).expect("the name is free");
        let (guest, known) = attach(&mesh, transport);
        let calls: Vec<_> = (0..REQUESTS).map(|_| guest.call("it", "x", Value::None).expect("it is sent")).collect();
        guest.leave().expect("the host takes all");
        drop(calls);
        wait(&mesh.guest_end(known.node).expect("it is known")).expect("it has left in order");
        let wanted = [
            "rank-0.guest-1 has come".to_owned(),
            format!("rank-0.guest-1 is gone after {REQUESTS}: the guest has left"),
        ];
        assert_eq!(desk.news(), wanted, "{transport:?}");
        mesh.leave().expect("it is alone");
    }
}

#[test]
fn a_guest_that_fails_or_is_dropped_says_why() {
    let mesh = host(Transport::Shm);
    let (guest, known) = attach(&mesh, Transport::Shm);
    let kept = Desk::of(Callers::Members, Lane::Inline);
    guest.serve("it", kept.clone()).expect("the name is free");
    let pending = mesh.call(known.node, "it", "keep", Value::None).expect("it is sent");
    until("it is kept", || kept.handled() == 1);
    guest.fail("the disk is full");
    let (kind, text) = refused(wait(&pending));
    assert_eq!(kind, ErrorKind::PeerLost, "{text}");
    assert!(text.contains("it failed: the disk is full") && text.contains("rank-0.guest-1 (host "), "{text}");
    assert!(refused(wait(&mesh.guest_end(known.node).expect("it is known"))).1.contains("the disk is full"));
    let (guest, known) = attach(&mesh, Transport::Shm);
    drop(guest);
    let (kind, text) = refused(wait(&mesh.guest_end(known.node).expect("it is known")));
    assert_eq!(kind, ErrorKind::PeerLost, "{text}");
    assert!(text.contains("it failed: it was dropped without `leave`"), "{text}");
    mesh.leave().expect("it is alone");
}

#[test]
fn a_guest_hears_whether_its_host_has_left_or_failed() {
    for transport in TRANSPORTS {
        for failure in [None, Some("the disk is full")] {
            let mesh = host(transport);
            let desk = Desk::of(Callers::Guests, Lane::Inline);
            mesh.serve("it", desk.clone()).expect("the name is free");
            let (guest, _) = attach(&mesh, transport);
            let pending = guest.call("it", "keep", Value::None).expect("it is sent");
            until("it is kept", || desk.handled() == 1);
            let waiting = guest.clone();
            let waiting = std::thread::spawn(move || waiting.until_gone());
            match failure {
                None => mesh.leave().expect("it is alone"),
                Some(reason) => mesh.fail(reason),
            }
            let waited = waiting.join().expect("no panic");
            let what =
                failure.map_or("the host of this guest has left".to_owned(), |text| format!("it failed: {text}"));
            assert_eq!(waited.is_ok(), failure.is_none(), "{waited:?}");
            for (kind, text) in [refused(wait(&pending)), refused(done(guest.call("it", "late", Value::None)))] {
                assert_eq!(kind, ErrorKind::PeerLost, "{text}");
                assert!(text.contains(&what) && text.contains("rank-0 (rank 0"), "{transport:?}: {text}");
            }
            assert!(!guest.is_attached());
            guest.leave().expect("there is nobody to wait for");
        }
    }
}

#[test]
fn references_are_counted_both_ways_and_freed_with_their_holder() {
    for (transport, is_failure) in [(Transport::Shm, false), (Transport::Tcp, true)] {
        let mesh = host(transport);
        let (up, down) = (Desk::of(Callers::Guests, Lane::Inline), Desk::of(Callers::Members, Lane::Inline));
        mesh.serve("it", up.clone()).expect("the name is free");
        let (guest, known) = attach(&mesh, transport);
        guest.serve("it", down.clone()).expect("the name is free");
        let (ours, theirs) = (Arc::new(1u64), Arc::new(2u64));
        let freed = |object: &Weak<u64>| object.strong_count() == 0;
        let (weak_ours, weak_theirs) = (Arc::downgrade(&ours), Arc::downgrade(&theirs));
        let reference = mesh.export(ours).expect("there is room");
        let kept_down = mesh.call(known.node, "it", "keep", reference.value()).expect("it is sent");
        until("the guest holds it", || down.handled() == 1);
        drop(reference);
        let reference = guest.export(theirs).expect("there is room");
        let kept_up = guest.call("it", "keep", reference.value()).expect("it is sent");
        until("the host holds it", || up.handled() == 1);
        drop(reference);
        // Back to its owner, who has the object itself.
        let held = up.kept.lock().expect("nobody panics").first().expect("it is kept").refs[0].clone();
        let answer = done(mesh.call(known.node, "it", "give-back", held.value())).expect("it answers");
        assert_eq!((answer.refs.as_slice(), answer.refs[0].owner()), (&[held.clone()][..], known.node));
        drop(answer);
        assert_eq!((weak_ours.strong_count() > 0, weak_theirs.strong_count() > 0), (true, true));
        if is_failure {
            guest.fail("a test");
        } else {
            guest.leave().expect("nothing is in its way");
        }
        until("the host has freed it", || freed(&weak_ours));
        until("the guest has freed it", || freed(&weak_theirs));
        let (kind, text) = refused(held.get::<u64>());
        assert_eq!(kind, ErrorKind::PeerLost, "{text}");
        assert!(text.contains("rank-0.guest-1"), "{text}");
        drop((kept_down, kept_up));
        mesh.leave().expect("it is alone");
    }
}

#[test]
fn a_released_reference_is_freed_while_both_live() {
    let mesh = host(Transport::Shm);
    let (guest, known) = attach(&mesh, Transport::Shm);
    let desk = Desk::of(Callers::Members, Lane::Inline);
    guest.serve("it", desk.clone()).expect("the name is free");
    let object = Arc::new(1u64);
    let weak = Arc::downgrade(&object);
    let reference = mesh.export(object).expect("there is room");
    let kept = mesh.call(known.node, "it", "keep", reference.value()).expect("it is sent");
    until("the guest holds it", || desk.handled() == 1);
    drop(reference);
    assert_eq!(weak.strong_count(), 1);
    desk.kept.lock().expect("nobody panics").clear();
    until("it is freed", || weak.strong_count() == 0);
    drop(kept);
    guest.leave().expect("nothing is in its way");
    mesh.leave().expect("it is alone");
}

#[test]
fn references_to_third_nodes_are_not_passed_to_guests_nor_those_of_guests_to_others() {
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        let desk = Desk::of(Callers::MembersAndGuests, Lane::Inline);
        mesh.serve("it", desk.clone()).expect("the name is free");
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank == Rank(1) {
            let reference = mesh.export(Arc::new(1u64)).expect("there is room");
            let to = mesh.members()[0].node;
            let kept = mesh.call(to, "it", "keep", reference.value()).expect("it is sent");
            mesh.world().barrier().expect("both are there");
            drop(kept);
        } else {
            until("it is kept", || desk.handled() == 1);
            let third = desk.kept.lock().expect("nobody panics")[0].refs[0].clone();
            let (guest, known) = attach(&mesh, Transport::Shm);
            guest.serve("it", Desk::of(Callers::Members, Lane::Inline)).expect("the name is free");
            // In a call.
            let (kind, text) = refused(mesh.call(known.node, "it", "x", third.value()));
            assert_eq!(kind, ErrorKind::InvalidArgument, "{text}");
            assert!(text.contains("an object of rank-1 cannot be passed to rank-0.guest-1"), "{text}");
            // In an answer.
            let answered = third.clone();
            let give = move |request: Request| request.reply.ok(answered.value(), Parts::default());
            mesh.serve("giver", Giver(give)).expect("the name is free");
            let (kind, text) = refused(done(guest.call("giver", "give", Value::None)));
            assert_eq!(kind, ErrorKind::InvalidArgument, "{text}");
            assert!(text.contains("an object of rank-1 cannot be passed to rank-0.guest-1"), "{text}");
            // The other way.
            let own = guest.export(Arc::new(2u64)).expect("there is room");
            let kept = guest.call("it", "keep", own.value()).expect("it is sent");
            until("it is kept", || desk.handled() == 2);
            let of_guest = desk.kept.lock().expect("nobody panics")[1].refs[0].clone();
            let (kind, text) = refused(mesh.call(mesh.members()[1].node, "it", "x", of_guest.value()));
            assert_eq!(kind, ErrorKind::InvalidArgument, "{text}");
            assert!(text.contains("an object of rank-0.guest-1 cannot be passed to rank-1"), "{text}");
            drop(kept);
            guest.leave().expect("nothing is in its way");
            mesh.world().barrier().expect("both are there");
        }
        mesh.finish().expect("both finish");
    });
}

struct Giver<F>(F);

impl<F: Fn(Request) + Send + Sync + 'static> Service for Giver<F> {
    fn handle(&self, request: Request) {
        (self.0)(request);
    }

    fn callers(&self, _: &str) -> Callers {
        Callers::Guests
    }
}

/// Handlers that begin and do not answer: only the word that so many have begun lets the next ones come, and both ends
/// must be of one mind when it is due.
#[test]
fn windows_between_a_host_and_its_guest_have_one_size_at_both_ends() {
    const CALLS: usize = 1000;
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank == Rank(0) {
            let (up, down) = (Desk::of(Callers::Guests, Lane::Inline), Desk::of(Callers::Members, Lane::Inline));
            mesh.serve("it", up.clone()).expect("the name is free");
            let (guest, known) = attach(&mesh, Transport::Shm);
            guest.serve("it", down.clone()).expect("the name is free");
            let sent: Vec<_> = (0..CALLS)
                .flat_map(|_| [guest.call("it", "keep", Value::None), mesh.call(known.node, "it", "keep", Value::None)])
                .map(|called| called.expect("it is sent or waits for room"))
                .collect();
            until("all have begun", || up.handled() == CALLS && down.handled() == CALLS);
            drop(sent);
            guest.leave().expect("nothing is in its way");
        }
        mesh.finish().expect("both finish");
    });
}

/// What a handler that has begun holds up waits at its caller: the guest's window is one of many.
#[test]
fn a_guest_that_asks_more_than_its_window_waits_at_home() {
    let mesh = host(Transport::Shm);
    let gate = Arc::new(Mutex::new(()));
    let begun = Arc::new(AtomicUsize::new(0));
    let (closed, counting) = (gate.lock().expect("nobody panics"), Arc::clone(&begun));
    let own = Arc::clone(&gate);
    let wait_there = move |request: Request| {
        counting.fetch_add(1, SeqCst);
        drop(own.lock());
        request.reply.value(1);
    };
    mesh.serve("it", Giver(wait_there)).expect("the name is free");
    let (guest, _) = attach(&mesh, Transport::Shm);
    let calls: Vec<_> = (0..500).map(|_| guest.call("it", "x", Value::None).expect("it waits")).collect();
    until("all permits are taken", || begun.load(SeqCst) == limits::LANE_PERMITS);
    // A call of another service comes through, for none of these holds up the link.
    mesh.serve("other", Desk::of(Callers::Guests, Lane::Inline)).expect("the name is free");
    done(guest.call("other", "x", Value::None)).expect("it comes through");
    let unread = mesh.node().counts().messages_received;
    assert!(unread < 200, "{unread} messages have come: the window lets in {}", limits::WINDOW_REQUESTS_MIN);
    drop(closed);
    calls.iter().for_each(|call| drop(wait(call).expect("it is answered")));
    guest.leave().expect("nothing is in its way");
    mesh.leave().expect("it is alone");
}

#[test]
fn a_host_has_so_many_guests_and_invitations_and_no_more() {
    let mesh = host(Transport::Shm);
    let (guest, _) = attach(&mesh, Transport::Shm);
    let open: Vec<Invitation> = (1..limits::GUESTS_MAX).map(|_| mesh.invite("pool").expect("there is room")).collect();
    let mut names: Vec<&str> = open.iter().map(Invitation::name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), limits::GUESTS_MAX - 1, "each has a name of its own");
    let (kind, text) = refused(mesh.invite("pool"));
    assert_eq!(kind, ErrorKind::LimitExceeded, "{text}");
    assert!(text.contains("1 guests and 255 open invitations"), "{text}");
    assert!(mesh.withdraw_invitation(open[0].name()));
    mesh.invite("pool").expect("there is room again");
    let long = "a".repeat(limits::GUEST_LABEL_BYTES_MAX + 1);
    for label in ["", "Pool", "a b", "a.b", "ä", &long] {
        assert_eq!(refused(mesh.invite(label)).0, ErrorKind::InvalidArgument, "{label}");
    }
    guest.leave().expect("nothing is in its way");
    mesh.leave().expect("it is alone");
}

#[test]
fn no_guest_is_called_as_a_member_is() {
    let mut config =
        common::config(sheave_mesh::Role::Rank, Some(0), Expected::ranks(1), common::free_port(), Transport::Shm);
    config.name = Some("a.b-1".into());
    let mesh = Mesh::join(config).expect("nobody else is needed");
    assert_eq!(mesh.invite("c").expect("there is room").name(), "a.b-1.c-1");
    mesh.leave().expect("it is alone");
    together(Expected::ranks(1), Transport::Shm, |mesh| {
        assert_eq!(mesh.me().introduction.name, "rank-0");
        mesh.finish().expect("it is alone");
    });
    let named = |rank: u32, name: &str, port| {
        let mut config = common::config(sheave_mesh::Role::Rank, Some(rank), Expected::ranks(2), port, Transport::Shm);
        config.name = Some(name.to_owned());
        std::thread::spawn(move || {
            let mesh = Mesh::join(config).expect("both come");
            let name = mesh.invite("c").expect("there is room").name().to_owned();
            mesh.finish().expect("both finish");
            name
        })
    };
    let port = common::free_port();
    let threads = [named(0, "a", port), named(1, "a.c-1", port)];
    let names = threads.map(|thread| thread.join().expect("no panic"));
    assert_eq!(names, ["a.c-2", "a.c-1.c-1"], "the first one is a member's");
}

#[test]
fn a_panic_of_a_handler_of_a_guest_costs_its_call_alone() {
    let mesh = host(Transport::Shm);
    let (guest, known) = attach(&mesh, Transport::Shm);
    for (name, lane) in [("inline", Lane::Inline), ("serial", Lane::Serial), ("concurrent", Lane::default())] {
        guest.serve(name, Desk::of(Callers::Members, lane)).expect("the name is free");
        let (kind, text) = refused(done(mesh.call(known.node, name, "panic", Value::None)));
        assert_eq!(kind, ErrorKind::Remote, "{text}");
        assert!(text.contains("a handler of a test") && text.contains("rank-0.guest-1"), "{text}");
        done(mesh.call(known.node, name, "x", Value::None)).expect("it goes on");
    }
    assert!(guest.is_attached());
    guest.leave().expect("nothing is in its way");
    mesh.leave().expect("it is alone");
}

#[test]
fn a_guest_has_tasks_timers_and_weak_handles() {
    let mesh = host(Transport::Shm);
    let desk = Desk::of(Callers::Guests, Lane::default());
    mesh.serve("it", desk).expect("the name is free");
    let (guest, _) = attach(&mesh, Transport::Shm);
    let weak = guest.downgrade();
    let own = weak.upgrade().expect("it is there");
    let task = guest.spawn("ask", async move { own.call("it", "x", Value::None)?.await }).expect("there is room");
    assert_eq!(wait(&task).expect("it is answered").value, Value::from("x"));
    let (sender, receiver) = std::sync::mpsc::channel();
    let at = guest.runtime().after(Duration::from_millis(1));
    let timer = guest.at(at, move || sender.send(()).expect("it is waited for")).expect("there is room");
    receiver.recv_timeout(common::PATIENCE).expect("it acts");
    drop((timer, task));
    let late = Call { deadline: Some(Duration::from_millis(20)), ..Call::from(Value::None) };
    let (kind, text) = refused(done(guest.call("it", "keep", late)));
    assert_eq!(kind, ErrorKind::DeadlineExceeded, "{text}");
    assert!(text.contains("rank-0 (rank 0"), "{text}");
    guest.leave().expect("nothing is in its way");
    assert!(weak.upgrade().is_some_and(|guest| !guest.is_attached()));
    drop(guest);
    assert!(weak.upgrade().is_none());
    mesh.leave().expect("it is alone");
}

#[test]
fn a_guest_that_is_dismissed_has_all_that_it_was_sent_and_goes_in_order() {
    for transport in TRANSPORTS {
        let mesh = host(transport);
        let (guest, known) = attach(&mesh, transport);
        let heard = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&heard);
        let count = move |request: Request| {
            counted.fetch_add(1, SeqCst);
            request.reply.value(1);
        };
        guest.serve("it", count).expect("the name is free");
        wait(&mesh.call(known.node, "it", "count", Value::None).expect("it is sent")).expect("it serves");
        for _ in 0..10 {
            mesh.cast(known.node, "it", "count", Value::None).expect("there is room");
        }
        let end = mesh.guest_end(known.node).expect("it is there");
        guest.serve("keeper", Desk::of(Callers::MembersAndGuests, Lane::Inline)).expect("the name is free");
        let kept = mesh.call(known.node, "keeper", "keep", Value::None).expect("it is sent");
        mesh.dismiss(known.node).expect("it is there");
        let (kind, error) = refused(wait(&kept));
        assert!(
            kind == ErrorKind::PeerLost && error.contains(&known.name) && error.contains("let the guest go"),
            "{error}"
        );
        guest.until_gone().expect("the host has left it in order");
        wait(&end).expect("it counts as one that has left");
        until("all was heard", || heard.load(SeqCst) == 11);
        assert!(mesh.guests().is_empty() && !guest.is_attached());
        let (kind, error) = refused(mesh.call(known.node, "it", "count", Value::None).and_then(|work| wait(&work)));
        assert_eq!(kind, ErrorKind::PeerLost, "{error}");
        mesh.dismiss(known.node).expect("it is remembered");
        assert_eq!(refused(mesh.dismiss(mesh.me().node)).0, ErrorKind::NotFound);
        guest.leave().expect("there is nobody to wait for");
        mesh.leave().expect("it is alone");
    }
}

#[test]
fn trusted_are_members_the_host_and_guests_of_its_own() {
    let mesh = host(Transport::Shm);
    let (guest, known) = attach(&mesh, Transport::Shm);
    let invitation = mesh.invite_own("guest").expect("there is room");
    let own = Guest::attach(guest_config(&invitation, Transport::Shm)).expect("it is invited");
    let arrival = mesh.guest_arrival(invitation.name()).expect("it is invited");
    let own_node = wait(&arrival).expect("it has come").node;
    assert!(mesh.trusts(mesh.me().node) && mesh.trusts(own_node) && !mesh.trusts(known.node));
    assert!(own.trusts(mesh.me().node) && guest.trusts(mesh.me().node) && !own.trusts(known.node));
    assert!(!mesh.trusts(NodeId(1)));
    assert_eq!(refused(mesh.promise(own_node)).0, ErrorKind::Unsupported);
    let end = mesh.guest_end(own_node).expect("it is there");
    own.leave().expect("nothing is in its way");
    wait(&end).expect("it has left");
    assert!(mesh.trusts(own_node), "what it has sent before may be opened now");
    guest.leave().expect("nothing is in its way");
    mesh.leave().expect("it is alone");
}

/// Of one-way calls that are few nobody says that they have begun, and a large one needs more room than they leave.
#[test]
fn a_large_one_way_call_behind_small_ones_leaves_when_those_have_begun() {
    for transport in TRANSPORTS {
        let mesh = host(transport);
        let (guest, known) = attach(&mesh, transport);
        let heard = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&heard);
        let count = move |request: Request| {
            counted.fetch_add(1 + request.tensors.iter().map(Tensor::len_bytes).sum::<usize>(), SeqCst);
        };
        guest.serve("it", count).expect("the name is free");
        let large = Tensor::private(Dtype::U8, [16 << 20]).expect("there is memory");
        let mut sent = 0;
        for round in 0..5 {
            for _ in 0..round {
                mesh.cast(known.node, "it", "count", Value::None).expect("it is sent");
            }
            for _ in 0..2 {
                let call = Call::of(Value::Tensor(0)).tensor(large.clone(), Mode::Copy);
                mesh.cast(known.node, "it", "count", call).expect("it is sent");
            }
            sent += round + 2 * (1 + (16 << 20));
            until("all was heard", || heard.load(SeqCst) == sent);
        }
        guest.leave().expect("nothing is in its way");
        mesh.leave().expect("it is alone");
    }
}

#[test]
fn who_works_for_a_guest_goes_with_its_host() {
    struct Desk;
    impl Service for Desk {
        fn handle(&self, request: Request) {
            request.reply.value(7);
        }

        fn lane(&self) -> Lane {
            Lane::Own
        }
    }
    for is_orderly in [true, false] {
        let mesh = host(Transport::Shm);
        let (guest, known) = attach(&mesh, Transport::Shm);
        guest.serve("desk", Desk).expect("the name is free");
        let works = guest.mesh().clone();
        let worked = std::thread::spawn(move || works.work("desk", None));
        let called = mesh.call(known.node, "desk", "", Value::None).expect("it is sent");
        assert_eq!(wait(&called).expect("somebody works").value, Value::Int(7));
        if is_orderly {
            mesh.leave().expect("nothing is in its way");
        } else {
            mesh.fail("it was to");
        }
        until("the thread has gone", || worked.is_finished());
        worked.join().expect("it does not panic").expect("it was let go");
        assert_eq!(guest.until_gone().is_ok(), is_orderly);
        let _ = guest.leave();
    }
}
