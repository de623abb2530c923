//! The in-process link: ranks as threads of one process.
//!
//! Each direction is a bounded queue of messages, and one of urgent messages, which go first. A moved or shared tensor
//! is handed over as its handle; a copied one is captured by `send`, which is its only copy unless the receiver named a
//! place, where a second one lands it.

use crate::counters::Counters;
use crate::doorbell::Doorbell;
use crate::entry;
use crate::link::{Arrival, Handover, Hold, Link, Medium, Polled, Readiness, Sink, Verdict};
use crate::matching::bytes_of;
use crate::message::{Message, Outgoing, spec_of};
use crate::node::{Inner, Node};
use crate::outbox::{Outbox, SendDriver};
use parking_lot::Mutex;
use sheave_base::collections::HashMap;
use sheave_base::limits::INPROC_BYTES_MAX;
use sheave_base::park::Bell;
use sheave_base::{Error, ErrorKind, LinkId, Peer, Result};
use sheave_tensor::{Arena, Mode, Segment, SegmentId, Tensor};
use sheave_wire::{Part, Parts, Placement};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Messages of one direction, and as many urgent ones; more wait with their sender.
const QUEUE_MESSAGES_MAX: usize = 1024;

/// Messages on their way.
#[derive(Default)]
struct Queue {
    messages: Mutex<VecDeque<Message>>,
    /// Written under the lock.
    length: AtomicUsize,
    /// Written under the lock.
    bytes: AtomicU64,
}

impl Queue {
    fn push(&self, message: Message) {
        let mut messages = self.messages.lock();
        self.bytes.fetch_add(bytes_of(&message), SeqCst);
        messages.push_back(message);
        self.length.store(messages.len(), SeqCst);
    }

    fn pop(&self) -> Option<Message> {
        let mut messages = self.messages.lock();
        let message = messages.pop_front();
        self.bytes.fetch_sub(message.as_ref().map_or(0, bytes_of), SeqCst);
        self.length.store(messages.len(), SeqCst);
        message
    }

    fn is_empty(&self) -> bool {
        self.length.load(SeqCst) == 0
    }

    fn has_room(&self) -> bool {
        self.length.load(SeqCst) < QUEUE_MESSAGES_MAX && self.bytes.load(SeqCst) < INPROC_BYTES_MAX
    }
}

/// One direction.
struct Pipe {
    data: Queue,
    /// Looked at before each message of data is taken, so that none overtakes what was put in here before it.
    urgent: Queue,
    consumer_armed: AtomicBool,
    producer_armed: AtomicBool,
    ended: Mutex<Option<Error>>,
    ended_flag: AtomicBool,
    consumer_bell: Arc<Doorbell>,
    producer_bell: Arc<Doorbell>,
    /// Segments that the producer has shown, by their ids, as long as somebody keeps them.
    shown: Mutex<HashMap<u64, Weak<Segment>>>,
}

impl Pipe {
    fn new(producer: &Inner, consumer: &Inner) -> Arc<Self> {
        Arc::new(Self {
            shown: Mutex::default(),
            data: Queue::default(),
            urgent: Queue::default(),
            consumer_armed: AtomicBool::new(false),
            producer_armed: AtomicBool::new(false),
            ended: Mutex::new(None),
            ended_flag: AtomicBool::new(false),
            consumer_bell: Arc::clone(&consumer.progress.doorbell),
            producer_bell: Arc::clone(&producer.progress.doorbell),
        })
    }

    fn end(&self, reason: &Error) {
        self.ended.lock().get_or_insert_with(|| reason.clone());
        self.ended_flag.store(true, SeqCst);
        self.consumer_bell.ring();
        self.producer_bell.ring();
    }

    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.data.is_empty()
    }

    fn reason(&self) -> Option<Error> {
        if self.ended_flag.load(SeqCst) { self.ended.lock().clone() } else { None }
    }
}

struct InprocLink {
    id: LinkId,
    peer: Peer,
    outbound: Arc<Pipe>,
    inbound: Arc<Pipe>,
    outbox: Mutex<Sending>,
    token: Mutex<()>,
    arena: Arena,
    counters: Arc<Counters>,
    driver: SendDriver,
    /// The next urgent message waits until its receiver has room, as far as the last look has told.
    is_urgent_paused: AtomicBool,
}

#[derive(Default)]
struct Sending {
    outbox: Outbox,
    sequence: u64,
}

/// Links two nodes of one process. Returns the link as each of them knows it; both are ready for traffic.
///
/// Nodes that start with one [`crate::Neighbourhood`] are linked so by [`Node::connect`].
///
/// # Errors
///
/// `Closed` if one of them was shut down, `LimitExceeded` if one has too many links.
pub fn connect(one: &Node, other: &Node) -> Result<(LinkId, LinkId)> {
    let ids = link(&one.inner, &other.inner)?;
    other.inner.attend();
    Ok(ids)
}

/// As [`connect`], for a thread of `left`: what `right` makes of its new link is left to threads of its own.
pub(crate) fn link(left: &Arc<Inner>, right: &Arc<Inner>) -> Result<(LinkId, LinkId)> {
    let forth = Pipe::new(left, right);
    let back = Pipe::new(right, left);
    let make = |own: &Arc<Inner>, peer: &Arc<Inner>, outbound: &Arc<Pipe>, inbound: &Arc<Pipe>| {
        let (own, peer, outbound, inbound) = (Arc::clone(own), peer.peer.clone(), outbound.clone(), inbound.clone());
        move |id| -> Result<Arc<dyn Link>> {
            Ok(Arc::new(InprocLink {
                id,
                peer,
                outbound,
                inbound,
                outbox: Mutex::default(),
                token: Mutex::new(()),
                arena: own.arena.clone(),
                counters: Arc::clone(&own.counters),
                driver: SendDriver::new(&own, id),
                is_urgent_paused: AtomicBool::new(false),
            }))
        }
    };
    // The other side first: if it has ended, nobody here has heard of a link.
    let at_right = right.insert_link(make(right, left, &back, &forth))?;
    right.progress.ring();
    let at_left = match left.add_link(make(left, right, &forth, &back)) {
        Ok(entry) => entry,
        Err(error) => {
            forth.end(&lost(&error));
            return Err(error);
        }
    };
    right.announce_arrival(at_right.id);
    for (node, entry) in [(left, &at_left), (right, &at_right)] {
        // A node that stops lists its links after it has said so: either it has found this one, or it is seen here.
        if node.stopping.load(SeqCst) {
            let reason = Error::new(ErrorKind::Closed, "the node was shut down");
            entry.link.close(&reason);
            node.link_ended(entry, &reason);
        }
    }
    Ok((at_left.id, at_right.id))
}

impl InprocLink {
    fn put(&self, sending: &mut Sending, message: Outgoing, queue: &Queue) -> Result<()> {
        let mut parts = SmallVec::new();
        for part in message.parts {
            let length_bytes = part.tensor.len_bytes() as u64;
            parts.push(if part.mode == Mode::Copy {
                Counters::add(&self.counters.bytes_copied, length_bytes);
                self.capture(&part.tensor)?
            } else {
                Counters::add(&self.counters.bytes_lent, length_bytes);
                part.tensor
            });
        }
        sending.sequence += 1;
        // The consumer is at the other node, which knows this link by another number; its poll fills that in.
        let (envelope, control) = (message.envelope, message.control);
        let message = Message { envelope, source: LinkId::default(), sequence: sending.sequence, control, parts };
        queue.push(message);
        if self.outbound.consumer_armed.swap(false, SeqCst) {
            Counters::add(&self.counters.doorbells_rung, 1);
            self.outbound.consumer_bell.ring();
        }
        Ok(())
    }

    fn capture(&self, tensor: &Tensor) -> Result<Tensor> {
        let copy = entry::place(&self.arena, &spec_of(tensor))?;
        // SAFETY: the copy is fresh memory of the same length, and the caller's handle holds the source.
        unsafe { sheave_tensor::hand_over(copy.ptr(), tensor.ptr(), tensor.len_bytes()) };
        Ok(copy)
    }

    /// Moves what waits into the queue. Senders hear of it with no lock held.
    fn flush(&self) -> bool {
        let mut finished: SmallVec<[_; 8]> = SmallVec::new();
        {
            let mut sending = self.outbox.lock();
            let Pipe { urgent, data, .. } = &*self.outbound;
            while urgent.has_room() {
                let Some(waiting) = sending.outbox.pop_urgent() else { break };
                finished.push((waiting.done, self.put(&mut sending, waiting.message, urgent)));
            }
            while sending.outbox.has_none_urgent() && data.has_room() {
                let Some(waiting) = sending.outbox.pop() else { break };
                finished.push((waiting.done, self.put(&mut sending, waiting.message, data)));
            }
        }
        let moved = !finished.is_empty();
        for (done, outcome) in finished {
            done.complete(outcome);
        }
        moved
    }

    /// Takes the next message. False if it, or an urgent one, finds no room.
    fn take(&self, sink: &dyn Sink) -> Result<Option<bool>> {
        // Data first: what it must not overtake has been put into the other queue before it.
        let has_data = !self.inbound.data.is_empty();
        if !self.inbound.urgent.is_empty() {
            let taken = self.take_from(&self.inbound.urgent, true, sink)?;
            self.is_urgent_paused.store(taken == Some(false), SeqCst);
            return Ok(taken);
        }
        if has_data { self.take_from(&self.inbound.data, false, sink) } else { Ok(None) }
    }

    fn take_from(&self, queue: &Queue, is_urgent: bool, sink: &dyn Sink) -> Result<Option<bool>> {
        let verdict = {
            let messages = queue.messages.lock();
            let Some(message) = messages.front() else { return Ok(None) };
            // Whatever they are, they are here already, as blocks are.
            let placement = Placement::Block { segment: 0, offset: 0, loan: 0 };
            let part = |part: &Tensor| Part { spec: spec_of(part), placement, shared: false };
            let parts: Parts = message.parts.iter().map(part).collect();
            let (envelope, sequence) = (message.envelope, message.sequence);
            let payload_bytes = message.parts.iter().map(|part| part.len_bytes() as u64).sum();
            let control_bytes = message.control.len();
            drop(messages);
            let ending = self.inbound.reason().is_some();
            let parts = &parts;
            let arrival = Arrival { envelope, sequence, parts, payload_bytes, control_bytes, is_urgent, ending };
            sink.begin(self.id, &arrival)?
        };
        let mut landing = match verdict {
            Verdict::Pause => return Ok(Some(false)),
            Verdict::Land(landing) => landing,
        };
        let message = queue.pop();
        if self.inbound.producer_armed.swap(false, SeqCst) {
            Counters::add(&self.counters.doorbells_rung, 1);
            self.inbound.producer_bell.ring();
        }
        let Some(mut message) = message else { return Ok(None) };
        message.source = self.id;
        for (place, part) in landing.take_places().into_iter().zip(&mut message.parts) {
            Counters::add(&self.counters.bytes_copied, part.len_bytes() as u64);
            // SAFETY: the sink checked that the lengths agree and holds the place's write lease.
            unsafe { sheave_tensor::copy_bytes(place.ptr(), part.ptr(), part.len_bytes()) };
            *part = place;
        }
        sink.deliver(landing, message);
        Ok(Some(true))
    }

    fn end(&self, reason: &Error) {
        // Our own reason first: the peer answers the end of its inbound pipe by ending ours.
        self.inbound.ended.lock().get_or_insert_with(|| reason.clone());
        self.inbound.ended_flag.store(true, SeqCst);
        let waiting = {
            let mut sending = self.outbox.lock();
            self.outbound.end(&lost(self.outbound.reason().as_ref().unwrap_or(reason)));
            sending.outbox.drain()
        };
        for waiting in waiting {
            waiting.done.complete(Err(reason.clone()));
        }
    }
}

/// What the other end makes of our reason.
fn lost(reason: &Error) -> Error {
    match reason.kind() {
        ErrorKind::Closed => Error::new(ErrorKind::PeerLost, "the peer closed the link"),
        _ => reason.clone(),
    }
}

impl Link for InprocLink {
    fn medium(&self) -> Medium {
        Medium::InProcess
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn send(&self, message: Outgoing, hold: Hold) -> Result<Handover> {
        message.check_limits()?;
        let mut sending = self.outbox.lock();
        // Under the lock under which the link ends, so that no message is taken after the end.
        if let Some(reason) = self.outbound.reason() {
            return Err(reason.peer(self.peer.clone()));
        }
        let is_urgent = self.driver.is_urgent(&message);
        let queue = if is_urgent { &self.outbound.urgent } else { &self.outbound.data };
        let is_next = if is_urgent { sending.outbox.has_none_urgent() } else { sending.outbox.is_empty() };
        if is_next && queue.has_room() {
            self.put(&mut sending, message, queue)?;
            return Ok(Handover::Sent);
        }
        Ok(Handover::Queued(
            sending.outbox.push(message, hold, &self.driver).map_err(|error| error.peer(self.peer.clone()))?,
        ))
    }

    fn capture(&self) -> Result<()> {
        self.outbox.lock().outbox.capture_all(&self.driver)
    }

    fn poll(&self, sink: &dyn Sink, budget: usize) -> Polled {
        let Some(_token) = self.token.try_lock() else { return Polled::Busy };
        let mut moved = self.flush();
        for _ in 0..budget {
            match self.take(sink) {
                Ok(Some(true)) => moved = true,
                Ok(Some(false)) if moved => break,
                Ok(Some(false)) => return Polled::Paused,
                Ok(None) => break,
                Err(reason) => return Polled::Ended(reason),
            }
        }
        if moved {
            return Polled::Moved;
        }
        match self.inbound.reason() {
            Some(reason) if self.inbound.is_empty() => {
                let reason = reason.peer(self.peer.clone());
                self.end(&reason);
                Polled::Ended(reason)
            }
            _ => Polled::Idle,
        }
    }

    fn arm(&self) -> bool {
        let is_quiet = self.arm_urgent();
        is_quiet && self.inbound.is_empty() && !self.inbound.ended_flag.load(SeqCst)
    }

    fn arm_urgent(&self) -> bool {
        self.inbound.consumer_armed.store(true, SeqCst);
        let (waits, waits_urgent) = {
            let sending = self.outbox.lock();
            let waits = !sending.outbox.is_empty();
            // With the lock held: who says so later than others have looked would say what is so no more.
            self.outbound.producer_armed.store(waits, SeqCst);
            (waits, !sending.outbox.has_none_urgent())
        };
        let queue = if waits_urgent { &self.outbound.urgent } else { &self.outbound.data };
        // One that waits for its receiver is no news.
        let is_quiet = self.inbound.urgent.is_empty() || self.is_urgent_paused.load(SeqCst);
        is_quiet && !(waits && queue.has_room())
    }

    fn disarm(&self) {
        self.inbound.consumer_armed.store(false, SeqCst);
    }

    fn readiness(&self) -> Option<Readiness<'_>> {
        None
    }

    fn is_neighbourly(&self) -> bool {
        true
    }

    fn introduce(&self, segment: &Arc<Segment>) -> Result<bool> {
        if let Some(reason) = self.outbound.reason() {
            return Err(reason.peer(self.peer.clone()));
        }
        let mut shown = self.outbound.shown.lock();
        if !shown.contains_key(&segment.id().0) {
            shown.retain(|_, segment| segment.strong_count() > 0);
            shown.insert(segment.id().0, Arc::downgrade(segment));
        }
        Ok(true)
    }

    fn shown(&self, id: SegmentId) -> Option<Arc<Segment>> {
        self.inbound.shown.lock().get(&id.0)?.upgrade()
    }

    fn ring(&self) {
        Counters::add(&self.counters.doorbells_rung, 1);
        self.outbound.consumer_bell.ring();
    }

    fn beat(&self) -> Option<Duration> {
        // Both ends live and die in one process.
        Some(Duration::ZERO)
    }

    fn close(&self, reason: &Error) {
        self.end(reason);
    }

    fn give_up(&self, reason: &Error) {
        self.end(reason);
    }

    fn unsent(&self) -> usize {
        self.outbox.lock().outbox.len()
    }

    fn abandon(&self, reason: &Error) {
        self.end(reason);
    }
}
