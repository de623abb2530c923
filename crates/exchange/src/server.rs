//! The server's end: it takes batches, and answers.

use crate::batch::{Batch, Request};
use crate::clock::{self, monotonic_ns};
use crate::inbound::{Arrived, Blocked, Head, Inbound, KEPT_BYTES_MAX};
use crate::lane::{Config, Lane, Scope};
use crate::place::{Memory, Piece, Registration};
use crate::plan::{self, Plan};
use crate::trace::{self, Recorder};
use crate::word::{self, Word};
use parking_lot::Mutex;
use sheave_base::numbers::Numbered;
use sheave_base::work::awaited::{Account, Describe, Which, listed};
use sheave_base::work::condition::{Condition, Until};
use sheave_base::work::{Drive, Interrupt, reborrowed, wait_for};
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Peer, Result};
use sheave_mesh::{Mesh, Role};
use sheave_net::{Admission, Arrival, Endpoint, Ground, Message, Node, Outgoing, Part, Parts};
use sheave_tensor::{Mode, Tensor};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Instant;

const GET: &str = "get_batch";
const RESPOND: &str = "respond";

/// Which request of a server, counted over all workers: 0, 1, 2 … in the order in which batches give them out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handler(pub u64);

/// A tensor that answers a pull.
#[derive(Debug)]
pub struct Answer {
    part: Part,
}

impl Answer {
    /// Gives the tensor away: a worker on this host that pulls without a tensor gets the memory itself, if it lies in
    /// the arena. There must be no other handle to it.
    #[must_use]
    pub fn moved(tensor: Tensor) -> Self {
        // So few bytes travel within a record in any case, and what was pushed so lies in memory that is kept.
        let mode = if tensor.len_bytes() <= KEPT_BYTES_MAX { Mode::Copy } else { Mode::Move };
        Self { part: Part::new(tensor, mode) }
    }
}

impl From<&Tensor> for Answer {
    /// Sends the tensor from where it lies: it must not change before the worker has it. The exchange keeps a handle.
    fn from(tensor: &Tensor) -> Self {
        Self { part: Part::new(tensor.clone(), Mode::Copy) }
    }
}

/// A request that was given out and waits for its answer.
struct Open {
    worker: usize,
    link: LinkId,
    number: u64,
    plan: Arc<Plan>,
    /// When it arrived and was given out, if its worker wants to know.
    stamps: Option<[u64; 2]>,
}

/// In place of the link of a worker that has said nothing yet.
const SILENT: u32 = u32::MAX;

/// What was given out.
#[derive(Default)]
struct Given {
    next: u64,
    open: Numbered<u64, Open>,
}

/// The server's end of an exchange. Dropping it says farewell to the workers. All calls may come from any thread.
///
/// [`crate::Worker`] has an example of both ends.
pub struct Server {
    end: Arc<End>,
}

struct End {
    lane: Lane,
    node: Node,
    driver: Arc<dyn Drive>,
    workers: Vec<Mutex<Inbound>>,
    /// The link that each worker's words come over, or [`SILENT`].
    links: Box<[AtomicU32]>,
    given: Mutex<Given>,
    /// Workers of whom a whole request is there.
    ready: AtomicUsize,
    /// Counts answers that may lie in registered memory, and have not left it.
    unsent: AtomicUsize,
    /// Grows when whoever waits for a batch must look: a worker is gone, or its push cannot land. Each wait remembers
    /// how far it had grown before its own look, so that none takes the news from another.
    news: AtomicU64,
    /// A worker whose request no batch can do without is gone: what waits is refused.
    hopeless: AtomicBool,
    condition: Condition,
    recorder: Option<Recorder>,
    is_closed: AtomicBool,
    me: Weak<dyn Describe>,
}

impl Server {
    /// Opens this server's end. Blocks until all workers and servers of the lane have opened theirs.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if this node is no server or the numbers of workers and servers make no lanes; `AlreadyExists`
    /// if this node has an open end; `PeerLost` if a member of the lane is gone.
    pub fn open(mesh: &Mesh, config: Config) -> Result<Self> {
        Self::open_interruptible(mesh, config, None, None)
    }

    /// As [`Server::open`], until some point in time; `interrupt` is asked now and then.
    ///
    /// # Errors
    ///
    /// As [`Server::open`]; `DeadlineExceeded` when the time has come; whatever `interrupt` says.
    pub fn open_interruptible(
        mesh: &Mesh,
        config: Config,
        until: Option<Instant>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<Self> {
        let lane = Lane::new(mesh, &config, Role::Server)?;
        let node = mesh.node().clone();
        let end = Arc::new_cyclic(|me: &Weak<End>| End {
            me: me.clone(),
            workers: lane.workers.iter().map(|_| Mutex::default()).collect(),
            links: lane.workers.iter().map(|_| AtomicU32::new(SILENT)).collect(),
            recorder: config.trace.then(|| Recorder::new("worker", lane.workers.len())),
            lane,
            driver: node.driver(),
            node,
            given: Mutex::default(),
            ready: AtomicUsize::new(0),
            unsent: AtomicUsize::new(0),
            news: AtomicU64::new(0),
            hopeless: AtomicBool::new(false),
            condition: Condition::default(),
            is_closed: AtomicBool::new(false),
        });
        let endpoint = Arc::clone(&end) as Arc<dyn Endpoint>;
        if !end.node.register(word::NUMBER, &endpoint) {
            return Err(Error::new(ErrorKind::AlreadyExists, "this node has an open end of an exchange")
                .hint("close that one first"));
        }
        let server = Self { end };
        server.end.lane.meet(until, interrupt)?;
        Ok(server)
    }

    /// This server's rank among the servers of its lane.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.end.lane.rank
    }

    /// How many workers a batch has requests of.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.end.workers.len()
    }

    /// Blocks until there is a request of every worker, at most until some point in time, and takes the oldest of
    /// each. `interrupt` is asked now and then.
    ///
    /// # Errors
    ///
    /// `Closed` when workers have left, `PeerLost` when one is lost, which is refused to the others too; `Mismatch` if
    /// the requests name different steps, or one of them did not fit its registered place: the batch is refused to its
    /// workers then, and the next call has the next one. `BufferInUse` if a push cannot land because somebody looks at
    /// a view of an answered request. `DeadlineExceeded` when the time has come.
    pub fn get_batch(&self, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<Batch> {
        let mut batch = Batch::default();
        self.get_batch_into(&mut batch, until, interrupt)?;
        Ok(batch)
    }

    /// As [`Server::get_batch`], into a batch whose memory is used again. What it held is dropped first.
    ///
    /// # Errors
    ///
    /// As [`Server::get_batch`].
    pub fn get_batch_into(
        &self,
        batch: &mut Batch,
        until: Option<Instant>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        batch.requests.clear();
        let outcome = self.end.get_batch(batch, false, until, interrupt);
        if outcome.is_err() {
            batch.requests.clear();
        }
        outcome.map_err(|error| error.operation(GET))
    }

    /// As [`Server::get_batch`], and `None` when all workers have left. While only some have, it waits for the others
    /// to do so too; what these still ask for is refused to them.
    ///
    /// # Errors
    ///
    /// As [`Server::get_batch`], but `Closed` only if this server has left itself.
    pub fn next_batch(&self, until: Option<Instant>, interrupt: Option<Interrupt<'_>>) -> Result<Option<Batch>> {
        let mut batch = Batch::default();
        match self.end.get_batch(&mut batch, true, until, interrupt) {
            Ok(()) => Ok(Some(batch)),
            Err(error) if error.kind() == ErrorKind::Closed && self.end.is_left_alone() => Ok(None),
            Err(error) => Err(error.operation(GET)),
        }
    }

    /// Answers a request, straight into the worker's tensors: one tensor for each pull, of its dtype and with as many
    /// elements. Returns at once; a longer tensor that lies in the arena, or is longer than the link's memory, is read
    /// until the worker has it. What the request pushed to registered places may be overwritten from now on.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such request, or it was answered; `Mismatch` if the answers are not what the worker
    /// pulls, and it can be answered still; `BufferInUse` for a tensor that is being written; `PeerLost` if the worker
    /// is gone: it names the worker, or whose loss made it leave.
    pub fn respond<A: Into<Answer>>(&self, handler: Handler, answers: impl IntoIterator<Item = A>) -> Result<()> {
        let parts = answers.into_iter().map(|answer| answer.into().part).collect();
        // Nobody has called for the send of which it is made.
        self.end.respond(handler.0, parts).map_err(|error| error.asked_for(RESPOND))
    }

    /// Answers several requests with the rows of one tensor, which follow each other: the first so many rows answer
    /// the first request. Each of them must pull one tensor.
    ///
    /// # Errors
    ///
    /// As [`Server::respond`]; `InvalidArgument` if the tensor has fewer rows.
    pub fn respond_rows(&self, rows: &Tensor, answered: impl IntoIterator<Item = (Handler, u64)>) -> Result<()> {
        let mut begin = 0_u64;
        for (handler, count) in answered {
            let end = begin.saturating_add(count);
            self.respond(handler, [&rows.slice_rows(begin..end).map_err(|error| error.operation(RESPOND))?])?;
            begin = end;
        }
        Ok(())
    }

    /// Ends a request without an answer: its worker gets `reason` as an error of kind `Mismatch`.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such request, or it was answered.
    pub fn refuse(&self, handler: Handler, reason: &str) -> Result<()> {
        let open = self.end.given.lock().open.remove(&handler.0).ok_or_else(|| unknown(handler.0))?;
        let rank = self.rank();
        let error = Error::new(ErrorKind::Mismatch, format!("server {rank} refused it: {reason}"));
        self.end.refuse(open.link, open.number, &error);
        self.end.release(&open);
        Ok(())
    }

    /// Names memory for pushes to land in: equal parts of `tensor`, the first for the first pair of a worker's rank and
    /// a push key, and so on. Pushes may be smaller than their part. It holds for pushes that arrive from now on; until
    /// [`Server::unregister`] the tensor is in use, and its contents are seen through batches.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for no pairs, a worker that does not exist, or bytes that cannot be cut evenly;
    /// `AlreadyExists` for a pair that has a place; `BufferInUse` if something uses the tensor.
    pub fn register(&self, tensor: &Tensor, places: &[(u32, u64)]) -> Result<Registration> {
        self.end.register(tensor, places).map_err(|error| error.operation("register"))
    }

    /// Takes places back. The tensor is free when the last view of it is dropped.
    ///
    /// # Errors
    ///
    /// `BufferInUse` if a request lies there that is not answered, and its worker is not lost.
    pub fn unregister(&self, registration: &Registration) -> Result<()> {
        self.end.unregister(registration).map_err(|error| error.operation("unregister"))
    }

    /// Requests that were given out and not answered.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.end.given.lock().open.len()
    }

    /// Writes the spans recorded so far, as [`crate::Worker::write_trace`] does.
    ///
    /// # Errors
    ///
    /// As for [`crate::Worker::write_trace`].
    pub fn write_trace(&self, path: &Path) -> Result<()> {
        self.end.recorder.as_ref().ok_or_else(trace::none)?.write(self.end.lane.mesh.me(), path)
    }

    /// Blocks until all members of `scope` have come, in this lane or in all lanes.
    ///
    /// # Errors
    ///
    /// As for [`crate::Worker::barrier`].
    pub fn barrier(
        &self,
        scope: Scope,
        all_lanes: bool,
        until: Option<Instant>,
        interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        self.end.lane.barrier(scope, all_lanes, until, interrupt)
    }

    /// Says farewell to the workers: their requests that are not answered end with `Closed`.
    pub fn close(&self) {
        self.end.close();
        self.end.node.unregister(&(Arc::clone(&self.end) as Arc<dyn Endpoint>));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("rank", &self.rank()).field("workers", &self.workers()).finish()
    }
}

fn unknown(handler: u64) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no request {handler} that waits for an answer"))
        .hint("answer each request of a batch once")
}

impl End {
    /// `is_patient` lets workers leave one after the other.
    fn get_batch(
        &self,
        batch: &mut Batch,
        is_patient: bool,
        until: Option<Instant>,
        mut interrupt: Option<Interrupt<'_>>,
    ) -> Result<()> {
        let mut begun = None;
        loop {
            // Before the look, so that what comes after it is seen by the wait.
            let seen = self.news.load(SeqCst);
            if self.is_closed.load(SeqCst) {
                return Err(Error::new(ErrorKind::Closed, "this server has left the exchange"));
            }
            if self.ready.load(SeqCst) == self.workers.len() && self.pop(batch)? {
                return Ok(());
            }
            self.examine(is_patient)?;
            let begun = *begun.get_or_insert_with(Instant::now);
            let is_met = || self.ready.load(SeqCst) == self.workers.len() || self.news.load(SeqCst) != seen;
            let (condition, link, knows) = (&self.condition, self.only_link(), &self.me);
            let there = Until { condition, is_met, link, operation: GET, knows, which: [0; 2] };
            let interrupt = reborrowed(&mut interrupt);
            if !wait_for(&there, Some(&*self.driver), until, interrupt)? {
                return Err(self.late(begun));
            }
        }
    }

    /// Takes the oldest request of every worker. False if somebody else has.
    fn pop(&self, batch: &mut Batch) -> Result<bool> {
        let mut given = self.given.lock();
        if self.ready.load(SeqCst) != self.workers.len() {
            return Ok(false);
        }
        let mut refusal: Option<(usize, Error)> = None;
        let mut was_full = false;
        for (rank, worker) in self.workers.iter().enumerate() {
            let mut inbound = worker.lock();
            let Some(Arrived { head, tensors, link, arrived_ns }) = inbound.queue.pop_front() else {
                return Err(Error::new(ErrorKind::Internal, "a worker without a request counts as ready"));
            };
            if inbound.queue.is_empty() {
                self.ready.fetch_sub(1, SeqCst);
            }
            was_full |= inbound.blocked == Some(Blocked::Full);
            drop(inbound);
            let Head { number, plan, step, wants_stamps, refusal: own } = head;
            let apart = batch.requests.first().and_then(|first| self.apart(first, rank, number, step));
            if let (None, Some(error)) = (&refusal, own.or(apart)) {
                refusal = Some((rank, error));
            }
            let handler = given.next;
            given.next += 1;
            let stamps = wants_stamps.then(|| [arrived_ns, monotonic_ns()]);
            given.open.insert(handler, Open { worker: rank, link, number, plan: Arc::clone(&plan), stamps });
            let handler = Handler(handler);
            batch.requests.push(Request { handler, worker: rank as u32, number, step, tensors, plan });
        }
        drop(given);
        if was_full {
            // With no lock held: links that go on may have this end attend to more.
            self.node.resume();
        }
        match refusal {
            None => Ok(true),
            Some((rank, error)) => Err(self.refuse_batch(batch, error.peer(self.peer(rank)))),
        }
    }

    /// Why a request does not belong to the same batch as the first one, if it does not.
    fn apart(&self, first: &Request, rank: usize, number: u64, step: Option<u32>) -> Option<Error> {
        let mismatch = |what| Error::new(ErrorKind::Mismatch, what);
        if number != first.number {
            let what = format!("request {number} of worker {rank} beside request {} of worker 0", first.number);
            return Some(mismatch(what));
        }
        if step == first.step {
            return None;
        }
        let named = |step: Option<u32>| step.map_or_else(|| "no step".to_owned(), |step| format!("step {step}"));
        let what =
            format!("request {number} names {} at worker {rank} and {} at worker 0", named(step), named(first.step));
        Some(mismatch(what).hint("workers make the same requests in the same order"))
    }

    fn refuse_batch(&self, batch: &Batch, error: Error) -> Error {
        for request in batch {
            let open = self.given.lock().open.remove(&request.handler.0);
            if let Some(open) = open {
                self.refuse(open.link, open.number, &error);
                self.release(&open);
            }
        }
        error
    }

    /// Whether a batch can come at all; for the patient also whether all will have left in order.
    fn examine(&self, is_patient: bool) -> Result<()> {
        let mut left = 0;
        let mut is_orderly = true;
        let mut reason = None;
        for (rank, worker) in self.workers.iter().enumerate() {
            let inbound = worker.lock();
            if !inbound.queue.is_empty() {
                continue;
            }
            if let Some(gone) = &inbound.gone {
                left += usize::from(inbound.has_left);
                is_orderly &= inbound.has_left && gone.kind() == ErrorKind::Closed;
                // A loss is why the others leave.
                if reason.as_ref().is_none_or(|known: &Error| known.kind() == ErrorKind::Closed) {
                    reason = Some(gone.clone());
                }
            }
            if let (None, Some(Blocked::Viewed(key))) = (&inbound.gone, inbound.blocked) {
                let what = format!("the push of key {key} by worker {rank} cannot land: its place is being looked at");
                drop(inbound);
                // Before the look: an answer that leaves after it is news.
                let is_ours = self.unsent.load(SeqCst) > 0;
                match self.look_again(rank, Error::new(ErrorKind::BufferInUse, what)) {
                    Err(_) if is_ours => continue,
                    looked => return looked,
                }
            }
        }
        let Some(reason) = reason else { return Ok(()) };
        self.refuse_hopeless();
        if left == self.workers.len() && is_orderly {
            return Err(Error::new(ErrorKind::Closed, "all workers have left the exchange"));
        }
        if is_patient && is_orderly { Ok(()) } else { Err(reason) }
    }

    /// Whether all workers have left, and this server has not.
    fn is_left_alone(&self) -> bool {
        let mut workers = self.workers.iter().map(|worker| worker.lock());
        !self.is_closed.load(SeqCst) && workers.all(|inbound| inbound.has_left && inbound.queue.is_empty())
    }

    /// A push waits for views that may have gone by now. An error if they have not.
    fn look_again(&self, rank: usize, error: Error) -> Result<()> {
        self.node.resume();
        let inbound = self.workers[rank].lock();
        // Another thread may be about to land it: what was found before says nothing of now.
        let is_viewed = |key: u64| inbound.pieces.get(&key).is_some_and(|piece| !piece.clear());
        match inbound.blocked {
            Some(Blocked::Viewed(key)) if is_viewed(key) => Err(error
                .peer(self.peer(rank))
                .hint("drop the views and arrays of earlier batches, or copy what is needed for longer")),
            _ => Ok(()),
        }
    }

    fn late(&self, begun: Instant) -> Error {
        let error = Error::new(ErrorKind::DeadlineExceeded, "not every worker has made a request");
        let error = error.elapsed(begun.elapsed());
        for (rank, worker) in self.workers.iter().enumerate() {
            let inbound = worker.lock();
            if !inbound.queue.is_empty() {
                continue;
            }
            let hint = match inbound.blocked {
                Some(Blocked::Unanswered(key)) => {
                    format!("its push of key {key} waits until the request in the same place is answered")
                }
                Some(Blocked::Viewed(key)) => {
                    format!("its push of key {key} waits until an answer in the same place has left")
                }
                _ => format!("worker {rank} has made none"),
            };
            return error.peer(self.peer(rank)).hint(hint);
        }
        error
    }

    fn respond(self: &Arc<Self>, handler: u64, parts: Parts) -> Result<()> {
        let open = {
            let mut given = self.given.lock();
            let open = given.open.get(&handler).ok_or_else(|| unknown(handler))?;
            check_answers(&open.plan, &parts)?;
            given.open.remove(&handler).ok_or_else(|| unknown(handler))?
        };
        let mut control = Vec::new();
        if let Some([arrived, taken]) = open.stamps {
            let answered = monotonic_ns();
            if let Some(recorder) = &self.recorder {
                recorder.answer(open.worker, open.number, [arrived, taken, answered]);
            }
            control = clock::encode([arrived, taken, answered, monotonic_ns()]);
        }
        let envelope = Word::Answer(open.number).envelope(self.lane.context);
        match self.send_answer(open.link, Outgoing { envelope, control, parts }) {
            Ok(()) => {
                self.release(&open);
                Ok(())
            }
            Err(error) if error.kind().is_loss() || error.kind() == ErrorKind::Closed => {
                self.release(&open);
                // The link knows that the worker is gone; why it went it may have said, or the mesh may know.
                let loss = self.loss(std::slice::from_ref(&self.workers[open.worker]));
                Err(loss.unwrap_or_else(|| error.peer(self.peer(open.worker))))
            }
            Err(error) => {
                // Nothing was sent, so it can be answered still.
                self.given.lock().open.insert(handler, open);
                Err(error)
            }
        }
    }

    /// Sends an answer. Views of registered memory are read-only; an answer of them that waits for room on its link is
    /// counted, because nothing may land there before it has left, and nobody who looks is to blame for that.
    fn send_answer(self: &Arc<Self>, link: LinkId, answer: Outgoing) -> Result<()> {
        if !answer.parts.iter().any(|part| part.tensor().buffer().is_read_only()) {
            return self.node.post(link, answer).map(drop);
        }
        self.unsent.fetch_add(1, SeqCst);
        let sent = self.node.isend_borrowed(link, answer);
        match sent {
            Ok(work) if !work.is_done() => {
                let end = Arc::downgrade(self);
                work.on_complete(move |_| {
                    let Some(end) = end.upgrade() else { return };
                    end.unsent.fetch_sub(1, SeqCst);
                    end.news.fetch_add(1, SeqCst);
                    end.condition.changed();
                });
                Ok(())
            }
            done => {
                self.unsent.fetch_sub(1, SeqCst);
                done.map(drop)
            }
        }
    }

    fn release(&self, open: &Open) {
        if self.workers[open.worker].lock().release(open.number, &open.plan) {
            self.node.resume();
        }
    }

    fn refuse(&self, link: LinkId, number: u64, error: &Error) {
        let envelope = Word::Refusal(number).envelope(self.lane.context);
        // A worker that is gone needs no answer.
        let _ = self.node.post(link, Outgoing::control(envelope, word::refusal(error)));
    }

    fn register(&self, tensor: &Tensor, places: &[(u32, u64)]) -> Result<Registration> {
        for (index, (worker, key)) in places.iter().enumerate() {
            let Some(inbound) = self.workers.get(*worker as usize) else {
                let what = format!("there is no worker {worker}; the lane has {}", self.workers.len());
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            };
            if places[..index].contains(&(*worker, *key)) || inbound.lock().pieces.contains_key(key) {
                let what = format!("key {key} of worker {worker} has a place already");
                return Err(Error::new(ErrorKind::AlreadyExists, what).hint("unregister that one first"));
            }
        }
        let memory = Memory::new(tensor, places.len())?;
        for (index, (worker, key)) in places.iter().enumerate() {
            let piece = Piece::new(&memory, index)?;
            self.workers[*worker as usize].lock().pieces.insert(*key, piece);
        }
        Ok(Registration { memory: Arc::downgrade(&memory), places: places.into() })
    }

    fn unregister(&self, registration: &Registration) -> Result<()> {
        for (worker, key) in registration.places() {
            let inbound = self.workers[*worker as usize].lock();
            let holder =
                inbound.pieces.get(key).filter(|piece| piece.is_of(registration)).and_then(|piece| piece.holder);
            // [`Inbound::forget`] has let go of those of lost workers.
            if let Some(number) = holder {
                let what = format!("request {number} of worker {worker} lies in the place of key {key}");
                return Err(Error::new(ErrorKind::BufferInUse, what).hint("answer it first"));
            }
        }
        for (worker, key) in registration.places() {
            let mut inbound = self.workers[*worker as usize].lock();
            if inbound.pieces.get(key).is_some_and(|piece| piece.is_of(registration)) {
                inbound.pieces.remove(key);
            }
            inbound.blocked = None;
        }
        self.node.resume();
        Ok(())
    }

    fn peer(&self, worker: usize) -> Peer {
        self.lane.workers.get(worker).map(|node| self.lane.peer(*node)).unwrap_or_default()
    }

    /// The worker whose word came over a link.
    fn worker_of(&self, link: LinkId) -> Option<usize> {
        if let Some(worker) = self.links.iter().position(|of_worker| of_worker.load(SeqCst) == link.0) {
            return Some(worker);
        }
        let worker = self.worker_behind(link)?;
        self.links[worker].store(link.0, SeqCst);
        Some(worker)
    }

    /// The worker at the other end of a link.
    fn worker_behind(&self, link: LinkId) -> Option<usize> {
        self.rank_of(self.node.link(link).ok()?.peer().node?)
    }

    /// The link that all requests come over, if there is one worker, which has said something.
    fn only_link(&self) -> Option<LinkId> {
        let [only] = &self.links[..] else { return None };
        Some(only.load(SeqCst)).filter(|link| *link != SILENT).map(LinkId)
    }

    fn rank_of(&self, node: NodeId) -> Option<usize> {
        self.lane.workers.iter().position(|worker| *worker == node)
    }

    /// Nothing more comes from a worker. What it has asked for may still be answered if it left in order.
    fn lose(&self, worker: usize, reason: Error, has_left: bool) {
        // One that asks for a batch must not find half of it gone.
        let given = self.given.lock();
        let mut inbound = self.workers[worker].lock();
        if inbound.gone.is_some() {
            return;
        }
        inbound.gone = Some(if reason.about().is_some() { reason } else { reason.peer(self.peer(worker)) });
        inbound.has_left = has_left;
        if !has_left && inbound.forget() {
            self.ready.fetch_sub(1, SeqCst);
        }
        drop((inbound, given));
        self.hopeless.store(true, SeqCst);
        self.news.fetch_add(1, SeqCst);
    }

    /// Refuses requests that cannot become part of a batch any more.
    fn refuse_hopeless(&self) {
        let reason = self.workers.iter().find_map(|worker| {
            let inbound = worker.lock();
            inbound.gone.clone().filter(|_| inbound.queue.is_empty())
        });
        let Some(reason) = reason else { return };
        let mut has_changed = false;
        for worker in &self.workers {
            let requests = {
                // One that asks for a batch must not find half of it gone.
                let _given = self.given.lock();
                let mut inbound = worker.lock();
                if !inbound.queue.is_empty() {
                    self.ready.fetch_sub(1, SeqCst);
                }
                has_changed |= inbound.blocked.take().is_some() || !inbound.queue.is_empty();
                std::mem::take(&mut inbound.queue)
            };
            for request in requests {
                self.refuse(request.link, request.head.number, &reason);
                worker.lock().release(request.head.number, &request.head.plan);
            }
        }
        // Who waits patiently is not to be woken for nothing.
        if has_changed {
            self.news.fetch_add(1, SeqCst);
            self.node.resume();
        }
    }

    fn take_from(&self, worker: usize, message: Message) -> Result<()> {
        match Word::of(&message.envelope) {
            Some(Word::Plan(number)) => {
                let plan = plan::decode(&message.control)?;
                self.workers[worker].lock().learn(number, plan)
            }
            Some(Word::Request { .. }) => {
                let mut inbound = self.workers[worker].lock();
                if inbound.gone.is_some() {
                    return Ok(());
                }
                inbound.take(message)?;
                if inbound.queue.len() == 1 {
                    self.ready.fetch_add(1, SeqCst);
                }
                Ok(())
            }
            Some(Word::Farewell) => {
                let left = Error::new(ErrorKind::Closed, format!("worker {worker} has left the exchange"));
                let left = self.lane.reason(&message.control, left.peer(self.peer(worker)));
                self.lose(worker, left, true);
                Ok(())
            }
            _ => Err(Error::new(ErrorKind::Protocol, "a worker sent a word that no server understands")),
        }
    }

    /// The loss because of which one of these workers is gone, or of a member of the lane: the mesh may know of it
    /// before the links do.
    fn loss(&self, workers: &[Mutex<Inbound>]) -> Option<Error> {
        let mut gone = workers.iter().filter_map(|worker| worker.lock().gone.clone());
        gone.find(|error| error.kind().is_loss()).or_else(|| self.lane.loss())
    }

    fn close(&self) {
        if self.is_closed.swap(true, SeqCst) {
            return;
        }
        let loss = self.loss(&self.workers);
        for link in self.node.links() {
            // Whoever hears it on a link over which it sends nothing does not listen.
            if self.worker_behind(link).is_some() {
                let why = loss.as_ref().map(word::refusal).unwrap_or_default();
                let farewell = Outgoing::control(Word::Farewell.envelope(self.lane.context), why);
                let _ = self.node.post(link, farewell);
            }
        }
        self.news.fetch_add(1, SeqCst);
        self.condition.changed();
    }
}

fn check_answers(plan: &Plan, parts: &[Part]) -> Result<()> {
    if parts.len() != plan.pulls.len() {
        let what = format!("{} answers for {} pulls", parts.len(), plan.pulls.len());
        return Err(Error::new(ErrorKind::Mismatch, what).hint("answer every pull of the request, in order"));
    }
    plan.pulls.iter().zip(parts).try_for_each(|(slot, part)| slot.check(part.tensor()))
}

/// The next batch.
impl Describe for End {
    fn describe(&self, _: Which) -> Option<Account> {
        let lacks = |(rank, worker): (usize, &Mutex<Inbound>)| {
            let inbound = worker.lock();
            inbound.queue.is_empty().then(|| format!("{} to push request {}", self.peer(rank).name, inbound.next()))
        };
        let whom = listed(self.workers.iter().enumerate().filter_map(lacks));
        Some(Account { what: None, whom: Some(whom).filter(|whom| !whom.is_empty()) })
    }
}

impl Endpoint for End {
    fn admit(&self, link: LinkId, arrival: &Arrival<'_>) -> Admission {
        let elsewhere = Admission::Land(Ground::default());
        let request = Word::of(&arrival.envelope).filter(|_| arrival.envelope.context == self.lane.context);
        let (Some(worker), Some(Word::Request { number, plan, step, wants_stamps })) = (self.worker_of(link), request)
        else {
            return elsewhere;
        };
        let mut inbound = self.workers[worker].lock();
        if inbound.gone.is_some() || self.is_closed.load(SeqCst) {
            return elsewhere;
        }
        match inbound.admit((number, plan, step, wants_stamps), arrival, self.node.arena()) {
            Ok(Admission::Pause) if arrival.ending => elsewhere,
            Ok(Admission::Pause) => {
                if matches!(inbound.blocked, Some(Blocked::Viewed(_))) {
                    self.news.fetch_add(1, SeqCst);
                    self.condition.changed();
                }
                Admission::Pause
            }
            Ok(admission) => admission,
            Err(error) => {
                drop(inbound);
                self.lose(worker, error, false);
                elsewhere
            }
        }
    }

    fn take(&self, message: Message) {
        let Some(worker) = self.worker_of(message.source) else { return };
        if message.envelope.context != self.lane.context {
            return;
        }
        if let Err(error) = self.take_from(worker, message) {
            self.lose(worker, error, false);
        }
    }

    fn link_ended(&self, link: LinkId, peer: &Peer, reason: &Error) {
        let Some(worker) = peer.node.and_then(|node| self.rank_of(node)) else { return };
        // A second link between the same two nodes, over which no word came, is not missed: what the worker has said
        // may still be on the other one.
        let leads_there = |other: &LinkId| self.node.link(*other).is_ok_and(|it| it.peer().node == peer.node);
        let was_heard = |of_worker: &AtomicU32| of_worker.compare_exchange(link.0, SILENT, SeqCst, SeqCst).is_ok();
        let is_used = self.links.iter().any(was_heard) || !self.node.links().iter().any(leads_there);
        if is_used {
            // The link may know less of its peer than the mesh does.
            self.lose(worker, reason.clone().peer(self.peer(worker)), false);
        }
    }

    fn attend(&self) {
        if self.hopeless.load(SeqCst) {
            self.refuse_hopeless();
        }
        self.condition.changed();
    }
}

#[cfg(test)]
mod tests;
