//! What one node keeps about references: as an owner, as a holder, and as one who passes them on.
//!
//! All of it is under one lock, which is held for a few look-ups. No `Ref` and no object is dropped while it is held,
//! and no wait ended: what goes is put aside as garbage.

use super::announced::Announced;
use super::linking::Linking;
use super::members::Members;
use super::name::{Mention, Name};
use super::outbox::Outbox;
use super::owner::{Content, Owned};
use super::promise::{Asking, Drawn, Promises};
use super::wait::Wait;
use super::words::{BATCH_MAX, Word};
use super::{Hold, Kept, Object, Ref, Refs, keep};
use crate::driver::Shared;
use parking_lot::{Mutex, MutexGuard};
use sheave_base::collections::{HashMap, HashSet};
use sheave_base::planted::{self, Bug};
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, NodeId, Result, limits};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// A node's references.
pub(crate) struct References {
    pub(super) me: NodeId,
    pub(super) shared: Weak<Shared>,
    pub(super) bounds: Bounds,
    /// From the moment when the mesh stands.
    pub(super) members: OnceLock<Members>,
    pub(super) tables: Mutex<Tables>,
    /// There is garbage.
    pub(crate) due: AtomicBool,
    /// There are words to be sent.
    pub(super) has_words: AtomicBool,
    /// All of them are to be sent now.
    pub(crate) is_flush_due: AtomicBool,
    /// Held by whoever sends words.
    pub(super) telling: Mutex<()>,
    pub(super) last_wait: AtomicU64,
    /// Messages with words that have been sent.
    #[cfg(test)]
    pub(super) messages: AtomicU64,
}

/// How much a node keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) owned: usize,
    pub(super) held: usize,
    pub(super) passing: usize,
    pub(super) promised: usize,
    pub(super) waits: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        let (owned, held) = (limits::REFERENCES_OWNED_MAX, limits::REFERENCES_HELD_MAX);
        let (passing, promised) = (limits::REFERENCES_PASSING_MAX, limits::REFERENCES_PROMISED_MAX);
        Self { owned, held, passing, promised, waits: limits::REFERENCE_WAITS_MAX }
    }
}

#[derive(Default)]
pub(super) struct Tables {
    /// This node.
    pub(super) me: NodeId,
    last_id: u64,
    pub(super) owned: HashMap<u64, Owned>,
    /// Of objects of other nodes.
    pub(super) holds: HashMap<Name, Holding>,
    /// References to other nodes' objects that were passed on, by receiver, and are not confirmed.
    passing: HashMap<(NodeId, Name), Vec<Ref>>,
    passing_count: usize,
    /// How many names this node has drawn and still holds. What is known of one stands where its hold does, or in the
    /// entry of an object of this node's own.
    pub(super) drawn_count: usize,
    /// By owner: how many names were drawn in all, and how many of them may still be filled as far as is known.
    pub(super) draws: HashMap<NodeId, (u64, usize)>,
    /// Which of its names each node has said to this one.
    pub(super) announced: HashMap<NodeId, Announced>,
    /// Promises of this node that are not filled, by who brought them here.
    pub(super) unfilled: HashMap<NodeId, usize>,
    pub(super) waits: usize,
    outboxes: BTreeMap<NodeId, Outbox>,
    /// A flush is due at some time.
    is_flush_set: bool,
    /// An outbox has come to hold as much as one message does.
    is_overfull: bool,
    /// And a flush is due at once.
    is_full: bool,
    /// Links for words that are being made, or could not be.
    pub(super) linking: HashMap<NodeId, Linking>,
    /// Members that have died or left.
    lost: HashSet<NodeId>,
    has_ended: bool,
    settled: Vec<Completer<()>>,
    pub(super) garbage: Garbage,
}

/// What this node holds of an object of another one.
#[derive(Default)]
pub(super) struct Holding {
    pub(super) hold: Weak<Hold>,
    /// As long as it has a right to ask for it to be filled, which no later hold of the same name has.
    pub(super) drawn: Option<Drawn>,
}

/// What is to be dropped, or ended, with no lock held.
#[derive(Default)]
pub(crate) struct Garbage {
    pub(super) objects: Vec<Kept>,
    pub(super) refs: Vec<Ref>,
    pub(super) waits: Vec<(Wait, Result<Object>)>,
    settled: Vec<Completer<()>>,
}

impl Drop for Garbage {
    fn drop(&mut self) {
        for (wait, outcome) in self.waits.drain(..) {
            wait.end(outcome);
        }
        for completer in self.settled.drain(..) {
            completer.complete(Ok(()));
        }
    }
}

/// The references that came with a message.
#[derive(Default)]
pub(crate) struct Brought {
    pub(crate) refs: Vec<Ref>,
    /// Those of them that the message asks to be filled.
    pub(crate) promises: Promises,
    /// Why some of them mean nothing here.
    pub(crate) error: Option<Error>,
}

/// Why references do not leave, or are not drawn.
pub(super) enum Refusal {
    /// This node is gone.
    Lost(NodeId),
    Other(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// Its owner has said that there is no such object any more.
pub(super) fn gone(name: Name) -> Error {
    not_found(name).hint("the node that passed it on was its only holder, and is gone")
}

pub(super) fn not_found(name: Name) -> Error {
    Error::new(ErrorKind::NotFound, format!("this node holds no reference to {name}"))
        .hint("keep a Ref for as long as its name is used")
}

pub(super) fn full(what: &str, limit: usize, hint: &'static str) -> Error {
    Error::new(ErrorKind::LimitExceeded, format!("this node has {limit} {what} already")).hint(hint)
}

impl References {
    pub(crate) fn new(me: NodeId, shared: Weak<Shared>) -> Arc<Self> {
        Self::bounded(me, shared, Bounds::default())
    }

    pub(super) fn bounded(me: NodeId, shared: Weak<Shared>, bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            me,
            shared,
            bounds,
            members: OnceLock::new(),
            tables: Mutex::new(Tables { me, ..Tables::default() }),
            due: AtomicBool::new(false),
            has_words: AtomicBool::new(false),
            is_flush_due: AtomicBool::new(false),
            telling: Mutex::default(),
            last_wait: AtomicU64::new(0),
            #[cfg(test)]
            messages: AtomicU64::new(0),
        })
    }

    /// The mesh stands: these are its members, by rank. What was noted for others is forgotten.
    pub(crate) fn joined(&self, members: impl IntoIterator<Item = NodeId>) {
        let members = self.members.get_or_init(|| Members::by_rank(members));
        self.tables.lock().outboxes.retain(|to, _| members.has(*to));
    }

    /// Lets the tables go, and sees to it that what was left in them is looked after.
    pub(super) fn let_go(&self, mut tables: MutexGuard<'_, Tables>) {
        if !tables.garbage.is_empty() {
            self.due.store(true, SeqCst);
        }
        if tables.outboxes.is_empty() {
            return;
        }
        self.has_words.store(true, SeqCst);
        let is_first = !std::mem::replace(&mut tables.is_flush_set, true);
        let is_full = std::mem::take(&mut tables.is_overfull) && !std::mem::replace(&mut tables.is_full, true);
        drop(tables);
        if (is_first || is_full)
            && let Some(shared) = self.shared.upgrade()
        {
            shared.flush_words_in(if is_full { Duration::ZERO } else { limits::REFERENCE_FLUSH });
        }
    }

    /// Takes an object into the table.
    pub(crate) fn export(self: &Arc<Self>, object: Object) -> Result<Ref> {
        let mut tables = self.tables.lock();
        if tables.owned.len() >= self.bounds.owned {
            let error = full("exported objects", self.bounds.owned, "drop references that nobody needs");
            return Err(error.operation("export"));
        }
        tables.last_id += 1;
        let name = Name::made(self.me, tables.last_id)
            .ok_or_else(|| Error::new(ErrorKind::LimitExceeded, "no name is left").operation("export"))?;
        let hold = self.new_hold(name, Some(Ok(Arc::clone(&object))));
        tables.owned.insert(name.id, Owned::of(keep(object), Arc::downgrade(&hold)));
        Ok(Ref(hold))
    }

    /// The reference of that name, if this node holds it or owns the object.
    pub(crate) fn find(self: &Arc<Self>, name: Name) -> Result<Ref> {
        self.find_in(&mut self.tables.lock(), name)
    }

    pub(super) fn find_in(self: &Arc<Self>, tables: &mut Tables, name: Name) -> Result<Ref> {
        if name.owner != self.me {
            return tables.holds.get(&name).and_then(Holding::upgrade).map(Ref).ok_or_else(|| not_found(name));
        }
        let owned = tables.owned.get_mut(&name.id).ok_or_else(|| not_found(name))?;
        Ok(self.handle(owned, name))
    }

    /// One more handle to an object of this node.
    pub(super) fn handle(self: &Arc<Self>, owned: &mut Owned, name: Name) -> Ref {
        let hold = owned.own.upgrade().unwrap_or_else(|| {
            let hold = self.new_hold(name, owned.settled());
            owned.own = Arc::downgrade(&hold);
            hold
        });
        Ref(hold)
    }

    pub(super) fn new_hold(self: &Arc<Self>, name: Name, settled: Option<Result<Object>>) -> Arc<Hold> {
        Arc::new(Hold {
            references: Arc::clone(self),
            name,
            object: settled.map(|settled| OnceLock::from(settled.map(keep))).unwrap_or_default(),
            counts: AtomicU64::new(0),
            is_gone: AtomicBool::new(false),
            went_back: AtomicBool::new(false),
            failed: OnceLock::new(),
            is_told: false,
        })
    }

    /// Counts references that are about to leave for `to`. The returned ones must be kept until the message has left;
    /// if it does not, [`References::take_back`] is called with their names.
    pub(crate) fn pass(self: &Arc<Self>, to: NodeId, names: &[Mention]) -> Result<Refs> {
        let mut refs = Refs::new();
        if names.is_empty() {
            return Ok(refs);
        }
        let mut tables = self.tables.lock();
        let found = names.iter().try_for_each(|mention| {
            refs.push(self.find_in(&mut tables, mention.name)?);
            Ok(())
        });
        let passed = found.map_err(Refusal::Other).and_then(|()| self.pass_in(&mut tables, to, &refs));
        // What was found is not dropped under the lock, nor are nodes named.
        drop(tables);
        passed.map_err(|refusal| self.refusal(refusal)).map(|()| refs)
    }

    /// As [`References::pass`], of references that are at hand.
    pub(crate) fn pass_held(&self, to: NodeId, refs: &[Ref]) -> Result<()> {
        if refs.is_empty() {
            return Ok(());
        }
        let passed = self.pass_in(&mut self.tables.lock(), to, refs);
        passed.map_err(|refusal| self.refusal(refusal))
    }

    /// The error of it. Not to be called with the tables held.
    pub(super) fn refusal(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Lost(node) => self.loss(node),
            Refusal::Other(error) => error,
        }
    }

    fn pass_in(&self, tables: &mut Tables, to: NodeId, refs: &[Ref]) -> std::result::Result<(), Refusal> {
        let mut third = 0;
        for Ref(hold) in refs {
            let name = hold.name;
            if hold.is_gone.load(SeqCst) {
                return Err(Refusal::Other(gone(name)));
            }
            if tables.lost.contains(&name.owner) {
                return Err(Refusal::Lost(name.owner));
            }
            if let Some(error) = hold.failed.get() {
                return Err(Refusal::Other(error.clone()));
            }
            third += usize::from(name.owner != self.me && name.owner != to);
        }
        if tables.passing_count + third > self.bounds.passing {
            let hint = "wait for the answers of earlier calls";
            let what = "references on their way that are not confirmed";
            return Err(Refusal::Other(full(what, self.bounds.passing, hint)));
        }
        if tables.lost.contains(&to) {
            return Err(Refusal::Lost(to));
        }
        for held in refs {
            if held.owner() == self.me {
                if let Some(owned) = tables.owned.get_mut(&held.0.name.id) {
                    owned.holders.count(to, 1);
                }
            } else if held.owner() != to {
                tables.passing_count += 1;
                tables.passing.entry((to, held.0.name)).or_default().push(held.clone());
            } else {
                held.0.went_back.store(true, SeqCst);
            }
        }
        Ok(())
    }

    /// The message with references of these names has not left.
    pub(crate) fn take_back(&self, to: NodeId, names: impl IntoIterator<Item = Name>) {
        let mut names = names.into_iter().peekable();
        if names.peek().is_none() {
            return;
        }
        let mut tables = self.tables.lock();
        for name in names {
            if name.owner == self.me {
                tables.uncount(name.id, to, 1);
            } else if name.owner != to {
                tables.confirmed(to, name, 1);
            }
        }
        self.let_go(tables);
    }

    /// Makes holds of what has come from `from`, in a request that says this about itself or in another message.
    pub(super) fn adopt(self: &Arc<Self>, from: NodeId, names: &[Mention], asking: Option<Arc<Asking>>) -> Brought {
        let mut brought = Brought::default();
        let mut filled = Vec::new();
        let mut tables = self.tables.lock();
        for mention in names {
            match self.adopt_one(&mut tables, from, *mention, asking.as_ref()) {
                Ok(held) => {
                    filled.extend(mention.fills.then(|| held.clone()));
                    brought.refs.push(held);
                }
                Err(error) => brought.error = Some(error),
            }
        }
        self.let_go(tables);
        if let Some(asking) = asking.filter(|_| !filled.is_empty()) {
            brought.promises = Promises::of(self, filled, asking);
        }
        brought
    }

    fn adopt_one(
        self: &Arc<Self>,
        tables: &mut Tables,
        from: NodeId,
        mention: Mention,
        asking: Option<&Arc<Asking>>,
    ) -> Result<Ref> {
        let Name { owner, id } = mention.name;
        let Some(members) = self.members.get() else {
            // Who has linked to this node before it knew all members may be one of them.
            if owner == from && tables.outboxes.get(&from).is_none_or(|outbox| outbox.len() < BATCH_MAX) {
                tables.say(from, Word::Release { id, counts: 1 });
            }
            return Err(Error::new(ErrorKind::NotPermitted, "a reference to a node that has not joined yet"));
        };
        // Nothing is kept, and nobody is looked for, because of a name that somebody has made up.
        let is_known = |node: NodeId| node == self.me || self.knows(members, node);
        if !is_known(from) || (owner != from && !is_known(owner)) {
            let what = format!("a reference to an object of node {owner} from node {from}; not both are members");
            return Err(Error::new(ErrorKind::NotPermitted, what));
        }
        if owner == self.me {
            return self.adopt_own(tables, from, mention, asking);
        }
        if mention.fills {
            return Err(super::promise::not_the_owner());
        }
        self.adopt_other(tables, from, mention.name)
    }

    /// Whether references may come from there: it is a member, or attached to this node.
    pub(super) fn knows(&self, members: &Members, node: NodeId) -> bool {
        members.has(node) || self.is_attached(node)
    }

    /// Whether that node is a guest of this one, or its host.
    pub(super) fn is_attached(&self, node: NodeId) -> bool {
        self.shared.upgrade().is_some_and(|shared| shared.attached.has(node))
    }

    fn adopt_other(self: &Arc<Self>, tables: &mut Tables, from: NodeId, name: Name) -> Result<Ref> {
        let Name { owner, id } = name;
        let hold = match tables.holds.get(&name).and_then(Holding::upgrade) {
            Some(hold) => hold,
            None if tables.holds.len() >= self.bounds.held => {
                let refusal = if owner == from {
                    Word::Release { id, counts: 1 }
                } else {
                    Word::Confirm { holder: self.me, owner, id, times: 1 }
                };
                tables.say(from, refusal);
                return Err(full("references to other nodes' objects", self.bounds.held, "drop some"));
            }
            None => {
                let hold = self.new_hold(name, None);
                // What an older hold has drawn, which is being dropped, it gives up itself.
                tables.holds.entry(name).or_default().hold = Arc::downgrade(&hold);
                hold
            }
        };
        hold.counts.fetch_add(1, SeqCst);
        if owner != from {
            tables.say(owner, Word::Count { id, giver: from, times: 1 });
        }
        Ok(Ref(hold))
    }

    /// Words of another node, which were checked.
    pub(super) fn heard(&self, from: NodeId, words: Vec<Word>) {
        let mut tables = self.tables.lock();
        for word in words {
            match word {
                Word::Count { id, giver, times } => {
                    self.count(&mut tables, from, id, times);
                    if giver != self.me {
                        tables.say(giver, Word::Confirm { holder: from, owner: self.me, id, times });
                    }
                }
                Word::Confirm { holder, owner, id, times } if from == holder || from == owner => {
                    tables.confirmed(holder, Name { owner, id }, times);
                }
                Word::Confirm { .. } => {}
                Word::Release { id, counts } => self.released(&mut tables, from, id, counts),
                Word::Broken { id, cause } => self.broken(&mut tables, from, id, &cause),
                Word::Gone { id } => {
                    let hold = tables.holds.get(&Name { owner: from, id }).and_then(Holding::upgrade);
                    if let Some(hold) = hold {
                        hold.is_gone.store(true, SeqCst);
                        tables.garbage.refs.push(Ref(hold));
                    }
                }
            }
        }
        self.let_go(tables);
    }

    /// All survivors agree that this member is gone.
    pub(crate) fn lost(&self, node: NodeId) {
        let error = self.loss(node);
        let mut tables = self.tables.lock();
        tables.lost.insert(node);
        tables.outboxes.remove(&node);
        tables.linking.remove(&node);
        tables.announced.remove(&node);
        tables.draws.remove(&node);
        self.promiser_lost(&mut tables, node, &error);
        let counted: Vec<u64> =
            tables.owned.iter().filter(|(_, owned)| owned.holders.contains(node)).map(|(id, _)| *id).collect();
        for id in counted {
            tables.uncount(id, node, u64::MAX);
        }
        let is_over = |key: &(NodeId, Name)| key.0 == node || key.1.owner == node;
        let over: Vec<_> = tables.passing.keys().filter(|key| is_over(key)).copied().collect();
        for key in over {
            tables.pass_no_more(key);
        }
        self.let_go(tables);
    }

    /// Nothing is kept of a node that was lost. It never comes back, so whatever is said for it reaches nobody.
    pub(crate) fn forget(&self, node: NodeId) {
        self.tables.lock().lost.remove(&node);
    }

    /// The mesh has ended for this node: no other one counts any more, nothing is said, and nothing is filled.
    pub(crate) fn end(&self) {
        let mut tables = self.tables.lock();
        tables.has_ended = true;
        tables.outboxes.clear();
        let closed = Err(Error::new(ErrorKind::Closed, "this node has left the mesh"));
        for id in tables.owned.keys().copied().collect::<Vec<_>>() {
            // Most of them are no promises, or are filled.
            let _ = tables.settle(Name { owner: self.me, id }, &closed);
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
        self.end_hold(&mut tables, hold);
        self.let_go_of(tables, hold.name.owner == self.me);
    }

    /// The last `Ref` of each of these holds of this node is dropped.
    pub(super) fn all_dropped(&self, holds: &mut [Hold]) {
        let mut has_own = false;
        let mut tables = self.tables.lock();
        for hold in holds.iter_mut().filter(|hold| std::ptr::eq(&raw const *hold.references, self)) {
            hold.is_told = true;
            has_own |= hold.name.owner == self.me;
            self.end_hold(&mut tables, hold);
        }
        self.let_go_of(tables, has_own);
    }

    /// As [`References::let_go`]; what was freed by the drop of a handle is dropped here.
    fn let_go_of(&self, mut tables: MutexGuard<'_, Tables>, has_own: bool) {
        let garbage = has_own.then(|| tables.take_garbage());
        self.let_go(tables);
        drop(garbage);
    }

    fn end_hold(&self, tables: &mut Tables, hold: &Hold) {
        let Name { owner, id } = hold.name;
        if owner == self.me {
            // The hold's own handle is the last one, and is dropped after this.
            tables.free(id);
            return self.own_promise_dropped(tables, hold.name);
        }
        // A drawer says in any case that it drops the name: nobody else can have it filled.
        let is_drawn = tables.end_holding(hold.name);
        // Nor is a giver let go by anybody but the owner while a message may be on its way there.
        let may_be_unsaid = !is_drawn && !hold.went_back.load(SeqCst);
        let outbox = tables.outboxes.get_mut(&owner).filter(|_| may_be_unsaid);
        let mut left = hold.counts.load(SeqCst);
        let unsaid = outbox.map(|outbox| outbox.take_counts(id, left)).unwrap_or_default();
        for (giver, times) in unsaid {
            // Nobody has counted these, so nobody needs to: the giver is told by the one who was given.
            left -= times;
            tables.say(giver, Word::Confirm { holder: self.me, owner, id, times });
        }
        if left > 0 {
            tables.say(owner, Word::Release { id, counts: left });
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
        is_lost.then(|| self.loss(node))
    }

    /// Why `node` is gone. Not to be called with the tables held.
    pub(super) fn loss(&self, node: NodeId) -> Error {
        self.shared.upgrade().map_or_else(lost, |shared| shared.loss(node, lost()))
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

    /// For whom there are words. From now on new ones set a flush of their own.
    pub(super) fn begin_flush(&self) -> Vec<NodeId> {
        let mut tables = self.tables.lock();
        (tables.is_flush_set, tables.is_full) = (false, false);
        tables.outboxes.keys().copied().collect()
    }

    /// Words for a node, in the order in which they must go.
    pub(super) fn take_words(&self, to: NodeId, most: usize) -> Vec<Word> {
        let mut tables = self.tables.lock();
        let Some(outbox) = tables.outboxes.get_mut(&to) else { return Vec::new() };
        let words = outbox.take(most);
        if outbox.is_empty() {
            tables.outboxes.remove(&to);
            self.has_words.store(!tables.outboxes.is_empty(), SeqCst);
        }
        words
    }

    /// Words that could not be sent.
    pub(super) fn put_back(&self, to: NodeId, words: Vec<Word>) {
        let mut tables = self.tables.lock();
        words.into_iter().for_each(|word| tables.say(to, word));
        self.has_words.store(!tables.outboxes.is_empty(), SeqCst);
    }

    /// For whom there are words.
    #[cfg(test)]
    pub(crate) fn addressees(&self) -> Vec<NodeId> {
        self.tables.lock().outboxes.keys().copied().collect()
    }

    /// Objects, holds, references on their way, names that were drawn, promises that are not filled, waits, and links
    /// that could not be made.
    pub(super) fn sizes(&self) -> [usize; 7] {
        let tables = self.tables.lock();
        let unfilled = tables.unfilled.values().sum();
        let (drawn, linking) = (tables.drawn_count, tables.linking.len());
        let (owned, holds, passing) = (tables.owned.len(), tables.holds.len(), tables.passing_count);
        [owned, holds, passing, drawn, unfilled, tables.waits, linking]
    }

    /// Whether there are so many words for that node that they go now.
    pub(super) fn has_words_for(&self, to: NodeId, least: usize) -> bool {
        self.has_words.load(SeqCst) && self.tables.lock().outboxes.get(&to).is_some_and(|outbox| outbox.len() >= least)
    }
}

pub(super) fn lost() -> Error {
    Error::new(ErrorKind::PeerLost, "this node is gone")
}

impl Garbage {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.refs.is_empty() && self.waits.is_empty() && self.settled.is_empty()
    }
}

impl Holding {
    fn upgrade(&self) -> Option<Arc<Hold>> {
        self.hold.upgrade()
    }
}

impl Tables {
    /// References on their way that are not confirmed.
    #[cfg(test)]
    pub(super) fn passing_count(&self) -> usize {
        self.passing_count
    }

    /// Words that are to be sent.
    #[cfg(test)]
    pub(super) fn words(&self) -> usize {
        self.outboxes.values().map(Outbox::len).sum()
    }

    pub(super) fn is_lost(&self, node: NodeId) -> bool {
        self.lost.contains(&node)
    }

    pub(super) fn is_deaf(&self, node: NodeId) -> bool {
        self.has_ended || self.lost.contains(&node)
    }

    pub(super) fn say(&mut self, to: NodeId, word: Word) {
        if self.is_deaf(to) {
            return;
        }
        let outbox = self.outboxes.entry(to).or_default();
        outbox.say(word);
        self.is_overfull |= outbox.len() >= BATCH_MAX;
    }

    pub(super) fn uncount(&mut self, id: u64, holder: NodeId, counts: u64) {
        let Some(owned) = self.owned.get_mut(&id) else { return };
        owned.holders.uncount(holder, counts);
        if planted::strikes(Bug::FreedEarly) {
            owned.holders.clear();
        }
        if owned.is_free() {
            self.free(id);
        }
    }

    /// Frees the object if nobody holds it.
    pub(super) fn free(&mut self, id: u64) {
        let freed = self.remove_free(id);
        self.garbage.objects.extend(freed.and_then(Owned::into_object));
    }

    fn remove_free(&mut self, id: u64) -> Option<Owned> {
        if !self.owned.get(&id)?.is_free() {
            return None;
        }
        let owned = self.owned.remove(&id)?;
        if let Content::Promised(promised) = &owned.content {
            self.discharge(promised.charged);
        }
        if let Some(drawn) = &owned.drawn {
            self.give_back(self.me, drawn);
        }
        Some(owned)
    }

    /// References that were passed to `to` need this node's hold no more.
    fn confirmed(&mut self, to: NodeId, name: Name, times: u64) {
        let Some(refs) = self.passing.get_mut(&(to, name)) else { return };
        let left = refs.len().saturating_sub(usize::try_from(times).unwrap_or(usize::MAX));
        let confirmed = refs.split_off(left);
        if refs.is_empty() {
            self.passing.remove(&(to, name));
        }
        self.passed(confirmed.len());
        self.garbage.refs.extend(confirmed);
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

    /// How many words wait for that node.
    #[cfg(test)]
    pub(super) fn said_to(&self, to: NodeId) -> usize {
        self.outboxes.get(&to).map_or(0, Outbox::len)
    }
}
