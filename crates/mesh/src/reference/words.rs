//! What nodes tell each other about references, and how it gets there.

use super::Name;
use super::table::References;
use crate::call::references_in;
use crate::driver::Shared;
use crate::endpoints::REFERENCES;
use serde::{Deserialize, Serialize};
use sheave_base::clock::{Clock, Time};
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result, Tag};
use sheave_net::{Envelope, Message, Outgoing};
use sheave_wire::{Value, from_control, to_control};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Words in one message.
const BATCH_MAX: usize = 1024;

/// When words that found no room on their link, or no link, are tried again.
const AGAIN: Duration = Duration::from_millis(10);

/// What nodes tell each other about references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// To the owner: I was given your object by `giver`; count me.
    Count { id: u64, giver: NodeId },
    /// To the giver: the reference that you passed to `holder` is counted, or needs to be no more.
    Confirm { holder: NodeId, owner: NodeId, id: u64 },
    /// To the owner: so many counts of mine come back.
    Release { id: u64, counts: u64 },
    /// To a holder: I have no such object any more.
    Gone { id: u64 },
}

/// The references in a value, each as often as it occurs.
pub(crate) fn names_in(value: &Value) -> Vec<Name> {
    fn walk(value: &Value, names: &mut Vec<Name>) {
        match value {
            Value::Ref { node, id } => names.push(Name { owner: *node, id: *id }),
            Value::List(items) => items.iter().for_each(|item| walk(item, names)),
            Value::Map(entries) => entries.iter().for_each(|(_, value)| walk(value, names)),
            _ => {}
        }
    }
    let mut names = Vec::new();
    walk(value, &mut names);
    names
}

impl References {
    /// The references that came with a call or an answer. Called in the order of the message's link.
    pub(crate) fn brought(self: &Arc<Self>, from: NodeId, message: &Message) -> super::Brought {
        // A message without any says so, and no lock is taken for it.
        let names = references_in(message);
        if names.is_empty() { super::Brought::default() } else { self.adopt(from, &names) }
    }
}

impl Shared {
    /// Words about references have come. The link's poll token is held.
    pub(crate) fn hear_words(&self, from: NodeId, words: &[u8]) -> Result<()> {
        let words: Vec<Word> = from_control(words)?;
        // Nobody is looked for who is no member, however often a peer says its name.
        let is_known = |node: NodeId| self.table().is_empty() || self.member(node).is_some();
        let named = |word: &Word| match word {
            Word::Count { giver, .. } => is_known(*giver),
            Word::Confirm { holder, owner, .. } => is_known(*holder) && is_known(*owner),
            Word::Release { .. } | Word::Gone { .. } => true,
        };
        if !is_known(from) {
            return Ok(());
        }
        if !words.iter().all(named) {
            return Err(Error::new(ErrorKind::Protocol, "a word about a reference of a node that is no member"));
        }
        self.references.heard(from, &words);
        Ok(())
    }

    /// Drops what is to be dropped with no lock held, and sends words that wait. Does not block.
    pub(crate) fn tend_references(self: &Arc<Self>) {
        let references = &self.references;
        while references.due.load(SeqCst) {
            // In order, so one at a time; the holder looks again after it has let go.
            let Some(_turn) = references.tending.try_lock() else { return };
            references.due.store(false, SeqCst);
            drop(references.take_garbage());
            for to in references.addressees() {
                self.send_words(to);
            }
        }
    }

    fn send_words(self: &Arc<Self>, to: NodeId) {
        if !self.table().is_empty() && self.member(to).is_none() {
            return self.references.lost(to);
        }
        let Some(link) = self.routes.get(to) else {
            return self.link_for_words(to);
        };
        loop {
            let words = self.references.take_words(to, BATCH_MAX);
            if words.is_empty() {
                return;
            }
            if self.send_batch(link, &words).is_err() {
                // The link is full, or about to be known as ended. If its node is gone the words go with it.
                self.references.put_back(to, words);
                return self.ticker.ring_at(self.deadline(AGAIN));
            }
        }
    }

    fn send_batch(&self, link: LinkId, words: &[Word]) -> Result<()> {
        let envelope = Envelope::of(REFERENCES, Tag(0), 0);
        self.node.isend(link, Outgoing::control(envelope, to_control(words)?)).map(drop)
    }

    fn link_for_words(self: &Arc<Self>, to: NodeId) {
        if !self.references.begins_connecting(to) {
            return;
        }
        let shared = Arc::downgrade(self);
        self.link_to(to).on_complete(move |outcome| {
            let Some(shared) = shared.upgrade() else { return };
            shared.references.ends_connecting(to);
            // One that cannot be reached is soon known to be gone.
            let pause = if outcome.is_ok() { Duration::ZERO } else { AGAIN };
            shared.references.due.store(true, SeqCst);
            shared.ticker.ring_at(shared.deadline(pause));
        });
    }

    /// Rings the mesh's own thread, from any thread and under any lock.
    pub(crate) fn ring_for_references(&self) {
        let now: Time = self.clock().now();
        self.ticker.ring_at(now);
    }

    /// Why `node` is gone.
    pub(crate) fn loss(&self, node: NodeId, error: Error) -> Error {
        self.death_of(node).unwrap_or_else(|| self.about(error, node))
    }
}
