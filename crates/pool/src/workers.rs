//! The workers of a pool, for whoever starts them.

use crate::pool::{Settings, Shared, Tasker};
use crate::turn::Turn;
use sheave_base::{Error, NodeId, Result};
use sheave_mesh::{AttachedGuest, Mesh};
use std::sync::Arc;

/// The workers of a pool, for whoever starts them as guests of a node and knows how they end, as a
/// [`Pool`](crate::Pool) does with its processes. A handle, cheap to clone.
///
/// A worker is hired when it is a guest and ready. When the node loses it, the pool hears so itself; tasks that it had
/// begun wait from then on until [`Workers::ended`] says how it ended.
#[derive(Clone)]
pub struct Workers {
    shared: Arc<Shared>,
}

impl Workers {
    /// A pool of this node with so many slots, in which nobody is.
    ///
    /// # Errors
    ///
    /// Whatever ended this node's membership.
    pub fn new(mesh: &Mesh, slots: usize, settings: Settings) -> Result<Self> {
        Shared::new(mesh, slots, settings).map(|shared| Self { shared })
    }

    /// Submits tasks to them.
    #[must_use]
    pub fn tasker(&self) -> Tasker {
        Tasker { shared: Arc::clone(&self.shared) }
    }

    /// A worker has come to a slot, in place of the one before it. `turn` is what it shares with this process.
    ///
    /// # Errors
    ///
    /// `PeerLost` if it is gone again, `Closed` once the node has left.
    pub fn hire(&self, slot: usize, guest: &AttachedGuest, turn: Turn) -> Result<()> {
        self.shared.hire(slot, guest, turn)
    }

    /// The process of a worker has ended so, which is the error of tasks that it had begun. The node has lost it
    /// before, or loses it later.
    pub fn ended(&self, node: NodeId, error: &Error) {
        self.shared.ended(node, error);
    }

    /// Fails all tasks by this error, and those that are submitted from now on.
    pub fn break_by(&self, error: &Error) {
        self.shared.break_by(error);
    }

    /// Has this done, once, when nothing is done any more: now, if that is so already. It must not block.
    pub fn when_broken(&self, then: impl FnOnce() + Send + 'static) {
        self.shared.when_broken(then);
    }

    /// Hears nothing of workers any more. All tasks have ended.
    pub fn end(&self) {
        self.shared.end();
    }
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers").finish_non_exhaustive()
    }
}
