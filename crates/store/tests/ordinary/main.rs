//! Tests that run beside others.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../optim/tests/common/mod.rs"]
mod rules;

mod checkpoints;
mod commands;
mod compressed;
mod defects;
mod devices;
mod edges;
mod lamb;
mod notices;
mod optimizers;
mod priorities;
mod rows;
mod rows_large;
mod stores;
mod torn;
mod updaters;
mod workers;
