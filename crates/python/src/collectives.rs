//! Collective operations on arrays of Python's: what they read, what they fill, and what they return.
//!
//! Arrays are checked by the room below, where all members' arguments meet. Here is only decided which array is which:
//! an operation whose result is as long as its input works in place unless told otherwise, and one whose result has
//! another length makes a new array of the same kind.

use crate::errors::{self, OrRaise};
use crate::group::PyGroup;
use crate::import::{self, Access};
use crate::like::{self, Given};
use crate::lists;
use crate::pieces;
use pyo3::prelude::*;
use sheave_base::{Error, ErrorKind, Rank};
use sheave_collective::{Communicator, Operator};
use sheave_tensor::{Dtype, Tensor};

/// How an operation is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) is_async: bool,
    pub(crate) timeout_s: Option<f64>,
    /// A wait that is given up takes the operation back.
    pub(crate) ends_with_wait: bool,
}

impl Request {
    pub(crate) fn new(is_async: bool, timeout_s: Option<f64>) -> Self {
        Self { is_async, timeout_s, ends_with_wait: false }
    }
}

/// The operator of that name, in sheave's words or those of torch and numpy.
pub(crate) fn operator(name: &str, py: Python<'_>) -> PyResult<Operator> {
    let known = match name {
        "prod" => Some(Operator::Product),
        "mean" => Some(Operator::Avg),
        _ => Operator::ALL.into_iter().find(|known| known.name() == name),
    };
    known.ok_or_else(|| {
        let names = Operator::ALL.map(Operator::name).join(", ");
        let error = Error::new(ErrorKind::InvalidArgument, format!("there is no operator {name:?}"));
        errors::to_python(py, &error.hint(format!("give one of {names}")))
    })
}

/// An array that an operation fills, and what Python gets for it.
pub(crate) struct Place {
    pub(crate) tensor: Tensor,
    pub(crate) array: Given,
}

impl Place {
    pub(crate) fn of(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { tensor: import::tensor(array, Access::Write)?, array: Given::Now(array.clone().unbind()) })
    }

    /// A new array of the model's kind.
    pub(crate) fn new(group: &PyGroup, model: &Bound<'_, PyAny>, dtype: Dtype, dimensions: &[u64]) -> PyResult<Self> {
        let arena = group.arena().or_raise(model.py())?;
        let (tensor, array) = like::array(model, &arena, dtype, dimensions)?;
        Ok(Self { tensor, array })
    }
}

/// Input and output of an operation that may work in place.
pub(crate) fn in_place(array: &Bound<'_, PyAny>, out: Option<&Bound<'_, PyAny>>) -> PyResult<(Tensor, Place)> {
    match out.filter(|out| !out.is(array)) {
        None => {
            let place = Place::of(array)?;
            Ok((place.tensor.clone(), place))
        }
        Some(out) => Ok((import::tensor(array, Access::Read)?, Place::of(out)?)),
    }
}

/// The dimensions of as many arrays as there are members, in one.
pub(crate) fn of_all(group: &PyGroup, tensor: &Tensor) -> Vec<u64> {
    let size = group.communicator().map_or(1, |group| u64::from(group.size()));
    std::iter::once(size).chain(tensor.shape().dimensions().iter().copied()).collect()
}

/// The dimensions of one member's piece: of whole rows where the first dimension can be cut.
pub(crate) fn of_one(group: &PyGroup, tensor: &Tensor) -> Vec<u64> {
    let size = group.communicator().map_or(1, |group| u64::from(group.size()));
    match tensor.shape().dimensions() {
        [first, rest @ ..] if *first == size && !rest.is_empty() => rest.to_vec(),
        [first, rest @ ..] if first % size == 0 => [&[first / size], rest].concat(),
        _ => vec![tensor.elements() as u64 / size],
    }
}

pub(crate) fn barrier(group: &PyGroup, py: Python<'_>, request: Request) -> PyResult<Py<PyAny>> {
    group.run(py, request, Communicator::barrier, |py, ()| Ok(py.None()))
}

pub(crate) fn all_reduce(
    group: &PyGroup,
    array: &Bound<'_, PyAny>,
    op: &str,
    out: Option<&Bound<'_, PyAny>>,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let operator = operator(op, array.py())?;
    if let Some(arrays) = lists::of(array) {
        return lists::all_reduce(group, (array, arrays), operator, out, request);
    }
    let Some(out) = out.filter(|out| !out.is(array)) else {
        // The most frequent call of all, without a second handle.
        let Place { tensor, array: result } = Place::of(array)?;
        let start = move |group: &Communicator| group.all_reduce(&tensor, &tensor, operator);
        return group.run(array.py(), request, start, |py, ()| result.done(py));
    };
    let (input, Place { tensor, array: result }) = (import::tensor(array, Access::Read)?, Place::of(out)?);
    let start = move |group: &Communicator| group.all_reduce(&input, &tensor, operator);
    group.run(array.py(), request, start, |py, ()| result.done(py))
}

pub(crate) fn reduce(
    group: &PyGroup,
    array: &Bound<'_, PyAny>,
    op: &str,
    out: Option<&Bound<'_, PyAny>>,
    dst: u32,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let operator = operator(op, array.py())?;
    if group.is_rank(dst) {
        let (input, Place { tensor, array: result }) = in_place(array, out)?;
        let start = move |group: &Communicator| group.reduce(&input, Some(&tensor), operator, Rank(dst));
        return group.run(array.py(), request, start, |py, ()| result.done(py));
    }
    let input = import::tensor(array, Access::Read)?;
    let start = move |group: &Communicator| group.reduce(&input, None, operator, Rank(dst));
    group.run(array.py(), request, start, |py, ()| Ok(py.None()))
}

pub(crate) fn broadcast(group: &PyGroup, array: &Bound<'_, PyAny>, src: u32, request: Request) -> PyResult<Py<PyAny>> {
    if let Some(arrays) = lists::of(array) {
        return lists::broadcast(group, (array, arrays), src, request);
    }
    let access = if group.is_rank(src) { Access::Read } else { Access::Write };
    let (tensor, result) = (import::tensor(array, access)?, array.clone().unbind());
    let start = move |group: &Communicator| group.broadcast(&tensor, Rank(src));
    group.run(array.py(), request, start, |_, ()| Ok(result))
}

pub(crate) fn all_gather(
    group: &PyGroup,
    array: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    request: Request,
) -> PyResult<Py<PyAny>> {
    if let Some(arrays) = lists::of(array) {
        return lists::all_gather(group, (array, arrays), out, request);
    }
    if let Some((out, arrays)) = out.and_then(|out| lists::of(out).map(|arrays| (out, arrays))) {
        return pieces::all_gather(group, array, (out, arrays), request);
    }
    let input = import::tensor(array, Access::Read)?;
    let Place { tensor, array: result } = match out {
        Some(out) => Place::of(out)?,
        None => Place::new(group, array, input.dtype(), &of_all(group, &input))?,
    };
    let start = move |group: &Communicator| group.all_gather(&input, &tensor);
    group.run(array.py(), request, start, |py, ()| result.done(py))
}

pub(crate) fn all_gather_v(
    group: &PyGroup,
    array: &Bound<'_, PyAny>,
    lengths: Option<Vec<usize>>,
    out: Option<&Bound<'_, PyAny>>,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let py = array.py();
    let input = import::tensor(array, Access::Read)?;
    let lengths = match lengths {
        Some(lengths) => lengths,
        None => lengths_of_all(group, py, &input, request)?,
    };
    let Place { tensor, array: result } = match out {
        Some(out) => Place::of(out)?,
        None => {
            let total = lengths.iter().fold(0_u64, |total, length| total.saturating_add(*length as u64));
            let rest = input.shape().dimensions().get(1..).unwrap_or_default();
            let row = rest.iter().product::<u64>();
            let is_rows = row > 0 && lengths.iter().all(|length| (*length as u64).is_multiple_of(row));
            let dimensions = if is_rows { [&[total / row], rest].concat() } else { vec![total] };
            Place::new(group, array, input.dtype(), &dimensions)?
        }
    };
    let start = move |group: &Communicator| group.all_gather_v(&input, &tensor, &lengths);
    group.run(py, request, start, |py, ()| result.done(py))
}

/// How many elements each member has; waits for all of them.
fn lengths_of_all(group: &PyGroup, py: Python<'_>, input: &Tensor, request: Request) -> PyResult<Vec<usize>> {
    let size = group.communicator().or_raise(py)?.size();
    let made = Tensor::from_slice(&[input.elements() as i64], [1])
        .and_then(|own| Ok((own, Tensor::private(Dtype::I64, [u64::from(size)])?)));
    let (own, all) = made.or_raise(py)?;
    let told = all.clone();
    let start = move |group: &Communicator| group.all_gather(&own, &all);
    group.run(py, Request { is_async: false, ..request }, start, |py, ()| Ok(py.None()))?;
    Ok(told.to_vec::<i64>().or_raise(py)?.into_iter().map(|length| length as usize).collect())
}

pub(crate) fn gather(
    group: &PyGroup,
    array: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    dst: u32,
    request: Request,
) -> PyResult<Py<PyAny>> {
    if let Some((out, arrays)) = out.and_then(|out| lists::of(out).map(|arrays| (out, arrays))) {
        return pieces::gather(group, array, (out, arrays), dst, request);
    }
    let input = import::tensor(array, Access::Read)?;
    let place = match out {
        Some(out) => Some(Place::of(out)?),
        None if group.is_rank(dst) => Some(Place::new(group, array, input.dtype(), &of_all(group, &input))?),
        None => None,
    };
    let (tensor, result) = place.map(|place| (place.tensor, place.array)).unzip();
    let start = move |group: &Communicator| group.gather(&input, tensor.as_ref(), Rank(dst));
    group.run(array.py(), request, start, |py, ()| result.map_or_else(|| Ok(py.None()), |result| result.done(py)))
}

pub(crate) fn scatter(
    group: &PyGroup,
    py: Python<'_>,
    array: Option<&Bound<'_, PyAny>>,
    out: Option<&Bound<'_, PyAny>>,
    src: u32,
    request: Request,
) -> PyResult<Py<PyAny>> {
    if let Some(arrays) = array.and_then(lists::of) {
        return pieces::scatter(group, py, &arrays, out, src, request);
    }
    let input = array.map(|array| import::tensor(array, Access::Read)).transpose()?;
    let Place { tensor, array: result } = match (out, array, &input) {
        (Some(out), ..) => Place::of(out)?,
        (None, Some(model), Some(input)) => Place::new(group, model, input.dtype(), &of_one(group, input))?,
        _ => {
            let error = Error::new(ErrorKind::InvalidArgument, "there is nothing to put the piece in");
            let error = error.operation("scatter").hint("give out= an array of the piece's dtype and length");
            return Err(errors::to_python(py, &error));
        }
    };
    let start = move |group: &Communicator| group.scatter(input.as_ref(), &tensor, Rank(src));
    group.run(py, request, start, |py, ()| result.done(py))
}

pub(crate) fn reduce_scatter(
    group: &PyGroup,
    array: &Bound<'_, PyAny>,
    op: &str,
    out: Option<&Bound<'_, PyAny>>,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let operator = operator(op, array.py())?;
    if let Some(arrays) = lists::of(array) {
        // An array to put one piece in, or a list of as many operations.
        if let Some(out) = out.filter(|out| lists::of(out).is_none()) {
            return pieces::reduce_scatter(group, &arrays, operator, out, request);
        }
        return lists::reduce_scatter(group, (array, arrays), operator, out, request);
    }
    let input = import::tensor(array, Access::Read)?;
    let Place { tensor, array: result } = match out {
        Some(out) => Place::of(out)?,
        None => Place::new(group, array, input.dtype(), &of_one(group, &input))?,
    };
    let start = move |group: &Communicator| group.reduce_scatter(&input, &tensor, operator);
    group.run(array.py(), request, start, |py, ()| result.done(py))
}

pub(crate) fn all_to_all(
    group: &PyGroup,
    array: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
    request: Request,
) -> PyResult<Py<PyAny>> {
    if let Some(arrays) = lists::of(array) {
        return pieces::all_to_all(group, (array, arrays), out.map(|out| (out, lists::of(out))), request);
    }
    let (input, Place { tensor, array: result }) = in_place(array, out)?;
    let start = move |group: &Communicator| group.all_to_all(&input, &tensor);
    group.run(array.py(), request, start, |py, ()| result.done(py))
}

pub(crate) fn all_to_all_v(
    group: &PyGroup,
    array: &Bound<'_, PyAny>,
    (sent, received): (Vec<usize>, Vec<usize>),
    out: Option<&Bound<'_, PyAny>>,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let input = import::tensor(array, Access::Read)?;
    let Place { tensor, array: result } = match out {
        Some(out) => Place::of(out)?,
        None => {
            let total = received.iter().fold(0_u64, |total, length| total.saturating_add(*length as u64));
            Place::new(group, array, input.dtype(), &[total])?
        }
    };
    let start = move |group: &Communicator| group.all_to_all_v(&input, &sent, &tensor, &received);
    group.run(array.py(), request, start, |py, ()| result.done(py))
}

pub(crate) fn send(
    group: &PyGroup,
    array: &Bound<'_, PyAny>,
    dst: u32,
    tag: u64,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let tensor = import::tensor(array, Access::Read)?;
    let start = move |group: &Communicator| group.send(&tensor, Rank(dst), tag);
    group.run(array.py(), request, start, |py, ()| Ok(py.None()))
}

pub(crate) fn recv(
    group: &PyGroup,
    array: &Bound<'_, PyAny>,
    src: Option<u32>,
    tag: u64,
    request: Request,
) -> PyResult<Py<PyAny>> {
    let tensor = import::tensor(array, Access::Write)?;
    let start = move |group: &Communicator| group.recv(&tensor, src.map(Rank), tag);
    let request = Request { ends_with_wait: true, ..request };
    group.run(array.py(), request, start, |py, rank| Ok(rank.0.into_pyobject(py)?.into_any().unbind()))
}
