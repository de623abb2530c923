//! Tests on real processes: each has the machine to itself.

#[path = "../common/mod.rs"]
mod common;

mod collectives;
mod deaths;
mod example;
mod nodes;
