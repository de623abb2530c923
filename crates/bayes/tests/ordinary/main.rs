//! Tests that run beside others.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod laplace;
mod prediction;
mod sampling;
mod svgd;
