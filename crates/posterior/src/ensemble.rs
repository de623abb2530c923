//! Deep ensembles, multi-SWAG, dropout and last layers: posteriors whose members an optimizer trains.

use sheave_base::{Error, ErrorKind, Result};
use sheave_bayes::ensemble::mixture;
use sheave_bayes::swag::SCALE;
use sheave_optim::Optimizer;
use sheave_particle::{Message, ParticleId};

use crate::behavior::number;
use crate::inference::Inference;
use crate::member::Draw;
use crate::members::{Common, Members, Progress, named};
use crate::prediction::Prediction;
use crate::settings::{Batches, Method};

/// Settings of the members of an ensemble, and of all posteriors whose members an optimizer trains.
#[derive(Clone, Debug, PartialEq)]
pub struct EnsembleSettings {
    /// How many members there are.
    pub members: usize,
    /// Rows of a batch.
    pub batch_rows: usize,
    /// Which data members see; all the same batches by default.
    pub batches: Batches,
    /// How parameters follow the gradient of the mean loss of a batch.
    pub optimizer: Optimizer,
    /// The seed of the posterior, from which all members have theirs ([`Seeds::of`](crate::Seeds::of)); 0 by default.
    pub seed: u64,
}

impl EnsembleSettings {
    /// Returns the settings of so many members, with defaults.
    #[must_use]
    pub fn new(members: usize, batch_rows: usize, optimizer: impl Into<Optimizer>) -> Self {
        Self { members, batch_rows, batches: Batches::default(), optimizer: optimizer.into(), seed: 0 }
    }

    fn common(&self) -> Common {
        Common { members: self.members, batch_rows: self.batch_rows, batches: self.batches, seed: self.seed }
    }

    fn members(&self, inference: &Inference, rank: usize) -> Result<Members> {
        Members::new(inference, self.common(), &Method::Optimize { optimizer: self.optimizer.clone(), rank })
    }
}

/// What all posteriors of this module and the next ones have.
macro_rules! common {
    () => {
        /// Returns the particles of the members, in their order; they are gone with this object. What they can be sent
        /// is in [`messages`](crate#messages).
        #[must_use]
        pub fn ids(&self) -> &[ParticleId] {
            &self.members.ids
        }

        /// Returns the parameters of all members, in their order. Blocks.
        ///
        /// # Errors
        /// `PeerLost` where a node with members is gone.
        pub fn parameters(&self) -> Result<Vec<Vec<f32>>> {
            self.members.parameters()
        }
    };
}

pub(crate) use common;

/// A deep ensemble (Lakshminarayanan, Pritzel and Blundell, NeurIPS 2017, arXiv:1612.01474): members that differ by
/// their start, and by their batches if that is wanted, and whose probabilities are averaged. With
/// [`Loss::GaussianHead`](sheave_nn::Loss::GaussianHead) each predicts its own noise.
///
/// Its members have the bits that each would have if it were trained by itself, however many threads and nodes there
/// are. [`Inference`] has an example.
pub struct Ensemble {
    members: Members,
}

impl Ensemble {
    /// Makes the members. Blocks until all nodes have theirs.
    ///
    /// # Errors
    /// `InvalidArgument` for settings outside their range, `NotFound` where a node has no such [`Inference`],
    /// `PeerLost` where one is gone.
    pub fn new(inference: &Inference, settings: &EnsembleSettings) -> Result<Self> {
        Ok(Self { members: settings.members(inference, 0)? })
    }

    /// Trains all members for some epochs, and returns the mean loss of each in the last one. Blocks; `progress` is
    /// called after each epoch. May be called again, to go on.
    ///
    /// # Errors
    /// `PeerLost` as soon as a node with members is known to be gone, which it names; `InvalidArgument` for a member
    /// whose loss is not finite.
    pub fn fit(&self, epochs: usize, progress: impl FnMut(&Progress<'_>)) -> Result<Vec<f64>> {
        self.members.fit(epochs, progress)
    }

    /// Predicts rows of inputs with each member. Blocks.
    ///
    /// # Errors
    /// `InvalidArgument` for inputs that are no whole rows; `PeerLost` where a node with members is gone.
    pub fn predict(&self, inputs: &[f32]) -> Result<Prediction> {
        self.members.predict(inputs, Draw::Own)
    }

    common!();
}

/// Settings of [`MultiSwag`].
#[derive(Clone, Debug, PartialEq)]
pub struct MultiSwagSettings {
    /// The members, and how they are trained before the first snapshot.
    pub ensemble: EnsembleSettings,
    /// The learning rate from the first snapshot on, which is constant.
    pub learning_rate: f64,
    /// How many deviations each member keeps at most; 20 in the paper.
    pub rank: usize,
}

/// SWAG of several members (Wilson and Izmailov, NeurIPS 2020, arXiv:2002.08791): each is a Gaussian about the mean of
/// its own snapshots, and their samples are averaged.
pub struct MultiSwag {
    members: Members,
    learning_rate: f64,
}

impl MultiSwag {
    /// Makes the members. Blocks until all nodes have theirs.
    ///
    /// # Errors
    /// Those of [`Ensemble::new`].
    pub fn new(inference: &Inference, settings: &MultiSwagSettings) -> Result<Self> {
        let MultiSwagSettings { ensemble, learning_rate, rank } = settings;
        let (learning_rate, rank) = (*learning_rate, *rank);
        if !(learning_rate >= 0.0 && learning_rate.is_finite()) {
            let what = format!("learning_rate is {learning_rate}; expected a finite number that is not negative");
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("posterior"));
        }
        Ok(Self { members: ensemble.members(inference, rank)?, learning_rate })
    }

    /// Trains all members for some epochs before the first snapshot. As [`Ensemble::fit`].
    ///
    /// # Errors
    /// Those of [`Ensemble::fit`].
    pub fn fit(&self, epochs: usize, progress: impl FnMut(&Progress<'_>)) -> Result<Vec<f64>> {
        self.members.fit(epochs, progress)
    }

    /// Goes on at the constant learning rate, and takes a snapshot of each member after each of these epochs.
    ///
    /// # Errors
    /// Those of [`Ensemble::fit`].
    pub fn collect(&self, epochs: usize, mut progress: impl FnMut(&Progress<'_>)) -> Result<Vec<f64>> {
        let rate = self.learning_rate;
        self.members.ask("learning rate", |_| Message::from(rate)).map_err(named("collect"))?;
        let mut losses = Vec::new();
        for epoch in 1..=epochs {
            losses = self.members.fit(1, |_| ())?;
            self.members.ask("collect", |_| Message::default()).map_err(named("collect"))?;
            progress(&Progress { epoch, epochs, losses: &losses });
        }
        Ok(losses)
    }

    /// Predicts rows of inputs with so many samples of each member, at the scale of the paper, a half. The members'
    /// parameters stay what they are. Blocks.
    ///
    /// # Errors
    /// Those of [`Ensemble::predict`]; `InvalidArgument` before the first snapshot.
    pub fn predict(&self, inputs: &[f32], samples: usize) -> Result<Prediction> {
        self.predict_at(inputs, samples, SCALE)
    }

    /// As [`predict`](Self::predict), at another scale of the covariance; at 0 each sample is the mean.
    ///
    /// # Errors
    /// Those of [`predict`](Self::predict), and `InvalidArgument` for a scale that is negative or not finite.
    pub fn predict_at(&self, inputs: &[f32], samples: usize, scale: f64) -> Result<Prediction> {
        self.members.predict(inputs, Draw::Swag { samples, scale })
    }

    common!();
}

/// Dropout that stays on for predictions (Gal and Ghahramani, ICML 2016, arXiv:1506.02142), of one member or several.
pub struct MonteCarloDropout {
    members: Members,
}

impl MonteCarloDropout {
    /// Makes the members. Blocks until all nodes have theirs.
    ///
    /// # Errors
    /// Those of [`Ensemble::new`].
    pub fn new(inference: &Inference, settings: &EnsembleSettings) -> Result<Self> {
        Ok(Self { members: settings.members(inference, 0)? })
    }

    /// Trains all members for some epochs. As [`Ensemble::fit`].
    ///
    /// # Errors
    /// Those of [`Ensemble::fit`].
    pub fn fit(&self, epochs: usize, progress: impl FnMut(&Progress<'_>)) -> Result<Vec<f64>> {
        self.members.fit(epochs, progress)
    }

    /// Predicts rows of inputs so many times with each member, with other units dropped each time and for each row.
    /// Blocks. Predictions in between change nothing of a training.
    ///
    /// # Errors
    /// Those of [`Ensemble::predict`]; `Unsupported` for a network without a layer that drops units.
    pub fn predict(&self, inputs: &[f32], samples: usize) -> Result<Prediction> {
        self.members.predict(inputs, Draw::Dropout { samples })
    }

    common!();
}

/// The Laplace approximation of the last layer (Daxberger et al., NeurIPS 2021, arXiv:2106.14806) of one member or
/// several, whose predictions are averaged. The layers below are those of the training; the precision of the prior, and
/// for regressions the noise, are those of the largest evidence.
pub struct LastLayerLaplace {
    members: Members,
}

/// The settings of the largest evidence of a last layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LastLayer {
    /// The precision of the prior.
    pub prior_precision: f64,
    /// The logarithm of the evidence, in nats.
    pub log_evidence: f64,
}

impl LastLayerLaplace {
    /// Makes the members. Blocks until all nodes have theirs.
    ///
    /// # Errors
    /// Those of [`Ensemble::new`].
    pub fn new(inference: &Inference, settings: &EnsembleSettings) -> Result<Self> {
        Ok(Self { members: settings.members(inference, 0)? })
    }

    /// Trains all members for some epochs. As [`Ensemble::fit`].
    ///
    /// # Errors
    /// Those of [`Ensemble::fit`].
    pub fn fit(&self, epochs: usize, progress: impl FnMut(&Progress<'_>)) -> Result<Vec<f64>> {
        self.members.fit(epochs, progress)
    }

    /// Goes through all data once with each member, and computes the posterior of its last layer, in the third power of
    /// the number of its weights. Predictions need it, again after each [`fit`](Self::fit). Blocks.
    ///
    /// # Errors
    /// `Unsupported` where the last layer is not dense, or the loss is one of a Gaussian head; `PeerLost`.
    pub fn fit_last_layer(&self) -> Result<Vec<LastLayer>> {
        let answers = self.members.ask("fit curvature", |_| Message::default()).map_err(named("fit last layer"))?;
        let read = |answer: &Message| match &answer.value {
            sheave_wire::Value::List(items) if items.len() == 2 => {
                Ok(LastLayer { prior_precision: number(&items[0])?, log_evidence: number(&items[1])? })
            }
            other => Err(Error::new(ErrorKind::Mismatch, format!("a {}; expected two numbers", other.kind_name()))),
        };
        answers.iter().map(read).collect()
    }

    /// Returns the posterior predictive of a classification, rows × classes, by the probit approximation. Blocks.
    ///
    /// # Errors
    /// Those of [`Ensemble::predict`]; `InvalidArgument` before [`fit_last_layer`](Self::fit_last_layer);
    /// `Unsupported` for a network without classes.
    pub fn probabilities(&self, inputs: &[f32]) -> Result<Vec<f64>> {
        let predicted = self.members.predict_curved(inputs)?;
        if predicted.iter().any(|[_, variances]| !variances.is_empty()) {
            let what = "the network has no classes";
            return Err(Error::new(ErrorKind::Unsupported, what).operation("predict").hint("take `normal`"));
        }
        let members: Vec<Vec<f64>> = predicted.into_iter().map(|[values, _]| values).collect();
        let mut mean = vec![0.0; members[0].len()];
        sheave_bayes::predict::mean(&members, &mut mean)?;
        Ok(mean)
    }

    /// Returns means and variances of a regression, rows × targets each, of noise and model together. Blocks.
    ///
    /// # Errors
    /// Those of [`probabilities`](Self::probabilities); `Unsupported` for a network of classes.
    pub fn normal(&self, inputs: &[f32]) -> Result<(Vec<f64>, Vec<f64>)> {
        let (mut means, mut variances) = (Vec::new(), Vec::new());
        for [values, of_rows] in self.members.predict_curved(inputs)? {
            if of_rows.is_empty() {
                let what = "the network has classes";
                return Err(Error::new(ErrorKind::Unsupported, what).operation("predict").hint("take `probabilities`"));
            }
            let targets = values.len() / of_rows.len();
            variances.push(of_rows.iter().flat_map(|&variance| vec![variance; targets]).collect::<Vec<f64>>());
            means.push(values);
        }
        let (mut mean, mut variance) = (vec![0.0; means[0].len()], vec![0.0; means[0].len()]);
        mixture(&means, &variances, &mut mean, &mut variance)?;
        Ok((mean, variance))
    }

    common!();
}
