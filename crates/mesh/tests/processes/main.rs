//! Tests on real processes: each has the machine to itself.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/meshes.rs"]
mod meshes;
#[path = "../common/seeds.rs"]
mod seeds;
#[path = "../common/shortages.rs"]
mod shortages;
#[path = "../torture/mod.rs"]
mod torture;

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
