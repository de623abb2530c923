//! A gradient server on one node: what its two parts have in common.

use crate::ledger::Losses;
use crate::model::{Model, Tensors};
use crate::primary::Primary;
use crate::protocol::{BYE, FLUSH, FORWARD, HELLO, LOOK, PUSH, SETTLE, STATE, STEP};
use crate::reducer::{GradientId, Reducer, Settings};
use crate::secondary::Secondary;
use crate::servers::Servers;
use crate::step::{Native, Publish, Step, Stepper};
use parking_lot::Mutex;
use sheave_base::clock::Time;
use sheave_base::collections::HashMap;
use sheave_base::planted::{self, Bug};
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_mesh::{Lane, Member, Mesh, Request, Service, ServiceName, Timer, WeakMesh};
use sheave_optim::Optimizer;
use sheave_rpc::RpcGroup;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Mailboxes of what secondaries do, and primaries, and of all else.
pub(crate) const PUSHES: u64 = 0;
pub(crate) const SUMS: u64 = 1;
pub(crate) const QUESTIONS: u64 = 2;

/// A callback that is told which gradients a full queue has dropped.
pub type OnDrop = Box<dyn Fn(&[GradientId]) + Send + Sync>;

/// A gradient server on one node; a handle, cheap to clone. With the last one the server is stopped.
///
/// The node of [`Servers::primary`] has the parameters and the optimizer, and those of [`Servers::secondaries`] take
/// gradients of [clients](crate::GradientClient); a node may be both. A secondary sums
/// [`batch`](Settings::batch) gradients and sends the sum on; the primary makes a step of as many such sums.
///
/// ```
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
/// use sheave_learner::{Choice, GradientClient, GradientServer, Method, Model, Servers, Settings, Tensors};
/// use sheave_optim::Rule;
/// use sheave_rpc::Rpc;
/// use sheave_tensor::Tensor;
///
/// # let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let group = Rpc::serve(&mesh)?.create_group("learners", &[mesh.me().node], None).wait()?;
/// let parameters = Tensors::from([("weight".to_owned(), Tensor::from_slice(&[1.0_f32, 2.0], [2])?)]);
/// let (published, versions) = std::sync::mpsc::channel();
/// let settings = Settings { batch: 2, method: Method::Mean, ..Settings::default() };
/// let servers = Servers::of_group("gradients", &group)?;
/// let server = GradientServer::builder(&mesh, &group, &servers, &Model::of(&parameters)?)
///     .settings(settings)
///     .optimizer(Rule::sgd(1.0).into())
///     .start_from(0, parameters)
///     .publish(move |parameters, version| {
///         let _ = published.send((parameters["weight"].to_vec::<f32>()?, version));
///         Ok(())
///     })
///     .start(None)?
///     .wait()?;
///
/// let client = GradientClient::connect(&mesh, &group, &servers, Choice::RoundRobin, None)?.wait()?;
/// for value in [0.0_f32, 1.0, 2.0, 3.0] {
///     let gradient = Tensors::from([("weight".to_owned(), Tensor::from_slice(&[value, 0.5], [2])?)]);
///     client.push(&gradient)?.wait()?;
/// }
/// assert_eq!(versions.recv().unwrap(), (vec![-0.5, 1.5], 1));
/// assert_eq!((client.flush()?.wait()?, client.report()?.wait()?.applied), (1, 4));
/// server.stop();
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct GradientServer {
    /// Stops the server when the last handle is dropped.
    handle: Arc<Handle>,
}

struct Handle(Arc<Shared>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// The report of a gradient server: what it has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerReport {
    /// Gradients that this node has taken as a secondary.
    pub taken: u64,
    /// Gradients that it has sent on, in sums.
    pub forwarded: u64,
    /// Gradients that are in its queue, without those that are being summed or are on their way.
    pub queued: usize,
    /// Pushes that wait for room there.
    pub waiting: usize,
    /// Gradients that it has dropped, for want of room or at its end.
    pub dropped: Losses,
    /// On the primary, what it does there.
    pub primary: Option<PrimaryReport>,
}

/// The report of a primary: what it has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrimaryReport {
    /// The version of the parameters.
    pub version: u64,
    /// Gradients of clients that are in the steps of this server.
    pub applied: u64,
    /// Sums that are queued.
    pub queued: usize,
    /// Gradients that any server of this name has dropped.
    pub dropped: Losses,
    /// Gradients that a secondary had taken, and that died with it: those that clients have asked for so far.
    pub lost: Losses,
}

/// Makes a [`GradientServer`].
#[must_use = "a server begins with `start`"]
pub struct GradientServerBuilder {
    mesh: Mesh,
    group: RpcGroup,
    servers: Servers,
    model: Model,
    settings: Settings,
    version: u64,
    parameters: Option<Tensors>,
    optimizer: Option<Optimizer>,
    step: Option<Step>,
    publish: Option<Publish>,
    on_drop: Option<OnDrop>,
}

impl GradientServerBuilder {
    /// Sets how gradients are queued and reduced: the same at all servers of one name.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Steps the parameters by this optimizer, whose schedule follows the version. For the primary; others ignore it.
    pub fn optimizer(mut self, optimizer: Optimizer) -> Self {
        self.optimizer = Some(optimizer);
        self
    }

    /// Has steps made by the user's code in place of an optimizer. It may block; an error, or a panic, stops the
    /// server. For the primary; others ignore it.
    pub fn step(mut self, step: impl FnMut(Tensors, u64) -> Result<Option<Tensors>> + Send + 'static) -> Self {
        self.step = Some(Box::new(step));
        self
    }

    /// Begins with these parameters of this version, as a primary that is started again does. The next step is
    /// published as the version behind it. What the optimizer remembers begins anew, and its schedule goes on.
    pub fn start_from(mut self, version: u64, parameters: Tensors) -> Self {
        (self.version, self.parameters) = (version, Some(parameters));
        self
    }

    /// Tells the parameters and their version after each step. It may block, which delays the next step; an error, or a
    /// panic, stops the server.
    pub fn publish(mut self, publish: impl FnMut(Tensors, u64) -> Result<()> + Send + 'static) -> Self {
        self.publish = Some(Box::new(publish));
        self
    }

    /// Tells which gradients a full queue has dropped, or the primary has refused, on the thread that has dropped them;
    /// it must not block.
    pub fn on_drop(mut self, on_drop: impl Fn(&[GradientId]) + Send + Sync + 'static) -> Self {
        self.on_drop = Some(Box::new(on_drop));
        self
    }

    /// Begins to serve. The work ends when others find the server. Does not block.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for settings without a meaning, for a node that is neither primary nor secondary, and for a
    /// primary with neither an optimizer and parameters nor a step, or with both; `Mismatch` for parameters that are
    /// not those of the model; those of [`Optimizer::check`] and of [`RpcGroup::register`]. The work fails as that of
    /// [`RpcGroup::register`], with `AlreadyExists` where the group has such a server on this node.
    pub fn start(self, timeout: Option<Duration>) -> Result<Work<GradientServer>> {
        self.begin(timeout).map_err(|error| error.asked_for("start gradient server"))
    }

    fn begin(mut self, timeout: Option<Duration>) -> Result<Work<GradientServer>> {
        let node = self.mesh.me().node;
        self.servers.check(&self.group)?;
        let (is_primary, is_secondary) = (self.servers.primary == node, self.servers.secondaries.contains(&node));
        if !is_primary && !is_secondary {
            let what = format!("this node is neither primary nor secondary of {}", self.servers.name);
            return Err(Error::new(ErrorKind::InvalidArgument, what).hint("start servers on nodes that are"));
        }
        let secondary = match is_secondary {
            true => Some(Mutex::new(Secondary::new(Reducer::new(self.settings.clone())?))),
            false => None,
        };
        let primary = if is_primary { Some(self.primary()?) } else { None };
        let key = self.servers.key(&self.mesh, node)?;
        let (completer, watched) = self.mesh.node().pair("watch", None);
        let shared = Arc::new_cyclic(|own| Shared {
            mesh: self.mesh.downgrade(),
            group: self.group.clone(),
            lane: ServiceName::from(format!("sheave.learner.{}", self.servers.name)),
            servers: self.servers,
            settings: self.settings,
            model: self.model,
            node,
            own: own.clone(),
            key: key.clone(),
            end: Mutex::new(End { has_ended: false, completer: Some(completer) }),
            registration: Mutex::default(),
            watched,
            found: Mutex::default(),
            secondary,
            primary,
            on_drop: self.on_drop,
            membership: OnceLock::new(),
        });
        let membership = Membership(Arc::downgrade(&shared));
        let task = self.mesh.runtime().spawn(async move {
            let _membership = membership;
            std::future::pending::<()>().await;
        });
        let _ = shared.membership.set(task?);
        let registered = self.group.register(key.clone(), Desk(Arc::downgrade(&shared)), timeout)?;
        *shared.registration.lock() = Some(Arc::new(Registration { group: self.group, key }));
        let server = GradientServer { handle: Arc::new(Handle(shared)) };
        Ok(registered.map(move |()| Ok(server)))
    }

    fn primary(&mut self) -> Result<Primary> {
        let stepper = match (self.optimizer.take(), self.parameters.take(), self.step.take()) {
            (None, parameters, Some(step)) => {
                parameters.iter().try_for_each(|parameters| self.model.check(parameters))?;
                Stepper::User(step)
            }
            (Some(optimizer), Some(parameters), None) => {
                let native = Native::new(optimizer, &self.model, &parameters, self.mesh.node().arena())?;
                Stepper::Native(Box::new(native))
            }
            _ => {
                let what = "a primary needs an optimizer and parameters, or else a step";
                let hint = "give it `optimizer` and `start_from`, or `step`";
                return Err(Error::new(ErrorKind::InvalidArgument, what).hint(hint));
            }
        };
        let started = self.mesh.next_number("sheave.learner.primary").into();
        let learning = (stepper, self.publish.take());
        Ok(Primary::new(Reducer::new(self.settings.clone())?, self.version, learning, started))
    }
}

impl GradientServer {
    /// Returns a builder of this node's part of the servers.
    pub fn builder(mesh: &Mesh, group: &RpcGroup, servers: &Servers, model: &Model) -> GradientServerBuilder {
        GradientServerBuilder {
            mesh: mesh.clone(),
            group: group.clone(),
            servers: servers.clone(),
            model: model.clone(),
            settings: Settings::default(),
            version: 0,
            parameters: None,
            optimizer: None,
            step: None,
            publish: None,
            on_drop: None,
        }
    }

    /// Stops the server: who waits here is told, and nobody finds it any more. Gradients that it has taken and not sent
    /// on are dropped and reported; [`GradientClient::flush`](crate::GradientClient::flush) before it leaves none.
    /// Where this is the primary all secondaries end too, with the error that it was stopped. Does not block.
    /// Idempotent.
    pub fn stop(&self) {
        self.handle.0.stop();
    }

    /// Returns a work that ends when the server does: with nothing when it was stopped, or with the error that has
    /// stopped it. Every call gives the same.
    #[must_use]
    pub fn watch(&self) -> Work<()> {
        self.handle.0.watched.clone()
    }

    /// Returns what the server has done so far. Does not block.
    #[must_use]
    pub fn report(&self) -> ServerReport {
        self.handle.0.report()
    }

    /// Sends on what this node has taken as a secondary, and steps what it has as the primary, though no batch is full.
    /// Does not wait for that; [`GradientClient::flush`](crate::GradientClient::flush) does.
    pub fn flush(&self) {
        self.handle.0.flush_own();
    }
}

impl std::fmt::Debug for GradientServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GradientServer").field("key", &self.handle.0.key).finish_non_exhaustive()
    }
}

pub(crate) struct Shared {
    mesh: WeakMesh,
    group: RpcGroup,
    pub(crate) servers: Servers,
    pub(crate) settings: Settings,
    pub(crate) model: Model,
    pub(crate) node: NodeId,
    pub(crate) own: Weak<Self>,
    key: String,
    /// Where sums and steps are made that no request has asked for.
    lane: ServiceName,
    end: Mutex<End>,
    /// Its name in the group, until it is stopped.
    registration: Mutex<Option<Arc<Registration>>>,
    watched: Work<()>,
    /// How the mesh calls the servers of other nodes.
    found: Mutex<HashMap<NodeId, ServiceName>>,
    pub(crate) secondary: Option<Mutex<Secondary>>,
    pub(crate) primary: Option<Primary>,
    pub(crate) on_drop: Option<OnDrop>,
    /// A task of the node's, which ends with it.
    membership: OnceLock<sheave_mesh::Task>,
}

/// The name of a server in its group. It is taken away when nobody needs it any more: the server is stopped, and those
/// that asked what it had failed with before have been told.
pub(crate) struct Registration {
    group: RpcGroup,
    key: String,
}

impl Drop for Registration {
    fn drop(&mut self) {
        drop(self.group.deregister(self.key.as_str(), None));
    }
}

struct End {
    has_ended: bool,
    completer: Option<Completer<()>>,
}

impl Shared {
    pub(crate) fn mesh(&self) -> Result<Mesh> {
        let left = || Error::new(ErrorKind::Closed, format!("the node of gradient server {} has left", self.key));
        self.mesh.upgrade().ok_or_else(left)
    }

    pub(crate) fn now(&self) -> Result<Time> {
        Ok(self.mesh()?.runtime().now())
    }

    pub(crate) fn secondary(&self) -> Result<&Mutex<Secondary>> {
        let wrong = || self.wrong("secondary");
        self.secondary.as_ref().ok_or_else(wrong)
    }

    pub(crate) fn primary(&self) -> Result<&Primary> {
        self.primary.as_ref().ok_or_else(|| self.wrong("primary"))
    }

    fn wrong(&self, part: &str) -> Error {
        let what = format!("gradient server {} is no {part}", self.key);
        Error::new(ErrorKind::InvalidArgument, what).hint("give all nodes the same servers")
    }

    /// How the mesh calls the server of a node.
    pub(crate) async fn find(&self, node: NodeId) -> Result<(NodeId, ServiceName)> {
        let known = self.found.lock().get(&node).cloned();
        if let Some(service) = known {
            return Ok((node, service));
        }
        let key = self.servers.key(&self.mesh()?, node)?;
        let (node, service) = self.group.find(key, None)?.await?;
        self.found.lock().insert(node, service.clone());
        Ok((node, service))
    }

    /// Whether what came then has waited long enough.
    pub(crate) fn is_due(&self, oldest: Option<Time>, now: Time) -> bool {
        oldest.zip(self.settings.flush_after).is_some_and(|(oldest, after)| now.since(oldest) >= after)
    }

    /// A timer for when what came then has waited long enough.
    pub(crate) fn timer(&self, oldest: Option<Time>, mailbox: u64, act: fn(&Self)) -> Result<Option<Timer>> {
        let Some((oldest, after)) = oldest.zip(self.settings.flush_after) else { return Ok(None) };
        if planted::strikes(Bug::BatchOverdue) {
            return Ok(None);
        }
        let own = self.own.clone();
        let fire = move || {
            if let Some(shared) = own.upgrade() {
                shared.submit(mailbox, act);
            }
        };
        self.mesh()?.at(oldest.after(after), fire).map(Some)
    }

    /// Has a part look for something to do, on the lane of the server.
    pub(crate) fn submit(&self, mailbox: u64, act: fn(&Self)) {
        let (Ok(mesh), own) = (self.mesh(), self.own.clone()) else { return };
        mesh.submit(&self.lane, mailbox, move |turn| {
            let Some(shared) = own.upgrade() else { return };
            match turn {
                Ok(()) => act(&shared),
                Err(error) => shared.fail(error),
            }
        });
    }

    /// Something has gone wrong that the server cannot go on without.
    pub(crate) fn fail(&self, error: Error) {
        let error = error.context(format!("gradient server {}", self.key));
        self.end(&error, Err(error.clone()));
    }

    fn stop(&self) {
        let what = format!("gradient server {} was stopped", self.key);
        // Once: another server of this name may stand there by the second time.
        let registration = self.registration.lock().take();
        self.end(&Error::new(ErrorKind::Closed, what), Ok(()));
        drop(registration);
    }

    fn end(&self, error: &Error, outcome: Result<()>) {
        let completer = {
            let mut end = self.end.lock();
            if std::mem::replace(&mut end.has_ended, true) {
                return;
            }
            end.completer.take()
        };
        // Before anybody is answered, who may stop the server for that.
        let registration = self.registration.lock().clone();
        self.end_secondary(error);
        self.end_primary(error, registration.as_ref());
        if let Some(completer) = completer {
            completer.complete(outcome);
        }
    }

    fn report(&self) -> ServerReport {
        let mut report = ServerReport::default();
        if let Some(secondary) = &self.secondary {
            let secondary = secondary.lock();
            report.taken = secondary.reducer.taken();
            report.queued = secondary.reducer.len();
            report.waiting = secondary.reducer.waiting();
            report.forwarded = secondary.forwarded;
            report.dropped = secondary.dropped.clone();
        }
        report.primary = self.primary.as_ref().map(|primary| {
            let state = primary.state.lock();
            PrimaryReport {
                version: state.version,
                applied: state.applied,
                queued: state.reducer.len(),
                dropped: state.ledger.dropped.clone(),
                lost: state.ledger.lost.clone(),
            }
        });
        report
    }

    fn flush_own(&self) {
        if let Some(secondary) = &self.secondary {
            secondary.lock().hurry();
            self.submit(PUSHES, Self::drain_secondary);
        }
        if let Some(primary) = &self.primary {
            primary.state.lock().hurry();
            self.submit(SUMS, Self::drain_primary);
        }
    }

    fn hear(&self, request: Request) -> Result<()> {
        match request.method.as_str() {
            PUSH => self.take_push(request),
            FORWARD => self.take_forward(request),
            FLUSH => self.flush_secondary(request.reply),
            STEP => self.flush_primary(request.reply),
            SETTLE => self.settle(request.from, request.args, request.reply),
            HELLO => {
                let welcome = self.welcome(request.from, &request.args);
                request.reply.send(welcome.map(|model| (model, Default::default())));
                Ok(())
            }
            BYE => self.part_from(request.from, &request.args),
            STATE => {
                request.reply.send(self.state_of_primary().map(|version| (version, Default::default())));
                Ok(())
            }
            LOOK if request.from == self.servers.primary => {
                self.look_at_primary(Some(request.reply));
                Ok(())
            }
            _ => {
                request.reply.error(crate::protocol::unreadable());
                Ok(())
            }
        }
    }
}

/// That the node is there. It drops this when it leaves.
struct Membership(Weak<Shared>);

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            let what = format!("the node of gradient server {} has left", shared.key);
            let error = Error::new(ErrorKind::Closed, what);
            shared.end(&error, Err(error.clone()));
            shared.leave_questions(&error);
        }
    }
}

/// What others call. Pushes, sums and questions have a mailbox each: gradients of one client stay in their order, and a
/// long step delays neither pushes nor answers.
struct Desk(Weak<Shared>);

impl Service for Desk {
    fn handle(&self, request: Request) {
        // Without the server a request is dropped, which is answered.
        if let Some(shared) = self.0.upgrade() {
            // What a node asks that has no such part is dropped too.
            let _ = shared.hear(request);
        }
    }

    fn lane(&self) -> Lane {
        Lane::Serial
    }

    fn mailbox(&self, request: &Request) -> u64 {
        match request.method.as_str() {
            PUSH | FLUSH => PUSHES,
            FORWARD | STEP => SUMS,
            _ => QUESTIONS,
        }
    }

    fn awaited(&self, _: NodeId, _: u64) -> Option<String> {
        let shared = self.0.upgrade()?;
        let report = shared.report();
        let room = format!("{} gradients are queued and {} pushes wait for room", report.queued, report.waiting);
        let sums = report.primary.map_or(String::new(), |primary| {
            format!("; the primary has version {} and {} sums", primary.version, primary.queued)
        });
        Some(format!("gradient server {}: {room}{sums}", shared.key))
    }

    fn lost(&self, member: &Member, error: &Error) {
        let Some(shared) = self.0.upgrade() else { return };
        shared.fence(member.node);
        if member.node == shared.servers.primary {
            shared.fail(error.clone());
        }
    }
}
