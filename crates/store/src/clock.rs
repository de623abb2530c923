//! Merges of one slot in the order of arrival, and pulls that wait for those who are far behind.
//!
//! A worker's clock is the number of its pushes. A pull of a worker at clock *c* waits until every worker that is
//! waited for has reached *c − s*, where *s* is the staleness: so what it sees contains every push that is more than
//! *s* behind its own (stale synchronous parallel, Ho et al. 2013, "More Effective Distributed ML via a Stale
//! Synchronous Parallel Parameter Server"). Without a bound this is an asynchronous store.

use crate::round::Counted;
use crate::slot::{Merge, Slot, guarded};
use crate::sum::{Gradient, Sum};
use crate::waiter::{Completed, RequestId, Waiter, take_due};
use sheave_base::Result;
use sheave_tensor::Arena;
use smallvec::smallvec;

/// The staleness of a store that never waits.
pub(crate) const UNBOUNDED: u64 = u64::MAX;

pub(crate) struct Clock {
    /// By rank.
    counts: Vec<u64>,
    staleness: u64,
    /// A contribution that is not merged.
    next: Option<(Gradient, RequestId)>,
    sum: Sum,
    waiters: Vec<Waiter>,
}

impl Clock {
    pub(crate) fn new(workers: usize, staleness: u64) -> Self {
        Self { counts: vec![0; workers], staleness, next: None, sum: Sum::default(), waiters: Vec::new() }
    }

    pub(crate) fn contribute(&mut self, worker: usize, gradient: Gradient, request: RequestId) {
        self.counts[worker] += 1;
        self.next = Some((gradient, request));
    }

    /// The clock that all who are waited for have reached.
    fn reached(&self, counted: &Counted) -> u64 {
        let counts = self.counts.iter().zip(counted);
        counts.filter(|(_, is_counted)| **is_counted).map(|(count, _)| *count).min().unwrap_or(u64::MAX)
    }

    /// A pull of a worker: true if it may be served now.
    pub(crate) fn ask(&mut self, counted: &Counted, worker: usize, request: RequestId, piece: usize) -> bool {
        let after = self.counts[worker].saturating_sub(self.staleness);
        let is_due = after == 0 || after <= self.reached(counted);
        if !is_due {
            self.waiters.push(Waiter { request, piece, after });
        }
        is_due
    }

    /// Merges what was contributed, and says which pulls are due. Call it until it returns `None`.
    pub(crate) fn advance(
        &mut self,
        counted: &Counted,
        slot: &mut Slot,
        merge: &Merge,
        arena: &Arena,
    ) -> Option<Completed> {
        let next = self.next.take();
        let reached = if self.waiters.is_empty() { 0 } else { self.reached(counted) };
        let Some((gradient, request)) = next else {
            let served = take_due(&mut self.waiters, reached);
            let is_empty = served.is_empty();
            return (!is_empty).then(|| Completed { outcome: Ok(()), merged: smallvec![], served });
        };
        let outcome = self.merge(gradient, slot, merge, arena);
        let served = take_due(&mut self.waiters, reached);
        Some(Completed { outcome, merged: smallvec![request], served })
    }

    fn merge(&mut self, gradient: Gradient, slot: &mut Slot, merge: &Merge, arena: &Arena) -> Result<()> {
        self.sum.add(gradient, arena)?;
        let Some(mut total) = self.sum.take() else { return Ok(()) };
        let outcome = guarded(slot, merge, &mut total, arena);
        self.sum.keep(total, arena);
        // Stores of this kind refuse what needs others ([`Slot::needs_others`]).
        outcome.map(drop)
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// How often a worker has pushed.
    pub(crate) fn heard(&self, worker: usize) -> u64 {
        self.counts[worker]
    }

    /// All workers begin anew at the same clock.
    pub(crate) fn level(&mut self) {
        let most = self.counts.iter().copied().max().unwrap_or(0);
        self.counts.fill(most);
    }

    pub(crate) fn clear(&mut self) {
        self.next = None;
        self.sum.clear();
        self.waiters.clear();
    }
}
