//! Caches: who is resident, who makes room, who waits, and what is left of a move that fails.

use proptest::prelude::*;
use sheave_base::{Error, ErrorKind, Result};
use sheave_particle::{Cache, CacheOptions, Guard, Policy, Resident};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

/// Longer than any of these tests takes on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// A device that counts what is in its memory.
#[derive(Default)]
struct Device {
    particles: AtomicI64,
    bytes: AtomicI64,
    particles_most: AtomicI64,
    bytes_most: AtomicI64,
    fails: AtomicBool,
    moves: AtomicUsize,
}

struct Model {
    device: Arc<Device>,
    bytes: AtomicU64,
    is_there: AtomicBool,
    is_moving: AtomicBool,
    brought: AtomicUsize,
}

impl Model {
    fn new(device: &Arc<Device>, bytes: u64) -> Self {
        let (is_there, is_moving) = (AtomicBool::default(), AtomicBool::default());
        Self { device: Arc::clone(device), bytes: bytes.into(), is_there, is_moving, brought: AtomicUsize::new(0) }
    }

    fn moves(&self, arrives: bool) -> Result<()> {
        assert!(!self.is_moving.swap(true, SeqCst), "two threads move one model");
        assert_eq!(self.is_there.load(SeqCst), !arrives, "it is moved to where it is");
        self.device.moves.fetch_add(1, SeqCst);
        std::thread::yield_now();
        let fails = self.device.fails.load(SeqCst);
        if !fails {
            let (sign, bytes) = (if arrives { 1 } else { -1 }, self.bytes.load(SeqCst) as i64);
            let particles = self.device.particles.fetch_add(sign, SeqCst) + sign;
            let bytes = self.device.bytes.fetch_add(sign * bytes, SeqCst) + sign * bytes;
            self.device.particles_most.fetch_max(particles, SeqCst);
            self.device.bytes_most.fetch_max(bytes, SeqCst);
            self.is_there.store(arrives, SeqCst);
            self.brought.fetch_add(usize::from(arrives), SeqCst);
        }
        self.is_moving.store(false, SeqCst);
        if fails { Err(Error::new(ErrorKind::Io, "the bus is down")) } else { Ok(()) }
    }
}

impl Resident for Model {
    fn len_bytes(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    fn bring(&self) -> Result<()> {
        self.moves(true)
    }

    fn park(&self) -> Result<()> {
        self.moves(false)
    }
}

type Models = Cache<u64, Model>;

fn cache(particles: Option<usize>, bytes: Option<u64>, policy: Policy) -> Models {
    Cache::new(CacheOptions { device: "cpu".into(), particles, bytes, policy }).expect("there is room")
}

/// A cache of models of 10 bytes.
fn filled(particles: Option<usize>, policy: Policy, count: u64) -> (Models, Arc<Device>) {
    let (cache, device) = (cache(particles, None, policy), Arc::new(Device::default()));
    (0..count).for_each(|key| cache.insert(key, Model::new(&device, 10)).expect("there is room"));
    (cache, device)
}

#[test]
fn the_least_recently_used_makes_room_and_a_hit_is_a_use() -> Result<()> {
    let (cache, _) = filled(Some(2), Policy::Lru, 4);
    drop(cache.acquire(&0)?);
    drop(cache.acquire(&1)?);
    drop(cache.acquire(&0)?);
    drop(cache.acquire(&2)?);
    assert_eq!(cache.resident(), [0, 2]);
    let statistics = cache.statistics();
    assert_eq!((statistics.hits, statistics.misses, statistics.evictions), (1, 3, 1));
    assert_eq!((statistics.brought_bytes, statistics.parked_bytes, statistics.resident_bytes), (30, 10, 20));
    assert_eq!((cache.keys(), cache.contains(&3), cache.contains(&4)), (vec![0, 1, 2, 3], true, false));
    Ok(())
}

#[test]
fn d10_a_pinned_particle_never_makes_room() -> Result<()> {
    let (cache, _) = filled(Some(2), Policy::Lru, 3);
    let pinned = cache.acquire(&0)?;
    drop(cache.acquire(&1)?);
    drop(cache.acquire(&2)?);
    assert_eq!(cache.resident(), [0, 2]);
    let other = cache.acquire(&2)?;
    assert!(cache.try_acquire(&1)?.is_none());
    drop(pinned);
    assert!(cache.try_acquire(&1)?.is_some());
    assert!(other.is_there.load(SeqCst));
    Ok(())
}

#[test]
fn slots_are_the_order_of_creation_for_life() -> Result<()> {
    let (cache, device) = filled(Some(3), Policy::Direct, 5);
    for key in 0..5 {
        drop(cache.acquire(&key)?);
    }
    assert_eq!(cache.resident(), [2, 3, 4]);
    cache.remove(&1)?;
    cache.insert(9, Model::new(&device, 10))?;
    drop(cache.acquire(&9)?);
    assert_eq!(cache.resident(), [3, 4, 9], "its slot is that of 2");
    let three = cache.acquire(&3)?;
    assert!(cache.try_acquire(&0)?.is_none());
    drop(three);
    assert!(cache.try_acquire(&0)?.is_some());
    Ok(())
}

#[test]
fn bytes_are_a_capacity_too_and_what_has_grown_makes_others_go() -> Result<()> {
    let (cache, device) = (cache(None, Some(100), Policy::Lru), Arc::new(Device::default()));
    for (key, bytes) in [(0, 40), (1, 40), (2, 40), (3, 90)] {
        cache.insert(key, Model::new(&device, bytes))?;
    }
    for key in 0..3 {
        drop(cache.acquire(&key)?);
    }
    assert_eq!((cache.resident(), device.bytes_most.load(SeqCst)), (vec![1, 2], 80));
    drop(cache.acquire(&3)?);
    assert_eq!((cache.resident(), device.bytes_most.load(SeqCst)), (vec![3], 90));
    drop(cache.acquire(&0)?);
    let grown = cache.acquire(&1)?;
    device.bytes.fetch_add(40, SeqCst);
    grown.bytes.store(80, SeqCst);
    drop(grown);
    assert_eq!((cache.resident(), cache.statistics().resident_bytes), (vec![0, 1], 120));
    drop(cache.acquire(&1)?);
    assert_eq!(cache.resident(), [1]);
    cache.acquire(&1)?.bytes.store(101, SeqCst);
    let error = cache.acquire(&1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    let text = "the cache of device cpu: particle 1 takes 101 bytes, and it holds 100; hint: make the cache larger";
    assert!(error.to_string().contains(text), "{error}");
    assert_eq!(cache.insert(5, Model::new(&device, 101)).unwrap_err().kind(), ErrorKind::LimitExceeded);
    Ok(())
}

#[test]
fn a_thread_that_would_wait_for_its_own_guard_is_told() -> Result<()> {
    for policy in [Policy::Lru, Policy::Direct] {
        let (cache, _) = filled(Some(1), policy, 2);
        let own = cache.acquire(&0)?;
        let error = cache.acquire(&1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadlock);
        let text = "this thread holds 0, which leave no room for particle 1; hint: release a guard before";
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(cache.acquire(&0)?.bytes.load(SeqCst), 10, "its own particle is resident");
        // Somebody else may let go of it.
        let error = std::thread::scope(|scope| {
            scope.spawn(|| cache.acquire_timeout(&1, Duration::from_millis(20)).unwrap_err()).join().unwrap()
        });
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        let text = "the cache of device cpu: particle 1 found no room within 1 particles; pinned: 0 [after";
        assert!(error.to_string().contains(text), "{error}");
        drop(own);
        assert_eq!(cache.statistics().waiting, 0);
        drop(cache.acquire(&1)?);
    }
    Ok(())
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + PATIENCE;
    while !is_so() {
        assert!(std::time::Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn whoever_waits_is_served_in_turn_when_a_guard_is_dropped() -> Result<()> {
    let (cache, _) = filled(Some(1), Policy::Lru, 4);
    let guard = cache.acquire(&0)?;
    let (served, order) = mpsc::channel();
    std::thread::scope(|scope| {
        for key in [2, 1, 3] {
            let (cache, served) = (cache.clone(), served.clone());
            let waiting = cache.statistics().waiting;
            let seen = cache.clone();
            scope.spawn(move || {
                let guard = cache.acquire_timeout(&key, PATIENCE).unwrap();
                served.send(key).unwrap();
                drop(guard);
            });
            wait_for("a wait", || seen.statistics().waiting > waiting);
        }
        drop(guard);
        assert_eq!(order.iter().take(3).collect::<Vec<_>>(), [2, 1, 3]);
    });
    Ok(())
}

#[test]
fn a_particle_that_many_acquire_is_moved_once() {
    let (cache, device) = filled(Some(2), Policy::Lru, 3);
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                let guard = cache.acquire_timeout(&1, PATIENCE).unwrap();
                assert!(guard.is_there.load(SeqCst));
            });
        }
    });
    assert_eq!(device.moves.load(SeqCst), 1);
}

#[test]
fn a_move_that_fails_leaves_everything_where_it_was() -> Result<()> {
    for policy in [Policy::Lru, Policy::Direct] {
        let (cache, device) = filled(Some(1), policy, 2);
        device.fails.store(true, SeqCst);
        assert_eq!(cache.acquire(&0).unwrap_err().kind(), ErrorKind::Io);
        assert_eq!((cache.resident(), cache.statistics().failures), (vec![], 1));
        device.fails.store(false, SeqCst);
        drop(cache.acquire(&0)?);
        device.fails.store(true, SeqCst);
        let error = cache.acquire(&1).unwrap_err();
        assert!(error.to_string().contains("the bus is down"), "{error}");
        assert_eq!((cache.resident(), cache.statistics().resident_bytes), (vec![0], 10));
        drop(cache.acquire(&0)?);
        device.fails.store(false, SeqCst);
        drop(cache.acquire(&1)?);
        assert_eq!(cache.resident(), [1]);
        assert_eq!((device.particles.load(SeqCst), device.particles_most.load(SeqCst)), (1, 1));
    }
    Ok(())
}

#[test]
fn all_who_wait_for_a_particle_get_the_error_of_its_move_and_others_do_not() -> Result<()> {
    let (cache, device) = filled(Some(1), Policy::Lru, 2);
    let guard = cache.acquire(&0)?;
    device.fails.store(true, SeqCst);
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..4).map(|_| scope.spawn(|| cache.acquire_timeout(&1, PATIENCE))).collect();
        wait_for("four waits", || cache.statistics().waiting == 4);
        drop(guard);
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap().unwrap_err().kind(), ErrorKind::Io);
        }
    });
    assert_eq!(cache.resident(), [0]);
    assert_eq!(device.moves.load(SeqCst), 2, "the victim was asked once, and the others were told");
    Ok(())
}

#[test]
fn removal_and_closing_end_waits() -> Result<()> {
    let (cache, device) = filled(Some(1), Policy::Lru, 3);
    let guard = cache.acquire(&0)?;
    std::thread::scope(|scope| {
        let removed = scope.spawn(|| cache.acquire(&1).unwrap_err().kind());
        wait_for("a wait", || cache.statistics().waiting == 1);
        cache.remove(&1).unwrap();
        assert_eq!(removed.join().unwrap(), ErrorKind::NotFound);
        let closed = scope.spawn(|| cache.acquire(&2).unwrap_err().kind());
        wait_for("a wait", || cache.statistics().waiting == 1);
        cache.remove(&0).unwrap();
        assert!(!cache.contains(&0) && cache.statistics().resident == 1, "its guard is there");
        cache.close();
        assert_eq!(closed.join().unwrap(), ErrorKind::Closed);
    });
    assert!(guard.is_there.load(SeqCst));
    drop(guard);
    assert_eq!((cache.statistics().resident, cache.statistics().resident_bytes), (0, 0));
    assert_eq!(Arc::strong_count(&device), 2, "only 2 is left");
    assert_eq!(cache.acquire(&2).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(cache.insert(7, Model::new(&device, 1)).unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(cache.remove(&1).unwrap_err().kind(), ErrorKind::NotFound);
    Ok(())
}

#[test]
fn options_without_a_meaning_are_refused() {
    for (particles, bytes, policy) in
        [(Some(0), None, Policy::Lru), (None, Some(0), Policy::Lru), (None, Some(9), Policy::Direct)]
    {
        let options = CacheOptions { device: "cpu".into(), particles, bytes, policy };
        assert_eq!(Models::new(options).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[derive(Clone, Debug)]
enum Act {
    Acquire(u64),
    Release(usize),
    Remove(u64),
    Insert(u64),
    Fail(bool),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => (0..6_u64).prop_map(Act::Acquire),
        5 => (0..6_usize).prop_map(Act::Release),
        1 => (0..6_u64).prop_map(Act::Remove),
        1 => (0..6_u64).prop_map(Act::Insert),
        1 => any::<bool>().prop_map(Act::Fail),
    ];
    proptest::collection::vec(act, 1..60)
}

/// What a cache of a policy does, in the plainest way.
#[derive(Default)]
struct Plain {
    /// Key, slot.
    known: Vec<(u64, u64)>,
    /// Those who are resident, the one that was released last at the end; and the number of their guards.
    resident: Vec<(u64, usize)>,
    created: u64,
}

impl Plain {
    fn insert(&mut self, key: u64, capacity: u64) -> bool {
        if self.known.iter().any(|(known, _)| *known == key) || self.pins(key) > 0 {
            return false;
        }
        self.known.push((key, self.created % capacity));
        self.created += 1;
        true
    }

    fn pins(&self, key: u64) -> usize {
        self.resident.iter().find(|(resident, _)| *resident == key).map_or(0, |(_, pins)| *pins)
    }

    fn slot(&self, key: u64) -> Option<u64> {
        self.known.iter().find(|(known, _)| *known == key).map(|(_, slot)| *slot)
    }

    /// Whether it can be had; `None` if a move fails.
    fn acquire(&mut self, key: u64, capacity: usize, policy: Policy, fails: bool) -> Option<bool> {
        if let Some(place) = self.resident.iter().position(|(resident, _)| *resident == key) {
            self.resident[place].1 += 1;
            return Some(true);
        }
        let victim = match policy {
            Policy::Lru if self.resident.len() < capacity => None,
            Policy::Lru => Some(self.resident.iter().position(|(_, pins)| *pins == 0)),
            Policy::Direct => {
                let slot = self.slot(key);
                let place = self.resident.iter().position(|(resident, _)| self.slot(*resident) == slot);
                place.map(|place| Some(place).filter(|place| self.resident[*place].1 == 0))
            }
        };
        match victim {
            Some(None) => return Some(false),
            // The one that was not parked was touched last.
            Some(Some(place)) if fails => {
                let kept = self.resident.remove(place);
                self.resident.push(kept);
            }
            Some(Some(place)) => _ = self.resident.remove(place),
            None => {}
        }
        if fails {
            return None;
        }
        self.resident.push((key, 1));
        Some(true)
    }

    fn release(&mut self, key: u64) {
        let Some(place) = self.resident.iter().position(|(resident, _)| *resident == key) else { return };
        self.resident[place].1 -= 1;
        if self.resident[place].1 == 0 {
            let released = self.resident.remove(place);
            self.resident.push(released);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_cache_does_what_a_plain_list_does(capacity in 1..4_usize, is_direct: bool, acts in acts()) {
        let policy = if is_direct { Policy::Direct } else { Policy::Lru };
        let (cache, device) = filled(Some(capacity), policy, 0);
        let mut plain = Plain::default();
        let mut guards: Vec<(u64, Guard<u64, Model>)> = Vec::new();
        let mut fails = false;
        for act in acts {
            match act {
                Act::Insert(key) | Act::Acquire(key) if plain.slot(key).is_none() => {
                    if plain.insert(key, capacity as u64) {
                        cache.insert(key, Model::new(&device, 10)).unwrap();
                    }
                }
                Act::Insert(key) => prop_assert!(cache.insert(key, Model::new(&device, 10)).is_err()),
                Act::Acquire(key) => match (cache.try_acquire(&key), plain.acquire(key, capacity, policy, fails)) {
                    (Ok(Some(guard)), Some(true)) => guards.push((key, guard)),
                    (Ok(None), Some(false)) | (Err(_), None) => {}
                    (got, expected) => prop_assert!(false, "{:?}, and not {expected:?}", got.map(|got| got.is_some())),
                },
                Act::Release(place) if place < guards.len() => {
                    let (key, guard) = guards.remove(place);
                    drop(guard);
                    plain.release(key);
                }
                // Whoever is pinned and removed is another one's test.
                Act::Remove(key) if plain.pins(key) == 0 && plain.slot(key).is_some() => {
                    let was_there = cache.resident().contains(&key);
                    cache.remove(&key).unwrap();
                    device.particles.fetch_sub(i64::from(was_there), SeqCst);
                    plain.known.retain(|(known, _)| *known != key);
                    plain.resident.retain(|(resident, _)| *resident != key);
                }
                Act::Fail(on) => {
                    fails = on;
                    device.fails.store(on, SeqCst);
                }
                Act::Release(_) | Act::Remove(_) => {}
            }
            let mut expected: Vec<u64> = plain.resident.iter().map(|(key, _)| *key).collect();
            let mut resident = cache.resident();
            expected.sort_unstable();
            resident.sort_unstable();
            prop_assert_eq!(resident, expected);
            prop_assert!(guards.iter().all(|(_, guard)| guard.is_there.load(SeqCst)));
            prop_assert_eq!(cache.statistics().resident as i64, device.particles.load(SeqCst));
        }
    }

    #[test]
    fn many_threads_never_have_more_than_the_device_holds(
        seed: u64, particles in 1..4_usize, bytes in 40..100_u64, is_direct: bool,
    ) {
        let policy = if is_direct { Policy::Direct } else { Policy::Lru };
        let (cache, device) = (cache(Some(particles), Some(bytes), policy), Arc::new(Device::default()));
        (0..6).for_each(|key| cache.insert(key, Model::new(&device, 10 + 5 * key)).unwrap());
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (cache, device) = (&cache, &device);
                scope.spawn(move || works(cache, device, seed ^ thread.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            }
        });
        device.fails.store(false, SeqCst);
        prop_assert!(device.particles_most.load(SeqCst) <= particles as i64);
        prop_assert!(device.bytes_most.load(SeqCst) <= bytes as i64);
        let statistics = cache.statistics();
        prop_assert_eq!((statistics.pinned, statistics.waiting), (0, 0));
        prop_assert_eq!(statistics.resident as i64, device.particles.load(SeqCst));
        prop_assert_eq!(statistics.resident_bytes as i64, device.bytes.load(SeqCst));
        (0..6).for_each(|key| drop(cache.acquire(&key).unwrap()));
    }
}

/// Acquires in every way, one at a time.
fn works(cache: &Models, device: &Device, mut random: u64) {
    for _ in 0..30 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (key, way) = ((random >> 33) % 6, (random >> 40) % 16);
        device.fails.store(way == 0, SeqCst);
        let guard = match way {
            1..4 => cache.try_acquire(&key),
            4..6 => cache.acquire_timeout(&key, Duration::from_micros(random >> 54)).map(Some),
            _ => cache.acquire_timeout(&key, PATIENCE).map(Some),
        };
        match guard {
            Ok(Some(guard)) => assert!(guard.is_there.load(SeqCst) && !guard.is_moving.load(SeqCst)),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded => assert!((4..6).contains(&way), "{error}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io, "{error}"),
        }
    }
}

/// A particle that looks, when it is dropped, whether its room is somebody else's already.
struct Felt(Option<(Cache<u64, Felt>, mpsc::Sender<bool>)>);

impl Resident for Felt {
    fn len_bytes(&self) -> u64 {
        10
    }

    fn bring(&self) -> Result<()> {
        Ok(())
    }

    fn park(&self) -> Result<()> {
        Ok(())
    }
}

impl Drop for Felt {
    fn drop(&mut self) {
        if let Some((cache, told)) = self.0.take() {
            told.send(cache.try_acquire(&1).expect("it is known").is_some()).expect("the test listens");
        }
    }
}

#[test]
fn a_particle_that_is_removed_has_its_room_until_it_is_dropped() -> Result<()> {
    for policy in [Policy::Lru, Policy::Direct] {
        for is_pinned in [false, true] {
            let cache = Cache::new(CacheOptions { device: "cpu".into(), particles: Some(1), bytes: Some(10), policy })?;
            let (told, heard) = mpsc::channel();
            cache.insert(0, Felt(Some((cache.clone(), told))))?;
            (1..3).try_for_each(|key| cache.insert(key, Felt(None)))?;
            let mut guard = Some(cache.acquire(&0)?).filter(|_| is_pinned);
            cache.remove(&0)?;
            guard.take();
            let is_taken = heard.try_recv().expect("it is dropped by whoever lets go of it last");
            assert!(!is_taken, "two have the room of one; {policy:?}, pinned: {is_pinned}");
            assert_eq!((cache.statistics().resident, cache.statistics().resident_bytes), (0, 0));
            let next = cache.try_acquire(&1)?.expect("the room is free");
            // Who waits has it then.
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| cache.acquire_timeout(&2, PATIENCE).map(drop));
                wait_for("a wait", || cache.statistics().waiting == 1);
                cache.remove(&1).expect("it is known");
                drop(next);
                waits.join().expect("no panic")
            })?;
        }
    }
    Ok(())
}
