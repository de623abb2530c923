//! A peer of this host that writes whatever an input says: records, any word of the ring, packets beside it.

use super::channel::{send_forget, send_segment};
use super::loans::{Borrowed, Debts, Lent, Loan};
use super::memory::{DataMemory, Pair, UrgentMemory, Which};
use super::receiving::{Receiving, Shore, Step};
use super::ring::{Consumer, Kind, LINES, Memory, Producer, words};
use super::shown::Shown;
use super::urgent::UrgentReceiving;
use crate::counters::Counters;
use crate::fuzz::sink::{Manner, Recorder};
use crate::matching::Wanted;
use crate::message::Tensors;
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use sheave_base::fuzz::Input;
use sheave_base::work::pair;
use sheave_base::{Error, ErrorKind, LinkId, Peer, Tag, Work};
use sheave_tensor::{Arena, ArenaConfig, Dtype, Segment, Tensor};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of the segment that the peer shows: as many as the slots of a stream, and a page.
const SEGMENT_BYTES: usize = super::sending::CHUNK_BYTES * super::sending::CHUNKS as usize + 4096;

/// Bytes of the two tensors that this side has lent.
const LENT_BYTES: u64 = 256;

thread_local! {
    static SEGMENT: Arc<Segment> = Segment::create(SEGMENT_BYTES).expect("there is memory");
}

/// Takes in what the peer has written, a step at a time. Each step ends with nothing, a message that is as it was
/// announced, or an error that tells of the peer; and a tensor that its sender has only shown is nobody else's.
pub(crate) fn records(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new();
    while !input.is_empty() {
        if let Err(error) = world.act(&mut input) {
            assert!([ErrorKind::Protocol, ErrorKind::LimitExceeded].contains(&error.kind()), "{error}");
            break;
        }
    }
    world.end();
}

struct World {
    memory: DataMemory,
    producer: Producer<DataMemory>,
    urgent: Producer<UrgentMemory>,
    receiving: Receiving,
    shown: Shown,
    ours: OwnedFd,
    theirs: OwnedFd,
    peer: Peer,
    lent: Mutex<Lent>,
    debts: Arc<Debts>,
    arena: Arena,
    counters: Counters,
    sink: Recorder,
    ending: bool,
    /// A sender waits until the peer has copied it.
    borrowed: (Tensor, Work<()>),
}

impl World {
    fn new() -> Self {
        let (rings, _) = Pair::create().expect("there is memory");
        let ring = || rings.ring(Which::FromInitiator);
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("there are descriptors");
        let mut lent = Lent::default();
        let tensor = || Tensor::private(Dtype::U8, [LENT_BYTES]).expect("there is memory");
        lent.add(Loan { buffer: tensor().buffer().clone(), counted_bytes: 0, borrowed: None });
        let (borrowable, (done, work)) = (tensor(), pair("send"));
        let borrowed = Some(Borrowed { done, lease: None, behind: Some(1) });
        lent.add(Loan { buffer: borrowable.buffer().clone(), counted_bytes: 0, borrowed });
        Self {
            memory: ring(),
            producer: Producer::new(ring()),
            urgent: Producer::new(rings.urgent(Which::FromInitiator)),
            receiving: Receiving::new(
                Consumer::new(ring()),
                UrgentReceiving::new(Consumer::new(rings.urgent(Which::FromInitiator))),
            ),
            shown: Shown::default(),
            ours,
            theirs,
            peer: Peer::named("peer"),
            lent: Mutex::new(lent),
            debts: Arc::default(),
            arena: Arena::new(ArenaConfig::default()),
            counters: Counters::default(),
            sink: Recorder::default(),
            ending: false,
            borrowed: (borrowable, work),
        }
    }

    /// Does the next thing that the input says.
    fn act(&mut self, input: &mut Input<'_>) -> Result<(), Error> {
        let what = input.byte();
        let which = what >> 3;
        match what % 8 {
            0 => self.push(which, input.counted())?,
            1 => self.step(1 + usize::from(which))?,
            2 => self.memory.word(usize::from(input.short()) % words(LINES)).store(input.word(), Relaxed),
            3 => {
                let length_bytes = SEGMENT.with(|segment| segment.len_bytes()) - u64::from(which & 1);
                let id = input.byte().into();
                let show = |segment: &Arc<Segment>| {
                    send_segment(
                        std::os::fd::AsFd::as_fd(&self.theirs),
                        id,
                        length_bytes,
                        segment.fd().expect("its own"),
                    )
                };
                SEGMENT.with(show).map(drop)?;
            }
            4 => drop(send_forget(std::os::fd::AsFd::as_fd(&self.theirs), input.byte().into())?),
            5 => {
                self.sink.behave(Manner { pauses: which & 1 != 0, has_places: which & 2 != 0 });
                self.ending = which & 4 != 0;
                if which & 8 != 0 {
                    self.producer.close(which);
                }
            }
            6 => drop(send(&self.theirs, input.counted(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL)),
            _ => self.take(which, input),
        }
        Ok(())
    }

    /// A record with this body, as the peer's own side of the ring writes it.
    fn push(&mut self, which: u8, body: &[u8]) -> Result<(), Error> {
        let kinds =
            [Kind::Pad, Kind::Message, Kind::Chunk, Kind::Returns, Kind::Area, Kind::Slots, Kind::Brief, Kind::Plain];
        let kind = kinds[usize::from(which & 15) % kinds.len()];
        let pushed = if which & 16 == 0 { self.producer.push(kind, &[body]) } else { self.urgent.push(kind, &[body]) };
        match pushed {
            Err(error) if error.kind() == ErrorKind::Internal => Ok(()),
            pushed => pushed.map(drop),
        }
    }

    fn step(&mut self, most: usize) -> Result<(), Error> {
        let shore = Shore {
            id: LinkId(1),
            peer: &self.peer,
            socket: &self.ours,
            shown: &self.shown,
            lent: &self.lent,
            debts: &self.debts,
            arena: &self.arena,
            counters: &self.counters,
            sink: &self.sink,
            ending: self.ending,
        };
        self.receiving.take_urgent(&shore)?;
        for _ in 0..most {
            match self.receiving.step(&shore)? {
                Step::Moved => {}
                Step::Nothing | Step::Paused => break,
            }
        }
        self.receiving.take_returned().into_iter().for_each(|done| done.complete(Ok(())));
        self.check_borrowed();
        Ok(())
    }

    /// The short way past the sink.
    fn take(&mut self, which: u8, input: &mut Input<'_>) {
        let (context, tag) = (input.byte().into(), Tag(input.byte().into()));
        let wanted = Wanted { source: None, context, tag };
        let mut places = Tensors::new();
        if which & 1 != 0 {
            places.push(Tensor::private(Dtype::F32, [2]).expect("there is memory"));
        }
        if let Ok(Some((envelope, _))) = self.receiving.take(LinkId(1), &wanted, &mut places, &self.sink) {
            assert_eq!((envelope.endpoint, envelope.context, envelope.tag), (0, context, tag));
            assert_eq!(places.len(), 1);
        }
    }

    /// While a sender waits for its tensor to be copied, it is the sender's, and the link's only until then.
    fn check_borrowed(&self) {
        let (tensor, work) = &self.borrowed;
        assert!(tensor.buffer().handles() <= 2, "the tensor of a sender is somebody else's too");
        if work.is_done() {
            assert!(work.result().is_some_and(|outcome| outcome.is_ok()), "its sender was told of the loan's end");
        }
    }

    /// The link ends.
    fn end(mut self) {
        let reason = Error::new(ErrorKind::PeerLost, "the run is over");
        if let Some(landing) = self.receiving.end() {
            landing.fail(&reason);
        }
        self.receiving.take_returned().into_iter().for_each(|done| done.complete(Ok(())));
        self.check_borrowed();
        let delivered = self.sink.delivered();
        let sequences = delivered.iter().map(|message| message.sequence);
        assert!(sequences.clone().zip(sequences.skip(1)).all(|(one, next)| one < next), "messages are in order");
    }
}
