//! The few system calls that neither `std` nor `rustix` offers in the form that a forked process may use.
//!
//! Everything here is async-signal-safe: no allocation, no lock, no thread-local state except `errno`.

use crate::image::Image;
use rustix::io::Errno;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// What [`fork`] returns, once in each process.
pub(crate) enum Forked {
    /// We are the new process.
    Child,
    /// We are the old one; the handle names the new one even after its id was given to somebody else.
    Parent { pid: i32, pidfd: OwnedFd },
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

/// Forks without running the handlers that libraries hang on `fork`; its end sends `exit_signal` (0: none) to the
/// parent. With 0, a foreign `waitpid(-1)` in the same process does not see the new process.
///
/// # Safety
///
/// The process may have other threads: until it calls `exec` or `_exit`, the child calls async-signal-safe functions
/// only, allocates nothing, takes no lock and never returns into code that was written for the parent.
pub(crate) unsafe fn fork(exit_signal: i32) -> Result<Forked, Errno> {
    let mut pidfd: RawFd = -1;
    let flags = libc::c_long::from(libc::CLONE_PIDFD | exit_signal);
    // SAFETY: without CLONE_VM and with a null stack the child runs on a copy of this stack, exactly as after `fork`;
    // the only pointer is valid for the write of the pidfd. The caller promises the rest.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, &raw mut pidfd, 0_usize, 0_usize) };
    match pid {
        0 => Ok(Forked::Child),
        // SAFETY: the kernel has just opened this descriptor for us.
        1.. => Ok(Forked::Parent { pid: pid as i32, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } }),
        _ => Err(last_errno()),
    }
}

/// All signals are blocked in this thread, and in those that it starts, until this is dropped.
pub(crate) struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    pub(crate) fn new() -> Self {
        Self(set_signal_mask(&full_set()))
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        set_signal_mask(&self.0);
    }
}

fn full_set() -> libc::sigset_t {
    // SAFETY: a signal set is plain data; all zero bits are a valid one, and sigfillset overwrites it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&raw mut set);
        set
    }
}

fn set_signal_mask(set: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: both sets are valid for the whole call; it only fails for an unknown first argument.
    unsafe {
        let mut old = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, set, &raw mut old);
        old
    }
}

/// Unblocks every signal, as a new program expects it.
pub(crate) fn unblock_all_signals() {
    // SAFETY: as above; the empty set is valid.
    let empty = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        set
    };
    set_signal_mask(&empty);
}

/// Gives every signal its default action. Ignored signals would otherwise stay ignored in the children's programs.
pub(crate) fn default_all_signals() {
    for signal in 1..=64 {
        // SAFETY: a zeroed action is the default action without flags. Signals that refuse are none of ours.
        unsafe {
            let action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// A descriptor that becomes readable when a child has changed its state. SIGCHLD must be blocked.
pub(crate) fn child_signal_fd() -> Result<OwnedFd, Errno> {
    // SAFETY: the set is initialised before its use; a descriptor that was returned is ours.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The next child that has ended, not yet reaped: its id stays taken. `None`: none has. `ECHILD`: there is no child.
pub(crate) fn peek_ended_child() -> Result<Option<i32>, Errno> {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: the structure is valid for writes, and zero where the kernel reports nothing.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        check(libc::waitid(libc::P_ALL, 0, &raw mut info, options))?;
        let pid = info.si_pid();
        Ok((pid > 0).then_some(pid))
    }
}

/// Reaps the child `pid` if it has ended, and returns its raw wait status.
pub(crate) fn reap(pid: i32) -> Result<Option<i32>, Errno> {
    let mut status = 0;
    // SAFETY: the status is valid for a write.
    let reaped = check(unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG | libc::__WALL) })?;
    Ok((reaped == pid).then_some(status))
}

/// Sends a signal to a process, or with a negative id to a process group; whether anybody was there to get it.
pub(crate) fn kill(pid: i32, signal: i32) -> bool {
    // SAFETY: no memory is involved. Who may be hit is the callers' argument.
    unsafe { libc::kill(pid, signal) == 0 }
}

/// Sends a signal to the one process that `pidfd` names; whether it was still there.
pub(crate) fn kill_pidfd(pidfd: RawFd, signal: i32) -> bool {
    // SAFETY: a null siginfo makes the kernel fill in what `kill` would.
    unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd, signal, std::ptr::null::<libc::siginfo_t>(), 0_u32) == 0
    }
}

/// Makes `to` another number for what `from` names, and leaves it open across `exec`.
pub(crate) fn duplicate_onto(from: RawFd, to: RawFd) -> Result<(), Errno> {
    // SAFETY: only descriptor numbers; callers use it on standard streams of a process that shares no code with them.
    check(unsafe { libc::dup2(from, to) }).map(drop)
}

/// Closes every descriptor from 3 up, except the two given ones.
pub(crate) fn close_all_but(keep: [RawFd; 2]) {
    let (low, high) = (keep[0].min(keep[1]), keep[0].max(keep[1]));
    let close_range = |first: RawFd, last: RawFd| {
        if first > last {
            return;
        }
        // SAFETY: the caller is a fresh fork that uses none of these descriptors.
        if unsafe { libc::syscall(libc::SYS_close_range, first as u32, last as u32, 0_u32) } == 0 {
            return;
        }
        // Kernels before 5.9: one by one, as far as descriptors can have been given out.
        for fd in first..=last.min(1 << 16) {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
    };
    close_range(3, low - 1);
    close_range(low + 1, high - 1);
    close_range(high + 1, RawFd::MAX);
}

/// Ends this process at once, without running anybody's clean-up.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

/// The rest of the time until `deadline`, for `poll`; `None` waits without end.
pub(crate) fn until(deadline: Option<Instant>) -> Option<rustix::event::Timespec> {
    deadline.map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())))
}

/// A duration for `poll`.
pub(crate) fn timespec(duration: Duration) -> rustix::event::Timespec {
    rustix::event::Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Goes to the image's working directory, if it names one.
pub(crate) fn change_directory(image: &Image) -> Result<(), Errno> {
    if image.directory().is_null() {
        return Ok(());
    }
    // SAFETY: the image's directory is a string that ends inside the image.
    check(unsafe { libc::chdir(image.directory()) }).map(drop)
}

/// Replaces this process by the image's program; returns only to say why not.
pub(crate) fn execute(image: &Image) -> Errno {
    // SAFETY: path and tables are valid, closed by null, and outlive the call.
    unsafe { libc::execve(image.program(), image.arguments(), image.variables()) };
    last_errno()
}
