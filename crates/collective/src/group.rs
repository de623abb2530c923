//! A group as this room sees it: its operations in flight, their numbers, and why it is broken.
//!
//! **Broken.** A group breaks once, with one error: a member died or left (the mesh says so), members disagreed about
//! an operation, a deadline passed, an operation was cancelled, or a link ended. Every later collective fails with it.
//! What is not a death is told to all members through the mesh, which remembers it for those who have not made the
//! group yet; with it goes the number of the first operation that has failed.
//!
//! **In flight.** What becomes of an operation that is in flight when its group breaks is never guessed by time:
//! - After a death it ends at once.
//! - One with a number from the first failed one on ends at once, for some member will not do its part. One before that
//!   goes on: the member that has failed had done its part of it, or fails it too and says so.
//! - A leave alone ends nothing that has begun: the member that has left may have done its part, and then everything
//!   that the others need of it is in their memory or on its way, because a leave is lossless. What waits for a
//!   member's words fails when that member has said all that it ever will ([`State::departure`]); then its number is
//!   told, so that those learn of it who wait for others.
//!
//! **Too late.** A collective that begins when this node knows that a member has left fails, after the moment that the
//! verdict takes, and its number is told like that of any other that fails: others may be in it and wait for this node.
//!
//! **Messages** between two members need those two only. A leave ends none between others, and one that was delivered
//! can be received after its sender has left.
//!
//! **Whose error.** Members that have failed leave, and their links end; so the end of a link is seldom why something
//! failed, and the members agree about what is. A task that has failed for no better reason waits a moment for that
//! verdict.

mod awaited;
mod callers;
pub(crate) mod start;
#[cfg(test)]
mod tests;

use crate::hosts::Hosts;
use crate::hub::Hub;
use crate::operation::digest;
use crate::shared::board::Board;
use crate::shared::setup;
use crate::task::{Awaited, Plan, Steps, Task};
use crate::turns::Turns;
use crate::{exchange, long, mail};
use callers::{Begun, Callers, Driver, Overlap};
use parking_lot::Mutex;
use sheave_base::work::awaited::Awaited as Awaiting;
use sheave_base::work::{Completer, described};
use sheave_base::{Error, ErrorKind, LinkId, Rank, Result, Work};
use sheave_mesh::Group;
use std::collections::BTreeMap;
use std::future::ready;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Operations of one group in flight on one node: as many as a program starts before it waits for some.
const OPERATIONS_MAX: usize = 4096;

/// How long an operation that has failed because a link ended waits for the members to agree why.
const VERDICT_PATIENCE: Duration = Duration::from_millis(300);

/// What sorts of messages a group has: those of its collectives, and what [`mail`] sends.
const COLLECTIVE_SORTS: [u64; 2] = [exchange::SORT, setup::SORT];
const MESSAGE_SORTS: [u64; 4] = [mail::OFFERS, mail::ANSWERS, mail::BYTES, mail::WITHDRAWALS];

/// Keys of messages lie above all sequence numbers.
const MESSAGES: u64 = 1 << 63;

/// What a group goes on with when its handles are dropped and it is made again, until all members have dropped theirs:
/// the mesh keeps it beside the group's numbers.
#[derive(Default)]
pub(crate) struct Lasting {
    /// Set when the ranks have found out whether they share memory; what none could have fails operations.
    board: OnceLock<Option<Arc<Board>>>,
    /// What finds that out.
    setup: Mutex<Option<Work<()>>>,
}

impl Drop for Lasting {
    fn drop(&mut self) {
        // No operation of this node is under way, and others may wait until it says so.
        if let Some(board) = self.board() {
            board.break_up();
        }
    }
}

impl Lasting {
    pub(crate) fn board(&self) -> Option<&Arc<Board>> {
        self.board.get()?.as_ref()
    }
}

pub(crate) struct State {
    pub(crate) group: Group,
    pub(crate) hub: Arc<Hub>,
    lasting: Arc<Lasting>,
    /// The number of the next message task.
    messages: AtomicU64,
    /// Held while an operation gets its number and is noted.
    tasks: Mutex<BTreeMap<u64, Arc<Task>>>,
    broken: OnceLock<Error>,
    /// Of the mesh: what it knew then has been looked at.
    seen_news: AtomicU64,
    /// Operations from this number on have failed here.
    failed_from: AtomicU64,
    /// Why this member has given it up for all.
    given_up: OnceLock<Error>,
    /// It is broken, and all collectives that were in flight have ended.
    is_settled: AtomicBool,
    /// Those who wait until the mesh knows why the group is broken.
    verdicts: Mutex<Vec<Completer<()>>>,
    /// The same of messages.
    has_settled_messages: AtomicBool,
    /// Found out with the first operation that needs to know.
    hosts: Mutex<Option<Option<Arc<Hosts>>>>,
    /// Of operations that are made of others, of groups that this one uses.
    turns: Arc<Turns>,
    links: Vec<OnceLock<LinkId>>,
    callers: Arc<Callers>,
    pub(crate) mail: crate::mail::Mail,
    /// The group that this one was split off.
    parent: OnceLock<Group>,
    me: Weak<Self>,
}

/// What finds out whether the ranks of a group share memory is called so where people look on, but not in errors.
const SET_UP: &str = "set-up";

/// What an operation is called and how long it may take.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) operation: &'static str,
    pub(crate) limit: Option<Duration>,
    pub(crate) is_collective: bool,
    /// The caller sees to the order in which threads begin collectives.
    pub(crate) is_ordered: bool,
    /// Of a message: the other side, if it is one rank, and the tag.
    pub(crate) message: Option<(Option<Rank>, u64)>,
}

impl Terms {
    /// Those of something that is no collective.
    pub(crate) fn aside(operation: &'static str) -> Self {
        Self { operation, limit: None, is_collective: false, is_ordered: true, message: None }
    }
}

/// The number of an operation that is about to begin.
#[derive(Clone, Copy)]
pub(crate) struct Reserved {
    /// Of a collective: that this thread begins it.
    pub(crate) begun: Begun,
    pub(crate) number: u64,
    /// Whether no other collective is in flight.
    pub(crate) is_alone: bool,
    /// Whether it fails because a member has left, unless the members turn out to have disagreed before.
    pub(crate) is_too_late: bool,
}

impl State {
    pub(crate) fn new(hub: Arc<Hub>, group: Group) -> Arc<Self> {
        let lasting = group.record().keep();
        let links = (0..group.size()).map(|_| OnceLock::new()).collect();
        let mail = mail::Mail::new(digest([group.id().0, mail::OFFERS, u64::from(mail::ANYBODY)]));
        let state = Arc::new_cyclic(|me: &Weak<Self>| Self {
            group,
            hub,
            lasting,
            messages: AtomicU64::new(MESSAGES),
            tasks: Mutex::default(),
            broken: OnceLock::new(),
            seen_news: AtomicU64::new(u64::MAX),
            failed_from: AtomicU64::new(u64::MAX),
            given_up: OnceLock::new(),
            is_settled: AtomicBool::new(false),
            verdicts: Mutex::default(),
            has_settled_messages: AtomicBool::new(false),
            hosts: Mutex::default(),
            turns: Arc::default(),
            callers: Arc::default(),
            links,
            mail,
            parent: OnceLock::new(),
            me: Weak::clone(me),
        });
        state.look();
        state
    }

    pub(crate) fn size(&self) -> u32 {
        self.links.len() as u32
    }

    /// Keeps the group that this one was split off from being forgotten.
    pub(crate) fn keep_parent(&self, parent: &Group) {
        let _ = self.parent.set(parent.clone());
    }

    /// What messages of `sender` are matched by: its group, its rank and what sort they are.
    pub(crate) fn context(&self, sender: u32, sort: u64) -> u64 {
        digest([self.group.id().0, sort, u64::from(sender)])
    }

    /// The link to a member.
    pub(crate) async fn link(&self, rank: u32) -> Result<LinkId> {
        let known = self.links.get(rank as usize);
        if let Some(link) = known.and_then(OnceLock::get) {
            return Ok(*link);
        }
        let link = self.group.link_to(Rank(rank)).await?;
        Ok(*known.map_or(&link, |known| known.get_or_init(|| link)))
    }

    /// The link to a member, if it was asked for before.
    pub(crate) fn known_link(&self, rank: u32) -> Option<LinkId> {
        self.links.get(rank as usize)?.get().copied()
    }

    pub(crate) fn broken(&self) -> Option<&Error> {
        self.broken.get()
    }

    /// The mesh may have news. What they say of this group is known here before they count as seen: whoever finds them
    /// seen, and knows from the mesh that the group is broken, may begin nothing any more.
    pub(crate) fn look(self: &Arc<Self>) {
        let news = self.group.news();
        if self.seen_news.load(SeqCst) == news {
            return;
        }
        let told = if self.broken.get().is_none() { self.group.broken() } else { None };
        let breaks = told.is_some_and(|error| self.broken.set(error).is_ok());
        let are_new = self.seen_news.swap(news, SeqCst) != news;
        if breaks {
            self.break_up();
        } else if are_new && self.broken.get().is_some() {
            self.end_what_is_hopeless();
        }
        self.tell_verdict();
    }

    /// From which number on operations of a broken group can come to no end.
    fn hopeless_from(&self, error: &Error) -> u64 {
        let failed_from = self.group.operations_failed_from().unwrap_or(u64::MAX).min(self.failed_from.load(SeqCst));
        if self.was_only_left(error) || (failed_from < u64::MAX && !self.is_death(error) && !self.group.is_over()) {
            failed_from
        } else {
            0
        }
    }

    /// Ends the operations in flight that can come to no end, and has the others look whom they wait for.
    fn end_what_is_hopeless(self: &Arc<Self>) {
        let Some(error) = self.verdict() else { return };
        let (from, spares_messages) = (self.hopeless_from(&error), self.was_only_left(&error));
        let is_death = self.is_death(&error);
        let tasks: Vec<_> = self.tasks.lock().values().cloned().collect();
        for task in tasks {
            let is_hopeless = match task.is_collective {
                true => task.key >= from || task.awaited.has_given_up(),
                false if task.operation == SET_UP => from == 0,
                false => !spares_messages,
            };
            match is_hopeless {
                true if spares_messages => self.end_with_verdict(&task, error.clone()),
                true if is_death => task.doom(error.clone()),
                true => task.fail(error.clone()),
                false => task.wake(),
            }
        }
    }

    /// Why a member will send nothing more, once everything that it has sent is here: it has left.
    pub(crate) fn departure(&self, rank: u32) -> Option<Error> {
        self.broken.get()?;
        if self.group.has_said_all(Rank(rank)) { self.group.why_lost(Rank(rank)) } else { None }
    }

    /// Has the tasks of a broken group look whom they wait for: something new waits for them.
    pub(crate) fn look_for_departures(self: &Arc<Self>) {
        if self.broken.get().is_some() {
            self.end_what_is_hopeless();
            self.hub.run_ready();
        }
    }

    /// The members that will send nothing more.
    pub(crate) fn departures(&self) -> Vec<u32> {
        if self.broken.get().is_none() {
            return Vec::new();
        }
        (0..self.size()).filter(|rank| self.group.has_said_all(Rank(*rank))).collect()
    }

    /// The members that have left, though they may have more to say.
    pub(crate) fn leavers(&self) -> Vec<u32> {
        if self.broken.get().is_none() {
            return Vec::new();
        }
        (0..self.size()).filter(|rank| self.group.has_left(Rank(*rank))).collect()
    }

    /// Whether the group is broken because members have left in order, and for no other reason.
    fn was_only_left(&self, error: &Error) -> bool {
        error.kind().is_loss() && self.group.was_left() && !self.group.is_over()
    }

    /// Whether a member has died, and not only left.
    fn is_death(&self, error: &Error) -> bool {
        error.kind().is_loss() && !self.group.was_left()
    }

    /// What the steps of a task come to. What failed because a link has ended waits for the verdict of the members.
    /// The steps hold the group for as long as they need it.
    async fn judged(state: Weak<Self>, key: u64, steps: Steps) -> Result<Rank> {
        let outcome = steps.await;
        let Err(error) = outcome else { return outcome };
        let Some(this) = state.upgrade() else { return Err(error) };
        let task = this.tasks.lock().get(&key).cloned();
        let Some(task) = task.filter(|_| is_echo(&error)) else { return Err(error) };
        this.look();
        if this.verdict().is_some_and(|known| !this.was_only_left(&known)) {
            return Err(error);
        }
        // The group is kept until this task is ended.
        this.end_with_verdict(&task, error);
        std::future::pending().await
    }

    /// Ends a task that has failed because links ended or a member left. Members that leave may have disagreed before,
    /// and the news of that come another way; so the verdict gets a moment.
    fn end_with_verdict(self: &Arc<Self>, task: &Arc<Task>, own: Error) {
        if task.awaited.give_up() {
            return;
        }
        let (state, error) = (Arc::downgrade(self), own.clone());
        let act = move |task: &Arc<Task>| {
            if let Some(state) = state.upgrade() {
                task.fail(error);
                state.hub.run_ready();
            }
        };
        if self.hub.after(VERDICT_PATIENCE, task, act).is_err() {
            task.fail(own);
        }
    }

    /// Begins an operation: gives it its number and runs it as far as it goes.
    pub(crate) fn begin<T: Send + 'static>(
        self: &Arc<Self>,
        terms: Terms,
        result: impl FnOnce(Rank) -> T + Send + 'static,
        steps: impl FnOnce(u64, Arc<Awaited>) -> Steps,
    ) -> Work<T> {
        match self.reserve(&terms, 1) {
            Ok(reserved) => self.begin_reserved(terms, reserved, result, |awaited| steps(reserved.number, awaited)),
            Err(error) => Work::ready(terms.operation, Err(error)),
        }
    }

    /// The number of an operation that begins now, and perhaps of its parts.
    pub(crate) fn reserve(self: &Arc<Self>, terms: &Terms, count: u64) -> Result<Reserved> {
        // The mesh may know what this room has not been told yet, and so may the caller.
        self.look();
        let verdict = self.verdict();
        let was_only_left = verdict.as_ref().is_some_and(|error| self.was_only_left(error));
        if let Some(error) = verdict {
            let has_failed = terms.is_collective && self.group.record().operations() >= self.hopeless_from(&error);
            if !was_only_left || has_failed {
                return Err(self.explained(error, terms.operation, None, Duration::ZERO));
            }
        }
        let tasks = self.tasks.lock();
        if tasks.len() >= OPERATIONS_MAX {
            let what = format!("{OPERATIONS_MAX} operations of group {} are in flight", self.group.label());
            let error = named(Error::new(ErrorKind::LimitExceeded, what), terms.operation);
            return Err(error.hint("wait for some of them before starting more"));
        }
        let is_alone = tasks.first_key_value().is_none_or(|(key, _)| *key >= MESSAGES);
        if !terms.is_collective {
            let number = self.messages.fetch_add(count, SeqCst);
            return Ok(Reserved { number, is_alone, is_too_late: false, begun: Begun::default() });
        }
        let checked = self.callers.check(terms.is_ordered, is_alone, |number| tasks.contains_key(&number));
        if let Err(overlap) = checked {
            drop(tasks);
            return Err(self.disordered(overlap, terms.operation));
        }
        let number = self.group.record().begin_operations(count);
        Ok(Reserved { number, is_alone, is_too_late: was_only_left, begun: self.callers.begin(number) })
    }

    /// Another thread is in a call, and nobody can know which of both comes first: the group ends for all its members.
    #[cold]
    fn disordered(self: &Arc<Self>, overlap: Overlap, operation: &'static str) -> Error {
        self.callers.note_disorder(overlap.number);
        self.failed(overlap.error(self.group.rank(), operation), operation, overlap.number, Duration::ZERO)
    }

    /// As [`State::begin`], with a number that was reserved.
    pub(crate) fn begin_reserved<T: Send + 'static>(
        self: &Arc<Self>,
        terms: Terms,
        reserved: Reserved,
        result: impl FnOnce(Rank) -> T + Send + 'static,
        steps: impl FnOnce(Arc<Awaited>) -> Steps,
    ) -> Work<T> {
        if let Some(error) = self.broken.get().filter(|_| reserved.is_too_late) {
            let error = error.clone();
            return self.begin_steps(terms, reserved.number, result, |_| Box::pin(ready(Err(error))));
        }
        self.begin_steps(terms, reserved.number, result, steps)
    }

    fn begin_steps<T: Send + 'static>(
        self: &Arc<Self>,
        terms: Terms,
        key: u64,
        result: impl FnOnce(Rank) -> T + Send + 'static,
        steps: impl FnOnce(Arc<Awaited>) -> Steps,
    ) -> Work<T> {
        let number = terms.is_collective.then_some(key);
        let driver = Driver::new(&self.hub, &self.callers, terms.operation, number);
        let awaited = Awaiting::new(self.me.clone(), [key, 0]);
        let (completer, work) = described(terms.operation, Some(Arc::new(driver)), None, Some(awaited));
        let awaited = Arc::default();
        let plan = Plan {
            key,
            operation: terms.operation,
            is_collective: terms.is_collective,
            message: terms.message,
            steps: Box::pin(Self::judged(Arc::downgrade(self), key, steps(Arc::clone(&awaited)))),
            awaited,
        };
        let state = Arc::downgrade(self);
        let canceller = (Weak::clone(&state), key);
        completer.on_cancel(move || {
            if let Some(state) = canceller.0.upgrade() {
                state.cancelled(canceller.1);
            }
        });
        let record = terms.is_collective.then(|| Arc::clone(self.group.record()));
        record.iter().for_each(|record| record.note_in_flight());
        let (task, prepared) = Task::new(&self.hub.runtime, plan, move |outcome| {
            record.iter().for_each(|record| record.note_ended());
            let outcome = match state.upgrade() {
                Some(state) => state.ended(key, outcome),
                None => outcome,
            };
            completer.complete(outcome.map(result));
        });
        self.tasks.lock().insert(key, Arc::clone(&task));
        let call = long::calls();
        match prepared {
            Ok(()) => task.run(),
            Err(error) => task.fail(error),
        }
        if !task.is_done() {
            self.watch_over(&task, terms);
            self.hub.node.endpoint_waits();
        }
        if call.has_left() {
            self.hub.node.endpoint_works();
        }
        work
    }

    fn watch_over(self: &Arc<Self>, task: &Arc<Task>, terms: Terms) {
        if let Some(limit) = terms.limit {
            let state = Arc::downgrade(self);
            let late = move |task: &Arc<Task>| {
                if let Some(state) = state.upgrade() {
                    state.too_late(task);
                }
            };
            if let Err(error) = self.hub.after(limit.saturating_sub(task.begun.elapsed()), task, late) {
                task.fail(error);
            }
        }
        // A break that came before the task was noted has not seen it.
        if self.broken.get().is_some() {
            self.end_what_is_hopeless();
        }
        if let Some(error) = self.given_up.get().filter(|_| task.operation != SET_UP) {
            task.fail(error.clone());
        }
    }

    /// A task has come to its end; what it says is its operation's outcome.
    fn ended(self: &Arc<Self>, key: u64, outcome: Result<Rank>) -> Result<Rank> {
        let task = self.tasks.lock().remove(&key);
        self.settle();
        let is_collective = task.as_ref().is_some_and(|task| task.is_collective);
        let outcome = if is_collective { outcome.and_then(|rank| self.in_order(key).map(|()| rank)) } else { outcome };
        let Err(error) = outcome else { return outcome };
        let error = self.cause(error);
        let Some(task) = task else { return Err(error) };
        if task.is_collective {
            return Err(self.failed(error, task.operation, task.key, task.begun.elapsed()));
        }
        Err(self.explained(self.group.explain(error), task.operation, None, task.begun.elapsed()))
    }

    /// Refuses a result that may be of another thread's operation on other ranks.
    #[inline]
    fn in_order(&self, number: u64) -> Result<()> {
        if !self.callers.is_disordered(number) {
            return Ok(());
        }
        Err(self.verdict().unwrap_or_else(|| Error::new(ErrorKind::Mismatch, "threads called at once")))
    }

    /// Why an operation has failed: what links say of members that go because the group is broken is not why.
    fn cause(&self, error: Error) -> Error {
        let Some(verdict) = self.verdict().filter(|_| is_echo(&error)) else { return error };
        // Which of several members that have left is missed is known better here. But where the verdict is that one is
        // dead, another may have left for that, even before all have agreed on the death.
        let blames_dead = verdict.kind().is_loss() && !self.is_departure(&verdict);
        if is_echo(&verdict) && !blames_dead && self.is_departure(&error) { error } else { verdict }
    }

    /// Whether an error says that a member has left.
    fn is_departure(&self, error: &Error) -> bool {
        let node = error.about().and_then(|peer| peer.node);
        let rank = node.and_then(|node| self.group.rank_of(node)).filter(|rank| self.group.has_left(*rank));
        rank.and_then(|rank| self.group.why_lost(rank)).is_some_and(|known| known.what() == error.what())
    }

    /// Why the group is broken, if it is. The mesh may have learned only later that its members disagreed.
    fn verdict(&self) -> Option<Error> {
        let known = self.broken.get()?;
        let later = if is_echo(known) { self.group.broken() } else { None };
        Some(later.filter(|error| error.kind() == ErrorKind::Mismatch).unwrap_or_else(|| known.clone()))
    }

    /// A collective has failed: so does its group.
    fn failed(self: &Arc<Self>, error: Error, operation: &'static str, sequence: u64, elapsed: Duration) -> Error {
        let error = self.explained(self.group.explain(error), operation, Some(sequence), elapsed);
        self.break_because(&error, sequence);
        error
    }

    /// Breaks the group for everybody, from the operation of this number on. A peer that is lost is for the mesh to
    /// judge, so that survivors agree who they are; but that an operation fails because a member has left is seen only
    /// by those who wait for it.
    pub(crate) fn break_because(self: &Arc<Self>, error: &Error, sequence: u64) {
        if !is_echo(error) || self.group.was_left() {
            self.group.break_because(self.told_to_others(error), sequence);
        }
        let lowered = self.failed_from.fetch_min(sequence, SeqCst) > sequence;
        if self.broken.get().is_none() {
            self.fail(error.clone());
        } else if lowered {
            self.end_what_is_hopeless();
        }
    }

    /// Returns what the others are told: both sides of a mismatch, or else which rank gave up what, and why.
    fn told_to_others(&self, error: &Error) -> Error {
        let told = if error.kind() == ErrorKind::Mismatch {
            Error::new(error.kind(), error.what().to_owned()).causes_of(error)
        } else {
            let operation = error.operation_name().unwrap_or("an operation");
            let what = format!("rank {} gave up {operation}: {}", self.group.rank(), error.what());
            Error::new(error.kind(), what).cause(error.clone())
        };
        match error.advice() {
            Some(hint) => told.hint(hint.to_owned()),
            None => told,
        }
    }

    /// Ends every later collective, and of the operations in flight those that can come to no end.
    fn fail(self: &Arc<Self>, error: Error) {
        let _ = self.broken.set(error);
        self.break_up();
    }

    /// The reason is known now: ends what can come to no end, and lets go of what operations share.
    fn break_up(self: &Arc<Self>) {
        let Some(error) = self.broken.get() else { return };
        self.end_what_is_hopeless();
        if let Some(board) = self.lasting.board() {
            board.break_up();
        }
        if self.is_death(error) {
            self.break_hosts(error);
        }
        self.settle();
    }

    /// When no collective of a broken group is in flight any more, the groups of its hosts end, and its messages are
    /// thrown away; those between two members only if they are over too.
    fn settle(&self) {
        let Some(error) = self.broken.get() else { return };
        let (are_collectives_over, is_all_over) = {
            let tasks = self.tasks.lock();
            (tasks.first_key_value().is_none_or(|(key, _)| *key >= MESSAGES), tasks.is_empty())
        };
        let mut sorts: Vec<u64> = Vec::new();
        if are_collectives_over && !self.is_settled.swap(true, SeqCst) {
            self.break_hosts(error);
            sorts.extend(COLLECTIVE_SORTS);
        }
        if is_all_over && !self.was_only_left(error) && !self.has_settled_messages.swap(true, SeqCst) {
            sorts.extend(MESSAGE_SORTS);
        }
        if sorts.is_empty() {
            return;
        }
        let senders = || (0..self.size()).chain([mail::ANYBODY]);
        let contexts = sorts.into_iter().flat_map(|sort| senders().map(move |sender| self.context(sender, sort)));
        self.hub.node.refuse(contexts);
    }

    fn break_hosts(&self, error: &Error) {
        let hosts = self.hosts.lock().clone().flatten();
        if let Some(hosts) = hosts {
            hosts.break_because(error);
        }
    }

    /// The number of the first collective that has not ended here: of those in flight, or else the next one.
    pub(crate) fn first_open(&self) -> u64 {
        let tasks = self.tasks.lock();
        let in_flight = tasks.values().find(|task| task.is_collective && !task.is_done()).map(|task| task.key);
        in_flight.unwrap_or_else(|| self.group.record().operations())
    }

    /// Gives the group up for all members, and ends what is in flight here. What has broken it before stays the reason
    /// of later operations.
    pub(crate) fn cancel(self: &Arc<Self>) {
        let what = format!("rank {} has cancelled the group", self.group.rank());
        let error = Error::new(ErrorKind::Cancelled, what).hint("make a group with another label, on all its members");
        let sequence = self.first_open();
        self.group.break_because(error.clone(), sequence);
        self.failed_from.fetch_min(sequence, SeqCst);
        self.fail(error.clone());
        // Before it looks: a task that it does not find finds this.
        let _ = self.given_up.set(error.clone());
        let tasks: Vec<_> = self.tasks.lock().values().cloned().collect();
        // What sets the group up ends by itself, for nobody needs it any more.
        tasks.iter().filter(|task| task.operation != SET_UP).for_each(|task| task.fail(error.clone()));
        self.hub.run_ready();
    }

    fn cancelled(self: &Arc<Self>, key: u64) {
        let task = self.tasks.lock().get(&key).cloned();
        if let Some(task) = task {
            task.fail(Error::new(ErrorKind::Cancelled, "the caller no longer waits"));
            self.hub.run_ready();
        }
    }

    /// The deadline of a task has passed. It ends when it was found out who is missing, which takes a moment.
    fn too_late(self: &Arc<Self>, task: &Arc<Task>) {
        let (state, late) = (Arc::clone(self), Arc::clone(task));
        let end = self.hub.runtime.spawn(async move { late.fail(state.why_too_late(&late).await) });
        match end {
            Ok(end) => end.detach(),
            Err(error) => task.fail(error),
        }
    }

    async fn why_too_late(&self, task: &Task) -> Error {
        let missing = match task.is_collective {
            true => Some(self.hub.who_is_missing(self, task.key).await),
            false => None,
        };
        let what = match missing {
            Some(missing) if !missing.is_empty() => format!("not entered: {missing}"),
            Some(_) => match task.awaited.get() {
                Some(rank) => format!("all members have entered, and rank {rank} has not sent its part"),
                None => "all members have entered".to_owned(),
            },
            None => self.no_message(task),
        };
        Error::new(ErrorKind::DeadlineExceeded, what).hint("a member may be late or stuck; look at its output")
    }

    /// The message that has not come or gone, and from or to whom.
    fn no_message(&self, task: &Task) -> String {
        let Some((other, tag)) = task.message else { return "no message came or went".to_owned() };
        let way = if task.operation == "recv" { "came from" } else { "went to" };
        let whom = match other {
            Some(rank) => match self.group.member(rank) {
                Some(member) => format!("rank {rank}, {}", member.introduction.name),
                None => format!("rank {rank}"),
            },
            None => "any member".to_owned(),
        };
        format!("no message with tag {tag} {way} {whom}")
    }

    fn explained(&self, error: Error, operation: &'static str, sequence: Option<u64>, elapsed: Duration) -> Error {
        let mut error = named(error, operation).group(self.group.label());
        // The text of a mismatch has the number already.
        if let Some(sequence) = sequence.filter(|_| error.kind() != ErrorKind::Mismatch) {
            error = error.sequence(sequence);
        }
        error.elapsed(elapsed)
    }

    /// Ends when nobody can touch the memory of this group's failed operations any more; none if that is so.
    pub(crate) fn desertion(&self) -> Option<Work<()>> {
        self.hub.deferred.released(&self.hub.node, self.lasting.board()?)
    }

    /// Ends when the mesh knows that the group is broken, where this room has seen the end of a link; none if not.
    pub(crate) fn verdict_to_come(&self) -> Option<Work<()>> {
        self.broken.get()?;
        let (completer, verdict) = self.hub.node.pair("shrink", None);
        self.verdicts.lock().push(completer);
        // It may have come just before.
        self.tell_verdict();
        Some(verdict)
    }

    fn tell_verdict(&self) {
        if !self.verdicts.lock().is_empty() && self.group.broken().is_some() {
            let waiting = std::mem::take(&mut *self.verdicts.lock());
            waiting.into_iter().for_each(|completer| completer.complete(Ok(())));
        }
    }
}

/// The error as one of this operation. What fails while a group is being set up is one of the operation that needs it.
fn named(error: Error, operation: &'static str) -> Error {
    if operation == SET_UP { error } else { error.operation(operation) }
}

/// Whether it may be the mere consequence of another failure.
fn is_echo(error: &Error) -> bool {
    error.kind().is_loss() || error.kind() == ErrorKind::Closed
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("group", &self.group).finish_non_exhaustive()
    }
}
