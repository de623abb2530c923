//! Tests that run beside others.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../common/mod.rs"]
mod common;

mod cuts;
mod master;
mod oracle;
mod refusals;
mod rows;
mod schedules;
