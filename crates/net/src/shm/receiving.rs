//! The receiving side of a shared-memory link.
//!
//! What the peer has shown beside the rings is in [`super::shown`]. A record that refers to a segment waits for a later
//! turn while there is more of that to read than one turn takes: it stays in the ring, so that it is found there.

use super::brief::Brief;
use super::loans::{Debts, Lent};
use super::memory::DataMemory;
use super::plain::Plain;
use super::ring::{Consumer, Kind as RecordKind, Record};
use super::sending::{CHUNK_BYTES, CHUNKS};
use super::shown::{Look, Shown};
use super::urgent::UrgentReceiving;
use crate::counters::Counters;
use crate::farewell::closed_by_peer;
use crate::link::{Arrival, Landing, Sink, Verdict};
use crate::matching::Wanted;
use crate::message::{Envelope, Message, Tensors};
use parking_lot::Mutex;
use sheave_base::limits::CONTROL_BYTES_MAX;
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, LinkId, Peer, Result};
use sheave_tensor::{Arena, Buffer, Dtype, Segment, Shape, Tensor};
use sheave_wire::{HEADER_BYTES, Header, Kind, Part, Placement};
use smallvec::SmallVec;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The parts of a link that receiving needs and does not own.
pub(crate) struct Shore<'a> {
    pub(crate) id: LinkId,
    pub(crate) peer: &'a Peer,
    pub(crate) socket: &'a OwnedFd,
    pub(crate) shown: &'a Shown,
    pub(crate) lent: &'a Mutex<Lent>,
    pub(crate) debts: &'a Arc<Debts>,
    pub(crate) arena: &'a Arena,
    pub(crate) counters: &'a Counters,
    pub(crate) sink: &'a dyn Sink,
    /// The peer has ended the link.
    pub(crate) ending: bool,
}

/// What the holder of the poll token changes.
pub(crate) struct Receiving {
    pub(crate) consumer: Consumer<DataMemory>,
    pub(super) urgent: UrgentReceiving,
    sequence: u64,
    area: Vec<u8>,
    slots: Option<(Arc<Segment>, u64)>,
    stream: Option<Stream>,
    chunks_taken: u64,
    /// Works of senders whose borrowed tensors came back. Whoever held the lock completes them when it is free.
    returned: Vec<Completer<()>>,
}

/// A message whose bytes come through the slots.
struct Stream {
    landing: Landing,
    message: Message,
    /// The parts that are streamed, in order.
    parts: SmallVec<[usize; 2]>,
    next: usize,
    offset_bytes: usize,
}

/// The tensors of a message, and which of them are still to be streamed.
type Landed = (Tensors, SmallVec<[usize; 2]>);

/// The segments that the parts of a message refer to, in order.
type Segments = SmallVec<[Arc<Segment>; 2]>;

/// The next record is there and is not for this receive, or needs more than a copy.
pub(crate) struct NotTaken;

/// What a look at a ring brought.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) moved: bool,
    /// The next message waits until its receiver has room.
    pub(crate) paused: bool,
}

/// What became of the next record.
pub(crate) enum Step {
    Nothing,
    Paused,
    Moved,
}

impl Receiving {
    pub(super) fn new(consumer: Consumer<DataMemory>, urgent: UrgentReceiving) -> Self {
        Self {
            consumer,
            urgent,
            sequence: 0,
            area: Vec::new(),
            slots: None,
            stream: None,
            chunks_taken: 0,
            returned: Vec::new(),
        }
    }

    /// Takes what is urgent.
    pub(crate) fn take_urgent(&mut self, shore: &Shore<'_>) -> Result<Taken> {
        self.urgent.take(shore, &mut self.returned)
    }

    /// Takes the next record, if there is one.
    pub(crate) fn step(&mut self, shore: &Shore<'_>) -> Result<Step> {
        let Some(record) = self.consumer.peek()? else { return Ok(Step::Nothing) };
        if record.follows_urgent && self.take_urgent(shore)?.paused {
            return Ok(Step::Paused);
        }
        match record.kind {
            RecordKind::Message => return self.message(record, shore),
            RecordKind::Brief => return self.brief(record, shore),
            RecordKind::Plain => return self.plain(record, shore),
            RecordKind::Chunk => return self.chunk(record, shore),
            RecordKind::Returns => return Err(impossible("loans behind its data")),
            RecordKind::Area => self.area_piece(&record)?,
            RecordKind::Slots => {
                let [segment, offset] = self.consumer.words(&record, 0)?;
                let Some(segment) = find(segment, shore)? else { return Ok(Step::Moved) };
                let bytes = CHUNK_BYTES as u64 * CHUNKS;
                if offset.checked_add(bytes).is_none_or(|end| end > segment.len_bytes()) {
                    return Err(impossible("slots outside of their segment"));
                }
                self.slots = Some((segment, offset));
            }
            RecordKind::Pad => {}
        }
        self.consumer.release(record);
        Ok(Step::Moved)
    }

    /// Takes the next record past the sink if it is a short message of data for `wanted`. What is wrong with a record
    /// is said by [`Receiving::step`].
    #[inline]
    pub(crate) fn take(
        &mut self,
        link: LinkId,
        wanted: &Wanted,
        places: &mut Tensors,
        sink: &dyn Sink,
    ) -> Result<Option<(Envelope, u64)>, NotTaken> {
        let Some(record) = self.consumer.peek().map_err(|_| NotTaken)? else { return Ok(None) };
        if record.kind != RecordKind::Brief || record.follows_urgent || self.require_between_messages().is_err() {
            return Err(NotTaken);
        }
        let brief = Brief::read(&self.consumer, &record).map_err(|_| NotTaken)?;
        let envelope = brief.envelope;
        if envelope.endpoint != 0 || !wanted.fits(link, envelope.context, envelope.tag) {
            return Err(NotTaken);
        }
        match &places[..] {
            [] => {
                let place = sink.place(&brief.spec()).map_err(|_| NotTaken)?;
                self.read_into(&record, brief.offset_bytes, &place).map_err(|_| NotTaken)?;
                places.push(place);
            }
            [place] if place.dtype() == brief.dtype && place.len_bytes() == brief.length_bytes => {
                self.read_into(&record, brief.offset_bytes, place).map_err(|_| NotTaken)?;
            }
            _ => return Err(NotTaken),
        }
        self.sequence += 1;
        self.consumer.release(record);
        Ok(Some((envelope, self.sequence)))
    }

    /// The link has ended: nobody will complete the message in progress.
    pub(crate) fn end(&mut self) -> Option<Landing> {
        self.stream.take().map(|stream| stream.landing)
    }

    /// The works to complete once the lock is free.
    pub(crate) fn take_returned(&mut self) -> Vec<Completer<()>> {
        std::mem::take(&mut self.returned)
    }

    fn area_piece(&mut self, record: &Record) -> Result<()> {
        let begin = self.area.len();
        if begin > CONTROL_BYTES_MAX {
            return Err(impossible("a control area without end"));
        }
        self.area.resize(begin + record.body_bytes, 0);
        self.consumer.read(record, 0, &mut self.area[begin..])
    }

    /// A message in its short form.
    fn brief(&mut self, record: Record, shore: &Shore<'_>) -> Result<Step> {
        self.require_between_messages()?;
        let brief = Brief::read(&self.consumer, &record)?;
        let (envelope, sequence) = (brief.envelope, self.sequence + 1);
        let parts = [Part::inline(brief.spec())];
        let payload_bytes = brief.length_bytes as u64;
        let arrival = arrival((envelope, sequence), &parts, payload_bytes, 0, shore.ending);
        let mut landing = match shore.sink.begin(shore.id, &arrival)? {
            Verdict::Pause => return Ok(Step::Paused),
            Verdict::Land(landing) => landing,
        };
        let (here, places) = ((&parts[..], Segments::new()), landing.take_places());
        let (parts, _) = match self.land(&record, brief.offset_bytes, here, places, shore) {
            Ok(landed) => landed,
            Err(error) => {
                landing.fail(&error);
                return Err(error);
            }
        };
        self.sequence = sequence;
        self.consumer.release(record);
        shore.sink.deliver(landing, Message { envelope, source: shore.id, sequence, control: Vec::new(), parts });
        Ok(Step::Moved)
    }

    /// A message without tensors in its short form.
    fn plain(&mut self, record: Record, shore: &Shore<'_>) -> Result<Step> {
        self.require_between_messages()?;
        let Plain { envelope, control_bytes } = Plain::read(&self.consumer, &record)?;
        let sequence = self.sequence + 1;
        let arrival = arrival((envelope, sequence), &[], 0, control_bytes, shore.ending);
        let landing = match shore.sink.begin(shore.id, &arrival)? {
            Verdict::Pause => return Ok(Step::Paused),
            Verdict::Land(landing) => landing,
        };
        let mut control = vec![0; control_bytes];
        if let Err(error) = self.consumer.read(&record, Plain::OFFSET_BYTES, &mut control) {
            landing.fail(&error);
            return Err(error);
        }
        self.sequence = sequence;
        self.consumer.release(record);
        let message = Message { envelope, source: shore.id, sequence, control, parts: Tensors::new() };
        shore.sink.deliver(landing, message);
        Ok(Step::Moved)
    }

    /// A message may begin here.
    fn require_between_messages(&self) -> Result<()> {
        if self.stream.is_some() || !self.area.is_empty() {
            return Err(impossible("a message in the middle of another"));
        }
        Ok(())
    }

    fn message(&mut self, record: Record, shore: &Shore<'_>) -> Result<Step> {
        if self.stream.is_some() {
            return Err(impossible("a message in the middle of a stream"));
        }
        let mut header = [0; HEADER_BYTES];
        self.consumer.read(&record, 0, &mut header)?;
        let header = Header::decode_with(&header, false)?;
        if header.kind != Kind::Data {
            return Err(impossible(format!("a message of kind {:?}", header.kind)));
        }
        if header.sequence != self.sequence + 1 {
            return Err(impossible(format!("message {} after message {}", header.sequence, self.sequence)));
        }
        let here = (header.control_bytes as usize).checked_sub(self.area.len());
        let here = here.ok_or_else(|| impossible("a control area longer than announced"))?;
        let mut near: SmallVec<[u8; 256]> = SmallVec::from_elem(0, here.min(record.body_bytes));
        self.consumer.read(&record, HEADER_BYTES, &mut near)?;
        let inline_at = HEADER_BYTES + near.len().next_multiple_of(8);
        let mut far = Vec::new();
        let area: &[u8] = if self.area.is_empty() {
            &near
        } else {
            far.extend_from_slice(&self.area);
            far.extend_from_slice(&near);
            &far
        };
        let (parts, control) = sheave_wire::parts::decode(area, header.part_count.into())?;
        let borrows = parts.iter().any(|part| matches!(part.placement, Placement::Borrow { .. }));
        if borrows && self.consumer.closed_meanwhile().is_some() {
            // Its owner has it again. Nothing behind it is delivered either, so that no message is left out.
            return Ok(Step::Nothing);
        }
        // Before the message has a landing.
        let Some(segments) = segments_of(&parts, shore)? else { return Ok(Step::Moved) };
        let (envelope, sequence) = (Envelope::of_header(&header), header.sequence);
        let arrival = arrival((envelope, sequence), &parts, header.payload_bytes, control.len(), shore.ending);
        let mut landing = match shore.sink.begin(shore.id, &arrival)? {
            Verdict::Pause => return Ok(Step::Paused),
            Verdict::Land(landing) => landing,
        };
        let control = control.to_vec();
        let places = landing.take_places();
        let (tensors, streamed) = match self.land(&record, inline_at, (&parts, segments), places, shore) {
            Ok(landed) => landed,
            Err(error) => {
                landing.fail(&error);
                return Err(error);
            }
        };
        if borrows && let Some(code) = self.consumer.closed_meanwhile() {
            // What was copied may be what its owner has written there since.
            landing.fail(&closed_by_peer(code.into(), shore.peer));
            return Ok(Step::Nothing);
        }
        self.area.clear();
        self.sequence += 1;
        self.consumer.release(record);
        let message = Message { envelope, source: shore.id, sequence, control, parts: tensors };
        if streamed.is_empty() {
            shore.sink.deliver(landing, message);
        } else {
            self.stream = Some(Stream { landing, message, parts: streamed, next: 0, offset_bytes: 0 });
        }
        Ok(Step::Moved)
    }

    /// Gives every part its memory, and its bytes where they are here already. The segments are those that the parts
    /// refer to, in order.
    fn land(
        &mut self,
        record: &Record,
        inline_at: usize,
        (parts, segments): (&[Part], Segments),
        places: Tensors,
        shore: &Shore<'_>,
    ) -> Result<Landed> {
        let in_place = !places.is_empty();
        let (mut tensors, mut streamed) = (places, SmallVec::new());
        let mut at = inline_at;
        let mut segments = segments.into_iter();
        let mut next_segment = || segments.next().ok_or_else(|| impossible("a segment that was never announced"));
        for (index, part) in parts.iter().enumerate() {
            let place = in_place.then(|| tensors[index].clone());
            let length_bytes = part.spec.length_bytes()? as usize;
            let tensor = match part.placement {
                Placement::Inline => {
                    let tensor = place.map_or_else(|| shore.sink.place(&part.spec), Ok)?;
                    self.read_into(record, at, &tensor)?;
                    at += length_bytes.next_multiple_of(8);
                    Counters::add(&shore.counters.bytes_copied, length_bytes as u64);
                    tensor
                }
                Placement::Stream => {
                    streamed.push(index);
                    place.map_or_else(|| shore.sink.place(&part.spec), Ok)?
                }
                Placement::Block { offset, loan, .. } => {
                    let lender = Arc::clone(shore.debts) as Arc<dyn sheave_tensor::Lender>;
                    let buffer = Buffer::lent(next_segment()?, offset, length_bytes as u64, loan, lender)?;
                    if part.shared {
                        buffer.share()?;
                    }
                    adopt(buffer, part, place, shore)?
                }
                Placement::Borrow { offset, loan, .. } => {
                    let lender = Arc::clone(shore.debts) as Arc<dyn sheave_tensor::Lender>;
                    let buffer = Buffer::lent(next_segment()?, offset, length_bytes as u64, loan, lender)?;
                    // The sender waits: its tensor is copied and given back now.
                    let place = place.map_or_else(|| shore.sink.place(&part.spec), Ok)?;
                    adopt(buffer, part, Some(place), shore)?
                }
                Placement::Home { loan } => {
                    let buffer = shore.lent.lock().come_home(loan, shore.arena)?;
                    if buffer.len_bytes() < length_bytes {
                        return Err(impossible("a block that comes home larger than it left"));
                    }
                    adopt(buffer, part, place, shore)?
                }
            };
            if !in_place {
                tensors.push(tensor);
            }
        }
        Ok((tensors, streamed))
    }

    fn read_into(&self, record: &Record, at: usize, tensor: &Tensor) -> Result<()> {
        // SAFETY: the tensor is a place whose write lease the receive holds, or fresh; nobody else looks at its bytes.
        let bytes = unsafe { std::slice::from_raw_parts_mut(tensor.ptr(), tensor.len_bytes()) };
        self.consumer.read(record, at, bytes)
    }

    fn chunk(&mut self, record: Record, shore: &Shore<'_>) -> Result<Step> {
        let [length] = self.consumer.words(&record, 0)?;
        let (Some(stream), Some((segment, offset))) = (self.stream.as_mut(), self.slots.as_ref()) else {
            return Err(impossible("a chunk without a stream"));
        };
        let tensor = &stream.message.parts[stream.parts[stream.next]];
        let length = usize::try_from(length)
            .ok()
            .filter(|length| (1..=CHUNK_BYTES).contains(length) && stream.offset_bytes + length <= tensor.len_bytes());
        let length = length.ok_or_else(|| impossible("a chunk of impossible length"))?;
        let slot = offset + self.chunks_taken % CHUNKS * CHUNK_BYTES as u64;
        // SAFETY: the slots' range was checked against their mapped segment; the tensor is fresh or a place whose write
        // lease the receive holds, and the length was checked against it.
        unsafe {
            let source = segment.start().as_ptr().add(slot as usize);
            // Fresh memory has often been lent to peers before.
            sheave_tensor::hand_over(tensor.ptr().add(stream.offset_bytes), source, length);
        }
        Counters::add(&shore.counters.bytes_copied, length as u64);
        stream.offset_bytes += length;
        if stream.offset_bytes == tensor.len_bytes() {
            stream.next += 1;
            stream.offset_bytes = 0;
        }
        let finished = stream.next == stream.parts.len();
        self.chunks_taken += 1;
        self.consumer.release(record);
        self.consumer.chunk_taken(self.chunks_taken);
        if finished && let Some(stream) = self.stream.take() {
            shore.sink.deliver(stream.landing, stream.message);
        }
        Ok(Step::Moved)
    }
}

/// A segment that a record refers to; `None` if the turn is over before it was read of.
fn find(id: u64, shore: &Shore<'_>) -> Result<Option<Arc<Segment>>> {
    match shore.shown.look(id, shore.socket)? {
        Look::Found(segment) => Ok(Some(segment)),
        Look::Later => Ok(None),
        // The descriptor was sent before the record that refers to it.
        Look::Missing => Err(impossible("a segment that was never announced")),
    }
}

/// The segments that these parts refer to, in order; `None` as in [`find`].
fn segments_of(parts: &[Part], shore: &Shore<'_>) -> Result<Option<Segments>> {
    let ids = parts.iter().filter_map(|part| match part.placement {
        Placement::Block { segment, .. } | Placement::Borrow { segment, .. } => Some(segment),
        Placement::Inline | Placement::Stream | Placement::Home { .. } => None,
    });
    ids.map(|id| find(id, shore)).collect()
}

/// A block that is here already: as it is, or copied to the place that the receiver named.
fn adopt(buffer: Buffer, part: &Part, place: Option<Tensor>, shore: &Shore<'_>) -> Result<Tensor> {
    let dtype = Dtype::from_code(part.spec.dtype).ok_or_else(|| impossible("a tensor of unknown dtype"))?;
    let tensor = Tensor::from_buffer(buffer, 0, dtype, Shape::new(&part.spec.dims)?)?;
    let Some(place) = place else { return Ok(tensor) };
    // SAFETY: the sink checked that the lengths agree and holds the place's write lease; the block is ours or lent to
    // us.
    unsafe { sheave_tensor::copy_bytes(place.ptr(), tensor.ptr(), tensor.len_bytes()) };
    Counters::add(&shore.counters.bytes_copied, tensor.len_bytes() as u64);
    Ok(place)
}

fn arrival<'a>(
    (envelope, sequence): (Envelope, u64),
    parts: &'a [Part],
    payload_bytes: u64,
    control_bytes: usize,
    ending: bool,
) -> Arrival<'a> {
    Arrival { envelope, sequence, parts, payload_bytes, control_bytes, is_urgent: false, ending }
}

pub(super) fn impossible(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Protocol, format!("the peer sent {what}"))
        .hint("the peer runs another version or its memory is damaged; restart it")
}
