//! The sending side of a TCP link.
//!
//! A message becomes a [`Frame`]: a head (header, part table, control) and its tensors, with a count of the bytes that
//! the kernel has taken. Each write gathers all that is left of a piece ([`PIECE_BYTES`]), and a turn ends with the
//! piece that makes it [`TURN_BYTES`]; a poll, which reads too, begins the next one. At most one frame of data is
//! begun; later messages wait in the outbox, so that frames of data never mix. Urgent ones, and what is the link's own,
//! go before the next piece of that frame, and before the next frame: whatever has begun to be written is written to
//! the end of its piece first.

use super::TURN_BYTES;
use super::reading::Reading;
use crate::counters::Counters;
use crate::link::{Handover, Hold};
use crate::message::{Outgoing, Parts, spec_of};
use crate::outbox::{Outbox, SendDriver, Waiting};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use sheave_base::limits::LINK_WINDOW_BYTES;
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::Mode;
use sheave_wire::{CloseReason, HEADER_BYTES, Header, Kind, PIECE_BYTES, Part as WirePart};
use smallvec::SmallVec;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst, fence};
use std::time::Duration;

/// Pieces of one gathered write; the kernel takes at most 1024.
const PIECES_MAX: usize = 256;

/// For how long a sender without a window waits for who is reading: less than it takes to capture a window of bytes.
const HEARING_TIME: Duration = Duration::from_millis(1);

/// Works to complete once no lock is held.
pub(crate) type Finished = SmallVec<[(Completer<()>, Result<()>); 2]>;

/// The parts of a link that sending needs and does not own.
pub(crate) struct Shore<'a> {
    pub(crate) socket: BorrowedFd<'a>,
    pub(crate) counters: &'a Counters,
    pub(crate) driver: &'a SendDriver,
    /// The other side of the link, where what the peer says of its room may be heard.
    pub(crate) reading: &'a Mutex<Reading>,
    pub(crate) rooms: &'a Rooms,
}

/// Words of the reading side of a link for the writing side, whose lock a sender may hold for as long as a message is:
/// whoever reads does not wait for it. Whoever lets the lock go looks here once more.
#[derive(Default)]
pub(crate) struct Rooms {
    /// Bytes of data that the peer has said that it has used.
    heard_bytes: AtomicU64,
    /// Bytes of its data that were used here, if it is to be told; else zero.
    to_tell_bytes: AtomicU64,
    /// Whether one of them is new.
    wait: AtomicBool,
    /// Somebody has found the reading side locked when it was to be armed.
    is_missed: AtomicBool,
}

impl Rooms {
    /// Leaves what is new for the writing side.
    pub(crate) fn note(&self, heard_bytes: Option<u64>, to_tell_bytes: Option<u64>) {
        self.hear(heard_bytes);
        self.to_tell_bytes.fetch_max(to_tell_bytes.unwrap_or(0), SeqCst);
        self.wait.store(true, SeqCst);
    }

    fn hear(&self, heard_bytes: Option<u64>) {
        self.heard_bytes.fetch_max(heard_bytes.unwrap_or(0), SeqCst);
    }

    /// The reading side is locked, perhaps by a sender that looks for room. Followed by one more try to lock it: of
    /// that and [`Rooms::take_missed`] one sees the other.
    pub(crate) fn note_missed(&self) {
        self.is_missed.store(true, SeqCst);
        fence(SeqCst);
    }

    /// Whether somebody has found the reading side locked since this was asked last. Asked after it was let go.
    pub(crate) fn take_missed(&self) -> bool {
        fence(SeqCst);
        self.is_missed.load(SeqCst) && self.is_missed.swap(false, SeqCst)
    }

    /// Whether something is new. Asked before the lock is tried, and after it was let go: of a reader that leaves
    /// something and finds the lock taken, and the holder that lets it go, one sees the other.
    pub(crate) fn wait(&self) -> bool {
        fence(SeqCst);
        self.wait.load(SeqCst)
    }
}

/// Everything that senders change, under one lock.
#[derive(Default)]
pub(crate) struct Writing {
    outbox: Outbox,
    begun: Option<Begun>,
    /// An urgent message, or a frame of the link's own, that the socket has not taken whole.
    urgent: Option<Begun>,
    sequence: u64,
    /// Bytes of frames of data that were written, ...
    sent_bytes: u64,
    /// ... and as many of these as the peer has said that it has used.
    used_bytes: u64,
    /// Bytes of the peer's data that were used here, while it is to be told.
    to_tell: Option<u64>,
    sent_since_beat: bool,
    /// What was written since the link was polled last.
    turn_bytes: usize,
    /// The socket takes nothing any more; reading finds out why.
    broken: bool,
    /// This side cannot keep its promise about a frame that is half on its way.
    failed: Option<Error>,
    /// The peer has said something impossible, of which the poll that ends the link is still to hear.
    nonsense: Option<Error>,
}

struct Begun {
    frame: Frame,
    done: Option<Completer<()>>,
}

impl Writing {
    /// True once so much is written that the other direction is due.
    pub(crate) fn has_had_its_turn(&self) -> bool {
        self.turn_bytes >= TURN_BYTES
    }

    /// True while bytes wait for room in the socket.
    pub(crate) fn waits(&self) -> bool {
        let is_frame = self.begun.is_some() || self.urgent.is_some() || self.to_tell.is_some();
        is_frame || !self.outbox.is_empty() || self.nonsense.is_some()
    }

    /// Whether another piece of data may be written.
    fn has_window(&self) -> bool {
        self.sent_bytes - self.used_bytes < LINK_WINDOW_BYTES
    }

    /// As [`Writing::has_window`], but a closed one may have been opened by words that nobody has passed on yet: who
    /// sends much at once is not polling, and what waits is captured, which costs a copy.
    fn has_window_after_all(&mut self, shore: &Shore<'_>) -> Result<bool> {
        if !self.has_window() {
            // Whoever polls is about to hear it, and may wait for the core that this thread has.
            if let Some(mut reading) = shore.reading.try_lock_for(HEARING_TIME) {
                shore.rooms.hear(reading.glance(shore.socket));
            }
            self.hear_room(shore)?;
        }
        Ok(self.has_window())
    }

    /// True while something waits for nothing but room in the socket.
    pub(crate) fn wants_socket(&self) -> bool {
        let is_data = match &self.begun {
            Some(begun) => !begun.frame.is_between_pieces() || self.has_window(),
            None => self.outbox.front().is_some() && self.has_window(),
        };
        is_data || self.urgent.is_some() || self.to_tell.is_some() || !self.outbox.has_none_urgent()
    }

    /// Takes note of what the peer has said that it has used.
    fn hear_room(&mut self, shore: &Shore<'_>) -> Result<()> {
        let used_bytes = shore.rooms.heard_bytes.load(SeqCst);
        if used_bytes > self.sent_bytes {
            let sent_bytes = self.sent_bytes;
            let what = format!("the peer says that it has used {used_bytes} bytes; expected at most {sent_bytes}");
            let error = Error::new(ErrorKind::Protocol, what);
            self.nonsense = Some(error.clone());
            return Err(error);
        }
        self.used_bytes = used_bytes;
        Ok(())
    }

    /// Takes note of what the reading side has to say about room, and tells the peer, now or between two pieces.
    pub(crate) fn pass_on(&mut self, shore: &Shore<'_>) -> Result<()> {
        if !shore.rooms.wait.swap(false, SeqCst) {
            return Ok(());
        }
        self.hear_room(shore)?;
        let used_bytes = shore.rooms.to_tell_bytes.swap(0, SeqCst);
        if used_bytes > 0 {
            self.to_tell = Some(used_bytes);
            self.put_room(shore);
        }
        Ok(())
    }

    fn put_room(&mut self, shore: &Shore<'_>) {
        if !self.broken
            && self.is_between_pieces()
            && let Some(used_bytes) = self.to_tell.take()
        {
            self.put_frame(Kind::Room, used_bytes, shore);
        }
    }

    /// Counts the messages that are not written whole.
    pub(crate) fn unsent(&self) -> usize {
        let is_urgent_begun = self.urgent.as_ref().is_some_and(|urgent| urgent.done.is_some());
        self.outbox.len() + usize::from(self.begun.is_some()) + usize::from(is_urgent_begun)
    }

    /// Whether a frame of the link's own, or an urgent one, may be written now.
    fn is_between_pieces(&self) -> bool {
        self.urgent.is_none() && self.begun.as_ref().is_none_or(|begun| begun.frame.is_between_pieces())
    }

    /// Writes a message, or as much of it as the socket takes; the rest waits.
    pub(crate) fn send(&mut self, message: Outgoing, hold: Hold, shore: &Shore<'_>) -> Result<Handover> {
        check(&message)?;
        if self.broken {
            return Err(Error::new(ErrorKind::PeerLost, "the connection is closed"));
        }
        if shore.driver.is_urgent(&message) {
            return self.send_urgent(message, hold, shore);
        }
        // What is captured costs a copy when it waits; anything else leaves the peer's messages their turn.
        let left_bytes = if hold == Hold::Capture { usize::MAX } else { TURN_BYTES.saturating_sub(self.turn_bytes) };
        if self.waits() || left_bytes == 0 || !self.has_window_after_all(shore)? {
            return Ok(Handover::Queued(self.outbox.push(message, hold, shore.driver)?));
        }
        let mut frame = Frame::of_message(message, Kind::Data, self.sequence + 1)?;
        self.sequence += 1;
        self.sent_since_beat = true;
        let written = self.write_pieces(&mut frame, left_bytes, shore);
        self.turn_bytes = self.turn_bytes.saturating_add(frame.written_bytes);
        if written? {
            return Ok(Handover::Sent);
        }
        if hold == Hold::Capture
            && let Err(error) = frame.capture_rest(shore.driver)
        {
            // The head of the message is gone and its tail is not ours to hold: the stream cannot go on.
            self.failed = Some(error.clone());
            return Err(error);
        }
        let (done, work) = shore.driver.work();
        self.begun = Some(Begun { frame, done: Some(done) });
        Ok(Handover::Queued(work))
    }

    fn send_urgent(&mut self, message: Outgoing, hold: Hold, shore: &Shore<'_>) -> Result<Handover> {
        if !self.is_between_pieces() || !self.outbox.has_none_urgent() {
            return Ok(Handover::Queued(self.outbox.push(message, hold, shore.driver)?));
        }
        let mut frame = Frame::of_message(message, Kind::Urgent, self.sequence + 1)?;
        self.sequence += 1;
        self.sent_since_beat = true;
        match frame.write(shore) {
            Ok(true) => return Ok(Handover::Sent),
            Ok(false) => {}
            Err(errno) => return Err(self.is_closed(errno)),
        }
        let (done, work) = shore.driver.work();
        self.urgent = Some(Begun { frame, done: Some(done) });
        Ok(Handover::Queued(work))
    }

    fn is_closed(&mut self, errno: Errno) -> Error {
        self.broken = true;
        Error::new(ErrorKind::PeerLost, format!("the connection is closed ({errno})"))
    }

    /// Captures whatever waits to be sent by copy. A message whose head is sent must be captured or the stream ends.
    pub(crate) fn capture(&mut self, driver: &SendDriver) -> Result<()> {
        self.outbox.capture_all(driver)?;
        let outcome = self.begun.as_mut().map_or(Ok(()), |begun| begun.frame.capture_rest(driver));
        if let Err(error) = &outcome {
            self.failed = Some(error.clone());
        }
        outcome
    }

    /// Writes what waits, for one turn. True when something moved; works that ended are added to `finished`.
    pub(crate) fn flush(&mut self, shore: &Shore<'_>, finished: &mut Finished) -> Result<bool> {
        if let Some(error) = self.failed.as_ref().or(self.nonsense.as_ref()) {
            return Err(error.clone());
        }
        let mut moved = false;
        self.turn_bytes = 0;
        while !self.broken && self.turn_bytes < TURN_BYTES {
            self.put_room(shore);
            let urgent = self.urgent.take().or_else(|| self.begin_urgent(finished));
            let is_urgent = urgent.is_some();
            let Some(mut begun) = urgent.or_else(|| self.continue_data(finished)) else { break };
            let before = begun.frame.sent_bytes;
            let written = begun.frame.write(shore);
            let sent_bytes = begun.frame.sent_bytes - before;
            self.turn_bytes += sent_bytes;
            self.sent_bytes += if is_urgent { 0 } else { sent_bytes as u64 };
            moved |= sent_bytes > 0;
            self.sent_since_beat |= moved;
            if let (Ok(true), true) = (&written, begun.frame.is_whole()) {
                finished.extend(begun.done.map(|done| (done, Ok(()))));
                continue;
            }
            self.broken = written.is_err();
            *if is_urgent { &mut self.urgent } else { &mut self.begun } = Some(begun);
            if !matches!(written, Ok(true)) {
                break;
            }
        }
        Ok(moved)
    }

    /// The next urgent message, where one may begin.
    fn begin_urgent(&mut self, finished: &mut Finished) -> Option<Begun> {
        if !self.is_between_pieces() {
            return None;
        }
        while let Some(waiting) = self.outbox.pop_urgent() {
            if let Some(begun) = self.begin(waiting, Kind::Urgent, finished) {
                return Some(begun);
            }
        }
        None
    }

    /// The message that is on its way, with its next piece, or the next one.
    fn continue_data(&mut self, finished: &mut Finished) -> Option<Begun> {
        let has_window = self.has_window();
        if let Some(mut begun) = self.begun.take_if(|begun| has_window || !begun.frame.is_between_pieces()) {
            begun.frame.begin_piece(&mut self.sequence);
            return Some(begun);
        }
        if self.begun.is_some() || !has_window {
            return None;
        }
        while let Some(waiting) = self.outbox.pop() {
            if let Some(begun) = self.begin(waiting, Kind::Data, finished) {
                return Some(begun);
            }
        }
        None
    }

    fn begin(&mut self, waiting: Waiting, kind: Kind, finished: &mut Finished) -> Option<Begun> {
        match Frame::of_message(waiting.message, kind, self.sequence + 1) {
            Ok(frame) => {
                self.sequence += 1;
                Some(Begun { frame, done: Some(waiting.done) })
            }
            Err(error) => {
                finished.push((waiting.done, Err(error)));
                None
            }
        }
    }

    /// Writes piece after piece until everything is gone (true), or the socket is full or so much is written (false).
    fn write_pieces(&mut self, frame: &mut Frame, most_bytes: usize, shore: &Shore<'_>) -> Result<bool> {
        loop {
            let before = frame.sent_bytes;
            let is_written = frame.write(shore);
            self.sent_bytes += (frame.sent_bytes - before) as u64;
            if !is_written.map_err(|errno| self.is_closed(errno))? || frame.is_whole() {
                return Ok(frame.is_whole());
            }
            if frame.written_bytes >= most_bytes || !self.has_window_after_all(shore)? {
                return Ok(false);
            }
            frame.begin_piece(&mut self.sequence);
        }
    }

    /// Shows a sign of life, unless something was sent since the last one or bytes wait, which the peer will see.
    pub(crate) fn beat(&mut self, shore: &Shore<'_>) {
        let is_silent = !std::mem::replace(&mut self.sent_since_beat, false);
        if is_silent && self.is_between_pieces() && !self.wants_socket() && !self.broken {
            self.put_frame(Kind::Beat, 0, shore);
        }
    }

    fn put_frame(&mut self, kind: Kind, tag: u64, shore: &Shore<'_>) {
        self.sequence += 1;
        let mut frame = Frame::of_header(&Header { sequence: self.sequence, tag, ..Header::new(kind) });
        match frame.write(shore) {
            Ok(true) => {}
            Ok(false) => self.urgent = Some(Begun { frame, done: None }),
            Err(_) => self.broken = true,
        }
    }

    /// Says the last word if the stream stands between two frames, and gives back the works of what was not sent.
    pub(crate) fn end(&mut self, code: CloseReason, shore: &Shore<'_>) -> Vec<Completer<()>> {
        let begun = || self.begun.iter().chain(&self.urgent);
        let mid_frame = begun().any(|begun| begun.frame.written_bytes > 0);
        let begun = self.urgent.take().into_iter().chain(self.begun.take());
        let mut unsent: Vec<_> = begun.filter_map(|begun| begun.done).collect();
        unsent.extend(self.outbox.drain().into_iter().map(|waiting| waiting.done));
        if !mid_frame && !self.broken && self.failed.is_none() {
            self.put_frame(Kind::Close, code.code().into(), shore);
        }
        self.broken = true;
        self.urgent = None;
        unsent
    }
}

/// A message as the socket sees it.
struct Frame {
    head: SmallVec<[u8; 192]>,
    parts: Parts,
    /// Of head and tensors.
    written_bytes: usize,
    /// As many as those, and the headers of later pieces.
    sent_bytes: usize,
    total_bytes: usize,
    /// Where the piece ends that is being written.
    piece_end_bytes: usize,
    /// The header of that piece, as far as it is still to be written; the first piece has none of its own.
    piece_head: SmallVec<[u8; HEADER_BYTES]>,
}

impl Frame {
    fn of_header(header: &Header) -> Self {
        Self::new(SmallVec::from_slice(&header.encode()), SmallVec::new(), HEADER_BYTES)
    }

    fn of_message(message: Outgoing, kind: Kind, sequence: u64) -> Result<Self> {
        let table: SmallVec<[WirePart; 2]> =
            message.parts.iter().map(|part| WirePart::inline(spec_of(&part.tensor))).collect();
        let mut head = SmallVec::from_slice(&[0; HEADER_BYTES]);
        sheave_wire::parts::encode(&table, &mut head)?;
        head.extend_from_slice(&message.control);
        let payload_bytes = message.payload_bytes();
        let control_bytes = u32::try_from(head.len() - HEADER_BYTES).unwrap_or(u32::MAX);
        let header = Header { kind, sequence, control_bytes, ..header_of(&message) };
        header.check_limits()?;
        head[..HEADER_BYTES].copy_from_slice(&header.encode());
        let total_bytes = head.len() + payload_bytes as usize;
        let mut frame = Self::new(head, message.parts, total_bytes);
        if kind == Kind::Data {
            frame.piece_end_bytes = total_bytes.min(HEADER_BYTES + PIECE_BYTES);
        }
        Ok(frame)
    }

    fn new(head: SmallVec<[u8; 192]>, parts: Parts, total_bytes: usize) -> Self {
        let piece_head = SmallVec::new();
        Self { head, parts, written_bytes: 0, sent_bytes: 0, total_bytes, piece_end_bytes: total_bytes, piece_head }
    }

    fn is_whole(&self) -> bool {
        self.written_bytes == self.total_bytes
    }

    /// Whether it is written up to the end of a piece that is not its last.
    fn is_between_pieces(&self) -> bool {
        self.written_bytes == self.piece_end_bytes && self.piece_head.is_empty() && !self.is_whole()
    }

    /// Goes on with the next piece, which has the next number, if the last one is written.
    fn begin_piece(&mut self, sequence: &mut u64) {
        if !self.is_between_pieces() {
            return;
        }
        *sequence += 1;
        let piece_bytes = (self.total_bytes - self.written_bytes).min(PIECE_BYTES);
        self.piece_end_bytes = self.written_bytes + piece_bytes;
        let header = Header { sequence: *sequence, payload_bytes: piece_bytes as u64, ..Header::new(Kind::Chunk) };
        self.piece_head = SmallVec::from_slice(&header.encode());
    }

    /// Writes until the piece is gone (true), or the socket is full (false).
    fn write(&mut self, shore: &Shore<'_>) -> std::result::Result<bool, Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while self.written_bytes < self.piece_end_bytes {
            let outcome = sendmsg(shore.socket, &self.rest(), &mut SendAncillaryBuffer::default(), flags);
            match outcome {
                Ok(taken_bytes) => {
                    self.sent_bytes += taken_bytes;
                    let of_piece_head = taken_bytes.min(self.piece_head.len());
                    self.piece_head.drain(..of_piece_head);
                    let payload_before = self.written_bytes.saturating_sub(self.head.len());
                    self.written_bytes += taken_bytes - of_piece_head;
                    let payload_now = self.written_bytes.saturating_sub(self.head.len());
                    Counters::add(&shore.counters.bytes_streamed, (payload_now - payload_before) as u64);
                }
                Err(Errno::AGAIN | Errno::NOBUFS) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(true)
    }

    /// What is still to be written of the piece, as one gathered write.
    fn rest(&self) -> SmallVec<[IoSlice<'_>; 8]> {
        let mut pieces = SmallVec::new();
        let mut skip = self.written_bytes;
        let mut left_bytes = self.piece_end_bytes - skip;
        if !self.piece_head.is_empty() {
            pieces.push(IoSlice::new(&self.piece_head));
        }
        if let Some(head) = self.head.get(skip..).filter(|head| !head.is_empty()) {
            let head = &head[..head.len().min(left_bytes)];
            pieces.push(IoSlice::new(head));
            left_bytes -= head.len();
        }
        skip = skip.saturating_sub(self.head.len());
        for part in &self.parts {
            if left_bytes == 0 {
                break;
            }
            let length_bytes = part.tensor.len_bytes();
            if skip >= length_bytes {
                skip -= length_bytes;
                continue;
            }
            // SAFETY: the frame holds the tensor, and with it either a read lease or, moved, its only handle, so nobody
            // writes its bytes; `skip` lies inside of them.
            let bytes = unsafe { std::slice::from_raw_parts(part.tensor.ptr().add(skip), length_bytes - skip) };
            let bytes = &bytes[..bytes.len().min(left_bytes)];
            pieces.push(IoSlice::new(bytes));
            left_bytes -= bytes.len();
            skip = 0;
            if pieces.len() == PIECES_MAX {
                break;
            }
        }
        pieces
    }

    /// Makes private copies of the copied tensors that are not written whole.
    fn capture_rest(&mut self, driver: &SendDriver) -> Result<()> {
        let mut end_bytes = self.head.len();
        for part in &mut self.parts {
            end_bytes += part.tensor.len_bytes();
            if part.mode == Mode::Copy && end_bytes > self.written_bytes {
                part.tensor = driver.capture(&part.tensor)?;
            }
            if part.mode == Mode::Copy {
                part.lease = None;
            }
        }
        Ok(())
    }
}

fn header_of(message: &Outgoing) -> Header {
    Header {
        part_count: u16::try_from(message.parts.len()).unwrap_or(u16::MAX),
        payload_bytes: message.payload_bytes(),
        ..message.envelope.header()
    }
}

/// Refuses what the peer would refuse, before anything is sent.
fn check(message: &Outgoing) -> Result<()> {
    if message.parts.iter().any(|part| part.mode == Mode::Share) {
        return Err(Error::new(ErrorKind::Unsupported, "a tensor cannot be shared with a process on another host")
            .hint("send it by copy or move; sharing needs a link over shared memory"));
    }
    let control_bytes = u32::try_from(message.control.len()).unwrap_or(u32::MAX);
    Header { control_bytes, ..header_of(message) }.check_limits()
}
