//! The extra lanes: checks that take long or need more than stable Rust, and are therefore no part of
//! `cargo xtask test`. Each ends with `N passed, N failed, N skipped`.

use std::process::{Command, ExitCode};

use crate::shell::{Outcome, Workspace, output, run};
use crate::test::Tally;
use crate::watch::{Ended, FOREVER, Verdict, watch};

/// The rooms with concurrency models.
const MODELLED: [&str; 4] = ["sheave-base", "sheave-net", "sheave-collective", "sheave-particle"];

/// The rooms with tests that miri can run, and the parts of the names of those: all of them where there is none. The
/// others make system calls that it does not know (memfds, epoll, futexes, sockets), or start processes.
const UNDER_MIRI: [(&str, &[&str]); 8] = [
    ("sheave-base", &[]),
    ("sheave-wire", &[]),
    ("sheave-tensor", &["block::", "dtype::", "kernels::", "lease::", "shape::"]),
    (
        "sheave-net",
        &["address::", "fuzz::seeds::f43_addresses", "fuzz::seeds::f43_rings", "shm::brief::", "shm::ring::"],
    ),
    ("sheave-mesh", &["fuzz::"]),
    ("sheave-collective", &["buckets::", "fuzz::tests::", "numbers::", "operation::", "shared::block::", "table::"]),
    ("sheave-exchange", &["fuzz::"]),
    ("sheave-store", &["fuzz::"]),
];

/// Runs the concurrency models under loom, in a target directory of their own, because the flag that switches them on
/// rebuilds everything.
pub(crate) fn loom(workspace: &Workspace) -> Outcome<ExitCode> {
    let mut total = Tally::default();
    for package in MODELLED {
        let mut command = workspace.cargo(&["test", "--package", package, "--release", "--lib", "loom"]);
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        command
            .env("RUSTFLAGS", format!("{flags} --cfg loom"))
            .env("CARGO_TARGET_DIR", workspace.target().join("loom"));
        // Whatever is no model has no place in this lane.
        let tally = tests_of(command, package)?;
        total += Tally { skipped: 0, ..tally };
    }
    Ok(end(total))
}

/// Runs the tests that `command`, a `cargo test` of this package, is about.
fn tests_of(command: Command, package: &str) -> Outcome<Tally> {
    let mut tally = Tally::default();
    let ended = watch(command, FOREVER, |line| {
        println!("{line}");
        tally.count_libtest(line);
        tally.skipped += filtered_out(line);
        Verdict::Same
    })?;
    match ended {
        Ended::Itself(status) if status.success() && tally.passed == 0 => {
            Err(format!("{package} has none of the tests that this lane is about"))
        }
        Ended::Itself(status) if status.success() == (tally.failed == 0) => Ok(tally),
        ended => Err(format!("the tests of {package} ended with {ended:?} after {tally}")),
    }
}

/// How many tests were left out because of their names, if this line says so.
fn filtered_out(line: &str) -> u64 {
    let parts = line.strip_prefix("test result: ").unwrap_or_default().split("; ");
    let mut counts = parts.filter_map(|part| part.strip_suffix(" filtered out"));
    counts.next().and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Says what a lane came to.
fn end(total: Tally) -> ExitCode {
    println!("{total}");
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs under miri the tests that make no system calls which it does not know.
pub(crate) fn miri(workspace: &Workspace) -> Outcome<ExitCode> {
    output(workspace.nightly_cargo(&["miri", "--version"])).map_err(|_| {
        "miri is missing; hint: `rustup toolchain install nightly --component miri`, then run this again".to_owned()
    })?;
    let mut total = Tally::default();
    for (package, names) in UNDER_MIRI {
        let mut command = workspace.nightly_cargo(&["miri", "test", "--no-fail-fast", "--package", package, "--lib"]);
        command.arg("--").args(names).env("MIRIFLAGS", "-Zmiri-disable-isolation");
        // What it looks for shows in one case as well as in hundreds, each of which takes it seconds.
        command.env("PROPTEST_CASES", "4");
        total += tests_of(command, package)?;
    }
    Ok(end(total))
}

/// Runs each fuzz target for `seconds`. One that finds something does not stop the others.
pub(crate) fn fuzz(workspace: &Workspace, seconds: u64) -> Outcome<ExitCode> {
    if !workspace.path("fuzz/Cargo.toml").is_file() {
        return Err("there is no fuzz/Cargo.toml yet, so there is nothing to fuzz".to_owned());
    }
    output(workspace.nightly_cargo(&["fuzz", "--version"])).map_err(|_| {
        "cargo-fuzz is missing; hint: `rustup toolchain install nightly` and `cargo install cargo-fuzz`".to_owned()
    })?;
    let targets = output(workspace.nightly_cargo(&["fuzz", "list"]))?;
    let mut total = Tally::default();
    for target in targets.split_whitespace() {
        println!("fuzzing {target} for {seconds} s");
        let limit = format!("-max_total_time={seconds}");
        match run(workspace.nightly_cargo(&["fuzz", "run", target, "--", &limit])) {
            Ok(()) => total.passed += 1,
            Err(message) => {
                println!("FAILED: {target}: {message}");
                total.failed += 1;
            }
        }
    }
    if total.is_empty() {
        return Err("cargo-fuzz lists no target".to_owned());
    }
    Ok(end(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_counted() {
        let line = "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 12 filtered out; finished in 0.01s";
        assert_eq!(filtered_out(line), 12);
        assert_eq!(filtered_out("test a ... ok"), 0);
    }
}
