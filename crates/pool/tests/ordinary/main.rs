//! Tests that run beside others.

#[path = "../../../fleet/tests/common/mod.rs"]
mod common;

mod queues;
mod threads;
