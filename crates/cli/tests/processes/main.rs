//! Tests on real processes: each has the machine to itself.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../settings/foreign.rs"]
mod foreign;
#[path = "../settings/node.rs"]
mod node;
#[path = "../settings/place.rs"]
mod place;
#[path = "../settings/program.rs"]
mod program;

mod bench;
mod demo;
mod doctor;
mod endings;
mod launch;
mod settings;
mod tune;
mod waiting;
