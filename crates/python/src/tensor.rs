//! `sheave.Tensor`: what is received, and what is made in a node's arena.

use crate::enter::enter;
use crate::errors::{self, OrRaise};
use crate::export::{self, Handle};
use crate::link::PyLink;
use crate::{dtype, import, life, released};
use dlpark::python::{ExportRequest, export_dlpack};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Arena, Dtype, Shape, Tensor};
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// Row-major elements in memory that Python and sheave share. numpy, torch and jax look at it without a copy.
///
/// A view keeps the memory alive by itself: it outlives this object, the link and the node. While one exists, the
/// tensor cannot be sent by move.
///
/// >>> tensor = mesh.empty((2, 3), "float32")
/// >>> tensor.shape, tensor.dtype, tensor.nbytes
/// ((2, 3), 'float32', 24)
/// >>> array = tensor.numpy()
/// >>> array.ctypes.data == tensor.data_ptr
/// True
#[pyclass(name = "Tensor", module = "sheave", frozen, weakref)]
pub(crate) struct PyTensor {
    handle: Mutex<Option<Handle>>,
    source: Option<PyLink>,
    tag: Option<u64>,
}

impl PyTensor {
    pub(crate) fn new(tensor: Tensor) -> Self {
        Self { handle: Mutex::new(Some(Handle::new(tensor))), source: None, tag: None }
    }

    /// A tensor that came over a link.
    pub(crate) fn received(tensor: Tensor, source: PyLink, tag: u64) -> Self {
        Self { handle: Mutex::new(Some(Handle::new(tensor))), source: Some(source), tag: Some(tag) }
    }

    /// A tensor in an arena. Its elements are whatever lay there.
    pub(crate) fn empty(
        py: Python<'_>,
        arena: &Arena,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let dimensions = shape.extract::<u64>().map(|extent| vec![extent]).or_else(|_| shape.extract::<Vec<u64>>())?;
        let shape = Shape::new(&dimensions).or_raise(py)?;
        let dtype = dtype.map(dtype::from_python).transpose()?.transpose().or_raise(py)?.unwrap_or(Dtype::F32);
        enter(py, None, |_, _| Tensor::empty(arena, dtype, shape)).map(Self::new)
    }

    fn held(&self) -> Result<Handle> {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        handle.clone().ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, "the tensor was sent by move and is the receiver's now")
                .hint("send by copy to keep it")
        })
    }

    /// Another handle to the tensor.
    pub(crate) fn handle(&self, py: Python<'_>) -> PyResult<Tensor> {
        self.held().or_raise(py).map(Handle::into_inner)
    }

    /// The only handle, for a send by move.
    pub(crate) fn take(&self) -> Result<Tensor> {
        // Also says what is wrong when it is gone; its clone is dropped before the handles are counted.
        drop(self.held()?);
        let mut slot = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let unique = slot.as_ref().is_some_and(|handle| handle.buffer().is_unique());
        let taken = if unique { slot.take() } else { None };
        taken.map(Handle::into_inner).ok_or_else(|| {
            Error::new(ErrorKind::BufferInUse, "a tensor sent by move has views or other handles")
                .operation("send")
                .hint("drop its numpy and torch views first, or send by copy")
        })
    }

    /// As after [`PyTensor::take`], where others have handles.
    pub(crate) fn give_up(&self) {
        drop(self.handle.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Gives back what [`PyTensor::take`] took.
    pub(crate) fn put_back(&self, tensor: Tensor) {
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner) = Some(Handle::new(tensor));
    }

    /// A tensor over the same memory with a dtype that numpy itself knows.
    fn stand_in(handle: &Handle) -> Result<Self> {
        let dtype = if handle.dtype().size_bytes() == 2 { Dtype::I16 } else { Dtype::U8 };
        import::called(handle, dtype).map(Self::new)
    }
}

impl Drop for PyTensor {
    fn drop(&mut self) {
        let handle = self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(handle.take());
        // It may have been the last handle to an array of Python's.
        Python::try_attach(released::drain);
    }
}

#[pymethods]
impl PyTensor {
    /// The extent in each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.held().or_raise(py)?.shape().dimensions())
    }

    /// Name of the dtype, as numpy, torch and jax know it.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(dtype::name(self.held().or_raise(py)?.dtype()))
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.held().or_raise(py)?.len_bytes())
    }

    /// Address of the first element.
    #[getter]
    fn data_ptr(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.held().or_raise(py)?.ptr().addr())
    }

    /// The link that it came over; None for a tensor that was not received.
    #[getter]
    fn source(&self) -> Option<PyLink> {
        self.source
    }

    /// The tag that it was sent with; None for a tensor that was not received.
    #[getter]
    fn tag(&self) -> Option<u64> {
        self.tag
    }

    /// A numpy array over the same memory.
    ///
    /// bfloat16 and float8 need the package ml_dtypes.
    pub(crate) fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let handle = slf.get().held().or_raise(py)?;
        // Numpy would ask for the buffer, be refused, and try `__array__` next, which is this again.
        handle.buffer().require_current().or_raise(py)?;
        let numpy = py.import("numpy")?;
        if dtype::format(handle.dtype()).is_some() {
            return numpy.call_method1("asarray", (slf,));
        }
        let name = dtype::name(handle.dtype());
        let Ok(extension) = py.import("ml_dtypes") else {
            let error = Error::new(ErrorKind::Unsupported, format!("numpy alone has no {name}"))
                .hint("install ml_dtypes, or take torch()");
            return Err(errors::to_python(py, &error));
        };
        let integers = Bound::new(py, Self::stand_in(&handle).or_raise(py)?)?;
        numpy.call_method1("asarray", (integers,))?.call_method1("view", (extension.getattr(name)?,))
    }

    /// A torch tensor over the same memory, on the CPU. Raises Unsupported where torch is not installed.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        // Also says what is wrong when it is gone.
        slf.get().held().or_raise(py)?;
        let Ok(torch) = py.import("torch") else {
            let error = Error::new(ErrorKind::Unsupported, "torch is not installed here");
            return Err(errors::to_python(py, &error.hint("pip install torch")));
        };
        life::below(py, || torch.call_method1("from_dlpack", (slf,)))
    }

    /// numpy's way to ask for an array.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = Self::numpy(slf)?;
        let keywords = PyDict::new(slf.py());
        if let Some(dtype) = dtype {
            keywords.set_item("copy", copy.unwrap_or(false))?;
            return array.call_method("astype", (dtype,), Some(&keywords));
        }
        if copy == Some(true) { array.call_method0("copy") } else { Ok(array) }
    }

    /// A DLPack capsule over the same memory.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        let handle = self.held().or_raise(py)?;
        export_dlpack(&handle, py, ExportRequest::parse(stream, max_version, dl_device, copy)?)
    }

    /// Where it is, in the words of DLPack: (1, 0), the CPU.
    fn __dlpack_device__(&self) -> (u32, i32) {
        (1, 0)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let handle = self.held().or_raise(py)?;
        let rows = handle.shape().dimensions().first();
        rows.map(|&rows| rows as usize).ok_or_else(|| PyTypeError::new_err("a tensor without dimensions has no len()"))
    }

    fn __repr__(&self) -> String {
        match self.held() {
            Ok(handle) => format!("sheave.Tensor({}, dtype={})", handle.shape(), dtype::name(handle.dtype())),
            Err(_) => "sheave.Tensor(moved)".to_owned(),
        }
    }

    /// # Safety
    /// Called by the interpreter with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let handle = slf.get().held().or_raise(slf.py())?;
        // SAFETY: the interpreter gives a view to fill and releases it once.
        unsafe { export::fill_view(&handle, view, flags)? };
        // SAFETY: as above; the view owns this reference.
        unsafe { (*view).obj = slf.into_any().into_ptr() };
        Ok(())
    }

    /// # Safety
    /// Called by the interpreter with a view that it got here.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: it was filled above, and the interpreter releases it once.
        unsafe { export::release_view(view) };
    }
}
