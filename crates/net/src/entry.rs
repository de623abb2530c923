//! The table of a node's links.

use crate::link::Link;
use crate::progress::Interest;
use parking_lot::{Mutex, RwLock};
use sheave_base::limits::{LINKS_MAX, UNPROVEN_BYTES_MAX};
use sheave_base::numbers::Numbered;
use sheave_base::{Error, ErrorKind, LinkId, Peer, Result};
use sheave_tensor::{Arena, Dtype, Shape, Tensor};
use sheave_wire::TensorSpec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A link and what the node's waiting knows about it.
pub(crate) struct Entry {
    pub(crate) id: LinkId,
    pub(crate) link: Arc<dyn Link>,
    /// Threads that poll it right now.
    pub(crate) pollers: AtomicU32,
    /// All endpoints have been told of it, so it may be polled.
    pub(crate) is_told: AtomicBool,
    /// It has left the table, and nothing that comes over it counts any more. Set before anybody is told.
    pub(crate) is_gone: AtomicBool,
    /// Its next message waits for room.
    pub(crate) paused: AtomicBool,
    /// A thread tries to reach its peer beside it.
    pub(crate) is_probed: AtomicBool,
    /// The user was told that its peer is being debugged.
    pub(crate) is_noticed: AtomicBool,
    /// What its descriptor is watched for, and under which key.
    pub(crate) interest: Mutex<Option<(u64, Interest)>>,
}

/// All links of a node. Links that have ended are remembered by their reason.
#[derive(Default)]
pub(crate) struct Links {
    alive: RwLock<Alive>,
    ended: Mutex<BTreeMap<LinkId, (Peer, Error)>>,
    version: AtomicU64,
    /// Links whose next message waits for room.
    pub(crate) paused: AtomicU32,
}

#[derive(Default)]
struct Alive {
    by_id: Numbered<LinkId, Arc<Entry>>,
    list: Arc<Vec<Arc<Entry>>>,
    next: u32,
}

impl Links {
    /// Takes a link into the table: it can be sent on, and is not polled until it is [told](Links::note_told).
    pub(crate) fn add(&self, make: impl FnOnce(LinkId) -> Result<Arc<dyn Link>>) -> Result<Arc<Entry>> {
        let id = {
            let mut alive = self.alive.write();
            if alive.by_id.len() >= LINKS_MAX {
                return Err(Error::new(ErrorKind::LimitExceeded, format!("a node has at most {LINKS_MAX} links")));
            }
            alive.next += 1;
            LinkId(alive.next)
        };
        let entry = Arc::new(Entry {
            id,
            link: make(id)?,
            pollers: AtomicU32::new(0),
            is_told: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            is_probed: AtomicBool::new(false),
            is_noticed: AtomicBool::new(false),
            interest: Mutex::new(None),
        });
        self.alive.write().by_id.insert(id, Arc::clone(&entry));
        Ok(entry)
    }

    /// All endpoints know this link: from now on it is polled.
    pub(crate) fn note_told(&self, entry: &Entry) {
        let mut alive = self.alive.write();
        entry.is_told.store(true, Ordering::SeqCst);
        alive.relist();
        self.version.fetch_add(1, Ordering::Release);
    }

    /// As [`Links::get`], for a wait that polls it; a link that is not told yet is left to the next look.
    pub(crate) fn told(&self, id: LinkId) -> Result<Arc<Entry>> {
        let entry = self.get(id)?;
        if entry.is_told.load(Ordering::SeqCst) {
            return Ok(entry);
        }
        Err(Error::new(ErrorKind::NotFound, format!("link {id} is being made")))
    }

    pub(crate) fn get(&self, id: LinkId) -> Result<Arc<Entry>> {
        if let Some(entry) = self.alive.read().by_id.get(&id) {
            return Ok(Arc::clone(entry));
        }
        match self.ended.lock().get(&id) {
            Some((peer, reason)) => {
                Err(if reason.about().is_some() { reason.clone() } else { reason.clone().peer(peer.clone()) })
            }
            None => Err(Error::new(ErrorKind::NotFound, format!("this node has no link {id}"))),
        }
    }

    pub(crate) fn peer_of(&self, id: LinkId) -> Peer {
        if let Some(entry) = self.alive.read().by_id.get(&id) {
            return entry.link.peer().clone();
        }
        self.ended.lock().get(&id).map(|(peer, _)| peer.clone()).unwrap_or_default()
    }

    /// The links that are alive and told, without a copy.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<Entry>>> {
        Arc::clone(&self.alive.read().list)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.alive.read().list.is_empty()
    }

    /// Grows whenever a link comes or goes.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Forgets a link; false when that happened before.
    pub(crate) fn remove(&self, entry: &Arc<Entry>, reason: &Error) -> bool {
        let mut alive = self.alive.write();
        let was_there = alive.by_id.remove(&entry.id).is_some();
        entry.is_gone.store(true, Ordering::SeqCst);
        if was_there {
            // The reason is there before the entry is seen to be gone.
            let mut ended = self.ended.lock();
            ended.insert(entry.id, (entry.link.peer().clone(), reason.clone()));
            if ended.len() > LINKS_MAX {
                ended.pop_first();
            }
            drop(ended);
            alive.relist();
            self.version.fetch_add(1, Ordering::Release);
        }
        was_there
    }
}

impl Alive {
    fn relist(&mut self) {
        let mut list: Vec<_> =
            self.by_id.values().filter(|entry| entry.is_told.load(Ordering::SeqCst)).cloned().collect();
        list.sort_by_key(|entry| entry.id);
        self.list = Arc::new(list);
    }
}

/// Memory for a tensor of this node's own: in the arena while it has room, private beyond.
pub(crate) fn place(arena: &Arena, spec: &TensorSpec) -> Result<Tensor> {
    place_within(arena, spec, u64::MAX)
}

/// Memory for a tensor that a peer announces and nobody named a place for: in the arena while it has room, private
/// beyond. The arena grows for it by `proven_bytes` at most, what a peer has sent in one piece before, and some more;
/// private memory is taken from the system as the bytes come.
pub(crate) fn place_announced(arena: &Arena, spec: &TensorSpec, proven_bytes: u64) -> Result<Tensor> {
    place_within(arena, spec, proven_bytes.max(UNPROVEN_BYTES_MAX))
}

fn place_within(arena: &Arena, spec: &TensorSpec, growth_bytes_max: u64) -> Result<Tensor> {
    let dtype = Dtype::from_code(spec.dtype)
        .ok_or_else(|| Error::new(ErrorKind::Protocol, format!("a tensor of unknown dtype {}", spec.dtype)))?;
    let shape = Shape::new(&spec.dims)?;
    match Tensor::empty_within(arena, dtype, shape.clone(), growth_bytes_max) {
        Err(error) if error.kind() == ErrorKind::LimitExceeded => Tensor::private(dtype, shape),
        other => other,
    }
}
