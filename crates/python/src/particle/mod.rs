//! `sheave.particle`: particles whose handlers are Python's.
//!
//! **What a message is.** Within a node its arguments and its answer are the objects themselves, which lie in an
//! [`Exchange`](parcel::Exchange) that sender and receiver share. To another node they are packed and opened as those
//! of calls are, under the same rules of trust.
//!
//! **Who runs handlers.** A wait begins by handling what it waits for, on the thread that waits and with the
//! interpreter held, for what runs is Python code anyhow; nothing that it does in Rust waits for a thread that wants
//! the interpreter. It lets go before it sleeps. What nobody waits for runs on threads of the node, which attach for it
//! ([`handlers`](crate::handlers)).
//!
//! **What holds what.** A runtime of Rust lives as long as its mesh, and knows handlers of Python's weakly. These, and
//! the objects of particles, belong to the [`PyRuntime`](runtime::PyRuntime), which shows them to the collector of
//! cycles: so particles whose handlers and states refer to them are collected, and with them the runtime ends.

mod answer;
mod derived;
mod parcel;
mod runtime;
mod seat;

use pyo3::prelude::*;

/// Adds the classes to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<answer::PyAnswer>()?;
    module.add_class::<runtime::PyParticle>()?;
    module.add_class::<runtime::PyRuntime>()
}
