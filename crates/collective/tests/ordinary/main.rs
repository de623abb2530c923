//! Tests that run beside others.

#[path = "../common/mod.rs"]
mod common;

mod chaos;
mod contracts;
mod counts;
mod drops;
mod faults;
mod groups;
mod late;
mod leavers;
mod lengths;
mod lists;
mod matrix;
mod pieces;
mod threads;
