//! New arrays for results, of the kind that was put in.

use crate::errors::OrRaise;
use crate::life;
use crate::tensor::PyTensor;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use sheave_base::{ErrorKind, Result};
use sheave_tensor::{Arena, Dtype, Shape, Tensor};

/// What Python gets for what an operation fills.
pub(crate) enum Given {
    /// This array.
    Now(Py<PyAny>),
    /// A jax array over this tensor, once it is filled: jax takes no array to change, not even from the start.
    Jax(Py<PyTensor>),
}

impl Given {
    /// The array, now that the operation has ended.
    pub(crate) fn done(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Given::Now(array) => Ok(array),
            Given::Jax(tensor) => {
                let made = life::below(py, || py.import("jax.numpy")?.call_method1("from_dlpack", (tensor,)))?;
                Ok(made.unbind())
            }
        }
    }
}

/// A new tensor in the arena, or in private memory while that is full; and the same as whatever `model` is: a numpy
/// array, a torch tensor, a jax array, or else a `sheave.Tensor`. Its elements are whatever lay there.
pub(crate) fn array(
    model: &Bound<'_, PyAny>,
    arena: &Arena,
    dtype: Dtype,
    dimensions: &[u64],
) -> PyResult<(Tensor, Given)> {
    let py = model.py();
    let tensor = empty(arena, dtype, dimensions).or_raise(py)?;
    let ours = Bound::new(py, PyTensor::new(tensor.clone()))?;
    let given = match kind(model)? {
        Kind::Numpy => Given::Now(PyTensor::numpy(&ours)?.unbind()),
        Kind::Torch => {
            let made = life::below(py, || py.import("torch")?.call_method1("from_dlpack", (ours,)))?;
            Given::Now(made.unbind())
        }
        Kind::Jax => Given::Jax(ours.unbind()),
        Kind::Other => Given::Now(ours.into_any().unbind()),
    };
    Ok((tensor, given))
}

/// A tensor in the arena, or in private memory while that is full.
pub(crate) fn empty(arena: &Arena, dtype: Dtype, dimensions: &[u64]) -> Result<Tensor> {
    match Tensor::empty(arena, dtype, Shape::new(dimensions)?) {
        Err(error) if error.kind() == ErrorKind::LimitExceeded => Tensor::private(dtype, Shape::new(dimensions)?),
        made => made,
    }
}

enum Kind {
    Numpy,
    Torch,
    Jax,
    Other,
}

fn kind(array: &Bound<'_, PyAny>) -> PyResult<Kind> {
    if is_a(array, "numpy", "ndarray")? {
        return Ok(Kind::Numpy);
    }
    if is_torch(array)? {
        return Ok(Kind::Torch);
    }
    Ok(if is_jax(array)? { Kind::Jax } else { Kind::Other })
}

/// Whether it is a tensor of torch.
pub(crate) fn is_torch(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    /// Looked up once: this is asked of every torch tensor that goes in.
    static TENSOR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = array.py();
    if TENSOR.get(py).is_none() {
        let Some(torch) = loaded(py, "torch")? else { return Ok(false) };
        let _ = TENSOR.set(py, torch.getattr("Tensor")?.cast_into::<PyType>()?.unbind());
    }
    TENSOR.get(py).map_or(Ok(false), |tensor| array.is_instance(tensor.bind(py)))
}

/// Whether it is an array of jax, which nobody may write.
pub(crate) fn is_jax(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    is_a(array, "jax", "Array")
}

/// What an array is, without importing anything that the program has not imported.
fn is_a(array: &Bound<'_, PyAny>, module: &str, class: &str) -> PyResult<bool> {
    match loaded(array.py(), module)? {
        Some(module) => array.is_instance(&module.getattr(class)?),
        None => Ok(false),
    }
}

/// A module, if the program has imported it.
fn loaded<'py>(py: Python<'py>, module: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    let modules = py.import("sys")?.getattr("modules")?;
    let module = modules.call_method1("get", (module,))?;
    Ok(Some(module).filter(|module| !module.is_none()))
}
