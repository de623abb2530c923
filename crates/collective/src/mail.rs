//! Messages between two members, matched by tag and sender, or by tag from anybody.
//!
//! A sender announces every message: its tag, dtype, length, and a number of the sender's own. Short ones bring their
//! bytes along. The bytes of longer ones follow when the receiver has said that they are awaited, so that they land in
//! place and never fill the receiver's memory unasked; if they do not fit, that answer is what both sides fail with.
//! Announcements of one sender arrive in order and are matched in order: a receive takes the oldest announcement that
//! fits, and an announcement the oldest receive that it fits.
//!
//! Announcements are taken in by a task of their own, the listener, which runs from the first receive on. When too many
//! wait for a receive it ends, they stay with their senders' links, and the next receive starts it again.

use crate::communicator::Communicator;
use crate::group::{State, Terms};
use crate::memory::{Region, places};
use parking_lot::Mutex;
use sheave_base::work::{Completer, pair};
use sheave_base::{Error, ErrorKind, Rank, Result, Tag, Work};
use sheave_net::{Envelope, Message, Outgoing, Part, Wanted};
use sheave_tensor::{Dtype, Mode, Tensor};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// Up to here a message's bytes come with its announcement.
const EAGER_BYTES: usize = 16 << 10;

/// Announcements that wait for a receive.
const OFFERS_MAX: usize = 1024;

/// Contexts of announcements, answers and bytes.
pub(crate) const OFFERS: u64 = 2;
pub(crate) const ANSWERS: u64 = 3;
pub(crate) const BYTES: u64 = 4;

pub(crate) const ANYBODY: u32 = u32::MAX;
const OFFER_BYTES: usize = 32;
const WELCOME: &[u8] = b"";

/// A message that is announced.
#[derive(Debug)]
struct Offer {
    rank: u32,
    tag: u64,
    dtype: Dtype,
    count: u64,
    serial: u64,
    /// Its bytes, if they came along.
    message: Message,
}

struct Waiter {
    from: Option<Rank>,
    tag: u64,
    offer: Completer<Offer>,
}

#[derive(Default)]
pub(crate) struct Mail {
    box_of: Mutex<Inner>,
    serial: AtomicU64,
}

#[derive(Default)]
struct Inner {
    offers: VecDeque<Offer>,
    waiters: VecDeque<Waiter>,
    is_listening: bool,
}

impl Mail {
    /// The oldest announcement that fits, now or when it comes; true if somebody must listen for it.
    fn want(&self, from: Option<Rank>, tag: u64) -> (Work<Offer>, bool) {
        let mut inner = self.box_of.lock();
        let fits = |offer: &Offer| offer.tag == tag && from.is_none_or(|from| from.0 == offer.rank);
        let found = inner.offers.iter().position(fits).and_then(|at| inner.offers.remove(at));
        let must_listen = !inner.is_listening;
        inner.is_listening = true;
        match found {
            Some(offer) => (Work::ready("recv", Ok(offer)), must_listen),
            None => {
                let (completer, work) = pair("recv");
                inner.waiters.push_back(Waiter { from, tag, offer: completer });
                (work, must_listen)
            }
        }
    }

    /// Hands an announcement to the oldest receive that it fits. False when there is no room for another one.
    fn deliver(&self, offer: Offer) -> bool {
        let mut inner = self.box_of.lock();
        inner.waiters.retain(|waiter| waiter.offer.is_awaited());
        let fits = |waiter: &Waiter| waiter.tag == offer.tag && waiter.from.is_none_or(|from| from.0 == offer.rank);
        let found = inner.waiters.iter().position(fits).and_then(|at| inner.waiters.remove(at));
        if let Some(waiter) = found {
            drop(inner);
            waiter.offer.complete(Ok(offer));
            return true;
        }
        inner.offers.push_back(offer);
        inner.is_listening = inner.offers.len() < OFFERS_MAX;
        inner.is_listening
    }
}

fn encode(rank: u32, tag: u64, dtype: Dtype, count: u64, serial: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(OFFER_BYTES);
    bytes.extend(rank.to_le_bytes());
    bytes.extend([dtype.code(), 0, 0, 0]);
    [tag, count, serial].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes
}

fn decode(message: Message) -> Result<Offer> {
    let strange = || Error::new(ErrorKind::Protocol, "an announcement that is none");
    let bytes: &[u8; OFFER_BYTES] = message.control.as_slice().try_into().map_err(|_| strange())?;
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let dtype = Dtype::from_code(bytes[4]).ok_or_else(strange)?;
    Ok(Offer { rank: word(0), tag: long(8), dtype, count: long(16), serial: long(24), message })
}

/// Takes announcements in until there is no room, or nobody has the group any more.
async fn listen(state: Weak<State>) -> Result<Rank> {
    loop {
        let Some(alive) = state.upgrade() else { return Ok(Rank(0)) };
        let wanted = Wanted { source: None, context: alive.context(ANYBODY, OFFERS), tag: Tag(0) };
        let coming = Awaiting(alive.hub.node.irecv(wanted, places(None)?)?);
        drop(alive);
        let offer = decode(coming.taken().await?)?;
        let Some(alive) = state.upgrade() else { return Ok(Rank(0)) };
        if !alive.mail.deliver(offer) {
            return Ok(Rank(0));
        }
    }
}

/// A receive that is taken back when it is dropped.
struct Awaiting(Work<Message>);

impl Awaiting {
    async fn taken(self) -> Result<Message> {
        poll_fn(|context| self.0.poll_done(context)).await;
        self.0.taken()
    }
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Sends to a member and returns when the bytes have been handed over.
async fn hand(state: &State, to: u32, context: u64, tag: u64, control: Vec<u8>, bytes: Option<&Region>) -> Result<()> {
    let link = state.link(to).await?;
    let mut message = Outgoing::control(Envelope::data(context, Tag(tag)), control);
    if let Some(bytes) = bytes.filter(|bytes| bytes.len_bytes() > 0) {
        message.parts.push(Part::new(bytes.tensor()?, Mode::Copy));
    }
    state.hub.node.isend_borrowed(link, message)?.await
}

fn await_at(state: &State, context: u64, tag: u64, place: Option<&Region>) -> Result<Awaiting> {
    let wanted = Wanted { source: None, context, tag: Tag(tag) };
    Ok(Awaiting(state.hub.node.irecv(wanted, places(place)?)?))
}

async fn send(state: Arc<State>, to: u32, tag: u64, dtype: Dtype, bytes: Region) -> Result<Rank> {
    let me = state.group.rank().0;
    let serial = state.mail.serial.fetch_add(1, Relaxed);
    let count = (bytes.len_bytes() / dtype.size_bytes()) as u64;
    let offer = encode(me, tag, dtype, count, serial);
    if bytes.len_bytes() <= EAGER_BYTES {
        hand(&state, to, state.context(ANYBODY, OFFERS), 0, offer, Some(&bytes)).await?;
        return Ok(Rank(to));
    }
    let answer = await_at(&state, state.context(to, ANSWERS), serial, None)?;
    hand(&state, to, state.context(ANYBODY, OFFERS), 0, offer, None).await?;
    let answer = answer.taken().await?;
    if answer.control != WELCOME {
        return Err(Error::new(ErrorKind::Mismatch, String::from_utf8_lossy(&answer.control).into_owned()));
    }
    hand(&state, to, state.context(me, BYTES), serial, Vec::new(), Some(&bytes)).await?;
    Ok(Rank(to))
}

async fn receive(state: Arc<State>, coming: Work<Offer>, dtype: Dtype, place: Region) -> Result<Rank> {
    poll_fn(|context| coming.poll_done(context)).await;
    let offer = coming.taken()?;
    let me = state.group.rank().0;
    let count = (place.len_bytes() / dtype.size_bytes()) as u64;
    let is_eager = offer.count.saturating_mul(offer.dtype.size_bytes() as u64) <= EAGER_BYTES as u64;
    if (offer.dtype, offer.count) != (dtype, count) {
        let (rank, theirs) = (offer.rank, offer.dtype);
        let what = format!(
            "rank {rank} sends {theirs}[{}] with tag {}, rank {me} receives {dtype}[{count}]",
            offer.count, offer.tag
        );
        if !is_eager {
            hand(&state, rank, state.context(me, ANSWERS), offer.serial, what.clone().into_bytes(), None).await?;
        }
        return Err(Error::new(ErrorKind::Mismatch, what));
    }
    if is_eager {
        match offer.message.parts.first() {
            Some(part) => place.fill(&part.bytes()?)?,
            None => place.fill(&[])?,
        }
        return Ok(Rank(offer.rank));
    }
    let bytes = await_at(&state, state.context(offer.rank, BYTES), offer.serial, Some(&place))?;
    hand(&state, offer.rank, state.context(me, ANSWERS), offer.serial, WELCOME.to_vec(), None).await?;
    bytes.taken().await?;
    Ok(Rank(offer.rank))
}

impl Communicator {
    /// Sends a tensor to another member. The work ends when the tensor may be changed again: for short ones that is
    /// when they are on their way, for longer ones when they are received. Messages of one sender with the same tag
    /// arrive in order.
    ///
    /// Fails with `Mismatch` if a longer one is received as something else; that and a deadline end just this message.
    pub fn send(&self, tensor: &Tensor, to: Rank, tag: u64) -> Work<()> {
        const NAME: &str = "send";
        if let Err(error) = self.other(to) {
            return Work::ready(NAME, Err(error.operation(NAME)));
        }
        let (state, dtype) = (Arc::clone(self.state()), tensor.dtype());
        match Region::reading(tensor, NAME) {
            Ok(bytes) => {
                self.state().begin(self.terms(NAME), drop, |_, _| Box::pin(send(state, to.0, tag, dtype, bytes)))
            }
            Err(error) => Work::ready(NAME, Err(error)),
        }
    }

    /// Receives a tensor of just this dtype and length, from one member or from whoever sends with this tag; the result
    /// is the sender's rank. A receive takes the oldest message that fits, and a message the oldest receive.
    ///
    /// Fails with `Mismatch` that shows both sides if another dtype or length was sent; that and a deadline end just
    /// this receive.
    pub fn recv(&self, tensor: &Tensor, from: Option<Rank>, tag: u64) -> Work<Rank> {
        const NAME: &str = "recv";
        if let Err(error) = from.map_or(Ok(()), |from| self.other(from)) {
            return Work::ready(NAME, Err(error.operation(NAME)));
        }
        let place = match Region::writing(tensor, NAME) {
            Ok(place) => place,
            Err(error) => return Work::ready(NAME, Err(error)),
        };
        let (state, dtype) = (Arc::clone(self.state()), tensor.dtype());
        let (coming, must_listen) = state.mail.want(from, tag);
        if must_listen {
            let listener = Arc::downgrade(&state);
            let terms = Terms { operation: sheave_base::work::IDLE, limit: None, is_collective: false };
            drop(state.begin(terms, drop, |_, _| Box::pin(listen(listener))));
        }
        self.state().begin(self.terms(NAME), |rank| rank, |_, _| Box::pin(receive(state, coming, dtype, place)))
    }

    fn terms(&self, operation: &'static str) -> Terms {
        Terms { operation, limit: self.limit(), is_collective: false }
    }

    fn other(&self, rank: Rank) -> Result<()> {
        let refuse = |what| Err(Error::new(ErrorKind::InvalidArgument, what));
        match rank {
            rank if rank == self.rank() => refuse(format!("rank {rank} is this rank itself")),
            rank if rank.0 >= self.size() => refuse(format!("rank {rank} is outside a group of {}", self.size())),
            _ => Ok(()),
        }
    }
}
