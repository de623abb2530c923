//! Tests that run beside others.

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod costs;
mod departures;
mod desks;
mod engine;
mod guests;
mod lanes;
mod leavers;
mod methods;
mod notices;
mod one_way;
mod panics;
mod promises;
mod references;
mod rooms;
mod runtime;
mod together;
mod urgent;
