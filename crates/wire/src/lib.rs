//! What sheave writes on a link, byte for byte; no I/O.
//!
//! A message is a fixed [`Header`] of one cache line, a control area and the payload of its tensor parts. The control
//! area starts with the [part table](parts), which says of every tensor what it is and where its bytes are; behind it
//! stand a [`Value`] or a structured control message ([`to_control`]), as the header's [`Kind`] and service decide.
//! Before the first message, both sides prove to each other that they know the job's secret: [`handshake`].
//!
//! **Nothing here trusts its input.** Each decoder checks a length against what is left of its input before it believes
//! it, so that no input makes it panic, recurse deeper than its limit, or allocate more than a small multiple of the
//! input's own length. Each encoder refuses what its decoder would refuse, so that a mistake shows on the side that
//! made it.

pub mod codec;
mod dtype;
pub mod handshake;
mod header;
pub mod parts;
mod reader;
mod value;

pub use codec::{from_control, to_control};
pub use dtype::dtype_size;
pub use header::{CloseReason, HEADER_BYTES, Header, Kind, MAGIC, PIECE_BYTES, PROTOCOL_VERSION};
pub use parts::{Part, Parts, Placement, TensorSpec};
pub use value::Value;
