//! Failures that nobody has looked at.
//!
//! Programs push and let go of the work, and wait for the next pull alone. If such a push fails, because an updater
//! does or its round, the pull still brings a value, the one of before; nobody must take that for a success. So a work
//! that Python has let go of without a look at its outcome leaves a failure here, and the next point at which the
//! program waits raises it: a pull that has ended well, `wait`, `barrier` or `close`. A worker's pull is answered after
//! its own pushes, so what becomes of these is known by then.

use parking_lot::Mutex;
use sheave_base::fork::ForkMark;
use sheave_base::{Error, Result, Work};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The first failure of a store that nobody has looked at.
#[derive(Clone, Default)]
pub(crate) struct Unseen(Arc<Mutex<Option<Error>>>);

impl Unseen {
    fn keep(&self, error: &Error) {
        self.0.lock().get_or_insert_with(|| error.clone());
    }

    /// Raises it, once.
    pub(crate) fn raise(&self) -> Result<()> {
        match self.0.lock().take() {
            Some(error) => Err(error.context("an earlier operation, whose work nobody has looked at")),
            None => Ok(()),
        }
    }

    /// Watches a work that goes to Python.
    pub(crate) fn watch(&self, work: &Work<()>) -> (Look, Watch) {
        let look = Look(Arc::default());
        let watch =
            Watch { seen: Arc::clone(&look.0), work: work.clone(), unseen: self.clone(), mark: ForkMark::here() };
        (look, watch)
    }
}

/// Notes that somebody looks at an outcome.
pub(crate) struct Look(Arc<AtomicBool>);

impl Look {
    pub(crate) fn take(&self, work: &Work<()>) -> Result<()> {
        self.0.store(true, Relaxed);
        work.wait()
    }
}

/// Dropped when Python lets go of a work, or has looked at its outcome.
pub(crate) struct Watch {
    seen: Arc<AtomicBool>,
    work: Work<()>,
    unseen: Unseen,
    mark: ForkMark,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.seen.load(Relaxed) || self.mark.is_stale() {
            return;
        }
        let unseen = self.unseen.clone();
        self.work.on_complete(move |outcome| {
            if let Err(error) = outcome {
                unseen.keep(error);
            }
        });
    }
}
