//! The places in which a simulation stands for the operating system.
//!
//! Everything that the product asks its system for in the course of a run passes through a few places: the time
//! ([`crate::clock::now`]), randomness ([`crate::random`]), threads and sleeping ([`crate::thread`]), being woken
//! ([`crate::park`], [`crate::sync::Condvar`]), descriptors that become ready, and connections. A thread that belongs
//! to a simulation has a [`System`], which these places ask instead; whatever it starts belongs to it too. Nothing of
//! this is in a build without the feature `simulated`.
//!
//! **Lockstep.** Of all threads of one simulation exactly one runs at any time, until it waits. So what a thread does
//! between two waits happens at once for all others, a lock is never waited for, and one sequence of random numbers
//! determines everything. It follows that no thread may wait while it holds a lock, which is a rule of the product
//! anyway.

use crate::Result;
use rustix::io::Errno;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection that is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dial(pub u64);

/// The system that a simulation gives its threads.
pub trait System: Send + Sync {
    /// The time. It moves a little with each look, so that nobody who waits for it by looking waits for ever.
    fn now(&self) -> Instant;

    /// Fills `bytes` with what looks random.
    fn fill(&self, bytes: &mut [u8]);

    /// Blocks this thread until somebody wakes `place`, or `until`. True if it was woken.
    fn wait(&self, place: usize, until: Option<Instant>) -> bool;

    /// Wakes all threads that wait at `place`.
    fn wake(&self, place: usize);

    /// Blocks this thread until a descriptor of its process may have become ready, or `until`.
    fn wait_for_descriptors(&self, until: Option<Instant>);

    /// A descriptor of this thread's process, which only the process knows, has become ready.
    fn ring(&self);

    /// Starts a thread of this thread's process. The number stands for it in [`System::join`].
    ///
    /// # Errors
    ///
    /// `LimitExceeded`, as a shortage.
    fn spawn(&self, name: &str, run: Box<dyn FnOnce() + Send>) -> Result<u64>;

    /// Blocks this thread until that one has ended.
    fn join(&self, thread: u64);

    /// The number of this thread.
    fn thread(&self) -> u64;

    /// The number of this thread's process.
    fn process(&self) -> u32;

    /// Whether that process of the same host has ended.
    fn has_ended(&self, process: u32) -> bool;

    /// Whether this bug is planted, and it is time for it.
    fn strikes(&self, bug: crate::planted::Bug) -> bool;

    /// Something has happened that must never be.
    fn must_not_be(&self, what: &str);

    /// A socket that takes connections to this address, and the address with its port.
    fn listen(&self, at: SocketAddr) -> std::result::Result<(OwnedFd, SocketAddr), Errno>;

    /// Begins to connect.
    fn dial(&self, to: SocketAddr) -> Dial;

    /// The outcome of it; `None` as long as there is none.
    fn dialled(&self, dial: Dial) -> Option<std::result::Result<OwnedFd, Errno>>;
}

thread_local! {
    static SYSTEM: RefCell<Option<Arc<dyn System>>> = const { RefCell::new(None) };
}

/// From now on this thread belongs to the simulation of `system`, or to none.
pub fn enter(system: Option<Arc<dyn System>>) {
    SYSTEM.replace(system);
}

/// The system of this thread, if that belongs to a simulation.
#[must_use]
pub fn current() -> Option<Arc<dyn System>> {
    // A thread that ends has none any more.
    SYSTEM.try_with(|system| system.borrow().clone()).ok().flatten()
}

/// The point in time at which a wait of that length ends; `None` for one that never does.
#[must_use]
pub fn until(system: &dyn System, limit: Option<Duration>) -> Option<Instant> {
    system.now().checked_add(limit?)
}
