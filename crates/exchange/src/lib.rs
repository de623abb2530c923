//! Batched push-pull between workers and servers, with the lowest latency and nothing stored.
//!
//! Every *worker* pushes the same tensors to all *servers* of its lane and names the tensors that their answers go to.
//! A server takes one request of every worker at a time, as a [`Batch`], computes, and answers each straight into the
//! worker's tensors. This is the model of attention and expert servers of one model (StepMesh calls it AFD); a key
//! names a place, not a value.
//!
//! * **Who talks to whom.** Workers and servers are the nodes of these roles in a mesh. With [`Config::lanes`] each of
//!   them stands for several processes, one for each lane, and lanes have nothing to do with each other.
//! * **Which requests belong together.** A worker numbers its requests; the batch of that number has one request of
//!   each worker. A request may also name its step, and the steps of a batch must agree.
//! * **Where tensors land.** Pushes land where the server has registered a place for their key and worker, so that the
//!   parts of all workers lie side by side, or else in the arena. Answers land in the worker's tensors, or come as
//!   tensors of the arena, without a copy if they were moved.
//! * **What holds back whom.** A worker has at most [`Config::window`] requests in flight. A push to a registered place
//!   waits until the request that lies there is answered.
//! * **What ends.** Everything that needs a node that died, or left, ends with an error that names it.
//!
//! [`words`](self) travel as messages of their own kind, past the matching of receives: a small request costs no
//! allocation, no hand-over between threads and no lock that anybody waits for.

mod batch;
mod clock;
#[doc(hidden)]
pub mod fuzz;
mod inbound;
mod lane;
mod place;
mod plan;
mod request;
mod server;
mod trace;
mod word;
mod worker;

pub use batch::{Batch, Request};
pub use clock::{Stamps, monotonic_ns};
pub use inbound::KEPT_BYTES_MAX;
pub use lane::{Config, Scope, WINDOW_MAX};
pub use place::Registration;
pub use server::{Answer, Handler, Server};
pub use worker::{Handle, Pull, Push, Terms, Worker};
