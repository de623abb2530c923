//! The algorithms, one file each: what they do step by step, what that costs, when they are chosen, and why whoever
//! ends well has the whole result and knows that every rank had entered.
//!
//! Every operation begins with its *entry*: a message of the header alone from each rank to its successor, which is
//! compared there while everything else goes on. It finds ranks that disagree, also where the algorithms that they run
//! would have them wait for each other for ever.

pub mod barrier;
pub mod doubling;
pub mod pairwise;
pub mod ring;
pub mod tree;

/// Bytes of one message of a long tensor: big enough that the cost of a message is nothing beside it, small enough to
/// stay in cache from the receive to the reduction and the next send.
pub(crate) const SEGMENT_BYTES: usize = 256 << 10;
