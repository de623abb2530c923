//! Steps against the published formulas.

use crate::common::formulas::oracle;
use crate::common::{floats, rules};
use half::{bf16, f16};
use sheave_optim::{AdaGrad, AdamW, Float, Lamb, RmsProp, Rule, Sgd, Test};

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
