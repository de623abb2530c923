//! The simulator's tests. It is a workspace of its own in our target directory: crates of others are compiled once
//! for both, as `sim/Cargo.toml` explains.
//!
//! The test runner has no time limit; silence is a hang, as in [`super::doctests`].

use super::tally::Tally;
use super::{BUILD_LIMIT, LIMIT};
use crate::shell::{Outcome, Workspace};
use crate::watch::{Ended, Verdict, watch};

pub(crate) fn run(workspace: &Workspace) -> Outcome<Tally> {
    let manifest = ["--manifest-path", "sim/Cargo.toml"];
    let mut clippy = workspace.cargo(&["clippy", "--quiet", "--all-targets"]);
    clippy.args(manifest).args(["--", "-D", "warnings"]).env("CARGO_TARGET_DIR", workspace.target());
    crate::shell::run(clippy)?;
    let mut command = workspace.cargo(&["test", "--quiet", "--no-fail-fast"]);
    command.args(manifest).args(["--", "--format=pretty", "--show-output"]).env("CARGO_TARGET_DIR", workspace.target());
    let mut tally = Tally::default();
    let ended = watch(command, BUILD_LIMIT, |line| {
        let is_result = tally.count_libtest(line);
        if !is_result && !line.is_empty() && !line.starts_with("running ") && !line.starts_with("test result: ok") {
            println!("{line}");
        }
        if is_result || line.starts_with("running ") {
            Verdict::Within(LIMIT)
        } else if line.starts_with("test result: ") {
            Verdict::Within(BUILD_LIMIT)
        } else {
            Verdict::Same
        }
    })?;
    match ended {
        Ended::Itself(status) if status.success() == (tally.failed == 0) => Ok(tally),
        Ended::Itself(status) => Err(format!("the simulator's tests ended with {status} after {tally}")),
        Ended::Killed => {
            println!("FAILED: a test of the simulator did not end within {} s and was killed", LIMIT.as_secs());
            tally.failed += 1;
            Ok(tally)
        }
    }
}
