//! Tests on real processes: each has the machine to itself.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod demo;
mod doctor;
mod endings;
mod launch;
mod settings;
mod tune;
mod waiting;
