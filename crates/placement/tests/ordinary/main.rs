//! Tests that run beside others.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../common/mod.rs"]
mod common;

mod exact;
mod large;
mod pictures;
mod refusals;
