//! Who an error is about, or where it happened.

use super::bounds;
use super::written;
use crate::NodeId;
use crate::config::Role;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Who an error is about. Fields that are not known are left out of the text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Peer {
    /// Unique name in the mesh, such as `worker-1`.
    #[serde(deserialize_with = "written::name")]
    pub name: String,
    /// Its identity; not shown.
    pub node: Option<NodeId>,
    /// What it is there for.
    pub role: Option<Role>,
    /// Rank in the mesh.
    pub rank: Option<u32>,
    /// Host name.
    #[serde(deserialize_with = "written::optional_name")]
    pub host: Option<String>,
    /// Process id on that host.
    pub pid: Option<u32>,
}

impl Peer {
    /// A peer of which only the name is known.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Adds the identity.
    #[must_use]
    pub fn node(mut self, node: NodeId) -> Self {
        self.node = Some(node);
        self
    }

    /// Adds the role.
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }

    /// Adds the mesh rank.
    #[must_use]
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Adds the host name.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Adds the process id.
    #[must_use]
    pub fn pid(mut self, pid: u32) -> Self {
        self.pid = Some(pid);
        self
    }

    /// The same peer with names as long as an error may carry.
    pub(super) fn bounded(mut self) -> Self {
        bounds::shorten(&mut self.name, bounds::NAME);
        if let Some(host) = &mut self.host {
            bounds::shorten(host, bounds::NAME);
        }
        self
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.name.is_empty() { "(unnamed)" } else { &self.name })?;
        let mut separator = " (";
        // A plain rank is told by its rank.
        if let Some(role) = self.role.filter(|role| *role != Role::Rank) {
            write!(f, "{separator}{role}")?;
            separator = ", ";
        }
        if let Some(rank) = self.rank {
            write!(f, "{separator}rank {rank}")?;
            separator = ", ";
        }
        if let Some(host) = &self.host {
            write!(f, "{separator}host {host}")?;
            separator = ", ";
        }
        if let Some(pid) = self.pid {
            write!(f, "{separator}pid {pid}")?;
            separator = ", ";
        }
        if separator == ", " { f.write_str(")") } else { Ok(()) }
    }
}
