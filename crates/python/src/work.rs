//! `sheave.Work`: an operation in flight.

use crate::enter::enter;
use crate::errors::{self, OrRaise};
use crate::link::PyLink;
use crate::tensor::PyTensor;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_net::Message;

enum Running {
    Send(Work<()>),
    Receive(Work<Message>),
    Unit(Work<()>, Option<Py<PyAny>>),
}

/// An operation in flight. It holds its buffers until it ends, whether or not somebody waits.
#[pyclass(name = "Work", module = "sheave", frozen, weakref)]
pub(crate) struct PyWork {
    node: NodeId,
    running: Running,
    outcome: PyOnceLock<Result<Option<Py<PyAny>>>>,
}

impl PyWork {
    pub(crate) fn send(node: NodeId, work: Work<()>) -> Self {
        Self { node, running: Running::Send(work), outcome: PyOnceLock::new() }
    }

    pub(crate) fn receive(node: NodeId, work: Work<Message>) -> Self {
        Self { node, running: Running::Receive(work), outcome: PyOnceLock::new() }
    }

    /// An operation whose result is an object that is there already.
    pub(crate) fn unit(work: Work<()>, result: Option<Py<PyAny>>) -> Self {
        Self { node: NodeId(0), running: Running::Unit(work, result), outcome: PyOnceLock::new() }
    }

    fn is_done(&self) -> bool {
        match &self.running {
            Running::Send(work) => work.is_done(),
            Running::Receive(work) => work.is_done(),
            Running::Unit(work, _) => work.is_done(),
        }
    }

    fn operation(&self) -> &'static str {
        match &self.running {
            Running::Send(work) => work.operation(),
            Running::Receive(work) => work.operation(),
            Running::Unit(work, _) => work.operation(),
        }
    }

    /// Waits for the end and returns what came of it, which is the same each time.
    fn ended(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<&Result<Option<Py<PyAny>>>> {
        let ended = enter(py, timeout_s, |until, interrupt| match &self.running {
            Running::Send(work) => work.wait_until(until, interrupt),
            Running::Receive(work) => work.wait_until(until, interrupt),
            Running::Unit(work, _) => work.wait_until(until, interrupt),
        })?;
        if !ended {
            let late = Error::new(ErrorKind::DeadlineExceeded, "the operation is still running")
                .operation(self.operation())
                .hint("wait again, or cancel it");
            return Err(errors::to_python(py, &late));
        }
        Ok(self.outcome.get_or_init(py, || match &self.running {
            Running::Send(work) => work.taken().map(|()| None),
            Running::Receive(work) => {
                work.taken().and_then(|message| received(py, self.node, message)).map(|tensor| Some(tensor.into_any()))
            }
            Running::Unit(work, result) => work.taken().map(|()| result.as_ref().map(|result| result.clone_ref(py))),
        }))
    }
}

/// The tensor of a message as Python gets it.
pub(crate) fn received(py: Python<'_>, node: NodeId, message: Message) -> Result<Py<PyTensor>> {
    let (source, tag) = (PyLink { node, link: message.source }, message.envelope.tag.0);
    let tensor = PyTensor::received(message.into_tensor()?, source, tag);
    Py::new(py, tensor).map_err(|error| Error::new(ErrorKind::Internal, format!("no memory for a tensor: {error}")))
}

#[pymethods]
impl PyWork {
    /// Wait for the end. Returns the received tensor, or None for a send; raises what the operation failed with.
    ///
    /// Raises DeadlineExceeded when `timeout` seconds have passed; then the operation goes on.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        let outcome = self.ended(py, timeout)?;
        outcome
            .as_ref()
            .map(|tensor| tensor.as_ref().map(|tensor| tensor.clone_ref(py)))
            .map_err(Error::clone)
            .or_raise(py)
    }

    /// The same as `wait`, under the name that futures have for it.
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        self.wait(py, timeout)
    }

    /// Wait for the end. Returns the exception that it failed with, or None.
    #[pyo3(signature = (timeout = None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        let outcome = self.ended(py, timeout)?;
        Ok(outcome.as_ref().err().map(|error| errors::to_python(py, error).into_value(py).into_any()))
    }

    /// True once it has ended. Never waits.
    fn done(&self) -> bool {
        self.is_done()
    }

    /// Ask it to end. It fails with Cancelled, unless it is past the point where it can be stopped.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| match &self.running {
            Running::Send(work) => work.cancel(),
            Running::Receive(work) => work.cancel(),
            Running::Unit(work, _) => work.cancel(),
        });
    }

    fn __repr__(&self) -> String {
        let state = if self.is_done() { "done" } else { "running" };
        format!("<sheave.Work {} {state}>", self.operation())
    }
}
