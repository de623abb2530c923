//! Schedules against closed forms, written with the standard library's functions.
use std::f64::consts::PI;

use sheave_base::ErrorKind;
use sheave_optim::{Adam, Decay, Optimizer, Rule, Schedule, Sgd, Test, WarmUp};

/// Compares the factors of 300 steps with what they should be.
fn follows(schedule: &Schedule, expected: impl Fn(f64) -> f64) {
    schedule.check().unwrap();
    for step in 1..=300 {
        let (found, expected) = (schedule.factor(step), expected(step as f64));
        assert!((found - expected).abs() < 1e-13, "{schedule:?} at {step}: {found} {expected}");
        assert!((0.0..=1.0).contains(&found));
    }
}

#[test]
fn schedules_follow_their_closed_forms() {
    follows(&Schedule::default(), |_| 1.0);
    let step = Decay::Step { every: 30, factor: 0.3, floor: 0.01 };
    follows(&step.into(), |step| 0.3_f64.powf(((step - 1.0) / 30.0).floor()).max(0.01));
    let list = Decay::MultiStep { at: vec![1, 100, 250], factor: 0.5 };
    follows(&list.into(), |step| match step {
        ..=1.0 => 1.0,
        ..=100.0 => 0.5,
        ..=250.0 => 0.25,
        _ => 0.125,
    });
    for power in [0.0, 0.5, 0.9, 1.0, 2.0, 3.7] {
        let decay = Decay::Polynomial { steps: 200, power, end: 0.1 };
        follows(&decay.into(), |step| 0.1 + 0.9 * (1.0 - step / 200.0).max(0.0).powf(power));
    }
    let wave = Decay::Cosine { steps: 200, end: 0.2 };
    follows(&wave.into(), |step| 0.2 + 0.8 * (1.0 + (PI * step.min(200.0) / 200.0).cos()) / 2.0);
}

#[test]
fn steps_fall_when_those_of_mxnet_do() {
    // Its FactorScheduler keeps a count: the rate falls once the number of the update is above count + step.
    let schedule = Schedule::from(Decay::Step { every: 10, factor: 0.5, floor: 0.0 });
    let (mut count, mut rate) = (0, 1.0);
    for update in 1..=100 {
        while update > count + 10 {
            count += 10;
            rate *= 0.5;
        }
        assert_eq!(schedule.factor(update), rate, "{update}");
    }
}

#[test]
fn warm_ups_rise_to_one_and_count() {
    let warm_up = Some(WarmUp { steps: 50, from: 0.25 });
    let rise = |step: f64| 0.25 + 0.75 * step / 50.0;
    let warm = |decay| Schedule { decay, warm_up: warm_up.clone() };
    follows(&warm(Decay::Constant), |step| rise(step).min(1.0));
    let rest = |step: f64| (step - 50.0).min(100.0) / 100.0;
    follows(&warm(Decay::Polynomial { steps: 150, power: 2.0, end: 0.0 }), |step| {
        if step < 50.0 { rise(step) } else { (1.0 - rest(step)).powi(2) }
    });
    follows(&warm(Decay::Cosine { steps: 150, end: 0.0 }), |step| {
        if step < 50.0 { rise(step) } else { (1.0 + (PI * rest(step)).cos()) / 2.0 }
    });
    follows(&warm(Decay::Step { every: 60, factor: 0.5, floor: 0.0 }), |step| {
        if step < 50.0 { rise(step) } else { 0.5_f64.powf(((step - 1.0) / 60.0).floor()) }
    });
    let none = Schedule { decay: Decay::Constant, warm_up: Some(WarmUp { steps: 0, from: 0.0 }) };
    follows(&none, |_| 1.0);
}

#[test]
fn factors_have_the_same_bits_everywhere() {
    // From the same formulas in Python; another machine, compiler or library must find the same.
    let wave = Schedule { decay: Decay::Cosine { steps: 1000, end: 0.01 }, warm_up: None };
    let bend = Schedule { decay: Decay::Polynomial { steps: 1000, power: 0.9, end: 0.01 }, warm_up: None };
    let mixed = |schedule: &Schedule| {
        (1..=1000).fold(0_u64, |mixed, step| mixed.rotate_left(5) ^ schedule.factor(step).to_bits())
    };
    assert_eq!((mixed(&wave), mixed(&bend)), (12_505_335_432_480_440_494, 15_055_188_280_980_559_709));
}

#[test]
fn far_steps_and_odd_settings_are_survived() {
    let odd = [
        Decay::Step { every: 0, factor: 0.5, floor: 0.5 },
        Decay::Polynomial { steps: 0, power: 1.0, end: 0.5 },
        Decay::Cosine { steps: 0, end: 0.5 },
        Decay::Cosine { steps: u64::MAX, end: 0.5 },
        Decay::MultiStep { at: vec![], factor: 0.5 },
    ];
    for decay in odd {
        for warm_up in [None, Some(WarmUp { steps: 10, from: 0.5 }), Some(WarmUp { steps: u64::MAX, from: 0.5 })] {
            let schedule = Schedule { decay: decay.clone(), warm_up };
            for step in [0, 1, 9, 10, 11, u64::MAX - 1, u64::MAX] {
                assert!((0.5..=1.0).contains(&schedule.factor(step)), "{schedule:?} {step}");
            }
        }
    }
}

#[test]
fn schedules_without_a_meaning_are_refused() {
    let mut wrong = vec![
        Decay::Step { every: 0, factor: 0.5, floor: 0.0 },
        Decay::MultiStep { at: vec![2, 2], factor: 0.5 },
        Decay::MultiStep { at: vec![3, 2], factor: 0.5 },
        Decay::Polynomial { steps: 10, power: 1.0, end: 0.0 },
        Decay::Cosine { steps: 9, end: 0.0 },
    ];
    for value in [f64::NAN, f64::INFINITY, -0.1, 1.1] {
        wrong.push(Decay::Step { every: 1, factor: value, floor: 0.0 });
        wrong.push(Decay::Step { every: 1, factor: 0.5, floor: value });
        wrong.push(Decay::MultiStep { at: vec![1], factor: value });
        wrong.push(Decay::Polynomial { steps: 11, power: 1.0, end: value });
        wrong.push(Decay::Cosine { steps: 11, end: value });
    }
    for power in [f64::NAN, f64::INFINITY, -1.0] {
        wrong.push(Decay::Polynomial { steps: 11, power, end: 0.0 });
    }
    let warm = |decay, from| Schedule { decay, warm_up: Some(WarmUp { steps: 10, from }) };
    let from = [f64::NAN, -0.1, 1.1].map(|from| warm(Decay::Constant, from));
    for schedule in wrong.into_iter().map(|decay| warm(decay, 0.5)).chain(from) {
        assert_eq!(schedule.check().unwrap_err().kind(), ErrorKind::InvalidArgument, "{schedule:?}");
        let optimizer = Optimizer { schedule, ..Rule::sgd(0.1).into() };
        assert!(optimizer.check().is_err());
    }
    warm(Decay::Cosine { steps: 11, end: 0.0 }, 0.5).check().unwrap();
    assert!(Optimizer::from(Rule::sgd(-1.0)).check().is_err());
}

#[test]
fn an_optimizer_changes_the_learning_rate_alone() {
    let schedule =
        Schedule { decay: Decay::Cosine { steps: 10, end: 0.0 }, warm_up: Some(WarmUp { steps: 2, from: 0.0 }) };
    let momentum = Sgd { learning_rate: 2.0, momentum: 0.5, ..Sgd::default() };
    let optimizer = Optimizer { schedule, ..Rule::Sgd(momentum.clone()).into() };
    optimizer.check().unwrap();
    assert_eq!(optimizer.at(0), Rule::Sgd(Sgd { learning_rate: 1.0, ..momentum.clone() }));
    assert_eq!(optimizer.at(1), optimizer.rule);
    assert_eq!(optimizer.at(u64::MAX), Rule::Sgd(Sgd { learning_rate: 0.0, ..momentum }));
    let written = serde_json::to_string(&optimizer).unwrap();
    assert_eq!(serde_json::from_str::<Optimizer>(&written).unwrap(), optimizer);

    let mut rule = Rule::Adam(Adam::default());
    rule.set_learning_rate(0.5);
    assert_eq!((rule.learning_rate(), &rule), (0.5, &Rule::adam(0.5)));
    let mut rule = Rule::Test(Test::default());
    rule.set_learning_rate(0.5);
    assert_eq!((rule.learning_rate(), rule), (1.0, Rule::Test(Test { rescale: 1.0 })));
}
