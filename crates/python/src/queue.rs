//! `sheave.pool.Queue`: items between processes. What a queue is for its users stands in Python; here items are written
//! and read.
//!
//! **Who holds what.** A thread holds the item that it took last until it comes back for another, says that it is done
//! with it, or ends. So an item whose taker is killed is told as lost, and one whose taker waits is not. Takers are
//! told apart by numbers of their own: those of the system are given again.
//!
//! **The interpreter** is let go where one has to wait, and where much is copied.

use crate::enter::{enter, span};
use crate::errors::{self, OrRaise};
use crate::guarded::Guarded;
use crate::link::PyPeer;
use crate::mesh::PyMesh;
use crate::pool::sendable;
use crate::value::{Opener, opening, pack_for_task};
use crate::work::{PyWork, now_ns};
use crate::{calls, guest, mesh};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use sheave_base::fork::ForkMark;
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_mesh::{Call, Callers, Lane, Mesh, Request, Service};
use sheave_net::Parts;
use sheave_pool::{Item, Packet, Put, Queue};
use sheave_wire::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The service by which a home hears of invitations that were not needed.
const INVITATIONS: &str = "sheave.queues";
const DECLINE: &str = "decline";

/// Items of so many bytes are copied with the interpreter let go.
const MUCH_BYTES: usize = 64 << 10;

/// What threads hold, by their numbers. A thread that has once held something is in it until it ends.
type Held = Mutex<BTreeMap<u64, Option<Item>>>;

/// A thread, and the queues in which it is noted.
struct Taker {
    number: u64,
    mark: ForkMark,
    noted: RefCell<Vec<Weak<Held>>>,
}

thread_local! {
    static TAKER: Taker = Taker::new();
}

impl Taker {
    fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self { number: LAST.fetch_add(1, Relaxed), mark: ForkMark::here(), noted: RefCell::default() }
    }

    /// Replaces what this thread holds.
    fn holds(&self, held: &Arc<Held>, item: Option<Item>) {
        let former = held.lock().unwrap_or_else(PoisonError::into_inner).insert(self.number, item);
        if former.is_none() {
            let mut noted = self.noted.borrow_mut();
            noted.retain(|held| held.strong_count() > 0);
            noted.push(Arc::downgrade(held));
        }
    }

    /// Lets go of what this thread holds; false if that is nothing.
    fn lets_go(&self, held: &Held) -> bool {
        let item = held.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&self.number).and_then(Option::take);
        item.is_some()
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        // What a forked child inherits is not its own to give back.
        if self.mark.is_stale() {
            return;
        }
        for held in self.noted.get_mut().iter().filter_map(Weak::upgrade) {
            let item = held.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
            drop(item);
        }
    }
}

struct Inner {
    queue: Queue,
    is_home: bool,
    is_strict: bool,
    opener: Opener,
    held: Arc<Held>,
}

impl Inner {
    fn new(queue: Queue, mesh: &Mesh) -> Result<Self> {
        let opener = Opener::new(mesh.downgrade(), calls::opens()?);
        let (is_home, is_strict) = (queue.is_home(), queue.is_strict());
        Ok(Self { queue, is_home, is_strict, opener, held: Arc::default() })
    }

    /// Writes an item, and captures the arrays in it.
    fn packet(&self, object: &Bound<'_, PyAny>) -> PyResult<Packet> {
        let py = object.py();
        let (value, parts) = sendable(py, pack_for_task(object)?)?;
        let bytes: usize = parts.iter().map(|part| part.tensor().len_bytes()).sum();
        let capture = |parts: Parts| self.queue.packet(&value, parts);
        if bytes < MUCH_BYTES { capture(parts) } else { py.detach(|| capture(parts)) }.or_raise(py)
    }

    /// Makes an object of an item that this thread has taken.
    fn opened(&self, py: Python<'_>, mut item: Item) -> PyResult<Py<PyAny>> {
        let packet = item.take_packet();
        if !self.is_home {
            TAKER.with(|taker| taker.holds(&self.held, Some(item)));
        }
        let (value, tensors) = packet.into_value().or_raise(py)?;
        self.opener.check(&value).or_raise(py)?;
        let object = self.opener.unpack(py, value, &tensors)?.unbind();
        if !tensors.is_empty() {
            py.detach(|| drop(tensors));
        }
        Ok(object)
    }

    /// Lets go of what this thread holds; false if that is nothing.
    fn let_go(&self) -> bool {
        !self.is_home && TAKER.with(|taker| taker.lets_go(&self.held))
    }

    fn home(&self) -> Result<&Queue> {
        if self.is_home {
            return Ok(&self.queue);
        }
        let error = Error::new(ErrorKind::InvalidArgument, format!("queue {} lives elsewhere", self.queue.name()));
        Err(error.hint("ask in the process that has made it"))
    }
}

/// The exception for an error of a queue: of `class` in `sheave.pool` where it was a wait that was too long.
fn refused(py: Python<'_>, error: &Error, class: &'static str) -> PyErr {
    static FULL: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static EMPTY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    if error.kind() != ErrorKind::DeadlineExceeded {
        return errors::raised(py, error);
    }
    let known = if class == "Full" { &FULL } else { &EMPTY };
    match known.import(py, "sheave.pool._queue", class) {
        Ok(class) => errors::raised_as(error, class),
        Err(failure) => failure,
    }
}

fn late(operation: &'static str, what: &str, queue: &Queue) -> Error {
    Error::new(ErrorKind::DeadlineExceeded, format!("{what} in queue {}", queue.name())).operation(operation)
}

/// What is left of a span that began then.
fn left(timeout: Option<Duration>, began: Option<Instant>) -> Option<Duration> {
    timeout.map(|timeout| timeout.saturating_sub(began.map_or(Duration::ZERO, |began| began.elapsed())))
}

/// An item that is written, and not in a queue yet.
#[pyclass(name = "QueueItem", module = "sheave._core", frozen)]
pub(crate) struct PyItem(Guarded<Mutex<Option<Packet>>>);

/// A queue of items, at its home or at one of its ends: what `sheave.pool.Queue` stands on.
#[pyclass(name = "ProcessQueue", module = "sheave._core", frozen, weakref)]
pub(crate) struct PyQueue(Guarded<Inner>);

impl PyQueue {
    fn inner(&self, py: Python<'_>) -> PyResult<&Inner> {
        self.0.check("queue").or_raise(py)
    }
}

#[pymethods]
impl PyQueue {
    /// A queue whose home is the node of this mesh, with so many items at most.
    #[new]
    fn new(mesh: &Bound<'_, PyMesh>, name: &str, capacity: Option<usize>) -> PyResult<Self> {
        let py = mesh.py();
        let mesh = mesh.get().mesh().or_raise(py)?;
        // Once for each mesh.
        match mesh.serve(INVITATIONS, Invitations(mesh.downgrade())) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(errors::raised(py, &error)),
            _ => {}
        }
        let queue = Queue::of_trusted(&mesh, name, capacity).or_raise(py)?;
        Ok(Self(Guarded::new(Inner::new(queue, &mesh).or_raise(py)?)))
    }

    /// The end of a queue on another node, by a mesh of this process of which that is a member, or whose host it is;
    /// None if there is no such mesh.
    #[staticmethod]
    fn attach(py: Python<'_>, home: u64, name: &str) -> PyResult<Option<Self>> {
        let Some(mesh) = mesh_with(NodeId(home)) else { return Ok(None) };
        if mesh.me().node == NodeId(home) {
            let error = Error::new(ErrorKind::Closed, format!("queue {name} of this process is not there any more"));
            return Err(errors::to_python(py, &error.hint("keep the queue as long as its pickles are to be opened")));
        }
        let queue = enter(py, None, |_, interrupt| Queue::attach(&mesh, NodeId(home), name, interrupt))?;
        Ok(Some(Self(Guarded::new(Inner::new(queue, &mesh).or_raise(py)?))))
    }

    /// Puts an object, and waits for room if it is to. Raises Full.
    fn put(&self, object: &Bound<'_, PyAny>, block: bool, timeout: Option<f64>) -> PyResult<()> {
        let py = object.py();
        let (inner, timeout) = (self.inner(py)?, span(timeout)?);
        let began = timeout.map(|_| Instant::now());
        let mut packet = inner.packet(object)?;
        let queue = &inner.queue;
        if !inner.is_strict {
            packet = match queue.try_put(packet).or_raise(py)? {
                Put::Begun(_) => return Ok(()),
                Put::Refused(packet) => packet,
            };
        }
        let put = enter(py, None, |_, interrupt| {
            Ok(match block {
                true => queue.put(packet, left(timeout, began), interrupt),
                false => queue.put_now(packet, interrupt).and_then(|is_in| match is_in {
                    true => Ok(()),
                    false => Err(late("put", "there was no room", queue)),
                }),
            })
        });
        put?.map_err(|error| refused(py, &error, "Full"))
    }

    /// Takes an object, and waits for one if it is to. Raises Empty.
    fn get(&self, py: Python<'_>, block: bool, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let (inner, timeout) = (self.inner(py)?, span(timeout)?);
        inner.let_go();
        let queue = &inner.queue;
        if let Some(item) = queue.try_get().or_raise(py)? {
            return inner.opened(py, item);
        }
        let taken = enter(py, None, |_, interrupt| {
            Ok(match block {
                true => queue.get(timeout, interrupt),
                false => queue
                    .get_now(interrupt)
                    .and_then(|item| item.ok_or_else(|| late("get", "there was nothing", queue))),
            })
        });
        let item = taken?.map_err(|error| refused(py, &error, "Empty"))?;
        inner.opened(py, item)
    }

    /// Writes an item, to be offered.
    fn pack(&self, object: &Bound<'_, PyAny>) -> PyResult<PyItem> {
        let packet = self.inner(object.py())?.packet(object)?;
        Ok(PyItem(Guarded::new(Mutex::new(Some(packet)))))
    }

    /// Puts an item without a wait: what is to be waited for then, and whether that is all; if not the item is to be
    /// offered again.
    fn offer(&self, py: Python<'_>, item: &Bound<'_, PyItem>) -> PyResult<(bool, PyWork)> {
        let (inner, begun_ns) = (self.inner(py)?, now_ns());
        let item = item.get().0.check("item").or_raise(py)?;
        let packet = item.lock().unwrap_or_else(PoisonError::into_inner).take();
        let gone = || Error::new(ErrorKind::InvalidArgument, "an item that is in a queue already");
        let put = inner.queue.try_put(packet.ok_or_else(gone).or_raise(py)?).or_raise(py)?;
        let (is_in, work) = match put {
            Put::Begun(work) => (true, work),
            Put::Refused(packet) => {
                let room = inner.queue.room(&packet);
                *item.lock().unwrap_or_else(PoisonError::into_inner) = Some(packet);
                (false, room.or_raise(py)?)
            }
        };
        Ok((is_in, PyWork::of_nothing(work, begun_ns)))
    }

    /// Takes an object that is here already: a tuple of it.
    fn take(&self, py: Python<'_>) -> PyResult<Option<(Py<PyAny>,)>> {
        let inner = self.inner(py)?;
        inner.let_go();
        match inner.queue.try_get().or_raise(py)? {
            Some(item) => inner.opened(py, item).map(|object| Some((object,))),
            None => Ok(None),
        }
    }

    /// A work that ends when there may be something to take, or there will be nothing.
    fn available(&self, py: Python<'_>) -> PyResult<PyWork> {
        Ok(PyWork::of_nothing(self.inner(py)?.queue.available().or_raise(py)?, now_ns()))
    }

    /// Lets the home know that nobody waits here any more, if that is so.
    fn give_up(&self, py: Python<'_>) -> PyResult<()> {
        self.inner(py)?.queue.give_up();
        Ok(())
    }

    /// Lets go of what this thread has taken last; false if it holds nothing.
    fn let_go(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.inner(py)?.let_go())
    }

    /// How many items nobody has taken.
    fn length(&self, py: Python<'_>) -> PyResult<usize> {
        let work = self.inner(py)?.queue.length().or_raise(py)?;
        if !work.is_done() {
            enter(py, None, |until, interrupt| work.wait_until(until, interrupt))?;
        }
        work.wait().or_raise(py)
    }

    /// What was lost: numbers, who held it, and what became of them.
    fn lost(&self, py: Python<'_>) -> PyResult<Vec<(u64, PyPeer, Py<PyAny>)>> {
        let (_, lost) = self.inner(py)?.home().and_then(Queue::lost).or_raise(py)?;
        let error = |error: &Error| errors::to_python(py, error).into_value(py).into_any();
        Ok(lost.into_iter().map(|lost| (lost.number, lost.holder.into(), error(&lost.error))).collect())
    }

    /// Takes no more items; at an end, gives none either. Idempotent.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner(py)?;
        let held = std::mem::take(&mut *inner.held.lock().unwrap_or_else(PoisonError::into_inner));
        drop(held);
        inner.queue.close();
        Ok(())
    }

    /// The node of this process that the queue is used by.
    #[getter]
    fn node(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.inner(py)?.opener.mesh().or_raise(py)?.me().node.0)
    }
}

/// A mesh of this process that knows that node: the one over which a pickle has come that is opened, if it does.
fn mesh_with(node: NodeId) -> Option<Mesh> {
    let members = mesh::homes().into_iter().filter_map(|home| home.mesh().ok());
    let guests = guest::attached().into_iter().map(|guest| guest.mesh().clone());
    opening().into_iter().chain(members).chain(guests).find(|mesh| mesh.peer_of(node).is_some())
}

/// Invites a process to be a guest for its queues: the text, the name, and the secret of the job.
#[pyfunction]
fn invite_for_queues(mesh: &Bound<'_, PyMesh>) -> PyResult<(String, String, Option<Vec<u8>>)> {
    let py = mesh.py();
    let mesh = mesh.get().mesh().or_raise(py)?;
    let invitation = mesh.invite_own("queue").or_raise(py)?;
    let secret = mesh.secret().map(|secret| secret.expose().to_vec());
    Ok((invitation.to_text(), invitation.name().to_owned(), secret))
}

/// Whether nobody has come by the invitation of this name.
#[pyfunction]
fn is_invited(mesh: &Bound<'_, PyMesh>, name: &str) -> PyResult<bool> {
    let mesh = mesh.get().mesh().or_raise(mesh.py())?;
    Ok(mesh.guest_arrival(name).is_ok_and(|arrival| !arrival.is_done()))
}

/// Withdraws an invitation, if nobody has come by it.
#[pyfunction]
fn withdraw_invitation(mesh: &Bound<'_, PyMesh>, name: &str) -> PyResult<bool> {
    let mesh = mesh.get().mesh().or_raise(mesh.py())?;
    Ok(mesh.withdraw_invitation(name))
}

/// Tells that node that this process does not need its invitation.
#[pyfunction]
fn decline_invitation(home: u64, name: &str) {
    if let Some(mesh) = mesh_with(NodeId(home)) {
        // One that is gone has withdrawn it.
        let _ = mesh.cast(NodeId(home), INVITATIONS, DECLINE, Call::of(Value::from(name)));
    }
}

/// Hears of invitations that were not needed.
struct Invitations(sheave_mesh::WeakMesh);

impl Service for Invitations {
    fn handle(&self, request: Request) {
        if let (Some(mesh), Value::Str(name)) = (self.0.upgrade(), &request.args)
            && request.method == DECLINE
            && mesh.trusts(request.from)
        {
            mesh.withdraw_invitation(name);
        }
        request.reply.value(());
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }

    fn callers(&self, _: &str) -> Callers {
        Callers::MembersAndGuests
    }
}

/// Adds what there is to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyQueue>()?;
    module.add_class::<PyItem>()?;
    module.setattr("_attach_guest", wrap_pyfunction!(guest::attach_guest, module)?)?;
    module.setattr("_invite_for_queues", wrap_pyfunction!(invite_for_queues, module)?)?;
    module.setattr("_is_invited", wrap_pyfunction!(is_invited, module)?)?;
    module.setattr("_withdraw_invitation", wrap_pyfunction!(withdraw_invitation, module)?)?;
    module.setattr("_decline_invitation", wrap_pyfunction!(decline_invitation, module)?)
}
