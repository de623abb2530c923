//! The ends of lives: of nodes and meshes, of the interpreter, and of what a forked child inherits.
//!
//! At interpreter exit every mesh is left and every node closed before Python tears itself down, which ends every wait
//! with an error, and then those who waited get a bounded time to come back, because a thread that comes back to a
//! torn-down interpreter is killed where it stands, and a frame of ours in its way ends the process. So do those who
//! run Python code below a frame of ours, for they let the interpreter go at any line of it ([`below`]). A program that
//! ends by an exception that nobody caught, or with an exit status other than 0, leaves no mesh in order: it has failed
//! and the others are told so. The interpreter does not say with which status the process is about to exit, so the fate
//! of a mesh that nobody waits in is left to a handler of the C library, which is told ([`when_status_is_known`]). In a
//! forked child nothing of this happens: all is the parent's.

use crate::{callbacks, enter, errors, handlers};
use pyo3::prelude::*;
use sheave_base::fork::ForkMark;
use sheave_base::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long the exit of the interpreter waits for calls that are on their way back.
const EXIT_PATIENCE: Duration = Duration::from_millis(500);

/// What is to be ended before the interpreter ends.
pub(crate) trait Living: Send + Sync {
    /// Ends it for every thread, without the interpreter.
    fn end(&self, how: End);
}

/// How a program ends, as far as is known while its interpreter ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// By an exception that nobody caught.
    Uncaught,
    /// With a status that is not known yet, and calls are under way that must end now.
    Waited,
    /// With a status that is not known yet.
    Quiet,
}

type Verdict = Box<dyn FnOnce(i32) + Send>;

/// What waits for the status with which the process exits.
struct Exit {
    verdicts: Vec<Verdict>,
    has_thread: bool,
    status: Option<i32>,
    is_over: bool,
}

static EXIT: Mutex<Exit> = Mutex::new(Exit { verdicts: Vec::new(), has_thread: false, status: None, is_over: false });
static EXIT_CHANGED: Condvar = Condvar::new();

/// Calls `verdict` with the exit status of the process, when the interpreter has ended; at once, as if it were 0, where
/// the C library does not tell. A thread does so that is made now: when the process exits, the variables that its main
/// thread has for itself are gone.
pub(crate) fn when_status_is_known(verdict: impl FnOnce(i32) + Send + 'static) {
    let mut exit = EXIT.lock().unwrap_or_else(PoisonError::into_inner);
    if cfg!(target_env = "gnu") && exit.status.is_none() {
        exit.has_thread = exit.has_thread || sheave_base::thread::spawn("sheave-exit", pass_verdicts).is_ok();
        if exit.has_thread {
            return exit.verdicts.push(Box::new(verdict));
        }
    }
    drop(exit);
    verdict(0);
}

fn pass_verdicts() {
    let exit = EXIT.lock().unwrap_or_else(PoisonError::into_inner);
    let exit = EXIT_CHANGED.wait_while(exit, |exit| exit.status.is_none());
    let mut exit = exit.unwrap_or_else(PoisonError::into_inner);
    let (status, verdicts) = (exit.status.unwrap_or_default(), std::mem::take(&mut exit.verdicts));
    drop(exit);
    // Whoever waits for this goes on in any case.
    let pass = || verdicts.into_iter().for_each(|verdict| verdict(status));
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(pass));
    EXIT.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
    EXIT_CHANGED.notify_all();
}

/// Whether the interpreter is about to end, or has ended.
pub(crate) fn is_ending() -> bool {
    ENDING.load(SeqCst)
}

#[cfg(target_env = "gnu")]
fn hear_exit_status() {
    use std::ffi::{c_int, c_void};
    unsafe extern "C" {
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
    }
    extern "C" fn tell_status(status: c_int, _: *mut c_void) {
        // In a forked child the thread is the parent's, and so is what it ends.
        if MODULE_MARK.get().is_none_or(|mark| mark.is_stale()) {
            return;
        }
        let mut exit = EXIT.lock().unwrap_or_else(PoisonError::into_inner);
        exit.status = Some(status);
        EXIT_CHANGED.notify_all();
        drop(EXIT_CHANGED.wait_while(exit, |exit| exit.has_thread && !exit.is_over));
    }
    // SAFETY: the function is of the type that the C library calls, and stays: Python unloads no extension modules.
    let _ = unsafe { on_exit(tell_status, std::ptr::null_mut()) };
}

#[cfg(not(target_env = "gnu"))]
fn hear_exit_status() {}

/// Nodes and meshes of this process. Locked with the interpreter held only, so that a fork never finds it locked.
static LIVING: Mutex<Vec<Weak<dyn Living>>> = Mutex::new(Vec::new());
static MODULE_MARK: OnceLock<ForkMark> = OnceLock::new();
static ENDING: AtomicBool = AtomicBool::new(false);
static VISITS: AtomicUsize = AtomicUsize::new(0);
/// Threads that run Python code below our frames, or may begin to.
static BELOW: AtomicUsize = AtomicUsize::new(0);

/// Registers the exit hook.
pub(crate) fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    MODULE_MARK.get_or_init(ForkMark::here);
    let hook = wrap_pyfunction!(close_all, module)?;
    module.py().import("atexit")?.call_method1("register", (hook,))?;
    static HEARS: std::sync::Once = std::sync::Once::new();
    HEARS.call_once(hear_exit_status);
    Ok(())
}

/// Remembers something, to end it at exit.
pub(crate) fn remember(living: Weak<dyn Living>) {
    let mut known = LIVING.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|known| known.strong_count() > 0);
    known.push(living);
}

#[pyfunction]
fn close_all(py: Python<'_>) {
    if MODULE_MARK.get().is_none_or(|mark| mark.is_stale()) {
        return;
    }
    ENDING.store(true, SeqCst);
    let living = std::mem::take(&mut *LIVING.lock().unwrap_or_else(PoisonError::into_inner));
    let how = match ends_by_exception(py) {
        true => End::Uncaught,
        false if VISITS.load(SeqCst) > 0 => End::Waited,
        false => End::Quiet,
    };
    callbacks::end();
    py.detach(|| {
        for one in living.iter().filter_map(Weak::upgrade) {
            one.end(how);
        }
    });
    py.detach(await_visits);
    if is_visited() {
        callbacks::break_off(py);
        handlers::break_off(py);
        py.detach(await_visits);
    }
}

fn is_visited() -> bool {
    VISITS.load(SeqCst) + BELOW.load(SeqCst) > 0 || handlers::are_running()
}

fn await_visits() {
    let begun = Instant::now();
    while is_visited() && begun.elapsed() < EXIT_PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs Python code below a frame of ours. The end of the interpreter waits for it, and from then on none begins but on
/// the main thread, which is not killed.
pub(crate) fn below<T>(py: Python<'_>, act: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    let stay = Stay::count();
    if is_ending() && MODULE_MARK.get().is_some_and(|mark| !mark.is_stale()) && !enter::is_main_thread() {
        return Err(errors::to_python(py, &ended()));
    }
    let outcome = act();
    drop(stay);
    outcome
}

pub(crate) fn ended() -> Error {
    Error::new(ErrorKind::Closed, "the interpreter is shutting down")
}

/// Whether the interpreter has shown the exception that ends it.
pub(crate) fn ends_by_exception(py: Python<'_>) -> bool {
    let shown = py.import("sys").and_then(|sys| sys.hasattr("last_value"));
    let is_interactive = py.import("sys").and_then(|sys| sys.hasattr("ps1"));
    shown.unwrap_or(false) && !is_interactive.unwrap_or(true)
}

/// A call from Python that is under way with the interpreter let go.
pub(crate) struct Visit(());

/// A thread of ours that runs Python code now and then. The end of the interpreter waits for it, and it is no sign that
/// anybody is in the middle of something.
pub(crate) struct Stay(());

impl Stay {
    fn count() -> Self {
        BELOW.fetch_add(1, SeqCst);
        Self(())
    }

    /// Counts the thread; an error once the interpreter is about to end.
    pub(crate) fn begin() -> Result<Self> {
        let stay = Self::count();
        if ENDING.load(SeqCst) && MODULE_MARK.get().is_some_and(|mark| !mark.is_stale()) {
            return Err(ended());
        }
        Ok(stay)
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        BELOW.fetch_sub(1, SeqCst);
    }
}

impl Visit {
    /// Counts a call; an error once the interpreter is about to end.
    pub(crate) fn begin() -> Result<Self> {
        VISITS.fetch_add(1, SeqCst);
        let visit = Self(());
        if ENDING.load(SeqCst) && MODULE_MARK.get().is_some_and(|mark| !mark.is_stale()) {
            return Err(ended());
        }
        Ok(visit)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        VISITS.fetch_sub(1, SeqCst);
    }
}
