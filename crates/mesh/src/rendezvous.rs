//! How a process finds the others.
//!
//! The host of the rendezvous listens at the root: on its TCP port, and, for processes of the same host, on an abstract
//! Unix socket that is named after the port, so that they meet over shared memory. Everybody else listens at an address
//! of its own, connects to the root, again and again until the deadline, and introduces itself with that address.

use crate::awaited::Sort;
use crate::config::Config;
use crate::driver::Shared;
use crate::ended;
use crate::endpoints;
use crate::engine::{self, Engine, Introduction};
use crate::told::Told;
use sheave_base::clock;
use sheave_base::clock::Time;
use sheave_base::config::{Endpoint, Transport};
use sheave_base::work::{IDLE, Interrupt};
use sheave_base::{Error, ErrorKind, Result, Work, process, secret};
use sheave_net::{Address, ListenConfig, Node, NodeConfig, Span, interface};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one look at the join lasts before the link to the root is looked at again.
const SLICE: Duration = Duration::from_millis(100);

/// How long a root waits for its port, if that is in use: as long as a process needs to end.
const PORT_PATIENCE: Duration = Duration::from_secs(3);

/// Pause between two looks at that port.
const PORT_PAUSE: Duration = Duration::from_millis(20);

/// A node that has begun to join.
pub(crate) struct Joining {
    pub(crate) shared: Arc<Shared>,
    joined: Work<()>,
    root: Option<Address>,
    root_name: String,
    until: Instant,
    begun: Instant,
}

/// Finds the secret and the root, and listens. `interrupt` is asked while the root's port is in use.
pub(crate) fn begin(config: &Config, interrupt: &mut Option<Interrupt<'_>>) -> Result<Joining> {
    config.check()?;
    let begun = clock::now();
    let secret = match &config.node.secret {
        Some(secret) => secret.clone(),
        None => {
            secret::resolve(|name| std::env::var_os(name)).map_err(|error| error.operation("finding the secret"))?
        }
    };
    let secret_source = secret.source.clone();
    let node_config = NodeConfig {
        name: config.provisional_name(),
        role: config.role,
        rank: None,
        secret: Some(secret),
        ..config.node.clone()
    };
    let node = Node::start(node_config.clone())?;
    endpoints::ALL.iter().for_each(|number| node.expect(*number));
    let root = resolve(&config.root)?;
    let address = if config.hosts() {
        await_port(root, config.join_timeout.min(PORT_PATIENCE), interrupt)?;
        listen_at_root(&node, config, root)?
    } else {
        listen(&node, config, root)?
    };
    let introduction = Introduction {
        name: config.chosen_name().unwrap_or_default(),
        role: config.role,
        wanted_rank: config.rank,
        host: node.peer().host.clone().unwrap_or_default(),
        pid: process::id(),
        secret_source,
        address: address.to_string(),
        process: ended::mark(node.boot_id()),
    };
    let liveness = engine::Liveness { beat: config.node.liveness.beat, timeout: config.node.liveness.timeout };
    let engine_config = engine::Config {
        introduction,
        expected: config.expected,
        hosts: config.hosts(),
        liveness,
        join_timeout: patience(config),
    };
    // The wait for it is noted by itself, for it is one of many steps.
    let (completer, joined) = node.pair(IDLE, None);
    let root = (!config.hosts()).then(|| root_address(&node, root));
    let engine = Engine::new(engine_config, node.id(), Time(0));
    let shared = Shared::new(node, node_config, completer, engine);
    let until = begun + config.join_timeout;
    Ok(Joining { shared, joined, root, root_name: config.root.to_string(), until, begun })
}

impl Joining {
    /// Blocks until the mesh stands.
    pub(crate) fn finish(self, mut interrupt: Option<Interrupt<'_>>) -> Result<Arc<Shared>> {
        let shared = &self.shared;
        let waiting = shared.node.enter_wait("join", Some(shared.awaited(Sort::Join, 0)));
        let (mut notices, is_in_vain) = (shared.node.notices(self.begun), Cell::new(false));
        let mut refusals = 0;
        let mut coordinator = None;
        loop {
            if let Some(root) = &self.root
                && coordinator.is_none_or(|coordinator| shared.routes.get(coordinator).is_none())
                && !self.joined.is_done()
            {
                let mut asked = || {
                    is_in_vain.set(self.joined.is_done());
                    if is_in_vain.get() {
                        return Err(Error::new(ErrorKind::Cancelled, "the join has ended meanwhile"));
                    }
                    if let Some(span) = notices.due(clock::now()) {
                        let what = format!("join has been waiting for {span}");
                        shared.node.notice(&format!("{what}: nobody is met at {}", self.root_name));
                    }
                    interrupt.as_mut().map_or(Ok(()), |interrupt| interrupt())
                };
                let link = match shared.node.connect_interruptible(root, self.until, Some(&mut asked)) {
                    // What the root has said last came on the link before.
                    Err(_) if is_in_vain.get() => break,
                    link => link.map_err(|error| self.not_reached(error))?,
                };
                // A link that has ended already is made again.
                coordinator = shared.node.link(link).ok().and_then(|link| link.peer().node);
                if let Some(coordinator) = coordinator {
                    shared.tell(Told::Reached(coordinator));
                    shared.steer();
                }
            }
            let asked = interrupt.as_mut().map(|interrupt| interrupt as Interrupt<'_>);
            if self.joined.wait_until(Some(clock::now() + SLICE), asked)? {
                break;
            }
            refusals = self.tell_refusals(refusals);
            if let Some(span) = notices.due(clock::now()) {
                self.tell_missing(span);
            }
        }
        self.joined.wait().map_err(|error| {
            let error = error.operation("join");
            if error.after().is_none() { error.elapsed(clock::since(self.begun)) } else { error }
        })?;
        drop(waiting);
        Ok(self.shared)
    }

    /// The coordinator says to its user who is missing; the others are told when the join fails.
    fn tell_missing(&self, span: Span) {
        let missing = self.shared.with_engine(|state, _| state.engine.missing_at_rendezvous());
        if let Some(missing) = missing {
            self.shared.node.notice(&format!("join has been waiting for {span}: {missing}"));
        }
    }

    /// Strangers that were turned away at the door may be those who are missing.
    fn tell_refusals(&self, known: u64) -> u64 {
        let refusals = self.shared.node.refusals();
        if refusals.count > known
            && let Some(last) = refusals.last.back()
        {
            self.shared.tell(Told::Turned(last.to_string()));
            self.shared.steer();
        }
        refusals.count
    }

    fn not_reached(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::DeadlineExceeded {
            return error.context(format!("meeting at {}", self.root_name));
        }
        let what = format!("nobody was met at {}: {}", self.root_name, error.what());
        let error = Error::new(ErrorKind::DeadlineExceeded, what).operation("join").elapsed(clock::since(self.begun));
        error.hint("was the scheduler, or rank 0, started, and with the same root?")
    }
}

/// The host of the rendezvous gives up first, and tells the others who was missing while all of them are still there.
fn patience(config: &Config) -> Duration {
    let grace = if config.hosts() { Duration::ZERO } else { config.node.liveness.beat.min(config.join_timeout / 4) };
    config.join_timeout + grace
}

/// The addresses of the root, this host's own first.
fn resolve(root: &Endpoint) -> Result<SocketAddr> {
    let failed = |what: String| {
        Error::new(ErrorKind::InvalidArgument, format!("the root {root} cannot be resolved: {what}"))
            .operation("join")
            .hint("give an address that this host knows")
    };
    let addresses = (root.host.as_str(), root.port).to_socket_addrs().map_err(|error| failed(error.to_string()))?;
    let mut addresses: Vec<SocketAddr> = addresses.collect();
    // Names often mean ::1 first, where nobody listens; a stable order makes all sides choose the same.
    addresses.sort_by_key(|address| !address.is_ipv4());
    addresses.first().copied().ok_or_else(|| failed("it has no address".to_owned()))
}

/// The Unix socket of whoever listens at a root with this port, in this network namespace.
fn unix_name(port: u16) -> String {
    format!("sheave-root-{port}")
}

fn root_address(node: &Node, root: SocketAddr) -> Address {
    let mut address = Address::of_socket(root);
    // A socket can be bound to the addresses of this host only.
    if UdpSocket::bind((root.ip(), 0)).is_ok() {
        address.unix = Some(unix_name(root.port()));
        node.boot_id().clone_into(&mut address.boot_id);
    }
    address
}

/// Waits until nobody listens at the root's port, or it is too late: a scheduler that is ending may still.
fn await_port(root: SocketAddr, patience: Duration, interrupt: &mut Option<Interrupt<'_>>) -> Result<()> {
    #[cfg(feature = "simulated")]
    if sheave_base::simulated::current().is_some() {
        return Ok(());
    }
    let until = clock::now() + patience;
    let is_in_use = || TcpListener::bind(root).is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse);
    while is_in_use() && clock::now() < until {
        if let Some(interrupt) = interrupt {
            interrupt()?;
        }
        sheave_base::thread::sleep(PORT_PAUSE);
    }
    Ok(())
}

fn listen_at_root(node: &Node, config: &Config, root: SocketAddr) -> Result<Address> {
    let nothing = ListenConfig { tcp: None, unix: false, unix_name: None, insecure: config.insecure };
    let shares = config.node.transport != Transport::Tcp;
    // The port belongs to one process; its Unix socket must be there first, for joiners try it first.
    let unix = ListenConfig { unix: true, unix_name: Some(unix_name(root.port())), ..nothing.clone() };
    let near = if shares { node.listen(unix).ok() } else { None };
    let far = node.listen(ListenConfig { tcp: Some(root), ..nothing.clone() });
    let mut address = far.map_err(|error| {
        let error = error.context(format!("meeting at {root}"));
        if error.kind() != ErrorKind::AlreadyExists {
            return error;
        }
        error.hint("end that process, or choose another port for the root, the same for all processes")
    })?;
    let near = match near {
        None if shares => node.listen(ListenConfig { unix: true, ..nothing }).ok(),
        near => near,
    };
    address.unix = near.and_then(|near| near.unix);
    Ok(address)
}

fn listen(node: &Node, config: &Config, root: SocketAddr) -> Result<Address> {
    let transport = config.node.transport;
    let told = |port| config.host.clone().map(|host| resolve(&Endpoint { host, port })).transpose();
    let bind = if config.binds_host { told(config.bind.port())?.unwrap_or(config.bind) } else { bound(config)? };
    let tcp = (transport != Transport::Shm).then_some(bind);
    let unix = transport != Transport::Tcp;
    let listening = node.listen(ListenConfig { tcp, unix, unix_name: None, insecure: config.insecure });
    let mut address = listening.map_err(|error| match config.binds_host && error.advice().is_none() {
        true => error.hint("set SHEAVE_BIND to an address of this host; what the launcher names is then only told"),
        false => error,
    })?;
    if let Some(tcp) = &mut address.tcp {
        if let Some(told) = told(tcp.port())? {
            if tcp.ip().is_loopback() && !told.ip().is_loopback() {
                let what = format!("the others are told {told}, but this process listens at {tcp}, which is loopback");
                let error = Error::new(ErrorKind::InvalidArgument, what).operation("join");
                return Err(error.hint("set SHEAVE_BIND to an address of this host, or to 0.0.0.0"));
            }
            tcp.set_ip(told.ip());
        } else if tcp.ip().is_unspecified() {
            tcp.set_ip(ip_towards(root)?);
        }
    }
    Ok(address)
}

/// The address to listen on: that of the interface, if one is named and the config names no address but the usual one.
fn bound(config: &Config) -> Result<SocketAddr> {
    match &config.interface {
        Some(interface) if config.bind.ip().is_loopback() && config.host.is_none() => {
            let ip = interface::address_of(interface).map_err(|error| error.operation("join"))?;
            Ok(SocketAddr::new(ip, config.bind.port()))
        }
        _ => Ok(config.bind),
    }
}

/// The address that this host shows to the root. Nothing is sent.
fn ip_towards(root: SocketAddr) -> Result<IpAddr> {
    let any: SocketAddr = if root.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let ask = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind(any)?;
        socket.connect(root)?;
        Ok(socket.local_addr()?.ip())
    };
    ask().map_err(|error| Error::from(error).context("asking for this host's address").operation("join"))
}
