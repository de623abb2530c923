//! Messages that wait for room on a link, each with the work of its sender: urgent ones, and behind them the others,
//! both in order.

use crate::counters::Counters;
use crate::entry;
use crate::link::Hold;
use crate::message::{Outgoing, Part, spec_of};
use crate::node::Inner;
use sheave_base::limits::OUTBOUND_MESSAGES_MAX;
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

/// Two bounded queues of messages. Callers serialise access.
#[derive(Default)]
pub(crate) struct Outbox {
    urgent: VecDeque<Waiting>,
    /// The others.
    waiting: VecDeque<Waiting>,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.urgent.is_empty()
    }

    /// Whether no urgent message waits.
    pub(crate) fn has_none_urgent(&self) -> bool {
        self.urgent.is_empty()
    }

    /// Counts the messages that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.urgent.len()
    }

    /// Queues `message`. With [`Hold::Capture`] its copied tensors are captured first.
    pub(crate) fn push(&mut self, mut message: Outgoing, hold: Hold, driver: &SendDriver) -> Result<Work<()>> {
        let is_urgent = driver.is_urgent(&message);
        let queue = if is_urgent { &mut self.urgent } else { &mut self.waiting };
        // Whoever answers has bounded what it was asked before; its answer must not fail because others wait.
        let limit = if driver.is_bounded(message.envelope.endpoint) {
            2 * OUTBOUND_MESSAGES_MAX
        } else {
            OUTBOUND_MESSAGES_MAX
        };
        if queue.len() >= limit {
            return Err(Error::new(
                ErrorKind::LimitExceeded,
                format!("{limit} messages wait already for a peer that takes none"),
            )
            .hint("wait for earlier sends before making new ones"));
        }
        if hold == Hold::Capture {
            driver.capture_copied(&mut message.parts)?;
        }
        let (done, work) = driver.work();
        queue.push_back(Waiting { message, done, hold });
        Ok(work)
    }

    /// Captures everything that waits to be copied: a caller has given up waiting for it.
    pub(crate) fn capture_all(&mut self, driver: &SendDriver) -> Result<()> {
        self.waiting.iter_mut().try_for_each(|waiting| driver.capture_copied(&mut waiting.message.parts))
    }

    /// The oldest message that is not urgent.
    pub(crate) fn front(&self) -> Option<&Waiting> {
        self.waiting.front()
    }

    /// Puts back what [`Outbox::pop`] gave.
    pub(crate) fn unpop(&mut self, waiting: Waiting) {
        self.waiting.push_front(waiting);
    }

    /// Takes the oldest message that is not urgent.
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        self.waiting.pop_front()
    }

    /// Takes the oldest urgent message.
    pub(crate) fn pop_urgent(&mut self) -> Option<Waiting> {
        self.urgent.pop_front()
    }

    /// Everything that still waits, for a link that ends. The caller completes it with no lock held.
    pub(crate) fn drain(&mut self) -> VecDeque<Waiting> {
        let mut all = std::mem::take(&mut self.urgent);
        all.append(&mut self.waiting);
        all
    }
}
