//! What every store does, local and on servers, over shared memory and TCP.

use crate::common::{job_of, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind};
use sheave_store::{Config, Key, Kind, KvStore, Rule, ServerConfig, Updater};
use sheave_tensor::{Dtype, Tensor};
use std::sync::{Arc, Mutex};

/// Small, so that tests cut tensors too.
const CUT_ELEMENTS: u64 = 1000;

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];

fn tensor(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len() as u64]).expect("it fits")
}

fn zeros(elements: usize) -> Tensor {
    tensor(&vec![0.0; elements])
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec::<f32>().expect("floats")
}

fn config(kind: Kind) -> Config {
    Config { cut_elements: CUT_ELEMENTS, ..Config::from(kind) }
}

/// Runs `act` on a local store and as each worker of stores on servers, with the number of workers.
fn on_each(kinds: &[Kind], act: impl Fn(&KvStore) + Clone + Send + 'static) {
    for kind in kinds {
        if !kind.is_distributed() {
            act(&KvStore::local(&kind.to_string()).expect("it is known"));
            continue;
        }
        for (servers, workers, transport) in
            [(1, 1, Transport::Shm), (2, 3, Transport::Shm), (3, 2, Transport::Tcp), (1, 4, Transport::Tcp)]
        {
            let (kind, act) = (*kind, act.clone());
            job_of(servers, workers, transport, ServerConfig::default(), move |mesh| {
                act(&KvStore::open(mesh, config(kind)).expect("all servers serve"));
            });
        }
    }
}

const ALL: [Kind; 4] = [Kind::Local, Kind::Device, Kind::DistSync, Kind::DistAsync];

fn get(store: &KvStore, key: impl Into<Key>, elements: usize) -> Result<Vec<f32>, Error> {
    let place = zeros(elements);
    wait(&store.pull(&[(key.into(), place.clone())])?)?;
    Ok(values(&place))
}

fn put(store: &KvStore, key: impl Into<Key>, value: &[f32]) -> Result<(), Error> {
    wait(&store.push(&[(key.into(), tensor(value))])?)
}

#[test]
fn what_was_initialised_is_pulled_whatever_its_size() {
    on_each(&ALL, |store| {
        for (key, elements) in
            [(0i32, 0usize), (1, 1), (2, 7), (3, 999), (4, 1000), (5, 1001), (6, 40_000), (7, 300_000)]
        {
            // Only the first worker's values count.
            let own: Vec<f32> = (0..elements).map(|at| at as f32 + store.rank() as f32 * 1e6).collect();
            store.init(&[(key.into(), tensor(&own))]).expect("the key is new");
            let first: Vec<f32> = (0..elements).map(|at| at as f32).collect();
            assert_eq!(get(store, key, elements).expect("it is there"), first, "{elements}");
        }
    });
}

#[test]
fn the_default_updater_assigns_the_sum_of_all_workers() {
    on_each(&[Kind::Local, Kind::DistSync], |store| {
        store.init(&[("w".into(), zeros(5000)), (3.into(), zeros(2))]).expect("they are new");
        let workers = store.group_size() as f32;
        for round in 1..=5 {
            let own = round as f32;
            let pairs = [("w".into(), tensor(&vec![own; 5000])), (3.into(), tensor(&[own, -own]))];
            let places = [zeros(5000), zeros(2)];
            let work = store.push_pull(&pairs, &[("w".into(), places[0].clone()), (3.into(), places[1].clone())]);
            wait(&work.expect("it is sent")).expect("all push");
            assert_eq!(values(&places[0]), vec![own * workers; 5000]);
            assert_eq!(values(&places[1]), [own * workers, -own * workers]);
        }
    });
}

#[test]
fn equal_keys_of_one_push_are_summed_and_every_place_is_filled() {
    on_each(&[Kind::Local, Kind::DistSync], |store| {
        store.init(&[(3.into(), zeros(1)), (4.into(), zeros(1))]).expect("they are new");
        let pairs = [(3.into(), tensor(&[1.0])), (4.into(), tensor(&[2.0])), (3.into(), tensor(&[4.0]))];
        wait(&store.push(&pairs).expect("it is sent")).expect("all push");
        let places = [zeros(1), zeros(1), zeros(1)];
        let pairs = [(3.into(), places[0].clone()), (4.into(), places[1].clone()), (3.into(), places[2].clone())];
        wait(&store.pull(&pairs).expect("it is sent")).expect("they are there");
        let workers = store.group_size() as f32;
        let pulled: Vec<f32> = places.iter().map(|place| values(place)[0] / workers).collect();
        assert_eq!(pulled, [5.0, 2.0, 5.0]);
    });
}

#[test]
fn pushes_in_flight_are_merged_in_order_and_pulls_see_their_own() {
    on_each(&[Kind::DistSync], |store| {
        store.init(&[("a".into(), zeros(3)), ("b".into(), zeros(2000))]).expect("they are new");
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        let workers = store.group_size() as f32;
        let mut works = Vec::new();
        for round in 1..=20 {
            let (a, b) = (tensor(&[1.0; 3]), tensor(&vec![2.0; 2000]));
            works.push((store.push(&[("a".into(), a), ("b".into(), b)]).expect("it is sent"), None));
            let places = (zeros(3), zeros(2000));
            let pull = [("b".into(), places.1.clone()), ("a".into(), places.0.clone())];
            works.push((store.pull(&pull).expect("it is sent"), Some((round as f32, places))));
        }
        for (work, expected) in works {
            wait(&work).expect("all push");
            if let Some((round, (a, b))) = expected {
                // Neither older nor newer than the worker's own pushes so far.
                assert_eq!(values(&a), vec![round * workers; 3]);
                assert_eq!(values(&b), vec![2.0 * round * workers; 2000]);
            }
        }
    });
}

#[test]
fn an_asynchronous_store_takes_every_push_as_it_comes() {
    on_each(&[Kind::DistAsync], |store| {
        store.init(&[("last".into(), zeros(2)), ("sum".into(), zeros(1500))]).expect("they are new");
        put(store, "last", &[store.rank() as f32 + 1.0, 0.0]).expect("it is merged at once");
        let seen = get(store, "last", 2).expect("it is there");
        assert!((1.0..=store.group_size() as f32).contains(&seen[0]), "the last arrival wins: {seen:?}");
        store.barrier().expect("all are there");
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        for _ in 0..10 {
            put(store, "sum", &[1.0; 1500]).expect("it is merged at once");
        }
        store.barrier().expect("all are there");
        assert_eq!(get(store, "sum", 1500).expect("it is there"), vec![10.0 * store.group_size() as f32; 1500]);
    });
}

#[test]
fn keys_are_the_same_for_all_whatever_the_order() {
    job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = KvStore::open(mesh, config(Kind::DistSync)).expect("all servers serve");
        let (x, y) = (("x".into(), tensor(&[1.0])), ("y".into(), tensor(&[2.0])));
        // The first worker's values count; the other names the keys the other way round.
        let pairs: [(Key, Tensor); 2] = if store.rank() == 0 { [x, y] } else { [y, x] };
        store.init(&pairs).expect("they are new");
        assert_eq!(get(&store, "x", 1).expect("it is there"), [1.0]);
        assert_eq!(get(&store, "y", 1).expect("it is there"), [2.0]);
    });
}

#[test]
fn workers_without_values_learn_them() {
    job_of(2, 3, Transport::Tcp, ServerConfig::default(), |mesh| {
        let store = KvStore::open(mesh, config(Kind::DistSync)).expect("all servers serve");
        if store.rank() == 0 {
            store.init(&[(7.into(), tensor(&[4.0; 3000]))]).expect("it is new");
        } else {
            store.init_without_values(&[7.into()]).expect("the first has them");
        }
        assert_eq!(get(&store, 7, 3000).expect("it is there"), [4.0; 3000]);
    });
}

#[test]
fn mistakes_are_refused_before_anything_moves_and_harm_nobody() {
    on_each(&ALL, |store| {
        let start = vec![1.0; 1200];
        store.init(&[("w".into(), tensor(&start)), ("v".into(), zeros(2))]).expect("they are new");
        let kind_of = |outcome: Result<(), Error>| outcome.expect_err("it is a mistake").kind();
        assert_eq!(kind_of(put(store, "nobody", &[1.0])), ErrorKind::NotFound);
        assert_eq!(kind_of(put(store, 3, &[1.0])), ErrorKind::NotFound);
        assert_eq!(kind_of(put(store, "w", &[1.0])), ErrorKind::Mismatch);
        assert_eq!(kind_of(get(store, "w", 7).map(drop)), ErrorKind::Mismatch);
        let doubles = Tensor::from_slice(&[1.0f64; 2], [2]).expect("it fits");
        let wrong = store.push(&[("v".into(), doubles)]).and_then(|work| wait(&work));
        assert_eq!(kind_of(wrong), ErrorKind::Mismatch);
        let shaped = tensor(&[0.0; 2]).reshape([2, 1]).expect("it fits");
        assert_eq!(kind_of(store.push(&[("v".into(), shaped)]).and_then(|work| wait(&work))), ErrorKind::Mismatch);
        // One bad key refuses the whole push.
        let mixed = store.push(&[("v".into(), tensor(&[5.0, 5.0])), ("no".into(), zeros(1))]);
        assert_eq!(kind_of(mixed.and_then(|work| wait(&work))), ErrorKind::NotFound);
        assert_eq!(kind_of(store.init(&[("w".into(), zeros(1200))])), ErrorKind::AlreadyExists);
        let bad = Rule::sgd(f64::NAN);
        if store.rank() == 0 || !store.kind().is_distributed() {
            assert_eq!(kind_of(store.set_optimizer(bad)), ErrorKind::InvalidArgument);
        }
        store.barrier().expect("all are there");
        assert_eq!(get(store, "w", 1200).expect("it is untouched"), start);
        assert_eq!(get(store, "v", 2).expect("it is untouched"), [0.0, 0.0]);
    });
}

#[test]
fn ten_thousand_keys_in_one_call_are_few_messages() {
    const KEYS: i64 = 10_000;
    let sent = job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = KvStore::open(mesh, Kind::DistSync).expect("all servers serve");
        let pairs: Vec<(Key, Tensor)> = (0..KEYS).map(|key| (key.into(), tensor(&[key as f32; 16]))).collect();
        store.init(&pairs).expect("they are new");
        let places: Vec<(Key, Tensor)> = (0..KEYS).map(|key| (key.into(), zeros(16))).collect();
        let before = mesh.node().counts().messages_sent;
        wait(&store.push(&pairs).expect("it is sent")).expect("all push");
        wait(&store.pull(&places).expect("it is sent")).expect("they are there");
        let sent = mesh.node().counts().messages_sent - before;
        for (key, place) in (0..KEYS).zip(&places) {
            assert_eq!(values(&place.1), [2.0 * key as f32; 16]);
        }
        sent
    });
    // Two servers, a push and a pull each, and now and then a beat of the engine.
    assert!(sent.iter().all(|sent| *sent <= 12), "{sent:?} messages");
}

#[test]
fn user_functions_run_where_the_values_are_and_their_errors_come_back() {
    let config_of = || {
        ServerConfig::default()
            .function("halve", |_, sum, value| {
                let sum = sum.as_slice::<f32>()?;
                for (value, sum) in value.as_mut_slice::<f32>()?.iter_mut().zip(sum.iter()) {
                    *value = *value / 2.0 + sum;
                }
                Ok(())
            })
            .function("refuse", |key, _, _| Err(Error::new(ErrorKind::Unsupported, format!("not {key}"))))
            .function("panic", |_, _, _| panic!("on purpose"))
    };
    job_of(2, 2, Transport::Shm, config_of(), |mesh| {
        let store = KvStore::open(mesh, config(Kind::DistSync)).expect("all servers serve");
        store.init(&[("w".into(), tensor(&vec![8.0; 2500]))]).expect("it is new");
        store.set_updater(Updater::Named("halve".into())).expect("it is registered");
        store.barrier().expect("all are there");
        put(&store, "w", &vec![1.0; 2500]).expect("all push");
        assert_eq!(get(&store, "w", 2500).expect("it is there"), vec![6.0; 2500]);
        store.barrier().expect("all are there");
        for (name, kind) in [("refuse", ErrorKind::Unsupported), ("panic", ErrorKind::Remote)] {
            store.set_updater(Updater::Named(name.into())).expect("it is registered");
            store.barrier().expect("all are there");
            let error = put(&store, "w", &vec![1.0; 2500]).expect_err("it fails");
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.happened_on().is_some_and(|peer| peer.name.starts_with("server-")), "{error}");
            assert_eq!(error.to_string().contains("caused by: on purpose"), name == "panic", "{error}");
            store.barrier().expect("all are there");
        }
        if store.rank() == 0 {
            let error = store.set_updater(Updater::Named("nobody".into())).expect_err("it is not registered");
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            let closure = Updater::Function(Arc::new(|_, _, _| Ok(())));
            assert_eq!(store.set_updater(closure).expect_err("it cannot travel").kind(), ErrorKind::Unsupported);
        }
        // The servers live, and the values are what they were.
        assert_eq!(get(&store, "w", 2500).expect("it is there"), vec![6.0; 2500]);
    });
}

#[test]
fn servers_find_functions_that_came_after_their_start() {
    let found: Arc<Mutex<Vec<String>>> = Arc::default();
    let names = Arc::clone(&found);
    let largest: sheave_store::Function = Arc::new(|_, sum, value| value.reduce_from(sheave_tensor::Op::Max, sum));
    let server = ServerConfig::default().function("known", |_, _, _| Ok(())).finder(move |name| {
        names.lock().unwrap().push(name.to_owned());
        (name == "largest").then(|| Arc::clone(&largest))
    });
    job_of(2, 2, Transport::Shm, server, |mesh| {
        let store = KvStore::open(mesh, config(Kind::DistSync)).expect("all servers serve");
        assert_eq!(store.is_first(), store.rank() == 0);
        store.init(&[("w".into(), tensor(&vec![1.0; 2500]))]).expect("it is new");
        if store.is_first() {
            store.set_updater(Updater::Named("known".into())).expect("it is offered");
            store.set_updater(Updater::Named("largest".into())).expect("it is found");
            let error = store.set_updater(Updater::Named("nobody".into())).expect_err("it is not found");
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        }
        store.barrier().expect("all are there");
        put(&store, "w", &vec![0.25; 2500]).expect("all push");
        assert_eq!(get(&store, "w", 2500).expect("it is there"), vec![1.0; 2500]);
        put(&store, "w", &vec![4.0; 2500]).expect("all push");
        assert_eq!(get(&store, "w", 2500).expect("it is there"), vec![8.0; 2500]);
    });
    let found = found.lock().unwrap();
    assert!(found.iter().all(|name| name != "known") && found.iter().any(|name| name == "nobody"), "{found:?}");
}

#[test]
fn a_closure_updates_a_local_store() {
    let store = KvStore::local("LOCAL_update_cpu").expect("it is an alias");
    store.init(&[(1.into(), tensor(&[1.0, 2.0]))]).expect("it is new");
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let notes = Arc::clone(&seen);
    let function: sheave_store::Function = Arc::new(move |key, sum, value| {
        notes.lock().unwrap().push(key.to_string());
        value.reduce_from(sheave_tensor::Op::Max, sum)
    });
    store.set_updater(Updater::Function(function)).expect("it is here");
    put(&store, 1, &[0.0, 5.0]).expect("it is merged");
    assert_eq!(get(&store, 1, 2).expect("it is there"), [1.0, 5.0]);
    assert_eq!(*seen.lock().unwrap(), ["1"]);
}

/// Small values and such that live in the arena; whoever fails has written before.
#[test]
fn f09_an_updater_that_fails_leaves_the_old_value() {
    for elements in [3usize, 1 << 20] {
        let store = KvStore::local("local").expect("it is known");
        store.init(&[(1.into(), tensor(&vec![1.5; elements]))]).expect("it is new");
        let function: sheave_store::Function = Arc::new(move |_, sum, value| {
            value.as_mut_slice::<f32>()?[..2].fill(9.0);
            let first = sum.as_slice::<f32>()?[0];
            assert!(first != 1.0, "on purpose");
            if first == 2.0 { Err(Error::new(ErrorKind::Remote, "it does not like it")) } else { Ok(()) }
        });
        store.set_updater(Updater::Function(function)).expect("it is here");
        for first in [1.0, 2.0] {
            let error = put(&store, 1, &vec![first; elements]).expect_err("it fails");
            assert_eq!(error.kind(), ErrorKind::Remote, "{error}");
            assert_eq!(get(&store, 1, elements).expect("it is there"), vec![1.5; elements], "{first}");
        }
        put(&store, 1, &vec![3.0; elements]).expect("it is merged");
        assert_eq!(get(&store, 1, elements).expect("it is there")[..3], [9.0, 9.0, 1.5]);
    }
}

#[test]
fn two_stores_of_different_kinds_do_not_disturb_each_other() {
    for transport in TRANSPORTS {
        job_of(2, 2, transport, ServerConfig::default(), |mesh| {
            let sync = KvStore::open(mesh, Kind::DistSync).expect("all servers serve");
            let loose = KvStore::open(mesh, Kind::DistAsync).expect("all servers serve");
            for store in [&sync, &loose] {
                store.init(&[("w".into(), zeros(3))]).expect("it is new in this store");
            }
            loose.set_updater(Updater::Sum).expect("servers add");
            sync.barrier().expect("all are there");
            put(&loose, "w", &[1.0; 3]).expect("it is merged at once");
            put(&sync, "w", &[10.0; 3]).expect("all push");
            sync.barrier().expect("all are there");
            assert_eq!(get(&sync, "w", 3).expect("it is there"), [20.0; 3]);
            assert_eq!(get(&loose, "w", 3).expect("it is there"), [2.0; 3]);
        });
    }
}

#[test]
fn workers_that_open_a_store_differently_are_told() {
    let outcomes = job_of(1, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let kind = if mesh.me().role_rank == 0 { Kind::DistSync } else { Kind::DistAsync };
        KvStore::open(mesh, kind).map(drop)
    });
    let errors: Vec<Error> = outcomes.into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 1, "the second one is told: {errors:?}");
    assert_eq!(errors[0].kind(), ErrorKind::Mismatch);
    assert!(errors[0].what().contains("dist_sync") && errors[0].what().contains("dist_async"), "{}", errors[0]);
}

#[test]
fn other_dtypes_are_summed_too() {
    on_each(&[Kind::Local, Kind::DistSync], |store| {
        let whole = |value: i64| Tensor::from_slice(&[value; 1500], [30, 50]).expect("it fits");
        store.init(&[("n".into(), whole(0))]).expect("it is new");
        let place = whole(-1);
        let work = store.push_pull(&[("n".into(), whole(7))], &[("n".into(), place.clone())]);
        wait(&work.expect("it is sent")).expect("all push");
        assert_eq!(place.dtype(), Dtype::I64);
        assert_eq!(place.to_vec::<i64>().expect("numbers"), vec![7 * store.group_size() as i64; 1500]);
    });
}
