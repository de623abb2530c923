//! A job: children that are spawned, watched and ended together.

use crate::child::{Child, Record};
use crate::command::Command;
use crate::exit::{Exit, Failure, Report, Status};
use crate::log::{Keep, in_time};
use crate::output::{Output, Pump, Which};
use crate::protocol::{self, Verb};
use crate::signals::Forwarding;
use crate::{guard, start, watch};
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use sheave_base::{Error, ErrorKind, Peer, Result, limits};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How far a child has come.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The guard was asked for it.
    Asked,
    /// It is a process; the descriptor says whether it became its program.
    Forked(OwnedFd),
    /// Its program runs.
    Running,
    /// The guard could not make a process.
    Refused(Errno),
    /// It will never run its program; its end is of no interest.
    Stillborn,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) record: Arc<Record>,
    pub(crate) phase: Phase,
}

/// How the guard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardState {
    Serving,
    /// It has ended; whether it had to leave processes that could not be killed.
    Ended {
        left: bool,
    },
    /// It was killed; whether some of the job's processes are left.
    Lost {
        left: bool,
    },
}

#[derive(Debug)]
pub(crate) struct State {
    next_id: u32,
    pub(crate) living: BTreeMap<u32, Entry>,
    exits: VecDeque<Exit>,
    first_failure: Option<(Exit, Arc<Record>)>,
    worst_exit_code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) ending: bool,
    pub(crate) guard: GuardState,
}

impl State {
    /// Books the end of a child whose program ran.
    pub(crate) fn settle(&mut self, record: &Arc<Record>, exit: Exit) {
        if exit.is_failure() {
            // A failure is one of the job, even if it ended with 0.
            self.worst_exit_code = self.worst_exit_code.max(exit.status.exit_code()).max(1);
        }
        if exit.is_failure() && self.first_failure.is_none() {
            self.first_failure = Some((exit.clone(), Arc::clone(record)));
        }
        if self.exits.len() == limits::JOB_EXITS_MAX {
            self.exits.pop_front();
        }
        self.exits.push_back(exit);
    }

    pub(crate) fn exit_of(&self, record: &Record, status: Status) -> Exit {
        // A signal that was forwarded asks for the end as the job itself does, however the child answers it.
        let asked_for = self.ending || self.signal.is_some();
        let is_well = record.judge.as_ref().map_or(status.success(), |judge| judge.is_well(status));
        Exit { name: record.name.clone(), pid: record.pid_or_zero(), status, asked_for, is_well }
    }

    fn foreground_lives(&self) -> bool {
        self.living.values().any(|entry| !entry.record.background && !matches!(entry.phase, Phase::Stillborn))
    }

    fn somebody_lives(&self) -> bool {
        self.living.values().any(|entry| !matches!(entry.phase, Phase::Stillborn))
    }
}

/// What supervisor, children's handles and the watching thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    owner_pid: u32,
    pub(crate) mark: String,
    pub(crate) control: OwnedFd,
    pub(crate) guard_pid: i32,
    pub(crate) guard_pidfd: OwnedFd,
    keep: [Keep; 2],
    pub(crate) state: Mutex<State>,
    pub(crate) changed: Condvar,
    pub(crate) pump: Arc<Pump>,
}

impl Shared {
    pub(crate) fn new(guard: start::StartedGuard, keep: [Keep; 2], pump: Arc<Pump>) -> Self {
        Self {
            owner_pid: std::process::id(),
            mark: guard.mark,
            control: guard.control,
            guard_pid: guard.pid,
            guard_pidfd: guard.pidfd,
            keep,
            state: Mutex::new(State {
                next_id: 0,
                living: BTreeMap::new(),
                exits: VecDeque::new(),
                first_failure: None,
                worst_exit_code: 0,
                signal: None,
                ending: false,
                guard: GuardState::Serving,
            }),
            changed: Condvar::new(),
            pump,
        }
    }

    pub(crate) fn is_owner(&self) -> bool {
        std::process::id() == self.owner_pid
    }

    pub(crate) fn check_owner(&self) -> Result<()> {
        if self.is_owner() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Forked, "the job belongs to the process that this one was forked from")
            .hint("start a job of its own in the forked process"))
    }

    /// Waits until `found` returns something, at most until `deadline` (then `None`).
    pub(crate) fn wait_until<T>(
        &self,
        deadline: Option<Instant>,
        mut found: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut state = self.state.lock();
        loop {
            if let Some(value) = found(&mut state) {
                return Ok(Some(value));
            }
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) if Instant::now() >= deadline => return Ok(None),
                Some(deadline) => drop(self.changed.wait_until(&mut state, deadline)),
            }
        }
    }

    /// Sends a record to the guard; blocks while the guard is stopped, at most [`limits::SPAWN_TIMEOUT`].
    pub(crate) fn ask(&self, verb: Verb, id: u32, value: i32, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        let deadline = in_time(limits::SPAWN_TIMEOUT);
        loop {
            match protocol::send(self.control.as_fd(), protocol::Record::new(verb, id, value), descriptors) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN) if Instant::now() < deadline => {
                    let mut events = [PollFd::new(&self.control, PollFlags::OUT)];
                    let _ = rustix::event::poll(&mut events, crate::sys::until(Some(deadline)).as_ref());
                }
                Err(Errno::AGAIN) => {
                    return Err(Error::new(ErrorKind::DeadlineExceeded, "the guard of the job does not answer")
                        .peer(self.guard_peer())
                        .hint("was it stopped? look for the process state T in ps"));
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(closed()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// As [`Shared::ask`], for requests that the end of the job has made pointless.
    pub(crate) fn ask_living(&self, verb: Verb, id: u32, value: i32) -> Result<()> {
        match self.ask(verb, id, value, &[]) {
            Err(error) if error.kind() == ErrorKind::Closed => Ok(()),
            other => other,
        }
    }

    pub(crate) fn guard_peer(&self) -> Peer {
        let peer = Peer::named(guard::NAME.to_string_lossy());
        u32::try_from(self.guard_pid).map_or(peer.clone(), |pid| peer.pid(pid))
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the job has ended").hint("start another job")
}

/// What a job waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A child failed; it was the first.
    Failed(Exit),
    /// All children that are not in the background have ended well.
    AllEnded,
    /// A signal with this number was forwarded to the children; a caller would now end the job.
    Signal(i32),
}

/// Starts a [`Job`].
#[derive(Debug, Default)]
pub struct Builder {
    output: Output,
}

impl Builder {
    /// Says what becomes of the children's output; [`Output::Quiet`] by default.
    #[must_use]
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }

    /// Starts the job: its guard process and two threads, which block all signals. Blocks for about a millisecond.
    ///
    /// The guard is a fork of this process and shares its memory until one of them writes; start jobs before filling
    /// the memory. It keeps this process's limits, user, umask and name space, and hands them on to the children.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] when the system refuses a process, thread or descriptor.
    pub fn start(self) -> Result<Job> {
        let keep = match self.output {
            Output::Capture => [Keep::Captured; 2],
            Output::Inherit => [Keep::Nothing; 2],
            Output::Prefixed { .. } | Output::PrefixedInto(_) | Output::Quiet => [Keep::Nothing, Keep::LastLines],
        };
        let pipes = !matches!(self.output, Output::Inherit);
        let guard = start::start_guard(pipes)?;
        let pump = match Pump::start(self.output) {
            Ok(pump) => pump,
            Err(error) => {
                start::abandon(guard.pid, &guard.pidfd);
                return Err(error.operation("start job"));
            }
        };
        let shared = Arc::new(Shared::new(guard, keep, pump));
        let watched = Arc::clone(&shared);
        match crate::thread::spawn("sheave-children", move || watch::run(&watched)) {
            Ok(watcher) => Ok(Job { shared, watcher: Mutex::new(Some(watcher)) }),
            Err(error) => {
                start::abandon(shared.guard_pid, &shared.guard_pidfd);
                shared.pump.finish(Duration::ZERO);
                Err(Error::from(error).operation("start job"))
            }
        }
    }
}

/// Children that live and end together. See the [crate documentation](crate) for an example and the guarantees.
///
/// Dropping the job kills what is left of it. In a forked copy of this process, dropping does nothing.
#[derive(Debug)]
pub struct Job {
    shared: Arc<Shared>,
    watcher: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Job {
    /// A job to be started, with choices.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Starts a job without choices.
    ///
    /// # Errors
    ///
    /// As [`Builder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// The process id of the guard, for people who look at process lists.
    #[must_use]
    pub fn guard_pid(&self) -> u32 {
        u32::try_from(self.shared.guard_pid).unwrap_or(0)
    }

    /// Starts `command` as a child. Blocks until its program is loaded, at most [`limits::SPAWN_TIMEOUT`].
    ///
    /// The child is a process group of its own in the guard's session; it lives on when the calling thread ends.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`]: no such program or directory. [`ErrorKind::AlreadyExists`]: a living child has this
    /// name. [`ErrorKind::LimitExceeded`]: too many children or open files. [`ErrorKind::Closed`]: the job has ended.
    /// [`ErrorKind::Io`]: the system refuses. [`ErrorKind::Forked`]: in a forked copy of the job's process.
    #[expect(clippy::needless_pass_by_value, reason = "a command describes one child")]
    pub fn spawn(&self, command: Command) -> Result<Child> {
        self.spawn_inner(&command).map_err(|error| error.operation("spawn"))
    }

    fn spawn_inner(&self, command: &Command) -> Result<Child> {
        self.shared.check_owner()?;
        let image = command.seal(&self.shared.mark)?;
        let record = self.enter(command)?;
        let deadline = in_time(limits::SPAWN_TIMEOUT);
        let input = std::io::stdin();
        let descriptors: Vec<_> = std::iter::once(image.as_fd()).chain(command.input_descriptor(&input)).collect();
        let born = self
            .shared
            .ask(Verb::Spawn, record.id, 0, &descriptors)
            .and_then(|()| start::await_program(&self.shared, &record, command, deadline));
        let mut state = self.shared.state.lock();
        let ended = record.exit.get().is_some();
        match born {
            Ok(()) => {
                if let Some(exit) = record.exit.get() {
                    // The watcher left it to us, because it could not know whether the program ever ran.
                    if state.living.remove(&record.id).is_some() {
                        state.settle(&record, exit.clone());
                    }
                } else if let Some(entry) = state.living.get_mut(&record.id) {
                    entry.phase = Phase::Running;
                }
                drop(state);
                self.shared.changed.notify_all();
                Ok(Child { shared: Arc::clone(&self.shared), record })
            }
            Err(error) => {
                let forked = record.pid.get().is_some() && !ended;
                match state.living.get_mut(&record.id) {
                    Some(entry) if forked => entry.phase = Phase::Stillborn,
                    _ => drop(state.living.remove(&record.id)),
                }
                drop(state);
                if forked {
                    self.shared.ask_living(Verb::Signal, record.id, libc::SIGKILL)?;
                }
                Err(error)
            }
        }
    }

    fn enter(&self, command: &Command) -> Result<Arc<Record>> {
        let mut state = self.shared.state.lock();
        if state.ending || state.guard != GuardState::Serving {
            return Err(closed());
        }
        if state.living.len() >= limits::JOB_CHILDREN_MAX {
            let what = format!("a job has at most {} living children", limits::JOB_CHILDREN_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("use several jobs"));
        }
        let id = state.next_id;
        let name = command.name_or(id);
        if state.living.values().any(|entry| entry.record.name == name) {
            let what = format!("the job has a living child named {name}");
            return Err(Error::new(ErrorKind::AlreadyExists, what).hint("give every child a name of its own"));
        }
        state.next_id = id.wrapping_add(1);
        let record = Arc::new(Record::new(id, name, command, self.shared.keep));
        state.living.insert(id, Entry { record: Arc::clone(&record), phase: Phase::Asked });
        Ok(record)
    }

    /// Forwards SIGINT, SIGTERM and SIGHUP of this process to all children until the returned value is dropped; a
    /// second SIGINT kills them. This changes the process's signal handlers, which are put back then; nothing else here
    /// does. Signals that are ignored when this is called stay ignored.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AlreadyExists`] when a job of this process forwards signals already.
    pub fn forward_signals(&self) -> Result<Forwarding> {
        self.shared.check_owner()?;
        Forwarding::start(&self.shared)
    }

    /// Waits until a child fails, all foreground children have ended well, or a signal was forwarded; `None` when
    /// `deadline` passed before. May be called again. Failures after [`Job::end`] began do not count.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`] in a forked copy of the job's process; [`ErrorKind::PeerLost`] when the guard was killed
    /// and no child can be blamed.
    pub fn wait_first_failure_or_all(&self, deadline: Option<Instant>) -> Result<Option<Outcome>> {
        self.shared.check_owner()?;
        let outcome = self.shared.wait_until(deadline, |state| {
            if let Some((exit, _)) = &state.first_failure {
                return Some(Ok(Outcome::Failed(exit.clone())));
            }
            if let Some(signal) = state.signal {
                return Some(Ok(Outcome::Signal(signal)));
            }
            match state.guard {
                GuardState::Lost { .. } => Some(Err(self.guard_lost())),
                _ => (!state.foreground_lives()).then_some(Ok(Outcome::AllEnded)),
            }
        })?;
        outcome.transpose()
    }

    /// Waits until all children have ended, those in the background and those that fail too, or a signal was forwarded;
    /// `None` when `deadline` passed before. [`Outcome::AllEnded`] then says nothing about how they ended.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Forked`] in a forked copy of the job's process; [`ErrorKind::PeerLost`] when the guard was killed.
    pub fn wait_all_ended(&self, deadline: Option<Instant>) -> Result<Option<Outcome>> {
        self.shared.check_owner()?;
        let outcome = self.shared.wait_until(deadline, |state| match (state.signal, state.guard) {
            (Some(signal), _) => Some(Ok(Outcome::Signal(signal))),
            (None, GuardState::Lost { .. }) => Some(Err(self.guard_lost())),
            (None, _) => (!state.somebody_lives()).then_some(Ok(Outcome::AllEnded)),
        })?;
        outcome.transpose()
    }

    /// Ends the job: SIGTERM to everybody, at most `grace` of time to follow it, then SIGKILL to all descendants.
    /// When this returns, no process of the job is left, unless the report's `trouble` says so. Blocks for at most
    /// `grace` and [`limits::KILL_TIMEOUT`] twice. May be called again, and then only reports.
    pub fn end(&self, grace: Duration) -> Report {
        if let Err(error) = self.shared.check_owner() {
            return self.report(Some(error));
        }
        self.shared.state.lock().ending = true;
        let mut trouble = None;
        if !grace.is_zero() {
            trouble = self.ask_to_end(in_time(grace)).err();
        }
        trouble = self.kill_all().err().or(trouble);
        if let Some(watcher) = self.watcher.lock().take() {
            // The guard is gone, so the watcher is at its last lines.
            let _ = watcher.join();
        }
        // Everybody who could write is dead, so the pipes end by themselves.
        if !self.shared.pump.finish(Duration::from_secs(2)) {
            let what = "not all of the children's output could be passed on";
            trouble = trouble.or(Some(Error::new(ErrorKind::DeadlineExceeded, what)));
        }
        self.report(trouble)
    }

    fn ask_to_end(&self, deadline: Instant) -> Result<()> {
        // Those who stand still must be woken to hear it.
        self.shared.ask_living(Verb::SignalAll, 0, libc::SIGTERM)?;
        self.shared.ask_living(Verb::SignalAll, 0, libc::SIGCONT)?;
        let gone = |state: &mut State| (state.living.is_empty() || state.guard != GuardState::Serving).then_some(());
        self.shared.wait_until(Some(deadline), gone).map(drop)
    }

    fn kill_all(&self) -> Result<()> {
        // A guard that somebody has stopped would not hear us.
        crate::sys::kill_pidfd(self.shared.guard_pidfd.as_raw_fd(), libc::SIGCONT);
        let mut asked = self.shared.ask_living(Verb::End, 0, 0);
        let gone = |state: &mut State| (state.guard != GuardState::Serving).then_some(state.guard);
        let mut guard = match asked {
            Ok(()) => self.shared.wait_until(Some(in_time(limits::KILL_TIMEOUT + Duration::from_secs(1))), gone)?,
            Err(_) => None,
        };
        if guard.is_none() {
            // A guard that does not do its work is killed, and the watcher does the rest.
            crate::sys::kill_pidfd(self.shared.guard_pidfd.as_raw_fd(), libc::SIGKILL);
            asked = Ok(());
            guard = self.shared.wait_until(Some(in_time(limits::KILL_TIMEOUT)), gone)?;
        }
        match guard {
            Some(GuardState::Ended { left: false } | GuardState::Lost { left: false }) => asked,
            _ => Err(Error::new(ErrorKind::DeadlineExceeded, "some processes of the job could not be killed")
                .hint(format!("look for SHEAVE_PROCESS_JOB={} in /proc/*/environ", self.shared.mark))),
        }
    }

    fn guard_lost(&self) -> Error {
        Error::new(ErrorKind::PeerLost, "the guard process of the job was killed, and all children with it")
            .peer(self.shared.guard_peer())
            .hint("look for an out-of-memory kill in the kernel's log")
    }

    fn report(&self, trouble: Option<Error>) -> Report {
        let state = self.shared.state.lock();
        let lost = matches!(state.guard, GuardState::Lost { .. }).then(|| self.guard_lost());
        Report {
            exits: state.exits.iter().cloned().collect(),
            first_failure: state.first_failure.as_ref().map(|(exit, record)| Failure {
                exit: exit.clone(),
                last_stderr_lines: record.log(Which::Error).last_lines(),
            }),
            signal: state.signal,
            trouble: trouble.or(lost).or_else(|| self.shared.pump.trouble()),
            worst_exit_code: state.worst_exit_code,
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.shared.is_owner() {
            let _ = self.end(Duration::ZERO);
        } else if let Some(watcher) = self.watcher.lock().take() {
            // The thread exists in another process only.
            std::mem::forget(watcher);
        }
    }
}
