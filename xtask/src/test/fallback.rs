//! The Rust tests without cargo-nextest: every test is a process of its own in a process group of its own, with a limit
//! on its time and its output kept in memory, shown only when it fails. As many run at once as there are cores, except
//! that tests on real processes have the machine to themselves, and that more of those run at once that mostly wait.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

use super::binaries::{self, Binary};
use super::patient;
use super::tally::Tally;
use super::{LIMIT, SLOW};
use crate::group::Group;
use crate::shell::{Outcome, Workspace};

/// One test of one binary.
pub(crate) struct Test<'a> {
    pub(crate) binary: &'a Binary,
    pub(crate) name: String,
}

impl Test<'_> {
    /// `package::target name`, as cargo-nextest writes it.
    pub(crate) fn title(&self) -> String {
        format!("{} {}", self.binary.id, self.name)
    }

    /// The name of the binary alone.
    pub(crate) fn target(&self) -> &str {
        &self.binary.target
    }
}

/// Which output of tests is shown besides that of those that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// That of tests which draw something new in every run and say what.
    WhatIsDrawn,
    /// That of every test, with its time.
    Everything,
}

/// How a test fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passed,
    Failed,
    /// The test itself has said that it cannot run here.
    Skipped,
}

/// Builds, lists and runs every test but the doctests.
pub(crate) fn run(workspace: &Workspace) -> Outcome<Tally> {
    let binaries = binaries::build(workspace.cargo(&["test", "--workspace", "--no-run"]))?;
    let mut tally = Tally::default();
    let (mut waiting, mut shared, mut alone) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
    for binary in &binaries {
        let (names, ignored) = binary.tests()?;
        tally.skipped += ignored.len() as u64;
        let (patient, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| patient::is_patient(name));
        let queue = if is_serial(&binary.target) { &mut alone } else { &mut shared };
        queue.extend(others.into_iter().map(|name| Test { binary, name }));
        waiting.extend(patient.into_iter().map(|name| Test { binary, name }));
    }
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let runner = Runner { limit: LIMIT, flags: &[], show: Show::WhatIsDrawn };
    tally += runner.run_all(waiting, patient::AT_ONCE)?;
    tally += runner.run_all(shared, workers)?;
    tally += runner.run_all(alone, 1)?;
    Ok(tally)
}

/// The same rule as the override in `.config/nextest.toml`: these tests have the machine to themselves.
pub(crate) fn is_serial(target: &str) -> bool {
    target == "processes"
}

/// How tests are run.
pub(crate) struct Runner<'a> {
    /// The longest time for one of them.
    pub(crate) limit: Duration,
    /// What the binaries are told besides the test's name.
    pub(crate) flags: &'a [&'a str],
    pub(crate) show: Show,
}

impl Runner<'_> {
    /// Runs the tests of `queue` on `workers` threads; a failing test does not stop the others.
    pub(crate) fn run_all(&self, queue: VecDeque<Test>, workers: usize) -> Outcome<Tally> {
        let queue = Mutex::new(queue);
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let work = || {
            let mut tally = Tally::default();
            while let Some(test) = next() {
                match self.one(&test)? {
                    Fate::Passed => tally.passed += 1,
                    Fate::Failed => tally.failed += 1,
                    Fate::Skipped => tally.skipped += 1,
                }
            }
            Ok(tally)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            let mut total = Tally::default();
            for thread in threads {
                let tally: Outcome<Tally> = thread.join().map_err(|_| "a thread that runs tests panicked")?;
                total += tally?;
            }
            Ok(total)
        })
    }

    /// Runs one test. Only a test that could not be run at all is an error.
    fn one(&self, test: &Test) -> Outcome<Fate> {
        let title = test.title();
        let failure = |error: std::io::Error| format!("the output of {title} cannot be kept: {error}");
        let kept = memfd_create("output of a test", MemfdFlags::CLOEXEC).map_err(|error| failure(error.into()))?;
        let mut kept = File::from(kept);
        let mut command = test.binary.command();
        command.args(["--exact", &test.name, "--nocapture"]).args(self.flags);
        command.stdout(kept.try_clone().map_err(failure)?).stderr(kept.try_clone().map_err(failure)?);
        let started = Instant::now();
        let status = Group::spawn(command)?.wait(self.limit)?;
        let seconds = started.elapsed().as_secs_f64();
        kept.rewind().map_err(failure)?;
        let mut words = Vec::new();
        kept.read_to_end(&mut words).map_err(failure)?;
        let words = String::from_utf8_lossy(&words);
        if !status.is_some_and(|status| status.success()) {
            let how = status.map_or_else(|| "did not end, was killed".to_owned(), |status| status.to_string());
            println!("FAILED: {title}: {how} after {seconds:.1} s\n{words}");
            return Ok(Fate::Failed);
        }
        if let Some(why) = words.lines().find_map(|line| line.strip_prefix("skipped: ")) {
            println!("skipped: {title}: {why}");
            return Ok(Fate::Skipped);
        }
        if self.show == Show::Everything {
            println!("passed: {title} in {seconds:.1} s\n{}", said(&words));
        } else if test.name.contains(DRAWS) {
            println!("{title}:\n{}", said(&words));
        }
        if self.show != Show::Everything && started.elapsed() >= SLOW {
            println!("slow: {title} took {seconds:.1} s");
        }
        Ok(Fate::Passed)
    }
}

/// A part of the names of tests that draw something new in every run; `.config/nextest.toml` shows their output too.
const DRAWS: &str = "fresh_seeds";

/// What a test has said, without what its harness says around it.
fn said(words: &str) -> String {
    let is_harness = |line: &str| {
        line.is_empty() || ["running ", "test result: "].iter().any(|start| line.starts_with(start)) || line == "ok"
    };
    let lines = words.lines().map(|line| line.trim_start_matches("[actor] "));
    lines.filter(|line| !is_harness(line)).map(|line| format!("    {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: Duration = Duration::from_secs(60);

    fn runner(limit: Duration) -> Runner<'static> {
        Runner { limit, flags: &[], show: Show::WhatIsDrawn }
    }

    fn run_one(name: &str, limit: Duration) -> Tally {
        let binary = Binary::fixture();
        let test = Test { binary: &binary, name: name.to_owned() };
        runner(limit).run_all(VecDeque::from([test]), 2).unwrap()
    }

    #[test]
    fn a_test_runs_in_its_package_with_its_programs() {
        assert_eq!(run_one("good", ENOUGH), Tally { passed: 1, ..Tally::default() });
    }

    #[test]
    fn a_failing_test_is_counted() {
        assert_eq!(run_one("bad", ENOUGH), Tally { failed: 1, ..Tally::default() });
    }

    #[test]
    fn a_test_that_cannot_run_here_is_counted_as_skipped() {
        assert_eq!(run_one("lacks", ENOUGH), Tally { skipped: 1, ..Tally::default() });
    }

    #[test]
    fn a_hanging_test_fails_within_its_limit() {
        let started = Instant::now();
        assert_eq!(run_one("hangs", Duration::from_millis(200)), Tally { failed: 1, ..Tally::default() });
        assert!(started.elapsed() < ENOUGH);
    }

    #[test]
    fn a_failure_does_not_stop_the_others() {
        let binary = Binary::fixture();
        let names = ["bad", "good", "bad", "good", "good"];
        let queue = names.iter().map(|name| Test { binary: &binary, name: (*name).to_owned() }).collect();
        assert_eq!(runner(ENOUGH).run_all(queue, 2).unwrap(), Tally { passed: 3, failed: 2, skipped: 0 });
    }

    #[test]
    fn tests_on_real_processes_are_told_apart_by_their_binary() {
        assert!(is_serial("processes") && !is_serial("sheave_process") && !is_serial("ordinary"));
        for rule in ["binary(/^(processes|", "[profile.patient]", &format!("test(/{DRAWS}/)")] {
            assert!(include_str!("../../../.config/nextest.toml").contains(rule), "{rule}");
        }
    }
}
