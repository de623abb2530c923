//! Deep ensembles (Lakshminarayanan, Pritzel and Blundell, NeurIPS 2017, arXiv:1612.01474): what members need to
//! differ, a head that predicts its own variance, and dropout as an ensemble.
//!
//! Each member draws its initial weights, its batches and its bootstrap from a generator of its own:
//! `Generator::new(seed_of(master, member))`.

use serde::{Deserialize, Serialize};
use sheave_base::Result;

use crate::Real;
use crate::check::{common_length, finite, length, number, refuse};
use crate::random::Generator;

/// Draws a bootstrap sample: fills `indices` with numbers below `data`, each with replacement. Usually there are as
/// many indices as data.
///
/// ```
/// use sheave_bayes::{ensemble::bootstrap, random::{Generator, seed_of}};
///
/// let mut indices = [0; 5];
/// bootstrap(&mut Generator::new(seed_of(42, 3)), 5, &mut indices)?;
/// assert!(indices.iter().all(|&index| index < 5));
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` where there are no data.
pub fn bootstrap(generator: &mut Generator, data: usize, indices: &mut [usize]) -> Result<()> {
    if data == 0 {
        return Err(refuse("bootstrap", "the number of data", data, "one at least"));
    }
    for index in indices {
        *index = generator.below(data as u64)? as usize;
    }
    Ok(())
}

/// Outputs of a head that predicts a normal distribution for each target: the mean `μ` and the logarithm `s` of the
/// variance, in nats. (Nix and Weigend, "Estimating the mean and variance of the target probability distribution",
/// 1994.)
#[derive(Clone, Copy, Debug)]
pub struct GaussianHead<'a, T> {
    /// The means, one for each target.
    pub mean: &'a [T],
    /// The logarithms of variances, one for each target.
    pub log_variance: &'a [T],
}

impl<T: Real> GaussianHead<'_, T> {
    fn check(&self, targets: &[T]) -> Result<()> {
        const OPERATION: &str = "gaussian head";
        length(OPERATION, "mean", self.mean.len(), targets.len())?;
        length(OPERATION, "log_variance", self.log_variance.len(), targets.len())?;
        if targets.is_empty() {
            return Err(refuse(OPERATION, "the number of targets", 0, "one at least"));
        }
        finite(OPERATION, "mean", self.mean)?;
        finite(OPERATION, "log_variance", self.log_variance)
    }

    /// Returns the mean over targets `y` of the negative log likelihood `(ln 2π + s + (y - μ)² exp(-s)) / 2`, in nats.
    ///
    /// # Errors
    /// `InvalidArgument` for slices of different lengths, no targets, or outputs that are not finite.
    pub fn nll(&self, targets: &[T]) -> Result<f64> {
        self.check(targets)?;
        let rows = self.mean.iter().zip(self.log_variance).zip(targets);
        let sum: f64 = rows
            .map(|((mean, log_variance), target)| {
                let (error, log) = (target.to_double() - mean.to_double(), log_variance.to_double());
                std::f64::consts::TAU.ln() + log + error * error * (-log).exp()
            })
            .sum();
        Ok(0.5 * sum / targets.len() as f64)
    }

    /// Writes the gradient of [`nll`](Self::nll) for `n` targets: `(μ - y) exp(-s) / n` for the means and
    /// `(1 - (y - μ)² exp(-s)) / (2n)` for the logarithms. All slices have one length. Allocates nothing.
    ///
    /// # Errors
    /// Those of [`nll`](Self::nll).
    pub fn gradient(&self, targets: &[T], of_mean: &mut [T], of_log_variance: &mut [T]) -> Result<()> {
        self.check(targets)?;
        length("gaussian head", "of_mean", of_mean.len(), targets.len())?;
        length("gaussian head", "of_log_variance", of_log_variance.len(), targets.len())?;
        let share = 1.0 / targets.len() as f64;
        for (place, target) in targets.iter().enumerate() {
            let error = self.mean[place].to_double() - target.to_double();
            let precision = (-self.log_variance[place].to_double()).exp();
            of_mean[place] = T::nearest(error * precision * share);
            of_log_variance[place] = T::nearest(0.5 * (1.0 - error * error * precision) * share);
        }
        Ok(())
    }
}

/// Writes mean and variance of the mixture of members' normal predictions with equal weights: `mean = avg μ` and
/// `variance = avg σ² + avg (μ - mean)²`. `means` and `variances` hold one slice for each member, all of one length.
///
/// The variance is that of data and model together; its second term, the disagreement of members, is the model's.
///
/// ```
/// use sheave_bayes::ensemble::mixture;
///
/// let (mut mean, mut variance) = ([0.0], [0.0]);
/// mixture(&[[1.0_f64], [3.0]], &[[0.5], [1.5]], &mut mean, &mut variance)?;
/// assert_eq!((mean, variance), ([2.0], [2.0]));
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// `InvalidArgument` for no members, or slices of different lengths.
pub fn mixture<T: Real, P: AsRef<[T]>>(means: &[P], variances: &[P], mean: &mut [T], variance: &mut [T]) -> Result<()> {
    const OPERATION: &str = "mixture";
    let width = common_length(OPERATION, "means", means)?;
    length(OPERATION, "variances", variances.len(), means.len())?;
    length(OPERATION, "variances[0]", common_length(OPERATION, "variances", variances)?, width)?;
    length(OPERATION, "mean", mean.len(), width)?;
    length(OPERATION, "variance", variance.len(), width)?;
    let share = 1.0 / means.len() as f64;
    for place in 0..width {
        let of = |members: &[P], change: &dyn Fn(f64) -> f64| {
            members.iter().map(|member| change(member.as_ref()[place].to_double())).sum::<f64>() * share
        };
        let middle = of(means, &|value| value);
        let spread = of(means, &|value| (value - middle) * (value - middle));
        mean[place] = T::nearest(middle);
        variance[place] = T::nearest(of(variances, &|value| value) + spread);
    }
    Ok(())
}

/// Dropout that stays on at prediction, each mask a member of an ensemble (Gal and Ghahramani, ICML 2016,
/// arXiv:1506.02142).
///
/// ```
/// use sheave_bayes::{ensemble::Dropout, random::Generator};
///
/// let mut mask = [0.0_f32; 8];
/// Dropout { rate: 0.5 }.mask(&mut Generator::new(1), &mut mask)?;
/// assert!(mask.iter().all(|&factor| factor == 0.0 || factor == 2.0));
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// The probability `p` that a unit is dropped, from 0 to below 1.
    pub rate: f64,
}

impl Dropout {
    /// Draws a mask: each element is 0 with probability `p`, else `1 / (1 - p)`, so that its mean is 1. One mask may
    /// serve a whole batch, which makes the predictions of the batch those of one member.
    ///
    /// # Errors
    /// `InvalidArgument` for a rate that is not from 0 to below 1.
    pub fn mask<T: Real>(&self, generator: &mut Generator, mask: &mut [T]) -> Result<()> {
        let is_right = (0.0..1.0).contains(&self.rate);
        number("dropout", "rate", self.rate, is_right, "a number from 0 to below 1")?;
        let kept = T::nearest((1.0 - self.rate).recip());
        mask.fill_with(|| if generator.uniform() < self.rate { T::default() } else { kept });
        Ok(())
    }
}
