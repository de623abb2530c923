//! Who of a mesh works on this host, so that waits know for how many processes its cores are.

use crate::driver::Shared;
use crate::engine::{Member, Role};
use sheave_net::Address;

/// Tells the node which members share its host, now that they are known; `declared` is how many processes the job has
/// here, if somebody knows better than the members.
pub(crate) fn share_host(shared: &Shared, declared: Option<usize>) {
    let boot_id = shared.node.boot_id();
    let own = shared.node.peer().host.as_deref().unwrap_or_default();
    let near: Vec<&Member> = shared.table().iter().filter(|member| is_near(member, boot_id, own)).collect();
    let busy: Vec<&Member> = near.iter().copied().filter(|member| is_busy(member.introduction.role)).collect();
    let local_ranks = busy_of(declared.unwrap_or(near.len()), near.len() - busy.len());
    shared.node.share_host(local_ranks, busy.iter().map(|member| member.introduction.pid));
}

/// Whether a member runs on the host with this boot id, or of this name where the system tells no boot id.
fn is_near(member: &Member, boot_id: &str, host: &str) -> bool {
    let address = member.introduction.address.parse::<Address>();
    let told = address.map(|address| address.boot_id).unwrap_or_default();
    if told.is_empty() || boot_id.is_empty() { member.introduction.host == host } else { told == boot_id }
}

/// Whether a role computes or answers. A scheduler sleeps while the others work.
fn is_busy(role: Role) -> bool {
    role != Role::Scheduler
}

/// So many of the processes on a host are busy, if so many are idle.
fn busy_of(processes: usize, idle: usize) -> usize {
    processes.saturating_sub(idle).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f33_a_scheduler_is_not_busy() {
        let busy: Vec<Role> = Role::ALL.into_iter().filter(|role| is_busy(*role)).collect();
        assert_eq!(busy, [Role::Server, Role::Worker, Role::Rank]);
        assert_eq!(busy_of(3, 1), 2);
        assert_eq!(busy_of(8, 0), 8);
        assert_eq!(busy_of(1, 1), 1, "somebody asks");
    }
}
