//! What the system does not give this process any more: descriptors, threads, memory.
//!
//! Such a shortage is nobody else's fault. Its error names the limit and what raises it, and says by
//! [`Error::is_shortage`] that it is this process's own, so that no floor above takes it for the end of a peer.

use crate::{Error, ErrorKind};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Once;

/// Returns the error for an error number that means a shortage of this process or its host; none for any other.
#[must_use]
pub fn of(errno: Errno) -> Option<Error> {
    let (what, hint) = match errno {
        Errno::MFILE => (
            format!(
                "this process has no file descriptor left{}",
                of_at_most(Resource::Nofile, "that it may have open")
            ),
            "raise the limit, with `ulimit -n` or LimitNOFILE for example, or run fewer processes on this host",
        ),
        Errno::NFILE => (
            "this host has no file descriptor left".to_owned(),
            "raise fs.file-max, or end processes that have many files open",
        ),
        Errno::NOMEM => (
            format!(
                "the system gives this process no more memory{}",
                of_at_most(Resource::As, "bytes that it may map")
            ),
            "raise the limit, such as `ulimit -v`, vm.max_map_count or the memory of its cgroup, or free memory",
        ),
        Errno::NOBUFS => (
            "the system has no more memory for sockets".to_owned(),
            "raise net.core.wmem_max and net.ipv4.tcp_mem, or free memory",
        ),
        _ => return None,
    };
    Some(Error::new(ErrorKind::LimitExceeded, what).hint(hint).shortage())
}

/// Returns the error for a thread that the system did not start.
pub(crate) fn of_threads() -> Error {
    let limit = of_at_most(Resource::Nproc, "processes and threads that its user may have");
    Error::new(ErrorKind::LimitExceeded, format!("the system starts no more threads for this process{limit}"))
        .hint("raise the limit, with `ulimit -u`, TasksMax or pids.max of its cgroup for example, or free memory")
        .shortage()
}

fn of_at_most(resource: Resource, what: &str) -> String {
    getrlimit(resource).current.map_or_else(String::new, |limit| format!(", of {limit} {what}"))
}

/// Raises the number of descriptors that this process may have to the highest that the system lets it have. Does
/// something once in a process: who lowers it afterwards means it.
pub fn raise_descriptors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let limit = getrlimit(Resource::Nofile);
        if limit.current != limit.maximum {
            // Refused, it stays as it is, and whoever lacks a descriptor says so.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        }
    });
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it asks for limits")]
    fn f21_a_shortage_names_the_limit_and_what_raises_it() {
        let error = Error::from(Errno::MFILE).context("making a socket");
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        assert!(error.is_shortage());
        let limit = getrlimit(Resource::Nofile).current.expect("there is one");
        assert!(error.what().contains(&format!("of {limit} that it may have open")), "{error}");
        assert!(error.advice().is_some_and(|hint| hint.contains("ulimit -n")), "{error}");
        assert!(Error::from(std::io::Error::from(Errno::NOMEM)).is_shortage());
        assert!(of_threads().is_shortage());
        for other in [Errno::PIPE, Errno::CONNREFUSED, Errno::AGAIN] {
            assert!(!Error::from(other).is_shortage(), "{other}");
        }
    }
}
