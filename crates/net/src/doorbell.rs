//! The node's one doorbell: an eventfd that wakes whoever leads the node's waiting, from this process or another.

use rustix::event::{EventfdFlags, eventfd};
use sheave_base::park::Bell;
use sheave_base::{Error, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An eventfd.
#[derive(Debug)]
pub struct Doorbell {
    descriptor: OwnedFd,
}

impl Doorbell {
    /// A silent doorbell.
    pub fn new() -> Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::from(errno).context("making the node's doorbell"))?;
        Ok(Self::from_descriptor(descriptor))
    }

    /// A peer's doorbell, received from it.
    #[must_use]
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// Takes the rings out, so that it is silent again.
    pub(crate) fn silence(&self) {
        let mut count = [0; 8];
        // An empty doorbell answers with EAGAIN, which is what silence is.
        let _ = rustix::io::read(&self.descriptor, &mut count);
    }
}

impl Bell for Doorbell {
    fn ring(&self) {
        // A full counter means that it rings already; a closed peer needs no bell.
        let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
