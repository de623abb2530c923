//! What a cache knows, under its lock: nothing here blocks, or calls anybody.

use super::guard::{Grant, Held};
use super::threads::ThreadId;
use super::{CacheOptions, CacheStatistics, Inner, Key, Policy, Resident, Served};
use sheave_base::collections::{HashMap, HashSet};
use sheave_base::planted::{self, Bug};
use sheave_base::work::{self, Completer};
use sheave_base::{Error, ErrorKind, Result, Work, limits};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// How many of those who are pinned an error names.
const NAMED: usize = 8;

enum Place {
    Parked,
    /// Room is claimed for it.
    Bringing,
    /// The threads of its guards, as far as they have one.
    Resident(SmallVec<[Option<ThreadId>; 1]>),
    /// Its room is that of the grant that parks it.
    Parking,
}

struct Entry<K, T> {
    key: K,
    value: Arc<T>,
    bytes: u64,
    place: Place,
    /// When it was released last, while it is resident and not pinned.
    idle_since: u64,
    /// Nobody finds it any more.
    is_removed: bool,
}

struct Waiter<K: Key, T: Resident> {
    number: u64,
    thread: Option<ThreadId>,
    completer: Completer<Grant<K, T>>,
}

/// What somebody who waited gets.
pub(crate) struct Outcome<K: Key, T: Resident> {
    completer: Completer<Grant<K, T>>,
    outcome: Option<Result<Grant<K, T>>>,
}

impl<K: Key, T: Resident> Outcome<K, T> {
    /// Tells it. Not under the lock: it wakes tasks, and drops what nobody takes.
    pub(crate) fn tell(self) {
        if let Some(outcome) = self.outcome {
            self.completer.complete(outcome);
        }
    }
}

/// A particle that is removed and that nobody needs.
pub(crate) struct Forgotten<T> {
    pub(crate) number: u64,
    pub(crate) value: Arc<T>,
    /// The bytes of its room, if it has any: that is nobody else's until [`State::left`].
    pub(crate) room: Option<u64>,
}

pub(crate) enum Begun<K: Key, T: Resident> {
    Granted(u64, Held<T>),
    Waits(Work<Grant<K, T>>),
    Blocked,
}

pub(crate) struct State<K: Key, T: Resident> {
    particles_max: usize,
    bytes_max: u64,
    policy: Policy,
    numbers: HashMap<K, u64>,
    /// By number, which is the order in which they were inserted.
    entries: BTreeMap<u64, Entry<K, T>>,
    created: u64,
    /// Who has a slot, where there are any.
    slots: HashMap<u64, u64>,
    /// Those who are resident and not pinned, by the time of their release.
    idle: BTreeMap<u64, u64>,
    releases: u64,
    /// Particles that are pinned, idle or on their way to the device, their bytes, and what grants have reserved.
    claimed: usize,
    claimed_bytes: u64,
    /// Those who are resident and pinned.
    pinned: BTreeSet<u64>,
    waiters: VecDeque<Waiter<K, T>>,
    /// Those who wait no more, until they are told.
    settled: Served<K, T>,
    statistics: CacheStatistics,
    is_closed: bool,
}

impl<K: Key, T: Resident> State<K, T> {
    pub(crate) fn new(options: &CacheOptions) -> Self {
        Self {
            particles_max: options.particles.unwrap_or(usize::MAX),
            bytes_max: options.bytes.unwrap_or(u64::MAX),
            policy: options.policy,
            numbers: HashMap::default(),
            entries: BTreeMap::new(),
            created: 0,
            slots: HashMap::default(),
            idle: BTreeMap::new(),
            releases: 0,
            claimed: 0,
            claimed_bytes: 0,
            pinned: BTreeSet::new(),
            waiters: VecDeque::new(),
            settled: Vec::new(),
            statistics: CacheStatistics::default(),
            is_closed: false,
        }
    }

    pub(crate) fn insert(&mut self, key: K, value: Arc<T>, bytes: u64) -> Result<()> {
        let refused = |kind, what: String| Err(Error::new(kind, what).operation("insert"));
        if self.is_closed {
            return Err(closed("insert"));
        }
        if self.numbers.contains_key(&key) {
            return refused(ErrorKind::AlreadyExists, format!("it has a particle {key}"));
        }
        if self.entries.len() >= limits::PARTICLES_MAX {
            return refused(ErrorKind::LimitExceeded, format!("it has {} particles already", self.entries.len()));
        }
        self.require_fits(&key, bytes).map_err(|error| error.operation("insert"))?;
        let number = self.created;
        self.created += 1;
        self.numbers.insert(key.clone(), number);
        let entry = Entry { key, value, bytes, place: Place::Parked, idle_since: 0, is_removed: false };
        self.entries.insert(number, entry);
        Ok(())
    }

    fn require_fits(&self, key: &K, bytes: u64) -> Result<()> {
        if bytes <= self.bytes_max {
            return Ok(());
        }
        let what = format!("particle {key} takes {bytes} bytes, and it holds {}", self.bytes_max);
        Err(Error::new(ErrorKind::LimitExceeded, what).hint("make the cache larger"))
    }

    pub(crate) fn begin(
        &mut self,
        inner: &Arc<Inner<K, T>>,
        key: &K,
        thread: Option<ThreadId>,
        waits: bool,
    ) -> (Result<Begun<K, T>>, Served<K, T>) {
        let refused = |error: Error| (Err(error.operation("acquire")), Vec::new());
        if self.is_closed {
            return refused(closed("acquire"));
        }
        let Some(&number) = self.numbers.get(key) else { return refused(unknown(key)) };
        let is_parked = match self.entries.get(&number) {
            Some(entry) => match self.require_fits(key, entry.bytes) {
                Ok(()) => matches!(entry.place, Place::Parked),
                Err(error) => return refused(error),
            },
            None => return refused(unknown(key)),
        };
        // Who needs room lets those go first who wait for it.
        if (!is_parked || self.waiters.is_empty())
            && let Ok(held) = self.granted(number, thread)
        {
            return (Ok(Begun::Granted(number, held)), Vec::new());
        }
        if !waits {
            return (Ok(Begun::Blocked), Vec::new());
        }
        if let Some(error) = thread.and_then(|thread| self.deadlock(number, thread)) {
            return refused(error);
        }
        let (completer, work) = work::pair("acquire");
        self.waiters.push_back(Waiter { number, thread, completer });
        (Ok(Begun::Waits(work)), self.serve(inner))
    }

    /// Grants the particle, if it is resident or there is room for it; else what keeps it from that.
    fn granted(&mut self, number: u64, thread: Option<ThreadId>) -> Result<Held<T>, Kept> {
        let entry = self.entries.get(&number).ok_or(Kept::Moving)?;
        let value = Arc::clone(&entry.value);
        let (brings, idle_since) = match &entry.place {
            Place::Bringing | Place::Parking => return Err(Kept::Moving),
            Place::Parked => (true, None),
            Place::Resident(pins) => (false, pins.is_empty().then_some(entry.idle_since)),
        };
        if let Some(since) = idle_since {
            self.idle.remove(&since);
        }
        // One that is resident has its room, whatever that is.
        let victims = match brings {
            true => self.room_for(number)?,
            false => self.excess(0, 0, None).0,
        };
        let before = (self.claimed, self.claimed_bytes);
        let victims: Vec<_> = victims.into_iter().map(|victim| self.claims_no_more(victim)).collect();
        if brings {
            self.claim(number);
        }
        let reserved = (before.0.saturating_sub(self.claimed), before.1.saturating_sub(self.claimed_bytes));
        self.claimed += reserved.0;
        self.claimed_bytes += reserved.1;
        let Some(entry) = self.entries.get_mut(&number) else { return Err(Kept::Moving) };
        match &mut entry.place {
            Place::Resident(pins) => {
                pins.push(thread);
                self.pinned.insert(number);
                self.statistics.hits += 1;
            }
            place => {
                *place = Place::Bringing;
                self.statistics.misses += 1;
            }
        }
        Ok(Held { value, thread, victims, reserved, brings })
    }

    /// Returns who is to be parked for this one.
    fn room_for(&self, number: u64) -> Result<Vec<u64>, Kept> {
        let bytes = self.entries.get(&number).map_or(0, |entry| entry.bytes);
        let occupant = match self.policy {
            Policy::Direct => self.slots.get(&self.slot(number)).copied(),
            Policy::Lru => None,
        };
        if occupant.is_some_and(|occupant| !self.is_idle(occupant)) {
            return Err(Kept::Slot(self.slot(number)));
        }
        let (victims, fits) = self.excess(1, bytes, occupant);
        if fits { Ok(victims) } else { Err(Kept::All) }
    }

    /// Returns who is to be parked so that so much more has room, and whether it has then.
    fn excess(&self, particles: usize, bytes: u64, first: Option<u64>) -> (Vec<u64>, bool) {
        let mut claimed = self.claimed.saturating_add(particles);
        let mut claimed_bytes = self.claimed_bytes.saturating_add(bytes);
        let mut victims = Vec::new();
        let others = self.idle.values().copied().filter(|victim| Some(*victim) != first);
        let mut idle = first.into_iter().chain(others);
        let has_room = |claimed, claimed_bytes| claimed <= self.particles_max && claimed_bytes <= self.bytes_max;
        while !has_room(claimed, claimed_bytes) || (first.is_some() && victims.is_empty()) {
            let Some(victim) = idle.next() else { return (victims, false) };
            claimed -= 1;
            claimed_bytes -= self.entries.get(&victim).map_or(0, |entry| entry.bytes);
            victims.push(victim);
        }
        (victims, true)
    }

    fn slot(&self, number: u64) -> u64 {
        number % self.particles_max as u64
    }

    fn is_idle(&self, number: u64) -> bool {
        self.entries.get(&number).is_some_and(|entry| matches!(&entry.place, Place::Resident(pins) if pins.is_empty()))
    }

    fn claim(&mut self, number: u64) {
        let Some(entry) = self.entries.get(&number) else { return };
        self.claimed += 1;
        self.claimed_bytes += entry.bytes;
        if self.policy == Policy::Direct {
            self.slots.insert(self.slot(number), number);
        }
    }

    fn unclaim(&mut self, number: u64) {
        let bytes = self.entries.get(&number).map(|entry| entry.bytes);
        if let Some(bytes) = bytes {
            self.left(number, bytes);
        }
    }

    /// This one is to be parked.
    fn claims_no_more(&mut self, number: u64) -> (u64, Arc<T>) {
        self.unclaim(number);
        let entry = self.entries.get_mut(&number).expect("whoever is idle is known");
        self.idle.remove(&entry.idle_since);
        entry.place = Place::Parking;
        (number, Arc::clone(&entry.value))
    }

    /// One is parked, and so much room that others had is nobody's from now on. Returns it if nobody needs it.
    pub(crate) fn parked(&mut self, number: u64, room: (usize, u64)) -> Option<Forgotten<T>> {
        self.claimed -= room.0;
        self.claimed_bytes -= room.1;
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.place = Place::Parked;
            self.statistics.evictions += 1;
            self.statistics.parked_bytes += entry.bytes;
        }
        self.forgotten(number)
    }

    pub(crate) fn brought(&mut self, number: u64, thread: Option<ThreadId>) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.place = Place::Resident(SmallVec::from_elem(thread, 1));
            self.pinned.insert(number);
            self.statistics.brought_bytes += entry.bytes;
        }
    }

    /// A grant is not carried out, or not to its end. What has not moved stays where it is. Returns what nobody needs.
    pub(crate) fn give_back(&mut self, number: u64, held: &Held<T>, error: Option<&Error>) -> Vec<Forgotten<T>> {
        let mut gone = Vec::new();
        self.statistics.failures += u64::from(error.is_some());
        self.claimed -= held.reserved.0;
        self.claimed_bytes -= held.reserved.1;
        if held.brings {
            self.unclaim(number);
            if let Some(entry) = self.entries.get_mut(&number) {
                entry.place = Place::Parked;
                gone.extend(self.forgotten(number));
            }
        }
        for (victim, _) in &held.victims {
            if let Some(entry) = self.entries.get_mut(victim) {
                entry.place = Place::Resident(SmallVec::new());
                self.claim(*victim);
                self.becomes_idle(*victim);
                gone.extend(self.forgotten(*victim));
            }
        }
        match error.filter(|_| held.brings) {
            Some(error) => self.fail(number, error),
            None if held.brings => {}
            None => gone.extend(self.released(number, held.thread, None)),
        }
        gone
    }

    /// Whoever waits for this one gets the error.
    fn fail(&mut self, number: u64, error: &Error) {
        for waiter in std::mem::take(&mut self.waiters) {
            if waiter.number == number {
                let outcome = Some(Err(error.clone()));
                self.settled.push(Outcome { completer: waiter.completer, outcome });
            } else {
                self.waiters.push_back(waiter);
            }
        }
    }

    /// A guard is dropped; the particle takes so many bytes now. Returns it if nobody needs it.
    pub(crate) fn released(
        &mut self,
        number: u64,
        thread: Option<ThreadId>,
        bytes: Option<u64>,
    ) -> Option<Forgotten<T>> {
        let entry = self.entries.get_mut(&number)?;
        let Place::Resident(pins) = &mut entry.place else { return None };
        let pin = pins.iter().position(|pin| *pin == thread)?;
        if planted::strikes(Bug::CachePinKept) {
            return None;
        }
        pins.swap_remove(pin);
        if !pins.is_empty() {
            if !planted::strikes(Bug::CachePinIgnored) {
                return None;
            }
            pins.clear();
        }
        self.pinned.remove(&number);
        if let Some(bytes) = bytes {
            self.claimed_bytes = self.claimed_bytes - entry.bytes + bytes;
            entry.bytes = bytes;
        }
        self.becomes_idle(number);
        self.forgotten(number)
    }

    /// It is the last of those who make room.
    fn becomes_idle(&mut self, number: u64) {
        self.releases += 1;
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.idle_since = self.releases;
            self.idle.insert(self.releases, number);
        }
    }

    /// Takes it away if it is removed, and neither pinned nor on its way. One that is resident keeps its room: it is in
    /// the memory of the device until it is dropped.
    fn forgotten(&mut self, number: u64) -> Option<Forgotten<T>> {
        let entry = self.entries.get(&number).filter(|entry| entry.is_removed)?;
        let room = match &entry.place {
            Place::Parked => None,
            Place::Resident(pins) if pins.is_empty() => {
                self.idle.remove(&entry.idle_since);
                Some(entry.bytes)
            }
            Place::Resident(_) | Place::Bringing | Place::Parking => return None,
        };
        self.entries.remove(&number).map(|entry| Forgotten { number, value: entry.value, room })
    }

    /// One takes its room no more, which is so much.
    pub(crate) fn left(&mut self, number: u64, bytes: u64) {
        self.claimed -= 1;
        self.claimed_bytes -= bytes;
        if self.policy == Policy::Direct && self.slots.get(&self.slot(number)) == Some(&number) {
            self.slots.remove(&self.slot(number));
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Result<Option<Forgotten<T>>> {
        let number = self.numbers.remove(key).ok_or_else(|| unknown(key).operation("remove"))?;
        self.fail(number, &unknown(key).operation("acquire"));
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.is_removed = true;
        }
        Ok(self.forgotten(number))
    }

    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        let failed = std::mem::take(&mut self.waiters)
            .into_iter()
            .map(|waiter| Outcome { completer: waiter.completer, outcome: Some(Err(closed("acquire"))) });
        self.settled.extend(failed);
    }

    /// Gives to those who wait what there is, in the order in which they came.
    pub(crate) fn serve(&mut self, inner: &Arc<Inner<K, T>>) -> Served<K, T> {
        if planted::strikes(Bug::CacheRoomUntold) {
            return std::mem::take(&mut self.settled);
        }
        let mut kept_slots: HashSet<u64> = HashSet::default();
        let mut are_all_kept = false;
        for waiter in std::mem::take(&mut self.waiters) {
            let Waiter { number, thread, completer } = waiter;
            if !completer.is_awaited() {
                self.settled.push(Outcome { completer, outcome: None });
                continue;
            }
            let is_parked = self.entries.get(&number).is_some_and(|entry| matches!(entry.place, Place::Parked));
            let is_behind = is_parked && (are_all_kept || kept_slots.contains(&self.slot(number)));
            let granted = if is_behind { Err(Kept::Moving) } else { self.granted(number, thread) };
            match granted {
                Ok(held) => {
                    let outcome = Some(Ok(Grant::new(inner, number, held)));
                    self.settled.push(Outcome { completer, outcome });
                    continue;
                }
                Err(Kept::Slot(slot)) => _ = kept_slots.insert(slot),
                Err(Kept::All) => are_all_kept = true,
                Err(Kept::Moving) => {}
            }
            self.waiters.push_back(Waiter { number, thread, completer });
        }
        std::mem::take(&mut self.settled)
    }

    /// The error of a thread that would wait for itself: all room that the particle can get is pinned by its guards.
    fn deadlock(&self, number: u64, thread: ThreadId) -> Option<Error> {
        let is_own = |entry: &Entry<K, T>| match &entry.place {
            Place::Resident(pins) => !pins.is_empty() && pins.iter().all(|pin| *pin == Some(thread)),
            Place::Parked | Place::Bringing | Place::Parking => false,
        };
        let entry = self.entries.get(&number).filter(|entry| matches!(entry.place, Place::Parked))?;
        let are_own = match self.room_for(number).err()? {
            Kept::Slot(slot) => {
                self.slots.get(&slot).and_then(|occupant| self.entries.get(occupant)).is_some_and(is_own)
            }
            Kept::All => {
                let mut pinned = self.pinned.iter().filter_map(|pinned| self.entries.get(pinned));
                self.claimed == self.pinned.len() + self.idle.len() && pinned.all(is_own)
            }
            Kept::Moving => false,
        };
        are_own.then(|| {
            let what = format!("this thread holds {}, which leave no room for particle {}", self.pinned(), entry.key);
            Error::new(ErrorKind::Deadlock, what).hint("release a guard before, or make the cache larger")
        })
    }

    /// Those who are pinned, as errors name them.
    pub(crate) fn pinned(&self) -> String {
        if self.pinned.is_empty() {
            return "none".to_owned();
        }
        let keys = self.pinned.iter().filter_map(|number| self.entries.get(number));
        let mut names: Vec<String> = keys.take(NAMED).map(|entry| entry.key.to_string()).collect();
        if self.pinned.len() > NAMED {
            names.push(format!("{} others", self.pinned.len() - NAMED));
        }
        names.join(", ")
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.numbers.contains_key(key)
    }

    pub(crate) fn keys(&self) -> Vec<K> {
        self.entries.values().filter(|entry| !entry.is_removed).map(|entry| entry.key.clone()).collect()
    }

    pub(crate) fn resident(&self) -> Vec<K> {
        let is_resident = |entry: &&Entry<K, T>| matches!(entry.place, Place::Resident(_)) && !entry.is_removed;
        self.entries.values().filter(is_resident).map(|entry| entry.key.clone()).collect()
    }

    pub(crate) fn peek(&self, key: &K) -> Option<Arc<T>> {
        self.numbers.get(key).and_then(|number| self.entries.get(number)).map(|entry| Arc::clone(&entry.value))
    }

    pub(crate) fn statistics(&self) -> CacheStatistics {
        CacheStatistics {
            known: self.numbers.len(),
            resident: self.claimed,
            resident_bytes: self.claimed_bytes,
            pinned: self.pinned.len(),
            waiting: self.waiters.len(),
            ..self.statistics
        }
    }
}

/// What keeps a particle from being granted.
enum Kept {
    /// It is on its way itself.
    Moving,
    /// Who is in its slot.
    Slot(u64),
    /// All those who have room.
    All,
}

fn unknown<K: Key>(key: &K) -> Error {
    Error::new(ErrorKind::NotFound, format!("it has no particle {key}")).hint("was it removed?")
}

fn closed(operation: &'static str) -> Error {
    Error::new(ErrorKind::Closed, "it is closed").operation(operation)
}
