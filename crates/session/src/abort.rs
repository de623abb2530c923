//! The end of a session in which a command has not got to all workers alike.
//!
//! Operations of several workers meet by their order. A worker that lacks a command would take each later operation for
//! the one before, and where the two look alike nobody would notice: the values would be wrong. So such a session is
//! broken. Its controller issues nothing any more, and tells each worker besides its commands ([`ABORT`]), for the
//! others may wait for the one that lacks something: they do no more commands, and give their groups up.

use crate::collective::Communicators;
use parking_lot::Mutex;
use sheave_mesh::{Lane, Request, Service, ServiceName};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};

/// The service by which a worker hears that its session is broken.
pub(crate) const ABORT: ServiceName = ServiceName::new("session.abort");

/// Whether a worker still does commands.
#[derive(Default)]
pub(crate) struct Abort {
    is_over: AtomicBool,
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

    /// Takes the groups of the worker, which are given up when the session breaks.
    pub(crate) fn govern(&self, communicators: &Arc<Communicators>) {
        *self.communicators.lock() = Arc::downgrade(communicators);
        // It may have broken meanwhile.
        if self.is_over() {
            communicators.cancel();
        }
    }

    /// Leaves the rest of the commands, and ends the operations that wait for other workers.
    pub(crate) fn begin(&self) {
        self.end();
        let communicators = self.communicators.lock().upgrade();
        communicators.into_iter().for_each(|communicators| communicators.cancel());
    }
}

/// Lets a worker hear that its session is broken, while it runs a command.
pub(crate) struct AbortService(pub(crate) Arc<Abort>);

impl Service for AbortService {
    fn handle(&self, request: Request) {
        self.0.begin();
        request.reply.value(());
    }

    /// Never on the controller's thread that breaks the session: operations that end call back.
    fn lane(&self) -> Lane {
        Lane::Serial
    }
}
