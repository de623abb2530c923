//! The examples in the documentation, run by rustdoc, which has no time limit of its own: see [`crate::watch`].
//!
//! Rustdoc runs them together, so a test that hangs shows when all others are through; the limit counts from there.

use super::tally::Tally;
use super::{BUILD_LIMIT, LIMIT};
use crate::shell::{Outcome, Workspace};
use crate::watch::{Ended, Verdict, watch};

pub(crate) fn run(workspace: &Workspace) -> Outcome<Tally> {
    let command =
        workspace.cargo(&["test", "--quiet", "--workspace", "--doc", "--no-fail-fast", "--", "--format=pretty"]);
    let mut tally = Tally::default();
    let ended = watch(command, BUILD_LIMIT, |line| {
        let before = tally;
        let is_result = tally.count_libtest(line);
        if tally.failed > before.failed || !(is_result || is_noise(line)) {
            println!("{line}");
        }
        if is_result || is_start(line) {
            Verdict::Within(LIMIT)
        } else if is_end(line) {
            Verdict::Within(BUILD_LIMIT)
        } else {
            Verdict::Same
        }
    })?;
    match ended {
        Ended::Itself(status) if status.success() == (tally.failed == 0) => Ok(tally),
        Ended::Itself(status) => Err(format!("the doctests ended with {status} after {tally}")),
        Ended::Killed => {
            println!("FAILED: a doctest did not end within {} s, was killed with all that still ran", LIMIT.as_secs());
            tally.failed += 1;
            Ok(tally)
        }
    }
}

fn is_start(line: &str) -> bool {
    line.starts_with("running ") && (line.ends_with(" tests") || line.ends_with(" test"))
}

fn is_end(line: &str) -> bool {
    line.starts_with("test result: ")
}

/// What rustdoc prints for each crate whether or not anything happened.
fn is_noise(line: &str) -> bool {
    line.is_empty() || is_start(line) || is_end(line) || line.starts_with("all doctests ran in ")
}
