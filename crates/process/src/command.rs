//! What to run, as whom.

use crate::exit::Status;
use crate::image;
use sheave_base::{Error, ErrorKind, Result};
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The variable by which the descendants of a job are recognised when its guard was killed.
pub(crate) const JOB_VARIABLE: &str = "SHEAVE_PROCESS_JOB";

/// A program to run as a child of a [`Job`](crate::Job): its arguments, name, environment and working directory.
///
/// The child inherits this process's environment as it is when it is spawned, reads from `/dev/null` unless
/// [`Command::input`] or [`Command::inherit_input`] says otherwise, and has no other open descriptors than its standard
/// streams.
///
/// ```
/// use sheave_process::Command;
///
/// let command = Command::new("python3").args(["train.py", "--fast"]).env("RANK", "0").name("worker-0");
/// assert_eq!(format!("{command}"), "worker-0: python3 train.py --fast");
/// ```
#[derive(Clone, Debug)]
pub struct Command {
    program: OsString,
    arguments: Vec<OsString>,
    changes: Vec<(OsString, Option<OsString>)>,
    directory: Option<PathBuf>,
    name: Option<String>,
    background: bool,
    input: Input,
    judge: Option<Judge>,
}

/// Standard input of a child.
#[derive(Clone, Debug)]
enum Input {
    Nothing,
    Inherited,
    Given(Arc<OwnedFd>),
}

/// Says of an end whether it was a good one.
#[derive(Clone)]
pub(crate) struct Judge(Arc<dyn Fn(Status) -> bool + Send + Sync>);

impl Judge {
    pub(crate) fn is_well(&self, status: Status) -> bool {
        (self.0)(status)
    }
}

impl std::fmt::Debug for Judge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Judge").finish_non_exhaustive()
    }
}

impl Command {
    /// Runs `program`: a path if it has a slash, else looked up in the child's `PATH`.
    #[must_use]
    pub fn new(program: impl Into<OsString>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            changes: Vec::new(),
            directory: None,
            name: None,
            background: false,
            input: Input::Nothing,
            judge: None,
        }
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable in the child's environment.
    #[must_use]
    pub fn env(mut self, variable: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.changes.push((variable.into(), Some(value.into())));
        self
    }

    /// Sets variables in the child's environment.
    #[must_use]
    pub fn envs<K: Into<OsString>, V: Into<OsString>>(self, variables: impl IntoIterator<Item = (K, V)>) -> Self {
        variables.into_iter().fold(self, |command, (variable, value)| command.env(variable, value))
    }

    /// Takes a variable out of the child's environment.
    #[must_use]
    pub fn env_remove(mut self, variable: impl Into<OsString>) -> Self {
        self.changes.push((variable.into(), None));
        self
    }

    /// Runs in `directory` instead of this process's working directory. Relative programs are looked for there.
    #[must_use]
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Names the child, as in `worker-0`: unique among the living children of a job. The default is the program's file
    /// name and a number.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Says that nobody waits for this child to end well, as for a server that runs until it is ended. Its failure
    /// counts like any other.
    #[must_use]
    pub fn background(mut self) -> Self {
        self.background = true;
        self
    }

    /// Lets the child read this process's standard input. For the only child of a job: two would take it from each
    /// other.
    #[must_use]
    pub fn inherit_input(mut self) -> Self {
        self.input = Input::Inherited;
        self
    }

    /// Gives the child this descriptor as its standard input: a file, or one end of a pipe or of a pair of sockets.
    ///
    /// ```
    /// use sheave_process::{Command, Job, Output};
    /// use std::time::{Duration, Instant};
    ///
    /// # fn main() -> sheave_base::Result<()> {
    /// let (read, mut write) = std::io::pipe()?;
    /// let job = Job::builder().output(Output::Capture).start()?;
    /// let child = job.spawn(Command::new("cat").input(read))?;
    /// std::io::Write::write_all(&mut write, b"hello\n")?;
    /// assert_eq!(child.wait_for_stdout("", Instant::now() + Duration::from_secs(20))?, "hello");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn input(mut self, descriptor: impl Into<OwnedFd>) -> Self {
        self.input = Input::Given(Arc::new(descriptor.into()));
        self
    }

    /// Has `is_well` say whether the child has ended well, in place of its exit code alone: one that says otherwise
    /// what came of its work may fail with 0, and end well in any way. It is asked once, on the job's own thread, and
    /// must be short and not use the job.
    #[must_use]
    pub fn judged_by(mut self, is_well: impl Fn(Status) -> bool + Send + Sync + 'static) -> Self {
        self.judge = Some(Judge(Arc::new(is_well)));
        self
    }

    pub(crate) fn is_background(&self) -> bool {
        self.background
    }

    pub(crate) fn judge(&self) -> Option<Judge> {
        self.judge.clone()
    }

    /// The descriptor that is to be the child's standard input; none for `/dev/null`.
    pub(crate) fn input_descriptor<'a>(&'a self, inherited: &'a impl AsFd) -> Option<BorrowedFd<'a>> {
        match &self.input {
            Input::Nothing => None,
            Input::Inherited => Some(inherited.as_fd()),
            Input::Given(descriptor) => Some(descriptor.as_fd()),
        }
    }

    pub(crate) fn name_or(&self, id: u32) -> String {
        self.name.clone().unwrap_or_else(|| {
            let file = Path::new(&self.program).file_name().unwrap_or(&self.program);
            format!("{}-{id}", file.to_string_lossy())
        })
    }

    pub(crate) fn program_text(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    /// Everything that the guard needs, in a memory file.
    pub(crate) fn seal(&self, job: &str) -> Result<OwnedFd> {
        let mut variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        for (variable, value) in &self.changes {
            variables.retain(|(known, _)| known != variable);
            variables.extend(value.clone().map(|value| (variable.clone(), value)));
        }
        variables.retain(|(known, _)| known != JOB_VARIABLE);
        variables.push((JOB_VARIABLE.into(), job.into()));
        let directory = match &self.directory {
            Some(directory) => Some(std::path::absolute(directory)?),
            // A working directory that was removed stays the guard's, which has the same.
            None => std::env::current_dir().ok(),
        };
        let path = variables.iter().find(|(variable, _)| variable == "PATH").map(|(_, value)| value.as_os_str());
        let program = find_program(&self.program, path)?;
        let mut arguments = vec![self.c_string(&self.program)?];
        for argument in &self.arguments {
            arguments.push(self.c_string(argument)?);
        }
        let mut lines = Vec::with_capacity(variables.len());
        for (variable, value) in variables {
            let mut line = variable;
            line.push("=");
            line.push(value);
            lines.push(self.c_string(&line)?);
        }
        let directory = directory.map(|directory| self.c_string(directory.as_os_str())).transpose()?;
        Ok(image::write(&self.c_string(program.as_os_str())?, &arguments, &lines, directory.as_deref())?)
    }

    fn c_string(&self, string: &OsStr) -> Result<CString> {
        CString::new(string.as_bytes()).map_err(|_| {
            let what = format!("a zero byte in the arguments or variables of {}", self.program.to_string_lossy());
            Error::new(ErrorKind::InvalidArgument, what)
        })
    }
}

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}: ")?;
        }
        f.write_str(&self.program.to_string_lossy())?;
        self.arguments.iter().try_for_each(|argument| write!(f, " {}", argument.to_string_lossy()))
    }
}

fn find_program(program: &OsStr, path: Option<&OsStr>) -> Result<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Ok(program.into());
    }
    let path = path.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    let runnable = |candidate: &PathBuf| {
        candidate.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path).map(|directory| directory.join(program)).find(runnable).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("no program named {} in PATH", program.to_string_lossy()))
            .hint("check the spelling, or give the program's path")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_the_given_path_only() {
        assert_eq!(find_program(OsStr::new("sh"), Some(OsStr::new("/bin"))).unwrap(), Path::new("/bin/sh"));
        let missing = find_program(OsStr::new("sh"), Some(OsStr::new("/proc"))).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert_eq!(find_program(OsStr::new("./x"), None).unwrap(), Path::new("./x"));
    }

    #[test]
    fn zero_bytes_are_refused() {
        let error = Command::new("sh").arg("a\0b").seal("job").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let error = Command::new("sh").env("A", "\0").seal("job").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn unnamed_children_are_called_after_their_program() {
        assert_eq!(Command::new("/usr/bin/env").name_or(3), "env-3");
        assert_eq!(Command::new("env").name("worker-1").name_or(3), "worker-1");
    }
}
