//! What a driver asks an engine about its members.

use super::Engine;
use sheave_base::{Error, NodeId};

impl Engine {
    /// Whether it is agreed that `node` has left in order.
    #[must_use]
    pub fn has_left_in_order(&self, node: NodeId) -> bool {
        self.deaths.iter().any(|death| death.left && death.node == node)
    }

    /// Why `node` cannot be reached any more, if so: it is dead, has left, or looks dead to this node.
    #[must_use]
    pub fn why_lost(&self, node: NodeId) -> Option<Error> {
        if let Some(death) = self.deaths.iter().find(|death| death.node == node) {
            return Some(if death.left { self.departed(node) } else { self.lost(node, &death.reason) });
        }
        self.watch.suspected.get(&node).map(|reason| self.lost(node, reason))
    }
}
