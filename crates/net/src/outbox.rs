//! Messages that wait for room on a link, each with the work of its sender: urgent ones, and behind them the others,
//! both in order.

use crate::counters::Counters;
use crate::entry;
use crate::link::Hold;
use crate::message::{Outgoing, Part, spec_of};
use crate::node::Inner;
use sheave_base::limits::{OUTBOUND_BYTES_MAX, OUTBOUND_MESSAGES_MAX, OUTBOUND_URGENT_BYTES_MAX};
use sheave_base::work::{Completer, Drive, driven};
use sheave_base::{Error, ErrorKind, LinkId, Result, Work};
use sheave_tensor::{Arena, Mode, Tensor};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// A message that waits.
pub(crate) struct Waiting {
    pub(crate) message: Outgoing,
    pub(crate) done: Completer<()>,
    /// What may be held of the caller's memory.
    pub(crate) hold: Hold,
    /// Bytes that the queue keeps for it: not those that it borrows or shares, which are its caller's.
    bytes: u64,
}

/// Bytes that are kept for a message while it waits.
fn kept_bytes(message: &Outgoing) -> u64 {
    let is_kept = |part: &&Part| part.mode == Mode::Move || part.mode == Mode::Copy && part.lease.is_none();
    let tensors = message.parts.iter().filter(is_kept).map(|part| part.tensor.len_bytes() as u64);
    tensors.sum::<u64>() + message.control.len() as u64
}

/// What the queues of a link know about their node: its works' driver, and where captured tensors lie.
pub(crate) struct SendDriver {
    node: Weak<dyn Drive>,
    link: LinkId,
    arena: Arena,
    counters: Arc<Counters>,
    /// Endpoints whose owners bound what they send, as bits.
    bounded: Arc<AtomicU32>,
    /// Endpoints whose messages are urgent, as bits.
    urgent: Arc<AtomicU32>,
}

impl SendDriver {
    pub(crate) fn new(node: &Inner, link: LinkId) -> Self {
        let (arena, counters) = (node.arena.clone(), Arc::clone(&node.counters));
        let (bounded, urgent) = (Arc::clone(node.endpoints.bounded()), Arc::clone(node.endpoints.urgent()));
        Self { node: node.weak.clone(), link, arena, counters, bounded, urgent }
    }

    /// Whether this message overtakes others. Of what has tensors, or is for a receive, that is known without a look at
    /// the endpoints.
    #[inline]
    pub(crate) fn is_urgent(&self, message: &Outgoing) -> bool {
        let endpoint = message.envelope.endpoint;
        endpoint != 0 && message.parts.is_empty() && is_set(&self.urgent, endpoint)
    }

    /// Whether the owner of this endpoint bounds what it sends.
    fn is_bounded(&self, endpoint: u8) -> bool {
        is_set(&self.bounded, endpoint)
    }

    /// A copy of a tensor that is the queue's own, in the arena while that has room.
    pub(crate) fn capture(&self, tensor: &Tensor) -> Result<Tensor> {
        let copy = entry::place(&self.arena, &spec_of(tensor))?;
        // SAFETY: the copy is fresh memory of the same length; the source is held by the caller's handle, and writers
        // that share it do so at the caller's explicit risk.
        unsafe { sheave_tensor::copy_bytes(copy.ptr(), tensor.ptr(), tensor.len_bytes()) };
        Counters::add(&self.counters.bytes_copied, tensor.len_bytes() as u64);
        Ok(copy)
    }

    /// Captures the tensors that are sent by copy and are still the caller's. The captured ones are the queue's to give
    /// away, so that they need not be copied again.
    pub(crate) fn capture_copied(&self, parts: &mut [Part]) -> Result<()> {
        for part in parts.iter_mut().filter(|part| part.mode == Mode::Copy && part.lease.is_some()) {
            *part = Part::new(self.capture(&part.tensor)?, Mode::Move);
        }
        Ok(())
    }

    /// The work of one message and its completer.
    pub(crate) fn work(&self) -> (Completer<()>, Work<()>) {
        let node = self.node.upgrade().map(|node| node as Arc<dyn Drive>);
        driven("send", node, Some(self.link))
    }
}

fn is_set(bits: &AtomicU32, number: u8) -> bool {
    bits.load(Relaxed).checked_shr(number.into()).unwrap_or(0) & 1 != 0
}

/// A queue of messages, and how many bytes it keeps for them.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: u64,
}

impl Queue {
    fn push(&mut self, waiting: Waiting) {
        self.bytes += waiting.bytes;
        self.waiting.push_back(waiting);
    }

    fn pop(&mut self) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.bytes -= waiting.bytes;
        Some(waiting)
    }

    /// Refuses one more message where there are as many as this, or it has more bytes than there is room for. A single
    /// larger one is let in.
    fn check_room(&self, bytes: u64, messages_max: usize, bytes_max: u64) -> Result<()> {
        let what = if self.waiting.len() >= messages_max {
            format!("{messages_max} messages")
        } else if !self.waiting.is_empty() && self.bytes.saturating_add(bytes) > bytes_max {
            format!("{} bytes of at most {bytes_max}", self.bytes)
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::LimitExceeded, format!("{what} wait already for a peer that takes none"))
            .hint("wait for earlier sends before making new ones"))
    }
}

/// Two bounded queues of messages. Callers serialise access.
#[derive(Default)]
pub(crate) struct Outbox {
    urgent: Queue,
    others: Queue,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.others.waiting.is_empty() && self.has_none_urgent()
    }

    /// Whether no urgent message waits.
    pub(crate) fn has_none_urgent(&self) -> bool {
        self.urgent.waiting.is_empty()
    }

    /// Counts the messages that wait.
    pub(crate) fn len(&self) -> usize {
        self.others.waiting.len() + self.urgent.waiting.len()
    }

    /// Queues `message`. With [`Hold::Capture`] its copied tensors are captured first.
    pub(crate) fn push(&mut self, mut message: Outgoing, hold: Hold, driver: &SendDriver) -> Result<Work<()>> {
        let (queue, bytes_max) = if driver.is_urgent(&message) {
            (&mut self.urgent, OUTBOUND_URGENT_BYTES_MAX)
        } else {
            (&mut self.others, OUTBOUND_BYTES_MAX)
        };
        // Whoever answers has bounded what it was asked before; its answer must not fail because others wait.
        let more = if driver.is_bounded(message.envelope.endpoint) { 2 } else { 1 };
        let bytes = match hold {
            Hold::Capture => message.payload_bytes() + message.control.len() as u64,
            Hold::Borrow => kept_bytes(&message),
        };
        queue.check_room(bytes, more * OUTBOUND_MESSAGES_MAX, more as u64 * bytes_max)?;
        if hold == Hold::Capture {
            driver.capture_copied(&mut message.parts)?;
        }
        let (done, work) = driver.work();
        queue.push(Waiting { bytes: kept_bytes(&message), message, done, hold });
        Ok(work)
    }

    /// Captures everything that waits to be copied: a caller has given up waiting for it.
    pub(crate) fn capture_all(&mut self, driver: &SendDriver) -> Result<()> {
        let Queue { waiting, bytes } = &mut self.others;
        waiting.iter_mut().try_for_each(|waiting| {
            driver.capture_copied(&mut waiting.message.parts)?;
            *bytes -= std::mem::replace(&mut waiting.bytes, kept_bytes(&waiting.message));
            *bytes += waiting.bytes;
            Ok(())
        })
    }

    /// The oldest message that is not urgent.
    pub(crate) fn front(&self) -> Option<&Waiting> {
        self.others.waiting.front()
    }

    /// Puts back what [`Outbox::pop`] gave.
    pub(crate) fn unpop(&mut self, waiting: Waiting) {
        self.others.bytes += waiting.bytes;
        self.others.waiting.push_front(waiting);
    }

    /// Takes the oldest message that is not urgent.
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        self.others.pop()
    }

    /// Takes the oldest urgent message.
    pub(crate) fn pop_urgent(&mut self) -> Option<Waiting> {
        self.urgent.pop()
    }

    /// Everything that still waits, for a link that ends. The caller completes it with no lock held.
    pub(crate) fn drain(&mut self) -> VecDeque<Waiting> {
        let mut all = std::mem::take(&mut self.urgent).waiting;
        all.append(&mut std::mem::take(&mut self.others).waiting);
        all
    }
}
