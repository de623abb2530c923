//! What the kernel offers, tried rather than read from its version.

use super::Finding;
use rustix::event::{EventfdFlags, epoll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::PidfdFlags;
use sheave_base::Result;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

const UPDATE: &str = "sheave needs Linux 5.4 or newer, and a sandbox that permits this call";

pub(super) fn check() -> Vec<Finding> {
    vec![
        Finding::ok("kernel", format!("Linux {}", rustix::system::uname().release().to_string_lossy())),
        tried("memfd", seal_memfd(), "memory files can be sealed"),
        tried("pidfd", open_pidfd(), "processes can be watched by descriptor"),
        peer_pidfd(),
        tried("unix sockets", connect_abstract(), "abstract names can be bound and connected to"),
        tried("eventfd", wake_epoll(), "a ring wakes an epoll wait"),
    ]
}

fn tried(check: &'static str, outcome: Result<()>, fact: &str) -> Finding {
    Finding::of(check, outcome.map(|()| fact.to_owned()), UPDATE)
}

fn seal_memfd() -> Result<()> {
    let file = rustix::fs::memfd_create("sheave-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, 4096)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    match rustix::fs::ftruncate(&file, 0) {
        Err(_) => Ok(()),
        Ok(()) => Err(sheave_base::Error::new(sheave_base::ErrorKind::Unsupported, "a sealed memory file was shrunk")),
    }
}

fn open_pidfd() -> Result<()> {
    rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    Ok(())
}

fn peer_pidfd() -> Finding {
    const CHECK: &str = "peer pidfd";
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (one, _other) = match pair {
        Ok(pair) => pair,
        Err(errno) => return Finding::fail(CHECK, format!("no socket pair: {errno}"), UPDATE),
    };
    match peer_pidfd_of(&one) {
        Ok(_) => Finding::ok(CHECK, "a socket names its peer's process"),
        Err(error) => Finding::warn(
            CHECK,
            format!("a socket does not name its peer's process: {error}"),
            "peers are found by process number, which Linux 6.5 makes unnecessary",
        ),
    }
}

fn peer_pidfd_of(socket: &OwnedFd) -> std::io::Result<OwnedFd> {
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut descriptor: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    let value = (&raw mut descriptor).cast();
    // SAFETY: the option writes one descriptor number of the given length, into memory of that size.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, value, &raw mut length) } {
        // SAFETY: on success the kernel has just made this descriptor for us; nobody else owns it.
        0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn connect_abstract() -> Result<()> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let name = format!("sheave-doctor-{:016x}", u64::from_ne_bytes(random));
    let address = SocketAddr::from_abstract_name(name)?;
    let listener = UnixListener::bind_addr(&address)?;
    UnixStream::connect_addr(&address)?;
    listener.accept()?;
    Ok(())
}

fn wake_epoll() -> Result<()> {
    let ring = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &ring, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
    rustix::io::write(&ring, &1_u64.to_ne_bytes())?;
    await_one(&poll)
}

fn await_one(poll: impl std::os::fd::AsFd) -> Result<()> {
    let poll: BorrowedFd<'_> = poll.as_fd();
    let timeout = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut events = Vec::with_capacity(1);
    rustix::io::retry_on_intr(|| epoll::wait(poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)))?;
    if events.is_empty() {
        let what = "an epoll wait did not see a ring within a second";
        return Err(sheave_base::Error::new(sheave_base::ErrorKind::Unsupported, what));
    }
    Ok(())
}
