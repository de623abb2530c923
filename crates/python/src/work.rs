//! `sheave.Work`: an operation in flight.
//!
//! Any operation becomes one by [`PyWork::of`], which adds how its outcome looks in Python. The outcome is converted
//! once, with the interpreter held, by whoever asks first. One waker per work notes when it ended and tells whoever
//! listens: the callback thread, or the loops of asyncio. It runs on the thread that ends the operation and never
//! touches the interpreter.

use crate::callbacks::Callbacks;
use crate::enter::{enter, still_running};
use crate::errors::{self, OrRaise};
use crate::link::PyLink;
use crate::tensor::PyTensor;
use crate::{awaiting, life};
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};
use rustix::time::{ClockId, clock_gettime};
use sheave_base::fork::ForkMark;
use sheave_base::work::Interrupt;
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_net::Message;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Instant;

/// What an operation came to, as Python sees it.
pub(crate) enum Outcome {
    Value(Py<PyAny>),
    /// It failed; each look at it raises an exception of its own.
    Failed(Error),
    /// It ended well, and Python failed to make the result.
    Raised(Py<PyBaseException>),
}

impl Outcome {
    pub(crate) fn to_python(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Self::Value(value) => Ok(value.clone_ref(py)),
            Self::Failed(error) => Err(errors::raised(py, error)),
            Self::Raised(error) => Err(PyErr::from_value(error.bind(py).clone().into_any())),
        }
    }

    /// The outcome of an exception, as the collector of garbage can follow it: it has the frames that it went through.
    fn raised(py: Python<'_>, error: PyErr) -> Self {
        Self::Raised(error.into_value(py))
    }
}

/// How the outcome is had: taken, or cloned where others have handles too.
type Taken<T> = Box<dyn Fn(&Work<T>) -> Result<T> + Send + Sync>;

/// What is raised for a failure, where that is not what its kind says.
type Explain = Box<dyn Fn(Python<'_>, &Error) -> Option<PyErr> + Send + Sync>;

type Convert<T> = Box<dyn FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send>;

/// A work whose type is forgotten.
trait Running: Send + Sync {
    fn operation(&self) -> &'static str;
    fn is_done(&self) -> bool;
    fn wait_until(&self, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<bool>;
    fn cancel(&self);
    /// Lets the waker be woken at the end. False if it has ended already.
    fn tell(&self, waker: &Waker) -> bool;
    /// The outcome of a work that has ended, once.
    fn take(&self, py: Python<'_>) -> Outcome;
}

struct Typed<T> {
    work: Work<T>,
    taken: Taken<T>,
    convert: Mutex<Option<Convert<T>>>,
    explain: Option<Explain>,
}

impl<T: Send + 'static> Running for Typed<T> {
    fn operation(&self) -> &'static str {
        self.work.operation()
    }

    fn is_done(&self) -> bool {
        self.work.is_done()
    }

    fn wait_until(&self, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<bool> {
        self.work.wait_until(until, interrupt)
    }

    fn cancel(&self) {
        self.work.cancel();
    }

    fn tell(&self, waker: &Waker) -> bool {
        self.work.poll_done(&Context::from_waker(waker)).is_pending()
    }

    fn take(&self, py: Python<'_>) -> Outcome {
        let convert = self.convert.lock().unwrap_or_else(PoisonError::into_inner).take();
        let taken = convert.ok_or_else(|| Error::new(ErrorKind::Internal, "an outcome was converted before"));
        match taken.and_then(|convert| (self.taken)(&self.work).map(|value| (convert, value))) {
            Ok((convert, value)) => convert(py, value).map_or_else(|error| Outcome::raised(py, error), Outcome::Value),
            Err(error) => match self.explain.as_ref().and_then(|explain| explain(py, &error)) {
                Some(raised) => Outcome::raised(py, raised),
                None => Outcome::Failed(error),
            },
        }
    }
}

/// What is called when a work ends, on the thread that ends it, without the interpreter. It must not block.
pub(crate) type Listener = Box<dyn FnOnce() + Send>;

/// The end of a work, and who wants to know of it.
#[derive(Default)]
struct Ending {
    ended_ns: OnceLock<u64>,
    listeners: Mutex<Vec<Listener>>,
}

impl Ending {
    fn note(&self) {
        self.ended_ns.get_or_init(now_ns);
        let listeners = std::mem::take(&mut *self.listeners.lock().unwrap_or_else(PoisonError::into_inner));
        listeners.into_iter().for_each(|listener| listener());
    }

    /// Calls the listener at the end, which may be now.
    fn listen(&self, listener: Listener) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ended_ns.get().is_none() {
            listeners.push(listener);
            return;
        }
        drop(listeners);
        listener();
    }
}

impl Wake for Ending {
    fn wake(self: Arc<Self>) {
        self.note();
    }
}

/// Nanoseconds of the clock that `time.monotonic_ns` reads.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// An operation in flight. It holds its buffers until it ends, whether or not somebody waits.
///
/// Waits may be repeated and come from any thread; they let other Python threads run and end at Ctrl-C, which leaves
/// the operation going. Inside asyncio, `await` it. The annotation `Work[int]` says what its result is.
///
/// >>> work = world.all_reduce(np.array([1.0, 2.0]), async_op=True)
/// >>> work.wait(timeout=10)
/// array([1., 2.])
#[pyclass(name = "Work", module = "sheave", frozen, weakref, generic)]
pub(crate) struct PyWork {
    running: Box<dyn Running>,
    ending: Arc<Ending>,
    outcome: OnceLock<Outcome>,
    /// Held by whoever converts the outcome.
    turn: Mutex<()>,
    mark: ForkMark,
    begun_ns: u64,
}

impl PyWork {
    /// A work of Rust's. `convert` makes Python's result of its outcome, once, with the interpreter held.
    ///
    /// `begun_ns` is when the operation began, by [`now_ns`].
    pub(crate) fn of<T: Send + 'static>(
        work: Work<T>,
        begun_ns: u64,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        Self::had_by(work, begun_ns, Work::taken, convert)
    }

    /// As [`PyWork::of`]; where `explain` knows an exception for a failure, that is raised.
    pub(crate) fn explained<T: Send + 'static>(
        work: Work<T>,
        begun_ns: u64,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
        explain: impl Fn(Python<'_>, &Error) -> Option<PyErr> + Send + Sync + 'static,
    ) -> Self {
        Self::made(work, begun_ns, Box::new(Work::taken), Box::new(convert), Some(Box::new(explain)))
    }

    /// As [`PyWork::of`], where the outcome is had in another way: by a clone if others have handles to the work. It is
    /// called once, before `convert`, by whoever looks first.
    pub(crate) fn had_by<T: Send + 'static>(
        work: Work<T>,
        begun_ns: u64,
        taken: impl Fn(&Work<T>) -> Result<T> + Send + Sync + 'static,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> Self {
        Self::made(work, begun_ns, Box::new(taken), Box::new(convert), None)
    }

    fn made<T: Send + 'static>(
        work: Work<T>,
        begun_ns: u64,
        taken: Taken<T>,
        convert: Convert<T>,
        explain: Option<Explain>,
    ) -> Self {
        let running: Box<dyn Running> = Box::new(Typed { work, taken, convert: Mutex::new(Some(convert)), explain });
        let ending = Arc::new(Ending::default());
        if !running.tell(&Waker::from(Arc::clone(&ending))) {
            ending.note();
        }
        let mark = ForkMark::here();
        Self { running, ending, outcome: OnceLock::new(), turn: Mutex::default(), mark, begun_ns }
    }

    /// A work without a result.
    pub(crate) fn of_nothing(work: Work<()>, begun_ns: u64) -> Self {
        Self::of(work, begun_ns, |py, ()| Ok(py.None()))
    }

    pub(crate) fn receive(node: NodeId, work: Work<Message>, begun_ns: u64) -> Self {
        Self::of(work, begun_ns, move |py, message| received(py, node, message).map(Py::into_any).or_raise(py))
    }

    /// Returns this work, or what it comes to.
    pub(crate) fn given(self, py: Python<'_>, async_op: bool) -> PyResult<Py<PyAny>> {
        if async_op { Ok(Py::new(py, self)?.into_any()) } else { self.wait(py, None) }
    }

    /// Calls the listener when the work ends, or now.
    pub(crate) fn listen(&self, listener: Listener) {
        self.ending.listen(listener);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.running.is_done()
    }

    /// What came of a work that has ended; the same each time.
    pub(crate) fn outcome(&self, py: Python<'_>) -> &Outcome {
        if let Some(outcome) = self.outcome.get() {
            return outcome;
        }
        // Making the result may run Python code, and so let another thread come here.
        let _turn = self.turn.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = self.outcome.get() {
            return outcome;
        }
        let outcome = self.running.take(py);
        // Nobody else makes one meanwhile.
        self.outcome.get_or_init(|| outcome)
    }

    /// Waits for the end and returns what came of it.
    fn ended(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<&Outcome> {
        self.mark.check("work").or_raise(py)?;
        let ended = enter(py, timeout_s, |until, interrupt| self.running.wait_until(until, interrupt))?;
        if ended { Ok(self.outcome(py)) } else { Err(errors::to_python(py, &still_running(self.running.operation()))) }
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
    /// Wait for the end. Returns the operation's result; raises what it failed with.
    ///
    /// Raises DeadlineExceeded when `timeout` seconds have passed; then the operation goes on.
    ///
    /// >>> world.barrier(async_op=True).wait(timeout=10)
    #[pyo3(signature = (timeout = None))]
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.ended(py, timeout)?.to_python(py)
    }

    /// The same as `wait`, under the name that futures have for it.
    ///
    /// >>> world.all_reduce(np.array([3]), async_op=True).result(timeout=10)
    /// array([3])
    #[pyo3(signature = (timeout = None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.wait(py, timeout)
    }

    /// Wait for the end. Returns the exception that it failed with, or None.
    ///
    /// >>> world.barrier(async_op=True).exception(timeout=10) is None
    /// True
    #[pyo3(signature = (timeout = None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        let outcome = self.ended(py, timeout)?.to_python(py);
        Ok(outcome.err().map(|error| error.into_value(py).into_any()))
    }

    /// True once it has ended. Never waits.
    ///
    /// >>> work = world.barrier(async_op=True)
    /// >>> work.wait(), work.done()
    /// (None, True)
    fn done(&self) -> bool {
        self.is_done()
    }

    /// Ask it to end. It fails with Cancelled, unless it is past the point where it can be stopped.
    ///
    /// A collective operation that is cancelled breaks its group, because the members would be out of step.
    ///
    /// >>> work = other.irecv(np.zeros(3), tag=99)
    /// >>> work.cancel()
    /// >>> work.wait(timeout=10)
    /// Traceback (most recent call last):
    /// ...
    /// sheave.Cancelled: ...
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.mark.check("work").or_raise(py)?;
        py.detach(|| self.running.cancel());
        Ok(())
    }

    /// Call `callback(work)` once it has ended, on sheave's callback thread, never on the thread that ends it.
    ///
    /// Callbacks run one after the other, so a slow one delays the rest, and one that runs for a second is told on
    /// standard error. What it raises goes to sys.unraisablehook.
    ///
    /// >>> import threading
    /// >>> called = threading.Event()
    /// >>> world.barrier(async_op=True).add_done_callback(lambda work: called.set())
    /// >>> called.wait(timeout=10)
    /// True
    fn add_done_callback(slf: &Bound<'_, Self>, callback: Py<PyAny>) -> PyResult<()> {
        let py = slf.py();
        slf.get().mark.check("work").or_raise(py)?;
        let callbacks = Callbacks::here(py)?;
        callbacks.admit().or_raise(py)?;
        let work = slf.clone().unbind();
        let (thread, operation) = (callbacks.clone(), slf.get().running.operation());
        slf.get().listen(Box::new(move || {
            let own = thread.clone();
            let job = move |py: Python<'_>| {
                own.dismiss();
                if let Err(error) = callback.call1(py, (work,)) {
                    own.tell(py, error, callback.bind(py));
                }
            };
            thread.post(operation, Box::new(job));
        }));
        Ok(())
    }

    /// Wait in asyncio, without blocking the loop. Gives the result, or raises what the operation failed with.
    ///
    /// >>> import asyncio
    /// >>> async def main():
    /// ...     return await world.all_reduce(np.array([3]), async_op=True)
    /// >>> asyncio.run(main())
    /// array([3])
    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().mark.check("work").or_raise(slf.py())?;
        let future = awaiting::future(slf)?;
        life::below(slf.py(), || future.call_method0("__await__"))
    }

    /// What is known of its course: a dict with "operation", and the stamps "begun_ns" and "ended_ns" in nanoseconds of
    /// time.monotonic_ns(). "ended_ns" is None while it runs. Never waits.
    ///
    /// >>> work = world.barrier(async_op=True)
    /// >>> work.wait()
    /// >>> trace = work.trace()
    /// >>> trace["operation"], trace["begun_ns"] < trace["ended_ns"]
    /// ('barrier', True)
    fn trace<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let trace = PyDict::new(py);
        trace.set_item("operation", self.running.operation())?;
        trace.set_item("begun_ns", self.begun_ns)?;
        trace.set_item("ended_ns", self.ending.ended_ns.get())?;
        Ok(trace)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.outcome.get() {
            Some(Outcome::Value(value)) => visit.call(value),
            Some(Outcome::Raised(error)) => visit.call(error),
            _ => Ok(()),
        }
    }

    fn __repr__(&self) -> String {
        let state = if self.is_done() { "done" } else { "running" };
        format!("<sheave.Work {} {state}>", self.running.operation())
    }
}
