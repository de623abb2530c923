//! The client's side of versioned objects.
//!
//! A watch or a pin whose call ends here before it is answered, by its deadline or because it was cancelled, may be at
//! the server or on its way there. So its number is told to the server once more, behind the call itself, and nothing
//! of it stays.

use super::contents::{Entry, Pulled};
use super::protocol::{self, unreadable};
use super::service::{Inner, NUMBERS};
use super::table::Owned;
use super::{Pushed, Versions, VersionsReport, Wanted};
use crate::entry::{EntryName, Sort};
use crate::group::RpcGroup;
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_mesh::{Answer, Call, Guest, Mesh, ServiceName, WeakMesh};
use sheave_net::Parts;
use sheave_tensor::Mode;
use sheave_wire::Value;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Names of services of clients in the process of a table.
const TABLES: &str = "sheave.versions";

/// A table of versioned objects that another node serves, or this one. Clones are handles to the same.
///
/// It stands for the table that it was made for: when its server is gone, works fail with `PeerLost`, and a table that
/// is registered later under the same key is found by [`RpcGroup::versions`] anew. No method blocks. A work fails with
/// `DeadlineExceeded` after the [timeout](VersionsClient::with_timeout), and with `Cancelled` when it is cancelled; a
/// push may have been accepted then, and is answered with
/// [`AlreadyExists`](super::PushOutcome::AlreadyExists) when it is made again.
///
/// ```
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
/// use sheave_rpc::{Entry, Rpc, Versions, VersionsSettings, Wanted};
/// use sheave_tensor::Mode;
/// use sheave_wire::Value;
/// use std::collections::BTreeMap;
///
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let root = Endpoint { host: "127.0.0.1".into(), port };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let group = Rpc::serve(&mesh)?.create_group("training", &[mesh.me().node], None).wait()?;
/// let settings = VersionsSettings { depth: 2, ..VersionsSettings::default() };
/// group.register("models", Versions::new(&mesh, settings)?.service(), None)?.wait()?;
///
/// let models = group.versions("models", None)?.wait()?;
/// let map = |entries: &[(&str, i64)]| {
///     Entry::of(entries.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect::<BTreeMap<_, _>>())
/// };
/// models.push("policy", map(&[("layers", 3), ("steps", 0)]), 0_i64, None)?.wait()?;
/// let watch = models.watch("policy", Some(Value::Int(0)), Mode::Copy)?;
/// models.push_changes("policy", map(&[("steps", 100)]), &[], 1_i64, 0_i64)?.wait()?;
/// assert_eq!(watch.wait()?.version, Value::Int(1));
/// let unchanged = models.pull("policy", Wanted::NewerThan(Value::Int(1)), Mode::Copy)?.wait()?;
/// assert!(unchanged.expect("it is there").is_unchanged());
/// assert_eq!(models.versions("policy")?.wait()?, [Value::Int(0), Value::Int(1)]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct VersionsClient {
    mesh: WeakMesh,
    server: NodeId,
    service: ServiceName,
    group: Arc<str>,
    timeout: Option<Duration>,
    /// The service of this client alone.
    _own: Option<Arc<Own>>,
}

/// A service that is there for the clients that [`Versions::client`] has made, and goes with the last of them.
struct Own {
    mesh: WeakMesh,
    name: String,
}

impl Drop for Own {
    fn drop(&mut self) {
        self.mesh.upgrade().iter().for_each(|mesh| mesh.serve_no_more(&self.name));
    }
}

impl Versions {
    /// Returns a client in the process of the table, which is in no group. What it does is what others do over a group,
    /// with timeouts and in one order with their calls.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_base::config::Endpoint;
    /// use sheave_rpc::{Entry, Versions, VersionsSettings};
    ///
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// let client = Versions::new(&mesh, VersionsSettings::default())?.client()?;
    /// assert!(client.push("policy", Entry::of("first"), 1_i64, None)?.wait()?.is_accepted());
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Closed` once the node has left, `LimitExceeded` for more services than a node has.
    pub fn client(&self) -> Result<VersionsClient> {
        let mesh = self.mesh()?;
        let name = format!("{TABLES}.{}", mesh.next_number(TABLES));
        mesh.serve(&name, self.service()).map_err(|error| error.operation("make a client of versions"))?;
        let (server, service) = (mesh.me().node, name.clone().into());
        let mesh = mesh.downgrade();
        let _own = Some(Arc::new(Own { mesh: mesh.clone(), name }));
        Ok(VersionsClient { mesh, server, service, group: "(this process)".into(), timeout: None, _own })
    }
}

impl RpcGroup {
    /// Finds the table of versioned objects that a member has registered under this key. The work fails as that of
    /// [`RpcGroup::find`]. Does not block.
    ///
    /// # Errors
    ///
    /// As [`RpcGroup::find`].
    pub fn versions(&self, key: impl Into<Value>, timeout: Option<Duration>) -> Result<Work<VersionsClient>> {
        let (mesh, group) = (self.mesh()?.downgrade(), Arc::<str>::from(self.name()));
        let client =
            move |(server, service)| Ok(VersionsClient { mesh, server, service, group, timeout: None, _own: None });
        Ok(self.find(key, timeout)?.map(client))
    }
}

impl VersionsClient {
    /// Returns the client of a guest, for the table that its host has registered in this group under this key. Asks
    /// nobody.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for what is no key.
    pub fn of_host(guest: &Guest, group: &str, key: impl Into<Value>) -> Result<Self> {
        let service = EntryName::new(Sort::Service, &key.into())?.service(group);
        let (mesh, server) = (guest.mesh().downgrade(), guest.host().node.unwrap_or_default());
        Ok(Self { mesh, server, service, group: group.into(), timeout: None, _own: None })
    }

    /// Returns the same client, whose works end with `DeadlineExceeded` after this time. Without one they may take as
    /// long as the server lives.
    #[must_use]
    pub fn with_timeout(self, timeout: Option<Duration>) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the node that serves the table.
    #[must_use]
    pub fn server(&self) -> NodeId {
        self.server
    }

    fn mesh(&self) -> Result<Mesh> {
        self.mesh.upgrade().ok_or_else(|| Error::new(ErrorKind::Closed, "the node has left"))
    }

    fn call<T: Clone + Send + 'static>(
        &self,
        operation: &'static str,
        (method, args, tensors): (&str, Value, Parts),
        read: impl FnOnce(Answer) -> Result<T> + Send + 'static,
    ) -> Result<Work<T>> {
        Ok(self.begin(operation, method, args, tensors)?.map(read))
    }

    fn begin(&self, operation: &'static str, method: &str, args: Value, tensors: Parts) -> Result<Work<Answer>> {
        let group = Arc::clone(&self.group);
        let named = move |error: Error| error.operation(operation).group(&*group);
        let call = Call { args, tensors, deadline: self.timeout, ..Call::default() };
        let called = self.mesh().and_then(|mesh| mesh.call(self.server, self.service.clone(), method, call));
        match called {
            Ok(work) => Ok(work.or_else(move |error| Err(named(error)))),
            Err(error) => Err(named(error)),
        }
    }

    /// Tells the server something of which nobody waits to hear.
    fn tell(&self, method: &str, args: Value) {
        // Without the server, or this node, there is nothing to be told.
        let told = self.mesh().and_then(|mesh| mesh.call(self.server, self.service.clone(), method, Call::of(args)));
        drop(told);
    }

    /// Pushes a value as this version of a key, made from the `previous` one; none is for a key that has no version.
    /// The tensors leave as the entry says: those that go by copy may be written as soon as this returns.
    ///
    /// # Errors
    ///
    /// `Closed` once this node has left; those of [`Mesh::call`]. The work fails with `LimitExceeded` for what does not
    /// fit even when all older versions that nobody has pinned are dropped, and nothing is dropped then; with
    /// `InvalidArgument` for what is no key, version or value; with `PeerLost` when the server is gone.
    pub fn push(
        &self,
        key: impl Into<Value>,
        entry: Entry,
        version: impl Into<Value>,
        previous: Option<Value>,
    ) -> Result<Work<Pushed>> {
        let args = protocol::push(key.into(), version.into(), previous, entry.value);
        self.call("push", (protocol::PUSH, args, entry.tensors), |answer| protocol::read_pushed(answer.value))
    }

    /// Pushes a version that is the `previous` one with these entries of its map replaced or added, and those of these
    /// names removed. It is accepted if the previous one is the newest.
    ///
    /// # Errors
    ///
    /// As [`VersionsClient::push`]; the work fails with `NotFound` for an entry to be removed that is not there, and
    /// by [`Rules::Machin`](super::Rules) for a key without a version, and with `InvalidArgument` where one of the two
    /// is no map.
    pub fn push_changes(
        &self,
        key: impl Into<Value>,
        changes: Entry,
        removed: &[&str],
        version: impl Into<Value>,
        previous: impl Into<Value>,
    ) -> Result<Work<Pushed>> {
        let names = (key.into(), version.into());
        let args = protocol::changes(names, previous.into(), changes.value, removed.iter().copied());
        self.call("push", (protocol::CHANGES, args, changes.tensors), |answer| protocol::read_pushed(answer.value))
    }

    /// Pulls a version; nothing if it is not there. By [`Mode::Share`] its tensors are the memory of the server where
    /// this node reaches that, which nobody may write; otherwise, and over TCP, they are copies of this node's own.
    ///
    /// # Errors
    ///
    /// `Closed` once this node has left; those of [`Mesh::call`]. The work fails with `InvalidArgument` for what is no
    /// key or version, and with `PeerLost` when the server is gone.
    pub fn pull(&self, key: impl Into<Value>, wanted: Wanted, mode: Mode) -> Result<Work<Option<Pulled>>> {
        let args = protocol::pull(key.into(), wanted, mode == Mode::Share);
        self.call("pull", (protocol::PULL, args, Parts::new()), |answer| {
            protocol::read_found(answer.value, answer.tensors)
        })
    }

    /// Waits for another version of a key than the one that the caller has, or for any if it has none; a key may be
    /// watched before it is there. The work ends at once if the newest is another one. What moves is as with
    /// [`Wanted::NewerThan`].
    ///
    /// # Errors
    ///
    /// As [`VersionsClient::pull`]; the work fails with `Closed` when the service is taken away, and with
    /// `LimitExceeded` for more watches than a table has.
    pub fn watch(&self, key: impl Into<Value>, newer_than: Option<Value>, mode: Mode) -> Result<Work<Pulled>> {
        let (key, number) = (key.into(), self.number()?);
        let may_share = Value::Bool(mode == Mode::Share);
        let args = Value::List(vec![number.clone(), key.clone(), protocol::optional(newer_than), may_share]);
        let work = self.begin("watch", protocol::WATCH, args, Parts::new())?;
        self.takes_back(&work, protocol::UNWATCH, Value::List(vec![number, key]));
        Ok(work.map(|answer| {
            protocol::read_found(answer.value, answer.tensors).and_then(|pulled| pulled.ok_or_else(unreadable))
        }))
    }

    /// Keeps a version, or the newest one, while somebody reads it: it is dropped neither for the depth nor for bytes,
    /// and not overwritten, until the pin ends. That is when its last handle is dropped or it is
    /// [released](Pin::release), when the lease is over, or when this node is gone. The work ends with nothing if the
    /// version is not there.
    ///
    /// # Errors
    ///
    /// As [`VersionsClient::pull`]; the work fails with `InvalidArgument` for a lease of no time or more than
    /// [`VERSIONS_LEASE_MAX`](sheave_base::limits::VERSIONS_LEASE_MAX), and with `LimitExceeded` for more pins than a
    /// table has.
    pub fn pin(&self, key: impl Into<Value>, version: Option<Value>, lease: Duration) -> Result<Work<Option<Pin>>> {
        let number = self.number()?;
        let lease_ns = i64::try_from(lease.as_nanos()).unwrap_or(i64::MAX);
        let version = protocol::optional(version);
        let args = Value::List(vec![number.clone(), key.into(), version, Value::Int(lease_ns)]);
        let work = self.begin("pin", protocol::PIN, args, Parts::new())?;
        self.takes_back(&work, protocol::RELEASE, number.clone());
        let client = self.clone();
        Ok(work.map(move |answer| {
            let version = protocol::read_optional(answer.value)?;
            Ok(version.map(|version| Pin::there(version, client, number)))
        }))
    }

    fn number(&self) -> Result<Value> {
        Ok(Value::Int(self.mesh()?.next_number(NUMBERS).into()))
    }

    /// Takes back what a call has asked for, if that ends here and not by its answer.
    fn takes_back(&self, work: &Work<Answer>, method: &'static str, args: Value) {
        let client = self.clone();
        work.on_complete(move |outcome| {
            let is_ours = |error: &Error| matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::DeadlineExceeded);
            if outcome.as_ref().is_err_and(is_ours) {
                client.tell(method, args);
            }
        });
    }

    /// Returns the versions of a key, the newest last.
    ///
    /// # Errors
    ///
    /// As [`VersionsClient::pull`].
    pub fn versions(&self, key: impl Into<Value>) -> Result<Work<Vec<Value>>> {
        self.call("versions", (protocol::VERSIONS, key.into(), Parts::new()), |answer| match answer.value {
            Value::List(versions) => Ok(versions),
            _ => Err(unreadable()),
        })
    }

    /// Drops a key with all its versions, pinned or not; the work says whether it was there. Watches of it go on.
    ///
    /// # Errors
    ///
    /// As [`VersionsClient::pull`].
    pub fn remove(&self, key: impl Into<Value>) -> Result<Work<bool>> {
        let read = |answer: Answer| protocol::truth(&answer.value);
        self.call("remove", (protocol::REMOVE, key.into(), Parts::new()), read)
    }

    /// Returns what the table has, and has done.
    ///
    /// # Errors
    ///
    /// As [`VersionsClient::pull`].
    pub fn report(&self) -> Result<Work<VersionsReport>> {
        let read = |answer: Answer| protocol::read_report(answer.value);
        self.call("report", (protocol::REPORT, Value::None, Parts::new()), read)
    }
}

impl fmt::Debug for VersionsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut written = f.debug_struct("VersionsClient");
        written.field("server", &self.server).field("group", &self.group).finish_non_exhaustive()
    }
}

/// A version that is kept while somebody reads it. Clones are handles to the same pin, which ends with the last one.
///
/// ```
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
/// use sheave_rpc::{Entry, Versions, VersionsSettings, Wanted};
/// use sheave_tensor::Mode;
/// use sheave_wire::Value;
/// use std::time::Duration;
///
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let root = Endpoint { host: "127.0.0.1".into(), port };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let versions = Versions::new(&mesh, VersionsSettings::default())?;
/// versions.push("w", Entry::of(0.5), "a", None)?;
/// let pin = versions.pin("w", None, Duration::from_secs(60))?.expect("it has a version");
/// versions.push("w", Entry::of(1.5), "b", Some("a".into()))?;
/// assert!(versions.pull("w", Wanted::Version(pin.version().clone()), Mode::Copy)?.is_some());
/// drop(pin);
/// assert_eq!(versions.versions("w")?, [Value::from("b")]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct Pin(Arc<Held>);

enum Holder {
    Here(Weak<Inner>, Owned),
    There(VersionsClient, Value),
}

struct Held {
    version: Value,
    holder: Holder,
    is_released: AtomicBool,
}

impl Pin {
    pub(super) fn here(version: Value, inner: Weak<Inner>, owned: Owned) -> Self {
        Self::of(version, Holder::Here(inner, owned))
    }

    fn there(version: Value, client: VersionsClient, number: Value) -> Self {
        Self::of(version, Holder::There(client, number))
    }

    fn of(version: Value, holder: Holder) -> Self {
        Self(Arc::new(Held { version, holder, is_released: AtomicBool::new(false) }))
    }

    /// Returns the version that it keeps.
    #[must_use]
    pub fn version(&self) -> &Value {
        &self.0.version
    }

    /// Ends the pin. The work says whether it was there: false if its lease was over, or it was released before. Does
    /// not block; to drop the pin does the same, and tells nobody.
    ///
    /// # Errors
    ///
    /// As [`VersionsClient::pull`].
    pub fn release(&self) -> Result<Work<bool>> {
        let was_released = self.0.is_released.swap(true, SeqCst);
        match &self.0.holder {
            _ if was_released => Ok(Work::ready("release", Ok(false))),
            Holder::Here(inner, owned) => {
                let was_there = inner.upgrade().is_some_and(|inner| inner.unpin(*owned));
                Ok(Work::ready("release", Ok(was_there)))
            }
            Holder::There(client, number) => {
                let read = |answer: Answer| protocol::truth(&answer.value);
                client.call("release", (protocol::RELEASE, number.clone(), Parts::new()), read)
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if *self.is_released.get_mut() {
            return;
        }
        match &self.holder {
            Holder::Here(inner, owned) => {
                let _ = inner.upgrade().map(|inner| inner.unpin(*owned));
            }
            Holder::There(client, number) => client.tell(protocol::RELEASE, number.clone()),
        }
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("version", &self.0.version).finish_non_exhaustive()
    }
}
