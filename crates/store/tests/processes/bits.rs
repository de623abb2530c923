//! Real processes train, and the weights are bit for bit those of a store within one process, and those of plain loops
//! that know neither stores nor optimizers nor tensors.

use crate::common::{ended_well, hear, job, part, play, roles, say, start_all, wait};
use sha2::{Digest, Sha256};
use sheave_base::config::Transport;
use sheave_mesh::Mesh;
use sheave_optim::{Adam, Rule, Sgd};
use sheave_store::{Config, Key, Kind, KvStore, ServerConfig};
use sheave_tensor::Tensor;

/// Odd sizes, some below and some above the border from which tensors are cut over all servers; some packed in
/// messages and some not.
const SIZES: [usize; 8] = [1, 7, 999, 1000, 1001, 4099, 5003, 30_011];
const CUT_ELEMENTS: u64 = 1000;
const STEPS: usize = 4;

const LEARNING_RATE: f64 = 0.03;
const WEIGHT_DECAY: f64 = 0.0004;
const RESCALE: f64 = 0.125;
const MOMENTUM: f64 = 0.9;
const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPSILON: f64 = 1e-8;

const OPTIMIZERS: [&str; 2] = ["sgd", "adam"];

fn rule(optimizer: &str) -> Rule {
    let (learning_rate, weight_decay, rescale) = (LEARNING_RATE, WEIGHT_DECAY, RESCALE);
    match optimizer {
        "sgd" => Rule::Sgd(Sgd { learning_rate, momentum: MOMENTUM, weight_decay, rescale, ..Sgd::default() }),
        _ => Rule::Adam(Adam {
            learning_rate,
            beta1: BETA1,
            beta2: BETA2,
            epsilon: EPSILON,
            weight_decay,
            rescale,
            ..Adam::default()
        }),
    }
}

/// A number that depends on all of these, of either sign and of a magnitude between 2^-15 and 2^16: so wide that the
/// order of a sum shows in its last bits.
fn draw(who: usize, step: usize, key: usize, at: usize) -> f32 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for part in [who, step, key, at] {
        state = (state ^ part as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
        state ^= state >> 32;
    }
    let mantissa = 1.0 + (state & 0x7f_ffff) as f32 / 8_388_608.0;
    let sign = if state >> 23 & 1 == 0 { 1.0 } else { -1.0 };
    sign * mantissa * 2f32.powi((state >> 24 & 31) as i32 - 15)
}

/// The first weights are drawn as if by nobody.
const NOBODY: usize = 1000;

fn drawn(who: usize, step: usize, key: usize) -> Vec<f32> {
    (0..SIZES[key]).map(|at| draw(who, step, key, at)).collect()
}

fn pair(key: usize, values: &[f32]) -> (Key, Tensor) {
    let name = if key.is_multiple_of(2) { Key::from(key as i64) } else { Key::from(format!("layer {key}")) };
    (name, Tensor::from_slice(values, [values.len() as u64]).expect("it fits"))
}

fn pairs(who: usize, step: usize) -> Vec<(Key, Tensor)> {
    (0..SIZES.len()).map(|key| pair(key, &drawn(who, step, key))).collect()
}

fn places() -> Vec<(Key, Tensor)> {
    (0..SIZES.len()).map(|key| pair(key, &vec![0.0; SIZES[key]])).collect()
}

/// The bits of all weights after all steps.
#[derive(Default)]
struct Bits(Sha256);

impl Bits {
    fn add(&mut self, weights: &[f32]) {
        weights.iter().for_each(|weight| self.0.update(weight.to_bits().to_le_bytes()));
    }

    fn add_pulled(&mut self, places: &[(Key, Tensor)]) {
        places.iter().for_each(|(_, place)| self.add(&place.to_vec::<f32>().expect("floats")));
    }

    fn text(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    play(&mesh, ServerConfig::default(), |mesh| {
        for optimizer in OPTIMIZERS {
            say(&format!("{optimizer} {}", train(mesh, optimizer)));
        }
    });
}

/// Trains on servers. The workers push one after the other, in another order in every step, so that what arrives last
/// is not always what the last worker has sent.
fn train(mesh: &Mesh, optimizer: &str) -> String {
    let store = KvStore::open(mesh, Config { cut_elements: CUT_ELEMENTS, ..Kind::DistSync.into() }).expect("servers");
    store.init(&pairs(NOBODY, 0)).expect("they are new");
    store.set_optimizer(rule(optimizer)).expect("it has a meaning");
    store.barrier().expect("all are there");
    let (rank, workers) = (store.rank() as usize, store.group_size());
    let mut bits = Bits::default();
    for step in 0..STEPS {
        let (gradients, places) = (pairs(rank, step), places());
        let mut works = Vec::new();
        for turn in 0..workers {
            let next = if step.is_multiple_of(2) { workers - 1 - turn } else { (turn + step) % workers };
            if next == rank && step < 2 {
                works.push(store.push(&gradients).expect("it is sent"));
                works.push(store.pull(&places).expect("it is sent"));
            } else if next == rank {
                works.push(store.push_pull(&gradients, &places).expect("it is sent"));
            }
            store.barrier().expect("all are there");
        }
        works.iter().for_each(|work| wait(work).expect("all push"));
        bits.add_pulled(&places);
    }
    bits.text()
}

/// The same in one process: every push has the values of all workers, by rank.
fn alone(workers: usize, optimizer: &str) -> String {
    let store = KvStore::local("local").expect("it is known");
    store.init(&pairs(NOBODY, 0)).expect("they are new");
    store.set_optimizer(rule(optimizer)).expect("it has a meaning");
    let mut bits = Bits::default();
    for step in 0..STEPS {
        let gradients: Vec<_> = (0..workers).flat_map(|rank| pairs(rank, step)).collect();
        let places = places();
        wait(&store.push_pull(&gradients, &places).expect("all is known")).expect("it is merged");
        bits.add_pulled(&places);
    }
    bits.text()
}

/// The same as loops over numbers, written down from the formulas: the values of `workers` are summed in this order.
fn by_hand(workers: &[usize], optimizer: &str) -> String {
    let (decay, rescale) = (WEIGHT_DECAY as f32, RESCALE as f32);
    let mut weights: Vec<Vec<f32>> = (0..SIZES.len()).map(|key| drawn(NOBODY, 0, key)).collect();
    let mut first: Vec<Vec<f32>> = SIZES.iter().map(|size| vec![0.0; *size]).collect();
    let mut second = first.clone();
    let mut bits = Bits::default();
    for step in 0..STEPS {
        let steps = step as i32 + 1;
        let corrected = LEARNING_RATE * (1.0 - BETA2.powi(steps)).sqrt() / (1.0 - BETA1.powi(steps));
        for key in 0..SIZES.len() {
            for at in 0..SIZES[key] {
                let mut sum = draw(workers[0], step, key, at);
                for worker in &workers[1..] {
                    sum += draw(*worker, step, key, at);
                }
                let weight = &mut weights[key][at];
                let slope = rescale * sum + decay * *weight;
                let (first, second) = (&mut first[key][at], &mut second[key][at]);
                if optimizer == "sgd" {
                    *first = MOMENTUM as f32 * *first - LEARNING_RATE as f32 * slope;
                    *weight += *first;
                } else {
                    *first = BETA1 as f32 * *first + (1.0 - BETA1) as f32 * slope;
                    *second = BETA2 as f32 * *second + (1.0 - BETA2) as f32 * (slope * slope);
                    *weight -= corrected as f32 * *first / (second.sqrt() + EPSILON as f32);
                }
            }
        }
        weights.iter().for_each(|weights| bits.add(weights));
    }
    bits.text()
}

#[test]
fn the_oracle_tells_apart_what_must_be_told_apart() {
    for optimizer in OPTIMIZERS {
        let mut seen = std::collections::HashSet::new();
        // Other numbers of workers, and the same workers in other orders.
        for workers in [&[0][..], &[0, 1], &[0, 1, 2, 3], &[3, 2, 1, 0], &[1, 2, 3, 0]] {
            assert!(seen.insert(by_hand(workers, optimizer)), "{optimizer} with {workers:?}");
        }
    }
}

#[test]
fn a_local_store_does_what_the_formulas_say() {
    for optimizer in OPTIMIZERS {
        for workers in [1, 2, 4] {
            let in_order: Vec<usize> = (0..workers).collect();
            assert_eq!(alone(workers, optimizer), by_hand(&in_order, optimizer), "{optimizer}, {workers} workers");
        }
    }
}

fn servers_and_workers_make_no_difference(transport: Transport) {
    for workers in [1, 2, 4] {
        let expected: Vec<String> = OPTIMIZERS.iter().map(|optimizer| alone(workers, optimizer)).collect();
        for servers in [1, 2, 3] {
            let job = job();
            let children = start_all(&job, roles(servers, workers as u32), transport, &[]);
            for child in children.iter().filter(|child| child.name().starts_with("worker")) {
                for (optimizer, expected) in OPTIMIZERS.iter().zip(&expected) {
                    let what = format!("{optimizer} on {servers} servers, {} of {workers}", child.name());
                    assert_eq!(&hear(child, optimizer), expected, "{what} over {transport:?}");
                }
            }
            ended_well(&children);
        }
    }
}

#[test]
fn weights_from_servers_are_those_of_one_process_over_shm() {
    servers_and_workers_make_no_difference(Transport::Shm);
}

#[test]
fn weights_from_servers_are_those_of_one_process_over_tcp() {
    servers_and_workers_make_no_difference(Transport::Tcp);
}
