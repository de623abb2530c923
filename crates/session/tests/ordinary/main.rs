//! Tests that run beside others.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../common/mod.rs"]
mod common;

mod broken;
mod collectives;
mod commands;
mod dropped;
mod interrupts;
mod messages;
mod shards;
