//! What is to be done at a time: one table for all deadlines of a node, and the thread that keeps it.
//!
//! Adding and cancelling cost the logarithm of how many timers there are, under a lock that nobody holds for longer.
//! Actions run one after the other on the mesh's one time thread, in the order of their times, with no lock held. A
//! panic in one is told and ends there.
//!
//! The thread is woken only for what is earlier than the time until which it sleeps. A deadline that is cancelled
//! leaves it asleep, so calls that are made one after the other and answered in time wake it once in the span of their
//! deadlines, however many they are.
//!
//! The turns of the mesh itself stand beside the table: when the engine wants one, and when somebody has left something
//! for one ("ring"). Each is a time that is set anew all the time, and whatever of these and the actions is earliest is
//! done first, so neither waits for the other for ever.

use super::timetable::{Key, Timetable};
use parking_lot::Mutex;
use sheave_base::clock::{Clock, Time};
use sheave_base::planted::{self, Bug};
use sheave_base::sync::Condvar;
use sheave_base::{Error, ErrorKind, Result, contain, limits};
use std::sync::{Arc, Weak};

/// What is done when a time has come. It is short and never blocks.
pub(crate) type Action = Box<dyn FnOnce() + Send>;

/// What the time thread does next.
pub(crate) enum Job {
    /// The mesh wants its turn.
    Turn,
    Run(Action),
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Turn) { "Turn" } else { "Run" })
    }
}

/// The timers of one node.
pub(crate) struct Timers {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    table: Timetable<Action>,
    engine: Option<Time>,
    ring: Option<Time>,
    /// Until when the time thread sleeps, while it does.
    sleeps_until: Option<Time>,
    is_stopped: bool,
}

impl State {
    fn turn(&self) -> Option<Time> {
        self.engine.into_iter().chain(self.ring).min()
    }

    fn next(&self) -> Option<Time> {
        self.turn().into_iter().chain(self.table.next()).min()
    }

    fn take_due(&mut self, now: Time) -> Option<Job> {
        match self.turn().filter(|at| *at <= now) {
            Some(turn) if self.table.next().is_none_or(|action| turn <= action) => {
                (self.engine, self.ring) = (None, None);
                Some(Job::Turn)
            }
            _ => {
                let due = self.table.take_due(now)?;
                Some(Job::Run(if planted::strikes(Bug::TimerLost) { Box::new(|| ()) } else { due }))
            }
        }
    }
}

impl Timers {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, state: Mutex::default(), changed: Condvar::default() })
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Runs `action` at that time, or as soon as the thread can where that has passed. The timer cancels when dropped.
    pub(crate) fn at(self: &Arc<Self>, time: Time, action: impl FnOnce() + Send + 'static) -> Result<Timer> {
        let now = self.clock.now();
        let is_early = time > now && planted::strikes(Bug::TimerEarly);
        let time = if is_early { now.after(time.since(now) / 2) } else { time };
        // A refused one is dropped after the lock was let go.
        let action: Action = Box::new(action);
        let mut state = self.state.lock();
        if state.is_stopped {
            return Err(Error::new(ErrorKind::Closed, "this node has left the mesh"));
        }
        if state.table.len() >= limits::TIMERS_MAX {
            let what = format!("{} timers of this node are set", limits::TIMERS_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("cancel timers that nobody needs any more"));
        }
        let key = state.table.add(time, action);
        self.wake_for(&mut state, time);
        Ok(Timer { timers: Arc::downgrade(self), key: Some(key) })
    }

    /// The engine wants its next turn at this time.
    pub(crate) fn engine_at(&self, at: Option<Time>) {
        let mut state = self.state.lock();
        state.engine = at;
        if let Some(at) = at {
            self.wake_for(&mut state, at);
        }
    }

    /// Something waits that nobody else may look after: words about references, events for the engine, or tasks.
    pub(crate) fn ring_at(&self, at: Time) {
        let mut state = self.state.lock();
        state.ring = state.ring.into_iter().chain([at]).min();
        self.wake_for(&mut state, at);
    }

    /// As [`Timers::ring_at`], at once.
    pub(crate) fn ring(&self) {
        self.ring_at(self.now());
    }

    fn wake_for(&self, state: &mut State, at: Time) {
        if state.sleeps_until.is_some_and(|until| at < until) {
            state.sleeps_until = Some(at);
            self.changed.notify_one();
        }
    }

    /// Blocks until there is something to do. `None` when the thread is to end.
    pub(crate) fn wait(&self) -> Option<Job> {
        let mut state = self.state.lock();
        while !state.is_stopped {
            let now = self.clock.now();
            if let Some(job) = state.take_due(now) {
                return Some(job);
            }
            let next = state.next();
            state.sleeps_until = Some(next.unwrap_or(Time(u64::MAX)));
            match next {
                Some(at) => {
                    self.changed.wait_for(&mut state, at.since(now));
                }
                None => self.changed.wait(&mut state),
            }
            state.sleeps_until = None;
        }
        None
    }

    /// Ends the thread. Actions whose time has not come are dropped, and none is taken any more.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.is_stopped = true;
        let actions = state.table.take_all();
        self.changed.notify_all();
        drop(state);
        actions.into_iter().for_each(discard);
    }

    fn cancel(&self, key: Key) -> bool {
        let action = self.state.lock().table.remove(key);
        let is_prevented = action.is_some();
        action.into_iter().for_each(discard);
        is_prevented
    }
}

/// Runs an action. A panic in it is told.
pub(crate) fn run(action: Action) {
    contain::told("an action of a timer", action);
}

/// Drops an action that is not run. What it holds may be anybody's.
fn discard(action: Action) {
    contain::told("the drop of an action of a timer", || drop(action));
}

/// Something that is to be done at a time. Dropping it cancels that, unless it was detached.
#[must_use = "a timer that is dropped is cancelled"]
pub struct Timer {
    timers: Weak<Timers>,
    key: Option<Key>,
}

impl Timer {
    /// Cancels it. True if the action will never run; false if it has run or runs just now.
    pub fn cancel(mut self) -> bool {
        self.cancel_once()
    }

    /// Lets the action run at its time though nobody holds the timer.
    pub fn detach(mut self) {
        self.key = None;
    }

    fn cancel_once(&mut self) -> bool {
        let Some((key, timers)) = self.key.take().zip(self.timers.upgrade()) else { return false };
        timers.cancel(key)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.cancel_once();
    }
}

impl std::fmt::Debug for Timer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Timer").field("is_set", &self.key.is_some()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::clock::{ManualClock, SystemClock};
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    const LONG: Duration = Duration::from_secs(20);

    fn manual() -> (Arc<ManualClock>, Arc<Timers>) {
        let clock = Arc::new(ManualClock::default());
        let timers = Timers::new(clock.clone());
        (clock, timers)
    }

    impl Timers {
        /// Does what is due, as the thread would.
        fn run_due(&self) -> usize {
            let mut count = 0;
            loop {
                let job = self.state.lock().take_due(self.clock.now());
                match job {
                    Some(Job::Run(action)) => run(action),
                    Some(Job::Turn) => {}
                    None => return count,
                }
                count += 1;
            }
        }
    }

    #[test]
    fn actions_run_in_the_order_of_their_times_and_those_of_one_time_in_that_of_their_making() {
        let (clock, timers) = manual();
        let done = Arc::new(Mutex::new(Vec::new()));
        let mut kept = Vec::new();
        for (name, at) in [("c", 30), ("a", 10), ("d", 30), ("b", 20), ("never", 31)] {
            let done = Arc::clone(&done);
            kept.push(timers.at(Time(at), move || done.lock().push(name)).expect("there is room"));
        }
        assert_eq!(timers.run_due(), 0, "no time has come");
        clock.advance(Duration::from_nanos(20));
        assert_eq!(timers.run_due(), 2);
        clock.advance(Duration::from_nanos(10));
        assert_eq!(timers.run_due(), 2);
        assert_eq!(*done.lock(), ["a", "b", "c", "d"]);
        // One whose time has passed is due at once.
        let done_late = Arc::clone(&done);
        timers.at(Time(1), move || done_late.lock().push("late")).expect("there is room").detach();
        assert_eq!((timers.run_due(), done.lock().last().copied()), (1, Some("late")));
    }

    #[test]
    fn a_timer_that_is_cancelled_or_dropped_never_runs_and_frees_what_it_holds() {
        let (clock, timers) = manual();
        let held = Arc::new(());
        let set = |timers: &Arc<Timers>| {
            let held = Arc::clone(&held);
            timers.at(Time(5), move || drop(held)).expect("there is room")
        };
        let (cancelled, dropped, detached) = (set(&timers), set(&timers), set(&timers));
        assert!(cancelled.cancel());
        drop(dropped);
        detached.detach();
        assert_eq!((Arc::strong_count(&held), timers.state.lock().table.len()), (2, 1));
        clock.advance(Duration::from_nanos(5));
        assert_eq!((timers.run_due(), Arc::strong_count(&held)), (1, 1));
    }

    #[test]
    fn a_timer_that_is_cancelled_while_it_runs_says_so() {
        let (clock, timers) = manual();
        let own: Arc<Mutex<Option<Timer>>> = Arc::default();
        let (inside, seen) = (Arc::clone(&own), Arc::new(Mutex::new(None)));
        let outcome = Arc::clone(&seen);
        let timer = timers.at(Time(1), move || *outcome.lock() = inside.lock().take().map(Timer::cancel));
        *own.lock() = Some(timer.expect("there is room"));
        clock.advance(Duration::from_nanos(1));
        assert_eq!((timers.run_due(), *seen.lock()), (1, Some(false)), "it ran, so it was not prevented");
    }

    #[test]
    fn a_panic_costs_the_next_action_nothing() {
        let (clock, timers) = manual();
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        timers.at(Time(1), || panic!("an action of a test")).expect("there is room").detach();
        timers.at(Time(1), move || assert_eq!(counted.fetch_add(1, SeqCst), 0)).expect("there is room").detach();
        clock.advance(Duration::from_nanos(1));
        assert_eq!((timers.run_due(), count.load(SeqCst)), (2, 1));
    }

    #[test]
    fn there_are_no_more_timers_than_the_limit_and_none_after_the_end() {
        let (_clock, timers) = manual();
        let many: Vec<Timer> =
            (0..limits::TIMERS_MAX).map(|at| timers.at(Time(at as u64 + 1), || ()).expect("there is room")).collect();
        let refused = timers.at(Time(1), || ()).expect_err("one too many");
        assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
        drop(many);
        let held = Arc::new(());
        let inside = Arc::clone(&held);
        let left = timers.at(Time(1), move || drop(inside)).expect("there is room again");
        timers.stop();
        assert_eq!(Arc::strong_count(&held), 1, "what never runs is dropped");
        assert!(!left.cancel() && timers.wait().is_none());
        assert_eq!(timers.at(Time(1), || ()).expect_err("it has ended").kind(), ErrorKind::Closed);
    }

    #[test]
    fn an_earlier_timer_wakes_the_thread_and_a_later_one_does_not() {
        let timers = Timers::new(Arc::new(SystemClock::default()));
        let (tell, told) = channel();
        let own = Arc::clone(&timers);
        let thread = std::thread::spawn(move || {
            let mut jobs = 0;
            while let Some(job) = own.wait() {
                jobs += 1;
                if let Job::Run(action) = job {
                    run(action);
                }
            }
            jobs
        });
        let begun = Instant::now();
        let later = timers.at(timers.now().after(LONG), || ()).expect("there is room");
        let span = Duration::from_millis(20);
        let early = timers.at(timers.now().after(span), move || tell.send(Instant::now()).expect("it waits"));
        let ran = told.recv_timeout(LONG).expect("the thread was woken for the earlier one");
        assert!(ran.duration_since(begun) >= span);
        drop((early, later));
        timers.stop();
        assert_eq!(thread.join().expect("no panic"), 1);
    }

    /// Neither the turns of the mesh nor the actions can keep the other waiting for ever.
    #[test]
    fn turns_and_actions_are_done_in_the_order_of_their_times() {
        let (clock, timers) = manual();
        clock.advance(Duration::from_nanos(10));
        timers.ring();
        let older = timers.at(Time(3), || ()).expect("there is room");
        let newer = timers.at(Time(10), || ()).expect("there is room");
        timers.engine_at(Some(Time(50)));
        let mut order = Vec::new();
        while let Some(job) = timers.state.lock().take_due(clock.now()) {
            order.push(format!("{job:?}"));
        }
        assert_eq!(order, ["Run", "Turn", "Run"]);
        drop((older, newer));
        timers.engine_at(Some(Time(7)));
        assert!(matches!(timers.wait(), Some(Job::Turn)));
    }
}
