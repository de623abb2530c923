//! Rows of tables.

use crate::dtype;
use crate::errors::OrRaise;
use crate::import::{self, Access};
use crate::store::arguments::{self, Objects};
use pyo3::prelude::*;
use sheave_base::{Error, ErrorKind, Result};
use sheave_store::{Key, Rows};
use sheave_tensor::{Dtype, Shape, Tensor};

/// Keys, each with rows and their ids.
pub(crate) fn rows(
    py: Python<'_>,
    keys: &Objects<'_>,
    ids: &Objects<'_>,
    values: &Objects<'_>,
) -> PyResult<Vec<(Key, Rows)>> {
    arguments::same_length(py, keys.len(), ids.len())?;
    arguments::same_length(py, keys.len(), values.len())?;
    let pushed = keys.iter().zip(ids).zip(values).map(|((key, ids), values)| {
        let (ids, values) = (import::tensor(ids, Access::Read)?, import::tensor(values, Access::Read)?);
        Ok((arguments::key(key)?, Rows::new(ids, values).or_raise(py)?))
    });
    pushed.collect()
}

/// Keys, each with ids and a place for their rows.
pub(crate) fn places(
    py: Python<'_>,
    keys: &Objects<'_>,
    ids: &Objects<'_>,
    outs: &Objects<'_>,
) -> PyResult<Vec<(Key, Tensor, Tensor)>> {
    arguments::same_length(py, keys.len(), ids.len())?;
    arguments::same_length(py, keys.len(), outs.len())?;
    let wanted = keys.iter().zip(ids).zip(outs).map(|((key, ids), out)| {
        Ok((arguments::key(key)?, import::tensor(ids, Access::Read)?, import::tensor(out, Access::Write)?))
    });
    wanted.collect()
}

/// A table before anybody has pushed to it: its shape, its dtype if it has no rows, and ids and rows if it has some.
pub(crate) struct First<'a, 'py> {
    pub(crate) shape: &'a [u64],
    pub(crate) dtype: &'a Bound<'py, PyAny>,
    pub(crate) ids: Option<&'a Bound<'py, PyAny>>,
    pub(crate) rows: Option<&'a Bound<'py, PyAny>>,
}

impl First<'_, '_> {
    pub(crate) fn table(&self, py: Python<'_>) -> PyResult<(Shape, Rows)> {
        let shape = Shape::new(self.shape).or_raise(py)?;
        let rows = match (self.ids, self.rows) {
            (Some(ids), Some(rows)) => {
                Rows::new(import::tensor(ids, Access::Read)?, import::tensor(rows, Access::Read)?)
            }
            (None, None) => {
                let dtype = dtype::from_python(self.dtype)?.or_raise(py)?;
                none(dtype, self.shape)
            }
            _ => Err(Error::new(ErrorKind::InvalidArgument, "first rows need their ids, and ids their rows")
                .operation("init_rows")),
        };
        Ok((shape, rows.or_raise(py)?))
    }
}

/// No rows of a table.
fn none(dtype: Dtype, shape: &[u64]) -> Result<Rows> {
    let row = shape.iter().skip(1).copied();
    let rows: Vec<u64> = std::iter::once(0).chain(row).collect();
    Rows::new(Tensor::private(Dtype::I64, [0])?, Tensor::private(dtype, Shape::new(&rows)?)?)
}
