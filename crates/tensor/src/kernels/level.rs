//! What the processor can do, and the one thing that differs: converting half-precision floats.

use std::sync::OnceLock;

use half::f16;

/// The widest instructions that kernels may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// What every processor of the architecture has.
    Plain,
    /// 32-byte vectors and hardware conversion of f16.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 64-byte vectors.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The best one here, found once.
    pub(crate) fn detected() -> Self {
        static DETECTED: OnceLock<Level> = OnceLock::new();
        *DETECTED.get_or_init(|| Self::available().last().copied().unwrap_or(Self::Plain))
    }

    /// All that this processor has, the narrowest first.
    pub(crate) fn available() -> Vec<Self> {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "there is one level only"))]
        let mut levels = vec![Self::Plain];
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            levels.push(Self::Avx2);
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                levels.push(Self::Avx512);
            }
        }
        levels
    }
}

/// Conversion of f16, by whatever instructions a level has. `N` is a multiple of 16.
pub(crate) trait Convert {
    /// Exact.
    ///
    /// # Safety
    /// The processor must have the level's instructions.
    unsafe fn widen<const N: usize>(values: &[u16; N]) -> [f32; N];

    /// Rounded to nearest, ties to even.
    ///
    /// # Safety
    /// The processor must have the level's instructions.
    unsafe fn narrow<const N: usize>(values: &[f32; N]) -> [u16; N];
}

pub(crate) struct PlainConvert;

impl Convert for PlainConvert {
    #[inline(always)]
    unsafe fn widen<const N: usize>(values: &[u16; N]) -> [f32; N] {
        values.map(|bits| f16::from_bits(bits).to_f32_const())
    }

    #[inline(always)]
    unsafe fn narrow<const N: usize>(values: &[f32; N]) -> [u16; N] {
        values.map(|value| f16::from_f32_const(value).to_bits())
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use vector::{Avx2Convert, Avx512Convert};

#[cfg(target_arch = "x86_64")]
mod vector {
    use std::arch::x86_64::*;

    use super::Convert;

    pub(crate) struct Avx2Convert;

    impl Convert for Avx2Convert {
        #[inline(always)]
        unsafe fn widen<const N: usize>(values: &[u16; N]) -> [f32; N] {
            let mut wide = [0.0; N];
            for (source, target) in values.as_chunks::<8>().0.iter().zip(wide.as_chunks_mut::<8>().0) {
                // SAFETY: eight elements lie on each side; the instructions are the caller's promise.
                unsafe {
                    let half = _mm_loadu_si128(source.as_ptr().cast());
                    _mm256_storeu_ps(target.as_mut_ptr(), _mm256_cvtph_ps(half));
                };
            }
            wide
        }

        #[inline(always)]
        unsafe fn narrow<const N: usize>(values: &[f32; N]) -> [u16; N] {
            let mut narrow = [0; N];
            for (source, target) in values.as_chunks::<8>().0.iter().zip(narrow.as_chunks_mut::<8>().0) {
                // SAFETY: as in `widen`.
                unsafe {
                    let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(source.as_ptr()));
                    _mm_storeu_si128(target.as_mut_ptr().cast(), half);
                }
            }
            narrow
        }
    }

    pub(crate) struct Avx512Convert;

    impl Convert for Avx512Convert {
        #[inline(always)]
        unsafe fn widen<const N: usize>(values: &[u16; N]) -> [f32; N] {
            let mut wide = [0.0; N];
            for (source, target) in values.as_chunks::<16>().0.iter().zip(wide.as_chunks_mut::<16>().0) {
                // SAFETY: sixteen elements lie on each side; the instructions are the caller's promise.
                unsafe {
                    let half = _mm256_loadu_si256(source.as_ptr().cast());
                    _mm512_storeu_ps(target.as_mut_ptr(), _mm512_cvtph_ps(half));
                }
            }
            wide
        }

        #[inline(always)]
        unsafe fn narrow<const N: usize>(values: &[f32; N]) -> [u16; N] {
            let mut narrow = [0; N];
            for (source, target) in values.as_chunks::<16>().0.iter().zip(narrow.as_chunks_mut::<16>().0) {
                // SAFETY: as in `widen`.
                unsafe {
                    let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(source.as_ptr()));
                    _mm256_storeu_si256(target.as_mut_ptr().cast(), half);
                }
            }
            narrow
        }
    }
}
