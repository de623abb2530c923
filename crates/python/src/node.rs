//! `sheave.Node`: one end of links, from Python.

use crate::enter::enter;
use crate::errors::OrRaise;
use crate::import::{self, Access};
use crate::life;
use crate::link::{PyLink, PyPeer};
use crate::tensor::PyTensor;
use crate::work::{PyWork, now_ns, received};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sheave_base::config::{Role, Settings};
use sheave_base::fork::ForkMark;
use sheave_base::limits::JOIN_TIMEOUT;
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Result, Tag, Work};
use sheave_net::{Address, Envelope, ListenConfig, Node, NodeConfig, Outgoing, Tensors, Transport, Wanted};
use sheave_tensor::{Mode, Tensor};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longer than anybody waits, and short enough to be added to any point in time.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Where a node is until it is closed.
pub(crate) struct Slot {
    id: NodeId,
    node: Mutex<Option<Node>>,
    /// An accept that nobody waits for any more; the next one takes it over, so that no link is lost.
    accepting: Mutex<Option<Work<LinkId>>>,
    mark: ForkMark,
}

impl Slot {
    fn node(&self) -> Result<Node> {
        self.mark.check("node")?;
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        node.clone().ok_or_else(|| Error::new(ErrorKind::Closed, "the node was closed"))
    }

    /// Ends the node for every thread. Idempotent.
    pub(crate) fn close(&self) {
        if self.mark.is_stale() {
            return;
        }
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(node) = node {
            node.shut_down();
        }
    }
}

impl life::Living for Slot {
    fn end(&self, _how: life::End) {
        self.close();
    }
}

/// One end of links to other nodes.
///
/// Every method may be called from any thread. Waits let other Python threads run, end at Ctrl-C, and fail with
/// PeerLost as soon as the peer that they need is gone.
///
/// >>> with sheave.Node("one") as one, sheave.Node("other") as other:
/// ...     link = one.link_to(other)
/// ...     one.send(link, np.array([1.0, 2.0]))
/// ...     other.recv().numpy()
/// array([1., 2.])
#[pyclass(name = "Node", module = "sheave", frozen, weakref)]
pub(crate) struct PyNode {
    slot: Arc<Slot>,
}

impl Drop for PyNode {
    fn drop(&mut self) {
        self.slot.close();
    }
}

impl PyNode {
    /// The node, and the link if it is one of its own.
    fn at(&self, link: &PyLink) -> Result<(Node, LinkId)> {
        let node = self.slot.node()?;
        if link.node != self.slot.id {
            return Err(Error::new(ErrorKind::InvalidArgument, "the link belongs to another node"));
        }
        Ok((node, link.link))
    }

    fn link(&self, link: LinkId) -> PyLink {
        PyLink { node: self.slot.id, link }
    }

    fn outgoing(py: Python<'_>, array: &Bound<'_, PyAny>, tag: u64, mode: &str) -> PyResult<Outgoing> {
        let mode = mode_named(mode).or_raise(py)?;
        let tensor = if mode == Mode::Move { moved(array).or_raise(py)? } else { import::tensor(array, Access::Read)? };
        Ok(Outgoing::tensor(Envelope::data(0, Tag(tag)), tensor, mode))
    }

    fn wanted(&self, link: Option<&PyLink>, tag: u64) -> Result<(Node, Wanted)> {
        let (node, source) = match link {
            Some(link) => self.at(link).map(|(node, link)| (node, Some(link)))?,
            None => (self.slot.node()?, None),
        };
        Ok((node, Wanted { source, context: 0, tag: Tag(tag) }))
    }
}

fn mode_named(name: &str) -> Result<Mode> {
    match name {
        "copy" => Ok(Mode::Copy),
        "move" => Ok(Mode::Move),
        "share" => Ok(Mode::Share),
        _ => Err(Error::new(ErrorKind::InvalidArgument, format!("the mode {name:?}"))
            .hint("give \"copy\", \"move\" or \"share\"")),
    }
}

fn transport_named(name: &str) -> Result<Transport> {
    match name {
        "auto" => Ok(Transport::Auto),
        "shm" => Ok(Transport::Shm),
        "tcp" => Ok(Transport::Tcp),
        _ => Err(Error::new(ErrorKind::InvalidArgument, format!("the transport {name:?}"))
            .hint("give \"auto\", \"shm\" or \"tcp\"")),
    }
}

fn not_a_socket(tcp: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{tcp:?} is no TCP address"))
        .hint("give an IP address and a port, such as \"127.0.0.1:0\"")
}

fn moved(array: &Bound<'_, PyAny>) -> Result<Tensor> {
    match array.cast::<PyTensor>() {
        Ok(ours) => ours.get().take(),
        Err(_) => Err(Error::new(ErrorKind::InvalidArgument, "only a sheave.Tensor can be sent by move")
            .hint("make it with Node.empty, or send by copy")),
    }
}

fn places(out: Option<&Bound<'_, PyAny>>) -> PyResult<Tensors> {
    out.map(|out| import::tensor(out, Access::Write)).transpose().map(|place| place.into_iter().collect())
}

#[pymethods]
impl PyNode {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    #[pyo3(signature = (
        name = None, role = None, *, rank = None, local_ranks = None, arena_bytes = None, liveness_timeout = None,
        transport = None
    ))]
    fn new(
        py: Python<'_>,
        name: Option<String>,
        role: Option<String>,
        rank: Option<u32>,
        local_ranks: Option<usize>,
        arena_bytes: Option<u64>,
        liveness_timeout: Option<f64>,
        transport: Option<&str>,
    ) -> PyResult<Self> {
        let settings = Settings::from_lookup(|name| std::env::var_os(name)).or_raise(py)?;
        let name = name.unwrap_or_else(|| format!("python-{}", std::process::id()));
        let mut config = NodeConfig::with_settings(name, &settings);
        config.rank = rank;
        if let Some(transport) = transport {
            config.transport = transport_named(transport).or_raise(py)?;
        }
        if let Some(role) = role {
            let known = Role::from_name(&role).ok_or_else(|| {
                Error::new(ErrorKind::InvalidArgument, format!("there is no role \"{role}\""))
                    .hint("roles are scheduler, server, worker and rank")
            });
            config.role = known.or_raise(py)?;
        }
        config.local_ranks = local_ranks.unwrap_or(config.local_ranks);
        config.arena.capacity_bytes = arena_bytes.unwrap_or(config.arena.capacity_bytes);
        if let Some(timeout_s) = liveness_timeout {
            let timeout = Duration::try_from_secs_f64(timeout_s).ok().filter(|timeout| !timeout.is_zero());
            config.liveness.timeout = timeout
                .ok_or_else(|| Error::new(ErrorKind::InvalidArgument, format!("a liveness timeout of {timeout_s} s")))
                .or_raise(py)?;
            config.liveness.beat = config.liveness.beat.min(config.liveness.timeout / 5);
        }
        let node = enter(py, None, |_, _| Node::start(config))?;
        let (id, mark) = (node.id(), ForkMark::here());
        let slot = Arc::new(Slot { id, node: Mutex::new(Some(node)), accepting: Mutex::default(), mark });
        let living: std::sync::Weak<Slot> = Arc::downgrade(&slot);
        life::remember(living);
        Ok(Self { slot })
    }

    /// The node as its peers see it.
    #[getter]
    fn identity(&self, py: Python<'_>) -> PyResult<PyPeer> {
        self.slot.node().map(|node| node.peer().clone().into()).or_raise(py)
    }

    /// The links that are alive.
    fn links(&self, py: Python<'_>) -> PyResult<Vec<PyLink>> {
        let node = self.slot.node().or_raise(py)?;
        Ok(node.links().into_iter().map(|link| self.link(link)).collect())
    }

    /// Start to listen for peers. Returns the address for their `connect`. Does not wait, and ends with the node.
    ///
    /// `tcp` is "HOST:PORT", where port 0 is any that is free, or None for none. `unix` listens for processes of this
    /// host too, which then use shared memory. `insecure` permits an address that other hosts can reach.
    #[pyo3(
        signature = (tcp = Some("127.0.0.1:0".to_owned()), *, unix = true, insecure = false),
        text_signature = "($self, tcp='127.0.0.1:0', *, unix=True, insecure=False)"
    )]
    fn listen(&self, py: Python<'_>, tcp: Option<String>, unix: bool, insecure: bool) -> PyResult<String> {
        let node = self.slot.node().or_raise(py)?;
        enter(py, None, |_, _| {
            let tcp = tcp.map(|tcp| tcp.parse().map_err(|_| not_a_socket(&tcp))).transpose()?;
            node.listen(ListenConfig { tcp, unix, insecure, unix_name: None }).map(|address| address.to_string())
        })
    }

    /// Link this node to the one that listens at an address. Tries again until the timeout, in seconds, is over.
    #[pyo3(
        signature = (address, timeout = Some(JOIN_TIMEOUT.as_secs_f64())),
        text_signature = "($self, address, timeout=60.0)"
    )]
    fn connect(&self, py: Python<'_>, address: &str, timeout: Option<f64>) -> PyResult<PyLink> {
        let node = self.slot.node().or_raise(py)?;
        let address: Address = address.parse().or_raise(py)?;
        let link = enter(py, timeout, |until, interrupt| {
            let until = until.unwrap_or_else(|| Instant::now() + FOREVER);
            node.connect_interruptible(&address, until, interrupt)
        })?;
        Ok(self.link(link))
    }

    /// Link this node to another one of the same process; the other one accepts the link like any other.
    ///
    /// medium "inproc" hands tensors over between threads; "shm" goes the way of two processes of one host.
    #[pyo3(signature = (other, medium = "inproc"))]
    fn link_to(&self, py: Python<'_>, other: &Self, medium: &str) -> PyResult<PyLink> {
        let (node, other) = (self.slot.node().or_raise(py)?, other.slot.node().or_raise(py)?);
        let (link, _) = enter(py, None, |_, _| match medium {
            "inproc" => sheave_net::inproc::connect(&node, &other),
            "shm" => sheave_net::shm::connect(&node, &other),
            _ => Err(Error::new(ErrorKind::InvalidArgument, format!("the medium {medium:?}"))
                .hint("give \"inproc\" or \"shm\"")),
        })?;
        Ok(self.link(link))
    }

    /// Wait for the next link that a peer makes to this node.
    #[pyo3(signature = (timeout = None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<PyLink> {
        let node = self.slot.node().or_raise(py)?;
        let link = enter(py, timeout, |until, interrupt| {
            let begun = Instant::now();
            let accepting = self.slot.accepting.lock().unwrap_or_else(PoisonError::into_inner).take();
            let accepting = accepting.unwrap_or_else(|| node.accept());
            let ended = accepting.wait_until(until, interrupt);
            if matches!(ended, Ok(true)) {
                return accepting.taken();
            }
            *self.slot.accepting.lock().unwrap_or_else(PoisonError::into_inner) = Some(accepting);
            ended?;
            Err(Error::new(ErrorKind::DeadlineExceeded, "no peer made a link")
                .operation("accept")
                .elapsed(begun.elapsed()))
        })?;
        Ok(self.link(link))
    }

    /// Send an array and return when it may be used again: captured, moved, or on its way.
    ///
    /// mode "copy": the bytes are captured. "move": a sheave.Tensor without views changes hands, nothing is copied.
    /// "share": both sides see the same memory from then on, at the caller's risk.
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    #[pyo3(signature = (link, array, tag = 0, mode = "copy", timeout = None))]
    fn send(
        &self,
        py: Python<'_>,
        link: &PyLink,
        array: &Bound<'_, PyAny>,
        tag: u64,
        mode: &str,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (node, link) = self.at(link).or_raise(py)?;
        let message = Self::outgoing(py, array, tag, mode)?;
        enter(py, timeout, |until, interrupt| node.send(link, message, until, interrupt))
    }

    /// Start to send an array. With mode "copy" it may be written at once; else only after the work has ended.
    #[pyo3(signature = (link, array, tag = 0, mode = "copy"))]
    fn isend(&self, py: Python<'_>, link: &PyLink, array: &Bound<'_, PyAny>, tag: u64, mode: &str) -> PyResult<PyWork> {
        let (node, link) = self.at(link).or_raise(py)?;
        let message = Self::outgoing(py, array, tag, mode)?;
        let begun_ns = now_ns();
        let work = enter(py, None, |_, _| node.isend(link, message))?;
        Ok(PyWork::of_nothing(work, begun_ns))
    }

    /// Receive the next tensor with this tag, from one link or from any.
    ///
    /// With `out`, a writable contiguous array of the sender's dtype and size, the bytes land there and the result is a
    /// tensor over the same memory.
    #[pyo3(signature = (link = None, tag = 0, out = None, timeout = None))]
    fn recv(
        &self,
        py: Python<'_>,
        link: Option<&PyLink>,
        tag: u64,
        out: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Py<PyTensor>> {
        let (node, wanted) = self.wanted(link, tag).or_raise(py)?;
        let places = places(out)?;
        let message = enter(py, timeout, |until, interrupt| node.recv(wanted, places, until, interrupt))?;
        received(py, self.slot.id, message).or_raise(py)
    }

    /// Start to receive. `out` is the operation's until the work has ended.
    #[pyo3(signature = (link = None, tag = 0, out = None))]
    fn irecv(
        &self,
        py: Python<'_>,
        link: Option<&PyLink>,
        tag: u64,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyWork> {
        let (node, wanted) = self.wanted(link, tag).or_raise(py)?;
        let places = places(out)?;
        let begun_ns = now_ns();
        let work = enter(py, None, |_, _| node.irecv(wanted, places))?;
        Ok(PyWork::receive(self.slot.id, work, begun_ns))
    }

    /// A tensor in the node's arena, where peers on this host can reach it without a copy. Its elements are whatever
    /// lay there.
    #[pyo3(signature = (shape, dtype = None))]
    fn empty(&self, py: Python<'_>, shape: &Bound<'_, PyAny>, dtype: Option<&Bound<'_, PyAny>>) -> PyResult<PyTensor> {
        let node = self.slot.node().or_raise(py)?;
        PyTensor::empty(py, node.arena(), shape, dtype)
    }

    /// Who is at the other end of a link that is alive.
    fn peer(&self, py: Python<'_>, link: &PyLink) -> PyResult<PyPeer> {
        let (node, link) = self.at(link).or_raise(py)?;
        node.link(link).map(|link| link.peer().clone().into()).or_raise(py)
    }

    /// What a link runs over: "inproc", "shm" or "tcp".
    fn medium(&self, py: Python<'_>, link: &PyLink) -> PyResult<String> {
        let (node, link) = self.at(link).or_raise(py)?;
        node.link(link).map(|link| link.medium().to_string()).or_raise(py)
    }

    /// What the node has done so far: messages, bytes copied, streamed and lent, wake-ups.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.slot.node().or_raise(py)?.counts();
        let dict = PyDict::new(py);
        dict.set_item("messages_sent", counts.messages_sent)?;
        dict.set_item("messages_received", counts.messages_received)?;
        dict.set_item("bytes_copied", counts.bytes_copied)?;
        dict.set_item("bytes_streamed", counts.bytes_streamed)?;
        dict.set_item("bytes_lent", counts.bytes_lent)?;
        dict.set_item("doorbells_rung", counts.doorbells_rung)?;
        dict.set_item("progress_wakeups", counts.progress_wakeups)?;
        dict.set_item("waits_parked", counts.waits_parked)?;
        dict.set_item("links_ended", counts.links_ended)?;
        Ok(dict)
    }

    /// End one link in order: what was sent before still arrives.
    fn disconnect(&self, py: Python<'_>, link: &PyLink) -> PyResult<()> {
        let (node, link) = self.at(link).or_raise(py)?;
        enter(py, None, |_, _| node.close(link))
    }

    /// End every link and the node. Waits of other threads fail. Tensors and their views stay. Idempotent.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.slot.close());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        match self.slot.node() {
            Ok(node) => format!("<sheave.Node {}, {} links>", node.peer(), node.links().len()),
            Err(_) => "<sheave.Node closed>".to_owned(),
        }
    }
}
