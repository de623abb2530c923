//! Real processes are killed while the slices of a tensor wait for each other's sums: whoever waits hears within a
//! second who it was.

use crate::common::{ended_well, hear, job, note, part, roles, say, start_all, until, wait};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Result};
use sheave_mesh::{Mesh, Role};
use sheave_optim::{Lamb, Rule};
use sheave_process::Child;
use sheave_store::{Config, Key, Kind, KvStore, Server, ServerConfig};
use sheave_tensor::Tensor;
use std::path::Path;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(1);

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

const SERVERS: u32 = 3;
const WORKERS: u32 = 2;
/// Cut over all servers, each of which is the home of some of these.
const CUT: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];

const FLAG: &str = "SHEAVE_TEST_FLAG";

fn full(key: &str, elements: usize) -> (Key, Tensor) {
    (Key::from(key), Tensor::from_slice(&vec![1.0f32; elements], [elements as u64]).expect("it fits"))
}

fn cut() -> Vec<(Key, Tensor)> {
    CUT.iter().map(|key| full(key, 30_000)).collect()
}

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    match mesh.me().introduction.role {
        Role::Worker => worker(&mesh),
        Role::Server => {
            let server = Server::start(&mesh, ServerConfig::default()).expect("it is the first");
            say("ready");
            if server.run().is_err() {
                let dead = mesh.deaths();
                let is_dead = |node| dead.iter().any(|death| death.node == node);
                let lives = |m: &sheave_mesh::Member| m.introduction.role == Role::Worker && !is_dead(m.node);
                mesh.until_gone(lives).expect("one death is enough");
            }
        }
        _ => drop(mesh.until_gone(|member| member.introduction.role == Role::Worker)),
    }
    let _ = mesh.leave();
}

fn worker(mesh: &Mesh) {
    let config = Config { cut_elements: 10_000, slice_elements: 4096, ..Kind::DistSync.into() };
    let store = KvStore::open(mesh, config).expect("all servers serve");
    store.init(&cut()).expect("they are new");
    // Small ones, of which each server has some.
    let small: Vec<_> = (0..40).map(|key| full(&format!("small {key}"), 3)).collect();
    store.init(&small).expect("they are new");
    store.set_optimizer(Rule::Lamb(Lamb::default())).expect("it has a meaning");
    store.barrier().expect("all are there");
    wait(&store.push_pull(&cut(), &cut()).expect("it is sent")).expect("all live");
    say("ready");
    let flag = std::env::var(FLAG).expect("the test names it");
    until("the test has stopped a server", || Path::new(&flag).exists());
    let works = [store.push(&cut()), store.push_pull(&cut(), &cut()), store.pull(&cut())];
    // Whatever a living server has answered here was sent after what the others wait for.
    let small: Vec<_> = small.iter().map(|pair| store.push(std::slice::from_ref(pair)).expect("it is sent")).collect();
    until("the small ones of two servers are merged", || small.iter().filter(|work| work.is_done()).count() >= 20);
    let works = works.map(|work| work.expect("it is sent"));
    assert!(works.iter().all(|work| !work.is_done()), "all wait for the third");
    say("halfway");
    for (at, work) in works.iter().enumerate() {
        tell(at, wait(work));
    }
    tell(9, store.push(&cut()).and_then(|work| wait(&work)));
    say("over");
}

fn tell(at: usize, outcome: Result<()>) {
    let error = outcome.expect_err("it needs the victim");
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{at}: {error}");
    say(&format!("{at}: {error}"));
}

/// Stops a process, and waits until all its threads have: beside others that want the cores that takes its time.
fn stop(child: &Child) {
    child.kill(SIGSTOP).expect("it lives");
    let tasks = format!("/proc/{}/task", child.pid());
    let has_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.expect("a task").path().join("stat")).expect("it lives");
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    until("all threads have stopped", || std::fs::read_dir(&tasks).expect("it lives").all(has_stopped));
}

/// A server is stopped, so that the other slices wait for its own; then `victim` is killed.
fn end(victim: &str, transport: Transport) {
    let folder = std::env::temp_dir().join(format!("sheave-norms-{}-{victim}-{transport:?}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let flag = folder.join("flag");
    let job = job();
    let variables = [(FLAG, flag.to_str().expect("a text"))];
    let mut children = start_all(&job, roles(SERVERS, WORKERS), transport, &variables);
    children.iter().filter(|child| !child.name().starts_with("scheduler")).for_each(|child| drop(hear(child, "ready")));
    let stopped = children.iter().position(|child| child.name() == "server-2").expect("it is one of them");
    stop(&children[stopped]);
    std::fs::write(&flag, "").expect("a file");
    let workers = |child: &&Child| child.name().starts_with("worker");
    children.iter().filter(workers).for_each(|child| drop(hear(child, "halfway")));
    let at = children.iter().position(|child| child.name() == victim).expect("it is one of them");
    let begun = Instant::now();
    children[at].kill(SIGKILL).expect("it lives");
    for child in children.iter().filter(workers).filter(|child| child.name() != victim) {
        for work in ["0: ", "1: ", "2: ", "9: "] {
            let said = hear(child, work);
            assert!(said.contains(victim), "{} does not name {victim}: {said}", child.name());
        }
        hear(child, "over");
    }
    let took = begun.elapsed();
    note(&format!(
        "{transport:?}: {victim} killed between the halves of a step: over {:.0} ms later",
        took.as_secs_f64() * 1e3
    ));
    assert!(took < BOUND, "{took:?}");
    if at != stopped {
        children[stopped].kill(SIGCONT).expect("it lives");
    }
    children.remove(at);
    ended_well(&children);
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

#[test]
fn a_server_is_killed_between_the_halves_of_a_step() {
    [Transport::Shm, Transport::Tcp].into_iter().for_each(|transport| end("server-2", transport));
}

#[test]
fn a_worker_is_killed_between_the_halves_of_a_step() {
    [Transport::Shm, Transport::Tcp].into_iter().for_each(|transport| end("worker-1", transport));
}
