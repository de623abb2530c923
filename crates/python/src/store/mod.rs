//! The key-value store: `sheave._core.Store`, on which `python/sheave/kvstore.py` stands.
//!
//! Python brings keys and values into flat lists of equal length; here they become keys and tensors, and the rest is
//! the room's. What is captured before a call returns is captured with the interpreter let go, because that may take
//! as long as copying a model does.

mod arguments;
mod face;
mod rows;
mod server;
mod unseen;
mod updater;

use pyo3::prelude::*;

pub(crate) use arguments::optimizer;

/// Adds what this module has for Python.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<face::PyStore>()?;
    module.add_function(wrap_pyfunction!(server::serve, module)?)?;
    // Not one of the names that the module offers.
    module.setattr("_slice_start", wrap_pyfunction!(updater::slice_start, module)?)
}
