//! In which order data are seen, and the seeds of a member.

use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};
use sheave_bayes::ensemble::bootstrap;
use sheave_bayes::random::{Generator, seed_of};

/// The seeds of a member's generators. Each is for one purpose, so that a prediction between two epochs changes nothing
/// in the training.
///
/// ```
/// use sheave_posterior::Seeds;
/// assert_ne!(Seeds::of(7, 0).start, Seeds::of(7, 1).start);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// Of the parameters at the start.
    pub start: u64,
    /// Of the order in which the member sees data, where it has its own.
    pub order: u64,
    /// Of the units that are dropped in a training.
    pub dropout: u64,
    /// Of the noise of a sampler.
    pub noise: u64,
    /// Of what is drawn for predictions.
    pub prediction: u64,
}

impl Seeds {
    /// Returns the seeds of a member, counted from 0, of a posterior with a seed.
    #[must_use]
    pub fn of(seed: u64, member: u64) -> Self {
        let own = seed_of(seed, member);
        let [start, order, dropout, noise, prediction] = [0, 1, 2, 3, 4].map(|purpose| seed_of(own, purpose));
        Self { start, order, dropout, noise, prediction }
    }

    /// Returns the seed of the order that all members of a posterior share.
    #[must_use]
    pub fn shared_order(seed: u64) -> u64 {
        seed_of(seed, u64::MAX)
    }
}

/// Batches of rows of data: each epoch goes through all rows in a new random order (Fisher and Yates), and leaves out
/// what does not fill a batch.
///
/// ```
/// use sheave_posterior::Order;
///
/// let mut order = Order::new(10, 4, 7, false)?;
/// assert_eq!(order.steps(), 2);
/// let mut seen = order.next_batch().to_vec();
/// seen.extend_from_slice(order.next_batch());
/// seen.sort_unstable();
/// seen.dedup();
/// assert_eq!(seen.len(), 8);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    rows: Vec<usize>,
    batch_rows: usize,
    place: usize,
    generator: Generator,
}

impl Order {
    /// Makes the order of a seed. With `is_bootstrap` the rows are first drawn from the data with replacement, as many
    /// as there are, and every epoch goes through these.
    ///
    /// # Errors
    /// `InvalidArgument` for batches without rows, or of more than the data have.
    pub fn new(data_rows: usize, batch_rows: usize, seed: u64, is_bootstrap: bool) -> Result<Self> {
        if batch_rows == 0 || batch_rows > data_rows {
            let what = format!("batch_rows is {batch_rows}; expected 1 to {data_rows}, the number of rows of the data");
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("posterior"));
        }
        let mut generator = Generator::new(seed);
        let mut rows: Vec<usize> = (0..data_rows).collect();
        if is_bootstrap {
            bootstrap(&mut generator, data_rows, &mut rows)?;
        }
        Ok(Self { rows, batch_rows, place: data_rows, generator })
    }

    /// Returns how many batches an epoch has.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.rows.len() / self.batch_rows
    }

    /// Returns the rows of the next batch. Allocates nothing.
    pub fn next_batch(&mut self) -> &[usize] {
        if self.place + self.batch_rows > self.rows.len() {
            for last in (1..self.rows.len()).rev() {
                // A bound above zero is never refused.
                let other = self.generator.below(last as u64 + 1).unwrap_or(0) as usize;
                self.rows.swap(last, other);
            }
            self.place = 0;
        }
        let start = self.place;
        self.place += self.batch_rows;
        &self.rows[start..self.place]
    }
}
