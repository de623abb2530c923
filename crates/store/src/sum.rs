//! What workers contribute to a slice, and the sum of that.
//!
//! A sum grows in the order in which contributions are added, element by element, in the dtype of the slice. The first
//! contribution is the sum itself if its memory is nobody else's; so a single worker's push is not copied.
//!
//! Rows are summed as rows until a dense contribution comes; then they are added to that, and later ones too. Addition
//! is commutative bit by bit (there is only one NaN), so this too is the sum in the order of the ranks. An element that
//! only the dense contribution has stays as it is.

use crate::compress::Compression;
use crate::rows::gradient::{RowGradient, RowTotal};
use crate::rows::sum::RowSum;
use crate::rows::table::{RowSlices, Table};
use crate::slot::{empty, flat_copy, is_own, overwrite};
use sheave_base::Result;
use sheave_tensor::{Arena, Dtype, Op, Tensor};

/// One worker's contribution, as it came.
pub(crate) enum Gradient {
    /// As many elements as the slice, of its dtype, flat.
    Plain(Tensor),
    /// So many elements of f32 in fewer bits.
    Coded(Compression, Tensor, usize),
    /// Some rows of it.
    Rows(RowGradient),
}

/// A sum that is complete.
pub(crate) enum Total {
    /// As many elements as the slice, flat.
    Dense(Tensor),
    /// Some rows of it; all others are zero.
    Rows(RowTotal),
}

/// A sum that grows. It keeps memory of the last one for the next.
#[derive(Default)]
pub(crate) struct Sum {
    dense: Option<Tensor>,
    scratch: Option<Tensor>,
    /// Instead of a dense sum.
    rows: Option<RowTotal>,
    row_scratch: Option<Box<RowSum>>,
}

impl Sum {
    /// Adds one more contribution.
    pub(crate) fn add(&mut self, gradient: Gradient, arena: &Arena) -> Result<()> {
        let sum = match (self.dense.take(), gradient) {
            (None, Gradient::Rows(rows)) => return self.add_to_rows(rows),
            (Some(sum), Gradient::Rows(rows)) => {
                let mut sum = self.addable(sum, arena)?;
                rows.read(|rows| add_rows(&mut sum, rows))?;
                sum
            }
            (None, Gradient::Plain(tensor)) => self.with_rows(tensor, arena)?,
            (Some(mut sum), Gradient::Plain(tensor)) if is_made_here(&sum, arena) => {
                sum.reduce_from(Op::Sum, &tensor)?;
                sum
            }
            (Some(first), Gradient::Plain(tensor)) => {
                // Memory of a worker, say: the sum is made where the value may stay.
                let mut sum = match self.scratch.take() {
                    Some(scratch) => scratch,
                    None => empty(arena, first.dtype(), first.elements() as u64)?,
                };
                sum.reduce_both(Op::Sum, &first, &tensor)?;
                sum
            }
            (None, Gradient::Coded(compression, bytes, elements)) => {
                let mut sum = match self.scratch.take() {
                    Some(scratch) => scratch,
                    None => empty(arena, Dtype::F32, elements as u64)?,
                };
                compression.decode_into(&bytes.bytes()?, sum.as_mut_slice::<f32>()?)?;
                self.with_rows(sum, arena)?
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

    /// A dense contribution after some of rows, which it takes in.
    fn with_rows(&mut self, tensor: Tensor, arena: &Arena) -> Result<Tensor> {
        let Some(rows) = self.rows.take() else { return Ok(tensor) };
        let mut sum = self.addable(tensor, arena)?;
        let added = rows.read(|rows| add_rows(&mut sum, rows));
        self.keep_rows(rows);
        added.map(|()| sum)
    }

    fn add_to_rows(&mut self, added: RowGradient) -> Result<()> {
        let mut sum = match self.rows.take() {
            None => {
                self.rows = Some(RowTotal::One(added));
                return Ok(());
            }
            Some(RowTotal::Several(sum)) => sum,
            Some(RowTotal::One(first)) => {
                let scratch = self.row_scratch.take();
                let mut sum = scratch.unwrap_or_else(|| Box::new(RowSum::new(first.values.dtype(), first.grid)));
                first.read(|rows| sum.add_rows(rows))?;
                sum
            }
        };
        let outcome = added.read(|rows| sum.add_rows(rows));
        self.rows = Some(RowTotal::Several(sum));
        outcome
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
        self.dense.take().map(Total::Dense).or_else(|| self.rows.take().map(Total::Rows))
    }

    /// Keeps the memory of a sum that was used, if it is of our own; a contribution goes back to where it came from.
    pub(crate) fn keep(&mut self, total: Total, arena: &Arena) {
        match total {
            Total::Dense(sum) => self.scratch = self.scratch.take().or(Some(sum).filter(|sum| is_own(sum, arena))),
            Total::Rows(rows) => self.keep_rows(rows),
        }
    }

    fn keep_rows(&mut self, rows: RowTotal) {
        if let RowTotal::Several(mut sum) = rows {
            sum.clear();
            self.row_scratch = Some(sum);
        }
    }

    /// Forgets what was added.
    pub(crate) fn clear(&mut self) {
        self.dense = None;
        if let Some(rows) = self.rows.take() {
            self.keep_rows(rows);
        }
    }
}

/// Whether memory may be added to that no peer has lent.
fn is_made_here(sum: &Tensor, arena: &Arena) -> bool {
    let buffer = sum.buffer();
    buffer.is_unique() && !buffer.is_read_only() && (arena.owns(buffer) || buffer.location().is_none())
}

/// Adds rows to those of a tensor.
fn add_rows(sum: &mut Tensor, rows: RowSlices<'_>) -> Result<()> {
    let dtype = sum.dtype();
    Op::Sum.require(dtype)?;
    Table::new(sum.bytes_mut()?, dtype, rows.row_bytes).add(rows)
}
