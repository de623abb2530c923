//! The workers that a store does without, as its answers tell.
//!
//! Servers may hear of a death before this worker does, and answer with sums of those who are left. So each answer of a
//! store that shrinks names the workers that it lacks, and a worker that has the answer counts them no more.

use crate::protocol::Gone;
use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, Result};

/// A set of the workers that answers have named. It only grows.
pub(crate) struct Losses {
    workers: usize,
    /// Ranks, in ascending order.
    gone: Mutex<Vec<usize>>,
}

impl Losses {
    /// Returns the losses of a store of so many workers, none so far.
    pub(super) fn of(workers: usize) -> Self {
        Self { workers, gone: Mutex::default() }
    }

    /// Notes what an answer knows.
    pub(crate) fn learn(&self, Gone(told): &Gone) -> Result<()> {
        if told.is_empty() {
            return Ok(());
        }
        if let Some(rank) = told.iter().find(|rank| **rank >= self.workers) {
            let what = format!("a server does without worker {rank}; there are {}", self.workers);
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        let mut gone = self.gone.lock();
        for rank in told {
            if let Err(at) = gone.binary_search(rank) {
                gone.insert(at, *rank);
            }
        }
        Ok(())
    }

    /// Returns the ranks of those that answers have named.
    pub(super) fn known(&self) -> Vec<usize> {
        self.gone.lock().clone()
    }
}
