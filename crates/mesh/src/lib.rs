//! Who is there: the nodes of a job, their roles, ranks and groups, and what becomes of them when one dies.
//!
//! [`engine`] is the pure core, a state machine without I/O, threads or clocks.

pub mod engine;
