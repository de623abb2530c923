//! Calls that wait where nobody can be asked whether to go on.
//!
//! Much of what blocks takes several steps, and one that ends between two of them leaves something half done. So such
//! a call runs to its end on a thread of its own, and only the wait for it ends at Ctrl-C: as with every other
//! operation, the wait is interrupted and the operation goes on, until it is done or the mesh ends. Signals come to
//! Python's main thread alone; any other thread makes the call itself.

use crate::enter::enter;
use crate::errors::OrRaise;
use pyo3::prelude::*;
use sheave_base::{Error, ErrorKind, Result, thread, work};
use std::sync::{Arc, Mutex, PoisonError};

/// Runs `operation` with the interpreter let go, and waits for it in a way that Ctrl-C can end.
pub(crate) fn aside<T: Send + 'static>(
    py: Python<'_>,
    operation: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    run(py, &mut Some(operation))
}

/// As [`aside`], for what is done also where calls that wait are refused: an end.
pub(crate) fn end_aside(py: Python<'_>, operation: impl FnOnce() -> Result<()> + Send + 'static) -> PyResult<()> {
    let mut kept = Some(operation);
    let outcome = run(py, &mut kept);
    match kept {
        Some(operation) => py.detach(operation).or_raise(py),
        None => outcome,
    }
}

/// Runs the operation, which is taken once nothing refuses that any more.
fn run<T: Send + 'static>(
    py: Python<'_>,
    kept: &mut Option<impl FnOnce() -> Result<T> + Send + 'static>,
) -> PyResult<T> {
    enter(py, None, |until, interrupt| {
        let operation = kept.take().ok_or_else(|| Error::new(ErrorKind::Internal, "a call was made before"))?;
        if interrupt.is_none() {
            return operation();
        }
        let (completer, work) = work::pair("call");
        let place = Arc::new(Mutex::new(Some((operation, completer))));
        let taken = |place: &Mutex<Option<_>>| place.lock().unwrap_or_else(PoisonError::into_inner).take();
        let own = Arc::clone(&place);
        let spawned = thread::spawn("sheave-aside", move || {
            if let Some((operation, completer)) = taken(&own) {
                completer.complete(operation());
            }
        });
        // Where no thread can be had nobody asks whether to go on.
        if spawned.is_err()
            && let Some((operation, _)) = taken(&place)
        {
            return operation();
        }
        work.wait_until(until, interrupt)?;
        work.taken()
    })
}
