//! Tests on real processes: each has the machine to itself.

#[path = "../../../fleet/tests/common/mod.rs"]
mod common;

mod pool;
mod queue;
