//! Stochastic weight averaging with a Gaussian (Maddox et al., NeurIPS 2019, arXiv:1902.02476).
//!
//! Snapshots of a training with a constant or cyclical learning rate give a mean, a variance of each parameter, and
//! their last deviations from the running mean, which span a covariance of low rank. A sample is
//! `θ~ = mean + sqrt(s) (sqrt(variance) z1 + Dᵀ z2 / sqrt(K - 1))`, where `s` is a half in the paper, `z1` and `z2` are
//! standard normal, and `D` has the `K` deviations that are kept as rows. The divisor belongs to the deviations that
//! are kept, not to the number of samples that are drawn.
//!
//! Each model has a [`Swag`] of its own, with its own count of snapshots. A network with batch normalisation must
//! compute its statistics again for each sample; predictions average probabilities over samples and models
//! ([`crate::predict`]).

use serde::{Deserialize, Serialize};
use sheave_base::Result;

use crate::Real;
use crate::check::{finite, length, number, refuse};
use crate::random::Generator;

const COLLECT: &str = "collecting a snapshot";
const SAMPLE: &str = "sampling from swag";

/// The scale `s` of samples in the paper.
pub const SCALE: f64 = 0.5;

/// A Gaussian from snapshots. All of its state is in plain fields, so that it can be saved and loaded by any format.
///
/// The variance is kept about the mean, by the recurrence of Welford (1962), in place of the second moment: it is the
/// same number, `E[θ²] - E[θ]²`, without the cancellation that would leave nothing of it in `f32`.
///
/// ```
/// use sheave_bayes::{random::Generator, swag::{SCALE, Swag}};
///
/// let mut swag = Swag::new(2, 20);
/// for snapshot in [[1.0_f32, 0.0], [2.0, 0.5], [3.0, 1.0]] {
///     swag.collect(&snapshot)?;
/// }
/// assert_eq!(swag.mean, [2.0, 0.5]);
/// let mut sample = [0.0; 2];
/// swag.sample(SCALE, &mut Generator::new(1), &mut sample)?;
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Swag<T> {
    /// How many snapshots were collected.
    pub snapshots: u64,
    /// How many deviations are kept at most.
    pub rank: usize,
    /// The mean of all snapshots: `d` elements.
    pub mean: Vec<T>,
    /// The variance of all snapshots, divided by their number: `d` elements.
    pub variance: Vec<T>,
    /// The last deviations of snapshots from the mean that each made, oldest first: at most `rank` rows of `d`
    /// elements. The first snapshot is its own mean, and has none.
    pub deviations: Vec<Vec<T>>,
}

impl<T: Real> Swag<T> {
    /// Begins without snapshots, for `dimension` parameters; at most `rank` deviations will be kept, 20 in the paper.
    /// With a rank of 0 or 1 samples have the diagonal covariance alone.
    #[must_use]
    pub fn new(dimension: usize, rank: usize) -> Self {
        let zeros = || vec![T::default(); dimension];
        Self { snapshots: 0, rank, mean: zeros(), variance: zeros(), deviations: Vec::new() }
    }

    /// Checks that the fields fit each other, such as after loading them.
    ///
    /// # Errors
    /// `InvalidArgument` for fields of different lengths, more deviations than `rank`, or a variance below zero.
    pub fn check(&self) -> Result<()> {
        self.check_lengths()?;
        finite("swag", "mean", &self.mean)?;
        match self.variance.iter().position(|&variance| !variance.to_double().is_finite() || variance < T::default()) {
            None => Ok(()),
            Some(place) => {
                let value = self.variance[place].to_double();
                Err(refuse("swag", &format!("variance[{place}]"), value, "a finite number that is not negative"))
            }
        }
    }

    fn check_lengths(&self) -> Result<()> {
        length("swag", "variance", self.variance.len(), self.mean.len())?;
        for row in &self.deviations {
            length("swag", "a deviation", row.len(), self.mean.len())?;
        }
        // Of so many snapshots no more can have deviations; the first has none.
        let most = self.rank.min(usize::try_from(self.snapshots.saturating_sub(1)).unwrap_or(usize::MAX));
        if self.deviations.len() > most {
            return Err(refuse("swag", "the number of deviations", self.deviations.len(), format!("at most {most}")));
        }
        Ok(())
    }

    /// Takes a snapshot of `d` parameters in. Allocates only while fewer deviations than `rank` are kept.
    ///
    /// # Errors
    /// `InvalidArgument` for another length, or an element that is not finite; nothing changes then.
    pub fn collect(&mut self, parameters: &[T]) -> Result<()> {
        self.check_lengths()?;
        length(COLLECT, "parameters", parameters.len(), self.mean.len())?;
        finite(COLLECT, "parameters", parameters)?;
        self.snapshots += 1;
        let share = T::nearest(1.0 / self.snapshots as f64);
        let moments = self.mean.iter_mut().zip(&mut self.variance);
        for ((mean, variance), &value) in moments.zip(parameters) {
            let before = value - *mean;
            *mean = *mean + before * share;
            *variance = *variance + (before * (value - *mean) - *variance) * share;
        }
        if self.snapshots > 1 && self.rank > 0 {
            self.keep_deviation(parameters);
        }
        Ok(())
    }

    fn keep_deviation(&mut self, parameters: &[T]) {
        if self.deviations.len() < self.rank {
            self.deviations.push(vec![T::default(); self.mean.len()]);
        } else {
            self.deviations.rotate_left(1);
        }
        let Some(row) = self.deviations.last_mut() else { return };
        for ((deviation, &value), &mean) in row.iter_mut().zip(parameters).zip(&self.mean) {
            *deviation = value - mean;
        }
    }

    /// Draws parameters into a slice of `d` elements, at a scale `s` of the covariance ([`SCALE`] in the paper, 0 for
    /// the mean). Costs a pass over each deviation; allocates nothing.
    ///
    /// The covariance of samples is `s (variance + Dᵀ D / (K - 1))`. With fewer than two deviations there is no part of
    /// low rank, and the diagonal counts twice in its place: at a scale of a half samples have the variance of the
    /// snapshots, which is the paper's SWAG-Diagonal.
    ///
    /// # Errors
    /// `InvalidArgument` for another length, before the first snapshot, or for a scale that is negative or not finite.
    pub fn sample(&self, scale: f64, generator: &mut Generator, parameters: &mut [T]) -> Result<()> {
        self.check_lengths()?;
        length(SAMPLE, "parameters", parameters.len(), self.mean.len())?;
        number(SAMPLE, "scale", scale, scale >= 0.0, "a finite number that is not negative")?;
        if self.snapshots == 0 {
            return Err(refuse(SAMPLE, "the number of snapshots", 0, "one at least"));
        }
        parameters.fill(T::default());
        let columns = self.deviations.len();
        let doubled = if columns < 2 { 2.0 } else { 1.0 };
        if columns >= 2 {
            for row in &self.deviations {
                let factor = T::nearest(generator.normal() * (scale / (columns - 1) as f64).sqrt());
                for (value, &deviation) in parameters.iter_mut().zip(row) {
                    *value = *value + factor * deviation;
                }
            }
        }
        let diagonal = (doubled * scale).sqrt();
        for ((value, &mean), &variance) in parameters.iter_mut().zip(&self.mean).zip(&self.variance) {
            let normal = T::nearest(diagonal * generator.normal());
            *value = mean + (*value + variance.root() * normal);
        }
        Ok(())
    }
}
