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
use crate::layout::{Layout, Spot};
use crate::local::{exists, unknown};
use crate::protocol::{self, DESCRIBE, Describe, Described, INIT, Init, OPEN, Open, Piece, SERVICE, UPDATE, Update};
use crate::protocol::{SET_UPDATER, SetUpdater};
use crate::round::{RequestId, Round, guarded};
use crate::slot::{Merge, Meta, Slot, empty, flat_copy};
use crate::updater::{Function, Spec, Updater};
use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_mesh::{Member, Mesh, Reply, Request, Role, Service};
use sheave_net::Part;
use sheave_tensor::{Arena, Dtype, Mode, Shape, Tensor};
use sheave_wire::Value;
use smallvec::SmallVec;
use std::collections::HashMap;
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
        let holder = Holder {
            arena: mesh.node().arena().clone(),
            workers,
            functions: config.functions,
            stores: Mutex::default(),
        };
        mesh.serve(SERVICE, holder)?;
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
    stores: Mutex<HashMap<u32, Store>>,
}

struct Store {
    open: Open,
    merge: Merge,
    slots: HashMap<u64, Held>,
    waiting: Pending,
    /// A worker is gone.
    lost: Option<Error>,
}

struct Held {
    slot: Slot,
    round: Round,
}

/// An update that is not answered.
struct Waiting {
    reply: Reply,
    /// Contributions that are not merged, and pieces that are not taken.
    left: usize,
    answer: Assembly,
    error: Option<Error>,
}

/// The updates of a store that are not answered.
#[derive(Default)]
struct Pending {
    waiting: HashMap<RequestId, Waiting>,
    ended: Vec<Waiting>,
    last: RequestId,
}

impl Pending {
    fn begin(&mut self, reply: Reply, left: usize, answer: Assembly) -> RequestId {
        self.last += 1;
        // One more, so that it does not end before all of it was looked at.
        self.waiting.insert(self.last, Waiting { reply, left: left + 1, answer, error: None });
        self.last
    }

    /// One thing that the request waits for has happened.
    fn one_done(&mut self, request: RequestId, happen: impl FnOnce(&mut Assembly) -> Result<()>) {
        let Some(waiting) = self.waiting.get_mut(&request) else { return };
        if let Err(error) = happen(&mut waiting.answer) {
            waiting.error.get_or_insert(error);
        }
        waiting.left -= 1;
        if waiting.left == 0 {
            self.ended.extend(self.waiting.remove(&request));
        }
    }

    fn fail_all(&mut self, error: &Error) {
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

/// The tensors of an answer, as they come together.
struct Assembly {
    packed: Option<Tensor>,
    spots: Vec<Spot>,
    parts: Vec<Option<Tensor>>,
}

impl Assembly {
    fn new(pieces: &[Piece], arena: &Arena) -> Result<Self> {
        let layout = Layout::of(pieces)?;
        let is_packed = pieces.iter().any(|piece| piece.packed);
        let packed = if is_packed { Some(empty(arena, Dtype::U8, layout.packed_bytes)?) } else { None };
        Ok(Self { packed, spots: layout.spots, parts: vec![None; layout.parts] })
    }

    /// Takes a piece as it is now.
    fn take(&mut self, piece: usize, value: &Tensor, arena: &Arena) -> Result<()> {
        match self.spots[piece] {
            Spot::Part(part) => self.parts[part] = Some(flat_copy(value, arena)?),
            Spot::Packed(at) => {
                let bytes = value.bytes()?;
                let range = at as usize..at as usize + bytes.len();
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

impl Service for Holder {
    fn handle(&self, request: Request) {
        let Request { from, method, args, tensors, reply, .. } = request;
        let outcome = match method.as_str() {
            UPDATE => return self.update(from, &args, tensors, reply),
            OPEN => self.open(&args),
            INIT => self.init(&args, &tensors),
            DESCRIBE => self.describe(&args),
            SET_UPDATER => self.set_updater(&args),
            other => Err(Error::new(ErrorKind::NotFound, format!("a store server does not know \"{other}\""))),
        };
        reply.send(outcome.map(|value| (value, SmallVec::new())));
    }

    fn is_inline(&self) -> bool {
        true
    }

    fn lost(&self, member: &Member, error: &Error) {
        if !self.workers.contains_key(&member.node) {
            return;
        }
        let error = error.clone().hint("a synchronous store needs every worker; start the job again");
        let mut stores = self.stores.lock();
        let synchronous = stores.values_mut().filter(|store| store.open.kind == Kind::DistSync);
        let ended: Vec<Waiting> = synchronous.flat_map(|store| store.fail(&error)).collect();
        drop(stores);
        ended.into_iter().for_each(Waiting::answer);
    }
}

impl Holder {
    fn open(&self, args: &Value) -> Result<Value> {
        let open: Open = protocol::decode(args)?;
        let mut stores = self.stores.lock();
        if let Some(known) = stores.get(&open.store) {
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
        if stores.len() >= STORES_MAX {
            return Err(Error::new(ErrorKind::LimitExceeded, format!("a job has at most {STORES_MAX} stores")));
        }
        stores.insert(open.store, Store::new(open));
        Ok(Value::None)
    }

    fn init(&self, args: &Value, tensors: &[Tensor]) -> Result<Value> {
        let init: Init = protocol::decode(args)?;
        let values = views(&init.pieces, tensors)?;
        if init.keys.len() != init.pieces.len() {
            return Err(Error::new(ErrorKind::Protocol, "keys and pieces are not the same in number"));
        }
        let mut stores = self.stores.lock();
        let store = of(&mut stores, init.store)?;
        let mut fresh = Vec::with_capacity(init.keys.len());
        for ((described, piece), value) in init.keys.into_iter().zip(&init.pieces).zip(values) {
            let Described { key, dtype, shape } = described;
            let number = key.number();
            if number != piece.number || store.slots.contains_key(&number) {
                return Err(exists(&key));
            }
            let dtype = Dtype::from_code(dtype)
                .ok_or_else(|| Error::new(ErrorKind::Protocol, format!("key {key} has the unknown dtype {dtype}")))?;
            let value = typed(&value, dtype)?;
            let meta = Meta { key, dtype, shape: Shape::new(&shape)? };
            let slot = Slot::new(meta, &value, &self.arena)?;
            fresh.push((number, Held { slot, round: Round::new(self.workers.len()) }));
        }
        store.slots.extend(fresh);
        Ok(Value::None)
    }

    fn describe(&self, args: &Value) -> Result<Value> {
        let describe: Describe = protocol::decode(args)?;
        let mut stores = self.stores.lock();
        let store = of(&mut stores, describe.store)?;
        let described = |number: &u64| {
            let meta = &store.slots.get(number)?.slot.meta;
            let shape = meta.shape.dimensions().to_vec();
            Some(Described { key: meta.key.clone(), dtype: meta.dtype.code(), shape })
        };
        protocol::encode(&describe.numbers.iter().map(described).collect::<Vec<_>>())
    }

    fn set_updater(&self, args: &Value) -> Result<Value> {
        let SetUpdater { store, updater } = protocol::decode(args)?;
        let updater = match updater {
            Spec::Assign => Updater::Assign,
            Spec::Sum => Updater::Sum,
            Spec::Rule(rule) => Updater::Rule(rule),
            Spec::Named(name) => Updater::Named(name),
        };
        let mut stores = self.stores.lock();
        of(&mut stores, store)?.merge = Merge::of(updater, |name| self.functions.get(name).cloned())?;
        Ok(Value::None)
    }

    fn update(&self, from: NodeId, args: &Value, tensors: SmallVec<[Tensor; 1]>, reply: Reply) {
        let mut stores = self.stores.lock();
        let checked = self.check(&mut stores, from, args, &tensors);
        // A contribution that has no other handle can be added to.
        drop(tensors);
        let ended = match checked {
            Ok(checked) => match of(&mut stores, checked.update.store) {
                Ok(store) => store.update(checked, reply, &self.arena),
                Err(error) => return reply.error(error),
            },
            Err(error) => return reply.error(error),
        };
        // With no lock held: a caller of this very node may go on at once.
        drop(stores);
        ended.into_iter().for_each(Waiting::answer);
    }

    /// Refuses an update before anything of it is merged.
    fn check(
        &self,
        stores: &mut HashMap<u32, Store>,
        from: NodeId,
        args: &Value,
        tensors: &[Tensor],
    ) -> Result<Checked> {
        let update: Update = protocol::decode(args)?;
        let worker = self.workers.get(&from).copied();
        let worker = worker.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, "only workers push and pull"))?;
        let store = of(stores, update.store)?;
        if let Some(error) = store.lost.as_ref().filter(|_| !update.push.is_empty()) {
            return Err(error.clone());
        }
        let values = views(&update.push, tensors)?;
        for (operation, piece) in
            update.push.iter().map(|piece| ("push", piece)).chain(update.pull.iter().map(|piece| ("pull", piece)))
        {
            let held = store
                .slots
                .get(&piece.number)
                .ok_or_else(|| unknown(&Key::from(format!("number {:016x}", piece.number)), operation))?;
            if held.slot.value.len_bytes() as u64 != piece.len_bytes {
                let what = format!(
                    "key {} has {} bytes here, not {}",
                    held.slot.meta.key,
                    held.slot.value.len_bytes(),
                    piece.len_bytes
                );
                return Err(Error::new(ErrorKind::Mismatch, what));
            }
            if operation == "push" && store.open.kind == Kind::DistSync {
                held.round.check_room(worker)?;
            }
        }
        let typed = |(piece, value): (&Piece, Tensor)| typed(&value, store.slots[&piece.number].slot.meta.dtype);
        let values = update.push.iter().zip(values).map(typed).collect::<Result<Vec<_>>>()?;
        let answer = Assembly::new(&update.pull, &self.arena)?;
        Ok(Checked { update, worker, values, answer })
    }
}

/// An update that nothing speaks against.
struct Checked {
    update: Update,
    /// Who asks.
    worker: usize,
    /// What is pushed, flat and typed.
    values: Vec<Tensor>,
    answer: Assembly,
}

/// Stores of one job: they are parts of a program, and more of them are a leak.
const STORES_MAX: usize = 1024;

fn of(stores: &mut HashMap<u32, Store>, store: u32) -> Result<&mut Store> {
    stores.get_mut(&store).ok_or_else(|| Error::new(ErrorKind::NotFound, format!("store {store} was not opened")))
}

/// The pieces of a message as tensors of bytes. Nothing is copied.
fn views(pieces: &[Piece], tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    let layout = Layout::of(pieces)?;
    if layout.parts != tensors.len() {
        let what = format!("{} tensors came for pieces in {}", tensors.len(), layout.parts);
        return Err(Error::new(ErrorKind::Protocol, what));
    }
    let view = |(piece, spot): (&Piece, &Spot)| {
        let (tensor, at) = match spot {
            Spot::Packed(at) => (&tensors[0], *at as usize),
            Spot::Part(part) => (&tensors[*part], 0),
        };
        let end = at as u64 + piece.len_bytes;
        if end > tensor.len_bytes() as u64 || matches!(spot, Spot::Part(_)) && end != tensor.len_bytes() as u64 {
            return Err(Error::new(ErrorKind::Protocol, "a piece that its tensor does not hold"));
        }
        Tensor::from_buffer(tensor.buffer().clone(), tensor.offset_bytes() + at, Dtype::U8, [piece.len_bytes])
    };
    pieces.iter().zip(&layout.spots).map(view).collect()
}

/// A tensor of bytes as what it stands for, flat.
fn typed(bytes: &Tensor, dtype: Dtype) -> Result<Tensor> {
    let elements = (bytes.len_bytes() / dtype.size_bytes()) as u64;
    Tensor::from_buffer(bytes.buffer().clone(), bytes.offset_bytes(), dtype, [elements])
}

impl Store {
    fn new(open: Open) -> Self {
        Self { open, merge: Merge::Assign, slots: HashMap::new(), waiting: Pending::default(), lost: None }
    }

    /// Merges and takes what can be merged and taken now. Returns the updates that have come to their end.
    fn update(&mut self, checked: Checked, reply: Reply, arena: &Arena) -> Vec<Waiting> {
        let Checked { update, worker, values, answer } = checked;
        let request = self.waiting.begin(reply, update.push.len() + update.pull.len(), answer);
        for (piece, value) in update.push.iter().zip(values) {
            self.push(piece, value, worker, request, arena);
        }
        for (at, piece) in update.pull.iter().enumerate() {
            let Some(held) = self.slots.get_mut(&piece.number) else { continue };
            if self.open.kind != Kind::DistSync || held.round.ask(worker, request, at) {
                self.waiting.one_done(request, |answer| answer.take(at, &held.slot.value, arena));
            }
        }
        self.waiting.one_done(request, |_| Ok(()));
        std::mem::take(&mut self.waiting.ended)
    }

    fn push(&mut self, piece: &Piece, value: Tensor, worker: usize, request: RequestId, arena: &Arena) {
        let Some(held) = self.slots.get_mut(&piece.number) else { return };
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

    fn fail(&mut self, error: &Error) -> Vec<Waiting> {
        self.lost = Some(error.clone());
        for held in self.slots.values_mut() {
            held.round.clear();
        }
        self.waiting.fail_all(error);
        std::mem::take(&mut self.waiting.ended)
    }
}
