//! Stochastic gradient descent.

use serde::{Deserialize, Serialize};
use sheave_base::Result;

use crate::float::Wide;
use crate::pass::Formula;
use crate::settings::{Settings, Slope, common, share};
use crate::state::Layout;

/// Stochastic gradient descent, with momentum unless that is zero (MXNet: `sgd_update`, `sgd_mom_update`,
/// `nag_mom_update`).
///
/// ```text
/// slope    = clip(rescale * gradient) + weight_decay * weight
/// momentum = momentum_factor * momentum - learning_rate * slope
/// weight   = weight + momentum                                                  (plain)
/// weight   = weight + momentum_factor * momentum - learning_rate * slope        (Nesterov)
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sgd {
    /// How far along the slope a step goes; 0.01 by default.
    pub learning_rate: f64,
    /// How much of the last step is repeated, from 0 to below 1; 0 by default.
    pub momentum: f64,
    /// Whether the step looks one momentum ahead (Nesterov's accelerated gradient, MXNet's `nag`); false by default.
    /// Without momentum there is nothing ahead, and nothing changes.
    pub nesterov: bool,
    /// How much of each weight is added to its gradient; 0 by default.
    pub weight_decay: f64,
    /// What gradients are multiplied by first, such as 1 / global batch size; 1 by default.
    pub rescale: f64,
    /// What rescaled gradients are clipped to, from minus this to this, before the decay is added; none by default.
    pub clip_gradient: Option<f64>,
}

impl Default for Sgd {
    fn default() -> Self {
        Self {
            learning_rate: 0.01,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
            rescale: 1.0,
            clip_gradient: None,
        }
    }
}

impl Settings for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn layouts(&self) -> &'static [Layout] {
        // With a factor of zero, momentum is the last step alone.
        if self.momentum == 0.0 { &[Layout::Sgd, Layout::Momentum] } else { &[Layout::Momentum] }
    }

    fn check(&self) -> Result<()> {
        share("momentum", self.momentum)?;
        common!(self).check()
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }
}

/// Without momentum.
#[derive(Clone, Copy)]
pub(crate) struct Plain<W> {
    slope: Slope<W>,
    learning_rate: W,
}

impl<W: Wide> Plain<W> {
    pub(crate) fn new(rule: &Sgd) -> Self {
        Self { slope: Slope::new(&common!(rule)), learning_rate: W::nearest(rule.learning_rate) }
    }
}

impl<W: Wide> Formula<W> for Plain<W> {
    type Moments = [W; 0];

    fn element(&self, weight: W, gradient: W, _: [W; 0]) -> (W, [W; 0]) {
        (weight - self.learning_rate * self.slope.clipped_then_decayed(weight, gradient), [])
    }
}

/// With momentum, which is added as it is.
#[derive(Clone, Copy)]
pub(crate) struct Heavy<W> {
    plain: Plain<W>,
    momentum: W,
}

impl<W: Wide> Heavy<W> {
    pub(crate) fn new(rule: &Sgd) -> Self {
        Self { plain: Plain::new(rule), momentum: W::nearest(rule.momentum) }
    }
}

impl<W: Wide> Formula<W> for Heavy<W> {
    type Moments = [W; 1];

    fn element(&self, weight: W, gradient: W, [momentum]: [W; 1]) -> (W, [W; 1]) {
        let slope = self.plain.slope.clipped_then_decayed(weight, gradient);
        let momentum = self.momentum * momentum - self.plain.learning_rate * slope;
        (weight + momentum, [momentum])
    }
}

/// With momentum, which is looked ahead of.
#[derive(Clone, Copy)]
pub(crate) struct Nesterov<W>(Heavy<W>);

impl<W: Wide> Nesterov<W> {
    pub(crate) fn new(rule: &Sgd) -> Self {
        Self(Heavy::new(rule))
    }
}

impl<W: Wide> Formula<W> for Nesterov<W> {
    type Moments = [W; 1];

    fn element(&self, weight: W, gradient: W, [momentum]: [W; 1]) -> (W, [W; 1]) {
        let Heavy { plain, momentum: factor } = self.0;
        let step = plain.learning_rate * plain.slope.clipped_then_decayed(weight, gradient);
        let momentum = factor * momentum - step;
        (weight + factor * momentum - step, [momentum])
    }
}
