//! Where the handlers of a service run.

use super::executor::Pace;
use sheave_base::limits;
use std::time::Duration;

/// Where the handlers of a service run, and how many at a time.
///
/// Each service has lanes of its own: one whose handlers are slow, or wait, keeps no other from its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// On the thread that finds the request, one at a time of all such services of a node, and in the order of each
    /// link. Handlers must not block and must not wait for other calls.
    Inline,
    /// On threads of the node, one at a time of each mailbox ([`crate::Service::mailbox`]) and in the order in which
    /// each caller has sent them. A handler that waits keeps its mailbox.
    Serial,
    /// On the one thread that works for the service ([`Mesh::work`](crate::Mesh::work)), one at a time and in the order
    /// in which each caller has sent them: for libraries that keep something for each thread. They wait until there is
    /// such a thread.
    Own,
    /// On threads of the node, as many at a time as this number says, at least one, and those that wait not counted;
    /// begun in the order in which each caller has sent them.
    Concurrent(usize),
}

impl Lane {
    /// Handlers that may run at the same time, those that wait not counted.
    fn permits(self) -> usize {
        match self {
            Self::Concurrent(permits) => permits.clamp(1, limits::LANE_THREADS_MAX),
            Self::Inline | Self::Serial | Self::Own => limits::LANE_PERMITS,
        }
    }

    pub(super) fn pace(self, patience: Duration) -> Pace {
        Pace { permits: self.permits(), patience, is_own: self == Self::Own }
    }
}

impl Default for Lane {
    fn default() -> Self {
        Self::Concurrent(limits::LANE_PERMITS)
    }
}
