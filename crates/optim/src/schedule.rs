//! How the learning rate changes from step to step.

use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};

use crate::arithmetic::{fractional_power, half_wave, power};

/// What a learning rate is multiplied by at each step, the same bits on every machine.
///
/// Steps count from 1, as MXNet's `num_update` does, and the steps of a warm-up are among them.
///
/// ```
/// use sheave_optim::{Decay, Schedule, WarmUp};
///
/// let decay = Decay::Cosine { steps: 110, end: 0.0 };
/// let schedule = Schedule { decay, warm_up: Some(WarmUp { steps: 10, from: 0.0 }) };
/// schedule.check()?;
/// assert_eq!([1, 5, 10, 110, 1000].map(|step| schedule.factor(step)), [0.1, 0.5, 1.0, 0.0, 0.0]);
/// assert!((schedule.factor(60) - 0.5).abs() < 1e-15);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// What happens after the warm-up.
    pub decay: Decay,
    /// How the first steps rise to 1; none by default.
    pub warm_up: Option<WarmUp>,
}

/// A factor that falls. The shapes are those of `mxnet.lr_scheduler`, relative to the base learning rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Decay {
    /// Always 1.
    #[default]
    Constant,
    /// Multiplied by `factor` after each `every` steps: `max(factor^((step - 1) / every), floor)`, rounded down.
    Step {
        /// Steps between two falls, above zero.
        every: u64,
        /// Above 0 and at most 1.
        factor: f64,
        /// What it never falls below, from 0 to 1.
        floor: f64,
    },
    /// Multiplied by `factor` after each of these steps.
    MultiStep {
        /// The last steps before each fall, each larger than the last.
        at: Vec<u64>,
        /// Above 0 and at most 1.
        factor: f64,
    },
    /// `end + (1 - end) * (1 - share)^power`, with `share` the share of the steps after the warm-up that are done.
    Polynomial {
        /// The step that reaches `end`, later than the warm-up.
        steps: u64,
        /// 0 or more; 1 is a straight line.
        power: f64,
        /// From 0 to 1.
        end: f64,
    },
    /// `end + (1 - end) * (1 + cos(pi * share)) / 2`, with `share` as above.
    Cosine {
        /// The step that reaches `end`, later than the warm-up.
        steps: u64,
        /// From 0 to 1.
        end: f64,
    },
}

/// A straight line up to 1: `from + (1 - from) * step / steps` at the steps before `steps`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WarmUp {
    /// The step that reaches 1.
    pub steps: u64,
    /// Where the line begins, from 0 to 1.
    pub from: f64,
}

impl From<Decay> for Schedule {
    fn from(decay: Decay) -> Self {
        Self { decay, warm_up: None }
    }
}

impl Schedule {
    /// Whether the settings have a meaning.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a factor, floor or end outside its range, a power that is negative or not
    /// finite, steps that do not rise, or a decay that ends before its warm-up does.
    pub fn check(&self) -> Result<()> {
        let warm_up_steps = self.warm_up.as_ref().map_or(0, |warm_up| warm_up.steps);
        if let Some(warm_up) = &self.warm_up {
            within("from", warm_up.from)?;
        }
        match &self.decay {
            Decay::Constant => Ok(()),
            Decay::Step { every, factor, floor } => {
                require(*every > 0, "every", every, "above zero")?;
                falling(*factor)?;
                within("floor", *floor)
            }
            Decay::MultiStep { at, factor } => {
                let rises = at.windows(2).all(|pair| pair[0] < pair[1]);
                require(rises, "list of steps", at.len(), "of steps that rise")?;
                falling(*factor)
            }
            Decay::Polynomial { steps, power, end } => {
                require(*steps > warm_up_steps, "last step", steps, "later than the warm-up")?;
                require(power.is_finite() && *power >= 0.0, "power", power, "zero or more")?;
                within("end", *end)
            }
            Decay::Cosine { steps, end } => {
                require(*steps > warm_up_steps, "last step", steps, "later than the warm-up")?;
                within("end", *end)
            }
        }
    }

    /// What the learning rate is multiplied by at a step, the first of which is 1. From 0 to 1 where
    /// [`check`](Self::check) agrees.
    #[must_use]
    pub fn factor(&self, step: u64) -> f64 {
        let warm_up_steps = match &self.warm_up {
            Some(WarmUp { steps, from }) if step < *steps => {
                return from + (1.0 - from) * (step as f64 / *steps as f64);
            }
            Some(WarmUp { steps, .. }) => *steps,
            None => 0,
        };
        let done = |steps: u64| match steps.checked_sub(warm_up_steps) {
            Some(length) if step < steps => (step - warm_up_steps) as f64 / length as f64,
            _ => 1.0,
        };
        match &self.decay {
            Decay::Constant => 1.0,
            Decay::Step { every, factor, floor } => {
                let falls = step.saturating_sub(1).checked_div(*every).unwrap_or(0);
                let factor = power(*factor, falls);
                if factor < *floor { *floor } else { factor }
            }
            Decay::MultiStep { at, factor } => power(*factor, at.partition_point(|&last| last < step) as u64),
            Decay::Polynomial { steps, power, end } => end + (1.0 - end) * fractional_power(1.0 - done(*steps), *power),
            Decay::Cosine { steps, end } => end + (1.0 - end) * half_wave(done(*steps)),
        }
    }
}

fn within(name: &str, value: f64) -> Result<()> {
    require((0.0..=1.0).contains(&value), name, value, "from 0 to 1")
}

fn falling(factor: f64) -> Result<()> {
    require(factor > 0.0 && factor <= 1.0, "factor", factor, "above 0 and at most 1")
}

fn require(is_right: bool, name: &str, value: impl std::fmt::Display, expected: &str) -> Result<()> {
    if is_right {
        return Ok(());
    }
    let what = format!("the schedule's {name} is {value}, it must be {expected}");
    Err(Error::new(ErrorKind::InvalidArgument, what))
}
