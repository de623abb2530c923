//! Where an operation receives: places, their leases, and what is unpacked into them.

use crate::protocol::{Form, Piece};
use crate::rows::want::gather_under;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::Leases;
use sheave_tensor::{Tensor, WriteLease};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The places of one operation: one write lease for each buffer, although several places may lie in it.
pub(super) struct Places {
    /// Of buffers that calls receive into.
    pub(super) large: Leases,
    /// Of those that are filled afterwards, from what was received elsewhere.
    small: HashMap<usize, WriteLease>,
}

/// Which buffer a tensor lies in.
pub(super) fn address(tensor: &Tensor) -> usize {
    tensor.buffer().ptr() as usize
}

impl Places {
    pub(super) fn lease<'a>(
        operation: &'static str,
        places: impl Iterator<Item = (&'a Piece, &'a Tensor)>,
        scatters: &'a [Scatter],
    ) -> Result<Self> {
        let (small, large): (Vec<_>, Vec<_>) = places.partition(|(piece, _)| piece.packed || piece.form.is_coded());
        let of = |places: Vec<(_, &'a Tensor)>| places.into_iter().map(|(_, place)| place);
        let mut leases = [HashMap::new(), HashMap::new()];
        let (large, small): (Vec<_>, Vec<_>) =
            (of(large).collect(), of(small).chain(scatters.iter().map(|scatter| &scatter.place)).collect());
        for (at, places) in [large, small].into_iter().enumerate() {
            for place in places {
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

/// A place that is filled when the call has ended, from bytes that were received elsewhere.
pub(super) struct Unpack {
    pub(super) staging: Tensor,
    pub(super) bytes: Range<usize>,
    pub(super) form: Form,
    pub(super) place: Tensor,
}

/// Elements that are decoded at a time: they stay in the first cache.
const DECODED_ELEMENTS: usize = 4096;

impl Unpack {
    pub(super) fn run(self, leases: &mut HashMap<usize, WriteLease>) -> Result<()> {
        let Self { staging, bytes, form, place } = self;
        let staging = staging.bytes()?;
        let lease = leases.get_mut(&address(&place));
        let lease = lease.ok_or_else(|| Error::new(ErrorKind::Internal, "a place without a lease"))?;
        let bytes = &staging[bytes];
        let Form::Coded(code) = form else { return place.overwrite_under(lease, bytes) };
        let elements = place.elements();
        let flat = place.reshape([elements as u64])?;
        let mut decoded = [0.0f32; DECODED_ELEMENTS];
        for start in (0..elements).step_by(DECODED_ELEMENTS) {
            let end = elements.min(start + DECODED_ELEMENTS);
            // Whole words of every code: blocks are multiples of them.
            let coded = code.encoded_len_bytes(start)..code.encoded_len_bytes(end);
            let decoded = &mut decoded[..end - start];
            code.decode_into(&bytes[coded], decoded)?;
            let target = flat.slice_rows(start as u64..end as u64)?;
            target.overwrite_under(lease, bytemuck::cast_slice(decoded))?;
        }
        Ok(())
    }
}

/// Rows that were received in ascending order, and where they are to be in the order that was wanted.
pub(super) struct Scatter {
    /// Flat.
    pub(super) staging: Tensor,
    pub(super) row_bytes: usize,
    /// Which received row is where.
    pub(super) order: Vec<i64>,
    pub(super) place: Tensor,
}

impl Scatter {
    pub(super) fn run(self, leases: &mut HashMap<usize, WriteLease>) -> Result<()> {
        // Nobody writes to it any more.
        drop(leases.remove(&address(&self.staging)));
        let lease = leases.get_mut(&address(&self.place));
        let lease = lease.ok_or_else(|| Error::new(ErrorKind::Internal, "a place without a lease"))?;
        gather_under(lease, &self.place, &self.staging.bytes()?, self.row_bytes, &self.order)
    }
}
