//! Who belongs to a mesh, and which rank each gets.

use serde::{Deserialize, Serialize};
pub use sheave_base::config::Role;
use sheave_base::{NodeId, Peer, Rank};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How many nodes of each role a mesh has when it starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// As many as the coordinator says, for a plain rank that is told which it is, too.
    pub const TOLD: Self = Self { schedulers: 0, servers: 0, workers: 0, ranks: 0 };

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

impl fmt::Display for Expected {
    /// Those that are expected, such as `1 scheduler, 2 servers and 4 workers`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phrase = |role: &Role| {
            let count = self.of(*role);
            (count > 0).then(|| format!("{count} {role}{}", if count == 1 { "" } else { "s" }))
        };
        let phrases: Vec<String> = Role::ALL.iter().filter_map(phrase).collect();
        match phrases.split_last() {
            Some((last, rest)) if !rest.is_empty() => write!(f, "{} and {last}", rest.join(", ")),
            Some((only, _)) => f.write_str(only),
            None => f.write_str("nobody"),
        }
    }
}

/// What a node says about itself when it joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// Unique in the mesh. Empty if the coordinator is to choose one when it makes the table.
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
    /// Where it can be reached, as the driver writes it; the engine only carries it.
    pub address: String,
    /// Which process of which host it is, as the driver writes it; empty if that cannot be told.
    pub process: String,
}

impl fmt::Display for Introduction {
    /// The name, or, before there is one, what else can tell it from others.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => write!(f, "a {} from {} (pid {})", self.role, self.host, self.pid),
            name => f.write_str(name),
        }
    }
}

/// One node of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its identity.
    pub node: NodeId,
    /// Rank in the mesh: schedulers, then servers, workers and plain ranks.
    pub rank: Rank,
    /// Rank among the nodes of its role.
    pub role_rank: u32,
    /// What it said about itself, with a name in any case.
    pub introduction: Introduction,
}

impl Member {
    /// The member as errors name it.
    #[must_use]
    pub fn peer(&self) -> Peer {
        let about = &self.introduction;
        Peer::named(&about.name).node(self.node).role(about.role).rank(self.rank.0).host(&about.host).pid(about.pid)
    }
}

/// Ranks for everybody who joined: by role, then by the rank that was wanted, then by name. The order in which they
/// came plays no part, so the same job gets the same ranks in every run; only nodes with neither a name nor a wish are
/// told apart by host and process id.
pub(super) fn rank_all(joined: &BTreeMap<NodeId, Introduction>) -> Vec<Member> {
    let mut order: Vec<_> = joined.iter().collect();
    order.sort_by(|(_, one), (_, other)| {
        let key = |about: &Introduction| (about.role, about.wanted_rank.unwrap_or(u32::MAX));
        let text = |about: &Introduction| (about.name.clone(), about.host.clone(), about.pid);
        key(one).cmp(&key(other)).then_with(|| text(one).cmp(&text(other)))
    });
    let mut of_role = BTreeMap::<Role, u32>::new();
    let mut table: Vec<Member> = (0..)
        .zip(order)
        .map(|(rank, (node, about))| {
            let next = of_role.entry(about.role).or_default();
            let role_rank = *next;
            *next += 1;
            Member { node: *node, rank: Rank(rank), role_rank, introduction: about.clone() }
        })
        .collect();
    name_all(&mut table);
    table
}

/// Gives everybody without a name one after its role and rank, which nobody else has.
fn name_all(table: &mut [Member]) {
    let mut taken: BTreeSet<String> = table.iter().map(|member| member.introduction.name.clone()).collect();
    for member in table.iter_mut().filter(|member| member.introduction.name.is_empty()) {
        let plain = format!("{}-{}", member.introduction.role, member.role_rank);
        let mut name = plain.clone();
        // As many numbers as names can be taken, so one of them is free.
        for number in 2..taken.len() + 2 {
            if !taken.contains(&name) {
                break;
            }
            name = format!("{plain}.{number}");
        }
        taken.insert(name.clone());
        member.introduction.name = name;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn introduction(name: &str, role: Role, wanted_rank: Option<u32>, pid: u32) -> Introduction {
        let (host, secret_source, address) = ("here".into(), "a test".into(), "there:1".into());
        let process = String::new();
        Introduction { name: name.into(), role, wanted_rank, host, pid, secret_source, address, process }
    }

    fn names(joined: &[Introduction]) -> Vec<String> {
        let joined = (0..).map(NodeId).zip(joined.iter().cloned()).collect();
        rank_all(&joined).into_iter().map(|member| member.introduction.name).collect()
    }

    #[test]
    fn who_has_no_name_is_named_after_its_role_and_rank() {
        let joined = [
            introduction("", Role::Worker, Some(1), 11),
            introduction("", Role::Worker, Some(0), 12),
            introduction("", Role::Server, None, 14),
            introduction("", Role::Scheduler, None, 13),
        ];
        assert_eq!(names(&joined), ["scheduler-0", "server-0", "worker-0", "worker-1"]);
        let joined = [introduction("", Role::Rank, None, 2), introduction("", Role::Rank, None, 1)];
        assert_eq!(names(&joined), ["rank-0", "rank-1"]);
    }

    #[test]
    fn a_name_that_another_chose_is_not_given_twice() {
        let joined = [
            introduction("", Role::Rank, Some(0), 1),
            introduction("rank-0", Role::Rank, Some(1), 2),
            introduction("rank-0.2", Role::Rank, Some(2), 3),
            introduction("", Role::Rank, Some(3), 4),
        ];
        assert_eq!(names(&joined), ["rank-0.3", "rank-0", "rank-0.2", "rank-3"]);
    }

    #[test]
    fn numbers_are_told_in_words() {
        let expected = Expected { schedulers: 1, servers: 2, workers: 4, ranks: 0 };
        assert_eq!(expected.to_string(), "1 scheduler, 2 servers and 4 workers");
        assert_eq!(Expected::ranks(3).to_string(), "3 ranks");
    }

    #[test]
    fn an_introduction_without_a_name_says_what_else_is_known() {
        assert_eq!(introduction("", Role::Worker, None, 7).to_string(), "a worker from here (pid 7)");
        assert_eq!(introduction("ann", Role::Worker, None, 7).to_string(), "ann");
    }
}
