//! Who is there: the nodes of a job, their roles, ranks and groups, and what becomes of them when one dies.
//!
//! [`environment`] reads a process's place in its job from whatever launched it. [`engine`] is the pure core, a state
//! machine without I/O, threads or clocks.

pub mod engine;
pub mod environment;
