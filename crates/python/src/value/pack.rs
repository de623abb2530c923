//! What Python has, made into values.

use super::{BYTES, COMPLEX, FROZENSET, GLOBAL, LONG_BYTES, PICKLE, READ_ONLY, SHEAVE, STR, TORCH, pickling};
use crate::errors::{self, OrRaise};
use crate::import::{self, Access};
use crate::references::PyRef;
use crate::tensor::PyTensor;
use crate::{dtype, life};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyBytes, PyCFunction, PyComplex, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PySlice, PyString,
    PyTuple, PyType,
};
use sheave_base::{Error, ErrorKind, limits};
use sheave_mesh::Ref;
use sheave_net::{Part, Parts};
use sheave_tensor::{Dtype, Mode, Tensor};
use sheave_wire::Value;

/// A value and the tensors that travel beside it.
#[derive(Default)]
pub(crate) struct Packed {
    pub(crate) value: Value,
    pub(crate) tensors: Parts,
    /// What keeps the references in the value until they have left.
    pub(crate) refs: Vec<Ref>,
}

/// Makes of `object` what can be sent. Its arrays are not copied yet.
pub(crate) fn pack(object: &Bound<'_, PyAny>) -> PyResult<Packed> {
    packed(object, false)
}

/// As [`pack`], for a task or what came of it: arrays that are read-only stay so, and what is to be shared is.
pub(crate) fn pack_for_task(object: &Bound<'_, PyAny>) -> PyResult<Packed> {
    packed(object, true)
}

fn packed(object: &Bound<'_, PyAny>, is_task: bool) -> PyResult<Packed> {
    let mut packer = Packer { tensors: Parts::new(), refs: Vec::new(), left_bytes: VALUE_BYTES_MAX, is_task };
    if let Some(value) = packer.plain(object, 0)? {
        return Ok(Packed { value, tensors: packer.tensors, refs: packer.refs });
    }
    pickled(object)
}

struct Packer {
    tensors: Parts,
    refs: Vec<Ref>,
    /// Room for what is not beside the value.
    left_bytes: usize,
    is_task: bool,
}

/// An array among the arguments of a task that is not copied: workers get the memory itself, in which all see what one
/// of them, or this process, writes, at some time; with `read_only` workers cannot. `array` is a `sheave.Tensor` that
/// `empty` of the mesh has made; there it is an array of numpy.
///
/// >>> import numpy as np
/// >>> with sheave.pool.Pool(2) as pool:
/// ...     counts = sheave.empty(4, "int64")
/// ...     counts.numpy()[:] = 0
/// ...     def count(counts, at):
/// ...         counts[at] = at * at
/// ...     _ = pool.starmap(count, [(sheave.pool.Share(counts), at) for at in range(4)])
/// ...     counts.numpy().tolist()
/// [0, 1, 4, 9]
#[pyclass(name = "Share", module = "sheave.pool", frozen)]
pub(crate) struct PyShare {
    /// The array.
    #[pyo3(get)]
    array: Py<PyTensor>,
    /// Whether workers cannot write it.
    #[pyo3(get)]
    read_only: bool,
}

#[pymethods]
impl PyShare {
    #[new]
    #[pyo3(signature = (array, read_only = false))]
    fn new(array: Bound<'_, PyAny>, read_only: bool) -> PyResult<Self> {
        let py = array.py();
        let class = array.get_type().name()?.to_string();
        let refused = || {
            let what = format!("a {class} is not shared; expected a sheave.Tensor");
            let error = Error::new(ErrorKind::InvalidArgument, what);
            errors::to_python(py, &error.hint("make it by sheave.empty, and write it by its numpy()"))
        };
        Ok(Self { array: array.cast_into_exact().map_err(|_| refused())?.unbind(), read_only })
    }
}

impl Packer {
    /// The value of an object with nothing but plain things in it; `None` for any other.
    fn plain(&mut self, object: &Bound<'_, PyAny>, depth: usize) -> PyResult<Option<Value>> {
        if !is_container(object)
            && let Some(value) = atom(object)?
        {
            let bytes = ATOM_BYTES_MAX + content_bytes(&value);
            return Ok(self.left_bytes.checked_sub(bytes).map(|left| {
                self.left_bytes = left;
                value
            }));
        }
        if depth >= limits::VALUE_DEPTH_MAX {
            return Ok(None);
        }
        let depth = depth + 1;
        if let Ok(items) = object.cast_exact::<PyTuple>() {
            return Ok(self.items(items.iter(), depth)?.map(Value::Tuple));
        }
        if let Ok(items) = object.cast_exact::<PyList>() {
            return Ok(self.items(items.iter(), depth)?.map(Value::List));
        }
        if let Ok(entries) = object.cast_exact::<PyDict>() {
            return self.entries(entries, depth);
        }
        if let Ok(items) = object.cast_exact::<PySet>() {
            return Ok(self.items(items.iter(), depth)?.map(Value::Set));
        }
        if let Ok(items) = object.cast_exact::<PyFrozenSet>() {
            return Ok(self.items(items.iter(), depth)?.map(|items| tagged(FROZENSET, Value::Set(items))));
        }
        if object.cast_exact::<PySlice>().is_ok() {
            let bounds = ["start", "stop", "step"].map(|name| object.getattr(name));
            let [start, stop, step] = bounds;
            let bounds = [start?, stop?, step?];
            let Some(bounds) = self.items(bounds.into_iter(), depth)? else { return Ok(None) };
            return Ok(<[Value; 3]>::try_from(bounds).ok().map(|bounds| Value::Slice(Box::new(bounds))));
        }
        self.array(object)
    }

    fn items<'py>(
        &mut self,
        items: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
        depth: usize,
    ) -> PyResult<Option<Vec<Value>>> {
        if items.len() > limits::VALUE_ITEMS_MAX {
            return Ok(None);
        }
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            match self.plain(&item, depth)? {
                Some(value) => values.push(value),
                None => return Ok(None),
            }
        }
        Ok(Some(values))
    }

    fn entries(&mut self, entries: &Bound<'_, PyDict>, depth: usize) -> PyResult<Option<Value>> {
        if entries.len() > limits::VALUE_ITEMS_MAX {
            return Ok(None);
        }
        let mut values = Vec::with_capacity(entries.len());
        for (key, item) in entries {
            let Some(key) = self.plain(&key, depth)? else { return Ok(None) };
            let Some(item) = self.plain(&item, depth)? else { return Ok(None) };
            values.push((key, item));
        }
        if !values.iter().all(|(key, _)| matches!(key, Value::Str(_))) {
            return Ok(Some(Value::Dict(values)));
        }
        let named = values.into_iter().filter_map(|(key, item)| match key {
            Value::Str(name) => Some((name, item)),
            _ => None,
        });
        Ok(Some(Value::Map(named.collect())))
    }

    /// An array whose elements travel beside the value.
    fn array(&mut self, object: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
        let py = object.py();
        let is = |known: Option<&Py<PyType>>| known.is_some_and(|class| object.get_type().is(class.bind(py)));
        if let Ok(reference) = object.cast_exact::<PyRef>() {
            let reference = reference.get().reference(py)?;
            let value = reference.value();
            self.refs.push(reference);
            return Ok(Some(value));
        }
        let mut mode = Mode::Copy;
        let (tag, tensor) = if object.cast_exact::<PyBytes>().is_ok() {
            (Some(BYTES), import::tensor(object, Access::Read)?)
        } else if let Ok(text) = object.cast_exact::<PyString>() {
            let Ok(text) = text.to_str() else { return Ok(None) };
            (Some(STR), Tensor::from_slice(text.as_bytes(), [text.len() as u64]).or_raise(py)?)
        } else if let Ok(ours) = object.cast_exact::<PyTensor>() {
            (Some(SHEAVE), ours.get().handle(py)?)
        } else if is(class(py, &NDARRAY, "numpy", "ndarray")?) {
            if native(&object.getattr("dtype")?)?.is_none() {
                return Ok(None);
            }
            let Some(tensor) = elements(object)? else { return Ok(None) };
            (if self.is_task && tensor.buffer().is_read_only() { Some(READ_ONLY) } else { None }, tensor)
        } else if is(class(py, &TENSOR, "torch", "Tensor")?) {
            if !is_simple(object)? {
                return Ok(None);
            }
            let Some(tensor) = elements(object)? else { return Ok(None) };
            (Some(TORCH), tensor)
        } else if self.is_task
            && let Ok(share) = object.cast_exact::<PyShare>()
        {
            mode = Mode::Share;
            let share = share.get();
            (if share.read_only { Some(READ_ONLY) } else { None }, share.array.get().handle(py)?)
        } else {
            return global(object);
        };
        if self.tensors.len() >= limits::PARTS_MAX {
            return Ok(None);
        }
        let value = Value::Tensor(u32::try_from(self.tensors.len()).unwrap_or(u32::MAX));
        self.tensors.push(Part::new(tensor, mode));
        Ok(Some(match tag {
            Some(tag) => tagged(tag, value),
            None => value,
        }))
    }
}

/// A value that may be longer is pickled: what is beside it has no such limit.
const VALUE_BYTES_MAX: usize = limits::CONTROL_BYTES_MAX / 2;

/// More than the longest encoding of what has no content of its own.
const ATOM_BYTES_MAX: usize = 32;

fn content_bytes(value: &Value) -> usize {
    match value {
        Value::Str(text) => text.len(),
        Value::Bytes(bytes) | Value::Integer(bytes) => bytes.len(),
        _ => 0,
    }
}

fn tagged(tag: &str, value: Value) -> Value {
    Value::Tagged(Box::new((tag.to_owned(), value)))
}

/// Whether it is one of those that hold others, and are most often met.
fn is_container(object: &Bound<'_, PyAny>) -> bool {
    object.is_exact_instance_of::<PyTuple>()
        || object.is_exact_instance_of::<PyList>()
        || object.is_exact_instance_of::<PyDict>()
}

/// What holds nothing else.
fn atom(object: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    let value = if object.is_none() {
        Value::None
    } else if let Ok(text) = object.cast_exact::<PyString>() {
        // Half a character of two is no text elsewhere.
        let Ok(text) = text.to_str() else { return Ok(None) };
        if text.len() > LONG_BYTES {
            return Ok(None);
        }
        Value::Str(text.to_owned())
    } else if let Ok(number) = object.cast_exact::<PyInt>() {
        return integer(number);
    } else if let Ok(number) = object.cast_exact::<PyFloat>() {
        Value::Float(number.value())
    } else if let Ok(truth) = object.cast_exact::<PyBool>() {
        Value::Bool(truth.is_true())
    } else if let Ok(bytes) = object.cast_exact::<PyBytes>() {
        if bytes.as_bytes().len() > LONG_BYTES {
            return Ok(None);
        }
        Value::Bytes(bytes.as_bytes().to_vec())
    } else if let Ok(number) = object.cast_exact::<PyComplex>() {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.real().to_ne_bytes());
        bytes[8..].copy_from_slice(&number.imag().to_ne_bytes());
        tagged(COMPLEX, Value::Scalar { dtype: Dtype::Complex128.code(), bytes })
    } else {
        return of_numpy(object);
    };
    Ok(Some(value))
}

fn integer(number: &Bound<'_, PyInt>) -> PyResult<Option<Value>> {
    if let Ok(number) = number.extract::<i64>() {
        return Ok(Some(Value::Int(number)));
    }
    let bits: usize = number.call_method0("bit_length")?.extract()?;
    let keywords = PyDict::new(number.py());
    keywords.set_item("signed", true)?;
    let mut bytes: Vec<u8> = number.call_method("to_bytes", (bits / 8 + 1, "little"), Some(&keywords))?.extract()?;
    // The least number of so many bits needs no bit more.
    if let [.., before, 0xff] = bytes[..]
        && before >= 0x80
    {
        bytes.pop();
    }
    Ok((bytes.len() <= LONG_BYTES).then_some(Value::Integer(bytes)))
}

/// A function or a class that is found by its name wherever its module can be imported.
fn global(object: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    let py = object.py();
    let class = object.get_type();
    let is_function = || -> PyResult<bool> {
        Ok(class.is(py.get_type::<PyCFunction>()) || class.is(FUNCTION.import(py, "types", "FunctionType")?))
    };
    // A class of a class of its own may be made in its own way.
    if !class.is(py.get_type::<PyType>()) && !is_function()? {
        return Ok(None);
    }
    let text = |name| Ok::<_, PyErr>(object.getattr(name)?.extract::<String>().ok());
    let (Some(module), Some(name)) = (text("__module__")?, text("__qualname__")?) else { return Ok(None) };
    // What a script defines is elsewhere under no name.
    if module == "__main__" || !pickling(py)?.call_method1("_is_by_name", (object, &module, &name))?.is_truthy()? {
        return Ok(None);
    }
    Ok(Some(tagged(GLOBAL, Value::Str(format!("{module}:{name}")))))
}

static FUNCTION: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static NDARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static GENERIC: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static DTYPE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static TENSOR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// A class of a module, if the program has imported that.
fn class<'a>(
    py: Python<'_>,
    known: &'a PyOnceLock<Py<PyType>>,
    module: &str,
    name: &str,
) -> PyResult<Option<&'a Py<PyType>>> {
    if let Some(class) = known.get(py) {
        return Ok(Some(class));
    }
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let modules = MODULES.import(py, "sys", "modules")?;
    let Some(module) = modules.get_item(module)? else { return Ok(None) };
    // One that is half imported may lack it still.
    let Some(class) = module.getattr_opt(name)? else { return Ok(None) };
    let class = class.cast_into::<PyType>()?.unbind();
    Ok(Some(known.get_or_init(py, || class)))
}

/// A scalar or a dtype of numpy.
fn of_numpy(object: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    let py = object.py();
    let is_one = |class: Option<&Py<PyType>>| class.map_or(Ok(false), |class| object.is_instance(class.bind(py)));
    if is_one(class(py, &GENERIC, "numpy", "generic")?)? {
        let Some(dtype) = native(&object.getattr("dtype")?)? else { return Ok(None) };
        let element: Vec<u8> = object.call_method0("tobytes")?.extract()?;
        let mut bytes = [0; 16];
        let Some(room) = bytes.get_mut(..element.len()) else { return Ok(None) };
        room.copy_from_slice(&element);
        return Ok(Some(Value::Scalar { dtype: dtype.code(), bytes }));
    }
    if is_one(class(py, &DTYPE, "numpy", "dtype")?)? {
        return Ok(native(object)?.map(|dtype| Value::Dtype(dtype.code())));
    }
    Ok(None)
}

/// The dtype that a dtype of numpy is, if it is one of numpy's own that sheave has too, with its bytes in this
/// machine's order.
fn native(numpy: &Bound<'_, PyAny>) -> PyResult<Option<Dtype>> {
    if !numpy.getattr("isnative")?.is_truthy()? || numpy.getattr("isbuiltin")?.extract::<i32>()? != 1 {
        return Ok(None);
    }
    Ok(dtype::from_python(numpy)?.ok())
}

/// Whether nothing but its elements makes the tensor of torch what it is.
fn is_simple(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let has = |name| tensor.getattr(name)?.is_truthy();
    if has("requires_grad")? || has("is_sparse")? || has("is_quantized")? || has("is_nested")? {
        return Ok(false);
    }
    let device: String = tensor.getattr("device")?.getattr("type")?.extract()?;
    Ok(device == "cpu")
}

/// The elements of an array; `None` where sheave has no tensors of its dtype.
fn elements(array: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    match import::tensor(array, Access::Read) {
        Ok(tensor) => Ok(Some(tensor)),
        Err(error) if errors::kind_of(error.value(array.py())) == Some(ErrorKind::Unsupported) => Ok(None),
        Err(error) => Err(error),
    }
}

/// All of it as one pickle.
fn pickled(object: &Bound<'_, PyAny>) -> PyResult<Packed> {
    let packed = life::below(object.py(), || pickling(object.py())?.call_method1("pack", (object,)))?;
    let data: Vec<u8> = packed.getattr("data")?.cast_into::<PyBytes>()?.as_bytes().to_vec();
    let mut tensors = Parts::new();
    let mut items = Vec::new();
    let mut put = |tensor: Tensor| {
        items.push(Value::Tensor(u32::try_from(tensors.len()).unwrap_or(u32::MAX)));
        tensors.push(Part::new(tensor, Mode::Copy));
    };
    let data = if data.len() > LONG_BYTES {
        put(Tensor::from_slice(&data, [data.len() as u64]).or_raise(object.py())?);
        Value::None
    } else {
        Value::Pickle(data)
    };
    for buffer in packed.getattr("buffers")?.try_iter()? {
        put(import::tensor(&buffer?, Access::Read)?);
    }
    items.insert(0, data);
    let mut refs = Vec::new();
    for held in packed.getattr("refs")?.try_iter()? {
        let reference = held?.cast_into::<PyRef>()?.get().reference(object.py())?;
        items.push(reference.value());
        refs.push(reference);
    }
    Ok(Packed { value: tagged(PICKLE, Value::List(items)), tensors, refs })
}
