//! What engines say to each other, what they are told, and what they ask for.

use super::member::{Expected, Introduction, Member};
use serde::{Deserialize, Serialize};
use sheave_base::clock::Time;
use sheave_base::{Epoch, Error, NodeId, Result};
use std::collections::BTreeSet;
use std::fmt;

/// A group's identity: a hash over its label and its ordered nodes, so that its members need not talk to agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId(pub u64);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What the caller of an engine knows an operation by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub u64);

/// An attempt to end an epoch. Attempts are ordered by round, then by who makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Ballot {
    /// Round 0 belongs to the epoch's coordinator alone and needs no promise.
    pub round: u32,
    /// Mesh rank of who proposes.
    pub rank: u32,
}

/// What the reason of a death begins with that the dead member announced itself.
pub const FAILED: &str = "it failed: ";

/// As [`FAILED`], of a member that lacks what the system gives. What a link says that such a member has closed begins
/// like this too.
pub const GIVEN_UP: &str = "it has given up: ";

/// The beginning of the reason of a death if the dead member suspected first who saw this.
pub(super) const HOLDS_DEAD: &str = "it holds this node for dead: ";

/// The part of a failure's reason before the members that the failed one had lost itself: the cause is there.
pub(super) const AFTER_LOSS: &str = ", after it had lost ";

/// Somebody's end: it died, or it left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// Who.
    pub node: NodeId,
    /// The first epoch without it.
    pub epoch: Epoch,
    /// Whether it asked to be taken out.
    pub left: bool,
    /// What was seen, or what it said itself after [`FAILED`], as a lower-case phrase.
    pub reason: String,
}

/// How far a node is in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    /// The group.
    pub group: GroupId,
    /// The node's rank there.
    pub rank: u32,
    /// How many barriers it has entered.
    pub barriers: u64,
    /// How many operations of services it has begun.
    pub operations: u64,
}

/// A message between two engines. All but those of the rendezvous carry the sender's epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// To the coordinator: who I am, and how many I was told to expect. Repeated with each beat until it is answered.
    Introduce(Introduction, Expected),
    /// From the coordinator: heard you; who is missing.
    Waiting {
        /// A phrase for the joiner's error, should its deadline pass.
        missing: String,
    },
    /// From the coordinator: you cannot join.
    Refuse {
        /// Why; the joiner adds what it can do about that.
        error: Error,
    },
    /// From the coordinator, or, if that has died, from who proposes to go on without it: everybody is here. The first
    /// epoch begins.
    Welcome {
        /// All members by rank.
        table: Vec<Member>,
    },
    /// Do you live? Or, as an answer: I do.
    Beat {
        /// The sender's epoch.
        epoch: Epoch,
        /// Whether this answers another beat.
        answer: bool,
    },
    /// To whom the sender holds for the coordinator: somebody looks dead. About the sender itself, to everybody: it
    /// ends, and why.
    Accuse {
        /// The sender's epoch.
        epoch: Epoch,
        /// Who looks dead.
        suspect: NodeId,
        /// What was seen.
        reason: String,
        /// Whether the process of the suspect has ended for sure.
        has_ended: bool,
    },
    /// To everybody: I was stopped, and one of you holds me for dead since. Suspect me too, unless you were stopped.
    Away {
        /// The sender's epoch.
        epoch: Epoch,
        /// For how long, and who that is.
        reason: String,
    },
    /// To whom the sender holds for the coordinator: take me out. Repeated with each beat.
    Leave {
        /// The sender's epoch.
        epoch: Epoch,
    },
    /// May I end epoch `epoch`?
    Prepare {
        /// The epoch to end.
        epoch: Epoch,
        /// The attempt.
        ballot: Ballot,
        /// Whose processes have ended, where no majority is left without them. An answer renounces them.
        ended: Vec<NodeId>,
    },
    /// You may, and this is what I accepted before.
    Promise {
        /// The epoch to end.
        epoch: Epoch,
        /// The attempt.
        ballot: Ballot,
        /// The latest proposal that the sender accepted for the end of this epoch.
        accepted: Option<(Ballot, Vec<Death>)>,
    },
    /// These are the deaths that end epoch `epoch`.
    Accept {
        /// The epoch to end.
        epoch: Epoch,
        /// The attempt.
        ballot: Ballot,
        /// Who died or left.
        deaths: Vec<Death>,
        /// As in `Prepare`.
        ended: Vec<NodeId>,
    },
    /// I accept.
    Accepted {
        /// The epoch to end.
        epoch: Epoch,
        /// The attempt.
        ballot: Ballot,
    },
    /// I cannot: I have promised a later attempt.
    Rejected {
        /// The epoch to end.
        epoch: Epoch,
        /// The attempt that was promised.
        promised: Ballot,
    },
    /// Decided: epoch `epoch` has begun.
    Commit {
        /// The epoch that has begun.
        epoch: Epoch,
        /// Everybody who has died or left since the start.
        deaths: Vec<Death>,
        /// Who else wants to leave, as far as the sender knows.
        leaving: Vec<NodeId>,
    },
    /// To a group's first member: I have no handle any more.
    Dropped {
        /// The sender's epoch.
        epoch: Epoch,
        /// Which group.
        group: GroupId,
        /// Names this message among the sender's.
        number: u64,
        /// How many members the group has.
        members: u32,
    },
    /// To a group's first member: I have a handle again. Is the group still known?
    Hold {
        /// The sender's epoch.
        epoch: Epoch,
        /// Which group.
        group: GroupId,
        /// That of the sender's `Dropped`.
        number: u64,
    },
    /// From a group's first member: it is.
    Kept {
        /// The sender's epoch.
        epoch: Epoch,
        /// Which group.
        group: GroupId,
        /// That of the receiver's `Dropped`.
        number: u64,
    },
    /// From a group's first member: no member had a handle any more, and the group is forgotten.
    Forgotten {
        /// The sender's epoch.
        epoch: Epoch,
        /// Which group.
        group: GroupId,
        /// That of the receiver's `Dropped`.
        number: u64,
    },
    /// To the least member of a set of nodes: I have waited in a group of these for a beat. Repeated with each beat.
    Waits {
        /// The sender's epoch.
        epoch: Epoch,
        /// A hash over the label and the nodes, whatever their order.
        set: u64,
        /// What the group is called.
        label: String,
        /// How far the sender is in this group, and then in others of the same label and nodes.
        steps: Vec<Steps>,
    },
    /// To a group's first member: I have entered this barrier. Repeated with each beat.
    Enter {
        /// The sender's epoch.
        epoch: Epoch,
        /// The group.
        group: GroupId,
        /// Which barrier of the group.
        sequence: u64,
    },
    /// From a group's first member: every member has entered this barrier and all before it.
    Release {
        /// The sender's epoch.
        epoch: Epoch,
        /// The group.
        group: GroupId,
        /// The latest barrier that everybody entered.
        through: u64,
    },
    /// To a group's first member, and from it to all: this group is broken.
    Broken {
        /// The sender's epoch.
        epoch: Epoch,
        /// The group.
        group: GroupId,
        /// Whether a member died or left; all will agree on that.
        by_death: bool,
        /// Who died, left or gave up.
        about: NodeId,
        /// Why.
        error: Error,
        /// Operations of services on the group have failed from this number on, as far as the sender knows.
        failed_from: Option<u64>,
    },
    /// To everybody who has a link to the sender: it has failed, and its links are about to end.
    Failed {
        /// The sender's epoch.
        epoch: Epoch,
        /// What it says about that.
        reason: String,
    },
    /// To the coordinator, which passes it on, or to `whom` itself: does it answer?
    Ask {
        /// The sender's epoch.
        epoch: Epoch,
        /// Who wants to know.
        asker: NodeId,
        /// The asker's number for it.
        number: u64,
        /// Who is asked.
        whom: NodeId,
    },
    /// The answer, back on the same way.
    Answer {
        /// The sender's epoch.
        epoch: Epoch,
        /// Who wants to know.
        asker: NodeId,
        /// The asker's number for it.
        number: u64,
        /// Who answers.
        whom: NodeId,
    },
}

impl Message {
    /// Whether it stays behind what its sender has sent before: its receiver takes it for a sign that nothing of that
    /// is on its way any more. All others may overtake messages of services.
    #[must_use]
    pub fn follows_data(&self) -> bool {
        matches!(
            self,
            Self::Leave { .. }
                | Self::Dropped { .. }
                | Self::Hold { .. }
                | Self::Kept { .. }
                | Self::Forgotten { .. }
                | Self::Failed { .. }
        )
    }

    /// The epoch of the sender, where the message carries one.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        match self {
            Self::Introduce(..) | Self::Waiting { .. } | Self::Refuse { .. } | Self::Welcome { .. } => None,
            Self::Beat { epoch, .. }
            | Self::Accuse { epoch, .. }
            | Self::Away { epoch, .. }
            | Self::Leave { epoch }
            | Self::Prepare { epoch, .. }
            | Self::Promise { epoch, .. }
            | Self::Accept { epoch, .. }
            | Self::Accepted { epoch, .. }
            | Self::Rejected { epoch, .. }
            | Self::Commit { epoch, .. }
            | Self::Enter { epoch, .. }
            | Self::Release { epoch, .. }
            | Self::Broken { epoch, .. }
            | Self::Failed { epoch, .. }
            | Self::Dropped { epoch, .. }
            | Self::Hold { epoch, .. }
            | Self::Kept { epoch, .. }
            | Self::Forgotten { epoch, .. }
            | Self::Waits { epoch, .. }
            | Self::Ask { epoch, .. }
            | Self::Answer { epoch, .. } => Some(*epoch),
        }
    }
}

/// What an engine is told.
#[derive(Clone, Debug)]
pub enum Event {
    /// A link to the coordinator stands; this is its identity. Told again after the link was lost while joining.
    Reached(NodeId),
    /// While joining. At the coordinator: a stranger was turned away at the door. Elsewhere: an attempt to reach the
    /// coordinator failed. The error of a join that fails says how many there were, and why the last one.
    Turned {
        /// Why, and who it was, as far as that is known.
        what: String,
    },
    /// A message came.
    Received {
        /// From whom.
        from: NodeId,
        /// What it says.
        message: Message,
    },
    /// The driver saw a sign of life of this peer on the link itself.
    Alive {
        /// Who lives.
        peer: NodeId,
    },
    /// This node lacks something that the system does not give it: it says so and ends, and accuses nobody.
    FellShort {
        /// What it lacks, and what raises the limit.
        error: Error,
    },
    /// The process of this peer has ended, as the system has said: it decides nothing any more, whatever it decided
    /// before.
    Ended {
        /// Whose process.
        peer: NodeId,
    },
    /// A link ended, or could not be made: evidence that the peer is dead. What came before the end is told before it.
    LinkLost {
        /// Who was at its other end.
        peer: NodeId,
        /// What was seen.
        reason: String,
    },
    /// A member has ended its link because this node was silent for too long.
    HeldDead {
        /// Who.
        peer: NodeId,
        /// Reason that it gave.
        reason: String,
    },
    /// The user enters the next barrier of a group.
    Barrier {
        /// Names the operation; unique.
        operation: OperationId,
        /// The group.
        group: GroupId,
        /// When it ends with an error, whoever is missing.
        deadline: Option<Time>,
    },
    /// The user wants to use a group of which [`Engine::hold`](super::Engine::hold) was not sure.
    Confirm {
        /// Names the operation; unique.
        operation: OperationId,
        /// The group.
        group: GroupId,
    },
    /// The user wants the group of the survivors of a broken group.
    Shrink {
        /// Names the operation; unique.
        operation: OperationId,
        /// The broken group.
        group: GroupId,
    },
    /// The user wants this node to leave the mesh in an orderly way.
    Leave {
        /// Names the operation; unique.
        operation: OperationId,
    },
    /// This node has failed: the others are told why. Its operations end with an error.
    Fail {
        /// What is said about it, as a lower-case phrase.
        reason: String,
    },
    /// The user wants to know who of these does not answer. Those who are not living members, and this node, do not
    /// count.
    Ask {
        /// Names the operation; unique.
        operation: OperationId,
        /// Who is asked.
        nodes: BTreeSet<NodeId>,
        /// When those who have not answered count as silent.
        until: Time,
    },
    /// The user no longer waits. A barrier's group is broken by this. A leave goes on all the same.
    Cancel {
        /// Which operation.
        operation: OperationId,
    },
}

/// How an operation ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every member of the group entered this barrier; or the group may be used.
    Passed,
    /// The group of the survivors.
    Group(GroupId),
    /// This node has left. Its process may end once what it was asked to send before is sent.
    Left,
    /// Those who live, as far as is agreed, and have not answered.
    Silent(BTreeSet<NodeId>),
}

/// What an engine asks for.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Send this; make the link if there is none. What cannot be sent comes back as [`Event::LinkLost`].
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: Message,
    },
    /// Send this on every link that stands to one of these, and make none for it: the links are about to end.
    Farewell {
        /// To whom.
        nodes: Vec<NodeId>,
        /// What.
        message: Message,
    },
    /// The mesh stands: the table is there.
    Joined,
    /// An operation ended.
    Complete {
        /// Which.
        operation: OperationId,
        /// How.
        outcome: Result<Outcome>,
    },
    /// Close the link to this node, so that both ends know.
    CutLink {
        /// Who is at its other end.
        node: NodeId,
    },
    /// All survivors agree that this node is dead.
    DeclareDead {
        /// Who.
        node: NodeId,
        /// What was seen.
        reason: String,
    },
    /// All agree that this node has left. What it sent before may still come; the link ends by itself.
    Departed {
        /// Who.
        node: NodeId,
    },
    /// This engine has come to its end; every operation ends with this error.
    Failed(Error),
    /// Poll again at this time at the latest.
    SetTimer(Time),
}
