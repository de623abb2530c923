//! How many cores a job may use on this host.
//!
//! A process that a launcher has pinned may use one core, and its peers may use others. So what counts is what all of
//! them together may use: the union of their affinities, and no more than the quota of the control group.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};
use std::path::Path;
use std::sync::OnceLock;

/// Returns how many cores the calling thread and these processes may use together, at least one. A process that cannot
/// be seen, because it has ended or is in another namespace, counts for nothing. Affinities are asked for each time,
/// the quota once in a process.
#[must_use]
pub fn usable(pids: impl IntoIterator<Item = u32>) -> usize {
    let of_process = |pid: u32| sched_getaffinity(Some(Pid::from_raw(i32::try_from(pid).ok()?)?)).ok();
    let affinities = std::iter::once(sched_getaffinity(None).ok()).chain(pids.into_iter().map(of_process)).flatten();
    let cores = count_together(affinities);
    if cores == 0 {
        return std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    }
    // Half a dozen files, which every start of a node would read several times.
    static QUOTA: OnceLock<Option<usize>> = OnceLock::new();
    cores.min(QUOTA.get_or_init(quota).unwrap_or(usize::MAX)).max(1)
}

/// The core that the calling thread runs on, where the system says so. It may be another one a moment later.
pub(crate) fn current() -> Option<u32> {
    #[cfg(feature = "simulated")]
    if sheave_base::simulated::current().is_some() {
        // Which core a thread has is no part of what is played again.
        return None;
    }
    if cfg!(miri) {
        return None;
    }
    // SAFETY: it takes nothing and touches no memory of ours.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

fn count_together(affinities: impl IntoIterator<Item = CpuSet>) -> usize {
    let mut all = CpuSet::new();
    for affinity in affinities {
        (0..CpuSet::MAX_CPU).filter(|core| affinity.is_set(*core)).for_each(|core| all.set(core));
    }
    all.count() as usize
}

/// The whole cores that the quotas of this process's control groups leave, if they have any.
fn quota() -> Option<usize> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let (root, group, is_unified) = own.lines().find_map(place_of)?;
    let mut folder = Path::new(root).join(group.trim_start_matches('/'));
    let mut least = None;
    loop {
        let found = if is_unified {
            std::fs::read_to_string(folder.join("cpu.max")).ok().and_then(|text| unified_quota(&text))
        } else {
            let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
            read("cpu.cfs_quota_us")
                .zip(read("cpu.cfs_period_us"))
                .and_then(|(quota, period)| cores_of(&quota, &period))
        };
        least = least.into_iter().chain(found).min();
        if folder == Path::new(root) || !folder.pop() {
            return least;
        }
    }
}

/// Where the quota of a line of `/proc/self/cgroup` stands: the folder of the hierarchy, the group in it, and whether
/// it is the unified one.
fn place_of(line: &str) -> Option<(&'static str, &str, bool)> {
    let (_, line) = line.split_once(':')?;
    let (controllers, group) = line.split_once(':')?;
    if controllers.is_empty() {
        // Beside older hierarchies it has no quotas.
        return Path::new("/sys/fs/cgroup/cgroup.controllers").exists().then_some(("/sys/fs/cgroup", group, true));
    }
    controllers.split(',').any(|name| name == "cpu").then_some(("/sys/fs/cgroup/cpu", group, false))
}

/// The cores in `max 100000` or `150000 100000`.
fn unified_quota(text: &str) -> Option<usize> {
    let (quota, period) = text.trim().split_once(' ')?;
    cores_of(quota, period)
}

/// Whole cores; a part of one is one. A quota that is no number above zero is none.
fn cores_of(quota: &str, period: &str) -> Option<usize> {
    let quota: u64 = quota.trim().parse().ok().filter(|quota| *quota > 0)?;
    let period: u64 = period.trim().parse().ok().filter(|period| *period > 0)?;
    usize::try_from(quota / period).ok().map(|cores| cores.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pinned(cores: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cores.iter().for_each(|core| set.set(*core));
        set
    }

    #[test]
    fn f34_processes_that_are_pinned_apart_have_all_their_cores_together() {
        assert_eq!(count_together([pinned(&[0]), pinned(&[1])]), 2);
        assert_eq!(count_together([pinned(&[3]), pinned(&[3])]), 1);
        assert_eq!(count_together([pinned(&[0, 1]), pinned(&[1, 2]), pinned(&[])]), 3);
        assert_eq!(count_together([]), 0);
    }

    #[test]
    fn quotas_are_read_as_the_kernel_writes_them() {
        assert_eq!(unified_quota("max 100000\n"), None);
        assert_eq!(unified_quota("150000 100000\n"), Some(1));
        assert_eq!(unified_quota("400000 100000\n"), Some(4));
        assert_eq!(unified_quota("50000 100000\n"), Some(1));
        assert_eq!(cores_of("-1\n", "100000\n"), None);
        assert_eq!(cores_of("200000", "0"), None);
        assert_eq!(place_of("4:cpu,cpuacct:/jobs/one"), Some(("/sys/fs/cgroup/cpu", "/jobs/one", false)));
        assert_eq!(place_of("5:memory:/jobs/one"), None);
        assert_eq!(place_of("nonsense"), None);
    }

    #[test]
    fn a_thread_runs_on_a_core_that_it_may_use() {
        let allowed = sched_getaffinity(None).expect("an affinity");
        let core = current().expect("Linux says so");
        assert!(allowed.is_set(core as usize), "core {core}");
    }

    #[test]
    fn there_is_a_core_whoever_is_asked_for() {
        assert!(usable([]) >= 1);
        assert!(usable([0, u32::MAX, std::process::id()]) >= usable([]));
    }
}
