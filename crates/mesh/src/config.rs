//! What a mesh is joined with.

use crate::engine::{Expected, Role};
use crate::environment::{Launcher, Membership};
use crate::meeting::Meeting;
use sheave_base::config::{LOSSES_VARIABLE, Place, Settings, check_names};
use sheave_base::{Error, ErrorKind, Result, limits};
use sheave_net::NodeConfig;
use std::ffi::OsString;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Tells on standard error, once in the life of this process, which names in its environment begin as settings do and
/// are none. Of the processes of one job on a host the first one tells it.
///
/// # Errors
///
/// `InvalidArgument` about the first of them if `SHEAVE_STRICT` is set, or about that variable itself.
pub fn check_environment() -> Result<()> {
    static TOLD: std::sync::Once = std::sync::Once::new();
    let unknown = check_names(std::env::vars_os().collect::<Vec<_>>())?;
    let is_first = std::env::var_os("SHEAVE_LOCAL_RANK").is_none_or(|rank| rank.is_empty() || rank == "0");
    if is_first && !unknown.is_empty() {
        TOLD.call_once(|| {
            for warning in unknown {
                // Nobody to tell is no reason to fail.
                let _ = writeln!(std::io::stderr(), "sheave: {warning}");
            }
        });
    }
    Ok(())
}

/// Who a process is in its job, where the job meets, and how its node is set up.
///
/// ```
/// use sheave_mesh::Config;
///
/// let environment = [("SHEAVE_RANK", "1"), ("SHEAVE_WORLD_SIZE", "2"), ("SHEAVE_ROOT", "127.0.0.1:7000")];
/// let lookup = |name: &str| environment.iter().find(|entry| entry.0 == name).map(|entry| entry.1.into());
/// let config = Config::from_lookup(lookup)?.expect("the environment describes a job");
/// assert_eq!((config.rank, config.expected.total()), (Some(1), 2));
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// What this process is there for.
    pub role: Role,
    /// Its rank within the role; without one the coordinator gives it one, by name.
    pub rank: Option<u32>,
    /// Unique in the mesh; the coordinator gives one if this is `None`.
    pub name: Option<String>,
    /// How many nodes of each role the mesh has; [`Expected::TOLD`] for a plain rank that the coordinator is to tell,
    /// with its rank.
    pub expected: Expected,
    /// Where the mesh meets: the scheduler listens there, or rank 0 where there is no scheduler.
    pub meeting: Meeting,
    /// How long the join may take.
    pub join_timeout: Duration,
    /// Where the others reach this node; port 0 stands for any that is free. Not for the one that listens at a root
    /// that is an address of this host.
    pub bind: SocketAddr,
    /// The address that the others are told, if it is not the bound one.
    pub host: Option<String>,
    /// Whether it listens at `host`, instead of `bind`, with the port of `bind`.
    pub binds_host: bool,
    /// The network interface whose address is bound, unless `bind` names one, and told, unless `host` does.
    pub interface: Option<String>,
    /// Permits addresses that other hosts can reach, without TLS.
    pub insecure: bool,
    /// Whether the launcher says that not all processes are on one host; `false` may also mean that it does not know.
    pub is_of_several_hosts: bool,
    /// The processes of the job on this host, those without work included, where they are not only those that join this
    /// mesh; if `None`, they are counted when all have met.
    pub local_ranks: Option<usize>,
    /// The pipe in which this process notes whom it has lost, for its launcher; see [`sheave_base::loss`].
    pub losses: Option<PathBuf>,
    /// The file with the rules of collective operations, for the room that has them.
    pub collective_table: Option<PathBuf>,
    /// The node's own settings. Its name, role and rank are filled in by the join. Nodes that join from threads of one
    /// process and have the same neighbourhood there are linked without sockets, once they have met.
    pub node: NodeConfig,
}

impl Config {
    /// A process of `role` in a mesh that meets as `meeting` says, with default settings.
    #[must_use]
    pub fn new(role: Role, rank: Option<u32>, expected: Expected, meeting: impl Into<Meeting>) -> Self {
        Self {
            role,
            rank,
            name: None,
            expected,
            meeting: meeting.into(),
            join_timeout: limits::JOIN_TIMEOUT,
            bind: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            host: None,
            binds_host: false,
            interface: None,
            insecure: false,
            is_of_several_hosts: false,
            local_ranks: None,
            losses: None,
            collective_table: None,
            node: NodeConfig::named(""),
        }
    }

    /// What the environment of this process says; `None` if nothing in it says that it is part of a job.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the variable, its value and what is allowed.
    pub fn from_env() -> Result<Option<Self>> {
        check_environment()?;
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// As [`Config::from_env`], from any source of variables. Pure.
    ///
    /// # Errors
    ///
    /// As [`Config::from_env`].
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>> {
        let settings = Settings::from_lookup(&lookup)?;
        let membership = Membership::from_lookup(&lookup)?;
        let given = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let is_bound = given("SHEAVE_BIND").is_some();
        let losses = given(LOSSES_VARIABLE).map(PathBuf::from);
        Ok(membership.map(|membership| {
            // DMLC names the address to listen on; without leave to be reached from outside it stays loopback.
            let names_bind = membership.source == Launcher::Dmlc && given("SHEAVE_HOST").is_none() && !is_bound;
            let config = Self::of(membership, &settings);
            let binds_host = names_bind && config.host.is_some() && settings.insecure;
            let host = config.host.filter(|_| !names_bind || binds_host);
            let interface = config.interface.filter(|_| !is_bound && settings.insecure);
            Self { host, binds_host, interface, losses, ..config }
        }))
    }

    /// A plain rank in a mesh that meets as `meeting` says; everything else is as sheave's own variables say, and what
    /// other launchers say does not count. Rank and size are `SHEAVE_RANK` and `SHEAVE_WORLD_SIZE`.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the variable, its value and what is allowed, or that is missing.
    pub fn meeting(lookup: impl Fn(&str) -> Option<OsString>, meeting: impl Into<Meeting>) -> Result<Self> {
        let (settings, place) = (Settings::from_lookup(&lookup)?, Place::from_lookup(&lookup)?);
        let needed = |value: Option<u32>, name: &str| {
            let missing = || Error::new(ErrorKind::InvalidArgument, format!("{name} is not set"));
            value.ok_or_else(|| missing().operation("join").hint("processes that meet in a store know rank and size"))
        };
        let size = needed(place.world_size.filter(|size| *size > 0), "SHEAVE_WORLD_SIZE")?;
        let rank = needed(place.rank, "SHEAVE_RANK")?;
        let mut config = Self::new(Role::Rank, Some(rank), Expected::ranks(size), meeting);
        config.name = place.name;
        config.host = place.host;
        config.join_timeout = place.join_timeout;
        config.set(&settings);
        Ok(config)
    }

    /// Takes what the settings say.
    fn set(&mut self, settings: &Settings) {
        self.bind = settings.bind;
        self.insecure = settings.insecure;
        self.local_ranks = settings.local_ranks;
        self.collective_table.clone_from(&settings.collective_table);
        self.node = NodeConfig::with_settings("", settings);
    }

    fn of(membership: Membership, settings: &Settings) -> Self {
        let expected = match membership.role {
            Role::Rank => Expected::ranks(membership.workers),
            _ => Expected { schedulers: 1, servers: membership.servers, workers: membership.workers, ranks: 0 },
        };
        let mut config = Self::new(membership.role, membership.rank, expected, membership.root);
        config.set(settings);
        if let (None, Some(local_size)) = (settings.local_ranks, membership.local_size) {
            config.node.local_ranks = local_size as usize;
        }
        // DMLC counts a group's, of which a host may have many.
        config.is_of_several_hosts = membership.role == Role::Rank
            && membership.local_size.is_some_and(|local_size| local_size < membership.workers);
        config.name = membership.name;
        config.join_timeout = membership.join_timeout;
        config.host = membership.host;
        config.interface = membership.interface;
        config
    }

    /// Whether this process listens at the root.
    #[must_use]
    pub fn hosts(&self) -> bool {
        match self.role {
            Role::Scheduler => true,
            Role::Rank => self.rank == Some(0),
            Role::Server | Role::Worker => false,
        }
    }

    /// Refuses what no mesh can be made from.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what).operation("join"));
        let places = self.expected.of(self.role);
        if self.expected == Expected::TOLD && self.role == Role::Rank && self.rank.is_none() {
            return Ok(());
        }
        if places == 0 {
            return refuse(format!("this process is a {}, but the mesh has none", self.role));
        }
        if let Some(rank) = self.rank.filter(|rank| *rank >= places) {
            return refuse(format!("{} {rank} of {places} does not exist: ranks begin at 0", self.role));
        }
        let Expected { schedulers, ranks, .. } = self.expected;
        if schedulers > 1 || (schedulers == 0 && ranks == 0) || (self.role == Role::Rank && self.rank.is_none()) {
            return refuse("a mesh has one scheduler, or ranks that know their numbers".to_owned());
        }
        if self.expected.total() as usize > limits::LINKS_MAX {
            return refuse(format!("a mesh has at most {} nodes", limits::LINKS_MAX));
        }
        Ok(())
    }

    /// What this process is called, if that is known before the coordinator has ranked it.
    pub(crate) fn chosen_name(&self) -> Option<String> {
        match (&self.name, self.rank) {
            (Some(name), _) => Some(name.clone()),
            (None, _) if self.role == Role::Scheduler => Some(Role::Scheduler.to_string()),
            (None, rank) => rank.map(|rank| format!("{}-{rank}", self.role)),
        }
    }

    /// What this process is called until the coordinator has named it.
    pub(crate) fn provisional_name(&self) -> String {
        self.chosen_name().unwrap_or_else(|| format!("{}-of-pid-{}", self.role, std::process::id()))
    }
}
