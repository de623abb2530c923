//! Which nodes are the gradient servers of one name.

use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_mesh::Mesh;
use sheave_rpc::RpcGroup;

/// The nodes that are the gradient servers of one name; on every node the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    /// Their name. Each is registered in the group under this and the name of its node: `gradients/rank-1`.
    pub name: String,
    /// The node that makes the steps.
    pub primary: NodeId,
    /// The nodes that take gradients, which the primary may be one of.
    pub secondaries: Vec<NodeId>,
}

impl Servers {
    /// Returns servers of this name on all members of a group, of which the first is the primary too.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a group without members.
    pub fn of_group(name: impl Into<String>, group: &RpcGroup) -> Result<Self> {
        let members = group.members();
        let none = || Error::new(ErrorKind::InvalidArgument, "a group without members; expected one at least");
        let primary = *members.first().ok_or_else(none)?;
        Ok(Self { name: name.into(), primary, secondaries: members.to_vec() })
    }

    /// Refuses what cannot be: none, the same one twice, or others than members of the group.
    pub(crate) fn check(&self, group: &RpcGroup) -> Result<()> {
        let wrong = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
        if self.secondaries.is_empty() {
            return wrong(format!("no secondaries of {}; expected one at least", self.name));
        }
        for (at, node) in self.secondaries.iter().enumerate() {
            if self.secondaries[..at].contains(node) {
                return wrong(format!("{node} is a secondary of {} twice", self.name));
            }
        }
        let stranger = self.secondaries.iter().chain([&self.primary]).find(|node| !group.members().contains(node));
        match stranger {
            Some(node) => {
                wrong(format!("{node} is to be a server of {} and is not in group {}", self.name, group.name()))
            }
            None => Ok(()),
        }
    }

    /// The key of the server on this node.
    pub(crate) fn key(&self, mesh: &Mesh, node: NodeId) -> Result<String> {
        Ok(format!("{}/{}", self.name, name_of(mesh, node)?))
    }
}

/// The name of a member.
pub(crate) fn name_of(mesh: &Mesh, node: NodeId) -> Result<&str> {
    let stranger = || Error::new(ErrorKind::InvalidArgument, format!("{node} is no member of the mesh"));
    Ok(mesh.member(node).ok_or_else(stranger)?.introduction.name.as_str())
}
