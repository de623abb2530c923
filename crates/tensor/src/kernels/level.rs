//! What the processor can do, and the one thing that the compiler does not make of plain code: converting f16.

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

/// To f32, exactly.
#[inline(always)]
pub(super) fn widen_f16<const N: usize>(values: &[u16; N]) -> [f32; N] {
    values.map(|bits| f16::from_bits(bits).to_f32_const())
}

/// From f32, to nearest, ties to even.
#[inline(always)]
pub(super) fn narrow_f16<const N: usize>(values: &[f32; N]) -> [u16; N] {
    values.map(|value| f16::from_f32_const(value).to_bits())
}

/// The same by vector instructions; `N` is a multiple of 16.
#[cfg(target_arch = "x86_64")]
pub(super) mod vector {
    use std::arch::x86_64::*;

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    pub(in crate::kernels) fn widen_avx2<const N: usize>(values: &[u16; N]) -> [f32; N] {
        let mut wide = [0.0; N];
        for (source, target) in values.as_chunks::<8>().0.iter().zip(wide.as_chunks_mut::<8>().0) {
            // SAFETY: eight elements lie on each side.
            unsafe {
                let half = _mm_loadu_si128(source.as_ptr().cast());
                _mm256_storeu_ps(target.as_mut_ptr(), _mm256_cvtph_ps(half));
            }
        }
        wide
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    pub(in crate::kernels) fn narrow_avx2<const N: usize>(values: &[f32; N]) -> [u16; N] {
        let mut narrow = [0; N];
        for (source, target) in values.as_chunks::<8>().0.iter().zip(narrow.as_chunks_mut::<8>().0) {
            // SAFETY: eight elements lie on each side.
            unsafe {
                let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(source.as_ptr()));
                _mm_storeu_si128(target.as_mut_ptr().cast(), half);
            }
        }
        narrow
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(in crate::kernels) fn widen_avx512<const N: usize>(values: &[u16; N]) -> [f32; N] {
        let mut wide = [0.0; N];
        for (source, target) in values.as_chunks::<16>().0.iter().zip(wide.as_chunks_mut::<16>().0) {
            // SAFETY: sixteen elements lie on each side.
            unsafe {
                let half = _mm256_loadu_si256(source.as_ptr().cast());
                _mm512_storeu_ps(target.as_mut_ptr(), _mm512_cvtph_ps(half));
            }
        }
        wide
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    pub(in crate::kernels) fn narrow_avx512<const N: usize>(values: &[f32; N]) -> [u16; N] {
        let mut narrow = [0; N];
        for (source, target) in values.as_chunks::<16>().0.iter().zip(narrow.as_chunks_mut::<16>().0) {
            // SAFETY: sixteen elements lie on each side.
            unsafe {
                let half = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(source.as_ptr()));
                _mm256_storeu_si256(target.as_mut_ptr().cast(), half);
            }
        }
        narrow
    }
}
