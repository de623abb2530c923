//! The job that a command line describes: who runs, with which program and variables.

use super::Arguments;
use crate::Failure;
use sheave_base::config::{Role, Settings, unknown_names};
use sheave_base::{Error, ErrorKind};
use sheave_fleet::{JobMember, JobPlan, Setter, setter_of};
use sheave_process::Command;
use std::ffi::OsString;

/// Checks the command line, finds a free port and draws the job's secret. The job meets at `port` of loopback, if one
/// is given.
pub(crate) fn plan(arguments: &Arguments, port: Option<u16>) -> Result<JobPlan, Failure> {
    let Arguments { workers, servers, env, env_worker, env_server, no_dmlc, .. } = arguments;
    for variables in [env, env_worker, env_server] {
        check_variables(variables, *no_dmlc)?;
    }
    let mut plan = JobPlan::new(*workers, *servers).map_err(unfit)?;
    check_input(arguments, plan.members().len())?;
    if *no_dmlc {
        plan = plan.not_for_ps_lite();
    }
    match port {
        Some(port) => plan.meeting_at(port).map_err(|error| Failure::Usage(said(&error))),
        None => Ok(plan),
    }
}

/// A job that is too large is a mistake on the command line; a system that is full is not.
fn unfit(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::LimitExceeded if error.advice().is_none() => Failure::Usage(said(&error)),
        _ => Failure::from(error),
    }
}

/// The text of an error about a command line, without its kind.
fn said(error: &Error) -> String {
    error.advice().map_or_else(|| error.what().to_owned(), |hint| format!("{}; hint: {hint}", error.what()))
}

/// The command of one process, without its place.
pub(crate) fn command(arguments: &Arguments, member: &JobMember, processes: usize) -> Command {
    let (program, rest) = match arguments.command.split_first() {
        Some((program, rest)) => (program.clone(), rest),
        None => (OsString::new(), &[][..]),
    };
    let mut command = Command::new(program).args(rest).envs(arguments.env.iter().cloned());
    if processes == 1 {
        command = command.inherit_input();
    }
    match member.role {
        Role::Worker | Role::Rank => command.envs(arguments.env_worker.iter().cloned()),
        Role::Server => command.envs(arguments.env_server.iter().cloned()),
        Role::Scheduler => command,
    }
}

/// An interpreter that is told to read its program from standard input would find nothing there and end well.
fn check_input(arguments: &Arguments, processes: usize) -> Result<(), Failure> {
    let [program, rest @ ..] = arguments.command.as_slice() else { return Ok(()) };
    let name = std::path::Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let interprets =
        name.starts_with("python") || ["sh", "bash", "dash", "zsh", "perl", "ruby", "node"].contains(&&*name);
    if processes == 1 || !interprets || !(rest.is_empty() || rest == ["-"]) {
        return Ok(());
    }
    let line = arguments.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let hint = "write the program into a file, or launch one process";
    Err(Failure::Usage(format!(
        "{line} reads its program from standard input, which {processes} processes cannot share; hint: {hint}"
    )))
}

/// A mistake in a setting is found here, before it is found by every process.
fn check_variables(variables: &[(String, String)], no_dmlc: bool) -> Result<(), Failure> {
    for (name, _) in variables {
        let hint = match setter_of(name) {
            Some(Setter::Job) => "",
            Some(Setter::PsLite) if !no_dmlc => "; hint: --no-dmlc leaves it to you",
            _ => continue,
        };
        return Err(Failure::Usage(format!("{name} is set by sheave launch itself{hint}")));
    }
    let usage = |error: sheave_base::Error| Failure::Usage(error.to_string());
    // Whoever names a variable here means it, so that an unknown one is a mistake.
    if let Some(error) = unknown_names(variables.iter().map(|(name, value)| (name, value))).into_iter().next() {
        return Err(usage(error));
    }
    // What is not given here was checked already in our own environment.
    let given = |name: &str| variables.iter().rfind(|(given, _)| given == name).map(|(_, value)| value.into());
    Settings::from_lookup(|name| given(name).or_else(|| std::env::var_os(name))).map_err(usage)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_fleet::variables_of_jobs;

    #[test]
    fn what_the_job_sets_itself_cannot_be_given() {
        let variable = |name: &str, value: &str| [(name.to_owned(), value.to_owned())];
        for name in variables_of_jobs() {
            assert!(check_variables(&variable(name, "1"), false).is_err(), "{name}");
            let is_left = setter_of(name) == Some(Setter::PsLite);
            assert_eq!(check_variables(&variable(name, "1"), true).is_ok(), is_left, "{name}");
        }
        assert!(check_variables(&variable("SHEAVE_TRANPORT", "tcp"), false).is_err());
        assert!(check_variables(&variable("SHEAVE_TRANSPORT", "pigeon"), false).is_err());
        assert!(check_variables(&variable("SHEAVE_TRANSPORT", "tcp"), false).is_ok());
    }
}
