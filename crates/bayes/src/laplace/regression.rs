//! A last layer that predicts numbers.

use sheave_base::Result;

use super::spectrum::{Spectrum, check_weights, dot};
use super::{Evidence, PRECISION_MAX, STEPS_MAX, TOLERANCE};
use crate::Real;
use crate::check::{finite, length, number, refuse, rows};
use crate::random::Generator;

const OPERATION: &str = "laplace regression";

/// Sums over the data of a regression: `ΦᵀΦ`, `ΦᵀY` and squares of `Y`.
///
/// ```
/// use sheave_bayes::laplace::Regression;
///
/// let mut data = Regression::new(2, 1)?;
/// // Rows of features, the second one the constant for a bias, and targets.
/// data.add(&[0.0_f64, 1.0, 1.0, 1.0, 2.0, 1.0], &[1.0, 3.1, 4.9])?;
/// let fit = data.fit()?;
/// let best = fit.maximize_evidence(1.0, 1.0)?;
/// let posterior = fit.posterior(best.prior_precision, best.noise_variance)?;
/// let (mut mean, mut variance) = ([0.0], [0.0]);
/// posterior.predict(&[1.5_f64, 1.0], &mut mean, &mut variance)?;
/// assert!((mean[0] - 4.0).abs() < 0.2 && variance[0] > best.noise_variance);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Regression {
    features: usize,
    outputs: usize,
    data: u64,
    /// features × features.
    gram: Vec<f64>,
    /// outputs × features.
    cross: Vec<f64>,
    squares: f64,
}

impl Regression {
    /// Begins without data, for a layer of so many features and outputs. The outputs have one precision and one
    /// variance of noise in common.
    ///
    /// # Errors
    /// `InvalidArgument` for no outputs, no features, or more than [`WEIGHTS_MAX`](super::WEIGHTS_MAX) features.
    pub fn new(features: usize, outputs: usize) -> Result<Self> {
        check_weights("features", Some(features))?;
        check_weights("outputs", Some(outputs))?;
        let (gram, cross) = (vec![0.0; features * features], vec![0.0; outputs * features]);
        Ok(Self { features, outputs, data: 0, gram, cross, squares: 0.0 })
    }

    /// Adds a batch of `B` data: `features` is `B ×` features by rows, `targets` `B ×` outputs. Allocates nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for lengths that do not fit, or numbers that are not finite; nothing is added then.
    pub fn add<T: Real>(&mut self, features: &[T], targets: &[T]) -> Result<()> {
        let count = rows(OPERATION, "features", features.len(), self.features)?;
        length(OPERATION, "targets", targets.len(), count * self.outputs)?;
        finite(OPERATION, "features", features)?;
        finite(OPERATION, "targets", targets)?;
        self.data += count as u64;
        for (datum, target) in features.chunks_exact(self.features).zip(targets.chunks_exact(self.outputs)) {
            add_outer(&mut self.gram, datum, datum);
            add_outer(&mut self.cross, target, datum);
            self.squares += target.iter().map(|value| value.to_double() * value.to_double()).sum::<f64>();
        }
        Ok(())
    }

    /// Computes the eigenvalues of `ΦᵀΦ`, in the third power of the number of features.
    ///
    /// # Errors
    /// `InvalidArgument` where there are no data, or no eigenvalues were found.
    pub fn fit(&self) -> Result<RegressionFit> {
        if self.data == 0 {
            return Err(refuse(OPERATION, "the number of data", 0, "one at least"));
        }
        let spectrum = Spectrum::of(&self.gram, self.features)?;
        let rotate = |row: &[f64]| spectrum.pairs().map(|(_, vector)| dot(vector, row)).collect::<Vec<_>>();
        let rotated = self.cross.chunks_exact(self.features).flat_map(rotate).collect();
        let values = (self.data * self.outputs as u64) as f64;
        Ok(RegressionFit { spectrum, rotated, values, outputs: self.outputs, squares: self.squares })
    }
}

fn add_outer<T: Real>(sums: &mut [f64], left: &[T], right: &[T]) {
    for (row, factor) in sums.chunks_exact_mut(right.len()).zip(left) {
        let factor = factor.to_double();
        for (sum, value) in row.iter_mut().zip(right) {
            *sum += factor * value.to_double();
        }
    }
}

/// A regression whose posterior and evidence are known for every precision `α` of the prior and variance `σ²` of the
/// noise.
#[derive(Clone, Debug)]
pub struct RegressionFit {
    spectrum: Spectrum,
    /// The rows of `YᵀΦ` in the basis of eigenvectors: outputs × features.
    rotated: Vec<f64>,
    /// How many targets there are, of all data and outputs.
    values: f64,
    outputs: usize,
    squares: f64,
}

impl RegressionFit {
    /// Returns the logarithm of the evidence, `log N(Y; 0, σ² I + ΦΦᵀ / α)`, in nats and summed over outputs (Bishop,
    /// "Pattern recognition and machine learning", 2006, equation 3.86).
    ///
    /// # Errors
    /// `InvalidArgument` for a precision or a variance that is not above zero.
    pub fn log_evidence(&self, prior_precision: f64, noise_variance: f64) -> Result<f64> {
        check_settings(prior_precision, noise_variance)?;
        let precision = 1.0 / noise_variance;
        let Moments { residual, norm } = self.moments(prior_precision, precision);
        let log_ratios: f64 =
            self.spectrum.values().iter().map(|value| (precision * value / prior_precision).ln_1p()).sum();
        let constant = (std::f64::consts::TAU * noise_variance).ln() * self.values;
        Ok(-0.5 * (constant + self.outputs as f64 * log_ratios + precision * residual + prior_precision * norm))
    }

    /// Sum of squared residuals at the mean of the posterior, and the squared norm of that.
    fn moments(&self, prior_precision: f64, precision: f64) -> Moments {
        let mut moments = Moments { residual: self.squares, norm: 0.0 };
        let values = self.spectrum.values();
        for row in self.rotated.chunks_exact(values.len()) {
            for (value, cross) in values.iter().zip(row) {
                let mean = precision * cross / (precision * value + prior_precision);
                moments.residual += mean * (value * mean - 2.0 * cross);
                moments.norm += mean * mean;
            }
        }
        moments.residual = moments.residual.max(0.0);
        moments
    }

    /// Finds precision and variance of the largest evidence, from a start, by MacKay's fixed point.
    ///
    /// # Errors
    /// `InvalidArgument` for a precision or a variance that is not above zero.
    pub fn maximize_evidence(&self, prior_precision: f64, noise_variance: f64) -> Result<Evidence> {
        check_settings(prior_precision, noise_variance)?;
        let bounded = |value: f64| value.clamp(1.0 / PRECISION_MAX, PRECISION_MAX);
        let (mut alpha, mut noise, mut converged, mut steps) =
            (bounded(prior_precision), bounded(noise_variance), false, 0);
        let determined = |alpha: f64, noise: f64| {
            let share = |&value: &f64| value / (value + alpha * noise);
            self.outputs as f64 * self.spectrum.values().iter().map(share).sum::<f64>()
        };
        while !converged && steps < STEPS_MAX {
            let gamma = determined(alpha, noise);
            let Moments { residual, norm } = self.moments(alpha, 1.0 / noise);
            let free = (self.values - gamma).max(f64::MIN_POSITIVE);
            let next = (ratio(gamma, norm), bounded(residual / free));
            converged = is_close(next.0, alpha) && is_close(next.1, noise);
            (alpha, noise) = next;
            steps += 1;
        }
        Ok(Evidence {
            prior_precision: alpha,
            noise_variance: noise,
            log_evidence: self.log_evidence(alpha, noise)?,
            determined: determined(alpha, noise),
            converged,
        })
    }

    /// Makes the posterior of a precision `α` and a variance `σ²`.
    ///
    /// # Errors
    /// `InvalidArgument` for one that is not above zero.
    pub fn posterior(&self, prior_precision: f64, noise_variance: f64) -> Result<RegressionPosterior> {
        check_settings(prior_precision, noise_variance)?;
        let spectrum = self.spectrum.clone();
        let features = spectrum.values().len();
        let mut mean = vec![0.0; self.outputs * features];
        for (row, rotated) in mean.chunks_exact_mut(features).zip(self.rotated.chunks_exact(features)) {
            for ((value, vector), cross) in spectrum.pairs().zip(rotated) {
                let factor = cross / (value + prior_precision * noise_variance);
                row.iter_mut().zip(vector).for_each(|(weight, part)| *weight += factor * part);
            }
        }
        Ok(RegressionPosterior { spectrum, mean, prior_precision, noise_variance })
    }
}

struct Moments {
    residual: f64,
    norm: f64,
}

/// `γ / |W|²` within its bounds; its upper one without weights.
pub(super) fn ratio(determined: f64, norm: f64) -> f64 {
    if norm > 0.0 { (determined / norm).clamp(1.0 / PRECISION_MAX, PRECISION_MAX) } else { PRECISION_MAX }
}

pub(super) fn is_close(one: f64, other: f64) -> bool {
    (one - other).abs() <= TOLERANCE * other
}

fn check_settings(prior_precision: f64, noise_variance: f64) -> Result<()> {
    let expected = "a finite number above zero";
    number(OPERATION, "prior_precision", prior_precision, prior_precision > 0.0, expected)?;
    number(OPERATION, "noise_variance", noise_variance, noise_variance > 0.0, expected)
}

/// The posterior of the weights: normal, with one covariance `(ΦᵀΦ / σ² + α I)⁻¹` for the features of each output,
/// which are independent of each other.
#[derive(Clone, Debug)]
pub struct RegressionPosterior {
    spectrum: Spectrum,
    mean: Vec<f64>,
    prior_precision: f64,
    noise_variance: f64,
}

impl RegressionPosterior {
    /// Returns the mean: outputs × features, by rows.
    #[must_use]
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// Computes the covariance of one output's weights: features × features.
    #[must_use]
    pub fn covariance(&self) -> Vec<f64> {
        self.spectrum.covariance(1.0 / self.noise_variance, self.prior_precision)
    }

    /// Draws weights: outputs × features. Allocates nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for another length.
    pub fn sample(&self, generator: &mut Generator, weights: &mut [f64]) -> Result<()> {
        length(OPERATION, "weights", weights.len(), self.mean.len())?;
        weights.copy_from_slice(&self.mean);
        for row in weights.chunks_exact_mut(self.spectrum.values().len()) {
            self.spectrum.add_sample(1.0 / self.noise_variance, self.prior_precision, generator, row);
        }
        Ok(())
    }

    /// Predicts `B` data: `features` is `B ×` features by rows, `mean` `B ×` outputs, and `variance` has one element
    /// for each datum, the same for each output: `σ² + φᵀ Σ φ`, of noise and model together. Allocates nothing.
    ///
    /// # Errors
    /// `InvalidArgument` for lengths that do not fit, or features that are not finite.
    pub fn predict<T: Real>(&self, features: &[T], mean: &mut [f64], variance: &mut [f64]) -> Result<()> {
        let width = self.spectrum.values().len();
        let outputs = self.mean.len() / width;
        let count = rows(OPERATION, "features", features.len(), width)?;
        length(OPERATION, "mean", mean.len(), count * outputs)?;
        length(OPERATION, "variance", variance.len(), count)?;
        finite(OPERATION, "features", features)?;
        let along = |row: &[f64], datum: &[T]| -> f64 {
            row.iter().zip(datum).map(|(weight, value)| weight * value.to_double()).sum()
        };
        for (place, datum) in features.chunks_exact(width).enumerate() {
            for (output, row) in self.mean.chunks_exact(width).enumerate() {
                mean[place * outputs + output] = along(row, datum);
            }
            let of_weights = self.spectrum.pairs().map(|(value, vector)| {
                along(vector, datum).powi(2) / (value / self.noise_variance + self.prior_precision)
            });
            variance[place] = self.noise_variance + of_weights.sum::<f64>();
        }
        Ok(())
    }
}
