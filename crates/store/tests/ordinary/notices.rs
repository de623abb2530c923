//! What workers say that wait for a store: keys, rounds, and the workers that are missing.

use crate::common::{PATIENCE, roles, together_with, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Work};
use sheave_mesh::{Config, Mesh, Role};
use sheave_store::{Key, Kind, KvStore, Options, Server, ServerConfig, Updater};
use sheave_tensor::Tensor;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const SPANS: &[Duration] = &[Duration::from_millis(300), Duration::from_secs(2)];

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note(text: &str) {
    SAID.lock().expect("no panic").push(text.to_owned());
}

fn has_said(begin: &str, rest: &str) -> bool {
    let said = SAID.lock().expect("no panic");
    said.iter().any(|text| text.starts_with(begin) && text.contains(rest))
}

fn times_said(begin: &str) -> usize {
    SAID.lock().expect("no panic").iter().filter(|text| text.starts_with(begin)).count()
}

fn pair(key: &str) -> Vec<(Key, Tensor)> {
    vec![(Key::from(key), Tensor::from_slice(&[1.0f32; 4], [4]).expect("it fits"))]
}

fn job(servers: u32, workers: u32, transport: Transport, act: impl Fn(&Mesh) + Clone + Send + 'static) {
    SAID.lock().expect("no panic").clear();
    let change = |config: &mut Config| (config.node.notice, config.node.notices) = (note, SPANS);
    together_with(roles(servers, workers), transport, change, move |mesh| {
        match mesh.me().introduction.role {
            Role::Server => {
                let server = Server::start(&mesh, ServerConfig::default()).expect("it is the first");
                server.run().expect("no worker dies");
            }
            Role::Worker => act(&mesh),
            _ => mesh.until_gone(|_| true).expect("nobody dies"),
        }
        mesh.leave().expect("the others agree");
    });
}

/// Waits until something was said, and no longer.
fn wait_for_words(work: &Work<()>, are_said: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    let mut interrupt = || match are_said() {
        true => Err(Error::new(ErrorKind::Cancelled, "it was said")),
        false if Instant::now() > end => Err(Error::new(ErrorKind::DeadlineExceeded, "it was never said")),
        false => Ok(()),
    };
    // The other worker may have seen it first, and pushed what was missing.
    if let Err(ended) = work.wait_until(None, Some(&mut interrupt)) {
        assert_eq!(ended.kind(), ErrorKind::Cancelled, "{:?}", SAID.lock());
    }
    assert!(are_said(), "{:?}", SAID.lock());
}

/// One after the other, for they share what was said.
#[test]
fn f64_waits_for_a_store_name_key_round_and_who_is_missing() {
    for transport in [Transport::Shm, Transport::Tcp] {
        other_order(transport, Options::default());
        other_order(transport, Options { priority: 1 });
        barrier(transport);
        stale(transport);
    }
}

/// Two workers that push keys in another order wait for ever, and each says for whom.
fn other_order(transport: Transport, options: Options) {
    job(1, 2, transport, move |mesh| {
        let store = KvStore::open(mesh, Kind::DistSync).expect("the server serves");
        for key in ["first", "second"] {
            store.init(&pair(key)).expect("it is new");
        }
        store.set_updater(Updater::Sum).expect("the server adds");
        store.barrier().expect("both are there");
        // A round that both take part in.
        wait(&store.push(&pair("first")).expect("it is sent")).expect("both push");
        let order = if store.rank() == 0 { ["first", "second"] } else { ["second", "first"] };
        let places = pair(order[0]);
        let work = store.push_pull_with(&pair(order[0]), &places, options).expect("it is sent");
        let words = |who: &str, key: &str, round: u64, other: &str| {
            let whom = format!("server-0 (key \"{key}\", round {round}: {other} has not pushed it)");
            format!("{who}: push_pull has been waiting for {whom}, for ")
        };
        let words = [words("worker-0", "first", 2, "worker-1"), words("worker-1", "second", 1, "worker-0")];
        wait_for_words(&work, || words.iter().all(|words| times_said(words) >= 2));
        // Both have understood.
        let late = store.push(&pair(order[1])).expect("it is sent");
        wait(&work).expect("both have pushed it");
        wait(&late).expect("both have pushed it");
        store.barrier().expect("both are there");
    });
}

fn barrier(transport: Transport) {
    job(1, 3, transport, |mesh| {
        let store = KvStore::open(mesh, Kind::DistSync).expect("the server serves");
        if store.rank() == 1 {
            let waits = ", store.barrier, has been waiting for server-0 (barrier 1: worker-1 has not come), for ";
            until("the word of worker 0", || has_said("worker-0: call ", waits));
            until("the word of worker 2", || has_said("worker-2: call ", waits));
        }
        store.barrier().expect("all come");
        let done = store.done().expect("it is the first");
        if store.rank() == 0 {
            wait(&done).expect("all are done");
        }
        store.barrier().expect("all come");
    });
}

fn stale(transport: Transport) {
    job(1, 2, transport, |mesh| {
        let config = sheave_store::Config { staleness: 0, ..sheave_store::Config::from(Kind::DistSsp) };
        let store = KvStore::open(mesh, config).expect("the server serves");
        store.init(&pair("key")).expect("it is new");
        store.barrier().expect("both are there");
        if store.rank() == 0 {
            wait(&store.push(&pair("key")).expect("it is sent")).expect("it is taken");
            let places = pair("key");
            let pull = store.pull(&places).expect("it is sent");
            let waits = "server-0 (key \"key\", push 1 of each: worker-1 has not come so far), for ";
            wait_for_words(&pull, || has_said("worker-0: pull", waits));
            store.barrier().expect("both are there");
            wait(&pull).expect("the other has pushed");
        } else {
            let waits = "(key \"key\", push 1 of each: worker-1 has not come so far)";
            until("the word of worker 0", || has_said("worker-0: pull", waits));
            wait(&store.push(&pair("key")).expect("it is sent")).expect("it is taken");
            store.barrier().expect("both are there");
        }
    });
}
