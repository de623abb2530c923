//! Groups of members, and their barriers.

use crate::awaited::Sort;
use crate::driver::Shared;
use crate::engine::{Event, GroupId, GroupRecord, Member, OperationId, Outcome, group_id};
use crate::mesh::Mesh;
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Rank, Result, Work};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// An ordered set of members that do things together. Clones are handles to the same group.
///
/// Ranks in a group are counted from 0 in its own order; [`Group::node`] and [`Group::rank_of`] convert.
///
/// **Order.** All members enter a group's barriers and begin its communicator's operations in one order. Of two that
/// wait for each other because they did not, each gets `Mismatch`.
///
/// **Forgetting.** A group that is made again is the same one. When all its members have dropped all their handles it
/// is forgotten; who makes it then begins anew.
#[derive(Clone)]
pub struct Group {
    shared: Arc<Shared>,
    id: GroupId,
    label: Arc<str>,
    nodes: Arc<[NodeId]>,
    /// Why the group could not be made: a member was gone already.
    refused: Option<Error>,
    record: Arc<GroupRecord>,
    /// Held for its drop.
    _handle: Arc<Handle>,
}

/// What the engine counts.
struct Handle {
    shared: Arc<Shared>,
    group: GroupId,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Whoever drops may hold locks, so the engine is told when it next turns.
        self.shared.released.lock().push(self.group);
    }
}

impl Group {
    /// The group that this mesh's engine has made, or makes now: that fails only for dead members, and then so does
    /// every operation. The work ends when the group may be used, which it may at once unless this node dropped it some
    /// time ago.
    pub(crate) fn begin(mesh: &Mesh, label: &str, nodes: &[NodeId]) -> (Self, Work<()>) {
        let shared = Arc::clone(&mesh.shared);
        let id = group_id(label, nodes);
        let made = shared.with_engine(|state, _| {
            let made = state.engine.group(label, nodes);
            // Why a group is broken may be known better later.
            let refused = made.err().filter(|_| state.engine.broken(id).is_none());
            (refused, state.engine.hold(id))
        });
        let (refused, is_sure) = made;
        Self::held(shared, id, label.into(), nodes.into(), refused, is_sure)
    }

    fn held(
        shared: Arc<Shared>,
        id: GroupId,
        label: Arc<str>,
        nodes: Arc<[NodeId]>,
        refused: Option<Error>,
        is_sure: bool,
    ) -> (Self, Work<()>) {
        let handle = Arc::new(Handle { shared: Arc::clone(&shared), group: id });
        // A node that is no member any more is told nothing.
        let is_sure = is_sure || shared.failure().is_some();
        let ready = if is_sure { Work::ready("group", Ok(())) } else { Self::confirmed(&shared, id) };
        let record = shared.look(|engine| engine.record_of(id).cloned()).unwrap_or_default();
        (Self { shared, id, label, nodes, refused, record, _handle: handle }, ready)
    }

    fn confirmed(shared: &Arc<Shared>, group: GroupId) -> Work<()> {
        let (completer, work) = shared.node.pair("group", None);
        let ending = |outcome: Result<Outcome>| completer.complete(outcome.map(drop));
        let operation = shared.begin(|operation, _| Event::Confirm { operation, group }, ending);
        work.awaits(shared.awaited(Sort::Operation, operation.0));
        work
    }

    /// As [`Group::begin`]; blocks until the group may be used.
    pub(crate) fn of(mesh: &Mesh, label: &str, nodes: &[NodeId]) -> Self {
        let (group, ready) = Self::begin(mesh, label, nodes);
        if ready.is_done() {
            return group;
        }
        // That it failed says every operation of the group.
        let _ = ready.wait();
        group.renewed()
    }

    /// This group with the record that it has once it may be used.
    #[must_use]
    pub fn renewed(mut self) -> Self {
        self.record = self.shared.look(|engine| engine.record_of(self.id).cloned()).unwrap_or_default();
        self
    }

    /// What this node keeps of the group, whatever becomes of the handles, until all members have dropped theirs.
    #[must_use]
    pub fn record(&self) -> &Arc<GroupRecord> {
        &self.record
    }

    /// Its identity, the same on every member.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// What it is called.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Its members in order.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// How many members it has.
    #[must_use]
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// This node's rank in the group.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank_of(self.shared.me).unwrap_or_default()
    }

    /// The rank of a node in the group.
    #[must_use]
    pub fn rank_of(&self, node: NodeId) -> Option<Rank> {
        let at = self.nodes.iter().position(|member| *member == node)?;
        u32::try_from(at).ok().map(Rank)
    }

    /// The node that has this rank in the group.
    #[must_use]
    pub fn node(&self, rank: Rank) -> Option<NodeId> {
        self.nodes.get(rank.0 as usize).copied()
    }

    /// The member that has this rank in the group.
    #[must_use]
    pub fn member(&self, rank: Rank) -> Option<&Member> {
        self.shared.member(self.node(rank)?)
    }

    /// The link to a member: the one that stands, or one that is made now. Does not block.
    #[must_use]
    pub fn link_to(&self, rank: Rank) -> Work<LinkId> {
        match (self.node(rank), self.shared.failure()) {
            (_, Some(error)) => Work::ready("connect", Err(error.clone())),
            (Some(node), None) => self.shared.link_to(node),
            (None, None) => {
                let what = format!("rank {rank} is outside a group of {}", self.size());
                Work::ready("connect", Err(Error::new(ErrorKind::InvalidArgument, what)))
            }
        }
    }

    /// The error of one of its links, with all that the mesh knows about the peer.
    #[must_use]
    pub fn explain(&self, error: Error) -> Error {
        self.shared.explain(error)
    }

    /// Why the group's operations fail, if they do: a member is gone, or somebody gave up waiting.
    #[must_use]
    pub fn broken(&self) -> Option<Error> {
        let broken = || self.shared.look(|engine| engine.broken(self.id).cloned());
        let broken = self.refused.clone().or_else(broken).or_else(|| self.shared.failure().cloned());
        broken.iter().for_each(|error| self.shared.note_error(error));
        broken
    }

    /// A number that grows whenever the mesh may know something new, such as why a group is broken: who has seen it and
    /// asked need not ask again while it stays the same. Costs no lock.
    #[must_use]
    pub fn news(&self) -> u64 {
        self.shared.news()
    }

    /// Whether members are gone and all of them left in order, so that what they sent before still arrives.
    #[must_use]
    pub fn was_left(&self) -> bool {
        self.shared.look(|engine| {
            let mut gone = engine.deaths().iter().filter(|death| self.nodes.contains(&death.node)).peekable();
            gone.peek().is_some() && gone.all(|death| death.left)
        })
    }

    /// Whether a member has left in order and everything that it sent to this node has been taken off its links. What
    /// has not come by then never will.
    #[must_use]
    pub fn has_said_all(&self, rank: Rank) -> bool {
        self.node(rank).is_some_and(|node| self.shared.calls.leavers.have_said_all(node))
    }

    /// Whether it is agreed that a member has left in order.
    #[must_use]
    pub fn has_left(&self, rank: Rank) -> bool {
        self.node(rank).is_some_and(|node| self.shared.look(|engine| engine.has_left_in_order(node)))
    }

    /// Why a member cannot be reached any more, if so.
    #[must_use]
    pub fn why_lost(&self, rank: Rank) -> Option<Error> {
        let node = self.node(rank)?;
        self.shared.look(|engine| engine.why_lost(node))
    }

    /// Whether this node's own membership has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.failure().is_some()
    }

    /// Breaks the group for all its members: something that they did together has failed, the operations that they
    /// number `failed_from` and up. The others are told the error's text, as `Mismatch` if it is one and else as
    /// `Cancelled`. What broke the group first stays; the smallest number counts.
    pub fn break_because(&self, error: Error, failed_from: u64) {
        self.shared.note_error(&error);
        self.shared.with_engine(|state, _| state.engine.break_because(self.id, error, failed_from));
    }

    /// The smallest number that a member has given to [`Group::break_because`], as far as this node has heard.
    #[must_use]
    pub fn operations_failed_from(&self) -> Option<u64> {
        self.shared.look(|engine| engine.operations_failed_from(self.id))
    }

    /// Blocks until every member has entered this barrier as often as this node.
    ///
    /// # Errors
    ///
    /// `PeerLost` when a member is gone; the group is broken then, and every later operation on it fails too.
    pub fn barrier(&self) -> Result<()> {
        self.begin_barrier(None).wait()
    }

    /// Enters the barrier without waiting. With a deadline it ends with `DeadlineExceeded` when not everybody has come
    /// in time, and that breaks the group, because its members would be out of step; so does cancelling it.
    pub fn begin_barrier(&self, deadline: Option<Duration>) -> Work<()> {
        if let Some(refused) = &self.refused {
            return Work::ready("barrier", Err(refused.clone().operation("barrier").group(&*self.label)));
        }
        let (completer, work) = self.shared.node.pair("barrier", None);
        let group = self.id;
        let known: Arc<OnceLock<OperationId>> = Arc::default();
        let (begun, weak) = (Arc::clone(&known), Arc::downgrade(&self.shared));
        completer.on_cancel(move || {
            if let Some((shared, operation)) = weak.upgrade().zip(begun.get().copied()) {
                shared.with_engine(|state, now| state.engine.handle(now, Event::Cancel { operation }));
            }
        });
        let ending = |outcome: Result<Outcome>| completer.complete(outcome.map(drop));
        let deadline = deadline.map(|span| self.shared.deadline(span));
        let operation = self.shared.begin(|operation, _| Event::Barrier { operation, group, deadline }, ending);
        let _ = known.set(operation);
        work.awaits(self.shared.awaited(Sort::Operation, operation.0));
        work
    }

    /// The group of the survivors, once all agree who they are. Blocks until then. It is the same group on all of them,
    /// whether they had made this one before the death or make it afterwards.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the group is whole, or was broken though nobody died.
    pub fn shrink(&self) -> Result<Self> {
        self.begin_shrink().join()
    }

    /// As [`Group::shrink`]. Does not block: the work ends with the group. Cancelling it changes nothing, for the
    /// others go on without those who died in any case; it may be begun again.
    #[must_use]
    pub fn begin_shrink(&self) -> Work<Self> {
        let (completer, work) = self.shared.node.pair("shrink", None);
        let group = self.id;
        let ending = |outcome: Result<Outcome>| completer.complete(outcome);
        let operation = self.shared.begin(|operation, _| Event::Shrink { operation, group }, ending);
        work.awaits(self.shared.awaited(Sort::Operation, operation.0));
        let own = self.clone();
        work.then(move |outcome| own.shrunk(&outcome))
    }

    /// The group that all have agreed on.
    fn shrunk(&self, outcome: &Outcome) -> Result<Work<Self>> {
        let Outcome::Group(id) = *outcome else {
            return Err(Error::new(ErrorKind::Internal, "a shrink ended without a group"));
        };
        let nodes = self.shared.look(|engine| engine.nodes_of(id).map(<[NodeId]>::to_vec)).unwrap_or_default();
        let is_sure = self.shared.with_engine(|state, _| state.engine.hold(id));
        let (shared, label) = (Arc::clone(&self.shared), Arc::clone(&self.label));
        let (group, ready) = Self::held(shared, id, label, nodes.into(), None, is_sure);
        Ok(ready.map(move |()| Ok(group.renewed())))
    }

    /// Forgets the group on this node. Its pending operations end with an error, here and on every member.
    pub fn drop_group(&self) {
        self.shared.with_engine(|state, _| state.engine.drop_group(self.id));
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("label", &self.label).field("nodes", &self.nodes).finish_non_exhaustive()
    }
}
