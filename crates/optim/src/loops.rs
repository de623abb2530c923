//! The loops: one pass over memory, each element on its own.
//!
//! They iterate slices in step, so that no index is checked and the compiler makes vectors of them. Whoever calls has
//! seen that all slices are of one length; where they were not, the loop would end with the shortest.

use crate::float::Wide;
use crate::rule::{Adam, Sgd};

/// [`Sgd`] in the type of the loop.
#[derive(Clone, Copy)]
pub(crate) struct SgdFactors<T> {
    learning_rate: T,
    momentum: T,
    weight_decay: T,
    rescale: T,
}

impl<T: Wide> SgdFactors<T> {
    pub(crate) fn new(rule: &Sgd) -> Self {
        Self {
            learning_rate: T::nearest(rule.learning_rate),
            momentum: T::nearest(rule.momentum),
            weight_decay: T::nearest(rule.weight_decay),
            rescale: T::nearest(rule.rescale),
        }
    }

    pub(crate) fn step(self, weights: &mut [T], gradient: &[T]) {
        for (weight, &gradient) in weights.iter_mut().zip(gradient) {
            let slope = self.rescale * gradient + self.weight_decay * *weight;
            *weight = *weight - self.learning_rate * slope;
        }
    }

    pub(crate) fn step_with_momentum(self, momentum: &mut [T], weights: &mut [T], gradient: &[T]) {
        for ((weight, momentum), &gradient) in weights.iter_mut().zip(momentum).zip(gradient) {
            let slope = self.rescale * gradient + self.weight_decay * *weight;
            *momentum = self.momentum * *momentum - self.learning_rate * slope;
            *weight = *weight + *momentum;
        }
    }
}

/// [`Adam`] at one step, in the type of the loop.
#[derive(Clone, Copy)]
pub(crate) struct AdamFactors<T> {
    /// With the bias correction of both moments.
    learning_rate: T,
    beta1: T,
    beta2: T,
    /// `1 - beta1`.
    share1: T,
    /// `1 - beta2`.
    share2: T,
    epsilon: T,
    weight_decay: T,
    rescale: T,
}

impl<T: Wide> AdamFactors<T> {
    /// `steps` counts from 1.
    pub(crate) fn new(rule: &Adam, steps: u64) -> Self {
        let seen1 = 1.0 - power(rule.beta1, steps);
        let seen2 = 1.0 - power(rule.beta2, steps);
        Self {
            learning_rate: T::nearest(rule.learning_rate * seen2.sqrt() / seen1),
            beta1: T::nearest(rule.beta1),
            beta2: T::nearest(rule.beta2),
            share1: T::nearest(1.0 - rule.beta1),
            share2: T::nearest(1.0 - rule.beta2),
            epsilon: T::nearest(rule.epsilon),
            weight_decay: T::nearest(rule.weight_decay),
            rescale: T::nearest(rule.rescale),
        }
    }

    pub(crate) fn step(self, mean: &mut [T], variance: &mut [T], weights: &mut [T], gradient: &[T]) {
        let moments = mean.iter_mut().zip(variance);
        for ((weight, (mean, variance)), &gradient) in weights.iter_mut().zip(moments).zip(gradient) {
            let slope = self.rescale * gradient + self.weight_decay * *weight;
            *mean = self.beta1 * *mean + self.share1 * slope;
            *variance = self.beta2 * *variance + self.share2 * (slope * slope);
            *weight = *weight - self.learning_rate * *mean / (variance.root() + self.epsilon);
        }
    }
}

/// `base` to the `exponent`, by squaring: the same bits on every machine, which the standard library does not promise.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::power;

    #[test]
    fn powers_are_those_of_repeated_multiplication() {
        let mut product = 1.0_f64;
        for exponent in 0..1000 {
            assert!((power(0.999, exponent) / product - 1.0).abs() < 1e-12, "{exponent}");
            product *= 0.999;
        }
        assert_eq!((power(0.0, 1), power(0.5, 3), power(0.9, u64::MAX)), (0.0, 0.125, 0.0));
    }
}
