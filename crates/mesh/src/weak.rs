//! Handles that do not keep a node in its mesh.

use crate::mesh::{Mesh, Owner};
use std::sync::{Arc, Weak};

/// A handle to a mesh that does not keep this node in it: for services, which the mesh itself holds. The default is one
/// to no mesh.
#[derive(Clone, Default)]
pub struct WeakMesh(Weak<Owner>);

impl WeakMesh {
    pub(crate) fn of(owner: &Arc<Owner>) -> Self {
        Self(Arc::downgrade(owner))
    }

    /// The mesh, unless this node has left it or is about to.
    #[must_use]
    pub fn upgrade(&self) -> Option<Mesh> {
        self.0.upgrade().map(Mesh::from)
    }
}

impl std::fmt::Debug for WeakMesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeakMesh").finish_non_exhaustive()
    }
}
