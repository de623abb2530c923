//! Solves seeded instances, and prints for each what its placement costs and how long that took.
//!
//! ```text
//! cargo run --release -p sheave-placement --example instances -- MODELS DEVICES COUNT [EFFORT [FOLDER]]
//! ```
//!
//! Into the folder, if one is given, goes a JSON file for each instance and its placement. `benches/peers` has a
//! program that reads them and asks another solver.
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs, reason = "a program for measurements")]

use serde_json::json;
use sheave_placement::{Options, Placement, Problem, solve};
use std::time::Instant;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() * end as f64) as usize
    }
}

const GIB: f64 = (1_u64 << 30) as f64;

/// Instances of four kinds, by turns: clusters on devices alike; random connections on hosts of four devices; dense
/// connections, little memory and the weights by default; random distances.
fn instance(models: usize, devices: usize, seed: u64) -> Problem {
    let mut random = Random(seed ^ 0x5eed);
    let kind = seed % 4;
    let sizes: Vec<u64> = (0..models).map(|_| ((0.25 + 4.0 * random.next() * random.next()) * GIB) as u64).collect();
    let slack = [2.0, 1.4, 1.12, 1.3][kind as usize];
    let each = sizes.iter().sum::<u64>() as f64 / devices as f64 * slack;
    let most = sizes.iter().copied().max().unwrap() as f64;
    let capacity = |random: &mut Random| (each * (0.8 + 0.4 * random.next())).max(most) as u64;
    let capacities: Vec<u64> =
        (0..devices).map(|_| if kind == 0 { each.max(most) as u64 } else { capacity(&mut random) }).collect();
    let mut problem = Problem::uniform(&sizes, &capacities);
    problem.model_complexity.iter_mut().for_each(|complexity| *complexity *= 0.5 + random.next());
    if kind != 0 {
        problem.device_complexity.iter_mut().for_each(|complexity| *complexity = 0.3 + 0.7 * random.next());
    }
    connect(&mut problem, kind, &mut random);
    for one in 0..devices {
        for other in 0..one {
            let distance = match kind {
                0 | 2 => 1.0,
                1 if one / 4 == other / 4 => 1.0,
                1 => 10.0,
                _ => 1.0 + 9.0 * random.next(),
            };
            problem.distances[one * devices + other] = distance;
            problem.distances[other * devices + one] = distance;
        }
    }
    if kind != 2 {
        problem.weights.connection = 0.2 * devices as f64;
    }
    problem
}

fn connect(problem: &mut Problem, kind: u64, random: &mut Random) {
    let models = problem.model_bytes.len();
    for one in 0..models {
        for other in 0..models {
            let likely = match kind {
                0 if one % 10 == other % 10 => 0.5,
                0 => 0.01,
                2 => 0.5,
                _ => 6.0 / models as f64,
            };
            if one != other && random.next() < likely {
                problem.connect(one, other, 1.0 + random.below(9) as f64);
            }
        }
    }
}

fn written(problem: &Problem, placement: &Placement) -> String {
    let problem = json!({
        "model_bytes": problem.model_bytes, "model_complexity": problem.model_complexity,
        "connections": problem.connections, "device_bytes": problem.device_bytes,
        "device_complexity": problem.device_complexity, "distances": problem.distances,
        "weights": { "connection": problem.weights.connection, "complexity": problem.weights.complexity },
        "device_of": placement.device_of, "objective": placement.objective, "lower_bound": placement.lower_bound,
    });
    problem.to_string()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| arguments[place].parse::<usize>().unwrap();
    let (models, devices, count) = (number(0), number(1), number(2));
    let effort = arguments.get(3).map_or(Options::default().effort, |effort| effort.parse().unwrap());
    for seed in 0..count as u64 {
        let problem = instance(models, devices, seed);
        let begun = Instant::now();
        let placement = match solve(&problem, &Options { effort, seed: 0 }) {
            Ok(placement) => placement,
            Err(error) => {
                println!("{seed:3}  {error}");
                continue;
            }
        };
        let took_ms = begun.elapsed().as_secs_f64() * 1e3;
        let Placement { objective, lower_bound, gap, exact, .. } = placement;
        println!("{seed:3}  {objective:.6e}  bound {lower_bound:.6e}  gap {gap:.3}  exact {exact}  {took_ms:.1} ms");
        if let Some(folder) = arguments.get(4) {
            std::fs::write(format!("{folder}/{seed}.json"), written(&problem, &placement)).unwrap();
        }
    }
}
