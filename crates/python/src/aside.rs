//! Calls that wait where nobody can be asked whether to go on.
//!
//! Much of what blocks takes several steps, and one that ends between two of them leaves something half done. So such
//! a call runs to its end on a thread of its own, and only the wait for it ends at Ctrl-C: as with every other
//! operation, the wait is interrupted and the operation goes on, until it is done or the mesh ends. Signals come to
//! Python's main thread alone; any other thread makes the call itself.

use crate::enter::enter;
use pyo3::prelude::*;
use sheave_base::{Result, thread, work};

/// Runs `operation` with the interpreter let go, and waits for it in a way that Ctrl-C can end.
pub(crate) fn aside<T: Send + 'static>(
    py: Python<'_>,
    operation: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    enter(py, None, |until, interrupt| {
        if interrupt.is_none() {
            return operation();
        }
        let (completer, work) = work::pair("call");
        thread::spawn("sheave-aside", move || completer.complete(operation()))?;
        work.wait_until(until, interrupt)?;
        work.taken()
    })
}
