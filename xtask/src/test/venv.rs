//! The Python that tests run in: an interpreter of this machine, and a virtual environment under `target/venv`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{Outcome, Workspace, run};

/// The oldest Python that the bindings support.
const OLDEST: (u32, u32) = (3, 11);

/// Prints the version if the modules are there that make a virtual environment with pip in it.
const PROBE: &str = "import sys; print(*sys.version_info[:2]); import ensurepip, venv";

/// A Python that is new enough and can make virtual environments.
#[derive(Debug)]
pub(crate) struct Interpreter {
    program: String,
    version: (u32, u32),
}

impl Interpreter {
    /// The first that will do of `python3`, `python` and the versioned names; else why each of those that exist will
    /// not.
    pub(crate) fn find(workspace: &Workspace) -> Outcome<Interpreter> {
        let versioned = (OLDEST.1..=20).rev().map(|minor| format!("python3.{minor}"));
        let mut reasons = Vec::new();
        for program in ["python3".to_owned(), "python".to_owned()].into_iter().chain(versioned) {
            match Interpreter::probe(workspace, program) {
                Ok(interpreter) => return Ok(interpreter),
                Err(reason) => reasons.extend(reason),
            }
        }
        let (major, minor) = OLDEST;
        if reasons.is_empty() {
            return Err(format!("there is no Python here; hint: install Python {major}.{minor} or newer"));
        }
        Err(reasons.join("; "))
    }

    /// `Err(None)` when there is no such program at all.
    fn probe(workspace: &Workspace, program: String) -> Result<Interpreter, Option<String>> {
        let probe = workspace.command(&program, &["-c", PROBE]).output().map_err(|_| None)?;
        let printed = String::from_utf8_lossy(&probe.stdout);
        let Some(version) = version(&printed) else { return Err(None) };
        Interpreter::judge(program, version, probe.status.success()).map_err(Some)
    }

    fn judge(program: String, version: (u32, u32), makes_venvs: bool) -> Result<Interpreter, String> {
        let (major, minor) = version;
        if version < OLDEST {
            return Err(format!("`{program}` is Python {major}.{minor}; {}.{} is needed", OLDEST.0, OLDEST.1));
        }
        if !makes_venvs {
            let hint = format!("on Debian `apt-get install python{major}.{minor}-venv`");
            return Err(format!("`{program}` cannot make virtual environments with pip; hint: {hint}"));
        }
        Ok(Interpreter { program, version })
    }
}

/// Reads `3 11`.
fn version(printed: &str) -> Option<(u32, u32)> {
    let (major, minor) = printed.lines().next()?.split_once(' ')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A virtual environment that holds what some requirement files ask for.
pub(crate) struct Venv {
    folder: PathBuf,
}

impl Venv {
    /// Makes the environment, or brings it up to date. One that was made for the same interpreter and the same
    /// requirements is taken as it is, so that a second run needs no network.
    pub(crate) fn ready(workspace: &Workspace, interpreter: &Interpreter, requirements: &[PathBuf]) -> Outcome<Venv> {
        let venv = Venv { folder: workspace.target().join("venv") };
        let wanted = stamp(interpreter, requirements)?;
        let stamp_file = venv.folder.join("sheave-stamp");
        if std::fs::read_to_string(&stamp_file).is_ok_and(|found| found == wanted) {
            return Ok(venv);
        }
        let folder = venv.folder.to_string_lossy();
        run(workspace.command(&interpreter.program, &["-m", "venv", "--clear", &folder]))?;
        let mut install = venv.python(workspace, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        for file in requirements {
            install.arg("--requirement").arg(file);
        }
        run(install)?;
        std::fs::write(&stamp_file, wanted)
            .map_err(|error| format!("cannot write {}: {error}", stamp_file.display()))?;
        Ok(venv)
    }

    /// The environment's Python, as if the environment were activated.
    pub(crate) fn python(&self, workspace: &Workspace, arguments: &[&str]) -> Command {
        self.activated(workspace, "python", arguments)
    }

    /// A program that was installed into the environment.
    pub(crate) fn activated(&self, workspace: &Workspace, program: &str, arguments: &[&str]) -> Command {
        let programs = self.folder.join("bin");
        let mut command = workspace.command(&programs.join(program).to_string_lossy(), arguments);
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(programs).chain(std::env::split_paths(&inherited));
        command.env("PATH", std::env::join_paths(path).unwrap_or(inherited)).env("VIRTUAL_ENV", &self.folder);
        command.env_remove("PYTHONHOME").env_remove("CONDA_PREFIX");
        command
    }
}

/// Everything that an environment was made from.
fn stamp(interpreter: &Interpreter, requirements: &[PathBuf]) -> Outcome<String> {
    let mut stamp = format!("{} {:?}\n", interpreter.program, interpreter.version);
    for file in requirements {
        stamp += &read(file)?;
    }
    Ok(stamp)
}

fn read(file: &Path) -> Outcome<String> {
    std::fs::read_to_string(file).map_err(|error| format!("cannot read {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(version: (u32, u32), makes_venvs: bool) -> Result<Interpreter, String> {
        Interpreter::judge("python3".to_owned(), version, makes_venvs)
    }

    #[test]
    fn an_old_python_is_refused_with_its_version() {
        assert_eq!(judge((3, 9), true).unwrap_err(), "`python3` is Python 3.9; 3.11 is needed");
        assert!(judge((3, 11), true).is_ok());
        assert!(judge((4, 0), true).is_ok());
    }

    #[test]
    fn a_python_without_venv_says_how_to_get_it() {
        assert!(judge((3, 12), false).unwrap_err().contains("apt-get install python3.12-venv"));
    }

    #[test]
    fn versions_are_read_from_the_first_line() {
        assert_eq!(version("3 11\n"), Some((3, 11)));
        assert_eq!(version("Python was not found"), None);
        assert_eq!(version(""), None);
    }

    #[test]
    fn a_changed_requirement_changes_the_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("requirements.txt");
        let interpreter = judge((3, 11), true).unwrap();
        std::fs::write(&file, "numpy==1\n").unwrap();
        let before = stamp(&interpreter, std::slice::from_ref(&file)).unwrap();
        std::fs::write(&file, "numpy==2\n").unwrap();
        assert_ne!(before, stamp(&interpreter, &[file]).unwrap());
    }
}
