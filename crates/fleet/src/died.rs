//! The error about a process that has ended.

use sheave_base::{Error, ErrorKind, Peer, ProcessEnd};
use sheave_process::{Exit, Status};

/// Returns the error about a process that has ended like this: its status, and the end of what it said on standard
/// error, of which the last line stands in the hint.
pub(crate) fn worker_died(what: String, peer: Peer, exit: &Exit, last_stderr_lines: &[String]) -> Error {
    let status = match exit.status {
        Status::Code(code) => Some(code),
        Status::Signal(signal) => Some(-signal),
        Status::Lost => None,
    };
    let peer = if exit.pid == 0 { peer } else { peer.pid(exit.pid) };
    let end = ProcessEnd::new(status, last_stderr_lines.join("\n"));
    let error = Error::new(ErrorKind::WorkerDied, what).peer(peer).ended(end);
    match last_stderr_lines.iter().rfind(|line| !line.trim().is_empty()) {
        Some(line) => error.hint(format!("its last line on standard error was: {}", line.trim())),
        None if exit.status == Status::Lost => error.hint("look for an out-of-memory kill in the kernel's log"),
        None => error,
    }
}
