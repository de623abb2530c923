//! `sheave.session.Register`: a result that stays on the workers.

use super::controller::{Home, outcome};
use super::held::{sent, to_python};
use crate::enter::{enter, span};
use crate::errors::{self, OrRaise};
use crate::guarded::Guarded;
use pyo3::prelude::*;
use sheave_base::{Error, ErrorKind};
use sheave_session::Register;
use std::sync::Arc;

/// The result of a command: one value on each worker, which stays there for as long as somebody has the register.
///
/// Pass it to later commands, which get each worker's own value. Dropping it never waits, and frees the values by the
/// words that ride on the next command.
///
/// >>> import sheave.session
/// >>> with sheave.session.ThreadedSession(2) as session:
/// ...     double = session.function(lambda number: 2 * number)
/// ...     four = session.call(double, session.call(double, 1))
/// ...     four.get(), four.get(worker=1)
/// (4, 4)
#[pyclass(name = "Register", module = "sheave.session", frozen, weakref)]
pub(crate) struct PyRegister {
    register: Guarded<Register>,
    /// Dropped behind the register, which so is never what keeps the session.
    home: Arc<Home>,
}

impl PyRegister {
    pub(crate) fn new(register: Register, home: &Arc<Home>) -> Self {
        Self { register: Guarded::new(register), home: Arc::clone(home) }
    }

    pub(crate) fn register(&self, py: Python<'_>) -> PyResult<&Register> {
        self.register.check("register").or_raise(py)
    }
}

#[pymethods]
impl PyRegister {
    /// Fetch the value that a worker has there, once it has done all commands that were issued before.
    ///
    /// Types are kept, as `Mesh.call` keeps those of results; what is fetched is a copy. Raises what commands have
    /// failed with since somebody was told, and what this value was not made for: an exception of the user's with the
    /// class that it had, if that can be rebuilt, whose `__cause__` has worker, function, number of the command (`seq`)
    /// and remote traceback. Raises WorkerDied or PeerLost for a worker that is gone, and DeadlineExceeded after
    /// `timeout` seconds; the commands go on then.
    ///
    /// With `share`, arrays that lie in memory which the worker shares with this process, as those do that operations
    /// of the session have made, are not copied where that can be: what one side writes the other sees, at an unknown
    /// time. All other arrays are copies as ever.
    ///
    /// >>> import numpy, sheave.session
    /// >>> with sheave.session.ProcessSession(2) as session:
    /// ...     numbers = session.broadcast(numpy.zeros(2))
    /// ...     shared = numbers.get(worker=1, share=True)
    /// ...     write = session.call(lambda numbers: numbers.fill(5), numbers)
    /// ...     session.sync()
    /// ...     shared.tolist()
    /// [5.0, 5.0]
    #[pyo3(signature = (worker = 0, timeout = None, *, share = false))]
    fn get<'py>(&self, py: Python<'py>, worker: i64, timeout: Option<f64>, share: bool) -> PyResult<Bound<'py, PyAny>> {
        let (register, limit) = (self.register(py)?, span(timeout)?);
        let worker = self.home.worker(py, worker)?;
        let fetched = enter(py, None, |_, interrupt| {
            Ok(match share {
                true => register.fetch_shared_interruptible(worker, limit, interrupt),
                false => register.fetch_interruptible(worker, limit, interrupt),
            })
        })?;
        let (value, tensors) = outcome(py, &self.home, fetched)?;
        self.home.opener().unpack(py, value, &tensors)
    }

    /// What worker 0 has there itself, which is a thread of this process: the very object, and so also one that cannot
    /// be fetched. Waits, and raises, as `get` does.
    ///
    /// >>> import sheave.session
    /// >>> with sheave.session.ThreadedSession(1) as session:
    /// ...     numbers = session.call(list, (1, 2))
    /// ...     numbers.local().append(3)
    /// ...     numbers.get()
    /// [1, 2, 3]
    #[pyo3(signature = (timeout = None))]
    fn local<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let (register, limit) = (self.register(py)?, span(timeout)?);
        let held = enter(py, None, |_, interrupt| Ok(register.local(limit, interrupt)))?;
        to_python(py, outcome(py, &self.home, held)?)
    }

    /// Give the register another value on one worker alone, once that has done all commands that were issued before.
    ///
    /// It is a value there: each function of Python's gets an object of its own for it, in which arrays are over the
    /// same memory. Raises as `get` does.
    #[pyo3(signature = (worker, value, timeout = None))]
    fn set(&self, py: Python<'_>, worker: i64, value: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let (register, limit) = (self.register(py)?, span(timeout)?);
        let worker = self.home.worker(py, worker)?;
        let value = sent(value)?;
        let done = enter(py, None, |_, interrupt| Ok(register.set_interruptible(worker, value, limit, interrupt)))?;
        outcome(py, &self.home, done)
    }

    /// A register stays with its controller.
    fn __reduce__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let error = Error::new(ErrorKind::InvalidArgument, "a register stays with its controller");
        Err(errors::to_python(py, &error.hint("make it an argument of a command itself, not a part of one")))
    }

    fn __repr__(&self) -> String {
        format!("<sheave.session.Register of {}>", self.home.describe())
    }
}
