//! Adam, with the weight decay in the gradient or beside it.

use serde::{Deserialize, Serialize};
use sheave_base::Result;

use crate::float::Wide;
use crate::pass::Formula;
use crate::settings::{Betas, Direction, Settings, Slope, common, epsilon, seen, share};
use crate::state::Layout;

/// Adam (Kingma and Ba 2015), with the weight decay in the gradient and the bias correction in the learning rate
/// (MXNet: `adam_update`).
///
/// ```text
/// slope    = clip(rescale * gradient + weight_decay * weight)
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
    /// What slopes are clipped to, from minus this to this, *after* the decay was added, as MXNet does; none by
    /// default.
    pub clip_gradient: Option<f64>,
}

impl Default for Adam {
    fn default() -> Self {
        Self {
            learning_rate: 0.001,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            rescale: 1.0,
            clip_gradient: None,
        }
    }
}

impl Settings for Adam {
    fn name(&self) -> &'static str {
        "adam"
    }

    fn layouts(&self) -> &'static [Layout] {
        &[Layout::Adam]
    }

    fn check(&self) -> Result<()> {
        share("beta1", self.beta1)?;
        share("beta2", self.beta2)?;
        epsilon(self.epsilon)?;
        common!(self).check()
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }
}

/// [`Adam`] at one step.
#[derive(Clone, Copy)]
pub(crate) struct AdamStep<W> {
    slope: Slope<W>,
    betas: Betas<W>,
    /// With the bias correction of both moments.
    rate: W,
    epsilon: W,
}

impl<W: Wide> AdamStep<W> {
    /// `steps` counts from 1.
    pub(crate) fn new(rule: &Adam, steps: u64) -> Self {
        let rate = rule.learning_rate * seen(rule.beta2, steps).sqrt() / seen(rule.beta1, steps);
        Self {
            slope: Slope::new(&common!(rule)),
            betas: Betas::new(rule.beta1, rule.beta2),
            rate: W::nearest(rate),
            epsilon: W::nearest(rule.epsilon),
        }
    }
}

impl<W: Wide> Formula<W> for AdamStep<W> {
    type Moments = [W; 2];

    fn element(&self, weight: W, gradient: W, moments: [W; 2]) -> (W, [W; 2]) {
        let slope = self.slope.decayed_then_clipped(weight, gradient);
        let [mean, variance] = self.betas.follow(slope, moments);
        (weight - self.rate * mean / (variance.root() + self.epsilon), [mean, variance])
    }
}

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2; PyTorch: `AdamW`).
///
/// The decay is multiplied by the learning rate, so a schedule scales both; the paper's `α` and `η` are one here.
///
/// ```text
/// slope     = clip(rescale * gradient)
/// mean      = beta1 * mean + (1 - beta1) * slope
/// variance  = beta2 * variance + (1 - beta2) * slope²
/// direction = mean / (1 - beta1^steps) / (sqrt(variance / (1 - beta2^steps)) + epsilon) + weight_decay * weight
/// weight    = weight - learning_rate * direction
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamW {
    /// About how far a step goes in each element; 0.001 by default.
    pub learning_rate: f64,
    /// How much of the mean of gradients is kept, from 0 to below 1; 0.9 by default.
    pub beta1: f64,
    /// How much of the mean of squared gradients is kept, from 0 to below 1; 0.999 by default.
    pub beta2: f64,
    /// Keeps the division finite; above zero, 1e-8 by default.
    pub epsilon: f64,
    /// How much of each weight, times the learning rate, a step takes from it; 0.01 by default.
    pub weight_decay: f64,
    /// What gradients are multiplied by first, such as 1 / global batch size; 1 by default.
    pub rescale: f64,
    /// What rescaled gradients are clipped to, from minus this to this; never the decay. None by default.
    pub clip_gradient: Option<f64>,
}

impl Default for AdamW {
    fn default() -> Self {
        Self {
            learning_rate: 0.001,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
            rescale: 1.0,
            clip_gradient: None,
        }
    }
}

impl Settings for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn layouts(&self) -> &'static [Layout] {
        &[Layout::AdamW]
    }

    fn check(&self) -> Result<()> {
        share("beta1", self.beta1)?;
        share("beta2", self.beta2)?;
        epsilon(self.epsilon)?;
        common!(self).check()
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }
}

/// [`AdamW`] at one step.
#[derive(Clone, Copy)]
pub(crate) struct AdamWStep<W> {
    slope: Slope<W>,
    betas: Betas<W>,
    direction: Direction<W>,
    learning_rate: W,
}

impl<W: Wide> AdamWStep<W> {
    /// `steps` counts from 1.
    pub(crate) fn new(rule: &AdamW, steps: u64) -> Self {
        let seen = [seen(rule.beta1, steps), seen(rule.beta2, steps)];
        Self {
            slope: Slope::new(&common!(rule)),
            betas: Betas::new(rule.beta1, rule.beta2),
            direction: Direction::new(seen, rule.epsilon, rule.weight_decay),
            learning_rate: W::nearest(rule.learning_rate),
        }
    }
}

impl<W: Wide> Formula<W> for AdamWStep<W> {
    type Moments = [W; 2];

    fn element(&self, weight: W, gradient: W, moments: [W; 2]) -> (W, [W; 2]) {
        let moments = self.betas.follow(self.slope.plain(gradient), moments);
        (weight - self.learning_rate * self.direction.of(weight, moments), moments)
    }
}
