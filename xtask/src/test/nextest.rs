//! The Rust tests under cargo-nextest; the time limits and the serial group stand in `.config/nextest.toml`.

use super::tally::Tally;
use crate::shell::{Outcome, Workspace, output};
use crate::watch::{Ended, FOREVER, Verdict, watch};

pub(crate) fn is_installed(workspace: &Workspace) -> bool {
    output(workspace.cargo(&["nextest", "--version"])).is_ok()
}

/// Runs every test but the doctests, which nextest does not know.
pub(crate) fn run(workspace: &Workspace) -> Outcome<Tally> {
    let command = workspace.cargo(&["nextest", "run", "--workspace", "--no-tests", "pass"]);
    let mut tally = None;
    let ended = watch(command, FOREVER, |line| {
        println!("{line}");
        tally = Tally::from_nextest(line).or(tally);
        Verdict::Same
    })?;
    match (ended, tally) {
        (Ended::Itself(status), Some(tally)) if status.success() == (tally.failed == 0) => Ok(tally),
        (Ended::Itself(status), Some(tally)) => Err(format!("cargo-nextest ended with {status} after {tally}")),
        (ended, None) => Err(format!("cargo-nextest gave no summary ({ended:?})")),
        (Ended::Killed, Some(_)) => Err("cargo-nextest did not end after its summary".to_owned()),
    }
}
