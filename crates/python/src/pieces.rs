//! Collective operations that take or give a list of one array for each member, instead of one array that holds them
//! all. Which of the two an argument is decides the call; the rooms below check the rest.

use crate::collectives::{Place, Request};
use crate::errors::OrRaise;
use crate::group::PyGroup;
use crate::import::{self, Access};
use pyo3::prelude::*;
use sheave_base::{Error, ErrorKind, Rank, Result};
use sheave_collective::{Communicator, Operator};
use sheave_tensor::Tensor;

type Arrays<'py> = Vec<Bound<'py, PyAny>>;

/// The tensors of a list. The error of an array that is none, or cannot be used so, says which it is.
fn tensors(which: &str, arrays: &Arrays<'_>, access: Access) -> PyResult<Vec<Tensor>> {
    let tensor = |(index, array): (usize, &Bound<'_, PyAny>)| {
        import::tensor(array, access).inspect_err(|error| {
            let note = format!("{which} {index} of the list");
            let _ = error.value(array.py()).call_method1("add_note", (note,));
        })
    };
    arrays.iter().enumerate().map(tensor).collect()
}

pub(crate) fn all_gather(
    group: &PyGroup,
    array: &Bound<'_, PyAny>,
    (out, arrays): (&Bound<'_, PyAny>, Arrays<'_>),
    request: Request,
) -> PyResult<Py<PyAny>> {
    let (input, outputs) = (import::tensor(array, Access::Read)?, tensors("output", &arrays, Access::Write)?);
    let result = out.clone().unbind();
    let start = move |group: &Communicator| group.all_gather_pieces(&input, &outputs);
    group.run(array.py(), request, start, |_, ()| Ok(result))
}

pub(crate) fn gather(
    group: &PyGroup,
    array: &Bound<'_, PyAny>,
    (out, arrays): (&Bound<'_, PyAny>, Arrays<'_>),
    dst: u32,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let (input, outputs) = (import::tensor(array, Access::Read)?, tensors("output", &arrays, Access::Write)?);
    let result = out.clone().unbind();
    let start = move |group: &Communicator| group.gather_pieces(&input, Some(&outputs), Rank(dst));
    group.run(array.py(), request, start, |_, ()| Ok(result))
}

/// A list of arrays at `src`, which may leave `out` away and gets a new array like the one of its own rank.
pub(crate) fn scatter(
    group: &PyGroup,
    py: Python<'_>,
    arrays: &Arrays<'_>,
    out: Option<&Bound<'_, PyAny>>,
    src: u32,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let inputs = tensors("input", arrays, Access::Read)?;
    let own = group.communicator().or_raise(py)?.rank().0 as usize;
    let Place { tensor, array: result } = match (out, arrays.get(own).zip(inputs.get(own))) {
        (Some(out), _) => Place::of(out)?,
        (None, Some((model, input))) => Place::new(group, model, input.dtype(), input.shape().dimensions())?,
        (None, None) => return missing("scatter", "give one for this member too").or_raise(py),
    };
    let start = move |group: &Communicator| group.scatter_pieces(Some(&inputs), &tensor, Rank(src));
    group.run(py, request, start, |py, ()| result.done(py))
}

pub(crate) fn reduce_scatter(
    group: &PyGroup,
    arrays: &Arrays<'_>,
    operator: Operator,
    out: &Bound<'_, PyAny>,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let (inputs, Place { tensor, array: result }) = (tensors("input", arrays, Access::Read)?, Place::of(out)?);
    let start = move |group: &Communicator| group.reduce_scatter_pieces(&inputs, &tensor, operator);
    group.run(out.py(), request, start, |py, ()| result.done(py))
}

/// From one list into another, or in place.
pub(crate) fn all_to_all(
    group: &PyGroup,
    (given, arrays): (&Bound<'_, PyAny>, Arrays<'_>),
    out: Option<(&Bound<'_, PyAny>, Option<Arrays<'_>>)>,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let py = given.py();
    let (result, inputs, outputs) = match out {
        None => {
            let both = tensors("input", &arrays, Access::Write)?;
            (given, both.clone(), both)
        }
        Some((out, Some(outputs))) => {
            (out, tensors("input", &arrays, Access::Read)?, tensors("output", &outputs, Access::Write)?)
        }
        Some((_, None)) => return missing("all_to_all", "give out= a list too, or none").or_raise(py),
    };
    let result = result.clone().unbind();
    let start = move |group: &Communicator| group.all_to_all_pieces(&inputs, &outputs);
    group.run(py, request, start, |_, ()| Ok(result))
}

fn missing<T>(operation: &'static str, hint: &'static str) -> Result<T> {
    let error = Error::new(ErrorKind::InvalidArgument, "a list of one array for each member was expected");
    Err(error.operation(operation).hint(hint))
}
