//! Direct operations that only move bytes: broadcast, gather, scatter, all-gather and all-to-all.
//!
//! For each pair of ranks with bytes to move there is one way, which both derive from the entries:
//!
//! * *pulled*: the input can be mapped, so its reader copies from it; except in a gather, where
//! * *pushed*: the output can be mapped, so the input's owner writes there, and the root need not do it all;
//! * *by window*: neither can be mapped. The owner fills rounds of its window, with the same bytes for all where all
//!   get the same, else with a part for each; readers copy from there.
//!
//! Counters: *filled* rounds of this rank's window; *taken* rounds of the windows that this rank reads, and
//! [`THROUGH`] when it has pulled, pushed, filled and taken everything. A round is overwritten two rounds later, when
//! all its readers have taken it. The operation is over when all ranks are through. Nobody waits in a circle: let t be
//! the least round that anybody has still to take. Its sources have all rounds before it taken, so they fill it.
//!
//! **Nobody touches the same bytes**: inputs are only read, and are not this rank's output but where that part of it
//! is not written by anybody; each byte of an output is written by one rank.

use super::board::Place;
use super::desk::{COUNT_MAX, Counter};
use super::reduction::part;
use super::run::Run;
use super::{ROUND_BYTES, ROUNDS, Span, input_at, part_bytes, part_of, span};
use crate::operation::{Header, Kind};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{copy_bytes, copy_piece, hand_over};

/// What long work copies at once where nothing is computed: the fewest bytes that go around the cache.
const COPY_BYTES: usize = 4 << 20;

/// What a rank that is through has taken.
const THROUGH: u64 = COUNT_MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Nothing,
    Pulled,
    Pushed,
    Window,
}

/// What goes to and comes from another rank.
struct Peer {
    sends: Span,
    sends_by: Way,
    gets: Span,
    gets_by: Way,
    /// Its input, its output or its window, as the ways need them.
    source: Option<Place>,
    target: Option<Place>,
}

pub(super) struct Movement {
    peers: Vec<Peer>,
    /// All readers of a window get the same.
    is_common: bool,
    /// Bytes of a round for one reader.
    at_once: usize,
    /// Rounds of this rank's window, and of those that it reads.
    fills: u64,
    takes: u64,
    /// What is copied without a window: how many of [`Movement::copies`] have been, and bytes of the next one.
    copied: usize,
    within: usize,
    filled: u64,
    taken: u64,
    is_through: bool,
}

impl Movement {
    /// None while memory of somebody is not known here yet.
    pub(super) fn new(run: &Run) -> Result<Option<Self>> {
        let (kind, size, index) = (run.header.kind, run.size(), run.board().index);
        let sent = tables(run)?;
        let mut peers = Vec::with_capacity(size);
        for seat in 0..size {
            let sends = span(run, index, seat, &sent[index])?;
            let gets = span(run, seat, index, &sent[seat])?;
            let mut peer = Peer {
                sends_by: way(run, index, seat, sends),
                gets_by: way(run, seat, index, gets),
                sends,
                gets,
                source: None,
                target: None,
            };
            if seat != index && !find(run, seat, &mut peer, &sent)? {
                return Ok(None);
            }
            peers.push(peer);
        }
        let is_common = matches!(kind, Kind::Broadcast | Kind::AllGather | Kind::AllGatherV);
        let at_once = if is_common { ROUND_BYTES } else { part_bytes(size) };
        let rounds = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0).div_ceil(at_once) as u64;
        let read = |peer: &&Peer| peer.sends_by == Way::Window;
        let written = |peer: &&Peer| peer.gets_by == Way::Window;
        Ok(Some(Self {
            fills: rounds(&mut peers.iter().filter(read).map(|peer| peer.sends.length)),
            takes: rounds(&mut peers.iter().filter(written).map(|peer| peer.gets.length)),
            peers,
            is_common,
            at_once,
            copied: 0,
            within: 0,
            filled: 0,
            taken: 0,
            is_through: false,
        }))
    }

    /// Goes on. True when it is over.
    pub(super) fn advance(&mut self, run: &Run, moved: &mut bool) -> Result<bool> {
        let board = run.board();
        let counted = |seat: usize, counter| board.seats[seat].desk.counted(run.sequence, counter);
        while !self.is_through {
            if run.is_turn_over() {
                return Ok(false);
            }
            let mut went_on = false;
            if self.filled < self.fills && self.may_fill(|seat| counted(seat, Counter::Taken)) {
                self.fill(run)?;
                self.filled += 1;
                board.count(run.sequence, Counter::Filled, self.filled);
                went_on = true;
            }
            if self.copied < Self::copies(run) {
                self.copy_some(run)?;
                went_on = true;
            }
            if self.taken < self.takes && self.sources().all(|seat| counted(seat, Counter::Filled) > self.taken) {
                self.take(run)?;
                self.taken += 1;
                board.count(run.sequence, Counter::Taken, self.taken);
                went_on = true;
            }
            if self.copied == Self::copies(run) && self.filled == self.fills && self.taken == self.takes {
                board.count(run.sequence, Counter::Taken, THROUGH);
                self.is_through = true;
                went_on = true;
            }
            if !went_on {
                return Ok(false);
            }
            *moved = true;
        }
        Ok(board.others().all(|(seat, _)| counted(seat, Counter::Taken) == THROUGH))
    }

    /// Those who read this rank's window in a round.
    fn readers(&self, round: u64) -> impl Iterator<Item = usize> {
        let from = round as usize * self.at_once;
        let reads = move |peer: &Peer| peer.sends_by == Way::Window && peer.sends.length > from;
        self.peers.iter().enumerate().filter(move |(_, peer)| reads(peer)).map(|(seat, _)| seat)
    }

    /// Whether all have taken what the next round of this rank's window is written over.
    fn may_fill(&self, counted: impl Fn(usize) -> u64) -> bool {
        let Some(before) = self.filled.checked_sub(ROUNDS) else { return true };
        // Who got nothing then takes no part, and may itself wait for somebody who waits for this rank.
        self.readers(before).all(|seat| counted(seat) > before)
    }

    /// Those whose windows this rank reads in the next round.
    fn sources(&self) -> impl Iterator<Item = usize> {
        let from = self.taken as usize * self.at_once;
        let reads = move |peer: &Peer| peer.gets_by == Way::Window && peer.gets.length > from;
        self.peers.iter().enumerate().filter(move |(_, peer)| reads(peer)).map(|(seat, _)| seat)
    }

    /// A round of a span: where it begins in it, and how long it is.
    fn round_of(&self, span: Span, round: u64) -> (usize, usize) {
        let from = (round as usize * self.at_once).min(span.length);
        (from, self.at_once.min(span.length - from))
    }

    /// Where in a round of `from`'s window `by` finds its bytes.
    fn in_window(&self, run: &Run, from: usize, by: usize, round: u64) -> usize {
        let first = input_at(run.size(), round);
        if self.is_common { first } else { first + part_of(from, by) * part_bytes(run.size()) }
    }

    fn fill(&self, run: &Run) -> Result<()> {
        let (index, job) = (run.board().index, run.job()?);
        let (input, window) = (part(job.input.as_ref())?, part(run.window())?);
        if let Some(own) = self.own_with_window(run) {
            // While its bytes are near.
            let (from, length) = self.round_of(own, self.filled);
            let target = part(job.output.as_ref())?.part(own.target + from..own.target + from + length).start();
            let source = input.part(own.source + from..own.source + from + length).start();
            if !std::ptr::eq(source, target) {
                // SAFETY: as for the copy without a window, of which this is a round.
                unsafe { copy_piece(target, source, length, own.length) };
                run.spend(2 * length);
            }
        }
        let readers = self.readers(self.filled).take(if self.is_common { 1 } else { usize::MAX });
        for seat in readers {
            let span = self.peers[seat].sends;
            let (from, length) = self.round_of(span, self.filled);
            let into = self.in_window(run, index, seat, self.filled);
            // SAFETY: the input is leased, and the span inside it; all readers of that part of the window have taken
            // what it held before.
            unsafe { hand_over(window.start().add(into), input.start().add(span.source + from), length) };
            run.spend(2 * length);
        }
        Ok(())
    }

    /// This rank's own part, if it is copied round by round as its window is filled: where all get the same bytes.
    fn own_with_window(&self, run: &Run) -> Option<Span> {
        let own = self.peers[run.board().index].gets;
        let is_same = self.fills > 0 && matches!(run.header.kind, Kind::AllGather | Kind::AllGatherV);
        (is_same && own.length > 0).then_some(own)
    }

    /// How many copies need no window: this rank's own part, and what it writes to and reads from each other rank.
    fn copies(run: &Run) -> usize {
        2 * run.size() - 1
    }

    /// Makes the next one of these, or the next piece of it.
    fn copy_some(&mut self, run: &Run) -> Result<()> {
        let (source, target, length) = self.copy(run, self.copied)?;
        let at = self.within;
        let piece = (length - at).min(run.turn_bytes().map_or(usize::MAX, |_| COPY_BYTES));
        if piece > 0 && !std::ptr::eq(source, target) {
            // SAFETY: this part of the output, this rank's or another one's, is written by nobody else; inputs are
            // leased, and nobody writes them before all are through. Where both are one rank's they are the same
            // bytes, which stay as they are, or do not overlap.
            unsafe {
                let copy = if is_pushed(self.copied) { hand_over } else { copy_bytes };
                copy(target.wrapping_add(at), source.wrapping_add(at), piece);
            }
            run.spend(2 * piece);
        }
        self.within += piece;
        if self.within == length {
            (self.copied, self.within) = (self.copied + 1, 0);
        }
        Ok(())
    }

    /// From where and whereto how many bytes one of them goes.
    fn copy(&self, run: &Run, number: usize) -> Result<(*const u8, *mut u8, usize)> {
        let (index, job) = (run.board().index, run.job()?);
        let nothing = (std::ptr::null(), std::ptr::null_mut(), 0);
        let Some(step) = number.checked_sub(1) else {
            let own = self.peers[index].gets;
            return Ok(match (&job.input, &job.output) {
                (Some(input), Some(output)) if own.length > 0 && self.own_with_window(run).is_none() => {
                    let input = input.part(own.source..own.source + own.length);
                    (input.start().cast_const(), output.part(own.target..own.target + own.length).start(), own.length)
                }
                _ => nothing,
            });
        };
        let peer = &self.peers[(index + 1 + step / 2) % run.size()];
        if is_pushed(number) && peer.sends_by == Way::Pushed {
            let input = part(job.input.as_ref())?.part(peer.sends.source..peer.sends.source + peer.sends.length);
            let target = start(peer.target.as_ref())?.wrapping_add(peer.sends.target);
            return Ok((input.start(), target, input.len_bytes()));
        }
        if !is_pushed(number) && peer.gets_by == Way::Pulled {
            let output = part(job.output.as_ref())?.part(peer.gets.target..peer.gets.target + peer.gets.length);
            let source = start(peer.source.as_ref())?.wrapping_add(peer.gets.source);
            return Ok((source, output.start(), output.len_bytes()));
        }
        Ok(nothing)
    }

    fn take(&self, run: &Run) -> Result<()> {
        let index = run.board().index;
        let output = part(run.job()?.output.as_ref())?;
        for seat in self.sources() {
            let peer = &self.peers[seat];
            let (from, length) = self.round_of(peer.gets, self.taken);
            let target = output.part(peer.gets.target + from..peer.gets.target + from + length);
            let source = start(peer.source.as_ref())?.wrapping_add(self.in_window(run, seat, index, self.taken));
            // SAFETY: the round is filled, and stays so until this rank has taken it; the output is leased.
            unsafe { copy_piece(target.start(), source, target.len_bytes(), peer.gets.length) };
            run.spend(2 * target.len_bytes());
        }
        Ok(())
    }
}

/// Whether one of [`Movement::copies`] writes to another rank; this rank's own part is the first of them.
const fn is_pushed(number: usize) -> bool {
    number % 2 == 1
}

fn start(place: Option<&Place>) -> Result<*mut u8> {
    let found = place.map(|place| place.start);
    found.ok_or_else(|| Error::new(ErrorKind::Internal, "memory of another rank was not looked for"))
}

fn way(run: &Run, from: usize, by: usize, span: Span) -> Way {
    if from == by || span.length == 0 {
        return Way::Nothing;
    }
    match (run.shows(from).0, run.shows(by).1) {
        (_, true) if run.header.kind == Kind::Gather => Way::Pushed,
        (true, _) => Way::Pulled,
        (false, true) => Way::Pushed,
        (false, false) => Way::Window,
    }
}

/// Finds what this rank needs of another one's memory. False while that is not known here.
fn find(run: &Run, seat: usize, peer: &mut Peer, sent: &[Vec<usize>]) -> Result<bool> {
    let (board, index) = (run.board(), run.board().index);
    let [first, second, third, fourth] = run.entries[seat].words;
    let there = &board.seats[seat];
    peer.source = match peer.gets_by {
        Way::Pulled => {
            let length = peer.gets.source + peer.gets.length;
            board.place(there, [first, second], length)?
        }
        Way::Window => board.place(there, [first, second], super::window_bytes(run.size()))?,
        Way::Pushed | Way::Nothing => None,
    };
    if peer.sends_by == Way::Pushed {
        // Where this rank's bytes lie in the other's output is for the other to say, where lengths differ.
        peer.sends.target = match run.header.kind {
            Kind::AllToAllV => sent[..index].iter().map(|sent| sent.get(seat).copied().unwrap_or_default()).sum(),
            _ => peer.sends.target,
        };
        peer.target = board.place(there, [third, fourth], peer.sends.target + peer.sends.length)?;
    }
    let needs_source = matches!(peer.gets_by, Way::Pulled | Way::Window);
    Ok((peer.source.is_some() || !needs_source) && (peer.target.is_some() || peer.sends_by != Way::Pushed))
}

/// What each rank sends to each, in bytes, of an all-to-all with differing lengths. What one sends and the other
/// expects is compared here, for all pairs, before anybody writes into memory of others.
fn tables(run: &Run) -> Result<Vec<Vec<usize>>> {
    let size = run.size();
    if run.header.kind != Kind::AllToAllV {
        return Ok(vec![Vec::new(); size]);
    }
    let own = run.job()?.pieces.as_ref();
    let own = own.ok_or_else(|| Error::new(ErrorKind::Internal, "a rank without its pieces"))?;
    let table = |seat: usize, first: usize| -> Result<Vec<usize>> {
        if seat == run.board().index {
            // This rank knows its own better than its block, which others can write too.
            let pieces = if first == 0 { &own.sent } else { &own.received };
            return Ok(pieces.iter().map(ExactSizeIterator::len).collect());
        }
        let lengths = run.board().seats[seat].desk.words().payload(run.sequence).cast::<u64>();
        // SAFETY: every rank has written both its tables before it entered, and leaves them until all have finished.
        let lengths = (first..first + size).map(|at| unsafe { lengths.add(at).read() });
        credible(run.board().seats[seat].rank, lengths)
    };
    let sent = (0..size).map(|seat| table(seat, 0)).collect::<Result<Vec<_>>>()?;
    for by in 0..size {
        for (from, (sent, expected)) in sent.iter().zip(table(by, size)?).enumerate() {
            if sent[by] != expected {
                return Err(differs(&run.header, [from, by], [sent[by], expected], run.sequence));
            }
        }
    }
    Ok(sent)
}

/// The lengths that another rank has written, if no memory is too short for all of them: then no sum of some of them
/// wraps around. Whether they are inside what it has shown is seen when they are looked for there.
fn credible(rank: u32, lengths: impl Iterator<Item = u64>) -> Result<Vec<usize>> {
    let mut total = 0_u64;
    let mut checked = Vec::new();
    for length in lengths {
        total = total.saturating_add(length);
        if total > isize::MAX as u64 {
            let what = format!("rank {rank} has entered all_to_all_v with {total} bytes, more than any memory has");
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        checked.push(length as usize);
    }
    Ok(checked)
}

#[cold]
fn differs(header: &Header, [from, by]: [usize; 2], bytes: [usize; 2], sequence: u64) -> Error {
    let dtype = header.dtype;
    let [sent, expected] = bytes.map(|bytes| bytes / dtype.size_bytes());
    let what = format!(
        "rank {from} sends {dtype}[{sent}] to rank {by}, which expects {dtype}[{expected}], sequence {sequence}"
    );
    Error::new(ErrorKind::Mismatch, what).operation("all_to_all_v")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Job, Pieces};
    use crate::memory::Region;
    use crate::operation::Form;
    use crate::shared::board::{Board, Seat, TensorWords};
    use crate::shared::desk::Entry;
    use crate::table::Algorithm;
    use sheave_tensor::{Arena, ArenaConfig, Dtype, Tensor};
    use std::sync::Arc;
    use std::task::Poll;

    /// Two ranks of one process; the second one enters with whatever lengths a test gives it.
    fn entered_with(sent: [u64; 2], received: [u64; 2]) -> Result<()> {
        entered_after(sent, received, |_| ())
    }

    /// As [`entered_with`], and before this rank looks something is done to its board.
    fn entered_after(sent: [u64; 2], received: [u64; 2], tamper: impl FnOnce(&Board)) -> Result<()> {
        let arena = Arena::new(ArenaConfig { capacity_bytes: 16 << 20, ..ArenaConfig::default() });
        let desks = [0, 1].map(|_| TensorWords::memory(&arena).expect("there is room"));
        let board = |index: usize| {
            let seat = |rank: u32| Seat::new(rank, desks[rank as usize].clone(), None).expect("it is a desk");
            Arc::new(Board::new(index, vec![seat(0), seat(1)], arena.clone(), Arc::default()))
        };
        let (liar, honest) = (board(0), board(1));
        let header = Header {
            kind: Kind::AllToAllV,
            operator: None,
            dtype: Dtype::U8,
            root: 0,
            form: Form::One,
            tensors: 0,
            count: 0,
            digest: 0,
            table: 0,
            rank: 1,
            part: 0,
        };
        let [input, output] = [0, 1].map(|_| Tensor::from_slice(&[1_u8; 64], [64]).expect("memory"));
        let read = Region::reading(&input, "test").expect("free");
        let written = Region::writing(&output, "test").expect("free");
        let pieces = Pieces { sent: vec![0..32, 32..64], received: vec![0..32, 32..64], differ: true };
        let job = Job { pieces: Some(pieces), ..Job::of(Some(&read), Some(&written), None, None) };
        let mut run = Run::new(honest, 0, header, job, Algorithm::Direct);
        let mut moved = false;
        assert!(run.poll(&mut moved).is_pending(), "the other one has not entered");
        let lengths = liar.own().words().payload(0).cast::<u64>();
        for (at, length) in sent.into_iter().chain(received).enumerate() {
            // SAFETY: the slot is this rank's alone until it has entered, and longer than that.
            unsafe { lengths.add(at).write(length) };
        }
        let own = run.board().own().entered(0).expect("nobody overtakes").expect("it has entered").0;
        // It names its input as its output, so that what it sends lies where the other one would look.
        liar.enter(0, &Entry { words: own.words, ..own }).expect("it is whole");
        tamper(run.board());
        let polled = run.poll(&mut moved);
        assert_eq!(run.entries[1], own, "what this rank has entered with");
        match polled {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Ok(()),
        }
    }

    /// The other rank can write this rank's control block as well as its own.
    #[test]
    fn f43_a_rank_believes_its_own_lengths_and_places_and_nobody_elses() {
        let longer = |board: &Board| {
            // SAFETY: nobody reads it now.
            unsafe { board.own().words().payload(0).cast::<u64>().write(4096) };
        };
        let error = entered_after([32, 32], [32, 4096], longer).expect_err("this rank sends 32 bytes, as it knows");
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        let elsewhere = |board: &Board| {
            let (entry, _) = board.own().entered(0).expect("nobody overtakes").expect("it has entered");
            board.own().enter(0, 0, &Entry { words: [0; 4], ..entry });
        };
        entered_after([32, 32], [32, 32], elsewhere).expect("this rank knows where its memory is");
    }

    #[test]
    fn f11_lengths_that_wrap_around_are_refused_before_anything_is_touched() {
        entered_with([32, 32], [32, 32]).expect("the lengths fit");
        let below = 4096_u64.wrapping_neg();
        // What it sends to itself nobody else expects; so the place of all that follows would lie before its memory.
        for (sent, received) in [([below, 32], [below, 32]), ([u64::MAX, 32], [u64::MAX, 32])] {
            let error = entered_with(sent, received).expect_err("no memory is that long");
            assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        }
        let error = entered_with([32, 31], [32, 32]).expect_err("32 bytes are expected");
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    }
}
