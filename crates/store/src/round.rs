//! Synchronous rounds of one slot: every worker contributes once, and the sum is taken in the order of the ranks.
//!
//! A contribution is added as soon as all of lower rank are in, so a round needs one sum and no more. A worker that is
//! ahead has its contributions queued; each round takes exactly one of every worker. So what a worker has pushed before
//! is merged after as many rounds as it has contributions here, and a pull waits for that many: it sees the state of
//! just that round, because the next one begins only after it was served.
//!
//! A merge that needs norms of the whole tensor is done in two halves, and one by user code is done elsewhere
//! ([`crate::user_merge`]). Meanwhile the round is complete and not over: contributions are queued, pulls wait, and
//! nothing is answered.
//!
//! A worker that is done or gone is waited for no more ([`Counted`]): rounds still take what it has pushed before, and
//! then go on without it. That depends on what each worker pushes and in which order, and on nothing else; so all
//! servers make the same rounds, whenever they hear of it.

use crate::held::Lack;
use crate::slot::{Merge, Slot, guarded};
use crate::sum::{Gradient, Sum};
use crate::user_merge::{Ticket, UserMerge};
use crate::waiter::{Advance, Completed, RequestId, Waiter, take_due};
use sheave_base::{Error, ErrorKind, Result};
use sheave_optim::Norms;
use sheave_tensor::Arena;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Rounds that a worker may be ahead of the others. Workers count for themselves, so that no server refuses a slice
/// that another one has taken.
pub(crate) const AHEAD_MAX: usize = 64;

/// By rank: whether a worker is waited for.
pub(crate) type Counted = [bool];

struct Contribution {
    gradient: Gradient,
    request: RequestId,
}

/// What a round that is complete waits for.
enum Awaits {
    /// Norms of the whole tensor.
    Norms,
    /// User code.
    Code(Ticket),
}

pub(crate) struct Round {
    queues: Vec<VecDeque<Contribution>>,
    sum: Sum,
    /// The rank whose contribution is added next.
    next: usize,
    /// Those of lower rank who are in the sum.
    is_in: Vec<bool>,
    requests: SmallVec<[RequestId; 8]>,
    /// Why the sum of this round is none.
    failure: Option<Error>,
    /// What the merge of this round waits for.
    awaits: Option<Awaits>,
    completed: u64,
    /// How many contributions of each worker have ever come.
    heard: Vec<u64>,
    waiters: Vec<Waiter>,
}

impl Round {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            queues: (0..workers).map(|_| VecDeque::new()).collect(),
            sum: Sum::default(),
            next: 0,
            is_in: vec![false; workers],
            requests: SmallVec::new(),
            failure: None,
            awaits: None,
            completed: 0,
            heard: vec![0; workers],
            waiters: Vec::new(),
        }
    }

    /// Whether a worker may contribute once more.
    pub(crate) fn check_room(&self, worker: usize) -> Result<()> {
        match self.queues.get(worker) {
            Some(queue) if queue.len() < AHEAD_MAX => Ok(()),
            Some(_) => {
                let what = format!("this worker is {AHEAD_MAX} rounds ahead of the slowest one");
                Err(Error::new(ErrorKind::LimitExceeded, what).hint("wait for earlier pushes before making new ones"))
            }
            None => Err(Error::new(ErrorKind::InvalidArgument, "only workers push")),
        }
    }

    pub(crate) fn contribute(&mut self, worker: usize, gradient: Gradient, request: RequestId) {
        self.heard[worker] += 1;
        self.queues[worker].push_back(Contribution { gradient, request });
    }

    /// Contributions of a worker that are not merged.
    pub(crate) fn owes(&self, worker: usize) -> usize {
        self.queues[worker].len() + usize::from(self.is_in[worker])
    }

    /// A pull of a worker: true if it may be served now, else it waits until what the worker has pushed is merged.
    pub(crate) fn ask(&mut self, worker: usize, request: RequestId, piece: usize) -> bool {
        let own = self.owes(worker);
        if own > 0 {
            self.waiters.push(Waiter { request, piece, after: self.completed + own as u64 });
        }
        own == 0
    }

    /// Adds what can be added. Returns at the end of each round, and in the middle of one whose merge waits for
    /// something; call it until it returns `None`.
    pub(crate) fn advance(
        &mut self,
        counted: &Counted,
        slot: &mut Slot,
        merge: &Merge,
        arena: &Arena,
    ) -> Option<Advance> {
        if self.awaits.is_some() {
            return None;
        }
        while let Some(queue) = self.queues.get_mut(self.next) {
            match queue.pop_front() {
                Some(contribution) => {
                    self.is_in[self.next] = true;
                    self.requests.push(contribution.request);
                    if self.failure.is_none() {
                        self.failure = self.sum.add(contribution.gradient, arena).err();
                    }
                }
                None if counted[self.next] => return None,
                None => {}
            }
            self.next += 1;
        }
        if self.requests.is_empty() {
            self.next = 0;
            return None;
        }
        Some(self.merge(slot, merge, arena))
    }

    /// Merges a round to which all have contributed.
    fn merge(&mut self, slot: &mut Slot, merge: &Merge, arena: &Arena) -> Advance {
        let nothing = || Error::new(ErrorKind::Internal, "a round without a contribution");
        let total = self.failure.take().map_or_else(|| self.sum.take().ok_or_else(nothing), Err);
        let outcome = match (total, merge) {
            (Ok(total), Merge::Function(function)) => match slot.set_aside(function, total, arena) {
                Ok(aside) => {
                    self.awaits = Some(Awaits::Code(aside.ticket()));
                    return Advance::Aside(aside);
                }
                Err(failure) => Err(failure),
            },
            (Ok(mut total), _) => {
                let outcome = guarded(slot, merge, &mut total, arena);
                self.sum.keep(total, arena);
                outcome
            }
            (Err(failure), _) => Err(failure),
        };
        match outcome {
            Ok(None) => Advance::Completed(self.complete(Ok(()))),
            Err(failure) if !slot.needs_others(merge) => Advance::Completed(self.complete(Err(failure))),
            outcome => {
                self.awaits = Some(Awaits::Norms);
                self.failure = outcome.as_ref().err().cloned();
                Advance::Halfway(outcome.ok().flatten())
            }
        }
    }

    /// Ends the round whose merge waits for norms, if one does; [`Round::advance`] must follow.
    pub(crate) fn finish(&mut self, slot: &mut Slot, norms: Result<Norms>) -> Option<Completed> {
        self.awaits.take_if(|awaits| matches!(awaits, Awaits::Norms))?;
        let norms = self.failure.take().map_or(norms, Err);
        Some(self.complete(slot.finish(norms)))
    }

    /// Ends the round that waits for this merge by user code, if one does; [`Round::advance`] must follow.
    pub(crate) fn take_back(
        &mut self,
        slot: &mut Slot,
        aside: UserMerge,
        outcome: Result<()>,
        arena: &Arena,
    ) -> Option<Completed> {
        self.awaits.take_if(|awaits| matches!(awaits, Awaits::Code(ticket) if *ticket == aside.ticket()))?;
        let (outcome, total) = slot.take_back(aside, outcome, arena);
        self.sum.keep(total, arena);
        Some(self.complete(outcome))
    }

    fn complete(&mut self, outcome: Result<()>) -> Completed {
        self.next = 0;
        self.is_in.fill(false);
        self.completed += 1;
        let served = take_due(&mut self.waiters, self.completed);
        Completed { outcome, merged: std::mem::take(&mut self.requests), served }
    }

    /// What a request that waits lacks.
    pub(crate) fn lack(&self, counted: &Counted, request: RequestId) -> Option<Lack> {
        // Counted from the round under way.
        let round = self.round_of(request)?;
        let number = self.completed + 1 + round as u64;
        match self.awaits.as_ref().filter(|_| round == 0) {
            Some(Awaits::Norms) => return Some(Lack::Norms { number }),
            Some(Awaits::Code(_)) => return Some(Lack::Code { number }),
            None => {}
        }
        let missing = (0..self.queues.len()).filter(|worker| counted[*worker] && self.owes(*worker) <= round);
        Some(Lack::Round { number, missing: missing.collect() })
    }

    /// The round that a request waits for, 0 for the one under way.
    fn round_of(&self, request: RequestId) -> Option<usize> {
        if self.requests.contains(&request) {
            return Some(0);
        }
        let queued = self.queues.iter().zip(&self.is_in).find_map(|(queue, is_in)| {
            let at = queue.iter().position(|contribution| contribution.request == request)?;
            Some(at + usize::from(*is_in))
        });
        let waits = || self.waiters.iter().find(|waiter| waiter.request == request);
        queued.or_else(|| Some((waits()?.after - self.completed - 1) as usize))
    }

    /// Whether anybody has contributed to a round that has not ended, or waits for one.
    pub(crate) fn is_busy(&self) -> bool {
        !self.waiters.is_empty() || (0..self.queues.len()).any(|worker| self.owes(worker) > 0)
    }

    /// No round can end any more: forgets everything that waits, and half a merge.
    pub(crate) fn clear(&mut self, slot: &mut Slot) {
        slot.memory.abandon();
        let (workers, completed) = (self.queues.len(), self.completed);
        *self = Self { completed, ..Self::new(workers) };
    }

    /// How many contributions of a worker have ever come.
    pub(crate) fn heard(&self, worker: usize) -> u64 {
        self.heard[worker]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::protocol::Storage;
    use crate::slot::Meta;
    use sheave_optim::{BlockSums, Lamb, Rule};
    use sheave_tensor::{ArenaConfig, Dtype, Shape, Tensor};

    /// Of each of two slices.
    const ELEMENTS: usize = 8192;

    type Pair = [(Round, Slot); 2];

    fn pair(arena: &Arena) -> Pair {
        let shape = Shape::new(&[2 * ELEMENTS as u64]).unwrap();
        let meta = Meta { key: Key::from("w"), dtype: Dtype::F32, shape, storage: Storage::Dense };
        let first = Tensor::from_slice(&[1.0f32; ELEMENTS], [ELEMENTS as u64]).unwrap();
        [0, ELEMENTS].map(|start| (Round::new(1), Slot::new(meta.clone(), start as u64, &first, arena).unwrap()))
    }

    /// A round of both slices, whose home puts the norms together.
    fn step(pair: &mut Pair, gradients: [Tensor; 2], arena: &Arena) -> [Result<()>; 2] {
        let rule = Rule::Lamb(Lamb { learning_rate: 0.1, weight_decay: 0.1, ..Lamb::default() });
        let merge = Merge::Optimizer(Box::new(rule.into()));
        let mut sums: Vec<Option<BlockSums>> = Vec::new();
        for ((round, slot), gradient) in pair.iter_mut().zip(gradients) {
            round.contribute(0, Gradient::Plain(gradient), 1);
            match round.advance(&[true], slot, &merge, arena) {
                Some(Advance::Halfway(said)) => sums.push(said),
                _ => panic!("a slice needs the other one"),
            }
        }
        let failed = || Error::new(ErrorKind::Remote, "the merge of another slice has failed");
        let sums: Result<Vec<BlockSums>> = sums.into_iter().map(|said| said.ok_or_else(failed)).collect();
        let norms = sums.and_then(Norms::combine);
        pair.each_mut().map(|(round, slot)| round.finish(slot, norms.clone()).unwrap().outcome)
    }

    #[test]
    fn f10_slices_that_have_prepared_a_step_that_failed_go_on_together() {
        let arena = Arena::new(ArenaConfig { capacity_bytes: 16 << 20, ..ArenaConfig::default() });
        let good = |value: f32| Tensor::from_slice(&[value; ELEMENTS], [ELEMENTS as u64]).unwrap();
        let bad = Tensor::from_slice(&[1.0f64; ELEMENTS], [ELEMENTS as u64]).unwrap();
        let bits = |pair: &Pair| pair.each_ref().map(|(_, slot)| slot.value.to_vec::<f32>().unwrap());
        let (mut pair, mut undisturbed) = (pair(&arena), pair(&arena));
        for gradient in [0.5, -0.25, 2.0] {
            let before = bits(&pair);
            for failing in [[good(9.0), bad.clone()], [bad.clone(), good(9.0)]] {
                assert!(step(&mut pair, failing, &arena).iter().all(Result::is_err), "one half has failed");
                assert_eq!(bits(&pair), before);
            }
            for pair in [&mut pair, &mut undisturbed] {
                let [first, second] = step(pair, [good(gradient), good(gradient + 1.0)], &arena);
                first.and(second).expect("nothing is left of what failed");
            }
            assert_eq!(bits(&pair), bits(&undisturbed));
        }
    }
}
