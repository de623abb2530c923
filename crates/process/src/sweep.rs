//! Finding what is left of a job whose guard was killed.
//!
//! Without the guard, orphans are handed to whoever adopts them, and kinship no longer says whose they are. They still
//! carry the job's variable in the environment that they were started with, unless they cleared it. Only when the guard
//! is gone is this weaker sign used.

use crate::command::JOB_VARIABLE;
use crate::guard;
use crate::kin;
use crate::sys;
use rustix::process::{Pid, PidfdFlags};
use sheave_base::limits;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Most bytes of an environment that are looked at: more than the kernel lets a program start with by default.
const ENVIRONMENT_BYTES_MAX: u64 = 8 << 20;

/// Pause between passes, so that the killed have time to end.
const PASS_PAUSE: Duration = Duration::from_millis(2);

/// Kills every process that carries the variable of `job`, until two passes in a row find none. False if some were
/// still there when the time was over. Blocks for milliseconds, at most [`limits::KILL_TIMEOUT`].
pub(crate) fn kill_marked(job: &str) -> bool {
    let mark = format!("{JOB_VARIABLE}={job}").into_bytes();
    let deadline = Instant::now() + limits::KILL_TIMEOUT;
    let mut empty_passes = 0;
    while empty_passes < 2 {
        if Instant::now() >= deadline {
            return false;
        }
        let mut found = false;
        let _ = kin::for_each_process(|directory, pid| found |= kill_if_marked(directory, pid, &mark));
        empty_passes = if found { 0 } else { empty_passes + 1 };
        std::thread::sleep(PASS_PAUSE);
    }
    true
}

/// The handle is opened before the environment is read: if the process ends in between and its id goes to another one,
/// the handle names the dead and the signal reaches nobody.
fn kill_if_marked(directory: &OwnedFd, pid: i32, mark: &[u8]) -> bool {
    let Some(pidfd) = Pid::from_raw(pid).and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok())
    else {
        return false;
    };
    let Ok(environment) = kin::open(directory, pid, b"environ") else { return false };
    let mut bytes = Vec::new();
    let read = File::from(environment).take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut bytes);
    // The guard of a job inside this one sees by itself that its supervisor is gone, and kills more than we can find.
    let marked = read.is_ok() && bytes.split(|byte| *byte == 0).any(|line| line == mark) && !is_guard(directory, pid);
    marked && sys::kill_pidfd(pidfd.as_raw_fd(), libc::SIGKILL)
}

fn is_guard(directory: &OwnedFd, pid: i32) -> bool {
    let Ok(name) = kin::open(directory, pid, b"comm") else { return false };
    let mut bytes = Vec::new();
    File::from(name).take(64).read_to_end(&mut bytes).is_ok() && bytes.trim_ascii_end() == guard::NAME.to_bytes()
}
