//! The Rust tests without cargo-nextest: every test is a process of its own in a process group of its own, with a limit
//! on its time and its output kept in memory, shown only when it fails. As many run at once as there are cores, except
//! that tests on real processes have the machine to themselves.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

use super::binaries::{self, Binary};
use super::tally::Tally;
use super::{LIMIT, SLOW};
use crate::group::Group;
use crate::shell::{Outcome, Workspace};

/// One test of one binary.
struct Test<'a> {
    binary: &'a Binary,
    name: String,
}

/// Builds, lists and runs every test but the doctests.
pub(crate) fn run(workspace: &Workspace) -> Outcome<Tally> {
    let binaries = binaries::build(workspace)?;
    let mut tally = Tally::default();
    let (mut shared, mut alone) = (VecDeque::new(), VecDeque::new());
    for binary in &binaries {
        let (names, ignored) = binary.tests()?;
        tally.skipped += ignored.len() as u64;
        let queue = if needs_the_machine(&binary.target) { &mut alone } else { &mut shared };
        queue.extend(names.into_iter().map(|name| Test { binary, name }));
    }
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    tally += run_all(shared, workers, LIMIT)?;
    tally += run_all(alone, 1, LIMIT)?;
    Ok(tally)
}

/// The same rule as the override in `.config/nextest.toml`.
fn needs_the_machine(target: &str) -> bool {
    target.starts_with("process_") || target.starts_with("real_")
}

/// Runs the tests of `queue` on `workers` threads; a failing test does not stop the others.
fn run_all(queue: VecDeque<Test>, workers: usize, limit: Duration) -> Outcome<Tally> {
    let queue = Mutex::new(queue);
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || {
        let mut tally = Tally::default();
        while let Some(test) = next() {
            if one(&test, limit)? {
                tally.passed += 1;
            } else {
                tally.failed += 1;
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

/// Runs one test and says whether it passed. Only a test that could not be run at all is an error.
fn one(test: &Test, limit: Duration) -> Outcome<bool> {
    let title = format!("{} {}", test.binary.id, test.name);
    let failure = |error: std::io::Error| format!("the output of {title} cannot be kept: {error}");
    let mut kept =
        File::from(memfd_create("output of a test", MemfdFlags::CLOEXEC).map_err(|error| failure(error.into()))?);
    let mut command = test.binary.command();
    command.args(["--exact", &test.name, "--nocapture"]);
    command.stdout(kept.try_clone().map_err(failure)?).stderr(kept.try_clone().map_err(failure)?);
    let started = Instant::now();
    let status = Group::spawn(command)?.wait(limit)?;
    let seconds = started.elapsed().as_secs_f64();
    if status.is_some_and(|status| status.success()) {
        if started.elapsed() >= SLOW {
            println!("slow: {title} took {seconds:.1} s");
        }
        return Ok(true);
    }
    kept.rewind().map_err(failure)?;
    let mut words = Vec::new();
    kept.read_to_end(&mut words).map_err(failure)?;
    let how = status.map_or_else(|| "did not end, was killed".to_owned(), |status| status.to_string());
    println!("FAILED: {title}: {how} after {seconds:.1} s\n{}", String::from_utf8_lossy(&words));
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: Duration = Duration::from_secs(60);

    fn run_one(name: &str, limit: Duration) -> Tally {
        let binary = Binary::fixture();
        let test = Test { binary: &binary, name: name.to_owned() };
        run_all(VecDeque::from([test]), 2, limit).unwrap()
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
        assert_eq!(run_all(queue, 2, ENOUGH).unwrap(), Tally { passed: 3, failed: 2, skipped: 0 });
    }

    #[test]
    fn tests_on_real_processes_are_told_apart_by_their_binary() {
        assert!(needs_the_machine("process_kill") && needs_the_machine("real_links"));
        assert!(!needs_the_machine("sheave_process") && !needs_the_machine("unreal_links"));
        let rule = "binary(/^(process|real)_|";
        assert!(include_str!("../../../.config/nextest.toml").contains(rule), "{rule}");
    }
}
