//! Sampling by noisy gradient steps: SGLD, SGHMC, cyclical step sizes, and chains of their samples.
//!
//! All step along the gradient of the negative log posterior of the *whole* data,
//! `U(θ) = (N / B) Σ_batch nll - log prior(θ)`; with a loss that is a mean over the data the samples would be those of
//! a posterior `N` times as wide. At a temperature of 1 they are the posterior's, below that narrower, at 0 a descent.

mod chain;
mod cycle;

use serde::{Deserialize, Serialize};
use sheave_base::Result;

pub use chain::Chain;
pub use cycle::{Cyclical, CyclicalStep};

use crate::Real;
use crate::check::{length, number};
use crate::random::Generator;

const AT_LEAST_ZERO: &str = "a finite number that is not negative";

/// Stochastic gradient Langevin dynamics (Welling and Teh, ICML 2011): `θ ← θ - ε/2 ∇U + sqrt(ε T) ξ` with standard
/// normal `ξ`.
///
/// For a normal posterior of precision `λ` and exact gradients the variance of samples is `1 / (λ (1 - ελ/4))` at a
/// temperature of 1: `ελ` must be well below 4 for every direction.
///
/// ```
/// use sheave_bayes::{langevin::Sgld, random::Generator};
///
/// let (sgld, mut generator) = (Sgld { step_size: 0.1, temperature: 1.0 }, Generator::new(1));
/// let mut parameters = [0.0_f32];
/// for _ in 0..10 {
///     let gradient = parameters;
///     sgld.step(&mut generator, &mut parameters, &gradient)?;
/// }
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sgld {
    /// The step size `ε`, at least zero.
    pub step_size: f64,
    /// The temperature `T`, at least zero; 1 for the posterior.
    pub temperature: f64,
}

impl Sgld {
    /// Checks the settings.
    ///
    /// # Errors
    /// `InvalidArgument` for one that is negative or not finite.
    pub fn check(&self) -> Result<()> {
        number("sgld", "step_size", self.step_size, self.step_size >= 0.0, AT_LEAST_ZERO)?;
        number("sgld", "temperature", self.temperature, self.temperature >= 0.0, AT_LEAST_ZERO)
    }

    /// Takes a step along `∇U`, in place. Both slices have one length. Allocates nothing.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); `InvalidArgument` for slices of different lengths.
    pub fn step<T: Real>(&self, generator: &mut Generator, parameters: &mut [T], gradient: &[T]) -> Result<()> {
        self.check()?;
        length("sgld", "gradient", gradient.len(), parameters.len())?;
        let half = T::nearest(0.5 * self.step_size);
        let deviation = (self.step_size * self.temperature).sqrt();
        for (value, &slope) in parameters.iter_mut().zip(gradient) {
            *value = *value - half * slope;
        }
        add_noise(generator, deviation, parameters);
        Ok(())
    }
}

/// Stochastic gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin, ICML 2014, arXiv:1402.4102, equation 15):
/// `v ← (1 - α) v - ε ∇U + sqrt(2 (α - β) ε T) ξ`, `θ ← θ + v` with standard normal `ξ`.
///
/// ```
/// use sheave_bayes::{langevin::Sghmc, random::Generator};
///
/// let sghmc = Sghmc { step_size: 0.01, friction: 0.1, noise: 0.0, temperature: 1.0 };
/// let (mut parameters, mut velocity) = ([1.0_f64], [0.0]);
/// let gradient = parameters;
/// sghmc.step(&mut Generator::new(1), &mut parameters, &mut velocity, &gradient)?;
/// assert_eq!(parameters[0], 1.0 + velocity[0]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sghmc {
    /// The step size `ε`, at least zero: the square of a step of Hamilton's equations.
    pub step_size: f64,
    /// The friction `α`, above 0 and at most 1: the share of the velocity that a step takes away.
    pub friction: f64,
    /// The estimate `β` of the noise that the gradients have of their own, from 0 to `friction`. With gradients of a
    /// variance `V` it is `ε V / 2`; 0 is on the safe side of small steps.
    pub noise: f64,
    /// The temperature `T`, at least zero; 1 for the posterior.
    pub temperature: f64,
}

impl Sghmc {
    /// Checks the settings.
    ///
    /// # Errors
    /// `InvalidArgument` for one that is not finite or outside its range.
    pub fn check(&self) -> Result<()> {
        let is_share = self.friction > 0.0 && self.friction <= 1.0;
        number("sghmc", "step_size", self.step_size, self.step_size >= 0.0, AT_LEAST_ZERO)?;
        number("sghmc", "friction", self.friction, is_share, "a number above 0 and at most 1")?;
        let is_below = self.noise >= 0.0 && self.noise <= self.friction;
        number("sghmc", "noise", self.noise, is_below, "a number from 0 to the friction")?;
        number("sghmc", "temperature", self.temperature, self.temperature >= 0.0, AT_LEAST_ZERO)
    }

    /// Takes a step along `∇U`, in place. All slices have one length; `velocity` is the caller's from one step to the
    /// next, zeros at first. Allocates nothing.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); `InvalidArgument` for slices of different lengths.
    pub fn step<T: Real>(
        &self,
        generator: &mut Generator,
        parameters: &mut [T],
        velocity: &mut [T],
        gradient: &[T],
    ) -> Result<()> {
        self.check()?;
        length("sghmc", "gradient", gradient.len(), parameters.len())?;
        length("sghmc", "velocity", velocity.len(), parameters.len())?;
        let (kept, step_size) = (T::nearest(1.0 - self.friction), T::nearest(self.step_size));
        let deviation = (2.0 * (self.friction - self.noise) * self.step_size * self.temperature).sqrt();
        for (speed, &slope) in velocity.iter_mut().zip(gradient) {
            *speed = kept * *speed - step_size * slope;
        }
        add_noise(generator, deviation, velocity);
        for (value, &speed) in parameters.iter_mut().zip(&*velocity) {
            *value = *value + speed;
        }
        Ok(())
    }
}

/// Adds normal noise; without any, no numbers are drawn.
fn add_noise<T: Real>(generator: &mut Generator, deviation: f64, values: &mut [T]) {
    if deviation > 0.0 {
        for value in values {
            *value = *value + T::nearest(deviation * generator.normal());
        }
    }
}
