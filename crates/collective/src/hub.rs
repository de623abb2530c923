//! What all groups of one node share: the queue of tasks that can go on, the deadlines, and the answers to those who
//! ask how far this node is.
//!
//! Tasks run on whatever thread polls the node's links: a receive that completes wakes its task, which is put into the
//! queue, and the mesh lets the hub attend right after the poll, with no lock held. Waits look at the queue too, so a
//! task that was woken elsewhere is never left alone for longer than a wait sleeps.

use crate::group::{Lasting, State};
use crate::shared::board::Board;
use crate::shared::graves::Graves;
use crate::table::Table;
use crate::task::Task;
use parking_lot::{Condvar, Mutex};
use sheave_base::limits::WAIT_NOTICE;
use sheave_base::park::Parker;
use sheave_base::work::{Drive, IDLE, Interrupt, Target};
use sheave_base::{Error, ErrorKind, LinkId, Result};
use sheave_mesh::{Attendant, GroupId, GroupRecord, Mesh, Request, Service, WeakMesh};
use sheave_net::{Node, Source};
use sheave_wire::Value;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

/// The service by which members ask each other how many operations of a group they have begun.
const SERVICE: &str = "sheave.collective";

/// How long a member may take to answer that.
const ANSWER_PATIENCE: Duration = Duration::from_millis(300);

/// A group as the hub knows it, until all its members have dropped it.
pub(crate) struct Known {
    pub(crate) state: Weak<State>,
    pub(crate) record: Weak<GroupRecord>,
}

pub(crate) struct Hub {
    mesh: WeakMesh,
    pub(crate) node: Node,
    pub(crate) table: Table,
    pub(crate) table_digest: u64,
    pub(crate) graves: Arc<Graves>,
    /// Tasks that wait for words in shared memory.
    watching: Mutex<Watching>,
    /// Grows whenever one of them moves.
    moves: AtomicU64,
    /// Others may have been asked to ring.
    is_armed: AtomicBool,
    pub(crate) groups: Mutex<HashMap<GroupId, Known>>,
    ready: Mutex<VecDeque<Arc<Task>>>,
    timer: Arc<Timer>,
    me: Weak<Hub>,
}

impl Hub {
    /// The only hub of a node: the service's name is taken once.
    pub(crate) fn new(mesh: &Mesh, table: Table) -> Result<Arc<Self>> {
        let hub = Arc::new_cyclic(|me| Self {
            mesh: mesh.downgrade(),
            node: mesh.node().clone(),
            table_digest: table.digest(),
            table,
            graves: Arc::default(),
            watching: Mutex::new(Watching::default()),
            moves: AtomicU64::new(0),
            is_armed: AtomicBool::new(false),
            groups: Mutex::default(),
            ready: Mutex::default(),
            timer: Arc::default(),
            me: Weak::clone(me),
        });
        mesh.serve(SERVICE, Answers(Arc::downgrade(&hub)))?;
        let attendant: Weak<dyn Attendant> = Arc::downgrade(&hub) as Weak<dyn Attendant>;
        mesh.attend_with(attendant);
        let source: Weak<dyn Source> = Arc::downgrade(&hub) as Weak<dyn Source>;
        if !hub.node.wait_for(&source) {
            return Err(Error::new(ErrorKind::AlreadyExists, "something else of this node waits for shared memory"));
        }
        Ok(hub)
    }

    pub(crate) fn mesh(&self) -> Option<Mesh> {
        self.mesh.upgrade()
    }

    pub(crate) fn this(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    /// A task can go on.
    pub(crate) fn enqueue(&self, task: Arc<Task>) {
        self.ready.lock().push_back(task);
        self.node.remind_observer();
    }

    /// Runs what can go on.
    pub(crate) fn run_ready(&self) {
        loop {
            let Some(task) = self.ready.lock().pop_front() else { return };
            run(&task);
        }
    }

    fn states(&self) -> Vec<Arc<State>> {
        self.groups.lock().values().filter_map(|known| known.state.upgrade()).collect()
    }

    /// Does something about `task` at `deadline`, unless it has ended by then. It may block for a moment.
    pub(crate) fn at(
        &self,
        deadline: Instant,
        task: &Arc<Task>,
        act: impl FnOnce(&Arc<Task>) + Send + 'static,
    ) -> Result<()> {
        Timer::add(&self.timer, (deadline, Arc::downgrade(task), Box::new(act)))
    }

    /// Which of the other members have not begun the operation of this number, as a phrase; empty if all have. Blocks
    /// for a moment.
    pub(crate) fn who_is_missing(&self, state: &State, sequence: u64) -> String {
        let Some(mesh) = self.mesh() else { return String::new() };
        let group = &state.group;
        let until = Instant::now() + ANSWER_PATIENCE;
        let asked = group.nodes().iter().enumerate().filter(|(rank, _)| *rank != group.rank().0 as usize);
        let id = i64::from_le_bytes(group.id().0.to_le_bytes());
        let calls = asked.map(|(rank, node)| (rank, *node, mesh.call(*node, SERVICE, "begun", Value::Int(id))));
        let mut missing = Vec::new();
        for (rank, node, call) in calls.collect::<Vec<_>>() {
            let name = mesh.member(node).map_or_else(|| node.to_string(), |member| member.introduction.name.clone());
            let answer = call.and_then(|work| match work.wait_until(Some(until), None)? {
                true => work.taken().map(Some),
                false => Ok(None),
            });
            match answer {
                Ok(Some(answer)) if matches!(answer.value, Value::Int(begun) if begun > sequence.cast_signed()) => {}
                Ok(None) => missing.push(format!("rank {rank} ({name}), which does not answer")),
                Ok(Some(_)) | Err(_) => missing.push(format!("rank {rank} ({name})")),
            }
        }
        missing.join(", ")
    }

    /// Says whom a wait waits for, from a thread of its own.
    fn give_notice(&self, state: &Arc<State>) {
        let Some(hub) = self.this() else { return };
        let state = Arc::clone(state);
        // That nobody can be asked is no reason to fail.
        let _ = sheave_base::thread::spawn("sheave-notice", move || {
            if let Some(what) = state.what_it_waits_for(&hub) {
                hub.node.notice(&format!("{what}, for {} s", WAIT_NOTICE.as_secs()));
            }
        });
    }
}

/// Runs a task that was taken out of the queue, or is new.
pub(crate) fn run(task: &Arc<Task>) {
    if let Some(outcome) = task.run()
        && let Some(ending) = task.take_ending()
    {
        ending(outcome);
    }
}

impl Attendant for Hub {
    fn attend(&self) {
        self.run_ready();
    }

    fn groups_changed(&self) {
        // What arrived before the news may end operations well.
        self.run_ready();
        for state in self.states() {
            state.look();
        }
        self.run_ready();
        // Whoever waits until nobody touches its memory any more waits for those without handles too.
        let boards: Vec<_> = self.groups.lock().values().filter_map(Known::board_of_dropped).collect();
        boards.iter().for_each(|board| board.break_up());
    }
}

impl Known {
    fn board_of_dropped(&self) -> Option<Arc<Board>> {
        let record = self.record.upgrade().filter(|record| self.state.strong_count() == 0 && record.is_broken())?;
        record.kept::<Lasting>()?.board().cloned()
    }
}

/// The tasks that wait for words in shared memory. They stay here while they are polled: one that runs just now on
/// another thread goes round once more, so it misses nothing that changed before a thread arms its board and sleeps.
#[derive(Default)]
struct Watching {
    next: u64,
    tasks: Vec<(u64, Waker, Arc<Board>)>,
}

/// A task is polled again whenever shared memory may have changed, until this is dropped.
pub(crate) struct Watch {
    hub: Weak<Hub>,
    number: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(hub) = self.hub.upgrade() else { return };
        let mut watching = hub.watching.lock();
        let at = watching.tasks.iter().position(|(number, ..)| *number == self.number);
        let gone = at.map(|at| watching.tasks.swap_remove(at));
        drop(watching);
        drop(gone);
    }
}

impl Source for Hub {
    fn poll(&self) -> bool {
        let wakers: SmallVec<[Waker; 4]> =
            self.watching.lock().tasks.iter().map(|(_, waker, _)| waker.clone()).collect();
        if wakers.is_empty() {
            return false;
        }
        let before = self.moves.load(Relaxed);
        wakers.into_iter().for_each(Waker::wake);
        self.run_ready();
        self.moves.load(Relaxed) != before
    }

    fn arm(&self) -> bool {
        self.is_armed.store(true, SeqCst);
        self.watching.lock().tasks.iter().for_each(|(.., board)| board.own().arm());
        !self.poll()
    }

    fn disarm(&self) {
        if self.is_armed.load(SeqCst) && self.is_armed.swap(false, SeqCst) {
            self.watching.lock().tasks.iter().for_each(|(.., board)| board.own().disarm());
        }
    }
}

impl Hub {
    /// Has a task polled again whenever shared memory may have changed.
    pub(crate) fn watch(&self, waker: &Waker, board: &Arc<Board>) -> Watch {
        let mut watching = self.watching.lock();
        let number = watching.next;
        watching.next += 1;
        watching.tasks.push((number, waker.clone(), Arc::clone(board)));
        Watch { hub: Weak::clone(&self.me), number }
    }

    /// A task that is watched has moved.
    pub(crate) fn note_move(&self) {
        self.moves.fetch_add(1, Relaxed);
    }
}

/// Answers other members.
struct Answers(Weak<Hub>);

impl Service for Answers {
    fn handle(&self, request: Request) {
        let begun = || {
            let Value::Int(id) = request.args else { return None };
            let id = GroupId(u64::from_le_bytes(id.to_le_bytes()));
            Some(self.0.upgrade()?.groups.lock().get(&id)?.record.upgrade()?.operations())
        };
        let answer = begun().and_then(|begun| i64::try_from(begun).ok());
        request.reply.value(answer.map_or(Value::None, Value::Int));
    }

    fn is_inline(&self) -> bool {
        true
    }
}

/// How a work of this room is waited for: like any other of the node, but the notice says who is missing.
pub(crate) struct Driver {
    pub(crate) hub: Weak<Hub>,
    pub(crate) state: Weak<State>,
    pub(crate) node: Arc<dyn Drive>,
}

/// A target whose wait gives no notice of its own.
struct Quiet<'a>(&'a dyn Target);

impl Target for Quiet<'_> {
    fn is_done(&self) -> bool {
        self.0.is_done()
    }

    fn watch(&self, parker: &Arc<Parker>) -> bool {
        self.0.watch(parker)
    }

    fn unwatch(&self, parker: &Arc<Parker>) {
        self.0.unwatch(parker);
    }

    fn link(&self) -> Option<LinkId> {
        self.0.link()
    }

    fn operation(&self) -> &'static str {
        IDLE
    }
}

impl Drive for Driver {
    fn drive(&self, target: &dyn Target, until: Option<Instant>, mut interrupt: Option<Interrupt<'_>>) -> Result<bool> {
        let (hub, state) = (self.hub.upgrade(), self.state.upgrade());
        if let Some(hub) = &hub {
            hub.run_ready();
        }
        let (begun, mut noticed) = (Instant::now(), false);
        let mut look = || {
            if let Some((hub, state)) = hub.as_ref().zip(state.as_ref()) {
                hub.run_ready();
                if !noticed && begun.elapsed() >= WAIT_NOTICE {
                    noticed = true;
                    hub.give_notice(state);
                }
            }
            interrupt.as_mut().map_or(Ok(()), |interrupt| interrupt())
        };
        self.node.drive(&Quiet(target), until, Some(&mut look))
    }
}

type Due = (Instant, Weak<Task>, Box<dyn FnOnce(&Arc<Task>) + Send>);

/// Ends operations at their deadlines, on a thread that is there while one has a deadline.
#[derive(Default)]
struct Timer {
    dues: Mutex<Dues>,
    changed: Condvar,
}

#[derive(Default)]
struct Dues {
    list: Vec<Due>,
    is_running: bool,
}

impl Timer {
    /// How often operations that have ended are forgotten.
    const TICK: Duration = Duration::from_secs(1);

    fn add(timer: &Arc<Self>, due: Due) -> Result<()> {
        let mut dues = timer.dues.lock();
        if !dues.is_running {
            let own = Arc::clone(timer);
            sheave_base::thread::spawn("sheave-deadlines", move || own.keep())?;
            dues.is_running = true;
        }
        dues.list.push(due);
        timer.changed.notify_one();
        Ok(())
    }

    fn keep(&self) {
        let mut dues = self.dues.lock();
        loop {
            let now = Instant::now();
            dues.list.retain(|(_, task, _)| task.upgrade().is_some_and(|task| !task.is_done()));
            let Some(next) = dues.list.iter().map(|(at, ..)| *at).min() else {
                dues.is_running = false;
                return;
            };
            if next > now {
                self.changed.wait_until(&mut dues, next.min(now + Self::TICK));
                continue;
            }
            let (late, rest): (Vec<Due>, Vec<Due>) =
                std::mem::take(&mut dues.list).into_iter().partition(|(at, ..)| *at <= now);
            dues.list = rest;
            drop(dues);
            for (_, task, act) in late {
                if let Some(task) = task.upgrade() {
                    act(&task);
                }
            }
            dues = self.dues.lock();
        }
    }
}
