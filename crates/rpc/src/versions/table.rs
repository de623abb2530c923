//! The keys, their versions, and those who watch and pin them: a state without clocks, locks and messages.
//!
//! Of each key the versions stand in the order in which they were accepted, and the last one is the newest. It is never
//! dropped, and one that is pinned is not either. All others are dropped, oldest first, when their key has more than
//! its depth or the table more bytes than it may have. Whether a push fits is decided before anything is dropped for
//! good: what was taken out for one that does not fit is put back.
//!
//! Bytes are those of [items](Item), each counted once however many versions have it: a version that differs in one
//! entry of a map takes the bytes of that entry.

use super::contents::{Changes, Stored};
use super::{Dropped, PushOutcome, Pushed, Rules, VersionsReport, VersionsSettings};
use crate::entry::{plain, text_of};
use sheave_base::collections::HashMap;
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, NodeId, Result, limits};
use sheave_wire::Value;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A key or a version: two are the same if they are written alike.
#[derive(Clone, Debug)]
pub(super) struct Name {
    bytes: Arc<[u8]>,
    pub(super) value: Value,
}

impl Name {
    pub(super) fn key(value: Value) -> Result<Self> {
        Ok(Self { bytes: plain("key", &value)?.into(), value })
    }

    pub(super) fn version(value: Value) -> Result<Self> {
        Ok(Self { bytes: plain("version", &value)?.into(), value })
    }

    fn text(&self) -> String {
        text_of(&self.value)
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Name {}

impl std::hash::Hash for Name {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}

/// Whose a watch or a pin is: the node, and the number that it has given it.
pub(super) type Owned = (NodeId, u64);

/// Which version is wanted.
#[derive(Clone, Debug)]
pub(super) enum Want {
    Newest,
    Version(Name),
    NewerThan(Name),
}

/// What was found of a version.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Unchanged,
    Whole(Stored),
    Changes(Changes),
}

/// What is pushed.
#[derive(Debug)]
pub(super) enum Content {
    Whole(Stored),
    Changes(Changes),
}

#[derive(Debug)]
struct Kept {
    version: Name,
    stored: Stored,
    /// When it was accepted, among all of the table.
    order: u64,
    pins: usize,
    /// Readers that have it may have another content.
    is_overwritten: bool,
}

#[derive(Debug)]
struct Watcher<W> {
    owned: Owned,
    newer_than: Option<Name>,
    waits: W,
}

/// Whoever has waited for a newer version, and the one that it has.
pub(super) type Released<W> = (W, Option<Name>);

#[derive(Debug)]
pub(super) struct Table<W> {
    settings: VersionsSettings,
    /// The last of each is the newest. None is empty.
    keys: HashMap<Name, VecDeque<Kept>>,
    /// Versions that are not the newest of their keys, by their order.
    older: BTreeMap<u64, Name>,
    watchers: HashMap<Name, Vec<Watcher<W>>>,
    watchers_count: usize,
    /// The key and the order of what is pinned.
    pins: HashMap<Owned, (Name, u64)>,
    next_order: u64,
    counts: VersionsReport,
    /// What was dropped: it is freed where no lock is held.
    pub(super) garbage: Vec<Stored>,
}

impl<W> Table<W> {
    pub(super) fn new(settings: VersionsSettings) -> Self {
        Self {
            settings,
            keys: HashMap::default(),
            older: BTreeMap::new(),
            watchers: HashMap::default(),
            watchers_count: 0,
            pins: HashMap::default(),
            next_order: 0,
            counts: VersionsReport::default(),
            garbage: Vec::new(),
        }
    }

    fn newest(&self, key: &Name) -> Option<&Kept> {
        self.keys.get(key)?.back()
    }

    fn kept(&self, key: &Name, version: &Name) -> Option<&Kept> {
        self.keys.get(key)?.iter().rev().find(|kept| kept.version == *version)
    }

    /// Whether a push would be refused, and how.
    pub(super) fn refuses(&mut self, key: &Name, version: &Name, previous: Option<&Name>) -> Option<Pushed> {
        let outcome = self.judge(key, version, previous).err()?;
        self.counts.refused += 1;
        let newest = self.newest(key).map(|kept| kept.version.value.clone());
        Some(Pushed { outcome, newest, dropped: Vec::new() })
    }

    /// Whether a version is new, or is to be overwritten; or why it is refused.
    fn judge(&self, key: &Name, version: &Name, previous: Option<&Name>) -> Result<PushOutcome, PushOutcome> {
        let is_strict = self.settings.rules == Rules::Strict;
        let known = self.kept(key, version);
        if known.is_some() && is_strict {
            return Err(PushOutcome::AlreadyExists);
        }
        let is_fitting = match self.newest(key) {
            Some(newest) => previous == Some(&newest.version),
            None => !is_strict || previous.is_none(),
        };
        if !is_fitting && !planted::strikes(Bug::CompareSkipped) {
            return Err(PushOutcome::Stale);
        }
        match known {
            Some(known) if known.pins > 0 => Err(PushOutcome::Pinned),
            Some(_) => Ok(PushOutcome::Overwritten),
            None => Ok(PushOutcome::Accepted),
        }
    }

    /// Takes in a version, and returns those who have waited for it.
    pub(super) fn push(
        &mut self,
        key: &Name,
        version: Name,
        previous: Option<&Name>,
        content: Content,
    ) -> Result<(Pushed, Vec<Released<W>>)> {
        if let Some(refused) = self.refuses(key, &version, previous) {
            return Ok((refused, Vec::new()));
        }
        let stored = self.whole(key, content)?;
        let tensors = stored.tensors_count();
        if tensors > limits::PARTS_MAX {
            let what = format!("{tensors} tensors for key {}; the limit is {}", key.text(), limits::PARTS_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("push parts of it under keys of their own"));
        }
        if planted::strikes(Bug::PushLost) {
            let newest = Some(version.value);
            return Ok((Pushed { outcome: PushOutcome::Accepted, newest, dropped: Vec::new() }, Vec::new()));
        }
        let is_known = self.kept(key, &version).is_some();
        let (outcome, dropped) = match is_known {
            true => (PushOutcome::Overwritten, self.overwrite(key, &version, &stored)?),
            false => (PushOutcome::Accepted, self.append(key, version, stored)?),
        };
        self.counts.accepted += 1;
        let newest = self.newest(key).map(|kept| kept.version.value.clone());
        let forgotten = planted::strikes(Bug::WatchForgotten);
        let released = if forgotten { Vec::new() } else { self.release(key) };
        Ok((Pushed { outcome, newest, dropped }, released))
    }

    fn whole(&self, key: &Name, content: Content) -> Result<Stored> {
        match (content, self.newest(key)) {
            (Content::Whole(stored), _) => Ok(stored),
            (Content::Changes(mut changes), Some(newest)) => {
                if planted::strikes(Bug::DeltaMisapplied) {
                    changes.removed.clear();
                }
                newest.stored.with(&changes)
            }
            (Content::Changes(_), None) => {
                let what = format!("changes of key {}, which has no version", key.text());
                Err(Error::new(ErrorKind::NotFound, what).hint("push the whole value first"))
            }
        }
    }

    fn append(&mut self, key: &Name, version: Name, stored: Stored) -> Result<Vec<Dropped>> {
        if !self.keys.contains_key(key) && self.keys.len() >= self.settings.keys_max {
            let what = format!("key {} is one more than the table may have: {}", key.text(), self.settings.keys_max);
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("remove keys, or raise keys_max"));
        }
        let (order, bytes) = (self.next_order, stored.bytes());
        self.next_order += 1;
        self.enter(&stored);
        let versions = self.keys.entry(key.clone()).or_default();
        if let Some(before) = versions.back() {
            self.older.insert(before.order, key.clone());
        }
        versions.push_back(Kept { version, stored, order, pins: 0, is_overwritten: false });
        let mut taken = self.take_for_bytes(key);
        if self.bytes_over() {
            // As it was.
            self.put_back(taken);
            if let Some(kept) = self.keys.get_mut(key).and_then(VecDeque::pop_back) {
                self.leave(&kept.stored);
                self.garbage.push(kept.stored);
            }
            self.has_newest(key);
            return Err(self.no_room(key, bytes));
        }
        self.counts.dropped_for_bytes += taken.len() as u64;
        let for_depth = self.take_for_depth(key);
        self.counts.dropped_for_depth += for_depth.len() as u64;
        taken.extend(for_depth);
        Ok(self.discard(taken))
    }

    fn overwrite(&mut self, key: &Name, version: &Name, stored: &Stored) -> Result<Vec<Dropped>> {
        let bytes = stored.bytes();
        let before = self.replace(key, version, stored, true);
        let taken = self.take_for_bytes_beside(key, version);
        if self.bytes_over() {
            self.put_back(taken);
            if let Some((before, was_overwritten)) = before {
                let own = self.replace(key, version, &before, was_overwritten);
                self.garbage.extend(own.map(|(stored, _)| stored));
            }
            return Err(self.no_room(key, bytes));
        }
        self.garbage.extend(before.map(|(stored, _)| stored));
        self.counts.dropped_for_bytes += taken.len() as u64;
        Ok(self.discard(taken))
    }

    /// Gives a version another content, and returns the one before.
    fn replace(&mut self, key: &Name, version: &Name, stored: &Stored, is_overwritten: bool) -> Option<(Stored, bool)> {
        let kept = self.keys.get_mut(key)?.iter_mut().find(|kept| kept.version == *version)?;
        let before = std::mem::replace(&mut kept.stored, stored.clone());
        let was_overwritten = std::mem::replace(&mut kept.is_overwritten, is_overwritten);
        self.enter(stored);
        self.leave(&before);
        Some((before, was_overwritten))
    }

    /// The last version of a key is its newest, whatever it was before.
    fn has_newest(&mut self, key: &Name) {
        match self.keys.get(key).map(VecDeque::back) {
            Some(Some(newest)) => drop(self.older.remove(&newest.order)),
            Some(None) => drop(self.keys.remove(key)),
            None => {}
        }
    }

    fn enter(&mut self, stored: &Stored) {
        self.counts.bytes += stored.items().map(|item| item.enter()).sum::<u64>();
    }

    fn leave(&mut self, stored: &Stored) {
        self.counts.bytes -= stored.items().map(|item| item.leave()).sum::<u64>();
    }

    fn bytes_over(&self) -> bool {
        self.counts.bytes > self.settings.bytes_max
    }

    /// Takes out older versions until the bytes fit: first those of this key, then those of others, oldest first.
    fn take_for_bytes(&mut self, key: &Name) -> Vec<(Name, usize, Kept)> {
        let mut taken = Vec::new();
        while self.bytes_over() {
            let own = self.droppable(key).map(|at| (key.clone(), at));
            let Some((key, at)) = own.or_else(|| self.oldest_droppable(None)) else { break };
            taken.extend(self.take(&key, at));
        }
        taken
    }

    /// As [`Table::take_for_bytes`], but for one version.
    fn take_for_bytes_beside(&mut self, key: &Name, version: &Name) -> Vec<(Name, usize, Kept)> {
        let spared = self.kept(key, version).map(|kept| kept.order);
        let mut taken = Vec::new();
        while self.bytes_over() {
            let Some((key, at)) = self.oldest_droppable(spared) else { break };
            taken.extend(self.take(&key, at));
        }
        taken
    }

    fn take_for_depth(&mut self, key: &Name) -> Vec<(Name, usize, Kept)> {
        let mut taken = Vec::new();
        while self.keys.get(key).is_some_and(|versions| versions.len() > self.settings.depth) {
            let Some(at) = self.droppable(key) else { break };
            taken.extend(self.take(key, at));
        }
        taken
    }

    /// The oldest version of a key that may be dropped.
    fn droppable(&self, key: &Name) -> Option<usize> {
        let versions = self.keys.get(key)?;
        let is_free = |kept: &Kept| kept.pins == 0 || planted::strikes(Bug::PinIgnored);
        versions.iter().take(versions.len() - 1).position(is_free)
    }

    fn oldest_droppable(&self, spared: Option<u64>) -> Option<(Name, usize)> {
        self.older.iter().filter(|(order, _)| Some(**order) != spared).find_map(|(order, key)| {
            let at = self.keys.get(key)?.iter().position(|kept| kept.order == *order && kept.pins == 0)?;
            Some((key.clone(), at))
        })
    }

    /// Takes out a version that is not the newest of its key.
    fn take(&mut self, key: &Name, at: usize) -> Option<(Name, usize, Kept)> {
        let kept = self.keys.get_mut(key)?.remove(at)?;
        self.older.remove(&kept.order);
        self.leave(&kept.stored);
        Some((key.clone(), at, kept))
    }

    fn put_back(&mut self, taken: Vec<(Name, usize, Kept)>) {
        for (key, at, kept) in taken.into_iter().rev() {
            self.enter(&kept.stored);
            self.older.insert(kept.order, key.clone());
            self.keys.entry(key).or_default().insert(at, kept);
        }
    }

    fn discard(&mut self, taken: Vec<(Name, usize, Kept)>) -> Vec<Dropped> {
        let dropped = |(key, _, kept): (Name, usize, Kept)| {
            self.garbage.push(kept.stored);
            Dropped { key: key.value, version: kept.version.value }
        };
        taken.into_iter().map(dropped).collect()
    }

    fn no_room(&self, key: &Name, bytes: u64) -> Error {
        let (most, has) = (self.settings.bytes_max, self.counts.bytes);
        let what = format!(
            "a value of {bytes} bytes for key {} in a table that may have {most}: it has {has}, with {} newest \
             versions, which are kept for their keys, and {} pins",
            key.text(),
            self.keys.len(),
            self.pins.len()
        );
        Error::new(ErrorKind::LimitExceeded, what).hint("remove keys, release pins, or raise bytes_max")
    }

    /// Those who wait for another version of this key than they have, and it is there.
    fn release(&mut self, key: &Name) -> Vec<Released<W>> {
        let Some(newest) = self.keys.get(key).and_then(VecDeque::back) else { return Vec::new() };
        let Some(watchers) = self.watchers.get_mut(key) else { return Vec::new() };
        let is_other = |watcher: &mut Watcher<W>| watcher.newer_than.as_ref() != Some(&newest.version);
        let released: Vec<_> = watchers.extract_if(.., is_other).collect();
        if watchers.is_empty() {
            self.watchers.remove(key);
        }
        self.watchers_count -= released.len();
        released.into_iter().map(|watcher| (watcher.waits, watcher.newer_than)).collect()
    }

    /// Finds a version.
    pub(super) fn pull(&self, key: &Name, want: &Want) -> Option<(Name, Found)> {
        let versions = self.keys.get(key)?;
        let newest = versions.back()?;
        let whole = |kept: &Kept| (kept.version.clone(), Found::Whole(kept.stored.clone()));
        match want {
            Want::Newest if versions.len() > 1 && planted::strikes(Bug::PullStale) => {
                versions.get(versions.len() - 2).map(whole)
            }
            Want::Newest => Some(whole(newest)),
            Want::Version(version) => self.kept(key, version).map(whole),
            Want::NewerThan(version) => {
                let before = self.kept(key, version).filter(|kept| !kept.is_overwritten);
                match before {
                    None => Some(whole(newest)),
                    Some(before) if before.order == newest.order => Some((newest.version.clone(), Found::Unchanged)),
                    Some(before) => Some(match newest.stored.since(&before.stored) {
                        None => whole(newest),
                        Some(mut changes) => {
                            if planted::strikes(Bug::ChangeOmitted) {
                                changes.changed.pop();
                            }
                            (newest.version.clone(), Found::Changes(changes))
                        }
                    }),
                }
            }
        }
    }

    /// Whether a key has another version than this one.
    pub(super) fn has_other(&self, key: &Name, newer_than: Option<&Name>) -> bool {
        self.newest(key).is_some_and(|newest| Some(&newest.version) != newer_than)
    }

    /// Has somebody wait for another version of a key than it has. Those that are not wanted any more make room where
    /// it is needed, and are returned, for what ends them must not run under a lock.
    pub(super) fn watch(
        &mut self,
        key: &Name,
        newer_than: Option<Name>,
        owned: Owned,
        waits: W,
        is_wanted: impl Fn(&W) -> bool,
    ) -> Result<Vec<W>, (W, Error)> {
        let mut unwanted = Vec::new();
        if self.watchers_count >= limits::VERSIONS_WATCHERS_MAX {
            unwanted = self.retain_watchers(|watcher| is_wanted(&watcher.waits));
        }
        if self.watchers_count >= limits::VERSIONS_WATCHERS_MAX {
            let what = format!("{} watches at one table", self.watchers_count);
            return Err((waits, Error::new(ErrorKind::LimitExceeded, what).hint("cancel those that are not used")));
        }
        self.watchers_count += 1;
        self.watchers.entry(key.clone()).or_default().push(Watcher { owned, newer_than, waits });
        Ok(unwanted)
    }

    /// Ends the watches that `ends` is true of.
    pub(super) fn unwatch_where(&mut self, ends: impl Fn(&W) -> bool) -> Vec<W> {
        self.retain_watchers(|watcher| !ends(&watcher.waits))
    }

    /// The key of a watch that `is_it` is true of.
    pub(super) fn watched(&self, is_it: impl Fn(NodeId, &W) -> bool) -> Option<&Name> {
        let has_it = |watchers: &Vec<Watcher<W>>| watchers.iter().any(|watcher| is_it(watcher.owned.0, &watcher.waits));
        self.watchers.iter().find(|(_, watchers)| has_it(watchers)).map(|(key, _)| key)
    }

    fn retain_watchers(&mut self, stays: impl Fn(&Watcher<W>) -> bool) -> Vec<W> {
        let mut gone = Vec::new();
        self.watchers.retain(|_, watchers| {
            gone.extend(watchers.extract_if(.., |watcher| !stays(watcher)).map(|watcher| watcher.waits));
            !watchers.is_empty()
        });
        self.watchers_count -= gone.len();
        gone
    }

    /// Ends a watch.
    pub(super) fn unwatch(&mut self, key: &Name, owned: Owned) -> Option<W> {
        let watchers = self.watchers.get_mut(key)?;
        let at = watchers.iter().position(|watcher| watcher.owned == owned)?;
        let watcher = watchers.swap_remove(at);
        if watchers.is_empty() {
            self.watchers.remove(key);
        }
        self.watchers_count -= 1;
        Some(watcher.waits)
    }

    /// Keeps a version until it is [unpinned](Table::unpin), and returns which it is.
    pub(super) fn pin(&mut self, key: &Name, version: Option<&Name>, owned: Owned) -> Result<Option<Name>> {
        if self.pins.len() >= limits::VERSIONS_PINS_MAX {
            let what = format!("{} pins at one table", self.pins.len());
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("release those that are not used"));
        }
        if self.pins.contains_key(&owned) {
            return Err(Error::new(ErrorKind::Protocol, format!("a second pin with the number {}", owned.1)));
        }
        let Some(versions) = self.keys.get_mut(key) else { return Ok(None) };
        let kept = match version {
            None => versions.back_mut(),
            Some(version) => versions.iter_mut().find(|kept| kept.version == *version),
        };
        let Some(kept) = kept else { return Ok(None) };
        kept.pins += 1;
        self.pins.insert(owned, (key.clone(), kept.order));
        Ok(Some(kept.version.clone()))
    }

    pub(super) fn has_pin(&self, owned: Owned) -> bool {
        self.pins.contains_key(&owned)
    }

    /// Ends a pin. What is over the depth of its key is dropped.
    pub(super) fn unpin(&mut self, owned: Owned) -> bool {
        self.unpin_all(&[owned]) > 0
    }

    /// Ends pins, all of them before anything is dropped, so that the oldest versions are.
    fn unpin_all(&mut self, pins: &[Owned]) -> usize {
        let ended: Vec<(Name, u64)> = pins.iter().filter_map(|owned| self.pins.remove(owned)).collect();
        for (key, order) in &ended {
            let versions = self.keys.get_mut(key);
            if let Some(kept) = versions.and_then(|versions| versions.iter_mut().find(|kept| kept.order == *order)) {
                kept.pins -= 1;
            }
        }
        for (key, _) in &ended {
            let taken = self.take_for_depth(key);
            self.counts.dropped_for_depth += taken.len() as u64;
            self.discard(taken);
        }
        ended.len()
    }

    /// A node is gone. Returns its watches, and ends its pins.
    pub(super) fn lose(&mut self, node: NodeId) -> (Vec<W>, Vec<Owned>) {
        let mut watches = Vec::new();
        if !planted::strikes(Bug::WatchOutlives) {
            watches = self.retain_watchers(|watcher| watcher.owned.0 != node);
        }
        let pins: Vec<Owned> = self.pins.keys().filter(|(owner, _)| *owner == node).copied().collect();
        if !planted::strikes(Bug::PinOutlives) {
            self.unpin_all(&pins);
        }
        (watches, pins)
    }

    /// The versions of a key, the newest last.
    pub(super) fn versions(&self, key: &Name) -> Vec<Value> {
        let versions = self.keys.get(key).into_iter().flatten();
        versions.map(|kept| kept.version.value.clone()).collect()
    }

    /// Drops a key with all its versions, pinned or not.
    pub(super) fn remove(&mut self, key: &Name) -> bool {
        let Some(versions) = self.keys.remove(key) else { return false };
        for kept in versions {
            self.older.remove(&kept.order);
            self.leave(&kept.stored);
            self.garbage.push(kept.stored);
            self.counts.removed += 1;
        }
        true
    }

    pub(super) fn report(&self) -> VersionsReport {
        let versions = self.keys.values().map(VecDeque::len).sum();
        let (keys, watches, pins) = (self.keys.len(), self.watchers_count, self.pins.len());
        VersionsReport { keys, versions, watches, pins, ..self.counts.clone() }
    }

    /// What there is, in words.
    pub(super) fn describe(&self, key: &Name) -> String {
        let versions = self.versions(key);
        let newest = versions.last().map_or_else(|| "no version".to_owned(), text_of);
        format!("key {} has {newest} as its newest", key.text())
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
