//! Every interleaving of threads that share the room of a small cache.
//!
//! A particle says when it comes and goes, so that two in the room of one are seen. A wake-up that is lost is a
//! deadlock, which loom finds.

use super::{Cache, CacheOptions, Policy, Resident};
use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use loom::thread;
use sheave_base::{ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

/// A device, and how many particles are on it.
struct Device {
    resident: AtomicUsize,
    room: usize,
}

struct Weights(Arc<Device>);

impl Resident for Weights {
    fn len_bytes(&self) -> u64 {
        1
    }

    fn bring(&self) -> Result<()> {
        let before = self.0.resident.fetch_add(1, SeqCst);
        assert!(before < self.0.room, "two have the room of one");
        Ok(())
    }

    fn park(&self) -> Result<()> {
        assert!(self.0.resident.fetch_sub(1, SeqCst) > 0, "nobody is there");
        Ok(())
    }
}

/// A cache with room for one of the particles 0 to `count - 1`.
fn cache(count: u64, policy: Policy) -> Cache<u64, Weights> {
    let device = Arc::new(Device { resident: AtomicUsize::new(0), room: 1 });
    let options = CacheOptions { device: "0".into(), particles: Some(1), policy, ..CacheOptions::default() };
    let cache = Cache::new(options).expect("there is room");
    (0..count).for_each(|key| cache.insert(key, Weights(Arc::clone(&device))).expect("it is new"));
    cache
}

/// Nobody is left who waits, or is pinned, and `key` can be had.
fn is_free(cache: &Cache<u64, Weights>, key: u64) {
    let statistics = cache.statistics();
    assert_eq!((statistics.pinned, statistics.waiting), (0, 0));
    drop(cache.acquire(&key).expect("there is room"));
}

fn explored(model: impl Fn() + Sync + Send + 'static) {
    // Three switches of threads that run are enough for all that two of them can do to each other here.
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn loom_two_who_need_the_same_room_get_it_one_after_the_other() {
    for policy in [Policy::Lru, Policy::Direct] {
        explored(move || {
            let cache = cache(2, policy);
            let other = cache.clone();
            let thread = thread::spawn(move || drop(other.acquire(&1).expect("it gets room")));
            drop(cache.acquire(&0).expect("it gets room"));
            thread.join().expect("no panic");
            is_free(&cache, 0);
        });
    }
}

#[test]
fn loom_a_particle_that_two_want_is_brought_once() {
    explored(|| {
        let cache = cache(1, Policy::Lru);
        let other = cache.clone();
        let thread = thread::spawn(move || drop(other.acquire(&0).expect("it gets room")));
        drop(cache.acquire(&0).expect("it gets room"));
        thread.join().expect("no panic");
        assert_eq!(cache.statistics().misses, 1);
        is_free(&cache, 0);
    });
}

#[test]
fn loom_whoever_waits_for_one_that_is_removed_is_told() {
    explored(|| {
        let cache = cache(2, Policy::Lru);
        let guard = cache.acquire(&0).expect("there is room");
        let other = cache.clone();
        let thread = thread::spawn(move || match other.acquire(&1) {
            Ok(guard) => drop(guard),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
        });
        cache.remove(&1).expect("it is known");
        drop(guard);
        thread.join().expect("no panic");
        is_free(&cache, 0);
    });
}

#[test]
fn loom_room_that_somebody_gives_up_goes_to_the_next() {
    explored(|| {
        let cache = cache(3, Policy::Lru);
        let guard = cache.acquire(&0).expect("there is room");
        let (first, second) = (cache.clone(), cache.clone());
        let hasty = thread::spawn(move || match first.acquire_timeout(&1, Duration::ZERO) {
            Ok(guard) => drop(guard),
            Err(error) => assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}"),
        });
        let patient = thread::spawn(move || drop(second.acquire(&2).expect("it gets room")));
        drop(guard);
        hasty.join().expect("no panic");
        patient.join().expect("no panic");
        is_free(&cache, 0);
    });
}

#[test]
fn loom_inserting_while_others_acquire_loses_nobody() {
    explored(|| {
        let cache = cache(1, Policy::Lru);
        let other = cache.clone();
        let device = Arc::clone(&cache.peek(&0).expect("it is known").0);
        let thread = thread::spawn(move || {
            other.insert(7, Weights(device)).expect("it is new");
            drop(other.acquire(&7).expect("it gets room"));
        });
        drop(cache.acquire(&0).expect("it gets room"));
        thread.join().expect("no panic");
        assert_eq!(cache.keys(), [0, 7]);
        is_free(&cache, 7);
    });
}
