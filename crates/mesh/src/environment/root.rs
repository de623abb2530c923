//! Where a job meets, for launchers that have no meeting place of their own to tell.
//!
//! All ranks must come to the same answer without talking to each other, so it depends only on variables that are the
//! same in all of them. The port has to be one that nothing else on that host is likely to take: torchrun's agent may
//! listen on `MASTER_PORT` and `torch.distributed` does where it does not, so that port itself is never ours; the ports
//! from 32768 on are handed out by the system; jobs that follow each other in number should not share a port. Hence
//! [`derived_port`].

use sheave_base::config::{Endpoint, Place, Root};
use sheave_base::{Error, ErrorKind, Result};

use super::variables::{Variables, needed};
use super::{Launcher, nodes};

const HNP_URI: &str = "OMPI_MCA_orte_hnp_uri";
const LEADER: &str = "LWS_LEADER_ADDRESS";

/// A port from 10000 to 28999 for whatever a number stands for. It is never the port of that number itself: below 19000
/// it differs by 10000, below 29000 by 9000, and from there on it is out of range.
fn derived_port(number: u64) -> u16 {
    10_000 + (number % 19_000) as u16
}

/// The root of a job of plain ranks: what the user says, else what torch's variables say, else what `launcher` says.
pub(super) fn find(place: &Place, variables: &Variables<'_>, launcher: Launcher, is_one_host: bool) -> Result<Root> {
    if let Some(root) = &place.root {
        return Ok(root.clone());
    }
    if let Some(host) = variables.host("MASTER_ADDR")? {
        let port = needed(variables.port("MASTER_PORT")?, "MASTER_PORT", Launcher::Torchrun)?;
        return Ok(Endpoint { host, port: derived_port(port.into()) }.into());
    }
    if launcher == Launcher::Torchrun {
        return needed(None, "MASTER_ADDR", launcher);
    }
    let of_launcher = match launcher {
        Launcher::OpenMpi => open_mpi_host(variables)?,
        Launcher::LeaderWorkerSet => Some(needed(variables.host(LEADER)?, LEADER, launcher)?),
        _ => None,
    };
    let host = match of_launcher {
        _ if is_one_host => Some("127.0.0.1".to_owned()),
        Some(host) => Some(host),
        None => slurm_host(variables)?,
    };
    let host = host.ok_or_else(|| unknown(launcher, "host", "where rank 0 runs"))?;
    let of_launcher = match launcher {
        Launcher::Slurm => None,
        Launcher::LeaderWorkerSet => Some(host.clone()),
        _ => mpi_job(variables)?,
    };
    let number = match of_launcher {
        Some(job) => Some(u64::from(crc32fast::hash(job.as_bytes()))),
        None => slurm_job(variables)?,
    };
    let number = number.ok_or_else(|| unknown(launcher, "job", "which port is this job's"))?;
    Ok(Endpoint { host, port: derived_port(number) }.into())
}

fn unknown(launcher: Launcher, missing: &str, question: &str) -> Error {
    Error::new(
        ErrorKind::InvalidArgument,
        format!("SHEAVE_ROOT is not set and the variables of {launcher} name no {missing}, so nothing says {question}"),
    )
    .hint("set SHEAVE_ROOT for all ranks to the host of rank 0 and a port, as in node1:7000")
}

/// What the variables about mpirun itself say: the host it runs on. That rank 0 runs there too is a guess, right unless
/// a list of hosts begins with another.
fn open_mpi_host(variables: &Variables<'_>) -> Result<Option<String>> {
    if let Some((_, Some(host))) = hnp(variables)? {
        return Ok(Some(host));
    }
    let name = variables.text("PMIX_NAMESPACE")?;
    // prterun-host-pid@number; Open MPI 4 has a bare number here.
    let host = name.as_deref().and_then(|name| Some(name.split_once('-')?.1.split_once('@')?.0.rsplit_once('-')?.0));
    Ok(host.filter(|host| Endpoint::is_host(host)).map(str::to_owned))
}

/// The job and the host in `123.0;tcp://10.0.0.1,192.168.0.1:4000;tcp://…`: the first address that is not loopback, or
/// the first of all. There is no host where mpirun can be reached by no such address.
fn hnp(variables: &Variables<'_>) -> Result<Option<(String, Option<String>)>> {
    variables.read(HNP_URI, "a job and its address, as in 123.0;tcp://10.0.0.1:4000", |text| {
        let (job, addresses) = text.trim_matches('"').split_once(';')?;
        let hosts = addresses.split(';').filter_map(|address| address.strip_prefix("tcp://")?.rsplit_once(':'));
        let hosts: Vec<&str> = hosts.flat_map(|(hosts, _)| hosts.split(',')).collect();
        let host = hosts.iter().find(|host| !host.starts_with("127.")).or_else(|| hosts.first());
        let host = host.filter(|host| Endpoint::is_host(host));
        Some((job.to_owned(), host.map(|host| (*host).to_owned())))
    })
}

fn mpi_job(variables: &Variables<'_>) -> Result<Option<String>> {
    if let Some((job, _)) = hnp(variables)? {
        return Ok(Some(job));
    }
    for name in ["PMIX_NAMESPACE", "PMI_JOBID", "FLUX_JOB_ID"] {
        if let Some(job) = variables.text(name)? {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

fn slurm_host(variables: &Variables<'_>) -> Result<Option<String>> {
    for name in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"] {
        let allowed = "a list of at most 16384 hosts, as in node[001-003,007],gpu5";
        if let Some(hosts) = variables.read(name, allowed, nodes::expand)? {
            return Ok(hosts.into_iter().next());
        }
    }
    Ok(None)
}

fn slurm_job(variables: &Variables<'_>) -> Result<Option<u64>> {
    let Some(job) = variables.number("SLURM_JOB_ID", 0, u32::MAX)? else { return Ok(None) };
    let step = variables.number("SLURM_STEP_ID", 0, u32::MAX)?.unwrap_or(0);
    Ok(Some(u64::from(job) * 64 + u64::from(step)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derived_port_is_never_the_port_it_comes_from_nor_one_that_the_system_hands_out() {
        for port in 1..=u16::MAX {
            let derived = derived_port(port.into());
            assert!(derived != port && (10_000..29_000).contains(&derived), "{port}");
        }
        assert!((10_000..29_000).contains(&derived_port(u64::MAX)));
    }
}
