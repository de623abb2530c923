//! Priors of the parameters, and what they add to the gradient of a loss.

use serde::{Deserialize, Serialize};
use sheave_base::Result;

use crate::Real;
use crate::check::{length, number};

const ADD: &str = "adding the gradient of a prior";

/// Independent normal priors with one mean and one standard deviation: `log p(θ) = -Σ (θ - mean)² / (2 deviation²) -
/// d log(deviation sqrt(2π))` for `d` parameters.
///
/// ```
/// use sheave_bayes::prior::Normal;
///
/// let prior = Normal { mean: 0.0, deviation: 2.0 };
/// let mut gradient = [1.0_f32, 1.0];
/// prior.add_gradient(&[4.0, -4.0], &mut gradient)?;
/// assert_eq!(gradient, [2.0, 0.0]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normal {
    /// The mean of each parameter; 0 by default.
    pub mean: f64,
    /// The standard deviation of each parameter, above zero; 1 by default.
    pub deviation: f64,
}

impl Default for Normal {
    fn default() -> Self {
        Self { mean: 0.0, deviation: 1.0 }
    }
}

impl Normal {
    /// Checks the settings.
    ///
    /// # Errors
    /// `InvalidArgument` for a mean that is not finite, or a deviation that is not above zero.
    pub fn check(&self) -> Result<()> {
        number("a normal prior", "mean", self.mean, true, "a finite number")?;
        number("a normal prior", "deviation", self.deviation, self.deviation > 0.0, "a finite number above zero")
    }

    /// Returns the logarithm of the density, in nats.
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub fn log_density<T: Real>(&self, parameters: &[T]) -> Result<f64> {
        self.check()?;
        let squares: f64 =
            parameters.iter().map(|value| ((value.to_double() - self.mean) / self.deviation).powi(2)).sum();
        let constant = self.deviation.ln() + 0.5 * std::f64::consts::TAU.ln();
        Ok(-0.5 * squares - parameters.len() as f64 * constant)
    }

    /// Adds the gradient of `-log p(θ)`, which is `(θ - mean) / deviation²`, to the gradient of a loss. Both slices
    /// have one length.
    ///
    /// The loss must be of the whole data, `(N / B) Σ_batch nll`; to a loss that is divided by `N` a prior of a
    /// deviation that is larger by `sqrt(N)` belongs.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); `InvalidArgument` for slices of different lengths.
    pub fn add_gradient<T: Real>(&self, parameters: &[T], gradient: &mut [T]) -> Result<()> {
        self.check()?;
        length(ADD, "gradient", gradient.len(), parameters.len())?;
        let (mean, precision) = (T::nearest(self.mean), T::nearest((self.deviation * self.deviation).recip()));
        for (slope, &value) in gradient.iter_mut().zip(parameters) {
            *slope = *slope + (value - mean) * precision;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_is_the_slope_of_the_density() {
        let prior = Normal { mean: 0.5, deviation: 0.7 };
        let (place, step) = ([0.1_f64, -1.3], 1e-5);
        let mut gradient = [0.0; 2];
        prior.add_gradient(&place, &mut gradient).unwrap();
        for index in 0..2 {
            let at = |change: f64| {
                let mut moved = place;
                moved[index] += change;
                -prior.log_density(&moved).unwrap()
            };
            let slope = (at(step) - at(-step)) / (2.0 * step);
            assert!((slope - gradient[index]).abs() < 1e-8, "{slope} is not {}", gradient[index]);
        }
        let standard = Normal::default().log_density(&[0.0_f64]).unwrap();
        assert!((standard + 0.918_938_533_204_672_7).abs() < 1e-15);
    }

    #[test]
    fn refusals() {
        let wrong = Normal { mean: 0.0, deviation: 0.0 };
        let error = wrong.add_gradient(&[0.0_f32], &mut [0.0]).unwrap_err().to_string();
        assert!(error.contains("deviation is 0; expected a finite number above zero"), "{error}");
        let error = Normal::default().add_gradient(&[0.0_f32; 2], &mut [0.0]).unwrap_err().to_string();
        assert!(error.contains("the length of gradient is 1; expected 2"), "{error}");
    }
}
