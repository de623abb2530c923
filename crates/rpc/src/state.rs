//! Directory of one group as one of its members keeps it: a state without I/O.
//!
//! **One index at a time.** The index is the first of the members that is not gone. Members hear that one is gone at
//! different times, but nobody comes back: whoever takes a member for the index knows that all before it are gone, and
//! sooner or later that member knows it too. Until it does it answers "not now".
//!
//! **No entry is lost.** A new index knows of all entries when each member that is not gone has reported to it. Until
//! then it answers only what it knows. An owner reports all that it has to each new index, also what no index has
//! granted yet, and it takes back what it has disowned while it reported. It takes a grant for good only if the index
//! that gave it is still the index as it knows: otherwise it has reported the entry as not granted, and asks again. So
//! of two owners that report the same key at most one has it granted, and that one keeps it.
//!
//! **Words that cross.** An owner may take an entry again before the index has heard that it gave it away, and the two
//! words come in any order, for each is a task of its own that says it until it is heard. So an owner numbers what it
//! takes, and what it gives away is that number alone.
//!
//! **Keys of the dead.** An index remembers the entries that it knew of a member that died, until somebody else has
//! them. A new index is not told of them: who has reported and died since is all that it knows.

use crate::entry::{EntryName, GroupName, Sort};
use crate::lost::Lost;
use crate::protocol::{Announced, Found, Report, Reported};
use sheave_base::NodeId;
use sheave_base::collections::{HashMap, HashSet};
use sheave_base::planted::{self, Bug};
use sheave_mesh::{Group, Ref};
use std::sync::Arc;

/// Bytes of entries in one report.
const REPORT_BYTES: usize = 16 << 10;

/// An entry as an index knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Indexed {
    owner: NodeId,
    /// The latest that was heard of.
    number: u64,
    is_granted: bool,
}

/// An entry as its owner has it.
#[derive(Debug)]
pub(crate) struct Own {
    /// As [`Ownership::number`](crate::protocol::Ownership::number).
    pub(crate) number: u64,
    pub(crate) is_granted: bool,
    value: Option<Ref>,
}

pub(crate) struct GroupState {
    pub(crate) group: GroupName,
    /// In the order of their ranks.
    pub(crate) members: Arc<[NodeId]>,
    me: NodeId,
    gone: HashSet<NodeId>,
    entries: HashMap<EntryName, Indexed>,
    reported: HashSet<NodeId>,
    lost: Lost,
    own: HashMap<EntryName, Own>,
    /// The number of the entry that this member has taken last.
    last_number: u64,
    /// The same members in the mesh, for their barriers; none in a test of the state alone.
    pub(crate) barriers: Option<Group>,
}

impl GroupState {
    pub(crate) fn new(group: GroupName, members: Arc<[NodeId]>, me: NodeId, barriers: Option<Group>) -> Self {
        let (gone, entries, reported, lost, own) = Default::default();
        Self { group, members, me, gone, entries, reported, lost, own, last_number: 0, barriers }
    }

    /// The index as this member knows it.
    pub(crate) fn index(&self) -> NodeId {
        self.members.iter().copied().find(|member| !self.gone.contains(member)).unwrap_or(self.me)
    }

    /// Members that are not gone, this one not counted.
    pub(crate) fn others(&self) -> impl Iterator<Item = NodeId> {
        self.members.iter().copied().filter(|member| *member != self.me && !self.gone.contains(member))
    }

    pub(crate) fn has(&self, member: NodeId) -> bool {
        self.members.contains(&member) && !self.gone.contains(&member)
    }

    /// Whether this member is the index, and knows of every entry: the first one has heard of each, a later one once
    /// all have reported.
    fn knows_all(&self) -> bool {
        let is_first = self.members.first() == Some(&self.me);
        let is_sure = is_first || planted::strikes(Bug::ReportUnheard);
        self.index() == self.me && (is_sure || self.others().all(|member| self.reported.contains(&member)))
    }

    /// An owner announces an entry.
    pub(crate) fn announce(&mut self, owner: NodeId, entry: EntryName, number: u64) -> Announced {
        if !self.has(owner) {
            return Announced::Gone;
        }
        if !self.knows_all() {
            return Announced::NotNow;
        }
        self.lost.forget(&entry);
        let known = self.entries.entry(entry).or_insert(Indexed { owner, number, is_granted: true });
        if known.owner != owner && !planted::strikes(Bug::EntryTwice) {
            return Announced::Taken(known.owner);
        }
        known.number = known.number.max(number);
        known.is_granted = true;
        Announced::Done
    }

    pub(crate) fn find(&self, entry: &EntryName) -> Found {
        match self.entries.get(entry) {
            _ if self.index() != self.me => Found::NotNow,
            Some(known) => Found::Owner(known.owner),
            None if self.knows_all() => {
                let owner = self.lost.owner(entry).filter(|_| !planted::strikes(Bug::LostUnknown));
                owner.map_or(Found::Nobody, Found::LostWith)
            }
            None => Found::NotNow,
        }
    }

    /// An owner has an entry of this number no more. It may have taken it again.
    pub(crate) fn withdraw(&mut self, owner: NodeId, entry: &EntryName, number: u64) -> Announced {
        if self.entries.get(entry).is_some_and(|known| known.owner == owner && known.number <= number) {
            self.entries.remove(entry);
        }
        if self.index() == self.me { Announced::Done } else { Announced::NotNow }
    }

    /// A member reports what it has.
    pub(crate) fn take_report(&mut self, owner: NodeId, entries: Vec<Reported>, is_last: bool) {
        if !self.has(owner) {
            return;
        }
        for Reported { entry, number, is_granted } in entries {
            let reported = Indexed { owner, number, is_granted };
            self.lost.forget(&entry);
            let known = self.entries.entry(entry).or_insert(reported);
            if known.owner == owner {
                known.number = known.number.max(number);
                known.is_granted |= is_granted;
            } else if is_granted && !known.is_granted {
                *known = reported;
            }
        }
        if is_last {
            self.reported.insert(owner);
        }
    }

    /// A member is gone: dead, or in order. Returns the next index if it was the index, which is to be told what this
    /// member has; where it is this member it knows.
    pub(crate) fn lose(&mut self, member: NodeId, is_dead: bool) -> Option<NodeId> {
        let before = self.index();
        if !self.members.contains(&member) || !self.gone.insert(member) {
            return None;
        }
        if !planted::strikes(Bug::EntryOutlives) {
            for (entry, known) in self.entries.extract_if(|_, known| known.owner == member) {
                if is_dead && known.is_granted {
                    self.lost.note(entry, member);
                }
            }
        }
        let index = self.index();
        if index == before {
            return None;
        }
        if index == self.me {
            let own = self.own_entries();
            self.take_report(self.me, own, true);
            return None;
        }
        Some(index)
    }

    fn own_entries(&self) -> Vec<Reported> {
        if planted::strikes(Bug::EntryUntold) {
            return Vec::new();
        }
        let reported = |(entry, own): (&EntryName, &Own)| Reported {
            entry: entry.clone(),
            number: own.number,
            is_granted: own.is_granted,
        };
        self.own.iter().map(reported).collect()
    }

    /// All that this member has, for an index.
    pub(crate) fn reports(&self) -> Vec<Report> {
        let own = self.own_entries();
        let report = |entries| Report { group: self.group.clone(), entries, is_last: false };
        let mut reports = vec![report(Vec::new())];
        let mut left_bytes = REPORT_BYTES;
        for reported in own {
            let len_bytes = reported.entry.len_bytes();
            if len_bytes > left_bytes {
                reports.push(report(Vec::new()));
                left_bytes = REPORT_BYTES;
            }
            left_bytes = left_bytes.saturating_sub(len_bytes);
            if let Some(last) = reports.last_mut() {
                last.entries.push(reported);
            }
        }
        if let Some(last) = reports.last_mut() {
            last.is_last = true;
        }
        reports
    }

    /// Those of the entries that this member has no more, or has taken again since, and their numbers then.
    pub(crate) fn disowned(&self, reports: &[Report]) -> Vec<(EntryName, u64)> {
        let entries = reports.iter().flat_map(|report| &report.entries);
        let disowned = entries.filter(|told| self.own.get(&told.entry).is_none_or(|own| own.number != told.number));
        disowned.map(|told| (told.entry.clone(), told.number)).collect()
    }

    /// Notes that this member has something, and returns the number of that; the value again if it has that already.
    pub(crate) fn own(&mut self, entry: EntryName, value: Option<Ref>) -> Result<u64, Option<Ref>> {
        if self.own.contains_key(&entry) {
            return Err(value);
        }
        self.last_number += 1;
        self.own.insert(entry, Own { number: self.last_number, is_granted: false, value });
        Ok(self.last_number)
    }

    /// An index has granted an entry of this number. False if it is not the index any more: then another one is to be
    /// asked.
    pub(crate) fn grant(&mut self, entry: &EntryName, number: u64, by: NodeId) -> bool {
        if self.index() != by {
            return false;
        }
        if let Some(own) = self.own.get_mut(entry).filter(|own| own.number == number) {
            own.is_granted = true;
        }
        true
    }

    /// Whether this member has as many entries as it may.
    pub(crate) fn is_full(&self) -> bool {
        self.own.len() >= sheave_base::limits::RPC_ENTRIES_MAX
    }

    /// Takes an entry of this member's away, if it is the one that is meant.
    pub(crate) fn disown(&mut self, entry: &EntryName, is_meant: impl FnOnce(&Own) -> bool) -> Option<Own> {
        self.own.get(entry).filter(|own| is_meant(own))?;
        self.own.remove(entry)
    }

    /// The value that this member has under a key.
    pub(crate) fn value(&self, entry: &EntryName) -> Option<Ref> {
        self.own.get(entry)?.value.clone()
    }

    /// Services that this member has.
    pub(crate) fn services(&self) -> impl Iterator<Item = &EntryName> {
        self.own.keys().filter(|entry| entry.sort == Sort::Service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_wire::Value;

    const MEMBERS: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

    fn state(me: u64) -> GroupState {
        GroupState::new(
            GroupName { name: "g".into(), first: NodeId(1), generation: 1 },
            MEMBERS.into(),
            NodeId(me),
            None,
        )
    }

    fn entry(key: i64) -> EntryName {
        EntryName::new(Sort::Service, &Value::Int(key)).expect("a key")
    }

    fn told(key: i64, number: u64, is_granted: bool) -> Reported {
        Reported { entry: entry(key), number, is_granted }
    }

    fn owns(state: &GroupState, key: i64) -> bool {
        state.own.get(&entry(key)).is_some_and(|own| own.is_granted)
    }

    #[test]
    fn a_new_index_says_no_only_when_all_have_reported() {
        let mut index = state(2);
        assert_eq!(index.find(&entry(7)), Found::NotNow, "it is not the index");
        assert!(index.lose(NodeId(1), true).is_none(), "it tells itself");
        assert_eq!(index.find(&entry(7)), Found::NotNow);
        assert_eq!(index.announce(NodeId(2), entry(8), 1), Announced::NotNow);
        index.take_report(NodeId(3), vec![told(7, 1, true)], false);
        assert_eq!(index.find(&entry(7)), Found::Owner(NodeId(3)));
        assert_eq!(index.find(&entry(8)), Found::NotNow);
        index.take_report(NodeId(3), Vec::new(), true);
        assert_eq!(index.find(&entry(8)), Found::Nobody);
        assert_eq!(index.announce(NodeId(2), entry(7), 1), Announced::Taken(NodeId(3)));
        assert_eq!(index.announce(NodeId(2), entry(8), 1), Announced::Done);
        index.lose(NodeId(3), true);
        assert_eq!(index.find(&entry(7)), Found::LostWith(NodeId(3)), "its owner has died");
    }

    #[test]
    fn who_has_a_grant_wins_over_who_only_asked() {
        let mut index = state(3);
        let mut other = state(2);
        assert_eq!(other.own(entry(7), None).ok(), Some(1));
        assert!(!other.grant(&entry(7), 1, NodeId(3)), "that is not the index");
        assert!(other.grant(&entry(7), 1, NodeId(1)) && owns(&other, 7));
        index.own(entry(7), None).expect("it is new");
        index.lose(NodeId(1), true);
        // A report may come before the index knows that it is one.
        index.take_report(NodeId(2), vec![told(7, 1, false)], true);
        index.lose(NodeId(2), true);
        assert_eq!(index.announce(NodeId(3), entry(7), 1), Announced::Done);
        let mut index = state(2);
        index.own(entry(7), None).expect("it is new");
        index.lose(NodeId(1), true);
        assert_eq!(index.find(&entry(7)), Found::Owner(NodeId(2)));
        index.take_report(NodeId(3), vec![told(7, 1, true)], true);
        assert_eq!(index.announce(NodeId(2), entry(7), 1), Announced::Taken(NodeId(3)));
    }

    #[test]
    fn a_grant_of_an_index_that_is_gone_is_none() {
        let mut owner = state(3);
        owner.own(entry(7), None).expect("it is new");
        assert_eq!(owner.lose(NodeId(1), true), Some(NodeId(2)));
        let reports = owner.reports();
        assert_eq!(reports.len(), 1);
        assert_eq!(reports[0].entries, [told(7, 1, false)]);
        assert!(owner.disowned(&reports).is_empty());
        assert!(!owner.grant(&entry(7), 1, NodeId(1)) && !owns(&owner, 7));
        assert!(owner.grant(&entry(7), 1, NodeId(2)) && owns(&owner, 7));
    }

    #[test]
    fn what_was_lost_with_the_dead_is_remembered_until_another_has_it() {
        let mut index = state(1);
        for key in [7, 8, 9] {
            assert_eq!(index.announce(NodeId(3), entry(key), 1), Announced::Done);
        }
        index.announce(NodeId(2), entry(6), 1);
        assert_eq!(index.withdraw(NodeId(3), &entry(9), 1), Announced::Done);
        index.lose(NodeId(3), true);
        let found = |index: &GroupState| [6, 7, 8, 9].map(|key| index.find(&entry(key)));
        let lost = Found::LostWith(NodeId(3));
        assert_eq!(found(&index), [Found::Owner(NodeId(2)), lost, lost, Found::Nobody]);
        assert_eq!(index.announce(NodeId(2), entry(7), 1), Announced::Done);
        assert_eq!(index.find(&entry(7)), Found::Owner(NodeId(2)));
        index.withdraw(NodeId(2), &entry(7), 1);
        assert_eq!(index.find(&entry(7)), Found::Nobody, "the last who had it has taken it away");
        index.lose(NodeId(2), false);
        assert_eq!(found(&index), [Found::Nobody, Found::Nobody, lost, Found::Nobody], "it has left");
        // A new one is not told, and forgets what is reported to it.
        let mut next = state(2);
        next.take_report(NodeId(3), vec![told(7, 1, true), told(8, 1, true)], true);
        next.lose(NodeId(3), true);
        next.own(entry(7), None).expect("it is new");
        next.lose(NodeId(1), true);
        assert_eq!(found(&next)[..3], [Found::Nobody, Found::Owner(NodeId(2)), lost]);
    }

    #[test]
    fn long_reports_are_cut() {
        let mut owner = state(3);
        (0..5000).for_each(|key| assert!(owner.own(entry(key), None).is_ok()));
        let reports = owner.reports();
        assert!(reports.len() > 3, "{}", reports.len());
        assert_eq!(reports.iter().map(|report| report.entries.len()).sum::<usize>(), 5000);
        assert_eq!(reports.iter().filter(|report| report.is_last).count(), 1);
        assert!(reports.last().is_some_and(|last| last.is_last));
        let own = owner.disown(&entry(17), |_| true).expect("it has it");
        assert_eq!(owner.disowned(&reports), [(entry(17), own.number)]);
        assert_eq!(owner.own(entry(17), None).ok(), Some(5001));
        assert_eq!(owner.disowned(&reports), [(entry(17), own.number)], "it is another time");
    }

    #[test]
    fn an_old_word_changes_nothing_of_what_a_later_one_has_brought() {
        let (mut index, owner) = (state(1), NodeId(2));
        assert_eq!(index.announce(owner, entry(7), 2), Announced::Done, "it has come before the one of the first time");
        assert_eq!(index.withdraw(owner, &entry(7), 1), Announced::Done, "it is heard");
        assert_eq!(index.find(&entry(7)), Found::Owner(owner));
        // Nor does an old one that comes behind make it old.
        assert_eq!(index.announce(owner, entry(7), 1), Announced::Done);
        index.take_report(owner, vec![told(7, 1, false)], true);
        assert_eq!(index.withdraw(owner, &entry(7), 1), Announced::Done);
        assert_eq!(index.find(&entry(7)), Found::Owner(owner));
        assert_eq!(index.withdraw(owner, &entry(7), 2), Announced::Done);
        assert_eq!(index.find(&entry(7)), Found::Nobody);
        // A new index knows the number of what is reported to it.
        let mut next = state(2);
        next.take_report(NodeId(3), vec![told(7, 4, true)], true);
        next.lose(NodeId(1), true);
        next.withdraw(NodeId(3), &entry(7), 3);
        assert_eq!(next.find(&entry(7)), Found::Owner(NodeId(3)));
    }

    #[test]
    fn what_is_taken_again_is_another_entry() {
        let mut owner = state(3);
        assert_eq!(owner.own(entry(7), None).ok(), Some(1));
        assert!(owner.own(entry(7), None).is_err(), "it has it");
        assert!(owner.disown(&entry(7), |own| own.is_granted).is_none(), "it is not granted yet");
        assert!(owner.disown(&entry(7), |own| own.number == 1).is_some());
        assert_eq!(owner.own(entry(7), None).ok(), Some(2));
        assert!(owner.grant(&entry(7), 1, NodeId(1)) && !owns(&owner, 7), "that was for the one before");
        assert!(owner.grant(&entry(7), 2, NodeId(1)) && owns(&owner, 7));
        assert!(owner.disown(&entry(7), |own| own.number == 1).is_none());
    }
}
