//! The one thread on which Python code runs that nobody called: callbacks of works, updaters, controllers.
//!
//! No thread of sheave ever attaches to the interpreter. Whoever has something for Python to do posts it to a queue,
//! from any thread and without waiting; a daemon thread that Python itself has started takes jobs out, one after the
//! other, and waits for more with the interpreter let go. It is started with the first job that can come, and ends when
//! the interpreter does: what is in the queue by then is leaked on purpose, and Python code that still runs there gets
//! SystemExit.
//!
//! A job that holds the thread for [`TOLD_AFTER`] holds all that come after it, and for ever if it waits for one of
//! them. So a second thread, which never touches the interpreter, looks whether one does, and says so. It sleeps for as
//! long as nothing runs, and is woken at most once in that span.
//!
//! The queue is not bounded by itself. Each job stands for something that is: a work with a callback, of which there
//! are at most [`CALLBACKS_MAX`], or a request that the mesh has let in.

use crate::{life, released};
use pyo3::exceptions::PySystemExit;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict};
use sheave_base::fork::ForkMark;
use sheave_base::{Error, ErrorKind, Result, thread};
use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Callbacks that may wait for their works at one time: more are a program that never lets its operations end.
const CALLBACKS_MAX: usize = 1 << 20;

/// How long a job may hold the thread before that is told.
const TOLD_AFTER: Duration = Duration::from_secs(1);

/// Something for Python to do.
pub(crate) type Job = Box<dyn FnOnce(Python<'_>) + Send>;

#[derive(Default)]
struct Queue {
    /// Each with the operation that it belongs to.
    jobs: VecDeque<(&'static str, Job)>,
    has_ended: bool,
}

#[derive(Default)]
struct Desk {
    queue: Mutex<Queue>,
    bell: Condvar,
    /// Callbacks that were admitted and have not run yet.
    admitted: AtomicUsize,
    /// Python's number of the thread, while it runs.
    thread: AtomicU64,
    held: Held,
}

/// What holds the thread, for the one that looks.
#[derive(Default)]
struct Held {
    state: Mutex<HeldState>,
    bell: Condvar,
}

#[derive(Default)]
struct HeldState {
    /// The operation whose job runs, and since when.
    running: Option<(&'static str, Instant)>,
    /// How many jobs have begun.
    begun: u64,
    /// Whether whoever looks sleeps until the bell rings.
    is_asleep: bool,
    has_ended: bool,
}

impl Held {
    fn state(&self) -> MutexGuard<'_, HeldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, operation: &'static str) {
        let mut state = self.state();
        state.running = Some((operation, Instant::now()));
        state.begun += 1;
        if std::mem::take(&mut state.is_asleep) {
            self.bell.notify_one();
        }
    }

    fn end(&self) {
        self.state().running = None;
    }

    fn stop(&self) {
        self.state().has_ended = true;
        self.bell.notify_one();
    }

    /// Says what holds the thread for too long, each job once; returns when the thread ends.
    fn look(&self) {
        let mut told = 0;
        let mut state = self.state();
        while !state.has_ended {
            let begun = state.begun;
            let (operation, left) = match state.running.filter(|_| told != begun) {
                Some((operation, since)) => (Some(operation), TOLD_AFTER.saturating_sub(since.elapsed())),
                None => (None, TOLD_AFTER),
            };
            if let Some(operation) = operation.filter(|_| left.is_zero()) {
                told = begun;
                drop(state);
                tell_held(operation);
                state = self.state();
                continue;
            }
            let (next, waited) = self.bell.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state = next;
            // Nothing has run for the whole span, or still the one that was told.
            if operation.is_none() && waited.timed_out() && state.begun == begun {
                state.is_asleep = true;
                while state.is_asleep && !state.has_ended {
                    state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

/// Says that the callback thread is held. It is somebody's code, which cannot be ended.
fn tell_held(operation: &str) {
    let text = format!(
        "a callback of {operation} has been running for {} s, and other callbacks wait for it; \
         hint: have a thread of your own do what takes long or waits",
        TOLD_AFTER.as_secs()
    );
    // Nobody to tell is no reason to fail.
    let _ = writeln!(std::io::stderr(), "sheave: {text}");
}

impl Desk {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything there is to do; blocks while that is nothing. None once it has ended.
    fn take(&self) -> Option<VecDeque<(&'static str, Job)>> {
        let mut queue = self.queue();
        loop {
            if queue.has_ended {
                return None;
            }
            if !queue.jobs.is_empty() {
                return Some(std::mem::take(&mut queue.jobs));
            }
            queue = self.bell.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The desk of this process. Locked with the interpreter held only, so that a fork never finds it locked.
static DESK: Mutex<Option<(ForkMark, Arc<Desk>)>> = Mutex::new(None);

/// Where jobs for the callback thread are posted.
#[derive(Clone)]
pub(crate) struct Callbacks(Arc<Desk>);

impl Callbacks {
    /// The callback thread of this process, which is started if it does not run yet.
    pub(crate) fn here(py: Python<'_>) -> PyResult<Self> {
        let mut known = DESK.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((mark, desk)) if !mark.is_stale() => return Ok(Self(Arc::clone(desk))),
            // What a forked child inherits stays as it is: its lock may be held by a thread that is not there.
            _ => std::mem::forget(known.take()),
        }
        let desk = Arc::new(Desk::default());
        *known = Some((ForkMark::here(), Arc::clone(&desk)));
        // Starting a thread lets others run, who may want a callback too.
        drop(known);
        let own = Arc::clone(&desk);
        let run = PyCFunction::new_closure(py, Some(c"run_callbacks"), None, move |arguments, _| {
            keep(arguments.py(), &own);
        })?;
        let keywords = PyDict::new(py);
        keywords.set_item("target", run)?;
        keywords.set_item("name", "sheave-callbacks")?;
        keywords.set_item("daemon", true)?;
        let started = || py.import("threading")?.call_method("Thread", (), Some(&keywords))?.call_method0("start");
        if let Err(error) = started() {
            // The next one tries again.
            let mut known = DESK.lock().unwrap_or_else(PoisonError::into_inner);
            let is_it = known.as_ref().is_some_and(|(_, known)| Arc::ptr_eq(known, &desk));
            let dead = if is_it { known.take() } else { None };
            drop(known);
            drop(dead);
            return Err(error);
        }
        let watched = Arc::clone(&desk);
        // Without it callbacks run all the same, as in a forked child, which has no such threads.
        let _ = thread::spawn("sheave-watch", move || watched.held.look());
        Ok(Self(desk))
    }

    /// Lets Python do something soon, for an operation. Never blocks for long, and may be called from any thread.
    pub(crate) fn post(&self, operation: &'static str, job: Job) {
        let mut queue = self.0.queue();
        if queue.has_ended {
            // What belongs to Python cannot be given back any more.
            std::mem::forget(job);
            return;
        }
        queue.jobs.push_back((operation, job));
        drop(queue);
        self.0.bell.notify_one();
    }

    /// Counts a callback that is to be posted later.
    pub(crate) fn admit(&self) -> Result<()> {
        if self.0.admitted.fetch_add(1, Relaxed) < CALLBACKS_MAX {
            return Ok(());
        }
        self.0.admitted.fetch_sub(1, Relaxed);
        Err(Error::new(ErrorKind::LimitExceeded, format!("{CALLBACKS_MAX} callbacks wait for their operations")))
    }

    /// A callback that was admitted runs now.
    pub(crate) fn dismiss(&self) {
        self.0.admitted.fetch_sub(1, Relaxed);
    }

    /// What a callback has raised; nobody is there to catch it.
    pub(crate) fn tell(&self, py: Python<'_>, error: PyErr, callback: &Bound<'_, PyAny>) {
        if self.0.queue().has_ended && error.is_instance_of::<PySystemExit>(py) {
            return;
        }
        error.write_unraisable(py, Some(callback));
    }
}

/// What the thread does.
fn keep(py: Python<'_>, desk: &Desk) {
    let Ok(stay) = life::Stay::begin() else { return };
    let number = py.import("threading").and_then(|threading| threading.call_method0("get_ident")?.extract());
    desk.thread.store(number.unwrap_or(0), Relaxed);
    while let Some(jobs) = py.detach(|| desk.take()) {
        for (operation, job) in jobs {
            desk.held.begin(operation);
            job(py);
            desk.held.end();
        }
        released::drain(py);
    }
    desk.thread.store(0, Relaxed);
    drop(stay);
}

/// Ends Python code that the thread runs, if it still does. A thread that comes back to an interpreter that is torn
/// down ends in the middle of whatever it does, and our frames below it cannot bear that.
pub(crate) fn break_off(py: Python<'_>) {
    let known = DESK.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_, desk)) = known.as_ref().filter(|(mark, _)| !mark.is_stale()) else { return };
    let number = desk.thread.load(Relaxed);
    if number != 0 {
        let exit = py.get_type::<PySystemExit>();
        // SAFETY: the interpreter is held; a number that is no thread's any more has no effect.
        unsafe { ffi::PyThreadState_SetAsyncExc(number.cast_signed(), exit.as_ptr()) };
    }
}

/// Ends the thread. Jobs that have not begun by then are lost.
pub(crate) fn end() {
    let known = DESK.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((_, desk)) = known.as_ref().filter(|(mark, _)| !mark.is_stale()) else { return };
    let mut queue = desk.queue();
    queue.has_ended = true;
    std::mem::forget(std::mem::take(&mut queue.jobs));
    desk.bell.notify_all();
    drop(queue);
    desk.held.stop();
}
