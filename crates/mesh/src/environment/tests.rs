//! Tables of environments, launcher by launcher: everything set, only what is needed, and what is wrong.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;
use sheave_base::config::{FOREIGN, keys};

use super::*;

type Environment = &'static [(&'static str, &'static str)];

fn read(environment: &[(&str, &str)]) -> Result<Option<Membership>> {
    Membership::from_lookup(|name| environment.iter().rev().find(|entry| entry.0 == name).map(|entry| entry.1.into()))
}

fn member(environment: &[(&str, &str)]) -> Membership {
    read(environment).unwrap().unwrap()
}

fn host_of(member: &Membership) -> &str {
    &member.root.endpoint().expect("no launcher but sheave names a file").host
}

/// `environment` with some variables set in addition or anew, or to nothing.
fn with<'a>(environment: &[(&'a str, &'a str)], changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [environment, changes].concat()
}

/// Each change makes the environment wrong, and the error says so in these words.
fn assert_refused(environment: Environment, changes: &[(&[(&str, &str)], &str)]) {
    read(environment).unwrap();
    for (change, words) in changes {
        let error = read(&with(environment, change)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.what().contains(words), "{change:?}: {error}");
        assert!(error.advice().is_some(), "{change:?}: {error}");
    }
}

const SHEAVE: Environment = &[
    ("SHEAVE_ROLE", "server"),
    ("SHEAVE_ROOT", "node1:7000"),
    ("SHEAVE_WORKERS", "4"),
    ("SHEAVE_SERVERS", "2"),
    ("SHEAVE_RANK", "1"),
    ("SHEAVE_LOCAL_RANK", "3"),
    ("SHEAVE_LOCAL_RANKS", "7"),
    ("SHEAVE_NAME", "keeper"),
    ("SHEAVE_JOIN_TIMEOUT_MS", "250"),
];

const SHEAVE_RANKS: Environment = &[("SHEAVE_ROOT", "[::1]:7000"), ("SHEAVE_RANK", "0"), ("SHEAVE_WORLD_SIZE", "2")];

const DMLC: Environment = &[
    ("DMLC_ROLE", "worker"),
    ("DMLC_PS_ROOT_URI", "10.0.0.1"),
    ("DMLC_PS_ROOT_PORT", "9091"),
    ("DMLC_NUM_WORKER", "3"),
    ("DMLC_NUM_SERVER", "2"),
    ("DMLC_GROUP_SIZE", "8"),
    ("DMLC_NODE_RANK", "2"),
    ("STEPMESH_GPU", "5"),
    ("DMLC_RANK_OFFSET", "1"),
    ("DMLC_NODE_HOST", "10.0.0.7"),
    ("DMLC_INTERFACE", "eth0"),
    ("DMLC_LOCAL", "0"),
];

/// What MXNet needs and no more.
const DMLC_MINIMAL: Environment = &[
    ("DMLC_PS_ROOT_URI", "localhost"),
    ("DMLC_PS_ROOT_PORT", "9000"),
    ("DMLC_NUM_WORKER", "2"),
    ("DMLC_NUM_SERVER", "1"),
];

const DMLC_SERVER: Environment = &[
    ("DMLC_ROLE", "server"),
    ("DMLC_PS_ROOT_URI", "localhost"),
    ("DMLC_PS_ROOT_PORT", "9000"),
    ("DMLC_NUM_WORKER", "2"),
    ("DMLC_NUM_SERVER", "1"),
    ("DMLC_SERVER_ID", "0"),
];

const TORCHRUN: Environment = &[
    ("MASTER_ADDR", "node1"),
    ("MASTER_PORT", "29500"),
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("GROUP_RANK", "1"),
];

const OPEN_MPI: Environment = &[
    ("OMPI_COMM_WORLD_RANK", "5"),
    ("OMPI_COMM_WORLD_SIZE", "8"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ("OMPI_MCA_orte_hnp_uri", "1531576320.0;tcp://127.0.0.1,10.96.0.1,10.148.0.1:34911"),
];

const PMI: Environment =
    &[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2"), ("PMI_JOBID", "77.0")];

const FLUX: Environment = &[
    ("FLUX_TASK_RANK", "3"),
    ("FLUX_JOB_SIZE", "4"),
    ("FLUX_TASK_LOCAL_ID", "3"),
    ("FLUX_JOB_NNODES", "1"),
    ("FLUX_JOB_ID", "\u{192}A7f3"),
];

const LEADER_WORKER_SET: Environment =
    &[("LWS_WORKER_INDEX", "2"), ("LWS_GROUP_SIZE", "3"), ("LWS_LEADER_ADDRESS", "group-0.group.default")];

const PMIX: Environment = &[("PMIX_RANK", "1")];
const INDEXED_JOB: Environment = &[("JOB_COMPLETION_INDEX", "1")];

const SLURM: Environment = &[
    ("SLURM_PROCID", "4"),
    ("SLURM_STEP_NUM_TASKS", "7"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "2"),
    ("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
    ("SLURM_STEP_NODELIST", "node[001-003,007]"),
    ("SLURM_JOB_NODELIST", "node[000-009]"),
    ("SLURM_JOB_ID", "1000"),
    ("SLURM_STEP_ID", "3"),
];

const SLURM_MINIMAL: Environment = &[
    ("SLURM_PROCID", "4"),
    ("SLURM_NTASKS", "5"),
    ("SLURM_JOB_NODELIST", "a7,b"),
    ("SLURM_JOB_ID", "1000"),
    ("SLURM_STEP_ID", "0"),
];

const ALL: [Environment; 14] = [
    &[],
    SHEAVE,
    SHEAVE_RANKS,
    DMLC,
    DMLC_SERVER,
    TORCHRUN,
    OPEN_MPI,
    PMI,
    FLUX,
    SLURM,
    SLURM_MINIMAL,
    LEADER_WORKER_SET,
    PMIX,
    INDEXED_JOB,
];

#[test]
fn sheave_says_it_all() {
    let expected = Membership {
        role: Role::Server,
        root: Endpoint { host: "node1".into(), port: 7000 }.into(),
        workers: 4,
        servers: 2,
        rank: Some(1),
        local_rank: Some(3),
        local_size: Some(7),
        group_size: 1,
        name: Some("keeper".into()),
        host: None,
        interface: None,
        is_one_host: false,
        source: Launcher::Sheave,
        join_timeout: Duration::from_millis(250),
    };
    assert_eq!(member(SHEAVE), expected);
    let scheduler = member(&with(SHEAVE, &[("SHEAVE_ROLE", "scheduler"), ("SHEAVE_RANK", "")]));
    assert_eq!((scheduler.role, scheduler.rank, scheduler.size()), (Role::Scheduler, None, 1));
    let worker = member(&with(SHEAVE, &[("SHEAVE_ROLE", ""), ("SHEAVE_RANK", ""), ("SHEAVE_SERVERS", "0")]));
    assert_eq!((worker.role, worker.rank, worker.size()), (Role::Worker, None, 4));
}

#[test]
fn sheave_ranks_need_no_role() {
    let member = member(SHEAVE_RANKS);
    assert_eq!((member.role, member.rank, member.workers, member.servers), (Role::Rank, Some(0), 2, 0));
    assert_eq!((member.local_rank, member.name, member.join_timeout), (None, None, limits::JOIN_TIMEOUT));
    assert_eq!(member.root.to_string(), "[::1]:7000");
}

#[test]
fn a_rank_may_be_told_which_it_is() {
    let told = member(&with(SHEAVE_RANKS, &[("SHEAVE_WORLD_SIZE", "any"), ("SHEAVE_RANK", "")]));
    assert_eq!((told.role, told.rank, told.workers), (Role::Rank, None, 0));
    let lookup = |all: &[(&str, &str)], name: &str| all.iter().rfind(|entry| entry.0 == name).map(|one| one.1.into());
    let both = with(SHEAVE_RANKS, &[("SHEAVE_WORLD_SIZE", "any")]);
    let error = Membership::from_lookup(|name| lookup(&both, name)).expect_err("it contradicts itself");
    assert!(error.what().contains("SHEAVE_WORLD_SIZE is \"any\""), "{error}");
}

#[test]
fn sheave_wrong() {
    assert_refused(
        SHEAVE,
        &[
            (&[("SHEAVE_ROLE", "boss")], "SHEAVE_ROLE is \"boss\""),
            (&[("SHEAVE_ROOT", "")], "SHEAVE_ROOT is not set"),
            (&[("SHEAVE_SERVERS", "")], "SHEAVE_SERVERS is not set"),
            (&[("SHEAVE_WORKERS", "")], "SHEAVE_WORKERS is not set"),
            (&[("SHEAVE_SERVERS", "0")], "the role is \"server\", but SHEAVE_SERVERS is \"0\""),
            (&[("SHEAVE_RANK", "2")], "SHEAVE_RANK is \"2\", but SHEAVE_SERVERS is \"2\""),
            (&[("SHEAVE_ROLE", "scheduler")], "SHEAVE_RANK is \"1\", but the number of schedulers is \"1\""),
            (&[("SHEAVE_ROLE", "rank")], "SHEAVE_WORKERS is \"4\", but SHEAVE_ROLE is \"rank\""),
            (&[("SHEAVE_WORLD_SIZE", "6")], "SHEAVE_WORLD_SIZE is \"6\", but SHEAVE_ROLE is \"server\""),
            (&[("SHEAVE_LOCAL_RANK", "7")], "SHEAVE_LOCAL_RANK is \"7\", but SHEAVE_LOCAL_RANKS gives \"7\""),
            (&[("SHEAVE_WORKERS", "16384")], "the sum of SHEAVE_WORKERS and SHEAVE_SERVERS is \"16386\""),
        ],
    );
    assert_refused(
        SHEAVE_RANKS,
        &[
            (&[("SHEAVE_RANK", "2")], "SHEAVE_RANK is \"2\", but SHEAVE_WORLD_SIZE is \"2\""),
            (&[("SHEAVE_RANK", "")], "SHEAVE_RANK is not set"),
            (&[("SHEAVE_WORLD_SIZE", "")], "SHEAVE_WORLD_SIZE is not set"),
        ],
    );
}

#[test]
fn dmlc_with_groups() {
    let expected = Membership {
        role: Role::Worker,
        root: Endpoint { host: "10.0.0.1".into(), port: 9091 }.into(),
        workers: 24,
        servers: 16,
        rank: Some(22),
        local_rank: Some(5),
        local_size: Some(8),
        group_size: 8,
        name: None,
        host: Some("10.0.0.7".into()),
        interface: Some("eth0".into()),
        is_one_host: false,
        source: Launcher::Dmlc,
        join_timeout: limits::JOIN_TIMEOUT,
    };
    assert_eq!(member(DMLC), expected);
    let scheduler = member(&with(DMLC, &[("DMLC_ROLE", "scheduler")]));
    assert_eq!((scheduler.role, scheduler.rank, scheduler.local_rank), (Role::Scheduler, None, None));
    let other = member(&with(DMLC, &[("DMLC_INTERFACE", "auto"), ("DMLC_LOCAL", "1"), ("DMLC_NODE_RANK", "")]));
    assert_eq!((other.rank, other.interface, other.is_one_host), (Some(6), None, true));
}

#[test]
fn dmlc_minimal() {
    let worker = member(DMLC_MINIMAL);
    assert_eq!((worker.role, worker.rank, worker.workers, worker.servers), (Role::Worker, None, 2, 1));
    assert_eq!(worker.root.to_string(), "localhost:9000");
    for (role, name, rank) in
        [("worker", "DMLC_WORKER_ID", 1), ("server", "DMLC_SERVER_ID", 0), ("worker", "DMLC_RANK", 1)]
    {
        let rank_text = rank.to_string();
        let found = member(&with(DMLC_MINIMAL, &[("DMLC_ROLE", role), (name, &rank_text)]));
        assert_eq!(found.rank, Some(rank), "{name}");
    }
    let v6 = member(&with(DMLC_MINIMAL, &[("DMLC_PS_ROOT_URI", "[fe80::1]")]));
    assert_eq!(v6.root.to_string(), "[fe80::1]:9000");
    let rooted = member(&with(DMLC_MINIMAL, &[("DMLC_PS_ROOT_URI", ""), ("SHEAVE_ROOT", "a:1")]));
    assert_eq!((rooted.source, rooted.root.to_string()), (Launcher::Dmlc, "a:1".to_owned()));
}

#[test]
fn dmlc_wrong() {
    assert_refused(
        DMLC,
        &[
            (&[("DMLC_ROLE", "joint")], "DMLC_ROLE is \"joint\""),
            (&[("DMLC_ROLE", "rank")], "DMLC_ROLE is \"rank\""),
            (&[("DMLC_PS_ROOT_URI", "")], "DMLC_PS_ROOT_URI is not set"),
            (&[("DMLC_PS_ROOT_URI", "tcp://a")], "DMLC_PS_ROOT_URI is \"tcp://a\""),
            (&[("DMLC_PS_ROOT_PORT", "0")], "DMLC_PS_ROOT_PORT is \"0\""),
            (&[("DMLC_NUM_WORKER", "0")], "DMLC_NUM_WORKER is \"0\""),
            (&[("DMLC_NUM_SERVER", "")], "DMLC_NUM_SERVER is not set"),
            (&[("DMLC_NUM_SERVER", "16384")], "times DMLC_GROUP_SIZE, is \"131096\""),
            (&[("DMLC_NUM_SERVER", "0"), ("DMLC_ROLE", "server")], "but the number of servers is \"0\""),
            (&[("DMLC_NODE_RANK", "3")], "STEPMESH_GPU is \"30\", but the number of workers is \"24\""),
            (&[("STEPMESH_GPU", "")], "DMLC_GROUP_SIZE is \"8\", but STEPMESH_GPU is not set"),
            (
                &[("DMLC_NODE_RANK", ""), ("STEPMESH_GPU", "8")],
                "STEPMESH_GPU is \"8\", but DMLC_GROUP_SIZE gives \"8\"",
            ),
            (&[("DMLC_RANK", "3")], "DMLC_RANK is \"3\", but the rank by DMLC_NODE_RANK and STEPMESH_GPU is \"22\""),
            (&[("DMLC_INTERFACE", "eth 0")], "DMLC_INTERFACE is \"eth 0\""),
            (&[("DMLC_LOCAL", "2")], "DMLC_LOCAL is \"2\""),
        ],
    );
}

#[test]
fn torchrun_and_its_port() {
    let full = member(TORCHRUN);
    assert_eq!((full.role, full.rank, full.workers, full.servers), (Role::Rank, Some(5), 8, 0));
    assert_eq!((full.local_rank, full.local_size, full.source), (Some(1), Some(4), Launcher::Torchrun));
    assert_eq!(full.root.to_string(), "node1:20500");
    let minimal = member(&TORCHRUN[..4]);
    assert_eq!((minimal.rank, minimal.local_rank, minimal.local_size), (Some(5), None, None));
    let moved = member(&with(TORCHRUN, &[("SHEAVE_ROOT", "node2:29500"), ("SHEAVE_LOCAL_RANK", "2")]));
    assert_eq!((moved.root.to_string().as_str(), moved.local_rank), ("node2:29500", Some(2)));
    assert_refused(
        TORCHRUN,
        &[
            (&[("RANK", "8")], "RANK is \"8\", but WORLD_SIZE is \"8\""),
            (&[("RANK", "-1")], "RANK is \"-1\""),
            (&[("RANK", "")], "RANK is not set"),
            (&[("WORLD_SIZE", "")], "WORLD_SIZE is not set"),
            (&[("WORLD_SIZE", "eight")], "WORLD_SIZE is \"eight\""),
            (&[("LOCAL_RANK", "4")], "LOCAL_RANK is \"4\", but LOCAL_WORLD_SIZE gives \"4\""),
            (&[("LOCAL_WORLD_SIZE", "9")], "LOCAL_WORLD_SIZE is \"9\", but WORLD_SIZE is \"8\""),
            (&[("GROUP_RANK", "6")], "GROUP_RANK is \"6\", but RANK is \"5\""),
            (&[("MASTER_ADDR", "")], "MASTER_ADDR is not set"),
            (&[("MASTER_PORT", "")], "MASTER_PORT is not set"),
            (&[("MASTER_PORT", "65536")], "MASTER_PORT is \"65536\""),
            (&[("SHEAVE_LOCAL_RANK", "4")], "SHEAVE_LOCAL_RANK is \"4\", but LOCAL_WORLD_SIZE gives \"4\""),
        ],
    );
}

#[test]
fn open_mpi_and_where_its_rank_0_is() {
    let full = member(OPEN_MPI);
    assert_eq!((full.role, full.rank, full.workers), (Role::Rank, Some(5), 8));
    assert_eq!((full.local_rank, full.local_size, full.source), (Some(1), Some(4), Launcher::OpenMpi));
    assert_eq!(host_of(&full), "10.96.0.1");
    let other_rank = member(&with(OPEN_MPI, &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_LOCAL_RANK", "0")]));
    assert_eq!(other_rank.root, full.root);
    let other_job = member(&with(OPEN_MPI, &[("OMPI_MCA_orte_hnp_uri", "1531576321.0;tcp://10.96.0.1:1")]));
    assert!(host_of(&other_job) == host_of(&full) && other_job.root != full.root);
    let (no_hnp, five) = (("OMPI_MCA_orte_hnp_uri", ""), ("PMIX_NAMESPACE", "prterun-gpu-node-3-4711@1"));
    assert_eq!(host_of(&member(&with(OPEN_MPI, &[no_hnp, five]))), "gpu-node-3");
    let one_host = [no_hnp, ("PMIX_NAMESPACE", "4711"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "8")];
    assert_eq!(host_of(&member(&with(OPEN_MPI, &one_host))), "127.0.0.1");
    assert_eq!(member(&with(OPEN_MPI, &TORCHRUN[..2])).root.to_string(), "node1:20500");
    let minimal = member(&[OPEN_MPI[0], OPEN_MPI[1], ("SHEAVE_ROOT", "a:1")]);
    assert_eq!((minimal.rank, minimal.local_rank, minimal.local_size), (Some(5), None, None));
    assert_refused(
        OPEN_MPI,
        &[
            (&[no_hnp], "SHEAVE_ROOT is not set and the variables of Open MPI name no host"),
            (&[no_hnp, ("OMPI_COMM_WORLD_LOCAL_SIZE", "8")], "the variables of Open MPI name no job"),
            (&[no_hnp, ("PMIX_NAMESPACE", "4711")], "the variables of Open MPI name no host"),
            (&[("OMPI_MCA_orte_hnp_uri", "tcp:10.0.0.1")], "OMPI_MCA_orte_hnp_uri is \"tcp:10.0.0.1\""),
            (&[("OMPI_COMM_WORLD_SIZE", "")], "OMPI_COMM_WORLD_SIZE is not set"),
            (&[("OMPI_COMM_WORLD_SIZE", "5")], "OMPI_COMM_WORLD_RANK is \"5\", but OMPI_COMM_WORLD_SIZE is \"5\""),
        ],
    );
}

#[test]
fn pmi_on_one_host_and_in_slurm() {
    let full = member(PMI);
    assert_eq!((full.role, full.rank, full.workers, full.source), (Role::Rank, Some(1), 2, Launcher::Pmi));
    assert_eq!((full.local_rank, full.local_size, host_of(&full)), (Some(1), Some(2), "127.0.0.1"));
    assert!(full.is_one_host && !member(SLURM).is_one_host);
    let in_slurm = member(&with(&with(SLURM, PMI), &[("MPI_LOCALNRANKS", ""), ("PMI_JOBID", "")]));
    assert_eq!((in_slurm.source, in_slurm.root), (Launcher::Pmi, member(SLURM).root));
    let minimal = member(&[PMI[0], PMI[1], ("SHEAVE_ROOT", "a:1")]);
    assert_eq!((minimal.rank, minimal.local_rank), (Some(1), None));
    assert_refused(
        PMI,
        &[
            (&[("PMI_JOBID", "")], "the variables of PMI name no job"),
            (&[("MPI_LOCALNRANKS", "")], "the variables of PMI name no host"),
            (&[("PMI_SIZE", "")], "PMI_SIZE is not set"),
            (&[("PMI_RANK", "2")], "PMI_RANK is \"2\", but PMI_SIZE is \"2\""),
            (&[("MPI_LOCALRANKID", "2")], "MPI_LOCALRANKID is \"2\", but MPI_LOCALNRANKS gives \"2\""),
        ],
    );
}

#[test]
fn slurm_and_its_first_host() {
    let full = member(SLURM);
    assert_eq!((full.role, full.rank, full.workers, full.source), (Role::Rank, Some(4), 7, Launcher::Slurm));
    assert_eq!((full.local_rank, full.local_size), (Some(0), Some(2)));
    // 10000 + (1000 * 64 + 3) mod 19000
    assert_eq!(full.root.to_string(), "node001:17003");
    let minimal = member(SLURM_MINIMAL);
    assert_eq!((minimal.rank, minimal.workers, minimal.local_size), (Some(4), 5, None));
    assert_eq!(minimal.root.to_string(), "a7:17000");
    assert_refused(
        SLURM,
        &[
            (&[("SLURM_PROCID", "7")], "SLURM_PROCID is \"7\", but SLURM_STEP_NUM_TASKS is \"7\""),
            (&[("SLURM_STEP_NUM_TASKS", "")], "SLURM_NTASKS is not set"),
            (&[("SLURM_STEP_NODELIST", "node[1")], "SLURM_STEP_NODELIST is \"node[1\""),
            (&[("SLURM_STEP_NODELIST", ""), ("SLURM_JOB_NODELIST", "")], "the variables of Slurm name no host"),
            (&[("SLURM_JOB_ID", "")], "the variables of Slurm name no job"),
            (&[("SLURM_JOB_ID", "1_2")], "SLURM_JOB_ID is \"1_2\""),
            (&[("SLURM_STEP_TASKS_PER_NODE", "2(3)")], "SLURM_STEP_TASKS_PER_NODE is \"2(3)\""),
            (&[("SLURM_LOCALID", "2")], "SLURM_LOCALID is \"2\", but SLURM_STEP_TASKS_PER_NODE gives \"2\""),
        ],
    );
}

#[test]
fn flux_on_one_host_and_on_several() {
    let full = member(FLUX);
    assert_eq!((full.role, full.rank, full.workers, full.source), (Role::Rank, Some(3), 4, Launcher::Flux));
    assert_eq!((full.local_rank, full.local_size, host_of(&full)), (Some(3), Some(4), "127.0.0.1"));
    assert!(full.is_one_host);
    let other_job = member(&with(FLUX, &[("FLUX_JOB_ID", "f2")]));
    assert!(host_of(&other_job) == host_of(&full) && other_job.root != full.root);
    // Its tasks have the variables of PMI too, which say less.
    let with_pmi = member(&with(FLUX, &[("PMI_RANK", "3"), ("PMI_SIZE", "4")]));
    assert_eq!((with_pmi.source, with_pmi.local_size, with_pmi.root), (Launcher::Pmi, Some(4), full.root));
    let several = with(FLUX, &[("FLUX_JOB_NNODES", "2"), ("FLUX_TASK_LOCAL_ID", "1"), ("SHEAVE_ROOT", "a:1")]);
    let several = member(&several);
    assert_eq!((several.local_rank, several.local_size, several.is_one_host), (Some(1), None, false));
    assert_refused(
        FLUX,
        &[
            (&[("FLUX_JOB_NNODES", "2")], "the variables of Flux name no host"),
            (&[("FLUX_JOB_NNODES", "0")], "FLUX_JOB_NNODES is \"0\""),
            (&[("FLUX_JOB_ID", "")], "the variables of Flux name no job"),
            (&[("FLUX_JOB_SIZE", "")], "FLUX_JOB_SIZE is not set"),
            (&[("FLUX_TASK_RANK", "4")], "FLUX_TASK_RANK is \"4\", but FLUX_JOB_SIZE is \"4\""),
            (&[("FLUX_TASK_LOCAL_ID", "4")], "FLUX_TASK_LOCAL_ID is \"4\", but FLUX_JOB_NNODES gives \"4\""),
        ],
    );
}

#[test]
fn a_leader_and_its_workers() {
    let full = member(LEADER_WORKER_SET);
    assert_eq!((full.role, full.rank, full.workers), (Role::Rank, Some(2), 3));
    assert_eq!((full.local_rank, full.is_one_host, full.source), (None, false, Launcher::LeaderWorkerSet));
    assert_eq!(host_of(&full), "group-0.group.default");
    let other_set = member(&with(LEADER_WORKER_SET, &[("LWS_LEADER_ADDRESS", "group-1.group.default")]));
    assert_ne!(other_set.root.endpoint().unwrap().port, full.root.endpoint().unwrap().port);
    assert_eq!(member(&with(LEADER_WORKER_SET, &TORCHRUN[..2])).root.to_string(), "node1:20500");
    assert_refused(
        LEADER_WORKER_SET,
        &[
            (&[("LWS_LEADER_ADDRESS", "")], "LWS_LEADER_ADDRESS is not set"),
            (&[("LWS_GROUP_SIZE", "")], "LWS_GROUP_SIZE is not set"),
            (&[("LWS_WORKER_INDEX", "3")], "LWS_WORKER_INDEX is \"3\", but LWS_GROUP_SIZE is \"3\""),
        ],
    );
}

#[test]
fn a_process_of_many_that_nobody_has_counted_is_refused_and_not_alone() {
    for (name, environment) in [("PMIX_RANK", PMIX), ("JOB_COMPLETION_INDEX", INDEXED_JOB)] {
        let error = read(environment).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.what().starts_with(&format!("{name} is \"1\", so this is a process of")), "{error}");
        let hint = error.advice().unwrap();
        assert!(hint.contains(name) && hint.contains("SHEAVE_WORLD_SIZE"), "{hint}");
        for counted in [SHEAVE_RANKS, DMLC, TORCHRUN, OPEN_MPI, PMI, FLUX, SLURM, LEADER_WORKER_SET] {
            assert_eq!(member(&with(environment, counted)), member(counted), "{name}");
        }
    }
}

#[test]
fn a_batch_script_is_no_rank() {
    let script =
        [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_NODELIST", "n[1-4]"), ("SLURM_JOB_ID", "9")];
    assert_eq!(read(&script).unwrap(), None);
}

#[test]
fn where_nothing_launched_us_there_is_no_membership() {
    assert_eq!(read(&[]).unwrap(), None);
    assert_eq!(Membership::from_lookup(|_| Some(OsString::new())).unwrap(), None);
    for stray in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "SLURM_JOB_ID", "PMIX_NAMESPACE", "SHEAVE_NAME"] {
        assert_eq!(read(&[(stray, "1")]).unwrap(), None, "{stray}");
    }
    assert!(read(&[("SHEAVE_ROOT", "a:1")]).unwrap_err().what().starts_with("SHEAVE_ROOT is \"a:1\", but nothing"));
    assert!(read(&[("SHEAVE_LOCAL_RANK", "1")]).unwrap_err().what().starts_with("SHEAVE_LOCAL_RANK is \"1\", but"));
}

#[test]
fn the_first_launcher_in_the_order_of_precedence_decides() {
    let launchers = [
        (Launcher::Sheave, SHEAVE),
        (Launcher::Dmlc, DMLC),
        (Launcher::Torchrun, TORCHRUN),
        (Launcher::OpenMpi, OPEN_MPI),
        (Launcher::Pmi, PMI),
        (Launcher::Flux, FLUX),
        (Launcher::Slurm, SLURM),
        (Launcher::LeaderWorkerSet, LEADER_WORKER_SET),
    ];
    for (index, (source, _)) in launchers.iter().enumerate() {
        let rest = launchers[index..].iter().rev().flat_map(|launcher| launcher.1).copied();
        assert_eq!(member(&rest.collect::<Vec<_>>()).source, *source);
    }
}

#[test]
fn what_is_not_text_is_an_error() {
    for name in FOREIGN.iter().map(|foreign| foreign.name).chain(["SHEAVE_NAME"]) {
        let bad = || Some(OsString::from_vec(b"\xff\xfe".to_vec()));
        let read = |environment: Environment| {
            let usual = move |name: &str| environment.iter().find(|entry| entry.0 == name).map(|entry| entry.1.into());
            Membership::from_lookup(move |wanted| if wanted == name { bad() } else { usual(wanted) })
        };
        let errors: Vec<Error> = ALL.into_iter().filter_map(|environment| read(environment).err()).collect();
        let said = format!("{name} is \"\u{fffd}\u{fffd}\"");
        assert!(errors.iter().any(|error| error.what().starts_with(&said)), "{name}: {errors:?}");
    }
}

#[test]
fn every_variable_that_is_looked_up_is_declared_and_the_other_way_round() {
    let seen = RefCell::new(BTreeSet::new());
    let watch = |environment: &[(&str, &str)]| {
        let _ = Membership::from_lookup(|name| {
            seen.borrow_mut().insert(name.to_owned());
            environment.iter().rev().find(|entry| entry.0 == name).map(|entry| entry.1.into())
        });
    };
    for environment in ALL {
        watch(environment);
    }
    // A process that is no member is a guest.
    let nothing = |name: &str| -> Option<OsString> {
        seen.borrow_mut().insert(name.to_owned());
        None
    };
    assert!(crate::GuestConfig::from_lookup(nothing).is_ok_and(|config| config.is_none()));
    let of_mesh = keys().into_iter().filter(|key| key.read_by == "mesh").map(|key| key.name);
    let declared = FOREIGN.iter().map(|foreign| foreign.name).chain(of_mesh).chain(["SHEAVE_LOCAL_RANKS"]);
    assert_eq!(seen.into_inner(), declared.map(str::to_owned).collect());
}

/// Values that are often right, so that the deeper checks are reached too.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (0..6_u32).prop_map(|number| number.to_string()),
        1 => any::<u32>().prop_map(|number| number.to_string()),
        1 => prop_oneof![Just("worker"), Just("server"), Just("scheduler"), Just("rank")].prop_map(str::to_owned),
        1 => "[a-z]{1,3}(\\[[0-9]{1,2}(-[0-9]{1,2})?\\])?(:[0-9]{1,5})?",
        1 => "[0-9]{1,2}\\.0;tcp://[0-9a-z.,]{1,9}:[0-9]{1,3}",
        1 => "[1-9](\\(x[1-9]\\))?(,[1-9])?",
        1 => any::<String>(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_environment_panics_and_what_is_ok_holds_together(
        start in 0..ALL.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), value()), 0..8),
    ) {
        let mut names: Vec<&str> = FOREIGN.iter().map(|foreign| foreign.name).collect();
        names.extend(keys().iter().map(|key| key.name));
        let changes: Vec<(&str, &str)> = changes.iter().map(|(index, value)| (*index.get(&names), &**value)).collect();
        match read(&with(ALL[start], &changes)) {
            Ok(None) => {}
            Ok(Some(member)) => {
                prop_assert!(member.rank.is_none_or(|rank| rank < member.size()), "{member:?}");
                prop_assert!(member.role != Role::Rank || member.rank.is_some(), "{member:?}");
                prop_assert!(member.workers + member.servers <= limits::LINKS_MAX as u32, "{member:?}");
                prop_assert!(member.root.is_allowed(), "{member:?}");
                prop_assert_eq!(Root::parse(&member.root.to_string()), Some(member.root));
                if let (Some(rank), Some(size)) = (member.local_rank, member.local_size) {
                    prop_assert!(rank < size);
                }
            }
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                prop_assert!(!error.to_string().contains(char::is_control), "{error}");
                prop_assert!(error.advice().is_some(), "{error}");
            }
        }
    }
}
