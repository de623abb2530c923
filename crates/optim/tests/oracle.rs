//! Steps against the published formulas in f64, written a second time and in another way.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

use half::{bf16, f16};
use sheave_base::clock::{Entropy, SeededEntropy};
use sheave_optim::{Adam, Float, Rule, Sgd};

/// Numbers from -1 to 1 that a seed determines.
fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut entropy = SeededEntropy::new(seed);
    (0..count).map(|_| (entropy.next_u64() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0).collect()
}

/// The weight after all gradients, by SGD unrolled: a step is the decayed sum of all slopes so far.
fn sgd_oracle(rule: &Sgd, mut weight: f64, gradients: &[f64]) -> f64 {
    let mut slopes = Vec::new();
    for gradient in gradients {
        slopes.push(rule.rescale * gradient + rule.weight_decay * weight);
        let ages = slopes.iter().rev().enumerate();
        weight -= rule.learning_rate * ages.map(|(age, slope)| rule.momentum.powi(age as i32) * slope).sum::<f64>();
    }
    weight
}

/// As Kingma and Ba's algorithm 1 has it: both moments are corrected, and epsilon stands beside the corrected one.
fn adam_oracle(rule: &Adam, mut weight: f64, gradients: &[f64]) -> f64 {
    let (mut mean, mut variance) = (0.0, 0.0);
    for (step, gradient) in (1..).zip(gradients) {
        let slope = rule.rescale * gradient + rule.weight_decay * weight;
        mean += (1.0 - rule.beta1) * (slope - mean);
        variance += (1.0 - rule.beta2) * (slope.powi(2) - variance);
        let seen2 = 1.0 - rule.beta2.powi(step);
        // Epsilon as large as the rule's, which adds its own before the correction.
        let deviation = (variance / seen2).sqrt() + rule.epsilon / seen2.sqrt();
        weight -= rule.learning_rate * mean / (1.0 - rule.beta1.powi(step)) / deviation;
    }
    weight
}

fn oracle(rule: &Rule, weight: f64, gradients: &[f64]) -> f64 {
    match rule {
        Rule::Sgd(sgd) => sgd_oracle(sgd, weight, gradients),
        Rule::Adam(adam) => adam_oracle(adam, weight, gradients),
        _ => unreachable!(),
    }
}

fn rules() -> Vec<Rule> {
    let heavy = Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.01, rescale: 0.5, ..Sgd::default() };
    let odd = Adam {
        learning_rate: 0.02,
        beta1: 0.8,
        beta2: 0.95,
        epsilon: 1e-3,
        weight_decay: 0.1,
        rescale: 3.0,
        ..Adam::default()
    };
    let decayed = Sgd { weight_decay: 0.3, rescale: -0.25, ..Sgd::default() };
    vec![Rule::sgd(0.05), Rule::Sgd(decayed), Rule::Sgd(heavy), Rule::adam(0.001), Rule::Adam(odd)]
}

/// The largest distance from the oracle after 50 steps of 1,037 elements, relative to 1.
fn distance<T: Float>(rule: &Rule, of: impl Fn(f64) -> T, to: impl Fn(T) -> f64) -> f64 {
    const ELEMENTS: usize = 1037;
    const STEPS: usize = 50;
    // Rounded first, so that the oracle starts from the same numbers.
    let rounded = |seed| numbers(seed, ELEMENTS).into_iter().map(&of).collect::<Vec<T>>();
    let gradients: Vec<Vec<T>> = (1..=STEPS as u64).map(rounded).collect();
    let start = rounded(0);
    let mut weights = start.clone();
    let mut state = rule.state(ELEMENTS);
    for gradient in &gradients {
        rule.step(&mut state, &mut weights, gradient).unwrap();
    }
    assert_eq!(state.steps(), STEPS as u64);
    let distances = (0..ELEMENTS).map(|index| {
        let history: Vec<f64> = gradients.iter().map(|gradient| to(gradient[index])).collect();
        (to(weights[index]) - oracle(rule, to(start[index]), &history)).abs()
    });
    distances.fold(0.0, f64::max)
}

#[test]
fn steps_follow_the_published_formulas() {
    for rule in rules() {
        let (single, double) = (distance(&rule, |x| x as f32, f64::from), distance(&rule, |x| x, |x| x));
        assert!(single < 1e-5 && double < 1e-12, "{rule:?}: {single:e} in f32, {double:e} in f64");
        assert!(single > 0.0, "f32 cannot follow f64 exactly");
    }
}

#[test]
fn halves_follow_within_their_precision() {
    // 50 steps, each rounding by at most half of the last bit of a weight below 4.
    for rule in rules() {
        let (half, brain) =
            (distance(&rule, f16::from_f64, f16::to_f64), distance(&rule, bf16::from_f64, bf16::to_f64));
        assert!(half < 50.0 * 2.0_f64.powi(-10), "{rule:?}: {half:e} in f16");
        assert!(brain < 50.0 * 2.0_f64.powi(-7), "{rule:?}: {brain:e} in bf16");
    }
}

#[test]
fn one_step_of_a_half_is_the_rounded_step_of_a_float() {
    let rule = Rule::Sgd(Sgd { learning_rate: 0.3, momentum: 0.9, ..Sgd::default() });
    let of = |seed| numbers(seed, 1300).into_iter().map(f16::from_f64).collect::<Vec<_>>();
    let (mut weights, gradient) = (of(1), of(2));
    let mut wide: Vec<f32> = weights.iter().map(|x| x.to_f32()).collect();
    let wide_gradient: Vec<f32> = gradient.iter().map(|x| x.to_f32()).collect();
    let (mut state, mut wide_state) = (rule.state(1300), rule.state(1300));
    rule.step(&mut wide_state, &mut wide, &wide_gradient).unwrap();
    rule.step(&mut state, &mut weights, &gradient).unwrap();
    assert_eq!(weights, wide.into_iter().map(f16::from_f32).collect::<Vec<_>>());
    assert_eq!(state, wide_state);
}

#[test]
fn known_figures_of_adam() {
    // By hand: at the first step both corrections cancel what the moments decayed, so the step is the learning rate
    // along the sign of the gradient, less what epsilon takes.
    let mut weights = [1.0_f64, 1.0, 1.0];
    let rule = Rule::adam(0.001);
    let mut state = rule.state(3);
    rule.step(&mut state, &mut weights, &[4.0, -0.01, 0.0]).unwrap();
    for (weight, expected) in weights.into_iter().zip([0.999, 1.001, 1.0]) {
        assert!((weight - expected).abs() < 1e-7, "{weight} {expected}");
    }
    let parts = state.parts();
    assert_eq!((parts[0].0, parts[1].0, parts.len()), ("mean", "variance", 2));
    assert!((parts[0].1[0] - 0.4).abs() < 1e-12 && (parts[1].1[0] - 0.016).abs() < 1e-12);
}
