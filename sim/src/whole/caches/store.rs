//! The models of a process, and the device that has room for some of them.
//!
//! A model is a row of numbers, one for each operation that was applied to it, and lies in one of two places. A move
//! takes it from one to the other in two halves, between which others go on. So a model that is used or moved while it
//! moves is seen, as is one that a move leaves a part of behind.

use super::super::ledger::Ledger;
use crate::jobs::pause;
use parking_lot::Mutex;
use sheave_base::clock::SeededEntropy;
use sheave_base::{Error, ErrorKind, Result, clock};
use sheave_particle::{Cache, CacheOptions, Guard, Policy, Resident};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// What a move says that fails on purpose.
pub(super) const PLANNED: &str = "a move that is to fail";

/// Longer than anybody keeps a model.
const FREE_WITHIN: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Places {
    device: Vec<i64>,
    host: Vec<i64>,
    is_resident: bool,
    is_moving: bool,
    users: usize,
}

/// What is seen of all models of a process.
struct Witness {
    ledger: Arc<Ledger>,
    process: usize,
    capacity: usize,
    /// Models that are on the device, or on their way there.
    resident: AtomicUsize,
    dice: Mutex<SeededEntropy>,
}

impl Witness {
    fn fault(&self, what: String) {
        self.ledger.fault(format!("{what}, in process {}", self.process));
    }

    fn below(&self, bound: u64) -> u64 {
        self.dice.lock().below(bound)
    }

    fn enters(&self, key: u64) {
        let resident = self.resident.fetch_add(1, SeqCst) + 1;
        if resident > self.capacity {
            self.fault(format!("model {key} comes to a device of {} beside {}", self.capacity, resident - 1));
        }
    }

    fn leaves(&self) {
        self.resident.fetch_sub(1, SeqCst);
    }
}

/// A model of a particle.
pub(super) struct Weights {
    key: u64,
    places: Mutex<Places>,
    /// All operations that were applied, in their order: what it must hold.
    applied: Mutex<Vec<i64>>,
    witness: Arc<Witness>,
}

impl Weights {
    /// Moves it to the device, or from there. One that fails leaves it where it was.
    fn moves(&self, to_device: bool) -> Result<()> {
        let mut places = self.places.lock();
        if places.is_moving || places.is_resident == to_device || places.users > 0 {
            let Places { is_resident, is_moving, users, .. } = *places;
            self.witness.fault(format!(
                "model {} is to move to the device: {to_device}; it is there: {is_resident}, moves: {is_moving}, \
                 and has {users} users",
                self.key
            ));
        }
        places.is_moving = true;
        let (from, to) = places.sides(to_device);
        let half = from.len() / 2;
        to.extend(from.drain(..half));
        drop(places);
        if to_device {
            self.witness.enters(self.key);
        }
        let dice = self.witness.below(16);
        if dice < 8 {
            pause(Duration::from_micros(self.witness.below(3000)));
        }
        let mut places = self.places.lock();
        places.is_moving = false;
        let (from, to) = places.sides(to_device);
        let fails = dice == 0;
        if fails {
            to.append(from);
            std::mem::swap(from, to);
        } else {
            to.append(from);
            places.is_resident = to_device;
        }
        drop(places);
        if to_device == fails {
            self.witness.leaves();
        }
        if fails { Err(Error::new(ErrorKind::Io, PLANNED)) } else { Ok(()) }
    }

    /// Holds what it has against all that was applied.
    fn is_whole(&self, places: &Places) {
        let expected = self.applied.lock();
        if !places.is_resident || places.is_moving || places.device != *expected || !places.host.is_empty() {
            self.witness.fault(format!(
                "model {} has {:?} on the device and {:?} elsewhere; expected {expected:?} on the device; moves: {}",
                self.key, places.device, places.host, places.is_moving
            ));
        }
    }
}

impl Places {
    fn sides(&mut self, to_device: bool) -> (&mut Vec<i64>, &mut Vec<i64>) {
        let Self { device, host, .. } = self;
        if to_device { (host, device) } else { (device, host) }
    }
}

impl Resident for Weights {
    fn len_bytes(&self) -> u64 {
        1
    }

    fn bring(&self) -> Result<()> {
        self.moves(true)
    }

    fn park(&self) -> Result<()> {
        self.moves(false)
    }
}

impl Drop for Weights {
    fn drop(&mut self) {
        let Places { is_resident, is_moving, users, .. } = *self.places.get_mut();
        if is_resident {
            self.witness.leaves();
        }
        if is_moving || users > 0 {
            self.witness.fault(format!("model {} ends, moves: {is_moving}, and has {users} users", self.key));
        }
    }
}

/// A model that is pinned, and used.
pub(super) struct Pinned(Guard<u64, Weights>);

impl Pinned {
    fn new(guard: Guard<u64, Weights>) -> Self {
        let mut places = guard.places.lock();
        places.users += 1;
        guard.is_whole(&places);
        drop(places);
        Self(guard)
    }

    /// Applies the operation of this number.
    pub(super) fn apply(&self, number: i64) {
        let mut places = self.0.places.lock();
        places.device.push(number);
        self.0.applied.lock().push(number);
        self.0.is_whole(&places);
    }
}

impl Deref for Pinned {
    type Target = Weights;

    fn deref(&self) -> &Weights {
        &self.0
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut places = self.0.places.lock();
        self.0.is_whole(&places);
        places.users -= 1;
    }
}

/// The device of a process, and its models.
pub(super) struct Store {
    cache: Cache<u64, Weights>,
    witness: Arc<Witness>,
    keys: Mutex<Vec<u64>>,
    created: AtomicU64,
    /// Models that were removed.
    removed: AtomicUsize,
}

impl Store {
    /// A device for fewer models than there are.
    pub(super) fn new(ledger: &Arc<Ledger>, process: usize, dice: &mut SeededEntropy) -> Self {
        let count = 2 + dice.below(4) as usize;
        let capacity = 1 + dice.below(count as u64 - 1) as usize;
        let policy = [Policy::Lru, Policy::Direct][dice.below(2) as usize];
        let is_counted = policy == Policy::Direct || dice.below(2) == 0;
        let options = CacheOptions {
            device: format!("of process {process}"),
            particles: is_counted.then_some(capacity),
            bytes: (!is_counted).then_some(capacity as u64),
            policy,
        };
        let witness = Witness {
            ledger: Arc::clone(ledger),
            process,
            capacity,
            resident: AtomicUsize::new(0),
            dice: Mutex::new(SeededEntropy::new(dice.below(1 << 40))),
        };
        let store = Self {
            cache: Cache::new(options).expect("there is room"),
            witness: Arc::new(witness),
            keys: Mutex::default(),
            created: AtomicU64::new(0),
            removed: AtomicUsize::new(0),
        };
        (0..count).for_each(|_| store.insert());
        store
    }

    fn insert(&self) {
        let key = self.created.fetch_add(1, SeqCst);
        let (places, applied, witness) = (Mutex::default(), Mutex::default(), Arc::clone(&self.witness));
        self.cache.insert(key, Weights { key, places, applied, witness }).expect("it is new");
        self.keys.lock().push(key);
    }

    /// Draws a model.
    pub(super) fn draw(&self, dice: &mut SeededEntropy) -> u64 {
        let keys = self.keys.lock();
        keys[dice.below(keys.len() as u64) as usize]
    }

    /// Removes a model, which whoever uses it keeps, and makes another one.
    pub(super) fn replace(&self, key: u64) {
        let is_there = {
            let mut keys = self.keys.lock();
            let at = keys.iter().position(|known| *known == key);
            at.map(|at| keys.swap_remove(at)).is_some()
        };
        self.insert();
        if is_there {
            self.removed.fetch_add(1, SeqCst);
            self.cache.remove(&key).unwrap_or_else(|error| self.witness.fault(format!("model {key}: {error:?}")));
        }
    }

    /// Pins a model, for as long as it takes, or for so long at most.
    pub(super) fn acquire(&self, key: u64, limit: Option<Duration>) -> Option<Pinned> {
        let acquired = match limit {
            None => self.cache.acquire(&key),
            Some(limit) => self.cache.acquire_timeout(&key, limit),
        };
        self.judged(key, acquired, limit.is_some())
    }

    pub(super) async fn acquire_async(&self, key: u64) -> Option<Pinned> {
        self.judged(key, self.cache.acquire_async(&key).await, false)
    }

    fn judged(&self, key: u64, acquired: Result<Guard<u64, Weights>>, is_timed: bool) -> Option<Pinned> {
        let error = match acquired {
            Ok(guard) => return Some(Pinned::new(guard)),
            Err(error) => error,
        };
        let may_be = match error.kind() {
            ErrorKind::DeadlineExceeded => is_timed,
            ErrorKind::NotFound => self.removed.load(SeqCst) > 0,
            ErrorKind::Io => error.what().contains(PLANNED),
            _ => false,
        };
        if !may_be {
            self.witness.fault(format!("model {key} cannot be acquired: {error:?}"));
        }
        self.witness.ledger.counts(&format!("acquire: {:?}", error.kind()));
        None
    }

    /// When this process uses none any more: all can be acquired, hold what was applied to them, and soon none is
    /// pinned.
    pub(super) fn settles(&self) {
        let keys = self.keys.lock().clone();
        for key in keys {
            let acquired = (0..100).find_map(|_| match self.cache.acquire_timeout(&key, FREE_WITHIN) {
                Err(error) if error.what().contains(PLANNED) => None,
                outcome => Some(outcome),
            });
            match acquired {
                Some(Ok(guard)) => drop(Pinned::new(guard)),
                outcome => self.witness.fault(format!("model {key} is not free: {:?}", outcome.map(|it| it.err()))),
            }
        }
        // Others may still have sent something to this process.
        let begun = clock::now();
        let is_quiet = || {
            let statistics = self.cache.statistics();
            statistics.pinned == 0
                && statistics.waiting == 0
                && statistics.resident == self.witness.resident.load(SeqCst)
        };
        while !is_quiet() && clock::since(begun) < FREE_WITHIN {
            pause(Duration::from_millis(5));
        }
        if !is_quiet() {
            let resident = self.witness.resident.load(SeqCst);
            self.witness
                .fault(format!("{resident} models are on the device at the end of {:?}", self.cache.statistics()));
        }
        self.witness.ledger.counts("settled");
    }
}
