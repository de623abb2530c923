//! Values of Python on their way to other nodes and back.
//!
//! What is plain travels as sheave's own [`Value`](sheave_wire::Value), so that Rust reads it too, and arrives as what
//! it was: `None`, bool, int of any size, float, complex, str, bytes, tuple, list, dict, set, frozenset, slice, scalars
//! and dtypes of numpy; functions and classes by their names, where these can be imported. Arrays of numpy and tensors
//! of torch and of sheave in it travel beside it. At the other end they are new ones of the same kind, in memory that
//! belongs to whoever gets them, and may be written.
//!
//! Where anything else is in it, also deep inside, all of it is one pickle (`sheave.pickling`), whose large buffers
//! travel as tensors too: two names for one object are two names for one object again. Pickled as well is what is plain
//! but nests too deeply, or is too long, for a value, and what of arrays only a pickle keeps: a class of one's own, a
//! dtype that sheave has none of, another device, a gradient.
//!
//! | in Python | in the value |
//! |---|---|
//! | numpy array | `Tensor` |
//! | torch tensor | `Tagged("torch", Tensor)` |
//! | `sheave.Tensor` | `Tagged("sheave", Tensor)` |
//! | numpy array that is read-only, among what tasks of pools take and return | `Tagged("read-only", Tensor)` |
//! | complex, frozenset | `Tagged("complex", Scalar)`, `Tagged("frozenset", Set)` |
//! | bytes and str of more than 64 KiB | `Tagged("bytes", Tensor)`, `Tagged("str", Tensor)` |
//! | `sheave.Ref` | `Ref` |
//! | function or class that can be imported | `Tagged("global", Str)`, its module and its name there |
//! | all else | `Tagged("pickle", List[Pickle, Tensor, …, Ref, …])` |

mod pack;
mod unpack;

pub(crate) use pack::{Packed, PyShare, pack, pack_for_task};
pub(crate) use unpack::{Opener, Opens, opening};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// An array that nobody may write, where that is kept.
const READ_ONLY: &str = "read-only";
const TORCH: &str = "torch";
const SHEAVE: &str = "sheave";
const COMPLEX: &str = "complex";
const FROZENSET: &str = "frozenset";
const PICKLE: &str = "pickle";
/// Opened where pickles are, and nowhere else: whoever names a function to be called has it run.
const GLOBAL: &str = "global";

const BYTES: &str = "bytes";
const STR: &str = "str";

/// Texts and bytes that are longer travel as tensors.
const LONG_BYTES: usize = 64 << 10;

/// The module that pickles.
pub(crate) fn pickling(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static MODULE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let module = match MODULE.get(py) {
        Some(module) => module,
        None => {
            let module = py.import("sheave.pickling")?.into_any().unbind();
            MODULE.get_or_init(py, || module)
        }
    };
    Ok(module.bind(py))
}
