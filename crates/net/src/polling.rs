//! The links that a thread polls while it waits.
//!
//! They count it as a poller, so that nobody arms them ([`crate::progress`]). It may come to sleep all the same, in a
//! wait of something that a poll has found: [`Aside`] has what holds then.

use crate::drive::{Polls, take_lead};
use crate::endpoint::Endpoint;
use crate::entry::Entry;
use crate::node::Inner;
use sheave_base::LinkId;
use std::any::Any;
use std::cell::RefCell;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};

/// The links that a wait polls, and the endpoint.
#[derive(Clone)]
struct Scope {
    /// All links, unless one link is waited for.
    all: Option<Arc<Vec<Arc<Entry>>>>,
    one: Option<Arc<Entry>>,
    /// The endpoint that is polled, unless one link is waited for.
    endpoint: Option<Arc<dyn Endpoint>>,
}

impl Scope {
    fn entries(&self) -> &[Arc<Entry>] {
        self.one.as_ref().map_or_else(|| self.all.as_ref().map_or(&[], |all| all.as_slice()), std::slice::from_ref)
    }

    /// A thread polls it from now on, until it [leaves](Scope::leave) it.
    fn enter(&self, inner: &Inner) {
        for entry in self.entries() {
            entry.pollers.fetch_add(1, SeqCst);
            entry.link.disarm();
        }
        if let Some(endpoint) = &self.endpoint {
            inner.endpoints.enter(&**endpoint);
        }
    }

    /// It does so no more; [`Scope::settle`] is to follow.
    fn leave(&self, inner: &Inner) {
        for entry in self.entries() {
            entry.pollers.fetch_sub(1, SeqCst);
        }
        if self.endpoint.is_some() {
            inner.endpoints.leave();
        }
    }

    /// Leaves all of it as a sleeping leader expects it. That polls, and so may wait.
    fn settle(&self, inner: &Inner) {
        for entry in self.entries() {
            inner.settle(entry);
        }
        if let Some(endpoint) = &self.endpoint {
            inner.settle_endpoint(&**endpoint);
        }
    }
}

thread_local! {
    /// Scopes of the waits of this thread that poll, with their nodes; the last is the innermost.
    static POLLED: RefCell<Vec<(Weak<Inner>, Scope)>> = const { RefCell::new(Vec::new()) };
}

/// A wait that polls; it counts as a poller of each link while it lives.
pub(crate) struct Polling<'a> {
    inner: &'a Inner,
    scope: Scope,
    /// Leaves links to the other threads that poll them.
    yields: bool,
}

impl<'a> Polling<'a> {
    pub(crate) fn begin(inner: &'a Inner, link: Option<LinkId>) -> Self {
        let one = link.and_then(|link| inner.links.told(link).ok());
        let all = if link.is_some() { None } else { Some(inner.links.all()) };
        let endpoint = if link.is_some() { None } else { inner.endpoints.polled() };
        Self { inner, scope: Scope { all, one, endpoint }, yields: false }.count()
    }

    /// The polling of a leader that was woken: of whatever nobody else polls.
    pub(crate) fn lead(inner: &'a Inner) -> Self {
        let scope = Scope { all: Some(inner.links.all()), one: None, endpoint: inner.endpoints.polled() };
        Self { inner, scope, yields: true }.count()
    }

    fn count(self) -> Self {
        self.scope.enter(self.inner);
        POLLED.with_borrow_mut(|all| all.push((Weak::clone(&self.inner.weak), self.scope.clone())));
        self
    }

    pub(crate) fn is_ours(&self, entry: &Entry) -> bool {
        !self.yields || entry.pollers.load(Relaxed) == 1
    }

    /// The link that is polled, if it is the only thing.
    pub(crate) fn only(&self) -> Option<&Entry> {
        match self.entries() {
            [entry] if self.scope.endpoint.is_none() && self.is_ours(entry) => Some(entry),
            _ => None,
        }
    }

    /// Polls the endpoint, if it is waited for.
    pub(crate) fn poll_endpoint(&self) -> bool {
        self.scope.endpoint.as_ref().is_some_and(|endpoint| endpoint.poll())
    }

    pub(crate) fn entries(&self) -> &[Arc<Entry>] {
        self.scope.entries()
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        // Taken out before anything is told to go on: that may wait, and poll, on this thread.
        let of_node = |(node, _): &(Weak<Inner>, Scope)| self.inner.is_behind(node);
        let own = POLLED.with_borrow_mut(|all| all.iter().rposition(of_node).map(|at| all.remove(at)));
        self.scope.leave(self.inner);
        self.scope.settle(self.inner);
        drop(own);
    }
}

/// What a thread does for its nodes while it waits, put aside while it sleeps in one more wait: for a work of the same
/// node, of another one or of none.
///
/// What a poll finds, a task for example, may wait too. While that sleeps, nobody polls what the waits around it count
/// as polled: it must be armed, or left to whoever leads. Nor does this thread lead any node but the one that it sleeps
/// for, which it may come to lead anew; and what endpoints of those links expect it to attend to right after its poll
/// is left to others.
struct Aside {
    scopes: Vec<(Arc<Inner>, Scope)>,
    polls: Polls,
}

/// Puts aside what this thread does for its nodes, until what is returned is dropped; called before each sleep in a
/// wait. The lead stays given up: the wait that had it takes it anew, or follows.
pub(crate) fn put_aside() -> Option<Box<dyn Any>> {
    // A thread that ends has no such list any more, and polls nothing. The list keeps its memory for the next poll.
    let polled: Vec<_> = POLLED.try_with(|all| all.borrow_mut().drain(..).collect()).unwrap_or_default();
    // In a forked child nobody polls its parent's links.
    let known = |node: Weak<Inner>| node.upgrade().filter(|inner| !inner.fork.is_stale());
    let scopes = polled.into_iter().filter_map(|(node, scope)| Some((known(node)?, scope))).collect();
    let aside = Aside { scopes, polls: Polls::pause() };
    aside.scopes.iter().for_each(|(inner, scope)| scope.leave(inner));
    if let Some(inner) = take_lead() {
        inner.progress.step_down();
    }
    for (inner, scope) in &aside.scopes {
        scope.settle(inner);
        inner.leave_due();
    }
    // Not every poll is one of a wait.
    if let Some(inner) = aside.polls.paused().filter(|inner| !inner.fork.is_stale()) {
        inner.leave_due();
    }
    let is_something = !aside.scopes.is_empty() || aside.polls.is_pause_of_one();
    is_something.then(|| Box::new(aside) as Box<dyn Any>)
}

impl Drop for Aside {
    fn drop(&mut self) {
        if self.scopes.is_empty() {
            // As on a thread that ends, whose list is gone.
            return;
        }
        self.scopes.iter().for_each(|(inner, scope)| scope.enter(inner));
        let scopes = self.scopes.drain(..).map(|(inner, scope)| (Weak::clone(&inner.weak), scope));
        POLLED.with_borrow_mut(|all| all.extend(scopes));
    }
}
