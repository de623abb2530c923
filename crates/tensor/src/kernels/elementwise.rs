//! The reduction loops, written once and compiled once per instruction set.
//!
//! A loop reads whole blocks of both inputs into local arrays before it writes one, so that target and input may be the
//! same memory and the compiler needs no proof that they are not. Everything is inlined into the function that enables
//! the instructions; that is what `inline(always)` is for here.

use bytemuck::Pod;

use super::Op;
#[cfg(target_arch = "x86_64")]
use super::level::vector;
use super::level::{Level, narrow_f16, widen_f16};
use crate::Dtype;

/// Bytes handled at a time: a few of the widest vectors.
const BLOCK_BYTES: usize = 256;

/// 16-bit floats handled at a time: a block of them once widened.
pub(super) const HALVES: usize = BLOCK_BYTES / size_of::<f32>();

/// Where a reduction reads and writes.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) target: *mut u8,
    pub(crate) left: *const u8,
    pub(crate) right: *const u8,
    pub(crate) elements: usize,
}

/// # Safety
/// The promises of [`reduce_raw`](super::reduce_raw), and the processor must have the level.
pub(crate) unsafe fn reduce_at(level: Level, op: Op, dtype: Dtype, operands: Operands) {
    // SAFETY: handed on.
    unsafe {
        match level {
            Level::Plain => reduce_with(op, dtype, operands, widen_f16, narrow_f16),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => reduce_avx2(op, dtype, operands),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => reduce_avx512(op, dtype, operands),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
unsafe fn reduce_avx2(op: Op, dtype: Dtype, operands: Operands) {
    let (widen, narrow) = (|values: &_| vector::widen_avx2(values), |values: &_| vector::narrow_avx2(values));
    // SAFETY: handed on.
    unsafe { reduce_with(op, dtype, operands, widen, narrow) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn reduce_avx512(op: Op, dtype: Dtype, operands: Operands) {
    let (widen, narrow) = (|values: &_| vector::widen_avx512(values), |values: &_| vector::narrow_avx512(values));
    // SAFETY: handed on.
    unsafe { reduce_with(op, dtype, operands, widen, narrow) };
}

/// A loop over elements of type `$type`, combined two and two by the expression.
macro_rules! each {
    ($operands:ident, $type:ty, $combine:expr) => {
        blocks::<$type, { BLOCK_BYTES / size_of::<$type>() }>($operands, |left, right| zip(left, right, $combine))
    };
}

macro_rules! integers {
    ($op:ident, $operands:ident, $type:ty) => {
        match $op {
            Op::Sum => each!($operands, $type, <$type>::wrapping_add),
            Op::Prod => each!($operands, $type, <$type>::wrapping_mul),
            Op::Min => each!($operands, $type, |left: $type, right| left.min(right)),
            Op::Max => each!($operands, $type, |left: $type, right| left.max(right)),
            Op::Band => each!($operands, $type, |left, right| left & right),
            Op::Bor => each!($operands, $type, |left, right| left | right),
            Op::Bxor => each!($operands, $type, |left, right| left ^ right),
        }
    };
}

macro_rules! floats {
    ($op:ident, $operands:ident, $type:ident) => {
        match $op {
            Op::Sum => each!($operands, $type, |left, right| $type::canonical(left + right)),
            Op::Prod => each!($operands, $type, |left, right| $type::canonical(left * right)),
            Op::Min => each!($operands, $type, $type::smaller),
            Op::Max => each!($operands, $type, $type::larger),
            Op::Band | Op::Bor | Op::Bxor => {}
        }
    };
}

/// As [`floats`], for 16-bit floats that are widened, combined as `f32` and narrowed.
macro_rules! halves {
    ($op:ident, $operands:ident, $widen:expr, $narrow:expr) => {{
        macro_rules! widened {
            ($combine:expr) => {
                blocks::<u16, HALVES>($operands, |left, right| $narrow(&zip($widen(&left), $widen(&right), $combine)))
            };
        }
        match $op {
            Op::Sum => widened!(|left, right| f32::canonical(left + right)),
            Op::Prod => widened!(|left, right| f32::canonical(left * right)),
            Op::Min => widened!(f32::smaller),
            Op::Max => widened!(f32::larger),
            Op::Band | Op::Bor | Op::Bxor => {}
        }
    }};
}

macro_rules! complex {
    ($op:ident, $operands:ident, $type:ident) => {
        match $op {
            Op::Sum => {
                let parts = Operands { elements: $operands.elements * 2, ..$operands };
                each!(parts, $type, |left, right| $type::canonical(left + right))
            }
            Op::Prod => each!($operands, [$type; 2], |[a, b]: [$type; 2], [c, d]: [$type; 2]| {
                [$type::canonical(a * c - b * d), $type::canonical(a * d + b * c)]
            }),
            _ => {}
        }
    };
}

/// # Safety
/// As for [`reduce_at`].
#[inline(always)]
unsafe fn reduce_with(
    op: Op,
    dtype: Dtype,
    operands: Operands,
    widen_f16: impl Fn(&[u16; HALVES]) -> [f32; HALVES],
    narrow_f16: impl Fn(&[f32; HALVES]) -> [u16; HALVES],
) {
    // SAFETY: the promises about memory and processor are handed on.
    unsafe {
        match dtype {
            Dtype::Bool => match op {
                Op::Min | Op::Band => each!(operands, u8, |left, right| u8::from(left != 0) & u8::from(right != 0)),
                Op::Max | Op::Bor => each!(operands, u8, |left, right| u8::from(left | right != 0)),
                Op::Bxor => each!(operands, u8, |left, right| u8::from((left != 0) != (right != 0))),
                Op::Sum | Op::Prod => {}
            },
            Dtype::U8 => integers!(op, operands, u8),
            Dtype::U16 => integers!(op, operands, u16),
            Dtype::U32 => integers!(op, operands, u32),
            Dtype::U64 => integers!(op, operands, u64),
            Dtype::I8 => integers!(op, operands, i8),
            Dtype::I16 => integers!(op, operands, i16),
            Dtype::I32 => integers!(op, operands, i32),
            Dtype::I64 => integers!(op, operands, i64),
            Dtype::F16 => halves!(op, operands, widen_f16, narrow_f16),
            Dtype::Bf16 => halves!(op, operands, widen_bf16, narrow_bf16),
            Dtype::F32 => floats!(op, operands, f32),
            Dtype::F64 => floats!(op, operands, f64),
            Dtype::Complex64 => complex!(op, operands, f32),
            Dtype::Complex128 => complex!(op, operands, f64),
            Dtype::Fp8E4M3 | Dtype::Fp8E5M2 => {}
        }
    }
}

/// Runs `combine` over blocks of `N` elements; the rest is padded to a block, which cannot change any element's result.
///
/// # Safety
/// The promises of [`reduce_raw`](super::reduce_raw) for elements of type `T`.
#[inline(always)]
unsafe fn blocks<T: Pod, const N: usize>(operands: Operands, combine: impl Fn([T; N], [T; N]) -> [T; N]) {
    let Operands { target, left, right, elements } = operands;
    let (target, left, right) = (target.cast::<T>(), left.cast::<T>(), right.cast::<T>());
    let whole = elements / N * N;
    let mut start = 0;
    while start < whole {
        // SAFETY: `start + N` is within the elements, the accesses need no alignment, and both inputs are read before
        // the target, which may be one of them, is written.
        unsafe {
            let block = combine(
                left.add(start).cast::<[T; N]>().read_unaligned(),
                right.add(start).cast::<[T; N]>().read_unaligned(),
            );
            target.add(start).cast::<[T; N]>().write_unaligned(block);
        }
        start += N;
    }
    let rest_bytes = (elements - whole) * size_of::<T>();
    if rest_bytes == 0 {
        return;
    }
    let (mut left_block, mut right_block) = ([T::zeroed(); N], [T::zeroed(); N]);
    // SAFETY: fewer than `N` elements are left, which fit the local blocks; bytes need no alignment.
    unsafe {
        copy_rest(left.add(whole).cast(), left_block.as_mut_ptr().cast(), rest_bytes);
        copy_rest(right.add(whole).cast(), right_block.as_mut_ptr().cast(), rest_bytes);
        let block = combine(left_block, right_block);
        copy_rest(block.as_ptr().cast(), target.add(whole).cast(), rest_bytes);
    }
}

/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
unsafe fn copy_rest(source: *const u8, target: *mut u8, len_bytes: usize) {
    // SAFETY: handed on.
    unsafe { std::ptr::copy_nonoverlapping(source, target, len_bytes) };
}

#[inline(always)]
fn zip<T: Copy, const N: usize>(left: [T; N], right: [T; N], combine: impl Fn(T, T) -> T) -> [T; N] {
    let mut result = left;
    for index in 0..N {
        result[index] = combine(left[index], right[index]);
    }
    result
}

#[inline(always)]
pub(super) fn widen_bf16<const N: usize>(values: &[u16; N]) -> [f32; N] {
    let mut wide = [0.0; N];
    for index in 0..N {
        wide[index] = f32::from_bits(u32::from(values[index]) << 16);
    }
    wide
}

/// To nearest, ties to even. NaNs must be canonical: their lower half is zero, so rounding leaves them alone.
#[inline(always)]
pub(super) fn narrow_bf16<const N: usize>(values: &[f32; N]) -> [u16; N] {
    let mut narrow = [0; N];
    for index in 0..N {
        let bits = values[index].to_bits();
        narrow[index] = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    }
    narrow
}

/// What the reductions of floats need beyond arithmetic; written without branches, so that it becomes vector code.
pub(super) trait Float: Copy {
    /// The value, or the one NaN.
    fn canonical(value: Self) -> Self;
    /// The smaller one; NaN when there is one; −0 before +0.
    fn smaller(left: Self, right: Self) -> Self;
    /// The larger one; NaN when there is one; +0 before −0.
    fn larger(left: Self, right: Self) -> Self;
}

macro_rules! float {
    ($type:ident, $nan:literal) => {
        impl Float for $type {
            #[inline(always)]
            fn canonical(value: Self) -> Self {
                Self::from_bits(if value.is_nan() { $nan } else { value.to_bits() })
            }

            #[inline(always)]
            fn smaller(left: Self, right: Self) -> Self {
                // Equal values have equal bits, except the two zeros: the sign bit of either makes it the smaller one.
                let equal = left.to_bits() | right.to_bits();
                let bits = if left < right { left.to_bits() } else { right.to_bits() };
                let bits = if left == right { equal } else { bits };
                Self::from_bits(if left.is_nan() | right.is_nan() { $nan } else { bits })
            }

            #[inline(always)]
            fn larger(left: Self, right: Self) -> Self {
                let equal = left.to_bits() & right.to_bits();
                let bits = if left > right { left.to_bits() } else { right.to_bits() };
                let bits = if left == right { equal } else { bits };
                Self::from_bits(if left.is_nan() | right.is_nan() { $nan } else { bits })
            }
        }
    };
}

float!(f32, 0x7fc0_0000);
float!(f64, 0x7ff8_0000_0000_0000);
