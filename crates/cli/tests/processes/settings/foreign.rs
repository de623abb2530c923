//! The variables of other launchers: each changes what a mesh is joined with, or is checked against the rest.

use super::{Variables, lookup};
use sheave_base::config::FOREIGN;
use sheave_mesh::Config;
use sheave_mesh::environment::Membership;

const DMLC: Variables<'_> = &[
    ("DMLC_ROLE", "worker"),
    ("DMLC_PS_ROOT_URI", "10.0.0.1"),
    ("DMLC_PS_ROOT_PORT", "9091"),
    ("DMLC_NUM_WORKER", "3"),
    ("DMLC_NUM_SERVER", "2"),
];
const DMLC_SERVER: Variables<'_> = &[
    ("DMLC_ROLE", "server"),
    ("DMLC_PS_ROOT_URI", "10.0.0.1"),
    ("DMLC_PS_ROOT_PORT", "9091"),
    ("DMLC_NUM_WORKER", "3"),
    ("DMLC_NUM_SERVER", "2"),
];
const DMLC_GROUPS: Variables<'_> = &[
    ("DMLC_PS_ROOT_URI", "10.0.0.1"),
    ("DMLC_PS_ROOT_PORT", "9091"),
    ("DMLC_NUM_WORKER", "3"),
    ("DMLC_NUM_SERVER", "2"),
    ("DMLC_GROUP_SIZE", "4"),
    ("DMLC_NODE_RANK", "1"),
    ("STEPMESH_GPU", "2"),
];
const TORCHRUN: Variables<'_> = &[
    ("RANK", "3"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("GROUP_RANK", "1"),
    ("MASTER_ADDR", "node7"),
    ("MASTER_PORT", "29500"),
];
const OPEN_MPI: Variables<'_> = &[
    ("OMPI_COMM_WORLD_RANK", "3"),
    ("OMPI_COMM_WORLD_SIZE", "8"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
    ("OMPI_MCA_orte_hnp_uri", "123.0;tcp://10.0.0.1:4000"),
];
const OPEN_MPI_5: Variables<'_> =
    &[("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "8"), ("PMIX_NAMESPACE", "prterun-node1-77@1")];
const PMI: Variables<'_> =
    &[("PMI_RANK", "3"), ("PMI_SIZE", "8"), ("MPI_LOCALRANKID", "3"), ("MPI_LOCALNRANKS", "8"), ("PMI_JOBID", "77")];
const FLUX: Variables<'_> = &[
    ("FLUX_TASK_RANK", "3"),
    ("FLUX_JOB_SIZE", "8"),
    ("FLUX_TASK_LOCAL_ID", "3"),
    ("FLUX_JOB_NNODES", "1"),
    ("FLUX_JOB_ID", "f7"),
];
const LEADER_WORKER_SET: Variables<'_> =
    &[("LWS_WORKER_INDEX", "3"), ("LWS_GROUP_SIZE", "8"), ("LWS_LEADER_ADDRESS", "group-0")];
/// Alone these are refused, by their value.
const PMIX: Variables<'_> = &[("PMIX_RANK", "3")];
const INDEXED_JOB: Variables<'_> = &[("JOB_COMPLETION_INDEX", "3")];
const SLURM: Variables<'_> = &[
    ("SLURM_PROCID", "3"),
    ("SLURM_STEP_NUM_TASKS", "8"),
    ("SLURM_NTASKS", "9"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "1"),
    ("SLURM_STEP_TASKS_PER_NODE", "2,4,2"),
    ("SLURM_STEP_NODELIST", "node[1-3]"),
    ("SLURM_JOB_NODELIST", "node[4-6]"),
    ("SLURM_JOB_ID", "5"),
    ("SLURM_STEP_ID", "0"),
];
const SLURM_MINIMAL: Variables<'_> = &[
    ("SLURM_PROCID", "3"),
    ("SLURM_NTASKS", "9"),
    ("SLURM_JOB_NODELIST", "node[4-6]"),
    ("SLURM_JOB_ID", "5"),
    ("SLURM_STEP_ID", "0"),
];

/// Others than loopback are listened on only where that is permitted.
const DMLC_INSECURE: Variables<'_> = &[
    ("DMLC_ROLE", "worker"),
    ("DMLC_PS_ROOT_URI", "10.0.0.1"),
    ("DMLC_PS_ROOT_PORT", "9091"),
    ("DMLC_NUM_WORKER", "3"),
    ("DMLC_NUM_SERVER", "2"),
    ("SHEAVE_INSECURE", "1"),
];

/// Each variable, an environment in which it counts, and another value for it.
const CASES: [(&str, Variables<'_>, &str); 53] = [
    ("DMLC_ROLE", DMLC, "server"),
    ("DMLC_PS_ROOT_URI", DMLC, "10.0.0.2"),
    ("DMLC_PS_ROOT_PORT", DMLC, "9092"),
    ("DMLC_NUM_WORKER", DMLC, "4"),
    ("DMLC_NUM_SERVER", DMLC, "4"),
    ("DMLC_GROUP_SIZE", DMLC, "2"),
    ("DMLC_RANK", DMLC, "2"),
    ("DMLC_WORKER_ID", DMLC, "2"),
    ("DMLC_SERVER_ID", DMLC_SERVER, "1"),
    ("DMLC_NODE_RANK", DMLC_GROUPS, "2"),
    ("STEPMESH_GPU", DMLC_GROUPS, "3"),
    ("DMLC_RANK_OFFSET", DMLC_GROUPS, "1"),
    ("DMLC_NODE_HOST", DMLC_INSECURE, "10.0.0.7"),
    ("DMLC_INTERFACE", DMLC_INSECURE, "eth0"),
    ("DMLC_LOCAL", DMLC, "1"),
    ("RANK", TORCHRUN, "5"),
    ("WORLD_SIZE", TORCHRUN, "9"),
    ("LOCAL_RANK", TORCHRUN, "2"),
    ("LOCAL_WORLD_SIZE", TORCHRUN, "3"),
    ("GROUP_RANK", TORCHRUN, "4"),
    ("MASTER_ADDR", TORCHRUN, "node8"),
    ("MASTER_PORT", TORCHRUN, "29501"),
    ("OMPI_COMM_WORLD_RANK", OPEN_MPI, "4"),
    ("OMPI_COMM_WORLD_SIZE", OPEN_MPI, "9"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", OPEN_MPI, "2"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", OPEN_MPI, "3"),
    ("OMPI_MCA_orte_hnp_uri", OPEN_MPI, "123.0;tcp://10.0.0.2:4000"),
    ("PMIX_NAMESPACE", OPEN_MPI_5, "prterun-node2-77@1"),
    ("PMI_RANK", PMI, "4"),
    ("PMI_SIZE", PMI, "9"),
    ("MPI_LOCALRANKID", PMI, "4"),
    ("MPI_LOCALNRANKS", PMI, "4"),
    ("PMI_JOBID", PMI, "78"),
    ("FLUX_TASK_RANK", FLUX, "4"),
    ("FLUX_JOB_SIZE", FLUX, "9"),
    ("FLUX_TASK_LOCAL_ID", FLUX, "4"),
    ("FLUX_JOB_NNODES", FLUX, "2"),
    ("FLUX_JOB_ID", FLUX, "f8"),
    ("SLURM_PROCID", SLURM, "4"),
    ("SLURM_STEP_NUM_TASKS", SLURM, "9"),
    ("SLURM_NTASKS", SLURM_MINIMAL, "8"),
    ("SLURM_LOCALID", SLURM, "2"),
    ("SLURM_NODEID", SLURM, "0"),
    ("SLURM_STEP_TASKS_PER_NODE", SLURM, "2,3,3"),
    ("SLURM_STEP_NODELIST", SLURM, "node[2-4]"),
    ("SLURM_JOB_NODELIST", SLURM_MINIMAL, "node[5-7]"),
    ("SLURM_JOB_ID", SLURM, "6"),
    ("SLURM_STEP_ID", SLURM, "1"),
    ("LWS_WORKER_INDEX", LEADER_WORKER_SET, "4"),
    ("LWS_GROUP_SIZE", LEADER_WORKER_SET, "9"),
    ("LWS_LEADER_ADDRESS", LEADER_WORKER_SET, "group-1"),
    ("PMIX_RANK", PMIX, "4"),
    ("JOB_COMPLETION_INDEX", INDEXED_JOB, "4"),
];

pub(crate) const CHECKS: &[&str] = &{
    let mut names = [""; CASES.len()];
    let mut index = 0;
    while index < CASES.len() {
        names[index] = CASES[index].0;
        index += 1;
    }
    names
};

/// The ranks on a host are nothing to the mesh; a program asks for its own.
const LOCAL: [&str; 6] = [
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "FLUX_TASK_LOCAL_ID",
    "SLURM_LOCALID",
    "SHEAVE_LOCAL_RANK",
];

/// What a mesh would be joined with, or what is wrong; for [`LOCAL`] the rank on this host.
fn outcome(name: &str, variables: Variables<'_>) -> String {
    if LOCAL.contains(&name) {
        let membership = Membership::from_lookup(lookup(variables)).unwrap().unwrap();
        return format!("{:?}", membership.local_rank);
    }
    match Config::from_lookup(lookup(variables)) {
        Ok(config) => format!("{config:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn f88_every_variable_of_another_launcher_changes_what_is_joined_with() {
    for (name, variables, value) in CASES {
        assert!(FOREIGN.iter().any(|foreign| foreign.name == name), "{name}");
        let changed = [variables, &[(name, value)]].concat();
        assert_ne!(outcome(name, variables), outcome(name, &changed), "{name}={value} changes nothing");
    }
}

/// The address that a worker tells, which is what `DMLC_INTERFACE` is about.
#[test]
fn f88_the_interface_is_listened_on() {
    let error = join_over("nosuch0", "1").expect_err("there is no such interface");
    assert!(error.what().starts_with("the network interface \"nosuch0\" does not exist"), "{error}");
    assert!(join_over("lo", "1").expect("it exists").contains("//127.0.0.1:"));
    let routable = error.advice().unwrap().rsplit(' ').next().unwrap().to_owned();
    if routable != "lo" {
        let address = join_over(&routable, "1").expect("it exists");
        assert!(!address.contains("//127."), "{address}");
        // An address that other hosts can reach is listened on only where that is permitted.
        assert!(join_over(&routable, "0").expect("it exists").contains("//127.0.0.1:"));
    }
}

/// The address of a worker whose `DMLC_INTERFACE` and `SHEAVE_INSECURE` are these.
fn join_over(interface: &str, insecure: &str) -> sheave_base::Result<String> {
    let port = sheave_base::port::free().expect("there are thousands").to_string();
    let all = [
        ("DMLC_PS_ROOT_URI", "127.0.0.1"),
        ("DMLC_PS_ROOT_PORT", &*port),
        ("DMLC_NUM_WORKER", "1"),
        ("DMLC_NUM_SERVER", "0"),
        ("SHEAVE_ROOT", ""),
        ("SHEAVE_JOIN_TIMEOUT_MS", "3000"),
        ("SHEAVE_TRANSPORT", "tcp"),
        ("SHEAVE_INSECURE", insecure),
    ];
    let scheduler = [&all[..], &[("DMLC_ROLE", "scheduler")]].concat();
    let worker = [&all[..], &[("DMLC_ROLE", "worker"), ("DMLC_INTERFACE", interface)]].concat();
    super::join_all(&[&scheduler, &worker], |mesh| mesh.me().introduction.address.clone()).remove(1)
}
