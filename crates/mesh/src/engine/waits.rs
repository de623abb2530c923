//! Members that wait for each other in a circle: each in something that the other does not begin.
//!
//! What members do in a group is a sequence of steps: barriers, and operations of services. All do them in one order,
//! and the groups of one label and the same nodes, which differ in the order of their members, share it. So how far a
//! member is, as a count for each sort of step, is what has been done of one and the same sequence; of any two members
//! one is as far as the other in every sort, whenever either of them looked. Where each is ahead of the other
//! in something, they have not kept to one order, and if both wait, neither ever ends.
//!
//! Who has waited in a group for a beat without a step says with each beat how far it is to the least of its nodes,
//! which is the same for every order of them. That one compares, and tells both sides.

use super::{Engine, GroupId, Message, Pending, Steps};
use sha2::{Digest, Sha256};
use sheave_base::clock::Time;
use sheave_base::{Error, ErrorKind, NodeId};
use std::collections::BTreeMap;

/// Sets of nodes of which somebody waits. Each is told anew with the next beat.
const SETS_MAX: usize = 4096;
/// Groups of one label and the same nodes of which a node tells. Others are compared as if it knew nothing of them.
const ORDERS_MAX: usize = 16;
/// What was told so many beats ago means nothing any more.
const FRESH_BEATS: u32 = 3;

struct Waiter {
    node: NodeId,
    steps: Vec<Steps>,
    told: Time,
}

#[derive(Default)]
pub(super) struct Waits {
    sets: BTreeMap<u64, Vec<Waiter>>,
}

/// The identity of a label and its nodes, in whatever order.
fn set_of(label: &str, nodes: &[NodeId]) -> u64 {
    let mut sorted = nodes.to_vec();
    sorted.sort_unstable();
    let mut hasher = Sha256::new();
    hasher.update(b"set");
    hasher.update((label.len() as u64).to_le_bytes());
    hasher.update(label);
    sorted.iter().for_each(|node| hasher.update(node.0.to_le_bytes()));
    hasher.finalize().iter().take(8).fold(0, |id, byte| id << 8 | u64::from(*byte))
}

/// Whether one has done something that the other has not.
fn is_ahead(one: &[Steps], other: &[Steps]) -> bool {
    one.iter().any(|own| {
        let theirs = other.iter().find(|steps| steps.group == own.group);
        let (barriers, operations) = theirs.map_or((0, 0), |steps| (steps.barriers, steps.operations));
        own.barriers > barriers || own.operations > operations
    })
}

impl Engine {
    /// With each beat: says where this node has waited since the last one.
    pub(super) fn tell_waits(&mut self) {
        let mut entered: BTreeMap<GroupId, bool> = BTreeMap::new();
        for pending in self.operations.values() {
            if let Pending::Barrier { group, .. } = pending {
                entered.insert(*group, true);
            }
        }
        let mut waiting = Vec::new();
        for (id, group) in &mut self.groups {
            let is_pending = entered.contains_key(id) || group.record.has_in_flight();
            let now = [group.next_sequence, group.record.operations()];
            let before = group.waited_at.take();
            if is_pending && group.broken.is_none() && group.nodes.len() > 1 {
                group.waited_at = Some(now);
                if before == Some(now) {
                    waiting.push(*id);
                }
            }
        }
        for id in waiting {
            self.tell_wait(id);
        }
    }

    fn steps_in(&self, id: GroupId) -> Option<Steps> {
        let group = self.groups.get(&id)?;
        let rank = group.nodes.iter().position(|node| *node == self.me)? as u32;
        Some(Steps { group: id, rank, barriers: group.next_sequence, operations: group.record.operations() })
    }

    fn tell_wait(&mut self, id: GroupId) {
        let Some(group) = self.groups.get(&id) else { return };
        let (label, nodes) = (group.label.clone(), group.nodes.clone());
        let Some(least) = nodes.iter().min().copied() else { return };
        let set = set_of(&label, &nodes);
        let is_other = |other: &super::group::Group| {
            other.label == label && other.nodes.len() == nodes.len() && set_of(&label, &other.nodes) == set
        };
        let others = self.groups.iter().filter(|(other, group)| **other != id && is_other(group));
        let others: Vec<_> = others.map(|(id, _)| *id).take(ORDERS_MAX - 1).collect();
        let steps = std::iter::once(id).chain(others).filter_map(|id| self.steps_in(id)).collect();
        self.send(least, Message::Waits { epoch: self.epoch, set, label, steps });
    }

    /// At the least of a set of nodes: somebody waits in a group of them.
    pub(super) fn waits_somewhere(&mut self, from: NodeId, set: u64, label: &str, mut steps: Vec<Steps>) {
        let (now, fresh) = (self.now, self.config.liveness.beat * FRESH_BEATS);
        let sets = &mut self.waits.sets;
        sets.retain(|_, waiters| {
            waiters.retain(|waiter| waiter.node != from && now < waiter.told.after(fresh));
            !waiters.is_empty()
        });
        steps.truncate(ORDERS_MAX);
        if steps.is_empty() || sets.len() >= SETS_MAX && !sets.contains_key(&set) {
            return;
        }
        let waiters = sets.entry(set).or_default();
        let crossed = |other: &&Waiter| is_ahead(&other.steps, &steps) && is_ahead(&steps, &other.steps);
        let Some(at) = waiters.iter().position(|waiter| crossed(&waiter)) else {
            waiters.push(Waiter { node: from, steps, told: now });
            return;
        };
        let other = waiters.swap_remove(at);
        let one = Waiter { node: from, steps, told: now };
        let error = Error::new(ErrorKind::Mismatch, self.circle(label, &one, &other));
        for (own, about) in [(&one, other.node), (&other, one.node)] {
            let (epoch, error, group) = (self.epoch, error.clone(), own.steps[0].group);
            self.send(own.node, Message::Broken { epoch, group, by_death: false, about, error, failed_from: None });
        }
    }

    /// How two members differ that wait for each other.
    fn circle(&self, label: &str, one: &Waiter, other: &Waiter) -> String {
        let name = |waiter: &Waiter| self.peer_of(waiter.node).name;
        let (own, theirs) = (one.steps[0], other.steps[0]);
        if own.group != theirs.group {
            return format!(
                "group {label} has its members in another order on {}, which is rank {} of it there, than on {}, which \
                 is rank {} of it there",
                name(one),
                own.rank,
                name(other),
                theirs.rank
            );
        }
        let done = |waiter: &Waiter| {
            let Steps { barriers, operations, .. } = waiter.steps[0];
            let name = name(waiter);
            format!("{name} has entered {barriers} of its barriers and begun {operations} operations of a communicator")
        };
        let (one, other) = (done(one), done(other));
        format!("members of group {label} wait for each other: {one}, {other}; all must do both in one order")
    }
}
