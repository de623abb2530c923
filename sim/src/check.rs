//! What must hold in every run, whatever went wrong in it.

use crate::world::Node;
use sheave_base::NodeId;
use sheave_base::clock::Time;
use sheave_mesh::engine::{Engine, GroupId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Every operation ends within this time, or after it when troubles came meanwhile; each starts it anew.
pub const BOUND: Duration = Duration::from_secs(10);

/// A killed process: every operation that needs it fails within this time.
pub const KILL_BOUND: Duration = Duration::from_secs(1);

/// When nothing goes wrong, a leave ends well within this time.
pub const LEAVE_BOUND: Duration = Duration::from_secs(1);

/// One barrier of one node.
#[derive(Clone, Debug)]
pub struct Entry {
    pub node: NodeId,
    pub group: GroupId,
    pub sequence: u64,
    pub begun: Time,
}

#[derive(Default)]
pub struct Check {
    entered: BTreeMap<(GroupId, u64), BTreeSet<NodeId>>,
    /// The earliest barrier of a group that ended with an error anywhere.
    first_error: BTreeMap<GroupId, u64>,
    latest_ok: BTreeMap<GroupId, u64>,
    /// What each epoch was like, and who saw it so.
    views: BTreeMap<u32, (View, BTreeSet<NodeId>)>,
    epochs: BTreeMap<NodeId, u32>,
    pub passed: u64,
    pub failed: u64,
    pub left: u64,
}

/// An epoch as one of its members sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct View {
    members: Vec<NodeId>,
    /// Who is gone, and whether it left.
    gone: Vec<(NodeId, bool)>,
}

impl Check {
    pub fn began(&mut self, entry: &Entry) {
        self.entered.entry((entry.group, entry.sequence)).or_default().insert(entry.node);
    }

    /// Whoever returned ok was right, and after an error nothing later succeeds.
    pub fn ended(&mut self, entry: &Entry, nodes: &[NodeId], is_ok: bool) -> Result<(), String> {
        let Entry { node, group, sequence, .. } = entry;
        if is_ok {
            self.passed += 1;
            let entered = &self.entered[&(*group, *sequence)];
            let missing: Vec<_> = nodes.iter().filter(|node| !entered.contains(node)).collect();
            if !missing.is_empty() {
                return Err(format!(
                    "node {node} passed barrier {sequence} of {group}, which {missing:?} never entered"
                ));
            }
            let latest = self.latest_ok.entry(*group).or_default();
            *latest = (*latest).max(*sequence);
        } else {
            self.failed += 1;
            let first = self.first_error.entry(*group).or_insert(*sequence);
            *first = (*first).min(*sequence);
        }
        match (self.first_error.get(group), self.latest_ok.get(group)) {
            (Some(error), Some(ok)) if ok > error => {
                Err(format!("barrier {ok} of {group} passed although barrier {error} had failed"))
            }
            _ => Ok(()),
        }
    }

    /// All agree on the members of an epoch, and epochs only grow. What nobody knew but processes that were killed is
    /// as if it had never been.
    pub fn view(&mut self, engine: &Engine, was_killed: impl Fn(NodeId) -> bool) -> Result<(), String> {
        let (node, epoch) = (engine.me(), engine.epoch().0);
        let before = self.epochs.insert(node, epoch).unwrap_or(0);
        if epoch < before {
            return Err(format!("node {node} went back from epoch {before} to {epoch}"));
        }
        let gone = engine.deaths().iter().map(|death| (death.node, death.left)).collect();
        let view = View { members: engine.living().collect(), gone };
        let (agreed, seers) = self.views.entry(epoch).or_insert_with(|| (view.clone(), BTreeSet::new()));
        if *agreed != view {
            if !seers.iter().all(|seer| was_killed(*seer)) {
                return Err(format!("node {node} has {view:?} in epoch {epoch}, others have {agreed:?}"));
            }
            (*agreed, *seers) = (view, BTreeSet::new());
        }
        seers.insert(node);
        Ok(())
    }

    /// At the end, those who still work are exactly the members of one epoch; everybody else knows that it is over.
    pub fn end(&self, nodes: &[Node]) -> Result<(), String> {
        let active: Vec<&Engine> = nodes.iter().filter(|node| node.lives).map(|node| &node.engine).collect();
        let active: Vec<&Engine> = active.into_iter().filter(|engine| engine.is_active()).collect();
        let working: BTreeSet<NodeId> = active.iter().map(|engine| engine.me()).collect();
        for engine in &active {
            let members: BTreeSet<NodeId> = engine.living().collect();
            if members != working {
                let (node, epoch) = (engine.me(), engine.epoch());
                return Err(format!("node {node} ends in epoch {epoch} with {members:?}, but {working:?} work"));
            }
        }
        let is_over = |engine: &Engine| engine.has_left() || engine.failure().is_some();
        let lost = nodes.iter().find(|node| node.lives && !node.engine.is_active() && !is_over(&node.engine));
        lost.map_or(Ok(()), |node| Err(format!("node {} still joins at the end", node.engine.me())))
    }
}
