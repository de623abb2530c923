//! Workers that have died, as the controller knows of them.

use parking_lot::Mutex;
use sheave_base::collections::HashMap;
use sheave_base::{Error, NodeId};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// The dead, and which of them nobody was told of.
#[derive(Default)]
pub(crate) struct Lost {
    deaths: Mutex<HashMap<NodeId, Death>>,
    /// There are some.
    is_any: AtomicBool,
}

struct Death {
    error: Error,
    is_told: bool,
}

impl Lost {
    /// A worker is gone; what was noted first counts.
    pub(crate) fn note(&self, node: NodeId, error: &Error) {
        self.deaths.lock().entry(node).or_insert_with(|| Death { error: error.clone(), is_told: false });
        self.is_any.store(true, SeqCst);
    }

    /// Why a worker is gone, if it is: whoever asks is told.
    pub(crate) fn of(&self, node: NodeId) -> Option<Error> {
        let mut lost = self.deaths.lock();
        let death = lost.get_mut(&node)?;
        death.is_told = true;
        Some(death.error.clone())
    }

    /// Whether any is gone.
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(SeqCst)
    }

    /// Whether a worker is gone.
    pub(crate) fn has(&self, node: NodeId) -> bool {
        self.is_any() && self.deaths.lock().contains_key(&node)
    }

    /// Whether a worker is gone, and nobody was told.
    pub(crate) fn is_untold(&self, node: NodeId) -> bool {
        self.deaths.lock().get(&node).is_some_and(|death| !death.is_told)
    }
}
