//! Prints how long the directions of Stein variational gradient descent take, and a step along them, beside their two
//! matrix products alone:
//! `cargo run --release -p sheave-bayes --example svgd_time -- 32 1000000`, for particles and parameters.
#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::time::{Duration, Instant};

use sheave_base::Result;
use sheave_bayes::Real;
use sheave_bayes::random::Generator;
use sheave_bayes::svgd::{Flow, Svgd, Workspace};
use sheave_optim::Rule;

const RUNS: usize = 7;

/// The shortest of some runs: the one that others disturbed least.
fn shortest_of(runs: usize, mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..runs {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}

fn shortest(run: impl FnMut() -> Result<()>) -> Result<Duration> {
    shortest_of(RUNS, run)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut next = |otherwise: usize| arguments.next().and_then(std::result::Result::ok).unwrap_or(otherwise);
    let (particles, dimension) = (next(32), next(1_000_000));
    let mut parameters = vec![0.0_f32; particles * dimension];
    Generator::new(1).fill_normal(&mut parameters);
    let mut gradients = parameters.clone();

    // Θ Θᵀ and [K | W] [G; Θ] of whole matrices.
    let (mut gram, coefficients) = (vec![0.0_f32; particles * particles], vec![0.01_f32; 2 * particles * particles]);
    let mut directions = vec![0.0_f32; particles * dimension];
    let stack = [&parameters[..], &gradients[..]].concat();
    let products = shortest(|| {
        f32::gram(&mut gram, &parameters, [particles, dimension]);
        f32::product(&mut directions, &coefficients, &stack, [particles, 2 * particles, dimension]);
        Ok(())
    })?;
    drop((stack, directions));

    let rows: Vec<&[f32]> = parameters.chunks(dimension).collect();
    let mut slopes: Vec<&mut [f32]> = gradients.chunks_mut(dimension).collect();
    let (svgd, mut workspace) = (Svgd::default(), Workspace::new());
    let update = shortest(|| svgd.directions(&rows, &mut slopes, &mut workspace))?;
    let mut own: Vec<Vec<f32>> = rows.iter().map(|row| row.to_vec()).collect();
    let mut flow = Flow::new(svgd, Rule::adam(1e-3), particles, dimension)?;
    let mut step = Duration::MAX;
    for _ in 0..RUNS {
        // Directions of directions would become so small that they are slow.
        slopes.iter_mut().zip(&rows).for_each(|(slope, row)| slope.copy_from_slice(row));
        step = step.min(shortest_of(1, || flow.step(&mut own, &mut slopes))?);
    }
    let ratio = |time: Duration| time.as_secs_f64() / products.as_secs_f64();
    println!(
        "{particles} particles of {dimension} f32: products {products:.1?}, directions {update:.1?}, {:.2} times, a \
         step of Adam {step:.1?}, {:.2} times",
        ratio(update),
        ratio(step)
    );
    Ok(())
}
