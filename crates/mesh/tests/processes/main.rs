//! Tests on real processes: each has the machine to itself.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/seeds.rs"]
mod seeds;
#[path = "../common/shortages.rs"]
mod shortages;

mod departures;
mod ends;
mod first_calls;
mod guests;
mod join;
mod kills;
mod moments;
mod one_way;
mod promises;
mod references;
mod rooms;
mod shortage;
mod torture;
