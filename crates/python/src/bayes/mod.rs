//! The ground of `sheave.bayes`: the mathematics of `sheave-bayes` on arrays of Python's.
//!
//! Arrays are used where they lie, and results are numpy arrays. What takes long lets go of the interpreter, and waits
//! for nothing. Objects that change are used by one thread at a time: the interpreter refuses another one meanwhile.

mod array;
mod heads;
mod langevin;
mod laplace;
mod metrics;
mod predict;
mod random;
mod svgd;
mod swag;

use pyo3::prelude::*;

/// Adds what this module has for Python.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    random::add_to(module)?;
    predict::add_to(module)?;
    metrics::add_to(module)?;
    heads::add_to(module)?;
    module.add_class::<svgd::PySvgdSteps>()?;
    module.add_class::<swag::PySwag>()?;
    module.add_class::<langevin::PySgld>()?;
    module.add_class::<langevin::PySghmc>()?;
    module.add_class::<langevin::PyCyclical>()?;
    module.add_class::<langevin::PyChain>()?;
    module.add_class::<laplace::PyRegression>()?;
    module.add_class::<laplace::PyRegressionPosterior>()?;
    module.add_class::<laplace::PyClassification>()?;
    module.add_class::<laplace::PyClassificationPosterior>()
}
