//! Who runs in a job, and with which environment.

use super::Arguments;
use super::handed::{JobSecret, Losses};
use crate::Failure;
use sheave_base::config::{INVITATION_VARIABLE, LOSSES_VARIABLE, Role, Settings, unknown_names};
use sheave_base::secret::{SECRET_FILE_VARIABLE, SECRET_VARIABLE};
use sheave_base::{limits, port};
use sheave_process::Command;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

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
    // Not set: the processes of one machine need none, and another job's would lead elsewhere.
    "SHEAVE_HOST",
    SECRET_FILE_VARIABLE,
    // Set where there can be no such file; another job's would count before it.
    SECRET_VARIABLE,
    LOSSES_VARIABLE,
    INVITATION_VARIABLE,
];

/// The same for programs that were written for ps-lite.
const DMLC: [&str; 6] =
    ["DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_NODE_HOST"];

/// The variables by which processes find their place in a job. Who starts one job from within another one removes
/// them: those of the job around it would lead elsewhere.
///
/// ```
/// assert!(sheave_cli::variables_of_jobs().any(|name| name == "SHEAVE_ROOT"));
/// ```
pub fn variables_of_jobs() -> impl Iterator<Item = &'static str> {
    OWN.into_iter().chain(DMLC)
}

/// One process of the job.
#[derive(Clone, Debug)]
struct Member {
    role: Role,
    /// Counted within the role.
    rank: u32,
}

impl Member {
    fn name(&self) -> String {
        match self.role {
            Role::Scheduler => "scheduler".to_owned(),
            role => format!("{role}-{}", self.rank),
        }
    }
}

/// A job that is ready to be started.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    arguments: &'a Arguments,
    members: Vec<Member>,
    root: SocketAddr,
    secret: JobSecret,
    losses: Losses,
}

impl<'a> Plan<'a> {
    /// Checks the command line, finds a free port and draws the job's secret, which is lost with the plan: it is to
    /// outlive the job.
    pub(crate) fn new(arguments: &'a Arguments) -> Result<Self, Failure> {
        let Arguments { workers, servers, env, env_worker, env_server, no_dmlc, .. } = arguments;
        let count = u64::from(*workers) + u64::from(*servers) + u64::from(*servers > 0);
        if count > limits::JOB_CHILDREN_MAX as u64 {
            let most = limits::JOB_CHILDREN_MAX;
            return Err(Failure::Usage(format!("{count} processes are too many for one machine; the limit is {most}")));
        }
        for variables in [env, env_worker, env_server] {
            check_variables(variables, *no_dmlc)?;
        }
        let members = members(*workers, *servers);
        check_input(arguments, members.len())?;
        Ok(Self { arguments, members, root: free_address()?, secret: JobSecret::draw()?, losses: Losses::new() })
    }

    /// As [`Plan::new`], for a job that meets at this port of loopback, which must be free.
    pub(crate) fn meeting_at(arguments: &'a Arguments, port: u16) -> Result<Self, Failure> {
        let root = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        TcpListener::bind(root).map_err(|error| {
            let hint = "end the process that listens there, or choose another port";
            Failure::Usage(format!("port {port} of {} cannot be listened on: {error}; hint: {hint}", root.ip()))
        })?;
        Ok(Self { root, ..Self::new(arguments)? })
    }

    /// The commands in the order in which they are started: first those that the others look for.
    pub(crate) fn commands(&self) -> impl Iterator<Item = Command> {
        self.members.iter().enumerate().map(|(local_rank, member)| self.command(local_rank, member))
    }

    /// Whom the processes of the job say they have lost.
    pub(crate) fn losses(&self) -> &Losses {
        &self.losses
    }

    fn command(&self, local_rank: usize, member: &Member) -> Command {
        let arguments = self.arguments;
        let (program, rest) = match arguments.command.split_first() {
            Some((program, rest)) => (program.clone(), rest),
            None => (OsString::new(), &[][..]),
        };
        let mut command = Command::new(program).args(rest).name(member.name());
        if matches!(member.role, Role::Scheduler | Role::Server) {
            command = command.background();
        }
        if self.members.len() == 1 {
            command = command.inherit_input();
        }
        if !arguments.no_dmlc {
            // Those of a job around this one would lead elsewhere.
            command = DMLC.into_iter().fold(command, Command::env_remove);
            command = command.envs(self.dmlc(member));
        }
        command = command.envs(arguments.env.iter().cloned());
        command = match member.role {
            Role::Worker | Role::Rank => command.envs(arguments.env_worker.iter().cloned()),
            Role::Server => command.envs(arguments.env_server.iter().cloned()),
            Role::Scheduler => command,
        };
        // Those of a job around this one mean another job.
        command = OWN.into_iter().fold(command, Command::env_remove);
        command.envs(self.own(local_rank, member))
    }

    /// Plain ranks are told how many they are; the others how many workers and servers there are.
    fn own(&self, local_rank: usize, member: &Member) -> Vec<(&'static str, String)> {
        let Arguments { workers, servers, .. } = self.arguments;
        let mut variables = vec![
            ("SHEAVE_ROLE", member.role.to_string()),
            ("SHEAVE_ROOT", self.root.to_string()),
            ("SHEAVE_LOCAL_RANK", local_rank.to_string()),
            ("SHEAVE_LOCAL_RANKS", self.members.len().to_string()),
            ("SHEAVE_NAME", member.name()),
            self.secret.variable(),
        ];
        variables.extend(self.losses.variable());
        if member.role == Role::Rank {
            variables.push(("SHEAVE_WORLD_SIZE", workers.to_string()));
        } else {
            variables.extend([("SHEAVE_WORKERS", workers.to_string()), ("SHEAVE_SERVERS", servers.to_string())]);
        }
        if member.role != Role::Scheduler {
            variables.push(("SHEAVE_RANK", member.rank.to_string()));
        }
        variables
    }

    /// Nothing for plain ranks: ps-lite knows no job without a scheduler.
    fn dmlc(&self, member: &Member) -> BTreeMap<&'static str, String> {
        if member.role == Role::Rank {
            return BTreeMap::new();
        }
        let Arguments { workers, servers, .. } = self.arguments;
        let host = self.root.ip().to_string();
        let values = [
            member.role.to_string(),
            host.clone(),
            self.root.port().to_string(),
            workers.to_string(),
            servers.to_string(),
            host,
        ];
        DMLC.into_iter().zip(values).collect()
    }
}

fn members(workers: u32, servers: u32) -> Vec<Member> {
    let several = |role, peers: u32| (0..peers).map(move |rank| Member { role, rank });
    if servers == 0 {
        return several(Role::Rank, workers).collect();
    }
    several(Role::Scheduler, 1).chain(several(Role::Server, servers)).chain(several(Role::Worker, workers)).collect()
}

/// An interpreter that is told to read its program from standard input would find nothing there and end well.
fn check_input(arguments: &Arguments, processes: usize) -> Result<(), Failure> {
    let [program, rest @ ..] = arguments.command.as_slice() else { return Ok(()) };
    let name = std::path::Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let interprets =
        name.starts_with("python") || ["sh", "bash", "dash", "zsh", "perl", "ruby", "node"].contains(&&*name);
    if processes == 1 || !interprets || !(rest.is_empty() || rest == ["-"]) {
        return Ok(());
    }
    let line = arguments.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let hint = "write the program into a file, or launch one process";
    Err(Failure::Usage(format!(
        "{line} reads its program from standard input, which {processes} processes cannot share; hint: {hint}"
    )))
}

/// A mistake in a setting is found here, before it is found by every process.
fn check_variables(variables: &[(String, String)], no_dmlc: bool) -> Result<(), Failure> {
    for (name, _) in variables {
        if OWN.contains(&&**name) || (!no_dmlc && DMLC.contains(&&**name)) {
            let hint = if DMLC.contains(&&**name) { "; hint: --no-dmlc leaves it to you" } else { "" };
            return Err(Failure::Usage(format!("{name} is set by sheave launch itself{hint}")));
        }
    }
    let usage = |error: sheave_base::Error| Failure::Usage(error.to_string());
    // Whoever names a variable here means it, so that an unknown one is a mistake.
    if let Some(error) = unknown_names(variables.iter().map(|(name, value)| (name, value))).into_iter().next() {
        return Err(usage(error));
    }
    // What is not given here was checked already in our own environment.
    let given = |name: &str| variables.iter().rfind(|(given, _)| given == name).map(|(_, value)| value.into());
    Settings::from_lookup(|name| given(name).or_else(|| std::env::var_os(name))).map_err(usage)?;
    Ok(())
}

/// An address that nobody listens on now.
fn free_address() -> Result<SocketAddr, Failure> {
    let port = port::free().map_err(|error| Failure::Run(error.to_string()))?;
    Ok((Ipv4Addr::LOCALHOST, port).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_bring_a_scheduler_and_come_before_the_workers() {
        let names: Vec<String> = members(2, 2).iter().map(Member::name).collect();
        assert_eq!(names, ["scheduler", "server-0", "server-1", "worker-0", "worker-1"]);
        let names: Vec<String> = members(2, 0).iter().map(Member::name).collect();
        assert_eq!(names, ["rank-0", "rank-1"]);
    }

    #[test]
    fn what_the_job_sets_itself_cannot_be_given() {
        let variable = |name: &str, value: &str| [(name.to_owned(), value.to_owned())];
        for name in OWN {
            assert!(check_variables(&variable(name, "1"), true).is_err(), "{name}");
        }
        for name in DMLC {
            assert!(check_variables(&variable(name, "1"), false).is_err(), "{name}");
            assert!(check_variables(&variable(name, "1"), true).is_ok(), "{name}");
        }
        assert!(check_variables(&variable("SHEAVE_TRANPORT", "tcp"), false).is_err());
        assert!(check_variables(&variable("SHEAVE_TRANSPORT", "pigeon"), false).is_err());
        assert!(check_variables(&variable("SHEAVE_TRANSPORT", "tcp"), false).is_ok());
    }

    /// What a job tells its processes is what a process reads, from sheave's variables as from ps-lite's.
    #[test]
    fn every_process_of_a_job_finds_its_place() {
        use clap::Parser;
        use sheave_mesh::environment::{Launcher, Membership};
        for (servers, of_ps_lite) in [(2, false), (2, true), (0, false)] {
            let line = ["launch", "-n", "3", "-s", if servers == 0 { "0" } else { "2" }, "--", "true"];
            let arguments = Line::parse_from(line).arguments;
            let Ok(plan) = Plan::new(&arguments) else { panic!("the line makes sense") };
            for (local_rank, member) in plan.members.iter().enumerate() {
                let variables: Vec<(&str, String)> =
                    if of_ps_lite { plan.dmlc(member).into_iter().collect() } else { plan.own(local_rank, member) };
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

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn a_free_address_can_be_listened_on() {
        let Ok(address) = free_address() else { panic!("loopback has no port") };
        assert!(address.ip().is_loopback() && TcpListener::bind(address).is_ok());
    }
}
