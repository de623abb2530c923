//! What is wrong with the key-value store of MXNet, by the numbers of the list of its known defects, and that it is not
//! so here. Where a defect is looked for with real processes, the test says so and looks at the rest.

mod common;

use common::{config, free_port, job_of, roles, wait};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_mesh::{Expected, Mesh, Role};
use sheave_store::{Config, Key, Kind, KvStore, Rule, ServerConfig, Updater};
use sheave_tensor::Tensor;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// So that tensors are cut too.
const CUT_ELEMENTS: u64 = 100;
const SIZES: [usize; 2] = [3, 5000];

fn tensor(elements: usize, value: f32) -> Tensor {
    Tensor::from_slice(&vec![value; elements], [elements as u64]).expect("it fits")
}

fn pair(key: impl Into<Key>, elements: usize, value: f32) -> [(Key, Tensor); 1] {
    [(key.into(), tensor(elements, value))]
}

fn open(mesh: &Mesh, kind: Kind) -> KvStore {
    KvStore::open(mesh, Config { cut_elements: CUT_ELEMENTS, ..Config::from(kind) }).expect("all servers serve")
}

fn push(store: &KvStore, key: impl Into<Key>, elements: usize, value: f32) -> Work<()> {
    store.push(&pair(key, elements, value)).expect("it is sent")
}

fn get(store: &KvStore, key: impl Into<Key>, elements: usize) -> Vec<f32> {
    let place = pair(key, elements, f32::NAN);
    wait(&store.pull(&place).expect("it is sent")).expect("it is there");
    place[0].1.to_vec::<f32>().expect("floats")
}

fn kind_of(outcome: Result<Work<()>>) -> ErrorKind {
    outcome.and_then(|work| wait(&work)).expect_err("it is a mistake").kind()
}

/// As a local store, and as each of two workers with two servers.
fn on_each(kind: Kind, act: impl Fn(&KvStore) + Clone + Send + 'static) {
    act(&KvStore::local("local").expect("it is known"));
    on_servers(kind, ServerConfig::default(), act);
}

fn on_servers(kind: Kind, config: ServerConfig, act: impl Fn(&KvStore) + Clone + Send + 'static) {
    job_of(2, 2, Transport::Shm, config, move |mesh| act(&open(mesh, kind)));
}

#[test]
fn defect_01_a_round_counts_distinct_workers() {
    on_servers(Kind::DistSync, ServerConfig::default(), |store| {
        for elements in SIZES {
            let key = elements as i64;
            store.init(&pair(key, elements, 0.0)).expect("it is new");
            let mine = store.rank() as f32 * 9.0 + 1.0;
            let early: Vec<_> =
                (0..2).filter(|_| store.rank() == 0).map(|_| push(store, key, elements, mine)).collect();
            store.barrier().expect("all come");
            assert!(early.iter().all(|push| !push.is_done()), "one worker is no round");
            store.barrier().expect("all come");
            let late: Vec<_> = (0..2).filter(|_| store.rank() == 1).map(|_| push(store, key, elements, mine)).collect();
            early.iter().chain(&late).for_each(|push| wait(push).expect("both have pushed twice"));
            assert_eq!(get(store, key, elements), vec![11.0; elements]);
        }
    });
}

#[test]
fn defect_02_a_bad_request_stops_no_server() {
    on_each(Kind::DistSync, |store| {
        assert_eq!(kind_of(store.push(&pair("unknown", 3, 1.0))), ErrorKind::NotFound);
        assert_eq!(kind_of(store.pull(&pair("unknown", 3, 1.0))), ErrorKind::NotFound);
        store.init(&pair("w", 3, 0.0)).expect("it is new");
        let wrong = [(Key::from("w"), Tensor::from_slice(&[1f64; 3], [3]).expect("it fits"))];
        assert_eq!(kind_of(store.push(&wrong)), ErrorKind::Mismatch);
        wait(&push(store, "w", 3, 1.0)).expect("it lives");
        assert_eq!(get(store, "w", 3), [store.group_size() as f32; 3]);
    });
}

/// Deaths of real processes in every role are in `real_kills`, `real_shrink` and `real_server_kills`.
#[test]
fn defect_03_who_waits_for_a_worker_that_is_gone_hears_its_name() {
    job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistSync);
        store.init(&pair("w", 5000, 0.0)).expect("it is new");
        if store.rank() == 0 {
            let error = wait(&push(&store, "w", 5000, 1.0)).expect_err("the other one goes");
            assert!(error.kind() == ErrorKind::PeerLost && error.to_string().contains("worker-1"), "{error}");
        }
    });
}

#[test]
fn defect_04_a_second_init_of_a_number_is_an_error_for_all() {
    on_each(Kind::DistSync, |store| {
        store.init(&pair(3, 3, 1.0)).expect("it is new");
        assert_eq!(store.init(&pair(3, 3, 2.0)).expect_err("it is there").kind(), ErrorKind::AlreadyExists);
        assert_eq!(get(store, 3, 3), [1.0; 3]);
    });
}

#[test]
fn defect_05_names_mean_the_same_on_every_worker() {
    on_servers(Kind::DistSync, ServerConfig::default(), |store| {
        let all = || [("a".into(), tensor(3, 0.0)), ("b".into(), tensor(3, 0.0))];
        store.init(&all()).expect("they are new");
        // Each in its own order.
        let names = if store.rank() == 0 { ["a", "b"] } else { ["b", "a"] };
        let value = |name: &str| if name == "a" { 1.0 } else { 10.0 };
        let pushes: Vec<_> = names.map(|name| push(store, name, 3, value(name))).into();
        pushes.iter().for_each(|push| wait(push).expect("both push"));
        assert_eq!((get(store, "a", 3), get(store, "b", 3)), (vec![2.0; 3], vec![20.0; 3]));
    });
}

#[test]
fn defect_06_what_was_pushed_may_be_overwritten_at_once() {
    on_each(Kind::DistSync, |store| {
        for elements in SIZES {
            let (key, other) = (elements as i64, -(elements as i64));
            store.init(&[(key.into(), tensor(elements, 0.0)), (other.into(), tensor(elements, 7.0))]).expect("new");
            let value = tensor(elements, 1.0);
            let pushed = store.push(&[(key.into(), value.clone())]).expect("it is sent");
            let pulled = store.pull(&[(other.into(), value.clone())]).expect("it was captured");
            wait(&pushed).and_then(|()| wait(&pulled)).expect("both push");
            assert_eq!(value.to_vec::<f32>().expect("floats"), vec![7.0; elements]);
            assert_eq!(get(store, key, elements), vec![store.group_size() as f32; elements]);
        }
    });
}

#[test]
fn defect_07_another_shape_or_dtype_is_refused_and_changes_nothing() {
    on_each(Kind::DistSync, |store| {
        store.init(&pair("w", 4, 5.0)).expect("it is new");
        let square = tensor(4, 1.0).reshape([2, 2]).expect("it fits");
        for wrong in [tensor(3, 1.0), square, Tensor::from_slice(&[1i32; 4], [4]).expect("it fits")] {
            assert_eq!(kind_of(store.push(&[("w".into(), wrong.clone())])), ErrorKind::Mismatch);
            assert_eq!(kind_of(store.pull(&[("w".into(), wrong)])), ErrorKind::Mismatch);
        }
        assert_eq!(get(store, "w", 4), [5.0; 4]);
    });
}

#[test]
fn defect_08_every_command_reaches_the_controller_and_what_it_says_comes_back() {
    let controller = |number: i32, body: &[u8]| match number {
        9 => Err(Error::new(ErrorKind::InvalidArgument, "nine is too many")),
        10 => panic!("ten"),
        _ => Ok([number.to_string().as_bytes(), b" ", body].concat()),
    };
    on_servers(Kind::DistSync, ServerConfig::default().controller(controller), |store| {
        for number in [0, 1, 2, 3, 4, 5, 7, -1, i32::MAX] {
            let answer = format!("{number} hello").into_bytes();
            let answers = store.send_command_to_servers(number, "hello").expect("both answer");
            assert_eq!(answers, [answer.clone(), answer]);
        }
        let refused = store.send_command_to_servers(9, "").expect_err("it says so");
        assert!(refused.to_string().contains("nine is too many"), "{refused}");
        let error = store.send_command_to_servers(10, "").expect_err("it panics");
        assert!(error.to_string().contains("panicked"), "{error}");
    });
}

#[test]
fn defect_09_an_optimizer_that_is_set_again_keeps_its_state() {
    on_each(Kind::DistSync, |store| {
        store.init(&[("w".into(), tensor(3, 0.0)), ("v".into(), tensor(3, 0.0))]).expect("they are new");
        let step = |key: &str, sign: f32| wait(&push(store, key, 3, sign)).expect("both push");
        store.set_optimizer(Rule::adam(0.1)).expect("it is known");
        store.barrier().expect("all come");
        for (key, is_set_again) in [("w", false), ("v", true)] {
            step(key, 1.0);
            if is_set_again {
                store.set_optimizer(Rule::adam(0.1)).expect("it is known");
                store.barrier().expect("all come");
            }
            step(key, -2.0);
        }
        assert_eq!(get(store, "w", 3), get(store, "v", 3));
        store.set_learning_rate(0.5).expect("it has one");
        store.barrier().expect("all come");
        assert_eq!(store.learning_rate().expect("it has one"), 0.5);
    });
}

/// Nodes that are silent or dead are in `real_silence` and `real_kills`.
#[test]
fn defect_10_living_nodes_are_not_counted_as_dead() {
    on_servers(Kind::DistSync, ServerConfig::default(), |store| {
        for node in [1, 2, 4, 7, 8, 9, 10, 11] {
            assert_eq!(store.num_dead_node(node, Duration::from_secs(1)).expect("it is somebody"), 0, "{node}");
        }
        assert_eq!(
            store.num_dead_node(12, Duration::from_secs(1)).expect_err("nobody").kind(),
            ErrorKind::InvalidArgument
        );
        store.barrier().expect("nobody goes before all have asked");
    });
}

#[test]
fn defect_11_names_of_kinds_that_are_not_known_are_refused() {
    for name in ["", "dist", "dist_foo", "horovod", "byteps", "locally", "my_local_store"] {
        assert_eq!(KvStore::local(name).expect_err("nobody knows it").kind(), ErrorKind::InvalidArgument, "{name}");
    }
}

#[test]
fn defect_12_what_an_updater_says_reaches_who_pushed() {
    let update = |_: &Key, sum: &Tensor, value: &mut Tensor| match sum.to_vec::<f32>()?[0] {
        2.0 => Err(Error::new(ErrorKind::InvalidArgument, "two is too many")),
        4.0 => panic!("four"),
        _ => value.reduce_from(sheave_tensor::Op::Sum, sum),
    };
    on_servers(Kind::DistSync, ServerConfig::default().function("picky", update), |store| {
        store.init(&pair("w", 3, 0.0)).expect("it is new");
        store.set_updater(Updater::Named("picky".into())).expect("it is offered");
        store.barrier().expect("all come");
        for (value, text) in [(1.0, "two is too many"), (2.0, "panicked")] {
            let error = wait(&push(store, "w", 3, value)).expect_err("it fails on the server");
            assert!(error.to_string().contains(text), "{error}");
        }
        wait(&push(store, "w", 3, 4.0)).expect("the server lives");
        assert_eq!(get(store, "w", 3), [8.0; 3]);
    });
}

#[test]
fn defect_13_several_arrays_that_were_not_initialised_are_an_error() {
    on_each(Kind::DistSync, |store| {
        let pairs: Vec<_> = (0..3).map(|_| (Key::from("w"), tensor(3, 1.0))).collect();
        assert_eq!(kind_of(store.push(&pairs)), ErrorKind::NotFound);
        assert_eq!(kind_of(store.push_pull(&pairs, &pairs[..1])), ErrorKind::NotFound);
    });
}

#[test]
fn defect_14_large_numbers_are_keys_of_their_own() {
    on_each(Kind::DistSync, |store| {
        let keys =
            [0, 1, 215_326, 300_000, 1 << 31, (1 << 31) + 1, 1 << 32, (1 << 32) + 1, 1 << 40, i64::MAX, i64::MIN];
        let pairs: Vec<_> = keys.iter().enumerate().map(|(at, key)| (Key::from(*key), tensor(3, at as f32))).collect();
        store.init(&pairs).expect("they are all new");
        for (at, key) in keys.into_iter().enumerate() {
            assert_eq!(get(store, key, 3), [at as f32; 3], "{key}");
        }
    });
}

/// Fewer bytes move on servers than come: `real_copies` counts them. Here: one key does not wait for another.
#[test]
fn defect_17_a_key_that_waits_holds_up_no_other() {
    on_servers(Kind::DistSync, ServerConfig::default(), |store| {
        store.init(&[("w".into(), tensor(5000, 0.0)), ("v".into(), tensor(5000, 3.0))]).expect("they are new");
        let waits = (store.rank() == 0).then(|| push(store, "w", 5000, 1.0));
        assert_eq!(get(store, "v", 5000), vec![3.0; 5000]);
        store.barrier().expect("all come");
        assert!(waits.as_ref().is_none_or(|push| !push.is_done()), "the other one has not pushed");
        store.barrier().expect("all come");
        wait(&waits.unwrap_or_else(|| push(store, "w", 5000, 1.0))).expect("both have pushed");
    });
}

#[test]
fn defect_18_sums_are_made_in_the_order_of_ranks() {
    job_of(2, 3, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistSync);
        store.init(&pair("w", 5000, 0.0)).expect("it is new");
        let values = [1e8f32, 3.0, -1e8];
        let expected = values.iter().copied().reduce(|sum, value| sum + value).expect("three");
        assert_ne!(expected, 3.0, "the order matters");
        for _ in 0..20 {
            wait(&push(&store, "w", 5000, values[store.rank() as usize])).expect("all push");
            assert_eq!(get(&store, "w", 5000), vec![expected; 5000]);
            store.barrier().expect("all come");
        }
    });
}

#[test]
fn defect_19_a_start_that_fails_says_who_is_missing() {
    let mut alone = config(Role::Scheduler, None, roles(1, 2), free_port(), Transport::Shm);
    alone.join_timeout = Duration::from_millis(200);
    let error = Mesh::join(alone).expect_err("nobody else comes");
    let text = error.to_string();
    assert!(
        error.kind() == ErrorKind::DeadlineExceeded && text.contains("server") && text.contains("worker"),
        "{text}"
    );
}

#[test]
fn defect_20_a_barrier_counts_workers_and_not_requests() {
    on_servers(Kind::DistSync, ServerConfig::default(), |store| {
        let come = || {
            let store = store.clone();
            std::thread::spawn(move || store.barrier())
        };
        store.init(&pair("w", 3, 0.0)).expect("it is new");
        let early: Vec<_> = (0..2).filter(|_| store.rank() == 0).map(|_| come()).collect();
        // The other one comes when it has seen this push, which goes out after both requests.
        let first = push(store, "w", 3, 1.0);
        assert!(early.iter().all(|thread| !thread.is_finished()), "one worker is not all");
        wait(&first).expect("both push");
        let late: Vec<_> = (0..2).filter(|_| store.rank() == 1).map(|_| come()).collect();
        early.into_iter().chain(late).for_each(|thread| thread.join().expect("no panic").expect("all have come twice"));
    });
}

#[test]
fn defect_21_ranks_are_those_that_were_asked_for() {
    let ranks = job_of(1, 4, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistSync);
        store.barrier().expect("all come");
        (store.rank(), mesh.me().introduction.wanted_rank)
    });
    assert_eq!(ranks, (0..4).map(|rank| (rank, Some(rank))).collect::<Vec<_>>());
}

/// `job_of` ends only when its servers do.
#[test]
fn defect_22_servers_end_when_the_last_worker_has_gone() {
    on_servers(Kind::DistSync, ServerConfig::default(), |store| {
        store.init(&pair("w", 3, 0.0)).expect("it is new");
        store.set_barrier_before_exit(false);
        store.close().expect("it waits for nobody");
    });
}

#[test]
fn defect_24_keys_that_repeat_are_seen_wherever_they_are() {
    on_each(Kind::DistSync, |store| {
        let three =
            |middle: f32| [(1.into(), tensor(3, 1.0)), (2.into(), tensor(3, middle)), (1.into(), tensor(3, 1.0))];
        assert_eq!(store.init(&three(5.0)).expect_err("one comes twice").kind(), ErrorKind::AlreadyExists);
        store.init(&three(5.0)[..2]).expect("none of them was taken");
        wait(&store.push(&three(5.0)).expect("it is sent")).expect("all push");
        assert_eq!(get(store, 1, 3), [2.0 * store.group_size() as f32; 3]);
    });
}

#[test]
fn defect_25_a_stranger_is_turned_away_before_it_says_anything() {
    let port = free_port();
    let expected = Expected { schedulers: 1, servers: 0, workers: 1, ranks: 0 };
    let host = std::thread::spawn(move || {
        let mut host = config(Role::Scheduler, None, expected, port, Transport::Tcp);
        host.join_timeout = Duration::from_secs(1);
        Mesh::join(host).map(drop)
    });
    let mut stranger = config(Role::Worker, None, expected, port, Transport::Tcp);
    stranger.node.secret = common::secret("guessed by a stranger");
    let error = Mesh::join(stranger).map(drop).expect_err("it does not know the secret");
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
    assert_eq!(host.join().expect("no panic").expect_err("nobody has come").kind(), ErrorKind::DeadlineExceeded);
}

#[test]
fn defect_27_a_common_name_in_the_environment_means_nothing() {
    let said = [("DMLC_ROLE", "worker"), ("DMLC_PS_ROOT_URI", "127.0.0.1"), ("DMLC_PS_ROOT_PORT", "7000")];
    let counts = [("DMLC_NUM_SERVER", "1"), ("DMLC_NUM_WORKER", "2")];
    let read = |more: &[(&str, &str)]| {
        let all: Vec<_> = said.iter().chain(&counts).chain(more).copied().collect();
        let lookup = |name: &str| all.iter().find(|entry| entry.0 == name).map(|entry| entry.1.into());
        let config = sheave_mesh::Config::from_lookup(lookup).expect("it is well said").expect("it says something");
        (config.root, config.bind, config.expected)
    };
    assert_eq!(read(&[("PORT", "80")]), read(&[]));
    assert_eq!(read(&[("PORT", "not a port"), ("HOST", "elsewhere")]), read(&[]));
}

#[test]
fn defect_28_stores_of_several_kinds_do_not_disturb_each_other() {
    job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let (sync, loose) = (open(mesh, Kind::DistSync), open(mesh, Kind::DistAsync));
        for store in [&sync, &loose] {
            store.init(&pair("w", 5000, 0.0)).expect("it is new there");
        }
        let waits = (sync.rank() == 0).then(|| push(&sync, "w", 5000, 1.0));
        wait(&push(&loose, "w", 5000, 2.0)).expect("it waits for nobody");
        assert_eq!(get(&loose, "w", 5000), vec![2.0; 5000]);
        sync.barrier().expect("all come");
        assert!(waits.as_ref().is_none_or(|push| !push.is_done()), "it waits for the other one");
        sync.barrier().expect("all come");
        wait(&waits.unwrap_or_else(|| push(&sync, "w", 5000, 1.0))).expect("both have pushed");
        assert_eq!(get(&sync, "w", 5000), vec![2.0; 5000]);
    });
}

#[test]
fn defect_29_values_may_be_their_own_places() {
    on_each(Kind::DistSync, |store| {
        store.init(&pair("w", 5000, 0.0)).expect("it is new");
        let own = pair("w", 5000, 1.0);
        wait(&store.push_pull(&own, &own).expect("it is sent")).expect("both push");
        assert_eq!(own[0].1.to_vec::<f32>().expect("floats"), vec![store.group_size() as f32; 5000]);
    });
}

#[test]
fn defect_30_a_key_is_deleted_and_comes_back_in_another_size() {
    on_each(Kind::DistSync, |store| {
        for elements in [3, 5000, 1, 200] {
            store.init(&pair("w", elements, 4.0)).expect("it is new again");
            assert_eq!(get(store, "w", elements), vec![4.0; elements]);
            store.delete(&["w".into()]).expect("it is there");
            assert_eq!(kind_of(store.pull(&pair("w", elements, 0.0))), ErrorKind::NotFound);
        }
    });
}

/// A closure of the user's sees the sum and the value, and no thread, file or link was made for it: it runs here.
#[test]
fn defect_31_a_local_store_does_everything_on_the_thread_that_asks() {
    let store = KvStore::local("local").expect("it is known");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let function = move |_: &Key, _: &Tensor, _: &mut Tensor| {
        told.lock().expect("no panic").push(std::thread::current().id());
        Ok(())
    };
    store.set_updater(Updater::Function(Arc::new(function))).expect("it is local");
    store.init(&pair("w", 3, 0.0)).expect("it is new");
    assert!(push(&store, "w", 3, 1.0).is_done());
    assert_eq!(*seen.lock().expect("no panic"), [std::thread::current().id()]);
}
