//! Workers that are threads of this process.

use sheave_base::thread::{self, Thread};
use sheave_base::{Error, Result, Work, work};
use std::time::Instant;

/// A thread that runs the commands of a worker.
pub(crate) struct WorkerThread {
    thread: Thread,
    /// What came of it.
    ended: Work<()>,
}

impl WorkerThread {
    pub(crate) fn start(worker: u32, act: impl FnOnce() -> Result<()> + Send + 'static) -> Result<Self> {
        let (completer, ended) = work::pair("worker");
        let thread = thread::start(&format!("sheave-worker-{worker}"), move || completer.complete(act()))?;
        Ok(Self { thread, ended })
    }

    /// What it has failed with, if it has.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.ended.result()?.err()
    }

    /// Waits for its end until then. One that runs a function still cannot be ended: it leaves when that returns.
    pub(crate) fn end(self, until: Instant) {
        // A function that it runs may be what drops the session.
        if !self.thread.is_this() && self.ended.wait_until(Some(until), None).unwrap_or(false) {
            let _ = self.thread.join();
        }
    }
}
