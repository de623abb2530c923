//! `sheave.pool`: tasks for processes. What a pool is for its users stands in Python; here tasks are written and
//! outcomes read.

use crate::calls::{self, packed_arguments_by};
use crate::enter::{enter, span};
use crate::errors::{self, OrRaise};
use crate::fleet::{command_of, output_named};
use crate::guarded::Guarded;
use crate::guest::PyGuest;
use crate::mesh::PyMesh;
use crate::released::{self, Owner};
use crate::told::told_pickled;
use crate::value::{Opener, Packed, PyShare, pack_for_task};
use crate::work::{PyWork, now_ns};
use crate::{handlers, life};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use sheave_base::{Error, ErrorKind, Result};
use sheave_net::{Part, Parts};
use sheave_pool::{Function, Job, Outcome, Packet, Pool, Program, Settings, Turn};
use sheave_process::Slate;
use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many tasks are submitted between two looks at pending signals.
const LOOK_ITEMS: usize = 256;

/// What a pool can send: a value and tensors, and no references.
pub(crate) fn sendable(py: Python<'_>, packed: Packed) -> PyResult<(sheave_wire::Value, Parts)> {
    let Packed { value, tensors, refs } = packed;
    if refs.is_empty() {
        return Ok((value, tensors));
    }
    let error =
        Error::new(ErrorKind::InvalidArgument, "a reference is of a mesh, and means nothing in a pool or a queue");
    Err(errors::to_python(py, &error.hint("get the object by to_here, and send that")))
}

/// A packet with the tensors themselves, of which nobody writes any before it has left.
fn packet(py: Python<'_>, packed: Packed) -> PyResult<Packet> {
    let (value, parts) = sendable(py, packed)?;
    Packet::new(&value, parts.into_iter().map(Part::into_tensor).collect()).or_raise(py)
}

/// A function of a pool.
#[pyclass(name = "PoolFunction", module = "sheave._core", frozen)]
pub(crate) struct PyFunction(Guarded<Function>);

/// Tasks of a pool whose outcomes are taken together.
#[pyclass(name = "PoolJob", module = "sheave._core", frozen)]
pub(crate) struct PyJob {
    job: Guarded<Arc<Job>>,
    opener: Opener,
}

impl PyJob {
    fn job(&self, py: Python<'_>) -> PyResult<&Arc<Job>> {
        self.job.check("pool").or_raise(py)
    }

    fn outcome(&self, py: Python<'_>, outcome: Outcome) -> PyResult<Py<PyAny>> {
        outcome_of(py, &self.opener, outcome)
    }
}

/// What an outcome is in Python: the result, or what the task has raised.
fn outcome_of(py: Python<'_>, opener: &Opener, outcome: Outcome) -> PyResult<Py<PyAny>> {
    let read = outcome.and_then(Packet::into_value);
    match read {
        Ok((value, tensors)) => Ok(opener.unpack(py, value, &tensors)?.unbind()),
        Err(error) => Err(opener.explanation()(py, &error).unwrap_or_else(|| errors::raised(py, &error))),
    }
}

#[pymethods]
impl PyJob {
    /// How many tasks were submitted whose outcomes were not taken.
    #[getter]
    fn left(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.job(py)?.left())
    }

    /// Waits until an outcome can be taken, or there is none to come; false after `timeout` seconds.
    fn wait_next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let next = self.job(py)?.next();
        Ok(next.is_done() || enter(py, timeout, |until, interrupt| next.wait_until(until, interrupt))?)
    }

    /// Waits until all tasks have ended; false after `timeout` seconds.
    fn wait_all(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let all = self.job(py)?.all();
        Ok(all.is_done() || enter(py, timeout, |until, interrupt| all.wait_until(until, interrupt))?)
    }

    /// A work that ends when all tasks have ended.
    fn all(&self, py: Python<'_>) -> PyResult<PyWork> {
        Ok(PyWork::of_nothing(self.job(py)?.all(), now_ns()))
    }

    /// Takes the next result, if it is there: a tuple of it; raises what its task has raised.
    fn take(&self, py: Python<'_>) -> PyResult<Option<(Py<PyAny>,)>> {
        match self.job(py)?.take() {
            Some((_, outcome)) => self.outcome(py, outcome).map(|result| Some((result,))),
            None => Ok(None),
        }
    }

    /// Takes all results that are there, in a list, and the first exception that one of the tasks has raised.
    fn take_all(&self, py: Python<'_>) -> PyResult<(Vec<Py<PyAny>>, Option<PyErr>)> {
        let (job, mut results, mut raised) = (self.job(py)?, Vec::new(), None);
        while let Some((_, outcome)) = job.take() {
            match self.outcome(py, outcome) {
                Ok(result) => results.push(result),
                Err(error) => raised = raised.or(Some(error)),
            }
        }
        Ok((results, raised))
    }
}

/// Processes that do tasks: what the pools of `sheave.pool` stand on.
#[pyclass(name = "ProcessPool", module = "sheave._core", frozen, weakref)]
pub(crate) struct PyPool {
    pool: Mutex<Option<Guarded<Pool>>>,
    opener: Opener,
}

impl PyPool {
    fn pool(&self, py: Python<'_>) -> PyResult<Pool> {
        let pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || Error::new(ErrorKind::Closed, "the pool was terminated");
        pool.as_ref().ok_or_else(closed).and_then(|pool| pool.check("pool").cloned()).or_raise(py)
    }

    fn args(&self, pool: &Pool, args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Packet> {
        let py = args.py();
        let (value, parts) = sendable(py, packed_arguments_by((args, kwargs), pack_for_task)?)?;
        pool.packet(&value, parts).or_raise(py)
    }
}

impl Drop for PyPool {
    fn drop(&mut self) {
        let mut pool = self.pool.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if life::is_ending() {
            return drop(pool);
        }
        // Killing takes a moment, which is not the other threads' affair.
        Python::try_attach(|py| py.detach(|| drop(pool.take())));
        drop(pool);
    }
}

#[pymethods]
impl PyPool {
    /// Has `command` started so often; the processes are set up with `setups`, by slot.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "one face alone calls it")]
    fn new(
        py: Python<'_>,
        mesh: &Bound<'_, PyMesh>,
        command: Vec<OsString>,
        env: Vec<(OsString, OsString)>,
        label: String,
        output: &str,
        setups: &Bound<'_, PyList>,
        tasks_per_worker: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Self> {
        let command = command_of(command).or_raise(py)?.envs(env);
        let host = mesh.get().mesh().or_raise(py)?;
        let opener = Opener::new(host.downgrade(), calls::opens().or_raise(py)?);
        let count = setups.len();
        // Workers that come later are set up with the same.
        let captured = |setup: Bound<'_, PyAny>| {
            let (value, parts) = sendable(py, pack_for_task(&setup)?)?;
            Packet::captured(host.node(), &value, parts).or_raise(py)
        };
        let setups = setups.iter().map(captured).collect::<PyResult<_>>()?;
        let builder = Pool::processes(count, move |_| command.clone())
            .settings(Settings { setups, tasks_per_worker })
            .label(label)
            .output(output_named(output).or_raise(py)?);
        let builder = match span(timeout)? {
            Some(timeout) => builder.start_timeout(timeout),
            None => builder,
        };
        let pool = py.detach(|| builder.start(&host)).or_raise(py)?;
        Ok(Self { pool: Mutex::new(Some(Guarded::new(pool))), opener })
    }

    /// A function that workers make of `function`.
    fn function(&self, function: &Bound<'_, PyAny>) -> PyResult<PyFunction> {
        let (py, pool) = (function.py(), self.pool(function.py())?);
        let (value, parts) = sendable(py, pack_for_task(function)?)?;
        let definition = pool.packet(&value, parts).or_raise(py)?;
        Ok(PyFunction(Guarded::new(pool.function(definition))))
    }

    /// Submits a call, which is given to another worker `tries` times if one dies of it. Returns its number too.
    fn submit(
        &self,
        function: &Bound<'_, PyFunction>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        tries: u32,
    ) -> PyResult<(u64, PyWork)> {
        let (py, begun_ns) = (function.py(), now_ns());
        let pool = self.pool(py)?;
        let args = self.args(&pool, args, kwargs)?;
        let function = function.get().0.check("pool").or_raise(py)?;
        let (number, work) = py.detach(|| pool.submit_numbered(function, args, tries)).or_raise(py)?;
        let (opener, explain) = (self.opener.clone(), self.opener.explanation());
        let convert = move |py: Python<'_>, packet: Packet| outcome_of(py, &opener, Ok(packet));
        Ok((number, PyWork::explained(work, begun_ns, convert, explain)))
    }

    /// Whether a worker has begun with the task of this number, and its outcome is not here.
    fn has_begun(&self, py: Python<'_>, number: u64) -> PyResult<bool> {
        Ok(self.pool(py)?.has_begun(number))
    }

    /// Tasks whose outcomes are taken in their order, or as they come.
    fn job(&self, py: Python<'_>, is_ordered: bool) -> PyResult<PyJob> {
        let job = self.pool(py)?.job(is_ordered).or_raise(py)?;
        Ok(PyJob { job: Guarded::new(job), opener: self.opener.clone() })
    }

    /// Submits a call as one of a job's.
    fn submit_to(
        &self,
        job: &Bound<'_, PyJob>,
        function: &Bound<'_, PyFunction>,
        args: &Bound<'_, PyTuple>,
        tries: u32,
    ) -> PyResult<()> {
        let py = function.py();
        let pool = self.pool(py)?;
        let args = self.args(&pool, args, None)?;
        let (job, function) = (job.get().job(py)?, function.get().0.check("pool").or_raise(py)?);
        pool.submit_to(job, function, args, tries).or_raise(py)
    }

    /// Submits calls with one argument each, as a job's, and waits for room where there is none.
    fn submit_each(
        &self,
        job: &Bound<'_, PyJob>,
        function: &Bound<'_, PyFunction>,
        items: &Bound<'_, PyList>,
        tries: u32,
    ) -> PyResult<()> {
        let py = function.py();
        let pool = self.pool(py)?;
        let (job, function) = (job.get().job(py)?, function.get().0.check("pool").or_raise(py)?);
        for (number, item) in items.iter().enumerate() {
            if number % LOOK_ITEMS == 0 {
                py.check_signals()?;
            }
            let args = self.args(&pool, &PyTuple::new(py, [item])?, None)?;
            let room = pool.room().or_raise(py)?;
            if !room.is_done() {
                enter(py, None, |until, interrupt| room.wait_until(until, interrupt))?;
            }
            pool.submit_to(job, function, args, tries).or_raise(py)?;
        }
        Ok(())
    }

    /// Ends the tasks of a job that no worker has yet.
    fn cancel(&self, job: &Bound<'_, PyJob>) -> PyResult<()> {
        let py = job.py();
        let (pool, job) = (self.pool(py)?, job.get().job(py)?);
        py.detach(|| pool.cancel(job));
        Ok(())
    }

    /// Waits until there is room for a task.
    fn wait_room(&self, py: Python<'_>) -> PyResult<()> {
        let room = self.pool(py)?.room().or_raise(py)?;
        if !room.is_done() {
            enter(py, None, |until, interrupt| room.wait_until(until, interrupt))?;
        }
        Ok(())
    }

    /// Raises why there can be no more tasks, if that is so.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.pool(py)?.check().or_raise(py)
    }

    /// Process ids of the workers that run, or were the last to run, by slot.
    fn pids(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(self.pool(py)?.children().iter().map(sheave_process::Child::pid).collect())
    }

    /// Takes no more tasks.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.pool(py)?.close();
        Ok(())
    }

    /// Waits until all tasks have ended, and lets the workers go: those that have not ended after `grace` seconds more
    /// are killed.
    fn end(&self, py: Python<'_>, grace: f64) -> PyResult<()> {
        let pool = self.pool(py)?;
        let grace = span(Some(grace))?.unwrap_or(Duration::MAX);
        enter(py, None, |_, interrupt| pool.end(grace, interrupt))
    }

    /// Kills the workers. Idempotent.
    fn terminate(&self, py: Python<'_>) -> PyResult<()> {
        let pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(pool) = pool else { return Ok(()) };
        let pool = pool.check("pool").cloned().or_raise(py)?;
        py.detach(|| pool.terminate());
        Ok(())
    }
}

/// A function of a pool, in a worker.
struct Called(Option<Owner>);

impl Drop for Called {
    fn drop(&mut self) {
        drop(self.0.take());
        released::give_back_soon();
    }
}

/// The program of a worker in Python.
struct Worker {
    opener: Opener,
    /// Sets the worker up.
    set_up: Py<PyAny>,
}

impl Worker {
    /// Reads a packet and does something with what is in it.
    fn read<T>(&self, packet: Packet, what: &str, act: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        let (value, tensors) = packet.into_value()?;
        self.opener.check(&value)?;
        handlers::attached(|py| {
            let done = self.opener.unpack(py, value, &tensors).and_then(|object| act(&object));
            py.detach(|| drop(tensors));
            done.map_err(|error| told_pickled(py, &error, what))
        })?
    }
}

impl Program for Worker {
    type Function = Called;

    fn set_up(&self, setup: Option<Packet>) -> Result<()> {
        self.read(setup.unwrap_or_default(), "setting up the worker raised", |setup| {
            self.set_up.bind(setup.py()).call1((setup,)).map(drop)
        })
    }

    fn function(&self, definition: Packet) -> Result<Called> {
        self.read(definition, "the function cannot be opened", |function| {
            Ok(Called(Some(Owner::of_object(function.clone().unbind()))))
        })
    }

    fn together(&self, run: &mut dyn FnMut()) {
        // Where the interpreter ends, each task says so.
        if handlers::attached(|_| run()).is_err() {
            run();
        }
    }

    fn run(&self, function: &Called, args: Packet) -> Result<Packet> {
        let gone = || Error::new(ErrorKind::Internal, "a function that was given back");
        let function = function.0.as_ref().and_then(Owner::object).ok_or_else(gone)?;
        let (value, tensors) = args.into_value()?;
        handlers::attached(|py| {
            let result = calls::apply(&self.opener, function.bind(py), "the task", value, &tensors)?;
            drop(tensors);
            let packed = pack_for_task(&result).and_then(|packed| packet(py, packed));
            packed.map_err(|error| told_pickled(py, &error, "the result cannot be sent"))
        })?
    }
}

/// Works for the pool that has started this process, until it lets it go.
#[pyfunction]
fn work(guest: &Bound<'_, PyGuest>, set_up: Py<PyAny>) -> PyResult<()> {
    let py = guest.py();
    let turn = Turn::shared(Slate::of_this_process().or_raise(py)?);
    let (own, opener) = guest.get().parts(py)?;
    let worker = Worker { opener, set_up };
    enter(py, None, |_, interrupt| sheave_pool::work(&own, turn, worker, interrupt))
}

/// Adds what there is to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyPool>()?;
    module.add_class::<PyJob>()?;
    module.add_class::<PyFunction>()?;
    module.add_class::<PyShare>()?;
    module.setattr("_pool_work", wrap_pyfunction!(work, module)?)
}
