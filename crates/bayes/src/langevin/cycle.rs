//! Step sizes that go down and begin again.

use serde::{Deserialize, Serialize};
use sheave_base::Result;

use crate::check::{number, refuse};

/// The cyclical step sizes of cSG-MCMC (Zhang et al., ICLR 2020, arXiv:1902.03932). Of `K` steps in `M` cycles the step
/// `k`, from 1, has `ε_k = ε_0 / 2 (cos(π r) + 1)` with `r = mod(k - 1, ceil(K / M)) / ceil(K / M)`. Where `r` is below
/// `exploration` the step is a descent without noise, that looks for a mode; from there on it samples.
///
/// ```
/// use sheave_bayes::langevin::Cyclical;
///
/// let cyclical = Cyclical { step_size: 0.1, steps: 100, cycles: 4, exploration: 0.5 };
/// let first = cyclical.at(1)?;
/// assert!(first.step_size == 0.1 && first.temperature == 0.0 && !first.samples);
/// let last = cyclical.at(25)?;
/// assert!(last.step_size < 0.001 && last.temperature == 1.0 && last.samples && last.ends_cycle);
/// assert_eq!(cyclical.at(26)?, first);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cyclical {
    /// The step size `ε_0` at the beginning of a cycle, at least zero.
    pub step_size: f64,
    /// The number `K` of all steps, above zero.
    pub steps: u64,
    /// The number `M` of cycles, from 1 to `steps`.
    pub cycles: u64,
    /// The share of a cycle that explores, from 0 to below 1.
    pub exploration: f64,
}

/// How one step of a cycle is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CyclicalStep {
    /// The step size, above zero where that of the cycle is.
    pub step_size: f64,
    /// The temperature: 0 where the cycle explores, 1 where it samples.
    pub temperature: f64,
    /// Whether the parameters after the step are a sample.
    pub samples: bool,
    /// Whether the step is the last one of its cycle.
    pub ends_cycle: bool,
}

impl Cyclical {
    /// Checks the settings.
    ///
    /// # Errors
    /// `InvalidArgument` for one that is outside its range.
    pub fn check(&self) -> Result<()> {
        let operation = "cyclical step sizes";
        let is_size = self.step_size >= 0.0;
        number(operation, "step_size", self.step_size, is_size, "a finite number that is not negative")?;
        if self.cycles == 0 || self.cycles > self.steps {
            return Err(refuse(operation, "cycles", self.cycles, format!("1 to the number of steps, {}", self.steps)));
        }
        let is_share = (0.0..1.0).contains(&self.exploration);
        number(operation, "exploration", self.exploration, is_share, "a number from 0 to below 1")
    }

    /// Returns how step `step` is taken, counted from 1. Steps beyond the last go on with further cycles.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); `InvalidArgument` for a step of 0.
    pub fn at(&self, step: u64) -> Result<CyclicalStep> {
        self.check()?;
        let Some(before) = step.checked_sub(1) else {
            return Err(refuse("cyclical step sizes", "step", step, "1 or more"));
        };
        let length = self.steps.div_ceil(self.cycles);
        let place = before % length;
        let share = place as f64 / length as f64;
        let samples = share >= self.exploration;
        Ok(CyclicalStep {
            step_size: 0.5 * self.step_size * ((std::f64::consts::PI * share).cos() + 1.0),
            temperature: if samples { 1.0 } else { 0.0 },
            samples,
            ends_cycle: place + 1 == length,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_begin_again() {
        // ceil(10 / 3) = 4 steps in a cycle.
        let cyclical = Cyclical { step_size: 2.0, steps: 10, cycles: 3, exploration: 0.5 };
        let half = std::f64::consts::FRAC_1_SQRT_2;
        let sizes = [2.0, 1.0 + half, 1.0, 1.0 - half];
        for step in 1..=10 {
            let place = (step as usize - 1) % 4;
            let taken = cyclical.at(step).unwrap();
            assert!((taken.step_size - sizes[place]).abs() < 1e-15, "step {step}: {taken:?}");
            assert_eq!((taken.samples, taken.ends_cycle), (place >= 2, place == 3), "step {step}");
        }
        assert!(cyclical.at(0).is_err());
        let wrong = Cyclical { cycles: 11, ..cyclical };
        let error = wrong.at(1).unwrap_err().to_string();
        assert!(error.contains("cycles is 11; expected 1 to the number of steps, 10"), "{error}");
    }
}
