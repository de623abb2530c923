//! Workers that have fewer batches than others, that read what is stale, that close the store, and keys that go.

use crate::common;
use crate::common::{job_of, together, wait};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Work};
use sheave_mesh::{Expected, Mesh};
use sheave_store::{Config, Key, Kind, KvStore, ServerConfig, Updater, run_server};
use sheave_tensor::Tensor;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// The small key is whole on one server, the big one is cut over all.
const KEYS: [(&str, usize); 2] = [("small", 3), ("big", 5000)];

fn full(elements: usize, value: f32) -> Tensor {
    Tensor::from_slice(&vec![value; elements], [elements as u64]).expect("it fits")
}

fn pairs(value: f32) -> Vec<(Key, Tensor)> {
    KEYS.iter().map(|(key, elements)| (Key::from(*key), full(*elements, value))).collect()
}

fn open(mesh: &Mesh, config: impl Into<Config>) -> KvStore {
    KvStore::open(mesh, Config { cut_elements: 1000, slice_elements: 700, ..config.into() }).expect("all servers serve")
}

/// The least and the most of what both keys hold.
fn range(store: &KvStore) -> (f32, f32) {
    let places = pairs(f32::NAN);
    wait(&store.pull(&places).expect("it is sent")).expect("they are there");
    let values: Vec<f32> = places.iter().flat_map(|(_, place)| place.to_vec::<f32>().expect("floats")).collect();
    assert!(values.iter().all(|value| !value.is_nan()), "all of it is written");
    (values.iter().copied().fold(f32::MAX, f32::min), values.iter().copied().fold(f32::MIN, f32::max))
}

/// What both keys hold, which is one number.
fn read(store: &KvStore) -> f32 {
    let (least, most) = range(store);
    assert!(least == most, "slices of different rounds: {least} and {most}");
    least
}

fn push(store: &KvStore, value: f32) -> Work<()> {
    store.push(&pairs(value)).expect("it is sent")
}

fn is_waiting(work: &Work<()>) -> bool {
    work.wait_timeout(Duration::from_millis(20)).is_err_and(|error| error.kind() == ErrorKind::DeadlineExceeded)
}

#[test]
fn workers_with_fewer_batches_are_not_waited_for() {
    for (servers, transport) in [(1, Transport::Shm), (2, Transport::Shm), (3, Transport::Tcp)] {
        for kind in [Kind::DistSync, Kind::DistSsp, Kind::DistAsync] {
            job_of(servers, 3, transport, ServerConfig::default(), move |mesh| {
                let store = open(mesh, Config { staleness: 0, ..Config::from(kind) });
                store.init(&pairs(0.0)).expect("they are new");
                store.set_updater(Updater::Sum).expect("servers add");
                store.barrier().expect("all are there");
                let mut expected = 0.0;
                for epoch in 0..3 {
                    // One batch, two, or three; another worker has the most of them each time.
                    let batches = |rank: u32| 1 + (rank + epoch) % 3;
                    let works: Vec<_> = (0..batches(store.rank())).map(|_| push(&store, 1.0)).collect();
                    let done = store.done().expect("it is the first");
                    // Who is done still meets the others.
                    store.barrier().expect("all come");
                    works.iter().for_each(|work| wait(work).expect("others go on without those who are done"));
                    wait(&done).expect("all are done");
                    expected += (0..3).map(batches).sum::<u32>() as f32;
                    assert_eq!(read(&store), expected);
                    store.barrier().expect("all have read");
                }
                // All are waited for again.
                let work = push(&store, 1.0);
                wait(&work).expect("all push");
                store.barrier().expect("all have pushed");
                assert!(read(&store) == expected + 3.0);
                store.barrier().expect("all have read");
            });
        }
    }
}

#[test]
fn a_worker_that_is_done_may_leave() {
    job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistSync);
        store.init(&pairs(0.0)).expect("they are new");
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        wait(&push(&store, 1.0)).expect("both push");
        if store.rank() == 1 {
            let done = store.done().expect("it is the first");
            // The other one never says so.
            assert_eq!(store.push(&pairs(1.0)).map(drop).expect_err("it is done").kind(), ErrorKind::InvalidArgument);
            assert_eq!(store.done().map(drop).expect_err("it is done").kind(), ErrorKind::InvalidArgument);
            assert!(!done.is_done());
            // It leaves at once: what is still on a link is not overtaken by the news of that.
            return;
        }
        for _ in 0..5 {
            wait(&push(&store, 1.0)).expect("the other one is not waited for");
        }
        common::until("the other one has left", || mesh.deaths().len() == 1);
        wait(&push(&store, 1.0)).expect("the other one is not waited for");
        assert_eq!(read(&store), 8.0);
    });
}

#[test]
fn nobody_reads_what_is_too_stale() {
    static CLOCKS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
    const STEPS: u64 = 30;
    for staleness in [0, 1, 4] {
        CLOCKS.iter().for_each(|clock| clock.store(0, SeqCst));
        job_of(2, 3, Transport::Shm, ServerConfig::default(), move |mesh| {
            let store = open(mesh, Config { staleness, ..Config::from(Kind::DistSsp) });
            store.init(&pairs(0.0)).expect("they are new");
            store.set_updater(Updater::Sum).expect("servers add");
            store.barrier().expect("all are there");
            let rank = store.rank() as usize;
            for step in 1..=STEPS {
                wait(&push(&store, 1.0)).expect("it is merged at once");
                CLOCKS[rank].store(step, SeqCst);
                let seen = f64::from(range(&store).0);
                // What is seen has all of the own pushes, and of each other worker those up to the bound.
                let least = step + 2 * step.saturating_sub(staleness);
                assert!(seen >= least as f64, "step {step}: {seen} is less than {least}");
                for clock in &CLOCKS {
                    // A push that was seen here is noted by its worker a moment later: one less.
                    let other = clock.load(SeqCst) + 1;
                    assert!(other + staleness >= step, "{other} is more than {staleness} behind {step}");
                }
            }
            store.close().expect("all come");
        });
    }
}

#[test]
fn a_pull_waits_just_until_the_slowest_has_come_near() {
    job_of(1, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Config { staleness: 2, ..Config::from(Kind::DistSsp) });
        store.init(&pairs(0.0)).expect("they are new");
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        if store.rank() == 0 {
            for _ in 0..2 {
                wait(&push(&store, 1.0)).expect("it is merged at once");
                read(&store);
            }
            wait(&push(&store, 1.0)).expect("a push never waits");
            let place = pairs(0.0);
            let pull = store.pull(&place).expect("it is sent");
            assert!(is_waiting(&pull), "the other one has not pushed at all");
            store.barrier().expect("all are there");
            wait(&pull).expect("the other one has pushed once");
            assert_eq!(place[0].1.to_vec::<f32>().expect("floats"), [13.0; 3]);
        } else {
            store.barrier().expect("all are there");
            wait(&push(&store, 10.0)).expect("it is merged at once");
        }
        store.barrier().expect("all are through");
    });
}

#[test]
fn keys_are_deleted_and_made_anew() {
    let check = |store: &KvStore| {
        for round in 1..4u8 {
            let elements = 1000 * usize::from(round);
            let pair = |value: f32| [(Key::from("w"), full(elements, value))];
            store.init(&pair(f32::from(round))).expect("it is new again");
            assert_eq!(store.init(&pair(0.0)).expect_err("it is there").kind(), ErrorKind::AlreadyExists);
            let place = pair(0.0);
            wait(&store.pull(&place).expect("it is sent")).expect("it is there");
            assert_eq!(place[0].1.to_vec::<f32>().expect("floats"), vec![f32::from(round); elements]);
            // What is outstanding is waited for.
            drop(store.push(&pair(5.0)).expect("it is sent"));
            store.delete(&["w".into()]).expect("it is there");
            let pulled = store.pull(&place).and_then(|work| wait(&work));
            assert_eq!(pulled.expect_err("it is gone").kind(), ErrorKind::NotFound);
            assert_eq!(store.delete(&["w".into()]).expect_err("it is gone").kind(), ErrorKind::NotFound);
        }
        // Another dtype, and a neighbour that is not touched.
        store.init(&[("v".into(), full(9, 1.0))]).expect("it is new");
        store.init(&[("w".into(), Tensor::from_slice(&[7i64; 8], [8]).expect("it fits"))]).expect("it is new");
        store.delete(&["w".into()]).expect("it is there");
        let place = [(Key::from("v"), full(9, 0.0))];
        wait(&store.pull(&place).expect("it is sent")).expect("it is there");
        assert_eq!(place[0].1.to_vec::<f32>().expect("floats"), [1.0; 9]);
    };
    check(&KvStore::local("local").expect("it is known"));
    for servers in [1, 3] {
        job_of(servers, 2, Transport::Shm, ServerConfig::default(), move |mesh| {
            check(&open(mesh, Kind::DistSync));
        });
    }
}

#[test]
fn waiting_for_keys_waits_for_their_operations_alone() {
    job_of(1, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistSync);
        store.init(&pairs(0.0)).expect("they are new");
        if store.rank() == 1 {
            let (small, big) = (pairs(1.0)[..1].to_vec(), pairs(1.0)[1..].to_vec());
            let first = store.push(&small).expect("it is sent");
            store.barrier().expect("all are there");
            store.wait(&["small".into()]).expect("both have pushed it");
            assert!(first.is_done());
            let second = store.push(&big).expect("it is sent");
            store.wait(&["small".into()]).expect("nothing is outstanding");
            assert!(!second.is_done(), "the other one has not pushed it");
            store.barrier().expect("all are there");
            store.wait(&[]).expect("both have pushed it");
            assert!(second.is_done());
        } else {
            drop(store.push(&pairs(1.0)[..1]).expect("it is sent"));
            store.barrier().expect("all are there");
            store.barrier().expect("all are there");
            drop(store.push(&pairs(1.0)[1..]).expect("it is sent"));
        }
        let unknown = store.wait(&["nobody's".into()]).expect_err("it was not initialised");
        assert_eq!(unknown.kind(), ErrorKind::NotFound);
        store.close().expect("all come");
    });
}

#[test]
fn a_closed_store_is_waited_for_no_more_and_forgotten() {
    job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistSync);
        store.init(&pairs(0.0)).expect("they are new");
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        if store.rank() == 0 {
            store.set_barrier_before_exit(false);
            store.close().expect("nobody is waited for");
            assert_eq!(store.push(&pairs(1.0)).map(drop).expect_err("it is closed").kind(), ErrorKind::Closed);
            assert_eq!(store.barrier().expect_err("it is closed").kind(), ErrorKind::Closed);
            store.close().expect("again it does nothing");
        } else {
            wait(&push(&store, 1.0)).expect("the other one is not waited for");
            let error = store.barrier().expect_err("the other one will not come");
            assert!(error.kind() == ErrorKind::Closed && error.to_string().contains("worker 0"), "{error}");
            assert_eq!(read(&store), 1.0);
            store.set_barrier_before_exit(false);
            store.close().expect("the last one");
        }
        // Far more stores than a job may have at once.
        for _ in 0..1100 {
            let next = open(mesh, Kind::DistSync);
            next.close().expect("both close it");
        }
    });
}

#[test]
fn workers_other_than_the_first_may_give_empty_values() {
    job_of(2, 3, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistSync);
        let empty = || Tensor::from_slice::<f32>(&[], [0]).expect("it fits");
        let values = match store.rank() {
            0 => pairs(4.0),
            _ => KEYS.iter().map(|(key, _)| (Key::from(*key), empty())).collect(),
        };
        store.init(&values).expect("they are new");
        assert_eq!(read(&store), 4.0);
    });
}

/// Far less than a hang, and enough for a loaded machine.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn f63_workers_with_uneven_numbers_of_steps_close_the_store() {
    for (kind, transport) in [(Kind::DistSync, Transport::Shm), (Kind::DistSsp, Transport::Tcp)] {
        job_of(2, 2, transport, ServerConfig::default(), move |mesh| {
            let store = open(mesh, Config { staleness: 0, ..Config::from(kind) });
            store.init(&pairs(0.0)).expect("they are new");
            store.set_updater(Updater::Sum).expect("servers add");
            store.barrier().expect("all are there");
            let places = pairs(f32::NAN);
            for step in 0..3 + store.rank() {
                let work = store.push_pull(&pairs(1.0), &places).expect("it is sent");
                work.wait_timeout(SOON).unwrap_or_else(|error| panic!("step {step}: {error}"));
            }
            let last = places[1].1.to_vec::<f32>().expect("floats");
            assert!(store.rank() == 0 || last == [7.0; 5000], "{:?}", &last[..3]);
            store.close().expect("all come");
            assert_eq!(store.push(&pairs(1.0)).map(drop).expect_err("it is closed").kind(), ErrorKind::Closed);
        });
    }
}

#[test]
fn f63_what_is_outstanding_at_the_close_waits_for_nobody_who_closes() {
    job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistSync);
        store.init(&pairs(0.0)).expect("they are new");
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        // Each has pushed once more to one key than the other has.
        wait(&push(&store, 1.0)).expect("all push");
        let own = &pairs(1.0)[store.rank() as usize..][..1];
        let more = store.push(own).expect("it is sent");
        assert!(is_waiting(&more), "the other one has not pushed it");
        store.barrier().expect("all are there");
        let (closing, hears) = std::sync::mpsc::channel();
        let closer = store.clone();
        std::thread::spawn(move || closing.send(closer.close()));
        hears.recv_timeout(SOON).expect("nobody waits for the other").expect("all come");
        more.wait_timeout(SOON).expect("it counts");
    });
}

#[test]
fn f57_a_job_without_servers_says_at_once_what_is_missing() {
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        let opened = KvStore::open(&mesh, Kind::DistSync).map(drop).expect_err("there are no servers");
        let served = run_server(&mesh, ServerConfig::default()).expect_err("nobody would ever come");
        for error in [opened, served] {
            let text = error.to_string();
            assert!(error.kind() == ErrorKind::InvalidArgument && text.contains("-s 1"), "{text}");
        }
        mesh.leave().expect("both leave");
    });
}
