//! Tensors out: the buffer protocol and DLPack, over the same memory.
//!
//! Every export owns a handle to the tensor. So a view outlives the `Tensor` object, the link and the node, and while
//! it exists the buffer has another handle, which refuses a send by move. Read-only memory may be written by somebody
//! else when nobody looks at it any more (pushes that land in registered memory); so an export of it also owns the
//! right to read, and while it exists nothing lands there.

use crate::guarded::Guarded;
use crate::{dtype, errors};
use dlpark::ffi::{DLDevice, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::metadata::Dynamic;
use dlpark::python::{DlpackExporter, ExportRequest};
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use sheave_tensor::{ReadLease, Tensor};
use std::ffi::c_int;

/// A handle to a tensor that is never given back by a forked child.
pub(crate) type Handle = Guarded<Tensor>;

/// A tensor that somebody else looks at.
struct Seen {
    _handle: Handle,
    _lease: Option<Guarded<ReadLease>>,
}

impl Seen {
    fn new(handle: &Handle) -> PyResult<Self> {
        let buffer = handle.buffer();
        let lease = if buffer.is_read_only() { Some(buffer.read_lease("an array of Python")) } else { None };
        let lease = lease.transpose().map_err(|error| Python::attach(|py| errors::to_python(py, &error)))?;
        Ok(Self { _handle: handle.clone(), _lease: lease.map(Guarded::new) })
    }
}

/// What a view of the buffer protocol points into.
struct Export {
    _seen: Seen,
    shape: Vec<isize>,
    strides: Vec<isize>,
}

/// Fills `view` for a consumer that asked with `flags`. The exporting object is added by the caller.
///
/// # Safety
/// `view` is writable, and [`release_view`] is called with it exactly once if this returns `Ok`.
pub(crate) unsafe fn fill_view(handle: &Handle, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
    let asked = |flag: c_int| flags & flag == flag;
    let (dtype, read_only) = (handle.dtype(), handle.buffer().is_read_only());
    if asked(ffi::PyBUF_WRITABLE) && read_only {
        return Err(PyBufferError::new_err("the tensor is read-only"));
    }
    let format = match dtype::format(dtype) {
        Some(format) => format.as_ptr(),
        None if asked(ffi::PyBUF_FORMAT) => {
            let what = format!("the buffer protocol has no word for {}; use DLPack or numpy()", dtype::name(dtype));
            return Err(PyBufferError::new_err(what));
        }
        None => std::ptr::null(),
    };
    let shape: Vec<isize> = handle.shape().dimensions().iter().map(|&extent| extent as isize).collect();
    let item_bytes = dtype.size_bytes() as isize;
    let mut strides = vec![item_bytes; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].wrapping_mul(shape[axis].max(1));
    }
    let (start, len_bytes) = (handle.ptr(), handle.len_bytes() as isize);
    let export = Box::new(Export { _seen: Seen::new(handle)?, shape, strides });
    // SAFETY: the view is the caller's to fill; what it points into lives in the export until `release_view`.
    unsafe {
        (*view).buf = start.cast();
        (*view).len = len_bytes;
        (*view).itemsize = item_bytes;
        (*view).readonly = c_int::from(read_only);
        (*view).ndim = export.shape.len() as c_int;
        (*view).format = if asked(ffi::PyBUF_FORMAT) { format.cast_mut() } else { std::ptr::null_mut() };
        (*view).shape = if asked(ffi::PyBUF_ND) { export.shape.as_ptr().cast_mut() } else { std::ptr::null_mut() };
        (*view).strides =
            if asked(ffi::PyBUF_STRIDES) { export.strides.as_ptr().cast_mut() } else { std::ptr::null_mut() };
        (*view).suboffsets = std::ptr::null_mut();
        (*view).internal = Box::into_raw(export).cast();
    }
    Ok(())
}

/// Ends a view.
///
/// # Safety
/// `view` was filled by [`fill_view`] and is ended once.
pub(crate) unsafe fn release_view(view: *mut ffi::Py_buffer) {
    // SAFETY: `fill_view` left a boxed export there.
    drop(unsafe { Box::from_raw((*view).internal.cast::<Export>()) });
}

fn managed<M: ManagedTensorBase>(handle: &Handle) -> PyResult<Managed<M>> {
    let refused = |error: String| PyBufferError::new_err(error);
    let prepared = Dynamic::compact(handle.shape().dimensions()).prepare_as::<M>();
    let prepared = prepared.map_err(|error| refused(error.to_string()))?;
    let mut initialized = prepared.initialize(Box::new(Seen::new(handle)?));
    let start = if handle.len_bytes() == 0 { std::ptr::null_mut() } else { handle.ptr() };
    initialized.set_data(start.cast()).set_device(DLDevice::CPU).set_dtype(dtype::to_dlpack(handle.dtype()));
    // Legacy tensors carry no flags; a request for one of a read-only tensor was refused before.
    let _ = initialized.set_flags(handle.flags());
    // SAFETY: pointer, shape, dtype and flags describe the tensor's memory, which the context holds.
    Ok(unsafe { initialized.finish() })
}

impl DlpackExporter for Handle {
    fn device(&self) -> DLDevice {
        DLDevice::CPU
    }

    fn flags(&self) -> DlpackFlags {
        if self.buffer().is_read_only() { DlpackFlags::READ_ONLY } else { DlpackFlags::empty() }
    }

    fn prepare_export(&self, _py: Python<'_>, _request: &ExportRequest<'_>) -> PyResult<()> {
        Ok(())
    }

    fn export_legacy(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensor>> {
        managed(self)
    }

    fn export_versioned(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensorVersioned>> {
        managed(self)
    }
}
