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
