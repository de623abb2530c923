//! Children that cannot outlive us: each leads a process group of its own, which ends with its owner.
//!
//! A group is killed when its [`Group`] is dropped, so a test that leaves a process behind, or one that is over its
//! time, is gone before the next begins. A child in a group of its own does not get the terminal's Ctrl-C; therefore
//! every living group is registered, and on SIGINT, SIGTERM or SIGHUP one thread kills them all and exits. A group is
//! spawned and registered under one lock, which that thread keeps, so none is missed.
//!
//! Killing by number is safe: the leader is reaped only after its group was killed, and until it is reaped its id,
//! which is the group's, cannot be given to another process.

use std::fmt::Display;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::shell::{Outcome, words};

static LIVING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// From now on a signal that would end us ends every living group first.
pub(crate) fn end_all_on_signal() -> Outcome {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|error| format!("cannot listen for signals: {error}"))?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let living = living();
            for leader in living.iter() {
                kill(*leader);
            }
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// A child that leads its own process group.
pub(crate) struct Group {
    child: Child,
    leader: Pid,
    pidfd: OwnedFd,
}

impl Group {
    /// Starts `command`, without standard input, as the leader of a new process group.
    pub(crate) fn spawn(mut command: Command) -> Outcome<Group> {
        let words = words(&command);
        let failure = |error: &dyn Display| format!("`{words}` cannot be run: {error}");
        let mut living = living();
        let mut child = command.process_group(0).stdin(Stdio::null()).spawn().map_err(|error| failure(&error))?;
        let leader = Pid::from_child(&child);
        match pidfd_open(leader, PidfdFlags::empty()) {
            Ok(pidfd) => {
                living.push(leader);
                Ok(Group { child, leader, pidfd })
            }
            Err(error) => {
                kill(leader);
                child.wait().map_err(|error| failure(&error))?;
                Err(failure(&error))
            }
        }
    }

    /// The standard output of a command that was given a pipe for it; `None` the second time.
    pub(crate) fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits at most `limit` for the leader to end, ends the rest of its group, and returns the leader's status; `None`
    /// when it is still running.
    pub(crate) fn wait(&mut self, limit: Duration) -> Outcome<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            let rest = Timespec::try_from(rest).map_err(|error| format!("{limit:?} is no time to wait: {error}"))?;
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&rest)) {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(format!("cannot wait for process {}: {error}", self.child.id())),
            }
        }
        kill(self.leader);
        let status = self.child.wait().map_err(|error| format!("cannot reap process {}: {error}", self.child.id()))?;
        forget(self.leader);
        Ok(Some(status))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !forget(self.leader) {
            return;
        }
        kill(self.leader);
        // The leader was killed, so this ends; that it cannot be reaped twice is the only way for it to fail.
        drop(self.child.wait());
    }
}

fn living() -> MutexGuard<'static, Vec<Pid>> {
    LIVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a group off the register; false when it was off already.
fn forget(leader: Pid) -> bool {
    let mut living = living();
    let before = living.len();
    living.retain(|other| *other != leader);
    living.len() < before
}

/// Kills a group; one that is gone already is as good.
fn kill(leader: Pid) {
    let _ = kill_process_group(leader, Signal::KILL);
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Group {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        Group::spawn(command).unwrap()
    }

    /// Every process of a group holds its standard output, so the pipe ends when the last of them is gone.
    fn ends(mut stdout: ChildStdout) -> bool {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(stdout.read_to_end(&mut Vec::new()).is_ok()));
        receiver.recv_timeout(LIMIT).unwrap_or(false)
    }

    #[test]
    fn the_leaders_status_comes_back() {
        let status = shell("exit 3").wait(LIMIT).unwrap().unwrap();
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn a_group_over_its_time_ends_whole() {
        let mut group = shell("sleep 600 & sleep 600");
        assert!(group.wait(Duration::from_millis(50)).unwrap().is_none());
        let stdout = group.take_stdout().unwrap();
        drop(group);
        assert!(ends(stdout));
    }

    #[test]
    fn what_a_finished_leader_leaves_behind_ends_too() {
        let mut group = shell("sleep 600 &");
        let stdout = group.take_stdout().unwrap();
        assert!(group.wait(LIMIT).unwrap().unwrap().success());
        assert!(ends(stdout));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let message = Group::spawn(Command::new("sheave-no-such-program")).err().unwrap();
        assert!(message.starts_with("`sheave-no-such-program` cannot be run: "), "{message}");
    }
}
