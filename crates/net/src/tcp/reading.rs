//! The receiving side of a TCP link.
//!
//! The stream is cut into frames by a state machine ([`super::machine`]). A small buffer reads ahead, so that a small
//! message costs one system call; once a message has its places, the kernel writes the rest of its payload straight
//! into them, and only what comes behind it into the buffer.
//!
//! **A message that must wait for its receiver** stops the machine where it stands. From then on the stream is read on
//! *aside*: frames of data are kept as they are, in order, behind the message that waits, and urgent messages are taken
//! by a second machine. When the first one goes on it uses what was kept, and then the stream again. What is kept is
//! bounded by the sender, who has a *window* ([`LINK_WINDOW_BYTES`]): it may be so far ahead of what the receiver says
//! that it has used, and goes on when it hears more ([`Reading::room_to_tell`]). An urgent message that must wait stops
//! everything: nothing more is read, the socket fills up, and the sender feels it.
//!
//! **Any error is final.** One that is found while frames are kept counts when those have been used.

use super::TURN_BYTES;
use super::machine::{Buffer, Machine, Step, piece_bytes};
use crate::counters::Counters;
use crate::farewell::{CONNECTION_BROKE, CONNECTION_DROPPED, closed_by_peer};
use crate::link::{Landing, Sink};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv};
use rustix::net::{RecvFlags, recv};
use sheave_base::clock;
use sheave_base::limits::LINK_WINDOW_BYTES;
use sheave_base::{Error, ErrorKind, LinkId, Peer, Result};
use sheave_wire::{HEADER_BYTES, Header, Kind, PIECE_BYTES};
use smallvec::SmallVec;
use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// Bytes that are read ahead of the message that they belong to.
const AHEAD_BYTES: usize = 16 << 10;
/// Most bytes that are kept behind a message that waits: the window, and the piece with which it was exceeded.
const KEPT_BYTES_MAX: usize = LINK_WINDOW_BYTES as usize + PIECE_BYTES + HEADER_BYTES;

/// Bytes after whose use the peer is told. Half of the window is left for what is under way meanwhile; a word after
/// each eighth cost an exchange of 16 MiB a tenth of its time.
const TELL_BYTES: u64 = LINK_WINDOW_BYTES / 2;

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
    ahead: Buffer,
    machine: Machine,
    /// What comes behind a message that waits for its receiver, while there is one or something is kept.
    aside: Option<Box<Aside>>,
    sequence: u64,
    heard: Instant,
    /// Whole messages may wait in a buffer.
    ready: bool,
    pause: Pause,
    paused_before: bool,
    /// Bytes of data that the peer was told of.
    told_bytes: u64,
    /// Bytes of data that the peer has said that it has used, ...
    peer_used_bytes: u64,
    /// ... if it has since the last look.
    heard_of_room: Option<u64>,
    /// Why nothing more is read. Between the poll that found it and the end of the link another thread may poll, and
    /// must not take what stands behind it, the end of the stream after the last words, for the reason.
    over: Option<Error>,
}

/// Frames of data that are kept, and a machine for what is urgent.
#[derive(Default)]
struct Aside {
    kept: Buffer,
    /// Bytes of the piece in progress that are still to come.
    piece_bytes: usize,
    machine: Machine,
    /// The stream has ended so.
    end: Option<Error>,
}

/// Which message waits for its receiver, as far as the last look has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    None,
    Data,
    /// An urgent one, and with it everything.
    All,
}

/// What a read brought.
#[derive(Default)]
struct Filled {
    read_bytes: usize,
    /// Less came than was asked for: the socket is empty now.
    is_drained: bool,
    /// The stream has ended.
    has_ended: bool,
}

/// What a turn brought.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) moved: bool,
    pub(crate) paused: bool,
}

/// What a turn may still do.
struct Turn {
    taken: Taken,
    left: usize,
    read_bytes: usize,
    is_drained: bool,
}

impl Turn {
    fn may_read(&self) -> bool {
        !self.is_drained && self.read_bytes < TURN_BYTES
    }

    fn note(&mut self, step: &Step) {
        self.taken.moved |= matches!(step, Step::Moved | Step::Delivered);
        self.left -= usize::from(matches!(step, Step::Delivered));
    }

    /// Takes note of what was read. False if that is nothing.
    fn note_read(&mut self, filled: &Filled) -> bool {
        self.taken.moved |= filled.read_bytes > 0;
        self.is_drained = filled.is_drained;
        self.read_bytes += filled.read_bytes;
        filled.read_bytes > 0
    }
}

impl Reading {
    /// `early` are the first bytes of the stream, read before the link was made.
    pub(crate) fn new(early: &[u8]) -> Result<Self> {
        let mut bytes = vec![0; AHEAD_BYTES];
        let Some(start) = bytes.get_mut(..early.len()) else {
            return Err(Error::new(ErrorKind::Internal, "more was read ahead than a link can hold"));
        };
        start.copy_from_slice(early);
        Ok(Self {
            ahead: Buffer { bytes, begin: 0, end: early.len() },
            machine: Machine::default(),
            aside: None,
            sequence: 0,
            heard: clock::now(),
            ready: !early.is_empty(),
            pause: Pause::None,
            paused_before: false,
            told_bytes: 0,
            peer_used_bytes: 0,
            heard_of_room: None,
            over: None,
        })
    }

    /// True when messages can be taken without reading, or wait for a receiver.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready || self.pause != Pause::None
    }

    /// True when urgent messages can be taken without reading.
    pub(crate) fn has_urgent(&self) -> bool {
        self.ready && self.pause == Pause::Data
    }

    /// Whether the stream is read on though the next message waits for its receiver.
    pub(crate) fn reads_on(&self) -> bool {
        let has_ended = self.aside.as_ref().is_some_and(|aside| aside.end.is_some());
        self.pause != Pause::All && !has_ended
    }

    /// For how long nothing has arrived. Bytes that wait because the receiver has no room are a sign of life too.
    pub(crate) fn silence(&self, socket: BorrowedFd<'_>) -> Duration {
        let is_unread = || rustix::io::ioctl_fionread(socket).is_ok_and(|waiting_bytes| waiting_bytes > 0);
        if self.pause != Pause::None && is_unread() { Duration::ZERO } else { clock::since(self.heard) }
    }

    /// How many bytes of data were used in all, when it is time to tell the peer.
    pub(crate) fn room_to_tell(&mut self) -> Option<u64> {
        let used_bytes = self.machine.used_bytes();
        if used_bytes - self.told_bytes < TELL_BYTES {
            return None;
        }
        self.told_bytes = used_bytes;
        Some(used_bytes)
    }

    /// Whether a frame says how many bytes of data the peer has used, and takes none of them back.
    fn is_room(&self, header: &Header) -> bool {
        header.kind == Kind::Room && is_empty(header) && header.tag >= self.peer_used_bytes
    }

    fn hear_of_room(&mut self, used_bytes: u64) {
        self.peer_used_bytes = used_bytes;
        self.heard_of_room = Some(used_bytes);
    }

    /// How many bytes of data the peer has used in all, if it has said so.
    pub(crate) fn take_room(&mut self) -> Option<u64> {
        self.heard_of_room.take()
    }

    /// Hears how many bytes of data the peer has used, if the next frame of the stream says so. All else stays in the
    /// socket, so that whoever waits for it is still woken by it.
    pub(crate) fn glance(&mut self, socket: BorrowedFd<'_>) -> Option<u64> {
        while self.over.is_none() && self.aside.is_none() && self.machine.is_idle() && self.ahead.len() == 0 {
            let mut words = [0; HEADER_BYTES];
            let shown = recv(socket, &mut words[..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
            if !matches!(shown, Ok((HEADER_BYTES, _))) {
                break;
            }
            let Ok(header) = Header::decode(&words) else { break };
            // A wrong one is left for the poll that refuses it.
            if !self.is_room(&header) || header.sequence != self.sequence + 1 {
                break;
            }
            if !matches!(recv(socket, &mut words[..], RecvFlags::DONTWAIT), Ok((HEADER_BYTES, _))) {
                self.over = Some(Error::new(ErrorKind::Internal, "a socket took back what it had shown"));
                break;
            }
            self.sequence = header.sequence;
            self.heard = clock::now();
            self.hear_of_room(header.tag);
        }
        self.take_room()
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
        let mut turn = Turn { taken: Taken::default(), left: budget, read_bytes: 0, is_drained: false };
        self.ready = false;
        self.paused_before = std::mem::replace(&mut self.pause, Pause::None) != Pause::None;
        while turn.left > 0 {
            let step = self.step(shore)?;
            turn.note(&step);
            match step {
                Step::Moved | Step::Delivered => {}
                Step::Paused => {
                    let is_urgent = self.machine.is_in_urgent();
                    self.pause = if is_urgent { Pause::All } else { Pause::Data };
                    turn.taken.paused = true;
                    break;
                }
                Step::Starved if self.ends_aside()? => {}
                Step::Starved if self.aside.is_some() => break,
                Step::Starved if !turn.may_read() => return Ok(turn.taken),
                Step::Starved => {
                    if !turn.note_read(&self.fill(shore)?) {
                        return Ok(turn.taken);
                    }
                }
            }
        }
        if self.pause == Pause::Data || self.aside.is_some() && self.pause == Pause::None {
            self.read_on(&mut turn, shore)?;
        }
        let is_kept = self.pause == Pause::None && self.aside.as_ref().is_some_and(|aside| aside.kept.len() > 0);
        self.ready = is_kept || turn.left == 0 && self.ahead.len() > 0;
        Ok(turn.taken)
    }

    /// Goes on with the stream, or with what was kept of it.
    fn step(&mut self, shore: &Shore<'_>) -> Result<Step> {
        if !self.machine.needs_header() {
            // Asked only by a message that was refused before: the first refusal is followed by another look.
            let ending = self.paused_before && (!self.reads_on() || has_hung_up(shore.socket));
            let source = self.aside.as_mut().map_or(&mut self.ahead, |aside| &mut aside.kept);
            return self.machine.step(source, ending, shore);
        }
        if let Some(aside) = &mut self.aside {
            let Some(header) = aside.kept.header()? else { return Ok(Step::Starved) };
            self.machine.begin_data(header)?;
            return Ok(Step::Moved);
        }
        let Some(header) = self.next_header()? else { return Ok(Step::Starved) };
        match header.kind {
            Kind::Data | Kind::Chunk => self.machine.begin_data(header)?,
            Kind::Urgent => self.machine.begin_urgent(header)?,
            _ => self.link_frame(&header, shore)?,
        }
        Ok(Step::Moved)
    }

    /// The next header of the stream, in its order.
    fn next_header(&mut self) -> Result<Option<Header>> {
        let Some(header) = self.ahead.header()? else { return Ok(None) };
        if header.sequence != self.sequence + 1 {
            return Err(impossible(format!("message {} after message {}", header.sequence, self.sequence)));
        }
        self.sequence = header.sequence;
        Ok(Some(header))
    }

    /// Takes a frame of the link's own.
    fn link_frame(&mut self, header: &Header, shore: &Shore<'_>) -> Result<()> {
        match header.kind {
            Kind::Beat if is_empty(header) => {}
            Kind::Room if self.is_room(header) => self.hear_of_room(header.tag),
            Kind::Room if is_empty(header) => {
                let (used_bytes, before_bytes) = (header.tag, self.peer_used_bytes);
                return Err(impossible(format!("word that it has used {used_bytes} bytes, after {before_bytes}")));
            }
            Kind::Close => return Err(closed_by_peer(header.tag, shore.peer)),
            other => return Err(impossible(format!("a frame of kind {other:?}"))),
        }
        Ok(())
    }

    /// All that was kept is used. True if the stream itself goes on from here, unless it has ended.
    fn ends_aside(&mut self) -> Result<bool> {
        let Some(aside) = &self.aside else { return Ok(false) };
        if let Some(end) = &aside.end {
            return Err(end.clone());
        }
        let is_over = aside.machine.is_idle();
        if is_over {
            self.aside = None;
        }
        Ok(is_over)
    }

    /// Reads the stream on behind a message that waits: keeps data, and takes what is urgent.
    fn read_on(&mut self, turn: &mut Turn, shore: &Shore<'_>) -> Result<()> {
        let piece_bytes = self.machine.piece_bytes();
        let begin = || Box::new(Aside { piece_bytes, ..Aside::default() });
        let mut aside = self.aside.take().unwrap_or_else(begin);
        while turn.left > 0 && aside.end.is_none() {
            match self.step_aside(&mut aside, turn, shore) {
                Ok(true) => {}
                Ok(false) => break,
                // It counts when what was kept has been used, so the message that waits is let in: look again.
                Err(end) => {
                    aside.end = Some(end);
                    turn.taken.moved = true;
                }
            }
        }
        self.aside = Some(aside);
        Ok(())
    }

    /// False when nothing more can be done in this turn.
    fn step_aside(&mut self, aside: &mut Aside, turn: &mut Turn, shore: &Shore<'_>) -> Result<bool> {
        if !aside.machine.needs_header() {
            let step = aside.machine.step(&mut self.ahead, false, shore)?;
            turn.note(&step);
            return match step {
                Step::Moved | Step::Delivered => Ok(true),
                Step::Starved => self.read_aside(aside, turn, shore),
                Step::Paused => {
                    self.pause = Pause::All;
                    turn.taken.paused = true;
                    Ok(false)
                }
            };
        }
        if aside.piece_bytes > 0 {
            let length_bytes = aside.piece_bytes.min(self.ahead.len());
            aside.kept.append(&self.ahead.rest()[..length_bytes]);
            self.ahead.begin += length_bytes;
            aside.piece_bytes -= length_bytes;
            return if length_bytes > 0 { Ok(true) } else { self.read_aside(aside, turn, shore) };
        }
        let from = self.ahead.begin;
        let Some(header) = self.next_header()? else { return self.read_aside(aside, turn, shore) };
        match header.kind {
            Kind::Data | Kind::Chunk => {
                aside.piece_bytes = piece_bytes(&header);
                if aside.kept.len() + HEADER_BYTES + aside.piece_bytes > KEPT_BYTES_MAX {
                    return Err(impossible(format!("more than its window of {LINK_WINDOW_BYTES} bytes")));
                }
                aside.kept.append(&self.ahead.bytes[from..self.ahead.begin]);
            }
            Kind::Urgent => aside.machine.begin_urgent(header)?,
            _ => self.link_frame(&header, shore)?,
        }
        Ok(true)
    }

    fn read_aside(&mut self, aside: &Aside, turn: &mut Turn, shore: &Shore<'_>) -> Result<bool> {
        if !turn.may_read() {
            return Ok(false);
        }
        self.ahead.compact();
        let (filled, _) = read(&mut self.ahead, SmallVec::new(), Some(usize::MAX), shore)?;
        let is_between = aside.piece_bytes == 0 && aside.machine.is_idle() && self.ahead.len() == 0;
        let filled = self.note_read(filled, is_between, shore.peer)?;
        Ok(turn.note_read(&filled))
    }

    /// The link has ended: nobody will complete the message in progress.
    pub(crate) fn end(&mut self) -> Option<Landing> {
        self.machine.end()
    }

    /// Reads once: into the current message as far as its memory is known, and ahead.
    fn fill(&mut self, shore: &Shore<'_>) -> Result<Filled> {
        self.ahead.compact();
        let mut pieces: SmallVec<[IoSliceMut<'_>; 4]> = SmallVec::new();
        let behind = self.machine.places(&mut pieces);
        let (filled, in_place_bytes) = read(&mut self.ahead, pieces, behind, shore)?;
        self.machine.advance(in_place_bytes, shore);
        let is_between = self.machine.is_idle() && self.ahead.len() == 0;
        self.note_read(filled, is_between, shore.peer)
    }

    fn note_read(&mut self, filled: Filled, is_between: bool, peer: &Peer) -> Result<Filled> {
        if filled.has_ended {
            let what = if is_between { "without a word" } else { "in the middle of a message" };
            return Err(Error::new(ErrorKind::PeerLost, format!("{CONNECTION_DROPPED} {what}"))
                .peer(peer.clone())
                .hint("its own output or exit status says why"));
        }
        if filled.read_bytes > 0 {
            self.heard = clock::now();
        }
        Ok(filled)
    }
}

/// Whether a header is all there is of its frame.
fn is_empty(header: &Header) -> bool {
    header.part_count == 0 && header.control_bytes == 0 && header.payload_bytes == 0
}

/// Reads once, into `pieces` and then ahead, as far as `behind` says. Returns what it read, and how much of it is in
/// `pieces`.
fn read<'a>(
    ahead: &'a mut Buffer,
    mut pieces: SmallVec<[IoSliceMut<'a>; 4]>,
    behind: Option<usize>,
    shore: &Shore<'_>,
) -> Result<(Filled, usize)> {
    let wanted_bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    let begin = ahead.end;
    if let Some(most_bytes) = behind {
        let until = begin.saturating_add(most_bytes).min(ahead.bytes.len());
        pieces.push(IoSliceMut::new(&mut ahead.bytes[begin..until]));
    }
    let asked_bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
    let outcome = readv(shore.socket, &mut pieces);
    drop(pieces);
    let mut filled = Filled::default();
    match outcome {
        Ok(0) => filled.has_ended = true,
        Ok(read_bytes) => (filled.read_bytes, filled.is_drained) = (read_bytes, read_bytes < asked_bytes),
        Err(Errno::AGAIN | Errno::INTR) => {}
        Err(errno) => return Err(connection_lost(errno, shore.peer)),
    }
    ahead.end += filled.read_bytes.saturating_sub(wanted_bytes);
    let in_place_bytes = filled.read_bytes.min(wanted_bytes);
    Ok((filled, in_place_bytes))
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

pub(super) fn impossible(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Protocol, format!("the peer sent {what}"))
        .hint("the peer runs another version, or something between the hosts changes what is sent")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
    use std::os::fd::AsFd;

    fn room(sequence: u64, tag: u64) -> Header {
        Header { sequence, tag, ..Header::new(Kind::Room) }
    }

    /// Outcome of a glance at these bytes, and how many it leaves in the socket.
    fn glanced(bytes: &[u8]) -> (Option<u64>, u64) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("sockets");
        send(&theirs, bytes, SendFlags::empty()).expect("there is room");
        let heard = Reading::new(&[]).expect("nothing was read ahead").glance(ours.as_fd());
        (heard, rustix::io::ioctl_fionread(&ours).expect("a socket"))
    }

    #[test]
    fn a_glance_takes_words_of_room_and_nothing_else() {
        let frames = |headers: &[Header]| headers.iter().flat_map(Header::encode).collect::<Vec<u8>>();
        let data = Header { sequence: 3, ..Header::new(Kind::Data) };
        let frame = HEADER_BYTES as u64;
        assert_eq!(glanced(&frames(&[room(1, 5), room(2, 9), data])), (Some(9), frame));
        assert_eq!(glanced(&frames(&[room(1, 5), room(2, 4)])), (Some(5), frame), "one that takes room back");
        assert_eq!(glanced(&frames(&[room(2, 5)])), (None, frame), "one out of order");
        assert_eq!(glanced(&frames(&[Header { control_bytes: 1, ..room(1, 5) }])), (None, frame), "one with more");
        assert_eq!(glanced(&frames(&[room(1, 5)])[..10]), (None, 10), "a part of one");
        assert_eq!(glanced(&[7; HEADER_BYTES]), (None, frame), "no header at all");
    }
}
