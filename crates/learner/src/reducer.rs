//! A bounded queue of gradients, and their sums.
//!
//! Nothing here knows nodes, links or time but as numbers. Gradients are summed in the order in which they came,
//! element by element and each sum rounded on its own, in the dtype of the parameter: so the same arrivals give the
//! same bits. A sum knows which gradients are in it. A mean is taken once, of the sum of all, by their number: so it is
//! the true mean however unequal the partial batches were that it was made of.

use crate::model::Model;
use sheave_base::clock::Time;
use sheave_base::collections::HashMap;
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, NodeId, Result, limits};
use sheave_tensor::{Arena, Dtype, Op, Tensor, reduce};
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::time::Duration;

/// Sums are made in blocks of so many bytes, which stay in the cache of a core while all gradients are added.
const BLOCK_BYTES: usize = 128 << 10;

/// The way in which gradients become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Their sum.
    #[default]
    Sum,
    /// Their sum, divided by how many gradients of learners are in it. The sum is of the parameter's dtype, and may be
    /// infinite in `f16` though the mean is not.
    Mean,
}

/// The fate of gradients that come while the queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The answer to the push waits until there is room.
    #[default]
    PushBack,
    /// The oldest gradient in the queue is dropped, counted and reported.
    DropOldest,
}

/// Settings of how gradients are queued and reduced, at each server of one name the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The way in which gradients become one.
    pub method: Method,
    /// The number of gradients that a secondary sums before it sends them to the primary, and of such sums that the
    /// primary takes for a step. From 1 to [`LEARNER_BATCH_MAX`](limits::LEARNER_BATCH_MAX); 4 by default.
    pub batch: usize,
    /// The number of gradients that a queue has at most: more than `batch`, and at most
    /// [`LEARNER_QUEUE_MAX`](limits::LEARNER_QUEUE_MAX); 64 by default.
    pub queue_max: usize,
    /// The fate of gradients that come while the queue of a secondary is full. The primary loses nothing: its
    /// secondaries wait.
    pub overflow: Overflow,
    /// The time that a gradient waits for its batch to be full, at the secondary and again at the primary, before it
    /// goes on without; for ever by default.
    pub flush_after: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        let (method, overflow) = Default::default();
        Self { method, batch: 4, queue_max: 64, overflow, flush_after: None }
    }
}

impl Settings {
    /// Checks that the settings have a meaning.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the setting, its value and what was expected.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
        if !(1..=limits::LEARNER_BATCH_MAX).contains(&self.batch) {
            return wrong(format!("a batch of {}; expected 1 to {}", self.batch, limits::LEARNER_BATCH_MAX));
        }
        if !(self.batch + 1..=limits::LEARNER_QUEUE_MAX).contains(&self.queue_max) {
            let (least, most) = (self.batch + 1, limits::LEARNER_QUEUE_MAX);
            return wrong(format!("a queue_max of {}; expected {least} to {most}", self.queue_max));
        }
        match self.flush_after {
            Some(Duration::ZERO) => wrong("a flush_after of 0; expected more, or none".into()),
            _ => Ok(()),
        }
    }
}

/// The name of a gradient: the node and the client on it that have pushed it, and the number that the client gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GradientId {
    /// The node of the client.
    pub node: NodeId,
    /// The number of the client on that node.
    pub client: u32,
    /// The client's number of the gradient, from 1.
    pub number: u64,
}

/// A gradient, or a sum of some.
#[derive(Debug)]
pub struct Contribution {
    pub(crate) segments: Vec<Tensor>,
    pub(crate) ids: Vec<GradientId>,
}

impl Contribution {
    /// Packs a gradient of a model into an arena.
    ///
    /// # Errors
    ///
    /// As [`Model::check`]; `LimitExceeded` where the arena is used up.
    pub fn new(model: &Model, id: GradientId, gradient: &crate::Tensors, arena: &Arena) -> Result<Self> {
        Ok(Self { segments: model.pack(gradient, arena)?, ids: vec![id] })
    }

    /// Returns which gradients it is made of.
    #[must_use]
    pub fn ids(&self) -> &[GradientId] {
        &self.ids
    }

    /// Returns the tensors of all parameters, which are views of its memory.
    ///
    /// # Errors
    ///
    /// `Mismatch` for one of another model.
    pub fn tensors(&self, model: &Model) -> Result<crate::Tensors> {
        model.check_segments(model.fingerprint(), &self.segments)?;
        model.split(&self.segments)
    }

    /// Divides a sum by the number of gradients in it.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` where the arena is used up; `BufferInUse` while somebody writes the memory.
    pub fn into_mean(mut self, arena: &Arena) -> Result<Self> {
        let factor = 1.0 / self.ids.len().max(1) as f64;
        for segment in &mut self.segments {
            *segment = writable(segment.clone(), arena)?;
        }
        self.segments.iter_mut().try_for_each(|segment| segment.scale(factor))?;
        Ok(self)
    }
}

/// The tensor, or a copy of it in an arena where somebody else has its memory too.
pub(crate) fn writable(tensor: Tensor, arena: &Arena) -> Result<Tensor> {
    // One handle is the argument, and one that of the caller, which it overwrites.
    if tensor.buffer().handles() <= 2 && !tensor.buffer().is_read_only() {
        return Ok(tensor);
    }
    let mut copy = Tensor::empty(arena, tensor.dtype(), tensor.shape())?;
    copy.bytes_mut()?.copy_from_slice(&tensor.bytes()?);
    Ok(copy)
}

/// Sums contributions of one model, in their order.
///
/// # Errors
///
/// `InvalidArgument` for none at all; `Mismatch` for contributions of different models; `LimitExceeded` where the arena
/// is used up.
pub fn sum(mut contributions: Vec<Contribution>, arena: &Arena) -> Result<Contribution> {
    match contributions.len() {
        0 => return Err(Error::new(ErrorKind::InvalidArgument, "a sum of nothing").operation("reduce gradients")),
        1 => return Ok(contributions.remove(0)),
        _ => {}
    }
    let added = (0..contributions[0].segments.len()).map(|at| sum_segment(&contributions, at, arena));
    let segments = added.collect::<Result<_>>().map_err(|error| error.asked_for("reduce gradients"))?;
    Ok(Contribution { segments, ids: contributions.into_iter().flat_map(|part| part.ids).collect() })
}

fn sum_segment(contributions: &[Contribution], at: usize, arena: &Arena) -> Result<Tensor> {
    let parts = contributions.iter().map(|part| part.segments.get(at));
    let mismatch = || Error::new(ErrorKind::Mismatch, "gradients of different models in one sum");
    let parts = parts.collect::<Option<Vec<_>>>().ok_or_else(mismatch)?;
    let (dtype, shape): (Dtype, _) = (parts[0].dtype(), parts[0].shape());
    if parts.iter().any(|part| (part.dtype(), part.shape()) != (dtype, shape)) {
        return Err(mismatch());
    }
    let mut total = Tensor::empty(arena, dtype, shape)?;
    let views = parts.into_iter().map(Tensor::bytes).collect::<Result<Vec<_>>>()?;
    let mut start = 0;
    for block in total.bytes_mut()?.chunks_mut(BLOCK_BYTES) {
        let range = start..start + block.len();
        block.copy_from_slice(&views[0][range.clone()]);
        views[1..].iter().try_for_each(|view| reduce(Op::Sum, dtype, block, &view[range.clone()]))?;
        start = range.end;
    }
    Ok(total)
}

/// The outcome of pushing a contribution.
#[derive(Debug)]
pub enum Pushed<W> {
    /// It is in the queue, in place of these, which were the oldest. The waiter is given back.
    Taken(W, Vec<GradientId>),
    /// It waits for room, with its waiter.
    Waits,
    /// It was refused.
    Refused(W, Error),
}

/// The contents of a queue that was emptied.
#[derive(Debug)]
pub struct Left<W> {
    /// Gradients that were queued.
    pub queued: Vec<GradientId>,
    /// Gradients that waited for room.
    pub waited: Vec<GradientId>,
    /// Waiters of those.
    pub waiters: Vec<W>,
}

/// A queue of contributions: a state without locks and waits. `W` is what waits for room with a contribution.
///
/// ```
/// use sheave_base::NodeId;
/// use sheave_base::clock::Time;
/// use sheave_learner::{Contribution, GradientId, Model, Pushed, Reducer, Settings, Tensors, sum};
/// use sheave_tensor::{Arena, ArenaConfig, Tensor};
///
/// let arena = Arena::new(ArenaConfig::default());
/// let mut reducer = Reducer::new(Settings { batch: 2, ..Settings::default() })?;
/// for number in 1..=2 {
///     let gradient = Tensors::from([("w".to_owned(), Tensor::from_slice(&[number as f32], [1])?)]);
///     let id = GradientId { node: NodeId(1), client: 0, number };
///     let contribution = Contribution::new(&Model::of(&gradient)?, id, &gradient, &arena)?;
///     assert!(matches!(reducer.push(contribution, (), Time(0)), Pushed::Taken((), _)));
/// }
/// let total = sum(reducer.take(false).expect("two are a batch"), &arena)?;
/// assert_eq!(total.ids().len(), 2);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Debug)]
pub struct Reducer<W> {
    settings: Settings,
    queue: VecDeque<(Contribution, Time)>,
    waiting: VecDeque<(Contribution, W)>,
    /// How often each gradient is queued, and waits for room.
    kept: HashMap<GradientId, usize>,
    /// Contributions that the queue has taken so far, and that have left it, either way.
    taken: u64,
    gone: u64,
}

impl<W> Reducer<W> {
    /// Returns an empty queue.
    ///
    /// # Errors
    ///
    /// As [`Settings::check`].
    pub fn new(settings: Settings) -> Result<Self> {
        settings.check()?;
        let (queue, waiting, kept) = Default::default();
        Ok(Self { settings, queue, waiting, kept, taken: 0, gone: 0 })
    }

    /// Returns how many contributions are queued.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether none is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns how many wait for room.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns how many contributions the queue has taken so far.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns how many contributions have left the queue so far, summed or dropped.
    #[must_use]
    pub fn gone(&self) -> u64 {
        self.gone
    }

    /// Returns when the oldest that is queued has come.
    #[must_use]
    pub fn oldest(&self) -> Option<Time> {
        self.queue.front().map(|(_, came)| *came)
    }

    /// Returns whether this gradient is queued, or waits for room.
    #[must_use]
    pub fn has(&self, id: GradientId) -> bool {
        self.kept.contains_key(&id)
    }

    /// Queues a contribution that came now. At most [`LEARNER_WAITING_MAX`](limits::LEARNER_WAITING_MAX) wait for room.
    pub fn push(&mut self, contribution: Contribution, waiter: W, now: Time) -> Pushed<W> {
        self.push_as(self.settings.overflow, contribution, waiter, now)
    }

    /// Queues a contribution as [`Reducer::push`] does, with another answer to overflow than that of the settings.
    pub fn push_as(&mut self, overflow: Overflow, contribution: Contribution, waiter: W, now: Time) -> Pushed<W> {
        let mut dropped = Vec::new();
        if self.queue.len() >= self.settings.queue_max || !self.waiting.is_empty() {
            if overflow == Overflow::PushBack || !self.waiting.is_empty() {
                if self.waiting.len() >= limits::LEARNER_WAITING_MAX {
                    let what = format!("{} gradients wait for room already", self.waiting.len());
                    let hint = "await earlier pushes before you push more";
                    return Pushed::Refused(waiter, Error::new(ErrorKind::LimitExceeded, what).hint(hint));
                }
                self.keep(&contribution);
                self.waiting.push_back((contribution, waiter));
                return Pushed::Waits;
            }
            if let Some((oldest, _)) = self.queue.pop_front() {
                self.gone += 1;
                self.let_go(&oldest);
                dropped = oldest.ids;
            }
        }
        self.enqueue(contribution, now);
        Pushed::Taken(waiter, dropped)
    }

    fn enqueue(&mut self, contribution: Contribution, now: Time) {
        if planted::strikes(Bug::SumTwice) {
            self.keep(&contribution);
            let Contribution { segments, ids } = &contribution;
            self.queue.push_back((Contribution { segments: segments.clone(), ids: ids.clone() }, now));
            self.taken += 1;
        }
        self.keep(&contribution);
        self.queue.push_back((contribution, now));
        self.taken += 1;
    }

    fn keep(&mut self, contribution: &Contribution) {
        contribution.ids.iter().for_each(|id| *self.kept.entry(*id).or_default() += 1);
    }

    fn let_go(&mut self, contribution: &Contribution) {
        for id in &contribution.ids {
            if let Entry::Occupied(mut kept) = self.kept.entry(*id) {
                *kept.get_mut() -= 1;
                if *kept.get() == 0 {
                    kept.remove();
                }
            }
        }
    }

    /// Takes the next batch, in the order in which it came: a whole one, or with `partial` what there is.
    pub fn take(&mut self, partial: bool) -> Option<Vec<Contribution>> {
        let count = self.queue.len().min(self.settings.batch);
        if count == 0 || count < self.settings.batch && !partial {
            return None;
        }
        self.gone += count as u64;
        let batch: Vec<_> = self.queue.drain(..count).map(|(contribution, _)| contribution).collect();
        batch.iter().for_each(|contribution| self.let_go(contribution));
        Some(batch)
    }

    /// Queues those that wait, in the order in which they came, as far as there is room. Who is not `wanted` any more
    /// is forgotten. Returns the waiters of those that were queued, and which gradients were forgotten.
    pub fn admit(&mut self, now: Time, wanted: impl Fn(&W) -> bool) -> (Vec<W>, Vec<GradientId>) {
        let (mut admitted, mut forgotten) = (Vec::new(), Vec::new());
        while self.queue.len() < self.settings.queue_max
            && let Some((contribution, waiter)) = self.waiting.pop_front()
        {
            self.let_go(&contribution);
            if wanted(&waiter) {
                self.enqueue(contribution, now);
                admitted.push(waiter);
            } else {
                forgotten.extend(contribution.ids);
            }
        }
        (admitted, forgotten)
    }

    /// Empties it, and returns what was in it.
    pub fn clear(&mut self) -> Left<W> {
        self.gone += self.queue.len() as u64;
        self.kept.clear();
        let queued = self.queue.drain(..).flat_map(|(contribution, _)| contribution.ids).collect();
        let (waited, waiters): (Vec<_>, _) =
            self.waiting.drain(..).map(|(contribution, waiter)| (contribution.ids, waiter)).unzip();
        Left { queued, waited: waited.concat(), waiters }
    }
}

#[cfg(test)]
mod tests;
