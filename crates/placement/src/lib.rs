//! Models onto devices: which model of a program should live where.
//!
//! A [`Problem`] is plain numbers: how much memory and computation each model needs, how much each device has, how
//! strongly models are connected and how far devices are apart. [`solve`] finds a [`Placement`] that keeps connected
//! models close and gives each device its share of the computation. **Memory is respected always**: a placement that
//! does not fit is never returned, an [`Error`] says what does not fit.
//!
//! ```
//! use sheave_placement::{Labels, Options, Problem, picture, solve, table};
//!
//! let mut problem = Problem::uniform(&[6 << 30, 6 << 30, 1 << 30, 1 << 30], &[8 << 30, 8 << 30]);
//! problem.connect(0, 2, 1.0);
//! problem.connect(1, 3, 1.0);
//! let placement = solve(&problem, &Options::default())?;
//! assert_eq!(placement.device_of, [0, 1, 0, 1]);
//! assert!(placement.exact && placement.gap == 0.0);
//! assert!(picture(&problem, &placement, &Labels::default()).starts_with("<svg"));
//! assert!(table(&problem, &placement, &Labels::default()).contains("model 0, model 2"));
//! # Ok::<(), sheave_placement::Error>(())
//! ```
//!
//! # Objective
//!
//! Let `n` models have complexities `w` and connections `C`, and `m` devices have complexity capacities `c` and
//! distances `D`, each scaled so that its sum is 1. A placement `d`, where model `i` is on device `d[i]`, costs
//!
//! ```text
//! connection * Σ_{i≠j} C[i,j] * D[d[i], d[j]]
//! complexity * 1/m * Σ_e (Σ_{i on e} w[i] - c[e])²
//! ```
//!
//! which is, at placements that are not fractions, the loss that machin's `ModelAssigner` descends on, but for two
//! things. It divides the first term by `n²` too, so that connections of more than a few models count for nothing;
//! here a unit of what goes between models counts the same however many there are. And its penalty for memory is a
//! constraint here. Its entropy is zero at such placements. What would divide by zero is defined: without connections
//! or distances the first term is 0, without complexities the second is; devices without any complexity capacity have
//! equal shares.
//!
//! # Methods
//!
//! Up to [`EXACT_MODELS_MAX`] × [`EXACT_DEVICES_MAX`]: branch and bound over the sets of models that devices get, in
//! `O(m 3^n)` where the devices are the leaves of a star, such as GPUs at one distance from each other and a CPU at
//! another; see [`solve`]. Beyond: greedy starts, threshold accepting (Dueck and Scheuer 1990) on moves and swaps, and
//! descent on moves, swaps, ejections and exchanges of whole devices; the lower bound is that of Donath and Hoffman
//! (1973) on the edges that any partition cuts. All of it is arithmetic of which IEEE 754 defines each bit, and bounded
//! by work and not by time: the same problem has the same answer in every run and on every machine.
#![forbid(unsafe_code)]

mod bound;
mod eigen;
mod error;
mod exact;
mod pack;
mod picture;
mod problem;
mod random;
mod search;
mod solve;
mod table;
mod terms;

pub use error::{Error, Result};
pub use picture::picture;
pub use problem::{DEVICES_MAX, MODELS_MAX, Problem, Weights};
pub use solve::{EXACT_DEVICES_MAX, EXACT_MODELS_MAX, Options, Placement, objective, solve};
pub use table::{Labels, table};
