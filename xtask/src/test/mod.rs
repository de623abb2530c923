//! `cargo xtask test`: one stage after the other, each announced, each with its time, stopping at the first failure.

pub(crate) mod binaries;
mod doctests;
pub(crate) mod fallback;
mod nextest;
mod patient;
mod python;
mod simulation;
mod tally;
mod venv;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::group;
use crate::shell::{Outcome, Workspace, run as run_command};
use crate::tidy;
pub(crate) use fallback::is_serial;
use python::Preparation;
pub(crate) use tally::Tally;
use venv::Interpreter;

/// A test that runs for this long is reported as slow. The same figure stands in `.config/nextest.toml`.
const SLOW: Duration = Duration::from_secs(60);
/// A test that runs for this long is killed and counts as failed. `.config/nextest.toml` says the same as a multiple.
const LIMIT: Duration = Duration::from_secs(120);
/// The longest silence of a compiler.
const BUILD_LIMIT: Duration = Duration::from_secs(15 * 60);

/// The flags of `cargo xtask test`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    no_nextest: bool,
    rust_only: bool,
    python_only: bool,
    torch: bool,
}

impl Options {
    /// `None` for a flag that does not exist, and for two that leave nothing to do.
    pub(crate) fn parse(flags: &[&str]) -> Option<Options> {
        let mut options = Options::default();
        for flag in flags {
            match *flag {
                "--no-nextest" => options.no_nextest = true,
                "--rust-only" => options.rust_only = true,
                "--python-only" => options.python_only = true,
                "--torch" => options.torch = true,
                _ => return None,
            }
        }
        (!(options.rust_only && options.python_only)).then_some(options)
    }
}

/// What a stage came to, when it did not fail as a whole.
enum Report {
    Done,
    Counted(Tally),
    /// Why the stage had nothing to do here.
    Skipped(String),
}

type Stage<'a> = (&'static str, Box<dyn Fn() -> Outcome<Report> + 'a>);

/// Runs every stage that `options` leave in. The last line is `N passed, N failed, N skipped`, unless a stage failed
/// before any test was counted.
pub(crate) fn run(mut workspace: Workspace, options: &Options) -> ExitCode {
    let interpreter = Interpreter::find(&workspace);
    if interpreter.is_err() {
        workspace.without_python();
    }
    let workspace = Arc::new(workspace);
    let preparation = match interpreter {
        Ok(_) if options.rust_only => Err("it was not asked for".to_owned()),
        Ok(interpreter) => Ok(Preparation::begin(&workspace, interpreter, options.torch)),
        Err(reason) => Err(reason),
    };
    let stages = stages(&workspace, options, &preparation);
    let mut total = Tally::default();
    let outcome = stages
        .iter()
        .zip(1..)
        .try_for_each(|((name, stage), number)| one(&format!("[{number}/{}] {name}", stages.len()), stage, &mut total));
    if let Err(message) = &outcome {
        eprintln!("error: {message}");
    }
    // The environment of the Python tests may still be in the making.
    group::end_all();
    if outcome.is_ok() || !total.is_empty() {
        println!("{total}");
    }
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the Python tests of a suite, where there are any and a Python to run them.
pub(crate) fn python_suite(
    workspace: &Workspace,
    suite: &str,
    filter: Option<&str>,
    torch: bool,
    limit: Duration,
) -> Outcome<Tally> {
    if !python::has_suite(workspace, suite) {
        return Ok(Tally::default());
    }
    match Interpreter::find(workspace) {
        Ok(interpreter) => python::run_suite(workspace, &interpreter, suite, filter, torch, limit),
        Err(reason) => {
            println!("Python tests: skipped: {reason}");
            Ok(Tally::default())
        }
    }
}

/// Runs one stage between its two lines.
fn one(title: &str, stage: &dyn Fn() -> Outcome<Report>, total: &mut Tally) -> Outcome {
    println!("{title}");
    let started = Instant::now();
    let report = stage();
    let seconds = started.elapsed().as_secs_f64();
    match report {
        Ok(Report::Done) => println!("{title}: ok in {seconds:.1} s"),
        Ok(Report::Skipped(why)) => println!("{title}: skipped: {why}"),
        Ok(Report::Counted(tally)) => {
            *total += tally;
            if tally.failed > 0 {
                return Err(format!("{title}: failed after {seconds:.1} s: {tally}"));
            }
            println!("{title}: ok in {seconds:.1} s: {tally}");
        }
        Err(message) => return Err(format!("{title}: failed after {seconds:.1} s: {message}")),
    }
    Ok(())
}

fn stages<'a>(workspace: &'a Workspace, options: &'a Options, preparation: &'a Outcome<Preparation>) -> Vec<Stage<'a>> {
    let mut stages: Vec<Stage> = Vec::new();
    if !options.python_only {
        stages.push(("format", Box::new(|| format(workspace))));
        stages.push(("clippy", Box::new(|| clippy(workspace))));
        stages.push(("tidy", Box::new(|| tidy::run(workspace).map(|()| Report::Done))));
        stages.push(("documentation", Box::new(|| documentation(workspace))));
        if !options.no_nextest && nextest::is_installed(workspace) {
            stages.push(("Rust tests (cargo-nextest)", Box::new(|| nextest::run(workspace).map(Report::Counted))));
        } else {
            let title = "Rust tests (without cargo-nextest)";
            stages.push((title, Box::new(|| fallback::run(workspace).map(Report::Counted))));
        }
        stages.push(("doctests", Box::new(|| doctests::run(workspace).map(Report::Counted))));
        stages.push(("simulation", Box::new(|| simulation::run(workspace).map(Report::Counted))));
    }
    if !options.rust_only {
        stages.push(("Python tests", Box::new(|| python::run(workspace, preparation))));
    }
    stages
}

/// The formatter, also for the workspaces beside ours that exist.
fn format(workspace: &Workspace) -> Outcome<Report> {
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml", "sim/Cargo.toml"] {
        if workspace.path(manifest).is_file() {
            run_command(workspace.cargo(&["fmt", "--all", "--check", "--manifest-path", manifest]))?;
        }
    }
    Ok(Report::Done)
}

fn clippy(workspace: &Workspace) -> Outcome<Report> {
    run_command(workspace.cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    Ok(Report::Done)
}

fn documentation(workspace: &Workspace) -> Outcome<Report> {
    let mut command = workspace.cargo(&["doc", "--quiet", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    run_command(command)?;
    Ok(Report::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_and_contradictions_refused() {
        let both = Options::parse(&["--no-nextest", "--torch"]);
        assert_eq!(both, Some(Options { no_nextest: true, torch: true, ..Options::default() }));
        assert_eq!(Options::parse(&["--rust-only", "--python-only"]), None);
        assert_eq!(Options::parse(&["--fast"]), None);
    }

    #[test]
    fn a_failed_test_fails_its_stage_and_stays_counted() {
        let mut total = Tally { passed: 1, failed: 0, skipped: 0 };
        let outcome = one("stage", &|| Ok(Report::Counted(Tally { passed: 2, failed: 1, skipped: 4 })), &mut total);
        assert!(outcome.is_err_and(|message| message.contains("2 passed, 1 failed, 4 skipped")));
        assert_eq!(total.to_string(), "3 passed, 1 failed, 4 skipped");
    }

    #[test]
    fn both_runners_have_the_same_limits() {
        let settings = include_str!("../../../.config/nextest.toml");
        let multiple = LIMIT.as_secs() / SLOW.as_secs();
        let line = format!("slow-timeout = {{ period = \"{}s\", terminate-after = {multiple},", SLOW.as_secs());
        assert!(settings.contains(&line), "{line}");
    }
}
