//! Real processes of which a server is killed: every worker's pending and next operations name it at once, whatever
//! they are. What does not need it goes on: a barrier is counted by the first server alone.

use crate::common::{PATIENCE, ended_well, hear, job, note, part, parts, roles, say, start_all, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Member, Mesh, Role};
use sheave_store::{Config, Key, Kind, KvStore, OnWorkerLoss, Server, ServerConfig};
use sheave_tensor::Tensor;
use std::time::{Duration, Instant};

/// The bound of the design.
const BOUND: Duration = Duration::from_secs(1);
const SIGKILL: i32 = 9;
const SERVERS: u32 = 2;
const WORKERS: u32 = 3;
const CUT_ELEMENTS: u64 = 100;

const VICTIM: &str = "SHEAVE_TEST_VICTIM";
const KIND: &str = "SHEAVE_TEST_KIND";
const LOSS: &str = "SHEAVE_TEST_LOSS";

/// It comes to nothing before the death, so that what the others do is pending.
const LATE: u32 = 2;
/// What every worker does, each in a store of its own.
const OPERATIONS: [&str; 10] =
    ["push", "pull", "push_pull", "barrier", "done", "wait", "delete", "init", "command", "close"];

fn variable(name: &str) -> String {
    std::env::var(name).expect("the test has set it")
}

/// A tensor of which every server has a part.
fn cut(name: &str, value: f32) -> [(Key, Tensor); 1] {
    [(Key::from(name), Tensor::from_slice(&vec![value; 5000], [5000]).expect("it fits"))]
}

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    if mesh.me().introduction.role == Role::Worker {
        return work(&mesh);
    }
    let server = (mesh.me().introduction.role == Role::Server).then(|| {
        // A controller that never ends, as long as its server lives.
        let stays = variable("SHEAVE_TEST_PART") == variable(VICTIM);
        let controller = move |_: i32, _: &[u8]| loop {
            if !stays {
                return Ok(Vec::new());
            }
            std::thread::park();
        };
        Server::start(&mesh, ServerConfig::default().controller(controller)).expect("it is the first")
    });
    say("ready");
    let is_worker = |member: &Member| member.introduction.role == Role::Worker;
    match server {
        Some(server) => server.run().expect("no worker dies"),
        None => mesh.until_gone(is_worker).expect("no worker dies"),
    }
    let _ = mesh.leave();
}

fn work(mesh: &Mesh) {
    let kind = Kind::parse(&variable(KIND)).expect("the test knows kinds");
    let on_worker_loss = if variable(LOSS) == "shrink" { OnWorkerLoss::Shrink } else { OnWorkerLoss::Fail };
    let open = |_: &&str| {
        let config = Config { cut_elements: CUT_ELEMENTS, staleness: 1, on_worker_loss, ..kind.into() };
        let store = KvStore::open(mesh, config).expect("all servers serve");
        store.init(&cut("w", 0.0)).expect("it is new");
        store
    };
    let stores: Vec<KvStore> = OPERATIONS.iter().map(open).collect();
    stores[0].barrier().expect("all are there");
    let threads: Vec<_> = OPERATIONS
        .into_iter()
        .zip(stores.clone())
        .filter(|(_, store)| store.rank() != LATE)
        .map(|(operation, store)| std::thread::spawn(move || (operation, act(&store, operation, "first"))))
        .collect();
    // A moment in which none of them may end: what they wait for is not there.
    let calm = Instant::now() + Duration::from_millis(50);
    until("a moment has passed", || {
        assert!(!threads.iter().any(std::thread::JoinHandle::is_finished), "something has ended, and nobody has come");
        Instant::now() >= calm
    });
    say("ready");
    until("somebody dies", || mesh.num_dead_node(|_| true) == 1);
    let begin = |when: &'static str| {
        move |(operation, store): (&'static str, KvStore)| {
            std::thread::spawn(move || (operation, act(&store, operation, when)))
        }
    };
    let end = |thread: std::thread::JoinHandle<_>| thread.join().expect("it does not panic");
    let late = OPERATIONS.into_iter().zip(stores.clone()).filter(|(_, store)| store.rank() == LATE);
    let late: Vec<_> = late.map(begin("first")).collect();
    check("pending", threads.into_iter().chain(late).map(end).collect());
    let next: Vec<_> = OPERATIONS.into_iter().zip(stores).map(begin("next")).collect();
    check("next", next.into_iter().map(end).collect());
    say("over");
    mesh.leave().expect("the rest agrees");
}

/// Does it and waits for its end.
fn act(store: &KvStore, operation: &str, when: &str) -> Result<()> {
    let (ones, places) = (cut("w", 1.0), cut("w", 0.0));
    match operation {
        "push" if store.kind() == Kind::DistSync => wait(&store.push(&ones)?),
        // Where pushes do not wait for those of others.
        "push" => ahead(store).and_then(|()| wait(&store.push_pull(&ones, &places)?)),
        "pull" => ahead(store).and_then(|()| wait(&store.pull(&places)?)),
        "push_pull" => ahead(store).and_then(|()| wait(&store.push_pull(&ones, &places)?)),
        "barrier" => store.barrier(),
        "done" => wait(&store.done()?),
        "wait" => {
            ahead(store)?;
            let _pulled = store.pull(&places)?;
            store.wait(&["w".into()])
        }
        "delete" => store.delete(&["w".into()]),
        "init" => store.init(&cut(when, 0.0)),
        "command" => store.send_command_to_servers(7, "stay").map(drop),
        _ => store.close(),
    }
}

/// So that a pull waits for the others.
fn ahead(store: &KvStore) -> Result<()> {
    (0..2).try_for_each(|_| store.push(&cut("w", 1.0)).map(drop))
}

fn check(when: &str, ended: Vec<(&str, Result<()>)>) {
    let victim = variable(VICTIM);
    for (operation, outcome) in ended {
        // The first server alone counts who has come; a store is closed once.
        let is_fine = operation == "barrier" && victim != "server-0" || operation == "close" && when == "next";
        match outcome {
            Ok(()) => assert!(is_fine, "{when} {operation} went well without {victim}"),
            Err(error) => check_names(when, operation, &victim, &error),
        }
    }
}

fn check_names(when: &str, operation: &str, victim: &str, error: &Error) {
    let text = error.to_string();
    assert!(error.kind() == ErrorKind::PeerLost && text.contains(victim), "{when} {operation}: {text}");
}

fn kill(victim: &str, kind: &str, loss: &str, transport: Transport) {
    let job = job();
    let expected = roles(SERVERS, WORKERS);
    let variables = [(VICTIM, victim), (KIND, kind), (LOSS, loss)];
    let mut children = start_all(&job, expected, transport, &variables);
    children.iter().for_each(|child| drop(hear(child, "ready")));
    let at = parts(expected).iter().position(|part| part == victim).expect("it is one of them");
    let begun = Instant::now();
    children.remove(at).kill(SIGKILL).expect("it lives");
    for child in children.iter().filter(|child| child.name().starts_with("worker")) {
        hear(child, "over");
    }
    let took = begun.elapsed();
    note(&format!("{transport:?}, {kind}, {loss}: {victim} killed: {:.0} ms", took.as_secs_f64() * 1e3));
    assert!(took < BOUND.min(PATIENCE), "{victim} of {kind} over {transport:?}: {took:?}");
    ended_well(&children);
}

#[test]
fn every_operation_of_every_worker_names_a_killed_server_over_shm() {
    for kind in ["dist_sync", "dist_ssp"] {
        for loss in ["fail", "shrink"] {
            for victim in ["server-0", "server-1"] {
                kill(victim, kind, loss, Transport::Shm);
            }
        }
    }
}

#[test]
fn every_operation_of_every_worker_names_a_killed_server_over_tcp() {
    for victim in ["server-0", "server-1"] {
        kill(victim, "dist_sync", "fail", Transport::Tcp);
        kill(victim, "dist_ssp", "shrink", Transport::Tcp);
    }
}
