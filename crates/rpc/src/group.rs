//! Handles of groups.

use crate::directory::{Directory, Rpc};
use crate::entry::{EntryName, GroupName, Sort};
use crate::search::Sought;
use crate::state::Own;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sheave_base::collections::{HashMap, HashSet};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_mesh::{Answer, Call, Mesh, Ref, Service, ServiceName};
use sheave_wire::Value;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// A group that another node has told of: its name, its generation and its members. It is what a handle is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupHandle {
    /// The name of the group.
    pub name: String,
    /// The number that its members have agreed on.
    pub generation: u64,
    /// Its members in the order of their ranks, those who are gone included.
    pub members: Vec<NodeId>,
}

/// A group of members, found by its name, in which services and values are found by key. Clones are handles to the
/// same.
///
/// Members register and pair; every node that has a handle looks up and calls. Keys are plain values: two are the same
/// if they are written alike, so that `1`, `1.0` and `true` are three. A work of a group may wait for as long as its
/// members live; each takes a deadline, after which it fails with `DeadlineExceeded`. What is registered or paired
/// stays until it is taken away, until its owner leaves the group or dies, and so does the owner's membership:
/// dropping a handle changes nothing.
#[derive(Clone)]
pub struct RpcGroup {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) directory: Arc<Directory>,
    pub(crate) group: GroupName,
    /// In the order of their ranks.
    pub(crate) members: Arc<[NodeId]>,
    /// Members that have left the group, as far as this handle knows.
    pub(crate) left: Mutex<HashSet<NodeId>>,
    /// Owners of what was found, and the names that they serve services under.
    owners: Mutex<HashMap<EntryName, (NodeId, Option<ServiceName>)>>,
}

impl Rpc {
    /// Returns the group of this name that this node is in.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<RpcGroup> {
        let found = {
            let state = self.directory.state.lock();
            state.groups.get(name).map(|group| (group.group.clone(), Arc::clone(&group.members)))
        };
        found.map(|(group, members)| RpcGroup::new(self, group, members))
    }

    /// Returns a handle to a group that another node has told of. Asks nobody.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` where its members are not all members of the mesh.
    pub fn open(&self, handle: &GroupHandle) -> Result<RpcGroup> {
        let mesh = self.directory.mesh()?;
        let is_foreign = handle.members.iter().any(|node| mesh.member(*node).is_none());
        let Some(first) = handle.members.first().copied().filter(|_| !is_foreign) else {
            let what = format!("a handle of group \"{}\" with members that are none of this mesh", handle.name);
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("open group"));
        };
        let group = GroupName { name: handle.name.clone(), first, generation: handle.generation };
        Ok(RpcGroup::new(self, group, handle.members.as_slice().into()))
    }
}

impl RpcGroup {
    pub(crate) fn new(rpc: &Rpc, group: GroupName, members: Arc<[NodeId]>) -> Self {
        let (left, owners) = Default::default();
        Self { shared: Arc::new(Shared { directory: Arc::clone(&rpc.directory), group, members, left, owners }) }
    }

    /// Returns the name of the group.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.group.name
    }

    /// Returns the number that its members have agreed on when they made it.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.shared.group.generation
    }

    /// Returns the members in the order of their ranks, those who are gone included.
    #[must_use]
    pub fn members(&self) -> &[NodeId] {
        &self.shared.members
    }

    /// Returns whether this node is in the group.
    #[must_use]
    pub fn is_member(&self) -> bool {
        self.shared.directory.state.lock().group(&self.shared.group).is_some()
    }

    /// Returns what other nodes need to [open](Rpc::open) the group.
    #[must_use]
    pub fn handle(&self) -> GroupHandle {
        let GroupName { name, generation, .. } = self.shared.group.clone();
        GroupHandle { name, generation, members: self.shared.members.to_vec() }
    }

    pub(crate) fn mesh(&self) -> Result<Mesh> {
        self.shared.directory.mesh()
    }

    fn named<T>(&self, operation: &'static str, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| error.operation(operation).group(self.name()))
    }

    /// Lets all who have the group call `service` under this key, on its own lane. The work ends when the key is this
    /// node's, and then everybody finds it. Does not block.
    ///
    /// # Errors
    ///
    /// `NotPermitted` where this node is not in the group; `AlreadyExists` for a key that this node has, and as the
    /// work's error for one that another member has; `InvalidArgument` for what is no key; `LimitExceeded` for more
    /// than [`RPC_ENTRIES_MAX`](sheave_base::limits::RPC_ENTRIES_MAX) entries.
    pub fn register(
        &self,
        key: impl Into<Value>,
        service: impl Service,
        timeout: Option<Duration>,
    ) -> Result<Work<()>> {
        self.named("register", self.add_service(&key.into(), service, timeout))
    }

    fn add_service(&self, key: &Value, service: impl Service, timeout: Option<Duration>) -> Result<Work<()>> {
        let entry = EntryName::new(Sort::Service, key)?;
        let mesh = self.mesh()?;
        let number = self.own(&entry, None)?;
        if let Err(error) = mesh.serve(entry.service(self.name()).as_str(), service) {
            let mut state = self.shared.directory.state.lock();
            drop(state.group(&self.shared.group).and_then(|group| group.disown(&entry, |own| own.number == number)));
            return Err(error);
        }
        self.announce("register", entry, number, timeout)
    }

    /// Notes that this node has an entry, and returns its number.
    fn own(&self, entry: &EntryName, value: Option<Ref>) -> Result<u64> {
        let mut state = self.shared.directory.state.lock();
        let group = state.group(&self.shared.group).ok_or_else(|| self.shared.destroyed())?;
        if group.is_full() {
            let what = format!("{} entries of this node", sheave_base::limits::RPC_ENTRIES_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("take away those that are not used"));
        }
        let owned = group.own(entry.clone(), value);
        // Not under it: an object whose last handle is refused may do anything when it is dropped.
        drop(state);
        owned.map_err(|_| {
            let what = format!("this node has {entry} already");
            Error::new(ErrorKind::AlreadyExists, what).hint("choose another key, or take it away first")
        })
    }

    /// Has an entry granted, or takes it away again.
    fn announce(
        &self,
        operation: &'static str,
        entry: EntryName,
        number: u64,
        timeout: Option<Duration>,
    ) -> Result<Work<()>> {
        let about = entry.to_string();
        let mut owned = Owned { shared: Arc::clone(&self.shared), entry, number, is_granted: false };
        self.shared.run(operation, timeout, about, |shared, mesh| async move {
            let outcome = shared.announce(&mesh, &owned.entry, number).await;
            owned.end(outcome.is_ok());
            outcome
        })
    }

    /// Lets nobody call the service of this key any more. Handlers that run go on. The work ends when nobody finds the
    /// key any more, and another member may have it. Does not block.
    ///
    /// # Errors
    ///
    /// `NotFound` where this node has no such service.
    pub fn deregister(&self, key: impl Into<Value>, timeout: Option<Duration>) -> Result<Work<()>> {
        self.named("deregister", self.remove("deregister", Sort::Service, &key.into(), timeout))
    }

    fn remove(&self, operation: &'static str, sort: Sort, key: &Value, timeout: Option<Duration>) -> Result<Work<()>> {
        let entry = EntryName::new(sort, key)?;
        let shared = &self.shared;
        // In one look: another thread may take it away too, and take it again.
        let Some((_, number)) = shared.directory.disown(&self.mesh()?, &shared.group, &entry, |own| own.is_granted)
        else {
            let unknown = || Error::new(ErrorKind::NotFound, format!("this node has no {entry}"));
            return Err(if self.is_member() { unknown() } else { shared.destroyed() });
        };
        shared.run(operation, timeout, entry.to_string(), move |shared, mesh| async move {
            shared.withdraw(&mesh, &entry, number).await
        })
    }

    /// Lets all who have the group get a reference to an object of this node under this key. The work ends when the key
    /// is this node's. Does not block.
    ///
    /// # Errors
    ///
    /// As [`RpcGroup::register`]; `InvalidArgument` for a reference to another node's object.
    pub fn pair(&self, key: impl Into<Value>, value: Ref, timeout: Option<Duration>) -> Result<Work<()>> {
        let add = || {
            let entry = EntryName::new(Sort::Value, &key.into())?;
            if value.owner() != self.mesh()?.me().node {
                let what = "a reference to an object of another node";
                return Err(
                    Error::new(ErrorKind::InvalidArgument, what).hint("pair it on the node that has the object")
                );
            }
            let number = self.own(&entry, Some(value))?;
            self.announce("pair", entry, number, timeout)
        };
        self.named("pair", add())
    }

    /// As [`RpcGroup::pair`], with an object that becomes one others can hold.
    ///
    /// # Errors
    ///
    /// As [`RpcGroup::pair`].
    pub fn pair_object(
        &self,
        key: impl Into<Value>,
        object: Arc<dyn Any + Send + Sync>,
        timeout: Option<Duration>,
    ) -> Result<Work<()>> {
        let value = self.named("pair", self.mesh().and_then(|mesh| mesh.export(object)))?;
        self.pair(key, value, timeout)
    }

    /// Lets nobody get the value of this key any more, as [`RpcGroup::deregister`] does with a service. It lives for as
    /// long as somebody has a reference to it.
    ///
    /// # Errors
    ///
    /// `NotFound` where this node has no such value.
    pub fn unpair(&self, key: impl Into<Value>, timeout: Option<Duration>) -> Result<Work<()>> {
        self.named("unpair", self.remove("unpair", Sort::Value, &key.into(), timeout))
    }

    /// Gets a reference to the value of this key. The work fails with `NotFound` where nobody has one; with `PeerLost`
    /// that names the member that died with it, as far as the index or this handle know, or if the index was lost
    /// meanwhile, which may have had it. Does not block.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for what is no key; `Closed` where this node has left the mesh.
    pub fn get_paired(&self, key: impl Into<Value>, timeout: Option<Duration>) -> Result<Work<Ref>> {
        let begin = || {
            let entry = EntryName::new(Sort::Value, &key.into())?;
            self.shared.run("get paired", timeout, entry.to_string(), move |shared, mesh| async move {
                shared.value(&mesh, &entry, timeout).await
            })
        };
        self.named("get paired", begin())
    }

    /// Returns whether somebody has registered a service under this key.
    ///
    /// # Errors
    ///
    /// As [`RpcGroup::get_paired`].
    pub fn is_registered(&self, key: impl Into<Value>, timeout: Option<Duration>) -> Result<Work<bool>> {
        self.has(Sort::Service, &key.into(), timeout)
    }

    /// Returns whether somebody has paired a value under this key.
    ///
    /// # Errors
    ///
    /// As [`RpcGroup::get_paired`].
    pub fn is_paired(&self, key: impl Into<Value>, timeout: Option<Duration>) -> Result<Work<bool>> {
        self.has(Sort::Value, &key.into(), timeout)
    }

    fn has(&self, sort: Sort, key: &Value, timeout: Option<Duration>) -> Result<Work<bool>> {
        let begin = || {
            let entry = EntryName::new(sort, key)?;
            self.shared.run("look up", timeout, entry.to_string(), move |shared, mesh| async move {
                Ok(matches!(shared.find(&mesh, &entry).await?, Sought::Owner(_)))
            })
        };
        self.named("look up", begin())
    }

    /// Finds the member that has registered a service under this key, and the name by which the mesh calls it there.
    /// The work fails as that of [`RpcGroup::get_paired`].
    ///
    /// # Errors
    ///
    /// As [`RpcGroup::get_paired`].
    pub fn find(&self, key: impl Into<Value>, timeout: Option<Duration>) -> Result<Work<(NodeId, ServiceName)>> {
        let begin = || self.search(EntryName::new(Sort::Service, &key.into())?, timeout);
        self.named("look up", begin())
    }

    /// Returns whether this handle has found the service of this key before. It may have been taken away since.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for what is no key.
    pub fn has_found(&self, key: impl Into<Value>) -> Result<bool> {
        let entry = EntryName::new(Sort::Service, &key.into());
        Ok(self.shared.owner(&self.named("look up", entry)?).is_some())
    }

    fn search(&self, entry: EntryName, timeout: Option<Duration>) -> Result<Work<(NodeId, ServiceName)>> {
        let about = entry.to_string();
        self.shared.run("look up", timeout, about, move |shared, mesh| async move {
            let owner = shared.owner_of(&mesh, &entry).await?;
            let service = entry.service(&shared.group.name);
            shared.remember(entry, owner, Some(service.clone()));
            Ok((owner, service))
        })
    }

    /// Calls a method of the service of this key; as [`Mesh::call`] in everything else. The work fails with `NotFound`
    /// where nobody has registered it, and with `PeerLost` that names who died with it. Does not block, but for a call
    /// with tensors or references to a service that this handle has not found before: it waits until that is found,
    /// because the caller may change them afterwards.
    ///
    /// # Errors
    ///
    /// As [`Mesh::call`]; `InvalidArgument` for what is no key.
    pub fn call(&self, key: impl Into<Value>, method: &str, call: impl Into<Call>) -> Result<Work<Answer>> {
        self.named("call", self.begin_call(&key.into(), method, call.into()))
    }

    fn begin_call(&self, key: &Value, method: &str, call: Call) -> Result<Work<Answer>> {
        let entry = EntryName::new(Sort::Service, key)?;
        let mesh = self.mesh()?;
        if !is_plain(&call) {
            // One that is remembered may have been taken away, and such a call cannot be made again.
            let (owner, service) = self.search(entry, call.deadline)?.wait()?;
            return mesh.call(owner, service, method, call);
        }
        let (args, deadline) = (call.args.clone(), call.deadline);
        let known = self.shared.served(&entry);
        let first = match known {
            None => None,
            Some((owner, service)) => match mesh.call(owner, service, method, call) {
                Ok(work) => Some(work),
                // It has moved, or its owner is gone.
                Err(error) if error.has_not_begun() || error.kind() == ErrorKind::PeerLost => None,
                Err(error) => return Err(error),
            },
        };
        let Some(first) = first else { return self.call_found(entry, method, args, deadline) };
        let (group, method) = (self.clone(), method.to_owned());
        Ok(first.or_else(move |error| {
            if !error.has_not_begun() {
                return Err(error);
            }
            // Who has died with it is to be told of.
            if error.kind() != ErrorKind::PeerLost {
                group.shared.forget(&entry);
            }
            group.call_found(entry, &method, args, deadline)
        }))
    }

    /// Looks a service up and calls it.
    fn call_found(
        &self,
        entry: EntryName,
        method: &str,
        args: Value,
        deadline: Option<Duration>,
    ) -> Result<Work<Answer>> {
        let (group, method) = (self.clone(), method.to_owned());
        let found = self.search(entry, deadline)?;
        Ok(found.then(move |(owner, service)| {
            group.mesh()?.call(owner, service, &method, Call { args, deadline, ..Call::default() })
        }))
    }

    /// Waits until every member of the group has come here as often as this one. The work fails with `PeerLost` when
    /// one dies, and after `timeout` with `DeadlineExceeded`; then this barrier and all later ones of the group fail
    /// everywhere. Does not block.
    ///
    /// # Errors
    ///
    /// `NotPermitted` where this node is not in the group.
    pub fn barrier(&self, timeout: Option<Duration>) -> Result<Work<()>> {
        let barriers = {
            let mut state = self.shared.directory.state.lock();
            state.group(&self.shared.group).map(|group| group.barriers.clone())
        };
        let barriers = barriers.flatten().ok_or_else(|| self.shared.destroyed());
        self.named("barrier", barriers.map(|group| group.begin_barrier(timeout)))
    }

    /// Takes this node out of the group, with all that it has registered and paired there; the other members go on. The
    /// name is free on this node at once. Idempotent.
    pub fn destroy(&self) {
        self.shared.directory.destroy(&self.shared.group);
    }
}

impl std::fmt::Debug for RpcGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RpcGroup").field("handle", &self.handle()).finish_non_exhaustive()
    }
}

/// Whether nothing of a call is anybody else's meanwhile, so that it can be made again.
fn is_plain(call: &Call) -> bool {
    let has_ref = call.args.try_visit(&mut |value| match value {
        Value::Ref { .. } => Err(()),
        _ => Ok(()),
    });
    call.tensors.is_empty() && call.places.is_empty() && has_ref.is_ok()
}

impl Shared {
    /// The owner of an entry when this handle has found it.
    pub(crate) fn owner(&self, entry: &EntryName) -> Option<NodeId> {
        self.owners.lock().get(entry).map(|(owner, _)| *owner)
    }

    /// As [`Shared::owner`], and the name that it has served the entry under.
    fn served(&self, entry: &EntryName) -> Option<(NodeId, ServiceName)> {
        let (owner, service) = self.owners.lock().get(entry)?.clone();
        Some((owner, service?))
    }

    pub(crate) fn remember(&self, entry: EntryName, owner: NodeId, service: Option<ServiceName>) {
        let mut owners = self.owners.lock();
        if owners.len() >= sheave_base::limits::RPC_ENTRIES_MAX {
            owners.clear();
        }
        owners.insert(entry, (owner, service));
    }

    fn forget(&self, entry: &EntryName) {
        self.owners.lock().remove(entry);
    }
}

/// An entry that is taken away again unless it is granted.
struct Owned {
    shared: Arc<Shared>,
    entry: EntryName,
    number: u64,
    is_granted: bool,
}

impl Owned {
    fn end(&mut self, is_granted: bool) {
        self.is_granted = is_granted;
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let directory = &self.shared.directory;
        let (false, Ok(mesh)) = (self.is_granted, directory.mesh()) else { return };
        let is_it = |own: &Own| own.number == self.number;
        if let Some((index, number)) = directory.disown(&mesh, &self.shared.group, &self.entry, is_it) {
            directory.withdraw_from(&mesh, index, &self.shared.group, (self.entry.clone(), number));
        }
    }
}
