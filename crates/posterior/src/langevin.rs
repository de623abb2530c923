//! Chains of samples by noisy gradients, one in each member.

use sheave_base::Result;
use sheave_bayes::prior::Normal;
use sheave_particle::ParticleId;

use crate::ensemble::common;
use crate::inference::Inference;
use crate::member::Draw;
use crate::members::{Common, Members, Progress, check_likelihood};
use crate::prediction::Prediction;
use crate::settings::{Batches, Method, Sampler};

/// Settings of [`Langevin`].
#[derive(Clone, Debug, PartialEq)]
pub struct LangevinSettings {
    /// How many chains there are.
    pub members: usize,
    /// Rows of a batch.
    pub batch_rows: usize,
    /// How a chain moves. Gradients are those of the negative log posterior of *all* data, so that a good step size of
    /// SGLD is some learning rate of a mean loss divided by half the number of rows.
    pub sampler: Sampler,
    /// The prior of the parameters; none by default, which is a flat one.
    pub prior: Option<Normal>,
    /// Steps whose parameters are no samples; 0 by default. Of a cyclical sampler those of its sampling phases count.
    pub burn_in: u64,
    /// Each so-many-th step behind them is a sample; 1 by default.
    pub thin: u64,
    /// How many samples each chain keeps, the last ones; 20 by default.
    pub capacity: usize,
    /// The seed of the posterior; 0 by default.
    pub seed: u64,
}

impl LangevinSettings {
    /// Returns the settings of so many chains, with defaults.
    #[must_use]
    pub fn new(members: usize, batch_rows: usize, sampler: Sampler) -> Self {
        Self { members, batch_rows, sampler, prior: None, burn_in: 0, thin: 1, capacity: 20, seed: 0 }
    }
}

/// Samples of the posterior by stochastic gradient Langevin dynamics, stochastic gradient Hamiltonian Monte Carlo, or
/// cyclical step sizes ([`Sampler`]): a chain in each member, each with an order of data and a noise of its own.
pub struct Langevin {
    members: Members,
}

impl Langevin {
    /// Makes the chains. Blocks until all nodes have theirs.
    ///
    /// # Errors
    /// Those of [`Ensemble::new`](crate::Ensemble::new); `InvalidArgument` for a loss that is no likelihood.
    pub fn new(inference: &Inference, settings: &LangevinSettings) -> Result<Self> {
        check_likelihood(inference.network().loss())?;
        let LangevinSettings { members, batch_rows, sampler, prior, burn_in, thin, capacity, seed } = *settings;
        let common = Common { members, batch_rows, batches: Batches::Own, seed };
        let method = Method::Sample { sampler, prior, burn_in, thin, capacity };
        Ok(Self { members: Members::new(inference, common, &method)? })
    }

    /// Moves all chains for some epochs, and returns the mean loss of each in the last one. Blocks; may be called
    /// again, to go on.
    ///
    /// # Errors
    /// Those of [`Ensemble::fit`](crate::Ensemble::fit).
    pub fn fit(&self, epochs: usize, progress: impl FnMut(&Progress<'_>)) -> Result<Vec<f64>> {
        self.members.fit(epochs, progress)
    }

    /// Predicts rows of inputs with all samples that the chains keep. Blocks.
    ///
    /// # Errors
    /// `InvalidArgument` before the first sample, and those of [`Ensemble::predict`](crate::Ensemble::predict).
    pub fn predict(&self, inputs: &[f32]) -> Result<Prediction> {
        self.members.predict(inputs, Draw::Chain)
    }

    common!();
}
