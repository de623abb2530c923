//! The guard: the process that is the parent of a job's children, so that none of them can outlive the job.
//!
//! # Why nothing escapes
//!
//! *Every descendant stays below the guard.* The guard is a child subreaper: when a process below it ends, the kernel
//! hands that one's children to the guard before anybody can see that it has ended. `setsid`, double forks and new
//! process groups change none of this. Hence: the guard has no children ⟺ it has no descendants, and `ECHILD` from
//! `waitid` is the proof that nothing is left.
//!
//! *Killing hits nobody else.* The guard kills only its own children (and process groups that one of its children is
//! a member of), and only it can reap them. Between reading `/proc` and the kill it reaps nothing, so no id in its hand
//! can have been given to a stranger. Deeper descendants become children of the guard as their parents die, one level
//! per pass; the passes are repeated until `ECHILD`. A process that hops by forking and exiting is caught by the kill
//! of its group, which the kernel does in one step against `fork`.
//!
//! *The end of the supervisor is seen, whatever its kind.* The guard polls a pidfd of the supervisor's process, opened
//! by the supervisor itself before the fork: it becomes readable when the whole process has ended, SIGKILL included,
//! and not when the thread that made the job or the child ends. A closed control socket (an `exec` of the supervisor)
//! counts as the end too, but is not relied upon: forked children of the supervisor may hold its other end open.
//!
//! *The end of the guard is seen too.* Its direct children asked for SIGKILL at their parent's end
//! (`PR_SET_PDEATHSIG`). That request is bound to the parent's *thread*; the guard has one thread, which lives exactly
//! as long as the guard. Deeper descendants are found by the supervisor ([`crate::sweep`]). If guard and supervisor are
//! killed in the same moment, direct children still die; what foreign commands started deeper down may then survive.
//!
//! # What may run here
//!
//! The guard is forked from a process that may have any number of threads, and never calls `exec`: a library has no
//! program of its own to run. Locks of those threads are held for ever in the copy. So nothing here allocates, prints,
//! panics or takes a lock; all memory is on the stack or mapped directly. The copied memory is shared until the
//! supervisor writes to it: start jobs before filling the memory. Shared mappings are let go at once. All signals are
//! blocked for the guard's whole life, and it leads a session of its own, so that Ctrl-C in a terminal reaches the
//! supervisor alone.

use crate::image::Image;
use crate::kin::{self, Kin};
use crate::memory;
use crate::protocol::{self, Record, Verb};
use crate::sys::{self, Forked};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sheave_base::limits;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The name of guards in process lists.
pub(crate) const NAME: &std::ffi::CStr = c"sheave-guard";

/// How long a record may wait for room in the socket. The supervisor's thread does nothing but empty it.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause between two passes of killing when no child has ended meanwhile.
const PASS_PAUSE: Duration = Duration::from_millis(5);

/// What a forked child that could not become its program says about it: the step, then the error number.
pub(crate) const STEP_DIRECTORY: i32 = 1;
/// The step of loading the program; see [`STEP_DIRECTORY`].
pub(crate) const STEP_EXEC: i32 = 2;
/// The steps between fork and exec that concern only us; see [`STEP_DIRECTORY`].
pub(crate) const STEP_SETUP: i32 = 3;

#[derive(Clone, Copy)]
struct Slot {
    id: u32,
    pid: i32,
}

const FREE: Slot = Slot { id: 0, pid: 0 };

struct Guard {
    pid: i32,
    pipes: bool,
    control: OwnedFd,
    supervisor: OwnedFd,
    child_signals: OwnedFd,
    /// Cleared when there is nobody left to send to.
    connected: bool,
    /// An exit could not be reported for lack of room; until there is some, nobody is reaped.
    crowded: bool,
    slots: [Slot; limits::JOB_CHILDREN_MAX],
}

/// The life of the guard, in the forked process. `pipes`: children write into pipes, else into what this process has
/// as standard output and error.
///
/// # Safety
///
/// Called in a fresh fork only, with all signals blocked: it closes every descriptor that it does not know.
pub(crate) unsafe fn run(control: BorrowedFd<'_>, supervisor: BorrowedFd<'_>, pipes: bool) -> ! {
    // A supervisor without standard streams may have given us their numbers.
    let above = |descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, 3);
    let (Ok(control), Ok(supervisor)) = (above(control), above(supervisor)) else { sys::exit_now(1) };
    match set_up(&control, &supervisor, pipes) {
        Ok((pid, child_signals)) => {
            let slots = [FREE; limits::JOB_CHILDREN_MAX];
            let (connected, crowded) = (true, false);
            let mut guard = Guard { pid, pipes, control, supervisor, child_signals, connected, crowded, slots };
            guard.send(Record::new(Verb::Ready, 0, 0), &[]);
            guard.serve();
            let left = guard.kill_everybody();
            guard.send(Record::new(Verb::Ended, 0, i32::from(left)), &[]);
            sys::exit_now(i32::from(left))
        }
        Err(errno) => {
            let _ = protocol::send(control.as_fd(), Record::new(Verb::Ready, 0, errno.raw_os_error()), &[]);
            sys::exit_now(1)
        }
    }
}

/// Makes this process a guard; returns its id and the descriptor that tells of ended children.
fn set_up(control: &OwnedFd, supervisor: &OwnedFd, pipes: bool) -> Result<(i32, OwnedFd), Errno> {
    take_null_streams(if pipes { 3 } else { 1 })?;
    sys::close_all_but([control.as_raw_fd(), supervisor.as_raw_fd()]);
    memory::drop_shared_mappings();
    sys::default_all_signals();
    let pid = rustix::process::getpid();
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(pid))?;
    let _ = rustix::thread::set_name(NAME);
    Ok((pid.as_raw_nonzero().get(), sys::child_signal_fd()?))
}

/// Makes the first `count` standard streams `/dev/null`.
fn take_null_streams(count: i32) -> Result<(), Errno> {
    let null = rustix::fs::open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for stream in 0..count {
        sys::duplicate_onto(null.as_raw_fd(), stream)?;
    }
    if null.as_raw_fd() < count {
        std::mem::forget(null);
    }
    Ok(())
}

impl Guard {
    /// Serves until the supervisor asks for the end or is gone. Each turn waits for an event and handles all there are.
    fn serve(&mut self) {
        while self.connected {
            let room = if self.crowded { PollFlags::OUT } else { PollFlags::empty() };
            let mut events = [
                PollFd::new(&self.supervisor, PollFlags::IN),
                PollFd::new(&self.control, PollFlags::IN | room),
                PollFd::new(&self.child_signals, PollFlags::IN),
            ];
            if rustix::event::poll(&mut events, None).is_err() {
                continue;
            }
            let [supervisor_gone, record, child] = events.map(|event| !event.revents().is_empty());
            if supervisor_gone {
                self.connected = false;
                return;
            }
            if child || self.crowded {
                self.forget_child_signals();
                self.reap();
            }
            if record && !self.handle_one() {
                return;
            }
        }
    }

    /// Whether to go on.
    fn handle_one(&mut self) -> bool {
        let (record, descriptors) = match protocol::receive(self.control.as_fd()) {
            Ok(Some(received)) => received,
            Err(Errno::AGAIN | Errno::PROTO) => return true,
            Ok(None) | Err(_) => {
                self.connected = false;
                return false;
            }
        };
        match record.verb {
            Verb::Spawn => {
                let [image, input, ..] = descriptors;
                if let Err(errno) = self.spawn(record.id, image, input.as_ref()) {
                    self.send(Record::new(Verb::Refused, record.id, errno.raw_os_error()), &[]);
                }
            }
            Verb::Signal => self.signal(record.id, record.value),
            Verb::SignalAll => self.signal_all(record.value),
            Verb::End => return false,
            Verb::Ready | Verb::Spawned | Verb::Refused | Verb::Exited | Verb::Ended => {}
        }
        true
    }

    fn spawn(&mut self, id: u32, image: Option<OwnedFd>, input: Option<&OwnedFd>) -> Result<(), Errno> {
        let image = Image::map(image.ok_or(Errno::BADF)?)?;
        let slot = self.slots.iter_mut().find(|slot| slot.pid == 0).ok_or(Errno::AGAIN)?;
        // Made here and not in the supervisor, where a fork of another thread could keep a writing end open for ever.
        let (status_read, status_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (mut output, mut errors) = (None, None);
        if self.pipes {
            output = Some(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?);
            errors = Some(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?);
        }
        // SAFETY: this process has one thread, and the child goes straight to `become_program`.
        let pid = match unsafe { sys::fork(libc::SIGCHLD) }? {
            Forked::Child => {
                let streams = Streams { input, output: output.as_ref(), errors: errors.as_ref() };
                become_program(self.pid, &image, &status_write, &streams)
            }
            Forked::Parent { pid, .. } => pid,
        };
        *slot = Slot { id, pid };
        // In both processes, so that it has happened before anybody signals the group.
        let _ = rustix::process::setpgid(rustix::process::Pid::from_raw(pid), None);
        let spawned = Record::new(Verb::Spawned, id, pid);
        match (&output, &errors) {
            (Some((output, _)), Some((errors, _))) => {
                self.send(spawned, &[status_read.as_fd(), output.as_fd(), errors.as_fd()]);
            }
            _ => self.send(spawned, &[status_read.as_fd()]),
        }
        Ok(())
    }

    fn signal(&self, id: u32, signal: i32) {
        if let Some(slot) = self.slots.iter().find(|slot| slot.pid != 0 && slot.id == id) {
            signal_child(slot.pid, signal);
        }
    }

    /// Children by their groups, and daemons that were handed to us one by one.
    fn signal_all(&self, signal: i32) {
        for slot in self.slots.iter().filter(|slot| slot.pid != 0) {
            signal_child(slot.pid, signal);
        }
        let _ = kin::for_each_child(self.pid, |kin| {
            if !self.slots.iter().any(|slot| slot.pid != 0 && (slot.pid == kin.pid || slot.pid == kin.group)) {
                sys::kill(kin.pid, signal);
            }
        });
    }

    /// Kills until there are no descendants; true if some were left when the time was over.
    fn kill_everybody(&mut self) -> bool {
        let deadline = Instant::now() + limits::KILL_TIMEOUT;
        loop {
            for slot in self.slots.iter().filter(|slot| slot.pid != 0) {
                sys::kill(-slot.pid, libc::SIGKILL);
                sys::kill(slot.pid, libc::SIGKILL);
            }
            // Without /proc, only what stayed in the children's groups is killed.
            let _ = kin::for_each_child(self.pid, |kin| self.kill_kin(kin));
            if self.reap() {
                return false;
            }
            if Instant::now() >= deadline {
                return true;
            }
            let mut events = [PollFd::new(&self.child_signals, PollFlags::IN)];
            let _ = rustix::event::poll(&mut events, Some(&sys::timespec(PASS_PAUSE)));
            self.forget_child_signals();
        }
    }

    fn kill_kin(&self, kin: Kin) {
        if kin.group > 1 && kin.group != self.pid {
            sys::kill(-kin.group, libc::SIGKILL);
        }
        sys::kill(kin.pid, libc::SIGKILL);
    }

    /// Reaps who has ended and reports our own children while there is room. True if no child is left.
    fn reap(&mut self) -> bool {
        self.crowded = false;
        loop {
            let pid = match sys::peek_ended_child() {
                Ok(Some(pid)) => pid,
                Ok(None) => return false,
                Err(errno) => return errno == Errno::CHILD,
            };
            let slot = self.slots.iter().position(|slot| slot.pid == pid);
            if slot.is_some() && !self.has_room() {
                self.crowded = true;
                return false;
            }
            let Ok(Some(status)) = sys::reap(pid) else { return false };
            if let Some(slot) = slot.and_then(|index| self.slots.get_mut(index)) {
                let id = slot.id;
                *slot = FREE;
                self.send(Record::new(Verb::Exited, id, status), &[]);
            }
        }
    }

    /// Whether a record can be sent now, or nobody is there to miss it.
    fn has_room(&self) -> bool {
        let mut events = [PollFd::new(&self.control, PollFlags::OUT), PollFd::new(&self.supervisor, PollFlags::IN)];
        !self.connected || matches!(rustix::event::poll(&mut events, Some(&sys::timespec(Duration::ZERO))), Ok(1..))
    }

    fn send(&mut self, record: Record, descriptors: &[BorrowedFd<'_>]) {
        let deadline = Instant::now() + SEND_TIMEOUT;
        while self.connected {
            match protocol::send(self.control.as_fd(), record, descriptors) {
                Ok(()) => return,
                Err(Errno::AGAIN) if Instant::now() < deadline => {
                    let mut events =
                        [PollFd::new(&self.control, PollFlags::OUT), PollFd::new(&self.supervisor, PollFlags::IN)];
                    let _ = rustix::event::poll(&mut events, Some(&sys::timespec(SEND_TIMEOUT)));
                    self.connected = events[1].revents().is_empty();
                }
                Err(_) => self.connected = false,
            }
        }
    }

    fn forget_child_signals(&self) {
        // One signal may stand for many ends, and `reap` looks for all: the content says nothing.
        let mut buffer = [0_u8; size_of::<libc::signalfd_siginfo>()];
        while matches!(rustix::io::read(&self.child_signals, &mut buffer), Ok(1..)) {}
    }
}

/// Signals an unreaped child of ours with its whole group, each process once.
fn signal_child(pid: i32, signal: i32) {
    let reached = sys::kill(-pid, signal);
    let group = rustix::process::getpgid(rustix::process::Pid::from_raw(pid));
    if !reached || group.is_ok_and(|group| group.as_raw_nonzero().get() != pid) {
        sys::kill(pid, signal);
    }
}

type Pipe = (OwnedFd, OwnedFd);

/// What a child's standard streams are, where they are not those of the guard.
struct Streams<'a> {
    input: Option<&'a OwnedFd>,
    output: Option<&'a Pipe>,
    errors: Option<&'a Pipe>,
}

/// Turns a fresh fork of the guard into the program of `image`.
fn become_program(guard: i32, image: &Image, status: &OwnedFd, streams: &Streams<'_>) -> ! {
    let (step, errno) = match try_become_program(guard, image, streams) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    let mut report = [0_u8; 8];
    let (first, second) = report.split_at_mut(4);
    first.copy_from_slice(&step.to_ne_bytes());
    second.copy_from_slice(&errno.raw_os_error().to_ne_bytes());
    let _ = rustix::io::write(status, &report);
    sys::exit_now(127)
}

fn try_become_program(
    guard: i32,
    image: &Image,
    streams: &Streams<'_>,
) -> Result<std::convert::Infallible, (i32, Errno)> {
    let setup = |errno| (STEP_SETUP, errno);
    rustix::process::setpgid(None, None).map_err(setup)?;
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(setup)?;
    // The guard may have ended before the request above was made.
    if rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(guard) {
        sys::exit_now(127);
    }
    let written = |pipe: Option<&'_ Pipe>| pipe.map(|(_, write)| write.as_raw_fd());
    let input = streams.input.map(AsRawFd::as_raw_fd);
    for (descriptor, stream) in [(input, 0), (written(streams.output), 1), (written(streams.errors), 2)] {
        if let Some(descriptor) = descriptor {
            sys::duplicate_onto(descriptor, stream).map_err(setup)?;
        }
    }
    sys::change_directory(image).map_err(|errno| (STEP_DIRECTORY, errno))?;
    sys::unblock_all_signals();
    Err((STEP_EXEC, sys::execute(image)))
}
