//! `sheave.particle.ParticleCache`: which models are in the memory of a device.
//!
//! The models themselves stay in a dictionary of Python's, where the collector of cycles sees them; the cache knows
//! their keys and sizes. Moves are made by the thread that acquires, within its call, which says meanwhile where that
//! dictionary is. What a model raises then is raised by the call.

use crate::enter::enter;
use parking_lot::Mutex;
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sheave_base::{Error, ErrorKind, Result};
use sheave_particle::{Cache, CacheOptions, Guard, Policy, Resident};
use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What models are called: numbers, names, or the ids of particles.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    Number(i64),
    Text(String),
    Pair(i64, i64),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Pair(node, number) => write!(f, "{number} of node {node}"),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Name {
    type Error = PyErr;

    fn extract(key: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(number) = key.extract() {
            return Ok(Self::Number(number));
        }
        if let Ok(text) = key.extract() {
            return Ok(Self::Text(text));
        }
        let pair: PyResult<(i64, i64)> = key.extract();
        pair.map(|(node, number)| Self::Pair(node, number)).map_err(|_| {
            let found = key.get_type().name().map_or_else(|_| "it".to_owned(), |name| name.to_string());
            PyTypeError::new_err(format!("a key is an int, a str or the id of a particle, not a {found}"))
        })
    }
}

impl<'py> IntoPyObject<'py> for Name {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Self::Number(number) => number.into_pyobject(py)?.into_any(),
            Self::Text(text) => text.into_pyobject(py)?.into_any(),
            Self::Pair(node, number) => PyTuple::new(py, [node, number])?.into_any(),
        })
    }
}

thread_local! {
    /// The models of the cache that this thread acquires of, and what one of them has raised.
    static MOVING: RefCell<Vec<(Py<PyDict>, Option<PyErr>)>> = const { RefCell::new(Vec::new()) };
}

/// A model of Python's, which knows its size.
pub(crate) struct Model {
    name: Name,
    bytes: AtomicU64,
}

impl Model {
    fn moves(&self, method: &str) -> Result<()> {
        let moved = Python::attach(|py| {
            let models = MOVING.with_borrow(|moving| moving.last().map(|(models, _)| models.clone_ref(py)));
            let model = models.map(|models| models.bind(py).get_item(self.name.clone())).transpose()?.flatten();
            match model {
                Some(model) => model.call_method0(method).map(drop),
                // It is removed while it is parked.
                None => Err(PyKeyError::new_err(self.name.to_string())),
            }
        });
        moved.map_err(|raised| {
            let text = format!("{method} of model {}: {raised}", self.name);
            MOVING.with_borrow_mut(|moving| {
                if let Some((_, place)) = moving.last_mut() {
                    *place = Some(raised);
                }
            });
            Error::new(ErrorKind::Remote, text).operation("acquire")
        })
    }
}

impl Resident for Model {
    fn len_bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    fn bring(&self) -> Result<()> {
        self.moves("bring")
    }

    fn park(&self) -> Result<()> {
        self.moves("park")
    }
}

/// Runs `act`, in which models of this dictionary may move.
fn moving<T>(models: &Bound<'_, PyDict>, act: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    MOVING.with_borrow_mut(|moving| moving.push((models.clone().unbind(), None)));
    let outcome = act();
    let raised = MOVING.with_borrow_mut(Vec::pop).and_then(|(_, raised)| raised);
    match (outcome, raised) {
        (Err(_), Some(raised)) => Err(raised),
        (outcome, _) => outcome,
    }
}

/// Who is in the memory of a device, without the models. `sheave.particle.ParticleCache` is what people use.
#[pyclass(name = "CacheOfModels", module = "sheave.particle", frozen)]
pub(crate) struct PyCache(Cache<Name, Model>);

#[pymethods]
impl PyCache {
    #[new]
    fn new(
        py: Python<'_>,
        device: String,
        particles: Option<usize>,
        bytes: Option<u64>,
        policy: &str,
    ) -> PyResult<Self> {
        let policy = match policy {
            "lru" => Policy::Lru,
            "direct" => Policy::Direct,
            _ => return Err(PyValueError::new_err(format!("policy is {policy:?}; expected \"lru\" or \"direct\""))),
        };
        let cache = Cache::new(CacheOptions { device, particles, bytes, policy });
        cache.map(Self).map_err(|error| crate::errors::to_python(py, &error))
    }

    fn insert(&self, py: Python<'_>, key: Name, bytes: u64) -> PyResult<()> {
        let model = Model { name: key.clone(), bytes: AtomicU64::new(bytes) };
        self.0.insert(key, model).map_err(|error| crate::errors::to_python(py, &error))
    }

    fn acquire(
        &self,
        py: Python<'_>,
        models: &Bound<'_, PyDict>,
        key: Name,
        timeout: Option<f64>,
    ) -> PyResult<PyGuard> {
        let guard =
            moving(models, || enter(py, timeout, |until, interrupt| self.0.acquire_until(&key, until, interrupt)))?;
        PyGuard::new(py, models, key, guard)
    }

    fn try_acquire(&self, py: Python<'_>, models: &Bound<'_, PyDict>, key: Name) -> PyResult<Option<PyGuard>> {
        let guard = moving(models, || enter(py, None, |_, _| self.0.try_acquire(&key)))?;
        guard.map(|guard| PyGuard::new(py, models, key, guard)).transpose()
    }

    fn remove(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.remove(&key.extract()?).map_err(|error| crate::errors::to_python(py, &error))
    }

    fn close(&self) {
        self.0.close();
    }

    fn contains(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(self.0.contains(&key.extract()?))
    }

    fn keys(&self) -> Vec<Name> {
        self.0.keys()
    }

    fn resident(&self) -> Vec<Name> {
        self.0.resident()
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let statistics = self.0.statistics();
        let numbers = PyDict::new(py);
        numbers.set_item("hits", statistics.hits)?;
        numbers.set_item("misses", statistics.misses)?;
        numbers.set_item("evictions", statistics.evictions)?;
        numbers.set_item("failures", statistics.failures)?;
        numbers.set_item("brought_bytes", statistics.brought_bytes)?;
        numbers.set_item("parked_bytes", statistics.parked_bytes)?;
        numbers.set_item("known", statistics.known)?;
        numbers.set_item("resident", statistics.resident)?;
        numbers.set_item("resident_bytes", statistics.resident_bytes)?;
        numbers.set_item("pinned", statistics.pinned)?;
        numbers.set_item("waiting", statistics.waiting)?;
        Ok(numbers)
    }
}

/// A model that stays in the memory of its device until this is released: at the end of a `with` block, which gets the
/// model, by `release`, or when nobody has it any more.
#[pyclass(name = "Guard", module = "sheave.particle", frozen)]
pub(crate) struct PyGuard {
    model: Py<PyAny>,
    guard: Mutex<Option<Guard<Name, Model>>>,
}

impl PyGuard {
    fn new(py: Python<'_>, models: &Bound<'_, PyDict>, key: Name, guard: Guard<Name, Model>) -> PyResult<Self> {
        let text = key.to_string();
        let model = models.get_item(key.into_pyobject(py)?)?.ok_or_else(|| PyKeyError::new_err(text))?;
        Ok(Self { model: model.unbind(), guard: Mutex::new(Some(guard)) })
    }
}

#[pymethods]
impl PyGuard {
    /// The model.
    #[getter]
    fn model(&self, py: Python<'_>) -> Py<PyAny> {
        self.model.clone_ref(py)
    }

    /// Let others have its room. Idempotent; never waits.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        // Asked before it is taken, for the model's code runs.
        let bytes: PyResult<u64> = self.model.bind(py).getattr(intern!(py, "nbytes")).and_then(|bytes| bytes.extract());
        let Some(guard) = self.guard.lock().take() else { return Ok(()) };
        if let Ok(bytes) = &bytes {
            guard.bytes.store(*bytes, Relaxed);
        }
        drop(guard);
        bytes.map(drop)
    }

    fn __enter__(&self, py: Python<'_>) -> Py<PyAny> {
        self.model.clone_ref(py)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.release(py)
    }
}
