//! The mesh's core: a state machine without I/O, threads or clocks.
//!
//! A driver tells an [`Engine`] what happened ([`Engine::handle`]) and then does what it asks ([`Engine::poll`]).
//! Messages between two engines arrive once and in order or not at all; a link that ends is an [`Event::LinkLost`].
//! Nothing is assumed about time, except that liveness comes back when the network does.
//!
//! # Rendezvous
//!
//! Every node sends `Introduce` to the coordinator and repeats it with each beat. The coordinator answers `Waiting`
//! (who is missing), `Refuse`, or, once all are there, `Welcome` with the table. It alone makes the table, once,
//! from what it was told, so everybody begins [`FIRST_EPOCH`] with the same members. It names those who have no name.
//! If it dies before all have the table, whoever proposes to go on without it passes the table on to its voters.
//! A node that was told to expect other numbers belongs to another mesh: it is refused, and so is everybody else.
//!
//! # Suspicion
//!
//! The acting coordinator asks all members for signs of life, all ask it, and both sides of a pending barrier ask
//! each other (`Beat` and its answer). Silence for the liveness timeout, or a lost link, makes a node *suspect*
//! another: it closes the link, so that the other learns it too, ignores what still comes from there but says so to
//! one that has made a new link, breaks the groups that both are in, and sends `Accuse` to the first living member it
//! does not suspect. Whoever is that to itself ends the epoch.
//!
//! A node that lacks descriptors, threads or memory cannot tell a peer that it cannot reach from one that is dead, so
//! it suspects nobody for that: it accuses itself, with the reason, to all that it has links to, and fails. Who hears
//! that suspects it for this reason.
//!
//! A node that was stopped and is suspected for that takes the blame where the others can do without it: see `away`.
//!
//! Who wants to know earlier who is silent asks (`Ask`), through the coordinator or directly, and counts those who give
//! no `Answer` in the time that it chooses. Nobody is suspected for that.
//!
//! # Agreement
//!
//! By induction all who are in epoch *e* know the same members M(*e*). The deaths and leaves that end *e* are decided
//! by one run of single-decree Paxos among M(*e*):
//!
//! - `Prepare` and `Promise` carry *e* and a ballot, which names its proposer, so no two proposers share one. Round 0
//!   belongs to the first of M(*e*), which uses it once; nothing can have been accepted before it, so it needs no
//!   promises.
//! - `Accept` and `Accepted` carry *e*, the ballot and the deaths, of which a leave is one that was asked for. A member
//!   rejects ballots below the one it promised.
//! - A value is decided when a quorum accepted it: more than half of M(*e*), or exactly half with its first member.
//!   Any two quorums share a member, and a later proposer takes over the value of the highest ballot that its quorum
//!   accepted; so every later ballot carries the value decided, and at most one is decided for each *e*.
//! - Where too many have died for that, all members that live decide: see below.
//! - `Commit` carries *e*+1 and all deaths so far, and is sent only for a decision. Adopting it therefore gives the
//!   same M(*e*+1) to everybody, from whomever and however late it comes, and also to a node that missed epochs
//!   between. One that is not newer than what a node knows is ignored: this check keeps epochs from running
//!   backwards.
//!
//! Every message carries its sender's epoch. One from an older epoch is answered with `Commit`, one from a newer
//! epoch with a `Beat`, which asks for it; so a lost `Commit` is made good by the next beat, and a node that was
//! declared dead while it was silent learns it from the first answer it gets. Votes count only within their own
//! epoch.
//!
//! # Leaves
//!
//! A member that wants to leave sends `Leave` to the acting coordinator, with each beat and at once when there is
//! another one. Wishes are never withdrawn, so they are worth the same in every epoch, and `Commit` hands those that
//! are open to the next coordinator: when everybody leaves, it takes a few decisions and no beat.
//!
//! A wish changes no quorum. Until it has a `Commit` that takes it out, a leaver is one of M(*e*) that votes, suspects
//! and is suspected, and afterwards it votes no more. To the decision on *e* it is then like an acceptor that has
//! crashed: it never answers wrongly, and a value that it helped to decide is found in every quorum without it. The
//! decision on *e*+1 does not count it. So safety asks nothing of when it goes. That the rest is not left without a
//! quorum of M(*e*) does: a leaver goes only when a quorum has accepted that it does, and on its way it sends the
//! `Commit` on every link that it has, on which it comes before the link's end, and to the first two of M(*e*+1),
//! which tell whoever asks. A node therefore hears of a leave before it can see it, unless it sees it on a link that
//! it tries to make to the leaver; then it suspects until its coordinator answers.
//!
//! A leaver whose wish has led to nothing within the patience for suspicions, or that cannot reach a quorum, fails like
//! any member. One that is suspected before the decision is proposed is dead instead; it fails when it learns that.
//!
//! # Ends
//!
//! A node that suspects so many that the rest is no quorum fails, and so does one whose suspicion has not led to a
//! new epoch in five timeouts; every suspicion is therefore followed by a new epoch or by a failure. Of two sides
//! of a partition at most one holds a quorum of M(*e*); the other one fails and never begins *e*+1.
//!
//! # Ended processes
//!
//! When more than half of M(*e*) die within one epoch, no quorum is left, although nobody may be cut off: a parent with
//! workers that are all killed at once, or the few who stay when most have left and the coordinator dies just then.
//! From a member that nothing is heard of nobody can tell whether it is such a one. But the system can say that the
//! process of a member has *ended* ([`Event::Ended`]; for processes of its own host, see `ended` in this crate), and
//! that is another matter than silence: an ended process decides nothing any more, and goes on nowhere.
//!
//! So a set of members is a quorum as well if it is all of M(*e*) but D, a set of members whose processes have ended.
//! `Prepare` and `Accept` carry D, and a member that answers them *renounces* D: it ignores for ever what comes from
//! there, and what it accepts or promises was so when D was dead. Let a quorum Q = M(*e*) - D have answered, and let
//! some other quorum R share no member with it. Then R is a part of D: its answers were given before its members ended,
//! by members that Q has renounced, and whoever may have learned what R decided is in D too, for all the others are in
//! Q, and were in *e* when they answered. Nobody who lives learns of R's decision any more, nor of what followed from
//! it; it is as if it had never been made. If R shares a member with Q, that member keeps them to one value as always.
//! Only one side of a partition can be such a quorum: neither is while any member of the other side lives.
//!
//! That covers what D has decided, but a member of Q may have been taken out by it: members that held it for dead went
//! on without it, did their work and ended in order, and then it must not go on from where it was. Whoever takes a
//! member out has suspected it, and so has cut its own link to it first. So the end of a process counts only for a
//! node that has seen its link to it break by that end, or has no link to it; not after a silence, for silence has two
//! sides, and not for a node that was itself stopped for half of the liveness timeout. A member that has said in this
//! very epoch that it failed has ended as well, wherever it is.
//!
//! A proposal that counts on D names it from its first message on; when D grows, a new one begins. Where a majority
//! is in sight D is empty, and nothing is renounced.
//!
//! # Barriers
//!
//! A member sends `Enter` (epoch, group, sequence) to the group's first member and repeats it with each beat. The
//! first member counts distinct members and sends `Release` when all have entered, so whoever passes was right. A
//! member that suspects, gives up or passes its deadline breaks the group for itself: it never enters again, so no
//! later barrier can be released. It says `Broken` to the first member, which says so to all; one whose deadline has
//! passed waits for that, for half a second at most, because the first member knows who is missing. If that message is
//! lost, one of both ends suspects the other, one of them dies, and the death breaks the group for everybody. A
//! death or a leave is all it takes: node ids are drawn anew by every process, so a group that lacks a member is broken
//! for ever, and a group of survivors is another group with another id. Groups know no epoch but through their members.
//!
//! # Forgetting
//!
//! A group's numbers are forgotten when no member has a handle to it any more, by all members at once: see `handles`.
//!
//! # Circles
//!
//! Members that wait for each other, each in something that the other does not begin, are found out: see `waits`.

mod agree;
mod ask;
mod awaited;
mod away;
mod faults;
mod group;
mod handles;
mod join;
mod leave;
mod look;
mod member;
mod message;
mod record;
mod waits;
mod watch;

pub use awaited::Lacking;
#[cfg(feature = "planted-faults")]
pub use faults::Faults;
pub use group::group_id;
pub use member::{Expected, Introduction, Member, Role};
pub use message::{Ballot, Death, Effect, Event, FAILED, GIVEN_UP, GroupId, Message, OperationId, Outcome, Steps};
pub use record::GroupRecord;

#[cfg(not(feature = "planted-faults"))]
use faults::Faults;
use group::Pending;
use sheave_base::clock::Time;
use sheave_base::{Epoch, Error, ErrorKind, NodeId, Peer, Result, limits};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The epoch that begins with the table.
pub const FIRST_EPOCH: Epoch = Epoch(1);

/// What an engine asks for, in the order in which it is to be done.
pub type Effects = Vec<Effect>;

/// How often members show that they live, and how long a silence may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// Time between two signs of life.
    pub beat: Duration,
    /// Silence after which a member is suspected.
    pub timeout: Duration,
}

impl Default for Liveness {
    fn default() -> Self {
        Self { beat: limits::LIVENESS_BEAT, timeout: limits::LIVENESS_TIMEOUT }
    }
}

/// What an engine is made from.
#[derive(Clone, Debug)]
pub struct Config {
    /// What this node says about itself.
    pub introduction: Introduction,
    /// How many nodes the mesh has; all must say the same, the coordinator's word counts.
    pub expected: Expected,
    /// Whether this node is the coordinator of the rendezvous: the scheduler, or rank 0.
    pub hosts: bool,
    /// When members are suspected.
    pub liveness: Liveness,
    /// Longest time for the join.
    pub join_timeout: Duration,
}

enum Phase {
    Joining(join::Joining),
    Active,
    /// This node was taken out at its own wish.
    Left,
    Failed(Error),
}

/// One node's view of its mesh.
///
/// ```
/// use sheave_base::{NodeId, clock::Time};
/// use sheave_mesh::engine::{Config, Effect, Engine, Event, Expected, Introduction, Liveness, OperationId, Role};
/// use std::time::Duration;
///
/// let introduction = Introduction {
///     name: "rank-0".into(),
///     role: Role::Rank,
///     wanted_rank: Some(0),
///     host: "here".into(),
///     pid: 1,
///     secret_source: "the user's cookie file".into(),
///     address: "127.0.0.1:7000".into(),
///     process: String::new(),
/// };
/// let (expected, liveness) = (Expected::ranks(1), Liveness::default());
/// let config = Config { introduction, expected, hosts: true, liveness, join_timeout: Duration::from_secs(60) };
/// let mut engine = Engine::new(config, NodeId(7), Time(0));
/// assert!(engine.poll(Time(0)).iter().any(|effect| matches!(effect, Effect::Joined)));
///
/// let world = engine.group("world", &[NodeId(7)])?;
/// engine.handle(Time(1), Event::Barrier { operation: OperationId(1), group: world, deadline: None });
/// let effects = engine.poll(Time(1));
/// assert!(effects.iter().any(|effect| matches!(effect, Effect::Complete { outcome: Ok(_), .. })));
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub struct Engine {
    config: Config,
    faults: Faults,
    me: NodeId,
    now: Time,
    phase: Phase,
    /// All members by rank, those who died or left included.
    table: Vec<Member>,
    epoch: Epoch,
    deaths: Vec<Death>,
    watch: watch::Watch,
    agreement: agree::Agreement,
    away: away::Away,
    groups: BTreeMap<GroupId, group::Group>,
    operations: BTreeMap<OperationId, Pending>,
    /// Groups without handles that lie here for a moment, and since when; oldest first.
    idle: VecDeque<(Time, GroupId)>,
    /// Names what this node says about having dropped a group.
    next_drop: u64,
    forgotten: Vec<Arc<GroupRecord>>,
    /// Who waits in which groups, as they say.
    waits: waits::Waits,
    leaving: leave::Leaving,
    /// Messages of this node to itself.
    loopback: VecDeque<Message>,
    effects: Effects,
}

impl Engine {
    /// An engine that begins to join.
    #[must_use]
    pub fn new(config: Config, me: NodeId, now: Time) -> Self {
        let deadline = now.after(config.join_timeout);
        Self {
            config,
            faults: Faults::none(),
            me,
            now,
            phase: Phase::Joining(join::Joining::new(now, deadline)),
            table: Vec::new(),
            epoch: FIRST_EPOCH,
            deaths: Vec::new(),
            watch: watch::Watch::default(),
            agreement: agree::Agreement::default(),
            away: away::Away::default(),
            groups: BTreeMap::new(),
            operations: BTreeMap::new(),
            idle: VecDeque::new(),
            next_drop: 0,
            forgotten: Vec::new(),
            waits: waits::Waits::default(),
            leaving: leave::Leaving::default(),
            loopback: VecDeque::new(),
            effects: Vec::new(),
        }
    }

    /// Plants bugs.
    #[cfg(feature = "planted-faults")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Takes note of what happened. [`Engine::poll`] says what to do about it.
    pub fn handle(&mut self, now: Time, event: Event) {
        self.now = self.now.max(now);
        self.note_stop();
        match event {
            Event::Reached(coordinator) => self.reached(coordinator),
            Event::Turned { what } => self.turned(&what),
            Event::Received { from, message } => self.receive(from, message),
            Event::Alive { peer } => self.watch_hears(peer),
            Event::FellShort { error } => self.fell_short(error),
            Event::Ended { peer } => self.saw_end(peer),
            Event::LinkLost { peer, .. } | Event::HeldDead { peer, .. } if !self.is_active() => {
                self.link_lost_joining(peer);
            }
            Event::HeldDead { peer, reason } => self.held_dead(peer, &reason),
            Event::LinkLost { peer, reason } => self.link_lost(peer, reason),
            Event::Barrier { operation, group, deadline } => self.begin_barrier(operation, group, deadline),
            Event::Confirm { operation, group } => self.confirm(operation, group),
            Event::Shrink { operation, group } => self.begin_shrink(operation, group),
            Event::Leave { operation } => self.begin_leave(operation),
            Event::Fail { reason } => self.fail_openly(&reason),
            Event::Ask { operation, nodes, until } => self.begin_ask(operation, nodes, until),
            Event::Cancel { operation } => self.cancel(operation),
        }
        self.drain_loopback();
    }

    /// What is to be done by `now`, in order; the last effect says when to poll again.
    pub fn poll(&mut self, now: Time) -> Effects {
        self.now = self.now.max(now);
        self.note_stop();
        if matches!(self.phase, Phase::Joining(_)) {
            self.poll_joining();
        }
        if self.is_active() {
            self.poll_deadlines();
            self.poll_asks();
            self.poll_agreement();
        }
        if self.is_active() {
            self.poll_liveness();
        }
        self.drain_loopback();
        let timer = match &self.phase {
            Phase::Joining(joining) => Some(joining.next_timer()),
            Phase::Active => {
                let others = [self.agreement_timer(), self.deadline_timer(), self.ask_timer()];
                Some(others.into_iter().flatten().fold(self.liveness_timer(), Time::min))
            }
            Phase::Left | Phase::Failed(_) => None,
        };
        self.effects.extend(timer.map(Effect::SetTimer));
        std::mem::take(&mut self.effects)
    }

    /// This node.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// The current epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// All members by rank, those who have died or left included; empty before the join is done.
    #[must_use]
    pub fn table(&self) -> &[Member] {
        &self.table
    }

    /// Who has died or left, in the order in which it was agreed.
    #[must_use]
    pub fn deaths(&self) -> &[Death] {
        &self.deaths
    }

    /// How many members have died; those who left do not count.
    #[must_use]
    pub fn num_dead(&self) -> usize {
        self.deaths.iter().filter(|death| !death.left).count()
    }

    /// The members of the current epoch by rank.
    pub fn living(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.table.iter().map(|member| member.node).filter(|node| self.deaths.iter().all(|death| death.node != *node))
    }

    /// The member of that identity, whatever has become of it.
    #[must_use]
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.table.iter().find(|member| member.node == node)
    }

    /// The coordinator of the current epoch: its first member.
    #[must_use]
    pub fn coordinator(&self) -> Option<NodeId> {
        self.living().next()
    }

    /// What ended this engine, if anything.
    #[must_use]
    pub fn failure(&self) -> Option<&Error> {
        match &self.phase {
            Phase::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the join is done and this node has neither left nor failed.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self.phase, Phase::Active)
    }

    fn check_active(&self) -> Result<()> {
        match &self.phase {
            Phase::Active => Ok(()),
            Phase::Failed(error) => Err(error.clone()),
            Phase::Left => Err(leave::left_error()),
            Phase::Joining(_) => Err(Error::new(ErrorKind::InvalidArgument, "the mesh has not been joined yet")),
        }
    }

    fn check_new(&self, operation: OperationId) -> Result<()> {
        let what = || format!("operation {} is pending already", operation.0);
        let is_pending = self.operations.contains_key(&operation);
        if is_pending { Err(Error::new(ErrorKind::AlreadyExists, what())) } else { Ok(()) }
    }

    /// The member as errors name it.
    fn peer_of(&self, node: NodeId) -> Peer {
        self.member(node).map_or_else(|| Peer::named(format!("node {node}")), Member::peer)
    }

    fn is_living(&self, node: NodeId) -> bool {
        self.living().any(|living| living == node)
    }

    fn send(&mut self, to: NodeId, message: Message) {
        if to == self.me {
            self.loopback.push_back(message);
        } else {
            self.effects.push(Effect::Send { to, message });
        }
    }

    fn drain_loopback(&mut self) {
        while let Some(message) = self.loopback.pop_front() {
            self.receive(self.me, message);
        }
    }

    fn receive(&mut self, from: NodeId, message: Message) {
        match (&self.phase, message) {
            (Phase::Failed(_), _) => {}
            (Phase::Joining(_), message) => self.receive_joining(from, message),
            (Phase::Active, Message::Introduce(introduction, expected)) => {
                self.introduced(from, introduction, expected);
            }
            (Phase::Active, message) if self.member(from).is_some() => self.receive_active(from, message),
            (Phase::Active, _) | (Phase::Left, Message::Commit { .. }) => {}
            (Phase::Left, message) if message.epoch().is_some() && from != self.me && self.member(from).is_some() => {
                self.send(from, self.commit());
            }
            (Phase::Left, _) => {}
        }
    }

    fn receive_active(&mut self, from: NodeId, message: Message) {
        // What a member says unasked is no sign that it hears: of two that are cut off in one direction, one would wait
        // for ever for an answer.
        if !matches!(message, Message::Waits { .. }) {
            self.watch.heard(from, self.now);
        }
        let Some(epoch) = message.epoch() else { return };
        if self.watch.has_renounced(from) {
            return;
        }
        let is_commit = matches!(message, Message::Commit { .. });
        if epoch < self.epoch && !is_commit {
            self.send(from, self.commit());
        } else if epoch > self.epoch && !is_commit && !matches!(message, Message::Beat { .. }) {
            self.send(from, Message::Beat { epoch: self.epoch, answer: false });
        }
        if self.watch.suspects(from) && !is_commit {
            return self.tell_suspect(from);
        }
        let is_current = epoch == self.epoch;
        match message {
            Message::Commit { epoch, deaths, leaving } => {
                let is_last = deaths.iter().any(|death| death.node == from);
                self.adopt(epoch, deaths, &leaving);
                if is_last {
                    self.last_word(from);
                }
            }
            Message::Accuse { suspect, reason, .. } if suspect == from => self.suspect(from, reason),
            Message::Accuse { suspect, reason, .. } if suspect == self.me => self.held_dead(from, &reason),
            Message::Leave { .. } => self.asked_to_leave(from),
            Message::Beat { answer: false, .. } => self.send(from, Message::Beat { epoch: self.epoch, answer: true }),
            Message::Enter { group, sequence, .. } => self.entered(from, group, sequence),
            Message::Release { group, through, .. } => self.released(from, group, through),
            Message::Broken { group, by_death, about, error, failed_from, .. } => {
                // After a leave barriers may still be released, until the first member says that they are not.
                let first = self.nodes_of(group).map(<[NodeId]>::first);
                // Who has not made the group may be that first member.
                let is_told = first.is_none_or(|first| first == Some(&from));
                if !by_death || is_told || !self.has_left_in_order(about) {
                    // The number, where there is one, goes on with the news: without it earlier operations would end.
                    self.told_broken(from, group, (by_death, about), error, failed_from.is_none());
                }
                self.failed_from(group, failed_from);
            }
            Message::Failed { reason, .. } => {
                self.suspect(from, format!("{FAILED}{reason}"));
                if is_current {
                    self.process_ended(from);
                }
            }
            Message::Dropped { group, number, members, .. } => self.dropped(from, group, number, members),
            Message::Hold { group, number, .. } => self.held_again(from, group, number),
            Message::Kept { group, number, .. } => self.kept(from, group, number),
            Message::Forgotten { group, number, .. } => self.forgotten(from, group, number),
            Message::Waits { set, label, steps, .. } => self.waits_somewhere(from, set, &label, steps),
            Message::Ask { asker, number, whom, .. } => self.asked_about(from, asker, number, whom),
            Message::Answer { asker, number, whom, .. } => self.answered(from, asker, number, whom),
            _ if !is_current => {}
            Message::Accuse { suspect, reason, has_ended, .. } => self.accuse(from, suspect, reason, has_ended),
            Message::Away { reason, .. } => self.was_away(from, reason),
            Message::Prepare { ballot, ended, .. } => self.prepare(from, ballot, &ended),
            Message::Promise { ballot, accepted, .. } => self.promise(from, ballot, accepted),
            Message::Accept { ballot, deaths, ended, .. } => self.accept(from, ballot, deaths, &ended),
            Message::Accepted { ballot, .. } => self.accepted(from, ballot),
            Message::Rejected { promised, .. } => self.rejected(promised),
            Message::Introduce(..) | Message::Waiting { .. } | Message::Refuse { .. } | Message::Welcome { .. } => {}
            Message::Beat { answer: true, .. } => {}
        }
    }

    /// Ends this engine: every operation ends with `error`, and so does every later one.
    fn fail(&mut self, error: Error) {
        if matches!(self.phase, Phase::Left | Phase::Failed(_)) {
            return;
        }
        for operation in self.operations.keys().copied().collect::<Vec<_>>() {
            self.end_with(operation, &error);
        }
        self.phase = Phase::Failed(error.clone());
        self.effects.push(Effect::Failed(error));
    }
}
