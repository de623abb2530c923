//! Priors, and heads that predict a variance.

use super::array::{Array, Rows, Width, filled, refuse, require_disjoint, with_float};
use crate::errors::OrRaise;
use pyo3::prelude::*;
use sheave_bayes::ensemble::{self, GaussianHead};
use sheave_bayes::prior::Normal;

/// Independent normal priors of all parameters, with one mean and one standard deviation.
///
/// The gradient of -log p is (parameters - mean) / deviation**2. It belongs to a loss of the whole data, (N / B) times
/// the sum over a batch of B of N data.
///
/// >>> prior = sheave.bayes.Normal(deviation=2.0)
/// >>> gradient = np.ones(2, np.float32)
/// >>> prior.add_gradient(np.array([4.0, -4.0], np.float32), gradient)
/// >>> gradient
/// array([2., 0.], dtype=float32)
#[pyclass(name = "Normal", module = "sheave.bayes", frozen)]
pub(super) struct PyNormal(Normal);

#[pymethods]
impl PyNormal {
    #[new]
    #[pyo3(signature = (mean = 0.0, deviation = 1.0))]
    fn new(py: Python<'_>, mean: f64, deviation: f64) -> PyResult<Self> {
        let prior = Normal { mean, deviation };
        prior.check().or_raise(py)?;
        Ok(Self(prior))
    }

    /// The mean of each parameter.
    #[getter]
    fn mean(&self) -> f64 {
        self.0.mean
    }

    /// The standard deviation of each parameter.
    #[getter]
    fn deviation(&self) -> f64 {
        self.0.deviation
    }

    /// Logarithm of the density of flat parameters, in nats.
    fn log_density(&self, py: Python<'_>, parameters: &Bound<'_, PyAny>) -> PyResult<f64> {
        let parameters = Array::read("parameters", parameters)?;
        with_float!(parameters.width(py)?, T => {
            let view = parameters.view::<T>().or_raise(py)?;
            let values: &[T] = &view;
            py.detach(|| self.0.log_density(values)).or_raise(py)
        })
    }

    /// Add the gradient of -log p to the gradient of a loss, in place. Both are flat, of one length and dtype.
    fn add_gradient(&self, py: Python<'_>, parameters: &Bound<'_, PyAny>, gradient: &Bound<'_, PyAny>) -> PyResult<()> {
        let (parameters, gradient) = (Array::read("parameters", parameters)?, Array::write("gradient", gradient)?);
        let width = parameters.width(py)?;
        gradient.expect(py, width, parameters.shape())?;
        require_disjoint(py, [&gradient], [&parameters])?;
        with_float!(width, T => {
            let view = parameters.view::<T>().or_raise(py)?;
            let mut lease = gradient.lease().or_raise(py)?;
            let (values, slopes): (&[T], _) = (&view, gradient.elements_mut::<T>(&mut lease).or_raise(py)?);
            py.detach(|| self.0.add_gradient(values, slopes)).or_raise(py)
        })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, pyo3::types::PyType>, (f64, f64)) {
        (slf.get_type(), (slf.get().0.mean, slf.get().0.deviation))
    }

    fn __repr__(&self) -> String {
        format!("Normal(mean={:?}, deviation={:?})", self.0.mean, self.0.deviation)
    }
}

fn head(py: Python<'_>, [mean, log_variance, targets]: [&Bound<'_, PyAny>; 3]) -> PyResult<([Array; 3], Width)> {
    let arrays =
        [Array::read("mean", mean)?, Array::read("log_variance", log_variance)?, Array::read("targets", targets)?];
    let width = arrays[0].width(py)?;
    arrays[1..].iter().try_for_each(|array| array.expect(py, width, arrays[0].shape()))?;
    Ok((arrays, width))
}

/// Mean negative log likelihood of a head that predicts mean and logarithm s of the variance of each target, in nats:
/// (log 2 pi + s + (y - m)**2 exp(-s)) / 2 (Nix and Weigend 1994). All three have one shape and dtype.
///
/// >>> round(sheave.bayes.gaussian_head_nll(np.zeros(2), np.zeros(2), np.ones(2)), 4)
/// 1.4189
#[pyfunction]
fn gaussian_head_nll(
    py: Python<'_>,
    mean: &Bound<'_, PyAny>,
    log_variance: &Bound<'_, PyAny>,
    targets: &Bound<'_, PyAny>,
) -> PyResult<f64> {
    let (arrays, width) = head(py, [mean, log_variance, targets])?;
    with_float!(width, T => {
        let views = [&arrays[0], &arrays[1], &arrays[2]].map(Array::view::<T>);
        let [mean, log_variance, targets] = views;
        let (mean, log_variance) = (mean.or_raise(py)?, log_variance.or_raise(py)?);
        GaussianHead { mean: &mean, log_variance: &log_variance }.nll(&targets.or_raise(py)?).or_raise(py)
    })
}

/// Gradient of gaussian_head_nll: for the means (m - y) exp(-s) / n, and for the logarithms
/// (1 - (y - m)**2 exp(-s)) / (2 n), for n targets in all.
///
/// >>> sheave.bayes.gaussian_head_gradient(np.zeros(1), np.zeros(1), np.ones(1))
/// (array([-1.]), array([0.]))
#[pyfunction]
fn gaussian_head_gradient(
    py: Python<'_>,
    mean: &Bound<'_, PyAny>,
    log_variance: &Bound<'_, PyAny>,
    targets: &Bound<'_, PyAny>,
) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
    let (arrays, width) = head(py, [mean, log_variance, targets])?;
    with_float!(width, T => {
        let views = [&arrays[0], &arrays[1], &arrays[2]].map(Array::view::<T>);
        let [mean, log_variance, targets] = views;
        let (mean, log_variance, targets) =
            (mean.or_raise(py)?, log_variance.or_raise(py)?, targets.or_raise(py)?);
        let head = GaussianHead { mean: &mean, log_variance: &log_variance };
        let mut of_log_variance = vec![T::default(); targets.len()];
        let of_mean = filled::<T>(py, arrays[0].shape(), |of_mean| {
            head.gradient(&targets, of_mean, &mut of_log_variance)
        })?;
        Ok((of_mean, super::array::numpy(py, &of_log_variance, arrays[0].shape())?))
    })
}

/// Mean and variance of the mixture of members' normal predictions: the mean of means, and the mean of variances plus
/// the variance of means, which is what members disagree by (Lakshminarayanan et al. 2017).
///
/// >>> sheave.bayes.mixture([np.array([1.0]), np.array([3.0])], [np.array([0.5]), np.array([1.5])])
/// (array([2.]), array([2.]))
#[pyfunction]
fn mixture(py: Python<'_>, means: &Bound<'_, PyAny>, variances: &Bound<'_, PyAny>) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
    let (means, variances) = (Rows::read("means", means)?, Rows::read("variances", variances)?);
    let shape = means.row_shape();
    if (variances.count(), variances.row_shape(), variances.width()) != (means.count(), shape, means.width()) {
        let is = format!("{} arrays of shape {:?}", variances.count(), variances.row_shape());
        return Err(refuse(py, "variances", &is, &format!("as means, {} of {shape:?} of one dtype", means.count())));
    }
    with_float!(means.width(), T => {
        let (of_means, of_variances) = (means.views::<T>().or_raise(py)?, variances.views::<T>().or_raise(py)?);
        let (of_means, of_variances) = (means.split(&of_means), variances.split(&of_variances));
        let mut variance = vec![T::default(); means.row_elements()];
        let mean = filled::<T>(py, shape, |mean| ensemble::mixture(&of_means, &of_variances, mean, &mut variance))?;
        Ok((mean, super::array::numpy(py, &variance, shape)?))
    })
}

/// Adds the class and the functions to the module.
pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyNormal>()?;
    let functions = [
        wrap_pyfunction!(gaussian_head_nll, module)?,
        wrap_pyfunction!(gaussian_head_gradient, module)?,
        wrap_pyfunction!(mixture, module)?,
    ];
    functions.into_iter().try_for_each(|function| module.add_function(function))
}
