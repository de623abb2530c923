//! Who this process is in its job, as the environment that it was launched in says.
//!
//! [`Membership::from_lookup`] knows the variables of sheave itself, of DMLC, torchrun, Open MPI, PMI, Flux, Slurm and
//! the LeaderWorkerSet of Kubernetes. One launcher often runs within another (torchrun in a Slurm job, mpirun in an
//! allocation), and then the variables of both are there. The order in which they are asked is the order of
//! [`Launcher`]: what a person says for sheave comes first, then the launchers that people run inside others, and those
//! inside which all of them run come last. Launchers that say which of its processes this is, but not how many there
//! are, are refused: alone, it would give the result of another program.
//!
//! All variables are in [`keys`](sheave_base::config::keys) and [`FOREIGN`](sheave_base::config::FOREIGN), from which
//! the page `docs/configuration.md` is made; a test holds every variable that is looked up against them.

mod nodes;
mod read;
mod root;
#[cfg(test)]
mod tests;
mod variables;

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use sheave_base::config::Place;
pub use sheave_base::config::{Endpoint, Role, Root};
use sheave_base::{Error, ErrorKind, Result, limits};

use read::Names;
use variables::Variables;

/// Who launched this process, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// `sheave launch`, or a person, by the `SHEAVE_*` variables.
    Sheave,
    /// The tracker of DMLC, as MXNet, BytePS and StepMesh know it, by the `DMLC_*` variables.
    Dmlc,
    /// torchrun, or whatever sets the same variables for `torch.distributed`.
    Torchrun,
    /// The mpirun of Open MPI.
    OpenMpi,
    /// The mpiexec of MPICH or Intel MPI.
    Pmi,
    /// Flux.
    Flux,
    /// The srun of Slurm.
    Slurm,
    /// The LeaderWorkerSet of Kubernetes.
    LeaderWorkerSet,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sheave => "sheave",
            Self::Dmlc => "DMLC",
            Self::Torchrun => "torchrun",
            Self::OpenMpi => "Open MPI",
            Self::Pmi => "PMI",
            Self::Flux => "Flux",
            Self::Slurm => "Slurm",
            Self::LeaderWorkerSet => "LeaderWorkerSet",
        })
    }
}

/// The place of this process in its job, and where the job meets.
///
/// What [`Membership::from_lookup`] returns holds together: the job has at most [`limits::LINKS_MAX`] workers and
/// servers, `rank` is below [`Membership::size`], and `local_rank` is below `local_size` where both are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// What this process is.
    pub role: Role,
    /// Where the job meets: the scheduler, or rank 0 where there is none, listens there, or writes where it does.
    pub root: Root,
    /// The number of worker processes; of all processes, if they are plain ranks, and then 0 where rank 0 alone knows.
    pub workers: u32,
    /// The number of server processes.
    pub servers: u32,
    /// The rank among the processes of the role, if the launcher gave one. A plain rank has one, unless rank 0 alone
    /// knows how many there are.
    pub rank: Option<u32>,
    /// The rank among the processes of the job on this host; with DMLC, among those of the group.
    pub local_rank: Option<u32>,
    /// The number of processes of the job on this host; with DMLC, of the group.
    pub local_size: Option<u32>,
    /// How many processes of one role belong together on a machine, as DMLC counts them; it divides the numbers of
    /// workers and servers, and is 1 elsewhere.
    pub group_size: u32,
    /// What this process is to be called.
    pub name: Option<String>,
    /// The host, a name or an address, that others are to reach this process at.
    pub host: Option<String>,
    /// The network interface that others are to reach this process at, where no host is given.
    pub interface: Option<String>,
    /// Whether the launcher says that all processes are on one host; `false` may also mean that it does not know.
    pub is_one_host: bool,
    /// Whose variables were read.
    pub source: Launcher,
    /// How long a join may take.
    pub join_timeout: Duration,
}

impl Membership {
    /// The membership that an environment describes, or `None` if nothing in it says that this process is part of a
    /// job; `lookup` returns a variable's value. Pure: it reads nothing else, resolves no name and does not block.
    ///
    /// A variable that is set to nothing counts as not set, and blanks around a value do not count.
    ///
    /// ```
    /// use sheave_mesh::environment::{Launcher, Membership, Role};
    ///
    /// let environment = [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")];
    /// let lookup = |name: &str| environment.iter().find(|entry| entry.0 == name).map(|entry| entry.1.into());
    /// let membership = Membership::from_lookup(lookup)?.expect("torchrun has left its mark");
    /// assert_eq!((membership.role, membership.rank, membership.workers), (Role::Rank, Some(1), 4));
    /// assert_eq!(membership.source, Launcher::Torchrun);
    /// assert_eq!(membership.root.to_string(), "node7:20500");
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `InvalidArgument` that names the variable, its value and what is allowed: a value that is no text or not of the
    /// right form, a variable that is missing, or two that contradict each other.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>> {
        let place = Place::from_lookup(&lookup)?;
        let variables = Variables::new(&lookup);
        let Some(source) = Launcher::detect(&place, &variables) else {
            return nobody(&place, &variables);
        };
        let (mut membership, mut names) = match source {
            Launcher::Sheave => read::sheave(&place, &variables),
            Launcher::Dmlc => read::dmlc(&place, &variables),
            Launcher::Torchrun => read::torchrun(&place, &variables),
            Launcher::OpenMpi => read::open_mpi(&place, &variables),
            Launcher::Pmi => read::pmi(&place, &variables),
            Launcher::Flux => read::flux(&place, &variables),
            Launcher::Slurm => read::slurm(&place, &variables),
            Launcher::LeaderWorkerSet => read::leader_worker_set(&place, &variables),
        }?;
        membership.name = place.name;
        membership.host = place.host.or(membership.host);
        membership.join_timeout = place.join_timeout;
        if let Some(local_rank) = place.local_rank {
            membership.local_rank = Some(local_rank);
            names.local_rank = "SHEAVE_LOCAL_RANK";
        }
        membership.check(&names)?;
        Ok(Some(membership))
    }

    /// The number of processes that have the role of this one.
    #[must_use]
    pub fn size(&self) -> u32 {
        match self.role {
            Role::Scheduler => 1,
            Role::Server => self.servers,
            Role::Worker | Role::Rank => self.workers,
        }
    }

    /// What [`Membership`] promises, whatever the launcher.
    fn check(&self, names: &Names) -> Result<()> {
        let contradiction = |what: String, hint| Err(Error::new(ErrorKind::InvalidArgument, what).hint(hint));
        let below = "ranks count from 0, so the highest is one less than the number";
        let all = u64::from(self.workers) + u64::from(self.servers);
        if all > limits::LINKS_MAX as u64 {
            let most = limits::LINKS_MAX;
            return contradiction(
                format!("{} is \"{all}\"", names.all),
                format!("allowed are at most {most} processes"),
            );
        }
        let size = self.size();
        let is_told = self.role == Role::Rank && self.rank.is_none();
        if size == 0 && !is_told {
            let what = format!("the role is \"{}\", but {} is \"0\"", self.role, names.size);
            return contradiction(what, "count the servers, or be a worker".to_owned());
        }
        if let Some(rank) = self.rank.filter(|rank| *rank >= size) {
            let what = format!("{} is \"{rank}\", but {} is \"{size}\"", names.rank, names.size);
            return contradiction(what, below.to_owned());
        }
        match (self.local_rank, self.local_size) {
            (Some(rank), Some(size)) if rank >= size => {
                let what = format!("{} is \"{rank}\", but {} gives \"{size}\"", names.local_rank, names.local_size);
                contradiction(what, below.to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The answer where no launcher has left its mark. Silence would be wrong if somebody meant a job: the process would
/// run alone, and its peers would wait for it.
fn nobody(place: &Place, variables: &Variables<'_>) -> Result<Option<Membership>> {
    let (name, value) = match place {
        Place { root: Some(root), .. } => ("SHEAVE_ROOT", root.to_string()),
        Place { local_rank: Some(rank), .. } => ("SHEAVE_LOCAL_RANK", rank.to_string()),
        _ => return one_of_unknown_many(variables),
    };
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("{name} is \"{value}\", but nothing says what this process is in the job"),
    )
    .hint("set SHEAVE_RANK and SHEAVE_WORLD_SIZE, or SHEAVE_ROLE, SHEAVE_WORKERS and SHEAVE_SERVERS"))
}

/// Refuses what a launcher has started that says which of its processes this is, and nothing else that is needed.
fn one_of_unknown_many(variables: &Variables<'_>) -> Result<Option<Membership>> {
    for (name, job) in [("PMIX_RANK", "a job of PMIx"), ("JOB_COMPLETION_INDEX", "an indexed job of Kubernetes")] {
        let Some(rank) = variables.index(name)? else { continue };
        let what = format!("{name} is \"{rank}\", so this is a process of {job}, which does not say how many it has");
        let hint = format!(
            "set SHEAVE_RANK to what {name} is, and SHEAVE_WORLD_SIZE and SHEAVE_ROOT to the same on all of them; for \
             a process that is to be alone set SHEAVE_WORLD_SIZE to 1"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, what).hint(hint));
    }
    Ok(None)
}

impl Launcher {
    fn detect(place: &Place, variables: &Variables<'_>) -> Option<Self> {
        let is_sheave = place.role.is_some()
            || [place.workers, place.servers, place.rank, place.world_size].iter().any(Option::is_some);
        let has = |name| variables.has(name);
        let dmlc = ["DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER"];
        if is_sheave {
            return Some(Self::Sheave);
        }
        if dmlc.into_iter().any(has) {
            return Some(Self::Dmlc);
        }
        // Scripts for Slurm and MPI export these one by one for programs that work out the rest themselves.
        if has("RANK") && has("WORLD_SIZE") {
            return Some(Self::Torchrun);
        }
        if has("OMPI_COMM_WORLD_RANK") {
            return Some(Self::OpenMpi);
        }
        if has("PMI_RANK") {
            return Some(Self::Pmi);
        }
        if has("FLUX_TASK_RANK") {
            return Some(Self::Flux);
        }
        // A batch script has a rank too, 0 of all, but nobody has started the others.
        if has("SLURM_PROCID") && (has("SLURM_STEP_ID") || has("SLURM_STEP_NODELIST")) {
            return Some(Self::Slurm);
        }
        if has("LWS_WORKER_INDEX") {
            return Some(Self::LeaderWorkerSet);
        }
        // One of the two is missing, and no other launcher explains it.
        ((has("RANK") || has("WORLD_SIZE")) && has("MASTER_ADDR")).then_some(Self::Torchrun)
    }
}
