//! Urgent messages overtake the others, and nothing overtakes them.

use super::content::private;
use super::pairs::{Pair, Pairs};
use super::watch::until;
use sheave_base::clock::SeededEntropy;
use sheave_base::limits::{INPROC_BYTES_MAX, OUTBOUND_MESSAGES_MAX, OUTBOUND_URGENT_BYTES_MAX};
use sheave_base::{ErrorKind, LinkId, Tag};
use sheave_net::{Admission, Arrival, Endpoint, Envelope, Ground, Liveness, Medium, Message, Node, Outgoing, Part};
use sheave_tensor::{Mode, Tensor};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const DATA: u8 = 8;
const URGENT: u8 = 9;

/// What was heard: whether it was urgent, which it was, and how many bytes it had.
type Heard = (bool, u64, usize);

/// Keeps what it hears.
#[derive(Default)]
struct Ear {
    heard: Mutex<Vec<Heard>>,
    /// Messages of data that found no room.
    refused: AtomicUsize,
    is_full: AtomicBool,
    is_full_of_urgent: AtomicBool,
    /// Whoever brings data is held here, with the link.
    is_held: AtomicBool,
    holds: AtomicBool,
    /// The link has said of a message that it is what it is not.
    misnamed: AtomicBool,
}

impl Ear {
    fn at(node: &Node) -> Arc<Self> {
        let ear = Arc::new(Self::default());
        let endpoint = Arc::clone(&ear) as Arc<dyn Endpoint>;
        assert!(node.register(DATA, &endpoint) && node.register(URGENT, &endpoint));
        ear
    }

    fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }

    fn heard_urgent(&self) -> Vec<u64> {
        self.heard().into_iter().filter(|(is_urgent, ..)| *is_urgent).map(|(_, number, _)| number).collect()
    }

    /// Those of each sort are in order, and nothing overtook what was urgent. Numbers are given as messages are sent.
    #[track_caller]
    fn check_order(&self, count: usize) {
        let heard = self.heard();
        assert_eq!(heard.len(), count);
        let (mut urgent, mut data) = (Vec::new(), Vec::new());
        for (is_urgent, number, _) in &heard {
            if *is_urgent { &mut urgent } else { &mut data }.push(*number);
        }
        assert!(urgent.is_sorted() && data.is_sorted(), "{heard:?}");
        for (at, (is_urgent, number, _)) in heard.iter().enumerate() {
            let overtaken = heard[at..].iter().find(|(later, sent, _)| *later && !is_urgent && sent < number);
            assert_eq!(overtaken, None, "by message {number}");
        }
        assert!(!self.misnamed.load(SeqCst));
    }
}

impl Endpoint for Ear {
    fn admit(&self, _link: LinkId, arrival: &Arrival<'_>) -> Admission {
        let is_urgent = arrival.envelope.endpoint == URGENT;
        self.misnamed.fetch_or(arrival.is_urgent != is_urgent, SeqCst);
        let is_full = if is_urgent { &self.is_full_of_urgent } else { &self.is_full };
        if is_full.load(SeqCst) {
            self.refused.fetch_add(1, SeqCst);
            return Admission::Pause;
        }
        let begun = Instant::now();
        while !is_urgent && self.holds.load(SeqCst) && begun.elapsed() < Duration::from_secs(30) {
            self.is_held.store(true, SeqCst);
            std::thread::yield_now();
        }
        Admission::Land(Ground::default())
    }

    fn take(&self, message: Message) {
        let Envelope { endpoint, tag, .. } = message.envelope;
        let bytes = message.control.len() + message.parts.iter().map(Tensor::len_bytes).sum::<usize>();
        assert!(message.control.iter().zip(0_u64..).all(|(byte, at)| *byte == (at + tag.0) as u8));
        self.heard.lock().unwrap().push((endpoint == URGENT, tag.0, bytes));
    }

    fn is_urgent(&self, number: u8) -> bool {
        number == URGENT
    }
}

fn urgent(number: u64, control_bytes: usize) -> Outgoing {
    let control = (0..control_bytes as u64).map(|at| (at + number) as u8).collect();
    Outgoing::control(Envelope::of(URGENT, Tag(number), 0), control)
}

fn data(number: u64, payload_bytes: usize) -> Outgoing {
    let part = Part::new(private(payload_bytes, number), Mode::Copy);
    Outgoing {
        parts: [part].into_iter().collect(),
        ..Outgoing::control(Envelope::of(DATA, Tag(number), 0), Vec::new())
    }
}

/// A pair, and what is heard at its right end.
fn listening(pairs: &dyn Pairs) -> (Pair, Arc<Ear>, Arc<Ear>) {
    let pair = pairs.pair();
    let (left, right) = (Ear::at(&pair.left), Ear::at(&pair.right));
    (pair, left, right)
}

/// Sends the first message of data, and returns while the receiver's link is held by it.
fn hold(pair: &Pair, ear: &Ear, first: Outgoing) {
    ear.holds.store(true, SeqCst);
    // Of private memory that is not captured, so that its bytes pass through the link where it has more than one
    // process.
    drop(pair.left.isend_borrowed(pair.to_right, first).unwrap());
    until("the receiver is held", || ear.is_held.load(SeqCst));
}

pub(crate) fn f18_urgent_words_overtake_64_mib_of_queued_data(pairs: &dyn Pairs) {
    const COUNT: u64 = 64;
    let (pair, _own, ear) = listening(pairs);
    hold(&pair, &ear, data(0, 1 << 20));
    (1..COUNT).for_each(|number| drop(pair.left.isend(pair.to_right, data(number, 1 << 20)).unwrap()));
    let word = pair.left.isend(pair.to_right, urgent(COUNT, 40)).unwrap();
    // A link that delays it has it soon; one that is full has room when data is taken.
    let _ = word.wait_timeout(Duration::from_millis(300));
    ear.holds.store(false, SeqCst);
    until("all has come", || ear.heard().len() as u64 == COUNT + 1);
    ear.check_order(COUNT as usize + 1);
    // What the medium held already, the kernel's buffers for example, stays before it.
    let before = ear.heard().iter().position(|(is_urgent, ..)| *is_urgent).unwrap();
    assert!(before <= 32, "behind {before} MiB of 64");
}

pub(crate) fn f18_urgent_words_pass_a_stream_that_is_half_sent(pairs: &dyn Pairs) {
    let (pair, _own, ear) = listening(pairs);
    hold(&pair, &ear, data(0, 64 << 20));
    let works: Vec<_> = (1..5).map(|number| pair.left.isend(pair.to_right, urgent(number, 40)).unwrap()).collect();
    // The rest of the stream may take less time than a link that delays them.
    works.iter().for_each(|work| drop(work.wait_timeout(Duration::from_millis(300))));
    ear.holds.store(false, SeqCst);
    until("all has come", || ear.heard().len() == 5);
    works.into_iter().for_each(|work| work.join().unwrap());
    // In one process a tensor is not moved piece by piece.
    if pairs.medium() != Medium::InProcess {
        let heard = ear.heard();
        assert_eq!(heard[4], (false, 0, 64 << 20), "{heard:?}");
    }
    assert_eq!(ear.heard_urgent(), [1, 2, 3, 4]);
}

pub(crate) fn f18_urgent_words_pass_a_paused_message(pairs: &dyn Pairs) {
    const COUNT: u64 = 200;
    let (pair, _own, ear) = listening(pairs);
    ear.is_full.store(true, SeqCst);
    // More than the medium takes, of all sizes.
    let mut lengths = super::content::Lengths::new(18);
    for number in 0..COUNT {
        let length = if number % 5 == 4 { 1 << 20 } else { 1 + lengths.next().unwrap() };
        drop(pair.left.isend(pair.to_right, data(number, length)).unwrap());
    }
    until("the receiver has no room", || ear.refused.load(SeqCst) > 0);
    for number in COUNT..COUNT + 50 {
        drop(pair.left.isend(pair.to_right, urgent(number, 40)).unwrap());
        until("an urgent word comes through", || ear.heard_urgent().last() == Some(&number));
        // Its receiver sleeps in between, as one does that has nothing to do.
        std::thread::sleep(Duration::from_millis(number % 5));
    }
    assert_eq!(ear.heard().len(), 50, "no data came through");
    drop(pair.left.isend(pair.to_right, data(COUNT + 50, 8)).unwrap());
    ear.is_full.store(false, SeqCst);
    pair.right.resume();
    until("all has come", || ear.heard().len() as u64 == COUNT + 51);
    ear.check_order(COUNT as usize + 51);
}

pub(crate) fn f18_urgent_words_of_any_length_arrive_whole_and_in_order(pairs: &dyn Pairs) {
    let lengths = [0, 1, 7, 8, 1000, 1023, 1024, 1025, 2048, 4096, 5000, 65_536, 1 << 20, 3, (1 << 20) + 5];
    let (pair, _own, ear) = listening(pairs);
    for (number, length) in (0..).zip(lengths) {
        drop(pair.left.isend(pair.to_right, urgent(number, length)).unwrap());
    }
    until("all has come", || ear.heard().len() == lengths.len());
    let expected: Vec<Heard> = (0..).zip(lengths).map(|(number, length)| (true, number, length)).collect();
    assert_eq!(ear.heard(), expected);
}

/// Sends so many messages of both sorts, as a seed decides.
fn send_mixture(node: &Node, link: LinkId, count: usize, seed: u64) {
    let mut entropy = SeededEntropy::new(seed);
    let mut lengths = super::content::Lengths::new(seed);
    for number in 0..count as u64 {
        let length = lengths.next().unwrap();
        let message = if entropy.below(3) == 0 { urgent(number, length % 3000) } else { data(number, 1 + length) };
        drop(node.isend(link, message).unwrap());
    }
}

pub(crate) fn f18_urgent_and_other_words_keep_their_orders_both_ways(pairs: &dyn Pairs) {
    let count = pairs.many_messages() / 5;
    let (pair, left, right) = listening(pairs);
    std::thread::scope(|scope| {
        scope.spawn(|| send_mixture(&pair.left, pair.to_right, count, 1));
        scope.spawn(|| send_mixture(&pair.right, pair.to_left, count, 2));
    });
    until("all has come", || left.heard().len() == count && right.heard().len() == count);
    left.check_order(count);
    right.check_order(count);
}

pub(crate) fn f18_nothing_urgent_is_lost_at_an_orderly_end(pairs: &dyn Pairs) {
    let count = pairs.many_messages() / 20;
    let (Pair { left, to_right, right, .. }, _own, ear) = listening(pairs);
    send_mixture(&left, to_right, count, 3);
    left.flush(Duration::from_secs(20)).unwrap();
    left.shut_down_slowly(Duration::from_secs(20));
    until("the link has ended", || right.links().is_empty());
    ear.check_order(count);
}

pub(crate) fn f18_a_flood_of_urgent_words_is_bounded(pairs: &dyn Pairs) {
    /// More than any medium holds on its way.
    const ON_THE_WAY_MAX: usize = 200_000;
    let (pair, _own, ear) = listening(pairs);
    ear.is_full_of_urgent.store(true, SeqCst);
    let (mut sent, mut refusals, begun) = (0, 0, Instant::now());
    // One that is refused at once may find room in a moment, while the medium still takes some.
    while refusals < 100 {
        assert!(sent < OUTBOUND_MESSAGES_MAX + ON_THE_WAY_MAX, "no limit");
        assert!(begun.elapsed() < Duration::from_secs(60), "{sent} in a minute");
        match pair.left.isend(pair.to_right, urgent(sent as u64, 400)) {
            Ok(_) => (sent, refusals) = (sent + 1, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
                refusals += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    assert!(sent >= OUTBOUND_MESSAGES_MAX, "{sent} messages");
    assert_eq!(ear.heard().len(), 0);
    ear.is_full_of_urgent.store(false, SeqCst);
    pair.right.resume();
    until("all has come", || ear.heard().len() == sent);
    ear.check_order(sent);
}

/// A link whose receiver has no room is neither taken for dead nor given up.
pub(crate) fn f18_a_link_without_room_lives_on(pairs: &dyn Pairs) {
    let liveness = Liveness::default();
    // Elsewhere signs of life do not go the way of messages.
    if pairs.medium() != Medium::Tcp {
        return;
    }
    let (pair, _own, ear) = listening(pairs);
    ear.is_full.store(true, SeqCst);
    (0..40).for_each(|number| drop(pair.left.isend(pair.to_right, data(number, 1 << 20)).unwrap()));
    let begun = Instant::now();
    while begun.elapsed() < liveness.timeout + 2 * liveness.beat {
        assert!(!pair.left.links().is_empty() && !pair.right.links().is_empty(), "after {:?}", begun.elapsed());
        std::thread::sleep(liveness.beat);
    }
    ear.is_full.store(false, SeqCst);
    pair.right.resume();
    until("all has come", || ear.heard().len() == 40);
    ear.check_order(40);
}

/// Long urgent words are bounded in bytes before they are in number.
pub(crate) fn f15_urgent_words_are_bounded_in_bytes(pairs: &dyn Pairs) {
    const LONG: usize = 1 << 20;
    let (pair, _own, ear) = listening(pairs);
    ear.is_full_of_urgent.store(true, SeqCst);
    let mut sent_bytes = 0;
    let full = loop {
        match pair.left.isend(pair.to_right, urgent(1, LONG)) {
            Ok(_) => sent_bytes += LONG as u64,
            Err(error) => break error,
        }
        // What else there may be are those on their way, as many as a queue in one process holds at most.
        assert!(sent_bytes <= OUTBOUND_URGENT_BYTES_MAX + INPROC_BYTES_MAX + (64 << 20), "no limit");
    };
    assert_eq!(full.kind(), ErrorKind::LimitExceeded, "{full}");
    assert!(full.what().contains("bytes"), "{full}");
    assert!(sent_bytes >= OUTBOUND_URGENT_BYTES_MAX, "{sent_bytes} bytes");
}
