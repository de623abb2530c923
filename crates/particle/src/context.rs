//! What a handler knows.

use crate::answer::Answer;
use crate::current::Current;
use crate::id::ParticleId;
use crate::message::{Message, Payload};
use crate::particle::Particle;
use crate::particles::{Inner, Particles};
use sheave_base::{Error, ErrorKind, Result};
use std::any::{Any, type_name};
use std::fmt;
use std::sync::Arc;

/// The particle that a handler runs for, and the message that it handles. Clones are handles to the same.
pub struct Context<M: Payload = Message> {
    runtime: Arc<Inner<M>>,
    particle: Arc<Particle<M>>,
    number: u64,
}

impl<M: Payload> Clone for Context<M> {
    fn clone(&self) -> Self {
        Self { runtime: Arc::clone(&self.runtime), particle: Arc::clone(&self.particle), number: self.number }
    }
}

impl<M: Payload> Context<M> {
    pub(crate) fn new(runtime: &Arc<Inner<M>>, particle: &Arc<Particle<M>>, number: u64) -> Self {
        Self { runtime: Arc::clone(runtime), particle: Arc::clone(particle), number }
    }

    pub(crate) fn current(&self) -> Current {
        Current { runtime: self.runtime.address(), particle: self.particle.id().number, number: self.number }
    }

    /// Returns the particle that the message was sent to.
    #[must_use]
    pub fn id(&self) -> ParticleId {
        self.particle.id()
    }

    /// Returns the state of the particle, as it was given to [`Behavior::new`](crate::Behavior::new). Handlers of one
    /// particle run one at a time, unless it is re-entrant, so a lock around it is free.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it is of another type.
    pub fn state<S: Any + Send + Sync>(&self) -> Result<&S> {
        self.particle.state.downcast_ref().ok_or_else(|| {
            let what = format!("the state of {} is no {}", self.id(), type_name::<S>());
            Error::new(ErrorKind::InvalidArgument, what).hint("ask for the type that the particle was made with")
        })
    }

    /// Sends a message, as [`Particles::send`]. What one handler sends to one particle is handled there in that order.
    pub fn send(&self, to: ParticleId, name: &str, message: impl Into<M>) -> Answer<M> {
        self.runtime.send(to, name, message.into())
    }

    /// Returns all particles of this node, by which others can be reached too.
    #[must_use]
    pub fn particles(&self) -> Particles<M> {
        Particles::of(Arc::clone(&self.runtime))
    }
}

impl<M: Payload> fmt::Debug for Context<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("particle", &self.id()).finish_non_exhaustive()
    }
}
