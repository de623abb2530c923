//! Groups in the making: members enter at the first of them, and all go on when all have entered.

use crate::directory::{Attempt, Directory, Rpc, State};
use crate::entry::GroupName;
use crate::group::RpcGroup;
use crate::protocol::{Abandon, Enter, Leave};
use sheave_base::planted::{self, Bug};
use sheave_base::work::Work;
use sheave_base::{Error, ErrorKind, NodeId, Result, limits};
use sheave_mesh::{CallOptions, Mesh, Timer, TypedReply, TypedRequest};
use std::sync::Arc;
use std::time::Duration;

const OPERATION: &str = "create group";

/// The first member ends the wait of the others at their deadline, and says who is missing. Where it is silent they end
/// it themselves, later by this.
const SILENCE: Duration = Duration::from_secs(1);

/// A group that not all of its members have entered.
pub(crate) struct Creating {
    members: Vec<NodeId>,
    generation: u64,
    entered: Vec<Entered>,
}

struct Entered {
    from: NodeId,
    /// The generation that it has proposed, by which its attempts differ.
    proposal: u64,
    reply: TypedReply<u64>,
    /// Ends its wait.
    timer: Option<Timer>,
}

impl Creating {
    fn missing(&self, mesh: &Mesh) -> String {
        let is_missing = |node: &&NodeId| !self.entered.iter().any(|entered| entered.from == **node);
        let names = self.members.iter().filter(is_missing).map(|node| name_of(mesh, *node));
        names.collect::<Vec<_>>().join(", ")
    }
}

fn name_of(mesh: &Mesh, node: NodeId) -> String {
    mesh.member(node).map_or_else(|| format!("{node:?}"), |member| member.introduction.name.clone())
}

fn names_of(mesh: &Mesh, nodes: &[NodeId]) -> String {
    nodes.iter().map(|node| name_of(mesh, *node)).collect::<Vec<_>>().join(", ")
}

impl Rpc {
    /// Makes the group of this name with these members, this node among them: the work ends when all of them have made
    /// it, with the same members in whatever order. Does not block.
    ///
    /// The work fails with `PeerLost` when a member dies or leaves meanwhile; with `DeadlineExceeded` after `timeout`,
    /// naming who is missing, and then this node is in no such group; with `Mismatch` where another one names other
    /// members; with `AlreadyExists` if this node is in a group of that name, or about to be; `InvalidArgument` for
    /// members that are none of the mesh, are named twice or do not have this node among them, or for a name of more
    /// than [`limits::RPC_KEY_BYTES_MAX`] bytes; and `LimitExceeded` for more than [`limits::RPC_GROUPS_MAX`] groups.
    #[must_use]
    pub fn create_group(&self, name: &str, members: &[NodeId], timeout: Option<Duration>) -> Work<RpcGroup> {
        let begun = self.begin(name, members, timeout);
        begun.unwrap_or_else(|error| Work::ready(OPERATION, Err(error.operation(OPERATION).group(name))))
    }

    fn begin(&self, name: &str, members: &[NodeId], timeout: Option<Duration>) -> Result<Work<RpcGroup>> {
        let mesh = self.directory.mesh()?;
        let members = sorted(&mesh, name, members)?;
        let first = members[0];
        let entering = Entering::begin(&self.directory, name, first)?;
        let proposal = entering.proposal;
        let args = Enter {
            name: name.to_owned(),
            members: members.clone(),
            generation: proposal,
            patience_ms: timeout.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        };
        let options = CallOptions { deadline: timeout.map(|span| span + SILENCE), ..CallOptions::default() };
        let entered = mesh.ask_with::<Enter>(first, &args, options)?;
        let (rpc, name) = (self.clone(), name.to_owned());
        // Installed by who ends the wait: what the first member sends behind its answer finds the group here.
        let made = entered.map(move |answer| {
            let mut entering = entering;
            let group = GroupName { name, first, generation: answer.value };
            let mesh = rpc.directory.mesh()?;
            rpc.directory.join(&mesh, &group, &members)?;
            entering.is_in = true;
            Ok(RpcGroup::new(&rpc, group, members.into()))
        });
        Ok(made)
    }
}

/// The members by their ranks.
fn sorted(mesh: &Mesh, name: &str, members: &[NodeId]) -> Result<Vec<NodeId>> {
    let invalid = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what));
    if name.len() > limits::RPC_KEY_BYTES_MAX {
        return invalid(format!("a name of {} bytes; the limit is {}", name.len(), limits::RPC_KEY_BYTES_MAX));
    }
    let mut sorted = Vec::with_capacity(members.len());
    for node in members {
        match mesh.member(*node) {
            Some(member) => sorted.push((member.rank, *node)),
            None => return invalid(format!("{node:?} is no member of the mesh")),
        }
    }
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return invalid(format!("{} is named twice", name_of(mesh, twice[0].1)));
    }
    let me = mesh.me().node;
    if !sorted.iter().any(|(_, node)| *node == me) {
        let named: Vec<NodeId> = sorted.iter().map(|(_, node)| *node).collect();
        return invalid(format!("{} is not among the members: {}", mesh.name(), names_of(mesh, &named)));
    }
    Ok(sorted.into_iter().map(|(_, node)| node).collect())
}

/// This node is entering a group. When it gives that up, by an error or because nobody waits, it says so.
struct Entering {
    directory: Arc<Directory>,
    name: String,
    proposal: u64,
    first: NodeId,
    is_in: bool,
}

impl Entering {
    fn begin(directory: &Arc<Directory>, name: &str, first: NodeId) -> Result<Self> {
        let mut state = directory.state.lock();
        let State { groups, entering, .. } = &*state;
        if groups.contains_key(name) || entering.contains_key(name) {
            let what = format!("this node is in a group \"{name}\" already");
            return Err(Error::new(ErrorKind::AlreadyExists, what).hint("destroy it first, or choose another name"));
        }
        if groups.len() + entering.len() >= limits::RPC_GROUPS_MAX {
            let what = format!("a node is in at most {} groups", limits::RPC_GROUPS_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("destroy those that are not used"));
        }
        // No two attempts of one node propose the same.
        state.last_generation += 1;
        let proposal = state.last_generation;
        state.entering.insert(name.to_owned(), Attempt::new(first, proposal));
        drop(state);
        Ok(Self { directory: Arc::clone(directory), name: name.to_owned(), proposal, first, is_in: false })
    }
}

impl Drop for Entering {
    fn drop(&mut self) {
        let told = match (self.is_in, self.directory.mesh()) {
            (false, Ok(mesh)) => {
                let args = Abandon { name: self.name.clone(), generation: self.proposal };
                // A first member that is gone needs no word.
                mesh.ask::<Abandon>(self.first, &args).ok()
            }
            _ => None,
        };
        // Not before: another thread may enter at once, and what it says is to come behind that.
        self.directory.state.lock().entering.remove(&self.name);
        let Some(told) = told else { return };
        let (directory, name, first) = (Arc::downgrade(&self.directory), self.name.clone(), self.first);
        told.on_complete(move |made| {
            let (Some(directory), Ok(made)) = (directory.upgrade(), made) else { return };
            // The group may have been made without this node, which is perhaps making the next one.
            let mut state = directory.state.lock();
            state.last_generation = state.last_generation.max(made.value);
            if let Some(attempt) = state.entering.get_mut(&name).filter(|next| next.first == first) {
                attempt.lowest = attempt.lowest.max(made.value + 1);
            }
        });
    }
}

impl State {
    /// Takes out an attempt to enter that waits for others.
    fn take_entered(&mut self, name: &str, is_it: impl Fn(&Entered) -> bool) -> Option<Entered> {
        let creating = self.creating.get_mut(name)?;
        let at = creating.entered.iter().position(is_it)?;
        let taken = creating.entered.swap_remove(at);
        if creating.entered.is_empty() {
            self.creating.remove(name);
        }
        Some(taken)
    }
}

impl Directory {
    /// This node is in a group that all have entered.
    fn join(self: &Arc<Self>, mesh: &Mesh, group: &GroupName, members: &[NodeId]) -> Result<()> {
        let label = format!("rpc {} {}", group.generation, group.name);
        let (barriers, _) = mesh.begin_group(&label, members)?;
        self.install(mesh, group, members, barriers);
        Ok(())
    }

    /// A member enters a group whose first member this node is.
    pub(crate) fn enter(self: &Arc<Self>, request: TypedRequest<Enter>) {
        let TypedRequest { from, args, reply, .. } = request;
        let Ok(mesh) = self.mesh() else { return };
        let is_first = args.members.first() == Some(&self.me) && args.members.contains(&from);
        if !is_first || args.members.iter().any(|node| mesh.member(*node).is_none()) {
            let what = format!("{} members that do not begin with {}", args.members.len(), mesh.name());
            return reply.error(Error::new(ErrorKind::Protocol, what));
        }
        if let Some(dead) = mesh.deaths().into_iter().find(|death| args.members.contains(&death.node)) {
            return reply.error(lost(&mesh, dead.node, &args.name));
        }
        let attempt = (from, args.generation);
        let patience = args.patience_ms.map(|patience_ms| (args.name.clone(), Duration::from_millis(patience_ms)));
        let entered = Entered { from, proposal: args.generation, reply, timer: None };
        let (before, next) = {
            let mut state = self.state.lock();
            let before = state.take_entered(&args.name, |other| other.from == from);
            (before, self.entered(&mut state, &mesh, args, entered))
        };
        // Who enters again has given up before. Not under the lock: who waits for an answer is told at once.
        if let Some(before) = before {
            before.reply.error(Error::new(ErrorKind::Cancelled, "the member enters again"));
        }
        match next {
            Next::Wait => {
                if let Some((name, patience)) = patience {
                    self.bound(&mesh, &name, attempt, patience);
                }
            }
            Next::Refuse(refused) => {
                refused.into_iter().for_each(|(entered, error)| entered.reply.error(error));
            }
            Next::Made(group, creating) => {
                // First here: who is answered may ask this node at once.
                let made = self.join(&mesh, &group, &creating.members);
                for entered in creating.entered {
                    entered.reply.send(made.clone().map(|()| group.generation));
                }
            }
        }
    }

    fn entered(&self, state: &mut State, mesh: &Mesh, args: Enter, entered: Entered) -> Next {
        state.last_generation = state.last_generation.max(args.generation);
        if !state.creating.contains_key(&args.name) && state.creating.len() >= limits::RPC_GROUPS_MAX {
            let what = format!("{} groups are in the making", limits::RPC_GROUPS_MAX);
            return Next::Refuse(vec![(entered, Error::new(ErrorKind::LimitExceeded, what))]);
        }
        let fresh = || Creating { members: args.members.clone(), generation: 0, entered: Vec::new() };
        let creating = state.creating.entry(args.name.clone()).or_insert_with(fresh);
        if creating.members != args.members {
            let waiting = state.creating.remove(&args.name);
            return Next::Refuse(mismatch(mesh, waiting, &args, entered));
        }
        creating.generation = match planted::strikes(Bug::GenerationOld) {
            true if !creating.entered.is_empty() => creating.generation.min(args.generation),
            _ => creating.generation.max(args.generation),
        };
        creating.entered.push(entered);
        let missing = creating.members.len() - creating.entered.len();
        if missing > usize::from(planted::strikes(Bug::EnteredEarly)) {
            return Next::Wait;
        }
        let Some(made) = state.creating.remove(&args.name) else { return Next::Wait };
        let is_old = planted::strikes(Bug::GenerationOld);
        let generation = if is_old { made.generation } else { made.generation.max(state.last_made + 1) };
        state.last_made = state.last_made.max(generation);
        Next::Made(GroupName { name: args.name, first: self.me, generation }, made)
    }

    /// Ends this attempt of a member at its deadline. The attempt is noted already: what ends it may come at once.
    fn bound(self: &Arc<Self>, mesh: &Mesh, name: &str, attempt: (NodeId, u64), patience: Duration) {
        let (directory, own) = (Arc::downgrade(self), name.to_owned());
        let runtime = mesh.runtime();
        let expire = move || {
            let Some(directory) = directory.upgrade() else { return };
            directory.give_up(&own, attempt, true);
        };
        // Without a timer the member ends its wait itself.
        let Ok(timer) = runtime.at(runtime.after(patience), expire) else { return };
        let unneeded = {
            let mut state = self.state.lock();
            let creating = state.creating.get_mut(name);
            let is_it = |entered: &&mut Entered| (entered.from, entered.proposal) == attempt;
            match creating.and_then(|creating| creating.entered.iter_mut().find(is_it)) {
                Some(entered) => entered.timer.replace(timer),
                None => Some(timer),
            }
        };
        drop(unneeded);
    }

    /// A member gives an attempt to enter up, by the number that it has proposed in it. It is told who was missing, if
    /// it is its time that is up.
    fn give_up(&self, name: &str, (from, proposal): (NodeId, u64), is_late: bool) -> bool {
        let Ok(mesh) = self.mesh() else { return false };
        let (gone, missing) = {
            let mut state = self.state.lock();
            let missing = state.creating.get(name).map(|creating| creating.missing(&mesh)).unwrap_or_default();
            let is_it = |entered: &Entered| entered.from == from && entered.proposal == proposal;
            let Some(gone) = state.take_entered(name, is_it) else { return false };
            (gone, missing)
        };
        if is_late {
            let error = Error::new(ErrorKind::DeadlineExceeded, format!("{missing} did not create it"));
            gone.reply.error(error.group(name).hint("create the group on all of its members, with the same name"));
        }
        true
    }

    /// A member that has given up is in no group: not in one that is in the making, and if it was made it has left it.
    pub(crate) fn abandon(self: &Arc<Self>, request: TypedRequest<Abandon>) {
        let Abandon { name, generation } = &request.args;
        if !self.give_up(name, (request.from, *generation), false) {
            let made = {
                let state = self.state.lock();
                let made = state.groups.get(name).filter(|group| group.group.generation >= *generation);
                made.filter(|group| group.has(request.from)).map(|group| {
                    (group.group.clone(), group.others().filter(|other| *other != request.from).collect::<Vec<_>>())
                })
            };
            if let (Some((group, others)), Ok(mesh)) = (made, self.mesh()) {
                self.lose(&group, request.from);
                for other in others {
                    let args = Leave { group: group.clone(), member: request.from };
                    self.tell::<Leave>(&mesh, other, &args);
                }
            }
        }
        let made = self.state.lock().last_made;
        request.reply.ok(&made);
    }

    /// Groups in the making with a member that is gone are not made.
    pub(crate) fn end_creations(&self, member: NodeId, error: &Error) {
        let ended: Vec<(String, Creating)> = {
            let mut state = self.state.lock();
            state.creating.extract_if(|_, creating| creating.members.contains(&member)).collect()
        };
        for (name, creating) in ended {
            for entered in creating.entered {
                entered.reply.error(error.clone().group(name.clone()));
            }
        }
    }

    /// The members that are missing where one waits.
    pub(crate) fn creation_awaits(&self, from: NodeId, number: u64) -> Option<String> {
        let mesh = self.mesh().ok()?;
        let state = self.state.try_lock()?;
        let waits = |creating: &Creating| {
            creating.entered.iter().any(|entered| entered.from == from && entered.reply.number() == number)
        };
        let (name, creating) = state.creating.iter().find(|(_, creating)| waits(creating))?;
        Some(format!("group \"{name}\": {} did not create it", creating.missing(&mesh)))
    }
}

/// Members that do not name the same ones are told of each other.
fn mismatch(mesh: &Mesh, waiting: Option<Creating>, args: &Enter, entered: Entered) -> Vec<(Entered, Error)> {
    let said = |from: NodeId, members: &[NodeId]| {
        format!("{} says that its members are {}", name_of(mesh, from), names_of(mesh, members))
    };
    let mut texts: Vec<String> = Vec::new();
    if let Some(waiting) = &waiting {
        texts.extend(waiting.entered.first().map(|first| said(first.from, &waiting.members)));
    }
    texts.push(said(entered.from, &args.members));
    let error = Error::new(ErrorKind::Mismatch, texts.join(", and ")).group(args.name.clone());
    let error = error.hint("name the same members everywhere");
    let all = waiting.into_iter().flat_map(|waiting| waiting.entered).chain([entered]);
    all.map(|entered| (entered, error.clone())).collect()
}

fn lost(mesh: &Mesh, node: NodeId, name: &str) -> Error {
    let error = Error::new(ErrorKind::PeerLost, "it is gone").group(name);
    mesh.member(node).into_iter().fold(error, |error, member| error.peer(member.peer()))
}

/// Outcome of a member's entering.
enum Next {
    Wait,
    Refuse(Vec<(Entered, Error)>),
    Made(GroupName, Creating),
}
