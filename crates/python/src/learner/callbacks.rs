//! Python functions that a gradient server calls.
//!
//! Steps and publishing run on a thread of the server's lane, which attaches to the interpreter for as long
//! ([`handlers`]): they may block, and what they raise stops the server. What a full queue has dropped is told on the
//! callback thread, because the thread that drops it may not wait for Python. While that function runs, or another one
//! before it, what else is dropped is kept for its next call, at most the latest that a report has too.

use crate::callbacks::Callbacks;
use crate::handlers;
use crate::released::Owner;
use crate::tensor::PyTensor;
use crate::told::told;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sheave_base::{Result, limits};
use sheave_learner::Tensors;
use std::collections::VecDeque;
use std::sync::Arc;

/// A function of the user's. Where it is dropped nobody need have the interpreter.
pub(super) struct Function {
    what: &'static str,
    object: Owner,
}

impl Function {
    pub(super) fn new(what: &'static str, object: Py<PyAny>) -> Self {
        Self { what, object: Owner::of_object(object) }
    }

    /// Calls it with tensors by their names, and a number.
    pub(super) fn call(&self, tensors: Tensors, number: u64) -> Result<()> {
        handlers::attached(|py| {
            let called = || {
                let arguments = PyDict::new(py);
                for (name, tensor) in tensors {
                    arguments.set_item(name, PyTensor::new(tensor))?;
                }
                self.object.object().map(|object| object.call1(py, (arguments, number))).transpose()
            };
            called().map(drop).map_err(|error| told(py, &error, &format!("{} raised an exception", self.what)))
        })?
    }
}

/// Which gradient it was: the name of the member that has pushed it, which client of that it is, and the number.
type Dropped = (String, u32, u64);

/// What was dropped and is not told yet.
#[derive(Default)]
struct Untold {
    dropped: VecDeque<Dropped>,
    is_posted: bool,
}

/// Tells a function of the user's what was dropped.
pub(super) struct Drops {
    function: Arc<Owner>,
    thread: Callbacks,
    untold: Arc<Mutex<Untold>>,
}

impl Drops {
    pub(super) fn new(py: Python<'_>, function: Py<PyAny>) -> PyResult<Self> {
        let function = Arc::new(Owner::of_object(function));
        Ok(Self { function, thread: Callbacks::here(py)?, untold: Arc::default() })
    }

    /// Never blocks for long.
    pub(super) fn tell(&self, dropped: impl Iterator<Item = Dropped>) {
        let mut untold = self.untold.lock();
        untold.dropped.extend(dropped);
        let excess = untold.dropped.len().saturating_sub(limits::LEARNER_REPORTED_MAX);
        untold.dropped.drain(..excess);
        if std::mem::replace(&mut untold.is_posted, true) {
            return;
        }
        drop(untold);
        let (function, untold, thread) = (Arc::clone(&self.function), Arc::clone(&self.untold), self.thread.clone());
        self.thread.post(
            "the learner",
            Box::new(move |py| {
                let dropped = {
                    let mut untold = untold.lock();
                    untold.is_posted = false;
                    std::mem::take(&mut untold.dropped)
                };
                let Some(object) = function.object() else { return };
                if let Err(error) = object.call1(py, (Vec::from(dropped),)) {
                    thread.tell(py, error, object.bind(py));
                }
            }),
        );
    }
}
