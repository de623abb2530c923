//! One pass over memory, each element on its own.
//!
//! A rule is a [`Formula`] for one element; the loop around it is written here once for each number of moments. Its
//! slices are arguments of a function and of one length, so that the compiler knows that they do not overlap, checks no
//! index and makes vectors of the formula.

use std::ops::Range;

use crate::float::{Float, Wide};
use crate::target::Target;

/// Elements that are widened at a time: a block and its moments stay in the first cache.
pub(crate) const PASS_ELEMENTS: usize = 512;

/// What a rule makes of one element.
pub(crate) trait Formula<W: Wide>: Copy {
    /// An array of as many as the rule remembers of an element.
    type Moments: Moments<W>;

    /// The next weight and moments.
    fn element(&self, weight: W, gradient: W, moments: Self::Moments) -> (W, Self::Moments);
}

/// What is remembered of one element.
pub(crate) trait Moments<W: Wide>: Sized {
    /// Applies a formula to weights and gradient of one length, and to the moments in `range`, which is as long.
    fn pass<F: Formula<W, Moments = Self>>(
        formula: F,
        parts: &mut [Vec<W>],
        range: Range<usize>,
        weights: &mut [W],
        gradient: &[W],
    );
}

macro_rules! moments {
    ($count:literal: $($part:ident $next:ident),*) => {
        impl<W: Wide> Moments<W> for [W; $count] {
            fn pass<F: Formula<W, Moments = Self>>(
                formula: F,
                parts: &mut [Vec<W>],
                range: Range<usize>,
                weights: &mut [W],
                gradient: &[W],
            ) {
                fn each<W: Wide, F: Formula<W, Moments = [W; $count]>>(
                    formula: F,
                    weights: &mut [W],
                    gradient: &[W],
                    $($part: &mut [W],)*
                ) {
                    let count = weights.len();
                    let gradient = &gradient[..count];
                    $(let $part = &mut $part[..count];)*
                    for index in 0..count {
                        let (weight, next) = formula.element(weights[index], gradient[index], [$($part[index]),*]);
                        weights[index] = weight;
                        let [$($next),*] = next;
                        $($part[index] = $next;)*
                    }
                }
                let [$($part),*] = parts else { unreachable!("a state is checked before it is used") };
                debug_assert_eq!(range.len(), weights.len());
                each(formula, weights, gradient, $(&mut $part[range.clone()]),*);
            }
        }
    };
}

moments!(0:);
moments!(1: first next_first);
moments!(2: first next_first, second next_second);
moments!(3: first next_first, second next_second, third next_third);

/// A run of elements: where it starts in weights and moments, and where in the gradient.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) start: usize,
    pub(crate) gradient_start: usize,
    pub(crate) length: usize,
}

/// Steps the elements of all runs. Whoever calls has seen that they lie in weights, moments and gradient, and that
/// there are as many parts as the formula has moments.
pub(crate) fn drive<T, G, F>(
    formula: F,
    parts: &mut [Vec<T::Wide>],
    target: &mut Target<'_, T>,
    gradient: &[G],
    runs: impl Iterator<Item = Run>,
) where
    T: Float,
    G: Float<Wide = T::Wide>,
    F: Formula<T::Wide>,
{
    // What needs no widening is one block.
    let block = if T::IS_WIDE && G::IS_WIDE { usize::MAX } else { PASS_ELEMENTS };
    let (mut wide_weights, mut wide_gradient) =
        ([Wide::nearest(0.0); PASS_ELEMENTS], [Wide::nearest(0.0); PASS_ELEMENTS]);
    for run in runs {
        let mut done = 0;
        while done < run.length {
            let count = block.min(run.length - done);
            let range = run.start + done..run.start + done + count;
            let gradient = &gradient[run.gradient_start + done..][..count];
            let buffer = count.min(PASS_ELEMENTS);
            let gradient = G::widen(gradient, &mut wide_gradient[..buffer]);
            target.change(range.clone(), &mut wide_weights[..buffer], |weights| {
                F::Moments::pass(formula, parts, range, weights, gradient);
            });
            done += count;
        }
    }
}
