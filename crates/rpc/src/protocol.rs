//! Methods that the rpc parts of nodes have for each other.

use crate::entry::{EntryName, GroupName};
use serde::{Deserialize, Serialize};
use sheave_base::NodeId;

/// The name of the service.
pub(crate) const SERVICE: &str = "sheave.rpc";

sheave_mesh::methods! {
    service SERVICE;
    1, "enter": Enter[Enter] -> u64, Members;
    2, "abandon": Abandon[Abandon] -> u64, Members;
    3, "announce": Announce[Ownership] -> Announced, Members;
    4, "withdraw": Withdraw[Ownership] -> Announced, Members;
    5, "find": Find[OfEntry] -> Found, Members;
    6, "report": Report[Report] -> Announced, Members;
    7, "leave": Leave[Leave] -> (), Members;
    8, "paired": Paired[OfEntry] -> bool, Members;
}

/// A member makes a group, and waits until all do; it gets the group's generation. Told to the first of the members.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Enter {
    pub(crate) name: String,
    /// In the order of their ranks.
    pub(crate) members: Vec<NodeId>,
    /// A generation that the member has not used.
    pub(crate) generation: u64,
    /// How long it waits.
    pub(crate) patience_ms: Option<u64>,
}

/// A member has given up making a group, and is not in it if it was made: the highest generation that was is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Abandon {
    pub(crate) name: String,
    /// That it had proposed.
    pub(crate) generation: u64,
}

/// An entry of a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OfEntry {
    pub(crate) group: GroupName,
    pub(crate) entry: EntryName,
}

/// An entry that the sender has, or has had.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ownership {
    pub(crate) group: GroupName,
    pub(crate) entry: EntryName,
    /// The owner counts how often it has taken entries of the group: a word about an earlier time changes nothing that
    /// a later one has brought about.
    pub(crate) number: u64,
}

pub(crate) struct Announce;
pub(crate) struct Withdraw;
pub(crate) struct Find;
pub(crate) struct Paired;

/// Answer of an index to an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Announced {
    /// It is the owner's, or was heard.
    Done,
    /// It is another one's.
    Taken(NodeId),
    /// It is not the index, or does not know of all owners yet.
    NotNow,
    /// It is in no such group any more.
    Gone,
}

/// Answer of an index to a searcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Found {
    Owner(NodeId),
    Nobody,
    /// It was this member's, which died.
    LostWith(NodeId),
    /// As [`Announced::NotNow`].
    NotNow,
    /// As [`Announced::Gone`].
    Gone,
}

/// A part of all that a member owns, for a new index.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) group: GroupName,
    pub(crate) entries: Vec<Reported>,
    pub(crate) is_last: bool,
}

/// An entry that a member has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reported {
    pub(crate) entry: EntryName,
    /// As [`Ownership::number`].
    pub(crate) number: u64,
    /// An index has granted it.
    pub(crate) is_granted: bool,
}

/// A member is in the group no more.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Leave {
    pub(crate) group: GroupName,
    pub(crate) member: NodeId,
}
