//! The optimum of a small problem, by branch and bound.
//!
//! A node of the search gives whole sets of models to the first devices of an order; a branch gives the next device its
//! set. What makes this fast is a bound that is often the truth. Let the devices be the leaves of a tree whose paths
//! are at most as long as the distances between them. Then an edge costs its length for each pull between the models
//! below it and the others, which is a function of the *set* of models below it, and the best division of the models
//! among all leaves is found from below in `O(m 3^n)`, by dynamic programming over sets ([`subsets`]). Where distances
//! are those of a tree, the bound is exact, and the search is over when it has begun: if all devices are equally far
//! apart, if one of them is farther from all, if they belong to hosts, or if there are three.
//!
//! The tree hangs at the next device of the order, so that one such computation bounds all branches of a node. Pulls to
//! sets that are fixed already have their true distances.

mod subsets;
mod tree;

use crate::terms::Terms;
use subsets::{Divider, Set, Sums};
use tree::Tree;

/// What differences of costs are put down to rounding: relative to the cost, and to what costs may be at all.
const RELATIVE: f64 = 1e-12;
const ABSOLUTE: f64 = 1e-16;

/// The best placement, up to rounding; none if none fits. `known` is a placement to begin with.
pub(crate) fn solve(terms: &Terms, known: Option<Vec<usize>>) -> Option<Vec<usize>> {
    let weights = known.as_ref().map_or_else(|| vec![1.0; terms.distance.len()], |known| flows(terms, known));
    let order = ordered(terms, &weights);
    let trees: Vec<Tree> = (0..order.len()).map(|level| Tree::new(terms, &order[level..], &weights)).collect();
    let slack = trees.iter().map(|tree| slack(terms, tree)).collect();
    let best_cost = known.as_ref().map_or(f64::INFINITY, |known| terms.cost(known));
    let sums = Sums::new(terms);
    let all = sums.all();
    let mut search = Search { terms, trees: &trees, slack, order, sums, best: known, best_cost };
    search.visit(&mut Vec::new(), 0.0, all);
    search.best
}

/// The pulls between devices in a good placement, and a tenth of their mean: where the bound should be near the truth.
fn flows(terms: &Terms, known: &[usize]) -> Vec<f64> {
    let mean = terms.pull.iter().sum::<f64>() / terms.distance.len() as f64;
    let mut flows = vec![if mean > 0.0 { mean / 10.0 } else { 1.0 }; terms.distance.len()];
    for one in 0..terms.models {
        for other in 0..terms.models {
            flows[known[one] * terms.devices + known[other]] += terms.pull(one, other);
        }
    }
    flows
}

/// How much farther devices are apart than they are in a tree, by device and device.
fn slack(terms: &Terms, tree: &Tree) -> Vec<f64> {
    let paths = tree.paths(terms.devices);
    terms.distance.iter().zip(paths).map(|(distance, path)| (distance - path).max(0.0)).collect()
}

/// Those devices first that spoil the bound most: what is fixed is exact. Devices that are alike stand together.
fn ordered(terms: &Terms, weights: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..terms.devices).collect();
    let lost: Vec<f64> = slack(terms, &Tree::new(terms, &order, weights))
        .iter()
        .zip(weights)
        .map(|(slack, weight)| slack * weight)
        .collect();
    let spoils = |device: usize| lost[device * terms.devices..][..terms.devices].iter().sum::<f64>();
    order.sort_by(|&one, &other| spoils(other).total_cmp(&spoils(one)));
    let mut grouped: Vec<usize> = Vec::new();
    for device in order {
        let place = grouped.iter().rposition(|&other| terms.are_alike(device, other));
        grouped.insert(place.map_or(grouped.len(), |place| place + 1), device);
    }
    grouped
}

struct Search<'a> {
    terms: &'a Terms,
    order: Vec<usize>,
    /// By level: the tree of the devices from there on.
    trees: &'a [Tree],
    /// By level: how much farther apart they are than in that tree.
    slack: Vec<Vec<f64>>,
    sums: Sums,
    best: Option<Vec<usize>>,
    best_cost: f64,
}

impl Search<'_> {
    /// Costs from here on are not worth looking for.
    fn limit(&self) -> f64 {
        match self.best {
            Some(_) => self.best_cost - RELATIVE * self.best_cost - ABSOLUTE * self.terms.scale(),
            None => f64::INFINITY,
        }
    }

    /// All divisions that begin with `sets`, which cost `fixed`, and divide `rest` among the devices left.
    fn visit(&mut self, sets: &mut Vec<Set>, fixed: f64, rest: Set) {
        let level = sets.len();
        let (order, devices) = (&self.order, self.terms.devices);
        let linear = |model: usize, device: usize| {
            let to =
                |(at, &set): (usize, &Set)| self.terms.distance(order[at], device) * self.sums.between(1 << model, set);
            sets.iter().enumerate().map(to).sum::<f64>()
        };
        let divider = Divider::new(self.terms, &self.sums, rest, &self.trees[level], linear);
        let mut branches: Vec<(f64, Set)> = divider.choices().map(|(cost, set)| (fixed + cost, set)).collect();
        branches.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        // The division that the bound stands for may be the best so far.
        if branches[0].0 < self.limit() {
            self.offer(sets, &divider.division(branches[0].1));
        }
        if level + 1 == self.order.len() {
            return;
        }
        let device = self.order[level];
        // Of divisions that differ by the names of devices that are alike, one is enough.
        let last = level.checked_sub(1).filter(|&last| self.terms.are_alike(self.order[last], device));
        let slack = self.order[level + 1..].iter().map(|&other| self.slack[level][device * devices + other]);
        let slack = slack.fold(f64::INFINITY, f64::min);
        for (bound, set) in branches {
            if bound >= self.limit() {
                return;
            }
            let after = rest & !set;
            let is_worse = bound + slack * self.sums.between(set, after) >= self.limit();
            if is_worse || last.is_some_and(|last| set > sets[last]) {
                continue;
            }
            let fixed = fixed + self.added(sets, device, set);
            sets.push(set);
            self.visit(sets, fixed, after);
            sets.pop();
        }
    }

    /// What a set on the next device costs, with its pulls to the sets that are fixed.
    fn added(&self, sets: &[Set], device: usize, set: Set) -> f64 {
        let to =
            |(at, &other): (usize, &Set)| self.terms.distance(self.order[at], device) * self.sums.between(set, other);
        self.sums.imbalance(self.terms, device, set) + sets.iter().enumerate().map(to).sum::<f64>()
    }

    /// A division that fits: `sets` on the first devices, and the rest.
    fn offer(&mut self, sets: &[Set], rest: &[(usize, Set)]) {
        let mut device_of = vec![0; self.terms.models];
        for (device, set) in self.order.iter().copied().zip(sets.iter().copied()).chain(rest.iter().copied()) {
            for (model, place) in device_of.iter_mut().enumerate() {
                if set >> model & 1 == 1 {
                    *place = device;
                }
            }
        }
        let cost = self.terms.cost(&device_of);
        if cost < self.limit() {
            (self.best_cost, self.best) = (cost, Some(device_of));
        }
    }
}
