//! Meshes for tests: as threads of one process, each with a node of its own and real links between them, or as
//! processes, which are copies of the running test binary. And the oracle: what operations must give, computed one
//! element after the other from the inputs of all ranks.

#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod oracle;
pub(crate) mod player;

use sheave_base::config::{Endpoint, Transport};
use sheave_base::secret::Resolved;
use sheave_base::{Result, Secret, Work};
use sheave_collective::{Collectives, Communicator, Table};
use sheave_mesh::{Config, Expected, Mesh, Role};
use sheave_net::{Medium, Neighbourhood};
use sheave_process::{Child, Command, Job, Output};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Far enough for a loaded machine; nothing waits that long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const RANK: &str = "SHEAVE_TEST_RANK";
const RANKS: &str = "SHEAVE_TEST_RANKS";
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

/// A config with a secret of the tests' own, so that no cookie is made.
pub(crate) fn config(rank: u32, ranks: u32, port: u16, transport: Transport) -> Config {
    let root = Endpoint { host: "127.0.0.1".into(), port };
    let mut config = Config::new(Role::Rank, Some(rank), Expected::ranks(ranks), root);
    let secret = Secret::new(b"known to the tests alone").expect("it is long enough");
    config.node.secret = Some(Resolved { secret, source: "the test".into() });
    config.node.transport = transport;
    config.node.local_ranks = ranks as usize;
    config.node.arena.capacity_bytes = 256 << 20;
    config
}

/// What the links of a mesh of threads may run over.
pub(crate) const MEDIA: [Medium; 3] = [Medium::InProcess, Medium::SharedMemory, Medium::Tcp];

/// As [`config`], for links over one medium.
pub(crate) fn config_over(rank: u32, ranks: u32, port: u16, medium: Medium, here: &Neighbourhood) -> Config {
    let transport = match medium {
        Medium::Tcp => Transport::Tcp,
        Medium::SharedMemory => Transport::Shm,
        _ => Transport::Auto,
    };
    let mut config = config(rank, ranks, port, transport);
    config.node.neighbourhood = Some(here.clone());
    config
}

/// Runs `act` as every rank of a mesh at once, each on a thread of its own with the group of all, and returns what they
/// returned by rank. All links run over this medium. A rank that panics makes the test fail.
pub(crate) fn together<T: Send + 'static>(
    ranks: u32,
    medium: Medium,
    act: impl Fn(&Mesh, &Communicator) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let body = move |mesh: &Mesh, world: &Communicator| {
        let outcome = act(mesh, world);
        for link in mesh.node().links().into_iter().filter_map(|link| mesh.node().link(link).ok()) {
            assert_eq!(link.medium(), medium, "the link to {}", link.peer());
        }
        outcome
    };
    together_with(ranks, medium, |_, _| (), |_| Table::default(), body)
}

/// As [`together`], with a change to every config and a table for every rank.
pub(crate) fn together_with<T: Send + 'static>(
    ranks: u32,
    medium: Medium,
    change: impl Fn(u32, &mut Config),
    table: impl Fn(u32) -> Table,
    act: impl Fn(&Mesh, &Communicator) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let (port, neighbourhood) = (free_port(), Neighbourhood::default());
    let start = |rank: u32| {
        let mut config = config_over(rank, ranks, port, medium, &neighbourhood);
        change(rank, &mut config);
        let (act, table) = (act.clone(), table(rank));
        let body = move || {
            let mesh = Mesh::join(config).expect("everybody comes");
            let world = Collectives::with_table(&mesh, table).expect("it is the first").group(&mesh.world());
            let world = world.expect("few groups");
            let outcome = act(&mesh, &world);
            // The news of a leave may overtake the end of what others still do.
            let left = if world.broken().is_some() { mesh.leave() } else { mesh.finish() };
            // Whoever was cut off may find nobody who agrees.
            assert!(left.is_ok() || world.broken().is_some(), "{left:?}");
            outcome
        };
        std::thread::Builder::new().name(format!("rank-{rank}")).spawn(body).expect("a thread")
    };
    let threads: Vec<_> = (0..ranks).map(start).collect();
    threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
}

/// Waits for a work, as long as a test may.
pub(crate) fn wait<T: Clone>(work: &Work<T>) -> Result<T> {
    work.wait_timeout(PATIENCE)
}

/// A job whose processes are gone when it is dropped.
pub(crate) fn job() -> Job {
    Job::builder().output(Output::Capture).start().expect("a job")
}

/// Starts a copy of this binary for every rank. In each the test function `actor` plays the part.
pub(crate) fn start_all(job: &Job, ranks: u32, transport: Transport, variables: &[(&str, &str)]) -> Vec<Child> {
    let port = free_port();
    (0..ranks)
        .map(|rank| {
            let command = Command::new(std::env::current_exe().expect("this binary"))
                .args(["--exact", "actor", "--nocapture", "--test-threads=1"])
                .name(format!("rank-{rank}"))
                .env(RANK, rank.to_string())
                .env(RANKS, ranks.to_string())
                .env(ROOT, port.to_string())
                .env(TRANSPORT, format!("{transport:?}"));
            let command = variables.iter().fold(command, |command, (name, value)| command.env(*name, *value));
            job.spawn(command).expect("a process")
        })
        .collect()
}

/// The rank that this process plays, if it is not the test itself.
pub(crate) fn part() -> Option<Config> {
    let variable = |name: &str| std::env::var(name).expect("the test has set it");
    let number = |name: &str| variable(name).parse().expect("a number");
    std::env::var_os(RANK)?;
    let transport = if variable(TRANSPORT) == "Tcp" { Transport::Tcp } else { Transport::Shm };
    let port = variable(ROOT).parse().expect("a port");
    Some(config(number(RANK), number(RANKS), port, transport))
}

/// What an actor says to its test.
pub(crate) fn say(text: &str) {
    use std::io::Write;
    writeln!(std::io::stdout(), "\n[actor] {text}").expect("the test listens");
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
