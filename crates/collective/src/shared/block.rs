//! Arithmetic and copies on memory of several ranks.
//!
//! Addresses come from regions of this rank and from segments that neighbours have shown, cut to what agreed lengths
//! say. That nobody else touches these bytes at the time is what the counters of the desks are for: the callers say
//! which one.

use crate::halves::{narrow, widen};
use crate::numbers::Numbers;
use sheave_base::Result;
use sheave_tensor::kernels::reduce_raw;
use sheave_tensor::{Dtype, hand_over, scale};
use smallvec::SmallVec;
use std::cell::RefCell;

/// Bytes of partial results that are worked on at a time: small enough to stay in the first cache from the first
/// operand to the last copy.
const BLOCK_BYTES: usize = 16 << 10;

/// Memory that results pass through: aligned for every dtype.
#[repr(C, align(64))]
struct Scratch {
    result: [u8; BLOCK_BYTES],
    partial: Partial,
}

/// Memory of partial results.
#[repr(C, align(64))]
struct Partial {
    partial: [u8; BLOCK_BYTES],
    operand: [u8; BLOCK_BYTES],
    halves: [u8; BLOCK_BYTES / 2],
}

thread_local! {
    /// One for each thread that reduces: making it costs more than a short reduction.
    static SCRATCH: RefCell<Box<Scratch>> = RefCell::new(Box::new(Scratch {
        result: [0; BLOCK_BYTES],
        partial: Partial {
            partial: [0; BLOCK_BYTES],
            operand: [0; BLOCK_BYTES],
            halves: [0; BLOCK_BYTES / 2],
        },
    }));
}

/// The same elements of all ranks, in the order of the ranks, and where their reduction goes.
pub(crate) struct Operands {
    pub(crate) sources: SmallVec<[*const u8; 8]>,
    /// This rank's own output, if it has one.
    pub(crate) target: Option<*mut u8>,
    /// Memory that others read, to which the result is copied besides.
    pub(crate) copies: SmallVec<[*mut u8; 8]>,
}

/// Reduces so many elements in the order of the ranks, and finishes them.
///
/// # Safety
///
/// Sources must be readable, target and copies writable for that many elements of the numbers' dtype, and nobody else
/// may touch any of them meanwhile, except read the sources. Target and copies may be sources, at the same elements,
/// and do not overlap otherwise.
pub(crate) unsafe fn reduce_all(numbers: Numbers, operands: &Operands, elements: usize) -> Result<()> {
    SCRATCH.with_borrow_mut(|scratch| {
        // SAFETY: the caller's promise.
        unsafe { reduce_blocks(numbers, operands, elements, scratch) }
    })
}

/// # Safety
///
/// As [`reduce_all`].
unsafe fn reduce_blocks(numbers: Numbers, operands: &Operands, elements: usize, scratch: &mut Scratch) -> Result<()> {
    let (size, at_once) = (numbers.dtype().size_bytes(), BLOCK_BYTES / numbers.work_bytes(1));
    let Scratch { result, partial } = scratch;
    let mut done = 0;
    while done < elements {
        let count = at_once.min(elements - done);
        let (from, bytes) = (done * size, count * size);
        let target = match operands.target {
            Some(target) => target.wrapping_add(from),
            None => result.as_mut_ptr(),
        };
        let source = |index: usize| operands.sources[index].wrapping_add(from);
        let ranks = operands.sources.len();
        // SAFETY: the offsets are inside what the caller promises; the scratch memory is this call's own.
        unsafe {
            if numbers.are_widened() {
                reduce_widened(numbers, source, ranks, target, count, partial)?;
            } else {
                reduce_plain(numbers, source, ranks, target, count, partial)?;
            }
            for copy in &operands.copies {
                hand_over(copy.wrapping_add(from), target, bytes);
            }
        }
        done += count;
    }
    Ok(())
}

/// # Safety
///
/// As [`reduce_all`], for a block.
unsafe fn reduce_plain(
    numbers: Numbers,
    source: impl Fn(usize) -> *const u8,
    ranks: usize,
    target: *mut u8,
    count: usize,
    scratch: &mut Partial,
) -> Result<()> {
    let (op, dtype, bytes) = (numbers.op(), numbers.dtype(), count * numbers.dtype().size_bytes());
    // SAFETY: all are readable or writable for the block; the target is written last, when every source that it may be
    // has been read but for the same elements in the same step.
    unsafe {
        match ranks {
            0 => {}
            1 => std::ptr::copy(source(0), target, bytes),
            2 => reduce_raw(op, dtype, target, source(0), source(1), count)?,
            _ => {
                let partial = scratch.partial.as_mut_ptr();
                reduce_raw(op, dtype, partial, source(0), source(1), count)?;
                for index in 2..ranks - 1 {
                    reduce_raw(op, dtype, partial, partial, source(index), count)?;
                }
                reduce_raw(op, dtype, target, partial, source(ranks - 1), count)?;
            }
        }
        if let Some(factor) = numbers.factor() {
            scale(dtype, std::slice::from_raw_parts_mut(target, bytes), factor)?;
        }
    }
    Ok(())
}

/// # Safety
///
/// As [`reduce_all`], for a block.
unsafe fn reduce_widened(
    numbers: Numbers,
    source: impl Fn(usize) -> *const u8,
    ranks: usize,
    target: *mut u8,
    count: usize,
    scratch: &mut Partial,
) -> Result<()> {
    let Partial { partial, operand, halves } = scratch;
    for index in 0..ranks {
        // SAFETY: the block is readable, and the scratch memory holds as much.
        unsafe { std::ptr::copy_nonoverlapping(source(index), halves.as_mut_ptr(), count * 2) };
        let floats = if index == 0 { &mut *partial } else { &mut *operand };
        widen(numbers.dtype(), &halves[..count * 2], &mut floats[..count * 4])?;
        if index > 0 {
            let target = partial.as_mut_ptr();
            // SAFETY: both are scratch memory for that many floats.
            unsafe { reduce_raw(numbers.op(), Dtype::F32, target, target, operand.as_ptr(), count)? };
        }
    }
    if let Some(factor) = numbers.factor() {
        scale(Dtype::F32, &mut partial[..count * 4], factor)?;
    }
    narrow(numbers.dtype(), &partial[..count * 4], &mut halves[..count * 2])?;
    // SAFETY: the target is writable for the block.
    unsafe { std::ptr::copy_nonoverlapping(halves.as_ptr(), target, count * 2) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Operator;
    use half::f16;
    use proptest::prelude::*;

    fn reduced(numbers: Numbers, inputs: &[Vec<u8>], elements: usize, onto: usize) -> Vec<u8> {
        let mut inputs = inputs.to_vec();
        let target = inputs[onto].as_mut_ptr();
        let mut copy = vec![0; inputs[0].len()];
        let operands = Operands {
            sources: inputs.iter().map(Vec::as_ptr).collect(),
            target: Some(target),
            copies: SmallVec::from_slice(&[copy.as_mut_ptr()]),
        };
        let lent = Operands { sources: operands.sources.clone(), target: None, copies: operands.copies.clone() };
        // SAFETY: vectors of that many elements, of this thread; the target is one of the sources.
        unsafe { reduce_all(numbers, &lent, elements) }.unwrap();
        let without_target = copy.clone();
        copy.fill(0);
        // SAFETY: as above.
        unsafe { reduce_all(numbers, &operands, elements) }.unwrap();
        assert!(copy == inputs[onto], "the copy differs");
        assert!(copy == without_target, "the result depends on whether there is an output");
        copy
    }

    fn config() -> ProptestConfig {
        ProptestConfig {
            failure_persistence: None,
            cases: if cfg!(miri) { 4 } else { 64 },
            ..ProptestConfig::default()
        }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn sums_are_in_the_order_of_the_ranks(
            elements in 0..10_000_usize, ranks in 1..6_usize, seed in any::<u32>(), onto in any::<prop::sample::Index>()
        ) {
            let value = |rank: usize, at: usize| ((seed as usize + rank * 31 + at * 7) % 1009) as f32 * 0.37 - 100.0;
            let inputs: Vec<Vec<f32>> =
                (0..ranks).map(|rank| (0..elements).map(|at| value(rank, at)).collect()).collect();
            let bytes: Vec<Vec<u8>> = inputs.iter().map(|input| bytemuck::cast_slice(input).to_vec()).collect();
            let expected: Vec<f32> = (0..elements)
                .map(|at| inputs.iter().map(|input| input[at]).reduce(|one, other| one + other).unwrap_or(0.0))
                .collect();
            let numbers = Numbers::new(Dtype::F32, Operator::Sum, ranks as u32);
            let found = reduced(numbers, &bytes, elements, onto.index(ranks));
            prop_assert!(found == bytemuck::cast_slice::<f32, u8>(&expected));
        }

        #[test]
        fn halves_are_rounded_once(elements in 0..9_000_usize, ranks in 1..6_usize) {
            let value = |rank: usize, at: usize| f16::from_f32((rank * 31 + at * 7) as f32 / 64.0 - 30.0);
            let inputs: Vec<Vec<f16>> =
                (0..ranks).map(|rank| (0..elements).map(|at| value(rank, at)).collect()).collect();
            let bytes: Vec<Vec<u8>> = inputs.iter().map(|input| bytemuck::cast_slice(input).to_vec()).collect();
            let average = |at: usize| {
                let sum = inputs.iter().fold(0.0_f32, |sum, input| sum + input[at].to_f32());
                f16::from_f32((f64::from(sum) * (1.0 / ranks as f64)) as f32)
            };
            let expected: Vec<f16> = (0..elements).map(average).collect();
            let numbers = Numbers::new(Dtype::F16, Operator::Avg, ranks as u32);
            let found = reduced(numbers, &bytes, elements, 0);
            // Where bytes lie, halves may not.
            let mut halves = vec![f16::ZERO; elements];
            bytemuck::cast_slice_mut::<f16, u8>(&mut halves).copy_from_slice(&found);
            let close = |(one, other): (&f16, &f16)| one.to_bits().abs_diff(other.to_bits()) <= 1;
            prop_assert!(halves.iter().zip(&expected).all(close));
        }
    }
}
