//! The project's own tool, run as `cargo xtask <command>`.
//!
//! It needs stable Rust and cargo. Whatever else a command would like to have (cargo-nextest, Python, miri, cargo-fuzz)
//! is looked for at run time; where it is missing the command says what is skipped, why, and how to get it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this tool talks to a person through its terminal")]

mod generate;
mod group;
mod lanes;
mod shell;
mod suites;
mod test;
mod tidy;
mod watch;

use std::process::ExitCode;

use shell::{Outcome, Workspace};
use suites::Suite;

const USAGE: &str = "\
usage: cargo xtask <command> [flags]

  test              everything that must hold before a change is done:
                    format, clippy, tidy, documentation, Rust tests, doctests, simulation, Python tests
      --no-nextest  run the Rust tests without cargo-nextest, even where it is installed
      --rust-only   leave the Python tests out
      --python-only run nothing but the Python tests
      --torch       install torch and jax for the Python tests that want them
  tidy              the rules on files, functions, floors, links and generated files
  generate          the files that a program writes: docs/configuration.md
  loom              the concurrency models, every interleaving
  miri              the tests under miri that it can run (nightly)
  fuzz              every fuzz target in turn (nightly, cargo-fuzz)
      --seconds N   time for each target, 60 unless told
  chaos [NAME]      many seeds of delays, cuts and silences; each test within 15 minutes
  soak [NAME]       millions of operations, and figures; each test within 30 minutes
  adversity [NAME]  whole jobs in hostile surroundings; each test within 5 minutes (root)
      --release     build these tests as for users
      --torch       install torch for the Python tests among them
      NAME          only tests with this in their names";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let Some(command) = Command::parse(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match command.run() {
        Ok(code) => code,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

enum Command {
    Test(test::Options),
    Tidy,
    Generate,
    Loom,
    Miri,
    Fuzz { seconds: u64 },
    Suite(Suite, suites::Options),
}

impl Command {
    fn parse(words: &[&str]) -> Option<Command> {
        match words {
            ["test", flags @ ..] => test::Options::parse(flags).map(Command::Test),
            ["tidy"] => Some(Command::Tidy),
            ["generate"] => Some(Command::Generate),
            ["loom"] => Some(Command::Loom),
            ["miri"] => Some(Command::Miri),
            ["fuzz"] => Some(Command::Fuzz { seconds: 60 }),
            ["fuzz", "--seconds", seconds] => seconds.parse().ok().map(|seconds| Command::Fuzz { seconds }),
            [name, words @ ..] => {
                let suite = Suite::ALL.into_iter().find(|suite| suite.name() == *name)?;
                suites::Options::parse(words).map(|options| Command::Suite(suite, options))
            }
            [] => None,
        }
    }

    fn run(self) -> Outcome<ExitCode> {
        group::end_all_on_signal()?;
        let workspace = Workspace::find()?;
        match self {
            Command::Test(options) => return Ok(test::run(workspace, &options)),
            Command::Tidy => tidy::run(&workspace)?,
            Command::Generate => generate::run(&workspace)?,
            Command::Loom => return lanes::loom(&workspace),
            Command::Miri => return lanes::miri(&workspace),
            Command::Fuzz { seconds } => return lanes::fuzz(&workspace, seconds),
            Command::Suite(suite, options) => return suites::run(&workspace, suite, &options),
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_words_are_refused_not_ignored() {
        assert!(Command::parse(&["test", "--rust-only"]).is_some());
        assert!(Command::parse(&["test", "--rustonly"]).is_none());
        assert!(Command::parse(&["fuzz", "--seconds", "soon"]).is_none());
        assert!(Command::parse(&["fuzz", "--seconds", "5"]).is_some());
        assert!(Command::parse(&["chaos", "--release", "cuts"]).is_some());
        assert!(Command::parse(&["adversity", "--fast"]).is_none());
        assert!(Command::parse(&["tidy", "now"]).is_none());
        assert!(Command::parse(&["generate", "--check"]).is_none());
        assert!(Command::parse(&[]).is_none());
    }
}
