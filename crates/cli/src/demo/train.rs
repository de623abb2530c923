//! The training loop of one process: gradients to the store, weights from it.
//!
//! A process computes the micro-batches of the workers that it stands for: of one, in a distributed job, or of all, one
//! after the other, with a local store. The store sums them in the order of the workers and takes the step, so both
//! give the same weights, bit for bit.

use super::words::{Epoch, GradientBytes};
use sha2::{Digest, Sha256};
use sheave_base::trace::{Lane, Trace};
use sheave_base::{Error, Result};
use sheave_nn::{Digits, Model, Schedule};
use sheave_store::{Compression, Key, KvStore, Rule};
use sheave_tensor::{Arena, Tensor};
use std::ops::Range;
use std::time::Instant;

/// What all processes of one training must have in common.
pub(super) struct Setting {
    pub(super) seed: u64,
    pub(super) epochs: u32,
    pub(super) workers: u32,
    pub(super) batch: usize,
    pub(super) compression: Compression,
}

/// What is left of a training.
pub(super) struct Trained {
    pub(super) weights_sha256: String,
    pub(super) gradient_bytes: GradientBytes,
}

/// Spans of the training, in a lane of the process's trace.
pub(super) struct Recorder<'a> {
    trace: &'a Trace,
    lane: Lane,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(trace: &'a Trace) -> Self {
        Self { trace, lane: trace.lane("training") }
    }

    fn span<T>(&self, name: &'static str, value: u64, act: impl FnOnce() -> T) -> T {
        let mut span = self.trace.span(self.lane, self.trace.name(name));
        span.value(value);
        act()
    }
}

/// All that a training needs.
pub(super) struct Training<'a> {
    pub(super) store: &'a KvStore,
    /// Where gradients and weights lie.
    pub(super) arena: &'a Arena,
    pub(super) digits: &'a Digits,
    pub(super) setting: Setting,
    pub(super) recorder: Recorder<'a>,
}

/// Trains as `mine` of the workers. `report` is called after each epoch by whoever stands for worker 0.
pub(super) fn train(training: &Training<'_>, mine: Range<u32>, report: &mut dyn FnMut(Epoch)) -> Result<Trained> {
    let Training { store, arena, digits, setting, recorder } = training;
    let model = Model::new(setting.seed)?.in_arena(arena);
    let keys: Vec<Key> = model.parameters().into_iter().map(|(name, _)| Key::from(name)).collect();
    let places: Vec<(Key, Tensor)> = keys.iter().cloned().zip(model.weights()?).collect();
    store.init(&places)?;
    store.set_optimizer(rule())?;
    if setting.compression != Compression::None {
        store.set_gradient_compression(setting.compression)?;
    }
    store.barrier()?;
    store.pull(&places)?.wait()?;
    model.set_weights(&tensors(&places))?;

    let (images_for_training, held_out) = (digits.training(), digits.held_out());
    let schedule = Schedule::new(setting.seed, images_for_training.len(), setting.workers as usize, setting.batch)?;
    let gradient_bytes = gradient_bytes(setting.compression, &places);
    let step_bytes = gradient_bytes.plain + gradient_bytes.sent;
    let scale = scale(setting.compression);
    let begun = Instant::now();
    let (mut images, mut bytes) = (0, 0);
    for number in 1..=setting.epochs {
        let mut loss = 0.0;
        for step in 0..schedule.steps() {
            let mut pushes = Vec::with_capacity(keys.len() * mine.len());
            for worker in mine.clone() {
                let indices = schedule.indices(number as usize - 1, step, worker as usize)?;
                let batch = images_for_training.batch(&indices, schedule.global_images())?;
                let outcome = recorder.span("gradients", indices.len() as u64, || model.gradients(&batch));
                let (part, mut gradients) = outcome?;
                loss += f64::from(part);
                if scale != 1.0 {
                    gradients.iter_mut().try_for_each(|gradient| gradient.scale(scale))?;
                }
                pushes.extend(keys.iter().cloned().zip(gradients));
            }
            recorder
                .span("push and pull", step_bytes, || store.push_pull(&pushes, &places).and_then(|work| work.wait()))?;
            model.set_weights(&tensors(&places))?;
            images += u64::from(setting.workers) * setting.batch as u64;
            bytes += u64::from(setting.workers) * step_bytes;
        }
        if mine.contains(&0) {
            let accuracy = recorder.span("evaluate", held_out.len() as u64, || model.accuracy(&held_out))?;
            let seconds = begun.elapsed().as_secs_f64();
            // Each worker has its part of every step's loss.
            let share = mine.len() as f64 / f64::from(setting.workers);
            let loss = loss / schedule.steps().max(1) as f64 / share;
            report(Epoch { number, loss, accuracy, seconds, images, bytes });
        }
    }
    // In an asynchronous store others may still push.
    store.barrier()?;
    store.pull(&places)?.wait()?;
    Ok(Trained { weights_sha256: hash(&places)?, gradient_bytes })
}

/// The optimizer on the servers.
fn rule() -> Rule {
    Rule::adam(0.005)
}

/// The threshold of a code when none is given.
///
/// A worker's gradients here begin below 0.1 and end around 0.0001. With a threshold well below the first ones the
/// residuals run away: a worker then sends less than it computes for hundreds of steps, and what is left over arrives
/// when it is not true any more (0.003 ends at 82 to 93 %). With one far above them weights move in jolts. From 0.02 to
/// 0.1 the demo ends where it ends without a code, within a percent. For `1bit` it is the middle between its two
/// codes.
pub(super) fn threshold(code: Compression) -> f32 {
    match code {
        Compression::TwoBit { .. } => 0.03,
        _ => 0.0,
    }
}

/// What gradients are multiplied by before they are pushed: a power of two, so that they are not rounded. The codes of
/// `1bit` are +1 and −1, so a worker can say no more than 1 of an element in a step, and says no less: here that is
/// 1/128 of a gradient. Adam's steps do not depend on the scale.
fn scale(code: Compression) -> f64 {
    match code {
        Compression::OneBit { .. } => 128.0,
        _ => 1.0,
    }
}

/// What one worker's gradients of one step are, and what is sent of them.
fn gradient_bytes(code: Compression, places: &[(Key, Tensor)]) -> GradientBytes {
    GradientBytes {
        plain: places.iter().map(|(_, place)| place.len_bytes() as u64).sum(),
        sent: places.iter().map(|(_, place)| code.encoded_len_bytes(place.elements()) as u64).sum(),
    }
}

fn tensors(places: &[(Key, Tensor)]) -> Vec<Tensor> {
    places.iter().map(|(_, place)| place.clone()).collect()
}

/// A hash over the bytes of all weights, in the order of the parameters.
fn hash(places: &[(Key, Tensor)]) -> Result<String, Error> {
    let mut hasher = Sha256::new();
    for (_, place) in places {
        hasher.update(&*place.bytes()?);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
