//! Pushes of which a part cannot be sent: they end, and nobody gets a sum with the other part.

use crate::common::raw::name_on;
use crate::common::{roles, together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Work};
use sheave_mesh::{Answer, Lane, Mesh, Request, Role, Service};
use sheave_store::{Compression, Config, Key, Kind, KvStore, Options, Server, ServerConfig, Updater};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Far more than what needs nobody takes.
const SOON: Duration = Duration::from_secs(20);

fn pair(elements: usize, value: f32) -> [(Key, Tensor); 1] {
    [named("w", elements, value)]
}

fn named(key: &str, elements: usize, value: f32) -> (Key, Tensor) {
    (key.into(), Tensor::from_slice(&vec![value; elements], [elements as u64]).expect("it fits"))
}

/// A key that lives on the first server of two, and one on the second.
fn one_on_each() -> [String; 2] {
    [0, 1].map(|server| name_on(server, 2, "w"))
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
    job_of(servers, workers, ServerConfig::default(), act);
}

fn job_of(servers: u32, workers: u32, config: ServerConfig, act: impl Fn(&Mesh) + Clone + Send + 'static) {
    together(roles(servers, workers), Transport::Shm, move |mesh| {
        match mesh.me().introduction.role {
            Role::Server => {
                mesh.serve("silent", Silent::default()).expect("it is the first");
                Server::start(&mesh, config.clone()).and_then(|server| server.run()).expect("nobody dies");
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

/// Those who push on wait for nobody, and meet nobody at the end.
#[test]
fn a_worker_that_can_make_no_more_calls_closes_its_store() {
    job(2, 2, |mesh| {
        let [first, second] = one_on_each();
        let store = KvStore::open(mesh, Kind::DistSync).expect("all servers serve");
        let both = |value: f32| [named(&first, 3, value), named(&second, 3, value)];
        store.init(&both(0.0)).expect("they are new");
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        store.set_barrier_before_exit(false);
        if store.rank() == 0 {
            // There is room for the word to one server.
            let calls = wait_for_answers(mesh);
            store.close().expect("all servers hear it");
            meet(mesh);
            calls.iter().for_each(Work::cancel);
        } else {
            let places = both(9.0);
            let push = store.push_pull(&both(1.0), &places).expect("it is sent");
            push.wait_timeout(SOON).expect("the other worker pushes no more");
            assert_eq!(places.map(|(_, place)| place.to_vec::<f32>().expect("floats")[0]), [1.0, 1.0]);
            store.close().expect("it is whole");
            meet(mesh);
        }
    });
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

/// What is only asked for is on its way, and what is pushed is not.
#[test]
fn a_push_that_no_server_has_got_breaks_nothing() {
    job(2, 2, |mesh| {
        let [first, second] = one_on_each();
        let config = Config { cut_elements: 100, ..Config::from(Kind::DistSync) };
        let store = KvStore::open(mesh, config).expect("all servers serve");
        let both = |value: f32| [named(&first, 3, value), named(&second, 3, value)];
        store.init(&both(0.0)).expect("they are new");
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        if store.rank() == 0 {
            // So that the pull waits for the other worker, and keeps its place among the calls.
            let push = store.push(&both(1.0)[..1]).expect("it is sent");
            let calls = wait_for_answers(mesh);
            let place = named(&first, 3, 9.0);
            let refused = store.push_pull(&both(1.0)[1..], &[place]).expect_err("there is room for the pull alone");
            assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused}");
            calls.iter().for_each(Work::cancel);
            meet(mesh);
            wait(&push).expect("both have pushed");
        } else {
            meet(mesh);
            wait(&store.push(&both(1.0)[..1]).expect("it is sent")).expect("both have pushed");
        }
        let places = both(9.0);
        wait(&store.push_pull(&both(1.0)[1..], &places).expect("it is whole")).expect("both have pushed");
        assert_eq!(places.map(|(_, place)| place.to_vec::<f32>().expect("floats")[0]), [2.0, 2.0]);
    });
}

/// A caller that took it for failed would push the same again.
#[test]
fn a_push_that_is_whole_counts_though_its_pull_is_refused() {
    for kind in [Kind::DistSync, Kind::DistAsync] {
        job(2, 2, move |mesh| {
            let [first, second] = one_on_each();
            let store = KvStore::open(mesh, kind).expect("all servers serve");
            let both = |value: f32| [named(&first, 3, value), named(&second, 3, value)];
            store.init(&both(0.0)).expect("they are new");
            store.set_updater(Updater::Sum).expect("servers add");
            store.barrier().expect("all are there");
            if store.rank() == 0 {
                let calls = wait_for_answers(mesh);
                let places = [named(&second, 3, 9.0)];
                let pushed = store.push_pull(&both(1.0)[..1], &places).expect("there is room for the push alone");
                calls.iter().for_each(Work::cancel);
                let error = pushed.wait_timeout(SOON).expect_err("nothing could be pulled");
                assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
                assert!(error.to_string().contains("may not be pushed again"), "{error}");
            } else {
                wait(&store.push(&both(1.0)[..1]).expect("it is sent")).expect("both push");
            }
            store.barrier().expect("the store is whole");
            let places = both(9.0);
            wait(&store.pull(&places).expect("it is sent")).expect("the servers live");
            assert_eq!(places.map(|(_, place)| place.to_vec::<f32>().expect("floats")[0]), [2.0, 0.0]);
        });
    }
}

/// It has no room for calls that are answered, and does not close the store.
#[test]
fn all_servers_hear_of_a_torn_push_from_a_worker_that_can_make_no_more_calls() {
    job(2, 2, |mesh| {
        let [first, second] = one_on_each();
        let store = KvStore::open(mesh, Kind::DistSync).expect("all servers serve");
        let both = |value: f32| [named(&first, 3, value), named(&second, 3, value)];
        store.init(&both(0.0)).expect("they are new");
        store.barrier().expect("all are there");
        if store.rank() == 0 {
            let calls = wait_for_answers(mesh);
            let refused = store.push(&both(1.0)).expect_err("there is room for one call");
            assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused}");
            meet(mesh);
            meet(mesh);
            calls.iter().for_each(Work::cancel);
        } else {
            meet(mesh);
            let push = store.push(&both(1.0)[1..]).expect("it is sent");
            let error = push.wait_timeout(SOON).expect_err("the other worker's does not come");
            meet(mesh);
            assert!(error.to_string().contains("some servers and not others"), "{error}");
        }
    });
}

/// Opened by the test, which user code of a server waits for.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().expect("nobody panics") = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let is_open = self.0.0.lock().expect("nobody panics");
        drop(self.0.1.wait_while(is_open, |is_open| !*is_open).expect("nobody panics"));
    }
}

/// Nor takes that server the word of it before it goes on.
#[test]
fn a_server_that_takes_no_more_hears_of_a_torn_push_when_it_does() {
    let gate = Gate::default();
    let at = gate.clone();
    let config = ServerConfig::default().function("gated", move |_, _, _| {
        at.wait();
        Ok(())
    });
    job_of(2, 2, config, move |mesh| {
        let [first, second] = one_on_each();
        let third = name_on(1, 2, "other");
        let config = Config { staleness: 0, ..Config::from(Kind::DistSsp) };
        let store = KvStore::open(mesh, config).expect("all servers serve");
        store.init(&[&first, &second, &third].map(|key| named(key, 3, 0.0))).expect("they are new");
        store.set_updater(Updater::Named("gated".into())).expect("it is offered");
        store.barrier().expect("all are there");
        if store.rank() == 0 {
            let mut pushes = Vec::new();
            let full = loop {
                match store.push(&[named(&second, 3, 1.0)]) {
                    Ok(push) => pushes.push(push),
                    Err(error) => break error,
                }
            };
            assert!(full.to_string().contains("wait for their callee"), "{full}");
            let refused = store.push(&[named(&first, 3, 1.0), named(&second, 3, 1.0)]).expect_err("one is too slow");
            assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused}");
            meet(mesh);
            gate.open();
            meet(mesh);
        } else {
            // For that of the other worker, which does not come.
            let place = named(&third, 3, 9.0);
            let pull = store.push_pull(&[named(&third, 3, 1.0)], &[place]).expect("it is sent");
            meet(mesh);
            let error = pull.wait_timeout(SOON).expect_err("the other worker does not push");
            gate.open();
            meet(mesh);
            assert!(error.to_string().contains("some servers and not others"), "{error}");
        }
    });
}

#[test]
fn a_slice_that_cannot_be_sent_gives_back_what_it_took_of_a_residual() {
    job(1, 1, |mesh| {
        let store = KvStore::open(mesh, Kind::DistAsync).expect("all servers serve");
        store.init(&pair(3, 0.0)).expect("it is new");
        store.set_updater(Updater::Sum).expect("servers add");
        store.set_gradient_compression(Compression::TwoBit { threshold: 0.5 }).expect("it has a meaning");
        let options = Options { priority: 1 };
        wait(&store.push_with(&pair(3, 0.375), options).expect("it is sent")).expect("the server lives");
        let calls = wait_for_answers(mesh);
        let push = store.push_with(&pair(3, 0.25), options).expect("there is room for one call");
        push.wait_timeout(SOON).expect_err("its slice cannot be sent");
        calls.iter().for_each(Work::cancel);
        for (value, stored) in [(0.25, 0.5), (0.25, 0.5), (0.125, 1.0)] {
            let place = pair(3, 9.0);
            wait(&store.push_pull(&pair(3, value), &place).expect("it is sent")).expect("the server lives");
            assert_eq!(place[0].1.to_vec::<f32>().expect("floats"), [stored; 3]);
        }
    });
}

/// Or else what it waits for fills the worker's share there.
#[test]
fn a_server_forgets_a_push_whose_slices_cannot_be_sent() {
    const PUSHES: usize = sheave_base::limits::CALLS_PENDING_MAX;
    job(1, 1, |mesh| {
        let store = KvStore::open(mesh, Kind::DistAsync).expect("all servers serve");
        store.init(&pair(3, 0.0)).expect("it is new");
        let options = Options { priority: 1 };
        let calls = wait_for_answers(mesh);
        let mut begun = 0;
        while begun < PUSHES {
            // Now and then the server is to catch up.
            let Ok(push) = store.push_with(&pair(3, 1.0), options) else { continue };
            push.wait_timeout(SOON).expect_err("its slice cannot be sent");
            begun += 1;
        }
        calls.iter().for_each(Work::cancel);
        wait(&store.push_with(&pair(3, 2.0), options).expect("it is sent")).expect("there is room");
        let place = pair(3, 9.0);
        wait(&store.pull(&place).expect("it is sent")).expect("the server lives");
        assert_eq!(place[0].1.to_vec::<f32>().expect("floats"), [2.0; 3]);
    });
}
