//! Who is a member, and of which rank: words and names of anybody else mean nothing.

use sheave_base::NodeId;
use sheave_base::collections::HashMap;

pub(super) struct Members {
    by_rank: Vec<NodeId>,
    ranks: HashMap<NodeId, u32>,
}

impl Members {
    pub(super) fn by_rank(nodes: impl IntoIterator<Item = NodeId>) -> Self {
        let by_rank: Vec<NodeId> = nodes.into_iter().collect();
        let ranks = by_rank.iter().copied().zip(0..).collect();
        Self { by_rank, ranks }
    }

    pub(super) fn has(&self, node: NodeId) -> bool {
        self.ranks.contains_key(&node)
    }

    pub(super) fn rank(&self, node: NodeId) -> Option<u32> {
        self.ranks.get(&node).copied()
    }

    pub(super) fn at(&self, rank: u32) -> Option<NodeId> {
        self.by_rank.get(usize::try_from(rank).ok()?).copied()
    }
}
