//! The rows that a pull asks for.

use super::check_ids;
use super::table::gather;
use crate::slot::Meta;
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Dtype, Tensor, WriteLease};

/// The ids of a pull, in the order in which its place is filled; a copy, because the place may lie beside them.
///
/// # Errors
///
/// `Mismatch` for ids that are not `i64`, and for a place of another dtype or shape than one row for each id;
/// `InvalidArgument` for an id outside the tensor; `BufferInUse` for ids that are being written.
pub(crate) fn wanted_ids(operation: &'static str, meta: &Meta, ids: &Tensor, place: &Tensor) -> Result<Vec<i64>> {
    let bad = |what: String| Err(Error::new(ErrorKind::Mismatch, what).operation(operation));
    if ids.dtype() != Dtype::I64 {
        return bad(format!("row ids of key {} are {}{}, and must be i64", meta.key, ids.dtype(), ids.shape()));
    }
    let Some((&rows, row)) = meta.shape.dimensions().split_first() else {
        return bad(format!("key {} holds one {}, and has no rows", meta.key, meta.dtype));
    };
    let is_place = |outer: &[u64]| {
        place.shape().dimensions().strip_prefix(outer).is_some_and(|inner| inner == row) && place.dtype() == meta.dtype
    };
    if !is_place(&[ids.elements() as u64]) && !is_place(ids.shape().dimensions()) {
        return bad(format!(
            "{} rows of key {}, which holds {}{}, do not fill {}{}",
            ids.elements(),
            meta.key,
            meta.dtype,
            meta.shape,
            place.dtype(),
            place.shape()
        ));
    }
    let wanted = ids.as_slice::<i64>()?.to_vec();
    check_ids(&meta.key, &wanted, rows).map_err(|error| error.operation(operation))?;
    Ok(wanted)
}

/// Fills a place with rows of a table, in the order of their ids.
pub(crate) fn gather_under(
    lease: &mut WriteLease,
    place: &Tensor,
    table: &[u8],
    row_bytes: usize,
    ids: &[i64],
) -> Result<()> {
    let range = place.offset_bytes()..place.offset_bytes() + place.len_bytes();
    let target = lease.bytes_mut()?.get_mut(range);
    let target = target.ok_or_else(|| Error::new(ErrorKind::Internal, "a place outside its buffer"))?;
    gather(table, row_bytes, ids, target)
}
