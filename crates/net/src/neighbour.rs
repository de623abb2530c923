//! What nodes on one host can do for each other beside messages: see each other's memory, and ring.
//!
//! A service that works directly on its neighbours' memory, such as the collectives of one host, agrees with them by
//! messages or by words in shared memory who may touch what and when; this room only makes the memory visible. It tells
//! when nobody at the other end can touch memory any more, so that buffers are given back to their owners only then.
//!
//! Such a service waits for words that a neighbour writes, for which no link rings by itself: it is an
//! [endpoint](crate::endpoint) that is polled.

use crate::entry::Entry;
use crate::link::Medium;
use crate::node::{Inner, Node};
use crate::patience::{Course, WaitPolicy};
use sheave_base::{LinkId, Result};
use sheave_tensor::{Segment, SegmentId};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A node of this host, at the other end of a link.
#[derive(Clone)]
pub struct Neighbour {
    node: Weak<Inner>,
    entry: Arc<Entry>,
}

impl Neighbour {
    /// Whether it lives in this process, so that an address means the same for both.
    #[must_use]
    pub fn shares_process(&self) -> bool {
        self.entry.link.medium() == Medium::InProcess
    }

    /// Shows it a segment of shared memory. False when that cannot be done now and should be tried again. Showing one
    /// again costs little. Never blocks.
    ///
    /// # Errors
    ///
    /// Why the link is over.
    pub fn introduce(&self, segment: &Arc<Segment>) -> Result<bool> {
        self.entry.link.introduce(segment)
    }

    /// A segment that it has shown, mapped here; none if it has not, or not yet. Never blocks.
    #[must_use]
    pub fn segment(&self, id: SegmentId) -> Option<Arc<Segment>> {
        if let Some(segment) = self.entry.link.shown(id) {
            return Some(segment);
        }
        // Two nodes that linked to each other at the same time have two links, and each may use its own.
        let (node, peer) = (self.node.upgrade()?, self.entry.link.peer().node?);
        let links = node.links.all();
        links.iter().filter(|other| other.link.peer().node == Some(peer)).find_map(|other| other.link.shown(id))
    }

    /// Wakes its waiting threads, or its progress thread, so that they poll the endpoint that is polled.
    pub fn ring(&self) {
        self.entry.link.ring();
    }

    /// True once its process has ended, so that nothing of it can touch memory any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.entry.link.is_peer_gone()
    }
}

impl std::fmt::Debug for Neighbour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Neighbour").field(self.entry.link.peer()).finish()
    }
}

impl Node {
    /// How long its threads poll at most before they sleep.
    #[must_use]
    pub fn wait_policy(&self) -> WaitPolicy {
        self.inner.patience.most()
    }

    /// Begins to poll for something, as this node's waits do it.
    #[must_use]
    pub fn poll_for(&self) -> Course<'_> {
        self.inner.patience.begin()
    }

    /// The longest that a wait keeps its core.
    #[must_use]
    pub fn spin_most(&self) -> Duration {
        self.inner.patience.most_spin()
    }

    /// Whether waits keep their core at all, which they do not where ranks outnumber the cores.
    #[must_use]
    pub fn keeps_cores(&self) -> bool {
        self.inner.patience.may_keep()
    }

    /// Gives the core of the calling thread to whoever wants it, unless strangers are there who would keep it.
    pub fn give_way(&self) {
        self.inner.patience.give_way();
    }

    /// The peer of a link, if it lives on this host and shares memory with this node.
    ///
    /// # Errors
    ///
    /// Why the link is over, if it is.
    pub fn neighbour(&self, link: LinkId) -> Result<Option<Neighbour>> {
        let entry = self.inner.entry(link)?;
        Ok(entry.link.is_neighbourly().then(|| Neighbour { node: self.inner.weak.clone(), entry }))
    }
}
