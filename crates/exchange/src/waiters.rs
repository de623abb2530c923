//! Threads that sleep until something of an exchange has changed.
//!
//! Whoever changes something stores it first and then looks for sleepers under the lock; whoever is about to sleep
//! enters the list under the same lock and then looks at what is stored. So one of the two sees the other. Sleepers
//! stay in the list until they leave it, since what woke them may have been meant for another.

use parking_lot::Mutex;
use sheave_base::LinkId;
use sheave_base::park::Parker;
use sheave_base::work::Target;
use sheave_base::work::awaited::{Awaited, Describe, Which};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Weak};

#[derive(Default)]
pub(crate) struct Waiters {
    list: Mutex<SmallVec<[Arc<Parker>; 2]>>,
    /// How many there are, so that nobody takes the lock in vain.
    count: AtomicU32,
}

impl Waiters {
    /// Something has changed, and is stored.
    pub(crate) fn wake(&self) {
        if self.count.load(SeqCst) > 0 {
            self.list.lock().iter().for_each(|parker| parker.unpark());
        }
    }

    fn enter(&self, parker: &Arc<Parker>) {
        let mut list = self.list.lock();
        list.push(Arc::clone(parker));
        self.count.fetch_add(1, SeqCst);
    }

    fn leave(&self, parker: &Arc<Parker>) {
        let mut list = self.list.lock();
        if let Some(at) = list.iter().position(|other| Arc::ptr_eq(other, parker)) {
            list.swap_remove(at);
            self.count.fetch_sub(1, SeqCst);
        }
    }
}

/// A wait for a condition that words of an exchange bring about.
pub(crate) struct Until<'a, F> {
    pub(crate) waiters: &'a Waiters,
    pub(crate) is_met: F,
    pub(crate) link: Option<LinkId>,
    pub(crate) operation: &'static str,
    /// Who knows what it waits for, and under which number.
    pub(crate) knows: &'a Weak<dyn Describe>,
    pub(crate) which: Which,
}

impl<F: Fn() -> bool> Target for Until<'_, F> {
    fn is_done(&self) -> bool {
        (self.is_met)()
    }

    fn watch(&self, parker: &Arc<Parker>) -> bool {
        self.waiters.enter(parker);
        if self.is_done() {
            self.waiters.leave(parker);
            return false;
        }
        true
    }

    fn unwatch(&self, parker: &Arc<Parker>) {
        self.waiters.leave(parker);
    }

    fn link(&self) -> Option<LinkId> {
        self.link
    }

    fn operation(&self) -> &'static str {
        self.operation
    }

    fn awaited(&self) -> Option<Awaited> {
        Some(Awaited::new(Weak::clone(self.knows), self.which))
    }
}
