//! Copies of the running test binary that play parts.

#![allow(dead_code, reason = "each test binary uses its part")]

#[path = "../../../process/tests/common/callers.rs"]
mod callers;

use sheave_base::config::Endpoint;
use sheave_base::secret::Resolved;
use sheave_base::{ErrorKind, Secret};
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_process::Command;
use std::io::Write;
use std::time::{Duration, Instant};

/// The part that a process plays.
pub(crate) const PART: &str = "SHEAVE_TEST_PART";

/// Far enough for a loaded machine; nothing waits that long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const SIGKILL: i32 = 9;

/// This binary once more, as which the test function `actor` plays `part`.
#[track_caller]
pub(crate) fn playing(part: &str) -> Command {
    let program = std::env::current_exe().expect("this program has a path");
    let actor = callers::in_this_file("actor");
    Command::new(program).args(["--exact", &actor, "--nocapture", "--quiet"]).env(PART, part)
}

/// A mesh of one node, with a secret that stands in no environment.
pub(crate) fn host() -> Mesh {
    let port = sheave_base::port::free().expect("there are thousands");
    let root = Endpoint { host: "127.0.0.1".into(), port };
    let mut config = Config::new(Role::Rank, Some(0), Expected::ranks(1), root);
    let secret = Secret::new(b"known to this test alone").expect("it is long enough");
    config.node.secret = Some(Resolved { secret, source: "the test".into() });
    Mesh::join(config).expect("nobody else is needed")
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: it never was");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Says something to the test that has started this process.
pub(crate) fn say(text: &str) {
    writeln!(std::io::stdout(), "{text}").and_then(|()| std::io::stdout().flush()).expect("somebody listens");
}

/// Whether a process is there and not a zombie.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).is_some_and(|state| !"ZX".contains(state))
}

/// The error of something that must fail.
pub(crate) fn refused<T>(what: sheave_base::Result<T>) -> (ErrorKind, sheave_base::Error) {
    match what {
        Ok(_) => panic!("it was to fail"),
        Err(error) => (error.kind(), error),
    }
}
