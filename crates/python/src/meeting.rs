//! A store of Python's through which the processes of a job learn where they meet.

use crate::life;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::Meet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A store of Python's, behind the helper that waits for it. What it raises is kept, and raised by whoever joins.
pub(crate) struct PyMeet {
    helper: Py<PyAny>,
    name: String,
    is_fresh: bool,
    raised: Arc<Mutex<Option<PyErr>>>,
}

/// What a store has raised.
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// The exception that has ended a join, instead of the error that it was for those below.
    pub(crate) fn or(self, error: PyErr) -> PyErr {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or(error)
    }
}

impl PyMeet {
    pub(crate) fn new(store: &Bound<'_, PyAny>) -> PyResult<(Self, Raised)> {
        let py = store.py();
        let helper = life::below(py, || py.import("sheave.meet")?.getattr("_Asked")?.call1((store,)))?;
        let name = helper.getattr("name")?.extract()?;
        let is_fresh = helper.getattr("is_fresh")?.extract()?;
        let raised = Arc::default();
        Ok((Self { helper: helper.unbind(), name, is_fresh, raised: Arc::clone(&raised) }, Raised(raised)))
    }

    fn ask<T>(&self, what: &str, act: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        Python::attach(|py| {
            act(self.helper.bind(py)).map_err(|raised| {
                let error = Error::new(ErrorKind::Io, format!("{} has failed to {what}: {raised}", self.name));
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(raised);
                error
            })
        })
    }
}

impl fmt::Debug for PyMeet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PyMeet({})", self.name)
    }
}

impl Meet for PyMeet {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.ask("set a key", |helper| helper.call_method1("set", (key, PyBytes::new(helper.py(), value))).map(drop))
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>> {
        self.ask("get a key", |helper| helper.call_method1("get", (key, timeout.as_secs_f64()))?.extract())
    }

    fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    fn remove(&self, key: &str, value: &[u8]) -> Result<()> {
        Python::attach(|py| {
            let helper = self.helper.bind(py);
            // A store that cannot remove keeps what leads nowhere.
            let removed = helper.call_method1("remove", (key, PyBytes::new(py, value)));
            removed.map(drop).map_err(|raised| Error::new(ErrorKind::Io, raised.to_string()))
        })
    }
}
