//! Good placements of problems that are too large to try all.
//!
//! A [`State`] knows what every move of a model costs. From each start a walk takes random moves and swaps unless they
//! cost more than a threshold that falls to nothing (threshold accepting, Dueck and Scheuer 1990: annealing without
//! logarithms, whose last bits machines do not agree on), and [`descent`] then takes whatever is cheaper, until no
//! move, swap, ejection or exchange of devices is.

mod descent;
mod state;

use crate::random::Random;
use crate::terms::Terms;
use state::State;

/// Walks, of which each begins where the best one so far has ended, or at a start.
const WALKS: usize = 6;

/// How often the threshold falls within a walk.
const STAGES: usize = 60;

/// The last threshold of a walk, of the first one.
const COLDEST: f64 = 1e-4;

/// Moves that are tried to find the first threshold.
const SAMPLES: usize = 400;

/// The best placement found from a packing that fits. `effort` is how many moves are tried for each model.
pub(crate) fn search(terms: &Terms, packing: &[usize], effort: u64, seed: u64) -> Vec<usize> {
    let mut random = Random::new(seed);
    let mut best = packing.to_vec();
    let mut best_cost = terms.cost(&best);
    let budget = effort.saturating_mul(terms.models as u64) / WALKS as u64;
    for walk in 0..WALKS {
        // Hot walks from the packing first, then cooler ones from the best placement.
        let (start, heat) = if walk < WALKS / 2 { (packing, 1.0) } else { (&best[..], 0.1) };
        let mut state = State::new(terms, start);
        wander(&mut state, &mut random, heat, budget);
        descent::descend(&mut state);
        let cost = terms.cost(state.device_of());
        if cost < best_cost {
            (best, best_cost) = (state.device_of().to_vec(), cost);
        }
    }
    best
}

fn wander(state: &mut State<'_>, random: &mut Random, heat: f64, budget: u64) {
    let hottest = heat * typical_cost(state, random);
    let fall = power(COLDEST, STAGES);
    let mut threshold = hottest;
    for _ in 0..STAGES {
        // What a step that is taken costs more than one that is not is part of the budget, so that dense connections
        // and many devices shorten the walk and not the patience of the caller.
        let mut left = budget / STAGES as u64;
        while left > 0 {
            left = left.saturating_sub(1 + step(state, random, threshold));
        }
        threshold *= fall;
        state.refresh();
    }
}

/// The number whose power of `exponent` is `base`, which is from 0 to 1, by bisection: the same bits everywhere.
fn power(base: f64, exponent: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle: f64 = (low + high) / 2.0;
        let raised = (0..exponent).fold(1.0, |raised, _| raised * middle);
        if raised < base { low = middle } else { high = middle }
    }
    high
}

/// The mean of what random moves cost, either way.
fn typical_cost(state: &State<'_>, random: &mut Random) -> f64 {
    let mut sum = 0.0;
    for _ in 0..SAMPLES {
        let (model, device) = (random.below(state.terms.models), random.below(state.terms.devices));
        sum += state.move_cost(model, device).abs();
    }
    sum / SAMPLES as f64
}

/// Tries one random move or swap; returns what taking it has cost, in steps that are only tried.
fn step(state: &mut State<'_>, random: &mut Random, threshold: f64) -> u64 {
    let model = random.below(state.terms.models);
    if random.next() & 1 == 0 {
        let device = random.below(state.terms.devices);
        let taken = state.fits(model, device) && state.move_cost(model, device) < threshold;
        if taken && device != state.device(model) {
            return state.apply(model, device);
        }
        return 0;
    }
    let other = random.below(state.terms.models);
    let (one_device, other_device) = (state.device(model), state.device(other));
    if one_device != other_device && state.swap_fits(model, other) && state.swap_cost(model, other) < threshold {
        return state.apply(model, other_device) + state.apply(other, one_device);
    }
    0
}
