//! One exception class per kind of error, each also of the builtin that fits.
//!
//! An error with causes is an exception with causes: each is the `__cause__` of the one before it. What a cause tells
//! in several lines, such as the traceback of user code on another node, is a note of its exception, so that the
//! interpreter prints it with the traceback of this process. It is text; what has come from another node is unpickled
//! only where a caller asks for the exception itself ([`original`]), which it does of members that it trusts.

use crate::life;
use crate::link::PyPeer;
use crate::value::pickling;
use pyo3::exceptions::{
    PyBaseException, PyBufferError, PyConnectionError, PyException, PyInterruptedError, PyLookupError, PyOSError,
    PyPermissionError, PyRuntimeError, PyTimeoutError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};
use sheave_base::{Error, ErrorKind, ProcessEnd, Result, UserError};

/// The classes in the order of [`ErrorKind::ALL`].
static CLASSES: PyOnceLock<Vec<Py<PyType>>> = PyOnceLock::new();

/// What every instance carries; the class has `None` for each.
const FIELDS: [&str; 11] = [
    "kind",
    "peer",
    "op",
    "group",
    "seq",
    "elapsed",
    "hint",
    "remote_class",
    "remote_traceback",
    "exit_status",
    "last_lines",
];

/// Makes the classes and adds them to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let base = class(py, "SheaveError", &[py.get_type::<PyException>()], "Anything that sheave can fail with.")?;
    for field in FIELDS {
        base.setattr(field, py.None())?;
    }
    module.add("SheaveError", &base)?;
    let mut classes: Vec<Py<PyType>> = Vec::new();
    for kind in ErrorKind::ALL.iter().copied() {
        let name = format!("{kind:?}");
        let bases = match more_general(kind).and_then(|general| classes.get(position(general)?)) {
            Some(general) => vec![general.bind(py).clone()],
            None => std::iter::once(base.clone()).chain(builtin(py, kind)).collect(),
        };
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

/// The kind of which this one is a special case, which stands before it.
fn more_general(kind: ErrorKind) -> Option<ErrorKind> {
    (kind == ErrorKind::WorkerDied).then_some(ErrorKind::PeerLost)
}

fn position(kind: ErrorKind) -> Option<usize> {
    ErrorKind::ALL.iter().position(|other| *other == kind)
}

/// The kind of an exception that is one of sheave's.
pub(crate) fn kind_of(exception: &Bound<'_, PyBaseException>) -> Option<ErrorKind> {
    let classes = CLASSES.get(exception.py())?;
    let is_one = |class: &Py<PyType>| exception.is_instance(class.bind(exception.py())).unwrap_or(false);
    // Special cases stand behind what they are cases of.
    ErrorKind::ALL.get(classes.iter().rposition(is_one)?).copied()
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
        Kind::LimitExceeded | Kind::Closed | Kind::Forked | Kind::Remote | Kind::Internal | Kind::Deadlock => {
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
    let signalled = if error.kind().is_loss() { py.check_signals().err() } else { None };
    signalled.unwrap_or_else(|| to_python(py, error))
}

/// The exception for an error, of a class that is more special than that of its kind.
pub(crate) fn raised_as(error: &Error, class: &Bound<'_, PyType>) -> PyErr {
    exception_of(error, class).map_or_else(|failure| failure, PyErr::from_value)
}

/// The exception of the user's own that an error of a call was caused by on another node, caused by the error in turn,
/// if it was sent along and can be rebuilt. One that ends programs is not raised here.
pub(crate) fn original(py: Python<'_>, error: &Error) -> Option<PyErr> {
    let pickled = error.causes().next()?.user_error()?.pickled()?;
    let data = PyBytes::new(py, pickled);
    // Its class may exist on that node alone; then the error says all that is known.
    let original = life::below(py, || pickling(py)?.call_method1("unpack_exception", (data,))).ok()?;
    if !original.is_instance_of::<PyException>() {
        return None;
    }
    original.setattr("__cause__", to_python(py, error).into_value(py)).ok()?;
    Some(PyErr::from_value(original))
}

/// The exception of the error, caused by that of its cause, and so on.
fn build(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let links: Vec<&Error> = std::iter::once(error).chain(error.causes()).collect();
    let mut cause: Option<Bound<'_, PyAny>> = None;
    // Of the first one of them that has some.
    let mut traceback = None;
    for link in links.into_iter().rev() {
        traceback = link.user_error().map(UserError::traceback).filter(|text| !text.is_empty()).or(traceback);
        let raised = exception(py, link)?;
        raised.setattr("remote_traceback", traceback)?;
        if let Some(cause) = cause {
            raised.setattr("__cause__", cause)?;
        }
        cause = Some(raised);
    }
    Ok(cause.map_or_else(|| PyRuntimeError::new_err(error.to_string()), PyErr::from_value))
}

/// The exception of one error, without its causes.
fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let class = CLASSES.get(py).and_then(|classes| classes.get(position(error.kind())?));
    let Some(class) = class else { return Ok(PyRuntimeError::new_err(error.to_string()).value(py).clone().into_any()) };
    exception_of(error, class.bind(py))
}

fn exception_of<'py>(error: &Error, class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
    let raised = class.call1((error.to_string(),))?;
    raised.setattr("peer", error.about().cloned().map(PyPeer::from))?;
    raised.setattr("op", error.operation_name())?;
    raised.setattr("group", error.group_name())?;
    raised.setattr("seq", error.at_sequence())?;
    raised.setattr("elapsed", error.after().map(|elapsed| elapsed.as_secs_f64()))?;
    raised.setattr("hint", error.advice())?;
    raised.setattr("remote_class", error.user_error().map(UserError::class))?;
    raised.setattr("exit_status", error.process_end().and_then(ProcessEnd::status))?;
    raised.setattr("last_lines", error.process_end().map(ProcessEnd::last_lines))?;
    for note in notes(error) {
        raised.call_method1("add_note", (note,))?;
    }
    Ok(raised)
}

/// What the line of an error does not tell.
fn notes(error: &Error) -> impl Iterator<Item = String> {
    let place = error.happened_on().map_or_else(String::new, |origin| format!(" on {origin}"));
    let traceback = error.user_error().map(UserError::traceback).filter(|text| !text.is_empty());
    let last_lines = error.process_end().map(ProcessEnd::last_lines).filter(|text| !text.is_empty());
    let left_out = Some(error.left_out()).filter(|count| *count > 0);
    let notes = [
        traceback.map(|text| format!("raised{place}:\n{}", text.trim_end())),
        last_lines.map(|text| format!("its last lines:\n{}", text.trim_end())),
        left_out.map(|count| format!("{count} causes between this one and the next are left out")),
    ];
    notes.into_iter().flatten()
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
