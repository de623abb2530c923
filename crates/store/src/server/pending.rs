//! Requests that are not answered, and the answers as they come together.

use crate::layout::{ANSWER_BYTES_MAX, Layout, Spot};
use crate::protocol::{Form, Gone, Piece};
use crate::rows::table::gather;
use crate::slot::{Slot, empty};
use crate::waiter::RequestId;
use sheave_base::numbers::Numbered;
use sheave_base::{Error, ErrorKind, Result, limits};
use sheave_mesh::TypedReply;
use sheave_net::{Part, Parts};
use sheave_tensor::{Arena, Dtype, Mode, Tensor};
use std::collections::HashMap;

/// A request that is not answered.
pub(super) struct Waiting {
    reply: TypedReply<Gone>,
    worker: usize,
    /// What it waits for: contributions that are not merged, pieces that are not taken, or a word.
    left: usize,
    answer: Assembly,
    gone: Gone,
    error: Option<Error>,
}

/// The requests of a store that are not answered.
#[derive(Default)]
pub(super) struct Pending {
    waiting: Numbered<u64, Waiting>,
    ended: Vec<Waiting>,
    last: RequestId,
    /// How many of each worker wait.
    counts: HashMap<usize, usize>,
}

impl Pending {
    /// A worker's own limit of pending calls keeps it from more, if it is one of ours.
    pub(super) fn check_room(&self, worker: usize) -> Result<()> {
        if self.counts.get(&worker).is_some_and(|count| *count >= limits::CALLS_PENDING_MAX) {
            let what = format!("{} requests of this worker wait already", limits::CALLS_PENDING_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        Ok(())
    }

    /// A request that waits for `left` things.
    pub(super) fn begin(&mut self, reply: TypedReply<Gone>, worker: usize, left: usize, answer: Assembly) -> RequestId {
        self.last += 1;
        *self.counts.entry(worker).or_default() += 1;
        let waiting = Waiting { reply, worker, left, answer, gone: Gone::default(), error: None };
        self.waiting.insert(self.last, waiting);
        self.last
    }

    /// The request of a worker that it has sent as its call of this number.
    pub(super) fn find(&self, worker: usize, number: u64) -> Option<RequestId> {
        let is_it = |waiting: &Waiting| waiting.worker == worker && waiting.reply.number() == number;
        self.waiting.iter().find(|(_, waiting)| is_it(waiting)).map(|(request, _)| *request)
    }

    /// One thing that the request waits for has happened.
    pub(super) fn one_done(&mut self, request: RequestId, happen: impl FnOnce(&mut Assembly) -> Result<()>) {
        let Some(waiting) = self.waiting.get_mut(&request) else { return };
        if let Err(error) = happen(&mut waiting.answer) {
            waiting.error.get_or_insert(error);
        }
        waiting.left -= 1;
        if waiting.left == 0 {
            self.end(request);
        }
    }

    /// The request is answered, without waiting for what it waited for.
    pub(super) fn answer(&mut self, request: RequestId, outcome: Result<()>) {
        if let Some(waiting) = self.waiting.get_mut(&request) {
            waiting.error = outcome.err();
            self.end(request);
        }
    }

    fn end(&mut self, request: RequestId) {
        if let Some(ended) = self.waiting.remove(&request) {
            self.counts.entry(ended.worker).and_modify(|count| *count -= 1);
            self.ended.push(ended);
        }
    }

    /// Forgets what a worker waits for that is gone.
    pub(super) fn forget(&mut self, worker: usize) {
        self.counts.remove(&worker);
        let (forgotten, kept) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(_, one)| one.worker == worker);
        self.waiting = kept;
        let forgotten: Numbered<u64, Waiting> = forgotten;
        // Dropped with the others, when no lock is held: a reply that is dropped answers.
        self.ended.extend(forgotten.into_values());
    }

    pub(super) fn fail_all(&mut self, error: &Error) {
        self.counts.clear();
        let failed = self.waiting.drain().map(|(_, waiting)| Waiting { error: Some(error.clone()), ..waiting });
        self.ended.extend(failed);
    }

    /// Those that have come to their end; to be answered with no lock held.
    pub(super) fn take_ended(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.ended)
    }
}

impl Waiting {
    /// Says in the answer which workers the store does without.
    pub(super) fn tell(&mut self, gone: &[usize]) {
        self.gone = Gone(gone.to_vec());
    }

    pub(super) fn answer(self) {
        match self.error {
            Some(error) => self.reply.error(error),
            None => self.reply.borrowed(&self.gone, self.answer.into_parts()),
        }
    }
}

/// The tensors of an answer, as they come together. Nothing is allocated for what is only waited for, and plain values
/// that lie in the arena are not copied: a slot leaves them to the answers that hold them.
#[derive(Default)]
pub(super) struct Assembly {
    packed: Option<Tensor>,
    packed_bytes: u64,
    spots: Vec<Spot>,
    forms: Vec<Form>,
    /// For each piece of rows, which rows of the slot and how long they are.
    asked: HashMap<usize, (Tensor, usize)>,
    parts: Vec<Option<Tensor>>,
}

impl Assembly {
    pub(super) fn new(pieces: &[Piece]) -> Result<Self> {
        let Layout { spots, packed_bytes, parts } = Layout::of(pieces)?;
        let bytes = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len_bytes));
        if pieces.len() > 1 && bytes.is_none_or(|bytes| bytes > ANSWER_BYTES_MAX) {
            return Err(Error::new(ErrorKind::Protocol, "one request for more than an answer may have"));
        }
        // Most requests are for plain values alone.
        let is_plain = pieces.iter().all(|piece| piece.form == Form::Plain);
        let forms = if is_plain { Vec::new() } else { pieces.iter().map(|piece| piece.form).collect() };
        Ok(Self { packed: None, packed_bytes, spots, forms, asked: HashMap::new(), parts: vec![None; parts] })
    }

    /// A piece is to be these rows of `row_bytes`.
    pub(super) fn ask(&mut self, piece: usize, ids: Tensor, row_bytes: usize) {
        self.asked.insert(piece, (ids, row_bytes));
    }

    /// Takes a piece as it is now.
    pub(super) fn take(&mut self, piece: usize, slot: &Slot, arena: &Arena) -> Result<()> {
        let value = &slot.value;
        let made = match self.forms.get(piece) {
            Some(Form::Coded(compression)) => {
                let mut coded = empty(arena, Dtype::U8, compression.encoded_len_bytes(value.elements()) as u64)?;
                compression.encode(&value.as_slice::<f32>()?, &mut [], coded.bytes_mut()?)?;
                Some(coded)
            }
            Some(Form::Rows) => Some(self.take_rows(piece, value, arena)?),
            _ => None,
        };
        if let Some(made) = made {
            return match self.spots[piece] {
                Spot::Part(part) => {
                    self.parts[part] = Some(made);
                    Ok(())
                }
                Spot::Packed(at) => self.pack(at, &made, arena),
            };
        }
        match self.spots[piece] {
            Spot::Part(part) => self.parts[part] = Some(slot.snapshot(arena)?),
            Spot::Packed(at) => self.pack(at, value, arena)?,
        }
        Ok(())
    }

    fn take_rows(&self, piece: usize, value: &Tensor, arena: &Arena) -> Result<Tensor> {
        let asked = self.asked.get(&piece);
        let (ids, row_bytes) = asked.ok_or_else(|| Error::new(ErrorKind::Internal, "rows that were not asked for"))?;
        let ids = ids.as_slice::<i64>()?;
        let mut rows = empty(arena, value.dtype(), (ids.len() * row_bytes / value.dtype().size_bytes()) as u64)?;
        gather(&value.bytes()?, *row_bytes, &ids, rows.bytes_mut()?)?;
        Ok(rows)
    }

    fn pack(&mut self, at: u64, value: &Tensor, arena: &Arena) -> Result<()> {
        let bytes = value.bytes()?;
        let range = at as usize..at as usize + bytes.len();
        if self.packed.is_none() {
            self.packed = Some(empty(arena, Dtype::U8, self.packed_bytes)?);
        }
        let packed = self.packed.as_mut().map(Tensor::bytes_mut).transpose()?;
        let target = packed.and_then(|packed| packed.get_mut(range));
        target.ok_or_else(|| Error::new(ErrorKind::Internal, "a piece without room"))?.copy_from_slice(&bytes);
        Ok(())
    }

    fn into_parts(mut self) -> Parts {
        if let Some(packed) = self.packed.take() {
            self.parts[0] = Some(packed);
        }
        // What is a slot's too is lent, and what was made here is given away.
        let part = |tensor: Tensor| {
            let mode = if tensor.buffer().is_unique() { Mode::Move } else { Mode::Copy };
            Part::new(tensor, mode)
        };
        self.parts.into_iter().flatten().map(part).collect()
    }
}
