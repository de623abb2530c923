//! What workers of sessions are and have: their functions, and who they are.

use super::controller::counted;
use super::held::{PyFunction, PyHeld, from_python, to_python};
use crate::enter::enter;
use crate::errors::OrRaise;
use crate::fleet::{command_of, output_named};
use crate::handlers;
use crate::places::Secrecy;
use crate::told::told_pickled;
use pyo3::prelude::*;
use sheave_base::config::Endpoint;
use sheave_base::{Error, ErrorKind, Result};
use sheave_process::Job;
use sheave_session::{
    Function, Held, Node, Worker, register_function, registered_function, replace_function, unregister_function,
    work_interruptible, work_on_node_interruptible,
};
use std::ffi::OsString;
use std::sync::Once;

/// Keeps what it is given as an object of Python's.
pub(crate) const KEEP: &str = "python.keep";
/// Imports a module.
pub(crate) const IMPORT_MODULE: &str = "python.import_module";
/// Makes a process one of its session's program.
pub(crate) const PREPARE: &str = "python.prepare";

/// Adds the functions to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // Not names that the module offers.
    module.setattr("_session_work", wrap_pyfunction!(work, module)?)?;
    module.setattr("_session_work_on_node", wrap_pyfunction!(work_on_node, module)?)?;
    module.setattr("_session_worker", wrap_pyfunction!(worker, module)?)?;
    module.setattr("_session_register", wrap_pyfunction!(register, module)?)?;
    module.setattr("_session_registered", wrap_pyfunction!(registered, module)?)?;
    module.setattr("_session_unregister", wrap_pyfunction!(unregister, module)?)
}

/// Lets the workers of this process find what the controller itself calls, once.
pub(crate) fn register_own() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        let keep = Function::new(KEEP, |mut arguments| {
            let held = arguments.take_held()?;
            attached("keep", |py| Ok(from_python(&to_python(py, held)?)))
        });
        let import_module = Function::new(IMPORT_MODULE, |mut arguments| {
            let name: String = arguments.take()?;
            attached("import", |py| {
                py.import("importlib")?.call_method1("import_module", (name,))?;
                Ok(Held::default())
            })
        });
        let prepare = Function::new(PREPARE, |mut arguments| {
            let held = arguments.take_held()?;
            attached("the program", |py| {
                // Worker 0 is of the program itself.
                if Worker::current().is_ok_and(|worker| worker.id > 0) {
                    py.import("sheave._session")?.call_method1("prepare", (to_python(py, held)?,))?;
                }
                Ok(Held::default())
            })
        });
        for function in [keep, import_module, prepare] {
            // Their names are not such as are refused.
            let _ = replace_function(function);
        }
    });
}

fn attached(what: &str, act: impl FnOnce(Python<'_>) -> PyResult<Held>) -> Result<Held> {
    handlers::attached(|py| act(py).map_err(|error| told_pickled(py, &error, &format!("{what} raised"))))?
}

/// Who a worker is: `id`, `workers`, `groups`, and of its group the number, `group`, and how many are in it,
/// `group_size`, and of its node the number, `node`, and its own one there, `local_id`. Node 0 is the controller's.
///
/// >>> import sheave.session
/// >>> with sheave.session.ThreadedSession(4, num_groups=2) as session:
/// ...     session.call(lambda: repr(sheave.session.worker())).get(worker=3)
/// '<sheave.session.Worker 3 of 4 (group 1 of 2)>'
#[pyclass(name = "SessionWorker", module = "sheave.session", frozen, get_all)]
pub(crate) struct PySessionWorker {
    /// Its number in the session.
    id: u32,
    /// The workers of the session.
    workers: u32,
    /// The groups that they are divided into.
    groups: u32,
    /// The group that it is in.
    group: u32,
    /// The workers of each group.
    group_size: u32,
    /// The node that it is of.
    node: u32,
    /// Its number among the workers of its node.
    local_id: u32,
}

#[pymethods]
impl PySessionWorker {
    fn __repr__(&self) -> String {
        let Self { id, workers, groups, group, .. } = self;
        format!("<sheave.session.Worker {id} of {workers} (group {group} of {groups})>")
    }
}

/// Who the worker is on whose thread this is called.
#[pyfunction]
fn worker(py: Python<'_>) -> PyResult<PySessionWorker> {
    let worker = Worker::current().or_raise(py)?;
    let (group, group_size) = (worker.group(), worker.group_size());
    let (node, local_id) = (worker.node(), worker.local_id());
    let Worker { id, workers, groups, .. } = worker;
    Ok(PySessionWorker { id, workers, groups, group, group_size, node, local_id })
}

/// Lets the workers of this process find a function.
#[pyfunction]
fn register(py: Python<'_>, name: &str, function: &Bound<'_, PyAny>, replace: bool) -> PyResult<()> {
    if !function.is_callable() {
        let what = format!("a {} is no function; expected a callable", function.get_type().name()?);
        return Err(Error::new(ErrorKind::InvalidArgument, what).operation("register function")).or_raise(py);
    }
    let function = match function.cast_exact::<PyFunction>() {
        Ok(function) => {
            let function = function.get().0.clone();
            let run = function.clone();
            Function::new(name, move |mut arguments| run.call(arguments.take_all().collect::<Result<_>>()?))
        }
        Err(_) => PyHeld::new(function).as_function(name),
    };
    if replace { replace_function(function) } else { register_function(function) }.or_raise(py)
}

/// The function of this process that has this name, if there is one.
#[pyfunction]
fn registered<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    register_own();
    registered_function(name).map(|function| to_python(py, Held::Function(function))).transpose()
}

/// Lets nobody find the function of this name any more.
#[pyfunction]
fn unregister(py: Python<'_>, name: &str) -> PyResult<()> {
    if registered_function(name).is_none() {
        let what = format!("this process has no function \"{name}\"");
        return Err(Error::new(ErrorKind::NotFound, what).operation("unregister function")).or_raise(py);
    }
    unregister_function(name);
    Ok(())
}

/// Is a worker until the session ends.
#[pyfunction]
fn work(py: Python<'_>) -> PyResult<()> {
    register_own();
    enter(py, None, |_, interrupt| work_interruptible(interrupt))
}

/// Is a node of a session until that ends: this thread is its first worker, the others are processes.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "what a command line says")]
fn work_on_node(
    py: Python<'_>,
    host: &str,
    port: i64,
    workers: i64,
    number: Option<u32>,
    secret: Option<Secrecy>,
    output: &str,
) -> PyResult<()> {
    let secret = secret.map(|secret| secret.secret()).transpose().or_raise(py)?;
    let node = Node { root: meeting(py, host, port)?, workers: counted(py, "num_workers", workers)?, number, secret };
    let job = Job::builder().output(output_named(output).or_raise(py)?);
    let words: Vec<OsString> = py.import("sheave._session")?.call_method1("command", (py.None(),))?.extract()?;
    let command = command_of(words).or_raise(py)?;
    register_own();
    enter(py, None, |_, interrupt| work_on_node_interruptible(&node, job, |_| command.clone(), interrupt))
}

/// Where the nodes of a session meet.
pub(crate) fn meeting(py: Python<'_>, host: &str, port: i64) -> PyResult<Endpoint> {
    let refused = |what: String, hint: &'static str| {
        Err(Error::new(ErrorKind::InvalidArgument, what).operation("begin session").hint(hint)).or_raise(py)
    };
    match u16::try_from(port) {
        Ok(port) if port > 0 && Endpoint::is_host(host) => Ok(Endpoint { host: host.to_owned(), port }),
        Ok(port) if port > 0 => {
            refused(format!("host is {host:?}; expected a name or an address"), "give no port there")
        }
        _ => refused(format!("port is {port}; expected 1 to 65535"), "the other nodes have to know it before"),
    }
}
