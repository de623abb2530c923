//! How sums of rows come into a slot.

use super::gradient::RowTotal;
use super::present::Present;
use super::table::{RowSlices, Table, gather};
use crate::key::Key;
use crate::slot::empty;
use crate::updater::Function;
use sheave_base::Result;
use sheave_tensor::{Arena, Op, Tensor};

/// The rows take the place of the value; all others become zero.
pub(crate) fn assign(value: &mut Tensor, present: &mut Present, total: &RowTotal) -> Result<()> {
    let dtype = value.dtype();
    total.read(|rows| present.assign(&mut Table::new(value.bytes_mut()?, dtype, rows.row_bytes), rows))
}

/// The rows are added to the value's.
pub(crate) fn add(value: &mut Tensor, total: &RowTotal) -> Result<()> {
    let dtype = value.dtype();
    Op::Sum.require(dtype)?;
    total.read(|rows| Table::new(value.bytes_mut()?, dtype, rows.row_bytes).add(rows))
}

/// User code is given the rows and those of the value that they belong to, both packed. If it fails the value stays as
/// it is.
pub(crate) fn call(function: &Function, key: &Key, value: &mut Tensor, total: &RowTotal, arena: &Arena) -> Result<()> {
    let (sum, mut packed) = pack(value, total, arena)?;
    function(key, &sum, &mut packed)?;
    unpack(value, total, &packed)
}

/// Returns the rows, and those of the value that they belong to, both packed.
pub(crate) fn pack(value: &Tensor, total: &RowTotal, arena: &Arena) -> Result<(Tensor, Tensor)> {
    let sum = total.packed(value.dtype(), arena)?;
    let mut packed = empty(arena, value.dtype(), sum.elements() as u64)?;
    total.read(|rows| gather(&value.bytes()?, rows.row_bytes, rows.ids, packed.bytes_mut()?))?;
    Ok((sum, packed))
}

/// Puts packed rows into the value, where those of the sum belong.
pub(crate) fn unpack(value: &mut Tensor, total: &RowTotal, packed: &Tensor) -> Result<()> {
    let dtype = value.dtype();
    total.read(|rows| {
        let changed = RowSlices { places: None, values: &packed.bytes()?, ..rows };
        Table::new(value.bytes_mut()?, dtype, rows.row_bytes).assign(changed)
    })
}
