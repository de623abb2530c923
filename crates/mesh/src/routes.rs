//! Which link leads to which node.
//!
//! Links are made when they are first needed. Both ends of a pair may do so at the same time; then there are two links,
//! and each end sends over the one that it knew first, so that what one node says to another stays in order. A link
//! that ends is forgotten; a node that has no link left gets a new one at the next need, if it is still a member.

use crate::awaited::Sort;
use crate::driver::Shared;
use crate::engine::Engine;
use crate::told::Told;
use parking_lot::Mutex;
use sheave_base::clock;
use sheave_base::collections::HashMap;
use sheave_base::limits::ENGINE_BACKLOG_BYTES_MAX;
use sheave_base::sync::Condvar;
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result, Tag, Work};
use sheave_net::{Address, Envelope, Outgoing};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Words that wait for a link to one node; more are forgotten, for engines repeat all that matters.
const BACKLOG_MAX: usize = 1024;

/// How long the news of a leave may take when the leaver's last link has been closed already, on which they stand.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(50);

/// A word of the engine on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineWord {
    /// Its endpoint.
    pub(crate) number: u8,
    pub(crate) bytes: Vec<u8>,
}

/// Words that wait for a link. More than these limits are forgotten.
#[derive(Default)]
struct Backlog {
    words: Vec<EngineWord>,
    bytes: usize,
}

impl Backlog {
    fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    fn push(&mut self, word: EngineWord) {
        if self.words.len() < BACKLOG_MAX && self.bytes + word.bytes.len() <= ENGINE_BACKLOG_BYTES_MAX {
            self.bytes += word.bytes.len();
            self.words.push(word);
        }
    }
}

#[derive(Default)]
struct Route {
    /// In the order in which they came to be; the first is used.
    links: SmallVec<[LinkId; 1]>,
    /// What ends when a link stands or cannot be made, while one is being made.
    making: Option<(Work<LinkId>, Completer<LinkId>)>,
    /// Words of the engine that wait for the link.
    backlog: Backlog,
}

impl Route {
    /// Whether nothing is known of it any more.
    fn is_idle(&self) -> bool {
        self.links.is_empty() && self.making.is_none() && self.backlog.is_empty()
    }
}

#[derive(Default)]
pub(crate) struct Routes {
    by_node: Mutex<HashMap<NodeId, Route>>,
    /// How often a link was made, somebody has gone, or this node began to stop.
    changes: Mutex<u64>,
    changed: Condvar,
}

impl Routes {
    /// The link to `node`, if there is one.
    pub(crate) fn get(&self, node: NodeId) -> Option<LinkId> {
        self.by_node.lock().get(&node)?.links.first().copied()
    }

    /// Nodes that have a link.
    pub(crate) fn linked(&self) -> Vec<NodeId> {
        self.by_node.lock().iter().filter(|(_, route)| !route.links.is_empty()).map(|(node, _)| *node).collect()
    }

    /// Links that are being made.
    pub(crate) fn making(&self) -> Vec<Work<LinkId>> {
        self.by_node.lock().values().filter_map(|route| route.making.as_ref()).map(|(work, _)| work.clone()).collect()
    }

    /// Whether a link to `node` is being made.
    pub(crate) fn is_making(&self, node: NodeId) -> bool {
        self.by_node.lock().get(&node).is_some_and(|route| route.making.is_some())
    }

    /// All links to `node`.
    pub(crate) fn all(&self, node: NodeId) -> SmallVec<[LinkId; 1]> {
        self.by_node.lock().get(&node).map(|route| route.links.clone()).unwrap_or_default()
    }

    /// A link stands. Returns the words that waited for it, and who waits for the link.
    fn made(&self, node: NodeId, link: LinkId) -> (Backlog, Option<Completer<LinkId>>) {
        let mut routes = self.by_node.lock();
        let route = routes.entry(node).or_default();
        if !route.links.contains(&link) {
            route.links.push(link);
        }
        (std::mem::take(&mut route.backlog), route.making.take().map(|(_, completer)| completer))
    }

    /// A link has ended. True if it was the last one to `node`.
    pub(crate) fn ended(&self, node: NodeId, link: LinkId) -> bool {
        let mut routes = self.by_node.lock();
        let Some(route) = routes.get_mut(&node) else { return false };
        let before = route.links.len();
        route.links.retain(|known| *known != link);
        let is_last = before > 0 && route.links.is_empty();
        if route.is_idle() {
            routes.remove(&node);
        }
        is_last
    }

    /// A link was made, somebody has gone, or this node is stopping: who waits for such a thing looks again.
    pub(crate) fn note_change(&self) {
        *self.changes.lock() += 1;
        self.changed.notify_all();
    }

    fn changes(&self) -> u64 {
        *self.changes.lock()
    }

    /// Waits until there are more changes than `seen`. False if there were none until the end.
    fn wait_for_change(&self, seen: u64, until: Instant) -> bool {
        let mut changes = self.changes.lock();
        while *changes == seen {
            let left = until.saturating_duration_since(clock::now());
            if left.is_zero() {
                return false;
            }
            self.changed.wait_for(&mut changes, left);
        }
        true
    }

    /// Nobody can be reached there: forgets what waited.
    fn failed(&self, node: NodeId) -> Option<Completer<LinkId>> {
        let mut routes = self.by_node.lock();
        let route = routes.get_mut(&node)?;
        route.backlog = Backlog::default();
        let completer = route.making.take().map(|(_, completer)| completer);
        if route.is_idle() {
            routes.remove(&node);
        }
        completer
    }
}

/// A member has listened, so nobody there means that it is gone.
fn gone(error: &Error) -> Error {
    Error::new(ErrorKind::PeerLost, error.what().to_owned()).hint("look at its output for its last words")
}

impl Shared {
    /// A link to `node`: the one that stands, or a work for the one that is being made from now on.
    pub(crate) fn link_to(self: &Arc<Self>, node: NodeId) -> Work<LinkId> {
        if let Some(outcome) = self.link_to_attached(node) {
            return Work::ready("connect", outcome);
        }
        let mut routes = self.routes.by_node.lock();
        let route = routes.entry(node).or_default();
        if let Some(link) = route.links.first() {
            return Work::ready("connect", Ok(*link));
        }
        if let Some((work, _)) = &route.making {
            return work.clone();
        }
        let (completer, work) = self.node.described("connect", None, self.awaited(Sort::Link, node.0));
        route.making = Some((work.clone(), completer));
        drop(routes);
        let shared = Arc::clone(self);
        if let Err(error) = sheave_base::thread::spawn("sheave-connect", move || shared.make_link(node)) {
            self.give_up(node, error.operation("connect"));
        }
        work
    }

    /// The one link that an attached node has; no other is ever made to it.
    pub(crate) fn link_to_attached(&self, node: NodeId) -> Option<Result<LinkId>> {
        let loss = || self.attached.loss(node).map(Err);
        self.attached.link_of(node).map(Ok).or_else(loss)
    }

    /// Connects, on a thread of its own, for as long as the node may be silent.
    fn make_link(self: &Arc<Self>, node: NodeId) {
        let address = match self.address_of(node) {
            Ok(address) => address,
            Err(error) => return self.give_up(node, error),
        };
        let outcome = loop {
            let (outcome, longest_pause) = self.connect_for_a_while(node, &address);
            // A job that is stopped as a whole goes on: the time of the stop was nobody's silence.
            if outcome.is_ok() || longest_pause <= self.node_config().liveness.timeout / 2 {
                break outcome;
            }
        };
        match outcome {
            // The node has told us of the link already; whoever waits for it learns of it there.
            Ok(_) => self.steer(),
            Err(error) if error.kind() == ErrorKind::NotFound && self.has_last_words(node) => self.steer(),
            Err(error) => {
                let error = if error.kind() == ErrorKind::NotFound { gone(&error) } else { self.explain(error) };
                let error = if error.about().is_some() { error } else { self.about(error, node) };
                self.give_up(node, error);
            }
        }
    }

    /// Connects, and says for how long at most this node has not looked meanwhile.
    fn connect_for_a_while(&self, node: NodeId, address: &Address) -> (Result<LinkId>, Duration) {
        let until = clock::now() + self.node_config().liveness.timeout;
        let (mut looked, mut longest_pause) = (clock::now(), Duration::ZERO);
        // Who has left may not know it yet, and wait for the word that is to go over this link.
        let mut interrupt = || {
            longest_pause = longest_pause.max(clock::since(looked));
            looked = clock::now();
            match self.death_of(node).filter(|_| !self.look(|engine| engine.has_left_in_order(node))) {
                Some(error) => Err(error),
                None if self.stopping.load(SeqCst) => Err(Error::new(ErrorKind::Closed, "the mesh was left")),
                None => Ok(()),
            }
        };
        let outcome = self.node.connect_known(address, until, Some(&mut interrupt));
        (outcome, longest_pause.max(clock::since(looked)))
    }

    /// A node that has left does not listen any more, and nor does one that has died. Which of both it was is decided
    /// by the coordinator, who has a link to it; a suspicion from here would turn a leave into a death. So the decision
    /// is given time; less if it is the coordinator itself that is not there, or if this node is the coordinator, to
    /// which a leaver comes by itself; and none if this node has left, which hears of no decision any more. True if the
    /// node has come to us, or is known to be gone.
    fn has_last_words(&self, node: NodeId) -> bool {
        let coordinator = self.look(Engine::coordinator);
        let others_decide = coordinator.is_none_or(|coordinator| coordinator != node && coordinator != self.me);
        let until = clock::now() + if others_decide { self.node_config().liveness.beat } else { LAST_WORDS };
        while !self.stopping.load(SeqCst) && !self.look(Engine::has_left) {
            // Counted before the look, so that no change falls between the look and the wait.
            let seen = self.routes.changes();
            if self.routes.get(node).is_some() {
                return true;
            }
            if let Some(error) = self.death_of(node) {
                self.give_up(node, error);
                return true;
            }
            if !self.routes.wait_for_change(seen, until) {
                return false;
            }
        }
        false
    }

    fn give_up(&self, node: NodeId, error: Error) {
        let completer = self.routes.failed(node);
        if !self.stopping.load(SeqCst) {
            self.tell(Told::Unreachable { node, reason: error.clone() });
            self.steer();
        }
        if let Some(completer) = completer {
            completer.complete(Err(error));
        }
    }

    /// A link stands: what waited for it goes out first. Called with the engine held, as [`Shared::say`] is, so that no
    /// word falls between the two.
    pub(crate) fn link_made(&self, node: NodeId, link: LinkId) {
        let (backlog, completer) = self.routes.made(node, link);
        self.routes.note_change();
        for word in backlog.words {
            self.utter(link, word);
        }
        if let Some(completer) = completer {
            completer.complete(Ok(link));
        }
    }

    /// Says a word of the engine to `to`, now or when there is a link.
    pub(crate) fn say(self: &Arc<Self>, to: NodeId, word: EngineWord) {
        if let Some(link) = self.routes.get(to) {
            return self.utter(link, word);
        }
        {
            let mut routes = self.routes.by_node.lock();
            routes.entry(to).or_default().backlog.push(word);
        }
        // The outcome reaches the engine either way.
        drop(self.link_to(to));
    }

    fn utter(&self, link: LinkId, word: EngineWord) {
        let envelope = Envelope::of(word.number, Tag(0), 0);
        // A link that has ended says so itself. On one that is full the word is lost; all that matter are repeated.
        let _ = self.node.isend(link, Outgoing::control(envelope, word.bytes));
    }

    fn address_of(&self, node: NodeId) -> Result<Address> {
        let member = self.member(node).ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("node {node} is not a member of the mesh")).operation("connect")
        })?;
        let mut address: Address = member.introduction.address.parse()?;
        address.node = node;
        Ok(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::ENGINE;

    /// Nodes come and go for as long as a mesh lives: what is known of one goes with its last link.
    #[test]
    fn f16_routes_to_nodes_that_are_gone_are_forgotten() {
        let routes = Routes::default();
        for number in 1..=1000_u32 {
            let (node, link) = (NodeId(number.into()), LinkId(number));
            let (backlog, completer) = routes.made(node, link);
            assert!(backlog.is_empty() && completer.is_none());
            assert!(routes.ended(node, link), "it was the last");
            let unreachable = NodeId(u64::from(number) << 32);
            routes
                .by_node
                .lock()
                .entry(unreachable)
                .or_default()
                .backlog
                .push(EngineWord { number: ENGINE, bytes: vec![1] });
            assert!(routes.failed(unreachable).is_none(), "nobody waited");
        }
        assert_eq!(routes.by_node.lock().len(), 0);
    }

    /// What waits for a link is bounded in bytes as well as in number.
    #[test]
    fn f15_words_that_wait_for_a_link_are_bounded_in_bytes_and_in_number() {
        for (bytes, expected) in [(1 << 20, ENGINE_BACKLOG_BYTES_MAX >> 20), (8, BACKLOG_MAX)] {
            let mut backlog = Backlog::default();
            (0..2 * BACKLOG_MAX).for_each(|_| backlog.push(EngineWord { number: ENGINE, bytes: vec![0; bytes] }));
            assert_eq!(backlog.words.len(), expected);
        }
    }
}
