//! What went wrong, as a program sees it.

use serde::{Deserialize, Serialize};

/// What went wrong, as far as a program can act on it. The order of the kinds is their code on the wire: new ones come
/// last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A peer that the operation needs ended, cut its link or stopped beating.
    PeerLost,
    /// This process was declared dead by its peers while it was silent; it must join again.
    DeclaredDead,
    /// The operation's deadline passed.
    DeadlineExceeded,
    /// The operation was cancelled by its owner.
    Cancelled,
    /// A blocking wait was interrupted by a signal (Ctrl-C).
    Interrupted,
    /// Two sides disagree about shape, dtype, operation, length or sequence.
    Mismatch,
    /// The caller's argument has no meaning here.
    InvalidArgument,
    /// The operation has no meaning on this medium, device or dtype.
    Unsupported,
    /// A named thing does not exist.
    NotFound,
    /// A named thing exists already.
    AlreadyExists,
    /// The other side could not prove that it knows the job's secret.
    Unauthenticated,
    /// The other side sent bytes that are not the protocol.
    Protocol,
    /// A limit was reached; the message names it.
    LimitExceeded,
    /// A buffer is held by an operation in flight.
    BufferInUse,
    /// The local end was closed.
    Closed,
    /// The handle was made in another process, before a fork.
    Forked,
    /// User code on another node failed; the message carries its text and origin.
    Remote,
    /// The operating system refused.
    Io,
    /// An invariant of sheave itself does not hold: a bug.
    Internal,
    /// The other side is not one of those who may ask for that.
    NotPermitted,
    /// A process that works for the operation has ended: a lost peer of which the end is known, with its status and
    /// last lines as [`Error::process_end`](crate::Error::process_end) says.
    WorkerDied,
    /// The operation waits for itself, by way of others: none of them can go on.
    Deadlock,
}

impl ErrorKind {
    /// Every kind in the order of their codes, for faces that map them one to one.
    pub const ALL: &'static [Self] = &[
        Self::PeerLost,
        Self::DeclaredDead,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::Interrupted,
        Self::Mismatch,
        Self::InvalidArgument,
        Self::Unsupported,
        Self::NotFound,
        Self::AlreadyExists,
        Self::Unauthenticated,
        Self::Protocol,
        Self::LimitExceeded,
        Self::BufferInUse,
        Self::Closed,
        Self::Forked,
        Self::Remote,
        Self::Io,
        Self::Internal,
        Self::NotPermitted,
        Self::WorkerDied,
        Self::Deadlock,
    ];

    /// Returns whether the operation failed because somebody whom it needs is gone. Code that acts on losses asks this
    /// and compares with no single kind.
    ///
    /// ```
    /// use sheave_base::ErrorKind;
    ///
    /// assert!(ErrorKind::PeerLost.is_loss() && ErrorKind::WorkerDied.is_loss());
    /// assert!(!ErrorKind::DeadlineExceeded.is_loss());
    /// ```
    #[must_use]
    pub const fn is_loss(self) -> bool {
        matches!(self, Self::PeerLost | Self::WorkerDied)
    }

    /// Returns the kind as one lower-case phrase.
    #[must_use]
    pub fn phrase(self) -> &'static str {
        match self {
            Self::PeerLost => "was lost",
            Self::DeclaredDead => "this process was declared dead",
            Self::DeadlineExceeded => "deadline exceeded",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
            Self::Mismatch => "mismatch",
            Self::InvalidArgument => "invalid argument",
            Self::Unsupported => "unsupported",
            Self::NotFound => "not found",
            Self::AlreadyExists => "already exists",
            Self::Unauthenticated => "not authenticated",
            Self::Protocol => "protocol violated",
            Self::LimitExceeded => "limit exceeded",
            Self::BufferInUse => "buffer in use",
            Self::Closed => "closed",
            Self::Forked => "used in a forked child",
            Self::Remote => "remote error",
            Self::Io => "system error",
            Self::Internal => "internal error",
            Self::NotPermitted => "not permitted",
            Self::WorkerDied => "died",
            Self::Deadlock => "deadlock",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_kind_has_a_phrase_of_its_own() {
        let phrases: HashSet<_> = ErrorKind::ALL.iter().map(|kind| kind.phrase()).collect();
        assert_eq!(phrases.len(), ErrorKind::ALL.len());
    }

    #[test]
    fn f60_all_kinds_stand_in_the_order_of_their_codes() {
        for (code, kind) in ErrorKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, code, "{kind:?}");
        }
        // The last one in the list is the last one there is.
        assert_eq!(ErrorKind::ALL.last(), Some(&ErrorKind::Deadlock));
    }

    #[test]
    fn whoever_died_is_lost() {
        let losses: Vec<_> = ErrorKind::ALL.iter().filter(|kind| kind.is_loss()).collect();
        assert_eq!(losses, [&ErrorKind::PeerLost, &ErrorKind::WorkerDied]);
    }
}
