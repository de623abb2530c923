//! The contract of a link: an ordered, reliable, authenticated message path between two nodes.
//!
//! A link has six verbs. `send` hands a message over and never blocks; `capture` frees the memory of those who no
//! longer wait; `poll` takes what arrived and moves what waits; `arm` asks for a doorbell; `close` ends it in order;
//! `abandon` ends it at once. Nothing above this room knows the medium.
//!
//! * **Order**: messages are delivered in the order in which `send` took them, each exactly once, until the link ends;
//!   but *urgent* ones, which their endpoints declare ([`crate::Endpoint::is_urgent`]), overtake the others. So they
//!   keep their order among each other, as the others do, and are delivered before everything that was sent after them.
//! * **One poller**: `poll` is guarded by a try-lock, the poll token. Whoever gets it makes progress for everybody.
//! * **In place**: the sink names the destination of every tensor before its bytes are moved. The landing owns the
//!   write leases of these destinations, and the link owns the landing for as long as it may write; so whatever becomes
//!   of whoever asked for the message, nobody else reads or writes a place that a link still writes to. A link that
//!   closes, or says that it has ended, has let go of a landing that lasts; one within the process lasts for a copy.
//! * **Back-pressure**: a sink may say [`Verdict::Pause`]; the message then stays where it is and the sender's queue
//!   fills up. Urgent messages that come behind it are delivered all the same.
//! * **End**: a link ends once, with one reason; every later call returns it.

use crate::matching::{Posted, Wanted};
use crate::message::{Envelope, Message, Outgoing, Tensors, WriteLeases};
use sheave_base::{Error, ErrorKind, LinkId, Peer, Result, Work};
use sheave_tensor::{Segment, SegmentId, Tensor, WriteLease};
use sheave_wire::{Part, TensorSpec};
use smallvec::SmallVec;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The media that a link can run over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    /// Threads of one process.
    InProcess,
    /// Processes of one host.
    SharedMemory,
    /// Anything else.
    Tcp,
}

impl std::fmt::Display for Medium {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::InProcess => "inproc",
            Self::SharedMemory => "shm",
            Self::Tcp => "tcp",
        })
    }
}

/// Whether `send` is done with the message.
#[derive(Debug)]
#[must_use]
pub enum Handover {
    /// Yes: captured, moved or on its way.
    Sent,
    /// Not yet: it waits for room or streams; the work ends when the tensors are free again.
    Queued(Work<()>),
}

/// How much the sender may hold of the caller's memory after `send` has returned [`Handover::Queued`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nothing that is sent by copy: capture it now.
    Capture,
    /// The tensors, until the work ends: the caller waits or borrows.
    Borrow,
}

/// What `poll` found.
#[derive(Debug)]
#[must_use]
pub enum Polled {
    /// Somebody else holds the token.
    Busy,
    /// Nothing to do.
    Idle,
    /// Something moved; there may be more.
    Moved,
    /// The next message waits until its receiver has room. Urgent ones may come nevertheless.
    Paused,
    /// The link has ended, and everything that it carried was delivered.
    Ended(Error),
}

/// A message whose header, part table and control are known and whose tensors have not moved yet.
#[derive(Debug)]
pub struct Arrival<'a> {
    /// What it is.
    pub envelope: Envelope,
    /// Its number on the link.
    pub sequence: u64,
    /// The tensors that follow.
    pub parts: &'a [Part],
    /// Bytes of all tensors.
    pub payload_bytes: u64,
    /// Bytes of the control part.
    pub control_bytes: usize,
    /// It has overtaken others.
    pub is_urgent: bool,
    /// The peer has ended the link: what is left of it is no more than the medium holds, and is let in beyond the
    /// limits.
    pub ending: bool,
}

/// Where an arriving message goes.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each message")]
pub enum Verdict {
    /// To the receiver that this landing stands for.
    Land(Landing),
    /// Nowhere yet: leave it on the link.
    Pause,
}

/// The receiver of a message whose tensors are on their way. The link owns it until the message is whole; if the link
/// ends before that, it must say so with [`Landing::fail`].
#[derive(Debug, Default)]
pub struct Landing {
    pub(crate) receive: Option<Box<Posted>>,
    pub(crate) refusal: Option<Error>,
    /// Where the tensors go if there is no receive.
    pub(crate) ground: Ground,
}

/// Places for the tensors of a message, and what keeps everybody else away from them until the message is whole or its
/// link has given up on it.
#[derive(Debug, Default)]
pub struct Ground {
    /// One place for each tensor, which fits ([`crate::check_places`]), or none at all.
    pub places: Tensors,
    /// Write leases for the places.
    pub leases: WriteLeases,
    /// Leases that cover places of several messages.
    pub common: Option<Arc<Vec<WriteLease>>>,
}

impl Landing {
    /// For whoever posted this receive, or says by `refusal` why it cannot have the message.
    pub(crate) fn of(receive: Option<Box<Posted>>, refusal: Option<Error>) -> Self {
        Self { receive, refusal, ground: Ground::default() }
    }

    /// For its endpoint, with the tensors on this ground, if there is some.
    pub(crate) fn at(ground: Ground) -> Self {
        Self { ground, ..Self::default() }
    }

    /// One destination per tensor, or none at all. The link takes them into the message's parts.
    pub fn take_places(&mut self) -> Tensors {
        match &mut self.receive {
            Some(receive) if self.refusal.is_none() => std::mem::take(&mut receive.places),
            Some(_) => SmallVec::new(),
            None => std::mem::take(&mut self.ground.places),
        }
    }

    /// Whether the receiver has named places.
    pub(crate) fn has_places(&self) -> bool {
        match &self.receive {
            Some(receive) => self.refusal.is_none() && !receive.places.is_empty(),
            None => !self.ground.places.is_empty(),
        }
    }

    /// The link ended before the message was whole.
    pub fn fail(self, reason: &Error) {
        if let Some(receive) = self.receive {
            receive.finish(Err(reason.clone()));
        }
    }
}

/// What takes messages out of a link.
pub trait Sink {
    /// Says where a message goes, before its tensors move. An error ends the link.
    fn begin(&self, link: LinkId, arrival: &Arrival<'_>) -> Result<Verdict>;
    /// Takes the whole message.
    fn deliver(&self, landing: Landing, message: Message);
    /// Memory for a tensor that nobody named a place for.
    fn place(&self, spec: &TensorSpec) -> Result<Tensor>;
    /// True when no receive waits for a message and no message for a receive.
    fn is_empty(&self) -> bool;
}

/// An ordered, reliable, authenticated message path. See the module's contract.
pub trait Link: Send + Sync {
    /// The medium.
    fn medium(&self) -> Medium;

    /// Who is at the other end.
    fn peer(&self) -> &Peer;

    /// Takes a message. Never blocks. Fails when the link has ended, when the message breaks a limit, or when too many
    /// messages wait already; then nothing of it was sent.
    fn send(&self, message: Outgoing, hold: Hold) -> Result<Handover>;

    /// Captures whatever waits to be sent by copy, so that its senders may go on and change it.
    fn capture(&self) -> Result<()>;

    /// Moves up to `budget` messages in and whatever waits out. Never blocks.
    fn poll(&self, sink: &dyn Sink, budget: usize) -> Polled;

    /// Waits for a moment, `rounds` looks at most, for the next message, and takes it past the sink if it is data for
    /// `wanted` and needs nothing but a copy; returns its envelope and its number, and its tensors in `places`. Takes
    /// nothing while the sink is not empty, so that messages and receives keep their order. Whatever else there is, the
    /// link's end included, is left for [`Link::poll`]. `places` are as in [`Landing::take_places`], and their leases
    /// are the caller's.
    fn take(&self, _sink: &dyn Sink, _wanted: &Wanted, _places: &mut Tensors, _rounds: u32) -> Option<(Envelope, u64)> {
        None
    }

    /// Waits for a moment, `rounds` looks at most and until `is_over`, for something that [`Link::poll`] would move in,
    /// and takes nothing. Room to send, and the end of the link, are left for the next poll.
    fn look(&self, _rounds: u32, _is_over: &dyn Fn() -> bool) {}

    /// Whether the peer is awake and was on this core when it sent or waited last, so that it can do nothing while this
    /// thread keeps the core. Tells the peer that this side is there.
    fn shares_core(&self, _core: u32) -> bool {
        false
    }

    /// Asks for a doorbell when something arrives or room appears. False when there is something to do now.
    fn arm(&self) -> bool;

    /// As [`Link::arm`], for a link whose next message waits until its receiver has room: asks for a doorbell when an
    /// urgent message arrives or room appears.
    fn arm_urgent(&self) -> bool {
        true
    }

    /// Takes the request back, as far as that saves the peer a system call.
    fn disarm(&self);

    /// The latest point in time at which the link must be polled again though nobody rings; `None` when there is none.
    fn next_due(&self) -> Option<Instant> {
        None
    }

    /// What must be watched for readability while nobody polls: the socket, for links that have one.
    fn readiness(&self) -> Option<Readiness<'_>>;

    /// The watched descriptor is readable and no message travels on it: serves it. Never blocks.
    fn attend(&self) {}

    /// Whether both ends are on one host and can show each other memory.
    fn is_neighbourly(&self) -> bool {
        false
    }

    /// Shows the peer a segment. False when it must be tried again. Never blocks.
    fn introduce(&self, _segment: &Arc<Segment>) -> Result<bool> {
        Err(Error::new(ErrorKind::Unsupported, "this link cannot show memory to its peer"))
    }

    /// A segment that the peer has shown. Never blocks.
    fn shown(&self, _id: SegmentId) -> Option<Arc<Segment>> {
        None
    }

    /// Wakes the peer's leader.
    fn ring(&self) {}

    /// True once nothing of the peer can touch this node's memory any more.
    fn is_peer_gone(&self) -> bool {
        false
    }

    /// Shows the peer a sign of life and says for how long the peer has shown none; `None` while another thread looks
    /// at the link, and may be seeing one.
    fn beat(&self) -> Option<Duration>;

    /// Counts the messages that `send` took and that have not left this side's own queues, or that the peer has yet to
    /// copy from the sender's tensor.
    fn unsent(&self) -> usize;

    /// Whether what this side has sent is lost again and again on its way.
    fn is_stuck(&self) -> bool {
        false
    }

    /// How long a small message and its answer have taken, as far as that is known.
    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }

    /// Where a fresh connection would reach the peer, for a side that has made the link so.
    fn made_to(&self) -> Option<SocketAddr> {
        None
    }

    /// The peer has shown a sign of life beside the link.
    fn vouch(&self) {}

    /// The process at the other end, if it is on this host and somebody has stopped it to look into it: who traces it.
    fn tracer(&self) -> Option<u32> {
        None
    }

    /// Ends the link: what has left the queues still arrives, then the peer sees `reason`. Never blocks. Idempotent.
    fn close(&self, reason: &Error);

    /// After [`Link::close`]: counts the bytes, the end of the stream among them, that are lost if this process ends
    /// now. Zero where the peer, or its kernel, has them all or is gone.
    fn at_risk_bytes(&self) -> u64 {
        0
    }

    /// Ends the link because this side cannot go on for this reason, and tells the peer so. Never blocks. Idempotent.
    fn give_up(&self, reason: &Error);

    /// Ends the link without the peer's help, because it is gone. Wakes everybody who waits. Idempotent.
    fn abandon(&self, reason: &Error);
}

/// A descriptor to watch and what for.
#[derive(Clone, Copy, Debug)]
pub struct Readiness<'a> {
    /// The descriptor.
    pub descriptor: BorrowedFd<'a>,
    /// Watch for room to write too.
    pub writable: bool,
    /// Watch it though the next message waits until its receiver has room: urgent ones come that way.
    pub while_paused: bool,
}
