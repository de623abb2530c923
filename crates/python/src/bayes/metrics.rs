//! How good and how well calibrated predictions are.

use super::array::{Array, Width, labels, numpy, refuse, with_float};
use super::predict::classes;
use crate::errors::OrRaise;
use pyo3::prelude::*;
use sheave_bayes::metrics::{self, Bin};

/// The most bins of a calibration.
const BINS_MAX: usize = 1 << 16;

/// Makes a number of an array with classes along its last axis, and of labels.
macro_rules! of_classes {
    ($py:expr, $name:literal, $array:expr, $labels:expr, |$values:ident, $classes:ident, $known:ident| $body:expr) => {{
        let array = Array::read($name, $array)?;
        let $classes = classes($py, $name, array.shape())?;
        let $known = labels("labels", $labels)?;
        with_float!(array.width($py)?, T => {
            let view = array.view::<T>().or_raise($py)?;
            let $values: &[T] = &view;
            $py.detach(|| $body).or_raise($py)
        })
    }};
}

/// Mean over data of -log p(label), in nats, from logarithms of probabilities with classes along the last axis. It is
/// infinite where a label has probability zero.
///
/// >>> sheave.bayes.nll(np.log([[0.5, 0.5], [0.2, 0.8]]), [0, 1]) == -(np.log(0.5) + np.log(0.8)) / 2
/// np.True_
#[pyfunction]
fn nll(py: Python<'_>, log_probabilities: &Bound<'_, PyAny>, labels: &Bound<'_, PyAny>) -> PyResult<f64> {
    of_classes!(py, "log_probabilities", log_probabilities, labels, |values, classes, known| {
        metrics::nll(values, classes, &known)
    })
}

/// Share of data whose most probable class is the label; of several classes the smallest counts.
///
/// >>> sheave.bayes.accuracy(np.array([[0.9, 0.1], [0.6, 0.4]]), [0, 1])
/// 0.5
#[pyfunction]
fn accuracy(py: Python<'_>, probabilities: &Bound<'_, PyAny>, labels: &Bound<'_, PyAny>) -> PyResult<f64> {
    of_classes!(py, "probabilities", probabilities, labels, |values, classes, known| {
        metrics::accuracy(values, classes, &known)
    })
}

/// Brier score (1950): mean over data of sum_c (p_c - [c is the label])**2, from 0, the best, to 2.
///
/// >>> sheave.bayes.brier(np.array([[1.0, 0.0], [0.5, 0.5]]), [0, 1])
/// 0.25
#[pyfunction]
fn brier(py: Python<'_>, probabilities: &Bound<'_, PyAny>, labels: &Bound<'_, PyAny>) -> PyResult<f64> {
    of_classes!(py, "probabilities", probabilities, labels, |values, classes, known| {
        metrics::brier(values, classes, &known)
    })
}

/// A calibration error, and the counts, confidences and accuracies of its bins.
type Calibration = (f64, Py<PyAny>, Py<PyAny>, Py<PyAny>);

/// Expected calibration error, and of each bin: count, mean confidence, accuracy. See sheave.bayes.reliability.
#[pyfunction]
#[pyo3(name = "_calibration", signature = (probabilities, labels, bins))]
fn calibration(
    py: Python<'_>,
    probabilities: &Bound<'_, PyAny>,
    labels: &Bound<'_, PyAny>,
    bins: usize,
) -> PyResult<Calibration> {
    if !(1..=BINS_MAX).contains(&bins) {
        return Err(refuse(py, "bins", &bins.to_string(), &format!("1 to {BINS_MAX}")));
    }
    let mut filled = vec![Bin::default(); bins];
    let error = of_classes!(py, "probabilities", probabilities, labels, |values, classes, known| {
        metrics::calibration_error(values, classes, &known, &mut filled)
    })?;
    let shape = [bins as u64];
    let counts: Vec<i64> = filled.iter().map(|bin| bin.count as i64).collect();
    let column = |of: fn(&Bin) -> f64| numpy(py, &filled.iter().map(of).collect::<Vec<f64>>(), &shape);
    Ok((error, numpy(py, &counts, &shape)?, column(|bin| bin.confidence)?, column(|bin| bin.accuracy)?))
}

/// Three arrays of one shape and dtype.
fn three(py: Python<'_>, names: [&str; 3], arrays: [&Bound<'_, PyAny>; 3]) -> PyResult<([Array; 3], Width)> {
    let [one, two, three] = arrays;
    let arrays = [Array::read(names[0], one)?, Array::read(names[1], two)?, Array::read(names[2], three)?];
    let width = arrays[0].width(py)?;
    arrays[1..].iter().try_for_each(|array| array.expect(py, width, arrays[0].shape()))?;
    Ok((arrays, width))
}

/// Mean over targets of the negative log likelihood of normal predictions, (log(2 pi v) + (y - m)**2 / v) / 2, in nats.
///
/// All three have one shape and dtype.
///
/// >>> round(sheave.bayes.gaussian_nll(np.zeros(3), np.ones(3), np.zeros(3)), 4)
/// 0.9189
#[pyfunction]
fn gaussian_nll(
    py: Python<'_>,
    means: &Bound<'_, PyAny>,
    variances: &Bound<'_, PyAny>,
    targets: &Bound<'_, PyAny>,
) -> PyResult<f64> {
    let (arrays, width) = three(py, ["means", "variances", "targets"], [means, variances, targets])?;
    with_float!(width, T => {
        let [means, variances, targets] = [&arrays[0], &arrays[1], &arrays[2]].map(Array::view::<T>);
        let (means, variances, targets) = (means.or_raise(py)?, variances.or_raise(py)?, targets.or_raise(py)?);
        metrics::gaussian_nll(&means, &variances, &targets).or_raise(py)
    })
}

/// Share of targets that are within their intervals, ends included: about q for good intervals of probability q.
///
/// >>> sheave.bayes.coverage(np.array([0.0, 0.0]), np.array([1.0, 1.0]), np.array([0.5, 2.0]))
/// 0.5
#[pyfunction]
fn coverage(
    py: Python<'_>,
    lower: &Bound<'_, PyAny>,
    upper: &Bound<'_, PyAny>,
    targets: &Bound<'_, PyAny>,
) -> PyResult<f64> {
    let (arrays, width) = three(py, ["lower", "upper", "targets"], [lower, upper, targets])?;
    with_float!(width, T => {
        let [lower, upper, targets] = [&arrays[0], &arrays[1], &arrays[2]].map(Array::view::<T>);
        let (lower, upper, targets) = (lower.or_raise(py)?, upper.or_raise(py)?, targets.or_raise(py)?);
        metrics::coverage(&lower, &upper, &targets).or_raise(py)
    })
}

/// Adds the functions to the module.
pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let functions = [
        wrap_pyfunction!(nll, module)?,
        wrap_pyfunction!(accuracy, module)?,
        wrap_pyfunction!(brier, module)?,
        wrap_pyfunction!(gaussian_nll, module)?,
        wrap_pyfunction!(coverage, module)?,
    ];
    functions.into_iter().try_for_each(|function| module.add_function(function))?;
    module.setattr("_calibration", wrap_pyfunction!(calibration, module)?)
}
