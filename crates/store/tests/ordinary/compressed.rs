//! Compressed gradients through a whole store, against plain loops that keep a residual for every worker.

use crate::common::{job_of, wait};
use sheave_base::ErrorKind;
use sheave_base::config::Transport;
use sheave_store::{Compression, Config, Key, Kind, KvStore, Options, ServerConfig, Updater};
use sheave_tensor::Tensor;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Small and packed; cut over the servers; in several slices, none of them a whole number of words.
const KEYS: [(&str, usize); 3] = [("small", 37), ("cut", 1211), ("big", 90_001)];
const ROUNDS: usize = 5;

fn tensor(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len() as u64]).expect("it fits")
}

/// The gradient of a worker in a round: values on both sides of every threshold, and on it.
fn gradient(elements: usize, worker: usize, round: usize) -> Vec<f32> {
    (0..elements).map(|at| ((at * 7 + worker * 13 + round * 29) % 41) as f32 / 20.0 - 1.0).collect()
}

/// What a value decodes to, by the definition, and what is left of it.
fn coded(code: Compression, value: f32, residual: &mut f32) -> f32 {
    match code {
        Compression::TwoBit { threshold } => {
            *residual += value;
            let sent = match *residual {
                r if r >= threshold => threshold,
                r if r <= -threshold => -threshold,
                _ => 0.0,
            };
            *residual -= sent;
            sent
        }
        Compression::OneBit { threshold } => {
            *residual += value;
            let sent = if *residual > threshold { 1.0 } else { -1.0 };
            *residual -= sent;
            sent
        }
        Compression::Fp16 => half::f16::from_f32(value).to_f32(),
        Compression::Bf16 => half::bf16::from_f32(value).to_f32(),
        Compression::None => value,
    }
}

/// The stored value after all rounds, begun at 0.25: sums in the order of the ranks.
fn oracle(code: Compression, elements: usize, workers: usize) -> Vec<f32> {
    let mut stored = vec![0.25f32; elements];
    let mut residuals = vec![vec![0.0f32; elements]; workers];
    for round in 0..ROUNDS {
        let gradients: Vec<Vec<f32>> = (0..workers).map(|worker| gradient(elements, worker, round)).collect();
        for at in 0..elements {
            let sent = |worker: usize, residuals: &mut Vec<Vec<f32>>| {
                coded(code, gradients[worker][at], &mut residuals[worker][at])
            };
            let first = sent(0, &mut residuals);
            stored[at] += (1..workers).fold(first, |sum, worker| sum + sent(worker, &mut residuals));
        }
    }
    stored
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn codes() -> [Compression; 6] {
    let with = |code: Compression, threshold| code.with_threshold(threshold).expect("it has a meaning");
    let (one, two) = (Compression::parse("1bit").expect("known"), Compression::parse("2bit").expect("known"));
    [Compression::None, Compression::Fp16, Compression::Bf16, with(one, 0.0), with(two, 0.5), with(two, 0.3)]
}

#[test]
fn stores_hold_what_the_codes_say_bit_for_bit() {
    for (servers, workers, transport) in [(1, 1, Transport::Shm), (2, 3, Transport::Shm), (3, 2, Transport::Tcp)] {
        for code in codes() {
            job_of(servers, workers, transport, ServerConfig::default(), move |mesh| {
                let config = Config { cut_elements: 1000, slice_elements: 20_011, ..Config::from(Kind::DistSync) };
                let store = KvStore::open(mesh, config).expect("all servers serve");
                store.set_gradient_compression(code).expect("it has a meaning");
                let pairs = |value: f32| -> Vec<(Key, Tensor)> {
                    KEYS.iter().map(|(key, elements)| (Key::from(*key), tensor(&vec![value; *elements]))).collect()
                };
                // The first values are not compressed.
                store.init(&pairs(0.25)).expect("they are new");
                store.set_updater(Updater::Sum).expect("servers add");
                store.barrier().expect("all are there");
                let places = pairs(0.0);
                for round in 0..ROUNDS {
                    let rank = store.rank() as usize;
                    let values: Vec<_> = KEYS
                        .iter()
                        .map(|(key, elements)| (Key::from(*key), tensor(&gradient(*elements, rank, round))))
                        .collect();
                    wait(&store.push_pull(&values, &places).expect("it is sent")).expect("all push");
                }
                for ((key, elements), (_, place)) in KEYS.iter().zip(&places) {
                    let expected = oracle(code, *elements, workers as usize);
                    let is = place.to_vec::<f32>().expect("floats");
                    assert!(bits(&is) == bits(&expected), "{code} of {key} on {servers} servers");
                }
            });
        }
    }
}

#[test]
fn equal_keys_are_summed_before_they_are_coded() {
    job_of(1, 1, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = KvStore::open(mesh, Kind::DistSync).expect("all servers serve");
        store.set_gradient_compression(Compression::parse("2bit").expect("known")).expect("it has a meaning");
        store.init(&[("w".into(), tensor(&[0.0; 2]))]).expect("it is new");
        let place = [(Key::from("w"), tensor(&[9.0; 2]))];
        // The figures of MXNet 1.9.1: .3 and .6 of two devices decode to 0.5, and with what is left to 0.5 again.
        for _ in 0..2 {
            let values = [("w".into(), tensor(&[0.3, 0.1])), ("w".into(), tensor(&[0.6, 0.1]))];
            wait(&store.push_pull(&values, &place).expect("it is sent")).expect("it is alone");
            assert_eq!(place[0].1.to_vec::<f32>().expect("floats"), [0.5, 0.0]);
        }
    });
}

#[test]
fn values_are_pulled_in_halves_where_asked() {
    job_of(2, 2, Transport::Tcp, ServerConfig::default(), |mesh| {
        let config = Config { cut_elements: 1000, slice_elements: 20_011, ..Config::from(Kind::DistSync) };
        let store = KvStore::open(mesh, config).expect("all servers serve");
        let values = |elements: usize| gradient(elements, 3, 4).iter().map(|value| value / 3.0).collect::<Vec<_>>();
        let pairs = || KEYS.map(|(key, elements)| (Key::from(key), tensor(&values(elements))));
        store.init(&pairs()).expect("they are new");
        store.init(&[("n".into(), Tensor::from_slice(&[1i64 << 40], [1]).expect("it fits"))]).expect("it is new");
        for code in [Compression::Bf16, Compression::Fp16, Compression::None] {
            store.set_pull_compression(code).expect("it fits values");
            let mut places: Vec<_> =
                KEYS.iter().map(|(key, elements)| (Key::from(*key), tensor(&vec![9.0; *elements]))).collect();
            places.push(("n".into(), Tensor::from_slice(&[0i64], [1]).expect("it fits")));
            wait(&store.pull(&places).expect("it is sent")).expect("they are there");
            for ((_, elements), (_, place)) in KEYS.iter().zip(&places) {
                let expected: Vec<f32> = values(*elements).iter().map(|value| coded(code, *value, &mut 0.0)).collect();
                assert!(bits(&place.to_vec::<f32>().expect("floats")) == bits(&expected), "{code}");
            }
            assert_eq!(places[3].1.to_vec::<i64>().expect("a number"), [1 << 40], "only f32 is rounded");
        }
        for code in [codes()[3], codes()[4]] {
            assert_eq!(store.set_pull_compression(code).expect_err("a rest").kind(), ErrorKind::Unsupported);
        }
    });
}

#[test]
fn a_key_may_have_a_code_of_its_own() {
    job_of(1, 1, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = KvStore::open(mesh, Kind::DistAsync).expect("all servers serve");
        let pairs = |value: f32| [("a", value), ("b", value)].map(|(key, value)| (Key::from(key), tensor(&[value])));
        store.init(&pairs(0.0)).expect("they are new");
        store.init(&[("n".into(), Tensor::from_slice(&[1i64], [1]).expect("it fits"))]).expect("it is new");
        let two = Compression::parse("2bit").expect("known");
        store.set_gradient_compression_of(&["a".into()], two).expect("it is f32");
        let places = pairs(9.0);
        wait(&store.push_pull(&pairs(0.75), &places).expect("it is sent")).expect("it is alone");
        let read = |at: usize| places[at].1.to_vec::<f32>().expect("floats")[0];
        assert_eq!((read(0), read(1)), (0.5, 0.75));
        // Another code begins anew: the quarter that was left is of no more account.
        store.set_gradient_compression_of(&["a".into()], two.with_threshold(0.25).expect("fine")).expect("it is f32");
        wait(&store.push_pull(&pairs(0.2), &places).expect("it is sent")).expect("it is alone");
        assert_eq!((read(0), read(1)), (0.0, 0.2));
        let refused = store.set_gradient_compression_of(&["n".into()], two).expect_err("it is of i64");
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        let bad = store.set_gradient_compression(Compression::TwoBit { threshold: 0.0 }).expect_err("no meaning");
        assert_eq!(bad.kind(), ErrorKind::InvalidArgument);
        // Keys that have no code go as they are.
        store.set_gradient_compression(two).expect("it has a meaning");
        let number = [(Key::from("n"), Tensor::from_slice(&[7i64], [1]).expect("it fits"))];
        wait(&store.push(&number).expect("it is sent")).expect("it is alone");
    });
}

/// A store of one key that is coded and two that are not, one that is packed and one that is not; servers add.
fn with_plain_keys(mesh: &sheave_mesh::Mesh, kind: Kind) -> KvStore {
    let store = KvStore::open(mesh, kind).expect("all servers serve");
    let zeros = |key: &str, elements| (Key::from(key), tensor(&vec![0.0; elements]));
    store.init(&[zeros("w", 3), zeros("packed", 3), zeros("large", LARGE)]).expect("they are new");
    store.set_updater(Updater::Sum).expect("servers add");
    store.set_gradient_compression_of(&["w".into()], half_steps()).expect("it is f32");
    store.barrier().expect("all are there");
    store
}

/// Elements of a tensor that travels by itself.
const LARGE: usize = 20_000;

/// What is sent is 0.5 or nothing.
fn half_steps() -> Compression {
    Compression::TwoBit { threshold: 0.5 }
}

fn one(value: f32) -> [(Key, Tensor); 1] {
    [("w".into(), tensor(&[value; 3]))]
}

fn stored(store: &KvStore) -> f32 {
    let place = one(9.0);
    wait(&store.pull(&place).expect("it is sent")).expect("it is there");
    let values = place[0].1.to_vec::<f32>().expect("floats");
    assert_eq!(values, [values[0]; 3]);
    values[0]
}

/// Pushes the key that is coded in operations that are refused, because another tensor of theirs is being written to.
fn push_in_vain(store: &KvStore, value: f32) {
    let other = |key: &str, elements| [(Key::from(key), tensor(&vec![1.0; elements]))];
    for priority in [0, 5] {
        let options = Options { priority };
        for (key, elements) in [("packed", 3), ("large", LARGE)] {
            let [other] = other(key, elements);
            let _written = other.1.write_lease("test").expect("nobody else has it");
            let [coded] = one(value);
            let refused = store.push_with(&[coded.clone(), other.clone()], options).expect_err("it cannot be read");
            assert_eq!(refused.kind(), ErrorKind::BufferInUse, "{key}: {refused}");
            let refused = store.push_pull_with(&[coded], &[other], options).expect_err("it cannot be written to");
            assert_eq!(refused.kind(), ErrorKind::BufferInUse, "{key}: {refused}");
        }
    }
}

#[test]
fn a_push_that_is_refused_is_left_over_by_no_code() {
    for kind in [Kind::DistSync, Kind::DistAsync] {
        job_of(1, 1, Transport::Shm, ServerConfig::default(), move |mesh| {
            let store = with_plain_keys(mesh, kind);
            for (value, expected) in [(0.3, 0.0), (0.3, 0.5), (0.3, 0.5), (0.3, 1.0)] {
                push_in_vain(&store, value);
                wait(&store.push(&one(value)).expect("it is sent")).expect("it is alone");
                assert_eq!(stored(&store), expected, "{kind}");
            }
            // What was left over before another code was tried in vain: 0.2, but for rounding.
            store.set_gradient_compression_of(&["w".into()], Compression::TwoBit { threshold: 0.1 }).expect("f32");
            push_in_vain(&store, 0.3);
            store.set_gradient_compression_of(&["w".into()], half_steps()).expect("it is f32");
            wait(&store.push(&one(0.4)).expect("it is sent")).expect("it is alone");
            assert_eq!(stored(&store), 1.5, "{kind}");
        });
    }
}

#[test]
fn who_is_too_far_ahead_with_another_key_has_pushed_nothing() {
    const AHEAD: usize = 64;
    job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = with_plain_keys(mesh, Kind::DistSync);
        let other = || ("packed".into(), tensor(&[1.0; 3]));
        let mut works = Vec::new();
        if store.rank() == 0 {
            works.extend((0..AHEAD).map(|_| store.push(&[other()]).expect("there is room")));
            for priority in [0, 0, 5] {
                let [coded] = one(0.3);
                let refused = store.push_with(&[coded, other()], Options { priority }).expect_err("there is none");
                assert_eq!(refused.kind(), ErrorKind::LimitExceeded, "{refused}");
            }
        }
        store.barrier().expect("all are there");
        if store.rank() == 1 {
            works.extend((0..AHEAD).map(|_| store.push(&[other()]).expect("there is room")));
        }
        works.iter().for_each(|work| wait(work).expect("both have pushed as often"));
        for expected in [0.0, 1.0] {
            wait(&store.push(&one(0.3)).expect("it is sent")).expect("both push");
            assert_eq!(stored(&store), expected);
            store.barrier().expect("all have looked");
        }
    });
}

#[test]
fn pushes_of_several_threads_lose_nothing_and_add_nothing() {
    const PUSHES: usize = 100;
    job_of(1, 1, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = with_plain_keys(mesh, Kind::DistAsync);
        let push = |value: f32| wait(&store.push(&one(value)).expect("it is sent")).expect("it is alone");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let in_vain = threads.spawn(|| {
                while !is_over.load(SeqCst) {
                    push_in_vain(&store, 0.25);
                }
            });
            let pushing = [0.25, 0.125].map(|value| threads.spawn(move || (0..PUSHES).for_each(|_| push(value))));
            let ended = pushing.map(std::thread::ScopedJoinHandle::join);
            is_over.store(true, SeqCst);
            in_vain.join().expect("it does not panic");
            ended.into_iter().for_each(|ended| ended.expect("it does not panic"));
        });
        let pushed = 0.375 * PUSHES as f32;
        // What is left over of pushes beside each other may be more than one push takes along.
        (0..2 * PUSHES).for_each(|_| push(0.0));
        assert_eq!(stored(&store), (pushed / 0.5).floor() * 0.5);
    });
}
