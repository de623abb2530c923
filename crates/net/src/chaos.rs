//! The chaos link: wraps a link of any medium and makes it slow, jerky, or broken, as a seed decides.
//!
//! What happens to a message is drawn once per message and direction, in the order of the messages, so that a seed and
//! a sequence of messages give one schedule; urgent messages have one of their own, so that they overtake the others
//! here too. Nothing is reordered otherwise and nothing is lost unless the link ends: a link is ordered and reliable by
//! contract.
//!
//! * **Outbound**, a message waits here, in order, until it is due; then the wrapped link takes it. Few are handed over
//!   ahead of what the wrapped link has room for, so that the bound on waiting messages stays the usual one. No message
//!   goes while an urgent one waits that was sent before it.
//! * **Inbound**, a message that is not due is refused with [`Verdict::Pause`] and stays with the wrapped link.
//! * **Waking**: nobody rings when a message becomes due. [`Link::next_due`] says when that is; whoever sleeps for the
//!   node sleeps no longer. The node's own doorbell rings whenever a new point in time appears, after it can be read,
//!   so
//!   a sleeper that looked before finds the bell.
//! * **Cut**: after a number of messages in both directions together this side ends with `PeerLost` and the wrapped
//!   link is closed without what still waits here.
//! * **Partition**: in one direction nothing moves any more and no sign of life passes, and nobody is told.

use crate::doorbell::Doorbell;
use crate::link::{Arrival, Handover, Hold, Landing, Link, Medium, Polled, Readiness, Sink, Verdict};
use crate::message::{Message, Outgoing};
use crate::node::Inner;
use crate::outbox::{Outbox, SendDriver, Waiting};
use parking_lot::Mutex;
use sheave_base::clock::{Entropy, SeededEntropy};
use sheave_base::limits::OUTBOUND_URGENT_BYTES_MAX;
use sheave_base::park::Bell;
use sheave_base::{Error, ErrorKind, LinkId, Peer, Result, Work};
use sheave_tensor::Tensor;
use sheave_wire::TensorSpec;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Messages that the wrapped link may hold without having sent them. Enough to keep it busy; more wait here.
const AHEAD_MESSAGES_MAX: usize = 64;

/// Bytes of such messages; one more may come on top. The wrapped link has room for that.
const AHEAD_BYTES_MAX: u64 = OUTBOUND_URGENT_BYTES_MAX / 4;

/// How often a link that hears nothing is looked at for what it still has to send.
const DEAF_POLL: Duration = Duration::from_millis(5);

/// Which way a message goes, seen from the node whose link is wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From this node to the peer.
    Outbound,
    /// From the peer to this node.
    Inbound,
}

/// What happens to the messages of one direction. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Longest delay of a message; each gets its own, and none overtakes another.
    pub delay_max: Duration,
    /// Of a thousand messages, how many stall everything behind them.
    pub stall_per_mille: u32,
    /// For how long.
    pub stall: Duration,
    /// Most tensor bytes per second.
    pub throttle_bytes_per_s: Option<NonZeroU64>,
}

/// What happens to a link. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChaosConfig {
    /// Decides everything that is left open.
    pub seed: u64,
    /// What happens on the way out.
    pub outbound: Trouble,
    /// What happens on the way in.
    pub inbound: Trouble,
    /// Take one to three messages per poll, whatever the poller asks for.
    pub short_polls: bool,
    /// End the link after so many messages in both directions together.
    pub cut_after_messages: Option<u64>,
    /// After so many messages in that direction let nothing through in that direction, silently.
    pub partition_after_messages: Option<(Direction, u64)>,
    /// Told when the first link is cut or begins to swallow messages: what the time to an error counts from.
    pub began: Option<&'static OnceLock<Instant>>,
}

impl ChaosConfig {
    /// A cut or a partition begins now, unless one has begun before.
    fn begins(&self) {
        if let Some(began) = self.began {
            let _ = began.set(Instant::now());
        }
    }
}

/// When the messages of one direction are due.
#[derive(Debug)]
struct Schedule {
    entropy: SeededEntropy,
    trouble: Trouble,
    last_due: Option<Instant>,
}

impl Schedule {
    fn new(seed: u64, trouble: Trouble) -> Self {
        Self { entropy: SeededEntropy::new(seed), trouble, last_due: None }
    }

    /// Delay and stall of the next message. Draws the same number of times for every message.
    fn draw(&mut self) -> (Duration, Duration) {
        let longest = u64::try_from(self.trouble.delay_max.as_nanos()).unwrap_or(u64::MAX);
        let delay = Duration::from_nanos(self.entropy.below(longest.saturating_add(1)));
        let stalls = self.entropy.below(1000) < u64::from(self.trouble.stall_per_mille);
        (delay, if stalls { self.trouble.stall } else { Duration::ZERO })
    }

    /// When the next message, which is here `now`, may go on. Never before the one ahead of it.
    fn due(&mut self, now: Instant, payload_bytes: u64) -> Instant {
        let (delay, stall) = self.draw();
        let width = self.trouble.throttle_bytes_per_s.map_or(Duration::ZERO, |rate| {
            Duration::from_nanos(
                u64::try_from(u128::from(payload_bytes) * 1_000_000_000 / u128::from(rate.get())).unwrap_or(u64::MAX),
            )
        });
        let free = self.last_due.map_or(now, |last| last.max(now));
        let due = (now + delay).max(free + width) + stall;
        self.last_due = Some(due);
        due
    }
}

struct Outbound {
    /// Of messages that are not urgent, and of those that are.
    lanes: [Leaving; 2],
    held: Outbox,
    sent_messages: u64,
}

/// Messages of one sort on their way out.
struct Leaving {
    schedule: Schedule,
    /// One per held message.
    dues: VecDeque<Instant>,
}

impl Outbound {
    /// When the next message is due, and whether it is urgent. Others wait for those that are.
    fn next_due(&self) -> Option<(Instant, bool)> {
        let [data, urgent] = self.lanes.each_ref().map(|lane| lane.dues.front().copied());
        urgent.map(|due| (due, true)).or_else(|| data.map(|due| (due, false)))
    }
}

struct Inbound {
    /// Of messages that are not urgent, and of those that are.
    lanes: [Arriving; 2],
    taken_messages: u64,
    deaf_since: Option<Instant>,
    polled: Instant,
}

/// What the wrapped link holds of one sort.
#[derive(Default)]
struct Ahead {
    messages: AtomicUsize,
    bytes: AtomicU64,
}

/// Messages of one sort on their way in.
struct Arriving {
    schedule: Schedule,
    /// The message at the head, once it was decided when it is due.
    decided: Option<(u64, Instant)>,
    /// Until when the head is held back by this link.
    held_until: Option<Instant>,
}

impl Inbound {
    fn held_until(&self) -> Option<Instant> {
        self.lanes.iter().filter_map(|lane| lane.held_until).min()
    }

    fn is_held(&self, is_urgent: bool, now: Instant) -> bool {
        self.deaf_since.is_some() || self.lanes[usize::from(is_urgent)].held_until.is_some_and(|due| due > now)
    }
}

/// A link with trouble. See the module.
pub(crate) struct ChaosLink {
    inner: Arc<dyn Link>,
    config: ChaosConfig,
    bell: Arc<Doorbell>,
    driver: SendDriver,
    /// Held by whoever hands messages over, so that they go in order. Never waited for: whoever does not get it leaves
    /// the message in the queue, and works complete while nobody's lock but this is held.
    turn: Mutex<()>,
    outbound: Mutex<Outbound>,
    inbound: Mutex<Inbound>,
    /// By lane, those that the wrapped link holds.
    ahead: [Arc<Ahead>; 2],
    messages: AtomicU64,
    cut: OnceLock<Error>,
}

/// Wraps `link` if the node asks for chaos.
pub(crate) fn wrap(link: Arc<dyn Link>, node: &Inner, id: LinkId) -> Arc<dyn Link> {
    match node.config.chaos {
        None => link,
        Some(config) => {
            let bell = Arc::clone(&node.progress.doorbell);
            let driver = SendDriver::new(node, id);
            Arc::new(ChaosLink::new(link, config, id, bell, driver))
        }
    }
}

impl ChaosLink {
    fn new(inner: Arc<dyn Link>, config: ChaosConfig, id: LinkId, bell: Arc<Doorbell>, driver: SendDriver) -> Self {
        // Links of one node, and the two directions of a link, have schedules of their own.
        let mut seeds = SeededEntropy::new(config.seed ^ (u64::from(id.0) << 32));
        let now = Instant::now();
        if matches!(config.partition_after_messages, Some((_, 0))) {
            config.begins();
        }
        let mut seeds = || seeds.next_u64();
        let leaving = |seed| Leaving { schedule: Schedule::new(seed, config.outbound), dues: VecDeque::new() };
        let arriving = |seed| {
            let schedule = Schedule::new(seed, config.inbound);
            Arriving { schedule, decided: None, held_until: None }
        };
        let (data, of_data) = (leaving(seeds()), arriving(seeds()));
        let outbound = Outbound { lanes: [data, leaving(seeds())], held: Outbox::default(), sent_messages: 0 };
        let inbound = Inbound {
            lanes: [of_data, arriving(seeds())],
            taken_messages: 0,
            deaf_since: (config.partition_after_messages == Some((Direction::Inbound, 0))).then_some(now),
            polled: now,
        };
        Self {
            inner,
            config,
            bell,
            turn: Mutex::new(()),
            driver,
            outbound: Mutex::new(outbound),
            inbound: Mutex::new(inbound),
            ahead: Default::default(),
            messages: AtomicU64::new(0),
            cut: OnceLock::new(),
        }
    }

    fn is_mute(&self, outbound: &Outbound) -> bool {
        matches!(self.config.partition_after_messages,
            Some((Direction::Outbound, after)) if outbound.sent_messages >= after)
    }

    /// A message goes out; it may be the last.
    fn count_sent(&self, outbound: &mut Outbound) {
        outbound.sent_messages += 1;
        if self.is_mute(outbound) {
            self.config.begins();
        }
    }

    /// When the next message goes out, unless that waits for room.
    fn next_to_leave(&self, outbound: &Outbound) -> Option<Instant> {
        let (due, is_urgent) = outbound.next_due()?;
        (self.has_room_ahead(is_urgent) && !self.is_mute(outbound)).then_some(due)
    }

    /// False when there is something to do on the way out.
    fn arm_outbound(&self, now: Instant) -> bool {
        let leaves = self.next_to_leave(&self.outbound.lock());
        leaves.is_none_or(|due| due > now) && self.cut.get().is_none()
    }

    fn has_room_ahead(&self, is_urgent: bool) -> bool {
        let ahead = &self.ahead[usize::from(is_urgent)];
        ahead.messages.load(SeqCst) < AHEAD_MESSAGES_MAX && ahead.bytes.load(SeqCst) < AHEAD_BYTES_MAX
    }

    /// A message has passed; after the last one the link is cut.
    fn count_message(&self) {
        let passed = self.messages.fetch_add(1, SeqCst) + 1;
        if self.config.cut_after_messages == Some(passed) {
            let reason = Error::new(ErrorKind::PeerLost, format!("the link was cut after {passed} messages"));
            let _ = self.cut.set(reason.peer(self.inner.peer().clone()));
            self.config.begins();
            self.bell.ring();
        }
    }

    /// Remembers that the wrapped link holds one more message, until `work` ends; then `done` hears of it.
    fn follow(
        &self,
        work: &Work<()>,
        (is_urgent, bytes): (bool, u64),
        done: impl FnOnce(&Result<()>) + Send + 'static,
    ) {
        let ahead = Arc::clone(&self.ahead[usize::from(is_urgent)]);
        ahead.messages.fetch_add(1, SeqCst);
        ahead.bytes.fetch_add(bytes, SeqCst);
        work.on_complete(move |outcome| {
            ahead.messages.fetch_sub(1, SeqCst);
            ahead.bytes.fetch_sub(bytes, SeqCst);
            done(outcome);
        });
    }

    /// Hands over what is due, or with `now` absent everything. True when something moved.
    fn pump(&self, now: Option<Instant>) -> bool {
        let Some(_turn) = self.turn.try_lock() else { return false };
        let mut moved = false;
        while let Some((Waiting { message, done, .. }, is_urgent)) = self.next_to_go(now) {
            let bytes = message.payload_bytes() + message.control.len() as u64;
            let outcome = self.inner.send(message, Hold::Borrow);
            self.count_message();
            moved = true;
            match outcome {
                Ok(Handover::Sent) => done.complete(Ok(())),
                Ok(Handover::Queued(work)) => {
                    self.follow(&work, (is_urgent, bytes), |outcome| done.complete(outcome.clone()));
                }
                Err(error) => done.complete(Err(error)),
            }
        }
        moved
    }

    /// The next message that goes out, and whether it is urgent.
    fn next_to_go(&self, now: Option<Instant>) -> Option<(Waiting, bool)> {
        let mut outbound = self.outbound.lock();
        let (due, is_urgent) = outbound.next_due()?;
        let may_go = now.is_none_or(|now| due <= now && self.has_room_ahead(is_urgent));
        if !may_go || self.is_mute(&outbound) || self.cut.get().is_some() {
            return None;
        }
        outbound.lanes[usize::from(is_urgent)].dues.pop_front();
        self.count_sent(&mut outbound);
        let waiting = if is_urgent { outbound.held.pop_urgent() } else { outbound.held.pop() };
        Some((waiting?, is_urgent))
    }

    /// Ends what waits here.
    fn fail_held(&self, reason: &Error) {
        let waiting = {
            let mut outbound = self.outbound.lock();
            outbound.lanes.iter_mut().for_each(|lane| lane.dues.clear());
            outbound.held.drain()
        };
        for waiting in waiting {
            waiting.done.complete(Err(reason.clone()));
        }
    }

    fn end_by_cut(&self) -> Option<Polled> {
        let reason = self.cut.get()?;
        self.inner.close(reason);
        self.fail_held(reason);
        Some(Polled::Ended(reason.clone()))
    }

    fn budget(&self, asked: usize) -> usize {
        if !self.config.short_polls {
            return asked;
        }
        let taken = self.inbound.lock().taken_messages;
        let few = 1 + SeededEntropy::new(self.config.seed ^ taken).below(3);
        asked.min(few as usize)
    }
}

/// Stands between the wrapped link and the node: lets a message in when it is due.
struct Gate<'a> {
    link: &'a ChaosLink,
    sink: &'a dyn Sink,
    now: Instant,
    held_back: AtomicBool,
    newly_held: AtomicBool,
    delivered: AtomicBool,
}

impl Sink for Gate<'_> {
    fn begin(&self, link: LinkId, arrival: &Arrival) -> Result<Verdict> {
        {
            let mut inbound = self.link.inbound.lock();
            if inbound.deaf_since.is_some() {
                self.held_back.store(true, SeqCst);
                return Ok(Verdict::Pause);
            }
            let lane = &mut inbound.lanes[usize::from(arrival.is_urgent)];
            let due = match lane.decided {
                Some((sequence, due)) if sequence == arrival.sequence => due,
                _ => lane.schedule.due(self.now, arrival.payload_bytes),
            };
            lane.decided = Some((arrival.sequence, due));
            if due > self.now {
                self.held_back.store(true, SeqCst);
                self.newly_held.fetch_or(lane.held_until.replace(due).is_none(), SeqCst);
                return Ok(Verdict::Pause);
            }
            lane.held_until = None;
        }
        let verdict = self.sink.begin(link, arrival)?;
        if matches!(verdict, Verdict::Land { .. }) {
            let mut inbound = self.link.inbound.lock();
            inbound.lanes[usize::from(arrival.is_urgent)].decided = None;
            inbound.taken_messages += 1;
            let last = (Direction::Inbound, inbound.taken_messages);
            if self.link.config.partition_after_messages == Some(last) {
                inbound.deaf_since = Some(self.now);
                self.link.config.begins();
            }
        }
        Ok(verdict)
    }

    fn deliver(&self, landing: Landing, message: Message) {
        self.delivered.store(true, SeqCst);
        self.sink.deliver(landing, message);
        self.link.count_message();
    }

    fn place(&self, spec: &TensorSpec) -> Result<Tensor> {
        self.sink.place(spec)
    }

    fn is_empty(&self) -> bool {
        self.sink.is_empty()
    }
}

impl Link for ChaosLink {
    fn medium(&self) -> Medium {
        self.inner.medium()
    }

    fn peer(&self) -> &Peer {
        self.inner.peer()
    }

    fn send(&self, message: Outgoing, hold: Hold) -> Result<Handover> {
        if let Some(reason) = self.cut.get() {
            return Err(reason.clone());
        }
        let now = Instant::now();
        let turn = self.turn.try_lock();
        let mut outbound = self.outbound.lock();
        let is_urgent = self.driver.is_urgent(&message);
        let is_next = outbound.lanes.iter().skip(usize::from(is_urgent)).all(|lane| lane.dues.is_empty());
        let due = outbound.lanes[usize::from(is_urgent)].schedule.due(now, message.payload_bytes());
        let goes = due <= now && is_next && self.has_room_ahead(is_urgent) && !self.is_mute(&outbound);
        if turn.is_none() || !goes {
            let work = outbound.held.push(message, hold, &self.driver);
            let work = work.map_err(|error| error.peer(self.inner.peer().clone()))?;
            outbound.lanes[usize::from(is_urgent)].dues.push_back(due);
            drop(outbound);
            self.bell.ring();
            return Ok(Handover::Queued(work));
        }
        self.count_sent(&mut outbound);
        drop(outbound);
        let bytes = message.payload_bytes() + message.control.len() as u64;
        let handover = self.inner.send(message, hold)?;
        self.count_message();
        if let Handover::Queued(work) = &handover {
            self.follow(work, (is_urgent, bytes), |_| {});
        }
        Ok(handover)
    }

    fn capture(&self) -> Result<()> {
        self.outbound.lock().held.capture_all(&self.driver)?;
        self.inner.capture()
    }

    fn poll(&self, sink: &dyn Sink, budget: usize) -> Polled {
        if let Some(ended) = self.end_by_cut() {
            return ended;
        }
        let now = Instant::now();
        let mut moved = self.pump(Some(now));
        let gate = Gate {
            link: self,
            sink,
            now,
            held_back: AtomicBool::new(false),
            newly_held: AtomicBool::new(false),
            delivered: AtomicBool::new(false),
        };
        let polled = self.inner.poll(&gate, self.budget(budget));
        moved |= gate.delivered.load(SeqCst) | self.pump(Some(now));
        let deaf = {
            let mut inbound = self.inbound.lock();
            inbound.polled = now;
            inbound.deaf_since.is_some()
        };
        if gate.newly_held.load(SeqCst) {
            self.bell.ring();
        }
        if let Some(ended) = self.end_by_cut() {
            return ended;
        }
        match polled {
            // The end is news from the peer, which does not get through.
            Polled::Ended(_) if deaf => Polled::Idle,
            Polled::Ended(reason) => {
                self.fail_held(&reason);
                Polled::Ended(reason)
            }
            _ if moved => Polled::Moved,
            Polled::Paused if gate.held_back.load(SeqCst) => Polled::Idle,
            other => other,
        }
    }

    fn arm(&self) -> bool {
        let now = Instant::now();
        let [is_data_held, is_urgent_held] = [false, true].map(|is_urgent| self.inbound.lock().is_held(is_urgent, now));
        // A message that is held back makes the wrapped link say that there is something to do.
        let quiet = match (is_data_held, is_urgent_held) {
            (true, false) => self.inner.arm_urgent(),
            _ => self.inner.arm() || is_urgent_held,
        };
        quiet && self.arm_outbound(now)
    }

    fn arm_urgent(&self) -> bool {
        let now = Instant::now();
        let is_held = self.inbound.lock().is_held(true, now);
        (self.inner.arm_urgent() || is_held) && self.arm_outbound(now)
    }

    fn disarm(&self) {
        self.inner.disarm();
    }

    fn next_due(&self) -> Option<Instant> {
        let arrives = {
            let inbound = self.inbound.lock();
            match inbound.deaf_since {
                Some(_) => {
                    self.ahead.iter().any(|ahead| ahead.messages.load(SeqCst) > 0).then(|| inbound.polled + DEAF_POLL)
                }
                None => inbound.held_until(),
            }
        };
        let outbound = self.outbound.lock();
        let leaves = self.next_to_leave(&outbound);
        [arrives, leaves, self.inner.next_due()].into_iter().flatten().min()
    }

    fn readiness(&self) -> Option<Readiness<'_>> {
        self.inner.readiness()
    }

    fn attend(&self) {
        self.inner.attend();
    }

    /// A mute link shows nothing and, because showing and looking are one step, does not look either.
    fn beat(&self) -> Option<Duration> {
        if self.is_mute(&self.outbound.lock()) {
            return Some(Duration::ZERO);
        }
        let silence = self.inner.beat();
        self.inbound.lock().deaf_since.map_or(silence, |since| Some(since.elapsed()))
    }

    fn close(&self, reason: &Error) {
        self.pump(None);
        self.inner.close(reason);
        self.fail_held(reason);
    }

    fn give_up(&self, reason: &Error) {
        self.inner.give_up(reason);
        self.fail_held(reason);
    }

    fn unsent(&self) -> usize {
        self.outbound.lock().held.len() + self.inner.unsent()
    }

    fn at_risk_bytes(&self) -> u64 {
        self.inner.at_risk_bytes()
    }

    fn abandon(&self, reason: &Error) {
        self.inner.abandon(reason);
        self.fail_held(reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TROUBLE: Trouble = Trouble {
        delay_max: Duration::from_millis(3),
        stall_per_mille: 100,
        stall: Duration::from_millis(20),
        throttle_bytes_per_s: NonZeroU64::new(1_000_000),
    };

    fn dues(seed: u64, begun: Instant) -> Vec<Instant> {
        let mut schedule = Schedule::new(seed, TROUBLE);
        (0..500).map(|at| schedule.due(begun + Duration::from_micros(at * 10), at % 7 * 1000)).collect()
    }

    #[test]
    fn a_seed_decides_the_schedule() {
        let begun = Instant::now();
        assert_eq!(dues(1, begun), dues(1, begun));
        assert_ne!(dues(1, begun), dues(2, begun));
    }

    #[test]
    fn nothing_overtakes_and_nothing_exceeds_the_rate() {
        let begun = Instant::now();
        let dues = dues(3, begun);
        assert!(dues.is_sorted());
        let bytes: u64 = (0..500).map(|at| at % 7 * 1000).sum();
        assert!(dues[499] - begun >= Duration::from_micros(bytes), "a byte per microsecond");
    }

    #[test]
    fn no_trouble_is_no_delay() {
        let now = Instant::now();
        let mut schedule = Schedule::new(9, Trouble::default());
        assert!((0..100).all(|_| schedule.due(now, 1 << 20) == now));
    }
}
