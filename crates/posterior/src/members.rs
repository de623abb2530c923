//! The members of one posterior, wherever they live, and what is asked of all of them.

use std::sync::Arc;

use parking_lot::Mutex;
use sheave_base::work::{Completer, pair};
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_nn::Loss;
use sheave_particle::{Answer, Message, ParticleId};
use sheave_tensor::Tensor;
use sheave_wire::Value;

use crate::behavior::{count, nth_tensor, number, tensor, write_draw};
use crate::inference::Inference;
use crate::member::Draw;
use crate::prediction::Prediction;
use crate::settings::{Batches, MemberSettings, Method};

/// The most members of one posterior.
pub const MEMBERS_MAX: usize = 4096;

/// How far a fit is, after each of its epochs.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The epoch that has ended, from 1.
    pub epoch: usize,
    /// How many there are in this fit.
    pub epochs: usize,
    /// The mean loss of each member in this epoch, before each step.
    pub losses: &'a [f64],
}

/// What all posteriors say about their members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    pub(crate) members: usize,
    pub(crate) batch_rows: usize,
    pub(crate) batches: Batches,
    pub(crate) seed: u64,
}

/// Members are removed with it, those of other nodes by a word that nobody waits for.
pub(crate) struct Members {
    pub(crate) inference: Inference,
    pub(crate) ids: Vec<ParticleId>,
    steps: usize,
}

impl Members {
    /// Makes the members, and waits for those of other nodes.
    pub(crate) fn new(inference: &Inference, common: Common, method: &Method) -> Result<Self> {
        Self::some(inference, common, method, 0..common.members)
    }

    /// As [`new`](Self::new), of a range of the members alone.
    pub(crate) fn some(
        inference: &Inference,
        common: Common,
        method: &Method,
        range: std::ops::Range<usize>,
    ) -> Result<Self> {
        if !(1..=MEMBERS_MAX).contains(&common.members) {
            let what = format!("members is {}; expected 1 to {MEMBERS_MAX}", common.members);
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("posterior"));
        }
        let settings = |member: usize| MemberSettings {
            seed: common.seed,
            member: member as u64,
            batches: common.batches,
            batch_rows: common.batch_rows,
            method: method.clone(),
        };
        // It refuses here what all nodes would.
        settings(0).check()?;
        let data = &inference.problem.data;
        let steps = crate::Order::new(data.rows(), common.batch_rows, 0, false)?.steps();
        let mut members = Self { inference: inference.clone(), ids: Vec::new(), steps };
        let create = |member: usize| {
            let node = inference.nodes[member % inference.nodes.len()];
            inference.particles.create_on(node, &inference.kind, settings(member).write()?)
        };
        let created: Vec<Work<ParticleId>> = range.map(create).collect::<Result<_>>()?;
        let mut failed = None;
        for work in created {
            // All are waited for, so that those that were made are removed.
            match work.wait() {
                Ok(id) => members.ids.push(id),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(members), Err)
    }

    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Steps of an epoch.
    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    /// Sends each member its message, and waits for all answers, in the order of members.
    pub(crate) fn ask(&self, name: &'static str, mut message: impl FnMut(usize) -> Message) -> Result<Vec<Message>> {
        let particles = &self.inference.particles;
        let sent = self.ids.iter().enumerate().map(|(member, id)| particles.send(*id, name, message(member)));
        let answers: Vec<Answer> = sent.collect();
        let here = self.inference.node;
        if self.ids.iter().all(|id| id.node == here) {
            // This thread handles the messages of those that have not begun.
            return answers.iter().map(Answer::wait).collect();
        }
        first_error(&answers).wait()
    }

    /// Trains for some epochs, each of which is one message to each member.
    pub(crate) fn fit(&self, epochs: usize, mut progress: impl FnMut(&Progress<'_>)) -> Result<Vec<f64>> {
        let mut losses = Vec::new();
        for epoch in 1..=epochs {
            let steps = Value::Int(self.steps as i64);
            let answers = self.ask("train", |_| Message::of(steps.clone())).map_err(named("fit"))?;
            losses.clear();
            for answer in answers {
                losses.push(number(&answer.value)?);
            }
            progress(&Progress { epoch, epochs, losses: &losses });
        }
        Ok(losses)
    }

    /// Asks all members for predictions of rows of inputs.
    pub(crate) fn predict(&self, inputs: &[f32], draw: Draw) -> Result<Prediction> {
        let network = &self.inference.problem.network;
        let rows = self.rows(inputs)?;
        let inputs = Tensor::from_slice(inputs, [rows as u64, network.input_width() as u64])?;
        let ask = |_| Message::of(write_draw(draw)).tensor(inputs.clone());
        let answers = self.ask("predict", ask).map_err(named("predict"))?;
        let (width, mut samples) = (network.output_width(), Vec::new());
        for answer in &answers {
            let outputs = tensor(answer)?.as_slice::<f32>()?;
            let drawn = count(&answer.value)? as usize;
            if outputs.len() != drawn * rows * width {
                let what = format!("{} outputs of {drawn} samples; expected {rows} × {width} of each", outputs.len());
                return Err(Error::new(ErrorKind::Mismatch, what).operation("predict"));
            }
            samples.extend(outputs.chunks_exact(rows * width).map(<[f32]>::to_vec));
        }
        Prediction::new(network.loss(), rows, width, samples)
    }

    /// The parameters of all members.
    pub(crate) fn parameters(&self) -> Result<Vec<Vec<f32>>> {
        let answers = self.ask("parameters", |_| Message::default()).map_err(named("parameters"))?;
        answers.iter().map(|answer| tensor(answer)?.to_vec::<f32>()).collect()
    }

    /// What members predict with the posterior of their last layers: values and variances of each.
    pub(crate) fn predict_curved(&self, inputs: &[f32]) -> Result<Vec<[Vec<f64>; 2]>> {
        let inputs =
            Tensor::from_slice(inputs, [self.rows(inputs)? as u64, self.inference.network().input_width() as u64])?;
        let answers =
            self.ask("predict curved", |_| Message::default().tensor(inputs.clone())).map_err(named("predict"))?;
        let read = |answer: &Message| Ok([nth_tensor(answer, 0)?.to_vec()?, nth_tensor(answer, 1)?.to_vec()?]);
        answers.iter().map(read).collect()
    }

    fn rows(&self, inputs: &[f32]) -> Result<usize> {
        let width = self.inference.problem.network.input_width();
        if !inputs.is_empty() && inputs.len().is_multiple_of(width) {
            return Ok(inputs.len() / width);
        }
        let what = format!("the length of inputs is {}; expected a multiple of {width} above zero", inputs.len());
        Err(Error::new(ErrorKind::InvalidArgument, what).operation("predict"))
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for id in &self.ids {
            // A node that is gone has no particles either.
            drop(self.inference.particles.remove_on(*id));
        }
    }
}

/// Refuses a loss that says nothing about a likelihood.
pub(crate) fn check_likelihood(loss: Loss) -> Result<()> {
    if loss.is_likelihood() {
        return Ok(());
    }
    let what = "the loss is the mean squared error; expected the negative logarithm of a likelihood";
    Err(Error::new(ErrorKind::InvalidArgument, what)
        .operation("posterior")
        .hint("take `Loss::Gaussian`, which knows how large the noise is, or `Loss::GaussianHead`"))
}

pub(crate) fn named(operation: &'static str) -> impl Fn(Error) -> Error {
    move |error| error.operation(operation)
}

/// Ends with all answers, or as soon as one has failed: what others still compute does not delay the word of a death.
fn first_error(answers: &[Answer]) -> Work<Vec<Message>> {
    struct Left {
        count: usize,
        values: Vec<Option<Message>>,
        completer: Option<Completer<Vec<Message>>>,
    }
    let (completer, all) = pair("members");
    let count = answers.len();
    let left = Arc::new(Mutex::new(Left { count, values: vec![None; count], completer: Some(completer) }));
    for (place, answer) in answers.iter().enumerate() {
        let left = Arc::clone(&left);
        answer.work().on_complete(move |outcome| {
            let mut state = left.lock();
            state.count -= 1;
            let ended = match outcome {
                Err(error) => Some(Err(error.clone())),
                Ok(value) => {
                    state.values[place] = Some(value.clone());
                    (state.count == 0).then(|| Ok(std::mem::take(&mut state.values).into_iter().flatten().collect()))
                }
            };
            let complete = ended.and_then(|outcome| Some((state.completer.take()?, outcome)));
            drop(state);
            if let Some((completer, outcome)) = complete {
                completer.complete(outcome);
            }
        });
    }
    all
}
