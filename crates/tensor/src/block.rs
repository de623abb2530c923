//! Which bytes of a segment are free: best fit, coalescing, in lines of 64 bytes.
//!
//! Pure bookkeeping without memory, so that it can be tested against a plain model.

use std::collections::{BTreeMap, BTreeSet};

/// Smallest unit and alignment of a block: a cache line.
pub(crate) const LINE_BYTES: u64 = 64;

/// Blocks from this size on start on a page and are whole pages, so that they can be mapped, copied and remapped by
/// pages.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// How many ranges that are big enough but badly aligned are looked at before one is taken that fits anyhow.
const MISALIGNED_TRIES: usize = 16;

/// The size of the block that serves a request, or `None` on overflow.
pub(crate) fn block_bytes(len_bytes: u64) -> Option<u64> {
    len_bytes.max(1).checked_next_multiple_of(alignment(len_bytes))
}

fn alignment(len_bytes: u64) -> u64 {
    if len_bytes >= PAGE_BYTES { PAGE_BYTES } else { LINE_BYTES }
}

/// A free range that a block can be cut from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Length of the whole free range: the smallest one over all segments wins.
    pub(crate) range_bytes: u64,
    range_offset: u64,
}

/// The free ranges of one segment; no two of them touch.
#[derive(Debug)]
pub(crate) struct FreeRanges {
    length_at: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    total_bytes: u64,
}

impl FreeRanges {
    /// One range over everything.
    pub(crate) fn new(total_bytes: u64) -> Self {
        let mut ranges = Self { length_at: BTreeMap::new(), by_length: BTreeSet::new(), total_bytes };
        ranges.insert(0, total_bytes);
        ranges
    }

    /// Whether nothing is allocated.
    pub(crate) fn is_entirely_free(&self) -> bool {
        self.length_at.get(&0) == Some(&self.total_bytes)
    }

    /// The smallest range (nearly: see [`MISALIGNED_TRIES`]) that holds a block of `block_bytes`.
    pub(crate) fn best(&self, block_bytes: u64) -> Option<Candidate> {
        let align_bytes = alignment(block_bytes);
        let fits = |&&(length, offset): &&(u64, u64)| padding(offset, align_bytes) + block_bytes <= length;
        let near = self.by_length.range((block_bytes, 0)..).take(MISALIGNED_TRIES).find(fits);
        let sure = || self.by_length.range((block_bytes + align_bytes - LINE_BYTES, 0)..).next();
        let &(range_bytes, range_offset) = near.or_else(sure)?;
        Some(Candidate { range_bytes, range_offset })
    }

    /// Cuts a block from a candidate of the same size and tells its offset.
    pub(crate) fn take(&mut self, candidate: Candidate, block_bytes: u64) -> u64 {
        let Candidate { range_bytes, range_offset } = candidate;
        let padding_bytes = padding(range_offset, alignment(block_bytes));
        self.remove(range_offset, range_bytes);
        let offset = range_offset + padding_bytes;
        self.insert(range_offset, padding_bytes);
        self.insert(offset + block_bytes, range_bytes - padding_bytes - block_bytes);
        offset
    }

    /// Gives a block back and joins it with its free neighbours.
    pub(crate) fn give_back(&mut self, mut offset: u64, mut length: u64) {
        if let Some((&before, &before_length)) = self.length_at.range(..offset).next_back()
            && before + before_length == offset
        {
            self.remove(before, before_length);
            offset = before;
            length += before_length;
        }
        let end = offset + length;
        if let Some(&after_length) = self.length_at.get(&end) {
            self.remove(end, after_length);
            length += after_length;
        }
        self.insert(offset, length);
    }

    fn insert(&mut self, offset: u64, length: u64) {
        if length > 0 {
            self.length_at.insert(offset, length);
            self.by_length.insert((length, offset));
        }
    }

    fn remove(&mut self, offset: u64, length: u64) {
        self.length_at.remove(&offset);
        self.by_length.remove(&(length, offset));
    }
}

fn padding(offset: u64, align_bytes: u64) -> u64 {
    offset.next_multiple_of(align_bytes) - offset
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_join_again() {
        let mut ranges = FreeRanges::new(3 * 4096);
        let taken: Vec<_> = (0..3).map(|_| ranges.take(ranges.best(4096).unwrap(), 4096)).collect();
        assert_eq!(taken, [0, 4096, 8192]);
        assert_eq!(ranges.best(64), None);
        for offset in [0, 8192, 4096] {
            assert!(!ranges.is_entirely_free());
            ranges.give_back(offset, 4096);
        }
        assert!(ranges.is_entirely_free());
    }

    #[test]
    fn the_tightest_hole_is_taken() {
        let mut ranges = FreeRanges::new(64 * 10);
        ranges.take(ranges.best(64 * 10).unwrap(), 64 * 10);
        ranges.give_back(0, 64 * 4);
        ranges.give_back(64 * 6, 64 * 2);
        assert_eq!(ranges.take(ranges.best(64 * 2).unwrap(), 64 * 2), 64 * 6);
    }

    #[test]
    fn sizes_round_to_lines_and_pages() {
        assert_eq!(block_bytes(0), Some(64));
        assert_eq!(block_bytes(65), Some(128));
        assert_eq!(block_bytes(4095), Some(4096));
        assert_eq!(block_bytes(4097), Some(8192));
        assert_eq!(block_bytes(u64::MAX), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Against a plain model: blocks never overlap, are aligned, and all free again at the end.
        #[test]
        fn blocks_never_overlap(
            steps in prop::collection::vec((1_u64..20_000, any::<prop::sample::Index>(), any::<bool>()), 1..200)
        ) {
            let total = 256 * 1024;
            let mut ranges = FreeRanges::new(total);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (length, victim, keep) in steps {
                let bytes = block_bytes(length).unwrap();
                if let Some(candidate) = ranges.best(bytes) {
                    let offset = ranges.take(candidate, bytes);
                    prop_assert!(offset + bytes <= total && offset.is_multiple_of(alignment(length)));
                    prop_assert!(held.iter().all(|&(other, size)| offset + bytes <= other || other + size <= offset));
                    held.push((offset, bytes));
                }
                if !keep && !held.is_empty() {
                    let (offset, bytes) = held.swap_remove(victim.index(held.len()));
                    ranges.give_back(offset, bytes);
                }
            }
            let used: u64 = held.iter().map(|block| block.1).sum();
            let free: u64 = ranges.length_at.values().sum();
            prop_assert_eq!(used + free, total);
            for (offset, bytes) in held {
                ranges.give_back(offset, bytes);
            }
            prop_assert!(ranges.is_entirely_free());
        }
    }
}
