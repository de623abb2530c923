//! Steps against the published formulas in f64, written a second time and in another way.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

mod common;

use common::{floats, rules};
use half::{bf16, f16};
use sheave_optim::{AdaGrad, AdamW, Float, Lamb, RmsProp, Rule, Sgd, Test};

/// The sum of values, the last of them whole and each one before it worth `factor` times as much.
fn decayed_sum(factor: f64, values: impl DoubleEndedIterator<Item = f64>) -> f64 {
    values.rev().enumerate().map(|(age, value)| factor.powi(age as i32) * value).sum()
}

/// What a bias correction makes of a moving average: the mean of all values, by weights that add up to one.
fn weighted_mean(factor: f64, values: &[f64], of: fn(f64) -> f64) -> f64 {
    decayed_sum(factor, values.iter().map(|&value| of(value))) / decayed_sum(factor, values.iter().map(|_| 1.0))
}

/// What a moving average from zero has come to.
fn moving_mean(factor: f64, values: &[f64], of: fn(f64) -> f64) -> f64 {
    (1.0 - factor) * decayed_sum(factor, values.iter().map(|&value| of(value)))
}

fn square(value: f64) -> f64 {
    value * value
}

fn itself(value: f64) -> f64 {
    value
}

fn clipped(value: f64, clip: Option<f64>) -> f64 {
    clip.map_or(value, |clip| value.clamp(-clip, clip))
}

/// What a rule remembers of a gradient.
fn slope(rule: &Rule, weight: f64, gradient: f64) -> f64 {
    match rule {
        Rule::Sgd(rule) => clipped(rule.rescale * gradient, rule.clip_gradient) + rule.weight_decay * weight,
        Rule::Adam(rule) => clipped(rule.rescale * gradient + rule.weight_decay * weight, rule.clip_gradient),
        Rule::RmsProp(rule) => clipped(rule.rescale * gradient + rule.weight_decay * weight, rule.clip_gradient),
        Rule::AdamW(rule) => clipped(rule.rescale * gradient, rule.clip_gradient),
        Rule::AdaGrad(rule) => clipped(rule.rescale * gradient, rule.clip_gradient),
        Rule::Lamb(rule) => clipped(rule.rescale * gradient, rule.clip_gradient),
        Rule::Test(rule) => rule.rescale * gradient,
    }
}

/// How far a step goes down, from all slopes so far: no moment is carried from step to step.
fn descent(rule: &Rule, weight: f64, slopes: &[f64]) -> f64 {
    let last = slopes[slopes.len() - 1];
    match rule {
        Rule::Sgd(rule) => {
            let momentum = decayed_sum(rule.momentum, slopes.iter().copied());
            let ahead = if rule.nesterov { last + rule.momentum * momentum } else { momentum };
            rule.learning_rate * ahead
        }
        Rule::Adam(rule) => {
            let seen = 1.0 - rule.beta2.powi(slopes.len() as i32);
            // Epsilon as large as the rule's, which adds its own before the correction.
            let deviation = weighted_mean(rule.beta2, slopes, square).sqrt() + rule.epsilon / seen.sqrt();
            rule.learning_rate * weighted_mean(rule.beta1, slopes, itself) / deviation
        }
        Rule::AdamW(rule) => {
            let deviation = weighted_mean(rule.beta2, slopes, square).sqrt() + rule.epsilon;
            let adapted = weighted_mean(rule.beta1, slopes, itself) / deviation;
            rule.learning_rate * adapted + rule.learning_rate * rule.weight_decay * weight
        }
        Rule::AdaGrad(rule) => {
            let squares: f64 = slopes.iter().copied().map(square).sum();
            let decay = rule.learning_rate * rule.weight_decay * weight;
            rule.learning_rate * last * (squares + rule.epsilon).powf(-0.5) + decay
        }
        Rule::RmsProp(rule) => {
            let step = |slopes: &[f64]| {
                let mean = if rule.centered { moving_mean(rule.decay, slopes, itself) } else { 0.0 };
                let variance = moving_mean(rule.decay, slopes, square) - square(mean);
                slopes[slopes.len() - 1] * (variance + rule.epsilon).powf(-0.5)
            };
            let factor = if rule.centered { rule.momentum } else { 0.0 };
            rule.learning_rate * decayed_sum(factor, (1..=slopes.len()).map(|count| step(&slopes[..count])))
        }
        Rule::Lamb(rule) => {
            let mean = if rule.bias_correction { weighted_mean } else { moving_mean };
            let deviation = mean(rule.beta2, slopes, square).sqrt() + rule.epsilon;
            mean(rule.beta1, slopes, itself) / deviation + rule.weight_decay * weight
        }
        Rule::Test(_) => -last,
    }
}

/// How long LAMB's step is for a direction of length one.
fn lamb_rate(rule: &Lamb, weights: &[f64], direction: &[f64]) -> f64 {
    let norm = |values: &[f64]| values.iter().fold(0.0_f64, |norm, &value| norm.hypot(value));
    let size = norm(weights).clamp(rule.lower_bound.unwrap_or(0.0), rule.upper_bound.unwrap_or(f64::MAX));
    let quotient = size / norm(direction);
    rule.learning_rate * if quotient.is_normal() { quotient } else { 1.0 }
}

/// The weights of a whole tensor after all gradients.
fn oracle(rule: &Rule, start: &[f64], gradients: &[Vec<f64>]) -> Vec<f64> {
    let mut weights = start.to_vec();
    let mut slopes = vec![Vec::new(); start.len()];
    for gradient in gradients {
        for ((slopes, &weight), &gradient) in slopes.iter_mut().zip(&weights).zip(gradient) {
            slopes.push(slope(rule, weight, gradient));
        }
        let down: Vec<f64> =
            weights.iter().zip(&slopes).map(|(&weight, slopes)| descent(rule, weight, slopes)).collect();
        let rate = if let Rule::Lamb(rule) = rule { lamb_rate(rule, &weights, &down) } else { 1.0 };
        for (weight, down) in weights.iter_mut().zip(down) {
            *weight -= rate * down;
        }
    }
    weights
}

/// The largest distance from the oracle after 30 steps of 1,037 elements, relative to 1.
fn distance<T: Float>(rule: &Rule, of: impl Fn(f64) -> T, to: impl Fn(T) -> f64) -> f64 {
    const ELEMENTS: usize = 1037;
    const STEPS: u64 = 30;
    // Rounded first, so that the oracle starts from the same numbers.
    let start = floats(0, ELEMENTS, &of);
    let gradients: Vec<Vec<T>> = (1..=STEPS).map(|seed| floats(seed, ELEMENTS, &of)).collect();
    let mut weights = start.clone();
    let mut state = rule.state(ELEMENTS);
    for gradient in &gradients {
        rule.step(&mut state, &mut weights, gradient).unwrap();
    }
    assert_eq!(state.steps(), STEPS);
    let widened = |floats: &Vec<T>| floats.iter().map(|&float| to(float)).collect::<Vec<f64>>();
    let gradients: Vec<Vec<f64>> = gradients.iter().map(widened).collect();
    let expected = oracle(rule, &widened(&start), &gradients);
    let distances = widened(&weights).into_iter().zip(expected).map(|(weight, expected)| (weight - expected).abs());
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
    // 30 steps, each rounding by at most half of the last bit of a weight below 4.
    for rule in rules() {
        let (half, brain) =
            (distance(&rule, f16::from_f64, f16::to_f64), distance(&rule, bf16::from_f64, bf16::to_f64));
        assert!(half < 30.0 * 2.0_f64.powi(-10), "{rule:?}: {half:e} in f16");
        assert!(brain < 30.0 * 2.0_f64.powi(-7), "{rule:?}: {brain:e} in bf16");
    }
}

#[test]
fn one_step_of_a_half_is_the_rounded_step_of_a_float() {
    let rule = Rule::Sgd(Sgd { learning_rate: 0.3, momentum: 0.9, ..Sgd::default() });
    let (mut weights, gradient) = (floats(1, 1300, f16::from_f64), floats(2, 1300, f16::from_f64));
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

#[test]
fn known_figures_of_the_others() {
    // By hand, each from a weight of 2 and gradients of 4 and 4; squares and roots are whole where they can be.
    let after = |rule: Rule| {
        let (mut state, mut weights) = (rule.state(1), [2.0_f64]);
        [(), ()].map(|()| {
            rule.step(&mut state, &mut weights, &[4.0]).unwrap();
            weights[0]
        })
    };
    let near = |rule: Rule, expected: [f64; 2]| {
        let found = after(rule.clone());
        assert!(
            found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-5),
            "{rule:?}: {found:?}"
        );
    };
    near(Rule::Test(Test { rescale: 0.5 }), [4.0, 6.0]);
    // Momentum -4, then -6; the step looks half a momentum ahead.
    let ahead = Sgd { learning_rate: 1.0, momentum: 0.5, nesterov: true, ..Sgd::default() };
    near(Rule::Sgd(ahead), [2.0 - 2.0 - 4.0, -4.0 - 3.0 - 4.0]);
    // A constant gradient is its own mean, so the direction is 1, and the decay takes a tenth of the weight.
    let decoupled = AdamW { learning_rate: 1.0, weight_decay: 0.1, ..AdamW::default() };
    near(Rule::AdamW(decoupled), [2.0 - 1.0 - 0.2, 0.8 - 1.0 - 0.08]);
    near(Rule::AdaGrad(AdaGrad { learning_rate: 1.0, ..AdaGrad::default() }), [1.0, 1.0 - 0.5_f64.sqrt()]);
    // Squares 12, then 15.
    let spread = RmsProp { learning_rate: 3.0_f64.sqrt(), decay: 0.25, ..RmsProp::default() };
    near(Rule::RmsProp(spread), [2.0 - 2.0, -4.0 / 5.0_f64.sqrt()]);
    // Squares 8 and mean 2, then 12 and 3: deviations 2 and sqrt 3.
    let centered = RmsProp { learning_rate: 1.0, decay: 0.5, momentum: 0.5, centered: true, ..RmsProp::default() };
    near(Rule::RmsProp(centered), [2.0 - 2.0, -1.0 - 4.0 / 3.0_f64.sqrt()]);
    // The direction is 1, so a step is a quarter of the weight; a bound makes the weight count as 1 or 4.
    let lamb = Lamb { learning_rate: 0.25, ..Lamb::default() };
    near(Rule::Lamb(lamb.clone()), [1.5, 1.125]);
    near(Rule::Lamb(Lamb { upper_bound: Some(1.0), ..lamb.clone() }), [1.75, 1.5]);
    near(Rule::Lamb(Lamb { lower_bound: Some(4.0), ..lamb }), [1.0, 0.0]);
}

#[test]
fn what_is_not_a_number_is_seen() {
    for rule in rules() {
        let mut weights = vec![0.5_f32; 1000];
        let mut gradient = weights.clone();
        gradient[700] = f32::NAN;
        rule.step(&mut rule.state(1000), &mut weights, &gradient).unwrap();
        assert!(weights[700].is_nan(), "{rule:?}");
        // Norms spread it over the tensor.
        assert_eq!(weights[3].is_nan(), rule.needs_norms(), "{rule:?}");
    }
}
