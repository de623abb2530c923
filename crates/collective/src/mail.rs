//! Messages between two members, matched by tag and sender, or by tag from anybody.
//!
//! A sender announces every message: its tag, dtype, length, and a number of the sender's own. Short ones bring their
//! bytes along. The bytes of longer ones follow when the receiver has said that they are awaited, so that they land in
//! place and never fill the receiver's memory unasked; if they do not fit, that answer is what both sides fail with.
//!
//! **A message that is given up** ends at both ends. A sender that has announced one and gives it up before its bytes
//! go says so (`withdrawal`), in the order of its announcements, and awaits the one answer that every longer message
//! gets: that it is forgotten; or that its bytes are awaited, for a receive had taken the announcement by then. That
//! receive is told that they do not come, and takes another message. A receive that is over before it has asked for the
//! bytes gives the announcement back; if it has asked, they are received and thrown away.
//!
//! Announcements of one sender arrive in order and are matched in order: a receive takes the oldest announcement that
//! fits, and an announcement the oldest receive that it fits.
//!
//! A receive from a known member looks first whether its message comes at once, and takes it on its caller's thread
//! without a task; so does a send whose link takes the message at once. Everything else are tasks, and announcements
//! are then taken in by one more, the listener, while receives wait ([`mailbox`] has the argument that none is
//! overtaken). What comes while no receive waits stays with the node, within its limits for what nobody has asked for.

mod mailbox;
pub(crate) mod offer;

use crate::communicator::Communicator;
use crate::group::{State, Terms};
use crate::memory::{Region, places};
pub(crate) use mailbox::Mail;
use mailbox::{Found, Look, Next, Place, Turn, Wish};
use offer::{Offer, announcement, bytes, decode, whole, withdrawal};
use sheave_base::work::IDLE;
use sheave_base::{Error, ErrorKind, LinkId, Rank, Result, Tag, Work};
use sheave_net::{Envelope, Message, Outgoing, Wanted, was_closed_in_order};
use sheave_tensor::{Dtype, ReadLease, Tensor};
use sheave_wire::{from_control, to_control};
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

/// Up to here a message's bytes come with its announcement.
const EAGER_BYTES: usize = 16 << 10;

/// Announcements that a receive takes in while it looks whether its own message comes at once.
const LOOKS_MAX: usize = 16;

/// Contexts of announcements, answers and bytes.
pub(crate) const OFFERS: u64 = 2;
pub(crate) const ANSWERS: u64 = 3;
pub(crate) const BYTES: u64 = 4;
/// Contexts of what a receive is told whose bytes do not come.
pub(crate) const WITHDRAWALS: u64 = 6;

pub(crate) const ANYBODY: u32 = u32::MAX;
const WELCOME: &[u8] = b"";
/// The answer to a withdrawal that came in time. No error is written in one byte.
const FORGOTTEN: &[u8] = &[0];

/// Takes announcements in while receives wait and somebody has the group.
async fn listen(state: Weak<State>) -> Result<Rank> {
    loop {
        let outcome = take_next(&state).await;
        match outcome {
            Ok(true) => {}
            Ok(false) => return Ok(Rank(0)),
            Err(error) => {
                if let Some(alive) = state.upgrade() {
                    alive.mail.stop();
                }
                return Err(error);
            }
        }
    }
}

/// Takes the next announcement in. False when the listener is not to go on.
async fn take_next(state: &Weak<State>) -> Result<bool> {
    let Some(alive) = state.upgrade() else { return Ok(false) };
    let wanted = Wanted { source: None, context: alive.mail.context, tag: Tag(0) };
    let (mut coming, size) = (Awaiting::post(&alive, wanted, None)?, alive.size());
    // While nothing comes it does not keep the group.
    drop(alive);
    let offer = poll_fn(|context| {
        let alive = state.upgrade();
        // Asked first: what a member has sent that has said all is here by then.
        let gone = alive.as_ref().map(|alive| alive.departures()).unwrap_or_default();
        let Some(alive) = alive else { return coming.work.poll_done(context).map(|()| coming.work.taken()) };
        let polled = coming.poll(&alive, context);
        if polled.is_pending() && !gone.is_empty() {
            alive.mail.end_hopeless(&gone, size, |rank| departed(&alive, rank));
        }
        polled
    })
    .await;
    let offer = decode(offer?, size)?;
    let Some(alive) = state.upgrade() else { return Ok(false) };
    let delivered = alive.mail.deliver(offer);
    confirm(&alive, delivered.confirms);
    Ok(delivered.goes_on)
}

/// Tells a sender that its message is forgotten.
fn confirm(state: &State, withdrawn: Option<(u32, u64)>) {
    let Some((rank, serial)) = withdrawn else { return };
    // It waits for nothing but this, and a link that has ended says the same.
    if let Some(link) = state.known_link(rank) {
        let _ = state.hub.node.isend(link, answer(state, serial, FORGOTTEN.to_vec()));
    }
}

/// The error of a receive whose sender has left.
fn departed(state: &State, rank: u32) -> Error {
    state.departure(rank).unwrap_or_else(|| Error::new(ErrorKind::PeerLost, format!("rank {rank} left the mesh")))
}

fn start_listener(state: &Arc<State>) {
    let listener = Arc::downgrade(state);
    let terms = Terms::aside(IDLE);
    match state.reserve(&terms, 1) {
        Ok(key) => drop(state.begin_reserved(terms, key, drop, |_| Box::pin(listen(listener)))),
        Err(_) => state.mail.stop(),
    }
}

/// Looks on the caller's thread whether the message of a receive comes at once; what else comes is put by.
fn look(state: &State, link: LinkId, wish: Wish) -> Option<Box<Offer>> {
    let wanted = Wanted { source: Some(link), context: state.mail.context, tag: Tag(0) };
    for _ in 0..LOOKS_MAX {
        // A time that has passed: it polls for a few microseconds and takes the receive back.
        let message = state.hub.node.recv(wanted, places(None).ok()?, Some(state.mail.begun), None).ok()?;
        let offer = decode(message, state.size()).ok()?;
        if wish.fits(&offer) && !offer.is_withdrawn {
            return Some(offer);
        }
        let put_by = state.mail.put_by(offer);
        confirm(state, put_by.confirms);
        if !put_by.goes_on {
            return None;
        }
    }
    None
}

/// The announcement for a receive, or a work that has it when it comes.
fn find(state: &Arc<State>, wish: Wish) -> Found {
    // With more ranks than cores there is no time to lose with looking.
    let tries = state.hub.node.keeps_cores();
    let (found, must_listen) = match state.mail.find(wish, tries) {
        Next::Takes(found, must_listen) => (found, must_listen),
        Next::Looks(Look { link, mut gives_way }) => {
            let mut offer = if gives_way { None } else { look(state, link, wish) };
            if offer.is_none() {
                // The sender may need this very core.
                gives_way = true;
                state.hub.node.give_way();
                offer = look(state, link, wish);
            }
            state.mail.cease(wish, offer, gives_way)
        }
    };
    if must_listen {
        start_listener(state);
    }
    found
}

/// A receive that is taken back when it is dropped.
pub(crate) struct Awaiting {
    work: Work<Message>,
    wanted: Wanted,
    place: Option<Region>,
}

impl Awaiting {
    pub(crate) fn post(state: &State, wanted: Wanted, place: Option<&Region>) -> Result<Self> {
        let work = state.hub.node.irecv(wanted, places(place)?)?;
        Ok(Self { work, wanted, place: place.cloned() })
    }

    /// The message, or why none will come.
    pub(crate) async fn taken(&mut self, state: &State, from: u32) -> Result<Message> {
        poll_fn(|context| {
            // Asked first: what a member has sent that has said all is here by then.
            let departure = state.departure(from);
            match self.poll(state, context) {
                Poll::Pending => departure.map_or(Poll::Pending, |error| Poll::Ready(Err(error))),
                ready => ready,
            }
        })
        .await
    }

    fn poll(&mut self, state: &State, context: &mut Context<'_>) -> Poll<Result<Message>> {
        loop {
            if self.work.poll_done(context).is_pending() {
                return Poll::Pending;
            }
            match self.work.taken() {
                // This node's last link was closed in order, by a member that leaves perhaps, before the one was made
                // over which this message comes.
                Err(error) if was_closed_in_order(&error) => {
                    *self = match Self::post(state, self.wanted, self.place.as_ref()) {
                        Ok(again) => again,
                        Err(error) => return Poll::Ready(Err(error)),
                    };
                }
                taken => return Poll::Ready(taken),
            }
        }
    }

    fn is_done(&self) -> bool {
        self.work.is_done()
    }
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        self.work.cancel();
    }
}

/// Sends to a member and returns when the message has been handed over.
async fn hand(state: &State, to: u32, message: Outgoing) -> Result<()> {
    let link = state.link(to).await?;
    state.hub.node.isend_borrowed(link, message)?.await
}

/// As [`hand`], when all that was begun before has been given to the link.
async fn hand_in_turn(state: &State, to: u32, message: Outgoing, turn: Option<Turn>) -> Result<()> {
    let Some(turn) = turn else { return hand(state, to, message).await };
    turn.comes().await;
    let link = state.link(to).await?;
    let sent = state.hub.node.isend_borrowed(link, message);
    turn.give();
    sent?.await
}

fn answer(state: &State, serial: u64, control: Vec<u8>) -> Outgoing {
    Outgoing::control(Envelope::data(state.context(state.group.rank().0, ANSWERS), Tag(serial)), control)
}

fn await_at(state: &State, context: u64, tag: u64, place: Option<&Region>) -> Result<Awaiting> {
    let wanted = Wanted { source: None, context, tag: Tag(tag) };
    Awaiting::post(state, wanted, place)
}

/// A longer message that was announced. Dropped before its bytes go, it is withdrawn.
struct Announced {
    state: Arc<State>,
    to: u32,
    serial: u64,
    /// Of the receiver; taken when it has come.
    answer: Option<Awaiting>,
    link: Option<LinkId>,
}

impl Announced {
    async fn answered(&mut self) -> Result<Message> {
        let Some(answer) = &mut self.answer else {
            return Err(Error::new(ErrorKind::Internal, "an announcement is answered twice"));
        };
        let message = answer.taken(&self.state, self.to).await;
        self.answer = None;
        message
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        let (Some(answer), Some(link)) = (self.answer.take(), self.link) else { return };
        let (state, to, serial) = (&self.state, self.to, self.serial);
        if state.broken().is_some() {
            return;
        }
        let news = withdrawal(state.mail.context, state.group.rank().0, serial);
        let terms = Terms::aside(IDLE);
        if let (Ok(_), Ok(key)) = (state.hub.node.isend(link, news), state.reserve(&terms, 1)) {
            let own = Arc::downgrade(state);
            drop(state.begin_reserved(terms, key, drop, |_| Box::pin(withdrawn(own, to, serial, answer))));
        }
    }
}

/// Awaits what becomes of a message that was withdrawn. It does not keep the group.
async fn withdrawn(state: Weak<State>, to: u32, serial: u64, mut answer: Awaiting) -> Result<Rank> {
    let message = poll_fn(|context| {
        let Some(alive) = state.upgrade() else {
            return Poll::Ready(Err(Error::new(ErrorKind::Closed, "the group is gone")));
        };
        let departure = alive.departure(to);
        match answer.poll(&alive, context) {
            Poll::Pending => departure.map_or(Poll::Pending, |error| Poll::Ready(Err(error))),
            ready => ready,
        }
    })
    .await?;
    if let Some(state) = state.upgrade().filter(|_| message.control == WELCOME) {
        let context = state.context(state.group.rank().0, WITHDRAWALS);
        hand(&state, to, Outgoing::control(Envelope::data(context, Tag(serial)), Vec::new())).await?;
    }
    Ok(Rank(to))
}

/// Sends a longer message. The lease keeps writers away from the tensor until it is sent.
async fn send_long(
    state: Arc<State>,
    (to, tag): (u32, u64),
    turn: Option<Turn>,
    tensor: Tensor,
    _lease: ReadLease,
) -> Result<Rank> {
    let (me, serial) = (state.group.rank().0, state.mail.next_serial());
    let answer = Some(await_at(&state, state.context(to, ANSWERS), serial, None)?);
    let mut announced = Announced { state: Arc::clone(&state), to, serial, answer, link: None };
    let message = announcement(state.mail.context, me, tag, &tensor, serial);
    if let Some(turn) = turn {
        turn.comes().await;
        let link = state.link(to).await?;
        announced.link = Some(link);
        let sent = state.hub.node.isend_borrowed(link, message);
        turn.give();
        sent?.await?;
    } else {
        let link = state.link(to).await?;
        announced.link = Some(link);
        state.hub.node.isend_borrowed(link, message)?.await?;
    }
    let answer = announced.answered().await?;
    if answer.control != WELCOME {
        return Err(refusal(&answer.control));
    }
    let mut message = Outgoing::control(Envelope::data(state.context(me, BYTES), Tag(serial)), Vec::new());
    message.parts.push(bytes(&tensor)?);
    hand(&state, to, message).await?;
    Ok(Rank(to))
}

/// The error of a receiver that does not take a message: both sides fail with it. A receiver refuses what does not fit
/// and nothing else, so that nobody waits for a verdict because it says that somebody is lost.
fn refusal(control: &[u8]) -> Error {
    match from_control::<Error>(control) {
        Ok(error) if error.kind() == ErrorKind::Mismatch => error,
        Ok(error) => Error::new(ErrorKind::Protocol, "a receiver refuses a message that fits").cause(error),
        Err(error) => error.context("an answer to an announcement"),
    }
}

fn is_eager(offer: &Offer) -> bool {
    offer.count.saturating_mul(offer.dtype.size_bytes() as u64) <= EAGER_BYTES as u64
}

/// How an announcement differs from what is received, if it does.
fn misfit(offer: &Offer, me: Rank, dtype: Dtype, place: &Region) -> Option<Error> {
    let count = (place.len_bytes() / dtype.size_bytes()) as u64;
    if (offer.dtype, offer.count) == (dtype, count) {
        return None;
    }
    let Offer { rank, tag, dtype: theirs, count: sent, .. } = offer;
    let what = format!("rank {rank} sends {theirs}[{sent}] with tag {tag}, rank {me} receives {dtype}[{count}]");
    Some(Error::new(ErrorKind::Mismatch, what))
}

/// Takes the bytes that came along with an announcement.
fn take(offer: &Offer, me: Rank, dtype: Dtype, place: &Region) -> Result<Rank> {
    if let Some(error) = misfit(offer, me, dtype, place) {
        return Err(error);
    }
    match offer.message.parts.first() {
        Some(part) => place.fill(&part.bytes()?)?,
        None => place.fill(&[])?,
    }
    Ok(Rank(offer.rank))
}

async fn receive(state: Arc<State>, wish: Wish, coming: Place, dtype: Dtype, place: Region) -> Result<Rank> {
    let offer = coming.taken().await?;
    take_in(state, wish, offer, dtype, place).await
}

/// A longer message that a receive has taken. Dropped before its bytes are asked for it is given back, and afterwards
/// they are thrown away.
struct Taken {
    state: Arc<State>,
    /// Until the bytes are asked for.
    offer: Option<Box<Offer>>,
    /// Of the sender, while its bytes may come.
    awaited: Option<(u32, u64)>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(offer) = self.offer.take() {
            return self.state.mail.give_back(offer);
        }
        let Some((rank, serial)) = self.awaited.take() else { return };
        // Its bytes come, or that they do not.
        for sort in [BYTES, WITHDRAWALS] {
            if let Ok(coming) = await_at(&self.state, self.state.context(rank, sort), serial, None) {
                self.state.mail.do_without(coming);
            }
        }
    }
}

async fn take_in(state: Arc<State>, wish: Wish, mut offer: Box<Offer>, dtype: Dtype, place: Region) -> Result<Rank> {
    let me = state.group.rank();
    loop {
        if is_eager(&offer) {
            return take(&offer, me, dtype, &place);
        }
        if let Some(error) = misfit(&offer, me, dtype, &place) {
            hand(&state, offer.rank, answer(&state, offer.serial, to_control(&error)?)).await?;
            return Err(error);
        }
        let (rank, serial) = (offer.rank, offer.serial);
        let mut taken = Taken { state: Arc::clone(&state), offer: Some(offer), awaited: None };
        let mut bytes = await_at(&state, state.context(rank, BYTES), serial, Some(&place))?;
        let mut withdrawn = await_at(&state, state.context(rank, WITHDRAWALS), serial, None)?;
        let link = state.link(rank).await?;
        let asked = state.hub.node.isend_borrowed(link, answer(&state, serial, WELCOME.to_vec()))?;
        (taken.offer, taken.awaited) = (None, Some((rank, serial)));
        asked.await?;
        let has_come = poll_fn(|context| {
            // Asked first: what a member has sent that has said all is here by then.
            let departure = state.departure(rank);
            if let Poll::Ready(come) = bytes.poll(&state, context) {
                return Poll::Ready(come.map(|_| true));
            }
            if let Poll::Ready(news) = withdrawn.poll(&state, context) {
                return Poll::Ready(news.map(|_| false));
            }
            departure.map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
        });
        let has_come = has_come.await;
        taken.awaited = None;
        if has_come? {
            return Ok(Rank(rank));
        }
        drop((bytes, taken));
        offer = next(&state, wish).await?;
    }
}

/// The next announcement for a receive whose message was withdrawn.
async fn next(state: &Arc<State>, wish: Wish) -> Result<Box<Offer>> {
    let (found, must_listen) = state.mail.find_again(wish);
    if must_listen {
        start_listener(state);
    }
    match found {
        Found::Offer(offer) => Ok(offer),
        Found::Coming(coming) => {
            let coming = coming.of(state);
            state.look_for_departures();
            coming.taken().await
        }
    }
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
        let (state, terms) = (self.state(), self.terms(NAME, Some(to), tag));
        if let Some(error) = state.broken().filter(|_| state.group.has_left(to)).and_then(|_| state.group.why_lost(to))
        {
            return Work::ready(NAME, Err(error.operation(NAME).group(state.group.label())));
        }
        let (lease, key) = match (tensor.read_lease(NAME), state.reserve(&terms, 1)) {
            (Ok(lease), Ok(key)) => (lease, key),
            (Err(error), _) | (_, Err(error)) => return Work::ready(NAME, Err(error)),
        };
        let known = state.known_link(to.0);
        let turn = state.mail.turn(to.0, known.is_some());
        let own = Arc::clone(state);
        if tensor.len_bytes() > EAGER_BYTES {
            let tensor = tensor.clone();
            return state
                .begin_reserved(terms, key, drop, |_| Box::pin(send_long(own, (to.0, tag), turn, tensor, lease)));
        }
        let message = whole(state.mail.context, state.group.rank().0, tag, tensor);
        let (Some(link), None) = (known, &turn) else {
            return state.begin_reserved(terms, key, drop, |_| {
                Box::pin(async move {
                    let _lease = lease;
                    hand_in_turn(&own, to.0, message, turn).await.map(|()| to)
                })
            });
        };
        let sent = state.hub.node.isend_borrowed(link, message);
        match &sent {
            Ok(work) if work.is_done() && work.result().is_some_and(|sent| sent.is_ok()) => Work::ready(NAME, Ok(())),
            _ => state.begin_reserved(terms, key, drop, |_| {
                Box::pin(async move {
                    // Until it ends nothing else may hold the group.
                    let _group = own;
                    sent?.await.map(|()| to)
                })
            }),
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
        let is_pair = self.size() == 2;
        let from = from.or_else(|| is_pair.then(|| Rank(1 - self.rank().0)));
        let (state, dtype, terms) = (Arc::clone(self.state()), tensor.dtype(), self.terms(NAME, from, tag));
        let key = match state.reserve(&terms, 1) {
            Ok(key) => key,
            Err(error) => return Work::ready(NAME, Err(error)),
        };
        let (own, wish) = (Arc::clone(&state), Wish { from, tag });
        match find(&state, wish) {
            Found::Offer(offer) if is_eager(&offer) => match take(&offer, self.rank(), dtype, &place) {
                Ok(rank) => Work::ready(NAME, Ok(rank)),
                Err(error) => state.begin_reserved(terms, key, |rank| rank, |_| Box::pin(async { Err(error) })),
            },
            Found::Offer(offer) => {
                state.begin_reserved(terms, key, |rank| rank, |_| Box::pin(take_in(own, wish, offer, dtype, place)))
            }
            Found::Coming(coming) => {
                let coming = coming.of(&state);
                state.look_for_departures();
                state.begin_reserved(terms, key, |rank| rank, |_| Box::pin(receive(own, wish, coming, dtype, place)))
            }
        }
    }

    fn terms(&self, operation: &'static str, other: Option<Rank>, tag: u64) -> Terms {
        Terms { limit: self.conditions().limit, message: Some((other, tag)), ..Terms::aside(operation) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::Peer;

    #[test]
    fn f48_a_refusal_is_an_error_and_nothing_but_a_misfit() {
        let misfit = Error::new(ErrorKind::Mismatch, "rank 0 sends f32[3] with tag 1, rank 1 receives f32[4]");
        assert_eq!(refusal(&to_control(&misfit).expect("it is short")), misfit);
        // One that says that somebody is lost would have the sender wait for the verdict of the mesh.
        for kind in [ErrorKind::PeerLost, ErrorKind::WorkerDied, ErrorKind::Closed] {
            let said = Error::new(kind, "gone").peer(Peer::named("rank-2"));
            let error = refusal(&to_control(&said).expect("it is short"));
            assert_eq!((error.kind(), error.causes().next()), (ErrorKind::Protocol, Some(&said)));
        }
        for nonsense in [FORGOTTEN, b"rank 0 sends", &[0xff; 40]] {
            assert_eq!(refusal(nonsense).kind(), ErrorKind::Protocol);
        }
    }
}
