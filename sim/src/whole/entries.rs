//! A model of directories: who has which key, as far as its owner and the finders know.
//!
//! Nobody sees the moment at which a key gets an owner or loses it: it lies between the beginning and the end of what
//! the owner does. Each such beginning and end is a *step* of the key. A finder whose whole search lies between two
//! steps must find what the model has; one beside which steps were made may find whoever had the key at some moment of
//! its search, or nobody, if nobody had it for sure throughout.
//!
//! A finder that is told that a key was lost with a member must hear of the last one that had it. It must be told where
//! that one is dead and the first index, which knows, has been the index throughout.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A group's generation, and a key in it.
type Key = (u64, i64);

/// How far a process is with a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stand {
    #[default]
    Not,
    /// It gets it, or loses it.
    Between,
    Owns,
}

#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    stand: Stand,
    /// The step with which it came to that.
    since: u64,
}

#[derive(Default)]
struct OfKey {
    steps: u64,
    claims: BTreeMap<usize, Claim>,
    /// Who has got it last, and the step.
    last: Option<(usize, u64)>,
}

/// Keys of all groups of a job.
#[derive(Default)]
pub(super) struct Entries {
    keys: Mutex<BTreeMap<Key, OfKey>>,
    /// By generation, who has begun to make the group.
    entered: Mutex<BTreeMap<usize, u64>>,
    /// Generations of groups that their first member has begun to leave.
    left: Mutex<BTreeSet<u64>>,
}

impl Entries {
    fn keys(&self) -> MutexGuard<'_, BTreeMap<Key, OfKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self, key: Key, process: usize, stand: Stand) -> u64 {
        let mut keys = self.keys();
        let of_key = keys.entry(key).or_default();
        of_key.steps += 1;
        of_key.claims.insert(process, Claim { stand, since: of_key.steps });
        of_key.steps
    }

    /// A process begins to get a key, or to lose it. Returns the step.
    pub(super) fn begins(&self, key: Key, process: usize) -> u64 {
        self.step(key, process, Stand::Between)
    }

    /// A process has a key. Returns others that have it too.
    pub(super) fn owns(&self, key: Key, process: usize) -> Vec<usize> {
        let step = self.step(key, process, Stand::Owns);
        let mut keys = self.keys();
        let of_key = keys.entry(key).or_default();
        of_key.last = Some((process, step));
        let claims = of_key.claims.clone();
        let others = claims.into_iter().filter(|(other, claim)| *other != process && claim.stand == Stand::Owns);
        others.map(|(other, _)| other).collect()
    }

    /// A process has a key no more.
    pub(super) fn lost(&self, key: Key, process: usize) {
        self.step(key, process, Stand::Not);
    }

    /// Whether a process has a key.
    pub(super) fn has(&self, key: Key, process: usize) -> bool {
        self.keys()
            .get(&key)
            .and_then(|of_key| of_key.claims.get(&process))
            .is_some_and(|claim| claim.stand == Stand::Owns)
    }

    /// The step at which a search begins.
    pub(super) fn now(&self, key: Key) -> u64 {
        self.keys().get(&key).map_or(0, |of_key| of_key.steps)
    }

    /// Whether a process had a key at some moment since a step, or was about to.
    pub(super) fn had_since(&self, key: Key, process: usize, begun: u64) -> bool {
        let keys = self.keys();
        let claim = keys.get(&key).and_then(|of_key| of_key.claims.get(&process)).copied().unwrap_or_default();
        claim.stand != Stand::Not || claim.since > begun
    }

    /// Whether another process had a key at some moment since a step, or was about to.
    pub(super) fn another_had_since(&self, key: Key, process: usize, begun: u64) -> bool {
        let others: Vec<usize> = {
            let keys = self.keys();
            keys.get(&key).map(|of_key| of_key.claims.keys().copied().collect()).unwrap_or_default()
        };
        others.into_iter().any(|other| other != process && self.had_since(key, other, begun))
    }

    /// The owner that has had a key for sure throughout since a step.
    pub(super) fn owner_since(&self, key: Key, begun: u64) -> Option<usize> {
        let keys = self.keys();
        let mut claims = keys.get(&key)?.claims.iter();
        claims.find(|(_, claim)| claim.stand == Stand::Owns && claim.since <= begun).map(|(process, _)| *process)
    }

    /// Whether a process has had a key, or was about to, and the one that has got it after it by a step, if any.
    pub(super) fn heir_by(&self, key: Key, process: usize, step: u64) -> (bool, Option<usize>) {
        let keys = self.keys();
        let claim = keys.get(&key).and_then(|of_key| of_key.claims.get(&process));
        let last = keys.get(&key).and_then(|of_key| of_key.last);
        let is_after = |at: u64| at <= step && claim.is_some_and(|claim| claim.since < at);
        (claim.is_some(), last.filter(|(other, at)| *other != process && is_after(*at)).map(|(other, _)| other))
    }

    /// The owner that has had a key for sure throughout since a step, if nobody else has wanted it after that.
    pub(super) fn last_owner_since(&self, key: Key, begun: u64) -> Option<usize> {
        let owner = self.owner_since(key, begun)?;
        let keys = self.keys();
        let of_key = keys.get(&key)?;
        let since = of_key.claims.get(&owner)?.since;
        let is_last = of_key.claims.iter().all(|(other, claim)| *other == owner || claim.since < since);
        is_last.then_some(owner)
    }

    /// The first member of a group begins to leave it.
    pub(super) fn first_leaves(&self, generation: u64) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).insert(generation);
    }

    /// Whether the first member of a group has not begun to leave it.
    pub(super) fn has_first(&self, generation: u64) -> bool {
        !self.left.lock().unwrap_or_else(PoisonError::into_inner).contains(&generation)
    }

    /// A process begins to make a group for the so manieth time.
    pub(super) fn enters(&self, process: usize, round: u64) {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner).insert(process, round);
    }

    /// Those of the members that have not begun to make it so often.
    pub(super) fn absent(&self, members: &[usize], round: u64) -> Vec<usize> {
        let entered = self.entered.lock().unwrap_or_else(PoisonError::into_inner);
        let is_absent = |process: &&usize| entered.get(process).is_none_or(|of| *of < round);
        members.iter().filter(is_absent).copied().collect()
    }
}
