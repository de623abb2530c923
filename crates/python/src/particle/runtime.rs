//! The particles of a mesh in this process, and what a handler gets.

use super::answer::PyAnswer;
use super::parcel::{Exchange, Parcel};
use super::seat::{Seat, Table, handle};
use crate::calls::packed_arguments;
use crate::enter::may_wait;
use crate::errors::{self, OrRaise};
use crate::guarded::Guarded;
use crate::mesh::PyMesh;
use crate::released;
use crate::value::{Opener, Packed};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_particle::{Behavior, ParticleId, Particles};
use std::sync::Arc;

/// The way to particles, from this process.
struct Route {
    particles: Guarded<Particles<Parcel>>,
    /// Members of the mesh by their ranks, which names of particles have.
    nodes: Vec<NodeId>,
    rank: usize,
    opener: Opener,
}

fn refused(to: &Bound<'_, PyAny>, what: &str) -> PyErr {
    let shown = to.repr().map_or_else(|_| "an object".to_owned(), |text| text.to_string_lossy().into_owned());
    let error = Error::new(ErrorKind::InvalidArgument, format!("{what} is {shown}; expected a ParticleId"));
    errors::to_python(to.py(), &error.operation("send").hint("give what create has returned, or one of ids()"))
}

/// A message to a particle of this process.
fn staying(args: &Bound<'_, PyTuple>, keywords: Option<&Bound<'_, PyDict>>) -> (Arc<Exchange>, Parcel) {
    let arguments = (args.clone().unbind(), keywords.map(|keywords| keywords.clone().unbind()));
    let exchange = Arc::new(Exchange::new(Some(arguments)));
    let parcel = Parcel::Here(Arc::clone(&exchange));
    (exchange, parcel)
}

impl Route {
    fn particles(&self, py: Python<'_>) -> PyResult<&Particles<Parcel>> {
        self.particles.check("particle runtime").or_raise(py)
    }

    fn here(&self, number: u64) -> ParticleId {
        ParticleId { node: self.nodes[self.rank], number }
    }

    /// The particle that a name of Python's means.
    fn id(&self, to: &Bound<'_, PyAny>) -> PyResult<(usize, ParticleId)> {
        let parts = to.cast::<PyTuple>().ok().filter(|parts| parts.len() == 2);
        let parts = parts.ok_or_else(|| refused(to, "the particle"))?;
        let part = |at: usize| parts.get_item(at).and_then(|part| part.extract::<u64>());
        let (Ok(rank), Ok(number)) = (part(0), part(1)) else { return Err(refused(to, "the particle")) };
        let known = usize::try_from(rank).ok().and_then(|rank| Some((rank, *self.nodes.get(rank)?)));
        let (rank, node) = known.ok_or_else(|| {
            let what = format!("node {rank} of particle {number}; the mesh has nodes 0 to {}", self.nodes.len() - 1);
            errors::to_python(to.py(), &Error::new(ErrorKind::NotFound, what).operation("send"))
        })?;
        Ok((rank, ParticleId { node, number }))
    }

    fn send(
        &self,
        to: &Bound<'_, PyAny>,
        name: &str,
        (args, keywords): (&Bound<'_, PyTuple>, Option<&Bound<'_, PyDict>>),
        is_served: bool,
    ) -> PyResult<PyAnswer> {
        let py = to.py();
        let particles = self.particles(py)?;
        let (rank, id) = self.id(to)?;
        let keywords = keywords.filter(|keywords| !keywords.is_empty());
        if rank == self.rank {
            let (exchange, parcel) = staying(args, keywords);
            return Ok(PyAnswer::new(particles.send(id, name, parcel), exchange, None, is_served));
        }
        let Packed { value, tensors, refs } = packed_arguments((args, keywords))?;
        let answer = py.detach(|| particles.send(id, name, Parcel::leaving(value, tensors)));
        drop(refs);
        Ok(PyAnswer::new(answer, Arc::default(), Some(self.opener.of(id.node)), is_served))
    }
}

/// The particles of one name in this process. `sheave.particle.Particles` is what people use.
#[pyclass(name = "ParticleRuntime", module = "sheave._core", subclass, frozen, weakref)]
pub(crate) struct PyRuntime {
    route: Arc<Route>,
    table: Table,
}

#[pymethods]
impl PyRuntime {
    #[new]
    fn new(py: Python<'_>, mesh: &PyMesh, name: &str) -> PyResult<Self> {
        let joined = mesh.mesh().or_raise(py)?;
        let nodes: Vec<NodeId> = joined.members().iter().map(|member| member.node).collect();
        let own = joined.me().node;
        let rank = nodes.iter().position(|node| *node == own);
        let rank = rank.ok_or_else(|| Error::new(ErrorKind::Internal, "a node that is no member")).or_raise(py)?;
        let opener = mesh.opener(&joined);
        let particles = py.detach(|| Particles::new(&joined, name)).or_raise(py)?;
        let route = Arc::new(Route { particles: Guarded::new(particles), nodes, rank, opener });
        Ok(Self { route, table: Table::default() })
    }

    /// Send a message to a particle, of this node or of another. Returns its Answer; never waits.
    #[pyo3(signature = (id, name, /, *args, **kwargs))]
    fn send(
        &self,
        id: &Bound<'_, PyAny>,
        name: &str,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyAnswer> {
        self.route.send(id, name, (args, kwargs), false)
    }

    /// As `send`, to what serves the particles of a node: errors of sheave's that it raises are raised as such here.
    #[pyo3(signature = (id, name, /, *args, **kwargs))]
    fn _ask(
        &self,
        id: &Bound<'_, PyAny>,
        name: &str,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyAnswer> {
        self.route.send(id, name, (args, kwargs), true)
    }

    /// As `send`, to a particle of this node; this thread handles the message at once if it may begin.
    #[pyo3(signature = (id, name, /, *args))]
    fn _run(&self, id: &Bound<'_, PyAny>, name: &str, args: &Bound<'_, PyTuple>) -> PyResult<PyAnswer> {
        let py = id.py();
        may_wait(py)?;
        let particles = self.route.particles(py)?;
        let (_, id) = self.route.id(id)?;
        let (exchange, parcel) = staying(args, None);
        Ok(PyAnswer::new(particles.run(id, name, parcel), exchange, None, false))
    }

    /// The rank of this node in the mesh, which names of its particles have.
    #[getter]
    fn node(&self) -> usize {
        self.route.rank
    }

    /// The seed of a particle of this number where all have this one: distinct for each, and the same in each run.
    #[staticmethod]
    fn _seed_of(master: u64, number: u64) -> u64 {
        sheave_bayes::random::seed_of(master, number)
    }

    /// The number of a particle that is made later; of one that stands apart and is not listed, if it is so.
    fn _reserve(&self, py: Python<'_>, is_apart: bool) -> PyResult<u64> {
        let particles = self.route.particles(py)?;
        Ok(if is_apart { particles.reserve_apart() } else { particles.reserve() }.number)
    }

    /// Make the particle of this number. Handlers get `particle`.
    fn _place(
        &self,
        number: u64,
        particle: &Bound<'_, PyAny>,
        receive: &Bound<'_, PyDict>,
        reentrant: bool,
        label: Option<&str>,
    ) -> PyResult<()> {
        let py = particle.py();
        let particles = self.route.particles(py)?;
        let seat = Seat::new(particle.clone().unbind());
        let mut behavior = Behavior::new(());
        if reentrant {
            behavior = behavior.reentrant();
        }
        if let Some(label) = label {
            behavior = behavior.labelled(label);
        }
        for (name, function) in receive.iter() {
            behavior = self.handled(behavior, &seat, &name.extract::<String>()?, &function);
        }
        particles.create_as(self.route.here(number), behavior).or_raise(py)?;
        self.table.insert(number, seat);
        Ok(())
    }

    fn _register(&self, id: &Bound<'_, PyAny>, name: &str, function: &Bound<'_, PyAny>) -> PyResult<()> {
        let (py, (_, id)) = (id.py(), self.route.id(id)?);
        let particles = self.route.particles(py)?;
        // Whether it is here.
        particles.queued(id).map_err(|error| error.operation("register handler")).or_raise(py)?;
        let Some(seat) = self.table.get(id.number) else { return Ok(()) };
        particles.register(id, self.handled(Behavior::new(()), &seat, name, function)).or_raise(py)?;
        released::drain(py);
        Ok(())
    }

    /// Remove a particle of this node. Returns whether it was there.
    fn _remove(&self, py: Python<'_>, number: u64) -> PyResult<bool> {
        let particles = self.route.particles(py)?;
        let was_there = particles.remove(self.route.here(number));
        self.table.remove(number);
        released::drain(py);
        Ok(was_there)
    }

    /// The numbers of the particles of this node, in the order in which they were made.
    fn _numbers(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        Ok(self.route.particles(py)?.ids().into_iter().map(|id| id.number).collect())
    }

    /// The names of the messages that a particle of this node handles, in order.
    fn _names(&self, py: Python<'_>, number: u64) -> PyResult<Vec<String>> {
        let names = self.route.particles(py)?.names(self.route.here(number)).or_raise(py)?;
        Ok(names.iter().map(ToString::to_string).collect())
    }

    /// How many messages to a particle of this node have not begun.
    fn _waiting(&self, py: Python<'_>, number: u64) -> PyResult<usize> {
        self.route.particles(py)?.queued(self.route.here(number)).or_raise(py)
    }

    /// End all particles. Messages that have not begun fail with Closed. Idempotent.
    fn _stop(&self, py: Python<'_>) {
        // In a forked child they are the parent's.
        let Ok(particles) = self.route.particles.check("particle runtime") else { return };
        py.detach(|| particles.stop());
        self.table.clear();
        released::drain(py);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.table.traverse(&visit)
    }

    fn __clear__(&self) {
        self.table.clear();
    }
}

impl PyRuntime {
    /// Has messages of this name handled by a function.
    fn handled(
        &self,
        behavior: Behavior<Parcel>,
        seat: &Arc<Seat>,
        name: &str,
        function: &Bound<'_, PyAny>,
    ) -> Behavior<Parcel> {
        let (weak, opener) = (Arc::downgrade(seat), self.route.opener.clone());
        let function = seat.register(name, function.clone().unbind());
        behavior.on_blocking(name, move |_, parcel| handle(&weak, &function, &opener, parcel))
    }
}

impl Drop for PyRuntime {
    fn drop(&mut self) {
        if let Ok(particles) = self.route.particles.check("particle runtime") {
            particles.stop();
        }
    }
}

/// What a handler gets. `sheave.particle.Particle` is what people use.
#[pyclass(name = "ParticleObject", module = "sheave._core", subclass, frozen, weakref)]
pub(crate) struct PyParticle {
    route: Arc<Route>,
}

#[pymethods]
impl PyParticle {
    #[new]
    fn new(runtime: &PyRuntime) -> Self {
        Self { route: Arc::clone(&runtime.route) }
    }

    /// Send a message to a particle, of this node or of another. Returns its Answer; never waits. What one handler
    /// sends to one particle is handled in that order.
    #[pyo3(signature = (id, name, /, *args, **kwargs))]
    fn send(
        &self,
        id: &Bound<'_, PyAny>,
        name: &str,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyAnswer> {
        self.route.send(id, name, (args, kwargs), false)
    }
}
