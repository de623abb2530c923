//! Pushes of which a part cannot be sent: they end, and nobody gets a sum with the other part.

use crate::common::{roles, together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Work};
use sheave_mesh::{Answer, Lane, Mesh, Request, Role, Service};
use sheave_store::{Config, Key, Kind, KvStore, Options, Server, ServerConfig, Updater};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::sync::Mutex;
use std::time::Duration;

/// Far more than what needs nobody takes.
const SOON: Duration = Duration::from_secs(20);

fn pair(elements: usize, value: f32) -> [(Key, Tensor); 1] {
    [("w".into(), Tensor::from_slice(&vec![value; elements], [elements as u64]).expect("it fits"))]
}

/// Answers nobody.
#[derive(Default)]
struct Silent(Mutex<Vec<Request>>);

impl Service for Silent {
    fn handle(&self, request: Request) {
        self.0.lock().expect("nobody panics").push(request);
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }
}

/// Makes so many calls that this node may have only one more. They end when they are cancelled.
fn wait_for_answers(mesh: &Mesh) -> Vec<Work<Answer>> {
    let server = mesh.of_role(Role::Server).next().expect("there is one").node;
    let mut calls = Vec::new();
    until("there are as many calls as may be", || {
        loop {
            match mesh.call(server, "silent", "wait", Value::None) {
                Ok(call) => calls.push(call),
                // Others wait for the server to begin with them.
                Err(error) => return error.to_string().contains("wait for their answers"),
            }
        }
    });
    calls.pop().expect("there are many").cancel();
    calls
}

/// Runs `act` as every worker of a job whose servers leave the calls of `silent` unanswered.
fn job(servers: u32, workers: u32, act: impl Fn(&Mesh) + Clone + Send + 'static) {
    together(roles(servers, workers), Transport::Shm, move |mesh| {
        match mesh.me().introduction.role {
            Role::Server => {
                mesh.serve("silent", Silent::default()).expect("it is the first");
                Server::start(&mesh, ServerConfig::default()).and_then(|server| server.run()).expect("nobody dies");
            }
            Role::Worker => act(&mesh),
            _ => mesh.until_gone(|_| true).expect("nobody dies"),
        }
        mesh.leave().expect("the others agree");
    });
}

/// Comes to a point where the other workers come too, without the store.
fn meet(mesh: &Mesh) {
    let workers: Vec<_> = mesh.of_role(Role::Worker).map(|member| member.node).collect();
    mesh.group("workers", &workers).expect("all live").barrier().expect("all come");
}

#[test]
fn a_slice_that_cannot_be_sent_ends_its_push() {
    for kind in [Kind::DistSync, Kind::DistAsync] {
        job(1, 1, move |mesh| {
            let store = KvStore::open(mesh, kind).expect("all servers serve");
            store.init(&pair(10, 0.0)).expect("it is new");
            let calls = wait_for_answers(mesh);
            // The server hears of the push, and of nothing more.
            let push = store.push_with(&pair(10, 1.0), Options { priority: 1 }).expect("there is room for one call");
            let error = push.wait_timeout(SOON).expect_err("its slice cannot be sent");
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
            calls.iter().for_each(Work::cancel);
            let place = pair(10, 9.0);
            let next = store.push_pull(&pair(10, 2.0), &place);
            if kind == Kind::DistSync {
                // Nobody knows which server has which slice.
                let text = next.expect_err("it is of no more use").to_string();
                assert!(text.contains("some servers and not others"), "{text}");
            } else {
                wait(&next.expect("it is sent")).expect("the server lives");
                assert_eq!(place[0].1.to_vec::<f32>().expect("floats"), [2.0; 10]);
            }
        });
    }
}

#[test]
fn nobody_gets_a_sum_with_a_part_of_a_push_when_its_worker_closes_the_store() {
    const ELEMENTS: usize = 5000;
    job(2, 2, |mesh| {
        let config = Config { cut_elements: 100, ..Config::from(Kind::DistSync) };
        let store = KvStore::open(mesh, config).expect("all servers serve");
        store.init(&pair(ELEMENTS, 0.0)).expect("it is new");
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        if store.rank() == 0 {
            let calls = wait_for_answers(mesh);
            // One server has its part, and there is no room for the other one's.
            let refused = store.push(&pair(ELEMENTS, 1.0)).expect_err("there is room for one call");
            assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused}");
            calls.iter().for_each(Work::cancel);
            meet(mesh);
            let text = store.close().expect_err("it is of no more use").to_string();
            assert!(text.contains("some servers and not others"), "{text}");
        } else {
            let place = pair(ELEMENTS, 9.0);
            let push = store.push_pull(&pair(ELEMENTS, 1.0), &place).expect("it is sent");
            meet(mesh);
            let error = push.wait_timeout(SOON).map(|()| place[0].1.to_vec::<f32>()).expect_err("no sum is whole");
            let text = error.to_string();
            assert!(text.contains("worker 0") && text.contains("some servers and not others"), "{text}");
        }
    });
}

/// Another thread pushes a key while all workers delete it.
#[test]
fn a_slice_that_the_server_refuses_ends_its_push() {
    const ROUNDS: usize = 100;
    job(1, 2, |mesh| {
        let store = KvStore::open(mesh, Kind::DistAsync).expect("all servers serve");
        for _ in 0..ROUNDS {
            store.init(&pair(10, 0.0)).expect("it is new");
            std::thread::scope(|scope| {
                let pushing = scope.spawn(|| {
                    loop {
                        let push = match store.push_with(&pair(10, 1.0), Options { priority: 1 }) {
                            Ok(push) => push,
                            Err(error) => return error,
                        };
                        if let Err(error) = push.wait_timeout(SOON) {
                            return error;
                        }
                    }
                });
                store.delete(&["w".into()]).expect("it is known");
                let error = pushing.join().expect("no panic");
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            });
        }
    });
}

/// Whichever server has the key of it: none may have its part of the push by then.
#[test]
fn a_push_of_what_is_being_written_is_refused_before_any_server_has_its_part() {
    const LARGE: usize = 100_000;
    let tensor = |value: f32| Tensor::from_slice(&vec![value; LARGE], [LARGE as u64]).expect("it fits");
    job(2, 2, move |mesh| {
        let store = KvStore::open(mesh, Kind::DistSync).expect("all servers serve");
        let keys: Vec<Key> = (0..6).map(|number| format!("w{number}").as_str().into()).collect();
        let all = |value: f32| keys.iter().map(|key| (key.clone(), tensor(value))).collect::<Vec<_>>();
        store.init(&all(0.0)).expect("they are new");
        store.set_updater(Updater::Sum).expect("servers add");
        for (round, key) in (1_u8..).zip(&keys) {
            let place = tensor(0.0);
            let own = [(key.clone(), tensor(1.0))];
            if store.rank() == 0 {
                // It waits for the other worker.
                let pulled = store.push_pull(&own, &[(key.clone(), place.clone())]).expect("it is sent");
                let mut pairs = all(1.0);
                pairs.iter_mut().filter(|(other, _)| other == key).for_each(|(_, value)| *value = place.clone());
                let refused = store.push(&pairs).expect_err("a pull writes it");
                assert_eq!(refused.kind(), ErrorKind::BufferInUse, "{refused}");
                meet(mesh);
                wait(&pulled).expect("both have pushed");
            } else {
                meet(mesh);
                wait(&store.push_pull(&own, &[(key.clone(), place.clone())]).expect("it is sent")).expect("both");
            }
            assert_eq!(place.to_vec::<f32>().expect("free")[LARGE - 1], 2.0, "round {round}");
        }
    });
}
