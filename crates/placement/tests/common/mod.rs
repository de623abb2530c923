//! Problems that a seed determines, and the truth about small ones.
#![allow(dead_code, reason = "not every test needs all of it")]

use proptest::prelude::*;
use sheave_placement::{Problem, objective};

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// Any problem of so many models and devices: with and without connections, with distances of any kind, with memory
/// that is plenty, little or too little, with weights from nothing to much.
pub(crate) fn problem(models: usize, devices: usize, seed: u64) -> Problem {
    let mut random = Random(seed);
    let sizes: Vec<u64> = (0..models).map(|_| random.below(10)).collect();
    let each = sizes.iter().sum::<u64>() * (2 + random.below(4)) / (3 * devices as u64);
    let capacities: Vec<u64> = (0..devices).map(|_| each + random.below(4)).collect();
    let mut problem = Problem::uniform(&sizes, &capacities);
    if random.below(2) == 0 {
        problem.model_complexity = (0..models).map(|_| random.below(8) as f64).collect();
    }
    if random.below(2) == 0 {
        problem.device_complexity = (0..devices).map(|_| random.below(4) as f64).collect();
    }
    let likely = random.below(5);
    for place in 0..models * models {
        if random.below(4) < likely {
            problem.connections[place] = random.below(9) as f64;
        }
    }
    let kind = random.below(4);
    for one in 0..devices {
        for other in 0..one {
            let distance = match kind {
                0 => 1.0,
                1 if one / 2 == other / 2 => 1.0,
                1 => 5.0,
                2 => (one + other) as f64,
                _ => random.below(30) as f64,
            };
            problem.distances[one * devices + other] = distance;
            problem.distances[other * devices + one] = distance;
        }
    }
    problem.weights.connection = [0.0, 0.1, 2.0, 40.0][random.below(4) as usize];
    problem.weights.complexity = [0.0, 0.3, 1.0][random.below(3) as usize];
    problem
}

/// Problems of up to so many models and devices.
pub(crate) fn problems(models: usize, devices: usize) -> impl Strategy<Value = Problem> {
    (0..=models, 1..=devices, any::<u64>()).prop_map(|(models, devices, seed)| problem(models, devices, seed))
}

/// Whether no device holds more than it can.
pub(crate) fn fits(problem: &Problem, device_of: &[usize]) -> bool {
    let mut used = vec![0; problem.device_bytes.len()];
    device_of.iter().zip(&problem.model_bytes).for_each(|(&device, bytes)| used[device] += bytes);
    used.iter().zip(&problem.device_bytes).all(|(used, capacity)| used <= capacity)
}

/// What the best placement costs, by trying all of them; none if none fits.
pub(crate) fn brute_force(problem: &Problem) -> Option<f64> {
    let (models, devices) = (problem.model_bytes.len(), problem.device_bytes.len());
    let mut device_of = vec![0; models];
    let mut best: Option<f64> = None;
    loop {
        if fits(problem, &device_of) {
            let cost = objective(problem, &device_of).unwrap();
            best = Some(best.map_or(cost, |best| best.min(cost)));
        }
        // The next one, as if devices were digits.
        let Some(place) = device_of.iter().position(|&device| device + 1 < devices) else { return best };
        device_of[place] += 1;
        device_of[..place].fill(0);
    }
}
