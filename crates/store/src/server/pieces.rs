//! What the pieces of a message stand for, checked.

use crate::layout::Cutting;
use crate::protocol::{DescribedSlice, Form, Piece, Storage};
use crate::rows::gradient::RowGradient;
use crate::rows::{check_ids, is_normal};
use crate::slot::{Meta, Slot};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Arena, Dtype, Tensor};
use std::ops::Range;

/// A piece, the tensor that it lies in, and at which byte.
pub(super) type Located<'a> = (&'a Piece, (&'a Tensor, usize));

fn broken<T>(what: String) -> Result<T> {
    Err(Error::new(ErrorKind::Protocol, what))
}

/// The slot of a new slice, from the pieces that are its first value.
pub(super) fn first_slot<'a>(
    slice: DescribedSlice,
    number: u64,
    given: &mut impl Iterator<Item = Located<'a>>,
    cutting: &Cutting,
    arena: &Arena,
) -> Result<Slot> {
    let DescribedSlice { described, slice, start } = slice;
    let meta = Meta::from_described(described)?;
    let key = &meta.key;
    let Some((piece, (tensor, at))) = given.next().filter(|(piece, _)| piece.number == number) else {
        return broken(format!("key {key} comes without its value"));
    };
    let Some(elements) = meta.shape.elements() else {
        return broken(format!("key {key} has more elements than there are numbers"));
    };
    meta.check_slices(cutting)?;
    if meta.storage == Storage::Dense {
        if piece.form != Form::Plain {
            return broken(format!("the first value of key {key} is coded"));
        }
        let value = view(tensor, at, piece, meta.dtype)?;
        let range = cutting.slice(key.number(), elements, slice);
        let is_slice = |range: &Range<u64>| range.start == start && range.end - start == value.elements() as u64;
        if !range.as_ref().is_some_and(is_slice) {
            let count = value.elements();
            return broken(format!("key {key} of shape {} has no slice {slice} of {count} elements", meta.shape));
        }
        return Slot::new(meta, start, &value, arena);
    }
    let slices = meta.slices(key.number(), cutting);
    let range = usize::try_from(slice).ok().and_then(|slice| slices.get(slice)).map(|slice| slice.range.clone());
    let Some(range) = range.filter(|range| range.start == start) else {
        return broken(format!("key {key} has no slice {slice} from {start} on"));
    };
    let grid = crate::rows::cut::Grid::of(meta.row_elements(), &range);
    let first = rows_of(&meta, grid, (piece, (tensor, at)), given.next())?;
    Slot::of_rows(meta, &range, first)
}

/// The rows that are pushed to a slot, from two pieces.
pub(super) fn row_gradient(slot: &Slot, ids: Located<'_>, values: Option<Located<'_>>) -> Result<RowGradient> {
    rows_of(&slot.meta, slot.grid, ids, values)
}

fn rows_of(
    meta: &Meta,
    grid: crate::rows::cut::Grid,
    (piece, (tensor, at)): Located<'_>,
    values: Option<Located<'_>>,
) -> Result<RowGradient> {
    let is_pair = |(values, _): &Located<'_>| values.form == Form::Rows && values.number == piece.number;
    let Some((values, (value_tensor, value_at))) = values.filter(is_pair).filter(|_| piece.form == Form::Ids) else {
        return broken(format!("ids and rows of key {} are not together", meta.key));
    };
    let ids = ids_of(meta, grid.rows, tensor, at, piece)?;
    let row_bytes = grid.row_elements * meta.dtype.size_bytes() as u64;
    if (ids.elements() as u64).checked_mul(row_bytes) != Some(values.len_bytes) {
        let what = format!("{} ids for {} bytes of rows of {row_bytes}", ids.elements(), values.len_bytes);
        return Err(Error::new(ErrorKind::Mismatch, what));
    }
    Ok(RowGradient { ids, values: view(value_tensor, value_at, values, meta.dtype)?, grid })
}

/// The ids of rows that are pulled from a slot.
pub(super) fn row_ids(slot: &Slot, tensor: &Tensor, at: usize, piece: &Piece) -> Result<Tensor> {
    ids_of(&slot.meta, slot.grid.rows, tensor, at, piece)
}

fn ids_of(meta: &Meta, rows: u64, tensor: &Tensor, at: usize, piece: &Piece) -> Result<Tensor> {
    let ids = view(tensor, at, piece, Dtype::I64)?;
    {
        let ids = ids.as_slice::<i64>()?;
        check_ids(&meta.key, &ids, rows)?;
        if !is_normal(&ids) {
            return broken(format!("ids of key {} that do not ascend", meta.key));
        }
    }
    Ok(ids)
}

/// The ids for a piece of rows that is pulled: the next ones that were given, if they are for it.
pub(super) fn asked_of(
    place: usize,
    piece: &Piece,
    row_bytes: usize,
    asked: Option<(usize, Tensor)>,
) -> Result<Tensor> {
    let Some((_, ids)) = asked.filter(|(asked, _)| *asked == place) else {
        return broken("a pull of rows without their ids".into());
    };
    // Distinct ids of rows in memory: the product is no more than the slot.
    if (ids.elements() * row_bytes) as u64 != piece.len_bytes {
        let what = format!("{} rows of {row_bytes} bytes are not {}", ids.elements(), piece.len_bytes);
        return Err(Error::new(ErrorKind::Mismatch, what));
    }
    Ok(ids)
}

/// A piece as what it stands for, flat. Nothing is copied.
pub(super) fn view(tensor: &Tensor, at: usize, piece: &Piece, dtype: Dtype) -> Result<Tensor> {
    let size_bytes = dtype.size_bytes() as u64;
    if !piece.len_bytes.is_multiple_of(size_bytes) {
        let what = format!("{} bytes are not whole elements of {dtype}", piece.len_bytes);
        return Err(Error::new(ErrorKind::Protocol, what));
    }
    Tensor::from_buffer(tensor.buffer().clone(), tensor.offset_bytes() + at, dtype, [piece.len_bytes / size_bytes])
}
