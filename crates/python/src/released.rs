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

use pyo3::prelude::*;
use pyo3::{PyErr, ffi};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A claim on memory of Python's, given back with the interpreter held.
pub(crate) enum Claim {
    /// An export of the buffer protocol.
    Buffer(Box<ffi::Py_buffer>),
    /// A tensor imported through DLPack.
    Dlpack(dlpark::python::ImportedDlpack),
}

// SAFETY: a claim is only moved about by threads without the interpreter; it is looked into and given back by `drain`
// and `give_back`, which have a token. CPython lets any attached thread release a buffer.
unsafe impl Send for Claim {}
// SAFETY: nothing can be done with a shared claim.
unsafe impl Sync for Claim {}

impl Claim {
    fn give_back(self, _py: Python<'_>) {
        match self {
            // SAFETY: the view was filled by a successful `PyObject_GetBuffer`, and a claim is given back once.
            Self::Buffer(mut view) => unsafe { ffi::PyBuffer_Release(&raw mut *view) },
            Self::Dlpack(imported) => drop(imported),
        }
    }
}

/// Holds a claim as long as a buffer of ours lives.
pub(crate) struct Owner(Option<Claim>);

impl Owner {
    pub(crate) fn new(claim: Claim) -> Self {
        Self(Some(claim))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(claim) = self.0.take() {
            push(claim);
        }
    }
}

struct Entry {
    claim: Claim,
    next: *mut Entry,
}

/// The address of the latest entry; zero when there is none.
static HEAD: AtomicUsize = AtomicUsize::new(0);

fn push(claim: Claim) {
    let entry = Box::into_raw(Box::new(Entry { claim, next: null_mut() }));
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

/// Gives back everything that was dropped since the last time. Cheap when there is nothing.
pub(crate) fn drain(py: Python<'_>) {
    if HEAD.load(Ordering::Relaxed) == 0 {
        return;
    }
    // Giving back may run Python code, which must not find an exception that somebody is about to raise.
    let raised = PyErr::take(py);
    let mut next: *mut Entry = with_exposed_provenance_mut(HEAD.swap(0, Ordering::Acquire));
    while !next.is_null() {
        // SAFETY: the swap made this thread the only owner of the list, whose entries were boxed by `push`.
        let entry = unsafe { Box::from_raw(next) };
        next = entry.next;
        entry.claim.give_back(py);
    }
    if let Some(raised) = raised {
        raised.restore(py);
    }
}
