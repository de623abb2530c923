//! The workers that a store does without, as its answers tell.
//!
//! Servers may hear of a death before this worker does, and answer with sums of those who are left. So each answer of a
//! store that shrinks names the workers that it lacks, and a worker that has the answer counts them no more.

use crate::protocol;
use parking_lot::Mutex;
use sheave_base::Result;
use sheave_wire::Value;

/// A set of the workers that answers have named. It only grows.
#[derive(Default)]
pub(crate) struct Losses {
    /// Ranks, in ascending order.
    gone: Mutex<Vec<usize>>,
}

impl Losses {
    /// Notes what an answer knows.
    pub(crate) fn learn(&self, answer: &Value) -> Result<()> {
        if matches!(answer, Value::None) {
            return Ok(());
        }
        let told = protocol::decode_gone(answer)?;
        let mut gone = self.gone.lock();
        for rank in told {
            if let Err(at) = gone.binary_search(&rank) {
                gone.insert(at, rank);
            }
        }
        Ok(())
    }

    /// Returns the ranks of those that answers have named.
    pub(super) fn known(&self) -> Vec<usize> {
        self.gone.lock().clone()
    }
}
