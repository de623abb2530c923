//! The worker's end: it pushes, and waits for answers.

use crate::clock::{self, Stamps, monotonic_ns};
use crate::lane::{Config, Lane, Scope};
use crate::plan::{self, Slot};
use crate::request::{Entry, Inner, Place, Share, Told};
use crate::trace::{self, Recorder};
use crate::word::{self, Word};
use parking_lot::Mutex;
use sheave_base::limits::{PART_BYTES_MAX, PARTS_MAX};
use sheave_base::work::awaited::{Account, Awaited, Describe, Which, listed};
use sheave_base::work::condition::{Condition, Until};
use sheave_base::work::{Completer, Drive, Interrupt, reborrowed, wait_for};
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Peer, Result, Work};
use sheave_mesh::{Mesh, Role};
use sheave_net::{Admission, Arrival, Endpoint, Ground, Message, Node, Outgoing, Part, Parts, Tensors};
use sheave_tensor::{Dtype, Mode, ReadLease, Shape, Tensor, WriteLease};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

const NAME: &str = "push_pull";

/// Failures of old requests that are remembered for those who ask late.
const FAILURES_KEPT_MAX: usize = 1024;

/// A tensor that goes to every server.
#[derive(Debug)]
pub struct Push {
    key: u64,
    tensor: Tensor,
    mode: Mode,
}

impl Push {
    /// Sends the tensor from where it lies: it must not change before the request is done.
    #[must_use]
    pub fn new(key: u64, tensor: &Tensor) -> Self {
        Self { key, tensor: tensor.clone(), mode: Mode::Copy }
    }

    /// Gives the tensor away: a server on this host gets the memory itself, if it lies in the arena. There must be one
    /// server and no other handle to the tensor.
    #[must_use]
    pub fn moved(key: u64, tensor: Tensor) -> Self {
        Self { key, tensor, mode: Mode::Move }
    }
}

/// Where an answer goes.
#[derive(Debug)]
pub struct Pull {
    slot: Slot,
    target: Option<Tensor>,
}

impl Pull {
    /// Into this tensor, which nobody may use before the request is done.
    #[must_use]
    pub fn into(key: u64, tensor: &Tensor) -> Self {
        let slot = Slot { key, dtype: tensor.dtype(), shape: tensor.shape().clone() };
        Self { slot, target: Some(tensor.clone()) }
    }

    /// Nowhere: the answer itself is taken with [`Worker::take`], without a copy if the server moved it.
    #[must_use]
    pub fn taken(key: u64, dtype: Dtype, shape: impl Into<Shape>) -> Self {
        Self { slot: Slot { key, dtype, shape: shape.into() }, target: None }
    }
}

/// Which request of a worker, by its number: 0, 1, 2 …
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

/// What may be said about a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// The step that it belongs to: the requests of one batch must all name the same one, or none.
    pub step: Option<u32>,
    /// How long to wait for room among the requests in flight; for ever by default.
    pub until: Option<Instant>,
}

/// The worker's end of an exchange. Dropping it says farewell to the servers. All calls may come from any thread.
///
/// ```
/// use sheave_exchange::{Config, Pull, Push, Server, Worker};
/// use sheave_mesh::{Config as Node, Expected, Mesh, Role};
/// use sheave_tensor::{Dtype, Tensor};
/// # use sheave_base::config::Endpoint;
///
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let root = Endpoint { host: "127.0.0.1".into(), port };
/// # let secret = sheave_base::Secret::new(b"only this example knows it")?;
/// # let secret = Some(sheave_base::secret::Resolved { secret, source: "an example".into() });
/// let expected = Expected { schedulers: 1, servers: 1, workers: 1, ranks: 0 };
/// let join = move |role| {
///     let mut config = Node::new(role, Some(0), expected, root.clone());
///     # config.node.secret = secret.clone();
///     Mesh::join(config)
/// };
/// std::thread::scope(|scope| {
///     scope.spawn(|| join(Role::Scheduler)?.finish());
///     scope.spawn(|| {
///         let mesh = join(Role::Server)?;
///         let server = Server::open(&mesh, Config::default())?;
///         for request in server.get_batch(None, None)? {
///             // The tensor is the memory that the push has landed in; it goes back as it is.
///             server.respond(request.handler, [&request.tensors[0]])?;
///         }
///         mesh.finish()
///     });
///     let mesh = join(Role::Worker)?;
///     let worker = Worker::open(&mesh, Config::default())?;
///     let (x, y) = (Tensor::from_slice(&[1.0_f32, 2.0], [2])?, Tensor::empty(mesh.node().arena(), Dtype::F32, [2])?);
///     let request = worker.push_pull([Push::new(0, &x)], [Pull::into(0, &y)])?;
///     worker.wait(request, None, None)?;
///     assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
///     mesh.finish()
/// })?;
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub struct Worker {
    end: Arc<End>,
}

struct Seat {
    node: NodeId,
    link: LinkId,
    /// Why nothing comes from there any more.
    gone: OnceLock<Error>,
}

/// What calls share that make requests, one after the other.
#[derive(Default)]
struct Issue {
    next: u64,
    told: plan::Told,
    keys: Vec<u64>,
    slots: Vec<Slot>,
}

struct End {
    lane: Lane,
    node: Node,
    driver: Arc<dyn Drive>,
    servers: Vec<Seat>,
    stamps: bool,
    issue: Mutex<Issue>,
    table: Box<[Entry]>,
    condition: Condition,
    /// Works to complete when no lock is held.
    deferred: Mutex<Vec<(Completer<()>, Result<()>)>>,
    failures: Mutex<VecDeque<(u64, Error)>>,
    recorder: Option<Recorder>,
    /// The first loss of a node, which is why this worker leaves if it does.
    loss: OnceLock<Error>,
    is_closed: AtomicBool,
    me: Weak<dyn Describe>,
}

impl Worker {
    /// Opens this worker's end. Blocks until all workers and servers of the lane have opened theirs.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if this node is no worker or the numbers of workers and servers make no lanes; `AlreadyExists`
    /// if this node has an open end; `PeerLost` if a member of the lane is gone.
    pub fn open(mesh: &Mesh, config: Config) -> Result<Self> {
        Self::open_interruptible(mesh, config, None, None)
    }

    /// As [`Worker::open`], until some point in time; `interrupt` is asked now and then.
    ///
    /// # Errors
    ///
    /// As [`Worker::open`]; `DeadlineExceeded` when the time has come; whatever `interrupt` says.
    pub fn open_interruptible(
        mesh: &Mesh,
        config: Config,
        until: Option<Instant>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<Self> {
        let lane = Lane::new(mesh, &config, Role::Worker)?;
        let mut servers = Vec::with_capacity(lane.servers.len());
        for node in &lane.servers {
            servers.push(Seat { node: *node, link: mesh.link_to(*node)?, gone: OnceLock::new() });
        }
        let node = mesh.node().clone();
        let servers_count = servers.len();
        let end = Arc::new_cyclic(|me: &Weak<End>| End {
            me: me.clone(),
            lane,
            driver: node.driver(),
            node,
            servers,
            stamps: config.stamps || config.trace,
            issue: Mutex::default(),
            table: (0..config.window).map(|_| Entry::default()).collect(),
            condition: Condition::default(),
            deferred: Mutex::default(),
            failures: Mutex::default(),
            recorder: config.trace.then(|| Recorder::new("server", servers_count)),
            loss: OnceLock::new(),
            is_closed: AtomicBool::new(false),
        });
        let endpoint = Arc::clone(&end) as Arc<dyn Endpoint>;
        if !end.node.register(word::NUMBER, &endpoint) {
            return Err(Error::new(ErrorKind::AlreadyExists, "this node has an open end of an exchange")
                .hint("close that one first"));
        }
        let worker = Self { end };
        worker.end.lane.meet(until, interrupt)?;
        Ok(worker)
    }

    /// This worker's rank among the workers of its lane.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.end.lane.rank
    }

    /// How many servers a request goes to.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.end.servers.len()
    }

    /// Sends `pushes` to every server and asks them for `pulls`, of which each server answers its share: with `S`
    /// servers, the first `1/S` of them is answered by server 0, and so on. Returns at once unless the window is full.
    /// Pushed tensors must not change, and pulled ones must not be looked at, before the request is done.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for no tensors at all, a key that is there twice, or pulls that the servers cannot share
    /// evenly; `BufferInUse` for tensors that something else uses; `PeerLost` or `Closed` if a server is gone. Nothing
    /// was sent then.
    pub fn push_pull(
        &self,
        pushes: impl IntoIterator<Item = Push>,
        pulls: impl IntoIterator<Item = Pull>,
    ) -> Result<Handle> {
        self.push_pull_on(pushes, pulls, Terms::default(), None)
    }

    /// As [`Worker::push_pull`], on `terms`; `interrupt` is asked now and then while there is no room.
    ///
    /// # Errors
    ///
    /// As [`Worker::push_pull`]; `DeadlineExceeded` if there was no room in time; whatever `interrupt` says.
    pub fn push_pull_on(
        &self,
        pushes: impl IntoIterator<Item = Push>,
        pulls: impl IntoIterator<Item = Pull>,
        terms: Terms,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<Handle> {
        let begun = self.end.now();
        let (pushes, pulls) = (pushes.into_iter().collect(), pulls.into_iter().collect());
        self.end.begin(pushes, pulls, terms, begun, interrupt).map_err(|error| error.operation(NAME))
    }

    /// Blocks until a request is done, at most until some point in time; it goes on in any case. May be called again,
    /// and from any thread; `interrupt` is asked now and then.
    ///
    /// # Errors
    ///
    /// What went wrong with the request: `PeerLost` or `Closed` if a server, or another worker whose request belongs to
    /// the same batch, is gone; `Mismatch` if the batch did not fit together. Answers may have come in part then.
    /// `DeadlineExceeded` when the time has come, `NotFound` for a number that no request has had.
    pub fn wait(&self, request: Handle, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<()> {
        let explain = |error: Error| error.operation(NAME).sequence(request.0);
        self.end.wait(request.0, until, interrupt).map_err(explain)
    }

    /// Whether a request is done. Never blocks and makes no progress.
    #[must_use]
    pub fn is_done(&self, request: Handle) -> bool {
        self.end.entry(request.0).is_done(request.0)
    }

    /// A handle for a request as other operations have them, that ends as [`Worker::wait`] does.
    #[must_use]
    pub fn work(&self, request: Handle) -> Work<()> {
        let end = &self.end;
        let mut inner = end.entry(request.0).inner.lock();
        if inner.number != request.0 || end.entry(request.0).is_done(request.0) {
            drop(inner);
            return Work::ready(NAME, self.wait(request, None, None));
        }
        let (completer, work) = end.node.described(NAME, end.only_link(), Awaited::new(end.me.clone(), [request.0, 0]));
        inner.completers.push(completer);
        work
    }

    /// The answers of a request that is done and that had pulls without a tensor, in the order of the pulls; the
    /// others are left out. They are there once. Never blocks.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if it is not done, and what went wrong with it if it failed; `NotFound` if so many others came
    /// after it that it is forgotten.
    pub fn take(&self, request: Handle) -> Result<Tensors> {
        let mut inner = self.end.remembered(request.0)?;
        let explain = |error: Error| error.operation(NAME).sequence(request.0);
        if !self.is_done(request) {
            let error = Error::new(ErrorKind::InvalidArgument, "the request is not done");
            return Err(explain(error.hint("wait for it first")));
        }
        inner.outcome().map_err(explain)?;
        Ok(inner.places.iter_mut().filter_map(|place| place.answer.take()).collect())
    }

    /// The points in time of a request, for each server; zeros unless [`Config::stamps`] is set.
    ///
    /// # Errors
    ///
    /// `NotFound` if there was no such request, or so many others came after it that it is forgotten.
    pub fn stamps(&self, request: Handle) -> Result<Vec<Stamps>> {
        Ok(self.end.remembered(request.0)?.stamps.clone())
    }

    /// Writes the spans recorded so far, as Perfetto reads them. Files of several ends make one picture with
    /// [`sheave_base::trace::merge`].
    ///
    /// # Errors
    ///
    /// `InvalidArgument` unless [`Config::trace`] is set; `Io` if the file cannot be written.
    pub fn write_trace(&self, path: &Path) -> Result<()> {
        self.end.recorder.as_ref().ok_or_else(trace::none)?.write(self.end.lane.mesh.me(), path)
    }

    /// Blocks until all members of `scope` have come, in this lane or in all lanes.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a scope without workers; `PeerLost` if one of them is gone; `DeadlineExceeded`, which
    /// breaks this barrier for all of them.
    pub fn barrier(
        &self,
        scope: Scope,
        all_lanes: bool,
        until: Option<Instant>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        self.end.lane.barrier(scope, all_lanes, until, interrupt)
    }

    /// Says farewell to the servers. Requests that are not done end with `Closed`, and so do later calls.
    pub fn close(&self) {
        self.end.close();
        self.end.node.unregister(&(Arc::clone(&self.end) as Arc<dyn Endpoint>));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("rank", &self.rank()).field("servers", &self.servers()).finish()
    }
}

/// Refuses a key that is there twice.
fn check_keys(keys: impl Iterator<Item = u64> + Clone, what: &str) -> Result<()> {
    let mut rest = keys.clone();
    for key in keys {
        rest.next();
        if rest.clone().any(|other| other == key) {
            return Err(Error::new(ErrorKind::InvalidArgument, format!("key {key} is {what} twice"))
                .hint("each tensor of a request needs a key of its own"));
        }
    }
    Ok(())
}

fn late(what: impl Into<String>, begun: Instant) -> Error {
    Error::new(ErrorKind::DeadlineExceeded, what.into()).elapsed(begun.elapsed())
}

/// Keeps everybody else away from where answers land. Places in one buffer share its lease.
fn lease(places: &mut [Place]) -> Result<Option<Arc<Vec<WriteLease>>>> {
    let mut common: Vec<WriteLease> = Vec::new();
    for index in 0..places.len() {
        let (before, rest) = places.split_at_mut(index);
        let Some((place, after)) = rest.split_first_mut() else { break };
        let Some(target) = &place.target else { continue };
        let is_beside =
            |other: &Place| other.target.as_ref().is_some_and(|other| other.buffer().is_same(target.buffer()));
        // By address: arrays of other frameworks over the same memory have buffers of their own.
        let range = |tensor: &Tensor| tensor.ptr() as usize..tensor.ptr() as usize + tensor.len_bytes();
        let overlaps = |other: &Place| {
            let (one, other) = (range(target), other.target.as_ref().map_or(0..0, range));
            one.start < other.end && other.start < one.end
        };
        if before.iter().any(overlaps) {
            return Err(Error::new(ErrorKind::InvalidArgument, "two answers go to the same memory")
                .hint("give each pull memory of its own"));
        }
        if before.iter().any(is_beside) {
            continue;
        }
        let lease = target.write_lease(NAME)?;
        match after.iter().any(is_beside) {
            true => common.push(lease),
            false => place.lease = Some(lease),
        }
    }
    Ok((!common.is_empty()).then(|| Arc::new(common)))
}

impl End {
    fn now(&self) -> u64 {
        if self.stamps { monotonic_ns() } else { 0 }
    }

    fn entry(&self, number: u64) -> &Entry {
        &self.table[number as usize % self.table.len()]
    }

    /// The link whose words end a request, if it is one.
    fn only_link(&self) -> Option<LinkId> {
        match &self.servers[..] {
            [only] => Some(only.link),
            _ => None,
        }
    }

    fn remembered(&self, number: u64) -> Result<parking_lot::MutexGuard<'_, Inner>> {
        let inner = self.entry(number).inner.lock();
        if inner.number == number && !inner.shares.is_empty() {
            return Ok(inner);
        }
        let what = format!("request {number} is not among the last {}", self.table.len());
        Err(Error::new(ErrorKind::NotFound, what).operation(NAME).hint("ask before so many others were made"))
    }

    fn require_open(&self) -> Result<()> {
        if self.is_closed.load(SeqCst) {
            return Err(closed());
        }
        self.servers.iter().find_map(|seat| seat.gone.get().cloned()).map_or(Ok(()), Err)
    }

    fn begin(
        &self,
        pushes: SmallVec<[Push; 4]>,
        pulls: SmallVec<[Pull; 4]>,
        terms: Terms,
        begun: u64,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<Handle> {
        self.check(&pushes, &pulls)?;
        let mut leases = SmallVec::<[ReadLease; 4]>::with_capacity(pushes.len());
        for push in &pushes {
            match push.mode {
                Mode::Copy => leases.push(push.tensor.read_lease(NAME)?),
                _ => push.tensor.buffer().require_current()?,
            }
        }
        let mut issue = self.room(terms.until, interrupt)?;
        self.require_open()?;
        let number = issue.next;
        let plan = self.plan(&mut issue, &pushes, &pulls)?;
        let entry = self.entry(number);
        {
            let mut inner = entry.inner.lock();
            self.remember_failure(&inner);
            let places = pulls.into_iter();
            inner.places.clear();
            inner.places.extend(places.map(|Pull { slot, target }| Place { slot, target, lease: None, answer: None }));
            inner.common = match lease(&mut inner.places) {
                Ok(common) => common,
                Err(error) => {
                    inner.places.clear();
                    return Err(error);
                }
            };
            entry.begin(&mut inner, number, self.servers.len());
            inner.stamps.iter_mut().for_each(|stamps| stamps.begun = begun);
        }
        issue.next += 1;
        let word = Word::Request { number, plan, step: terms.step, wants_stamps: self.stamps };
        self.send(word, number, pushes);
        // A server that was lost before this entry was there has not been looked for in it.
        for (server, seat) in self.servers.iter().enumerate() {
            if let Some(reason) = seat.gone.get() {
                self.lose_of(entry, server, reason);
            }
        }
        drop((issue, leases));
        self.attend();
        Ok(Handle(number))
    }

    fn check(&self, pushes: &[Push], pulls: &[Pull]) -> Result<()> {
        let refuse = |what: String, hint: &'static str| Err(Error::new(ErrorKind::InvalidArgument, what).hint(hint));
        let servers = self.servers.len();
        if pushes.is_empty() && pulls.is_empty() {
            return refuse("a request of no tensors".into(), "push or pull something");
        }
        if !pulls.len().is_multiple_of(servers) {
            let what = format!("{} pulls cannot be shared by {servers} servers", pulls.len());
            return refuse(what, "give as many pulls for each server, first those of server 0");
        }
        if servers > 1 && pushes.iter().any(|push| push.mode == Mode::Move) {
            return refuse(format!("a tensor cannot be moved to {servers} servers"), "push it without moving it");
        }
        if let Some(push) = pushes.iter().find(|push| push.mode == Mode::Move && !push.tensor.buffer().is_unique()) {
            let what = format!("the tensor moved under key {} has other handles", push.key);
            return Err(Error::new(ErrorKind::BufferInUse, what)
                .hint("drop the other handles and views first, or push it without moving it"));
        }
        if pushes.len() > PARTS_MAX || pulls.len() > PARTS_MAX {
            let what = format!("{} pushes and {} pulls; a request has at most {PARTS_MAX}", pushes.len(), pulls.len());
            return refuse(what, "pack small tensors together");
        }
        if let Some(push) = pushes.iter().find(|push| push.tensor.len_bytes() as u64 > PART_BYTES_MAX) {
            let what = format!("the tensor of key {} has more than {PART_BYTES_MAX} bytes", push.key);
            return refuse(what, "push it in parts");
        }
        check_keys(pushes.iter().map(|push| push.key), "pushed")?;
        for share in pulls.chunks(pulls.len().max(servers) / servers) {
            check_keys(share.iter().map(|pull| pull.slot.key), "pulled")?;
        }
        Ok(())
    }

    /// Waits until the entry of the next request is free, and keeps others from making one.
    fn room(
        &self,
        until: Option<Instant>,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<parking_lot::MutexGuard<'_, Issue>> {
        loop {
            let issue = self.issue.lock();
            let entry = self.entry(issue.next);
            if issue.next < self.table.len() as u64 || entry.is_closed() {
                return Ok(issue);
            }
            drop(issue);
            let begun = Instant::now();
            let is_met = || entry.is_closed() || self.require_open().is_err();
            let which = [entry.inner.lock().number, 0];
            let (condition, knows) = (&self.condition, &self.me);
            let room = Until { condition, is_met, link: None, operation: NAME, knows, which };
            let interrupt = reborrowed(&mut interrupt);
            if !wait_for(&room, Some(&*self.driver), until, interrupt)? {
                let what = format!("{} requests are in flight already", self.table.len());
                let error = late(what, begun).hint("wait for earlier requests; the servers answer none of them");
                return Err(self.blame(error, &entry.inner.lock()));
            }
            self.require_open()?;
        }
    }

    /// The number of the request's plan, which the servers have been told.
    fn plan(&self, issue: &mut Issue, pushes: &[Push], pulls: &[Pull]) -> Result<u16> {
        let Issue { told, keys, slots, .. } = issue;
        keys.clear();
        keys.extend(pushes.iter().map(|push| push.key));
        slots.clear();
        slots.extend(pulls.iter().map(|pull| pull.slot.clone()));
        let hash = told.hash(keys, slots);
        if let Some(number) = told.find(hash, keys, slots) {
            return Ok(number);
        }
        let number = told.add(hash, keys, slots);
        let each = slots.len() / self.servers.len();
        for (index, seat) in self.servers.iter().enumerate() {
            let control = plan::encode(keys, &slots[index * each..(index + 1) * each])?;
            let envelope = Word::Plan(number).envelope(self.lane.context);
            // A server that is gone will be missed by the request.
            let _ = self.node.post(seat.link, Outgoing::control(envelope, control));
        }
        Ok(number)
    }

    fn send(&self, word: Word, number: u64, pushes: SmallVec<[Push; 4]>) {
        let (envelope, entry) = (word.envelope(self.lane.context), self.entry(number));
        let mut pushes = Some(pushes);
        for (index, seat) in self.servers.iter().enumerate() {
            let parts: Parts = if index + 1 == self.servers.len() {
                let pushes = pushes.take().unwrap_or_default();
                pushes.into_iter().map(|push| Part::new(push.tensor, push.mode)).collect()
            } else {
                let pushes = pushes.iter().flatten();
                pushes.map(|push| Part::new(push.tensor.clone(), push.mode)).collect()
            };
            if self.stamps {
                entry.inner.lock().stamps[index].sent = monotonic_ns();
            }
            if let Err(error) = self.node.post(seat.link, Outgoing { envelope, control: Vec::new(), parts }) {
                // The server has missed a number, so that it can have none of the next ones either.
                self.lose(index, &error);
            }
        }
    }

    fn wait(&self, number: u64, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<()> {
        let entry = self.entry(number);
        if !entry.is_done(number) {
            let begun = Instant::now();
            let is_met = || entry.is_done(number);
            let (condition, link, knows) = (&self.condition, self.only_link(), &self.me);
            let done = Until { condition, is_met, link, operation: NAME, knows, which: [number, 0] };
            if !wait_for(&done, Some(&*self.driver), until, interrupt)? {
                let error =
                    late("no answer came", begun).hint("the request goes on: wait again, or look at the server");
                return Err(self.blame(error, &entry.inner.lock()));
            }
        }
        let mut inner = entry.inner.lock();
        if inner.number == number && !inner.shares.is_empty() {
            if self.stamps {
                self.note_end(number, &mut inner);
            }
            return inner.outcome();
        }
        drop(inner);
        let next = self.issue.lock().next;
        if number >= next {
            let what = format!("there is no request {number}; {next} were made");
            return Err(Error::new(ErrorKind::NotFound, what).hint("use what push_pull has returned"));
        }
        let failures = self.failures.lock();
        failures.iter().find(|(failed, _)| *failed == number).map_or(Ok(()), |(_, error)| Err(error.clone()))
    }

    /// The program has the answers.
    fn note_end(&self, number: u64, inner: &mut Inner) {
        if inner.stamps.first().is_none_or(|stamps| stamps.ended != 0) {
            return;
        }
        let ended = monotonic_ns();
        inner.stamps.iter_mut().for_each(|stamps| stamps.ended = ended);
        if let (Some(recorder), None) = (&self.recorder, &inner.failure) {
            recorder.request(number, &inner.stamps);
        }
    }

    /// An entry is about to be used again.
    fn remember_failure(&self, inner: &Inner) {
        if let Some(error) = &inner.failure {
            let mut failures = self.failures.lock();
            if failures.len() >= FAILURES_KEPT_MAX {
                failures.pop_front();
            }
            failures.push_back((inner.number, error.clone()));
        }
    }

    /// Names the first server that has not answered.
    fn blame(&self, error: Error, inner: &Inner) -> Error {
        match inner.shares.iter().position(|share| *share != Share::Settled) {
            Some(index) => error.peer(self.peer(index)),
            None => error,
        }
    }

    fn peer(&self, server: usize) -> Peer {
        self.servers.get(server).map(|seat| self.lane.peer(seat.node)).unwrap_or_default()
    }

    fn about(&self, error: Error, server: usize) -> Error {
        if error.about().is_some() { error } else { error.peer(self.peer(server)) }
    }

    fn defer(&self, told: Told) {
        if !told.is_empty() {
            self.deferred.lock().extend(told);
        }
    }

    /// Nothing comes from a server any more.
    fn lose(&self, server: usize, reason: &Error) {
        let reason = self.about(reason.clone(), server);
        // The first reason is the true one: a farewell comes before the end of the link.
        let reason = self.servers[server].gone.get_or_init(|| reason);
        self.note_loss(reason);
        for entry in &self.table {
            self.lose_of(entry, server, reason);
        }
    }

    /// Nothing comes from a server for this entry any more.
    fn lose_of(&self, entry: &Entry, server: usize, reason: &Error) {
        let mut inner = entry.inner.lock();
        if inner.shares.get(server).is_some_and(|share| *share != Share::Settled) {
            let told = entry.settle(&mut inner, server, Some(reason.clone()));
            self.defer(told);
        }
    }

    fn note_loss(&self, error: &Error) {
        if error.kind().is_loss() {
            let _ = self.loss.set(error.clone());
        }
    }

    fn take_answer(&self, server: usize, number: u64, message: Message) {
        let entry = self.entry(number);
        let mut inner = entry.inner.lock();
        if inner.number != number || inner.shares.get(server).is_none_or(|share| *share == Share::Settled) {
            return;
        }
        if self.stamps {
            let stamps = &mut inner.stamps[server];
            if let Some([arrived, taken, answered, answer_sent]) = clock::decode(&message.control) {
                *stamps = Stamps { arrived, taken, answered, answer_sent, ..*stamps };
            }
            stamps.answer_arrived = monotonic_ns();
        }
        let failure = inner.take(server, message.parts).err().map(|error| self.about(error, server));
        let told = entry.settle(&mut inner, server, failure);
        drop(inner);
        self.defer(told);
    }

    fn refused(&self, server: usize, number: u64, control: &[u8]) {
        let entry = self.entry(number);
        let mut inner = entry.inner.lock();
        if inner.number == number && server < inner.shares.len() {
            let error = word::read_refusal(control);
            let about = error.about().and_then(|peer| peer.node);
            let error = error.peer(about.map_or_else(|| self.peer(server), |node| self.lane.peer(node)));
            self.note_loss(&error);
            let told = entry.settle(&mut inner, server, Some(error));
            drop(inner);
            self.defer(told);
        }
    }

    fn close(&self) {
        if self.is_closed.swap(true, SeqCst) {
            return;
        }
        let loss = self.loss.get().cloned().or_else(|| self.lane.loss());
        for (index, seat) in self.servers.iter().enumerate() {
            if seat.gone.get().is_none() {
                let why = loss.as_ref().map(word::refusal).unwrap_or_default();
                let farewell = Outgoing::control(Word::Farewell.envelope(self.lane.context), why);
                let _ = self.node.post(seat.link, farewell);
            }
            self.lose(index, &closed());
        }
        self.attend();
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "this worker has left the exchange").operation(NAME)
}

/// A request, by its number.
impl Describe for End {
    fn describe(&self, [number, _]: Which) -> Option<Account> {
        let inner = self.entry(number).inner.lock();
        if inner.number != number || self.entry(number).is_done(number) {
            return None;
        }
        let open = inner.shares.iter().enumerate().filter(|(_, share)| **share != Share::Settled);
        let whom = listed(open.map(|(server, _)| self.peer(server).name));
        Some(Account { what: Some(format!("{NAME}, request {number}")), whom: Some(format!("{whom} to answer")) })
    }
}

impl Endpoint for End {
    fn admit(&self, link: LinkId, arrival: &Arrival<'_>) -> Admission {
        let server = self.servers.iter().position(|seat| seat.link == link);
        if arrival.envelope.context == self.lane.context
            && let (Some(server), Some(Word::Answer(number))) = (server, Word::of(&arrival.envelope))
        {
            let mut inner = self.entry(number).inner.lock();
            if inner.number == number && inner.shares.get(server) == Some(&Share::Open) {
                return Admission::Land(inner.ground(server, arrival, self.node.arena()));
            }
        }
        Admission::Land(Ground::default())
    }

    fn take(&self, message: Message) {
        let server = self.servers.iter().position(|seat| seat.link == message.source);
        let (Some(server), true) = (server, message.envelope.context == self.lane.context) else { return };
        match Word::of(&message.envelope) {
            Some(Word::Answer(number)) => self.take_answer(server, number, message),
            Some(Word::Refusal(number)) => self.refused(server, number, &message.control),
            Some(Word::Farewell) => {
                let left = Error::new(ErrorKind::Closed, format!("server {server} has left the exchange"))
                    .hint("servers stay until their workers have closed");
                let left = self.lane.reason(&message.control, left.peer(self.peer(server)));
                self.lose(server, &left);
            }
            _ => {
                let what = "a server sent a word that no worker understands";
                self.lose(server, &Error::new(ErrorKind::Protocol, what));
            }
        }
    }

    fn link_ended(&self, link: LinkId, _peer: &Peer, reason: &Error) {
        if let Some(server) = self.servers.iter().position(|seat| seat.link == link) {
            // The link may know less of its peer than the mesh does.
            self.lose(server, &reason.clone().peer(self.peer(server)));
        }
    }

    fn attend(&self) {
        let deferred = std::mem::take(&mut *self.deferred.lock());
        for (completer, outcome) in deferred {
            completer.complete(outcome);
        }
        self.condition.changed();
    }
}
