//! The traffic itself, as both sides of a link see it.
//!
//! The leader orders one cell after the other and takes the time; the follower does its half until it is told to end. A
//! cell is one case with one size: it begins with rounds that do not count, which warm caches and links, and it is
//! checked that the bytes arrive.

use super::Case;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, LinkId, Result, Tag, Work};
use sheave_net::{Envelope, Message, Node, Outgoing, Wanted};
use sheave_tensor::{Dtype, Mode, Tensor};
use smallvec::{SmallVec, smallvec};
use std::time::{Duration, Instant};

/// The group of all messages here.
const CONTEXT: u64 = 0x62_656e_6368;
const ORDER: Tag = Tag(1);
const DATA: Tag = Tag(2);
const READY: Tag = Tag(3);

/// A cell that takes longer than this is a fault of the link, not a slow machine.
const CELL_TIMEOUT: Duration = Duration::from_secs(60);

/// Batches of a cell; the clock is looked at in between.
const BATCHES: usize = 8;

/// Digits that the times are recorded with.
pub(super) const DIGITS: u8 = 3;

/// What is measured of one case and one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) case: Case,
    pub(super) bytes: usize,
    /// Timed rounds: round trips, or windows of a stream.
    pub(super) iterations: usize,
    /// Time after which it ends early.
    pub(super) budget: Duration,
    /// Messages of a window.
    pub(super) window: usize,
}

/// What the leader tells the follower.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// A cell begins.
    Cell(Cell),
    /// So many rounds of it follow.
    Rounds(usize),
    /// The cell, or between cells everything, is over.
    End,
}

/// One end of the link that is measured.
pub(super) struct Side {
    pub(super) node: Node,
    pub(super) link: LinkId,
}

/// One end during one cell.
struct Run<'a> {
    side: &'a Side,
    cell: Cell,
    until: Option<Instant>,
}

impl Side {
    /// Measures a cell; adds nanoseconds per round trip, or per message of a stream.
    pub(super) fn lead(&self, cell: Cell, times: &mut Histogram<u64>) -> Result<()> {
        self.order(&Order::Cell(cell))?;
        let run = Run::new(self, cell);
        match cell.case {
            Case::PingPong => run.lead_ping_pong(times),
            Case::PingPongMove => run.lead_ping_pong_move(times),
            Case::Stream => run.lead_stream(times),
        }
    }

    /// Tells the follower that nothing more comes.
    pub(super) fn end(&self) -> Result<()> {
        self.order(&Order::End)
    }

    /// Does the follower's half until the leader ends it.
    pub(super) fn follow(&self) -> Result<()> {
        loop {
            let Order::Cell(cell) = self.next_order(None)? else { return Ok(()) };
            let run = Run::new(self, cell);
            match cell.case {
                Case::PingPong => run.follow_ping_pong()?,
                Case::PingPongMove => run.follow_ping_pong_move()?,
                Case::Stream => run.follow_stream()?,
            }
        }
    }

    fn order(&self, order: &Order) -> Result<()> {
        let bytes = serde_json::to_vec(order).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        let until = Instant::now() + CELL_TIMEOUT;
        self.node.send(self.link, Outgoing::control(Envelope::data(CONTEXT, ORDER), bytes), Some(until), None)
    }

    fn next_order(&self, until: Option<Instant>) -> Result<Order> {
        let message = self.node.recv(self.wanted(ORDER), SmallVec::new(), until, None)?;
        serde_json::from_slice(&message.control)
            .map_err(|error| Error::new(ErrorKind::Protocol, format!("an order that makes no sense: {error}")))
    }

    fn wanted(&self, tag: Tag) -> Wanted {
        Wanted { source: Some(self.link), context: CONTEXT, tag }
    }
}

impl<'a> Run<'a> {
    fn new(side: &'a Side, cell: Cell) -> Self {
        Self { side, cell, until: Some(Instant::now() + CELL_TIMEOUT) }
    }

    /// Times `round`, in batches; every batch begins with a round that does not count.
    fn lead_rounds(&self, times: &mut Histogram<u64>, mut round: impl FnMut() -> Result<()>) -> Result<()> {
        let messages = if self.cell.case == Case::Stream { self.cell.window as u64 } else { 1 };
        let warm_up = self.cell.iterations / 10 + 1;
        self.side.order(&Order::Rounds(warm_up))?;
        for _ in 0..warm_up {
            round()?;
        }
        let begun = Instant::now();
        let mut left = self.cell.iterations;
        while left > 0 && (left == self.cell.iterations || begun.elapsed() < self.cell.budget) {
            let batch = self.cell.iterations.div_ceil(BATCHES).min(left);
            self.side.order(&Order::Rounds(1 + batch))?;
            round()?;
            for _ in 0..batch {
                let begun = Instant::now();
                round()?;
                let round_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                // The histogram grows with its values, so that it refuses none.
                let _ = times.record(round_ns / messages);
            }
            left -= batch;
        }
        self.side.order(&Order::End)
    }

    fn follow_rounds(&self, mut round: impl FnMut() -> Result<()>) -> Result<()> {
        while let Order::Rounds(rounds) = self.side.next_order(self.until)? {
            for _ in 0..rounds {
                round()?;
            }
        }
        Ok(())
    }

    fn lead_ping_pong(&self, times: &mut Histogram<u64>) -> Result<()> {
        let (buffer, proof) = (self.tensor(true)?, self.tensor(false)?);
        self.send(&buffer)?;
        self.receive_into(&proof)?;
        check(&proof)?;
        drop(proof);
        self.lead_rounds(times, || {
            self.send(&buffer)?;
            self.receive_into(&buffer)
        })
    }

    fn follow_ping_pong(&self) -> Result<()> {
        let buffer = self.tensor(false)?;
        let round = || {
            self.receive_into(&buffer)?;
            self.send(&buffer)
        };
        round()?;
        self.follow_rounds(round)
    }

    fn lead_ping_pong_move(&self, times: &mut Histogram<u64>) -> Result<()> {
        let mut here = Some(self.tensor(true)?);
        self.lead_rounds(times, || {
            if let Some(tensor) = here.take() {
                self.send_moved(tensor)?;
            }
            here = Some(self.receive()?.into_tensor()?);
            Ok(())
        })?;
        here.as_ref().map_or(Ok(()), check)
    }

    fn follow_ping_pong_move(&self) -> Result<()> {
        self.follow_rounds(|| self.send_moved(self.receive()?.into_tensor()?))
    }

    /// A round waits until the follower is ready for a window, which says that the window before has arrived.
    fn lead_stream(&self, times: &mut Histogram<u64>) -> Result<()> {
        let buffer = self.tensor(true)?;
        let mut sending = Vec::with_capacity(self.cell.window);
        self.lead_rounds(times, || {
            self.side.node.recv(self.side.wanted(READY), SmallVec::new(), self.until, None)?;
            for _ in 0..self.cell.window {
                let message = Outgoing::tensor(Envelope::data(CONTEXT, DATA), buffer.clone(), Mode::Copy);
                sending.push(self.side.node.isend(self.side.link, message)?);
            }
            sending.drain(..).try_for_each(|work| self.finish(&work))
        })
    }

    fn follow_stream(&self) -> Result<()> {
        let places = (0..self.cell.window).map(|_| self.tensor(false)).collect::<Result<Vec<_>>>()?;
        self.follow_rounds(|| {
            let post = |place: &Tensor| self.side.node.irecv(self.side.wanted(DATA), smallvec![place.clone()]);
            let posted = places.iter().map(post).collect::<Result<Vec<Work<Message>>>>()?;
            let ready = Outgoing::control(Envelope::data(CONTEXT, READY), Vec::new());
            self.side.node.send(self.side.link, ready, self.until, None)?;
            posted.iter().try_for_each(|work| self.finish(work).map(drop))
        })?;
        places.iter().try_for_each(check)
    }

    fn send(&self, tensor: &Tensor) -> Result<()> {
        let message = Outgoing::tensor(Envelope::data(CONTEXT, DATA), tensor.clone(), Mode::Copy);
        self.side.node.send(self.side.link, message, self.until, None)
    }

    fn send_moved(&self, tensor: Tensor) -> Result<()> {
        let message = Outgoing::tensor(Envelope::data(CONTEXT, DATA), tensor, Mode::Move);
        self.side.node.send(self.side.link, message, self.until, None)
    }

    fn receive(&self) -> Result<Message> {
        self.side.node.recv(self.side.wanted(DATA), SmallVec::new(), self.until, None)
    }

    fn receive_into(&self, place: &Tensor) -> Result<()> {
        self.side.node.recv(self.side.wanted(DATA), smallvec![place.clone()], self.until, None).map(drop)
    }

    fn finish<T>(&self, work: &Work<T>) -> Result<T> {
        if work.wait_until(self.until, None)? {
            return work.taken();
        }
        Err(Error::new(ErrorKind::DeadlineExceeded, "a message did not arrive in time").elapsed(CELL_TIMEOUT))
    }

    /// A tensor of the arena, with the bytes that are sent or with zeros.
    fn tensor(&self, filled: bool) -> Result<Tensor> {
        let mut tensor = Tensor::empty(self.side.node.arena(), Dtype::U8, [self.cell.bytes as u64])?;
        let bytes = tensor.bytes_mut()?;
        if filled {
            bytes.chunks_mut(PATTERN.len()).for_each(|piece| piece.copy_from_slice(&PATTERN[..piece.len()]));
        } else {
            bytes.fill(0);
        }
        Ok(tensor)
    }
}

/// What is sent, over and over: its length is no power of two, so that no page is like the next.
const PATTERN: [u8; 4013] = {
    let mut pattern = [0; 4013];
    let mut at = 0;
    while at < pattern.len() {
        pattern[at] = (at % 251) as u8 + 1;
        at += 1;
    }
    pattern
};

fn check(tensor: &Tensor) -> Result<()> {
    let bytes = tensor.bytes()?;
    if bytes.chunks(PATTERN.len()).all(|piece| *piece == PATTERN[..piece.len()]) {
        return Ok(());
    }
    let what = format!("a message of {} bytes is not what was sent", tensor.len_bytes());
    Err(Error::new(ErrorKind::Internal, what))
}
