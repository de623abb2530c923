//! What a node keeps of a group while any of its members has a handle to it.

use std::any::Any;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

/// A group's numbers, and what a service keeps beside them. It outlives the handles of this node: a group that is made
/// again goes on with it, until every member has dropped its handles.
#[derive(Default)]
pub struct GroupRecord {
    /// Operations of services that this node has begun, in the order in which all members begin them.
    operations: AtomicU64,
    /// How many of them are in flight.
    in_flight: AtomicU64,
    /// How often the group was split.
    splits: AtomicU64,
    is_broken: AtomicBool,
    kept: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl GroupRecord {
    /// Begins so many operations, and returns the number of the first one.
    #[inline]
    pub fn begin_operations(&self, count: u64) -> u64 {
        self.operations.fetch_add(count, SeqCst)
    }

    /// Returns how many operations this node has begun.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations.load(SeqCst)
    }

    /// Notes that an operation did not end at once.
    pub fn note_in_flight(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// Notes the end of an operation that did not end at once.
    pub fn note_ended(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    pub(crate) fn has_in_flight(&self) -> bool {
        self.in_flight.load(Relaxed) > 0
    }

    /// Returns the number of the next split.
    pub fn next_split(&self) -> u64 {
        self.splits.fetch_add(1, SeqCst)
    }

    /// Returns whether the group is broken, without a lock.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.is_broken.load(SeqCst)
    }

    pub(crate) fn note_broken(&self) {
        self.is_broken.store(true, SeqCst);
    }

    /// Returns what a service keeps of this group, and makes it if there is none. One service has one type; another
    /// type gets one that nobody keeps.
    pub fn keep<T: Any + Send + Sync + Default>(&self) -> Arc<T> {
        let kept = self.kept.get_or_init(|| Arc::new(T::default()));
        Arc::clone(kept).downcast().unwrap_or_default()
    }

    /// Returns what a service keeps of this group, if it does.
    #[must_use]
    pub fn kept<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.kept.get()?).downcast().ok()
    }

    /// The same numbers, with nothing that services keep.
    pub(crate) fn numbers(&self) -> Self {
        Self {
            operations: AtomicU64::new(self.operations()),
            in_flight: AtomicU64::new(self.in_flight.load(Relaxed)),
            splits: AtomicU64::new(self.splits.load(SeqCst)),
            is_broken: AtomicBool::new(self.is_broken()),
            kept: OnceLock::new(),
        }
    }

    /// Whether there is nothing that a group that is made anew would lack.
    pub(crate) fn is_pristine(&self) -> bool {
        self.operations() == 0 && self.splits.load(SeqCst) == 0
    }
}

impl std::fmt::Debug for GroupRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupRecord").field("operations", &self.operations).finish_non_exhaustive()
    }
}
