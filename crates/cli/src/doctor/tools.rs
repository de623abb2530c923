//! Programs that sheave can do without, and works with where they are.

use super::Finding;
use sheave_base::{ErrorKind, Result};
use sheave_process::{Command, Job, Output};
use std::time::{Duration, Instant};

/// Longest time for a program to say its version; a cold network disk is the reason for so much.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn check() -> Vec<Finding> {
    vec![
        informed("python", "python3", "the Python face and its tests are not used"),
        informed("openmpi", "mpirun", "benchmarks run without it beside them"),
    ]
}

/// Being without it is well too.
fn informed(check: &'static str, program: &str, without: &str) -> Finding {
    Finding::ok(
        check,
        match version(program) {
            Ok(Some(version)) => version,
            Ok(None) => format!("{program} is found, but does not say its version"),
            Err(error) if error.kind() == ErrorKind::NotFound => format!("{program} is not found; {without}"),
            Err(error) => format!("whether there is {program} cannot be said: {}", error.what()),
        },
    )
}

/// The first line that the program prints about its version.
fn version(program: &str) -> Result<Option<String>> {
    let job = Job::builder().output(Output::Capture).start()?;
    let child = job.spawn(Command::new(program).arg("--version").name(program))?;
    let deadline = Instant::now() + TIMEOUT;
    let ended = child.wait(Some(deadline))?;
    if !ended.is_some_and(|exit| exit.status.success()) || !child.wait_for_output_end(deadline) {
        return Ok(None);
    }
    Ok(child.stdout_lines().into_iter().map(|line| line.trim().to_owned()).find(|line| !line.is_empty()))
}
