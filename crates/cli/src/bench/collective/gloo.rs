//! Gloo's collectives beside ours: the script that this binary carries, run by a Python in which torch is installed.

use super::case::Operation;
use crate::Failure;
use crate::bench::peer::parse;
use crate::bench::script::Script;
use sheave_base::Result;
use std::path::Path;
use std::time::Duration;

pub(super) const PROGRAM: &str = include_str!("../../../../../benches/peers/gloo_collective.py");

/// Where its rows stand in the column of transports.
pub(super) const TRANSPORT: &str = "gloo-tcp";

/// The script.
pub(super) struct Gloo {
    script: Script,
    pin: bool,
}

impl Gloo {
    /// For a Python that has what it needs.
    pub(super) fn new(python: &Path, pin: bool) -> std::result::Result<Self, Failure> {
        Ok(Self { script: Script::checked("gloo", PROGRAM, python, "--gloo", "torch.distributed")?, pin })
    }

    /// It has no reduce_scatter.
    pub(super) fn does(operation: Operation) -> bool {
        operation != Operation::ReduceScatter
    }

    /// Nanoseconds per operation of every round, per size.
    pub(super) fn run(
        &self,
        operation: Operation,
        ranks: u32,
        sizes_bytes: &[usize],
        budget: Duration,
        limit: Duration,
    ) -> Result<Vec<(usize, Vec<u64>)>> {
        let mut command = self.script.command();
        command.args([operation.name(), &ranks.to_string(), &budget.as_micros().to_string()]);
        command.args(sizes_bytes.iter().map(ToString::to_string));
        if self.pin {
            command.env("GLOO_COLLECTIVE_PIN", "1");
        }
        self.script.output(&mut command, limit)?.lines().map(parse).collect()
    }
}
