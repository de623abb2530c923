//! Servers whose user code is Python.
//!
//! An updater or a controller is called by a thread of the store, which has no interpreter. It posts a job to the
//! callback thread and waits for that, as long as this node is a member of its mesh; so neither a function that never
//! returns nor the end of the interpreter keeps a server's threads for ever. What the job has by then it keeps. All
//! that wait for updaters and controllers are threads of lanes, and serve nobody. But there is one callback thread, and
//! an updater that waited for the mesh would hold up whatever else is to run there, perhaps what it waits for; it is
//! refused.
//!
//! Pickled functions come over a service of their own, under names that their sender makes up, and are kept for the
//! sender's next `set_updater`, the latest few of each. A pickle is a program: a server takes none unless its program
//! says so and its environment does not forbid it, and then only from workers of the job, which know its secret.

use crate::aside::aside;
use crate::callbacks::Callbacks;
use crate::enter::barred;
use crate::errors::OrRaise;
use crate::mesh::PyMesh;
use crate::store::updater;
use crate::told::told;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use sheave_base::config::{Pickles, Settings};
use sheave_base::{Error, ErrorKind, NodeId, Peer, Result, work};
use sheave_mesh::{CallOptions, Mesh, Methods, Role, TypedService, WeakMesh};
use sheave_net::Part;
use sheave_store::{Function, Key, ServerConfig, run_server};
use sheave_tensor::{Mode, Tensor};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name of the service that takes pickled functions.
const SERVICE: &str = "store.pickled";

/// A worker sends a pickled function, as a tensor of bytes, under this name.
struct Ship;

sheave_mesh::methods! {
    service SERVICE;
    1, "set_updater": Ship[String] -> (), Workers;
}

/// Functions of one sender that are kept: it names each right after it has sent it, on each of its stores.
const FUNCTIONS_MAX: usize = 16;

/// How long a thread waits for Python before it looks whether it still has to.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// Where threads of a server have something done by Python.
#[derive(Clone)]
struct Desk {
    callbacks: Callbacks,
    mesh: WeakMesh,
    me: Peer,
}

impl Desk {
    /// Has a job done on the callback thread. Blocks until it is, or this node is no member any more.
    fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        job: impl FnOnce(Python<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (completer, work) = work::pair(operation);
        self.callbacks.post(operation, Box::new(move |py| completer.complete(job(py))));
        while !work.wait_until(Some(Instant::now() + LOOK_PERIOD), None)? {
            if !self.mesh.upgrade().is_some_and(|mesh| mesh.is_member()) {
                let what = format!("the server left the mesh while its {operation} ran");
                return Err(Error::new(ErrorKind::PeerLost, what).peer(self.me.clone()));
            }
        }
        work.taken()
    }

    /// A Python updater for the threads of a store.
    fn updater(&self, function: Py<PyAny>) -> Function {
        let (desk, function) = (self.clone(), Arc::new(function));
        Arc::new(move |key: &Key, received: &Tensor, stored: &mut Tensor| {
            // It may be written: nobody else has a part in it.
            stored.bytes_mut()?;
            let (function, key) = (Arc::clone(&function), key.clone());
            let (received, mut value, start) = (received.clone(), stored.clone(), sheave_store::slice_start());
            let (outcome, value) = desk.run("updater", move |py| {
                let _within = updater::Within::slice(start);
                let raised = |error| updater::failed(py, &key, &error);
                let call = || updater::call(py, &function, &key, &received, &mut value, raised);
                let outcome = barred("an updater on a server", call);
                Ok((outcome, value))
            })?;
            *stored = value;
            outcome
        })
    }

    /// A Python controller.
    fn controller(&self, function: Py<PyAny>) -> impl Fn(i32, &[u8]) -> Result<Vec<u8>> + Send + Sync + use<> {
        let (desk, function) = (self.clone(), Arc::new(function));
        move |number, body| {
            let (function, body) = (Arc::clone(&function), body.to_vec());
            desk.run("controller", move |py| {
                let answer = function.call1(py, (number, PyBytes::new(py, &body)));
                let answer = answer.and_then(|answer| answered(answer.bind(py)));
                answer.map_err(|error| told(py, &error, &format!("the controller failed on command {number}")))
            })
        }
    }
}

/// The bytes of what a controller returns: bytes, a text, or None for none.
fn answered(answer: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if answer.is_none() {
        return Ok(Vec::new());
    }
    match answer.cast::<PyString>() {
        Ok(text) => Ok(text.to_string().into_bytes()),
        Err(_) => answer.extract(),
    }
}

/// Functions that workers have sent, the latest last.
#[derive(Default)]
struct Shipped(Mutex<HashMap<NodeId, VecDeque<(String, Function)>>>);

impl Shipped {
    fn keep(&self, from: NodeId, name: String, function: Function) {
        let mut senders = self.0.lock();
        let functions = senders.entry(from).or_default();
        functions.retain(|known| known.0 != name);
        functions.push_back((name, function));
        let forgotten = if functions.len() > FUNCTIONS_MAX { functions.pop_front() } else { None };
        drop(senders);
        drop(forgotten);
    }

    fn find(&self, name: &str) -> Option<Function> {
        let senders = self.0.lock();
        senders.values().flatten().find(|known| known.0 == name).map(|known| Arc::clone(&known.1))
    }
}

/// Takes pickled functions of workers.
struct Pickled {
    desk: Desk,
    /// Makes them of bytes, where the program lets it.
    unpickle: Option<Arc<Py<PyAny>>>,
    /// Whether the environment lets it.
    pickles: Pickles,
    shipped: Arc<Shipped>,
}

impl Pickled {
    fn take(&self, from: NodeId, name: String, tensors: &[Tensor]) -> Result<()> {
        let refused = |what, hint: &'static str| {
            Err(Error::new(ErrorKind::Unsupported, what).operation("set_updater").hint(hint))
        };
        let Some(unpickle) = self.unpickle.clone() else {
            let hint = "start it with sheave.run_server(allow_pickle=True), or register the function there";
            return refused("this server takes no pickled functions", hint);
        };
        if self.pickles == Pickles::Never {
            let hint = "register the function on the server, or start it with SHEAVE_PICKLE=members";
            return refused("this server opens no pickles: SHEAVE_PICKLE is never", hint);
        }
        let [pickled] = tensors else {
            return Err(Error::new(ErrorKind::Protocol, "a pickled function that did not come"));
        };
        let pickled = pickled.to_vec::<u8>()?;
        let function = self.desk.run("unpickle", move |py| {
            let function = unpickle.call1(py, (PyBytes::new(py, &pickled),));
            function.map_err(|error| told(py, &error, "the server could not unpickle the updater"))
        })?;
        self.shipped.keep(from, name, self.desk.updater(function));
        Ok(())
    }
}

impl TypedService for Pickled {
    const NAME: &'static str = SERVICE;

    fn methods(methods: Methods<Self>) -> Methods<Self> {
        methods.on::<Ship>(|pickled, request| {
            request.reply.send(pickled.take(request.from, request.args, &request.tensors));
        })
    }
}

/// Takes pickled functions; `unpickle` makes them of bytes.
fn take(mesh: &Mesh, desk: &Desk, unpickle: Option<Py<PyAny>>, shipped: &Arc<Shipped>) -> Result<()> {
    let (desk, shipped) = (desk.clone(), Arc::clone(shipped));
    let pickles = Settings::from_lookup(|name| std::env::var_os(name))?.pickles;
    mesh.serve_typed(Arc::new(Pickled { desk, unpickle: unpickle.map(Arc::new), pickles, shipped }))
}

/// Sends a pickled function to all servers, and waits until all have it.
pub(crate) fn ship(mesh: &Mesh, name: &str, pickled: &[u8]) -> Result<()> {
    let servers: Vec<NodeId> = mesh.of_role(Role::Server).map(|member| member.node).collect();
    let name = name.to_owned();
    let call = |server: &NodeId| {
        let tensor = Tensor::from_slice(pickled, [pickled.len() as u64])?;
        let tensors = [Part::new(tensor, Mode::Move)].into_iter().collect();
        mesh.ask_with::<Ship>(*server, &name, CallOptions { tensors, ..CallOptions::default() })
    };
    let calls = servers.iter().map(call).collect::<Result<Vec<_>>>()?;
    calls.iter().try_for_each(|call| call.wait().map(drop))
}

/// Serves until the workers are gone, with these functions by name and this controller. `unpickle` is None where no
/// pickled functions are taken.
#[pyfunction]
pub(crate) fn serve(
    py: Python<'_>,
    mesh: &Bound<'_, PyMesh>,
    functions: Vec<(String, Py<PyAny>)>,
    controller: Option<Py<PyAny>>,
    unpickle: Option<Py<PyAny>>,
) -> PyResult<()> {
    let mesh = mesh.get().mesh().or_raise(py)?;
    let desk = Desk { callbacks: Callbacks::here(py)?, mesh: mesh.downgrade(), me: mesh.me().peer() };
    let mut config = ServerConfig::default();
    for (name, function) in functions {
        let function = desk.updater(function);
        config = config.function(&name, move |key, received, stored| function(key, received, stored));
    }
    if let Some(controller) = controller {
        config = config.controller(desk.controller(controller));
    }
    let shipped = Arc::new(Shipped::default());
    let found = Arc::clone(&shipped);
    let config = config.finder(move |name| found.find(name));
    aside(py, move || {
        if mesh.me().introduction.role == Role::Server {
            take(&mesh, &desk, unpickle, &shipped)?;
        }
        run_server(&mesh, config)
    })
}
