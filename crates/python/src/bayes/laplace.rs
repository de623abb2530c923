//! Laplace approximations of a last layer.

use super::array::{Array, filled, labels, numpy, with_float};
use super::random::PyGenerator;
use crate::errors::OrRaise;
use pyo3::prelude::*;
use sheave_bayes::laplace::{
    Classification, ClassificationFit, ClassificationPosterior, Evidence, Regression, RegressionFit,
    RegressionPosterior, Workspace,
};

/// Evidence as (prior_precision, noise_variance, log_evidence, determined, converged).
type Found = (f64, f64, f64, f64, bool);

fn found(evidence: &Evidence) -> Found {
    let Evidence { prior_precision, noise_variance, log_evidence, determined, converged } = *evidence;
    (prior_precision, noise_variance, log_evidence, determined, converged)
}

/// Checks features: `B` rows of so many.
fn rows(py: Python<'_>, features: &Array, width: usize) -> PyResult<u64> {
    let count = features.expect_rank(py, 2, "a matrix of data by features")?[0];
    features.expect(py, features.width(py)?, &[count, width as u64])?;
    Ok(count)
}

/// A regression on fixed features. `sheave.bayes.LaplaceRegression` is its face.
#[pyclass(name = "RegressionLayer", module = "sheave._core")]
pub(super) struct PyRegression {
    sums: Regression,
    features: usize,
    outputs: usize,
    fit: Option<RegressionFit>,
}

impl PyRegression {
    fn fitted(&mut self, py: Python<'_>) -> PyResult<&RegressionFit> {
        let fit = match self.fit.take() {
            Some(fit) => fit,
            None => py.detach(|| self.sums.fit()).or_raise(py)?,
        };
        Ok(self.fit.insert(fit))
    }
}

#[pymethods]
impl PyRegression {
    #[new]
    fn new(py: Python<'_>, features: usize, outputs: usize) -> PyResult<Self> {
        let sums = Regression::new(features, outputs).or_raise(py)?;
        Ok(Self { sums, features, outputs, fit: None })
    }

    /// Add a batch.
    fn add(&mut self, py: Python<'_>, features: &Bound<'_, PyAny>, targets: &Bound<'_, PyAny>) -> PyResult<()> {
        let (features, targets) = (Array::read("features", features)?, Array::read("targets", targets)?);
        let count = rows(py, &features, self.features)?;
        let width = features.width(py)?;
        targets.expect(py, width, &[count, self.outputs as u64])?;
        with_float!(width, T => {
            let (of_features, of_targets) =
                (features.view::<T>().or_raise(py)?, targets.view::<T>().or_raise(py)?);
            let (data, wanted): (&[T], &[T]) = (&of_features, &of_targets);
            py.detach(|| self.sums.add(data, wanted)).or_raise(py)?;
        });
        self.fit = None;
        Ok(())
    }

    /// Logarithm of the evidence.
    fn log_evidence(&mut self, py: Python<'_>, prior_precision: f64, noise_variance: f64) -> PyResult<f64> {
        self.fitted(py)?.log_evidence(prior_precision, noise_variance).or_raise(py)
    }

    /// The settings of the largest evidence, from a start.
    fn maximize_evidence(&mut self, py: Python<'_>, prior_precision: f64, noise_variance: f64) -> PyResult<Found> {
        let fit = self.fitted(py)?;
        let evidence = py.detach(|| fit.maximize_evidence(prior_precision, noise_variance)).or_raise(py)?;
        Ok(found(&evidence))
    }

    /// The posterior of two settings.
    fn posterior(
        &mut self,
        py: Python<'_>,
        prior_precision: f64,
        noise_variance: f64,
    ) -> PyResult<PyRegressionPosterior> {
        let (features, outputs) = (self.features, self.outputs);
        let posterior = self.fitted(py)?.posterior(prior_precision, noise_variance).or_raise(py)?;
        Ok(PyRegressionPosterior { posterior, features, outputs })
    }
}

/// The normal posterior of the weights of a regression: of each output its own, with one covariance for all.
#[pyclass(name = "RegressionPosterior", module = "sheave.bayes", frozen)]
pub(super) struct PyRegressionPosterior {
    posterior: RegressionPosterior,
    features: usize,
    outputs: usize,
}

#[pymethods]
impl PyRegressionPosterior {
    /// The mean: outputs by features.
    #[getter]
    fn mean(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        numpy(py, self.posterior.mean(), &[self.outputs as u64, self.features as u64])
    }

    /// The covariance of the weights of one output: features by features.
    #[getter]
    fn covariance(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let covariance = py.detach(|| self.posterior.covariance());
        numpy(py, &covariance, &[self.features as u64; 2])
    }

    /// Draw weights: outputs by features, float64.
    fn sample(&self, py: Python<'_>, generator: &mut PyGenerator) -> PyResult<Py<PyAny>> {
        filled::<f64>(py, &[self.outputs as u64, self.features as u64], |weights| {
            self.posterior.sample(&mut generator.0, weights)
        })
    }

    /// Mean [B, outputs] and variance [B] of predictions for features [B, features]; the variance is the same for each
    /// output, and that of noise and model together.
    fn predict(&self, py: Python<'_>, features: &Bound<'_, PyAny>) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
        let features = Array::read("features", features)?;
        let count = rows(py, &features, self.features)?;
        let mut variance = vec![0.0; count as usize];
        let mean = with_float!(features.width(py)?, T => {
            let view = features.view::<T>().or_raise(py)?;
            let data: &[T] = &view;
            filled::<f64>(py, &[count, self.outputs as u64], |mean| self.posterior.predict(data, mean, &mut variance))?
        });
        Ok((mean, numpy(py, &variance, &[count])?))
    }

    fn __repr__(&self) -> String {
        format!("RegressionPosterior(outputs={}, features={})", self.outputs, self.features)
    }
}

/// A classification on fixed features. `sheave.bayes.LaplaceClassification` is its face.
#[pyclass(name = "ClassificationLayer", module = "sheave._core")]
pub(super) struct PyClassification {
    sums: Classification,
    classes: usize,
    features: usize,
    fit: Option<ClassificationFit>,
}

impl PyClassification {
    fn fitted(&mut self, py: Python<'_>) -> PyResult<&ClassificationFit> {
        let fit = match self.fit.take() {
            Some(fit) => fit,
            None => py.detach(|| self.sums.fit()).or_raise(py)?,
        };
        Ok(self.fit.insert(fit))
    }
}

#[pymethods]
impl PyClassification {
    #[new]
    fn new(py: Python<'_>, weights: &Bound<'_, PyAny>) -> PyResult<Self> {
        let weights = Array::read("weights", weights)?;
        let shape = weights.expect_rank(py, 2, "a matrix of classes by features")?;
        let (classes, features) = (shape[0] as usize, shape[1] as usize);
        let sums = with_float!(weights.width(py)?, T => {
            Classification::new::<T>(classes, &weights.view().or_raise(py)?).or_raise(py)?
        });
        Ok(Self { sums, classes, features, fit: None })
    }

    /// Add a batch.
    fn add(&mut self, py: Python<'_>, features: &Bound<'_, PyAny>, labels: &Bound<'_, PyAny>) -> PyResult<()> {
        let features = Array::read("features", features)?;
        rows(py, &features, self.features)?;
        let labels = self::labels("labels", labels)?;
        with_float!(features.width(py)?, T => {
            let view = features.view::<T>().or_raise(py)?;
            let data: &[T] = &view;
            py.detach(|| self.sums.add(data, &labels)).or_raise(py)?;
        });
        self.fit = None;
        Ok(())
    }

    /// Logarithm of the evidence.
    fn log_evidence(&mut self, py: Python<'_>, prior_precision: f64) -> PyResult<f64> {
        self.fitted(py)?.log_evidence(prior_precision).or_raise(py)
    }

    /// The precision of the largest evidence, from a start.
    fn maximize_evidence(&mut self, py: Python<'_>, prior_precision: f64) -> PyResult<Found> {
        let fit = self.fitted(py)?;
        let evidence = py.detach(|| fit.maximize_evidence(prior_precision)).or_raise(py)?;
        Ok(found(&evidence))
    }

    /// The posterior of a precision.
    fn posterior(&mut self, py: Python<'_>, prior_precision: f64) -> PyResult<PyClassificationPosterior> {
        let (features, classes) = (self.features, self.classes);
        let posterior = self.fitted(py)?.posterior(prior_precision).or_raise(py)?;
        Ok(PyClassificationPosterior { posterior, classes, features })
    }
}

/// The normal posterior of the weights of a classification, about the trained ones, with one covariance of all.
#[pyclass(name = "ClassificationPosterior", module = "sheave.bayes", frozen)]
pub(super) struct PyClassificationPosterior {
    posterior: ClassificationPosterior,
    classes: usize,
    features: usize,
}

#[pymethods]
impl PyClassificationPosterior {
    /// The mean: classes by features.
    #[getter]
    fn mean(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        numpy(py, self.posterior.mean(), &[self.classes as u64, self.features as u64])
    }

    /// The covariance of all weights, class after class.
    #[getter]
    fn covariance(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let covariance = py.detach(|| self.posterior.covariance());
        numpy(py, &covariance, &[(self.classes * self.features) as u64; 2])
    }

    /// Draw weights: classes by features, float64.
    fn sample(&self, py: Python<'_>, generator: &mut PyGenerator) -> PyResult<Py<PyAny>> {
        filled::<f64>(py, &[self.classes as u64, self.features as u64], |weights| {
            self.posterior.sample(&mut generator.0, weights)
        })
    }

    /// Probabilities [B, classes] for features [B, features] by the probit approximation (MacKay 1992):
    /// softmax(f / sqrt(1 + pi / 8 * variance)).
    fn probit(&self, py: Python<'_>, features: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let features = Array::read("features", features)?;
        let shape = [rows(py, &features, self.features)?, self.classes as u64];
        with_float!(features.width(py)?, T => {
            let view = features.view::<T>().or_raise(py)?;
            let data: &[T] = &view;
            filled::<f64>(py, &shape, |out| self.posterior.probit(data, &mut Workspace::default(), out))
        })
    }

    /// Probabilities [B, classes] by the mean over `samples` samples of the logits, exact as their number grows.
    #[pyo3(signature = (features, generator, samples = 100))]
    fn sampled(
        &self,
        py: Python<'_>,
        features: &Bound<'_, PyAny>,
        generator: &mut PyGenerator,
        samples: u32,
    ) -> PyResult<Py<PyAny>> {
        let features = Array::read("features", features)?;
        let shape = [rows(py, &features, self.features)?, self.classes as u64];
        with_float!(features.width(py)?, T => {
            let view = features.view::<T>().or_raise(py)?;
            let data: &[T] = &view;
            filled::<f64>(py, &shape, |out| {
                self.posterior.sampled(data, samples, &mut generator.0, &mut Workspace::default(), out)
            })
        })
    }

    fn __repr__(&self) -> String {
        format!("ClassificationPosterior(classes={}, features={})", self.classes, self.features)
    }
}
