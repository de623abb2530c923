//! What a rule refuses, and that nothing changes when it does.

use crate::common::rules;
use sheave_base::ErrorKind;
use sheave_optim::{AdaGrad, Adam, AdamW, BlockSums, Lamb, Norms, RmsProp, Rule, Sgd, State, Target, Test};

/// Every rule with one setting changed, where it has that setting.
fn with_setting(name: &str, value: f64) -> Vec<Rule> {
    let written = |rule: Rule| serde_json::to_value(rule).unwrap();
    let defaults = [
        Rule::Sgd(Sgd::default()),
        Rule::Adam(Adam::default()),
        Rule::AdamW(AdamW::default()),
        Rule::AdaGrad(AdaGrad::default()),
        Rule::RmsProp(RmsProp::default()),
        Rule::Lamb(Lamb::default()),
        Rule::Test(Test::default()),
    ];
    let has = |rule: &Rule| written(rule.clone()).as_object().unwrap().values().all(|rule| rule.get(name).is_some());
    defaults.into_iter().filter(has).map(|rule| changed(rule, name, value)).collect()
}

/// JSON has no word for what is not finite, so that settings are changed here by hand.
fn changed(mut rule: Rule, name: &str, value: f64) -> Rule {
    macro_rules! set {
        ($($variant:ident: $($field:ident)* / $($option:ident)*;)*) => {
            match &mut rule {
                $(Rule::$variant(rule) => match name {
                    $(stringify!($field) => rule.$field = value,)*
                    $(stringify!($option) => rule.$option = Some(value),)*
                    _ => panic!("{name} is not listed"),
                },)*
            }
        };
    }
    set! {
        Sgd: learning_rate momentum weight_decay rescale / clip_gradient;
        Adam: learning_rate beta1 beta2 epsilon weight_decay rescale / clip_gradient;
        AdamW: learning_rate beta1 beta2 epsilon weight_decay rescale / clip_gradient;
        AdaGrad: learning_rate epsilon weight_decay rescale / clip_gradient;
        RmsProp: learning_rate decay momentum epsilon weight_decay rescale / clip_gradient;
        Lamb: learning_rate beta1 beta2 epsilon weight_decay rescale / clip_gradient lower_bound upper_bound;
        Test: rescale /;
    }
    rule
}

#[test]
fn settings_without_a_meaning_are_refused() {
    let nobody = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300];
    let mut wrong = Vec::new();
    let mut refuse = |names: &[&str], values: &[f64]| {
        for name in names {
            let rules = values.iter().chain(&nobody).flat_map(|&value| with_setting(name, value));
            let count = wrong.len();
            wrong.extend(rules);
            assert!(wrong.len() > count, "no rule has {name}");
        }
    };
    refuse(&["learning_rate", "weight_decay", "lower_bound", "upper_bound"], &[-0.1]);
    refuse(&["momentum", "decay", "beta1", "beta2"], &[-0.1, 1.0, 1.0 - 1e-12]);
    refuse(&["rescale"], &[]);
    refuse(&["epsilon"], &[-0.1, 0.0, 1e-300]);
    refuse(&["clip_gradient"], &[-0.1, 0.0]);
    wrong.push(Rule::Lamb(Lamb { lower_bound: Some(2.0), upper_bound: Some(1.0), ..Lamb::default() }));
    for rule in wrong {
        assert_eq!(rule.check().unwrap_err().kind(), ErrorKind::InvalidArgument, "{rule:?}");
        let mut weights = [1.0_f32];
        assert!(rule.step(&mut rule.state(1), &mut weights, &[1.0]).is_err(), "{rule:?}");
        assert_eq!(weights, [1.0]);
    }
    let still = Sgd { learning_rate: 0.0, momentum: 0.999, rescale: -1.0, ..Sgd::default() };
    for rule in rules().into_iter().chain([Rule::Sgd(still)]) {
        rule.check().unwrap();
    }
    let message = Rule::sgd(f64::NAN).check().unwrap_err().to_string();
    assert!(message.contains("learning rate is NaN"), "{message}");
}

#[test]
fn lengths_must_fit() {
    for rule in rules() {
        for (state, weights, gradient) in [(3, 2, 2), (2, 3, 2), (2, 2, 3), (0, 1, 1)] {
            let (mut state, mut weights) = (rule.state(state), vec![1.0_f32; weights]);
            let (before, gradient) = (state.clone(), vec![1.0; gradient]);
            let error = rule.step(&mut state, &mut weights, &gradient).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch);
            assert!(state == before && weights.iter().all(|&weight| weight == 1.0));
        }
        let mut state = rule.state(0);
        rule.step(&mut state, &mut [], &[] as &[f32]).unwrap();
        assert_eq!(state.steps(), 1);
    }
}

#[test]
fn states_must_fit() {
    let rules = rules();
    // What may take over another's state: its name, whether it has momentum, whether it is centered.
    let kind = |rule: &Rule| {
        let has = match rule {
            Rule::Sgd(sgd) => sgd.momentum != 0.0,
            Rule::RmsProp(rule) => rule.centered,
            _ => false,
        };
        (rule.name(), has)
    };
    for made in &rules {
        for used in &rules {
            let mut state = made.state(1);
            let fits = kind(made) == kind(used) || (kind(made), kind(used)) == (("sgd", true), ("sgd", false));
            assert_eq!(used.accepts(&state), fits, "{made:?} {used:?}");
            let outcome = used.step(&mut state, &mut [1.0_f32], &[1.0]);
            match outcome {
                Ok(()) => assert!(fits && state.steps() == 1),
                Err(error) => assert!(!fits && error.kind() == ErrorKind::Mismatch && state == made.state(1)),
            }
        }
    }
}

#[test]
fn rules_and_states_survive_being_written() {
    for rule in rules() {
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
    }
}

#[test]
fn damaged_states_are_refused() {
    for rule in rules() {
        let written = serde_json::to_string(&rule.state::<f32>(2)).unwrap();
        let damages = [("[0.0,0.0]", "[0.0]"), ("[[", "[[],["), ("\"parts\":[]", "\"parts\":[[0.0,0.0]]")];
        for (whole, damaged) in damages.into_iter().filter(|(whole, _)| written.contains(whole)) {
            let mut state: State = serde_json::from_str(&written.replace(whole, damaged)).unwrap();
            let before = state.clone();
            let error = rule.step(&mut state, &mut [0.0_f32; 2], &[0.0; 2]).unwrap_err();
            assert_eq!((error.kind(), &state), (ErrorKind::Mismatch, &before), "{rule:?} {damaged}");
            assert!(state.slice(0..1).is_err());
        }
    }
}

#[test]
fn parts_are_saved_and_loaded() {
    for rule in rules() {
        let (mut state, mut weights) = (rule.state(5), [1.0_f64; 5]);
        rule.step(&mut state, &mut weights, &[0.1, 0.2, 0.3, 0.4, 0.5]).unwrap();
        let saved: Vec<_> =
            state.parts().into_iter().rev().map(|(name, part)| (name.to_owned(), part.to_vec())).collect();
        assert_eq!(State::from_parts(&rule, 5, 1, saved.clone()).unwrap(), state);

        let slice = state.slice(1..3).unwrap();
        assert_eq!((slice.elements(), slice.steps()), (2, 1));
        for ((name, part), (_, whole)) in slice.parts().into_iter().zip(state.parts()) {
            assert_eq!(part, &whole[1..3], "{name}");
        }
        assert_eq!(state.slice(5..5).unwrap().elements(), 0);
        let backwards = std::ops::Range { start: 3, end: 1 };
        for range in [0..6, 6..7, backwards] {
            assert_eq!(state.slice(range).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }

        let mut wrong = vec![[saved.clone(), vec![("history".to_owned(), vec![0.0; 5])]].concat()];
        for number in 0..saved.len() {
            let mut missing = saved.clone();
            missing.remove(number);
            wrong.push(missing);
            let mut renamed = saved.clone();
            renamed[number].0 = "history".to_owned();
            wrong.push(renamed);
            let mut short = saved.clone();
            short[number].1.pop();
            wrong.push(short);
            wrong.push([saved.clone(), vec![saved[number].clone()]].concat());
        }
        for parts in wrong {
            let error = State::from_parts(&rule, 5, 1, parts.clone()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{rule:?} {parts:?}");
        }
    }
    // A state with momentum may be loaded for a rule that has none now.
    let state = State::from_parts(&Rule::sgd(0.1), 1, 7, vec![("momentum".to_owned(), vec![0.5_f32])]).unwrap();
    assert_eq!((state.parts(), state.steps()), (vec![("momentum", &[0.5_f32][..])], 7));
    let error = State::<f32>::from_parts(&Rule::adam(0.1), 1, 7, vec![]).unwrap_err();
    assert!(error.to_string().contains("adam remembers [mean, variance]"), "{error}");
}

#[test]
fn halves_of_steps_must_fit() {
    let rule = Rule::Lamb(Lamb::default());
    let gradient = [0.5_f32; 4];
    let (mut weights, mut state) = ([1.0_f32; 4], rule.state(4));
    let mut target = Target::new(&mut weights);
    let sums = rule.prepare(&mut state, &target, &gradient, 0).unwrap();
    assert_eq!((sums.first_element(), sums.elements(), state.steps()), (0, 4, 1));
    let norms = Norms::combine([&sums]).unwrap();
    assert_eq!((norms.elements(), norms.steps(), norms.weights()), (4, 1, 2.0));
    let written = serde_json::to_string(&(&sums, &norms)).unwrap();
    assert_eq!(serde_json::from_str::<(BlockSums, Norms)>(&written).unwrap(), (sums.clone(), norms.clone()));

    // Of another step, of a state that was never prepared, of another length.
    let next = rule.prepare(&mut state, &target, &gradient, 0).unwrap();
    assert_eq!(rule.finish(&state, &mut target, &norms).unwrap_err().kind(), ErrorKind::Mismatch);
    assert_eq!(rule.finish(&rule.state(4), &mut target, &norms).unwrap_err().kind(), ErrorKind::Mismatch);
    assert_eq!(rule.finish(&rule.state(3), &mut target, &norms).unwrap_err().kind(), ErrorKind::Mismatch);
    let error = rule.prepare(&mut rule.state(4), &target, &gradient, u64::MAX).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);

    let at = |first_element| rule.prepare(&mut rule.state(4), &target, &gradient, first_element).unwrap();
    let damaged: BlockSums = serde_json::from_str(&written_with_another_length(&sums)).unwrap();
    let wrong = [vec![], vec![at(4)], vec![at(0), at(0)], vec![at(0), at(5)], vec![at(4), at(0)], vec![damaged]];
    for slices in wrong.into_iter().chain([vec![at(0), at(4), next]]) {
        assert_eq!(Norms::combine(&slices).unwrap_err().kind(), ErrorKind::Mismatch, "{slices:?}");
    }
    assert_eq!(Norms::combine([at(0), at(4)]).unwrap().elements(), 8);

    let sgd = Rule::sgd(0.1);
    let error = sgd.prepare(&mut sgd.state(4), &target, &gradient, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(sgd.finish(&sgd.state(4), &mut target, &norms).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(weights, [1.0; 4]);
}

fn written_with_another_length(sums: &BlockSums) -> String {
    serde_json::to_string(sums).unwrap().replace("\"elements\":4,", "\"elements\":4097,")
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
