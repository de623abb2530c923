//! The mesh's own thread: it looks after the engine and the deadlines of calls when their time has come.

use crate::driver::Shared;
use parking_lot::{Condvar, Mutex};
use sheave_base::clock::{Clock, SystemClock, Time};
use sheave_base::contain;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// When the thread has to do something.
#[derive(Default)]
pub(crate) struct Ticker {
    due: Mutex<Due>,
    changed: Condvar,
}

#[derive(Default)]
struct Due {
    engine: Option<Time>,
    calls: Option<Time>,
    ring: Option<Time>,
    stop: bool,
}

impl Due {
    fn next(&self) -> Option<Time> {
        self.engine.into_iter().chain(self.calls).chain(self.ring).min()
    }
}

impl Ticker {
    /// The engine wants its next turn at this time.
    pub(crate) fn engine_at(&self, at: Option<Time>) {
        self.change(|due| due.engine = at);
    }

    /// The first deadline of a call is not after this time.
    fn calls_at(&self, at: Option<Time>) {
        self.change(|due| due.calls = due.calls.into_iter().chain(at).min());
    }

    /// Something waits that nobody else may look after: words about references, or events for the engine.
    pub(crate) fn ring_at(&self, at: Time) {
        self.change(|due| due.ring = due.ring.into_iter().chain([at]).min());
    }

    fn change(&self, change: impl FnOnce(&mut Due)) {
        let mut due = self.due.lock();
        let before = due.next();
        change(&mut due);
        // Who sleeps until too late must know; one who wakes too early looks again.
        if due.next().is_some_and(|at| before.is_none_or(|before| at < before)) {
            self.changed.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        self.due.lock().stop = true;
        self.changed.notify_one();
    }

    /// Sleeps until the time has come. False when the thread is to end.
    fn sleep(&self, clock: &SystemClock) -> bool {
        let mut due = self.due.lock();
        while !due.stop {
            let now = clock.now();
            match due.next() {
                Some(at) if at <= now => {
                    (due.engine, due.calls, due.ring) = (None, None, None);
                    return true;
                }
                Some(at) => {
                    self.changed.wait_for(&mut due, at.since(now));
                }
                None => self.changed.wait(&mut due),
            }
        }
        false
    }
}

impl Shared {
    /// Runs until the mesh has ended.
    pub(crate) fn keep_time(self: &Arc<Self>) {
        while self.ticker.sleep(self.clock()) {
            // The mesh needs this thread, whatever is wrong with what it runs.
            if contain::told("a turn of the mesh", || self.keep_time_once()).is_none() {
                self.ticker.ring_at(self.deadline(self.node_config().liveness.beat));
            }
        }
    }

    fn keep_time_once(self: &Arc<Self>) {
        if self.look_at_leavers() {
            self.serve();
        }
        self.with_engine(|_, _| ());
        self.references.due.store(true, SeqCst);
        self.tend_references();
        let now = Instant::now();
        self.expire_calls(now);
        if let Some(next) = self.calls.next_deadline() {
            self.calls_until(next);
        }
    }

    /// A call has a deadline.
    pub(crate) fn calls_until(&self, until: Instant) {
        let span = until.saturating_duration_since(Instant::now());
        self.ticker.calls_at(Some(self.clock().now().after(span)));
    }
}
