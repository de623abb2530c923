//! Who has which task.
//!
//! **Each task ends once.** It waits, or one worker has it. It leaves that worker by its outcome; by being taken back,
//! or by the worker's death before it has begun with it ([`crate::turn`]), and then it waits again, before all others;
//! or by a death after that, and then it has failed, unless it may be tried again. What a worker says of a task that it
//! has not got means nothing.
//!
//! **A death** is told twice: by the node, once it has handled all that the worker had sent ([`State::lose`]), and by
//! whoever started the process, with how it ended ([`State::ended`]). The first moves what had not begun, the second is
//! the error of what had. The second may come first, and then waits.
//!
//! Nothing here calls anybody: whoever is to hear of something is put down ([`Told`]).

use crate::hand::Hand;
use crate::protocol::{Outcomes, read_notes};
use crate::task::{Function, Outcome, Sink, Task};
use crate::turn::Turn;
use sheave_base::collections::HashSet;
use sheave_base::planted::{self, Bug};
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, NodeId, Result, limits};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Bytes of tasks that wait and run, as [`limits::POOL_TASKS_MAX`] is their number: who submits more waits first
/// ([`State::has_room`]), and is refused at twice as many. One that is larger goes when there is no other.
pub(crate) const TASKS_BYTES_MAX: u64 = 1 << 30;

/// Workers of one slot, one after the other, that die before they are set up; then the pool is broken. Each slot has
/// its own count: that all workers are killed at once while they start says nothing about their program.
const UNREADY_DEATHS_MAX: u32 = 3;

/// Functions that one message tells a worker to forget at most, so that it has room for tasks however many there are:
/// the next ones tell of the others.
const DROPPED_TOLD_MAX: usize = 1024;

/// How long a worker runs a task before what lies behind it goes to those who have nothing to do.
const LONG_SPAN: Duration = Duration::from_millis(1);

/// One worker.
pub(crate) struct Worker {
    pub(crate) node: NodeId,
    pub(crate) name: String,
    pub(crate) turn: Turn,
    pub(crate) hand: Hand<Task>,
    /// The functions that it has, and those beside them that no task will name and that it has not been told of.
    pub(crate) functions: HashSet<u64>,
    dropped: Vec<u64>,
    /// How many tasks it may have yet.
    pub(crate) left: usize,
    /// It is set up.
    pub(crate) is_ready: bool,
    /// It reaches this node's memory.
    pub(crate) reaches: bool,
    /// Somebody sends to it, and looks again then.
    pub(crate) is_served: bool,
    /// It was let go, for it has had its tasks.
    is_dismissed: bool,
    /// When it had its last outcome, or was given a task after a rest.
    since: Instant,
    /// How its process ended, which the node has not told yet.
    end: Option<Error>,
}

impl Worker {
    pub(crate) fn new(node: NodeId, name: String, turn: Turn, left: usize, now: Instant) -> Self {
        Self {
            node,
            name,
            turn,
            hand: Hand::default(),
            functions: HashSet::default(),
            dropped: Vec::new(),
            left,
            is_ready: false,
            reaches: false,
            is_served: false,
            is_dismissed: false,
            since: now,
            end: None,
        }
    }

    /// Takes out what the next message tells it to forget.
    pub(crate) fn tell_dropped(&mut self) -> Vec<u64> {
        self.dropped.split_off(self.dropped.len().saturating_sub(DROPPED_TOLD_MAX))
    }
}

/// A message to a worker, for as long as it may turn out that it cannot be sent.
pub(crate) struct Sent {
    pub(crate) node: NodeId,
    /// The number of its first task.
    pub(crate) first: u32,
    /// The functions that it brings.
    pub(crate) functions: Vec<u64>,
    /// The functions that it tells the worker to forget.
    pub(crate) dropped: Vec<u64>,
}

/// A worker that the node has lost, whose process has not been heard of.
struct Lost {
    node: NodeId,
    slot: usize,
    is_unready: bool,
    tasks: Vec<Task>,
}

/// Those who are told something, once no lock is held.
#[derive(Default)]
pub(crate) struct Told {
    outcomes: Vec<(Sink, Outcome)>,
    works: Vec<Completer<()>>,
    functions: Vec<Function>,
    /// Workers that have had their tasks.
    pub(crate) dismissed: Vec<NodeId>,
    /// From now on nothing is done any more.
    pub(crate) is_broken: bool,
}

impl Told {
    pub(crate) fn tell(self) {
        self.outcomes.into_iter().for_each(|(sink, outcome)| sink.settle(outcome));
        self.works.into_iter().for_each(|completer| completer.complete(Ok(())));
        drop(self.functions);
    }
}

#[derive(Default)]
pub(crate) struct State {
    waiting: VecDeque<Task>,
    /// Tasks that wait and that workers have.
    tasks: usize,
    tasks_bytes: u64,
    pub(crate) slots: Vec<Option<Worker>>,
    lost: Vec<Lost>,
    /// By slot, since a worker was set up there.
    unready_deaths: Vec<u32>,
    /// Why nothing is done any more.
    broken: Option<Error>,
    pub(crate) is_closed: bool,
    /// A task of the node's looks whether somebody should have what another one has.
    pub(crate) is_watched: bool,
    for_room: Vec<Completer<()>>,
    for_end: Vec<Completer<()>>,
}

impl State {
    pub(crate) fn new(slots: usize) -> Self {
        Self { slots: (0..slots).map(|_| None).collect(), unready_deaths: vec![0; slots], ..Self::default() }
    }

    /// Why there can be no more tasks, if that is so.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.broken {
            Some(error) => Err(error.clone()),
            None if self.is_closed => Err(Error::new(ErrorKind::Closed, "the pool was closed")),
            None => Ok(()),
        }
    }

    /// Whether nothing is done any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Refuses a task of this size if it cannot be added.
    pub(crate) fn admit(&self, bytes: u64) -> Result<()> {
        self.check()?;
        let is_full = self.tasks >= 2 * limits::POOL_TASKS_MAX
            || self.tasks > 0 && self.tasks_bytes.saturating_add(bytes) > 2 * TASKS_BYTES_MAX;
        if !is_full {
            return Ok(());
        }
        let what = format!("{} tasks of {} bytes wait and run already", self.tasks, self.tasks_bytes);
        Err(Error::new(ErrorKind::LimitExceeded, what).hint("wait for some of them before more are submitted"))
    }

    /// Adds a task that was admitted. Here it gets its place in its job: one that had it before could be refused, when
    /// other threads have got those behind it.
    pub(crate) fn add(&mut self, mut task: Task) {
        if let Sink::Many(job, place) = &mut task.sink {
            *place = job.add();
        }
        (self.tasks, self.tasks_bytes) = (self.tasks + 1, self.tasks_bytes + task.weight_bytes());
        self.waiting.push_back(task);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.tasks < limits::POOL_TASKS_MAX && self.tasks_bytes < TASKS_BYTES_MAX || self.broken.is_some()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.tasks == 0
    }

    pub(crate) fn await_room(&mut self, completer: Completer<()>) {
        self.for_room.retain(Completer::is_awaited);
        self.for_room.push(completer);
    }

    pub(crate) fn await_end(&mut self, completer: Completer<()>) {
        self.for_end.retain(Completer::is_awaited);
        self.for_end.push(completer);
    }

    /// A task is over.
    fn over(&mut self, task: Task, outcome: Outcome, told: &mut Told) {
        (self.tasks, self.tasks_bytes) = (self.tasks - 1, self.tasks_bytes - task.weight_bytes());
        told.outcomes.push((task.sink, outcome));
        // With the last task of a function somebody is called.
        told.functions.push(task.function);
        if self.has_room() {
            if planted::strikes(Bug::RoomUntold) {
                self.for_room.clear();
            }
            told.works.append(&mut self.for_room);
        }
        if self.has_ended() && !planted::strikes(Bug::PoolEndUntold) {
            told.works.append(&mut self.for_end);
        }
    }

    /// The slot of a worker.
    fn slot_of(&self, node: NodeId) -> Option<usize> {
        self.slots.iter().position(|worker| worker.as_ref().is_some_and(|worker| worker.node == node))
    }

    /// The slot of the worker that needs a task most, if one does.
    pub(crate) fn neediest(&self) -> Option<usize> {
        let workers = self.slots.iter().enumerate().filter_map(|(slot, worker)| Some((slot, worker.as_ref()?)));
        let needy = workers.filter(|(_, worker)| worker.is_ready && !worker.is_dismissed && worker.hand.is_needy());
        needy.min_by_key(|(_, worker)| worker.hand.len()).map(|(slot, _)| slot)
    }

    /// Draws what the worker of a slot is to be given now, `most` tasks at most: the first number, and how many.
    pub(crate) fn draw(&mut self, slot: usize, most: usize, now: Instant) -> Option<(u32, usize)> {
        let hands = self.slots.iter().flatten().filter(|worker| worker.is_ready).count();
        let worker = self.slots.get_mut(slot)?.as_mut()?;
        if !worker.is_ready || worker.is_dismissed {
            return None;
        }
        let rests = worker.hand.len() == 0;
        let (first, count) = worker.hand.draw(&mut self.waiting, hands, worker.left.min(most))?;
        worker.left -= count;
        if rests {
            worker.since = now;
        }
        worker.turn.give(first, count as u32);
        Some((first, count))
    }

    /// Takes from a worker what was in a message that could not be sent, and what came of that is this error. Of
    /// several tasks of which one has a tensor that is in use none fails: they wait again.
    pub(crate) fn undo(&mut self, slot: usize, message: Sent, error: &Error, told: &mut Told) {
        let Sent { node, first, functions, mut dropped } = message;
        let Some(worker) = self.slots.get_mut(slot).and_then(Option::as_mut).filter(|worker| worker.node == node)
        else {
            return;
        };
        worker.turn.take_back_from(first);
        let taken = worker.hand.undo(first);
        worker.left += taken.len();
        // Those that earlier messages have brought it has, though its tasks here name them too; and those that this one
        // was to bring it has not, though its tasks were taken back meanwhile.
        functions.iter().for_each(|number| _ = worker.functions.remove(number));
        worker.dropped.append(&mut dropped);
        let is_of_one = error.kind() == ErrorKind::BufferInUse && taken.len() > 1;
        // A worker that is gone has not begun with them.
        if is_of_one || matches!(error.kind(), ErrorKind::PeerLost | ErrorKind::Closed) {
            return taken.into_iter().rev().for_each(|task| self.waiting.push_front(task));
        }
        taken.into_iter().for_each(|task| self.over(task, Err(error.clone()), told));
    }

    /// What came of tasks. Returns the worker's slot.
    pub(crate) fn settle(&mut self, node: NodeId, outcomes: Outcomes, now: Instant, told: &mut Told) -> Option<usize> {
        let slot = self.slot_of(node)?;
        let Outcomes { spent_ns, outcomes } = outcomes;
        let count = outcomes.len();
        for (number, outcome) in outcomes {
            let worker = self.slots[slot].as_mut()?;
            if let Some(task) = worker.hand.settle(number) {
                self.over(task, outcome, told);
            }
        }
        let worker = self.slots[slot].as_mut()?;
        worker.hand.note_pace(count, spent_ns);
        worker.since = now;
        if worker.left == 0 && worker.hand.len() == 0 && !worker.is_dismissed {
            worker.is_dismissed = true;
            told.dismissed.push(node);
        }
        Some(slot)
    }

    /// A worker is set up. Returns its slot.
    pub(crate) fn ready(&mut self, node: NodeId) -> Option<usize> {
        let slot = self.slot_of(node)?;
        self.unready_deaths[slot] = 0;
        self.slots[slot].as_mut()?.is_ready = true;
        Some(slot)
    }

    /// The node has lost a worker, and has handled all that it had sent.
    pub(crate) fn lose(&mut self, node: NodeId, told: &mut Told) {
        let Some(slot) = self.slot_of(node) else { return };
        // It may only be out of reach: from here on it begins with nothing.
        let begun = self.slots[slot].as_ref().map_or(0, |worker| worker.turn.take_back());
        let is_read = |_: &&Worker| !planted::strikes(Bug::NotesUnread);
        let notes = self.slots[slot].as_ref().filter(is_read).map(|worker| read_notes(&worker.turn.notes()));
        for (number, outcome) in notes.into_iter().flatten() {
            let task = self.slots[slot].as_mut().and_then(|worker| worker.hand.settle(number));
            task.into_iter().for_each(|task| self.over(task, outcome.clone(), told));
        }
        let Some(mut worker) = self.slots[slot].take() else { return };
        let (mut tasks, mut waiting) = worker.hand.end(begun);
        if !waiting.is_empty() && planted::strikes(Bug::UnbegunFailed) {
            tasks.push(waiting.remove(0));
        }
        if planted::strikes(Bug::OrphanLost) {
            waiting.pop();
        }
        waiting.into_iter().rev().for_each(|task| self.waiting.push_front(task));
        let is_unready = !worker.is_ready && !worker.is_dismissed;
        let lost = Lost { node, slot, is_unready, tasks };
        match worker.end {
            Some(error) => self.bury(lost, &error, told),
            None => self.lost.push(lost),
        }
    }

    /// A worker was lost before it came to its slot.
    pub(crate) fn miss(&mut self, slot: usize, node: NodeId) {
        self.lost.push(Lost { node, slot, is_unready: true, tasks: Vec::new() });
    }

    /// The process of a worker has ended so.
    pub(crate) fn ended(&mut self, node: NodeId, error: &Error, told: &mut Told) {
        if let Some(at) = self.lost.iter().position(|lost| lost.node == node) {
            let lost = self.lost.swap_remove(at);
            self.bury(lost, error, told);
        } else if let Some(worker) = self.slot_of(node).and_then(|slot| self.slots[slot].as_mut())
            && !planted::strikes(Bug::EndForgotten)
        {
            worker.end = Some(error.clone());
        }
    }

    fn bury(&mut self, lost: Lost, error: &Error, told: &mut Told) {
        let Lost { slot, is_unready, tasks, .. } = lost;
        for mut task in tasks.into_iter().rev() {
            if task.tries_left > 0 && self.broken.is_none() {
                task.tries_left -= u32::from(!planted::strikes(Bug::TriesUncounted));
                self.waiting.push_front(task);
                continue;
            }
            let died = error.clone().context("it had begun with the task").asked_for("pool task").sequence(task.number);
            self.over(task, Err(died), told);
        }
        if is_unready {
            self.unready_deaths[slot] += 1;
            if self.unready_deaths[slot] >= UNREADY_DEATHS_MAX {
                let what = format!("{UNREADY_DEATHS_MAX} workers of slot {slot} in a row died before they were set up");
                self.break_by(&error.clone().context(what).asked_for("start pool"), told);
            }
        }
    }

    /// Nothing is done any more, and all tasks have failed by this.
    pub(crate) fn break_by(&mut self, error: &Error, told: &mut Told) {
        if self.broken.is_none() {
            self.broken = Some(error.clone());
            told.is_broken = true;
        }
        let error = self.broken.clone().unwrap_or_else(|| error.clone());
        let mut tasks: Vec<Task> = self.waiting.drain(..).collect();
        for worker in self.slots.iter_mut().flatten() {
            worker.turn.take_back();
            let (begun, left) = worker.hand.end(worker.turn.begun());
            tasks.extend(begun.into_iter().chain(left));
        }
        tasks.extend(self.lost.iter_mut().flat_map(|lost| std::mem::take(&mut lost.tasks)));
        tasks.sort_by_key(|task| task.number);
        tasks.into_iter().for_each(|task| self.over(task, Err(error.clone()), told));
        told.works.append(&mut self.for_room);
    }

    /// Returns whether a worker has begun with the task of this number.
    pub(crate) fn has_begun(&self, number: u64) -> bool {
        let mut workers = self.slots.iter().flatten();
        workers.any(|worker| worker.hand.has_begun(worker.turn.begun(), |task| task.number == number))
    }

    /// Ends tasks that wait, of those that `is_meant`.
    pub(crate) fn cancel(&mut self, is_meant: impl Fn(&Task) -> bool, told: &mut Told) {
        let (cancelled, kept): (Vec<Task>, Vec<Task>) = self.waiting.drain(..).partition(is_meant);
        self.waiting = kept.into();
        for task in cancelled {
            self.over(task, Err(Error::new(ErrorKind::Cancelled, "the task was cancelled")), told);
        }
    }

    /// No task will name this function.
    pub(crate) fn forget(&mut self, number: u64) {
        for worker in self.slots.iter_mut().flatten() {
            if worker.functions.remove(&number) {
                worker.dropped.push(number);
            }
        }
    }

    /// Whether somebody has nothing to do, and somebody else more than he does.
    pub(crate) fn is_uneven(&self) -> bool {
        let is_idle = |worker: &Worker| worker.is_ready && worker.hand.len() == 0 && worker.left > 0;
        if planted::strikes(Bug::LongUnseen) {
            return false;
        }
        self.waiting.is_empty()
            && self.slots.iter().flatten().any(is_idle)
            && self.slots.iter().flatten().any(|worker| worker.hand.len() > 1)
    }

    /// Takes what lies behind long tasks. Returns whether to look again.
    pub(crate) fn level(&mut self, now: Instant) -> bool {
        if !self.is_uneven() {
            return false;
        }
        let mut taken = Vec::new();
        for worker in self.slots.iter_mut().flatten() {
            if worker.hand.len() > 1 && now.saturating_duration_since(worker.since) >= LONG_SPAN {
                let kept = worker.hand.first().map_or(0, |first| worker.turn.take_back_behind(first));
                let mut tasks = worker.hand.take_back(kept);
                worker.left += tasks.len();
                if planted::strikes(Bug::RevokedLost) {
                    tasks.pop();
                }
                taken.extend(tasks);
            }
        }
        taken.sort_by_key(|task| task.number);
        self.waiting.extend(taken);
        true
    }

    /// How many tasks wait, and what each worker has, for those who ask.
    pub(crate) fn describe(&self) -> String {
        let having = self.slots.iter().flatten().filter(|worker| worker.hand.len() > 0);
        let mut texts: Vec<String> =
            having.map(|worker| format!("{} ({} tasks)", worker.name, worker.hand.len())).collect();
        if !self.waiting.is_empty() {
            texts.push(format!("{} tasks that wait for a worker", self.waiting.len()));
        }
        texts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Packet;
    use crate::task::Definition;
    use sheave_base::Work;
    use sheave_base::clock;
    use sheave_base::work::pair;
    use std::sync::{Arc, Weak};

    const WORKER: NodeId = NodeId(7);

    /// A pool of one worker that is ready, and what it shares with it.
    fn pool() -> (State, Turn) {
        let (mut state, turn) = (State::new(2), Turn::here());
        state.slots[0] = Some(Worker::new(WORKER, "worker".into(), turn.clone(), usize::MAX, clock::now()));
        assert_eq!(state.ready(WORKER), Some(0));
        (state, turn)
    }

    fn add(state: &mut State, function: &Function) -> Work<Packet> {
        let (completer, work) = pair("pool task");
        let (number, function, args) = (state.tasks as u64, function.clone(), Packet::default());
        state.add(Task { number, function, args, tries_left: 0, sink: Sink::One(completer) });
        work
    }

    /// A message whose first task has this number, and nothing beside tasks.
    fn message(first: u32) -> Sent {
        Sent { node: WORKER, first, functions: Vec::new(), dropped: Vec::new() }
    }

    fn function() -> Function {
        Function(Arc::new(Definition { number: 3, packet: Packet::default(), pool: Weak::new() }))
    }

    #[test]
    fn a_worker_that_is_out_of_reach_begins_with_nothing() {
        let (mut state, turn) = pool();
        let function = function();
        let works: Vec<_> = (0..2).map(|_| add(&mut state, &function)).collect();
        while state.draw(0, usize::MAX, clock::now()).is_some() {}
        assert!(turn.begin(0));
        let mut told = Told::default();
        state.lose(WORKER, &mut told);
        assert!(!turn.begin(1), "another worker has it by now");
        state.ended(WORKER, &Error::new(ErrorKind::WorkerDied, "it was killed"), &mut told);
        told.tell();
        assert_eq!(works[0].result().expect("it has ended").expect_err("it had begun").kind(), ErrorKind::WorkerDied);
        assert!(!works[1].is_done() && state.waiting.len() == 1);
    }

    #[test]
    fn what_cannot_be_sent_fails_and_nothing_else() {
        let (mut state, turn) = pool();
        let function = function();
        let works: Vec<_> = (0..3).map(|_| add(&mut state, &function)).collect();
        let now = clock::now();
        assert_eq!(state.draw(0, usize::MAX, now), Some((0, 1)));
        assert_eq!(state.draw(0, usize::MAX, now), Some((1, 1)));
        let error = Error::new(ErrorKind::LimitExceeded, "a message that is too long");
        let mut told = Told::default();
        state.undo(0, message(1), &error, &mut told);
        assert!(turn.begin(0), "that was sent before");
        assert_eq!(state.draw(0, usize::MAX, now), Some((1, 1)), "the number was never seen");
        assert!(turn.begin(1));
        told.tell();
        let ended: Vec<bool> = works.iter().map(Work::is_done).collect();
        assert_eq!(ended, [false, true, false]);
    }

    #[test]
    fn a_worker_is_told_what_to_forget_by_messages_that_are_sent() {
        const COUNT: u64 = 2 * DROPPED_TOLD_MAX as u64 + 10;
        let (mut state, _) = pool();
        state.slots[0].as_mut().expect("it was hired").functions.extend(0..COUNT);
        (0..COUNT).for_each(|number| state.forget(number));
        let mut left: HashSet<u64> = (0..COUNT).collect();
        for round in 0..4 {
            let dropped = state.slots[0].as_mut().expect("it was hired").tell_dropped();
            assert!(dropped.len() <= DROPPED_TOLD_MAX, "a message tells of {}", dropped.len());
            if round == 0 {
                let error = Error::new(ErrorKind::BufferInUse, "one is being written");
                state.undo(0, Sent { dropped, ..message(0) }, &error, &mut Told::default());
            } else {
                dropped.iter().for_each(|number| assert!(left.remove(number), "it is told once"));
            }
        }
        assert!(left.is_empty(), "{} are never told of", left.len());
    }

    /// Its tasks are taken back, as from behind a long one, before it turns out that their message cannot be sent.
    #[test]
    fn what_was_not_sent_is_sent_again_though_its_tasks_were_taken_back() {
        let (mut state, _) = pool();
        let function = function();
        let _works: Vec<_> = (0..2).map(|_| add(&mut state, &function)).collect();
        while state.draw(0, usize::MAX, clock::now()).is_some() {}
        let worker = state.slots[0].as_mut().expect("it was hired");
        worker.functions.extend([3, 4]);
        assert_eq!(worker.hand.take_back(1).len(), 1);
        let error = Error::new(ErrorKind::BufferInUse, "one is being written");
        state.undo(0, Sent { functions: vec![3], ..message(1) }, &error, &mut Told::default());
        let worker = state.slots[0].as_ref().expect("it was hired");
        assert_eq!(worker.functions, HashSet::from_iter([4]));
    }

    #[test]
    fn a_worker_that_does_not_begin_keeps_its_first_task() {
        let (mut state, turn) = pool();
        let function = function();
        let works: Vec<_> = (0..2).map(|_| add(&mut state, &function)).collect();
        let now = clock::now();
        while state.draw(0, usize::MAX, now).is_some() {}
        let other = Worker::new(NodeId(8), "other".into(), Turn::here(), usize::MAX, now);
        state.slots[1] = Some(other);
        assert_eq!(state.ready(NodeId(8)), Some(1));
        assert!(state.level(now + LONG_SPAN));
        assert_eq!(
            state.draw(0, usize::MAX, now),
            None,
            "what it has not begun would be taken from it again and again"
        );
        assert_eq!(state.draw(1, usize::MAX, now), Some((0, 1)));
        assert!(turn.begin(0) && !turn.begin(1));
        assert!(works.iter().all(|work| !work.is_done()));
    }
}
