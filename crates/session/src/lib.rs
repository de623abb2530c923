//! Sessions: one controller, and workers that run its commands in order.
//!
//! The controller calls functions on all workers at once and waits for none of it: the results stay where they were
//! made, in [`Register`]s, which later commands take as arguments. Workers run the same commands on values of their
//! own: a single program on many parts of the data.
//!
//! **Registers** are promised references ([`Mesh::promise`](sheave_mesh::Mesh::promise)): the controller draws their
//! names, and a command goes out without a word about the results of those before it. One that is dropped is freed by
//! the words that ride on the next command.
//!
//! **Order.** Commands are one-way calls to a service that runs on a thread of its own
//! ([`Lane::Own`](sheave_mesh::Lane::Own)): each worker does them one after the other, on one thread, in the order in
//! which they were issued; all workers see the same order, however many threads issue commands. How many are under way
//! is bounded, and then the controller waits for room.
//!
//! **Errors.** What fails on a worker poisons the register that it was to fill, and so what is computed from that; the
//! other workers go on. The worker tells the first cause to whoever waits for it next, with the function, the command's
//! number and the worker. A worker that dies is told once by whatever waits next, and by all that asks that worker. A
//! command that gets to some of the living workers alone breaks the session: everything fails from then on, for what
//! the workers compute together would be wrong.
//!
//! **Together.** Workers move and reduce the tensors in their registers by commands too ([`collective`]), on which they
//! agree first; and they load parameters from files, each its shard ([`shards`]).
//!
//! Source: the model of TVM's Disco (`tvm.runtime.disco`).

mod abort;
mod args;
pub mod collective;
mod commands;
mod functions;
mod held;
mod kept;
mod kinds;
mod lost;
mod nodes;
mod register;
mod results;
mod session;
pub mod shards;
mod threads;
mod unheard;
mod worker;

pub use args::Args;
pub use collective::{Placement, Scope};
pub use commands::{Blocking, Pause};
pub use functions::{
    Arguments, Function, register_function, registered_function, replace_function, unregister_function,
};
pub use held::{Foreign, Held};
pub use kinds::{work, work_as, work_interruptible};
pub use nodes::{Node, Nodes, work_on_node, work_on_node_interruptible};
pub use register::Register;
pub use session::Session;
pub use shards::{ShardFunction, ShardInfo, ShardLoader};
pub use worker::Worker;
