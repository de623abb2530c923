//! What all groups of one node share: who asks and answers how far a node is, and what waits for shared memory.
//!
//! Operations are tasks of the mesh's runtime. Those that wait for words in shared memory are woken whenever the node's
//! threads poll, and run by the thread that has woken them.

use crate::group::{Lasting, State};
use crate::long;
use crate::shared::board::Board;
use crate::shared::deferred::DeferredRelease;
use crate::table::Table;
use crate::task::Task;
use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, NodeId, Rank, Result, Work};
use sheave_mesh::{AnswerOf, CallOptions, GroupId, GroupNews, GroupRecord, Lane, Mesh, Methods, Runtime};
use sheave_mesh::{TypedService, WeakMesh};
use sheave_net::{Endpoint, Node};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

/// The service by which members ask each other how many operations of a group they have begun.
const SERVICE: &str = "sheave.collective";

/// How many operations of a group a member has begun; none if it does not know the group.
struct Begun;

sheave_mesh::methods! {
    service SERVICE;
    1, "begun": Begun[u64] -> Option<u64>, Members;
}

/// The number under which the hub is registered at its node. No message is for it; `docs/design` lists those of all
/// services.
const NUMBER: u8 = 7;

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
    pub(crate) runtime: Runtime,
    pub(crate) table: Table,
    pub(crate) table_digest: u64,
    pub(crate) deferred: Arc<DeferredRelease>,
    /// Tasks that wait for words in shared memory.
    watching: Mutex<Watching>,
    /// Grows whenever one of them moves.
    moves: AtomicU64,
    /// Others may have been asked to ring.
    is_armed: AtomicBool,
    pub(crate) groups: Mutex<HashMap<GroupId, Known>>,
    me: Weak<Hub>,
}

impl Hub {
    /// The only hub of a node: the service's name is taken once.
    pub(crate) fn new(mesh: &Mesh, table: Table) -> Result<Arc<Self>> {
        let hub = Arc::new_cyclic(|me| Self {
            mesh: mesh.downgrade(),
            node: mesh.node().clone(),
            runtime: mesh.runtime().clone(),
            table_digest: table.digest(),
            table,
            deferred: DeferredRelease::new(mesh.runtime().clone()),
            watching: Mutex::new(Watching::default()),
            moves: AtomicU64::new(0),
            is_armed: AtomicBool::new(false),
            groups: Mutex::default(),
            me: Weak::clone(me),
        });
        mesh.serve_typed(Arc::new(Answers(Arc::downgrade(&hub))))?;
        let listener: Weak<dyn GroupNews> = Arc::downgrade(&hub) as Weak<dyn GroupNews>;
        mesh.tell_group_news_to(listener);
        if !hub.node.register(NUMBER, &(Arc::clone(&hub) as Arc<dyn Endpoint>)) {
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

    /// Runs what can go on.
    pub(crate) fn run_ready(&self) {
        self.runtime.run_ready();
    }

    fn states(&self) -> Vec<Arc<State>> {
        self.groups.lock().values().filter_map(|known| known.state.upgrade()).collect()
    }

    /// Does something about `task` after `span`, unless it has ended by then. It must not block.
    pub(crate) fn after(
        &self,
        span: Duration,
        task: &Arc<Task>,
        act: impl FnOnce(&Arc<Task>) + Send + 'static,
    ) -> Result<()> {
        let weak = Arc::downgrade(task);
        let timer = self.runtime.at(self.runtime.after(span), move || {
            if let Some(task) = weak.upgrade().filter(|task| !task.is_done()) {
                act(&task);
            }
        })?;
        task.keep(timer);
        Ok(())
    }

    /// Which of the other members have not begun the operation of this number, as a phrase; empty if all have. Takes a
    /// moment.
    pub(crate) async fn who_is_missing(&self, state: &State, sequence: u64) -> String {
        let own = state.group.rank().0;
        let until = self.runtime.after(ANSWER_PATIENCE);
        let mut asked = Vec::new();
        // All are asked before the first answer is awaited.
        for rank in (0..state.size()).filter(|rank| *rank != own) {
            // A call would wait for the link, and so would the thread that polls this.
            let link = self.runtime.until(until, state.link(rank)).await;
            let Some(node) = state.group.node(Rank(rank)) else { continue };
            let call = match link {
                Ok(Some(linked)) => linked.and_then(|_| self.ask(node, state.group.id())),
                Ok(None) => Err(Error::new(ErrorKind::DeadlineExceeded, "no link to the node yet")),
                Err(error) => Err(error),
            };
            asked.push((rank, node, call));
        }
        let mut missing = Vec::new();
        for (rank, node, call) in asked {
            let answer = match call {
                Ok(work) => work.await,
                Err(error) => Err(error),
            };
            let name = self.name_of(node);
            match answer {
                Ok(answer) if answer.value.is_some_and(|begun| begun > sequence) => {}
                Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {
                    missing.push(format!("rank {rank} ({name}), which does not answer"));
                }
                Ok(_) | Err(_) => missing.push(format!("rank {rank} ({name})")),
            }
        }
        missing.join(", ")
    }

    fn ask(&self, node: NodeId, group: GroupId) -> Result<Work<AnswerOf<Begun>>> {
        let mesh = self.mesh().ok_or_else(|| Error::new(ErrorKind::Closed, "this node has left the mesh"))?;
        let options = CallOptions { deadline: Some(ANSWER_PATIENCE), ..CallOptions::default() };
        mesh.ask_with::<Begun>(node, &group.0, options)
    }

    fn name_of(&self, node: NodeId) -> String {
        let name = self.mesh().and_then(|mesh| Some(mesh.member(node)?.introduction.name.clone()));
        name.unwrap_or_else(|| node.to_string())
    }
}

impl GroupNews for Hub {
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

impl Endpoint for Hub {
    fn is_polled(&self) -> bool {
        true
    }

    fn poll(&self) -> bool {
        let wakers: SmallVec<[Waker; 4]> =
            self.watching.lock().tasks.iter().map(|(_, waker, _)| waker.clone()).collect();
        if wakers.is_empty() {
            return false;
        }
        let before = self.moves.load(Relaxed);
        let _polls = long::polls();
        wakers.into_iter().for_each(Waker::wake);
        self.run_ready();
        // A call does not stay for what another thread moves.
        self.moves.load(Relaxed) != before && long::may_work()
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
        // A thread sleeps that has armed what was watched by then; whoever watches looks at the board once more.
        if self.is_armed.load(SeqCst) {
            board.own().arm();
        }
        Watch { hub: Weak::clone(&self.me), number }
    }

    /// A task that is watched has work to do and waits for nobody: a thread that polls goes on with it, or one comes.
    pub(crate) fn leave_work(&self) {
        if long::leave() {
            self.node.endpoint_works();
        }
    }

    /// A task that is watched has moved.
    pub(crate) fn note_move(&self) {
        self.moves.fetch_add(1, Relaxed);
    }
}

/// Answers other members.
struct Answers(Weak<Hub>);

impl Answers {
    fn begun(&self, group: GroupId) -> Option<u64> {
        Some(self.0.upgrade()?.groups.lock().get(&group)?.record.upgrade()?.operations())
    }
}

impl TypedService for Answers {
    const NAME: &'static str = SERVICE;

    fn methods(methods: Methods<Self>) -> Methods<Self> {
        methods.on::<Begun>(|answers, request| request.reply.ok(&answers.begun(GroupId(request.args))))
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }
}
