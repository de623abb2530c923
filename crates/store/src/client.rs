//! The worker's side of a store on servers.
//!
//! One call of [`KvStore::push`](crate::KvStore::push) or its kin becomes few messages per server: small pieces are
//! packed, big ones travel as tensors of their own and are received in place. Values are captured before the call
//! returns; places are leased until it has ended.

use crate::gather::gather;
use crate::key::Key;
use crate::kind::Kind;
use crate::layout::{ANSWER_BYTES_MAX, KEYS_MAX, Layout, Spot, cut, padded};
use crate::layout::{PACKED_BELOW_BYTES, PACKED_BYTES_MAX, PARTS_MAX, PIECES_MAX};
use crate::local::{check_apart, exists, grouped, unknown};
use crate::protocol::{self, DESCRIBE, Describe, Described, INIT, Init, OPEN, Open, Piece, SERVICE, UPDATE, Update};
use crate::protocol::{SET_UPDATER, SetUpdater};
use crate::round::AHEAD_MAX;
use crate::slot::{Meta, empty, flat_copy};
use crate::updater::Updater;
use parking_lot::RwLock;
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_mesh::{Answer, Call, Group, Leases, Mesh, Role};
use sheave_net::Part;
use sheave_tensor::{Dtype, Mode, Shape, Tensor, WriteLease};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Pause between two attempts to open a store on a server that has not started its part yet.
const OPEN_PAUSE: Duration = Duration::from_millis(2);

pub(crate) struct Client {
    pub(crate) mesh: Mesh,
    pub(crate) workers: Group,
    servers: Vec<NodeId>,
    open: Open,
    known: RwLock<HashMap<Key, Arc<Known>>>,
    /// Why the parts of a synchronous store do not agree any more: a push has reached some servers and not others.
    broken: OnceLock<Error>,
}

/// What this worker knows of a key.
struct Known {
    number: u64,
    meta: Meta,
    /// Its pushes that have not ended.
    ahead: AtomicUsize,
}

/// Pushes of one operation that have not ended; they are no more when this is dropped.
#[derive(Default)]
struct Ahead(Vec<Arc<Known>>);

impl Ahead {
    /// One more push of this key.
    fn add(&mut self, known: &Arc<Known>) -> Result<()> {
        let before = known.ahead.fetch_add(1, SeqCst);
        self.0.push(Arc::clone(known));
        if before < AHEAD_MAX {
            return Ok(());
        }
        let what = format!("{AHEAD_MAX} pushes of key {} have not ended", known.meta.key);
        Err(Error::new(ErrorKind::LimitExceeded, what).operation("push").hint("wait for earlier pushes first"))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.0.iter().for_each(|known| {
            known.ahead.fetch_sub(1, SeqCst);
        });
    }
}

/// Slices of tensors, as they stand in a message.
type Pieces = Vec<(Piece, Tensor)>;

/// What goes to one server in one message.
#[derive(Default)]
struct Batch {
    push: Vec<(Piece, Tensor)>,
    pull: Vec<(Piece, Tensor)>,
    packed_bytes: u64,
    pulled_bytes: u64,
    parts: usize,
}

/// A batch whose values are captured, or will be when it leaves.
struct Parcel {
    server: NodeId,
    update: Update,
    tensors: SmallVec<[Part; 1]>,
    places: Vec<Tensor>,
}

impl Batch {
    /// Whether a piece that pulls so many bytes may come along; the first one always may.
    fn has_room(&self, pulled_bytes: u64) -> bool {
        let pieces = self.push.len() + self.pull.len();
        let is_small = self.pulled_bytes.saturating_add(pulled_bytes) <= ANSWER_BYTES_MAX || self.pull.is_empty();
        is_small && self.packed_bytes < PACKED_BYTES_MAX && self.parts + 1 < PARTS_MAX && pieces < PIECES_MAX
    }

    fn count(&mut self, piece: &Piece) {
        if piece.packed {
            self.packed_bytes += padded(piece.len_bytes).unwrap_or(piece.len_bytes);
        } else {
            self.parts += 1;
        }
    }
}

impl Client {
    pub(crate) fn open(mesh: &Mesh, kind: Kind, cut_elements: u64, patience: Duration) -> Result<Self> {
        let workers = mesh.role_group(Role::Worker).map_err(|error| {
            error.operation("open").hint("a distributed store is opened by workers; servers run a sheave_store::Server")
        })?;
        let servers: Vec<NodeId> = mesh.of_role(Role::Server).map(|member| member.node).collect();
        if servers.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("a {kind} store needs servers, and there are none"),
            )
            .operation("open")
            .hint("start the job with at least one server, or use a local store"));
        }
        let open = Open { store: mesh.next_number(SERVICE), kind, cut_elements };
        let client =
            Self { mesh: mesh.clone(), workers, servers, open, known: RwLock::default(), broken: OnceLock::new() };
        let until = Instant::now() + patience;
        let args = protocol::encode(&client.open)?;
        for server in &client.servers {
            loop {
                match client.mesh.call(*server, SERVICE, OPEN, args.clone())?.wait() {
                    Ok(_) => break,
                    // It has joined, and is about to start its service.
                    Err(error) if error.kind() == ErrorKind::NotFound && Instant::now() < until => {
                        std::thread::sleep(OPEN_PAUSE);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(client)
    }

    fn is_first(&self) -> bool {
        self.workers.rank().0 == 0
    }

    /// Blocks until all workers have come. The first one's values count; the others learn what it said.
    pub(crate) fn init(&self, pairs: &[(Key, Option<Tensor>)]) -> Result<()> {
        let sent = self.check_new(pairs).and_then(|()| match self.is_first() {
            true => self.send_first_values(pairs),
            false => Ok(()),
        });
        // Also after a failure: the others wait here.
        self.workers.barrier()?;
        sent?;
        self.learn(pairs)
    }

    fn check_new(&self, pairs: &[(Key, Option<Tensor>)]) -> Result<()> {
        let known = self.known.read();
        let mut seen = HashSet::with_capacity(pairs.len());
        for (key, _) in pairs {
            key.check()?;
            if known.contains_key(key) || !seen.insert(key) {
                return Err(exists(key));
            }
        }
        Ok(())
    }

    fn send_first_values(&self, pairs: &[(Key, Option<Tensor>)]) -> Result<()> {
        let mut inits: Vec<(Vec<Described>, Batch)> = self.servers.iter().map(|_| Default::default()).collect();
        for (key, value) in pairs {
            let value = value.as_ref().ok_or_else(|| {
                Error::new(ErrorKind::InvalidArgument, format!("key {key} has no value on the first worker"))
                    .operation("init")
            })?;
            let described =
                Described { key: key.clone(), dtype: value.dtype().code(), shape: value.shape().dimensions().to_vec() };
            for (server, piece, slice) in self.pieces(key.number(), value)? {
                let (keys, batch) = &mut inits[server];
                keys.push(described.clone());
                batch.push.push((piece, slice));
            }
        }
        let mut calls = Vec::new();
        for (server, (keys, batch)) in self.servers.iter().zip(inits) {
            for (keys, chunk) in in_chunks(keys, batch.push) {
                let pieces = chunk.iter().map(|(piece, _)| *piece).collect::<Vec<_>>();
                let tensors = self.pack(&chunk, &HashSet::new())?;
                let args = protocol::encode(&Init { store: self.open.store, keys, pieces })?;
                calls.push(self.mesh.call(*server, SERVICE, INIT, Call { args, tensors, ..Call::default() })?);
            }
        }
        calls.iter().try_for_each(|call| call.wait().map(drop))
    }

    /// Asks the servers what they hold, and compares.
    fn learn(&self, pairs: &[(Key, Option<Tensor>)]) -> Result<()> {
        for (at, server) in self.servers.iter().enumerate() {
            let home = |number: u64| (number % self.servers.len() as u64) as usize;
            let numbered = pairs.iter().map(|(key, value)| (key, value, key.number()));
            let own: Vec<_> = numbered.filter(|(_, _, number)| home(*number) == at).collect();
            for chunk in own.chunks(KEYS_MAX) {
                let numbers = chunk.iter().map(|(_, _, number)| *number).collect();
                let args = protocol::encode(&Describe { store: self.open.store, numbers })?;
                let answer = self.mesh.call(*server, SERVICE, DESCRIBE, args)?.wait()?;
                let known: Vec<Option<Described>> = protocol::decode(&answer.value)?;
                if known.len() != chunk.len() {
                    return Err(Error::new(
                        ErrorKind::Protocol,
                        "a server that describes other keys than it was asked",
                    ));
                }
                for ((key, value, number), described) in chunk.iter().zip(known) {
                    self.remember(key, *number, value.as_ref(), described)?;
                }
            }
        }
        Ok(())
    }

    fn remember(&self, key: &Key, number: u64, value: Option<&Tensor>, described: Option<Described>) -> Result<()> {
        let Some(Described { key: known, dtype, shape }) = described else {
            return Err(unknown(key, "init").hint("the first worker could not initialise it; look at its error"));
        };
        let dtype = Dtype::from_code(dtype)
            .ok_or_else(|| Error::new(ErrorKind::Protocol, format!("key {key} has the unknown dtype {dtype}")))?;
        let meta = Meta { key: known, dtype, shape: Shape::new(&shape)? };
        if meta.key != *key {
            let what = format!("keys {key} and {} have the same number", meta.key);
            return Err(Error::new(ErrorKind::AlreadyExists, what).operation("init").hint("rename one of them"));
        }
        if let Some(value) = value {
            meta.check("init", value)?;
        }
        let known = Known { number, meta, ahead: AtomicUsize::new(0) };
        self.known.write().insert(key.clone(), Arc::new(known));
        Ok(())
    }

    /// Pushes and pulls, in this order for each key.
    pub(crate) fn update(
        &self,
        operation: &'static str,
        push: &[(Key, Tensor)],
        pull: &[(Key, Tensor)],
    ) -> Result<Work<()>> {
        if let Some(error) = self.broken.get() {
            return Err(error.clone());
        }
        check_apart(operation, pull.iter().map(|(_, place)| place))?;
        let known = self.known.read();
        let find = |key: &Key, tensor: &Tensor| {
            let known = known.get(key).ok_or_else(|| unknown(key, operation))?;
            known.meta.check(operation, tensor).map(|()| known)
        };
        let mut batches: Vec<Vec<Batch>> = self.servers.iter().map(|_| Vec::new()).collect();
        let mut ahead = Ahead::default();
        let is_synchronous = self.open.kind == Kind::DistSync;
        push.iter().try_for_each(|(key, value)| find(key, value).map(drop))?;
        for (key, sum) in grouped(push, self.mesh.node().arena())? {
            let known = find(key, &sum)?;
            if is_synchronous {
                ahead.add(known)?;
            }
            for (server, piece, slice) in self.pieces(known.number, &sum)? {
                let batch = with_room(&mut batches[server], 0);
                batch.count(&piece);
                batch.push.push((piece, slice));
            }
        }
        for (key, place) in pull {
            for (server, piece, slice) in self.pieces(find(key, place)?.number, place)? {
                let batch = with_room(&mut batches[server], piece.len_bytes);
                batch.count(&piece);
                batch.pulled_bytes += piece.len_bytes;
                batch.pull.push((piece, slice));
            }
        }
        drop(known);
        self.send(operation, batches, ahead)
    }

    fn send(&self, operation: &'static str, batches: Vec<Vec<Batch>>, ahead: Ahead) -> Result<Work<()>> {
        let pulls = || batches.iter().flatten().flat_map(|batch| &batch.pull);
        let targets: HashSet<usize> = pulls().map(|(_, place)| address(place)).collect();
        // What lies where something will be received is captured first.
        let mut parcels = Vec::new();
        for (server, batches) in self.servers.iter().zip(&batches) {
            for batch in batches {
                parcels.push(self.wrap(*server, batch, &targets)?);
            }
        }
        let places = Places::lease(operation, pulls())?;
        drop(batches);
        let mut calls = Vec::new();
        let mut unpacks = Vec::new();
        let mut failure = None;
        // Also after a failure: those who live must get what all other workers send them.
        for parcel in parcels {
            match self.begin(parcel, &places.large) {
                Ok((call, unpack)) => {
                    calls.push(call);
                    unpacks.extend(unpack);
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if let Some(error) = failure {
            let is_torn = !calls.is_empty() && !ahead.0.is_empty() && error.kind() != ErrorKind::PeerLost;
            if is_torn {
                let context = "a push has reached some servers and not others, and the store is of no more use";
                let _ = self.broken.set(error.clone().context(context));
            }
            calls.iter().for_each(Work::cancel);
            return Err(error);
        }
        let (completer, work) = self.mesh.node().pair(operation, None);
        gather(calls, completer, move || {
            drop(ahead);
            let mut leases = places.into_leases()?;
            unpacks.into_iter().try_for_each(|unpack| unpack.run(&mut leases))
        });
        Ok(work)
    }

    /// Packs what is pushed. Values that lie in one of the buffers `targets` are copied.
    fn wrap(&self, server: NodeId, batch: &Batch, targets: &HashSet<usize>) -> Result<Parcel> {
        let update = Update {
            store: self.open.store,
            push: batch.push.iter().map(|(piece, _)| *piece).collect(),
            pull: batch.pull.iter().map(|(piece, _)| *piece).collect(),
        };
        let tensors = self.pack(&batch.push, targets)?;
        let places = batch.pull.iter().map(|(_, place)| place.clone()).collect();
        Ok(Parcel { server, update, tensors, places })
    }

    fn begin(&self, parcel: Parcel, leases: &Leases) -> Result<(Work<Answer>, Option<Unpack>)> {
        let Parcel { server, update, tensors, places: targets } = parcel;
        let layout = Layout::of(&update.pull)?;
        let mut places: SmallVec<[Tensor; 1]> = SmallVec::new();
        let mut small = Vec::new();
        if update.pull.iter().any(|piece| piece.packed) {
            places.push(empty(self.mesh.node().arena(), Dtype::U8, layout.packed_bytes)?);
        }
        for (place, spot) in targets.into_iter().zip(&layout.spots) {
            match spot {
                Spot::Packed(at) => small.push((*at, place)),
                Spot::Part(_) => places.push(place),
            }
        }
        let unpack = (!small.is_empty()).then(|| Unpack { staging: places[0].clone(), places: small });
        let leases = (!places.is_empty()).then(|| Arc::clone(leases));
        let args = protocol::encode(&update)?;
        let call = Call { args, tensors, places, leases, ..Call::default() };
        Ok((self.mesh.call(server, SERVICE, UPDATE, call)?, unpack))
    }

    fn pieces(&self, number: u64, tensor: &Tensor) -> Result<SmallVec<[(usize, Piece, Tensor); 2]>> {
        let elements = tensor.elements() as u64;
        let flat = tensor.reshape([elements])?;
        let size_bytes = tensor.dtype().size_bytes() as u64;
        cut(number, elements, self.servers.len(), self.open.cut_elements)
            .into_iter()
            .map(|(server, range)| {
                let len_bytes = (range.end - range.start) * size_bytes;
                let piece = Piece { number, len_bytes, packed: len_bytes < PACKED_BELOW_BYTES };
                Ok((server, piece, flat.slice_rows(range)?))
            })
            .collect()
    }

    /// The tensors of a message with these pieces: the packed ones are copied into one, the others leave by copy. Those
    /// in the buffers `targets` are copied here and now.
    fn pack(&self, pieces: &[(Piece, Tensor)], targets: &HashSet<usize>) -> Result<SmallVec<[Part; 1]>> {
        let heads: Vec<Piece> = pieces.iter().map(|(piece, _)| *piece).collect();
        let layout = Layout::of(&heads)?;
        let mut parts = SmallVec::new();
        if pieces.iter().any(|(piece, _)| piece.packed) {
            let mut packed = empty(self.mesh.node().arena(), Dtype::U8, layout.packed_bytes)?;
            let bytes = packed.bytes_mut()?;
            for ((_, tensor), spot) in pieces.iter().zip(&layout.spots) {
                if let Spot::Packed(at) = spot {
                    let at = *at as usize;
                    bytes[at..at + tensor.len_bytes()].copy_from_slice(&tensor.bytes()?);
                }
            }
            parts.push(Part::new(packed, Mode::Move));
        }
        for (_, tensor) in pieces.iter().filter(|(piece, _)| !piece.packed) {
            parts.push(match targets.contains(&address(tensor)) {
                true => Part::new(flat_copy(tensor, self.mesh.node().arena())?, Mode::Move),
                false => Part::new(tensor.clone(), Mode::Copy),
            });
        }
        Ok(parts)
    }

    /// Only the first worker's word counts, as with init; it blocks until all servers have heard it. All are asked
    /// whether they can before one of them does.
    pub(crate) fn set_updater(&self, updater: &Updater) -> Result<()> {
        let updater = updater.to_spec()?;
        if !self.is_first() {
            return Ok(());
        }
        for is_trial in [true, false] {
            let args = protocol::encode(&SetUpdater { store: self.open.store, updater: updater.clone(), is_trial })?;
            let calls = self.servers.iter().map(|server| self.mesh.call(*server, SERVICE, SET_UPDATER, args.clone()));
            let calls: Vec<_> = calls.collect::<Result<_>>()?;
            calls.iter().try_for_each(|call| call.wait().map(drop))?;
        }
        Ok(())
    }
}

fn with_room(batches: &mut Vec<Batch>, pulled_bytes: u64) -> &mut Batch {
    if !batches.last().is_some_and(|batch| batch.has_room(pulled_bytes)) {
        batches.push(Batch::default());
    }
    let last = batches.len() - 1;
    &mut batches[last]
}

/// Splits what is initialised on one server into messages.
fn in_chunks(keys: Vec<Described>, pieces: Vec<(Piece, Tensor)>) -> Vec<(Vec<Described>, Pieces)> {
    let mut chunks: Vec<(Vec<Described>, Batch)> = Vec::new();
    for (key, (piece, slice)) in keys.into_iter().zip(pieces) {
        if !chunks.last().is_some_and(|(keys, batch)| batch.has_room(0) && keys.len() < KEYS_MAX) {
            chunks.push(Default::default());
        }
        if let Some((keys, batch)) = chunks.last_mut() {
            keys.push(key);
            batch.count(&piece);
            batch.push.push((piece, slice));
        }
    }
    chunks.into_iter().map(|(keys, batch)| (keys, batch.push)).collect()
}

/// The places of one operation: one write lease for each buffer, although several places may lie in it.
struct Places {
    /// Of buffers that calls receive into.
    large: Leases,
    /// Of those that are filled from a packed tensor afterwards.
    small: HashMap<usize, WriteLease>,
}

fn address(tensor: &Tensor) -> usize {
    tensor.buffer().ptr() as usize
}

impl Places {
    fn lease<'a>(operation: &'static str, places: impl Iterator<Item = &'a (Piece, Tensor)>) -> Result<Self> {
        let (small, large): (Vec<_>, Vec<_>) = places.partition(|(piece, _)| piece.packed);
        let mut leases = [HashMap::new(), HashMap::new()];
        for (at, places) in [large, small].into_iter().enumerate() {
            for (_, place) in places {
                if !leases.iter().any(|leases| leases.contains_key(&address(place))) {
                    leases[at].insert(address(place), place.write_lease(operation)?);
                }
            }
        }
        let [large, small] = leases;
        Ok(Self { large: Arc::new(large.into_values().collect()), small })
    }

    /// All leases, once every call has ended.
    fn into_leases(self) -> Result<HashMap<usize, WriteLease>> {
        let Self { large, mut small } = self;
        let large = Arc::try_unwrap(large)
            .map_err(|_| Error::new(ErrorKind::Internal, "a call has ended and still receives"))?;
        small.extend(large.into_iter().map(|lease| (lease.buffer().ptr() as usize, lease)));
        Ok(small)
    }
}

/// Small places, which are filled from one received tensor.
struct Unpack {
    staging: Tensor,
    places: Vec<(u64, Tensor)>,
}

impl Unpack {
    fn run(self, leases: &mut HashMap<usize, WriteLease>) -> Result<()> {
        let bytes = self.staging.bytes()?;
        for (at, place) in self.places {
            let range = at as usize..at as usize + place.len_bytes();
            let lease = leases.get_mut(&address(&place));
            let lease = lease.ok_or_else(|| Error::new(ErrorKind::Internal, "a place without a lease"))?;
            place.overwrite_under(lease, &bytes[range])?;
        }
        Ok(())
    }
}
