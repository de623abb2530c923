//! The mesh's own thread: it does what timers say, and gives the mesh its turn when the engine wants one.

use crate::driver::Shared;
use crate::runtime::timers::{self, Job};
use sheave_base::clock;
use sheave_base::contain;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

impl Shared {
    /// Runs until the mesh has ended.
    pub(crate) fn keep_time(self: &Arc<Self>) {
        while let Some(job) = self.ticker.wait() {
            match job {
                Job::Run(action) => timers::run(action),
                // The mesh needs this thread, whatever is wrong with what it runs.
                Job::Turn => {
                    if contain::told("a turn of the mesh", || self.keep_time_once()).is_none() {
                        self.ticker.ring_at(self.deadline(self.node_config().liveness.beat));
                    }
                }
            }
        }
    }

    fn keep_time_once(self: &Arc<Self>) {
        if self.look_at_leavers() {
            self.serve();
        }
        self.with_engine(|_, _| ());
        self.tend_references();
        if self.references.is_flush_due.load(SeqCst) {
            self.flush_words();
        }
        self.look_at_lanes(clock::now());
        self.runtime.run_ready();
    }
}
