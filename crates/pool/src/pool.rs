//! The host's side: messages to workers and from them.
//!
//! One lock guards who has which task ([`crate::state`]). It is held for as long as tasks are moved about, and never
//! while somebody is called: works are completed, messages sent and processes ended without it.
//!
//! **Giving.** Whoever finds that a worker should have more gives it what it should have ([`crate::hand`]): who submits
//! a task, and who hears of outcomes, on whichever thread. Messages to one worker leave in the order of their numbers:
//! one thread at a time sends to it, and looks again when it has, for those who have come meanwhile.

use crate::job::Job;
use crate::packet::{Packet, leaving};
use crate::protocol::{self, BEGIN, BROKEN, OUTCOMES, Outcomes, READY, TASKS, Tasks, WORKER};
use crate::state::{Sent, State, Told, Worker};
use crate::task::{Definition, Function, Sink, Task};
use crate::turn::Turn;
use parking_lot::Mutex;
use sheave_base::planted::{self, Bug};
use sheave_base::work::awaited::{Account, Awaited, Describe, Which};
use sheave_base::{Error, ErrorKind, NodeId, Result, Work, clock, limits};
use sheave_mesh::{AttachedGuest, Call, Callers, Lane, Mesh, Request, Service, WeakMesh};
use sheave_net::{Medium, Part, Parts};
use sheave_tensor::{Mode, ReadLease};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// A task has so many tensors at most, and so many bytes beside them.
const TASK_TENSORS_MAX: usize = limits::PARTS_MAX / 2;
const TASK_BYTES_MAX: usize = limits::CONTROL_BYTES_MAX / 2;

/// How often it is looked whether tasks lie behind a long one while somebody has nothing to do.
const LEVEL_LOOK: Duration = Duration::from_millis(1);

/// Settings of the workers of a pool.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The packets that they are set up with, by slot; the last is for all slots behind. Without any they are not set
    /// up. Their tensors are borrowed as long as the pool is there, if they are not shared: who writes them is refused
    /// with `BufferInUse`.
    pub setups: Vec<Packet>,
    /// After so many tasks one is let go, for another one to come.
    pub tasks_per_worker: Option<usize>,
}

impl Settings {
    /// Borrows the tensors for all workers that come, but those that their owner may write at any time. One that is
    /// being written is refused now, for there would be a worker that it cannot be sent to.
    fn borrow_setups(&self) -> Result<Vec<ReadLease>> {
        let tensors = self.setups.iter().flat_map(Packet::tensors);
        let borrowed = tensors.filter(|tensor| !tensor.buffer().is_shared_alias());
        borrowed.map(|tensor| tensor.read_lease("set up pool")).collect()
    }
}

/// The pool as its handles, its workers' messages and the watch of its processes share it.
pub(crate) struct Shared {
    mesh: WeakMesh,
    service: String,
    settings: Settings,
    /// Keeps what workers are set up with from being written.
    _leases: Vec<ReadLease>,
    state: Mutex<State>,
    /// What is done once nothing is done any more.
    when_broken: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    tasks: AtomicU64,
    functions: AtomicU64,
    own: Weak<Self>,
    /// A task of the node's, which ends with it.
    membership: OnceLock<sheave_mesh::Task>,
}

impl Shared {
    pub(crate) fn new(mesh: &Mesh, slots: usize, settings: Settings) -> Result<Arc<Self>> {
        let leases = settings.borrow_setups()?;
        let shared = Arc::new_cyclic(|own| Self {
            mesh: mesh.downgrade(),
            service: format!("sheave.pool.{}", mesh.next_number("pool")),
            settings,
            _leases: leases,
            state: Mutex::new(State::new(slots)),
            when_broken: Mutex::default(),
            tasks: AtomicU64::new(0),
            functions: AtomicU64::new(0),
            own: own.clone(),
            membership: OnceLock::new(),
        });
        mesh.serve(&shared.service, Desk(Arc::downgrade(&shared)))?;
        let membership = Membership(Arc::downgrade(&shared));
        let task = mesh.runtime().spawn(async move {
            let _membership = membership;
            std::future::pending::<()>().await;
        });
        let _ = shared.membership.set(task?);
        Ok(shared)
    }

    fn mesh(&self) -> Result<Mesh> {
        self.mesh.upgrade().ok_or_else(|| Error::new(ErrorKind::Closed, "the node of the pool has left"))
    }

    /// The number of the next task.
    fn next(&self) -> u64 {
        self.tasks.fetch_add(1, Relaxed)
    }

    /// Changes the state, and tells whoever is to hear of it.
    fn change<T>(&self, change: impl FnOnce(&mut State, &mut Told) -> T) -> T {
        let mut told = Told::default();
        let changed = change(&mut self.state.lock(), &mut told);
        if !told.dismissed.is_empty()
            && let Some(mesh) = self.mesh.upgrade()
        {
            // One that is gone needs no word.
            told.dismissed.drain(..).for_each(|node| drop(mesh.dismiss(node)));
        }
        if told.is_broken {
            let then = self.when_broken.lock().take();
            then.into_iter().for_each(|then| then());
        }
        told.tell();
        changed
    }

    /// Has this done once the pool is broken.
    pub(crate) fn when_broken(&self, then: impl FnOnce() + Send + 'static) {
        *self.when_broken.lock() = Some(Box::new(then));
        if self.state.lock().is_broken() {
            let then = self.when_broken.lock().take();
            then.into_iter().for_each(|then| then());
        }
    }

    /// A worker has come to a slot. If the node has not lost the one before, it waits: outcomes of that one may come.
    pub(crate) fn hire(&self, slot: usize, guest: &AttachedGuest, turn: Turn) -> Result<()> {
        let mesh = self.mesh()?;
        let before = self.state.lock().slots[slot].as_ref().map(|worker| worker.node);
        if let Some(end) = before.and_then(|before| mesh.guest_end(before).ok()).filter(|end| !end.is_done()) {
            let (own, guest) = (self.own.clone(), guest.clone());
            end.on_complete(move |_| {
                // One that is gone meanwhile has had no task.
                own.upgrade().into_iter().for_each(|pool| _ = pool.hire(slot, &guest, turn.clone()));
            });
            return Ok(());
        }
        let link = mesh.link_to(guest.node).and_then(|link| mesh.node().link(link));
        let link = link.inspect_err(|_| self.state.lock().miss(slot, guest.node))?;
        let reaches = link.medium() != Medium::Tcp;
        let left = self.settings.tasks_per_worker.unwrap_or(usize::MAX);
        let mut worker = Worker::new(guest.node, guest.name.clone(), turn, left, clock::now());
        worker.reaches = reaches;
        self.change(|state, told| {
            // One that was lost before it was hired, of which the node tells no more.
            if let Some(before) = state.slots[slot].as_ref().map(|worker| worker.node) {
                state.lose(before, told);
            }
            state.slots[slot] = Some(worker);
        });
        let setup = self.settings.setups.get(slot).or(self.settings.setups.last());
        let part = |tensor: &sheave_tensor::Tensor| Part::new(tensor.clone(), Mode::Copy);
        let parts: Parts = setup.into_iter().flat_map(|setup| setup.tensors().iter().map(part)).collect();
        let begun = mesh.cast(guest.node, WORKER, BEGIN, protocol::begin(&self.service, setup, parts));
        match &begun {
            // It lives and would wait for ever.
            Err(error) if error.kind() == ErrorKind::BufferInUse => {
                // A shared tensor is being written, which is over when the next worker comes.
                drop(mesh.dismiss(guest.node));
            }
            Err(error) if !error.kind().is_loss() && error.kind() != ErrorKind::Closed => {
                // The next one would get the same.
                self.break_by(&error.clone().context(format!("worker {} cannot be told to begin", guest.name)));
            }
            _ => {}
        }
        begun
    }

    /// The process of a worker has ended so.
    pub(crate) fn ended(&self, node: NodeId, error: &Error) {
        let is_lost = self.mesh().and_then(|mesh| mesh.guest_end(node)).is_ok_and(|end| end.is_done());
        self.change(|state, told| {
            // Of one that was hired when the node had lost it, that tells no more.
            if is_lost {
                state.lose(node, told);
            }
            state.ended(node, error, told);
        });
        self.serve_all();
    }

    /// Nothing is done any more.
    pub(crate) fn break_by(&self, error: &Error) {
        self.change(|state, told| state.break_by(error, told));
    }

    pub(crate) fn forget(&self, number: u64) {
        self.state.lock().forget(number);
    }

    fn add(&self, task: Task) -> Result<()> {
        let slot = {
            let mut state = self.state.lock();
            if let Err(error) = state.admit(task.weight_bytes()) {
                // Its drop tells somebody.
                drop(state);
                drop(task);
                return Err(error.asked_for("submit"));
            }
            state.add(task);
            state.neediest()
        };
        if let Some(slot) = slot {
            self.serve(slot);
        }
        Ok(())
    }

    fn serve_all(&self) {
        let slots = self.state.lock().slots.len();
        (0..slots).for_each(|slot| self.serve(slot));
        self.watch();
    }

    /// Gives a worker what it is to have.
    fn serve(&self, slot: usize) {
        let mut most = usize::MAX;
        while let Some((message, call)) = self.drawn(slot, most) {
            let node = message.node;
            let sent = self.mesh().and_then(|mesh| mesh.cast(node, WORKER, TASKS, call));
            self.change(|state, told| {
                if let Err(error) = &sent {
                    state.undo(slot, message, error, told);
                }
                if let Some(worker) = state.slots[slot].as_mut().filter(|worker| worker.node == node) {
                    worker.is_served = false;
                }
            });
            // One of them has a tensor that is in use, and nobody knows which: alone it fails alone.
            if sent.as_ref().is_err_and(|error| error.kind() == ErrorKind::BufferInUse) {
                most = 1;
            }
            // Of one that is gone the node tells; with all other errors tasks have ended, and more may wait.
            if sent.is_err_and(|error| matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Closed)) {
                return;
            }
        }
    }

    /// The next message to a worker, of so many tasks at most, unless somebody else sends to it, who looks again then.
    fn drawn(&self, slot: usize, most: usize) -> Option<(Sent, Call)> {
        let mesh = self.mesh.upgrade()?;
        let mut state = self.state.lock();
        let worker = state.slots.get_mut(slot)?.as_mut()?;
        if worker.is_served {
            return None;
        }
        let (first, count) = state.draw(slot, most, clock::now())?;
        let worker = state.slots[slot].as_mut()?;
        worker.is_served = true;
        let dropped = worker.tell_dropped();
        let mut sent = Sent { node: worker.node, first, functions: Vec::new(), dropped: dropped.clone() };
        let mut tasks = Tasks { dropped, ..Tasks::from(first) };
        for task in worker.hand.last(count) {
            let function = &task.function.0;
            if worker.functions.insert(function.number) {
                sent.functions.push(function.number);
                if !planted::strikes(Bug::FunctionUnsent) {
                    tasks.functions.push((function.number, &function.packet));
                }
            }
            tasks.tasks.push((function.number, &task.args));
        }
        let reaches = worker.reaches;
        let call = tasks.to_call(|tensor| leaving(mesh.node(), tensor, reaches));
        Some((sent, call))
    }

    /// Sees to it that nothing lies behind a long task while somebody has nothing to do.
    fn watch(&self) {
        {
            let mut state = self.state.lock();
            if state.is_watched || !state.is_uneven() {
                return;
            }
            state.is_watched = true;
        }
        let own = self.own.clone();
        let Some(mesh) = self.mesh.upgrade() else { return };
        let runtime = mesh.runtime().clone();
        let watched = mesh.spawn("level pool", async move {
            loop {
                runtime.sleep_until(runtime.after(LEVEL_LOOK))?.await;
                let Some(shared) = own.upgrade() else { return Ok(()) };
                if !shared.level() {
                    return Ok(());
                }
            }
        });
        if watched.is_err() {
            self.state.lock().is_watched = false;
        }
    }

    fn level(&self) -> bool {
        let goes_on = {
            let mut state = self.state.lock();
            state.is_watched = state.level(clock::now());
            state.is_watched
        };
        if goes_on {
            let slots = self.state.lock().slots.len();
            (0..slots).for_each(|slot| self.serve(slot));
        }
        goes_on
    }

    fn outcomes(&self, request: Request) -> Result<()> {
        let outcomes = Outcomes::read(request.args, request.tensors)?;
        let mut told = Told::default();
        let slot = self.state.lock().settle(request.from, outcomes, clock::now(), &mut told);
        // It is to have more before anybody else is told.
        slot.into_iter().for_each(|slot| self.serve(slot));
        self.change(|_, others| std::mem::swap(others, &mut told));
        self.watch();
        Ok(())
    }

    /// An error that a worker has told of, or is at fault for.
    fn said_by(&self, worker: NodeId, error: Error) -> Error {
        match self.mesh.upgrade().and_then(|mesh| mesh.peer_of(worker)) {
            Some(peer) if error.happened_on().is_none() => error.origin(peer),
            _ => error,
        }
    }

    /// Nothing more comes from workers.
    pub(crate) fn end(&self) {
        if let Some(mesh) = self.mesh.upgrade() {
            mesh.serve_no_more(&self.service);
        }
    }
}

impl Describe for Shared {
    fn describe(&self, [number, _]: Which) -> Option<Account> {
        let what = if number == u64::MAX { "pool".to_owned() } else { format!("task {number} of a pool") };
        Some(Account { what: Some(what), whom: Some(self.state.lock().describe()) })
    }

    fn cancel(&self, [number, _]: Which) {
        self.change(|state, told| state.cancel(|task| task.number == number, told));
    }
}

/// That the node is there. It drops this when it leaves, and then nothing more comes from workers.
struct Membership(Weak<Shared>);

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(pool) = self.0.upgrade().filter(|_| !planted::strikes(Bug::LeaveUnheard)) {
            pool.break_by(&Error::new(ErrorKind::Closed, "the node of the pool has left").operation("pool task"));
        }
    }
}

/// What the workers of a pool call.
struct Desk(Weak<Shared>);

impl Service for Desk {
    fn handle(&self, request: Request) {
        let Some(pool) = self.0.upgrade() else { return };
        let from = request.from;
        let handled = match request.method.as_str() {
            OUTCOMES => pool.outcomes(request),
            READY => {
                let slot = pool.state.lock().ready(from);
                slot.into_iter().for_each(|slot| pool.serve(slot));
                // The others may have more than they can do.
                pool.watch();
                Ok(())
            }
            BROKEN => protocol::read_error(request.args).map(|error| pool.break_by(&pool.said_by(from, error))),
            _ => Err(protocol::unreadable()),
        };
        if let Err(error) = handled {
            // Its worker is of another release, or worse.
            pool.break_by(&pool.said_by(from, error));
        }
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }

    fn callers(&self, _: &str) -> Callers {
        Callers::Guests
    }

    fn guest_lost(&self, guest: &AttachedGuest, _: &Error) {
        if let Some(pool) = self.0.upgrade() {
            pool.change(|state, told| state.lose(guest.node, told));
            pool.serve_all();
        }
    }
}

/// A handle of a pool that submits tasks, whatever its workers are.
#[derive(Clone)]
pub struct Tasker {
    pub(crate) shared: Arc<Shared>,
}

impl Tasker {
    /// A function that the workers find by what is in this packet.
    #[must_use]
    pub fn function(&self, packet: Packet) -> Function {
        let number = self.shared.functions.fetch_add(1, Relaxed);
        let pool = Arc::downgrade(&self.shared);
        Function(Arc::new(Definition { number, packet, pool }))
    }

    /// Writes arguments, or what workers make a function of, and captures the tensors that are sent by copy.
    ///
    /// # Errors
    ///
    /// As [`Packet::captured`]; `Closed` once the node has left.
    pub fn packet(&self, value: &sheave_wire::Value, parts: Parts) -> Result<Packet> {
        Packet::captured(self.shared.mesh()?.node(), value, parts)
    }

    /// Submits a task, which is given to another worker so often if one dies of it. Does not block; [`Tasker::room`]
    /// says when to. Cancelling the work ends a task that no worker has yet.
    ///
    /// The work fails with what the function fails with; `WorkerDied` with exit status and last lines if the worker
    /// dies that has begun with it; `Closed` when the pool is terminated or its node leaves.
    ///
    /// # Errors
    ///
    /// `Closed` once the pool is closed; what has broken it; `InvalidArgument` for arguments that are too long;
    /// `LimitExceeded` for far more tasks than there is room for.
    pub fn submit(&self, function: &Function, args: Packet, tries: u32) -> Result<Work<Packet>> {
        self.submit_numbered(function, args, tries).map(|(_, work)| work)
    }

    /// Submits a task, and returns its number too; as [`Tasker::submit`] in all else.
    ///
    /// # Errors
    ///
    /// As [`Tasker::submit`].
    pub fn submit_numbered(&self, function: &Function, args: Packet, tries: u32) -> Result<(u64, Work<Packet>)> {
        check(&args)?;
        let (number, mesh) = (self.shared.next(), self.shared.mesh()?);
        let (completer, work) = mesh.node().governed("pool task", None, self.awaited(number));
        self.shared.add(Task {
            number,
            function: function.clone(),
            args,
            tries_left: tries,
            sink: Sink::One(completer),
        })?;
        Ok((number, work))
    }

    /// Returns whether a worker has begun with the task of this number, and its outcome is not here.
    #[must_use]
    pub fn has_begun(&self, number: u64) -> bool {
        self.shared.state.lock().has_begun(number)
    }

    /// Tasks whose outcomes are taken together, in order or as they come.
    ///
    /// # Errors
    ///
    /// `Closed` once the node has left.
    pub fn job(&self, is_ordered: bool) -> Result<Arc<Job>> {
        Ok(Arc::new(Job::new(self.shared.mesh()?.node(), is_ordered, self.awaited(u64::MAX))))
    }

    /// Submits a task of a job; as [`Tasker::submit`] in all else.
    ///
    /// # Errors
    ///
    /// As [`Tasker::submit`]; then the job has no such task.
    pub fn submit_to(&self, job: &Arc<Job>, function: &Function, args: Packet, tries: u32) -> Result<()> {
        check(&args)?;
        let (number, sink) = (self.shared.next(), Sink::Many(Arc::clone(job), 0));
        self.shared.add(Task { number, function: function.clone(), args, tries_left: tries, sink })
    }

    /// Ends the tasks of a job that no worker has yet.
    pub fn cancel(&self, job: &Arc<Job>) {
        self.shared.change(|state, told| state.cancel(|task| task.is_of(job), told));
    }

    /// A work that ends when there is room for a task.
    ///
    /// # Errors
    ///
    /// `Closed` once the node has left.
    pub fn room(&self) -> Result<Work<()>> {
        let mesh = self.shared.mesh()?;
        let mut state = self.shared.state.lock();
        if state.has_room() {
            return Ok(Work::ready("submit", Ok(())));
        }
        let (completer, work) = mesh.node().described("submit", None, self.awaited(u64::MAX));
        state.await_room(completer);
        Ok(work)
    }

    /// Takes no more tasks.
    pub fn close(&self) {
        self.shared.state.lock().is_closed = true;
    }

    /// Checks that there can be more tasks.
    ///
    /// # Errors
    ///
    /// `Closed` once the pool is closed; what has broken it.
    pub fn check(&self) -> Result<()> {
        self.shared.state.lock().check()
    }

    /// A work that ends when all tasks have ended that were submitted.
    ///
    /// # Errors
    ///
    /// `Closed` once the node has left.
    pub fn all_ended(&self) -> Result<Work<()>> {
        let mesh = self.shared.mesh()?;
        let mut state = self.shared.state.lock();
        if state.has_ended() {
            return Ok(Work::ready("pool", Ok(())));
        }
        let (completer, work) = mesh.node().described("pool", None, self.awaited(u64::MAX));
        state.await_end(completer);
        Ok(work)
    }

    fn awaited(&self, number: u64) -> Awaited {
        let knows: Weak<dyn Describe> = self.shared.own.clone();
        Awaited::new(knows, [number, 0])
    }
}

fn check(args: &Packet) -> Result<()> {
    let (bytes, tensors) = (args.bytes.len(), args.tensors.len());
    if bytes <= TASK_BYTES_MAX && tensors <= TASK_TENSORS_MAX {
        return Ok(());
    }
    let what = format!(
        "arguments of {bytes} bytes and {tensors} tensors; a task has {TASK_BYTES_MAX} and {TASK_TENSORS_MAX} at most"
    );
    Err(Error::new(ErrorKind::InvalidArgument, what).operation("submit"))
}
