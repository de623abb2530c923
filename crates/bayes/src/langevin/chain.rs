//! The samples of a chain.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use sheave_base::Result;

use crate::Real;
use crate::check::{length, refuse};

/// A chain that passes over its first steps, takes every so-many-th of the others as a sample, and keeps the last of
/// these. Mean and variance are those of all samples, also of those that are kept no longer.
///
/// ```
/// use sheave_bayes::langevin::Chain;
///
/// let mut chain = Chain::new(1, 2, 3, 10)?;
/// for step in 0..9 {
///     chain.offer(&[f64::from(step)])?;
/// }
/// assert_eq!(chain.samples().collect::<Vec<_>>(), [&[4.0], &[7.0]]);
/// assert_eq!(chain.mean(), [5.5]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chain<T> {
    burn_in: u64,
    thin: u64,
    capacity: usize,
    offered: u64,
    taken: u64,
    mean: Vec<f64>,
    /// Sums of squared deviations from the mean.
    squares: Vec<f64>,
    kept: VecDeque<Vec<T>>,
}

impl<T: Real> Chain<T> {
    /// Begins a chain of `dimension` parameters: the first `burn_in` steps are no samples, of the others each `thin`-th
    /// is one, and the last `capacity` samples are kept.
    ///
    /// # Errors
    /// `InvalidArgument` for a `thin` or a `capacity` of 0.
    pub fn new(dimension: usize, burn_in: u64, thin: u64, capacity: usize) -> Result<Self> {
        if thin == 0 || capacity == 0 {
            let field = if thin == 0 { "thin" } else { "capacity" };
            return Err(refuse("a chain", field, 0, "1 or more"));
        }
        let zeros = vec![0.0; dimension];
        let (mean, squares) = (zeros.clone(), zeros);
        Ok(Self { burn_in, thin, capacity, offered: 0, taken: 0, mean, squares, kept: VecDeque::new() })
    }

    /// Counts a step, and takes the parameters after it as a sample if it is its turn; returns whether it was. The
    /// oldest sample makes room for it in a full chain, where nothing is allocated.
    ///
    /// # Errors
    /// `InvalidArgument` for another length; the step does not count then.
    pub fn offer(&mut self, parameters: &[T]) -> Result<bool> {
        length("a chain", "parameters", parameters.len(), self.mean.len())?;
        self.offered += 1;
        let Some(after) = self.offered.checked_sub(self.burn_in) else { return Ok(false) };
        if after == 0 || !after.is_multiple_of(self.thin) {
            return Ok(false);
        }
        self.taken += 1;
        for ((mean, squares), value) in self.mean.iter_mut().zip(&mut self.squares).zip(parameters) {
            let before = value.to_double() - *mean;
            *mean += before / self.taken as f64;
            *squares += before * (value.to_double() - *mean);
        }
        let full = self.kept.len() == self.capacity;
        let mut row = if full { self.kept.pop_front().unwrap_or_default() } else { Vec::new() };
        row.clear();
        row.extend_from_slice(parameters);
        self.kept.push_back(row);
        Ok(true)
    }

    /// Returns the samples that are kept, oldest first, each of `d` elements.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = &[T]> {
        self.kept.iter().map(Vec::as_slice)
    }

    /// Returns how many samples were taken, with those that are kept no longer.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the mean of all samples: `d` elements, zeros before the first.
    #[must_use]
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// Writes the unbiased variance of all samples, divided by one less than their number, into `d` elements.
    ///
    /// # Errors
    /// `InvalidArgument` for another length, or fewer than two samples.
    pub fn variance(&self, out: &mut [f64]) -> Result<()> {
        length("a chain", "out", out.len(), self.mean.len())?;
        if self.taken < 2 {
            return Err(refuse("a chain", "the number of samples", self.taken, "two at least"));
        }
        for (variance, squares) in out.iter_mut().zip(&self.squares) {
            *variance = squares / (self.taken - 1) as f64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_chain_forgets_the_oldest_sample_and_no_moment() {
        let mut chain = Chain::new(1, 1, 2, 2).unwrap();
        let taken: Vec<bool> = (0..9).map(|step| chain.offer(&[step as f32]).unwrap()).collect();
        assert_eq!(taken, [false, false, true, false, true, false, true, false, true]);
        assert_eq!(chain.samples().collect::<Vec<_>>(), [&[6.0], &[8.0]]);
        assert_eq!((chain.taken(), chain.mean()), (4, &[5.0][..]));
        let mut variance = [0.0];
        chain.variance(&mut variance).unwrap();
        assert!((variance[0] - 20.0 / 3.0).abs() < 1e-12);
        let saved = serde_json::to_string(&chain).unwrap();
        assert_eq!(serde_json::from_str::<Chain<f32>>(&saved).unwrap(), chain);
    }

    #[test]
    fn refusals() {
        assert!(Chain::<f32>::new(1, 0, 0, 1).is_err());
        assert!(Chain::<f32>::new(1, 0, 1, 0).is_err());
        let mut chain = Chain::<f32>::new(2, 0, 1, 1).unwrap();
        assert!(chain.offer(&[1.0]).is_err());
        assert!(chain.variance(&mut [0.0; 2]).is_err());
    }
}
