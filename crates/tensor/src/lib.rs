//! Tensors: what travels through every room of sheave.
//!
//! A [`Tensor`] is a dtype, a shape and a reference-counted [`Buffer`]. Where the buffer lives decides the speed: in
//! the [`Arena`], shared memory that peers on the same host can map, a tensor changes hands without a copy; in private
//! memory it is copied once. [`Mode`] says which of the two sides may touch the bytes afterwards.
//!
//! Unsafe code lives in the modules that own memory (`mapping`, `buffer`, `lease`, `import`) and in the kernels.

mod arena;
mod block;
mod buffer;
mod dtype;
pub mod file;
#[doc(hidden)]
pub mod fuzz;
mod import;
pub mod kernels;
mod lease;
mod mapping;
mod mode;
mod segment;
mod shape;
mod tensor;

pub use arena::{Arena, ArenaConfig, ArenaStats};
pub use buffer::{Buffer, Lender, Location};
pub use dtype::{Device, Dtype, Element};
pub use kernels::{Op, copy_bytes, copy_piece, hand_over, reduce, scale};
pub use lease::{ReadLease, View, WriteLease};
pub use mode::Mode;
pub use segment::{Segment, SegmentId};
pub use shape::Shape;
pub use tensor::Tensor;
