//! What one element is, and on which device it lives.

use std::fmt;

use half::{bf16, f16};

/// The type of a tensor's elements.
///
/// ```
/// use sheave_tensor::Dtype;
///
/// assert_eq!(Dtype::from_name("bf16"), Some(Dtype::Bf16));
/// assert_eq!(Dtype::Complex64.size_bytes(), 8);
/// assert_eq!(Dtype::from_code(Dtype::F32.code()), Some(Dtype::F32));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool = 0,
    /// Unsigned byte.
    U8 = 1,
    /// Signed byte.
    I8 = 2,
    /// Signed 16-bit integer.
    I16 = 3,
    /// Signed 32-bit integer.
    I32 = 4,
    /// Signed 64-bit integer.
    I64 = 5,
    /// IEEE 754 half precision.
    F16 = 6,
    /// The upper half of an `f32`.
    Bf16 = 7,
    /// IEEE 754 single precision.
    F32 = 8,
    /// IEEE 754 double precision.
    F64 = 9,
    /// Real and imaginary part in single precision.
    Complex64 = 10,
    /// Real and imaginary part in double precision.
    Complex128 = 11,
    /// 8-bit float with 4 exponent and 3 mantissa bits; carried as bytes.
    Fp8E4M3 = 12,
    /// 8-bit float with 5 exponent and 2 mantissa bits; carried as bytes.
    Fp8E5M2 = 13,
    /// Unsigned 16-bit integer.
    U16 = 14,
    /// Unsigned 32-bit integer.
    U32 = 15,
    /// Unsigned 64-bit integer.
    U64 = 16,
}

impl Dtype {
    /// Every dtype, in the order of their codes.
    pub const ALL: [Self; 17] = [
        Self::Bool,
        Self::U8,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
        Self::Complex64,
        Self::Complex128,
        Self::Fp8E4M3,
        Self::Fp8E5M2,
        Self::U16,
        Self::U32,
        Self::U64,
    ];

    /// Bytes of one element.
    #[must_use]
    #[inline]
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::Fp8E4M3 | Self::Fp8E5M2 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::Complex64 => 8,
            Self::Complex128 => 16,
        }
    }

    /// Whether its elements are whole numbers, signed or not; bool is none of them.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        let is_unsigned = matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::U64);
        is_unsigned || matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    /// Alignment that typed access needs, in bytes: a complex number is aligned like its parts.
    #[must_use]
    pub const fn align_bytes(self) -> usize {
        match self {
            Self::Complex64 => 4,
            Self::Complex128 => 8,
            other => other.size_bytes(),
        }
    }

    /// The name under which users and files know it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Complex64 => "complex64",
            Self::Complex128 => "complex128",
            Self::Fp8E4M3 => "fp8_e4m3",
            Self::Fp8E5M2 => "fp8_e5m2",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
        }
    }

    /// The dtype of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// The number under which it travels; it never changes, and zero is none.
    #[must_use]
    #[inline]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The dtype of that code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        if code as usize >= Self::ALL.len() { None } else { Some(Self::ALL[code as usize]) }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a tensor's bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Device {
    /// Host memory; the number is a label, such as that of a NUMA node, or 0.
    Cpu(u32),
    /// A CUDA device by its ordinal.
    Cuda(u32),
}

impl Default for Device {
    fn default() -> Self {
        Self::Cpu(0)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(ordinal) => write!(f, "cpu:{ordinal}"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// A Rust type that can be an element.
///
/// Every bit pattern is a value of it (so no `bool`: bool tensors are read as `u8`, and complex ones as pairs).
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The dtype of a tensor made from values of this type.
    const DTYPE: Dtype;

    /// Whether elements of `dtype` can be read as this type.
    #[must_use]
    fn reads(dtype: Dtype) -> bool {
        dtype == Self::DTYPE
    }
}

macro_rules! element {
    ($($type:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
        })*
    };
}

element! {
    u16 => U16, u32 => U32, u64 => U64, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64,
    [f32; 2] => Complex64, [f64; 2] => Complex128,
}

impl Element for u8 {
    const DTYPE: Dtype = Dtype::U8;

    fn reads(dtype: Dtype) -> bool {
        dtype.size_bytes() == 1 && dtype != Dtype::I8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back() {
        for (index, dtype) in Dtype::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(dtype.code()), index);
            assert_eq!(Dtype::from_code(dtype.code()), Some(dtype));
            assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
            assert_eq!(dtype.size_bytes() % dtype.align_bytes(), 0);
        }
        assert_eq!(Dtype::from_code(17), None);
        assert_eq!(Dtype::from_name("F32"), None);
    }

    #[test]
    fn bytes_read_every_one_byte_dtype_but_signed() {
        assert!(u8::reads(Dtype::Bool) && u8::reads(Dtype::Fp8E5M2) && !u8::reads(Dtype::I8));
        assert!(<[f32; 2]>::reads(Dtype::Complex64) && !f64::reads(Dtype::Complex64));
    }
}
