//! The ground floor of sheave: what every room above needs and nothing else.

mod error;
mod id;
pub mod limits;
pub mod secret;

pub use error::{Error, ErrorKind, Peer, Result};
pub use id::{Epoch, LinkId, NodeId, Rank, Tag};
pub use secret::Secret;
