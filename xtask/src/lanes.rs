//! The extra lanes: checks that take long or need more than stable Rust, and are therefore no part of
//! `cargo xtask test`.

use crate::shell::{Outcome, Workspace, output, run};
use crate::test::Tally;
use crate::watch::{Ended, FOREVER, Verdict, watch};

/// The rooms with concurrency models.
const MODELLED: [&str; 3] = ["sheave-base", "sheave-net", "sheave-collective"];

/// Runs the concurrency models under loom, in a target directory of their own, because the flag that switches them on
/// rebuilds everything.
pub(crate) fn loom(workspace: &Workspace) -> Outcome {
    MODELLED.into_iter().try_for_each(|package| explore(workspace, package))
}

fn explore(workspace: &Workspace, package: &str) -> Outcome {
    let mut command = workspace.cargo(&["test", "--package", package, "--release", "--lib", "loom"]);
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    command.env("RUSTFLAGS", format!("{flags} --cfg loom")).env("CARGO_TARGET_DIR", workspace.target().join("loom"));
    let mut tally = Tally::default();
    let ended = watch(command, FOREVER, |line| {
        println!("{line}");
        tally.count_libtest(line);
        Verdict::Same
    })?;
    match ended {
        Ended::Itself(status) if status.success() && tally.passed > 0 => Ok(()),
        Ended::Itself(status) if status.success() => Err(format!("{package} has no test named `loom`")),
        ended => Err(format!("the loom models of {package} failed ({ended:?})")),
    }
}

/// Runs under miri the tests of the rooms that hold unsafe code and make no system calls that miri does not know.
pub(crate) fn miri(workspace: &Workspace) -> Outcome {
    output(workspace.nightly_cargo(&["miri", "--version"])).map_err(|_| {
        "miri is missing; hint: `rustup toolchain install nightly --component miri`, then run this again".to_owned()
    })?;
    for room in ["base", "wire"] {
        if workspace.path("crates").join(room).is_dir() {
            let package = format!("sheave-{room}");
            let mut command = workspace.nightly_cargo(&["miri", "test", "--package", &package, "--lib"]);
            command.env("MIRIFLAGS", "-Zmiri-disable-isolation");
            run(command)?;
        }
    }
    Ok(())
}

/// Runs each fuzz target for `seconds`.
pub(crate) fn fuzz(workspace: &Workspace, seconds: u64) -> Outcome {
    if !workspace.path("fuzz/Cargo.toml").is_file() {
        return Err("there is no fuzz/Cargo.toml yet, so there is nothing to fuzz".to_owned());
    }
    output(workspace.nightly_cargo(&["fuzz", "--version"])).map_err(|_| {
        "cargo-fuzz is missing; hint: `rustup toolchain install nightly` and `cargo install cargo-fuzz`".to_owned()
    })?;
    let targets = output(workspace.nightly_cargo(&["fuzz", "list"]))?;
    for target in targets.split_whitespace() {
        println!("fuzzing {target} for {seconds} s");
        let limit = format!("-max_total_time={seconds}");
        run(workspace.nightly_cargo(&["fuzz", "run", target, "--", &limit]))?;
    }
    Ok(())
}
