//! Row-sparse tensors: some rows of a table, by their numbers.
//!
//! A worker may give rows in any order and more than once. Before they travel they are brought into *normal* form, ids
//! strictly ascending; everything behind that point works on normal rows, and checks it. Rows of the same id are summed
//! in the order in which they were given, and contributions of several workers in the order of their ranks ([`sum`]),
//! with the arithmetic of `sheave_tensor`; so sums have the same bits whoever was first.
//!
//! On servers rows are those of slices ([`cut`]); what is in a slot is dense, and [`merge`] brings rows into it.

pub(crate) mod cut;
pub(crate) mod gradient;
pub(crate) mod merge;
pub(crate) mod present;
pub(crate) mod sum;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod want;

use crate::key::Key;
use crate::slot::empty;
use cut::Cut;
use gradient::RowGradient;
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Arena, Dtype, Op, Shape, Tensor, reduce};
use std::ops::Range;
use table::RowSlices;

/// Some rows of a table: their ids, and what is in them.
///
/// ```
/// use sheave_store::Rows;
/// use sheave_tensor::Tensor;
///
/// // Rows 7 and 2 of a table with three columns.
/// let ids = Tensor::from_slice(&[7i64, 2], [2])?;
/// let values = Tensor::from_slice(&[1.0f32, 1.0, 1.0, 2.0, 2.0, 2.0], [2, 3])?;
/// let rows = Rows::new(ids, values)?;
/// assert_eq!((rows.len(), rows.row_shape()), (2, [3].as_slice()));
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rows {
    ids: Tensor,
    values: Tensor,
    row_bytes: usize,
}

impl Rows {
    /// Rows `values[i]` with the ids `ids[i]`: `i64` of shape `[n]`, in any order, also several of the same, and any
    /// dtype of shape `[n, …]`. Nothing is copied. Whether a table has such rows is found out when they are used.
    ///
    /// # Errors
    ///
    /// `Mismatch` if dtype or shapes are others.
    pub fn new(ids: Tensor, values: Tensor) -> Result<Self> {
        let bad = |what: String| Err(Error::new(ErrorKind::Mismatch, what).operation("rows"));
        if ids.dtype() != Dtype::I64 || ids.shape().dimensions().len() != 1 {
            return bad(format!("row ids are {}{}, and must be i64 of one dimension", ids.dtype(), ids.shape()));
        }
        let Some((&count, inner)) = values.shape().dimensions().split_first() else {
            return bad(format!("one {} cannot be rows", values.dtype()));
        };
        if count != ids.elements() as u64 {
            return bad(format!("{} row ids for rows {}{}", ids.elements(), values.dtype(), values.shape()));
        }
        let row_bytes = row_bytes(values.dtype(), inner)?;
        Ok(Self { ids, values, row_bytes })
    }

    /// The ids.
    #[must_use]
    pub fn ids(&self) -> &Tensor {
        &self.ids
    }

    /// The rows, in the order of the ids.
    #[must_use]
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// How many rows there are, equal ones counted each.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.elements()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shape of one row.
    #[must_use]
    pub fn row_shape(&self) -> &[u64] {
        self.values.shape().dimensions().get(1..).unwrap_or_default()
    }

    /// Refuses rows that the table of this key, dtype and shape does not have.
    ///
    /// # Errors
    ///
    /// `Mismatch` for another dtype or shape of the rows, `InvalidArgument` for an id outside the table,
    /// `LimitExceeded` for a table whose size is no number.
    pub(crate) fn check(&self, key: &Key, dtype: Dtype, shape: &Shape) -> Result<()> {
        let table = shape.dimensions().split_first();
        let Some((&rows, _)) = table.filter(|(_, inner)| dtype == self.values.dtype() && *inner == self.row_shape())
        else {
            let (given, row) = (self.values.dtype(), self.row_shape());
            let what = format!("key {key} holds {dtype}{shape}, and rows of {given}{row:?} were given");
            return Err(Error::new(ErrorKind::Mismatch, what));
        };
        let bytes = shape.elements().and_then(|elements| elements.checked_mul(dtype.size_bytes() as u64));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            let what = format!("key {key} would hold {dtype}{shape}, which is larger than an address space");
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        check_ids(key, &self.ids.as_slice()?, rows)
    }

    /// Gives `read` the ids and the bytes.
    pub(crate) fn read<R>(&self, read: impl FnOnce(RowSlices<'_>) -> Result<R>) -> Result<R> {
        let (ids, values) = (self.ids.as_slice()?, self.values.bytes()?);
        read(RowSlices { ids: &ids, places: None, values: &values, row_bytes: self.row_bytes })
    }

    /// All rows one after the other; they are of one dtype and shape.
    ///
    /// # Errors
    ///
    /// Those of reading the tensors and of the arena.
    pub(crate) fn concatenated(parts: &[&Self], arena: &Arena) -> Result<Self> {
        if let [one] = parts {
            return Ok((*one).clone());
        }
        let first = parts.first().ok_or_else(|| Error::new(ErrorKind::Internal, "rows of nothing"))?;
        let count = parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let mut ids = empty(arena, Dtype::I64, count)?;
        let elements = parts.iter().map(|part| part.values.elements() as u64).sum();
        let mut values = empty(arena, first.values.dtype(), elements)?;
        let (mut next_ids, mut next_values) = (ids.bytes_mut()?, values.bytes_mut()?);
        for part in parts {
            let (id_bytes, value_bytes) = (part.ids.bytes()?, part.values.bytes()?);
            let (target, rest) = next_ids.split_at_mut(id_bytes.len());
            target.copy_from_slice(&id_bytes);
            next_ids = rest;
            let (target, rest) = next_values.split_at_mut(value_bytes.len());
            target.copy_from_slice(&value_bytes);
            next_values = rest;
        }
        let mut shape = first.values.shape().dimensions().to_vec();
        shape[0] = count;
        Ok(Self { ids, values: values.reshape(Shape::new(&shape)?)?, row_bytes: first.row_bytes })
    }

    /// The same in normal form: itself if it is, else a copy in the arena with equal rows summed in their order.
    ///
    /// # Errors
    ///
    /// `Unsupported` if rows are equal and their dtype has no sum; those of reading the tensors.
    pub(crate) fn normal(&self, arena: &Arena) -> Result<Self> {
        if is_normal(&self.ids.as_slice()?) {
            return Ok(self.clone());
        }
        let (unique, order) = {
            let ids = self.ids.as_slice::<i64>()?;
            let mut order: Vec<(i64, usize)> = ids.iter().copied().zip(0..).collect();
            // Pairs are distinct, so rows of one id stay in the order given.
            order.sort_unstable();
            (order.chunk_by(|left, right| left.0 == right.0).count(), order)
        };
        let dtype = self.values.dtype();
        if unique < order.len() {
            Op::Sum.require(dtype).map_err(|error| error.context("several rows of the same id"))?;
        }
        let mut ids = empty(arena, Dtype::I64, unique as u64)?;
        let row_elements = self.row_bytes / dtype.size_bytes();
        let mut values = empty(arena, dtype, (unique * row_elements) as u64)?;
        self.read(|rows| {
            let (ids, values) = (ids.as_mut_slice::<i64>()?, values.bytes_mut()?);
            let equal = order.chunk_by(|left, right| left.0 == right.0);
            for (index, (equal, id)) in equal.zip(ids).enumerate() {
                let target = table::row_mut(values, rows.row_bytes, index)?;
                for (nth, (row, position)) in equal.iter().enumerate() {
                    *id = *row;
                    match (nth, rows.row(*position)?) {
                        (0, source) => target.copy_from_slice(source),
                        (_, source) => reduce(Op::Sum, dtype, target, source)?,
                    }
                }
            }
            Ok(())
        })?;
        let mut shape = self.values.shape().dimensions().to_vec();
        shape[0] = unique as u64;
        Ok(Self { ids, values: values.reshape(Shape::new(&shape)?)?, row_bytes: self.row_bytes })
    }

    /// What of these normal rows lies in a slice of their tensor, as rows of that slice ([`cut`]): ids and values, both
    /// flat. Values are the same memory; ids are copied to the arena unless they stay as they are.
    ///
    /// # Errors
    ///
    /// Those of reading the tensors and of the arena.
    pub(crate) fn part(&self, slice: &Range<u64>, arena: &Arena) -> Result<RowGradient> {
        let row_elements = (self.row_bytes / self.values.dtype().size_bytes()) as u64;
        let flat = self.values.reshape([self.values.elements() as u64])?;
        let ids = self.ids.as_slice::<i64>()?;
        let cut = Cut::of(&ids, row_elements, slice);
        let values = flat.slice_rows(cut.elements.clone())?;
        let ids = if cut.is_all(&ids) { self.ids.clone() } else { local_ids(&cut, &ids, arena)? };
        Ok(RowGradient { ids, values, grid: cut.grid })
    }
}

/// The ids of a slice's rows, in the arena.
pub(crate) fn local_ids(cut: &Cut, ids: &[i64], arena: &Arena) -> Result<Tensor> {
    let mut local = empty(arena, Dtype::I64, cut.len() as u64)?;
    local.as_mut_slice::<i64>()?.iter_mut().zip(cut.local(ids)).for_each(|(local, id)| *local = id);
    Ok(local)
}

/// Bytes of one row of these dimensions.
pub(crate) fn row_bytes(dtype: Dtype, inner: &[u64]) -> Result<usize> {
    let bytes = Shape::new(inner)?.elements().and_then(|elements| elements.checked_mul(dtype.size_bytes() as u64));
    let bytes = bytes.and_then(|bytes| isize::try_from(bytes).ok());
    bytes.map(|bytes| bytes as usize).ok_or_else(|| {
        Error::new(ErrorKind::LimitExceeded, format!("a row of {dtype}{inner:?} is larger than an address space"))
    })
}

/// Refuses ids that are not those of `rows` rows.
///
/// # Errors
///
/// `InvalidArgument` with the key, the first such id and the number of rows.
pub(crate) fn check_ids(key: &Key, ids: &[i64], rows: u64) -> Result<()> {
    // A negative one is more than any number of rows. Without an early end this is a vector loop.
    let is_outside = |id: &i64| *id as u64 >= rows;
    if !ids.iter().fold(false, |any, id| any | is_outside(id)) {
        return Ok(());
    }
    let id = ids.iter().copied().find(is_outside).unwrap_or_default();
    let what = format!("key {key} has {rows} rows, and none of the id {id}");
    Err(Error::new(ErrorKind::InvalidArgument, what).hint("rows are counted from 0"))
}

/// Whether ids are strictly ascending.
pub(crate) fn is_normal(ids: &[i64]) -> bool {
    let next = ids.get(1..).unwrap_or_default();
    ids.iter().zip(next).fold(true, |all, (left, right)| all & (left < right))
}

/// The distinct ids in ascending order, and for each of `ids` which of them it is. What a pull asks the servers for,
/// and how [`table::gather`] brings the answer into the order that was wanted.
pub(crate) fn distinct(ids: &[i64]) -> (Vec<i64>, Vec<i64>) {
    if is_normal(ids) {
        return (ids.to_vec(), (0..ids.len() as i64).collect());
    }
    let mut order: Vec<(i64, usize)> = ids.iter().copied().zip(0..).collect();
    order.sort_unstable();
    let (mut distinct, mut places) = (Vec::with_capacity(ids.len()), vec![0; ids.len()]);
    for equal in order.chunk_by(|left, right| left.0 == right.0) {
        for (_, position) in equal {
            places[*position] = distinct.len() as i64;
        }
        distinct.push(equal[0].0);
    }
    (distinct, places)
}
