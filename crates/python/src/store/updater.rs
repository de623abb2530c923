//! Updaters that are written in Python.
//!
//! An updater is shown the stored value where it lies, so that it writes there without a copy. What it is shown are
//! handles to that memory, each of which holds a token: while one exists that Python has made of it, a numpy view or
//! the tensor itself, the token has another owner. After the function has returned the store looks. If nobody holds a
//! token the value is the store's alone again. If somebody does, the store takes a copy and leaves the memory to
//! whoever holds it, so that nobody ever reads or writes a stored value behind the store's back.
//!
//! The sum is shown read-only: in a local store it may be the array that was pushed.

use crate::errors;
use crate::tensor::PyTensor;
use crate::told::told;
use parking_lot::Mutex;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use sheave_base::{Error, ErrorKind, Result};
use sheave_store::{Function, Key};
use sheave_tensor::{Buffer, Tensor};
use std::cell::{Cell, RefCell};
use std::ptr::{NonNull, copy_nonoverlapping};
use std::sync::Arc;

thread_local! {
    /// What the updaters of a local store have raised during the call that is under way on this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

thread_local! {
    /// Of the slice that an updater on this thread is given, where that is not the thread of the store.
    static SLICE_START: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Says where a slice begins until it is dropped.
pub(super) struct Within(Option<u64>);

impl Within {
    pub(super) fn slice(start: Option<u64>) -> Self {
        Self(SLICE_START.replace(start))
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        SLICE_START.set(self.0);
    }
}

/// Returns where in its array the slice begins that the updater on this thread is given; None where no updater runs.
#[pyfunction]
pub(super) fn slice_start() -> Option<u64> {
    SLICE_START.get().or_else(sheave_store::slice_start)
}

/// The exception that an updater has raised on this thread since the last time.
pub(crate) fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// A function that updates a store of this process, where the collector of garbage finds it: it may refer to the store.
pub(crate) struct Held(Mutex<Option<Py<PyAny>>>);

impl Held {
    pub(crate) fn new(function: Py<PyAny>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(function))))
    }

    fn get(&self, py: Python<'_>) -> Result<Py<PyAny>> {
        let function = self.0.lock().as_ref().map(|function| function.clone_ref(py));
        function.ok_or_else(|| Error::new(ErrorKind::Closed, "the store of this updater is gone"))
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Who holds the lock will let it be seen another time.
        self.0.try_lock().map_or(Ok(()), |function| visit.call(&*function))
    }

    /// Lets go of the function, with the interpreter held. Nobody has the store.
    pub(crate) fn clear(&self) {
        let function = self.0.lock().take();
        drop(function);
    }
}

/// An updater for a store of this process. It runs on the thread that pushes, which is one of Python's.
pub(crate) fn here(held: Arc<Held>) -> Function {
    Arc::new(move |key: &Key, received: &Tensor, stored: &mut Tensor| {
        // It may be written: nobody else has a part in it.
        stored.bytes_mut()?;
        Python::attach(|py| {
            let function = held.get(py)?;
            call(py, &function, key, received, stored, |error| {
                let shown = failed(py, key, &error);
                // The first one of a call is the one that is told.
                RAISED.with_borrow_mut(|raised| {
                    raised.get_or_insert(error);
                });
                shown
            })
        })
    })
}

/// What others are told of an updater that has raised something.
pub(crate) fn failed(py: Python<'_>, key: &Key, error: &PyErr) -> Error {
    told(py, error, &format!("the updater failed on key {key}"))
}

/// Shows the function a sum and the value that it is to be merged into, which the caller has for itself. `raised` is
/// told of an exception before the store looks whether Python still has something of the value: the frames of its
/// traceback have.
pub(crate) fn call(
    py: Python<'_>,
    function: &Py<PyAny>,
    key: &Key,
    received: &Tensor,
    stored: &mut Tensor,
    raised: impl FnOnce(PyErr) -> Error,
) -> Result<()> {
    let token = Arc::new(());
    let outcome = (|| {
        let received = shown(py, received, true, &token)?;
        let stored = shown(py, stored, false, &token)?;
        match key {
            Key::Int(number) => function.call1(py, (*number, received, stored)),
            Key::Str(text) => function.call1(py, (text, received, stored)),
        }
    })();
    let outcome = outcome.map(drop).map_err(raised);
    if Arc::strong_count(&token) > 1 {
        *stored = copied(stored)?;
    }
    outcome
}

/// The tensor as Python gets it: the same memory, and the token until Python lets go of it.
fn shown(py: Python<'_>, tensor: &Tensor, read_only: bool, token: &Arc<()>) -> PyResult<Py<PyTensor>> {
    let start = NonNull::new(tensor.ptr()).unwrap_or(NonNull::dangling());
    let owner = Box::new((tensor.clone(), Arc::clone(token)));
    // SAFETY: the memory lives as long as the handle in the owner. While Python has it the store waits for the function
    // and forms no references into it; what Python keeps afterwards is no store's any more.
    let buffer = unsafe { Buffer::foreign(start, tensor.len_bytes(), read_only, owner) };
    let same = Tensor::from_buffer(buffer, 0, tensor.dtype(), tensor.shape());
    Py::new(py, PyTensor::new(same.map_err(|error| errors::to_python(py, &error))?))
}

/// The same elements in memory of their own.
fn copied(tensor: &Tensor) -> Result<Tensor> {
    let mut copy = Tensor::private(tensor.dtype(), tensor.shape())?;
    let target = copy.bytes_mut()?.as_mut_ptr();
    // SAFETY: both have that many bytes, and the copy is new. Whoever in Python still writes the source while it is
    // copied gets torn elements, as with every array that is in use.
    unsafe { copy_nonoverlapping(tensor.ptr(), target, tensor.len_bytes()) };
    Ok(copy)
}

/// What a call on a local store raises: the error, because of what the updater raised; or that itself, if it is no
/// error but the wish to end, as Ctrl-C's is.
pub(crate) fn because(py: Python<'_>, error: &Error) -> PyErr {
    let shown = errors::to_python(py, error);
    match raised() {
        Some(cause) if cause.is_instance_of::<PyException>(py) => {
            shown.set_cause(py, Some(cause));
            shown
        }
        Some(wish) => wish,
        None => shown,
    }
}
