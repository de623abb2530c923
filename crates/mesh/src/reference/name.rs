//! Names of objects, and where they stand in values.
//!
//! A name is the node that owns the object and a number there, in which the low bits say who drew it:
//!
//! | bits | |
//! |---|---|
//! | 0 | set where the name is mentioned for the call that is to fill it; never in a table or a word |
//! | 1 | set if another node than the owner may have drawn it: a *promise* |
//! | 2–21 | of a promise, the rank of the node that drew it |
//! | the rest | a count of the names that this node has drawn for this owner |
//!
//! So names of different nodes differ, and each node counts for itself. Nothing follows from a number alone: who says
//! something about a promise is the node at the other end of an authenticated link, and its rank must be that.

use sheave_base::NodeId;
use sheave_wire::Value;
use std::convert::Infallible;
use std::fmt;

/// Bits for the rank of who has drawn a name: more than a mesh can have members.
const RANK_BITS: u32 = 20;

const FILLS: u64 = 1;
const PROMISED: u64 = 2;

/// An object, by its owner and its name there. Names are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name {
    pub(crate) owner: NodeId,
    pub(crate) id: u64,
}

/// A name where it stands in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mention {
    pub(crate) name: Name,
    /// The message that brings it is the request that is to fill it.
    pub(crate) fills: bool,
}

impl Name {
    /// The name of the `count`th object that its owner has made; `None` if there are no more.
    pub(super) fn made(owner: NodeId, count: u64) -> Option<Self> {
        let id = count.checked_mul(4)?;
        Some(Self { owner, id })
    }

    /// The `count`th name that the node of this rank has drawn for that owner; `None` if there are no more.
    pub(super) fn drawn(owner: NodeId, rank: u32, count: u64) -> Option<Self> {
        let room = 1 << (RANK_BITS + 2);
        let id = count.checked_mul(room)? | u64::from(rank) << 2 | PROMISED;
        (rank < 1 << RANK_BITS).then_some(Self { owner, id })
    }

    /// The rank of who has drawn it and which of its names it is, if it is a promise.
    pub(super) fn drawer(self) -> Option<(u32, u64)> {
        let rank = (self.id >> 2) & ((1 << RANK_BITS) - 1);
        (self.id & PROMISED != 0).then_some((rank as u32, self.id >> (RANK_BITS + 2)))
    }

    /// The name as it is mentioned for the call that is to fill it.
    pub(super) fn to_fill(self) -> Value {
        Value::Ref { node: self.owner, id: self.id | FILLS }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.drawer() {
            Some((rank, count)) => write!(f, "object {count} of node {}, promised by rank {rank}", self.owner),
            None => write!(f, "object {} of node {}", self.id >> 2, self.owner),
        }
    }
}

impl Mention {
    /// The number as it stands in a message.
    pub(crate) fn id(self) -> u64 {
        self.name.id | if self.fills { FILLS } else { 0 }
    }

    pub(crate) fn of(node: NodeId, id: u64) -> Self {
        Self { name: Name { owner: node, id: id & !FILLS }, fills: id & FILLS != 0 }
    }
}

/// Whether this number is one that a table or a word may have.
pub(super) fn is_plain(id: u64) -> bool {
    id & FILLS == 0
}

/// The references in a value, each as often as it occurs.
pub(crate) fn names_in(value: &Value) -> Vec<Mention> {
    let mut names = Vec::new();
    let Ok(()) = value.try_visit(&mut |value| {
        if let Value::Ref { node, id } = value {
            names.push(Mention::of(*node, *id));
        }
        Ok::<_, Infallible>(())
    });
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_that_different_nodes_draw_differ() {
        let owner = NodeId(7);
        let ranks = [0, 1, 2, (1 << RANK_BITS) - 1];
        let mut seen = HashSet::new();
        for count in 1..100 {
            assert!(seen.insert(Name::made(owner, count).expect("there are more").id));
            for rank in ranks {
                let name = Name::drawn(owner, rank, count).expect("there are more");
                assert_eq!((name.drawer(), is_plain(name.id)), (Some((rank, count)), true));
                assert!(seen.insert(name.id), "{name}");
                let Value::Ref { node, id } = name.to_fill() else { panic!("a reference") };
                assert_eq!(Mention::of(node, id), Mention { name, fills: true });
            }
        }
        assert_eq!(Name::made(owner, 5).expect("there are more").drawer(), None);
    }

    #[test]
    fn names_that_would_be_used_twice_are_not_given() {
        assert!(Name::made(NodeId(1), 1 << 62).is_none());
        assert!(Name::drawn(NodeId(1), 3, 1 << 42).is_none());
        assert!(Name::drawn(NodeId(1), 1 << RANK_BITS, 1).is_none());
    }
}
