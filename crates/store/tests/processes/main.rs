//! Tests on real processes: each has the machine to itself.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../mesh/tests/common/shortages.rs"]
mod shortages;

mod bits;
mod blame;
mod copies;
mod deaths;
mod deaths_saving;
mod kills;
mod norms;
mod rows;
mod server_kills;
mod settle;
mod shortage;
mod shrink;
mod silence;
mod soak;
