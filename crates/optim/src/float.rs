//! The element types that can be stepped, and the type in which each is computed.

use std::ops::{Add, Div, Mul, Sub};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

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
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// The nearest float of this type.
    fn nearest(value: f64) -> Self;

    /// The same number in `f64`.
    fn to_double(self) -> f64;

    /// The correctly rounded square root.
    fn root(self) -> Self;
}

/// A float that weights and gradients may be made of: `f32`, `f64`, or `f16` and `bf16`, which are stepped in `f32` and
/// rounded back to nearest even.
///
/// A 16-bit weight that is stepped by less than half of its last bit stays where it is: step an `f32` master copy
/// beside it where small steps must add up ([`Target::with_master`](crate::Target::with_master)).
pub trait Float: sealed::Sealed + Copy {
    /// What it is computed in.
    type Wide: Wide;

    /// Whether it is computed in its own type, so that nothing is widened.
    #[doc(hidden)]
    const IS_WIDE: bool;

    /// The same numbers in the wide type: the slice itself where it is wide, else in `buffer`, which is as long.
    #[doc(hidden)]
    fn widen<'a>(source: &'a [Self], buffer: &'a mut [Self::Wide]) -> &'a [Self::Wide];

    /// The nearest floats of this type, into a slice as long.
    #[doc(hidden)]
    fn narrow(source: &[Self::Wide], target: &mut [Self]);

    /// Lets `step` change the widened weights, and keeps what it leaves. `buffer` is as long as `weights`.
    #[doc(hidden)]
    fn change(weights: &mut [Self], buffer: &mut [Self::Wide], step: impl FnOnce(&mut [Self::Wide]));
}

macro_rules! wide {
    ($float:ty) => {
        impl Float for $float {
            type Wide = Self;

            const IS_WIDE: bool = true;

            fn widen<'a>(source: &'a [Self], _: &'a mut [Self]) -> &'a [Self] {
                source
            }

            fn narrow(source: &[Self], target: &mut [Self]) {
                target.copy_from_slice(source);
            }

            fn change(weights: &mut [Self], _: &mut [Self], step: impl FnOnce(&mut [Self])) {
                step(weights);
            }
        }

        impl Wide for $float {
            fn nearest(value: f64) -> Self {
                value as $float
            }

            fn to_double(self) -> f64 {
                self.into()
            }

            fn root(self) -> Self {
                self.sqrt()
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

            const IS_WIDE: bool = false;

            fn widen<'a>(source: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32] {
                source.convert_to_f32_slice(buffer);
                buffer
            }

            fn narrow(source: &[f32], target: &mut [Self]) {
                target.convert_from_f32_slice(source);
            }

            fn change(weights: &mut [Self], buffer: &mut [f32], step: impl FnOnce(&mut [f32])) {
                weights.convert_to_f32_slice(buffer);
                step(buffer);
                weights.convert_from_f32_slice(buffer);
            }
        }
    };
}

narrow!(f16);
narrow!(bf16);

/// The numbers in the type that they are stepped in, such as the first master copies of 16-bit weights.
///
/// ```
/// use half::f16;
/// assert_eq!(sheave_optim::widen(&[f16::from_f32(0.5)]), [0.5_f32]);
/// ```
#[must_use]
pub fn widen<T: Float>(source: &[T]) -> Vec<T::Wide> {
    let mut target = vec![T::Wide::default(); source.len()];
    if T::IS_WIDE {
        target.copy_from_slice(T::widen(source, &mut []));
    } else {
        T::widen(source, &mut target);
    }
    target
}
