//! A last layer that predicts classes.

use sheave_base::Result;

use super::regression::{is_close, ratio};
use super::spectrum::{Spectrum, check_weights, dot};
use super::{Evidence, PRECISION_MAX, STEPS_MAX};
use crate::Real;
use crate::check::{finite, length, number, refuse, rows};
use crate::predict::log_sum_exp;
use crate::random::Generator;

const OPERATION: &str = "laplace classification";

/// Sums over the data of a classification: the log likelihood of the trained weights, and the curvature there.
///
/// ```
/// use sheave_bayes::laplace::{Classification, Workspace};
///
/// // Two classes, a feature and a constant for the bias.
/// let mut data = Classification::new(2, &[-1.0_f64, 0.0, 1.0, 0.0])?;
/// data.add(&[-2.0_f64, 1.0, -1.0, 1.0, 1.5, 1.0], &[0, 0, 1])?;
/// let posterior = data.fit()?.posterior(1.0)?;
/// let mut probabilities = [0.0; 2];
/// posterior.probit(&[3.0_f64, 1.0], &mut Workspace::default(), &mut probabilities)?;
/// // Less sure than the trained weights alone.
/// assert!(probabilities[1] > 0.5 && probabilities[1] < 1.0 / (1.0 + (-6.0_f64).exp()));
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Classification {
    classes: usize,
    weights: Vec<f64>,
    data: u64,
    log_likelihood: f64,
    /// weights × weights; of its blocks of features × features those on and below the diagonal.
    curvature: Vec<f64>,
    probabilities: Vec<f64>,
}

impl Classification {
    /// Begins without data, at trained weights: classes × features, by rows.
    ///
    /// # Errors
    /// `InvalidArgument` for fewer than two classes, weights that make no whole rows or are not finite, or more than
    /// [`WEIGHTS_MAX`](super::WEIGHTS_MAX) of them.
    pub fn new<T: Real>(classes: usize, weights: &[T]) -> Result<Self> {
        if classes < 2 {
            return Err(refuse(OPERATION, "classes", classes, "2 or more"));
        }
        check_weights("the number of weights", Some(weights.len()))?;
        length(OPERATION, "weights", weights.len(), (weights.len() / classes).max(1) * classes)?;
        finite(OPERATION, "weights", weights)?;
        let curvature = vec![0.0; weights.len() * weights.len()];
        let weights = weights.iter().map(|weight| weight.to_double()).collect();
        Ok(Self { classes, weights, data: 0, log_likelihood: 0.0, curvature, probabilities: vec![0.0; classes] })
    }

    fn features(&self) -> usize {
        self.weights.len() / self.classes
    }

    /// Adds a batch of `B` data: `features` is `B ×` features by rows, `labels` one class for each. Allocates nothing;
    /// costs the square of the number of weights for each datum.
    ///
    /// # Errors
    /// `InvalidArgument` for lengths that do not fit, numbers that are not finite, or labels that are no class; nothing
    /// is added then.
    pub fn add<T: Real>(&mut self, features: &[T], labels: &[usize]) -> Result<()> {
        let width = self.features();
        let count = rows(OPERATION, "features", features.len(), width)?;
        length(OPERATION, "labels", labels.len(), count)?;
        finite(OPERATION, "features", features)?;
        if let Some(place) = labels.iter().position(|&label| label >= self.classes) {
            let expected = format!("below {}", self.classes);
            return Err(refuse(OPERATION, &format!("labels[{place}]"), labels[place], expected));
        }
        self.data += count as u64;
        for (datum, &label) in features.chunks_exact(width).zip(labels) {
            logits(&self.weights, datum, &mut self.probabilities);
            let total = log_sum_exp(self.probabilities.iter().copied());
            self.log_likelihood += self.probabilities[label] - total;
            self.probabilities.iter_mut().for_each(|logit| *logit = (*logit - total).exp());
            self.add_curvature(datum);
        }
        Ok(())
    }

    fn add_curvature<T: Real>(&mut self, datum: &[T]) {
        let (width, all) = (datum.len(), self.weights.len());
        for (one, first) in self.probabilities.iter().enumerate() {
            for (other, second) in self.probabilities[..=one].iter().enumerate() {
                let factor = if one == other { first * (1.0 - first) } else { -first * second };
                for (place, left) in datum.iter().enumerate() {
                    let left = factor * left.to_double();
                    let start = (one * width + place) * all + other * width;
                    for (sum, right) in self.curvature[start..start + width].iter_mut().zip(datum) {
                        *sum += left * right.to_double();
                    }
                }
            }
        }
    }

    /// Computes the eigenvalues of the curvature, in the third power of the number of weights.
    ///
    /// # Errors
    /// `InvalidArgument` where there are no data, or no eigenvalues were found.
    pub fn fit(&self) -> Result<ClassificationFit> {
        if self.data == 0 {
            return Err(refuse(OPERATION, "the number of data", 0, "one at least"));
        }
        let all = self.weights.len();
        let mut symmetric = self.curvature.clone();
        for row in 0..all {
            for column in row + 1..all {
                symmetric[row * all + column] = symmetric[column * all + row];
            }
        }
        let spectrum = Spectrum::of(&symmetric, all)?;
        let (classes, weights) = (self.classes, self.weights.clone());
        Ok(ClassificationFit { spectrum, classes, weights, log_likelihood: self.log_likelihood })
    }
}

/// A classification whose posterior and evidence are known for every precision `α` of the prior.
#[derive(Clone, Debug)]
pub struct ClassificationFit {
    spectrum: Spectrum,
    classes: usize,
    weights: Vec<f64>,
    log_likelihood: f64,
}

impl ClassificationFit {
    /// Returns the logarithm of Laplace's approximation of the evidence, in nats: for `P` weights
    /// `log p(D | W) + P/2 ln α - α/2 |W|² - 1/2 Σ ln(λ + α)`. The trained weights should be those of the precision
    /// `α`; where they are not it is an approximation more.
    ///
    /// # Errors
    /// `InvalidArgument` for a precision that is not above zero.
    pub fn log_evidence(&self, prior_precision: f64) -> Result<f64> {
        check_precision(prior_precision)?;
        let log_ratios: f64 = self.spectrum.values().iter().map(|value| (value / prior_precision).ln_1p()).sum();
        let norm = dot(&self.weights, &self.weights);
        Ok(self.log_likelihood - 0.5 * (prior_precision * norm + log_ratios))
    }

    /// Finds the precision of the largest evidence, from a start, by MacKay's fixed point.
    ///
    /// # Errors
    /// `InvalidArgument` for a precision that is not above zero.
    pub fn maximize_evidence(&self, prior_precision: f64) -> Result<Evidence> {
        check_precision(prior_precision)?;
        let norm = dot(&self.weights, &self.weights);
        let determined = |alpha: f64| self.spectrum.values().iter().map(|value| value / (value + alpha)).sum::<f64>();
        let mut alpha = prior_precision.clamp(1.0 / PRECISION_MAX, PRECISION_MAX);
        let (mut converged, mut steps) = (false, 0);
        while !converged && steps < STEPS_MAX {
            let next = ratio(determined(alpha), norm);
            converged = is_close(next, alpha);
            alpha = next;
            steps += 1;
        }
        Ok(Evidence {
            prior_precision: alpha,
            noise_variance: 1.0,
            log_evidence: self.log_evidence(alpha)?,
            determined: determined(alpha),
            converged,
        })
    }

    /// Makes the posterior of a precision `α`.
    ///
    /// # Errors
    /// `InvalidArgument` for a precision that is not above zero.
    pub fn posterior(&self, prior_precision: f64) -> Result<ClassificationPosterior> {
        check_precision(prior_precision)?;
        let (spectrum, weights) = (self.spectrum.clone(), self.weights.clone());
        Ok(ClassificationPosterior { spectrum, classes: self.classes, weights, prior_precision })
    }
}

fn check_precision(prior_precision: f64) -> Result<()> {
    number(OPERATION, "prior_precision", prior_precision, prior_precision > 0.0, "a finite number above zero")
}

/// Memory of predictions, which grows to some rows of classes and no more.
#[derive(Clone, Debug, Default)]
pub struct Workspace {
    logits: Vec<f64>,
    /// classes × classes: the covariance of logits, then its root.
    covariance: Vec<f64>,
    noise: Vec<f64>,
    row: Vec<f64>,
}

/// The posterior of the weights: normal, about the trained ones, with the covariance `(H + α I)⁻¹` of all of them.
#[derive(Clone, Debug)]
pub struct ClassificationPosterior {
    spectrum: Spectrum,
    classes: usize,
    weights: Vec<f64>,
    prior_precision: f64,
}

impl ClassificationPosterior {
    /// Returns the mean: classes × features, by rows.
    #[must_use]
    pub fn mean(&self) -> &[f64] {
        &self.weights
    }

    /// Computes the covariance: weights × weights.
    #[must_use]
    pub fn covariance(&self) -> Vec<f64> {
        self.spectrum.covariance(1.0, self.prior_precision)
    }

    /// Draws weights: classes × features. Allocates nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for another length.
    pub fn sample(&self, generator: &mut Generator, weights: &mut [f64]) -> Result<()> {
        length(OPERATION, "weights", weights.len(), self.weights.len())?;
        weights.copy_from_slice(&self.weights);
        self.spectrum.add_sample(1.0, self.prior_precision, generator, weights);
        Ok(())
    }

    /// Predicts `B` data by the probit approximation (MacKay, "The evidence framework applied to classification
    /// networks", 1992, for each class by itself): `softmax(f_c / sqrt(1 + π/8 S_cc))` of the means `f` and variances
    /// `S_cc` of the logits. `features` is `B ×` features by rows, `probabilities` `B ×` classes.
    ///
    /// # Errors
    /// `InvalidArgument` for lengths that do not fit, or features that are not finite.
    pub fn probit<T: Real>(&self, features: &[T], workspace: &mut Workspace, probabilities: &mut [f64]) -> Result<()> {
        let width = self.check(features, probabilities.len())?;
        for (datum, out) in features.chunks_exact(width).zip(probabilities.chunks_exact_mut(self.classes)) {
            self.predict_logits(datum, workspace);
            let diagonal = workspace.covariance.iter().step_by(self.classes + 1);
            for ((value, logit), variance) in out.iter_mut().zip(&workspace.logits).zip(diagonal) {
                *value = logit / (1.0 + std::f64::consts::FRAC_PI_8 * variance).sqrt();
            }
            softmax(out);
        }
        Ok(())
    }

    /// Predicts `B` data by the mean of the probabilities of so many samples of their logits, which is exact as the
    /// number grows. The data are sampled one by one; shapes are those of [`probit`](Self::probit).
    ///
    /// # Errors
    /// Those of [`probit`](Self::probit); `InvalidArgument` for no samples.
    pub fn sampled<T: Real>(
        &self,
        features: &[T],
        samples: u32,
        generator: &mut Generator,
        workspace: &mut Workspace,
        probabilities: &mut [f64],
    ) -> Result<()> {
        let width = self.check(features, probabilities.len())?;
        if samples == 0 {
            return Err(refuse(OPERATION, "samples", samples, "1 or more"));
        }
        for (datum, out) in features.chunks_exact(width).zip(probabilities.chunks_exact_mut(self.classes)) {
            self.predict_logits(datum, workspace);
            let Workspace { logits, covariance, noise, row } = &mut *workspace;
            root(covariance, self.classes);
            out.fill(0.0);
            for _ in 0..samples {
                noise.iter_mut().for_each(|value| *value = generator.normal());
                for ((value, logit), factors) in row.iter_mut().zip(&*logits).zip(covariance.chunks(self.classes)) {
                    *value = logit + dot(factors, noise);
                }
                softmax(row);
                out.iter_mut().zip(&*row).for_each(|(sum, value)| *sum += value);
            }
            out.iter_mut().for_each(|sum| *sum /= f64::from(samples));
        }
        Ok(())
    }

    fn check<T: Real>(&self, features: &[T], found: usize) -> Result<usize> {
        let width = self.weights.len() / self.classes;
        let count = rows(OPERATION, "features", features.len(), width)?;
        length(OPERATION, "probabilities", found, count * self.classes)?;
        finite(OPERATION, "features", features)?;
        Ok(width)
    }

    /// The mean of a datum's logits and their covariance: `Σ_r u_r u_rᵀ / (λ_r + α)`, where `u_r` are the logits that
    /// the eigenvector `r` would give as weights.
    fn predict_logits<T: Real>(&self, datum: &[T], workspace: &mut Workspace) {
        let classes = self.classes;
        for part in [&mut workspace.logits, &mut workspace.noise, &mut workspace.row] {
            part.resize(classes, 0.0);
        }
        workspace.covariance.clear();
        workspace.covariance.resize(classes * classes, 0.0);
        logits(&self.weights, datum, &mut workspace.logits);
        for (value, vector) in self.spectrum.pairs() {
            logits(vector, datum, &mut workspace.row);
            let variance = 1.0 / (value + self.prior_precision);
            for (row, left) in workspace.covariance.chunks_exact_mut(classes).zip(&workspace.row) {
                row.iter_mut().zip(&workspace.row).for_each(|(sum, right)| *sum += variance * left * right);
            }
        }
    }
}

fn logits<T: Real>(weights: &[f64], datum: &[T], out: &mut [f64]) {
    for (logit, row) in out.iter_mut().zip(weights.chunks_exact(datum.len())) {
        *logit = row.iter().zip(datum).map(|(weight, value)| weight * value.to_double()).sum();
    }
}

fn softmax(values: &mut [f64]) {
    let total = log_sum_exp(values.iter().copied());
    values.iter_mut().for_each(|value| *value = (*value - total).exp());
}

/// Turns a covariance into its lower triangular root in place (Cholesky). A column without variance that rounding has
/// left is zero, as for a datum without features.
fn root(matrix: &mut [f64], rows: usize) {
    for column in 0..rows {
        let (above, below) = matrix.split_at_mut(column * rows + rows);
        let pivot_row = &mut above[column * rows..];
        let rest = pivot_row[column] - dot(&pivot_row[..column], &pivot_row[..column]);
        let pivot = rest.max(0.0).sqrt();
        pivot_row[column] = pivot;
        pivot_row[column + 1..].fill(0.0);
        for row in below.chunks_exact_mut(rows) {
            let rest = row[column] - dot(&row[..column], &pivot_row[..column]);
            row[column] = if pivot > 0.0 { rest / pivot } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_of_a_covariance() {
        let mut matrix = [4.0, 2.0, 2.0, 2.0, 5.0, 3.0, 2.0, 3.0, 6.0];
        root(&mut matrix, 3);
        assert_eq!(matrix, [2.0, 0.0, 0.0, 1.0, 2.0, 0.0, 1.0, 1.0, 2.0]);
        let mut flat = [0.0, 0.0, 0.0, 1.0];
        root(&mut flat, 2);
        assert_eq!(flat, [0.0, 0.0, 0.0, 1.0]);
    }
}
