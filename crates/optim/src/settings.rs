//! What the settings of all rules have in common: their limits, and how a gradient becomes a slope.

use sheave_base::{Error, ErrorKind, Result};

use crate::arithmetic::power;
use crate::float::Wide;
use crate::state::Layout;

/// The smallest epsilon: one that is still a normal number once it is rounded to f32.
const EPSILON_MIN: f64 = f32::MIN_POSITIVE as f64;

/// The settings of one rule, whichever it is.
pub(crate) trait Settings {
    /// As MXNet registers the optimizer.
    fn name(&self) -> &'static str;

    /// What the states look like that these settings can work with; the first is that of a new state.
    fn layouts(&self) -> &'static [Layout];

    /// See [`Rule::check`](crate::Rule::check).
    fn check(&self) -> Result<()>;

    /// See [`Rule::learning_rate`](crate::Rule::learning_rate).
    fn learning_rate(&self) -> f64;
}

/// The settings that every rule but [`Test`](crate::Test) has.
pub(crate) struct Common {
    pub(crate) learning_rate: f64,
    pub(crate) weight_decay: f64,
    pub(crate) rescale: f64,
    pub(crate) clip_gradient: Option<f64>,
}

macro_rules! common {
    ($rule:expr) => {
        $crate::settings::Common {
            learning_rate: $rule.learning_rate,
            weight_decay: $rule.weight_decay,
            rescale: $rule.rescale,
            clip_gradient: $rule.clip_gradient,
        }
    };
}

pub(crate) use common;

impl Common {
    pub(crate) fn check(&self) -> Result<()> {
        require("learning rate", self.learning_rate, self.learning_rate >= 0.0, "zero or more")?;
        require("weight decay", self.weight_decay, self.weight_decay >= 0.0, "zero or more")?;
        require("rescale", self.rescale, true, "a finite number")?;
        self.clip_gradient.map_or(Ok(()), |clip| require("clip gradient", clip, clip > 0.0, "above zero"))
    }
}

/// What decays a moment: below 1 in f32 too, or the moment would never decay.
pub(crate) fn share(name: &str, value: f64) -> Result<()> {
    require(name, value, value >= 0.0 && (value as f32) < 1.0, "from 0 to below 1")
}

pub(crate) fn epsilon(value: f64) -> Result<()> {
    require("epsilon", value, value >= EPSILON_MIN, "above zero")
}

pub(crate) fn require(name: &str, value: f64, is_right: bool, expected: &str) -> Result<()> {
    if is_right && (value as f32).is_finite() {
        return Ok(());
    }
    let what = format!("the optimizer's {name} is {value}, it must be {expected}");
    Err(Error::new(ErrorKind::InvalidArgument, what))
}

/// How a gradient is rescaled, clipped and joined with the weight's decay.
#[derive(Clone, Copy)]
pub(crate) struct Slope<W> {
    rescale: W,
    clip: Option<W>,
    weight_decay: W,
}

impl<W: Wide> Slope<W> {
    pub(crate) fn new(common: &Common) -> Self {
        Self {
            rescale: W::nearest(common.rescale),
            clip: common.clip_gradient.map(W::nearest),
            weight_decay: W::nearest(common.weight_decay),
        }
    }

    /// Without decay.
    pub(crate) fn plain(self, gradient: W) -> W {
        self.clipped(self.rescale * gradient)
    }

    /// Decay is added to what was clipped.
    pub(crate) fn clipped_then_decayed(self, weight: W, gradient: W) -> W {
        self.clipped(self.rescale * gradient) + self.weight_decay * weight
    }

    /// The sum with the decay is clipped.
    pub(crate) fn decayed_then_clipped(self, weight: W, gradient: W) -> W {
        self.clipped(self.rescale * gradient + self.weight_decay * weight)
    }

    /// What is not a number stays so. The compiler moves the question whether to clip out of the loop.
    fn clipped(self, slope: W) -> W {
        let Some(clip) = self.clip else { return slope };
        let least = W::nearest(0.0) - clip;
        let slope = if clip < slope { clip } else { slope };
        if least > slope { least } else { slope }
    }
}

/// How much is kept of the mean of gradients and of that of their squares.
#[derive(Clone, Copy)]
pub(crate) struct Betas<W> {
    beta1: W,
    beta2: W,
    /// `1 - beta1`.
    share1: W,
    /// `1 - beta2`.
    share2: W,
}

impl<W: Wide> Betas<W> {
    pub(crate) fn new(beta1: f64, beta2: f64) -> Self {
        Self {
            beta1: W::nearest(beta1),
            beta2: W::nearest(beta2),
            share1: W::nearest(1.0 - beta1),
            share2: W::nearest(1.0 - beta2),
        }
    }

    pub(crate) fn follow(self, slope: W, [mean, variance]: [W; 2]) -> [W; 2] {
        [self.beta1 * mean + self.share1 * slope, self.beta2 * variance + self.share2 * (slope * slope)]
    }
}

/// How much of a moment has been seen after so many steps: what it must be divided by not to lean towards zero.
pub(crate) fn seen(beta: f64, steps: u64) -> f64 {
    1.0 - power(beta, steps)
}

/// The direction of AdamW and LAMB: `corrected mean / (sqrt(corrected variance) + epsilon) + weight_decay * weight`.
#[derive(Clone, Copy)]
pub(crate) struct Direction<W> {
    mean_correction: W,
    variance_correction: W,
    epsilon: W,
    weight_decay: W,
}

impl<W: Wide> Direction<W> {
    /// `seen` is how much of both moments has been seen, 1 where nothing is corrected.
    pub(crate) fn new(seen: [f64; 2], epsilon: f64, weight_decay: f64) -> Self {
        Self {
            mean_correction: W::nearest(1.0 / seen[0]),
            variance_correction: W::nearest(1.0 / seen[1]),
            epsilon: W::nearest(epsilon),
            weight_decay: W::nearest(weight_decay),
        }
    }

    pub(crate) fn of(self, weight: W, [mean, variance]: [W; 2]) -> W {
        let deviation = (variance * self.variance_correction).root() + self.epsilon;
        mean * self.mean_correction / deviation + self.weight_decay * weight
    }
}
