//! The synchronisation types of sheave: the standard library's (and `parking_lot`'s locks), or loom's under `--cfg
//! loom`, so that the same source is executed in production and explored exhaustively in the loom lane.

#[cfg(not(loom))]
pub use parking_lot::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(loom)]
pub use loom::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// Stands where the order of sequentially consistent accesses to different words matters. The accesses themselves see
/// to it, and it is nothing; but loom knows that order of fences alone.
#[inline(always)]
pub fn sequential() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// loom's mutex behind the interface of `parking_lot`'s: no poisoning.
#[cfg(loom)]
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
pub use loom::sync::MutexGuard;

#[cfg(loom)]
impl<T> Mutex<T> {
    /// A mutex that holds `value`.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread panics while it holds a lock under loom")
    }
}

/// A condition variable for `parking_lot`'s locks, which a simulation can serve. No model for loom knows it.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// Blocks until notified, with the lock let go meanwhile. May return early.
    pub fn wait<T>(&self, guard: &mut parking_lot::MutexGuard<'_, T>) {
        #[cfg(all(feature = "simulated", not(loom)))]
        if self.is_simulated(guard, None) {
            return;
        }
        self.0.wait(guard);
    }

    /// As [`Condvar::wait`], for at most `limit`.
    pub fn wait_for<T>(&self, guard: &mut parking_lot::MutexGuard<'_, T>, limit: std::time::Duration) {
        #[cfg(all(feature = "simulated", not(loom)))]
        if self.is_simulated(guard, Some(limit)) {
            return;
        }
        self.0.wait_for(guard, limit);
    }

    /// Wakes one of those who wait, or more.
    pub fn notify_one(&self) {
        #[cfg(all(feature = "simulated", not(loom)))]
        self.wake_simulated();
        self.0.notify_one();
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        #[cfg(all(feature = "simulated", not(loom)))]
        self.wake_simulated();
        self.0.notify_all();
    }
}

#[cfg(all(feature = "simulated", not(loom)))]
impl Condvar {
    fn place(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn is_simulated<T>(&self, guard: &mut parking_lot::MutexGuard<'_, T>, limit: Option<std::time::Duration>) -> bool {
        let Some(system) = crate::simulated::current() else { return false };
        let until = crate::simulated::until(&*system, limit);
        parking_lot::MutexGuard::unlocked(guard, || system.wait(self.place(), until));
        true
    }

    fn wake_simulated(&self) {
        if let Some(system) = crate::simulated::current() {
            system.wake(self.place());
        }
    }
}
