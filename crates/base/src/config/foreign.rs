//! The variables of other launchers that sheave reads to learn its place in a job.

/// A variable that another launcher sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The variable's name.
    pub name: &'static str,
    /// Who sets it.
    pub launcher: &'static str,
    /// What sheave takes from it, in one sentence.
    pub meaning: &'static str,
}

macro_rules! foreign {
    ($($launcher:literal { $($name:literal: $meaning:literal,)+ })+) => {
        /// Every variable of another launcher that sheave reads, the launchers in the order of their precedence.
        pub const FOREIGN: &[Foreign] =
            &[$($(Foreign { name: $name, launcher: $launcher, meaning: $meaning },)+)+];
    };
}

foreign! {
    "DMLC" {
        "DMLC_ROLE": "The role: `scheduler`, `server` or `worker`; unless set, `worker`.",
        "DMLC_PS_ROOT_URI": "The scheduler's host.",
        "DMLC_PS_ROOT_PORT": "The scheduler's port.",
        "DMLC_NUM_WORKER": "The number of groups of workers.",
        "DMLC_NUM_SERVER": "The number of groups of servers.",
        "DMLC_GROUP_SIZE": "The processes of one group; unless set, 1.",
        "DMLC_RANK": "The rank among the processes of the role; unless known, the scheduler gives one.",
        "DMLC_WORKER_ID": "The rank of a worker, where `DMLC_RANK` is not set.",
        "DMLC_SERVER_ID": "The rank of a server, where `DMLC_RANK` is not set.",
        "DMLC_NODE_RANK": "The group: the rank is this times the group size, plus `STEPMESH_GPU` and the offset.",
        "STEPMESH_GPU": "The local rank within a group; needed where groups have more than one process.",
        "DMLC_RANK_OFFSET": "Added to a rank that comes from `DMLC_NODE_RANK`.",
        "DMLC_NODE_HOST": "The host that others are told, listened at with `SHEAVE_INSECURE` and no `SHEAVE_BIND`.",
        "DMLC_INTERFACE": "The interface to listen on, with `SHEAVE_INSECURE`, where no `DMLC_NODE_HOST` is set.",
        "DMLC_LOCAL": "Whether all are on one host, `1` or `0`: then they meet on loopback, whatever hosts are named.",
    }
    "torchrun" {
        "RANK": "The rank.",
        "WORLD_SIZE": "The number of ranks.",
        "LOCAL_RANK": "The rank on this host.",
        "LOCAL_WORLD_SIZE": "The number of ranks on this host.",
        "GROUP_RANK": "The rank of the agent that started this process; only checked.",
        "MASTER_ADDR": "The host of rank 0, for the launchers below too.",
        "MASTER_PORT": "What the port is derived from, for the launchers below too; never listened on.",
    }
    "Open MPI" {
        "OMPI_COMM_WORLD_RANK": "The rank.",
        "OMPI_COMM_WORLD_SIZE": "The number of ranks.",
        "OMPI_COMM_WORLD_LOCAL_RANK": "The rank on this host.",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "The number of ranks on this host.",
        "OMPI_MCA_orte_hnp_uri": "The host of mpirun, taken to be that of rank 0, and the job (before Open MPI 5).",
        "PMIX_NAMESPACE": "The host of mpirun, taken to be that of rank 0, and the job (since Open MPI 5).",
    }
    "PMI" {
        "PMI_RANK": "The rank.",
        "PMI_SIZE": "The number of ranks.",
        "MPI_LOCALRANKID": "The rank on this host.",
        "MPI_LOCALNRANKS": "The number of ranks on this host.",
        "PMI_JOBID": "The job, which the port is derived from.",
    }
    "Flux" {
        "FLUX_TASK_RANK": "The rank.",
        "FLUX_JOB_SIZE": "The number of ranks.",
        "FLUX_TASK_LOCAL_ID": "The rank on this host.",
        "FLUX_JOB_NNODES": "The number of hosts; with one, ranks meet there, and with more `SHEAVE_ROOT` is needed.",
        "FLUX_JOB_ID": "The job, which the port is derived from.",
    }
    "Slurm" {
        "SLURM_PROCID": "The rank.",
        "SLURM_STEP_NUM_TASKS": "The number of ranks.",
        "SLURM_NTASKS": "The number of ranks, where the one above is not set.",
        "SLURM_LOCALID": "The rank on this host.",
        "SLURM_NODEID": "Which of the hosts this is, to find its number of ranks.",
        "SLURM_STEP_TASKS_PER_NODE": "The numbers of ranks per host, as in `2(x3),1`.",
        "SLURM_STEP_NODELIST": "The hosts, as in `node[001-003,007]`; the first is that of rank 0.",
        "SLURM_JOB_NODELIST": "The hosts, where the one above is not set.",
        "SLURM_JOB_ID": "The job, which the port is derived from.",
        "SLURM_STEP_ID": "The step, which the port is derived from; a batch script has none and is no rank.",
    }
    "LeaderWorkerSet" {
        "LWS_WORKER_INDEX": "The rank; one process for each pod.",
        "LWS_GROUP_SIZE": "The number of ranks.",
        "LWS_LEADER_ADDRESS": "The host of rank 0, which the port is derived from too.",
    }
    "PMIx" {
        "PMIX_RANK": "Nothing, for the number of ranks is not told: set `SHEAVE_RANK` and the rest, or it is an error.",
    }
    "Kubernetes" {
        "JOB_COMPLETION_INDEX": "Nothing, as with the one above: set `SHEAVE_RANK` and the rest, or it is an error.",
    }
}
