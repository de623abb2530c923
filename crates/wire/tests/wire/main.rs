//! What is written on the wire, seen from outside the crate.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails where it stands")]

#[path = "../../../../fuzz/allocation.rs"]
mod allocation;
mod corpus_replay;
mod errors;
#[allow(unreachable_pub, reason = "it is the library of the fuzz targets, and public there")]
#[path = "../../../../fuzz/src/lib.rs"]
mod fuzz;
mod golden;
mod handshake;
mod hostile;
mod properties;
mod samples;
