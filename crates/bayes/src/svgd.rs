//! Stein variational gradient descent (Liu and Wang, NeurIPS 2016, arXiv:1608.04471).
//!
//! `n` particles of `d` parameters each move along
//! `u_i = 1/n Σ_j [ k(θ_j, θ_i) g_j - ∇_{θ_j} k(θ_j, θ_i) ]`, `θ_i ← θ_i - lr u_i`, where `g_j` is the gradient of the
//! **loss** (the negative log posterior) at `θ_j`. The first term descends along a mean of gradients, the second one
//! pushes particles apart. The paper has gradients of the log posterior and climbs, so that both signs are turned here.
//!
//! **By matrix products.** With `r² = |θ_j - θ_i|²` and a length `l` a kernel is `k = f(r² / l²)`, so
//! `∇_{θ_j} k = -w_ji (θ_j - θ_i)` with a weight `w_ji`, which is `k / l²` for [`Kernel::Rbf`] and `k³ / l²` for
//! [`Kernel::InverseMultiquadric`]. Hence, by rows, `U = (K G + (W - diag(W 1)) Θ) / n`: a Gram matrix for the
//! distances, and one product of `n × 2n` with `[G; Θ]`. Note the sign: the term in `Θ` is `W Θ - diag(W 1) Θ`; turned
//! round it would attract.
//!
//! **Precision.** Each column of `Θ` is used less its mean over the particles. Distances do not change by that, nor
//! does the product, because the rows of `W - diag(W 1)` sum to zero. But without it particles that are close together
//! and far from zero would lose their distances to rounding. Sums of columns are made in `T` over blocks, and over
//! blocks in `f64`.
//!
//! **Cut over the parameters.** The mean of a column needs this column alone, and a Gram matrix is a sum over columns.
//! So each of several owners of a range of parameters makes the [`Gram`] matrix of its slice, all of them sum the `n²`
//! numbers (an all-reduce of [`Gram::values_mut`]), and each computes the directions of its own slice. That moves
//! `O(n²)` numbers and no parameters.
//!
//! ```
//! use sheave_bayes::svgd::{Gram, Svgd, Workspace};
//!
//! let parameters = [[0.0_f64, 1.0], [0.5, -1.0], [2.0, 0.5]];
//! let gradients = [[1.0_f64, 0.0], [0.0, 1.0], [-1.0, 0.5]];
//! let (svgd, mut workspace) = (Svgd::default(), Workspace::new());
//! let mut whole = gradients;
//! svgd.directions(&parameters, &mut whole, &mut workspace)?;
//!
//! // The same by two owners, of one column each.
//! let column = |matrix: &[[f64; 2]; 3], place: usize| matrix.map(|row| [row[place]]);
//! let mut gram = Gram::of_slice(&column(&parameters, 0), &mut workspace)?;
//! gram.add(&Gram::of_slice(&column(&parameters, 1), &mut workspace)?)?;
//! let forces = svgd.forces(&gram)?;
//! for place in 0..2 {
//!     let mut slice = column(&gradients, place);
//!     forces.apply(&column(&parameters, place), &mut slice, &mut workspace)?;
//!     for (row, whole) in slice.iter().zip(&whole) {
//!         assert!((row[0] - whole[place]).abs() < 1e-12);
//!     }
//! }
//! # Ok::<(), sheave_base::Error>(())
//! ```

mod flow;
mod forces;
mod gram;
mod workspace;

use serde::{Deserialize, Serialize};
use sheave_base::Result;

pub use flow::Flow;
pub use forces::Forces;
pub use gram::Gram;
pub use workspace::Workspace;

use crate::Real;
use crate::check::number;

/// The most particles of one descent: their Gram matrix has 128 MiB then.
pub const PARTICLES_MAX: usize = 4096;

/// How much one particle knows of another, by their distance `r` and the length `l`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kernel {
    /// `exp(-r² / (2 l²))`.
    #[default]
    Rbf,
    /// `1 / sqrt(1 + r² / l²)`, whose tails are heavier (Gorham and Mackey, ICML 2017, arXiv:1703.01717).
    InverseMultiquadric,
}

/// The length `l` of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Lengthscale {
    /// Always the same, above zero.
    Fixed(f64),
    /// `l² = median² / (2 ln(n + 1))`, where the median is that of the distances of all pairs of different particles,
    /// and between the two in the middle where their number is even. The paper has `ln n`, which is zero for one
    /// particle. Where the median is zero, it is that of the pairs that are apart; where no two particles are apart,
    /// `l` is 1, and nothing pushes.
    #[default]
    Median,
}

/// The settings of Stein variational gradient descent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Svgd {
    /// The kernel; [`Kernel::Rbf`] by default.
    pub kernel: Kernel,
    /// Its length; by the median by default.
    pub lengthscale: Lengthscale,
}

impl Svgd {
    /// Checks the settings.
    ///
    /// # Errors
    /// `InvalidArgument` for a fixed length that is not finite and above zero, or whose square is not.
    pub fn check(&self) -> Result<()> {
        match self.lengthscale {
            Lengthscale::Fixed(length) => {
                let is_right = length > 0.0 && (length * length).is_normal();
                number("svgd", "lengthscale", length, is_right, "a number above zero whose square is finite")
            }
            Lengthscale::Median => Ok(()),
        }
    }

    /// Computes the coefficients of a step from the Gram matrix of whole particles.
    ///
    /// # Errors
    /// Those of [`check`](Self::check); `InvalidArgument` for a Gram matrix with a number that is not finite, which
    /// comes of parameters that are not.
    pub fn forces(&self, gram: &Gram) -> Result<Forces> {
        let mut forces = Forces::default();
        forces.compute(self, gram)?;
        Ok(forces)
    }

    /// Turns the gradients of whole particles into the directions `U` in place: [`Gram::of_slice`],
    /// [`forces`](Self::forces) and [`Forces::apply`] in one. `parameters` and `gradients` hold `n` slices of `d`
    /// elements. [`Flow`] takes whole steps, and allocates nothing in them.
    ///
    /// # Errors
    /// Those of the three.
    pub fn directions<T: Real, P: AsRef<[T]>, G: AsMut<[T]> + AsRef<[T]>>(
        &self,
        parameters: &[P],
        gradients: &mut [G],
        workspace: &mut Workspace<T>,
    ) -> Result<()> {
        let gram = Gram::of_slice(parameters, workspace)?;
        self.forces(&gram)?.apply(parameters, gradients, workspace)
    }
}
