//! Futures that are polled by whoever polls the node.
//!
//! A task has four marks: *scheduled* (it must be polled), *running* (a thread polls it, or takes it down), *cancelled*
//! and *ended*. Whoever sets *scheduled* on one that does not run puts it into the queue; on one that runs, its runner
//! does that when the poll is over. So no wake-up is lost, a task stands in the queue once at most, and one thread at a
//! time runs it. Whoever sets *running* first may touch the future, which is taken out of its lock for that: nothing is
//! polled, and nobody's code is called, with a lock held.
//!
//! **The end.** A future is dropped by the thread that has it: by the one that has seen its end, by the runner of a
//! poll during which it was cancelled, or by the canceller, if nobody ran it. Only after that is anybody told. So what
//! a task works on, a buffer say, is free when its end is known.
//!
//! **Turns.** A thread that runs tasks polls as many as [`TURN_POLLS`], and what is left then is for the time thread
//! and for whoever polls next; so tasks that wake each other for ever keep no thread from its links. What is woken
//! within a turn is run by that turn. A wake from elsewhere has the node's threads come. A poll may wait, though, for
//! another task among other things: the thread that sleeps in it has [no turn](put_aside) meanwhile.

use super::timers::Timers;
use parking_lot::Mutex;
use sheave_base::planted::{self, Bug};
use sheave_base::work::blocking::{self, Duty};
use sheave_base::{Error, ErrorKind, Result, contain, limits};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

/// Polls of one turn: with the cheapest tasks some 20 µs.
const TURN_POLLS: usize = 256;

const SCHEDULED: u8 = 1;
const RUNNING: u8 = 2;
const CANCELLED: u8 = 4;
const ENDED: u8 = 8;

thread_local! {
    /// The tasks of which this thread runs turns, one within the other; the last is the innermost.
    static TURNS: RefCell<Vec<Weak<Tasks>>> = const { RefCell::new(Vec::new()) };
    /// How many tasks this thread polls, one within the other.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

type Steps = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The tasks of one node.
pub(crate) struct Tasks {
    ready: Mutex<VecDeque<Arc<Core>>>,
    /// How many these are, for those who look after each poll.
    queued: AtomicUsize,
    alive: Mutex<Alive>,
    timers: Arc<Timers>,
    /// Has a thread of the node run them soon.
    call: Box<dyn Fn() + Send + Sync>,
}

/// Those whose futures are there.
#[derive(Default)]
struct Alive {
    slots: Vec<Option<Weak<Core>>>,
    free: Vec<usize>,
    is_stopped: bool,
}

impl Alive {
    fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

struct Core {
    tasks: Weak<Tasks>,
    slot: usize,
    marks: AtomicU8,
    steps: Mutex<Option<Steps>>,
    /// What the first who cancelled it wants done afterwards.
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Tasks {
    pub(crate) fn new(timers: Arc<Timers>, call: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        blocking::put_aside_with(Duty::Tasks, put_aside);
        let (ready, queued, alive) = (Mutex::default(), AtomicUsize::new(0), Mutex::default());
        Arc::new(Self { ready, queued, alive, timers, call: Box::new(call) })
    }

    /// A task that waits for its first [`Task::run`]. Its future is made if there is room for it.
    pub(crate) fn prepare(self: &Arc<Self>, make: impl FnOnce() -> Steps) -> Result<Task> {
        let mut alive = self.alive.lock();
        if alive.is_stopped {
            return Err(Error::new(ErrorKind::Closed, "this node has left the mesh"));
        }
        if alive.count() >= limits::TASKS_MAX {
            let what = format!("{} tasks of this node are under way", limits::TASKS_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("wait for some of them before starting more"));
        }
        let slot = alive.free.pop().unwrap_or_else(|| {
            alive.slots.push(None);
            alive.slots.len() - 1
        });
        let core = Arc::new(Core {
            tasks: Arc::downgrade(self),
            slot,
            marks: AtomicU8::new(SCHEDULED),
            steps: Mutex::new(Some(make())),
            then: Mutex::default(),
        });
        alive.slots[slot] = Some(Arc::downgrade(&core));
        Ok(Task { core: Some(core) })
    }

    /// How many tasks have not ended.
    pub(crate) fn count(&self) -> usize {
        self.alive.lock().count()
    }

    /// Puts a task into the queue, and has somebody run it.
    fn put(&self, core: Arc<Core>) {
        self.push(core);
        if !self.has_turn() {
            (self.call)();
        }
    }

    fn push(&self, core: Arc<Core>) {
        let mut ready = self.ready.lock();
        ready.push_back(core);
        self.queued.store(ready.len(), SeqCst);
    }

    fn pop(&self) -> Option<Arc<Core>> {
        // Whoever pushes calls somebody afterwards, who sees it, or looks here itself.
        if self.queued.load(SeqCst) == 0 {
            return None;
        }
        let mut ready = self.ready.lock();
        let core = ready.pop_front();
        self.queued.store(ready.len(), SeqCst);
        core
    }

    /// Whether the innermost turn of this thread is one of these tasks. A thread that ends has none.
    fn has_turn(&self) -> bool {
        let is_ours = |turn: &Weak<Self>| std::ptr::eq(turn.as_ptr(), self);
        TURNS.try_with(|turns| turns.borrow().last().is_some_and(is_ours)).unwrap_or(false)
    }

    /// Runs what is ready and what that wakes, for a turn.
    pub(crate) fn run_ready(self: &Arc<Self>) {
        // Most who look find nothing.
        if self.queued.load(SeqCst) == 0 {
            return;
        }
        let is_within = self.has_turn();
        let _turn = Turn::begin(self);
        for _ in 0..TURN_POLLS {
            let Some(core) = self.pop() else { return };
            if core.poll_once() {
                self.push(core);
            }
        }
        // An outer turn looks by itself.
        if !is_within && self.queued.load(SeqCst) > 0 {
            self.timers.ring();
        }
    }

    /// Ends all tasks; none begins any more. Those that are being polled end with that poll.
    pub(crate) fn stop(&self) {
        let cores: Vec<Arc<Core>> = {
            let mut alive = self.alive.lock();
            alive.is_stopped = true;
            alive.slots.iter().flatten().filter_map(Weak::upgrade).collect()
        };
        cores.iter().for_each(|core| core.cancel());
        while self.pop().is_some() {}
    }
}

/// A turn of this thread, until it is dropped. It is the innermost then: turns put aside are given back before.
struct Turn;

impl Turn {
    fn begin(tasks: &Arc<Tasks>) -> Self {
        let _ = TURNS.try_with(|turns| turns.borrow_mut().push(Arc::downgrade(tasks)));
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let turn = TURNS.try_with(|turns| turns.borrow_mut().pop());
        drop(turn);
    }
}

/// The turns of a thread that sleeps, until it goes on.
struct Aside(Vec<Weak<Tasks>>);

/// Leaves to others what is queued for the turns of this thread, and what is woken until the returned value is dropped:
/// called before each sleep in a wait. A poll within a turn may wait for just that.
fn put_aside() -> Option<Box<dyn Any>> {
    let turns = TURNS.try_with(RefCell::take).ok().filter(|turns| !turns.is_empty())?;
    for tasks in turns.iter().filter_map(Weak::upgrade) {
        if tasks.queued.load(SeqCst) > 0 {
            (tasks.call)();
        }
    }
    Some(Box::new(Aside(turns)))
}

impl Drop for Aside {
    fn drop(&mut self) {
        let turns = std::mem::take(&mut self.0);
        let _ = TURNS.try_with(|current| current.replace(turns));
    }
}

impl Core {
    /// Changes the marks as `change` says. Returns those before, or nothing if it says so.
    fn mark(&self, change: impl FnMut(u8) -> Option<u8>) -> Option<u8> {
        self.marks.fetch_update(SeqCst, SeqCst, change).ok()
    }

    /// Polls it once, unless another thread does, or it has ended, or nobody has scheduled it. True if it was scheduled
    /// meanwhile: then the caller sees to that.
    fn poll_once(self: &Arc<Self>) -> bool {
        let may_run = |marks: u8| marks & (SCHEDULED | RUNNING | ENDED) == SCHEDULED;
        if self.mark(|marks| may_run(marks).then_some(RUNNING | marks & !SCHEDULED)).is_none() {
            return false;
        }
        let steps = self.steps.lock().take();
        let Some(mut steps) = steps else {
            self.end(None);
            return false;
        };
        let waker = Waker::from(Arc::clone(self));
        let depth = DEPTH.replace(DEPTH.get() + 1);
        let polled = contain::told("a task", || steps.as_mut().poll(&mut Context::from_waker(&waker)));
        DEPTH.set(depth);
        if polled != Some(Poll::Pending) {
            self.end(Some(steps));
            return false;
        }
        *self.steps.lock() = Some(steps);
        let before = self.mark(|marks| (marks & CANCELLED == 0).then_some(marks & !RUNNING));
        if before.is_none() {
            let steps = self.steps.lock().take();
            self.end(steps);
        }
        before.is_some_and(|before| before & SCHEDULED != 0)
    }

    fn schedule(&self) -> bool {
        let before = self.mark(|marks| (marks & (SCHEDULED | ENDED) == 0).then_some(marks | SCHEDULED));
        before.is_some_and(|before| before & RUNNING == 0)
    }

    /// Ends it now if nobody runs it, or else as soon as nobody does.
    fn cancel(&self) {
        let before = self.mark(|marks| (marks & ENDED == 0).then_some(marks | CANCELLED | RUNNING));
        if before.is_some_and(|before| before & RUNNING == 0) {
            let steps = self.steps.lock().take();
            self.end(steps);
        }
    }

    /// As [`Core::cancel`], and calls `then` when nobody runs it any more. Of several the first is called, but that a
    /// task has ended is told to everybody who comes later.
    fn cancel_then(&self, then: Box<dyn FnOnce() + Send>) {
        let mut kept = self.then.lock();
        // Whoever ends it says so before it looks here.
        if self.marks.load(SeqCst) & ENDED != 0 {
            drop(kept);
            contain::told("what follows a task", then);
            return;
        }
        let refused = if kept.is_none() { kept.replace(then) } else { Some(then) };
        drop(kept);
        drop(refused);
        self.cancel();
    }

    /// The thread that has the future lets go of it, and tells.
    fn end(&self, steps: Option<Steps>) {
        match planted::strikes(Bug::TaskKept) {
            true => std::mem::forget(steps),
            false => _ = contain::told("the drop of a task", || drop(steps)),
        }
        if let Some(tasks) = self.tasks.upgrade() {
            let mut alive = tasks.alive.lock();
            alive.slots[self.slot] = None;
            alive.free.push(self.slot);
        }
        self.marks.fetch_or(ENDED, SeqCst);
        let then = self.then.lock().take();
        if let Some(then) = then {
            contain::told("what follows a task", then);
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Nobody can wake it any more.
        if *self.marks.get_mut() & ENDED == 0 {
            let steps = self.steps.get_mut().take();
            self.end(steps);
        }
    }
}

impl Wake for Core {
    fn wake(self: Arc<Self>) {
        if self.schedule()
            && let Some(tasks) = self.tasks.upgrade()
            && !planted::strikes(Bug::WakeLost)
        {
            tasks.put(self);
        }
    }
}

/// Wakes without a call: for those who run what is ready themselves.
struct Quietly(Arc<Core>);

impl Wake for Quietly {
    fn wake(self: Arc<Self>) {
        let core = &self.0;
        if core.schedule()
            && let Some(tasks) = core.tasks.upgrade()
        {
            tasks.push(Arc::clone(core));
        }
    }
}

/// A future that the threads of a node poll. Dropping it cancels that, unless it was detached.
#[must_use = "a task that is dropped is cancelled"]
pub struct Task {
    core: Option<Arc<Core>>,
}

impl Task {
    /// Polls it now, on the calling thread, if it must be polled and no other thread does; again if it was woken
    /// meanwhile, for a while. It runs no other task, so the caller may hold locks that this one does not want.
    pub fn run(&self) {
        let Some(core) = &self.core else { return };
        if (0..TURN_POLLS).all(|_| core.poll_once()) {
            self.enqueue();
        }
    }

    /// Has it polled by whoever polls the node next.
    pub(super) fn enqueue(&self) {
        if let Some((core, tasks)) = self.core.as_ref().and_then(|core| Some((core, core.tasks.upgrade()?))) {
            tasks.put(Arc::clone(core));
        }
    }

    /// Cancels it: the future is dropped, now if nobody polls it, or else when that poll is over. `then` is called when
    /// that is so, or the task has ended by itself; only that of the first who cancels it.
    pub fn cancel_then(&self, then: impl FnOnce() + Send + 'static) {
        if let Some(core) = &self.core {
            core.cancel_then(Box::new(then));
        }
    }

    /// Returns how many tasks this thread polls, one within the other: a thread that waits within a poll, or elsewhere,
    /// polls others meanwhile. So what was noted for a thread at one depth is nothing of what it polls at another.
    #[must_use]
    pub fn depth() -> usize {
        DEPTH.get()
    }

    /// Has it polled once more.
    pub fn wake(&self) {
        if let Some(core) = &self.core {
            Arc::clone(core).wake();
        }
    }

    /// A waker for those who run what they have woken themselves, with [`super::Runtime::run_ready`]: no other thread
    /// is called for it.
    #[must_use]
    pub fn quiet_waker(&self) -> Waker {
        match &self.core {
            Some(core) => Waker::from(Arc::new(Quietly(Arc::clone(core)))),
            None => Waker::noop().clone(),
        }
    }

    /// Whether it has ended, and nothing of it is left.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.core.as_ref().is_none_or(|core| core.marks.load(SeqCst) & ENDED != 0)
    }

    /// Lets it go on though nobody holds it, for as long as something can wake it.
    pub fn detach(mut self) {
        self.core = None;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.cancel();
        }
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("has_ended", &self.has_ended()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
