//! A worker's end.

#![expect(clippy::needless_pass_by_value, reason = "arguments from Python are made for the call")]

use super::{config, mesh_of, scope};
use crate::dtype;
use crate::enter::enter;
use crate::errors::{self, OrRaise};
use crate::guarded::Guarded;
use crate::import::{self, Access};
use crate::mesh::PyMesh;
use crate::tensor::PyTensor;
use crate::work::{PyWork, now_ns};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use sheave_base::{Error, ErrorKind};
use sheave_exchange::{Handle, Pull, Push, Terms, Worker};
use sheave_tensor::Shape;
use smallvec::SmallVec;
use std::path::PathBuf;

type Objects<'py> = SmallVec<[Bound<'py, PyAny>; 4]>;

/// A worker's end of an exchange under flat lists. `sheave.exchange.Worker` is what people use.
#[pyclass(name = "ExchangeWorker", module = "sheave._core", frozen, weakref)]
pub(crate) struct PyWorker {
    /// None once it is dropped.
    worker: Option<Guarded<Worker>>,
}

impl Drop for PyWorker {
    fn drop(&mut self) {
        // The last handle of a mesh leaves it, which may take a while.
        let mut worker = self.worker.take();
        Python::try_attach(|py| py.detach(|| drop(worker.take())));
    }
}

impl PyWorker {
    fn worker(&self, py: Python<'_>) -> PyResult<&Worker> {
        let gone = || Error::new(ErrorKind::Closed, "the worker is gone");
        self.worker.as_ref().ok_or_else(gone).and_then(|worker| worker.check("worker")).or_raise(py)
    }
}

/// The elements of a list or tuple.
fn objects<'py>(list: &Bound<'py, PyAny>) -> PyResult<Objects<'py>> {
    list.try_iter()?.collect()
}

fn same_length(py: Python<'_>, keys: &[u64], arrays: &Objects<'_>) -> PyResult<()> {
    if keys.len() == arrays.len() {
        return Ok(());
    }
    let what = format!("{} keys and {} arrays were given", keys.len(), arrays.len());
    Err(errors::to_python(py, &Error::new(ErrorKind::InvalidArgument, what).operation("push_pull")))
}

fn pushes(py: Python<'_>, keys: &[u64], arrays: &Objects<'_>, moved: bool) -> PyResult<SmallVec<[Push; 4]>> {
    same_length(py, keys, arrays)?;
    let mut pushes = SmallVec::new();
    if !moved {
        for (key, array) in keys.iter().zip(arrays) {
            pushes.push(Push::new(*key, &import::tensor(array, Access::Read)?));
        }
        return Ok(pushes);
    }
    let mut taken: SmallVec<[(&PyTensor, sheave_tensor::Tensor); 4]> = SmallVec::new();
    for array in arrays {
        let ours = array.cast::<PyTensor>()?.get();
        match ours.take() {
            Ok(tensor) => taken.push((ours, tensor)),
            Err(error) => {
                // Nothing is moved then.
                taken.into_iter().for_each(|(ours, tensor)| ours.put_back(tensor));
                return Err(errors::raised(py, &error.operation("push_pull")));
            }
        }
    }
    Ok(keys.iter().zip(taken).map(|(key, (_, tensor))| Push::moved(*key, tensor)).collect())
}

/// An array that is filled; or a tuple of dtype and shape, for an answer that is taken.
fn pull(py: Python<'_>, key: u64, target: &Bound<'_, PyAny>) -> PyResult<Pull> {
    let Ok(described) = target.cast::<PyTuple>() else {
        return Ok(Pull::into(key, &import::tensor(target, Access::Write)?));
    };
    let (dtype, shape): (Bound<'_, PyAny>, Vec<u64>) = described.extract()?;
    let dtype = dtype::from_python(&dtype)?.or_raise(py)?;
    Ok(Pull::taken(key, dtype, Shape::new(&shape).or_raise(py)?))
}

#[pymethods]
impl PyWorker {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    #[pyo3(signature = (mesh = None, *, lanes = 1, window = None, stamps = false, trace = false, timeout = None))]
    fn new(
        py: Python<'_>,
        mesh: Option<Py<PyMesh>>,
        lanes: u32,
        window: Option<usize>,
        stamps: bool,
        trace: bool,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let (mesh, config) = (mesh_of(py, mesh)?, config(lanes, window, stamps, trace));
        let worker =
            enter(py, timeout, |until, interrupt| Worker::open_interruptible(&mesh, config, until, interrupt))?;
        Ok(Self { worker: Some(Guarded::new(worker)) })
    }

    /// This worker's rank among the workers of its lane.
    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.worker(py)?.rank())
    }

    /// How many servers each request goes to.
    #[getter]
    fn servers(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.worker(py)?.servers())
    }

    /// Begins a request and returns its number.
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    #[pyo3(signature = (push_keys, pushes, pull_keys, pulls, *, moved = false, step = None, timeout = None))]
    fn submit(
        &self,
        py: Python<'_>,
        push_keys: Vec<u64>,
        pushes: &Bound<'_, PyAny>,
        pull_keys: Vec<u64>,
        pulls: &Bound<'_, PyAny>,
        moved: bool,
        step: Option<u32>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let worker = self.worker(py)?;
        let targets = objects(pulls)?;
        same_length(py, &pull_keys, &targets)?;
        let mut pulls: SmallVec<[Pull; 4]> = SmallVec::new();
        for (key, target) in pull_keys.iter().zip(&targets) {
            pulls.push(pull(py, *key, target)?);
        }
        let pushes = self::pushes(py, &push_keys, &objects(pushes)?, moved)?;
        let begun = enter(py, timeout, |until, interrupt| {
            worker.push_pull_on(pushes, pulls, Terms { step, until }, interrupt)
        })?;
        Ok(begun.0)
    }

    /// Waits for a request.
    #[pyo3(signature = (request, timeout = None))]
    fn wait(&self, py: Python<'_>, request: u64, timeout: Option<f64>) -> PyResult<()> {
        let worker = self.worker(py)?;
        enter(py, timeout, |until, interrupt| worker.wait(Handle(request), until, interrupt))
    }

    /// Whether a request is done.
    fn is_done(&self, py: Python<'_>, request: u64) -> PyResult<bool> {
        Ok(self.worker(py)?.is_done(Handle(request)))
    }

    /// A handle for a request; `result` is what it comes to.
    fn work(&self, py: Python<'_>, request: u64, result: Py<PyAny>) -> PyResult<PyWork> {
        let work = self.worker(py)?.work(Handle(request));
        Ok(PyWork::of(work, now_ns(), move |py, ()| result.call0(py)))
    }

    /// The answers of a request that is done to pulls without an array, once.
    fn take(&self, py: Python<'_>, request: u64) -> PyResult<Vec<PyTensor>> {
        let worker = self.worker(py)?;
        let taken = worker.take(Handle(request)).or_raise(py)?;
        Ok(taken.into_iter().map(PyTensor::new).collect())
    }

    /// The eight points in time of a request, in nanoseconds, for each server.
    fn stamps(&self, py: Python<'_>, request: u64) -> PyResult<Vec<[u64; 8]>> {
        let stamps = self.worker(py)?.stamps(Handle(request)).or_raise(py)?;
        Ok(stamps.iter().map(sheave_exchange::Stamps::as_array).collect())
    }

    /// Writes the spans recorded so far into a file.
    fn write_trace(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let worker = self.worker(py)?;
        enter(py, None, |_, _| worker.write_trace(&path))
    }

    /// Waits until all members of a scope have come.
    #[pyo3(signature = (scope, all_lanes = false, timeout = None))]
    fn barrier(&self, py: Python<'_>, scope: &str, all_lanes: bool, timeout: Option<f64>) -> PyResult<()> {
        let (worker, scope) = (self.worker(py)?, self::scope(scope).or_raise(py)?);
        enter(py, timeout, |until, interrupt| worker.barrier(scope, all_lanes, until, interrupt))
    }

    /// Says farewell to the servers.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let worker = self.worker(py)?;
        enter(py, None, |_, _| {
            worker.close();
            Ok(())
        })
    }
}
