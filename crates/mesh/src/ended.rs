//! Whether the process of another member has ended for sure.
//!
//! The system of a host knows that of its own processes. Each member says in the table which one it is by a *mark*: the
//! boot id of its host, its name space of process ids, its id there, and when it was started. A member with the same
//! first two may ask the system about that id. The process has ended if there is none of that id, if it is over and
//! only waits to be reaped, or if one of that id was started at another time. Nothing else is a proof: what cannot be
//! asked, or of another host or container, may live.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sheave_base::process;
use std::fs::{read_link, read_to_string};

/// The mark of this process, on the host with that boot id; empty if it cannot be told.
pub(crate) fn mark(boot_id: &str) -> String {
    let pid = process::id();
    #[cfg(feature = "simulated")]
    if sheave_base::simulated::current().is_some() {
        return format!("{boot_id} simulated {pid} 0");
    }
    match (name_space(), started(pid)) {
        (Some(name_space), Some(started)) if !boot_id.is_empty() => format!("{boot_id} {name_space} {pid} {started}"),
        _ => String::new(),
    }
}

/// Whether the process with the mark `other` has ended, as far as the one with the mark `own`, this one, can tell.
pub(crate) fn has_ended(own: &str, other: &str) -> bool {
    let (Some([boot_id, name_space, own_pid, _]), Some(other)) = (parts(own), parts(other)) else { return false };
    let [other_boot_id, other_name_space, pid, begun] = other;
    if (boot_id, name_space) != (other_boot_id, other_name_space) || own_pid == pid {
        return false;
    }
    let Ok(number) = pid.parse::<u32>() else { return false };
    #[cfg(feature = "simulated")]
    if let Some(system) = sheave_base::simulated::current() {
        return system.has_ended(number);
    }
    let Some(id) = number.try_into().ok().and_then(Pid::from_raw) else { return false };
    match pidfd_open(id, PidfdFlags::empty()) {
        Err(errno) => errno == Errno::SRCH,
        Ok(process) => {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let is_over = matches!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&now)), Ok(1));
            is_over || started(number).is_some_and(|started| started != begun)
        }
    }
}

fn parts(mark: &str) -> Option<[&str; 4]> {
    mark.split(' ').collect::<Vec<_>>().try_into().ok()
}

fn name_space() -> Option<String> {
    Some(read_link("/proc/self/ns/pid").ok()?.to_str()?.to_owned())
}

/// When a process of this name space was started, as the system counts; `None` if it is not seen in `/proc`, which may
/// be that of another name space.
fn started(pid: u32) -> Option<String> {
    let own = read_link("/proc/self").ok()?;
    if own.to_str() != Some(std::process::id().to_string().as_str()) {
        return None;
    }
    let status = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before the last parenthesis may contain anything. The start is the 22nd field, the 20th after it.
    let (_, fields) = status.rsplit_once(") ")?;
    fields.split(' ').nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn mark_of(pid: u32) -> String {
        let own = mark("a-b");
        let [boot_id, name_space, ..] = parts(&own).expect("it has four parts");
        format!("{boot_id} {name_space} {pid} {}", started(pid).expect("it lives"))
    }

    #[test]
    fn a_process_has_ended_once_it_is_killed_and_once_it_is_reaped() {
        let own = mark("a-b");
        let mut child = Command::new("sleep").arg("600").spawn().expect("it starts");
        let other = mark_of(child.id());
        assert!(!has_ended(&own, &other), "{other} lives");
        child.kill().expect("it lives");
        // As a zombie, which the wait would not leave behind.
        let descriptor = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).expect("it is not reaped");
        poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None).expect("it ends");
        assert!(has_ended(&own, &other), "{other} has ended and is not reaped");
        child.wait().expect("it has ended");
        assert!(has_ended(&own, &other), "{other} has ended");
    }

    #[test]
    fn a_process_of_the_same_number_that_started_at_another_time_is_another_one() {
        let own = mark("a-b");
        let parent = std::os::unix::process::parent_id();
        let other = mark_of(parent);
        assert!(!has_ended(&own, &other), "{other} lives");
        let (earlier, _) = other.rsplit_once(' ').expect("it has four parts");
        assert!(has_ended(&own, &format!("{earlier} 1")), "the number is used again");
    }

    #[test]
    fn nothing_is_known_of_processes_elsewhere() {
        let own = mark("a-b");
        let [_, name_space, ..] = parts(&own).expect("it has four parts");
        for other in [
            format!("c-d {name_space} 2000000000 1"),
            "a-b pid:[1] 2000000000 1".to_owned(),
            String::new(),
            own.clone(),
            format!("a-b {name_space} -1 1"),
        ] {
            assert!(!has_ended(&own, &other), "{other}");
        }
        assert!(has_ended(&own, &format!("a-b {name_space} 2000000000 1")));
    }
}
