//! Gradient servers: learners push gradients, which are reduced in a tree of two levels; an optimizer steps, and the
//! new parameters are published.
//!
//! [`GradientServer`] is a node's part of the servers of one name: the *primary*, which has parameters and optimizer,
//! *secondaries*, which sum gradients and send the sums to it, or both. [`GradientClient`] is a learner's access. They
//! find each other in an [`RpcGroup`](sheave_rpc::RpcGroup), under the name of the servers and that of the member.
//!
//! **What is summed.** Each gradient that a push has checked and a secondary has taken is in one sum and in one step,
//! or is reported: as dropped by a full queue, or as lost with its secondary. [`Reducer`] queues and sums, without
//! knowing nodes; the `ledger` knows what became of each gradient.
//!
//! **Where it runs.** A sum reads tens of megabytes, and a step may run the user's code, so neither is done where a
//! node polls its links: services of this crate have a [serial lane](sheave_mesh::Lane::Serial), that is threads of the
//! node, with a mailbox each for pushes, for sums and for questions. So pushes of a client are taken in their order, a
//! long step delays no push, and a report is answered during it.
//!
//! **Memory.** A push copies a gradient once, into the arena of its node. That memory goes to the secondary as it is,
//! and a sum's to the primary, where they reach each other's memory; a sum is made block by block, so that it reads
//! each gradient once and writes once. Arenas give the same memory again to the next step. Parameters are stepped in
//! place unless somebody has kept what was published.
//!
//! **Failures.** A step that fails, or a callback, stops the primary, which has its secondaries ask for the error; from
//! then on it is the answer to every push. When the primary's process dies, the secondaries end with that error. When a
//! secondary dies, clients go to another one.
//!
//! Roles and the order of things follow `machin.parallel.server`'s `PushPullGradServer`, whose queues dropped silently
//! and whose partial batches waited for ever.

mod client;
mod flushes;
#[doc(hidden)]
pub mod fuzz;
mod ledger;
mod model;
mod model_server;
mod parted;
mod primary;
mod protocol;
mod questions;
mod reducer;
mod secondary;
mod server;
mod servers;
mod step;

pub use client::{Choice, ClientReport, GradientClient, Moved};
pub use ledger::Losses;
pub use model::{Model, Tensors};
pub use model_server::{ModelClient, ModelPulled, ModelPushed, ModelServer};
pub use reducer::{Contribution, GradientId, Left, Method, Overflow, Pushed, Reducer, Settings, sum};
pub use server::{GradientServer, GradientServerBuilder, OnDrop, PrimaryReport, ServerReport};
pub use servers::Servers;
pub use step::{Publish, Step};
