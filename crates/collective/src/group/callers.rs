//! Which threads of this rank are in calls of a group, and whether the order of their calls can be known.
//!
//! Operations of a group are numbered in the order in which they begin, and operations of one number meet. Threads that
//! begin them without a word to each other do so in any order, in another one on each rank; then the tensor of one
//! thread is added to that of another one, and where both have the same length no header shows it. So calls whose order
//! nobody can know are refused where this rank sees them:
//!
//! - **Two begin at once.** A call that begins an operation is under way, and another thread makes one. Whichever comes
//!   first does so by chance.
//! - **One begins while another one blocks.** A thread waits for the operation that it has begun itself, as every
//!   blocking call does, and another thread begins one. That one may have been told to, after the first had begun: a
//!   program that sees to this says so, by [`crate::Communicator::ordered_by_caller`].
//!
//! Work that one thread has begun and another one waits for is no sign of disorder, and neither is work that nobody
//! waits for.
//!
//! **What cannot be seen** are calls that do not overlap here: a rank whose threads happen to take turns sees a
//! sequence like any other. The overlap on one rank breaks the group for all of them, from the operation on that the
//! other thread was in; what has ended before may have been of different threads.

use crate::hub::Hub;
use parking_lot::Mutex;
use sheave_base::work::{Drive, Interrupt, Target};
use sheave_base::{Error, ErrorKind, Rank, Result};
use smallvec::SmallVec;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use std::time::Instant;

/// No thread is at this address.
const NOBODY: u64 = 0;

thread_local! {
    /// Its address names the thread while that lives.
    static HERE: u8 = const { 0 };
}

fn own_address() -> u64 {
    HERE.with(|here| std::ptr::from_ref(here).addr() as u64)
}

/// A thread of this rank waits for the operation of this number, which it has begun.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Blocked {
    thread: ThreadId,
    number: u64,
    operation: &'static str,
}

/// The threads of this rank that are in calls of one group.
pub(crate) struct Callers {
    /// The address of the one that begins an operation. Set with the lock of the group's operations held, so that two
    /// never set it at once.
    beginning: AtomicU64,
    /// What it begins.
    number: AtomicU64,
    blocked: Mutex<SmallVec<[Blocked; 4]>>,
    /// Nobody can know to whom operations from this number on belong.
    disordered_from: AtomicU64,
}

impl Default for Callers {
    fn default() -> Self {
        let (beginning, number) = (AtomicU64::new(NOBODY), AtomicU64::new(0));
        Self { beginning, number, blocked: Mutex::default(), disordered_from: AtomicU64::new(u64::MAX) }
    }
}

/// What another thread is in while this one calls.
#[derive(Clone, Copy)]
pub(crate) struct Overlap {
    pub(crate) number: u64,
    operation: Option<&'static str>,
}

impl Overlap {
    /// What the caller of `operation` on this rank gets for it, and everybody else.
    pub(crate) fn error(self, rank: Rank, operation: &'static str) -> Error {
        let other = self.operation.map_or_else(|| "began an operation".to_owned(), |name| format!("was in {name}"));
        let what = format!(
            "rank {rank} called {operation} on one thread while another one {other}, sequence {}: which of them comes \
             first need not be the same on all ranks",
            self.number
        );
        Error::new(ErrorKind::Mismatch, what)
            .hint("let one thread at a time call operations of a group, or make a group for each thread")
    }
}

impl Callers {
    /// Refuses a call where nobody can know whether another thread's comes first. The lock of the group's operations is
    /// held; `is_in_flight` says which of them have not ended.
    #[inline]
    pub(crate) fn check(
        &self,
        is_ordered: bool,
        is_alone: bool,
        is_in_flight: impl Fn(u64) -> bool,
    ) -> std::result::Result<(), Overlap> {
        let beginning = self.beginning.load(Acquire);
        if beginning != NOBODY && beginning != own_address() {
            return Err(Overlap { number: self.number.load(Relaxed), operation: None });
        }
        if is_ordered || is_alone {
            return Ok(());
        }
        let blocked = self.blocked.lock();
        if blocked.is_empty() {
            return Ok(());
        }
        let own = std::thread::current().id();
        // One that has ended blocks nobody, though its thread may not have noticed.
        let other = blocked.iter().find(|blocked| blocked.thread != own && is_in_flight(blocked.number));
        other.map_or(Ok(()), |other| Err(Overlap { number: other.number, operation: Some(other.operation) }))
    }

    /// The calling thread begins the operation of this number, until the call is dropped. The same lock is held.
    #[inline]
    pub(crate) fn begin(&self, number: u64) -> Begun {
        let is_outermost = self.beginning.load(Relaxed) == NOBODY;
        if is_outermost {
            self.number.store(number, Relaxed);
            self.beginning.store(own_address(), Relaxed);
        }
        Begun { is_outermost }
    }

    /// How long it takes.
    #[inline]
    pub(crate) fn until_dropped(&self, begun: Begun) -> Call<'_> {
        Call(begun.is_outermost.then_some(self))
    }

    /// Operations from this number on may be of different threads.
    pub(crate) fn note_disorder(&self, number: u64) {
        self.disordered_from.fetch_min(number, Release);
    }

    /// Whether nobody can know to whom the operation of this number belongs.
    #[inline]
    pub(crate) fn is_disordered(&self, number: u64) -> bool {
        self.disordered_from.load(Acquire) <= number
    }
}

/// A call that begins an operation was noted.
#[derive(Clone, Copy, Default)]
pub(crate) struct Begun {
    /// It was not made within another one of the same thread, by a callback.
    is_outermost: bool,
}

/// A call that begins an operation, while it lasts.
pub(crate) struct Call<'a>(Option<&'a Callers>);

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(callers) = self.0 {
            callers.beginning.store(NOBODY, Release);
        }
    }
}

/// How a work of this room is waited for: like any other of the node, but tasks that can go on are run.
pub(crate) struct Driver {
    hub: Weak<Hub>,
    node: Arc<dyn Drive>,
    /// Of a collective operation: what its own thread is in while it waits.
    own: Option<(Arc<Callers>, Blocked)>,
}

impl Driver {
    /// For an operation that the calling thread begins, which is a collective one if it has a number.
    pub(crate) fn new(hub: &Arc<Hub>, callers: &Arc<Callers>, operation: &'static str, number: Option<u64>) -> Self {
        let own = number.map(|number| {
            let blocked = Blocked { thread: std::thread::current().id(), number, operation };
            (Arc::clone(callers), blocked)
        });
        Self { hub: Arc::downgrade(hub), node: hub.node.driver(), own }
    }
}

impl Drive for Driver {
    fn drive(&self, target: &dyn Target, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<bool> {
        let own = self.own.as_ref().filter(|(_, blocked)| blocked.thread == std::thread::current().id());
        let _blocks = own.map(|(callers, blocked)| Blocks::begin(callers, *blocked));
        if let Some(hub) = self.hub.upgrade() {
            hub.run_ready();
        }
        self.node.drive(target, until, interrupt)
    }
}

/// A thread waits for what it has begun, until this is dropped.
struct Blocks<'a>(&'a Callers, Blocked);

impl<'a> Blocks<'a> {
    fn begin(callers: &'a Callers, blocked: Blocked) -> Self {
        callers.blocked.lock().push(blocked);
        Self(callers, blocked)
    }
}

impl Drop for Blocks<'_> {
    fn drop(&mut self) {
        let mut blocked = self.0.blocked.lock();
        if let Some(at) = blocked.iter().position(|other| *other == self.1) {
            blocked.swap_remove(at);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn elsewhere<T: Send>(act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(act).join().expect("no panic"))
    }

    fn is_refused(callers: &Callers, is_ordered: bool) -> Option<u64> {
        callers.check(is_ordered, false, |_| true).err().map(|overlap| overlap.number)
    }

    #[test]
    fn f68_two_calls_that_begin_at_once_are_refused_whoever_orders_them() {
        let callers = Callers::default();
        let call = callers.until_dropped(callers.begin(7));
        assert_eq!([true, false].map(|is_ordered| elsewhere(|| is_refused(&callers, is_ordered))), [Some(7); 2]);
        // A callback calls within the call, and ends before it.
        assert_eq!(is_refused(&callers, false), None);
        drop(callers.until_dropped(callers.begin(8)));
        assert_eq!(elsewhere(|| is_refused(&callers, true)), Some(7));
        drop(call);
        assert_eq!(elsewhere(|| is_refused(&callers, false)), None);
    }

    #[test]
    fn f68_a_call_is_refused_while_another_thread_waits_for_what_it_has_begun() {
        let callers = Callers::default();
        let blocked = Blocked { thread: std::thread::current().id(), number: 3, operation: "all_reduce" };
        let blocks = Blocks::begin(&callers, blocked);
        assert_eq!(is_refused(&callers, false), None, "it is its own");
        assert_eq!([true, false].map(|is_ordered| elsewhere(|| is_refused(&callers, is_ordered))), [None, Some(3)]);
        // It has ended, and nobody may have told its thread.
        assert!(elsewhere(|| callers.check(false, false, |_| false)).is_ok());
        drop(blocks);
        assert_eq!(elsewhere(|| is_refused(&callers, false)), None);
    }

    #[test]
    fn what_is_disordered_is_so_from_its_number_on() {
        let callers = Callers::default();
        assert!(!callers.is_disordered(u64::MAX - 1));
        callers.note_disorder(5);
        callers.note_disorder(9);
        assert_eq!([4, 5, 6].map(|number| callers.is_disordered(number)), [false, true, true]);
    }
}
