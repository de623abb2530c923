//! The variables of each launcher, read into a membership.

use sheave_base::config::{Endpoint, Place, Role, Root};
use sheave_base::{Error, ErrorKind, Result, limits};

use super::variables::{COUNT_MAX, Variables, needed};
use super::{Launcher, Membership, nodes, root};

/// A membership of which everything but who and where is still to be said.
fn plain(source: Launcher, role: Role, root: Root) -> Membership {
    Membership {
        role,
        root,
        workers: 0,
        servers: 0,
        rank: None,
        local_rank: None,
        local_size: None,
        group_size: 1,
        name: None,
        host: None,
        interface: None,
        is_one_host: false,
        source,
        join_timeout: limits::JOIN_TIMEOUT,
    }
}

/// The variables that a membership's numbers came from, for the errors about them.
pub(super) struct Names {
    pub(super) rank: &'static str,
    pub(super) size: &'static str,
    pub(super) all: &'static str,
    pub(super) local_rank: &'static str,
    pub(super) local_size: &'static str,
}

/// A membership that is not checked yet.
pub(super) type Named = (Membership, Names);

fn contradiction(what: String, hint: &'static str) -> Error {
    Error::new(ErrorKind::InvalidArgument, what).hint(hint)
}

pub(super) fn sheave(place: &Place, variables: &Variables<'_>) -> Result<Named> {
    let source = Launcher::Sheave;
    let is_counted = place.workers.is_some() || place.servers.is_some();
    let role = place.role.unwrap_or(if is_counted { Role::Worker } else { Role::Rank });
    let counts = [
        ("SHEAVE_WORKERS", place.workers.filter(|_| role == Role::Rank)),
        ("SHEAVE_SERVERS", place.servers.filter(|_| role == Role::Rank)),
        ("SHEAVE_WORLD_SIZE", place.world_size.filter(|_| role != Role::Rank)),
    ];
    if let Some((name, count)) = counts.into_iter().find_map(|(name, count)| Some((name, count?))) {
        let role_name = if place.role.is_some() { "SHEAVE_ROLE" } else { "the role" };
        return Err(contradiction(
            format!("{name} is \"{count}\", but {role_name} is \"{role}\""),
            "plain ranks have SHEAVE_WORLD_SIZE; the other roles have SHEAVE_WORKERS and SHEAVE_SERVERS",
        ));
    }
    let root = needed(place.root.clone(), "SHEAVE_ROOT", source)?;
    let local_size = variables.count("SHEAVE_LOCAL_RANKS")?;
    let membership = Membership { rank: place.rank, local_size, ..plain(source, role, root) };
    let names = Names {
        rank: "SHEAVE_RANK",
        size: match role {
            Role::Scheduler => "the number of schedulers",
            Role::Server => "SHEAVE_SERVERS",
            Role::Worker => "SHEAVE_WORKERS",
            Role::Rank => "SHEAVE_WORLD_SIZE",
        },
        all: "the sum of SHEAVE_WORKERS and SHEAVE_SERVERS",
        local_rank: "SHEAVE_LOCAL_RANK",
        local_size: "SHEAVE_LOCAL_RANKS",
    };
    if role == Role::Rank {
        let workers = needed(place.world_size, "SHEAVE_WORLD_SIZE", source)?;
        match place.rank {
            Some(rank) if workers == 0 => {
                let what = format!("SHEAVE_RANK is \"{rank}\", but SHEAVE_WORLD_SIZE is \"any\"");
                return Err(contradiction(what, "say how many ranks there are, or let rank 0 say which this one is"));
            }
            None if workers > 0 => _ = needed(place.rank, "SHEAVE_RANK", source)?,
            _ => {}
        }
        return Ok((Membership { workers, ..membership }, names));
    }
    let workers = needed(place.workers, "SHEAVE_WORKERS", source)?;
    let servers = needed(place.servers, "SHEAVE_SERVERS", source)?;
    Ok((Membership { workers, servers, ..membership }, names))
}

pub(super) fn dmlc(place: &Place, variables: &Variables<'_>) -> Result<Named> {
    let source = Launcher::Dmlc;
    let role = variables.read("DMLC_ROLE", "`scheduler`, `server` or `worker`", |text| {
        Role::from_name(text).filter(|role| *role != Role::Rank)
    })?;
    let role = role.unwrap_or(Role::Worker);
    let is_one_host = variables.number("DMLC_LOCAL", 0, 1)? == Some(1);
    let named = variables.host("DMLC_PS_ROOT_URI")?;
    let root = match &place.root {
        Some(root) => root.clone(),
        None => Root::Endpoint(Endpoint {
            host: match named {
                _ if is_one_host => "127.0.0.1".to_owned(),
                named => needed(named, "DMLC_PS_ROOT_URI", source)?,
            },
            port: needed(variables.port("DMLC_PS_ROOT_PORT")?, "DMLC_PS_ROOT_PORT", source)?,
        }),
    };
    let group_size = variables.count("DMLC_GROUP_SIZE")?.unwrap_or(1);
    let workers = needed(variables.count("DMLC_NUM_WORKER")?, "DMLC_NUM_WORKER", source)?;
    let servers = needed(variables.number("DMLC_NUM_SERVER", 0, COUNT_MAX)?, "DMLC_NUM_SERVER", source)?;
    let local_rank = variables.index("STEPMESH_GPU")?.filter(|_| role != Role::Scheduler);
    let is_interface =
        |text: &str| text.len() < 16 && !text.contains(['/', ':']) && text.bytes().all(|b| b.is_ascii_graphic());
    let interface = variables.read("DMLC_INTERFACE", "the name of a network interface, or `auto`", |text| {
        is_interface(text).then(|| text.to_owned())
    })?;
    let host = variables.host("DMLC_NODE_HOST")?;
    let rank = if role == Role::Scheduler { None } else { dmlc_rank(variables, role, group_size, local_rank)? };
    let names = Names {
        rank: rank.map_or("the rank", |(name, _)| name),
        size: if role == Role::Server { "the number of servers" } else { "the number of workers" },
        all: "the sum of DMLC_NUM_WORKER and DMLC_NUM_SERVER, times DMLC_GROUP_SIZE,",
        local_rank: "STEPMESH_GPU",
        local_size: "DMLC_GROUP_SIZE",
    };
    let membership = Membership {
        // Neither product can overflow: all factors are at most 16384.
        workers: workers * group_size,
        servers: servers * group_size,
        rank: rank.map(|(_, rank)| rank),
        local_rank,
        local_size: local_rank.map(|_| group_size),
        group_size,
        // On one host they reach each other over loopback, whatever its addresses to the world are.
        host: host.filter(|_| !is_one_host),
        interface: interface.filter(|name| name != "auto" && !is_one_host),
        is_one_host,
        ..plain(source, role, root)
    };
    Ok((membership, names))
}

/// The rank by whichever of three customs the launcher follows; where it follows several, they must agree.
fn dmlc_rank(
    variables: &Variables<'_>,
    role: Role,
    group_size: u32,
    local: Option<u32>,
) -> Result<Option<(&'static str, u32)>> {
    let of_role = if role == Role::Server { "DMLC_SERVER_ID" } else { "DMLC_WORKER_ID" };
    let group = variables.index("DMLC_NODE_RANK")?;
    let offset = variables.index("DMLC_RANK_OFFSET")?.unwrap_or(0);
    if let (Some(group), None, 2..) = (group, local, group_size) {
        return Err(contradiction(
            format!(
                "DMLC_NODE_RANK is \"{group}\" and DMLC_GROUP_SIZE is \"{group_size}\", but STEPMESH_GPU is not set"
            ),
            "set STEPMESH_GPU to the index of this process in its group",
        ));
    }
    let is_grouped = group.is_some() || local.is_some();
    let in_group = is_grouped.then(|| group.unwrap_or(0) * group_size + local.unwrap_or(0) + offset);
    let customs = [
        ("DMLC_RANK", variables.index("DMLC_RANK")?),
        (of_role, variables.index(of_role)?),
        ("the rank by DMLC_NODE_RANK and STEPMESH_GPU", in_group),
    ];
    let mut given = customs.into_iter().filter_map(|(name, rank)| Some((name, rank?)));
    let Some((name, rank)) = given.next() else { return Ok(None) };
    match given.find(|(_, other)| *other != rank) {
        None => Ok(Some((name, rank))),
        Some((other_name, other)) => Err(contradiction(
            format!("{name} is \"{rank}\", but {other_name} is \"{other}\""),
            "one of them is enough; several must agree",
        )),
    }
}

/// The names of a launcher's numbers about plain ranks.
struct Ranks {
    rank: &'static str,
    size: &'static str,
    local_rank: &'static str,
    local_size: &'static str,
}

impl Ranks {
    fn read(self, place: &Place, variables: &Variables<'_>, source: Launcher) -> Result<Named> {
        let local_size = variables.count(self.local_size)?;
        self.read_with(place, variables, source, local_size)
    }

    fn read_with(
        self,
        place: &Place,
        variables: &Variables<'_>,
        source: Launcher,
        local_size: Option<u32>,
    ) -> Result<Named> {
        let workers = needed(variables.count(self.size)?, self.size, source)?;
        let rank = needed(variables.index(self.rank)?, self.rank, source)?;
        let local_rank = variables.index(self.local_rank)?;
        if let Some(local_size) = local_size.filter(|local_size| *local_size > workers) {
            return Err(contradiction(
                format!("{} is \"{local_size}\", but {} is \"{workers}\"", self.local_size, self.size),
                "the ranks on one host are among those of the job",
            ));
        }
        let is_one_host = local_size == Some(workers);
        let root = root::find(place, variables, source, is_one_host)?;
        let membership = plain(source, Role::Rank, root);
        let names = Names {
            rank: self.rank,
            size: self.size,
            all: self.size,
            local_rank: self.local_rank,
            local_size: self.local_size,
        };
        Ok((Membership { workers, rank: Some(rank), local_rank, local_size, is_one_host, ..membership }, names))
    }
}

pub(super) fn torchrun(place: &Place, variables: &Variables<'_>) -> Result<Named> {
    let ranks = Ranks { rank: "RANK", size: "WORLD_SIZE", local_rank: "LOCAL_RANK", local_size: "LOCAL_WORLD_SIZE" };
    let named = ranks.read(place, variables, Launcher::Torchrun)?;
    match (variables.index("GROUP_RANK")?, named.0.rank) {
        (Some(group), Some(rank)) if group > rank => Err(contradiction(
            format!("GROUP_RANK is \"{group}\", but RANK is \"{rank}\""),
            "every agent starts at least one rank and the ranks follow their agents, so RANK is at least GROUP_RANK",
        )),
        _ => Ok(named),
    }
}

pub(super) fn open_mpi(place: &Place, variables: &Variables<'_>) -> Result<Named> {
    let ranks = Ranks {
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_size: "OMPI_COMM_WORLD_LOCAL_SIZE",
    };
    ranks.read(place, variables, Launcher::OpenMpi)
}

pub(super) fn pmi(place: &Place, variables: &Variables<'_>) -> Result<Named> {
    let ranks =
        Ranks { rank: "PMI_RANK", size: "PMI_SIZE", local_rank: "MPI_LOCALRANKID", local_size: "MPI_LOCALNRANKS" };
    let local_size = match variables.count(ranks.local_size)? {
        None => of_one_flux_host(variables, &ranks)?,
        told => told,
    };
    ranks.read_with(place, variables, Launcher::Pmi, local_size)
}

pub(super) fn flux(place: &Place, variables: &Variables<'_>) -> Result<Named> {
    let ranks = Ranks {
        rank: "FLUX_TASK_RANK",
        size: "FLUX_JOB_SIZE",
        local_rank: "FLUX_TASK_LOCAL_ID",
        local_size: "FLUX_JOB_NNODES",
    };
    let local_size = of_one_flux_host(variables, &ranks)?;
    ranks.read_with(place, variables, Launcher::Flux, local_size)
}

/// All ranks, where Flux says that there is one host. It does not say how many are on each of several.
fn of_one_flux_host(variables: &Variables<'_>, ranks: &Ranks) -> Result<Option<u32>> {
    match variables.count("FLUX_JOB_NNODES")? {
        Some(1) => variables.count(ranks.size),
        _ => Ok(None),
    }
}

/// Every pod has one process.
pub(super) fn leader_worker_set(place: &Place, variables: &Variables<'_>) -> Result<Named> {
    let source = Launcher::LeaderWorkerSet;
    let workers = needed(variables.count("LWS_GROUP_SIZE")?, "LWS_GROUP_SIZE", source)?;
    let rank = variables.index("LWS_WORKER_INDEX")?;
    let root = root::find(place, variables, source, false)?;
    let names = Names {
        rank: "LWS_WORKER_INDEX",
        size: "LWS_GROUP_SIZE",
        all: "LWS_GROUP_SIZE",
        local_rank: "the local rank",
        local_size: "the number of processes of a pod",
    };
    let rank = Some(needed(rank, names.rank, source)?);
    Ok((Membership { workers, rank, ..plain(source, Role::Rank, root) }, names))
}

pub(super) fn slurm(place: &Place, variables: &Variables<'_>) -> Result<Named> {
    let ranks = Ranks {
        rank: "SLURM_PROCID",
        size: if variables.has("SLURM_STEP_NUM_TASKS") { "SLURM_STEP_NUM_TASKS" } else { "SLURM_NTASKS" },
        local_rank: "SLURM_LOCALID",
        local_size: "SLURM_STEP_TASKS_PER_NODE",
    };
    let allowed = "numbers of ranks per host, as in 2(x3),1";
    let local_size = match variables.index("SLURM_NODEID")? {
        Some(host) => variables.read(ranks.local_size, allowed, |list| nodes::count_at(list, host))?,
        None => None,
    };
    ranks.read_with(place, variables, Launcher::Slurm, local_size.flatten())
}
