//! The program `sheave`: `sheave demo` trains a model over a parameter server, `sheave launch` runs a job on this
//! machine, `sheave doctor` checks the machine, `sheave bench` measures it beside others, `sheave tune` shows and makes
//! the table by which collective operations choose their algorithms.
//!
//! Exit codes: 0 when all went well, 1 when something failed, 2 when the command line makes no sense; those of a job
//! are its own. An error is one line on standard error, after which a failed process of a job is quoted; a reader that
//! closes standard output ends the program silently.
//!
//! It is a library, so that the Python package ships it too: there the program is an interpreter and a module.

mod bench;
mod demo;
mod doctor;
mod launch;
mod own;
mod tune;

use clap::{Parser, Subcommand};
pub use sheave_fleet::variables_of_jobs;
use std::ffi::OsString;
use std::io::Write;

/// Runtime for distributed machine learning: push, pull, reduce, call and exchange tensors.
#[derive(Debug, Parser)]
#[command(name = "sheave", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures sheave on this machine, beside others where they are installed.
    #[command(subcommand)]
    Bench(bench::Command),
    Demo(demo::Arguments),
    Doctor(doctor::Arguments),
    Launch(launch::Arguments),
    Tune(tune::Arguments),
}

/// Why the program ends early.
#[derive(Debug)]
enum Failure {
    /// Nobody reads standard output any more.
    Unread,
    /// The values of the command line make no sense together.
    Usage(String),
    /// Something failed on the way.
    Run(String),
    /// A job did not end well: its exit code, and a line about why, perhaps with more lines as evidence.
    Ended { code: u8, what: String },
}

impl From<sheave_base::Error> for Failure {
    fn from(error: sheave_base::Error) -> Self {
        Self::Run(error.to_string())
    }
}

/// Runs the program with these arguments, its name not among them, and returns its exit code.
///
/// `own` is the command line by which the program is started once more; this executable if it is empty. Blocks until
/// the command has ended. Parts of it expect a process of their own, which nothing else is done in.
///
/// ```
/// assert_eq!(sheave_cli::main(["--version".into()], Vec::new()), 0);
/// assert_eq!(sheave_cli::main(["dance".into()], Vec::new()), 2);
/// ```
pub fn main(arguments: impl IntoIterator<Item = OsString>, own: Vec<OsString>) -> u8 {
    own::name(own);
    let line = std::iter::once("sheave".into()).chain(arguments);
    let outcome = match Arguments::try_parse_from(line) {
        Ok(Arguments { command }) => check_environment(&command).and_then(|()| run(command)),
        Err(error) if error.use_stderr() => {
            let asks_for_help = error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
            let text = error.render().to_string();
            say(if asks_for_help { text.trim_end() } else { &text }, !asks_for_help);
            return 2;
        }
        Err(help) => {
            // A closed pipe is no failure.
            let _ = help.print();
            return 0;
        }
    };
    match outcome {
        Ok(()) | Err(Failure::Unread) => 0,
        Err(Failure::Usage(what)) => {
            say(&what, true);
            2
        }
        Err(Failure::Run(what)) => {
            say(&what, true);
            1
        }
        Err(Failure::Ended { code, what }) => {
            say(&format!("sheave: {what}"), false);
            code
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Bench(command) => bench::run(command),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Launch(arguments) => launch::run(&arguments),
        Command::Tune(arguments) => tune::run(&arguments),
    }
}

/// A value out of range is a mistake on the command line, and a misspelt name where the user is strict. Else such names
/// are told by the process that the user has started, or by the first process of a job.
fn check_environment(command: &Command) -> Result<(), Failure> {
    let is_told_elsewhere = match command {
        Command::Bench(command) => command.is_part(),
        Command::Demo(arguments) => arguments.part,
        Command::Launch(_) => true,
        Command::Doctor(_) | Command::Tune(_) => false,
    };
    let names = if is_told_elsewhere {
        sheave_base::config::check_names(std::env::vars_os().collect::<Vec<_>>()).map(drop)
    } else {
        sheave_mesh::check_environment()
    };
    let checked = names.and_then(|()| sheave_base::config::Settings::from_lookup(|name| std::env::var_os(name)));
    checked.map(|_| ()).map_err(|error| Failure::Usage(error.to_string()))
}

/// Tells the user on standard error, as one line if `short`. Nobody to tell is no reason to fail.
fn say(text: &str, short: bool) {
    let mut stderr = std::io::stderr().lock();
    let _ = if short { writeln!(stderr, "sheave: {}", one_line(text)) } else { writeln!(stderr, "{text}") };
}

/// The essence of a message of several lines: what comes before the usage, in one line, without a label.
fn one_line(text: &str) -> String {
    let essence =
        text.split("\n\nUsage:").next().unwrap_or(text).split("\n\nFor more information").next().unwrap_or(text);
    let words: Vec<&str> = essence.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn an_error_of_several_lines_becomes_one() {
        let error = Arguments::try_parse_from(["sheave", "bench", "link", "--bytes", "many"]).unwrap_err();
        let line = one_line(&error.render().to_string());
        assert!(!line.contains('\n') && !line.starts_with("error"), "{line}");
        assert!(line.contains("many") && line.contains("--bytes"), "{line}");
    }
}
