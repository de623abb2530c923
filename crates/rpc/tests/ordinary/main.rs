//! Tests that run beside others.

#[path = "../../../mesh/tests/common/mod.rs"]
mod common;

mod groups;
mod order;
mod versions;
