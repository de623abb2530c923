//! Meshes for tests: as threads of one process, each with a node of its own and real links between them, or as
//! processes, which are copies of the running test binary.

#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

#[path = "../../../process/tests/common/callers.rs"]
mod callers;

use sheave_base::config::{Endpoint, Transport};
use sheave_base::secret::Resolved;
use sheave_base::{Result, Secret};
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_process::{Child, Command, Job, Output};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Far enough for a loaded machine; nothing waits that long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const PART: &str = "SHEAVE_TEST_PART";
pub(crate) const ROOT: &str = "SHEAVE_TEST_ROOT";
pub(crate) const TRANSPORT: &str = "SHEAVE_TEST_TRANSPORT";

pub(crate) fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// The time in milliseconds, by the clock that all processes of a job share.
pub(crate) fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis()
}

/// A port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    sheave_base::port::free().expect("there are thousands")
}

pub(crate) fn root(port: u16) -> Endpoint {
    Endpoint { host: "127.0.0.1".into(), port }
}

pub(crate) fn secret(text: &str) -> Option<Resolved> {
    let secret = Secret::new(text.as_bytes()).expect("it is long enough");
    Some(Resolved { secret, source: "the test".into() })
}

/// A config with a secret of the tests' own, so that no cookie is made.
pub(crate) fn config(role: Role, rank: Option<u32>, expected: Expected, port: u16, transport: Transport) -> Config {
    let mut config = Config::new(role, rank, expected, root(port));
    config.node.secret = secret("known to the tests alone");
    config.node.transport = transport;
    config.node.local_ranks = 4;
    config
}

/// One scheduler, and these numbers of servers and workers.
pub(crate) fn roles(servers: u32, workers: u32) -> Expected {
    Expected { schedulers: 1, servers, workers, ranks: 0 }
}

/// Runs `act` as every node of the mesh at once, each on a thread of its own, and returns what they returned in the
/// order of their ranks. A node that panics makes the test fail.
pub(crate) fn together<T: Send + 'static>(
    expected: Expected,
    transport: Transport,
    act: impl Fn(Mesh) -> T + Clone + Send + 'static,
) -> Vec<T> {
    together_with(expected, transport, |_| (), act)
}

/// As [`together`], with a change to every config.
pub(crate) fn together_with<T: Send + 'static>(
    expected: Expected,
    transport: Transport,
    change: impl Fn(&mut Config),
    act: impl Fn(Mesh) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let port = free_port();
    let mut threads = Vec::new();
    for role in Role::ALL {
        for rank in 0..expected.of(role) {
            let mut config = config(role, Some(rank), expected, port, transport);
            change(&mut config);
            let act = act.clone();
            let name = format!("{role}-{rank}");
            let thread = std::thread::Builder::new().name(name);
            threads.push(thread.spawn(move || act(Mesh::join(config).expect("everybody comes"))).expect("a thread"));
        }
    }
    threads.into_iter().map(|thread| thread.join().expect("no node panics")).collect()
}

/// A job whose processes are gone when it is dropped.
pub(crate) fn job() -> Job {
    Job::builder().output(Output::Capture).start().expect("a job")
}

/// A command that starts a copy of this binary in which the test function `actor` plays `part`.
#[track_caller]
pub(crate) fn actor(part: &str, port: u16, transport: Transport) -> Command {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", &callers::in_this_file("actor"), "--nocapture", "--test-threads=1"])
        .name(part)
        .env(PART, part)
        .env(ROOT, port.to_string())
        .env(TRANSPORT, format!("{transport:?}"))
}

/// The part that this process plays, if it is not the test itself: its role, its rank and its config.
pub(crate) fn part_of(expected: Expected) -> Option<Config> {
    let part = std::env::var(PART).ok()?;
    let (role, rank) = part.split_once('-').expect("a role and a rank");
    let role = Role::from_name(role).expect("a role");
    let rank = rank.parse().expect("a rank");
    let port = std::env::var(ROOT).expect("a port").parse().expect("a number");
    let transport = match std::env::var(TRANSPORT).expect("a transport").as_str() {
        "Tcp" => Transport::Tcp,
        "Shm" => Transport::Shm,
        _ => Transport::Auto,
    };
    Some(config(role, Some(rank), expected, port, transport))
}

/// What an actor says to its test.
pub(crate) fn say(text: &str) {
    use std::io::Write;
    writeln!(std::io::stdout(), "\n[actor] {text}").expect("the test listens");
}

/// Says what a test has measured; for the reader of its output.
pub(crate) fn note(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Waits for an actor's word and returns what follows it.
pub(crate) fn hear(child: &Child, text: &str) -> String {
    let marked = format!("[actor] {text}");
    let line = child.wait_for_stdout(&marked, soon()).unwrap_or_else(|error| {
        panic!("{error}\n{}\n{}", child.stdout_lines().join("\n"), child.stderr_lines().join("\n"))
    });
    line.split(&marked).nth(1).unwrap_or_default().trim().to_owned()
}

/// Waits until `what` is true.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = soon();
    while !is_so() {
        assert!(Instant::now() < end, "{what} never came to be");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for a work, as long as a test may.
pub(crate) fn wait<T: Clone>(work: &sheave_base::Work<T>) -> Result<T> {
    work.wait_timeout(PATIENCE)
}
