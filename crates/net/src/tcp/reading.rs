//! The receiving side of a TCP link.
//!
//! The stream is cut into frames by a state machine. A data message that comes in pieces is put aside where a piece
//! ends; between two pieces stand urgent messages, which the machine takes like any other. A small buffer reads ahead,
//! so that a small message costs one system call; once a message has its places, the kernel writes the rest of its
//! payload straight into them, and only what comes behind it into the buffer. A message that must wait for its receiver
//! stops the machine where it stands: nothing more is read, the socket fills up, and the sender feels it.
//!
//! **Correctness.** Lengths were held against their limits when they were decoded, the payload must be exactly as
//! long as its parts, and every piece as long as it can be, so the machine always knows how many bytes belong to which
//! part, and where the next header is. Any error is final.

use super::TURN_BYTES;
use crate::counters::Counters;
use crate::farewell::{CONNECTION_BROKE, CONNECTION_DROPPED, closed_by_peer};
use crate::link::{Arrival, Landing, Sink, Verdict};
use crate::message::{Envelope, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv};
use sheave_base::{Error, ErrorKind, LinkId, Peer, Result};
use sheave_tensor::Tensor;
use sheave_wire::{HEADER_BYTES, Header, Kind, PIECE_BYTES, Parts, Placement};
use smallvec::SmallVec;
use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Bytes that are read ahead of the message that they belong to.
const AHEAD_BYTES: usize = 16 << 10;
/// A control area up to this size keeps its memory for the next one.
const AREA_KEPT_BYTES: usize = 64 << 10;
/// Parts that one gathered read fills; the kernel takes at most 1024.
const PIECES_MAX: usize = 256;

/// The parts of a link that receiving needs and does not own.
pub(crate) struct Shore<'a> {
    pub(crate) id: LinkId,
    pub(crate) socket: BorrowedFd<'a>,
    pub(crate) peer: &'a Peer,
    pub(crate) counters: &'a Counters,
    pub(crate) sink: &'a dyn Sink,
}

/// What the holder of the poll token changes.
pub(crate) struct Reading {
    ahead: Box<[u8]>,
    begin: usize,
    end: usize,
    /// Memory for the next control area.
    area: Vec<u8>,
    state: State,
    /// Bytes of the message in `state` that come before the next header, ...
    piece_bytes: usize,
    /// ... and bytes of the data message in progress that come behind it.
    later_bytes: u64,
    /// The data message in progress, between two of its pieces.
    aside: Option<State>,
    sequence: u64,
    heard: Instant,
    /// Whole messages may wait in the buffer.
    ready: bool,
    paused: bool,
    paused_before: bool,
    /// Why nothing more is read. Between the poll that found it and the end of the link another thread may poll, and
    /// must not take what stands behind it, the end of the stream after the last words, for the reason.
    over: Option<Error>,
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

enum Step {
    /// The machine moved on inside of a message.
    Moved,
    /// A message is delivered.
    Delivered,
    /// The receiver has no room.
    Paused,
    /// More bytes are needed.
    Starved,
}

/// What a read brought.
#[derive(Default)]
struct Filled {
    read_bytes: usize,
    /// Less came than was asked for: the socket is empty now.
    is_drained: bool,
}

/// What a turn brought.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) moved: bool,
    pub(crate) paused: bool,
}

impl Reading {
    /// `early` are the first bytes of the stream, read before the link was made.
    pub(crate) fn new(early: &[u8]) -> Result<Self> {
        let mut ahead = vec![0; AHEAD_BYTES].into_boxed_slice();
        let Some(start) = ahead.get_mut(..early.len()) else {
            return Err(Error::new(ErrorKind::Internal, "more was read ahead than a link can hold"));
        };
        start.copy_from_slice(early);
        Ok(Self {
            ahead,
            begin: 0,
            end: early.len(),
            area: Vec::new(),
            state: State::Header,
            piece_bytes: 0,
            later_bytes: 0,
            aside: None,
            sequence: 0,
            heard: Instant::now(),
            ready: !early.is_empty(),
            paused: false,
            paused_before: false,
            over: None,
        })
    }

    /// True when messages can be taken without reading.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// For how long nothing has arrived. Bytes that wait because the receiver has no room are a sign of life too.
    pub(crate) fn silence(&self, socket: BorrowedFd<'_>) -> Duration {
        if self.paused && rustix::io::ioctl_fionread(socket).is_ok_and(|waiting_bytes| waiting_bytes > 0) {
            return Duration::ZERO;
        }
        self.heard.elapsed()
    }

    /// Takes up to `budget` messages, and reads for one turn; at most once after the socket was found empty. An error
    /// is the last that was read.
    pub(crate) fn take_in(&mut self, shore: &Shore<'_>, budget: usize) -> Result<Taken> {
        if let Some(reason) = &self.over {
            return Err(reason.clone());
        }
        let taken = self.take(shore, budget);
        self.over = taken.as_ref().err().cloned();
        taken
    }

    fn take(&mut self, shore: &Shore<'_>, budget: usize) -> Result<Taken> {
        let mut taken = Taken::default();
        let (mut delivered, mut drained, mut read_bytes) = (0, false, 0);
        self.ready = false;
        self.paused_before = std::mem::take(&mut self.paused);
        while delivered < budget {
            match self.step(shore)? {
                Step::Moved => taken.moved = true,
                Step::Delivered => {
                    taken.moved = true;
                    delivered += 1;
                }
                Step::Paused => {
                    self.paused = true;
                    taken.paused = true;
                    return Ok(taken);
                }
                Step::Starved if drained || read_bytes >= TURN_BYTES => return Ok(taken),
                Step::Starved => {
                    let filled = self.fill(shore)?;
                    if filled.read_bytes == 0 {
                        return Ok(taken);
                    }
                    taken.moved = true;
                    drained = filled.is_drained;
                    read_bytes += filled.read_bytes;
                }
            }
        }
        self.ready = self.begin < self.end;
        Ok(taken)
    }

    fn step(&mut self, shore: &Shore<'_>) -> Result<Step> {
        match std::mem::replace(&mut self.state, State::Header) {
            State::Header => self.header(shore),
            State::Area { header, area, filled_bytes } => self.area(header, area, filled_bytes),
            State::Arrived { header, parts, control } => self.arrived(header, parts, control, shore),
            State::Payload { landing, message, part, offset_bytes } => {
                self.payload(landing, message, (part, offset_bytes), shore)
            }
        }
    }

    fn header(&mut self, shore: &Shore<'_>) -> Result<Step> {
        let Some(bytes) = self.ahead[self.begin..self.end].first_chunk::<HEADER_BYTES>() else {
            return Ok(Step::Starved);
        };
        let header = Header::decode(bytes)?;
        self.begin += HEADER_BYTES;
        if header.sequence != self.sequence + 1 {
            return Err(impossible(format!("message {} after message {}", header.sequence, self.sequence)));
        }
        self.sequence = header.sequence;
        let is_plain = header.part_count == 0 && header.control_bytes == 0;
        let is_empty = is_plain && header.payload_bytes == 0;
        match header.kind {
            Kind::Data if self.aside.is_some() => Err(impossible("a message in the middle of another")),
            Kind::Data => {
                // Cannot overflow: both are held against their limits.
                let length_bytes = u64::from(header.control_bytes) + header.payload_bytes;
                self.piece_bytes = length_bytes.min(PIECE_BYTES as u64) as usize;
                self.later_bytes = length_bytes - self.piece_bytes as u64;
                Ok(self.begin(header))
            }
            Kind::Urgent => {
                Envelope::of_urgent(&header)?;
                self.piece_bytes = header.control_bytes as usize;
                Ok(self.begin(header))
            }
            Kind::Chunk if is_plain => self.next_piece(header.payload_bytes),
            Kind::Beat if is_empty => Ok(Step::Moved),
            Kind::Close => Err(closed_by_peer(header.tag, shore.peer)),
            other => Err(impossible(format!("a frame of kind {other:?}"))),
        }
    }

    fn begin(&mut self, header: Header) -> Step {
        let mut area = std::mem::take(&mut self.area);
        area.resize((header.control_bytes as usize).min(AREA_KEPT_BYTES), 0);
        self.state = State::Area { header, area, filled_bytes: 0 };
        Step::Moved
    }

    /// Another piece of the data message that was put aside.
    fn next_piece(&mut self, length_bytes: u64) -> Result<Step> {
        let expected_bytes = self.later_bytes.min(PIECE_BYTES as u64);
        // Looked at before it is taken: what waits for the message hears of the error.
        if self.aside.is_none() || length_bytes != expected_bytes {
            return Err(impossible(format!("a piece of {length_bytes} bytes; expected {expected_bytes}")));
        }
        if let Some(state) = self.aside.take() {
            (self.state, self.piece_bytes) = (state, expected_bytes as usize);
            self.later_bytes -= expected_bytes;
        }
        Ok(Step::Moved)
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

    fn area(&mut self, header: Header, mut area: Vec<u8>, filled_bytes: usize) -> Result<Step> {
        let here_bytes = (self.end - self.begin).min(self.piece_bytes);
        let taken_bytes = (area.len() - filled_bytes).min(here_bytes);
        area[filled_bytes..][..taken_bytes].copy_from_slice(&self.ahead[self.begin..][..taken_bytes]);
        self.begin += taken_bytes;
        self.piece_bytes -= taken_bytes;
        let filled_bytes = filled_bytes + taken_bytes;
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

    fn arrived(&mut self, header: Header, parts: Parts, control: Vec<u8>, shore: &Shore<'_>) -> Result<Step> {
        let (envelope, sequence, payload_bytes) = (Envelope::of_header(&header), header.sequence, header.payload_bytes);
        // Asked only by a message that was refused before: the first refusal is followed by another look.
        let ending = self.paused_before && has_hung_up(shore.socket);
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
        self.payload(landing, message, (0, 0), shore)
    }

    /// The link has ended: nobody will complete the message in progress.
    pub(crate) fn end(&mut self) -> Option<Landing> {
        let states = [Some(std::mem::replace(&mut self.state, State::Header)), self.aside.take()];
        states.into_iter().flatten().find_map(|state| match state {
            State::Payload { landing, .. } => Some(landing),
            _ => None,
        })
    }

    /// Takes what the buffer has of the payload, and delivers the message if that was the rest.
    fn payload(
        &mut self,
        landing: Landing,
        message: Message,
        (mut part, mut offset_bytes): (usize, usize),
        shore: &Shore<'_>,
    ) -> Result<Step> {
        while let Some(tensor) = message.parts.get(part) {
            let here_bytes = (self.end - self.begin).min(self.piece_bytes);
            let length_bytes = (tensor.len_bytes() - offset_bytes).min(here_bytes);
            // SAFETY: the tensor is fresh or a place whose write lease the receive holds, so nobody else touches it;
            // both ranges have `length_bytes` left.
            unsafe {
                let source = self.ahead.as_ptr().add(self.begin);
                sheave_tensor::copy_bytes(tensor.ptr().add(offset_bytes), source, length_bytes);
            }
            Counters::add(&shore.counters.bytes_copied, length_bytes as u64);
            Counters::add(&shore.counters.bytes_streamed, length_bytes as u64);
            self.begin += length_bytes;
            self.piece_bytes -= length_bytes;
            offset_bytes += length_bytes;
            if offset_bytes < tensor.len_bytes() {
                return Ok(self.lacks_bytes(State::Payload { landing, message, part, offset_bytes }));
            }
            part += 1;
            offset_bytes = 0;
        }
        shore.sink.deliver(landing, message);
        Ok(Step::Delivered)
    }

    /// Reads once: into the current message as far as its memory is known, and ahead.
    fn fill(&mut self, shore: &Shore<'_>) -> Result<Filled> {
        self.ahead.copy_within(self.begin..self.end, 0);
        self.end -= self.begin;
        self.begin = 0;
        let mut pieces: SmallVec<[IoSliceMut<'_>; 4]> = SmallVec::new();
        let is_in_message = !matches!(self.state, State::Header | State::Arrived { .. });
        match &mut self.state {
            State::Area { area, filled_bytes, .. } => {
                let most_bytes = (area.len() - *filled_bytes).min(self.piece_bytes);
                pieces.push(IoSliceMut::new(&mut area[*filled_bytes..][..most_bytes]));
            }
            State::Payload { message, part, offset_bytes, .. } => {
                rest_of(&message.parts[*part..], *offset_bytes, self.piece_bytes, &mut pieces);
            }
            State::Header | State::Arrived { .. } => {}
        }
        let wanted_bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let ends_piece = !is_in_message || wanted_bytes == self.piece_bytes;
        if ends_piece {
            // Behind another piece's header are bytes that have places.
            let most_bytes = if self.later_bytes > 0 { HEADER_BYTES } else { self.ahead.len() };
            let until = (self.end + most_bytes).min(self.ahead.len());
            pieces.push(IoSliceMut::new(&mut self.ahead[self.end..until]));
        }
        let asked_bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let outcome = readv(shore.socket, &mut pieces);
        drop(pieces);
        let read_bytes = match outcome {
            Ok(0) => return Err(self.stream_ended(shore.peer)),
            Ok(read_bytes) => read_bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Filled::default()),
            Err(errno) => return Err(connection_lost(errno, shore.peer)),
        };
        self.heard = Instant::now();
        self.advance(read_bytes.min(wanted_bytes), shore);
        self.end += read_bytes.saturating_sub(wanted_bytes);
        Ok(Filled { read_bytes, is_drained: read_bytes < asked_bytes })
    }

    /// The kernel has put `length_bytes` where [`rest_of`] pointed it.
    fn advance(&mut self, length_bytes: usize, shore: &Shore<'_>) {
        self.piece_bytes -= length_bytes;
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

    fn stream_ended(&self, peer: &Peer) -> Error {
        let between = matches!(self.state, State::Header) && self.aside.is_none() && self.begin == self.end;
        let what = if between { "without a word" } else { "in the middle of a message" };
        Error::new(ErrorKind::PeerLost, format!("{CONNECTION_DROPPED} {what}"))
            .peer(peer.clone())
            .hint("its own output or exit status says why")
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

/// The peer has closed or lost its end; what it sent before may still be unread.
pub(crate) fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut descriptors = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut descriptors, Some(&now)), Ok(1))
}

fn connection_lost(errno: Errno, peer: &Peer) -> Error {
    Error::new(ErrorKind::PeerLost, format!("{CONNECTION_BROKE} ({errno})"))
        .peer(peer.clone())
        .hint("its own output or exit status says why")
}

fn impossible(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Protocol, format!("the peer sent {what}"))
        .hint("the peer runs another version, or something between the hosts changes what is sent")
}
