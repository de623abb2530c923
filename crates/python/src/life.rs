//! The ends of lives: of nodes and meshes, of the interpreter, and of what a forked child inherits.
//!
//! At interpreter exit every mesh is left and every node closed before Python tears itself down, which ends every wait
//! with an error, and then those who waited get a bounded time to come back, because a thread that comes back to a
//! torn-down interpreter is killed where it stands. Who ends by an exception that nobody caught leaves no mesh in
//! order: the others are to find it dead. In a forked child nothing of this happens: all is the parent's.

use crate::callbacks;
use pyo3::prelude::*;
use sheave_base::fork::ForkMark;
use sheave_base::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long the exit of the interpreter waits for calls that are on their way back.
const EXIT_PATIENCE: Duration = Duration::from_millis(500);

/// What is to be ended before the interpreter ends.
pub(crate) trait Living: Send + Sync {
    /// Ends it for every thread, without the interpreter. `in_order` is false after an exception that nobody caught.
    fn end(&self, in_order: bool);
}

/// Nodes and meshes of this process. Locked with the interpreter held only, so that a fork never finds it locked.
static LIVING: Mutex<Vec<Weak<dyn Living>>> = Mutex::new(Vec::new());
static MODULE_MARK: OnceLock<ForkMark> = OnceLock::new();
static ENDING: AtomicBool = AtomicBool::new(false);
static VISITS: AtomicUsize = AtomicUsize::new(0);

/// Registers the exit hook.
pub(crate) fn install(module: &Bound<'_, PyModule>) -> PyResult<()> {
    MODULE_MARK.get_or_init(ForkMark::here);
    let hook = wrap_pyfunction!(close_all, module)?;
    module.py().import("atexit")?.call_method1("register", (hook,))?;
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
    let in_order = !ends_by_exception(py);
    callbacks::end();
    py.detach(|| {
        for one in living.iter().filter_map(Weak::upgrade) {
            one.end(in_order);
        }
    });
    py.detach(await_visits);
    if VISITS.load(SeqCst) > 0 {
        callbacks::break_off(py);
        py.detach(await_visits);
    }
}

fn await_visits() {
    let begun = Instant::now();
    while VISITS.load(SeqCst) > 0 && begun.elapsed() < EXIT_PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the interpreter has shown the exception that ends it.
fn ends_by_exception(py: Python<'_>) -> bool {
    let shown = py.import("sys").and_then(|sys| sys.hasattr("last_value"));
    let is_interactive = py.import("sys").and_then(|sys| sys.hasattr("ps1"));
    shown.unwrap_or(false) && !is_interactive.unwrap_or(true)
}

/// A call from Python that is under way with the interpreter let go.
pub(crate) struct Visit(());

impl Visit {
    /// Counts a call; an error once the interpreter is about to end.
    pub(crate) fn begin() -> Result<Self> {
        VISITS.fetch_add(1, SeqCst);
        let visit = Self(());
        if ENDING.load(SeqCst) && MODULE_MARK.get().is_some_and(|mark| !mark.is_stale()) {
            return Err(Error::new(ErrorKind::Closed, "the interpreter is shutting down"));
        }
        Ok(visit)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        VISITS.fetch_sub(1, SeqCst);
    }
}
