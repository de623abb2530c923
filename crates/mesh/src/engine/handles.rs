//! Groups whose handles have been dropped, and how all their members forget them together.
//!
//! A group's numbers outlive a node's handles, because other members may go on with them. They are forgotten when no
//! member has a handle, all at once: a member that forgot alone and made the group again would count from 0 where the
//! others go on.
//!
//! A member whose last handle was dropped lets the group lie for a beat, for programs that make the same group again
//! and again. Then it tells the group's first member (`Dropped`), and from then on asks before it uses the group again
//! (`Hold`). The first member forgets the group when it has no handle itself and has been told by all others, and says
//! so to each (`Forgotten`). Whoever asked by then is told the same, and begins anew; whoever asked before is told
//! `Kept`, and the first member counts it among the holders again. Each `Dropped` has a number of its own that all that
//! is said about it repeats; so what was said about an earlier one means nothing.
//!
//! Nothing of an old group can meet a new one of the same name: a member that has dropped its handles waits for nothing
//! there, and its words arrive in order: those about handles behind its messages
//! ([`Message::follows_data`]).
//!
//! A node forgets alone what nobody can go on with: a group that it never used, one of its own alone, and one that has
//! lost a member. What was broken otherwise stays so, and keeps nothing but why.

use super::{Engine, GroupId, GroupRecord, Message, OperationId, Outcome, Pending};
use sheave_base::clock::Time;
use sheave_base::{Error, ErrorKind, NodeId, Result};
use std::sync::Arc;

/// Groups without handles that a node keeps for a beat; of more, the oldest are told at once.
const IDLE_MAX: usize = 32;

/// Groups that a node knows of: those with handles, those that others hold, and those that were broken by a
/// disagreement, a deadline or a cancellation, of which some bytes stay for ever. A leak beyond that.
const GROUPS_MAX: usize = 65_536;

/// How a group is held by this node's users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Held {
    /// Nobody counts handles.
    #[default]
    Uncounted,
    /// By handles, or by what is pending.
    ByHandles,
    /// No more, since then.
    Idle(Time),
    /// No more, and the first member was told so under this number.
    Dropped(u64),
    /// Again; the first member was asked whether the group is still known.
    Asking(u64),
}

impl Engine {
    /// Counts one more handle of a group. False if `confirm` must be waited for before it is used.
    pub fn hold(&mut self, id: GroupId) -> bool {
        let Some(group) = self.groups.get_mut(&id) else { return true };
        group.handles += 1;
        match group.held {
            Held::Dropped(number) => {
                group.held = Held::Asking(number);
                let (epoch, first) = (self.epoch, group.nodes.first().copied());
                if let Some(first) = first {
                    self.send(first, Message::Hold { epoch, group: id, number });
                }
            }
            Held::Asking(_) => {}
            _ => group.held = Held::ByHandles,
        }
        !matches!(self.groups.get(&id).map(|group| group.held), Some(Held::Asking(_)))
    }

    /// Counts one handle less.
    pub fn release(&mut self, id: GroupId) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.handles = group.handles.saturating_sub(1);
        self.lay_by(id);
        while self.idle.len() > IDLE_MAX {
            self.drop_oldest();
        }
    }

    /// What this node keeps of a group.
    #[must_use]
    pub fn record_of(&self, id: GroupId) -> Option<&Arc<GroupRecord>> {
        self.groups.get(&id).map(|group| &group.record)
    }

    /// What belonged to groups that were forgotten, for the caller to drop.
    pub fn take_forgotten(&mut self) -> Vec<Arc<GroupRecord>> {
        std::mem::take(&mut self.forgotten)
    }

    /// Lets go of what services keep of groups without handles: this node is about to leave. So others get their memory
    /// back while links stand. The numbers stay, for this node may still meet the others.
    pub fn empty_idle_groups(&mut self) {
        let is_idle = |group: &&mut super::group::Group| group.handles == 0 && group.held != Held::Uncounted;
        for group in self.groups.values_mut().filter(is_idle) {
            let numbers = Arc::new(group.record.numbers());
            self.forgotten.push(std::mem::replace(&mut group.record, numbers));
        }
    }

    /// What belonged to all groups, for the caller to drop: this node is no member any more.
    pub(crate) fn end_records(&mut self) -> Vec<Arc<GroupRecord>> {
        let mut records = self.take_forgotten();
        for group in self.groups.values_mut() {
            group.record.note_broken();
            let ended = Arc::new(GroupRecord::default());
            ended.note_broken();
            records.push(std::mem::replace(&mut group.record, ended));
        }
        records
    }

    pub(super) fn check_room(&self, id: GroupId, label: &str) -> Result<()> {
        if self.groups.len() < GROUPS_MAX || self.groups.contains_key(&id) {
            return Ok(());
        }
        let what = format!("{GROUPS_MAX} groups are held or were broken; group {label} would be one more");
        Err(Error::new(ErrorKind::LimitExceeded, what).hint("let groups go on all their members"))
    }

    fn is_in_use(&self, id: GroupId) -> bool {
        self.operations.values().any(|pending| match pending {
            Pending::Barrier { group, .. } | Pending::Shrink { group, .. } | Pending::Confirm { group } => *group == id,
            Pending::Leave { .. } | Pending::Ask { .. } => false,
        })
    }

    /// Lets a group lie, or forgets it, if nothing here uses it any more.
    fn lay_by(&mut self, id: GroupId) {
        let Some(group) = self.groups.get(&id).filter(|group| group.handles == 0) else { return };
        if group.held != Held::ByHandles || self.is_in_use(id) {
            return;
        }
        if self.forgets_alone(id) {
            return self.forget(id);
        }
        let now = self.now;
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.held = Held::Idle(now);
        if group.broken.is_some() {
            // Nobody goes on with what it has counted.
            let broken = Arc::new(GroupRecord::default());
            broken.note_broken();
            self.forgotten.push(std::mem::replace(&mut group.record, broken));
            return;
        }
        if group.nodes.first() == Some(&self.me) {
            return self.forget_if_all_dropped(id);
        }
        self.idle.push_back((now, id));
    }

    fn forgets_alone(&self, id: GroupId) -> bool {
        let Some(group) = self.groups.get(&id) else { return false };
        let is_unused = group.record.is_pristine()
            && group.next_sequence == 0
            && group.released == 0
            && group.tallies.is_empty()
            && group.dropped.is_empty()
            && group.broken.is_none();
        let has_lost = group.broken.as_ref().is_some_and(|broken| broken.by_death);
        is_unused || has_lost || group.nodes.len() == 1
    }

    pub(super) fn forget(&mut self, id: GroupId) {
        if let Some(group) = self.groups.remove(&id) {
            self.forgotten.push(group.record);
        }
    }

    /// With each beat: groups without handles that have lain long enough, and those that something pending held.
    pub(super) fn drop_idle_groups(&mut self) {
        let is_loose = |group: &super::group::Group| group.handles == 0 && group.held == Held::ByHandles;
        let loose: Vec<_> = self.groups.iter().filter(|(_, group)| is_loose(group)).map(|(id, _)| *id).collect();
        loose.into_iter().for_each(|id| self.lay_by(id));
        let lost = |group: &super::group::Group| {
            let is_idle = matches!(group.held, Held::Idle(_) | Held::Dropped(_));
            is_idle && group.broken.as_ref().is_some_and(|broken| broken.by_death)
        };
        let lost: Vec<_> = self.groups.iter().filter(|(_, group)| lost(group)).map(|(id, _)| *id).collect();
        lost.into_iter().for_each(|id| self.forget(id));
        let beat = self.config.liveness.beat;
        while self.idle.front().is_some_and(|(since, _)| self.now >= since.after(beat)) {
            self.drop_oldest();
        }
    }

    /// Tells the first member of the group that has lain longest that this node has dropped it.
    fn drop_oldest(&mut self) {
        let Some((since, id)) = self.idle.pop_front() else { return };
        let (epoch, number) = (self.epoch, self.next_drop);
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.held == Held::Idle(since)) else { return };
        let Some(first) = group.nodes.first().copied().filter(|_| group.broken.is_none()) else { return };
        group.held = Held::Dropped(number);
        let members = group.nodes.len() as u32;
        self.next_drop += 1;
        self.send(first, Message::Dropped { epoch, group: id, number, members });
    }

    /// At a group's first member: somebody has no handle any more.
    pub(super) fn dropped(&mut self, from: NodeId, id: GroupId, number: u64, members: u32) {
        let epoch = self.epoch;
        let has_room = self.groups.contains_key(&id) || self.may_note_unmade();
        if !has_room || self.broken(id).is_some() {
            return self.send(from, Message::Kept { epoch, group: id, number });
        }
        let group = self.groups.entry(id).or_default();
        group.dropped.insert(from, number);
        group.members = members;
        self.forget_if_all_dropped(id);
    }

    fn forget_if_all_dropped(&mut self, id: GroupId) {
        let Some(group) = self.groups.get(&id) else { return };
        let is_free = group.nodes.is_empty() || matches!(group.held, Held::Idle(_));
        let members = if group.nodes.is_empty() { group.members as usize } else { group.nodes.len() };
        if !is_free || group.handles > 0 || group.broken.is_some() || group.dropped.len() + 1 < members {
            return;
        }
        let (epoch, told) = (self.epoch, group.dropped.clone());
        self.forget(id);
        for (node, number) in told {
            self.send(node, Message::Forgotten { epoch, group: id, number });
        }
    }

    /// At a group's first member: somebody has a handle again.
    pub(super) fn held_again(&mut self, from: NodeId, id: GroupId, number: u64) {
        let epoch = self.epoch;
        let group = self.groups.get_mut(&id).filter(|group| group.dropped.get(&from) == Some(&number));
        let message = match group {
            Some(group) => {
                group.dropped.remove(&from);
                Message::Kept { epoch, group: id, number }
            }
            None => Message::Forgotten { epoch, group: id, number },
        };
        self.send(from, message);
    }

    /// The first member still knows the group.
    pub(super) fn kept(&mut self, from: NodeId, id: GroupId, number: u64) {
        let now = self.now;
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.nodes.first() == Some(&from)) else { return };
        match group.held {
            Held::Asking(asked) if asked == number => {
                group.held = Held::ByHandles;
                self.end_confirms(id);
            }
            Held::Dropped(told) if told == number => {
                group.held = Held::Idle(now);
                self.idle.push_back((now, id));
            }
            _ => {}
        }
    }

    /// The group is forgotten by all.
    pub(super) fn forgotten(&mut self, from: NodeId, id: GroupId, number: u64) {
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.nodes.first() == Some(&from)) else { return };
        match group.held {
            Held::Asking(asked) if asked == number => {
                group.held = Held::ByHandles;
                group.next_sequence = 0;
                self.forgotten.push(std::mem::take(&mut group.record));
                self.end_confirms(id);
            }
            Held::Dropped(told) if told == number => self.forget(id),
            _ => {}
        }
    }

    /// A user waits until its new handle may be used.
    pub(super) fn confirm(&mut self, operation: OperationId, id: GroupId) {
        self.operations.insert(operation, Pending::Confirm { group: id });
        if !self.is_active() || !matches!(self.groups.get(&id), Some(group) if matches!(group.held, Held::Asking(_))) {
            self.end_confirms(id);
        }
    }

    /// What was asked about a group is answered, or means nothing any more.
    pub(super) fn end_confirms(&mut self, id: GroupId) {
        let waits = |pending: &Pending| matches!(pending, Pending::Confirm { group } if *group == id);
        for operation in self.operations_where(waits) {
            self.complete(operation, Ok(Outcome::Passed));
        }
        if let Some(group) = self.groups.get_mut(&id).filter(|group| matches!(group.held, Held::Asking(_))) {
            group.held = Held::ByHandles;
        }
    }
}
