//! The process at the other end: its pidfd says when it is gone for sure, even when a forked child keeps its sockets
//! and its memory alive.

use super::loans::SetAside;
use crate::entry::Entry;
use crate::node::Inner;
use crate::progress::Watched;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::UCred;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sheave_base::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};

/// Who holds the other end of a connected Unix socket, which must belong to this user.
pub(crate) fn check_user(socket: BorrowedFd<'_>) -> Result<UCred> {
    let peer = rustix::net::sockopt::socket_peercred(socket)
        .map_err(|errno| Error::from(errno).context("asking who is at the other end"))?;
    let own = rustix::process::getuid();
    if peer.uid == own {
        return Ok(peer);
    }
    let what = format!("the process at the other end belongs to user {}, not {}", peer.uid.as_raw(), own.as_raw());
    Err(Error::new(ErrorKind::Unauthenticated, what))
}

/// A handle to a process that cannot be mistaken for another one of the same number.
pub(crate) struct PeerProcess {
    descriptor: OwnedFd,
    pid: u32,
    aside: Mutex<Vec<SetAside>>,
    key: Mutex<Option<u64>>,
    /// The leader has seen that the process is gone.
    seen_to_end: AtomicBool,
}

impl PeerProcess {
    /// The process that holds the other end of a connected Unix socket, which must belong to this user.
    pub(crate) fn of_socket(socket: BorrowedFd<'_>) -> Result<(Arc<Self>, u32)> {
        let peer = check_user(socket)?;
        let descriptor = match pidfd_of(socket) {
            Some(descriptor) => descriptor,
            // Older kernels: the number may have been reused only if the peer is gone, and then its socket says so.
            None => pidfd_open(peer.pid, PidfdFlags::empty()).map_err(|errno| match errno {
                Errno::SRCH => Error::new(ErrorKind::PeerLost, "its process is gone"),
                errno => Error::from(errno).context("opening the peer's process"),
            })?,
        };
        let pid = u32::try_from(Pid::as_raw(Some(peer.pid))).unwrap_or(0);
        Ok((
            Arc::new(Self {
                descriptor,
                pid,
                aside: Mutex::default(),
                key: Mutex::new(None),
                seen_to_end: AtomicBool::new(false),
            }),
            pid,
        ))
    }

    /// True once the process is gone: nothing of it can write any more.
    pub(crate) fn has_ended(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut descriptors, Some(&now)), Ok(1))
    }

    /// True once somebody has noticed that the process is gone; costs no system call.
    pub(crate) fn is_known_to_have_ended(&self) -> bool {
        self.seen_to_end.load(SeqCst)
    }

    /// The process that traces it, a debugger for example, if any does.
    pub(crate) fn tracer(&self) -> Option<u32> {
        tracer_of(self.pid)
    }

    /// Ends the process, if this user may and it is another one: several nodes may live in one process.
    pub(crate) fn kill(&self) {
        // One that is traced was stopped by its user, who is looking into it; its memory stays set aside.
        if self.pid == std::process::id() || self.tracer().is_some() {
            return;
        }
        // Not permitted, or gone already: its memory stays set aside, or is free.
        let _ = pidfd_send_signal(&self.descriptor, Signal::KILL);
    }

    /// Watches the process on behalf of a link.
    pub(crate) fn watch(this: &Arc<Self>, node: &Arc<Inner>, entry: &Arc<Entry>) -> Result<()> {
        let watch =
            Arc::new(Watch { node: Arc::downgrade(node), entry: Arc::downgrade(entry), process: Arc::clone(this) });
        let key = node.progress.watch(this.descriptor.as_fd(), watch)?;
        *this.key.lock() = Some(key);
        Ok(())
    }

    /// Keeps what the process may still write until it is gone.
    pub(crate) fn keep_until_end(this: &Arc<Self>, aside: SetAside, node: &Weak<Inner>) {
        if this.has_ended() || node.upgrade().is_none() {
            if this.has_ended() {
                aside.peer_is_gone();
            }
            return;
        }
        this.aside.lock().push(aside);
        // The link's own watch stays registered until the process ends; it may have ended just now.
        if this.has_ended() {
            this.release();
        }
    }

    fn release(&self) {
        let aside = std::mem::take(&mut *self.aside.lock());
        for aside in aside {
            aside.peer_is_gone();
        }
    }
}

struct Watch {
    node: Weak<Inner>,
    entry: Weak<Entry>,
    process: Arc<PeerProcess>,
}

impl Watched for Watch {
    fn ready(&self) {
        let Some(node) = self.node.upgrade() else { return };
        if let Some(key) = self.process.key.lock().take() {
            node.progress.unwatch(key, self.process.descriptor.as_fd());
        }
        self.process.seen_to_end.store(true, SeqCst);
        if let Some(entry) = self.entry.upgrade() {
            // What it sent before its end is still delivered; the poll that finds no more ends the link. If somebody
            // else polls right now, the ring makes the leader look again.
            while node.poll(&entry) {}
            node.progress.ring();
        }
        self.process.release();
    }
}

/// Who traces a process of this host, if anybody does.
pub(crate) fn tracer_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok().filter(|tracer| *tracer != 0)
}

/// `SO_PEERPIDFD`, Linux 6.5 and later: free of the race between a process number and its reuse.
fn pidfd_of(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    use std::os::fd::AsRawFd;
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut descriptor: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option writes one descriptor number of the given length, into memory of that size.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut descriptor).cast(),
            &raw mut length,
        )
    };
    // SAFETY: on success the kernel has just made this descriptor for us; nobody else owns it.
    (outcome == 0 && descriptor >= 0).then(|| unsafe { OwnedFd::from_raw_fd(descriptor) })
}
