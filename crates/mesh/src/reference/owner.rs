//! Promises as their owner sees them.
//!
//! **An entry begins** with the first that is heard of a name: from the node that drew it, or from any member that was
//! given it by then. The drawer is counted once, when it has itself said something of the name for the first time (it
//! is *announced*); whoever else brings the name is counted by its own words, as everywhere. An entry of which its
//! drawer has said nothing knows nothing but who holds it, so it is forgotten with its last holder, and begins anew
//! with the next. Once announced it never begins again: what comes later means an object that was freed.
//!
//! **It is settled** once: filled by the request that its drawer has sent for that, or poisoned. That is by the same
//! request where it ends without filling it; by the drawer, where the request could not be sent or is given up; by the
//! drawer's last release, where there was no request; by the drawer's end.

use super::holders::Holders;
use super::name::{Mention, Name};
use super::promise::{Asking, Drawn, given_up, not_the_owner};
use super::table::{References, Tables, full, not_found};
use super::wait::Wait;
use super::words::{Cause, Word};
use super::{Hold, Kept, Object, Ref, keep};
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, NodeId, Result};
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};

/// An object of this node.
pub(super) struct Owned {
    pub(super) content: Content,
    pub(super) own: Weak<Hold>,
    pub(super) holders: Holders,
    /// Where this node has promised it to itself, and holds it.
    pub(super) drawn: Option<Drawn>,
}

pub(super) enum Content {
    There(Kept),
    Promised(Promised),
    Poisoned(Error),
}

#[derive(Default)]
pub(super) struct Promised {
    /// Whose limit it counts against: who has brought the name here, and its drawer once that has.
    pub(super) charged: NodeId,
    /// The request that is to fill it, once that has come.
    pub(super) asking: Option<Arc<Asking>>,
    pub(super) waits: Vec<Wait>,
}

impl Owned {
    pub(super) fn of(object: Kept, own: Weak<Hold>) -> Self {
        Self { content: Content::There(object), own, holders: Holders::default(), drawn: None }
    }

    pub(super) fn promised(charged: NodeId) -> Self {
        let content = Content::Promised(Promised { charged, ..Promised::default() });
        Self { content, own: Weak::new(), holders: Holders::default(), drawn: None }
    }

    /// The object, or why there will be none, once that is known.
    pub(super) fn settled(&self) -> Option<Result<Object>> {
        match &self.content {
            Content::There(object) => Some(Ok(Arc::clone(object))),
            Content::Promised(_) => None,
            Content::Poisoned(error) => Some(Err(error.clone())),
        }
    }

    pub(super) fn into_object(self) -> Option<Kept> {
        match self.content {
            Content::There(object) => Some(object),
            _ => None,
        }
    }

    /// Whether nobody needs it any more.
    pub(super) fn is_free(&self) -> bool {
        let is_awaited = matches!(&self.content, Content::Promised(promised) if !promised.waits.is_empty());
        self.own.strong_count() == 0 && self.holders.is_empty() && !is_awaited
    }

    pub(super) fn promise(&mut self) -> Option<&mut Promised> {
        match &mut self.content {
            Content::Promised(promised) => Some(promised),
            _ => None,
        }
    }
}

impl References {
    /// The member that has drawn this name, and which of its names it is, if it is a promise.
    pub(super) fn drawer(&self, name: Name) -> Option<(NodeId, u64)> {
        let (rank, count) = name.drawer()?;
        Some((self.members.get()?.at(rank)?, count))
    }

    fn is_drawn_by(&self, node: NodeId, name: Name) -> bool {
        self.drawer(name).is_some_and(|(drawer, _)| drawer == node)
    }

    /// `from` has sent a name of an object of this node, which is a handle to it.
    pub(super) fn adopt_own(
        self: &Arc<Self>,
        tables: &mut Tables,
        from: NodeId,
        mention: Mention,
        asking: Option<&Arc<Asking>>,
    ) -> Result<Ref> {
        let name = mention.name;
        let is_drawer = self.is_drawn_by(from, name);
        if is_drawer {
            self.announce(tables, name)?;
        }
        if !mention.fills {
            if name.drawer().is_none() {
                return self.find_in(tables, name);
            }
            return self.entry(tables, from, name).map(|owned| self.handle(owned, name));
        }
        if !is_drawer {
            let what = format!("{name} is not the caller's to have filled");
            return Err(Error::new(ErrorKind::NotPermitted, what).hint("only who has promised an object asks for it"));
        }
        let Some(asking) = asking else { return Err(not_the_owner()) };
        let owned = tables.owned.get_mut(&name.id).ok_or_else(|| not_found(name))?;
        match owned.content {
            Content::Promised(Promised { asking: ref mut free @ None, .. }) => {
                *free = Some(Arc::clone(asking));
                Ok(self.handle(owned, name))
            }
            Content::Poisoned(ref error) => Err(error.clone()),
            _ => Err(Error::new(ErrorKind::AlreadyExists, format!("another call was to fill {name} already"))),
        }
    }

    /// The drawer of this name has said something of it: it is counted, the first time.
    fn announce(&self, tables: &mut Tables, name: Name) -> Result<()> {
        let (drawer, count) = self.drawer(name).ok_or_else(|| not_found(name))?;
        if tables.is_deaf(drawer) {
            return Err(not_found(name));
        }
        let heard = tables.announced.entry(drawer).or_default();
        if !heard.follows(count) && heard.contains(count) {
            return Ok(());
        }
        // Gaps are names that were drawn and not used, of which there may be so many, and some that are on their way.
        if heard.ranges() > 2 * self.bounds.promised {
            return Err(full("gaps among the names of one member", 2 * self.bounds.promised, "use or drop promises"));
        }
        heard.insert(count);
        let (owned, is_new) = self.begin(tables, drawer, name, || Owned::promised(drawer))?;
        owned.holders.count(drawer, 1);
        if !is_new {
            tables.charge_drawer(name.id, drawer);
        }
        Ok(())
    }

    /// The entry of an object of this node; a new one, if it is a promise of which `by` is the first to say something.
    fn entry<'tables>(&self, tables: &'tables mut Tables, by: NodeId, name: Name) -> Result<&'tables mut Owned> {
        if !tables.owned.contains_key(&name.id) {
            let drawn = self.drawer(name).filter(|(drawer, _)| *drawer != self.me && !tables.is_deaf(*drawer));
            let (drawer, count) = drawn.ok_or_else(|| not_found(name))?;
            if tables.announced.get(&drawer).is_some_and(|heard| heard.contains(count)) {
                return Err(not_found(name));
            }
            return self.begin(tables, by, name, || Owned::promised(by)).map(|(owned, _)| owned);
        }
        tables.owned.get_mut(&name.id).ok_or_else(|| not_found(name))
    }

    /// The entry of a promise, and whether it begins now, as it is made.
    pub(super) fn begin<'tables>(
        &self,
        tables: &'tables mut Tables,
        by: NodeId,
        name: Name,
        make: impl FnOnce() -> Owned,
    ) -> Result<(&'tables mut Owned, bool)> {
        let count = tables.owned.len();
        let vacant = match tables.owned.entry(name.id) {
            Entry::Occupied(known) => return Ok((known.into_mut(), false)),
            Entry::Vacant(vacant) => vacant,
        };
        if count >= self.bounds.owned {
            return Err(full("exported objects", self.bounds.owned, "drop references that nobody needs"));
        }
        let unfilled = tables.unfilled.entry(by).or_default();
        if *unfilled >= self.bounds.promised {
            let what = "promises of one member that are not filled";
            return Err(full(what, self.bounds.promised, "wait for some before making more"));
        }
        *unfilled += 1;
        Ok((vacant.insert(make()), true))
    }

    /// `holder` has come by references that this node has not given to it.
    pub(super) fn count(&self, tables: &mut Tables, holder: NodeId, id: u64, times: u64) {
        if tables.is_deaf(holder) {
            return;
        }
        match self.entry(tables, holder, Name { owner: self.me, id }) {
            Ok(owned) => owned.holders.count(holder, times),
            Err(_) => tables.say(holder, Word::Gone { id }),
        }
    }

    /// `holder` gives counts back. Who has drawn a name and gives all back asks no more for it to be filled.
    pub(super) fn released(&self, tables: &mut Tables, holder: NodeId, id: u64, counts: u64) {
        let name = Name { owner: self.me, id };
        if self.is_drawn_by(holder, name) {
            // One that finds no room here is not there, and so is what it gives back.
            let _ = self.announce(tables, name);
            self.give_up(tables, name);
        }
        tables.uncount(id, holder, counts);
    }

    /// The drawer of a name, which is `from`, says that nothing will fill it.
    pub(super) fn broken(&self, tables: &mut Tables, from: NodeId, id: u64, cause: &Cause) {
        let name = Name { owner: self.me, id };
        if self.is_drawn_by(from, name) && self.announce(tables, name).is_ok() {
            // It may have been filled, or poisoned, by the request itself.
            let _ = tables.settle(name, &Err(cause.error(name)));
        }
    }

    /// Poisons a promise for which no request has come.
    fn give_up(&self, tables: &mut Tables, name: Name) {
        let is_asked = tables.owned.get_mut(&name.id).and_then(Owned::promise).is_none_or(|own| own.asking.is_some());
        if !is_asked {
            let _ = tables.settle(name, &Err(given_up(name)));
        }
    }

    /// This node has no handle to an object of its own any more.
    pub(super) fn own_promise_dropped(&self, tables: &mut Tables, name: Name) {
        // What it has been freed with was given back then.
        let left = tables.owned.get_mut(&name.id).filter(|owned| owned.own.strong_count() == 0);
        if let Some(drawn) = left.and_then(|owned| owned.drawn.take()) {
            tables.give_back(name.owner, &drawn);
            self.give_up(tables, name);
        }
    }

    /// The drawer of these promises is gone: those for which it has sent no request will not be filled.
    pub(super) fn promiser_lost(&self, tables: &mut Tables, drawer: NodeId, error: &Error) {
        let is_left = |id: &u64| self.is_drawn_by(drawer, Name { owner: self.me, id: *id });
        let unasked: Vec<u64> = tables.owned.keys().copied().filter(is_left).collect();
        for id in unasked {
            let name = Name { owner: self.me, id };
            let is_asked = tables.owned.get_mut(&id).and_then(Owned::promise).is_none_or(|own| own.asking.is_some());
            if !is_asked {
                let error = error.clone().context(format_args!("who was to send the call that fills {name} is gone"));
                let _ = tables.settle(name, &Err(error));
            }
        }
    }

    /// Fills or poisons a promise of this node. Its waits end on this thread.
    pub(super) fn settle(&self, name: Name, outcome: &Result<Object>) -> Result<()> {
        let mut tables = self.tables.lock();
        let settled = tables.settle(name, outcome);
        let garbage = std::mem::take(&mut tables.garbage);
        drop(tables);
        drop(garbage);
        settled
    }
}

impl Tables {
    /// Fills or poisons a promise. Whoever lets the tables go ends its waits.
    pub(super) fn settle(&mut self, name: Name, outcome: &Result<Object>) -> Result<()> {
        let owned = self.owned.get_mut(&name.id).ok_or_else(|| not_found(name))?;
        let promised = match &mut owned.content {
            Content::Promised(promised) => std::mem::take(promised),
            Content::There(_) if planted::strikes(Bug::PromiseTwice) => Promised::default(),
            Content::There(_) => return Err(Error::new(ErrorKind::AlreadyExists, format!("{name} is filled already"))),
            Content::Poisoned(error) => return Err(error.clone()),
        };
        owned.content = match outcome {
            Ok(object) => Content::There(keep(Arc::clone(object))),
            Err(error) => Content::Poisoned(error.clone()),
        };
        if let Some(own) = owned.own.upgrade() {
            // Set once: a hold that is made later finds the outcome in the table.
            drop(own.object.set(outcome.clone().map(keep)));
            self.garbage.refs.push(Ref(own));
        }
        let is_free = owned.is_free();
        self.discharge(promised.charged);
        self.waits -= promised.waits.len();
        self.garbage.waits.extend(promised.waits.into_iter().map(|wait| (wait, outcome.clone())));
        // Waits alone may have kept it.
        if is_free {
            self.free(name.id);
        }
        Ok(())
    }

    /// One promise less counts against the limit of that member.
    pub(super) fn discharge(&mut self, charged: NodeId) {
        if let Some(unfilled) = self.unfilled.get_mut(&charged) {
            *unfilled -= 1;
            if *unfilled == 0 {
                self.unfilled.remove(&charged);
            }
        }
    }

    fn charge_drawer(&mut self, id: u64, drawer: NodeId) {
        let Some(promised) = self.owned.get_mut(&id).and_then(Owned::promise) else { return };
        let before = std::mem::replace(&mut promised.charged, drawer);
        *self.unfilled.entry(drawer).or_default() += 1;
        self.discharge(before);
    }
}
