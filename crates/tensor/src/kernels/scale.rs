//! Multiplying every element by one number, as an average needs it.

use bytemuck::Pod;
use sheave_base::{Error, ErrorKind, Result};

use super::elementwise::{Float, HALVES, narrow_bf16, widen_bf16};
#[cfg(target_arch = "x86_64")]
use super::level::vector;
use super::level::{Level, narrow_f16, widen_f16};
use crate::Dtype;

/// Multiplies every element by `factor`, in place; real and imaginary parts alike. The product of f32 is computed in
/// f64, that of f16 and bf16 in f32, and rounded once to nearest, so that scaling by `1.0 / n` is a division in nearly
/// all cases. Bits do not depend on the machine; NaNs become the canonical one.
///
/// ```
/// use sheave_tensor::{Dtype, scale};
///
/// let mut sums = [3.0_f64, 9.0].map(f64::to_ne_bytes).concat();
/// scale(Dtype::F64, &mut sums, 1.0 / 4.0)?;
/// assert_eq!(sums, [0.75_f64, 2.25].map(f64::to_ne_bytes).concat());
/// # Ok::<(), sheave_base::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Unsupported`] for integers, bool and fp8; [`ErrorKind::Mismatch`] when the bytes are not whole
/// elements.
pub fn scale(dtype: Dtype, values: &mut [u8], factor: f64) -> Result<()> {
    scale_at(Level::detected(), dtype, values, factor)
}

pub(super) fn scale_at(level: Level, dtype: Dtype, values: &mut [u8], factor: f64) -> Result<()> {
    if !matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64 | Dtype::Complex64 | Dtype::Complex128) {
        let what = format!("scaling {dtype} has no meaning");
        return Err(Error::new(ErrorKind::Unsupported, what).hint("convert to a floating-point dtype first"));
    }
    if !values.len().is_multiple_of(dtype.size_bytes()) {
        let what = format!("{} bytes are not whole elements of {dtype}", values.len());
        return Err(Error::new(ErrorKind::Mismatch, what));
    }
    // SAFETY: levels are made by detection only.
    unsafe {
        match level {
            Level::Plain => scale_with(dtype, values, factor, widen_f16, narrow_f16),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => scale_avx2(dtype, values, factor),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => scale_avx512(dtype, values, factor),
        }
    }
    Ok(())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn scale_avx2(dtype: Dtype, values: &mut [u8], factor: f64) {
    let (widen, narrow) = (|values: &_| vector::widen_avx2(values), |values: &_| vector::narrow_avx2(values));
    scale_with(dtype, values, factor, widen, narrow);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
fn scale_avx512(dtype: Dtype, values: &mut [u8], factor: f64) {
    let (widen, narrow) = (|values: &_| vector::widen_avx512(values), |values: &_| vector::narrow_avx512(values));
    scale_with(dtype, values, factor, widen, narrow);
}

#[inline(always)]
fn scale_with(
    dtype: Dtype,
    values: &mut [u8],
    factor: f64,
    widen_f16: impl Fn(&[u16; HALVES]) -> [f32; HALVES],
    narrow_f16: impl Fn(&[f32; HALVES]) -> [u16; HALVES],
) {
    let narrow_factor = factor as f32;
    let product = |value: f32| f32::canonical(value * narrow_factor);
    match dtype {
        Dtype::F16 => blocks::<u16, HALVES>(values, |block| narrow_f16(&map(widen_f16(&block), product))),
        Dtype::Bf16 => blocks::<u16, HALVES>(values, |block| narrow_bf16(&map(widen_bf16(&block), product))),
        Dtype::F32 | Dtype::Complex64 => {
            blocks::<f32, 64>(values, |block| map(block, |value| f32::canonical((f64::from(value) * factor) as f32)));
        }
        _ => blocks::<f64, 32>(values, |block| map(block, |value| f64::canonical(value * factor))),
    }
}

/// Runs `change` over blocks of `N` elements in place, the rest padded to a block.
#[inline(always)]
fn blocks<T: Pod, const N: usize>(values: &mut [u8], change: impl Fn([T; N]) -> [T; N]) {
    let mut chunks = values.chunks_exact_mut(size_of::<[T; N]>());
    for chunk in &mut chunks {
        let pointer = chunk.as_mut_ptr().cast::<[T; N]>();
        // SAFETY: the chunk has exactly the block's bytes, any bytes are a value, and no alignment is assumed.
        unsafe { pointer.write_unaligned(change(pointer.read_unaligned())) };
    }
    let rest = chunks.into_remainder();
    if !rest.is_empty() {
        let mut block = [T::zeroed(); N];
        bytemuck::cast_slice_mut(&mut block)[..rest.len()].copy_from_slice(rest);
        rest.copy_from_slice(&bytemuck::cast_slice(&change(block))[..rest.len()]);
    }
}

#[inline(always)]
fn map<T: Copy, const N: usize>(mut values: [T; N], change: impl Fn(T) -> T) -> [T; N] {
    for value in &mut values {
        *value = change(*value);
    }
    values
}
