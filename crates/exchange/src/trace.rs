//! The requests of a run as spans, for Perfetto and the like.
//!
//! Each end records what its own clock tells, and writes it down for itself; [`sheave_base::trace::merge`] makes one
//! picture of the files of all ends. A worker has a lane for each server with the spans from sending to answer, and one
//! for whole requests; a server has a lane for each worker with the spans in which requests wait and are worked on.

use crate::clock::{Stamps, monotonic_ns};
use sheave_base::clock::{Clock, Time};
use sheave_base::limits::TRACE_EVENTS_MAX;
use sheave_base::trace::{Event, Lane, Name, Phase, Process, Trace, wall_clock_offset_ns};
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::Member;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The clock of stamps.
struct Monotonic;

impl Clock for Monotonic {
    fn now(&self) -> Time {
        Time(monotonic_ns())
    }
}

/// What one end records.
pub(crate) struct Recorder {
    trace: Trace,
    whole: (Lane, Name),
    waits: Name,
    works: Name,
    answers: Name,
    /// Of the other end's members.
    lanes: Vec<Lane>,
}

impl Recorder {
    /// For an end whose other members are so many `others`.
    pub(crate) fn new(others: &str, count: usize) -> Self {
        let trace = Trace::new(TRACE_EVENTS_MAX, Arc::new(Monotonic));
        Self {
            whole: (trace.lane("requests"), trace.name("push_pull")),
            waits: trace.name("waits"),
            works: trace.name("is worked on"),
            answers: trace.name("is on its way and answered"),
            lanes: (0..count).map(|rank| trace.lane(&format!("{others} {rank}"))).collect(),
            trace,
        }
    }

    fn span(&self, lane: Lane, name: Name, (begun, ended): (u64, u64), number: u64) {
        let phase = Phase::Complete(Duration::from_nanos(ended.saturating_sub(begun)));
        self.trace.record(&Event { time: Time(begun), phase, name, lane, link: None, value: number });
    }

    /// A worker's request is done.
    pub(crate) fn request(&self, number: u64, stamps: &[Stamps]) {
        let Some(first) = stamps.first() else { return };
        self.span(self.whole.0, self.whole.1, (first.begun, first.ended), number);
        for (stamps, lane) in stamps.iter().zip(&self.lanes) {
            self.span(*lane, self.answers, (stamps.sent, stamps.answer_arrived), number);
        }
    }

    /// A server has answered: when the request arrived, was given out, and was answered.
    pub(crate) fn answer(&self, worker: usize, number: u64, [arrived, taken, answered]: [u64; 3]) {
        if let Some(lane) = self.lanes.get(worker) {
            self.span(*lane, self.waits, (arrived, taken), number);
            self.span(*lane, self.works, (taken, answered), number);
        }
    }

    /// Writes what was recorded so far.
    pub(crate) fn write(&self, me: &Member, path: &Path) -> Result<()> {
        let process = Process {
            pid: me.introduction.pid,
            name: me.introduction.name.clone(),
            clock_offset_ns: wall_clock_offset_ns(&Monotonic),
        };
        self.trace.export_to_file(&process, path)
    }
}

/// What an end without a recorder says.
pub(crate) fn none() -> Error {
    Error::new(ErrorKind::InvalidArgument, "this end records no trace").hint("open it with traces")
}
