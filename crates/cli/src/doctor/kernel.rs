//! What the kernel offers, tried rather than read from its version.

use super::Finding;
use rustix::event::{EventfdFlags, epoll};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::PidfdFlags;
use sheave_base::{Error, ErrorKind, Result};
use sheave_process::{Command, Job, Output};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

const UPDATE: &str = "sheave needs Linux 5.4 or newer, and a sandbox that permits this call";

/// Longest time for a small process from start to end; a cold network disk is the reason for so much.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn check() -> Vec<Finding> {
    vec![
        Finding::ok("kernel", format!("Linux {}", rustix::system::uname().release().to_string_lossy())),
        tried("memfd", seal_memfd(), "memory files can be sealed"),
        tried("pidfd", open_pidfd(), "processes can be watched by descriptor"),
        tried("prctl", ask_prctl(), "processes can be told of their parent's end, and adopt orphans"),
        tried("signalfd", open_signalfd(), "signals can be waited for by descriptor"),
        Finding::of("processes", start_process(), "a sandbox may hinder what starts and ends them"),
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
        Ok(()) => Err(Error::new(ErrorKind::Unsupported, "a sealed memory file was shrunk")),
    }
}

fn open_pidfd() -> Result<()> {
    rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    Ok(())
}

/// The calls by which a job leaves no process behind, in a process of their own: they change the one that makes them.
fn ask_prctl() -> Result<()> {
    rustix::process::child_subreaper()?;
    rustix::process::parent_process_death_signal()?;
    Ok(())
}

fn open_signalfd() -> Result<()> {
    // SAFETY: the set is initialised before its use, and empty: nothing is taken from anybody. A descriptor that was
    // returned is ours.
    let descriptor = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    Ok(())
}

/// Starts a process as a job does, with all that this asks of the kernel.
fn start_process() -> Result<String> {
    let mut line = crate::own::line(std::env::current_exe()?).into_iter();
    let program = line.next().unwrap_or_default();
    let job = Job::builder().output(Output::Capture).start()?;
    let child = job.spawn(Command::new(program).args(line).arg("--version").name("patient"))?;
    match child.wait(Some(Instant::now() + PROCESS_TIMEOUT))? {
        Some(exit) if exit.status.success() => Ok("processes can be started, watched and ended".to_owned()),
        Some(exit) => Err(Error::new(ErrorKind::Unsupported, format!("a process of this program {}", exit.status))),
        None => Err(Error::new(ErrorKind::DeadlineExceeded, "a process of this program does not end")),
    }
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
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    Ok(())
}
