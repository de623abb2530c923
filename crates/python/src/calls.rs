//! Calls of functions and objects on other nodes, and handlers in Python.
//!
//! A service is one Python object: its public methods, or itself, are what others call. Handlers run on threads of the
//! node's lanes, several services at once; each attaches to the interpreter for as long as its handler runs
//! ([`handlers`](crate::handlers)), and may wait there for whatever it likes, other calls included.

use crate::errors::OrRaise;
use crate::link::PyPeer;
use crate::mesh::PyMember;
use crate::references::{PyRef, REMOTE, filled};
use crate::told::told_pickled;
use crate::value::{Opener, Opens, Packed, pack, pickling};
use crate::work::{PyWork, now_ns};
use crate::{handlers, life, released};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};
use sheave_base::config::{Pickles, Settings};
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_mesh::{Answer, Call, Callers, Lane, Member, Mesh, Promises, Ref, Reply, Request, Service, ServiceName};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The service that every node of Python has for functions that are sent to it. No name of a user's has a dot.
pub(crate) const FUNCTIONS: ServiceName = ServiceName::new("sheave.functions");

/// For how long a handler has the interpreter for itself: each thread more that wants it costs a switch of threads for
/// every call.
const PATIENCE: Duration = Duration::from_micros(100);

/// The lane that `sheave.lanes` calls so.
fn lane_named(name: &str) -> Lane {
    if name == "serial" { Lane::Serial } else { Lane::default() }
}

/// A service whose handlers are Python's.
pub(crate) struct PyService {
    name: String,
    object: Py<PyAny>,
    lanes: Lanes,
    opener: Opener,
}

/// Lanes of a service's methods.
struct Lanes {
    /// All but those that say another one.
    whole: Lane,
    others: HashMap<String, Lane>,
    /// Counts requests of methods that are not serial, where others are.
    alone: AtomicU64,
}

/// The mailbox of all serial methods of a service.
const TOGETHER: u64 = 0;

impl Lanes {
    fn of(&self, method: &str) -> Lane {
        self.others.get(method).copied().unwrap_or(self.whole)
    }
}

impl Service for PyService {
    fn handle(&self, request: Request) {
        let lane = self.lanes.of(&request.method);
        let Some(request) = admitted(request, &self.opener) else { return };
        handle(request, &self.opener, lane, |py, opener, method, args, tensors| {
            self.answer(py, opener, method, args, tensors)
        });
    }

    fn lane(&self) -> Lane {
        if self.lanes.others.is_empty() { self.lanes.whole } else { Lane::Serial }
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn callers(&self, _: &str) -> Callers {
        Callers::MembersAndGuests
    }

    fn mailbox(&self, request: &Request) -> u64 {
        match self.lanes.of(&request.method) {
            Lane::Serial => TOGETHER,
            // In a mailbox of its own, a request waits for no other.
            _ => TOGETHER + 1 + self.lanes.alone.fetch_add(1, Relaxed),
        }
    }
}

/// Takes the request of a member, the host, or a guest that this process has started; others are refused.
pub(crate) fn admitted(request: Request, opener: &Opener) -> Option<Request> {
    match opener.trusted(request.from) {
        Ok(()) => Some(request),
        Err(error) => {
            request.reply.error(error);
            None
        }
    }
}

/// Handles a request in Python: answers with what `act` returns, or fills with it what the call is to fill. What a
/// coroutine returns is waited for; here, if the next request is not to begin before it has ended.
pub(crate) fn handle(
    request: Request,
    opener: &Opener,
    lane: Lane,
    act: impl for<'py> FnOnce(Python<'py>, &Opener, &str, Value, &[Tensor]) -> Result<Bound<'py, PyAny>>,
) {
    let Request { from, method, args, tensors, refs, promises, reply, .. } = request;
    let opener = opener.of(from);
    let mut running = Some(Running { refs, promises, reply, opener: opener.clone() });
    let handled = handlers::attached(|py| {
        let result = act(py, &opener, &method, args, &tensors);
        py.detach(|| drop(tensors));
        let Some(running) = running.take() else { return };
        match result {
            Ok(coroutine) if is_coroutine(&coroutine) => running.follow(&coroutine, lane),
            result => running.end(py, result),
        }
    });
    if let (Err(error), Some(running)) = (handled, running) {
        running.reply.error(error);
    }
}

/// A request whose handler runs.
struct Running {
    refs: Vec<Ref>,
    promises: Promises,
    reply: Reply,
    opener: Opener,
}

impl Running {
    /// Answers.
    fn end(self, py: Python<'_>, result: Result<Bound<'_, PyAny>>) {
        let Self { refs, promises, reply, opener } = self;
        let packed = result.and_then(|result| match promises.is_empty() {
            false => filled(&promises, &result, &opener).map(|()| Packed::default()),
            true => pack(&result).map_err(|error| told_pickled(py, &error, "the result cannot be sent")),
        });
        py.detach(|| {
            // The references in the answer are held until it has left.
            let (answer, held) = match packed {
                Ok(Packed { value, tensors, refs }) => (Ok((value, tensors)), refs),
                Err(error) => (Err(error), Vec::new()),
            };
            reply.send(answer);
            drop((refs, held));
        });
    }

    /// Answers when the coroutine has ended, which runs in the loop of this process.
    fn follow(self, coroutine: &Bound<'_, PyAny>, lane: Lane) {
        let py = coroutine.py();
        let begun = py.import("sheave.loops").and_then(|loops| loops.call_method1("submit", (coroutine,)));
        let future = match begun {
            Ok(future) => future,
            Err(error) => return self.end(py, Err(told_pickled(py, &error, "the coroutine cannot run"))),
        };
        if lane == Lane::Serial {
            return self.end(py, outcome_of(&future));
        }
        // A callback that cannot be made is dropped, and says so to the caller.
        let made = Bound::new(py, Followed(Mutex::new(Some(self))));
        let _ = made.and_then(|followed| future.call_method1("add_done_callback", (followed,)));
    }
}

/// Waits for the future of a coroutine, and returns what it comes to.
fn outcome_of<'py>(future: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
    let py = future.py();
    future.call_method0("result").map_err(|error| told_pickled(py, &error, "the coroutine raised"))
}

/// Callback of a request whose handler is a coroutine: answers when that has ended.
#[pyclass(module = "sheave._core", frozen)]
struct Followed(Mutex<Option<Running>>);

#[pymethods]
impl Followed {
    fn __call__(&self, future: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = future.py();
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(running) = running else { return Ok(()) };
        life::below(py, || {
            running.end(py, outcome_of(future));
            released::drain(py);
            Ok(())
        })
    }
}

fn is_coroutine(result: &Bound<'_, PyAny>) -> bool {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = CLASS.import(result.py(), "types", "CoroutineType");
    class.is_ok_and(|class| result.get_type().is(class))
}

/// Calls a function with what has come as its arguments.
pub(crate) fn apply<'py>(
    opener: &Opener,
    function: &Bound<'py, PyAny>,
    called: &str,
    args: Value,
    tensors: &[Tensor],
) -> Result<Bound<'py, PyAny>> {
    let py = function.py();
    let args = match args {
        // The promise is known beside the arguments.
        Value::Tagged(mut tagged) if tagged.0 == REMOTE => match &mut tagged.1 {
            Value::Tuple(items) => items.pop().unwrap_or_default(),
            _ => tagged.1,
        },
        args => args,
    };
    opener.check(&args)?;
    let result = opener.unpack(py, args, tensors).and_then(|args| {
        let (args, keywords) = arguments(args)?;
        function.call(args, keywords.as_ref())
    });
    result.map_err(|error| told_pickled(py, &error, &format!("{called} raised")))
}

/// A public method of an object, or the object itself for a method without a name.
pub(crate) fn function<'py>(object: &Bound<'py, PyAny>, called: &str, method: &str) -> Result<Bound<'py, PyAny>> {
    let found = match method {
        "" => Ok(Some(object.clone())),
        hidden if hidden.starts_with('_') => Ok(None),
        method => object.getattr_opt(method),
    };
    let found = found.map_err(|error| told_pickled(object.py(), &error, &format!("{called}.{method} raised")))?;
    found.filter(Bound::is_callable).ok_or_else(|| {
        let what = match method {
            "" => format!("{called} is no function"),
            method => format!("{called} has no method {method:?}"),
        };
        let hint = "call one of its public methods by its name; names that begin with _ are its own";
        Error::new(ErrorKind::NotFound, what).hint(hint)
    })
}

impl PyService {
    fn answer<'py>(
        &self,
        py: Python<'py>,
        opener: &Opener,
        method: &str,
        args: Value,
        tensors: &[Tensor],
    ) -> Result<Bound<'py, PyAny>> {
        let function = function(self.object.bind(py), &format!("the service {:?}", self.name), method)?;
        let called = if method.is_empty() { self.name.clone() } else { format!("{}.{method}", self.name) };
        apply(opener, &function, &called, args, tensors)
    }
}

/// Arguments by place and by name: a tuple, or a dict of both, as Python sends them; anything else, as Rust sends it,
/// is the only argument, and nothing is none.
pub(crate) fn arguments(args: Bound<'_, PyAny>) -> PyResult<(Bound<'_, PyTuple>, Option<Bound<'_, PyDict>>)> {
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

/// Arguments by place and by name.
pub(crate) type Arguments<'a, 'py> = (&'a Bound<'py, PyTuple>, Option<&'a Bound<'py, PyDict>>);

const ARGS: &str = "*";
const KEYWORDS: &str = "**";

/// Packs a call's arguments.
pub(crate) fn packed_arguments(arguments: Arguments<'_, '_>) -> PyResult<Packed> {
    packed_arguments_by(arguments, pack)
}

/// Packs arguments in this way.
pub(crate) fn packed_arguments_by(
    (args, keywords): Arguments<'_, '_>,
    pack: fn(&Bound<'_, PyAny>) -> PyResult<Packed>,
) -> PyResult<Packed> {
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

/// The node that a rank in the mesh, the name of a member or a guest, a `Member` or a `Peer` means.
pub(crate) fn callee(mesh: &Mesh, to: &Bound<'_, PyAny>) -> PyResult<NodeId> {
    let (rank, name) = match (to.cast::<PyMember>(), to.cast::<PyPeer>()) {
        (Ok(member), _) => (None, Some(member.get().name.clone())),
        (_, Ok(peer)) => (None, Some(peer.get().name.clone())),
        _ => (to.extract::<u32>().ok(), to.extract::<String>().ok()),
    };
    let is_meant = |member: &&Member| match (&name, rank) {
        (Some(name), _) => member.introduction.name == *name,
        (None, rank) => Some(member.rank.0) == rank,
    };
    if let Some(member) = mesh.members().iter().find(is_meant) {
        return Ok(member.node);
    }
    if let Some(guest) = mesh.guests().into_iter().find(|guest| name.as_ref() == Some(&guest.name)) {
        return Ok(guest.node);
    }
    let what = format!("no member of the mesh, and no guest of this node, is {}", to.repr()?);
    let hint = "give a rank from 0 to the number of members, a name, one of mesh.members, or one of mesh.guests()";
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

pub(crate) fn serve(
    mesh: &Mesh,
    name: &str,
    object: &Bound<'_, PyAny>,
    lane: Option<&str>,
    opener: Opener,
) -> PyResult<()> {
    let py = object.py();
    if name.is_empty() || name.contains('.') {
        let what = format!("a service of the name {name:?}; expected one without dots");
        let hint = "a dot stands between a service and its method";
        let error = Error::new(ErrorKind::InvalidArgument, what).operation("serve").hint(hint);
        return Err(error).or_raise(py);
    }
    let service = service(name, object, lane, opener)?;
    py.detach(|| mesh.serve(name, service)).or_raise(py)
}

/// Lets others send functions to this node, which it calls.
pub(crate) fn serve_functions(mesh: &Mesh, opener: Opener) -> Result<()> {
    mesh.serve(FUNCTIONS.as_str(), Functions { opener })
}

struct Functions {
    opener: Opener,
}

impl Service for Functions {
    fn handle(&self, request: Request) {
        let Some(request) = admitted(request, &self.opener) else { return };
        handle(request, &self.opener, self.lane(), |py, opener, _, args, tensors| {
            // Not before: a process to which no functions are sent needs no module for them.
            let call = pickling(py).and_then(|pickling| pickling.getattr("_apply"));
            let call = call.map_err(|error| told_pickled(py, &error, "functions cannot be called"))?;
            apply(opener, &call, "the function", args, tensors)
        });
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn callers(&self, _: &str) -> Callers {
        Callers::MembersAndGuests
    }
}

/// A service of this name whose methods are those of an object, or the object itself.
pub(crate) fn service(
    name: &str,
    object: &Bound<'_, PyAny>,
    lane: Option<&str>,
    opener: Opener,
) -> PyResult<PyService> {
    static LANES_OF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let said = LANES_OF.import(object.py(), "sheave.lanes", "_of")?.call1((object, lane))?;
    let (whole, others): (String, HashMap<String, String>) = said.extract()?;
    let others = others.into_iter().map(|(method, lane)| (method, lane_named(&lane))).collect();
    let lanes = Lanes { whole: lane_named(&whole), others, alone: AtomicU64::new(0) };
    Ok(PyService { name: name.to_owned(), object: object.clone().unbind(), lanes, opener })
}

/// A method of a service on a node, which is called.
pub(crate) struct Callee<'a> {
    pub(crate) node: NodeId,
    pub(crate) service: ServiceName,
    pub(crate) method: &'a str,
}

impl<'a> Callee<'a> {
    /// A service and its method as Python says them, on a node.
    fn named(node: NodeId, what: &'a str) -> Self {
        let (service, method) = what.rsplit_once('.').unwrap_or((what, ""));
        Self { node, service: ServiceName::from(service.to_owned()), method }
    }
}

/// Calls what a member serves, and returns the result that is on its way.
pub(crate) fn call(
    opener: &Opener,
    to: NodeId,
    what: &str,
    args: Arguments<'_, '_>,
    deadline: Option<Duration>,
) -> PyResult<PyWork> {
    ask(args.0.py(), opener, Callee::named(to, what), packed_arguments(args)?, deadline)
}

/// Calls a method whose answer is a value of Python.
pub(crate) fn ask(
    py: Python<'_>,
    opener: &Opener,
    to: Callee<'_>,
    args: Packed,
    deadline: Option<Duration>,
) -> PyResult<PyWork> {
    let begun_ns = now_ns();
    let Packed { value, tensors, refs } = args;
    let call = Call { args: value, tensors, deadline, ..Call::default() };
    let mesh = opener.mesh().or_raise(py)?;
    let opener = opener.of(to.node);
    let work = py.detach(|| mesh.call(to.node, to.service, to.method, call)).or_raise(py)?;
    drop(refs);
    let explain = opener.explanation();
    let convert = move |py: Python<'_>, answer: Answer| Ok(opener.unpack(py, answer.value, &answer.tensors)?.unbind());
    Ok(PyWork::explained(work, begun_ns, convert, explain))
}

/// Calls what a member serves, and returns a reference to the result, which stays there.
pub(crate) fn remote(opener: Opener, to: NodeId, what: &str, args: Arguments<'_, '_>) -> PyResult<PyRef> {
    let packed = packed_arguments(args)?;
    begin_remote(args.0.py(), opener, Callee::named(to, what), packed, |fill, args| vec![fill, args])
}

/// Has a method keep its result on its node. `form` says what its arguments are, of what it is to fill and `args`.
pub(crate) fn begin_remote(
    py: Python<'_>,
    opener: Opener,
    to: Callee<'_>,
    args: Packed,
    form: impl FnOnce(Value, Value) -> Vec<Value>,
) -> PyResult<PyRef> {
    let mesh = opener.mesh().or_raise(py)?;
    let Packed { value, tensors, refs } = args;
    let promised = mesh.promise(to.node).or_raise(py)?;
    let args = Value::Tagged(Box::new((REMOTE.to_owned(), Value::Tuple(form(promised.to_fill(), value)))));
    let call = Call { args, tensors, ..Call::default() };
    py.detach(|| mesh.cast(to.node, to.service, to.method, call)).or_raise(py)?;
    drop(refs);
    Ok(PyRef::new(promised, opener))
}
