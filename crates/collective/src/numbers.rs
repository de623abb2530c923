//! How the numbers of a reduction are computed.
//!
//! Sums, products and averages of f16 and bf16 are computed in f32: a rank widens its input when it enters, f32 travels
//! from hop to hop, and whoever has the whole result of an element rounds it, once. An average is the sum, multiplied
//! once by 1/ranks. Each element is finished by one rank and then passed on, or by every rank from the same bits; so
//! the result is the same everywhere.

use crate::memory::Region;
use crate::operation::Operator;
use sheave_base::Result;
use sheave_tensor::{Dtype, Op};
use std::ops::Range;

/// The numbers of one reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    dtype: Dtype,
    operator: Operator,
    ranks: u32,
}

impl Numbers {
    pub(crate) fn new(dtype: Dtype, operator: Operator, ranks: u32) -> Self {
        Self { dtype, operator, ranks }
    }

    /// Whether partial results have another dtype than input and output.
    pub(crate) fn are_widened(self) -> bool {
        let accumulates = matches!(self.operator, Operator::Sum | Operator::Product | Operator::Avg);
        accumulates && matches!(self.dtype, Dtype::F16 | Dtype::Bf16)
    }

    fn work_dtype(self) -> Dtype {
        if self.are_widened() { Dtype::F32 } else { self.dtype }
    }

    pub(crate) fn op(self) -> Op {
        self.operator.step()
    }

    /// The dtype of input and output.
    pub(crate) fn dtype(self) -> Dtype {
        self.dtype
    }

    /// What a whole result is multiplied by, if it is.
    pub(crate) fn factor(self) -> Option<f64> {
        (self.operator == Operator::Avg).then(|| 1.0 / f64::from(self.ranks))
    }

    /// Bytes of the partial results of so many elements.
    pub(crate) fn work_bytes(self, elements: usize) -> usize {
        elements * self.work_dtype().size_bytes()
    }

    /// The bytes of some elements, in input or output.
    pub(crate) fn bytes_of(self, elements: &Range<usize>) -> Range<usize> {
        let size = self.dtype.size_bytes();
        elements.start * size..elements.end * size
    }

    /// The bytes of some elements, in partial results.
    pub(crate) fn work_bytes_of(self, elements: &Range<usize>) -> Range<usize> {
        self.work_bytes(elements.start)..self.work_bytes(elements.end)
    }

    /// Takes the input as a first partial result.
    pub(crate) fn load(self, target: &Region, input: &Region) -> Result<()> {
        if self.are_widened() { target.widen_from(self.dtype, input) } else { target.copy_from(input) }
    }

    /// Combines two partial results; the left one is of the ranks that come first.
    pub(crate) fn combine(self, target: &Region, left: &Region, right: &Region) -> Result<()> {
        target.reduce(self.op(), self.work_dtype(), left, right)
    }

    /// Makes a whole result out of a partial one that all ranks are in, which it may change.
    pub(crate) fn finish(self, output: &Region, partial: &Region) -> Result<()> {
        if let Some(factor) = self.factor() {
            partial.scale(self.work_dtype(), factor)?;
        }
        if self.are_widened() { output.narrow_from(self.dtype, partial) } else { output.copy_from(partial) }
    }
}

/// The elements of piece `index` when `count` elements are cut into `pieces` as evenly as possible.
pub(crate) fn piece(count: usize, pieces: u32, index: u32) -> Range<usize> {
    let (pieces, index) = (pieces as usize, index as usize);
    let (least, longer) = (count / pieces, count % pieces);
    let start = |index: usize| index * least + index.min(longer);
    start(index)..start(index + 1)
}

/// Cuts a range into segments of at most `most`, at least one, which may be empty.
pub(crate) fn segments(range: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let count = range.len().div_ceil(most.max(1)).max(1);
    (0..count).map(move |index| {
        let start = range.start + index * most;
        start..(start + most).min(range.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn everything_is_covered_once(count in 0..10_000_usize, pieces in 1..20_u32, most in 1..500_usize) {
            let mut next = 0;
            for index in 0..pieces {
                let piece = piece(count, pieces, index);
                prop_assert_eq!(piece.start, next);
                for segment in segments(piece.clone(), most) {
                    prop_assert_eq!(segment.start, next);
                    prop_assert!(segment.len() <= most);
                    next = segment.end;
                }
                prop_assert_eq!(piece.end, next);
            }
            prop_assert_eq!(next, count);
        }
    }
}
