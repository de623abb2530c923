//! Which of some rows lie in a slice of a tensor, and what they are called there.
//!
//! A slice of a dense tensor begins and ends at any element, also within a row. So every slice is taken for a table of
//! its own, whose rows have the largest length that divides the tensor's rows and the slice's borders: a row of the
//! tensor is a run of whole rows there. Tables are cut between rows, and so theirs stay as long as they are. Worker and
//! server compute this alone, from the shape and the borders.

use std::ops::Range;

/// A slice as a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) rows: u64,
    pub(crate) row_elements: u64,
}

impl Grid {
    /// A slice, as a range of elements, of a tensor with rows of `row_elements`.
    pub(crate) fn of(row_elements: u64, slice: &Range<u64>) -> Self {
        let elements = slice.end - slice.start;
        if elements == 0 {
            return Self { rows: 0, row_elements: 1 };
        }
        let row_elements = divisor(divisor(row_elements, slice.start), elements);
        Self { rows: elements / row_elements, row_elements }
    }
}

/// The greatest common divisor.
fn divisor(mut left: u64, mut right: u64) -> u64 {
    while right > 0 {
        (left, right) = (right, left % right);
    }
    left
}

/// What of some rows of a tensor lies in a slice.
#[derive(Debug, PartialEq)]
pub(crate) struct Cut {
    pub(crate) grid: Grid,
    /// Of the packed rows, those elements that lie in the slice.
    pub(crate) elements: Range<u64>,
    /// Which rows have a part in it.
    positions: Range<usize>,
    /// Rows of the slice for each row of the tensor.
    runs: u64,
    /// Rows of the slice's length before the slice.
    before: u64,
    /// Rows of the slice's length that the first row has before the slice.
    skipped: u64,
}

impl Cut {
    /// Those of ascending ids, of a tensor with rows of `row_elements`, that have a part in the slice.
    pub(crate) fn of(ids: &[i64], row_elements: u64, slice: &Range<u64>) -> Self {
        let grid = Grid::of(row_elements, slice);
        if grid.rows == 0 {
            return Self { grid, elements: 0..0, positions: 0..0, runs: 0, before: 0, skipped: 0 };
        }
        let positions = positions(ids, &(slice.start / row_elements..slice.end.div_ceil(row_elements)));
        let touched = &ids[positions.clone()];
        let front = touched.first().map_or(0, |id| slice.start.saturating_sub(*id as u64 * row_elements));
        let back = touched.last().map_or(0, |id| ((*id as u64 + 1) * row_elements).saturating_sub(slice.end));
        let elements = positions.start as u64 * row_elements + front..positions.end as u64 * row_elements - back;
        let (runs, before) = (row_elements / grid.row_elements, slice.start / grid.row_elements);
        Self { grid, elements, positions, runs, before, skipped: front / grid.row_elements }
    }

    /// How many rows of the slice there are.
    pub(crate) fn len(&self) -> usize {
        ((self.elements.end - self.elements.start) / self.grid.row_elements) as usize
    }

    /// Whether the slice's rows are those of `ids`.
    pub(crate) fn is_all(&self, ids: &[i64]) -> bool {
        self.runs == 1 && self.before == 0 && self.positions == (0..ids.len())
    }

    /// The ids of the slice's rows, from those that it was made of.
    pub(crate) fn local(&self, ids: &[i64]) -> impl Iterator<Item = i64> {
        let (runs, before) = (self.runs as i64, self.before as i64);
        let touched = ids.get(self.positions.clone()).unwrap_or_default().iter();
        let rows = touched.flat_map(move |id| (id * runs - before..).take(runs as usize));
        rows.skip(self.skipped as usize).take(self.len())
    }
}

/// Where in ascending ids those are that lie in `rows`.
pub(crate) fn positions(ids: &[i64], rows: &Range<u64>) -> Range<usize> {
    let before = |border: u64| ids.partition_point(|id| *id < 0 || (*id as u64) < border);
    before(rows.start)..before(rows.end)
}
