//! Particles of this process by their numbers: their objects, and the functions that handle their messages.

use super::parcel::{Exchange, Outcome, Parcel};
use crate::calls::arguments;
use crate::released::Owner;
use crate::told::told_shortly;
use crate::value::Opener;
use crate::{enter, handlers};
use parking_lot::Mutex;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sheave_base::collections::HashMap;
use sheave_base::{Error, ErrorKind, Result};
use std::cell::Cell;
use std::sync::{Arc, Weak};

/// A function that handles messages of one name. Its lock, as those below, is taken with the interpreter held, but by
/// drops, and no Python code runs below it.
pub(crate) struct Function(Mutex<Option<Py<PyAny>>>);

impl Function {
    fn get(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.0.lock().as_ref().map(|function| function.clone_ref(py))
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        drop(self.0.get_mut().take().map(Owner::of_object));
    }
}

/// A particle of Python.
pub(crate) struct Seat {
    /// What its handlers get.
    object: Mutex<Option<Py<PyAny>>>,
    functions: Mutex<HashMap<String, Arc<Function>>>,
}

impl Seat {
    pub(crate) fn new(object: Py<PyAny>) -> Arc<Self> {
        Arc::new(Self { object: Mutex::new(Some(object)), functions: Mutex::default() })
    }

    /// Has the particle handle messages of this name by a function from now on.
    pub(crate) fn register(&self, name: &str, function: Py<PyAny>) -> Arc<Function> {
        let function = Arc::new(Function(Mutex::new(Some(function))));
        let before = self.functions.lock().insert(name.to_owned(), Arc::clone(&function));
        drop(before);
        function
    }

    fn get(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.object.lock().as_ref().map(|object| object.clone_ref(py))
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Who holds a lock will let it be seen another time.
        if let Some(object) = self.object.try_lock() {
            visit.call(&*object)?;
        }
        let Some(functions) = self.functions.try_lock() else { return Ok(()) };
        for function in functions.values() {
            if let Some(function) = function.0.try_lock() {
                visit.call(&*function)?;
            }
        }
        Ok(())
    }

    /// Lets go of what is Python's, with the interpreter held.
    fn clear(&self) {
        let object = self.object.lock().take();
        let functions = std::mem::take(&mut *self.functions.lock());
        drop(object);
        for function in functions.into_values() {
            let function = function.0.lock().take();
            drop(function);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        drop(self.object.get_mut().take().map(Owner::of_object));
    }
}

/// The particles of a runtime.
#[derive(Default)]
pub(crate) struct Table(Mutex<HashMap<u64, Arc<Seat>>>);

impl Table {
    pub(crate) fn insert(&self, number: u64, seat: Arc<Seat>) {
        let before = self.0.lock().insert(number, seat);
        drop(before);
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<Seat>> {
        self.0.lock().get(&number).cloned()
    }

    /// Takes a particle out, with the interpreter held. A handler of it that runs has its own references.
    pub(crate) fn remove(&self, number: u64) {
        let seat = self.0.lock().remove(&number);
        if let Some(seat) = seat {
            seat.clear();
        }
    }

    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Some(seats) = self.0.try_lock() else { return Ok(()) };
        seats.values().try_for_each(|seat| seat.traverse(visit))
    }

    /// Lets go of all particles, with the interpreter held.
    pub(crate) fn clear(&self) {
        let seats = std::mem::take(&mut *self.0.lock());
        for seat in seats.into_values() {
            seat.clear();
        }
    }
}

thread_local! {
    /// How many handlers of Python this thread runs, one within the other.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Ctrl-C has ended a handler for which whoever waits here does not wait.
    static IS_INTERRUPTED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a handler.
pub(crate) fn is_handling() -> bool {
    DEPTH.get() > 0
}

/// Whether Ctrl-C has ended a handler on this thread, which is said once.
pub(crate) fn was_interrupted() -> bool {
    IS_INTERRUPTED.take()
}

struct Deeper;

impl Deeper {
    fn new() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self
    }
}

impl Drop for Deeper {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

fn removed() -> Error {
    Error::new(ErrorKind::NotFound, "the particle was removed")
}

/// Handles a message by a function.
pub(crate) fn handle(seat: &Weak<Seat>, function: &Function, opener: &Opener, parcel: Parcel) -> Result<Parcel> {
    let seat = seat.upgrade().ok_or_else(removed)?;
    handlers::attached(|py| {
        let (Some(function), Some(particle)) = (function.get(py), seat.get(py)) else { return Err(removed()) };
        let _deeper = Deeper::new();
        let (function, particle) = (function.bind(py), particle.bind(py));
        match parcel {
            Parcel::Here(exchange) => {
                let result = called_here(function, particle, &exchange);
                if let Err(error) = &result
                    && error.is_instance_of::<PyKeyboardInterrupt>(py)
                    && enter::is_main_thread()
                {
                    IS_INTERRUPTED.set(true);
                }
                // Whoever waits gets the exception itself; the error is for those who look for what nobody waits for.
                let failure = result.as_ref().err().map(|error| told_shortly(py, error, "the handler raised"));
                exchange.put(py, Outcome::of(py, result.map(Bound::unbind)));
                failure.map_or(Ok(Parcel::Answered), Err)
            }
            Parcel::Come(value, tensors) => {
                opener.check(&value)?;
                let result = opener.unpack(py, value, &tensors).and_then(|args| {
                    let (args, keywords) = arguments(args)?;
                    function.call(with_first(particle, &args)?, keywords.as_ref())
                });
                Parcel::answer(py, result)
            }
            Parcel::Answered | Parcel::Leaving(_) => Err(Error::new(ErrorKind::Internal, "a message without contents")),
        }
    })?
}

fn called_here<'py>(
    function: &Bound<'py, PyAny>,
    particle: &Bound<'py, PyAny>,
    exchange: &Exchange,
) -> PyResult<Bound<'py, PyAny>> {
    let py = function.py();
    let (args, keywords) = match exchange.take(py) {
        Some((args, keywords)) => (args.into_bound(py), keywords.map(|keywords| keywords.into_bound(py))),
        None => (PyTuple::empty(py), None::<Bound<'py, PyDict>>),
    };
    function.call(with_first(particle, &args)?, keywords.as_ref())
}

/// Arguments with the particle before them.
fn with_first<'py>(particle: &Bound<'py, PyAny>, args: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyTuple>> {
    if args.is_empty() {
        return PyTuple::new(particle.py(), [particle]);
    }
    let mut all = Vec::with_capacity(args.len() + 1);
    all.push(particle.clone());
    all.extend(args.iter());
    PyTuple::new(particle.py(), all)
}
