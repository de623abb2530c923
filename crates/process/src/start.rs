//! Bringing processes to life: the guard, and through it the children.

use crate::child::Record;
use crate::command::Command;
use crate::guard;
use crate::job::{GuardState, Phase, Shared};
use crate::log::in_time;
use crate::protocol::{self, Verb};
use crate::sys::{self, Forked, SignalsBlocked};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::PidfdFlags;
use rustix::rand::GetRandomFlags;
use sheave_base::{Error, ErrorKind, Result, limits};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Instant;

/// A guard that has said that it is ready.
pub(crate) struct StartedGuard {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) control: OwnedFd,
    pub(crate) mark: String,
}

/// Forks the guard of a new job and waits until it is ready.
pub(crate) fn start_guard(pipes: bool) -> Result<StartedGuard> {
    let operation = |errno: Errno| Error::from(errno).operation("start job");
    let mark = random_mark().map_err(operation)?;
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(operation)?;
    // Opened by ourselves about ourselves: nobody can have taken our id meanwhile.
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).map_err(operation)?;
    let forked = {
        let _blocked = SignalsBlocked::new();
        // SAFETY: the child goes straight to the guard's code, which keeps the rules and never returns.
        match unsafe { sys::fork(0) }.map_err(operation)? {
            // SAFETY: this is a fresh fork, and all signals are blocked.
            Forked::Child => unsafe { guard::run(theirs.as_fd(), own.as_fd(), pipes) },
            Forked::Parent { pid, pidfd } => (pid, pidfd),
        }
    };
    drop(theirs);
    let (pid, pidfd) = forked;
    match await_ready(&ours) {
        Ok(()) => Ok(StartedGuard { pid, pidfd, control: ours, mark }),
        Err(error) => {
            abandon(pid, &pidfd);
            Err(error.operation("start job"))
        }
    }
}

fn random_mark() -> Result<String, Errno> {
    let mut bytes = [0_u8; 16];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn await_ready(control: &OwnedFd) -> Result<()> {
    let deadline = in_time(limits::SPAWN_TIMEOUT);
    loop {
        match protocol::receive(control.as_fd()) {
            Ok(Some((record, _))) if record.verb == Verb::Ready && record.value == 0 => return Ok(()),
            Ok(Some((record, _))) => return Err(Errno::from_raw_os_error(record.value).into()),
            Ok(None) => return Err(Error::new(ErrorKind::Io, "the guard of the job ended before it was ready")),
            Err(Errno::AGAIN) if Instant::now() < deadline => {
                let mut events = [PollFd::new(control, PollFlags::IN)];
                let _ = rustix::event::poll(&mut events, sys::until(Some(deadline)).as_ref());
            }
            Err(Errno::AGAIN) => {
                return Err(Error::new(ErrorKind::DeadlineExceeded, "the guard of the job did not get ready"));
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Kills and reaps a guard that has no children yet.
pub(crate) fn abandon(pid: i32, pidfd: &OwnedFd) {
    sys::kill_pidfd(pidfd.as_raw_fd(), libc::SIGKILL);
    await_end(pid, pidfd);
}

/// Waits for the end of a guard that has closed its socket or was killed, and reaps it.
pub(crate) fn await_end(pid: i32, pidfd: &OwnedFd) {
    let deadline = in_time(limits::KILL_TIMEOUT);
    let mut events = [PollFd::new(pidfd, PollFlags::IN)];
    while rustix::event::poll(&mut events, sys::until(Some(deadline)).as_ref()) == Err(Errno::INTR) {}
    let _ = sys::reap(pid);
}

/// Waits until the child of `record` has become its program, or says why it could not.
pub(crate) fn await_program(shared: &Shared, record: &Record, command: &Command, deadline: Instant) -> Result<()> {
    let status = shared.wait_until(Some(deadline), |state| {
        let lost = state.guard != GuardState::Serving;
        let Some(entry) = state.living.get_mut(&record.id) else {
            return Some(Err(Error::new(ErrorKind::Closed, "the job ended while the child was started")));
        };
        match std::mem::replace(&mut entry.phase, Phase::Asked) {
            Phase::Forked(status) => Some(Ok(status)),
            Phase::Refused(errno) => Some(Err(refusal(errno))),
            phase => {
                entry.phase = phase;
                lost.then(|| Err(Error::new(ErrorKind::Closed, "the job ended while the child was started")))
            }
        }
    })?;
    let late = || {
        Error::new(ErrorKind::DeadlineExceeded, format!("{} was not loaded in time", command.program_text()))
            .elapsed(limits::SPAWN_TIMEOUT)
    };
    let status = status.ok_or_else(late)??;
    let mut events = [PollFd::new(&status, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut events, sys::until(Some(deadline)).as_ref()) {
            Ok(0) => return Err(late()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => break,
        }
    }
    let mut report = [0_u8; 8];
    // The writing end closes without a word when the program is loaded.
    match rustix::io::read(&status, &mut report)? {
        0 => Ok(()),
        _ => Err(explain(report, command)),
    }
}

fn refusal(errno: Errno) -> Error {
    match errno {
        Errno::MFILE | Errno::NFILE => Error::new(ErrorKind::LimitExceeded, "too many open files for another child")
            .hint("raise the limit with ulimit -n; each child needs three at least"),
        Errno::AGAIN => Error::new(ErrorKind::LimitExceeded, "the system allows no more processes")
            .hint("raise the limit with ulimit -u, or end something"),
        errno => errno.into(),
    }
}

fn explain(report: [u8; 8], command: &Command) -> Error {
    let word = |at: usize| i32::from_ne_bytes([report[at], report[at + 1], report[at + 2], report[at + 3]]);
    let (step, errno) = (word(0), Errno::from_raw_os_error(word(4)));
    let program = command.program_text();
    let kind = if errno == Errno::NOENT { ErrorKind::NotFound } else { ErrorKind::Io };
    let reason = std::io::Error::from(errno);
    match step {
        guard::STEP_DIRECTORY => Error::new(kind, format!("the working directory for {program}: {reason}")),
        guard::STEP_EXEC if errno == Errno::NOEXEC => {
            Error::new(kind, format!("{program}: {reason}")).hint("a script needs a first line such as #!/bin/sh")
        }
        _ => Error::new(kind, format!("{program}: {reason}")),
    }
}
