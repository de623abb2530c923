//! A node's part in all groups: its state, and the service by which the parts of nodes talk to each other.

use crate::creation::Creating;
use crate::entry::{EntryName, GroupName, Sort};
use crate::protocol::{
    Abandon, Announce, Announced, Enter, Find, Found, Leave, OfEntry, Ownership, Paired, Report, SERVICE, Withdraw,
};
use crate::search::death_of;
use crate::state::{GroupState, Own};
use parking_lot::Mutex;
use sheave_base::collections::HashMap;
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_mesh::{Group, Lane, Member, Mesh, Method, Methods, TypedRequest, TypedService, WeakMesh};
use sheave_net::Parts;
use std::sync::Arc;

/// A node's part in remote procedure calls. Clones are handles to the same.
///
/// ```
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
/// use sheave_mesh::{Call, Request};
/// use sheave_rpc::Rpc;
/// use sheave_wire::Value;
///
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let root = Endpoint { host: "127.0.0.1".into(), port };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let group = Rpc::serve(&mesh)?.create_group("actors", &[mesh.me().node], None).wait()?;
/// group.register("greet", |request: Request| request.reply.value("hello"), None)?.wait()?;
/// assert_eq!(group.call("greet", "", Call::default())?.wait()?.value, Value::from("hello"));
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct Rpc {
    pub(crate) directory: Arc<Directory>,
}

impl Rpc {
    /// Lets this node make groups, and be a member of them. Once for each mesh.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` where this was called before.
    pub fn serve(mesh: &Mesh) -> Result<Self> {
        let state = Mutex::new(State::default());
        let directory = Arc::new(Directory { mesh: mesh.downgrade(), me: mesh.me().node, state });
        mesh.serve_typed(Arc::clone(&directory))?;
        Ok(Self { directory })
    }
}

impl std::fmt::Debug for Rpc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rpc").field("node", &self.directory.me).finish_non_exhaustive()
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) groups: HashMap<String, GroupState>,
    /// Groups of which this node is the first member, while not all members have entered.
    pub(crate) creating: HashMap<String, Creating>,
    /// Groups that this node is entering.
    pub(crate) entering: HashMap<String, Attempt>,
    /// The highest generation that this node has proposed or was in.
    pub(crate) last_generation: u64,
    /// The highest generation that this node has given to a group, as its first member.
    pub(crate) last_made: u64,
}

/// A group that a node is entering.
pub(crate) struct Attempt {
    pub(crate) first: NodeId,
    /// It gets no lower generation than this.
    pub(crate) lowest: u64,
    /// Members that have left it again before this node knew that it was made, and its generation.
    left: HashMap<NodeId, u64>,
}

impl Attempt {
    pub(crate) fn new(first: NodeId, lowest: u64) -> Self {
        Self { first, lowest, left: HashMap::default() }
    }
}

impl State {
    /// The group, if this node is in it.
    pub(crate) fn group(&mut self, group: &GroupName) -> Option<&mut GroupState> {
        self.groups.get_mut(&group.name).filter(|state| state.group == *group)
    }

    /// The attempt by which this node may yet be in a group of this name and generation.
    fn attempt(&mut self, group: &GroupName) -> Option<&mut Attempt> {
        if self.groups.contains_key(&group.name) {
            return None;
        }
        let attempt = self.entering.get_mut(&group.name)?;
        (attempt.first == group.first && attempt.lowest <= group.generation).then_some(attempt)
    }
}

pub(crate) struct Directory {
    mesh: WeakMesh,
    pub(crate) me: NodeId,
    pub(crate) state: Mutex<State>,
}

impl Directory {
    pub(crate) fn mesh(&self) -> Result<Mesh> {
        self.mesh.upgrade().ok_or_else(|| Error::new(ErrorKind::Closed, "this node has left the mesh"))
    }

    /// Looks at the group that a request is about. `otherwise` is the answer where this node is not in it: not yet, or
    /// not any more.
    fn with_group<T>(&self, group: &GroupName, otherwise: (T, T), act: impl FnOnce(&mut GroupState) -> T) -> T {
        let mut state = self.state.lock();
        let (not_now, gone) = otherwise;
        let may_enter = state.attempt(group).is_some();
        match state.group(group) {
            Some(group) => act(group),
            None if may_enter => not_now,
            None => gone,
        }
    }

    fn announce(&self, request: TypedRequest<Announce>) {
        let Ownership { group, entry, number } = request.args;
        let otherwise = (Announced::NotNow, Announced::Gone);
        let answer = self.with_group(&group, otherwise, |group| group.announce(request.from, entry, number));
        request.reply.ok(&answer);
    }

    fn withdraw(&self, request: TypedRequest<Withdraw>) {
        let Ownership { group, entry, number } = &request.args;
        let otherwise = (Announced::NotNow, Announced::Gone);
        let answer = self.with_group(group, otherwise, |group| group.withdraw(request.from, entry, *number));
        request.reply.ok(&answer);
    }

    fn find(&self, request: TypedRequest<Find>) {
        let OfEntry { group, entry } = &request.args;
        let answer = self.with_group(group, (Found::NotNow, Found::Gone), |group| group.find(entry));
        request.reply.ok(&answer);
    }

    fn report(&self, request: TypedRequest<Report>) {
        let Report { group, entries, is_last } = request.args;
        let answer = self.with_group(&group, (Announced::NotNow, Announced::Gone), |group| {
            group.take_report(request.from, entries, is_last);
            Announced::Done
        });
        request.reply.ok(&answer);
    }

    fn leave(self: &Arc<Self>, request: TypedRequest<Leave>) {
        let Leave { group, member } = &request.args;
        let is_known = self.mesh().is_ok_and(|mesh| mesh.member(*member).is_some());
        let speaks = {
            let mut state = self.state.lock();
            // No more of them than the mesh has.
            if let Some(attempt) = state.attempt(group).filter(|_| is_known) {
                attempt.left.insert(*member, group.generation);
            }
            state.group(group).is_some_and(|group| group.members.contains(&request.from))
        };
        if speaks {
            self.lose(group, *member);
        }
        request.reply.ok(&());
    }

    fn paired(&self, request: TypedRequest<Paired>) {
        let OfEntry { group, entry } = &request.args;
        match self.with_group(group, (None, None), |group| group.value(entry)) {
            Some(value) => request.reply.with(&true, Parts::new(), &[value]),
            None => request.reply.ok(&false),
        }
    }

    /// Whether a member of the mesh has died: one that has left that or a group in order has not.
    pub(crate) fn is_dead(&self, member: NodeId) -> bool {
        self.mesh().is_ok_and(|mesh| death_of(&mesh, member).is_some()) || planted::strikes(Bug::LeaverBlamed)
    }

    /// A member of a group is gone from it.
    pub(crate) fn lose(self: &Arc<Self>, group: &GroupName, member: NodeId) {
        let is_dead = self.is_dead(member);
        let next = self.state.lock().group(group).and_then(|state| state.lose(member, is_dead));
        if let Some(index) = next {
            self.report_to(index, group);
        }
    }

    /// Takes this node out of a group, and tells the other members.
    pub(crate) fn destroy(&self, group: &GroupName) {
        let removed = {
            let mut state = self.state.lock();
            if state.group(group).is_none() {
                return;
            }
            state.groups.remove(&group.name)
        };
        let (Some(removed), Ok(mesh)) = (removed, self.mesh()) else { return };
        removed.services().for_each(|entry| mesh.serve_no_more(entry.service(&group.name).as_str()));
        for other in removed.others() {
            self.tell::<Leave>(&mesh, other, &Leave { group: group.clone(), member: self.me });
        }
    }

    /// Makes a call whose outcome changes nothing here.
    pub(crate) fn tell<M: Method>(&self, mesh: &Mesh, to: NodeId, args: &M::Args) {
        // A node that is gone needs no word.
        drop(mesh.ask::<M>(to, args));
    }

    /// Takes an entry of this node's away, if it is the one that is meant. Returns the index, which is to be told, and
    /// the number that the entry had.
    pub(crate) fn disown(
        &self,
        mesh: &Mesh,
        group: &GroupName,
        entry: &EntryName,
        is_meant: impl FnOnce(&Own) -> bool,
    ) -> Option<(NodeId, u64)> {
        let (own, index) = {
            let mut state = self.state.lock();
            let state = state.group(group)?;
            (state.disown(entry, is_meant)?, state.index())
        };
        let number = own.number;
        drop(own);
        if entry.sort == Sort::Service {
            mesh.serve_no_more(entry.service(&group.name).as_str());
        }
        Some((index, number))
    }

    pub(crate) fn withdraw_from(&self, mesh: &Mesh, index: NodeId, group: &GroupName, of: (EntryName, u64)) {
        let (entry, number) = of;
        self.tell::<Withdraw>(mesh, index, &Ownership { group: group.clone(), entry, number });
    }

    /// This node is in a group now.
    pub(crate) fn install(self: &Arc<Self>, mesh: &Mesh, group: &GroupName, members: &[NodeId], barriers: Group) {
        let mut gone: Vec<NodeId>;
        {
            let mut state = self.state.lock();
            let left = state.attempt(group).map(|attempt| std::mem::take(&mut attempt.left)).unwrap_or_default();
            gone = left.into_iter().filter(|(_, of)| *of == group.generation).map(|(member, _)| member).collect();
            state.last_generation = state.last_generation.max(group.generation);
            if state.group(group).is_some() {
                return;
            }
            let made = GroupState::new(group.clone(), members.into(), self.me, Some(barriers));
            state.groups.insert(group.name.clone(), made);
        }
        // Not before: who dies from now on finds the group, and who has died by now is among these.
        gone.extend(mesh.deaths().iter().map(|death| death.node));
        gone.into_iter().for_each(|member| self.lose(group, member));
    }
}

impl TypedService for Directory {
    const NAME: &'static str = SERVICE;

    fn methods(methods: Methods<Self>) -> Methods<Self> {
        methods
            .on::<Enter>(Self::enter)
            .on::<Abandon>(Self::abandon)
            .on::<Announce>(|directory, request| directory.announce(request))
            .on::<Withdraw>(|directory, request| directory.withdraw(request))
            .on::<Find>(|directory, request| directory.find(request))
            .on::<Report>(|directory, request| directory.report(request))
            .on::<Leave>(Self::leave)
            .on::<Paired>(|directory, request| directory.paired(request))
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }

    fn lost(self: &Arc<Self>, member: &Member, error: &Error) {
        self.end_creations(member.node, error);
        let groups: Vec<GroupName> = {
            let state = self.state.lock();
            let with_it = state.groups.values().filter(|group| group.has(member.node));
            with_it.map(|group| group.group.clone()).collect()
        };
        groups.iter().for_each(|group| self.lose(group, member.node));
    }

    fn awaited(&self, from: NodeId, number: u64) -> Option<String> {
        self.creation_awaits(from, number)
    }
}
