//! What the machine and its administrator grant: memory, cores, descriptors, ports, and the user's secret and settings.

use super::{Finding, fact_of};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CpuSet, sched_getaffinity};
use sheave_base::config::{Settings, keys};
use sheave_base::secret::{SECRET_FILE_VARIABLE, SECRET_VARIABLE, resolve};
use sheave_base::{Result, limits};
use sheave_tensor::{Arena, ArenaConfig};
use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

/// What is mapped to see whether it can be.
const ARENA_TRIAL_BYTES: usize = 64 << 20;

/// Fewer descriptors than this leave no room for a job of some dozens of processes.
const OPEN_FILES_USUAL: u64 = 1024;

/// What one process holds open for itself, and for each peer, rounded up: six ranks on one host that do no more than
/// meet need 28.
const OPEN_FILES_OWN: u64 = 16;
const OPEN_FILES_OF_PEER: u64 = 6;

/// Ranks of one host up to which links to all of them are sure to be made.
const JOB_RANKS_USUAL: usize = 64;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) fn check(settings: &Settings) -> Vec<Finding> {
    vec![
        settings_in_use(),
        arena(),
        memory(settings),
        open_files(settings),
        cores(settings),
        Finding::of("loopback", loopback(), "does the interface lo exist, and is it up?"),
        Finding::of("bind", bind(settings), "choose an address of this machine with SHEAVE_BIND"),
        secret(),
    ]
}

/// Names only: one of the values is the secret.
fn settings_in_use() -> Finding {
    let is_set = |name: &&'static str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let names: Vec<&str> = keys().into_iter().map(|key| key.name).filter(is_set).collect();
    let fact = if names.is_empty() { "all as by default".to_owned() } else { format!("set are {}", names.join(", ")) };
    Finding::ok("settings", fact)
}

fn arena() -> Finding {
    let trial = ARENA_TRIAL_BYTES as u64;
    let arena = Arena::new(ArenaConfig { first_segment_bytes: trial, capacity_bytes: trial, ..ArenaConfig::default() });
    let mapped = arena.allocate(ARENA_TRIAL_BYTES).map(|_| format!("{} can be mapped and sealed", mib(trial)));
    Finding::of("arena", mapped, "free memory, or raise the limit of the container")
}

/// The ranks that a job has here: as many as it says, or two, which is the least that talk to each other.
fn local_ranks(settings: &Settings) -> usize {
    settings.local_ranks.unwrap_or(2)
}

/// The arenas of all local ranks against what the machine and the container have.
fn memory(settings: &Settings) -> Finding {
    const CHECK: &str = "memory";
    let available = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_bytes(&text));
    let limit = cgroup_limit_bytes();
    let Some(room) = [available, limit].into_iter().flatten().min() else {
        return Finding::warn(CHECK, "neither /proc/meminfo nor a cgroup limit can be read", "is /proc mounted?");
    };
    let ranks = local_ranks(settings);
    let wanted = settings.arena_bytes.saturating_mul(ranks as u64);
    let limited = limit.map_or("no cgroup limit".to_owned(), |limit| format!("a cgroup limit of {}", mib(limit)));
    let shown = available.map_or("unknown".to_owned(), mib);
    let fact = format!("{shown} available, {limited}; {ranks} ranks may take {} each", mib(settings.arena_bytes));
    if wanted <= room {
        return Finding::ok(CHECK, fact);
    }
    let share = mib(room / ranks.max(1) as u64 / 2);
    Finding::warn(CHECK, fact, format!("if tensors fill the arenas, ranks are killed; SHEAVE_ARENA_BYTES={share} fits"))
}

fn mib(bytes: u64) -> String {
    format!("{}MiB", bytes >> 20)
}

fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The lowest limit of this process's cgroup and those around it, whichever version of cgroups is mounted.
fn cgroup_limit_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let places = groups.lines().filter_map(cgroup_place);
    let limits = places.flat_map(|(mount, group, file)| {
        // Inside a container the group's path may be the host's; the mount point then is the group itself.
        let folder = mount.join(group);
        let folders: Vec<PathBuf> =
            folder.ancestors().take_while(|up| up.starts_with(&mount)).map(PathBuf::from).collect();
        folders.into_iter().filter_map(move |folder| {
            let text = std::fs::read_to_string(folder.join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        })
    });
    // The older version writes a number near the largest there is for no limit.
    limits.filter(|limit| *limit < 1 << 60).min()
}

/// From a line such as `0::/user.slice`: where the hierarchy is mounted, the group in it, and the file with the limit.
fn cgroup_place(line: &str) -> Option<(PathBuf, &str, &'static str)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, group) = (fields.next()?, fields.next()?.trim_start_matches('/'));
    match controllers {
        "" => Some(("/sys/fs/cgroup".into(), group, "memory.max")),
        _ if controllers.split(',').any(|name| name == "memory") => {
            Some(("/sys/fs/cgroup/memory".into(), group, "memory.limit_in_bytes"))
        }
        _ => None,
    }
}

fn open_files(settings: &Settings) -> Finding {
    const CHECK: &str = "open files";
    let rustix::process::Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let shown = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let fact = format!("{} per process, at most {}", shown(current), shown(maximum));
    let ranks = local_ranks(settings);
    let peers = ranks.saturating_sub(1) as u64;
    let least = OPEN_FILES_OWN + OPEN_FILES_OF_PEER * peers;
    match current {
        // A job of so many would fail when it joins, or later.
        Some(few) if few < least && ranks <= JOB_RANKS_USUAL => {
            Finding::fail(CHECK, fact, format!("{ranks} ranks take {least}; raise it with `ulimit -n`"))
        }
        Some(few) if few < least.max(OPEN_FILES_USUAL) => {
            let wanted = least.max(OPEN_FILES_USUAL);
            Finding::warn(CHECK, fact, format!("raise it with `ulimit -n {wanted}`; each peer takes some"))
        }
        _ => Finding::ok(CHECK, fact),
    }
}

fn cores(settings: &Settings) -> Finding {
    const CHECK: &str = "cores";
    let affinity =
        sched_getaffinity(None).map(|allowed| (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).count());
    // The standard library counts what affinity and quota leave.
    let usable = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let by_affinity = affinity.map_or("an unknown number".to_owned(), |count| count.to_string());
    let ranks = local_ranks(settings);
    let fact = format!("{by_affinity} by affinity, {usable} with the cgroup quota, for {ranks} local ranks");
    if usable >= ranks {
        return Finding::ok(CHECK, fact);
    }
    Finding::warn(CHECK, fact, "waits give their core away at once; fewer ranks, or more cores, answer faster")
}

fn loopback() -> Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
    Ok(format!("{} can be listened on and connected to", address.ip()))
}

fn bind(settings: &Settings) -> Result<String> {
    let address = TcpListener::bind(settings.bind)?.local_addr()?;
    let reach = if address.ip().is_loopback() { "this machine only" } else { "other machines too" };
    Ok(format!("{} is free, and reached by {reach}", settings.bind))
}

fn secret() -> Finding {
    const CHECK: &str = "secret";
    let lookup = |name: &str| std::env::var_os(name);
    let resolved = match resolve(lookup) {
        Ok(resolved) => resolved,
        Err(error) => {
            let hint = error.advice().unwrap_or("set SHEAVE_SECRET or SHEAVE_SECRET_FILE").to_owned();
            return Finding::fail(CHECK, fact_of(&error), hint);
        }
    };
    let length_bytes = resolved.secret.expose().len();
    let mode = secret_file(lookup).and_then(|path| path.metadata().ok()).map(|data| data.mode() & 0o777);
    let mode = mode.map_or(String::new(), |mode| format!(", mode {mode:04o}"));
    let fact = format!("from {}{mode}", resolved.source);
    // Twice the shortest that is accepted is what sheave itself draws.
    if length_bytes < 2 * limits::SECRET_BYTES_MIN {
        return Finding::warn(CHECK, fact, "it is short; make one with `openssl rand -hex 32`");
    }
    Finding::ok(CHECK, fact)
}

/// The file that the secret comes from, if it comes from one.
fn secret_file(lookup: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if lookup(SECRET_VARIABLE).is_some() {
        return None;
    }
    if let Some(path) = lookup(SECRET_FILE_VARIABLE) {
        return Some(path.into());
    }
    let configured = lookup("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = configured.or_else(|| Some(PathBuf::from(lookup("HOME")?).join(".config")))?;
    Some(base.join("sheave/cookie"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_bytes() {
        assert_eq!(available_bytes("MemTotal: 8 kB\nMemAvailable:    3 kB\n"), Some(3072));
        assert_eq!(available_bytes("MemTotal: 8 kB\n"), None);
        assert_eq!(available_bytes("MemAvailable: many kB\n"), None);
    }

    #[test]
    fn both_versions_of_cgroups_are_found() {
        let newer = cgroup_place("0::/user.slice/a");
        assert_eq!(newer, Some(("/sys/fs/cgroup".into(), "user.slice/a", "memory.max")));
        let older = cgroup_place("4:hugetlb,memory:/job");
        assert_eq!(older, Some(("/sys/fs/cgroup/memory".into(), "job", "memory.limit_in_bytes")));
        assert_eq!(cgroup_place("3:cpuset:/job"), None);
        assert_eq!(cgroup_place("nothing"), None);
    }

    #[test]
    fn the_secret_file_is_the_one_that_counts() {
        let with = |set: &'static [(&str, &str)]| {
            secret_file(move |name| set.iter().find(|entry| entry.0 == name).map(|entry| entry.1.into()))
        };
        assert_eq!(with(&[("SHEAVE_SECRET", "x"), ("SHEAVE_SECRET_FILE", "/f")]), None);
        assert_eq!(with(&[("SHEAVE_SECRET_FILE", "/f"), ("HOME", "/h")]), Some("/f".into()));
        assert_eq!(with(&[("XDG_CONFIG_HOME", "rel"), ("HOME", "/h")]), Some("/h/.config/sheave/cookie".into()));
        assert_eq!(with(&[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")]), Some("/x/sheave/cookie".into()));
        assert_eq!(with(&[]), None);
    }
}
