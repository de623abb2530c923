//! Signals of this process, handed on to the children of one job.
//!
//! A handler writes the signal's number into a pipe; a thread reads it and asks the guard. The handler is
//! async-signal-safe: it touches atomics, `write` and, in a forked copy, `sigaction` and `kill`. The pipe is made once
//! per process and never closed, so that a handler that runs late never writes into somebody else's file.

use crate::job::Shared;
use crate::protocol::Verb;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use sheave_base::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

const FORWARDED: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// What ends the thread; no signal has this number.
const STOP: u8 = 0;

static TAKEN: AtomicBool = AtomicBool::new(false);
static PIPE: OnceLock<(OwnedFd, OwnedFd)> = OnceLock::new();
static WRITE_FD: AtomicI32 = AtomicI32::new(-1);
static OWNER_PID: AtomicI32 = AtomicI32::new(0);

/// Signals are forwarded while this lives; dropping it puts the old handlers back.
#[derive(Debug)]
#[must_use = "dropping this ends the forwarding"]
pub struct Forwarding {
    previous: Vec<(i32, Action)>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Forwarding {
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self> {
        if TAKEN.swap(true, Ordering::AcqRel) {
            let what = "a job of this process forwards signals already";
            return Err(Error::new(ErrorKind::AlreadyExists, what).operation("forward signals"));
        }
        OWNER_PID.store(own_pid(), Ordering::Release);
        let mut forwarding = Self { previous: Vec::new(), thread: None };
        // From here on, dropping `forwarding` undoes what was done.
        let pipe = open_pipe()?;
        let shared = Arc::clone(shared);
        forwarding.thread = Some(crate::thread::spawn("sheave-signals", move || forward(&shared, &pipe.0))?);
        for signal in FORWARDED {
            let old = Action::set(signal, &Action::handler())?;
            if old.is_ignored() {
                Action::set(signal, &old)?;
            } else {
                forwarding.previous.push((signal, old));
            }
        }
        Ok(forwarding)
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        if OWNER_PID.load(Ordering::Acquire) != own_pid() {
            std::mem::forget(self.thread.take());
            return;
        }
        for (signal, action) in self.previous.drain(..) {
            let _ = Action::set(signal, &action);
        }
        if let (Some(thread), Some((_, write))) = (self.thread.take(), PIPE.get()) {
            // A full pipe is being emptied by the very thread that we wait for.
            while rustix::io::write(write, &[STOP]) == Err(Errno::AGAIN) && !thread.is_finished() {
                std::thread::yield_now();
            }
            let _ = thread.join();
        }
        TAKEN.store(false, Ordering::Release);
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn open_pipe() -> Result<&'static (OwnedFd, OwnedFd)> {
    if PIPE.get().is_none() {
        // Whoever holds `TAKEN` is alone here.
        let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let _ = PIPE.set(pipe);
    }
    let pipe = PIPE.get().ok_or_else(|| Error::new(ErrorKind::Internal, "the signal pipe was not kept"))?;
    WRITE_FD.store(pipe.1.as_raw_fd(), Ordering::Release);
    Ok(pipe)
}

fn forward(shared: &Arc<Shared>, pipe: &OwnedFd) {
    let mut interrupts = 0;
    loop {
        let mut byte = [STOP];
        match rustix::io::read(pipe, &mut byte) {
            Ok(1) if byte[0] != STOP => {}
            Err(Errno::AGAIN | Errno::INTR) => {
                let _ = rustix::event::poll(&mut [PollFd::new(pipe, PollFlags::IN)], None);
                continue;
            }
            _ => return,
        }
        let signal = i32::from(byte[0]);
        interrupts += u32::from(signal == libc::SIGINT);
        let kill = signal == libc::SIGINT && interrupts > 1;
        {
            let mut state = shared.state.lock();
            state.signal = Some(signal);
            state.ending |= kill;
        }
        // A guard that does not answer is dealt with by whoever ends the job.
        let _ = match kill {
            true => shared.ask_living(Verb::End, 0, 0),
            false => shared.ask_living(Verb::SignalAll, 0, signal),
        };
        shared.changed.notify_all();
    }
}

extern "C" fn on_signal(signal: libc::c_int) {
    // SAFETY: `errno` is this thread's own; the calls are async-signal-safe and get valid memory.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        if libc::getpid() == OWNER_PID.load(Ordering::Acquire) {
            let byte = signal as u8;
            libc::write(WRITE_FD.load(Ordering::Acquire), (&raw const byte).cast(), 1);
        } else {
            // A forked copy of the supervisor has no job: the signal does there what it does by default.
            libc::signal(signal, libc::SIG_DFL);
            libc::kill(libc::getpid(), signal);
        }
        *errno = saved;
    }
}

/// What happens on a signal.
struct Action(libc::sigaction);

impl std::fmt::Debug for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Action")
    }
}

impl Action {
    fn handler() -> Self {
        // SAFETY: all zero bits are the default action; the handler has the type that goes without SA_SIGINFO.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(libc::c_int) = on_signal;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigemptyset(&raw mut action.sa_mask);
            Self(action)
        }
    }

    fn is_ignored(&self) -> bool {
        self.0.sa_sigaction == libc::SIG_IGN
    }

    /// Sets the action and returns the one before.
    fn set(signal: i32, action: &Self) -> Result<Self> {
        // SAFETY: both structures are valid for the call, and the only handler that this module makes is
        // async-signal-safe; others were installed before us by their owners.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            match libc::sigaction(signal, &raw const action.0, &raw mut old) {
                0 => Ok(Self(old)),
                _ => Err(std::io::Error::last_os_error().into()),
            }
        }
    }
}
