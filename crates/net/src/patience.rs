//! How long a wait polls before it sleeps, learnt from the waits before it.
//!
//! A thread that waits has three ways: it polls and keeps its core, it polls and gives the core away in between, or it
//! sleeps and is woken. The first is the fastest where whoever is waited for has another core, the second where it
//! needs this very one, and the third where somebody else takes the core or the wait is long. [`WaitPolicy`] says how
//! much of the first two there may be at most; how much there is follows from two things that waits tell:
//!
//! * **The core was needed.** Waits that end with the first turn for which the core was given away, and in which
//!   somebody ran, have kept it in vain, and the next ones keep it half as long; those that end before, or soon after
//!   it, twice as long again.
//! * **Strangers.** A core that is given away usually comes back within microseconds. From a stranger who computes it
//!   comes back after a time slice, which is a thousand times longer, while a thread that is woken gets it nearly at
//!   once. So each turn is measured, and after a long one waits do not give way but sleep, for twice as long as was
//!   lost, and twice as long again whenever the next try loses as much ([`Strangers`]). A core that is taken away tells
//!   the same. With more ranks than cores a long turn tells nothing: it may be that of a rank that computes.
//!
//! A wait that gives its core away in between does so for as long as the policy says, however long the last ones were:
//! who polls so hinders nobody, and to sleep instead would make the others' waits long in turn, so that all of them
//! would sleep for having slept.
//!
//! **Turns in vain.** A scheduler need not let anybody run when a core is given away: that of Linux 6.18 lets a thread
//! go on at once that has had more than its share and is within its slice all the same, though others want the core. So
//! a wait that has given way [`TURNS_IN_VAIN`] times sleeps, if whoever it waits for has said that it is on this very
//! core, and does not sleep itself ([`crate::Link::shares_core`]): the peer can do nothing while the core is kept from
//! it, and a thread that sleeps keeps nothing from anybody. A peer that has moved to another core since costs one sleep
//! too many, and says so with what it sends next.
//!
//! All of this is arithmetic on points in time that others measure ([`Processor`]), so that tests play it.

use sheave_base::clock;
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
    ///
    /// Where everybody has a core, a wait does not sleep for as long as two threads take to be woken on cores that have
    /// gone idle, 90 µs each on virtual machines: two sides that wait for each other would each sleep until the other
    /// has woken, again and again, though both need only microseconds.
    #[must_use]
    pub fn for_ranks(local_ranks: usize, cores: usize) -> Self {
        if local_ranks <= cores {
            Self { spin: Duration::from_micros(5), yielding: Duration::from_micros(250) }
        } else {
            Self { spin: Duration::ZERO, yielding: Duration::from_micros(100) }
        }
    }
}

/// Polls between two looks at the clock, which costs as much as a few polls.
const ROUNDS: u32 = 16;

/// The same for a wait that has learnt to keep its core for less than [`LOOKING`]: to poll as often as others would
/// keep it for microseconds from whoever is waited for, which is what the wait has learnt not to do.
const ROUNDS_BRIEF: u32 = 2;

/// Turns between two looks at the clock where more ranks are there than cores, and nobody measures turns.
const TURNS_PER_LOOK: u32 = 4;

/// A turn of others on the core that is this long was a stranger's: ranks that wait for each other poll for
/// microseconds between two turns, and a time slice has milliseconds.
const TURN_LONG: Duration = Duration::from_micros(500);

/// A turn in which another thread runs takes at least as long: two switches and what it does.
const TURN_TAKEN_MIN: Duration = Duration::from_micros(1);

/// So many turns after which nothing has moved are in vain if somebody on this core is waited for: more than there are
/// threads that poll on one core, and a few microseconds where the scheduler takes no notice of them.
const TURNS_IN_VAIN: u32 = 8;

/// Waits that give the core away and get it back at once, after which strangers are forgotten.
const WAITS_SHORT: u64 = 512;

/// A time slice of most systems: who had the core for longer has not had it for the first time.
const TURN_MAX: Duration = Duration::from_millis(4);

/// For so many turns strangers are kept off at first. A pause of the whole machine looks the same, and must not be paid
/// for long.
const PENALTY_TURNS: u32 = 2;

/// The core is given away for a try after this time at the latest.
const PENALTY_MAX: Duration = Duration::from_secs(1);

/// For so long a wait looks at a link without polling it, at most; none that has learnt to give its core away sooner.
const LOOKING: Duration = Duration::from_micros(1);

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

/// What is known of those outside the job who want the same cores.
#[derive(Clone, Debug, Default)]
struct Strangers {
    /// Until when the core is not given away.
    until: Option<Instant>,
    penalty: Duration,
}

impl Strangers {
    /// The core was given away, or taken, and came back after `turn`, which is long, and so many waits have given it
    /// away since the last long turn and got it back at once.
    fn had_a_turn(&mut self, now: Instant, turn: Duration, waits_since: u64) {
        if waits_since >= WAITS_SHORT {
            *self = Self::default();
        }
        let penalty = turn.min(TURN_MAX).saturating_mul(PENALTY_TURNS);
        self.penalty = (self.penalty * 2).max(penalty).min(PENALTY_MAX);
        self.until = Some(now + self.penalty);
    }
}

/// What the last waits have taught.
#[derive(Clone, Debug)]
struct Lessons {
    most: WaitPolicy,
    spin_ns: u64,
    strangers: Strangers,
}

impl Lessons {
    fn new(most: WaitPolicy) -> Self {
        Self { most, spin_ns: nanoseconds(most.spin), strangers: Strangers::default() }
    }

    /// A wait has ended whose core was needed by whoever was waited for, or was not.
    fn wait_ended(&mut self, was_core_needed: bool) {
        let spin_ns = if was_core_needed { self.spin_ns / 2 } else { self.spin_ns.saturating_mul(2) };
        self.spin_ns = spin_ns.max(SPIN_NS_MIN).min(nanoseconds(self.most.spin));
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
        clock::now()
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
    /// Waits that have given the core away since the last long turn. Some may be lost where threads count at once.
    waits_since: AtomicU64,
    /// The numbers that waits go by without a lock: times in nanoseconds, and the end of the penalty in nanoseconds
    /// since `begun`; zero if there is none.
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
            waits_since: AtomicU64::new(0),
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

    fn publish(&self, lessons: &Lessons) {
        self.spin_ns.store(lessons.spin_ns, Relaxed);
        self.polling_ns.store(nanoseconds(lessons.most.spin + lessons.most.yielding), Relaxed);
        self.most_spin_ns.store(nanoseconds(lessons.most.spin), Relaxed);
        let until = lessons.strangers.until;
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

    /// Whether this turn was a stranger's. Where waits never keep their cores, more ranks are there than cores, and a
    /// long turn is as likely that of one who computes what is waited for.
    fn had_a_turn(&self, now: Instant, turn: Duration) -> bool {
        let is_stranger = turn >= TURN_LONG && self.may_keep();
        if is_stranger {
            let waits_since = self.waits_since.swap(0, Relaxed);
            self.learn(|lessons| lessons.strangers.had_a_turn(now, turn, waits_since));
        }
        is_stranger
    }

    fn count_given_way(&self) {
        self.waits_since.store(self.waits_since.load(Relaxed).saturating_add(1), Relaxed);
    }

    /// A wait has ended while it polled, which teaches something unless its time of keeping the core cannot change.
    fn wait_ended(&self, was_core_needed: bool) {
        let (spin_ns, most_ns) = (self.spin_ns.load(Relaxed), self.most_spin_ns.load(Relaxed));
        let is_settled = if was_core_needed { spin_ns <= SPIN_NS_MIN.min(most_ns) } else { spin_ns >= most_ns };
        if !is_settled {
            self.learn(|lessons| lessons.wait_ended(was_core_needed));
        }
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
    /// Times that it has given its core away since something moved.
    turns: u32,
    last_turn: Duration,
    measures_turns: bool,
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
            turns: 0,
            last_turn: Duration::ZERO,
            measures_turns: patience.may_keep(),
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

    /// Whether whoever was waited for has needed this core, if that can be told: it came with the first turn that it
    /// was given. Where it came later, within the time for which waits keep their cores, it has a core of its own; a
    /// wait that was longer says nothing.
    fn was_core_needed(&self) -> Option<bool> {
        match self.turns {
            _ if self.is_left => None,
            0 => Some(false),
            // Nobody has taken a turn that was over at once.
            1 => Some(self.last_turn >= TURN_TAKEN_MIN),
            _ => {
                let length = self.looked?.saturating_duration_since(self.quiet_since?);
                (length <= self.patience.most_spin()).then_some(false)
            }
        }
    }

    /// Whether it may keep its core for [`LOOKING`] before the next poll.
    pub(crate) fn may_look(&self) -> bool {
        !self.gives_way && self.plan.spin >= LOOKING
    }

    /// Does what is to be done between two polls, of which the last has moved something or not. False when it is time
    /// to sleep.
    #[must_use]
    pub fn goes_on(&mut self, moved: bool) -> bool {
        match self.step(moved) {
            Step::Sleep => return false,
            Step::Keep if moved => {}
            Step::Keep => self.patience.processor.relax(),
            Step::GiveWay if !self.measures_turns => {
                self.turns += 1;
                self.patience.processor.give_way();
            }
            Step::GiveWay => {
                self.turns += 1;
                let before = self.looked.unwrap_or_else(|| self.patience.processor.now());
                self.patience.processor.give_way();
                let now = self.patience.processor.now();
                self.looked = Some(now);
                let turn = now.saturating_duration_since(before);
                self.last_turn = turn;
                if self.patience.had_a_turn(now, turn) {
                    self.leave_to_strangers();
                }
            }
        }
        true
    }

    /// Whether it has given its core away so often that whoever is waited for has had a turn, if it is on this core and
    /// the scheduler has let it.
    pub(crate) fn gives_way_in_vain(&self) -> bool {
        self.turns >= TURNS_IN_VAIN
    }

    /// Polls once more, for what came meanwhile, and no longer.
    fn leave_to_strangers(&mut self) {
        (self.plan.gives_way, self.gives_way, self.is_left) = (false, false, true);
        self.plan.polling = Duration::ZERO;
    }

    fn step(&mut self, moved: bool) -> Step {
        self.rounds += 1;
        self.has_moved |= moved;
        if moved {
            self.turns = 0;
        }
        let rounds_per_look = match (self.gives_way, self.measures_turns) {
            (false, _) if self.plan.spin < LOOKING => ROUNDS_BRIEF,
            (false, _) => ROUNDS,
            (true, false) => TURNS_PER_LOOK,
            (true, true) => 1,
        };
        if !self.rounds.is_multiple_of(rounds_per_look) && !self.plan.polling.is_zero() {
            return self.step_without_a_look(moved);
        }
        // The end of the last turn is as good, and saves a look for each of them.
        let is_measured = self.gives_way && self.measures_turns && !self.has_moved;
        let last_turn = self.looked.filter(|_| is_measured);
        let now = last_turn.unwrap_or_else(|| self.patience.processor.now());
        self.begun.get_or_insert(now);
        let before = self.looked.replace(now);
        if std::mem::take(&mut self.has_moved) {
            self.quiet_since = Some(now);
            self.gives_way &= self.plan.spin.is_zero();
        } else if let Some(before) = before
            && !self.gives_way
            && self.patience.had_a_turn(now, now.saturating_duration_since(before))
        {
            // Nothing moved and yet it took so long: the core was taken away.
            self.leave_to_strangers();
        }
        let quiet = now.saturating_duration_since(*self.quiet_since.get_or_insert(now));
        if quiet >= self.plan.polling && !moved {
            return Step::Sleep;
        }
        self.gives_way |= self.plan.gives_way && quiet >= self.plan.spin;
        self.step_without_a_look(moved)
    }

    fn step_without_a_look(&self, moved: bool) -> Step {
        if self.gives_way && !moved { Step::GiveWay } else { Step::Keep }
    }

    /// Ends a wait for something that has come while it polled. Returns whether this core was needed by whoever was
    /// waited for, where that can be told.
    pub fn is_over(self) -> Option<bool> {
        if self.turns > 0 && !self.is_left {
            self.patience.count_given_way();
        }
        let was_needed = self.was_core_needed();
        if let Some(was_needed) = was_needed {
            self.patience.wait_ended(was_needed);
        }
        was_needed
    }
}

#[cfg(test)]
mod tests;
