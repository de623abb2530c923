//! `sheave.exchange` in Rust: both ends under flat lists. `python/sheave/exchange.py` is what people use.

mod server;
mod worker;

use crate::errors::OrRaise;
use crate::mesh::{self, PyMesh};
use pyo3::prelude::*;
use sheave_base::{Error, ErrorKind, Result};
use sheave_exchange::{Config, Scope, monotonic_ns};
use sheave_mesh::Mesh;

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<worker::PyWorker>()?;
    module.add_class::<server::PyServer>()?;
    module.add_class::<server::PyRequest>()?;
    module.add_class::<server::PyRegistration>()?;
    module.add_function(wrap_pyfunction!(get_nanosecond, module)?)
}

/// Nanoseconds of this host's monotonic clock: what `time.monotonic_ns` reads too.
///
/// >>> begun = sheave.exchange.get_nanosecond()
/// >>> sheave.exchange.get_nanosecond() >= begun
/// True
#[pyfunction]
fn get_nanosecond() -> u64 {
    monotonic_ns()
}

/// The mesh that is given, or the one that the program means when it gives none.
fn mesh_of(py: Python<'_>, mesh: Option<Py<PyMesh>>) -> PyResult<Mesh> {
    let mesh = match mesh {
        Some(mesh) => mesh,
        None => mesh::default_or_join(py)?,
    };
    mesh.get().mesh().or_raise(py)
}

fn config(lanes: u32, window: Option<usize>, stamps: bool, trace: bool) -> Config {
    let usual = Config::default();
    Config { lanes, window: window.unwrap_or(usual.window), stamps, trace }
}

fn scope(name: &str) -> Result<Scope> {
    match name {
        "workers" => Ok(Scope::Workers),
        "servers" => Ok(Scope::Servers),
        "all" => Ok(Scope::All),
        _ => Err(Error::new(ErrorKind::InvalidArgument, format!("there is no scope {name:?}"))
            .hint("give workers, servers or all")),
    }
}
