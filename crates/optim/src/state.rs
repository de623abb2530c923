//! What a rule remembers of one slice.

use serde::{Deserialize, Serialize};

use crate::Wide;

/// Moments and the number of steps, of one slice of weights under one rule.
///
/// Made by [`Rule::state`](crate::Rule::state), changed by [`Rule::step`](crate::Rule::step) alone. Its floats are of
/// the type that steps are computed in: `f32` for `f32` and 16-bit weights, `f64` for `f64`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State<W = f32> {
    pub(crate) elements: usize,
    pub(crate) steps: u64,
    pub(crate) moments: Moments<W>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Moments<W> {
    /// SGD without momentum remembers nothing.
    Nothing,
    Sgd {
        momentum: Vec<W>,
    },
    Adam {
        mean: Vec<W>,
        variance: Vec<W>,
    },
}

impl<W: Wide> State<W> {
    /// Steps taken so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Elements of the slice that this is the state of.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// The moments by name, each with one value per element: none for SGD without momentum, else `momentum`; for Adam
    /// `mean` and `variance`.
    #[must_use]
    pub fn parts(&self) -> Vec<(&'static str, &[W])> {
        match &self.moments {
            Moments::Nothing => Vec::new(),
            Moments::Sgd { momentum } => vec![("momentum", momentum)],
            Moments::Adam { mean, variance } => vec![("mean", mean), ("variance", variance)],
        }
    }
}
