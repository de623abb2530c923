//! Tests on real processes: each has the machine to itself.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/held.rs"]
mod held;
#[path = "../support/mod.rs"]
mod support;

mod announced;
mod auth;
mod copies;
mod cuts;
mod death;
mod deaths;
mod lent;
mod shortage;
mod sources;
