//! The receiving side of a TCP link.
//!
//! The stream is cut into frames by a state machine. A small buffer reads ahead, so that a small message costs one
//! system call; once a message has its places, the kernel writes the rest of its payload straight into them, and only
//! what comes behind it into the buffer. A message that must wait for its receiver stops the machine where it stands:
//! nothing more is read, the socket fills up, and the sender feels it.
//!
//! **Correctness.** Lengths were held against their limits when they were decoded, and the payload must be exactly as
//! long as its parts, so the machine always knows how many bytes belong to which part. Any error is final.

use super::TURN_BYTES;
use crate::counters::Counters;
use crate::farewell::{CONNECTION_BROKE, CONNECTION_DROPPED, closed_by_peer};
use crate::link::{Arrival, Landing, Sink, Verdict};
use crate::message::{Envelope, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv};
use sheave_base::{Error, ErrorKind, LinkId, Peer, Result};
use sheave_tensor::Tensor;
use sheave_wire::{HEADER_BYTES, Header, Kind, Parts, Placement};
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
    area: Vec<u8>,
    state: State,
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
    Area { header: Header, filled_bytes: usize },
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
            State::Area { header, filled_bytes } => self.area(header, filled_bytes),
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
        let empty = header.part_count == 0 && header.control_bytes == 0 && header.payload_bytes == 0;
        match header.kind {
            kind if kind.is_message() => {
                self.area.resize((header.control_bytes as usize).min(AREA_KEPT_BYTES), 0);
                self.state = State::Area { header, filled_bytes: 0 };
                Ok(Step::Moved)
            }
            Kind::Beat if empty => Ok(Step::Moved),
            Kind::Close => Err(closed_by_peer(header.tag, shore.peer)),
            other => Err(impossible(format!("a frame of kind {other:?}"))),
        }
    }

    fn area(&mut self, header: Header, filled_bytes: usize) -> Result<Step> {
        let taken_bytes = (self.area.len() - filled_bytes).min(self.end - self.begin);
        self.area[filled_bytes..][..taken_bytes].copy_from_slice(&self.ahead[self.begin..][..taken_bytes]);
        self.begin += taken_bytes;
        let filled_bytes = filled_bytes + taken_bytes;
        if filled_bytes < header.control_bytes as usize {
            if filled_bytes == self.area.len() {
                // As much again as has come.
                self.area.resize((2 * filled_bytes).min(header.control_bytes as usize), 0);
            }
            let is_starved = self.begin == self.end;
            self.state = State::Area { header, filled_bytes };
            return Ok(if is_starved { Step::Starved } else { Step::Moved });
        }
        let (parts, control) = sheave_wire::parts::decode(&self.area, header.part_count.into())?;
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
        if self.area.capacity() > AREA_KEPT_BYTES {
            self.area = Vec::new();
        }
        Ok(Step::Moved)
    }

    fn arrived(&mut self, header: Header, parts: Parts, control: Vec<u8>, shore: &Shore<'_>) -> Result<Step> {
        let (envelope, sequence, payload_bytes) = (Envelope::of_header(&header), header.sequence, header.payload_bytes);
        // Asked only by a message that was refused before: the first refusal is followed by another look.
        let ending = self.paused_before && has_hung_up(shore.socket);
        let control_bytes = control.len();
        let arrival = Arrival { envelope, sequence, parts: &parts, payload_bytes, control_bytes, ending };
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
        match std::mem::replace(&mut self.state, State::Header) {
            State::Payload { landing, .. } => Some(landing),
            _ => None,
        }
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
            let length_bytes = (tensor.len_bytes() - offset_bytes).min(self.end - self.begin);
            // SAFETY: the tensor is fresh or a place whose write lease the receive holds, so nobody else touches it;
            // both ranges have `length_bytes` left.
            unsafe {
                let source = self.ahead.as_ptr().add(self.begin);
                sheave_tensor::copy_bytes(tensor.ptr().add(offset_bytes), source, length_bytes);
            }
            Counters::add(&shore.counters.bytes_copied, length_bytes as u64);
            Counters::add(&shore.counters.bytes_streamed, length_bytes as u64);
            self.begin += length_bytes;
            offset_bytes += length_bytes;
            if offset_bytes < tensor.len_bytes() {
                self.state = State::Payload { landing, message, part, offset_bytes };
                return Ok(Step::Starved);
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
        match &self.state {
            State::Area { filled_bytes, .. } => pieces.push(IoSliceMut::new(&mut self.area[*filled_bytes..])),
            State::Payload { message, part, offset_bytes, .. } => {
                rest_of(&message.parts[*part..], *offset_bytes, &mut pieces);
            }
            State::Header | State::Arrived { .. } => {}
        }
        let wanted_bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let ends_message = pieces.len() < PIECES_MAX && wanted_bytes < TURN_BYTES;
        if ends_message {
            pieces.push(IoSliceMut::new(&mut self.ahead[self.end..]));
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
        let between = matches!(self.state, State::Header) && self.begin == self.end;
        let what = if between { "without a word" } else { "in the middle of a message" };
        Error::new(ErrorKind::PeerLost, format!("{CONNECTION_DROPPED} {what}"))
            .peer(peer.clone())
            .hint("its own output or exit status says why")
    }
}

/// The memory that the rest of a payload goes to, part by part, for one turn.
fn rest_of(parts: &[Tensor], offset_bytes: usize, pieces: &mut SmallVec<[IoSliceMut<'_>; 4]>) {
    let (mut offset_bytes, mut left_bytes) = (offset_bytes, TURN_BYTES);
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
