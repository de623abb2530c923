//! How weights follow gradients.

use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};

use crate::loops::{AdamFactors, SgdFactors};
use crate::state::Moments;
use crate::{Float, State, Wide};

/// The smallest epsilon: one that is still a normal number once it is rounded to f32.
const EPSILON_MIN: f64 = f32::MIN_POSITIVE as f64;

/// Stochastic gradient descent, with momentum unless that is zero (MXNet: `sgd_update`, `sgd_mom_update`).
///
/// ```text
/// slope    = rescale * gradient + weight_decay * weight
/// momentum = momentum_factor * momentum - learning_rate * slope
/// weight   = weight + momentum
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sgd {
    /// How far along the slope a step goes; 0.01 by default.
    pub learning_rate: f64,
    /// How much of the last step is repeated, from 0 to below 1; 0 by default.
    pub momentum: f64,
    /// How much of each weight is added to its gradient; 0 by default.
    pub weight_decay: f64,
    /// What gradients are multiplied by first, such as 1 / global batch size; 1 by default.
    pub rescale: f64,
}

impl Default for Sgd {
    fn default() -> Self {
        Self { learning_rate: 0.01, momentum: 0.0, weight_decay: 0.0, rescale: 1.0 }
    }
}

/// Adam (Kingma and Ba 2015), with the weight decay in the gradient and the bias correction in the learning rate
/// (MXNet: `adam_update`).
///
/// ```text
/// slope    = rescale * gradient + weight_decay * weight
/// mean     = beta1 * mean + (1 - beta1) * slope
/// variance = beta2 * variance + (1 - beta2) * slope²
/// rate     = learning_rate * sqrt(1 - beta2^steps) / (1 - beta1^steps)
/// weight   = weight - rate * mean / (sqrt(variance) + epsilon)
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adam {
    /// About how far a step goes in each element; 0.001 by default.
    pub learning_rate: f64,
    /// How much of the mean of gradients is kept, from 0 to below 1; 0.9 by default.
    pub beta1: f64,
    /// How much of the mean of squared gradients is kept, from 0 to below 1; 0.999 by default.
    pub beta2: f64,
    /// Keeps the division finite; above zero, 1e-8 by default.
    pub epsilon: f64,
    /// How much of each weight is added to its gradient; 0 by default.
    pub weight_decay: f64,
    /// What gradients are multiplied by first, such as 1 / global batch size; 1 by default.
    pub rescale: f64,
}

impl Default for Adam {
    fn default() -> Self {
        Self { learning_rate: 0.001, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0, rescale: 1.0 }
    }
}

/// An optimizer and its settings.
///
/// Settings may change between the steps of a state; only a state made without momentum stays without.
///
/// ```
/// use sheave_optim::{Rule, Sgd};
///
/// let rule = Rule::Sgd(Sgd { momentum: 0.5, ..Sgd::default() });
/// let mut weights = [1.0_f32, 2.0];
/// let mut state = rule.state(weights.len());
/// rule.step(&mut state, &mut weights, &[100.0, -100.0])?;
/// rule.step(&mut state, &mut weights, &[0.0, 0.0])?;
/// assert_eq!(weights, [-0.5, 3.5]);
/// assert_eq!(state.parts(), [("momentum", &[-0.5, 0.5][..])]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Rule {
    /// Stochastic gradient descent.
    Sgd(Sgd),
    /// Adam.
    Adam(Adam),
}

impl Rule {
    /// SGD without momentum, everything else by default.
    #[must_use]
    pub fn sgd(learning_rate: f64) -> Self {
        Self::Sgd(Sgd { learning_rate, ..Sgd::default() })
    }

    /// Adam, everything else by default.
    #[must_use]
    pub fn adam(learning_rate: f64) -> Self {
        Self::Adam(Adam { learning_rate, ..Adam::default() })
    }

    /// Whether the settings have a meaning.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a setting that is not a number or too large for an `f32`, a negative learning
    /// rate or weight decay, a momentum or beta outside 0 to below 1, an epsilon that is not above zero.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Sgd(sgd) => {
                share("momentum", sgd.momentum)?;
                common(sgd.learning_rate, sgd.weight_decay, sgd.rescale)
            }
            Self::Adam(adam) => {
                share("beta1", adam.beta1)?;
                share("beta2", adam.beta2)?;
                require("epsilon", adam.epsilon, adam.epsilon >= EPSILON_MIN, "above zero")?;
                common(adam.learning_rate, adam.weight_decay, adam.rescale)
            }
        }
    }

    /// The state of a slice of so many elements before its first step.
    #[must_use]
    pub fn state<W: Wide>(&self, elements: usize) -> State<W> {
        let zeros = || vec![W::default(); elements];
        let moments = match self {
            Self::Sgd(sgd) if sgd.momentum == 0.0 => Moments::Nothing,
            Self::Sgd(_) => Moments::Sgd { momentum: zeros() },
            Self::Adam(_) => Moments::Adam { mean: zeros(), variance: zeros() },
        };
        State { elements, steps: 0, moments }
    }

    /// Moves the weights one step along a gradient, which is usually the sum of the workers'. Does not block; neither
    /// weights nor state change when it fails. What is not a number in the gradient is not one in the weight after.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when weights, gradient and state are not of one length, or the state was made by another
    /// kind of rule; else those of [`check`](Self::check).
    pub fn step<T: Float>(&self, state: &mut State<T::Wide>, weights: &mut [T], gradient: &[T]) -> Result<()> {
        self.check()?;
        if weights.len() != gradient.len() || weights.len() != state.elements {
            let what = format!(
                "{} weights, a gradient of {} and a state of {} elements are not of one length",
                weights.len(),
                gradient.len(),
                state.elements
            );
            return Err(Error::new(ErrorKind::Mismatch, what).operation("optimizer step"));
        }
        if state.parts().iter().any(|(_, part)| part.len() != weights.len()) {
            return Err(Error::new(ErrorKind::Mismatch, "the state is damaged").operation("optimizer step"));
        }
        let steps = state.steps.saturating_add(1);
        match (self, &mut state.moments) {
            (Self::Sgd(sgd), Moments::Nothing) if sgd.momentum == 0.0 => {
                let factors = SgdFactors::new(sgd);
                T::in_blocks(weights, gradient, |_, weights, gradient| factors.step(weights, gradient));
            }
            (Self::Sgd(sgd), Moments::Sgd { momentum }) => {
                let factors = SgdFactors::new(sgd);
                T::in_blocks(weights, gradient, |block, weights, gradient| {
                    factors.step_with_momentum(&mut momentum[block], weights, gradient);
                });
            }
            (Self::Adam(adam), Moments::Adam { mean, variance }) => {
                let factors = AdamFactors::new(adam, steps);
                T::in_blocks(weights, gradient, |block, weights, gradient| {
                    factors.step(&mut mean[block.clone()], &mut variance[block], weights, gradient);
                });
            }
            _ => {
                let error = Error::new(ErrorKind::Mismatch, "the state was made by another kind of rule");
                return Err(error.operation("optimizer step").hint("make a new state with `Rule::state`"));
            }
        }
        state.steps = steps;
        Ok(())
    }
}

fn common(learning_rate: f64, weight_decay: f64, rescale: f64) -> Result<()> {
    require("learning rate", learning_rate, learning_rate >= 0.0, "zero or more")?;
    require("weight decay", weight_decay, weight_decay >= 0.0, "zero or more")?;
    require("rescale", rescale, true, "a finite number")
}

/// What decays a moment: below 1 in f32 too, or the moment would never decay.
fn share(name: &str, value: f64) -> Result<()> {
    require(name, value, value >= 0.0 && (value as f32) < 1.0, "from 0 to below 1")
}

fn require(name: &str, value: f64, is_right: bool, expected: &str) -> Result<()> {
    if is_right && (value as f32).is_finite() {
        return Ok(());
    }
    let what = format!("the optimizer's {name} is {value}, it must be {expected}");
    Err(Error::new(ErrorKind::InvalidArgument, what))
}
