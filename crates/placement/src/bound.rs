//! What no placement can cost less than.
//!
//! **Cuts.** Let each model have a weight, sum 1, and let `s[1] >= s[2] >= …` be the weights that devices hold. Then
//! the pulls that a placement cuts are at least `1/2 Σ_k λ[k] s[k]`, where `0 = λ[1] <= λ[2] <= …` are the eigenvalues
//! of the graph's Laplacian, scaled by the roots of the weights from both sides (Donath and Hoffman 1973): the vectors
//! that say which models a device has are orthogonal. Each cut pull costs at least the shortest distance. Models
//! without weight are eliminated first, as resistors are from a network, which can only make cuts cheaper.
//!
//! **Imbalance.** With complexities as weights, the cost is at least the least of
//! `imbalance * (s[k] - c[k])² + distance / 2 * λ[k] s[k]`, summed over `k`, with the shares `c` sorted too: by
//! exchanging, no other pairing is cheaper. Every placement holds the `k` largest models on at most `k` devices, so
//! `s[1] + … + s[k]` is at least their sum; and none holds more than fits. [`allocation`] solves this convex problem.
//!
//! **Memory.** With bytes as weights, the cut alone is at least what filling the largest devices first leaves. That
//! and the least imbalance make another bound.

use crate::eigen;
use crate::terms::Terms;

/// Models up to which eigenvalues are computed: the time grows with the third power.
const SPECTRUM_MODELS_MAX: usize = 512;

/// The error of an eigenvalue, relative to the largest one, with much room.
const EIGENVALUE_ERROR: f64 = 1e-12;

/// Halvings of the interval of a multiplier.
const HALVINGS: usize = 100;

/// A lower bound of what placements of all models cost that fit.
pub(crate) fn lower_bound(terms: &Terms) -> f64 {
    let ranks = terms.devices;
    let shares = sorted(terms.share.clone());
    let limits = sorted(work_limits(terms));
    let largest: Vec<f64> = sorted(terms.work.clone()).into_iter().chain(std::iter::repeat_n(0.0, ranks)).collect();
    let ranked = |slopes: Vec<f64>| {
        let one =
            |rank: usize| Rank { share: shares[rank], slope: slopes[rank], most: limits[rank], least: largest[rank] };
        let ranks: Vec<Rank> = (0..ranks).map(one).collect();
        allocation(terms.imbalance, &ranks, terms.work.iter().sum())
    };
    let together = ranked(slopes(terms, &terms.work));
    let apart = ranked(vec![0.0; ranks]) + memory_cut(terms);
    let bound = together.max(apart) - EIGENVALUE_ERROR * terms.scale();
    bound.max(0.0)
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(|one, other| other.total_cmp(one));
    values
}

/// For each rank of a device, what a unit of weight on it costs in cuts.
fn slopes(terms: &Terms, weights: &[f64]) -> Vec<f64> {
    let (devices, nothing) = (terms.devices, vec![0.0; terms.devices]);
    let apart = (0..devices * devices).filter(|place| place / devices != place % devices);
    let nearest = apart.map(|place| terms.distance[place]).fold(f64::INFINITY, f64::min);
    if !(nearest.is_finite() && nearest > 0.0) || terms.models > SPECTRUM_MODELS_MAX {
        return nothing;
    }
    let (pull, weights) = eliminated(terms, weights);
    let size = weights.len();
    let mut matrix = vec![0.0; size * size];
    for one in 0..size {
        let volume: f64 = pull[one * size..][..size].iter().sum();
        for other in 0..size {
            let value = if one == other { volume } else { -pull[one * size + other] };
            matrix[one * size + other] = value / (weights[one] * weights[other]).sqrt();
        }
    }
    if matrix.iter().any(|value| !value.is_finite()) {
        return nothing;
    }
    let (values, largest) = eigen::smallest(matrix, size, devices);
    let slope = |value: f64| nearest / 2.0 * (value - EIGENVALUE_ERROR * largest).max(0.0);
    values.into_iter().map(slope).chain(nothing).take(devices).collect()
}

/// The pulls between models that have a weight, and the weights, once all others are where it costs least.
fn eliminated(terms: &Terms, weights: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let (models, mut pull) = (terms.models, terms.pull.clone());
    let mut left: Vec<usize> = (0..models).collect();
    for gone in (0..models).filter(|&model| weights[model] == 0.0) {
        left.retain(|&model| model != gone);
        let volume: f64 = left.iter().map(|&other| pull[gone * models + other]).sum();
        if volume == 0.0 {
            continue;
        }
        for &one in &left {
            let share = pull[gone * models + one] / volume;
            for &other in left.iter().filter(|&&other| other != one) {
                pull[one * models + other] += share * pull[gone * models + other];
            }
        }
    }
    let kept = left.iter().flat_map(|&one| left.iter().map(move |&other| (one, other)));
    let pull = kept.map(|(one, other)| pull[one * models + other]).collect();
    (pull, left.iter().map(|&model| weights[model]).collect())
}

/// For each device, the most work that its memory can hold, with models in fractions.
fn work_limits(terms: &Terms) -> Vec<f64> {
    let mut order: Vec<usize> = (0..terms.models).collect();
    let density = |model: usize| terms.work[model] / terms.bytes[model] as f64;
    let densities: Vec<f64> =
        (0..terms.models).map(density).map(|value| if value.is_nan() { 0.0 } else { value }).collect();
    order.sort_by(|&one, &other| densities[other].total_cmp(&densities[one]));
    let limit = |&capacity: &u64| {
        let (mut free, mut work) = (capacity, 0.0);
        for &model in &order {
            if terms.bytes[model] <= free {
                free -= terms.bytes[model];
                work += terms.work[model];
            } else {
                return work + free as f64 * densities[model];
            }
        }
        work
    };
    // Rounded up: what it bounds is summed in another order.
    terms.capacity.iter().map(limit).map(|work: f64| work * (1.0 + 1e-9)).collect()
}

/// The least that the pulls cost which memory forces to be cut.
fn memory_cut(terms: &Terms) -> f64 {
    let total: u64 = terms.bytes.iter().sum();
    if total == 0 {
        return 0.0;
    }
    let weights: Vec<f64> = terms.bytes.iter().map(|&bytes| bytes as f64 / total as f64).collect();
    let capacities = sorted(terms.capacity.iter().map(|&capacity| capacity as f64 / total as f64).collect());
    let (mut left, mut cost) = (1.0, 0.0);
    for (capacity, slope) in capacities.into_iter().zip(slopes(terms, &weights)) {
        let filled = f64::min(capacity, left);
        left -= filled;
        cost += slope * filled;
    }
    cost
}

/// The device that holds the k-th most work.
#[derive(Clone, Copy)]
struct Rank {
    share: f64,
    slope: f64,
    /// The most that it holds.
    most: f64,
    /// It and those before it hold at least the sum of these.
    least: f64,
}

/// The least of `Σ_k imbalance * (s[k] - share[k])² + slope[k] * s[k]` over numbers `s` from 0 to `most[k]` whose sum
/// is `total` and whose first `k` sum up to at least the first `k` of `least`.
///
/// Solved without the last condition; where the solution violates it most, it holds with equality in the optimum, and
/// the problem falls into two (the decomposition of separable convex problems over base polytopes, Fujishige 1980).
fn allocation(imbalance: f64, ranks: &[Rank], total: f64) -> f64 {
    let mut cost = 0.0;
    let mut problems = vec![(0..ranks.len(), total)];
    while let Some((range, total)) = problems.pop() {
        let (numbers, least) = resources(imbalance, &ranks[range.clone()], total);
        let (mut sum, mut needed, mut worst) = (0.0, 0.0, (1e-12, 0, 0.0));
        for (place, number) in numbers.iter().enumerate().take(numbers.len().saturating_sub(1)) {
            sum += number;
            needed += ranks[range.start + place].least;
            let lacking = f64::min(needed, total) - sum;
            if lacking > worst.0 {
                worst = (lacking, place + 1, f64::min(needed, total));
            }
        }
        if worst.1 == 0 {
            cost += least;
            continue;
        }
        let middle = range.start + worst.1;
        problems.push((range.start..middle, worst.2));
        problems.push((middle..range.end, total - worst.2));
    }
    cost
}

/// The same with the sum as the only condition: the numbers, and a bound from below of what they cost, by Lagrange.
fn resources(imbalance: f64, ranks: &[Rank], total: f64) -> (Vec<f64>, f64) {
    let number = |rank: &Rank, multiplier: f64| {
        let reduced = rank.slope - multiplier;
        let free = rank.share - reduced / (2.0 * imbalance);
        if free.is_nan() { 0.0 } else { free.clamp(0.0, rank.most) }
    };
    let steepest = ranks.iter().map(|rank| rank.slope).fold(0.0, f64::max);
    let (mut low, mut high) = (-2.0 * imbalance, steepest + 2.0 * imbalance);
    for _ in 0..HALVINGS {
        let middle = low + (high - low) / 2.0;
        let sum: f64 = ranks.iter().map(|rank| number(rank, middle)).sum();
        if sum < total { low = middle } else { high = middle }
    }
    let numbers: Vec<f64> = ranks.iter().map(|rank| number(rank, high)).collect();
    let cost = |(rank, number): (&Rank, &f64)| {
        imbalance * (number - rank.share) * (number - rank.share) + (rank.slope - high) * number
    };
    let least = ranks.iter().zip(&numbers).map(cost).sum::<f64>() + high * total;
    (numbers, least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::{Problem, pack, search};

    /// Any problem whose models fit wherever they are put, or just so.
    fn problem(random: &mut Random) -> Problem {
        let (models, devices) = (1 + random.below(6), 1 + random.below(4));
        let sizes: Vec<u64> = (0..models).map(|_| random.below(9) as u64).collect();
        let most = sizes.iter().sum::<u64>();
        let each = if random.below(2) == 0 { most } else { most / devices as u64 + 4 };
        let mut problem = Problem::uniform(&sizes, &vec![each; devices]);
        problem.model_complexity.iter_mut().for_each(|work| *work = random.below(5) as f64);
        problem.device_complexity.iter_mut().for_each(|work| *work = random.below(5) as f64);
        for place in 0..models * models {
            problem.connections[place] = random.below(9).saturating_sub(random.below(9)) as f64;
        }
        for one in 0..devices {
            for other in 0..one {
                let distance = 1.0 + random.below(4) as f64;
                problem.distances[one * devices + other] = distance;
                problem.distances[other * devices + one] = distance;
            }
        }
        problem.weights.connection = [0.0, 0.1, 1.0, 20.0][random.below(4)];
        problem
    }

    fn least(terms: &Terms) -> Option<f64> {
        let count = terms.devices.pow(terms.models as u32);
        let device_of = |number: usize| -> Vec<usize> {
            (0..terms.models).map(|model| number / terms.devices.pow(model as u32) % terms.devices).collect()
        };
        let fits =
            |device_of: &Vec<usize>| terms.used(device_of).iter().zip(&terms.capacity).all(|(used, all)| used <= all);
        (0..count).map(device_of).filter(fits).map(|device_of| terms.cost(&device_of)).reduce(f64::min)
    }

    #[test]
    fn the_bound_is_below_and_the_search_is_near() {
        let mut random = Random::new(1);
        let (mut tight, mut met) = (0, 0);
        for round in 0..400 {
            let problem = problem(&mut random);
            problem.check().unwrap();
            let terms = Terms::new(&problem);
            let Some(least) = least(&terms) else { continue };
            let bound = lower_bound(&terms);
            assert!(bound <= least, "{bound:e} is above {least:e}: {problem:?}");
            tight += usize::from(bound > 0.5 * least);
            let Ok(packing) = pack::pack(&terms, round) else { continue };
            let found = terms.cost(&search::search(&terms, &packing, 500, round));
            assert!(found >= least * (1.0 - 1e-12) - 1e-15, "{found:e} is below {least:e}");
            met += usize::from(found <= least * (1.0 + 1e-9) + 1e-15);
        }
        assert!(tight > 110 && met > 370, "{tight} bounds are near, {met} optima were found");
    }
}
