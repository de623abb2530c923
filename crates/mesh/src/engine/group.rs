//! Groups and their barriers.
//!
//! A group's first member counts who has entered. It belongs to the group, so nothing needs to be handed over when it
//! dies: the group is broken then like by any other death.

use super::{Effect, Engine, GroupId, Message, OperationId, Outcome};
use sha2::{Digest, Sha256};
use sheave_base::clock::Time;
use sheave_base::{Error, ErrorKind, NodeId, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Groups that others use and this node has not made yet; messages about more are forgotten, since they are repeated.
const UNMADE_GROUPS_MAX: usize = 4096;

/// Barriers of one group that somebody is in. A member of more is wrong about the group.
const BARRIERS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct Group {
    label: String,
    /// Empty until this node makes the group.
    nodes: Vec<NodeId>,
    /// The next barrier that this node enters.
    next_sequence: u64,
    /// At the first member: how many barriers everybody has entered.
    released: u64,
    /// At the first member: who has entered which barrier.
    tallies: BTreeMap<u64, Tally>,
    broken: Option<Broken>,
}

#[derive(Clone)]
struct Broken {
    error: Error,
    by_death: bool,
}

#[derive(Default)]
struct Tally {
    members: BTreeSet<NodeId>,
    messages: usize,
}

pub(super) enum Pending {
    Barrier { group: GroupId, sequence: u64, begun: Time, deadline: Option<Time> },
    Shrink { group: GroupId },
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
    /// `InvalidArgument` if the nodes are not distinct members with this one among them, `PeerLost` if one is dead,
    /// and whatever ended the engine.
    pub fn group(&mut self, label: &str, nodes: &[NodeId]) -> Result<GroupId> {
        self.check_active()?;
        let distinct: BTreeSet<_> = nodes.iter().collect();
        let known = nodes.iter().all(|node| self.member(*node).is_some());
        if distinct.len() != nodes.len() || !known || !distinct.contains(&self.me) {
            let what = format!("group {label} must name distinct members of the mesh, this node among them");
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        if let Some(dead) = self.deaths.iter().find(|death| distinct.contains(&death.node)) {
            return Err(self.lost(dead.node, &dead.reason).operation("group").group(label));
        }
        let id = group_id(label, nodes);
        let group = self.groups.entry(id).or_default();
        if group.nodes.is_empty() {
            label.clone_into(&mut group.label);
            group.nodes = nodes.to_vec();
            if let Some(Broken { by_death, error }) = group.broken.clone() {
                self.tell_broken(id, by_death, &error);
            }
            let suspect = nodes.iter().find_map(|node| self.watch.suspected.get(node).map(|why| (*node, why.clone())));
            if let Some((node, reason)) = suspect {
                let error = self.lost(node, &reason);
                self.break_group(id, &error, true, true);
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
        self.break_group(group, &error, false, true);
        self.groups.remove(&group);
    }

    /// Why the group's operations fail, if they do.
    #[must_use]
    pub fn broken(&self, group: GroupId) -> Option<&Error> {
        self.groups.get(&group)?.broken.as_ref().map(|broken| &broken.error)
    }

    pub(super) fn begin_barrier(&mut self, operation: OperationId, group: GroupId, deadline: Option<Time>) {
        let refused = match self.groups.get(&group).filter(|group| !group.nodes.is_empty()) {
            None => Some(Error::new(ErrorKind::NotFound, format!("this node has not made group {group}"))),
            Some(Group { label, broken: Some(broken), .. }) => Some(broken.error.clone().group(label)),
            Some(found) if self.operations.contains_key(&operation) => {
                let what = format!("operation {} is pending already", operation.0);
                Some(Error::new(ErrorKind::AlreadyExists, what).group(&found.label))
            }
            Some(_) => None,
        };
        if let Some(error) = refused {
            return self.complete(operation, Err(error.operation("barrier")));
        }
        let Some(found) = self.groups.get_mut(&group) else { return };
        let sequence = found.next_sequence;
        found.next_sequence += 1;
        self.operations.insert(operation, Pending::Barrier { group, sequence, begun: self.now, deadline });
        self.send_entry(group, sequence);
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
            Pending::Shrink { .. } => None,
        });
        for (group, sequence) in entries.collect::<Vec<_>>() {
            self.send_entry(group, sequence);
        }
    }

    /// At a group's first member: somebody has entered.
    pub(super) fn entered(&mut self, from: NodeId, id: GroupId, sequence: u64) {
        if !self.groups.contains_key(&id) && self.unmade_groups() >= UNMADE_GROUPS_MAX {
            return;
        }
        let epoch = self.epoch;
        let group = self.groups.entry(id).or_default();
        if let Some(Broken { error, by_death }) = &group.broken {
            let (by_death, reason) = (*by_death, error.what().to_owned());
            return self.send(from, Message::Broken { epoch, group: id, by_death, reason });
        }
        if sequence < group.released {
            let through = group.released - 1;
            return self.send(from, Message::Release { epoch, group: id, through });
        }
        if group.tallies.len() < BARRIERS_MAX || group.tallies.contains_key(&sequence) {
            let tally = group.tallies.entry(sequence).or_default();
            tally.members.insert(from);
            tally.messages += 1;
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
            if faults.count_messages {
                return tally.messages >= group.nodes.len();
            }
            let entered = group.nodes.iter().filter(|node| tally.members.contains(node)).count();
            entered + usize::from(faults.release_one_early) >= group.nodes.len()
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
            Pending::Shrink { .. } => false,
        };
        for operation in self.operations_where(passed) {
            self.complete(operation, Ok(Outcome::Passed));
        }
    }

    /// Somebody's news that a group is broken; its first member tells the others.
    pub(super) fn told_broken(&mut self, from: NodeId, id: GroupId, by_death: bool, reason: &str) {
        if !self.groups.contains_key(&id) && self.unmade_groups() >= UNMADE_GROUPS_MAX {
            return;
        }
        let name = self.member(from).map_or_else(String::new, |member| member.introduction.name.clone());
        let error = Error::new(if by_death { ErrorKind::PeerLost } else { ErrorKind::Cancelled }, reason.to_owned())
            .context(format!("{name} says that the group is broken"));
        self.groups.entry(id).or_default();
        self.break_group(id, &error, by_death, true);
    }

    pub(super) fn break_groups_with(&mut self, node: NodeId, error: &Error) {
        for id in self.groups_with(node) {
            self.break_group(id, error, true, true);
        }
    }

    /// As [`Engine::break_groups_with`], for a death that everybody learns by itself.
    pub(super) fn break_groups_with_dead(&mut self, node: NodeId, error: &Error) {
        for id in self.groups_with(node) {
            self.break_group(id, error, true, false);
        }
    }

    fn groups_with(&self, node: NodeId) -> Vec<GroupId> {
        self.groups.iter().filter(|(_, group)| group.nodes.contains(&node)).map(|(id, _)| *id).collect()
    }

    fn break_group(&mut self, id: GroupId, error: &Error, by_death: bool, tell: bool) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if group.broken.is_some() {
            return;
        }
        group.broken = Some(Broken { error: error.clone(), by_death });
        group.tallies.clear();
        let label = group.label.clone();
        if tell {
            self.tell_broken(id, by_death, error);
        }
        let now = self.now;
        let in_group = |pending: &Pending| matches!(pending, Pending::Barrier { group, .. } if *group == id);
        for operation in self.operations_where(in_group) {
            if let Some(Pending::Barrier { sequence, begun, .. }) = self.operations.get(&operation) {
                let error = error.clone().group(&label).sequence(*sequence).elapsed(now.since(*begun));
                self.complete(operation, Err(error.operation("barrier")));
            }
        }
    }

    fn tell_broken(&mut self, id: GroupId, by_death: bool, error: &Error) {
        let Some(group) = self.groups.get(&id) else { return };
        let told: Vec<NodeId> = match group.nodes.first() {
            Some(first) if *first == self.me => group.nodes.clone(),
            first => first.copied().into_iter().collect(),
        };
        let message = Message::Broken { epoch: self.epoch, group: id, by_death, reason: error.what().to_owned() };
        for node in told.into_iter().filter(|node| *node != self.me).collect::<Vec<_>>() {
            self.send(node, message.clone());
        }
    }

    pub(super) fn begin_shrink(&mut self, operation: OperationId, group: GroupId) {
        let refused = match self.groups.get(&group).map(|group| &group.broken) {
            None => Some((ErrorKind::NotFound, format!("this node has not made group {group}"))),
            Some(Some(_)) => None,
            Some(None) => Some((ErrorKind::InvalidArgument, format!("group {group} is whole"))),
        };
        if let Some((kind, what)) = refused {
            return self.complete(operation, Err(Error::new(kind, what).operation("shrink")));
        }
        self.operations.insert(operation, Pending::Shrink { group });
        self.finish_shrinks();
    }

    /// A shrink ends when no member of the group is under suspicion and the death that broke it is known.
    pub(super) fn finish_shrinks(&mut self) {
        let shrinks = self.operations.iter().filter_map(|(operation, pending)| match pending {
            Pending::Shrink { group } => Some((*operation, *group)),
            Pending::Barrier { .. } => None,
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
                let what = "nobody in the group died: it was broken by a deadline, a cancellation or a drop";
                Err(Error::new(ErrorKind::InvalidArgument, what).hint("make a group with another label"))
            } else {
                self.group(&label, &survivors).map(Outcome::Group)
            };
            self.complete(operation, outcome.map_err(|error| error.operation("shrink").group(label)));
        }
    }

    pub(super) fn cancel(&mut self, operation: OperationId) {
        let error = Error::new(ErrorKind::Cancelled, "the caller no longer waits");
        match self.operations.get(&operation) {
            Some(Pending::Barrier { group, .. }) => self.break_group(*group, &error, false, true),
            Some(Pending::Shrink { .. }) => self.complete(operation, Err(error.operation("shrink"))),
            None => {}
        }
    }

    pub(super) fn poll_deadlines(&mut self) {
        let now = self.now;
        let late = |pending: &Pending| match pending {
            Pending::Barrier { deadline, .. } => deadline.is_some_and(|deadline| now >= deadline),
            Pending::Shrink { .. } => false,
        };
        for operation in self.operations_where(late) {
            let Some(Pending::Barrier { group, sequence, .. }) = self.operations.get(&operation) else { continue };
            let missing = self.who_is_missing(*group, *sequence);
            let error =
                Error::new(ErrorKind::DeadlineExceeded, missing).hint("a member may be late; look at its output");
            self.break_group(*group, &error, false, true);
        }
    }

    fn who_is_missing(&self, id: GroupId, sequence: u64) -> String {
        let unknown = || "not every member entered".to_owned();
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
            Pending::Shrink { .. } => None,
        };
        self.operations.values().filter_map(deadline).min()
    }

    /// Whom our barriers need: their first member, or, at that, those who have entered.
    pub(super) fn partners_in_barriers(&self) -> BTreeSet<NodeId> {
        let firsts = self.operations.values().filter_map(|pending| match pending {
            Pending::Barrier { group, .. } => self.groups.get(group)?.nodes.first().copied(),
            Pending::Shrink { .. } => None,
        });
        let entered = self.groups.values().flat_map(|group| group.tallies.values()).flat_map(|tally| &tally.members);
        firsts.chain(entered.copied()).collect()
    }

    fn unmade_groups(&self) -> usize {
        self.groups.values().filter(|group| group.nodes.is_empty()).count()
    }

    fn operations_where(&self, wanted: impl Fn(&Pending) -> bool) -> Vec<OperationId> {
        self.operations.iter().filter(|(_, pending)| wanted(pending)).map(|(operation, _)| *operation).collect()
    }

    pub(super) fn complete(&mut self, operation: OperationId, outcome: Result<Outcome>) {
        self.operations.remove(&operation);
        self.effects.push(Effect::Complete { operation, outcome });
    }
}
