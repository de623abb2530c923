//! What `sheave.particle` needs for models: who is on a device, optimizers of flat arrays, and files.

mod cache;
mod files;
mod optimizer;

use pyo3::prelude::*;

/// Adds them to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<cache::PyCache>()?;
    module.add_class::<cache::PyGuard>()?;
    module.add_class::<optimizer::PyOptimizer>()?;
    // Not names that people use.
    module.setattr("_save_tensors", wrap_pyfunction!(files::save_tensors, module)?)?;
    module.setattr("_load_tensors", wrap_pyfunction!(files::load_tensors, module)?)
}
