//! How frames of a stream become messages.
//!
//! A [`Machine`] takes bytes from a [`Buffer`] and knows at any time how many of them belong to which part of which
//! message, and where the next header is: lengths were held against their limits when they were decoded, the payload
//! must be exactly as long as its parts, and every piece as long as it can be. A data message that comes in pieces is
//! put aside where a piece ends; between two pieces stand urgent messages, which the machine takes like any other.
//!
//! A machine does not read headers by itself: whoever runs it decides what becomes of a frame.

use super::reading::{Shore, impossible};
use crate::counters::Counters;
use crate::link::{Arrival, Landing, Verdict};
use crate::message::{Envelope, Message};
use sheave_base::Result;
use sheave_tensor::Tensor;
use sheave_wire::{HEADER_BYTES, Header, Kind, PIECE_BYTES, Parts, Placement};
use smallvec::SmallVec;
use std::io::IoSliceMut;

/// A control area up to this size keeps its memory for the next one.
const AREA_KEPT_BYTES: usize = 64 << 10;
/// Parts that one gathered read fills; the kernel takes at most 1024.
pub(super) const PIECES_MAX: usize = 256;

/// Bytes of a stream that are here and not used yet.
#[derive(Default)]
pub(super) struct Buffer {
    pub(super) bytes: Vec<u8>,
    pub(super) begin: usize,
    pub(super) end: usize,
}

impl Buffer {
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.begin
    }

    /// The next header, if it is here whole.
    pub(super) fn header(&mut self) -> Result<Option<Header>> {
        let Some(bytes) = self.rest().first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::decode(bytes)?;
        self.begin += HEADER_BYTES;
        Ok(Some(header))
    }

    /// Moves what is left to the front.
    pub(super) fn compact(&mut self) {
        self.bytes.copy_within(self.begin..self.end, 0);
        self.end -= self.begin;
        self.begin = 0;
    }

    /// Appends to a buffer that grows. What was used is given up once it is the larger part.
    pub(super) fn append(&mut self, bytes: &[u8]) {
        if self.begin > self.len() {
            self.compact();
        }
        self.bytes.truncate(self.end);
        self.bytes.extend_from_slice(bytes);
        self.end = self.bytes.len();
    }
}

/// Where in a frame the stream stands.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each message")]
enum State {
    /// Before a header.
    Header,
    /// In the control area, of which so many bytes are here.
    Area { header: Header, area: Vec<u8>, filled_bytes: usize },
    /// Behind the control area; the receiver has not been asked, or asked to wait.
    Arrived { header: Header, parts: Parts, control: Vec<u8> },
    /// In the payload, at `offset_bytes` of part `part`.
    Payload { landing: Landing, message: Message, part: usize, offset_bytes: usize },
}

pub(super) enum Step {
    /// The machine moved on inside of a message.
    Moved,
    /// A message is delivered.
    Delivered,
    /// The receiver has no room.
    Paused,
    /// More bytes are needed.
    Starved,
}

pub(super) struct Machine {
    /// Memory for the next control area.
    area: Vec<u8>,
    state: State,
    /// Bytes of the message in `state` that come before the next header, ...
    piece_bytes: usize,
    /// ... and bytes of the data message in progress that come behind it.
    later_bytes: u64,
    /// The data message in progress, between two of its pieces.
    aside: Option<State>,
    /// Bytes of frames of data that were used.
    used_bytes: u64,
}

impl Default for Machine {
    fn default() -> Self {
        let (area, state) = (Vec::new(), State::Header);
        Self { area, state, piece_bytes: 0, later_bytes: 0, aside: None, used_bytes: 0 }
    }
}

/// Bytes behind the header of a frame of data that come before the next header.
pub(super) fn piece_bytes(header: &Header) -> usize {
    // Cannot overflow: both are held against their limits.
    let length_bytes = u64::from(header.control_bytes) + header.payload_bytes;
    length_bytes.min(PIECE_BYTES as u64) as usize
}

impl Machine {
    /// Whether a header comes next.
    pub(super) fn needs_header(&self) -> bool {
        matches!(self.state, State::Header)
    }

    /// Whether nothing of a message is here.
    pub(super) fn is_idle(&self) -> bool {
        self.needs_header() && self.aside.is_none()
    }

    /// Whether it is an urgent message that has begun.
    pub(super) fn is_in_urgent(&self) -> bool {
        matches!(&self.state, State::Area { header, .. } | State::Arrived { header, .. } if header.kind == Kind::Urgent)
    }

    /// Bytes of the message in progress that come before the next header.
    pub(super) fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    /// Bytes of frames of data that were used since the beginning.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Takes the header of a frame of data.
    pub(super) fn begin_data(&mut self, header: Header) -> Result<()> {
        self.used_bytes += HEADER_BYTES as u64;
        if header.kind == Kind::Chunk {
            return self.next_piece(&header);
        }
        if self.aside.is_some() {
            return Err(impossible("a message in the middle of another"));
        }
        self.piece_bytes = piece_bytes(&header);
        self.later_bytes = u64::from(header.control_bytes) + header.payload_bytes - self.piece_bytes as u64;
        self.begin(header);
        Ok(())
    }

    /// Takes the header of an urgent message.
    pub(super) fn begin_urgent(&mut self, header: Header) -> Result<()> {
        Envelope::of_urgent(&header)?;
        self.piece_bytes = header.control_bytes as usize;
        self.begin(header);
        Ok(())
    }

    fn begin(&mut self, header: Header) {
        let mut area = std::mem::take(&mut self.area);
        area.resize((header.control_bytes as usize).min(AREA_KEPT_BYTES), 0);
        self.state = State::Area { header, area, filled_bytes: 0 };
    }

    /// Another piece of the data message that was put aside.
    fn next_piece(&mut self, header: &Header) -> Result<()> {
        let is_plain = header.part_count == 0 && header.control_bytes == 0;
        let expected_bytes = self.later_bytes.min(PIECE_BYTES as u64);
        // Looked at before it is taken: what waits for the message hears of the error.
        if self.aside.is_none() || !is_plain || header.payload_bytes != expected_bytes {
            let length_bytes = header.payload_bytes;
            return Err(impossible(format!("a piece of {length_bytes} bytes; expected {expected_bytes}")));
        }
        if let Some(state) = self.aside.take() {
            (self.state, self.piece_bytes) = (state, expected_bytes as usize);
            self.later_bytes -= expected_bytes;
        }
        Ok(())
    }

    /// Goes on with the message that has begun. `ending` as in [`Arrival`].
    pub(super) fn step(&mut self, source: &mut Buffer, ending: bool, shore: &Shore<'_>) -> Result<Step> {
        match std::mem::replace(&mut self.state, State::Header) {
            State::Header => Ok(Step::Moved),
            State::Area { header, area, filled_bytes } => self.area(header, area, filled_bytes, source),
            State::Arrived { header, parts, control } => self.arrived(header, parts, control, (source, ending, shore)),
            State::Payload { landing, message, part, offset_bytes } => {
                Ok(self.payload(landing, message, (part, offset_bytes), source, shore))
            }
        }
    }

    /// What a message needs next is not here: it is behind the next header, or still to be read.
    fn lacks_bytes(&mut self, state: State) -> Step {
        if self.piece_bytes == 0 {
            self.aside = Some(state);
            return Step::Moved;
        }
        self.state = state;
        Step::Starved
    }

    /// So many bytes of the message in progress were used.
    fn use_bytes(&mut self, length_bytes: usize, is_urgent: bool) {
        self.piece_bytes -= length_bytes;
        if !is_urgent {
            self.used_bytes += length_bytes as u64;
        }
    }

    fn area(&mut self, header: Header, mut area: Vec<u8>, filled: usize, source: &mut Buffer) -> Result<Step> {
        let here_bytes = source.len().min(self.piece_bytes);
        let taken_bytes = (area.len() - filled).min(here_bytes);
        area[filled..][..taken_bytes].copy_from_slice(&source.rest()[..taken_bytes]);
        source.begin += taken_bytes;
        self.use_bytes(taken_bytes, header.kind == Kind::Urgent);
        let filled_bytes = filled + taken_bytes;
        if filled_bytes < header.control_bytes as usize {
            if filled_bytes == area.len() {
                // As much again as has come.
                area.resize((2 * filled_bytes).min(header.control_bytes as usize), 0);
            }
            let is_starved = taken_bytes == here_bytes;
            let state = State::Area { header, area, filled_bytes };
            if is_starved {
                return Ok(self.lacks_bytes(state));
            }
            self.state = state;
            return Ok(Step::Moved);
        }
        let (parts, control) = sheave_wire::parts::decode(&area, header.part_count.into())?;
        let mut payload_bytes = 0u64;
        for part in &parts {
            if part.placement != Placement::Inline || part.shared {
                return Err(impossible("a tensor that lies in shared memory"));
            }
            // Cannot overflow: there are few parts, and each is held against its limit.
            payload_bytes += part.spec.length_bytes()?;
        }
        if payload_bytes != header.payload_bytes {
            let announced_bytes = header.payload_bytes;
            return Err(impossible(format!("{announced_bytes} bytes for tensors of {payload_bytes} bytes")));
        }
        self.state = State::Arrived { header, control: control.to_vec(), parts };
        if area.capacity() <= AREA_KEPT_BYTES {
            self.area = area;
        }
        Ok(Step::Moved)
    }

    fn arrived(
        &mut self,
        header: Header,
        parts: Parts,
        control: Vec<u8>,
        (source, ending, shore): (&mut Buffer, bool, &Shore<'_>),
    ) -> Result<Step> {
        let (envelope, sequence, payload_bytes) = (Envelope::of_header(&header), header.sequence, header.payload_bytes);
        let control_bytes = control.len();
        let is_urgent = header.kind == Kind::Urgent;
        let arrival = Arrival { envelope, sequence, parts: &parts, payload_bytes, control_bytes, is_urgent, ending };
        let mut landing = match shore.sink.begin(shore.id, &arrival)? {
            Verdict::Pause => {
                self.state = State::Arrived { header, parts, control };
                return Ok(Step::Paused);
            }
            Verdict::Land(landing) => landing,
        };
        let mut tensors = landing.take_places();
        for part in parts.iter().skip(tensors.len()) {
            match shore.sink.place(&part.spec) {
                Ok(tensor) => tensors.push(tensor),
                Err(error) => {
                    landing.fail(&error);
                    return Err(error);
                }
            }
        }
        let message = Message { envelope, source: shore.id, sequence, control, parts: tensors };
        Ok(self.payload(landing, message, (0, 0), source, shore))
    }

    /// The link has ended: nobody will complete the message in progress.
    pub(crate) fn end(&mut self) -> Option<Landing> {
        let states = [Some(std::mem::replace(&mut self.state, State::Header)), self.aside.take()];
        states.into_iter().flatten().find_map(|state| match state {
            State::Payload { landing, .. } => Some(landing),
            _ => None,
        })
    }

    /// Takes what is here of the payload, and delivers the message if that was the rest.
    fn payload(
        &mut self,
        landing: Landing,
        message: Message,
        (mut part, mut offset_bytes): (usize, usize),
        source: &mut Buffer,
        shore: &Shore<'_>,
    ) -> Step {
        while let Some(tensor) = message.parts.get(part) {
            let here_bytes = source.len().min(self.piece_bytes);
            let length_bytes = (tensor.len_bytes() - offset_bytes).min(here_bytes);
            // SAFETY: the tensor is fresh or a place whose write lease the receive holds, so nobody else touches it;
            // both ranges have `length_bytes` left.
            unsafe {
                let source = source.bytes.as_ptr().add(source.begin);
                sheave_tensor::copy_bytes(tensor.ptr().add(offset_bytes), source, length_bytes);
            }
            Counters::add(&shore.counters.bytes_copied, length_bytes as u64);
            Counters::add(&shore.counters.bytes_streamed, length_bytes as u64);
            source.begin += length_bytes;
            self.use_bytes(length_bytes, false);
            offset_bytes += length_bytes;
            if offset_bytes < tensor.len_bytes() {
                return self.lacks_bytes(State::Payload { landing, message, part, offset_bytes });
            }
            part += 1;
            offset_bytes = 0;
        }
        shore.sink.deliver(landing, message);
        Step::Delivered
    }

    /// The memory that the rest of the piece in progress goes to, as far as it is known, and whether something else
    /// may be read behind it in the same call: nothing, so many bytes, or as many as there are.
    pub(super) fn places<'a>(&'a mut self, pieces: &mut SmallVec<[IoSliceMut<'a>; 4]>) -> Option<usize> {
        let is_in_message = match &mut self.state {
            State::Area { area, filled_bytes, .. } => {
                let most_bytes = (area.len() - *filled_bytes).min(self.piece_bytes);
                pieces.push(IoSliceMut::new(&mut area[*filled_bytes..][..most_bytes]));
                true
            }
            State::Payload { message, part, offset_bytes, .. } => {
                rest_of(&message.parts[*part..], *offset_bytes, self.piece_bytes, pieces);
                true
            }
            State::Header | State::Arrived { .. } => false,
        };
        let wanted_bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        if is_in_message && wanted_bytes < self.piece_bytes {
            return None;
        }
        // Behind another piece's header are bytes that have places.
        Some(if self.later_bytes > 0 { HEADER_BYTES } else { usize::MAX })
    }

    /// The kernel has put `length_bytes` where [`Machine::places`] pointed it.
    pub(super) fn advance(&mut self, length_bytes: usize, shore: &Shore<'_>) {
        let is_urgent = self.is_in_urgent();
        self.use_bytes(length_bytes, is_urgent);
        match &mut self.state {
            State::Area { filled_bytes, .. } => *filled_bytes += length_bytes,
            State::Payload { message, part, offset_bytes, .. } => {
                Counters::add(&shore.counters.bytes_streamed, length_bytes as u64);
                *offset_bytes += length_bytes;
                while let Some(tensor) = message.parts.get(*part)
                    && *offset_bytes > tensor.len_bytes()
                {
                    *offset_bytes -= tensor.len_bytes();
                    *part += 1;
                }
            }
            State::Header | State::Arrived { .. } => {}
        }
    }
}

/// The memory that so many bytes of the rest of a payload go to, part by part.
fn rest_of(
    parts: &[Tensor],
    mut offset_bytes: usize,
    mut left_bytes: usize,
    pieces: &mut SmallVec<[IoSliceMut<'_>; 4]>,
) {
    for tensor in parts {
        let length_bytes = (tensor.len_bytes() - offset_bytes).min(left_bytes);
        if length_bytes > 0 {
            // SAFETY: as in `payload`; the slices of different parts do not overlap, for each place has a write lease
            // of its own, and they are gone before the message is delivered.
            let bytes = unsafe { std::slice::from_raw_parts_mut(tensor.ptr().add(offset_bytes), length_bytes) };
            pieces.push(IoSliceMut::new(bytes));
        }
        offset_bytes = 0;
        left_bytes -= length_bytes;
        if pieces.len() == PIECES_MAX || left_bytes == 0 {
            return;
        }
    }
}
