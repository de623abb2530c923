//! The requests that a worker has in flight.
//!
//! The table has one entry for each request that the window lets in, and a request's number says which. An entry is
//! *open* from the call until every server has answered, refused or gone; it is *done* for those who wait once that is
//! so or something went wrong, whichever comes first. Only a closed entry is used again, so whatever a link still
//! writes belongs to the request that named it. Vectors keep their memory from request to request.

use crate::clock::Stamps;
use crate::plan::Slot;
use parking_lot::Mutex;
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, Result};
use sheave_net::link::Ground;
use sheave_net::{Arrival, Tensors};
use sheave_tensor::{Tensor, WriteLease};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// An entry of the table.
pub(crate) struct Entry {
    /// Twice the number of the request, and one more when it is done, or when there never was one.
    state: AtomicU64,
    pub(crate) inner: Mutex<Inner>,
}

/// Where an answer goes, and what came.
pub(crate) struct Place {
    pub(crate) slot: Slot,
    /// Absent where the answer itself is wanted.
    pub(crate) target: Option<Tensor>,
    /// Keeps everybody else away from the target until the answer is there.
    pub(crate) lease: Option<WriteLease>,
    pub(crate) answer: Option<Tensor>,
}

/// What one server has to do with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Share {
    #[default]
    Open,
    /// The answer does not fit, and is dropped when it is whole.
    Misfit,
    Settled,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) number: u64,
    /// Of server `s`: those from `s * places.len() / shares.len()` on.
    pub(crate) places: Vec<Place>,
    pub(crate) shares: Vec<Share>,
    pub(crate) stamps: Vec<Stamps>,
    /// For places that lie in one buffer.
    pub(crate) common: Option<Arc<Vec<WriteLease>>>,
    pub(crate) failure: Option<Error>,
    pub(crate) completers: SmallVec<[Completer<()>; 1]>,
    open: usize,
}

impl Default for Entry {
    fn default() -> Self {
        Self { state: AtomicU64::new(1), inner: Mutex::default() }
    }
}

impl Entry {
    pub(crate) fn is_done(&self, number: u64) -> bool {
        self.state.load(SeqCst) != number << 1
    }

    /// Whether no server has anything to do with it any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.inner.lock().open == 0
    }

    /// Begins a request of `servers`. The entry is closed.
    pub(crate) fn begin(&self, inner: &mut Inner, number: u64, servers: usize) {
        inner.number = number;
        inner.shares.clear();
        inner.shares.resize(servers, Share::Open);
        inner.stamps.clear();
        inner.stamps.resize(servers, Stamps::default());
        inner.failure = None;
        inner.open = servers;
        self.state.store(number << 1, SeqCst);
    }

    /// One server is through with the request. Returns who is to be told that it is done, if it is now.
    pub(crate) fn settle(&self, inner: &mut Inner, server: usize, failure: Option<Error>) -> Told {
        if std::mem::replace(&mut inner.shares[server], Share::Settled) == Share::Settled {
            return Told::new();
        }
        inner.open -= 1;
        if inner.failure.is_none() {
            inner.failure = failure;
        }
        if inner.open == 0 {
            inner.common = None;
            inner.places.iter_mut().for_each(|place| place.lease = None);
        }
        if inner.open > 0 && inner.failure.is_none() {
            return Told::new();
        }
        self.state.store(inner.number << 1 | 1, SeqCst);
        let explain = |error: Error| error.operation("push_pull").sequence(inner.number);
        let outcome = inner.outcome().map_err(explain);
        inner.completers.drain(..).map(|completer| (completer, outcome.clone())).collect()
    }
}

/// Works to complete when no lock is held.
pub(crate) type Told = SmallVec<[(Completer<()>, Result<()>); 1]>;

impl Inner {
    pub(crate) fn outcome(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// The places that a server answers to.
    pub(crate) fn places_of(&mut self, server: usize) -> &mut [Place] {
        let each = self.places.len() / self.shares.len().max(1);
        &mut self.places[server * each..(server + 1) * each]
    }

    /// Where the tensors of an answer land; nowhere in particular if they do not fit.
    pub(crate) fn ground(&mut self, server: usize, arrival: &Arrival<'_>, arena: &sheave_tensor::Arena) -> Ground {
        let common = self.common.clone();
        let places = self.places_of(server);
        let mut ground = Ground { common, ..Ground::default() };
        let fits = places.len() == arrival.parts.len()
            && places.iter().zip(arrival.parts).all(|(place, part)| {
                let length = part.spec.length_bytes().ok().and_then(|bytes| usize::try_from(bytes).ok());
                let wanted = place.slot.shape.elements().map(|count| count as usize * place.slot.dtype.size_bytes());
                part.spec.dtype == place.slot.dtype.code() && length == wanted
            });
        if !fits {
            self.shares[server] = Share::Misfit;
            return Ground::default();
        }
        if places.iter().all(|place| place.target.is_none()) {
            return ground;
        }
        for place in places {
            let fresh = || Tensor::empty(arena, place.slot.dtype, place.slot.shape.clone());
            // Without room in the arena the link finds some for all of them, and they are copied later.
            let Ok(target) = place.target.clone().map_or_else(fresh, Ok) else { return Ground::default() };
            ground.places.push(target);
            ground.leases.extend(place.lease.take());
        }
        ground
    }

    /// Takes the tensors of an answer for which there was a ground.
    pub(crate) fn take(&mut self, server: usize, parts: Tensors) -> Result<()> {
        if self.shares[server] == Share::Misfit {
            return Err(Error::new(ErrorKind::Protocol, "an answer that does not fit what was asked for"));
        }
        for (place, part) in self.places_of(server).iter_mut().zip(parts) {
            match &place.target {
                None => place.answer = Some(part),
                Some(target) if target.ptr() == part.ptr() => {}
                Some(target) => {
                    place.lease = None;
                    target.overwrite(&part.bytes()?, "push_pull")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_done_when_all_have_answered() {
        let entry = Entry::default();
        let mut inner = entry.inner.lock();
        entry.begin(&mut inner, 5, 2);
        assert!(!entry.is_done(5) && entry.is_done(4));
        entry.settle(&mut inner, 1, None);
        entry.settle(&mut inner, 1, None);
        assert!(!entry.is_done(5));
        entry.settle(&mut inner, 0, None);
        assert!(entry.is_done(5) && inner.outcome().is_ok());
        drop(inner);
        assert!(entry.is_closed());
    }

    #[test]
    fn a_failure_ends_the_wait_and_not_the_request() {
        let entry = Entry::default();
        let mut inner = entry.inner.lock();
        entry.begin(&mut inner, 0, 2);
        entry.settle(&mut inner, 0, Some(Error::new(ErrorKind::PeerLost, "gone")));
        assert!(entry.is_done(0) && inner.outcome().is_err());
        drop(inner);
        assert!(!entry.is_closed());
        entry.settle(&mut entry.inner.lock(), 1, None);
        assert!(entry.is_closed() && entry.inner.lock().outcome().is_err());
    }
}
