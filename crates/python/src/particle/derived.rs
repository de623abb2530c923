//! What a function of Python's makes of an answer.
//!
//! Answers of other nodes arrive on threads that must not run Python code. So the function runs where the new answer is
//! waited for: on the thread of the first that does, once the answer that it is made of is there. Others who wait
//! meanwhile sleep until it has ended; the function itself cannot wait for what it makes.

use super::answer::PyAnswer;
use super::parcel::{Exchange, Outcome};
use crate::enter::{enter, still_running};
use crate::errors;
use parking_lot::Mutex;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use sheave_base::work::{Completer, pair};
use sheave_base::{Error, ErrorKind, Work};
use std::thread::ThreadId;

/// Locks are taken with the interpreter held, and no Python code runs below them.
pub(crate) struct Derived {
    pub(crate) base: Py<PyAnswer>,
    stage: Mutex<Stage>,
    has_run: Work<()>,
}

enum Stage {
    Ready(Py<PyAny>, Completer<()>),
    Runs(ThreadId),
    HasRun,
}

impl Derived {
    pub(crate) fn new(base: Py<PyAnswer>, function: Py<PyAny>) -> Self {
        let (completer, has_run) = pair("then");
        Self { base, stage: Mutex::new(Stage::Ready(function, completer)), has_run }
    }

    /// Whether a wait does not sleep.
    pub(crate) fn is_done(&self, py: Python<'_>) -> bool {
        let is_ready = matches!(&*self.stage.lock(), Stage::Ready(..));
        self.has_run.is_done() || is_ready && self.base.bind(py).get().is_done(py)
    }

    /// Runs the function, if nobody does or has, with the interpreter held. The base is there.
    pub(crate) fn run(&self, py: Python<'_>, exchange: &Exchange, timeout_s: Option<f64>) -> PyResult<()> {
        let own = std::thread::current().id();
        let (function, completer) = {
            let mut stage = self.stage.lock();
            match std::mem::replace(&mut *stage, Stage::Runs(own)) {
                Stage::Ready(function, completer) => (function, completer),
                before => {
                    let is_own = matches!(before, Stage::Runs(thread) if thread == own);
                    *stage = before;
                    drop(stage);
                    return if is_own { Err(circle(py)) } else { self.others(py, timeout_s) };
                }
            }
        };
        let result = self.base.bind(py).get().outcome(py).and_then(|value| function.call1(py, (value,)));
        exchange.put(py, Outcome::of(py, result));
        *self.stage.lock() = Stage::HasRun;
        completer.complete(Ok(()));
        Ok(())
    }

    /// Waits for another thread to have run it.
    fn others(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<()> {
        if self.has_run.is_done() || enter(py, timeout_s, |until, interrupt| self.has_run.wait_until(until, interrupt))?
        {
            return Ok(());
        }
        Err(errors::to_python(py, &still_running("then")))
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.base)?;
        // Who holds the lock will let it be seen another time.
        match self.stage.try_lock().as_deref() {
            Some(Stage::Ready(function, _)) => visit.call(function),
            _ => Ok(()),
        }
    }

    /// Lets go of the function, with the interpreter held. Nobody has the answer.
    pub(crate) fn clear(&self) {
        let before = std::mem::replace(&mut *self.stage.lock(), Stage::HasRun);
        drop(before);
    }
}

fn circle(py: Python<'_>) -> PyErr {
    let what = "the function of this answer waits for the answer that it makes";
    let error = Error::new(ErrorKind::Deadlock, what).operation("then").hint("return the value in place of waiting");
    errors::to_python(py, &error)
}
