//! Real processes of every role, killed or stopped while all others wait for a store: whoever needs the victim hears
//! within a second who it was, whoever does not goes on.

use crate::common::raw::name_on;
use crate::common::{PATIENCE, ended_well, hear, job, note, part, parts, roles, say, start_all, until, wait};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Result, Work};
use sheave_mesh::{Group, Mesh, Role};
use sheave_store::{Config, Key, Kind, KvStore, Server, ServerConfig, Updater};
use sheave_tensor::{Op, Tensor};
use std::time::{Duration, Instant};

/// The bound of the design: who needs a process that was killed learns it within this time.
const BOUND: Duration = Duration::from_secs(1);
/// For a process that is stopped.
const LIVENESS_TIMEOUT: Duration = Duration::from_millis(1500);

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;

const SERVERS: u32 = 2;
const WORKERS: u32 = 3;
const CUT_ELEMENTS: u64 = 100;

const VICTIM: &str = "SHEAVE_TEST_VICTIM";
const BLOCKING: &str = "SHEAVE_TEST_BLOCKING";
const STOPPED: &str = "SHEAVE_TEST_STOPPED";

/// It contributes to synchronous rounds only after the death, unless it dies itself. So what waits for it goes on then.
const LATE: &str = "worker-2";

/// A key that lives on this server.
fn key_on(server: u64, seed: &str) -> Key {
    Key::from(name_on(server, SERVERS.into(), seed))
}

/// What is stored: a name, the key, its elements, and whether server-1 has a part in it.
fn keys() -> [(&'static str, Key, usize, bool); 3] {
    [
        ("on-0", key_on(0, "a key"), 3, false),
        ("on-1", key_on(1, "a key"), 3, true),
        ("cut", Key::from("a big one"), 20_000, true),
    ]
}

fn filled(key: &Key, elements: usize, value: f32) -> [(Key, Tensor); 1] {
    [(key.clone(), Tensor::from_slice(&vec![value; elements], [elements as u64]).expect("it fits"))]
}

struct Scene {
    mesh: Mesh,
    world: Group,
    sync: KvStore,
    loose: KvStore,
    /// The role of the victim.
    role: Role,
}

#[test]
fn actor() {
    let Some(mut config) = part() else { return };
    let victim = std::env::var(VICTIM).expect("the test names it");
    if std::env::var(STOPPED).is_ok() {
        config.node.liveness.timeout = LIVENESS_TIMEOUT;
        config.node.liveness.beat = LIVENESS_TIMEOUT / 5;
    }
    let me = std::env::var("SHEAVE_TEST_PART").expect("this is a part");
    let mesh = Mesh::join(config).expect("everybody comes");
    if mesh.me().introduction.role == Role::Worker {
        worker(mesh, &me, &victim);
    } else {
        let server = (mesh.me().introduction.role == Role::Server).then(|| serve(&mesh, me == victim));
        say(&format!("ready {}", std::process::id()));
        let is_worker = |role: Role| role == Role::Worker;
        let first = server.as_ref().map_or_else(|| mesh.until_gone(|m| is_worker(m.introduction.role)), Server::run);
        // A worker may die: the others are served until they leave.
        if first.is_err() {
            let dead = mesh.deaths();
            let is_dead = |node| dead.iter().any(|death| death.node == node && !death.left);
            mesh.until_gone(|m| is_worker(m.introduction.role) && !is_dead(m.node)).expect("one death is enough");
        }
        // Of the last ones, whose coordinator may be gone already, not all can be told.
        let _ = mesh.leave();
    }
}

/// A server whose updater of this name never returns, if it is the victim: what is pushed to it is pending.
fn serve(mesh: &Mesh, stays_away: bool) -> Server {
    let add = move |_: &Key, sum: &Tensor, value: &mut Tensor| {
        if stays_away {
            loop {
                std::thread::park();
            }
        }
        value.reduce_from(Op::Sum, sum)
    };
    Server::start(mesh, ServerConfig::default().function("add", add)).expect("it is the first")
}

fn worker(mesh: Mesh, me: &str, victim: &str) {
    let open = |kind: Kind| KvStore::open(&mesh, Config { cut_elements: CUT_ELEMENTS, ..kind.into() });
    let (sync, loose) = (open(Kind::DistSync).expect("servers"), open(Kind::DistAsync).expect("servers"));
    for (_, key, elements, _) in keys() {
        sync.init(&filled(&key, elements, 0.0)).expect("it is new");
        loose.init(&filled(&key, elements, 0.0)).expect("it is new");
    }
    sync.set_updater(Updater::Sum).expect("servers add");
    loose.set_updater(Updater::Named("add".into())).expect("it is registered");
    sync.barrier().expect("all are there");
    let role = Role::from_name(victim.split('-').next().expect("a role")).expect("a role");
    let scene = Scene { world: mesh.world(), mesh, sync, loose, role };
    if me == victim {
        say(&format!("ready {}", std::process::id()));
        loop {
            std::thread::park();
        }
    }
    let is_late = me == LATE && role != Role::Worker;
    let mut pending = scene.loose_operations();
    let blocking = std::env::var(BLOCKING).expect("the test says");
    let mut waiter = None;
    if !is_late {
        pending.extend(scene.sync_operations());
        let store = scene.sync.clone();
        let what = blocking.clone();
        waiter = Some(std::thread::spawn(move || block(&store, &what, "first")));
    }
    let others: Vec<_> = pending.iter().filter(|(_, needs, work)| *needs && work.is_done()).collect();
    assert!(others.is_empty(), "what needs the victim waits");
    say(&format!("ready {}", std::process::id()));
    until("somebody dies", || scene.mesh.num_dead_node(|_| true) == 1);
    if is_late {
        // Those who wait for this worker alone go on.
        pending.extend(scene.sync_operations());
        waiter = Some({
            let (store, what) = (scene.sync.clone(), blocking.clone());
            std::thread::spawn(move || block(&store, &what, "first"))
        });
    }
    for (label, needs, work) in &pending {
        tell(label, *needs, wait(work));
    }
    let outcome = waiter.expect("it was started").join().expect("no panic");
    tell(&format!("first-{blocking}"), scene.breaks(&blocking), outcome);
    scene.next_operations();
    scene.check_values();
    scene.mesh.leave().expect("the rest agrees");
    say("left");
}

/// Says who is to blame for what has failed; what needs nobody who died has worked.
fn tell(label: &str, needs_victim: bool, outcome: Result<()>) {
    match outcome {
        Err(error) => {
            assert!(needs_victim, "{label} needs nobody who died: {error}");
            say(&format!("{label}: {:?} {error}", error.kind()));
        }
        Ok(()) => assert!(!needs_victim, "{label} went well without its peer"),
    }
}

/// Calls that block until every worker has come.
fn block(store: &KvStore, what: &str, seed: &str) -> Result<()> {
    match what {
        "init" => store.init(&filled(&key_on(1, seed), 5, 1.0)),
        _ => store.barrier(),
    }
}

type Operation = (String, bool, Work<()>);

impl Scene {
    fn breaks(&self, blocking: &str) -> bool {
        self.role == Role::Worker || self.role == Role::Server && blocking == "init"
    }

    /// A push, a pull and both of every key, and whether they need the victim. One that fails at once is one that ends.
    fn operations(&self, store: &KvStore, name: &str, needs_workers: bool) -> Vec<Operation> {
        let mut operations = Vec::new();
        for (place, key, elements, on_victim) in keys() {
            let needs = self.role == Role::Server && on_victim || self.role == Role::Worker && needs_workers;
            let (ones, target) = (filled(&key, elements, 1.0), || filled(&key, elements, -1.0));
            let outcomes = [
                ("push", store.push(&ones)),
                ("pull", store.pull(&target())),
                ("push_pull", store.push_pull(&ones, &target())),
            ];
            for (operation, outcome) in outcomes {
                let work = outcome.unwrap_or_else(|error| Work::ready("failed", Err(error)));
                operations.push((format!("{name}-{operation}-{place}"), needs, work));
            }
        }
        operations
    }

    fn loose_operations(&self) -> Vec<Operation> {
        self.operations(&self.loose, "async", false)
    }

    fn sync_operations(&self) -> Vec<Operation> {
        self.operations(&self.sync, "sync", true)
    }

    /// Once more, now that the death is known: nothing may wait for long.
    fn next_operations(&self) {
        let mut operations = self.operations(&self.loose, "next-async", false);
        // With a worker gone pulls fail too: a push that they must see has failed.
        operations.extend(self.operations(&self.sync, "next-sync", true));
        for (label, needs, work) in &operations {
            tell(label, *needs, wait(work));
        }
        for blocking in ["init", "barrier"] {
            tell(&format!("next-{blocking}"), self.breaks(blocking), block(&self.sync, blocking, "next"));
        }
        if self.role != Role::Worker {
            // The end of the scheduler or a server does not break the group of the workers.
            self.sync.barrier().expect("all workers live");
        }
        let world = self.world.begin_barrier(None);
        tell("world-barrier", true, world.wait_timeout(PATIENCE));
    }

    /// What does not need the victim has done what it says, exactly once.
    fn check_values(&self) {
        let (_, key, elements, _) = keys()[0].clone();
        let survivors = if self.role == Role::Worker { WORKERS - 1 } else { WORKERS };
        let value = |store: &KvStore| {
            let target = filled(&key, elements, -1.0);
            wait(&store.pull(&target).expect("it is sent")).expect("its server lives");
            target[0].1.to_vec::<f32>().expect("floats")
        };
        let expected = (4 * survivors) as f32;
        if self.role == Role::Worker {
            until("all have pushed", || value(&self.loose) == vec![expected; elements]);
        } else {
            assert_eq!(value(&self.loose), vec![expected; elements]);
            assert_eq!(value(&self.sync), vec![expected; elements]);
        }
    }
}

/// What a survivor says of all that needs the victim.
fn labels(role: Role, blocking: &str) -> Vec<String> {
    let mut labels = vec!["world-barrier".to_owned()];
    for when in ["", "next-"] {
        for operation in ["push", "pull", "push_pull"] {
            for (place, _, _, on_victim) in keys() {
                if role == Role::Worker {
                    labels.push(format!("{when}sync-{operation}-{place}"));
                }
                if role == Role::Server && on_victim {
                    labels.push(format!("{when}sync-{operation}-{place}"));
                    labels.push(format!("{when}async-{operation}-{place}"));
                }
            }
        }
    }
    if role == Role::Worker || role == Role::Server && blocking == "init" {
        labels.push(format!("first-{blocking}"));
    }
    match role {
        Role::Worker => labels.extend(["next-init".to_owned(), "next-barrier".to_owned()]),
        Role::Server => labels.push("next-init".to_owned()),
        _ => {}
    }
    labels
}

fn end(victim: &str, blocking: &str, signal: i32, transport: Transport) {
    let job = job();
    let expected = roles(SERVERS, WORKERS);
    let mut variables = vec![(VICTIM, victim), (BLOCKING, blocking)];
    if signal == SIGSTOP {
        variables.push((STOPPED, "yes"));
    }
    let mut children = start_all(&job, expected, transport, &variables);
    let pids: Vec<String> = children.iter().map(|child| hear(child, "ready")).collect();
    let at = parts(expected).iter().position(|part| part == victim).expect("it is one of them");
    let begun = Instant::now();
    let killed = children.remove(at);
    killed.kill(signal).expect("it lives");
    let (role, _) = victim.split_once('-').expect("a role and a rank");
    let name = if role == "scheduler" { role } else { victim };
    let needles = [name.to_owned(), format!("({role}, "), format!("rank {at}"), format!("pid {}", pids[at])];
    let labels = labels(Role::from_name(role).expect("a role"), blocking);
    for child in children.iter().filter(|child| child.name().starts_with("worker")) {
        for label in &labels {
            let said = hear(child, &format!("{label}: "));
            assert!(said.starts_with(&format!("{:?}", ErrorKind::PeerLost)), "{label} of {}: {said}", child.name());
            for needle in &needles {
                assert!(said.contains(needle), "{label} of {} does not say {needle}: {said}", child.name());
            }
        }
        hear(child, "left");
    }
    let took = begun.elapsed();
    let bound = if signal == SIGSTOP { LIVENESS_TIMEOUT + BOUND } else { BOUND };
    note(&format!(
        "{transport:?}: {victim} ended by signal {signal} amid {blocking}: all was over {:.0} ms later",
        took.as_secs_f64() * 1e3
    ));
    assert!(took < bound, "{victim} over {transport:?}: {took:?}");
    ended_well(&children);
}

fn kill_each(transport: Transport) {
    for victim in ["scheduler-0", "server-1", "worker-0", "worker-1"] {
        for blocking in ["init", "barrier"] {
            end(victim, blocking, SIGKILL, transport);
        }
    }
}

#[test]
fn a_kill_in_every_role_is_known_to_whom_it_concerns_over_shm() {
    kill_each(Transport::Shm);
}

#[test]
fn a_kill_in_every_role_is_known_to_whom_it_concerns_over_tcp() {
    kill_each(Transport::Tcp);
}

#[test]
fn a_stopped_worker_counts_as_dead_after_the_timeout() {
    for transport in [Transport::Shm, Transport::Tcp] {
        end("worker-1", "barrier", SIGSTOP, transport);
    }
}
