//! Weights from files onto workers, each of which gets its shard.
//!
//! A [`ShardLoader`] reads parameters from safetensors files ([`sheave_tensor::file`]). Worker 0 alone reads those that
//! are to be cut: it makes a tensor of them with one row for each worker, and scatters that. [`ShardInfo`] says how: by
//! functions that run on worker 0 one after the other, or by a dimension. Parameters of which nothing is said are
//! broadcast. Files of which each worker reads its own part hold that under a name of its own, *presharded*:
//! `{name}_shard-{k}-of-{n}`, for worker k - 1 of n.
//!
//! Worker 0 has one parameter at a time in memory, and what the functions make of it. What fails there, a file that is
//! missing or a function that makes something else than was said, is told by all workers, and the next load works.
//!
//! | function | arguments | result |
//! |---|---|---|
//! | `sheave.shard_loader` | paths, infos | a loader |
//! | `sheave.shard_loader.names` | loader | the names of the parameters |
//! | `sheave.shard_loader.load` | loader, name | the worker's shard |
//! | `sheave.shard_loader.load_all` | loader | all shards by name |
//! | `sheave.shard_loader.load_presharded` | loader, name | the worker's shard |
//! | `sheave.shard_loader.load_all_presharded` | loader | all shards by name |
//! | `sheave.shard_loader.load_on_first` | loader, name | the parameter on worker 0, else none |
//!
//! The infos are a dict by the name of the parameter: of a dimension, or of a list of functions, each `[name, [shape,
//! dtype], number…]`. A function is called with the tensor, the numbers and a tensor of that shape and dtype, which it
//! fills, or else it returns another one of them.
//!
//! Source: TVM Disco's `runtime.disco.ShardLoader` and its shard info.

mod cut;
mod files;
mod info;
mod loader;
mod session;

pub use info::{ShardFunction, ShardInfo};
pub(crate) use loader::functions;
pub use session::ShardLoader;
