//! The published formulas in f64, written a second time and in another way.
#![allow(dead_code, reason = "not every test needs it")]

use sheave_optim::{Lamb, Rule};

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
pub(crate) fn oracle(rule: &Rule, start: &[f64], gradients: &[Vec<f64>]) -> Vec<f64> {
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
