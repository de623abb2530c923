//! Tests on real processes: each has the machine to itself.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../common/mod.rs"]
mod common;

mod example;
mod kills;
