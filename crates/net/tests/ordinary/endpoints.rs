//! What endpoints take and hear.

use crate::support::*;
use sheave_base::limits::{ENDPOINTS_MAX, OUTBOUND_MESSAGES_MAX};
use sheave_base::{Error, ErrorKind, LinkId, Peer, Tag};
use sheave_net::{Admission, Arrival, Endpoint, Envelope, Ground, Message, Node, Outgoing, Transport, inproc, shm};
use sheave_tensor::{Mode, Tensor};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What an endpoint has heard, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Made(LinkId),
    Ended(LinkId),
    /// A message: its endpoint, and its tag.
    Word(u8, u64),
    /// A message of a link that it had not heard of.
    Stray(LinkId),
}

/// Keeps what it hears.
#[derive(Default)]
struct Listener {
    heard: Mutex<Vec<Heard>>,
    links: Mutex<HashSet<LinkId>>,
    attended: AtomicUsize,
    is_full: AtomicBool,
    is_bounded: bool,
    is_polled: bool,
    has_moved: AtomicBool,
    /// Counts the polls of another thread, of which some come while this one hears of a link.
    polls: Option<Arc<AtomicUsize>>,
}

impl Listener {
    fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    fn words(&self) -> Vec<(u8, u64)> {
        let word = |heard: Heard| if let Heard::Word(number, tag) = heard { Some((number, tag)) } else { None };
        self.heard().into_iter().filter_map(word).collect()
    }

    fn hear(&self, heard: Heard) {
        self.heard.lock().unwrap().push(heard);
    }

    fn note(&self, link: LinkId) {
        if !self.links.lock().unwrap().contains(&link) {
            self.hear(Heard::Stray(link));
        }
    }
}

impl Endpoint for Listener {
    fn admit(&self, link: LinkId, _arrival: &Arrival<'_>) -> Admission {
        self.note(link);
        if self.is_full.load(SeqCst) { Admission::Pause } else { Admission::Land(Ground::default()) }
    }

    fn take(&self, message: Message) {
        self.note(message.source);
        self.hear(Heard::Word(message.envelope.endpoint, message.envelope.tag.0));
    }

    fn link_made(&self, link: LinkId, _peer: &Peer) {
        if let Some(polls) = &self.polls {
            // For a moment only: the other thread may wait for this one, to tell of the end of another link.
            let (before, until) = (polls.load(SeqCst), Instant::now() + Duration::from_millis(20));
            while polls.load(SeqCst) <= before + 2 && Instant::now() < until {
                std::thread::yield_now();
            }
        }
        self.links.lock().unwrap().insert(link);
        self.hear(Heard::Made(link));
    }

    fn link_ended(&self, link: LinkId, _peer: &Peer, _reason: &Error) {
        self.hear(Heard::Ended(link));
    }

    fn attend(&self) {
        self.attended.fetch_add(1, SeqCst);
    }

    fn is_polled(&self) -> bool {
        self.is_polled
    }

    fn poll(&self) -> bool {
        self.has_moved.swap(false, SeqCst)
    }

    fn bounds_its_messages(&self, _number: u8) -> bool {
        self.is_bounded
    }
}

fn registered(node: &Node, numbers: &[u8], listener: Listener) -> Arc<Listener> {
    let listener = Arc::new(listener);
    let endpoint = listener.clone() as Arc<dyn Endpoint>;
    assert!(numbers.iter().all(|number| node.register(*number, &endpoint)));
    listener
}

fn word(number: u8, tag: u64) -> Outgoing {
    Outgoing::control(Envelope::of(number, Tag(tag), 0), vec![1])
}

fn pair() -> (Node, Node) {
    (Node::start(config("one")).unwrap(), Node::start(config("other")).unwrap())
}

const LAST: u8 = ENDPOINTS_MAX as u8 - 1;

#[test]
fn each_endpoint_takes_the_messages_of_its_numbers() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let (worker, forth, server, back) = linked(transport);
        let first = registered(&server, &[1, 3], Listener::default());
        let last = registered(&server, &[LAST], Listener::default());
        for tag in 0..8 {
            for number in [1, LAST, 3, 2] {
                worker.send(forth, word(number, tag), Some(soon()), None).unwrap();
            }
            // In its shortest form, where the link has one.
            let tensor = Tensor::from_slice(&[1.0f32], [1]).unwrap();
            let message = Outgoing::tensor(Envelope::of(LAST, Tag(100 + tag), 0), tensor, Mode::Copy);
            worker.send(forth, message, Some(soon()), None).unwrap();
            worker.send(forth, copied(tag, &bytes_tensor(8, 1)), Some(soon()), None).unwrap();
            receive(&server, back, tag, Default::default()).unwrap();
        }
        eventually("all words", || first.words().len() == 16 && last.words().len() == 16);
        assert_eq!(first.words(), (0..8).flat_map(|tag| [(1, tag), (3, tag)]).collect::<Vec<_>>());
        assert_eq!(last.words(), (0..8).flat_map(|tag| [(LAST, tag), (LAST, 100 + tag)]).collect::<Vec<_>>());
        for listener in [&first, &last] {
            let made = listener.heard().into_iter().filter(|heard| *heard == Heard::Made(back)).count();
            assert_eq!(made, 1, "a link is told once, however many numbers the endpoint has");
            assert!(!listener.heard().iter().any(|heard| matches!(heard, Heard::Stray(_))));
            assert!(listener.attended.load(SeqCst) > 0);
        }
        assert_eq!(server.unexpected(), (0, 0), "what is for an endpoint is no one's receive");
    }
}

#[test]
fn a_number_belongs_to_one_endpoint_at_a_time() {
    let (one, other) = pair();
    let (link, back) = inproc::connect(&one, &other).unwrap();
    let next = Arc::new(Listener::default()) as Arc<dyn Endpoint>;
    assert!(!other.register(0, &next) && !other.register(LAST + 1, &next) && !other.register(u8::MAX, &next));
    for round in 0..3 {
        let listener = registered(&other, &[5, 6], Listener::default());
        assert!(!other.register(5, &next), "it is taken");
        one.send(link, word(5, round), Some(soon()), None).unwrap();
        eventually("the word", || listener.words() == [(5, round)]);
        other.unregister(&(listener.clone() as Arc<dyn Endpoint>));
        // Thrown away: nobody is there, and nobody is expected.
        one.send(link, word(6, 99), Some(soon()), None).unwrap();
        one.send(link, copied(round, &bytes_tensor(8, 1)), Some(soon()), None).unwrap();
        receive(&other, back, round, Default::default()).unwrap();
        assert_eq!(listener.heard().len(), 2, "{:?}", listener.heard());
    }
    // One that is dropped is gone too, as soon as no thread attends to it any more.
    drop(registered(&other, &[5], Listener::default()));
    eventually("its number is free", || other.register(5, &next));
}

#[test]
fn messages_for_one_that_is_expected_stay_on_their_link() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let (worker, forth, server, back) = linked(transport);
        server.expect(4);
        worker.send(forth, copied(1, &bytes_tensor(8, 1)), Some(soon()), None).unwrap();
        worker.send(forth, word(4, 7), Some(soon()), None).unwrap();
        worker.send(forth, copied(2, &bytes_tensor(8, 2)), Some(soon()), None).unwrap();
        receive(&server, back, 1, Default::default()).unwrap();
        let behind = server.irecv(wanted(back, 2), Default::default()).unwrap();
        assert!(!behind.is_done_soon());
        let listener = registered(&server, &[4], Listener::default());
        eventually("what lay behind it", || behind.is_done());
        assert_eq!(listener.heard(), [Heard::Made(back), Heard::Word(4, 7)]);
    }
}

trait Soon {
    /// Whether it is done after a moment.
    fn is_done_soon(&self) -> bool;
}

impl<T> Soon for sheave_base::Work<T> {
    fn is_done_soon(&self) -> bool {
        self.wait_until(Some(Instant::now() + Duration::from_millis(50)), None).unwrap()
    }
}

/// The other side speaks at once, and a thread polls all the time, also while the endpoint hears of the link.
#[test]
fn no_message_comes_from_a_link_that_was_not_told() {
    for connect in [inproc::connect, shm::connect] {
        let (one, other) = pair();
        let polls = Arc::new(AtomicUsize::new(0));
        let listener = registered(&other, &[1], Listener { polls: Some(polls.clone()), ..Listener::default() });
        let late = Arc::new(Listener::default());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    let _ = other.pair::<()>("test", None).1.wait_until(Some(Instant::now()), None);
                    polls.fetch_add(1, SeqCst);
                }
            });
            let _over = Over(&is_over);
            let speaker = Arc::new(Speaker { node: one.clone() }) as Arc<dyn Endpoint>;
            assert!(one.register(2, &speaker));
            for round in 0..100_u64 {
                let back =
                    if round % 2 == 0 { connect(&other, &one).unwrap().0 } else { connect(&one, &other).unwrap().1 };
                eventually("its words", || listener.words().len() as u64 == (round + 1) * 2);
                if round == 50 {
                    assert!(other.register(7, &(late.clone() as Arc<dyn Endpoint>)));
                }
                if round % 4 < 2 {
                    other.close(back).unwrap();
                }
            }
        });
        for listener in [&listener, &late] {
            let heard = listener.heard();
            assert!(!heard.iter().any(|heard| matches!(heard, Heard::Stray(_))), "{heard:?}");
            let made: Vec<_> = heard.iter().filter(|heard| matches!(heard, Heard::Made(_))).collect();
            let distinct: HashSet<_> = made.iter().map(|heard| format!("{heard:?}")).collect();
            assert_eq!(made.len(), distinct.len(), "a link was told twice");
        }
        assert_eq!(listener.heard().iter().filter(|heard| matches!(heard, Heard::Made(_))).count(), 100);
        let late = late.heard();
        for ended in late.iter().filter_map(|heard| if let Heard::Ended(link) = heard { Some(*link) } else { None }) {
            assert!(late.contains(&Heard::Made(ended)), "the end of {ended} was told, and not that it stood");
        }
    }
}

/// Says at its end that it is over, so that no thread goes on for ever after a failure.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Says two words on each link as soon as it hears of it, before the link is polled on this side.
struct Speaker {
    node: Node,
}

impl Endpoint for Speaker {
    fn link_made(&self, link: LinkId, _peer: &Peer) {
        for tag in 0..2 {
            drop(self.node.isend(link, word(1, tag)).unwrap());
        }
    }
}

/// Words of an owner that bounds them find room where others do not.
#[test]
fn an_owner_that_bounds_its_messages_has_room_for_them() {
    let (one, other) = pair();
    let (link, _) = inproc::connect(&one, &other).unwrap();
    let full = || Listener { is_full: AtomicBool::new(true), ..Listener::default() };
    let taker = registered(&other, &[1, 2], full());
    let _plain = registered(&one, &[2], Listener::default());
    let _bounded = registered(&one, &[1], Listener { is_bounded: true, ..Listener::default() });
    let fill = |number: u8| -> usize {
        let mut count = 0;
        loop {
            match one.isend(link, word(number, 0)) {
                Ok(work) => drop(work),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
                    return count;
                }
            }
            count += 1;
            assert!(count <= 4 * OUTBOUND_MESSAGES_MAX, "no limit");
        }
    };
    let plain = fill(2);
    assert!(one.isend(link, copied(1, &bytes_tensor(8, 1))).is_err(), "nor for matched receives");
    let more = fill(1);
    assert!(more >= OUTBOUND_MESSAGES_MAX, "{more} more");
    taker.is_full.store(false, SeqCst);
    other.resume();
    eventually("all of it", || taker.words().len() == plain + more);
}

#[test]
fn one_endpoint_of_a_node_is_polled() {
    let (one, other) = pair();
    inproc::connect(&one, &other).unwrap();
    let polled = registered(&one, &[1], Listener { is_polled: true, ..Listener::default() });
    let second = Arc::new(Listener { is_polled: true, ..Listener::default() }) as Arc<dyn Endpoint>;
    assert!(!one.register(2, &second));
    polled.has_moved.store(true, SeqCst);
    one.endpoint_waits();
    assert!(!polled.has_moved.load(SeqCst), "nobody has polled it");
    polled.has_moved.store(true, SeqCst);
    let never = one.accept();
    assert!(!never.is_done_soon());
    assert!(!polled.has_moved.load(SeqCst), "a wait for everything has not polled it");
    let attended = polled.attended.load(SeqCst);
    one.remind(1);
    assert!(!never.is_done_soon());
    assert!(polled.attended.load(SeqCst) > attended, "a reminder was forgotten");
}

/// An endpoint with something to do at each eighth look, for which nobody rings.
#[derive(Default)]
struct Stepping {
    looks: AtomicUsize,
}

impl Stepping {
    const LOOKS_PER_STEP: usize = 8;
    const LOOKS: usize = 100 * Self::LOOKS_PER_STEP;

    fn is_over(&self) -> bool {
        self.looks.load(SeqCst) >= Self::LOOKS
    }
}

impl Endpoint for Stepping {
    fn is_polled(&self) -> bool {
        true
    }

    fn poll(&self) -> bool {
        let look = self.looks.fetch_add(1, SeqCst);
        look.is_multiple_of(Self::LOOKS_PER_STEP) && look < Self::LOOKS
    }
}

/// The progress thread goes on polling where nobody waits, for as long as a wait would.
#[test]
fn steps_that_follow_soon_are_made_without_a_ring_for_each() {
    let (one, _other) = pair();
    let stepping = Arc::new(Stepping::default());
    let endpoint = stepping.clone() as Arc<dyn Endpoint>;
    assert!(one.register(1, &endpoint));
    let looks = || stepping.looks.load(SeqCst);
    let mut rings = 0;
    while !stepping.is_over() {
        let before = looks();
        one.endpoint_works();
        rings += 1;
        eventually("a look for the ring", || looks() > before);
        // The next ring is for who sleeps: looks that go on by themselves come to their end first.
        let mut last = (before, Instant::now());
        eventually("the end of these looks", || {
            let seen = looks();
            if seen != last.0 {
                last = (seen, Instant::now());
            }
            last.1.elapsed() > Duration::from_millis(5)
        });
    }
    // A row of steps ends where others have the core for longer than a wait polls.
    assert!(rings <= 40, "{rings} rings for 100 steps");
}
