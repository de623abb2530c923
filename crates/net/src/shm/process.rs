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
use sheave_base::collections::HashMap;
use sheave_base::limits::{SET_ASIDE_BYTES_MAX, SET_ASIDE_LINKS_MAX};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Segment, SegmentId};
use std::collections::VecDeque;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
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

/// The peer processes that a node has links to, or has set memory aside for, by their process ids: however many links
/// there are to a process, and were, it is watched once.
#[derive(Default)]
pub(crate) struct PeerProcesses {
    by_pid: Mutex<HashMap<u32, Arc<PeerProcess>>>,
}

impl PeerProcesses {
    /// A link's hold on the process at the other end of a connected Unix socket, which must belong to this user.
    pub(crate) fn of_socket(node: &Arc<Inner>, socket: BorrowedFd<'_>) -> Result<ProcessOfLink> {
        let peer = check_user(socket)?;
        let pid = u32::try_from(Pid::as_raw(Some(peer.pid))).unwrap_or(0);
        let descriptor = match pidfd_of(socket) {
            Some(descriptor) => descriptor,
            // Older kernels: the number may have been reused only if the peer is gone, and then its socket says so.
            None => pidfd_open(peer.pid, PidfdFlags::empty()).map_err(|errno| match errno {
                Errno::SRCH => Error::new(ErrorKind::PeerLost, "its process is gone"),
                errno => Error::from(errno).context("opening the peer's process"),
            })?,
        };
        let mut by_pid = node.processes.by_pid.lock();
        // A number means one process for as long as that lives; zero stands for any that this one cannot see.
        let known = by_pid.get(&pid).filter(|known| pid != 0 && !has_ended(&descriptor) && !known.has_ended());
        if let Some(process) = known {
            process.links.fetch_add(1, SeqCst);
            return Ok(ProcessOfLink { process: Arc::clone(process), node: node.weak.clone() });
        }
        let process = Arc::new(PeerProcess {
            descriptor,
            pid,
            links: AtomicUsize::new(1),
            entries: Mutex::default(),
            aside: Mutex::default(),
            key: Mutex::new(None),
            seen_to_end: AtomicBool::new(false),
        });
        let watch = Arc::new(Watch { node: node.weak.clone(), process: Arc::clone(&process) });
        let key = node.progress.watch(process.descriptor.as_fd(), watch)?;
        *process.key.lock() = Some(key);
        by_pid.insert(pid, Arc::clone(&process));
        drop(by_pid);
        Ok(ProcessOfLink { process, node: node.weak.clone() })
    }

    /// Gives up what is set aside, for a node that ends.
    pub(crate) fn forget_all(&self) {
        let processes = std::mem::take(&mut *self.by_pid.lock());
        for process in processes.values() {
            let aside = std::mem::take(&mut *process.aside.lock());
            drop(aside);
        }
    }

    /// Watches the process no more, if no link needs it and nothing waits for its end.
    fn forget_idle(&self, node: &Inner, process: &Arc<PeerProcess>) {
        let mut by_pid = self.by_pid.lock();
        if process.links.load(SeqCst) > 0 || !process.aside.lock().is_empty() {
            return;
        }
        // A later process may have the number by now.
        if by_pid.get(&process.pid).is_some_and(|known| Arc::ptr_eq(known, process)) {
            by_pid.remove(&process.pid);
        }
        drop(by_pid);
        process.unwatch(node);
    }
}

/// A handle to a process that cannot be mistaken for another one of the same number.
pub(crate) struct PeerProcess {
    descriptor: OwnedFd,
    pid: u32,
    /// Links to it that have not been dropped. Grows under the lock of the table only.
    links: AtomicUsize,
    /// Links to it that stand, or stood a moment ago.
    entries: Mutex<Vec<Weak<Entry>>>,
    aside: Mutex<Aside>,
    key: Mutex<Option<u64>>,
    /// The leader has seen that the process is gone.
    seen_to_end: AtomicBool,
}

/// What ended links have set aside until the process is gone: the latest as it is, the rest as retired segments.
#[derive(Default)]
struct Aside {
    whole: VecDeque<SetAside>,
    bytes: u64,
    retired: HashMap<SegmentId, Weak<Segment>>,
}

impl Aside {
    fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.retired.values().all(|segment| segment.strong_count() == 0)
    }

    fn add(&mut self, aside: SetAside) {
        self.bytes += aside.bytes();
        self.whole.push_back(aside);
        while self.bytes > SET_ASIDE_BYTES_MAX || self.whole.len() > SET_ASIDE_LINKS_MAX {
            let Some(oldest) = self.whole.pop_front() else { return };
            self.bytes -= oldest.bytes();
            let segments = oldest.retire();
            self.retired.retain(|_, segment| segment.strong_count() > 0);
            for segment in segments.iter().filter_map(Weak::upgrade) {
                if self.retired.insert(segment.id(), Arc::downgrade(&segment)).is_some() {
                    // One retirement of each is enough.
                    segment.release();
                }
            }
        }
    }

    fn peer_is_gone(self) {
        self.whole.into_iter().for_each(SetAside::peer_is_gone);
        self.retired.values().filter_map(Weak::upgrade).for_each(|segment| segment.release());
    }
}

impl PeerProcess {
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// True once the process is gone: nothing of it can write any more.
    pub(crate) fn has_ended(&self) -> bool {
        has_ended(&self.descriptor)
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

    /// Serves this link when the process ends.
    pub(crate) fn serve(&self, entry: &Arc<Entry>) {
        let mut entries = self.entries.lock();
        entries.retain(|entry| entry.strong_count() > 0);
        entries.push(Arc::downgrade(entry));
    }

    /// Keeps what the process may still write until it is gone.
    pub(crate) fn keep_until_end(&self, aside: SetAside) {
        if self.has_ended() {
            return aside.peer_is_gone();
        }
        self.aside.lock().add(aside);
        // The watch stays registered until the process ends; it may have ended just now.
        if self.has_ended() {
            self.release();
        }
    }

    fn release(&self) {
        let aside = std::mem::take(&mut *self.aside.lock());
        aside.peer_is_gone();
    }

    fn unwatch(&self, node: &Inner) {
        let key = self.key.lock().take();
        if let Some(key) = key {
            node.progress.unwatch(key, self.descriptor.as_fd());
        }
    }
}

/// A link's hold on its peer's process, which is watched at least until the link is dropped.
pub(crate) struct ProcessOfLink {
    process: Arc<PeerProcess>,
    node: Weak<Inner>,
}

impl Deref for ProcessOfLink {
    type Target = PeerProcess;

    fn deref(&self) -> &PeerProcess {
        &self.process
    }
}

impl Drop for ProcessOfLink {
    fn drop(&mut self) {
        self.process.links.fetch_sub(1, SeqCst);
        if let Some(node) = self.node.upgrade() {
            node.processes.forget_idle(&node, &self.process);
        }
    }
}

struct Watch {
    node: Weak<Inner>,
    process: Arc<PeerProcess>,
}

impl Watched for Watch {
    fn ready(&self) {
        let Some(node) = self.node.upgrade() else { return };
        self.process.unwatch(&node);
        self.process.seen_to_end.store(true, SeqCst);
        let entries = std::mem::take(&mut *self.process.entries.lock());
        for entry in entries.iter().filter_map(Weak::upgrade) {
            // What it sent before its end is still delivered; the poll that finds no more ends the link. If somebody
            // else polls right now, the ring makes the leader look again.
            while node.poll(&entry) {}
            node.progress.ring();
        }
        self.process.release();
        node.processes.forget_idle(&node, &self.process);
    }
}

/// Who traces a process of this host, if anybody does.
pub(crate) fn tracer_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok().filter(|tracer| *tracer != 0)
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut descriptors = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut descriptors, Some(&now)), Ok(1))
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
