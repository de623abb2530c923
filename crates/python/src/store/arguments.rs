//! Keys, values and settings out of Python.

use crate::errors::{self, OrRaise};
use crate::import::{self, Access};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};
use sheave_base::{Error, ErrorKind, Result};
use sheave_store::{Compression, Key, OnWorkerLoss, Optimizer, Updater};
use sheave_tensor::Tensor;

/// What Python says of keys and values: two lists of one length.
pub(crate) type Objects<'py> = Vec<Bound<'py, PyAny>>;

/// A whole number, whichever integer type it has, or a text.
pub(crate) fn key(given: &Bound<'_, PyAny>) -> PyResult<Key> {
    let py = given.py();
    if let Ok(text) = given.cast::<PyString>() {
        return Ok(Key::Str(text.to_string()));
    }
    if given.is_instance_of::<PyBool>() || !given.hasattr("__index__")? {
        let what = format!("a {} is no key of a store", given.get_type().name()?);
        return Err(errors::to_python(py, &Error::new(ErrorKind::Unsupported, what).hint("keys are int or str")));
    }
    match given.extract() {
        Ok(number) => Ok(Key::Int(number)),
        Err(_) => {
            let what = format!("the key {} does not fit 64 bits", given.str()?);
            Err(errors::to_python(py, &Error::new(ErrorKind::InvalidArgument, what)))
        }
    }
}

/// As [`key`], of several.
pub(crate) fn keys(given: &[Bound<'_, PyAny>]) -> PyResult<Vec<Key>> {
    given.iter().map(key).collect()
}

/// Keys and the arrays that belong to them.
pub(crate) fn pairs(
    py: Python<'_>,
    given: &[Bound<'_, PyAny>],
    arrays: &[Bound<'_, PyAny>],
    access: Access,
) -> PyResult<Vec<(Key, Tensor)>> {
    same_length(py, given.len(), arrays.len())?;
    given.iter().zip(arrays).map(|(given, array)| Ok((key(given)?, import::tensor(array, access)?))).collect()
}

/// Refuses lists that do not belong together.
pub(crate) fn same_length(py: Python<'_>, keys: usize, others: usize) -> PyResult<()> {
    if keys == others {
        return Ok(());
    }
    let what = format!("{keys} keys and {others} values were given");
    Err(errors::to_python(py, &Error::new(ErrorKind::InvalidArgument, what)))
}

/// A compression by its name, with another threshold if one is given.
pub(crate) fn compression(name: &str, threshold: Option<f32>) -> Result<Compression> {
    let compression = Compression::parse(name)?;
    threshold.map_or(Ok(compression), |threshold| compression.with_threshold(threshold))
}

/// An updater by its name: one of the store's own, or one that is registered where the values are.
pub(crate) fn updater(name: &str) -> Updater {
    match name {
        "assign" => Updater::Assign,
        "sum" => Updater::Sum,
        _ => Updater::Named(name.to_owned()),
    }
}

/// The optimizer that `sheave.optim` has written down.
pub(crate) fn optimizer(py: Python<'_>, document: &str) -> PyResult<Optimizer> {
    let read = serde_json::from_str(document).map_err(|error| {
        Error::new(ErrorKind::InvalidArgument, format!("the optimizer cannot be read: {error}"))
            .operation("set_optimizer")
            .hint("make it with a class of sheave.optim")
    });
    read.or_raise(py)
}
/// What becomes of a store whose worker dies.
pub(crate) fn on_worker_loss(name: &str) -> Result<OnWorkerLoss> {
    match name {
        "fail" => Ok(OnWorkerLoss::Fail),
        "shrink" => Ok(OnWorkerLoss::Shrink),
        _ => Err(Error::new(ErrorKind::InvalidArgument, format!("on_worker_loss is {name:?}"))
            .hint("give \"fail\" or \"shrink\"")),
    }
}
