//! Collective operations on lists of arrays: one operation for all of them, whose small tensors travel packed together.

use crate::collectives::{Place, Request, in_place, of_all, of_one};
use crate::errors;
use crate::group::PyGroup;
use crate::import::{self, Access};
use crate::like::Given;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use sheave_base::{Error, ErrorKind, Rank};
use sheave_collective::{Communicator, Operator};
use sheave_tensor::Tensor;

type Arrays<'py> = Vec<Bound<'py, PyAny>>;

/// The arrays of a list or tuple; none for anything else, which is an array itself.
pub(crate) fn of<'py>(argument: &Bound<'py, PyAny>) -> Option<Arrays<'py>> {
    match argument.cast::<PyList>() {
        Ok(list) => Some(list.iter().collect()),
        Err(_) => argument.cast::<PyTuple>().ok().map(|tuple| tuple.iter().collect()),
    }
}

/// One array to be filled for each of `count`; none if none are given.
fn outputs<'py>(count: usize, out: Option<&Bound<'py, PyAny>>) -> PyResult<Option<Arrays<'py>>> {
    let Some(out) = out else { return Ok(None) };
    match of(out) {
        Some(outputs) if outputs.len() == count => Ok(Some(outputs)),
        _ => {
            let error = Error::new(ErrorKind::InvalidArgument, format!("out is no list of {count} arrays"));
            Err(errors::to_python(out.py(), &error.hint("give one array for each that is put in, or none")))
        }
    }
}

fn read(arrays: &Arrays<'_>) -> PyResult<Vec<Tensor>> {
    arrays.iter().map(|array| import::tensor(array, Access::Read)).collect()
}

/// What Python gets for a list: the list that the results are in, or a new one of new arrays.
fn done(py: Python<'_>, given: Option<Py<PyAny>>, made: Vec<Given>) -> PyResult<Py<PyAny>> {
    if let Some(given) = given {
        return Ok(given);
    }
    let arrays = made.into_iter().map(|one| one.done(py)).collect::<PyResult<Vec<_>>>()?;
    Ok(PyList::new(py, arrays)?.into_any().unbind())
}

fn apart(places: Vec<Place>) -> (Vec<Tensor>, Vec<Given>) {
    places.into_iter().map(|place| (place.tensor, place.array)).unzip()
}

pub(crate) fn all_reduce(
    group: &PyGroup,
    (given, arrays): (&Bound<'_, PyAny>, Arrays<'_>),
    operator: Operator,
    out: Option<&Bound<'_, PyAny>>,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let outputs = outputs(arrays.len(), out)?;
    let pair = |(index, array)| in_place(array, outputs.as_ref().and_then(|outputs| outputs.get(index)));
    let pairs = arrays.iter().enumerate().map(pair).collect::<PyResult<Vec<_>>>()?;
    let (inputs, places): (Vec<Tensor>, Vec<Place>) = pairs.into_iter().unzip();
    let (outputs, _) = apart(places);
    let result = out.unwrap_or(given).clone().unbind();
    let start = move |group: &Communicator| group.all_reduce_list(&inputs, &outputs, operator);
    group.run(given.py(), request, start, |_, ()| Ok(result))
}

pub(crate) fn broadcast(
    group: &PyGroup,
    (given, arrays): (&Bound<'_, PyAny>, Arrays<'_>),
    src: u32,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let access = if group.is_rank(src) { Access::Read } else { Access::Write };
    let tensors = arrays.iter().map(|array| import::tensor(array, access)).collect::<PyResult<Vec<_>>>()?;
    let result = given.clone().unbind();
    let start = move |group: &Communicator| group.broadcast_list(&tensors, Rank(src));
    group.run(given.py(), request, start, |_, ()| Ok(result))
}

pub(crate) fn all_gather(
    group: &PyGroup,
    (given, arrays): (&Bound<'_, PyAny>, Arrays<'_>),
    out: Option<&Bound<'_, PyAny>>,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let inputs = read(&arrays)?;
    let places = match outputs(arrays.len(), out)? {
        Some(outputs) => outputs.iter().map(Place::of).collect::<PyResult<Vec<_>>>()?,
        None => {
            let new = |(array, input): (&Bound<'_, PyAny>, &Tensor)| {
                Place::new(group, array, input.dtype(), &of_all(group, input))
            };
            arrays.iter().zip(&inputs).map(new).collect::<PyResult<Vec<_>>>()?
        }
    };
    let (outputs, made) = apart(places);
    let out = out.map(|out| out.clone().unbind());
    let start = move |group: &Communicator| group.all_gather_list(&inputs, &outputs);
    group.run(given.py(), request, start, |py, ()| done(py, out, made))
}

pub(crate) fn reduce_scatter(
    group: &PyGroup,
    (given, arrays): (&Bound<'_, PyAny>, Arrays<'_>),
    operator: Operator,
    out: Option<&Bound<'_, PyAny>>,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let inputs = read(&arrays)?;
    let places = match outputs(arrays.len(), out)? {
        Some(outputs) => outputs.iter().map(Place::of).collect::<PyResult<Vec<_>>>()?,
        None => {
            let new = |(array, input): (&Bound<'_, PyAny>, &Tensor)| {
                Place::new(group, array, input.dtype(), &of_one(group, input))
            };
            arrays.iter().zip(&inputs).map(new).collect::<PyResult<Vec<_>>>()?
        }
    };
    let (outputs, made) = apart(places);
    let out = out.map(|out| out.clone().unbind());
    let start = move |group: &Communicator| group.reduce_scatter_list(&inputs, &outputs, operator);
    group.run(given.py(), request, start, |py, ()| done(py, out, made))
}
