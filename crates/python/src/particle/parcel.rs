//! What particles of Python send each other.

use crate::errors;
use crate::released::Owner;
use crate::told::told_pickled;
use crate::value::{Packed, pack};
use parking_lot::Mutex;
use pyo3::exceptions::PyBaseException;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sheave_base::{Error, ErrorKind, Result};
use sheave_net::{Parts, Tensors};
use sheave_particle::Payload;
use sheave_wire::Value;
use std::sync::Arc;

/// What came of a message, as Python sees it.
pub(crate) enum Outcome {
    Value(Py<PyAny>),
    /// What its handler has raised, and where.
    Raised(Py<PyBaseException>, Option<Py<PyAny>>),
    /// It failed; each look at it raises an exception of its own.
    Failed(Error),
}

impl Outcome {
    pub(crate) fn of(py: Python<'_>, result: PyResult<Py<PyAny>>) -> Self {
        match result {
            Ok(value) => Self::Value(value),
            Err(error) => {
                let raised = error.into_value(py);
                let traceback = raised.bind(py).getattr("__traceback__").ok().map(Bound::unbind);
                Self::Raised(raised, traceback)
            }
        }
    }

    pub(crate) fn to_python(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Self::Value(value) => Ok(value.clone_ref(py)),
            Self::Failed(error) => Err(errors::raised(py, error)),
            Self::Raised(raised, traceback) => {
                let raised = raised.bind(py).clone();
                // Each raise adds to it: the next one begins where the handler was again.
                if let Some(traceback) = traceback {
                    raised.setattr("__traceback__", traceback)?;
                }
                Err(PyErr::from_value(raised.into_any()))
            }
        }
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Self::Value(value) => visit.call(value),
            Self::Raised(raised, traceback) => {
                visit.call(raised)?;
                traceback.as_ref().map_or(Ok(()), |traceback| visit.call(traceback))
            }
            Self::Failed(_) => Ok(()),
        }
    }

    fn release(self) {
        match self {
            Self::Value(value) => drop(Owner::of_object(value)),
            Self::Raised(raised, traceback) => {
                drop(Owner::of_object(raised.into_any()));
                drop(traceback.map(Owner::of_object));
            }
            Self::Failed(_) => {}
        }
    }
}

/// Arguments of a handler: those by place, and those by name.
pub(crate) type Arguments = (Py<PyTuple>, Option<Py<PyDict>>);

#[derive(Default)]
struct Contents {
    arguments: Option<Arguments>,
    outcome: Option<Outcome>,
}

/// A message within a node, and what came of it. Its lock is taken with the interpreter held, and no Python code runs
/// below it; only whoever drops the last handle may not hold the interpreter.
#[derive(Default)]
pub(crate) struct Exchange(Mutex<Contents>);

impl Exchange {
    pub(crate) fn new(arguments: Option<Arguments>) -> Self {
        Self(Mutex::new(Contents { arguments, outcome: None }))
    }

    /// Takes the arguments out, once.
    pub(crate) fn take(&self, _: Python<'_>) -> Option<Arguments> {
        self.0.lock().arguments.take()
    }

    /// Keeps the outcome, unless there is one.
    pub(crate) fn put(&self, _: Python<'_>, outcome: Outcome) {
        let mut contents = self.0.lock();
        let spare = match &contents.outcome {
            None => {
                contents.outcome = Some(outcome);
                None
            }
            Some(_) => Some(outcome),
        };
        drop(contents);
        drop(spare);
    }

    /// Returns the outcome, if it is there.
    pub(crate) fn outcome(&self, py: Python<'_>) -> Option<PyResult<Py<PyAny>>> {
        let found = match &self.0.lock().outcome {
            None => return None,
            Some(Outcome::Value(value)) => Outcome::Value(value.clone_ref(py)),
            Some(Outcome::Raised(raised, traceback)) => {
                Outcome::Raised(raised.clone_ref(py), traceback.as_ref().map(|traceback| traceback.clone_ref(py)))
            }
            Some(Outcome::Failed(error)) => Outcome::Failed(error.clone()),
        };
        Some(found.to_python(py))
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Who holds the lock will let it be seen another time.
        let Some(contents) = self.0.try_lock() else { return Ok(()) };
        if let Some((args, keywords)) = &contents.arguments {
            visit.call(args)?;
            visit.call(keywords)?;
        }
        contents.outcome.as_ref().map_or(Ok(()), |outcome| outcome.traverse(visit))
    }

    /// Lets go of all, with the interpreter held.
    pub(crate) fn clear(&self) {
        let contents = std::mem::take(&mut *self.0.lock());
        drop(contents);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let Contents { arguments, outcome } = std::mem::take(self.0.get_mut());
        if let Some((args, keywords)) = arguments {
            drop(Owner::of_object(args.into_any()));
            drop(keywords.map(|keywords| Owner::of_object(keywords.into_any())));
        }
        if let Some(outcome) = outcome {
            outcome.release();
        }
    }
}

type Written = Arc<Mutex<Option<(Value, Parts)>>>;

/// A message or an answer.
#[derive(Clone)]
pub(crate) enum Parcel {
    /// A message within this node.
    Here(Arc<Exchange>),
    /// The answer to one, which lies in its exchange.
    Answered,
    /// What is to leave for another node.
    Leaving(Written),
    /// What has come from another node.
    Come(Value, Tensors),
}

impl Parcel {
    pub(crate) fn leaving(value: Value, parts: Parts) -> Self {
        Self::Leaving(Arc::new(Mutex::new(Some((value, parts)))))
    }

    /// What a handler has returned, to another node. References do not travel so: nothing would hold them on their way.
    pub(crate) fn answer(py: Python<'_>, result: PyResult<Bound<'_, PyAny>>) -> Result<Self> {
        let result = result.map_err(|error| told_pickled(py, &error, "the handler raised"))?;
        let packed = pack(&result).map_err(|error| told_pickled(py, &error, "the answer cannot be sent"))?;
        let Packed { value, tensors, refs } = packed;
        if refs.is_empty() {
            return Ok(Self::leaving(value, tensors));
        }
        let error = Error::new(ErrorKind::InvalidArgument, "a sheave.Ref in the answer to another node");
        Err(error.hint("get the object by to_here, and return that"))
    }
}

impl Payload for Parcel {
    fn write(self) -> Result<(Value, Parts)> {
        match self {
            Self::Leaving(written) => {
                let taken = written.lock().take();
                taken.ok_or_else(|| Error::new(ErrorKind::Internal, "a message was written before"))
            }
            // A handler was called from this node, or makes particles of a kind, which Python does in another way.
            Self::Here(_) | Self::Answered => Err(Error::new(ErrorKind::Internal, "a message within a node left it")),
            Self::Come(value, tensors) => {
                Ok((value, tensors.into_iter().map(|tensor| sheave_net::Part::new(tensor, MODE)).collect()))
            }
        }
    }

    fn read(value: Value, tensors: Tensors) -> Result<Self> {
        Ok(Self::Come(value, tensors))
    }
}

const MODE: sheave_tensor::Mode = sheave_tensor::Mode::Copy;
