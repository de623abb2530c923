//! Which server has which rows.

use crate::layout;
use smallvec::SmallVec;
use std::ops::Range;

/// The server and the rows of each slice of a table. As [`layout::cut`], but borders are between rows: a table of fewer
/// than `cut_elements` elements, or of fewer rows than there are servers, is whole on the server of its number; any
/// other is cut into even ranges of rows, one for each server.
pub(crate) fn row_cut(
    number: u64,
    rows: u64,
    row_elements: u64,
    servers: usize,
    cut_elements: u64,
) -> SmallVec<[(usize, Range<u64>); 2]> {
    let is_cut = rows.saturating_mul(row_elements) >= cut_elements;
    layout::cut(number, rows, servers, if is_cut { 0 } else { u64::MAX })
}

/// Where in ascending ids those are that lie in `rows`.
pub(crate) fn positions(ids: &[i64], rows: &Range<u64>) -> Range<usize> {
    let before = |border: u64| ids.partition_point(|id| *id < 0 || (*id as u64) < border);
    before(rows.start)..before(rows.end)
}
