//! Parameters, gradients and predictions of Python's, where they lie.
//!
//! A call imports its arrays, refuses those of which one is written and shares memory with another, and looks at their
//! elements while the interpreter is let go. So no slice that is written has another one over the same memory here.
//! What programs must not do is to write an array on another thread during a call that was given it, as with every
//! other operation of sheave.

use crate::errors::{self, OrRaise};
use crate::import::{self, Access};
use crate::tensor::PyTensor;
use crate::{dtype, like};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Dtype, Element, Shape, Tensor, View, WriteLease};

/// The float that a computation is made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    Single,
    Double,
}

impl Width {
    pub(super) fn dtype(self) -> Dtype {
        match self {
            Self::Single => Dtype::F32,
            Self::Double => Dtype::F64,
        }
    }

    /// The width that an argument names.
    pub(super) fn named(argument: &Bound<'_, PyAny>) -> PyResult<Self> {
        let found = dtype::from_python(argument)?.or_raise(argument.py())?;
        Self::of(found).ok_or_else(|| refuse(argument.py(), "dtype", dtype::name(found), "float32 or float64"))
    }

    pub(super) fn of(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F32 => Some(Self::Single),
            Dtype::F64 => Some(Self::Double),
            _ => None,
        }
    }
}

/// Makes `$body` of both widths, in which `$T` is the float.
macro_rules! with_float {
    ($width:expr, $T:ident => $body:expr) => {
        match $width {
            $crate::bayes::array::Width::Single => {
                type $T = f32;
                $body
            }
            $crate::bayes::array::Width::Double => {
                type $T = f64;
                $body
            }
        }
    };
}
pub(super) use with_float;

/// The exception about an argument: `{field} {is}; expected {expected}`.
pub(super) fn refuse(py: Python<'_>, field: &str, is: &str, expected: &str) -> PyErr {
    let error = Error::new(ErrorKind::InvalidArgument, format!("{field} is {is}; expected {expected}"));
    errors::to_python(py, &error)
}

/// One array and the argument that it is.
pub(super) struct Array {
    name: String,
    tensor: Tensor,
}

impl Array {
    /// An array to read. Lists of numbers, and lists of such lists, are made arrays of float64.
    pub(super) fn read(name: &str, array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = array.py();
        if array.is_instance_of::<PyList>() || array.is_instance_of::<PyTuple>() {
            let made = py.import("numpy")?.call_method1("asarray", (array, "float64"))?;
            return Ok(Self { name: name.to_owned(), tensor: import::tensor(&made, Access::Read)? });
        }
        Self::import(name, array, Access::Read)
    }

    /// An array to write in place.
    pub(super) fn write(name: &str, array: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::import(name, array, Access::Write)
    }

    fn import(name: &str, array: &Bound<'_, PyAny>, access: Access) -> PyResult<Self> {
        let told = |error: PyErr| {
            let py = array.py();
            let _ = error.value(py).call_method1("add_note", (format!("the argument is {name}"),));
            error
        };
        // Torch exports no tensor that requires gradients; what is done here is no part of its graph.
        let detached = if like::is_torch(array)? { array.call_method0("detach")? } else { array.clone() };
        Ok(Self { name: name.to_owned(), tensor: import::tensor(&detached, access).map_err(told)? })
    }

    pub(super) fn shape(&self) -> &[u64] {
        self.tensor.shape().dimensions()
    }

    pub(super) fn dtype(&self) -> Dtype {
        self.tensor.dtype()
    }

    pub(super) fn elements(&self) -> usize {
        self.tensor.elements()
    }

    fn said(&self) -> String {
        format!("{} of {}", dtype::name(self.dtype()), shape_text(self.shape()))
    }

    /// The width of the elements.
    pub(super) fn width(&self, py: Python<'_>) -> PyResult<Width> {
        let said = || refuse(py, &self.name, &format!("an array of {}", self.said()), "float32 or float64");
        Width::of(self.dtype()).ok_or_else(said)
    }

    /// Refuses another dtype or shape.
    pub(super) fn expect(&self, py: Python<'_>, width: Width, shape: &[u64]) -> PyResult<()> {
        if self.dtype() == width.dtype() && self.shape() == shape {
            return Ok(());
        }
        let expected = format!("{} of {}", dtype::name(width.dtype()), shape_text(shape));
        Err(refuse(py, &self.name, &format!("an array of {}", self.said()), &expected))
    }

    /// Refuses another dtype, or another number of elements.
    pub(super) fn expect_vector(&self, py: Python<'_>, width: Width, elements: usize) -> PyResult<()> {
        self.expect(py, width, &[elements as u64])
    }

    /// Refuses what has not so many axes; returns their extents.
    pub(super) fn expect_rank(&self, py: Python<'_>, rank: usize, of: &str) -> PyResult<&[u64]> {
        if self.shape().len() == rank {
            return Ok(self.shape());
        }
        Err(refuse(py, &self.name, &format!("an array of {}", self.said()), of))
    }

    pub(super) fn view<T: Element>(&self) -> Result<View<'_, T>> {
        self.tensor.as_slice()
    }

    pub(super) fn lease(&self) -> Result<WriteLease> {
        self.tensor.write_lease("bayes")
    }

    /// The elements to write, under the array's lease.
    pub(super) fn elements_mut<'a, T: Element>(&self, lease: &'a mut WriteLease) -> Result<&'a mut [T]> {
        if self.tensor.len_bytes() == 0 {
            return Ok(&mut []);
        }
        let start = self.tensor.offset_bytes();
        let range = start..start + self.tensor.len_bytes();
        let bytes = lease.bytes_mut()?.get_mut(range);
        let bytes = bytes.ok_or_else(|| Error::new(ErrorKind::Internal, "an array lies outside its buffer"))?;
        bytemuck::try_cast_slice_mut(bytes)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("{} cannot be written: {error}", self.name)))
    }

    /// A copy of whole numbers that are not negative.
    pub(super) fn counts(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        let wide: Vec<i64> = match self.dtype() {
            Dtype::I64 => self.tensor.to_vec().or_raise(py)?,
            Dtype::I32 => self.tensor.to_vec::<i32>().or_raise(py)?.into_iter().map(i64::from).collect(),
            Dtype::U8 => self.tensor.to_vec::<u8>().or_raise(py)?.into_iter().map(i64::from).collect(),
            _ => {
                let is = format!("an array of {}", self.said());
                return Err(refuse(py, &self.name, &is, "int64, int32 or uint8"));
            }
        };
        let place = |(place, value): (usize, i64)| {
            let wrong = |_| refuse(py, &format!("{}[{place}]", self.name), &value.to_string(), "0 or more");
            usize::try_from(value).map_err(wrong)
        };
        wide.into_iter().enumerate().map(place).collect()
    }
}

/// Labels of classes: an array of integers, or a list of them.
pub(super) fn labels(name: &str, array: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let py = array.py();
    if !(array.is_instance_of::<PyList>() || array.is_instance_of::<PyTuple>()) {
        return Array::read(name, array)?.counts(py);
    }
    // One by one: numpy would make integers of floats, and of text.
    let label = |(place, label): (usize, PyResult<Bound<'_, PyAny>>)| {
        let (label, field) = (label?, || format!("{name}[{place}]"));
        let Ok(value) = label.extract::<i64>() else {
            return Err(refuse(py, &field(), &label.repr()?.to_string(), "an integer, 0 or more"));
        };
        usize::try_from(value).map_err(|_| refuse(py, &field(), &value.to_string(), "0 or more"))
    };
    array.try_iter()?.enumerate().map(label).collect()
}

fn shape_text(shape: &[u64]) -> String {
    let extents: Vec<String> = shape.iter().map(u64::to_string).collect();
    let comma = if shape.len() == 1 { "," } else { "" };
    format!("shape ({}{comma})", extents.join(", "))
}

/// Arrays of one shape, one for each particle or member: a list of them, or one array with them along its first axis.
pub(super) struct Rows {
    arrays: Vec<Array>,
    count: usize,
    row_shape: Vec<u64>,
    width: Width,
}

impl Rows {
    pub(super) fn read(name: &str, rows: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(name, rows, Array::read)
    }

    pub(super) fn write(name: &str, rows: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::of(name, rows, Array::write)
    }

    fn of(
        name: &str,
        rows: &Bound<'_, PyAny>,
        import: impl Fn(&str, &Bound<'_, PyAny>) -> PyResult<Array>,
    ) -> PyResult<Self> {
        let py = rows.py();
        if !(rows.is_instance_of::<PyList>() || rows.is_instance_of::<PyTuple>()) {
            let matrix = import(name, rows)?;
            let width = matrix.width(py)?;
            let Some((&count, row_shape)) = matrix.shape().split_first() else {
                return Err(refuse(py, name, &format!("an array of {}", matrix.said()), "one row for each member"));
            };
            let row_shape = row_shape.to_vec();
            return Ok(Self { count: count as usize, row_shape, width, arrays: vec![matrix] });
        }
        let each = |(place, row): (usize, PyResult<Bound<'_, PyAny>>)| import(&format!("{name}[{place}]"), &row?);
        let arrays = rows.try_iter()?.enumerate().map(each).collect::<PyResult<Vec<_>>>()?;
        let Some(first) = arrays.first() else { return Err(refuse(py, name, "an empty list", "one array at least")) };
        let (width, row_shape) = (first.width(py)?, first.shape().to_vec());
        arrays.iter().try_for_each(|array| array.expect(py, width, &row_shape))?;
        Ok(Self { count: arrays.len(), row_shape, width, arrays })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn row_shape(&self) -> &[u64] {
        &self.row_shape
    }

    pub(super) fn width(&self) -> Width {
        self.width
    }

    /// How many elements each row has.
    pub(super) fn row_elements(&self) -> usize {
        self.row_shape.iter().map(|&extent| extent as usize).product()
    }

    /// Refuses another number of rows, elements in each, or dtype.
    pub(super) fn expect(&self, py: Python<'_>, name: &str, width: Width, shape: [usize; 2]) -> PyResult<()> {
        let found = [self.count, self.row_elements()];
        if self.width == width && found == shape && self.row_shape.len() == 1 {
            return Ok(());
        }
        let said = |width: Width, [rows, elements]: [usize; 2]| {
            format!("{rows} rows of {elements} elements of {}", dtype::name(width.dtype()))
        };
        let hint = if self.row_shape.len() == 1 { "" } else { ", in rows with one axis" };
        Err(refuse(py, name, &said(self.width, found), &(said(width, shape) + hint)))
    }

    pub(super) fn arrays(&self) -> &[Array] {
        &self.arrays
    }

    pub(super) fn views<T: Element>(&self) -> Result<Vec<View<'_, T>>> {
        self.arrays.iter().map(Array::view).collect()
    }

    /// The rows in the views of the arrays.
    pub(super) fn split<'a, T: Element>(&self, views: &'a [View<'_, T>]) -> Vec<&'a [T]> {
        let elements = self.row_elements();
        if elements == 0 {
            return vec![&[]; self.count];
        }
        views.iter().flat_map(|view| view.chunks_exact(elements)).collect()
    }

    pub(super) fn leases(&self) -> Result<Vec<WriteLease>> {
        self.arrays.iter().map(Array::lease).collect()
    }

    /// The rows to write, under the leases of the arrays.
    pub(super) fn split_mut<'a, T: Element>(&self, leases: &'a mut [WriteLease]) -> Result<Vec<&'a mut [T]>> {
        let elements = self.row_elements().max(1);
        let mut rows = Vec::with_capacity(self.count);
        for (array, lease) in self.arrays.iter().zip(leases) {
            rows.extend(array.elements_mut(lease)?.chunks_exact_mut(elements));
        }
        rows.resize_with(self.count, Default::default);
        Ok(rows)
    }
}

/// Refuses arrays of which one that is written shares memory with another.
pub(super) fn require_disjoint<'a>(
    py: Python<'_>,
    written: impl IntoIterator<Item = &'a Array>,
    read: impl IntoIterator<Item = &'a Array>,
) -> PyResult<()> {
    let written = written.into_iter().map(|array| (array, true));
    let mut all: Vec<(&Array, bool)> = written.chain(read.into_iter().map(|array| (array, false))).collect();
    all.retain(|(array, _)| array.tensor.len_bytes() > 0);
    all.sort_by_key(|(array, _)| array.tensor.ptr().addr());
    let end = |array: &Array| array.tensor.ptr().addr() + array.tensor.len_bytes();
    let (mut of_any, mut of_written): (Option<&Array>, Option<&Array>) = (None, None);
    for (array, is_written) in all {
        let before = if is_written { of_any } else { of_written };
        if let Some(before) = before.filter(|before| end(before) > array.tensor.ptr().addr()) {
            let is = format!("in the same memory as {}", before.name);
            return Err(refuse(py, &array.name, &is, "memory of its own"));
        }
        for (slot, counts) in [(&mut of_any, true), (&mut of_written, is_written)] {
            if counts && slot.is_none_or(|before| end(before) < end(array)) {
                *slot = Some(array);
            }
        }
    }
    Ok(())
}

/// A new numpy array, filled while the interpreter is let go.
pub(super) fn filled<T: Element>(
    py: Python<'_>,
    shape: &[u64],
    fill: impl FnOnce(&mut [T]) -> Result<()> + Send,
) -> PyResult<Py<PyAny>> {
    let mut tensor = Tensor::private(T::DTYPE, Shape::new(shape).or_raise(py)?).or_raise(py)?;
    let values = tensor.as_mut_slice::<T>().or_raise(py)?;
    py.detach(|| fill(values)).or_raise(py)?;
    Ok(PyTensor::numpy(&Bound::new(py, PyTensor::new(tensor))?)?.unbind())
}

/// A new numpy array of these elements.
pub(super) fn numpy<T: Element>(py: Python<'_>, values: &[T], shape: &[u64]) -> PyResult<Py<PyAny>> {
    let tensor = Tensor::from_slice(values, Shape::new(shape).or_raise(py)?).or_raise(py)?;
    Ok(PyTensor::numpy(&Bound::new(py, PyTensor::new(tensor))?)?.unbind())
}
