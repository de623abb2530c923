//! Bayesian deep learning on flat vectors: the mathematics, without models, processes or networks.
//!
//! Parameters of a model are one flat slice of `f32` or `f64`; a gradient is a slice of the same length, and comes from
//! the caller. So a model of any library, a slice of a model on one of several nodes, and a test with a formula in
//! place of a model are all the same here.
//!
//! | module | what |
//! |---|---|
//! | [`svgd`] | Stein variational gradient descent, whole or cut over the parameters |
//! | [`swag`] | a Gaussian from snapshots of a training |
//! | [`langevin`] | SGLD and SGHMC, cyclical step sizes, and a chain that thins and burns in |
//! | [`laplace`] | the Laplace approximation of a last layer, with its evidence |
//! | [`ensemble`] | bootstraps, a head with a variance, dropout at prediction |
//! | [`predict`] | what members predict together |
//! | [`metrics`] | how good and how well calibrated a prediction is |
//! | [`prior`] | normal priors and their gradients |
//! | [`random`] | the private generator that all of these draw from |
//!
//! **Losses.** Every gradient here is one of a *loss*, which descends: of the negative log posterior
//! `U(θ) = (N / B) Σ_batch nll - log prior(θ)` for `N` data and batches of `B`. [`prior::Normal`] adds the prior's
//! part.
//!
//! **Determinism.** All randomness comes from a [`random::Generator`] that the caller passes in. The order of
//! operations is fixed, and there are no threads: on one machine the same seed gives the same bits. Between machines
//! the last bits of logarithms, exponentials and matrix products may differ.
//!
//! **Memory.** What is called in every step of a training allocates nothing once its workspace has grown.
//!
//! Nothing here blocks or waits. Bad input is an [`InvalidArgument`](sheave_base::ErrorKind::InvalidArgument) that
//! names the field, its value and what was expected; what a function was to change is unchanged then.

mod check;
pub mod ensemble;
pub mod langevin;
pub mod laplace;
pub mod metrics;
pub mod predict;
pub mod prior;
pub mod random;
mod real;
pub mod svgd;
pub mod swag;

pub use real::Real;
