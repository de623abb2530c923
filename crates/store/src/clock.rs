//! Merges of one slot in the order of arrival, and pulls that wait for those who are far behind.
//!
//! A worker's clock is the number of its pushes. A pull of a worker at clock *c* waits until every worker that is
//! waited for has reached *c − s*, where *s* is the staleness: so what it sees contains every push that is more than
//! *s* behind its own (stale synchronous parallel, Ho et al. 2013, "More Effective Distributed ML via a Stale
//! Synchronous Parallel Parameter Server"). Without a bound this is an asynchronous store.

use crate::held::Lack;
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
    /// How often each worker has pushed: its clock may have been set beyond that.
    heard: Vec<u64>,
    staleness: u64,
    /// A contribution that is not merged.
    next: Option<(Gradient, RequestId)>,
    sum: Sum,
    waiters: Vec<Waiter>,
}

impl Clock {
    pub(crate) fn new(workers: usize, staleness: u64) -> Self {
        let zeros = || vec![0; workers];
        Self { counts: zeros(), heard: zeros(), staleness, next: None, sum: Sum::default(), waiters: Vec::new() }
    }

    pub(crate) fn contribute(&mut self, worker: usize, gradient: Gradient, request: RequestId) {
        self.counts[worker] += 1;
        self.heard[worker] += 1;
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

    /// What a request that waits lacks.
    pub(crate) fn lack(&self, counted: &Counted, request: RequestId) -> Option<Lack> {
        let count = self.waiters.iter().find(|waiter| waiter.request == request)?.after;
        let missing = (0..self.counts.len()).filter(|worker| counted[*worker] && self.counts[*worker] < count);
        Some(Lack::Clock { count, missing: missing.collect() })
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.waiters.is_empty()
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

    pub(crate) fn clear(&mut self) {
        self.next = None;
        self.sum.clear();
        self.waiters.clear();
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
