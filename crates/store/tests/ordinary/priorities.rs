//! Slices that leave in the order of their priority, and what that must not change.

use crate::common;
use crate::common::{job_of, wait};
use sheave_base::config::Transport;
use sheave_store::{Compression, Config, Key, Kind, KvStore, Options, ServerConfig, Updater};
use sheave_tensor::Tensor;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

fn full(elements: usize, value: f32) -> Tensor {
    Tensor::from_slice(&vec![value; elements], [elements as u64]).expect("it fits")
}

fn pair(key: &str, elements: usize, value: f32) -> [(Key, Tensor); 1] {
    [(Key::from(key), full(elements, value))]
}

fn with(priority: i32) -> Options {
    Options { priority }
}

#[test]
fn an_important_slice_overtakes_a_big_tensor_that_was_pushed_before_it() {
    const BIG: usize = 16 << 20;
    for transport in [Transport::Shm, Transport::Tcp] {
        // In which order the server merges: slices of the big one before the small one.
        let (merged, before_small) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
        let (count, seen) = (Arc::clone(&merged), Arc::clone(&before_small));
        // The server merges nothing of the big one before the small one is on its way, however slow its worker is.
        let (queue, is_queued) = mpsc::channel();
        let is_queued = Mutex::new(Some(is_queued));
        let note = move |key: &Key, _: &Tensor, _: &mut Tensor| {
            if *key == Key::from("small") {
                seen.store(count.load(SeqCst), SeqCst);
            } else {
                if let Some(is_queued) = is_queued.lock().expect("nobody panics").take() {
                    is_queued.recv_timeout(Duration::from_secs(20)).expect("the small one is queued");
                }
                count.fetch_add(1, SeqCst);
            }
            Ok(())
        };
        job_of(1, 1, transport, ServerConfig::default().function("note", note), move |mesh| {
            let store = KvStore::open(mesh, Kind::DistAsync).expect("all servers serve");
            store.init(&pair("big", BIG, 0.0)).expect("it is new");
            store.init(&pair("small", 10, 0.0)).expect("it is new");
            store.set_updater(Updater::Named("note".into())).expect("servers have it");
            let big = store.push_with(&pair("big", BIG, 1.0), with(-5)).expect("it is queued");
            let small = store.push_with(&pair("small", 10, 1.0), with(5)).expect("it is queued");
            queue.send(()).expect("the server waits for it");
            wait(&small).expect("it is merged");
            wait(&big).expect("it is merged");
        });
        let (slices, before) = (merged.load(SeqCst), before_small.load(SeqCst));
        common::note(&format!("{transport:?}: {before} of {slices} slices were merged before the small one"));
        assert_eq!(slices, BIG.div_ceil(1 << 18));
        assert!(before < slices / 2, "{before} of {slices} slices were merged before the small one");
    }
}

#[test]
fn priorities_change_no_sum_and_no_order_of_a_key() {
    const SIZES: [(&str, usize); 3] = [("small", 7), ("cut", 3001), ("big", 300_000)];
    const STEPS: usize = 12;
    for (servers, transport) in [(1, Transport::Shm), (3, Transport::Shm), (2, Transport::Tcp)] {
        job_of(servers, 3, transport, ServerConfig::default(), move |mesh| {
            let config = Config { cut_elements: 1000, slice_elements: 20_000, ..Config::from(Kind::DistSync) };
            let store = KvStore::open(mesh, config).expect("all servers serve");
            let pairs = |value: f32| SIZES.map(|(key, elements)| (Key::from(key), full(elements, value)));
            store.init(&pairs(0.0)).expect("they are new");
            store.set_updater(Updater::Sum).expect("servers add");
            store.set_gradient_compression_of(&["cut".into()], Compression::Bf16).expect("it is f32");
            store.barrier().expect("all are there");
            let rank = store.rank() as usize;
            let mut works = Vec::new();
            let mut pulls = Vec::new();
            for step in 0..STEPS {
                for (at, one) in pairs(1.0).into_iter().enumerate() {
                    // Every worker has its own opinion, another one each time; 0 leaves at once if it may.
                    let priority = ((at * 5 + step * 7 + rank * 3) % 5) as i32 - 2;
                    let place = [(one.0.clone(), full(SIZES[at].1, f32::NAN))];
                    let work = match (step + at) % 3 {
                        0 => store.push_pull_with(&[one], &place, with(priority)).expect("it is queued"),
                        _ => {
                            works.push(store.push_with(&[one], with(priority)).expect("it is queued"));
                            store.pull_with(&place, with(-priority)).expect("it is queued")
                        }
                    };
                    pulls.push((step, work, place));
                }
            }
            works.iter().for_each(|work| wait(work).expect("all push"));
            for (step, work, [(key, place)]) in pulls {
                wait(&work).expect("all push");
                let values = place.to_vec::<f32>().expect("floats");
                // It sees all own pushes before it, and just the round of the last one.
                let expected = 3.0 * (step as f32 + 1.0);
                assert!(values.iter().all(|value| *value == expected), "step {step} of {key}: {}", values[0]);
            }
            let done = store.push_with(&pairs(1.0), with(3)).and_then(|_| store.done()).expect("it is the first");
            wait(&done).expect("all are done");
            store.close().expect("all come");
        });
    }
}
