//! Sums over sets of models, and the best division of a set along a tree of devices.

use super::tree::{Below, Tree};
use crate::terms::Terms;

/// A set of models, one bit for each.
pub(super) type Set = u32;

/// What is asked of every set.
pub(super) struct Sums {
    bytes: Vec<u64>,
    load: Vec<f64>,
    /// The pulls between models of the set.
    inner: Vec<f64>,
}

impl Sums {
    pub(super) fn new(terms: &Terms) -> Self {
        let count = 1_usize << terms.models;
        let mut sums = Self { bytes: vec![0; count], load: vec![0.0; count], inner: vec![0.0; count] };
        for set in 1..count {
            let (model, rest) = (set.trailing_zeros() as usize, set & (set - 1));
            sums.bytes[set] = sums.bytes[rest] + terms.bytes[model];
            sums.load[set] = sums.load[rest] + terms.work[model];
            let pulls = (0..terms.models).filter(|other| rest >> other & 1 == 1).map(|other| terms.pull(model, other));
            sums.inner[set] = sums.inner[rest] + pulls.sum::<f64>();
        }
        sums
    }

    /// The set of all models.
    pub(super) fn all(&self) -> Set {
        (self.bytes.len() - 1) as Set
    }

    pub(super) fn bytes(&self, set: Set) -> u64 {
        self.bytes[set as usize]
    }

    /// The pulls between two sets without a model in common.
    pub(super) fn between(&self, one: Set, other: Set) -> f64 {
        (self.inner[(one | other) as usize] - self.inner[one as usize] - self.inner[other as usize]).max(0.0)
    }

    /// What a device costs that computes this set.
    pub(super) fn imbalance(&self, terms: &Terms, device: usize, set: Set) -> f64 {
        let difference = self.load[set as usize] - terms.share[device];
        terms.imbalance * difference * difference
    }
}

/// The division of a set of models among the leaves of a tree. Parts of the set are numbered as if it had no gaps.
pub(super) struct Divider<'a> {
    tree: &'a Tree,
    /// The set that each number stands for.
    sets: Vec<Set>,
    /// By part: what the tree's root costs with it; infinite for what does not fit.
    root: Vec<f64>,
    /// By edge and part: the least that dividing the part among the leaves below the edge costs.
    tables: Vec<Vec<f64>>,
}

impl<'a> Divider<'a> {
    /// A device costs its imbalance, and `linear` for each of its models; an edge costs its length for each pull
    /// within `whole` that it parts. Takes `O(3^n)` for each device.
    pub(super) fn new(
        terms: &Terms,
        sums: &Sums,
        whole: Set,
        tree: &'a Tree,
        linear: impl Fn(usize, usize) -> f64,
    ) -> Self {
        let models: Vec<usize> = (0..terms.models).filter(|model| whole >> model & 1 == 1).collect();
        let count = 1_usize << models.len();
        let mut sets: Vec<Set> = vec![0; count];
        for part in 1..count {
            sets[part] = sets[part & (part - 1)] | 1 << models[part.trailing_zeros() as usize];
        }
        let costs = |device: usize| {
            let linear: Vec<f64> = models.iter().map(|&model| linear(model, device)).collect();
            let mut costs = vec![0.0; count];
            for part in 1..count {
                costs[part] = costs[part & (part - 1)] + linear[part.trailing_zeros() as usize];
            }
            for (cost, &set) in costs.iter_mut().zip(&sets) {
                let fits = sums.bytes(set) <= terms.capacity[device];
                *cost = if fits { *cost + sums.imbalance(terms, device, set) } else { f64::INFINITY };
            }
            costs
        };
        let mut tables: Vec<Vec<f64>> = Vec::with_capacity(tree.edges.len());
        for edge in &tree.edges {
            let mut table = match edge.below {
                Below::Leaf(device) => costs(device),
                Below::Fork(one, other) => {
                    let mut table = vec![f64::INFINITY; count];
                    merge(&tables[one], &tables[other], &mut table);
                    table
                }
            };
            for (cost, &set) in table.iter_mut().zip(&sets) {
                *cost += edge.length * sums.between(set, whole & !set);
            }
            tables.push(table);
        }
        let root = costs(tree.root);
        Self { tree, sets, root, tables }
    }

    /// For each set that the root may get, the least that dividing the whole costs then; infinite where none fits.
    pub(super) fn choices(&self) -> impl Iterator<Item = (f64, Set)> {
        let whole = self.sets.len() - 1;
        let others = self.tables.last();
        let alone = move |part: usize| if part == whole { 0.0 } else { f64::INFINITY };
        let rest = move |part: usize| others.map_or_else(|| alone(part), |others| others[whole & !part]);
        (0..=whole).map(move |part| (self.root[part] + rest(part), self.sets[part]))
    }

    /// What each device gets if the root gets this set and the rest is divided at the least cost. Means nothing where
    /// nothing fits.
    pub(super) fn division(&self, set: Set) -> Vec<(usize, Set)> {
        let mut division = vec![(self.tree.root, set)];
        let whole = self.sets.len() - 1;
        let part = self.sets.iter().position(|&other| other == set).unwrap_or(whole);
        let mut open: Vec<(usize, usize)> =
            self.tables.len().checked_sub(1).map(|top| (top, whole & !part)).into_iter().collect();
        while let Some((edge, part)) = open.pop() {
            match self.tree.edges[edge].below {
                Below::Leaf(device) => division.push((device, self.sets[part])),
                Below::Fork(one, other) => {
                    let taken = split(&self.tables[one], &self.tables[other], part).1;
                    open.extend([(one, taken), (other, part & !taken)]);
                }
            }
        }
        division
    }
}

/// Lowers each entry to the least that dividing its part in two costs: three merges of halves, one for each place of
/// the last model, and one of them where it is in neither part.
fn merge(one: &[f64], other: &[f64], least: &mut [f64]) {
    if let (Ok(one), Ok(other)) = (one.try_into(), other.try_into())
        && let Ok(least) = least.try_into()
    {
        return merge_four(one, other, least);
    }
    if least.len() == 1 {
        least[0] = lower(least[0], one[0] + other[0]);
        return;
    }
    let half = least.len() / 2;
    let (without, with) = least.split_at_mut(half);
    merge(&one[..half], &other[..half], without);
    merge(&one[half..], &other[..half], with);
    merge(&one[..half], &other[half..], with);
}

/// The same for two models, without a loop: most of the time is spent here.
fn merge_four(one: &[f64; 4], other: &[f64; 4], least: &mut [f64; 4]) {
    let both = |part: usize, rest: usize| one[part] + other[rest];
    least[0] = lower(least[0], both(0, 0));
    least[1] = lower(least[1], lower(both(0, 1), both(1, 0)));
    least[2] = lower(least[2], lower(both(0, 2), both(2, 0)));
    least[3] = lower(least[3], lower(lower(both(0, 3), both(3, 0)), lower(both(1, 2), both(2, 1))));
}

/// The lower one of two numbers, in one instruction: neither is ever not a number.
fn lower(one: f64, other: f64) -> f64 {
    if one < other { one } else { other }
}

/// The cheapest way to divide a part in two: its cost, and what the first one gets.
fn split(one: &[f64], other: &[f64], part: usize) -> (f64, usize) {
    let (mut least, mut best, mut taken) = (f64::INFINITY, 0, part);
    loop {
        let cost = one[taken] + other[part & !taken];
        if cost < least {
            (least, best) = (cost, taken);
        }
        if taken == 0 {
            return (least, best);
        }
        taken = (taken - 1) & part;
    }
}
