//! The threads that run handlers which may block.
//!
//! A thread without work waits on a work that is driven by the node: so it makes progress on the links itself, and a
//! request that it finds there is often run by it at once, without a hand-over. Once it runs a handler the others go on
//! polling.
//!
//! **Permits.** At most [`limits::EXECUTOR_PERMITS`] handlers run at the same time. One that waits, for another call
//! say, gives its permit back for as long as it waits, and another thread may start; so nodes that call each other in
//! circles do not starve, up to [`limits::EXECUTOR_THREADS_MAX`] threads. Beyond that requests stay in the queue, which
//! is bounded where they are let in.

use parking_lot::Mutex;
use sheave_base::work::{Completer, IDLE, blocking};
use sheave_base::{contain, limits};
use sheave_net::Node;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::ThreadId;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct Executor {
    pool: Arc<Pool>,
}

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Threads that wait for a job; the last one to come is the first to go.
    idle: Vec<(ThreadId, Completer<Job>)>,
    threads: usize,
    /// Handlers that run and do not wait.
    running: usize,
    stopped: bool,
}

/// What a job needs to be started, found under the lock and done without it.
enum Start {
    Wake(Completer<Job>, Job),
    Spawn,
    Nothing,
}

impl Executor {
    /// Runs the job as soon as there is a permit. Does not block.
    pub(crate) fn submit(&self, node: &Node, job: Job) {
        let mut state = self.pool.state.lock();
        if state.stopped {
            drop(state);
            // Which answers it.
            return drop(job);
        }
        state.queue.push_back(job);
        let start = state.next_start();
        drop(state);
        self.pool.start(start, node);
    }

    /// Ends idle threads; running handlers finish what they do. Jobs in the queue are dropped, which answers them.
    pub(crate) fn stop(&self) {
        let (idle, queue) = {
            let mut state = self.pool.state.lock();
            state.stopped = true;
            (std::mem::take(&mut state.idle), std::mem::take(&mut state.queue))
        };
        drop(queue);
        // A dropped completer ends its work with an error, and its thread.
        drop(idle);
    }
}

impl State {
    /// What to do so that the next job in the queue runs, if it may.
    fn next_start(&mut self) -> Start {
        if self.stopped || self.queue.is_empty() || self.running >= limits::EXECUTOR_PERMITS {
            return Start::Nothing;
        }
        // The thread that found the request takes it, if it is one of ours.
        let own = std::thread::current().id();
        let at = self.idle.iter().position(|(thread, _)| *thread == own).or(self.idle.len().checked_sub(1));
        if let Some(at) = at
            && let Some(job) = self.queue.pop_front()
        {
            self.running += 1;
            return Start::Wake(self.idle.remove(at).1, job);
        }
        if self.threads >= limits::EXECUTOR_THREADS_MAX {
            return Start::Nothing;
        }
        self.threads += 1;
        Start::Spawn
    }
}

impl Pool {
    fn start(self: &Arc<Self>, start: Start, node: &Node) {
        match start {
            Start::Nothing => {}
            Start::Wake(completer, job) => completer.complete(Ok(job)),
            Start::Spawn => {
                let (pool, own) = (Arc::clone(self), node.clone());
                let spawned = sheave_base::thread::spawn("sheave-executor", move || pool.run(&own));
                if let Err(error) = spawned {
                    let stranded = {
                        let mut state = self.state.lock();
                        state.threads -= 1;
                        // The job waits for one of the threads that there are, if there are any.
                        if state.threads == 0 { std::mem::take(&mut state.queue) } else { VecDeque::new() }
                    };
                    if !stranded.is_empty() {
                        node.notice(&format!("{} calls are not answered: {error}", stranded.len()));
                    }
                    // Which answers them.
                    drop(stranded);
                }
            }
        }
    }

    fn run(self: &Arc<Self>, node: &Node) {
        let (pool, own) = (Arc::clone(self), node.clone());
        let listener: Rc<dyn Fn(bool)> = Rc::new(move |blocks| pool.permit(blocks, &own));
        while let Some(job) = self.next(node) {
            blocking::tell(Some(Rc::clone(&listener)));
            contain::told("a handler", job);
            blocking::tell(None);
            self.state.lock().running -= 1;
        }
        self.state.lock().threads -= 1;
    }

    /// The next job, with a permit for it; `None` when the thread is to end.
    fn next(&self, node: &Node) -> Option<Job> {
        let work = {
            let mut state = self.state.lock();
            if state.stopped {
                return None;
            }
            if state.running < limits::EXECUTOR_PERMITS
                && let Some(job) = state.queue.pop_front()
            {
                state.running += 1;
                return Some(job);
            }
            let (completer, work) = node.pair(IDLE, None);
            state.idle.push((std::thread::current().id(), completer));
            work
        };
        work.wait_until(None, None).ok()?;
        work.taken().ok()
    }

    /// A handler's thread begins or ends to wait.
    fn permit(self: &Arc<Self>, waits: bool, node: &Node) {
        let mut state = self.state.lock();
        if !waits {
            // It goes on at once: for a moment there may be one more than there are permits.
            state.running += 1;
            return;
        }
        state.running -= 1;
        let start = state.next_start();
        drop(state);
        self.start(start, node);
    }
}
