//! What members predict together.

use super::array::{Array, Rows, filled, refuse, with_float};
use crate::errors::OrRaise;
use pyo3::prelude::*;
use sheave_bayes::predict;

/// The number of classes: the last extent.
pub(super) fn classes(py: Python<'_>, name: &str, shape: &[u64]) -> PyResult<usize> {
    match shape.last() {
        Some(&classes) if classes > 0 => Ok(classes as usize),
        _ => Err(refuse(py, name, "an array without classes", "classes along the last axis")),
    }
}

/// Makes an array of the shape of one member by a function over all.
macro_rules! over_members {
    ($py:expr, $members:expr, $T:ident, |$rows:ident, $out:ident| $body:expr) => {{
        let members = Rows::read("members", $members)?;
        with_float!(members.width(), $T => {
            let views = members.views::<$T>().or_raise($py)?;
            let $rows = members.split(&views);
            filled::<$T>($py, members.row_shape(), |$out| $body)
        })
    }};
}

/// Mean over members: a list of arrays of one shape, or one array with members along its first axis. float32 and
/// float64, numpy's or torch's on the CPU; the result is a numpy array of the shape and dtype of one member.
///
/// >>> sheave.bayes.mean([np.array([1.0, 2.0]), np.array([3.0, 2.0])])
/// array([2., 2.])
#[pyfunction]
fn mean(py: Python<'_>, members: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    over_members!(py, members, T, |rows, out| predict::mean(&rows, out))
}

/// Standard deviation over members, unbiased: squares are divided by one less than their number.
///
/// One member does not say how far members are apart. Its deviation is 0 by convention here, so that code for many
/// members goes on with one.
///
/// >>> sheave.bayes.std([np.array([1.0]), np.array([3.0])])
/// array([1.41421356])
/// >>> sheave.bayes.std([np.array([1.0])])
/// array([0.])
#[pyfunction]
#[pyo3(name = "std")]
fn deviation(py: Python<'_>, members: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    over_members!(py, members, T, |rows, out| match rows.len() {
        1 => predict::mean(&rows, out).map(|()| out.fill(0.0)),
        _ => predict::deviation(&rows, out),
    })
}

/// Median over members; of an even number the mean of the two in the middle.
///
/// >>> sheave.bayes.median([np.array([1.0]), np.array([9.0]), np.array([2.0])])
/// array([2.])
#[pyfunction]
fn median(py: Python<'_>, members: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    over_members!(py, members, T, |rows, out| predict::median(&rows, &mut Vec::new(), out))
}

/// Quantile over members, from q = 0 for the least to 1 for the largest; linear between two, as numpy has it.
///
/// >>> sheave.bayes.quantile([np.array([4.0]), np.array([1.0]), np.array([2.0])], 0.75)
/// array([3.])
#[pyfunction]
fn quantile(py: Python<'_>, members: &Bound<'_, PyAny>, q: f64) -> PyResult<Py<PyAny>> {
    over_members!(py, members, T, |rows, out| predict::quantile(&rows, q, &mut Vec::new(), out))
}

/// Logarithms of the probabilities that logits give, with classes along the last axis: x - log(sum(exp(x))), stable for
/// any finite logits.
///
/// >>> sheave.bayes.log_softmax(np.array([[1000.0, 1000.0]]))
/// array([[-0.69314718, -0.69314718]])
#[pyfunction]
fn log_softmax(py: Python<'_>, logits: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let logits = Array::read("logits", logits)?;
    let classes = classes(py, "logits", logits.shape())?;
    with_float!(logits.width(py)?, T => {
        let view = logits.view::<T>().or_raise(py)?;
        let values: &[T] = &view;
        filled::<T>(py, logits.shape(), |out| {
            out.copy_from_slice(values);
            predict::log_softmax(out, classes)
        })
    })
}

/// Makes an array of the shape of one member's logits by a function over all.
macro_rules! over_logits {
    ($py:expr, $members:expr, $T:ident, |$rows:ident, $classes:ident, $out:ident| $body:expr) => {{
        let members = Rows::read("members", $members)?;
        let $classes = classes($py, "members", members.row_shape())?;
        with_float!(members.width(), $T => {
            let views = members.views::<$T>().or_raise($py)?;
            let $rows = members.split(&views);
            filled::<$T>($py, members.row_shape(), |$out| $body)
        })
    }};
}

/// Mean over members of the probabilities that their logits give, with classes along the last axis: the posterior
/// predictive, p(y) = 1/M sum p_m(y). Logits themselves are never averaged: that would be another model, surer than its
/// members are together.
///
/// >>> sheave.bayes.mean_probabilities([np.array([[100.0, 0.0]]), np.array([[0.0, 50.0]])])
/// array([[0.5, 0.5]])
#[pyfunction]
fn mean_probabilities(py: Python<'_>, members: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    over_logits!(py, members, T, |rows, classes, out| predict::mean_probabilities(&rows, classes, out))
}

/// Logarithms of mean_probabilities, by log-sum-exp over members: what nll takes.
///
/// >>> sheave.bayes.mean_log_probabilities([np.array([[0.0, -2000.0]]), np.array([[0.0, -2000.0]])])
/// array([[    0., -2000.]])
#[pyfunction]
fn mean_log_probabilities(py: Python<'_>, members: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    over_logits!(py, members, T, |rows, classes, out| predict::mean_log_probabilities(&rows, classes, out))
}

/// Standard deviation over members of the probability of each class that their logits give; 0 for one member, as std.
///
/// >>> sheave.bayes.probability_std([np.array([[100.0, 0.0]]), np.array([[0.0, 100.0]])]).round(3)
/// array([[0.707, 0.707]])
#[pyfunction]
fn probability_std(py: Python<'_>, members: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    over_logits!(py, members, T, |rows, classes, out| match rows.len() {
        1 => predict::mean_probabilities(&rows, classes, out).map(|()| out.fill(0.0)),
        _ => predict::probability_deviation(&rows, classes, &mut Vec::new(), out),
    })
}

fn narrow(classes: &[usize], out: &mut [i64]) {
    out.iter_mut().zip(classes).for_each(|(place, &class)| *place = class as i64);
}

/// Class of the largest logit or probability along the last axis, the smallest of several: int64.
///
/// >>> sheave.bayes.classify(np.array([[0.1, 0.9], [0.5, 0.5]])).tolist()
/// [1, 0]
#[pyfunction]
fn classify(py: Python<'_>, values: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let values = Array::read("values", values)?;
    let (shape, classes) = (values.shape(), classes(py, "values", values.shape())?);
    with_float!(values.width(py)?, T => {
        let view = values.view::<T>().or_raise(py)?;
        let elements: &[T] = &view;
        filled::<i64>(py, &shape[..shape.len() - 1], |out| {
            let mut found = vec![0; out.len()];
            predict::classify(elements, classes, &mut found)?;
            narrow(&found, out);
            Ok(())
        })
    })
}

/// Class for which most members vote by their largest logit or probability, the smallest of several: int64.
///
/// >>> sheave.bayes.mode([np.array([[0.0, 1.0]]), np.array([[0.0, 2.0]]), np.array([[3.0, 0.0]])]).tolist()
/// [1]
#[pyfunction]
fn mode(py: Python<'_>, members: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let members = Rows::read("members", members)?;
    let (shape, classes) = (members.row_shape(), classes(py, "members", members.row_shape())?);
    with_float!(members.width(), T => {
        let views = members.views::<T>().or_raise(py)?;
        let rows = members.split(&views);
        filled::<i64>(py, &shape[..shape.len() - 1], |out| {
            let mut found = vec![0; out.len()];
            predict::mode(&rows, classes, &mut Vec::new(), &mut found)?;
            narrow(&found, out);
            Ok(())
        })
    })
}

/// Adds the functions to the module.
pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let functions = [
        wrap_pyfunction!(mean, module)?,
        wrap_pyfunction!(deviation, module)?,
        wrap_pyfunction!(median, module)?,
        wrap_pyfunction!(quantile, module)?,
        wrap_pyfunction!(log_softmax, module)?,
        wrap_pyfunction!(mean_probabilities, module)?,
        wrap_pyfunction!(mean_log_probabilities, module)?,
        wrap_pyfunction!(probability_std, module)?,
        wrap_pyfunction!(classify, module)?,
        wrap_pyfunction!(mode, module)?,
    ];
    functions.into_iter().try_for_each(|function| module.add_function(function))
}
