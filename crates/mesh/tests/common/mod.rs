//! Jobs for the tests of the mesh.

#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

mod guests;
mod meshes;

pub(crate) use guests::*;
pub(crate) use meshes::*;
use sheave_base::config::Transport;
use sheave_mesh::{Config, Expected};
use sheave_process::{Child, Job};

/// Starts a copy of this binary in which the test function `actor` plays `part`.
#[track_caller]
pub(crate) fn start(job: &Job, part: &str, port: u16, transport: Transport) -> Child {
    start_with(job, part, port, transport, "nobody")
}

/// As [`start`]; `victim` is the part that will be killed.
#[track_caller]
pub(crate) fn start_with(job: &Job, part: &str, port: u16, transport: Transport, victim: &str) -> Child {
    job.spawn(actor(part, port, transport).env("SHEAVE_TEST_VICTIM", victim)).expect("a process")
}

/// The error of something that must not succeed.
pub(crate) fn failed<T>(outcome: sheave_base::Result<T>) -> sheave_base::Error {
    match outcome {
        Ok(_) => panic!("it succeeded"),
        Err(error) => error,
    }
}

/// Does nothing until this process is killed.
pub(crate) fn park() -> ! {
    loop {
        std::thread::park();
    }
}

/// The part that this process plays, if it is not the test itself: its role, its rank and its config.
pub(crate) fn part(expected: Expected) -> Option<Config> {
    part_of(expected)
}
