//! Rows of memory: finding, copying and adding them.
//!
//! Ids are checked before they come here; those that are outside nevertheless are an error and never a panic.

use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Dtype, Op, reduce};

/// Rows to read: the `i`th has the id `ids[i]` and lies at `values[places[i]]`, or at `values[i]` without places.
#[derive(Clone, Copy)]
pub(crate) struct RowSlices<'a> {
    pub(crate) ids: &'a [i64],
    pub(crate) places: Option<&'a [usize]>,
    pub(crate) values: &'a [u8],
    pub(crate) row_bytes: usize,
}

impl<'a> RowSlices<'a> {
    /// The bytes of the `index`th row.
    pub(crate) fn row(&self, index: usize) -> Result<&'a [u8]> {
        let place = match self.places {
            Some(places) => *places.get(index).ok_or_else(|| outside(index))?,
            None => index,
        };
        row(self.values, self.row_bytes, place)
    }
}

/// A table, or a server's slice of one, to write.
pub(crate) struct Table<'a> {
    bytes: &'a mut [u8],
    dtype: Dtype,
    row_bytes: usize,
}

impl<'a> Table<'a> {
    pub(crate) fn new(bytes: &'a mut [u8], dtype: Dtype, row_bytes: usize) -> Self {
        Self { bytes, dtype, row_bytes }
    }

    /// Rows take the place of those with their ids.
    pub(crate) fn assign(&mut self, rows: RowSlices<'_>) -> Result<()> {
        for (index, id) in rows.ids.iter().enumerate() {
            self.announce(rows.ids.get(index + AHEAD));
            copy(row_mut(self.bytes, self.row_bytes, *id as usize)?, rows.row(index)?)?;
        }
        Ok(())
    }

    /// Rows are added to those with their ids, in the order given.
    pub(crate) fn add(&mut self, rows: RowSlices<'_>) -> Result<()> {
        for (index, id) in rows.ids.iter().enumerate() {
            self.announce(rows.ids.get(index + AHEAD));
            reduce(Op::Sum, self.dtype, row_mut(self.bytes, self.row_bytes, *id as usize)?, rows.row(index)?)?;
        }
        Ok(())
    }

    /// Row `id` will be written soon, about [`AHEAD`] rows from now.
    pub(super) fn announce(&self, id: Option<&i64>) {
        prefetch(self.bytes, self.row_bytes, id);
    }

    /// A row becomes zero.
    pub(crate) fn clear(&mut self, id: i64) -> Result<()> {
        row_mut(self.bytes, self.row_bytes, id as usize)?.fill(0);
        Ok(())
    }

    /// All of it becomes zero.
    pub(crate) fn clear_all(&mut self) {
        self.bytes.fill(0);
    }
}

/// Packs the rows with these ids, in any order and also several times the same, into `target`.
///
/// # Errors
///
/// `Mismatch` if the target is not of as many rows; then nothing is written.
pub(crate) fn gather(table: &[u8], row_bytes: usize, ids: &[i64], target: &mut [u8]) -> Result<()> {
    if ids.len().checked_mul(row_bytes) != Some(target.len()) {
        let what = format!("{} rows of {row_bytes} bytes for a place of {}", ids.len(), target.len());
        return Err(Error::new(ErrorKind::Mismatch, what));
    }
    for (index, id) in ids.iter().enumerate() {
        prefetch(table, row_bytes, ids.get(index + AHEAD));
        copy(row_mut(target, row_bytes, index)?, row(table, row_bytes, *id as usize)?)?;
    }
    Ok(())
}

pub(crate) fn row(bytes: &[u8], row_bytes: usize, index: usize) -> Result<&[u8]> {
    let start = index.checked_mul(row_bytes);
    let range = start.and_then(|start| Some(start..start.checked_add(row_bytes)?));
    range.and_then(|range| bytes.get(range)).ok_or_else(|| outside(index))
}

pub(crate) fn row_mut(bytes: &mut [u8], row_bytes: usize, index: usize) -> Result<&mut [u8]> {
    let start = index.checked_mul(row_bytes);
    let range = start.and_then(|start| Some(start..start.checked_add(row_bytes)?));
    range.and_then(|range| bytes.get_mut(range)).ok_or_else(|| outside(index))
}

fn copy(target: &mut [u8], source: &[u8]) -> Result<()> {
    if target.len() != source.len() {
        let what = format!("a row of {} bytes for one of {}", source.len(), target.len());
        return Err(Error::new(ErrorKind::Mismatch, what));
    }
    target.copy_from_slice(source);
    Ok(())
}

#[cold]
fn outside(index: usize) -> Error {
    Error::new(ErrorKind::Internal, format!("row {index} is outside its table"))
}

/// How many rows ahead memory is asked for.
pub(super) const AHEAD: usize = 8;

/// Asks for a row that comes soon: rows of a large table are misses, and the processor cannot guess the next id.
#[inline(always)]
fn prefetch(bytes: &[u8], row_bytes: usize, id: Option<&i64>) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if let Some(id) = id {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE_BYTES: usize = 64;
        /// What follows the processor guesses.
        const LINES_MAX: usize = 4;
        let first = bytes.as_ptr().wrapping_add((*id as usize).wrapping_mul(row_bytes));
        for line in 0..row_bytes.div_ceil(LINE_BYTES).min(LINES_MAX) {
            // SAFETY: a prefetch reads nothing and never faults, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(line * LINE_BYTES).cast()) };
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (bytes, row_bytes, id);
}
