//! What was asked of the workers of a pool, what they have done, and whether it may have been so.

use super::super::ledger::Ledger;
use super::super::scenario::Scenario;
use crate::lockstep::Trouble;
use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, Result};
use sheave_pool::{Outcome, Packet};
use sheave_wire::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A death by silence is known after that, and a fleet ends the process within as long again.
const SILENCE: Duration = Duration::from_millis(2600);
/// A host that is gone is known to be within this time.
const KNOWN_WITHIN: Duration = Duration::from_secs(1);
/// The clock of a book begins when its host does, which may be kept from its core, and that of troubles with the world.
const CLOCKS_APART: Duration = Duration::from_millis(4);
/// What a task waits for that a worker is there for, besides the ways of messages: the looks of the pool at long tasks,
/// and threads that are kept from their cores.
const LOOKS: Duration = Duration::from_millis(30);
/// So many ways.
const WAYS: u32 = 12;
/// Time in which those that were killed are replaced, and what they had is done.
const REPLACED_WITHIN: Duration = Duration::from_secs(3);
/// Deaths of workers that have begun no task, by which a pool may be broken.
const UNREADY_DEATHS: usize = 3;
/// The first tasks of a worker: their outcomes find room in the window of any pool.
const FIRST: u64 = 2;

/// What workers are set up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    None,
    BySlot,
    /// Something that none of them can be set up with.
    Fails,
}

impl Setup {
    pub(super) fn of(self, slot: usize) -> Value {
        match self {
            Self::None => Value::None,
            Self::BySlot => Value::Int(slot as i64),
            Self::Fails => Value::from("nothing"),
        }
    }
}

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Returns,
    Fails,
    /// It kills its worker at once.
    Dies,
    /// It kills its worker at its end.
    DiesLater,
}

const ALL: [What; 4] = [What::Returns, What::Fails, What::Dies, What::DiesLater];

/// A task as it is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) what: What,
    pub(super) span: Duration,
    /// Bytes of its arguments, and whether those are a tensor.
    pub(super) bytes: u64,
    pub(super) is_tensor: bool,
    pub(super) result_bytes: u64,
    pub(super) tries: u32,
}

impl Order {
    /// Its arguments: its number, that of its function, and what it is to do.
    pub(super) fn to_value(self, number: u64, function: usize) -> Value {
        let what = ALL.iter().position(|what| *what == self.what).unwrap_or(0);
        let numbers = [
            number,
            function as u64,
            what as u64,
            self.span.as_micros() as u64,
            self.bytes,
            u64::from(self.is_tensor),
            self.result_bytes,
        ];
        let mut list: Vec<Value> = numbers.into_iter().map(|number| Value::Int(number as i64)).collect();
        list.push(match self.is_tensor {
            true => Value::Tensor(0),
            false => Value::Bytes(vec![7; self.bytes as usize]),
        });
        Value::List(list)
    }

    /// As [`Order::to_value`] has written it.
    pub(super) fn of(value: &Value) -> (u64, i64, Self) {
        let Value::List(list) = value else { panic!("{value:?} where a list was expected") };
        let number = |at: usize| match list.get(at) {
            Some(Value::Int(number)) => *number as u64,
            other => panic!("{other:?} where a number was expected"),
        };
        let order = Self {
            what: ALL[number(2) as usize],
            span: Duration::from_micros(number(3)),
            bytes: number(4),
            is_tensor: number(5) == 1,
            result_bytes: number(6),
            tries: 0,
        };
        (number(0), number(1) as i64, order)
    }
}

struct Task {
    order: Order,
    submitted: Duration,
    /// On which workers, and when.
    begun: Vec<usize>,
    finished: Vec<(usize, Duration)>,
    /// Its outcome lies where the death of that worker does not reach it.
    is_safe: bool,
    ended: u32,
    is_cancelled: bool,
    /// It is one of a job, whose outcomes are looked at some time.
    is_of_job: bool,
}

struct Worker {
    slot: usize,
    killed: Option<Duration>,
    is_stopped: bool,
    has_left: bool,
    is_ready: bool,
    begun: u64,
    running: Option<u64>,
    /// How long the tasks take with which it is busy when its host is gone.
    busy: Duration,
    /// Since when it has nothing to do.
    idle_since: Duration,
}

#[derive(Default)]
struct State {
    tasks: Vec<Task>,
    workers: BTreeMap<usize, Worker>,
    /// When something has last happened after which tasks may wait for a while.
    stirred: Duration,
    /// Something is to be waited for until then.
    due: Duration,
    has_failed_setup: bool,
    is_closing: bool,
    is_over: bool,
    is_given_up: bool,
}

pub(super) struct Book {
    ledger: Arc<Ledger>,
    /// How long a task may wait while a worker has nothing to do, and its outcome.
    prompt: Duration,
    tasks_per_worker: Option<usize>,
    pub(super) setup: Setup,
    /// When the host is killed.
    host_ends: Option<Duration>,
    state: Mutex<State>,
}

impl Book {
    pub(super) fn new(
        ledger: &Arc<Ledger>,
        scenario: &Scenario,
        tasks_per_worker: Option<usize>,
        setup: Setup,
    ) -> Self {
        let way = Duration::from_nanos(scenario.way.delay_ns + scenario.way.jitter_ns);
        let host_ends = scenario.hits.iter().find(|hit| hit.trouble == Trouble::Kill(0)).map(|hit| hit.at);
        Self {
            ledger: Arc::clone(ledger),
            prompt: LOOKS + way * WAYS,
            tasks_per_worker,
            setup,
            host_ends,
            state: Mutex::default(),
        }
    }

    pub(super) fn fault(&self, what: String) {
        self.ledger.fault(what);
    }

    /// The number of the process that is started next, for this slot.
    pub(super) fn starts(&self, slot: usize) -> usize {
        let idle_since = self.ledger.now();
        let mut state = self.state.lock();
        let process = state.workers.len() + 1;
        let worker = Worker {
            slot,
            killed: None,
            is_stopped: false,
            has_left: false,
            is_ready: false,
            begun: 0,
            running: None,
            busy: Duration::ZERO,
            idle_since,
        };
        state.workers.insert(process, worker);
        process
    }

    /// Something happens after which tasks may wait for a while.
    pub(super) fn stirs(&self) {
        let now = self.ledger.now();
        let mut state = self.state.lock();
        state.stirred = state.stirred.max(now);
        state.due = state.due.max(now + REPLACED_WITHIN);
    }

    pub(super) fn kills(&self, process: usize) {
        let now = self.ledger.now();
        if let Some(worker) = self.state.lock().workers.get_mut(&process) {
            worker.killed.get_or_insert(now);
        }
        self.ledger.counts("killed");
        self.stirs();
    }

    pub(super) fn stops(&self, process: usize, span: Duration) {
        let now = self.ledger.now();
        {
            let mut state = self.state.lock();
            state.workers.get_mut(&process).into_iter().for_each(|worker| worker.is_stopped = true);
            state.stirred = state.stirred.max(now + span.min(SILENCE));
            state.due = state.due.max(now + span.max(SILENCE) + SILENCE + REPLACED_WITHIN);
        }
        self.ledger.counts("stopped");
    }

    /// Processes that may be killed.
    pub(super) fn living(&self) -> Vec<usize> {
        let state = self.state.lock();
        let lives = |worker: &Worker| worker.killed.is_none() && !worker.has_left;
        state.workers.iter().filter(|(_, worker)| lives(worker)).map(|(process, _)| *process).collect()
    }

    /// Whether a process has ended, as its fleet knows.
    pub(super) fn is_gone(&self, process: usize) -> bool {
        let state = self.state.lock();
        state.workers.get(&process).is_some_and(|worker| worker.killed.is_some() || worker.has_left)
    }

    /// Whether the pool may have lost this worker.
    pub(super) fn is_troubled(&self, process: usize) -> bool {
        self.state.lock().is_troubled(process)
    }

    /// A worker is set up.
    pub(super) fn sets_up(&self, process: usize) -> Result<()> {
        let now = self.ledger.now();
        let mut state = self.state.lock();
        if self.setup == Setup::Fails {
            state.has_failed_setup = true;
            return Err(Error::new(ErrorKind::Mismatch, "planned setup"));
        }
        if let Some(worker) = state.workers.get_mut(&process) {
            (worker.is_ready, worker.idle_since) = (true, now);
        }
        Ok(())
    }

    /// A process has come to its end.
    pub(super) fn leaves(&self, process: usize, worked: &Result<()>) {
        let now = self.ledger.now();
        let (is_free, slot, busy) = {
            let mut state = self.state.lock();
            let is_free = state.is_closing || state.is_troubled(process);
            let worker = state.workers.get_mut(&process);
            let (slot, busy) = worker.map_or((0, Duration::ZERO), |worker| {
                worker.has_left = true;
                (worker.slot, worker.busy)
            });
            (is_free, slot, busy)
        };
        let has_host_ended = self.host_ends.is_some_and(|at| at <= now + CLOCKS_APART);
        let is_late = self.host_ends.is_some_and(|at| now > at + KNOWN_WITHIN + self.prompt + busy);
        match worked {
            Ok(()) => {}
            Err(error) if is_free || has_host_ended && error.kind() == ErrorKind::PeerLost => {}
            Err(error) => self.fault(format!("worker {process} of slot {slot} has ended with {error:?}")),
        }
        if is_late && worked.as_ref().is_err_and(|error| error.operation_name() != Some("attach")) && !is_free {
            self.fault(format!("worker {process} has ended at {now:?}, long after its host"));
        }
        self.stirs();
    }

    pub(super) fn submits(&self, order: &Order, is_of_job: bool) -> u64 {
        let now = self.ledger.now();
        let mut state = self.state.lock();
        state.due = state.due.max(now + REPLACED_WITHIN) + order.span * (1 + order.tries);
        let (begun, finished) = (Vec::new(), Vec::new());
        state.tasks.push(Task {
            order: *order,
            submitted: now,
            begun,
            finished,
            is_safe: false,
            ended: 0,
            is_cancelled: false,
            is_of_job,
        });
        state.tasks.len() as u64 - 1
    }

    pub(super) fn is_cancelled(&self, number: u64) {
        self.state.lock().tasks[number as usize].is_cancelled = true;
    }

    /// A worker begins with a task.
    pub(super) fn begins(&self, number: u64, process: usize) {
        let now = self.ledger.now();
        let mut state = self.state.lock();
        let span = state.tasks[number as usize].order.span;
        if let Some(worker) =
            state.workers.get_mut(&process).filter(|_| self.host_ends.is_some_and(|at| at < now + span))
        {
            worker.busy += span;
        }
        let wrong = state.begins(number, process, now, self.prompt, self.tasks_per_worker);
        drop(state);
        wrong.into_iter().for_each(|what| self.fault(what));
    }

    pub(super) fn finishes(&self, number: u64, process: usize, order: &Order) {
        let now = self.ledger.now();
        let mut state = self.state.lock();
        let Some(worker) = state.workers.get_mut(&process) else { return };
        (worker.running, worker.idle_since) = (None, now);
        let is_safe = worker.begun <= FIRST && order.result_bytes == 0 && !worker.is_stopped;
        let task = &mut state.tasks[number as usize];
        task.finished.push((process, now));
        task.is_safe = is_safe;
    }

    /// The outcome of a task is there.
    pub(super) fn ends(&self, number: u64, outcome: &Outcome) {
        let now = self.ledger.now();
        self.ledger.counts(&match outcome {
            Ok(_) => "result".to_owned(),
            Err(error) => format!("{:?}", error.kind()),
        });
        let mut state = self.state.lock();
        let wrong = state.ends(number, outcome, now, self.prompt);
        drop(state);
        wrong.into_iter().for_each(|what| self.fault(format!("task {number} {what}: {outcome:?}")));
    }

    /// All tasks have ended that were submitted, and all outcomes were taken.
    pub(super) fn have_ended(&self) {
        let state = self.state.lock();
        let open: Vec<usize> = (0..state.tasks.len()).filter(|number| state.tasks[*number].ended == 0).collect();
        let is_given_up = state.is_given_up;
        drop(state);
        if !open.is_empty() && !is_given_up {
            self.fault(format!("all tasks have ended but {open:?}"));
        }
    }

    /// Until when all has to be there that is waited for.
    pub(super) fn due(&self) -> Duration {
        let state = self.state.lock();
        let way = self.prompt * state.tasks.len() as u32;
        state.due + way
    }

    pub(super) fn now(&self) -> Duration {
        self.ledger.now()
    }

    /// The pool takes no more.
    pub(super) fn closes(&self) {
        self.state.lock().is_closing = true;
    }

    pub(super) fn is_closing(&self) -> bool {
        self.state.lock().is_closing
    }

    /// The pool is over.
    pub(super) fn is_through(&self) {
        self.state.lock().is_over = true;
    }

    pub(super) fn is_over(&self) -> bool {
        self.state.lock().is_over
    }

    /// Something has not come: nothing more is waited for.
    pub(super) fn gives_up(&self) {
        self.state.lock().is_given_up = true;
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.state.lock().is_given_up
    }
}

impl State {
    fn is_troubled(&self, process: usize) -> bool {
        self.workers.get(&process).is_some_and(|worker| worker.killed.is_some() || worker.is_stopped)
    }

    /// Whether a task has come to its end where its outcome must be: the death of a worker does not reach it, the end
    /// of a link may.
    fn is_safe(&self, task: &Task) -> bool {
        let last = task.finished.last().and_then(|(process, _)| self.workers.get(process));
        task.is_safe && last.is_some_and(|worker| !worker.is_stopped)
    }

    fn begins(
        &mut self,
        number: u64,
        process: usize,
        now: Duration,
        prompt: Duration,
        tasks_per_worker: Option<usize>,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        let task = &self.tasks[number as usize];
        if let Some(before) = task.begun.iter().find(|before| !self.is_troubled(**before)) {
            wrong.push(format!("task {number} begins on worker {process}, and has begun on {before}, which is well"));
        }
        if task.begun.len() as u32 > task.order.tries {
            let tries = task.order.tries;
            wrong.push(format!("task {number} of {tries} tries begins on worker {process} after {:?}", task.begun));
        }
        if task.ended > 0 {
            wrong.push(format!("task {number} begins on worker {process}, and has ended"));
        }
        if self.is_safe(task) {
            wrong.push(format!("task {number} begins on worker {process}, and has come to its end before"));
        }
        for (other, worker) in &self.workers {
            let has_left = tasks_per_worker.is_some_and(|most| worker.begun >= most as u64) || worker.has_left;
            let is_well = worker.is_ready && !self.is_troubled(*other) && !has_left;
            let idle = now.saturating_sub(worker.idle_since.max(task.submitted).max(self.stirred));
            if is_well && worker.running.is_none() && *other != process && idle > prompt {
                wrong.push(format!("task {number} has waited for worker {process} while {other} did nothing {idle:?}"));
            }
        }
        self.tasks[number as usize].begun.push(process);
        if let Some(worker) = self.workers.get_mut(&process) {
            (worker.running, worker.begun) = (Some(number), worker.begun + 1);
        }
        wrong
    }

    /// How many workers of one slot were killed before they had begun with a task.
    fn unready_deaths(&self) -> usize {
        let unready = |worker: &&Worker| worker.killed.is_some() && worker.begun == 0;
        let of_slot = |slot| self.workers.values().filter(unready).filter(|worker| worker.slot == slot).count();
        self.workers.values().map(|worker| of_slot(worker.slot)).max().unwrap_or(0)
    }

    /// What is wrong with an outcome.
    fn ends(&mut self, number: u64, outcome: &Outcome, now: Duration, prompt: Duration) -> Option<&'static str> {
        let unready = self.unready_deaths();
        let is_begun_by_the_well = {
            let task = &self.tasks[number as usize];
            task.begun.iter().any(|process| !self.is_troubled(*process))
        };
        let is_last_troubled =
            self.tasks[number as usize].begun.last().is_some_and(|process| self.is_troubled(*process));
        let is_safe = self.is_safe(&self.tasks[number as usize]);
        let stirred = self.stirred;
        let task = &mut self.tasks[number as usize];
        task.ended += 1;
        if task.ended > 1 {
            return Some("has ended before");
        }
        let has_finished = !task.finished.is_empty();
        match outcome {
            Ok(packet) => {
                let is_own = is_result_of(packet, number, task.order.result_bytes);
                let late = task.finished.last().is_some_and(|(_, finished)| {
                    !task.is_of_job && !is_last_troubled && now > (*finished).max(stirred) + prompt
                });
                if !is_own {
                    Some("has the result of another one")
                } else if task.order.what != What::Returns || !has_finished {
                    Some("has a result, and none was made")
                } else {
                    late.then_some("has ended long after its function")
                }
            }
            Err(error) => match error.kind() {
                ErrorKind::WorkerDied if error.to_string().contains("before they were set up") => {
                    (unready < UNREADY_DEATHS).then_some("fails with the pool, for no reason")
                }
                ErrorKind::WorkerDied if task.begun.len() as u32 != 1 + task.order.tries => {
                    Some("fails by a death, and has not begun so often")
                }
                ErrorKind::WorkerDied if is_begun_by_the_well => Some("fails by a death, and its worker is well"),
                ErrorKind::WorkerDied if is_safe => Some("fails by a death, and had come to its end"),
                ErrorKind::WorkerDied => {
                    let last = task.begun.last().map(|process| format!("worker {process}."));
                    (!last.is_some_and(|last| error.to_string().contains(&last))).then_some("fails by another's death")
                }
                ErrorKind::Cancelled if !task.is_cancelled => Some("is cancelled by nobody"),
                ErrorKind::Cancelled if is_begun_by_the_well => Some("is cancelled, and had begun"),
                ErrorKind::Cancelled => None,
                ErrorKind::Mismatch if error.to_string().contains("planned setup") => {
                    (!self.has_failed_setup).then_some("fails by a setup that nobody has tried")
                }
                ErrorKind::Mismatch => {
                    let is_planned = error.to_string().contains(&format!("planned {number}."));
                    (!is_planned || task.order.what != What::Fails).then_some("fails as another one does")
                }
                ErrorKind::Closed if self.is_closing => None,
                _ => Some("has ended in a way in which none may"),
            },
        }
    }
}

fn is_result_of(packet: &Packet, number: u64, bytes: u64) -> bool {
    match packet.value() {
        Ok(Value::List(list)) => {
            list.first() == Some(&Value::Int(number as i64))
                && matches!(list.get(1), Some(Value::Bytes(pad)) if pad.len() as u64 == bytes)
        }
        _ => false,
    }
}

/// What the fleet says of a worker that has ended.
pub(super) fn death_of(process: usize) -> Error {
    Error::new(ErrorKind::WorkerDied, format!("the process of worker {process}. has ended"))
}
