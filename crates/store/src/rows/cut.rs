//! Which of some rows lie in a slice of a table.

use std::ops::Range;

/// Where in ascending ids those are that lie in `rows`.
pub(crate) fn positions(ids: &[i64], rows: &Range<u64>) -> Range<usize> {
    let before = |border: u64| ids.partition_point(|id| *id < 0 || (*id as u64) < border);
    before(rows.start)..before(rows.end)
}
