//! Arrays in: whatever speaks the buffer protocol or DLPack becomes a tensor, without a copy where it lies row-major.
//!
//! The array's memory is Python's, and Python programs may write it at any time. Sheave moves such bytes with raw
//! copies only; a program that writes an array while an operation on it is under way sends torn elements.

use crate::errors::OrRaise;
use crate::released::Owner;
use crate::tensor::PyTensor;
use crate::{dtype, errors, life, like};
use dlpark::DlpackFlags;
use dlpark::ffi::{DLDevice, DLDeviceType};
use dlpark::python::ImportedDlpack;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::{ffi, intern};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Buffer, Dtype, Shape, Tensor};
use smallvec::SmallVec;
use std::ffi::CStr;
use std::ptr::NonNull;

/// What an operation will do with the array.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read it: any layout will do, at the price of one packed copy where it has gaps.
    Read,
    /// Write it in place: it must be writable and row-major.
    Write,
}

/// The array as a tensor over the same memory.
pub(crate) fn tensor(array: &Bound<'_, PyAny>, access: Access) -> PyResult<Tensor> {
    if let Ok(ours) = array.cast::<PyTensor>() {
        return ours.get().handle(array.py());
    }
    // SAFETY: the interpreter is held, and the object is alive.
    let has_buffer = unsafe { ffi::PyObject_CheckBuffer(array.as_ptr()) } == 1;
    // Without asking first, every torch tensor would cost an exception.
    let refused = if has_buffer { from_buffer(array, access) } else { Err(PyTypeError::new_err("no buffer")) };
    let refused = match refused {
        Ok(Err(_)) if access == Access::Write && like::is_jax(array)? => return Err(immutable(array)),
        Ok(outcome) => return outcome.or_raise(array.py()),
        Err(refused) => refused,
    };
    if array.hasattr("__dlpack__")? {
        match life::below(array.py(), || import(&settled(array, access)?)) {
            // Its capsules are of before, and do not say so.
            Ok(ImportedDlpack::Legacy(_)) if access == Access::Write && like::is_jax(array)? => {
                return Err(immutable(array));
            }
            Ok(imported) => return from_dlpack(imported, access).or_raise(array.py()),
            // Numpy has no DLPack word for the dtypes of ml_dtypes, and they are worth another try.
            Err(error) => {
                return match from_extension(array, access)? {
                    Some(tensor) => Ok(tensor),
                    None => Err(unreadable(array, error)?),
                };
            }
        }
    }
    if refused.is_instance_of::<PyTypeError>(array.py()) {
        let what = format!("a {} is neither a buffer nor a DLPack tensor", array.get_type().name()?);
        let error = Error::new(ErrorKind::Unsupported, what).hint("give a numpy array, a torch tensor or bytes");
        return Err(errors::to_python(array.py(), &error));
    }
    Err(refused)
}

/// The outer error says that the array exports no buffer, the inner one that the buffer is no tensor.
fn from_buffer(array: &Bound<'_, PyAny>, access: Access) -> PyResult<Result<Tensor>> {
    let owner = Owner::of_buffer(array)?;
    // SAFETY: the owner, and with it the view, is there until the end of this function or of the tensor.
    let view = unsafe { &*owner.view() };
    let item_bytes = view.itemsize.unsigned_abs();
    let format = if view.format.is_null() {
        c"B"
    } else {
        // SAFETY: a format is a string that lives as long as the view.
        unsafe { CStr::from_ptr(view.format) }
    };
    let dtype = match dtype::from_format(format, item_bytes) {
        Ok(dtype) => dtype,
        Err(error) => return Ok(Err(error)),
    };
    let rank = usize::try_from(view.ndim).unwrap_or(0);
    // SAFETY: the request asked for shape and strides, so there is one of each per dimension; of no dimensions there
    // may be null pointers, which `extents` does not look at.
    let (extents, strides) = unsafe { (extents(view.shape, rank), extents(view.strides, rank)) };
    let dimensions: SmallVec<[u64; 6]> = extents.iter().map(|&extent| extent.unsigned_abs() as u64).collect();
    let shape = match Shape::new(&dimensions) {
        Ok(shape) => shape,
        Err(error) => return Ok(Err(error)),
    };
    let read_only = view.readonly != 0;
    let first = NonNull::new(view.buf.cast::<u8>()).unwrap_or(NonNull::dangling());
    let len_bytes = view.len.unsigned_abs();
    if len_bytes > 0
        && is_row_major(extents, strides, view.itemsize)
        && first.addr().get().is_multiple_of(dtype.align_bytes())
    {
        // SAFETY: the exporter promises these bytes until the view is given back, which the owner does; nobody forms
        // references into memory that Python may write.
        let buffer = unsafe { Buffer::foreign(first, len_bytes, read_only, Box::new(owner)) };
        let tensor = Tensor::from_buffer(buffer, 0, dtype, shape);
        return Ok(tensor.and_then(|tensor| admit(tensor, first, read_only, access)));
    }
    let item_stride = item_bytes as isize;
    let walkable = strides.iter().all(|stride| stride % item_stride == 0);
    let strides: SmallVec<[i64; 6]> = strides.iter().map(|stride| (stride / item_stride) as i64).collect();
    if !walkable && access == Access::Read {
        return gathered(array.py(), view, dtype, shape);
    }
    if !walkable {
        return Ok(Err(has_gaps()));
    }
    // SAFETY: the exporter promises the elements that shape and strides reach until the view is given back, which the
    // owner does; nobody forms references into memory that Python may write.
    let packed = unsafe { Tensor::pack(dtype, shape, &strides, first, read_only, Box::new(owner)) };
    Ok(packed.and_then(|tensor| admit(tensor, first, read_only, access)))
}

/// Whether the elements lie one behind the other: what nearly all arrays do, so that it is worth a look of its own.
fn is_row_major(extents: &[isize], strides: &[isize], item_bytes: isize) -> bool {
    let mut wanted = item_bytes;
    extents.iter().zip(strides).rev().all(|(&extent, &stride)| {
        let fits = extent == 1 || stride == wanted;
        wanted = wanted.wrapping_mul(extent);
        fits
    })
}

/// # Safety
/// Unless `rank` is zero, `values` points to that many values that live as long as the result is used.
unsafe fn extents<'a>(values: *const isize, rank: usize) -> &'a [isize] {
    if rank == 0 || values.is_null() {
        return &[];
    }
    // SAFETY: handed on.
    unsafe { std::slice::from_raw_parts(values, rank) }
}

/// A packed copy of elements whose distances are no whole elements, such as a field of packed records.
fn gathered(py: Python<'_>, view: &ffi::Py_buffer, dtype: Dtype, shape: Shape) -> PyResult<Result<Tensor>> {
    let made = Tensor::private(dtype, shape).and_then(|mut tensor| {
        let target = tensor.bytes_mut()?.as_mut_ptr();
        Ok((tensor, target))
    });
    let (tensor, target) = match made {
        Ok(made) => made,
        Err(error) => return Ok(Err(error)),
    };
    // SAFETY: the interpreter is held, the view is valid, and the target has room for all its elements.
    let status = unsafe { ffi::PyBuffer_ToContiguous(target.cast(), view, view.len, b'C'.cast_signed() as _) };
    if status == 0 { Ok(Ok(tensor)) } else { Err(PyErr::fetch(py)) }
}

/// A torch tensor whose elements are what its memory says; any other array as it is. Torch conjugates and negates
/// lazily, and the tensors that it exports do not tell.
fn settled<'py>(array: &Bound<'py, PyAny>, access: Access) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    let is_lazy = |name| array.call_method0(name)?.is_truthy();
    if !like::is_torch(array)? || !(is_lazy(intern!(py, "is_neg"))? || is_lazy(intern!(py, "is_conj"))?) {
        return Ok(array.clone());
    }
    if access == Access::Write {
        let what = "a torch tensor that is conjugated or negated lazily cannot be written";
        let error = Error::new(ErrorKind::InvalidArgument, what);
        return Err(errors::to_python(py, &error.hint("give what its resolve_conj() or resolve_neg() returns")));
    }
    array.call_method0("resolve_conj")?.call_method0("resolve_neg")
}

/// Asks a DLPack producer for its tensor, in the words of today or, if it does not know them, of before.
fn import(array: &Bound<'_, PyAny>) -> PyResult<ImportedDlpack> {
    let array = array.as_borrowed();
    match dlpark::python::from_dlpack(array, None, None) {
        Err(error) if error.is_instance_of::<PyTypeError>(array.py()) => {
            let capsule = array.call_method0("__dlpack__")?;
            dlpark::python::from_dlpack(capsule.as_borrowed(), None, None)
        }
        outcome => outcome,
    }
}

fn from_dlpack(imported: ImportedDlpack, access: Access) -> Result<Tensor> {
    let invalid = |error: dlpark::tensor::Error| {
        Error::new(ErrorKind::InvalidArgument, format!("the DLPack tensor is not valid: {error}"))
    };
    let described = imported.validate().map_err(invalid)?;
    let device = described.device();
    if !matches!(device.device_type, DLDeviceType::CPU | DLDeviceType::CUDAHOST) {
        return Err(on_device(device));
    }
    let dtype = dtype::from_dlpack(described.dtype())?;
    let dimensions: SmallVec<[u64; 6]> = described.shape().iter().map(|extent| extent.unsigned_abs()).collect();
    let shape = Shape::new(&dimensions)?;
    let strides: SmallVec<[i64; 6]> = described.strides_or_compact().map_err(invalid)?.iter().copied().collect();
    // SAFETY: the tensor is in host memory and alive; only the address is computed.
    let first = unsafe { described.offset_bytes_ptr() }.map_err(invalid)?;
    let first = NonNull::new(first.cast_mut()).unwrap_or(NonNull::dangling());
    // Producers of before cannot say that their memory is read-only; who names it as output says that it is not.
    let read_only = match &imported {
        ImportedDlpack::Versioned(managed) => managed.flags().contains(DlpackFlags::READ_ONLY),
        ImportedDlpack::Legacy(_) => access == Access::Read,
    };
    let owner = Box::new(Owner::of_dlpack(imported));
    // SAFETY: the producer promises the elements that shape and strides reach until its deleter is called, which the
    // owner does; nobody forms references into memory that Python may write.
    let packed = unsafe { Tensor::pack(dtype, shape, &strides, first, read_only, owner) };
    packed.and_then(|tensor| admit(tensor, first, read_only, access))
}

/// A numpy array of a dtype of ml_dtypes, taken as integers of its size and called by its name.
fn from_extension(array: &Bound<'_, PyAny>, access: Access) -> PyResult<Option<Tensor>> {
    let Ok(named) = array.getattr("dtype") else { return Ok(None) };
    let Ok(dtype) = dtype::from_python(&named)? else { return Ok(None) };
    let stand_in = match dtype {
        Dtype::Bf16 => "int16",
        Dtype::Fp8E4M3 | Dtype::Fp8E5M2 => "uint8",
        _ => return Ok(None),
    };
    let integers = tensor(&array.call_method1("view", (stand_in,))?, access)?;
    called(&integers, dtype).or_raise(array.py()).map(Some)
}

/// The error for a producer's refusal. Where a torch tensor has no elements in memory of its own, torch's is a trace of
/// its C++ code; any other failure, such as a lack of memory, is told as it is.
fn unreadable(array: &Bound<'_, PyAny>, error: PyErr) -> PyResult<PyErr> {
    let py = array.py();
    if !like::is_torch(array)? || !error.is_instance_of::<PyRuntimeError>(py) {
        return Ok(error);
    }
    let told = |name| -> PyResult<String> { array.getattr(name)?.str()?.extract() };
    let (dtype, layout, device) = (told("dtype")?, told("layout")?, told("device")?);
    if layout == "torch.strided" && device != "meta" && !array.getattr("is_quantized")?.is_truthy()? {
        return Ok(error);
    }
    let what =
        format!("a torch tensor of {dtype} with layout {layout} on device {device} has no memory that others can read");
    let error = Error::new(ErrorKind::Unsupported, what);
    Ok(errors::to_python(py, &error.hint("give what its to_dense(), dequantize() or cpu() returns")))
}

/// The same elements under another dtype of the same size.
pub(crate) fn called(tensor: &Tensor, dtype: Dtype) -> Result<Tensor> {
    Tensor::from_buffer(tensor.buffer().clone(), tensor.offset_bytes(), dtype, tensor.shape())
}

/// Lets a tensor through that may be used as asked. `first` is where the array's elements are.
fn admit(tensor: Tensor, first: NonNull<u8>, read_only: bool, access: Access) -> Result<Tensor> {
    if access == Access::Read || tensor.len_bytes() == 0 {
        return Ok(tensor);
    }
    if read_only {
        return Err(Error::new(ErrorKind::InvalidArgument, "the output array is read-only"));
    }
    if tensor.ptr() == first.as_ptr() { Ok(tensor) } else { Err(has_gaps()) }
}

fn has_gaps() -> Error {
    Error::new(ErrorKind::InvalidArgument, "the output array is not row-major and contiguous")
        .hint("receive into a contiguous array and copy from there")
}

fn immutable(array: &Bound<'_, PyAny>) -> PyErr {
    let error = Error::new(ErrorKind::InvalidArgument, "the output is a jax array, which nobody may write")
        .hint("give out= a numpy array or a sheave.Tensor, and take the result from there");
    errors::to_python(array.py(), &error)
}

fn on_device(device: DLDevice) -> Error {
    let what = format!("the tensor is on DLPack device {}:{}", device.device_type.0, device.device_id);
    Error::new(ErrorKind::Unsupported, what).hint("move it to the CPU first")
}
