//! The worker's side: tasks in their order, on the thread that works.
//!
//! **Outcomes leave together**: those of a message when its last task has ended, some earlier when there are many, and
//! in any case [`KEPT_SPAN`] after the first of them, though a long task runs meanwhile: the node sees to that. One
//! with tensors leaves at once, for what follows may write them.
//!
//! What is kept is noted in the memory that the worker shares with its host, which finds it there if the worker dies.
//! What there is no room for leaves at once.

use crate::packet::Packet;
use crate::protocol::{self, BEGIN, BROKEN, OUTCOMES, Outcomes, READY, TASKS, Tasks, WORKER};
use crate::task::Outcome;
use crate::turn::Turn;
use parking_lot::Mutex;
use sheave_base::collections::HashMap;
use sheave_base::planted::{self, Bug};
use sheave_base::work::{Interrupt, reborrowed};
use sheave_base::{Error, ErrorKind, Result, clock, contain, limits};
use sheave_mesh::{Call, Guest, Lane, Request, Service, WeakGuest};
use sheave_net::Tensors;
use sheave_wire::Value;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long an outcome is kept for others at most.
const KEPT_SPAN: Duration = Duration::from_micros(100);

/// How many are kept at most, and how many bytes of them.
const KEPT_MAX: usize = 64;
const KEPT_BYTES_MAX: usize = 256 << 10;

/// A result has so many bytes at most beside its tensors, and so many of those.
const RESULT_BYTES_MAX: usize = limits::CONTROL_BYTES_MAX / 2;
const RESULT_TENSORS_MAX: usize = limits::PARTS_MAX;

/// The program of a worker. All of it is called on the thread that works.
pub trait Program: Send + Sync + 'static {
    /// A function as it is called here.
    type Function: Send + Sync + 'static;

    /// Sets the worker up, before it has any task.
    ///
    /// # Errors
    ///
    /// Its own, which breaks the pool.
    fn set_up(&self, setup: Option<Packet>) -> Result<()>;

    /// Makes a function of what was sent for it.
    ///
    /// # Errors
    ///
    /// Its own, which is the outcome of all tasks that call it.
    fn function(&self, definition: Packet) -> Result<Self::Function>;

    /// Has the tasks of one message run, by `run`: a program may take something for all of them, such as the lock of an
    /// interpreter.
    fn together(&self, run: &mut dyn FnMut()) {
        run();
    }

    /// Runs a task.
    ///
    /// # Errors
    ///
    /// Its own, which is the outcome.
    fn run(&self, function: &Self::Function, args: Packet) -> Result<Packet>;
}

/// Works for the pool that has started this process, until it lets it go. Blocks; `interrupt` is asked at least every
/// 100 ms while there is nothing to do, and its error ends this.
///
/// # Errors
///
/// As [`Guest::ready`]; `PeerLost` if the pool's process is gone; and what `interrupt` says.
pub fn work(guest: &Guest, turn: Turn, program: impl Program, mut interrupt: Option<Interrupt<'_>>) -> Result<()> {
    let post = Post { guest: guest.downgrade(), turn, service: OnceLock::new(), kept: Mutex::default() };
    let desk = Desk { program, functions: Mutex::default(), post: Arc::new(post) };
    guest.serve(WORKER, desk)?;
    guest.ready()?.wait()?;
    let asked = reborrowed(&mut interrupt);
    guest.mesh().work(WORKER, asked)?;
    guest.until_gone_interruptible(interrupt)
}

/// Outcomes that have not left.
#[derive(Default)]
struct Kept {
    outcomes: Outcomes,
    bytes: usize,
    is_timed: bool,
}

/// What a worker tells its pool.
struct Post {
    guest: WeakGuest,
    turn: Turn,
    /// The pool's service, at the host.
    service: OnceLock<String>,
    kept: Mutex<Kept>,
}

impl Post {
    fn tell(&self, method: &str, call: Call) -> Result<()> {
        match (self.guest.upgrade(), self.service.get()) {
            (Some(guest), Some(service)) => guest.cast(service.clone(), method, call),
            // Nobody is there to hear it, which is found elsewhere.
            _ => Ok(()),
        }
    }

    /// Nothing can be done here.
    fn is_broken(&self, error: &Error) {
        let _ = self.tell(BROKEN, Call::of(Value::Bytes(protocol::error_bytes(error))));
    }

    /// Keeps an outcome until it leaves: now, if it is the last, or cannot be noted.
    fn keep(self: &Arc<Self>, (number, outcome): (u32, Outcome), spent_ns: u64, is_last: bool) {
        let (bytes, tensors) = outcome.as_ref().map_or((0, 0), |packet| (packet.bytes.len(), packet.tensors.len()));
        let mut kept = self.kept.lock();
        let is_full = kept.outcomes.outcomes.len() + 1 >= KEPT_MAX || kept.bytes + bytes >= KEPT_BYTES_MAX;
        let leaves = is_last || is_full || tensors > 0 || !self.turn.note(&protocol::note_of(number, &outcome));
        kept.bytes += bytes;
        kept.outcomes.spent_ns = kept.outcomes.spent_ns.saturating_add(spent_ns);
        kept.outcomes.outcomes.push((number, outcome));
        if leaves {
            drop(kept);
            return self.flush();
        }
        if !kept.is_timed {
            kept.is_timed = self.time();
        }
    }

    /// Sees to it that what is kept leaves in time. False if nothing can.
    fn time(self: &Arc<Self>) -> bool {
        if planted::strikes(Bug::OutcomeKept) {
            return true;
        }
        let Some(guest) = self.guest.upgrade() else { return false };
        let (runtime, post) = (guest.runtime().clone(), Arc::clone(self));
        let timed = guest.spawn("outcomes", async move {
            runtime.sleep_until(runtime.after(KEPT_SPAN))?.await;
            post.kept.lock().is_timed = false;
            post.flush();
            Ok(())
        });
        timed.is_ok()
    }

    /// Sends what is kept. Under the lock, so that outcomes leave in their order.
    fn flush(&self) {
        let mut kept = self.kept.lock();
        if kept.outcomes.outcomes.is_empty() {
            return;
        }
        kept.bytes = 0;
        let mut outcomes = std::mem::take(&mut kept.outcomes);
        if let Err(error) = self.tell(OUTCOMES, outcomes.to_call()) {
            // Somebody waits for each. Errors alone can be sent where what they tell of cannot, for want of memory say.
            let error = error.context("the result could not be sent");
            outcomes.outcomes.iter_mut().for_each(|(_, outcome)| *outcome = Err(error.clone()));
            let _ = self.tell(OUTCOMES, outcomes.to_call());
        }
        self.turn.clear_notes();
        drop(kept);
        drop(outcomes);
    }
}

type Functions<F> = HashMap<u64, Result<Arc<F>>>;

struct Desk<P: Program> {
    program: P,
    functions: Mutex<Functions<P::Function>>,
    post: Arc<Post>,
}

impl<P: Program> Desk<P> {
    fn begin(&self, args: Value, tensors: Tensors) {
        let set_up = protocol::read_begin(args, tensors).and_then(|(service, setup)| {
            let _ = self.post.service.set(service);
            contained("setting up the worker", || self.program.set_up(setup))
        });
        match set_up {
            Ok(()) => drop(self.post.tell(READY, Call::default())),
            Err(error) => self.post.is_broken(&error),
        }
    }

    fn run_all(&self, args: Value, tensors: Tensors) {
        let Tasks { first, functions, dropped, tasks } = match Tasks::read(args, tensors) {
            Ok(tasks) => tasks,
            Err(error) => return self.post.is_broken(&error),
        };
        for (number, definition) in functions {
            let function = contained("a function", || self.program.function(definition)).map(Arc::new);
            self.functions.lock().insert(number, function);
        }
        let gone: Vec<_> = dropped.iter().filter_map(|number| self.functions.lock().remove(number)).collect();
        drop(gone);
        let count = tasks.len();
        let mut tasks = tasks.into_iter().enumerate();
        self.program.together(&mut || {
            for (at, (function, args)) in tasks.by_ref() {
                let number = first.wrapping_add(at as u32);
                if self.post.turn.begin(number) || planted::strikes(Bug::RevokedBegun) {
                    let begun = clock::now();
                    let outcome = self.run(function, args);
                    let spent_ns = u64::try_from(clock::since(begun).as_nanos()).unwrap_or(u64::MAX);
                    self.post.keep((number, outcome), spent_ns, at + 1 == count);
                }
            }
        });
        // The last ones may have been taken back.
        self.post.flush();
    }

    fn run(&self, function: u64, args: Packet) -> Outcome {
        let function = self.functions.lock().get(&function).cloned();
        let unknown = || Error::new(ErrorKind::Protocol, "a task of a function that was not sent");
        let function = function.ok_or_else(unknown)??;
        let result = contained("the task", || self.program.run(&function, args))?;
        let (bytes, tensors) = (result.bytes.len(), result.tensors.len());
        if bytes <= RESULT_BYTES_MAX && tensors <= RESULT_TENSORS_MAX {
            return Ok(result);
        }
        let most = format!("{RESULT_BYTES_MAX} and {RESULT_TENSORS_MAX} at most");
        let what = format!("a result of {bytes} bytes and {tensors} tensors; expected {most}");
        Err(Error::new(ErrorKind::LimitExceeded, what).hint("return arrays: their elements travel beside the result"))
    }
}

/// Runs code of others: a panic is an error.
fn contained<T>(what: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    contain::run(run).unwrap_or_else(|text| Err(Error::new(ErrorKind::Remote, format!("{what} panicked: {text}"))))
}

impl<P: Program> Service for Desk<P> {
    fn handle(&self, request: Request) {
        let Request { method, args, tensors, .. } = request;
        match method.as_str() {
            BEGIN => self.begin(args, tensors),
            TASKS => self.run_all(args, tensors),
            _ => self.post.is_broken(&protocol::unreadable()),
        }
    }

    fn lane(&self) -> Lane {
        Lane::Own
    }
}
