//! What is urgent on a shared-memory link: short messages that overtake data, and loans that come home.
//!
//! Each direction has a small ring for these, which is read before the ring for data and goes on where that one is
//! full, in the middle of a stream, or held up by a receiver without room. [`super::ring`] says how nothing in it is
//! overtaken by data that was sent later: so a peer that hears of a tensor that it has lent finds that it has it again.
//! A control part that is too long for a record goes ahead in pieces.

use super::memory::UrgentMemory;
use super::receiving::{Shore, Taken, impossible};
use super::ring::{Consumer, Kind as RecordKind, Producer, Record, URGENT_BODY_BYTES_MAX, URGENT_LINES};
use crate::link::{Arrival, Verdict};
use crate::message::{Envelope, Message, Outgoing, Tensors};
use crate::outbox::{Outbox, Waiting};
use sheave_base::Result;
use sheave_base::limits::CONTROL_BYTES_MAX;
use sheave_base::work::Completer;
use sheave_tensor::Buffer;
use sheave_wire::{HEADER_BYTES, Header, Kind};
use smallvec::SmallVec;

/// Bytes of a control part that travel in one record. Several fit into the ring, so that both sides work at once.
const PIECE_BYTES: usize = 1024;
/// Loans given back in one record.
pub(super) const RETURNS_PER_RECORD: usize = 128;
const _: () =
    assert!(HEADER_BYTES + PIECE_BYTES <= URGENT_BODY_BYTES_MAX && RETURNS_PER_RECORD * 8 <= URGENT_BODY_BYTES_MAX);

/// The sending half, under the lock of all that senders change.
pub(super) struct UrgentSending {
    producer: Producer<UrgentMemory>,
    /// The message that is on its way.
    assembly: Option<Assembly>,
    sequence: u64,
    /// Something went into the ring since it was last asked whether the peer sleeps.
    has_put: bool,
}

struct Assembly {
    header: [u8; HEADER_BYTES],
    control: Vec<u8>,
    sent_bytes: usize,
    done: Completer<()>,
}

impl UrgentSending {
    pub(super) fn new(producer: Producer<UrgentMemory>) -> Self {
        Self { producer, assembly: None, sequence: 0, has_put: false }
    }

    /// True while a message is half on its way.
    pub(super) fn is_busy(&self) -> bool {
        self.assembly.is_some()
    }

    /// Puts a message into the ring if it fits and there is room, and nothing waits before it.
    pub(super) fn put(&mut self, message: &Outgoing) -> Result<bool> {
        if message.control.len() > PIECE_BYTES || self.is_busy() {
            return Ok(false);
        }
        let header = self.header(message);
        let is_put = self.push(RecordKind::Message, &[&header, &message.control])?;
        self.sequence += u64::from(is_put);
        Ok(is_put)
    }

    /// Gives loans back, whose numbers are in `words`. False when there is no room.
    pub(super) fn put_returns(&mut self, words: &[u8]) -> Result<bool> {
        self.push(RecordKind::Returns, &[words])
    }

    fn push(&mut self, kind: RecordKind, pieces: &[&[u8]]) -> Result<bool> {
        let is_put = self.producer.push(kind, pieces)?;
        self.has_put |= is_put;
        Ok(is_put)
    }

    fn header(&self, message: &Outgoing) -> [u8; HEADER_BYTES] {
        let header = Header {
            kind: Kind::Urgent,
            sequence: self.sequence + 1,
            control_bytes: message.control.len() as u32,
            ..message.envelope.header()
        };
        header.encode_unsummed()
    }

    /// Moves what waits into the ring. True when something moved; works that ended are added to `finished`.
    pub(super) fn flush(&mut self, outbox: &mut Outbox, finished: &mut Vec<Completer<()>>) -> Result<bool> {
        let mut moved = false;
        loop {
            if self.assembly.is_none() {
                let Some(Waiting { message, done, .. }) = outbox.pop_urgent() else { return Ok(moved) };
                let header = self.header(&message);
                self.assembly = Some(Assembly { header, control: message.control, sent_bytes: 0, done });
            }
            let (is_whole, sent) = self.assemble()?;
            moved |= sent;
            if !is_whole {
                return Ok(moved);
            }
            self.sequence += 1;
            finished.extend(self.assembly.take().map(|assembly| assembly.done));
        }
    }

    /// Sends the next pieces of the message. Whether it is whole, and whether something moved.
    fn assemble(&mut self) -> Result<(bool, bool)> {
        let Some(assembly) = &mut self.assembly else { return Ok((true, false)) };
        let mut moved = false;
        while assembly.control.len() - assembly.sent_bytes > PIECE_BYTES {
            let piece = &assembly.control[assembly.sent_bytes..][..PIECE_BYTES];
            if !self.producer.push(RecordKind::Area, &[piece])? {
                return Ok((false, moved));
            }
            assembly.sent_bytes += PIECE_BYTES;
            (moved, self.has_put) = (true, true);
        }
        let rest = &assembly.control[assembly.sent_bytes..];
        let is_put = self.producer.push(RecordKind::Message, &[&assembly.header, rest])?;
        self.has_put |= is_put;
        Ok((is_put, moved | is_put))
    }

    /// After something was put in: true when the peer sleeps and must be rung.
    pub(super) fn must_ring(&mut self) -> bool {
        std::mem::take(&mut self.has_put) && self.producer.must_ring()
    }

    /// True when something was put in that the peer was not rung for.
    pub(super) fn has_put(&self) -> bool {
        self.has_put
    }

    /// Announces that this side waits for room.
    pub(super) fn arm(&self) {
        self.producer.arm();
    }

    pub(super) fn has_room(&mut self) -> Result<bool> {
        self.producer.has_room_for_any()
    }

    /// The work of the message that is half on its way, for a link that has ended.
    pub(super) fn end(&mut self) -> Option<Completer<()>> {
        self.assembly.take().map(|assembly| assembly.done)
    }
}

/// The receiving half, under the poll token.
pub(super) struct UrgentReceiving {
    consumer: Consumer<UrgentMemory>,
    /// Pieces of the next message's control part.
    area: Vec<u8>,
    sequence: u64,
    /// The next message waits until its receiver has room, as far as the last look has told.
    is_paused: bool,
    is_armed: bool,
}

impl UrgentReceiving {
    pub(super) fn new(consumer: Consumer<UrgentMemory>) -> Self {
        Self { consumer, area: Vec::new(), sequence: 0, is_paused: false, is_armed: false }
    }

    /// Takes all that is there, as many records at most as the ring can hold at a time.
    pub(super) fn take(&mut self, shore: &Shore<'_>, returned: &mut Vec<Completer<()>>) -> Result<Taken> {
        let mut taken = Taken::default();
        self.is_paused = false;
        for _ in 0..URGENT_LINES {
            let Some(record) = self.consumer.peek()? else { break };
            match record.kind {
                RecordKind::Message if !self.message(&record, shore)? => {
                    self.is_paused = true;
                    taken.paused = true;
                    break;
                }
                RecordKind::Message => {}
                RecordKind::Returns => self.returns(&record, shore, returned)?,
                RecordKind::Area => self.area_piece(&record)?,
                other => return Err(impossible(format!("an urgent record of kind {other:?}"))),
            }
            self.consumer.release(record);
            taken.moved = true;
        }
        Ok(taken)
    }

    /// Takes a message. False when its receiver has no room; then it stays.
    fn message(&mut self, record: &Record, shore: &Shore<'_>) -> Result<bool> {
        let mut header = [0; HEADER_BYTES];
        self.consumer.read(record, 0, &mut header)?;
        let header = Header::decode_with(&header, false)?;
        let envelope = Envelope::of_urgent(&header)?;
        let sequence = self.sequence + 1;
        if header.sequence != sequence {
            return Err(impossible(format!("urgent message {} after {}", header.sequence, self.sequence)));
        }
        let control_bytes = header.control_bytes as usize;
        let rest_bytes = control_bytes.checked_sub(self.area.len()).filter(|bytes| *bytes <= record.body_bytes);
        let rest_bytes = rest_bytes.ok_or_else(|| impossible("an urgent message of impossible length"))?;
        let arrival = Arrival {
            envelope,
            sequence,
            parts: &[],
            payload_bytes: 0,
            control_bytes,
            is_urgent: true,
            ending: shore.ending,
        };
        let landing = match shore.sink.begin(shore.id, &arrival)? {
            Verdict::Pause => return Ok(false),
            Verdict::Land(landing) => landing,
        };
        let mut control = std::mem::take(&mut self.area);
        let begin = control.len();
        control.resize(control_bytes, 0);
        if let Err(error) = self.consumer.read(record, HEADER_BYTES, &mut control[begin..begin + rest_bytes]) {
            landing.fail(&error);
            return Err(error);
        }
        self.sequence = sequence;
        let parts = Tensors::new();
        shore.sink.deliver(landing, Message { envelope, source: shore.id, sequence, control, parts });
        Ok(true)
    }

    fn returns(&self, record: &Record, shore: &Shore<'_>, returned: &mut Vec<Completer<()>>) -> Result<()> {
        let mut bytes = vec![0; record.body_bytes];
        self.consumer.read(record, 0, &mut bytes)?;
        let mut freed: SmallVec<[Buffer; 16]> = SmallVec::new();
        {
            let mut lent = shore.lent.lock();
            for word in bytes.as_chunks::<8>().0 {
                let loan = lent.end(u64::from_ne_bytes(*word), shore.arena)?;
                freed.push(loan.buffer);
                returned.extend(loan.borrowed.map(|borrowed| borrowed.done));
            }
        }
        drop(freed);
        Ok(())
    }

    fn area_piece(&mut self, record: &Record) -> Result<()> {
        let begin = self.area.len();
        if begin + record.body_bytes > CONTROL_BYTES_MAX {
            return Err(impossible("an urgent control part without end"));
        }
        self.area.resize(begin + record.body_bytes, 0);
        self.consumer.read(record, 0, &mut self.area[begin..])
    }

    /// Announces that this side is about to sleep. The caller looks once more afterwards.
    pub(super) fn arm(&mut self) {
        self.is_armed = true;
        self.consumer.arm();
    }

    /// Takes the announcement back.
    pub(super) fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.consumer.disarm();
        }
    }

    pub(super) fn is_empty(&mut self) -> bool {
        matches!(self.consumer.peek(), Ok(None))
    }

    /// True when there is something to take, or to refuse.
    pub(super) fn has_something(&self) -> bool {
        self.consumer.has_something()
    }

    /// True when something is there that the last look has not found to wait for its receiver.
    pub(super) fn has_news(&mut self) -> bool {
        !self.is_paused && !self.is_empty()
    }

    /// After taking: true when the peer waits for room and must be rung.
    pub(super) fn must_ring(&mut self) -> bool {
        self.consumer.owes_a_look() && self.consumer.must_ring()
    }
}
