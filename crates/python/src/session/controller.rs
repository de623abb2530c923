//! `sheave.Session`: the controller's side.

use super::held::sent;
use super::register::PyRegister;
use super::worker::{IMPORT_MODULE, KEEP, PREPARE, register_own};
use crate::aside::aside;
use crate::enter::{enter, span};
use crate::errors::{self, OrRaise};
use crate::fleet::{command_of, output_named};
use crate::guarded::Guarded;
use crate::value::Opener;
use crate::{calls, life, released};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};
use sheave_base::fork::ForkMark;
use sheave_base::{Error, ErrorKind, Result, thread};
use sheave_process::Job;
use sheave_session::{Args, Blocking, Pause, Register, Session};
use std::ffi::OsString;
use std::sync::{Arc, OnceLock, Weak};

/// A session, which its Python object and its registers hold: with the last of them it ends, on a thread of its own.
pub(crate) struct Home {
    session: Guarded<Session>,
    opener: Opener,
    /// The function that keeps what it is given.
    keep: OnceLock<Guarded<Register>>,
    mark: ForkMark,
}

/// Sessions of this process, which end before its interpreter does.
static HOMES: Mutex<Vec<Weak<Home>>> = Mutex::new(Vec::new());

impl Home {
    fn new(py: Python<'_>, session: Session) -> PyResult<Arc<Self>> {
        let opens = calls::opens().or_raise(py)?;
        let opener = Opener::new(session.mesh().downgrade(), opens);
        let (session, mark) = (Guarded::new(session), ForkMark::here());
        let home = Arc::new(Self { session, opener, keep: OnceLock::new(), mark });
        let is_first = {
            let mut homes = HOMES.lock();
            homes.retain(|home| home.strong_count() > 0);
            homes.push(Arc::downgrade(&home));
            static IS_FIRST: std::sync::Once = std::sync::Once::new();
            let mut is_first = false;
            IS_FIRST.call_once(|| is_first = true);
            is_first
        };
        if is_first {
            // Later than the hook of the module, and so called before it: workers still run Python then.
            let hook = wrap_pyfunction!(end_all, py)?;
            py.import("atexit")?.call_method1("register", (hook,))?;
        }
        Ok(home)
    }

    fn session(&self, py: Python<'_>) -> PyResult<&Session> {
        self.session.check("session").or_raise(py)
    }

    pub(crate) fn opener(&self) -> &Opener {
        &self.opener
    }

    /// A worker's number, if there is one of that.
    pub(crate) fn worker(&self, py: Python<'_>, worker: i64) -> PyResult<u32> {
        let refused = || {
            let what = format!("worker {worker} of {}; they are counted from 0", self.session.workers());
            Error::new(ErrorKind::InvalidArgument, what).operation("session")
        };
        u32::try_from(worker).map_err(|_| refused()).or_raise(py)
    }

    pub(crate) fn describe(&self) -> String {
        match self.session.workers() {
            1 => "1 worker".to_owned(),
            workers => format!("{workers} workers"),
        }
    }

    /// Names a function of the workers', which they have under that name.
    fn named(&self, py: Python<'_>, name: &str) -> PyResult<Register> {
        let session = self.session(py)?;
        pausing(py, |pause| session.function_pausing(name, pause))
    }

    /// Has the workers call a function.
    fn called(&self, py: Python<'_>, function: &Register, args: &Args, timeout: Option<f64>) -> PyResult<Register> {
        let (session, limit) = (self.session(py)?, span(timeout)?);
        released::drain(py);
        pausing(py, |pause| session.call_pausing(function, args, limit, pause))
    }

    /// Has the workers keep a value of the controller's as an object.
    fn kept(&self, value: &Bound<'_, PyAny>) -> PyResult<Register> {
        let py = value.py();
        let args = Args::new().value(sent(value)?);
        let keep = match self.keep.get() {
            Some(keep) => keep,
            None => {
                let keep = Guarded::new(self.named(py, KEEP)?);
                self.keep.get_or_init(|| keep)
            }
        };
        self.called(py, keep, &args, None)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.mark.is_stale() {
            // What a forked child inherits is the parent's.
            return;
        }
        if life::is_ending() {
            // The process takes its workers along, and does not wait for them: it is kept until then.
            return std::mem::forget(Session::clone(&self.session));
        }
        // Workers do what was issued first, which takes its time, and worker 0 needs the interpreter for it.
        let session = Session::clone(&self.session);
        let ended = thread::spawn("sheave-session-end", move || drop(session.shutdown()));
        // Without a thread it ends here.
        drop(ended);
    }
}

/// Ends all sessions, before the interpreter does.
#[pyfunction]
fn end_all(py: Python<'_>) -> PyResult<()> {
    if life::ends_by_exception(py) {
        return Ok(());
    }
    let homes: Vec<_> = std::mem::take(&mut *HOMES.lock()).iter().filter_map(Weak::upgrade).collect();
    let living = homes.iter().filter(|home| !home.mark.is_stale());
    let sessions: Vec<Session> = living.map(|home| Session::clone(&home.session)).collect();
    // Whoever wants to know what has failed shuts them down.
    aside(py, move || {
        sessions.iter().for_each(|session| drop(session.shutdown()));
        Ok(())
    })
}

/// Issues a command with the interpreter held, and lets it go for what has to wait.
fn pausing<T>(py: Python<'_>, issue: impl FnOnce(Pause<'_>) -> Result<T>) -> PyResult<T> {
    let mut raised = None;
    let mut pause = |blocking: Blocking<'_>| {
        enter(py, None, |_, interrupt| blocking(interrupt)).map_err(|error| {
            raised = Some(error);
            Error::new(ErrorKind::Interrupted, "the wait for room has ended")
        })
    };
    let issued = issue(&mut pause);
    issued.map_err(|error| raised.unwrap_or_else(|| errors::raised(py, &error)))
}

/// What a wait of the controller's came to: what a command of the user's has failed with as what it raised.
pub(crate) fn outcome<T>(py: Python<'_>, home: &Home, ended: Result<T>) -> PyResult<T> {
    let explain = home.opener.explanation();
    ended.map_err(|error| explain(py, &error).unwrap_or_else(|| errors::raised(py, &error)))
}

/// One controller and its workers: functions run on all workers at once, and their results stay there in registers.
///
/// `ThreadedSession` and `ProcessSession` are its kinds. Commands are issued without waiting, and each worker does them
/// one after the other, on one thread of its own, in the order in which they were issued, whichever threads issue them.
/// What fails on a worker poisons the register that it was to fill and what is computed from it, and is raised by
/// whatever waits for that worker next. Waits let other Python threads run, and end at Ctrl-C; the commands go on then.
///
/// It ends with `shutdown`, as a context manager at the end of the block, when the last of it and its registers is
/// dropped, and with the process, in whatever way that ends.
///
/// >>> import sheave.session
/// >>> with sheave.session.ThreadedSession(2) as session:
/// ...     worker_id = session.function(lambda: sheave.session.worker().id)
/// ...     ids = session.call(worker_id)
/// ...     ids.get(worker=0), ids.get(worker=1)
/// (0, 1)
#[pyclass(name = "Session", module = "sheave", subclass, frozen, weakref)]
pub(crate) struct PySession {
    home: Arc<Home>,
}

fn counted(py: Python<'_>, what: &str, number: i64) -> PyResult<u32> {
    let refused = || {
        let what = format!("{what} is {number}; expected 1 at least");
        Error::new(ErrorKind::InvalidArgument, what).operation("begin session")
    };
    u32::try_from(number).ok().filter(|number| *number > 0).ok_or_else(refused).or_raise(py)
}

impl PySession {
    fn register(&self, register: Register) -> PyRegister {
        PyRegister::new(register, &self.home)
    }
}

#[pymethods]
impl PySession {
    /// The number of workers.
    #[getter]
    fn workers(&self) -> u32 {
        self.home.session.workers()
    }

    /// The number of groups that they are divided into, each of as many workers with consecutive numbers.
    #[getter]
    fn groups(&self) -> u32 {
        self.home.session.groups()
    }

    /// Name a function for `call`: by the name under which each worker has registered it, or a callable, which is sent
    /// as `sheave.pickling` says and stays on the workers.
    ///
    /// Does not wait. A worker that has no function of that name says so when somebody waits for it.
    ///
    /// >>> import sheave.session
    /// >>> with sheave.session.ThreadedSession(1) as session:
    /// ...     session.call(session.function(sum), [1, 2, 3]).get()
    /// 6
    fn function(&self, function: &Bound<'_, PyAny>) -> PyResult<PyRegister> {
        let py = function.py();
        if let Ok(name) = function.cast::<PyString>() {
            return Ok(self.register(self.home.named(py, name.to_str()?)?));
        }
        if function.is_callable() {
            return Ok(self.register(self.home.kept(function)?));
        }
        let what = format!("a {} is no function; expected a name or a callable", function.get_type().name()?);
        Err(Error::new(ErrorKind::InvalidArgument, what).operation("function")).or_raise(py)
    }

    /// Have all workers call a function: a register of `function` or of a command whose result can be called. Returns
    /// the register of the results at once.
    ///
    /// Of registers among the arguments each worker takes its own value: what a function of Python's has returned there
    /// is the very object. All other arguments travel as those of `Mesh.call` do and are captured before this returns;
    /// arrays arrive writable, and belong to the worker. A function or a name in place of the register is sent first.
    ///
    /// Waits only where very many commands are under way; raises DeadlineExceeded if there is no room after `timeout`
    /// seconds, and then no worker has got the command. Raises Closed after `shutdown`.
    ///
    /// >>> import sheave.session
    /// >>> with sheave.session.ThreadedSession(1) as session:
    /// ...     numbers = session.call(list, (3, 1, 2))
    /// ...     session.call(list.sort, numbers).get(), numbers.get()
    /// (None, [1, 2, 3])
    #[pyo3(signature = (function, *args, timeout = None))]
    fn call(
        &self,
        py: Python<'_>,
        function: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        timeout: Option<f64>,
    ) -> PyResult<PyRegister> {
        let mut given = Args::new();
        for argument in args.iter_borrowed() {
            given = match argument.cast_exact::<PyRegister>() {
                Ok(register) => given.register(register.get().register(py)?),
                Err(_) => given.value(sent(&argument)?),
            };
        }
        let called = match function.cast_exact::<PyRegister>() {
            Ok(function) => self.home.called(py, function.get().register(py)?, &given, timeout)?,
            Err(_) => {
                let function = self.function(function)?;
                self.home.called(py, function.register(py)?, &given, timeout)?
            }
        };
        Ok(self.register(called))
    }

    /// Have all workers import a module, such as one that registers functions. Does not wait; raises as `call` does.
    ///
    /// >>> import sheave.session
    /// >>> with sheave.session.ThreadedSession(1) as session:
    /// ...     session.import_module("json")
    fn import_module(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let import = self.home.named(py, IMPORT_MODULE)?;
        self.home.called(py, &import, &Args::new().value(name), None).map(drop)
    }

    /// Wait until a worker, or with None all workers, have done all commands that were issued before.
    ///
    /// Raises what commands have failed with since somebody was told, as `Register.get` does: of several the first, and
    /// says how many there were. Raises DeadlineExceeded after `timeout` seconds; the commands go on then.
    ///
    /// >>> import sheave.session
    /// >>> with sheave.session.ThreadedSession(2) as session:
    /// ...     division = session.call(lambda: 1 // 0)
    /// ...     session.sync()
    /// Traceback (most recent call last):
    /// ...
    /// ZeroDivisionError: integer division or modulo by zero
    #[pyo3(signature = (worker = None, timeout = None))]
    fn sync(&self, py: Python<'_>, worker: Option<i64>, timeout: Option<f64>) -> PyResult<()> {
        let (session, limit) = (self.home.session(py)?, span(timeout)?);
        let worker = worker.map(|worker| self.home.worker(py, worker)).transpose()?;
        let done = enter(py, None, |_, interrupt| {
            Ok(match worker {
                Some(worker) => session.sync_interruptible(worker, limit, interrupt),
                None => session.sync_all_interruptible(limit, interrupt),
            })
        })?;
        outcome(py, &self.home, done)
    }

    /// End the session: workers do what was issued, and leave. Waits for that, for ten seconds at most; then they are
    /// ended. Idempotent.
    ///
    /// Raises what commands have failed with, and deaths, of which nobody was told. The session has ended all the same.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let session = Session::clone(self.home.session(py)?);
        let done = aside(py, move || Ok(session.shutdown()))?;
        outcome(py, &self.home, done)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Ends the session. What the block has raised counts before what the workers have.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let ended = self.shutdown(py);
        if kind.is_none() { ended } else { Ok(()) }
    }

    fn __repr__(&self) -> String {
        format!("<sheave.Session of {}>", self.home.describe())
    }
}

/// A session whose workers are threads of this process, in `num_groups` groups.
///
/// Raises InvalidArgument without a worker or a group, and for workers that cannot be divided into groups of the same
/// size. Blocks until they are there; Ctrl-C ends that.
///
/// >>> import sheave.session
/// >>> with sheave.session.ThreadedSession(4, num_groups=2) as session:
/// ...     session.workers, session.groups
/// (4, 2)
#[pyclass(name = "ThreadedSession", module = "sheave.session", extends = PySession, subclass, frozen)]
pub(crate) struct PyThreadedSession;

#[pymethods]
impl PyThreadedSession {
    #[new]
    #[pyo3(signature = (num_workers, num_groups = 1))]
    fn new(py: Python<'_>, num_workers: i64, num_groups: i64) -> PyResult<PyClassInitializer<Self>> {
        let workers = counted(py, "num_workers", num_workers)?;
        let groups = counted(py, "num_groups", num_groups)?;
        register_own();
        let session = enter(py, None, |_, interrupt| Session::threads_interruptible(workers, groups, interrupt))?;
        Ok(PyClassInitializer::from(PySession { home: Home::new(py, session)? }).add_subclass(Self))
    }
}

/// A session whose workers are processes, in `num_groups` groups; worker 0 is a thread of this one.
///
/// Processes are of the same interpreter, with the same options and `sys.path`, and import the program of this one, so
/// that functions which that registers are found there: a script begins sessions under `if __name__ == "__main__":`.
/// With `entrypoint` each runs that module instead, as `python -m entrypoint ID WORKERS GROUPS 0 1`, which registers
/// its functions and calls `sheave.session.work`. They end with the session, and with this process, in whatever way
/// that ends.
///
/// - env: variables for them. output: `prefix` prints what they print behind their names, `inherit` as it is, `quiet`
///   not at all.
///
/// Blocks until they have imported the program; Ctrl-C ends that. Raises InvalidArgument as `ThreadedSession` does,
/// WorkerDied with `exit_status` and `last_lines` for a process that ends before, and what the program raises.
///
/// >>> import os, sheave.session
/// >>> with sheave.session.ProcessSession(2) as session:
/// ...     pids = session.call(os.getpid)
/// ...     pids.get(worker=0) == os.getpid(), pids.get(worker=1) == os.getpid()
/// (True, False)
#[pyclass(name = "ProcessSession", module = "sheave.session", extends = PySession, subclass, frozen)]
pub(crate) struct PyProcessSession;

#[pymethods]
impl PyProcessSession {
    #[new]
    #[pyo3(signature = (num_workers, num_groups = 1, entrypoint = None, *, env = None, output = "prefix"))]
    fn new(
        py: Python<'_>,
        num_workers: i64,
        num_groups: i64,
        entrypoint: Option<&str>,
        env: Option<std::collections::HashMap<OsString, OsString>>,
        output: &str,
    ) -> PyResult<PyClassInitializer<Self>> {
        let workers = counted(py, "num_workers", num_workers)?;
        let groups = counted(py, "num_groups", num_groups)?;
        let output = output_named(output).or_raise(py)?;
        register_own();
        let starting = py.import("sheave._session")?;
        // Not later: a program that is imported itself may start no processes.
        let program = starting.call_method1("program", (entrypoint.is_some(),))?.cast_into::<PyBytes>()?;
        let words: Vec<OsString> = starting.call_method1("command", (entrypoint,))?.extract()?;
        let command = command_of(words).or_raise(py)?.envs(env.unwrap_or_default());
        let of_worker = |worker: u32| match entrypoint {
            Some(_) => {
                command.clone().args([worker.to_string(), workers.to_string(), groups.to_string()]).args(["0", "1"])
            }
            None => command.clone(),
        };
        let job = Job::builder().output(output);
        let session = enter(py, None, |_, interrupt| {
            Session::processes_interruptible(workers, groups, job, of_worker, interrupt)
        })?;
        let session = PySession { home: Home::new(py, session)? };
        let prepare = session.home.named(py, PREPARE)?;
        session.home.called(py, &prepare, &Args::new().value(sent(&program)?), None)?;
        session.sync(py, None, None)?;
        Ok(PyClassInitializer::from(session).add_subclass(Self))
    }
}
