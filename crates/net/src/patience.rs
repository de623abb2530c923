//! How long a wait polls before it sleeps, learnt from the waits before it.
//!
//! A thread that waits has three ways: it polls and keeps its core, it polls and gives the core away in between, or it
//! sleeps and is woken. The first is the fastest where whoever is waited for has another core, the second where it
//! needs this very one, and the third where somebody else takes the core or the wait is long. [`WaitPolicy`] says how
//! much of the first two there may be at most; how much there is follows from three things that waits tell:
//!
//! * **The core was needed.** Waits that end only after the core was given away have kept it in vain, and the next ones
//!   keep it half as long; those that end before, twice as long again.
//! * **How long waits are.** A sleep costs both sides some time, and polling costs a core that perhaps nobody else
//!   wants. The last waits say for how long polling would have cost the least ([`Lengths`]): as long as most waits
//!   are, and not at all if nearly all are longer than polling may ever take.
//! * **Strangers.** A core that is given away usually comes back within microseconds. From a stranger who computes it
//!   comes back after a time slice, which is a thousand times longer, while a thread that is woken gets it nearly at
//!   once. So each turn is measured, and after a long one waits do not give way but sleep, for many times as long as
//!   was lost, and twice as long again if the next try loses as much ([`Strangers`]). A core that is taken away tells
//!   the same.
//!
//! All of this is arithmetic on points in time that others measure ([`Processor`]), so that tests play it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long a waiting thread may poll before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolicy {
    /// The most time spent polling without giving the core away.
    pub spin: Duration,
    /// The most time then spent polling with the core given away in between.
    pub yielding: Duration,
}

impl WaitPolicy {
    /// Returns the policy for so many busy processes on so many cores: keep the core for a moment while everybody has
    /// one, then give it away between polls, for the scheduler may have put two ranks on one core all the same; with
    /// more ranks than cores, give it away at once.
    #[must_use]
    pub fn for_ranks(local_ranks: usize, cores: usize) -> Self {
        if local_ranks <= cores {
            Self { spin: Duration::from_micros(5), yielding: Duration::from_micros(150) }
        } else {
            Self { spin: Duration::ZERO, yielding: Duration::from_micros(100) }
        }
    }
}

/// Polls between two looks at the clock, which costs as much as a few polls.
const ROUNDS: u32 = 16;

/// A turn of others on the core that is this long was a stranger's: ranks that wait for each other poll for
/// microseconds between two turns, and a time slice has milliseconds.
const TURN_LONG: Duration = Duration::from_micros(500);

/// So many times what was lost to a stranger, the core is not given away at first. A pause of the whole machine looks
/// the same, and must not be paid for long.
const PENALTY_FACTOR: u32 = 2;

/// The core is given away for a try after this time at the latest.
const PENALTY_MAX: Duration = Duration::from_secs(1);

/// Short turns after which strangers are forgotten.
const TURNS_SHORT: u32 = 64;

/// What a sleep costs those who wait: both sides' system calls, and the way of the woken thread to a core.
const SLEEP_COST_NS: u64 = 25_000;

/// Polling for so long costs as much as one unit of waiting: the core may be free.
const POLLING_PER_COST: u64 = 8;

/// Waits after which what is known of older ones counts half.
const WAITS_REMEMBERED: u32 = 64;

/// Waits between two looks at what they tell.
const WAITS_PER_LOOK: u32 = 16;

/// Shortest time of keeping the core that is halved no more.
const SPIN_NS_MIN: u64 = 200;

/// What a wait does before its next poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It polls again.
    Keep,
    /// It gives its core away first.
    GiveWay,
    /// It polls no more.
    Sleep,
}

/// How one wait goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Time for which it keeps its core.
    spin: Duration,
    /// Time after which it sleeps.
    polling: Duration,
    /// Whether it gives its core away in between.
    gives_way: bool,
}

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// While it kept its core.
    Kept,
    /// After it had given its core away.
    GaveWay,
    /// After a sleep, or a turn of strangers, which says nothing about those who are waited for.
    Slept,
}

/// The lengths of the last waits, in powers of two of microseconds.
#[derive(Clone, Debug, Default)]
struct Lengths {
    /// How many waits were below 2^index µs and not below half of that; the last one has all that are longer.
    counts: [u32; Self::CLASSES],
    since_halved: u32,
}

impl Lengths {
    /// The longest time that polling is reckoned for is 1,024 µs.
    const CLASSES: usize = 12;

    fn add(&mut self, length: Duration) {
        let length_us = u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        let class = (u64::BITS - length_us.leading_zeros()) as usize;
        self.counts[class.min(Self::CLASSES - 1)] += 2;
        self.since_halved += 1;
        if self.since_halved >= WAITS_REMEMBERED {
            self.since_halved = 0;
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
    }

    /// For how long polling would have cost the waits the least, of zero and the times up to `most`.
    fn best(&self, most: Duration) -> Duration {
        let most_ns = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        let of_class = |class: usize| 1_000_u64 << class;
        // The longer time first: it wins where nothing tells against it.
        let steps = (0..Self::CLASSES - 1).rev().map(of_class).filter(|limit_ns| *limit_ns < most_ns);
        let candidates = [most_ns].into_iter().chain(steps).chain([0]);
        let cost = |limit_ns: u64| -> u64 {
            let per_class = self.counts.iter().enumerate().map(|(class, count)| {
                let is_caught = class < Self::CLASSES - 1 && of_class(class) <= limit_ns;
                let each = if is_caught {
                    of_class(class) / POLLING_PER_COST
                } else {
                    limit_ns / POLLING_PER_COST + SLEEP_COST_NS
                };
                u64::from(*count).saturating_mul(each)
            });
            per_class.sum()
        };
        Duration::from_nanos(candidates.min_by_key(|limit_ns| cost(*limit_ns)).unwrap_or(most_ns))
    }
}

/// What is known of those outside the job who want the same cores.
#[derive(Clone, Debug, Default)]
struct Strangers {
    /// Until when the core is not given away.
    until: Option<Instant>,
    penalty: Duration,
    short_turns: u32,
}

impl Strangers {
    /// The core was given away, or taken, and came back after `turn`.
    fn had_a_turn(&mut self, now: Instant, turn: Duration) {
        if turn < TURN_LONG {
            self.short_turns += 1;
            if self.short_turns >= TURNS_SHORT {
                *self = Self::default();
            }
            return;
        }
        self.short_turns = 0;
        self.penalty = (self.penalty * 2).max(turn.saturating_mul(PENALTY_FACTOR)).min(PENALTY_MAX);
        self.until = Some(now + self.penalty);
    }
}

/// What the last waits have taught.
#[derive(Clone, Debug)]
struct Lessons {
    most: WaitPolicy,
    spin_ns: u64,
    polling: Duration,
    lengths: Lengths,
    waits: u32,
    strangers: Strangers,
}

impl Lessons {
    fn new(most: WaitPolicy) -> Self {
        Self {
            most,
            spin_ns: nanoseconds(most.spin),
            polling: most.spin + most.yielding,
            lengths: Lengths::default(),
            waits: 0,
            strangers: Strangers::default(),
        }
    }

    /// The plan, and until when strangers are to be kept off.
    fn plan(&self) -> (Plan, Option<Instant>) {
        let plan = Plan { spin: Duration::from_nanos(self.spin_ns), polling: self.polling, gives_way: true };
        (plan, self.strangers.until)
    }

    /// A wait of this length is over, without anything that moved in its last part, which is what counts.
    fn wait_ended(&mut self, ended: Ended, length: Duration) {
        let most_ns = nanoseconds(self.most.spin);
        match ended {
            Ended::Kept => self.spin_ns = self.spin_ns.saturating_mul(2).max(SPIN_NS_MIN).min(most_ns),
            Ended::GaveWay => self.spin_ns = (self.spin_ns / 2).max(SPIN_NS_MIN).min(most_ns),
            Ended::Slept => {}
        }
        self.lengths.add(length);
        self.waits += 1;
        if self.waits.is_multiple_of(WAITS_PER_LOOK) {
            self.polling = self.lengths.best(self.most.spin + self.most.yielding);
        }
    }
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The core that a thread runs on, and the clock.
pub trait Processor {
    /// The time.
    fn now(&self) -> Instant;
    /// Gives the core to whoever wants it.
    fn give_way(&self);
    /// Rests the core for a moment.
    fn relax(&self);
}

/// The one that this thread runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisProcessor;

impl Processor for ThisProcessor {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn give_way(&self) {
        std::thread::yield_now();
    }

    fn relax(&self) {
        std::hint::spin_loop();
    }
}

/// What all waits of a node have taught, for its next ones.
pub(crate) struct Patience<P = ThisProcessor> {
    processor: P,
    lessons: Mutex<Lessons>,
    /// What waits go by, so that they need no lock: the plan's times in nanoseconds, and the end of the penalty in
    /// nanoseconds since `begun`; zero if there is none.
    spin_ns: AtomicU64,
    polling_ns: AtomicU64,
    most_spin_ns: AtomicU64,
    penalty_end_ns: AtomicU64,
    begun: Instant,
}

impl Patience {
    /// For a node whose waits take no more than this.
    pub(crate) fn new(most: WaitPolicy) -> Self {
        Self::on(ThisProcessor, most)
    }
}

impl<P: Processor> Patience<P> {
    fn on(processor: P, most: WaitPolicy) -> Self {
        let begun = processor.now();
        let patience = Self {
            processor,
            lessons: Mutex::new(Lessons::new(most)),
            spin_ns: AtomicU64::new(0),
            polling_ns: AtomicU64::new(0),
            most_spin_ns: AtomicU64::new(0),
            penalty_end_ns: AtomicU64::new(0),
            begun,
        };
        patience.publish(&patience.lessons.lock());
        patience
    }

    /// Waits take no more than this from now on.
    pub(crate) fn limit(&self, most: WaitPolicy) {
        let mut lessons = self.lessons.lock();
        if lessons.most != most {
            *lessons = Lessons { strangers: lessons.strangers.clone(), ..Lessons::new(most) };
            self.publish(&lessons);
        }
    }

    /// What waits take at most.
    pub(crate) fn most(&self) -> WaitPolicy {
        self.lessons.lock().most
    }

    /// The longest that a wait keeps its core.
    pub(crate) fn most_spin(&self) -> Duration {
        Duration::from_nanos(self.most_spin_ns.load(Relaxed))
    }

    /// Whether a wait may keep its core at all.
    pub(crate) fn may_keep(&self) -> bool {
        !self.most_spin().is_zero()
    }

    fn keeps_less_than_it_may(&self) -> bool {
        self.spin_ns.load(Relaxed) < self.most_spin_ns.load(Relaxed)
    }

    fn publish(&self, lessons: &Lessons) {
        let (plan, until) = lessons.plan();
        self.spin_ns.store(nanoseconds(plan.spin), Relaxed);
        self.polling_ns.store(nanoseconds(plan.polling), Relaxed);
        self.most_spin_ns.store(nanoseconds(lessons.most.spin), Relaxed);
        let penalty_end_ns = until.map_or(0, |until| nanoseconds(until.saturating_duration_since(self.begun)));
        self.penalty_end_ns.store(penalty_end_ns, Relaxed);
    }

    /// Changes the lessons, unless another thread does so right now: one wait more or less teaches the same.
    fn learn(&self, change: impl FnOnce(&mut Lessons)) {
        if let Some(mut lessons) = self.lessons.try_lock() {
            change(&mut lessons);
            self.publish(&lessons);
        }
    }

    /// How the next wait goes.
    fn plan(&self) -> Plan {
        let spin = Duration::from_nanos(self.spin_ns.load(Relaxed));
        if self.is_beside_strangers() {
            return Plan { spin, polling: spin, gives_way: false };
        }
        let polling = Duration::from_nanos(self.polling_ns.load(Relaxed));
        Plan { spin: spin.min(polling), polling, gives_way: true }
    }

    fn is_beside_strangers(&self) -> bool {
        let end_ns = self.penalty_end_ns.load(Relaxed);
        end_ns > 0 && nanoseconds(self.processor.now().saturating_duration_since(self.begun)) < end_ns
    }

    /// Begins to poll for something.
    pub(crate) fn begin(&self) -> Course<'_, P> {
        Course::new(self, self.plan())
    }

    /// Gives the core away, unless strangers are there who would keep it. False if it was not given.
    pub(crate) fn give_way(&self) -> bool {
        if self.is_beside_strangers() {
            return false;
        }
        let begun = self.processor.now();
        self.processor.give_way();
        let now = self.processor.now();
        self.had_a_turn(now, now.saturating_duration_since(begun));
        true
    }

    fn had_a_turn(&self, now: Instant, turn: Duration) {
        // Short turns only count where there is something to forget.
        if turn >= TURN_LONG || self.penalty_end_ns.load(Relaxed) > 0 {
            self.learn(|lessons| lessons.strangers.had_a_turn(now, turn));
        }
    }

    /// A wait that has slept is over; nothing had moved since then.
    pub(crate) fn slept(&self, quiet_since: Instant) {
        let length = self.processor.now().saturating_duration_since(quiet_since);
        self.learn(|lessons| lessons.wait_ended(Ended::Slept, length));
    }
}

/// One wait, as long as it polls: asked between two polls whether it goes on.
pub struct Course<'a, P = ThisProcessor> {
    patience: &'a Patience<P>,
    plan: Plan,
    rounds: u32,
    has_moved: bool,
    /// When it looked at the clock first.
    begun: Option<Instant>,
    quiet_since: Option<Instant>,
    looked: Option<Instant>,
    gives_way: bool,
    /// Strangers had the core.
    is_left: bool,
}

impl<'a, P: Processor> Course<'a, P> {
    fn new(patience: &'a Patience<P>, plan: Plan) -> Self {
        let gives_way = plan.spin.is_zero() && plan.gives_way;
        Self {
            patience,
            plan,
            rounds: 0,
            has_moved: false,
            begun: None,
            quiet_since: None,
            looked: None,
            gives_way,
            is_left: false,
        }
    }

    /// Keeps the core for at most `spin`.
    #[must_use]
    pub fn keeping_for(mut self, spin: Duration) -> Self {
        self.plan.spin = self.plan.spin.min(spin);
        self
    }

    /// When it looked at the clock first, if it has.
    #[must_use]
    pub fn begun(&self) -> Option<Instant> {
        self.begun
    }

    /// When it looked at the clock last, if it has.
    pub(crate) fn looked(&self) -> Option<Instant> {
        self.looked
    }

    /// Whether it has come so far that it gives its core away.
    #[must_use]
    pub fn has_given_way(&self) -> bool {
        self.gives_way || self.is_left
    }

    /// When something has moved last, as far as it has looked.
    pub(crate) fn quiet_since(&self) -> Instant {
        self.quiet_since.unwrap_or_else(|| self.patience.processor.now())
    }

    /// Does what is to be done between two polls, of which the last has moved something or not. False when it is time
    /// to sleep.
    #[must_use]
    pub fn goes_on(&mut self, moved: bool) -> bool {
        match self.step(moved) {
            Step::Sleep => return false,
            Step::Keep if moved => {}
            Step::Keep => self.patience.processor.relax(),
            Step::GiveWay => {
                let before = self.looked.unwrap_or_else(|| self.patience.processor.now());
                self.patience.processor.give_way();
                let now = self.patience.processor.now();
                self.looked = Some(now);
                let turn = now.saturating_duration_since(before);
                if turn >= TURN_LONG {
                    self.leave_to_strangers();
                }
                self.patience.had_a_turn(now, turn);
            }
        }
        true
    }

    /// Polls once more, for what came meanwhile, and no longer.
    fn leave_to_strangers(&mut self) {
        (self.plan.gives_way, self.gives_way, self.is_left) = (false, false, true);
        self.plan.polling = Duration::ZERO;
    }

    fn step(&mut self, moved: bool) -> Step {
        self.rounds += 1;
        self.has_moved |= moved;
        if !self.gives_way && !self.rounds.is_multiple_of(ROUNDS) && !self.plan.polling.is_zero() {
            return Step::Keep;
        }
        // The end of the last turn is as good, and saves a look for each of them.
        let last_turn = self.looked.filter(|_| self.gives_way && !self.has_moved);
        let now = last_turn.unwrap_or_else(|| self.patience.processor.now());
        self.begun.get_or_insert(now);
        let before = self.looked.replace(now);
        if std::mem::take(&mut self.has_moved) {
            self.quiet_since = Some(now);
            self.gives_way &= self.plan.spin.is_zero();
        } else if let Some(before) = before
            && !self.gives_way
            && now.saturating_duration_since(before) >= TURN_LONG
        {
            // Nothing moved and yet it took so long: the core was taken away.
            self.leave_to_strangers();
            self.patience.had_a_turn(now, now.saturating_duration_since(before));
        }
        let quiet = now.saturating_duration_since(*self.quiet_since.get_or_insert(now));
        if quiet >= self.plan.polling && !moved {
            return Step::Sleep;
        }
        self.gives_way |= self.plan.gives_way && quiet >= self.plan.spin;
        if self.gives_way && !moved { Step::GiveWay } else { Step::Keep }
    }

    /// What was waited for has come.
    pub fn is_over(self) {
        let Some(quiet_since) = self.quiet_since else {
            // Too short for a look at the clock: it teaches only that others have cores of their own.
            if self.patience.keeps_less_than_it_may() {
                self.patience.learn(|lessons| lessons.wait_ended(Ended::Kept, Duration::ZERO));
            }
            return;
        };
        let ended = match (self.is_left, self.gives_way) {
            (true, _) => Ended::Slept,
            (false, true) => Ended::GaveWay,
            (false, false) => Ended::Kept,
        };
        let length = self.patience.processor.now().saturating_duration_since(quiet_since);
        self.patience.learn(|lessons| lessons.wait_ended(ended, length));
    }
}

#[cfg(test)]
mod tests;
