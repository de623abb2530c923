//! One store on a server: its slots, and everything that happens to them.
//!
//! A request is checked whole before anything of it is merged; one that is refused changes nothing, and the server
//! lives on. In a synchronous store an update is answered when the rounds that it contributes to are complete
//! ([`crate::round`]), and what it pulls is taken at just that moment.
//!
//! **When a worker is lost** and the store needs every worker, everything that waits ends with an error that names it,
//! and so does every later push. A store that shrinks first makes sure that all of its servers have received as many
//! pushes of the lost worker to every key that is cut ([`super::settle`]), and then takes it out of the rounds.

use super::after::{After, Aside};
use super::backlog::{Backlog, Parked};
use super::members::{Members, Standing};
use super::norms::Halfway;
use super::pending::{Assembly, Pending};
use super::pieces::{asked_of, first_slot, row_gradient, row_ids, view};
use crate::held::Held;
use crate::key::Key;
use crate::kind::Kind;
use crate::layout::{ANSWER_BYTES_MAX, Layout, STORE_SLICES_MAX, Spot, slice_number};
use crate::local::{exists, unknown};
use crate::protocol::{Begin, Described, Form, Gone, Init, OnWorkerLoss, Open, Piece, Slices, Storage, Update};
use crate::slot::Merge;
use crate::sum::Gradient;
use crate::updater::Spec;
use crate::user_merge::UserMerge;
use crate::waiter::{Advance, Completed, RequestId};
use sheave_base::numbers::Numbered;
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::TypedReply;
use sheave_net::Tensors;
use sheave_optim::Norms;
use sheave_tensor::{Arena, Dtype, Tensor};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};

pub(super) struct Store {
    pub(super) open: Open,
    pub(super) members: Members,
    /// What pushes do, as it was said and as it runs.
    updater: Spec,
    pub(super) merge: Merge,
    pub(super) arena: Arena,
    workers: usize,
    /// In the order of their initialisation, which is about the order in which they are asked for.
    pub(super) slots: Vec<Held>,
    /// Where the slot of a slice's number is.
    pub(super) index: Numbered<u64, usize>,
    pub(super) waiting: Pending,
    /// Pushes that come slice by slice, by the worker and its number for it.
    begun: HashMap<(usize, u64), Begun>,
    halfway: Vec<Halfway>,
    /// Merges that user code is to do.
    aside: Vec<Aside>,
    backlog: Backlog,
    lost: Option<Lost>,
    /// The first worker whose loss this store does not bear.
    loss: Option<Error>,
}

/// A push of which not all slices have come.
struct Begun {
    request: RequestId,
    left: u64,
}

/// No round ends any more.
struct Lost {
    error: Error,
    /// Those with a push that came to nothing. What they pull would lack it, so it is refused.
    failed: Vec<bool>,
}

/// What becomes of a store that has lost a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Pushes go on without it.
    GoesOn,
    /// No round ends any more.
    Fails,
    /// All servers must agree on what it had pushed, before [`Store::shrink`] or [`Store::fail`].
    Unsettled,
}

/// What is pushed to which slots.
type Values = Vec<(usize, Gradient)>;

/// Slots, and the ids of rows that are asked for.
type Asked = VecDeque<(usize, Tensor)>;

/// An update that nothing speaks against.
pub(super) struct Checked {
    /// Who asks.
    worker: usize,
    /// What is pushed to which slots.
    values: Values,
    /// The slots that are pulled.
    pulls: Vec<usize>,
    answer: Assembly,
}

impl Store {
    pub(super) fn new(open: Open, workers: usize, arena: &Arena) -> Self {
        Self {
            open,
            members: Members::new(workers),
            updater: Spec::Assign,
            merge: Merge::Assign,
            arena: arena.clone(),
            workers,
            slots: Vec::new(),
            index: Numbered::default(),
            waiting: Pending::default(),
            begun: HashMap::new(),
            halfway: Vec::new(),
            aside: Vec::new(),
            backlog: Backlog::default(),
            lost: None,
            loss: None,
        }
    }

    /// Whether rounds or clocks count workers, so that the loss of one matters to the others' pushes.
    pub(super) fn counts_workers(&self) -> bool {
        self.open.kind != Kind::DistAsync
    }

    /// Says what pushes do from now on; of a trial only whether they could. Moments that an optimizer cannot go on with
    /// are forgotten.
    pub(super) fn set_updater(&mut self, updater: Spec, merge: Merge, is_trial: bool) -> Result<()> {
        self.slots.iter().try_for_each(|held| held.check_merge(&merge))?;
        if is_trial {
            return Ok(());
        }
        if let Merge::Optimizer(optimizer) = &merge {
            self.slots.iter_mut().for_each(|held| held.slot.memory.retain(&optimizer.rule));
        }
        (self.updater, self.merge) = (updater, merge);
        Ok(())
    }

    /// What pushes do.
    pub(super) fn updater(&self) -> &Spec {
        &self.updater
    }

    /// What is to be done with no lock held.
    pub(super) fn take_after(&mut self) -> After {
        let mut ended = self.waiting.take_ended();
        if self.open.on_worker_loss == OnWorkerLoss::Shrink && !ended.is_empty() {
            let gone = self.members.gone();
            ended.iter_mut().for_each(|one| one.tell(&gone));
        }
        let (halfway, aside) = (std::mem::take(&mut self.halfway), std::mem::take(&mut self.aside));
        After { ended, halfway, aside, released: self.backlog.take_due() }
    }

    pub(super) fn init(&mut self, init: Init, tensors: &[Tensor]) -> Result<()> {
        let spots = find(&init.pieces, tensors)?;
        let mut given = init.pieces.iter().zip(spots);
        if self.slots.len() + init.slices.len() > STORE_SLICES_MAX {
            let what = format!("a store has at most {STORE_SLICES_MAX} slices on one server");
            return Err(Error::new(ErrorKind::LimitExceeded, what)
                .operation("init")
                .hint("delete keys that are not needed, or use more servers"));
        }
        let mut fresh = Vec::with_capacity(init.slices.len());
        let mut numbers = HashSet::with_capacity(init.slices.len());
        for slice in init.slices {
            slice.described.key.check()?;
            let (key, at) = (slice.described.key.clone(), slice.slice);
            let number = slice_number(key.number(), at);
            if self.index.contains_key(&number) || !numbers.insert(number) {
                return Err(exists(&key));
            }
            let slot = first_slot(slice, number, &mut given, &self.open.cutting, &self.arena)?;
            let held = Held::new(number, slot, &self.open, self.workers);
            held.check_merge(&self.merge).map_err(|error| error.operation("init"))?;
            fresh.push((number, held));
        }
        if given.next().is_some() {
            return Err(Error::new(ErrorKind::Protocol, "more pieces than keys"));
        }
        for (number, held) in fresh {
            self.index.insert(number, self.slots.len());
            self.slots.push(held);
        }
        Ok(())
    }

    pub(super) fn delete(&mut self, numbers: &[u64]) -> Result<()> {
        let mut held = numbers.iter().filter_map(|number| self.index.get(number)).map(|place| &self.slots[*place]);
        if let Some(held) = held.find(|held| held.is_busy()) {
            let what = format!("key {} is waited for, and cannot be deleted", held.slot.meta.key);
            return Err(Error::new(ErrorKind::InvalidArgument, what)
                .operation("delete")
                .hint("every worker calls delete after its last push and pull of the key"));
        }
        for number in numbers {
            let Some(place) = self.index.remove(number) else { continue };
            self.slots.swap_remove(place);
            if let Some(moved) = self.slots.get(place) {
                self.index.insert(moved.number, place);
            }
        }
        Ok(())
    }

    pub(super) fn describe(&self, numbers: &[u64]) -> Vec<Option<Described>> {
        let described = |number: &u64| Some(self.slots[*self.index.get(number)?].slot.meta.described());
        numbers.iter().map(described).collect()
    }

    /// How many slices of a push that was begun have not come.
    pub(super) fn slices_to_come(&self, request: RequestId) -> Option<u64> {
        self.begun.values().find(|begun| begun.request == request).map(|begun| begun.left)
    }

    /// Refuses an update before anything of it is merged.
    pub(super) fn check(&mut self, update: &Update, worker: usize, tensors: &[Tensor]) -> Result<Checked> {
        self.check_loss(worker, update.contributes())?;
        self.check_standing(worker, update.contributes())?;
        self.waiting.check_room(worker)?;
        let (values, mut asked) = self.check_push(&update.push, worker, tensors)?;
        let mut answer = Assembly::new(&update.pull)?;
        let mut pulls = Vec::with_capacity(update.pull.len());
        for (at, piece) in update.pull.iter().enumerate() {
            let place = self.place("pull", piece)?;
            if piece.form == Form::Rows {
                let row_bytes = self.slots[place].slot.row_bytes();
                answer.ask(at, asked_of(place, piece, row_bytes, asked.pop_front())?, row_bytes);
            }
            pulls.push(place);
        }
        if !asked.is_empty() {
            return Err(Error::new(ErrorKind::Protocol, "ids of rows that nobody pulls"));
        }
        Ok(Checked { worker, values, pulls, answer })
    }

    /// Refuses those whose pushes have come to nothing because somebody is lost.
    fn check_loss(&mut self, worker: usize, pushes: bool) -> Result<()> {
        let Some(lost) = &mut self.lost else { return Ok(()) };
        lost.failed[worker] |= pushes;
        if lost.failed[worker] { Err(lost.error.clone()) } else { Ok(()) }
    }

    /// What is pushed to which slots, and which rows of which slots are asked for.
    fn check_push(&self, pieces: &[Piece], worker: usize, tensors: &[Tensor]) -> Result<(Values, Asked)> {
        let mut given = pieces.iter().zip(find(pieces, tensors)?);
        let mut values = Values::with_capacity(pieces.len());
        let mut asked = Asked::new();
        while let Some((piece, (tensor, at))) = given.next() {
            let place = self.place("push", piece)?;
            let slot = &self.slots[place].slot;
            let gradient = match piece.form {
                Form::Plain => Gradient::Plain(view(tensor, at, piece, slot.meta.dtype)?),
                Form::Coded(compression) => {
                    Gradient::Coded(compression, view(tensor, at, piece, Dtype::U8)?, slot.value.elements())
                }
                Form::Asked => {
                    asked.push_back((place, row_ids(slot, tensor, at, piece)?));
                    continue;
                }
                Form::Ids | Form::Rows => Gradient::Rows(row_gradient(slot, (piece, (tensor, at)), given.next())?),
            };
            self.slots[place].check_room(worker)?;
            values.push((place, gradient));
        }
        Ok((values, asked))
    }

    /// A worker begins a push that comes slice by slice, and is told when all of it is merged.
    pub(super) fn begin(&mut self, begin: &Begin, worker: usize, reply: TypedReply<Gone>) {
        let request = self.waiting.begin(reply, worker, begin.slices.max(1) as usize, Assembly::default());
        let checked = self.check_loss(worker, true).and_then(|()| self.check_standing(worker, true));
        let checked = checked.and_then(|()| self.waiting.check_room(worker)).and_then(|()| {
            let is_known = self.begun.contains_key(&(worker, begin.operation));
            if begin.slices == 0 || is_known {
                return Err(Error::new(ErrorKind::Protocol, "a push that cannot be begun"));
            }
            Ok(())
        });
        match checked {
            Ok(()) => drop(self.begun.insert((worker, begin.operation), Begun { request, left: begin.slices })),
            Err(error) => self.waiting.answer(request, Err(error)),
        }
    }

    /// Some slices of a push that was begun. An error leaves nothing merged.
    pub(super) fn slices(&mut self, slices: &Slices, worker: usize, tensors: Tensors) -> Result<()> {
        self.check_loss(worker, true)?;
        let (values, asked) = self.check_push(&slices.push, worker, &tensors)?;
        let known = self.begun.get(&(worker, slices.operation)).filter(|begun| begun.left >= values.len() as u64);
        let Some(request) = known.filter(|_| asked.is_empty()).map(|begun| begun.request) else {
            return Err(Error::new(ErrorKind::Protocol, "slices of a push that was not begun"));
        };
        // A contribution that has no other handle can be added to.
        drop(tensors);
        if let Entry::Occupied(mut entry) = self.begun.entry((worker, slices.operation)) {
            entry.get_mut().left -= values.len() as u64;
            if entry.get().left == 0 {
                entry.remove();
            }
        }
        self.contribute(worker, values, request);
        Ok(())
    }

    fn check_standing(&self, worker: usize, pushes: bool) -> Result<()> {
        let what = match self.members.standing(worker) {
            Standing::Active => return Ok(()),
            Standing::Done | Standing::Closing if !pushes => return Ok(()),
            Standing::Done => "this worker has said that it is done, and others are not",
            Standing::Closing => "this worker is closing the store",
            Standing::Closed => "this worker has closed the store",
            Standing::Leaving | Standing::Gone => "this worker is taken for dead",
        };
        Err(Error::new(ErrorKind::InvalidArgument, what))
    }

    /// The slot that a piece is of, if that has its size.
    fn place(&self, operation: &'static str, piece: &Piece) -> Result<usize> {
        let place = self.index.get(&piece.number).copied();
        let place = place.ok_or_else(|| unknown(&Key::from(format!("number {:016x}", piece.number)), operation))?;
        let held = &self.slots[place];
        let value = &held.slot.value;
        let len_bytes = match piece.form {
            Form::Plain => value.len_bytes(),
            Form::Coded(compression) => {
                compression.check()?;
                compression.require(value.dtype())?;
                compression.encoded_len_bytes(value.elements())
            }
            Form::Rows if operation == "pull" => return Ok(place),
            Form::Ids | Form::Rows | Form::Asked if operation == "push" => return Ok(place),
            other => return Err(Error::new(ErrorKind::Protocol, format!("a {operation} of {other:?}"))),
        };
        if len_bytes as u64 != piece.len_bytes {
            let what = format!("key {} has {len_bytes} bytes here, not {}", held.slot.meta.key, piece.len_bytes);
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        if operation != "pull" {
            return Ok(place);
        }
        if let Form::Coded(compression) = piece.form {
            compression.check_for_values()?;
        }
        // A table has memory for what was written, and an answer for all of it.
        if held.slot.meta.storage == Storage::Rows && value.len_bytes() as u64 > ANSWER_BYTES_MAX {
            let what = format!(
                "key {} is a table with {} bytes on this server; a pull of all of it has at most {ANSWER_BYTES_MAX}",
                held.slot.meta.key,
                value.len_bytes()
            );
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("pull the rows that are needed"));
        }
        Ok(place)
    }

    /// Merges and takes what can be merged and taken now.
    pub(super) fn update(&mut self, checked: Checked, reply: TypedReply<Gone>) {
        let Checked { worker, values, pulls, answer } = checked;
        // One more, so that it does not end before all of it was looked at.
        let request = self.waiting.begin(reply, worker, values.len() + pulls.len() + 1, answer);
        self.contribute(worker, values, request);
        for (at, place) in pulls.into_iter().enumerate() {
            let held = &mut self.slots[place];
            if held.ask(self.members.counted(), worker, request, at) {
                self.waiting.one_done(request, |answer| answer.take(at, &held.slot, &self.arena));
            }
        }
        self.waiting.one_done(request, |_| Ok(()));
    }

    /// Takes contributions of one request.
    fn contribute(&mut self, worker: usize, values: Values, request: RequestId) {
        for (place, gradient) in values {
            let held = &mut self.slots[place];
            let before = held.queued();
            held.contribute(worker, gradient, request);
            self.backlog.changed(before, held.queued());
            self.advance(place);
        }
    }

    /// Merges what can be merged in one slot.
    fn advance(&mut self, place: usize) {
        let held = &mut self.slots[place];
        let (before, mut aside) = (held.queued(), 0);
        while let Some(advance) = held.advance(self.members.counted(), &self.merge, &self.arena) {
            match advance {
                Advance::Completed(completed) => tell(completed, held, &mut self.waiting, &self.arena),
                Advance::Aside(merge) => {
                    aside += 1;
                    self.aside.push(Aside { store: self.open.store, slice: held.number, merge });
                }
                Advance::Halfway(sums) => self.halfway.push(Halfway::new(&self.open, held, sums)),
            }
        }
        self.backlog.changed(before, held.queued() + aside);
    }

    /// Keeps a request that has pushed something from going on while user code has others to merge.
    pub(super) fn park(&mut self, parked: Parked) {
        self.backlog.park(parked);
    }

    /// A merge by user code begins.
    pub(super) fn begun(&mut self) {
        self.backlog.changed(1, 0);
    }

    /// User code has merged, or failed to.
    pub(super) fn take_back(&mut self, slice: u64, merge: UserMerge, outcome: Result<()>) {
        let Some(place) = self.index.get(&slice).copied() else { return };
        let held = &mut self.slots[place];
        if let Some(completed) = held.take_back(self.members.counted(), merge, outcome, &self.arena) {
            tell(completed, held, &mut self.waiting, &self.arena);
            self.advance(place);
        }
    }

    /// Whether pushes may have to wait for user code.
    pub(super) fn runs_code(&self) -> bool {
        matches!(self.merge, Merge::Function(_))
    }

    /// The norms for a merge that waits for them have come, or never will.
    pub(super) fn finish(&mut self, slice: u64, norms: Result<Norms>) {
        let Some(place) = self.index.get(&slice).copied() else { return };
        let held = &mut self.slots[place];
        if let Some(completed) = held.finish(norms) {
            tell(completed, held, &mut self.waiting, &self.arena);
            self.advance(place);
        }
    }

    /// How many slices a key has that has its first one here, and its elements; an error if no merge will ever need
    /// them.
    pub(super) fn whole(&self, key: u64) -> Result<(usize, u64)> {
        if let Some(lost) = &self.lost {
            return Err(lost.error.clone());
        }
        let held = self.index.get(&key).map(|place| &self.slots[*place]);
        let meta = held.map(|held| &held.slot.meta);
        let meta = meta.ok_or_else(|| Error::new(ErrorKind::NotFound, "sums of a key that is not here"))?;
        Ok((meta.slice_count(key, &self.open.cutting) as usize, meta.shape.elements().unwrap_or(0)))
    }

    /// Who is waited for has changed.
    fn reconsider(&mut self) {
        (0..self.slots.len()).for_each(|place| self.advance(place));
        if let Some(done) = self.members.begin_anew() {
            self.slots.iter_mut().for_each(Held::level);
            done.into_iter().for_each(|request| self.waiting.answer(request, Ok(())));
        }
        self.open_barriers();
    }

    fn open_barriers(&mut self) {
        if let Some(closed) = self.members.closed() {
            let error =
                Error::new(ErrorKind::Closed, format!("worker {closed} has closed the store, and will not come"));
            for request in self.members.take_entered() {
                self.waiting.answer(request, Err(error.clone()));
            }
            return;
        }
        for request in self.members.through() {
            self.waiting.answer(request, Ok(()));
        }
    }

    /// A worker comes to a barrier, and is told when all have.
    pub(super) fn barrier(&mut self, worker: usize, reply: TypedReply<Gone>) {
        let request = self.waiting.begin(reply, worker, 1, Assembly::default());
        if let Some(error) = self.refusal(worker, false) {
            return self.waiting.answer(request, Err(error));
        }
        self.members.enter(worker, request);
        self.open_barriers();
    }

    /// A worker pushes no more, and is told when all others have come to that point.
    pub(super) fn done(&mut self, worker: usize, reply: TypedReply<Gone>) {
        let request = self.waiting.begin(reply, worker, 1, Assembly::default());
        if let Some(error) = self.refusal(worker, true) {
            return self.waiting.answer(request, Err(error));
        }
        self.members.done(worker, request);
        self.reconsider();
    }

    /// Why a worker may not wait for the others.
    fn refusal(&self, worker: usize, pushes: bool) -> Option<Error> {
        let loss = self.loss.clone().or_else(|| self.waiting.check_room(worker).err());
        loss.or_else(|| self.check_standing(worker, pushes).err())
    }

    /// A worker pushes no more, and will come to one more barrier and close the store.
    pub(super) fn closing(&mut self, worker: usize) {
        if matches!(self.members.standing(worker), Standing::Active | Standing::Done) {
            self.members.set(worker, Standing::Closing);
            self.reconsider();
        }
    }

    /// A worker needs the store no more.
    pub(super) fn close(&mut self, worker: usize) {
        if !matches!(self.members.standing(worker), Standing::Leaving | Standing::Gone) {
            self.members.set(worker, Standing::Closed);
            self.reconsider();
        }
    }

    /// A worker is lost.
    pub(super) fn lose(&mut self, worker: usize, has_left: bool, error: &Error) -> Fate {
        let is_missed = match self.members.standing(worker) {
            Standing::Gone | Standing::Leaving => return Fate::GoesOn,
            Standing::Closed => false,
            Standing::Done | Standing::Closing => !has_left,
            Standing::Active => true,
        };
        if self.open.on_worker_loss == OnWorkerLoss::Shrink && self.counts_workers() {
            if is_missed {
                self.members.set(worker, Standing::Leaving);
                return Fate::Unsettled;
            }
            // Other servers may not have heard that it has closed the store, and ask this one.
            if !has_left {
                return Fate::Unsettled;
            }
        }
        let fails = is_missed && self.open.on_worker_loss == OnWorkerLoss::Fail;
        if fails {
            self.fail(error);
        }
        self.shrink(worker);
        if fails && self.counts_workers() { Fate::Fails } else { Fate::GoesOn }
    }

    /// Goes on without a worker.
    pub(super) fn shrink(&mut self, worker: usize) {
        self.members.set(worker, Standing::Gone);
        // What it has pushed counts; nobody waits for the answers.
        self.begun.retain(|(of, _), _| *of != worker);
        self.waiting.forget(worker);
        self.reconsider();
    }

    /// How often a worker has pushed each key that has several slices, by the keys' numbers, if it has at all; an error
    /// if the slices here do not agree on it.
    pub(super) fn heard(&self, worker: usize) -> Result<Vec<(u64, u64)>> {
        let mut heard = std::collections::BTreeMap::new();
        for held in &self.slots {
            let meta = &held.slot.meta;
            let number = meta.key.number();
            let is_cut = meta.slice_count(number, &self.open.cutting) > 1;
            if is_cut && *heard.entry(number).or_insert(held.heard(worker)) != held.heard(worker) {
                let what = format!("its last push of key {} has come in part", meta.key);
                return Err(Error::new(ErrorKind::PeerLost, what));
            }
        }
        // A key that it has not pushed is not torn: it may have died when it had initialised it on some servers.
        Ok(heard.into_iter().filter(|(_, count)| *count > 0).collect())
    }

    /// A push was refused. Other servers may have taken their slices of it, and nobody may get a sum of different
    /// rounds.
    pub(super) fn refused(&mut self, worker: usize, error: &Error) {
        if self.counts_workers() {
            let context = format!("a push of worker {worker} was refused, so that no round is whole any more");
            self.fail(&error.clone().context(context));
        }
    }

    /// Slices of a push were refused: it ends with that, for they do not come again.
    pub(super) fn end_begun(&mut self, worker: usize, operation: u64, error: &Error) {
        if let Some(begun) = self.begun.remove(&(worker, operation)) {
            self.waiting.answer(begun.request, Err(error.clone()));
        }
    }

    /// A push has reached some servers and not others, as its worker says.
    pub(super) fn torn(&mut self, worker: usize, operation: Option<u64>, reason: &Error) {
        if self.counts_workers() {
            let what = "has reached some servers and not others, so that no round is whole any more";
            self.fail_in_part(&reason.clone().context(format!("a push of worker {worker} {what}")));
        } else if let Some(operation) = operation {
            self.end_begun(worker, operation, reason);
        }
    }

    /// Answers a request with an error.
    pub(super) fn refuse(&mut self, reply: TypedReply<Gone>, worker: usize, error: Error) {
        let request = self.waiting.begin(reply, worker, 1, Assembly::default());
        self.waiting.answer(request, Err(error));
    }

    /// Nothing that waits for other workers will ever end: it ends now.
    pub(super) fn fail(&mut self, error: &Error) {
        // The first loss is the reason of those that follow.
        let error = self.loss.get_or_insert_with(|| error.clone()).clone();
        for request in self.members.take_waiting() {
            self.waiting.answer(request, Err(error.clone()));
        }
        if !self.counts_workers() {
            // Pushes wait for user code, for norms or for their own slices, and all of these still come.
            return;
        }
        self.begun.clear();
        let lost = self.lost.get_or_insert_with(|| Lost { error: error.clone(), failed: vec![false; self.workers] });
        for held in &mut self.slots {
            lost.failed.iter_mut().enumerate().for_each(|(worker, failed)| *failed |= held.owes(worker));
            self.backlog.changed(held.queued(), 0);
            held.clear();
        }
        self.waiting.fail_all(&error);
    }

    /// As [`Store::fail`], and a push may have been merged in part, where pushes are merged as they come: nobody gets
    /// that value.
    pub(super) fn fail_in_part(&mut self, error: &Error) {
        self.fail(error);
        if let Some(lost) = self.lost.as_mut().filter(|_| self.open.kind != Kind::DistSync) {
            lost.failed.fill(true);
        }
    }
}

/// Answers those who wait for a merge.
fn tell(completed: Completed, held: &Held, waiting: &mut Pending, arena: &Arena) {
    for request in completed.merged {
        waiting.one_done(request, |_| completed.outcome.clone());
    }
    for waiter in completed.served {
        waiting.one_done(waiter.request, |answer| answer.take(waiter.piece, &held.slot, arena));
    }
}

/// Where the pieces of a message are: for each the tensor and the byte in it.
fn find<'a>(pieces: &[Piece], tensors: &'a [Tensor]) -> Result<Vec<(&'a Tensor, usize)>> {
    let layout = Layout::of(pieces)?;
    if layout.parts != tensors.len() {
        let what = format!("{} tensors came for pieces in {}", tensors.len(), layout.parts);
        return Err(Error::new(ErrorKind::Protocol, what));
    }
    let locate = |(piece, spot): (&Piece, &Spot)| {
        let (tensor, at) = match spot {
            Spot::Packed(at) => (&tensors[0], *at),
            Spot::Part(part) => (&tensors[*part], 0),
        };
        let (end, len_bytes) = (at.saturating_add(piece.len_bytes), tensor.len_bytes() as u64);
        if end > len_bytes || matches!(spot, Spot::Part(_)) && end != len_bytes {
            return Err(Error::new(ErrorKind::Protocol, "a piece that its tensor does not hold"));
        }
        Ok((tensor, at as usize))
    };
    pieces.iter().zip(&layout.spots).map(locate).collect()
}
