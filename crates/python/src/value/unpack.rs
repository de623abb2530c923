//! Values, made into what Python has.

use super::{BYTES, COMPLEX, FROZENSET, GLOBAL, PICKLE, READ_ONLY, SHEAVE, STR, TORCH, pickling};
use crate::errors::{self, OrRaise};
use crate::references::PyRef;
use crate::tensor::PyTensor;
use crate::{dtype, life};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyComplex, PyDict, PyFrozenSet, PyList, PySet, PyString, PyTuple};
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_mesh::{Mesh, WeakMesh};
use sheave_tensor::{Dtype, Tensor};
use sheave_wire::Value;
use std::cell::RefCell;

/// Whether pickles are opened, or why they are not.
pub(crate) type Opens = Result<()>;

/// What opens the values that others have sent.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) mesh: WeakMesh,
    /// Whether this process opens any.
    setting: Opens,
    /// Whether it opens those of the node that the values are from.
    opens: Opens,
}

impl Opener {
    /// Opens what comes from whomever this node trusts, where this process opens any; see [`Opener::of`].
    pub(crate) fn new(mesh: WeakMesh, setting: Opens) -> Self {
        Self { mesh, opens: setting.clone(), setting }
    }

    /// Opens what comes from that node: a member, the host of this guest, or a guest that this process has started.
    pub(crate) fn of(&self, node: NodeId) -> Self {
        let opens = self.setting.clone().and_then(|()| self.trusted(node));
        Self { opens, ..self.clone() }
    }

    /// Fails unless this node trusts that one.
    pub(crate) fn trusted(&self, node: NodeId) -> Result<()> {
        let mesh = self.mesh()?;
        if mesh.trusts(node) {
            return Ok(());
        }
        let what = "it is a guest that its host has not started itself, from which no pickles are opened";
        let error = Error::new(ErrorKind::NotPermitted, what).hint("start guests with sheave.Fleet");
        Err(mesh.peer_of(node).map_or(error.clone(), |peer| error.peer(peer)))
    }

    /// For values from elsewhere.
    fn anew(&self) -> Self {
        Self { opens: self.setting.clone(), ..self.clone() }
    }

    /// The mesh that values come over.
    pub(crate) fn mesh(&self) -> Result<Mesh> {
        self.mesh.upgrade().ok_or_else(|| Error::new(ErrorKind::Closed, "this node has left the mesh"))
    }

    /// Fails where no pickles are opened and there is one in the value.
    pub(crate) fn check(&self, value: &Value) -> Result<()> {
        let Err(refusal) = &self.opens else { return Ok(()) };
        value.try_visit(&mut |value| match value {
            Value::Pickle(_) => Err(refusal.clone()),
            Value::Tagged(tagged) if tagged.0 == PICKLE || tagged.0 == GLOBAL => Err(refusal.clone()),
            _ => Ok(()),
        })
    }

    /// Returns what looks for the exception of a failed call: one of the user's own, where pickles are opened.
    pub(crate) fn explanation(&self) -> impl Fn(Python<'_>, &Error) -> Option<PyErr> + Send + Sync + use<> {
        let opens = self.opens.is_ok();
        move |py, error| if opens { errors::original(py, error) } else { None }
    }

    /// Makes what a value means. `tensors` are those of its message, and its references live as long as that.
    ///
    /// Raises NotPermitted for a pickle where none are opened, and whatever a pickle raises.
    pub(crate) fn unpack<'py>(&self, py: Python<'py>, value: Value, tensors: &[Tensor]) -> PyResult<Bound<'py, PyAny>> {
        Unpacker { py, tensors, opener: self, read_only: false }.object(value)
    }

    /// As [`Opener::unpack`], for memory that others have too: arrays outside of pickles are read-only.
    pub(crate) fn unpack_read_only<'py>(
        &self,
        py: Python<'py>,
        value: Value,
        tensors: &[Tensor],
    ) -> PyResult<Bound<'py, PyAny>> {
        Unpacker { py, tensors, opener: self, read_only: true }.object(value)
    }
}

struct Unpacker<'a, 'py> {
    py: Python<'py>,
    tensors: &'a [Tensor],
    opener: &'a Opener,
    read_only: bool,
}

impl<'py> Unpacker<'_, 'py> {
    fn object(&self, value: Value) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        Ok(match value {
            Value::None => py.None().into_bound(py),
            Value::Bool(truth) => truth.into_pyobject(py)?.to_owned().into_any(),
            Value::Int(number) => number.into_pyobject(py)?.into_any(),
            Value::Float(number) => number.into_pyobject(py)?.into_any(),
            Value::Str(text) => PyString::new(py, &text).into_any(),
            Value::Bytes(bytes) => PyBytes::new(py, &bytes).into_any(),
            Value::Integer(bytes) => self.integer(&bytes)?,
            Value::Dtype(code) => self.numpy_dtype(code)?,
            Value::Scalar { dtype, bytes } => self.scalar(dtype, &bytes)?,
            Value::Device { kind, index } => (kind, index).into_pyobject(py)?.into_any(),
            Value::Shape(dimensions) => PyTuple::new(py, dimensions)?.into_any(),
            Value::Tensor(index) if self.read_only => self.read_only(index)?,
            Value::Tensor(index) => PyTensor::numpy(&self.tensor(index)?)?,
            Value::List(items) => PyList::new(py, self.objects(items)?)?.into_any(),
            Value::Tuple(items) => PyTuple::new(py, self.objects(items)?)?.into_any(),
            Value::Set(items) => PySet::new(py, self.objects(items)?)?.into_any(),
            Value::Map(entries) => {
                let dict = PyDict::new(py);
                for (name, item) in entries {
                    dict.set_item(name, self.object(item)?)?;
                }
                dict.into_any()
            }
            Value::Dict(entries) => {
                let dict = PyDict::new(py);
                for (key, item) in entries {
                    dict.set_item(self.object(key)?, self.object(item)?)?;
                }
                dict.into_any()
            }
            Value::Slice(bounds) => {
                let [start, stop, step] = *bounds;
                let bounds = (self.object(start)?, self.object(stop)?, self.object(step)?);
                py.import("builtins")?.getattr("slice")?.call1(bounds)?
            }
            Value::Tagged(tagged) => self.tagged(&tagged.0, tagged.1)?,
            pickle @ Value::Pickle(_) => self.opened(vec![pickle])?,
            name @ Value::Ref { .. } => self.reference(&name)?,
        })
    }

    fn objects(&self, items: Vec<Value>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        items.into_iter().map(|item| self.object(item)).collect()
    }

    fn error(&self, kind: ErrorKind, what: impl Into<std::borrow::Cow<'static, str>>) -> PyErr {
        errors::to_python(self.py, &Error::new(kind, what))
    }

    /// What a language has a class of its own for; the inner value where this one does not know it.
    fn tagged(&self, tag: &str, value: Value) -> PyResult<Bound<'py, PyAny>> {
        match (tag, value) {
            (PICKLE, Value::List(items)) => self.opened(items),
            (GLOBAL, Value::Str(name)) => self.global(&name),
            (READ_ONLY, Value::Tensor(index)) => self.read_only(index),
            (SHEAVE, Value::Tensor(index)) => Ok(self.tensor(index)?.into_any()),
            (TORCH, Value::Tensor(index)) => self.torch(index),
            (BYTES, Value::Tensor(index)) => Ok(self.bytes(index)?.into_any()),
            (STR, Value::Tensor(index)) => self.bytes(index)?.call_method0("decode"),
            (FROZENSET, Value::Set(items)) => Ok(PyFrozenSet::new(self.py, self.objects(items)?)?.into_any()),
            (COMPLEX, Value::Scalar { dtype, bytes }) if dtype == Dtype::Complex128.code() => {
                let part = |at: usize| f64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
                Ok(PyComplex::from_doubles(self.py, part(0), part(8)).into_any())
            }
            (_, value) => self.object(value),
        }
    }

    /// A function or a class by its name, whose module is imported if it was not.
    fn global(&self, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.opener.opens.clone().or_raise(self.py)?;
        let Some((module, path)) = name.split_once(':') else {
            return Err(self.error(ErrorKind::Protocol, format!("a function of the name {name:?}")));
        };
        let known = self.py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?.get_item(module)?;
        let module = match known {
            Some(module) => module,
            None => life::below(self.py, || Ok(self.py.import(module)?.into_any()))?,
        };
        path.split('.').try_fold(module, |found, part| found.getattr(part))
    }

    fn tensor(&self, index: u32) -> PyResult<Bound<'py, PyTensor>> {
        let received = usize::try_from(index).ok().and_then(|index| self.tensors.get(index));
        let Some(tensor) = received else {
            return Err(self.error(ErrorKind::Protocol, format!("tensor {index} of {}", self.tensors.len())));
        };
        Bound::new(self.py, PyTensor::new(owned(tensor).or_raise(self.py)?))
    }

    fn read_only(&self, index: u32) -> PyResult<Bound<'py, PyAny>> {
        let array = PyTensor::numpy(&self.tensor(index)?)?;
        array.call_method1("setflags", (false,))?;
        Ok(array)
    }

    fn torch(&self, index: u32) -> PyResult<Bound<'py, PyAny>> {
        let tensor = self.tensor(index)?;
        let Ok(torch) = self.py.import("torch") else { return PyTensor::numpy(&tensor) };
        life::below(self.py, || torch.call_method1("from_dlpack", (tensor,)))
    }

    fn bytes(&self, index: u32) -> PyResult<Bound<'py, PyBytes>> {
        let array = PyTensor::numpy(&self.tensor(index)?)?;
        Ok(array.call_method0("tobytes")?.cast_into::<PyBytes>()?)
    }

    fn integer(&self, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let keywords = PyDict::new(self.py);
        keywords.set_item("signed", true)?;
        let class = self.py.import("builtins")?.getattr("int")?;
        class.call_method("from_bytes", (PyBytes::new(self.py, bytes), "little"), Some(&keywords))
    }

    fn numpy_dtype(&self, code: u8) -> PyResult<Bound<'py, PyAny>> {
        let dtype = Dtype::from_code(code).ok_or_else(|| self.error(ErrorKind::Protocol, format!("dtype {code}")))?;
        let name = dtype::name(dtype);
        if dtype::format(dtype).is_some() {
            return self.py.import("numpy")?.call_method1("dtype", (name,));
        }
        let Ok(extension) = self.py.import("ml_dtypes") else { return Ok(PyString::new(self.py, name).into_any()) };
        self.py.import("numpy")?.call_method1("dtype", (extension.getattr(name)?,))
    }

    fn scalar(&self, code: u8, bytes: &[u8; 16]) -> PyResult<Bound<'py, PyAny>> {
        let dtype = self.numpy_dtype(code)?;
        let size: usize = dtype.getattr("itemsize")?.extract()?;
        let element = PyBytes::new(self.py, bytes.get(..size).unwrap_or(bytes));
        self.py.import("numpy")?.call_method1("frombuffer", (element, dtype))?.get_item(0)
    }

    fn reference(&self, name: &Value) -> PyResult<Bound<'py, PyAny>> {
        let held = self.opener.mesh().and_then(|mesh| mesh.hold(name)).or_raise(self.py)?;
        Ok(Bound::new(self.py, PyRef::new(held, self.opener.anew()))?.into_any())
    }

    /// What was pickled, in memory of its own: first the pickle, then its buffers, then the references in it.
    fn opened(&self, mut items: Vec<Value>) -> PyResult<Bound<'py, PyAny>> {
        self.opener.opens.clone().or_raise(self.py)?;
        let is_buffer = |item: &&Value| !matches!(item, Value::Ref { .. });
        let refs = items.split_off(items.iter().take_while(is_buffer).count());
        let refs = refs.iter().map(|name| self.reference(name)).collect::<PyResult<Vec<_>>>()?;
        let buffers = items.split_off(items.len().min(1));
        let buffers = buffers.into_iter().map(|buffer| match buffer {
            Value::Tensor(index) => Ok(self.tensor(index)?.into_any()),
            other => Err(self.error(ErrorKind::Protocol, format!("a {} as a pickle's buffer", other.kind_name()))),
        });
        let buffers: Vec<_> = buffers.collect::<PyResult<_>>()?;
        let (data, buffers) = match items.pop() {
            Some(Value::Pickle(data)) => (PyBytes::new(self.py, &data).into_any(), &buffers[..]),
            Some(Value::None) if !buffers.is_empty() => (buffers[0].clone(), &buffers[1..]),
            _ => return Err(self.error(ErrorKind::Protocol, "a pickle without data")),
        };
        let buffers = PyList::new(self.py, buffers)?;
        let _place = Place::enter(self.opener);
        life::below(self.py, || pickling(self.py)?.call_method1("unpack", (data, buffers, refs)))
    }
}

thread_local! {
    /// The mesh whose pickle this thread opens.
    static OPENING: RefCell<Option<WeakMesh>> = const { RefCell::new(None) };
}

/// Says over which mesh a pickle has come that is opened; what is opened may open another one.
struct Place(Option<WeakMesh>);

impl Place {
    fn enter(opener: &Opener) -> Self {
        Self(OPENING.replace(Some(opener.mesh.clone())))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(OPENING.replace(self.0.take()));
    }
}

/// The mesh whose pickle this thread opens, if it opens one.
pub(crate) fn opening() -> Option<Mesh> {
    OPENING.with_borrow(|opening| opening.as_ref().and_then(WeakMesh::upgrade))
}

/// A tensor that nobody else has, to be written by whoever gets it.
fn owned(tensor: &Tensor) -> Result<Tensor> {
    if !tensor.buffer().is_read_only() {
        return Ok(tensor.clone());
    }
    let mut copy = Tensor::private(tensor.dtype(), tensor.shape())?;
    copy.bytes_mut()?.copy_from_slice(&tensor.bytes()?);
    Ok(copy)
}
