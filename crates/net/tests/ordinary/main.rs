//! Tests that run beside others.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../support/mod.rs"]
mod support;

mod conformance;
mod endpoints;
mod lending;
mod mapped;
mod neighbourhood;
mod nested;
mod notices;
mod panics;
mod small;
mod smoke;
mod starved;
mod tcp_peers;
mod tcp_traffic;
mod unwaited;
