//! The simulated network: ordered links with delays of their own, which can be cut, silently or not.

use sheave_base::NodeId;
use sheave_base::clock::{Entropy, SeededEntropy, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A direction: from, to.
type Way = (NodeId, NodeId);

pub struct Network {
    entropy: SeededEntropy,
    /// The longest usual delay.
    delay_ms_max: u64,
    delay_ms: BTreeMap<Way, u64>,
    /// When the last message on a way arrives: links keep order.
    latest: BTreeMap<Way, Time>,
    /// Ways that swallow everything.
    silent: BTreeSet<Way>,
    /// Links that both ends will know to have ended.
    closed: BTreeSet<Way>,
    /// Ways that have carried a message.
    used: BTreeSet<Way>,
}

/// What becomes of a message.
pub enum Fate {
    Arrives(Time),
    Swallowed,
    /// The sender learns at this time that there is no link.
    Refused(Time),
}

impl Network {
    pub fn new(seed: u64, delay_ms_max: u64) -> Self {
        let (delay_ms, latest) = (BTreeMap::new(), BTreeMap::new());
        let (silent, closed, used) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        Self { entropy: SeededEntropy::new(seed ^ 0x6e65_7477), delay_ms_max, delay_ms, latest, silent, closed, used }
    }

    fn delay(&mut self, way: Way) -> Duration {
        let drawn = 1 + self.entropy.below(self.delay_ms_max);
        let base = *self.delay_ms.entry(way).or_insert(drawn);
        // Now and then a message takes much longer than its neighbours.
        let jitter = if self.entropy.below(16) == 0 { self.entropy.below(4 * self.delay_ms_max) } else { 0 };
        Duration::from_micros(base * 1000 + jitter * 1000 + self.entropy.next_u64() % 1000)
    }

    /// Sends a message.
    pub fn send(&mut self, now: Time, from: NodeId, to: NodeId, to_lives: bool) -> Fate {
        let way = (from, to);
        let arrival = now.after(self.delay(way)).max(self.latest.get(&way).copied().unwrap_or_default());
        if self.silent.contains(&way) {
            return Fate::Swallowed;
        }
        if self.closed.contains(&way) || !to_lives {
            // What the other end sent before is read first.
            return Fate::Refused(arrival.max(self.latest.get(&(to, from)).copied().unwrap_or_default()));
        }
        self.used.insert(way);
        self.latest.insert(way, arrival);
        Fate::Arrives(arrival)
    }

    /// Swallows everything on this way from now on.
    pub fn silence(&mut self, from: NodeId, to: NodeId) {
        self.silent.insert((from, to));
    }

    /// Ends a link; says when the news reach `to`, unless nothing does.
    pub fn close(&mut self, now: Time, from: NodeId, to: NodeId) -> Option<Time> {
        let is_new = self.closed.insert((from, to)) | self.closed.insert((to, from));
        let was_used = self.used.contains(&(from, to)) || self.used.contains(&(to, from));
        let arrival = now.after(self.delay((from, to))).max(self.latest.get(&(from, to)).copied().unwrap_or_default());
        (is_new && was_used && !self.silent.contains(&(from, to))).then_some(arrival)
    }

    /// Makes links between all, as services do.
    pub fn link_all(&mut self, nodes: &[NodeId]) {
        self.used.extend(nodes.iter().flat_map(|one| nodes.iter().map(|other| (*one, *other))));
    }

    /// Whether a link stands between these two.
    pub fn is_linked(&self, one: NodeId, other: NodeId) -> bool {
        let was_used = self.used.contains(&(one, other)) || self.used.contains(&(other, one));
        was_used && !self.closed.contains(&(one, other))
    }

    /// Whether what is under way from `from` to `to` still gets there.
    pub fn carries(&self, from: NodeId, to: NodeId) -> bool {
        !self.silent.contains(&(from, to))
    }
}
