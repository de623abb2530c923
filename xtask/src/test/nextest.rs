//! The Rust tests under cargo-nextest; the time limits and the serial group stand in `.config/nextest.toml`.

use super::patient;
use super::tally::Tally;
use crate::shell::{Outcome, Workspace, output};
use crate::watch::{Ended, FOREVER, Verdict, watch};

pub(crate) fn is_installed(workspace: &Workspace) -> bool {
    output(workspace.cargo(&["nextest", "--version"])).is_ok()
}

/// Runs every test but the doctests, which nextest does not know: those that mostly wait first, many at a time.
pub(crate) fn run(workspace: &Workspace) -> Outcome<Tally> {
    let (waiting, at_once) = (patient::filter(), patient::AT_ONCE.to_string());
    let patient = selected(workspace, &waiting, &["--profile", "patient", "--test-threads", &at_once])?;
    let run = patient.passed + patient.failed;
    if run < patient::NAMES.len() as u64 {
        let names = patient::NAMES.len();
        return Err(format!("{run} tests of the {names} that mostly wait were found; see xtask/src/test/patient.rs"));
    }
    let others = selected(workspace, &format!("not ({waiting})"), &[])?;
    // Each run counts what the other has run as skipped.
    let skipped = others.skipped.saturating_sub(run);
    Ok(Tally { passed: patient.passed + others.passed, failed: patient.failed + others.failed, skipped })
}

fn selected(workspace: &Workspace, filter: &str, options: &[&str]) -> Outcome<Tally> {
    let mut command = workspace.cargo(&["nextest", "run", "--workspace", "--no-tests", "pass", "-E", filter]);
    command.args(options);
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
