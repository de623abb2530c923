//! Tests on real processes: each has the machine to itself.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../net/tests/common/held.rs"]
mod held;
#[path = "../../../mesh/tests/common/shortages.rs"]
mod shortages;

mod deaths;
mod ends;
mod flat;
mod groups;
mod leave;
mod long;
mod mismatch;
mod setup;
mod shortage;
mod soak;
