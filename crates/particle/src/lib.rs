//! Particles: objects with a mailbox, which send each other messages and wait for each other, on one node or many.
//!
//! A [`Particle`](Particles::create) has a state and [handlers](Behavior) of messages, which can be added while it
//! lives. It handles one message after the other, those of each sender in the order in which they were sent. A message
//! is answered with what its handler returns, or with its error: an [`Answer`] is waited for again and again, by
//! threads and by handlers, and a particle is reached in the same way wherever it lives.
//!
//! Handlers are futures, or functions that may block; both may wait for other particles. Who waits for a particle runs
//! its handlers meanwhile, so that a message costs no hand-over between threads. A circle of handlers that wait for
//! each other is an error that names them, and a particle that is [re-entrant](Behavior::reentrant) handles the next
//! message while its handlers wait.
//!
//! The parameters of a particle are [one flat vector](Parameters) with immutable snapshots. Where a device has room for
//! some particles only, a [`Cache`] says who is there.
//!
//! Mailboxes, messages by name and a runtime for each device follow PusH, where a send runs its handler on the spot, an
//! error ends the runtime, and a circle of waits hangs.

mod answer;
mod behavior;
mod cache;
mod context;
mod current;
mod id;
mod mailbox;
mod message;
mod parameters;
mod particle;
mod particles;
mod service;
mod unseen;
mod waits;

pub use answer::{Answer, Awaiting};
pub use behavior::Behavior;
pub use cache::{Cache, CacheOptions, CacheStatistics, Guard, Key, Policy, Resident};
pub use context::Context;
pub use id::ParticleId;
pub use message::{Message, Payload};
pub use parameters::{Parameters, Snapshot};
pub use particles::Particles;
