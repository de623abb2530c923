//! The messages of one operation, as one rank sends and receives them.
//!
//! Messages between two ranks of an operation form a stream: they share a context (group and sender) and a tag (the
//! sequence number), so they meet receives in the order of sending, whatever else travels between the two. Every one
//! carries the sender's header, and every receive checks it.
//!
//! **Everybody learns of a disagreement.** The first message that a rank sends to its successor (the next rank, the
//! last one's is rank 0) leaves at once when it enters, whatever it calls; and every rank looks at the first message
//! of its predecessor while it does anything else ([`entered`]). If not all ranks mean the same, somewhere in this
//! circle two neighbours differ; the latter of them finds out, and breaks the group with an error that shows both
//! sides, which the mesh tells to all. And nobody can have ended well meanwhile: in every algorithm a rank ends only
//! after messages have reached it, through ranks that checked them, from every other rank.

use crate::group::State;
use crate::long::{may_work, outside_calls, pause};
use crate::memory::{Region, places};
use crate::operation::Header;
use crate::task::Awaited;
use parking_lot::Mutex;
use sheave_base::limits::COLLECTIVE_CALL_BYTES_MAX;
use sheave_base::{Error, ErrorKind, Result, Tag, Work};
use sheave_net::{Envelope, Message, Outgoing, Part, Tensors, Wanted, was_closed_in_order};
use sheave_tensor::Mode;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

/// Contexts of collectives, apart from those of messages.
pub(crate) const SORT: u64 = 1;

pub(crate) struct Exchange {
    pub(crate) state: Arc<State>,
    pub(crate) header: Header,
    pub(crate) sequence: u64,
    /// It takes longer than a call may.
    is_long: bool,
    awaited: Arc<Awaited>,
    /// Sends that still read this operation's memory.
    sends: Mutex<Vec<Work<()>>>,
    /// A message did not fit its place, which its link saw before its header was looked at. Ranks that agree send what
    /// fits, so some ranks disagree, and the neighbours that do will say how.
    misfits: AtomicBool,
}

impl Exchange {
    pub(crate) fn new(state: Arc<State>, header: Header, sequence: u64, awaited: Arc<Awaited>) -> Self {
        let bytes = header.count.saturating_mul(header.dtype.size_bytes() as u64);
        let is_long = bytes > COLLECTIVE_CALL_BYTES_MAX as u64;
        Self { state, header, sequence, is_long, awaited, sends: Mutex::default(), misfits: AtomicBool::new(false) }
    }

    pub(crate) fn rank(&self) -> u32 {
        self.header.rank
    }

    pub(crate) fn size(&self) -> u32 {
        self.state.size()
    }

    /// The rank so many places further on.
    pub(crate) fn after(&self, places: u32) -> u32 {
        (self.rank() + places % self.size()) % self.size()
    }

    /// The rank so many places before.
    pub(crate) fn before(&self, places: u32) -> u32 {
        (self.rank() + self.size() - places % self.size()) % self.size()
    }

    /// Something inside the operation did not fit, which ranks that disagree cause: the entry will say how they do.
    pub(crate) fn note_misfit(&self) {
        self.misfits.store(true, Relaxed);
    }

    /// Memory of the operation's own.
    pub(crate) fn scratch(&self, len_bytes: usize) -> Result<Region> {
        Region::scratch(self.state.hub.node.arena(), len_bytes)
    }

    /// Sends a header and perhaps bytes, which must not change until [`Exchange::flush`].
    pub(crate) async fn send(&self, to: u32, part: Option<&Region>) -> Result<()> {
        self.send_counted(to, part, 0).await
    }

    /// As [`Exchange::send`]; the header says how many elements it announces.
    pub(crate) async fn send_counted(&self, to: u32, part: Option<&Region>, count: u64) -> Result<()> {
        if self.is_long && part.is_some() {
            outside_calls().await;
        }
        let link = self.state.link(to).await?;
        let context = self.state.context(self.rank(), SORT);
        let mut message = Outgoing::control(
            Envelope::data(context, Tag(self.sequence)),
            Header { part: count, ..self.header }.encode(),
        );
        if let Some(part) = part.filter(|part| part.len_bytes() > 0) {
            message.parts.push(Part::new(part.tensor()?, Mode::Copy));
        }
        let work = self.state.hub.node.isend_borrowed(link, message).map_err(Error::unnamed)?;
        if work.is_done() {
            return work.taken().map_err(Error::unnamed);
        }
        let mut sends = self.sends.lock();
        sends.retain(|send| !send.is_done() || matches!(send.result(), Some(Err(_))));
        sends.push(work);
        Ok(())
    }

    /// Starts to receive the next message of a rank; its bytes land in `place`, or where the message says.
    pub(crate) fn post(&self, from: u32, place: Option<&Region>) -> Result<Receiving<'_>> {
        let work = self.want(from, place)?;
        Ok(Receiving { exchange: self, from, place: place.cloned(), work: Some(work) })
    }

    fn want(&self, from: u32, place: Option<&Region>) -> Result<Work<Message>> {
        let context = self.state.context(from, SORT);
        let wanted = Wanted { source: None, context, tag: Tag(self.sequence) };
        self.state.hub.node.irecv(wanted, places(place)?)
    }

    /// Receives the next message of a rank into `place`.
    pub(crate) async fn receive(&self, from: u32, place: Option<&Region>) -> Result<()> {
        self.post(from, place)?.await.map(drop)
    }

    /// Waits until nothing that was sent is read any more.
    ///
    /// Whoever is lost by then reads nothing. That is no failure of this rank's part: a receiver that had all it needed
    /// may leave, and end its link, before the link says here that the last message was taken; and one that died has
    /// left this rank's memory as it is. What this rank itself still needs of others, it receives.
    pub(crate) async fn flush(&self) -> Result<()> {
        loop {
            let Some(send) = self.sends.lock().pop() else { return Ok(()) };
            let sent = send.await;
            sent.or_else(|error| if error.kind().is_loss() { Ok(()) } else { Err(error) })?;
        }
    }

    fn check(&self, message: &Message, from: u32) -> Result<Header> {
        let theirs = Header::decode(&message.control)?;
        if theirs.rank != from {
            let what = format!("rank {} sent what rank {from} was to send", theirs.rank);
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        self.header.check(&theirs, self.sequence)?;
        Ok(theirs)
    }
}

/// A message on its way. Dropped early, it is not wanted any more.
pub(crate) struct Receiving<'a> {
    exchange: &'a Exchange,
    from: u32,
    place: Option<Region>,
    work: Option<Work<Message>>,
}

impl Future for Receiving<'_> {
    type Output = Result<(Header, Tensors)>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let message = loop {
            let Some(work) = &self.work else {
                return Poll::Ready(Err(Error::new(ErrorKind::Internal, "a message was taken twice")));
            };
            // Asked first: what a member has sent that has said all is here by then.
            let departure = self.exchange.state.departure(self.from);
            if self.exchange.is_long && !may_work() {
                // What is done with it is for those who poll, and they come at once.
                pause(context.waker());
                return Poll::Pending;
            }
            if work.poll_done(context).is_pending() {
                self.exchange.awaited.set(self.from);
                return departure.map_or(Poll::Pending, |error| Poll::Ready(Err(error)));
            }
            let message = work.taken();
            self.work = match &message {
                // This node's last link was closed in order, by a member that leaves perhaps, before the one was made
                // over which this message comes. Nothing of it was under way, and those that follow are wanted later.
                Err(error) if was_closed_in_order(error) => Some(self.exchange.want(self.from, self.place.as_ref())?),
                _ => None,
            };
            if self.work.is_none() {
                break message;
            }
        };
        if message.as_ref().is_err_and(|error| error.kind() == ErrorKind::Mismatch) {
            self.exchange.misfits.store(true, Relaxed);
        }
        Poll::Ready(message.and_then(|message| {
            let header = self.exchange.check(&message, self.from)?;
            Ok((header, message.parts))
        }))
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            work.cancel();
        }
    }
}

/// Runs the steps of an algorithm while it watches for the entry of the predecessor, which every rank sends first.
///
/// An algorithm that `opens` begins, on every rank, by sending its header to the successor and looking at the
/// predecessor's, and needs no other entry.
pub(crate) async fn entered(exchange: &Exchange, opens: bool, steps: impl Future<Output = Result<()>>) -> Result<()> {
    if opens || exchange.size() == 1 {
        steps.await?;
        return exchange.flush().await;
    }
    let mut entry = exchange.post(exchange.before(1), None)?;
    exchange.send(exchange.after(1), None).await?;
    let mut steps = pin!(steps);
    let (mut is_entered, mut is_through) = (false, false);
    poll_fn(|context| {
        if !is_entered {
            match Pin::new(&mut entry).poll(context) {
                Poll::Ready(Ok(_)) => is_entered = true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        if !is_through && !exchange.misfits.load(Relaxed) {
            match steps.as_mut().poll(context) {
                Poll::Ready(Ok(())) => is_through = true,
                // Whoever finds the reason tells it to all.
                Poll::Ready(Err(_)) if exchange.misfits.load(Relaxed) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        if is_entered && is_through { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await?;
    exchange.flush().await
}
