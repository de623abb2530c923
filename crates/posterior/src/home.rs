//! Where a member is: in the memory that it computes in, or parked.
//!
//! A node has room for some of its members, which a [`Cache`] gives out: whoever handles a message of a member acquires
//! it first. Members never wait for each other while they handle a message, so whoever has room gives it up again.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, Result};
use sheave_particle::{Cache, CacheOptions, CacheStatistics, Resident, Snapshot};

use crate::member::{Member, Parked};

/// A member in the room of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// How many were there before, of all posteriors.
    number: u64,
    member: u64,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (member {})", self.number, self.member)
    }
}

enum Place {
    Here(Box<Member>),
    Parked(Box<Parked>),
    /// Only while it is moved, under the lock.
    Nowhere,
}

/// A member, wherever it is.
pub(crate) struct Home {
    place: Mutex<Place>,
    /// What the member takes, or will take when it is brought.
    bytes: AtomicU64,
}

impl Home {
    /// The member is parked.
    fn new(member: Member) -> Result<Self> {
        let bytes = AtomicU64::new(member.len_bytes());
        let home = Self { place: Mutex::new(Place::Here(Box::new(member))), bytes };
        home.park()?;
        Ok(home)
    }

    fn act<R>(&self, act: impl FnOnce(&mut Member) -> Result<R>) -> Result<R> {
        let mut place = self.place.lock();
        let Place::Here(member) = &mut *place else {
            return Err(Error::new(ErrorKind::Internal, "a member that is acquired is not here"));
        };
        let result = act(member);
        self.bytes.store(member.len_bytes(), Ordering::Relaxed);
        result
    }

    fn snapshot(&self) -> Result<Snapshot> {
        match &*self.place.lock() {
            Place::Here(member) => Ok(member.snapshot()),
            Place::Parked(parked) => Ok(parked.snapshot()),
            Place::Nowhere => Err(nowhere()),
        }
    }
}

impl Resident for Home {
    fn len_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn bring(&self) -> Result<()> {
        let mut place = self.place.lock();
        match std::mem::replace(&mut *place, Place::Nowhere) {
            Place::Parked(parked) => match parked.brought() {
                Ok(member) => *place = Place::Here(Box::new(member)),
                Err((parked, error)) => {
                    *place = Place::Parked(parked);
                    return Err(error);
                }
            },
            here @ Place::Here(_) => *place = here,
            Place::Nowhere => return Err(nowhere()),
        }
        Ok(())
    }

    fn park(&self) -> Result<()> {
        let mut place = self.place.lock();
        let Place::Here(member) = &*place else { return Ok(()) };
        let block = member.block()?;
        if let Place::Here(member) = std::mem::replace(&mut *place, Place::Nowhere) {
            *place = Place::Parked(Box::new(member.parked(block)));
        }
        Ok(())
    }
}

fn nowhere() -> Error {
    Error::new(ErrorKind::Internal, "a member was lost by a move that panicked")
}

/// The members of a node, of all posteriors of one inference.
#[derive(Clone)]
pub(crate) struct Room {
    cache: Cache<Key, Home>,
    next: Arc<AtomicU64>,
}

impl Room {
    pub(crate) fn new(options: CacheOptions) -> Result<Self> {
        Ok(Self { cache: Cache::new(options)?, next: Arc::new(AtomicU64::new(0)) })
    }

    /// Gives a member a seat. Does not block.
    pub(crate) fn seat(&self, member: u64, of: Member) -> Result<Seat> {
        let key = Key { number: self.next.fetch_add(1, Ordering::Relaxed), member };
        self.cache.insert(key, Home::new(of)?)?;
        Ok(Seat { room: self.clone(), key })
    }

    pub(crate) fn statistics(&self) -> CacheStatistics {
        self.cache.statistics()
    }
}

/// The right of a member to be in the room; it is forgotten with it.
pub(crate) struct Seat {
    room: Room,
    key: Key,
}

impl Seat {
    /// Brings the member, which may park others, and lets it act. Waits for those who have all room.
    pub(crate) fn act<R>(&self, act: impl FnOnce(&mut Member) -> Result<R>) -> Result<R> {
        self.room.cache.acquire(&self.key)?.act(act)
    }

    /// Returns the parameters, wherever the member is. Brings nobody.
    pub(crate) fn snapshot(&self) -> Result<Snapshot> {
        let home = self
            .room
            .cache
            .peek(&self.key)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("no particle {} has a seat", self.key)))?;
        home.snapshot()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Whoever is not known any more needs not be forgotten.
        let _ = self.room.cache.remove(&self.key);
    }
}
