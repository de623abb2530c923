//! Who acquires: a thread of the system, or one of a model of loom's, all of which are the same to the system.

#[cfg(loom)]
pub(super) use loom::thread::{ThreadId, current};
#[cfg(not(loom))]
pub(super) use std::thread::{ThreadId, current};
