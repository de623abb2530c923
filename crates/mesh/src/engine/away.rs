//! Nodes that were stopped, and that others hold for dead since.
//!
//! A node that suspects a member ends its link, and a member suspects whoever has ended its link: of two that cannot
//! reach each other one has to go, and the coordinator's decision says which one. But of a node that was *stopped* it
//! is plain which one: the silence was its own. Were it the coordinator itself, it would take out those who have seen
//! that, with the votes of those who have not yet.
//!
//! So a node that was stopped for half of the liveness timeout or longer, and that learns within a timeout that a
//! member holds it for dead, suspects nobody for that at first. It says so to all others (`Away`), and each of these
//! that was not stopped itself suspects it then, provided that the rest is a majority without it. A beat later it
//! suspects those who hold it for dead after all. Where the others could do without it, it finds itself alone then, or
//! was told before that it is out; where most of the members had been stopped with it, as on a host that stood still,
//! nobody has followed the accusers, and they are in a minority.
//!
//! Nothing here decides anything: a suspicion may be wrong, and what follows from it is agreed on as always. A word
//! that is lost leaves what would be without this: the stopped one and its accusers suspect each other.

use super::message::HOLDS_DEAD;
use super::{Engine, Message};
use sheave_base::NodeId;
use sheave_base::clock::Time;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct Away {
    /// The end of the last stop, and how long it was.
    stop: Option<(Time, u64)>,
    /// Members that hold this node for dead since, and why.
    holders: BTreeMap<NodeId, String>,
    /// When they are suspected.
    pub(super) until: Option<Time>,
}

impl Away {
    pub(super) fn forget(&mut self, node: NodeId) {
        self.holders.remove(&node);
    }

    /// Whether `node` holds this node for dead, and is not suspected for it yet.
    pub(super) fn is_held_by(&self, node: NodeId) -> bool {
        self.holders.contains_key(&node)
    }
}

impl Engine {
    /// Looks whether this node was stopped until now, which shows in that nobody polled it.
    pub(super) fn note_stop(&mut self) {
        let stop = self.now.since(self.watch.polled);
        if self.is_active() && stop >= self.config.liveness.timeout / 2 {
            let stop_ms = u64::try_from(stop.as_millis()).unwrap_or(u64::MAX);
            self.away.stop = Some((self.now, stop_ms));
        }
    }

    /// How long this node was stopped, if that is not long ago.
    fn last_stop_ms(&self) -> Option<u64> {
        let (end, stop_ms) = self.away.stop?;
        (self.now < end.after(self.config.liveness.timeout)).then_some(stop_ms)
    }

    /// A member holds this node for dead, and listens to it no more.
    pub(super) fn held_dead(&mut self, node: NodeId, reason: &str) {
        let stop_ms = match self.last_stop_ms() {
            Some(stop_ms) if self.is_active() && self.is_living(node) && !self.watch.suspects(node) => stop_ms,
            _ => return self.suspect(node, format!("{HOLDS_DEAD}{reason}")),
        };
        let name = self.peer_of(node).name;
        self.away.holders.entry(node).or_insert_with(|| reason.to_owned());
        if self.away.until.is_some() {
            return;
        }
        self.away.until = Some(self.now.after(self.config.liveness.beat));
        let reason = format!("it was stopped for {stop_ms} ms, and {name} holds it for dead");
        let others: Vec<NodeId> = self.living().filter(|other| *other != self.me && *other != node).collect();
        for other in others.into_iter().filter(|other| !self.watch.suspects(*other)).collect::<Vec<_>>() {
            self.send(other, Message::Away { epoch: self.epoch, reason: reason.clone() });
        }
    }

    /// A member was stopped, and another one holds it for dead.
    pub(super) fn was_away(&mut self, from: NodeId, reason: String) {
        let rest: BTreeSet<NodeId> =
            self.living().filter(|node| *node != from && !self.watch.suspects(*node)).collect();
        if self.last_stop_ms().is_none() && self.is_majority(&rest) {
            self.suspect(from, reason);
        }
    }

    /// Suspects those who hold this node for dead, once the others have had their time to do so too.
    pub(super) fn poll_away(&mut self) {
        if self.away.until.is_none_or(|until| self.now < until) {
            return;
        }
        self.away.until = None;
        for (node, reason) in std::mem::take(&mut self.away.holders) {
            self.suspect(node, format!("{HOLDS_DEAD}{reason}"));
        }
    }
}
