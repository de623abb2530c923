//! Operations in flight: each is a task of the node's runtime, with what its group knows of it.
//!
//! Its ending, which completes the operation's work, is taken exactly once: by the steps when they have come to their
//! end, or by whoever fails the operation from outside. Either way it is called only when the steps are gone, with the
//! memory that they hold: the steps call it when they have let go of everything, and an operation that is failed while
//! a thread runs its steps ends when that thread is through with them. So a buffer is free when its operation's end is
//! known. Nothing here blocks, and endings are called with no lock held.
//!
//! **Who has died may have done its part before.** A task that waits for one that is dead is polled once more before it
//! fails: what the dead one has written into shared memory wakes nobody, and the news of its death may be quicker than
//! the thread that would have looked there.

use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, Rank, Result};
use sheave_mesh::{Runtime, Timer};
use smallvec::SmallVec;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Poll, Waker};
use std::time::Instant;

/// No rank in particular.
const NOBODY: u32 = u32::MAX;

/// Whom a task waits for, for those who ask, and how it is woken by those who then run it.
#[derive(Debug)]
pub(crate) struct Awaited {
    rank: AtomicU32,
    /// The task has failed, and only waits to be told why.
    has_given_up: AtomicBool,
    waker: OnceLock<Waker>,
}

impl Default for Awaited {
    fn default() -> Self {
        Self { rank: AtomicU32::new(NOBODY), has_given_up: AtomicBool::new(false), waker: OnceLock::new() }
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

    /// The waker for those who run themselves what they have woken. It is there while the steps are.
    pub(crate) fn waker(&self) -> Option<&Waker> {
        self.waker.get()
    }
}

/// What an operation computes: the rank of the other side for a message, its own for a collective.
pub(crate) type Steps = Pin<Box<dyn Future<Output = Result<Rank>> + Send>>;

type Ending = Box<dyn FnOnce(Result<Rank>) + Send>;

/// An operation in flight.
pub(crate) struct Task {
    /// Its number in its group; of messages, which have none, just a key.
    pub(crate) key: u64,
    pub(crate) operation: &'static str,
    pub(crate) begun: Instant,
    /// Collectives have a sequence number and break their group when they fail; messages do not.
    pub(crate) is_collective: bool,
    /// Of a message: the other side, if it is one rank, and the tag.
    pub(crate) message: Option<(Option<Rank>, u64)>,
    pub(crate) awaited: Arc<Awaited>,
    steps: OnceLock<sheave_mesh::Task>,
    /// Why it fails where its steps find that they must still wait.
    doom: Arc<OnceLock<Error>>,
    ending: Mutex<Option<Ending>>,
    /// What is done about it if it takes too long.
    timers: Mutex<SmallVec<[Timer; 1]>>,
}

/// What a task is made of.
pub(crate) struct Plan {
    pub(crate) key: u64,
    pub(crate) operation: &'static str,
    pub(crate) is_collective: bool,
    pub(crate) message: Option<(Option<Rank>, u64)>,
    pub(crate) awaited: Arc<Awaited>,
    pub(crate) steps: Steps,
}

impl Task {
    /// A task that waits for [`Task::run`], or, with the reason, one that can only be ended.
    pub(crate) fn new(
        runtime: &Runtime,
        plan: Plan,
        ending: impl FnOnce(Result<Rank>) + Send + 'static,
    ) -> (Arc<Self>, Result<()>) {
        let Plan { key, operation, is_collective, message, awaited, steps } = plan;
        let task = Arc::new(Self {
            key,
            operation,
            begun: Instant::now(),
            is_collective,
            message,
            awaited,
            steps: OnceLock::new(),
            doom: Arc::default(),
            ending: Mutex::new(Some(Box::new(ending))),
            timers: Mutex::default(),
        });
        let (end, doom) = (End(Arc::downgrade(&task)), Arc::clone(&task.doom));
        let prepared = runtime.prepare(async move {
            let end = end;
            // They are gone at the end of this statement.
            let outcome = unless_doomed(steps, &doom).await;
            end.call(outcome);
        });
        let is_prepared = prepared.map(|steps| {
            let _ = task.awaited.waker.set(steps.quiet_waker());
            let _ = task.steps.set(steps);
        });
        (task, is_prepared)
    }

    /// Runs the steps on this thread until they wait for something, unless another thread does.
    pub(crate) fn run(&self) {
        if let Some(steps) = self.steps.get() {
            steps.run();
        }
    }

    /// Has the steps polled once more.
    pub(crate) fn wake(&self) {
        if let Some(steps) = self.steps.get() {
            steps.wake();
        }
    }

    /// Ends it with an error, unless it has an end: at once if nobody runs its steps, or else as soon as nobody does.
    pub(crate) fn fail(&self, error: Error) {
        let Some(ending) = self.take_ending() else { return };
        match self.steps.get() {
            Some(steps) => steps.cancel_then(move || ending(Err(error))),
            None => ending(Err(error)),
        }
    }

    /// Ends it with an error where its steps, polled once more, still wait for something.
    pub(crate) fn doom(&self, error: Error) {
        match self.steps.get() {
            Some(steps) => {
                let _ = self.doom.set(error);
                steps.wake();
            }
            None => self.fail(error),
        }
    }

    fn take_ending(&self) -> Option<Ending> {
        self.ending.lock().take()
    }

    /// Whether it is decided how it ends.
    pub(crate) fn is_done(&self) -> bool {
        self.ending.lock().is_none()
    }

    /// Keeps a timer for as long as the task is there.
    pub(crate) fn keep(&self, timer: Timer) {
        self.timers.lock().push(timer);
    }
}

/// Polls the steps to their end, or until they are doomed and still wait.
async fn unless_doomed(mut steps: Steps, doom: &OnceLock<Error>) -> Result<Rank> {
    poll_fn(|context| {
        // Asked first: what came before is seen by the poll.
        let reason = doom.get();
        match (steps.as_mut().poll(context), reason) {
            (Poll::Pending, Some(error)) => Poll::Ready(Err(error.clone())),
            (polled, _) => polled,
        }
    })
    .await
}

/// Calls a task's ending, with an error if the steps did not come to their end: they have panicked.
struct End(Weak<Task>);

impl End {
    fn call(&self, outcome: Result<Rank>) {
        if let Some(ending) = self.0.upgrade().and_then(|task| task.take_ending()) {
            ending(outcome);
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let what = "the operation was given up in the middle: it panicked, or its node has ended";
        self.call(Err(Error::new(ErrorKind::Internal, what)));
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("operation", &self.operation).field("key", &self.key).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::Region;
    use sheave_base::config::Endpoint;
    use sheave_base::secret::Resolved;
    use sheave_base::{Secret, port};
    use sheave_mesh::{Config, Expected, Mesh, Role};
    use sheave_tensor::Tensor;
    use std::future::pending;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(20);

    fn mesh() -> Mesh {
        let root = Endpoint { host: "127.0.0.1".into(), port: port::free().expect("there are thousands") };
        let mut config = Config::new(Role::Rank, Some(0), Expected::ranks(1), root);
        let secret = Secret::new(b"known to the tests alone").expect("it is long enough");
        config.node.secret = Some(Resolved { secret, source: "the test".into() });
        Mesh::join(config).expect("nobody else is expected")
    }

    fn plan(steps: Steps) -> Plan {
        Plan { key: 0, operation: "all_reduce", is_collective: true, message: None, awaited: Arc::default(), steps }
    }

    /// One thread runs an operation's steps, and another one fails the operation meanwhile.
    #[test]
    fn the_end_is_told_when_nobody_runs_the_steps_any_more() {
        let mesh = mesh();
        let tensor = Tensor::from_slice(&[1.0_f32, 2.0], [2]).expect("memory");
        let region = Region::writing(&tensor, "all_reduce").expect("nobody else has it");
        let (enter, entered) = channel();
        let (release, released) = channel::<()>();
        let steps = Box::pin(async move {
            let _region = region;
            enter.send(()).expect("it waits");
            released.recv_timeout(LONG).expect("it lets go");
            pending().await
        });
        let (tell, told) = channel();
        let seen = tensor.clone();
        let ending = move |outcome: Result<Rank>| {
            let is_free = seen.write_lease("test").is_ok();
            tell.send((outcome.expect_err("it was failed").kind(), is_free)).expect("it waits");
        };
        let (task, prepared) = Task::new(mesh.runtime(), plan(steps), ending);
        prepared.expect("there is room");
        let own = Arc::clone(&task);
        let runner = std::thread::spawn(move || own.run());
        entered.recv_timeout(LONG).expect("it runs");
        task.fail(Error::new(ErrorKind::PeerLost, "a rank of a test is gone"));
        assert!(task.is_done(), "how it ends is decided");
        assert!(told.try_recv().is_err(), "the end was told while the steps ran");
        release.send(()).expect("it waits");
        assert_eq!(told.recv_timeout(LONG), Ok((ErrorKind::PeerLost, true)), "the memory was in use");
        runner.join().expect("no panic");
        mesh.leave().expect("nobody else is there");
    }

    #[test]
    fn steps_that_panic_end_with_an_error_and_free_their_memory() {
        let mesh = mesh();
        let tensor = Tensor::from_slice(&[1.0_f32, 2.0], [2]).expect("memory");
        let region = Region::writing(&tensor, "all_reduce").expect("nobody else has it");
        let steps = Box::pin(async move {
            let _region = region;
            panic!("an operation of a test")
        });
        let (tell, told) = channel();
        let seen = tensor.clone();
        let ending = move |outcome: Result<Rank>| {
            let is_free = seen.write_lease("test").is_ok();
            tell.send((outcome.expect_err("it panicked").kind(), is_free)).expect("it waits");
        };
        let (task, prepared) = Task::new(mesh.runtime(), plan(steps), ending);
        prepared.expect("there is room");
        task.run();
        assert_eq!(told.recv_timeout(LONG), Ok((ErrorKind::Internal, true)));
        mesh.leave().expect("nobody else is there");
    }
}
