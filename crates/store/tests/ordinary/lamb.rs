//! LAMB on servers, which need each other for the norms of tensors that are cut.

use crate::common::{job_of, wait};
use crate::rules::numbers;
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Result};
use sheave_optim::{Lamb, Optimizer, Rule};
use sheave_store::{Config, Key, Kind, KvStore, ServerConfig, Updater};
use sheave_tensor::Tensor;

/// Cut over all servers, with several slices on each.
const ELEMENTS: usize = 50_000;
const ROUNDS: u64 = 12;

fn lamb() -> Rule {
    Rule::Lamb(Lamb { learning_rate: 0.05, weight_decay: 0.1, ..Lamb::default() })
}

fn config(kind: Kind) -> Config {
    Config { cut_elements: 10_000, slice_elements: 8192, ..kind.into() }
}

fn tensor(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len() as u64]).expect("it fits")
}

fn drawn(seed: u64) -> Tensor {
    tensor(&numbers(seed, ELEMENTS).into_iter().map(|number| number as f32).collect::<Vec<_>>())
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec::<f32>().expect("floats").into_iter().map(f32::to_bits).collect()
}

/// The weights after each round, in one process.
fn alone(workers: u64) -> Vec<Vec<u32>> {
    let store = KvStore::local("local").expect("it is known");
    store.init(&[("w".into(), drawn(0))]).expect("it is new");
    store.set_optimizer(lamb()).expect("it has a meaning");
    let round = |round: u64| {
        let gradients: Vec<_> = (0..workers).map(|worker| ("w".into(), drawn(round * 10 + worker))).collect();
        let place = tensor(&[0.0; ELEMENTS]);
        wait(&store.push_pull(&gradients, &[("w".into(), place.clone())]).expect("it is there")).expect("it steps");
        bits(&place)
    };
    (1..=ROUNDS).map(round).collect()
}

#[test]
fn rounds_in_flight_are_merged_in_order_and_pulls_see_just_their_own() {
    for (servers, workers, transport) in
        [(1, 2, Transport::Shm), (2, 3, Transport::Shm), (3, 2, Transport::Tcp), (3, 1, Transport::Shm)]
    {
        let expected = alone(workers.into());
        job_of(servers, workers, transport, ServerConfig::default(), move |mesh| {
            let store = KvStore::open(mesh, config(Kind::DistSync)).expect("all servers serve");
            store.init(&[("w".into(), drawn(0))]).expect("it is new");
            store.set_optimizer(lamb()).expect("it has a meaning");
            store.barrier().expect("all are there");
            let mut works = Vec::new();
            for round in 1..=ROUNDS {
                let gradient = drawn(round * 10 + u64::from(store.rank()));
                let place = tensor(&[0.0; ELEMENTS]);
                works.push((store.push(&[("w".into(), gradient)]).expect("it is sent"), None));
                works.push((store.pull(&[("w".into(), place.clone())]).expect("it is sent"), Some(place)));
            }
            let mut found = Vec::new();
            for (work, place) in works {
                wait(&work).expect("all push");
                found.extend(place.map(|place| bits(&place)));
            }
            assert!(found == expected, "{servers} servers, {workers} workers");
        });
    }
}

#[test]
fn slices_within_a_block_give_nearly_the_same() {
    let expected = alone(2);
    job_of(3, 2, Transport::Shm, ServerConfig::default(), move |mesh| {
        let odd = Config { cut_elements: 100, slice_elements: 777, ..Kind::DistSync.into() };
        let store = KvStore::open(mesh, odd).expect("all servers serve");
        store.init(&[("w".into(), drawn(0))]).expect("it is new");
        store.set_optimizer(lamb()).expect("it has a meaning");
        store.barrier().expect("all are there");
        for round in 1..=ROUNDS {
            let place = tensor(&[0.0; ELEMENTS]);
            let gradient = drawn(round * 10 + u64::from(store.rank()));
            let work = store.push_pull(&[("w".into(), gradient)], &[("w".into(), place.clone())]);
            wait(&work.expect("it is sent")).expect("all push");
            let expected = expected[round as usize - 1].iter().map(|bits| f32::from_bits(*bits));
            let distances = place.to_vec::<f32>().expect("floats").into_iter().zip(expected);
            let distance = distances.map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max);
            assert!(distance < 1e-5, "{distance:e} after round {round}");
        }
    });
}

#[test]
fn a_merge_that_fails_fails_for_all_and_the_store_lives() {
    job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = KvStore::open(mesh, config(Kind::DistSync)).expect("all servers serve");
        let whole = || Tensor::from_slice(&[1i64; ELEMENTS], [ELEMENTS as u64]).expect("it fits");
        store.init(&[("n".into(), whole()), ("w".into(), drawn(0))]).expect("they are new");
        store.set_optimizer(lamb()).expect("it has a meaning");
        store.barrier().expect("all are there");
        for _ in 0..3 {
            let error = wait(&store.push(&[("n".into(), whole())]).expect("it is sent")).expect_err("no optimizer");
            assert!(matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::Remote), "{error}");
        }
        wait(&store.push(&[("w".into(), drawn(1))]).expect("it is sent")).expect("all push");
        // The first worker's pushes have ended, so all rounds were LAMB's; the next ones are not.
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        wait(&store.push(&[("n".into(), whole())]).expect("it is sent")).expect("all push");
        let place = whole();
        wait(&store.pull(&[("n".into(), place.clone())]).expect("it is sent")).expect("it is there");
        assert_eq!(place.to_vec::<i64>().expect("numbers"), vec![3; ELEMENTS]);
    });
}

#[test]
fn where_slices_are_not_merged_in_rounds_cut_tensors_are_refused() {
    let kind_of = |outcome: Result<()>| outcome.expect_err("it cannot be had").kind();
    for kind in [Kind::DistAsync, Kind::DistSsp] {
        // One server cuts too, into slices.
        for servers in [1, 2] {
            job_of(servers, 1, Transport::Shm, ServerConfig::default(), move |mesh| {
                let small = |key: &str| (Key::from(key), tensor(&[1.0; 100]));
                let store = KvStore::open(mesh, config(kind)).expect("all servers serve");
                store.init(&[("w".into(), drawn(0)), small("s")]).expect("they are new");
                assert_eq!(kind_of(store.set_optimizer(lamb())), ErrorKind::Unsupported);
                // The updater is what it was.
                wait(&store.push(&[("w".into(), drawn(7))]).expect("it is sent")).expect("it is merged");
                store.delete(&["w".into()]).expect("it is there");
                store.set_optimizer(lamb()).expect("nothing is cut");
                let place = small("s");
                wait(&store.push_pull(&[small("s")], std::slice::from_ref(&place)).expect("it is sent")).expect("ok");
                assert!(place.1.to_vec::<f32>().expect("floats")[0] < 1.0, "it has stepped");
                assert_eq!(kind_of(store.init(&[("w".into(), drawn(0))])), ErrorKind::Unsupported);
                store.set_optimizer(Optimizer::from(Rule::adam(0.1))).expect("it needs no norms");
                store.init(&[("w".into(), drawn(0))]).expect("it is new");
            });
        }
    }
}
