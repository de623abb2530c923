//! Gloo's collectives beside ours: the script that this binary carries, run by a Python in which torch is installed.

use super::case::Operation;
use crate::Failure;
use crate::bench::peer::{end_with_us, output_of, parse};
use sheave_base::{Error, Result};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(super) const PROGRAM: &str = include_str!("../../../../../benches/peers/gloo_collective.py");

/// Where its rows stand in the column of transports.
pub(super) const TRANSPORT: &str = "gloo-tcp";

/// It takes long on a cold disk.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(60);

/// The script; its folder goes with it.
pub(super) struct Gloo {
    folder: tempfile::TempDir,
    python: PathBuf,
    pin: bool,
}

impl Gloo {
    /// Writes the script, for a Python that has what it needs.
    pub(super) fn new(python: PathBuf, pin: bool) -> std::result::Result<Self, Failure> {
        let mut command = Command::new(&python);
        run(command.args(["-c", "import torch.distributed"]), IMPORT_TIMEOUT)
            .map_err(|error| Failure::Usage(format!("--gloo: {} has no torch: {error}", python.display())))?;
        let folder = tempfile::tempdir().map_err(|error| Error::from(error).context("making a temporary folder"))?;
        let peer = Self { folder, python, pin };
        std::fs::write(peer.script(), PROGRAM).map_err(|error| Error::from(error).context("writing gloo's script"))?;
        Ok(peer)
    }

    /// It has no reduce_scatter.
    pub(super) fn does(operation: Operation) -> bool {
        operation != Operation::ReduceScatter
    }

    fn script(&self) -> PathBuf {
        self.folder.path().join("gloo_collective.py")
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
        let mut command = Command::new(&self.python);
        command.arg(self.script()).args([operation.name(), &ranks.to_string(), &budget.as_micros().to_string()]);
        command.args(sizes_bytes.iter().map(ToString::to_string));
        if self.pin {
            command.env("GLOO_COLLECTIVE_PIN", "1");
        }
        run(&mut command, limit)?.lines().map(parse).collect()
    }
}

fn run(command: &mut Command, limit: Duration) -> Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_with_us(command);
    let child = command.spawn().map_err(|error| Error::from(error).context("starting gloo's python"))?;
    output_of("gloo's python", child, limit)
}
