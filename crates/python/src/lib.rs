//! The extension module `sheave._core`: the Python face of the rooms below, without logic of its own.
//!
//! Three rules hold everywhere here. Every call that may wait goes through `enter`, which lets go of the interpreter,
//! listens for Ctrl-C, carries the deadline and translates errors. No thread of sheave attaches to the interpreter but
//! to run a handler of the user's (`handlers`): what belongs to Python and is dropped elsewhere waits in `released` for
//! the next entry. After a fork the child touches nothing that it inherited.

mod aside;
mod awaiting;
mod bayes;
mod callbacks;
mod calls;
mod collectives;
mod devices;
mod dtype;
mod enter;
mod errors;
mod exchange;
mod export;
mod fleet;
mod functions;
mod group;
mod guarded;
mod guest;
mod handlers;
mod import;
mod learner;
mod life;
mod like;
mod link;
mod lists;
mod meeting;
mod members;
mod mesh;
mod model;
mod node;
mod particle;
mod pieces;
mod placement;
mod places;
mod pool;
mod queue;
mod references;
mod released;
mod rpc;
mod session;
mod store;
mod tensor;
mod told;
mod value;
mod versions;
mod work;

use pyo3::prelude::*;

#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<fleet::PyGuestFleet>()?;
    module.add_class::<group::PyGroup>()?;
    module.add_class::<guest::PyGuest>()?;
    module.add_class::<link::PyLink>()?;
    module.add_class::<link::PyPeer>()?;
    module.add_class::<members::PyMembers>()?;
    module.add_class::<members::PySheet>()?;
    module.add_class::<mesh::PyDeath>()?;
    module.add_class::<mesh::PyMember>()?;
    module.add_class::<mesh::PyMesh>()?;
    module.add_class::<node::PyNode>()?;
    module.add_class::<placement::PyPlacement>()?;
    module.add_class::<references::PyRef>()?;
    module.add_class::<rpc::PyRpcGroup>()?;
    module.add_class::<tensor::PyTensor>()?;
    module.add_class::<work::PyWork>()?;
    session::add_to(module)?;
    pool::add_to(module)?;
    queue::add_to(module)?;
    versions::add_to(module)?;
    model::add_to(module)?;
    particle::add_to(module)?;
    learner::add_to(module)?;
    store::add_to(module)?;
    exchange::add_to(module)?;
    bayes::add_to(module)?;
    errors::add_to(module)?;
    functions::add_to(module)?;
    life::install(module)
}
