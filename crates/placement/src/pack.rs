//! A placement that fits, whatever else it costs.

use crate::random::Random;
use crate::terms::Terms;

/// Orders that are tried. Each moves the models that were left over forward (squeaky wheel, Joslin and Clements 1999).
const ORDERS_MAX: usize = 64;

/// Changes of an order's packing, for each model, before the next order is tried.
const CHANGES_PER_MODEL: usize = 64;

/// A packing that fits, or the one that leaves least over, with devices that hold too much.
pub(crate) fn pack(terms: &Terms, seed: u64) -> Result<Vec<usize>, Vec<usize>> {
    let mut order: Vec<usize> = (0..terms.models).collect();
    order.sort_by_key(|&model| (std::cmp::Reverse(terms.bytes[model]), model));
    let mut random = Random::new(seed);
    let mut best: (u64, Vec<usize>) = (u64::MAX, vec![0; terms.models]);
    for attempt in 0..ORDERS_MAX {
        let mut packing = Packing::greedy(terms, &order, attempt % 2 == 0);
        let squeaks = packing.left_over.clone();
        packing.repair(&mut random);
        let over = packing.over();
        if over == 0 {
            return Ok(packing.device_of);
        }
        if over < best.0 {
            best = (over, packing.device_of);
        }
        order.sort_by_key(|model| !squeaks.contains(model));
        let (one, other) = (random.below(order.len()), random.below(order.len()));
        order.swap(one, other);
    }
    Err(best.1)
}

struct Packing<'a> {
    terms: &'a Terms,
    device_of: Vec<usize>,
    used: Vec<u64>,
    left_over: Vec<usize>,
}

impl<'a> Packing<'a> {
    /// Puts each model where it fits: where that costs least, or where the least memory is left. One that fits nowhere
    /// goes where the most is left.
    fn greedy(terms: &'a Terms, order: &[usize], by_cost: bool) -> Self {
        let mut packing =
            Self { terms, device_of: vec![usize::MAX; terms.models], used: vec![0; terms.devices], left_over: vec![] };
        let mut loads = vec![0.0; terms.devices];
        for (place, &model) in order.iter().enumerate() {
            let cost = |device: usize| {
                if !by_cost {
                    return packing.free(device) as f64;
                }
                let placed =
                    |&other: &usize| terms.pull(model, other) * terms.distance(device, packing.device_of[other]);
                let excess = loads[device] - terms.share[device];
                let balance = terms.imbalance * terms.work[model] * (2.0 * excess + terms.work[model]);
                order[..place].iter().map(placed).sum::<f64>() + balance
            };
            let fitting = (0..terms.devices).filter(|&device| packing.free(device) >= terms.bytes[model]);
            let costs = fitting.map(|device| (cost(device), device));
            let device = match costs.min_by(|one, other| one.0.total_cmp(&other.0)) {
                Some((_, device)) => device,
                None => {
                    packing.left_over.push(model);
                    packing.roomiest()
                }
            };
            packing.device_of[model] = device;
            packing.used[device] += terms.bytes[model];
            loads[device] += terms.work[model];
        }
        packing
    }

    fn free(&self, device: usize) -> u64 {
        self.terms.capacity[device].saturating_sub(self.used[device])
    }

    fn roomiest(&self) -> usize {
        let room = |device: &usize| i128::from(self.terms.capacity[*device]) - i128::from(self.used[*device]);
        (0..self.terms.devices).rev().max_by_key(room).unwrap_or(0)
    }

    /// Bytes above the capacity of their device.
    fn over(&self) -> u64 {
        (0..self.terms.devices).map(|device| self.over_with(device, self.used[device])).sum()
    }

    fn over_with(&self, device: usize, used: u64) -> u64 {
        used.saturating_sub(self.terms.capacity[device])
    }

    /// Moves and swaps models out of devices that hold too much, as long as that does not make it worse.
    fn repair(&mut self, random: &mut Random) {
        let mut over = self.over();
        for _ in 0..CHANGES_PER_MODEL * self.terms.models {
            if over == 0 {
                return;
            }
            let model = random.below(self.terms.models);
            let here = self.device_of[model];
            if self.over_with(here, self.used[here]) == 0 && random.below(8) != 0 {
                continue;
            }
            if let Some((change, device, other)) = self.best_change(model, random)
                && change <= 0
            {
                self.put(model, device);
                if let Some(other) = other {
                    self.put(other, here);
                }
                over = self.over();
            }
        }
    }

    fn put(&mut self, model: usize, device: usize) {
        let from = std::mem::replace(&mut self.device_of[model], device);
        self.used[from] -= self.terms.bytes[model];
        self.used[device] += self.terms.bytes[model];
    }

    /// How the bytes that are too much change at best if the model moves, or changes places with another one. Of
    /// equal ones, one by chance.
    fn best_change(&self, model: usize, random: &mut Random) -> Option<(i128, usize, Option<usize>)> {
        let (here, bytes) = (self.device_of[model], self.terms.bytes[model]);
        let change = |device: usize, back: u64| {
            let after = self.over_with(here, self.used[here] - bytes + back)
                + self.over_with(device, self.used[device] - back + bytes);
            let before = self.over_with(here, self.used[here]) + self.over_with(device, self.used[device]);
            i128::from(after) - i128::from(before)
        };
        let moves = (0..self.terms.devices).map(|device| (device, None));
        let swaps = (0..self.terms.models).map(|other| (self.device_of[other], Some(other)));
        let mut best: Option<(i128, usize, Option<usize>)> = None;
        let mut equal = 0;
        for (device, other) in moves.chain(swaps).filter(|&(device, _)| device != here) {
            let change = change(device, other.map_or(0, |other| self.terms.bytes[other]));
            let is_better = best.is_none_or(|best| change < best.0);
            equal = if is_better { 1 } else { equal + usize::from(best.is_some_and(|best| change == best.0)) };
            if is_better || best.is_some_and(|best| change == best.0) && random.below(equal) == 0 {
                best = Some((change, device, other));
            }
        }
        best
    }
}
