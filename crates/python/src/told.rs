//! Exceptions of the user's code, as other nodes are told of them.
//!
//! An exception may have been raised because of another one, and that because of a third. Each becomes one cause of the
//! error that is sent, with its class, its text and its own traceback as text, so that whoever reads them needs nothing
//! of this process. Formatting keeps nothing of the frames, and costs nothing where nothing fails.

use crate::value::pickling;
use crate::{errors, life};
use pyo3::exceptions::PyBaseException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use sheave_base::{Error, ErrorKind, UserError};

/// Exceptions that are looked at: a chain may be a circle. The first and the last are told in any case.
const EXCEPTIONS_MAX: usize = 64;

/// Returns what others are told: `what`, the exception and the line that raised it, caused by the exception.
pub(crate) fn told(py: Python<'_>, error: &PyErr, what: &str) -> Error {
    told_with(py, error, what, |_| None)
}

/// As [`told`], with the exception itself for others that trust this process.
pub(crate) fn told_pickled(py: Python<'_>, error: &PyErr, what: &str) -> Error {
    // Whose class is sheave's is told by its kind, and what it says of a peer is not said of this one.
    let is_own = errors::kind_of(error.value(py)).is_some();
    let pack = |exception: &Bound<'_, PyBaseException>| {
        let packed = life::below(py, || pickling(py)?.call_method1("pack_exception", (exception,)));
        packed.and_then(|packed| packed.extract::<Option<Vec<u8>>>()).ok().flatten()
    };
    told_with(py, error, what, |exception| if is_own { None } else { pack(exception) })
}

/// Returns `what`, the exception and the line that raised it, without what it was caused by.
pub(crate) fn told_shortly(py: Python<'_>, error: &PyErr, what: &str) -> Error {
    let place = last_line(py, error).unwrap_or_default();
    Error::new(ErrorKind::Remote, format!("{what}: {error}{place}"))
}

fn told_with(
    py: Python<'_>,
    error: &PyErr,
    what: &str,
    pickled: impl Fn(&Bound<'_, PyBaseException>) -> Option<Vec<u8>>,
) -> Error {
    let told = told_shortly(py, error, what);
    match chain(py, error, pickled) {
        Some(cause) => told.cause(cause),
        None => told,
    }
}

/// Returns the exception, caused by what it was raised because of.
fn chain(
    py: Python<'_>,
    error: &PyErr,
    pickled: impl Fn(&Bound<'_, PyBaseException>) -> Option<Vec<u8>>,
) -> Option<Error> {
    let mut links = Vec::new();
    let mut next = Some(error.clone_ref(py));
    while let Some(error) = next.filter(|_| links.len() < EXCEPTIONS_MAX) {
        // With its traceback, which may be known beside it alone until somebody handles it.
        let exception = error.clone_ref(py).into_value(py);
        let pickled = if links.is_empty() { pickled(exception.bind(py)) } else { None };
        links.push(link(py, exception.bind(py), pickled));
        next = reason(py, &error);
    }
    links.into_iter().rev().reduce(|cause, link| link.cause(cause))
}

/// Returns the exception that the interpreter shows before this one.
fn reason(py: Python<'_>, error: &PyErr) -> Option<PyErr> {
    let is_context_hidden = || error.value(py).getattr("__suppress_context__").and_then(|hidden| hidden.is_truthy());
    error.cause(py).or_else(|| error.context(py).filter(|_| is_context_hidden().is_ok_and(|hidden| !hidden)))
}

fn link(py: Python<'_>, exception: &Bound<'_, PyBaseException>, pickled: Option<Vec<u8>>) -> Error {
    let text = exception.str().map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    let traceback = formatted(py, exception).unwrap_or_default();
    let kind = errors::kind_of(exception).unwrap_or(ErrorKind::Remote);
    let user = UserError::new(class(exception).unwrap_or_default(), traceback);
    Error::new(kind, text).user(match pickled {
        Some(pickled) => user.with_pickled(pickled),
        None => user,
    })
}

/// Returns the name of the class, with its module unless that is the builtins'.
fn class(exception: &Bound<'_, PyBaseException>) -> PyResult<String> {
    let class = exception.get_type();
    let (module, name) = (class.module()?.to_string(), class.qualname()?.to_string());
    Ok(if module == "builtins" { name } else { format!("{module}.{name}") })
}

/// Returns the traceback of this exception alone, as the interpreter prints it.
fn formatted(py: Python<'_>, exception: &Bound<'_, PyBaseException>) -> PyResult<String> {
    let alone = PyDict::new(py);
    alone.set_item("chain", false)?;
    let lines = py.import("traceback")?.call_method("format_exception", (exception,), Some(&alone))?;
    let lines: Vec<String> = lines.cast_into::<PyList>()?.extract()?;
    Ok(lines.concat())
}

/// Returns the innermost line of the traceback.
fn last_line(py: Python<'_>, error: &PyErr) -> Option<String> {
    let mut entry = error.traceback(py)?.into_any();
    while let Ok(next) = entry.getattr("tb_next")
        && !next.is_none()
    {
        entry = next;
    }
    let code = entry.getattr("tb_frame").ok()?.getattr("f_code").ok()?;
    let line: u32 = entry.getattr("tb_lineno").ok()?.extract().ok()?;
    let (file, name) = (code.getattr("co_filename").ok()?, code.getattr("co_name").ok()?);
    Some(format!(" (file \"{file}\", line {line}, in {name})"))
}
