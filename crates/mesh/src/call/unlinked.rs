//! Requests to a node to which there is no link yet.
//!
//! A call does not wait for its link. The first one to a node begins to make it, and until it stands requests are kept
//! in the windows that they will go through: so each keeps its place, and what comes later stays behind it. When the
//! link stands the windows become its windows; when it cannot be made, all that they keep fails with the reason.
//!
//! **Nothing is left behind.** A request is kept, and the windows are taken, under one lock. Whoever keeps the first
//! one for a node begins what takes them, and that is told once, when the making of the link has ended. Requests of
//! calls that have ended meanwhile, by their deadline or a cancellation, go nowhere, as those that wait for room. A
//! node that leaves begins no such thing any more, and ends itself what one that ended with it has left.

use super::name::Text;
use super::window::{Ended, Leaving, Size, Window};
use crate::driver::Shared;
use parking_lot::Mutex;
use sheave_base::collections::HashMap;
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A service's number, and the window of its requests.
type OfService = (u64, Arc<Mutex<Window>>);

/// The windows that wait for the first link to their node.
#[derive(Default)]
pub(super) struct Unlinked {
    by_node: Mutex<HashMap<NodeId, Vec<OfService>>>,
    /// How many nodes there are in it, for those who only ask whether it is empty.
    nodes: AtomicUsize,
}

impl Unlinked {
    /// Whether requests to that node wait for its link.
    fn keeps_for(&self, to: NodeId) -> bool {
        self.nodes.load(SeqCst) > 0 && self.by_node.lock().contains_key(&to)
    }

    /// The window of requests to that service that waits.
    pub(super) fn find(&self, to: NodeId, service: u64) -> Option<Arc<Mutex<Window>>> {
        if self.nodes.load(SeqCst) == 0 {
            return None;
        }
        let by_node = self.by_node.lock();
        by_node.get(&to)?.iter().find(|(number, _)| *number == service).map(|(_, window)| Arc::clone(window))
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Arc<Mutex<Window>>> {
        self.by_node.lock().values().flatten().map(|(_, window)| Arc::clone(window)).collect()
    }

    /// Keeps a request. True if it is the first one to its node.
    fn keep(&self, request: Leaving) -> Result<bool> {
        let (to, service) = (request.to, request.message.envelope.context);
        let mut by_node = self.by_node.lock();
        let is_first = !by_node.contains_key(&to);
        let windows = by_node.entry(to).or_default();
        let known = windows.iter().find(|(number, _)| *number == service);
        let window = known.map_or_else(|| Arc::new(Mutex::new(Window::unlinked(to))), |(_, window)| Arc::clone(window));
        if known.is_none() {
            windows.push((service, Arc::clone(&window)));
        }
        // A window that is empty has room for one.
        window.lock().keep(request)?;
        if is_first {
            self.nodes.fetch_add(1, SeqCst);
        }
        Ok(is_first)
    }

    /// Takes the windows of a node out, and lets `then` see them before anybody finds that they are gone.
    fn take<T>(&self, to: NodeId, then: impl FnOnce(Vec<OfService>) -> T) -> T {
        let mut by_node = self.by_node.lock();
        let taken = by_node.remove(&to);
        let nodes = usize::from(taken.is_some());
        let then = then(taken.unwrap_or_default());
        // Not before: who finds none sends over the link at once, and would be ahead of what was kept.
        self.nodes.fetch_sub(nodes, SeqCst);
        then
    }
}

impl Shared {
    /// The link that a call goes over, if there is one.
    pub(super) fn link_for(&self, to: NodeId, method: &Text) -> Result<Option<LinkId>> {
        let named = |error: Error| error.operation(method.to_cow());
        if let Some(error) = self.failure() {
            return Err(named(error.clone()));
        }
        if to == self.me {
            return Ok(Some(super::HERE));
        }
        if self.calls.windows.unlinked.keeps_for(to) {
            return Ok(None);
        }
        if let Some(link) = self.routes.get(to) {
            return Ok(Some(link));
        }
        if let Some(attached) = self.link_to_attached(to) {
            return attached.map(Some).map_err(named);
        }
        // Nobody makes a link to a node that is known to be gone.
        match self.death_of(to) {
            Some(error) => Err(named(error)),
            None if self.member(to).is_none() => {
                Err(named(Error::new(ErrorKind::NotFound, format!("node {to} is not a member of the mesh"))))
            }
            None => Ok(None),
        }
    }

    /// Keeps a request until there is a link, and begins to make it.
    pub(super) fn wait_for_link(self: &Arc<Self>, request: Leaving) -> Result<()> {
        let (to, message) = (request.to, self.captured(request.message)?);
        let windows = &self.calls.windows;
        // Before somebody can send it.
        windows.more();
        let kept = windows.unlinked.keep(Leaving { message, ..request });
        match &kept {
            Ok(true) => self.begin_link(to),
            Ok(false) => {}
            Err(_) => windows.fewer(1),
        }
        kept.map(drop)
    }

    fn begin_link(self: &Arc<Self>, to: NodeId) {
        let (linking, weak) = (self.link_to(to), self.weak());
        // Links are made with the engine held, and calls end with nothing held.
        let task = self.runtime.prepare(async move {
            let outcome = linking.await;
            if let Some(shared) = weak.upgrade() {
                shared.linked(to, outcome);
            }
        });
        match task {
            Ok(task) => {
                task.run();
                task.detach();
            }
            Err(error) => self.linked(to, Err(error)),
        }
    }

    /// The making of the link has ended so.
    fn linked(self: &Arc<Self>, to: NodeId, outcome: Result<LinkId>) {
        match outcome {
            Ok(link) => self.send_unlinked(to, link),
            Err(error) => self.fail_unlinked(to, &self.death_of(to).unwrap_or(error)),
        }
    }

    fn send_unlinked(self: &Arc<Self>, to: NodeId, link: LinkId) {
        self.words_ride(to);
        let size = self.attached.speaks(to, link).map(|_| Size::of_guests());
        let windows = &self.calls.windows;
        let adopt = |taken: Vec<OfService>| {
            // Before anybody sends them, or their answers would come over another link than theirs.
            taken.iter().for_each(|(_, window)| self.calls.over_link(&window.lock().waiting_numbers(), link));
            windows.adopt(link, size, taken)
        };
        let (windows, rooms) = windows.unlinked.take(to, adopt);
        self.calls.windows.end_rooms(rooms, &Ok(()));
        windows.iter().for_each(|window| self.send_waiting(link, window));
        // What has ended with the link may have been before it had these windows.
        if let Err(error) = self.node.link(link) {
            self.ended(link, &error);
        }
    }

    /// This node has left the mesh, and with its tasks has ended what waits for links.
    pub(crate) fn end_unlinked(&self, error: &Error) {
        let nodes: Vec<NodeId> = self.calls.windows.unlinked.by_node.lock().keys().copied().collect();
        nodes.into_iter().for_each(|node| self.fail_unlinked(node, error));
    }

    fn fail_unlinked(&self, to: NodeId, error: &Error) {
        let mut ended = Ended::default();
        self.calls.windows.unlinked.take(to, |taken| taken.iter().for_each(|(_, window)| ended.add(window)));
        let numbers: Vec<u64> = ended.numbers().collect();
        self.end_kept(ended, error);
        let calls = numbers.into_iter().filter_map(|number| self.calls.take(number));
        calls.for_each(|call| call.end(error.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Refs;
    use sheave_base::Tag;
    use sheave_net::{Envelope, Outgoing};

    /// Whoever finds no window of its node here sends over the node's link: before all that was kept, were the window
    /// not there yet.
    #[test]
    fn who_asks_while_windows_are_taken_waits_until_they_are_those_of_the_link() {
        let (unlinked, to) = (Unlinked::default(), NodeId(1));
        let message = Outgoing::control(Envelope::of(3, Tag(1), 1), Vec::new());
        let request = Leaving { to, message, until: None, runs_anyway: true, refs: Refs::new(), one_way: None };
        assert!(unlinked.keep(request).expect("there is room") && unlinked.keeps_for(to));
        let taken = unlinked.take(to, |taken| {
            assert!(unlinked.by_node.is_locked() && unlinked.nodes.load(SeqCst) > 0, "nobody asks the lock");
            taken.len()
        });
        assert!(taken == 1 && !unlinked.keeps_for(to));
        assert_eq!(unlinked.take(to, |taken| taken.len()), 0);
        assert_eq!(unlinked.nodes.load(SeqCst), 0);
    }
}
