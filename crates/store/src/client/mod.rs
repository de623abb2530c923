//! The worker's side of a store on servers.
//!
//! One call of [`KvStore::push`](crate::KvStore::push) or its kin becomes few messages per server: small slices are
//! packed, big ones travel as tensors of their own and are received in place. Values are captured before the call
//! returns; places are leased until it has ended.

mod batch;
mod coding;
mod init;
mod lane;
mod losses;
mod outstanding;
mod places;
mod rows;
mod rule;
mod saving;
mod update;

pub(crate) use init::First;
pub(crate) use losses::Losses;
pub(crate) use rows::Wanted;

use crate::compress::Compression;
use crate::key::Key;
use crate::kind::Kind;
use crate::layout::{Cutting, PACKED_BELOW_BYTES, Slice};
use crate::local::unknown;
use crate::protocol::{Barrier, Close, Closing, Done, Form, OfStore, OnWorkerLoss, Open, Piece, SERVICE, Told, Torn};
use crate::slot::Meta;
use crate::store::Config;
use batch::Pieces;
use coding::{Coding, Compressions};
use lane::Lane;
use outstanding::Outstanding;
use parking_lot::{Mutex, RwLock};
use sheave_base::work::{IDLE, Interrupt, join_all_with};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work};
use sheave_mesh::{AnswerOf, Mesh, Method, Role};
use sheave_tensor::Tensor;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Pause between two attempts to open a store on a server that has not started its part yet.
const OPEN_PAUSE: Duration = Duration::from_millis(2);

/// What a job that has no servers lacks.
pub(crate) const SERVERS_HINT: &str =
    "start the job with servers, as `sheave launch -n 2 -s 1 -- program` does, or use a local store";

pub(crate) struct Client {
    pub(crate) mesh: Mesh,
    /// By rank.
    workers: Vec<NodeId>,
    rank: usize,
    servers: Vec<NodeId>,
    open: Open,
    known: RwLock<HashMap<Key, Arc<Known>>>,
    outstanding: Arc<Outstanding>,
    losses: Arc<Losses>,
    pub(crate) compression: Mutex<Compressions>,
    lane: Arc<Lane>,
    /// Counts the pushes that go through the lane.
    operations: AtomicU64,
    /// Whether this worker has said that it is done, and the others are not.
    is_done: Arc<AtomicBool>,
    is_closed: AtomicBool,
    /// Held by pushes that leave, and alone by a change of what pushes do.
    pushes: RwLock<()>,
    /// Why the parts of a store that counts pushes do not agree any more: one has reached some servers and not others.
    broken: Arc<OnceLock<Error>>,
}

/// What this worker knows of a key.
struct Known {
    number: u64,
    meta: Meta,
    /// Its pushes that have not ended.
    ahead: AtomicUsize,
    coding: Mutex<Coding>,
}

/// While it lives this worker has said that it is done.
struct Said(Arc<AtomicBool>);

impl Drop for Said {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

impl Client {
    pub(crate) fn open(mesh: &Mesh, config: &Config) -> Result<Self> {
        let Config { kind, cut_elements, slice_elements, staleness, on_worker_loss, open_timeout } = *config;
        let me = mesh.me();
        let servers: Vec<NodeId> = mesh.of_role(Role::Server).map(|member| member.node).collect();
        if servers.is_empty() {
            let what = format!("a {kind} store needs servers, and this job has none");
            return Err(Error::new(ErrorKind::InvalidArgument, what).operation("open").hint(SERVERS_HINT));
        }
        if me.introduction.role != Role::Worker {
            let what = format!("this node is a {}, and a distributed store is opened by workers", me.introduction.role);
            return Err(Error::new(ErrorKind::InvalidArgument, what)
                .operation("open")
                .hint("servers run a sheave_store::Server"));
        }
        let cutting = Cutting { servers: servers.len() as u32, cut_elements, slice_elements };
        let store = mesh.next_number(SERVICE);
        let client = Self {
            lane: Lane::new(mesh, store, &servers),
            operations: AtomicU64::new(0),
            mesh: mesh.clone(),
            workers: mesh.of_role(Role::Worker).map(|member| member.node).collect(),
            rank: me.role_rank as usize,
            servers,
            open: Open { store, kind, cutting, staleness, on_worker_loss },
            known: RwLock::default(),
            outstanding: Arc::default(),
            losses: Arc::new(Losses::of(mesh.of_role(Role::Worker).count())),
            compression: Mutex::default(),
            is_done: Arc::default(),
            is_closed: AtomicBool::new(false),
            pushes: RwLock::default(),
            broken: Arc::default(),
        };
        client.open_on_servers(open_timeout)?;
        Ok(client)
    }

    fn open_on_servers(&self, patience: Duration) -> Result<()> {
        let until = Instant::now() + patience;
        for server in &self.servers {
            loop {
                match self.mesh.ask::<Open>(*server, &self.open)?.wait() {
                    Ok(_) => break,
                    // It has joined, and is about to start its service.
                    Err(error) if error.kind() == ErrorKind::NotFound && Instant::now() < until => {
                        self.pause(OPEN_PAUSE)?;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Waits for so long, and serves this node meanwhile.
    fn pause(&self, span: Duration) -> Result<()> {
        let (completer, over) = self.mesh.node().pair(IDLE, None);
        let runtime = self.mesh.runtime();
        let _timer = runtime.at(runtime.after(span), move || completer.complete(Ok(())))?;
        over.wait()
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// How many workers there are; in a store that shrinks, how many there are left.
    pub(crate) fn group_size(&self) -> usize {
        self.living().count()
    }

    /// The ranks of those who count: without those that the mesh has told of, and those that an answer has.
    fn living(&self) -> impl Iterator<Item = usize> {
        let (deaths, gone) = match self.open.on_worker_loss {
            OnWorkerLoss::Fail => (Vec::new(), Vec::new()),
            OnWorkerLoss::Shrink => (self.mesh.deaths(), self.losses.known()),
        };
        let is_there =
            move |rank: usize, node: &NodeId| !gone.contains(&rank) && !deaths.iter().any(|death| death.node == *node);
        self.workers.iter().enumerate().filter(move |(rank, node)| is_there(*rank, node)).map(|(rank, _)| rank)
    }

    /// Whether this worker's word counts where only one worker's does.
    pub(crate) fn is_first(&self) -> bool {
        self.living().next() == Some(self.rank)
    }

    fn is_synchronous(&self) -> bool {
        self.open.kind == Kind::DistSync
    }

    /// Whether servers count pushes, so that one that reaches some of them only is the end of the store.
    fn counts_pushes(&self) -> bool {
        self.open.kind != Kind::DistAsync
    }

    /// Why nothing can be done with the store any more.
    fn check_usable(&self, operation: &'static str) -> Result<()> {
        if self.is_closed.load(SeqCst) {
            return Err(has_closed(operation));
        }
        self.check_whole(operation)
    }

    /// Why the store serves nobody any more.
    fn check_whole(&self, operation: &'static str) -> Result<()> {
        if let Some(error) = self.broken.get().cloned().or_else(|| self.why_servers_left()) {
            return Err(error.operation(operation));
        }
        Ok(())
    }

    /// Who is to blame if servers have left while this worker is there: the worker whose death the store cannot bear.
    /// A server that has left can say so no more.
    fn why_servers_left(&self) -> Option<Error> {
        if self.open.on_worker_loss == OnWorkerLoss::Shrink {
            return None;
        }
        let deaths = self.mesh.deaths();
        deaths.iter().find(|death| death.left && self.servers.contains(&death.node))?;
        let dead = deaths.iter().find(|death| !death.left && self.workers.contains(&death.node))?;
        let what = format!("this worker has died, and servers have left because of that: {}", dead.reason);
        let hint = "this store needs every worker; start the job again, or open it so that it shrinks";
        Some(Error::new(ErrorKind::PeerLost, what).peer(self.mesh.member(dead.node)?.peer()).hint(hint))
    }

    fn find(&self, operation: &'static str, key: &Key) -> Result<Arc<Known>> {
        self.known.read().get(key).cloned().ok_or_else(|| unknown(key, operation))
    }

    fn of_store(&self) -> OfStore {
        OfStore { store: self.open.store }
    }

    /// Blocks until all workers have come. Returns the rank of the first one that counts.
    pub(crate) fn barrier(&self) -> Result<usize> {
        self.check_usable("barrier")?;
        self.meet()
    }

    /// [`Client::barrier`], also of a worker that closes the store.
    fn meet(&self) -> Result<usize> {
        self.check_whole("barrier")?;
        let answer = self.mesh.ask::<Barrier>(self.servers[0], &self.of_store())?.wait()?;
        // All who have come have the same answer, whatever each has heard of the others.
        let first = (0..self.workers.len()).find(|rank| !answer.value.0.contains(rank)).unwrap_or(0);
        self.losses.learn(&answer.value)?;
        Ok(first)
    }

    /// This worker pushes no more until all others have come to that point.
    pub(crate) fn done(&self) -> Result<Work<()>> {
        self.check_usable("done")?;
        if self.is_done.swap(true, SeqCst) {
            let what = "this worker has said already that it is done";
            return Err(Error::new(ErrorKind::InvalidArgument, what)
                .operation("done")
                .hint("wait for the work of the first done before pushing again"));
        }
        // What was pushed before counts.
        self.lane.drain(&self.mesh)?;
        let calls = self.ask_all::<Done>(&self.of_store());
        let calls = calls.inspect_err(|_| self.is_done.store(false, SeqCst))?;
        let (completer, work) = self.mesh.node().pair("done", None);
        // However it ends; it goes before the work has ended.
        let said = Said(Arc::clone(&self.is_done));
        self.join("done", calls).pass_to(completer, move |_| {
            drop(said);
            Ok(())
        });
        Ok(work)
    }

    /// Tells the servers that this worker pushes no more, waits for what is outstanding, meets the others if `meets`,
    /// and tells the servers that this worker is through.
    ///
    /// In this order: what is outstanding may wait for pushes of others that wait for pushes of this worker.
    pub(crate) fn close(&self, meets: bool) -> Result<()> {
        if self.is_closed.swap(true, SeqCst) {
            return Ok(());
        }
        // Pushes that another thread has begun leave first; later ones are refused here.
        drop(self.pushes.write());
        if let Some(error) = self.broken.get() {
            // Who closes a store is not waited for any more: no sum may lack what others have of a push.
            self.tell_torn(error);
        }
        let parted = self.lane.drain(&self.mesh).and_then(|()| self.say_to_all::<Closing>());
        let ended = self.outstanding.wait(None);
        let met = if meets { self.meet().map(drop) } else { Ok(()) };
        let told = self.say_to_all::<Close>();
        ended.and(met).and(parted).and(told)
    }

    /// Tells the servers why a push has reached only some of them.
    fn tell_torn(&self, reason: &Error) {
        let torn = Torn { store: self.open.store, operation: None, reason: reason.clone() };
        lane::tell_torn(&self.mesh, &self.servers, torn);
    }

    /// Blocks until every operation of this worker on these keys has ended; all keys if there are none.
    pub(crate) fn wait(&self, keys: &[Key]) -> Result<()> {
        let numbers = keys.iter().map(|key| Ok(self.find("wait", key)?.number)).collect::<Result<Vec<_>>>()?;
        self.outstanding.wait(Some(&numbers).filter(|_| !keys.is_empty()).map(Vec::as_slice))
    }

    /// Blocks until there is room in the queue of what is pushed and pulled with a priority.
    pub(crate) fn wait_for_room(&self, interrupt: Option<Interrupt<'_>>) -> Result<()> {
        self.lane.wait_for_room(&self.mesh, interrupt)
    }

    /// Says something of the whole store to all servers, to each whatever becomes of the others, and waits for their
    /// answers. Where there is no place for an answer the server is told one way: others wait until it has heard it.
    fn say_to_all<M: Method<Args = OfStore, Answer = ()>>(&self) -> Result<()> {
        let args = Arc::new(self.of_store());
        let say = |server: &NodeId| match self.mesh.ask::<M>(*server, &args) {
            Err(refused) if !refused.kind().is_loss() => {
                lane::tell_server::<M>(&self.mesh, *server, &args).map(|()| None)
            }
            call => call.map(Some),
        };
        let calls: Vec<_> = self.servers.iter().map(say).collect();
        let ended = calls.into_iter().map(|call| call?.map_or(Ok(()), |call| call.wait().map(drop)));
        ended.collect::<Vec<Result<()>>>().into_iter().collect()
    }

    /// All of these calls. The first error cancels the others, so that an operation which needs a server that is gone
    /// does not wait for what the others say; still no call receives into a place after the end. What answers know of
    /// losses is known before the end.
    fn join(&self, operation: &'static str, calls: Vec<Work<Told>>) -> Work<Vec<()>> {
        let losses = Arc::clone(&self.losses);
        join_all_with(operation, calls, move |told| losses.learn(&told.value))
    }

    fn ask_all<M: Method>(&self, args: &M::Args) -> Result<Vec<Work<AnswerOf<M>>>> {
        self.servers.iter().map(|server| self.mesh.ask::<M>(*server, args)).collect()
    }

    /// The slices of a tensor, each with its piece, in this code, and its elements, which are not coded yet.
    fn pieces(
        &self,
        number: u64,
        meta: &Meta,
        tensor: &Tensor,
        code: Compression,
    ) -> Result<SmallVec<[(Slice, Piece, Tensor); 2]>> {
        let flat = tensor.reshape([tensor.elements() as u64])?;
        let size_bytes = tensor.dtype().size_bytes() as u64;
        let slices = meta.slices(number, &self.open.cutting);
        slices
            .into_iter()
            .map(|slice| {
                let elements = slice.range.end - slice.range.start;
                let (len_bytes, form) = match code {
                    Compression::None => (elements * size_bytes, Form::Plain),
                    code => (code.encoded_len_bytes(elements as usize) as u64, Form::Coded(code)),
                };
                let packed = len_bytes < PACKED_BELOW_BYTES;
                let piece = Piece { number: slice.number, len_bytes, packed, form };
                let value = flat.slice_rows(slice.range.clone())?;
                Ok((slice, piece, value))
            })
            .collect()
    }
}

fn has_closed(operation: &'static str) -> Error {
    Error::new(ErrorKind::Closed, "this worker has closed the store").operation(operation)
}
