//! Small messages through shared memory, which a blocking receive takes out of the ring itself.

use sheave_base::{ErrorKind, LinkId, Tag};
use sheave_net::{Envelope, Node, NodeConfig, Outgoing, Tensors, WaitPolicy, Wanted, shm};
use sheave_tensor::{Dtype, Mode, Tensor};
use smallvec::{SmallVec, smallvec};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    static REQUESTS: Cell<usize> = const { Cell::new(0) };
}

/// Counts how often a thread asks for memory.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every request goes unchanged to the system's allocator; counting touches one plain cell and never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more, and nobody measures there.
        let _ = REQUESTS.try_with(|requests| requests.set(requests.get() + 1));
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Two nodes and their link. The progress threads keep away as long as somebody receives now and then.
struct Pair {
    one: Node,
    other: Node,
    link: LinkId,
    back: LinkId,
}

fn pair() -> Pair {
    // Spinning whatever the machine, so that the short way is open.
    let wait = Some(WaitPolicy { spin: Duration::from_micros(5), yielding: Duration::from_micros(150) });
    let start = |name: &str| Node::start(NodeConfig { wait, ..NodeConfig::named(name) }).expect("a node");
    let (one, other) = (start("one"), start("other"));
    let (link, back) = shm::connect(&one, &other).expect("a link");
    Pair { one, other, link, back }
}

impl Pair {
    fn send(&self, tag: u64, tensor: &Tensor) {
        let message = Outgoing::tensor(Envelope::data(1, Tag(tag)), tensor.clone(), Mode::Copy);
        self.one.send(self.link, message, Some(soon()), None).expect("sent");
    }

    fn wanted(&self, tag: u64) -> Wanted {
        Wanted { source: Some(self.back), context: 1, tag: Tag(tag) }
    }

    fn receive(&self, tag: u64, places: Tensors) -> sheave_base::Result<sheave_net::Message> {
        self.other.recv(self.wanted(tag), places, Some(soon()), None)
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn number(value: u64) -> Tensor {
    Tensor::from_slice(&[value as i64], [1]).expect("small")
}

fn value(message: &sheave_net::Message) -> u64 {
    message.parts[0].to_vec::<i64>().expect("integers")[0] as u64
}

/// The progress thread leads at first and whenever a thread was kept from running for a while; then a receive goes the
/// long way. In between there are many round trips of the short one.
#[test]
fn a_small_message_needs_no_memory_but_its_place() {
    const HOPS: u64 = 50;
    let pair = pair();
    let (here, place) = (number(7), Tensor::private(Dtype::I64, [1]).expect("small"));
    let until = soon();
    let mut least = usize::MAX;
    while least > 0 && Instant::now() < until {
        let before = pair.other.counts();
        let begun = REQUESTS.get();
        for _ in 0..HOPS {
            pair.send(1, &here);
            let message = pair.receive(1, smallvec![place.clone()]).expect("received");
            assert!(message.parts[0].buffer().is_same(place.buffer()));
        }
        least = least.min(REQUESTS.get() - begun);
        let counts = pair.other.counts() - before;
        assert_eq!((counts.messages_received, counts.bytes_copied), (HOPS, 8 * HOPS));
    }
    assert_eq!(least, 0, "requests of {HOPS} messages");
    assert_eq!(place.to_vec::<i64>().expect("integers"), [7]);
}

/// Whatever mixture of ways the messages take, each tag's arrive in order and nothing is lost.
#[test]
fn both_ways_keep_the_order_of_a_tag() {
    let pair = pair();
    let (mut sent, mut received) = ([0u64; 3], [0u64; 3]);
    let mut posted = Vec::new();
    let mut random = 12345u64;
    for _ in 0..20_000 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let tag = (random >> 33) as usize % 3;
        match (random >> 40) % 8 {
            0..4 if sent[tag] < received[tag] + 20 => {
                pair.send(tag as u64, &number(sent[tag]));
                sent[tag] += 1;
            }
            4..7 if received[tag] < sent[tag] => {
                let message = pair.receive(tag as u64, SmallVec::new()).expect("received");
                assert_eq!(value(&message), received[tag]);
                received[tag] += 1;
            }
            7 if received[tag] < sent[tag] => {
                let work = pair.other.irecv(pair.wanted(tag as u64), SmallVec::new()).expect("posted");
                posted.push((work, received[tag]));
                received[tag] += 1;
            }
            _ => {}
        }
    }
    for (work, expected) in posted {
        assert_eq!(value(&work.join_timeout(Duration::from_secs(60)).expect("received")), expected);
    }
    for tag in 0..3 {
        for expected in received[tag]..sent[tag] {
            assert_eq!(value(&pair.receive(tag as u64, SmallVec::new()).expect("received")), expected);
        }
    }
    assert_eq!(pair.other.unexpected(), (0, 0));
    assert_eq!(pair.other.counts().messages_received, sent.iter().sum::<u64>());
}

/// A place that does not fit is refused on the short way as on the long one, and the link goes on.
#[test]
fn a_place_that_does_not_fit_is_refused() {
    let pair = pair();
    for round in 0..100 {
        let place = match round % 3 {
            0 => Tensor::private(Dtype::F64, [1]),
            1 => Tensor::private(Dtype::I64, [2]),
            _ => Tensor::private(Dtype::I64, [1]),
        };
        let mut places: Tensors = smallvec![place.expect("small")];
        if round % 3 == 2 {
            places.push(number(0));
        }
        pair.send(1, &number(round));
        assert_eq!(pair.receive(1, places).expect_err("it does not fit").kind(), ErrorKind::Mismatch);
        pair.send(1, &number(round));
        assert_eq!(value(&pair.receive(1, SmallVec::new()).expect("received")), round);
    }
}

/// A sender that waits for room goes on when a receiver that takes one message after the other has made some.
#[test]
fn a_full_ring_empties_through_small_receives() {
    const MESSAGES: u64 = 20_000;
    let pair = pair();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..MESSAGES).for_each(|value| pair.send(1, &number(value))));
        for expected in 0..MESSAGES {
            assert_eq!(value(&pair.receive(1, SmallVec::new()).expect("received")), expected);
        }
    });
}

/// What was sent before the end of a link is received, then its end is seen.
#[test]
fn the_end_comes_after_the_last_message() {
    let pair = pair();
    for value in 0..100 {
        pair.send(1, &number(value));
    }
    pair.one.close(pair.link).expect("open");
    for expected in 0..100 {
        assert_eq!(value(&pair.receive(1, SmallVec::new()).expect("received")), expected);
    }
    let error = pair.receive(1, SmallVec::new()).expect_err("it was closed");
    assert!(matches!(error.kind(), ErrorKind::Closed | ErrorKind::PeerLost), "{error}");
}
