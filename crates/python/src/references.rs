//! `sheave.Ref`: objects that stay where they are.
//!
//! An object that a call has made, or that was exported, lives on its node for as long as anybody has a reference to
//! it. A reference travels in arguments, results and pickles, and may be used before its object exists: whoever uses
//! it waits on the owner then.
//!
//! Each mesh of Python serves [`OBJECTS`], by which others get an object or call its methods.

use crate::calls::{self, Arguments, Callee};
use crate::errors::OrRaise;
use crate::guarded::Guarded;
use crate::handlers;
use crate::link::PyPeer;
use crate::mesh::PyMember;
use crate::released::{self, Owner};
use crate::value::{Opener, Packed};
use crate::work::{PyWork, now_ns};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sheave_base::{Error, ErrorKind, Result, Work, clock};
use sheave_mesh::{Answer, Call, Callers, Mesh, Promises, Ref, Request, Service, ServiceName, WeakMesh};
use sheave_wire::Value;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The service that every node of Python has for its objects. No name of a user's has a dot.
const OBJECTS: ServiceName = ServiceName::new("sheave.objects");

/// The lane on which objects of Python are given back, behind no handler of a user's.
const RELEASED: ServiceName = ServiceName::new("sheave.released");

/// What arguments are tagged with whose result is to stay.
pub(crate) const REMOTE: &str = "remote";

const GET: &str = "get";
const CALL: &str = "call";
/// Answered when the owner has heard of the reference.
const CONFIRM: &str = "confirm";

/// How long a request waits for its object before it looks whether anybody still wants it.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// An object of Python's that others hold. The last of them may let go of it on a thread without the interpreter, on a
/// node where nobody enters it for hours; so a thread of a lane does.
struct Held {
    owner: Option<Owner>,
    mesh: WeakMesh,
}

impl Held {
    fn new(object: &Bound<'_, PyAny>, opener: &Opener) -> Arc<Self> {
        let owner = Some(Owner::of_object(object.clone().unbind()));
        Arc::new(Self { owner, mesh: opener.mesh.clone() })
    }

    fn object<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        let object = self.owner.as_ref().and_then(Owner::object);
        object.map_or_else(|| py.None().into_bound(py), |object| object.bind(py).clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.owner.take());
        let Some((mesh, sent_for)) = self.mesh.upgrade().and_then(|mesh| Some((mesh, SentFor::begin()?))) else {
            return;
        };
        mesh.submit(&RELEASED, 0, |_| {
            // What is dropped from here on sends for another one.
            drop(sent_for);
            // While the interpreter ends nothing is given back.
            let _ = handlers::attached(released::drain);
        });
    }
}

/// A thread that is on its way to give back what was dropped, or a job for one that is dropped with its node.
struct SentFor(());

static IS_SENT_FOR: AtomicBool = AtomicBool::new(false);

impl SentFor {
    /// `None` if there is one already.
    fn begin() -> Option<Self> {
        (!IS_SENT_FOR.swap(true, SeqCst)).then_some(Self(()))
    }
}

impl Drop for SentFor {
    fn drop(&mut self) {
        IS_SENT_FOR.store(false, SeqCst);
    }
}

/// Fills what a call is to fill with its result.
pub(crate) fn filled(promises: &Promises, result: &Bound<'_, PyAny>, opener: &Opener) -> Result<()> {
    let held = Held::new(result, opener);
    promises.refs().iter().try_for_each(|promised| promises.fulfil(&promised.value(), Arc::clone(&held) as _))
}

/// Lets others use the objects of this node.
pub(crate) fn serve(mesh: &Mesh, opener: Opener) -> Result<()> {
    mesh.serve(OBJECTS.as_str(), Objects { opener })
}

pub(crate) fn export(mesh: &Mesh, object: &Bound<'_, PyAny>, opener: Opener) -> PyResult<PyRef> {
    let held = exported(mesh, object, &opener).or_raise(object.py())?;
    Ok(PyRef::new(held, opener))
}

/// A reference to an object of Python's on this node.
pub(crate) fn exported(mesh: &Mesh, object: &Bound<'_, PyAny>, opener: &Opener) -> Result<Ref> {
    mesh.export(Held::new(object, opener))
}

struct Objects {
    opener: Opener,
}

impl Service for Objects {
    fn handle(&self, request: Request) {
        let Some(request) = calls::admitted(request, &self.opener) else { return };
        let Some(held) = request.refs.iter().find(|held| !is_to_fill(&request, held)).cloned() else {
            let what = "a request about an object that names none";
            return request.reply.error(Error::new(ErrorKind::Protocol, what));
        };
        if request.method == CONFIRM {
            return request.reply.value(());
        }
        let object = match self.wait_for(&held, &request) {
            Some(Ok(object)) => object,
            Some(Err(error)) => return request.reply.error(error),
            None => return,
        };
        calls::handle(request, &self.opener, self.lane(), |py, opener, method, args, tensors| {
            let object = object.object(py);
            if method == GET {
                return Ok(object);
            }
            let (method, args) = method_of(args)?;
            let name = object.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
            let function = calls::function(&object, &format!("the {name}"), &method)?;
            let called = if method.is_empty() { name } else { format!("{name}.{method}") };
            calls::apply(opener, &function, &called, args, tensors)
        });
    }

    fn callers(&self, _: &str) -> Callers {
        Callers::MembersAndGuests
    }
}

impl Objects {
    /// The object of a reference, once it is there; `None` when nobody wants it any more.
    fn wait_for(&self, held: &Ref, request: &Request) -> Option<Result<Arc<Held>>> {
        let mesh = match self.opener.mesh() {
            Ok(mesh) => mesh,
            Err(error) => return Some(Err(error)),
        };
        let object = mesh.object::<Held>(held, None);
        drop(mesh);
        loop {
            match object.wait_until(Some(clock::now() + LOOK_PERIOD), None) {
                Ok(true) => return Some(object.taken()),
                Ok(false) if request.is_wanted() || !request.promises.is_empty() => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Whether the request is to fill this reference.
fn is_to_fill(request: &Request, held: &Ref) -> bool {
    request.promises.refs().iter().any(|promised| promised.value() == held.value())
}

/// The method and the arguments of a request about an object: behind what is to be filled, if anything is, and the
/// object.
fn method_of(args: Value) -> Result<(String, Value)> {
    let items = match args {
        Value::Tagged(tagged) if tagged.0 == REMOTE => tagged.1,
        args => args,
    };
    let Value::Tuple(mut items) = items else { return Err(malformed()) };
    match (items.pop(), items.pop()) {
        (Some(args), Some(Value::Str(method))) => Ok((method, args)),
        _ => Err(malformed()),
    }
}

fn malformed() -> Error {
    Error::new(ErrorKind::Protocol, "a request about an object without a method and arguments")
}

/// A counted reference to an object that lives on one node of the mesh. It lives there until the last reference to it
/// is dropped, on whatever node.
///
/// References are passed in arguments and results of calls, on their own or in anything that pickles, and may be used
/// before their object exists. A use raises PeerLost when the owner is gone, what the function has raised that was to
/// make the object, and NotFound when it exists no more because all who held it are gone.
///
/// >>> mesh.serve("count", lambda count: list(range(count)))
/// >>> numbers = mesh.remote(0, "count", (3,))
/// >>> numbers.owner.name, numbers.is_owner, numbers.get(timeout=10)
/// ('rank-0', True, [0, 1, 2])
#[pyclass(name = "Ref", module = "sheave", frozen, weakref)]
pub(crate) struct PyRef {
    held: Guarded<Ref>,
    opener: Opener,
    /// Asked, when somebody wants to know, whether it has heard of this.
    confirmation: OnceLock<Work<Answer>>,
}

impl PyRef {
    pub(crate) fn new(held: Ref, opener: Opener) -> Self {
        Self { held: Guarded::new(held), opener, confirmation: OnceLock::new() }
    }

    /// One more handle.
    pub(crate) fn reference(&self, py: Python<'_>) -> PyResult<Ref> {
        self.held.check("reference").cloned().or_raise(py)
    }

    fn callee(&self, method: &'static str) -> Callee<'static> {
        Callee { node: self.held.owner(), service: OBJECTS, method }
    }

    fn mesh(&self, py: Python<'_>) -> PyResult<Mesh> {
        self.opener.mesh().or_raise(py)
    }

    /// What a request about this object carries.
    fn packed(&self, method: &str, args: Arguments<'_, '_>) -> PyResult<(Value, Packed)> {
        let mut packed = calls::packed_arguments(args)?;
        packed.refs.push(self.reference(args.0.py())?);
        Ok((Value::Str(method.to_owned()), packed))
    }
}

#[pymethods]
impl PyRef {
    /// The member that has the object; a Peer if that is a guest of this node, or this node is a guest.
    #[getter]
    fn owner(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (mesh, owner) = (self.mesh(py)?, self.held.owner());
        if let Some(member) = mesh.member(owner) {
            return Ok(Py::new(py, PyMember::from(member))?.into_any());
        }
        let peer = mesh.peer_of(owner);
        let peer = peer.ok_or_else(|| Error::new(ErrorKind::NotFound, "the owner is no member of the mesh"));
        Ok(Py::new(py, PyPeer::from(peer.or_raise(py)?))?.into_any())
    }

    /// True if the object lives in this process.
    #[getter]
    fn is_owner(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.mesh(py)?.me().node == self.held.owner())
    }

    /// Get the object: itself, if it lives in this process, and a copy otherwise, as a result of `Mesh.call` is one.
    ///
    /// Raises DeadlineExceeded when `timeout` seconds have passed. With async_op=True it returns a Work.
    ///
    /// >>> mesh.export({"a": 1}).get()
    /// {'a': 1}
    #[pyo3(signature = (timeout = None, *, async_op = false))]
    fn get(&self, py: Python<'_>, timeout: Option<f64>, async_op: bool) -> PyResult<Py<PyAny>> {
        let (mesh, limit) = (self.mesh(py)?, crate::enter::span(timeout)?);
        let work = if mesh.me().node == self.held.owner() {
            let begun_ns = now_ns();
            let object = mesh.object::<Held>(&self.held, limit);
            let convert = |py: Python<'_>, held: Arc<Held>| Ok(held.object(py).unbind());
            PyWork::explained(object, begun_ns, convert, self.opener.explanation())
        } else {
            let args = Packed { value: self.held.value(), refs: vec![self.reference(py)?], ..Packed::default() };
            calls::ask(py, &self.opener, self.callee(GET), args, limit)?
        };
        work.given(py, async_op)
    }

    /// Get the object as `get` does. The name is that of torch's remote references.
    ///
    /// >>> mesh.export({"a": 1}).to_here(timeout=10)
    /// {'a': 1}
    #[pyo3(signature = (timeout = None))]
    fn to_here(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        self.get(py, timeout, false)
    }

    /// The object itself, where it lives in this process: waits until it is there. Raises InvalidArgument elsewhere.
    ///
    /// >>> numbers = [1, 2]
    /// >>> mesh.export(numbers).local_value() is numbers
    /// True
    #[pyo3(signature = (timeout = None))]
    fn local_value(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        if self.is_owner(py)? {
            return self.get(py, timeout, false);
        }
        let what = format!("the object is {}'s", self.owner_name(py)?);
        let hint = "get a copy by to_here, or call its methods where it is";
        Err(Error::new(ErrorKind::InvalidArgument, what).operation("local_value").hint(hint)).or_raise(py)
    }

    /// The name of who has the object.
    #[getter]
    fn owner_name(&self, py: Python<'_>) -> PyResult<String> {
        let peer = self.mesh(py)?.peer_of(self.held.owner());
        let peer = peer.ok_or_else(|| Error::new(ErrorKind::NotFound, "the owner is no member of the mesh"));
        Ok(peer.or_raise(py)?.name)
    }

    /// Whether the owner is known to have heard of this reference. Does not wait: the first look asks it, and later
    /// ones see its answer. Raises what that has failed with.
    ///
    /// >>> mesh.export([1]).confirmed_by_owner()
    /// True
    fn confirmed_by_owner(&self, py: Python<'_>) -> PyResult<bool> {
        if self.is_owner(py)? {
            return Ok(true);
        }
        let asked = match self.confirmation.get() {
            Some(asked) => asked,
            None => {
                let (mesh, args) = (self.mesh(py)?, Call::of(self.held.value()));
                let Callee { node, service, method } = self.callee(CONFIRM);
                let asked = py.detach(|| mesh.call(node, service, method, args)).or_raise(py)?;
                self.confirmation.get_or_init(|| asked)
            }
        };
        match asked.is_done() {
            true => py.detach(|| asked.wait()).map(|_| true).or_raise(py),
            false => Ok(false),
        }
    }

    /// Call a public method of the object, or the object itself for "", where it lives; as `Mesh.call` in everything
    /// else.
    ///
    /// >>> mesh.export([3, 1, 2]).call("index", (2,), timeout=10)
    /// 2
    #[pyo3(signature = (method, args = None, kwargs = None, *, timeout = None, async_op = false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn call(
        &self,
        py: Python<'_>,
        method: &str,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
        timeout: Option<f64>,
        async_op: bool,
    ) -> PyResult<Py<PyAny>> {
        let (args, limit) = (calls::positional(py, args)?, crate::enter::span(timeout)?);
        let (method, mut packed) = self.packed(method, (&args, kwargs))?;
        let args = std::mem::take(&mut packed.value);
        packed.value = Value::Tuple(vec![self.held.value(), method, args]);
        let work = calls::ask(py, &self.opener, self.callee(CALL), packed, limit)?;
        work.given(py, async_op)
    }

    /// Call a public method of the object where it lives and keep the result there; as `Mesh.remote` in all else.
    ///
    /// >>> numbers = mesh.export([3, 1, 2])
    /// >>> numbers.remote("copy").get(timeout=10)
    /// [3, 1, 2]
    #[pyo3(signature = (method, args = None, kwargs = None))]
    fn remote(
        &self,
        py: Python<'_>,
        method: &str,
        args: Option<&Bound<'_, PyAny>>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let args = calls::positional(py, args)?;
        let (method, packed) = self.packed(method, (&args, kwargs))?;
        let object = self.held.value();
        let form = |fill, args| vec![fill, object, method, args];
        calls::begin_remote(py, self.opener.clone(), self.callee(CALL), packed, form)
    }

    /// Get the object in asyncio, as `get` does.
    fn __await__(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let work = slf.get().get(slf.py(), None, true)?;
        work.call_method0(slf.py(), "__await__")
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast_exact::<Self>().is_ok_and(|other| other.get().held.value() == self.held.value())
    }

    fn __hash__(&self) -> u64 {
        match self.held.value() {
            Value::Ref { node, id } => node.0 ^ id.rotate_left(32),
            _ => 0,
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let owner = self.mesh(py).ok().and_then(|mesh| mesh.peer_of(self.held.owner()));
        let owner = owner.map_or_else(|| "a mesh that was left".to_owned(), |owner| owner.name);
        format!("<sheave.Ref to an object of {owner}>")
    }
}
