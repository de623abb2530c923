//! The sending side of a shared-memory link.
//!
//! Where a tensor's bytes go is decided by size, mode and place:
//!
//! | tensor | way | copies here |
//! |---|---|---|
//! | the whole message fits in a record | inline, in the ring | 1 |
//! | moved, a block of the peer's | *home*: only its loan's number travels | 0 |
//! | moved or shared, in shared memory, within the lending cap | *block*: lent | 0 |
//! | shared, beyond the cap | *stream*: the receiver gets a copy of its own | 1 |
//! | copied, of the arena, from [`BORROW_BYTES_MIN`] on, the sender waits | *borrow*: the peer copies from it | 0 |
//! | copied, up to [`BLOCK_BYTES_MAX`], within the cap | *block*: captured in the arena and lent | 1 |
//! | everything else | *stream*: through four slots of [`CHUNK_BYTES`], which stay in cache | 1 |
//!
//! A stream occupies the ring for data until it ends, so that messages stay in order; its slots are leased from the
//! node's pool. Urgent messages have a ring of their own ([`super::urgent`]); while one waits for room there no other
//! message begins, so that none overtakes it.

use super::brief::Head;
use super::channel;
use super::loans::{Borrowed, Lent, Loan};
use super::memory::DataMemory;
use super::plain;
use super::ring::{Kind as RecordKind, Producer};
use super::urgent::UrgentSending;
use crate::counters::Counters;
use crate::doorbell::Doorbell;
use crate::link::Hold;
use crate::message::{Outgoing, Part, Parts, spec_of};
use crate::outbox::{Outbox, SendDriver, Waiting};
use parking_lot::Mutex;
use sheave_base::clock;
use sheave_base::collections::HashMap;
use sheave_base::park::Bell;
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_tensor::{Arena, Buffer, Location, Mode, Segment, SegmentId, Tensor};
use sheave_wire::{HEADER_BYTES, Header, Part as WirePart, Placement};
use smallvec::SmallVec;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Bytes of a message, header and tables included, up to which everything travels in the ring.
const INLINE_BYTES_MAX: usize = 2048;
/// Bytes of a control area that travel in one record; longer areas are sent ahead in pieces.
const AREA_BYTES_MAX: usize = 4096;
/// Copied tensors up to this size are captured in one block.
const BLOCK_BYTES_MAX: usize = 256 << 10;
/// Copied tensors of the arena from this size on are borrowed while their sender waits: what the peer copies from there
/// crosses the cores once instead of twice.
const BORROW_BYTES_MIN: usize = 32 << 10;
/// Size of a slot of a stream.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// How soon it is tried again what waits for slots of other links' streams, or for room in the socket.
const STARVED_PAUSE: Duration = Duration::from_millis(1);
/// Slots of a stream.
pub(crate) const CHUNKS: u64 = 4;

/// The parts of a link that sending needs and does not own.
pub(crate) struct Shore<'a> {
    pub(crate) socket: &'a OwnedFd,
    pub(crate) lent: &'a Mutex<Lent>,
    pub(crate) arena: &'a Arena,
    pub(crate) slots: &'a Arena,
    pub(crate) counters: &'a Counters,
    pub(crate) home_token: usize,
    pub(crate) driver: &'a SendDriver,
    pub(crate) bell: &'a Doorbell,
}

impl Shore<'_> {
    pub(crate) fn ring(&self) {
        Counters::add(&self.counters.doorbells_rung, 1);
        self.bell.ring();
    }
}

/// Everything that senders change, under one lock.
pub(crate) struct Sending {
    pub(crate) producer: Producer<DataMemory>,
    urgent: UrgentSending,
    outbox: Outbox,
    sequence: u64,
    assembly: Option<Assembly>,
    stream: Option<Stream>,
    slots: Option<Buffer>,
    chunks_filled: u64,
    /// What waits could not go on, for want of slots or of room in the socket, and nobody rings when there is some.
    is_starved: bool,
    /// Works of messages that have left. Whoever held the lock completes them when it is free, since their callbacks
    /// may send again.
    finished: Vec<Completer<()>>,
    /// Segments whose descriptor the peer has. The arena may give one back to the system when nothing lies in it.
    announced: HashMap<SegmentId, Weak<Segment>>,
    /// Why nothing more can be sent.
    failure: Option<Error>,
}

/// What a link leaves behind.
pub(crate) struct Ended {
    pub(crate) waiting: Vec<Completer<()>>,
    /// Segments that the peer has mapped.
    pub(crate) segments: Vec<Arc<Segment>>,
    /// Slots that the peer has not emptied.
    pub(crate) slots: Option<Buffer>,
}

/// A message whose parts have their places and whose control area is on its way.
struct Assembly {
    header: [u8; HEADER_BYTES],
    area: Vec<u8>,
    sent_bytes: usize,
    streamed: Parts,
    ends: Until,
}

/// What completes the sender's work.
enum Until {
    /// That all has left.
    Sent(Completer<()>),
    /// That the peer has copied the borrowed tensor of this loan, which has the work.
    Copied(u64),
}

/// A message whose bytes pass through the slots.
struct Stream {
    parts: Parts,
    part: usize,
    offset_bytes: usize,
    done: Completer<()>,
}

enum Placed {
    At(Placement),
    Streamed(Part),
}

impl Sending {
    pub(super) fn new(producer: Producer<DataMemory>, urgent: UrgentSending) -> Self {
        Self {
            producer,
            urgent,
            outbox: Outbox::default(),
            sequence: 0,
            assembly: None,
            stream: None,
            slots: None,
            chunks_filled: 0,
            is_starved: false,
            finished: Vec::new(),
            announced: HashMap::default(),
            failure: None,
        }
    }

    /// Puts a message into its ring if that can be done at once.
    #[inline]
    pub(crate) fn send_at_once(&mut self, message: &Outgoing, shore: &Shore<'_>) -> Result<bool> {
        if shore.driver.is_urgent(message) {
            return self.send_urgent(message);
        }
        Ok(!self.waits() && fits_inline(message) && self.put(message, shore)?)
    }

    fn send_urgent(&mut self, message: &Outgoing) -> Result<bool> {
        let is_put = self.failure.is_none() && !self.urgent_waits() && self.urgent.put(message)?;
        if is_put {
            self.producer.follow_urgent();
        }
        Ok(is_put)
    }

    /// Gives loans back, whose numbers are in `words`. False when there is no room.
    pub(crate) fn put_returns(&mut self, words: &[u8]) -> Result<bool> {
        let is_put = self.urgent.put_returns(words)?;
        if is_put {
            self.producer.follow_urgent();
        }
        Ok(is_put)
    }

    /// True while an urgent message waits for room.
    fn urgent_waits(&self) -> bool {
        self.urgent.is_busy() || !self.outbox.has_none_urgent()
    }

    /// After something was put into a ring: true when the peer sleeps and must be rung.
    #[inline]
    pub(crate) fn must_ring(&mut self) -> bool {
        let of_urgent = self.urgent.has_put() && self.urgent.must_ring();
        self.producer.must_ring() | of_urgent
    }

    /// Shows the peer a segment, unless it has seen it. False when the socket has no room.
    pub(crate) fn introduce(&mut self, segment: &Arc<Segment>, shore: &Shore<'_>) -> Result<bool> {
        announce(&mut self.announced, segment, shore)
    }

    /// Takes a message into the outbox, from where it leaves at once if it may begin and there is room; then its work
    /// is among the finished. What goes wrong with the messages before it is the link's end, and found by the next
    /// poll.
    pub(crate) fn queue(
        &mut self,
        message: Outgoing,
        hold: Hold,
        shore: &Shore<'_>,
        may_begin: bool,
    ) -> Result<Work<()>> {
        check(&message, shore)?;
        let work = self.outbox.push(message, hold, shore.driver)?;
        if let Err(error) = self.flush(shore, may_begin) {
            self.failure.get_or_insert(error);
        }
        Ok(work)
    }

    /// The works to complete once the lock is free.
    pub(crate) fn take_finished(&mut self) -> Vec<Completer<()>> {
        std::mem::take(&mut self.finished)
    }

    /// Moves what waits into the rings; messages that are not on their way begin only if they may. True when something
    /// moved.
    pub(crate) fn flush(&mut self, shore: &Shore<'_>, may_begin: bool) -> Result<bool> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        self.is_starved = false;
        let mut moved = false;
        if self.urgent_waits() && self.urgent.flush(&mut self.outbox, &mut self.finished)? {
            self.producer.follow_urgent();
            moved = true;
        }
        let may_begin = may_begin && !self.urgent_waits();
        loop {
            if self.assembly.is_some() {
                moved |= self.assemble(shore)?;
            }
            if self.stream.is_some() {
                moved |= self.pump(shore)?;
            }
            let is_busy = self.assembly.is_some() || self.stream.is_some();
            if is_busy || !may_begin || !self.start_next(shore)? {
                return Ok(moved);
            }
            moved = true;
        }
    }

    /// Captures whatever waits to be sent by copy.
    pub(crate) fn capture(&mut self, driver: &SendDriver) -> Result<()> {
        self.outbox.capture_all(driver)?;
        if let Some(assembly) = &mut self.assembly {
            driver.capture_copied(&mut assembly.streamed)?;
        }
        match &mut self.stream {
            Some(stream) => driver.capture_copied(&mut stream.parts),
            None => Ok(()),
        }
    }

    /// True when something waits for room.
    pub(crate) fn waits(&self) -> bool {
        let is_busy = self.assembly.is_some() || self.stream.is_some() || self.urgent.is_busy();
        is_busy || !self.outbox.is_empty() || self.failure.is_some()
    }

    /// Counts the messages that are not in the ring whole.
    pub(crate) fn unsent(&self) -> usize {
        let begun = [self.assembly.is_some(), self.stream.is_some(), self.urgent.is_busy()];
        self.outbox.len() + begun.into_iter().filter(|is_begun| *is_begun).count()
    }

    /// Asks to be rung when there is room for what waits, loans that are to be given back included.
    pub(crate) fn arm(&self) {
        self.producer.arm();
        self.urgent.arm();
    }

    /// Chunks that were filled and not taken.
    fn chunks_on_their_way(&self) -> Result<u64> {
        let taken = self.producer.chunks_taken();
        self.chunks_filled.checked_sub(taken).ok_or_else(|| {
            let what = format!("the peer says that it took {taken} chunks; expected at most {}", self.chunks_filled);
            Error::new(ErrorKind::Protocol, what)
        })
    }

    /// True when waiting things could move now.
    pub(crate) fn can_move(&mut self, has_debts: bool) -> Result<bool> {
        let waits_urgently = has_debts || self.urgent_waits();
        if self.failure.is_some() || waits_urgently && self.urgent.has_room()? {
            return Ok(true);
        }
        let is_full = self.stream.is_some() && self.chunks_on_their_way()? >= CHUNKS;
        if is_full || self.is_starved {
            return Ok(false);
        }
        let is_busy = self.assembly.is_some() || self.stream.is_some();
        let may_begin = !waits_urgently && self.outbox.front().is_some();
        Ok((is_busy || may_begin) && self.producer.has_room_for_any()?)
    }

    /// When to try again what waits for something that nobody rings for.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        self.is_starved.then(|| clock::now() + STARVED_PAUSE)
    }

    /// Housekeeping, once per beat: gives the slots back to the node's pool when no stream uses them any more, and lets
    /// the peer forget segments that are gone.
    pub(crate) fn rest(&mut self, socket: BorrowedFd<'_>) {
        if self.stream.is_none() && self.chunks_filled == self.producer.chunks_taken() {
            self.slots = None;
        }
        // What cannot be told now is told with a later beat; a closed socket is noticed where it matters.
        self.announced.retain(|id, segment| {
            segment.strong_count() > 0 || !matches!(channel::send_forget(socket, id.0), Ok(true))
        });
    }

    /// Ends everything that waits, for a link that has ended. The caller completes it with no lock held.
    pub(crate) fn end(&mut self) -> Ended {
        let mut waiting: Vec<_> = self.outbox.drain().into_iter().map(|waiting| waiting.done).collect();
        if let Some(Until::Sent(done)) = self.assembly.take().map(|assembly| assembly.ends) {
            waiting.push(done);
        }
        waiting.extend(self.stream.take().map(|stream| stream.done));
        waiting.extend(self.urgent.end());
        let segments = std::mem::take(&mut self.announced);
        let segments = segments.into_values().filter_map(|segment| segment.upgrade()).collect();
        let slots = self.slots.take().filter(|_| self.chunks_filled != self.producer.chunks_taken());
        Ended { waiting, segments, slots }
    }

    fn header(&self, message: &Outgoing, part_count: usize, area_bytes: usize, payload_bytes: u64) -> Header {
        Header {
            part_count: part_count as u16,
            sequence: self.sequence + 1,
            control_bytes: area_bytes as u32,
            payload_bytes,
            ..message.envelope.header()
        }
    }

    /// Puts a whole message into the ring. False when there is no room.
    #[inline]
    fn put(&mut self, message: &Outgoing, shore: &Shore<'_>) -> Result<bool> {
        if let Some(head) = plain::head_of(message) {
            let is_put = self.producer.push(RecordKind::Plain, &[head.as_flattened(), &message.control])?;
            self.sequence += u64::from(is_put);
            return Ok(is_put);
        }
        let Some((head, part)) = Head::of(message) else { return self.put_inline(message, shore) };
        // SAFETY: as in `put_inline`.
        let elements = unsafe { std::slice::from_raw_parts(part.tensor.ptr(), part.tensor.len_bytes()) };
        if !self.producer.push(RecordKind::Brief, &[head.bytes(), elements])? {
            return Ok(false);
        }
        self.sequence += 1;
        Counters::add(&shore.counters.bytes_copied, elements.len() as u64);
        Ok(true)
    }

    fn put_inline(&mut self, message: &Outgoing, shore: &Shore<'_>) -> Result<bool> {
        let parts: SmallVec<[WirePart; 2]> =
            message.parts.iter().map(|part| WirePart::inline(spec_of(&part.tensor))).collect();
        let mut table: SmallVec<[u8; 128]> = SmallVec::new();
        sheave_wire::parts::encode(&parts, &mut table)?;
        let payload_bytes = message.payload_bytes();
        let area_bytes = table.len() + message.control.len();
        let header = self.header(message, parts.len(), area_bytes, payload_bytes).encode_unsummed();
        // The reader splits table and control by what it parses, so they stand without a gap.
        table.extend_from_slice(&message.control);
        let mut pieces: SmallVec<[&[u8]; 4]> = SmallVec::new();
        pieces.extend([&header[..], &table[..]]);
        for part in &message.parts {
            // SAFETY: the message holds the tensor; only its owner's explicit share could let somebody write it now,
            // and a torn copy is then what was asked for.
            pieces.push(unsafe { std::slice::from_raw_parts(part.tensor.ptr(), part.tensor.len_bytes()) });
        }
        if !self.producer.push(RecordKind::Message, &pieces)? {
            return Ok(false);
        }
        self.sequence += 1;
        Counters::add(&shore.counters.bytes_copied, payload_bytes);
        Ok(true)
    }

    /// Begins with the oldest message of the outbox. False when there is none or no room for it.
    fn start_next(&mut self, shore: &Shore<'_>) -> Result<bool> {
        let Some(front) = self.outbox.front() else { return Ok(false) };
        if fits_inline(&front.message) {
            let Some(waiting) = self.outbox.pop() else { return Ok(false) };
            if self.put(&waiting.message, shore)? {
                drop(waiting.message);
                self.finished.push(waiting.done);
                return Ok(true);
            }
            self.outbox.unpop(waiting);
            return Ok(false);
        }
        for part in &front.message.parts {
            if let Some(location) = part.tensor.buffer().location()
                && !announce(&mut self.announced, &location.segment, shore)?
            {
                self.is_starved = true;
                return Ok(false);
            }
        }
        let Some(waiting) = self.outbox.pop() else { return Ok(false) };
        if let Some(waiting) = self.begin_borrowed(waiting, shore)? {
            self.begin(waiting.message, waiting.done, shore)?;
        }
        Ok(true)
    }

    /// Lends the only tensor of a message whose sender waits; gives the message back where that cannot be.
    fn begin_borrowed(&mut self, mut waiting: Waiting, shore: &Shore<'_>) -> Result<Option<Waiting>> {
        let [part] = &mut waiting.message.parts[..] else { return Ok(Some(waiting)) };
        let fits =
            waiting.hold == Hold::Borrow && part.mode == Mode::Copy && part.tensor.len_bytes() >= BORROW_BYTES_MIN;
        let Some((location, counted_bytes)) = (if fits { lendable(&part.tensor, shore) } else { None }) else {
            return Ok(Some(waiting));
        };
        let payload_bytes = part.tensor.len_bytes() as u64;
        let borrowed = Some(Borrowed { done: waiting.done, lease: part.lease.take(), behind: None });
        let loan = Loan { buffer: part.tensor.buffer().clone(), counted_bytes, borrowed };
        let loan = shore.lent.lock().add(loan);
        let (segment, offset) = (location.segment.id().0, location.offset_bytes + part.tensor.offset_bytes() as u64);
        let placement = Placement::Borrow { segment, offset, loan };
        let table = [WirePart { spec: spec_of(&part.tensor), placement, shared: false }];
        waiting.message.parts.clear();
        self.assemble_next(waiting.message, &table, payload_bytes, SmallVec::new(), Until::Copied(loan))?;
        Ok(None)
    }

    fn begin(&mut self, mut message: Outgoing, done: Completer<()>, shore: &Shore<'_>) -> Result<()> {
        let payload_bytes = message.payload_bytes();
        let mut table = SmallVec::<[WirePart; 2]>::new();
        let mut streamed = SmallVec::new();
        for part in std::mem::take(&mut message.parts) {
            let (spec, mode) = (spec_of(&part.tensor), part.mode);
            let placement = match self.place(part, shore)? {
                Placed::At(placement) => placement,
                Placed::Streamed(part) => {
                    streamed.push(part);
                    Placement::Stream
                }
            };
            // A shared tensor that could not be lent is a copy of the receiver's own.
            let shared = mode == Mode::Share && matches!(placement, Placement::Block { .. });
            table.push(WirePart { spec, placement, shared });
        }
        self.assemble_next(message, &table, payload_bytes, streamed, Until::Sent(done))
    }

    fn assemble_next(
        &mut self,
        mut message: Outgoing,
        table: &[WirePart],
        payload_bytes: u64,
        streamed: Parts,
        ends: Until,
    ) -> Result<()> {
        // Room for a few dimensions per part: growing it piece by piece scatters the heap.
        let mut area = Vec::with_capacity(64 * table.len() + message.control.len());
        sheave_wire::parts::encode(table, &mut area)?;
        area.append(&mut message.control);
        let header = self.header(&message, table.len(), area.len(), payload_bytes).encode_unsummed();
        self.assembly = Some(Assembly { header, area, sent_bytes: 0, streamed, ends });
        Ok(())
    }

    /// Sends the control area ahead in pieces while it is too long for a record, then the message.
    fn assemble(&mut self, shore: &Shore<'_>) -> Result<bool> {
        let Some(assembly) = &mut self.assembly else { return Ok(false) };
        let mut moved = false;
        while assembly.area.len() - assembly.sent_bytes > AREA_BYTES_MAX {
            let piece = &assembly.area[assembly.sent_bytes..][..AREA_BYTES_MAX];
            if !self.producer.push(RecordKind::Area, &[piece])? {
                return Ok(moved);
            }
            assembly.sent_bytes += AREA_BYTES_MAX;
            moved = true;
        }
        let rest = &assembly.area[assembly.sent_bytes..];
        if !self.producer.push(RecordKind::Message, &[&assembly.header, rest])? {
            return Ok(moved);
        }
        self.sequence += 1;
        if let Some(Assembly { streamed, ends, .. }) = self.assembly.take() {
            match ends {
                Until::Sent(done) if streamed.is_empty() => self.finished.push(done),
                Until::Sent(done) => self.stream = Some(Stream { parts: streamed, part: 0, offset_bytes: 0, done }),
                Until::Copied(loan) => shore.lent.lock().announced(loan, self.producer.end_line()),
            }
        }
        Ok(true)
    }

    /// Fills free slots with the bytes of the stream. True when something moved.
    fn pump(&mut self, shore: &Shore<'_>) -> Result<bool> {
        let Some(slots) = self.lease_slots(shore)? else { return Ok(false) };
        let mut moved = false;
        loop {
            let on_their_way = self.chunks_on_their_way()?;
            let Some(stream) = &mut self.stream else { break };
            let Some(part) = stream.parts.get(stream.part) else {
                self.finished.extend(self.stream.take().map(|stream| stream.done));
                return Ok(true);
            };
            let length = (part.tensor.len_bytes() - stream.offset_bytes).min(CHUNK_BYTES);
            if on_their_way >= CHUNKS || !self.producer.has_room_for_any()? {
                return Ok(moved);
            }
            let slot = (self.chunks_filled % CHUNKS) as usize * CHUNK_BYTES;
            // SAFETY: the peer is done with this slot, as its count says, the slot is inside the leased block, and the
            // part holds its tensor.
            unsafe {
                sheave_tensor::hand_over(slots.ptr().add(slot), part.tensor.ptr().add(stream.offset_bytes), length);
            }
            self.producer.push(RecordKind::Chunk, &[&(length as u64).to_ne_bytes()])?;
            Counters::add(&shore.counters.bytes_copied, length as u64);
            self.chunks_filled += 1;
            stream.offset_bytes += length;
            if stream.offset_bytes == part.tensor.len_bytes() {
                stream.part += 1;
                stream.offset_bytes = 0;
            }
            moved = true;
            // The peer starts to copy while the next slot is filled.
            if self.producer.must_ring() {
                shore.ring();
            }
        }
        Ok(moved)
    }

    /// The slots of this link's streams, leased and announced; `None` when there is no room for that now.
    fn lease_slots(&mut self, shore: &Shore<'_>) -> Result<Option<Buffer>> {
        if self.stream.is_none() {
            return Ok(None);
        }
        if let Some(slots) = &self.slots {
            return Ok(Some(slots.clone()));
        }
        let slots = match shore.slots.allocate(CHUNK_BYTES * CHUNKS as usize) {
            Ok(slots) => slots,
            Err(error) if error.kind() == ErrorKind::LimitExceeded => {
                self.is_starved = true;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let location =
            slots.location().ok_or_else(|| Error::new(ErrorKind::Internal, "a slot outside of shared memory"))?;
        let words = [location.segment.id().0.to_ne_bytes(), location.offset_bytes.to_ne_bytes()];
        let announced = announce(&mut self.announced, &location.segment, shore)?;
        self.is_starved = !announced;
        if !announced || !self.producer.push(RecordKind::Slots, &[words.as_flattened()])? {
            return Ok(None);
        }
        self.slots = Some(slots.clone());
        Ok(Some(slots))
    }

    /// Decides how a part's bytes travel, and lends or captures them.
    fn place(&mut self, part: Part, shore: &Shore<'_>) -> Result<Placed> {
        let length_bytes = part.tensor.len_bytes();
        if length_bytes == 0 {
            return Ok(Placed::At(Placement::Inline));
        }
        match part.mode {
            Mode::Move => Ok(place_moved(part, shore)),
            Mode::Share => Ok(lend(&part.tensor, shore).map_or(Placed::Streamed(part), Placed::At)),
            Mode::Copy if length_bytes > BLOCK_BYTES_MAX => Ok(Placed::Streamed(part)),
            Mode::Copy => {
                let Ok(block) = Tensor::empty(shore.arena, part.tensor.dtype(), part.tensor.shape().clone()) else {
                    return Ok(Placed::Streamed(part));
                };
                let segment = block.buffer().location().map(|location| location.segment);
                let known = match &segment {
                    Some(segment) => announce(&mut self.announced, segment, shore)?,
                    None => false,
                };
                if !known {
                    return Ok(Placed::Streamed(part));
                }
                // SAFETY: the block is fresh and of the same length; the part holds its tensor.
                unsafe { sheave_tensor::hand_over(block.ptr(), part.tensor.ptr(), length_bytes) };
                let Some(placement) = lend(&block, shore) else { return Ok(Placed::Streamed(part)) };
                Counters::add(&shore.counters.bytes_copied, length_bytes as u64);
                Ok(Placed::At(placement))
            }
        }
    }
}

/// A moved tensor goes home, is lent, or is streamed from where it is.
fn place_moved(part: Part, shore: &Shore<'_>) -> Placed {
    let Part { tensor, mode, lease } = part;
    let (dtype, shape, offset_bytes) = (tensor.dtype(), tensor.shape().clone(), tensor.offset_bytes());
    let length_bytes = tensor.len_bytes() as u64;
    let mut buffer = tensor.into_buffer();
    if offset_bytes == 0 && buffer.len_bytes() as u64 == length_bytes {
        buffer = match buffer.into_loan(shore.home_token) {
            Ok(loan) => {
                Counters::add(&shore.counters.bytes_lent, length_bytes);
                return Placed::At(Placement::Home { loan });
            }
            Err(buffer) => buffer,
        };
    }
    let tensor = Tensor::from_buffer(buffer, offset_bytes, dtype, shape).expect("it was this tensor a moment ago");
    match lend(&tensor, shore) {
        Some(placement) => Placed::At(placement),
        None => Placed::Streamed(Part { tensor, mode, lease }),
    }
}

/// Lends a tensor of this node's arena; `None` when it lies elsewhere or the cap is reached.
fn lend(tensor: &Tensor, shore: &Shore<'_>) -> Option<Placement> {
    let (location, counted_bytes) = lendable(tensor, shore)?;
    Counters::add(&shore.counters.bytes_lent, tensor.len_bytes() as u64);
    let loan = shore.lent.lock().add(Loan { buffer: tensor.buffer().clone(), counted_bytes, borrowed: None });
    let offset = location.offset_bytes + tensor.offset_bytes() as u64;
    Some(Placement::Block { segment: location.segment.id().0, offset, loan })
}

/// Where a tensor of this node's arena lies, and the bytes that it now counts against the cap; `None` when it lies
/// elsewhere or the cap is reached.
fn lendable(tensor: &Tensor, shore: &Shore<'_>) -> Option<(Location, u64)> {
    let buffer = tensor.buffer();
    if !shore.arena.owns(buffer) || !tensor.offset_bytes().is_multiple_of(64) {
        return None;
    }
    let location = buffer.location()?;
    let counted_bytes = location.length_bytes;
    shore.arena.try_lend(counted_bytes).then_some((location, counted_bytes))
}

/// Makes sure that the peer has a segment's descriptor. False when the socket has no room.
fn announce(known: &mut HashMap<SegmentId, Weak<Segment>>, segment: &Arc<Segment>, shore: &Shore<'_>) -> Result<bool> {
    if known.contains_key(&segment.id()) {
        return Ok(true);
    }
    // Of a segment that another process has made only its maker keeps the descriptor; tensors there go back to their
    // maker, who knows it, or are copied.
    let Some(file) = segment.fd() else { return Ok(true) };
    match channel::send_segment(shore.socket.as_fd(), segment.id().0, segment.len_bytes(), file) {
        Ok(true) => {
            known.insert(segment.id(), Arc::downgrade(segment));
            Ok(true)
        }
        // What the peer sent before it closed its socket is still to be read; the end is found behind it.
        Err(error) if error.kind() == ErrorKind::PeerLost => Ok(false),
        other => other,
    }
}

fn fits_inline(message: &Outgoing) -> bool {
    let mut bytes = message.control.len();
    for part in &message.parts {
        if part.mode == Mode::Share {
            return false;
        }
        bytes = bytes
            .saturating_add(part.tensor.len_bytes())
            .saturating_add(8 + 8 * part.tensor.shape().dimensions().len());
        if bytes > INLINE_BYTES_MAX {
            return false;
        }
    }
    bytes <= INLINE_BYTES_MAX
}

/// Refuses what the peer would refuse, before anything is sent.
fn check(message: &Outgoing, shore: &Shore<'_>) -> Result<()> {
    let part_count = u16::try_from(message.parts.len()).unwrap_or(u16::MAX);
    let control_bytes = u32::try_from(message.control.len()).unwrap_or(u32::MAX);
    Header { part_count, control_bytes, payload_bytes: message.payload_bytes(), ..message.envelope.header() }
        .check_limits()?;
    for part in message.parts.iter().filter(|part| part.mode == Mode::Share) {
        let aligned = part.tensor.offset_bytes().is_multiple_of(64);
        if !shore.arena.owns(part.tensor.buffer()) || !aligned {
            return Err(Error::new(ErrorKind::Unsupported, "only tensors of this node's arena can be shared")
                .hint("allocate the tensor in the arena, or send it by copy or move"));
        }
    }
    Ok(())
}
