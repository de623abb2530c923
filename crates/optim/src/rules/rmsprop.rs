//! RMSProp.

use serde::{Deserialize, Serialize};
use sheave_base::Result;

use crate::float::Wide;
use crate::pass::Formula;
use crate::settings::{Settings, Slope, common, epsilon, share};
use crate::state::Layout;

/// RMSProp (Tieleman and Hinton 2012; MXNet: `rmsprop_update`), or centered with momentum (Graves 2013; MXNet:
/// `rmspropalex_update`).
///
/// ```text
/// slope    = clip(rescale * gradient + weight_decay * weight)
/// squares  = decay * squares + (1 - decay) * slope²
/// weight   = weight - learning_rate * slope / sqrt(squares + epsilon)           (plain)
///
/// mean     = decay * mean + (1 - decay) * slope                                 (centered)
/// momentum = momentum_factor * momentum - learning_rate * slope / sqrt(max(squares - mean², 0) + epsilon)
/// weight   = weight + momentum
/// ```
///
/// MXNet does not bound `squares - mean²` below, and makes what is not a number of a rounding error there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RmsProp {
    /// About how far a step goes in each element; 0.001 by default.
    pub learning_rate: f64,
    /// How much of the mean of squares is kept, from 0 to below 1 (MXNet: `gamma1`); 0.9 by default.
    pub decay: f64,
    /// How much of the last step is repeated where centered, from 0 to below 1 (MXNet: `gamma2`); 0.9 by default.
    pub momentum: f64,
    /// Whether the mean of gradients is taken from that of their squares; false by default.
    pub centered: bool,
    /// Keeps the division finite, under the root; above zero, 1e-8 by default.
    pub epsilon: f64,
    /// How much of each weight is added to its gradient; 0 by default.
    pub weight_decay: f64,
    /// What gradients are multiplied by first, such as 1 / global batch size; 1 by default.
    pub rescale: f64,
    /// What slopes are clipped to, from minus this to this, *after* the decay was added, as MXNet does; none by
    /// default.
    pub clip_gradient: Option<f64>,
}

impl Default for RmsProp {
    fn default() -> Self {
        Self {
            learning_rate: 0.001,
            decay: 0.9,
            momentum: 0.9,
            centered: false,
            epsilon: 1e-8,
            weight_decay: 0.0,
            rescale: 1.0,
            clip_gradient: None,
        }
    }
}

impl Settings for RmsProp {
    fn name(&self) -> &'static str {
        "rmsprop"
    }

    fn layouts(&self) -> &'static [Layout] {
        if self.centered { &[Layout::RmsPropCentered] } else { &[Layout::RmsProp] }
    }

    fn check(&self) -> Result<()> {
        share("decay", self.decay)?;
        share("momentum", self.momentum)?;
        epsilon(self.epsilon)?;
        common!(self).check()
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }
}

/// [`RmsProp`] that is not centered.
#[derive(Clone, Copy)]
pub(crate) struct RmsPropStep<W> {
    slope: Slope<W>,
    learning_rate: W,
    decay: W,
    /// `1 - decay`.
    share: W,
    epsilon: W,
}

impl<W: Wide> RmsPropStep<W> {
    pub(crate) fn new(rule: &RmsProp) -> Self {
        Self {
            slope: Slope::new(&common!(rule)),
            learning_rate: W::nearest(rule.learning_rate),
            decay: W::nearest(rule.decay),
            share: W::nearest(1.0 - rule.decay),
            epsilon: W::nearest(rule.epsilon),
        }
    }
}

impl<W: Wide> Formula<W> for RmsPropStep<W> {
    type Moments = [W; 1];

    fn element(&self, weight: W, gradient: W, [squares]: [W; 1]) -> (W, [W; 1]) {
        let slope = self.slope.decayed_then_clipped(weight, gradient);
        let squares = self.decay * squares + self.share * (slope * slope);
        (weight - self.learning_rate * slope / (squares + self.epsilon).root(), [squares])
    }
}

/// [`RmsProp`] that is centered.
#[derive(Clone, Copy)]
pub(crate) struct CenteredStep<W> {
    step: RmsPropStep<W>,
    momentum: W,
}

impl<W: Wide> CenteredStep<W> {
    pub(crate) fn new(rule: &RmsProp) -> Self {
        Self { step: RmsPropStep::new(rule), momentum: W::nearest(rule.momentum) }
    }
}

impl<W: Wide> Formula<W> for CenteredStep<W> {
    type Moments = [W; 3];

    fn element(&self, weight: W, gradient: W, [squares, mean, momentum]: [W; 3]) -> (W, [W; 3]) {
        let RmsPropStep { slope, learning_rate, decay, share, epsilon } = self.step;
        let slope = slope.decayed_then_clipped(weight, gradient);
        let squares = decay * squares + share * (slope * slope);
        let mean = decay * mean + share * slope;
        let zero = W::nearest(0.0);
        let variance = squares - mean * mean;
        let variance = if zero > variance { zero } else { variance };
        let momentum = self.momentum * momentum - learning_rate * slope / (variance + epsilon).root();
        (weight + momentum, [squares, mean, momentum])
    }
}
