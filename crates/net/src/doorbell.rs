//! The node's one doorbell: an eventfd that wakes whoever leads the node's waiting, from this process or another.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;
use sheave_base::park::Bell;
use sheave_base::{Error, ErrorKind, Result};
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
        Ok(Self { descriptor })
    }

    /// A peer's doorbell, received from it. Only an eventfd that never blocks is one: whoever rings anything else may
    /// wait for ever, or write into something.
    ///
    /// # Errors
    ///
    /// `Protocol`, which says what it is instead.
    pub fn of_peer(descriptor: OwnedFd) -> Result<Self> {
        let refused = |what: String| {
            Error::new(ErrorKind::Protocol, format!("the peer's doorbell is {what}; expected a non-blocking eventfd"))
                .hint("the peer runs another version or its memory is damaged; restart it")
        };
        let kind = FileType::from_raw_mode(fstat(&descriptor)?.st_mode);
        if kind != FileType::Unknown {
            return Err(refused(format!("a file of type {kind:?}")));
        }
        if !fcntl_getfl(&descriptor)?.contains(OFlags::NONBLOCK) {
            return Err(refused("a descriptor that may block".into()));
        }
        // Of what has no file type and never blocks, an eventfd alone takes a zero, which rings nothing.
        match rustix::io::write(&descriptor, &0u64.to_ne_bytes()) {
            Ok(8) => Ok(Self { descriptor }),
            // Its counter is full: it rings.
            Err(Errno::AGAIN) => Ok(Self { descriptor }),
            _ => Err(refused("a descriptor that takes no count".into())),
        }
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
        #[cfg(feature = "simulated")]
        if let Some(system) = sheave_base::simulated::current() {
            system.ring();
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    /// A descriptor that would hang whoever rings it is refused when it comes.
    #[test]
    fn f26_only_an_eventfd_that_never_blocks_is_a_doorbell() {
        let blocking = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        let (_reader, pipe) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("a pipe");
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("an epoll");
        for (what, descriptor) in [("blocking", blocking), ("pipe", pipe), ("file", file), ("epoll", epoll)] {
            let refused = Doorbell::of_peer(descriptor).expect_err(what);
            assert_eq!(refused.kind(), ErrorKind::Protocol, "{what}: {refused}");
            assert!(refused.what().contains("expected a non-blocking eventfd"), "{what}: {refused}");
        }
    }

    #[test]
    fn a_doorbell_is_taken_as_it_is() {
        let own = Doorbell::new().expect("a doorbell");
        let count = |bell: &Doorbell| {
            let mut count = [0; 8];
            rustix::io::read(bell, &mut count).map(|_| u64::from_ne_bytes(count))
        };
        let theirs = Doorbell::of_peer(own.as_fd().try_clone_to_owned().expect("a descriptor")).expect("it is one");
        assert_eq!(count(&own), Err(Errno::AGAIN), "looking at it does not ring");
        theirs.ring();
        assert_eq!(count(&own), Ok(1));
        rustix::io::write(&own, &(u64::MAX - 1).to_ne_bytes()).expect("it is empty");
        let full = Doorbell::of_peer(own.as_fd().try_clone_to_owned().expect("a descriptor")).expect("it rings");
        full.ring();
    }
}
