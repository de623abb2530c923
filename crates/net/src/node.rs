//! A node: one end of all its links, and the place where messages meet receives.
//!
//! A [`Node`] is a handle. Blocking calls make progress on the caller's own thread ([`crate::progress`] says how); one
//! thread of the node's own serves what arrives while nobody waits, beats for its liveness and watches its peers. When
//! the last handle is dropped the links are closed in order, every pending operation ends with an error, and the thread
//! is gone before `drop` returns.

use crate::announced::Announced;
use crate::chaos::{self, ChaosConfig};
use crate::cores;
use crate::counters::{Counters, Counts};
use crate::ending::linger;
use crate::endpoint::Endpoints;
use crate::entry::{Entry, Links};
use crate::link::{Handover, Hold, Link, Medium};
use crate::listen::Listening;
use crate::matching::{Matching, PostOutcome, Posted, Wanted, meet};
use crate::message::{Message, Outgoing, Tensors, WriteLeases};
use crate::neighbourhood::Neighbourhood;
use crate::outbox::SendDriver;
use crate::patience::{Patience, WaitPolicy};
use crate::pollers::Pollers;
use crate::polling;
use crate::progress::Progress;
use crate::shm::PeerProcesses;
use crate::waits::Waits;
use parking_lot::Mutex;
use sheave_base::clock;
use sheave_base::config::{Role, Settings, Transport};
use sheave_base::fork::ForkMark;
use sheave_base::limits;
use sheave_base::secret::Resolved;
use sheave_base::thread::Thread;
use sheave_base::work::awaited::Awaited;
use sheave_base::work::blocking::{self, Duty};
use sheave_base::work::{Completer, Drive, Interrupt, described, driven, governed};
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Peer, Result, Work, process, random};
use sheave_tensor::{Arena, ArenaConfig, Mode, Tensor};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// How long a link that closes, or a node that is dropped, waits for a peer that takes nothing of what was sent before.
const LINGER: Duration = Duration::from_secs(1);

/// How a node decides that a silent peer is dead.
#[derive(Clone, Copy, Debug)]
pub struct Liveness {
    /// Time between two signs of life.
    pub beat: Duration,
    /// Silence after which a peer is declared dead.
    pub timeout: Duration,
    /// Kill a silent peer on this host, where the system permits it, so that it can never write again. Otherwise the
    /// memory that it can write is set aside until it ends.
    pub kill_silent: bool,
}

impl Default for Liveness {
    fn default() -> Self {
        Self { beat: limits::LIVENESS_BEAT, timeout: limits::LIVENESS_TIMEOUT, kill_silent: true }
    }
}

/// Busy processes on a host of which nothing is known: this one, and whoever it talks to.
const LOCAL_RANKS: usize = 2;

/// What a node is made from.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Unique name in its mesh.
    pub name: String,
    /// What it is there for.
    pub role: Role,
    /// Its rank, if it has one already.
    pub rank: Option<u32>,
    /// Busy processes expected on this host, this one included, until [`Node::share_host`] says who is there; decides
    /// whether waits keep their cores.
    pub local_ranks: usize,
    /// Where its tensors live.
    pub arena: ArenaConfig,
    /// When its peers are declared dead.
    pub liveness: Liveness,
    /// How long its threads poll at most before they sleep; by busy processes and cores if `None`.
    pub wait: Option<WaitPolicy>,
    /// Trouble for every link, to test how its users take it.
    pub chaos: Option<ChaosConfig>,
    /// Where a wait says that it takes long; standard error by default.
    pub notice: fn(&str),
    /// After how long, and again whenever the last of them has passed; [`limits::WAIT_NOTICES`] by default.
    pub notices: &'static [Duration],
    /// What its peers must know too; `None` looks in the environment and then for the user's cookie file, when it is
    /// first needed.
    pub secret: Option<Resolved>,
    /// What its links to other processes run over.
    pub transport: Transport,
    /// What stands for the boot id of its host; the system's own if `None`. Nodes that have different ones link over
    /// TCP: for containers that must not share memory, and for tests.
    pub host_id: Option<String>,
    /// Nodes of this process that are linked without sockets. Of use where `transport` is [`Transport::Auto`]: another
    /// one is what all links of the node run over.
    pub neighbourhood: Option<Neighbourhood>,
    /// How long a stranger may take to prove who it is.
    pub handshake_timeout: Duration,
    /// Memory that large tensors pass through on their way to other processes of this host, where they cannot be read
    /// where they lie: 1 MiB for each peer that is sent some at a time, or was within the last beat. Others wait.
    pub stream_slots_bytes: u64,
}

fn notice_on_stderr(text: &str) {
    use std::io::Write;
    // Nobody to tell is no reason to fail.
    let _ = writeln!(std::io::stderr(), "sheave: {text}");
}

impl NodeConfig {
    /// The default settings for a node of this name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self::with_settings(name, &Settings::default())
    }

    /// A node of this name as the user has set it up.
    #[must_use]
    pub fn with_settings(name: impl Into<String>, settings: &Settings) -> Self {
        let local_ranks = settings.local_ranks.unwrap_or(LOCAL_RANKS);
        let usual = WaitPolicy::for_ranks(local_ranks, cores::usable([]));
        Self {
            name: name.into(),
            role: Role::Rank,
            rank: None,
            local_ranks,
            arena: ArenaConfig {
                capacity_bytes: settings.arena_bytes,
                lent_fraction: settings.arena_lent_fraction,
                ..ArenaConfig::default()
            },
            liveness: Liveness {
                beat: settings.liveness_beat,
                timeout: settings.liveness_timeout,
                kill_silent: settings.kill_silent,
            },
            wait: (settings.wait_spin.is_some() || settings.wait_yield.is_some()).then(|| WaitPolicy {
                spin: settings.wait_spin.unwrap_or(usual.spin),
                yielding: settings.wait_yield.unwrap_or(usual.yielding),
            }),
            chaos: None,
            notice: notice_on_stderr,
            notices: &limits::WAIT_NOTICES,
            secret: None,
            transport: settings.transport,
            host_id: None,
            neighbourhood: None,
            handshake_timeout: settings.handshake_timeout,
            stream_slots_bytes: limits::STREAM_SLOT_BYTES_MAX,
        }
    }
}

/// One end of all its links. Clones are handles to the same node.
#[derive(Clone)]
pub struct Node {
    pub(crate) inner: Arc<Inner>,
    owner: Arc<Owner>,
}

/// Dropped with the last handle.
struct Owner {
    inner: Arc<Inner>,
    thread: Mutex<Option<Thread>>,
}

/// The busy processes of a host, as far as a node knows.
#[derive(Clone, Copy)]
struct Company {
    /// Busy processes, this one among them.
    local_ranks: usize,
    /// Cores that all of them may use.
    cores: usize,
}

impl Company {
    fn wait_policy(self) -> WaitPolicy {
        WaitPolicy::for_ranks(self.local_ranks, self.cores)
    }

    /// The same where one more thread is busy than there are processes: if these have no core to spare, nobody keeps
    /// one while he waits, but polls for as long, for none of them computes while the others wait.
    fn crowded_policy(self) -> WaitPolicy {
        let policy = self.wait_policy();
        if self.local_ranks < self.cores { policy } else { WaitPolicy { spin: Duration::ZERO, ..policy } }
    }
}

pub(crate) struct Inner {
    pub(crate) id: NodeId,
    pub(crate) peer: Peer,
    pub(crate) config: NodeConfig,
    pub(crate) arena: Arena,
    /// Memory for the slots of streams, apart from the user's.
    pub(crate) slots: Arena,
    pub(crate) counters: Arc<Counters>,
    pub(crate) progress: Progress,
    pub(crate) links: Links,
    pub(crate) patience: Patience,
    pub(crate) pollers: Pollers,
    company: Mutex<Company>,
    pub(crate) weak: Weak<Inner>,
    pub(crate) stopping: AtomicBool,
    pub(crate) fork: ForkMark,
    pub(crate) listening: Arc<Listening>,
    pub(crate) secret: Mutex<Option<Resolved>>,
    pub(crate) boot_id: OnceLock<String>,
    pub(crate) endpoints: Endpoints,
    pub(crate) processes: PeerProcesses,
    pub(crate) announced: Announced,
    /// The largest tensor that a peer has sent.
    proven_bytes: AtomicU64,
    pub(crate) matcher: Matching,
    arrivals: Mutex<Arrivals>,
    pub(crate) waits: Waits,
    /// The name that the node was given after its start.
    pub(crate) given_name: OnceLock<String>,
}

/// Links that peers made and nobody has accepted yet, and those who wait for one.
#[derive(Default)]
struct Arrivals {
    links: VecDeque<LinkId>,
    waiting: VecDeque<Completer<LinkId>>,
}

impl Node {
    /// Starts a node without any link. Spawns its progress thread. The first node of a process raises the number of
    /// descriptors that the process may have (`ulimit -n`) to the highest that the system permits.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` if its neighbourhood is full, or the system gives no thread or no descriptors.
    pub fn start(config: NodeConfig) -> Result<Self> {
        let mut id = [0; 8];
        random::fill("drawing a node id", &mut id)?;
        sheave_base::shortage::raise_descriptors();
        blocking::put_aside_with(Duty::Links, polling::put_aside);
        let progress = Progress::new()?;
        let company = Company { local_ranks: config.local_ranks, cores: cores::usable([]) };
        let patience = Patience::new(config.wait.unwrap_or_else(|| company.wait_policy()));
        let id = NodeId(u64::from_le_bytes(id));
        let peer = Peer {
            name: config.name.clone(),
            node: Some(id),
            role: Some(config.role),
            rank: config.rank,
            host: Some(host_name()),
            pid: Some(process::id()),
        };
        let inner = Arc::new_cyclic(|weak| Inner {
            id,
            peer,
            arena: Arena::new(config.arena),
            slots: Arena::new(ArenaConfig { capacity_bytes: config.stream_slots_bytes, ..ArenaConfig::default() }),
            config,
            counters: Arc::default(),
            progress,
            links: Links::default(),
            patience,
            pollers: Pollers::default(),
            company: Mutex::new(company),
            weak: weak.clone(),
            stopping: AtomicBool::new(false),
            fork: ForkMark::here(),
            listening: Listening::of(weak.clone()),
            secret: Mutex::default(),
            boot_id: OnceLock::new(),
            endpoints: Endpoints::default(),
            processes: PeerProcesses::default(),
            announced: Announced::default(),
            proven_bytes: AtomicU64::new(0),
            matcher: Matching::default(),
            arrivals: Mutex::default(),
            waits: Waits::default(),
            given_name: OnceLock::new(),
        });
        let thread = crate::beat::spawn(Arc::clone(&inner))?;
        let owner = Arc::new(Owner { inner: Arc::clone(&inner), thread: Mutex::new(Some(thread)) });
        let node = Self { inner, owner };
        if let Some(neighbourhood) = node.inner.neighbourhood() {
            neighbourhood.enter(&node.inner)?;
        }
        Ok(node)
    }

    /// The node's identity, drawn at its start.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.inner.id
    }

    /// The node as its peers see it.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.inner.peer
    }

    /// The boot id of the node's host, the same for all nodes there; empty where the system does not tell.
    #[must_use]
    pub fn boot_id(&self) -> &str {
        self.inner.boot_id()
    }

    /// Says that so many busy processes share this host, this one among them, and which they are: their waits follow
    /// how many they are, and how many cores all of them together may use. Replaces what the config has guessed.
    pub fn share_host(&self, local_ranks: usize, pids: impl IntoIterator<Item = u32>) {
        let company = Company { local_ranks, cores: cores::usable(pids) };
        *self.inner.company.lock() = company;
        if self.inner.config.wait.is_none() {
            self.inner.patience.limit(company.wait_policy());
        }
    }

    /// Says that one more thread is busy on this host than [`share_host`](Self::share_host) has said processes are, and
    /// that this node waits for it: where these have no core to spare, waits keep none from now on.
    pub fn share_cores(&self) {
        if self.inner.config.wait.is_none() {
            self.inner.patience.limit(self.inner.company.lock().crowded_policy());
        }
    }

    /// The busy processes on this host, as far as the node knows.
    #[must_use]
    pub fn local_ranks(&self) -> usize {
        self.inner.company.lock().local_ranks
    }

    /// The cores that the busy processes on this host may use together, as far as the node knows.
    #[must_use]
    pub fn cores(&self) -> usize {
        self.inner.company.lock().cores
    }

    /// Where the node's tensors live.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        &self.inner.arena
    }

    /// A copy of a tensor that nobody else has, in the arena while that has room.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` if there is no memory for it; `BufferInUse` while the tensor is being written.
    pub fn capture(&self, tensor: &Tensor) -> Result<Tensor> {
        let _lease = tensor.read_lease("capture")?;
        SendDriver::new(&self.inner, LinkId(0)).capture(tensor)
    }

    /// What the node has done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.inner.counters.read()
    }

    /// The links that are alive.
    #[must_use]
    pub fn links(&self) -> Vec<LinkId> {
        self.inner.links.all().iter().map(|entry| entry.id).collect()
    }

    /// Who is at the other end of a link that is alive.
    pub fn link(&self, link: LinkId) -> Result<Arc<dyn Link>> {
        self.inner.entry(link).map(|entry| Arc::clone(&entry.link))
    }

    /// Messages and bytes that arrived before anybody asked for them.
    #[must_use]
    pub fn unexpected(&self) -> (usize, u64) {
        self.inner.matcher.lock().unexpected()
    }

    /// Throws away messages of these contexts that nobody has asked for, those that have arrived and those that will:
    /// whatever they belonged to is over, and its contexts will never be used again.
    pub fn refuse(&self, contexts: impl IntoIterator<Item = u64>) {
        let messages = self.inner.matcher.lock().refuse(contexts);
        drop(messages);
        self.inner.resume_paused();
    }

    /// A work that completes with the next link that a peer makes to this node.
    pub fn accept(&self) -> Work<LinkId> {
        let (completer, work) = driven("accept", Some(self.inner.driver()), None);
        let mut arrivals = self.inner.arrivals.lock();
        match arrivals.links.pop_front() {
            Some(link) => {
                drop(arrivals);
                completer.complete(Ok(link));
            }
            None if self.inner.stopping.load(Ordering::SeqCst) => {
                drop(arrivals);
                completer.complete(Err(Error::new(ErrorKind::Closed, "the node was shut down")));
            }
            None => arrivals.waiting.push_back(completer),
        }
        work
    }

    /// Sends a message and returns when its tensors are free again: captured, moved, or on their way.
    ///
    /// Blocks while the link has no room, and for a copied arena tensor until a peer on this host has copied it.
    /// `until` and `interrupt` end the wait, not the operation: what is not on its way by then is captured and follows.
    /// An arena tensor that the peer was already told of stays leased until it is copied; a writer is refused
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// `PeerLost` when the link has ended, `BufferInUse` for a tensor that is being written or, by move, has other
    /// handles, `DeadlineExceeded` when `until` passed.
    pub fn send(
        &self,
        link: LinkId,
        message: Outgoing,
        until: Option<Instant>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        match self.inner.hand_over(link, message, Hold::Borrow)? {
            Handover::Sent => Ok(()),
            Handover::Queued(work) => {
                let begun = clock::now();
                let ended = work.wait_until(until, interrupt);
                if !matches!(ended, Ok(true)) {
                    // The message goes on without its caller, who may change the tensor from now on.
                    if let Ok(entry) = self.inner.entry(link) {
                        entry.link.capture()?;
                    }
                    self.inner.progress.ring();
                }
                if ended? {
                    return work.taken().map_err(|error| error.operation("send"));
                }
                Err(Error::new(ErrorKind::DeadlineExceeded, "the peer takes no more messages")
                    .operation("send")
                    .peer(self.inner.peer_of(link))
                    .elapsed(clock::since(begun))
                    .hint("the message is still queued; the peer may be busy or stopped"))
            }
        }
    }

    /// Starts to send a message. Tensors sent by copy are captured before the call returns; all others are held until
    /// the work ends.
    pub fn isend(&self, link: LinkId, message: Outgoing) -> Result<Work<()>> {
        Ok(self.dispatch(link, message, Hold::Capture)?.unwrap_or_else(sent))
    }

    /// As [`Node::isend`] or, where the tensors are only borrowed, [`Node::isend_borrowed`]; `None` where the message
    /// has left before this returns, so that there is nothing to wait for.
    pub fn dispatch(&self, link: LinkId, message: Outgoing, hold: Hold) -> Result<Option<Work<()>>> {
        match self.inner.hand_over(link, message, hold)? {
            Handover::Sent => Ok(None),
            Handover::Queued(work) => {
                self.inner.progress.ring();
                Ok(Some(work))
            }
        }
    }

    /// As [`Node::isend`], but tensors sent by copy are borrowed, not captured, until the work ends: nobody may write
    /// them before.
    pub fn isend_borrowed(&self, link: LinkId, message: Outgoing) -> Result<Work<()>> {
        Ok(self.dispatch(link, message, Hold::Borrow)?.unwrap_or_else(sent))
    }

    /// As [`Node::isend_borrowed`], for those who learn in another way that the message was received: true if the
    /// tensors are free already.
    pub fn post(&self, link: LinkId, message: Outgoing) -> Result<bool> {
        self.dispatch(link, message, Hold::Borrow).map(|work| work.is_none())
    }

    /// Starts to receive a message. With `places`, one contiguous tensor per tensor of the message, bytes land there
    /// and dtype and size must agree; nobody else may write them until the work ends.
    pub fn irecv(&self, wanted: Wanted, places: Tensors) -> Result<Work<Message>> {
        let leases = lease(&places)?;
        let (work, ticket) = self.inner.post(wanted, places, leases)?;
        if let Some((ticket, cancel)) = ticket.zip(Some(self.inner.weak.clone())) {
            self.inner.progress.hurry();
            self.inner.matcher.lock().on_cancel(ticket, move || {
                if let Some(inner) = cancel.upgrade() {
                    inner.withdraw(ticket, Error::new(ErrorKind::Cancelled, "the receive was cancelled"));
                }
            });
        }
        Ok(work)
    }

    /// Receives a message. Blocks until it is whole; see [`Node::irecv`] for `places`.
    ///
    /// When `until` passes first the receive is taken back; a message whose bytes are already moving is still received.
    ///
    /// # Errors
    ///
    /// `PeerLost` when the only link that could bring it ends, `Mismatch` when a place does not fit,
    /// `DeadlineExceeded` when `until` passed, and whatever `interrupt` says.
    pub fn recv(
        &self,
        wanted: Wanted,
        mut places: Tensors,
        until: Option<Instant>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<Message> {
        let in_place = !places.is_empty();
        let leases = lease(&places)?;
        if let (Some(source), Some((envelope, sequence))) =
            (wanted.source, self.inner.take_at_once(&wanted, &mut places))
        {
            return Ok(Message { envelope, source, sequence, control: Vec::new(), parts: places });
        }
        let (work, ticket) = self.inner.post(wanted, places, leases)?;
        if self.inner.spin_briefly(&work, wanted.source) {
            return work.taken().map_err(|error| self.inner.explain(error, "recv", wanted.source, None));
        }
        // The clock is read only by waits that take their time.
        let begun = clock::now();
        let ended = work.wait_until(until, interrupt);
        if let (Some(ticket), Ok(false) | Err(_)) = (ticket, &ended) {
            let late = Error::new(ErrorKind::DeadlineExceeded, "no message came")
                .elapsed(clock::since(begun))
                .hint("the sender may be late, or may use another tag");
            self.inner.withdraw(ticket, late);
            // A message that was found for the receive is on its way into it, and its link or its link's end completes
            // it.
            work.wait_until(None, None)?;
            if let Err(interrupt) = ended {
                if let Ok(message) = work.taken() {
                    self.inner.put_back(message, in_place)?;
                }
                return Err(interrupt);
            }
        }
        work.taken().map_err(|error| self.inner.explain(error, "recv", wanted.source, Some(begun)))
    }

    /// Ends the node, as dropping its last handle does: links are closed in order, and every pending operation, on any
    /// thread, ends with [`ErrorKind::Closed`]. Returns when the node's own thread is gone. Idempotent.
    pub fn shut_down(&self) {
        self.owner.shut_down(LINGER);
    }

    /// Like [`Node::shut_down`], but waits for a peer to take what has left the queues for as long as some of it moves
    /// within `stalled`.
    pub fn shut_down_slowly(&self, stalled: Duration) {
        self.owner.shut_down(stalled);
    }

    /// Ends a link in order: what was sent before still arrives. Blocks while the peer takes it, and for a second at
    /// most while it does not.
    pub fn close(&self, link: LinkId) -> Result<()> {
        let entry = self.inner.entry(link)?;
        self.close_because(link, &Error::new(ErrorKind::Closed, "the link was closed by this node"))?;
        linger(&[entry], LINGER);
        Ok(())
    }

    /// Listens no more: nobody makes a link to this node from now on. Its links stay. Idempotent.
    pub fn stop_listening(&self) {
        self.inner.listening.close();
    }

    /// Like [`Node::close`], but does not block; what waits for the link on this side ends with `reason`.
    pub fn close_because(&self, link: LinkId, reason: &Error) -> Result<()> {
        let entry = self.inner.entry(link)?;
        entry.link.close(reason);
        self.inner.link_ended(&entry, reason);
        Ok(())
    }

    /// Ends a link to a peer that is held for dead, without its help: it is told so, should it come back, and it can
    /// write no more into this node's memory. What waits for the link ends with `reason`.
    pub fn abandon(&self, link: LinkId, reason: &Error) -> Result<()> {
        let entry = self.inner.entry(link)?;
        entry.link.abandon(reason);
        self.inner.link_ended(&entry, reason);
        Ok(())
    }

    /// What makes progress on the links of this node, for works whose waits do more than that.
    #[must_use]
    pub fn driver(&self) -> Arc<dyn Drive> {
        self.inner.driver()
    }

    /// Says that others know this node by `name`, so that its notices say so too. The first name that is given stays.
    pub fn known_as(&self, name: &str) {
        let _ = self.inner.given_name.set(name.to_owned());
    }

    /// Says something to the user where waits say that they take long.
    pub fn notice(&self, text: &str) {
        self.inner.notice(text);
    }

    /// A work that somebody else completes, whose waiters make progress on this node: on `link`, or on all its links.
    #[must_use]
    pub fn pair<T>(&self, operation: &'static str, link: Option<LinkId>) -> (Completer<T>, Work<T>) {
        driven(operation, Some(self.inner.driver()), link)
    }

    /// As [`Node::pair`], and `awaited` knows what the work waits for.
    #[must_use]
    pub fn described<T>(
        &self,
        operation: &'static str,
        link: Option<LinkId>,
        awaited: Awaited,
    ) -> (Completer<T>, Work<T>) {
        described(operation, Some(self.inner.driver()), link, Some(awaited))
    }

    /// As [`Node::described`], and `awaited` ends it when the work is cancelled.
    #[must_use]
    pub fn governed<T>(
        &self,
        operation: &'static str,
        link: Option<LinkId>,
        awaited: Awaited,
    ) -> (Completer<T>, Work<T>) {
        governed(operation, Some(self.inner.driver()), link, awaited)
    }
}

/// The work of a message that has left.
fn sent() -> Work<()> {
    Work::ready("send", Ok(()))
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shut_down(LINGER);
    }
}

impl Owner {
    fn shut_down(&self, stalled: Duration) {
        // In a forked child nothing of ours is alive: the thread is in the parent, and so are the links.
        if self.inner.fork.is_stale() || self.inner.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(neighbourhood) = self.inner.neighbourhood() {
            neighbourhood.leave(self.inner.id);
        }
        let links = self.inner.links.all();
        self.inner.end_everything();
        self.inner.progress.wake_thread();
        self.inner.progress.ring();
        let thread = self.thread.lock().take();
        // The last handle may be dropped by a callback that the progress thread runs; it cannot wait for itself.
        if let Some(thread) = thread.filter(|thread| !thread.is_this()) {
            let _ = thread.join();
        }
        // Whatever came while the thread was still there.
        self.inner.end_everything();
        self.inner.progress.forget_all();
        linger(&links, stalled);
        self.inner.processes.forget_all();
    }
}

impl Inner {
    /// The node is stopping: ends links, receives and accepts.
    fn end_everything(&self) {
        let reason = Error::new(ErrorKind::Closed, "the node was shut down");
        self.listening.close();
        for entry in self.links.all().iter() {
            entry.link.close(&reason);
            self.link_ended(entry, &reason);
        }
        let waiting = std::mem::take(&mut self.arrivals.lock().waiting);
        for completer in waiting {
            completer.complete(Err(reason.clone()));
        }
        let posted = self.matcher.lock().drain();
        for posted in posted {
            posted.finish(Err(reason.clone()));
        }
    }

    pub(crate) fn driver(self: &Arc<Self>) -> Arc<dyn Drive> {
        Arc::clone(self) as Arc<dyn Drive>
    }

    pub(crate) fn entry(&self, link: LinkId) -> Result<Arc<Entry>> {
        self.fork.check("node")?;
        self.links.get(link)
    }

    pub(crate) fn peer_of(&self, link: LinkId) -> Peer {
        self.links.peer_of(link)
    }

    /// Adds a link that is ready for traffic. Endpoints are told, but have not attended, and whoever sleeps as leader
    /// has not armed it.
    pub(crate) fn insert_link(&self, make: impl FnOnce(LinkId) -> Result<Arc<dyn Link>>) -> Result<Arc<Entry>> {
        if self.stopping.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Closed, "the node was shut down"));
        }
        self.insert(make)
    }

    fn insert(&self, make: impl FnOnce(LinkId) -> Result<Arc<dyn Link>>) -> Result<Arc<Entry>> {
        let entry = self.links.add(|id| make(id).map(|link| chaos::wrap(link, self, id)))?;
        if let Err(error) = self.watch(&entry) {
            // For the peer the link stands: it is not to take this for an end in order.
            entry.link.give_up(&error);
            self.links.remove(&entry, &error);
            return Err(error);
        }
        let _telling = self.endpoints.begin_telling();
        self.endpoints.tell(|endpoint| endpoint.link_made(entry.id, entry.link.peer()));
        self.links.note_told(&entry);
        Ok(entry)
    }

    /// Adds a link that is ready for traffic, and lets the endpoints of this node attend to it. For the other side the
    /// link may stand already, so a node that is stopping makes it too, and closes it in order.
    pub(crate) fn add_link(&self, make: impl FnOnce(LinkId) -> Result<Arc<dyn Link>>) -> Result<Arc<Entry>> {
        let entry = self.insert(make)?;
        // A node that stops lists its links after it has said so: either it has found this one, or it is seen here.
        if self.stopping.load(Ordering::SeqCst) {
            let reason = Error::new(ErrorKind::Closed, "the node was shut down");
            entry.link.close(&reason);
            self.link_ended(&entry, &reason);
            linger(&[entry], LINGER);
            return Err(reason);
        }
        // Whoever sleeps as leader has not armed the new link; the ring makes it look again.
        self.progress.ring();
        self.attend();
        Ok(entry)
    }

    /// Hands a link that the other side made to whoever accepts it.
    pub(crate) fn announce_arrival(&self, link: LinkId) {
        let mut arrivals = self.arrivals.lock();
        // Who gave up waiting must not swallow a link.
        arrivals.waiting.retain(Completer::is_awaited);
        match arrivals.waiting.pop_front() {
            Some(completer) => {
                drop(arrivals);
                completer.complete(Ok(link));
            }
            None => {
                arrivals.links.push_back(link);
                // Where nobody accepts, the oldest have ended long ago.
                if arrivals.links.len() > limits::LINKS_MAX {
                    arrivals.links.pop_front();
                }
            }
        }
    }

    fn hand_over(&self, link: LinkId, mut message: Outgoing, hold: Hold) -> Result<Handover> {
        let entry = self.entry(link)?;
        for part in &mut message.parts {
            match part.mode {
                Mode::Copy => part.lease = Some(part.tensor.read_lease("send")?),
                Mode::Move if !part.tensor.buffer().is_unique() => {
                    return Err(Error::new(ErrorKind::BufferInUse, "a tensor sent by move has other handles")
                        .operation("send")
                        .hint("drop the other handles and views first, or send by copy"));
                }
                Mode::Move => part.tensor.buffer().require_current()?,
                // Asked here, for a buffer stays marked as shared.
                Mode::Share if entry.link.medium() == Medium::Tcp => {
                    return Err(Error::new(ErrorKind::Unsupported, "memory cannot be shared over TCP")
                        .operation("send")
                        .peer(entry.link.peer().clone())
                        .hint("send by copy or move"));
                }
                Mode::Share => part.tensor.buffer().share()?,
            }
        }
        let handover = entry.link.send(message, hold).map_err(|error| error.operation("send"))?;
        Counters::add(&self.counters.messages_sent, 1);
        Ok(handover)
    }

    fn post(
        self: &Arc<Self>,
        wanted: Wanted,
        places: Tensors,
        leases: WriteLeases,
    ) -> Result<(Work<Message>, Option<u64>)> {
        self.fork.check("node")?;
        let awaited = Awaited::new(self.weak.clone(), [wanted.context, wanted.tag.0]);
        let (completer, work) = described("recv", Some(self.driver()), wanted.source, Some(awaited));
        let posted = Box::new(Posted { wanted, places, leases, completer });
        let outcome = self.matcher.lock().post(posted);
        let ticket = match outcome {
            PostOutcome::Meets(posted, message) => {
                meet(*posted, message);
                self.resume_paused();
                return Ok((work, None));
            }
            PostOutcome::Waits(ticket) => ticket,
        };
        self.resume_paused();
        if self.stopping.load(Ordering::SeqCst) {
            self.withdraw(ticket, Error::new(ErrorKind::Closed, "the node was shut down"));
        }
        // After posting: a link that ended before is not in the list any more, and one that ends now finds the receive.
        let reachable = match wanted.source {
            Some(link) => self.links.get(link).map(|_| ()),
            None => Ok(()),
        };
        if let Err(error) = reachable {
            self.withdraw(ticket, error);
        }
        Ok((work, Some(ticket)))
    }

    pub(crate) fn withdraw(&self, ticket: u64, reason: Error) {
        let posted = self.matcher.lock().withdraw(ticket);
        if let Some(posted) = posted {
            posted.finish(Err(reason));
        }
    }

    /// A link has ended: completes with `reason` everything that only it could complete. Once per link.
    pub(crate) fn link_ended(&self, entry: &Arc<Entry>, reason: &Error) {
        let is_first = {
            let _telling = self.endpoints.begin_telling();
            self.links.remove(entry, reason)
        };
        if !is_first {
            return;
        }
        Counters::add(&self.counters.links_ended, 1);
        self.unpause(entry);
        self.unwatch(entry);
        self.announced.end(entry.id);
        let hopeless = self.matcher.lock().link_ended(entry.id, self.links.is_empty());
        for posted in hopeless {
            posted.finish(Err(reason.clone()));
        }
        self.endpoints.tell(|endpoint| endpoint.link_ended(entry.id, entry.link.peer(), reason));
        self.attend();
    }

    /// A message whose receive was interrupted is the next one's, which may wait already. What lies in the caller's
    /// memory is captured.
    fn put_back(&self, mut message: Message, in_place: bool) -> Result<()> {
        if in_place {
            let driver = SendDriver::new(self, message.source);
            for part in &mut message.parts {
                *part = driver.capture(part)?;
            }
        }
        let met = self.matcher.lock().put_back(message);
        if let Some((posted, message)) = met {
            meet(*posted, message);
        }
        Ok(())
    }

    /// A message with tensors is whole.
    pub(crate) fn received_whole(&self, message: &Message) {
        self.announced.end(message.source);
        for part in message.parts.iter().filter(|part| part.len_bytes() as u64 > limits::UNPROVEN_BYTES_MAX) {
            self.proven_bytes.fetch_max(part.len_bytes() as u64, Ordering::Relaxed);
        }
    }

    /// Memory for a tensor that nobody named a place for.
    pub(crate) fn place(&self, spec: &sheave_wire::TensorSpec) -> Result<Tensor> {
        crate::entry::place_announced(&self.arena, spec, self.proven_bytes.load(Ordering::Relaxed))
    }

    fn explain(&self, error: Error, operation: &'static str, source: Option<LinkId>, begun: Option<Instant>) -> Error {
        let mut error = error.operation(operation);
        if let (None, Some(begun)) = (error.after(), begun) {
            error = error.elapsed(clock::since(begun));
        }
        match source {
            Some(link) if error.about().is_none() => error.peer(self.peer_of(link)),
            _ => error,
        }
    }
}

/// Keeps everybody else away from the places of a receive.
fn lease(places: &[Tensor]) -> Result<WriteLeases> {
    let mut leases = SmallVec::new();
    for place in places {
        leases.push(place.write_lease("recv")?);
    }
    Ok(leases)
}

/// The host's name, for errors.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

const _: fn() = || {
    fn both<T: Send + Sync>() {}
    both::<Node>();
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_keeps_a_core_where_one_more_thread_wants_it() {
        let crowded = |local_ranks, cores| Company { local_ranks, cores }.crowded_policy();
        let usual = WaitPolicy::for_ranks;
        assert_eq!(crowded(2, 3), usual(2, 3), "each has a core");
        assert_eq!(crowded(2, 2), WaitPolicy { spin: Duration::ZERO, ..usual(2, 2) });
        assert_eq!(crowded(3, 2), usual(3, 2), "no process keeps a core");
        let node = Node::start(NodeConfig::named("crowded")).expect("a node");
        node.share_host(1_000_000, []);
        node.share_cores();
        assert_eq!(node.inner.patience.most(), usual(1_000_000, 1));
        let set = WaitPolicy { spin: Duration::from_micros(7), yielding: Duration::ZERO };
        let node = Node::start(NodeConfig { wait: Some(set), ..NodeConfig::named("set") }).expect("a node");
        node.share_cores();
        assert_eq!(node.inner.patience.most(), set, "the config says how waits go");
    }
}
