//! What is wrong with the key-value store of MXNet, by the numbers of the list of its known defects, and that it is not
//! so here. Where a defect is looked for with real processes, the test says so and looks at the rest.

use crate::common;
use crate::common::{PART, actor as command, config, free_port, hear, job, job_of, note, roles, say, until, wait};
use half::f16;
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_mesh::{Expected, Mesh, Role};
use sheave_store::{Compression, Config, Key, Kind, KvStore, Optimizer, Rows, Rule, ServerConfig, Updater};
use sheave_tensor::{Dtype, Shape, Tensor};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
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

/// Does something as the first worker, while all others wait.
fn as_first(store: &KvStore, act: impl FnOnce()) {
    store.barrier().expect("all are there");
    if store.rank() == 0 {
        act();
    }
    store.barrier().expect("all are there");
}

/// A folder of its own, which is gone when the test has passed.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("there is room");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn defect_09_states_and_learning_rate_are_saved_and_loaded() {
    let folder = Folder::new("defect-09");
    let path = folder.0.clone();
    on_each(Kind::DistSync, move |store| {
        let file = path.join(store.kind().to_string());
        let steps = |signs: [f32; 3]| {
            signs.iter().for_each(|sign| wait(&push(store, "w", 5000, *sign)).expect("all push"));
            get(store, "w", 5000)
        };
        store.init(&pair("w", 5000, 0.0)).expect("it is new");
        as_first(store, || store.set_optimizer(Rule::adam(0.1)).expect("it is known"));
        let reached = steps([1.0, -3.0, 5.0]);
        as_first(store, || {
            store.set_learning_rate(0.25).expect("it has one");
            store.save_optimizer_states(&file, true).expect("nobody updates it");
        });
        let expected = steps([2.0, 2.0, -1.0]);
        // The same weights without the states, and then with them.
        let again = |loads: bool| {
            store.delete(&["w".into()]).expect("it is there");
            store.init(&pair("w", 5000, reached[0])).expect("it is new");
            as_first(store, || {
                store.set_learning_rate(0.5).expect("it has one");
                if loads {
                    store.load_optimizer_states(&file).expect("it was saved");
                }
            });
            assert_eq!(store.learning_rate().expect("it has one"), if loads { 0.25 } else { 0.5 });
            steps([2.0, 2.0, -1.0])
        };
        assert_ne!(again(false), expected, "states matter");
        assert_eq!(again(true), expected);
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

fn ids_of(ids: &[i64]) -> Tensor {
    Tensor::from_slice(ids, [ids.len() as u64]).expect("it fits")
}

/// One row of one byte for each id.
fn bytes_of(ids: &[i64], values: &[u8]) -> Rows {
    Rows::new(ids_of(ids), Tensor::from_slice(values, [values.len() as u64, 1]).expect("it fits")).expect("they fit")
}

fn kib_of(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find(|line| line.starts_with(name)).expect("it is there");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// Cut to 32 bits these ids would be those of other rows, or negative. Of the table few pages are touched.
#[test]
fn defect_14_row_ids_have_64_bits() {
    let before = kib_of("VmHWM");
    let act = |store: &KvStore| {
        let shape = Shape::from([(1u64 << 31) + 10, 1]);
        store.init_rows(&[("t".into(), shape, bytes_of(&[], &[]))]).expect("it is new");
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        let ids = [(1i64 << 31) + 9, 0, (1 << 31) - 1, 9, 1 << 31];
        wait(&store.push_rows(&[("t".into(), bytes_of(&ids, &[1, 2, 3, 4, 5]))]).expect("sent")).expect("all push");
        let place = Tensor::from_slice(&[77u8; 6], [6, 1]).expect("it fits");
        let wanted = ids_of(&[0, 9, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 31) + 9]);
        wait(&store.pull_rows(&[("t".into(), wanted, place.clone())]).expect("it is sent")).expect("it is there");
        let times = store.group_size() as u8;
        assert_eq!(place.to_vec::<u8>().expect("bytes"), [2, 4, 3, 5, 0, 1].map(|value| value * times));
        for id in [(1i64 << 32) + 3, (1 << 40) + 3, (1 << 31) + 10, -1] {
            assert_eq!(kind_of(store.push_rows(&[("t".into(), bytes_of(&[id], &[1]))])), ErrorKind::InvalidArgument);
        }
    };
    act(&KvStore::local("local").expect("it is known"));
    for servers in [1, 2] {
        job_of(servers, 2, Transport::Shm, ServerConfig::default(), move |mesh| act(&open(mesh, Kind::DistSync)));
    }
    let grown = kib_of("VmHWM") - before;
    assert!(grown < 1 << 20, "{grown} KiB");
}

/// Sizes of more than 32 and more than 64 bits are numbers as others are: here too large, and not small by mistake.
#[test]
fn defect_14_lengths_that_no_memory_has_are_refused() {
    on_each(Kind::DistSync, |store| {
        for (rows, columns) in [(1 << 50, 1 << 6), (1 << 32, 1 << 32), (1 << 62, 4), (u64::MAX, u64::MAX)] {
            let values = Tensor::private(Dtype::F32, [0, columns]).expect("it is empty");
            let none = Rows::new(ids_of(&[]), values);
            let outcome = none.and_then(|none| store.init_rows(&[("t".into(), Shape::from([rows, columns]), none)]));
            let kind = outcome.expect_err("it is too much").kind();
            // What only a server can know it tells who gives the values; to the others the key is none.
            let is_other = store.rank() != 0 && kind == ErrorKind::NotFound;
            assert!(kind == ErrorKind::LimitExceeded || is_other, "{rows} {columns}: {kind:?}");
        }
        // Who still asks for more than memory has would find the key that is made now, of another shape.
        store.barrier().expect("all live");
        store.init(&pair("t", 3, 1.0)).expect("nothing of it is left, and all live");
    });
}

/// Steps far below the last bit of 16-bit weights near 1.
#[test]
fn defect_15_master_copies_are_kept_exactly_if_asked_for() {
    let one = |value: f16| [(Key::from("w"), Tensor::from_slice(&[value; 5000], [5000]).expect("it fits"))];
    let rate = 2f32.powi(-14);
    on_each(Kind::DistSync, move |store| {
        let after_steps = |optimizer: Optimizer| {
            store.init(&one(f16::ONE)).expect("it is new");
            as_first(store, || store.set_optimizer(optimizer).expect("it is known"));
            for _ in 0..32 {
                wait(&store.push(&one(f16::ONE)).expect("it is sent")).expect("all push");
            }
            let place = one(f16::ZERO);
            wait(&store.pull(&place).expect("it is sent")).expect("it is there");
            store.delete(&["w".into()]).expect("it is there");
            place[0].1.to_vec::<f16>().expect("halves")
        };
        let rule = || Optimizer::from(Rule::sgd(f64::from(rate)));
        let stepped = f16::from_f32(1.0 - 32.0 * rate * store.group_size() as f32);
        assert!(stepped < f16::ONE, "the steps show");
        assert_eq!(after_steps(rule()), [f16::ONE; 5000], "off by default");
        assert_eq!(after_steps(Optimizer { multi_precision: true, ..rule() }), [stepped; 5000]);
        assert_eq!(after_steps(Rule::sgd(f64::from(rate)).into()), [f16::ONE; 5000], "off again");
    });
}

/// Says what this process plays when it was started by one of the tests here.
fn part() -> Option<String> {
    std::env::var(PART).ok()
}

#[test]
fn actor() {
    match part().as_deref() {
        Some(ALONE) => be_alone(),
        Some(REPEATED) => repeat(),
        _ => {}
    }
}

const REPEATED: &str = "repeated";
/// Operations of each of two workers before the first look, and between both.
const EARLY: usize = 20_000;
const LATE: usize = 60_000;

/// A whole job in one process, so that what grows anywhere is seen.
fn repeat() {
    let kib = job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistSync);
        let (value, place) = (pair("w", 16, 1.0), pair("w", 16, 0.0));
        store.init(&place).expect("it is new");
        let round = || wait(&store.push_pull(&value, &place).expect("it is sent")).expect("both push");
        let look_after = |rounds: usize| {
            (0..rounds).for_each(|_| round());
            store.barrier().expect("both come");
            kib_of("VmRSS")
        };
        let (before, after) = (look_after(EARLY), look_after(LATE));
        assert_eq!(place[0].1.to_vec::<f32>().expect("floats"), [2.0; 16]);
        after.saturating_sub(before)
    });
    say(&format!("grown {}", kib[0]));
}

/// A table with one word for each request would be nearly a megabyte. Processes apart, more operations and more sorts
/// of them are in `real_soak`.
#[test]
fn defect_16_requests_leave_nothing_behind() {
    let job = job();
    let child = job.spawn(command(REPEATED, 0, Transport::Shm)).expect("a process");
    let grown: u64 = hear(&child, "grown").parse().expect("a number");
    note(&format!("{LATE} operations of two workers: {grown} KiB"));
    common::ended_well(std::slice::from_ref(&child));
    assert!(grown < 384, "{grown} KiB");
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
fn defect_23_an_init_of_many_keys_is_as_many_messages_as_one_of_one_key() {
    let sent = job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = open(mesh, Kind::DistSync);
        let init = |keys: std::ops::Range<i64>| {
            let before = mesh.node().counts().messages_sent;
            let pairs: Vec<_> = keys.map(|key| (Key::from(key), tensor(16, key as f32))).collect();
            store.init(&pairs).expect("they are new");
            mesh.node().counts().messages_sent - before
        };
        let sent = (init(0..1), init(1..101));
        assert_eq!(get(&store, 77, 16), [77.0; 16]);
        store.barrier().expect("all come");
        sent
    });
    for (one, hundred) in sent {
        // One key is on one server of two, and now and then comes a beat of the engine.
        assert!(hundred <= 2 * one + 6, "{one} messages for one key, {hundred} for a hundred");
    }
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
fn defect_26_a_compressed_gradient_is_as_long_as_its_codes() {
    const ELEMENTS: usize = 1_000_000;
    let codes = [
        (Compression::None, 32),
        (Compression::TwoBit { threshold: 0.5 }, 2),
        (Compression::OneBit { threshold: 0.5 }, 1),
        (Compression::Fp16, 16),
        (Compression::Bf16, 16),
    ];
    job_of(2, 2, Transport::Tcp, ServerConfig::default(), move |mesh| {
        let store = open(mesh, Kind::DistSync);
        store.init(&pair("w", ELEMENTS, 0.0)).expect("it is new");
        for (compression, bits) in codes {
            store.set_gradient_compression(compression).expect("it has a meaning");
            let before = mesh.node().counts().bytes_streamed;
            wait(&push(&store, "w", ELEMENTS, 1.0)).expect("both push");
            let streamed = mesh.node().counts().bytes_streamed - before;
            let codes = (ELEMENTS * bits / 8) as u64;
            // Each slice is a little longer, up to a word of its codes.
            let most = codes + codes / 100;
            assert!((codes..=most).contains(&streamed), "{compression:?}: {streamed} bytes for {codes} of codes");
        }
    });
}

#[test]
fn defect_27_a_common_name_in_the_environment_means_nothing() {
    let said = [("DMLC_ROLE", "worker"), ("DMLC_PS_ROOT_URI", "127.0.0.1"), ("DMLC_PS_ROOT_PORT", "7000")];
    let counts = [("DMLC_NUM_SERVER", "1"), ("DMLC_NUM_WORKER", "2")];
    let read = |more: &[(&str, &str)]| {
        let all: Vec<_> = said.iter().chain(&counts).chain(more).copied().collect();
        let lookup = |name: &str| all.iter().find(|entry| entry.0 == name).map(|entry| entry.1.into());
        let config = sheave_mesh::Config::from_lookup(lookup).expect("it is well said").expect("it says something");
        (config.meeting.to_string(), config.bind, config.expected)
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

const ALONE: &str = "alone";

/// What a process has that others could see, or that runs beside what is asked for.
#[derive(Debug, PartialEq)]
struct Surroundings {
    descriptors: BTreeSet<(String, PathBuf)>,
    threads: usize,
    shared_memory: Vec<String>,
    /// A hash.
    environment: u64,
    signals: Vec<String>,
    files: usize,
}

impl Surroundings {
    fn now() -> Self {
        let entries = |path: &str| std::fs::read_dir(path).expect("it is there").map(|entry| entry.expect("an entry"));
        let descriptor = |entry: std::fs::DirEntry| {
            // The one of the listing itself is gone by now.
            let target = std::fs::read_link(entry.path()).ok().filter(|target| !target.starts_with("/proc"))?;
            Some((entry.file_name().to_string_lossy().into_owned(), target))
        };
        let lines = |path: &str, is_meant: fn(&str) -> bool| -> Vec<String> {
            let text = std::fs::read_to_string(path).expect("this is Linux");
            text.lines().filter(|line| is_meant(line)).map(str::to_owned).collect()
        };
        let mut hasher = DefaultHasher::new();
        std::env::vars_os().for_each(|variable| variable.hash(&mut hasher));
        Self {
            descriptors: entries("/proc/self/fd").filter_map(descriptor).collect(),
            threads: entries("/proc/self/task").count(),
            shared_memory: lines("/proc/self/maps", |line| line.contains("memfd:") || line.contains("/dev/shm")),
            environment: hasher.finish(),
            signals: lines("/proc/self/status", |line| line.starts_with("SigCgt") || line.starts_with("SigIgn")),
            files: entries(".").count(),
        }
    }
}

/// Runs in an empty folder, which is also that of temporary files and home.
fn be_alone() {
    let at_first = Surroundings::now();
    let is_socket = |(_, target): &(String, PathBuf)| target.to_string_lossy().starts_with("socket");
    assert!(!at_first.descriptors.iter().any(is_socket), "{:?}", at_first.descriptors);
    // One of them is the test's.
    assert!(at_first.threads <= 2 && at_first.shared_memory.is_empty() && at_first.files == 0, "{at_first:?}");
    let stores = ["local", "device"].map(|kind| KvStore::local(kind).expect("it is known"));
    assert_eq!(Surroundings::now(), at_first);
    for store in &stores {
        store.init(&pair("w", 5000, 0.0)).expect("it is new");
        store.set_optimizer(Rule::adam(0.1)).expect("it is known");
        let place = pair("w", 5000, 0.0);
        wait(&store.push_pull(&pair("w", 5000, 1.0), &place).expect("it is sent")).expect("it is there");
        store.barrier().expect("nobody else comes");
    }
    // Sums are made in pooled memory, which has no name that others could open.
    let mut after = Surroundings::now();
    after.descriptors.retain(|(_, target)| !target.to_string_lossy().starts_with("/memfd:"));
    after.shared_memory.clear();
    assert_eq!(after, at_first);
    say("alone");
}

/// Neither the library in a program nor a local store makes a thread, a socket, a file or a handler of signals, or
/// changes the environment.
#[test]
fn defect_31_what_is_linked_or_local_leaves_the_process_as_it_was() {
    let (job, folder) = (job(), Folder::new("defect-31"));
    let homes = ["HOME", "TMPDIR", "XDG_RUNTIME_DIR"].map(|name| (name, folder.0.clone()));
    let child = job.spawn(command(ALONE, 0, Transport::Shm).envs(homes).current_dir(&folder.0)).expect("a process");
    hear(&child, "alone");
    until("it has ended", || child.exit().is_some());
    assert!(child.exit().is_some_and(|exit| exit.status.success()), "{}", child.stderr_lines().join("\n"));
}
