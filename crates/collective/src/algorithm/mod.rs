//! The algorithms, one file each: what they do step by step, what that costs, when they are chosen, and why whoever
//! ends well has the whole result and knows that every rank had entered.

pub mod barrier;
pub mod doubling;
pub mod pairwise;
pub mod ring;
pub mod tree;

/// Bytes of one message of a long tensor: big enough that the cost of a message is nothing beside it, small enough to
/// stay in cache from the receive to the reduction and the next send.
pub(crate) const SEGMENT_BYTES: usize = 256 << 10;
