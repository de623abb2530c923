//! What a rule refuses, and that nothing changes when it does.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

use sheave_base::ErrorKind;
use sheave_optim::{Adam, Rule, Sgd, State};

#[test]
fn settings_without_a_meaning_are_refused() {
    let sgd = |change: fn(&mut Sgd, f64), value| {
        let mut sgd = Sgd::default();
        change(&mut sgd, value);
        Rule::Sgd(sgd)
    };
    let adam = |change: fn(&mut Adam, f64), value| {
        let mut adam = Adam::default();
        change(&mut adam, value);
        Rule::Adam(adam)
    };
    let nobody = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300];
    let mut wrong = Vec::new();
    for value in nobody.into_iter().chain([-0.1]) {
        wrong.push(sgd(|sgd, x| sgd.learning_rate = x, value));
        wrong.push(sgd(|sgd, x| sgd.weight_decay = x, value));
        wrong.push(adam(|adam, x| adam.learning_rate = x, value));
        wrong.push(adam(|adam, x| adam.weight_decay = x, value));
        wrong.push(adam(|adam, x| adam.epsilon = x, value));
    }
    for value in nobody.into_iter().chain([-0.1, 1.0, 1.0 - 1e-12]) {
        wrong.push(sgd(|sgd, x| sgd.momentum = x, value));
        wrong.push(adam(|adam, x| adam.beta1 = x, value));
        wrong.push(adam(|adam, x| adam.beta2 = x, value));
    }
    for value in nobody {
        wrong.push(sgd(|sgd, x| sgd.rescale = x, value));
        wrong.push(adam(|adam, x| adam.rescale = x, value));
    }
    for value in [0.0, 1e-300] {
        wrong.push(adam(|adam, x| adam.epsilon = x, value));
    }
    for rule in wrong {
        assert_eq!(rule.check().unwrap_err().kind(), ErrorKind::InvalidArgument, "{rule:?}");
        let mut weights = [1.0_f32];
        assert!(rule.step(&mut rule.state(1), &mut weights, &[1.0]).is_err(), "{rule:?}");
        assert_eq!(weights, [1.0]);
    }
    let still = Sgd { learning_rate: 0.0, momentum: 0.999, rescale: -1.0, ..Sgd::default() };
    for rule in [Rule::sgd(0.01), Rule::adam(0.001), Rule::Sgd(still)] {
        rule.check().unwrap();
    }
    let message = Rule::sgd(f64::NAN).check().unwrap_err().to_string();
    assert!(message.contains("learning rate is NaN"), "{message}");
}

#[test]
fn lengths_and_states_must_fit() {
    let momentum = Rule::Sgd(Sgd { momentum: 0.9, ..Sgd::default() });
    let rules = [Rule::sgd(0.1), momentum.clone(), Rule::adam(0.1)];
    for rule in &rules {
        for (state, weights, gradient) in [(3, 2, 2), (2, 3, 2), (2, 2, 3), (0, 1, 1)] {
            let (mut state, mut weights) = (rule.state(state), vec![1.0_f32; weights]);
            let (before, gradient) = (state.clone(), vec![1.0; gradient]);
            let error = rule.step(&mut state, &mut weights, &gradient).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch);
            assert!(state == before && weights.iter().all(|&weight| weight == 1.0));
        }
        rule.step(&mut rule.state(0), &mut [], &[] as &[f32]).unwrap();
    }
    for (made, used) in [(0, 1), (0, 2), (2, 0), (1, 2), (2, 1)] {
        let mut state = rules[made].state(1);
        let error = rules[used].step(&mut state, &mut [1.0_f32], &[1.0]).unwrap_err();
        assert_eq!((error.kind(), state.steps()), (ErrorKind::Mismatch, 0), "{made} {used}");
    }
}

#[test]
fn rules_and_states_survive_being_written() {
    let rule = Rule::Adam(Adam { learning_rate: 0.1, ..Adam::default() });
    let written = serde_json::to_string(&rule).unwrap();
    assert_eq!(serde_json::from_str::<Rule>(&written).unwrap(), rule);
    let (mut state, mut weights) = (rule.state(2), [1.0_f32, 2.0]);
    rule.step(&mut state, &mut weights, &[0.5, 0.25]).unwrap();
    let written = serde_json::to_string(&state).unwrap();
    let mut read: State = serde_json::from_str(&written).unwrap();
    let mut others = weights;
    rule.step(&mut state, &mut weights, &[0.5, 0.25]).unwrap();
    rule.step(&mut read, &mut others, &[0.5, 0.25]).unwrap();
    assert_eq!((weights, &state), (others, &read));

    let damaged = written.replace("\"elements\":2", "\"elements\":3");
    let mut damaged: State = serde_json::from_str(&damaged).unwrap();
    let error = rule.step(&mut damaged, &mut [0.0_f32; 3], &[0.0; 3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
}

#[test]
fn settings_may_change_between_steps() {
    let mut rule = Sgd { learning_rate: 1.0, momentum: 0.5, ..Sgd::default() };
    let mut state = Rule::Sgd(rule.clone()).state(1);
    let mut weights = [0.0_f64];
    Rule::Sgd(rule.clone()).step(&mut state, &mut weights, &[1.0]).unwrap();
    rule.learning_rate = 0.25;
    Rule::Sgd(rule).step(&mut state, &mut weights, &[1.0]).unwrap();
    assert_eq!(weights, [-1.75]);
    Rule::sgd(0.25).step(&mut state, &mut weights, &[1.0]).unwrap();
    assert_eq!(weights, [-2.0]);
}
