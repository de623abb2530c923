//! `sheave.versions`: keys whose values have versions, at one process, for the members of a group.

use crate::enter::span;
use crate::errors::OrRaise;
use crate::guarded::Guarded;
use crate::mesh::PyMesh;
use crate::pool::sendable;
use crate::rpc::{PyRpcGroup, begun, key, nothing, truth};
use crate::value::{Opener, pack};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyList};
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_rpc::{
    Contents, Entry, Pin, Pulled, PushOutcome, Pushed, Rules, Versions, VersionsClient, VersionsReport,
    VersionsSettings, Wanted,
};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use std::time::Duration;

/// A table of keys whose values have versions, in this process, for the members of groups in which it is registered,
/// and for whoever has such a group. `RpcGroup.versions` finds it.
///
/// It keeps the newest `depth` versions of each key and those that are pinned. `bytes_max` bounds the bytes of all
/// values and `keys_max` the keys. A push is accepted that names the newest version as the one that it was made from,
/// and a version that is not there yet; with `rules="machin"` an unknown key takes any push, and a version that is
/// there is overwritten where it stands. With `has_guests` the processes of this mesh's fleets use it too: there
/// `Guest.versions` finds it. Guests that this process has not started itself may not.
///
/// >>> group = mesh.rpc_group("training", [0])
/// >>> models = sheave.versions.Versions(mesh, depth=2)
/// >>> models.register(group, "models")
/// >>> table = group.versions("models")
/// >>> bool(table.push("policy", {"weights": np.zeros(3), "steps": 0}, version=0))
/// True
/// >>> table.push("policy", {"weights": np.ones(3), "steps": 9}, version=1, previous=5).outcome
/// 'stale'
/// >>> pushed = table.push_changes("policy", {"steps": 10}, version=1, previous=0)
/// >>> pulled = table.pull("policy")
/// >>> pulled.version, pulled.value["steps"]
/// (1, 10)
/// >>> table.pull("policy", newer_than=1).is_unchanged
/// True
#[pyclass(name = "Versions", module = "sheave.versions", frozen, weakref)]
pub(crate) struct PyVersions {
    versions: Guarded<Versions>,
    opener: Opener,
}

#[pymethods]
impl PyVersions {
    #[new]
    #[pyo3(signature = (mesh, *, depth = 1, bytes_max = None, keys_max = None, rules = "strict", has_guests = false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        mesh: &PyMesh,
        depth: usize,
        bytes_max: Option<u64>,
        keys_max: Option<usize>,
        rules: &str,
        has_guests: bool,
    ) -> PyResult<Self> {
        let usual = VersionsSettings::default();
        let rules = match rules {
            "strict" => Ok(Rules::Strict),
            "machin" => Ok(Rules::Machin),
            other => {
                let what = format!("rules is {other:?}; expected \"strict\" or \"machin\"");
                Err(Error::new(ErrorKind::InvalidArgument, what).operation("make versions"))
            }
        };
        let settings = VersionsSettings {
            depth,
            bytes_max: bytes_max.unwrap_or(usual.bytes_max),
            keys_max: keys_max.unwrap_or(usual.keys_max),
            rules: rules.or_raise(py)?,
            has_guests,
            // Values may be pickles, which the members open that pull them.
            is_for_trusted: true,
        };
        let joined = mesh.mesh().or_raise(py)?;
        let versions = Versions::new(&joined, settings).or_raise(py)?;
        Ok(Self { versions: Guarded::new(versions), opener: mesh.opener(&joined) })
    }

    /// Serve the table in a group under this key, until it is taken away by `RpcGroup.deregister`.
    #[pyo3(signature = (group, key, *, timeout = None))]
    fn register(&self, group: &PyRpcGroup, key: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let (py, limit) = (key.py(), span(timeout)?);
        let (service, key) = (self.versions.check("versions").or_raise(py)?.service(), self::key(key)?);
        let group = group.group(py)?;
        begun(py, || group.register(key, service, limit), nothing)?.given(py, false)
    }

    /// A client in this process, which needs no group.
    ///
    /// >>> table = sheave.versions.Versions(mesh).client()
    /// >>> table.push("policy", [1, 2], version=1).outcome, table.pull("policy").value
    /// ('accepted', [1, 2])
    fn client(&self, py: Python<'_>) -> PyResult<PyVersionsClient> {
        let versions = self.versions.check("versions").or_raise(py)?;
        Ok(PyVersionsClient::new(versions.client().or_raise(py)?, self.opener.clone()))
    }

    /// What the table has, and has done: a dictionary of numbers.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        reported(py, &self.versions.check("versions").or_raise(py)?.report())
    }
}

fn reported<'py>(py: Python<'py>, report: &VersionsReport) -> PyResult<Bound<'py, PyDict>> {
    let count = |count: usize| count as u64;
    let numbers = [
        ("keys", count(report.keys)),
        ("versions", count(report.versions)),
        ("bytes", report.bytes),
        ("watches", count(report.watches)),
        ("pins", count(report.pins)),
        ("accepted", report.accepted),
        ("refused", report.refused),
        ("dropped_for_depth", report.dropped_for_depth),
        ("dropped_for_bytes", report.dropped_for_bytes),
        ("removed", report.removed),
    ];
    numbers.into_py_dict(py)
}

/// A table of versioned objects that a member of a group serves, as `RpcGroup.versions` finds it.
///
/// Keys and versions are numbers, texts and other plain values. Values are whatever pickles; dictionaries whose keys
/// are texts are kept entry by entry, and arrays in plain values travel as they are, without a pickle. What is stored
/// is never written again: each push is copied once.
///
/// Each method takes `timeout`, in seconds, after which it raises DeadlineExceeded; without one it waits for as long as
/// the server lives. PeerLost names a server that is gone. With `async_op` methods return a `Work` and do not wait.
///
/// >>> group = mesh.rpc_group("tables", [0])
/// >>> sheave.versions.Versions(mesh).register(group, "models")
/// >>> table = group.versions("models")
/// >>> watch = table.watch("policy", async_op=True)
/// >>> table.push("policy", {"weights": np.arange(3)}, version=1)
/// Pushed(outcome='accepted', newest=1, dropped=[])
/// >>> watch.wait().value["weights"].tolist()
/// [0, 1, 2]
#[pyclass(name = "VersionsClient", module = "sheave.versions", frozen, weakref)]
pub(crate) struct PyVersionsClient {
    client: Guarded<VersionsClient>,
    opener: Opener,
}

/// Makes an object of `sheave.versions` of what has come.
fn made<'py, A>(py: Python<'py>, class: &str, args: A) -> PyResult<Py<PyAny>>
where
    A: pyo3::call::PyCallArgs<'py>,
{
    Ok(py.import("sheave.versions")?.getattr(class)?.call1(args)?.unbind())
}

fn outcome_name(outcome: PushOutcome) -> &'static str {
    match outcome {
        PushOutcome::Accepted => "accepted",
        PushOutcome::Overwritten => "overwritten",
        PushOutcome::Stale => "stale",
        PushOutcome::AlreadyExists => "already_exists",
        PushOutcome::Pinned => "pinned",
        _ => "refused",
    }
}

/// What is pushed.
fn entry(object: &Bound<'_, PyAny>) -> PyResult<Entry> {
    let (value, tensors) = sendable(object.py(), pack(object)?)?;
    Ok(Entry { value, tensors })
}

/// How the tensors of a pull come.
fn mode(share: bool) -> Mode {
    if share { Mode::Share } else { Mode::Copy }
}

impl PyVersionsClient {
    pub(crate) fn new(client: VersionsClient, opener: Opener) -> Self {
        Self { client: Guarded::new(client), opener }
    }

    fn within(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<VersionsClient> {
        let client = self.client.check("versions").or_raise(py)?;
        Ok(client.clone().with_timeout(span(timeout)?))
    }

    fn pushed(
        &self,
        py: Python<'_>,
        start: impl FnOnce() -> Result<Work<Pushed>> + Send,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let opener = self.opener.clone();
        let convert = move |py: Python<'_>, pushed: Pushed| {
            let plain = |value: Value| opener.unpack(py, value, &[]);
            let dropped = PyList::empty(py);
            for version in pushed.dropped {
                dropped.append((plain(version.key)?, plain(version.version)?))?;
            }
            let newest = pushed.newest.map(plain).transpose()?;
            made(py, "Pushed", (outcome_name(pushed.outcome), newest, dropped))
        };
        begun(py, start, convert)?.given(py, async_op)
    }

    /// Makes Python's object of what was pulled.
    fn opened(opener: &Opener, py: Python<'_>, pulled: Pulled, share: bool) -> PyResult<Py<PyAny>> {
        let Pulled { version, contents } = pulled;
        let version = opener.unpack(py, version, &[])?;
        let object = |value: Value, tensors: &[Tensor]| {
            opener.check(&value).or_raise(py)?;
            if share { opener.unpack_read_only(py, value, tensors) } else { opener.unpack(py, value, tensors) }
        };
        match contents {
            Contents::Unchanged => made(py, "Pulled", (version, "unchanged")),
            Contents::Whole { value, tensors } => made(py, "Pulled", (version, "whole", object(value, &tensors)?)),
            Contents::Changes { changed, tensors, removed } => {
                made(py, "Pulled", (version, "changes", object(changed, &tensors)?, removed))
            }
        }
    }
}

#[pymethods]
impl PyVersionsClient {
    /// Push a value as this version of a key, made from the `previous` version; None is for a key that has none.
    /// Returns what became of it, which is true if it was accepted. Raises LimitExceeded for what does not fit.
    #[pyo3(signature = (key, value, version, previous = None, *, async_op = false, timeout = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn push(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        version: &Bound<'_, PyAny>,
        previous: Option<&Bound<'_, PyAny>>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let (py, client) = (key.py(), self.within(key.py(), timeout)?);
        let (key, version, previous) = (self::key(key)?, self::key(version)?, previous.map(self::key).transpose()?);
        let entry = entry(value)?;
        self.pushed(py, || client.push(key, entry, version, previous), async_op)
    }

    /// Push a version that is the `previous` one with these entries of its dictionary replaced or added, and those of
    /// the `removed` names taken out. Returns what became of it.
    #[pyo3(signature = (key, changes, version, previous, *, removed = Vec::new(), async_op = false, timeout = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn push_changes(
        &self,
        key: &Bound<'_, PyAny>,
        changes: &Bound<'_, PyDict>,
        version: &Bound<'_, PyAny>,
        previous: &Bound<'_, PyAny>,
        removed: Vec<String>,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let (py, client) = (key.py(), self.within(key.py(), timeout)?);
        let (key, version, previous) = (self::key(key)?, self::key(version)?, self::key(previous)?);
        let entry = entry(changes)?;
        let start = move || {
            let removed: Vec<&str> = removed.iter().map(String::as_str).collect();
            client.push_changes(key, entry, &removed, version, previous)
        };
        self.pushed(py, start, async_op)
    }

    /// Pull a version, or the newest one; None if it is not there. With `newer_than` nothing moves if that is the
    /// newest one, and the changed entries of a dictionary alone if the server still has that version.
    ///
    /// With `share` arrays are the memory of the server where this process reaches it: they are read-only, and tensors
    /// of torch must not be written. Otherwise they are copies.
    #[pyo3(signature = (key, version = None, *, newer_than = None, share = false, async_op = false, timeout = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn pull(
        &self,
        key: &Bound<'_, PyAny>,
        version: Option<&Bound<'_, PyAny>>,
        newer_than: Option<&Bound<'_, PyAny>>,
        share: bool,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let (py, client) = (key.py(), self.within(key.py(), timeout)?);
        let wanted = match (version, newer_than) {
            (None, None) => Wanted::Newest,
            (Some(version), None) => Wanted::Version(self::key(version)?),
            (None, Some(known)) => Wanted::NewerThan(self::key(known)?),
            (Some(_), Some(_)) => {
                let what = "both version and newer_than are given; expected one of them";
                return Err(Error::new(ErrorKind::InvalidArgument, what).operation("pull")).or_raise(py);
            }
        };
        let (key, opener) = (self::key(key)?, self.opener.clone());
        let convert = move |py: Python<'_>, pulled: Option<Pulled>| match pulled {
            Some(pulled) => Self::opened(&opener, py, pulled, share),
            None => Ok(py.None()),
        };
        begun(py, || client.pull(key, wanted, mode(share)), convert)?.given(py, async_op)
    }

    /// Wait for another version of a key than `newer_than`, or for any, and pull it; the key need not be there yet.
    #[pyo3(signature = (key, newer_than = None, *, share = false, async_op = false, timeout = None))]
    fn watch(
        &self,
        key: &Bound<'_, PyAny>,
        newer_than: Option<&Bound<'_, PyAny>>,
        share: bool,
        async_op: bool,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let (py, client) = (key.py(), self.within(key.py(), timeout)?);
        let (key, known) = (self::key(key)?, newer_than.map(self::key).transpose()?);
        let opener = self.opener.clone();
        let convert = move |py: Python<'_>, pulled: Pulled| Self::opened(&opener, py, pulled, share);
        begun(py, || client.watch(key, known, mode(share)), convert)?.given(py, async_op)
    }

    /// Keep a version, or the newest one, while it is read: until the pin is released, or not in use any more, or for
    /// `lease` seconds. None if the version is not there.
    #[pyo3(signature = (key, version = None, *, lease = 60.0, timeout = None))]
    fn pin(
        &self,
        key: &Bound<'_, PyAny>,
        version: Option<&Bound<'_, PyAny>>,
        lease: f64,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let (py, client) = (key.py(), self.within(key.py(), timeout)?);
        let (key, version) = (self::key(key)?, version.map(self::key).transpose()?);
        let (lease, opener) = (span(Some(lease))?.unwrap_or(Duration::MAX), self.opener.clone());
        let convert = move |py: Python<'_>, pin: Option<Pin>| match pin {
            Some(pin) => Ok(Py::new(py, PyPin { pin: Guarded::new(pin), opener })?.into_any()),
            None => Ok(py.None()),
        };
        begun(py, || client.pin(key, version, lease), convert)?.given(py, false)
    }

    /// The versions of a key, the newest last.
    #[pyo3(signature = (key, *, timeout = None))]
    fn versions(&self, key: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let (py, client) = (key.py(), self.within(key.py(), timeout)?);
        let (key, opener) = (self::key(key)?, self.opener.clone());
        let convert = move |py: Python<'_>, versions| Ok(opener.unpack(py, Value::List(versions), &[])?.unbind());
        begun(py, || client.versions(key), convert)?.given(py, false)
    }

    /// Drop a key with all its versions. Returns whether it was there.
    #[pyo3(signature = (key, *, timeout = None))]
    fn remove(&self, key: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let (py, client) = (key.py(), self.within(key.py(), timeout)?);
        let key = self::key(key)?;
        begun(py, || client.remove(key), truth)?.given(py, false)
    }

    /// What the table has, and has done: a dictionary of numbers.
    #[pyo3(signature = (*, timeout = None))]
    fn report(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let client = self.within(py, timeout)?;
        let convert = |py: Python<'_>, report: VersionsReport| Ok(reported(py, &report)?.into_any().unbind());
        begun(py, || client.report(), convert)?.given(py, false)
    }

    fn __repr__(&self) -> String {
        format!("<sheave.versions.VersionsClient of node {}>", self.client.server())
    }
}

/// A version that is kept while somebody reads it: a context, at whose end it is released.
///
/// >>> group = mesh.rpc_group("pinned", [0])
/// >>> sheave.versions.Versions(mesh).register(group, "models")
/// >>> table = group.versions("models")
/// >>> table.push("policy", "good", version=1).outcome
/// 'accepted'
/// >>> with table.pin("policy") as pin:
/// ...     table.push("policy", "better", version=2, previous=1).outcome, table.pull("policy", pin.version).value
/// ('accepted', 'good')
/// >>> table.versions("policy")
/// [2]
#[pyclass(name = "Pin", module = "sheave.versions", frozen, weakref)]
pub(crate) struct PyPin {
    pin: Guarded<Pin>,
    opener: Opener,
}

#[pymethods]
impl PyPin {
    /// The version that it keeps.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let pin = self.pin.check("pin").or_raise(py)?;
        Ok(self.opener.unpack(py, pin.version().clone(), &[])?.unbind())
    }

    /// End the pin. Returns whether it was there: False if its lease was over, or it was released before.
    fn release(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let pin = self.pin.check("pin").or_raise(py)?;
        begun(py, || pin.release(), truth)?.given(py, false)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyAny>) -> PyResult<()> {
        self.release(py).map(drop)
    }
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyVersions>()?;
    module.add_class::<PyVersionsClient>()?;
    module.add_class::<PyPin>()
}
