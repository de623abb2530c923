//! What a step moves: weights, with or without master copies.

use std::ops::Range;

use sheave_base::{Error, ErrorKind, Result};

use crate::Float;

/// Weights to step, a whole tensor or a slice of it.
///
/// ```
/// use half::f16;
/// use sheave_optim::{Rule, Target};
///
/// // A step of 2^-13 is too small for an f16 of 1, and adds up in the master copy.
/// let rule = Rule::sgd(2.0_f64.powi(-13));
/// let (mut master, mut weights) = ([1.0_f32], [f16::ONE]);
/// let mut state = rule.state(1);
/// for _ in 0..8 {
///     rule.step_on(&mut state, &mut Target::with_master(&mut master, &mut weights), &[f16::ONE])?;
/// }
/// assert_eq!((master, weights), ([1.0 - 1.0 / 1024.0], [f16::from_f32(1.0 - 1.0 / 1024.0)]));
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Debug)]
pub struct Target<'a, T: Float> {
    weights: &'a mut [T],
    master: Option<&'a mut [T::Wide]>,
}

impl<'a, T: Float> Target<'a, T> {
    /// Weights that are stepped themselves.
    #[must_use]
    pub fn new(weights: &'a mut [T]) -> Self {
        Self { weights, master: None }
    }

    /// Weights that follow a master copy: the copy is stepped, and the weights become it, rounded to nearest even. What
    /// the weights were does not matter. The first copy is made by [`widen`](crate::widen).
    #[must_use]
    pub fn with_master(master: &'a mut [T::Wide], weights: &'a mut [T]) -> Self {
        Self { weights, master: Some(master) }
    }

    /// Elements to step.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.weights.len()
    }

    /// Refuses a master copy of another length.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.master {
            Some(master) if master.len() != self.weights.len() => {
                let (masters, weights) = (master.len(), self.weights.len());
                let what = format!("a master copy of {masters} elements does not fit {weights} weights");
                Err(Error::new(ErrorKind::Mismatch, what))
            }
            _ => Ok(()),
        }
    }

    /// The weights in a range, widened; `buffer` is as long as the range.
    pub(crate) fn read<'b>(&'b self, range: Range<usize>, buffer: &'b mut [T::Wide]) -> &'b [T::Wide] {
        match &self.master {
            Some(master) => &master[range],
            None => T::widen(&self.weights[range], buffer),
        }
    }

    /// Lets `step` change the weights in a range, widened; `buffer` is as long as the range where `T` is narrow.
    pub(crate) fn change(&mut self, range: Range<usize>, buffer: &mut [T::Wide], step: impl FnOnce(&mut [T::Wide])) {
        let weights = &mut self.weights[range.clone()];
        match &mut self.master {
            Some(master) => {
                let master = &mut master[range];
                step(master);
                T::narrow(master, weights);
            }
            None => T::change(weights, buffer, step),
        }
    }
}
