//! Python's objects in the registers of workers, and what else is there as Python sees it.
//!
//! An object stays the very object from one function of Python's to the next. Whoever else reads it, a function of
//! Rust's or the controller that fetches it, gets the value that it stands for: arrays in that are the object's own
//! memory.

use crate::import::{self, Access};
use crate::released::{self, Owner};
use crate::told::told_pickled;
use crate::value::{Opener, Packed, pack};
use crate::{calls, errors, handlers};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyNone, PyTuple};
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::WeakMesh;
use sheave_net::{Part, Parts};
use sheave_rpc::IntoValue;
use sheave_session::{Arguments, Foreign, Function, Held};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// An object of Python's in a register.
pub(crate) struct PyHeld {
    object: Arc<HeldObject>,
    /// What errors call it, if it can be called.
    called: Option<Arc<str>>,
}

struct HeldObject(Option<Owner>);

impl HeldObject {
    fn bind<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        let object = self.0.as_ref().and_then(Owner::object);
        object.map_or_else(|| py.None().into_bound(py), |object| object.bind(py).clone())
    }
}

impl Drop for HeldObject {
    fn drop(&mut self) {
        drop(self.0.take());
        released::give_back_soon();
    }
}

impl PyHeld {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> Arc<Self> {
        let called = object.is_callable().then(|| name_of(object).into());
        Arc::new(Self { object: Arc::new(HeldObject(Some(Owner::of_object(object.clone().unbind())))), called })
    }

    /// The object itself.
    pub(crate) fn bind<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.object.bind(py)
    }

    /// The object as a function of this name.
    pub(crate) fn as_function(self: &Arc<Self>, name: &str) -> Function {
        let object = Arc::clone(&self.object);
        Function::new(name, move |arguments| run(&object, arguments)).with_foreign(Arc::clone(self) as _)
    }
}

impl Foreign for PyHeld {
    fn kind_name(&self) -> String {
        let name = handlers::attached(|py| self.bind(py).get_type().name().map(|name| name.to_string()));
        name.ok()
            .and_then(PyResult::ok)
            .map_or_else(|| "an object".to_owned(), |name| format!("an object of class {name}"))
    }

    fn value(&self) -> Result<(Value, Vec<Tensor>)> {
        handlers::attached(|py| {
            let packed = value_of(&self.bind(py)).and_then(|object| sent(&object));
            packed.map_err(|error| told_pickled(py, &error, "the object stands for no value"))
        })?
        .map(|Sent { value, tensors }| (value, tensors.into_iter().map(Part::into_tensor).collect()))
    }

    fn target(&self) -> Result<Tensor> {
        handlers::attached(|py| {
            // Not as a value, which may be a packed copy.
            let tensor = value_of(&self.bind(py)).and_then(|object| import::tensor(&object, Access::Write));
            tensor.map_err(|error| told_pickled(py, &error, "the object cannot be written in place"))
        })?
    }

    fn function(&self) -> Option<Function> {
        let (name, object) = (self.called.as_deref()?, Arc::clone(&self.object));
        Some(Function::new(name, move |arguments| run(&object, arguments)))
    }
}

/// What an object stands for: what it says itself, if its class has a method for that.
fn value_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match object.get_type().getattr_opt(intern!(object.py(), "__sheave_value__"))? {
        Some(method) => method.call1((object,)),
        None => Ok(object.clone()),
    }
}

/// What errors call something that is called.
fn name_of(object: &Bound<'_, PyAny>) -> String {
    let py = object.py();
    let named = object.getattr_opt(intern!(py, "__qualname__")).ok().flatten();
    let named = named.or_else(|| object.get_type().getattr_opt(intern!(py, "__qualname__")).ok().flatten());
    named.and_then(|name| name.extract().ok()).unwrap_or_else(|| "a function of Python's".to_owned())
}

/// A value on its way between controller and worker.
pub(crate) struct Sent {
    value: Value,
    tensors: Parts,
}

impl IntoValue for Sent {
    fn into_value(self, parts: &mut Parts) -> Value {
        debug_assert!(parts.is_empty(), "its tensors are counted from the first one on");
        parts.extend(self.tensors);
        self.value
    }
}

/// Makes of `object` what can be sent to a worker or from one.
pub(crate) fn sent(object: &Bound<'_, PyAny>) -> PyResult<Sent> {
    let Packed { value, tensors, refs } = pack(object)?;
    if refs.is_empty() {
        return Ok(Sent { value, tensors });
    }
    let error = Error::new(ErrorKind::InvalidArgument, "a reference is of a mesh, and means nothing in a session");
    Err(errors::to_python(object.py(), &error.hint("get the object by to_here, and send that")))
}

/// What opens values that come from the controller.
fn opener() -> Result<&'static Opener> {
    static OPENER: OnceLock<Opener> = OnceLock::new();
    match OPENER.get() {
        Some(opener) => Ok(opener),
        None => {
            let opens = calls::opens()?;
            Ok(OPENER.get_or_init(|| Opener::new(WeakMesh::default(), opens)))
        }
    }
}

/// Something of a register as Python sees it.
pub(crate) fn to_python(py: Python<'_>, held: Held) -> PyResult<Bound<'_, PyAny>> {
    match held {
        Held::Value(value, tensors) => {
            let opener = opener().map_err(|error| errors::to_python(py, &error))?;
            opener.unpack(py, value, &tensors)
        }
        Held::Function(function) => match function.foreign().and_then(of_python) {
            Some(object) => Ok(object.bind(py)),
            None => Ok(Bound::new(py, PyFunction(function))?.into_any()),
        },
        Held::Object(object) => Ok(Bound::new(py, PyWorkerObject(object))?.into_any()),
        Held::Foreign(object) => match of_python(&object) {
            Some(object) => Ok(object.bind(py)),
            None => {
                let (value, tensors) = object.value().map_err(|error| errors::to_python(py, &error))?;
                to_python(py, Held::Value(value, tensors))
            }
        },
    }
}

fn of_python(object: &Arc<dyn Foreign>) -> Option<&PyHeld> {
    (&**object as &dyn Any).downcast_ref()
}

/// What a register holds of Python's object.
pub(crate) fn from_python(object: &Bound<'_, PyAny>) -> Held {
    if object.cast_exact::<PyNone>().is_ok() {
        return Held::default();
    }
    if let Ok(function) = object.cast_exact::<PyFunction>() {
        return Held::Function(function.get().0.clone());
    }
    if let Ok(own) = object.cast_exact::<PyWorkerObject>() {
        return Held::Object(Arc::clone(&own.get().0));
    }
    Held::Foreign(PyHeld::new(object))
}

/// Calls an object on the thread of a worker.
fn run(object: &HeldObject, mut arguments: Arguments) -> Result<Held> {
    let args = arguments.take_all().collect::<Result<Vec<_>>>()?;
    handlers::attached(|py| {
        let args = args.into_iter().map(|held| to_python(py, held)).collect::<PyResult<Vec<_>>>();
        let called = args.and_then(|args| object.bind(py).call1(PyTuple::new(py, args)?));
        match called {
            Ok(result) => Ok(from_python(&result)),
            Err(error) => Err(told_pickled(py, &error, "it raised")),
        }
    })?
}

/// A function of a worker's that is not Python's: call it as any other.
///
/// >>> import sheave.session
/// >>> with sheave.session.ThreadedSession(2) as session:
/// ...     apply = session.function(lambda function, *args: function(*args))
/// ...     import_module = session.function("python.import_module")
/// ...     session.call(apply, import_module, "json").get() is None
/// True
#[pyclass(name = "Function", module = "sheave.session", frozen)]
pub(crate) struct PyFunction(pub(crate) Function);

#[pymethods]
impl PyFunction {
    /// The name by which it is found, or that errors say.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[pyo3(signature = (*args))]
    fn __call__<'py>(&self, py: Python<'py>, args: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        let args: Vec<Held> = args.iter().map(|argument| from_python(&argument)).collect();
        let called = py.detach(|| self.0.call(args));
        called.map_err(|error| errors::original(py, &error).unwrap_or_else(|| errors::raised(py, &error))).and_then(
            |held| {
                released::drain(py);
                to_python(py, held)
            },
        )
    }

    fn __repr__(&self) -> String {
        format!("<sheave.session.Function {}>", self.0.name())
    }
}

/// An object of a worker's that is not Python's: pass it to the functions that know it.
///
/// Nobody makes one in Python.
///
/// >>> import sheave.session
/// >>> sheave.session.WorkerObject()
/// Traceback (most recent call last):
/// ...
/// TypeError: ...
#[pyclass(name = "WorkerObject", module = "sheave.session", frozen)]
pub(crate) struct PyWorkerObject(Arc<dyn Any + Send + Sync>);

#[pymethods]
impl PyWorkerObject {
    fn __repr__(&self) -> &'static str {
        "<sheave.session.WorkerObject>"
    }
}
