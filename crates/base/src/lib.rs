//! The ground floor of sheave: what every room above needs and nothing else.

pub mod clock;
pub mod collections;
pub mod config;
pub mod contain;
mod error;
pub mod fork;
#[doc(hidden)]
pub mod fuzz;
mod id;
pub mod limits;
pub mod loss;
pub mod numbers;
pub mod park;
#[doc(hidden)]
pub mod planted;
pub mod port;
pub mod process;
pub mod random;
pub mod secret;
pub mod shortage;
#[cfg(feature = "simulated")]
pub mod simulated;
pub mod sync;
pub mod thread;
pub mod trace;
pub mod work;

pub use error::{Error, ErrorKind, Peer, ProcessEnd, Result, UserError};
pub use id::{Epoch, LinkId, NodeId, Rank, Tag};
pub use secret::Secret;
pub use work::Work;
