//! Element-wise arithmetic on raw bytes: reductions, scaling, and copying of what is large or read by others next.
//!
//! The same inputs give the same bits whatever the machine: each element of the result depends on one element of each
//! input only, no multiplication is fused with an addition, and every NaN that a reduction produces is the canonical
//! quiet one, because hardware and compiler are free in what they keep of a NaN's payload. So the width of the
//! vectors, chosen once per process by what the processor has, is invisible in the result.
//!
//! | dtypes | operations | rules |
//! |---|---|---|
//! | u8, i8, i16, i32, i64 | all | sum and product wrap around |
//! | bool | min, max, and, or, xor | any byte but 0 counts as true; results are 0 and 1; a sum is refused |
//! | f16, bf16 | sum, prod, min, max | computed in f32, rounded once to nearest, ties to even |
//! | f32, f64 | sum, prod, min, max | IEEE 754; min and max: a NaN on either side gives NaN, and −0 is less than +0 |
//! | complex64, complex128 | sum, prod | the textbook product, without recovery of infinities |
//! | fp8 | none | carried as bytes only |

mod copy;
mod elementwise;
mod handover;
mod level;
mod scale;
#[cfg(test)]
mod tests;

use sheave_base::{Error, ErrorKind, Result};

use crate::Dtype;
use level::Level;

pub use copy::{copy_bytes, copy_piece};
pub(crate) use elementwise::Operands;
pub use handover::hand_over;
pub(crate) use handover::reduce_and_hand_over;
pub use scale::scale;

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Addition.
    Sum = 1,
    /// Multiplication.
    Prod = 2,
    /// The smaller one.
    Min = 3,
    /// The larger one.
    Max = 4,
    /// Bitwise and.
    Band = 5,
    /// Bitwise or.
    Bor = 6,
    /// Bitwise exclusive or.
    Bxor = 7,
}

impl Op {
    /// Every operation, in the order of their codes.
    pub const ALL: [Self; 7] = [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Band, Self::Bor, Self::Bxor];

    /// The name under which users know it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Band => "band",
            Self::Bor => "bor",
            Self::Bxor => "bxor",
        }
    }

    /// The operation of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }

    /// The number under which it travels; it never changes, and zero is none.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The operation of that code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        if code == 0 || code as usize > Self::ALL.len() { None } else { Some(Self::ALL[code as usize - 1]) }
    }

    /// Whether elements of that dtype can be reduced so.
    #[must_use]
    pub const fn supports(self, dtype: Dtype) -> bool {
        let bitwise = matches!(self, Self::Band | Self::Bor | Self::Bxor);
        match dtype {
            Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => true,
            Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => true,
            Dtype::Bool => !matches!(self, Self::Sum | Self::Prod),
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64 => !bitwise,
            Dtype::Complex64 | Dtype::Complex128 => matches!(self, Self::Sum | Self::Prod),
            Dtype::Fp8E4M3 | Dtype::Fp8E5M2 => false,
        }
    }

    /// Refuses what [`supports`](Self::supports) denies, so that a group operation can do so before any data moves.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], with a hint what to use instead.
    pub fn require(self, dtype: Dtype) -> Result<()> {
        if self.supports(dtype) {
            return Ok(());
        }
        let hint = match dtype {
            Dtype::Bool => "use bor for any and band for all, or convert to i32 to count",
            Dtype::Fp8E4M3 | Dtype::Fp8E5M2 => "convert to f16 or bf16 first",
            Dtype::Complex64 | Dtype::Complex128 => "complex numbers have sum and prod only",
            _ => "bitwise operations are for integers and bool",
        };
        Err(Error::new(ErrorKind::Unsupported, format!("{} of {dtype} has no meaning", self.name())).hint(hint))
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// `accumulator[i] = accumulator[i] op operand[i]` for elements of `dtype` lying in bytes, aligned or not.
///
/// ```
/// use sheave_tensor::{Dtype, Op, reduce};
///
/// let mut largest = [3_u8, 200];
/// reduce(Op::Max, Dtype::U8, &mut largest, &[100, 100])?;
/// assert_eq!(largest, [100, 200]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Unsupported`] when the dtype has no such operation; [`ErrorKind::Mismatch`] when the lengths differ or
/// are not whole elements.
pub fn reduce(op: Op, dtype: Dtype, accumulator: &mut [u8], operand: &[u8]) -> Result<()> {
    if accumulator.len() != operand.len() || !operand.len().is_multiple_of(dtype.size_bytes()) {
        let what = format!("{} and {} bytes are not as many elements of {dtype}", accumulator.len(), operand.len());
        return Err(Error::new(ErrorKind::Mismatch, what));
    }
    let elements = operand.len() / dtype.size_bytes();
    let target = accumulator.as_mut_ptr();
    // SAFETY: both slices have that many elements, and being borrowed as they are they do not overlap.
    unsafe { reduce_raw(op, dtype, target, target, operand.as_ptr(), elements) }
}

/// `target[i] = left[i] op right[i]`, for memory of which no slices can exist because peers map it too. No pointer
/// needs to be aligned; `target` may be `left` or `right`.
///
/// # Errors
/// [`ErrorKind::Unsupported`] when the dtype has no such operation.
///
/// # Safety
/// `left` and `right` must be readable and `target` writable for `elements` elements, and nobody may write the inputs
/// or touch the target meanwhile. The target must be exactly an input or not overlap it.
pub unsafe fn reduce_raw(
    op: Op,
    dtype: Dtype,
    target: *mut u8,
    left: *const u8,
    right: *const u8,
    elements: usize,
) -> Result<()> {
    op.require(dtype)?;
    let operands = elementwise::Operands { target, left, right, elements };
    // SAFETY: the level was detected on this processor; the rest is the caller's promise.
    unsafe { elementwise::reduce_at(Level::detected(), op, dtype, operands) };
    Ok(())
}
