//! Synchronous rounds of one slot: every worker contributes once, and the sum is taken in the order of the ranks.
//!
//! A contribution is added as soon as all of lower rank are in, so a round needs one sum and no more. A worker that is
//! ahead has its contributions queued; each round takes exactly one of every worker. So what a worker has pushed before
//! is merged after as many rounds as it has contributions here, and a pull waits for that many: it sees the state of
//! just that round, because the next one begins only after it was served.

use crate::slot::{Merge, Slot, flat_copy, overwrite};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Arena, Op, Tensor};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Rounds that a worker may be ahead of the others. Workers count for themselves, so that no server refuses a slice
/// that another one has taken.
pub(crate) const AHEAD_MAX: usize = 64;

/// Names a request of a worker that is not answered.
pub(crate) type RequestId = u64;

struct Contribution {
    tensor: Tensor,
    request: RequestId,
}

/// A pull that waits.
pub(crate) struct Waiter {
    pub(crate) request: RequestId,
    /// Which piece of the answer.
    pub(crate) piece: usize,
    after: u64,
}

pub(crate) struct Round {
    queues: Vec<VecDeque<Contribution>>,
    sum: Option<Tensor>,
    /// Kept for sums whose first contribution cannot be added to.
    scratch: Option<Tensor>,
    /// The rank whose contribution is added next.
    next: usize,
    in_sum: SmallVec<[RequestId; 8]>,
    /// Why the sum of this round is none.
    failure: Option<Error>,
    completed: u64,
    waiters: Vec<Waiter>,
}

/// What a completed round brings about, before the next one begins.
pub(crate) struct Completed {
    pub(crate) outcome: Result<()>,
    pub(crate) merged: SmallVec<[RequestId; 8]>,
    pub(crate) served: Vec<Waiter>,
}

impl Round {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            queues: (0..workers).map(|_| VecDeque::new()).collect(),
            sum: None,
            scratch: None,
            next: 0,
            in_sum: SmallVec::new(),
            failure: None,
            completed: 0,
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

    pub(crate) fn contribute(&mut self, worker: usize, tensor: Tensor, request: RequestId) {
        self.queues[worker].push_back(Contribution { tensor, request });
    }

    /// Contributions of a worker that are not merged.
    pub(crate) fn owes(&self, worker: usize) -> usize {
        self.queues[worker].len() + usize::from(worker < self.next)
    }

    /// A pull of a worker: true if it may be served now, else it waits until what the worker has pushed is merged.
    pub(crate) fn ask(&mut self, worker: usize, request: RequestId, piece: usize) -> bool {
        let own = self.owes(worker);
        if own > 0 {
            self.waiters.push(Waiter { request, piece, after: self.completed + own as u64 });
        }
        own == 0
    }

    /// Adds what can be added. Returns at the end of each round; call it until it returns `None`.
    pub(crate) fn advance(&mut self, slot: &mut Slot, merge: &Merge, arena: &Arena) -> Option<Completed> {
        while let Some(contribution) = self.queues.get_mut(self.next).and_then(VecDeque::pop_front) {
            self.next += 1;
            self.in_sum.push(contribution.request);
            if self.failure.is_none() {
                self.failure = self.add(contribution.tensor, arena).err();
            }
        }
        if self.next < self.queues.len() {
            return None;
        }
        let mut sum = self.sum.take();
        let outcome = match (self.failure.take(), &mut sum) {
            (Some(failure), _) => Err(failure),
            (None, Some(sum)) if matches!(merge, Merge::Assign) => slot.assign(sum, arena),
            (None, Some(sum)) => guarded(slot, merge, sum),
            (None, None) => Err(Error::new(ErrorKind::Internal, "a round without a contribution")),
        };
        // Memory of our own is kept for the next round; a contribution goes back to where it came from.
        self.scratch = self.scratch.take().or(sum.filter(|sum| is_own(sum, arena)));
        self.next = 0;
        self.completed += 1;
        let due = self.completed;
        let (served, waiting) = std::mem::take(&mut self.waiters).into_iter().partition(|waiter| waiter.after <= due);
        self.waiters = waiting;
        Some(Completed { outcome, merged: std::mem::take(&mut self.in_sum), served })
    }

    fn add(&mut self, contribution: Tensor, arena: &Arena) -> Result<()> {
        let Some(mut sum) = self.sum.take() else {
            self.sum = Some(contribution);
            return Ok(());
        };
        if !sum.buffer().is_unique() || sum.buffer().is_read_only() {
            sum = match self.scratch.take() {
                Some(mut scratch) => {
                    overwrite(&mut scratch, &sum)?;
                    scratch
                }
                None => flat_copy(&sum, arena)?,
            };
        }
        sum.reduce_from(Op::Sum, &contribution)?;
        self.sum = Some(sum);
        Ok(())
    }

    /// A worker is gone, and no round can end any more: forgets everything that waits.
    pub(crate) fn clear(&mut self) {
        let (workers, completed) = (self.queues.len(), self.completed);
        *self = Self { completed, ..Self::new(workers) };
    }
}

/// Whether nobody else has a part in the memory of a tensor: no other node, no other tensor.
pub(crate) fn is_own(tensor: &Tensor, arena: &Arena) -> bool {
    let buffer = tensor.buffer();
    arena.owns(buffer) && buffer.is_unique() && tensor.offset_bytes() == 0 && buffer.len_bytes() == tensor.len_bytes()
}

/// Merges; user code that panics fails this round and nothing else.
pub(crate) fn guarded(slot: &mut Slot, merge: &Merge, sum: &Tensor) -> Result<()> {
    catch_unwind(AssertUnwindSafe(|| slot.merge(merge, sum))).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Remote, format!("the updater panicked on key {}", slot.meta.key)))
    })
}
