//! Where an operation receives: places, their leases, and what is unpacked into them.

use crate::protocol::Piece;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::Leases;
use sheave_tensor::{Tensor, WriteLease};
use std::collections::HashMap;
use std::sync::Arc;

/// The places of one operation: one write lease for each buffer, although several places may lie in it.
pub(super) struct Places {
    /// Of buffers that calls receive into.
    pub(super) large: Leases,
    /// Of those that are filled from a packed tensor afterwards.
    small: HashMap<usize, WriteLease>,
}

/// Which buffer a tensor lies in.
pub(super) fn address(tensor: &Tensor) -> usize {
    tensor.buffer().ptr() as usize
}

impl Places {
    pub(super) fn lease<'a>(
        operation: &'static str,
        places: impl Iterator<Item = &'a (Piece, Tensor)>,
    ) -> Result<Self> {
        let (small, large): (Vec<_>, Vec<_>) = places.partition(|(piece, _)| piece.packed);
        let mut leases = [HashMap::new(), HashMap::new()];
        for (at, places) in [large, small].into_iter().enumerate() {
            for (_, place) in places {
                if !leases.iter().any(|leases| leases.contains_key(&address(place))) {
                    leases[at].insert(address(place), place.write_lease(operation)?);
                }
            }
        }
        let [large, small] = leases;
        Ok(Self { large: Arc::new(large.into_values().collect()), small })
    }

    /// All leases, once every call has ended.
    pub(super) fn into_leases(self) -> Result<HashMap<usize, WriteLease>> {
        let Self { large, mut small } = self;
        let large = Arc::try_unwrap(large)
            .map_err(|_| Error::new(ErrorKind::Internal, "a call has ended and still receives"))?;
        small.extend(large.into_iter().map(|lease| (lease.buffer().ptr() as usize, lease)));
        Ok(small)
    }
}

/// Small places, which are filled from one received tensor.
pub(super) struct Unpack {
    pub(super) staging: Tensor,
    pub(super) places: Vec<(u64, Tensor)>,
}

impl Unpack {
    pub(super) fn run(self, leases: &mut HashMap<usize, WriteLease>) -> Result<()> {
        let bytes = self.staging.bytes()?;
        for (at, place) in self.places {
            let range = at as usize..at as usize + place.len_bytes();
            let lease = leases.get_mut(&address(&place));
            let lease = lease.ok_or_else(|| Error::new(ErrorKind::Internal, "a place without a lease"))?;
            place.overwrite_under(lease, &bytes[range])?;
        }
        Ok(())
    }
}
