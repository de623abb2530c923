//! Python programs that this binary carries, run by a Python of the user's.

use super::peer::{end_with_us, output_of, parse};
use crate::{Failure, own};
use sheave_base::{Error, Result};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// An import takes long on a cold disk.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(60);

/// Before the numbers of a line, where something else may stand before them.
const MARK: &str = "times:";

/// A program in a folder of its own, which goes with it.
pub(super) struct Script {
    /// Whose it is, in errors.
    whose: &'static str,
    folder: tempfile::TempDir,
    python: PathBuf,
}

impl Script {
    /// Writes the program down.
    pub(super) fn new(whose: &'static str, text: &str, python: PathBuf) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(|error| Error::from(error).context("making a temporary folder"))?;
        let script = Self { whose, folder, python };
        let written = std::fs::write(script.path(), text);
        written.map_err(|error| Error::from(error).context(format!("writing {whose}'s script")))?;
        Ok(script)
    }

    /// As [`Script::new`], for a Python that the user named with `flag`, and that must have this module.
    pub(super) fn checked(
        whose: &'static str,
        text: &str,
        python: &Path,
        flag: &str,
        module: &str,
    ) -> std::result::Result<Self, Failure> {
        let script = Self::new(whose, text, python.to_path_buf())?;
        let tried = run(whose, Command::new(python).args(["-c", &format!("import {module}")]), IMPORT_TIMEOUT);
        tried.map_err(|error| Failure::Usage(format!("{flag}: {} has no {module}: {error}", python.display())))?;
        Ok(script)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("program.py")
    }

    /// The interpreter, to be run with this script.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(self.path());
        command
    }

    /// The interpreter with these arguments, and this script behind them.
    pub(super) fn command_after(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.python);
        command.args(arguments).arg(self.path());
        command
    }

    /// The interpreter with this script, to be run by another program.
    pub(super) fn run_by(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).args([self.python.as_os_str(), OsStr::new(&self.path())]);
        command
    }

    /// This script as the processes of a job, started by this program as a user starts it.
    pub(super) fn launched(&self, ranks: u32) -> Result<Command> {
        let file = std::env::current_exe()?.to_string_lossy().into_owned();
        let mut line: Vec<String> = own::line(file).iter().map(|word| word.to_string_lossy().into_owned()).collect();
        line.extend(["launch", "-n", &ranks.to_string(), "--"].map(str::to_owned));
        let launch: Vec<&str> = line.iter().skip(1).map(String::as_str).collect();
        Ok(self.run_by(&line[0], &launch))
    }

    /// The bytes and times of every line that a command prints, which ends well within `limit`.
    pub(super) fn times(&self, command: &mut Command, limit: Duration) -> Result<Vec<(usize, Vec<u64>)>> {
        let printed = self.output(command, limit)?;
        // The launcher's lines begin with the name of a process.
        printed.lines().map(|line| parse(line.rsplit(MARK).next().unwrap_or(line))).collect()
    }

    /// What a command prints, which ends well within `limit`.
    pub(super) fn output(&self, command: &mut Command, limit: Duration) -> Result<String> {
        run(self.whose, command, limit)
    }
}

fn run(whose: &str, command: &mut Command, limit: Duration) -> Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    end_with_us(command);
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command.spawn().map_err(|error| Error::from(error).context(format!("starting {program}")))?;
    output_of(&format!("{whose}'s python"), child, limit)
}
