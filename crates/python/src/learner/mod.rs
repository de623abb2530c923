//! Gradient servers as `sheave.learner` has them: a server of this process, and a learner's access to servers.
//!
//! What Python's classes say is made ready there: here tensors come and go by the names of their parameters.

mod callbacks;

use crate::enter::span;
use crate::errors::OrRaise;
use crate::guarded::Guarded;
use crate::import::{self, Access};
use crate::rpc::{PyRpcGroup, begun};
use crate::store::optimizer;
use crate::work::{PyWork, now_ns};
use crate::{calls, dtype};
use callbacks::{Drops, Function};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use sheave_base::{Error, ErrorKind, Result};
use sheave_learner::{
    Choice, ClientReport, GradientClient, GradientId, GradientServer, Losses, Method, Model, Overflow, PrimaryReport,
    ServerReport, Servers, Settings, Tensors,
};
use sheave_mesh::Mesh;
use sheave_tensor::Shape;

/// Which members are the servers: their name, the primary, and the secondaries.
type Named<'py> = (String, Bound<'py, PyAny>, Vec<Bound<'py, PyAny>>);

/// Parameters of a model: of each its name, its dtype and its shape.
type Described<'py> = Vec<(String, Bound<'py, PyAny>, Vec<u64>)>;

fn servers(mesh: &Mesh, (name, primary, secondaries): Named<'_>) -> PyResult<Servers> {
    let secondaries = secondaries.iter().map(|member| calls::callee(mesh, member)).collect::<PyResult<_>>()?;
    Ok(Servers { name, primary: calls::callee(mesh, &primary)?, secondaries })
}

fn model(py: Python<'_>, described: Described<'_>) -> PyResult<Model> {
    let mut parameters = Vec::with_capacity(described.len());
    for (name, dtype, dimensions) in described {
        parameters.push((name, dtype::from_python(&dtype)?.or_raise(py)?, Shape::new(&dimensions).or_raise(py)?));
    }
    Model::new(parameters).or_raise(py)
}

/// Arrays by the names of their parameters, where they lie.
fn tensors(arrays: &Bound<'_, PyDict>) -> PyResult<Tensors> {
    let each = |(name, array): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        Ok((name.extract::<String>()?, import::tensor(&array, Access::Read)?))
    };
    arrays.iter().map(each).collect()
}

/// How gradients are queued and reduced: the method, the batch, the length of the queue, what happens when it is full,
/// and for how many seconds gradients wait.
type Reduced = (String, usize, usize, String, Option<f64>);

fn settings((method, batch, queue_max, overflow, flush_after): Reduced) -> PyResult<Result<Settings>> {
    let flush_after = span(flush_after)?;
    let wrong = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what).operation("start gradient server"));
    let method = match method.as_str() {
        "sum" => Method::Sum,
        "mean" => Method::Mean,
        _ => return Ok(wrong(format!("method is {method:?}; expected \"sum\" or \"mean\""))),
    };
    let overflow = match overflow.as_str() {
        "push_back" => Overflow::PushBack,
        "drop_oldest" => Overflow::DropOldest,
        _ => return Ok(wrong(format!("overflow is {overflow:?}; expected \"push_back\" or \"drop_oldest\""))),
    };
    Ok(Ok(Settings { method, batch, queue_max, overflow, flush_after }))
}

/// The names of members by their nodes, for reports.
#[derive(Clone)]
struct Names(Vec<(sheave_base::NodeId, String)>);

impl Names {
    fn of(mesh: &Mesh) -> Self {
        Self(mesh.members().iter().map(|member| (member.node, member.introduction.name.to_string())).collect())
    }

    fn id(&self, id: &GradientId) -> (String, u32, u64) {
        let known = self.0.iter().find(|(node, _)| *node == id.node);
        (known.map_or_else(|| id.node.to_string(), |(_, name)| name.clone()), id.client, id.number)
    }

    fn losses(&self, losses: &Losses) -> (u64, Vec<(String, u32, u64)>) {
        (losses.count, losses.latest.iter().map(|id| self.id(id)).collect())
    }
}

/// A gradient server of this process. `sheave.learner.GradientServer` is its face.
#[pyclass(name = "GradientServer", module = "sheave._core", frozen, weakref)]
pub(crate) struct PyGradientServer {
    server: Guarded<GradientServer>,
    names: Names,
}

#[pymethods]
impl PyGradientServer {
    /// Start a server, which is a Work of one. A primary has parameters and an optimizer, or a function as its step.
    #[staticmethod]
    #[pyo3(signature = (
        group, servers, model, settings, *, version = 0, parameters = None, optimizer = None, step = None,
        publish = None, on_drop = None, timeout = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn start(
        py: Python<'_>,
        group: &PyRpcGroup,
        servers: Named<'_>,
        model: Described<'_>,
        settings: Reduced,
        version: u64,
        parameters: Option<&Bound<'_, PyDict>>,
        optimizer: Option<&str>,
        step: Option<Py<PyAny>>,
        publish: Option<Py<PyAny>>,
        on_drop: Option<Py<PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<PyWork> {
        let (mesh, limit) = (group.mesh(py)?, span(timeout)?);
        let (servers, model) = (self::servers(&mesh, servers)?, self::model(py, model)?);
        let mut builder = GradientServer::builder(&mesh, group.group(py)?, &servers, &model);
        builder = builder.settings(self::settings(settings)?.or_raise(py)?);
        let is_primary = servers.primary == mesh.me().node;
        if let Some(parameters) = parameters.filter(|_| is_primary) {
            builder = builder.start_from(version, tensors(parameters)?);
        }
        if let Some(document) = optimizer {
            builder = builder.optimizer(self::optimizer(py, document)?);
        }
        if let Some(function) = step {
            let function = Function::new("step", function);
            builder = builder.step(move |gradients, count| {
                function.call(gradients, count)?;
                // The function has the parameters: whoever publishes asks it for them.
                Ok(Some(Tensors::new()))
            });
        }
        if let Some(function) = publish {
            let function = Function::new("publish", function);
            builder = builder.publish(move |parameters, version| function.call(parameters, version));
        }
        let names = Names::of(&mesh);
        if let Some(function) = on_drop {
            let (drops, names) = (Drops::new(py, function)?, names.clone());
            builder = builder.on_drop(move |ids| drops.tell(ids.iter().map(|id| names.id(id))));
        }
        let convert =
            move |py: Python<'_>, server| Ok(Py::new(py, Self { server: Guarded::new(server), names })?.into_any());
        begun(py, || builder.start(limit), convert)
    }

    /// Stop the server.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let server = self.server.check("gradient server").or_raise(py)?;
        py.detach(|| server.stop());
        Ok(())
    }

    /// A Work that ends when the server does.
    fn watch(&self, py: Python<'_>) -> PyResult<PyWork> {
        let watched = self.server.check("gradient server").or_raise(py)?.watch();
        Ok(PyWork::had_by(watched, now_ns(), sheave_base::Work::wait, |py, ()| Ok(py.None())))
    }

    /// Send on and step what is there, without waiting for that.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let server = self.server.check("gradient server").or_raise(py)?;
        py.detach(|| server.flush());
        Ok(())
    }

    /// What the server has done so far, as a dictionary.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let server = self.server.check("gradient server").or_raise(py)?;
        let report = py.detach(|| server.report());
        self.reported(py, &report)
    }
}

impl PyGradientServer {
    fn reported<'py>(&self, py: Python<'py>, report: &ServerReport) -> PyResult<Bound<'py, PyDict>> {
        let made = PyDict::new(py);
        made.set_item("taken", report.taken)?;
        made.set_item("forwarded", report.forwarded)?;
        made.set_item("queued", report.queued)?;
        made.set_item("waiting", report.waiting)?;
        made.set_item("dropped", self.names.losses(&report.dropped))?;
        let primary = report.primary.as_ref().map(|primary| self.reported_primary(py, primary)).transpose()?;
        made.set_item("primary", primary)?;
        Ok(made)
    }

    fn reported_primary<'py>(&self, py: Python<'py>, report: &PrimaryReport) -> PyResult<Bound<'py, PyDict>> {
        let made = PyDict::new(py);
        made.set_item("version", report.version)?;
        made.set_item("applied", report.applied)?;
        made.set_item("queued", report.queued)?;
        made.set_item("dropped", self.names.losses(&report.dropped))?;
        made.set_item("lost", self.names.losses(&report.lost))?;
        Ok(made)
    }
}

/// A learner's access to gradient servers. `sheave.learner.GradientClient` is its face.
#[pyclass(name = "GradientClient", module = "sheave._core", frozen, weakref)]
pub(crate) struct PyGradientClient {
    client: Guarded<GradientClient>,
}

#[pymethods]
impl PyGradientClient {
    /// Connect to servers, which is a Work of a client. `choice` is the place of the secondary that gets all gradients;
    /// without it they take turns.
    #[staticmethod]
    #[pyo3(signature = (group, servers, *, choice = None, timeout = None))]
    fn connect(
        py: Python<'_>,
        group: &PyRpcGroup,
        servers: Named<'_>,
        choice: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<PyWork> {
        let (mesh, limit) = (group.mesh(py)?, span(timeout)?);
        let (servers, choice) = (self::servers(&mesh, servers)?, choice.map_or(Choice::RoundRobin, Choice::Fixed));
        let group = group.group(py)?;
        let convert = |py: Python<'_>, client| Ok(Py::new(py, Self { client: Guarded::new(client) })?.into_any());
        begun(py, || GradientClient::connect(&mesh, group, &servers, choice, limit), convert)
    }

    /// The names of the parameters whose gradients the servers take.
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let client = self.client.check("gradient client").or_raise(py)?;
        PyList::new(py, client.model().names().collect::<Vec<_>>())
    }

    /// Push one gradient for each parameter: a Work of the gradient's number.
    #[pyo3(signature = (gradients, *, timeout = None))]
    fn push(&self, gradients: &Bound<'_, PyDict>, timeout: Option<f64>) -> PyResult<PyWork> {
        let (py, limit) = (gradients.py(), span(timeout)?);
        let client = self.client.check("gradient client").or_raise(py)?;
        let gradients = tensors(gradients)?;
        begun(py, || client.push_within(&gradients, limit), number)
    }

    /// Have everything applied that was taken before: a Work of the version then.
    fn flush(&self, py: Python<'_>) -> PyResult<PyWork> {
        let client = self.client.check("gradient client").or_raise(py)?;
        begun(py, || client.flush(), number)
    }

    /// Ask what became of all gradients: a Work of a dictionary.
    fn report(&self, py: Python<'_>) -> PyResult<PyWork> {
        let client = self.client.check("gradient client").or_raise(py)?;
        begun(
            py,
            || client.report(),
            |py, report| {
                Ok(py.import("sheave.learner")?.getattr("_client_report")?.call1((reported(py, &report)?,))?.unbind())
            },
        )
    }

    /// What is known of that without asking anybody.
    fn known<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let client = self.client.check("gradient client").or_raise(py)?;
        reported(py, &py.detach(|| client.known()))
    }
}

fn number(py: Python<'_>, number: u64) -> PyResult<Py<PyAny>> {
    Ok(number.into_pyobject(py)?.into_any().unbind())
}

fn reported<'py>(py: Python<'py>, report: &ClientReport) -> PyResult<Bound<'py, PyDict>> {
    let made = PyDict::new(py);
    let counts = [
        ("pushed", report.pushed),
        ("acknowledged", report.acknowledged),
        ("applied", report.applied),
        ("dropped", report.dropped),
        ("lost", report.lost),
        ("pending", report.pending),
        ("moved", report.moved),
    ];
    for (name, count) in counts {
        made.set_item(name, count)?;
    }
    made.set_item("lost_numbers", report.lost_numbers.iter().copied().collect::<Vec<_>>())?;
    let moves: Vec<_> = report.moves.iter().map(|moved| (moved.number, &moved.from, &moved.to)).collect();
    made.set_item("moves", moves)?;
    made.set_item("gone", &report.gone)?;
    Ok(made)
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyGradientServer>()?;
    module.add_class::<PyGradientClient>()
}
