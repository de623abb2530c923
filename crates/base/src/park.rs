//! How one thread sleeps and another wakes it.
//!
//! A [`Parker`] belongs to one thread. Its state word moves `EMPTY → PARKED | ELSEWHERE → EMPTY` under its owner and to
//! `NOTIFIED` under anybody. `unpark` swaps `NOTIFIED` in and acts on what it found: nothing for `EMPTY` (the owner
//! sees the mark before it sleeps), a futex wake for `PARKED`, the bell for `ELSEWHERE` (the owner sleeps in
//! `epoll_wait` and only its descriptor wakes it). The owner goes to sleep with a compare-exchange from `EMPTY`, which
//! fails when a notification came first. Notifications are taken by a swap, which reads the last of them: what each
//! notifier has stored before is seen behind it, also where several come at once. So no wake-up is lost, and a
//! notification that nobody needed costs one spurious return.

use crate::sync::{AtomicU32, Mutex, Ordering};
use std::sync::Arc;
use std::time::Duration;

const EMPTY: u32 = 0;
const PARKED: u32 = 1;
const ELSEWHERE: u32 = 2;
const NOTIFIED: u32 = 3;

/// Wakes a thread that sleeps outside its parker, in `epoll_wait` for example. Must not block.
pub trait Bell: Send + Sync {
    /// Makes the sleeper return.
    fn ring(&self);
}

/// Why [`Parker::park`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Somebody called [`Parker::unpark`].
    Notified,
    /// The time was up.
    TimedOut,
    /// A signal handler ran on this thread.
    Interrupted,
}

/// The place where one thread sleeps.
#[derive(Default)]
pub struct Parker {
    state: AtomicU32,
    bell: Mutex<Option<Arc<dyn Bell>>>,
    #[cfg(loom)]
    notified: loom::sync::Notify,
}

impl Parker {
    /// A parker that nobody has notified.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: AtomicU32::new(EMPTY),
            bell: Mutex::new(None),
            #[cfg(loom)]
            notified: loom::sync::Notify::new(),
        }
    }

    /// Sleeps until notified, for at most `timeout`. Only the owning thread may call it.
    pub fn park(&self, timeout: Option<Duration>) -> Woken {
        if self.state.compare_exchange(EMPTY, PARKED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // Taken, not overwritten: it may have been notified again since, and what the last to do so has stored must
            // be seen by the owner's next look.
            self.state.swap(EMPTY, Ordering::AcqRel);
            return Woken::Notified;
        }
        let reason = self.sleep(timeout);
        if self.state.swap(EMPTY, Ordering::AcqRel) == NOTIFIED { Woken::Notified } else { reason }
    }

    #[cfg(not(loom))]
    fn sleep(&self, timeout: Option<Duration>) -> Woken {
        #[cfg(feature = "simulated")]
        if let Some(system) = crate::simulated::current() {
            let until = crate::simulated::until(&*system, timeout);
            return if system.wait(self.place(), until) { Woken::Notified } else { Woken::TimedOut };
        }
        use rustix::thread::futex::{Flags, Timespec, wait};
        let limit = timeout.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()) as _,
        });
        match wait(&self.state, Flags::PRIVATE, PARKED, limit.as_ref()) {
            Err(rustix::io::Errno::TIMEDOUT) => Woken::TimedOut,
            Err(rustix::io::Errno::INTR) => Woken::Interrupted,
            _ => Woken::Notified,
        }
    }

    #[cfg(loom)]
    fn sleep(&self, _timeout: Option<Duration>) -> Woken {
        while self.state.load(Ordering::Acquire) == PARKED {
            self.notified.wait();
        }
        Woken::Notified
    }

    /// Announces that the owner is about to sleep where only `bell` wakes it. False when a notification came first:
    /// then the owner must not sleep. Followed by [`Parker::leave_elsewhere`] in both cases.
    pub fn enter_elsewhere(&self, bell: &Arc<dyn Bell>) -> bool {
        {
            let mut current = self.bell.lock();
            if !current.as_ref().is_some_and(|current| Arc::ptr_eq(current, bell)) {
                *current = Some(Arc::clone(bell));
            }
        }
        self.state.compare_exchange(EMPTY, ELSEWHERE, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The owner is awake again. True when it was notified meanwhile.
    pub fn leave_elsewhere(&self) -> bool {
        self.state.swap(EMPTY, Ordering::AcqRel) == NOTIFIED
    }

    /// Wakes the owner, or keeps it from falling asleep the next time. Never blocks; callable from any thread.
    pub fn unpark(&self) {
        match self.state.swap(NOTIFIED, Ordering::AcqRel) {
            PARKED => self.wake(),
            ELSEWHERE => {
                let bell = self.bell.lock().clone();
                if let Some(bell) = bell {
                    bell.ring();
                }
            }
            _ => {}
        }
    }

    #[cfg(not(loom))]
    fn wake(&self) {
        #[cfg(feature = "simulated")]
        if let Some(system) = crate::simulated::current() {
            return system.wake(self.place());
        }
        // A failed wake means that nobody sleeps on the word, which is what a wake is for.
        let _ = rustix::thread::futex::wake(&self.state, rustix::thread::futex::Flags::PRIVATE, 1);
    }

    /// The place where a simulation keeps its owner.
    #[cfg(feature = "simulated")]
    fn place(&self) -> usize {
        std::ptr::from_ref(&self.state).addr()
    }

    #[cfg(loom)]
    fn wake(&self) {
        self.notified.notify();
    }
}

impl std::fmt::Debug for Parker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parker").finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
thread_local! {
    static PARKER: Arc<Parker> = Arc::new(Parker::new());
}

/// The calling thread's parker.
#[cfg(not(loom))]
#[must_use]
pub fn current_parker() -> Arc<Parker> {
    PARKER.with(Arc::clone)
}

/// Under loom every call makes a parker, since loom's objects must not outlive one execution.
#[cfg(loom)]
#[must_use]
pub fn current_parker() -> Arc<Parker> {
    Arc::new(Parker::new())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_notification_before_the_park_is_kept() {
        let parker = Parker::new();
        parker.unpark();
        assert_eq!(parker.park(Some(Duration::from_secs(20))), Woken::Notified);
        assert_eq!(parker.park(Some(Duration::from_millis(1))), Woken::TimedOut);
    }

    #[test]
    fn another_thread_wakes_a_sleeper() {
        let parker = Arc::new(Parker::new());
        let waker = Arc::clone(&parker);
        let started = Instant::now();
        let thread = std::thread::spawn(move || waker.unpark());
        assert_eq!(parker.park(Some(Duration::from_secs(20))), Woken::Notified);
        assert!(started.elapsed() < Duration::from_secs(10));
        thread.join().expect("the waker does not panic");
    }

    #[test]
    fn a_thread_that_sleeps_elsewhere_is_rung() {
        struct Flag(std::sync::atomic::AtomicBool);
        impl Bell for Flag {
            fn ring(&self) {
                self.0.store(true, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let flag = Arc::new(Flag(false.into()));
        let bell: Arc<dyn Bell> = flag.clone();
        let parker = Parker::new();
        assert!(parker.enter_elsewhere(&bell));
        parker.unpark();
        assert!(flag.0.load(std::sync::atomic::Ordering::SeqCst));
        assert!(parker.leave_elsewhere());
        parker.unpark();
        assert!(!parker.enter_elsewhere(&bell), "a pending notification forbids the sleep");
        assert!(parker.leave_elsewhere());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// The second notification may come while the first is being taken.
    #[test]
    fn loom_of_two_notifications_none_is_lost() {
        loom::model(|| {
            let shared = Arc::new((Parker::new(), AtomicU32::new(0)));
            let own = Arc::clone(&shared);
            let notifier = loom::thread::spawn(move || {
                for count in 1..=2 {
                    own.1.store(count, Ordering::Relaxed);
                    own.0.unpark();
                }
            });
            while shared.1.load(Ordering::Relaxed) < 2 {
                shared.0.park(None);
            }
            notifier.join().expect("no panic");
        });
    }
}
