//! Direct reductions: each rank reduces its piece of all inputs and hands it to everybody.
//!
//! * *Filled*: rounds of this rank's input that stand in its window, for ranks whose input others cannot map.
//! * *Reduced*: rounds of this rank's piece that are reduced, and written into every output that can be mapped.
//! * *Taken*: rounds that this rank has copied from others into an output that they cannot map; at the end one more
//!   than there are.
//!
//! If all memory can be mapped there is one round. A round of the window is overwritten two rounds later, when every
//! other rank has reduced what it was filled with; a round of results, when all that must take it have.
//!
//! **Nobody touches the same bytes**: piece p of every input is read, and piece p of every output written, by rank p
//! alone, block by block, first read and then written; so inputs may be outputs. A rank takes a piece from rank p only
//! after p has reduced it, and p never touches it again.

use super::block::{Operands, reduce_all};
use super::board::Place;
use super::desk::Counter;
use super::run::Run;
use super::{ROUNDS, input_at, part_bytes, part_of, results_at};
use crate::memory::Region;
use crate::numbers::Numbers;
use crate::operation::Kind;
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{copy_bytes, hand_over};
use smallvec::SmallVec;
use std::ops::Range;

/// Pieces begin at whole lines, so that no line is written by two ranks.
const LINE_BYTES: usize = 64;

/// Another rank's memory, as far as this one may use it.
struct Peer {
    input: Option<Place>,
    output: Option<Place>,
    window: Option<Place>,
}

pub(super) struct Reduction {
    numbers: Numbers,
    peers: Vec<Peer>,
    /// Each rank's elements.
    pieces: Vec<Range<usize>>,
    /// Elements of a round, of each piece.
    at_once: usize,
    rounds: u64,
    /// What this rank must do in each round beside reducing.
    fills: bool,
    takes: bool,
    /// Seats whose windows this rank's input comes from, and seats that must take what this rank has reduced.
    filling: SmallVec<[usize; 8]>,
    taking: SmallVec<[usize; 8]>,
    filled: u64,
    reduced: u64,
    /// Elements of the next round that are reduced.
    within: usize,
    taken: u64,
    is_through: bool,
}

impl Reduction {
    /// None while memory of somebody is not known here yet.
    pub(super) fn new(run: &Run) -> Result<Option<Self>> {
        let job = run.job()?;
        let numbers = job.numbers.ok_or_else(|| Error::new(ErrorKind::Internal, "a reduction without its operator"))?;
        let (kind, size, index) = (run.header.kind, run.size(), run.board().index);
        let Some(peers) = find(run)? else { return Ok(None) };
        let pieces: Vec<_> = (0..size).map(|seat| piece(run, numbers, seat)).collect();
        let hidden_input = |seat: usize| size > 1 && !run.shows(seat).0;
        // Who must copy results into its own memory.
        let must_take = |seat: usize| {
            let gets_all = kind == Kind::AllReduce || kind == Kind::Reduce && run.header.root as usize == seat;
            size > 1 && gets_all && !run.shows(seat).1
        };
        let longest = pieces.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        let in_rounds = (0..size).any(|seat| hidden_input(seat) || must_take(seat));
        let at_once = if in_rounds { part_bytes(size) / numbers.dtype().size_bytes() } else { longest.max(1) };
        Ok(Some(Self {
            numbers,
            rounds: longest.div_ceil(at_once).max(1) as u64,
            fills: hidden_input(index),
            takes: must_take(index),
            filling: (0..size).filter(|seat| *seat != index && hidden_input(*seat)).collect(),
            taking: (0..size).filter(|seat| *seat != index && must_take(*seat)).collect(),
            peers,
            pieces,
            at_once,
            filled: 0,
            reduced: 0,
            within: 0,
            taken: 0,
            is_through: false,
        }))
    }

    /// Goes on. True when it is over.
    pub(super) fn advance(&mut self, run: &Run, moved: &mut bool) -> Result<bool> {
        let board = run.board();
        let counted = |seat: usize, counter| board.seats[seat].desk.counted(run.sequence, counter);
        let others = || board.others().map(|(seat, _)| seat);
        while !self.is_through {
            if run.is_turn_over() {
                return Ok(false);
            }
            let mut went_on = false;
            if self.fills
                && self.filled < self.rounds
                && others().all(|seat| counted(seat, Counter::Reduced) + ROUNDS > self.filled)
            {
                self.fill(run)?;
                self.filled += 1;
                board.count(run.sequence, Counter::Filled, self.filled);
                went_on = true;
            }
            if self.reduced < self.rounds
                && self.filling.iter().all(|seat| counted(*seat, Counter::Filled) > self.reduced)
                && self.taking.iter().all(|seat| counted(*seat, Counter::Taken) + ROUNDS > self.reduced)
            {
                if self.reduce(run)? {
                    self.reduced += 1;
                    board.count(run.sequence, Counter::Reduced, self.reduced);
                }
                went_on = true;
            }
            if self.takes
                && self.taken < self.rounds
                && others().all(|seat| counted(seat, Counter::Reduced) > self.taken)
            {
                self.take(run)?;
                self.taken += 1;
                board.count(run.sequence, Counter::Taken, self.taken);
                went_on = true;
            }
            let has_filled = !self.fills || self.filled == self.rounds;
            let has_taken = !self.takes || self.taken == self.rounds;
            if has_filled && has_taken && self.reduced == self.rounds {
                board.count(run.sequence, Counter::Taken, self.rounds + 1);
                self.is_through = true;
                went_on = true;
            }
            if !went_on {
                return Ok(false);
            }
            *moved = true;
        }
        Ok(others().all(|seat| counted(seat, Counter::Taken) > self.rounds))
    }

    /// This round's elements of a piece.
    fn round_of(&self, seat: usize, round: u64) -> Range<usize> {
        let piece = &self.pieces[seat];
        let start = (piece.start + round as usize * self.at_once).min(piece.end);
        start..(start + self.at_once).min(piece.end)
    }

    fn bytes_of(&self, elements: &Range<usize>) -> (usize, usize) {
        let bytes = self.numbers.bytes_of(elements);
        (bytes.start, bytes.len())
    }

    /// Copies what others need of this rank's input into its window.
    fn fill(&self, run: &Run) -> Result<()> {
        let (size, index) = (run.size(), run.board().index);
        let (input, window) = (part(run.job()?.input.as_ref())?, part(run.window())?);
        for (seat, _) in run.board().others() {
            let (at, length) = self.bytes_of(&self.round_of(seat, self.filled));
            let into = input_at(size, self.filled) + part_of(index, seat) * part_bytes(size);
            // SAFETY: the input is leased and that long; the window holds that part, which nobody reads: all have
            // reduced what it held before.
            unsafe { hand_over(window.start().add(into), input.start().add(at), length) };
            run.spend(2 * length);
        }
        Ok(())
    }

    /// Reduces this rank's piece of the round and hands it on, as much of it as is worked on at once. True when it is
    /// through with the round.
    fn reduce(&mut self, run: &Run) -> Result<bool> {
        let elements = self.round_of(run.board().index, self.reduced);
        // Every rank's input is read, and every rank's output written.
        let bytes_each = 2 * run.size() * self.numbers.dtype().size_bytes();
        let at_once = run.turn_bytes().map_or(usize::MAX, |bytes| (bytes / bytes_each).max(1));
        let start = elements.start + self.within;
        let end =
            elements.end.min(start.saturating_add(at_once.checked_next_multiple_of(LINE_BYTES).unwrap_or(at_once)));
        self.reduce_elements(run, start..end, self.within)?;
        run.spend(bytes_each * (end - start));
        let is_through = end == elements.end;
        self.within = if is_through { 0 } else { end - elements.start };
        Ok(is_through)
    }

    /// Reduces these elements, which so many others of the round come before.
    fn reduce_elements(&self, run: &Run, elements: Range<usize>, before: usize) -> Result<()> {
        let (size, index, kind) = (run.size(), run.board().index, run.header.kind);
        let job = run.job()?;
        let (at, _) = self.bytes_of(&elements);
        let within = self.bytes_of(&(0..before)).1;
        let mut sources = SmallVec::new();
        for (seat, peer) in self.peers.iter().enumerate() {
            let start: *const u8 = match (seat == index, &peer.input, &peer.window) {
                (true, ..) => part(job.input.as_ref())?.start().wrapping_add(at),
                (false, Some(input), _) => input.start.wrapping_add(at),
                (false, None, Some(window)) => {
                    let from = input_at(size, self.reduced) + part_of(seat, index) * part_bytes(size) + within;
                    window.start.wrapping_add(from)
                }
                (false, None, None) => return Err(hidden(seat)),
            };
            sources.push(start);
        }
        let piece_at = if kind == Kind::ReduceScatter { self.bytes_of(&self.pieces[index]).0 } else { 0 };
        let target = job.output.as_ref().map(|output| output.start().wrapping_add(at - piece_at));
        let mut copies: SmallVec<[*mut u8; 8]> = SmallVec::new();
        let lends = !self.taking.is_empty() && (job.output.is_none() || !run.shows(index).1);
        if lends {
            copies.push(part(run.window())?.start().wrapping_add(results_at(size, self.reduced) + within));
        }
        if kind != Kind::ReduceScatter {
            let outputs = self.peers.iter().filter_map(|peer| peer.output.as_ref());
            copies.extend(outputs.map(|output| output.start.wrapping_add(at)));
        }
        if target.is_none() && copies.is_empty() {
            return Ok(());
        }
        let operands = Operands { sources, target, copies };
        // SAFETY: the piece is this rank's alone, in all inputs and outputs; windows were filled with it and are not
        // filled anew before this rank has reduced it; whoever takes results has taken what lay there before.
        unsafe { reduce_all(self.numbers, &operands, elements.len()) }
    }

    /// Copies what others have reduced into this rank's output.
    fn take(&self, run: &Run) -> Result<()> {
        let output = part(run.job()?.output.as_ref())?;
        for (seat, _) in run.board().others() {
            let (at, length) = self.bytes_of(&self.round_of(seat, self.taken));
            let peer = &self.peers[seat];
            // A rank that shows its output has its result there.
            let source = match (&peer.output, &peer.window) {
                (Some(output), _) => output.start.wrapping_add(at),
                (None, Some(window)) => window.start.wrapping_add(results_at(run.size(), self.taken)),
                (None, None) => return Err(hidden(seat)),
            };
            // SAFETY: the other rank has reduced this round and lets it lie until this one has taken it; the output is
            // leased and that long.
            unsafe { copy_bytes(output.start().wrapping_add(at), source, length) };
            run.spend(2 * length);
        }
        Ok(())
    }
}

/// The elements that a rank reduces.
fn piece(run: &Run, numbers: Numbers, seat: usize) -> Range<usize> {
    let (count, size) = (run.header.count as usize, run.size());
    if run.header.kind == Kind::ReduceScatter {
        return seat * count..(seat + 1) * count;
    }
    let line = (LINE_BYTES / numbers.dtype().size_bytes()).max(1);
    let at_most = count.div_ceil(size).next_multiple_of(line);
    (seat * at_most).min(count)..((seat + 1) * at_most).min(count)
}

/// Where everybody's memory is.
fn find(run: &Run) -> Result<Option<Vec<Peer>>> {
    let (kind, size, board) = (run.header.kind, run.size(), run.board());
    let bytes = run.header.count as usize * run.header.dtype.size_bytes();
    let input_bytes = if kind == Kind::ReduceScatter { bytes * size } else { bytes };
    let mut peers = Vec::with_capacity(size);
    for (index, (seat, entry)) in board.seats.iter().zip(&run.entries).enumerate() {
        let mut peer = Peer { input: None, output: None, window: None };
        if index != board.index {
            let [first, second, third, fourth] = entry.words;
            let (input, output) = ([first, second], [third, fourth]);
            let (shows_input, shows_output) = run.shows(index);
            let has_output = kind == Kind::AllReduce || kind == Kind::Reduce && run.header.root == seat.rank;
            let lends = !shows_output && kind != Kind::ReduceScatter && (has_output || kind == Kind::Reduce);
            for (place, wanted, words, length) in [
                (&mut peer.input, shows_input, input, input_bytes),
                (&mut peer.output, shows_output && has_output, output, bytes),
                (&mut peer.window, !shows_input, input, super::window_bytes(size)),
            ] {
                if wanted {
                    *place = board.place(seat, words, length)?;
                    if place.is_none() {
                        return Ok(None);
                    }
                }
            }
            // A root that cannot be written to lends nothing; whoever else has a second place there lends it.
            if shows_input && lends && !(kind == Kind::Reduce && has_output) {
                peer.window = board.place(seat, output, super::window_bytes(size))?;
                if peer.window.is_none() {
                    return Ok(None);
                }
            }
        }
        peers.push(peer);
    }
    Ok(Some(peers))
}

pub(super) fn part(region: Option<&Region>) -> Result<&Region> {
    region.ok_or_else(|| Error::new(ErrorKind::Internal, "an operation without the memory it was begun with"))
}

fn hidden(seat: usize) -> Error {
    Error::new(ErrorKind::Internal, format!("memory of the rank at seat {seat} is neither shown nor in a window"))
}
