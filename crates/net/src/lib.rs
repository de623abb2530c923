//! How bytes travel between nodes: links over threads, shared memory and sockets, and the waiting of their users.
//!
//! A [`Node`] has links to other nodes and moves [`message`]s of tensors over them. Every link keeps the same contract
//! ([`link`]); which medium it runs over is decided when it is made.
//!
//! ```
//! use sheave_base::Tag;
//! use sheave_net::{Envelope, Node, NodeConfig, Outgoing, Wanted, inproc};
//! use sheave_tensor::{Mode, Tensor};
//! use smallvec::SmallVec;
//!
//! let (one, other) = (Node::start(NodeConfig::named("one"))?, Node::start(NodeConfig::named("other"))?);
//! let (link, back) = inproc::connect(&one, &other)?;
//! let tensor = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3])?;
//! one.send(link, Outgoing::tensor(Envelope::data(0, Tag(7)), tensor, Mode::Copy), None, None)?;
//! let wanted = Wanted { source: Some(back), context: 0, tag: Tag(7) };
//! let message = other.recv(wanted, SmallVec::new(), None, None)?;
//! assert_eq!(message.parts[0].to_vec::<f32>()?, [1.0, 2.0, 3.0]);
//! # Ok::<(), sheave_base::Error>(())
//! ```

mod address;
mod announced;
mod beat;
pub mod chaos;
mod connect;
pub mod cores;
mod counters;
mod direct;
mod doorbell;
mod drive;
mod ending;
mod endpoint;
mod entry;
mod farewell;
#[doc(hidden)]
pub mod fuzz;
mod greeting;
pub mod inproc;
mod intake;
pub mod interface;
pub mod link;
mod listen;
mod matching;
pub mod message;
mod neighbour;
mod neighbourhood;
mod node;
mod outbox;
mod patience;
mod pollers;
mod polling;
mod probe;
mod progress;
pub mod shm;
mod tcp;
mod waits;

pub use address::Address;
pub use counters::{Counters, Counts};
pub use doorbell::Doorbell;
pub use endpoint::{Admission, Endpoint};
pub use farewell::{was_closed_in_order, was_dropped};
pub use link::{Arrival, Ground, Hold, Link, Medium};
pub use listen::{ListenConfig, Refusals};
pub use matching::{Wanted, check_places};
pub use message::{Envelope, Message, Outgoing, Part, Parts, Tensors, WriteLeases};
pub use neighbour::Neighbour;
pub use neighbourhood::Neighbourhood;
pub use node::{Liveness, Node, NodeConfig};
pub use patience::{Course, WaitPolicy};
pub use sheave_base::config::Transport;
pub use waits::{Notices, Span, Wait, Waiting};
