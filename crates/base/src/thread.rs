//! Threads of sheave's own.
//!
//! A forked child has none of its parent's threads, but what they left in memory: queues of those that waited for a
//! lock, which name memory that new threads get. So a child of a process that had threads of sheave's starts none.

use crate::fork::ForkMark;
use crate::{Error, ErrorKind, Result};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Of the process that started the first thread.
static FIRST: OnceLock<ForkMark> = OnceLock::new();

/// A thread that was started here. It runs on when this is dropped.
#[derive(Debug)]
pub struct Thread(Kind);

#[derive(Debug)]
enum Kind {
    Real(JoinHandle<()>),
    #[cfg(feature = "simulated")]
    Simulated(u64),
}

impl Thread {
    /// Blocks until the thread has ended.
    ///
    /// # Errors
    ///
    /// The value that it panicked with.
    pub fn join(self) -> std::thread::Result<()> {
        match self.0 {
            Kind::Real(thread) => thread.join(),
            #[cfg(feature = "simulated")]
            Kind::Simulated(thread) => {
                crate::simulated::current().into_iter().for_each(|system| system.join(thread));
                Ok(())
            }
        }
    }

    /// Whether it is the one that asks.
    #[must_use]
    pub fn is_this(&self) -> bool {
        match &self.0 {
            Kind::Real(thread) => thread.thread().id() == std::thread::current().id(),
            #[cfg(feature = "simulated")]
            Kind::Simulated(thread) => crate::simulated::current().is_some_and(|system| system.thread() == *thread),
        }
    }
}

/// Starts a thread that no signal is delivered to: signals are for the user's threads.
///
/// # Errors
///
/// `Forked` in a child of a process that had started a thread before; `LimitExceeded`, as a shortage, if the system
/// has no room for another one.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<Thread> {
    #[cfg(feature = "simulated")]
    if let Some(system) = crate::simulated::current() {
        return Ok(Thread(Kind::Simulated(system.spawn(name, Box::new(run))?)));
    }
    if FIRST.get_or_init(ForkMark::here).is_stale() {
        let what = "this process was forked from one in which sheave had threads";
        return Err(Error::new(ErrorKind::Forked, what)
            .hint("start children with spawn instead of fork, or fork before the first node is made"));
    }
    let begin = move || {
        block_signals();
        run();
    };
    let spawned = Builder::new().name(name.to_owned()).spawn(begin);
    let thread = spawned.map_err(|_| crate::shortage::of_threads().context(format!("starting the thread {name}")))?;
    Ok(Thread(Kind::Real(thread)))
}

/// As [`spawn`], and returns when the thread runs: what a thread needs to begin, memory for its signals among it, it
/// has then. One that found none later, when the process is short, would end it without a word of ours. For threads
/// that live as long as what they are made for.
///
/// # Errors
///
/// As [`spawn`].
pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> Result<Thread> {
    let (runs, begun) = channel();
    let thread = spawn(name, move || {
        // The other end waits.
        let _ = runs.send(());
        run();
    })?;
    if matches!(thread.0, Kind::Real(_)) {
        let _ = begun.recv();
    }
    Ok(thread)
}

/// Blocks for so long.
pub fn sleep(span: Duration) {
    #[cfg(feature = "simulated")]
    if let Some(system) = crate::simulated::current() {
        let nobody_wakes = 0;
        system.wait(std::ptr::from_ref(&nobody_wakes).addr(), crate::simulated::until(&*system, Some(span)));
        return;
    }
    std::thread::sleep(span);
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
    use std::ffi::CStr;
    use std::os::unix::thread::JoinHandleExt;

    #[test]
    #[cfg_attr(miri, ignore = "it forks")]
    fn a_child_of_a_process_with_threads_starts_none() {
        spawn("sheave-test", || {}).expect("there is room").join().expect("it does nothing");
        // SAFETY: the child allocates a little, which glibc lets it, and ends without running any destructor.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = spawn("sheave-test", || {}).is_err_and(|error| error.kind() == ErrorKind::Forked);
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = 0;
        // SAFETY: it is our own child, and the status is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child started a thread");
    }

    /// The name that the system has for a thread.
    fn name_of(thread: &JoinHandle<()>) -> String {
        let mut name = [0; 16];
        // SAFETY: the thread has not been joined, and the name with its zero has room.
        let status = unsafe { libc::pthread_getname_np(thread.as_pthread_t(), name.as_mut_ptr(), name.len()) };
        assert_eq!(status, 0, "it has a name");
        // SAFETY: the call has ended the name with a zero.
        unsafe { CStr::from_ptr(name.as_ptr()) }.to_str().expect("it is a name of ours").to_owned()
    }

    /// A thread gives itself its name after all that it needs. Its own entry is read: a list of all entries ends
    /// early where it stands at a thread that is going.
    #[test]
    #[cfg_attr(miri, ignore = "it looks into /proc")]
    fn f21_who_has_started_a_thread_has_one_that_runs() {
        for number in 0..500 {
            let name = format!("started-{number}");
            let (end, ends) = channel::<()>();
            let wait = move || assert!(ends.recv().is_err(), "nobody sends");
            let thread = start(&name, wait).expect("there is room");
            match &thread.0 {
                Kind::Real(thread) => assert_eq!(name_of(thread), name),
                #[cfg(feature = "simulated")]
                Kind::Simulated(_) => unreachable!("no system is simulated here"),
            }
            drop(end);
            thread.join().expect("it waits");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "it asks for signals")]
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
