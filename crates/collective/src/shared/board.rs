//! The desks of the ranks of one host, and the memory that they show each other.

use super::deferred::DeferredRelease;
use super::desk::{
    BRIEF_BYTES, Counter, Desk, Entry, Overtaken, PAYLOAD_BYTES, PAYLOADS_AT_BYTES, SLOTS, WORDS, Words,
};
use super::desk::{DESK_BYTES, words_changed};
use crate::memory::Region;
use parking_lot::Mutex;
use sheave_base::sync::AtomicU64 as SharedWord;
use sheave_base::{Error, ErrorKind, Result};
use sheave_net::Neighbour;
use sheave_tensor::{Arena, Dtype, Segment, SegmentId, Shape, Tensor};
use smallvec::SmallVec;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Segments of one neighbour that are remembered: programs use few at a time.
const SEGMENTS_MAX: usize = 32;

/// The least time that is spun for the others: some crossings from core to core.
const PATIENCE_NS_MIN: u64 = 300;

/// The words of a desk that lies in a tensor.
pub(crate) struct TensorWords {
    start: *mut u8,
    /// Held for its memory.
    _tensor: Tensor,
}

// SAFETY: the pointer names memory that the tensor keeps alive; it is accessed as atomic words, or, for payloads, by
// the rules of the desk.
unsafe impl Send for TensorWords {}
// SAFETY: as above.
unsafe impl Sync for TensorWords {}

impl TensorWords {
    /// Memory for a desk of one's own, all zero.
    pub(crate) fn memory(arena: &Arena) -> Result<Tensor> {
        let tensor = Tensor::empty(arena, Dtype::U8, Shape::new(&[DESK_BYTES as u64])?)?;
        // SAFETY: the tensor is fresh and nobody else has a handle to it.
        unsafe { std::ptr::write_bytes(tensor.ptr(), 0, DESK_BYTES) };
        Ok(tensor)
    }

    /// The desk that lies there.
    pub(crate) fn of(tensor: Tensor) -> Result<Self> {
        let start = tensor.ptr();
        if tensor.len_bytes() != DESK_BYTES || !(start as usize).is_multiple_of(64) {
            let what = format!("a desk of {} bytes at {start:p} is none", tensor.len_bytes());
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        Ok(Self { start, _tensor: tensor })
    }

    /// Where an operation's payload lies.
    pub(crate) fn payload(&self, sequence: u64) -> *mut u8 {
        self.start.wrapping_add(PAYLOADS_AT_BYTES + (sequence % SLOTS) as usize * PAYLOAD_BYTES)
    }
}

impl Words for TensorWords {
    fn word(&self, index: usize) -> &SharedWord {
        assert!(index < WORDS, "a desk has {WORDS} words");
        // SAFETY: the tensor is that long, aligned to 64 bytes and alive with `self`; other processes change its words
        // only as atomic words or, if they break the protocol, as plain bytes, which atomic accesses tolerate.
        unsafe { &*self.start.cast::<SharedWord>().add(index) }
    }
}

/// Segments of a neighbour, by their numbers.
type Segments = SmallVec<[(u64, Weak<Segment>); 4]>;

/// One rank of this host.
pub(crate) struct Seat {
    /// Its rank in the group.
    pub(crate) rank: u32,
    pub(crate) desk: Desk<TensorWords>,
    /// How it is reached; nothing for this rank itself.
    pub(crate) neighbour: Option<Neighbour>,
    /// Operations below this number are known to be over for it.
    finished: AtomicU64,
    segments: Mutex<Segments>,
}

impl Seat {
    pub(crate) fn new(rank: u32, tensor: Tensor, neighbour: Option<Neighbour>) -> Result<Self> {
        let desk = Desk::new(TensorWords::of(tensor)?);
        Ok(Self { rank, desk, neighbour, finished: AtomicU64::new(0), segments: Mutex::default() })
    }

    /// What it has entered this operation with, once it has.
    pub(crate) fn entered(&self, sequence: u64) -> Result<Option<Entry>> {
        match self.desk.entered(sequence) {
            Ok(None) => Ok(None),
            Ok(Some((entry, finished))) => {
                self.note_finished(finished);
                Ok(Some(entry))
            }
            Err(Overtaken) => {
                let what = format!("rank {} has overwritten what others still read", self.rank);
                Err(Error::new(ErrorKind::Protocol, what))
            }
        }
    }

    fn has_finished(&self, sequence: u64) -> bool {
        if self.finished.load(Relaxed) > sequence {
            return true;
        }
        let finished = self.desk.finished();
        self.note_finished(finished);
        finished > sequence
    }

    fn note_finished(&self, finished: u64) {
        // That a smaller number may win a race costs another look, no more.
        if finished > self.finished.load(Relaxed) {
            self.finished.store(finished, Relaxed);
        }
    }

    fn segment(&self, id: u64) -> Option<Arc<Segment>> {
        let mut known = self.segments.lock();
        if let Some(segment) = known.iter().find(|(other, _)| *other == id).and_then(|(_, segment)| segment.upgrade()) {
            return Some(segment);
        }
        let segment = self.neighbour.as_ref()?.segment(SegmentId(id))?;
        known.retain(|(other, segment)| *other != id && segment.strong_count() > 0);
        if known.len() == SEGMENTS_MAX {
            known.remove(0);
        }
        known.push((id, Arc::downgrade(&segment)));
        Some(segment)
    }
}

/// How memory is made known: two words, and the segment that others must have seen before.
pub(crate) struct Exposure {
    pub(crate) words: [u64; 2],
    segment: Option<Arc<Segment>>,
}

/// Bytes of another rank. Its segment stays mapped while this is held.
pub(crate) struct Place {
    pub(crate) start: *mut u8,
    _segment: Option<Arc<Segment>>,
}

// SAFETY: an address in memory that the segment, or, within a process, the operation of the other rank keeps alive; who
// may touch it when is for the operation's counters.
unsafe impl Send for Place {}

/// Which operations are over for this rank.
#[derive(Default)]
struct Pace {
    /// All below this one.
    finished: u64,
    /// Of those after it, a bit each.
    later: u64,
}

/// The ranks of one host in one group.
pub(crate) struct Board {
    /// This rank's seat.
    pub(crate) index: usize,
    pub(crate) seats: Vec<Seat>,
    /// All are threads of one process, so that every address means the same to all.
    shares_process: bool,
    pace: Mutex<Pace>,
    /// Operations of this rank that have entered and are not over: they may touch memory of others.
    under_way: AtomicU32,
    broken: AtomicBool,
    shown: Mutex<SmallVec<[SegmentId; 8]>>,
    pub(crate) deferred: Arc<DeferredRelease>,
    pub(crate) arena: Arena,
    /// For how long it pays to spin for the others.
    patience_ns: AtomicU64,
}

impl Board {
    /// The board of these seats, in the order of their ranks.
    pub(crate) fn new(index: usize, seats: Vec<Seat>, arena: Arena, deferred: Arc<DeferredRelease>) -> Self {
        let shares_process = seats.iter().flat_map(|seat| &seat.neighbour).all(Neighbour::shares_process);
        Self {
            index,
            seats,
            shares_process,
            pace: Mutex::default(),
            under_way: AtomicU32::new(0),
            broken: AtomicBool::new(false),
            shown: Mutex::default(),
            deferred,
            arena,
            patience_ns: AtomicU64::new(u64::MAX),
        }
    }

    pub(crate) fn own(&self) -> &Desk<TensorWords> {
        &self.seats[self.index].desk
    }

    /// For how long it pays to spin for the others before the core is given away.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_nanos(self.patience_ns.load(Relaxed))
    }

    /// An operation has ended, with or without the core given away, where waits spin for `most`.
    pub(crate) fn learn_patience(&self, most: Duration, gave_way: bool) {
        let (now, most) = (self.patience_ns.load(Relaxed), u64::try_from(most.as_nanos()).unwrap_or(u64::MAX));
        if gave_way {
            self.patience_ns.store((now.min(most) / 2).max(PATIENCE_NS_MIN), Relaxed);
        } else if now < most {
            self.patience_ns.store(now * 2, Relaxed);
        }
    }

    /// All seats but this rank's, those after it first.
    pub(crate) fn others(&self) -> impl Iterator<Item = (usize, &Seat)> {
        let size = self.seats.len();
        (1..size).map(move |step| (self.index + step) % size).map(|at| (at, &self.seats[at]))
    }

    /// Whether this operation's slot is free.
    pub(crate) fn has_room(&self, sequence: u64) -> bool {
        let Some(earlier) = sequence.checked_sub(SLOTS) else { return true };
        self.seats.iter().all(|seat| seat.has_finished(earlier))
    }

    /// Enters an operation whose slot is free. From now on this rank may touch memory of others, until
    /// [`Board::leave`]. Who waits for it must be woken, by [`Board::wake`].
    ///
    /// Fails where the group is broken, for then this rank may have said that it touches nothing any more: either
    /// that is seen here, or whoever breaks the group sees that something is under way.
    pub(crate) fn enter(&self, sequence: u64, entry: &Entry) -> Result<()> {
        self.under_way.fetch_add(1, SeqCst);
        if self.broken.load(SeqCst) {
            self.leave();
            return Err(Error::new(ErrorKind::Closed, "the group is broken"));
        }
        let own = self.own();
        own.clear(sequence);
        own.enter(sequence, self.pace.lock().finished, entry);
        Ok(())
    }

    /// Says how far this rank is.
    pub(crate) fn count(&self, sequence: u64, counter: Counter, count: u64) {
        self.own().count(sequence, counter, count);
        self.wake();
    }

    /// Rings those that sleep, after words have changed.
    pub(crate) fn wake(&self) {
        words_changed();
        for seat in &self.seats {
            if let Some(neighbour) = &seat.neighbour
                && seat.desk.must_be_rung()
            {
                neighbour.ring();
            }
        }
    }

    /// An operation is over for this rank, and well.
    pub(crate) fn finish(&self, sequence: u64) {
        let mut pace = self.pace.lock();
        let Some(ahead) = sequence.checked_sub(pace.finished) else { return };
        if ahead >= u64::from(u64::BITS) {
            return;
        }
        pace.later |= 1 << ahead;
        let run = pace.later.trailing_ones();
        pace.later = pace.later.checked_shr(run).unwrap_or(0);
        pace.finished += u64::from(run);
        self.own().set_finished(pace.finished);
        let was_behind = run > 1;
        drop(pace);
        // Somebody may wait for the slot; who goes on from operation to operation learns it from the next entry.
        if was_behind || self.under_way.load(Relaxed) > 1 {
            self.wake();
        }
    }

    /// This rank touches nothing any more on behalf of an operation that it had entered.
    pub(crate) fn leave(&self) {
        self.under_way.fetch_sub(1, SeqCst);
        self.quit_if_broken();
    }

    /// The group is broken: nothing new will be entered here.
    pub(crate) fn break_up(&self) {
        self.broken.store(true, SeqCst);
        self.quit_if_broken();
    }

    fn quit_if_broken(&self) {
        if self.broken.load(SeqCst) && self.under_way.load(SeqCst) == 0 {
            self.own().quit();
            self.wake();
        }
    }

    /// Which of those that have left has not ended the operation of this number well, and never will.
    pub(crate) fn deserter(&self, sequence: u64, leavers: &[u32]) -> Option<u32> {
        let is_out = |seat: &Seat| seat.desk.has_quit() || seat.neighbour.as_ref().is_some_and(Neighbour::is_gone);
        let deserts = |seat: &&Seat| leavers.contains(&seat.rank) && is_out(seat) && seat.desk.finished() <= sequence;
        self.seats.iter().find(deserts).map(|seat| seat.rank)
    }

    /// Whether nobody can touch this rank's memory any more: all others have quit or are gone for good.
    pub(crate) fn is_deserted(&self) -> bool {
        let is_out = |seat: &Seat| seat.desk.has_quit() || seat.neighbour.as_ref().is_none_or(Neighbour::is_gone);
        self.others().all(|(_, seat)| is_out(seat))
    }

    /// How others find these bytes, if they can: those of the arena also where they came by way of a foreign framework,
    /// which holds what it has a view of.
    pub(crate) fn expose(&self, region: &Region) -> Option<Exposure> {
        if region.len_bytes() == 0 {
            return Some(Exposure { words: [0; 2], segment: None });
        }
        if self.shares_process {
            return Some(Exposure { words: [0, region.start() as u64], segment: None });
        }
        let located = || {
            let location = self.arena.locate(region.start(), region.len_bytes())?;
            Some((location.segment, location.offset_bytes))
        };
        let (segment, offset_bytes) = region.location().or_else(located)?;
        // Memory that another process has lent is for its owner to show.
        segment.fd()?;
        Some(Exposure { words: [segment.id().0, offset_bytes], segment: Some(segment) })
    }

    /// Shows the memory's segment to all. False when it must be tried again.
    pub(crate) fn introduce(&self, exposure: &Exposure) -> Result<bool> {
        let Some(segment) = &exposure.segment else { return Ok(true) };
        let mut shown = self.shown.lock();
        if shown.contains(&segment.id()) {
            return Ok(true);
        }
        for seat in &self.seats {
            if let Some(neighbour) = &seat.neighbour
                && !neighbour.introduce(segment)?
            {
                return Ok(false);
            }
        }
        if shown.len() == SEGMENTS_MAX {
            shown.remove(0);
        }
        shown.push(segment.id());
        Ok(true)
    }

    /// Bytes of another rank, once their segment is known here.
    pub(crate) fn place(&self, seat: &Seat, [id, offset_bytes]: [u64; 2], len_bytes: usize) -> Result<Option<Place>> {
        if len_bytes == 0 {
            return Ok(Some(Place { start: std::ptr::dangling_mut(), _segment: None }));
        }
        if self.shares_process {
            return Ok(Some(Place { start: offset_bytes as usize as *mut u8, _segment: None }));
        }
        let Some(segment) = seat.segment(id) else { return Ok(None) };
        let end_bytes = offset_bytes.checked_add(len_bytes as u64);
        if end_bytes.is_none_or(|end_bytes| end_bytes > segment.len_bytes()) {
            let what = format!("rank {} names {len_bytes} bytes at {offset_bytes}, outside of {segment:?}", seat.rank);
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        let start = segment.start().as_ptr().wrapping_add(offset_bytes as usize);
        Ok(Some(Place { start, _segment: Some(segment) }))
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // Nothing is under way: operations hold their board.
        self.break_up();
    }
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Board").field("index", &self.index).field("seats", &self.seats.len()).finish_non_exhaustive()
    }
}

/// Bytes as the words of an entry.
pub(crate) fn brief(bytes: &[u8]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut whole = [0; 8];
        whole[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_ne_bytes(whole);
    }
    debug_assert!(bytes.len() <= BRIEF_BYTES, "{} bytes are not brief", bytes.len());
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_tensor::ArenaConfig;

    fn alone() -> Board {
        let arena = Arena::new(ArenaConfig { capacity_bytes: 16 << 20, ..ArenaConfig::default() });
        let seat = Seat::new(0, TensorWords::memory(&arena).unwrap(), None).unwrap();
        Board::new(0, vec![seat], arena, Arc::default())
    }

    #[test]
    fn a_rank_quits_when_nothing_is_under_way_and_enters_nothing_afterwards() {
        let (board, entry) = (alone(), Entry { header: [1; 3], words: [2; 4] });
        board.enter(0, &entry).unwrap();
        board.break_up();
        assert!(!board.own().has_quit(), "it may still touch memory of others");
        board.leave();
        assert!(board.own().has_quit());
        assert_eq!(board.enter(1, &entry).unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!(board.own().entered(1), Ok(None));
    }

    #[test]
    fn operations_may_end_in_any_order() {
        let board = alone();
        for sequence in [1, 0, 3, 2] {
            board.finish(sequence);
        }
        assert_eq!(board.own().finished(), 4);
        assert!(board.has_room(3 + SLOTS) && !board.has_room(4 + SLOTS));
    }

    #[test]
    fn patience_shrinks_where_the_core_must_be_given_away_and_grows_again() {
        let (board, most) = (alone(), Duration::from_micros(5));
        board.learn_patience(most, false);
        assert!(board.patience() >= most);
        (0..20).for_each(|_| board.learn_patience(most, true));
        assert_eq!(board.patience(), Duration::from_nanos(PATIENCE_NS_MIN));
        (0..20).for_each(|_| board.learn_patience(most, false));
        assert!(board.patience() >= most);
    }
}
