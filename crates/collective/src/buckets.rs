//! How the tensors of a list are packed together.
//!
//! A list goes through the group in buckets, one after the other. A tensor of up to
//! [`LIST_SMALL_BYTES_MAX`](limits::LIST_SMALL_BYTES_MAX) bytes shares its bucket with other small ones of its dtype,
//! in the order of the list, until the bucket has [`LIST_BUCKET_BYTES_MAX`](limits::LIST_BUCKET_BYTES_MAX); a larger
//! one has a bucket of its own, which is the tensor itself: nothing is copied. The plan is a pure function of dtypes
//! and lengths, which the header's digest makes sure are the same on all ranks, so the buckets are too, whatever the
//! timing, and with them the bits of the result.

use crate::memory::Region;
use sheave_base::{Result, limits};
use sheave_tensor::Dtype;
use std::ops::Range;

/// Tensors of one dtype that travel as one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) dtype: Dtype,
    /// Indices in the list, and the bytes that each tensor has in the bucket.
    tensors: Vec<(usize, Range<usize>)>,
}

impl Bucket {
    fn of(dtype: Dtype, index: usize, len_bytes: usize) -> Self {
        Self { dtype, tensors: vec![(index, 0..len_bytes)] }
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.tensors.last().map_or(0, |(_, range)| range.end)
    }

    /// The index of its tensor, if it has just one.
    pub(crate) fn only(&self) -> Option<usize> {
        match self.tensors.as_slice() {
            [(index, _)] => Some(*index),
            _ => None,
        }
    }

    /// Copies its tensors into `memory`, each from this block of its region in the list: a region holds one block, or
    /// one for each rank.
    pub(crate) fn pack(&self, list: &[Region], block: usize, memory: &Region) -> Result<()> {
        self.tensors.iter().try_for_each(|(index, range)| {
            memory.part(range.clone()).copy_from(&list[*index].part(block * range.len()..(block + 1) * range.len()))
        })
    }

    /// Copies its tensors out of `memory`, each into this block of its region in the list.
    pub(crate) fn unpack(&self, memory: &Region, list: &[Region], block: usize) -> Result<()> {
        self.tensors.iter().try_for_each(|(index, range)| {
            list[*index].part(block * range.len()..(block + 1) * range.len()).copy_from(&memory.part(range.clone()))
        })
    }
}

/// The buckets of a list of tensors of these dtypes and bytes. A bucket's memory is `times` as large as what is packed
/// into it.
pub(crate) fn plan(tensors: impl IntoIterator<Item = (Dtype, usize)>, times: usize) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    // The bucket of each dtype that has room.
    let mut open: Vec<(Dtype, usize)> = Vec::new();
    for (index, (dtype, len_bytes)) in tensors.into_iter().enumerate() {
        if len_bytes.saturating_mul(times) > limits::LIST_SMALL_BYTES_MAX {
            buckets.push(Bucket::of(dtype, index, len_bytes));
            continue;
        }
        let known = open.iter_mut().find(|(other, _)| *other == dtype);
        if let Some(bucket) = known.as_ref().and_then(|(_, at)| buckets.get_mut(*at)) {
            let start = bucket.len_bytes();
            if (start + len_bytes) * times <= limits::LIST_BUCKET_BYTES_MAX {
                bucket.tensors.push((index, start..start + len_bytes));
                continue;
            }
        }
        match known {
            Some((_, at)) => *at = buckets.len(),
            None => open.push((dtype, buckets.len())),
        }
        buckets.push(Bucket::of(dtype, index, len_bytes));
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sheave_base::limits::{LIST_BUCKET_BYTES_MAX, LIST_SMALL_BYTES_MAX};

    #[test]
    fn small_tensors_of_one_dtype_share_a_bucket_and_large_ones_have_their_own() {
        let large = LIST_SMALL_BYTES_MAX + 4;
        let tensors =
            [(Dtype::F32, 8), (Dtype::I64, 16), (Dtype::F32, large), (Dtype::F32, 0), (Dtype::F32, 4), (Dtype::I64, 8)];
        let found: Vec<_> = plan(tensors, 1).into_iter().map(|bucket| (bucket.dtype, bucket.tensors)).collect();
        let expected = [
            (Dtype::F32, vec![(0, 0..8), (3, 8..8), (4, 8..12)]),
            (Dtype::I64, vec![(1, 0..16), (5, 16..24)]),
            (Dtype::F32, vec![(2, 0..large)]),
        ];
        assert_eq!(found, expected);
        assert!(plan([], 1).is_empty());
        // What is gathered from four ranks needs four times the memory.
        assert_eq!(plan([(Dtype::U8, LIST_SMALL_BYTES_MAX / 4), (Dtype::U8, LIST_SMALL_BYTES_MAX / 4)], 4).len(), 1);
        assert_eq!(plan([(Dtype::U8, LIST_SMALL_BYTES_MAX / 4 + 1), (Dtype::U8, 1)], 4).len(), 2);
    }

    proptest! {
        #[test]
        fn every_tensor_is_in_one_bucket_and_no_bucket_is_too_large(
            lengths in prop::collection::vec((0..3_usize, 0..2 * LIST_SMALL_BYTES_MAX), 0..200),
            times in 1..9_usize,
        ) {
            let dtypes = [Dtype::F32, Dtype::U8, Dtype::F64];
            let tensors: Vec<_> = lengths.iter().map(|(dtype, length)| (dtypes[*dtype], *length)).collect();
            let mut seen = vec![false; tensors.len()];
            for bucket in plan(tensors.clone(), times) {
                let mut end = 0;
                for (index, range) in &bucket.tensors {
                    prop_assert!(!std::mem::replace(&mut seen[*index], true));
                    prop_assert_eq!(tensors[*index], (bucket.dtype, range.len()));
                    prop_assert_eq!(range.start, end);
                    end = range.end;
                }
                prop_assert!(bucket.only().is_some() || end * times <= LIST_BUCKET_BYTES_MAX);
                prop_assert_eq!(end, bucket.len_bytes());
            }
            prop_assert!(seen.into_iter().all(|seen| seen));
        }
    }
}
