//! Callers that wait for room: held up while there is none, told when there is some, and why there will be none.

use crate::common::{PATIENCE, attach, host, together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, NodeId, Rank, Work, limits};
use sheave_mesh::{Answer, Callers, Expected, Guest, Lane, Mesh, Request, Service};
use sheave_wire::Value;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

/// What is let in of one of two members.
const WINDOW: usize = limits::REQUESTS_PENDING_MAX / 2;

/// Notes the numbers that it is called with, one at a time, once its gate is open.
#[derive(Clone, Default)]
struct Gate {
    is_open: Arc<AtomicBool>,
    /// So many get through a gate that is not.
    let_through: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<i64>>>,
}

impl Gate {
    fn count(&self) -> usize {
        self.seen.lock().expect("no panic").len()
    }
}

impl Service for Gate {
    fn handle(&self, request: Request) {
        until("the gate is open", || self.is_open.load(SeqCst) || self.count() < self.let_through.load(SeqCst));
        if let Value::Int(number) = request.args {
            self.seen.lock().expect("no panic").push(number);
        }
        request.reply.value(());
    }

    fn lane(&self) -> Lane {
        Lane::Serial
    }

    fn callers(&self, _: &str) -> Callers {
        Callers::MembersAndGuests
    }
}

fn other(mesh: &Mesh) -> NodeId {
    mesh.members()[1 - mesh.me().rank.0 as usize].node
}

fn put(mesh: &Mesh, number: usize) -> Work<Answer> {
    let number = i64::try_from(number).expect("it is small");
    mesh.call(other(mesh), "gate", "put", Value::Int(number)).expect("it is sent")
}

/// As many calls as there is room for.
fn fill(mesh: &Mesh) -> Vec<Work<Answer>> {
    let works: Vec<_> = (0..WINDOW).map(|number| put(mesh, number)).collect();
    assert!(works.iter().all(|work| !work.is_done()));
    works
}

/// Two members: rank 1 has the gate, rank 0 acts.
fn at_the_gate(transport: Transport, act: impl Fn(&Mesh, &Gate) + Clone + Send + 'static) {
    let gate = Gate::default();
    together(Expected::ranks(2), transport, move |mesh| {
        if mesh.me().rank == Rank(1) {
            mesh.serve("gate", gate.clone()).expect("the name is free");
        }
        mesh.world().barrier().expect("both are there");
        if mesh.me().rank == Rank(0) {
            act(&mesh, &gate);
            gate.is_open.store(true, SeqCst);
        }
        mesh.finish().expect("all are well");
    });
}

fn failed<T>(outcome: sheave_base::Result<T>) -> Error {
    match outcome {
        Ok(_) => panic!("it was to fail"),
        Err(error) => error,
    }
}

/// So many calls that the queue of the node would refuse most of them, and none is.
#[test]
fn a_producer_that_waits_for_room_is_held_up_and_never_refused() {
    const CALLS: usize = 2 * limits::OUTBOUND_MESSAGES_MAX + WINDOW;
    for transport in TRANSPORTS {
        at_the_gate(transport, |mesh, gate| {
            let (sent, opener) = (Arc::new(AtomicUsize::new(0)), gate.clone());
            let seen = Arc::clone(&sent);
            let opens = std::thread::spawn(move || {
                until("the window is full", || seen.load(SeqCst) == WINDOW);
                // It stays so while nothing begins.
                std::thread::sleep(Duration::from_millis(50));
                let full = seen.load(SeqCst);
                opener.is_open.store(true, SeqCst);
                full
            });
            let mut last = None;
            for number in 0..CALLS {
                wait(&mesh.room(other(mesh), "gate", None)).expect("there will be room");
                last = Some(put(mesh, number));
                sent.fetch_add(1, SeqCst);
            }
            assert_eq!(opens.join().expect("no panic"), WINDOW, "the producer is not held up");
            wait(&last.expect("there was one")).expect("it is answered");
            assert!(gate.seen.lock().expect("no panic").iter().copied().eq(0..CALLS as i64), "in another order");
        });
    }
}

#[test]
fn a_wait_for_room_ends_at_its_deadline_and_when_it_is_cancelled_and_can_be_interrupted() {
    at_the_gate(Transport::Shm, |mesh, gate| {
        assert!(mesh.room(other(mesh), "gate", None).is_done(), "nothing was sent yet");
        let works = fill(mesh);
        let span = Duration::from_millis(30);
        let begun = Instant::now();
        let late = failed(wait(&mesh.room(other(mesh), "gate", Some(span))));
        assert_eq!((late.kind(), late.operation_name()), (ErrorKind::DeadlineExceeded, Some("room")), "{late}");
        assert!(begun.elapsed() >= span && late.advice().is_some(), "{late}");
        assert!(late.to_string().contains("rank-1") && late.to_string().contains("to begin with 8192"), "{late}");
        let cancelled = mesh.room(other(mesh), "gate", Some(PATIENCE));
        cancelled.cancel();
        assert_eq!(failed(wait(&cancelled)).kind(), ErrorKind::Cancelled);
        let interrupted = mesh.room(other(mesh), "gate", None);
        let mut interrupt = || Err(Error::new(ErrorKind::Interrupted, "a key was pressed"));
        let error = failed(interrupted.wait_until(None, Some(&mut interrupt)));
        assert_eq!((error.kind(), interrupted.is_done()), (ErrorKind::Interrupted, false));
        // Another service of the same node has a window of its own.
        assert!(mesh.room(other(mesh), "another", None).is_done());
        gate.is_open.store(true, SeqCst);
        wait(&interrupted).expect("it goes on all the same");
        works.iter().for_each(|work| drop(wait(work).expect("it is answered")));
    });
}

/// Others that ask nobody keep the queue full; whoever waits for room has its turn nevertheless.
#[test]
fn waits_have_their_turn_behind_the_calls_that_wait_already_and_before_later_ones() {
    at_the_gate(Transport::Shm, |mesh, gate| {
        const BEFORE: usize = 3 * WINDOW / 4;
        let mut works = fill(mesh);
        works.extend((0..BEFORE).map(|number| put(mesh, number)));
        let room = mesh.room(other(mesh), "gate", None);
        let more: Vec<_> = (BEFORE..limits::OUTBOUND_MESSAGES_MAX).map(|number| put(mesh, number)).collect();
        let refused = mesh.call(other(mesh), "gate", "put", Value::Int(0));
        assert_eq!(failed(refused.map(drop)).kind(), ErrorKind::LimitExceeded, "the queue is full");
        let (last, was_first) = (more.last().expect("there are some").clone(), Arc::new(AtomicBool::new(false)));
        let sees = Arc::clone(&was_first);
        room.on_complete(move |outcome| sees.store(outcome.is_ok() && !last.is_done(), SeqCst));
        // There is room for some that wait, not for all of those before it.
        gate.let_through.store(BEFORE, SeqCst);
        wait(&works[BEFORE - 1]).expect("it is answered, and with it they have begun");
        assert!(!room.is_done(), "it was before its turn");
        gate.is_open.store(true, SeqCst);
        wait(&room).expect("its turn comes");
        assert!(was_first.load(SeqCst), "it has waited for those behind it");
        works.iter().chain(&more).for_each(|work| drop(wait(work).expect("it is answered")));
    });
}

/// The limit counts waits whose handles live.
#[test]
fn waits_for_room_are_bounded_and_forgotten_ones_make_way() {
    at_the_gate(Transport::Shm, |mesh, gate| {
        let works = fill(mesh);
        let waits: Vec<_> = (0..limits::ROOM_WAITS_MAX).map(|_| mesh.room(other(mesh), "gate", None)).collect();
        assert!(waits.iter().all(|work| !work.is_done()));
        let refused = failed(wait(&mesh.room(other(mesh), "gate", None)));
        assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused}");
        drop(waits);
        let found = mesh.room(other(mesh), "gate", None);
        assert!(!found.is_done(), "it waits");
        gate.is_open.store(true, SeqCst);
        wait(&found).expect("there is room");
        works.iter().for_each(|work| drop(wait(work).expect("it is answered")));
    });
}

#[test]
fn a_wait_for_room_is_in_the_table_of_waits() {
    at_the_gate(Transport::Tcp, |mesh, gate| {
        let works = fill(mesh);
        put(mesh, 0).cancel();
        let room = mesh.room(other(mesh), "gate", None);
        let waiter = std::thread::spawn(move || wait(&room));
        let found = || mesh.node().waits().into_iter().find(|wait| wait.operation == "room");
        until("it blocks", || found().is_some());
        let text = found().expect("it blocks").to_string();
        let wanted = "room for a call of \"gate\" has been waiting for rank-1 to begin with 8192 requests of ";
        assert!(text.starts_with(wanted) && text.contains(" bytes and with 1 that wait here"), "{text}");
        gate.is_open.store(true, SeqCst);
        waiter.join().expect("no panic").expect("there is room");
        assert!(found().is_none(), "{:?}", found());
        works.iter().for_each(|work| drop(wait(work).expect("it is answered")));
    });
}

/// The bound of the design for everything that a node which is gone is needed for.
const BOUND: Duration = Duration::from_secs(1);

#[test]
fn the_end_of_the_callee_ends_a_wait_for_room_with_its_reason() {
    for transport in TRANSPORTS {
        let (gate, sign) = (Gate::default(), Arc::new(AtomicBool::new(false)));
        together(Expected::ranks(3), transport, move |mesh| {
            if mesh.me().rank == Rank(1) {
                mesh.serve("gate", gate.clone()).expect("the name is free");
            }
            mesh.world().barrier().expect("all are there");
            match mesh.me().rank.0 {
                0 => {
                    let works = fill(&mesh);
                    let room = mesh.room(other(&mesh), "gate", None);
                    assert!(!room.is_done());
                    sign.store(true, SeqCst);
                    let begun = Instant::now();
                    let error = failed(wait(&room));
                    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
                    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
                    assert!(error.to_string().contains("rank-1 failed: the gate fell"), "{error}");
                    drop(works);
                    until("it is agreed", || !mesh.deaths().is_empty());
                    let error = failed(wait(&mesh.room(other(&mesh), "gate", None)));
                    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
                    let error = failed(wait(&mesh.room(NodeId(77), "gate", None)));
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                }
                1 => {
                    until("it is told to fail", || sign.load(SeqCst));
                    mesh.fail("the gate fell");
                    return gate.is_open.store(true, SeqCst);
                }
                _ => until("it is agreed", || !mesh.deaths().is_empty()),
            }
            mesh.leave().expect("the rest agrees");
        });
    }
}

/// One of the two is taken out for it, by whom they can be reached both.
#[test]
fn a_cut_of_the_link_ends_a_wait_for_room() {
    for transport in TRANSPORTS {
        let gate = Gate::default();
        together(Expected::ranks(3), transport, move |mesh| {
            if mesh.me().rank == Rank(1) {
                mesh.serve("gate", gate.clone()).expect("the name is free");
            }
            mesh.world().barrier().expect("all are there");
            if mesh.me().rank == Rank(0) {
                let works = fill(&mesh);
                let room = mesh.room(other(&mesh), "gate", None);
                assert!(!room.is_done());
                let link = mesh.link_to(other(&mesh)).expect("it stands");
                let begun = Instant::now();
                let cut = Error::new(ErrorKind::PeerLost, "the test has cut the link");
                mesh.node().abandon(link, &cut).expect("it stands");
                let error = failed(wait(&room));
                assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
                assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
                assert!(error.to_string().contains("rank-1"), "{error}");
                gate.is_open.store(true, SeqCst);
                drop(works);
            }
            until("one of them is taken out", || !mesh.is_member() || !mesh.deaths().is_empty());
            gate.is_open.store(true, SeqCst);
            // The one that was taken out is no member any more.
            let left = mesh.leave();
            assert!(left.is_ok() || mesh.me().rank != Rank(2), "{left:?}");
        });
    }
}

#[test]
fn leaving_ends_the_waits_of_the_leaver() {
    let gate = Gate::default();
    together(Expected::ranks(2), Transport::Shm, move |mesh| {
        if mesh.me().rank == Rank(1) {
            mesh.serve("gate", gate.clone()).expect("the name is free");
            mesh.world().barrier().expect("both are there");
            mesh.until_gone(|_| true).expect("the other one leaves");
            // What is queued here is refused by the leave.
            until("the other one is through", || gate.is_open.load(SeqCst));
            return mesh.leave().expect("it is alone");
        }
        mesh.world().barrier().expect("both are there");
        let works = fill(&mesh);
        let room = mesh.room(other(&mesh), "gate", None);
        let own = mesh.clone();
        let leaves = std::thread::spawn(move || own.leave());
        let error = failed(wait(&room));
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        leaves.join().expect("no panic").expect("the other one agrees");
        let error = failed(wait(&mesh.room(other(&mesh), "gate", None)));
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        gate.is_open.store(true, SeqCst);
        drop(works);
    });
}

/// As many as a host lets in of a guest.
fn fill_guest(guest: &Guest) -> Vec<Work<Answer>> {
    let call = |number: usize| guest.call("gate", "put", Value::Int(number as i64)).expect("it is sent");
    (0..limits::WINDOW_REQUESTS_MIN).map(call).collect()
}

#[test]
fn guests_wait_for_room_at_their_host_and_hosts_at_their_guests() {
    for transport in TRANSPORTS {
        let mesh = host(transport);
        let (guest, known) = attach(&mesh, transport);
        let (up, down) = (Gate::default(), Gate::default());
        mesh.serve("gate", up.clone()).expect("the name is free");
        guest.serve("gate", down.clone()).expect("the name is free");
        assert!(guest.room("gate", None).is_done());
        let works = fill_guest(&guest);
        let room = guest.room("gate", None);
        assert!(!room.is_done());
        up.is_open.store(true, SeqCst);
        wait(&room).expect("there is room");
        works.iter().for_each(|work| drop(wait(work).expect("it is answered")));
        let call = || mesh.call(known.node, "gate", "put", Value::Int(1)).expect("it is sent");
        let works: Vec<_> = (0..limits::WINDOW_REQUESTS_MIN).map(|_| call()).collect();
        let (room, lost) = (mesh.room(known.node, "gate", None), mesh.room(known.node, "gate", None));
        assert!(!room.is_done());
        guest.fail("it has had enough");
        for work in [room, lost] {
            let error = failed(wait(&work));
            assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
            assert!(error.to_string().contains("it has had enough"), "{error}");
        }
        down.is_open.store(true, SeqCst);
        drop(works);
        until("its end is known", || wait(&mesh.room(known.node, "gate", None)).is_err());
        mesh.serve_no_more("gate");
        mesh.leave().expect("it is alone");
        assert_eq!(up.count(), limits::WINDOW_REQUESTS_MIN);
    }
}
