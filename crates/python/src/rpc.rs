//! `sheave.RpcGroup`: groups of members by name, and in them functions that are sent along, services and values by key.

use crate::calls::{self, Arguments, Callee, FUNCTIONS};
use crate::errors::{self, OrRaise};
use crate::guarded::Guarded;
use crate::mesh::{self, PyMember, PyMesh};
use crate::references::{self, PyRef};
use crate::value::{Opener, opening, pack};
use crate::versions::PyVersionsClient;
use crate::work::{PyWork, now_ns};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_mesh::{Answer, Call, Mesh, Ref, ServiceName};
use sheave_rpc::{GroupHandle, RpcGroup};
use sheave_wire::Value;
use std::sync::Arc;
use std::time::Duration;

/// A group of members, found by its name, whose members call functions on each other and register services and pair
/// values under keys. `Mesh.rpc_group` makes one.
///
/// Members alone register and pair; whoever has the group calls and gets, other members of the mesh included, to which
/// it travels in arguments, results and pickles. Keys are whatever pickles; plain values are equal if they are of one
/// type and equal, so that 1 and True are two keys. What a member has registered and paired stays until it takes it
/// away, leaves the group or dies, and then nobody finds it any more; nothing is lost with any other member. Whoever
/// looks for what was lost with a member gets PeerLost, which names it, until another one has the key.
///
/// Each method takes `timeout`, in seconds, after which it raises DeadlineExceeded; without one it waits for as long as
/// those whom it needs live. PeerLost names one who is gone.
///
/// >>> group = mesh.rpc_group("workers", [0])
/// >>> group.register("double", lambda number: 2 * number)
/// >>> group.registered_sync("double", (21,))
/// 42
/// >>> group.rpc_sync("rank-0", pow, (2, 10))
/// 1024
#[pyclass(name = "RpcGroup", module = "sheave", frozen, weakref)]
pub(crate) struct PyRpcGroup {
    group: Guarded<RpcGroup>,
    opener: Opener,
}

/// Arguments of [`open_rpc_group`].
type Opened = (String, u64, Vec<u64>);

/// A key of Python's as a value.
pub(crate) fn key(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    let packed = pack(object)?;
    if packed.tensors.is_empty() && packed.refs.is_empty() {
        return Ok(packed.value);
    }
    let what = format!("a {} as a key; expected a number, a text or another value without arrays", object.get_type());
    Err(Error::new(ErrorKind::InvalidArgument, what).operation("rpc")).or_raise(object.py())
}

/// A work of the group that has begun.
pub(crate) fn begun<T: Send + 'static>(
    py: Python<'_>,
    start: impl FnOnce() -> Result<Work<T>> + Send,
    convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<PyWork> {
    let begun_ns = now_ns();
    let work = py.detach(start).or_raise(py)?;
    Ok(PyWork::of(work, begun_ns, convert))
}

pub(crate) fn nothing(py: Python<'_>, (): ()) -> PyResult<Py<PyAny>> {
    Ok(py.None())
}

pub(crate) fn truth(py: Python<'_>, is_so: bool) -> PyResult<Py<PyAny>> {
    Ok(is_so.into_pyobject(py)?.to_owned().into_any().unbind())
}

impl PyRpcGroup {
    pub(crate) fn new(group: RpcGroup, opener: Opener) -> Self {
        Self { group: Guarded::new(group), opener }
    }

    /// Makes a group with the members of these ranks, names or `Member`s; of all members if there are none.
    pub(crate) fn make(
        py: Python<'_>,
        owner: &PyMesh,
        name: &str,
        members: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let mesh = owner.mesh().or_raise(py)?;
        let nodes: Vec<NodeId> = match members {
            None => mesh.members().iter().map(|member| member.node).collect(),
            Some(members) => {
                members.try_iter()?.map(|member| calls::callee(&mesh, &member?)).collect::<PyResult<_>>()?
            }
        };
        let (rpc, opener, limit) = (owner.rpc(), owner.opener(&mesh), crate::enter::span(timeout)?);
        let convert = |py: Python<'_>, group| Ok(Py::new(py, Self::new(group, opener))?.into_any());
        begun(py, || Ok(rpc.create_group(name, &nodes, limit)), convert)?.given(py, false)
    }

    pub(crate) fn group(&self, py: Python<'_>) -> PyResult<&RpcGroup> {
        self.group.check("rpc group").or_raise(py)
    }

    pub(crate) fn mesh(&self, py: Python<'_>) -> PyResult<Mesh> {
        self.opener.mesh().or_raise(py)
    }

    /// The member of the group that is called.
    fn member(&self, to: &Bound<'_, PyAny>) -> PyResult<NodeId> {
        let py = to.py();
        let (mesh, group) = (self.mesh(py)?, self.group(py)?);
        let node = calls::callee(&mesh, to)?;
        if group.members().contains(&node) {
            return Ok(node);
        }
        let what = format!("{} is not in the group \"{}\"", to.repr()?, group.name());
        Err(Error::new(ErrorKind::InvalidArgument, what).operation("rpc").hint("call one of its members")).or_raise(py)
    }

    /// Does something with a key, and waits for it.
    fn by_key<T: Send + 'static>(
        &self,
        key: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        start: impl FnOnce(&RpcGroup, Value, Option<Duration>) -> Result<Work<T>> + Send,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        let (py, limit) = (key.py(), crate::enter::span(timeout)?);
        let (group, key) = (self.group(py)?, self::key(key)?);
        begun(py, || start(group, key, limit), convert)?.given(py, false)
    }

    /// Waits until the service of a key is found: on which node, and by which name.
    fn found(&self, py: Python<'_>, key: Value, limit: Option<Duration>) -> PyResult<(NodeId, ServiceName)> {
        let group = self.group(py)?;
        crate::enter::enter(py, None, |_, interrupt| {
            let found = group.find(key, limit)?;
            found.wait_until(None, interrupt)?;
            found.taken()
        })
    }

    /// A function and its arguments, as the other end takes them.
    fn call_of<'py>(
        function: &Bound<'py, PyAny>,
        args: Option<&Bound<'py, PyAny>>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let py = function.py();
        (function, calls::positional(py, args)?, kwargs).into_pyobject(py)
    }

    fn function_called(
        &self,
        to: &Bound<'_, PyAny>,
        function: &Bound<'_, PyAny>,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        timeout: Option<f64>,
    ) -> PyResult<PyWork> {
        let (py, node) = (to.py(), self.member(to)?);
        let call = Self::call_of(function, args, kwargs)?;
        let callee = Callee { node, service: FUNCTIONS, method: "" };
        let packed = calls::packed_arguments((&call, None))?;
        calls::ask(py, &self.opener, callee, packed, crate::enter::span(timeout)?)
    }

    fn service_called(
        &self,
        name: &Bound<'_, PyAny>,
        method: &str,
        args: Arguments<'_, '_>,
        deadline: Option<Duration>,
    ) -> PyResult<PyWork> {
        let (py, group, name) = (name.py(), self.group(name.py())?, key(name)?);
        let packed = calls::packed_arguments(args)?;
        if !(packed.tensors.is_empty() && packed.refs.is_empty()) {
            // What may change meanwhile is sent when its callee is found, in a wait that Ctrl-C ends.
            let (node, service) = self.found(py, name, deadline)?;
            return calls::ask(py, &self.opener, Callee { node, service, method }, packed, deadline);
        }
        let begun_ns = now_ns();
        let call = Call { args: packed.value, tensors: packed.tensors, deadline, ..Call::default() };
        let work = py.detach(|| group.call(name, method, call)).or_raise(py)?;
        drop(packed.refs);
        let (opener, explain) = (self.opener.clone(), self.opener.explanation());
        let convert =
            move |py: Python<'_>, answer: Answer| Ok(opener.unpack(py, answer.value, &answer.tensors)?.unbind());
        Ok(PyWork::explained(work, begun_ns, convert, explain))
    }
}

#[pymethods]
impl PyRpcGroup {
    /// The name of the group.
    #[getter]
    fn name(&self) -> &str {
        self.group.name()
    }

    /// The number that its members have agreed on when they made it; a group that is made again has a higher one.
    #[getter]
    fn generation(&self) -> u64 {
        self.group.generation()
    }

    /// The members by their ranks in the mesh, those who are gone included.
    #[getter]
    fn members(&self, py: Python<'_>) -> PyResult<Vec<PyMember>> {
        let mesh = self.mesh(py)?;
        Ok(self.group.members().iter().filter_map(|node| mesh.member(*node)).map(PyMember::from).collect())
    }

    /// The number of members.
    #[getter]
    fn size(&self) -> usize {
        self.group.members().len()
    }

    /// True if this process is in the group.
    #[getter]
    fn is_member(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.group(py)?.is_member())
    }

    /// Call a function on a member, given by its rank in the mesh, its name, or a Member; and wait for its result.
    ///
    /// Function, arguments and result travel as sheave.pickling says, and are captured before the call returns. It runs
    /// on a thread of that member, several at a time, and may wait there for whatever it likes. Raises what it has
    /// raised, as Mesh.call does.
    ///
    /// >>> mesh.rpc_group("squares", [0]).rpc_sync(0, sum, ([1, 2, 3],), timeout=10)
    /// 6
    #[pyo3(signature = (to, func, args = None, kwargs = None, *, timeout = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn rpc_sync(
        &self,
        py: Python<'_>,
        to: &Bound<'_, PyAny>,
        func: &Bound<'_, PyAny>,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        self.function_called(to, func, args, kwargs, timeout)?.given(py, false)
    }

    /// Call a function on a member as rpc_sync does; returns a Work.
    ///
    /// >>> mesh.rpc_group("numbers", [0]).rpc_async(0, sum, ([1, 2, 3],)).wait(timeout=10)
    /// 6
    #[pyo3(signature = (to, func, args = None, kwargs = None, *, timeout = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn rpc_async(
        &self,
        py: Python<'_>,
        to: &Bound<'_, PyAny>,
        func: &Bound<'_, PyAny>,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        self.function_called(to, func, args, kwargs, timeout)?.given(py, true)
    }

    /// Call a function on a member and keep the result there; returns a Ref to it at once, as Mesh.remote does.
    ///
    /// >>> numbers = mesh.rpc_group("lists", [0]).remote(0, list, ((3, 1, 2),))
    /// >>> numbers.call("sort"), numbers.to_here(timeout=10)
    /// (None, [1, 2, 3])
    #[pyo3(signature = (to, func, args = None, kwargs = None))]
    fn remote(
        &self,
        py: Python<'_>,
        to: &Bound<'_, PyAny>,
        func: &Bound<'_, PyAny>,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyRef> {
        let node = self.member(to)?;
        let packed = calls::packed_arguments((&Self::call_of(func, args, kwargs)?, None))?;
        let callee = Callee { node, service: FUNCTIONS, method: "" };
        calls::begin_remote(py, self.opener.clone(), callee, packed, |fill, args| vec![fill, args])
    }

    /// Let all who have the group call `service` under this key, as Mesh.serve lets members: a function, or the public
    /// methods of an object. Each has threads of its own, so that a slow one delays no other. Returns when everybody
    /// finds it.
    ///
    /// Raises AlreadyExists for a key that a member has, NotPermitted where this process is not in the group.
    ///
    /// >>> group = mesh.rpc_group("adders", [0])
    /// >>> group.register("sum", sum)
    /// >>> group.registered_sync("sum", ([1, 2],))
    /// 3
    #[pyo3(signature = (key, service, *, lane = None, timeout = None))]
    fn register(
        &self,
        key: &Bound<'_, PyAny>,
        service: &Bound<'_, PyAny>,
        lane: Option<&str>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let (py, name, limit) = (key.py(), key.repr()?.to_string(), crate::enter::span(timeout)?);
        let (group, key) = (self.group(py)?, self::key(key)?);
        let service = calls::service(&name, service, lane, self.opener.clone())?;
        begun(py, || group.register(key, service, limit), nothing)?.given(py, false)
    }

    /// Let nobody call the service of this key any more. Raises NotFound where this process has none.
    ///
    /// >>> group = mesh.rpc_group("removed", [0])
    /// >>> group.register("sum", sum)
    /// >>> group.deregister("sum")
    #[pyo3(signature = (key, *, timeout = None))]
    fn deregister(&self, key: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.by_key(key, timeout, RpcGroup::deregister, nothing)
    }

    /// Find the table of versioned objects that a member has registered under this key.
    ///
    /// >>> group = mesh.rpc_group("with tables", [0])
    /// >>> sheave.versions.Versions(mesh).register(group, "models")
    /// >>> group.versions("models").pull("policy") is None
    /// True
    #[pyo3(signature = (key, *, timeout = None))]
    fn versions(&self, key: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let opener = self.opener.clone();
        let convert = |py: Python<'_>, client| Ok(Py::new(py, PyVersionsClient::new(client, opener))?.into_any());
        self.by_key(key, timeout, RpcGroup::versions, convert)
    }

    /// Whether a member has registered a service under this key.
    ///
    /// >>> mesh.rpc_group("asked", [0]).is_registered("sum", timeout=10)
    /// False
    #[pyo3(signature = (key, *, timeout = None))]
    fn is_registered(&self, key: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.by_key(key, timeout, RpcGroup::is_registered, truth)
    }

    /// Whether a service of this key is found, now or before.
    #[pyo3(signature = (key, *, timeout = None))]
    fn _finds(&self, key: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<bool> {
        let (py, limit) = (key.py(), crate::enter::span(timeout)?);
        let key = self::key(key)?;
        if self.group(py)?.has_found(key.clone()).or_raise(py)? {
            return Ok(true);
        }
        match self.found(py, key, limit) {
            Err(error) if errors::kind_of(error.value(py)) == Some(ErrorKind::NotFound) => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// Call the service of this key, or a method of it, wherever it is; and wait for the result, as Mesh.call does.
    /// Raises NotFound where nobody has registered it, and PeerLost that names who has died with it.
    ///
    /// >>> group = mesh.rpc_group("indices", [0])
    /// >>> group.register("numbers", [3, 1, 2])
    /// >>> group.registered_sync("numbers", (1,), method="index")
    /// 1
    #[pyo3(signature = (key, args = None, kwargs = None, *, method = "", timeout = None))]
    fn registered_sync(
        &self,
        key: &Bound<'_, PyAny>,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        method: &str,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let args = calls::positional(key.py(), args)?;
        let limit = crate::enter::span(timeout)?;
        self.service_called(key, method, (&args, kwargs), limit)?.given(key.py(), false)
    }

    /// Call the service of this key as registered_sync does; returns a Work.
    ///
    /// >>> group = mesh.rpc_group("later", [0])
    /// >>> group.register("sum", sum)
    /// >>> group.registered_async("sum", ([1, 2],)).wait(timeout=10)
    /// 3
    #[pyo3(signature = (key, args = None, kwargs = None, *, method = "", timeout = None))]
    fn registered_async(
        &self,
        key: &Bound<'_, PyAny>,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        method: &str,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyAny>> {
        let args = calls::positional(key.py(), args)?;
        let limit = crate::enter::span(timeout)?;
        self.service_called(key, method, (&args, kwargs), limit)?.given(key.py(), true)
    }

    /// Call the service of this key and keep the result there; returns a Ref to it, as Mesh.remote does, once it is
    /// found.
    ///
    /// >>> group = mesh.rpc_group("kept", [0])
    /// >>> group.register("sum", sum)
    /// >>> group.registered_remote("sum", ([1, 2],)).to_here(timeout=10)
    /// 3
    #[pyo3(signature = (key, args = None, kwargs = None, *, method = "", timeout = None))]
    fn registered_remote(
        &self,
        key: &Bound<'_, PyAny>,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        method: &str,
        timeout: Option<f64>,
    ) -> PyResult<PyRef> {
        let (py, limit) = (key.py(), crate::enter::span(timeout)?);
        let packed = calls::packed_arguments((&calls::positional(py, args)?, kwargs))?;
        let (node, service) = self.found(py, self::key(key)?, limit)?;
        let callee = Callee { node, service, method };
        calls::begin_remote(py, self.opener.clone(), callee, packed, |fill, args| vec![fill, args])
    }

    /// Keep an object of this process under a key, for whoever gets it. Returns when everybody finds it. Raises as
    /// register does.
    ///
    /// >>> group = mesh.rpc_group("limits", [0])
    /// >>> group.pair("limits", {"low": 1})
    /// >>> group.get_paired("limits").to_here()
    /// {'low': 1}
    #[pyo3(signature = (key, value, *, timeout = None))]
    fn pair(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let (py, limit) = (key.py(), crate::enter::span(timeout)?);
        let (group, key, mesh) = (self.group(py)?, self::key(key)?, self.mesh(py)?);
        let held = references::exported(&mesh, value, &self.opener).or_raise(py)?;
        begun(py, || group.pair(key, held, limit), nothing)?.given(py, false)
    }

    /// Let nobody get the object of this key any more; whoever has a Ref to it keeps it. Raises NotFound where this
    /// process has none.
    ///
    /// >>> group = mesh.rpc_group("given", [0])
    /// >>> group.pair("limits", {"low": 1})
    /// >>> group.unpair("limits")
    #[pyo3(signature = (key, *, timeout = None))]
    fn unpair(&self, key: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.by_key(key, timeout, RpcGroup::unpair, nothing)
    }

    /// Whether a member has paired an object under this key.
    ///
    /// >>> mesh.rpc_group("wanted", [0]).is_paired("limits", timeout=10)
    /// False
    #[pyo3(signature = (key, *, timeout = None))]
    fn is_paired(&self, key: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.by_key(key, timeout, RpcGroup::is_paired, truth)
    }

    /// Get a Ref to the object of this key. Raises NotFound where nobody has paired one.
    ///
    /// >>> group = mesh.rpc_group("got", [0])
    /// >>> group.pair("limits", {"low": 1})
    /// >>> group.get_paired("limits").owner_name
    /// 'rank-0'
    #[pyo3(signature = (key, *, timeout = None))]
    fn get_paired(&self, key: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let opener = self.opener.clone();
        let convert = |py: Python<'_>, held: Ref| Ok(Py::new(py, PyRef::new(held, opener))?.into_any());
        self.by_key(key, timeout, RpcGroup::get_paired, convert)
    }

    /// Wait until every member of the group has come here as often as this one. After `timeout` this barrier and all
    /// later ones of the group fail everywhere.
    ///
    /// >>> mesh.rpc_group("ends", [0]).barrier(timeout=10)
    #[pyo3(signature = (timeout = None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let (group, limit) = (self.group(py)?, crate::enter::span(timeout)?);
        begun(py, || group.barrier(limit), nothing)?.given(py, false)
    }

    /// Leave the group, with all that this process has registered and paired there. Its name is free here at once; the
    /// other members go on. Idempotent.
    ///
    /// >>> mesh.rpc_group("leaving", [0]).destroy()
    fn destroy(&self, py: Python<'_>) -> PyResult<()> {
        let group = self.group(py)?;
        py.detach(|| group.destroy());
        Ok(())
    }

    /// Pickles are handles: to look up and to call, wherever they are opened in the same mesh.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Opened)> {
        let GroupHandle { name, generation, members } = self.group(py)?.handle();
        let open = py.import("sheave._core")?.getattr("_open_rpc_group")?;
        Ok((open, (name, generation, members.into_iter().map(|node| node.0).collect())))
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast_exact::<Self>().is_ok_and(|other| other.get().group.handle() == self.group.handle())
    }

    fn __hash__(&self) -> u64 {
        self.group.generation() ^ self.group.members().first().map_or(0, |node| node.0)
    }

    fn __repr__(&self) -> String {
        let (group, size) = (&self.group, self.group.members().len());
        format!("<sheave.RpcGroup {:?} of {size} members, generation {}>", group.name(), group.generation())
    }
}

/// The group that a handle tells of, in the mesh over which its pickle has come; for any other pickle in that mesh of
/// this process of which its members are members.
#[pyfunction]
#[pyo3(name = "_open_rpc_group")]
pub(crate) fn open_rpc_group(py: Python<'_>, name: String, generation: u64, members: Vec<u64>) -> PyResult<PyRpcGroup> {
    let members: Vec<NodeId> = members.into_iter().map(NodeId).collect();
    let handle = GroupHandle { name, generation, members };
    let own = opening().map(|mesh| mesh.me().node);
    let opened = mesh::homes().into_iter().find_map(|home: Arc<mesh::Home>| {
        let mesh = home.mesh().ok().filter(|mesh| own.is_none_or(|own| mesh.me().node == own))?;
        let group = home.rpc().open(&handle).ok()?;
        Some(PyRpcGroup::new(group, home.opener(&mesh)))
    });
    opened
        .ok_or_else(|| {
            let what = format!("the members of the rpc group \"{}\" are in no mesh of this process", handle.name);
            Error::new(ErrorKind::NotFound, what).hint("open it in a process that has joined the mesh of the group")
        })
        .or_raise(py)
}
