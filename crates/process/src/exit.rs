//! How children ended, in numbers and in words.

use sheave_base::Error;
use std::fmt;

/// How one child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It returned this exit code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// The guard of its job was killed, and the child with it; how it ended is not known.
    Lost,
}

impl Status {
    pub(crate) fn from_wait_status(raw: i32) -> Self {
        if libc::WIFSIGNALED(raw) { Self::Signal(libc::WTERMSIG(raw)) } else { Self::Code(libc::WEXITSTATUS(raw)) }
    }

    /// Whether it returned 0.
    #[must_use]
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }

    /// The exit code as shells give it: a child that was killed by signal n counts as 128 + n.
    #[must_use]
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
            Self::Lost => 128 + libc::SIGKILL,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => match signal_name(signal) {
                Some(name) => write!(f, "killed by signal {signal} ({name})"),
                None => write!(f, "killed by signal {signal}"),
            },
            Self::Lost => f.write_str("killed together with the guard process of its job"),
        }
    }
}

/// The name of a signal, such as `SIGKILL`; `None` for real-time signals and numbers that are none.
#[must_use]
pub fn signal_name(signal: i32) -> Option<&'static str> {
    let names = [
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGQUIT, "SIGQUIT"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGTRAP, "SIGTRAP"),
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGUSR1, "SIGUSR1"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGUSR2, "SIGUSR2"),
        (libc::SIGPIPE, "SIGPIPE"),
        (libc::SIGALRM, "SIGALRM"),
        (libc::SIGTERM, "SIGTERM"),
        (libc::SIGCHLD, "SIGCHLD"),
        (libc::SIGCONT, "SIGCONT"),
        (libc::SIGSTOP, "SIGSTOP"),
        (libc::SIGTSTP, "SIGTSTP"),
        (libc::SIGXCPU, "SIGXCPU"),
        (libc::SIGXFSZ, "SIGXFSZ"),
        (libc::SIGSYS, "SIGSYS"),
    ];
    names.into_iter().find(|(number, _)| *number == signal).map(|(_, name)| name)
}

/// The end of one child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The child's name in its job.
    pub name: String,
    /// Its process id, which may belong to somebody else by now.
    pub pid: u32,
    /// How it ended.
    pub status: Status,
    /// Whether the job was ending its children already, or had forwarded a signal to them: then this end says nothing
    /// about the child.
    pub asked_for: bool,
    /// Whether it ended well: with 0, or by what [`Command::judged_by`](crate::Command::judged_by) says.
    pub is_well: bool,
}

impl Exit {
    /// Whether the child ended by itself, and not well.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        !self.asked_for && !self.is_well
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {}) {}", self.name, self.pid, self.status)
    }
}

/// The first failure of a job.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Who failed, and how.
    pub exit: Exit,
    /// Its last lines on standard error, oldest first, without line ends; bytes that are not UTF-8 are replaced.
    pub last_stderr_lines: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.exit)?;
        if !self.last_stderr_lines.is_empty() {
            f.write_str("; its last lines on standard error:")?;
        }
        for line in &self.last_stderr_lines {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

/// What a job can say when it is over.
#[derive(Clone, Debug)]
pub struct Report {
    /// The ends of the children in the order in which they came; of very many, the latest.
    pub exits: Vec<Exit>,
    /// The child that failed first, unless all did well until they were asked to end.
    pub first_failure: Option<Failure>,
    /// The last signal that the job forwarded.
    pub signal: Option<i32>,
    /// What went wrong in the supervision itself, such as a killed guard.
    pub trouble: Option<Error>,
    pub(crate) worst_exit_code: i32,
}

impl Report {
    /// The worst exit code of the children that ended by themselves; at least 128 + n when signal n was forwarded.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        let signal = self.signal.map_or(0, |signal| 128 + signal);
        let trouble = i32::from(self.trouble.is_some());
        self.worst_exit_code.max(signal).max(trouble)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.first_failure, &self.trouble) {
            (Some(failure), _) => write!(f, "{failure}")?,
            (None, Some(trouble)) => write!(f, "{trouble}")?,
            (None, None) => f.write_str("no child failed")?,
        }
        match self.signal {
            Some(signal) => write!(f, " [after signal {signal} was forwarded]"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_numbers_and_words() {
        assert_eq!(Status::from_wait_status(3 << 8), Status::Code(3));
        assert_eq!(Status::from_wait_status(libc::SIGKILL), Status::Signal(9));
        assert_eq!(Status::Signal(9).to_string(), "killed by signal 9 (SIGKILL)");
        assert_eq!(Status::Signal(40).to_string(), "killed by signal 40");
        assert_eq!(Status::Signal(15).exit_code(), 143);
        assert!(Status::Code(0).success() && !Status::Signal(0).success());
    }

    #[test]
    fn an_end_that_was_asked_for_is_no_failure() {
        let status = Status::Signal(15);
        let mut exit = Exit { name: "worker-0".into(), pid: 7, status, asked_for: true, is_well: false };
        assert!(!exit.is_failure());
        exit.asked_for = false;
        assert!(exit.is_failure());
        assert_eq!(exit.to_string(), "worker-0 (pid 7) killed by signal 15 (SIGTERM)");
    }
}
