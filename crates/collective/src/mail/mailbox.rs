//! Where announcements meet receives.
//!
//! **One listener.** Announcements are matched in the order in which they come, so at most one party takes them in at
//! a time: `is_listening` is true from the moment that somebody sets out to until everything it took was delivered.
//! That is a receive which looks whether its message comes at once, or the listener's task, which runs while receives
//! wait. Whoever ceases to listen hands over to a task if receives wait by then. When as many announcements wait for
//! receives as may, the others stay with their senders' links, and each further receive takes in one more.

use super::Awaiting;
use super::offer::Offer;
use crate::group::State;
use parking_lot::Mutex;
use sheave_base::work::{Completer, pair};
use sheave_base::{Error, ErrorKind, LinkId, Rank, Result, Work};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Announcements that wait for a receive.
const OFFERS_MAX: usize = 1024;

/// Receives in place of others that were over when they had asked for the bytes: one for the bytes, and one for the
/// news that they do not come. What comes for older ones stays with the node, within its limits for what nobody has
/// asked for.
const UNWANTED_MAX: usize = 64;

/// After so many receives in a row for which it was in vain, looking whether the message comes at once is tried now and
/// then only.
const VAIN_MAX: u32 = 4;

/// How often what was learned about looking is put to the test: every so many receives.
const TEST_PERIOD: u32 = 16;

/// Which announcements a receive takes.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub(super) from: Option<Rank>,
    pub(super) tag: u64,
}

impl Wish {
    pub(super) fn fits(&self, offer: &Offer) -> bool {
        offer.tag == self.tag && self.from.is_none_or(|from| from.0 == offer.rank)
    }
}

struct Waiter {
    wish: Wish,
    offer: Completer<()>,
    slot: Arc<Mutex<Slot>>,
}

/// Where an announcement lies that a receive gets.
enum Slot {
    Empty,
    Full(Box<Offer>),
    /// The receive has it, or is over.
    Closed,
}

/// The place of a receive in the queue. An announcement that comes when the receive is over is given back.
pub(super) struct Place {
    state: Weak<State>,
    ready: Work<()>,
    slot: Arc<Mutex<Slot>>,
}

impl Place {
    pub(super) async fn taken(&self) -> Result<Box<Offer>> {
        poll_fn(|context| self.ready.poll_done(context)).await;
        match std::mem::replace(&mut *self.slot.lock(), Slot::Closed) {
            Slot::Full(offer) => Ok(offer),
            Slot::Empty | Slot::Closed => Err(self.ready.taken().err().unwrap_or_else(Self::gone)),
        }
    }

    fn gone() -> Error {
        Error::new(ErrorKind::Internal, "an announcement was taken twice")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let slot = std::mem::replace(&mut *self.slot.lock(), Slot::Closed);
        if let (Slot::Full(offer), Some(state)) = (slot, self.state.upgrade()) {
            state.mail.give_back(offer);
        }
    }
}

pub(crate) struct Mail {
    /// What announcements are matched by.
    pub(super) context: u64,
    /// A time that has passed.
    pub(super) begun: Instant,
    inner: Mutex<Inner>,
    serial: AtomicU64,
    /// Receives of bytes that nobody wants any more.
    unwanted: Mutex<VecDeque<Awaiting>>,
    /// Of each member to which sends wait for a link or for each other: when the last of them is given to the link.
    lanes: Mutex<BTreeMap<u32, Work<()>>>,
}

/// The place of a send among those to one member that wait for its link, so that none overtakes another.
pub(super) struct Turn {
    /// Ends when all before it are given to the link.
    before: Work<()>,
    /// Ends the wait of the next. Taken when this one is given to the link.
    given: Option<Completer<()>>,
}

impl Turn {
    /// Waits for all before it. How they ended is their own affair.
    pub(super) async fn comes(&self) {
        poll_fn(|context| self.before.poll_done(context)).await;
    }

    /// It is given to the link.
    pub(super) fn give(mut self) {
        self.given.take().into_iter().for_each(|given| given.complete(Ok(())));
    }
}

impl Drop for Turn {
    /// Of a send that is given up: those after it wait for those before it, as it did.
    fn drop(&mut self) {
        if let Some(given) = self.given.take() {
            self.before.on_complete(move |_| given.complete(Ok(())));
        }
    }
}

#[derive(Default)]
struct Inner {
    offers: VecDeque<Box<Offer>>,
    waiters: VecDeque<Waiter>,
    is_listening: bool,
    /// The link over which a member's last announcement came.
    links: BTreeMap<u32, LinkId>,
    /// Receives in a row that looked in vain whether their message comes at once.
    vain: u32,
    /// The last message that came at once did so only after the core was given away: its sender may need this very one.
    gives_way: bool,
    /// Receives that found nothing here and could look.
    looks: u32,
}

/// How a receive looks whether its message comes at once.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) link: LinkId,
    /// It gives the core away first.
    pub(super) gives_way: bool,
}

/// What a receive does next.
pub(super) enum Next {
    /// It goes on with what it found, and starts the listener if that is true.
    Takes(Found, bool),
    /// It listens now and looks; [`Mail::cease`] must follow.
    Looks(Look),
}

/// A place in the queue, which [`Waiting::of`] makes one of a group's.
pub(super) struct Waiting(Work<()>, Arc<Mutex<Slot>>);

impl Waiting {
    pub(super) fn of(self, state: &Arc<State>) -> Place {
        Place { state: Arc::downgrade(state), ready: self.0, slot: self.1 }
    }
}

/// What a receive finds.
pub(super) enum Found {
    /// The oldest announcement that fits.
    Offer(Box<Offer>),
    /// Nothing yet; it waits.
    Coming(Waiting),
}

/// An announcement and the receive that gets it.
type Met = Option<(Waiter, Box<Offer>)>;

/// What becomes of what came.
pub(super) struct Delivered {
    /// Whether whoever listens is to go on.
    pub(super) goes_on: bool,
    /// Who must be told that its message of this serial number is withdrawn.
    pub(super) confirms: Option<(u32, u64)>,
}

impl Inner {
    fn take_in(&mut self, offer: Box<Offer>) -> (Met, Option<(u32, u64)>) {
        if !offer.is_withdrawn {
            return (self.meet(offer), None);
        }
        let confirms = self.withdraw(&offer).then_some((offer.rank, offer.serial));
        (None, confirms)
    }

    fn wait(&mut self, wish: Wish) -> Waiting {
        let (waiter, waiting) = waiter(wish);
        self.waiters.push_back(waiter);
        waiting
    }

    /// Sets out to listen where receives wait and nobody does; true if the caller must see to it.
    fn must_listen(&mut self) -> bool {
        let must = !self.is_listening && !self.waiters.is_empty();
        self.is_listening |= must;
        must
    }

    /// Forgets an announcement that a receive could still take. False if there is none.
    fn withdraw(&mut self, withdrawal: &Offer) -> bool {
        let is_meant = |offer: &Offer| offer.rank == withdrawal.rank && offer.serial == withdrawal.serial;
        let at = self.offers.iter().position(|offer| is_meant(offer) && !super::is_eager(offer));
        at.and_then(|at| self.offers.remove(at)).is_some()
    }

    /// Finds the oldest receive that an announcement fits, or keeps it.
    fn meet(&mut self, offer: Box<Offer>) -> Met {
        self.links.insert(offer.rank, offer.message.source);
        self.waiters.retain(|waiter| waiter.offer.is_awaited());
        let at = self.waiters.iter().position(|waiter| waiter.wish.fits(&offer));
        match at.and_then(|at| self.waiters.remove(at)) {
            Some(waiter) => Some((waiter, offer)),
            None => {
                self.offers.push_back(offer);
                None
            }
        }
    }

    /// Whether and how it pays to look if a message comes at once. Receives that wait already come first.
    fn look(&mut self, from: Option<Rank>) -> Option<Look> {
        if self.is_listening || !self.waiters.is_empty() {
            return None;
        }
        let link = *self.links.get(&from?.0)?;
        self.looks = self.looks.wrapping_add(1);
        let is_test = self.looks.is_multiple_of(TEST_PERIOD);
        (is_test || self.vain < VAIN_MAX).then_some(Look { link, gives_way: self.gives_way && !is_test })
    }
}

fn waiter(wish: Wish) -> (Waiter, Waiting) {
    let (completer, work) = pair("recv");
    let slot = Arc::new(Mutex::new(Slot::Empty));
    (Waiter { wish, offer: completer, slot: Arc::clone(&slot) }, Waiting(work, slot))
}

impl Mail {
    /// Completes a receive's wait with no lock held. If that is over by now the announcement is given back.
    fn tell(&self, met: Met) {
        let Some((waiter, offer)) = met else { return };
        let mut slot = waiter.slot.lock();
        if matches!(*slot, Slot::Empty) {
            *slot = Slot::Full(offer);
            drop(slot);
            return waiter.offer.complete(Ok(()));
        }
        drop(slot);
        self.give_back(offer);
    }

    /// Of a group whose announcements have this context.
    pub(crate) fn new(context: u64) -> Self {
        Self {
            context,
            begun: Instant::now(),
            inner: Mutex::default(),
            serial: AtomicU64::new(0),
            unwanted: Mutex::default(),
            lanes: Mutex::default(),
        }
    }

    /// The place of a send that begins now; none if it may be given to the link, which is known, at once.
    pub(super) fn turn(&self, to: u32, is_known: bool) -> Option<Turn> {
        let mut lanes = self.lanes.lock();
        let before = lanes.get(&to).filter(|before| !before.is_done()).cloned();
        if is_known && before.is_none() {
            lanes.remove(&to);
            return None;
        }
        let (given, last) = pair("send");
        lanes.insert(to, last);
        Some(Turn { before: before.unwrap_or_else(|| Work::ready("send", Ok(()))), given: Some(given) })
    }

    /// A number for an announcement whose bytes follow.
    pub(super) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Relaxed)
    }

    /// The oldest announcement that fits, or the place in the queue for it; with `tries`, the receive may look first
    /// whether it comes at once.
    pub(super) fn find(&self, wish: Wish, tries: bool) -> Next {
        let mut inner = self.inner.lock();
        let at = inner.offers.iter().position(|offer| wish.fits(offer));
        if let Some(offer) = at.and_then(|at| inner.offers.remove(at)) {
            return Next::Takes(Found::Offer(offer), inner.must_listen());
        }
        if let Some(look) = if tries { inner.look(wish.from) } else { None } {
            inner.is_listening = true;
            return Next::Looks(look);
        }
        Next::Takes(Found::Coming(inner.wait(wish)), inner.must_listen())
    }

    /// As [`Mail::find`], for a receive whose message was withdrawn: it is older than those that wait.
    pub(super) fn find_again(&self, wish: Wish) -> (Found, bool) {
        let mut inner = self.inner.lock();
        let at = inner.offers.iter().position(|offer| wish.fits(offer));
        let found = match at.and_then(|at| inner.offers.remove(at)) {
            Some(offer) => Found::Offer(offer),
            None => {
                let (waiter, waiting) = waiter(wish);
                inner.waiters.push_front(waiter);
                Found::Coming(waiting)
            }
        };
        (found, inner.must_listen())
    }

    /// Gives back an announcement that a receive had taken which is over. It is older than those that wait, but for
    /// those of its sender that were given back before and came before it.
    pub(super) fn give_back(&self, offer: Box<Offer>) {
        let mut inner = self.inner.lock();
        inner.waiters.retain(|waiter| waiter.offer.is_awaited());
        let at = inner.waiters.iter().position(|waiter| waiter.wish.fits(&offer));
        let met = match at.and_then(|at| inner.waiters.remove(at)) {
            Some(waiter) => Some((waiter, offer)),
            None => {
                let came = |offer: &Offer| (offer.message.source, offer.message.sequence);
                let (source, sequence) = came(&offer);
                let is_older = |other: &Offer| came(other).0 == source && came(other).1 < sequence;
                let at = inner.offers.iter().rposition(|other| is_older(other)).map_or(0, |older| older + 1);
                inner.offers.insert(at, offer);
                None
            }
        };
        drop(inner);
        self.tell(met);
    }

    /// Takes in what comes for a receive that is over.
    pub(super) fn do_without(&self, coming: Awaiting) {
        let mut unwanted = self.unwanted.lock();
        unwanted.retain(|coming| !coming.is_done());
        unwanted.push_back(coming);
        let oldest = if unwanted.len() > UNWANTED_MAX { unwanted.pop_front() } else { None };
        drop(unwanted);
        drop(oldest);
    }

    /// A receive ceases to listen, with what it found, perhaps after it gave way, or to wait. True if the caller must
    /// start the listener.
    pub(super) fn cease(&self, wish: Wish, found: Option<Box<Offer>>, gave_way: bool) -> (Found, bool) {
        let mut inner = self.inner.lock();
        (inner.vain, inner.gives_way) = match found {
            Some(_) => (0, gave_way),
            None => (inner.vain.saturating_add(1), inner.gives_way),
        };
        let found = found.map_or_else(|| Found::Coming(inner.wait(wish)), Found::Offer);
        inner.is_listening = false;
        (found, inner.must_listen())
    }

    /// Hands an announcement to the oldest receive that it fits, if there is one. True when the listener is to go on:
    /// a receive waits, and there is room for another announcement. Else nobody listens any more.
    ///
    /// A withdrawal ends the announcement that it is about, unless a receive has taken that one.
    pub(super) fn deliver(&self, offer: Box<Offer>) -> Delivered {
        let mut inner = self.inner.lock();
        let (met, confirms) = inner.take_in(offer);
        inner.is_listening = !inner.waiters.is_empty() && inner.offers.len() < OFFERS_MAX;
        let goes_on = inner.is_listening;
        drop(inner);
        self.tell(met);
        Delivered { goes_on, confirms }
    }

    /// As [`Mail::deliver`], for a receive that listens and has no use for it, and that listens on. False when there is
    /// no room for another one.
    pub(super) fn put_by(&self, offer: Box<Offer>) -> Delivered {
        let mut inner = self.inner.lock();
        let (met, confirms) = inner.take_in(offer);
        let goes_on = inner.offers.len() < OFFERS_MAX;
        drop(inner);
        self.tell(met);
        Delivered { goes_on, confirms }
    }

    /// Ends the receives that only members could end that are gone. All that they have announced was delivered before.
    pub(super) fn end_hopeless(&self, gone: &[u32], size: u32, why: impl Fn(u32) -> Error) {
        let are_all_gone = gone.len() + 1 >= size as usize;
        let culprit = |wish: &Wish| match wish.from {
            Some(from) => gone.iter().find(|rank| **rank == from.0).copied(),
            None => gone.last().copied().filter(|_| are_all_gone),
        };
        let mut ended = Vec::new();
        {
            let mut inner = self.inner.lock();
            let mut at = 0;
            while let Some(waiter) = inner.waiters.get(at) {
                match culprit(&waiter.wish) {
                    Some(rank) => ended.extend(inner.waiters.remove(at).map(|waiter| (waiter, rank))),
                    None => at += 1,
                }
            }
        }
        for (waiter, rank) in ended {
            waiter.offer.complete(Err(why(rank)));
        }
    }

    /// The listener has failed, or cannot start.
    pub(super) fn stop(&self) {
        self.inner.lock().is_listening = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::Tag;
    use sheave_net::{Envelope, Message};
    use sheave_tensor::Dtype;

    fn offer(source: u32, sequence: u64) -> Box<Offer> {
        let (envelope, source) = (Envelope::of(0, Tag(0), 1), LinkId(source));
        let message = Message { envelope, source, sequence, control: Vec::new(), parts: Default::default() };
        let (rank, tag, count, serial) = (source.0, 7, 0, 0);
        Box::new(Offer { rank, tag, dtype: Dtype::F32, count, serial, is_withdrawn: false, message })
    }

    /// Receives that are over give back what they had been given in whatever order they come to it.
    #[test]
    fn what_is_given_back_is_found_in_the_order_in_which_it_was_sent() {
        let mail = Mail::new(1);
        for (source, sequence) in [(1, 5), (1, 6), (2, 9), (1, 4), (2, 8), (1, 7)] {
            mail.give_back(offer(source, sequence));
        }
        let mut found = Vec::new();
        for _ in 0..6 {
            let Next::Takes(Found::Offer(offer), _) = mail.find(Wish { from: None, tag: 7 }, false) else { break };
            found.push((offer.rank, offer.message.sequence));
        }
        let of = |rank| found.iter().filter(|(from, _)| *from == rank).map(|(_, number)| *number).collect::<Vec<_>>();
        assert_eq!((of(1), of(2)), (vec![4, 5, 6, 7], vec![8, 9]), "{found:?}");
    }

    /// A send that is given up in the queue for its link does not let those behind it past those before it.
    #[test]
    fn a_turn_that_is_given_up_passes_on_what_it_waits_for() {
        let mail = Mail::new(1);
        let turns: Vec<Turn> = (0..4).filter_map(|_| mail.turn(3, false)).collect();
        let [first, second, third, last] = <[Turn; 4]>::try_from(turns).ok().expect("no link is known");
        let last_comes = last.before.clone();
        drop(third);
        drop(second);
        assert!(!last_comes.is_done(), "the first is not given to the link yet");
        first.give();
        assert!(last_comes.is_done(), "nothing is before it any more");
        last.give();
        assert!(mail.turn(3, true).is_none(), "nobody waits, and the link is known");
    }
}
