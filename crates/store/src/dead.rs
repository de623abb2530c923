//! Nodes by the numbers that ps-lite gives them, and how many of them are dead.

use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Member, Mesh, Role};
use std::time::Duration;

/// Whom a number names.
enum Nodes {
    /// The scheduler is 1, all servers are 2, all workers 4; sums of these are several groups.
    Groups(i32),
    One(Role, u32),
}

impl Nodes {
    fn of(number: i32) -> Option<Self> {
        match number {
            1..=7 => Some(Self::Groups(number)),
            8.. => {
                let role = if number % 2 == 0 { Role::Server } else { Role::Worker };
                Some(Self::One(role, (number as u32 - 8) / 2))
            }
            _ => None,
        }
    }

    fn contains(&self, member: &Member) -> bool {
        let role = member.introduction.role;
        match self {
            Self::One(one, rank) => role == *one && member.role_rank == *rank,
            Self::Groups(groups) => match role {
                Role::Scheduler => groups & 1 != 0,
                Role::Server => groups & 2 != 0,
                Role::Worker => groups & 4 != 0,
                Role::Rank => false,
            },
        }
    }
}

/// [`KvStore::num_dead_node`](crate::KvStore::num_dead_node) for a node that has no store, such as a server or the
/// scheduler.
///
/// # Errors
///
/// As there.
pub fn num_dead_node(mesh: &Mesh, node_id: i32, timeout: Duration) -> Result<usize> {
    let is_somebody = |nodes: &Nodes| match nodes {
        Nodes::Groups(_) => true,
        Nodes::One(..) => mesh.members().iter().any(|member| nodes.contains(member)),
    };
    let Some(nodes) = Nodes::of(node_id).filter(is_somebody) else {
        let what = format!("{node_id} is the number of no node and no group");
        return Err(Error::new(ErrorKind::InvalidArgument, what)
            .operation("num_dead_node")
            .hint("1 is the scheduler, 2 all servers, 4 all workers, 8 + 2 r server r, 9 + 2 r worker r"));
    };
    let counted = mesh.num_dead_or_silent(|member| nodes.contains(member), timeout);
    counted.map_err(|error| error.operation("num_dead_node"))
}
