//! Tests that run beside others.

#[path = "../common/mod.rs"]
mod common;

mod chaos;
mod contracts;
mod costs;
mod matrix;
mod nested;
mod notices;
