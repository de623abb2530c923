//! How a process finds the others.
//!
//! The host of the rendezvous listens at the root: on its TCP port, and, for processes of the same host, on an abstract
//! Unix socket that is named after the port, so that they meet over shared memory. Everybody else listens at an address
//! of its own, connects to the root, again and again until the deadline, and introduces itself with that address.
//!
//! Where the root is not known beforehand, the host of the rendezvous listens as everybody else does and puts its
//! address into a store; see [`crate::meeting`].

use crate::awaited::Sort;
use crate::config::Config;
use crate::driver::Shared;
use crate::ended;
use crate::endpoints;
use crate::engine::{self, Engine, Introduction};
use crate::hosts;
use crate::meeting::{self, Meet, Meeting, Published, Record};
use crate::told::Told;
use sheave_base::clock;
use sheave_base::clock::Time;
use sheave_base::config::{Endpoint, Transport};
use sheave_base::work::{IDLE, Interrupt};
use sheave_base::{Error, ErrorKind, LinkId, Result, Work, process};
use sheave_net::{Address, ListenConfig, Node, NodeConfig, Notices, Span, interface};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one look at the join lasts before the link to the root is looked at again.
const SLICE: Duration = Duration::from_millis(100);

/// How long a root waits for its port, if that is in use: as long as a process needs to end.
const PORT_PATIENCE: Duration = Duration::from_secs(3);

/// The first pause between two looks at the root's name, and the longest.
const RESOLVE_PAUSE: Duration = Duration::from_millis(50);
const RESOLVE_PAUSE_MAX: Duration = Duration::from_secs(1);

/// An address that no host has, beyond every router: the way there begins at the address that this host shows to
/// others.
const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);

/// Pause between two looks at that port.
const PORT_PAUSE: Duration = Duration::from_millis(20);

/// Whom a node that has begun to join connects to.
enum Root {
    /// Nobody: the others connect to it. In a store they find its address until it is dropped.
    Own(#[expect(dead_code, reason = "dropped at the end of the join")] Option<Published>),
    /// Whoever listens there, now or later.
    Known(Address),
    /// The one that has put its address into a store.
    Found(Arc<dyn Meet>, Record),
}

/// A node that has begun to join.
pub(crate) struct Joining {
    pub(crate) shared: Arc<Shared>,
    joined: Work<()>,
    root: Root,
    root_name: String,
    until: Instant,
    begun: Instant,
}

/// Finds the secret and the root, and listens. `interrupt` is asked while the root's port is in use, and while nobody
/// says where the root is.
pub(crate) fn begin(config: &Config, interrupt: &mut Option<Interrupt<'_>>) -> Result<Joining> {
    config.check()?;
    let begun = clock::now();
    let until = begun + config.join_timeout;
    let found = match &config.meeting {
        Meeting::Store(store) if !config.hosts() => {
            Some((Arc::clone(store), meeting::find(store, None, (begun, until), interrupt)?))
        }
        _ => None,
    };
    let (secret, is_published) = meeting::secret_of(config, found.as_ref().map(|found| &found.1))?;
    let secret_source = secret.source.clone();
    let published_secret = is_published.then(|| secret.secret.clone());
    let node_config = NodeConfig {
        name: config.provisional_name(),
        role: config.role,
        rank: None,
        secret: Some(secret),
        ..config.node.clone()
    };
    let node = Node::start(node_config.clone())?;
    endpoints::ALL.iter().for_each(|number| node.expect(*number));
    let (address, root) = match (&config.meeting, found) {
        (Meeting::Root(root), _) if config.hosts() => {
            (host_at(&node, config, root, until, interrupt)?, Root::Own(None))
        }
        (Meeting::Root(root), _) => {
            let root = resolve(root, until, interrupt)?;
            hosts::check_root(config, root)?;
            (listen(&node, config, Some(root))?, Root::Known(root_address(&node, root)))
        }
        (Meeting::Store(_), Some((store, record))) => {
            (listen(&node, config, record.address.tcp)?, Root::Found(store, record))
        }
        (Meeting::Store(store), None) => {
            let listening = listen(&node, config, None);
            let address = listening.inspect_err(|error| meeting::publish_failure(store, error))?;
            let published = meeting::publish(store, address.clone(), published_secret)?;
            (address, Root::Own(Some(published)))
        }
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
    let engine = Engine::new(engine_config, node.id(), Time(0));
    let shared = Shared::new(node, node_config, completer, engine);
    Ok(Joining { shared, joined, root, root_name: config.meeting.to_string(), until, begun })
}

impl Joining {
    /// Blocks until the mesh stands.
    pub(crate) fn finish(mut self, mut interrupt: Option<Interrupt<'_>>) -> Result<Arc<Shared>> {
        let shared = Arc::clone(&self.shared);
        let waiting = shared.node.enter_wait("join", Some(shared.awaited(Sort::Join, 0)));
        let mut notices = shared.node.notices(self.begun);
        let mut refusals = 0;
        let mut coordinator = None;
        loop {
            if !matches!(self.root, Root::Own(_))
                && coordinator.is_none_or(|coordinator| shared.routes.get(coordinator).is_none())
                && !self.joined.is_done()
            {
                let Some(link) = self.reach(&mut notices, &mut interrupt)? else { break };
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
        Ok(shared)
    }

    /// Links this node with the one that it meets at; `None` if the join has ended meanwhile.
    fn reach(&mut self, notices: &mut Notices, interrupt: &mut Option<Interrupt<'_>>) -> Result<Option<LinkId>> {
        loop {
            let is_in_vain = Cell::new(false);
            let node = &self.shared.node;
            let mut asked = || {
                is_in_vain.set(self.joined.is_done());
                if is_in_vain.get() {
                    return Err(Error::new(ErrorKind::Cancelled, "the join has ended meanwhile"));
                }
                if let Some(span) = notices.due(clock::now()) {
                    let what = format!("join has been waiting for {span}");
                    node.notice(&format!("{what}: nobody is met at {}", self.root_name));
                }
                interrupt.as_mut().map_or(Ok(()), |interrupt| interrupt())
            };
            let link = match &self.root {
                Root::Own(_) => return Ok(None),
                Root::Known(root) => node.connect_interruptible(root, self.until, Some(&mut asked)),
                Root::Found(_, record) => node.connect_known(&record.address, self.until, Some(&mut asked)),
            };
            let error = match link {
                Ok(link) => return Ok(Some(link)),
                // What the root has said last came on the link before.
                Err(_) if is_in_vain.get() => return Ok(None),
                Err(error) => error,
            };
            let is_stale = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Mismatch);
            let Root::Found(store, stale) = &self.root else { return Err(self.not_reached(error)) };
            if !is_stale {
                return Err(self.not_reached(error));
            }
            let record = meeting::find(store, Some(stale), (self.begun, self.until), interrupt)?;
            if !record.has_same_secret(stale) {
                let what = format!("{} has the secret of another attempt now", store.name());
                let error = Error::new(ErrorKind::Unauthenticated, what).operation("join");
                return Err(error.hint("join again, or give every attempt a store of its own"));
            }
            self.root = Root::Found(Arc::clone(store), record);
        }
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

/// The address of the root. Names of processes that have just begun come late, so it is asked for again until the
/// deadline of the join.
fn resolve(root: &Endpoint, until: Instant, interrupt: &mut Option<Interrupt<'_>>) -> Result<SocketAddr> {
    let (begun, mut pause) = (clock::now(), RESOLVE_PAUSE);
    for tries in 1_u32.. {
        let what = match look_up(root) {
            Ok(address) => return Ok(address),
            Err(what) => what,
        };
        let rest = until.saturating_duration_since(clock::now());
        if rest.is_zero() {
            let times = if tries == 1 { "once".to_owned() } else { format!("{tries} times") };
            let what = format!("the root {root} cannot be resolved, tried {times}: {what}");
            let error = Error::new(ErrorKind::InvalidArgument, what).operation("join");
            return Err(error.elapsed(clock::since(begun)).hint("give an address that this host knows"));
        }
        let pause_until = clock::now() + pause.min(rest);
        while clock::now() < pause_until {
            if let Some(interrupt) = interrupt {
                interrupt()?;
            }
            sheave_base::thread::sleep(PORT_PAUSE.min(pause_until.saturating_duration_since(clock::now())));
        }
        pause = (pause * 2).min(RESOLVE_PAUSE_MAX);
    }
    Err(Error::new(ErrorKind::Internal, "a name was looked up too often"))
}

/// One look at the addresses of the root; why there is none.
fn look_up(root: &Endpoint) -> std::result::Result<SocketAddr, String> {
    let addresses = (root.host.as_str(), root.port).to_socket_addrs().map_err(|error| error.to_string())?;
    let mut addresses: Vec<SocketAddr> = addresses.collect();
    // Names often mean ::1 first, where nobody listens; a stable order makes all sides choose the same.
    addresses.sort_by_key(|address| !address.is_ipv4());
    addresses.first().copied().ok_or_else(|| "it has no address".to_owned())
}

/// Whether the address is one of this host: a socket can be bound to no other.
fn is_own(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// The Unix socket of whoever listens at a root with this port, in this network namespace.
fn unix_name(port: u16) -> String {
    format!("sheave-root-{port}")
}

fn root_address(node: &Node, root: SocketAddr) -> Address {
    let mut address = Address::of_socket(root);
    if is_own(root.ip()) {
        address.unix = Some(unix_name(root.port()));
        node.boot_id().clone_into(&mut address.boot_id);
    }
    address
}

/// Listens at the root. Where its name does not resolve here, or to an address that is not this host's, as behind a
/// service or a translation of addresses, that is the configured address with the root's port, if others reach it.
fn host_at(
    node: &Node,
    config: &Config,
    root: &Endpoint,
    until: Instant,
    interrupt: &mut Option<Interrupt<'_>>,
) -> Result<Address> {
    let is_reached = !config.bind.ip().is_loopback();
    let known = if is_reached { look_up(root).ok() } else { Some(resolve(root, until, interrupt)?) };
    known.map_or(Ok(()), |known| hosts::check_root(config, known))?;
    let at = match known.filter(|known| !is_reached || is_own(known.ip())) {
        Some(known) => known,
        None => SocketAddr::new(config.bind.ip(), root.port),
    };
    await_port(at, config.join_timeout.min(PORT_PATIENCE), interrupt)?;
    let mut address = listen_at_root(node, config, at)?;
    if let Some(tcp) = address.tcp.as_mut().filter(|tcp| tcp.ip().is_unspecified()) {
        tcp.set_ip(ip_towards(known)?);
    }
    Ok(address)
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

/// Listens at the configured address. One that stands for all of this host's is told as the one towards `root`.
fn listen(node: &Node, config: &Config, root: Option<SocketAddr>) -> Result<Address> {
    let transport = config.node.transport;
    let told = |port| {
        let named = |what| Error::new(ErrorKind::InvalidArgument, what).operation("join");
        let look = |host: String| {
            let endpoint = Endpoint { host, port };
            look_up(&endpoint)
                .map_err(|what| named(format!("this host's own name {endpoint} cannot be resolved: {what}")))
        };
        config.host.clone().map(look).transpose()
    };
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

/// The address that this host shows to the root or, if that is not known, to the world; where no route leads there, one
/// that it has. Nothing is sent.
fn ip_towards(root: Option<SocketAddr>) -> Result<IpAddr> {
    match root {
        Some(root) => ip_shown_to(root),
        None => ip_shown_to(ANYWHERE).or_else(|_| interface::outward().map_err(|error| error.operation("join"))),
    }
}

fn ip_shown_to(root: SocketAddr) -> Result<IpAddr> {
    let any: SocketAddr = if root.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let ask = || -> std::io::Result<IpAddr> {
        let socket = UdpSocket::bind(any)?;
        socket.connect(root)?;
        Ok(socket.local_addr()?.ip())
    };
    ask().map_err(|error| Error::from(error).context("asking for this host's address").operation("join"))
}
