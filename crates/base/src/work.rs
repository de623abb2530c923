//! `Work`: the one handle for anything in flight.
//!
//! A [`Completer`] is the single writer, any number of [`Work`] clones are readers. The outcome is stored once under
//! the slot's lock, together with taking out everybody who waits; `done` is set (release) before the lock is dropped,
//! so a reader that sees `done` (acquire) finds the outcome, and a waiter that registers under the lock either finds
//! the outcome or is in the list that the completer takes. Parkers, wakers and callbacks are called with no lock held,
//! and a panic of one costs the others, and the thread that completes the work, nothing ([`contain`]).
//! A completer that is dropped without an outcome completes its work with an error, so that nobody waits for ever.
//!
//! Waiting is caller-driven: a work that was made by a node carries that node's [`Drive`], which makes progress on the
//! waiter's own thread. A work without one parks its waiter until somebody else completes it.
//!
//! ```
//! use sheave_base::work::pair;
//! let (completer, work) = pair::<u32>("example");
//! std::thread::spawn(move || completer.complete(Ok(7)));
//! assert_eq!(work.wait().unwrap(), 7);
//! assert_eq!(work.wait().unwrap(), 7, "waiting is idempotent");
//! ```

pub mod awaited;
pub mod blocking;
mod combine;
pub mod condition;
mod nested;

pub use combine::{Selected, join_all, join_all_with, select};

use crate::clock;
use crate::park::{Parker, Woken, current_parker};
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};
use crate::{Error, ErrorKind, LinkId, Result, contain};
use awaited::Awaited;
use smallvec::SmallVec;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// What a driver needs to know about the work that it drives.
pub trait Target {
    /// True once the outcome is there.
    fn is_done(&self) -> bool;
    /// Asks for an unpark at completion. False when it is complete already.
    fn watch(&self, parker: &std::sync::Arc<Parker>) -> bool;
    /// Takes the request back.
    fn unwatch(&self, parker: &std::sync::Arc<Parker>);
    /// The link whose messages complete it; `None` when any may.
    fn link(&self) -> Option<LinkId>;
    /// The operation's name, for notices.
    fn operation(&self) -> &'static str;
    /// Who knows what it waits for; the peer of the link if `None`.
    fn awaited(&self) -> Option<Awaited> {
        None
    }
}

/// Asked now and then during a long wait; an error ends the wait with it, and the operation goes on.
pub type Interrupt<'a> = &'a mut dyn FnMut() -> Result<()>;

/// The same interrupt, for a wait that is not the last.
pub fn reborrowed<'a>(interrupt: &'a mut Option<Interrupt<'_>>) -> Option<Interrupt<'a>> {
    match interrupt {
        Some(interrupt) => Some(&mut **interrupt),
        None => None,
    }
}

/// Makes progress on the calling thread until a work completes.
pub trait Drive: Send + Sync {
    /// Returns when `target` is done (`Ok(true)`), when `until` has passed (`Ok(false)`), or with the error of
    /// `interrupt`.
    fn drive(&self, target: &dyn Target, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<bool>;
}

/// The operation's name of a work that is waited for by somebody who has nothing to do: nobody needs to be told that
/// it takes long.
pub const IDLE: &str = "";

/// Somebody who is told of an outcome that it has.
trait Tell: Send {
    fn tell(self: Box<Self>);
}

/// Somebody who is told of the outcome.
trait Listener<T>: Tell {
    /// Keeps a copy of the outcome, which another handle may take as soon as it is there for all.
    fn keep(&mut self, outcome: &Result<T>);
}

/// A callback, and the outcome that it is called with.
struct Callback<T, F> {
    call: F,
    outcome: Option<Result<T>>,
}

impl<T: Clone + Send + 'static, F: FnOnce(&Result<T>) + Send + 'static> Listener<T> for Callback<T, F> {
    fn keep(&mut self, outcome: &Result<T>) {
        self.outcome = Some(outcome.clone());
    }
}

impl<T: Send, F: FnOnce(&Result<T>) + Send> Tell for Callback<T, F> {
    fn tell(self: Box<Self>) {
        if let Some(outcome) = &self.outcome {
            (self.call)(outcome);
        }
    }
}

struct Slot<T> {
    outcome: Option<Result<T>>,
    parkers: SmallVec<[std::sync::Arc<Parker>; 1]>,
    wakers: SmallVec<[Waker; 1]>,
    listeners: SmallVec<[Box<dyn Listener<T>>; 1]>,
    cancel: Option<Cancel>,
    awaited: Option<Awaited>,
}

/// What ends an operation whose work is cancelled.
enum Cancel {
    Act(Box<dyn FnOnce() + Send>),
    /// Whoever knows what it waits for.
    There,
}

struct Core<T> {
    done: AtomicBool,
    slot: Mutex<Slot<T>>,
    driver: Option<std::sync::Arc<dyn Drive>>,
    operation: &'static str,
    link: Option<LinkId>,
}

/// A pending or finished operation. Clones are handles to the same operation; dropping them does not cancel it.
pub struct Work<T>(Arc<Core<T>>);

/// The only way to finish a [`Work`].
pub struct Completer<T>(Option<Arc<Core<T>>>);

/// A work that somebody else will complete, and its completer.
#[must_use]
pub fn pair<T>(operation: &'static str) -> (Completer<T>, Work<T>) {
    driven(operation, None, None)
}

/// A work whose waiters make progress through `driver`, on `link` or on all links.
#[must_use]
pub fn driven<T>(
    operation: &'static str,
    driver: Option<std::sync::Arc<dyn Drive>>,
    link: Option<LinkId>,
) -> (Completer<T>, Work<T>) {
    described(operation, driver, link, None)
}

/// As [`driven`], and `awaited` knows what it waits for.
#[must_use]
pub fn described<T>(
    operation: &'static str,
    driver: Option<std::sync::Arc<dyn Drive>>,
    link: Option<LinkId>,
    awaited: Option<Awaited>,
) -> (Completer<T>, Work<T>) {
    made(operation, driver, link, None, awaited)
}

/// As [`described`], and whoever knows what the work waits for ends it too
/// ([`Describe::cancel`](awaited::Describe::cancel)), as an action for [`Completer::on_cancel`] would: nothing is
/// allocated for that.
#[must_use]
pub fn governed<T>(
    operation: &'static str,
    driver: Option<std::sync::Arc<dyn Drive>>,
    link: Option<LinkId>,
    awaited: Awaited,
) -> (Completer<T>, Work<T>) {
    made(operation, driver, link, Some(Cancel::There), Some(awaited))
}

fn made<T>(
    operation: &'static str,
    driver: Option<std::sync::Arc<dyn Drive>>,
    link: Option<LinkId>,
    cancel: Option<Cancel>,
    awaited: Option<Awaited>,
) -> (Completer<T>, Work<T>) {
    let slot = Slot {
        outcome: None,
        parkers: SmallVec::new(),
        wakers: SmallVec::new(),
        listeners: SmallVec::new(),
        cancel,
        awaited,
    };
    let core = Arc::new(Core { done: AtomicBool::new(false), slot: Mutex::new(slot), driver, operation, link });
    (Completer(Some(Arc::clone(&core))), Work(core))
}

impl<T> Core<T> {
    fn complete(&self, outcome: Result<T>) {
        let mut slot = self.slot.lock();
        debug_assert!(slot.outcome.is_none(), "a work completes once");
        let mut listeners = std::mem::take(&mut slot.listeners);
        listeners.iter_mut().for_each(|listener| listener.keep(&outcome));
        slot.outcome = Some(outcome);
        let parkers = std::mem::take(&mut slot.parkers);
        let wakers = std::mem::take(&mut slot.wakers);
        let (cancel, awaited) = (slot.cancel.take(), slot.awaited.take());
        self.done.store(true, Ordering::Release);
        drop(slot);
        drop((cancel, awaited));
        for listener in listeners {
            let listener: Box<dyn Tell> = listener;
            nested::run(self.name(), || listener.tell());
        }
        for parker in parkers {
            parker.unpark();
        }
        for waker in wakers {
            contain::told(format_args!("a waker of {}", self.name()), || waker.wake());
        }
    }

    fn name(&self) -> &'static str {
        if self.operation == IDLE { "a work" } else { self.operation }
    }

    fn gone(&self) -> Error {
        Error::new(ErrorKind::InvalidArgument, "the result of this work was taken by another handle")
            .operation(self.operation)
    }

    fn awaits(&self, awaited: Awaited) {
        let mut slot = self.slot.lock();
        // What is done waits for nothing.
        let mut before = if self.done.load(Ordering::Acquire) { Some(awaited) } else { slot.awaited.replace(awaited) };
        if matches!(slot.cancel, Some(Cancel::There)) {
            slot.cancel = before.take().map(|before| Cancel::Act(Box::new(move || before.cancel())));
        }
        drop(slot);
        drop(before);
    }

    fn cloned(&self) -> Result<T>
    where
        T: Clone,
    {
        self.slot.lock().outcome.clone().unwrap_or_else(|| Err(self.gone()))
    }
}

impl<T> Completer<T> {
    /// Stores the outcome and wakes everybody who waits.
    pub fn complete(mut self, outcome: Result<T>) {
        if let Some(core) = self.0.take() {
            core.complete(outcome);
        }
    }

    /// False when every [`Work`] of this operation was dropped: nobody will ever look at its outcome.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.0.as_ref().is_some_and(|core| Arc::strong_count(core) > 1)
    }

    /// What [`Work::cancel`] shall do. It is dropped uncalled at completion.
    pub fn on_cancel(&self, cancel: impl FnOnce() + Send + 'static) {
        if let Some(core) = &self.0 {
            core.slot.lock().cancel = Some(Cancel::Act(Box::new(cancel)));
        }
    }

    /// Who knows what the work waits for, for notices.
    pub fn awaits(&self, awaited: Awaited) {
        if let Some(core) = &self.0 {
            core.awaits(awaited);
        }
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        if let Some(core) = self.0.take() {
            let error = Error::new(ErrorKind::Closed, "the operation was abandoned by the node that ran it");
            core.complete(Err(error.operation(core.operation)));
        }
    }
}

impl<T> Clone for Work<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Target for Core<T> {
    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    fn watch(&self, parker: &std::sync::Arc<Parker>) -> bool {
        let mut slot = self.slot.lock();
        if self.done.load(Ordering::Acquire) {
            return false;
        }
        slot.parkers.push(std::sync::Arc::clone(parker));
        true
    }

    fn unwatch(&self, parker: &std::sync::Arc<Parker>) {
        let mut slot = self.slot.lock();
        // One of them: a wait around this one may be for the same.
        if let Some(at) = slot.parkers.iter().position(|other| std::sync::Arc::ptr_eq(other, parker)) {
            slot.parkers.swap_remove(at);
        }
    }

    fn link(&self) -> Option<LinkId> {
        self.link
    }

    fn operation(&self) -> &'static str {
        self.operation
    }

    fn awaited(&self) -> Option<Awaited> {
        self.slot.lock().awaited.clone()
    }
}

impl<T> Work<T> {
    /// A work that is finished from the start.
    #[must_use]
    pub fn ready(operation: &'static str, outcome: Result<T>) -> Self {
        let (completer, work) = pair(operation);
        completer.complete(outcome);
        work
    }

    /// True once the outcome is there. Never blocks and makes no progress.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    /// The operation's name.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// Who knows what it waits for, as far as that was said and it is not done.
    #[must_use]
    pub fn awaited(&self) -> Option<Awaited> {
        Target::awaited(&*self.0)
    }

    /// As [`Completer::awaits`], for those who learn it later.
    pub fn awaits(&self, awaited: Awaited) {
        self.0.awaits(awaited);
    }

    /// Asks the operation to end. It completes with [`ErrorKind::Cancelled`] unless it is already past the point where
    /// it can be stopped; nothing happens when it is done.
    pub fn cancel(&self) {
        let (cancel, awaited) = {
            let mut slot = self.0.slot.lock();
            let cancel = slot.cancel.take();
            let awaited = slot.awaited.clone().filter(|_| matches!(cancel, Some(Cancel::There)));
            (cancel, awaited)
        };
        match cancel {
            Some(Cancel::Act(cancel)) => cancel(),
            Some(Cancel::There) => awaited.iter().for_each(Awaited::cancel),
            None => {}
        }
    }

    /// Calls `callback` once with the outcome: now if it is there, else on the thread that completes the work, with no
    /// lock held; soon, where it is called within many other callbacks. It must not block. A panic in it is told on
    /// standard error and ends there. One that was set before the work has ended has the outcome, even if somebody
    /// takes that with [`Work::join`].
    pub fn on_complete(&self, callback: impl FnOnce(&Result<T>) + Send + 'static)
    where
        T: Clone + Send + 'static,
    {
        let mut slot = self.0.slot.lock();
        if !self.0.is_done() {
            slot.listeners.push(Box::new(Callback { call: callback, outcome: None }));
            return;
        }
        drop(slot);
        let outcome = self.0.cloned();
        nested::run(self.0.name(), move || callback(&outcome));
    }

    /// Blocks until the operation ends or `until` has passed; true when it ended. `interrupt` is asked at least every
    /// 100 ms. The operation goes on in any case.
    pub fn wait_until(&self, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<bool> {
        wait_for(&*self.0, self.0.driver.as_deref(), until, interrupt)
    }

    /// The outcome if it is there.
    pub fn result(&self) -> Option<Result<T>>
    where
        T: Clone,
    {
        if self.0.is_done() { self.0.slot.lock().outcome.clone() } else { None }
    }

    /// Blocks until the operation ends and returns its outcome. May be called again and from any thread.
    pub fn wait(&self) -> Result<T>
    where
        T: Clone,
    {
        self.wait_until(None, None)?;
        self.0.cloned()
    }

    /// Like [`Work::wait`], for at most `timeout`; then an error of kind [`ErrorKind::DeadlineExceeded`], and the
    /// operation goes on with its buffers held.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<T>
    where
        T: Clone,
    {
        if self.wait_until(Some(clock::now() + timeout), None)? { self.0.cloned() } else { Err(self.late(timeout)) }
    }

    /// Blocks until the operation ends and takes the outcome out without cloning it. Other handles of the same work
    /// find it gone; use it where there is one owner.
    pub fn join(self) -> Result<T> {
        self.wait_until(None, None)?;
        self.taken()
    }

    /// Like [`Work::join`], for at most `timeout`. When the time is up the operation goes on without an owner.
    pub fn join_timeout(self, timeout: Duration) -> Result<T> {
        if self.wait_until(Some(clock::now() + timeout), None)? { self.taken() } else { Err(self.late(timeout)) }
    }

    /// Takes the outcome of a finished work; an error when it is not finished or was taken before.
    pub fn taken(&self) -> Result<T> {
        self.0.slot.lock().outcome.take().unwrap_or_else(|| Err(self.0.gone()))
    }

    /// Whether the outcome is there; if not, the task is woken when it is. For outcomes that cannot be cloned and have
    /// one owner, who takes them with [`Work::taken`].
    pub fn poll_done(&self, context: &Context<'_>) -> Poll<()> {
        let mut slot = self.0.slot.lock();
        if self.0.is_done() {
            return Poll::Ready(());
        }
        if !slot.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            slot.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn late(&self, timeout: Duration) -> Error {
        Error::new(ErrorKind::DeadlineExceeded, "the operation is still running")
            .operation(self.0.operation)
            .elapsed(timeout)
            .hint("wait again, or cancel it")
    }
}

/// Blocks until `target` is done or `until` has passed, as [`Work::wait_until`] does: for whoever waits for something
/// that is no work. Progress is made through `driver`, if there is one.
pub fn wait_for(
    target: &dyn Target,
    driver: Option<&dyn Drive>,
    until: Option<Instant>,
    interrupt: Option<Interrupt<'_>>,
) -> Result<bool> {
    // What ends it may be put off on this very thread.
    if target.is_done() || nested::catch_up() && target.is_done() {
        return Ok(true);
    }
    let _waits = nested::Waits::begin();
    match driver {
        Some(driver) => driver.drive(target, until, interrupt),
        None => park_until_done(target, until, interrupt),
    }
}

fn park_until_done(target: &dyn Target, until: Option<Instant>, mut interrupt: Option<Interrupt<'_>>) -> Result<bool> {
    /// How long a wait sleeps before it asks its interrupt again.
    const SLICE: Duration = Duration::from_millis(100);
    let parker = current_parker();
    if !target.watch(&parker) {
        return Ok(true);
    }
    let _blocked = blocking::begin();
    let outcome = loop {
        if target.is_done() {
            break Ok(true);
        }
        let left = until.map(|until| until.saturating_duration_since(clock::now()));
        if left == Some(Duration::ZERO) {
            break Ok(false);
        }
        let slice = if interrupt.is_some() { Some(left.map_or(SLICE, |left| left.min(SLICE))) } else { left };
        let woken = parker.park(slice);
        if woken != Woken::Notified
            && let Some(Err(error)) = interrupt.as_mut().map(|interrupt| interrupt())
        {
            break Err(error);
        }
    };
    target.unwatch(&parker);
    outcome
}

impl<T: Clone> Future for Work<T> {
    type Output = Result<T>;

    /// Cancel safe: dropping the future leaves the operation running.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_done(context).map(|()| self.0.cloned())
    }
}

impl<T> std::fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("operation", &self.0.operation).field("done", &self.is_done()).finish()
    }
}

impl<T> std::fmt::Debug for Completer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completer").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn a_timed_out_wait_leaves_the_operation_running() {
        let (completer, work) = pair::<u8>("sum");
        let error = work.wait_timeout(Duration::from_millis(5)).expect_err("nobody completed it");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        completer.complete(Ok(3));
        assert_eq!(work.wait().expect("it went on"), 3);
    }

    #[test]
    fn an_abandoned_work_ends_with_an_error() {
        let (completer, work) = pair::<u8>("sum");
        drop(completer);
        assert_eq!(work.wait().expect_err("nobody can complete it").kind(), ErrorKind::Closed);
    }

    /// The outcome is taken while the first callback runs, and the second one has it all the same.
    #[test]
    fn whoever_takes_the_outcome_takes_it_from_no_callback() {
        let (completer, work) = pair::<u8>("sum");
        let (taken, is_taken) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        work.on_complete(move |_| is_taken.recv_timeout(Duration::from_secs(60)).expect("it is taken"));
        work.on_complete(move |outcome| tell.send(outcome.clone()).expect("somebody listens"));
        let completing = std::thread::spawn(move || completer.complete(Ok(5)));
        while !work.is_done() {
            std::thread::yield_now();
        }
        assert_eq!(work.taken().expect("it is there"), 5);
        taken.send(()).expect("the callback waits");
        completing.join().expect("no callback panics");
        assert_eq!(told.recv().expect("it was told").expect("it was not taken away"), 5);
    }

    #[test]
    fn callbacks_run_once_each_before_and_after_completion() {
        let calls = std::sync::Arc::new(AtomicUsize::new(0));
        let count = |calls: &std::sync::Arc<AtomicUsize>| {
            let calls = calls.clone();
            move |outcome: &Result<u8>| {
                assert_eq!(*outcome.as_ref().expect("it succeeded"), 5);
                calls.fetch_add(1, SeqCst);
            }
        };
        let (completer, work) = pair::<u8>("sum");
        work.on_complete(count(&calls));
        work.on_complete(count(&calls));
        completer.complete(Ok(5));
        work.on_complete(count(&calls));
        assert_eq!(calls.load(SeqCst), 3);
    }

    #[test]
    fn f53_a_panic_of_a_callback_or_a_waker_costs_nobody_else_anything() {
        struct Panic;
        impl std::task::Wake for Panic {
            fn wake(self: std::sync::Arc<Self>) {
                panic!("a waker of a test");
            }
        }
        let (completer, mut work) = pair::<u8>("sum");
        let calls = std::sync::Arc::new(AtomicUsize::new(0));
        let seen = calls.clone();
        work.on_complete(|_| panic!("a callback of a test"));
        work.on_complete(move |_| {
            seen.fetch_add(1, SeqCst);
        });
        let waker = Waker::from(std::sync::Arc::new(Panic));
        assert!(Pin::new(&mut work).poll(&mut Context::from_waker(&waker)).is_pending());
        let parker = current_parker();
        assert!(work.0.watch(&parker));
        completer.complete(Ok(5));
        assert_eq!(calls.load(SeqCst), 1, "the other callback was not called");
        assert_eq!(parker.park(Some(Duration::ZERO)), Woken::Notified, "whoever waited was not woken");
        work.on_complete(|_| panic!("a late callback of a test"));
        assert_eq!(work.wait().expect("it succeeded"), 5);
    }

    #[test]
    fn an_interrupt_ends_the_wait_and_not_the_operation() {
        let (completer, work) = pair::<u8>("sum");
        let mut interrupt = || Err(Error::new(ErrorKind::Interrupted, "ctrl-c"));
        let error = work.wait_until(None, Some(&mut interrupt)).expect_err("it was interrupted");
        assert_eq!(error.kind(), ErrorKind::Interrupted);
        completer.complete(Ok(1));
        assert!(work.is_done());
    }

    #[test]
    fn cancel_reaches_the_operation_once() {
        let (completer, work) = pair::<u8>("sum");
        let calls = std::sync::Arc::new(AtomicUsize::new(0));
        let seen = calls.clone();
        completer.on_cancel(move || {
            seen.fetch_add(1, SeqCst);
        });
        work.cancel();
        work.cancel();
        assert_eq!(calls.load(SeqCst), 1);
        completer.complete(Err(Error::new(ErrorKind::Cancelled, "cancelled")));
    }

    #[test]
    fn a_future_is_woken() {
        struct Unpark(std::thread::Thread);
        impl std::task::Wake for Unpark {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.unpark();
            }
        }
        let (completer, mut work) = pair::<u8>("sum");
        let waker = Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut work).poll(&mut context).is_pending());
        let thread = std::thread::spawn(move || completer.complete(Ok(9)));
        let started = Instant::now();
        loop {
            if let Poll::Ready(outcome) = Pin::new(&mut work).poll(&mut context) {
                assert_eq!(outcome.expect("it succeeded"), 9);
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(10), "the waker was lost");
            std::thread::park_timeout(Duration::from_millis(100));
        }
        thread.join().expect("the completer does not panic");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn loom_waiter_and_completer() {
        loom::model(|| {
            let (completer, work) = pair::<u8>("sum");
            let thread = loom::thread::spawn(move || completer.complete(Ok(4)));
            assert_eq!(work.wait().expect("completed"), 4);
            thread.join().expect("no panic");
        });
    }

    #[test]
    fn loom_two_waiters_and_a_dropped_completer() {
        loom::model(|| {
            let (completer, work) = pair::<u8>("sum");
            let other = work.clone();
            let thread = loom::thread::spawn(move || other.wait().is_err());
            drop(completer);
            assert!(work.wait().is_err());
            assert!(thread.join().expect("no panic"));
        });
    }

    #[test]
    fn loom_callback_and_completion_race() {
        loom::model(|| {
            let (completer, work) = pair::<u8>("sum");
            let calls = Arc::new(crate::sync::AtomicU32::new(0));
            let seen = calls.clone();
            let thread = loom::thread::spawn(move || completer.complete(Ok(4)));
            work.on_complete(move |_| {
                seen.fetch_add(1, Ordering::SeqCst);
            });
            thread.join().expect("no panic");
            assert_eq!(calls.load(Ordering::SeqCst), 1, "a callback runs exactly once");
            assert!(work.is_done());
        });
    }
}
