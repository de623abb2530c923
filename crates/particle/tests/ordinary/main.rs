//! Tests that run beside others.

#[path = "../../../mesh/tests/common/mod.rs"]
mod common;

mod answers;
mod caches;
mod entangled;
mod parameters;
mod particles;
