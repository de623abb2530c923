//! Detection of `fork`: threads, sockets and rings do not survive it, so a handle made before it refuses to work after
//! it.
//!
//! A child increments a process-wide generation in `pthread_atfork`'s child hook; a handle remembers the generation of
//! its birth. The check is one relaxed load. This counter is a global: forking is a property of the process, not of a
//! node.

use crate::{Error, ErrorKind, Result};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

static GENERATION: AtomicU32 = AtomicU32::new(0);
static HOOK: Once = Once::new();

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Remembers in which process a handle was made.
#[derive(Clone, Copy, Debug)]
pub struct ForkMark(u32);

impl ForkMark {
    /// A mark of this process.
    #[must_use]
    pub fn here() -> Self {
        HOOK.call_once(|| {
            // SAFETY: the hook only increments an atomic, which is async-signal-safe as a fork hook must be.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// True in a child that was forked after the mark was made.
    #[must_use]
    pub fn is_stale(self) -> bool {
        self.0 != GENERATION.load(Ordering::Relaxed)
    }

    /// An error of kind [`ErrorKind::Forked`] in a forked child.
    pub fn check(self, what: &'static str) -> Result<()> {
        if !self.is_stale() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Forked, format!("the {what} was made before this process was forked"))
            .hint("start children with spawn instead of fork"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it forks")]
    fn only_the_child_sees_a_stale_mark() {
        let mark = ForkMark::here();
        // SAFETY: the child calls only async-signal-safe functions (an atomic load and `_exit`).
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: `_exit` ends the child without running any destructor.
            unsafe { libc::_exit(i32::from(!mark.is_stale())) };
        }
        let mut status = 0;
        // SAFETY: `child` is our own child and `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child saw a stale mark");
        assert!(mark.check("node").is_ok());
    }
}
