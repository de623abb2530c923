//! A slot on a server, and how pushes come to it.

use crate::clock::{Clock, UNBOUNDED};
use crate::kind::Kind;
use crate::protocol::Open;
use crate::round::{Counted, Round};
use crate::slot::{Merge, Slot};
use crate::sum::Gradient;
use crate::user_merge::UserMerge;
use crate::waiter::{Advance, Completed, RequestId};
use sheave_base::{Error, ErrorKind, Result};
use sheave_optim::Norms;
use sheave_tensor::Arena;

pub(crate) struct Held {
    /// The slice's.
    pub(crate) number: u64,
    pub(crate) slot: Slot,
    pace: Pace,
}

/// What a request lacks at one slot.
pub(crate) enum Lack {
    /// The round of this number, counted from 1, needs contributions of these workers.
    Round { number: u64, missing: Vec<usize> },
    /// All have contributed to the round, and the norms of the whole tensor are not there.
    Norms { number: u64 },
    /// All have contributed to the round, and user code merges it.
    Code { number: u64 },
    /// User code merges other pushes, and there are so many before it.
    Turn { before: usize },
    /// These workers have not pushed so often.
    Clock { count: u64, missing: Vec<usize> },
}

enum Pace {
    Round(Round),
    Clock(Clock),
}

impl Held {
    pub(crate) fn new(number: u64, slot: Slot, open: &Open, workers: usize) -> Self {
        let pace = match open.kind {
            Kind::DistSync => Pace::Round(Round::new(workers)),
            Kind::DistSsp => Pace::Clock(Clock::new(workers, open.staleness)),
            _ => Pace::Clock(Clock::new(workers, UNBOUNDED)),
        };
        Self { number, slot, pace }
    }

    /// Whether a worker may push once more.
    pub(crate) fn check_room(&self, worker: usize) -> Result<()> {
        match &self.pace {
            Pace::Round(round) => round.check_room(worker),
            Pace::Clock(_) => Ok(()),
        }
    }

    /// Takes a push; [`Held::advance`] must follow.
    pub(crate) fn contribute(&mut self, worker: usize, gradient: Gradient, request: RequestId) {
        match &mut self.pace {
            Pace::Round(round) => round.contribute(worker, gradient, request),
            Pace::Clock(clock) => clock.contribute(worker, gradient, request),
        }
    }

    /// A pull of a worker: true if it may be served now, else it is served by a later [`Held::advance`].
    pub(crate) fn ask(&mut self, counted: &Counted, worker: usize, request: RequestId, piece: usize) -> bool {
        match &mut self.pace {
            Pace::Round(round) => round.ask(worker, request, piece),
            Pace::Clock(clock) => clock.ask(counted, worker, request, piece),
        }
    }

    /// Merges what can be merged, one step; call it until it returns `None`.
    pub(crate) fn advance(&mut self, counted: &Counted, merge: &Merge, arena: &Arena) -> Option<Advance> {
        match &mut self.pace {
            Pace::Round(round) => round.advance(counted, &mut self.slot, merge, arena),
            Pace::Clock(clock) => clock.advance(counted, &mut self.slot, merge, arena),
        }
    }

    /// Ends a merge that waits for norms of the whole tensor, if one does; [`Held::advance`] must follow.
    pub(crate) fn finish(&mut self, norms: Result<Norms>) -> Option<Completed> {
        match &mut self.pace {
            Pace::Round(round) => round.finish(&mut self.slot, norms),
            Pace::Clock(_) => None,
        }
    }

    /// Ends a merge by user code, if the slot waits for it still; [`Held::advance`] must follow.
    pub(crate) fn take_back(
        &mut self,
        counted: &Counted,
        aside: UserMerge,
        outcome: Result<()>,
        arena: &Arena,
    ) -> Option<Completed> {
        match &mut self.pace {
            Pace::Round(round) => round.take_back(&mut self.slot, aside, outcome, arena),
            Pace::Clock(clock) => clock.take_back(counted, &mut self.slot, aside, outcome, arena),
        }
    }

    /// Refuses a merge that needs other slices where slices are not merged in rounds.
    pub(crate) fn check_merge(&self, merge: &Merge) -> Result<()> {
        match &self.pace {
            Pace::Clock(_) if self.slot.needs_others(merge) => {
                let what =
                    format!("key {} is cut, and this optimizer needs norms of whole tensors", self.slot.meta.key);
                Err(Error::new(ErrorKind::Unsupported, what)
                    .hint("use dist_sync, or a Config whose cut_elements and slice_elements cut no tensor"))
            }
            _ => Ok(()),
        }
    }

    /// What a request that waits lacks here, if it does.
    pub(crate) fn lack(&self, counted: &Counted, request: RequestId) -> Option<Lack> {
        match &self.pace {
            Pace::Round(round) => round.lack(counted, request),
            Pace::Clock(clock) => clock.lack(counted, request),
        }
    }

    /// Whether anybody waits for it.
    pub(crate) fn is_busy(&self) -> bool {
        match &self.pace {
            Pace::Round(round) => round.is_busy(),
            Pace::Clock(clock) => clock.is_busy(),
        }
    }

    /// Whether a worker has pushed what is not merged.
    pub(crate) fn owes(&self, worker: usize) -> bool {
        match &self.pace {
            Pace::Round(round) => round.owes(worker) > 0,
            Pace::Clock(clock) => clock.owes(worker),
        }
    }

    /// How often a worker has pushed to it, where that must be the same for all slices of a key.
    pub(crate) fn heard(&self, worker: usize) -> u64 {
        match &self.pace {
            Pace::Round(round) => round.heard(worker),
            Pace::Clock(clock) => clock.heard(worker),
        }
    }

    /// All workers begin anew together.
    pub(crate) fn level(&mut self) {
        if let Pace::Clock(clock) = &mut self.pace {
            clock.level();
        }
    }

    /// How many pushes wait for user code that merges others.
    pub(crate) fn queued(&self) -> usize {
        match &self.pace {
            Pace::Round(_) => 0,
            Pace::Clock(clock) => clock.queued(),
        }
    }

    /// Nothing will be merged any more: forgets everything that waits.
    pub(crate) fn clear(&mut self) {
        match &mut self.pace {
            Pace::Round(round) => round.clear(&mut self.slot),
            Pace::Clock(clock) => clock.clear(),
        }
    }
}
