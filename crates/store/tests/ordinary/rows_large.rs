//! A table far larger than what is pushed and pulled of it.

use crate::common::{job_of, note, wait};
use sheave_base::config::Transport;
use sheave_store::{Key, Kind, KvStore, Rows, ServerConfig, Updater};
use sheave_tensor::{Dtype, Shape, Tensor};
use std::time::Instant;

const TABLE_ROWS: u64 = 1_000_000;
const COLUMNS: u64 = 64;
const TABLE_KIB: u64 = TABLE_ROWS * COLUMNS * 4 / 1024;
/// Rows of one push or pull.
const COUNT: usize = 10_000;

fn key() -> Key {
    "embedding".into()
}

/// Distinct ids in no order: multiples of a number that shares no factor with the table's length.
fn ids(start: u64) -> Vec<i64> {
    (0..COUNT as u64).map(|at| ((start * COUNT as u64 + at) * 617_503 % TABLE_ROWS) as i64).collect()
}

fn id_tensor(ids: &[i64]) -> Tensor {
    Tensor::from_slice(ids, [ids.len() as u64]).expect("it fits")
}

/// Rows whose every element is this number.
fn rows(ids: &[i64], value: f32) -> Rows {
    let values = Tensor::from_slice(&vec![value; ids.len() * COLUMNS as usize], [ids.len() as u64, COLUMNS]);
    Rows::new(id_tensor(ids), values.expect("it fits")).expect("they fit")
}

fn place() -> Tensor {
    Tensor::private(Dtype::F32, [COUNT as u64, COLUMNS]).expect("memory")
}

fn open(store: &KvStore) {
    let table = Shape::new(&[TABLE_ROWS, COLUMNS]).expect("it is short");
    store.init_rows(&[(key(), table, rows(&[], 0.0))]).expect("it is new");
    store.set_updater(Updater::Sum).expect("servers add");
    store.barrier().expect("all are there");
}

/// Most memory that this process ever had.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("it is there");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

#[test]
fn memory_is_that_of_the_table_and_of_what_is_in_flight() {
    const ROUNDS: u64 = 20;
    let before = peak_kib();
    job_of(2, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = KvStore::open(mesh, Kind::DistSync).expect("all servers serve");
        open(&store);
        for round in 0..ROUNDS {
            // Half of what is pulled was pushed in this round by both, half by nobody yet.
            let (given, fresh) = (ids(round), ids(round + ROUNDS));
            let wanted: Vec<i64> = given.iter().zip(&fresh).flat_map(|(given, fresh)| [*given, *fresh]).collect();
            let place = place();
            let pull = [(key(), id_tensor(&wanted[..COUNT]), place.clone())];
            let push = [(key(), rows(&given, round as f32 + 1.0))];
            wait(&store.push_pull_rows(&push, &pull).expect("it is sent")).expect("both push");
            let expected = |at: usize| if at.is_multiple_of(2) { 2.0 * (round as f32 + 1.0) } else { 0.0 };
            let values = place.to_vec::<f32>().expect("floats");
            let is_right = |(at, row): (usize, &[f32])| row.iter().all(|value| *value == expected(at));
            assert!(values.chunks(COLUMNS as usize).enumerate().all(is_right), "round {round}");
        }
        store.close().expect("both come");
    });
    // The table, which is all written to by now at worst, and for two workers and two servers what moves and is kept.
    let (grown, most) = (peak_kib() - before, TABLE_KIB + 4 * 64 * 1024);
    assert!(grown < most, "{grown} KiB, and not less than {most}");
}

#[test]
#[ignore = "soak suite: prints figures, best with --release"]
fn figures() {
    const ROUNDS: usize = 60;
    let figures = job_of(1, 2, Transport::Shm, ServerConfig::default(), |mesh| {
        let store = KvStore::open(mesh, Kind::DistSync).expect("the server serves");
        open(&store);
        let mut times = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        for round in 0..ROUNDS as u64 {
            let mut given = ids(round * 2 + u64::from(store.rank()));
            let place = place();
            for is_sorted in [false, true] {
                if is_sorted {
                    given.sort_unstable();
                }
                let (push, pull) = ([(key(), rows(&given, 1.0))], [(key(), id_tensor(&given), place.clone())]);
                store.barrier().expect("both come");
                let start = Instant::now();
                wait(&store.push_rows(&push).expect("it is sent")).expect("both push");
                times[usize::from(is_sorted)].push(start.elapsed());
                store.barrier().expect("both come");
                let start = Instant::now();
                wait(&store.pull_rows(&pull).expect("it is sent")).expect("it is there");
                times[2 + usize::from(is_sorted)].push(start.elapsed());
            }
        }
        store.close().expect("both come");
        times.map(|mut times| {
            times.sort_unstable();
            (times[ROUNDS / 2], times[ROUNDS / 10])
        })
    });
    for (rank, times) in figures.iter().enumerate() {
        let names = ["push, ids in no order", "push, ids ascending", "pull, ids in no order", "pull, ids ascending"];
        for (name, (median, fast)) in names.into_iter().zip(times) {
            note(&format!("worker {rank}: {name}: {median:?} in the middle, {fast:?} for one in ten"));
        }
    }
}
