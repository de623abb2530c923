//! Tests on real processes: each has the machine to itself.

#[path = "../common/mod.rs"]
mod common;

mod guests;
mod members;
