//! What pending operations lack, for those who look on.

use super::{Engine, GroupId, OperationId, Pending};
use sheave_base::NodeId;

/// What a pending operation lacks.
pub enum Lacking {
    /// These members have not entered.
    Members(Vec<String>),
    /// The word of the group's first member, which counts.
    Word {
        /// The group.
        group: GroupId,
        /// The barrier's number.
        sequence: u64,
        /// The first member.
        first: NodeId,
    },
    /// That all agree on who is gone.
    Agreement,
    /// The answers of these members.
    Answers(Vec<String>),
}

impl Engine {
    /// A pending operation as notices call it.
    #[must_use]
    pub fn name_of_operation(&self, operation: OperationId) -> Option<String> {
        Some(match self.operations.get(&operation)? {
            Pending::Barrier { group, sequence, .. } => {
                format!("barrier on group {}, sequence {sequence}", self.label_of(*group))
            }
            Pending::Shrink { group, .. } => format!("shrink of group {}", self.label_of(*group)),
            Pending::Confirm { group } => format!("group {}", self.label_of(*group)),
            Pending::Leave { .. } => "leave".to_owned(),
            Pending::Ask { .. } => "num_dead_node".to_owned(),
        })
    }

    /// What a pending operation lacks, as far as this node knows.
    #[must_use]
    pub fn lacking(&self, operation: OperationId) -> Option<Lacking> {
        match self.operations.get(&operation)? {
            Pending::Barrier { group, sequence, .. } => {
                let first = *self.groups.get(group)?.nodes.first()?;
                if first == self.me {
                    return self.not_entered(*group, *sequence).map(Lacking::Members);
                }
                Some(Lacking::Word { group: *group, sequence: *sequence, first })
            }
            Pending::Confirm { group } => {
                let first = *self.groups.get(group)?.nodes.first()?;
                Some(Lacking::Answers(vec![self.peer_of(first).name]))
            }
            Pending::Shrink { .. } | Pending::Leave { .. } => Some(Lacking::Agreement),
            Pending::Ask { silent, .. } => {
                Some(Lacking::Answers(silent.iter().map(|node| self.peer_of(*node).name).collect()))
            }
        }
    }

    /// At a group's first member: who has not entered a barrier. Nobody if this node has not made the group; `None` if
    /// it does not count, or the barrier is over.
    #[must_use]
    pub fn not_entered(&self, group: GroupId, sequence: u64) -> Option<Vec<String>> {
        let Some(group) = self.groups.get(&group).filter(|group| !group.nodes.is_empty()) else {
            return Some(Vec::new());
        };
        if group.nodes.first() != Some(&self.me) || sequence < group.released {
            return None;
        }
        // Whoever has entered a barrier has entered all before it.
        let entered = |node: &NodeId| group.tallies.range(sequence..).any(|(_, tally)| tally.has(*node));
        let missing = group.nodes.iter().filter(|node| !entered(node));
        Some(missing.map(|node| self.peer_of(*node).name).collect())
    }
}
