//! The workspace's test binaries, as cargo builds and describes them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::group::Group;
use crate::shell::{Outcome, output, words};
use crate::watch::FOREVER;

/// One binary full of tests.
#[derive(Debug)]
pub(crate) struct Binary {
    /// `package::target`, as cargo-nextest writes it.
    pub(crate) id: String,
    /// The name of the target alone.
    pub(crate) target: String,
    executable: PathBuf,
    package_folder: PathBuf,
    /// What cargo would set while it runs the binary's tests.
    environment: BTreeMap<String, String>,
}

impl Binary {
    /// The binary itself, in the folder and with the environment in which cargo would run it.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package_folder).env("CARGO_MANIFEST_DIR", &self.package_folder);
        command.envs(&self.environment);
        command
    }

    /// The names of the binary's tests: those to run, and those that are marked as ignored.
    pub(crate) fn tests(&self) -> Outcome<(Vec<String>, Vec<String>)> {
        let list = |flags: &[&str]| {
            let mut command = self.command();
            command.args(["--list", "--format", "terse"]).args(flags);
            output(command).map(|lines| names(&lines))
        };
        let ignored = list(&["--ignored"])?;
        let mut all = list(&[])?;
        all.retain(|name| !ignored.contains(name));
        Ok((all, ignored))
    }

    /// The reasons why these tests, which are marked as ignored, are not run: their names, and what stands there.
    pub(crate) fn reasons(&self, ignored: &[String]) -> Outcome<Vec<(String, String)>> {
        if ignored.is_empty() {
            // Without a name everything would run.
            return Ok(Vec::new());
        }
        let mut command = self.command();
        command.arg("--exact").args(ignored).args(["--format", "pretty"]);
        Ok(output(command)?.lines().filter_map(reason).collect())
    }
}

/// Builds the test binaries that `command`, a `cargo test --no-run`, is about.
pub(crate) fn build(mut command: Command) -> Outcome<Vec<Binary>> {
    command.args(["--message-format", "json-render-diagnostics"]).stdout(Stdio::piped());
    let words = words(&command);
    let mut group = Group::spawn(command)?;
    let messages = group.take_stdout().ok_or("cargo's messages cannot be read")?;
    let mut artifacts = Vec::new();
    for line in BufReader::new(messages).lines() {
        let line = line.map_err(|error| format!("`{words}` cannot be read: {error}"))?;
        let message = serde_json::from_str(&line).map_err(|error| format!("`{words}` printed `{line}`: {error}"))?;
        artifacts.extend(Artifact::read(&message));
    }
    match group.wait(FOREVER)? {
        Some(status) if status.success() => Ok(binaries(artifacts)),
        status => Err(format!("`{words}` ended with {status:?}")),
    }
}

/// An executable that cargo has built.
struct Artifact {
    package: String,
    package_folder: PathBuf,
    target: String,
    kind: String,
    is_test: bool,
    executable: PathBuf,
}

impl Artifact {
    /// `None` for messages about anything else.
    fn read(message: &Value) -> Option<Artifact> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let package_folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_path_buf();
        Some(Artifact {
            package: package_name(message["package_id"].as_str()?)?.to_owned(),
            package_folder,
            target: text(&message["target"]["name"])?,
            kind: text(&message["target"]["kind"][0])?,
            is_test: message["profile"]["test"].as_bool()?,
            executable: PathBuf::from(message["executable"].as_str()?),
        })
    }
}

/// The test binaries among `artifacts`; each is told where the programs of its own package are.
fn binaries(artifacts: Vec<Artifact>) -> Vec<Binary> {
    let (tests, others): (Vec<_>, Vec<_>) = artifacts.into_iter().partition(|artifact| artifact.is_test);
    let binary = |test: Artifact| {
        let programs = others.iter().filter(|other| other.kind == "bin" && other.package == test.package);
        let environment = programs
            .map(|program| (format!("CARGO_BIN_EXE_{}", program.target), program.executable.display().to_string()))
            .collect();
        let is_library = test.target.replace('-', "_") == test.package.replace('-', "_") && test.kind != "bin";
        let id = if is_library { test.package.clone() } else { format!("{}::{}", test.package, test.target) };
        Binary {
            id,
            target: test.target,
            executable: test.executable,
            package_folder: test.package_folder,
            environment,
        }
    };
    tests.into_iter().map(binary).collect()
}

/// The name in a package id such as `path+file:///home/me/crates/base#sheave-base@0.1.0`; without a name between `#`
/// and `@` it is the folder's.
fn package_name(id: &str) -> Option<&str> {
    let (address, fragment) = id.rsplit_once('#')?;
    match fragment.split_once('@') {
        Some((name, _)) => Some(name),
        None => address.rsplit('/').next(),
    }
}

/// The names in a terse list of tests, whose lines are `name: test`.
fn names(lines: &str) -> Vec<String> {
    lines.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Reads `test NAME ... ignored, REASON`.
fn reason(line: &str) -> Option<(String, String)> {
    let (name, reason) = line.strip_prefix("test ")?.split_once(" ... ignored, ")?;
    Some((name.to_owned(), reason.to_owned()))
}

#[cfg(test)]
impl Binary {
    /// A script that speaks as a test binary does.
    pub(crate) fn fixture() -> Binary {
        let package_folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        Binary {
            id: "fixture".to_owned(),
            target: "fixture".to_owned(),
            executable: package_folder.join("fixtures/test_binary.sh"),
            package_folder,
            environment: BTreeMap::from([("CARGO_BIN_EXE_helper".to_owned(), "/bin/helper".to_owned())]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_tests_are_listed_apart() {
        let (tests, ignored) = Binary::fixture().tests().unwrap();
        assert_eq!(tests, ["good", "bad", "hangs"]);
        assert_eq!(ignored, ["needs_two_machines", "needs_minutes"]);
    }

    #[test]
    fn ignored_tests_say_why() {
        let ignored = ["needs_two_machines".to_owned(), "needs_minutes".to_owned()];
        let reasons = Binary::fixture().reasons(&ignored).unwrap();
        let wanted = ["two machines are needed", "soak suite: takes minutes"];
        assert_eq!(reasons, [0, 1].map(|at| (ignored[at].clone(), wanted[at].to_owned())));
        assert_eq!(Binary::fixture().reasons(&[]).unwrap(), []);
    }

    fn artifact(target: &str, kind: &str, is_test: bool) -> Artifact {
        let message = serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": "path+file:///home/me/sheave/crates/process#sheave-process@0.1.0",
            "manifest_path": "/home/me/sheave/crates/process/Cargo.toml",
            "target": { "name": target, "kind": [kind] },
            "profile": { "test": is_test },
            "executable": format!("/home/me/sheave/target/{target}"),
        });
        Artifact::read(&message).unwrap()
    }

    #[test]
    fn tests_know_their_packages_programs() {
        let artifacts = vec![
            artifact("helper", "bin", false),
            artifact("process_kill", "test", true),
            artifact("helper", "bin", true),
        ];
        let binaries = binaries(artifacts);
        let ids: Vec<&str> = binaries.iter().map(|binary| binary.id.as_str()).collect();
        assert_eq!(ids, ["sheave-process::process_kill", "sheave-process::helper"]);
        assert_eq!(binaries[0].environment["CARGO_BIN_EXE_helper"], "/home/me/sheave/target/helper");
        assert_eq!(binaries[0].package_folder, PathBuf::from("/home/me/sheave/crates/process"));
    }

    #[test]
    fn libraries_and_other_messages() {
        assert!(Artifact::read(&serde_json::json!({ "reason": "build-finished", "success": true })).is_none());
        assert_eq!(package_name("path+file:///home/me/xtask#0.1.0"), Some("xtask"));
        let library = binaries(vec![artifact("sheave_process", "lib", true)]);
        assert_eq!(library[0].id, "sheave-process");
    }

    #[test]
    fn terse_lists() {
        assert_eq!(names("a::b: test\nspeed: benchmark\nc: test\n"), ["a::b", "c"]);
    }
}
