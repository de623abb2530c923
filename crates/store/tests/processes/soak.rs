//! Very many small operations between real processes: the memory of every process stays as it is, no page faults in
//! once all is warm, and every sum is right.
//!
//! Three workers and two servers, over shared memory. An operation is one call of one worker; most push and pull a few
//! keys of 64 B to 1 KiB, now and then one pushes and pulls rows of a table, or pushes in 2 bits. Every answer is
//! compared with what the number of pushes says it must be.
//!
//! The memory of every process, scheduler included, is read from outside after every tenth. The first two tenths are
//! the warm-up: pools and tables grow to what the traffic needs. From then on each process may fault [`FAULTS`] times
//! and grow by [`GROWTH_BYTES`], over all operations that are left. What does remain is a few dozen faults of a worker,
//! and about one of a server or the scheduler, fewer in each tenth, and no more after a million operations than after a
//! hundred thousand. They are as many as the pages by which the process has grown, so each is a page that is touched
//! for the first time: of the buffers of links and the allocator, when more messages than ever before happen to be
//! under way at once.

use crate::common::{ended_well, hear, job, note, part, play, roles, say, start_all, until, wait};
use sheave_base::config::Transport;
use sheave_mesh::Mesh;
use sheave_process::Child;
use sheave_store::{Compression, Key, Kind, KvStore, Rows, ServerConfig, Updater};
use sheave_tensor::{Dtype, Shape, Tensor};
use std::path::PathBuf;
use std::time::Instant;

const SERVERS: u32 = 2;
const WORKERS: u32 = 3;
const TENTHS: usize = 10;
const WARM_TENTHS: usize = 2;
/// Of one process after its warm-up.
const FAULTS: u64 = 100;
const GROWTH_BYTES: i64 = 1 << 20;

/// How often all workers do something.
const ROUNDS: &str = "SHEAVE_TEST_ROUNDS";
/// Names the file that the test makes once it has looked at the processes for the last time.
const GATE: &str = "SHEAVE_TEST_GATE";

/// Elements of the small keys: 64 B to 1 KiB.
const SIZES: [usize; 5] = [16, 32, 64, 128, 256];
const KEYS: usize = 15;
/// Pushed and pulled in one call.
const KEYS_AT_ONCE: usize = 3;
/// Every so often comes a round of rows, and one in 2 bits.
const RARE: usize = 20;
const TABLE_ROWS: i64 = 1000;
const ROW_ELEMENTS: usize = 16;
const ROWS_AT_ONCE: i64 = 8;
/// Four times what the workers push in 2 bits: every fourth push is seen.
const THRESHOLD: f32 = 1.0;

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    say("ready");
    play(&mesh, ServerConfig::default(), |mesh| {
        let rounds: usize = std::env::var(ROUNDS).expect("the test says").parse().expect("a number");
        let mut worker = Worker::begin(mesh);
        for tenth in 0..TENTHS {
            let begun = Instant::now();
            (rounds * tenth / TENTHS..rounds * (tenth + 1) / TENTHS).for_each(|round| worker.act(round));
            worker.store.barrier().expect("all come");
            say(&format!("tenth {tenth}: {}", begun.elapsed().as_micros()));
        }
        let gate = PathBuf::from(std::env::var_os(GATE).expect("the test names it"));
        until("the test has seen enough", || gate.exists());
        worker.end();
    });
}

struct Worker {
    store: KvStore,
    /// What is pushed, and where what is pulled arrives, of each small key.
    values: Vec<(Key, Tensor)>,
    places: Vec<(Key, Tensor)>,
    /// How often each was pushed.
    pushes: [u32; KEYS],
    value_in_bits: [(Key, Tensor); 1],
    place_of_bits: [(Key, Tensor); 1],
    pushes_in_bits: u32,
    rows: Vec<[(Key, Rows); 1]>,
    places_of_rows: Vec<[(Key, Tensor, Tensor); 1]>,
    pushes_of_rows: Vec<u32>,
}

fn tensor(shape: &[usize], value: f32) -> Tensor {
    let shape: Vec<u64> = shape.iter().map(|length| *length as u64).collect();
    let shape = Shape::new(&shape).expect("it is short");
    let mut tensor = Tensor::private(Dtype::F32, shape).expect("memory");
    tensor.as_mut_slice::<f32>().expect("it is fresh").fill(value);
    tensor
}

/// What all workers push together, in one round, of what worker `rank` pushes `rank + 1` of.
const OF_ALL: u32 = WORKERS * (WORKERS + 1) / 2;

impl Worker {
    fn begin(mesh: &Mesh) -> Self {
        let store = KvStore::open(mesh, Kind::DistSync).expect("all servers serve");
        let mine = (store.rank() + 1) as f32;
        let small = |value: f32| -> Vec<(Key, Tensor)> {
            (0..KEYS).map(|number| (Key::from(number as i64), tensor(&[SIZES[number % SIZES.len()]], value))).collect()
        };
        let in_bits = |value: f32| [(Key::from("in bits"), tensor(&[256], value))];
        store.init(&small(0.0)).expect("they are new");
        store.init(&in_bits(0.0)).expect("it is new");
        let table = Key::from("table");
        let rows_of = |ids: &[i64]| {
            let values = tensor(&[ids.len(), ROW_ELEMENTS], mine);
            Rows::new(Tensor::from_slice(ids, [ids.len() as u64]).expect("it fits"), values).expect("they fit")
        };
        let shape = Shape::new(&[TABLE_ROWS as u64, ROW_ELEMENTS as u64]).expect("it is short");
        store.init_rows(&[(table.clone(), shape, rows_of(&[]))]).expect("it is new");
        store
            .set_gradient_compression_of(&["in bits".into()], Compression::TwoBit { threshold: THRESHOLD })
            .expect("ok");
        store.set_updater(Updater::Sum).expect("servers add");
        store.barrier().expect("all are there");
        // No row is in two sets.
        let sets = TABLE_ROWS / ROWS_AT_ONCE;
        let ids = |set: i64| -> Vec<i64> { (0..ROWS_AT_ONCE).map(|row| (row * sets + set) % TABLE_ROWS).collect() };
        let rows = (0..sets).map(|set| [(table.clone(), rows_of(&ids(set)))]).collect();
        let place_of = |set: i64| {
            let wanted = Tensor::from_slice(&ids(set), [ROWS_AT_ONCE as u64]).expect("it fits");
            [(table.clone(), wanted, tensor(&[ROWS_AT_ONCE as usize, ROW_ELEMENTS], 0.0))]
        };
        Self {
            values: small(mine),
            places: small(0.0),
            pushes: [0; KEYS],
            value_in_bits: in_bits(THRESHOLD / 4.0),
            place_of_bits: in_bits(0.0),
            pushes_in_bits: 0,
            rows,
            places_of_rows: (0..sets).map(place_of).collect(),
            pushes_of_rows: vec![0; sets as usize],
            store,
        }
    }

    fn act(&mut self, round: usize) {
        match round % RARE {
            7 => self.push_and_pull_rows(round / RARE),
            13 => self.push_in_bits(),
            _ => self.push_and_pull_keys(round),
        }
    }

    fn push_and_pull_keys(&mut self, round: usize) {
        let first = round * KEYS_AT_ONCE % KEYS;
        let keys = first..first + KEYS_AT_ONCE;
        let work = self.store.push_pull(&self.values[keys.clone()], &self.places[keys.clone()]).expect("it is sent");
        wait(&work).expect("all push");
        for key in keys {
            self.pushes[key] += 1;
            check(&self.places[key].1, (self.pushes[key] * OF_ALL) as f32);
        }
    }

    /// What is carried over goes into the next codes; every fourth push shows, of every worker.
    fn push_in_bits(&mut self) {
        let work = self.store.push_pull(&self.value_in_bits, &self.place_of_bits).expect("it is sent");
        wait(&work).expect("all push");
        self.pushes_in_bits += 1;
        check(&self.place_of_bits[0].1, (self.pushes_in_bits / 4 * WORKERS) as f32 * THRESHOLD);
    }

    fn push_and_pull_rows(&mut self, number: usize) {
        let set = number % self.rows.len();
        let work = self.store.push_pull_rows(&self.rows[set], &self.places_of_rows[set]).expect("it is sent");
        wait(&work).expect("all push");
        self.pushes_of_rows[set] += 1;
        check(&self.places_of_rows[set][0].2, (self.pushes_of_rows[set] * OF_ALL) as f32);
    }

    /// A last look at everything at once.
    fn end(&self) {
        wait(&self.store.pull(&self.places).expect("it is sent")).expect("servers live");
        for (number, (_, place)) in self.places.iter().enumerate() {
            check(place, (self.pushes[number] * OF_ALL) as f32);
        }
        assert!(self.pushes_in_bits > 0 && self.pushes_of_rows.iter().all(|pushes| *pushes > 0));
    }
}

fn check(place: &Tensor, expected: f32) {
    let values = place.as_slice::<f32>().expect("it has arrived");
    assert!(values.iter().all(|value| *value == expected), "{:?}, not {expected}", &values[..3]);
}

/// What the system knows of a process's memory.
#[derive(Clone, Copy)]
struct Memory {
    /// Page faults, with and without a disk.
    faults: u64,
    resident_bytes: i64,
}

impl Memory {
    fn of(child: &Child) -> Self {
        let read = |what: &str| std::fs::read_to_string(format!("/proc/{}/{what}", child.pid())).expect("it lives");
        let stat = read("stat");
        // Counted after the name, which may have spaces.
        let fields: Vec<&str> = stat.rsplit(')').next().expect("the fields").split_whitespace().collect();
        let number = |text: &str| text.parse::<u64>().expect("a number");
        let pages = number(read("statm").split_whitespace().nth(1).expect("a field"));
        Self { faults: number(fields[7]) + number(fields[9]), resident_bytes: pages as i64 * 4096 }
    }
}

fn soak(operations: usize) {
    let job = job();
    let gate = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("soak-{}", std::process::id()));
    let rounds = (operations / WORKERS as usize).to_string();
    let variables = [(GATE, gate.to_str().expect("a plain name")), (ROUNDS, &rounds)];
    let children = start_all(&job, roles(SERVERS, WORKERS), Transport::Shm, &variables);
    children.iter().for_each(|child| drop(hear(child, "ready")));
    let worker = children.iter().find(|child| child.name() == "worker-0").expect("there is one");
    let mut seen: Vec<Vec<Memory>> = Vec::new();
    for tenth in 0..TENTHS {
        let time_us = hear(worker, &format!("tenth {tenth}:"));
        seen.push(children.iter().map(Memory::of).collect());
        note(&format!("tenth {tenth}: {time_us} µs"));
    }
    std::fs::write(&gate, "").expect("there is room");
    ended_well(&children);
    std::fs::remove_file(&gate).expect("it is there");
    let warm = WARM_TENTHS - 1;
    for (at, child) in children.iter().enumerate() {
        let faults: Vec<u64> = seen.windows(2).map(|pair| pair[1][at].faults - pair[0][at].faults).collect();
        let resident: Vec<i64> = seen.iter().map(|moment| moment[at].resident_bytes / 1024).collect();
        note(&format!("{}: faults in each tenth {faults:?}, KiB resident {resident:?}", child.name()));
    }
    for (at, child) in children.iter().enumerate() {
        let (before, after) = (seen[warm][at], seen[TENTHS - 1][at]);
        let (faults, growth) = (after.faults - before.faults, after.resident_bytes - before.resident_bytes);
        assert!(faults <= FAULTS, "{}: {faults} page faults once warm", child.name());
        assert!(growth <= GROWTH_BYTES, "{} grew by {growth} bytes", child.name());
    }
}

#[test]
fn a_hundred_thousand_small_operations_leave_nothing_behind() {
    soak(100_000);
}

#[test]
#[ignore = "soak suite: takes minutes"]
fn a_million_small_operations_leave_nothing_behind() {
    soak(1_000_000);
}
