//! New arrays for results, of the kind that was put in.

use crate::errors::OrRaise;
use crate::tensor::PyTensor;
use pyo3::prelude::*;
use sheave_base::{ErrorKind, Result};
use sheave_tensor::{Arena, Dtype, Shape, Tensor};

/// A new tensor in the arena, or in private memory while that is full; and the same as whatever `model` is: a numpy
/// array, a torch tensor, or else a `sheave.Tensor`. Its elements are whatever lay there.
pub(crate) fn array(
    model: &Bound<'_, PyAny>,
    arena: &Arena,
    dtype: Dtype,
    dimensions: &[u64],
) -> PyResult<(Tensor, Py<PyAny>)> {
    let py = model.py();
    let tensor = empty(arena, dtype, dimensions).or_raise(py)?;
    let ours = Bound::new(py, PyTensor::new(tensor.clone()))?;
    let array = match kind(model)? {
        Kind::Numpy => PyTensor::numpy(&ours)?,
        Kind::Torch => py.import("torch")?.call_method1("from_dlpack", (ours,))?,
        Kind::Other => ours.into_any(),
    };
    Ok((tensor, array.unbind()))
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
    Other,
}

/// What an array is, without importing anything that the program has not imported.
fn kind(array: &Bound<'_, PyAny>) -> PyResult<Kind> {
    let modules = array.py().import("sys")?.getattr("modules")?;
    let is_a = |module: &str, class: &str| -> PyResult<bool> {
        let module = modules.call_method1("get", (module,))?;
        if module.is_none() { Ok(false) } else { array.is_instance(&module.getattr(class)?) }
    };
    if is_a("numpy", "ndarray")? {
        return Ok(Kind::Numpy);
    }
    Ok(if is_a("torch", "Tensor")? { Kind::Torch } else { Kind::Other })
}
