//! A worker is killed and the servers leave because of that: the survivors go on naming the worker.

use crate::common::{ended_well, hear, job, part, roles, say, start_all, until, wait};
use sheave_base::ErrorKind;
use sheave_base::config::Transport;
use sheave_mesh::{Mesh, Role};
use sheave_store::{Key, Kind, KvStore, Server, ServerConfig};
use sheave_tensor::Tensor;

const SIGKILL: i32 = 9;
const SERVERS: usize = 2;
const WORKERS: u32 = 3;

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    match mesh.me().introduction.role {
        Role::Worker => work(&mesh),
        Role::Server => {
            let server = Server::start(&mesh, ServerConfig::default()).expect("it is the first");
            say("ready");
            let error = server.run().expect_err("a worker dies");
            assert!(error.to_string().contains("worker-2"), "{error}");
        }
        _ => {
            say("ready");
            drop(mesh.until_gone_tolerating(|_| true, |_| true, None));
        }
    }
    // Of the last ones not all can agree.
    let _ = mesh.leave();
}

fn pairs(value: f32) -> [(Key, Tensor); 1] {
    [(Key::from("w"), Tensor::from_slice(&[value; 5000], [5000]).expect("it fits"))]
}

fn work(mesh: &Mesh) {
    let store = KvStore::open(mesh, Kind::DistSync).expect("all servers serve");
    store.init(&pairs(0.0)).expect("it is new");
    store.barrier().expect("all are there");
    if store.rank() == WORKERS - 1 {
        say("ready");
        loop {
            std::thread::park();
        }
    }
    let pending = store.push(&pairs(1.0)).expect("it is sent");
    say("ready");
    let mut outcomes = vec![("pending push", wait(&pending))];
    until("the servers have left", || mesh.deaths().iter().filter(|death| death.left).count() >= SERVERS);
    outcomes.extend([
        ("push", store.push(&pairs(1.0)).map(drop)),
        ("pull", store.pull(&pairs(0.0)).map(drop)),
        ("push_pull", store.push_pull(&pairs(1.0), &pairs(0.0)).map(drop)),
        ("init", store.init(&pairs(0.0))),
        ("delete", store.delete(&["w".into()])),
        ("done", store.done().map(drop)),
        ("barrier", store.barrier()),
    ]);
    for (operation, outcome) in outcomes {
        let error = outcome.expect_err("a worker has died");
        let text = error.to_string();
        assert!(error.kind() == ErrorKind::PeerLost && text.contains("worker-2"), "{operation}: {text}");
    }
    say("over");
}

#[test]
fn survivors_name_the_dead_worker_when_the_servers_have_left() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let job = job();
        let mut children = start_all(&job, roles(SERVERS as u32, WORKERS), transport, &[]);
        children.iter().for_each(|child| drop(hear(child, "ready")));
        let victim = children.pop().expect("the last worker");
        victim.kill(SIGKILL).expect("it lives");
        children.iter().filter(|child| child.name().starts_with("worker")).for_each(|child| drop(hear(child, "over")));
        ended_well(&children);
    }
}
