//! What all services of a node run on: tasks and timers.
//!
//! A service starts no thread and never sleeps. What it has to do later is a timer, and what waits for several things
//! one after the other is a task.

pub(crate) mod tasks;
pub(crate) mod timers;
mod timetable;

use crate::endpoints::ENGINE;
use parking_lot::Mutex;
use sheave_base::clock::Time;
use sheave_base::work::{IDLE, pair};
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_net::Node;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tasks::Tasks;
use timers::Timers;

pub use tasks::Task;
pub use timers::Timer;

/// The tasks and timers of a node. A handle keeps no node in its mesh; when the node leaves, tasks and timers end.
#[derive(Clone)]
pub struct Runtime {
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) timers: Arc<Timers>,
}

impl Runtime {
    /// The runtime of a node, whose threads are called when tasks are woken.
    pub(crate) fn new(node: &Node, timers: &Arc<Timers>) -> Self {
        let node = node.clone();
        let tasks = Tasks::new(Arc::clone(timers), move || node.attend_soon(ENGINE));
        Self { tasks, timers: Arc::clone(timers) }
    }

    /// The time by this node's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.timers.now()
    }

    /// Runs `action` at that time, on the one thread of the node that keeps time; it must be short and never block.
    /// What takes longer or waits is a task that the action wakes or begins.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` for too many timers, `Closed` once the node has left.
    pub fn at(&self, time: Time, action: impl FnOnce() + Send + 'static) -> Result<Timer> {
        self.timers.at(time, action)
    }

    /// A future that ends at that time.
    ///
    /// # Errors
    ///
    /// As [`Runtime::at`].
    pub fn sleep_until(&self, time: Time) -> Result<Sleep> {
        let (completer, over) = pair(IDLE);
        let timer = self.at(time, move || completer.complete(Ok(())))?;
        Ok(Sleep { over, _timer: timer })
    }

    /// What comes of `future`, if that is there at `time`.
    ///
    /// # Errors
    ///
    /// As [`Runtime::at`].
    pub async fn until<F: Future>(&self, time: Time, future: F) -> Result<Option<F::Output>> {
        let (mut future, mut sleep) = (pin!(future), self.sleep_until(time)?);
        let either = poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
            Poll::Pending => Pin::new(&mut sleep).poll(context).map(|()| None),
        });
        Ok(either.await)
    }

    /// Makes a task of a future. It waits for [`Task::run`], which polls it for the first time on the calling thread;
    /// from then on whoever polls the node's links polls it whenever it is woken, with no lock held.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` for too many tasks, `Closed` once the node has left.
    pub fn prepare(&self, future: impl Future<Output = ()> + Send + 'static) -> Result<Task> {
        self.prepare_with(move || future)
    }

    /// As [`Runtime::prepare`], of a future that is made if there is room for it: `make` is called with a lock held,
    /// and only puts it together. If it is not called the caller still has what it would have taken.
    ///
    /// # Errors
    ///
    /// As [`Runtime::prepare`].
    pub fn prepare_with<F: Future<Output = ()> + Send + 'static>(&self, make: impl FnOnce() -> F) -> Result<Task> {
        self.tasks.prepare(|| Box::pin(make()))
    }

    /// Begins a task, which is polled for the first time by whoever polls the node next.
    ///
    /// # Errors
    ///
    /// As [`Runtime::prepare`].
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> Result<Task> {
        let task = self.prepare(future)?;
        task.enqueue();
        Ok(task)
    }

    /// As [`Runtime::spawn`], for a future with an outcome, of which the work of this name tells. Cancelling the work
    /// cancels the task; dropping it does not. The end is told when the future has been dropped.
    pub(crate) fn spawn_work<T: Send + 'static>(
        &self,
        node: &Node,
        operation: &'static str,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<Work<T>> {
        let (completer, work) = node.pair(operation, None);
        let completer = Arc::new(Mutex::new(Some(completer)));
        let own = Arc::clone(&completer);
        let task = self.prepare(async move {
            let outcome = future.await;
            let completer = own.lock().take();
            if let Some(completer) = completer {
                completer.complete(outcome);
            }
        })?;
        task.enqueue();
        // Weakly: a future that panics must take its completer along.
        let weak: Weak<_> = Arc::downgrade(&completer);
        let mut kept = completer.lock();
        let cancel = move || {
            let Some(completer) = weak.upgrade().and_then(|completer| completer.lock().take()) else { return };
            let error = Error::new(ErrorKind::Cancelled, "the task was cancelled").operation(operation);
            task.cancel_then(move || completer.complete(Err(error)));
        };
        // It may have ended by now.
        match kept.as_mut() {
            Some(completer) => completer.on_cancel(cancel),
            None => drop(cancel),
        }
        drop(kept);
        Ok(work)
    }

    /// Runs the tasks that can go on, on the calling thread, for a moment.
    pub fn run_ready(&self) {
        self.tasks.run_ready();
    }

    /// How many tasks have not ended.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.tasks.count()
    }

    /// After `span` from now.
    #[must_use]
    pub fn after(&self, span: Duration) -> Time {
        self.now().after(span)
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("tasks", &self.tasks()).finish_non_exhaustive()
    }
}

/// Ends at its time. Dropping it takes its timer back.
#[derive(Debug)]
pub struct Sleep {
    over: Work<()>,
    _timer: Timer,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // A timer that was dropped at the end of the node ends it too.
        Pin::new(&mut self.over).poll(context).map(drop)
    }
}
