//! The floors above, as a node sees them.
//!
//! Calls, their answers and the words of mesh engines are not received by anybody who waits; they are handed to one
//! observer, and the words of an exchange to another. Taking one happens under the poll token of its link, in the order
//! of that link, so it only stores; what is to be done about it is done in [`Observer::attend`], on the same thread,
//! right after the poll, with no lock of the node held. So a request is answered by the thread that found it, without a
//! hand-over.

use crate::link::{Arrival, Ground};
use crate::message::Message;
use crate::node::{Inner, Node};
use parking_lot::RwLock;
use sheave_base::{Error, LinkId, Peer, contain};
use sheave_wire::Kind;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};

/// What is told of a node's links and takes messages of some kinds.
pub trait Observer: Send + Sync {
    /// Says where a message goes, before its tensors move. Must not block.
    fn admit(&self, link: LinkId, arrival: &Arrival<'_>) -> Admission;

    /// Takes a message. The link's poll token is held: it is only put aside for `attend`.
    fn take(&self, message: Message);

    /// A link stands, whichever side made it. It is only noted for `attend`.
    fn link_made(&self, _link: LinkId, _peer: &Peer) {}

    /// A link has ended. It is only noted for `attend`.
    fn link_ended(&self, link: LinkId, peer: &Peer, reason: &Error);

    /// This node has lacked descriptors or memory for so long that others who want to link to it cannot. It is only
    /// noted for `attend`.
    fn fell_short(&self, _reason: &Error) {}

    /// Does something about what was taken and noted. Must not block; may be called from any thread that polls, from
    /// several at once, and from within itself.
    fn attend(&self);
}

/// What becomes of a message that begins to arrive.
#[derive(Debug)]
pub enum Admission {
    /// It comes in; its tensors land on this ground, or, without any, in the node's arena.
    Land(Ground),
    /// It stays on its link, and all that follows it too, until [`Node::resume`].
    Pause,
}

/// An observer of a node, and whether there is something for it to do.
pub(crate) struct Observed {
    /// The kinds of messages that are for it.
    takes: fn(Kind) -> bool,
    observer: RwLock<Option<Weak<dyn Observer>>>,
    due: AtomicBool,
    /// An observer will be named; what is for it stays on the links until then.
    expected: AtomicBool,
}

impl Observed {
    /// For calls, their answers and the words of mesh engines.
    pub(crate) fn calls() -> Self {
        Self::of(|kind| matches!(kind, Kind::Request | Kind::Response | Kind::Control))
    }

    /// For the words of an exchange.
    pub(crate) fn exchange() -> Self {
        Self::of(|kind| kind == Kind::Exchange)
    }

    fn of(takes: fn(Kind) -> bool) -> Self {
        Self { takes, observer: RwLock::new(None), due: AtomicBool::new(false), expected: AtomicBool::new(false) }
    }

    fn get(&self) -> Option<Arc<dyn Observer>> {
        self.observer.read().as_ref().and_then(Weak::upgrade)
    }

    fn set(&self, observer: &Arc<dyn Observer>) -> bool {
        let mut current = self.observer.write();
        let is_free = current.as_ref().and_then(Weak::upgrade).is_none();
        if is_free {
            *current = Some(Arc::downgrade(observer));
        }
        is_free
    }

    fn unset(&self, observer: &Arc<dyn Observer>) {
        let mut current = self.observer.write();
        if current.as_ref().is_some_and(|current| std::ptr::addr_eq(current.as_ptr(), Arc::as_ptr(observer))) {
            *current = None;
        }
    }

    /// Whether messages of this kind are for this observer, named or not.
    pub(crate) fn is_for(&self, kind: Kind) -> bool {
        (self.takes)(kind)
    }

    /// The observer, if messages of this kind are for it.
    pub(crate) fn of_kind(&self, kind: Kind) -> Option<Arc<dyn Observer>> {
        if self.is_for(kind) { self.get() } else { None }
    }

    /// Whether messages of this kind are for an observer that is not named yet.
    pub(crate) fn is_awaited_by(&self, kind: Kind) -> bool {
        self.expected.load(SeqCst) && self.is_for(kind) && self.get().is_none()
    }

    pub(crate) fn take(&self, observer: &dyn Observer, message: Message) {
        observer.take(message);
        self.due.store(true, SeqCst);
    }

    /// Tells the observer, if there is one.
    pub(crate) fn tell(&self, what: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = self.get() {
            what(&*observer);
            self.due.store(true, SeqCst);
        }
    }

    /// Lets the observer do what is due. No lock may be held.
    pub(crate) fn attend(&self) {
        while self.due.load(SeqCst) && self.due.swap(false, SeqCst) {
            if let Some(observer) = self.get() {
                // It may run on a thread that waits for something else.
                contain::told("what observes the node", || observer.attend());
            }
        }
    }
}

impl Node {
    /// Says that an observer will be named. Until then what is for it stays on the links, so that a node may listen
    /// before its observer is ready.
    pub fn expect_observer(&self) {
        self.inner.observed.expected.store(true, SeqCst);
    }

    /// Names the one observer of this node's calls. Links that stand already are told to it. False if there is one
    /// already.
    pub fn observe(&self, observer: &Arc<dyn Observer>) -> bool {
        let observed = &self.inner.observed;
        if !observed.set(observer) {
            return false;
        }
        for entry in self.inner.links.all().iter() {
            observed.tell(|observer| observer.link_made(entry.id, entry.link.peer()));
        }
        self.inner.resume_paused();
        observed.attend();
        true
    }

    /// Names who takes the words of exchanges, until it is dropped. It is told of no links that are made. False if
    /// there is one already. While there is none, such words are thrown away as they come.
    pub fn observe_exchange(&self, observer: &Arc<dyn Observer>) -> bool {
        self.inner.exchange.set(observer)
    }

    /// This one takes the words of exchanges no more.
    pub fn observe_no_exchange(&self, observer: &Arc<dyn Observer>) {
        self.inner.exchange.unset(observer);
    }

    /// Has [`Observer::attend`] called soon, by whoever polls next.
    pub fn remind_observer(&self) {
        self.inner.observed.due.store(true, SeqCst);
    }

    /// There is room again for what [`Observer::admit`] has refused.
    pub fn resume(&self) {
        self.inner.resume_paused();
    }
}

impl Inner {
    /// Lets all observers do what is due. No lock may be held.
    pub(crate) fn attend(&self) {
        if self.announced.take_room() {
            self.resume_paused();
        }
        self.observed.attend();
        self.exchange.attend();
    }

    /// A link stands: whoever observes the node learns of it.
    pub(crate) fn tell_link_made(&self, link: LinkId, peer: &Peer) {
        self.observed.tell(|observer| observer.link_made(link, peer));
        self.observed.attend();
    }
}
