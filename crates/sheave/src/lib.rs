//! sheave as one library: the rooms as modules, a [`prelude`] of what most programs use, and what shortens programs.
//!
//! [`run`] joins the job that the environment describes, whoever has launched it, and ends with it in order. Inside it
//! a program opens a [`store`], makes a [`Communicator`](collective::Communicator) or an [`exchange`], or calls what
//! others serve ([`mesh`]).
//!
//! ```
//! use sheave::prelude::*;
//!
//! # fn main() {
//! # let status =
//! sheave::run(|mesh| {
//!     let all = Collectives::new(mesh)?.group(&mesh.world())?;
//!     let mut gradient = [1.0f32, 2.0, 3.0];
//!     all.all_reduce_slice(&mut gradient, Operator::Avg)?;
//!     println!("{} of {}: {gradient:?}", mesh.name(), all.size());
//!     Ok(())
//! })
//! # ;
//! # assert_eq!(status, std::process::ExitCode::SUCCESS);
//! # }
//! ```

mod run;
mod slices;
mod values;

pub use run::{run, run_with};
pub use sheave_base::{Error, ErrorKind, Peer, Result, Work};
pub use slices::Slices;
pub use values::Values;

pub use sheave_bayes as bayes;
pub use sheave_collective as collective;
pub use sheave_exchange as exchange;
pub use sheave_fleet as fleet;
pub use sheave_learner as learner;
pub use sheave_mesh as mesh;
pub use sheave_net as net;
#[cfg(feature = "models")]
pub use sheave_nn as nn;
pub use sheave_optim as optim;
pub use sheave_particle as particle;
pub use sheave_placement as placement;
pub use sheave_pool as pool;
#[cfg(feature = "models")]
pub use sheave_posterior as posterior;
pub use sheave_process as process;
pub use sheave_rpc as rpc;
pub use sheave_session as session;
pub use sheave_store as store;
pub use sheave_tensor as tensor;
pub use sheave_wire as wire;

/// The ground under all rooms: errors, ids, limits, settings and works.
pub use sheave_base as base;

/// What most programs use.
pub mod prelude {
    pub use crate::{Error, ErrorKind, Result, Slices, Values, Work};
    pub use sheave_base::{NodeId, Rank};
    pub use sheave_collective::{Collectives, Communicator, Operator};
    pub use sheave_mesh::{Call, Config, Group, Mesh, Ref, Request, Role};
    pub use sheave_optim::Rule;
    pub use sheave_store::{Key, Kind, KvStore, ServerConfig, run_server};
    pub use sheave_tensor::{Dtype, Shape, Tensor};
    pub use sheave_wire::Value;
}

/// The README's program, which is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadMe;
