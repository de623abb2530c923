//! Who belongs to a mesh, and which rank each gets.

pub use sheave_base::config::Role;
use sheave_base::{NodeId, Peer, Rank};
use std::collections::BTreeMap;

/// How many nodes of each role a mesh has when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Expected {
    /// 0 or 1.
    pub schedulers: u32,
    /// Servers.
    pub servers: u32,
    /// Workers.
    pub workers: u32,
    /// Plain ranks.
    pub ranks: u32,
}

impl Expected {
    /// A mesh of equals.
    #[must_use]
    pub fn ranks(count: u32) -> Self {
        Self { ranks: count, ..Self::default() }
    }

    /// How many nodes of `role`.
    #[must_use]
    pub fn of(&self, role: Role) -> u32 {
        match role {
            Role::Scheduler => self.schedulers,
            Role::Server => self.servers,
            Role::Worker => self.workers,
            Role::Rank => self.ranks,
        }
    }

    /// All nodes together.
    #[must_use]
    pub fn total(&self) -> u32 {
        Role::ALL.iter().map(|role| self.of(*role)).fold(0, u32::saturating_add)
    }
}

/// What a node says about itself when it joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Unique in the mesh.
    pub name: String,
    /// What it is there for.
    pub role: Role,
    /// The rank within its role that its launcher gave it.
    pub wanted_rank: Option<u32>,
    /// Host name.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
    /// Where its job secret came from; never the secret.
    pub secret_source: String,
}

/// One node of a mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its identity.
    pub node: NodeId,
    /// Rank in the mesh: schedulers, then servers, workers and plain ranks.
    pub rank: Rank,
    /// Rank among the nodes of its role.
    pub role_rank: u32,
    /// What it said about itself.
    pub introduction: Introduction,
}

impl Member {
    /// The member as errors name it.
    #[must_use]
    pub fn peer(&self) -> Peer {
        let about = &self.introduction;
        Peer::named(&about.name).rank(self.rank.0).host(&about.host).pid(about.pid)
    }
}

/// Ranks for everybody who joined: by role, then by the rank that was wanted, then by name. The order in which they
/// came plays no part, so the same job gets the same ranks in every run.
pub(super) fn rank_all(joined: &BTreeMap<NodeId, Introduction>) -> Vec<Member> {
    let mut order: Vec<_> = joined.iter().collect();
    order.sort_by(|(_, one), (_, other)| {
        let key = |about: &Introduction| (about.role, about.wanted_rank.unwrap_or(u32::MAX));
        key(one).cmp(&key(other)).then_with(|| one.name.cmp(&other.name))
    });
    let mut of_role = BTreeMap::<Role, u32>::new();
    (0..)
        .zip(order)
        .map(|(rank, (node, about))| {
            let next = of_role.entry(about.role).or_default();
            let role_rank = *next;
            *next += 1;
            Member { node: *node, rank: Rank(rank), role_rank, introduction: about.clone() }
        })
        .collect()
}
