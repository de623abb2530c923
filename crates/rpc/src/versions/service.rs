//! The table on the node that serves it.
//!
//! One lock guards the [table](super::table) and the timers of leases. It is never held while somebody is answered,
//! tensors are copied or memory is freed. Watches and pins are named by their owner and a number of its own, so that
//! the owner can take back one of which it has not heard; calls of one node come in their order, and the loss of a node
//! is told behind them.

use super::contents::{Changes, Entry, Pulled, Stored};
use super::protocol::{self, unreadable};
use super::table::{Content, Found, Name, Owned, Released, Table, Want};
use super::{Pin, Pushed, VersionsReport, VersionsSettings, Wanted};
use parking_lot::Mutex;
use sheave_base::collections::HashMap;
use sheave_base::work::Completer;
use sheave_base::work::awaited::{Account, Awaited, Describe, Which};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work, limits};
use sheave_mesh::{AttachedGuest, Callers, Lane, Member, Mesh, Reply, Request, Service, ServiceName, Timer, WeakMesh};
use sheave_net::{Part, Parts, Tensors};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The lane on which large pushes are copied.
const COPIES: ServiceName = ServiceName::new("sheave.versions");

/// Memory that is shared begins at one of these.
const SHARED_ALIGNMENT_BYTES: usize = 64;

/// Numbers of watches and pins of one node.
pub(super) const NUMBERS: &str = "versions";

/// Whoever waits for a newer version.
#[derive(Debug)]
enum Waits {
    Here(Completer<Pulled>, Mode),
    There {
        reply: Box<Reply>,
        may_share: bool,
        /// The service that it has come to.
        service: u64,
    },
}

impl Waits {
    fn is_wanted(&self) -> bool {
        match self {
            Self::Here(completer, _) => completer.is_awaited(),
            Self::There { reply, .. } => reply.is_wanted(),
        }
    }

    fn fail(self, error: Error) {
        match self {
            Self::Here(completer, _) => completer.complete(Err(error.operation("watch"))),
            Self::There { reply, .. } => reply.error(error),
        }
    }
}

struct State {
    table: Table<Waits>,
    leases: HashMap<Owned, Timer>,
    /// Why nothing can be done any more.
    over: Option<Error>,
}

impl State {
    fn check(&self) -> Result<()> {
        self.over.clone().map_or(Ok(()), Err)
    }
}

pub(super) struct Inner {
    mesh: WeakMesh,
    node: NodeId,
    settings: VersionsSettings,
    state: Mutex<State>,
    own: Weak<Self>,
    services: AtomicU64,
    /// Bytes of pushes that wait to be copied.
    copying: AtomicU64,
    /// A task of the node's, which ends with it.
    membership: OnceLock<sheave_mesh::Task>,
}

/// A push as it has come.
struct Push {
    key: Name,
    version: Name,
    previous: Option<Name>,
    value: Value,
    /// Names of removed entries, if the value is a map of changes.
    removed: Option<Vec<String>>,
    tensors: Tensors,
}

impl Push {
    fn read(args: Value, tensors: Tensors, has_changes: bool) -> Result<Self> {
        let (args, removed) = match args {
            Value::List(mut items) if has_changes => {
                let removed = items.pop().ok_or_else(unreadable)?;
                (Value::List(items), Some(protocol::texts(removed)?))
            }
            args => (args, None),
        };
        let [key, version, previous, value] = protocol::listed(args)?;
        let previous = protocol::read_optional(previous)?.map(Name::version).transpose()?;
        Ok(Self { key: Name::key(key)?, version: Name::version(version)?, previous, value, removed, tensors })
    }

    fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.len_bytes() as u64).sum()
    }

    /// Reads what it brings, of which the table has these tensors.
    fn content(&mut self, tensors: &[Tensor]) -> Result<Content> {
        Ok(match self.removed.take() {
            None => Content::Whole(Stored::of(&self.value, tensors)?),
            Some(removed) => Content::Changes(Changes::of(&self.value, removed, tensors)?),
        })
    }
}

impl Inner {
    fn mesh(&self) -> Result<Mesh> {
        self.mesh.upgrade().ok_or_else(gone)
    }

    /// Uses the state. What is dropped meanwhile is freed without the lock.
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let (result, garbage) = {
            let mut state = self.state.lock();
            let result = act(&mut state);
            (result, std::mem::take(&mut state.table.garbage))
        };
        drop(garbage);
        result
    }

    /// As [`Inner::with`], while the node is there.
    fn try_with<T>(&self, act: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        self.with(|state| state.check().and_then(|()| act(state)))
    }

    /// A tensor as the table may have it: in memory that others reach where there is room, and that nobody writes.
    fn held(mesh: &Mesh, tensor: Tensor) -> Result<Tensor> {
        let node = mesh.node();
        let (buffer, offset_bytes) = (tensor.buffer(), tensor.offset_bytes());
        let is_own = buffer.is_unique() && !buffer.is_shared_alias() && node.arena().owns(buffer);
        let is_there = is_own && offset_bytes.is_multiple_of(SHARED_ALIGNMENT_BYTES);
        let held = if is_there { tensor } else { node.capture(&tensor)? };
        // Before anybody reads it: memory that is being copied for one reader cannot be marked for another.
        held.buffer().share()?;
        Ok(held)
    }

    /// Takes in a push, and tells those who have waited for it.
    fn take_in(&self, mut push: Push) -> Result<Pushed> {
        let (key, previous) = (push.key.clone(), push.previous.take());
        let refused = self.try_with(|state| Ok(state.table.refuses(&key, &push.version, previous.as_ref())))?;
        if let Some(refused) = refused {
            return Ok(refused);
        }
        let (bytes, most) = (push.bytes(), self.settings.bytes_max);
        if bytes > most {
            let what = format!("a value of {bytes} bytes in a table that may have {most}");
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("raise bytes_max"));
        }
        let mesh = self.mesh()?;
        let held = std::mem::take(&mut push.tensors).into_iter().map(|tensor| Self::held(&mesh, tensor));
        let content = push.content(&held.collect::<Result<Vec<_>>>()?)?;
        let (pushed, told) = self.try_with(|state| {
            let (pushed, released) = state.table.push(&key, push.version, previous.as_ref(), content)?;
            Ok((pushed, found_for(&state.table, &key, released)))
        })?;
        told.into_iter().for_each(|(waits, found)| tell(&mesh, waits, found));
        Ok(pushed)
    }

    fn pull(&self, key: &Name, want: &Want) -> Result<Option<(Name, Found)>> {
        self.try_with(|state| Ok(state.table.pull(key, want)))
    }

    fn watch(&self, key: &Name, newer_than: Option<Name>, owned: Owned, waits: Waits) {
        let watched = self.with(|state| {
            if let Err(error) = state.check() {
                return Err((waits, Err(error)));
            }
            if state.table.has_other(key, newer_than.as_ref()) {
                let found = state.table.pull(key, &newer(newer_than));
                return Err((waits, found.ok_or_else(unreadable)));
            }
            let watched = state.table.watch(key, newer_than, owned, waits, Waits::is_wanted);
            watched.map_err(|(waits, error)| (waits, Err(error)))
        });
        match (watched, self.mesh()) {
            (Ok(unwanted), _) => unwanted.into_iter().for_each(|waits| waits.fail(cancelled())),
            (Err((waits, Ok(found))), Ok(mesh)) => tell(&mesh, waits, found),
            (Err((waits, Err(error))), _) | (Err((waits, _)), Err(error)) => waits.fail(error),
        }
    }

    fn unwatch(&self, key: &Name, owned: Owned) {
        if let Some(waits) = self.with(|state| state.table.unwatch(key, owned)) {
            waits.fail(cancelled());
        }
    }

    fn pin(&self, key: &Name, version: Option<&Name>, owned: Owned, lease: Duration) -> Result<Option<Value>> {
        if lease.is_zero() || lease > limits::VERSIONS_LEASE_MAX {
            let what = format!("lease is {lease:?}; expected some time up to {:?}", limits::VERSIONS_LEASE_MAX);
            return Err(Error::new(ErrorKind::InvalidArgument, what));
        }
        let mesh = self.mesh()?;
        let pinned = self.try_with(|state| state.table.pin(key, version, owned))?;
        let Some(version) = pinned else { return Ok(None) };
        let own = self.own.clone();
        let ended = mesh.at(mesh.runtime().after(lease), move || {
            let _ = own.upgrade().map(|inner| inner.unpin(owned));
        });
        match ended {
            Ok(timer) => {
                // The lease, or the holder, may have ended meanwhile.
                let late = self.with(|state| match state.table.has_pin(owned) {
                    true => state.leases.insert(owned, timer),
                    false => Some(timer),
                });
                drop(late);
                Ok(Some(version.value))
            }
            Err(error) => {
                self.unpin(owned);
                Err(error)
            }
        }
    }

    pub(super) fn unpin(&self, owned: Owned) -> bool {
        let (was_pinned, timer) = self.with(|state| (state.table.unpin(owned), state.leases.remove(&owned)));
        drop(timer);
        was_pinned
    }

    /// A node is gone.
    fn lose(&self, node: NodeId, error: &Error) {
        let (watches, timers) = self.with(|state| {
            let (watches, pins) = state.table.lose(node);
            let timers: Vec<_> = pins.iter().filter_map(|pin| state.leases.remove(pin)).collect();
            (watches, timers)
        });
        drop(timers);
        watches.into_iter().for_each(|waits| waits.fail(error.clone()));
    }

    /// The node has left.
    fn close(&self) {
        let (watches, timers) = self.with(|state| {
            state.over.get_or_insert_with(gone);
            (state.table.unwatch_where(|_| true), std::mem::take(&mut state.leases))
        });
        drop(timers);
        watches.into_iter().for_each(|waits| waits.fail(gone()));
    }
}

/// The answers to those who have waited for another version of this key.
fn found_for(table: &Table<Waits>, key: &Name, released: Vec<Released<Waits>>) -> Vec<(Waits, (Name, Found))> {
    let found = |(waits, newer_than)| Some((waits, table.pull(key, &newer(newer_than))?));
    released.into_iter().filter_map(found).collect()
}

fn newer(newer_than: Option<Name>) -> Want {
    newer_than.map_or(Want::Newest, Want::NewerThan)
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the watch was cancelled")
}

fn gone() -> Error {
    Error::new(ErrorKind::Closed, "the node that served the versions has left")
}

/// Tells somebody what was found.
fn tell(mesh: &Mesh, waits: Waits, found: (Name, Found)) {
    match waits {
        Waits::Here(completer, mode) => {
            let read = read_here(mesh, Some(found), mode);
            completer.complete(read.and_then(|pulled| pulled.ok_or_else(unreadable)));
        }
        Waits::There { reply, may_share, .. } => answer(*reply, Some(found), may_share),
    }
}

/// What was found, for a user of this node.
fn read_here(mesh: &Mesh, found: Option<(Name, Found)>, mode: Mode) -> Result<Option<Pulled>> {
    let (value, tensors) = protocol::found(found);
    let held = |tensor: Tensor| match mode {
        Mode::Share => Ok(tensor),
        Mode::Copy | Mode::Move => mesh.node().capture(&tensor),
    };
    protocol::read_found(value, tensors.into_iter().map(held).collect::<Result<_>>()?)
}

fn answer(reply: Reply, found: Option<(Name, Found)>, may_share: bool) {
    let (value, tensors) = protocol::found(found);
    let part = |tensor: Tensor| {
        let mode = if may_share && reply.can_share(&tensor) { Mode::Share } else { Mode::Copy };
        Part::new(tensor, mode)
    };
    let parts: Parts = tensors.into_iter().map(part).collect();
    reply.ok(value, parts);
}

impl Describe for Inner {
    fn describe(&self, _: Which) -> Option<Account> {
        let what = "watch a versioned object of this node".to_owned();
        Some(Account { what: Some(what), whom: Some("somebody to push a newer version".to_owned()) })
    }
}

/// That the node is there. It drops this when it leaves.
struct Membership(Weak<Inner>);

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.close();
        }
    }
}

/// A table of versioned objects that this node serves. Clones are handles to the same, which lives as long as one of
/// them or a [service](Versions::service) of it.
///
/// Its methods do what those of a [`VersionsClient`](super::VersionsClient) do, at once and without a message.
///
/// ```
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
/// use sheave_rpc::{Entry, Rpc, Versions, VersionsSettings, Wanted};
/// use sheave_tensor::Mode;
/// use sheave_wire::Value;
///
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let root = Endpoint { host: "127.0.0.1".into(), port };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let versions = Versions::new(&mesh, VersionsSettings::default())?;
/// let group = Rpc::serve(&mesh)?.create_group("training", &[mesh.me().node], None).wait()?;
/// group.register("models", versions.service(), None)?.wait()?;
/// // Everybody who has the group:
/// let models = group.versions("models", None)?.wait()?;
/// assert!(models.push("policy", Entry::of("first"), 1_i64, None)?.wait()?.is_accepted());
/// assert!(!models.push("policy", Entry::of("other"), 1_i64, None)?.wait()?.is_accepted());
/// // And here:
/// let newest = versions.pull("policy", Wanted::Newest, Mode::Share)?.expect("it was pushed");
/// assert_eq!((newest.version, versions.report().refused), (Value::Int(1), 1));
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct Versions(Arc<Inner>);

impl Versions {
    /// Returns an empty table.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a depth or a number of keys that is 0 or too large; `Closed` once the node has left.
    pub fn new(mesh: &Mesh, settings: VersionsSettings) -> Result<Self> {
        settings.check()?;
        let table = Table::new(settings.clone());
        let inner = Arc::new_cyclic(|own| Inner {
            mesh: mesh.downgrade(),
            node: mesh.me().node,
            settings,
            state: Mutex::new(State { table, leases: HashMap::default(), over: None }),
            own: own.clone(),
            services: AtomicU64::new(0),
            copying: AtomicU64::new(0),
            membership: OnceLock::new(),
        });
        let membership = Membership(Arc::downgrade(&inner));
        let task = mesh.runtime().spawn(async move {
            let _membership = membership;
            std::future::pending::<()>().await;
        });
        let _ = inner.membership.set(task?);
        Ok(Self(inner))
    }

    pub(super) fn mesh(&self) -> Result<Mesh> {
        self.0.mesh()
    }

    /// Returns a service of the table, for [`RpcGroup::register`](crate::RpcGroup::register). When it is taken away,
    /// the watches that have come to it end with `Closed`.
    #[must_use]
    pub fn service(&self) -> VersionsService {
        VersionsService { number: self.0.services.fetch_add(1, Relaxed), inner: Arc::clone(&self.0) }
    }

    /// Pushes a value, as [`VersionsClient::push`](super::VersionsClient::push). Copies what it does not get by move;
    /// does not wait for anybody.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` for what does not fit, which says what is kept; `InvalidArgument` for what is no key, version or
    /// value; `BufferInUse` for a tensor that is being written; `Closed` once the node has left.
    pub fn push(
        &self,
        key: impl Into<Value>,
        entry: Entry,
        version: impl Into<Value>,
        previous: Option<Value>,
    ) -> Result<Pushed> {
        self.push_all(key.into(), entry, version.into(), previous, None)
    }

    /// Pushes changes of a map, as [`VersionsClient::push_changes`](super::VersionsClient::push_changes).
    ///
    /// # Errors
    ///
    /// As [`Versions::push`]; `NotFound` for an entry to be removed that is not there, and by
    /// [`Rules::Machin`](super::Rules) for a key without a version.
    pub fn push_changes(
        &self,
        key: impl Into<Value>,
        changes: Entry,
        removed: Vec<String>,
        version: impl Into<Value>,
        previous: impl Into<Value>,
    ) -> Result<Pushed> {
        self.push_all(key.into(), changes, version.into(), Some(previous.into()), Some(removed))
    }

    fn push_all(
        &self,
        key: Value,
        entry: Entry,
        version: Value,
        previous: Option<Value>,
        removed: Option<Vec<String>>,
    ) -> Result<Pushed> {
        let push = || {
            let mesh = self.0.mesh()?;
            let held = |part: Part| match part.mode() {
                Mode::Move => Ok(part.into_tensor()),
                Mode::Copy | Mode::Share => mesh.node().capture(part.tensor()),
            };
            let tensors = entry.tensors.into_iter().map(held).collect::<Result<_>>()?;
            let previous = previous.map(Name::version).transpose()?;
            let (key, version, value) = (Name::key(key)?, Name::version(version)?, entry.value);
            self.0.take_in(Push { key, version, previous, value, removed, tensors })
        };
        push().map_err(|error| error.operation("push"))
    }

    /// Returns a version, as [`VersionsClient::pull`](super::VersionsClient::pull): by [`Mode::Share`] the memory of
    /// the table itself, otherwise a copy.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for what is no key or version; `LimitExceeded` if there is no memory for a copy; `Closed` once
    /// the node has left.
    pub fn pull(&self, key: impl Into<Value>, wanted: Wanted, mode: Mode) -> Result<Option<Pulled>> {
        let pull = || {
            let found = self.0.pull(&Name::key(key.into())?, &protocol::want(wanted)?)?;
            read_here(&self.0.mesh()?, found, mode)
        };
        pull().map_err(|error| error.operation("pull"))
    }

    /// Returns a work that ends when the newest version is another one than this, as
    /// [`VersionsClient::watch`](super::VersionsClient::watch). It ends with `Closed` when the node leaves; one that
    /// is dropped is forgotten when room is needed. Does not block.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for what is no key or version; `Closed` once the node has left.
    pub fn watch(&self, key: impl Into<Value>, newer_than: Option<Value>, mode: Mode) -> Result<Work<Pulled>> {
        let watch = || {
            let (mesh, key) = (self.0.mesh()?, Name::key(key.into())?);
            let newer_than = newer_than.map(Name::version).transpose()?;
            let knows: Weak<dyn Describe> = self.0.own.clone();
            let (completer, work) = mesh.node().described("watch", None, Awaited::new(knows, Which::default()));
            let owned = (self.0.node, mesh.next_number(NUMBERS).into());
            let (own, watched) = (self.0.own.clone(), key.clone());
            completer.on_cancel(move || own.upgrade().into_iter().for_each(|inner| inner.unwatch(&watched, owned)));
            self.0.watch(&key, newer_than, owned, Waits::Here(completer, mode));
            Ok(work)
        };
        watch().map_err(|error: Error| error.operation("watch"))
    }

    /// Keeps a version, or the newest one, for as long as the pin lives, as
    /// [`VersionsClient::pin`](super::VersionsClient::pin). Nothing if it is not there.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` for more pins than a table has; `InvalidArgument` for what is no key, version or lease; `Closed`
    /// once the node has left.
    pub fn pin(&self, key: impl Into<Value>, version: Option<Value>, lease: Duration) -> Result<Option<Pin>> {
        let pin = || {
            let (key, version) = (Name::key(key.into())?, version.map(Name::version).transpose()?);
            let owned = (self.0.node, self.0.mesh()?.next_number(NUMBERS).into());
            let pinned = self.0.pin(&key, version.as_ref(), owned, lease)?;
            Ok(pinned.map(|version| Pin::here(version, self.0.own.clone(), owned)))
        };
        pin().map_err(|error: Error| error.operation("pin"))
    }

    /// Returns the versions of a key, the newest last.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for what is no key.
    pub fn versions(&self, key: impl Into<Value>) -> Result<Vec<Value>> {
        let key = Name::key(key.into()).map_err(|error| error.operation("versions"))?;
        Ok(self.0.with(|state| state.table.versions(&key)))
    }

    /// Drops a key with all its versions, pinned or not, and returns whether it was there. Watches of it go on.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for what is no key.
    pub fn remove(&self, key: impl Into<Value>) -> Result<bool> {
        let key = Name::key(key.into()).map_err(|error| error.operation("remove"))?;
        Ok(self.0.with(|state| state.table.remove(&key)))
    }

    /// Returns what the table has, and has done.
    #[must_use]
    pub fn report(&self) -> VersionsReport {
        self.0.with(|state| state.table.report())
    }
}

impl std::fmt::Debug for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Versions").field("report", &self.report()).finish_non_exhaustive()
    }
}

/// A table as it is registered in a group, see [`Versions::service`].
pub struct VersionsService {
    inner: Arc<Inner>,
    number: u64,
}

impl std::fmt::Debug for VersionsService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VersionsService").field("number", &self.number).finish_non_exhaustive()
    }
}

impl VersionsService {
    /// Takes in a push, on another thread if there is much to be copied.
    /// Fails for a guest that the table is not for.
    fn admit(&self, from: NodeId) -> Result<()> {
        if !self.inner.settings.is_for_trusted {
            return Ok(());
        }
        let mesh = self.inner.mesh()?;
        if mesh.trusts(from) {
            return Ok(());
        }
        let what = "this table is for members and for guests that their host has started itself";
        let error = Error::new(ErrorKind::NotPermitted, what);
        Err(mesh.peer_of(from).map_or(error.clone(), |peer| error.peer(peer)))
    }

    fn push(&self, from: NodeId, reply: Reply, push: Push) {
        let bytes = push.bytes();
        if bytes <= limits::VERSIONS_INLINE_BYTES_MAX {
            return reply.send(pushed(self.inner.take_in(push)));
        }
        let mesh = match self.inner.mesh() {
            Ok(mesh) => mesh,
            Err(error) => return reply.error(error),
        };
        let copying = Copying::begin(&self.inner, bytes);
        let before = copying.before;
        if before > 0 && before.saturating_add(bytes) > self.inner.settings.bytes_max {
            let what = format!("a push of {bytes} bytes beside others of {before} that are being copied");
            let error = Error::new(ErrorKind::LimitExceeded, what).hint("wait for one push before the next");
            return reply.error(error);
        }
        mesh.submit(&COPIES, from.0, move |turn| {
            let taken = turn.and_then(|()| copying.inner.take_in(push));
            drop(copying);
            reply.send(pushed(taken));
        });
    }

    fn watch(&self, from: NodeId, reply: Reply, args: Value) -> Result<(), (Reply, Error)> {
        let read = || {
            let [number, key, newer_than, may_share] = protocol::listed(args)?;
            let newer_than = protocol::read_optional(newer_than)?.map(Name::version).transpose()?;
            Ok((protocol::number(&number)?, Name::key(key)?, newer_than, protocol::truth(&may_share)?))
        };
        match read() {
            Err(error) => Err((reply, error)),
            Ok((number, key, newer_than, may_share)) => {
                let waits = Waits::There { reply: Box::new(reply), may_share, service: self.number };
                self.inner.watch(&key, newer_than, (from, number), waits);
                Ok(())
            }
        }
    }

    fn pin(&self, from: NodeId, args: Value) -> Result<Value> {
        let [number, key, version, lease_ns] = protocol::listed(args)?;
        let version = protocol::read_optional(version)?.map(Name::version).transpose()?;
        let (owned, lease) = ((from, protocol::number(&number)?), Duration::from_nanos(protocol::number(&lease_ns)?));
        self.inner.pin(&Name::key(key)?, version.as_ref(), owned, lease).map(protocol::optional)
    }

    /// What is asked and answered at once.
    fn ask(&self, from: NodeId, method: &str, args: Value) -> Result<Value> {
        let inner = &self.inner;
        match method {
            protocol::UNWATCH => {
                let [number, key] = protocol::listed(args)?;
                inner.unwatch(&Name::key(key)?, (from, protocol::number(&number)?));
                Ok(Value::None)
            }
            protocol::PIN => self.pin(from, args),
            protocol::RELEASE => Ok(Value::Bool(inner.unpin((from, protocol::number(&args)?)))),
            protocol::VERSIONS => {
                let key = Name::key(args)?;
                Ok(Value::List(inner.with(|state| state.table.versions(&key))))
            }
            protocol::REMOVE => {
                let key = Name::key(args)?;
                Ok(Value::Bool(inner.with(|state| state.table.remove(&key))))
            }
            protocol::REPORT => Ok(protocol::report(&inner.with(|state| state.table.report()))),
            other => Err(Error::new(ErrorKind::NotFound, format!("versions have no method {other:?}"))),
        }
    }
}

fn pushed(outcome: Result<Pushed>) -> Result<(Value, Parts)> {
    outcome.map(|outcome| (protocol::pushed(outcome), Parts::new()))
}

/// Bytes of a push that are counted while it waits.
struct Copying {
    inner: Arc<Inner>,
    bytes: u64,
    /// Those of others, when it came.
    before: u64,
}

impl Copying {
    fn begin(inner: &Arc<Inner>, bytes: u64) -> Self {
        let before = inner.copying.fetch_add(bytes, Relaxed);
        Self { inner: Arc::clone(inner), bytes, before }
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.inner.copying.fetch_sub(self.bytes, Relaxed);
    }
}

impl Service for VersionsService {
    fn handle(&self, request: Request) {
        let Request { from, method, args, tensors, reply, .. } = request;
        if let Err(error) = self.admit(from) {
            return reply.error(error);
        }
        match method.as_str() {
            protocol::PUSH | protocol::CHANGES => match Push::read(args, tensors, method == protocol::CHANGES) {
                Ok(push) => self.push(from, reply, push),
                Err(error) => reply.error(error),
            },
            protocol::PULL => {
                let read = protocol::read_pull(args);
                let found = read.and_then(|(key, want, may_share)| Ok((self.inner.pull(&key, &want)?, may_share)));
                match found {
                    Ok((found, may_share)) => answer(reply, found, may_share),
                    Err(error) => reply.error(error),
                }
            }
            protocol::WATCH => {
                if let Err((reply, error)) = self.watch(from, reply, args) {
                    reply.error(error);
                }
            }
            method => reply.send(self.ask(from, method, args).map(|value| (value, Parts::new()))),
        }
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }

    fn callers(&self, _: &str) -> Callers {
        if self.inner.settings.has_guests { Callers::MembersAndGuests } else { Callers::Members }
    }

    fn lost(&self, member: &Member, error: &Error) {
        self.inner.lose(member.node, error);
    }

    fn guest_lost(&self, guest: &AttachedGuest, error: &Error) {
        self.inner.lose(guest.node, error);
    }

    fn awaited(&self, from: NodeId, number: u64) -> Option<String> {
        let is_it = |owner: NodeId, waits: &Waits| match waits {
            Waits::There { reply, .. } => owner == from && reply.number() == number,
            Waits::Here(..) => false,
        };
        self.inner.with(|state| {
            let key = state.table.watched(is_it)?.clone();
            Some(format!("a push: {}", state.table.describe(&key)))
        })
    }
}

impl Drop for VersionsService {
    fn drop(&mut self) {
        let own = self.number;
        let is_own = |waits: &Waits| matches!(waits, Waits::There { service, .. } if *service == own);
        let watches = self.inner.with(|state| state.table.unwatch_where(is_own));
        for waits in watches {
            let error = Error::new(ErrorKind::Closed, "the service of these versions was taken away");
            waits.fail(error.hint("find the one that has its key now"));
        }
    }
}
