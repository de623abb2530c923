//! AdaGrad.

use serde::{Deserialize, Serialize};
use sheave_base::Result;

use crate::float::Wide;
use crate::pass::Formula;
use crate::settings::{Settings, Slope, common, epsilon};
use crate::state::Layout;

/// AdaGrad (Duchi, Hazan and Singer 2011), with the weight decay beside the gradient (MXNet 1.9.1: `AdaGrad`).
///
/// ```text
/// slope   = clip(rescale * gradient)
/// squares = squares + slope²
/// weight  = weight - learning_rate * (slope / sqrt(squares + epsilon) + weight_decay * weight)
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdaGrad {
    /// How far the first step goes in each element; 0.01 by default.
    pub learning_rate: f64,
    /// Keeps the division finite, under the root; above zero, 1e-7 by default.
    pub epsilon: f64,
    /// How much of each weight, times the learning rate, a step takes from it; 0 by default.
    pub weight_decay: f64,
    /// What gradients are multiplied by first, such as 1 / global batch size; 1 by default.
    pub rescale: f64,
    /// What rescaled gradients are clipped to, from minus this to this; never the decay. None by default.
    pub clip_gradient: Option<f64>,
}

impl Default for AdaGrad {
    fn default() -> Self {
        Self { learning_rate: 0.01, epsilon: 1e-7, weight_decay: 0.0, rescale: 1.0, clip_gradient: None }
    }
}

impl Settings for AdaGrad {
    fn name(&self) -> &'static str {
        "adagrad"
    }

    fn layouts(&self) -> &'static [Layout] {
        &[Layout::AdaGrad]
    }

    fn check(&self) -> Result<()> {
        epsilon(self.epsilon)?;
        common!(self).check()
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }
}

/// [`AdaGrad`] in the type of the loop.
#[derive(Clone, Copy)]
pub(crate) struct AdaGradStep<W> {
    slope: Slope<W>,
    learning_rate: W,
    epsilon: W,
    weight_decay: W,
}

impl<W: Wide> AdaGradStep<W> {
    pub(crate) fn new(rule: &AdaGrad) -> Self {
        Self {
            slope: Slope::new(&common!(rule)),
            learning_rate: W::nearest(rule.learning_rate),
            epsilon: W::nearest(rule.epsilon),
            weight_decay: W::nearest(rule.weight_decay),
        }
    }
}

impl<W: Wide> Formula<W> for AdaGradStep<W> {
    type Moments = [W; 1];

    fn element(&self, weight: W, gradient: W, [squares]: [W; 1]) -> (W, [W; 1]) {
        let slope = self.slope.plain(gradient);
        let squares = squares + slope * slope;
        let direction = slope / (squares + self.epsilon).root() + self.weight_decay * weight;
        (weight - self.learning_rate * direction, [squares])
    }
}
