//! Pulls that wait for what was pushed before them.

use crate::user_merge::UserMerge;
use sheave_base::Result;
use sheave_optim::BlockSums;
use smallvec::SmallVec;

/// Names a request of a worker that is not answered.
pub(crate) type RequestId = u64;

/// A pull that waits.
pub(crate) struct Waiter {
    pub(crate) request: RequestId,
    /// Which piece of the answer.
    pub(crate) piece: usize,
    /// For how much.
    pub(crate) after: u64,
}

/// How far a slot has come.
#[expect(clippy::large_enum_variant, reason = "it is looked at where it is made")]
pub(crate) enum Advance {
    Completed(Completed),
    /// User code is to do the merge, on a lane.
    Aside(UserMerge),
    /// A merge is half done, and waits for the norms of the whole tensor. None if it has failed here, which the other
    /// slices must know.
    Halfway(Option<BlockSums>),
}

/// What a merge brings about, before the next one begins.
pub(crate) struct Completed {
    pub(crate) outcome: Result<()>,
    /// The requests whose contributions are merged now.
    pub(crate) merged: SmallVec<[RequestId; 8]>,
    /// Pulls that are due.
    pub(crate) served: Vec<Waiter>,
}

/// Takes those out who have waited for no more than `reached`.
pub(crate) fn take_due(waiters: &mut Vec<Waiter>, reached: u64) -> Vec<Waiter> {
    if waiters.is_empty() {
        return Vec::new();
    }
    let (due, waiting) = std::mem::take(waiters).into_iter().partition(|waiter| waiter.after <= reached);
    *waiters = waiting;
    due
}
