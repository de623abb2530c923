//! Endpoints: the services above, as a node sees them.
//!
//! The header of a message carries the number of an endpoint. Number 0 stands for the receives of the node, which are
//! matched by source, context and tag; everything else is handed to whoever is registered under its number. A node has
//! [`ENDPOINTS_MAX`] of them and knows no service by name: owners declare their numbers, and the table of all stands in
//! `docs/design`. One endpoint may have several numbers; it is told of links once.
//!
//! **Taking only stores.** Messages are taken under the poll token of their link, in the order of that link; what is to
//! be done about them is done in [`Endpoint::attend`], on the same thread, right after the poll, with no lock of the
//! node held. So a request is answered by the thread that found it, without a hand-over.
//!
//! **No lock on the way.** A slot is read through an [`ArcSwapOption`], which never waits, and holds its endpoint
//! weakly: an endpoint keeps its node, and never the other way round. What is due is a set of bits; of what a poll has
//! brought the poller knows by itself ([`crate::intake`]).
//!
//! **Order of telling.** An endpoint is told of a link before anybody can poll that link, so that no message comes from
//! a link that its endpoint has not heard of. A new link is told of between its entry into the table of links, from
//! where on it can be sent on, and the moment when it is marked as [told](crate::entry::Entry::is_told): unmarked, it
//! is in no list that is polled, nor does a wait for this link alone poll it. An endpoint that registers late is told
//! of all links before its slot is filled; until then its messages are thrown away, or stay on their links if it is
//! [expected](Node::expect). `telling` is held over both, so that each link is told once to each endpoint. A link
//! leaves the table under the same lock: it is either not told of any more, or its end is told to the slot that was
//! filled.
//!
//! **Urgent messages** go their own way on every link, so that news of a
//! death, say, waits for no data. An owner says which of its numbers they have ([`Endpoint::is_urgent`]).
//!
//! **Waiting for memory.** A service that works directly on its neighbours' memory waits for words that they write, for
//! which no link rings by itself. Its endpoint [is polled](Endpoint::is_polled): the node's waiting treats it like one
//! more link, which is polled while threads wait, and armed before one sleeps ([`crate::progress`]). Whoever changes a
//! word looks whether the other side is armed, and rings.

use crate::drive::{Polls, SERVED_TURNS};
use crate::link::{Arrival, Ground};
use crate::message::Message;
use crate::node::{Inner, Node};
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use sheave_base::limits::ENDPOINTS_MAX;
use sheave_base::{Error, LinkId, Peer, contain};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};

/// Takes the messages of some numbers, is told of a node's links, and does things on the threads that poll them.
pub trait Endpoint: Send + Sync {
    /// Says where a message goes, before its tensors move. Must not block.
    fn admit(&self, _link: LinkId, _arrival: &Arrival<'_>) -> Admission {
        Admission::Land(Ground::default())
    }

    /// Takes a message. The link's poll token is held: it is only put aside for `attend`.
    fn take(&self, _message: Message) {}

    /// As [`Endpoint::take`], which it calls unless the endpoint has a use for `peer`: who is at the other end of the
    /// link.
    fn take_from(&self, message: Message, _peer: &Peer) {
        self.take(message);
    }

    /// Hears that a link stands, whichever side made it. It can be sent on, and nobody has polled it yet. It is only
    /// noted for `attend`.
    fn link_made(&self, _link: LinkId, _peer: &Peer) {}

    /// Hears that a link has ended. It is only noted for `attend`.
    fn link_ended(&self, _link: LinkId, _peer: &Peer, _reason: &Error) {}

    /// Hears that this node has lacked descriptors or memory for so long that others who want to link to it cannot. It
    /// is only noted for `attend`.
    fn fell_short(&self, _reason: &Error) {}

    /// Does something about what was taken and noted. Must not block; may be called from any thread that polls, from
    /// several at once, and from within itself.
    fn attend(&self) {}

    /// Whether `poll`, `arm` and `disarm` are to be called. Asked once, when it is registered; one endpoint of a node
    /// can be polled. All three are called from any thread that waits, from several at once, with no lock held, and
    /// never block.
    fn is_polled(&self) -> bool {
        false
    }

    /// Looks at what is waited for beside the links, and does what can be done. True when something moved.
    fn poll(&self) -> bool {
        false
    }

    /// Asks those who change things to ring this node, and looks once more. False when something moved.
    fn arm(&self) -> bool {
        true
    }

    /// Takes the request back, as far as that saves others a system call.
    fn disarm(&self) {}

    /// Whether its owner bounds what it sends under this number: answers to what was let in, say. Asked once, when it
    /// is registered. Such messages find room in the queue of a link that is full for others.
    fn bounds_its_messages(&self, _number: u8) -> bool {
        false
    }

    /// Whether messages without tensors that are sent under this number are urgent: they overtake those of other
    /// numbers that were sent before them, the rest of one that is half on its way among these, and come through where
    /// the receiver has no room for others. Nothing that is sent after them overtakes them, and among each other they
    /// keep their order. Asked once, when it is registered. Their owner bounds how many there are.
    fn is_urgent(&self, _number: u8) -> bool {
        false
    }
}

/// The decision on a message that begins to arrive.
#[derive(Debug)]
pub enum Admission {
    /// It comes in; its tensors land on this ground, or, without any, in the node's arena.
    Land(Ground),
    /// It stays on its link, and all that follows it too but urgent messages, until [`Node::resume`]. Behind an urgent
    /// one everything stays.
    Pause,
}

/// An endpoint under one of its numbers.
struct Registered {
    endpoint: Weak<dyn Endpoint>,
    /// The first of its numbers, as a bit: what is due, is due there.
    home: u32,
}

/// The slot of an endpoint.
#[derive(Default)]
struct Slot {
    current: ArcSwapOption<Registered>,
}

impl Slot {
    fn get(&self) -> Option<(Arc<dyn Endpoint>, u32)> {
        let current = self.current.load();
        let current = current.as_ref()?;
        Some((current.endpoint.upgrade()?, current.home))
    }

    /// Whether it is this endpoint's.
    fn is_of(&self, endpoint: &Arc<dyn Endpoint>) -> bool {
        let current = self.current.load();
        current.as_ref().is_some_and(|current| std::ptr::addr_eq(current.endpoint.as_ptr(), Arc::as_ptr(endpoint)))
    }
}

/// The endpoints of a node, the threads that poll one of them right now, and what is due.
#[derive(Default)]
pub(crate) struct Endpoints {
    slots: [Slot; ENDPOINTS_MAX],
    /// Endpoints that are to attend, as bits. Set after something was stored for them.
    due: AtomicU32,
    /// Numbers whose messages stay on their links while nobody is registered, as bits.
    expected: AtomicU32,
    /// Numbers whose owners bound what they send, as bits. The queues of the links look at it.
    bounded: Arc<AtomicU32>,
    /// Numbers whose messages are urgent, as bits. The links look at it.
    urgent: Arc<AtomicU32>,
    polled: OnceLock<Weak<dyn Endpoint>>,
    pollers: AtomicU32,
    /// Held while links and endpoints come to know each other.
    telling: Mutex<()>,
}

const _: () = assert!(ENDPOINTS_MAX <= u32::BITS as usize);

/// The bit that stands for a number. A number beyond the limit has none.
fn bit(number: u8) -> u32 {
    1_u32.checked_shl(number.into()).unwrap_or(0)
}

/// Notes whether a number is one of those that the bits stand for.
fn mark(bits: &AtomicU32, number: u8, is_one: bool) {
    if is_one {
        bits.fetch_or(bit(number), SeqCst);
    } else {
        bits.fetch_and(!bit(number), SeqCst);
    }
}

/// Who takes messages of a number under which nobody is registered.
pub(crate) enum Taker {
    /// One that is not registered yet.
    Expected,
    /// None, or none any more.
    Nobody,
}

impl Endpoints {
    /// Who is registered under this number, and the bit under which something is due there.
    pub(crate) fn find(&self, number: u8) -> Option<(Arc<dyn Endpoint>, u32)> {
        self.slots.get(usize::from(number)).and_then(Slot::get)
    }

    /// Who takes messages of this number, under which nobody was found.
    pub(crate) fn taker_of_none(&self, number: u8) -> Taker {
        if self.expected.load(SeqCst) & bit(number) != 0 { Taker::Expected } else { Taker::Nobody }
    }

    /// Something was stored for an endpoint whose home is this bit.
    pub(crate) fn note_due(&self, home: u32) {
        self.due.fetch_or(home, SeqCst);
    }

    /// Tells each endpoint once.
    pub(crate) fn tell(&self, what: impl Fn(&dyn Endpoint)) {
        for (number, slot) in self.slots.iter().enumerate() {
            if let Some((endpoint, home)) = slot.get()
                && home == 1 << number
            {
                what(&*endpoint);
                self.due.fetch_or(home, SeqCst);
            }
        }
    }

    /// Keeps links and endpoints from getting to know each other otherwise, while it is held. Nothing but notes is made
    /// meanwhile.
    pub(crate) fn begin_telling(&self) -> parking_lot::MutexGuard<'_, ()> {
        self.telling.lock()
    }

    /// Numbers whose owners bound what they send, as bits.
    pub(crate) fn bounded(&self) -> &Arc<AtomicU32> {
        &self.bounded
    }

    /// Numbers whose messages are urgent, as bits.
    pub(crate) fn urgent(&self) -> &Arc<AtomicU32> {
        &self.urgent
    }

    /// Lets the endpoints do what is due. No lock may be held.
    pub(crate) fn attend(&self) {
        loop {
            let due = self.due.load(SeqCst);
            if due == 0 {
                return;
            }
            // One at a time: what another one does, and attends to, may be for those that are still due.
            let number = due.trailing_zeros();
            let is_taken = self.due.fetch_and(!(1 << number), SeqCst) & (1 << number) != 0;
            let endpoint = self.slots.get(number as usize).filter(|_| is_taken).and_then(Slot::get);
            if let Some((endpoint, _)) = endpoint {
                // It may run on a thread that waits for something else.
                contain::told("an endpoint of the node", || endpoint.attend());
            }
        }
    }

    /// Fills a slot, unless it is taken; with the first of the endpoint's numbers, it is told of `links` before.
    fn register(&self, number: u8, endpoint: &Arc<dyn Endpoint>, tell: impl FnOnce(&dyn Endpoint)) -> bool {
        let Some(slot) = self.slots.get(usize::from(number)).filter(|_| number != 0) else { return false };
        let _telling = self.begin_telling();
        if slot.get().is_some() {
            return false;
        }
        let home = (1..).zip(&self.slots[1..]).find(|(_, slot)| slot.is_of(endpoint)).map(|(number, _)| bit(number));
        if home.is_none() && endpoint.is_polled() && self.polled.set(Arc::downgrade(endpoint)).is_err() {
            return false;
        }
        if home.is_none() {
            tell(&**endpoint);
        }
        let home = home.unwrap_or_else(|| bit(number));
        mark(&self.bounded, number, endpoint.bounds_its_messages(number));
        mark(&self.urgent, number, endpoint.is_urgent(number));
        slot.current.store(Some(Arc::new(Registered { endpoint: Arc::downgrade(endpoint), home })));
        self.due.fetch_or(home, SeqCst);
        true
    }

    fn unregister(&self, endpoint: &Arc<dyn Endpoint>) {
        let _telling = self.begin_telling();
        for (number, slot) in (0..).zip(&self.slots) {
            if slot.is_of(endpoint) {
                slot.current.store(None);
                mark(&self.bounded, number, false);
                mark(&self.urgent, number, false);
            }
        }
    }

    /// The endpoint that is polled.
    pub(crate) fn polled(&self) -> Option<Arc<dyn Endpoint>> {
        self.polled.get().and_then(Weak::upgrade)
    }

    /// A thread begins to poll the endpoint that is polled, until [`Endpoints::leave`].
    pub(crate) fn enter(&self, endpoint: &dyn Endpoint) {
        self.pollers.fetch_add(1, SeqCst);
        endpoint.disarm();
    }

    /// A thread polls it no more; [`Inner::settle_endpoint`] is to follow.
    pub(crate) fn leave(&self) {
        self.pollers.fetch_sub(1, SeqCst);
    }

    /// The endpoint that is polled, if no thread does so.
    pub(crate) fn unattended(&self) -> Option<Arc<dyn Endpoint>> {
        self.polled.get()?;
        if self.pollers.load(SeqCst) == 0 { self.polled() } else { None }
    }
}

impl Inner {
    /// Lets all endpoints do what is due. No lock may be held.
    pub(crate) fn attend(&self) {
        let _polls = Polls::begin(self);
        if self.announced.take_room() {
            self.resume_paused();
        }
        self.endpoints.attend();
    }

    /// Leaves to others what is due, for a thread that polls and is about to sleep instead of attending.
    pub(crate) fn leave_due(&self) {
        if self.endpoints.due.load(SeqCst) != 0 {
            self.progress.call();
        }
    }

    /// Polls the endpoint if nobody else does, or arms it for a leader that sleeps.
    pub(crate) fn endpoint_waits(&self) {
        if let Some(endpoint) = self.endpoints.unattended() {
            endpoint.poll();
            self.settle_endpoint(&*endpoint);
        }
    }

    /// Leaves the endpoint as a sleeping leader expects it: armed, with nothing to do.
    pub(crate) fn settle_endpoint(&self, endpoint: &dyn Endpoint) {
        if self.progress.is_led() && self.endpoints.pollers.load(SeqCst) == 0 {
            let is_settled = (0..SERVED_TURNS).any(|_| endpoint.arm() || !endpoint.poll());
            self.leave_busy(is_settled);
        }
    }
}

impl Node {
    /// Says that an endpoint will be registered under this number. While none is, its messages stay on the links, so
    /// that a node may listen before its services are ready.
    pub fn expect(&self, number: u8) {
        self.inner.endpoints.expected.fetch_or(bit(number), SeqCst);
    }

    /// Registers an endpoint until it is dropped or [unregistered](Node::unregister). It is told of the links that
    /// stand already, once, however many numbers it has. False if somebody has this number, if it is 0 or beyond
    /// [`ENDPOINTS_MAX`], or if the endpoint is to be polled and another one is.
    pub fn register(&self, number: u8, endpoint: &Arc<dyn Endpoint>) -> bool {
        let tell = |endpoint: &dyn Endpoint| {
            for entry in self.inner.links.all().iter() {
                endpoint.link_made(entry.id, entry.link.peer());
            }
        };
        if !self.inner.endpoints.register(number, endpoint, tell) {
            return false;
        }
        self.inner.resume_paused();
        self.inner.attend();
        true
    }

    /// Takes an endpoint away from all its numbers. What comes for them is thrown away until the next is registered, or
    /// stays on its link if one is [expected](Node::expect).
    pub fn unregister(&self, endpoint: &Arc<dyn Endpoint>) {
        self.inner.endpoints.unregister(endpoint);
    }

    /// Has [`Endpoint::attend`] of this number called soon, by whoever polls next.
    pub fn remind(&self, number: u8) {
        self.inner.endpoints.due.fetch_or(bit(number), SeqCst);
    }

    /// Says that there is room again for what [`Endpoint::admit`] has refused.
    pub fn resume(&self) {
        self.inner.resume_paused();
    }

    /// Says that the endpoint that is polled has something new to wait for, which nobody may have armed.
    pub fn endpoint_waits(&self) {
        self.inner.endpoint_waits();
    }

    /// Says that the endpoint that is polled has work to do, which no message tells of: a thread that sleeps is woken
    /// to poll it, unless one that polls does so. Costs nothing while nobody sleeps.
    pub fn endpoint_works(&self) {
        self.inner.progress.call();
    }
}
