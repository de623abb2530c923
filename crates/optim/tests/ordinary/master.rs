//! Master copies are stepped as `f32` weights are, and the weights are what they round to.

use crate::common::{floats, rules};
use half::{bf16, f16};
use sheave_base::ErrorKind;
use sheave_optim::{Float, Norms, Rule, Target, widen};

/// Neither a multiple of what is widened at a time nor of a block of norms.
const ELEMENTS: usize = 5001;

fn masters_are_stepped<T: Float<Wide = f32> + PartialEq + std::fmt::Debug>(of: fn(f64) -> T, round: fn(f32) -> T) {
    for rule in rules() {
        let mut weights = floats(1, ELEMENTS, of);
        let mut master = widen(&weights);
        let mut single = master.clone();
        let (mut state, mut single_state) = (rule.state(ELEMENTS), rule.state(ELEMENTS));
        for seed in 2..6 {
            let gradient = floats(seed, ELEMENTS, of);
            rule.step_on(&mut state, &mut Target::with_master(&mut master, &mut weights), &gradient).unwrap();
            rule.step(&mut single_state, &mut single, &widen(&gradient)).unwrap();
        }
        assert_eq!(weights, single.iter().copied().map(round).collect::<Vec<_>>(), "{rule:?}");
        assert_eq!((master, state), (single, single_state), "{rule:?}");
    }
}

#[test]
fn masters_are_stepped_as_single_floats() {
    masters_are_stepped(f16::from_f64, f16::from_f32);
    masters_are_stepped(bf16::from_f64, bf16::from_f32);
    masters_are_stepped(|x| x as f32, |x| x);
}

#[test]
fn gradients_may_be_of_another_type() {
    for rule in rules() {
        let gradient = floats(2, ELEMENTS, bf16::from_f64);
        let (mut weights, mut expected) = (floats(1, ELEMENTS, |x| x as f32), floats(1, ELEMENTS, |x| x as f32));
        rule.step_on(&mut rule.state(ELEMENTS), &mut Target::new(&mut weights), &gradient).unwrap();
        rule.step(&mut rule.state(ELEMENTS), &mut expected, &widen(&gradient)).unwrap();
        assert_eq!(weights, expected, "{rule:?}");

        let (mut weights, mut expected) = (floats(1, ELEMENTS, f16::from_f64), floats(1, ELEMENTS, f16::from_f64));
        let gradient = floats(2, ELEMENTS, f16::from_f64);
        rule.step_on(&mut rule.state(ELEMENTS), &mut Target::new(&mut weights), &widen(&gradient)).unwrap();
        rule.step(&mut rule.state(ELEMENTS), &mut expected, &gradient).unwrap();
        assert_eq!(weights, expected, "{rule:?}");
    }
}

#[test]
fn slices_with_masters_share_their_norms() {
    const CUT: usize = 4096;
    for rule in rules().iter().filter(|rule| rule.needs_norms()) {
        let (mut weights, gradient) = (floats(1, ELEMENTS, f16::from_f64), floats(2, ELEMENTS, f16::from_f64));
        let mut master = widen(&weights);
        let (mut whole, mut whole_master) = (weights.clone(), master.clone());
        rule.step_on(&mut rule.state(ELEMENTS), &mut Target::with_master(&mut whole_master, &mut whole), &gradient)
            .unwrap();

        let (head, tail) = weights.split_at_mut(CUT);
        let (head_master, tail_master) = master.split_at_mut(CUT);
        let (mut head, mut tail) = (Target::with_master(head_master, head), Target::with_master(tail_master, tail));
        let (mut one, mut other) = (rule.state(CUT), rule.state(ELEMENTS - CUT));
        let norms = Norms::combine([
            rule.prepare(&mut one, &head, &gradient[..CUT], 0).unwrap(),
            rule.prepare(&mut other, &tail, &gradient[CUT..], CUT as u64).unwrap(),
        ]);
        let norms = norms.unwrap();
        rule.finish(&one, &mut head, &norms).unwrap();
        rule.finish(&other, &mut tail, &norms).unwrap();
        assert_eq!((weights, master), (whole, whole_master), "{rule:?}");
    }
}

#[test]
fn masters_of_another_length_are_refused() {
    for rule in rules() {
        for length in [1, 3] {
            let (mut master, mut weights) = (vec![1.0_f32; length], [f16::ONE; 2]);
            let mut state = rule.state(2);
            let mut target = Target::with_master(&mut master, &mut weights);
            let error = rule.step_on(&mut state, &mut target, &[f16::ONE; 2]).unwrap_err();
            assert_eq!((error.kind(), &state), (ErrorKind::Mismatch, &rule.state(2)));
            assert!(master.iter().all(|&master| master == 1.0) && weights == [f16::ONE; 2]);
        }
    }
    let rule = Rule::sgd(1.0);
    let mut weights = [f16::ONE];
    let mut target = Target::with_master(&mut [], &mut weights);
    let error = rule.step_rows(&mut rule.state(1), &mut target, 1, &[0], &[f16::ONE]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
}
