//! `sheave launch`: a job of schedulers, servers and workers on this machine, from start to end.
//!
//! [`plan`] says who runs with which environment; `sheave_process` starts, watches and ends them, and promises that
//! nothing is left behind. What remains here is when a job is over, and with which exit code.

mod plan;

use crate::Failure;
pub(crate) use plan::Plan;
pub use plan::variables_of_jobs;
use sheave_base::{Error, ErrorKind};
use sheave_process::{Child, Colour, Exit, Job, Outcome, Output, Report, Status, signal_name};
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// Runs a command as workers and servers on this machine.
///
/// With servers, one scheduler comes beside them, and all run the same command: it learns from SHEAVE_ROLE what it is.
/// Without servers there are plain ranks, and rank 0 is where they meet. Each line of output is printed behind the name
/// of its process; standard input is empty. SIGINT, SIGTERM and SIGHUP are forwarded; a second SIGINT kills. When one
/// process fails all others are ended, and when all workers have finished the servers are. The exit code is the worst
/// of the workers', 128 + n after signal n.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How many workers run, or plain ranks where there are no servers.
    #[arg(short = 'n', long, value_name = "W", value_parser = clap::value_parser!(u32).range(1..))]
    workers: u32,
    /// How many servers run; 0 means plain ranks without a scheduler.
    #[arg(short = 's', long, value_name = "S", default_value_t = 0)]
    servers: u32,
    /// Sets a variable for all processes; may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Sets a variable for the workers, or plain ranks.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env_worker: Vec<(String, String)>,
    /// Sets a variable for the servers.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    env_server: Vec<(String, String)>,
    /// Do not set the DMLC_* variables beside those of sheave.
    #[arg(long)]
    no_dmlc: bool,
    /// How long a process may take to end once it was asked to, in milliseconds; then it is killed.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    grace_ms: u64,
    /// The program to run, and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it must have the form NAME=VALUE".to_owned()),
    }
}

impl Arguments {
    /// A job of this command, with variables for all of its processes.
    pub(crate) fn of(workers: u32, servers: u32, env: Vec<(String, String)>, command: Vec<OsString>) -> Self {
        let (env_worker, env_server) = (Vec::new(), Vec::new());
        Self { workers, servers, env, env_worker, env_server, no_dmlc: true, grace_ms: 0, command }
    }
}

/// Runs the job and waits for its end.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let grace = Duration::from_millis(arguments.grace_ms);
    let plan = Plan::new(arguments)?;
    let job = Job::builder().output(Output::Prefixed { colour: Colour::Auto }).start()?;
    let forwarding = job.forward_signals()?;
    let children = start(&job, plan)?;
    let outcome = job.wait_first_failure_or_all(None)?;
    let report = match outcome {
        Some(Outcome::Signal(_)) => {
            // They were told already, each by the signal itself: another would cut short what they do about it.
            await_all(&children, Instant::now() + grace)?;
            job.end(Duration::ZERO)
        }
        _ => job.end(grace),
    };
    drop(forwarding);
    match verdict(outcome, &report) {
        None => Ok(()),
        Some(what) => Err(Failure::Ended { code: exit_code(&report), what }),
    }
}

/// Starts everybody, as long as all is well.
pub(crate) fn start(job: &Job, plan: Plan) -> Result<Vec<Child>, Failure> {
    let mut children = Vec::new();
    for command in plan.into_commands() {
        let now = Some(Instant::now());
        if matches!(job.wait_first_failure_or_all(now)?, Some(Outcome::Failed(_) | Outcome::Signal(_))) {
            break;
        }
        let child = job.spawn(command).map_err(unfit)?;
        children.push(child);
    }
    Ok(children)
}

/// A program that cannot be run is a mistake on the command line; a system that is full is not.
fn unfit(error: Error) -> Failure {
    if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Io) {
        return Failure::from(error);
    }
    let advised = error.advice().is_some();
    let error = if advised { error } else { error.hint("check the path, and that the file may be executed") };
    Failure::Usage(error.to_string())
}

fn await_all(children: &[Child], deadline: Instant) -> Result<(), Failure> {
    for child in children {
        child.wait(Some(deadline))?;
    }
    Ok(())
}

/// What the user is told about a job that did not end well: one line, then the last lines of whoever failed first.
fn verdict(outcome: Option<Outcome>, report: &Report) -> Option<String> {
    let by_signal = report.signal.map(|signal| match signal_name(signal) {
        Some(name) => format!("the job was ended by signal {signal} ({name})"),
        None => format!("the job was ended by signal {signal}"),
    });
    // Whoever was killed by the signal that we forwarded did not fail on its own account.
    let own_failure = |exit: &Exit| report.signal.is_none_or(|signal| exit.status != Status::Signal(signal));
    match (outcome, &report.first_failure) {
        (Some(Outcome::Failed(exit)), Some(failure)) if own_failure(&exit) => Some(failure.to_string()),
        _ => by_signal.or_else(|| report.trouble.as_ref().map(ToString::to_string)),
    }
}

fn exit_code(report: &Report) -> u8 {
    u8::try_from(report.exit_code()).unwrap_or(u8::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_a_name_and_an_equals_sign() {
        assert_eq!(parse_variable("A=b=c"), Ok(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(parse_variable("A="), Ok(("A".to_owned(), String::new())));
        assert!(parse_variable("A").is_err() && parse_variable("=b").is_err());
    }
}
