//! The server's side: it holds slices of tensors, merges what workers push and sends what they pull.
//!
//! Requests are handled where they are found, one at a time and in the order of each worker's link; so a store needs no
//! locks beyond one, and a worker's push is before its later pull. A request is checked whole before anything of it is
//! merged; one that is refused changes nothing, and the server lives on.
//!
//! In a synchronous store an update is answered when the rounds that it contributes to are complete ([`crate::round`]),
//! and what it pulls is taken at just that moment. When a worker is gone no round can end any more: everything that
//! waits ends with an error that names it, and so does every later push.

use crate::key::Key;
use crate::kind::Kind;
use crate::layout::{ANSWER_BYTES_MAX, KEYS_MAX, Layout, Spot};
use crate::local::{exists, unknown};
use crate::numbers::Numbered;
use crate::protocol::{self, DESCRIBE, Describe, Described, INIT, Init, OPEN, Open, Piece, SERVICE, UPDATE, Update};
use crate::protocol::{SET_UPDATER, SetUpdater};
use crate::round::{RequestId, Round, guarded};
use crate::slot::{Merge, Meta, Slot, empty, flat_copy};
use crate::updater::{Function, Spec, Updater};
use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, NodeId, Result, limits};
use sheave_mesh::{Member, Mesh, Reply, Request, Role, Service};
use sheave_net::Part;
use sheave_tensor::{Arena, Dtype, Mode, Shape, Tensor};
use sheave_wire::Value;
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Updaters that a server offers by name.
#[derive(Clone, Default)]
pub struct ServerConfig {
    functions: HashMap<String, Function>,
}

impl ServerConfig {
    /// Offers a function under a name, for [`Updater::Named`].
    #[must_use]
    pub fn function(
        mut self,
        name: &str,
        function: impl Fn(&Key, &Tensor, &mut Tensor) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.functions.insert(name.to_owned(), Arc::new(function));
        self
    }
}

/// A server of a distributed store. It serves from [`Server::start`] on, on the threads that wait on its node.
pub struct Server {
    mesh: Mesh,
}

impl Server {
    /// Begins to serve. Does not block.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if this node serves already.
    pub fn start(mesh: &Mesh, config: ServerConfig) -> Result<Self> {
        let workers = mesh.of_role(Role::Worker).map(|member| (member.node, member.role_rank as usize)).collect();
        let holder = Arc::new(Holder {
            arena: mesh.node().arena().clone(),
            workers,
            functions: config.functions,
            table: Mutex::default(),
        });
        mesh.serve(SERVICE, Door(Arc::clone(&holder)))?;
        // Who is gone already will not be reported.
        for death in mesh.deaths() {
            if let Some(member) = mesh.member(death.node) {
                let error = Error::new(ErrorKind::PeerLost, death.reason).peer(member.peer());
                holder.lost(member, &error);
            }
        }
        Ok(Self { mesh: mesh.clone() })
    }

    /// Serves on this thread until every worker has left. Blocks.
    ///
    /// # Errors
    ///
    /// `PeerLost` when a worker died, naming it.
    pub fn run(&self) -> Result<()> {
        self.mesh.until_gone(|member| member.introduction.role == Role::Worker)
    }
}

struct Holder {
    arena: Arena,
    /// The rank of each worker among the workers.
    workers: HashMap<NodeId, usize>,
    functions: HashMap<String, Function>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    stores: HashMap<u32, Store>,
    /// The first worker that is gone.
    lost: Option<Error>,
}

/// What is served.
struct Door(Arc<Holder>);

struct Store {
    open: Open,
    merge: Merge,
    /// In the order of their initialisation, which is about the order in which they are asked for.
    slots: Vec<Held>,
    /// Where the slot of a key's number is.
    index: Numbered<usize>,
    waiting: Pending,
    lost: Option<Lost>,
}

/// A worker is gone, and no round of a synchronous store ends any more.
struct Lost {
    error: Error,
    /// Those with a push that came to nothing. What they pull would lack it, so it is refused.
    failed: Vec<bool>,
}

struct Held {
    slot: Slot,
    round: Round,
}

/// An update that is not answered.
struct Waiting {
    reply: Reply,
    worker: usize,
    /// Contributions that are not merged, and pieces that are not taken.
    left: usize,
    answer: Assembly,
    error: Option<Error>,
}

/// The updates of a store that are not answered.
#[derive(Default)]
struct Pending {
    waiting: Numbered<Waiting>,
    ended: Vec<Waiting>,
    last: RequestId,
    /// How many of each worker wait.
    counts: HashMap<usize, usize>,
}

impl Pending {
    /// A worker's own limit of pending calls keeps it from more, if it is one of ours.
    fn check_room(&self, worker: usize) -> Result<()> {
        if self.counts.get(&worker).is_some_and(|count| *count >= limits::CALLS_PENDING_MAX) {
            let what = format!("{} requests of this worker wait already", limits::CALLS_PENDING_MAX);
            return Err(Error::new(ErrorKind::LimitExceeded, what));
        }
        Ok(())
    }

    fn begin(&mut self, reply: Reply, worker: usize, left: usize, answer: Assembly) -> RequestId {
        self.last += 1;
        *self.counts.entry(worker).or_default() += 1;
        // One more, so that it does not end before all of it was looked at.
        self.waiting.insert(self.last, Waiting { reply, worker, left: left + 1, answer, error: None });
        self.last
    }

    /// One thing that the request waits for has happened.
    fn one_done(&mut self, request: RequestId, happen: impl FnOnce(&mut Assembly) -> Result<()>) {
        let Some(waiting) = self.waiting.get_mut(&request) else { return };
        if let Err(error) = happen(&mut waiting.answer) {
            waiting.error.get_or_insert(error);
        }
        waiting.left -= 1;
        if waiting.left == 0
            && let Some(ended) = self.waiting.remove(&request)
        {
            self.counts.entry(ended.worker).and_modify(|count| *count -= 1);
            self.ended.push(ended);
        }
    }

    fn fail_all(&mut self, error: &Error) {
        self.counts.clear();
        let failed = self.waiting.drain().map(|(_, waiting)| Waiting { error: Some(error.clone()), ..waiting });
        self.ended.extend(failed);
    }
}

impl Waiting {
    fn answer(self) {
        match self.error {
            Some(error) => self.reply.error(error),
            None => self.reply.ok(Value::None, self.answer.into_parts()),
        }
    }
}

/// The tensors of an answer, as they come together. Nothing is allocated for what is only waited for.
struct Assembly {
    packed: Option<Tensor>,
    packed_bytes: u64,
    spots: Vec<Spot>,
    parts: Vec<Option<Tensor>>,
}

impl Assembly {
    fn new(pieces: &[Piece]) -> Result<Self> {
        let Layout { spots, packed_bytes, parts } = Layout::of(pieces)?;
        let bytes = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len_bytes));
        if pieces.len() > 1 && bytes.is_none_or(|bytes| bytes > ANSWER_BYTES_MAX) {
            return Err(Error::new(ErrorKind::Protocol, "one request for more than an answer may have"));
        }
        Ok(Self { packed: None, packed_bytes, spots, parts: vec![None; parts] })
    }

    /// Takes a piece as it is now.
    fn take(&mut self, piece: usize, value: &Tensor, arena: &Arena) -> Result<()> {
        match self.spots[piece] {
            Spot::Part(part) => self.parts[part] = Some(flat_copy(value, arena)?),
            Spot::Packed(at) => {
                let bytes = value.bytes()?;
                let range = at as usize..at as usize + bytes.len();
                if self.packed.is_none() {
                    self.packed = Some(empty(arena, Dtype::U8, self.packed_bytes)?);
                }
                let packed = self.packed.as_mut().map(Tensor::bytes_mut).transpose()?;
                let target = packed.and_then(|packed| packed.get_mut(range));
                target.ok_or_else(|| Error::new(ErrorKind::Internal, "a piece without room"))?.copy_from_slice(&bytes);
            }
        }
        Ok(())
    }

    fn into_parts(mut self) -> SmallVec<[Part; 1]> {
        if let Some(packed) = self.packed.take() {
            self.parts[0] = Some(packed);
        }
        self.parts.into_iter().flatten().map(|tensor| Part::new(tensor, Mode::Move)).collect()
    }
}

impl Service for Door {
    fn handle(&self, request: Request) {
        let Request { from, method, args, tensors, reply, .. } = request;
        let outcome = match method.as_str() {
            UPDATE => return self.0.update(from, &args, tensors, reply),
            OPEN => self.0.open(&args),
            INIT => self.0.init(&args, &tensors),
            DESCRIBE => self.0.describe(&args),
            SET_UPDATER => self.0.set_updater(&args),
            other => Err(Error::new(ErrorKind::NotFound, format!("a store server does not know \"{other}\""))),
        };
        reply.send(outcome.map(|value| (value, SmallVec::new())));
    }

    fn is_inline(&self) -> bool {
        true
    }

    fn lost(&self, member: &Member, error: &Error) {
        self.0.lost(member, error);
    }
}

impl Holder {
    fn lost(&self, member: &Member, error: &Error) {
        if !self.workers.contains_key(&member.node) {
            return;
        }
        let error = error.clone().hint("a synchronous store needs every worker; start the job again");
        let mut table = self.table.lock();
        let synchronous = table.stores.values_mut().filter(|store| store.open.kind == Kind::DistSync);
        let ended: Vec<Waiting> = synchronous.flat_map(|store| store.fail(&error, self.workers.len())).collect();
        // For stores that are opened later.
        table.lost.get_or_insert(error);
        drop(table);
        ended.into_iter().for_each(Waiting::answer);
    }

    fn open(&self, args: &Value) -> Result<Value> {
        let open: Open = protocol::decode(args)?;
        let mut table = self.table.lock();
        if let Some(known) = table.stores.get(&open.store) {
            if known.open == open {
                return Ok(Value::None);
            }
            let Open { kind, cut_elements, .. } = &known.open;
            let what = format!(
                "store {} was opened as {kind} with tensors cut from {cut_elements} elements on, not as {} from {}",
                open.store, open.kind, open.cut_elements
            );
            return Err(
                Error::new(ErrorKind::Mismatch, what).hint("all workers must open their stores alike, in order")
            );
        }
        if table.stores.len() >= STORES_MAX {
            return Err(Error::new(ErrorKind::LimitExceeded, format!("a job has at most {STORES_MAX} stores")));
        }
        if !open.kind.is_distributed() {
            return Err(Error::new(ErrorKind::Protocol, format!("a {} store needs no servers", open.kind)));
        }
        let mut store = Store::new(open);
        if let Some(error) = table.lost.as_ref().filter(|_| store.open.kind == Kind::DistSync) {
            store.fail(error, self.workers.len());
        }
        table.stores.insert(store.open.store, store);
        Ok(Value::None)
    }

    fn init(&self, args: &Value, tensors: &[Tensor]) -> Result<Value> {
        let init: Init = protocol::decode(args)?;
        let spots = find(&init.pieces, tensors)?;
        if init.keys.len() != init.pieces.len() {
            return Err(Error::new(ErrorKind::Protocol, "keys and pieces are not the same in number"));
        }
        let mut table = self.table.lock();
        let store = of(&mut table, init.store)?;
        let mut fresh = Vec::with_capacity(init.keys.len());
        let mut numbers = HashSet::with_capacity(init.keys.len());
        for ((described, piece), (tensor, at)) in init.keys.into_iter().zip(&init.pieces).zip(spots) {
            let Described { key, dtype, shape } = described;
            key.check()?;
            let number = key.number();
            if number != piece.number || store.index.contains_key(&number) || !numbers.insert(number) {
                return Err(exists(&key));
            }
            let dtype = Dtype::from_code(dtype)
                .ok_or_else(|| Error::new(ErrorKind::Protocol, format!("key {key} has the unknown dtype {dtype}")))?;
            let value = view(tensor, at, piece, dtype)?;
            // A slice may be shorter than the whole, and never longer.
            let shape = Shape::new(&shape)?;
            if shape.elements().is_none_or(|elements| value.elements() as u64 > elements) {
                return Err(Error::new(ErrorKind::Protocol, format!("key {key} has more elements than {shape}")));
            }
            let meta = Meta { key, dtype, shape };
            let slot = Slot::new(meta, &value, &self.arena)?;
            fresh.push((number, Held { slot, round: Round::new(self.workers.len()) }));
        }
        for (number, held) in fresh {
            store.index.insert(number, store.slots.len());
            store.slots.push(held);
        }
        Ok(Value::None)
    }

    fn describe(&self, args: &Value) -> Result<Value> {
        let describe: Describe = protocol::decode(args)?;
        if describe.numbers.len() > KEYS_MAX {
            return Err(Error::new(ErrorKind::Protocol, format!("{} keys in one request", describe.numbers.len())));
        }
        let mut table = self.table.lock();
        let store = of(&mut table, describe.store)?;
        let described = |number: &u64| {
            let meta = &store.slots[*store.index.get(number)?].slot.meta;
            let shape = meta.shape.dimensions().to_vec();
            Some(Described { key: meta.key.clone(), dtype: meta.dtype.code(), shape })
        };
        protocol::encode(&describe.numbers.iter().map(described).collect::<Vec<_>>())
    }

    fn set_updater(&self, args: &Value) -> Result<Value> {
        let SetUpdater { store, updater, is_trial } = protocol::decode(args)?;
        let updater = match updater {
            Spec::Assign => Updater::Assign,
            Spec::Sum => Updater::Sum,
            Spec::Rule(rule) => Updater::Rule(rule),
            Spec::Named(name) => Updater::Named(name),
        };
        let merge = Merge::of(updater, |name| self.functions.get(name).cloned())?;
        let mut table = self.table.lock();
        let store = of(&mut table, store)?;
        if !is_trial {
            store.merge = merge;
        }
        Ok(Value::None)
    }

    fn update(&self, from: NodeId, args: &Value, tensors: SmallVec<[Tensor; 1]>, reply: Reply) {
        let read = || {
            let update: Update = protocol::decode(args)?;
            let worker = self.workers.get(&from).copied();
            let worker = worker.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "only workers push and pull"))?;
            Ok((update, worker))
        };
        let (update, worker) = match read() {
            Ok(read) => read,
            Err(error) => return reply.error(error),
        };
        let mut table = self.table.lock();
        let store = match of(&mut table, update.store) {
            Ok(store) => store,
            Err(error) => return reply.error(error),
        };
        let is_contribution = store.open.kind == Kind::DistSync && !update.push.is_empty();
        let checked = Self::check(store, &update, worker, &tensors);
        // A contribution that has no other handle can be added to.
        drop(tensors);
        let (ended, refused) = match checked {
            Ok(checked) => (store.update(checked, reply, &self.arena), None),
            Err(error) if is_contribution => {
                // Other servers may have taken their slices of this push. Nobody may get a sum of different rounds.
                let context = format!("a push of worker {worker} was refused, so that no round is whole any more");
                (store.fail(&error.clone().context(context), self.workers.len()), Some((reply, error)))
            }
            Err(error) => (Vec::new(), Some((reply, error))),
        };
        // With no lock held: a caller of this very node may go on at once.
        drop(table);
        ended.into_iter().for_each(Waiting::answer);
        if let Some((reply, error)) = refused {
            reply.error(error);
        }
    }

    /// Refuses an update before anything of it is merged.
    fn check(store: &mut Store, update: &Update, worker: usize, tensors: &[Tensor]) -> Result<Checked> {
        if let Some(lost) = &mut store.lost {
            lost.failed[worker] |= !update.push.is_empty();
            if lost.failed[worker] {
                return Err(lost.error.clone());
            }
        }
        store.waiting.check_room(worker)?;
        let spots = find(&update.push, tensors)?;
        let mut values = Vec::with_capacity(spots.len());
        for (piece, (tensor, at)) in update.push.iter().zip(spots) {
            let place = store.place("push", piece)?;
            let held = &store.slots[place];
            if store.open.kind == Kind::DistSync {
                held.round.check_room(worker)?;
            }
            values.push((place, view(tensor, at, piece, held.slot.meta.dtype)?));
        }
        let pulls = update.pull.iter().map(|piece| store.place("pull", piece)).collect::<Result<Vec<_>>>()?;
        let answer = Assembly::new(&update.pull)?;
        Ok(Checked { worker, values, pulls, answer })
    }
}

/// An update that nothing speaks against.
struct Checked {
    /// Who asks.
    worker: usize,
    /// What is pushed to which slots, flat and typed.
    values: Vec<(usize, Tensor)>,
    /// The slots that are pulled.
    pulls: Vec<usize>,
    answer: Assembly,
}

/// Stores of one job: they are parts of a program, and more of them are a leak.
const STORES_MAX: usize = 1024;

fn of(table: &mut Table, store: u32) -> Result<&mut Store> {
    table.stores.get_mut(&store).ok_or_else(|| Error::new(ErrorKind::NotFound, format!("store {store} was not opened")))
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

/// A piece as what it stands for, flat. Nothing is copied.
fn view(tensor: &Tensor, at: usize, piece: &Piece, dtype: Dtype) -> Result<Tensor> {
    let size_bytes = dtype.size_bytes() as u64;
    if !piece.len_bytes.is_multiple_of(size_bytes) {
        let what = format!("{} bytes are not whole elements of {dtype}", piece.len_bytes);
        return Err(Error::new(ErrorKind::Protocol, what));
    }
    Tensor::from_buffer(tensor.buffer().clone(), tensor.offset_bytes() + at, dtype, [piece.len_bytes / size_bytes])
}

impl Store {
    fn new(open: Open) -> Self {
        Self {
            open,
            merge: Merge::Assign,
            slots: Vec::new(),
            index: Numbered::default(),
            waiting: Pending::default(),
            lost: None,
        }
    }

    /// The slot that a piece is of, if that has its size.
    fn place(&self, operation: &'static str, piece: &Piece) -> Result<usize> {
        let place = self.index.get(&piece.number).copied();
        let place = place.ok_or_else(|| unknown(&Key::from(format!("number {:016x}", piece.number)), operation))?;
        let held = &self.slots[place];
        let len_bytes = held.slot.value.len_bytes();
        if len_bytes as u64 != piece.len_bytes {
            let what = format!("key {} has {len_bytes} bytes here, not {}", held.slot.meta.key, piece.len_bytes);
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        Ok(place)
    }

    /// Merges and takes what can be merged and taken now. Returns the updates that have come to their end.
    fn update(&mut self, checked: Checked, reply: Reply, arena: &Arena) -> Vec<Waiting> {
        let Checked { worker, values, pulls, answer } = checked;
        let request = self.waiting.begin(reply, worker, values.len() + pulls.len(), answer);
        for (place, value) in values {
            self.push(place, value, worker, request, arena);
        }
        for (at, place) in pulls.into_iter().enumerate() {
            let held = &mut self.slots[place];
            if self.open.kind != Kind::DistSync || held.round.ask(worker, request, at) {
                self.waiting.one_done(request, |answer| answer.take(at, &held.slot.value, arena));
            }
        }
        self.waiting.one_done(request, |_| Ok(()));
        std::mem::take(&mut self.waiting.ended)
    }

    fn push(&mut self, place: usize, value: Tensor, worker: usize, request: RequestId, arena: &Arena) {
        let held = &mut self.slots[place];
        if self.open.kind != Kind::DistSync {
            let outcome = guarded(&mut held.slot, &self.merge, &value);
            return self.waiting.one_done(request, |_| outcome);
        }
        held.round.contribute(worker, value, request);
        while let Some(completed) = held.round.advance(&mut held.slot, &self.merge, arena) {
            for request in completed.merged {
                self.waiting.one_done(request, |_| completed.outcome.clone());
            }
            for waiter in completed.served {
                let take = |answer: &mut Assembly| answer.take(waiter.piece, &held.slot.value, arena);
                self.waiting.one_done(waiter.request, take);
            }
        }
    }

    fn fail(&mut self, error: &Error, workers: usize) -> Vec<Waiting> {
        // The first loss is the reason of those that follow.
        let lost = self.lost.get_or_insert_with(|| Lost { error: error.clone(), failed: vec![false; workers] });
        for held in &mut self.slots {
            lost.failed.iter_mut().enumerate().for_each(|(worker, failed)| *failed |= held.round.owes(worker) > 0);
            held.round.clear();
        }
        self.waiting.fail_all(&lost.error);
        std::mem::take(&mut self.waiting.ended)
    }
}
