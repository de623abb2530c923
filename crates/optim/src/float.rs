//! The element types that can be stepped, and the type in which each is computed.

use std::ops::{Add, Div, Mul, Range, Sub};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// 16-bit floats widened at a time: block and moments stay in the first cache.
const BLOCK: usize = 512;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// A float that steps are computed in, and that a [`State`](crate::State) remembers: `f32` or `f64`.
pub trait Wide:
    Float<Wide = Self>
    + Default
    + PartialEq
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// The nearest float of this type.
    fn nearest(value: f64) -> Self;

    /// The correctly rounded square root.
    fn root(self) -> Self;
}

impl Wide for f32 {
    fn nearest(value: f64) -> Self {
        value as f32
    }

    fn root(self) -> Self {
        self.sqrt()
    }
}

impl Wide for f64 {
    fn nearest(value: f64) -> Self {
        value
    }

    fn root(self) -> Self {
        self.sqrt()
    }
}

/// A float that weights and gradients may be made of: `f32`, `f64`, or `f16` and `bf16`, which are stepped in `f32` and
/// rounded back to nearest even.
///
/// A 16-bit weight that is stepped by less than half of its last bit stays where it is: keep `f32` weights where small
/// steps must add up, and round the copies that travel.
pub trait Float: sealed::Sealed + Copy {
    /// What it is computed in.
    type Wide: Wide;

    /// Calls `step` with the indices, weights and gradients of one block after the other, all of them widened, and
    /// keeps the weights that it leaves. Both slices must be of one length.
    #[doc(hidden)]
    fn in_blocks<F>(weights: &mut [Self], gradient: &[Self], step: F)
    where
        F: FnMut(Range<usize>, &mut [Self::Wide], &[Self::Wide]);
}

/// What needs no widening is one block.
macro_rules! wide {
    ($float:ty) => {
        impl Float for $float {
            type Wide = Self;

            fn in_blocks<F>(weights: &mut [Self], gradient: &[Self], mut step: F)
            where
                F: FnMut(Range<usize>, &mut [Self], &[Self]),
            {
                step(0..weights.len(), weights, gradient);
            }
        }
    };
}

wide!(f32);
wide!(f64);

macro_rules! narrow {
    ($float:ty) => {
        impl Float for $float {
            type Wide = f32;

            fn in_blocks<F>(weights: &mut [Self], gradient: &[Self], mut step: F)
            where
                F: FnMut(Range<usize>, &mut [f32], &[f32]),
            {
                let (mut wide_weights, mut wide_gradient) = ([0.0; BLOCK], [0.0; BLOCK]);
                let mut start = 0;
                for (weights, gradient) in weights.chunks_mut(BLOCK).zip(gradient.chunks(BLOCK)) {
                    let count = weights.len();
                    let (wide_weights, wide_gradient) = (&mut wide_weights[..count], &mut wide_gradient[..count]);
                    weights.convert_to_f32_slice(wide_weights);
                    gradient.convert_to_f32_slice(wide_gradient);
                    step(start..start + count, wide_weights, wide_gradient);
                    weights.convert_from_f32_slice(wide_weights);
                    start += count;
                }
            }
        }
    };
}

narrow!(f16);
narrow!(bf16);
