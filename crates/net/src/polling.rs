//! The links that a thread polls while it waits.
//!
//! They count it as a poller, so that nobody arms them ([`crate::progress`]). It may come to sleep all the same, in a
//! wait of something that a poll has found: [`Aside`] has what holds then.

use crate::endpoint::Endpoint;
use crate::entry::Entry;
use crate::node::Inner;
use sheave_base::LinkId;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

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
    /// Scopes of the waits of this thread that poll, with the addresses of their nodes; the last is the innermost.
    static POLLED: RefCell<Vec<(usize, Scope)>> = const { RefCell::new(Vec::new()) };
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
        POLLED.with_borrow_mut(|all| all.push((self.inner.address(), self.scope.clone())));
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
        let of_node = |(node, _): &(usize, Scope)| *node == self.inner.address();
        let own = POLLED.with_borrow_mut(|all| all.iter().rposition(of_node).map(|at| all.remove(at)));
        self.scope.leave(self.inner);
        self.scope.settle(self.inner);
        drop(own);
    }
}

/// The waits of this thread that poll, put aside while it sleeps in one more of the same node.
///
/// What a poll finds, a task for example, may wait too. While that sleeps, nobody polls what the waits around it count
/// as polled: it must be armed, or left to whoever leads.
pub(crate) struct Aside<'a> {
    inner: &'a Inner,
    scopes: Vec<(usize, Scope)>,
}

impl<'a> Aside<'a> {
    pub(crate) fn begin(inner: &'a Inner) -> Self {
        let scopes = POLLED.with_borrow_mut(|all| all.extract_if(.., |(node, _)| *node == inner.address()).collect());
        let aside = Self { inner, scopes };
        aside.scopes.iter().for_each(|(_, scope)| scope.leave(inner));
        aside.scopes.iter().for_each(|(_, scope)| scope.settle(inner));
        aside
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        self.scopes.iter().for_each(|(_, scope)| scope.enter(self.inner));
        POLLED.with_borrow_mut(|all| all.append(&mut self.scopes));
    }
}
