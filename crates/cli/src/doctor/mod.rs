//! `sheave doctor`: what this machine can do for sheave, found out by doing it.
//!
//! Each check is one line: whether it is well, what was found, and what to do about it. Checks do not depend on each
//! other, so that one machine's trouble is found in one run.

mod job;
mod kernel;
mod links;
mod machine;
mod tools;

use crate::Failure;
use serde::Serialize;
use sheave_base::config::Settings;
use sheave_base::{Error, Result};
use std::fmt;
use std::io::Write;

/// Checks this machine and says what it found.
///
/// Each line is `ok`, `warn` or `fail`, what was checked, what was found, and a hint. The secret itself is never shown;
/// where a cookie file is used, it is made if there is none yet. Exit code 0 when nothing failed, else 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Print a JSON array of objects with check, status, fact and hint.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// It works, but not as well as it could.
    Warn,
    Fail,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// What one check has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    status: Status,
    fact: String,
    hint: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, fact: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, fact: fact.into(), hint: None }
    }

    fn warn(check: &'static str, fact: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { check, status: Status::Warn, fact: fact.into(), hint: Some(hint.into()) }
    }

    fn fail(check: &'static str, fact: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { check, status: Status::Fail, fact: fact.into(), hint: Some(hint.into()) }
    }

    /// The fact that was found, or a failure with the error's own hint, else `hint`.
    fn of(check: &'static str, found: Result<String>, hint: &str) -> Self {
        match found {
            Ok(fact) => Self::ok(check, fact),
            Err(error) => {
                let advice = error.advice().unwrap_or(hint).to_owned();
                Self::fail(check, fact_of(&error), advice)
            }
        }
    }
}

/// An error without its hint, which has a place of its own.
fn fact_of(error: &Error) -> String {
    let text = error.to_string();
    match error.advice() {
        Some(advice) => text.strip_suffix(&format!("; hint: {advice}")).unwrap_or(&text).to_owned(),
        None => text,
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<4}  {}: {}", self.status.name(), self.check, self.fact)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// Checks everything and prints what was found.
pub(crate) fn run(arguments: &Arguments) -> std::result::Result<(), Failure> {
    let settings = Settings::from_lookup(|name| std::env::var_os(name))?;
    let mut findings = kernel::check();
    findings.extend(machine::check(&settings));
    findings.extend(job::check(&settings));
    findings.extend(links::check(&settings));
    findings.extend(tools::check());
    let text = if arguments.json {
        serde_json::to_string_pretty(&findings).map_err(|error| Failure::Run(error.to_string()))? + "\n"
    } else {
        findings.iter().map(|finding| format!("{finding}\n")).collect()
    };
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::Unread,
        _ => Failure::Run(error.to_string()),
    })?;
    match findings.iter().filter(|finding| finding.status == Status::Fail).count() {
        0 => Ok(()),
        failed => Err(Failure::Run(format!("{failed} of {} checks failed", findings.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::ErrorKind;

    #[test]
    fn a_finding_is_one_line_with_its_hint() {
        assert_eq!(Finding::ok("kernel", "6.1").to_string(), "ok    kernel: 6.1");
        assert_eq!(Finding::warn("open files", "256", "raise it").to_string(), "warn  open files: 256; raise it");
        let error = Error::new(ErrorKind::NotFound, "no place").hint("set HOME");
        let finding = Finding::of("secret", Err(error), "unused");
        assert_eq!(
            (finding.status, &*finding.fact, finding.hint.as_deref()),
            (Status::Fail, "no place", Some("set HOME"))
        );
    }
}
