//! Works in asyncio.
//!
//! A loop that awaits works gets one event descriptor, which it watches as it watches its sockets. The thread that ends
//! a work puts it into the loop's tray and rings, without the interpreter; the loop then takes everything out at once
//! and settles the futures. So a thousand works cost one descriptor, and no thread of sheave waits for Python.
//!
//! A tray lives as long as its loop: the loop's watch of the descriptor holds it, and the table of inboxes is keyed by
//! loop weakly. What arrives for a loop that was closed meanwhile is dropped when the next loop gets its inbox.

use crate::errors::OrRaise;
use crate::work::PyWork;
use crate::{life, released};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use rustix::event::{EventfdFlags, eventfd};
use sheave_base::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// A work that has ended, and the future of whoever awaits it.
struct Arrival {
    future: Py<PyAny>,
    work: Py<PyWork>,
}

struct Tray {
    bell: OwnedFd,
    arrivals: Mutex<Vec<Arrival>>,
}

impl Tray {
    fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts one in and rings if nobody has since the tray was emptied. From any thread, without the interpreter.
    fn put(&self, arrival: Arrival) {
        let mut arrivals = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.push(arrival);
        let is_first = arrivals.len() == 1;
        drop(arrivals);
        if is_first {
            // It would fail only if it had been rung 2^64 times.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }
}

/// Where works arrive for one loop.
#[pyclass(module = "sheave._core", frozen)]
struct Inbox(Arc<Tray>);

#[pymethods]
impl Inbox {
    /// Settles the futures of all that have arrived. The loop calls it when the bell rings.
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        // First the bell, then the tray: whoever puts something in afterwards rings again.
        let _ = rustix::io::read(&self.0.bell, &mut [0_u8; 8]);
        let arrivals = self.0.take();
        if life::is_ending() {
            // Nobody goes on any more, and to let go of them may run Python code.
            std::mem::forget(arrivals);
            return Ok(());
        }
        life::below(py, || {
            let mut failure = None;
            for Arrival { future, work } in arrivals {
                if let Err(error) = settle(future.bind(py), work.get()) {
                    failure = Some(error);
                }
            }
            released::drain(py);
            failure.map_or(Ok(()), Err)
        })
    }
}

fn settle(future: &Bound<'_, PyAny>, work: &PyWork) -> PyResult<()> {
    let py = future.py();
    // Who awaited it may have been cancelled; the operation went on.
    if future.call_method0("done")?.is_truthy()? {
        return Ok(());
    }
    let error = match work.outcome(py).to_python(py) {
        Ok(value) => return future.call_method1("set_result", (value,)).map(drop),
        Err(error) => error.into_value(py),
    };
    let refused = match future.call_method1("set_exception", (&error,)) {
        Ok(_) => return Ok(()),
        Err(refused) => refused,
    };
    // A future takes no StopIteration, which would end the coroutine that awaits it as if it had returned.
    let instead = PyRuntimeError::new_err(format!("what was awaited raised {}", error.bind(py).repr()?));
    instead.set_cause(py, Some(PyErr::from_value(error.into_bound(py).into_any())));
    future.call_method1("set_exception", (instead.into_value(py),)).map_err(|_| refused).map(drop)
}

/// A future of the running loop that has the work's outcome once it has ended.
pub(crate) fn future<'py>(work: &Bound<'py, PyWork>) -> PyResult<Bound<'py, PyAny>> {
    life::below(work.py(), || made(work))
}

fn made<'py>(work: &Bound<'py, PyWork>) -> PyResult<Bound<'py, PyAny>> {
    let py = work.py();
    let running = running_loop(py)?;
    let future = running.call_method0("create_future")?;
    if work.get().is_done() {
        settle(&future, work.get())?;
        return Ok(future);
    }
    let tray = tray(&running)?;
    let arrival = Arrival { future: future.clone().unbind(), work: work.clone().unbind() };
    work.get().listen(Box::new(move || tray.put(arrival)));
    Ok(future)
}

fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static FUNCTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    FUNCTION.import(py, "asyncio", "get_running_loop")?.call0()
}

/// The tray of a loop, which is made and watched if it has none yet.
fn tray(running: &Bound<'_, PyAny>) -> PyResult<Arc<Tray>> {
    static INBOXES: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = running.py();
    let inboxes = match INBOXES.get(py) {
        Some(inboxes) => inboxes.bind(py).clone(),
        None => {
            let made = py.import("weakref")?.call_method0("WeakKeyDictionary")?.unbind();
            INBOXES.get_or_init(py, || made).bind(py).clone()
        }
    };
    let known = inboxes.call_method1("get", (running,))?;
    if !known.is_none() {
        return Ok(Arc::clone(&known.cast::<Inbox>()?.get().0));
    }
    for entry in inboxes.call_method0("items")?.try_iter()?.collect::<PyResult<Vec<_>>>()? {
        let (other, inbox) = entry.extract::<(Bound<'_, PyAny>, Bound<'_, Inbox>)>()?;
        if other.call_method0("is_closed")?.is_truthy()? {
            drop(inbox.get().0.take());
        }
    }
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let bell = bell.map_err(|error| Error::from(std::io::Error::from(error)).operation("await")).or_raise(py)?;
    let number = bell.as_raw_fd();
    let tray = Arc::new(Tray { bell, arrivals: Mutex::default() });
    let inbox = Bound::new(py, Inbox(Arc::clone(&tray)))?;
    running.call_method1("add_reader", (number, &inbox))?;
    inboxes.set_item(running, inbox)?;
    Ok(tray)
}
