//! A placement, and what changing it would cost.

use crate::terms::Terms;

/// Numbers that one step of the vector unit adds, roughly, in the time in which a move is tried.
const ADDED_AT_ONCE: usize = 32;

/// A placement that fits, with what each model pays on each device.
pub(super) struct State<'a> {
    pub(super) terms: &'a Terms,
    device_of: Vec<usize>,
    /// By device: its load less its share.
    excess: Vec<f64>,
    free: Vec<u64>,
    /// By model and device: what its connections would cost there.
    links: Vec<f64>,
    /// By model: those that it is connected with, and by how much.
    peers: Vec<Vec<(usize, f64)>>,
}

impl<'a> State<'a> {
    pub(super) fn new(terms: &'a Terms, device_of: &[usize]) -> Self {
        let peers = |model: usize| {
            let row = terms.pull[model * terms.models..][..terms.models].iter().copied().enumerate();
            row.filter(|&(_, pull)| pull > 0.0).collect()
        };
        let used = terms.used(device_of);
        let mut state = Self {
            terms,
            device_of: device_of.to_vec(),
            excess: Vec::new(),
            free: terms.capacity.iter().zip(used).map(|(capacity, used)| capacity - used).collect(),
            links: Vec::new(),
            peers: (0..terms.models).map(peers).collect(),
        };
        state.refresh();
        state
    }

    /// Sums everything anew, so that rounding errors do not add up.
    pub(super) fn refresh(&mut self) {
        let (terms, devices) = (self.terms, self.terms.devices);
        let loads = terms.loads(&self.device_of);
        self.excess = loads.iter().zip(&terms.share).map(|(load, share)| load - share).collect();
        self.links = vec![0.0; terms.models * devices];
        for (row, peers) in self.links.chunks_exact_mut(devices).zip(&self.peers) {
            for &(other, pull) in peers {
                let distances = &terms.distance[self.device_of[other] * devices..][..devices];
                row.iter_mut().zip(distances).for_each(|(link, distance)| *link += pull * distance);
            }
        }
    }

    pub(super) fn device_of(&self) -> &[usize] {
        &self.device_of
    }

    pub(super) fn device(&self, model: usize) -> usize {
        self.device_of[model]
    }

    pub(super) fn link(&self, model: usize, device: usize) -> f64 {
        self.links[model * self.terms.devices + device]
    }

    pub(super) fn fits(&self, model: usize, device: usize) -> bool {
        self.terms.bytes[model] <= self.free[device]
    }

    /// Whether a model fits where another one leaves.
    pub(super) fn fits_in_place_of(&self, model: usize, other: usize) -> bool {
        self.terms.bytes[model] <= self.free[self.device_of[other]] + self.terms.bytes[other]
    }

    pub(super) fn swap_fits(&self, one: usize, other: usize) -> bool {
        self.fits_in_place_of(one, other) && self.fits_in_place_of(other, one)
    }

    /// What moving work between two devices costs.
    pub(super) fn shift_cost(&self, work: f64, from: usize, to: usize) -> f64 {
        2.0 * self.terms.imbalance * work * (self.excess[to] - self.excess[from] + work)
    }

    /// What moving a model costs; negative if that is better.
    pub(super) fn move_cost(&self, model: usize, device: usize) -> f64 {
        let from = self.device_of[model];
        if from == device {
            return 0.0;
        }
        let connection = self.link(model, device) - self.link(model, from);
        connection + self.shift_cost(self.terms.work[model], from, device)
    }

    /// What two models on different devices cost if they change places.
    pub(super) fn swap_cost(&self, one: usize, other: usize) -> f64 {
        let (here, there) = (self.device_of[one], self.device_of[other]);
        let moved = self.link(one, there) - self.link(one, here) + self.link(other, here) - self.link(other, there);
        // They are as far from each other as before; the links count each as moving towards the other.
        let between = 2.0 * self.terms.pull(one, other) * self.terms.distance(here, there);
        moved + between + self.shift_cost(self.terms.work[one] - self.terms.work[other], here, there)
    }

    /// What it costs if a model takes the place of another one, which goes to a third device.
    pub(super) fn eject_cost(&self, model: usize, other: usize, device: usize) -> f64 {
        let (here, there) = (self.device_of[model], self.device_of[other]);
        let (work, moved) = (self.terms.work[model], self.terms.work[other]);
        let first = self.link(other, device) - self.link(other, there) + self.shift_cost(moved, there, device);
        let second = self.link(model, there) - self.link(model, here);
        let distance = |one, other| self.terms.distance(one, other);
        let nearer = distance(there, device) - distance(there, there) - distance(here, device) + distance(here, there);
        let shift = self.excess[there] - moved - self.excess[here] + work;
        first + second + self.terms.pull(model, other) * nearer + 2.0 * self.terms.imbalance * work * shift
    }

    /// Moves a model, whether or not it fits at this moment; it does once all moves of a change are made. Returns how
    /// many steps could have been tried meanwhile.
    pub(super) fn apply(&mut self, model: usize, device: usize) -> u64 {
        let (terms, devices) = (self.terms, self.terms.devices);
        let from = std::mem::replace(&mut self.device_of[model], device);
        self.excess[from] -= terms.work[model];
        self.excess[device] += terms.work[model];
        self.free[from] = self.free[from].wrapping_add(terms.bytes[model]);
        self.free[device] = self.free[device].wrapping_sub(terms.bytes[model]);
        let (left, reached) = (&terms.distance[from * devices..], &terms.distance[device * devices..]);
        for &(other, pull) in &self.peers[model] {
            let row = &mut self.links[other * devices..][..devices];
            for ((link, left), reached) in row.iter_mut().zip(left).zip(reached) {
                *link += pull * (reached - left);
            }
        }
        (self.peers[model].len() * devices / ADDED_AT_ONCE) as u64
    }

    /// Whether every model of two devices fits on the other one.
    pub(super) fn exchange_fits(&self, one: usize, other: usize) -> bool {
        let used = |device: usize| self.terms.capacity[device] - self.free[device];
        used(one) <= self.terms.capacity[other] && used(other) <= self.terms.capacity[one]
    }

    /// What two devices cost if they exchange all their models.
    pub(super) fn exchange_cost(&self, one: usize, other: usize) -> f64 {
        let terms = self.terms;
        let mut cost = 0.0;
        for model in 0..terms.models {
            let here = self.device_of[model];
            if here != one && here != other {
                continue;
            }
            let there = if here == one { other } else { one };
            cost += self.link(model, there) - self.link(model, here);
            // Models that move together, or past each other, stay as far apart as they were.
            for &(peer, pull) in &self.peers[model] {
                if self.device_of[peer] == here {
                    cost -= pull * terms.distance(one, other);
                } else if self.device_of[peer] == there {
                    cost += pull * terms.distance(one, other);
                }
            }
        }
        let load = |device: usize| self.excess[device] + terms.share[device];
        cost + self.shift_cost(load(one) - load(other), one, other)
    }

    /// Exchanges all models of two devices.
    pub(super) fn exchange(&mut self, one: usize, other: usize) {
        for model in 0..self.terms.models {
            let here = self.device_of[model];
            if here == one || here == other {
                self.apply(model, if here == one { other } else { one });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn terms(random: &mut Random) -> Terms {
        let (models, devices) = (9, 4);
        let mut number = |most: usize| random.below(most) as f64 + 1.0;
        let mut problem = crate::Problem::uniform(&[1; 9], &[9; 4]);
        problem.model_complexity = (0..models).map(|_| number(9)).collect();
        problem.device_complexity = (0..devices).map(|_| number(5)).collect();
        for one in 0..models {
            for other in 0..models {
                let amount = number(6) - 3.0;
                problem.connect(one, other, amount.max(0.0));
            }
        }
        for one in 0..devices {
            for other in 0..one {
                let distance = number(9);
                problem.distances[one * devices + other] = distance;
                problem.distances[other * devices + one] = distance;
            }
        }
        problem.weights.connection = 2.0;
        problem.check().unwrap();
        Terms::new(&problem)
    }

    /// What a change said it costs, and what it did cost.
    fn check(state: &mut State<'_>, said: f64, change: impl FnOnce(&mut State<'_>)) {
        let before = state.terms.cost(state.device_of());
        change(state);
        let rose = state.terms.cost(state.device_of()) - before;
        assert!((rose - said).abs() < 1e-12, "said {said}, rose by {rose}");
    }

    #[test]
    fn every_change_costs_what_it_says() {
        let mut random = Random::new(7);
        for _ in 0..200 {
            let terms = terms(&mut random);
            let device_of: Vec<usize> = (0..terms.models).map(|_| random.below(terms.devices)).collect();
            let mut state = State::new(&terms, &device_of);
            for _ in 0..20 {
                let (model, device) = (random.below(terms.models), random.below(terms.devices));
                let said = state.move_cost(model, device);
                check(&mut state, said, |state| _ = state.apply(model, device));
                let other = random.below(terms.models);
                let (here, there) = (state.device(model), state.device(other));
                if here != there {
                    let said = state.swap_cost(model, other);
                    check(&mut state, said, |state| _ = state.apply(model, there) + state.apply(other, here));
                }
                let (here, there) = (state.device(model), state.device(other));
                if here != there && device != here && device != there {
                    let said = state.eject_cost(model, other, device);
                    check(&mut state, said, |state| _ = state.apply(other, device) + state.apply(model, there));
                }
                let (one, other) = (random.below(terms.devices), random.below(terms.devices));
                if one != other {
                    let said = state.exchange_cost(one, other);
                    check(&mut state, said, |state| state.exchange(one, other));
                }
            }
            let used = terms.used(state.device_of());
            assert!((0..terms.devices).all(|device| state.free[device] + used[device] == terms.capacity[device]));
        }
    }
}
