//! Values that belong to the process that made them.

use sheave_base::Result;
use sheave_base::fork::ForkMark;
use std::mem::ManuallyDrop;

/// A value that is never dropped by a forked child: what it would give back belongs to the parent.
#[derive(Clone)]
pub(crate) struct Guarded<T> {
    value: ManuallyDrop<T>,
    mark: ForkMark,
}

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), mark: ForkMark::here() }
    }

    /// The value, unless this is a forked child.
    pub(crate) fn check(&self, what: &'static str) -> Result<&T> {
        self.mark.check(what).map(|()| &*self.value)
    }

    /// The value alone, without the guard.
    pub(crate) fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the guard is not used any more, nor dropped.
        unsafe { ManuallyDrop::take(&mut this.value) }
    }
}

impl<T> std::ops::Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        if !self.mark.is_stale() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
