//! A particle that is pinned, and the right to move what has to be moved for that.

use super::state::Forgotten;
use super::threads::ThreadId;
use super::{Inner, Key, Resident};
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, Result, contain};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// What an acquire has been given under the lock.
pub(crate) struct Held<T> {
    pub(crate) value: Arc<T>,
    pub(crate) thread: Option<ThreadId>,
    /// Who is to be parked first.
    pub(crate) victims: Vec<(u64, Arc<T>)>,
    /// By how many particles and bytes those are more than what is brought: nobody else's until they are parked.
    pub(crate) reserved: (usize, u64),
    /// Whether it is to be brought; else it is pinned already.
    pub(crate) brings: bool,
}

/// A particle that is removed. Dropped not under the lock, for that drops it, and gives its room to others afterwards:
/// until then it is in the memory of the device.
pub(crate) struct Leaving<K: Key, T: Resident> {
    _value: Arc<T>,
    /// Behind the particle, and so dropped after it, though its drop panics.
    _room: Option<Room<K, T>>,
}

struct Room<K: Key, T: Resident> {
    inner: Arc<Inner<K, T>>,
    number: u64,
    bytes: u64,
}

impl<K: Key, T: Resident> Leaving<K, T> {
    pub(crate) fn new(inner: &Arc<Inner<K, T>>, gone: Forgotten<T>) -> Self {
        let Forgotten { number, value, room } = gone;
        Self { _value: value, _room: room.map(|bytes| Room { inner: Arc::clone(inner), number, bytes }) }
    }
}

impl<K: Key, T: Resident> Drop for Room<K, T> {
    fn drop(&mut self) {
        let _ = self.inner.change(|state| {
            state.left(self.number, self.bytes);
            (Ok(()), state.serve(&self.inner))
        });
    }
}

/// The right to park some particles and to bring another one. Dropped before that is done it changes nothing.
pub(crate) struct Grant<K: Key, T: Resident> {
    inner: Arc<Inner<K, T>>,
    number: u64,
    held: Option<Held<T>>,
}

impl<K: Key, T: Resident> Grant<K, T> {
    pub(crate) fn new(inner: &Arc<Inner<K, T>>, number: u64, held: Held<T>) -> Self {
        Self { inner: Arc::clone(inner), number, held: Some(held) }
    }

    /// Moves whoever has to be moved.
    pub(crate) fn carried_out(mut self) -> Result<Guard<K, T>> {
        let Some(mut held) = self.held.take() else {
            return Err(Error::new(ErrorKind::Internal, "a grant is used twice"));
        };
        // By a panic too, what has not moved stays where it is.
        let moved = contain::run(|| self.moves(&mut held)).unwrap_or_else(|text| {
            let what = format!("a move panicked: {text}");
            Err(Error::new(ErrorKind::Remote, what).operation("acquire"))
        });
        if let Err(error) = moved {
            self.give_back(held, Some(&error));
            return Err(error);
        }
        Ok(Guard {
            inner: Arc::clone(&self.inner),
            number: self.number,
            thread: held.thread,
            value: held.value,
            leaving: None,
        })
    }

    fn moves(&self, held: &mut Held<T>) -> Result<()> {
        if held.brings && !held.victims.is_empty() && planted::strikes(Bug::CacheRoomTwice) {
            held.value.bring()?;
            held.value.park()?;
        }
        while let Some((number, victim)) = held.victims.last() {
            victim.park()?;
            let room = if held.victims.len() == 1 { std::mem::take(&mut held.reserved) } else { (0, 0) };
            let gone = self.inner.change(|state| {
                let gone = state.parked(*number, room);
                (Ok(gone), state.serve(&self.inner))
            })?;
            held.victims.pop();
            drop(gone.map(|gone| Leaving::new(&self.inner, gone)));
        }
        if held.brings {
            held.value.bring()?;
            self.inner.change(|state| {
                state.brought(self.number, held.thread);
                (Ok(()), state.serve(&self.inner))
            })?;
            held.brings = false;
        }
        Ok(())
    }

    fn give_back(&self, held: Held<T>, error: Option<&Error>) {
        let gone = self.inner.change(|state| {
            let gone = state.give_back(self.number, &held, error);
            (Ok(gone), state.serve(&self.inner))
        });
        // What they were the last handles to is dropped without the lock, and gives up its room then.
        drop(held);
        gone.into_iter().flatten().for_each(|gone| drop(Leaving::new(&self.inner, gone)));
    }
}

impl<K: Key, T: Resident> Drop for Grant<K, T> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.give_back(held, None);
        }
    }
}

/// A particle that stays resident until this is dropped. The thread that has acquired it counts as the one that holds
/// it: if that acquires another for which nothing but its own guards leave no room, it is told so.
pub struct Guard<K: Key, T: Resident> {
    inner: Arc<Inner<K, T>>,
    number: u64,
    thread: Option<ThreadId>,
    value: Arc<T>,
    /// The particle, if it is removed and this was its last guard. Behind `value`, and so dropped after it.
    leaving: Option<Leaving<K, T>>,
}

impl<K: Key, T: Resident> Deref for Guard<K, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<K: Key, T: Resident> Drop for Guard<K, T> {
    fn drop(&mut self) {
        let bytes = self.value.len_bytes();
        let gone = self.inner.change(|state| {
            let gone = state.released(self.number, self.thread, Some(bytes));
            (Ok(gone), state.serve(&self.inner))
        });
        self.leaving = gone.ok().flatten().map(|gone| Leaving::new(&self.inner, gone));
    }
}

impl<K: Key, T: Resident> fmt::Debug for Guard<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("thread", &self.thread).finish_non_exhaustive()
    }
}
