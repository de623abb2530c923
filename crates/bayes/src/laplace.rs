//! The Laplace approximation of the last layer of a network (MacKay, "A practical Bayesian framework for
//! backpropagation networks", Neural Computation, 1992; Daxberger et al., NeurIPS 2021, arXiv:2106.14806).
//!
//! The layers below are fixed, and their outputs are the *features* `φ` of a datum; a constant feature of 1 makes a
//! bias. The weights `W` of the last layer, one row of features for each output, have a normal prior of precision `α`,
//! and the posterior is the normal distribution whose mean is the trained weights, and whose precision is `H + α I`
//! with the curvature `H` of the loss. Both sides are streamed: features are added batch by batch, and are not kept.
//!
//! * [`Regression`]: `H = ΦᵀΦ / σ²`; the loss is quadratic, so that this *is* the posterior of the layer.
//! * [`Classification`]: `H` is the generalised Gauss-Newton matrix `Σ (diag π - π πᵀ) ⊗ φ φᵀ` of the cross entropy,
//!   which is its Hessian for a linear layer; the covariance is that of all weights.
//!
//! The eigenvalues of `H` are computed once. For every `α` then the logarithm of the evidence costs a sum over them,
//! and [`Evidence`] is maximised by the fixed point of MacKay: `γ = Σ λ / (λ + α)` weights are determined by the data,
//! and `α = γ / |W|²`.
//!
//! Weights are `f64` here; features and targets are `f32` or `f64`.

mod classification;
mod regression;
mod spectrum;

pub use classification::{Classification, ClassificationFit, ClassificationPosterior, Workspace};
pub use regression::{Regression, RegressionFit, RegressionPosterior};

/// The most weights with one covariance: it has 512 MiB then. Eigenvalues of 1,000 take a second or so.
pub const WEIGHTS_MAX: usize = 8192;

/// Precisions and variances that are searched are within this and its inverse.
const PRECISION_MAX: f64 = 1e12;

/// More steps than a fixed point takes that is found at all.
const STEPS_MAX: u32 = 1000;

/// The relative change at which a fixed point is found.
const TOLERANCE: f64 = 1e-10;

/// Settings of the largest evidence, and the evidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// The precision `α` of the prior, from 10⁻¹² to 10¹². It is at the upper end where the data say that all weights
    /// are zero.
    pub prior_precision: f64,
    /// The variance `σ²` of the noise, from 10⁻¹² to 10¹²; 1 for classification, which has none.
    pub noise_variance: f64,
    /// The logarithm of the evidence there, in nats.
    pub log_evidence: f64,
    /// How many weights the data determine, `γ`.
    pub determined: f64,
    /// Whether the fixed point was found, within 1,000 steps; else this is the last one.
    pub converged: bool,
}
