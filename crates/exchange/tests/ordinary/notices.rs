//! What waits of an exchange say: which servers have not answered, which workers have not pushed.

use crate::common::{floats, roles, together_with, until, zeros};
use sheave_base::config::Transport;
use sheave_exchange::{Config, Pull, Push, Server, Worker};
use sheave_mesh::{Mesh, Role};
use std::sync::Mutex;
use std::time::Duration;

const SPANS: &[Duration] = &[Duration::from_millis(300)];

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note(text: &str) {
    SAID.lock().expect("no panic").push(text.to_owned());
}

fn has_said(text: &str) -> bool {
    SAID.lock().expect("no panic").iter().any(|said| said.starts_with(text))
}

fn work(mesh: &Mesh) {
    let worker = Worker::open(mesh, Config::default()).expect("everybody comes");
    if worker.rank() == 1 {
        for server in ["server-0", "server-1"] {
            let waits = "get_batch has been waiting for worker-1 to push request 0, for ";
            until("the servers' words", || has_said(&format!("{server}: {waits}")));
        }
    }
    let (x, places) = (floats(&[1.0]), [zeros(1), zeros(1)]);
    let pulls = [Pull::into(0, &places[0]), Pull::into(1, &places[1])];
    let request = worker.push_pull([Push::new(0, &x)], pulls).expect("it is valid");
    worker.wait(request, None, None).expect("both answer");
    worker.close();
}

fn serve(mesh: &Mesh) {
    let server = Server::open(mesh, Config::default()).expect("everybody comes");
    let batch = server.get_batch(None, None).expect("both push");
    if server.rank() == 1 {
        for worker in ["worker-0", "worker-1"] {
            let waits = "push_pull, request 0, has been waiting for server-1 to answer, for ";
            until("the workers' words", || has_said(&format!("{worker}: {waits}")));
        }
    }
    for request in &batch {
        server.respond(request.handler, &request.tensors).expect("as many pulls as pushes");
    }
    drop(batch);
    assert!(server.next_batch(None, None).expect("the workers leave in order").is_none());
    server.close();
}

#[test]
fn f89_waits_of_an_exchange_say_for_whom() {
    for transport in [Transport::Shm, Transport::Tcp] {
        SAID.lock().expect("no panic").clear();
        let change = |config: &mut sheave_mesh::Config| (config.node.notice, config.node.notices) = (note, SPANS);
        together_with(roles(2, 2), transport, change, |mesh| {
            match mesh.me().introduction.role {
                Role::Worker => work(&mesh),
                Role::Server => serve(&mesh),
                _ => mesh.until_gone(|_| true).expect("nobody dies"),
            }
            mesh.leave().expect("the others agree");
        });
    }
}
