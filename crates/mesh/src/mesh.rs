//! The mesh as its users see it.

use crate::awaited::Sort;
use crate::call::{Answer, AnswerOf, Call, CallOptions, Method, Service, ServiceName, TypedService};
use crate::company;
use crate::config::Config;
use crate::driver::Shared;
use crate::engine::{Death, Engine, Event, Member, Outcome, Role, group_id};
use crate::group::Group;
use crate::group_news::GroupNews;
use crate::reference::{Mention, Ref};
use crate::rendezvous;
use crate::runtime::{Runtime, Timer};
use crate::weak::WeakMesh;
use parking_lot::Mutex;
use sheave_base::clock;
use sheave_base::clock::Time;
use sheave_base::thread::Thread;
use sheave_base::work::Interrupt;
use sheave_base::{Epoch, Error, ErrorKind, LinkId, NodeId, Result, Work, limits};
use sheave_net::Node;
use sheave_wire::Value;
use std::any::Any;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The group whose barrier all members enter when they finish.
const FINISH: &str = "finish";

/// The nodes of a job, as one of them. Clones are handles to the same membership.
///
/// A program ends its membership with [`Mesh::finish`] or [`Mesh::leave`]. Dropping the last handle without either
/// says that this node has failed, as [`Mesh::fail`] does: a program that returns early with an error, or panics, is
/// named by the others as the cause of theirs.
///
/// ```
/// use sheave_mesh::{Config, Expected, Mesh, Role};
/// use sheave_base::config::Endpoint;
///
/// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
/// # let secret = sheave_base::Secret::new(b"only this example knows it")?;
/// # let secret = Some(sheave_base::secret::Resolved { secret, source: "an example".into() });
/// let root = Endpoint { host: "127.0.0.1".into(), port };
/// // These nodes are threads of one process. Those of several find each other without it.
/// let neighbourhood = Some(sheave_net::Neighbourhood::default());
/// let join = |rank| {
///     let mut config = Config::new(Role::Rank, Some(rank), Expected::ranks(2), root.clone());
///     config.node.neighbourhood = neighbourhood.clone();
///     # config.node.secret = secret.clone();
///     std::thread::spawn(move || {
///         let mesh = Mesh::join(config)?;
///         mesh.world().barrier()?;
///         mesh.finish()
///     })
/// };
/// let (one, other) = (join(0), join(1));
/// one.join().unwrap()?;
/// other.join().unwrap()?;
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct Mesh {
    pub(crate) shared: Arc<Shared>,
    owner: Arc<Owner>,
}

/// Dropped with the last handle.
pub(crate) struct Owner {
    shared: Arc<Shared>,
    has_left: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl From<Arc<Owner>> for Mesh {
    fn from(owner: Arc<Owner>) -> Self {
        Self { shared: Arc::clone(&owner.shared), owner }
    }
}

impl Mesh {
    /// Joins: blocks until all the nodes that are expected are there, or the join's deadline has passed.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded` that says who is missing, from where the others came and where each side's secret came from;
    /// `Unauthenticated` for another secret than the coordinator's; `AlreadyExists` for a name or rank that is taken,
    /// a port in use, or a job that has started; `InvalidArgument` for a config that no mesh can be made from.
    pub fn join(config: Config) -> Result<Self> {
        Self::join_interruptible(config, None)
    }

    /// Like [`Mesh::join`]; `interrupt` is asked at least every 100 ms, and its error ends the join.
    ///
    /// # Errors
    ///
    /// As [`Mesh::join`], and whatever `interrupt` says.
    pub fn join_interruptible(config: Config, interrupt: Option<Interrupt<'_>>) -> Result<Self> {
        Self::join_serving(config, interrupt, |_| Ok(()))
    }

    /// Like [`Mesh::join_interruptible`], with services that `serve` offers before the others know that this node has
    /// joined: whoever joins finds them, and calls that come earlier wait until it has. Of the mesh that it is given
    /// nothing else means anything yet.
    ///
    /// # Errors
    ///
    /// As [`Mesh::join_interruptible`], and whatever `serve` says.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Request, Role};
    /// # use sheave_base::config::Endpoint;
    /// # use sheave_wire::Value;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// let config = Config::new(Role::Rank, Some(0), Expected::ranks(1), root);
    /// let serve = |mesh: &Mesh| mesh.serve("hello", |request: Request| request.reply.value("hello"));
    /// let mesh = Mesh::join_serving(config, None, serve)?;
    /// assert_eq!(mesh.call(mesh.me().node, "hello", "", Value::None)?.wait()?.value, Value::from("hello"));
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    #[expect(clippy::needless_pass_by_value, reason = "the config is used up: its port and its names are taken now")]
    pub fn join_serving(
        config: Config,
        interrupt: Option<Interrupt<'_>>,
        serve: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<Self> {
        let mut interrupt = interrupt;
        let joining = rendezvous::begin(&config, &mut interrupt)?;
        let shared = Arc::clone(&joining.shared);
        if let Some(path) = &config.collective_table {
            let _ = shared.collective_table.set(path.clone());
        }
        if let Some(path) = &config.losses {
            let _ = shared.losses.path.set(path.clone());
        }
        let mesh = Self::start(&shared, |mesh| {
            shared.serve_guests()?;
            serve(mesh)
        })?;
        joining.finish(interrupt)?;
        company::share_host(&shared, config.local_ranks);
        Ok(mesh)
    }

    /// Begins the node's thread, has `serve` offer its services, and takes the node's messages, which have waited until
    /// then. From here on the owner ends it all if something fails.
    pub(crate) fn start(shared: &Arc<Shared>, serve: impl FnOnce(&Self) -> Result<()>) -> Result<Self> {
        let (has_left, thread) = (AtomicBool::new(false), Mutex::new(None));
        let owner = Arc::new(Owner { shared: Arc::clone(shared), has_left, thread });
        let own = Arc::clone(shared);
        *owner.thread.lock() = Some(sheave_base::thread::start("sheave-mesh", move || own.keep_time())?);
        let mesh = Self::from(owner);
        shared.serve_awaited()?;
        serve(&mesh)?;
        shared.register();
        shared.with_engine(|_, _| ());
        Ok(mesh)
    }

    /// This node.
    #[must_use]
    pub fn me(&self) -> &Member {
        // A mesh is handed out only once its table is there, which was refused if this node were not in it.
        self.shared.member(self.shared.me).unwrap_or(&self.shared.introduced)
    }

    /// Role of this node: what it is there for.
    #[must_use]
    pub fn role(&self) -> Role {
        self.me().introduction.role
    }

    /// This node's name, unique in the mesh.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.me().introduction.name
    }

    /// The file with the rules of collective operations, if this node was configured with one.
    #[must_use]
    pub fn collective_table(&self) -> Option<&Path> {
        self.shared.collective_table.get().map(PathBuf::as_path)
    }

    /// All members by rank, those who have died or left included.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        self.shared.table()
    }

    /// The member of this identity.
    #[must_use]
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.shared.member(node)
    }

    /// The members of a role, by rank.
    pub fn of_role(&self, role: Role) -> impl Iterator<Item = &Member> {
        self.members().iter().filter(move |member| member.introduction.role == role)
    }

    /// The epoch: it grows whenever members die or leave.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.shared.epoch()
    }

    /// Who has died or left, in the order in which it was agreed.
    #[must_use]
    pub fn deaths(&self) -> Vec<Death> {
        self.shared.look(|engine| engine.deaths().to_vec())
    }

    /// How many of the members that `counts` picks are dead: their links have closed, or they have been silent for the
    /// liveness timeout. Those who left in order do not count. The same on every node, as soon as it is agreed.
    #[must_use]
    pub fn num_dead_node(&self, counts: impl Fn(&Member) -> bool) -> usize {
        let dead = self.deaths();
        let is_dead = |member: &&Member| dead.iter().any(|death| death.node == member.node && !death.left);
        self.members().iter().filter(is_dead).filter(|member| counts(member)).count()
    }

    /// As [`Mesh::num_dead_node`], but those who have been silent for `silence` count too, where that is shorter than
    /// the liveness timeout: they are asked, and counted if they do not answer in time. A silence shorter than a beat
    /// is taken for a beat, and one of zero is not looked at. Blocks until all have answered, for at most `silence`.
    ///
    /// # Errors
    ///
    /// Whatever ends this node's own membership.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_base::config::Endpoint;
    /// # use std::time::Duration;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// assert_eq!(mesh.num_dead_or_silent(|_| true, Duration::from_secs(1))?, 0);
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn num_dead_or_silent(&self, counts: impl Fn(&Member) -> bool, silence: Duration) -> Result<usize> {
        let liveness = self.shared.node_config().liveness;
        let patience = silence.max(liveness.beat);
        if silence.is_zero() || patience >= liveness.timeout {
            return Ok(self.num_dead_node(counts));
        }
        let counted = self.members().iter().filter(|member| counts(member));
        let nodes = counted.map(|member| member.node).collect();
        let (completer, work) = self.shared.node.pair("num_dead_node", None);
        let ending = |outcome: Result<Outcome>| completer.complete(outcome);
        let event = |operation, now: Time| Event::Ask { operation, nodes, until: now.after(patience) };
        let operation = self.shared.begin(event, ending);
        work.awaits(self.shared.awaited(Sort::Operation, operation.0));
        let Outcome::Silent(silent) = work.wait()? else {
            return Err(Error::new(ErrorKind::Internal, "asking ended as something else"));
        };
        // Some who were silent may have been agreed to be dead since, or to have left.
        let gone = self.deaths();
        let is_gone = |node: &NodeId| gone.iter().any(|death| death.node == *node);
        Ok(self.num_dead_node(counts) + silent.iter().filter(|node| !is_gone(node)).count())
    }

    /// The acting coordinator: the scheduler, or the living member of the lowest rank.
    #[must_use]
    pub fn coordinator(&self) -> Option<NodeId> {
        self.shared.look(Engine::coordinator)
    }

    /// The group of all members.
    #[must_use]
    pub fn world(&self) -> Group {
        let nodes: Vec<NodeId> = self.members().iter().map(|member| member.node).collect();
        Group::of(self, "world", &nodes)
    }

    /// The group of all members of a role, of which this node is one, in the order of their ranks.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if this node has another role.
    pub fn role_group(&self, role: Role) -> Result<Group> {
        let nodes: Vec<NodeId> = self.of_role(role).map(|member| member.node).collect();
        self.group(&format!("{role}s"), &nodes)
    }

    /// The group of these nodes in this order. The same label and nodes give the same group everywhere, and each of its
    /// members makes it for itself. Nobody else is asked, unless this node has dropped the group some time ago: then
    /// the first member says whether the others still go on with it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the nodes are not distinct members of the mesh with this one among them; `PeerLost` if one
    /// of them is dead; `LimitExceeded` for too many groups at a time.
    pub fn group(&self, label: &str, nodes: &[NodeId]) -> Result<Group> {
        self.check_group(label, nodes)?;
        Ok(Group::of(self, label, nodes))
    }

    /// As [`Mesh::group`], for those who must not block: the work ends when the group may be used, and then
    /// [`Group::renewed`] is that group.
    ///
    /// # Errors
    ///
    /// As [`Mesh::group`].
    pub fn begin_group(&self, label: &str, nodes: &[NodeId]) -> Result<(Group, Work<()>)> {
        self.check_group(label, nodes)?;
        Ok(Group::begin(self, label, nodes))
    }

    /// Makes a group in the engine; one that cannot be had is not kept there.
    fn check_group(&self, label: &str, nodes: &[NodeId]) -> Result<()> {
        self.shared.with_engine(|state, _| {
            let made = state.engine.group(label, nodes);
            if made.is_err() {
                let id = group_id(label, nodes);
                state.engine.hold(id);
                state.engine.release(id);
            }
            made.map(drop)
        })
    }

    /// The next number for something of this sort. All members that make such things in the same order give them the
    /// same numbers without asking.
    #[must_use]
    pub fn next_number(&self, sort: &str) -> u32 {
        let mut numbers = self.shared.numbers.lock();
        let next = numbers.entry(sort.to_owned()).or_default();
        let number = *next;
        *next = next.wrapping_add(1);
        number
    }

    /// A handle that does not keep this node in the mesh.
    #[must_use]
    pub fn downgrade(&self) -> WeakMesh {
        WeakMesh::of(&self.owner)
    }

    /// The node that carries this mesh.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.shared.node
    }

    /// The link to a member: the one that stands, or one that is made now. Blocks for at most the liveness timeout.
    ///
    /// # Errors
    ///
    /// `PeerLost` if it is dead or does not answer, `NotFound` if it is no member.
    pub fn link_to(&self, node: NodeId) -> Result<LinkId> {
        if let Some(error) = self.shared.failure() {
            return Err(error.clone());
        }
        self.shared.link_to(node).wait()
    }

    /// Names somebody who hears that groups may have changed.
    pub fn tell_group_news_to(&self, listener: Weak<dyn GroupNews>) {
        self.shared.group_news.write().push(listener);
    }

    /// The tasks and timers of this node, for services, which the mesh itself holds.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.shared.runtime
    }

    /// Begins a task: a future that whoever polls this node's links polls, with no lock held. The work of this name
    /// ends with what comes of it. Cancelling the work cancels the task, and it ends once the future is dropped;
    /// dropping the work does not.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` for too many tasks, `Closed` once this node has left.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_base::config::Endpoint;
    /// # use std::time::Duration;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// let soon = mesh.runtime().after(Duration::from_millis(2));
    /// let sleep = mesh.runtime().sleep_until(soon)?;
    /// let work = mesh.spawn("doze", async move {
    ///     sleep.await;
    ///     Ok(7)
    /// })?;
    /// assert_eq!(work.wait()?, 7);
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn spawn<T: Send + 'static>(
        &self,
        operation: &'static str,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<Work<T>> {
        self.shared.runtime.spawn_work(&self.shared.node, operation, future)
    }

    /// Runs `action` at that time, as [`Runtime::at`] does.
    ///
    /// # Errors
    ///
    /// As [`Runtime::at`].
    pub fn at(&self, time: Time, action: impl FnOnce() + Send + 'static) -> Result<Timer> {
        self.shared.runtime.at(time, action)
    }

    /// Runs a job on a thread of this node, as a handler on a serial lane is run: one at a time of each mailbox of the
    /// lane of that name, in the order in which they are handed in, and it may block. For user code that an inline
    /// service must not run where it finds its requests. Does not block.
    ///
    /// The job is told why if it is refused, because all threads of its lane wait: then it must not do its work. It is
    /// dropped if this node stops first. Nothing bounds how many wait here: the service does
    /// ([`Room`](crate::Room)).
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_base::config::Endpoint;
    /// use sheave_mesh::ServiceName;
    /// use std::sync::mpsc::channel;
    ///
    /// const UPDATES: ServiceName = ServiceName::new("updates");
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// # let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// let (done, ended) = channel();
    /// for number in 0..3 {
    ///     let done = done.clone();
    ///     mesh.submit(&UPDATES, 0, move |turn| drop(done.send(turn.map(|()| number))));
    /// }
    /// let order: Result<Vec<_>, _> = ended.iter().take(3).collect();
    /// assert_eq!(order?, [0, 1, 2]);
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn submit(&self, lane: &ServiceName, mailbox: u64, job: impl FnOnce(Result<()>) + Send + 'static) {
        self.shared.submit_job(lane, mailbox, job);
    }

    /// Offers a service whose methods have names, under a name that is unique on this node.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` for a second service of that name, `LimitExceeded` for too many of them.
    pub fn serve(&self, name: &str, service: impl Service) -> Result<()> {
        self.shared.serve_named(name, service)
    }

    /// Offers a service whose methods have numbers, under [its name](TypedService::NAME).
    ///
    /// # Errors
    ///
    /// As [`Mesh::serve`].
    pub fn serve_typed<S: TypedService>(&self, service: Arc<S>) -> Result<()> {
        self.shared.serve_typed(service)
    }

    /// Takes a service away. Requests that come later are refused.
    pub fn serve_no_more(&self, name: &str) {
        self.shared.serve_no_more(name);
    }

    /// Calls the method of this name of `service` on a member, this node included. Tensors sent by copy are captured
    /// before the call returns, which never blocks: where there is no link to that member yet it is made meanwhile, and
    /// calls keep their order. The work ends with the answer, with the handler's error, or when the member is gone;
    /// cancelling it does not stop a handler that runs already.
    ///
    /// # Errors
    ///
    /// `PeerLost` if the member is gone, or the owner of a reference in the arguments; `NotFound` for a reference that
    /// this node does not hold; `LimitExceeded` if too many calls wait or the link is full; and what [`Node::isend`]
    /// says about the tensors.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Request, Role};
    /// # use sheave_base::config::Endpoint;
    /// # use sheave_wire::Value;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// mesh.serve("greeter", |request: Request| request.reply.value(format!("hello from {}", request.method)))?;
    /// let answer = mesh.call(mesh.me().node, "greeter", "world", Value::None)?.wait()?;
    /// assert_eq!(answer.value, Value::from("hello from world"));
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn call(
        &self,
        to: NodeId,
        service: impl Into<ServiceName>,
        method: &str,
        call: impl Into<Call>,
    ) -> Result<Work<Answer>> {
        self.shared.call(to, service.into(), method, call.into())
    }

    /// Calls a method that has a number on a member, this node included; as [`Mesh::call`] in everything else.
    ///
    /// # Errors
    ///
    /// As [`Mesh::call`], and `LimitExceeded` for arguments that are too long for a message.
    pub fn ask<M: Method>(&self, to: NodeId, args: &M::Args) -> Result<Work<AnswerOf<M>>> {
        self.ask_with::<M>(to, args, CallOptions::default())
    }

    /// As [`Mesh::ask`], with tensors, references, places, or a deadline.
    ///
    /// # Errors
    ///
    /// As [`Mesh::ask`].
    pub fn ask_with<M: Method>(&self, to: NodeId, args: &M::Args, options: CallOptions) -> Result<Work<AnswerOf<M>>> {
        self.shared.call_typed::<M>(to, args, options)
    }

    /// Calls the method of this name of `service` on a member, this node included, and wants no answer: returns when
    /// the request is on its way, or waits here for the first link or for room. It keeps its place among this node's
    /// calls of that service there, and runs whatever becomes of this node. Tensors sent by copy are captured before
    /// this returns, which never blocks, as [`Mesh::call`] does not.
    ///
    /// Of a failure the objects tell that the call was to fill ([`Mesh::promise`]). Any other failure is told once, in
    /// place of the next one-way call of the same service there, which is not made then, or by
    /// [`Mesh::check_one_way`]. How many of them wait here is bounded, and [`Mesh::room`] waits until none do.
    ///
    /// # Errors
    ///
    /// As [`Mesh::call`]; what an earlier one has failed with; `InvalidArgument` if `call` has places or a deadline.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Request, Role};
    /// # use sheave_base::{Error, ErrorKind, config::Endpoint};
    /// # use sheave_wire::Value;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// use sheave_mesh::Lane;
    ///
    /// struct Log;
    ///
    /// impl sheave_mesh::Service for Log {
    ///     fn handle(&self, request: Request) {
    ///         match request.method.as_str() {
    ///             "put" => println!("{:?}", request.args),
    ///             _ => request.reply.error(Error::new(ErrorKind::NotFound, "no such method")),
    ///         }
    ///     }
    ///
    ///     fn lane(&self) -> Lane {
    ///         Lane::Inline
    ///     }
    /// }
    ///
    /// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// mesh.serve("log", Log)?;
    /// let me = mesh.me().node;
    /// mesh.cast(me, "log", "put", Value::Int(7))?;
    /// mesh.cast(me, "log", "drop", Value::None)?;
    /// assert_eq!(mesh.check_one_way(me, "log").unwrap_err().kind(), ErrorKind::NotFound);
    /// assert!(mesh.check_one_way(me, "log").is_ok(), "it is told once");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn cast(&self, to: NodeId, service: impl Into<ServiceName>, method: &str, call: impl Into<Call>) -> Result<()> {
        self.shared.cast(to, service.into(), method, call.into())
    }

    /// Calls a method that has a number and wants no answer; as [`Mesh::cast`] in everything else.
    ///
    /// # Errors
    ///
    /// As [`Mesh::cast`], and `LimitExceeded` for arguments that are too long for a message.
    pub fn tell<M: Method>(&self, to: NodeId, args: &M::Args) -> Result<()> {
        self.tell_with::<M>(to, args, CallOptions::default())
    }

    /// As [`Mesh::tell`], with tensors, references, or promises to be filled.
    ///
    /// # Errors
    ///
    /// As [`Mesh::tell`].
    pub fn tell_with<M: Method>(&self, to: NodeId, args: &M::Args, options: CallOptions) -> Result<()> {
        self.shared.tell_typed::<M>(to, args, options)
    }

    /// Returns what one-way calls of `service` on `to` have failed with, if any have of which this was not told. Who
    /// has the answer of a call to a service of one mailbox knows of all that it has told it before. Does not block.
    ///
    /// # Errors
    ///
    /// The first of the failures. It names the method and the node, and how many there were.
    pub fn check_one_way(&self, to: NodeId, service: impl Into<ServiceName>) -> Result<()> {
        self.shared.check_one_way(to, &service.into())
    }

    /// Waits for room for a call of `service` on a member, this node included. Who makes calls faster than their callee
    /// begins with them waits for room before each: then no more of them than the callee takes are under way, and of
    /// others that wait in this node's queue at most one for each that waits so.
    ///
    /// The wait ends when the requests that wait here already have left and the callee takes one more. That reserves
    /// nothing: another caller may be faster, and then the call waits in the queue as it would have without this. Does
    /// not block. The work fails with `PeerLost` once the member is gone, `NotFound` for a node that is no member,
    /// `DeadlineExceeded` after `deadline`, `LimitExceeded` for more than [`limits::ROOM_WAITS_MAX`] waits, and
    /// `Closed` when this node leaves. Dropping it is no cancellation.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Request, Role};
    /// # use sheave_base::config::Endpoint;
    /// # use sheave_wire::Value;
    /// # use std::time::Duration;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// mesh.serve("sink", |request: Request| request.reply.value(()))?;
    /// let mut works = Vec::new();
    /// for number in 0..100 {
    ///     // However many there are, and however slow the other side is.
    ///     mesh.room(mesh.me().node, "sink", Some(Duration::from_secs(10))).wait()?;
    ///     works.push(mesh.call(mesh.me().node, "sink", "put", Value::Int(number))?);
    /// }
    /// for work in works {
    ///     work.wait()?;
    /// }
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    #[must_use]
    pub fn room(&self, to: NodeId, service: impl Into<ServiceName>, deadline: Option<Duration>) -> Work<()> {
        self.shared.room(to, service.into(), deadline)
    }

    /// Makes an object of this node one that others can hold. It lives until the last [`Ref`] to it is dropped, here
    /// and everywhere.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` if this node has [`limits::REFERENCES_OWNED_MAX`] of them.
    pub fn export(&self, object: Arc<dyn Any + Send + Sync>) -> Result<Ref> {
        self.shared.references.export(object)
    }

    /// Draws the name of an object that `owner` will have, and that one later call to it is to fill: the name goes
    /// there by [`Ref::to_fill`], and means something at once, here and wherever it is sent. Asks nobody.
    ///
    /// The handler of that call fills it with an object, or poisons it with an error ([`Promises`](crate::Promises));
    /// so does whatever ends the call before. Dropping the last `Ref` before there was a call poisons it too. Whoever
    /// uses the name on the owner waits until then ([`Mesh::object`]).
    ///
    /// # Errors
    ///
    /// `NotFound` if `owner` is no member, `Unsupported` if it is a guest or the host of one, `PeerLost` if it is gone,
    /// `LimitExceeded` for more than [`limits::REFERENCES_PROMISED_MAX`] promises of one owner that are not filled.
    pub fn promise(&self, owner: NodeId) -> Result<Ref> {
        self.shared.check_promising(owner)?;
        self.shared.references.promise(owner)
    }

    /// The object that a reference names, which lives on this node: once it is there, if it is promised. The wait ends
    /// with what poisons the promise, at the deadline, or when it is cancelled; it keeps the reference until then.
    /// Does not block; the work fails as [`Ref::get`] does, with `LimitExceeded` for more than
    /// [`limits::REFERENCE_WAITS_MAX`] waits, and with `Closed` when this node leaves.
    #[must_use]
    pub fn object<T: Any + Send + Sync>(&self, reference: &Ref, deadline: Option<Duration>) -> Work<Arc<T>> {
        self.shared.references.object(reference, deadline)
    }

    /// The reference that a [`Value::Ref`] names, one more handle to it. A name that came in a request or an answer
    /// means something for as long as that request or answer lives, or this node has another handle.
    ///
    /// # Errors
    ///
    /// `NotFound` if this node holds no such reference, `InvalidArgument` for any other value.
    pub fn hold(&self, value: &Value) -> Result<Ref> {
        match *value {
            Value::Ref { node, id } => self.shared.references.find(Mention::of(node, id).name),
            _ => {
                let what = format!("a {} is no reference", value.kind_name());
                Err(Error::new(ErrorKind::InvalidArgument, what).operation("hold"))
            }
        }
    }

    /// Blocks until every other member that `picks` names has left in order: what the main thread of a server or
    /// scheduler does. Meanwhile it serves this node's links, and from then on [`Mesh::finish`] of the others does not
    /// wait for this node. `picks` is asked once for each member, now.
    ///
    /// # Errors
    ///
    /// `PeerLost` that names the first of them who died; whatever ended this node's own membership.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_base::config::Endpoint;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// mesh.until_gone(|member| member.introduction.role == Role::Worker)?;
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn until_gone(&self, picks: impl Fn(&Member) -> bool) -> Result<()> {
        self.until_gone_interruptible(picks, None)
    }

    /// Like [`Mesh::until_gone`]; `interrupt` is asked at least every 100 ms, and its error ends the wait.
    ///
    /// # Errors
    ///
    /// As [`Mesh::until_gone`], and whatever `interrupt` says.
    pub fn until_gone_interruptible(
        &self,
        picks: impl Fn(&Member) -> bool,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        self.until_gone_tolerating(picks, |_| false, interrupt)
    }

    /// Like [`Mesh::until_gone_interruptible`], but a member that `tolerates` is true for may die as well as leave: the
    /// wait goes on without it. Both are asked once for each member, now. Returns at once if all of them are gone.
    ///
    /// # Errors
    ///
    /// `PeerLost` that names the first of those who died and are not tolerated, at once, also if that was before the
    /// call; else as [`Mesh::until_gone_interruptible`].
    pub fn until_gone_tolerating(
        &self,
        picks: impl Fn(&Member) -> bool,
        tolerates: impl Fn(&Member) -> bool,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        let me = self.shared.me;
        let picked: Vec<_> = self.members().iter().filter(|member| member.node != me && picks(member)).collect();
        let tolerated = picked.iter().filter(|member| tolerates(member)).map(|member| member.node).collect();
        let nodes: Vec<NodeId> = picked.iter().map(|member| member.node).collect();
        if !nodes.is_empty() {
            // Those that are waited for may wait for this node, to finish together.
            drop(self.begin_finish());
        }
        let waited = self.shared.wait_for_departures(nodes, tolerated, interrupt);
        waited.map_err(|error| error.operation("until_gone"))
    }

    /// Waits for everybody and leaves: what a job does at its end. Members that are in [`Mesh::until_gone`], or have
    /// been, are not waited for.
    ///
    /// # Errors
    ///
    /// What the barrier says if somebody is gone; this node has left all the same.
    pub fn finish(&self) -> Result<()> {
        self.end_finish(self.begin_finish().wait())
    }

    /// The first half of [`Mesh::finish`], for those who wait in their own way: the barrier of all members.
    #[must_use]
    pub fn begin_finish(&self) -> Work<()> {
        self.shared.empty_idle_groups();
        let mut finish = self.shared.finish.lock();
        if let Some(begun) = &*finish {
            return begun.clone();
        }
        let nodes: Vec<NodeId> = self.members().iter().map(|member| member.node).collect();
        let group = Group::of(self, FINISH, &nodes);
        let _ = self.shared.finish_group.set(group.id());
        let begun = group.begin_barrier(None);
        *finish = Some(begun.clone());
        begun
    }

    /// The error of a wait for [`Mesh::begin_finish`] that was given up: who has not come. Blocks for as long as the
    /// member that counts takes to say it, a second at most.
    #[must_use]
    pub fn late_finish(&self) -> Error {
        let awaited = self.begin_finish().awaited();
        let told = awaited.as_ref().and_then(|awaited| awaited.ask()?.wait_timeout(limits::WAIT_ANSWER).ok());
        let known = || awaited.as_ref().and_then(|awaited| awaited.describe()?.whom);
        let what = match told.or_else(known) {
            Some(whom) => format!("not all members have come to the end: waiting for {whom}"),
            None => "not all members have come to the end".to_owned(),
        };
        let error = Error::new(ErrorKind::DeadlineExceeded, what).operation("finish");
        error.hint("try again, or leave without them")
    }

    /// The second half of [`Mesh::finish`]: leaves, after that barrier has ended like this. Blocks for at most a beat
    /// and what [`Mesh::leave`] takes.
    ///
    /// # Errors
    ///
    /// As [`Mesh::finish`].
    pub fn end_finish(&self, barrier: Result<()>) -> Result<()> {
        if barrier.is_ok() && self.coordinator() == Some(self.shared.me) {
            // The last to go, so that nobody has to take over. Whoever stays nevertheless is no reason to wait long.
            let until = clock::now() + self.shared.node_config().liveness.beat;
            let mut patience = || match clock::now() < until {
                true => Ok(()),
                false => Err(Error::new(ErrorKind::DeadlineExceeded, "somebody stays")),
            };
            let _ = self.until_gone_interruptible(|_| true, Some(&mut patience));
        }
        let left = self.leave();
        barrier.and(left)
    }

    /// Whether this node is a member: it has neither left nor failed, nor did the others declare it dead.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_base::config::Endpoint;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// assert!(mesh.is_member());
    /// mesh.leave()?;
    /// assert!(!mesh.is_member());
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    #[must_use]
    pub fn is_member(&self) -> bool {
        !self.owner.has_left.load(SeqCst) && self.shared.failure().is_none()
    }

    /// Ends this node's membership here and now, as the end of its process would: the others find it dead.
    pub fn abandon(&self) {
        if !self.owner.has_left.swap(true, SeqCst) {
            self.owner.end(Duration::ZERO);
        }
    }

    /// Leaves the mesh in order: the others agree that this node is gone, which is no death, and have all that it sent
    /// them before. Operations of this node that are pending end with an error. Blocks until that is so: while a peer
    /// is slow to take what was sent, for as long as some of it moves; while one takes nothing, for the liveness
    /// timeout.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded` if no agreement came in five liveness timeouts (the others will find this node dead then), or
    /// if a peer that lives does not take what it was sent; what else ended this node's membership.
    pub fn leave(&self) -> Result<()> {
        self.owner.leave()
    }

    /// Gives this node's membership up because something failed: the others are told `reason` at once, and their
    /// operations that need this node end with an error that repeats it. What was sent before may be lost. The same as
    /// dropping the last handle, but for the reason.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_base::config::Endpoint;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// mesh.fail("the disk is full");
    /// assert!(!mesh.is_member());
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn fail(&self, reason: &str) {
        self.owner.fail(reason);
    }
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mesh").field("node", &self.shared.me).finish_non_exhaustive()
    }
}

impl Owner {
    fn leave(&self) -> Result<()> {
        if self.has_left.swap(true, SeqCst) {
            return Ok(());
        }
        self.shared.is_going.store(true, SeqCst);
        let timeout = self.shared.node_config().liveness.timeout;
        let begun = clock::now();
        let outcome = if self.shared.failure().is_none() && !self.shared.table().is_empty() {
            self.shared.empty_idle_groups();
            self.shared.send_all_waiting(timeout);
            self.settle(begun + timeout / 2);
            self.agree_to_leave()
        } else {
            Ok(())
        };
        // From here on nobody waits for news of nodes that cannot be reached: none will come.
        self.shared.routes.note_change();
        let failure = outcome.as_ref().err().map(Error::what);
        self.shared.say_farewell(failure);
        // The last words to those who have no link yet: the news of this leave are among them.
        let until = clock::now() + timeout;
        for link in self.shared.routes.making() {
            let _ = link.wait_until(Some(until), None);
        }
        let flushed = match &outcome {
            Ok(()) => self.shared.node.flush(timeout).map_err(|error| error.operation("leave")),
            Err(_) => Ok(()),
        };
        self.end(timeout);
        outcome.and(flushed)
    }

    /// The engine ends this by itself: it gives up when there can be no agreement any more.
    fn agree_to_leave(&self) -> Result<()> {
        let (completer, left) = self.shared.node.pair("leave", None);
        let ending = move |outcome: Result<_>| completer.complete(outcome.map(drop));
        let operation = self.shared.begin(|operation, _| Event::Leave { operation }, ending);
        left.awaits(self.shared.awaited(Sort::Operation, operation.0));
        left.wait()
    }

    /// Tells the others that this node has failed, and ends.
    fn fail(&self, reason: &str) {
        if self.has_left.swap(true, SeqCst) {
            return;
        }
        self.shared.is_going.store(true, SeqCst);
        let reason: String = reason.chars().take(limits::FAILURE_CHARACTERS_MAX).collect();
        self.shared.say_farewell(Some(&reason));
        // What was seen before this is among what the others are told.
        self.shared.with_engine(|_, _| ());
        self.shared.with_engine(|state, now| state.engine.handle(now, Event::Fail { reason }));
        self.end(Duration::ZERO);
    }

    /// References that this node has passed on and that nobody has confirmed would be lost with it.
    fn settle(&self, until: Instant) {
        let (completer, settled) = self.shared.node.pair("leave", None);
        self.shared.flush_words();
        self.shared.references.when_settled(completer);
        let _ = settled.wait_until(Some(until), None);
    }

    /// Ends threads and links, and waits for peers that take nothing of what was sent for at most `stalled`. Nothing is
    /// left when this returns.
    fn end(&self, stalled: Duration) {
        self.shared.stopping.store(true, SeqCst);
        self.shared.routes.note_change();
        let closed = Error::new(ErrorKind::Closed, "this node has left the mesh");
        self.shared.calls.fail_all(&closed);
        self.shared.references.end();
        self.shared.departures.end(&closed);
        self.shared.attached.stop(&closed);
        self.shared.ticker.stop();
        // Before the links end: members that see their ends rely on it that this node's part is over.
        self.shared.end_groups(closed.clone());
        self.shared.node.shut_down_slowly(stalled);
        self.shared.end_groups(closed.clone());
        // After everything that ends tasks with a better reason.
        self.shared.runtime.tasks.stop();
        self.shared.end_unlinked(&closed);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread.filter(|thread| !thread.is_this()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.fail(match std::thread::panicking() {
            true => "it panicked",
            false if self.shared.attached.is_guest() => "it was dropped without `leave`",
            false => "its mesh was dropped without `leave` or `finish`",
        });
    }
}
