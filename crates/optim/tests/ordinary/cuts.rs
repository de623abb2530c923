//! A tensor cut anywhere, each piece with a state of its own, is stepped to the same bits as the whole.

use crate::common::{floats, rules};
use half::{bf16, f16};
use proptest::prelude::*;
use sheave_optim::{BLOCK_ELEMENTS, Float, Norms, Rule, State, Target};

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

/// The weights after two steps of a rule that needs norms, cut at these places; the norms of the last step.
fn halves<T: Float>(rule: &Rule, elements: usize, cuts: &[usize], of: fn(f64) -> T) -> (Vec<T>, Norms) {
    let mut weights = floats(1, elements, of);
    let mut bounds = cuts.to_vec();
    bounds.extend([0, elements]);
    bounds.sort_unstable();
    let ranges: Vec<_> = bounds.windows(2).map(|pair| pair[0]..pair[1]).collect();
    let mut states: Vec<State<T::Wide>> = ranges.iter().map(|range| rule.state(range.len())).collect();
    let mut step = |seed| {
        let gradient = floats(seed, elements, of);
        let slices = ranges.iter().cloned().zip(&mut states);
        let sums: Vec<_> = slices
            .map(|(range, state)| {
                let target = Target::new(&mut weights[range.clone()]);
                rule.prepare(state, &target, &gradient[range.clone()], range.start as u64).unwrap()
            })
            .collect();
        let norms = Norms::combine(&sums).unwrap();
        for (range, state) in ranges.iter().cloned().zip(&states) {
            rule.finish(state, &mut Target::new(&mut weights[range]), &norms).unwrap();
        }
        norms
    };
    step(2);
    let norms = step(3);
    (weights, norms)
}

fn halves_have_the_same_bits<T: Float>(
    rule: &Rule,
    elements: usize,
    cuts: &[usize],
    of: fn(f64) -> T,
    bits: fn(T) -> u64,
) {
    let mut whole = floats(1, elements, of);
    let mut state = rule.state(elements);
    for seed in [2, 3] {
        rule.step(&mut state, &mut whole, &floats(seed, elements, of)).unwrap();
    }
    let (pieces, norms) = halves(rule, elements, cuts, of);
    let bits = |floats: Vec<T>| floats.into_iter().map(bits).collect::<Vec<_>>();
    assert_eq!(norms, halves(rule, elements, &[], of).1);
    assert!(bits(pieces) == bits(whole), "{rule:?} of {elements} cut at {cuts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cutting_changes_no_bit(case in cases()) {
        for rule in rules().iter().filter(|rule| !rule.needs_norms()) {
            same_bits(rule, &case, |x| x as f32, |x| u64::from(x.to_bits()));
            same_bits(rule, &case, |x| x, f64::to_bits);
            same_bits(rule, &case, f16::from_f64, |x| u64::from(x.to_bits()));
            same_bits(rule, &case, bf16::from_f64, |x| u64::from(x.to_bits()));
        }
    }

    #[test]
    fn cutting_between_blocks_changes_no_bit_of_what_needs_norms(
        elements in 1..5 * BLOCK_ELEMENTS, cuts in prop::collection::vec(0..5_usize, 0..4)
    ) {
        let cuts: Vec<usize> = cuts.into_iter().map(|cut| (cut * BLOCK_ELEMENTS).min(elements)).collect();
        for rule in rules().iter().filter(|rule| rule.needs_norms()) {
            halves_have_the_same_bits(rule, elements, &cuts, |x| x as f32, |x| u64::from(x.to_bits()));
            halves_have_the_same_bits(rule, elements, &cuts, |x| x, f64::to_bits);
            halves_have_the_same_bits(rule, elements, &cuts, f16::from_f64, |x| u64::from(x.to_bits()));
            halves_have_the_same_bits(rule, elements, &cuts, bf16::from_f64, |x| u64::from(x.to_bits()));
        }
    }

    #[test]
    fn cutting_within_blocks_changes_last_bits_at_most(
        (elements, cuts) in (1..3 * BLOCK_ELEMENTS)
            .prop_flat_map(|elements| (Just(elements), prop::collection::vec(0..=elements, 0..6)))
    ) {
        for rule in rules().iter().filter(|rule| rule.needs_norms()) {
            let (whole, expected) = halves(rule, elements, &[], |x| x);
            let (pieces, norms) = halves(rule, elements, &cuts, |x| x);
            let same = |one: f64, other: f64| (one - other).abs() <= 1e-12 * one.abs();
            prop_assert!(same(norms.weights(), expected.weights()) && same(norms.direction(), expected.direction()));
            prop_assert!(pieces.iter().zip(&whole).all(|(one, other)| (one - other).abs() < 1e-12));
        }
    }
}
