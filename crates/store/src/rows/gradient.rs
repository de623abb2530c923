//! Rows on their way into a slot: one contribution, and the sum of several.

use super::cut::Grid;
use super::sum::RowSum;
use super::table::RowSlices;
use crate::slot::empty;
use sheave_base::Result;
use sheave_tensor::{Arena, Dtype, Tensor};

/// One worker's rows of a slice, in normal form and inside it.
pub(crate) struct RowGradient {
    /// Strictly ascending `i64`.
    pub(crate) ids: Tensor,
    /// One row for each id, flat.
    pub(crate) values: Tensor,
    /// The slice.
    pub(crate) grid: Grid,
}

impl RowGradient {
    pub(crate) fn read<R>(&self, read: impl FnOnce(RowSlices<'_>) -> Result<R>) -> Result<R> {
        let row_bytes = self.grid.row_elements as usize * self.values.dtype().size_bytes();
        let (ids, values) = (self.ids.as_slice()?, self.values.bytes()?);
        read(RowSlices { ids: &ids, places: None, values: &values, row_bytes })
    }
}

/// A sum of rows that is complete.
pub(crate) enum RowTotal {
    /// Of one contribution, which is not copied.
    One(RowGradient),
    Several(Box<RowSum>),
}

impl RowTotal {
    /// Gives `read` the rows; their values may lie in any order.
    pub(crate) fn read<R>(&self, read: impl FnOnce(RowSlices<'_>) -> Result<R>) -> Result<R> {
        match self {
            Self::One(gradient) => gradient.read(read),
            Self::Several(sum) => sum.read(read),
        }
    }

    /// The values in the order of the ids, flat.
    pub(crate) fn packed(&self, dtype: Dtype, arena: &Arena) -> Result<Tensor> {
        match self {
            Self::One(gradient) => Ok(gradient.values.clone()),
            Self::Several(sum) => sum.read(|rows| {
                let elements = rows.ids.len() * rows.row_bytes / dtype.size_bytes();
                let mut packed = empty(arena, dtype, elements as u64)?;
                if rows.row_bytes > 0 {
                    let targets = packed.bytes_mut()?.chunks_exact_mut(rows.row_bytes);
                    for (index, target) in targets.enumerate() {
                        target.copy_from_slice(rows.row(index)?);
                    }
                }
                Ok(packed)
            }),
        }
    }
}
