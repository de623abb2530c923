//! The ends of lives: of nodes, of the interpreter, and of what a forked child inherits.
//!
//! At interpreter exit every node is closed before Python tears itself down, which ends every wait with an error, and
//! then those who waited get a bounded time to come back, because a thread that comes back to a torn-down interpreter
//! is killed where it stands. In a forked child nothing of this happens: the nodes are the parent's.

use crate::node::Slot;
use pyo3::prelude::*;
use sheave_base::fork::ForkMark;
use sheave_base::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long the exit of the interpreter waits for calls that are on their way back.
const EXIT_PATIENCE: Duration = Duration::from_millis(500);

/// Nodes of this process. Locked with the interpreter held only, so that a fork never finds it locked.
static NODES: Mutex<Vec<Weak<Slot>>> = Mutex::new(Vec::new());
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

/// Remembers a node, to close it at exit.
pub(crate) fn remember(slot: &Arc<Slot>) {
    let mut nodes = NODES.lock().unwrap_or_else(PoisonError::into_inner);
    nodes.retain(|known| known.strong_count() > 0);
    nodes.push(Arc::downgrade(slot));
}

#[pyfunction]
fn close_all(py: Python<'_>) {
    if MODULE_MARK.get().is_none_or(|mark| mark.is_stale()) {
        return;
    }
    ENDING.store(true, SeqCst);
    let nodes = std::mem::take(&mut *NODES.lock().unwrap_or_else(PoisonError::into_inner));
    py.detach(|| {
        for node in nodes.iter().filter_map(Weak::upgrade) {
            node.close();
        }
        let begun = Instant::now();
        while VISITS.load(SeqCst) > 0 && begun.elapsed() < EXIT_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
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
