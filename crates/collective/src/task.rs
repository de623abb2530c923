//! Operations as tasks: each is a future that a small executor runs on the threads that poll the node's links.
//!
//! A task is in one of five states. Whoever wakes an idle one queues it; whoever wakes a running one makes its runner
//! go round once more; so no wake-up is lost and a task runs on one thread at a time. Its ending, which completes the
//! operation's work, is taken exactly once: by the runner that saw the future end, or by whoever fails the task from
//! outside, who then wakes it so that a runner drops the future. Nothing here blocks, and endings are called with no
//! lock held.

use crate::hub::Hub;
use parking_lot::Mutex;
use sheave_base::{Rank, Result};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
const AGAIN: u8 = 3;
const DONE: u8 = 4;

/// No rank in particular.
const NOBODY: u32 = u32::MAX;

/// Whom a task waits for, for those who ask.
#[derive(Debug)]
pub(crate) struct Awaited {
    rank: AtomicU32,
    /// The task has failed, and only waits to be told why.
    has_given_up: AtomicBool,
}

impl Default for Awaited {
    fn default() -> Self {
        Self { rank: AtomicU32::new(NOBODY), has_given_up: AtomicBool::new(false) }
    }
}

impl Awaited {
    pub(crate) fn set(&self, rank: u32) {
        self.rank.store(rank, Relaxed);
    }

    pub(crate) fn get(&self) -> Option<Rank> {
        Some(self.rank.load(Relaxed)).filter(|rank| *rank != NOBODY).map(Rank)
    }

    /// The task has failed. True if that was said before.
    pub(crate) fn give_up(&self) -> bool {
        self.has_given_up.swap(true, SeqCst)
    }

    pub(crate) fn has_given_up(&self) -> bool {
        self.has_given_up.load(SeqCst)
    }
}

/// What an operation computes: the rank of the other side for a message, its own for a collective.
pub(crate) type Steps = Pin<Box<dyn Future<Output = Result<Rank>> + Send>>;

type Ending = Box<dyn FnOnce(Result<Rank>) + Send>;

/// An operation in flight.
pub(crate) struct Task {
    hub: Weak<Hub>,
    /// Its number in its group; of messages, which have none, just a key.
    pub(crate) key: u64,
    pub(crate) operation: &'static str,
    pub(crate) begun: Instant,
    /// Collectives have a sequence number and break their group when they fail; messages do not.
    pub(crate) is_collective: bool,
    pub(crate) awaited: Arc<Awaited>,
    state: AtomicU8,
    steps: Mutex<Option<Steps>>,
    ending: Mutex<Option<Ending>>,
}

/// What a task is made of.
pub(crate) struct Plan {
    pub(crate) key: u64,
    pub(crate) operation: &'static str,
    pub(crate) is_collective: bool,
    pub(crate) awaited: Arc<Awaited>,
    pub(crate) steps: Steps,
}

impl Task {
    /// A task that is queued from the start; its maker runs it with [`Task::run`].
    pub(crate) fn new(hub: &Arc<Hub>, plan: Plan, ending: impl FnOnce(Result<Rank>) + Send + 'static) -> Arc<Self> {
        let Plan { key, operation, is_collective, awaited, steps } = plan;
        Arc::new(Self {
            hub: Arc::downgrade(hub),
            key,
            operation,
            begun: Instant::now(),
            is_collective,
            awaited,
            state: AtomicU8::new(QUEUED),
            steps: Mutex::new(Some(steps)),
            ending: Mutex::new(Some(Box::new(ending))),
        })
    }

    /// Runs the task until it waits for something. Returns its result if it ended just now; then
    /// whoever gets [`Task::take_ending`] calls it.
    pub(crate) fn run(self: &Arc<Self>) -> Option<Result<Rank>> {
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        loop {
            self.state.store(RUNNING, SeqCst);
            let mut steps = self.steps.lock();
            let polled = match steps.as_mut().filter(|_| self.ending.lock().is_some()) {
                Some(running) => running.as_mut().poll(&mut context),
                // It was failed from outside.
                None => Poll::Ready(Ok(Rank(0))),
            };
            let done = if polled.is_ready() { steps.take() } else { None };
            drop(steps);
            drop(done);
            match polled {
                Poll::Ready(outcome) => {
                    self.state.store(DONE, SeqCst);
                    return Some(outcome);
                }
                Poll::Pending if self.state.compare_exchange(RUNNING, IDLE, AcqRel, Acquire).is_ok() => return None,
                Poll::Pending => {}
            }
        }
    }

    /// Takes the ending; whoever gets it calls it.
    pub(crate) fn take_ending(&self) -> Option<Ending> {
        self.ending.lock().take()
    }

    /// Lets go of what it holds, unless it runs just now; then its runner does.
    pub(crate) fn discard(&self) {
        let steps = self.steps.try_lock().and_then(|mut steps| steps.take());
        drop(steps);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.ending.lock().is_none()
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let queues = |state: u8| match state {
            IDLE => Some(QUEUED),
            RUNNING => Some(AGAIN),
            _ => None,
        };
        if self.state.fetch_update(AcqRel, Acquire, queues) == Ok(IDLE)
            && let Some(hub) = self.hub.upgrade()
        {
            hub.enqueue(self);
        }
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("operation", &self.operation).field("key", &self.key).finish_non_exhaustive()
    }
}
