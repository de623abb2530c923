//! Steps of some rows: these alone change, and they change as they would on their own.

use crate::common::{floats, numbers, rules};
use half::{bf16, f16};
use sheave_base::ErrorKind;
use sheave_optim::{AdaGrad, Float, Rule, State, Target, Wide, widen};

const ROW_ELEMENTS: usize = 37;
const ROWS: usize = 40;
const ELEMENTS: usize = ROWS * ROW_ELEMENTS;

fn sparse_rules() -> impl Iterator<Item = Rule> {
    rules().into_iter().filter(|rule| !rule.needs_norms())
}

/// About a third of all rows.
fn some_rows(seed: u64) -> Vec<u64> {
    let chances = numbers(seed, ROWS);
    (0..ROWS as u64).filter(|&row| chances[row as usize] > 0.3).collect()
}

fn ranges(rows: &[u64]) -> impl Iterator<Item = std::ops::Range<usize>> {
    rows.iter().map(|&row| row as usize * ROW_ELEMENTS).map(|start| start..start + ROW_ELEMENTS)
}

fn gather<T: Copy>(rows: &[u64], from: &[T]) -> Vec<T> {
    ranges(rows).flat_map(|range| from[range].to_vec()).collect()
}

fn scatter<T: Copy>(rows: &[u64], from: &[T], to: &mut [T]) {
    for (range, row) in ranges(rows).zip(from.chunks(ROW_ELEMENTS)) {
        to[range].copy_from_slice(row);
    }
}

/// The parts of a state, each changed.
fn saved<W: Wide>(state: &State<W>, of: impl Fn(&[W]) -> Vec<W>) -> Vec<(String, Vec<W>)> {
    state.parts().into_iter().map(|(name, part)| (name.to_owned(), of(part))).collect()
}

/// The rows cut out, stepped as a dense tensor of their own, and put back.
fn step_cut_out<T: Float>(rule: &Rule, state: &mut State<T::Wide>, weights: &mut [T], rows: &[u64], gradient: &[T]) {
    let cut = saved(state, |part| gather(rows, part));
    let mut cut = State::from_parts(rule, rows.len() * ROW_ELEMENTS, state.steps(), cut).unwrap();
    let mut dense = gather(rows, weights);
    rule.step(&mut cut, &mut dense, gradient).unwrap();
    scatter(rows, &dense, weights);
    let mut whole = saved(state, <[T::Wide]>::to_vec);
    for ((_, whole), (_, part)) in whole.iter_mut().zip(cut.parts()) {
        scatter(rows, part, whole);
    }
    *state = State::from_parts(rule, ELEMENTS, cut.steps(), whole).unwrap();
}

fn rows_are_stepped_alone<T: Float + PartialEq + std::fmt::Debug>(of: fn(f64) -> T)
where
    T::Wide: std::fmt::Debug,
{
    for rule in sparse_rules() {
        let mut weights = floats(1, ELEMENTS, of);
        let mut expected = weights.clone();
        let (mut state, mut expected_state) = (rule.state(ELEMENTS), rule.state(ELEMENTS));
        for seed in 2..6 {
            let rows = some_rows(seed);
            let gradient = floats(seed + 100, rows.len() * ROW_ELEMENTS, of);
            let mut target = Target::new(&mut weights);
            rule.step_rows(&mut state, &mut target, ROW_ELEMENTS, &rows, &gradient).unwrap();
            step_cut_out(&rule, &mut expected_state, &mut expected, &rows, &gradient);
        }
        assert_eq!(weights, expected, "{rule:?}");
        assert_eq!(state, expected_state, "{rule:?}");
    }
}

#[test]
fn rows_are_stepped_as_if_they_were_alone() {
    rows_are_stepped_alone(|x| x as f32);
    rows_are_stepped_alone(|x| x);
    rows_are_stepped_alone(f16::from_f64);
    rows_are_stepped_alone(bf16::from_f64);
}

#[test]
fn all_rows_are_the_whole() {
    for rule in sparse_rules() {
        let mut weights = floats(1, ELEMENTS, bf16::from_f64);
        let mut whole = weights.clone();
        let (mut state, mut whole_state) = (rule.state(ELEMENTS), rule.state(ELEMENTS));
        let rows: Vec<u64> = (0..ROWS as u64).collect();
        for seed in 2..5 {
            let gradient = floats(seed, ELEMENTS, bf16::from_f64);
            rule.step_rows(&mut state, &mut Target::new(&mut weights), ROW_ELEMENTS, &rows, &gradient).unwrap();
            rule.step(&mut whole_state, &mut whole, &gradient).unwrap();
        }
        assert_eq!((weights, state), (whole, whole_state), "{rule:?}");
    }
}

#[test]
fn what_forgets_nothing_steps_rows_as_zeros_elsewhere() {
    let mut grown = AdaGrad { learning_rate: 0.1, ..AdaGrad::default() };
    for rule in [Rule::sgd(0.1), Rule::AdaGrad(grown.clone())] {
        let (mut weights, mut state) = (floats(1, ELEMENTS, |x| x), rule.state(ELEMENTS));
        let (mut dense, mut dense_state) = (weights.clone(), rule.state(ELEMENTS));
        for seed in 2..6 {
            let rows = some_rows(seed);
            let gradient = numbers(seed, rows.len() * ROW_ELEMENTS);
            rule.step_rows(&mut state, &mut Target::new(&mut weights), ROW_ELEMENTS, &rows, &gradient).unwrap();
            let mut full = vec![0.0; ELEMENTS];
            scatter(&rows, &gradient, &mut full);
            rule.step(&mut dense_state, &mut dense, &full).unwrap();
        }
        assert_eq!((weights, state), (dense, dense_state), "{rule:?}");
    }
    // What decays does so in the dense step alone.
    grown.weight_decay = 0.5;
    let rule = Rule::AdaGrad(grown);
    let (mut lazy, mut dense) = ([1.0_f32; 2], [1.0_f32; 2]);
    rule.step_rows(&mut rule.state(2), &mut Target::new(&mut lazy), 1, &[0], &[0.0_f32]).unwrap();
    rule.step(&mut rule.state(2), &mut dense, &[0.0; 2]).unwrap();
    assert_eq!((lazy, dense), ([0.95, 1.0], [0.95, 0.95]));
}

#[test]
fn rows_have_master_copies_too() {
    for rule in sparse_rules() {
        let mut weights = floats(1, ELEMENTS, f16::from_f64);
        let mut master = widen(&weights);
        let mut expected = master.clone();
        let (mut state, mut expected_state) = (rule.state(ELEMENTS), rule.state(ELEMENTS));
        for seed in 2..6 {
            let rows = some_rows(seed);
            let gradient = floats(seed, rows.len() * ROW_ELEMENTS, f16::from_f64);
            let mut target = Target::with_master(&mut master, &mut weights);
            rule.step_rows(&mut state, &mut target, ROW_ELEMENTS, &rows, &gradient).unwrap();
            let mut target = Target::new(&mut expected);
            rule.step_rows(&mut expected_state, &mut target, ROW_ELEMENTS, &rows, &gradient).unwrap();
        }
        let rounded: Vec<f16> = expected.iter().copied().map(f16::from_f32).collect();
        assert_eq!((master, weights, state), (expected, rounded, expected_state), "{rule:?}");
    }
}

#[test]
fn no_rows_are_a_step_all_the_same() {
    let rule = Rule::adam(0.1);
    let (mut state, mut weights) = (rule.state(6), [1.0_f32; 6]);
    rule.step_rows(&mut state, &mut Target::new(&mut weights), 2, &[], &[] as &[f32]).unwrap();
    assert_eq!((state.steps(), weights), (1, [1.0; 6]));
}

#[test]
fn rows_that_are_not_there_are_refused() {
    use ErrorKind::{InvalidArgument, Mismatch, Unsupported};
    for rule in rules() {
        // Six elements; row length, rows, elements of the gradient.
        let wrong: [(usize, &[u64], usize, ErrorKind); 9] = [
            (0, &[0], 0, InvalidArgument),
            (4, &[0], 4, InvalidArgument),
            (2, &[3], 2, InvalidArgument),
            (2, &[0, u64::MAX], 4, InvalidArgument),
            (2, &[1, 1], 4, InvalidArgument),
            (2, &[2, 1], 4, InvalidArgument),
            (2, &[0, 1], 2, Mismatch),
            (2, &[], 2, Mismatch),
            (usize::MAX, &[0], 2, InvalidArgument),
        ];
        for (row_elements, rows, gradient, kind) in wrong {
            let (mut state, mut weights) = (rule.state(6), [1.0_f32; 6]);
            let gradient = vec![1.0_f32; gradient];
            let error = rule.step_rows(&mut state, &mut Target::new(&mut weights), row_elements, rows, &gradient);
            let kind = if rule.needs_norms() { Unsupported } else { kind };
            assert_eq!(error.unwrap_err().kind(), kind, "{rule:?} {row_elements} {rows:?}");
            assert_eq!((state, weights), (rule.state(6), [1.0; 6]));
        }
    }
}
