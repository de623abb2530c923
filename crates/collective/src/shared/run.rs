//! One rank's part of an operation on a board, as a state machine that is polled until it is through.
//!
//! 1. *Room*: the operation's slot is free.
//! 2. *Showing*: segments in which input and output lie are shown to all, once each. Where a neighbour's socket is full
//!    that is tried again whenever the operation is polled; waits poll every 100 ms at least.
//! 3. *Entry*: the header is written to this rank's desk, with where its memory is or, for short inputs, with the bytes
//!    themselves.
//! 4. *Agreement*: the entries of all others are awaited, in the order of ranks, and compared; nothing moves before all
//!    have entered and mean the same.
//! 5. *Work*: [`super::flat`], [`super::reduction`] or [`super::movement`]; links, where the table says so or a rank
//!    has said in its entry that its arena has no room for a window.
//!    Where that takes long it is done in turns, and not by the call that begins it ([`crate::long`]).
//! 6. *Over*: the slot may be used again.
//!
//! **Whoever returns ok has the whole result**: flat results are computed from entries that are all there; the others
//! end only after every rank has said that it has taken and written all that concerns it. A rank that dies before that
//! fails the operation on all that have not yet heard it; those that have heard all are through.
//!
//! **Memory** of this rank may be read and written by others from its entry to the end. If the operation fails, its
//! leases go to the [`super::deferred`] table and are kept until every other rank has said that it touches nothing of
//! this group any more, or its process has ended; so a buffer is in use for as long as anybody may write there.

use super::board::{Board, Exposure, brief};
use super::desk::{BRIEF_BYTES, Entry, PAYLOAD_BYTES};
use super::flat;
use super::movement::Movement;
use super::reduction::Reduction;
use crate::job::Job;
use crate::long::may_work;
use crate::memory::Region;
use crate::operation::{Form, Header, Kind, Operator};
use crate::table::Algorithm;
use sheave_base::limits::{COLLECTIVE_CALL_BYTES_MAX, COLLECTIVE_TURN_BYTES};
use sheave_base::{Error, ErrorKind, Result};
use sheave_tensor::{Dtype, hand_over};
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::Arc;
use std::task::Poll;

/// The byte of an entry's first word that says where memory is; ranks need not agree about it.
const RESIDENCE_SHIFT: u32 = 24;
const RESIDENCE_MASK: u64 = 0xff << RESIDENCE_SHIFT;
/// The form stands above the kind.
const FORM_SHIFT: u32 = 4;
const INPUT_IS_SHOWN: u64 = 1;
const OUTPUT_IS_SHOWN: u64 = 2;
/// This rank has no memory that others can map, so links carry the operation for all.
const NEEDS_LINKS: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Room,
    Showing,
    Agreement,
    Work,
    Over,
}

enum Data {
    Flat,
    Reduction(Box<Reduction>),
    Movement(Box<Movement>),
    /// Links carry it.
    Elsewhere,
}

/// See the module's documentation.
pub(crate) struct Run {
    board: Arc<Board>,
    pub(crate) sequence: u64,
    pub(crate) header: Header,
    /// Released later when it fails.
    job: Option<Job>,
    window: Option<Region>,
    algorithm: Algorithm,
    stage: Stage,
    exposed: SmallVec<[Exposure; 2]>,
    /// Where others find this rank's memory.
    words: [u64; 4],
    residence: u64,
    /// What this rank has entered with, once it has.
    own: Option<Entry>,
    /// What the ranks have entered with, as far as that was awaited.
    pub(crate) entries: SmallVec<[Entry; 2]>,
    data: Option<Data>,
    is_entered: bool,
    /// Others may sleep who wait for this rank's entry.
    must_wake: bool,
    /// Its work is done in turns, and not by the call that begins it.
    is_long: bool,
    /// Bytes that may still be read or written in this turn.
    turn: Cell<usize>,
}

impl Run {
    pub(crate) fn new(board: Arc<Board>, sequence: u64, header: Header, job: Job, algorithm: Algorithm) -> Self {
        let fits = job.input_bytes_max.is_some_and(|bytes| bytes <= PAYLOAD_BYTES);
        // Longer ones do not fit into a slot, whatever the table says.
        let algorithm = if algorithm == Algorithm::Flat && !fits { Algorithm::Direct } else { algorithm };
        let own_bytes: usize = [&job.input, &job.output].into_iter().flatten().map(Region::len_bytes).sum();
        Self {
            is_long: algorithm == Algorithm::Direct && own_bytes > COLLECTIVE_CALL_BYTES_MAX,
            turn: Cell::new(usize::MAX),
            board,
            sequence,
            header,
            job: Some(job),
            window: None,
            algorithm,
            stage: Stage::Room,
            exposed: SmallVec::new(),
            words: [0; 4],
            residence: 0,
            own: None,
            entries: SmallVec::new(),
            data: None,
            is_entered: false,
            must_wake: false,
        }
    }

    pub(crate) fn board(&self) -> &Arc<Board> {
        &self.board
    }

    pub(crate) fn size(&self) -> usize {
        self.board.seats.len()
    }

    /// This rank's part, which is there until the operation fails.
    pub(crate) fn job(&self) -> Result<&Job> {
        self.job.as_ref().ok_or_else(|| Error::new(ErrorKind::Internal, "an operation goes on after its end"))
    }

    /// The job, for links to carry it, once all have agreed.
    pub(crate) fn take_job(&mut self) -> Option<Job> {
        self.job.take()
    }

    pub(crate) fn window(&self) -> Option<&Region> {
        self.window.as_ref()
    }

    /// Whether a rank's input can be read, and its output written, where they are.
    pub(crate) fn shows(&self, seat: usize) -> (bool, bool) {
        let residence = self.entries[seat].header[0] >> RESIDENCE_SHIFT;
        (residence & INPUT_IS_SHOWN != 0, residence & OUTPUT_IS_SHOWN != 0)
    }

    /// Whether only the agreement is made on the board, and links do the rest. Where a rank lacks memory for a window
    /// that is known when all have entered.
    pub(crate) fn ends_in_links(&self) -> bool {
        !self.algorithm.needs_one_host() || self.lacks_a_window()
    }

    fn lacks_a_window(&self) -> bool {
        self.algorithm == Algorithm::Direct
            && self.entries.iter().any(|entry| entry.header[0] >> RESIDENCE_SHIFT & NEEDS_LINKS != 0)
    }

    /// Whom it waits for, of those that have not entered.
    pub(crate) fn awaited(&self) -> Option<u32> {
        (self.stage == Stage::Agreement).then(|| self.board().seats.get(self.entries.len()).map(|seat| seat.rank))?
    }

    /// Which of those that have left will not do its part any more, if one is waited for.
    pub(crate) fn deserter(&self, leavers: &[u32]) -> Option<u32> {
        match self.stage {
            Stage::Agreement => self.awaited().filter(|rank| leavers.contains(rank)),
            Stage::Work => self.board.deserter(self.sequence, leavers),
            Stage::Room => self.board.deserter(self.sequence.saturating_sub(1), leavers),
            Stage::Showing | Stage::Over => None,
        }
    }

    /// Rings those that sleep and wait for this rank's entry, unless that was done.
    fn wake_others(&mut self) {
        if std::mem::take(&mut self.must_wake) {
            self.board.wake();
        }
    }

    /// Whether it takes longer than a call may.
    pub(crate) fn is_long(&self) -> bool {
        self.is_long
    }

    /// Whether it waits for nobody but a thread that works.
    pub(crate) fn has_work(&self) -> bool {
        self.is_long && self.stage == Stage::Work && self.is_turn_over()
    }

    /// How many bytes are read or written in a turn, if that is bounded.
    pub(super) fn turn_bytes(&self) -> Option<usize> {
        self.is_long.then_some(COLLECTIVE_TURN_BYTES)
    }

    /// So many bytes were read or written.
    pub(super) fn spend(&self, bytes: usize) {
        if self.is_long {
            self.turn.set(self.turn.get().saturating_sub(bytes));
        }
    }

    /// Whether it has worked for long enough.
    pub(super) fn is_turn_over(&self) -> bool {
        self.turn.get() == 0
    }

    /// Goes on as far as it can; for a turn, if that is long work, or not at all, if this thread may do none. `moved`
    /// is set if it has gone on.
    pub(crate) fn poll(&mut self, moved: &mut bool) -> Poll<Result<()>> {
        if self.is_long {
            self.turn.set(if may_work() { COLLECTIVE_TURN_BYTES } else { 0 });
        }
        loop {
            match self.step(moved) {
                Ok(true) if self.stage == Stage::Over => return Poll::Ready(Ok(())),
                Ok(true) => *moved = true,
                Ok(false) => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// One stage. False when it must wait.
    fn step(&mut self, moved: &mut bool) -> Result<bool> {
        match self.stage {
            Stage::Room => {
                if !self.board().has_room(self.sequence) {
                    return Ok(false);
                }
                if self.algorithm == Algorithm::Direct {
                    self.expose()?;
                    self.stage = Stage::Showing;
                } else {
                    self.enter()?;
                }
            }
            Stage::Showing => {
                for exposure in &self.exposed {
                    if !self.board().introduce(exposure)? {
                        return Ok(false);
                    }
                }
                self.enter()?;
            }
            Stage::Agreement => return self.agree(),
            Stage::Work => return self.work(moved),
            Stage::Over => {}
        }
        Ok(true)
    }

    /// Decides how others find this rank's memory: where it is, or through a window.
    fn expose(&mut self) -> Result<()> {
        let (kind, job) = (self.header.kind, self.job()?);
        let (input, output) = (job.input.as_ref(), job.output.as_ref());
        // Input that others read while this rank's output, which is the same memory, is being filled.
        let copied = match (kind, input, output) {
            (Kind::AllToAll | Kind::AllToAllV, Some(input), Some(output)) if input.overlaps(output) => {
                let copy = Region::scratch(&self.board.arena, input.len_bytes())?;
                copy.copy_from(input)?;
                Some(copy)
            }
            _ => None,
        };
        let shown = |region: Option<&Region>| region.map(|region| self.board().expose(region));
        let input = shown(copied.as_ref().or(input));
        let output = shown(output);
        let reduces = matches!(kind, Kind::AllReduce | Kind::Reduce);
        let lends_result = matches!(output, Some(None)) && kind == Kind::AllReduce
            || kind == Kind::Reduce && self.header.root != self.header.rank;
        let needs_window = matches!(input, Some(None)) || reduces && lends_result;
        if needs_window && self.size() > 1 {
            match self.make_window()? {
                Some((window, exposure)) => {
                    self.window = Some(window);
                    self.exposed.push(exposure);
                }
                None => {
                    self.residence = NEEDS_LINKS;
                    return Ok(());
                }
            }
        }
        let mut words = [0; 4];
        let window = self.exposed.first().map_or([0; 2], |exposure| exposure.words);
        for (at, (place, bit)) in [(input, INPUT_IS_SHOWN), (output, OUTPUT_IS_SHOWN)].into_iter().enumerate() {
            let found = place.flatten();
            self.residence |= if found.is_some() { bit } else { 0 };
            words[at * 2..at * 2 + 2].copy_from_slice(&found.as_ref().map_or(window, |exposure| exposure.words));
            self.exposed.extend(found);
        }
        self.words = words;
        if let Some(copy) = copied
            && let Some(job) = &mut self.job
        {
            job.input = Some(copy);
        }
        Ok(())
    }

    /// Memory through which others reach this rank's, unless the arena has no room for it.
    fn make_window(&self) -> Result<Option<(Region, Exposure)>> {
        let window = Region::scratch(&self.board.arena, super::window_bytes(self.size()))?;
        Ok(self.board().expose(&window).map(|exposure| (window, exposure)))
    }

    fn enter(&mut self) -> Result<()> {
        let mut words = self.words;
        let payload = self.board().own().words().payload(self.sequence);
        let job = self.job()?;
        if self.algorithm == Algorithm::Flat {
            if let Some(input) = &job.input {
                let bytes = input.len_bytes();
                // SAFETY: the input is leased, and the slot is this rank's alone until it has entered; the input fits,
                // since no input is longer than the longest that all know.
                unsafe {
                    if bytes <= BRIEF_BYTES {
                        words = brief(std::slice::from_raw_parts(input.start(), bytes));
                    } else {
                        hand_over(payload, input.start(), bytes.min(PAYLOAD_BYTES));
                    }
                }
            }
        } else if let (Kind::AllToAllV, Some(pieces)) = (self.header.kind, &job.pieces) {
            if pieces.sent.len() * 16 > PAYLOAD_BYTES {
                let what = format!("all_to_all_v among {} ranks of one host", pieces.sent.len());
                return Err(Error::new(ErrorKind::LimitExceeded, what));
            }
            for (at, piece) in pieces.sent.iter().chain(&pieces.received).enumerate() {
                // SAFETY: as above; the payload is aligned to 64 bytes and that long.
                unsafe { payload.cast::<u64>().add(at).write(piece.len() as u64) };
            }
        }
        let entry = Entry { header: pack(&self.header, self.residence), words };
        self.board().enter(self.sequence, &entry)?;
        self.own = Some(entry);
        self.is_entered = true;
        self.must_wake = true;
        self.stage = Stage::Agreement;
        Ok(())
    }

    /// Looks at the entries of all ranks. False while one is missing.
    fn agree(&mut self) -> Result<bool> {
        let own = pack(&self.header, 0);
        while let Some(seat) = self.board.seats.get(self.entries.len()) {
            // What this rank has entered with it knows better than its block, which others can write too.
            let own_entry = if self.entries.len() == self.board.index { self.own } else { None };
            let entry = if own_entry.is_some() { own_entry } else { seat.entered(self.sequence)? };
            let Some(entry) = entry else {
                self.wake_others();
                return Ok(false);
            };
            let [first, count, digest] = entry.header;
            if [first & !RESIDENCE_MASK, count, digest] != own {
                return Err(differs(&self.header, seat.rank, entry.header, self.sequence));
            }
            self.entries.push(entry);
        }
        self.stage = Stage::Work;
        // What follows takes longer, or waits.
        if self.algorithm != Algorithm::Flat {
            self.wake_others();
        }
        Ok(true)
    }

    fn work(&mut self, moved: &mut bool) -> Result<bool> {
        if self.is_turn_over() {
            return Ok(false);
        }
        let mut data = match self.data.take() {
            Some(data) => data,
            None => match self.begin_work()? {
                Some(data) => data,
                None => return Ok(false),
            },
        };
        let is_over = match &mut data {
            Data::Flat => flat::run(self).map(|()| true),
            Data::Reduction(reduction) => reduction.advance(self, moved),
            Data::Movement(movement) => movement.advance(self, moved),
            Data::Elsewhere => Ok(true),
        };
        self.data = Some(data);
        if !is_over? {
            return Ok(false);
        }
        self.stage = Stage::Over;
        self.wake_others();
        self.board().finish(self.sequence);
        self.is_entered = false;
        self.board().leave();
        Ok(true)
    }

    /// None while a segment is not known here yet.
    fn begin_work(&self) -> Result<Option<Data>> {
        if self.lacks_a_window() {
            return Ok(Some(Data::Elsewhere));
        }
        match (self.algorithm, self.header.kind) {
            (Algorithm::Flat, _) | (Algorithm::Direct, Kind::Barrier) => Ok(Some(Data::Flat)),
            (Algorithm::Direct, Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter) => {
                Ok(Reduction::new(self)?.map(|reduction| Data::Reduction(Box::new(reduction))))
            }
            (Algorithm::Direct, _) => Ok(Movement::new(self)?.map(|movement| Data::Movement(Box::new(movement)))),
            _ => Ok(Some(Data::Elsewhere)),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.is_entered {
            return;
        }
        // Only what was shown can be touched by others.
        if self.algorithm == Algorithm::Direct {
            let job = self.job.take();
            let regions = job.into_iter().flat_map(|job| [job.input, job.output]).flatten().chain(self.window.take());
            self.board.deferred.defer(&self.board, regions.collect());
        }
        self.board().leave();
    }
}

/// A header as the three words of an entry. The table is agreed when a board is made.
fn pack(header: &Header, residence: u64) -> [u64; 3] {
    let operator = header.operator.map_or(0, |operator| operator as u64);
    let first = header.kind as u64
        | (header.form as u64) << FORM_SHIFT
        | operator << 8
        | u64::from(header.dtype.code()) << 16
        | residence << RESIDENCE_SHIFT
        | u64::from(header.root & 0xffff) << 32
        | u64::from(header.tensors) << 48;
    [first, header.count, header.digest]
}

#[cold]
fn differs(own: &Header, rank: u32, [first, count, digest]: [u64; 3], sequence: u64) -> Error {
    let byte = |at: u32| (first >> (at * 8)) as u8;
    let strange = || Error::new(ErrorKind::Protocol, format!("rank {rank} has entered with what is no header"));
    let operator = match byte(1) {
        0 => Some(None),
        code => Operator::from_code(code).map(Some),
    };
    let kind = Kind::from_code(byte(0) & 0xf).zip(Form::from_code(byte(0) >> FORM_SHIFT));
    let Some((((kind, form), operator), dtype)) = kind.zip(operator).zip(Dtype::from_code(byte(2))) else {
        return strange();
    };
    let (root, tensors) = ((first >> 32) as u32 & 0xffff, (first >> 48) as u16);
    let theirs = Header { kind, operator, dtype, root, form, tensors, count, digest, rank, ..*own };
    own.check(&theirs, sequence).err().unwrap_or_else(strange)
}
