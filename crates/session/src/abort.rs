//! The end of a session in which a command has not got to all workers alike.
//!
//! Operations of several workers meet by their order. A worker that lacks a command would take each later operation for
//! the one before, and where the two look alike nobody would notice: the values would be wrong. So such a session is
//! broken. Its controller issues nothing any more, and tells each worker besides its commands ([`ABORT`]), for the
//! others may wait for the one that lacks something: they do no more commands, and give their groups up.
//!
//! A worker that finds a gap in the numbers of its commands, whatever has made it, does the same by itself, and tells
//! whoever waits for it. It tells the other workers too, for it does not know in which groups they wait for it: they
//! may have made theirs again since, with a command that it lacks or leaves out. They give them up, and do what needs
//! none.

use crate::collective::Communicators;
use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Lane, Request, Service, ServiceName};
use sheave_wire::Value;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};

/// The service by which a worker hears that its session is broken.
pub(crate) const ABORT: ServiceName = ServiceName::new("session.abort");

/// Whether a worker still does commands.
#[derive(Default)]
pub(crate) struct Abort {
    is_over: AtomicBool,
    /// The error that it has found out itself.
    found: OnceLock<Error>,
    /// Why this worker meets no other one any more.
    parted: OnceLock<Error>,
    communicators: Mutex<Weak<Communicators>>,
}

impl Abort {
    /// Whether the commands that are left are not to be done: the session is broken, or its controller has died.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Leaves the rest of the commands.
    pub(crate) fn end(&self) {
        self.is_over.store(true, SeqCst);
    }

    /// Fails with what this worker has found out.
    pub(crate) fn check(&self) -> Result<()> {
        self.found.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Takes the groups of the worker, which are given up when the session breaks.
    pub(crate) fn govern(&self, communicators: &Arc<Communicators>) {
        *self.communicators.lock() = Arc::downgrade(communicators);
        // It may have broken meanwhile.
        if let Some(why) = self.parted.get() {
            communicators.cancel(why);
        }
    }

    /// Leaves the rest of the commands, and ends the operations that wait for other workers.
    pub(crate) fn begin(&self) {
        self.end();
        self.part("the session is broken: a command has not got to all workers");
    }

    /// Ends the operations that wait for other workers, and refuses those that are to come.
    fn part(&self, why: &str) {
        let error =
            Error::new(ErrorKind::Cancelled, why.to_owned()).hint("shut the session down, and begin another one");
        let error = self.parted.get_or_init(|| error);
        if let Some(communicators) = self.communicators() {
            communicators.cancel(error);
        }
    }

    fn communicators(&self) -> Option<Arc<Communicators>> {
        self.communicators.lock().upgrade()
    }

    /// Refuses a message whose first command has this number where another one was to come.
    pub(crate) fn check_gap(&self, expected: u64, number: u64) -> Result<()> {
        self.check()?;
        // In a broken session those that are left out have no numbers.
        if expected == number || self.is_over() {
            return Ok(());
        }
        let what = format!("command {number} has come where command {expected} was to come");
        let error = Error::new(ErrorKind::Mismatch, what.clone()).hint("shut the session down, and begin another one");
        let error = self.found.get_or_init(|| error).clone();
        self.end();
        if let Some(communicators) = self.communicators() {
            communicators.tell_others(&what);
        }
        self.part(&what);
        Err(error)
    }
}

/// Lets a worker hear that its session is broken, while it runs a command, or why another worker meets it no more.
pub(crate) struct AbortService(pub(crate) Arc<Abort>);

impl Service for AbortService {
    fn handle(&self, request: Request) {
        match &request.args {
            Value::Str(why) => self.0.part(why),
            _ => self.0.begin(),
        }
        request.reply.value(());
    }

    /// Never on the controller's thread that breaks the session: operations that end call back.
    fn lane(&self) -> Lane {
        Lane::Serial
    }
}
