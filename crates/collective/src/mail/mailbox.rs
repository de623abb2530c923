//! Where announcements meet receives.
//!
//! **One listener.** Announcements are matched in the order in which they come, so at most one party takes them in at
//! a time: `is_listening` is true from the moment that somebody sets out to until everything it took was delivered.
//! That is a receive which looks whether its message comes at once, or the listener's task, which runs while receives
//! wait. Whoever ceases to listen hands over to a task if receives wait by then. When as many announcements wait for
//! receives as may, the others stay with their senders' links, and each further receive takes in one more.

use super::offer::Offer;
use parking_lot::Mutex;
use sheave_base::work::{Completer, pair};
use sheave_base::{Error, LinkId, Rank, Work};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Announcements that wait for a receive.
const OFFERS_MAX: usize = 1024;

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
    offer: Completer<Box<Offer>>,
}

pub(crate) struct Mail {
    /// What announcements are matched by.
    pub(super) context: u64,
    /// A time that has passed.
    pub(super) begun: Instant,
    inner: Mutex<Inner>,
    serial: AtomicU64,
    /// Of each member to which sends wait for a link or for each other: when the last of them is given to the link.
    lanes: Mutex<BTreeMap<u32, Work<()>>>,
}

/// The place of a send among those to one member that wait for its link, so that none overtakes another.
pub(super) struct Turn {
    /// Ends when all before it are given to the link.
    pub(super) before: Work<()>,
    pub(super) given: Completer<()>,
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

/// What a receive finds.
pub(super) enum Found {
    /// The oldest announcement that fits.
    Offer(Box<Offer>),
    /// Nothing yet; it waits.
    Coming(Work<Box<Offer>>),
}

impl Inner {
    fn wait(&mut self, wish: Wish) -> Work<Box<Offer>> {
        let (completer, work) = pair("recv");
        self.waiters.push_back(Waiter { wish, offer: completer });
        work
    }

    /// Sets out to listen where receives wait and nobody does; true if the caller must see to it.
    fn must_listen(&mut self) -> bool {
        let must = !self.is_listening && !self.waiters.is_empty();
        self.is_listening |= must;
        must
    }

    /// Finds the oldest receive that an announcement fits, or keeps it.
    fn meet(&mut self, offer: Box<Offer>) -> Option<(Waiter, Box<Offer>)> {
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

/// Completes a receive's wait with no lock held.
fn tell(met: Option<(Waiter, Box<Offer>)>) {
    if let Some((waiter, offer)) = met {
        waiter.offer.complete(Ok(offer));
    }
}

impl Mail {
    /// Of a group whose announcements have this context.
    pub(crate) fn new(context: u64) -> Self {
        Self {
            context,
            begun: Instant::now(),
            inner: Mutex::default(),
            serial: AtomicU64::new(0),
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
        Some(Turn { before: before.unwrap_or_else(|| Work::ready("send", Ok(()))), given })
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
    pub(super) fn deliver(&self, offer: Box<Offer>) -> bool {
        let mut inner = self.inner.lock();
        let met = inner.meet(offer);
        inner.is_listening = !inner.waiters.is_empty() && inner.offers.len() < OFFERS_MAX;
        let goes_on = inner.is_listening;
        drop(inner);
        tell(met);
        goes_on
    }

    /// As [`Mail::deliver`], for a receive that listens and has no use for it, and that listens on. False when there is
    /// no room for another one.
    pub(super) fn put_by(&self, offer: Box<Offer>) -> bool {
        let mut inner = self.inner.lock();
        let met = inner.meet(offer);
        let has_room = inner.offers.len() < OFFERS_MAX;
        drop(inner);
        tell(met);
        has_room
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
