//! What a warm store costs between real processes: no new memory, no page faults, and little time.

use crate::common::{ended_well, hear, job, note, part, play, roles, say, start_all, until, wait};
use sheave_base::config::Transport;
use sheave_mesh::Mesh;
use sheave_process::Child;
use sheave_store::{Key, Kind, KvStore, ServerConfig};
use sheave_tensor::{Dtype, Tensor};
use std::path::PathBuf;
use std::time::Instant;

/// 5.76 MB.
const ELEMENTS: u64 = 1_440_000;
const WARM_ROUNDS: usize = 50;
const ROUNDS: usize = 400;
/// The system may move pages at any time, which is a fault for each: so the window in the middle counts, and one of
/// three may be disturbed. Nothing that the system does makes memory grow, so all windows count for that.
const WINDOWS: usize = 3;

/// Names the file that the test makes once it has looked at the processes for the last time.
const GATE: &str = "SHEAVE_TEST_GATE";

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    play(&mesh, ServerConfig::default(), |mesh| {
        let store = KvStore::open(mesh, Kind::DistSync).expect("all servers serve");
        let tensor = |value: f32| {
            let mut tensor = Tensor::empty(mesh.node().arena(), Dtype::F32, [ELEMENTS]).expect("there is room");
            tensor.as_mut_slice::<f32>().expect("it is fresh").fill(value);
            tensor
        };
        let (gradients, places) = ([(Key::from("w"), tensor(1.5))], [(Key::from("w"), tensor(0.0))]);
        store.init(&places).expect("it is new");
        let round = || wait(&store.push_pull(&gradients, &places).expect("it is sent")).expect("both push");
        (0..WARM_ROUNDS).for_each(|_| round());
        for window in 0..WINDOWS {
            store.barrier().expect("both are there");
            say(&format!("begins {window}"));
            let mut times_us: Vec<u128> = Vec::with_capacity(ROUNDS);
            for _ in 0..ROUNDS {
                let begun = Instant::now();
                round();
                times_us.push(begun.elapsed().as_micros());
            }
            store.barrier().expect("both are there");
            times_us.sort_unstable();
            say(&format!("ended {window}: {}", times_us[ROUNDS / 2]));
        }
        let gate = PathBuf::from(std::env::var_os(GATE).expect("the test names it"));
        until("the test has seen enough", || gate.exists());
        assert!(places[0].1.as_slice::<f32>().expect("all is over").iter().all(|value| *value == 3.0));
    });
}

/// Page faults without a disk, and resident bytes.
fn memory_of(child: &Child) -> (u64, u64) {
    let read = |what: &str| std::fs::read_to_string(format!("/proc/{}/{what}", child.pid())).expect("it lives");
    let number = |text: Option<&str>| text.expect("a field").parse::<u64>().expect("a number");
    let stat = read("stat");
    // Counted after the name, which may have spaces.
    let fields = stat.rsplit(')').next().expect("the fields");
    (number(fields.split_whitespace().nth(7)), number(read("statm").split_whitespace().nth(1)) * 4096)
}

#[test]
fn a_warm_push_pull_faults_no_page_in_and_keeps_nothing() {
    let job = job();
    let gate = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("gate-{}", std::process::id()));
    let variables = [(GATE, gate.to_str().expect("a plain name"))];
    let children = start_all(&job, roles(1, 2), Transport::Shm, &variables);
    let busy: Vec<&Child> = children.iter().filter(|child| !child.name().starts_with("scheduler")).collect();
    let worker = children.iter().find(|child| child.name() == "worker-0").expect("there is one");
    let mut most_faults: Vec<f64> = Vec::new();
    let mut seen: Vec<Vec<(u64, u64)>> = Vec::new();
    for window in 0..WINDOWS {
        hear(worker, &format!("begins {window}"));
        let before: Vec<_> = busy.iter().map(|child| memory_of(child)).collect();
        let time_us = hear(worker, &format!("ended {window}:"));
        let after: Vec<_> = busy.iter().map(|child| memory_of(child)).collect();
        let faults: Vec<f64> = before.iter().zip(&after).map(|(b, a)| (a.0 - b.0) as f64 / ROUNDS as f64).collect();
        note(&format!("push_pull of 5.76 MB: p50 {time_us} µs, page faults {faults:?} each"));
        most_faults.push(faults.iter().copied().fold(0.0, f64::max));
        seen.extend([before, after]);
    }
    std::fs::write(&gate, "").expect("there is room");
    ended_well(&children);
    std::fs::remove_file(&gate).expect("it is there");
    most_faults.sort_by(f64::total_cmp);
    assert!(most_faults[WINDOWS / 2] < 0.1, "{most_faults:?} page faults per push_pull");
    for (at, child) in busy.iter().enumerate() {
        let resident: Vec<i64> = seen.iter().map(|moment| moment[at].1 as i64).collect();
        let grown = resident[resident.len() - 1] - resident[0];
        note(&format!("{}: memory grew by {grown} B in {} push_pulls", child.name(), WINDOWS * ROUNDS));
        assert!(grown < 1 << 20, "{}: memory grew by {grown} bytes: {resident:?}", child.name());
    }
}
