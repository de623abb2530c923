//! Whole jobs in hostile surroundings: each ends well, or with an error that names the culprit within its bound; none
//! hangs, and nothing is left behind.
//!
//! The tests need root and are run by `cargo xtask adversity`. What a machine lacks, a test says, and is skipped.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]

mod hosts;
mod limits;
mod network;
mod players;
mod sessions;
mod starts;
mod wire;
