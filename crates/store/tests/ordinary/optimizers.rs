//! Optimizers in real stores, within one process and on servers: every rule against the published formulas, and to the
//! same bits wherever the values are.

use crate::common::{job_of, wait};
use crate::rules;
use crate::rules::formulas::oracle;
use crate::rules::numbers;
use half::{bf16, f16};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Result};
use sheave_optim::{Decay, Optimizer, Rule, Schedule, Sgd, Test, WarmUp};
use sheave_store::{Config, Key, Kind, KvStore, ServerConfig, Updater};
use sheave_tensor::{Dtype, Element, Tensor};

/// A key of one slice, one that is cut over all servers, and one that has several slices on each of them. All borders
/// are at whole blocks, as norms need them to be the same bits everywhere.
const SIZES: [usize; 3] = [7, 12_291, 60_000];
const WORKERS: u32 = 2;
const STEPS: u64 = 4;

fn config() -> Config {
    Config { cut_elements: 10_000, slice_elements: 8192, ..Kind::DistSync.into() }
}

fn jobs() -> impl Iterator<Item = (u32, Transport)> {
    [1, 2, 3].into_iter().flat_map(|servers| [(servers, Transport::Shm), (servers, Transport::Tcp)])
}

fn tensor<T: Element>(values: &[T]) -> Tensor {
    Tensor::from_slice(values, [values.len() as u64]).expect("it fits")
}

/// Numbers of a key: of a worker's gradient in a step, or of the first weights.
fn drawn(key: usize, worker: u64, step: u64) -> Vec<f32> {
    numbers(1 + key as u64 + 10 * worker + 100 * step, SIZES[key]).into_iter().map(|number| number as f32).collect()
}

const NOBODY: u64 = 9;

fn pairs<T: Element>(worker: u64, step: u64, of: fn(f32) -> T) -> Vec<(Key, Tensor)> {
    let values = |key: usize| drawn(key, worker, step).into_iter().map(of).collect::<Vec<T>>();
    (0..SIZES.len()).map(|key| (Key::from(key as i64), tensor(&values(key)))).collect()
}

fn places(dtype: Dtype) -> Vec<(Key, Tensor)> {
    let place = |elements: usize| Tensor::private(dtype, [elements as u64]).expect("it fits");
    SIZES.iter().enumerate().map(|(key, elements)| (Key::from(key as i64), place(*elements))).collect()
}

/// One step: what a worker pushes to servers, or what all workers push to a store of one process.
fn push<T: Element>(store: &KvStore, step: u64, of: fn(f32) -> T) {
    let workers = if store.kind().is_distributed() { vec![store.rank().into()] } else { (0..WORKERS.into()).collect() };
    let gradients: Vec<_> = workers.into_iter().flat_map(|worker| pairs(worker, step, of)).collect();
    wait(&store.push(&gradients).expect("it is sent")).expect("it is merged");
}

/// The bytes of all values.
fn pulled(store: &KvStore, dtype: Dtype) -> Vec<Vec<u8>> {
    let places = places(dtype);
    wait(&store.pull(&places).expect("it is sent")).expect("they are there");
    places.iter().map(|(_, place)| place.bytes().expect("nobody writes").to_vec()).collect()
}

fn train<T: Element>(store: &KvStore, optimizer: Optimizer, of: fn(f32) -> T) -> Vec<Vec<u8>> {
    store.init(&pairs(NOBODY, 0, of)).expect("they are new");
    store.set_optimizer(optimizer).expect("it has a meaning");
    store.barrier().expect("all are there");
    (1..=STEPS).for_each(|step| push(store, step, of));
    pulled(store, T::DTYPE)
}

fn alone() -> KvStore {
    KvStore::local("local").expect("it is known")
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|bytes| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}

fn itself(value: f32) -> f32 {
    value
}

#[test]
fn a_local_store_follows_the_published_formulas_by_every_rule() {
    for rule in rules::rules() {
        let weights = train(&alone(), rule.clone().into(), itself);
        for (key, weights) in weights.iter().enumerate() {
            let wide = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<f64>>();
            let sum = |step: u64| {
                let mut sum = drawn(key, 0, step);
                (1..WORKERS.into()).for_each(|worker| {
                    sum.iter_mut().zip(drawn(key, worker, step)).for_each(|(sum, value)| *sum += value);
                });
                wide(sum)
            };
            let expected = oracle(&rule, &wide(drawn(key, NOBODY, 0)), &(1..=STEPS).map(sum).collect::<Vec<_>>());
            let distances =
                floats(weights).into_iter().zip(expected).map(|(one, other)| (f64::from(one) - other).abs());
            let distance = distances.fold(0.0, f64::max);
            assert!(distance < 1e-5, "{rule:?} of key {key}: {distance:e}");
        }
    }
}

#[test]
fn every_rule_gives_the_same_bits_on_servers() {
    for (servers, transport) in jobs() {
        job_of(servers, WORKERS, transport, ServerConfig::default(), move |mesh| {
            for rule in rules::rules() {
                let store = KvStore::open(mesh, config()).expect("all servers serve");
                let found = train(&store, rule.clone().into(), itself);
                assert!(found == train(&alone(), rule.clone().into(), itself), "{rule:?} on {servers} servers");
            }
        });
    }
}

/// Steps far below the last bit of 16-bit weights near 1.
fn fine(multi_precision: bool) -> Optimizer {
    let rule = Sgd { learning_rate: 2.0_f64.powi(-14), momentum: 0.5, ..Sgd::default() };
    Optimizer { multi_precision, ..Rule::Sgd(rule).into() }
}

#[test]
fn small_steps_add_up_in_master_copies_alone() {
    // By hand, in f32: momentum m = m / 2 - lr * 2, for two workers with gradients of 1.
    let (mut master, mut momentum) = (1.0f32, 0.0f32);
    for _ in 0..40 {
        momentum = momentum / 2.0 - 2.0f32.powi(-14) * 2.0;
        master += momentum;
    }
    let act = move |store: &KvStore, later: bool, multi_precision: bool| {
        if !later {
            store.set_optimizer(fine(multi_precision)).expect("it has a meaning");
        }
        let (half, brain) = (tensor(&[f16::ONE; 5]), tensor(&[bf16::ONE; 5000]));
        store.init(&[("half".into(), half.clone()), ("brain".into(), brain.clone())]).expect("they are new");
        store.init(&[("single".into(), tensor(&[1.0f32]))]).expect("it is new");
        if later {
            store.set_optimizer(fine(multi_precision)).expect("it has a meaning");
        }
        store.barrier().expect("all are there");
        let times = if store.kind().is_distributed() { 1 } else { 2 };
        for _ in 0..40 {
            let ones = [("half".into(), half.clone()), ("brain".into(), brain.clone())];
            let ones: Vec<_> = ones.into_iter().chain([("single".into(), tensor(&[1.0f32]))]).collect();
            let ones: Vec<_> = (0..times).flat_map(|_| ones.clone()).collect();
            wait(&store.push(&ones).expect("it is sent")).expect("all push");
        }
        let (half, brain, single) = (tensor(&[f16::ZERO; 5]), tensor(&[bf16::ZERO; 5000]), tensor(&[0.0f32]));
        let pairs = [("half".into(), half.clone()), ("brain".into(), brain.clone()), ("single".into(), single.clone())];
        wait(&store.pull(&pairs).expect("it is sent")).expect("they are there");
        let expected = if multi_precision { master } else { 1.0 };
        assert_eq!(half.to_vec::<f16>().expect("halves"), [f16::from_f32(expected); 5], "{multi_precision} {later}");
        assert_eq!(brain.to_vec::<bf16>().expect("halves"), vec![bf16::from_f32(expected); 5000]);
        assert_eq!(single.to_vec::<f32>().expect("floats"), [master]);
    };
    assert!(bf16::from_f32(master) != bf16::ONE, "the steps show");
    for (later, multi_precision) in [(false, false), (false, true), (true, false), (true, true)] {
        act(&alone(), later, multi_precision);
        job_of(2, WORKERS, Transport::Shm, ServerConfig::default(), move |mesh| {
            let config = Config { cut_elements: 1000, ..Kind::DistSync.into() };
            act(&KvStore::open(mesh, config).expect("all servers serve"), later, multi_precision);
        });
    }
}

#[test]
fn master_copies_do_not_bring_back_what_was_replaced() {
    let store = alone();
    store.init(&[(1.into(), tensor(&[f16::ONE]))]).expect("it is new");
    let push = |value: f16| wait(&store.push(&[(1.into(), tensor(&[value]))]).expect("it is there"));
    store.set_optimizer(fine(true)).expect("it has a meaning");
    push(f16::ONE).expect("it steps");
    store.set_updater(Updater::Assign).expect("it is known");
    push(f16::from_f32(8.0)).expect("it is assigned");
    store.set_optimizer(fine(true)).expect("it has a meaning");
    push(f16::ZERO).expect("it steps");
    let place = tensor(&[f16::ZERO]);
    wait(&store.pull(&[(1.into(), place.clone())]).expect("it is there")).expect("it is there");
    assert_eq!(place.to_vec::<f16>().expect("halves"), [f16::from_f32(8.0)]);
}

/// Runs `act` on a local store, and as each worker of stores on servers.
fn everywhere(act: impl Fn(&KvStore) + Clone + Send + 'static) {
    act(&alone());
    for (servers, transport) in jobs() {
        let act = act.clone();
        job_of(servers, WORKERS, transport, ServerConfig::default(), move |mesh| {
            act(&KvStore::open(mesh, config()).expect("all servers serve"));
        });
    }
}

/// What plain gradients of one for every worker and step would make of a weight of 0.
fn ones(store: &KvStore) -> Result<f32> {
    let times = if store.kind().is_distributed() { 1 } else { WORKERS };
    let ones: Vec<_> = (0..times).map(|_| ("w".into(), tensor(&vec![1.0f32; 12_291]))).collect();
    wait(&store.push(&ones)?)?;
    let place = tensor(&vec![f32::NAN; 12_291]);
    wait(&store.pull(&[("w".into(), place.clone())])?)?;
    let values = place.to_vec::<f32>()?;
    assert!(values.iter().all(|value| *value == values[0]), "all elements are alike");
    Ok(values[0])
}

#[test]
fn the_schedule_counts_the_steps_of_each_key() {
    everywhere(|store| {
        let decay = Decay::MultiStep { at: vec![3], factor: 0.5 };
        let schedule = Schedule { decay, warm_up: Some(WarmUp { steps: 2, from: 0.0 }) };
        store.init(&[("w".into(), tensor(&vec![0.0f32; 12_291]))]).expect("it is new");
        store.set_optimizer(Optimizer { schedule, ..Rule::sgd(1.0).into() }).expect("it has a meaning");
        store.barrier().expect("all are there");
        // By hand: half, whole, whole, then half for ever; two workers.
        for expected in [-1.0, -3.0, -5.0, -6.0, -7.0] {
            assert_eq!(ones(store).expect("all push"), expected);
        }
        // A new key begins anew.
        store.delete(&["w".into()]).expect("it is there");
        store.init(&[("w".into(), tensor(&vec![0.0f32; 12_291]))]).expect("it is new");
        assert_eq!(ones(store).expect("all push"), -1.0);
    });
}

#[test]
fn the_learning_rate_changes_and_the_momentum_stays() {
    everywhere(|store| {
        store.init(&[("w".into(), tensor(&vec![0.0f32; 12_291]))]).expect("it is new");
        let is_first = store.rank() == 0;
        if is_first {
            assert_eq!(store.set_learning_rate(1.0).expect_err("there is none").kind(), ErrorKind::NotFound);
            assert_eq!(store.learning_rate().expect_err("there is none").kind(), ErrorKind::NotFound);
        }
        let heavy = |learning_rate| Rule::Sgd(Sgd { learning_rate, momentum: 0.5, ..Sgd::default() });
        store.set_optimizer(heavy(1.0)).expect("it has a meaning");
        store.barrier().expect("all are there");
        assert_eq!(ones(store).expect("all push"), -2.0);
        store.set_learning_rate(0.5).expect("the first one's word counts");
        store.barrier().expect("all are there");
        assert_eq!(store.learning_rate().expect("there is one"), 0.5);
        if is_first {
            for bad in [-1.0, f64::NAN, f64::INFINITY] {
                let error = store.set_learning_rate(bad).expect_err("it has no meaning");
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            }
        }
        // Momentum -2 / 2 - 1.
        assert_eq!(ones(store).expect("all push"), -4.0);
        // Said again by everybody, as in MXNet: the state stays.
        store.set_optimizer(heavy(0.25)).expect("it has a meaning");
        store.barrier().expect("all are there");
        assert_eq!(ones(store).expect("all push"), -4.0 - 1.5);
        // Another rule begins anew, and so does the first one after it, without a step between them.
        store.barrier().expect("all are there");
        store.set_optimizer(Rule::adam(0.1)).expect("it has a meaning");
        store.set_optimizer(heavy(1.0)).expect("it has a meaning");
        store.barrier().expect("all are there");
        assert_eq!(ones(store).expect("all push"), -5.5 - 2.0);
        store.barrier().expect("all are there");
        if is_first {
            store.set_optimizer(Rule::Test(Test::default())).expect("it has a meaning");
            assert_eq!(store.set_learning_rate(1.0).expect_err("it has none").kind(), ErrorKind::Unsupported);
        }
        store.barrier().expect("all are there");
    });
}
