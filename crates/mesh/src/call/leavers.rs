//! When services hear that a member has left in order: not before they have had all that it said.
//!
//! The news of a leave come from whoever decided it, while what the leaver has sent to this node may still be on the
//! leaver's own link, or wait here for its turn. A service that heard of the leave first would hold against the leaver
//! what it has long said: that it is done, say. So the news wait for the end of the leaver's links, and then for their
//! turn behind the requests that were taken off them.
//!
//! **Order.** A link is said to have ended only when everything that came over it was taken, in order, under its poll
//! token; and what is taken goes into the queue of requests at once. So news that are queued at the end of the link
//! stand behind all requests of the leaver. Whoever serves the queue takes one thing after the other, hence an inline
//! service has handled them all when it hears the news; for any other service they were handed to its lane, which
//! runs them in no order anyway, and whose handlers may wait for just these news.
//!
//! **Not lost, and told once.** A leaver is noted before the node's table of links is looked at; the end of a link is
//! told after the link was taken out of that table, and looks for a note then. So whichever comes second finds what the
//! first has left, and the note is taken out by one of them alone. Without a link the news are queued at once.
//!
//! **Not delayed for ever.** Nobody watches a leaver any more, but its links end all the same: a leaver closes them as
//! soon as it knows that it has left, or has run out of patience; the system closes them if its process ends; and a
//! node ends a link that shows no sign of life. A link that must wait for room is read on when handlers return.
//!
//! **Links that are not known yet.** In its last moment the leaver may have got a link that this node's table does not
//! have yet. If the leaver has made it, its handshake is under way here, because the leaver has had this node's last
//! word of it; if this node makes it, it has not read the leaver's last word yet. So the news wait until no handshake
//! is at that point, and until this node makes no link to the leaver.
//!
//! What goes beyond this: a link that this node has cut itself, because the leaver looked dead before it was agreed
//! that it had left, is not read to its end.
//!
//! Whoever waits for messages of a leaver asks [`Leavers::have_said_all`]: from then on none will come.

use super::serving::Queued;
use crate::driver::Shared;
use parking_lot::Mutex;
use sheave_base::clock::Clock;
use sheave_base::{Error, LinkId, NodeId};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// How soon it is looked again whether a handshake that may be a leaver's is over.
pub(crate) const HANDSHAKE_LOOK: Duration = Duration::from_millis(1);

/// Members that have left.
#[derive(Default)]
pub(crate) struct Leavers {
    /// Those who may still have something to say here, and what their services will be told.
    waiting: Mutex<Vec<(NodeId, Error)>>,
    /// The others.
    silent: Mutex<Vec<NodeId>>,
}

impl Leavers {
    fn note(&self, node: NodeId, error: Error) {
        self.waiting.lock().push((node, error));
    }

    fn has(&self, node: NodeId) -> bool {
        self.waiting.lock().iter().any(|(leaver, _)| *leaver == node)
    }

    fn take(&self, node: NodeId) -> Option<(NodeId, Error)> {
        let mut leavers = self.waiting.lock();
        let at = leavers.iter().position(|(leaver, _)| *leaver == node)?;
        let taken = leavers.swap_remove(at);
        self.silent.lock().push(node);
        Some(taken)
    }

    /// Whether this member has left, and everything that it sent to this node has been taken off its links.
    pub(crate) fn have_said_all(&self, node: NodeId) -> bool {
        self.silent.lock().contains(&node)
    }
}

impl Shared {
    /// It is agreed that these members have left in order. May run handlers.
    pub(crate) fn have_left(self: &Arc<Self>, nodes: Vec<NodeId>) {
        if nodes.is_empty() {
            return;
        }
        for node in nodes {
            if let Some(error) = self.death_of(node) {
                self.calls.leavers.note(node, error);
                self.queue_news_of(node);
            }
        }
        self.serve();
    }

    /// A link to `node` has ended, and is not in the node's table any more.
    pub(crate) fn has_said_all(&self, node: NodeId) {
        if self.calls.leavers.has(node) {
            self.queue_news_of(node);
        }
    }

    /// Looks again at leavers for which a handshake was waited. Services are told by whoever serves next.
    pub(crate) fn look_at_leavers(&self) -> bool {
        let waiting: Vec<NodeId> = self.calls.leavers.waiting.lock().iter().map(|(node, _)| *node).collect();
        waiting.into_iter().filter(|node| self.queue_news_of(*node)).count() > 0
    }

    /// Queues what is to be told of a leaver, unless a link to it still stands or may be about to.
    fn queue_news_of(&self, node: NodeId) -> bool {
        // Before the table of links is looked at: a handshake that is over is a link in it.
        if self.node.is_greeting() || self.routes.is_making(node) {
            self.ticker.ring_at(self.clock().now().after(HANDSHAKE_LOOK));
            return false;
        }
        let leads_there = |link: LinkId| self.node.link(link).is_ok_and(|link| self.node_of(link.peer()) == node);
        // After the end of this node's own membership services are told nothing.
        if self.stopping.load(SeqCst) || self.node.links().into_iter().any(leads_there) {
            return false;
        }
        let Some((node, error)) = self.calls.leavers.take(node) else { return false };
        self.calls.requests.push(Queued::Leave(node, error));
        self.note_news();
        true
    }
}
