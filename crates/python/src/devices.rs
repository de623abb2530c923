//! Collective operations on the arrays that each member has on several devices: one operation of the group, between a
//! reduction of the member's own arrays and a copy to them.

use crate::collectives::{Place, Request, operator};
use crate::group::PyGroup;
use crate::import::{self, Access};
use pyo3::prelude::*;
use pyo3::types::PyList;
use sheave_base::Rank;
use sheave_collective::Communicator;
use sheave_tensor::Tensor;

fn tensors(arrays: &Bound<'_, PyList>, access: Access) -> PyResult<Vec<Tensor>> {
    arrays.iter().map(|array| import::tensor(&array, access)).collect()
}

pub(crate) fn all_reduce(
    group: &PyGroup,
    arrays: &Bound<'_, PyList>,
    op: &str,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let (operator, tensors) = (operator(op, arrays.py())?, tensors(arrays, Access::Write)?);
    let result = arrays.clone().into_any().unbind();
    let start = move |group: &Communicator| group.all_reduce_devices(&tensors, operator);
    group.run(arrays.py(), request, start, |_, ()| Ok(result))
}

pub(crate) fn broadcast(
    group: &PyGroup,
    arrays: &Bound<'_, PyList>,
    src: u32,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let is_read = |index: usize| index == 0 && group.is_rank(src);
    let access = |index: usize| if is_read(index) { Access::Read } else { Access::Write };
    let tensor = |(index, array): (usize, Bound<'_, PyAny>)| import::tensor(&array, access(index));
    let tensors = arrays.iter().enumerate().map(tensor).collect::<PyResult<Vec<_>>>()?;
    let result = arrays.clone().into_any().unbind();
    let start = move |group: &Communicator| group.broadcast_devices(&tensors, Rank(src));
    group.run(arrays.py(), request, start, |_, ()| Ok(result))
}

pub(crate) fn reduce(
    group: &PyGroup,
    arrays: &Bound<'_, PyList>,
    op: &str,
    out: Option<&Bound<'_, PyAny>>,
    dst: u32,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let py = arrays.py();
    let (operator, inputs) = (operator(op, py)?, tensors(arrays, Access::Read)?);
    let (tensor, result) = out.map(Place::of).transpose()?.map(|place| (place.tensor, place.array)).unzip();
    let start = move |group: &Communicator| group.reduce_devices(&inputs, tensor.as_ref(), operator, Rank(dst));
    group.run(py, request, start, |py, ()| result.map_or_else(|| Ok(py.None()), |result| result.done(py)))
}
