//! Children that cannot outlive us: each leads a process group of its own, which ends with its owner.
//!
//! A group is killed when its [`Group`] is dropped, so a test that leaves a process behind, or one that is over its
//! time, is gone before the next begins. A child in a group of its own does not get the terminal's Ctrl-C; therefore
//! every living group is registered, and on SIGINT, SIGTERM or SIGHUP one thread asks them all to end, kills those that
//! do not, and exits. They are asked first because a test runner has groups of its own, which it alone knows. A group
//! is spawned and registered under one lock, which that thread keeps, so none is missed.
//!
//! Killing by number is safe: the leader is reaped only after its group was killed and taken off the register, and
//! until it is reaped its id, which is the group's, cannot be given to another process.

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

/// What the groups have to end by themselves after a signal: a test runner gives its tests a second of it.
const TIME_TO_END: Duration = Duration::from_secs(5);

static LIVING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// From now on a signal that would end us ends every living group first.
pub(crate) fn end_all_on_signal() -> Outcome {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|error| format!("cannot listen for signals: {error}"))?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let living = living();
            end(&living, Instant::now() + TIME_TO_END);
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Ends every living group.
pub(crate) fn end_all() {
    let leaders = living().clone();
    end(&leaders, Instant::now() + TIME_TO_END);
}

/// Asks each group to end, and kills those whose leader has not ended at the deadline.
fn end(leaders: &[Pid], deadline: Instant) {
    let ask = |leader: &Pid| {
        let pidfd = pidfd_open(*leader, PidfdFlags::empty()).ok()?;
        kill_process_group(*leader, Signal::TERM).ok()?;
        Some((*leader, pidfd))
    };
    let asked: Vec<(Pid, OwnedFd)> = leaders.iter().filter_map(ask).collect();
    for (leader, pidfd) in asked {
        if !matches!(ends_before(&pidfd, deadline), Ok(true)) {
            kill(leader);
        }
    }
}

/// Whether the process behind `pidfd` ends before the deadline; waits until one or the other.
fn ends_before(pidfd: &OwnedFd, deadline: Instant) -> Result<bool, Errno> {
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        let rest = Timespec::try_from(rest).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&rest)) {
            Err(Errno::INTR) => {}
            ready => return ready.map(|count| count > 0),
        }
    }
}

/// A child that leads its own process group.
pub(crate) struct Group {
    child: Child,
    leader: Pid,
}

impl Group {
    /// Starts `command`, without standard input, as the leader of a new process group.
    pub(crate) fn spawn(mut command: Command) -> Outcome<Group> {
        let words = words(&command);
        let mut living = living();
        let child = command.process_group(0).stdin(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("`{words}` cannot be run: {error}"))?;
        let leader = Pid::from_child(&child);
        living.push(leader);
        Ok(Group { child, leader })
    }

    /// The standard output of a command that was given a pipe for it; `None` the second time.
    pub(crate) fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits at most `limit` for the leader to end, ends the rest of its group, and returns the leader's status; `None`
    /// when it is still running.
    pub(crate) fn wait(&mut self, limit: Duration) -> Outcome<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        let ended = pidfd_open(self.leader, PidfdFlags::empty()).and_then(|pidfd| ends_before(&pidfd, deadline));
        if !ended.map_err(|error| format!("cannot wait for process {}: {error}", self.child.id()))? {
            return Ok(None);
        }
        kill_and_forget(self.leader);
        let status = self.child.wait().map_err(|error| format!("cannot reap process {}: {error}", self.child.id()))?;
        Ok(Some(status))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if kill_and_forget(self.leader) {
            // The leader was killed, so this ends; it was not reaped before, so this does not fail.
            drop(self.child.wait());
        }
    }
}

fn living() -> MutexGuard<'static, Vec<Pid>> {
    LIVING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills a group and takes it off the register; false when it was off already, and its number perhaps another's.
fn kill_and_forget(leader: Pid) -> bool {
    let mut living = living();
    let Some(place) = living.iter().position(|other| *other == leader) else { return false };
    kill(leader);
    living.swap_remove(place);
    true
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
    fn a_group_that_will_not_end_when_asked_is_killed() {
        let mut group = shell("trap '' TERM; echo ready; while :; do sleep 600; done");
        let mut stdout = group.take_stdout().unwrap();
        stdout.read_exact(&mut [0; 6]).unwrap();
        end(&[group.leader], Instant::now() + Duration::from_millis(50));
        assert!(group.wait(LIMIT).unwrap().is_some());
        assert!(ends(stdout));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let message = Group::spawn(Command::new("sheave-no-such-program")).err().unwrap();
        assert!(message.starts_with("`sheave-no-such-program` cannot be run: "), "{message}");
    }
}
