//! Groups and their barriers.
//!
//! A group's first member counts who has entered. It belongs to the group, so nothing needs to be handed over when it
//! dies: the group is broken then like by any other death.

use super::handles::Held;
use super::{Death, Effect, Engine, GIVEN_UP, GroupId, GroupRecord, Message, OperationId, Outcome};
use sha2::{Digest, Sha256};
use sheave_base::clock::Time;
use sheave_base::{Error, ErrorKind, NodeId, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Groups that others use and this node has not made yet; messages about more are forgotten, since they are repeated.
const UNMADE_GROUPS_MAX: usize = 4096;

/// How long a member whose deadline has passed waits for the first member to say who is missing.
const ANSWER_PATIENCE: Duration = Duration::from_millis(500);

/// What is said of a barrier by somebody who does not count.
const NOT_ALL: &str = "not every member entered";

/// Barriers of one group that somebody is in. A member of more is wrong about the group.
const BARRIERS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct Group {
    pub(super) label: String,
    /// Empty until this node makes the group.
    pub(super) nodes: Vec<NodeId>,
    /// The next barrier that this node enters.
    pub(super) next_sequence: u64,
    /// At the first member: how many barriers everybody has entered.
    pub(super) released: u64,
    /// At the first member: who has entered which barrier.
    pub(super) tallies: BTreeMap<u64, Tally>,
    pub(super) broken: Option<Broken>,
    /// From which number on operations of services have failed at some member.
    failed_from: Option<u64>,
    /// How many handles this node's users have, and what follows from that.
    pub(super) handles: usize,
    pub(super) held: Held,
    pub(super) record: Arc<GroupRecord>,
    /// At the first member: who has no handle any more, and under which number it said so.
    pub(super) dropped: BTreeMap<NodeId, u64>,
    /// How many members a group has that this node has not made, as others say.
    pub(super) members: u32,
    /// How far this node was with the last beat, if it waited then.
    pub(super) waited_at: Option<[u64; 2]>,
}

#[derive(Clone)]
pub(super) struct Broken {
    error: Error,
    /// Whether a member died or left.
    pub(super) by_death: bool,
    /// Who died, left or gave up.
    pub(super) about: NodeId,
}

#[derive(Default)]
pub(super) struct Tally {
    members: BTreeSet<NodeId>,
    #[cfg(feature = "planted-faults")]
    messages: usize,
}

impl Tally {
    pub(super) fn has(&self, node: NodeId) -> bool {
        self.members.contains(&node)
    }
}

pub(super) enum Pending {
    /// `is_late`: its deadline has passed, and the new one is that of the first member's answer.
    Barrier {
        group: GroupId,
        sequence: u64,
        begun: Time,
        deadline: Option<Time>,
        is_late: bool,
    },
    Shrink {
        group: GroupId,
        begun: Time,
    },
    /// A new handle of a group that this node had dropped.
    Confirm {
        group: GroupId,
    },
    Leave {
        begun: Time,
    },
    /// `silent`: who has not answered yet; `is_direct`: they were asked without the coordinator.
    Ask {
        silent: BTreeSet<NodeId>,
        begun: Time,
        until: Time,
        is_direct: bool,
    },
}

/// The identity of the group of `nodes` in this order: the same on every node.
#[must_use]
pub fn group_id(label: &str, nodes: &[NodeId]) -> GroupId {
    let mut hasher = Sha256::new();
    hasher.update((label.len() as u64).to_le_bytes());
    hasher.update(label);
    for node in nodes {
        hasher.update(node.0.to_le_bytes());
    }
    let digest = hasher.finalize();
    GroupId(digest.iter().take(8).fold(0, |id, byte| id << 8 | u64::from(*byte)))
}

impl Engine {
    /// Makes the group of `nodes` in this order, or finds it if this node has made it before. Nobody else is asked; the
    /// same label and nodes give the same group everywhere.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the nodes are not distinct members with this one among them, and whatever ended the engine.
    /// `PeerLost` if one is dead or has left; the group is there nevertheless, broken from the start, so that it can be
    /// shrunk.
    pub fn group(&mut self, label: &str, nodes: &[NodeId]) -> Result<GroupId> {
        self.check_active()?;
        let distinct: BTreeSet<_> = nodes.iter().collect();
        let known = nodes.iter().all(|node| self.member(*node).is_some());
        if distinct.len() != nodes.len() || !known || !distinct.contains(&self.me) {
            let what = format!("group {label} must name distinct members of the mesh, this node among them");
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        self.check_room(group_id(label, nodes), label)?;
        if let Some(Death { node, left, reason, .. }) = self.deaths.iter().find(|d| distinct.contains(&d.node)) {
            let about = *node;
            let error = if *left { self.departed(about) } else { self.lost(about, reason) };
            let group = self.groups.entry(group_id(label, nodes)).or_default();
            if group.nodes.is_empty() {
                label.clone_into(&mut group.label);
                group.nodes = nodes.to_vec();
            }
            group.tallies.clear();
            group.record.note_broken();
            // Everybody learns of the death from the decision.
            group.broken.get_or_insert_with(|| Broken { error: error.clone(), by_death: true, about });
            return Err(error.operation("group").group(label));
        }
        let id = group_id(label, nodes);
        let group = self.groups.entry(id).or_default();
        if group.nodes.is_empty() {
            label.clone_into(&mut group.label);
            group.nodes = nodes.to_vec();
            if let Some(broken) = group.broken.clone() {
                self.tell_broken(id, &broken);
            }
            let suspect = nodes.iter().find_map(|node| self.watch.suspected.get(node).map(|why| (*node, why.clone())));
            if let Some((about, reason)) = suspect {
                let error = self.lost(about, &reason);
                self.break_group(id, &Broken { error, by_death: true, about }, true);
            }
            self.release_what_is_whole(id);
        }
        Ok(id)
    }

    /// The nodes of a group that this node has made, in order.
    #[must_use]
    pub fn nodes_of(&self, group: GroupId) -> Option<&[NodeId]> {
        self.groups.get(&group).map(|group| group.nodes.as_slice()).filter(|nodes| !nodes.is_empty())
    }

    /// Forgets a group. Its pending operations end with an error.
    pub fn drop_group(&mut self, group: GroupId) {
        let error = Error::new(ErrorKind::Closed, "the group was dropped by this node");
        self.break_group(group, &Broken { error, by_death: false, about: self.me }, self.is_active());
        let handles = self.groups.get(&group).map_or(0, |group| group.handles);
        self.forget(group);
        if handles > 0 {
            // They are still counted, whatever is made in its place.
            self.groups.insert(group, Group { handles, held: Held::ByHandles, ..Group::default() });
        }
    }

    /// Breaks a group for all its members, because something on it has failed that the engine knows nothing of: the
    /// operations of a service from the number `failed_from` on. What broke it first stays, but all members learn the
    /// smallest number.
    pub fn break_because(&mut self, group: GroupId, error: Error, failed_from: u64) {
        self.mark_broken(group, &Broken { error, by_death: false, about: self.me }, false);
        self.failed_from(group, Some(failed_from));
        if let Some(error) = self.broken(group).cloned() {
            self.end_barriers(group, &error);
        }
    }

    /// The number from which on operations of services on the group have failed at some member, if they have.
    #[must_use]
    pub fn operations_failed_from(&self, group: GroupId) -> Option<u64> {
        self.groups.get(&group)?.failed_from
    }

    /// A member's operations have failed from this number on. Told to all if that is news.
    pub(super) fn failed_from(&mut self, id: GroupId, failed_from: Option<u64>) {
        let Some(failed_from) = failed_from else { return };
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.failed_from.is_none_or(|known| failed_from < known) {
            group.failed_from = Some(failed_from);
            self.tell_broken_again(id);
        }
    }

    /// Tells of a broken group whose members wait for a word: whoever has told them, or should have, is gone.
    pub(super) fn repeat_failures(&mut self, gone: NodeId) {
        for id in self.groups_with(gone) {
            if self.groups.get(&id).is_some_and(|group| group.failed_from.is_some()) {
                self.tell_broken_again(id);
            }
        }
    }

    /// Tells the group's first living member, or, being that, all the others.
    fn tell_broken_again(&mut self, id: GroupId) {
        let Some(group) = self.groups.get(&id).filter(|_| self.is_active()) else { return };
        let Some(broken) = group.broken.clone() else { return };
        let can_be_told = |node: &NodeId| self.is_living(*node) && !self.watch.suspects(*node);
        let mut told: Vec<NodeId> = group.nodes.iter().copied().filter(can_be_told).collect();
        if told.first() != Some(&self.me) {
            told.truncate(1);
        }
        self.send_broken(id, &broken, told);
    }

    /// Why the group's operations fail, if they do.
    #[must_use]
    pub fn broken(&self, group: GroupId) -> Option<&Error> {
        self.groups.get(&group)?.broken.as_ref().map(|broken| &broken.error)
    }

    pub(super) fn begin_barrier(&mut self, operation: OperationId, group: GroupId, deadline: Option<Time>) {
        let begun = self.now;
        let sequence = self.groups.get(&group).map_or(0, |group| group.next_sequence);
        if let Err(error) = self.may_enter(operation, group) {
            let label = self.label_of(group);
            let error = error.operation("barrier").group(label).sequence(sequence).elapsed(Duration::ZERO);
            return self.complete(operation, Err(error));
        }
        if let Some(found) = self.groups.get_mut(&group) {
            found.next_sequence += 1;
        }
        self.operations.insert(operation, Pending::Barrier { group, sequence, begun, deadline, is_late: false });
        self.send_entry(group, sequence);
    }

    fn may_enter(&self, operation: OperationId, group: GroupId) -> Result<()> {
        self.check_stays()?;
        self.check_new(operation)?;
        match self.groups.get(&group).filter(|group| !group.nodes.is_empty()) {
            None => Err(Error::new(ErrorKind::NotFound, format!("this node has not made group {group}"))),
            Some(Group { broken: Some(broken), .. }) => Err(broken.error.clone()),
            Some(_) => Ok(()),
        }
    }

    /// Whoever wants to leave begins nothing new.
    fn check_stays(&self) -> Result<()> {
        self.check_active()?;
        let error = || Error::new(ErrorKind::Closed, "this node is about to leave the mesh");
        if self.leaving.is_wished { Err(error()) } else { Ok(()) }
    }

    pub(super) fn label_of(&self, group: GroupId) -> String {
        let label = self.groups.get(&group).map(|group| group.label.as_str()).filter(|label| !label.is_empty());
        label.map_or_else(|| group.to_string(), str::to_owned)
    }

    fn send_entry(&mut self, group: GroupId, sequence: u64) {
        if let Some(first) = self.groups.get(&group).and_then(|group| group.nodes.first()).copied() {
            self.send(first, Message::Enter { epoch: self.epoch, group, sequence });
        }
    }

    /// Entries are repeated, because the first member may have been too young to remember the first one.
    pub(super) fn repeat_entries(&mut self) {
        let entries = self.operations.values().filter_map(|pending| match pending {
            Pending::Barrier { group, sequence, .. } => Some((*group, *sequence)),
            Pending::Shrink { .. } | Pending::Confirm { .. } | Pending::Leave { .. } | Pending::Ask { .. } => None,
        });
        for (group, sequence) in entries.collect::<Vec<_>>() {
            self.send_entry(group, sequence);
        }
    }

    /// At a group's first member: somebody has entered.
    pub(super) fn entered(&mut self, from: NodeId, id: GroupId, sequence: u64) {
        if !self.groups.contains_key(&id) && !self.may_note_unmade() {
            return;
        }
        let epoch = self.epoch;
        let group = self.groups.entry(id).or_default();
        if let Some(broken) = group.broken.clone() {
            return self.send(from, self.broken_message(id, &broken));
        }
        if sequence < group.released {
            let through = group.released - 1;
            return self.send(from, Message::Release { epoch, group: id, through });
        }
        if group.tallies.len() < BARRIERS_MAX || group.tallies.contains_key(&sequence) {
            let tally = group.tallies.entry(sequence).or_default();
            tally.members.insert(from);
            #[cfg(feature = "planted-faults")]
            {
                tally.messages += 1;
            }
            self.release_what_is_whole(id);
        }
    }

    /// Whoever entered a barrier has entered all before it, so the latest whole one stands for them.
    fn release_what_is_whole(&mut self, id: GroupId) {
        let (me, epoch, faults) = (self.me, self.epoch, self.faults);
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.nodes.first() != Some(&me) || group.broken.is_some() {
            return;
        }
        let is_whole = |tally: &Tally| {
            #[cfg(feature = "planted-faults")]
            if faults.counts_messages() {
                return tally.messages >= group.nodes.len();
            }
            let entered = group.nodes.iter().filter(|node| tally.members.contains(node)).count();
            entered + usize::from(faults.releases_one_early()) >= group.nodes.len()
        };
        let Some((&through, _)) = group.tallies.iter().rev().find(|(_, tally)| is_whole(tally)) else { return };
        group.released = through + 1;
        group.tallies.retain(|sequence, _| *sequence > through);
        for node in group.nodes.clone() {
            self.send(node, Message::Release { epoch, group: id, through });
        }
    }

    pub(super) fn released(&mut self, from: NodeId, id: GroupId, through: u64) {
        if self.groups.get(&id).and_then(|group| group.nodes.first()) != Some(&from) {
            return;
        }
        let passed = |pending: &Pending| match pending {
            Pending::Barrier { group, sequence, .. } => *group == id && *sequence <= through,
            Pending::Shrink { .. } | Pending::Confirm { .. } | Pending::Leave { .. } | Pending::Ask { .. } => false,
        };
        for operation in self.operations_where(passed) {
            self.complete(operation, Ok(Outcome::Passed));
        }
    }

    /// Somebody's news that a group is broken; its first member tells the others, if `tell` says so, and says who is
    /// missing to those whose deadline has passed.
    pub(super) fn told_broken(
        &mut self,
        from: NodeId,
        id: GroupId,
        (by_death, about): (bool, NodeId),
        word: Error,
        tell: bool,
    ) {
        // All agree on deaths, whatever else somebody has seen of one.
        let by_death = by_death || word.kind().is_loss();
        let kind = if by_death { ErrorKind::PeerLost } else { word.kind() };
        let reason = word.what().to_owned();
        if by_death && about == self.me && reason.contains(GIVEN_UP) {
            // What this node lacks it is about to hear of itself, and its operations end with that.
            return;
        }
        if by_death && about != self.me && self.is_living(about) {
            self.watch.hears_of_loss(about, &reason);
        }
        if !self.groups.contains_key(&id) && !self.may_note_unmade() {
            return;
        }
        let hint = match by_death {
            true => "look at its output for its last words; shrink the group to go on without it",
            false => "look at its output; make a group with another label to go on",
        };
        let asks = !by_death && about == from && reason == NOT_ALL;
        let reason = if asks { self.who_is_missing_for(from, id) } else { reason };
        if !by_death && about == self.me && self.broken(id).is_some_and(|own| own.what() == NOT_ALL) {
            let error = too_late(reason);
            if let Some(broken) = self.groups.get_mut(&id).and_then(|group| group.broken.as_mut()) {
                broken.error = error.clone();
            }
            return self.end_barriers(id, &error);
        }
        // What caused it has happened on the sender's node, unless it says otherwise.
        let word = word.origin(self.peer_of(from));
        let error = Error::new(kind, reason).causes_of(&word).peer(self.peer_of(about)).hint(hint);
        let is_unmade = self.groups.entry(id).or_default().nodes.is_empty();
        let broken = Broken { error, by_death, about };
        self.break_group(id, &broken, tell);
        if asks && is_unmade {
            self.send(from, self.broken_message(id, &broken));
        }
    }

    /// At a group's first member: who keeps `waiting` waiting.
    fn who_is_missing_for(&self, waiting: NodeId, id: GroupId) -> String {
        match self.groups.get(&id).filter(|group| !group.nodes.is_empty()) {
            None => format!("not entered: {}, which has not made the group yet", self.peer_of(self.me).name),
            Some(group) => {
                let mut tallies = group.tallies.iter().rev();
                let last = tallies.find(|(_, tally)| tally.members.contains(&waiting)).map(|(sequence, _)| *sequence);
                last.map_or_else(|| NOT_ALL.to_owned(), |sequence| self.who_is_missing(id, sequence))
            }
        }
    }

    /// The groups with a member that looks dead, or that is; everybody learns of an agreed death without being told.
    pub(super) fn break_groups_with(&mut self, node: NodeId, error: &Error, tell: bool) {
        for id in self.groups_with(node) {
            self.break_group(id, &Broken { error: error.clone(), by_death: true, about: node }, tell);
        }
    }

    /// The groups with a member that left. Barriers that wait are ended by the group's first member, since their
    /// release may be on its way.
    pub(super) fn break_groups_with_departed(&mut self, node: NodeId) {
        let until = self.now.after(self.config.liveness.timeout);
        for id in self.groups_with(node) {
            let broken = Broken { error: self.departed(node), by_death: true, about: node };
            let first = self.groups.get(&id).and_then(|group| group.nodes.first()).copied();
            let pending = self.sequences_in(id);
            let Some(first) = first.filter(|first| *first != self.me && !pending.is_empty()) else {
                self.break_group(id, &broken, first == Some(self.me));
                continue;
            };
            self.mark_broken(id, &broken, true);
            // If the first member knows of no such group, it knows from now on that it is broken, and answers this.
            for sequence in pending {
                self.send_entry(id, sequence);
            }
            self.leaving.last_words.insert(first, until);
        }
    }

    /// Ends the barriers of broken groups with this first member.
    pub(super) fn end_broken_barriers(&mut self, first: NodeId) {
        let is_meant = |group: &Group| group.nodes.first() == Some(&first);
        let broken = |(id, group): (&GroupId, &Group)| {
            group.broken.as_ref().filter(|_| is_meant(group)).map(|broken| (*id, broken.error.clone()))
        };
        for (id, error) in self.groups.iter().filter_map(broken).collect::<Vec<_>>() {
            self.end_barriers(id, &error);
        }
    }

    fn groups_with(&self, node: NodeId) -> Vec<GroupId> {
        self.groups.iter().filter(|(_, group)| group.nodes.contains(&node)).map(|(id, _)| *id).collect()
    }

    /// The barriers of this group that this node waits for.
    fn sequences_in(&self, id: GroupId) -> Vec<u64> {
        let sequence = |pending: &Pending| match pending {
            Pending::Barrier { group, sequence, .. } if *group == id => Some(*sequence),
            _ => None,
        };
        self.operations.values().filter_map(sequence).collect()
    }

    fn break_group(&mut self, id: GroupId, broken: &Broken, tell: bool) {
        self.mark_broken(id, broken, tell);
        self.end_barriers(id, &broken.error);
    }

    /// From now on nobody enters a barrier of this group here. What broke it first stays; but members disagreed before
    /// any of them left, even where that is heard of later.
    fn mark_broken(&mut self, id: GroupId, broken: &Broken, tell: bool) {
        let left = |node| self.deaths.iter().any(|death| death.node == node && death.left);
        let is_older = |known: &Broken| known.by_death && left(known.about);
        let Some(group) = self.groups.get_mut(&id) else { return };
        if let Some(known) = &mut group.broken {
            if broken.error.kind() == ErrorKind::Mismatch && is_older(known) {
                known.error = broken.error.clone();
            }
            return;
        }
        group.broken = Some(broken.clone());
        group.record.note_broken();
        group.tallies.clear();
        // Whether it is known any more makes no difference.
        self.end_confirms(id);
        if tell {
            self.tell_broken(id, broken);
        }
    }

    fn end_barriers(&mut self, id: GroupId, error: &Error) {
        let in_group = |pending: &Pending| matches!(pending, Pending::Barrier { group, .. } if *group == id);
        for operation in self.operations_where(in_group) {
            self.end_with(operation, error);
        }
    }

    /// Tells the group's first member, or, being that, all the others.
    fn tell_broken(&mut self, id: GroupId, broken: &Broken) {
        let Some(group) = self.groups.get(&id) else { return };
        let told: Vec<NodeId> = match group.nodes.first() {
            Some(first) if *first == self.me => group.nodes.clone(),
            first => first.copied().into_iter().collect(),
        };
        self.send_broken(id, broken, told);
    }

    /// Why a group is broken may be a leave of which they have not heard: they would take it for a death.
    fn send_broken(&mut self, id: GroupId, broken: &Broken, told: Vec<NodeId>) {
        let epoch_word = broken.by_death.then(|| self.commit());
        let message = self.broken_message(id, broken);
        for node in told.into_iter().filter(|node| *node != self.me && self.is_living(*node)).collect::<Vec<_>>() {
            epoch_word.iter().for_each(|word| self.send(node, word.clone()));
            self.send(node, message.clone());
        }
    }

    fn broken_message(&self, group: GroupId, broken: &Broken) -> Message {
        let Broken { error, by_death, about } = broken;
        let (epoch, failed_from) = (self.epoch, self.operations_failed_from(group));
        // Whoever gave up cancels the others; only what is wrong about all of them is told as it is.
        let kind = if error.kind() == ErrorKind::Mismatch { ErrorKind::Mismatch } else { ErrorKind::Cancelled };
        let error = Error::new(kind, error.what().to_owned()).causes_of(error);
        Message::Broken { epoch, group, by_death: *by_death, about: *about, error, failed_from }
    }

    /// Why groups are broken, for their members, as far as it is to be told.
    pub(super) fn words_about_broken_groups(&self, is_told: impl Fn(&Broken) -> bool) -> Vec<(Vec<NodeId>, Message)> {
        let word = |(id, group): (&GroupId, &Group)| {
            let broken = group.broken.as_ref().filter(|broken| is_told(broken))?;
            Some((group.nodes.clone(), self.broken_message(*id, broken)))
        };
        self.groups.iter().filter_map(word).collect()
    }

    pub(super) fn begin_shrink(&mut self, operation: OperationId, group: GroupId) {
        let refused = match self.groups.get(&group).map(|group| &group.broken) {
            None => Err(Error::new(ErrorKind::NotFound, format!("this node has not made group {group}"))),
            Some(Some(_)) => self.check_new(operation),
            Some(None) => Err(Error::new(ErrorKind::InvalidArgument, format!("group {group} is whole"))),
        };
        if let Err(error) = self.check_stays().and(refused) {
            return self.complete(operation, Err(error.operation("shrink").group(self.label_of(group))));
        }
        self.operations.insert(operation, Pending::Shrink { group, begun: self.now });
        self.finish_shrinks();
    }

    /// A shrink ends when no member of the group is under suspicion and the death that broke it is known.
    pub(super) fn finish_shrinks(&mut self) {
        let shrinks = self.operations.iter().filter_map(|(operation, pending)| match pending {
            Pending::Shrink { group, .. } => Some((*operation, *group)),
            Pending::Barrier { .. } | Pending::Confirm { .. } | Pending::Leave { .. } | Pending::Ask { .. } => None,
        });
        for (operation, id) in shrinks.collect::<Vec<_>>() {
            let Some(group) = self.groups.get(&id) else { continue };
            let survivors: Vec<NodeId> = group.nodes.iter().copied().filter(|node| self.is_living(*node)).collect();
            let unsettled = survivors.iter().any(|node| self.watch.suspects(*node));
            let nobody_died = survivors.len() == group.nodes.len();
            let by_death = group.broken.as_ref().is_some_and(|broken| broken.by_death);
            let label = group.label.clone();
            if unsettled || (nobody_died && by_death) {
                continue;
            }
            let outcome = if nobody_died {
                let what = "nobody in the group died or left: it was broken by a deadline, a cancellation or a drop";
                Err(Error::new(ErrorKind::InvalidArgument, what).hint("make a group with another label"))
            } else {
                self.group(&label, &survivors)
            };
            match outcome {
                Ok(group) => self.complete(operation, Ok(Outcome::Group(group))),
                Err(error) => self.end_with(operation, &error),
            }
        }
    }

    pub(super) fn cancel(&mut self, operation: OperationId) {
        let error = Error::new(ErrorKind::Cancelled, "the caller no longer waits");
        match self.operations.get(&operation) {
            Some(Pending::Barrier { group, .. }) => {
                self.break_group(*group, &Broken { error, by_death: false, about: self.me }, true);
            }
            Some(Pending::Shrink { .. } | Pending::Confirm { .. } | Pending::Leave { .. } | Pending::Ask { .. }) => {
                self.end_with(operation, &error);
            }
            None => {}
        }
    }

    pub(super) fn poll_deadlines(&mut self) {
        let now = self.now;
        let late = |pending: &Pending| match pending {
            Pending::Barrier { deadline, .. } => deadline.is_some_and(|deadline| now >= deadline),
            Pending::Shrink { .. } | Pending::Confirm { .. } | Pending::Leave { .. } | Pending::Ask { .. } => false,
        };
        for operation in self.operations_where(late) {
            let Some(Pending::Barrier { group, sequence, deadline, is_late, .. }) = self.operations.get_mut(&operation)
            else {
                continue;
            };
            let (id, sequence, was_late) = (*group, *sequence, std::mem::replace(is_late, true));
            *deadline = Some(now.after(ANSWER_PATIENCE));
            let first = self.groups.get(&id).and_then(|group| group.nodes.first()).copied();
            let me = self.me;
            let broken = |error| Broken { error, by_death: false, about: me };
            match first.filter(|first| *first != self.me) {
                // Nothing is entered from here on; only the first member knows who is missing.
                Some(_) if !was_late => self.mark_broken(id, &broken(too_late(NOT_ALL)), true),
                Some(first) => {
                    let first = self.peer_of(first);
                    let what = format!("{NOT_ALL}, and {}, which counts them, does not say who is missing", first.name);
                    self.break_group(id, &broken(too_late(what).peer(first)), true);
                }
                None => self.break_group(id, &broken(too_late(self.who_is_missing(id, sequence))), true),
            }
        }
    }

    fn who_is_missing(&self, id: GroupId, sequence: u64) -> String {
        let unknown = || NOT_ALL.to_owned();
        let Some(group) = self.groups.get(&id).filter(|group| group.nodes.first() == Some(&self.me)) else {
            return unknown();
        };
        let Some(tally) = group.tallies.get(&sequence) else { return unknown() };
        let missing = group.nodes.iter().filter(|node| !tally.members.contains(node));
        let names: Vec<_> =
            missing.filter_map(|node| self.member(*node)).map(|m| m.introduction.name.as_str()).collect();
        format!("not entered: {}", names.join(", "))
    }

    pub(super) fn deadline_timer(&self) -> Option<Time> {
        let deadline = |pending: &Pending| match pending {
            Pending::Barrier { deadline, .. } => *deadline,
            Pending::Shrink { .. } | Pending::Confirm { .. } | Pending::Leave { .. } | Pending::Ask { .. } => None,
        };
        self.operations.values().filter_map(deadline).min()
    }

    /// Whom our barriers need: their first member, who is also asked about groups, or, at that, those who have entered.
    pub(super) fn partners_in_barriers(&self) -> BTreeSet<NodeId> {
        let firsts = self.operations.values().filter_map(|pending| match pending {
            Pending::Barrier { group, .. } | Pending::Confirm { group } => {
                self.groups.get(group)?.nodes.first().copied()
            }
            Pending::Shrink { .. } | Pending::Leave { .. } | Pending::Ask { .. } => None,
        });
        let entered = self.groups.values().flat_map(|group| group.tallies.values()).flat_map(|tally| &tally.members);
        firsts.chain(entered.copied()).collect()
    }

    /// Whether there is room for another group that others use and this node has not made yet.
    pub(super) fn may_note_unmade(&self) -> bool {
        self.groups.values().filter(|group| group.nodes.is_empty()).count() < UNMADE_GROUPS_MAX
    }

    pub(super) fn operations_where(&self, wanted: impl Fn(&Pending) -> bool) -> Vec<OperationId> {
        self.operations.iter().filter(|(_, pending)| wanted(pending)).map(|(operation, _)| *operation).collect()
    }

    /// Ends a pending operation with `error`, which then says what it ended.
    pub(super) fn end_with(&mut self, operation: OperationId, error: &Error) {
        let Some(pending) = self.operations.get(&operation) else { return };
        let (error, begun) = match pending {
            Pending::Barrier { group, sequence, begun, .. } => {
                let error = error.clone().operation("barrier").group(self.label_of(*group));
                (error.sequence(*sequence), *begun)
            }
            Pending::Shrink { group, begun } => {
                (error.clone().operation("shrink").group(self.label_of(*group)), *begun)
            }
            Pending::Confirm { group } => (error.clone().operation("group").group(self.label_of(*group)), self.now),
            Pending::Leave { begun } => (error.clone().operation("leave"), *begun),
            Pending::Ask { begun, .. } => (error.clone().operation("num_dead_node"), *begun),
        };
        self.complete(operation, Err(error.elapsed(self.now.since(begun))));
    }

    pub(super) fn complete(&mut self, operation: OperationId, outcome: Result<Outcome>) {
        self.operations.remove(&operation);
        self.effects.push(Effect::Complete { operation, outcome });
    }
}

fn too_late(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::DeadlineExceeded, what).hint("a member may be late; look at its output")
}
