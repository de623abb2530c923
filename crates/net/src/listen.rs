//! Listening for peers: strangers come in, authenticated links go out.
//!
//! Nobody blocks. Each accepted socket is a [`Pending`] handshake that the node's leader serves when its descriptor is
//! ready; it reads no more than one handshake message ahead, is dropped when its time is up, and there are at most
//! [`HANDSHAKES_PENDING_MAX`] of them: one more evicts the oldest, so that silent strangers, however many, cannot keep
//! out a peer that answers. A handshake that succeeds becomes a link and is announced to whoever accepts.
//!
//! **One owner.** A pending handshake's [`Stage`] is taken out of its slot while a thread works on it and put back
//! afterwards, unless the handshake was dropped meanwhile; so no lock is held while a link is announced, and a second
//! thread that finds the slot empty has nothing to do.

use crate::address::Address;
use crate::connect::SHORTAGE_PATIENCE;
use crate::greeting::{nonce, peer_of};
use crate::node::{Inner, Node};
use crate::progress::{Interest, Watched};
use crate::{shm, tcp};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, getsockname,
    listen, recv, send, socket_with, sockopt,
};
use sheave_base::clock;
use sheave_base::limits::{HANDSHAKE_BYTES_MAX, HANDSHAKES_PENDING_MAX};
use sheave_base::{Error, ErrorKind, Peer, Result};
use sheave_wire::handshake::{Hello, Medium, RejectReason, Responder, Step, reject};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Connections that the kernel keeps for us until they are accepted.
const BACKLOG: i32 = 1024;
/// Connections accepted before others get a turn.
const ACCEPTS_PER_TURN: usize = 64;
/// Refused handshakes whose errors are remembered.
const REFUSALS_KEPT: usize = 16;

/// Where a node listens.
#[derive(Clone, Debug)]
pub struct ListenConfig {
    /// The TCP address; port 0 stands for any that is free. None by default but loopback.
    pub tcp: Option<SocketAddr>,
    /// Listen for processes of this host too, on an abstract Unix socket.
    pub unix: bool,
    /// The name of that socket, for peers that must know it beforehand; random if `None`.
    pub unix_name: Option<String>,
    /// Permit an address that other hosts can reach, although what travels is authenticated only when the link begins
    /// and is never encrypted.
    pub insecure: bool,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self { tcp: Some(SocketAddr::from(([127, 0, 0, 1], 0))), unix: true, unix_name: None, insecure: false }
    }
}

/// Handshakes that a node's listeners have turned away.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    /// How many.
    pub count: u64,
    /// Why, for the last few of them, oldest first.
    pub last: VecDeque<Error>,
}

impl Node {
    /// Starts to listen for peers; their links come out of [`Node::accept`]. Does not block, and ends with the node.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an address that other hosts can reach, unless the config insists, and for a config without
    /// any address; `AlreadyExists` for a port in use; what [`sheave_base::secret::resolve`] says if there is no
    /// secret.
    ///
    /// ```
    /// use sheave_net::{ListenConfig, Node, NodeConfig};
    /// use std::time::{Duration, Instant};
    ///
    /// let secret = sheave_base::Secret::new(b"only this example knows it")?;
    /// let secret = Some(sheave_base::secret::Resolved { secret, source: "an example".into() });
    /// let start = |name| Node::start(NodeConfig { secret: secret.clone(), ..NodeConfig::named(name) });
    /// let (server, worker) = (start("server")?, start("worker")?);
    /// let address = server.listen(ListenConfig::default())?;
    /// let link = worker.connect(&address, Instant::now() + Duration::from_secs(10))?;
    /// let back = server.accept().wait()?;
    /// assert_eq!(server.link(back)?.peer().name, "worker");
    /// # assert_eq!(worker.link(link)?.peer().name, "server");
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn listen(&self, config: ListenConfig) -> Result<Address> {
        let node = &self.inner;
        node.fork.check("node")?;
        node.secret()?;
        if config.tcp.is_none() && !config.unix {
            return Err(Error::new(ErrorKind::InvalidArgument, "nothing to listen on: no TCP address, no Unix socket"));
        }
        let mut address = Address {
            node: node.id,
            name: node.config.name.clone(),
            boot_id: node.boot_id().to_owned(),
            unix: None,
            tcp: None,
        };
        // Who finds the TCP socket must find the Unix socket too, lest it settle for TCP.
        let near = config.unix.then(|| listen_unix(config.unix_name)).transpose();
        let near = near.map_err(|error| error.operation("listen"))?;
        if let Some(wanted) = config.tcp {
            let (socket, bound) = listen_tcp(wanted, config.insecure).map_err(|error| error.operation("listen"))?;
            address.tcp = Some(bound);
            node.listening.serve(node, socket, Medium::Tcp)?;
        }
        if let Some((socket, name)) = near {
            address.unix = Some(name);
            node.listening.serve(node, socket, Medium::SharedMemory)?;
        }
        Ok(address)
    }

    /// The handshakes that this node's listeners have turned away so far.
    #[must_use]
    pub fn refusals(&self) -> Refusals {
        self.inner.listening.refusals.lock().clone()
    }

    /// Handshakes in progress on this node's listeners.
    #[must_use]
    pub fn handshakes_pending(&self) -> usize {
        self.inner.listening.pending.lock().by_number.len()
    }

    /// Whether a peer may hold a link to this node that the node does not know yet: a handshake is at the point where
    /// only one side has seen its end. It is over in a moment.
    #[must_use]
    pub fn is_greeting(&self) -> bool {
        let pending: Vec<_> = self.inner.listening.pending.lock().by_number.values().cloned().collect();
        pending.iter().any(|pending| match &*pending.slot.lock() {
            Slot::Busy => true,
            Slot::Waiting(stage, _) => matches!(stage.progress, Talk::Offering(_)),
            Slot::Gone => false,
        })
    }
}

/// Returns the socket and its address, whose port is known now.
fn listen_tcp(wanted: SocketAddr, insecure: bool) -> Result<(OwnedFd, SocketAddr)> {
    if !wanted.ip().is_loopback() && !insecure {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{wanted} can be reached from other hosts")).hint(
            "listen on a loopback address, or set SHEAVE_INSECURE=1 (insecure) on all if you trust the network",
        ));
    }
    let in_use = || {
        let what = format!("port {} of {} is in use by another process", wanted.port(), wanted.ip());
        Error::new(ErrorKind::AlreadyExists, what)
            .hint("end that process, choose another port, or port 0 for any that is free")
    };
    #[cfg(feature = "simulated")]
    if let Some(system) = sheave_base::simulated::current() {
        return system.listen(wanted).map_err(|_| in_use());
    }
    let family = if wanted.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
        .map_err(|errno| Error::from(errno).context("making a socket"))?;
    // Connections of an earlier run that linger in the kernel do not keep its port from a new one.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    let bound = bind(&socket, &wanted).and_then(|()| listen(&socket, BACKLOG));
    match bound {
        Ok(()) => bound_to(&socket).map(|bound| (socket, bound)),
        Err(Errno::ADDRINUSE) => Err(in_use()),
        Err(errno) => Err(Error::from(errno).context(format!("listening on {wanted}"))),
    }
}

fn bound_to(socket: &OwnedFd) -> Result<SocketAddr> {
    let name = getsockname(socket).map_err(|errno| Error::from(errno).context("asking for the port"))?;
    SocketAddr::try_from(name).map_err(|errno| Error::from(errno).context("reading the port"))
}

fn listen_unix(name: Option<String>) -> Result<(OwnedFd, String)> {
    let random = u128::from_le_bytes(*nonce()?.first_chunk().expect("a nonce is longer"));
    let name = name.unwrap_or_else(|| format!("sheave-{random:032x}"));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let make = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    let socket = make().map_err(|errno: Errno| Error::from(errno).context("listening on a Unix socket"))?;
    Ok((socket, name))
}

/// The listeners of a node and the handshakes that came in through them.
pub(crate) struct Listening {
    node: Weak<Inner>,
    acceptors: Mutex<Vec<Arc<Acceptor>>>,
    pending: Mutex<Handshakes>,
    refusals: Mutex<Refusals>,
    /// Since when no link could be made here because this process lacks something, and when that was found last.
    short_since: Mutex<Option<(Instant, Instant)>>,
}

#[derive(Default)]
struct Handshakes {
    /// By ascending age.
    by_number: BTreeMap<u64, Arc<Pending>>,
    next: u64,
}

impl Listening {
    pub(crate) fn of(node: Weak<Inner>) -> Arc<Self> {
        let (acceptors, pending, refusals) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Self { node, acceptors, pending, refusals, short_since: Mutex::new(None) })
    }

    fn serve(self: &Arc<Self>, node: &Arc<Inner>, socket: OwnedFd, medium: Medium) -> Result<()> {
        let listening = Arc::downgrade(self);
        let acceptor =
            Arc::new(Acceptor { listening, socket, medium, key: Mutex::new(0), exhausted: AtomicBool::new(false) });
        let mut key = acceptor.key.lock();
        *key = node.progress.watch(acceptor.socket.as_fd(), Arc::clone(&acceptor) as Arc<dyn Watched>)?;
        drop(key);
        self.acceptors.lock().push(acceptor);
        Ok(())
    }

    /// Called at every beat: drops handshakes that take too long, and accepts again after a shortage of descriptors.
    pub(crate) fn sweep(&self) {
        let Some(node) = self.node.upgrade() else { return };
        for acceptor in self.acceptors.lock().iter() {
            if acceptor.exhausted.swap(false, SeqCst) {
                node.progress.rewatch(*acceptor.key.lock(), acceptor.socket.as_fd(), Interest::Read);
            }
        }
        let limit = node.config.handshake_timeout;
        loop {
            let late = {
                let mut pending = self.pending.lock();
                let oldest = pending.by_number.first_entry().filter(|oldest| clock::since(oldest.get().since) >= limit);
                oldest.map(std::collections::btree_map::OccupiedEntry::remove)
            };
            let Some(late) = late else { return };
            late.discard(&node, None);
            let what = format!("a stranger proved nothing within {} s", limit.as_secs_f64());
            self.note_refusal(Error::new(ErrorKind::DeadlineExceeded, what).operation("handshake"));
        }
    }

    /// Stops listening; nothing of it is left when this returns.
    pub(crate) fn close(&self) {
        let acceptors = std::mem::take(&mut *self.acceptors.lock());
        let pending = std::mem::take(&mut self.pending.lock().by_number);
        let Some(node) = self.node.upgrade() else { return };
        for acceptor in acceptors {
            node.progress.unwatch(*acceptor.key.lock(), acceptor.socket.as_fd());
        }
        for pending in pending.into_values() {
            pending.discard(&node, None);
        }
    }

    /// Begins a handshake on an accepted socket.
    fn begin(self: &Arc<Self>, node: &Arc<Inner>, socket: OwnedFd, medium: Medium) -> Result<()> {
        if medium == Medium::SharedMemory {
            shm::check_user(socket.as_fd())?;
        }
        let secret = node.secret()?;
        let hello = node.hello(medium, &secret);
        let responder = Responder::new(hello, secret.secret, nonce()?)?;
        let stage = Stage { socket, medium, progress: Talk::Proving(Box::new(responder)) };
        let (pending, evicted) = {
            let mut handshakes = self.pending.lock();
            handshakes.next += 1;
            let number = handshakes.next;
            let full = handshakes.by_number.len() >= HANDSHAKES_PENDING_MAX;
            let evicted = if full { handshakes.by_number.pop_first() } else { None };
            let pending = Arc::new(Pending {
                listening: Arc::downgrade(self),
                number,
                since: clock::now(),
                slot: Mutex::new(Slot::Busy),
            });
            handshakes.by_number.insert(number, Arc::clone(&pending));
            (pending, evicted.map(|(_, evicted)| evicted))
        };
        if let Some(evicted) = evicted {
            evicted.discard(node, Some(RejectReason::Busy));
            self.note_refusal(
                Error::new(ErrorKind::LimitExceeded, format!("more than {HANDSHAKES_PENDING_MAX} handshakes at once"))
                    .operation("handshake"),
            );
        }
        pending.wait_for_more(node, stage)
    }

    fn forget(&self, number: u64) {
        self.pending.lock().by_number.remove(&number);
    }

    /// A link was made: there is what it takes.
    fn is_short_no_more(&self) {
        *self.short_since.lock() = None;
    }

    /// A peer could not link to this node, which lacks something. If that lasts, the node cannot stay in a job whose
    /// members may need it.
    fn note_shortage(&self, error: &Error) {
        let Some(node) = self.node.upgrade() else { return };
        let now = clock::now();
        // What is tried again is so within a beat; a shortage that was found long ago was another one.
        let memory = SHORTAGE_PATIENCE + node.config.liveness.beat * 2;
        let mut short_since = self.short_since.lock();
        let since = short_since.filter(|(_, last)| now.duration_since(*last) < memory).map_or(now, |(since, _)| since);
        *short_since = Some((since, now));
        drop(short_since);
        if now.duration_since(since) >= SHORTAGE_PATIENCE {
            node.endpoints.tell(|endpoint| endpoint.fell_short(error));
            // Whoever polls next attends to it; nobody may be about to.
            node.progress.ring();
        }
    }

    fn note_refusal(&self, error: Error) {
        if error.is_shortage() {
            self.note_shortage(&error);
        }
        let mut refusals = self.refusals.lock();
        refusals.count += 1;
        if refusals.last.len() >= REFUSALS_KEPT {
            refusals.last.pop_front();
        }
        refusals.last.push_back(error);
    }
}

/// A listening socket.
struct Acceptor {
    listening: Weak<Listening>,
    socket: OwnedFd,
    medium: Medium,
    key: Mutex<u64>,
    /// There were no descriptors left; the next sweep tries again.
    exhausted: AtomicBool,
}

impl Watched for Acceptor {
    fn ready(&self) {
        let Some(listening) = self.listening.upgrade() else { return };
        let Some(node) = listening.node.upgrade() else { return };
        for _ in 0..ACCEPTS_PER_TURN {
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    if let Err(error) = listening.begin(&node, socket, self.medium) {
                        listening.note_refusal(error.operation("handshake"));
                    }
                }
                Err(Errno::AGAIN) => return,
                // Somebody gave up before he was accepted.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO | Errno::PERM) => {}
                Err(errno) => {
                    listening.note_shortage(&Error::from(errno).context("accepting a link").operation("accept"));
                    // No descriptors or no memory: the connection stays in the kernel's queue, which would wake the
                    // leader again at once.
                    node.progress.rewatch(*self.key.lock(), self.socket.as_fd(), Interest::Nothing);
                    // Not before: a sweep between the two would have it watched, and then nobody would.
                    self.exhausted.store(true, SeqCst);
                    return;
                }
            }
        }
    }
}

/// A handshake in progress.
struct Pending {
    listening: Weak<Listening>,
    number: u64,
    since: Instant,
    slot: Mutex<Slot>,
}

enum Slot {
    /// It waits for bytes, watched under a key.
    Waiting(Stage, u64),
    /// A thread works on it.
    Busy,
    /// It was dropped, or it is done.
    Gone,
}

struct Stage {
    socket: OwnedFd,
    medium: Medium,
    progress: Talk,
}

enum Talk {
    /// The stranger proves itself.
    Proving(Box<Responder>),
    /// The peer is who it says it is and will offer its rings.
    Offering(Peer),
}

impl Pending {
    /// Puts the stage back and watches its socket, unless the handshake was dropped meanwhile.
    fn wait_for_more(self: Arc<Self>, node: &Inner, stage: Stage) -> Result<()> {
        let mut slot = self.slot.lock();
        if matches!(*slot, Slot::Gone) {
            return Ok(());
        }
        match node.progress.watch(stage.socket.as_fd(), Arc::clone(&self) as Arc<dyn Watched>) {
            Ok(key) => {
                *slot = Slot::Waiting(stage, key);
                Ok(())
            }
            Err(error) => {
                *slot = Slot::Gone;
                drop(slot);
                if let Some(listening) = self.listening.upgrade() {
                    listening.forget(self.number);
                }
                Err(error)
            }
        }
    }

    /// The socket is ready: goes on with the handshake.
    fn advance(self: Arc<Self>, node: &Arc<Inner>, listening: &Listening) {
        let stage = {
            let mut slot = self.slot.lock();
            match std::mem::replace(&mut *slot, Slot::Busy) {
                Slot::Waiting(stage, key) => {
                    // A link that comes of it watches the socket in its own way.
                    node.progress.unwatch(key, stage.socket.as_fd());
                    stage
                }
                other => {
                    *slot = other;
                    return;
                }
            }
        };
        let number = self.number;
        let outcome = match stage.advance(node) {
            Ok(Some(stage)) => self.wait_for_more(node, stage),
            Ok(None) => {
                listening.forget(number);
                Ok(())
            }
            Err(error) => {
                listening.forget(number);
                Err(error)
            }
        };
        if let Err(error) = outcome {
            listening.note_refusal(error);
        }
    }

    /// Drops the handshake; a thread that works on it finds out when it is done.
    fn discard(&self, node: &Inner, reason: Option<RejectReason>) {
        let slot = std::mem::replace(&mut *self.slot.lock(), Slot::Gone);
        if let Slot::Waiting(stage, key) = slot {
            node.progress.unwatch(key, stage.socket.as_fd());
            if let (Some(reason), Ok(secret)) = (reason, node.secret()) {
                let _ = say(&stage.socket, &reject(reason, &node.hello(stage.medium, &secret)));
            }
        }
    }
}

impl Watched for Pending {
    fn ready(&self) {
        let Some(listening) = self.listening.upgrade() else { return };
        let Some(node) = listening.node.upgrade() else { return };
        let Some(pending) = listening.pending.lock().by_number.get(&self.number).cloned() else { return };
        pending.advance(&node, &listening);
    }
}

impl Stage {
    /// Takes what has arrived. `None` when it became a link.
    fn advance(mut self, node: &Arc<Inner>) -> Result<Option<Self>> {
        let responder = match &mut self.progress {
            Talk::Proving(responder) => responder,
            Talk::Offering(peer) => {
                let peer = std::mem::take(peer);
                let answered = shm::answer(node, self.socket, peer)?;
                if answered.is_ok() {
                    node.listening.is_short_no_more();
                }
                return Ok(answered.err().map(|(socket, peer)| Self {
                    socket,
                    medium: self.medium,
                    progress: Talk::Offering(peer),
                }));
            }
        };
        let mut bytes = [0; HANDSHAKE_BYTES_MAX + 4];
        let length = match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(gone("closed its connection")),
            Ok((length, _)) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Some(self)),
            Err(errno) => return Err(gone(&format!("lost its connection ({errno})"))),
        };
        let mut rest = &bytes[..length];
        while !rest.is_empty() {
            let progress = match responder.feed(rest) {
                Ok(progress) => progress,
                Err(refusal) => {
                    // It may be gone; then there is nobody to tell.
                    let _ = refusal.send.map(|words| say(&self.socket, &words));
                    return Err(refusal.error);
                }
            };
            rest = &rest[progress.consumed_bytes..];
            match progress.step {
                Step::Need => {}
                Step::Send(words) => say(&self.socket, &words)?,
                Step::Done { peer, send, .. } => {
                    // Before it hears the last word: with that it may have its link, use it, and be no neighbour any
                    // more before this thread goes on.
                    let is_neighbour = node.find_neighbour(peer.node).is_some();
                    if let Some(words) = send {
                        say(&self.socket, &words)?;
                    }
                    return self.become_link(node, &peer, is_neighbour, rest);
                }
            }
        }
        Ok(Some(self))
    }

    /// The peer is who it says it is.
    fn become_link(self, node: &Arc<Inner>, peer: &Hello, is_neighbour: bool, early: &[u8]) -> Result<Option<Self>> {
        if peer.payload == crate::probe::PAYLOAD {
            node.vouched_for(peer.node);
            return Ok(None);
        }
        if is_neighbour {
            // It knows the same of this node and makes the link in process.
            return Ok(None);
        }
        let peer = peer_of(peer);
        match self.medium {
            Medium::Tcp => {
                let link = tcp::add(node, self.socket, peer, early, None)?;
                node.listening.is_short_no_more();
                node.announce_arrival(link);
                Ok(None)
            }
            Medium::SharedMemory if early.is_empty() => Ok(Some(Self { progress: Talk::Offering(peer), ..self })),
            _ => Err(Error::new(ErrorKind::Protocol, "the peer sent more than its handshake").peer(peer)),
        }
    }
}

/// Writes a handshake message. A fresh socket has room for all of them, and who fills it otherwise is no peer.
fn say(socket: &OwnedFd, words: &[u8]) -> Result<()> {
    match send(socket, words, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(length) if length == words.len() => Ok(()),
        Ok(_) | Err(Errno::AGAIN) => Err(gone("does not read what it is told")),
        Err(errno) => Err(gone(&format!("lost its connection ({errno})"))),
    }
}

fn gone(what: &str) -> Error {
    Error::new(ErrorKind::PeerLost, format!("a stranger {what} before it proved anything")).operation("handshake")
}
