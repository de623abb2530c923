//! Pooled, pre-faulted shared memory in which tensors live by default.
//!
//! The first touch of a fresh page costs microseconds, so memory is mapped once, with every page present, and reused.
//! An arena grows by segments (memfds) that double in size, and hands out blocks of them. The first one is small: a
//! node makes it when it joins, and every peer of its host maps it then, whether or not tensors follow.
//!
//! The last handle of a block may be dropped on any thread, in a destructor of a foreign framework or at interpreter
//! exit; it only pushes the block onto a lock-free list, which the next allocation drains. A block holds its segment,
//! so that memory outlives the arena itself.
//!
//! Memory of the arena that comes back through a foreign framework, such as a numpy view of a tensor, is known by its
//! address ([`Arena::locate`]). The table of addresses has a lock of its own, which is written only when a segment
//! comes or goes, and it keeps no segment alive: the entry of one that has gone means nothing, whoever lies there now.
//!
//! A slot of the segment table is reused only after its segment was entirely free, so a block on the return list always
//! names the segment that it was cut from.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_queue::SegQueue;
use parking_lot::{Mutex, RwLock};
use sheave_base::{Error, ErrorKind, Result, limits};

use crate::block::{FreeRanges, PAGE_BYTES, block_bytes};
use crate::buffer::{ArenaBlock, Buffer, Location, ReturnedBlock};
use crate::segment::Segment;

/// Segments double up to this size; a single larger request gets a segment of its own.
const SEGMENT_BYTES_MAX: u64 = 256 << 20;

/// Blocks kept uncut for a request of exactly their size: the common case, without any search.
const RECENT_BLOCKS_MAX: usize = 16;

/// After so many allocations it is looked at how much memory was needed lately; what is far beyond that is released.
const WINDOW_ALLOCATIONS: u64 = 4096;

/// How big an arena may grow and how much of it may be lent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArenaConfig {
    /// Most bytes mapped at any time.
    pub capacity_bytes: u64,
    /// Size of the first segment, made at the first allocation if that fits.
    pub first_segment_bytes: u64,
    /// Least size of every other segment.
    pub segment_bytes: u64,
    /// Fraction of the capacity, 0 to 1, that peers may hold at any time.
    pub lent_fraction: f64,
}

impl Default for ArenaConfig {
    fn default() -> Self {
        Self {
            capacity_bytes: limits::ARENA_BYTES_MAX,
            first_segment_bytes: 1 << 20,
            segment_bytes: 8 << 20,
            lent_fraction: limits::ARENA_LENT_FRACTION,
        }
    }
}

/// What an arena holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaStats {
    /// Most bytes that may be mapped.
    pub capacity_bytes: u64,
    /// Bytes mapped, retired segments included.
    pub mapped_bytes: u64,
    /// Bytes in blocks that somebody holds.
    pub used_bytes: u64,
    /// Bytes lent to peers.
    pub lent_bytes: u64,
    /// Number of segments.
    pub segments: usize,
    /// Allocations since the arena was made.
    pub allocations: u64,
}

struct Space {
    segment: Arc<Segment>,
    free: FreeRanges,
}

/// The addresses of one segment.
struct Extent {
    start: usize,
    len_bytes: usize,
    segment: Weak<Segment>,
}

#[derive(Default)]
struct State {
    /// Indexed by a block's slot.
    spaces: Vec<Option<Space>>,
    /// A segment has come or gone, which the table of addresses does not know yet.
    is_remapped: bool,
    recent: VecDeque<ReturnedBlock>,
    mapped_bytes: u64,
    used_bytes: u64,
    allocations: u64,
    peak_bytes: u64,
    previous_peak_bytes: u64,
}

struct Inner {
    config: ArenaConfig,
    state: Mutex<State>,
    extents: RwLock<Vec<Extent>>,
    returns: Arc<SegQueue<ReturnedBlock>>,
    lent_bytes: AtomicU64,
}

/// A node's pool of shared memory; a handle, cheap to clone.
///
/// ```
/// use sheave_tensor::{Arena, ArenaConfig};
///
/// let arena = Arena::new(ArenaConfig { capacity_bytes: 16 << 20, ..ArenaConfig::default() });
/// assert_eq!(arena.stats().mapped_bytes, 0);
/// let buffer = arena.allocate(1000)?;
/// let location = buffer.location().expect("it lies in shared memory");
/// assert_eq!(location.segment.len_bytes(), 1 << 20);
/// drop(arena);
/// assert_eq!(buffer.bytes()?.len(), 1000);
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct Arena(Arc<Inner>);

impl Arena {
    /// An arena that holds nothing yet: the first allocation maps the first segment.
    #[must_use]
    pub fn new(config: ArenaConfig) -> Self {
        let (state, extents, returns) = (Mutex::default(), RwLock::default(), Arc::default());
        Self(Arc::new(Inner { config, state, extents, returns, lent_bytes: AtomicU64::new(0) }))
    }

    /// A block of `len_bytes`, aligned to 64 bytes, from 4 KiB on to pages. Its bytes are those of its previous life.
    /// No bytes at all are an empty private buffer. Does not block, except for the kernel's time when the arena grows.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] when the capacity or the machine's memory is used up.
    pub fn allocate(&self, len_bytes: usize) -> Result<Buffer> {
        self.allocate_within(len_bytes, u64::MAX)
    }

    /// As [`allocate`](Self::allocate), but where no segment has room the arena grows by `growth_bytes_max` bytes at
    /// most: for memory that somebody else asks for.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] also when it would have to grow by more.
    pub fn allocate_within(&self, len_bytes: usize, growth_bytes_max: u64) -> Result<Buffer> {
        if len_bytes == 0 {
            return Ok(Buffer::empty());
        }
        let config = &self.0.config;
        let block_bytes = block_bytes(len_bytes as u64).ok_or_else(|| too_much(config, 0, len_bytes as u64))?;
        let (segment, returned) = {
            let mut state = self.0.state.lock();
            state.drain(&self.0.returns);
            let allocated = state.allocate(block_bytes, config, growth_bytes_max);
            self.0.note_extents(&mut state);
            allocated?
        };
        let block = ArenaBlock { segment, returned, returns: Arc::clone(&self.0.returns) };
        Ok(Buffer::from_arena(block, len_bytes))
    }

    /// What it holds now.
    #[must_use]
    pub fn stats(&self) -> ArenaStats {
        let mut state = self.0.state.lock();
        state.drain(&self.0.returns);
        ArenaStats {
            capacity_bytes: self.0.config.capacity_bytes,
            mapped_bytes: state.mapped_bytes,
            used_bytes: state.used_bytes,
            lent_bytes: self.0.lent_bytes.load(Ordering::Relaxed),
            segments: state.spaces.iter().flatten().count(),
            allocations: state.allocations,
        }
    }

    /// Unmaps every segment in which nothing is held. The next allocations pay for fresh pages.
    pub fn trim(&self) {
        let mut state = self.0.state.lock();
        state.drain(&self.0.returns);
        state.release_empty(0);
        self.0.note_extents(&mut state);
    }

    /// Where these bytes lie in this arena's shared memory, if all of them do. The answer is about addresses; that the
    /// bytes are in use, so that they stay what they are, is for the caller to know. Takes some ten nanoseconds, and
    /// waits for nobody but who makes or removes a segment's entry.
    ///
    /// ```
    /// use sheave_tensor::{Arena, ArenaConfig};
    ///
    /// let arena = Arena::new(ArenaConfig::default());
    /// let buffer = arena.allocate(1000)?;
    /// let location = arena.locate(buffer.ptr().wrapping_add(8), 992).expect("it lies in the arena");
    /// assert_eq!(location.offset_bytes, buffer.location().expect("it lies there").offset_bytes + 8);
    /// assert!(arena.locate([0_u8; 4].as_ptr(), 4).is_none());
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    #[must_use]
    pub fn locate(&self, start: *const u8, len_bytes: usize) -> Option<Location> {
        let start = start.addr();
        let within = |extent: &Extent| {
            let offset_bytes = start.checked_sub(extent.start)?;
            let is_inside = extent.len_bytes.checked_sub(offset_bytes).is_some_and(|rest| rest >= len_bytes);
            // An older entry may have had the same addresses.
            let segment = if is_inside { extent.segment.upgrade()? } else { return None };
            Some(Location { segment, offset_bytes: offset_bytes as u64, length_bytes: len_bytes as u64 })
        };
        self.0.extents.read().iter().find_map(within)
    }

    /// Whether the buffer is a block of this arena.
    #[must_use]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.returns().is_some_and(|returns| Arc::ptr_eq(returns, &self.0.returns))
    }

    /// Counts `len_bytes` as lent to a peer, if the cap allows it. If not, the peer gets a copy: a user who keeps
    /// everything that he receives must not stop the traffic.
    #[must_use]
    pub fn try_lend(&self, len_bytes: u64) -> bool {
        let cap_bytes = (self.0.config.capacity_bytes as f64 * self.0.config.lent_fraction.clamp(0.0, 1.0)) as u64;
        let lend = |lent: u64| lent.checked_add(len_bytes).filter(|&lent| lent <= cap_bytes);
        self.0.lent_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lend).is_ok()
    }

    /// Ends what [`try_lend`](Self::try_lend) of the same length began.
    pub fn lend_ended(&self, len_bytes: u64) {
        let end = |lent: u64| Some(lent.saturating_sub(len_bytes));
        let _ = self.0.lent_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end);
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arena({:?})", self.stats())
    }
}

impl Inner {
    /// Brings the table of addresses up to date.
    fn note_extents(&self, state: &mut State) {
        if !std::mem::take(&mut state.is_remapped) {
            return;
        }
        let extent = |space: &Space| Extent {
            start: space.segment.start().addr().get(),
            len_bytes: space.segment.len_bytes() as usize,
            segment: Arc::downgrade(&space.segment),
        };
        *self.extents.write() = state.spaces.iter().flatten().map(extent).collect();
    }
}

impl State {
    fn drain(&mut self, returns: &SegQueue<ReturnedBlock>) {
        while let Some(block) = returns.pop() {
            self.used_bytes -= block.block_bytes;
            if self.recent.len() == RECENT_BLOCKS_MAX {
                self.merge_oldest();
            }
            self.recent.push_back(block);
        }
    }

    fn merge_oldest(&mut self) -> bool {
        let Some(block) = self.recent.pop_front() else { return false };
        if let Some(space) = self.spaces[block.slot].as_mut() {
            space.free.give_back(block.offset_bytes, block.block_bytes);
        }
        true
    }

    fn allocate(
        &mut self,
        block_bytes: u64,
        config: &ArenaConfig,
        growth_bytes_max: u64,
    ) -> Result<(Arc<Segment>, ReturnedBlock)> {
        // Before the block is taken: a program that holds one tensor at a time has an empty arena now.
        if self.allocations.is_multiple_of(WINDOW_ALLOCATIONS) {
            self.turn_window(config);
        }
        let (segment, block) = match self.take_recent(block_bytes).or_else(|| self.cut(block_bytes)) {
            Some(found) => found,
            None => {
                while self.merge_oldest() {}
                match self.cut(block_bytes) {
                    Some(found) => found,
                    None => self.grow(block_bytes, config, growth_bytes_max)?,
                }
            }
        };
        self.used_bytes += block_bytes;
        self.peak_bytes = self.peak_bytes.max(self.used_bytes);
        self.allocations += 1;
        Ok((segment, block))
    }

    fn take_recent(&mut self, block_bytes: u64) -> Option<(Arc<Segment>, ReturnedBlock)> {
        // The latest first: its bytes are still in the cache.
        let index = self.recent.iter().rposition(|block| {
            let segment = self.spaces[block.slot].as_ref().map(|space| &space.segment);
            block.block_bytes == block_bytes && segment.is_some_and(|segment| !segment.is_retired())
        })?;
        let block = self.recent.remove(index)?;
        let segment = Arc::clone(&self.spaces[block.slot].as_ref()?.segment);
        Some((segment, block))
    }

    fn cut(&mut self, block_bytes: u64) -> Option<(Arc<Segment>, ReturnedBlock)> {
        let usable = self.spaces.iter_mut().enumerate().filter_map(|(slot, space)| Some((slot, space.as_mut()?)));
        let (slot, space, candidate) = usable
            .filter(|(_, space)| !space.segment.is_retired())
            .filter_map(|(slot, space)| space.free.best(block_bytes).map(|candidate| (slot, space, candidate)))
            .min_by_key(|(_, _, candidate)| candidate.range_bytes)?;
        let offset_bytes = space.free.take(candidate, block_bytes);
        Some((Arc::clone(&space.segment), ReturnedBlock { slot, offset_bytes, block_bytes }))
    }

    /// Maps one more segment and cuts the block from it.
    fn grow(
        &mut self,
        block_bytes: u64,
        config: &ArenaConfig,
        growth_bytes_max: u64,
    ) -> Result<(Arc<Segment>, ReturnedBlock)> {
        // Those that are out of use neither hold room nor say how much is needed.
        self.release_empty(u64::MAX);
        let needed_bytes = block_bytes.checked_next_multiple_of(PAGE_BYTES);
        let needed_bytes = needed_bytes.ok_or_else(|| too_much(config, self.used_bytes, block_bytes))?;
        if needed_bytes > config.capacity_bytes.saturating_sub(self.mapped_bytes) {
            self.release_empty(0);
        }
        let room_bytes = config.capacity_bytes.saturating_sub(self.mapped_bytes) / PAGE_BYTES * PAGE_BYTES;
        if needed_bytes > room_bytes {
            return Err(too_much(config, self.used_bytes, block_bytes));
        }
        if needed_bytes > growth_bytes_max {
            let what = format!("the arena would have to grow by {needed_bytes} bytes, more than {growth_bytes_max}");
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        let wished_bytes = self.wished_bytes(needed_bytes, config);
        let segment_bytes = wished_bytes.max(needed_bytes).min(room_bytes);
        let segment = Segment::create(segment_bytes as usize)?;
        let mut free = FreeRanges::new(segment.len_bytes());
        self.mapped_bytes += segment.len_bytes();
        let offset_bytes = free.best(block_bytes).map(|candidate| free.take(candidate, block_bytes));
        let offset_bytes = offset_bytes.ok_or_else(|| {
            Error::new(ErrorKind::Internal, "a fresh segment does not hold the block it was made for")
        })?;
        let slot = self.spaces.iter().position(Option::is_none).unwrap_or(self.spaces.len());
        let space = Space { segment: Arc::clone(&segment), free };
        self.is_remapped = true;
        match self.spaces.get_mut(slot) {
            Some(empty) => *empty = Some(space),
            None => self.spaces.push(Some(space)),
        }
        Ok((segment, ReturnedBlock { slot, offset_bytes, block_bytes }))
    }

    /// How big the next segment should be: twice the largest that is in use.
    fn wished_bytes(&self, needed_bytes: u64, config: &ArenaConfig) -> u64 {
        let is_first = self.allocations == 0 && needed_bytes <= config.first_segment_bytes;
        let usable = self.spaces.iter().flatten().filter(|space| !space.segment.is_retired());
        let largest_bytes = usable.map(|space| space.segment.len_bytes()).max().unwrap_or(0);
        // Not the first size again where all were retired or released: many small segments would follow each other.
        let least_bytes = if is_first { config.first_segment_bytes } else { config.segment_bytes };
        largest_bytes.saturating_mul(2).max(least_bytes).min(SEGMENT_BYTES_MAX).next_multiple_of(PAGE_BYTES)
    }

    /// Ends a window of allocations: keeps twice what the last two windows needed at their height, so that a steady
    /// program never sees a page fault, and releases empty segments beyond.
    fn turn_window(&mut self, config: &ArenaConfig) {
        let needed_bytes = self.peak_bytes.max(self.previous_peak_bytes).saturating_mul(2);
        self.previous_peak_bytes = self.peak_bytes;
        self.peak_bytes = self.used_bytes;
        if self.mapped_bytes > needed_bytes.max(config.first_segment_bytes) {
            self.release_empty(needed_bytes.max(config.first_segment_bytes));
        }
    }

    /// Releases segments in which nothing is held, the largest first, as long as `keep_bytes` stay mapped. Empty
    /// retired segments go always: nothing will be allocated there, and what a peer writes into its own mapping hurts
    /// nobody.
    fn release_empty(&mut self, keep_bytes: u64) {
        while self.merge_oldest() {}
        let mut empty: Vec<(usize, u64, bool)> = Vec::new();
        for (slot, space) in self.spaces.iter().enumerate() {
            if let Some(space) = space.as_ref().filter(|space| space.free.is_entirely_free()) {
                empty.push((slot, space.segment.len_bytes(), space.segment.is_retired()));
            }
        }
        empty.sort_by_key(|&(_, len_bytes, _)| std::cmp::Reverse(len_bytes));
        for (slot, len_bytes, retired) in empty {
            if retired || self.mapped_bytes - len_bytes >= keep_bytes {
                self.spaces[slot] = None;
                self.is_remapped = true;
                self.mapped_bytes -= len_bytes;
            }
        }
    }
}

fn too_much(config: &ArenaConfig, used_bytes: u64, asked_bytes: u64) -> Error {
    let capacity_bytes = config.capacity_bytes;
    let what =
        format!("the arena cannot hold {asked_bytes} bytes more: {used_bytes} of its {capacity_bytes} are in use");
    Error::new(ErrorKind::LimitExceeded, what).hint("drop tensors that are not needed, or raise the arena's capacity")
}
