//! The optimizer of MXNet's own tests.

use serde::{Deserialize, Serialize};
use sheave_base::Result;

use crate::float::Wide;
use crate::pass::Formula;
use crate::settings::{Settings, require};
use crate::state::Layout;

/// `weight = weight + rescale * gradient`: the `test` optimizer of MXNet 1.9.1, with no other settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Test {
    /// What gradients are multiplied by; 1 by default.
    pub rescale: f64,
}

impl Default for Test {
    fn default() -> Self {
        Self { rescale: 1.0 }
    }
}

impl Settings for Test {
    fn name(&self) -> &'static str {
        "test"
    }

    fn layouts(&self) -> &'static [Layout] {
        &[Layout::Test]
    }

    fn check(&self) -> Result<()> {
        require("rescale", self.rescale, true, "a finite number")
    }

    fn learning_rate(&self) -> f64 {
        1.0
    }
}

/// [`Test`] in the type of the loop.
#[derive(Clone, Copy)]
pub(crate) struct TestStep<W> {
    rescale: W,
}

impl<W: Wide> TestStep<W> {
    pub(crate) fn new(rule: &Test) -> Self {
        Self { rescale: W::nearest(rule.rescale) }
    }
}

impl<W: Wide> Formula<W> for TestStep<W> {
    type Moments = [W; 0];

    fn element(&self, weight: W, gradient: W, _: [W; 0]) -> (W, [W; 0]) {
        (weight + self.rescale * gradient, [])
    }
}
