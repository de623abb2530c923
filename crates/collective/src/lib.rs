//! Collective operations: every member of a group calls them together.
//!
//! A [`Communicator`] is a group of a mesh with its operations: broadcast, reduce, all-reduce, gather, all-gather,
//! scatter, reduce-scatter, all-to-all and barrier; some also of lists of tensors, of tensors on several devices of
//! each rank, and between lists of one tensor for each rank. Each is a [`sheave_base::Work`], of which several may be
//! in flight. [`algorithm`] has what they cost and why they are right.

pub mod algorithm;
mod buckets;
mod calls;
mod carrier;
mod communicator;
mod devices;
mod exchange;
#[doc(hidden)]
pub mod fuzz;
mod group;
mod halves;
mod hosts;
mod hub;
mod job;
mod links;
mod lists;
mod long;
mod mail;
mod memory;
mod numbers;
mod operation;
mod pieces;
pub mod shared;
mod table;
mod task;
mod turns;

pub use communicator::{Collectives, Communicator};
pub use operation::{Kind, Operator};
pub use table::{Algorithm, Table, Topology};
