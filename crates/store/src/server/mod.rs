//! The server's side: it holds slices of tensors, merges what workers push and sends what they pull.
//!
//! Requests are handled where they are found, one at a time and in the order of each worker's link; so a store needs no
//! locks beyond one, and a worker's push is before its later pull. Answers leave with no lock held. User code does not
//! run there: merges that it does go to a lane and come back ([`after`]).

mod after;
mod awaited;
mod backlog;
mod members;
mod norms;
mod pending;
mod pieces;
mod saving;
mod settle;
mod store;

use crate::client::SERVERS_HINT;
use crate::command::{self, Controller};
use crate::key::Key;
use crate::layout::KEYS_MAX;
use crate::protocol::{
    Barrier, Begin, Close, Closing, Delete, Describe, Described, Done, Examine, Export, Import, Init, OfStore,
    OnWorkerLoss, Open, SERVICE, SetUpdater, Settle, Slices, Sums, Torn, Update, Updater,
};
use crate::slot::Merge;
use crate::updater::{Function, Spec};
use after::After;
use backlog::Parked;
use norms::Gatherings;
use parking_lot::Mutex;
use serde::Serialize;
use settle::{Loss, Settlements};
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_mesh::{Lane, Member, Mesh, Method, Methods, Role, Room};
use sheave_mesh::{TypedReply, TypedRequest, TypedService, WeakMesh};
use sheave_tensor::{Arena, Tensor};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use store::{Fate, Store};

/// Finds a function by its name when a worker names it.
type Finder = Arc<dyn Fn(&str) -> Option<Function> + Send + Sync>;

/// The user's own code on a server: updaters by name, and a controller.
#[derive(Clone, Default)]
pub struct ServerConfig {
    functions: HashMap<String, Function>,
    finder: Option<Finder>,
    controller: Option<Controller>,
}

impl ServerConfig {
    /// Offers a function under a name, for [`crate::Updater::Named`]. It may take its time and block: functions run one
    /// at a time, on a thread of the node, and the server answers everything that does not wait for them meanwhile.
    /// What a function changes is a copy of the value, which takes its place when the function has returned.
    #[must_use]
    pub fn function(
        mut self,
        name: &str,
        function: impl Fn(&Key, &Tensor, &mut Tensor) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.functions.insert(name.to_owned(), Arc::new(function));
        self
    }

    /// Asks `finder` for functions that are not known when the server starts. It is asked when a worker names one that
    /// [`ServerConfig::function`] has not offered, once or twice; it must not block.
    ///
    /// ```
    /// use sheave_store::{Function, ServerConfig};
    /// use std::collections::HashMap;
    /// use std::sync::{Arc, Mutex};
    ///
    /// let loaded: Arc<Mutex<HashMap<String, Function>>> = Arc::default();
    /// let known = Arc::clone(&loaded);
    /// let config = ServerConfig::default().finder(move |name| known.lock().ok()?.get(name).cloned());
    /// # drop(config);
    /// ```
    #[must_use]
    pub fn finder(mut self, finder: impl Fn(&str) -> Option<Function> + Send + Sync + 'static) -> Self {
        self.finder = Some(Arc::new(finder));
        self
    }

    /// Takes every command that workers send ([`crate::KvStore::send_command_to_servers`]), whatever its number, and
    /// answers it. Commands run one at a time; they may block. Errors and panics go back to the worker that sent it.
    #[must_use]
    pub fn controller(mut self, controller: impl Fn(i32, &[u8]) -> Result<Vec<u8>> + Send + Sync + 'static) -> Self {
        self.controller = Some(Arc::new(controller));
        self
    }
}

/// A server of a distributed store. It serves from [`Server::start`] on, on the threads that wait on its node.
pub struct Server {
    mesh: Mesh,
    holder: Arc<Holder>,
}

impl Server {
    /// Begins to serve. Does not block.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if this node serves already.
    pub fn start(mesh: &Mesh, config: ServerConfig) -> Result<Self> {
        let workers = mesh.of_role(Role::Worker).map(|member| (member.node, member.role_rank as usize)).collect();
        let holder = Arc::new(Holder {
            mesh: mesh.downgrade(),
            arena: mesh.node().arena().clone(),
            workers,
            servers: mesh.of_role(Role::Server).map(|member| member.node).collect(),
            functions: config.functions,
            finder: config.finder,
            runs_code: AtomicBool::new(false),
            table: Mutex::default(),
        });
        command::serve(mesh, config.controller)?;
        mesh.serve_typed(Arc::clone(&holder))?;
        // Who is gone already will not be reported.
        for death in mesh.deaths() {
            if let Some(member) = mesh.member(death.node) {
                let error = Error::new(ErrorKind::PeerLost, death.reason).peer(member.peer());
                holder.lose(member, &error);
            }
        }
        Ok(Self { mesh: mesh.clone(), holder })
    }

    /// Serves on this thread until every worker is gone. Blocks. A worker may die as well as leave, if every open store
    /// bears that: one that shrinks ([`crate::OnWorkerLoss::Shrink`]) and whose servers agree on what the worker had
    /// pushed, one that counts no workers (`dist_async`), or one that the worker had closed.
    ///
    /// # Errors
    ///
    /// `PeerLost` that names a worker that died, at most 100 ms after a store could not bear that. If no store was open
    /// when it died, and none is opened afterwards that cannot bear it, the others are served first.
    pub fn run(&self) -> Result<()> {
        let mut unborne = || self.holder.table.lock().unborne.clone().map_or(Ok(()), Err);
        let is_worker = |member: &Member| member.introduction.role == Role::Worker;
        self.mesh.until_gone_tolerating(is_worker, |_| true, Some(&mut unborne))?;
        unborne()?;
        self.holder.table.lock().unclaimed.clone().map_or(Ok(()), Err)
    }
}

/// Runs a node that is no worker until all workers are gone: a server serves ([`Server::run`]), a scheduler or another
/// node waits. Blocks. What `KVStore::RunServer` of MXNet does.
///
/// A scheduler knows no stores, so it cannot say whether they bear the death of a worker. It waits for the others, who
/// can, and are told so by their own operations.
///
/// # Errors
///
/// `InvalidArgument` on a worker, and in a job without workers and servers; on a server those of [`Server::run`]; on
/// any other node `PeerLost` that names the worker that died first, if none of them has left in order.
pub fn run_server(mesh: &Mesh, config: ServerConfig) -> Result<()> {
    match mesh.me().introduction.role {
        Role::Worker => Err(Error::new(ErrorKind::InvalidArgument, "a worker cannot be a server")
            .operation("run_server")
            .hint("start another process as the server: DMLC_ROLE=server, or `sheave launch -s 1`")),
        Role::Server => Server::start(mesh, config)?.run(),
        Role::Rank => {
            let what = "this node is one of plain ranks, and a job of them has neither servers nor workers";
            Err(Error::new(ErrorKind::InvalidArgument, what).operation("run_server").hint(SERVERS_HINT))
        }
        _ => {
            let is_worker = |member: &Member| member.introduction.role == Role::Worker;
            mesh.until_gone_tolerating(is_worker, |_| true, None)?;
            let deaths = mesh.deaths();
            let ends = deaths.iter().filter_map(|death| Some((mesh.member(death.node)?, death)));
            let of_workers: Vec<_> = ends.filter(|(member, _)| is_worker(member)).collect();
            match of_workers.first() {
                Some((member, death)) if of_workers.iter().all(|(_, death)| !death.left) => {
                    let what = format!("every worker has died, this one first: {}", death.reason);
                    Err(Error::new(ErrorKind::PeerLost, what).peer(member.peer()).operation("run_server"))
                }
                _ => Ok(()),
            }
        }
    }
}

struct Holder {
    mesh: WeakMesh,
    arena: Arena,
    /// The rank of each worker among the workers.
    workers: HashMap<NodeId, usize>,
    servers: HashSet<NodeId>,
    functions: HashMap<String, Function>,
    finder: Option<Finder>,
    /// Whether pushes may have to wait for user code, in any store, now or earlier.
    runs_code: AtomicBool,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    stores: HashMap<u32, Store>,
    /// Workers that are gone, for stores that are opened later.
    gone: Vec<Gone>,
    settlements: Settlements,
    gatherings: Gatherings,
    /// Why servers cannot agree on a lost worker any more, nor put norms of tensors that are cut together.
    server_lost: Option<Error>,
    /// The first death of a worker that a store could not bear.
    unborne: Option<Error>,
    /// The first death of a worker at a time when no store was open.
    unclaimed: Option<Error>,
}

struct Gone {
    worker: usize,
    has_left: bool,
    error: Error,
}

/// Stores of one job: they are parts of a program, and more of them are a leak.
const STORES_MAX: usize = 1024;

impl TypedService for Holder {
    const NAME: &'static str = SERVICE;

    fn methods(methods: Methods<Self>) -> Methods<Self> {
        methods
            .on::<Open>(|holder, request| holder.open_and_link(request.args, request.reply))
            .on::<Closing>(|holder, request| holder.part(request, Store::closing))
            .on::<Close>(|holder, request| {
                holder.part(request, Store::close);
                holder.table.lock().stores.retain(|_, store| !store.members.is_over());
            })
            .on::<Init>(|holder, TypedRequest { args, tensors, reply, .. }| {
                reply.send(of(&mut holder.table.lock(), args.store).and_then(|store| store.init(args, &tensors)));
            })
            .on::<Delete>(|holder, TypedRequest { args, reply, .. }| {
                reply.send(of(&mut holder.table.lock(), args.store).and_then(|store| store.delete(&args.numbers)));
            })
            .on::<Describe>(|holder, request| request.reply.send(holder.describe(&request.args)))
            .on_with_room::<Update>(Self::update)
            .on::<Begin>(|holder, TypedRequest { from, args, reply, .. }| {
                holder.within(from, args.store, reply, |store, worker, reply| store.begin(&args, worker, reply));
            })
            .on_with_room::<Slices>(Self::slices)
            .on::<Torn>(|holder, TypedRequest { from, args, reply, .. }| {
                holder.within(from, args.store, reply, |store, worker, reply| {
                    store.torn(worker, args.operation, &args.reason);
                    reply.ok(&());
                });
            })
            .on::<SetUpdater>(|holder, request| holder.set_updater(request.args, request.reply))
            .on::<Updater>(|holder, request| request.reply.send(holder.updater(request.args)))
            .on::<Barrier>(|holder, TypedRequest { from, args, reply, .. }| {
                holder.within(from, args.store, reply, Store::barrier);
            })
            .on::<Done>(|holder, TypedRequest { from, args, reply, .. }| {
                holder.within(from, args.store, reply, Store::done);
            })
            .on::<Settle>(|holder, request| holder.hear(request.from, &request.args, request.reply))
            .on::<Sums>(|holder, request| holder.gather(request.args, request.reply))
            .on::<Examine>(|holder, request| request.reply.send(holder.examine(&request.args)))
            .on::<Export>(|holder, request| holder.export(&request.args, request.reply))
            .on::<Import>(|holder, TypedRequest { args, tensors, reply, .. }| {
                reply.send(holder.import(&args, &tensors));
            })
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }

    fn lost(self: &Arc<Self>, member: &Member, error: &Error) {
        self.lose(member, error);
    }

    fn awaited(&self, from: NodeId, number: u64) -> Option<String> {
        self.lacks(from, number)
    }
}

impl Holder {
    fn lose(self: &Arc<Self>, member: &Member, error: &Error) {
        if self.servers.contains(&member.node) {
            return self.lose_server(error);
        }
        let Some(worker) = self.workers.get(&member.node).copied() else { return };
        let deaths = self.mesh.upgrade().map(|mesh| mesh.deaths()).unwrap_or_default();
        let has_left = deaths.iter().any(|death| death.node == member.node && death.left);
        let error =
            error.clone().hint("this store needs every worker; start the job again, or open it so that it shrinks");
        let mut table = self.table.lock();
        let (mut after, mut losses, mut fails) = (After::default(), Vec::new(), false);
        let is_unclaimed = table.stores.is_empty();
        for (number, store) in &mut table.stores {
            let fate = store.lose(worker, has_left, &error);
            fails |= fate == Fate::Fails;
            if fate == Fate::Unsettled {
                let heard = store.heard(worker);
                let updater = store.updater().clone();
                losses.push(Loss { store: *number, worker, has_left, error: error.clone(), heard, updater });
            }
            after.extend(store.take_after());
        }
        if fails && !has_left {
            table.unborne.get_or_insert_with(|| error.clone());
        } else if is_unclaimed && !has_left {
            table.unclaimed.get_or_insert_with(|| error.clone());
        }
        table.stores.retain(|_, store| !store.members.is_over());
        table.gone.push(Gone { worker, has_left, error });
        self.release(table, after);
        losses.into_iter().for_each(|loss| self.settle(loss));
    }

    /// Another server is gone, and says nothing any more of losses and norms. Whoever waits for that, or asks for it
    /// later, hears so.
    fn lose_server(&self, error: &Error) {
        let mut table = self.table.lock();
        table.server_lost.get_or_insert_with(|| error.clone());
        let (settlements, gatherings) = (std::mem::take(&mut table.settlements), std::mem::take(&mut table.gatherings));
        drop(table);
        settlements.into_values().flatten().for_each(|said| said.reply.error(error.clone()));
        gatherings.into_values().flatten().for_each(|(_, said)| said.reply.error(error.clone()));
    }

    fn open_and_link(&self, open: Open, reply: TypedReply<()>) {
        match self.open(open) {
            // A server that settles a loss must not wait for links then.
            Ok(OnWorkerLoss::Shrink) => self.link_servers(reply),
            outcome => reply.send(outcome.map(drop)),
        }
    }

    fn open(&self, open: Open) -> Result<OnWorkerLoss> {
        let on_worker_loss = open.on_worker_loss;
        let mut table = self.table.lock();
        if let Some(known) = table.stores.get(&open.store) {
            if known.open == open {
                return Ok(on_worker_loss);
            }
            let what = format!("store {} was opened as {}, not as {open}", open.store, known.open);
            return Err(
                Error::new(ErrorKind::Mismatch, what).hint("all workers must open their stores alike, in order")
            );
        }
        if table.stores.len() >= STORES_MAX {
            return Err(Error::new(ErrorKind::LimitExceeded, format!("a job has at most {STORES_MAX} stores")));
        }
        if !open.kind.is_distributed() {
            return Err(Error::new(ErrorKind::Protocol, format!("a {} store needs no servers", open.kind)));
        }
        if open.cutting.servers as usize != self.servers.len() {
            return Err(Error::new(ErrorKind::Protocol, "a store on other servers than there are"));
        }
        let mut store = Store::new(open, self.workers.len(), &self.arena);
        let Table { gone, unborne, .. } = &mut *table;
        for gone in gone {
            match store.lose(gone.worker, gone.has_left, &gone.error) {
                // It has pushed nothing, so there is nothing to agree on.
                Fate::Unsettled => store.shrink(gone.worker),
                Fate::Fails if !gone.has_left => drop(unborne.get_or_insert_with(|| gone.error.clone())),
                Fate::Fails | Fate::GoesOn => {}
            }
        }
        table.stores.insert(store.open.store, store);
        Ok(on_worker_loss)
    }

    fn describe(&self, describe: &Describe) -> Result<Vec<Option<Described>>> {
        if describe.numbers.len() > KEYS_MAX {
            return Err(Error::new(ErrorKind::Protocol, format!("{} keys in one request", describe.numbers.len())));
        }
        Ok(of(&mut self.table.lock(), describe.store)?.describe(&describe.numbers))
    }

    fn set_updater(&self, change: SetUpdater, reply: TypedReply<()>) {
        match self.change_updater(change) {
            // What runs here must not wait for links, and two servers that wait for each other's would never make them.
            Ok(true) => self.link_servers(reply),
            outcome => reply.send(outcome.map(drop)),
        }
    }

    /// True if links to the other servers are needed from now on.
    fn change_updater(&self, SetUpdater { store, updater, is_trial }: SetUpdater) -> Result<bool> {
        let merge = Merge::of(updater.clone().into(), |name| {
            let offered = self.functions.get(name).cloned();
            offered.or_else(|| self.finder.as_ref().and_then(|finder| finder(name)))
        })?;
        let needs_norms = merge.needs_norms();
        let mut table = self.table.lock();
        let store = of(&mut table, store)?;
        store.set_updater(updater, merge, is_trial)?;
        self.runs_code.fetch_or(store.runs_code(), SeqCst);
        Ok(needs_norms && is_trial)
    }

    fn updater(&self, OfStore { store }: OfStore) -> Result<Spec> {
        Ok(of(&mut self.table.lock(), store)?.updater().clone())
    }

    /// The rank of a worker that asks for something.
    fn worker(&self, from: NodeId) -> Result<usize> {
        let worker = self.workers.get(&from).copied();
        worker.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "only workers use a store"))
    }

    /// Does something with a store, for a worker, and then what that has brought about.
    fn within<A: Serialize>(
        self: &Arc<Self>,
        from: NodeId,
        store: u32,
        reply: TypedReply<A>,
        act: impl FnOnce(&mut Store, usize, TypedReply<A>),
    ) {
        let worker = match self.worker(from) {
            Ok(worker) => worker,
            Err(error) => return reply.error(error),
        };
        let mut table = self.table.lock();
        let store = match of(&mut table, store) {
            Ok(store) => store,
            Err(error) => return reply.error(error),
        };
        act(store, worker, reply);
        let after = store.take_after();
        self.release(table, after);
    }

    /// The place of a request that may have to wait for user code.
    fn kept(&self, room: Room) -> Option<Room> {
        self.runs_code.load(SeqCst).then_some(room)
    }

    fn slices(self: &Arc<Self>, request: TypedRequest<Slices>, room: Room) {
        let TypedRequest { from, args: slices, tensors, reply, .. } = request;
        let room = self.kept(room);
        let mut at_once = None;
        let worker = self.worker(from);
        let mut table = self.table.lock();
        match worker.and_then(|worker| Ok((worker, of(&mut table, slices.store)?))) {
            Ok((worker, store)) => {
                let taken = store.slices(&slices, worker, tensors);
                if let Err(error) = &taken {
                    store.refused(worker, error);
                    store.end_begun(worker, slices.operation, error);
                }
                match (taken, room) {
                    (Ok(()), Some(room)) => store.park(Parked { room, reply: Some(reply) }),
                    (taken, room) => at_once = Some((reply, taken, room)),
                }
                let after = store.take_after();
                self.release(table, after);
            }
            Err(error) => {
                drop(table);
                at_once = Some((reply, Err(error), room));
            }
        }
        if let Some((reply, taken, room)) = at_once {
            drop(room);
            reply.send(taken);
        }
    }

    /// A worker says that it has no more to say, in part or at all.
    fn part<M: Method<Args = OfStore, Answer = ()>>(
        self: &Arc<Self>,
        request: TypedRequest<M>,
        act: impl FnOnce(&mut Store, usize),
    ) {
        self.within(request.from, request.args.store, request.reply, |store, worker, reply| {
            act(store, worker);
            reply.ok(&());
        });
    }

    fn update(self: &Arc<Self>, request: TypedRequest<Update>, room: Room) {
        let TypedRequest { from, args: update, tensors, reply, .. } = request;
        let room = self.kept(room);
        self.within(from, update.store, reply, |store, worker, reply| {
            let checked = store.check(&update, worker, &tensors);
            // A contribution that has no other handle can be added to.
            drop(tensors);
            match checked {
                Ok(checked) => store.update(checked, reply),
                Err(error) => {
                    if update.contributes() {
                        store.refused(worker, &error);
                    }
                    store.refuse(reply, worker, error);
                }
            }
            if let Some(room) = room {
                store.park(Parked { room, reply: None });
            }
        });
    }
}

fn of(table: &mut Table, store: u32) -> Result<&mut Store> {
    table.stores.get_mut(&store).ok_or_else(|| Error::new(ErrorKind::NotFound, format!("store {store} was not opened")))
}
