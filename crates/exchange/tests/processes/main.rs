//! Tests on real processes: each has the machine to itself.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../mesh/tests/common/shortages.rs"]
mod shortages;

mod kills;
mod shortage;
