//! The places of a job's processes, as variables of their environments.

use crate::handed::{JobSecret, Losses};
use sheave_base::config::{Endpoint, INVITATION_VARIABLE, LOSSES_VARIABLE, Role};
use sheave_base::secret::{self, SECRET_FILE_VARIABLE, SECRET_VARIABLE};
use sheave_base::{Error, ErrorKind, Peer, Result, Secret, limits, port};
use sheave_mesh::Config;
use sheave_process::Command;
use std::net::{Ipv4Addr, TcpListener};

/// The variables that a job sets for each of its processes.
const OWN: [&str; 14] = [
    "SHEAVE_ROLE",
    "SHEAVE_ROOT",
    "SHEAVE_WORKERS",
    "SHEAVE_SERVERS",
    "SHEAVE_RANK",
    "SHEAVE_WORLD_SIZE",
    "SHEAVE_LOCAL_RANK",
    "SHEAVE_LOCAL_RANKS",
    "SHEAVE_NAME",
    // Set where there are other machines only: another job's would lead elsewhere.
    "SHEAVE_HOST",
    SECRET_FILE_VARIABLE,
    // Set where there can be no such file; another job's would count before it.
    SECRET_VARIABLE,
    LOSSES_VARIABLE,
    INVITATION_VARIABLE,
];

/// The same for programs that were written for ps-lite.
const PS_LITE: [&str; 6] =
    ["DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_NODE_HOST"];

/// The variables by which processes find their place in a job. A program that starts one job from within another one
/// removes them: those of the job around it would lead elsewhere.
///
/// ```
/// assert!(sheave_fleet::variables_of_jobs().any(|name| name == "SHEAVE_ROOT"));
/// ```
pub fn variables_of_jobs() -> impl Iterator<Item = &'static str> {
    OWN.into_iter().chain(PS_LITE)
}

/// Whether a job sets this variable itself, and if so for which programs.
///
/// ```
/// use sheave_fleet::{Setter, setter_of};
///
/// assert_eq!(setter_of("SHEAVE_RANK"), Some(Setter::Job));
/// assert_eq!(setter_of("DMLC_ROLE"), Some(Setter::PsLite));
/// assert_eq!(setter_of("SHEAVE_TRANSPORT"), None);
/// ```
#[must_use]
pub fn setter_of(variable: &str) -> Option<Setter> {
    match variable {
        own if OWN.contains(&own) => Some(Setter::Job),
        foreign if PS_LITE.contains(&foreign) => Some(Setter::PsLite),
        _ => None,
    }
}

/// The reason why a job sets a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setter {
    /// It tells each process its place.
    Job,
    /// It does so for programs that were written for ps-lite, unless it is told to leave that.
    PsLite,
}

/// One process of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobMember {
    /// The part that it plays.
    pub role: Role,
    /// Its number within the role; on this machine, where there are others.
    pub rank: u32,
    name: String,
}

impl JobMember {
    fn new(role: Role, rank: u32) -> Self {
        let name = if role == Role::Scheduler { role.to_string() } else { format!("{role}-{rank}") };
        Self { role, rank, name }
    }

    /// Returns its name in the mesh, as in `worker-0`.
    #[must_use]
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Returns it as errors name it.
    #[must_use]
    pub fn peer(&self) -> Peer {
        let peer = Peer::named(self.name()).role(self.role);
        if self.role == Role::Scheduler { peer } else { peer.rank(self.rank) }
    }
}

/// A job that is ready to be started on this machine: its processes, the port at which they meet, and what is handed to
/// them besides. It is to outlive the job: the secret is lost with it.
#[derive(Debug)]
pub struct JobPlan {
    members: Vec<JobMember>,
    workers: u32,
    servers: u32,
    is_for_ps_lite: bool,
    /// Whether the processes know which ranks they are.
    is_ranked: bool,
    /// Where other machines reach the processes, if there are some.
    host: Option<String>,
    root: Endpoint,
    secret: JobSecret,
    losses: Losses,
}

impl JobPlan {
    /// Plans so many workers and servers, with a scheduler beside the servers; plain ranks where there are no servers.
    /// Finds a free port and draws the job's secret.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a job without workers, `LimitExceeded` for more than [`limits::JOB_CHILDREN_MAX`]
    /// processes or if no port is free, `Io` if the system refuses.
    pub fn new(workers: u32, servers: u32) -> Result<Self> {
        let count = u64::from(workers) + u64::from(servers) + u64::from(servers > 0);
        if workers == 0 {
            let what = format!("a job of 0 workers and {servers} servers");
            return Err(Error::new(ErrorKind::InvalidArgument, what).hint("give it one worker at least"));
        }
        if count > limits::JOB_CHILDREN_MAX as u64 {
            let most = limits::JOB_CHILDREN_MAX;
            let what = format!("{count} processes are too many for one machine; the limit is {most}");
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        let members = members(workers, servers);
        let root = loopback(port::free()?);
        let (secret, losses) = (JobSecret::draw()?, Losses::new());
        let (is_for_ps_lite, is_ranked, host) = (true, true, None);
        Ok(Self { members, workers, servers, is_for_ps_lite, is_ranked, host, root, secret, losses })
    }

    /// Plans the processes of this machine in a job of plain ranks that has some on others.
    ///
    /// # Errors
    ///
    /// As [`JobPlan::new`], and what [`secret::resolve`] says.
    pub fn part(part: &JobPart) -> Result<Self> {
        let JobPart { root, name, processes, first_of, secret } = part;
        let plan = Self::new(*processes, 0)?.not_for_ps_lite();
        let named = |member: JobMember| JobMember { name: format!("{name}.{:02}", member.rank), ..member };
        let secret = match secret {
            Some(secret) => JobSecret::of(secret)?,
            None => JobSecret::of(&secret::resolve(|name| std::env::var_os(name))?.secret)?,
        };
        Ok(Self {
            members: plan.members.into_iter().map(named).collect(),
            workers: first_of.unwrap_or_default(),
            is_ranked: first_of.is_some(),
            host: std::env::var("SHEAVE_HOST").ok(),
            root: root.clone(),
            secret,
            ..plan
        })
    }

    /// Has the job meet at this port of loopback.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if the port cannot be listened on.
    pub fn meeting_at(mut self, port: u16) -> Result<Self> {
        self.root = loopback(port);
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| {
            let what = format!("port {port} of {} cannot be listened on: {error}", self.root.host);
            let hint = "end the process that listens there, or choose another port";
            Error::new(ErrorKind::AlreadyExists, what).hint(hint)
        })?;
        Ok(self)
    }

    /// Leaves the variables of ps-lite as they are.
    #[must_use]
    pub fn not_for_ps_lite(mut self) -> Self {
        self.is_for_ps_lite = false;
        self
    }

    /// The processes in the order in which they are started: first those that the others look for.
    #[must_use]
    pub fn members(&self) -> &[JobMember] {
        &self.members
    }

    /// Adds a member's name and place to the command of its process. What the command itself says of them is replaced:
    /// in an environment that belongs to another job it means that one.
    #[must_use]
    pub fn place(&self, local_rank: usize, command: Command) -> Command {
        let Some(member) = self.members.get(local_rank) else { return command };
        let mut command = command.name(member.name());
        if matches!(member.role, Role::Scheduler | Role::Server) {
            command = command.background();
        }
        if self.is_for_ps_lite {
            command = PS_LITE.into_iter().fold(command, Command::env_remove);
        }
        OWN.into_iter().fold(command, Command::env_remove).envs(self.variables(local_rank))
    }

    /// Returns how a member joins, where that is this process itself, with the settings that the environment has
    /// besides.
    ///
    /// # Errors
    ///
    /// As [`Config::from_env`], and `NotFound` for a place that is none.
    pub fn config(&self, local_rank: usize) -> Result<Config> {
        let own = self.variables(local_rank);
        let lookup = |name: &str| match own.iter().find(|(known, _)| *known == name) {
            Some((_, value)) => Some(value.into()),
            None if setter_of(name).is_some() => None,
            None => std::env::var_os(name),
        };
        let nowhere = || Error::new(ErrorKind::NotFound, format!("no process {local_rank} of {}", self.members.len()));
        let mut config = Config::from_lookup(lookup)?.ok_or_else(nowhere)?;
        config.node.secret = Some(secret::resolve(lookup)?);
        Ok(config)
    }

    /// The variables that tell a process its place.
    fn variables(&self, local_rank: usize) -> Vec<(&'static str, String)> {
        let Some(member) = self.members.get(local_rank) else { return Vec::new() };
        let mut variables = self.own(local_rank, member);
        if self.is_for_ps_lite {
            variables.extend(self.ps_lite(member));
        }
        variables
    }

    /// Returns what the processes of the job say of whom they have lost.
    #[must_use]
    pub fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Plain ranks are told how many they are; the others how many workers and servers there are.
    fn own(&self, local_rank: usize, member: &JobMember) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            ("SHEAVE_ROLE", member.role.to_string()),
            ("SHEAVE_ROOT", self.root.to_string()),
            ("SHEAVE_LOCAL_RANK", local_rank.to_string()),
            ("SHEAVE_LOCAL_RANKS", self.members.len().to_string()),
            ("SHEAVE_NAME", member.name()),
            self.secret.variable(),
        ];
        variables.extend(self.losses.variable());
        variables.extend(self.host.clone().map(|host| ("SHEAVE_HOST", host)));
        if !self.is_ranked {
            variables.push(("SHEAVE_WORLD_SIZE", "any".to_owned()));
            return variables;
        }
        if member.role == Role::Rank {
            variables.push(("SHEAVE_WORLD_SIZE", self.workers.to_string()));
        } else {
            let (workers, servers) = (self.workers.to_string(), self.servers.to_string());
            variables.extend([("SHEAVE_WORKERS", workers), ("SHEAVE_SERVERS", servers)]);
        }
        if member.role != Role::Scheduler {
            variables.push(("SHEAVE_RANK", member.rank.to_string()));
        }
        variables
    }

    /// Nothing for plain ranks: ps-lite knows no job without a scheduler.
    fn ps_lite(&self, member: &JobMember) -> Vec<(&'static str, String)> {
        if member.role == Role::Rank {
            return Vec::new();
        }
        let host = self.root.host.clone();
        let values = [
            member.role.to_string(),
            host.clone(),
            self.root.port.to_string(),
            self.workers.to_string(),
            self.servers.to_string(),
            host,
        ];
        PS_LITE.into_iter().zip(values).collect()
    }
}

/// The processes of one machine in a job that has some on others: all of them plain ranks.
#[derive(Clone, Debug)]
pub struct JobPart {
    /// Where the job meets; its rank 0 listens there.
    pub root: Endpoint,
    /// What this part is called; its processes are `name.00`, `name.01` and so on. Parts without ranks are ranked by
    /// their names.
    pub name: String,
    /// How many processes it has.
    pub processes: u32,
    /// If they are the first of the job: how many that has. The others are told by rank 0.
    pub first_of: Option<u32>,
    /// What all processes of the job know, and nobody else; if `None`, what this process's environment says.
    pub secret: Option<Secret>,
}

fn loopback(port: u16) -> Endpoint {
    Endpoint { host: Ipv4Addr::LOCALHOST.to_string(), port }
}

fn members(workers: u32, servers: u32) -> Vec<JobMember> {
    let several = |role, peers: u32| (0..peers).map(move |rank| JobMember::new(role, rank));
    if servers == 0 {
        return several(Role::Rank, workers).collect();
    }
    several(Role::Scheduler, 1).chain(several(Role::Server, servers)).chain(several(Role::Worker, workers)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_mesh::environment::{Launcher, Membership};

    #[test]
    fn servers_bring_a_scheduler_and_come_before_the_workers() {
        let names: Vec<String> = members(2, 2).iter().map(JobMember::name).collect();
        assert_eq!(names, ["scheduler", "server-0", "server-1", "worker-0", "worker-1"]);
        let names: Vec<String> = members(2, 0).iter().map(JobMember::name).collect();
        assert_eq!(names, ["rank-0", "rank-1"]);
    }

    /// A process reads what its job tells it, from sheave's variables as from ps-lite's.
    #[test]
    fn every_process_of_a_job_finds_its_place() {
        for (servers, of_ps_lite) in [(2, false), (2, true), (0, false)] {
            let plan = JobPlan::new(3, servers).expect("a port and a secret");
            for (local_rank, member) in plan.members.iter().enumerate() {
                let variables = if of_ps_lite { plan.ps_lite(member) } else { plan.own(local_rank, member) };
                let lookup = |name: &str| variables.iter().find(|one| one.0 == name).map(|one| one.1.clone().into());
                let place = Membership::from_lookup(lookup).expect("it makes sense").expect("it is part of a job");
                assert_eq!((place.role, place.workers, place.servers), (member.role, 3, servers));
                assert_eq!(place.root.to_string(), plan.root.to_string());
                if !of_ps_lite {
                    assert_eq!(place.source, Launcher::Sheave);
                    assert_eq!(
                        (place.rank, place.local_rank),
                        ((member.role != Role::Scheduler).then_some(member.rank), Some(local_rank as u32))
                    );
                    assert_eq!(place.name, Some(member.name()));
                }
            }
        }
    }

    #[test]
    fn the_first_part_of_a_job_knows_its_ranks_and_the_others_are_told() {
        let root = Endpoint { host: "node1".into(), port: 7000 };
        let part = |first_of| {
            let secret = Some(Secret::new(b"only this test knows it").expect("it is long enough"));
            JobPart { root: root.clone(), name: "there".into(), processes: 2, first_of, secret }
        };
        for (first_of, expected) in [(Some(4), (Some(1), 4)), (None, (None, 0))] {
            let plan = JobPlan::part(&part(first_of)).expect("there is a secret");
            let variables = plan.variables(1);
            let lookup = |name: &str| variables.iter().find(|one| one.0 == name).map(|one| one.1.clone().into());
            let place = Membership::from_lookup(lookup).expect("it makes sense").expect("it is part of a job");
            assert_eq!((place.rank, place.workers), expected);
            assert_eq!((place.root, place.name.as_deref()), (root.clone().into(), Some("there.01")));
            assert_eq!((place.local_rank, place.local_size), (Some(1), Some(2)));
        }
    }

    #[test]
    fn a_job_has_a_worker_and_an_end() {
        assert_eq!(JobPlan::new(0, 1).expect_err("nobody works").kind(), ErrorKind::InvalidArgument);
        let most = limits::JOB_CHILDREN_MAX as u32;
        assert_eq!(JobPlan::new(most, 1).expect_err("too many").kind(), ErrorKind::LimitExceeded);
    }

    #[test]
    fn a_job_meets_where_it_is_told_unless_somebody_listens_there() {
        let plan = JobPlan::new(1, 0).expect("a port and a secret");
        let taken = TcpListener::bind(plan.root.to_string()).expect("nobody listens there");
        let port = taken.local_addr().expect("it has one").port();
        let error = plan.meeting_at(port).expect_err("it is taken");
        assert!(error.kind() == ErrorKind::AlreadyExists && error.advice().is_some(), "{error}");
        drop(taken);
        let plan = JobPlan::new(1, 0).and_then(|plan| plan.meeting_at(port)).expect("it is free");
        assert_eq!(plan.root.port, port);
    }
}
