//! `sheave launch`: a job of schedulers, servers and workers on this machine, from start to end.
//!
//! `sheave_fleet` says who runs with which environment and finds who is to blame; `sheave_process` starts, watches and
//! ends the processes, and promises that nothing is left behind. What remains here is what the command line says
//! ([`plan`]), when a job is over, and with which exit code.

mod plan;

use crate::Failure;
pub(crate) use plan::plan;
use sheave_base::limits::DRAIN_TIMEOUT;
use sheave_base::{Error, ErrorKind};
use sheave_fleet::{JobPlan, MemberFleet, names_of};
use sheave_process::{Child, Colour, Job, Outcome, Output, Report, Status, signal_name};
use std::ffi::OsString;
use std::time::{Duration, Instant};

const DRAIN_TIMEOUT_MS: u64 = DRAIN_TIMEOUT.as_secs() * 1000;

const SIGKILL: i32 = 9;

/// Runs a command as workers and servers on this machine.
///
/// With servers, one scheduler comes beside them, and all run the same command: it learns from SHEAVE_ROLE what it is.
/// Without servers there are plain ranks, and rank 0 is where they meet. Each line of output is printed behind the name
/// of its process; of a line that overwrites itself, as progress bars do, the latest state once a second. Standard
/// input is empty, unless there is one process alone. SIGINT, SIGTERM and SIGHUP are forwarded; a second SIGINT kills.
/// When one process fails all others are ended. When all workers have ended well, servers and scheduler end by
/// themselves. The exit code is that of the process that failed first, by what the processes know of each other;
/// 128 + n after signal n.
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
    /// How long servers and scheduler may take to end by themselves once all workers have ended well, in milliseconds;
    /// then they are asked to end, and the job has failed. With 0 they are asked to at once, which is no failure.
    #[arg(long, value_name = "MS", default_value_t = DRAIN_TIMEOUT_MS)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=86_400_000))]
    drain_timeout_ms: u64,
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
        let (grace_ms, drain_timeout_ms) = (0, 0);
        Self { workers, servers, env, env_worker, env_server, no_dmlc: true, grace_ms, drain_timeout_ms, command }
    }
}

/// Runs the job and waits for its end.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let grace = Duration::from_millis(arguments.grace_ms);
    let plan = plan(arguments, None)?;
    let job = Job::builder().output(Output::Prefixed { colour: Colour::Auto }).start()?;
    let forwarding = job.forward_signals()?;
    let fleet = start(plan, job, arguments)?;
    let mut outcome = fleet.await_outcome(None, None)?;
    let mut cut_off = None;
    if outcome == Some(Outcome::AllEnded) {
        outcome = drain(&fleet, Duration::from_millis(arguments.drain_timeout_ms))?;
        cut_off = outcome.is_none().then(|| fleet.living()).filter(|_| arguments.drain_timeout_ms > 0);
    }
    if let Some(Outcome::Failed(_)) = outcome {
        fleet.await_cause();
    }
    let report = end(&fleet, grace)?;
    drop(forwarding);
    let cut_off = cut_off.map(|who| {
        let after = Duration::from_millis(arguments.drain_timeout_ms);
        format!(
            "{who} still ran {after:?} after the last worker, and was ended; hint: --drain-timeout-ms gives more time"
        )
    });
    match verdict(&fleet, &report) {
        Some((code, what)) => Err(Failure::Ended { code, what }),
        None => cut_off.map_or(Ok(()), |what| Err(Failure::Ended { code: 1, what })),
    }
}

/// Waits until servers and scheduler have ended by themselves, or a signal came; `None` if some have not in time.
fn drain(fleet: &MemberFleet, timeout: Duration) -> Result<Option<Outcome>, Failure> {
    let outcome = fleet.drain(Instant::now() + timeout, None, |who, left| {
        let limit = left.as_secs();
        let hint = "--drain-timeout-ms sets the limit";
        note(&format!("all workers have ended; waiting for {who} to end, for {limit} s at most; hint: {hint}"));
    });
    Ok(outcome?)
}

/// Ends the job, and says whom it had to kill because it did not end when it was asked to.
fn end(fleet: &MemberFleet, grace: Duration) -> Result<Report, Failure> {
    let (job, children) = (fleet.job(), fleet.children());
    // After a signal they were told already, each by the signal itself: another would cut short what they do about it.
    let is_told = matches!(job.wait_all_ended(Some(Instant::now())), Ok(Some(Outcome::Signal(_))));
    let report = if is_told {
        await_all(children, Instant::now() + grace)?;
        let late = fleet.living();
        let report = job.end(Duration::ZERO);
        tell_killed(&late, grace);
        report
    } else {
        let report = job.end(grace);
        let killed = |child: &&Child| {
            let exit = child.exit();
            exit.is_some_and(|exit| exit.asked_for && exit.status == Status::Signal(SIGKILL))
        };
        tell_killed(&names_of(children.iter().filter(killed)), grace);
        report
    };
    Ok(report)
}

fn tell_killed(who: &str, grace: Duration) {
    if !who.is_empty() && !grace.is_zero() {
        note(&format!(
            "{who} had not ended {grace:?} after being asked to, and was killed; hint: --grace-ms gives more time"
        ));
    }
}

/// Tells the user what is going on.
fn note(what: &str) {
    crate::say(what, true);
}

/// Starts everybody, as long as all is well.
pub(crate) fn start(plan: JobPlan, job: Job, arguments: &Arguments) -> Result<MemberFleet, Failure> {
    let processes = plan.members().len();
    MemberFleet::start(plan, job, |member| plan::command(arguments, member, processes)).map_err(unfit)
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

/// The exit code of a job that did not end well, and what the user is told: one line, then the last lines of whoever
/// failed first.
fn verdict(fleet: &MemberFleet, report: &Report) -> Option<(u8, String)> {
    // Whoever was killed by the signal that we forwarded did not fail on its own account, even if it got it first.
    let is_own = |status: Status| report.signal.is_none_or(|signal| status != Status::Signal(signal));
    if let Some(cause) = fleet.cause(report).filter(|cause| is_own(cause.exit().status)) {
        return Some((exit_code(cause.exit_code()), cause.tell(fleet.children())));
    }
    if let Some(signal) = report.signal {
        let name = signal_name(signal).map(|name| format!(" ({name})")).unwrap_or_default();
        return Some((exit_code(128 + signal), format!("the job was ended by signal {signal}{name}")));
    }
    report.trouble.as_ref().map(|trouble| (1, trouble.to_string()))
}

/// Never 0, which would say that all was well.
fn exit_code(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(u8::MAX).max(1)
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
