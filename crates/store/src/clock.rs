//! Merges of one slot in the order of arrival, and pulls that wait for those who are far behind.
//!
//! A worker's clock is the number of its pushes. A pull of a worker at clock *c* waits until every worker that is
//! waited for has reached *c − s*, where *s* is the staleness: so what it sees contains every push that is more than
//! *s* behind its own (stale synchronous parallel, Ho et al. 2013, "More Effective Distributed ML via a Stale
//! Synchronous Parallel Parameter Server"). Without a bound this is an asynchronous store.
//!
//! Most merges are done at once. One by user code is done elsewhere ([`crate::user_merge`]), and pushes that come
//! meanwhile wait in the order in which they came. A clock has reached a push when that is merged, and a pull waits for
//! its worker's own pushes in any case. The server bounds how many wait.

use crate::held::Lack;
use crate::round::Counted;
use crate::slot::{Merge, Slot, guarded};
use crate::sum::{Gradient, Sum};
use crate::user_merge::{Ticket, UserMerge};
use crate::waiter::{Advance, Completed, RequestId, Waiter};
use sheave_base::Result;
use sheave_tensor::Arena;
use smallvec::smallvec;
use std::collections::VecDeque;

/// The staleness of a store that never waits.
pub(crate) const UNBOUNDED: u64 = u64::MAX;

/// A push that is not merged.
struct Contribution {
    worker: usize,
    gradient: Gradient,
    request: RequestId,
}

/// A merge by user code that is under way.
struct Aside {
    ticket: Ticket,
    worker: usize,
    request: RequestId,
}

/// A pull that waits for a clock, and for pushes of its own worker.
struct ClockWaiter {
    waiter: Waiter,
    worker: usize,
    /// As many pushes of that worker must be merged.
    own: u64,
}

pub(crate) struct Clock {
    /// By rank.
    counts: Vec<u64>,
    /// How often each worker has pushed: its clock may have been set beyond that.
    heard: Vec<u64>,
    /// How many of those are merged.
    merged: Vec<u64>,
    staleness: u64,
    queue: VecDeque<Contribution>,
    aside: Option<Aside>,
    sum: Sum,
    waiters: Vec<ClockWaiter>,
}

impl Clock {
    pub(crate) fn new(workers: usize, staleness: u64) -> Self {
        let zeros = || vec![0; workers];
        let (counts, heard, merged) = (zeros(), zeros(), zeros());
        let (queue, aside, sum, waiters) = (VecDeque::new(), None, Sum::default(), Vec::new());
        Self { counts, heard, merged, staleness, queue, aside, sum, waiters }
    }

    pub(crate) fn contribute(&mut self, worker: usize, gradient: Gradient, request: RequestId) {
        self.counts[worker] += 1;
        self.heard[worker] += 1;
        self.queue.push_back(Contribution { worker, gradient, request });
    }

    /// The clock that all who are waited for have reached.
    fn reached(&self, counted: &Counted) -> u64 {
        let clock = |worker: usize| self.counts[worker].saturating_sub(self.heard[worker] - self.merged[worker]);
        (0..self.counts.len()).filter(|worker| counted[*worker]).map(clock).min().unwrap_or(u64::MAX)
    }

    /// A pull of a worker: true if it may be served now.
    pub(crate) fn ask(&mut self, counted: &Counted, worker: usize, request: RequestId, piece: usize) -> bool {
        let after = self.counts[worker].saturating_sub(self.staleness);
        let own = self.heard[worker];
        let is_due = self.merged[worker] >= own && (after == 0 || after <= self.reached(counted));
        if !is_due {
            self.waiters.push(ClockWaiter { waiter: Waiter { request, piece, after }, worker, own });
        }
        is_due
    }

    /// Takes those out whose pull may be served now.
    fn take_due(&mut self, counted: &Counted) -> Vec<Waiter> {
        if self.waiters.is_empty() {
            return Vec::new();
        }
        let (reached, merged) = (self.reached(counted), &self.merged);
        let is_due = |waits: &mut ClockWaiter| {
            merged[waits.worker] >= waits.own && (waits.waiter.after == 0 || waits.waiter.after <= reached)
        };
        self.waiters.extract_if(.., is_due).map(|waits| waits.waiter).collect()
    }

    /// Merges what was contributed, and says which pulls are due. Call it until it returns `None`.
    pub(crate) fn advance(
        &mut self,
        counted: &Counted,
        slot: &mut Slot,
        merge: &Merge,
        arena: &Arena,
    ) -> Option<Advance> {
        if self.aside.is_none()
            && let Some(contribution) = self.queue.pop_front()
        {
            return Some(self.merge(contribution, counted, slot, merge, arena));
        }
        let served = self.take_due(counted);
        let completed = Completed { outcome: Ok(()), merged: smallvec![], served };
        (!completed.served.is_empty()).then_some(Advance::Completed(completed))
    }

    fn merge(
        &mut self,
        contribution: Contribution,
        counted: &Counted,
        slot: &mut Slot,
        merge: &Merge,
        arena: &Arena,
    ) -> Advance {
        let Contribution { worker, gradient, request } = contribution;
        let total = self.sum.add(gradient, arena).map(|()| self.sum.take());
        let outcome = match (total, merge) {
            (Ok(Some(total)), Merge::Function(function)) => match slot.set_aside(function, total, arena) {
                Ok(aside) => {
                    self.aside = Some(Aside { ticket: aside.ticket(), worker, request });
                    return Advance::Aside(aside);
                }
                Err(failure) => Err(failure),
            },
            (Ok(Some(mut total)), _) => {
                let outcome = guarded(slot, merge, &mut total, arena);
                self.sum.keep(total, arena);
                // Stores of this kind refuse what needs others ([`Slot::needs_others`]).
                outcome.map(drop)
            }
            (total, _) => total.map(drop),
        };
        Advance::Completed(self.complete(worker, request, outcome, counted))
    }

    /// Ends a merge by user code, if it is under way; [`Clock::advance`] must follow.
    pub(crate) fn take_back(
        &mut self,
        counted: &Counted,
        slot: &mut Slot,
        merge: UserMerge,
        outcome: Result<()>,
        arena: &Arena,
    ) -> Option<Completed> {
        let Aside { worker, request, .. } = self.aside.take_if(|aside| aside.ticket == merge.ticket())?;
        let (outcome, total) = slot.take_back(merge, outcome, arena);
        self.sum.keep(total, arena);
        Some(self.complete(worker, request, outcome, counted))
    }

    /// A push has been merged, or could not be.
    fn complete(&mut self, worker: usize, request: RequestId, outcome: Result<()>, counted: &Counted) -> Completed {
        self.merged[worker] += 1;
        Completed { outcome, merged: smallvec![request], served: self.take_due(counted) }
    }

    /// What a request that waits lacks.
    pub(crate) fn lack(&self, counted: &Counted, request: RequestId) -> Option<Lack> {
        let under_way = usize::from(self.aside.is_some());
        if self.aside.as_ref().is_some_and(|aside| aside.request == request) {
            return Some(Lack::Turn { before: 0 });
        }
        if let Some(at) = self.queue.iter().position(|push| push.request == request) {
            return Some(Lack::Turn { before: at + under_way });
        }
        let waits = self.waiters.iter().find(|waits| waits.waiter.request == request)?;
        if self.merged[waits.worker] < waits.own {
            let is_own = |push: &Contribution| push.worker == waits.worker;
            let before = self.queue.iter().rposition(is_own).map_or(0, |last| last + 1);
            return Some(Lack::Turn { before: before + under_way });
        }
        let count = waits.waiter.after;
        let missing = (0..self.counts.len()).filter(|worker| counted[*worker] && self.counts[*worker] < count);
        Some(Lack::Clock { count, missing: missing.collect() })
    }

    /// Whether anything waits, or is merged elsewhere.
    pub(crate) fn is_busy(&self) -> bool {
        !self.waiters.is_empty() || !self.queue.is_empty() || self.aside.is_some()
    }

    /// Whether a worker has pushed what is not merged.
    pub(crate) fn owes(&self, worker: usize) -> bool {
        self.merged[worker] < self.heard[worker]
    }

    /// How often a worker has pushed.
    pub(crate) fn heard(&self, worker: usize) -> u64 {
        self.heard[worker]
    }

    /// All workers begin anew at the same clock.
    pub(crate) fn level(&mut self) {
        let most = self.counts.iter().copied().max().unwrap_or(0);
        self.counts.fill(most);
    }

    /// How many pushes wait for the merge of others.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn clear(&mut self) {
        self.aside = None;
        self.sum.clear();
        self.waiters.clear();
        self.merged.clone_from(&self.heard);
        self.queue.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::protocol::Storage;
    use crate::slot::Meta;
    use sheave_tensor::{ArenaConfig, Dtype, Shape, Tensor};

    /// Servers compare what they have heard of a worker that is lost, and begin anew at different times.
    #[test]
    fn what_was_heard_of_a_worker_is_the_same_whenever_all_begin_anew() {
        let arena = Arena::new(ArenaConfig { capacity_bytes: 1 << 20, ..ArenaConfig::default() });
        let meta =
            Meta { key: Key::from("w"), dtype: Dtype::F32, shape: Shape::new(&[4]).unwrap(), storage: Storage::Dense };
        let value = || Tensor::from_slice(&[1.0f32; 4], [4]).unwrap();
        let heard = |pushes: &[usize], anew_after: usize| {
            let mut clock = Clock::new(2, 1);
            let mut slot = Slot::new(meta.clone(), 0, &value(), &arena).unwrap();
            for (at, worker) in pushes.iter().enumerate() {
                if at == anew_after {
                    clock.level();
                }
                clock.contribute(*worker, Gradient::Plain(value()), 1);
                while clock.advance(&[true; 2], &mut slot, &Merge::Assign, &arena).is_some() {}
            }
            [clock.heard(0), clock.heard(1)]
        };
        let pushes = [0, 1, 1, 1, 0];
        for anew_after in 0..=pushes.len() {
            assert_eq!(heard(&pushes, anew_after), [2, 3], "anew after {anew_after}");
        }
    }
}
