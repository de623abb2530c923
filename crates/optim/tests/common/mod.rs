//! What the tests step, and with which numbers.
#![allow(dead_code, reason = "not every test needs all of it")]

pub(crate) mod formulas;

use sheave_base::clock::{Entropy, SeededEntropy};
use sheave_optim::{AdaGrad, Adam, AdamW, Float, Lamb, RmsProp, Rule, Sgd, Test};

/// Numbers from -1 to 1 that a seed determines.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut entropy = SeededEntropy::new(seed);
    (0..count).map(|_| (entropy.next_u64() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0).collect()
}

/// The same in another type.
pub(crate) fn floats<T: Float>(seed: u64, count: usize, of: impl Fn(f64) -> T) -> Vec<T> {
    numbers(seed, count).into_iter().map(of).collect()
}

/// Every rule, with settings by default and with all of them at work.
pub(crate) fn rules() -> Vec<Rule> {
    let decayed = Sgd { weight_decay: 0.3, rescale: -0.25, ..Sgd::default() };
    let clip = Some(0.3);
    let heavy = Sgd {
        learning_rate: 0.1,
        momentum: 0.9,
        weight_decay: 0.01,
        rescale: 0.5,
        clip_gradient: clip,
        ..Sgd::default()
    };
    let ahead = Sgd { nesterov: true, clip_gradient: None, ..heavy.clone() };
    let odd = Adam {
        learning_rate: 0.02,
        beta1: 0.8,
        beta2: 0.95,
        epsilon: 1e-3,
        weight_decay: 0.1,
        rescale: 3.0,
        clip_gradient: Some(1.5),
    };
    let decoupled =
        AdamW { learning_rate: 0.02, beta2: 0.95, weight_decay: 0.1, clip_gradient: clip, ..AdamW::default() };
    let grown =
        AdaGrad { learning_rate: 0.1, weight_decay: 0.1, rescale: 0.5, clip_gradient: clip, ..AdaGrad::default() };
    let spread = RmsProp {
        learning_rate: 0.01,
        decay: 0.95,
        weight_decay: 0.1,
        rescale: 0.5,
        clip_gradient: clip,
        ..RmsProp::default()
    };
    let centered = RmsProp { centered: true, momentum: 0.5, epsilon: 1e-4, ..spread.clone() };
    let layered = Lamb { learning_rate: 0.01, weight_decay: 0.1, clip_gradient: clip, ..Lamb::default() };
    let bounded = Lamb { bias_correction: false, lower_bound: Some(0.5), upper_bound: Some(10.0), ..layered.clone() };
    vec![
        Rule::sgd(0.05),
        Rule::Sgd(decayed),
        Rule::Sgd(heavy),
        Rule::Sgd(ahead),
        Rule::adam(0.001),
        Rule::Adam(odd),
        Rule::AdamW(AdamW::default()),
        Rule::AdamW(decoupled),
        Rule::AdaGrad(AdaGrad::default()),
        Rule::AdaGrad(grown),
        Rule::RmsProp(RmsProp::default()),
        Rule::RmsProp(spread),
        Rule::RmsProp(centered),
        Rule::Lamb(Lamb::default()),
        Rule::Lamb(layered),
        Rule::Lamb(bounded),
        Rule::Test(Test { rescale: 0.05 }),
    ]
}
