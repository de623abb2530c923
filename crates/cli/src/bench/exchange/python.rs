//! The same from Python: the script `benches/python/exchange.py`, in a Python in which sheave is installed.

use super::case::Case;
use super::job::Plan;
use crate::Failure;
use crate::bench::script::Script;
use clap::ValueEnum;
use sheave_base::{Error, ErrorKind, Result};
use std::path::Path;
use std::time::Duration;

const PROGRAM: &str = include_str!("../../../../../benches/python/exchange.py");

/// A job that takes longer has hung.
const LIMIT: Duration = Duration::from_secs(300);

pub(super) struct Programs(Script);

impl Programs {
    pub(super) fn new(python: &Path) -> std::result::Result<Self, Failure> {
        Script::checked("sheave", PROGRAM, python, "--python", "sheave.exchange, numpy").map(Self)
    }

    /// Runs what a plan says, and returns the nanoseconds of every request by case and size.
    pub(super) fn measure(&self, plan: &Plan, thrift: usize) -> Result<Vec<(Case, usize, Vec<u64>)>> {
        let mut command = self.0.command();
        let thrift = thrift * (plan.workers * plan.servers) as usize;
        command.args([plan.workers.to_string(), plan.servers.to_string(), thrift.to_string()]);
        command.arg(u8::from(plan.pin).to_string());
        for cell in &plan.cells {
            command.args([cell.case.name().to_owned(), cell.bytes.to_string()]);
        }
        command.env("SHEAVE_TRANSPORT", plan.transport.name());
        self.0.output(&mut command, LIMIT)?.lines().map(parse).collect()
    }
}

fn parse(line: &str) -> Result<(Case, usize, Vec<u64>)> {
    let mut words = line.split(' ');
    let case = words.next().and_then(|name| Case::from_str(name, false).ok());
    let bytes = words.next().and_then(|word| word.parse().ok());
    let times = words.map(str::parse).collect::<std::result::Result<Vec<u64>, _>>().ok();
    let strange = || Error::new(ErrorKind::Protocol, format!("the script printed {line:?}"));
    Ok((case.ok_or_else(strange)?, bytes.ok_or_else(strange)?, times.ok_or_else(strange)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_case_a_size_and_times() {
        assert_eq!(parse("moved 8 1 22").expect("a line"), (Case::Moved, 8, vec![1, 22]));
        for nonsense in ["", "moved", "moved x 1", "other 8 1", "moved 8 -1", "moved 8 1 "] {
            assert_eq!(parse(nonsense).expect_err(nonsense).kind(), ErrorKind::Protocol);
        }
    }
}
