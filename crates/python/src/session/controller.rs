//! `sheave.Session`: the controller's side.

use super::held::sent;
use super::register::PyRegister;
use super::worker::{IMPORT_MODULE, KEEP, PREPARE, meeting, register_own};
use crate::aside::aside;
use crate::collectives::operator;
use crate::enter::{enter, span};
use crate::errors::{self, OrRaise};
use crate::fleet::{command_of, output_named};
use crate::guarded::Guarded;
use crate::import::{self, Access};
use crate::places::Secrecy;
use crate::value::Opener;
use crate::{calls, dtype, life, released};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};
use sheave_base::fork::ForkMark;
use sheave_base::{Error, ErrorKind, Result, thread};
use sheave_process::{Builder, Command, Job};
use sheave_session::{Args, Blocking, Nodes, Pause, Placement, Register, Scope, Session};
use sheave_tensor::Dtype;
use std::collections::HashMap;
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
/// `ThreadedSession`, `ProcessSession` and `SocketSession` are its kinds. Commands are issued without waiting, and each
/// worker does them one after the other, on one thread of its own, in the order in which they were issued, whichever
/// threads issue them. What fails on a worker poisons the register that it was to fill and what is computed from it,
/// and is raised by whatever waits for that worker next. Waits let other Python threads run, and end at Ctrl-C; the
/// commands go on then.
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

pub(crate) fn counted(py: Python<'_>, what: &str, number: i64) -> PyResult<u32> {
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

    /// Has all workers call a built-in function, whose last argument is where the result goes.
    fn together(
        &self,
        py: Python<'_>,
        name: &'static str,
        args: Args,
        target: Option<&Bound<'_, PyRegister>>,
    ) -> PyResult<PyRegister> {
        let session = self.home.session(py)?;
        let args = match held_by(py, target)? {
            Some(target) => args.register(target),
            None => args,
        };
        released::drain(py);
        let made = pausing(py, |pause| session.call_named(name, &args, None, pause))?;
        Ok(self.register(made))
    }

    /// As `together`, of an operation on what workers have.
    fn moved(
        &self,
        py: Python<'_>,
        name: &'static str,
        source: &Bound<'_, PyRegister>,
        target: Option<&Bound<'_, PyRegister>>,
        scope: &str,
    ) -> PyResult<PyRegister> {
        let scope = Scope::from_name(scope).or_raise(py)?;
        self.together(py, name, Args::new().value(scope.name()).register(source.get().register(py)?), target)
    }

    /// Makes a session whose other workers are processes one of this program.
    fn prepared(py: Python<'_>, session: Session, program: &Bound<'_, PyBytes>) -> PyResult<Self> {
        let session = Self { home: Home::new(py, session)? };
        let prepare = session.home.named(py, PREPARE)?;
        session.home.called(py, &prepare, &Args::new().value(sent(program)?), None)?;
        session.sync(py, None, None)?;
        Ok(session)
    }
}

fn held_by<'a>(py: Python<'_>, register: Option<&'a Bound<'_, PyRegister>>) -> PyResult<Option<&'a Register>> {
    register.map(|register| register.get().register(py)).transpose()
}

/// How worker processes are started.
struct Start {
    program: Py<PyBytes>,
    command: Command,
    /// Workers, groups.
    entrypoint: Option<[u32; 2]>,
    job: Builder,
}

impl Start {
    fn new(
        py: Python<'_>,
        entrypoint: Option<&str>,
        counts: [u32; 2],
        env: Option<HashMap<OsString, OsString>>,
        output: &str,
        is_elsewhere: bool,
    ) -> PyResult<Self> {
        let job = Job::builder().output(output_named(output).or_raise(py)?);
        register_own();
        let starting = py.import("sheave._session")?;
        // Not later: a program that is imported itself may start no processes.
        let program = starting.call_method1("program", (entrypoint, is_elsewhere))?.cast_into::<PyBytes>()?.unbind();
        let words: Vec<OsString> = starting.call_method1("command", (entrypoint,))?.extract()?;
        let command = command_of(words).or_raise(py)?.envs(env.unwrap_or_default());
        Ok(Self { program, command, entrypoint: entrypoint.map(|_| counts), job })
    }

    /// The command of a worker.
    fn of_worker(command: Command, entrypoint: Option<[u32; 2]>) -> impl FnMut(u32) -> Command {
        move |worker| match entrypoint {
            Some([workers, groups]) => {
                command.clone().args([worker.to_string(), workers.to_string(), groups.to_string()]).args(["0", "1"])
            }
            None => command.clone(),
        }
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

    /// Have workers make an array whose elements are whatever lay there: `all`, the `leaders`, which are the first of
    /// each group, or the `first`, worker 0. The others hold None. Does not wait; raises as `call` does.
    ///
    /// shape is a number or a sequence of them; dtype a name or a dtype of numpy, torch or jax.
    ///
    /// >>> import sheave.session
    /// >>> with sheave.session.ThreadedSession(2) as session:
    /// ...     made = session.empty((2, 3), "int8", placement="first")
    /// ...     made.get(worker=0).shape, made.get(worker=1) is None
    /// ((2, 3), True)
    #[pyo3(signature = (shape, dtype = None, *, placement = "all"))]
    fn empty(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        placement: &str,
    ) -> PyResult<PyRegister> {
        let shape: Vec<u64> = match shape.extract::<u64>() {
            Ok(length) => vec![length],
            Err(_) => shape.extract()?,
        };
        let dtype = dtype.map(dtype::from_python).transpose()?.transpose().or_raise(py)?.unwrap_or(Dtype::F32);
        let placement = Placement::from_name(placement).or_raise(py)?;
        let args = Args::new().value(shape).value(dtype.name()).value(placement.name());
        self.together(py, "sheave.empty", args, None)
    }

    /// Copy an array to worker 0: over what `target` holds there, which has its dtype and number of elements, or into
    /// the register that is returned, in which the others hold None. The array is captured before this returns, and
    /// nothing waits.
    ///
    /// >>> import numpy, sheave.session
    /// >>> with sheave.session.ThreadedSession(2) as session:
    /// ...     rows = session.copy_to_first(numpy.arange(4).reshape(2, 2))
    /// ...     session.scatter_from_first(rows).get(worker=1).tolist()
    /// [2, 3]
    #[pyo3(signature = (array, target = None))]
    fn copy_to_first(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        target: Option<&Bound<'_, PyRegister>>,
    ) -> PyResult<PyRegister> {
        let tensor = import::tensor(array, Access::Read)?;
        let args = Args::new().placed(&tensor, Placement::First, self.home.session(py)?.group_size());
        self.together(py, "sheave.copy_to_first", args, target)
    }

    /// Copy what worker 0 has in a register over an array, which has its dtype and number of elements, when the worker
    /// gets there: read the array after a `sync` of worker 0, which raises what has failed. Does not wait.
    ///
    /// >>> import numpy, sheave.session
    /// >>> with sheave.session.ThreadedSession(2) as session:
    /// ...     rows = session.scatter(numpy.arange(4).reshape(2, 2))
    /// ...     back = numpy.zeros(4, int)
    /// ...     session.copy_from_first(back, session.gather_to_first(rows))
    /// ...     session.sync(0)
    /// ...     back.tolist()
    /// [0, 1, 2, 3]
    fn copy_from_first(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        source: &Bound<'_, PyRegister>,
    ) -> PyResult<()> {
        let (tensor, source) = (import::tensor(array, Access::Write)?, source.get().register(py)?);
        let session = self.home.session(py)?;
        pausing(py, |pause| session.copy_from_first_pausing(&tensor, source, pause))
    }

    /// Send an array to all workers: to the first ones of the scope, and from there on. Each has it in `target`, whose
    /// array is written in place, or in an array of its own. Does not wait.
    ///
    /// The scope of an operation is each `group`, or the `world`, which is all workers together. What does not fit, in
    /// dtype or number of elements, on whichever worker, fails on all of them before anything is written, and says so
    /// at the next wait.
    ///
    /// >>> import numpy, sheave.session
    /// >>> with sheave.session.ThreadedSession(2) as session:
    /// ...     session.broadcast(numpy.arange(3)).get(worker=1).tolist()
    /// [0, 1, 2]
    #[pyo3(signature = (array, target = None, *, scope = "group"))]
    fn broadcast(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        target: Option<&Bound<'_, PyRegister>>,
        scope: &str,
    ) -> PyResult<PyRegister> {
        let (tensor, scope) = (import::tensor(array, Access::Read)?, Scope::from_name(scope).or_raise(py)?);
        let group_size = self.home.session(py)?.group_size();
        let args = Args::new().value(scope.name()).placed(&tensor, scope.firsts(), group_size);
        self.together(py, "sheave.broadcast_from_first", args, target)
    }

    /// Send what the first workers of the scope have in `source` to the others of it, as `broadcast` does. What those
    /// have there is not looked at.
    ///
    /// >>> import numpy, sheave.session
    /// >>> with sheave.session.ThreadedSession(2) as session:
    /// ...     first = session.copy_to_first(numpy.arange(3))
    /// ...     session.broadcast_from_first(first).get(worker=1).tolist()
    /// [0, 1, 2]
    #[pyo3(signature = (source, target = None, *, scope = "group"))]
    fn broadcast_from_first(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyRegister>,
        target: Option<&Bound<'_, PyRegister>>,
        scope: &str,
    ) -> PyResult<PyRegister> {
        self.moved(py, "sheave.broadcast_from_first", source, target, scope)
    }

    /// Send each worker its row of an array: row i to worker i, or in the scope of groups to the i-th of each. It has
    /// that in `target`, of any shape, or in an array of the row's shape. Does not wait; fails as `broadcast` does.
    ///
    /// Raises InvalidArgument if there is not one row for each worker of an operation.
    ///
    /// >>> import numpy, sheave.session
    /// >>> with sheave.session.ThreadedSession(2) as session:
    /// ...     session.scatter(numpy.arange(4).reshape(2, 2)).get(worker=1).tolist()
    /// [2, 3]
    #[pyo3(signature = (array, target = None, *, scope = "group"))]
    fn scatter(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        target: Option<&Bound<'_, PyRegister>>,
        scope: &str,
    ) -> PyResult<PyRegister> {
        let (tensor, scope) = (import::tensor(array, Access::Read)?, Scope::from_name(scope).or_raise(py)?);
        let (session, target) = (self.home.session(py)?, held_by(py, target)?);
        pausing(py, |pause| session.scatter_pausing(&tensor, target, scope, pause)).map(|made| self.register(made))
    }

    /// Send each worker of the scope its part of what the first one has in `source`, in the order of the elements,
    /// whose number it divides. It has that in `target`, of any shape, or in an array of a row's shape if there is one
    /// row for each worker, and else in a flat one. Does not wait; fails as `broadcast` does.
    ///
    /// >>> import numpy, sheave.session
    /// >>> with sheave.session.ThreadedSession(2) as session:
    /// ...     first = session.copy_to_first(numpy.arange(6).reshape(3, 2))
    /// ...     session.scatter_from_first(first).get(worker=1).tolist()
    /// [3, 4, 5]
    #[pyo3(signature = (source, target = None, *, scope = "group"))]
    fn scatter_from_first(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyRegister>,
        target: Option<&Bound<'_, PyRegister>>,
        scope: &str,
    ) -> PyResult<PyRegister> {
        self.moved(py, "sheave.scatter_from_first", source, target, scope)
    }

    /// Send what all workers of the scope have in `source` to the first one, one behind the other. It has that in
    /// `target`, or in an array with one row for each; the others hold None in the register that is returned. Does not
    /// wait; fails as `broadcast` does.
    ///
    /// >>> import numpy, sheave.session
    /// >>> with sheave.session.ThreadedSession(2) as session:
    /// ...     own = session.call(lambda: numpy.full(2, sheave.session.worker().id))
    /// ...     session.gather_to_first(own).get().tolist()
    /// [[0, 0], [1, 1]]
    #[pyo3(signature = (source, target = None, *, scope = "group"))]
    fn gather_to_first(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyRegister>,
        target: Option<&Bound<'_, PyRegister>>,
        scope: &str,
    ) -> PyResult<PyRegister> {
        self.moved(py, "sheave.gather_to_first", source, target, scope)
    }

    /// Send what each worker of the scope has in `source` to all of it, one behind the other. Each has that in
    /// `target`, or in an array with one row for each worker. Does not wait; fails as `broadcast` does.
    ///
    /// >>> import numpy, sheave.session
    /// >>> with sheave.session.ThreadedSession(2) as session:
    /// ...     own = session.call(lambda: numpy.full(2, sheave.session.worker().id))
    /// ...     session.all_gather(own).get(worker=1).tolist()
    /// [[0, 0], [1, 1]]
    #[pyo3(signature = (source, target = None, *, scope = "group"))]
    fn all_gather(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyRegister>,
        target: Option<&Bound<'_, PyRegister>>,
        scope: &str,
    ) -> PyResult<PyRegister> {
        self.moved(py, "sheave.all_gather", source, target, scope)
    }

    /// Reduce what the workers of the scope have in `source`, element by element. Each has the result in `target`,
    /// which may be the same register, or in an array of its own. Does not wait; fails as `broadcast` does.
    ///
    /// op is `sum`, `prod`, `min`, `max` or `avg`, in the dtype of the arrays: sums and products of integers wrap
    /// around, and their average is the sum divided and cut off towards zero.
    ///
    /// >>> import numpy, sheave.session
    /// >>> with sheave.session.ThreadedSession(2) as session:
    /// ...     own = session.call(lambda: numpy.full(2, sheave.session.worker().id + 1.0))
    /// ...     session.all_reduce(own, op="avg").get(worker=1).tolist()
    /// [1.5, 1.5]
    #[pyo3(signature = (source, target = None, op = "sum", *, scope = "group"))]
    fn all_reduce(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyRegister>,
        target: Option<&Bound<'_, PyRegister>>,
        op: &str,
        scope: &str,
    ) -> PyResult<PyRegister> {
        let (operator, scope) = (operator(op, py)?, Scope::from_name(scope).or_raise(py)?);
        let args = Args::new().value(scope.name()).value(operator.name()).register(source.get().register(py)?);
        self.together(py, "sheave.all_reduce", args, target)
    }

    /// Send what one worker has in `source` to another one, which has it in `target`, or in an array of its own; all
    /// others go on, and hold None in the register that is returned. Does not wait; fails as `broadcast` does, on the
    /// two alone.
    ///
    /// Raises InvalidArgument if sender and receiver are not two workers of the session.
    ///
    /// >>> import numpy, sheave.session
    /// >>> with sheave.session.ThreadedSession(3) as session:
    /// ...     own = session.call(lambda: numpy.full(2, sheave.session.worker().id))
    /// ...     session.send_between(2, own, 0).get().tolist()
    /// [2, 2]
    #[pyo3(signature = (sender, source, receiver, target = None))]
    fn send_between(
        &self,
        py: Python<'_>,
        sender: i64,
        source: &Bound<'_, PyRegister>,
        receiver: i64,
        target: Option<&Bound<'_, PyRegister>>,
    ) -> PyResult<PyRegister> {
        let (from, to) = (self.home.worker(py, sender)?, self.home.worker(py, receiver)?);
        let (session, source, target) = (self.home.session(py)?, source.get().register(py)?, held_by(py, target)?);
        pausing(py, |pause| session.send_between_pausing(from, source, to, target, pause))
            .map(|made| self.register(made))
    }

    /// Send what each worker has in `source` to the one of the same number in the next group, which has it in `target`,
    /// or in an array of its own. Those of the last group send nothing; those of the first get nothing, and hold None
    /// in the register that is returned. Does not wait; fails as `broadcast` does, on the two ends of each message.
    ///
    /// >>> import numpy, sheave.session
    /// >>> with sheave.session.ThreadedSession(2, num_groups=2) as session:
    /// ...     own = session.call(lambda: numpy.full(2, sheave.session.worker().id))
    /// ...     session.pass_to_next_group(own).get(worker=1).tolist()
    /// [0, 0]
    #[pyo3(signature = (source, target = None))]
    fn pass_to_next_group(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyRegister>,
        target: Option<&Bound<'_, PyRegister>>,
    ) -> PyResult<PyRegister> {
        self.together(py, "sheave.pass_to_next_group", Args::new().register(source.get().register(py)?), target)
    }

    /// Have operations end that take longer than so many seconds, from the next command on; None is no limit, as at the
    /// beginning. The first worker that gives up says who is missing (DeadlineExceeded), and that breaks the operations
    /// of the scope until `renew_collectives`. Does not wait.
    ///
    /// >>> import sheave.session
    /// >>> with sheave.session.ThreadedSession(2) as session:
    /// ...     session.limit_collectives(30)
    fn limit_collectives(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let nanoseconds = span(timeout)?.map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        self.together(py, "sheave.limit_collectives", Args::new().value(nanoseconds), None).map(drop)
    }

    /// Have the workers make the groups of their operations again, where an operation has broken them: by a limit, or
    /// because functions have called different ones. Does not wait.
    ///
    /// >>> import sheave.session
    /// >>> with sheave.session.ThreadedSession(2) as session:
    /// ...     session.renew_collectives()
    fn renew_collectives(&self, py: Python<'_>) -> PyResult<()> {
        self.together(py, "sheave.renew_collectives", Args::new(), None).map(drop)
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
        env: Option<HashMap<OsString, OsString>>,
        output: &str,
    ) -> PyResult<PyClassInitializer<Self>> {
        let workers = counted(py, "num_workers", num_workers)?;
        let groups = counted(py, "num_groups", num_groups)?;
        let start = Start::new(py, entrypoint, [workers, groups], env, output, false)?;
        let Start { program, command, entrypoint, job } = start;
        let of_worker = Start::of_worker(command, entrypoint);
        let session = enter(py, None, |_, interrupt| {
            Session::processes_interruptible(workers, groups, job, of_worker, interrupt)
        })?;
        let session = PySession::prepared(py, session, program.bind(py))?;
        Ok(PyClassInitializer::from(session).add_subclass(Self))
    }
}

/// A session of several nodes, each with so many workers: this program is the first node, and the others are started by
/// `python -m sheave.session_node HOST PORT NUM_WORKERS`, on any machines, before or after. Worker w is on node
/// w // num_workers_per_node.
///
/// The workers of this node are those of a `ProcessSession` with this entrypoint, env and output. Those of the other
/// nodes have the program too, where they find it: the script under the same path, or the module that was run. With an
/// entrypoint they import that module instead. Where it is missing this raises, and says on which node.
///
/// - host, port: where the nodes meet, an address of this machine. Addresses that others reach need SHEAVE_INSECURE=1,
///   for what is said there is not encrypted.
/// - secret: text or bytes of at least 16, the same for all nodes; without one what SHEAVE_SECRET_FILE names, or a file
///   of this user's. Who does not know it is turned away.
///
/// Blocks until all nodes have come, or for SHEAVE_JOIN_TIMEOUT_MS, and lets other threads run; Ctrl-C ends that.
/// Raises as `ProcessSession` does, DeadlineExceeded that says who is missing, and Mismatch for a node with another
/// number of workers.
///
/// >>> import socket, subprocess, sys, sheave.session
/// >>> with socket.create_server(("localhost", 0)) as listener:
/// ...     port = listener.getsockname()[1]
/// >>> node = [sys.executable, "-m", "sheave.session_node", "localhost", str(port), "2"]
/// >>> with subprocess.Popen(node) as other:
/// ...     with sheave.session.SocketSession(2, 2, 1, "localhost", port) as session:
/// ...         session.call(lambda: sheave.session.worker().node).get(worker=3)
/// 1
#[pyclass(name = "SocketSession", module = "sheave.session", extends = PySession, subclass, frozen)]
pub(crate) struct PySocketSession;

#[pymethods]
impl PySocketSession {
    #[new]
    #[pyo3(signature = (
        num_nodes, num_workers_per_node, num_groups, host, port, entrypoint = None, *, env = None, output = "prefix",
        secret = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "Python passes most of them by name")]
    fn new(
        py: Python<'_>,
        num_nodes: i64,
        num_workers_per_node: i64,
        num_groups: i64,
        host: &str,
        port: i64,
        entrypoint: Option<&str>,
        env: Option<HashMap<OsString, OsString>>,
        output: &str,
        secret: Option<Secrecy>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let nodes = counted(py, "num_nodes", num_nodes)?;
        let workers_per_node = counted(py, "num_workers_per_node", num_workers_per_node)?;
        let groups = counted(py, "num_groups", num_groups)?;
        let secret = secret.map(|secret| secret.secret()).transpose().or_raise(py)?;
        let counts = [nodes.saturating_mul(workers_per_node), groups];
        let nodes = Nodes { root: meeting(py, host, port)?, nodes, workers_per_node, groups, secret };
        let Start { program, command, entrypoint, job } = Start::new(py, entrypoint, counts, env, output, true)?;
        let of_worker = Start::of_worker(command, entrypoint);
        let session =
            enter(py, None, |_, interrupt| Session::on_nodes_interruptible(&nodes, job, of_worker, interrupt))?;
        let session = PySession::prepared(py, session, program.bind(py))?;
        Ok(PyClassInitializer::from(session).add_subclass(Self))
    }
}
