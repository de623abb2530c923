//! A member of a posterior: one network with its parameters, and all that moves them.
//!
//! **Alone and together are the same.** What a member does is a function of its settings, of network and data, and of
//! the messages that it is sent; nothing of other members, threads or nodes enters. So an ensemble has the bits of as
//! many trainings, one after the other. Predictions draw from a generator of their own and write to memory of their
//! own, so that the parameters are the same after them.
//!
//! **Parked and brought back it is the same.** What a member remembers becomes one block of bytes that keeps every bit,
//! and comes of it again. What it only computes in is not kept: gradient and batch are written before they are read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};
use sheave_bayes::langevin::{Chain, Sgld};
use sheave_bayes::prior::Normal;
use sheave_bayes::random::Generator;
use sheave_bayes::swag::Swag;
use sheave_nn::{Dataset, Mode};
use sheave_optim::State;
use sheave_particle::{Parameters, Snapshot};

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
#[derive(Serialize, Deserialize)]
enum Motion {
    Optimizer(State<f32>),
    Chain { chain: Chain<f32>, velocity: Vec<f32> },
    None,
}

/// What a member remembers beside its parameters.
#[derive(Serialize, Deserialize)]
struct Memory {
    settings: MemberSettings,
    /// Those of the one network.
    buffers: [Vec<f32>; 1],
    order: Order,
    dropout: Generator,
    noise: Generator,
    prediction: Generator,
    motion: Motion,
    swag: Option<Swag<f32>>,
    steps: u64,
}

pub(crate) struct Member {
    problem: Arc<Problem>,
    parameters: Parameters,
    memory: Memory,
    /// The posterior of the last layer at a version of the parameters. It stays as it is while the member is parked.
    curvature: Option<(u64, Curvature)>,
    gradient: Vec<f32>,
    batch: Dataset,
}

/// A member that cannot move: its parameters, which can be read, and a block of all else.
pub(crate) struct Parked {
    problem: Arc<Problem>,
    parameters: Parameters,
    curvature: Option<(u64, Curvature)>,
    block: Vec<u8>,
}

impl Parked {
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.parameters.snapshot()
    }

    /// Returns the member, or what it was and why it is not one.
    pub(crate) fn brought(self: Box<Self>) -> std::result::Result<Member, (Box<Self>, Error)> {
        let read = postcard::from_bytes::<Memory>(&self.block)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("a parked member is no member: {error}")));
        let all = read.and_then(|memory| Ok((memory, self.problem.data.batch(&[0])?)));
        match all {
            Ok((memory, batch)) => {
                let Self { problem, parameters, curvature, block: _ } = *self;
                let gradient = vec![0.0; parameters.len()];
                Ok(Member { problem, parameters, memory, curvature, gradient, batch })
            }
            Err(error) => Err((self, error)),
        }
    }
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
        let memory = Memory {
            buffers: [network.start_buffers()],
            order,
            dropout: Generator::new(seeds.dropout),
            noise: Generator::new(seeds.noise),
            prediction: Generator::new(seeds.prediction),
            motion,
            swag,
            steps: 0,
            settings,
        };
        let parameters = Parameters::new(&network.start(seeds.start))?;
        let batch = data.batch(&[0])?;
        Ok(Self { parameters, memory, curvature: None, gradient: zeros(), batch, problem })
    }

    /// Returns a block of what it remembers beside its parameters.
    pub(crate) fn block(&self) -> Result<Vec<u8>> {
        postcard::to_allocvec(&self.memory)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("a member does not become bytes: {error}")))
    }

    /// Parks it with the [block](Self::block) of now.
    pub(crate) fn parked(self, block: Vec<u8>) -> Parked {
        let Self { problem, parameters, curvature, .. } = self;
        Parked { problem, parameters, curvature, block }
    }

    /// Returns how many bytes its numbers take; not counted is what the library computes in, and the curvature.
    pub(crate) fn len_bytes(&self) -> u64 {
        let memory = &self.memory;
        let dimension = self.parameters.len();
        let of_motion = match &memory.motion {
            Motion::Optimizer(state) => state.parts().iter().map(|(_, part)| part.len()).sum(),
            // Mean and squares are in f64.
            Motion::Chain { chain, velocity } => (4 + chain.samples().len()) * dimension + velocity.len(),
            Motion::None => 0,
        };
        let of_swag = memory.swag.as_ref().map_or(0, |swag| (2 + swag.deviations.len()) * dimension);
        let numbers = 2 * dimension + self.batch.inputs().len() + memory.buffers[0].len() + of_motion + of_swag;
        (numbers * size_of::<f32>()) as u64
    }

    /// Computes the gradient of the mean loss of the next batch, and returns the loss.
    fn descend(&mut self) -> Result<f64> {
        let Memory { order, dropout, buffers, steps, settings, .. } = &mut self.memory;
        self.problem.data.gather(order.next_batch(), &mut self.batch)?;
        let mode = Mode::TrainWith { generators: std::slice::from_mut(dropout), buffers };
        let parameters = self.parameters.as_slice()?;
        let loss = self.problem.network.value_and_gradient(&parameters, &self.batch, mode, &mut self.gradient)?;
        *steps += 1;
        if loss.is_finite() {
            return Ok(loss);
        }
        let what = format!("the loss of member {} is {loss} at its step {steps}", settings.member);
        let hint = "take a smaller learning rate or step size, or scale the inputs";
        Err(Error::new(ErrorKind::InvalidArgument, what).hint(hint))
    }

    /// Turns the gradient of the mean loss into that of the negative log posterior of all data.
    fn widen(&mut self, prior: Option<Normal>) -> Result<()> {
        let rows = self.problem.data.rows() as f32;
        self.gradient.iter_mut().for_each(|slope| *slope *= rows);
        prior.map_or(Ok(()), |prior| prior.add_gradient(&self.parameters.as_slice()?, &mut self.gradient))
    }

    /// Moves once, and returns the loss before.
    pub(crate) fn step(&mut self) -> Result<f64> {
        let loss = self.descend()?;
        match self.memory.settings.method.clone() {
            Method::Optimize { optimizer, .. } => {
                let Motion::Optimizer(state) = &mut self.memory.motion else { return Err(self.wrong("step")) };
                let (rule, gradient) = (optimizer.at(state.steps()), &self.gradient);
                self.parameters.update(|parameters| rule.step(state, parameters, gradient))??;
            }
            Method::Sample { sampler, prior, .. } => {
                self.widen(prior)?;
                self.sample(sampler)?;
            }
            Method::Follow { .. } => return Err(self.wrong("step")),
        }
        Ok(loss)
    }

    fn sample(&mut self, sampler: Sampler) -> Result<()> {
        let Memory { motion, noise, steps, .. } = &mut self.memory;
        let Motion::Chain { chain, velocity } = motion else { return Err(self.wrong("step")) };
        let gradient = &self.gradient;
        let is_sample = self.parameters.update(|parameters| match sampler {
            Sampler::Sgld(sgld) => sgld.step(noise, parameters, gradient).map(|()| true),
            Sampler::Sghmc(sghmc) => sghmc.step(noise, parameters, velocity, gradient).map(|()| true),
            Sampler::Cyclical(cyclical) => {
                let at = cyclical.at(*steps)?;
                let sgld = Sgld { step_size: at.step_size, temperature: at.temperature };
                sgld.step(noise, parameters, gradient).map(|()| at.samples)
            }
        })??;
        if is_sample { chain.offer(&self.parameters.as_slice()?).map(drop) } else { Ok(()) }
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
        let Method::Optimize { optimizer, .. } = &mut self.memory.settings.method else {
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
        let Some(swag) = &mut self.memory.swag else { return Err(self.wrong("collect")) };
        swag.collect(&self.parameters.as_slice()?)?;
        Ok(swag.snapshots)
    }

    /// Goes where it is told, and computes the gradient of the negative log posterior there; returns the mean loss.
    pub(crate) fn follow(&mut self, parameters: &[f32]) -> Result<f64> {
        let Method::Follow { prior } = self.memory.settings.method else { return Err(self.wrong("follow")) };
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
        self.parameters.set(parameters)
    }

    pub(crate) fn version(&self) -> u64 {
        self.parameters.version()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.parameters.snapshot()
    }

    /// Predicts rows of inputs with each sample: samples × rows × outputs, and how many samples.
    pub(crate) fn predict(&mut self, inputs: &[f32], draw: Draw) -> Result<(usize, Vec<f32>)> {
        match draw {
            Draw::Own => {
                let (parameters, mut out) = (self.parameters.as_slice()?, Vec::new());
                let mode = Mode::EvaluateWith(&self.memory.buffers);
                self.problem.network.outputs(&parameters, inputs, mode, &mut out)?;
                Ok((1, out))
            }
            Draw::Dropout { samples } => Ok((samples, self.predict_dropped(inputs, samples)?)),
            Draw::Swag { .. } | Draw::Chain => self.predict_samples(inputs, draw),
        }
    }

    /// With other units dropped each time.
    fn predict_dropped(&mut self, inputs: &[f32], samples: usize) -> Result<Vec<f32>> {
        let (parameters, mut out) = (self.parameters.as_slice()?, Vec::new());
        let Memory { prediction, buffers, .. } = &mut self.memory;
        let before = prediction.clone();
        for _ in 0..samples {
            let mode = Mode::DropWith { generators: std::slice::from_mut(prediction), buffers };
            self.problem.network.outputs(&parameters, inputs, mode, &mut out)?;
        }
        if *prediction == before && samples > 0 {
            let what = "the network drops no units, so that all its predictions would be the same";
            return Err(Error::new(ErrorKind::Unsupported, what).hint("make the network with a `Dropout` layer"));
        }
        Ok(out)
    }

    /// With parameters that are not the member's own. Their running means are not its own either: they are those of all
    /// data under each sample (Maddox et al. 2019, section 3.2).
    fn predict_samples(&mut self, inputs: &[f32], draw: Draw) -> Result<(usize, Vec<f32>)> {
        let wrong = || Err(self.wrong("predict"));
        let Memory { settings, motion, swag, prediction, buffers, .. } = &self.memory;
        let (mut prediction, mut buffers, mut out) = (prediction.clone(), buffers.clone(), Vec::new());
        let Problem { network, data } = &*self.problem;
        let mut add = |sample: &[f32]| {
            network.refresh(sample, data, settings.batch_rows, &mut buffers[0])?;
            network.outputs(sample, inputs, Mode::EvaluateWith(&buffers), &mut out)
        };
        let samples = match (draw, motion, swag) {
            (Draw::Swag { samples, scale }, _, Some(swag)) => {
                let mut drawn = vec![0.0; self.parameters.len()];
                for _ in 0..samples {
                    swag.sample(scale, &mut prediction, &mut drawn)?;
                    add(&drawn)?;
                }
                samples
            }
            (Draw::Chain, Motion::Chain { chain, .. }, _) => {
                chain.samples().try_for_each(add)?;
                chain.samples().len()
            }
            _ => return wrong(),
        };
        self.memory.prediction = prediction;
        Ok((samples, out))
    }

    /// Computes the curvature of the last layer at these parameters, and returns the precision of the prior and the
    /// logarithm of the evidence.
    pub(crate) fn fit_curvature(&mut self) -> Result<(f64, f64)> {
        let curvature = Curvature::fit(&self.problem, &self.parameters.as_slice()?, &self.memory.buffers)?;
        let fitted = (curvature.prior_precision(), curvature.log_evidence());
        self.curvature = Some((self.version(), curvature));
        Ok(fitted)
    }

    /// Predicts with the posterior of the last layer: of classes the probabilities, else means, and a variance for each
    /// row.
    pub(crate) fn predict_curved(&self, inputs: &[f32]) -> Result<(Vec<f64>, Vec<f64>)> {
        match &self.curvature {
            Some((version, curvature)) if *version == self.version() => {
                curvature.predict(&self.problem, &self.parameters.as_slice()?, &self.memory.buffers, inputs)
            }
            _ => {
                let what = "the parameters have changed since the curvature was computed, or it never was";
                Err(Error::new(ErrorKind::InvalidArgument, what).hint("fit before predictions"))
            }
        }
    }

    fn wrong(&self, message: &str) -> Error {
        let method = match self.memory.settings.method {
            Method::Optimize { .. } => "an optimizer moves",
            Method::Sample { .. } => "a sampler moves",
            Method::Follow { .. } => "others move",
        };
        Error::new(ErrorKind::InvalidArgument, format!("\"{message}\" is no message to a member that {method}"))
    }
}
