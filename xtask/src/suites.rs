//! The suites: tests that take long, need root or measure, and are therefore marked as ignored.
//!
//! The reason of every ignored test begins with the name of its suite, as in `#[ignore = "soak suite: takes minutes"]`
//! ([`crate::tidy`] sees to that), and a suite runs every test whose reason names it, so that none runs nowhere. The
//! test binaries themselves are asked for the reasons: one that is told to run an ignored test says why it does not. A
//! Python test is marked with its suite and a reason, as in `@pytest.mark.soak("takes minutes")`.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use serde_json::Value;

use crate::shell::{Outcome, Workspace, output};
use crate::test::binaries::{self, Binary};
use crate::test::fallback::{Runner, Show, Test};
use crate::test::{Tally, is_serial, python_suite};

/// Tests that are run together, on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suite {
    /// Many seeds of delays, cuts and silences.
    Chaos,
    /// Millions of operations, and figures.
    Soak,
    /// Whole jobs in hostile surroundings.
    Adversity,
}

impl Suite {
    pub(crate) const ALL: [Suite; 3] = [Suite::Chaos, Suite::Soak, Suite::Adversity];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Suite::Chaos => "chaos",
            Suite::Soak => "soak",
            Suite::Adversity => "adversity",
        }
    }

    /// The longest time for one of its tests. One that takes longer hangs.
    fn limit(self) -> Duration {
        let minutes = match self {
            Suite::Chaos => 15,
            Suite::Soak => 30,
            Suite::Adversity => 5,
        };
        Duration::from_secs(minutes * 60)
    }

    /// What the reasons of its tests begin with.
    fn prefix(self) -> String {
        format!("{} suite: ", self.name())
    }

    /// The suite that the reason of an ignored test names.
    pub(crate) fn of(reason: &str) -> Option<Suite> {
        Suite::ALL.into_iter().find(|suite| reason.strip_prefix(&suite.prefix()).is_some_and(|why| !why.is_empty()))
    }
}

/// The flags of a suite's command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Whether the tests are built as for users.
    release: bool,
    /// Whether torch is installed for Python tests.
    torch: bool,
    /// A part of the names of the tests to run.
    filter: Option<String>,
}

impl Options {
    /// `None` for a flag that does not exist, and for a second name.
    pub(crate) fn parse(words: &[&str]) -> Option<Options> {
        let mut options = Options::default();
        for word in words {
            match *word {
                "--release" => options.release = true,
                "--torch" => options.torch = true,
                flag if flag.starts_with('-') => return None,
                _ if options.filter.is_some() => return None,
                name => options.filter = Some(name.to_owned()),
            }
        }
        Some(options)
    }
}

/// Builds and runs the tests of a suite. The last line is `N passed, N failed, N skipped`.
pub(crate) fn run(workspace: &Workspace, suite: Suite, options: &Options) -> Outcome<ExitCode> {
    if suite == Suite::Adversity && !geteuid().is_root() {
        return Err("the adversity suite makes network namespaces, limits and other users, and needs root; \
                    hint: run it in a container or a virtual machine of your own"
            .to_owned());
    }
    let begun = Instant::now();
    let mut binaries = Vec::new();
    for manifest in ["Cargo.toml", "sim/Cargo.toml"] {
        binaries.extend(build(workspace, suite, options, manifest)?);
    }
    let mut tests = Vec::new();
    for binary in &binaries {
        tests.extend(tests_of(binary, suite)?);
    }
    let all = tests.len();
    if let Some(filter) = &options.filter {
        tests.retain(|test| test.title().contains(filter));
    }
    let (left_out, limit) = (all - tests.len(), suite.limit());
    println!("{} suite: {} tests, each within {} minutes", suite.name(), tests.len(), limit.as_secs() / 60);
    let (alone, beside): (Vec<Test>, Vec<Test>) =
        tests.into_iter().partition(|test| suite != Suite::Chaos || is_serial(test.target()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let runner = Runner { limit, flags: &["--ignored"], show: Show::Everything };
    let mut tally = Tally { skipped: left_out as u64, ..Tally::default() };
    tally += runner.run_all(beside.into(), workers)?;
    tally += runner.run_all(alone.into(), 1)?;
    tally += python_suite(workspace, suite.name(), options.filter.as_deref(), options.torch, limit)?;
    if tally.passed + tally.failed == 0 {
        return Err(format!("no test of the {} suite has such a name", suite.name()));
    }
    println!("{} suite: {:.0} s", suite.name(), begun.elapsed().as_secs_f64());
    println!("{tally}");
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Builds the test binaries of the packages that have tests of this suite.
fn build(workspace: &Workspace, suite: Suite, options: &Options, manifest: &str) -> Outcome<Vec<Binary>> {
    let packages = packages(workspace, suite, manifest)?;
    if packages.is_empty() {
        return Ok(Vec::new());
    }
    let mut command = workspace.cargo(&["test", "--no-run", "--manifest-path", manifest]);
    command.args(packages.iter().flat_map(|package| ["--package", package]));
    if options.release {
        command.arg("--release");
    }
    command.env("CARGO_TARGET_DIR", workspace.target());
    binaries::build(command)
}

/// The packages that have a source file which names the suite.
fn packages(workspace: &Workspace, suite: Suite, manifest: &str) -> Outcome<Vec<String>> {
    let arguments = ["metadata", "--no-deps", "--format-version", "1", "--manifest-path", manifest];
    let text = output(workspace.cargo(&arguments))?;
    let metadata: Value = serde_json::from_str(&text).map_err(|error| format!("cargo's metadata: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo's metadata name no packages")?;
    let mut found = Vec::new();
    for package in packages {
        let (Some(name), Some(path)) = (package["name"].as_str(), package["manifest_path"].as_str()) else { continue };
        // This tool names all suites and is in none.
        if name != env!("CARGO_PKG_NAME") && Path::new(path).parent().is_some_and(|folder| names(folder, suite)) {
            found.push(name.to_owned());
        }
    }
    Ok(found)
}

/// Whether a Rust file under `folder` names the suite as the reason of an ignored test.
fn names(folder: &Path, suite: Suite) -> bool {
    let reason = format!("\"{}", suite.prefix());
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.filter_map(Result::ok).any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return entry.file_name() != "target" && names(&path, suite);
        }
        path.extension().is_some_and(|ending| ending == "rs")
            && std::fs::read_to_string(&path).is_ok_and(|text| text.contains(&reason))
    })
}

/// The tests of a binary that belong to the suite.
fn tests_of(binary: &Binary, suite: Suite) -> Outcome<Vec<Test<'_>>> {
    let (_, ignored) = binary.tests()?;
    let reasons = binary.reasons(&ignored)?;
    let belongs = |(_, reason): &(String, String)| Suite::of(reason) == Some(suite);
    Ok(reasons.into_iter().filter(belongs).map(|(name, _)| Test { binary, name }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_name_their_suite() {
        assert_eq!(Suite::of("chaos suite: a thousand seeds"), Some(Suite::Chaos));
        assert_eq!(Suite::of("soak suite: minutes"), Some(Suite::Soak));
        assert_eq!(Suite::of("chaos suite: "), None);
        assert_eq!(Suite::of("takes minutes; part of the chaos suite"), None);
    }

    #[test]
    fn a_binarys_tests_are_found_by_their_reasons() {
        let binary = Binary::fixture();
        let names =
            |suite| -> Vec<String> { tests_of(&binary, suite).unwrap().into_iter().map(|test| test.name).collect() };
        assert_eq!(names(Suite::Soak), ["needs_minutes"]);
        assert_eq!(names(Suite::Chaos), [""; 0]);
    }

    #[test]
    fn flags_and_one_name() {
        let named = Options { release: true, torch: true, filter: Some("cuts".to_owned()) };
        assert_eq!(Options::parse(&["--release", "--torch", "cuts"]), Some(named));
        assert_eq!(Options::parse(&["--relase"]), None);
        assert_eq!(Options::parse(&["cuts", "silences"]), None);
    }
}
