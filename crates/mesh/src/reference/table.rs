//! What one node keeps about references: as an owner, as a holder, and as one who passes them on.
//!
//! All of it is under one lock, which is held for a few look-ups. No `Ref` and no object is dropped while it is held:
//! what goes is put aside as garbage.

use super::words::Word;
use super::{Hold, Kept, Name, Object, Ref, keep};
use crate::driver::Shared;
use parking_lot::Mutex;
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, NodeId, Result, limits};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};

/// A node's references.
pub(crate) struct References {
    me: NodeId,
    shared: Weak<Shared>,
    bounds: Bounds,
    tables: Mutex<Tables>,
    /// There are words to be sent, or garbage.
    pub(crate) due: AtomicBool,
    /// Held by whoever sends words.
    pub(super) tending: Mutex<()>,
}

/// How much a node keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) owned: usize,
    pub(super) held: usize,
    pub(super) passing: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        let (owned, held) = (limits::REFERENCES_OWNED_MAX, limits::REFERENCES_HELD_MAX);
        Self { owned, held, passing: limits::REFERENCES_PASSING_MAX }
    }
}

#[derive(Default)]
struct Tables {
    last_id: u64,
    owned: HashMap<u64, Owned>,
    /// Of objects of other nodes.
    holds: HashMap<Name, Weak<Hold>>,
    /// References to other nodes' objects that were passed on, by receiver, and are not confirmed.
    passing: HashMap<(NodeId, Name), Vec<Ref>>,
    passing_count: usize,
    words: HashMap<NodeId, VecDeque<Word>>,
    connecting: HashSet<NodeId>,
    /// Members that have died or left.
    lost: HashSet<NodeId>,
    has_ended: bool,
    settled: Vec<Completer<()>>,
    garbage: Garbage,
}

/// An object of this node.
struct Owned {
    object: Kept,
    own: Weak<Hold>,
    holders: HashMap<NodeId, u64>,
}

/// What is to be dropped, or ended, with no lock held.
#[derive(Default)]
pub(crate) struct Garbage {
    objects: Vec<Kept>,
    refs: Vec<Ref>,
    settled: Vec<Completer<()>>,
}

impl Drop for Garbage {
    fn drop(&mut self) {
        for completer in self.settled.drain(..) {
            completer.complete(Ok(()));
        }
    }
}

/// The references that came with a message.
#[derive(Default)]
pub(crate) struct Brought {
    pub(crate) refs: Vec<Ref>,
    /// Why some of them mean nothing here.
    pub(crate) error: Option<Error>,
}

pub(super) fn not_found(name: Name) -> Error {
    let Name { owner, id } = name;
    let what = format!("this node holds no reference to object {id} of node {owner}");
    Error::new(ErrorKind::NotFound, what).hint("keep a Ref for as long as its name is used")
}

fn full(what: &str, limit: usize, hint: &'static str) -> Error {
    Error::new(ErrorKind::LimitExceeded, format!("this node has {limit} {what} already")).hint(hint)
}

impl References {
    pub(crate) fn new(me: NodeId, shared: Weak<Shared>) -> Arc<Self> {
        Self::bounded(me, shared, Bounds::default())
    }

    pub(super) fn bounded(me: NodeId, shared: Weak<Shared>, bounds: Bounds) -> Arc<Self> {
        let (tables, due, tending) = (Mutex::default(), AtomicBool::new(false), Mutex::default());
        Arc::new(Self { me, shared, bounds, tables, due, tending })
    }

    /// Takes an object into the table.
    pub(crate) fn export(self: &Arc<Self>, object: Object) -> Result<Ref> {
        let mut tables = self.tables.lock();
        if tables.owned.len() >= self.bounds.owned {
            let error = full("exported objects", self.bounds.owned, "drop references that nobody needs");
            return Err(error.operation("export"));
        }
        tables.last_id += 1;
        let id = tables.last_id;
        let hold = self.hold(Name { owner: self.me, id }, Some(Arc::clone(&object)));
        tables.owned.insert(id, Owned { object: keep(object), own: Arc::downgrade(&hold), holders: HashMap::new() });
        Ok(Ref(hold))
    }

    /// The reference of that name, if this node holds it or owns the object.
    pub(crate) fn find(self: &Arc<Self>, name: Name) -> Result<Ref> {
        self.find_in(&mut self.tables.lock(), name)
    }

    fn find_in(self: &Arc<Self>, tables: &mut Tables, name: Name) -> Result<Ref> {
        if name.owner != self.me {
            return tables.holds.get(&name).and_then(Weak::upgrade).map(Ref).ok_or_else(|| not_found(name));
        }
        let owned = tables.owned.get_mut(&name.id).ok_or_else(|| not_found(name))?;
        let hold = owned.own.upgrade().unwrap_or_else(|| {
            let hold = self.hold(name, Some(Arc::clone(&owned.object)));
            owned.own = Arc::downgrade(&hold);
            hold
        });
        Ok(Ref(hold))
    }

    fn hold(self: &Arc<Self>, name: Name, object: Option<Object>) -> Arc<Hold> {
        let (counts, is_gone) = (AtomicU64::new(0), AtomicBool::new(false));
        Arc::new(Hold { references: Arc::clone(self), name, object: object.map(keep), counts, is_gone })
    }

    /// Counts references that are about to leave for `to`. The returned ones must be kept until the message has left;
    /// if it does not, [`References::take_back`] is called with them.
    pub(crate) fn pass(self: &Arc<Self>, to: NodeId, names: &[Name]) -> Result<Vec<Ref>> {
        let refs = names.iter().map(|name| self.find(*name)).collect::<Result<Vec<Ref>>>()?;
        refs.iter().try_for_each(Ref::check)?;
        let mut tables = self.tables.lock();
        let third = |held: &&Ref| held.owner() != self.me && held.owner() != to;
        if tables.passing_count + refs.iter().filter(third).count() > self.bounds.passing {
            let hint = "wait for the answers of earlier calls";
            return Err(full("references on their way that are not confirmed", self.bounds.passing, hint));
        }
        if tables.lost.contains(&to) {
            drop(tables);
            return Err(self.loss_of(to).unwrap_or_else(lost));
        }
        for held in &refs {
            if held.owner() == self.me {
                if let Some(owned) = tables.owned.get_mut(&held.0.name.id) {
                    *owned.holders.entry(to).or_default() += 1;
                }
            } else if held.owner() != to {
                tables.passing_count += 1;
                tables.passing.entry((to, held.0.name)).or_default().push(held.clone());
            }
        }
        Ok(refs)
    }

    /// The message has not left.
    pub(crate) fn take_back(&self, to: NodeId, refs: &[Ref]) {
        let mut tables = self.tables.lock();
        for held in refs {
            if held.owner() == self.me {
                tables.uncount(held.0.name.id, to, 1);
            } else if held.owner() != to {
                tables.confirmed(to, held.0.name);
            }
        }
        self.mark(&tables);
    }

    /// Makes holds of what has come from `from`.
    pub(super) fn adopt(self: &Arc<Self>, from: NodeId, names: &[Name]) -> Brought {
        let mut brought = Brought::default();
        let mut tables = self.tables.lock();
        for name in names {
            match self.adopt_one(&mut tables, from, *name) {
                Ok(held) => brought.refs.push(held),
                Err(error) => brought.error = Some(error),
            }
        }
        self.mark(&tables);
        brought
    }

    fn adopt_one(self: &Arc<Self>, tables: &mut Tables, from: NodeId, name: Name) -> Result<Ref> {
        let Name { owner, id } = name;
        if owner == self.me {
            return self.find_in(tables, name);
        }
        let hold = match tables.holds.get(&name).and_then(Weak::upgrade) {
            Some(hold) => hold,
            None if tables.holds.len() >= self.bounds.held => {
                let refusal = if owner == from {
                    Word::Release { id, counts: 1 }
                } else {
                    Word::Confirm { holder: self.me, owner, id }
                };
                tables.say(from, refusal);
                return Err(full("references to other nodes' objects", self.bounds.held, "drop some"));
            }
            None => {
                let hold = self.hold(name, None);
                tables.holds.insert(name, Arc::downgrade(&hold));
                hold
            }
        };
        hold.counts.fetch_add(1, SeqCst);
        if owner != from {
            tables.say(owner, Word::Count { id, giver: from });
        }
        Ok(Ref(hold))
    }

    /// Words of another node.
    pub(super) fn heard(&self, from: NodeId, words: &[Word]) {
        let mut tables = self.tables.lock();
        for word in words {
            match *word {
                Word::Count { id, giver } => {
                    tables.count(from, id);
                    if giver != self.me {
                        tables.say(giver, Word::Confirm { holder: from, owner: self.me, id });
                    }
                }
                Word::Confirm { holder, owner, id } if from == holder || from == owner => {
                    tables.confirmed(holder, Name { owner, id });
                }
                Word::Confirm { .. } => {}
                Word::Release { id, counts } => tables.uncount(id, from, counts),
                Word::Gone { id } => {
                    let hold = tables.holds.get(&Name { owner: from, id }).and_then(Weak::upgrade);
                    if let Some(hold) = hold {
                        hold.is_gone.store(true, SeqCst);
                        tables.garbage.refs.push(Ref(hold));
                    }
                }
            }
        }
        self.mark(&tables);
    }

    /// All survivors agree that this member is gone.
    pub(crate) fn lost(&self, node: NodeId) {
        let mut tables = self.tables.lock();
        tables.lost.insert(node);
        tables.words.remove(&node);
        let counted: Vec<u64> =
            tables.owned.iter().filter(|(_, owned)| owned.holders.contains_key(&node)).map(|(id, _)| *id).collect();
        for id in counted {
            tables.uncount(id, node, u64::MAX);
        }
        let is_over = |key: &(NodeId, Name)| key.0 == node || key.1.owner == node;
        let over: Vec<_> = tables.passing.keys().filter(|key| is_over(key)).copied().collect();
        for key in over {
            tables.pass_no_more(key);
        }
        self.mark(&tables);
    }

    /// Nothing is kept of a node that was lost. It never comes back, so whatever is said for it reaches nobody.
    pub(crate) fn forget(&self, node: NodeId) {
        self.tables.lock().lost.remove(&node);
    }

    /// The mesh has ended for this node: no other one counts any more, and nothing is said.
    pub(crate) fn end(&self) {
        let mut tables = self.tables.lock();
        tables.has_ended = true;
        tables.words.clear();
        for id in tables.owned.keys().copied().collect::<Vec<_>>() {
            if let Some(owned) = tables.owned.get_mut(&id) {
                owned.holders.clear();
            }
            tables.free(id);
        }
        for key in tables.passing.keys().copied().collect::<Vec<_>>() {
            tables.pass_no_more(key);
        }
        let garbage = tables.take_garbage();
        drop(tables);
        drop(garbage);
    }

    /// The last `Ref` of a hold is dropped.
    pub(super) fn dropped(&self, hold: &Hold) {
        let mut tables = self.tables.lock();
        let Name { owner, id } = hold.name;
        if owner == self.me {
            // The hold's own handle is the last one, and is dropped after this.
            let freed = tables.remove_free(id);
            drop(tables);
            return drop(freed);
        }
        // Meanwhile another hold may have taken its place.
        if tables.holds.get(&hold.name).is_some_and(|weak| std::ptr::eq(weak.as_ptr(), hold)) {
            tables.holds.remove(&hold.name);
        }
        let counts = hold.counts.load(SeqCst);
        if counts > 0 {
            tables.say(owner, Word::Release { id, counts });
        }
        self.mark(&tables);
        let has_words = tables.words.contains_key(&owner);
        drop(tables);
        if has_words && let Some(shared) = self.shared.upgrade() {
            shared.ring_for_references();
        }
    }

    /// Calls `completer` when nothing that was passed on waits to be confirmed.
    pub(crate) fn when_settled(&self, completer: Completer<()>) {
        let mut tables = self.tables.lock();
        if tables.passing_count == 0 {
            drop(tables);
            return completer.complete(Ok(()));
        }
        tables.settled.push(completer);
    }

    /// Why `node` is gone, if it is.
    pub(super) fn loss_of(&self, node: NodeId) -> Option<Error> {
        let is_lost = self.tables.lock().lost.contains(&node);
        is_lost.then(|| self.shared.upgrade().map_or_else(lost, |shared| shared.loss(node, lost())))
    }

    /// The error, about that member.
    pub(super) fn about(&self, error: Error, node: NodeId) -> Error {
        match self.shared.upgrade() {
            Some(shared) => shared.about(error, node),
            None => error,
        }
    }

    /// What may be dropped now.
    pub(super) fn take_garbage(&self) -> Garbage {
        self.tables.lock().take_garbage()
    }

    /// For whom there are words.
    pub(crate) fn addressees(&self) -> Vec<NodeId> {
        self.tables.lock().words.keys().copied().collect()
    }

    /// The oldest words for a node, in order.
    pub(super) fn take_words(&self, to: NodeId, most: usize) -> Vec<Word> {
        let mut tables = self.tables.lock();
        let Some(queue) = tables.words.get_mut(&to) else { return Vec::new() };
        let words = queue.drain(..most.min(queue.len())).collect();
        if queue.is_empty() {
            tables.words.remove(&to);
        }
        words
    }

    /// Words that could not be sent.
    pub(super) fn put_back(&self, to: NodeId, words: Vec<Word>) {
        let mut tables = self.tables.lock();
        if !tables.is_deaf(to) {
            let queue = tables.words.entry(to).or_default();
            words.into_iter().rev().for_each(|word| queue.push_front(word));
        }
    }

    /// False if a link for words to that node is being made already.
    pub(super) fn begins_connecting(&self, to: NodeId) -> bool {
        self.tables.lock().connecting.insert(to)
    }

    pub(super) fn ends_connecting(&self, to: NodeId) {
        self.tables.lock().connecting.remove(&to);
    }

    fn mark(&self, tables: &Tables) {
        if !tables.words.is_empty() || !tables.garbage.is_empty() {
            self.due.store(true, SeqCst);
        }
    }

    /// Objects, holds, and references on their way.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize, usize) {
        let tables = self.tables.lock();
        (tables.owned.len(), tables.holds.len(), tables.passing_count)
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::PeerLost, "this node is gone")
}

impl Garbage {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.refs.is_empty() && self.settled.is_empty()
    }
}

impl Tables {
    fn is_deaf(&self, node: NodeId) -> bool {
        self.has_ended || self.lost.contains(&node)
    }

    fn say(&mut self, to: NodeId, word: Word) {
        if !self.is_deaf(to) {
            self.words.entry(to).or_default().push_back(word);
        }
    }

    /// `holder` has come by a reference that this node has not given to it.
    fn count(&mut self, holder: NodeId, id: u64) {
        if self.is_deaf(holder) {
            return;
        }
        match self.owned.get_mut(&id) {
            Some(owned) => *owned.holders.entry(holder).or_default() += 1,
            None => self.say(holder, Word::Gone { id }),
        }
    }

    fn uncount(&mut self, id: u64, holder: NodeId, counts: u64) {
        let Some(owned) = self.owned.get_mut(&id) else { return };
        if let Some(count) = owned.holders.get_mut(&holder) {
            *count = count.saturating_sub(counts);
            if *count == 0 {
                owned.holders.remove(&holder);
            }
        }
        self.free(id);
    }

    /// Frees the object if nobody holds it.
    fn free(&mut self, id: u64) {
        let freed = self.remove_free(id);
        self.garbage.objects.extend(freed.map(|owned| owned.object));
    }

    fn remove_free(&mut self, id: u64) -> Option<Owned> {
        let owned = self.owned.get(&id)?;
        if owned.own.strong_count() > 0 || !owned.holders.is_empty() {
            return None;
        }
        self.owned.remove(&id)
    }

    /// One reference that was passed to `to` needs this node's hold no more.
    fn confirmed(&mut self, to: NodeId, name: Name) {
        let Some(refs) = self.passing.get_mut(&(to, name)) else { return };
        self.garbage.refs.extend(refs.pop());
        if refs.is_empty() {
            self.passing.remove(&(to, name));
        }
        self.passed(1);
    }

    fn pass_no_more(&mut self, key: (NodeId, Name)) {
        let refs = self.passing.remove(&key).unwrap_or_default();
        self.passed(refs.len());
        self.garbage.refs.extend(refs);
    }

    fn passed(&mut self, count: usize) {
        self.passing_count -= count;
        if self.passing_count == 0 {
            self.garbage.settled.append(&mut self.settled);
        }
    }

    fn take_garbage(&mut self) -> Garbage {
        std::mem::take(&mut self.garbage)
    }
}
