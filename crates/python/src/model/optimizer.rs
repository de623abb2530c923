//! An optimizer of `sheave.optim` for one flat array.

use crate::enter::enter;
use crate::errors::OrRaise;
use crate::import::{self, Access};
use crate::store::optimizer;
use crate::tensor::PyTensor;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sheave_base::{Error, ErrorKind, Result};
use sheave_optim::{Float, Optimizer, State, Wide};
use sheave_tensor::{Element, Shape, Tensor};

enum States {
    F32(State<f32>),
    F64(State<f64>),
}

/// Steps a flat array of float32 or float64 in place.
#[pyclass(name = "FlatOptimizer", module = "sheave.particle", frozen)]
pub(crate) struct PyOptimizer {
    optimizer: Optimizer,
    states: Mutex<States>,
}

#[pymethods]
impl PyOptimizer {
    #[new]
    fn new(py: Python<'_>, document: &str, elements: usize, is_double: bool) -> PyResult<Self> {
        let optimizer = optimizer(py, document)?;
        optimizer.check().or_raise(py)?;
        let states = match is_double {
            true => States::F64(optimizer.rule.state(elements)),
            false => States::F32(optimizer.rule.state(elements)),
        };
        Ok(Self { optimizer, states: Mutex::new(states) })
    }

    /// How many steps there were.
    #[getter]
    fn steps(&self) -> u64 {
        match &*self.states.lock() {
            States::F32(state) => state.steps(),
            States::F64(state) => state.steps(),
        }
    }

    /// Moves the weights, a writable array, one step along the gradient.
    fn step(&self, py: Python<'_>, weights: &Bound<'_, PyAny>, gradient: &Bound<'_, PyAny>) -> PyResult<()> {
        let (weights, gradient) = (import::tensor(weights, Access::Write)?, import::tensor(gradient, Access::Read)?);
        enter(py, None, |_, _| match &mut *self.states.lock() {
            States::F32(state) => stepped::<f32>(&self.optimizer, state, &weights, &gradient),
            States::F64(state) => stepped::<f64>(&self.optimizer, state, &weights, &gradient),
        })
    }

    /// The moments by name, as tensors of their own.
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let parts = match &*self.states.lock() {
            States::F32(state) => copied(state),
            States::F64(state) => copied(state),
        };
        let named = PyDict::new(py);
        for (name, tensor) in parts.or_raise(py)? {
            named.set_item(name, Py::new(py, PyTensor::new(tensor))?)?;
        }
        Ok(named)
    }

    /// Goes on from moments that were saved.
    fn load(&self, py: Python<'_>, steps: u64, parts: &Bound<'_, PyDict>) -> PyResult<()> {
        let named = parts.iter().map(|(name, array)| {
            let name: String = name.extract()?;
            Ok((name, import::tensor(&array, Access::Read)?))
        });
        let named = named.collect::<PyResult<Vec<(String, Tensor)>>>()?;
        let loaded = match &mut *self.states.lock() {
            States::F32(state) => restored(&self.optimizer, state, steps, &named),
            States::F64(state) => restored(&self.optimizer, state, steps, &named),
        };
        loaded.or_raise(py)
    }
}

fn stepped<T>(optimizer: &Optimizer, state: &mut State<T>, weights: &Tensor, gradient: &Tensor) -> Result<()>
where
    T: Float<Wide = T> + Wide + Element,
{
    if weights.dtype() != gradient.dtype() || weights.elements() != gradient.elements() {
        let (weights, gradient) = ((weights.dtype(), weights.shape()), (gradient.dtype(), gradient.shape()));
        let what = format!("a gradient {}{} for parameters {}{}", gradient.0, gradient.1, weights.0, weights.1);
        return Err(Error::new(ErrorKind::Mismatch, what).operation("step"));
    }
    let gradient = gradient.as_slice::<T>()?;
    let mut lease = weights.write_lease("step")?;
    let start = weights.offset_bytes();
    let bytes = lease.bytes_mut()?.get_mut(start..start + weights.len_bytes());
    let bytes = bytes.ok_or_else(|| Error::new(ErrorKind::Internal, "an array lies outside its buffer"))?;
    let weights = bytemuck::try_cast_slice_mut(bytes)
        .map_err(|_| Error::new(ErrorKind::Unsupported, "parameters are not aligned").operation("step"))?;
    optimizer.at(state.steps()).step(state, weights, &gradient)
}

fn copied<W: Wide + Element>(state: &State<W>) -> Result<Vec<(&'static str, Tensor)>> {
    let tensor = |part: &[W]| Tensor::from_slice(part, Shape::new(&[part.len() as u64])?);
    state.parts().into_iter().map(|(name, part)| Ok((name, tensor(part)?))).collect()
}

fn restored<W: Wide + Element>(
    optimizer: &Optimizer,
    state: &mut State<W>,
    steps: u64,
    parts: &[(String, Tensor)],
) -> Result<()> {
    let parts = parts.iter().map(|(name, part)| Ok((name.clone(), part.to_vec::<W>()?)));
    *state = State::from_parts(&optimizer.rule, state.elements(), steps, parts.collect::<Result<_>>()?)?;
    Ok(())
}
