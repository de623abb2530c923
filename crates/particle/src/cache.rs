//! Who is in the memory of a device.
//!
//! A device has room for some particles, and others have their parameters elsewhere meanwhile. A [`Cache`] decides who
//! is *resident*: a particle is [acquired](Cache::acquire) before it computes, which brings it and pins it there until
//! its [`Guard`] is dropped; to make room others are *parked*. Nothing of what a particle computes depends on how much
//! room there is.
//!
//! **Nobody moves under the lock.** Under it a cache decides alone ([`State`]): who is to be parked and who is to be
//! brought is a [`Grant`] to the thread that acquires, which does it, with the lock let go. While a particle moves
//! nobody else moves it or is given it, so each is moved once however many acquire it, and those wait for that move.
//!
//! **The device never holds more than its capacity.** A grant has the room of what it brings, or that of the ones that
//! it parks for it, whichever is more; when they are parked it gives up the rest, and brings. So what grants and guards
//! have is at most the capacity, and whatever is in the memory of the device is part of that. Only a particle that has
//! grown while it was pinned is more; the next grant parks others for it.
//!
//! **A move that fails changes nothing.** It stays where it was, its grant is given back, and the error goes to all who
//! wait for that particle. So does a grant that is not used, as by a wait whose time was up when it came.
//!
//! **Nobody starves.** Those who need room get it in the order in which they came, if they wait for the same room. Who
//! acquires what is resident anyway needs none.

#[cfg(all(test, loom))]
mod explored;
mod guard;
mod state;
mod threads;

pub use guard::Guard;

use guard::{Grant, Leaving};
use sheave_base::sync::Mutex;
use sheave_base::work::Interrupt;
use sheave_base::{Error, ErrorKind, Result, clock};
use state::{Begun, State};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};
use threads::ThreadId;

/// The parameters of a particle, and all that belongs to them, which a cache moves.
///
/// Neither move is asked for while the particle is pinned, or while another one of it goes on. Both block, and are
/// called by the thread that acquires, without a lock. One that fails leaves the particle usable where it was.
pub trait Resident: Send + Sync + 'static {
    /// Returns how many bytes of the device's memory it takes while it is resident. Asked when it is inserted, and
    /// whenever its last guard is dropped. Must not block.
    fn len_bytes(&self) -> u64;

    /// Moves it into the memory of the device.
    ///
    /// # Errors
    ///
    /// Whatever whoever acquires it shall be told.
    fn bring(&self) -> Result<()>;

    /// Moves it out of the memory of the device.
    ///
    /// # Errors
    ///
    /// Whatever shall be told to the one who needs its room.
    fn park(&self) -> Result<()>;
}

/// Names of particles in a cache.
pub trait Key: Clone + Eq + Hash + fmt::Display + Send + 'static {}

impl<K: Clone + Eq + Hash + fmt::Display + Send + 'static> Key for K {}

/// The choice of who makes room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The one that was released the longest time ago.
    #[default]
    Lru,
    /// The one in the same slot. The slot of a particle is the number of those that were inserted before it, modulo the
    /// capacity, for as long as it is there. As PusH has it.
    Direct,
}

/// The room that there is.
#[derive(Clone, Debug, Default)]
pub struct CacheOptions {
    /// The name of the device in errors.
    pub device: String,
    /// The number of particles that are resident at most; as many as there are by default.
    pub particles: Option<usize>,
    /// The number of bytes that they take at most; as many as they need by default.
    pub bytes: Option<u64>,
    /// The choice of who makes room.
    pub policy: Policy,
}

/// Counts of what a cache has done, and of what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Acquired while resident.
    pub hits: u64,
    /// Brought, or failed to be.
    pub misses: u64,
    /// Parked to make room.
    pub evictions: u64,
    /// Moves that failed.
    pub failures: u64,
    /// Bytes that were brought.
    pub brought_bytes: u64,
    /// Bytes that were parked.
    pub parked_bytes: u64,
    /// Particles that are known.
    pub known: usize,
    /// Particles that are resident, or on their way.
    pub resident: usize,
    /// The bytes of those.
    pub resident_bytes: u64,
    /// Particles that are pinned.
    pub pinned: usize,
    /// Those who wait for a particle.
    pub waiting: usize,
}

pub(crate) struct Inner<K: Key, T: Resident> {
    options: CacheOptions,
    state: Mutex<State<K, T>>,
}

/// The particles of a device, some of which are resident. A handle, cheap to clone.
///
/// ```
/// use sheave_particle::{Cache, CacheOptions, Resident};
/// use sheave_base::Result;
/// use std::time::Duration;
///
/// struct Weights(Vec<f32>);
///
/// impl Resident for Weights {
///     fn len_bytes(&self) -> u64 {
///         4 * self.0.len() as u64
///     }
///     fn bring(&self) -> Result<()> {
///         Ok(())
///     }
///     fn park(&self) -> Result<()> {
///         Ok(())
///     }
/// }
///
/// let options = CacheOptions { device: "cuda:0".into(), particles: Some(1), ..CacheOptions::default() };
/// let cache = Cache::new(options)?;
/// cache.insert(1, Weights(vec![0.5; 8]))?;
/// cache.insert(2, Weights(vec![1.5; 8]))?;
/// let first = cache.acquire(&1)?;
/// assert_eq!(first.0[0], 0.5);
/// assert!(cache.try_acquire(&2)?.is_none());
/// drop(first);
/// assert_eq!(cache.acquire_timeout(&2, Duration::from_secs(1))?.0[0], 1.5);
/// assert_eq!(cache.resident(), [2]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub struct Cache<K: Key, T: Resident>(Arc<Inner<K, T>>);

impl<K: Key, T: Resident> Clone for Cache<K, T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Key, T: Resident> Cache<K, T> {
    /// Returns a cache that knows nobody.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a capacity of 0, or for slots without a number of them.
    pub fn new(options: CacheOptions) -> Result<Self> {
        let refused = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what).operation("cache"));
        if options.particles == Some(0) || options.bytes == Some(0) {
            return refused(format!("a cache of {} without room; expected at least 1", options.capacity()));
        }
        if options.policy == Policy::Direct && options.particles.is_none() {
            return refused("direct-mapped slots, of no number; expected a number of particles".to_owned());
        }
        let state = Mutex::new(State::new(&options));
        Ok(Self(Arc::new(Inner { options, state })))
    }

    /// Returns which room there is.
    #[must_use]
    pub fn options(&self) -> &CacheOptions {
        &self.0.options
    }

    /// Adds a particle that is parked. Does not block.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` for a key that is known; `LimitExceeded` for a particle that is larger than the cache, and
    /// beyond [`PARTICLES_MAX`](sheave_base::limits::PARTICLES_MAX) of them; `Closed`.
    pub fn insert(&self, key: K, value: T) -> Result<()> {
        let bytes = value.len_bytes();
        self.0.change(|state| (state.insert(key, Arc::new(value), bytes), Vec::new()))
    }

    /// Blocks until the particle is resident, and pins it there. The calling thread may park others meanwhile.
    ///
    /// # Errors
    ///
    /// `NotFound` for a key that is not known, or is removed meanwhile; `Deadlock` if the calling thread itself holds
    /// the guards that have all the room; `LimitExceeded` for a particle that is larger than the cache; `Closed`; and
    /// those of the moves.
    pub fn acquire(&self, key: &K) -> Result<Guard<K, T>> {
        self.acquire_until(key, None, None)
    }

    /// Like [`Cache::acquire`], but waits for at most `timeout`.
    ///
    /// # Errors
    ///
    /// As [`Cache::acquire`], and `DeadlineExceeded`, which names those who have the room.
    pub fn acquire_timeout(&self, key: &K, timeout: Duration) -> Result<Guard<K, T>> {
        self.acquire_until(key, Some(clock::now() + timeout), None)
    }

    /// Like [`Cache::acquire`], but waits until `until`. `interrupt` is asked now and then.
    ///
    /// # Errors
    ///
    /// As [`Cache::acquire_timeout`], and those of `interrupt`.
    pub fn acquire_until(
        &self,
        key: &K,
        until: Option<Instant>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<Guard<K, T>> {
        let begun = clock::now();
        match self.begin(key, Some(threads::current().id()), true)? {
            Begun::Granted(number, held) => Grant::new(&self.0, number, held).carried_out(),
            Begun::Waits(work) => {
                let granted = work.wait_until(until, interrupt);
                if !granted.as_ref().is_ok_and(|is_granted| *is_granted) {
                    drop(work);
                    self.0.change(|state| (Ok(()), state.serve(&self.0)))?;
                    granted?;
                    return Err(self.0.late(key).elapsed(clock::since(begun)));
                }
                work.taken()?.carried_out()
            }
            Begun::Blocked => Err(Error::new(ErrorKind::Internal, "an acquire that waits has no place")),
        }
    }

    /// Like [`Cache::acquire`], for a future: it waits without blocking. The moves themselves block the task that polls
    /// it. Dropping it gives up.
    ///
    /// # Errors
    ///
    /// As [`Cache::acquire`]; no `Deadlock`, for a task has no thread.
    pub async fn acquire_async(&self, key: &K) -> Result<Guard<K, T>> {
        match self.begin(key, None, true)? {
            Begun::Granted(number, held) => Grant::new(&self.0, number, held).carried_out(),
            Begun::Waits(work) => {
                std::future::poll_fn(|context| work.poll_done(context)).await;
                work.taken()?.carried_out()
            }
            Begun::Blocked => Err(Error::new(ErrorKind::Internal, "an acquire that waits has no place")),
        }
    }

    /// Like [`Cache::acquire`], but does not wait for others: none if all room is pinned, or on its way. The moves
    /// themselves block.
    ///
    /// # Errors
    ///
    /// As [`Cache::acquire`], but for `Deadlock`.
    pub fn try_acquire(&self, key: &K) -> Result<Option<Guard<K, T>>> {
        match self.begin(key, Some(threads::current().id()), false)? {
            Begun::Granted(number, held) => Grant::new(&self.0, number, held).carried_out().map(Some),
            Begun::Waits(_) | Begun::Blocked => Ok(None),
        }
    }

    fn begin(&self, key: &K, thread: Option<ThreadId>, waits: bool) -> Result<Begun<K, T>> {
        self.0.change(|state| state.begin(&self.0, key, thread, waits))
    }

    /// Forgets a particle, which is dropped with its last guard, and only then gives its room to others. Who waits for
    /// it is told. Does not block.
    ///
    /// # Errors
    ///
    /// `NotFound` for a key that is not known.
    pub fn remove(&self, key: &K) -> Result<()> {
        let gone = self.0.change(|state| {
            let gone = state.remove(key);
            (gone, state.serve(&self.0))
        })?;
        drop(gone.map(|gone| Leaving::new(&self.0, gone)));
        Ok(())
    }

    /// Fails all who wait, and whoever acquires from now on, with `Closed`. Guards stay. Does not block.
    pub fn close(&self) {
        let _ = self.0.change(|state| {
            state.close();
            (Ok(()), state.serve(&self.0))
        });
    }

    /// Returns whether the particle is known, wherever it is.
    #[must_use]
    pub fn contains(&self, key: &K) -> bool {
        self.0.state.lock().contains(key)
    }

    /// Returns those who are known, in the order in which they were inserted.
    #[must_use]
    pub fn keys(&self) -> Vec<K> {
        self.0.state.lock().keys()
    }

    /// Returns those who are resident, in the order in which they were inserted.
    #[must_use]
    pub fn resident(&self) -> Vec<K> {
        self.0.state.lock().resident()
    }

    /// Returns the particle without bringing or pinning it, for what does not touch what moves. If it is removed
    /// meanwhile, its room does not wait for this handle, though its memory does.
    #[must_use]
    pub fn peek(&self, key: &K) -> Option<Arc<T>> {
        self.0.state.lock().peek(key)
    }

    /// Returns what it has done, and what it holds.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        self.0.state.lock().statistics()
    }
}

impl<K: Key, T: Resident> fmt::Debug for Cache<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("options", &self.0.options).finish_non_exhaustive()
    }
}

/// What those who waited are given, when the lock is let go.
pub(crate) type Served<K, T> = Vec<state::Outcome<K, T>>;

impl<K: Key, T: Resident> Inner<K, T> {
    /// Changes the state, and gives to those who waited what they get by that.
    fn change<R>(&self, act: impl FnOnce(&mut State<K, T>) -> (Result<R>, Served<K, T>)) -> Result<R> {
        let (result, served) = act(&mut self.state.lock());
        served.into_iter().for_each(state::Outcome::tell);
        result.map_err(|error| error.context(self.place()))
    }

    fn place(&self) -> String {
        format!("the cache of device {}", self.options.device)
    }

    /// The time of a wait was up.
    fn late(&self, key: &K) -> Error {
        let pinned = self.state.lock().pinned();
        let capacity = self.options.capacity();
        let what = format!("particle {key} found no room within {capacity}; pinned: {pinned}");
        Error::new(ErrorKind::DeadlineExceeded, what)
            .context(self.place())
            .operation("acquire")
            .hint("release guards sooner, wait longer, or make the cache larger")
    }
}

impl CacheOptions {
    fn capacity(&self) -> String {
        match (self.particles, self.bytes) {
            (Some(particles), Some(bytes)) => format!("{particles} particles and {bytes} bytes"),
            (Some(particles), None) => format!("{particles} particles"),
            (None, Some(bytes)) => format!("{bytes} bytes"),
            (None, None) => "any number of particles".to_owned(),
        }
    }
}
