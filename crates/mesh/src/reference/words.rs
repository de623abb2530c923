//! What nodes tell each other about references, and how it gets there.
//!
//! **When.** Words wait until there are some ([`RIDE_MIN`]), and then for the next request or answer to their node, in
//! front of which they go; or for a timer that is set with the first word that waits ([`limits::REFERENCE_FLUSH`]). So
//! a drop costs a look into a table; only the first of many sets the timer, and one that fills a message makes it act
//! at once.
//!
//! **In order.** Who sends words holds a lock meanwhile, so that those of one batch go before those of the next. A
//! message may still pass words that another thread is about to send: it is heard before them, which means something
//! to nobody, for words that give wait for nothing and those that take back may be late.

use super::linking::Next;
use super::name::{Name, is_plain};
use super::promise::Asking;
use super::table::References;
use crate::call::{method_of, references_in};
use crate::driver::Shared;
use crate::endpoints::{REFERENCES, REQUESTS};
use serde::{Deserialize, Serialize};
use sheave_base::clock::Clock;
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Peer, Result, Tag, limits};
use sheave_net::{Envelope, Message, Outgoing};
use sheave_wire::{from_control, to_control};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// Words that go in front of a message: fewer are not worth one of their own, and wait for more or for the timer.
pub(super) const RIDE_MIN: usize = 16;

/// Words in one message: some 30 KiB.
pub(super) const BATCH_MAX: usize = 4096;

/// What nodes tell each other about references.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    /// To the owner: I was given your object by `giver`, so often; count me.
    Count { id: u64, giver: NodeId, times: u64 },
    /// To the giver: so many references that you passed to `holder` are counted, or need to be no more.
    Confirm { holder: NodeId, owner: NodeId, id: u64, times: u64 },
    /// To the owner: so many counts of mine come back.
    Release { id: u64, counts: u64 },
    /// To a holder: I have no such object any more.
    Gone { id: u64 },
    /// To the owner: the call that was to fill this promise of mine has failed.
    Broken { id: u64, cause: Cause },
}

/// Why a promise is broken, as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cause {
    kind: ErrorKind,
    what: String,
    /// Whom it is about.
    about: Option<Peer>,
}

impl Cause {
    pub(super) fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        let what: String = what.into();
        Self { kind, what: what.chars().take(limits::FAILURE_CHARACTERS_MAX).collect(), about: None }
    }

    /// That the call of this name, which was to fill it, has failed.
    pub(super) fn of_call(call: &str, error: &Error) -> Self {
        let what = format!("the call to {call} that was to fill it failed: {}", error.what());
        Self { about: error.about().cloned(), ..Self::new(error.kind(), what) }
    }

    /// The error of those who use the promise.
    pub(super) fn error(&self, name: Name) -> Error {
        // It may come from another node.
        let what: String = self.what.chars().take(limits::FAILURE_CHARACTERS_MAX).collect();
        let error = Error::new(self.kind, what).context(name).operation("object");
        self.about.iter().fold(error, |error, peer| error.peer(peer.clone()))
    }
}

impl References {
    /// The references that came with a call or an answer. Called in the order of the message's link.
    /// Those to objects of owners that `may_bring` says no to are none.
    pub(crate) fn brought(
        self: &Arc<Self>,
        from: NodeId,
        message: &Message,
        may_bring: impl Fn(NodeId) -> bool,
    ) -> super::Brought {
        // A message without any says so, and no lock is taken for it.
        let names = references_in(message);
        if names.is_empty() {
            return super::Brought::default();
        }
        if let Some(mention) = names.iter().find(|mention| !may_bring(mention.name.owner)) {
            let owner = mention.name.owner;
            let what = format!("a reference to an object of node {owner}, which its sender must not pass on");
            return super::Brought { error: Some(Error::new(ErrorKind::Protocol, what)), ..super::Brought::default() };
        }
        let asks = message.envelope.endpoint == REQUESTS && names.iter().any(|mention| mention.fills);
        let asking = || Asking { from, number: message.envelope.correlation, method: method_of(message) };
        let asking = asks.then(|| Arc::new(asking()));
        self.adopt(from, &names, asking)
    }

    /// Whether words of `from` are to be heard.
    ///
    /// # Errors
    ///
    /// `Protocol` for words that name who is no member, or that only another node may say. A host and its guest speak
    /// about their own objects and each other's, for there are no others between them.
    pub(super) fn check(&self, from: NodeId, words: &[Word]) -> Result<bool> {
        // Before all members are known nobody can have been given anything.
        let Some(members) = self.members.get() else { return Ok(false) };
        let is_member = members.has(from);
        if !is_member && !self.is_attached(from) {
            return Ok(false);
        }
        let is_fine = |word: &Word| match *word {
            Word::Release { id, .. } | Word::Gone { id } => is_plain(id),
            _ if !is_member => false,
            Word::Count { id, giver, .. } => is_plain(id) && members.has(giver),
            Word::Confirm { holder, owner, id, .. } => is_plain(id) && members.has(holder) && members.has(owner),
            Word::Broken { id, .. } => {
                is_plain(id) && self.drawer(Name { owner: self.me, id }).is_some_and(|(drawer, _)| drawer == from)
            }
        };
        match words.iter().find(|word| !is_fine(word)) {
            Some(word) => Err(Error::new(ErrorKind::Protocol, format!("{word:?} is not for node {from} to say"))),
            None => Ok(true),
        }
    }
}

impl Shared {
    /// Words about references have come. The link's poll token is held.
    pub(crate) fn hear_words(&self, from: NodeId, words: &[u8]) -> Result<()> {
        let words: Vec<Word> = from_control(words)?;
        if self.references.check(from, &words)? {
            self.references.heard(from, words);
        }
        Ok(())
    }

    /// Drops what is to be dropped with no lock held.
    pub(crate) fn tend_references(&self) {
        while self.references.due.load(SeqCst) && self.references.due.swap(false, SeqCst) {
            drop(self.references.take_garbage());
        }
    }

    /// Sends all words that wait, after that span.
    pub(crate) fn flush_words_in(&self, span: Duration) {
        let weak = self.weak();
        let at = self.deadline(span);
        let set = self.ticker.at(at, move || {
            if let Some(shared) = weak.upgrade() {
                shared.flush_words();
            }
        });
        match set {
            Ok(timer) => timer.detach(),
            Err(error) if error.kind() == ErrorKind::LimitExceeded => {
                self.references.is_flush_due.store(true, SeqCst);
                self.ticker.ring_at(at);
            }
            // Nothing is said any more.
            Err(_) => {}
        }
    }

    /// Sends all words that wait. Does not block.
    pub(crate) fn flush_words(self: &Arc<Self>) {
        let references = &self.references;
        references.is_flush_due.store(true, SeqCst);
        while references.is_flush_due.load(SeqCst) {
            // In order, so one at a time; the holder looks again after it has let go.
            let Some(_turn) = references.telling.try_lock() else { return };
            references.is_flush_due.store(false, SeqCst);
            for to in references.begin_flush() {
                self.send_words(to);
            }
        }
    }

    /// A message is about to go to that node: what waits for it goes in front. Does not block.
    pub(crate) fn words_ride(self: &Arc<Self>, to: NodeId) {
        let references = &self.references;
        if !references.has_words.load(Relaxed) || !references.has_words_for(to, RIDE_MIN) {
            return;
        }
        {
            let Some(_turn) = references.telling.try_lock() else { return };
            self.send_words(to);
        }
        if references.is_flush_due.load(SeqCst) {
            self.flush_words();
        }
    }

    /// As [`Shared::words_ride`], where the message goes over that link.
    pub(crate) fn words_ride_on(self: &Arc<Self>, link: LinkId) {
        if self.references.has_words.load(Relaxed)
            && let Ok(link) = self.node.link(link)
        {
            self.words_ride(self.node_of(link.peer()));
        }
    }

    /// Sends the words for a node, over the link on which everything else is said to it.
    fn send_words(self: &Arc<Self>, to: NodeId) {
        let Some(link) = self.routes.get(to) else {
            return self.link_for_words(to);
        };
        loop {
            let words = self.references.take_words(to, BATCH_MAX);
            if words.is_empty() {
                return;
            }
            if let Err(error) = self.send_batch(link, &words) {
                // The link is about to be known as ended. If its node is gone the words go with it.
                self.references.put_back(to, words);
                return self.words_failed(to, &error);
            }
            self.references.linked(to);
        }
    }

    fn send_batch(&self, link: LinkId, words: &[Word]) -> Result<()> {
        let envelope = Envelope::of(REFERENCES, Tag(0), 0);
        self.node.isend(link, Outgoing::control(envelope, to_control(words)?)).map(drop)?;
        #[cfg(test)]
        self.references.messages.fetch_add(1, SeqCst);
        Ok(())
    }

    fn link_for_words(self: &Arc<Self>, to: NodeId) {
        if !self.references.begins_linking(to, self.clock().now()) {
            return;
        }
        let weak = self.weak();
        self.link_to(to).on_complete(move |outcome| {
            let Some(shared) = weak.upgrade() else { return };
            match outcome {
                Ok(_) => {
                    shared.references.linked(to);
                    shared.flush_words_in(Duration::ZERO);
                }
                Err(error) => shared.words_failed(to, error),
            }
        });
    }

    /// Words for a node could not be sent: they are soon, so often.
    fn words_failed(&self, to: NodeId, error: &Error) {
        match self.references.linking_failed(to, self.clock().now()) {
            Next::Pause(pause) => self.flush_words_in(pause),
            // The engine has heard of each failure, and decides what has become of the node.
            Next::GiveUp if self.death_of(to).is_none() => {
                let name = self.name_of(to);
                let text = format!("what {name} is to know of references waits for its next call: {error}");
                (self.node_config().notice)(&text);
            }
            Next::GiveUp => {}
        }
    }

    /// Why `node` is gone.
    pub(crate) fn loss(&self, node: NodeId, error: Error) -> Error {
        self.death_of(node).unwrap_or_else(|| self.about(error, node))
    }
}
