//! Liveness: who is asked whether it lives, who is suspected, and what a suspicion leads to.

use super::message::HOLDS_DEAD;
use super::{Death, Effect, Engine, FAILED, GIVEN_UP, Message};
use sheave_base::clock::Time;
use sheave_base::limits::FAILURE_CHARACTERS_MAX;
use sheave_base::{Epoch, Error, ErrorKind, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Suspicions that have not led to a new epoch within this many timeouts of the first one never will: no majority can
/// be reached. Four silent successors in a row fit in; counting anew with each would take a minority hours to give up.
const PATIENCE_TIMEOUTS: u32 = 5;

/// How long a node waits before it holds itself for cut off. Two members that leave together may end their links before
/// the decision that they have left has come, over a link that one of them has only just made. And the links of a
/// process that is killed end before the system says that it has ended, which takes longer the busier the machine is.
const MINORITY_GRACE: Duration = Duration::from_millis(500);

/// How soon a node in a minority looks again whether the others' processes have ended.
const MINORITY_LOOK: Duration = Duration::from_millis(2);

#[derive(Default)]
pub(super) struct Watch {
    pub(super) next_beat: Time,
    heard: BTreeMap<NodeId, Time>,
    /// Whom we ask for signs of life, and since when.
    asked: BTreeMap<NodeId, Time>,
    /// Living members that look dead to us, and why.
    pub(super) suspected: BTreeMap<NodeId, String>,
    /// Living members whose processes have ended for sure.
    ended: BTreeSet<NodeId>,
    /// Members that were silent when this node suspected them. It may have been silent to them too.
    silent: BTreeSet<NodeId>,
    /// This node was stopped in this epoch for so long that the others may have gone on without it.
    was_away: bool,
    /// Those whom this node has answered a proposal without; what they said before they ended is never heard here.
    renounced: BTreeSet<NodeId>,
    /// Living members that others have lost, and why, as they said when groups broke for it.
    pub(super) lost_by_others: BTreeMap<NodeId, String>,
    /// What others told us: the suspect, who said so, and why. Used once we coordinate.
    accusations: BTreeMap<NodeId, (NodeId, String)>,
    patience_began: Time,
    /// Since when too few are left to decide anything with.
    minority_since: Option<Time>,
    pub(super) polled: Time,
}

impl Watch {
    pub(super) fn begin(&mut self, now: Time) {
        (self.next_beat, self.polled) = (now, now);
    }

    pub(super) fn heard(&mut self, from: NodeId, now: Time) {
        self.heard.insert(from, now);
    }

    pub(super) fn suspects(&self, node: NodeId) -> bool {
        self.suspected.contains_key(&node)
    }

    pub(super) fn has_renounced(&self, node: NodeId) -> bool {
        self.renounced.contains(&node)
    }

    /// Forgets a dead node.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.heard.remove(&node);
        self.ended.remove(&node);
        self.silent.remove(&node);
        self.asked.remove(&node);
        self.suspected.remove(&node);
        self.lost_by_others.remove(&node);
        self.accusations.remove(&node);
        self.accusations.retain(|_, (accuser, _)| *accuser != node);
    }

    /// Something must be decided from now on, unless something else must be already.
    pub(super) fn patience_begins(&mut self, now: Time) {
        if self.suspected.is_empty() {
            self.patience_began = now;
        }
    }

    /// The suspicion that remains in a new epoch gets its time anew.
    pub(super) fn epoch_began(&mut self, now: Time) {
        self.patience_began = now;
        self.minority_since = None;
        self.was_away = false;
    }

    fn last_sign(&self, node: NodeId, since: Time) -> Time {
        self.heard.get(&node).map_or(since, |heard| since.max(*heard))
    }

    /// Another member says that it has lost `node`.
    pub(super) fn hears_of_loss(&mut self, node: NodeId, reason: &str) {
        self.lost_by_others.entry(node).or_insert_with(|| reason.to_owned());
    }

    pub(super) fn accused(&mut self, suspect: NodeId, accuser: NodeId, reason: String) {
        self.accusations.entry(suspect).or_insert((accuser, reason));
    }
}

impl Engine {
    /// The living member that coordinates, as far as we know: the first one that we do not suspect.
    pub(super) fn acting_coordinator(&self) -> NodeId {
        self.living().find(|node| !self.watch.suspects(*node)).unwrap_or(self.me)
    }

    /// The liveness half of a poll.
    pub(super) fn poll_liveness(&mut self) {
        let now = self.now;
        self.choose_whom_to_ask();
        let timeout = self.config.liveness.timeout;
        let silent = |(node, since): (&NodeId, &Time)| {
            let last = self.watch.last_sign(*node, *since);
            (now >= last.after(timeout)).then_some((*node, now.since(last)))
        };
        let silent: Vec<_> = self.watch.asked.iter().filter_map(silent).collect();
        for (node, silence) in silent {
            self.watch.silent.insert(node);
            self.suspect(node, format!("it gave no sign of life for {} ms", silence.as_millis()));
        }
        if now >= self.watch.next_beat {
            self.watch.next_beat = now.after(self.config.liveness.beat);
            let asked: Vec<NodeId> = self.watch.asked.keys().copied().collect();
            for node in asked {
                self.send(node, Message::Beat { epoch: self.epoch, answer: false });
            }
            self.repeat_entries();
            self.tell_waits();
            self.drop_idle_groups();
            self.reconsider();
        }
        self.poll_last_words();
        self.poll_away();
        let is_grace_over =
            |watch: &Watch| watch.minority_since.is_some_and(|since| now >= since.after(MINORITY_GRACE));
        if is_grace_over(&self.watch) {
            self.reconsider();
        }
        // Not before all that the system has said by now was heard.
        if self.is_active() && is_grace_over(&self.watch) {
            self.isolated();
        }
        if self.is_active() && self.out_of_patience().is_some_and(|end| now >= end) {
            self.isolated();
        }
    }

    /// When it is in vain to wait for a decision any longer, if one is needed.
    fn out_of_patience(&self) -> Option<Time> {
        let is_needed = !self.watch.suspected.is_empty() || self.leaving.is_wished;
        is_needed.then(|| self.watch.patience_began.after(self.config.liveness.timeout * PATIENCE_TIMEOUTS))
    }

    /// The peer lives, as its driver saw.
    pub(super) fn watch_hears(&mut self, peer: NodeId) {
        if self.is_living(peer) {
            self.watch.heard(peer, self.now);
        }
    }

    /// A link of an active node ended.
    pub(super) fn link_lost(&mut self, peer: NodeId, reason: String) {
        if self.away.is_held_by(peer) {
            // It has said why before.
        } else if self.is_living(peer) {
            self.suspect(peer, reason);
        } else {
            self.last_word(peer);
        }
    }

    /// When liveness needs the next poll.
    pub(super) fn liveness_timer(&self) -> Time {
        let timeout = self.config.liveness.timeout;
        let expiries = self.watch.asked.iter().map(|(node, since)| self.watch.last_sign(*node, *since).after(timeout));
        let last_words = self.leaving.last_words.values().copied();
        let soon = self.now.after(MINORITY_LOOK);
        let minority = self.watch.minority_since.map(|since| since.after(MINORITY_GRACE).min(soon));
        let last_words = last_words.chain(minority).chain(self.away.until);
        expiries.chain(self.out_of_patience()).chain(last_words).fold(self.watch.next_beat, Time::min)
    }

    /// The coordinator asks everybody, everybody asks the coordinator, and both sides of a pending barrier ask each
    /// other; so there is no full mesh of beats.
    fn choose_whom_to_ask(&mut self) {
        let now = self.now;
        let coordinator = self.acting_coordinator();
        let mut wanted: BTreeSet<NodeId> = self.partners_in_barriers();
        if coordinator == self.me {
            wanted.extend(self.living());
        } else {
            wanted.insert(coordinator);
        }
        wanted.retain(|node| *node != self.me && self.is_living(*node) && !self.watch.suspects(*node));
        self.watch.asked.retain(|node, _| wanted.contains(node));
        // If nobody polled us for long we were stopped, and the silence was ours.
        if now.since(self.watch.polled) > self.config.liveness.beat * 2 {
            self.watch.asked.clear();
            self.watch.was_away |= now.since(self.watch.polled) >= self.config.liveness.timeout / 2;
        }
        self.watch.polled = now;
        for node in wanted {
            self.watch.asked.entry(node).or_insert(now);
        }
    }

    /// Holds `node` for dead: it is not listened to any more, and groups that contain it are broken here.
    pub(super) fn suspect(&mut self, node: NodeId, reason: String) {
        if !self.is_active() || node == self.me || !self.is_living(node) || self.watch.suspects(node) {
            return;
        }
        if !self.leaving.is_wished {
            self.watch.patience_begins(self.now);
        }
        let error = self.lost(node, &reason);
        self.watch.suspected.insert(node, reason);
        self.watch.asked.remove(&node);
        self.away.forget(node);
        // One that only stood still reads this, and then the end of the link.
        self.tell_suspect(node);
        self.effects.push(Effect::CutLink { node });
        self.break_groups_with(node, &error, true);
        self.reconsider();
    }

    /// Tells a suspected member that it is one, if there is a link: over a new one that it has made it would wait in
    /// vain for what was lost with the old one.
    pub(super) fn tell_suspect(&mut self, node: NodeId) {
        if let Some(reason) = self.watch.suspected.get(&node).filter(|reason| !reason.starts_with(HOLDS_DEAD)) {
            let message =
                Message::Accuse { epoch: self.epoch, suspect: node, reason: reason.clone(), has_ended: false };
            self.effects.push(Effect::Farewell { nodes: vec![node], message });
        }
    }

    /// This node cannot do its part for want of something of its own. The others learn that from itself.
    pub(super) fn fell_short(&mut self, error: Error) {
        if self.is_active() {
            let reason = format!("{GIVEN_UP}{}", error.what());
            let message = Message::Accuse { epoch: self.epoch, suspect: self.me, reason, has_ended: false };
            let nodes = self.table.iter().map(|member| member.node).collect();
            self.effects.push(Effect::Farewell { nodes, message });
        }
        self.fail(error);
    }

    /// Living members that this node suspects and that count as such that may live, unless [`Event::Ended`] says
    /// otherwise.
    ///
    /// [`Event::Ended`]: super::Event::Ended
    #[must_use]
    pub fn suspects_that_may_live(&self) -> Vec<NodeId> {
        let Watch { suspected, ended, silent, was_away, .. } = &self.watch;
        let may_end = |node: &NodeId| !was_away && !ended.contains(node) && !silent.contains(node);
        suspected.keys().copied().filter(may_end).collect()
    }

    /// The system says that the process of a member has ended.
    pub(super) fn saw_end(&mut self, node: NodeId) {
        if !self.watch.was_away && !self.watch.silent.contains(&node) {
            self.process_ended(node);
        }
    }

    /// It is certain that a member decides nothing any more, and has decided nothing that this node does not know.
    pub(super) fn process_ended(&mut self, node: NodeId) {
        if !self.is_active() || node == self.me || !self.is_living(node) || !self.watch.ended.insert(node) {
            return;
        }
        match self.watch.suspects(node) {
            true => self.reconsider(),
            false => self.suspect(node, "its process has ended".to_owned()),
        }
    }

    /// A proposal counts on it that the processes of these have ended.
    pub(super) fn renounce(&mut self, ended: &[NodeId]) {
        for node in ended.iter().copied().filter(|node| *node != self.me).collect::<Vec<_>>() {
            self.watch.renounced.insert(node);
            self.process_ended(node);
        }
    }

    /// The members whose end a proposal has to count on: none, where a majority is in sight.
    pub(super) fn ended_to_renounce(&self) -> BTreeSet<NodeId> {
        let unsuspected = self.living().filter(|node| !self.watch.suspects(*node)).collect();
        if self.is_majority(&unsuspected) { BTreeSet::new() } else { self.watch.ended.clone() }
    }

    pub(super) fn accuse(&mut self, accuser: NodeId, suspect: NodeId, reason: String, has_ended: bool) {
        if self.is_living(suspect) && suspect != self.me && suspect != accuser {
            self.watch.accused(suspect, accuser, reason);
            if has_ended {
                self.watch.ended.insert(suspect);
            }
            self.reconsider();
        }
    }

    /// What to do about the suspicions and wishes of this epoch: tell the coordinator, or, being it, end the epoch.
    pub(super) fn reconsider(&mut self) {
        if !self.is_active() {
            return;
        }
        let unsuspected: BTreeSet<NodeId> = self.living().filter(|node| !self.watch.suspects(*node)).collect();
        if !self.is_quorum(&unsuspected, &self.watch.ended) {
            self.watch.minority_since.get_or_insert(self.now);
            return;
        }
        self.watch.minority_since = None;
        let coordinator = self.acting_coordinator();
        if coordinator != self.me {
            for (suspect, reason) in self.watch.suspected.clone() {
                let has_ended = self.watch.ended.contains(&suspect);
                self.send(coordinator, Message::Accuse { epoch: self.epoch, suspect, reason, has_ended });
            }
            if self.leaving.is_wished {
                self.send(coordinator, Message::Leave { epoch: self.epoch });
            }
            return;
        }
        // The first accusation of a pair that accuses each other wins.
        let believed = self.watch.accusations.iter().find(|(suspect, (accuser, _))| {
            !self.watch.suspects(**suspect) && !self.watch.suspects(*accuser) && self.is_living(*accuser)
        });
        if let Some((suspect, (_, reason))) = believed {
            let (suspect, reason) = (*suspect, reason.clone());
            return self.suspect(suspect, reason);
        }
        if !self.watch.suspected.is_empty() || !self.leaving.wishes.is_empty() {
            self.propose();
        }
    }

    /// What we would end the epoch with. Who asked to leave and then looked dead did not leave.
    pub(super) fn proposed_deaths(&self) -> Vec<Death> {
        let epoch = Epoch(self.epoch.0 + 1);
        let death = |node: &NodeId, left: bool, reason: &str| Death { node: *node, epoch, left, reason: reason.into() };
        let suspected = self.watch.suspected.iter().map(|(node, reason)| death(node, false, reason));
        let wishes = self.leaving.wishes.iter().filter(|node| !self.watch.suspects(**node));
        suspected.chain(wishes.map(|node| death(node, true, "it left"))).collect()
    }

    pub(super) fn lost(&self, node: NodeId, reason: &str) -> Error {
        let name = self.peer_of(node).name;
        let what = match reason.strip_prefix(FAILED) {
            Some(reason) => format!("{name} failed: {reason}"),
            None => format!("{name} looks dead: {reason}"),
        };
        Error::new(ErrorKind::PeerLost, what)
            .peer(self.peer_of(node))
            .hint("look at its output for its last words; shrink the group to go on without it")
    }

    /// We are on the side that does not go on.
    pub(super) fn isolated(&mut self) {
        if self.watch.suspected.is_empty() {
            let what = "the others did not decide that this node may leave";
            return self.fail(Error::new(ErrorKind::DeadlineExceeded, what));
        }
        let names = self.watch.suspected.iter().filter_map(|(node, reason)| Some((self.member(*node)?, reason)));
        let names: Vec<_> = names.map(|(member, reason)| format!("{} ({reason})", member.introduction.name)).collect();
        let what = format!(
            "cannot reach the majority of the {} members of epoch {}: no sign of {}",
            self.living().count(),
            self.epoch,
            names.join(", ")
        );
        // Who can still be reached may need nobody else, and would see no more than a link that ends.
        let reason = format!("it {what}");
        self.say_failed(&reason.chars().take(FAILURE_CHARACTERS_MAX).collect::<String>());
        let what = format!("this node {what}");
        let first = self.watch.suspected.keys().next().and_then(|node| self.member(*node)).map(super::Member::peer);
        let error = Error::new(ErrorKind::PeerLost, what).hint(
            "if they live they go on without this node, and what has not seen their processes end cannot know; start \
             it again",
        );
        self.fail(match first {
            Some(peer) => error.peer(peer),
            None => error,
        });
    }
}
