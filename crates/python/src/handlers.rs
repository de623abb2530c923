//! Threads of the node that run Python code: handlers of services.
//!
//! A handler is user code that nobody called on a thread of Python's. Handing it to one would cost two turns of the
//! scheduler for each call, so a thread of a lane attaches to the interpreter itself, for as long as the handler runs.
//!
//! **Thread states.** Python keeps a state for each thread that is attached, and maps memory for it: made and thrown
//! away for each handler, it took half of a short call. So a thread of the node keeps its own until it ends.
//!
//! **Turns.** Python puts a thread to sleep that finds the interpreter taken, and to wake it takes as long as ten short
//! handlers. So a thread of the node that finds another one's handler running gives its core away for a moment, and
//! asks for the interpreter when that is over ([`Turn`]). A handler may take long, and may have let the interpreter go:
//! nobody waits for it for longer than [`TURN_MAX`], and after it nobody until it has ended.
//!
//! **The end of the interpreter.** A thread that comes to an interpreter that is being torn down is killed where it
//! stands, with frames of ours on its stack, which ends the process. So each is counted before it attaches, and looks
//! whether the end has begun after that; the end, once begun, waits for those who are counted ([`life`]). Either the
//! thread sees it and never attaches, or the end sees the thread. Whoever does not come back in time is told to, by an
//! exception in its handler.

use crate::{life, released};
use pyo3::exceptions::PySystemExit;
use pyo3::ffi;
use pyo3::prelude::*;
use sheave_base::{Error, ErrorKind, Result};
use std::cell::{Cell, OnceCell};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Threads that have attached, or are about to.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Python's numbers of those that run handlers; locked with the interpreter held.
static RUNNING: Mutex<Vec<u64>> = Mutex::new(Vec::new());

struct Counted;

impl Counted {
    fn begin() -> Result<Self> {
        COUNT.fetch_add(1, SeqCst);
        let counted = Self;
        if life::is_ending() { Err(life::ended()) } else { Ok(counted) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, SeqCst);
    }
}

/// Python's state of a thread that Python has not started: kept from its first handler on, until the thread ends.
struct Kept(ffi::PyGILState_STATE);

thread_local! {
    static KEPT: OnceCell<Kept> = const { OnceCell::new() };
}

impl Kept {
    /// Whether this thread is one of ours that has no state yet. One that Python has started has its own.
    fn is_wanted() -> bool {
        // SAFETY: it may be called from any thread, with the interpreter or without, and reads a thread's own pointer.
        unsafe { ffi::PyGILState_GetThisThreadState() }.is_null()
    }

    fn keep(_: Python<'_>) {
        KEPT.with(|kept| {
            kept.get_or_init(|| {
                // SAFETY: the interpreter is held, so this takes nothing and counts the state once more. It is given
                // back once, by the drop of what holds it, or never, where the interpreter ends before this thread.
                Self(unsafe { ffi::PyGILState_Ensure() })
            });
        });
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // An interpreter that ends throws away the states of all threads itself.
        let Ok(_counted) = Counted::begin() else { return };
        // SAFETY: this thread has ensured it, and holds the interpreter; the state lives on until pyo3 lets go of it.
        Python::try_attach(|_| unsafe { ffi::PyGILState_Release(self.0) });
    }
}

/// How long a handler that has the turn is waited for: a short one takes some microseconds.
const TURN_MAX: Duration = Duration::from_micros(20);

/// A handler runs that others wait for.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);
/// It has been waited for in vain.
static IS_LONG: AtomicBool = AtomicBool::new(false);

/// The turn of a handler. Whether it has one changes nothing but when others ask for the interpreter.
struct Turn(bool);

impl Turn {
    fn take() -> Self {
        let is_ours = || !IS_TAKEN.swap(true, SeqCst);
        if is_ours() {
            return Self(true);
        }
        let begun = Instant::now();
        while !IS_LONG.load(Relaxed) {
            std::thread::yield_now();
            if is_ours() {
                return Self(true);
            }
            if begun.elapsed() >= TURN_MAX {
                IS_LONG.store(true, Relaxed);
            }
        }
        Self(false)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.0 {
            IS_LONG.store(false, Relaxed);
            IS_TAKEN.store(false, SeqCst);
        }
    }
}

/// Whether threads run handlers.
pub(crate) fn are_running() -> bool {
    COUNT.load(SeqCst) > 0
}

/// Runs a handler with the interpreter, on a thread of the node.
///
/// Fails with `Closed` where the interpreter is about to end.
pub(crate) fn attached<T>(handle: impl FnOnce(Python<'_>) -> T) -> Result<T> {
    let counted = Counted::begin()?;
    let is_first = Kept::is_wanted();
    let turn = Turn::take();
    let outcome = Python::try_attach(|py| {
        if is_first {
            Kept::keep(py);
        }
        let number = thread_number(py);
        running(|running| running.push(number));
        let outcome = handle(py);
        // What was sent: perhaps nobody else comes by for long.
        released::drain(py);
        // Once for each: a thread that waits in a handler may run others meanwhile.
        running(|running| running.iter().rposition(|other| *other == number).map(|at| running.swap_remove(at)));
        outcome
    });
    drop((turn, counted));
    outcome.ok_or_else(|| Error::new(ErrorKind::Closed, "the interpreter has ended"))
}

fn running<T>(act: impl FnOnce(&mut Vec<u64>) -> T) -> T {
    act(&mut RUNNING.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The number by which Python knows this thread, or 0.
fn thread_number(py: Python<'_>) -> u64 {
    thread_local! {
        static KNOWN: Cell<u64> = const { Cell::new(0) };
    }
    if KNOWN.get() == 0 {
        let number = py.import("threading").and_then(|threading| threading.call_method0("get_ident")?.extract());
        KNOWN.set(number.unwrap_or(0));
    }
    KNOWN.get()
}

/// Ends handlers that still run, where they are in Python code.
pub(crate) fn break_off(py: Python<'_>) {
    let exit = py.get_type::<PySystemExit>();
    for number in running(|running| running.clone()) {
        // SAFETY: the interpreter is held; a number that is no thread's any more has no effect.
        unsafe { ffi::PyThreadState_SetAsyncExc(number.cast_signed(), exit.as_ptr()) };
    }
}
