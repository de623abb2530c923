//! The Python package: built with maturin into a virtual environment of its own, tested there with pytest.

use std::cell::Cell;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::tally::Tally;
use super::venv::{Interpreter, Venv};
use super::{BUILD_LIMIT, LIMIT, Report};
use crate::shell::{Outcome, Workspace, run as run_command};
use crate::watch::{Ended, Verdict, watch};

/// So many files of tests run at a time at most.
const FILES_MAX: usize = 8;

/// How pytest ends where no test is of those that were asked for.
const NONE_CHOSEN: i32 = 5;

/// The environment of the tests, which is made while other stages run: what it needs is downloaded for about as long as
/// they compile.
pub(crate) struct Preparation(Cell<Option<JoinHandle<Outcome<Venv>>>>);

impl Preparation {
    pub(crate) fn begin(workspace: &Arc<Workspace>, interpreter: Interpreter, torch: bool) -> Preparation {
        let workspace = Arc::clone(workspace);
        let make = move || Venv::ready(&workspace, &interpreter, &requirements(&workspace, torch));
        Preparation(Cell::new(Some(std::thread::spawn(make))))
    }

    /// Waits until it is made.
    fn end(&self) -> Outcome<Venv> {
        let making = self.0.take().ok_or("the environment of the Python tests was taken before")?;
        making.join().map_err(|_| "the thread that makes the environment of the Python tests panicked")?
    }
}

/// Builds the package and tests it; without an interpreter there is a reason instead of an environment.
pub(crate) fn run(workspace: &Workspace, preparation: &Outcome<Preparation>) -> Outcome<Report> {
    let venv = match preparation {
        Ok(preparation) => preparation.end()?,
        Err(reason) => return Ok(Report::Skipped(reason.clone())),
    };
    build(workspace, &venv)?;
    pytest(workspace, &venv, &[], LIMIT).map(Report::Counted)
}

/// Builds the package and runs those of its tests that are marked with the suite, each within the limit.
pub(crate) fn run_suite(
    workspace: &Workspace,
    interpreter: &Interpreter,
    suite: &str,
    filter: Option<&str>,
    torch: bool,
    limit: Duration,
) -> Outcome<Tally> {
    let venv = Venv::ready(workspace, interpreter, &requirements(workspace, torch))?;
    build(workspace, &venv)?;
    let chosen = ["--suite", suite].into_iter().chain(filter.into_iter().flat_map(|name| ["-k", name]));
    pytest(workspace, &venv, &chosen.collect::<Vec<_>>(), limit)
}

/// Whether a Python test is marked with the suite.
pub(crate) fn has_suite(workspace: &Workspace, suite: &str) -> bool {
    let mark = format!("@pytest.mark.{suite}(");
    let Ok(files) = std::fs::read_dir(workspace.path("python/tests")) else { return false };
    files.filter_map(Result::ok).any(|file| std::fs::read_to_string(file.path()).is_ok_and(|text| text.contains(&mark)))
}

fn build(workspace: &Workspace, venv: &Venv) -> Outcome {
    run_command(maturin(workspace, venv)?)?;
    // Of the whole workspace, whose features are those that its tests were built with: for one package most of what it
    // stands on would be built once more.
    run_command(workspace.cargo(&["build", "--quiet", "--workspace", "--examples"]))
}

/// The requirement files: ours, and the tests' own where there is one.
fn requirements(workspace: &Workspace, torch: bool) -> Vec<PathBuf> {
    let mut files = vec![workspace.path("xtask/requirements.txt")];
    let of_the_tests = workspace.path("python/requirements-test.txt");
    files.extend(of_the_tests.is_file().then_some(of_the_tests));
    files.extend(torch.then(|| workspace.path("xtask/requirements-torch.txt")));
    files
}

/// Builds the extension module and installs the package, in the folder that describes it. With the settings of the
/// Rust tests, so that most of it is compiled already, and with their assertions.
fn maturin(workspace: &Workspace, venv: &Venv) -> Outcome<Command> {
    let folders = ["python", "crates/python", "."].map(|folder| workspace.path(folder));
    let described = folders.into_iter().find(|folder| folder.join("pyproject.toml").is_file());
    let folder = described.ok_or("there is a python room, but no pyproject.toml in python/, crates/python/ or here")?;
    let mut command = venv.activated(workspace, "maturin", &["develop", "--quiet"]);
    command.current_dir(folder);
    Ok(command)
}

/// Runs the tests, some files at a time: many of them wait for processes, and each makes its own. `pytest-timeout` ends
/// a test by a signal; one that does not even let the interpreter see the signal shows as silence, and ends the whole
/// run a little later.
fn pytest(workspace: &Workspace, venv: &Venv, chosen: &[&str], limit: Duration) -> Outcome<Tally> {
    let mut command = venv.python(workspace, &["-m", "pytest", "python/tests", "--verbose", "--color=no"]);
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    command.args(["-n", &(cores + 1).min(FILES_MAX).to_string(), "--dist", "loadfile"]);
    command.arg(format!("--timeout={}", limit.as_secs())).env("PYTHONUNBUFFERED", "1").args(chosen);
    // Programs in Rust with which the Python ones talk.
    command.env("SHEAVE_TEST_EXAMPLES", workspace.target().join("debug/examples"));
    let limit = limit + limit / 4;
    let mut tally = None;
    let mut last_line = String::new();
    let ended = watch(command, BUILD_LIMIT, |line| {
        if !line.contains(" PASSED ") {
            println!("{line}");
        }
        tally = Tally::from_pytest(line).or(tally);
        line.clone_into(&mut last_line);
        Verdict::Within(limit)
    })?;
    match (ended, tally) {
        (Ended::Itself(status), _) if status.code() == Some(NONE_CHOSEN) => Ok(Tally::default()),
        (Ended::Itself(status), Some(tally)) if status.success() == (tally.failed == 0) => Ok(tally),
        (Ended::Itself(status), _) => Err(format!("pytest ended with {status}: {last_line}")),
        (Ended::Killed, _) => Err(format!("a Python test did not end within {} s: {last_line}", limit.as_secs())),
    }
}
