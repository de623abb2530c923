//! A guest as the program in it sees it.

use super::invitation::{Invitation, read_variable};
use super::{ATTACH, DOOR, READY};
use crate::call::{Answer, Call, Service, ServiceName};
use crate::driver::Shared;
use crate::endpoints;
use crate::engine::{self, Engine, Expected, Introduction, Role};
use crate::mesh::Mesh;
use crate::reference::Ref;
use crate::runtime::{Runtime, Timer};
use crate::weak::WeakMesh;
use sheave_base::clock;
use sheave_base::clock::Time;
use sheave_base::config::Settings;
use sheave_base::work::{IDLE, Interrupt};
use sheave_base::{Error, ErrorKind, NodeId, Peer, Result, Work, limits, secret};
use sheave_net::{Node, NodeConfig};
use sheave_wire::Value;
use std::any::Any;
use std::ffi::OsString;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a guest is made from.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// What its host has given to it.
    pub invitation: Invitation,
    /// The node's own settings. Its name is that of the invitation.
    pub node: NodeConfig,
    /// How long the attach may take.
    pub timeout: Duration,
}

impl GuestConfig {
    /// A guest with default settings.
    #[must_use]
    pub fn new(invitation: Invitation) -> Self {
        let node = NodeConfig::named(invitation.name());
        Self { invitation, node, timeout: limits::JOIN_TIMEOUT }
    }

    /// What the environment of this process says; `None` if it has no invitation ([`Invitation::VARIABLE`]).
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the variable and what is wrong.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// As [`GuestConfig::from_env`], from any source of variables. Pure.
    ///
    /// # Errors
    ///
    /// As [`GuestConfig::from_env`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>> {
        let Some(value) = lookup(Invitation::VARIABLE).filter(|value| !value.is_empty()) else { return Ok(None) };
        let invitation = read_variable(&value)?;
        let settings = Settings::from_lookup(&lookup)?;
        let node = NodeConfig::with_settings(invitation.name(), &settings);
        Ok(Some(Self { node, ..Self::new(invitation) }))
    }
}

/// A node that is attached to a host and is no member of the host's mesh: it calls its host, is called by its host, and
/// holds references to its host's objects as the host holds some to its own. Clones are handles to the same node.
///
/// A program ends it with [`Guest::leave`]. Dropping the last handle without it tells the host that the guest has
/// failed. When the host is gone, calls fail with `PeerLost` that names it, and [`Guest::until_gone`] returns.
#[derive(Clone)]
pub struct Guest {
    /// The mesh of this one node, whose engine has nobody to agree with.
    pub(super) alone: Mesh,
    host: Peer,
}

impl Guest {
    /// Attaches this process to the host that has given the invitation. Blocks until the host has taken it in, or the
    /// config's time is up.
    ///
    /// # Errors
    ///
    /// `Unauthenticated` for another secret than the job's, or another token than the invitation's; `NotPermitted` if
    /// no such invitation is open: it was used or withdrawn; `PeerLost` if the host is gone; `Mismatch` if another
    /// node than the host listens there; `DeadlineExceeded` if it does not answer in time.
    pub fn attach(config: GuestConfig) -> Result<Self> {
        Self::attach_interruptible(config, None)
    }

    /// Like [`Guest::attach`]; `interrupt` is asked at least every 100 ms, and its error ends the attempt.
    ///
    /// # Errors
    ///
    /// As [`Guest::attach`], and whatever `interrupt` says.
    pub fn attach_interruptible(config: GuestConfig, interrupt: Option<Interrupt<'_>>) -> Result<Self> {
        let begun = clock::now();
        let GuestConfig { invitation, node, timeout } = config;
        let mut interrupt = interrupt;
        let attached = begin(&invitation, node).and_then(|alone| {
            let host = alone.shared.reach_host(&invitation, begun + timeout, &mut interrupt)?;
            Ok(Self { alone, host })
        });
        attached.map_err(|error| {
            let error = error.asked_for("attach");
            if error.after().is_none() { error.elapsed(clock::since(begun)) } else { error }
        })
    }

    /// The name that the host has given to this guest.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.alone.me().introduction.name
    }

    /// The host, as errors name it.
    #[must_use]
    pub fn host(&self) -> &Peer {
        &self.host
    }

    /// The mesh that this node is alone in, by which it is called, and calls the node of its host: for those to whom a
    /// node is one of a mesh.
    #[must_use]
    pub fn mesh(&self) -> &Mesh {
        &self.alone
    }

    pub(super) fn host_node(&self) -> NodeId {
        self.host.node.unwrap_or_default()
    }

    /// Whether the host is there and this node has not left it.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.alone.is_member() && self.alone.shared.attached.link_of(self.host_node()).is_some()
    }

    /// Calls `method` of `service` on the host. See [`Mesh::call`].
    ///
    /// # Errors
    ///
    /// `PeerLost` that names the host if it is gone; `InvalidArgument` for a reference to an object of another node
    /// than these two; else as [`Mesh::call`]. A service that does not admit guests answers with `NotPermitted`.
    pub fn call(&self, service: impl Into<ServiceName>, method: &str, call: impl Into<Call>) -> Result<Work<Answer>> {
        self.alone.call(self.host_node(), service, method, call)
    }

    /// Calls `method` of `service` on the host and wants no answer. See [`Mesh::cast`].
    ///
    /// # Errors
    ///
    /// As [`Guest::call`] and [`Mesh::cast`].
    pub fn cast(&self, service: impl Into<ServiceName>, method: &str, call: impl Into<Call>) -> Result<()> {
        self.alone.cast(self.host_node(), service, method, call)
    }

    /// Returns what one-way calls of `service` on the host have failed with. See [`Mesh::check_one_way`].
    ///
    /// # Errors
    ///
    /// As [`Mesh::check_one_way`].
    pub fn check_one_way(&self, service: impl Into<ServiceName>) -> Result<()> {
        self.alone.check_one_way(self.host_node(), service)
    }

    /// Waits for room for a call of `service` on the host. See [`Mesh::room`].
    #[must_use]
    pub fn room(&self, service: impl Into<ServiceName>, deadline: Option<Duration>) -> Work<()> {
        self.alone.room(self.host_node(), service, deadline)
    }

    /// Offers a service that the host may call. It counts as a member of its role there.
    ///
    /// # Errors
    ///
    /// As [`Mesh::serve`].
    pub fn serve(&self, name: &str, service: impl Service) -> Result<()> {
        self.alone.serve(name, service)
    }

    /// Takes a service away. Requests that come later are refused.
    pub fn serve_no_more(&self, name: &str) {
        self.alone.serve_no_more(name);
    }

    /// Makes an object of this node one that the host can hold. See [`Mesh::export`].
    ///
    /// # Errors
    ///
    /// As [`Mesh::export`].
    pub fn export(&self, object: Arc<dyn Any + Send + Sync>) -> Result<Ref> {
        self.alone.export(object)
    }

    /// The reference that a [`Value::Ref`] names. See [`Mesh::hold`].
    ///
    /// # Errors
    ///
    /// As [`Mesh::hold`].
    pub fn hold(&self, value: &Value) -> Result<Ref> {
        self.alone.hold(value)
    }

    /// Whether this node may take a program from that one: from its host and itself. See [`Mesh::trusts`].
    #[must_use]
    pub fn trusts(&self, node: NodeId) -> bool {
        self.alone.trusts(node)
    }

    /// Begins a task. See [`Mesh::spawn`].
    ///
    /// # Errors
    ///
    /// As [`Mesh::spawn`].
    pub fn spawn<T: Send + 'static>(
        &self,
        operation: &'static str,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<Work<T>> {
        self.alone.spawn(operation, future)
    }

    /// Runs `action` at that time. See [`Mesh::at`].
    ///
    /// # Errors
    ///
    /// As [`Mesh::at`].
    pub fn at(&self, time: Time, action: impl FnOnce() + Send + 'static) -> Result<Timer> {
        self.alone.at(time, action)
    }

    /// The tasks and timers of this node.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        self.alone.runtime()
    }

    /// The node that carries this guest.
    #[must_use]
    pub fn node(&self) -> &Node {
        self.alone.node()
    }

    /// Tells the host that this guest is ready, for one that waits for it ([`Mesh::guest_ready`]): that it serves what
    /// it is there for, say. The work ends when the host has heard it.
    ///
    /// # Errors
    ///
    /// As [`Guest::call`].
    pub fn ready(&self) -> Result<Work<()>> {
        Ok(self.call(DOOR, READY, Value::None)?.map(|_| Ok(())))
    }

    /// Blocks until the host has left in order, and serves this node's links meanwhile: what the main thread of a
    /// worker process does.
    ///
    /// # Errors
    ///
    /// `PeerLost` that names the host if it died or failed; `Closed` if this node has left.
    pub fn until_gone(&self) -> Result<()> {
        self.until_gone_interruptible(None)
    }

    /// Like [`Guest::until_gone`]; `interrupt` is asked at least every 100 ms, and its error ends the wait.
    ///
    /// # Errors
    ///
    /// As [`Guest::until_gone`], and whatever `interrupt` says.
    pub fn until_gone_interruptible(&self, interrupt: Option<Interrupt<'_>>) -> Result<()> {
        let nodes = vec![self.host_node()];
        let waited = self.alone.shared.wait_for_departures(nodes, Vec::new(), interrupt);
        waited.map_err(|error| error.operation("until_gone"))
    }

    /// Leaves the host in order: it has all that was sent to it before, and hears that this was no death. Operations
    /// that are pending end with an error. Blocks while the host is slow to take what was sent, as [`Mesh::leave`]
    /// does.
    ///
    /// # Errors
    ///
    /// `DeadlineExceeded` if the host lives and does not take what it was sent.
    pub fn leave(&self) -> Result<()> {
        self.alone.leave()
    }

    /// Ends this node because something failed; the host hears the reason. See [`Mesh::fail`].
    pub fn fail(&self, reason: &str) {
        self.alone.fail(reason);
    }

    /// A handle that does not keep this node attached: for services, which the node itself holds.
    #[must_use]
    pub fn downgrade(&self) -> WeakGuest {
        WeakGuest { alone: self.alone.downgrade(), host: self.host.clone() }
    }
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guest").field("name", &self.name()).field("host", &self.host.name).finish_non_exhaustive()
    }
}

/// A handle to a guest that does not keep it attached.
#[derive(Clone, Debug)]
pub struct WeakGuest {
    alone: WeakMesh,
    host: Peer,
}

impl WeakGuest {
    /// The guest, unless it has left or is about to.
    #[must_use]
    pub fn upgrade(&self) -> Option<Guest> {
        self.alone.upgrade().map(|alone| Guest { alone, host: self.host.clone() })
    }
}

/// Starts the node of a guest: a mesh of its own, that stands at once.
pub(super) fn begin(invitation: &Invitation, config: NodeConfig) -> Result<Mesh> {
    let secret = match &config.secret {
        Some(secret) => secret.clone(),
        None => {
            secret::resolve(|name| std::env::var_os(name)).map_err(|error| error.operation("finding the secret"))?
        }
    };
    let introduction = Introduction {
        name: invitation.name().to_owned(),
        role: Role::Rank,
        wanted_rank: Some(0),
        host: String::new(),
        pid: std::process::id(),
        secret_source: secret.source.clone(),
        address: String::new(),
        process: String::new(),
    };
    let config = NodeConfig { name: invitation.name().to_owned(), rank: None, secret: Some(secret), ..config };
    let node = Node::start(config.clone())?;
    endpoints::ALL.iter().for_each(|number| node.expect(*number));
    let engine_config = engine::Config {
        introduction,
        expected: Expected::ranks(1),
        hosts: true,
        liveness: engine::Liveness { beat: config.liveness.beat, timeout: config.liveness.timeout },
        join_timeout: limits::JOIN_TIMEOUT,
    };
    let engine = Engine::new(engine_config, node.id(), Time(0));
    let (completer, joined) = node.pair(IDLE, None);
    let shared = Shared::new(node, config, completer, engine);
    let alone = Mesh::start(&shared, |_| Ok(()))?;
    joined.wait()?;
    Ok(alone)
}

impl Shared {
    /// Makes the link to the host and shows it the invitation. Returns the host.
    fn reach_host(
        self: &Arc<Self>,
        invitation: &Invitation,
        until: Instant,
        interrupt: &mut Option<Interrupt<'_>>,
    ) -> Result<Peer> {
        let address = &invitation.host;
        let named = || Peer::named(&address.name).node(address.node);
        let asked = interrupt.as_mut().map(|interrupt| interrupt as Interrupt<'_>);
        let link = self.node.connect_known(address, until, asked).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::new(ErrorKind::PeerLost, format!("the host is gone: {}", error.what()))
                .peer(named())
                .hint("has it left, or was it killed? its output says more"),
            _ if error.about().is_none() => error.peer(named()),
            _ => error,
        })?;
        let host = Peer { rank: None, ..self.node.link(link)?.peer().clone() };
        let role = host.role.unwrap_or(Role::Rank);
        self.attached.attach_host(host, link, role, self.end_pair(address.node));
        self.check_link_of(address.node, link);
        let rank = self.show_invitation(invitation, until, interrupt)?;
        self.attached.host_has_rank(address.node, rank);
        self.attached
            .peer(address.node)
            .ok_or_else(|| Error::new(ErrorKind::PeerLost, "the host is gone").peer(named()))
    }

    fn show_invitation(
        self: &Arc<Self>,
        invitation: &Invitation,
        until: Instant,
        interrupt: &mut Option<Interrupt<'_>>,
    ) -> Result<u32> {
        let host = invitation.host.node;
        let token = Value::Bytes(invitation.token.expose().to_vec());
        let args = vec![Value::Str(invitation.name.clone()), token, Value::Int(host.0.cast_signed())];
        let deadline = Some(until.saturating_duration_since(clock::now()));
        let call = Call { args: Value::List(args), deadline, ..Call::default() };
        let answer = self.call(host, DOOR.into(), ATTACH, call)?;
        let asked = interrupt.as_mut().map(|interrupt| interrupt as Interrupt<'_>);
        answer.wait_until(None, asked)?;
        let Value::Int(rank) = answer.wait()?.value else {
            return Err(Error::new(ErrorKind::Protocol, "the host has answered without its rank"));
        };
        u32::try_from(rank).map_err(|_| Error::new(ErrorKind::Protocol, format!("the host has rank {rank}")))
    }
}
