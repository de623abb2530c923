//! Threads of sheave's own.

use crate::{Error, Result};
use std::thread::{Builder, JoinHandle};

/// Starts a thread that no signal is delivered to: signals are for the user's threads.
///
/// # Errors
///
/// `Io` if the system has no room for another thread.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let begin = move || {
        block_signals();
        run();
    };
    Builder::new()
        .name(name.to_owned())
        .spawn(begin)
        .map_err(|error| Error::from(error).context(format!("starting the thread {name}")))
}

fn block_signals() {
    // SAFETY: both calls only write the set that lives on this stack, and the mask of this thread.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_signals_that_can_be_blocked_are() {
        let thread = spawn("sheave-test", || {
            let status = std::fs::read_to_string("/proc/thread-self/status").expect("it is there");
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("it has the mask");
            let blocked = u64::from_str_radix(blocked.trim(), 16).expect("it is a number");
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGCHLD, libc::SIGUSR1] {
                assert!(blocked & 1 << (signal - 1) != 0, "signal {signal}");
            }
        });
        thread.expect("there is room").join().expect("all are blocked");
    }
}
