//! A tensor cut anywhere, each piece with a state of its own, is stepped to the same bits as the whole.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

use half::{bf16, f16};
use proptest::prelude::*;
use sheave_optim::{Adam, Float, Rule, Sgd, State};

/// Steps `whole` at once and in pieces, from the same start; both results.
fn both<T: Float>(rule: &Rule, start: &[T], gradients: &[Vec<T>], cuts: &[usize]) -> (Vec<T>, Vec<T>) {
    let (mut whole, mut pieces) = (start.to_vec(), start.to_vec());
    let mut state = rule.state(start.len());
    let mut bounds = cuts.to_vec();
    bounds.extend([0, start.len()]);
    bounds.sort_unstable();
    let ranges: Vec<_> = bounds.windows(2).map(|pair| pair[0]..pair[1]).collect();
    let mut states: Vec<State<T::Wide>> = ranges.iter().map(|range| rule.state(range.len())).collect();
    for gradient in gradients {
        rule.step(&mut state, &mut whole, gradient).unwrap();
        for (range, state) in ranges.iter().zip(&mut states) {
            rule.step(state, &mut pieces[range.clone()], &gradient[range.clone()]).unwrap();
        }
    }
    for (number, (_, part)) in state.parts().into_iter().enumerate() {
        let joined: Vec<T::Wide> = states.iter().flat_map(|state| state.parts()[number].1.to_vec()).collect();
        assert!(part == joined, "the moments differ");
    }
    (whole, pieces)
}

/// The bits, so that zeros of both signs differ and what is not a number is compared too.
fn same_bits<T: Float>(rule: &Rule, case: &Case, of: fn(f64) -> T, bits: fn(T) -> u64) {
    let floats = |numbers: &Vec<f64>| numbers.iter().map(|&number| of(number)).collect::<Vec<T>>();
    let gradients: Vec<Vec<T>> = case.gradients.iter().map(floats).collect();
    let (whole, pieces) = both(rule, &floats(&case.start), &gradients, &case.cuts);
    let bits = |floats: Vec<T>| floats.into_iter().map(bits).collect::<Vec<_>>();
    assert_eq!(bits(whole), bits(pieces), "{rule:?} cut at {:?}", case.cuts);
}

#[derive(Clone, Debug)]
struct Case {
    start: Vec<f64>,
    gradients: Vec<Vec<f64>>,
    cuts: Vec<usize>,
}

/// More elements than the blocks in which halves are widened.
fn cases() -> impl Strategy<Value = Case> {
    (1_usize..1200).prop_flat_map(|elements| {
        let floats = || prop::collection::vec(-1e3..1e3_f64, elements);
        let cuts = prop::collection::vec(0..=elements, 0..6);
        (floats(), prop::collection::vec(floats(), 1..4), cuts).prop_map(|(start, gradients, cuts)| Case {
            start,
            gradients,
            cuts,
        })
    })
}

fn rules() -> [Rule; 3] {
    let momentum = Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: 1e-4, rescale: 1.0 / 3.0, ..Sgd::default() };
    let adam = Adam { learning_rate: 0.01, weight_decay: 1e-4, rescale: 1.0 / 3.0, ..Adam::default() };
    [Rule::sgd(0.1), Rule::Sgd(momentum), Rule::Adam(adam)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cutting_changes_no_bit(case in cases()) {
        for rule in rules() {
            same_bits(&rule, &case, |x| x as f32, |x| u64::from(x.to_bits()));
            same_bits(&rule, &case, |x| x, f64::to_bits);
            same_bits(&rule, &case, f16::from_f64, |x| u64::from(x.to_bits()));
            same_bits(&rule, &case, bf16::from_f64, |x| u64::from(x.to_bits()));
        }
    }
}
