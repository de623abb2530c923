//! The merged gradient of one synchronous round.
//!
//! Contributions are added in the order of the ranks. A sum of rows is the union of all rows; each of them is the sum
//! of what was given for it, in that order. Values stay where the first contribution with their row put them, and only
//! the ids are merged: so a row is copied once and then added to, and a round costs what its contributions do, whatever
//! the size of the table. Memory is kept for the next round.

use super::cut::Grid;
use super::is_normal;
use super::table::{RowSlices, row_mut};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Dtype, Op, Tensor, reduce};

pub(crate) struct RowSum {
    dtype: Dtype,
    /// The slice.
    grid: Grid,
    row_bytes: usize,
    /// Ascending.
    ids: Vec<i64>,
    /// Where the row of each id is among the values.
    places: Vec<usize>,
    /// What the next merge of ids writes to.
    spare: (Vec<i64>, Vec<usize>),
    /// Rows in the order of their arrival, with room for more.
    values: Option<Tensor>,
}

impl RowSum {
    /// An empty sum for a slice, which is in memory.
    pub(crate) fn new(dtype: Dtype, grid: Grid) -> Self {
        Self {
            dtype,
            grid,
            row_bytes: grid.row_elements as usize * dtype.size_bytes(),
            ids: Vec::new(),
            places: Vec::new(),
            spare: Default::default(),
            values: None,
        }
    }

    /// Adds normal rows.
    ///
    /// # Errors
    ///
    /// `Mismatch` for rows of another size, `InvalidArgument` if they are not normal or not in the table, `Unsupported`
    /// if the dtype has no sum, `LimitExceeded` without memory; then the sum is as before.
    pub(crate) fn add_rows(&mut self, added: RowSlices<'_>) -> Result<()> {
        let (Some(&first), Some(&last)) = (added.ids.first(), added.ids.last()) else { return Ok(()) };
        if added.row_bytes != self.row_bytes || added.values.len() / added.ids.len() < self.row_bytes {
            let what = format!("rows of {} bytes are added to rows of {}", added.row_bytes, self.row_bytes);
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        if !is_normal(added.ids) || first < 0 || last as u64 >= self.grid.rows {
            let what = format!("ids from {first} to {last} are not ascending ids of {} rows", self.grid.rows);
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if !self.ids.is_empty() {
            Op::Sum.require(self.dtype)?;
        }
        self.reserve(added.ids.len())?;
        let Some(values) = &mut self.values else { return Ok(()) };
        let values = values.bytes_mut()?;
        let mut used = self.ids.len();
        let (ids, places) = (&mut self.spare.0, &mut self.spare.1);
        ids.clear();
        places.clear();
        let mut old = 0;
        for (index, &id) in added.ids.iter().enumerate() {
            while let Some(&known) = self.ids.get(old).filter(|known| **known < id) {
                ids.push(known);
                places.push(self.places[old]);
                old += 1;
            }
            let source = added.row(index)?;
            ids.push(id);
            if self.ids.get(old) == Some(&id) {
                let place = self.places[old];
                places.push(place);
                old += 1;
                reduce(Op::Sum, self.dtype, row_mut(values, self.row_bytes, place)?, source)?;
            } else {
                places.push(used);
                row_mut(values, self.row_bytes, used)?.copy_from_slice(source);
                used += 1;
            }
        }
        ids.extend_from_slice(&self.ids[old..]);
        places.extend_from_slice(&self.places[old..]);
        std::mem::swap(&mut self.ids, ids);
        std::mem::swap(&mut self.places, places);
        Ok(())
    }

    /// Gives `read` the sum: ascending ids, whose rows lie in any order.
    pub(crate) fn read<R>(&self, read: impl FnOnce(RowSlices<'_>) -> Result<R>) -> Result<R> {
        let (ids, places, row_bytes) = (self.ids.as_slice(), Some(self.places.as_slice()), self.row_bytes);
        match &self.values {
            Some(values) => read(RowSlices { ids, places, values: &values.bytes()?, row_bytes }),
            None => read(RowSlices { ids, places, values: &[], row_bytes }),
        }
    }

    /// Forgets the sum, and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.ids.clear();
        self.places.clear();
    }

    /// Where its memory is.
    #[cfg(test)]
    pub(super) fn addresses(&self) -> ([*const i64; 2], [*const usize; 2], Option<*mut u8>) {
        let mut ids = [self.ids.as_ptr(), self.spare.0.as_ptr()];
        let mut places = [self.places.as_ptr(), self.spare.1.as_ptr()];
        ids.sort();
        places.sort();
        (ids, places, self.values.as_ref().map(Tensor::ptr))
    }

    /// Makes room for more rows, of which there are never more than the table has.
    fn reserve(&mut self, more: usize) -> Result<()> {
        let used = self.ids.len();
        let needed = (used as u64 + more as u64).min(self.grid.rows);
        for (ids, places) in [(&mut self.ids, &mut self.places), (&mut self.spare.0, &mut self.spare.1)] {
            ids.reserve((needed as usize).saturating_sub(ids.len()));
            places.reserve((needed as usize).saturating_sub(places.len()));
        }
        let room = self.values.as_ref().map_or(0, |values| values.elements() as u64);
        if self.values.is_some() && room >= needed.saturating_mul(self.grid.row_elements) {
            return Ok(());
        }
        // Twice what is used, so that many contributions copy each row a few times at most.
        let capacity = needed.max(used as u64 * 2).min(self.grid.rows);
        let mut values = Tensor::private(self.dtype, [capacity, self.grid.row_elements])?;
        if let Some(known) = self.values.take() {
            let len_bytes = used * self.row_bytes;
            values.bytes_mut()?[..len_bytes].copy_from_slice(&known.bytes()?[..len_bytes]);
        }
        self.values = Some(values);
        Ok(())
    }
}
