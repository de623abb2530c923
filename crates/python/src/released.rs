//! What belongs to Python and was dropped where the interpreter is not held.
//!
//! The last handle of a numpy array's memory may be dropped by a progress thread. Giving the array back needs the
//! interpreter, and no such thread may wait for it; so it pushes the owner onto this stack, and whoever next enters
//! from Python gives back what lies there. What is left when the interpreter ends is leaked on purpose.
//!
//! The stack is a list with one atomic head: a push swings the head to a new node, a drain takes the whole list at
//! once. Nobody ever waits for somebody else's half-done step, not even in a child that was forked in the middle of
//! one, which is why a queue with slots to be filled would not do. Taking all at once leaves no room for the ABA
//! problem: no node is unlinked alone.

use crate::handlers;
use pyo3::prelude::*;
use pyo3::{PyErr, ffi};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A claim on memory of Python's, given back with the interpreter held.
enum Claim {
    /// An export of the buffer protocol.
    Buffer(ffi::Py_buffer),
    /// A tensor imported through DLPack.
    Dlpack(Option<dlpark::python::ImportedDlpack>),
    /// An object that others had references to.
    Object(Option<Py<PyAny>>),
}

impl Claim {
    fn give_back(&mut self, _py: Python<'_>) {
        match self {
            // SAFETY: the view was filled by a successful `PyObject_GetBuffer`, stands where it stood then, and a claim
            // is given back once.
            Self::Buffer(view) => unsafe { ffi::PyBuffer_Release(&raw mut *view) },
            Self::Dlpack(imported) => drop(imported.take()),
            Self::Object(object) => drop(object.take()),
        }
    }
}

/// A claim where it stays until it is given back: exporters may point into their views.
struct Entry {
    claim: Claim,
    next: *mut Entry,
}

impl Entry {
    fn new(claim: Claim) -> Box<Self> {
        Box::new(Self { claim, next: null_mut() })
    }
}

/// Holds a claim as long as a buffer of ours lives.
pub(crate) struct Owner(Option<Box<Entry>>);

// SAFETY: a claim is only moved about by threads without the interpreter; it is looked into and given back by `drain`,
// which has a token. CPython lets any attached thread release a buffer.
unsafe impl Send for Owner {}
// SAFETY: nothing can be done with a shared owner without the interpreter.
unsafe impl Sync for Owner {}

impl Owner {
    pub(crate) fn of_dlpack(imported: dlpark::python::ImportedDlpack) -> Self {
        Self(Some(Entry::new(Claim::Dlpack(Some(imported)))))
    }

    pub(crate) fn of_object(object: Py<PyAny>) -> Self {
        Self(Some(Entry::new(Claim::Object(Some(object)))))
    }

    /// The object of an owner of one.
    pub(crate) fn object(&self) -> Option<&Py<PyAny>> {
        match self.0.as_ref().map(|entry| &entry.claim) {
            Some(Claim::Object(object)) => object.as_ref(),
            _ => None,
        }
    }

    /// A view of an array that exports its buffer, for reading or writing, whatever its layout.
    pub(crate) fn of_buffer(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut entry = Entry::new(Claim::Buffer(ffi::Py_buffer::new()));
        let Claim::Buffer(view) = &mut entry.claim else { unreachable!("it was made so") };
        // SAFETY: the interpreter is held, and the view stays where it is until it is given back.
        let status = unsafe { ffi::PyObject_GetBuffer(array.as_ptr(), &raw mut *view, ffi::PyBUF_RECORDS_RO) };
        if status == 0 { Ok(Self(Some(entry))) } else { Err(PyErr::fetch(array.py())) }
    }

    /// The view of an owner of a buffer; null for any other. It stays where it is for as long as the owner lives.
    pub(crate) fn view(&self) -> *const ffi::Py_buffer {
        match self.0.as_ref().map(|entry| &entry.claim) {
            Some(Claim::Buffer(view)) => view,
            _ => std::ptr::null(),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(entry) = self.0.take() {
            push(entry);
        }
    }
}

/// The address of the latest entry; zero when there is none.
static HEAD: AtomicUsize = AtomicUsize::new(0);

fn push(entry: Box<Entry>) {
    let entry = Box::into_raw(entry);
    let mut head = HEAD.load(Ordering::Relaxed);
    loop {
        // SAFETY: the entry is ours alone until the exchange below succeeds.
        unsafe { (*entry).next = with_exposed_provenance_mut(head) };
        match HEAD.compare_exchange_weak(head, entry.expose_provenance(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(current) => head = current,
        }
    }
}

/// How long what was dropped may wait for somebody who enters from Python anyway.
const ENTRY_PATIENCE: Duration = Duration::from_millis(20);

/// What a thread is told that gives back what nobody else does.
struct Sent {
    is_wanted: bool,
    has_thread: bool,
}

static SENT: Mutex<Sent> = Mutex::new(Sent { is_wanted: false, has_thread: false });
static SENT_CHANGED: Condvar = Condvar::new();
static IS_SENT: AtomicBool = AtomicBool::new(false);

/// Has what was dropped given back soon, where perhaps nobody enters from Python for hours: on a worker that waits for
/// commands. Never waits for the interpreter.
pub(crate) fn give_back_soon() {
    if IS_SENT.swap(true, Ordering::SeqCst) {
        return;
    }
    let mut sent = SENT.lock().unwrap_or_else(PoisonError::into_inner);
    sent.is_wanted = true;
    sent.has_thread = sent.has_thread || sheave_base::thread::spawn("sheave-release", give_back).is_ok();
    SENT_CHANGED.notify_one();
}

fn give_back() {
    loop {
        let sent = SENT.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = SENT_CHANGED.wait_while(sent, |sent| !sent.is_wanted);
        sent.unwrap_or_else(PoisonError::into_inner).is_wanted = false;
        std::thread::sleep(ENTRY_PATIENCE);
        // What is dropped from here on sends again.
        IS_SENT.store(false, Ordering::SeqCst);
        if HEAD.load(Ordering::SeqCst) != 0 && handlers::attached(drain).is_err() {
            // The interpreter ends; what is left is leaked.
            return;
        }
    }
}

/// Gives back everything that was dropped since the last time. Cheap when there is nothing.
pub(crate) fn drain(py: Python<'_>) {
    if HEAD.load(Ordering::Relaxed) == 0 {
        return;
    }
    // Giving back may run Python code, which must not find an exception that somebody is about to raise.
    let raised = PyErr::occurred(py).then(|| PyErr::take(py)).flatten();
    let mut next: *mut Entry = with_exposed_provenance_mut(HEAD.swap(0, Ordering::Acquire));
    while !next.is_null() {
        // SAFETY: the swap made this thread the only owner of the list, whose entries were boxed before `push`.
        let mut entry = unsafe { Box::from_raw(next) };
        next = entry.next;
        entry.claim.give_back(py);
    }
    if let Some(raised) = raised {
        raised.restore(py);
    }
}
