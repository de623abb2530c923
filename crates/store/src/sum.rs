//! What workers contribute to a slice, and the sum of that.
//!
//! A sum grows in the order in which contributions are added, element by element, in the dtype of the slice. The first
//! contribution is the sum itself if its memory is nobody else's; so a single worker's push is not copied.

use crate::compress::Compression;
use crate::slot::{empty, flat_copy, is_own, overwrite};
use sheave_base::Result;
use sheave_tensor::{Arena, Dtype, Op, Tensor};

/// One worker's contribution, as it came.
pub(crate) enum Gradient {
    /// As many elements as the slice, of its dtype, flat.
    Plain(Tensor),
    /// So many elements of f32 in fewer bits.
    Coded(Compression, Tensor, usize),
}

/// A sum that is complete.
pub(crate) enum Total {
    /// As many elements as the slice, flat.
    Dense(Tensor),
}

/// A sum that grows. It keeps memory of the last one for the next.
#[derive(Default)]
pub(crate) struct Sum {
    dense: Option<Tensor>,
    scratch: Option<Tensor>,
}

impl Sum {
    /// Adds one more contribution.
    pub(crate) fn add(&mut self, gradient: Gradient, arena: &Arena) -> Result<()> {
        let sum = match (self.dense.take(), gradient) {
            (None, Gradient::Plain(tensor)) => tensor,
            (Some(sum), Gradient::Plain(tensor)) => {
                let mut sum = self.addable(sum, arena)?;
                sum.reduce_from(Op::Sum, &tensor)?;
                sum
            }
            (None, Gradient::Coded(compression, bytes, elements)) => {
                let mut sum = match self.scratch.take() {
                    Some(scratch) => scratch,
                    None => empty(arena, Dtype::F32, elements as u64)?,
                };
                compression.decode_into(&bytes.bytes()?, sum.as_mut_slice::<f32>()?)?;
                sum
            }
            (Some(sum), Gradient::Coded(compression, bytes, _)) => {
                let mut sum = self.addable(sum, arena)?;
                compression.add_into(&bytes.bytes()?, sum.as_mut_slice::<f32>()?)?;
                sum
            }
        };
        self.dense = Some(sum);
        Ok(())
    }

    /// The sum, in memory that may be added to.
    fn addable(&mut self, sum: Tensor, arena: &Arena) -> Result<Tensor> {
        if sum.buffer().is_unique() && !sum.buffer().is_read_only() {
            return Ok(sum);
        }
        match self.scratch.take() {
            Some(mut scratch) => overwrite(&mut scratch, &sum).map(|()| scratch),
            None => flat_copy(&sum, arena),
        }
    }

    /// The sum of all that was added since the last time, if anything was.
    pub(crate) fn take(&mut self) -> Option<Total> {
        self.dense.take().map(Total::Dense)
    }

    /// Keeps the memory of a sum that was used, if it is of our own; a contribution goes back to where it came from.
    pub(crate) fn keep(&mut self, total: Total, arena: &Arena) {
        match total {
            Total::Dense(sum) => self.scratch = self.scratch.take().or(Some(sum).filter(|sum| is_own(sum, arena))),
        }
    }

    /// Forgets what was added.
    pub(crate) fn clear(&mut self) {
        self.dense = None;
    }
}
