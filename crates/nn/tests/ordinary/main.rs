//! Tests that run beside others.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a failed step is a failed test")]

mod gradients;
mod networks;
mod norm;
mod threads;
mod training;
