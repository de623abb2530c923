//! Tests on real processes: each has the machine to itself.

#[path = "../../../mesh/tests/common/mod.rs"]
mod common;

mod kills;
