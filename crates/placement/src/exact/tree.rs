//! Trees whose paths bound distances from below.

use crate::random::Random;
use crate::terms::Terms;

/// A set of devices, one bit for each place in a list of them.
type Places = u32;

/// A tree whose leaves are devices, hung up at the first of them. It is what its edges do: each parts the devices below
/// it from the others. The sum of those that part two devices is at most their distance.
pub(super) struct Tree {
    /// The leaf at which it hangs.
    pub(super) root: usize,
    /// Those below before those above; the last one parts the root from all others.
    pub(super) edges: Vec<Edge>,
}

/// An edge, and what is below it.
pub(super) struct Edge {
    /// Its length. It may be negative: only sums matter.
    pub(super) length: f64,
    pub(super) below: Below,
}

/// A device, or the two edges that meet there.
pub(super) enum Below {
    Leaf(usize),
    Fork(usize, usize),
}

/// A tree under construction: of each edge, the places that it parts from the first one.
#[derive(Clone)]
struct Splits<'a> {
    terms: &'a Terms,
    devices: &'a [usize],
    edges: Vec<(Places, f64)>,
}

/// Which clusters are joined first: those of which two devices are nearest, or those that are nearest on average.
#[derive(Clone, Copy)]
enum Linkage {
    Nearest,
    Average,
}

/// Random orders in which the edges of a tree are lengthened, besides two that are good for hosts and for stars.
const ORDERS: usize = 10;

impl Tree {
    /// Of some trees the one whose paths are longest in all, weighted by a number for each two devices. It is the truth
    /// where distances are those of a tree whose leaves are equally deep, such as hosts of devices, or of a star.
    pub(super) fn new(terms: &Terms, devices: &[usize], weights: &[f64]) -> Self {
        let mut random = Random::new(0);
        let mut best: Option<(f64, Splits<'_>)> = None;
        for linkage in [Linkage::Nearest, Linkage::Average] {
            let clustered = Splits::clustered(terms, devices, linkage);
            for start in [clustered.clone(), clustered.clone().starlike(), clustered.flat()] {
                for order in start.orders(&mut random) {
                    let raised = start.clone().raised(&order);
                    let weight = |one: usize, other: usize| weights[devices[one] * terms.devices + devices[other]];
                    let length = |(one, other)| weight(one, other) * raised.path(one, other);
                    let length = raised.pairs().map(length).sum();
                    if best.as_ref().is_none_or(|best| length > best.0) {
                        best = Some((length, raised));
                    }
                }
            }
        }
        let splits = best.map(|best| best.1.edges).unwrap_or_default();
        Self { root: devices[0], edges: edges(splits, devices) }
    }

    /// The sum of the edges that part two devices, for all of them, in a matrix by device.
    pub(super) fn paths(&self, devices: usize) -> Vec<f64> {
        let mut below: Vec<Vec<usize>> = Vec::new();
        let mut paths = vec![0.0; devices * devices];
        for edge in &self.edges {
            let leaves = match edge.below {
                Below::Leaf(device) => vec![device],
                Below::Fork(one, other) => [&below[one][..], &below[other][..]].concat(),
            };
            for (place, path) in paths.iter_mut().enumerate() {
                if leaves.contains(&(place / devices)) != leaves.contains(&(place % devices)) {
                    *path += edge.length;
                }
            }
            below.push(leaves);
        }
        paths
    }
}

/// Edges that say what is below them: sets without the first place, each of which contains others or is apart.
fn edges(mut splits: Vec<(Places, f64)>, devices: &[usize]) -> Vec<Edge> {
    splits.sort_by_key(|&(places, _)| (places.count_ones(), places));
    let mut edges: Vec<Edge> = Vec::new();
    // The edges that are below no other one yet.
    let mut open: Vec<usize> = Vec::new();
    for (number, &(places, length)) in splits.iter().enumerate() {
        let is_below = |&edge: &usize| splits[edge].0 & places != 0;
        let below = match open.iter().copied().filter(is_below).collect::<Vec<_>>()[..] {
            [one, other] => Below::Fork(one, other),
            _ => Below::Leaf(devices[places.trailing_zeros() as usize]),
        };
        open.retain(|edge| !is_below(edge));
        open.push(number);
        edges.push(Edge { length, below });
    }
    edges
}

impl<'a> Splits<'a> {
    /// Clusters from below. Two devices are as far apart as the nearest two of the clusters that are joined when they
    /// come together.
    fn clustered(terms: &'a Terms, devices: &'a [usize], linkage: Linkage) -> Self {
        let all: Places = (1 << devices.len()) - 1;
        let mut splits = Self { terms, devices, edges: Vec::new() };
        // With twice the depth of its leaves.
        let mut clusters: Vec<(Places, f64)> = (0..devices.len()).map(|place| (1 << place, 0.0)).collect();
        while clusters.len() > 1 {
            let pairs = (0..clusters.len()).flat_map(|one| (0..one).map(move |other| (other, one)));
            let far = |&(one, other): &(usize, usize)| splits.far(clusters[one].0, clusters[other].0, linkage);
            let Some((one, other)) = pairs.min_by(|one, other| far(one).total_cmp(&far(other))) else { break };
            let (second, first) = (clusters.remove(other), clusters.remove(one));
            let depth = splits.far(first.0, second.0, Linkage::Nearest);
            for (places, own_depth) in [first, second] {
                let places = if places & 1 == 1 { all & !places } else { places };
                let length = (depth - own_depth) / 2.0;
                match splits.edges.iter_mut().find(|edge| edge.0 == places) {
                    Some(edge) => edge.1 += length,
                    None => splits.edges.push((places, length)),
                }
            }
            clusters.push((first.0 | second.0, depth));
        }
        splits
    }

    fn far(&self, one: Places, other: Places, linkage: Linkage) -> f64 {
        let has = |places: Places, place: usize| places >> place & 1 == 1;
        let between = |&(first, second): &(usize, usize)| {
            has(one, first) && has(other, second) || has(one, second) && has(other, first)
        };
        let distances = self.pairs().filter(between).map(|(first, second)| self.distance(first, second));
        match linkage {
            Linkage::Nearest => distances.fold(f64::INFINITY, f64::min),
            Linkage::Average => distances.sum::<f64>() / f64::from(one.count_ones() * other.count_ones()),
        }
    }

    /// The same edges with the lengths of a star: those between forks are nothing, and those at leaves half of the
    /// shortest detour over the leaf, or of the shortest way where there are only two.
    fn starlike(mut self) -> Self {
        let rays: Vec<f64> = (0..self.devices.len()).map(|place| self.ray(place)).collect();
        let all: Places = (1 << self.devices.len()) - 1;
        for edge in 0..self.edges.len() {
            let places = self.edges[edge].0;
            let [below, above] = [places, all & !places]
                .map(|side| if side.count_ones() == 1 { rays[side.trailing_zeros() as usize] } else { 0.0 });
            self.edges[edge].1 = below + above;
        }
        self
    }

    fn ray(&self, place: usize) -> f64 {
        let others = || (0..self.devices.len()).filter(|&other| other != place);
        let nearest = others().map(|other| self.distance(place, other) / 2.0).fold(f64::INFINITY, f64::min);
        let pairs = self.pairs().filter(|&(one, other)| one != place && other != place);
        let detour = |(one, other)| self.distance(place, one) + self.distance(place, other) - self.distance(one, other);
        pairs.map(|pair| detour(pair) / 2.0).reduce(f64::min).unwrap_or(nearest)
    }

    /// The same edges without any length.
    fn flat(mut self) -> Self {
        self.edges.iter_mut().for_each(|edge| edge.1 = 0.0);
        self
    }

    /// Orders of the edges: leaves first, leaves last, and some by chance.
    fn orders(&self, random: &mut Random) -> Vec<Vec<usize>> {
        let count = self.devices.len() as u32;
        let is_leaf = |&edge: &usize| [1, count - 1].contains(&self.edges[edge].0.count_ones());
        let (leaves, forks): (Vec<usize>, Vec<usize>) = (0..self.edges.len()).partition(is_leaf);
        let mut orders = vec![[&leaves[..], &forks].concat(), [&forks[..], &leaves].concat()];
        for _ in 0..ORDERS {
            let mut order: Vec<usize> = (0..self.edges.len()).collect();
            for place in 1..order.len() {
                order.swap(place, random.below(place + 1));
            }
            orders.push(order);
        }
        orders
    }

    /// Lengthens each edge as far as distances let it.
    fn raised(mut self, order: &[usize]) -> Self {
        for &edge in order {
            let places = self.edges[edge].0;
            let parted = self.pairs().filter(|&(one, other)| (places >> one ^ places >> other) & 1 == 1);
            let room = parted.map(|(one, other)| self.distance(one, other) - self.path(one, other));
            self.edges[edge].1 += room.fold(f64::INFINITY, f64::min).max(0.0);
        }
        self
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        (0..self.devices.len()).flat_map(|one| (0..one).map(move |other| (one, other)))
    }

    fn distance(&self, one: usize, other: usize) -> f64 {
        self.terms.distance(self.devices[one], self.devices[other])
    }

    fn path(&self, one: usize, other: usize) -> f64 {
        let parts = |places: Places| (places >> one ^ places >> other) & 1 == 1;
        self.edges.iter().filter(|edge| parts(edge.0)).map(|edge| edge.1).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Problem;

    /// The distances of a problem, as shares, and the paths of the tree of all its devices.
    fn both(devices: usize, distance: impl Fn(usize, usize) -> f64) -> (Vec<f64>, Vec<f64>) {
        let mut problem = Problem::uniform(&[], &vec![1; devices]);
        for one in 0..devices {
            for other in 0..one {
                problem.distances[one * devices + other] = distance(one, other);
                problem.distances[other * devices + one] = distance(one, other);
            }
        }
        problem.check().unwrap();
        let terms = Terms::new(&problem);
        let order: Vec<usize> = (0..devices).rev().collect();
        let tree = Tree::new(&terms, &order, &vec![1.0; devices * devices]);
        assert_eq!((tree.root, tree.edges.len()), (devices - 1, (2 * devices - 3).max(1)));
        (terms.distance.clone(), tree.paths(devices))
    }

    fn assert_same((distances, paths): (Vec<f64>, Vec<f64>)) {
        for (distance, path) in distances.iter().zip(&paths) {
            assert!((distance - path).abs() < 1e-15, "{distances:?} {paths:?}");
        }
    }

    #[test]
    fn hosts_and_stars_are_trees() {
        assert_same(both(2, |_, _| 3.0));
        assert_same(both(3, |one, other| [3.0, 4.0, 5.0][one + other - 1]));
        assert_same(both(8, |_, _| 1.0));
        assert_same(both(8, |one, other| if one / 4 == other / 4 { 1.0 } else { 10.0 }));
        assert_same(both(7, |one, other| if one / 2 == other / 2 { 1.0 } else { 4.0 }));
        // A host of a processor with four devices: the processor is far from all.
        assert_same(both(5, |one, other| if one.min(other) == 0 { 10.0 } else { 1.0 }));
        assert_same(both(6, |one, other| (one + other) as f64 + 2.0));
    }

    #[test]
    fn paths_are_never_longer_than_distances() {
        let mut random = Random::new(3);
        for round in 0..200 {
            let devices = 2 + round % 7;
            let numbers: Vec<f64> = (0..64).map(|_| random.below(100) as f64).collect();
            let (distances, paths) = both(devices, |one, other| numbers[one * 8 + other] + 1.0);
            for (distance, path) in distances.iter().zip(&paths) {
                assert!(path <= &(distance + 1e-15), "{distances:?} {paths:?}");
            }
            // No edge can be lengthened alone, so each device has a path that is the truth, and the one to itself.
            let true_paths = distances.iter().zip(&paths).filter(|(distance, path)| (*distance - *path).abs() < 1e-15);
            assert!(true_paths.count() >= 2 * devices, "{distances:?} {paths:?}");
        }
    }
}
