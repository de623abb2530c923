//! A rule with everything that a server must know to apply it for a whole training.

use serde::{Deserialize, Serialize};
use sheave_base::Result;

use crate::{Rule, Schedule};

/// A rule, how its learning rate changes, and whether 16-bit weights have master copies.
///
/// ```
/// use sheave_optim::{Decay, Optimizer, Rule, Schedule};
///
/// let decay = Decay::Step { every: 1, factor: 0.5, floor: 0.0 };
/// let optimizer = Optimizer { schedule: decay.into(), ..Rule::sgd(1.0).into() };
/// let mut weights = [0.0_f32];
/// let mut state = optimizer.rule.state(1);
/// for _ in 0..3 {
///     optimizer.at(state.steps()).step(&mut state, &mut weights, &[1.0])?;
/// }
/// assert_eq!(weights, [-1.75]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Optimizer {
    /// How weights follow gradients.
    pub rule: Rule,
    /// How the learning rate changes from step to step; constant by default.
    pub schedule: Schedule,
    /// Whether 16-bit weights are stepped as `f32` master copies, which are rounded into them; false by default. `f32`
    /// and `f64` weights need none. This crate has the means ([`Target`](crate::Target)); whoever holds the weights
    /// keeps the copies.
    pub multi_precision: bool,
}

impl From<Rule> for Optimizer {
    fn from(rule: Rule) -> Self {
        Self { rule, schedule: Schedule::default(), multi_precision: false }
    }
}

impl Optimizer {
    /// Whether the settings have a meaning.
    ///
    /// # Errors
    /// Those of [`Rule::check`] and [`Schedule::check`].
    pub fn check(&self) -> Result<()> {
        self.rule.check()?;
        self.schedule.check()
    }

    /// The rule for the next step of weights that took so many steps so far, with the learning rate that the schedule
    /// gives that step. Only the learning rate differs from one step to another, so every state stays usable.
    #[must_use]
    pub fn at(&self, steps: u64) -> Rule {
        let mut rule = self.rule.clone();
        rule.set_learning_rate(rule.learning_rate() * self.schedule.factor(steps.saturating_add(1)));
        rule
    }
}
