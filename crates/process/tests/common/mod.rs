//! Real processes for the tests: recognised by an argument of their own, watched with a deadline.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The variable that makes a test binary play a role instead of testing.
pub(crate) const ROLE: &str = "SHEAVE_TEST_ROLE";
/// The variable that hands a tag to a role.
pub(crate) const TAG: &str = "SHEAVE_TEST_TAG";

/// Long enough for a loaded machine; nothing waits that long when all is well.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// A number of seconds to sleep that nobody else sleeps, so that processes can be found by it; about a minute, so that
/// even what a failed test leaves behind ends.
pub(crate) fn new_tag() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("60.{:07}{:03}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Polls `condition` until it holds; panics when `deadline` passes first.
pub(crate) fn until(what: &str, deadline: Instant, mut condition: impl FnMut() -> bool) {
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The living processes that have `tag` as an argument of `sleep`.
pub(crate) fn tagged(tag: &str) -> Vec<u32> {
    processes()
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
                line.starts_with(b"sleep\0") && line.split(|byte| *byte == 0).any(|a| a == tag.as_bytes())
            })
        })
        .collect()
}

fn processes() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The state and the parent of a process, as in `('S', 1)`.
pub(crate) fn stat(pid: u32) -> Option<(char, u32)> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = line[line.rfind(')')? + 2..].split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Whether the process is there and not a zombie.
pub(crate) fn lives(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// All children of this process, zombies included.
pub(crate) fn own_children() -> Vec<u32> {
    let own = std::process::id();
    processes().filter(|pid| stat(*pid).is_some_and(|(_, parent)| parent == own)).collect()
}

pub(crate) fn send_signal(pid: u32, signal: i32) {
    // SAFETY: no memory is involved; the tests signal only processes that they have started.
    assert_eq!(unsafe { libc::kill(i32::try_from(pid).unwrap(), signal) }, 0);
}

/// Another copy of the running test binary that plays a role.
pub(crate) struct Actor {
    pub(crate) process: Child,
    output: BufReader<ChildStdout>,
}

impl Actor {
    /// Runs the test function `role` of this binary with [`ROLE`] set to `part`.
    pub(crate) fn start(role: &str, part: &str, tag: &str) -> Self {
        Self::start_with(role, part, tag, Stdio::inherit())
    }

    /// As [`Actor::start`]; `errors` says where standard error goes.
    pub(crate) fn start_with(role: &str, part: &str, tag: &str, errors: Stdio) -> Self {
        let mut process = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", role, "--nocapture", "--quiet"])
            .env(ROLE, part)
            .env(TAG, tag)
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The rest of the first line of output that starts with `start`.
    pub(crate) fn line_after(&mut self, start: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(rest) = line.trim_end().strip_prefix(start) {
                return rest.to_owned();
            }
            line.clear();
        }
        panic!("the output ended without a line that starts with {start:?}");
    }

    /// All output that is still to come.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        std::io::Read::read_to_end(&mut self.output, &mut rest).unwrap();
        rest
    }

    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        let deadline = soon();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the actor does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The part to play, if this process is an actor.
pub(crate) fn part() -> Option<(String, String)> {
    Some((std::env::var(ROLE).ok()?, std::env::var(TAG).unwrap_or_default()))
}

/// Stays until killed, but not for ever.
pub(crate) fn stay() -> ! {
    std::thread::sleep(Duration::from_secs(60));
    panic!("nobody has killed this actor");
}
