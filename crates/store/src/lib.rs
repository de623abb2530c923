//! The key-value store: every key names a tensor; workers push gradients to it and pull weights from it.
//!
//! [`KvStore`] is the worker's side, the same for a store within one process ([`Kind::Local`]) and for one that is
//! spread over servers ([`Kind::DistSync`], [`Kind::DistAsync`]); a [`Server`] holds a part of the latter. What a push
//! does to the stored value is said by an [`Updater`]: it replaces it, adds to it, or takes an optimizer's step.
//!
//! **Determinism.** A synchronous store counts the pushes of distinct workers and sums them in the order of their
//! ranks, element by element; so does the local one, in the order of the values that are given. Every element is
//! updated independently of the others. So neither the number of servers, nor how a tensor is cut, nor the order of
//! arrival changes a bit of the result.
//!
//! The model is that of MXNet's `KVStore`, without its order-of-init keys, its aborts and its hangs.
//!
//! ```
//! use sheave_store::{KvStore, Updater};
//! use sheave_tensor::Tensor;
//!
//! let store = KvStore::local("local")?;
//! store.init(&[("w".into(), Tensor::from_slice(&[1.0f32, 2.0], [2])?)])?;
//! store.set_updater(Updater::Sum)?;
//! let gradient = || Tensor::from_slice(&[0.5f32, 0.5], [2]);
//! // Equal keys of one push are summed, and the updater runs once.
//! store.push(&[("w".into(), gradient()?), ("w".into(), gradient()?)])?.wait()?;
//! let place = Tensor::from_slice(&[0.0f32; 2], [2])?;
//! store.pull(&[("w".into(), place.clone())])?.wait()?;
//! assert_eq!(place.to_vec::<f32>()?, [2.0, 3.0]);
//! # Ok::<(), sheave_base::Error>(())
//! ```

mod checkpoint;
mod client;
mod clock;
mod command;
mod compress;
mod dead;
mod device;
mod environment;
#[doc(hidden)]
pub mod fuzz;
mod held;
mod key;
mod kind;
mod layout;
mod learn;
mod local;
mod protocol;
mod round;
mod rows;
mod server;
mod slot;
mod store;
mod sum;
mod updater;
mod user_merge;
mod waiter;

pub use command::Controller;
pub use compress::Compression;
pub use dead::num_dead_node;
pub use environment::Environment;
pub use key::Key;
pub use kind::Kind;
pub use protocol::OnWorkerLoss;
pub use rows::Rows;
pub use server::{Server, ServerConfig, run_server};
pub use sheave_optim::{Optimizer, Rule};
pub use store::{Config, KvStore, Options};
pub use updater::{Function, Updater, slice_start};
