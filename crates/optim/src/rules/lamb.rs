//! LAMB.

use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};

use crate::float::{Float, Wide};
use crate::norms::{Accumulator, BlockSums, Norms, blocks};
use crate::pass::{Formula, Moments, PASS_ELEMENTS};
use crate::settings::{Betas, Direction, Settings, Slope, common, epsilon, require, seen, share};
use crate::state::{Layout, State};
use crate::target::Target;

/// LAMB (You et al. 2020; MXNet: `lamb_update_phase1`, `lamb_update_phase2`): AdamW with one rate for each tensor.
///
/// ```text
/// slope     = clip(rescale * gradient)
/// mean      = beta1 * mean + (1 - beta1) * slope
/// variance  = beta2 * variance + (1 - beta2) * slope²
/// direction = mean / (1 - beta1^steps) / (sqrt(variance / (1 - beta2^steps)) + epsilon) + weight_decay * weight
/// size      = ‖weights‖, at least lower_bound and at most upper_bound
/// trust     = size / ‖direction‖, or 1 where either is zero
/// weight    = weight - learning_rate * trust * direction
/// ```
///
/// Both norms are those of the whole tensor, in f64. The bounds are those of the paper's function φ and of MXNet: they
/// hold for the norm of the weights, not for the quotient. One element that is not a number makes the whole tensor so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lamb {
    /// How far a step goes relative to the tensor's norm; 0.001 by default.
    pub learning_rate: f64,
    /// How much of the mean of gradients is kept, from 0 to below 1; 0.9 by default.
    pub beta1: f64,
    /// How much of the mean of squared gradients is kept, from 0 to below 1; 0.999 by default.
    pub beta2: f64,
    /// Keeps the division finite; above zero, 1e-6 by default.
    pub epsilon: f64,
    /// How much of each weight is added to its direction; 0 by default.
    pub weight_decay: f64,
    /// What gradients are multiplied by first, such as 1 / global batch size; 1 by default.
    pub rescale: f64,
    /// What rescaled gradients are clipped to, from minus this to this; never the decay. None by default.
    pub clip_gradient: Option<f64>,
    /// Whether the moments are corrected for their start at zero; true by default.
    pub bias_correction: bool,
    /// The least norm of the weights that counts; none by default.
    pub lower_bound: Option<f64>,
    /// The largest norm of the weights that counts; none by default.
    pub upper_bound: Option<f64>,
}

impl Default for Lamb {
    fn default() -> Self {
        Self {
            learning_rate: 0.001,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-6,
            weight_decay: 0.0,
            rescale: 1.0,
            clip_gradient: None,
            bias_correction: true,
            lower_bound: None,
            upper_bound: None,
        }
    }
}

impl Settings for Lamb {
    fn name(&self) -> &'static str {
        "lamb"
    }

    fn layouts(&self) -> &'static [Layout] {
        &[Layout::Lamb]
    }

    fn check(&self) -> Result<()> {
        share("beta1", self.beta1)?;
        share("beta2", self.beta2)?;
        epsilon(self.epsilon)?;
        for (name, bound) in [("lower bound", self.lower_bound), ("upper bound", self.upper_bound)] {
            if let Some(bound) = bound {
                require(name, bound, bound >= 0.0, "zero or more")?;
            }
        }
        if let (Some(lower), Some(upper)) = (self.lower_bound, self.upper_bound) {
            require("upper bound", upper, lower <= upper, "no less than the lower bound")?;
        }
        common!(self).check()
    }

    fn learning_rate(&self) -> f64 {
        self.learning_rate
    }
}

impl Lamb {
    fn direction<W: Wide>(&self, steps: u64) -> Direction<W> {
        let seen = if self.bias_correction { [seen(self.beta1, steps), seen(self.beta2, steps)] } else { [1.0, 1.0] };
        Direction::new(seen, self.epsilon, self.weight_decay)
    }

    /// How many times the learning rate a step goes.
    fn trust(&self, norms: &Norms) -> f64 {
        // By comparisons: `max` and `min` would drop what is not a number.
        let (size, direction) = (norms.weights(), norms.direction());
        let size = self.lower_bound.filter(|&lower| size < lower).unwrap_or(size);
        let size = self.upper_bound.filter(|&upper| size > upper).unwrap_or(size);
        if size == 0.0 || direction == 0.0 { 1.0 } else { size / direction }
    }

    /// See [`Rule::prepare`](crate::Rule::prepare), which has checked everything.
    pub(crate) fn prepare<T: Float, G: Float<Wide = T::Wide>>(
        &self,
        state: &mut State<T::Wide>,
        target: &Target<'_, T>,
        gradient: &[G],
        first_element: u64,
    ) -> BlockSums {
        state.steps = state.steps.saturating_add(1);
        let formula = Prepare {
            slope: Slope::new(&common!(self)),
            betas: Betas::new(self.beta1, self.beta2),
            direction: self.direction(state.steps),
        };
        let zeros = [Wide::nearest(0.0); PASS_ELEMENTS];
        let (mut wide_weights, mut wide_gradient, mut directions) = (zeros, zeros, zeros);
        let mut sums = BlockSums::new(first_element, state.elements as u64, state.steps);
        for block in blocks(first_element, state.elements) {
            let mut sum = [Accumulator::default(); 2];
            for start in block.clone().step_by(PASS_ELEMENTS) {
                let range = start..block.end.min(start + PASS_ELEMENTS);
                let count = range.len();
                let weights = target.read(range.clone(), &mut wide_weights[..count]);
                let gradient = G::widen(&gradient[range.clone()], &mut wide_gradient[..count]);
                let directions = &mut directions[..count];
                directions.copy_from_slice(weights);
                sum[0].add(directions);
                Moments::pass(formula, &mut state.parts, range, directions, gradient);
                sum[1].add(directions);
            }
            sums.push(sum.map(Accumulator::sum));
        }
        sums
    }

    /// See [`Rule::finish`](crate::Rule::finish), which has checked everything.
    pub(crate) fn finish<T: Float>(
        &self,
        state: &State<T::Wide>,
        target: &mut Target<'_, T>,
        norms: &Norms,
    ) -> Result<()> {
        let [mean, variance] = &state.parts[..] else {
            return Err(Error::new(ErrorKind::Mismatch, "the state is damaged"));
        };
        let rate = T::Wide::nearest(self.learning_rate * self.trust(norms));
        let direction = self.direction::<T::Wide>(state.steps);
        let mut buffer = [Wide::nearest(0.0); PASS_ELEMENTS];
        for start in (0..state.elements).step_by(PASS_ELEMENTS) {
            let range = start..state.elements.min(start + PASS_ELEMENTS);
            let moments = mean[range.clone()].iter().zip(&variance[range.clone()]);
            target.change(range.clone(), &mut buffer[..range.len()], |weights| {
                for (weight, (&mean, &variance)) in weights.iter_mut().zip(moments) {
                    *weight = *weight - rate * direction.of(*weight, [mean, variance]);
                }
            });
        }
        Ok(())
    }
}

/// Moves the moments, and makes the direction of what is the weight before.
#[derive(Clone, Copy)]
struct Prepare<W> {
    slope: Slope<W>,
    betas: Betas<W>,
    direction: Direction<W>,
}

impl<W: Wide> Formula<W> for Prepare<W> {
    type Moments = [W; 2];

    fn element(&self, weight: W, gradient: W, moments: [W; 2]) -> (W, [W; 2]) {
        let moments = self.betas.follow(self.slope.plain(gradient), moments);
        (self.direction.of(weight, moments), moments)
    }
}
