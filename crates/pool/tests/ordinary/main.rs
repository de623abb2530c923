//! Tests that run beside others.

#[path = "../../../mesh/tests/common/mod.rs"]
mod common;

mod queues;
mod threads;
mod workers;
