//! Orderly leaves: a member asks, the coordinator takes it out with the next decision, and it goes when it knows that.
//!
//! A wish to leave is never taken back, so it may be told to anybody, by anybody and at any time; only a decision makes
//! it count. Until then the leaver is a member like any other, whose vote may be needed.
//!
//! **Last words.** A leaver has passed its barriers, and others may still be about to: their release is on its way from
//! the group's first member while the news of the leave come from somebody else. So a leave does not end a barrier that
//! waits, as a death does. The first member breaks the group and says so on the link on which it has said `Release`; if
//! it is the one that left, its last word on that link is the `Commit` that takes it out.

use super::message::AFTER_LOSS;
use super::{Effect, Engine, Message, OperationId, Outcome, Pending, Phase};
use sheave_base::clock::Time;
use sheave_base::{Error, ErrorKind, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Lost members that the reason of a failure names. It is repeated in the errors of all others.
const CAUSES_MAX: usize = 4;

/// The word between them.
const AND: &str = " and ";

#[derive(Default)]
pub(super) struct Leaving {
    /// Whether this node wants to leave.
    pub(super) is_wished: bool,
    /// Living members that want to leave, this node among them.
    pub(super) wishes: BTreeSet<NodeId>,
    /// First members of groups from which a departed member's partners await a last word, and until when.
    pub(super) last_words: BTreeMap<NodeId, Time>,
}

impl Engine {
    /// How many members have left in an orderly way.
    #[must_use]
    pub fn num_left(&self) -> usize {
        self.deaths.iter().filter(|death| death.left).count()
    }

    /// Whether this node has left: nothing can be done with this engine any more, and nothing went wrong.
    #[must_use]
    pub fn has_left(&self) -> bool {
        matches!(self.phase, Phase::Left)
    }

    pub(super) fn begin_leave(&mut self, operation: OperationId) {
        if let Err(error) = self.check_active().and_then(|()| self.check_new(operation)) {
            return self.complete(operation, Err(error.operation("leave")));
        }
        self.operations.insert(operation, Pending::Leave { begun: self.now });
        if !self.leaving.is_wished {
            self.watch.patience_begins(self.now);
            self.leaving.is_wished = true;
            self.leaving.wishes.insert(self.me);
            self.reconsider();
        }
        if self.faults.leaves_undecided() {
            self.depart();
        }
    }

    /// A member wants to leave. A wish that comes while a decision is under way waits for the next one, together with
    /// all others that come by then.
    pub(super) fn asked_to_leave(&mut self, from: NodeId) {
        let is_new = self.is_living(from) && self.leaving.wishes.insert(from);
        if is_new && self.acting_coordinator() == self.me && !self.is_proposing() {
            self.reconsider();
        }
    }

    /// It is decided that this node has left. Whoever has a link to it must know before that link ends, and the
    /// coordinator and its successor in any case: the one that decided may be gone before it has told them.
    pub(super) fn depart(&mut self) {
        let message = self.commit();
        // What broke a group is told before this departure, which would break it too. That a member is gone all know.
        let words = self.words_about_broken_groups(|broken| !broken.by_death);
        for next in self.living().take(2).collect::<Vec<_>>() {
            let to_it = words.iter().filter(|(nodes, _)| nodes.contains(&next));
            for word in to_it.map(|(_, word)| word.clone()).chain([message.clone()]).collect::<Vec<_>>() {
                self.send(next, word);
            }
        }
        self.effects.extend(words.into_iter().map(|(nodes, message)| Effect::Farewell { nodes, message }));
        let nodes = self.table.iter().map(|member| member.node).collect();
        self.effects.push(Effect::Farewell { nodes, message });
        for operation in self.operations.keys().copied().collect::<Vec<_>>() {
            match self.operations.get(&operation) {
                Some(Pending::Leave { .. }) => self.complete(operation, Ok(Outcome::Left)),
                _ => self.end_with(operation, &left_error()),
            }
        }
        self.phase = Phase::Left;
    }

    /// This node gives up its membership, and says why on every link that it has. Whoever has none hears it from them.
    pub(super) fn fail_openly(&mut self, reason: &str) {
        let reason = &format!("{reason}{}", self.after_losses());
        self.say_failed(reason);
        self.fail(Error::new(ErrorKind::Closed, format!("this node has failed: {reason}")));
    }

    /// The members that are lost in this epoch, as far as this node knows: they may be why it fails, for most programs
    /// end when they read of that. Of one that failed for a loss itself, those whom it had lost.
    fn after_losses(&self) -> String {
        let died = self.deaths.iter().filter(|death| !death.left && death.epoch == self.epoch);
        let died = died.map(|death| (death.node, death.reason.as_str()));
        let lost = self.watch.suspected.iter().chain(&self.watch.lost_by_others);
        let lost = lost.map(|(node, reason)| (*node, reason.as_str()));
        let mut causes: Vec<String> = Vec::new();
        for (node, reason) in died.chain(lost) {
            let own = self.peer_of(node).name;
            let names = reason.rsplit_once(AFTER_LOSS).map_or(own.as_str(), |(_, names)| names);
            for name in names.split(AND) {
                if causes.len() < CAUSES_MAX && causes.iter().all(|cause| cause != name) {
                    causes.push(name.to_owned());
                }
            }
        }
        if causes.is_empty() { String::new() } else { format!("{AFTER_LOSS}{}", causes.join(AND)) }
    }

    pub(super) fn say_failed(&mut self, reason: &str) {
        if self.is_active() {
            // What has broken its groups is why it fails, if the others do not know of that yet: they must read of it
            // first. Of whom has left nobody is told by anybody but a group's first member.
            let words = self.words_about_broken_groups(|broken| !self.has_left_in_order(broken.about));
            self.effects.extend(words.into_iter().map(|(nodes, message)| Effect::Farewell { nodes, message }));
            let nodes = self.table.iter().map(|member| member.node).collect();
            let message = Message::Failed { epoch: self.epoch, reason: reason.to_owned() };
            self.effects.push(Effect::Farewell { nodes, message });
        }
    }

    /// The error about a member that left.
    pub(super) fn departed(&self, node: NodeId) -> Error {
        let about = format!("{} left the mesh", self.peer_of(node).name);
        let hint = "shrink the group to go on without it";
        Error::new(ErrorKind::PeerLost, about).peer(self.peer_of(node)).hint(hint)
    }

    /// A group's first member has said all that it ever will about groups with departed members.
    pub(super) fn last_word(&mut self, first: NodeId) {
        if self.leaving.last_words.remove(&first).is_some() {
            self.end_broken_barriers(first);
        }
    }

    pub(super) fn poll_last_words(&mut self) {
        let now = self.now;
        let late: Vec<NodeId> =
            self.leaving.last_words.iter().filter(|(_, until)| now >= **until).map(|(first, _)| *first).collect();
        for first in late {
            self.last_word(first);
        }
    }
}

pub(super) fn left_error() -> Error {
    Error::new(ErrorKind::Closed, "this node has left the mesh")
}
