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
    let dtype = value.dtype();
    let sum = total.packed(dtype, arena)?;
    total.read(|rows| {
        let mut packed = empty(arena, dtype, sum.elements() as u64)?;
        gather(&value.bytes()?, rows.row_bytes, rows.ids, packed.bytes_mut()?)?;
        function(key, &sum, &mut packed)?;
        let changed = RowSlices { places: None, values: &packed.bytes()?, ..rows };
        Table::new(value.bytes_mut()?, dtype, rows.row_bytes).assign(changed)
    })
}
