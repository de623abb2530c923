//! `sheave.session`: one controller, and workers that run its commands in order.
//!
//! Commands are issued with the interpreter held, because they do not wait: letting it go for each would have the
//! controller and its worker 0, a thread of the same process, pass it to and fro. What does wait goes through `enter`.

mod controller;
mod held;
mod register;
mod worker;

use pyo3::prelude::*;

/// Adds classes and functions to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<controller::PySession>()?;
    module.add_class::<controller::PyThreadedSession>()?;
    module.add_class::<controller::PyProcessSession>()?;
    module.add_class::<controller::PySocketSession>()?;
    module.add_class::<register::PyRegister>()?;
    module.add_class::<held::PyFunction>()?;
    module.add_class::<held::PyWorkerObject>()?;
    module.add_class::<worker::PySessionWorker>()?;
    worker::add_to(module)
}
