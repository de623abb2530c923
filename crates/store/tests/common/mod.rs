//! Meshes for tests: as threads of one process, each with a node of its own and real links between them, or as
//! processes, which are copies of the running test binary.

#![allow(dead_code, reason = "each test binary uses its part")]

use sheave_base::config::{Endpoint, Transport};
use sheave_base::secret::Resolved;
use sheave_base::{Result, Secret};
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_process::{Child, Command, Job, Output};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Far enough for a loaded machine; nothing waits that long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const PART: &str = "SHEAVE_TEST_PART";
const COUNTS: &str = "SHEAVE_TEST_COUNTS";
const ROOT: &str = "SHEAVE_TEST_ROOT";
const TRANSPORT: &str = "SHEAVE_TEST_TRANSPORT";

pub(crate) fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A port that nobody listens on, below those that the system gives to outgoing connections.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 37 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + u16::try_from(number % 20_000).expect("it is small");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
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

/// Starts a copy of this binary for every node of a job with these numbers of servers and workers. In each the test
/// function `actor` plays the part, with these variables in its environment.
pub(crate) fn start_all(job: &Job, expected: Expected, transport: Transport, variables: &[(&str, &str)]) -> Vec<Child> {
    let port = free_port();
    parts(expected)
        .into_iter()
        .map(|part| {
            let command = Command::new(std::env::current_exe().expect("this binary"))
                .args(["--exact", "actor", "--nocapture", "--test-threads=1"])
                .name(&part)
                .env(PART, &part)
                .env(COUNTS, format!("{} {}", expected.servers, expected.workers))
                .env(ROOT, port.to_string())
                .env(TRANSPORT, format!("{transport:?}"));
            let command = variables.iter().fold(command, |command, (name, value)| command.env(*name, *value));
            job.spawn(command).expect("a process")
        })
        .collect()
}

/// The parts of a job in the order of their ranks in the mesh.
pub(crate) fn parts(expected: Expected) -> Vec<String> {
    let part_of = |role: Role| (0..expected.of(role)).map(move |rank| format!("{role}-{rank}"));
    Role::ALL.into_iter().flat_map(part_of).collect()
}

/// The part that this process plays, if it is not the test itself.
pub(crate) fn part() -> Option<Config> {
    let variable = |name: &str| std::env::var(name).expect("the test has set it");
    let part = std::env::var(PART).ok()?;
    let (role, rank) = part.split_once('-').expect("a role and a rank");
    let role = Role::from_name(role).expect("a role");
    let counts: Vec<u32> = variable(COUNTS).split(' ').map(|count| count.parse().expect("a number")).collect();
    let transport = match variable(TRANSPORT).as_str() {
        "Tcp" => Transport::Tcp,
        "Shm" => Transport::Shm,
        _ => Transport::Auto,
    };
    let rank = rank.parse().expect("a rank");
    let port = variable(ROOT).parse().expect("a port");
    Some(config(role, Some(rank), roles(counts[0], counts[1]), port, transport))
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

/// What every process of a job does: a worker acts, and all others serve until the workers have left.
pub(crate) fn play(mesh: &Mesh, server: sheave_store::ServerConfig, act: impl FnOnce(&Mesh)) {
    match mesh.me().introduction.role {
        Role::Server => {
            sheave_store::Server::start(mesh, server).and_then(|server| server.run()).expect("no worker dies");
        }
        Role::Worker => act(mesh),
        _ => mesh.until_gone(|_| true).expect("nobody dies"),
    }
    mesh.leave().expect("the others agree");
}

/// Waits for the good end of all processes.
pub(crate) fn ended_well(children: &[Child]) {
    for child in children {
        until("it has ended", || child.exit().is_some());
        let well = child.exit().is_some_and(|exit| exit.status.success());
        assert!(well, "{} has failed\n{}", child.name(), child.stderr_lines().join("\n"));
    }
}

/// Runs a job with servers: `act` as every worker, with what `serve` makes of every server. Returns what the workers
/// returned by rank.
pub(crate) fn job_of<T: Send + 'static>(
    servers: u32,
    workers: u32,
    transport: Transport,
    config: sheave_store::ServerConfig,
    act: impl Fn(&Mesh) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let outcomes = together(roles(servers, workers), transport, move |mesh| {
        let outcome = match mesh.me().introduction.role {
            Role::Server => {
                let server = sheave_store::Server::start(&mesh, config.clone()).expect("it is the first");
                server.run().expect("no worker dies");
                None
            }
            Role::Worker => Some(act(&mesh)),
            _ => {
                mesh.until_gone(|_| true).expect("nobody dies");
                None
            }
        };
        mesh.leave().expect("the others agree");
        outcome
    });
    outcomes.into_iter().flatten().collect()
}
