//! Joins the engine with a node: what links say becomes events, and what the engine asks for is done.
//!
//! Whoever polls a link and finds a word of another engine, or a link's end, puts it into the queue `told`, and then,
//! with no lock held, tries to *steer*: takes the engine, lets it handle everything in the queue, does what it asks
//! for, and lets go. Who finds the engine taken may go on, because the holder looks at the queue once more after it has
//! let go. So no event is lost, none waits for a thread of its own, and a barrier completes on the thread that waits
//! for it. The mesh's own thread steers when the engine's timer is due.
//!
//! What is about nodes that are attached to this one, guests or a host, is [sorted out](Shared::sort_out) before the
//! engine hears of it.
//!
//! Words go out while the engine is held, because their order counts. Everything that may call foreign code or close
//! links happens after it was let go.

use crate::call::{Calls, HANDSHAKE_LOOK, Size};
use crate::departure::Departures;
use crate::ended;
use crate::endpoints::{self, ALL, ANSWERS, CALLS, ENGINE, ENGINE_IN_ORDER, REFERENCES, REQUESTS, ROOM};
use crate::engine::{
    Effect, Engine, Event, FAILED, GIVEN_UP, GroupId, GroupRecord, Member, Message, OperationId, Outcome,
};
use crate::group_news::GroupNews;
use crate::guest::{Attached, leaving_word};
use crate::hosts;
use crate::losses::Losses;
use crate::reference::References;
use crate::routes::{EngineWord, LAST_WORDS, Routes};
use crate::runtime::Runtime;
use crate::runtime::timers::Timers;
use crate::told::{Told, ToldQueue};
use parking_lot::{Mutex, RwLock};
use sheave_base::clock::{Clock, SystemClock, Time};
use sheave_base::collections::HashMap;
use sheave_base::planted::{self, Bug};
use sheave_base::work::Completer;
use sheave_base::{Epoch, Error, ErrorKind, LinkId, NodeId, Peer, Result, Work};
use sheave_net::{
    Admission, Arrival, Endpoint, Ground, Message as Arrived, Node, NodeConfig, was_closed_in_order, was_dropped,
};
use sheave_wire::{from_control, to_control};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Release, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

type Ending = Box<dyn FnOnce(Result<Outcome>) + Send>;

pub(crate) struct State {
    pub(crate) engine: Engine,
    operations: HashMap<OperationId, Ending>,
    next_operation: u64,
    joining: Option<Completer<()>>,
    timer: Option<Time>,
    parting: Vec<Parting>,
    /// Members whose links ended in another way than with their processes: those may have decided something since.
    lived_on: BTreeSet<NodeId>,
    /// Members of which a link was dropped without a word. How this node then ends their other ones says nothing of
    /// them.
    dropped: BTreeSet<NodeId>,
}

/// A member whose last link was closed in order, for `reason`: news of its leave may come another way until then.
struct Parting {
    node: NodeId,
    until: Time,
    reason: String,
}

/// What a turn of the engine leaves to be done once it was let go.
#[derive(Default)]
struct Afterwards {
    endings: Vec<(Ending, Result<Outcome>)>,
    joined: Option<(Completer<()>, Result<()>)>,
    cut: Vec<NodeId>,
    dead: Vec<(NodeId, String)>,
    departed: Vec<NodeId>,
    /// Attached nodes whose links have ended, and for what.
    detached: Vec<(NodeId, LinkId, Error)>,
    /// Links that are to end because of what came over them, or in whose name.
    expelled: Vec<(LinkId, Error)>,
    failed: Option<Error>,
    /// What belonged to groups that all members have dropped.
    forgotten: Vec<Arc<GroupRecord>>,
}

pub(crate) struct Shared {
    pub(crate) node: Node,
    pub(crate) me: NodeId,
    /// This node as it has introduced itself; its table knows it better.
    pub(crate) introduced: Member,
    config: NodeConfig,
    clock: SystemClock,
    told: Mutex<ToldQueue>,
    /// Something may be in there. Written under its lock. Who has put something there sees that by itself, and steers.
    has_told: AtomicBool,
    /// Groups of which a handle was dropped, once for each. Nothing hurries.
    pub(crate) released: Mutex<Vec<GroupId>>,
    /// A word had to stay on its link, because too many wait here.
    choked: AtomicBool,
    state: Mutex<State>,
    pub(crate) routes: Routes,
    pub(crate) calls: Calls,
    pub(crate) references: Arc<References>,
    /// Who is attached to this node beside the members: its guests, or its host.
    pub(crate) attached: Attached,
    /// All members by rank, from the moment when the mesh stands.
    table: OnceLock<Vec<Member>>,
    /// How many things of each sort this node has made, where all members make them in the same order.
    pub(crate) numbers: Mutex<HashMap<String, u32>>,
    pub(crate) departures: Departures,
    /// The barrier of all members before they leave, once this node has entered it.
    pub(crate) finish: Mutex<Option<Work<()>>>,
    /// The group of that barrier.
    pub(crate) finish_group: OnceLock<GroupId>,
    pub(crate) group_news: RwLock<SmallVec<[Weak<dyn GroupNews>; 1]>>,
    /// For the room that has collective operations.
    pub(crate) collective_table: OnceLock<PathBuf>,
    /// Where this node notes whom it has lost.
    pub(crate) losses: Losses,
    /// This node has begun to leave, or to fail: whom it loses from then on is no reason for anything.
    pub(crate) is_going: AtomicBool,
    /// Grows whenever the engine may know something new.
    news: AtomicU64,
    /// What ended the engine.
    failure: OnceLock<Error>,
    pub(crate) stopping: AtomicBool,
    /// What is to be done at a time.
    pub(crate) ticker: Arc<Timers>,
    pub(crate) runtime: Runtime,
    weak: Weak<Shared>,
}

impl Shared {
    pub(crate) fn new(node: Node, config: NodeConfig, joining: Completer<()>, engine: Engine) -> Arc<Self> {
        let (operations, next_operation, timer) = (HashMap::default(), 0, None);
        let me = node.id();
        let introduced = engine.introduced_as();
        let clock = SystemClock::default();
        let ticker = Timers::new(Arc::new(clock));
        let runtime = Runtime::new(&node, &ticker);
        Arc::new_cyclic(|weak| Self {
            me,
            introduced,
            node,
            config,
            clock,
            told: Mutex::default(),
            has_told: AtomicBool::new(false),
            released: Mutex::default(),
            choked: AtomicBool::new(false),
            state: Mutex::new(State {
                engine,
                operations,
                next_operation,
                joining: Some(joining),
                timer,
                parting: Vec::new(),
                lived_on: BTreeSet::new(),
                dropped: BTreeSet::new(),
            }),
            routes: Routes::default(),
            calls: Calls::new(weak.clone()),
            references: References::new(me, weak.clone()),
            attached: Attached::default(),
            table: OnceLock::new(),
            numbers: Mutex::default(),
            departures: Departures::default(),
            finish: Mutex::default(),
            finish_group: OnceLock::new(),
            group_news: RwLock::default(),
            collective_table: OnceLock::new(),
            losses: Losses::default(),
            is_going: AtomicBool::new(false),
            news: AtomicU64::new(0),
            failure: OnceLock::new(),
            stopping: AtomicBool::new(false),
            ticker,
            runtime,
            weak: weak.clone(),
        })
    }

    pub(crate) fn this(&self) -> Option<Arc<Self>> {
        self.weak.upgrade()
    }

    pub(crate) fn weak(&self) -> Weak<Self> {
        self.weak.clone()
    }

    pub(crate) fn clock(&self) -> &SystemClock {
        &self.clock
    }

    pub(crate) fn node_config(&self) -> &NodeConfig {
        &self.config
    }

    /// All members by rank; nobody before the mesh stands.
    pub(crate) fn table(&self) -> &[Member] {
        self.table.get().map_or(&[], Vec::as_slice)
    }

    /// Whether this node knows who the members are, or that there will be none.
    pub(crate) fn has_met_all(&self) -> bool {
        self.table.get().is_some() || self.failure.get().is_some()
    }

    pub(crate) fn member(&self, node: NodeId) -> Option<&Member> {
        self.table().iter().find(|member| member.node == node)
    }

    pub(crate) fn news(&self) -> u64 {
        self.news.load(SeqCst)
    }

    /// Has those who have seen all news look again.
    pub(crate) fn note_news(&self) {
        self.news.fetch_add(1, SeqCst);
    }

    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Puts something aside for the engine.
    pub(crate) fn tell(&self, told: Told) {
        let mut queue = self.told.lock();
        queue.push(told);
        self.has_told.store(true, Release);
    }

    /// Lets the engine handle what this thread has put aside, unless somebody else is about to.
    pub(crate) fn steer(&self) {
        if self.has_told.load(Acquire)
            && let Some(this) = self.this()
        {
            this.steer_this();
        }
    }

    fn steer_this(self: &Arc<Self>) {
        while !self.told.lock().is_empty() {
            let Some(mut state) = self.state.try_lock() else { return };
            let after = self.turn(&mut state);
            drop(state);
            self.finish(after);
        }
    }

    /// Does something with the engine, and what comes of it.
    pub(crate) fn with_engine<T>(&self, act: impl FnOnce(&mut State, Time) -> T) -> T {
        let mut state = self.state.lock();
        let result = act(&mut state, self.clock.now());
        let this = self.this();
        let after = this.as_ref().map(|this| this.turn(&mut state));
        drop(state);
        if let Some((this, after)) = this.zip(after) {
            this.finish(after);
            // What came while the engine was taken: whoever brought it has left it to us.
            this.steer_this();
        }
        result
    }

    /// One look at the engine, without a turn. The caller may be in the middle of something, so what came while the
    /// engine was taken is left to the mesh's own thread.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Engine) -> T) -> T {
        let seen = look(&self.state.lock().engine);
        if !self.told.lock().is_empty() {
            self.ticker.ring_at(self.clock.now());
        }
        seen
    }

    /// Begins an operation of the engine; `ending` is called once, with no lock held.
    pub(crate) fn begin(
        &self,
        event: impl FnOnce(OperationId, Time) -> Event,
        ending: impl FnOnce(Result<Outcome>) + Send + 'static,
    ) -> OperationId {
        self.with_engine(|state, now| {
            state.next_operation += 1;
            let operation = OperationId(state.next_operation);
            state.operations.insert(operation, Box::new(ending));
            state.engine.handle(now, event(operation, now));
            operation
        })
    }

    fn turn(self: &Arc<Self>, state: &mut State) -> Afterwards {
        let mut after = Afterwards::default();
        while let Some(told) = self.next_told() {
            if let Some(told) = self.sort_out(told, &mut after) {
                self.hear(state, told);
            }
        }
        let released = std::mem::take(&mut *self.released.lock());
        for group in released {
            state.engine.release(group);
        }
        let now = self.clock.now();
        if state.timer.is_none_or(|timer| now >= timer) {
            // A link that stands is watched by its own signs of life; the engine need not ask again.
            for peer in self.routes.linked() {
                state.engine.handle(now, Event::Alive { peer });
            }
        }
        self.end_partings(state, now);
        self.find_ended(state, now);
        // An engine that has ended wants no more of them.
        state.timer = None;
        for effect in state.engine.poll(now) {
            self.perform(state, effect, &mut after);
        }
        after.forgotten = state.engine.take_forgotten();
        self.ticker.engine_at(state.parting.iter().map(|parting| parting.until).chain(state.timer).min());
        self.news.fetch_add(1, SeqCst);
        after
    }

    fn next_told(&self) -> Option<Told> {
        let mut queue = self.told.lock();
        let told = queue.pop();
        self.has_told.store(!queue.is_empty(), Release);
        told
    }

    /// Tells the engine which of its suspects are dead for sure.
    fn find_ended(&self, state: &mut State, now: Time) {
        let suspects = state.engine.suspects_that_may_live();
        for peer in suspects.into_iter().filter(|peer| !state.lived_on.contains(peer)).collect::<Vec<_>>() {
            let process = self.member(peer).map(|member| member.introduction.process.as_str());
            if process.is_some_and(|process| ended::has_ended(&self.introduced.introduction.process, process)) {
                state.engine.handle(now, Event::Ended { peer });
            }
        }
    }

    /// Who has closed its last link in order and has not said anywhere that it leaves is lost after all.
    fn end_partings(&self, state: &mut State, now: Time) {
        let State { engine, parting, .. } = state;
        let is_greeting = self.node.is_greeting();
        parting.retain_mut(|Parting { node, until, reason }| {
            if now < *until {
                return true;
            }
            if is_greeting {
                // The link on which it says so may be the one that is being made.
                *until = now.after(HANDSHAKE_LOOK);
                return true;
            }
            if self.routes.get(*node).is_none() {
                engine.handle(now, Event::LinkLost { peer: *node, reason: reason.clone() });
            }
            false
        });
    }

    /// Takes out what is about attached nodes. The engine hears of the rest.
    fn sort_out(&self, told: Told, after: &mut Afterwards) -> Option<Told> {
        let expel = |node, reason: Error| self.attached.link_of(node).map(|link| (link, reason));
        match told {
            Told::Made { link, node } if self.attached.is_foreign(node, link) => {
                let what = "it is attached to this node over another link";
                after.expelled.push((link, Error::new(ErrorKind::Protocol, what)));
            }
            Told::Ended { link, node, .. }
                if self.attached.speaks(node, link).is_some() && planted::strikes(Bug::GuestStays) => {}
            Told::Ended { link, node, reason } if self.attached.speaks(node, link).is_some() => {
                self.routes.ended(node, link);
                after.detached.push((node, link, reason));
            }
            Told::Word { from, .. } if self.attached.has(from) => {
                let what = "it has sent a word of a member, and is none of this mesh";
                after.expelled.extend(expel(from, Error::new(ErrorKind::Protocol, what)));
            }
            Told::Unreachable { node, reason } if self.attached.has(node) => {
                after.expelled.extend(expel(node, reason));
            }
            told => return Some(told),
        }
        None
    }

    fn hear(self: &Arc<Self>, state: &mut State, told: Told) {
        let now = self.clock.now();
        let State { engine, parting, lived_on, dropped, .. } = state;
        match told {
            Told::Made { link, node } => {
                dropped.remove(&node);
                self.link_made(node, link);
            }
            Told::Reached(node) => engine.handle(now, Event::Reached(node)),
            Told::Turned(what) => engine.handle(now, Event::Turned { what }),
            Told::Word { from, word } => match from_control::<Message>(&word) {
                Ok(message) => {
                    if matches!(message, Message::Failed { .. }) {
                        self.note_loss(from, false);
                    }
                    engine.handle(now, Event::Received { from, message });
                }
                Err(error) => engine.handle(now, Event::LinkLost { peer: from, reason: error.what().to_owned() }),
            },
            Told::Short(error) => engine.handle(now, Event::FellShort { error }),
            Told::Ended { reason, .. } | Told::Unreachable { reason, .. } if reason.is_shortage() => {
                engine.handle(now, Event::FellShort { error: reason });
            }
            // A node that stops ends its links itself, which says nothing of those at their other ends.
            Told::Ended { link, node, .. } if self.stopping.load(SeqCst) => drop(self.routes.ended(node, link)),
            Told::Unreachable { .. } if self.stopping.load(SeqCst) => {}
            Told::Ended { .. } if planted::strikes(Bug::EndUnheard) => {}
            Told::Ended { link, node, reason } => {
                let was_last = self.routes.ended(node, link) && !self.routes.is_making(node);
                if was_dropped(&reason) {
                    dropped.insert(node);
                } else if self.member(node).is_some() && !dropped.contains(&node) {
                    lived_on.insert(node);
                }
                let in_order = was_closed_in_order(&reason);
                if !was_last && in_order {
                    // While another link stands the node lives, and its last words may come over that one; a link
                    // that is being made tells what has become of the node. A link that broke is another matter: what
                    // was under way on it is lost, and whoever waits for that would wait for ever. A node that ends
                    // breaks none, for it closes in order those too whose making it has not seen the end of.
                    return;
                }
                let what = reason.what().to_owned();
                if in_order && self.table.get().is_some() {
                    // The news of its leave may be on a link that it has made and that is not known here yet.
                    parting.push(Parting { node, until: now.after(LAST_WORDS), reason: what });
                } else {
                    engine.handle(now, loss(node, &reason));
                }
            }
            Told::Unreachable { node, reason } => {
                // Of one that does not listen any more this is the kind.
                if !reason.kind().is_loss() {
                    lived_on.insert(node);
                }
                engine.handle(now, loss(node, &reason));
            }
        }
    }

    fn perform(self: &Arc<Self>, state: &mut State, effect: Effect, after: &mut Afterwards) {
        match effect {
            Effect::Send { to, message } => {
                // Only a table of thousands of members could be too long, and their number is limited.
                if let Ok(bytes) = to_control(&message) {
                    let number = if self.follows_data(&message) { ENGINE_IN_ORDER } else { ENGINE };
                    self.say(to, EngineWord { number, bytes });
                }
            }
            Effect::Farewell { nodes, message } => {
                if let Ok(bytes) = to_control(&message) {
                    // The links are about to end, and what was sent before them is to come first.
                    let word = EngineWord { number: ENGINE_IN_ORDER, bytes };
                    let linked = self.routes.linked().into_iter().filter(|node| nodes.contains(node));
                    linked.for_each(|to| self.say(to, word.clone()));
                }
            }
            Effect::Joined => {
                let _ = self.table.set(state.engine.table().to_vec());
                self.references.joined(self.table().iter().map(|member| member.node));
                if let Some(me) = self.member(self.me) {
                    self.node.known_as(&me.introduction.name);
                }
                // Somebody has said on which host this node is: then it can be reached all the same.
                let checked = if self.config.host_id.is_some() { Ok(()) } else { hosts::check(self.table()) };
                if let Err(error) = &checked {
                    let _ = self.failure.set(error.clone());
                }
                after.joined = state.joining.take().map(|joining| (joining, checked));
            }
            Effect::Complete { operation, outcome } => {
                after.endings.extend(state.operations.remove(&operation).map(|ending| (ending, outcome)));
            }
            Effect::CutLink { node } => after.cut.push(node),
            Effect::DeclareDead { node, reason } => after.dead.push((node, reason)),
            Effect::Departed { node } => after.departed.push(node),
            Effect::Failed(error) => {
                let _ = self.failure.set(error.clone());
                after.joined = state.joining.take().map(|joining| (joining, Err(error.clone())));
                after.failed = Some(error);
            }
            Effect::SetTimer(at) => state.timer = Some(at),
        }
    }

    /// Whether a word stays behind what this node has sent before.
    fn follows_data(&self, message: &Message) -> bool {
        if planted::strikes(Bug::LastWordEarly) {
            return false;
        }
        let is_of_finish = |group| self.finish_group.get() == Some(group);
        message.follows_data() || matches!(message, Message::Enter { group, .. } if is_of_finish(group))
    }

    /// What may call foreign code, or closes links.
    fn finish(self: &Arc<Self>, after: Afterwards) {
        after.dead.iter().for_each(|(node, _)| self.note_loss(*node, false));
        after.departed.iter().for_each(|node| self.note_loss(*node, true));
        let is_somebody_gone = !after.departed.is_empty() || !after.dead.is_empty() || after.failed.is_some();
        if is_somebody_gone || !after.cut.is_empty() {
            self.routes.note_change();
        }
        for node in after.cut {
            let error = self.death_of(node).unwrap_or_else(|| Error::new(ErrorKind::PeerLost, "it looks dead"));
            for link in self.routes.all(node) {
                let _ = self.node.close_because(link, &self.about(error.clone(), node));
            }
        }
        for (node, reason) in after.dead {
            let has_said_so = [FAILED, GIVEN_UP].iter().any(|beginning| reason.starts_with(beginning));
            let error = self.about(Error::new(ErrorKind::PeerLost, reason), node);
            for link in self.routes.all(node) {
                // A member that has said that it failed ends its links itself, and its process may have more to do.
                let _ =
                    if has_said_so { self.node.close_because(link, &error) } else { self.node.abandon(link, &error) };
            }
            self.references.lost(node);
            self.calls.member_lost(self.member(node), &error);
        }
        for (link, error) in after.expelled {
            let _ = self.node.close_because(link, &error);
        }
        for (node, link, reason) in after.detached {
            self.detach(node, link, &reason);
        }
        // Their links end by themselves, when they have said all.
        after.departed.iter().for_each(|node| self.references.lost(*node));
        self.have_left(after.departed);
        if let Some(error) = after.failed {
            // Whoever tries to reach this node learns that it is no member any more, instead of making a link to it.
            self.node.stop_listening();
            self.say_farewell(Some(error.what()));
            self.attached.close_door(&error);
            for link in self.node.links() {
                let _ = self.node.close_because(link, &error);
            }
            self.calls.fail_all(&error);
            self.references.end();
        }
        self.tend_references();
        if is_somebody_gone {
            self.tell_departures();
        }
        for (ending, outcome) in after.endings {
            outcome.as_ref().err().into_iter().for_each(|error| self.note_error(error));
            ending(outcome);
        }
        drop(after.forgotten);
        self.tell_group_news();
        if let Some((joining, outcome)) = after.joined {
            joining.complete(outcome);
            // Those who have joined a moment before may have called already.
            self.serve();
        }
        if self.choked.swap(false, SeqCst) {
            self.node.resume();
        }
    }

    /// Gives back what groups without handles keep, before this node leaves.
    pub(crate) fn empty_idle_groups(&self) {
        // Handles that were dropped just now are counted by the first of these turns.
        self.with_engine(|_, _| ());
        self.with_engine(|state, _| state.engine.empty_idle_groups());
    }

    /// This node is no member any more: its groups are broken, if nothing has broken them before. Operations that
    /// wait for no link learn of it here alone.
    pub(crate) fn end_groups(&self, reason: Error) {
        let _ = self.failure.set(reason);
        self.news.fetch_add(1, SeqCst);
        let records = self.state.lock().engine.end_records();
        self.tell_group_news();
        // Services may hold what holds this node.
        drop(records);
    }

    /// Why `node` cannot be reached any more, if that is known.
    pub(crate) fn death_of(&self, node: NodeId) -> Option<Error> {
        let attached = || self.attached.loss(node);
        self.look(|engine| engine.why_lost(node)).or_else(attached).or_else(|| self.failure.get().cloned())
    }

    /// The error, about that member.
    pub(crate) fn about(&self, error: Error, node: NodeId) -> Error {
        error.peer(self.peer_of(node).unwrap_or_else(|| Peer::named(format!("node {node}")).node(node)))
    }

    /// The member or attached node of that identity, as errors name it.
    pub(crate) fn peer_of(&self, node: NodeId) -> Option<Peer> {
        self.member(node).map(Member::peer).or_else(|| self.attached.peer(node))
    }

    /// An error of a link, with all that the mesh knows about its peer.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let about = error.about().and_then(|peer| peer.node);
        if let Some(error) = about.and_then(|node| self.attached.meaning(node, &error)) {
            return error;
        }
        let member = about.and_then(|node| self.member(node));
        let error = match member {
            Some(member) => error.peer(member.peer()),
            None => error,
        };
        // The end of a link alone may be that of a peer that leaves in order.
        if !was_closed_in_order(&error) {
            self.note_error(&error);
        }
        error
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.look(Engine::epoch)
    }

    /// A point in time `span` from now, as the engine counts.
    pub(crate) fn deadline(&self, span: Duration) -> Time {
        self.clock.now().after(span)
    }

    pub(crate) fn node_of(&self, peer: &Peer) -> NodeId {
        // Every handshake carries it; an in-process link of another kind of node does not.
        peer.node.unwrap_or_default()
    }
}

/// Event that the end of a link is, or that none could be made: what it says about the node there.
fn loss(peer: NodeId, reason: &Error) -> Event {
    let what = reason.what().to_owned();
    match reason.kind() {
        ErrorKind::DeclaredDead => Event::HeldDead { peer, reason: what },
        _ => Event::LinkLost { peer, reason: what },
    }
}

impl Shared {
    /// Takes the messages of this mesh's endpoint numbers from its node, from now on.
    pub(crate) fn register(self: &Arc<Self>) {
        let endpoint = Arc::clone(self) as Arc<dyn Endpoint>;
        for number in ALL {
            self.node.register(number, &endpoint);
        }
    }
}

impl Endpoint for Shared {
    fn admit(&self, link: LinkId, arrival: &Arrival<'_>) -> Admission {
        match arrival.envelope.endpoint {
            REQUESTS | ANSWERS => self.calls.admit(link, arrival, self.table().len()),
            _ if self.told.lock().has_room(arrival.control_bytes) => Admission::Land(Ground::default()),
            _ => {
                self.choked.store(true, SeqCst);
                // Who has made room meanwhile has not seen the mark.
                match self.told.lock().has_room(arrival.control_bytes) {
                    true => Admission::Land(Ground::default()),
                    false => Admission::Pause,
                }
            }
        }
    }

    fn take_from(&self, message: Arrived, peer: &Peer) {
        let from = self.node_of(peer);
        match message.envelope.endpoint {
            ENGINE | ENGINE_IN_ORDER | REFERENCES if self.attached.is_foreign(from, message.source) => {}
            ENGINE | ENGINE_IN_ORDER => self.tell(Told::Word { from, word: message.control }),
            REFERENCES => {
                if let Err(reason) = self.hear_words(from, &message.control) {
                    self.tell(Told::Unreachable { node: from, reason });
                }
            }
            CALLS => match leaving_word(&message.envelope, &message.control) {
                Some(farewell) => self.attached.says_farewell(from, message.source, farewell),
                None => self.calls.take_word(message.source, &message.envelope),
            },
            ROOM => self.calls.take_room(message.source, &message.envelope),
            _ => {
                let link = message.source;
                let may_bring = |owner| self.may_pass(from, self.me, owner) && !self.attached.is_foreign(from, link);
                let brought = self.references.brought(from, &message, may_bring);
                let window = || self.attached.speaks(from, link).map(|_| Size::of_guests());
                self.calls.take_message(from, message, brought, window);
            }
        }
    }

    fn link_made(&self, link: LinkId, peer: &Peer) {
        self.tell(Told::Made { link, node: self.node_of(peer) });
    }

    fn link_ended(&self, link: LinkId, peer: &Peer, reason: &Error) {
        let node = self.node_of(peer);
        if !was_closed_in_order(reason) {
            self.note_loss(node, false);
        }
        self.calls.link_ended(link, reason);
        self.has_said_all(node);
        self.tell(Told::Ended { link, node, reason: reason.clone() });
    }

    fn fell_short(&self, reason: &Error) {
        self.tell(Told::Short(reason.clone()));
    }

    fn attend(&self) {
        self.steer();
        self.tend_references();
        self.serve();
        self.runtime.run_ready();
    }

    fn bounds_its_messages(&self, number: u8) -> bool {
        // Words repeat what has not got through, and whoever answers has bounded what it was asked before.
        number != REQUESTS
    }

    fn is_urgent(&self, number: u8) -> bool {
        endpoints::is_urgent(number)
    }
}
