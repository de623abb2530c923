//! Waits for a condition that others bring about, for those who have no work for it: a batch is complete, say.
//!
//! Who changes something stores it first and then looks for sleepers under the lock; who is about to sleep enters the
//! list under the same lock and then looks at what is stored. So one of the two sees the other. Sleepers stay in the
//! list until they leave it, since what woke them may have been meant for another.
//!
//! Nothing is allocated for a wait while at most two threads wait for one condition.

use super::Target;
use super::awaited::{Awaited, Describe, Which};
use crate::LinkId;
use crate::park::Parker;
use crate::sync::{AtomicU32, Mutex, Ordering, fence};
use smallvec::SmallVec;
use std::sync::{Arc, Weak};

/// Those who wait for something.
#[derive(Default)]
pub struct Condition {
    list: Mutex<SmallVec<[Arc<Parker>; 2]>>,
    /// How many there are, so that nobody takes the lock in vain.
    count: AtomicU32,
}

impl Condition {
    /// Something has changed, and is stored. Wakes those who wait, who look for themselves.
    pub fn changed(&self) {
        // The store before it and the look behind it stay in this order, as the other side's do.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) > 0 {
            self.list.lock().iter().for_each(|parker| parker.unpark());
        }
    }

    fn enter(&self, parker: &Arc<Parker>) {
        let mut list = self.list.lock();
        list.push(Arc::clone(parker));
        self.count.fetch_add(1, Ordering::SeqCst);
        drop(list);
        fence(Ordering::SeqCst);
    }

    fn leave(&self, parker: &Arc<Parker>) {
        let mut list = self.list.lock();
        if let Some(at) = list.iter().position(|other| Arc::ptr_eq(other, parker)) {
            list.swap_remove(at);
            self.count.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A wait until `is_met`, for [`wait_for`](super::wait_for).
pub struct Until<'a, F> {
    /// Who is told of each change.
    pub condition: &'a Condition,
    /// Whether it is over; must not block.
    pub is_met: F,
    /// The link whose messages bring it about; any if `None`.
    pub link: Option<LinkId>,
    /// The operation's name, for notices.
    pub operation: &'static str,
    /// Who knows what it waits for, and under which number.
    pub knows: &'a Weak<dyn Describe>,
    /// The number.
    pub which: Which,
}

impl<F: Fn() -> bool> Target for Until<'_, F> {
    fn is_done(&self) -> bool {
        (self.is_met)()
    }

    fn watch(&self, parker: &Arc<Parker>) -> bool {
        self.condition.enter(parker);
        if self.is_done() {
            self.condition.leave(parker);
            return false;
        }
        true
    }

    fn unwatch(&self, parker: &Arc<Parker>) {
        self.condition.leave(parker);
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

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::park::Woken;

    struct Nobody;

    impl Describe for Nobody {
        fn describe(&self, _: Which) -> Option<super::super::awaited::Account> {
            None
        }
    }

    /// One who changes something twice and one who waits for the second time: it is seen, or it wakes.
    #[test]
    fn loom_a_change_is_seen_or_wakes() {
        loom::model(|| {
            let shared = crate::sync::Arc::new((Condition::default(), AtomicU32::new(0)));
            let own = shared.clone();
            let changer = loom::thread::spawn(move || {
                for count in 1..=2 {
                    own.1.store(count, Ordering::Relaxed);
                    own.0.changed();
                }
            });
            let knows: Weak<dyn Describe> = Weak::<Nobody>::new();
            let (condition, is_met) = (&shared.0, || shared.1.load(Ordering::Relaxed) == 2);
            let until = Until { condition, is_met, link: None, operation: "test", knows: &knows, which: [0; 2] };
            let parker = Arc::new(Parker::new());
            if until.watch(&parker) {
                while !until.is_done() {
                    assert_eq!(parker.park(None), Woken::Notified);
                }
                until.unwatch(&parker);
            }
            changer.join().expect("no panic");
            assert!(until.is_done() && condition.list.lock().is_empty());
        });
    }
}
