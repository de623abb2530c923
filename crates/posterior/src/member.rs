//! A member of a posterior: one network with its parameters, and all that moves them.
//!
//! **Alone and together are the same.** What a member does is a function of its settings, of network and data, and of
//! the messages that it is sent; nothing of other members, threads or nodes enters. So an ensemble has the bits of as
//! many trainings, one after the other. Predictions draw from a generator of their own and write to memory of their
//! own, so that the parameters are the same after them.

use std::sync::Arc;

use sheave_base::{Error, ErrorKind, Result};
use sheave_bayes::langevin::{Chain, Sgld};
use sheave_bayes::prior::Normal;
use sheave_bayes::random::Generator;
use sheave_bayes::swag::Swag;
use sheave_nn::{Dataset, Mode};
use sheave_optim::State;
use sheave_tensor::Tensor;

use crate::inference::Problem;
use crate::laplace::Curvature;
use crate::order::{Order, Seeds};
use crate::settings::{Batches, MemberSettings, Method, Sampler};

/// What is predicted with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Draw {
    /// The parameters as they are.
    Own,
    /// Samples of the Gaussian of the snapshots.
    Swag { samples: usize, scale: f64 },
    /// The samples of the chain.
    Chain,
    /// The parameters as they are, with other units dropped each time.
    Dropout { samples: usize },
}

/// What moves the parameters, beside their gradient.
enum Motion {
    Optimizer(State<f32>),
    Chain { chain: Chain<f32>, velocity: Vec<f32> },
    None,
}

pub(crate) struct Member {
    problem: Arc<Problem>,
    settings: MemberSettings,
    parameters: Vec<f32>,
    /// How often they have changed.
    version: u64,
    /// A copy of that version that others may hold.
    snapshot: Option<Tensor>,
    gradient: Vec<f32>,
    order: Order,
    batch: Dataset,
    dropout: Generator,
    noise: Generator,
    prediction: Generator,
    motion: Motion,
    swag: Option<Swag<f32>>,
    curvature: Option<(u64, Curvature)>,
    steps: u64,
}

impl Member {
    pub(crate) fn new(problem: Arc<Problem>, settings: MemberSettings) -> Result<Self> {
        settings.check()?;
        let (network, data) = (&problem.network, &problem.data);
        let dimension = network.dimension();
        let seeds = Seeds::of(settings.seed, settings.member);
        let order_seed =
            if settings.batches == Batches::Shared { Seeds::shared_order(settings.seed) } else { seeds.order };
        let order = Order::new(data.rows(), settings.batch_rows, order_seed, settings.batches == Batches::Bootstrap)?;
        let zeros = || vec![0.0; dimension];
        let (motion, swag) = match &settings.method {
            Method::Optimize { optimizer, rank } => {
                (Motion::Optimizer(optimizer.rule.state(dimension)), Some(Swag::new(dimension, *rank)))
            }
            Method::Sample { sampler, burn_in, thin, capacity, .. } => {
                let velocity = if let Sampler::Sghmc(_) = sampler { zeros() } else { Vec::new() };
                (Motion::Chain { chain: Chain::new(dimension, *burn_in, *thin, *capacity)?, velocity }, None)
            }
            Method::Follow { .. } => (Motion::None, None),
        };
        Ok(Self {
            parameters: network.start(seeds.start),
            version: 0,
            snapshot: None,
            gradient: zeros(),
            batch: data.batch(&[0])?,
            order,
            dropout: Generator::new(seeds.dropout),
            noise: Generator::new(seeds.noise),
            prediction: Generator::new(seeds.prediction),
            motion,
            swag,
            curvature: None,
            steps: 0,
            settings,
            problem,
        })
    }

    /// Computes the gradient of the mean loss of the next batch, and returns the loss.
    fn descend(&mut self) -> Result<f64> {
        self.problem.data.gather(self.order.next_batch(), &mut self.batch)?;
        let mode = Mode::train(&mut self.dropout);
        let loss = self.problem.network.value_and_gradient(&self.parameters, &self.batch, mode, &mut self.gradient)?;
        self.steps += 1;
        if loss.is_finite() {
            return Ok(loss);
        }
        let what = format!("the loss of member {} is {loss} at its step {}", self.settings.member, self.steps);
        let hint = "take a smaller learning rate or step size, or scale the inputs";
        Err(Error::new(ErrorKind::InvalidArgument, what).hint(hint))
    }

    /// Turns the gradient of the mean loss into that of the negative log posterior of all data.
    fn widen(&mut self, prior: Option<Normal>) -> Result<()> {
        let rows = self.problem.data.rows() as f32;
        self.gradient.iter_mut().for_each(|slope| *slope *= rows);
        prior.map_or(Ok(()), |prior| prior.add_gradient(&self.parameters, &mut self.gradient))
    }

    fn changed(&mut self) {
        self.version += 1;
        self.snapshot = None;
    }

    /// Moves once, and returns the loss before.
    pub(crate) fn step(&mut self) -> Result<f64> {
        let loss = self.descend()?;
        match self.settings.method.clone() {
            Method::Optimize { optimizer, .. } => {
                let Motion::Optimizer(state) = &mut self.motion else { return Err(self.wrong("step")) };
                optimizer.at(state.steps()).step(state, &mut self.parameters, &self.gradient)?;
            }
            Method::Sample { sampler, prior, .. } => {
                self.widen(prior)?;
                self.sample(sampler)?;
            }
            Method::Follow { .. } => return Err(self.wrong("step")),
        }
        self.changed();
        Ok(loss)
    }

    fn sample(&mut self, sampler: Sampler) -> Result<()> {
        let Motion::Chain { chain, velocity } = &mut self.motion else { return Err(self.wrong("step")) };
        let (parameters, gradient) = (&mut self.parameters, &self.gradient);
        match sampler {
            Sampler::Sgld(sgld) => sgld.step(&mut self.noise, parameters, gradient)?,
            Sampler::Sghmc(sghmc) => sghmc.step(&mut self.noise, parameters, velocity, gradient)?,
            Sampler::Cyclical(cyclical) => {
                let at = cyclical.at(self.steps)?;
                let sgld = Sgld { step_size: at.step_size, temperature: at.temperature };
                sgld.step(&mut self.noise, parameters, gradient)?;
                if !at.samples {
                    return Ok(());
                }
            }
        }
        chain.offer(parameters).map(drop)
    }

    /// Moves so many times, and returns the mean loss.
    pub(crate) fn train(&mut self, steps: u64) -> Result<f64> {
        let mut sum = 0.0;
        for _ in 0..steps {
            sum += self.step()?;
        }
        Ok(sum / steps.max(1) as f64)
    }

    /// Changes the learning rate of the steps that follow, which has no schedule from then on.
    pub(crate) fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        let Method::Optimize { optimizer, .. } = &mut self.settings.method else {
            return Err(self.wrong("learning rate"));
        };
        let mut changed = optimizer.clone();
        changed.rule.set_learning_rate(learning_rate);
        changed.schedule = sheave_optim::Schedule::default();
        changed.check()?;
        *optimizer = changed;
        Ok(())
    }

    /// Takes a snapshot into the Gaussian, and returns how many there are.
    pub(crate) fn collect(&mut self) -> Result<u64> {
        let Some(swag) = &mut self.swag else { return Err(self.wrong("collect")) };
        swag.collect(&self.parameters)?;
        Ok(swag.snapshots)
    }

    /// Goes where it is told, and computes the gradient of the negative log posterior there; returns the mean loss.
    pub(crate) fn follow(&mut self, parameters: &[f32]) -> Result<f64> {
        let Method::Follow { prior } = self.settings.method else { return Err(self.wrong("follow")) };
        self.set(parameters)?;
        let loss = self.descend()?;
        self.widen(prior)?;
        Ok(loss)
    }

    pub(crate) fn gradient(&self) -> &[f32] {
        &self.gradient
    }

    /// Takes over parameters, by copy.
    pub(crate) fn set(&mut self, parameters: &[f32]) -> Result<()> {
        if parameters.len() != self.parameters.len() {
            let what = format!("the length of parameters is {}; expected {}", parameters.len(), self.parameters.len());
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        self.parameters.copy_from_slice(parameters);
        self.changed();
        Ok(())
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the parameters as a tensor that never changes: one copy for each version, however many ask for it.
    pub(crate) fn snapshot(&mut self) -> Result<Tensor> {
        if let Some(snapshot) = &self.snapshot {
            return Ok(snapshot.clone());
        }
        let snapshot = Tensor::from_slice(&self.parameters, [self.parameters.len() as u64])?;
        self.snapshot = Some(snapshot.clone());
        Ok(snapshot)
    }

    /// Predicts rows of inputs with each sample: samples × rows × outputs, and how many samples.
    pub(crate) fn predict(&mut self, inputs: &[f32], draw: Draw) -> Result<(usize, Vec<f32>)> {
        let (network, mut out) = (&self.problem.network, Vec::new());
        let samples = match draw {
            Draw::Own => {
                network.outputs(&self.parameters, inputs, Mode::Evaluate, &mut out)?;
                1
            }
            Draw::Swag { samples, scale } => {
                let Some(swag) = &self.swag else { return Err(self.wrong("predict")) };
                let mut drawn = vec![0.0; self.parameters.len()];
                for _ in 0..samples {
                    swag.sample(scale, &mut self.prediction, &mut drawn)?;
                    network.outputs(&drawn, inputs, Mode::Evaluate, &mut out)?;
                }
                samples
            }
            Draw::Chain => {
                let Motion::Chain { chain, .. } = &self.motion else { return Err(self.wrong("predict")) };
                for sample in chain.samples() {
                    network.outputs(sample, inputs, Mode::Evaluate, &mut out)?;
                }
                chain.samples().len()
            }
            Draw::Dropout { samples } => {
                let before = self.prediction.clone();
                for _ in 0..samples {
                    network.outputs(&self.parameters, inputs, Mode::train(&mut self.prediction), &mut out)?;
                }
                if self.prediction == before && samples > 0 {
                    let what = "the network drops no units, so that all its predictions would be the same";
                    let error = Error::new(ErrorKind::Unsupported, what);
                    return Err(error.hint("make the network with a `Dropout` layer"));
                }
                samples
            }
        };
        Ok((samples, out))
    }

    /// Computes the curvature of the last layer at these parameters, and returns the precision of the prior and the
    /// logarithm of the evidence.
    pub(crate) fn fit_curvature(&mut self) -> Result<(f64, f64)> {
        let curvature = Curvature::fit(&self.problem, &self.parameters)?;
        let fitted = (curvature.prior_precision(), curvature.log_evidence());
        self.curvature = Some((self.version, curvature));
        Ok(fitted)
    }

    /// Predicts with the posterior of the last layer: of classes the probabilities, else means, and a variance for each
    /// row.
    pub(crate) fn predict_curved(&self, inputs: &[f32]) -> Result<(Vec<f64>, Vec<f64>)> {
        match &self.curvature {
            Some((version, curvature)) if *version == self.version => {
                curvature.predict(&self.problem, &self.parameters, inputs)
            }
            _ => {
                let what = "the parameters have changed since the curvature was computed, or it never was";
                Err(Error::new(ErrorKind::InvalidArgument, what).hint("fit before predictions"))
            }
        }
    }

    fn wrong(&self, message: &str) -> Error {
        let method = match self.settings.method {
            Method::Optimize { .. } => "an optimizer moves",
            Method::Sample { .. } => "a sampler moves",
            Method::Follow { .. } => "others move",
        };
        Error::new(ErrorKind::InvalidArgument, format!("\"{message}\" is no message to a member that {method}"))
    }
}
