//! Names for who is at the other end.

use pyo3::prelude::*;
use sheave_base::config::Role;
use sheave_base::{LinkId, NodeId, Peer};

/// A link of one node. Its node's methods take it; it holds nothing open.
///
/// >>> with sheave.Node("one") as one, sheave.Node("other") as other:
/// ...     link = one.link_to(other)
/// ...     one.peer(link).name
/// 'other'
#[pyclass(name = "Link", module = "sheave", frozen, eq, hash)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PyLink {
    pub(crate) node: NodeId,
    pub(crate) link: LinkId,
}

#[pymethods]
impl PyLink {
    /// The link's number at its node.
    #[getter]
    fn id(&self) -> u32 {
        self.link.0
    }

    fn __repr__(&self) -> String {
        format!("sheave.Link({})", self.link)
    }
}

/// A node as others see it. Fields that are not known are None. Errors name the peer that they are about so.
///
/// >>> peer = sheave.Peer("worker-1", rank=1, host="here", pid=7)
/// >>> print(peer)
/// worker-1 (rank 1, host here, pid 7)
#[pyclass(name = "Peer", module = "sheave", frozen, eq, hash, get_all)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PyPeer {
    /// Its name, unique in the mesh.
    pub(crate) name: String,
    /// What it is there for: `worker`, `server`, `scheduler` or `rank`.
    role: Option<String>,
    /// Its rank in the mesh.
    rank: Option<u32>,
    /// The name of its host.
    host: Option<String>,
    /// Its process id on that host.
    pid: Option<u32>,
}

impl From<Peer> for PyPeer {
    fn from(peer: Peer) -> Self {
        let Peer { name, role, rank, host, pid, .. } = peer;
        Self { name, role: role.map(|role| role.to_string()), rank, host, pid }
    }
}

#[pymethods]
impl PyPeer {
    #[new]
    #[pyo3(signature = (name, rank = None, host = None, pid = None, role = None))]
    fn new(name: String, rank: Option<u32>, host: Option<String>, pid: Option<u32>, role: Option<String>) -> Self {
        Self { name, role, rank, host, pid }
    }

    fn __getnewargs__(&self) -> (String, Option<u32>, Option<String>, Option<u32>, Option<String>) {
        (self.name.clone(), self.rank, self.host.clone(), self.pid, self.role.clone())
    }

    fn __str__(&self) -> String {
        let Self { name, role, rank, host, pid } = self.clone();
        let role = role.as_deref().and_then(Role::from_name);
        Peer { name, role, rank, host, pid, node: None }.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<sheave.Peer {}>", self.__str__())
    }
}
