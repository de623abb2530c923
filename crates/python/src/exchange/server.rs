//! A server's end.

#![expect(clippy::needless_pass_by_value, reason = "arguments from Python are made for the call")]

use super::{config, mesh_of, scope};
use crate::dtype;
use crate::enter::enter;
use crate::errors::{self, OrRaise};
use crate::guarded::Guarded;
use crate::import::{self, Access};
use crate::mesh::PyMesh;
use crate::tensor::PyTensor;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use sheave_base::{Error, ErrorKind, Result};
use sheave_exchange::{Answer, Batch, Handler, KEPT_BYTES_MAX, Registration, Request, Server};
use sheave_tensor::Tensor;
use smallvec::SmallVec;
use std::path::PathBuf;

/// A server's end of an exchange under flat lists. `sheave.exchange.Server` is what people use.
#[pyclass(name = "ExchangeServer", module = "sheave._core", frozen, weakref)]
pub(crate) struct PyServer {
    /// None once it is dropped.
    server: Option<Guarded<Server>>,
}

impl Drop for PyServer {
    fn drop(&mut self) {
        // The last handle of a mesh leaves it, which may take a while.
        let mut server = self.server.take();
        Python::try_attach(|py| py.detach(|| drop(server.take())));
    }
}

impl PyServer {
    fn server(&self, py: Python<'_>) -> PyResult<&Server> {
        let gone = || Error::new(ErrorKind::Closed, "the server is gone");
        self.server.as_ref().ok_or_else(gone).and_then(|server| server.check("server")).or_raise(py)
    }
}

fn requests(py: Python<'_>, batch: Batch) -> PyResult<Vec<PyRequest>> {
    batch.into_iter().map(|request| PyRequest::new(py, request)).collect()
}

/// A request that waits for its answer.
///
/// Its tensors have the dtypes and shapes that the worker pushed. Those in registered memory are read-only, and expire
/// when the request is answered and the next push lands there.
///
/// >>> work = worker.push_pull({0: np.zeros((2, 3))}, {})
/// >>> [request] = server.get_batch(timeout=10)
/// >>> request.worker, request.keys, request.tensors[0].shape, request.step
/// (0, [0], (2, 3), None)
/// >>> server.respond(request, [])
/// >>> work.wait(timeout=10)
/// {}
#[pyclass(name = "ExchangeRequest", module = "sheave._core", frozen, get_all)]
pub(crate) struct PyRequest {
    /// The number by which it is answered.
    handler: u64,
    /// The worker's rank in its lane.
    worker: u32,
    /// The worker's number of it, the same for all requests of a batch.
    number: u64,
    /// The step that the worker named, or None.
    step: Option<u32>,
    /// The keys of the pushed tensors, in order.
    keys: Vec<u64>,
    /// The pushed tensors, in order.
    tensors: Vec<Py<PyTensor>>,
    /// What the answers must be: key, dtype and shape of each.
    pulls: Vec<(u64, &'static str, Py<PyTuple>)>,
}

impl PyRequest {
    fn new(py: Python<'_>, request: Request) -> PyResult<Self> {
        let pulls = request
            .pulls()
            .map(|(key, dtype, shape)| Ok((key, dtype::name(dtype), PyTuple::new(py, shape.dimensions())?.unbind())));
        let pulls = pulls.collect::<PyResult<_>>()?;
        let keys = request.keys().to_vec();
        let Request { handler, worker, number, step, tensors, .. } = request;
        let tensors = tensors.into_iter().map(|tensor| Py::new(py, PyTensor::new(tensor)));
        Ok(Self { handler: handler.0, worker, number, step, keys, tensors: tensors.collect::<PyResult<_>>()?, pulls })
    }
}

#[pymethods]
impl PyRequest {
    fn __repr__(&self) -> String {
        let Self { handler, worker, number, .. } = self;
        format!("<sheave.exchange.Request {handler} (number {number} of worker {worker})>")
    }
}

/// Memory in which pushes land, until it is unregistered.
///
/// >>> landing = server.register(np.zeros(4), workers=[0, 0], keys=[1, 2])
/// >>> landing.places
/// [(0, 1), (0, 2)]
/// >>> server.unregister(landing)
#[pyclass(name = "ExchangeRegistration", module = "sheave._core", frozen)]
pub(crate) struct PyRegistration {
    registration: Guarded<Registration>,
}

#[pymethods]
impl PyRegistration {
    /// The ranks of workers and the keys whose pushes land here, in the order of their parts.
    #[getter]
    fn places(&self) -> Vec<(u32, u64)> {
        self.registration.places().to_vec()
    }

    /// One read-only tensor of pushed tensors of one batch that lie here side by side, without a copy: their rows
    /// follow each other. It expires as they do.
    ///
    /// Raises Mismatch if they do not lie side by side or their rows differ, BufferInUse if one has expired.
    fn merged(&self, py: Python<'_>, tensors: Vec<Py<PyTensor>>) -> PyResult<PyTensor> {
        let tensors: Vec<Tensor> = tensors.iter().map(|tensor| tensor.get().handle(py)).collect::<PyResult<_>>()?;
        let tensors: Vec<&Tensor> = tensors.iter().collect();
        let registration = self.registration.check("registration").or_raise(py)?;
        Ok(PyTensor::new(registration.merged(&tensors).or_raise(py)?))
    }
}

fn answers(py: Python<'_>, arrays: &Bound<'_, PyAny>, moved: bool) -> PyResult<SmallVec<[Answer; 2]>> {
    let mut answers = SmallVec::new();
    for array in arrays.try_iter()? {
        let array = array?;
        answers.push(match moved {
            true => {
                let ours = array.cast::<PyTensor>()?.get();
                let tensor = ours.handle(py)?;
                if tensor.len_bytes() <= KEPT_BYTES_MAX {
                    // It travels as a copy, and what was pushed so lies in memory that the exchange keeps.
                    ours.give_up();
                    Answer::from(&tensor)
                } else {
                    drop(tensor);
                    Answer::moved(ours.take().map_err(|error| error.operation("respond")).or_raise(py)?)
                }
            }
            false => Answer::from(&import::tensor(&array, Access::Read)?),
        });
    }
    Ok(answers)
}

#[pymethods]
impl PyServer {
    #[new]
    #[pyo3(signature = (mesh = None, *, lanes = 1, trace = false, timeout = None))]
    fn new(py: Python<'_>, mesh: Option<Py<PyMesh>>, lanes: u32, trace: bool, timeout: Option<f64>) -> PyResult<Self> {
        let (mesh, config) = (mesh_of(py, mesh)?, config(lanes, None, false, trace));
        let server =
            enter(py, timeout, |until, interrupt| Server::open_interruptible(&mesh, config, until, interrupt))?;
        Ok(Self { server: Some(Guarded::new(server)) })
    }

    /// This server's rank among the servers of its lane.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.server(py)?.rank())
    }

    /// How many workers a batch has requests of.
    #[getter]
    fn workers(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.server(py)?.workers())
    }

    /// Requests that were given out and not answered.
    #[getter]
    fn unanswered(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.server(py)?.unanswered())
    }

    /// One request of every worker, by rank.
    #[pyo3(signature = (timeout = None))]
    fn get_batch(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Vec<PyRequest>> {
        let server = self.server(py)?;
        requests(py, enter(py, timeout, |until, interrupt| server.get_batch(until, interrupt))?)
    }

    /// As get_batch; None when all workers have left, and no error when only some have.
    #[pyo3(signature = (timeout = None))]
    fn next_batch(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Vec<PyRequest>>> {
        let server = self.server(py)?;
        let batch = enter(py, timeout, |until, interrupt| server.next_batch(until, interrupt))?;
        batch.map(|batch| requests(py, batch)).transpose()
    }

    /// Answers a request.
    #[pyo3(signature = (handler, arrays, moved = false))]
    fn respond(&self, py: Python<'_>, handler: u64, arrays: &Bound<'_, PyAny>, moved: bool) -> PyResult<()> {
        let (server, answers) = (self.server(py)?, answers(py, arrays, moved)?);
        enter(py, None, |_, _| server.respond(Handler(handler), answers))
    }

    /// Answers several requests with the rows of one array.
    fn respond_rows(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        handlers: Vec<u64>,
        rows: Vec<u64>,
    ) -> PyResult<()> {
        let (server, tensor) = (self.server(py)?, import::tensor(array, Access::Read)?);
        if handlers.len() != rows.len() {
            let what = format!("{} handlers and {} numbers of rows", handlers.len(), rows.len());
            let error = Error::new(ErrorKind::InvalidArgument, what).operation("respond");
            return Err(errors::to_python(py, &error));
        }
        let answered = handlers.into_iter().map(Handler).zip(rows);
        enter(py, None, |_, _| server.respond_rows(&tensor, answered))
    }

    /// Ends a request without an answer.
    fn refuse(&self, py: Python<'_>, handler: u64, reason: &str) -> PyResult<()> {
        let server = self.server(py)?;
        enter(py, None, |_, _| server.refuse(Handler(handler), reason))
    }

    /// Names memory for pushes to land in.
    fn register(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        workers: Vec<u32>,
        keys: Vec<u64>,
    ) -> PyResult<PyRegistration> {
        let (server, tensor) = (self.server(py)?, import::tensor(array, Access::Write)?);
        let places = paired(&workers, &keys).or_raise(py)?;
        let registration = enter(py, None, |_, _| server.register(&tensor, &places))?;
        Ok(PyRegistration { registration: Guarded::new(registration) })
    }

    /// Takes places back.
    fn unregister(&self, py: Python<'_>, registration: &PyRegistration) -> PyResult<()> {
        let (server, registration) = (self.server(py)?, registration.registration.check("registration").or_raise(py)?);
        enter(py, None, |_, _| server.unregister(registration))
    }

    /// Writes the spans recorded so far into a file.
    fn write_trace(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let server = self.server(py)?;
        enter(py, None, |_, _| server.write_trace(&path))
    }

    /// Waits until all members of a scope have come.
    #[pyo3(signature = (scope, all_lanes = false, timeout = None))]
    fn barrier(&self, py: Python<'_>, scope: &str, all_lanes: bool, timeout: Option<f64>) -> PyResult<()> {
        let (server, scope) = (self.server(py)?, self::scope(scope).or_raise(py)?);
        enter(py, timeout, |until, interrupt| server.barrier(scope, all_lanes, until, interrupt))
    }

    /// Says farewell to the workers.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let server = self.server(py)?;
        enter(py, None, |_, _| {
            server.close();
            Ok(())
        })
    }
}

fn paired(workers: &[u32], keys: &[u64]) -> Result<Vec<(u32, u64)>> {
    if workers.len() != keys.len() {
        let what = format!("{} workers and {} keys were given", workers.len(), keys.len());
        return Err(Error::new(ErrorKind::InvalidArgument, what).operation("register").hint("give pairs of them"));
    }
    Ok(workers.iter().copied().zip(keys.iter().copied()).collect())
}
