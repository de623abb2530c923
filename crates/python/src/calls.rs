//! Calls of functions and objects on other nodes, and handlers in Python.
//!
//! A service is one Python object: its public methods, or itself, are what others call. Handlers run on threads of the
//! node's lanes, several services at once; each attaches to the interpreter for as long as its handler runs
//! ([`handlers`](crate::handlers)), and may wait there for whatever it likes, other calls included.

use crate::errors::{self, OrRaise};
use crate::handlers;
use crate::mesh::PyMember;
use crate::told::told_pickled;
use crate::value::{Opens, Packed, check_opens, pack, unpack};
use crate::work::{PyWork, now_ns};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use sheave_base::config::{Pickles, Settings};
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_mesh::{Answer, Call, Lane, Member, Mesh, Request, Service, ServiceName};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::time::Duration;

/// The lane that Python calls so.
fn lane_named(name: &str) -> Option<Lane> {
    match name {
        "concurrent" => Some(Lane::default()),
        "serial" => Some(Lane::Serial),
        _ => None,
    }
}

/// A service whose handlers are Python's.
struct PyService {
    name: String,
    object: Py<PyAny>,
    lane: Lane,
    opens: Opens,
}

impl Service for PyService {
    fn handle(&self, request: Request) {
        let Request { method, args, tensors, reply, .. } = request;
        let mut reply = Some(reply);
        let handled = handlers::attached(|py| {
            let outcome = self.handled(py, &method, args, &tensors);
            py.detach(|| {
                drop(tensors);
                if let Some(reply) = reply.take() {
                    reply.send(outcome.map(|Packed { value, tensors }| (value, tensors)));
                }
            });
        });
        if let (Err(error), Some(reply)) = (handled, reply) {
            reply.error(error);
        }
    }

    fn lane(&self) -> Lane {
        self.lane
    }
}

impl PyService {
    fn called(&self, method: &str) -> String {
        if method.is_empty() { self.name.clone() } else { format!("{}.{method}", self.name) }
    }

    fn handled(&self, py: Python<'_>, method: &str, args: Value, tensors: &[Tensor]) -> Result<Packed> {
        let function = self.function(py, method)?;
        check_opens(&args, &self.opens)?;
        let answer = self.answer(&function, args, tensors);
        answer.map_err(|error| told_pickled(py, &error, &format!("{} raised", self.called(method))))
    }

    fn answer(&self, function: &Bound<'_, PyAny>, args: Value, tensors: &[Tensor]) -> PyResult<Packed> {
        let (args, keywords) = arguments(unpack(function.py(), args, tensors, &self.opens)?)?;
        pack(&function.call(args, keywords.as_ref())?)
    }

    fn function<'py>(&self, py: Python<'py>, method: &str) -> Result<Bound<'py, PyAny>> {
        let object = self.object.bind(py);
        let found = match method {
            "" => Ok(Some(object.clone())),
            hidden if hidden.starts_with('_') => Ok(None),
            method => object.getattr_opt(method),
        };
        let found = found.map_err(|error| told_pickled(py, &error, &format!("{} raised", self.called(method))))?;
        found.filter(Bound::is_callable).ok_or_else(|| {
            let what = match method {
                "" => format!("the service {:?} is no function", self.name),
                method => format!("the service {:?} has no method {method:?}", self.name),
            };
            let hint = "call one of its public methods, as \"service.method\"; names that begin with _ are its own";
            Error::new(ErrorKind::NotFound, what).hint(hint)
        })
    }
}

/// Arguments by place and by name: a tuple, or a dict of both, as Python sends them; anything else, as Rust sends it,
/// is the only argument, and nothing is none.
fn arguments(args: Bound<'_, PyAny>) -> PyResult<(Bound<'_, PyTuple>, Option<Bound<'_, PyDict>>)> {
    let py = args.py();
    if args.is_none() {
        return Ok((PyTuple::empty(py), None));
    }
    if let Ok(args) = args.cast_exact::<PyTuple>() {
        return Ok((args.clone(), None));
    }
    if let Ok(both) = args.cast_exact::<PyDict>()
        && both.len() == 2
        && let (Some(by_place), Some(by_name)) = (both.get_item(ARGS)?, both.get_item(KEYWORDS)?)
    {
        return Ok((by_place.cast_into()?, Some(by_name.cast_into()?)));
    }
    Ok((PyTuple::new(py, [args])?, None))
}

const ARGS: &str = "*";
const KEYWORDS: &str = "**";

/// What is sent for a call's arguments.
fn packed_arguments(args: &Bound<'_, PyTuple>, keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Packed> {
    match keywords.filter(|keywords| !keywords.is_empty()) {
        None => pack(args),
        Some(keywords) => {
            let both = PyDict::new(args.py());
            both.set_item(ARGS, args)?;
            both.set_item(KEYWORDS, keywords)?;
            pack(&both)
        }
    }
}

/// Whether what members of the mesh have pickled is opened here.
pub(crate) fn opens() -> Result<Opens> {
    let pickles = Settings::from_lookup(|name| std::env::var_os(name))?.pickles;
    Ok(match pickles {
        Pickles::Members => Ok(()),
        Pickles::Never => Err(Error::new(ErrorKind::NotPermitted, "this process opens no pickles")
            .hint("send plain values and arrays, or leave SHEAVE_PICKLE unset there")),
    })
}

/// The member that a rank in the mesh, a name or a `Member` means.
pub(crate) fn callee(mesh: &Mesh, to: &Bound<'_, PyAny>) -> PyResult<NodeId> {
    let (rank, name) = match to.cast::<PyMember>() {
        Ok(member) => (None, Some(member.get().name.clone())),
        Err(_) => (to.extract::<u32>().ok(), to.extract::<String>().ok()),
    };
    let is_meant = |member: &&Member| match (&name, rank) {
        (Some(name), _) => member.introduction.name == *name,
        (None, rank) => Some(member.rank.0) == rank,
    };
    if let Some(member) = mesh.members().iter().find(is_meant) {
        return Ok(member.node);
    }
    let what = format!("no member of the mesh is {}", to.repr()?);
    let hint = "give a rank from 0 to the number of members, a member's name, or one of mesh.members";
    Err(Error::new(ErrorKind::InvalidArgument, what).operation("call").hint(hint)).or_raise(to.py())
}

/// Arguments by place: a tuple or a list.
pub(crate) fn positional<'py>(py: Python<'py>, args: Option<&Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyTuple>> {
    let Some(args) = args else { return Ok(PyTuple::empty(py)) };
    if let Ok(args) = args.cast_exact::<PyTuple>() {
        return Ok(args.clone());
    }
    if let Ok(args) = args.cast::<PyList>() {
        return Ok(args.to_tuple());
    }
    let what = format!("args is a {}; expected a tuple or a list", args.get_type().name()?);
    Err(Error::new(ErrorKind::InvalidArgument, what).operation("call").hint("for one argument give (argument,)"))
        .or_raise(py)
}

pub(crate) fn serve(mesh: &Mesh, name: &str, object: &Bound<'_, PyAny>, lane: &str, opens: &Opens) -> PyResult<()> {
    let py = object.py();
    let invalid = |what: String, hint| Err(Error::new(ErrorKind::InvalidArgument, what).operation("serve").hint(hint));
    if name.is_empty() || name.contains('.') {
        let hint = "a dot stands between a service and its method";
        return invalid(format!("a service of the name {name:?}; expected one without dots"), hint).or_raise(py);
    }
    let Some(known) = lane_named(lane) else {
        return invalid(format!("there is no lane {lane:?}"), "lanes are \"concurrent\" and \"serial\"").or_raise(py);
    };
    let (object, opens) = (object.clone().unbind(), opens.clone());
    let service = PyService { name: name.to_owned(), object, lane: known, opens };
    py.detach(|| mesh.serve(name, service)).or_raise(py)
}

pub(crate) fn call(
    mesh: &Mesh,
    to: NodeId,
    what: &str,
    (args, keywords): (&Bound<'_, PyTuple>, Option<&Bound<'_, PyDict>>),
    deadline: Option<Duration>,
    opens: &Opens,
) -> PyResult<PyWork> {
    let (py, begun_ns) = (args.py(), now_ns());
    let (service, method) = what.rsplit_once('.').unwrap_or((what, ""));
    let Packed { value, tensors } = packed_arguments(args, keywords)?;
    let call = Call { args: value, tensors, deadline, ..Call::default() };
    let service = ServiceName::from(service.to_owned());
    let work = py.detach(|| mesh.call(to, service, method, call)).or_raise(py)?;
    let (opens, trusts) = (opens.clone(), opens.is_ok());
    let convert = move |py: Python<'_>, answer: Answer| Ok(unpack(py, answer.value, &answer.tensors, &opens)?.unbind());
    let explain = move |py: Python<'_>, error: &Error| if trusts { errors::original(py, error) } else { None };
    Ok(PyWork::explained(work, begun_ns, convert, explain))
}
