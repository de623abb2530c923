//! One exception class per kind of error, each also of the builtin that fits.

use crate::link::PyPeer;
use pyo3::exceptions::{
    PyBufferError, PyConnectionError, PyException, PyInterruptedError, PyLookupError, PyOSError, PyPermissionError,
    PyRuntimeError, PyTimeoutError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use sheave_base::{Error, ErrorKind, Result};

/// The classes in the order of [`ErrorKind::ALL`].
static CLASSES: PyOnceLock<Vec<Py<PyType>>> = PyOnceLock::new();

/// What every instance carries; the class has `None` for each.
const FIELDS: [&str; 7] = ["kind", "peer", "op", "group", "seq", "elapsed", "hint"];

/// Makes the classes and adds them to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let base = class(py, "SheaveError", &[py.get_type::<PyException>()], "Anything that sheave can fail with.")?;
    for field in FIELDS {
        base.setattr(field, py.None())?;
    }
    module.add("SheaveError", &base)?;
    let mut classes = Vec::new();
    for kind in ErrorKind::ALL {
        let name = format!("{kind:?}");
        let mut bases = vec![base.clone()];
        bases.extend(builtin(py, kind));
        let made = class(py, &name, &bases, kind.phrase())?;
        made.setattr("kind", &name)?;
        module.add(name.as_str(), &made)?;
        classes.push(made.unbind());
    }
    // A second import in the same process (another module object) keeps the classes of the first.
    let _ = CLASSES.set(py, classes);
    Ok(())
}

fn class<'py>(py: Python<'py>, name: &str, bases: &[Bound<'py, PyType>], text: &str) -> PyResult<Bound<'py, PyType>> {
    let contents = PyDict::new(py);
    contents.set_item("__module__", "sheave")?;
    contents.set_item("__doc__", text)?;
    let made = py.get_type::<PyType>().call1((name, PyTuple::new(py, bases)?, contents))?;
    Ok(made.cast_into()?)
}

/// The builtin that people catch for this kind.
fn builtin(py: Python<'_>, kind: ErrorKind) -> Option<Bound<'_, PyType>> {
    use ErrorKind as Kind;
    match kind {
        Kind::PeerLost | Kind::DeclaredDead | Kind::Protocol => Some(py.get_type::<PyConnectionError>()),
        Kind::DeadlineExceeded => Some(py.get_type::<PyTimeoutError>()),
        Kind::Interrupted => Some(py.get_type::<PyInterruptedError>()),
        Kind::Mismatch | Kind::InvalidArgument | Kind::AlreadyExists => Some(py.get_type::<PyValueError>()),
        Kind::Unsupported => Some(py.get_type::<PyTypeError>()),
        Kind::NotFound => Some(py.get_type::<PyLookupError>()),
        Kind::Unauthenticated | Kind::NotPermitted => Some(py.get_type::<PyPermissionError>()),
        Kind::BufferInUse => Some(py.get_type::<PyBufferError>()),
        Kind::Io => Some(py.get_type::<PyOSError>()),
        Kind::LimitExceeded | Kind::Closed | Kind::Forked | Kind::Remote | Kind::Internal => {
            Some(py.get_type::<PyRuntimeError>())
        }
        _ => None,
    }
}

/// The exception for an error.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    build(py, error).unwrap_or_else(|failure| failure)
}

/// The exception that Python gets: of a signal that has come too, where a peer is lost, such as Ctrl-C, which ends the
/// peers of a job as well. Left pending, it would strike the interpreter while that prints the error.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let signalled = if error.kind() == ErrorKind::PeerLost { py.check_signals().err() } else { None };
    signalled.unwrap_or_else(|| to_python(py, error))
}

fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let index = ErrorKind::ALL.iter().position(|kind| *kind == error.kind());
    let class = CLASSES.get(py).zip(index).and_then(|(classes, index)| classes.get(index));
    let Some(class) = class else { return Ok(PyRuntimeError::new_err(error.to_string())) };
    let raised = class.bind(py).call1((error.to_string(),))?;
    raised.setattr("peer", error.about().cloned().map(PyPeer::from))?;
    raised.setattr("op", error.operation_name())?;
    raised.setattr("group", error.group_name())?;
    raised.setattr("seq", error.at_sequence())?;
    raised.setattr("elapsed", error.after().map(|elapsed| elapsed.as_secs_f64()))?;
    raised.setattr("hint", error.advice())?;
    Ok(PyErr::from_value(raised))
}

/// Turns an error into the exception that Python sees.
pub(crate) trait OrRaise<T> {
    /// The value, or the exception for the error.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raised(py, &error))
    }
}
