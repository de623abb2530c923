//! Tasks, and where what comes of them goes.

use crate::hand::Load;
use crate::job::Job;
use crate::packet::Packet;
use crate::pool::Shared;
use sheave_base::Result;
use sheave_base::work::Completer;
use std::fmt;
use std::sync::{Arc, Weak};

/// The outcome of a task.
pub type Outcome = Result<Packet>;

/// A function that workers have: it is sent to each worker once, with the first task there that needs it. A handle,
/// cheap to clone; with the last one the workers forget it.
#[derive(Clone)]
pub struct Function(pub(crate) Arc<Definition>);

pub(crate) struct Definition {
    pub(crate) number: u64,
    pub(crate) packet: Packet,
    pub(crate) pool: Weak<Shared>,
}

impl Drop for Definition {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.forget(self.number);
        }
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Function").field(&self.0.number).finish()
    }
}

/// Where the outcome of a task goes.
pub(crate) enum Sink {
    One(Completer<Packet>),
    /// A job, and the place there that the task has once it is added.
    Many(Arc<Job>, u64),
}

impl Sink {
    /// Hands it over. Not under a lock: somebody may be called.
    pub(crate) fn settle(self, outcome: Outcome) {
        match self {
            Self::One(completer) => completer.complete(outcome),
            Self::Many(job, index) => job.settle(index, outcome),
        }
    }
}

/// Something to be done by a worker.
pub(crate) struct Task {
    /// Its number in the pool.
    pub(crate) number: u64,
    pub(crate) function: Function,
    pub(crate) args: Packet,
    /// How often it is given to another worker if one dies of it.
    pub(crate) tries_left: u32,
    pub(crate) sink: Sink,
}

impl Task {
    /// What it takes of the room for tasks that wait.
    pub(crate) fn weight_bytes(&self) -> u64 {
        // An empty one takes room too.
        (self.args.weight_bytes() + size_of::<Self>()) as u64
    }

    /// Whether it is one of this job.
    pub(crate) fn is_of(&self, job: &Arc<Job>) -> bool {
        matches!(&self.sink, Sink::Many(own, _) if Arc::ptr_eq(own, job))
    }
}

impl Load for Task {
    fn load(&self) -> (usize, usize) {
        (self.args.bytes.len(), self.args.tensors.len())
    }
}
