//! The one way from Python into a call that may wait.

use crate::{errors, life, released};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sheave_base::fork::ForkMark;
use sheave_base::work::Interrupt;
use sheave_base::{Error, ErrorKind, Result};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long a wait goes on between two looks at pending signals. The waiting below asks at least each 100 ms.
const SIGNAL_PERIOD: Duration = Duration::from_millis(20);

/// Longer than anybody waits, and short enough to be added to any point in time.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Runs `operation` with the interpreter let go. It gets the point in time at which `timeout_s` is over, and what to
/// ask now and then whether to go on; a signal handler that raises, such as Ctrl-C's, ends the call with that.
///
/// An operation that never asks costs neither a look at the clock nor a system call.
pub(crate) fn enter<T: Send>(
    py: Python<'_>,
    timeout_s: Option<f64>,
    operation: impl FnOnce(Option<Instant>, Option<Interrupt<'_>>) -> Result<T> + Send,
) -> PyResult<T> {
    let until = deadline(timeout_s)?;
    may_wait(py)?;
    released::drain(py);
    let visit = life::Visit::begin().map_err(|error| errors::to_python(py, &error))?;
    let mut raised = None;
    let outcome = py.detach(|| {
        let mut asked: Option<Instant> = None;
        let mut look = || {
            if asked.get_or_insert_with(Instant::now).elapsed() < SIGNAL_PERIOD {
                return Ok(());
            }
            #[expect(clippy::redundant_closure_for_method_calls, reason = "the method alone is not general enough")]
            let checked = Python::attach(|py| py.check_signals());
            asked = Some(Instant::now());
            checked.map_err(|error| {
                raised = Some(error);
                Error::new(ErrorKind::Interrupted, "a signal handler raised an exception")
            })
        };
        // Python runs signal handlers on its main thread only; no other thread needs to queue for the interpreter.
        let interrupt: Option<Interrupt<'_>> = if is_main_thread() { Some(&mut look) } else { None };
        operation(until, interrupt)
    });
    released::drain(py);
    let outcome = match (outcome, raised) {
        (_, Some(raised)) => Err(raised),
        (Ok(value), None) => Ok(value),
        (Err(error), None) => Err(errors::raised(py, &error)),
    };
    // Until here Python code may have run.
    drop(visit);
    outcome
}

/// Raises where calls that may wait are refused.
pub(crate) fn may_wait(py: Python<'_>) -> PyResult<()> {
    let Some(who) = BARRED.get() else { return Ok(()) };
    let error = Error::new(ErrorKind::InvalidArgument, format!("{who} cannot wait for sheave, which waits for it"));
    Err(errors::to_python(py, &error.hint("use nothing but its arguments there")))
}

thread_local! {
    /// Whose code runs on this thread that must not wait.
    static BARRED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Runs `act`, code of `who`, during which every call that may wait is refused: sheave waits for that code meanwhile.
pub(crate) fn barred<T>(who: &'static str, act: impl FnOnce() -> T) -> T {
    let former = BARRED.replace(Some(who));
    let outcome = act();
    BARRED.set(former);
    outcome
}

/// What a wait for an operation that goes on says.
pub(crate) fn still_running(operation: &'static str) -> Error {
    Error::new(ErrorKind::DeadlineExceeded, "the operation is still running")
        .operation(operation)
        .hint("wait again, or cancel it")
}

/// The end of a span given in seconds; none for one that is longer than any wait.
fn deadline(timeout_s: Option<f64>) -> PyResult<Option<Instant>> {
    Ok(span(timeout_s)?.and_then(|timeout| Instant::now().checked_add(timeout)))
}

/// A span given in seconds; none for one that is longer than any wait.
pub(crate) fn span(timeout_s: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(timeout_s) = timeout_s else { return Ok(None) };
    if timeout_s.is_nan() || timeout_s < 0.0 {
        return Err(PyValueError::new_err(format!("a timeout of {timeout_s} s; give seconds from 0 on, or None")));
    }
    Ok(Duration::try_from_secs_f64(timeout_s).ok().filter(|timeout| *timeout < FOREVER))
}

/// Whether Python takes this thread for its main one. The answer costs system calls, so each thread remembers it; a
/// thread that forks is the child's main one.
pub(crate) fn is_main_thread() -> bool {
    thread_local! {
        static KNOWN: Cell<Option<(ForkMark, bool)>> = const { Cell::new(None) };
    }
    match KNOWN.get() {
        Some((mark, is_main)) if !mark.is_stale() => is_main,
        _ => {
            let is_main = rustix::thread::gettid() == rustix::process::getpid();
            KNOWN.set(Some((ForkMark::here(), is_main)));
            is_main
        }
    }
}
