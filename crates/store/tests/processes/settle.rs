//! Real processes of which a server is killed and then a worker, in stores that would do without that worker: the
//! servers that are left cannot agree on what it had pushed, and whoever waits for it hears that and why.

use crate::common::raw::name_on;
use crate::common::{ended_well, hear, job, note, part, parts, roles, say, start_all, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Member, Mesh, Role};
use sheave_process::Child;
use sheave_store::{Config, Key, Kind, KvStore, OnWorkerLoss, Server, ServerConfig};
use sheave_tensor::Tensor;
use std::time::{Duration, Instant};

/// The bound of the design.
const BOUND: Duration = Duration::from_secs(1);
const SIGKILL: i32 = 9;
const SERVERS: u32 = 3;
const WORKERS: u32 = 3;
const KIND: &str = "SHEAVE_TEST_KIND";
/// They are killed in this order.
const VICTIMS: [&str; 2] = ["server-2", "worker-2"];

/// A tensor that lives on one of the servers that are left.
fn whole(server: u64) -> [(Key, Tensor); 1] {
    let key = Key::from(name_on(server, SERVERS.into(), "w").as_str());
    [(key, Tensor::from_slice(&[1.0f32; 5], [5]).expect("it fits"))]
}

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    let is_worker = |member: &Member| member.introduction.role == Role::Worker;
    match mesh.me().introduction.role {
        Role::Worker => work(&mesh),
        Role::Server => {
            let server = Server::start(&mesh, ServerConfig::default()).expect("it is the first");
            say("ready");
            until("the server dies", || mesh.num_dead_node(|_| true) > 0);
            say("alone");
            check("run", &server.run().expect_err("the store cannot bear it"));
            // So that the others still hear it from here.
            mesh.until_gone_tolerating(is_worker, |_| true, None).expect("the others leave");
        }
        _ => {
            ["ready", "alone"].iter().for_each(|word| say(word));
            mesh.until_gone_tolerating(is_worker, |_| true, None).expect("the others leave");
        }
    }
    // Of the last ones not all can be told.
    let _ = mesh.leave();
}

fn work(mesh: &Mesh) {
    let kind = Kind::parse(&std::env::var(KIND).expect("the test has set it")).expect("the test knows kinds");
    let config = Config { staleness: 1, on_worker_loss: OnWorkerLoss::Shrink, ..kind.into() };
    let store = KvStore::open(mesh, config).expect("all servers serve");
    (0..2).for_each(|server| store.init(&whole(server)).expect("it is new"));
    store.barrier().expect("all are there");
    if store.rank() == WORKERS - 1 {
        ["ready", "alone"].iter().for_each(|word| say(word));
        loop {
            std::thread::park();
        }
    }
    let mut pending: Vec<_> = (0..2).map(|server| (server, pend(&store, server))).collect();
    let met = std::thread::spawn({
        let store = store.clone();
        move || store.barrier()
    });
    say("ready");
    until("the server dies", || mesh.num_dead_node(|_| true) > 0);
    assert!(!pending.iter().any(|(_, work)| work.is_done()) && !met.is_finished(), "they need the worker");
    say("alone");
    let end = |operation: &str, outcome: Result<()>| check(operation, &outcome.expect_err("it cannot go on"));
    pending.drain(..).for_each(|(server, work)| end(&format!("pending on {server}"), wait(&work)));
    end("barrier", met.join().expect("it does not panic"));
    (0..2).for_each(|server| end("push", store.push(&whole(server)).and_then(|work| wait(&work))));
    end("next barrier", store.barrier());
    say("over");
    mesh.leave().expect("the rest agrees");
}

/// Waits for the last worker.
fn pend(store: &KvStore, server: u64) -> sheave_base::Work<()> {
    let ones = whole(server);
    if store.kind() == Kind::DistSync {
        return store.push(&ones).expect("it is sent");
    }
    (0..2).for_each(|_| drop(store.push(&ones).expect("it is sent")));
    store.pull(&ones).expect("it is sent")
}

/// Says who has died, and who cannot be asked about that.
fn check(operation: &str, error: &Error) {
    let text = error.to_string();
    let names = VICTIMS.iter().all(|victim| text.contains(victim));
    assert!(error.kind() == ErrorKind::PeerLost && names, "{operation}: {text}");
}

fn kill(kind: &str, transport: Transport) {
    let job = job();
    let expected = roles(SERVERS, WORKERS);
    let children = start_all(&job, expected, transport, &[(KIND, kind)]);
    let (victims, others): (Vec<_>, Vec<_>) =
        parts(expected).into_iter().zip(children).partition(|(part, _)| VICTIMS.contains(&part.as_str()));
    let [server, worker] = VICTIMS.map(|name| &victims.iter().find(|(part, _)| part == name).expect("a part").1);
    let others: Vec<Child> = others.into_iter().map(|(_, child)| child).collect();
    let all_say = |word: &str| others.iter().chain([worker]).for_each(|child| drop(hear(child, word)));
    all_say("ready");
    hear(server, "ready");
    server.kill(SIGKILL).expect("it lives");
    all_say("alone");
    let begun = Instant::now();
    worker.kill(SIGKILL).expect("it lives");
    others.iter().filter(|child| child.name().starts_with("worker")).for_each(|child| drop(hear(child, "over")));
    let took = begun.elapsed();
    note(&format!("{transport:?}, {kind}: {:.0} ms", took.as_secs_f64() * 1e3));
    assert!(took < BOUND, "{kind} over {transport:?}: {took:?}");
    ended_well(&others);
}

#[test]
fn a_worker_that_dies_after_a_server_is_waited_for_by_nobody() {
    for transport in [Transport::Shm, Transport::Tcp] {
        for kind in ["dist_sync", "dist_ssp"] {
            kill(kind, transport);
        }
    }
}
