//! What a particle has been sent, and what of it has begun. Pure state.

use sheave_base::Error;
use sheave_base::planted::{self, Bug};
use sheave_mesh::Task;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// Something that waits for its turn.
pub(crate) trait Waiting {
    fn number(&self) -> u64;

    /// Swaps those who wait for the answers of two messages.
    fn swap_ends(&mut self, other: &mut Self);
}

/// A message whose handler has begun and has not ended.
pub(crate) struct Begun {
    pub(crate) number: u64,
    pub(crate) name: Arc<str>,
    /// How many waits of its handler are under way.
    pub(crate) waits: u32,
    /// What polls it, if it is a future that has been suspended.
    pub(crate) task: Option<Task>,
}

pub(crate) struct Mailbox<D> {
    /// Messages so far.
    count: u64,
    pub(crate) queue: VecDeque<D>,
    pub(crate) begun: SmallVec<[Begun; 1]>,
    /// It is among the particles that somebody will start.
    pub(crate) is_listed: bool,
    /// A thread will come for it.
    pub(crate) is_submitted: bool,
    pub(crate) is_reentrant: bool,
    /// Why it takes nothing any more.
    pub(crate) over: Option<Error>,
}

impl<D: Waiting> Mailbox<D> {
    pub(crate) fn new(is_reentrant: bool) -> Self {
        let (queue, begun) = (VecDeque::new(), SmallVec::new());
        Self { count: 0, queue, begun, is_listed: false, is_submitted: false, is_reentrant, over: None }
    }

    /// Puts a message at the end, made with its number.
    pub(crate) fn push(&mut self, make: impl FnOnce(u64) -> D) {
        self.count += 1;
        self.queue.push_back(make(self.count));
    }

    /// Takes the next message out.
    pub(crate) fn next(&mut self) -> Option<D> {
        if planted::strikes(Bug::ParticleTurned) {
            return self.queue.pop_back();
        }
        let mut next = self.queue.pop_front()?;
        if let Some(other) = self.queue.front_mut()
            && planted::strikes(Bug::ParticleAnswersSwapped)
        {
            next.swap_ends(other);
        }
        Some(next)
    }

    /// Whether the next message may begin, if there is one.
    pub(crate) fn may_begin(&self) -> bool {
        if planted::strikes(Bug::ParticleShared) {
            return true;
        }
        match self.is_reentrant {
            true => self.begun.iter().all(|begun| begun.waits > 0),
            false => self.begun.is_empty(),
        }
    }

    /// Whether the next message is there and may begin.
    pub(crate) fn is_ready(&self) -> bool {
        !self.queue.is_empty() && self.may_begin()
    }

    /// Whether the caller is to list it at the runtime, which is noted then.
    pub(crate) fn is_to_be_listed(&mut self) -> bool {
        let is_news = self.is_ready() && !self.is_listed && !self.is_submitted;
        self.is_listed |= is_news;
        is_news
    }

    /// Whether the message of this number has not ended.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.begun.iter().any(|begun| begun.number == number) || self.place_of(number).is_some()
    }

    /// Numbers grow along the queue.
    fn place_of(&self, number: u64) -> Option<usize> {
        self.queue.binary_search_by_key(&number, Waiting::number).ok()
    }

    /// Takes out a message that has not begun.
    pub(crate) fn remove(&mut self, number: u64) -> Option<D> {
        self.place_of(number).and_then(|at| self.queue.remove(at))
    }

    pub(crate) fn begun(&mut self, number: u64) -> Option<&mut Begun> {
        self.begun.iter_mut().find(|begun| begun.number == number)
    }

    /// A message has ended. What polled it is to be dropped without a lock.
    pub(crate) fn end(&mut self, number: u64) -> Option<Task> {
        let at = self.begun.iter().position(|begun| begun.number == number)?;
        self.begun.swap_remove(at).task
    }

    /// The messages that keep one of this number from going on: those that have begun, unless it is one of them, in
    /// which case it is kept by itself alone.
    pub(crate) fn keepers(&self, number: u64) -> SmallVec<[(u64, Arc<str>); 1]> {
        let named = |begun: &Begun| (begun.number, Arc::clone(&begun.name));
        if let Some(own) = self.begun.iter().find(|begun| begun.number == number) {
            return SmallVec::from_iter([named(own)]);
        }
        // A re-entrant particle begins it as soon as all others wait.
        if self.is_reentrant || self.place_of(number).is_none() {
            return SmallVec::new();
        }
        self.begun.iter().map(named).collect()
    }
}
