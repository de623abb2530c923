//! Prints how long the directions of Stein variational gradient descent take, beside their two matrix products alone:
//! `cargo run --release -p sheave-bayes --example svgd_time -- 32 1000000`, for particles and parameters.
#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::time::{Duration, Instant};

use nalgebra::{DMatrixView, DMatrixViewMut, Dyn};
use sheave_base::Result;
use sheave_bayes::random::Generator;
use sheave_bayes::svgd::{Svgd, Workspace};

const RUNS: usize = 7;

/// The shortest of some runs: the one that others disturbed least.
fn shortest(mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut next = |otherwise: usize| arguments.next().and_then(std::result::Result::ok).unwrap_or(otherwise);
    let (particles, dimension) = (next(32), next(1_000_000));
    let mut parameters = vec![0.0_f32; particles * dimension];
    Generator::new(1).fill_normal(&mut parameters);
    let mut gradients = parameters.clone();

    // Θ Θᵀ and [K, M] [G; Θ] of whole matrices, the second one as two products that add up.
    let (mut gram, coefficients) = (vec![0.0_f32; particles * particles], vec![0.01_f32; particles * particles]);
    let mut directions = vec![0.0_f32; particles * dimension];
    let products = shortest(|| {
        let theta = DMatrixView::from_slice(&parameters, dimension, particles);
        let slopes = DMatrixView::from_slice(&gradients, dimension, particles);
        // Beyond a few rows the library multiplies views with strides as they are.
        let rows =
            DMatrixView::<f32, Dyn, Dyn>::from_slice_with_strides(&parameters, particles, dimension, dimension, 1);
        let factors = DMatrixView::from_slice(&coefficients, particles, particles);
        DMatrixViewMut::from_slice(&mut gram, particles, particles).gemm(1.0, &rows, &theta, 0.0);
        let mut out = DMatrixViewMut::from_slice(&mut directions, dimension, particles);
        out.gemm(1.0, &slopes, &factors, 0.0);
        out.gemm(1.0, &theta, &factors, 1.0);
        Ok(())
    })?;

    let rows: Vec<&[f32]> = parameters.chunks(dimension).collect();
    let mut slopes: Vec<&mut [f32]> = gradients.chunks_mut(dimension).collect();
    let (svgd, mut workspace) = (Svgd::default(), Workspace::new());
    let update = shortest(|| svgd.directions(&rows, &mut slopes, &mut workspace))?;
    let ratio = update.as_secs_f64() / products.as_secs_f64();
    println!(
        "{particles} particles of {dimension} f32: products {products:.1?}, directions {update:.1?}, {ratio:.2} times"
    );
    Ok(())
}
