//! MXNet's store beside ours: the script that this binary carries, run by a Python in which MXNet is installed.

use crate::bench::script::Script;
use serde::Deserialize;
use sheave_base::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::time::Duration;

const PROGRAM: &str = include_str!("../../../../../benches/peers/mxnet_store.py");

/// Time for one job, with the attempts of it that hang at their start.
const JOB_TIMEOUT: Duration = Duration::from_secs(240);
/// Attempts of one job, each with its time after the start.
const ATTEMPTS: u32 = 2;
const ATTEMPT_TIMEOUT_S: u32 = 90;

/// How one gets the peer.
pub(super) const HOW_TO_GET_IT: &str = "no peer runs beside; for MXNet's store: python3 -m venv DIR, \
    DIR/bin/pip install mxnet==1.9.1 numpy==1.23.5, and --peer mxnet --peer-python DIR/bin/python";

/// The script.
pub(in crate::bench) struct Mxnet(Script);

#[derive(Debug, Deserialize)]
struct Line {
    bytes: usize,
    times_us: Vec<f64>,
}

impl Mxnet {
    pub(in crate::bench) fn new(python: PathBuf) -> Result<Self> {
        Script::new("mxnet", PROGRAM, python).map(Self)
    }

    /// Runs one job of the script. Returns nanoseconds of every round per size.
    pub(in crate::bench) fn run(
        &self,
        job: &str,
        thrift: usize,
        workers: u32,
        servers: u32,
    ) -> Result<Vec<(usize, Vec<u64>)>> {
        let mut command = self.0.command();
        command.args(["--jobs", job, "--times"]);
        let numbers = [("--workers", workers), ("--servers", servers), ("--attempts", ATTEMPTS)];
        let numbers = numbers.into_iter().chain([("--timeout", ATTEMPT_TIMEOUT_S)]);
        for (flag, number) in numbers {
            command.arg(flag).arg(number.to_string());
        }
        command.arg("--thrift").arg(thrift.to_string());
        self.0.output(&mut command, JOB_TIMEOUT)?.lines().map(parse).collect()
    }
}

fn parse(line: &str) -> Result<(usize, Vec<u64>)> {
    let Line { bytes, times_us } = serde_json::from_str(line)
        .map_err(|_| Error::new(ErrorKind::Protocol, "mxnet's script printed something else than its results"))?;
    Ok((bytes, times_us.into_iter().map(|time_us| (time_us * 1e3) as u64).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_results_are_read_and_others_refused() {
        let line = r#"{"peer": "mxnet 1.9.1", "case": "1KiB", "bytes": 1024, "times_us": [250.5, 300]}"#;
        assert_eq!(parse(line).unwrap(), (1024, vec![250_500, 300_000]));
        assert!(parse("started").is_err() && parse("{}").is_err());
    }
}
