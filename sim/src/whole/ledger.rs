//! What all processes have done and seen, and whether it may have been so.
//!
//! * **Calls**: each begins at most once and ends once; an answer means that it has begun; an error has a reason that
//!   its caller has given, or names a process that a trouble has met with before. Nobody waits for longer than a
//!   death or a silence may stay unnoticed.
//! * **Barriers**: who passes the n-th of a group does so after all of it have come to theirs.
//! * **References**: an object is there as long as anybody holds it, and is freed when nobody does.
//! * **Members**: who was met with no trouble stays one, if most are such.

use super::scenario::{Doom, Quit, Scenario};
use crate::lockstep::Outcome;
use sheave_base::{Error, ErrorKind, NodeId, Result, Work, clock};
use sheave_mesh::engine::Death;
use sheave_mesh::{Answer, Call, Ref};
use sheave_wire::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A death that a system tells of is known everywhere within this time.
const KNOWN_WITHIN: Duration = Duration::from_secs(1);
/// One that only silence tells of: the liveness timeout, the beats around it, and as long as above.
const SILENCE_WITHIN: Duration = Duration::from_millis(2600);
/// What a call may take besides: the deadlines of others in front of it, ...
const QUEUE: Duration = Duration::from_millis(300);
/// ... and so many ways as a deep circle of calls has, each over a link that is made for it.
const WAYS: u32 = 128;

/// What the caller itself does to end a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    Wait,
    Cancel,
    /// A deadline that the handler outlasts.
    Late(Duration),
    /// It uses what another call may fail to make.
    Use,
    /// It does not wait for it, and leaves.
    Last,
}

#[derive(Default)]
struct Record {
    caller: usize,
    made: Option<Instant>,
    begun: u32,
    ended: u32,
}

#[derive(Default)]
struct Books {
    nodes: BTreeMap<NodeId, usize>,
    ready: BTreeSet<usize>,
    calls: BTreeMap<i64, Record>,
    last_call: i64,
    wrong: Vec<String>,
    /// How often errors of a kind ended a call.
    errors: BTreeMap<String, u64>,
    answered: u64,
    barriers: u64,
    shrunk: u64,
    entered: BTreeMap<(String, u64), BTreeSet<usize>>,
    quit: BTreeMap<usize, Instant>,
    /// By process, objects that live.
    objects: BTreeMap<usize, i64>,
    exported: u64,
    /// By caller and callee, the last call that has begun in the mailbox of all.
    mailboxes: BTreeMap<(usize, usize), i64>,
    running: BTreeMap<usize, u32>,
    last_calls: Vec<i64>,
    pockets: BTreeMap<usize, Vec<Ref>>,
    invitations: BTreeMap<usize, String>,
    ended: BTreeSet<usize>,
}

/// The record of a job.
pub(super) struct Ledger {
    books: Mutex<Books>,
    pub(super) origin: Mutex<Option<Instant>>,
    scenario: Scenario,
    doomed: BTreeMap<usize, Doom>,
}

/// Figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub calls: u64,
    pub answered: u64,
    pub errors: BTreeMap<String, u64>,
    pub barriers: u64,
    pub shrunk: u64,
    pub objects: u64,
    pub lasted: Duration,
    pub switches: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, answered, errors, barriers, shrunk, objects, lasted, switches } = self;
        write!(
            f,
            "{calls} calls, {answered} answered, {errors:?}, {barriers} barriers, {shrunk} shrunk, {objects} objects, "
        )?;
        write!(f, "{lasted:?} in {switches} switches")
    }
}

/// An object whose life is counted.
pub(super) struct Counted {
    ledger: Arc<Ledger>,
    owner: usize,
}

impl Counted {
    pub(super) fn new(ledger: &Arc<Ledger>, owner: usize) -> Arc<Self> {
        let mut books = ledger.books();
        *books.objects.entry(owner).or_default() += 1;
        books.exported += 1;
        drop(books);
        Arc::new(Self { ledger: Arc::clone(ledger), owner })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *self.ledger.books().objects.entry(self.owner).or_default() -= 1;
    }
}

/// A handler of a mailbox that runs.
pub(super) struct InMailbox {
    ledger: Arc<Ledger>,
    callee: usize,
}

impl Drop for InMailbox {
    fn drop(&mut self) {
        *self.ledger.books().running.entry(self.callee).or_default() -= 1;
    }
}

/// References that one process keeps; older ones go.
const POCKET: usize = 8;

impl Ledger {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let doomed = scenario.doomed();
        let (books, origin) = (Mutex::default(), Mutex::default());
        Self { books, origin, scenario: scenario.clone(), doomed }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time since the world began. The first look is at its beginning.
    pub(super) fn now(&self) -> Duration {
        let now = clock::now();
        let mut origin = self.origin.lock().unwrap_or_else(PoisonError::into_inner);
        now.saturating_duration_since(*origin.get_or_insert(now))
    }

    pub(super) fn joined(&self, process: usize, node: NodeId) {
        self.books().nodes.insert(node, process);
    }

    /// It serves, or will never be called.
    pub(super) fn is_ready(&self, process: usize) {
        self.books().ready.insert(process);
    }

    /// Whether whoever may be called serves.
    pub(super) fn are_all_ready(&self) -> bool {
        let now = self.now();
        let books = self.books();
        let is_hit = |process: &usize| self.doomed.get(process).is_some_and(|doom| doom.from <= now);
        (0..self.scenario.ranks()).all(|process| books.ready.contains(&process) || is_hit(&process))
    }

    /// The invitation of a guest is there.
    pub(super) fn invite(&self, guest: usize, text: &str) {
        self.books().invitations.insert(guest, text.to_owned());
    }

    pub(super) fn invitation(&self, guest: usize) -> Option<String> {
        self.books().invitations.get(&guest).cloned()
    }

    /// A host takes a guest for attached: one that has ended is not for long. Returns whether the guest is known here.
    pub(super) fn sees_guest(&self, host: usize, guest: NodeId) -> bool {
        let now = self.now();
        let Some(guest) = self.books().nodes.get(&guest).copied() else { return false };
        let Some(doom) = self.doomed.get(&guest).filter(|doom| doom.ends) else { return true };
        let within = if doom.is_told { KNOWN_WITHIN } else { SILENCE_WITHIN };
        if now > doom.from + within && !self.is_doomed(host) {
            self.fault(format!("{host} takes its guest {guest} for attached, which ended at {:?}", doom.from));
        }
        true
    }

    /// The process of a node.
    pub(super) fn process_of(&self, node: NodeId) -> Option<usize> {
        self.books().nodes.get(&node).copied()
    }

    /// Whether a process has ended so long ago that all must know.
    pub(super) fn is_long_gone(&self, process: usize) -> bool {
        let doom = self.doomed.get(&process).filter(|doom| doom.ends);
        doom.is_some_and(|doom| doom.from + if doom.is_told { KNOWN_WITHIN } else { SILENCE_WITHIN } < self.now())
    }

    /// Whether others may by now hold this process for dead.
    pub(super) fn may_be_dead(&self, process: usize) -> bool {
        let now = self.now();
        let is_met = self.doomed.get(&process).is_some_and(|doom| doom.from <= now);
        is_met || self.books().quit.contains_key(&process) || !self.scenario.must_go_on()
    }

    /// Whether a process was killed, or will be, and nothing else is wrong with it.
    pub(super) fn is_killed(&self, process: usize) -> bool {
        let quits = self.scenario.quits.is_some_and(|(quitter, ..)| quitter == process);
        !quits && self.doomed.get(&process).is_some_and(|doom| doom.ends)
    }

    /// Something that had to be done by now was done, or failed; a fault if it took longer than it may.
    pub(super) fn ends_in_time(&self, process: usize, what: &str, lasted: Duration) {
        let bound = self.bound(self.now(), lasted);
        if lasted > bound && !self.is_doomed(process) && self.scenario.must_go_on() {
            self.fault(format!("{what} of {process} has lasted {lasted:?}, of {bound:?}"));
        }
    }

    /// Whether that process was killed by now.
    pub(super) fn has_ended(&self, node: NodeId) -> bool {
        let now = self.now();
        let process = self.books().nodes.get(&node).copied();
        process.and_then(|process| self.doomed.get(&process)).is_some_and(|doom| doom.ends && doom.from <= now)
    }

    pub(super) fn quits(&self, process: usize) {
        self.books().quit.insert(process, clock::now());
    }

    /// Whether a trouble has met with it, or will.
    pub(super) fn is_doomed(&self, process: usize) -> bool {
        let quits = self.scenario.quits.is_some_and(|(quitter, ..)| quitter == process);
        quits || self.doomed.contains_key(&process)
    }

    /// Whether something goes wrong in this job, whatever.
    pub(super) fn is_troubled(&self) -> bool {
        !self.doomed.is_empty() || self.scenario.quits.is_some()
    }

    pub(super) fn fault(&self, what: String) {
        let now = self.now();
        self.books().wrong.push(format!("at {now:?}: {what}"));
    }

    /// Something has happened that a report counts.
    pub(super) fn counts(&self, what: &str) {
        *self.books().errors.entry(what.to_owned()).or_default() += 1;
    }

    /// Whether this process may be blamed by now.
    fn is_culprit(&self, books: &Books, process: usize, now: Duration) -> bool {
        // Who has come to its end may leave.
        let is_through = books.ended.contains(&process) || books.quit.contains_key(&process);
        is_through || self.doomed.get(&process).is_some_and(|doom| doom.from <= now)
    }

    fn names_a_culprit(&self, books: &Books, error: &Error, now: Duration) -> bool {
        let process_of = |peer: &sheave_base::Peer| match peer.node.and_then(|node| books.nodes.get(&node)) {
            Some(process) => Some(*process),
            None => peer.name.strip_prefix("rank-").and_then(|rank| rank.parse().ok()),
        };
        let named = [error.about(), error.happened_on()].into_iter().flatten().filter_map(process_of);
        named.into_iter().any(|process| self.is_culprit(books, process, now))
    }

    /// Whether an error that ends something at this process may be: it names one that has met with trouble, or its own
    /// process has.
    pub(super) fn may_fail(&self, process: usize, error: &Error) -> bool {
        let now = self.now();
        let books = self.books();
        self.is_culprit(&books, process, now) || !self.scenario.must_go_on() || self.names_a_culprit(&books, error, now)
    }

    /// A call that takes its number along as the first of its arguments. Its outcome is looked at when it ends.
    pub(super) fn call(
        self: &Arc<Self>,
        caller: usize,
        call: Call,
        intent: Intent,
        make: impl FnOnce(Call) -> Result<Work<Answer>>,
    ) -> Result<Work<Answer>> {
        self.numbered_call(caller, call, intent, make).1
    }

    /// As [`Ledger::call`], with its number.
    pub(super) fn numbered_call(
        self: &Arc<Self>,
        caller: usize,
        call: Call,
        intent: Intent,
        make: impl FnOnce(Call) -> Result<Work<Answer>>,
    ) -> (i64, Result<Work<Answer>>) {
        let made = Some(clock::now());
        let number = {
            let mut books = self.books();
            books.last_call += 1;
            let number = books.last_call;
            books.calls.insert(number, Record { caller, made, begun: 0, ended: 0 });
            number
        };
        let args = Value::List(vec![Value::Int(number), call.args]);
        let own = Arc::clone(self);
        let work = match make(Call { args, ..call }) {
            Ok(work) => work,
            Err(error) => {
                self.ended(number, &Err(error.clone()), intent);
                return (number, Err(error));
            }
        };
        work.on_complete(move |outcome| own.ended(number, outcome, intent));
        (number, Ok(work))
    }

    /// A one-way call, which may fail because an earlier one has.
    pub(super) fn cast(&self, caller: usize, call: Call, make: impl FnOnce(Call) -> Result<()>) -> (i64, Result<()>) {
        let number = {
            let mut books = self.books();
            books.last_call += 1;
            let number = books.last_call;
            books.calls.insert(number, Record { caller, made: Some(clock::now()), begun: 0, ended: 1 });
            number
        };
        let args = Value::List(vec![Value::Int(number), call.args]);
        (number, make(Call { args, ..call }))
    }

    /// A call was answered behind these one-way calls of the same mailbox: they have begun.
    pub(super) fn have_begun(&self, numbers: &[i64]) {
        let books = self.books();
        let is_unheard = |number: &&i64| books.calls.get(number).is_none_or(|record| record.begun != 1);
        let unheard: Vec<i64> = numbers.iter().filter(is_unheard).copied().collect();
        drop(books);
        if !unheard.is_empty() {
            self.fault(format!("one-way calls {unheard:?} have not begun, and one behind them was answered"));
        }
    }

    /// Whether nothing may go wrong between these two.
    pub(super) fn is_sound_between(&self, process: usize, node: NodeId) -> bool {
        let other = self.books().nodes.get(&node).copied();
        let is_sound = |process: usize| !self.is_doomed(process) && self.scenario.must_go_on();
        is_sound(process) && other.is_some_and(is_sound)
    }

    /// A handler has begun with this call. Returns its number, and what comes after it.
    pub(super) fn begins(&self, args: Value) -> (i64, Value) {
        let Value::List(list) = args else { panic!("{args:?} where a list was expected") };
        let mut list = list.into_iter();
        let (Some(Value::Int(number)), Some(rest)) = (list.next(), list.next()) else { panic!("a list of two") };
        let mut books = self.books();
        let record = books.calls.entry(number).or_default();
        record.begun += 1;
        if record.begun > 1 {
            let what = format!("call {number} has begun {} times", record.begun);
            drop(books);
            self.fault(what);
        }
        (number, rest)
    }

    /// A handler has begun with a call of one that makes its calls of this mailbox one after the other.
    pub(super) fn begins_in_order(&self, number: i64, callee: usize) {
        let mut books = self.books();
        let caller = books.calls.get(&number).map_or(0, |record| record.caller);
        let last = books.mailboxes.insert((caller, callee), number).unwrap_or(0);
        drop(books);
        if last > number {
            self.fault(format!("call {number} of {caller} has begun at {callee} behind {last} of the same mailbox"));
        }
    }

    /// Whether the caller has met with trouble, or may.
    pub(super) fn is_call_of_doomed(&self, number: i64) -> bool {
        let caller = self.books().calls.get(&number).map_or(0, |record| record.caller);
        self.is_doomed(caller) || !self.scenario.must_go_on()
    }

    /// A handler of this mailbox runs, until what is returned is dropped.
    pub(super) fn enters_mailbox(self: &Arc<Self>, callee: usize) -> InMailbox {
        let running = {
            let mut books = self.books();
            let running = books.running.entry(callee).or_default();
            *running += 1;
            *running
        };
        if running > 1 {
            self.fault(format!("{running} handlers of one mailbox of {callee} run at a time"));
        }
        InMailbox { ledger: Arc::clone(self), callee }
    }

    /// All others have left: what they have said last was heard.
    pub(super) fn has_heard_all(&self) {
        let books = self.books();
        let is_unheard = |number: &&i64| books.calls.get(number).is_none_or(|record| record.begun == 0);
        let unheard: Vec<i64> = books.last_calls.iter().filter(is_unheard).copied().collect();
        drop(books);
        if !unheard.is_empty() {
            self.fault(format!("those who have left have sent calls {unheard:?}, which have not begun"));
        }
    }

    /// A call after which its caller leaves.
    pub(super) fn is_last(&self, number: i64) {
        self.books().last_calls.push(number);
    }

    fn ended(&self, number: i64, outcome: &Result<Answer>, intent: Intent) {
        let now = self.now();
        let mut books = self.books();
        let record = books.calls.entry(number).or_default();
        record.ended += 1;
        let (ended, begun, caller) = (record.ended, record.begun, record.caller);
        let lasted = record.made.map(clock::since).unwrap_or_default();
        let mut wrong = Vec::new();
        if let (Intent::Late(deadline), Err(error)) = (intent, outcome)
            && error.kind() == ErrorKind::DeadlineExceeded
            && lasted < deadline
        {
            wrong.push(format!("the deadline of call {number} was over after {lasted:?} of {deadline:?}"));
        }
        if ended > 1 {
            wrong.push(format!("call {number} has ended {ended} times"));
        }
        match outcome {
            Ok(_) if begun != 1 => wrong.push(format!("call {number} is answered and has begun {begun} times")),
            Ok(_) => books.answered += 1,
            Err(error) => {
                *books.errors.entry(format!("{:?}", error.kind())).or_default() += 1;
                if !self.may_end_so(&books, caller, error, intent, now) {
                    wrong.push(format!("a call of {caller} accuses the wrong one, or nobody: {error:?}"));
                }
            }
        }
        let bound = self.bound(now, lasted);
        if lasted > bound && !self.is_doomed(caller) && self.scenario.must_go_on() {
            wrong.push(format!(
                "call {number} of {caller} has lasted {lasted:?}, of {bound:?}: {:?}",
                outcome.as_ref().err()
            ));
        }
        drop(books);
        wrong.into_iter().for_each(|what| self.fault(what));
    }

    /// How long what ends now may have lasted.
    pub(super) fn bound(&self, now: Duration, lasted: Duration) -> Duration {
        let made = now.saturating_sub(lasted);
        let is_told = self.doomed.values().all(|doom| doom.is_told);
        let unnoticed = match (self.is_troubled(), is_told) {
            (false, _) => Duration::ZERO,
            (true, true) => KNOWN_WITHIN,
            (true, false) => SILENCE_WITHIN,
        };
        // Also of a stop that is too short to be noticed, for which its callers wait.
        let troubled = self.scenario.last_trouble().saturating_sub(made);
        let usual = self.scenario.way;
        let way = QUEUE + Duration::from_nanos(usual.delay_ns + usual.jitter_ns) * WAYS;
        troubled + unnoticed + way
    }

    fn may_end_so(&self, books: &Books, caller: usize, error: &Error, intent: Intent, now: Duration) -> bool {
        let may = match error.kind() {
            _ if intent == Intent::Last => true,
            ErrorKind::Cancelled => intent == Intent::Cancel,
            ErrorKind::DeadlineExceeded => matches!(intent, Intent::Late(_)),
            // What it named may have gone with whoever has given it.
            ErrorKind::NotFound => self.is_troubled() && error.what().contains("reference"),
            // Of a promise that its handler has poisoned or forgotten; the error names the call.
            ErrorKind::Mismatch | ErrorKind::Remote => {
                intent == Intent::Use && error.to_string().contains("to fill it")
            }
            _ => false,
        };
        may || self.is_culprit(books, caller, now)
            || !self.scenario.must_go_on()
            || self.names_a_culprit(books, error, now)
    }

    pub(super) fn keep(&self, process: usize, refs: Vec<Ref>) {
        let old = {
            let mut books = self.books();
            // One that has come to its end keeps nothing.
            let most = if books.ended.contains(&process) { 0 } else { POCKET };
            let pocket = books.pockets.entry(process).or_default();
            pocket.extend(refs);
            let too_many = pocket.len().saturating_sub(most);
            pocket.drain(..too_many).collect::<Vec<_>>()
        };
        drop(old);
    }

    pub(super) fn take_one(&self, process: usize) -> Option<Ref> {
        self.books().pockets.get_mut(&process)?.pop()
    }

    pub(super) fn drop_refs(&self, process: usize) {
        let pocket = self.books().pockets.remove(&process);
        drop(pocket);
    }

    /// A process comes to its next barrier of a group. Returns the number of that.
    pub(super) fn enters(&self, process: usize, group: &str, number: u64) {
        self.books().entered.entry((group.to_owned(), number)).or_default().insert(process);
    }

    /// A process has passed a barrier of these.
    pub(super) fn passes(&self, process: usize, group: &str, number: u64, nodes: &[NodeId]) {
        let mut books = self.books();
        books.barriers += 1;
        let entered = books.entered.get(&(group.to_owned(), number)).cloned().unwrap_or_default();
        let missing: Vec<usize> =
            nodes.iter().filter_map(|node| books.nodes.get(node)).filter(|of| !entered.contains(of)).copied().collect();
        drop(books);
        if !missing.is_empty() {
            self.fault(format!("{process} passed barrier {number} of {group}, which {missing:?} never entered"));
        }
    }

    /// A process goes on with these.
    pub(super) fn shrinks(&self, process: usize, nodes: &[NodeId], deaths: &[Death]) {
        let mut books = self.books();
        books.shrunk += 1;
        let left: BTreeSet<usize> = nodes.iter().filter_map(|node| books.nodes.get(node)).copied().collect();
        // One that has not come out of its join yet is not known by its node here.
        let innocent =
            books.nodes.values().copied().filter(|other| !self.is_doomed(*other) && *other < self.scenario.ranks());
        let missing: Vec<usize> =
            innocent.filter(|other| !left.contains(other) && !books.ended.contains(other)).collect();
        drop(books);
        if !missing.is_empty() && !self.is_doomed(process) && self.scenario.must_go_on() {
            self.fault(format!("{process} goes on without {missing:?}, with which nothing is wrong: {deaths:?}"));
        }
    }

    /// A process has come to the end of its program, and uses nothing any more.
    pub(super) fn comes_to_its_end(&self, process: usize) {
        self.books().ended.insert(process);
        self.drop_refs(process);
    }

    pub(super) fn has_come_to_its_end(&self, process: usize) -> bool {
        self.books().ended.contains(&process)
    }

    /// Whether all have, of whom that is to be expected.
    pub(super) fn have_all_ended(&self) -> bool {
        let books = self.books();
        let is_expected = |process: usize| {
            let host = self.scenario.host_of(process);
            !self.is_doomed(process) && host.is_none_or(|host| !self.is_doomed(host))
        };
        (0..self.scenario.hosts.len()).all(|process| !is_expected(process) || books.ended.contains(&process))
    }

    /// Objects of that process that live.
    pub(super) fn objects_of(&self, process: usize) -> i64 {
        self.books().objects.get(&process).copied().unwrap_or(0)
    }

    /// All that was wrong.
    pub(super) fn settle(&self) -> Vec<String> {
        let mut books = self.books();
        let pending: Vec<i64> = books
            .calls
            .iter()
            .filter(|(_, record)| record.ended == 0 && !self.is_doomed(record.caller))
            .map(|(number, _)| *number)
            .collect();
        let mut wrong = std::mem::take(&mut books.wrong);
        if !pending.is_empty() {
            wrong.push(format!("{} calls of processes that live have not ended: {pending:?}", pending.len()));
        }
        // Dropped with no lock held, and by no simulated thread: they are forgotten.
        std::mem::forget(std::mem::take(&mut books.pockets));
        wrong
    }

    pub(super) fn report(&self, outcome: &Outcome) -> Report {
        let books = self.books();
        Report {
            calls: books.calls.len() as u64,
            answered: books.answered,
            errors: books.errors.clone(),
            barriers: books.barriers,
            shrunk: books.shrunk,
            objects: books.exported,
            lasted: outcome.lasted,
            switches: outcome.switches,
        }
    }

    /// Whether this process ends in this round, and how.
    pub(super) fn quit_in(&self, process: usize, round: u64) -> Option<Quit> {
        self.scenario.quits.filter(|(quitter, when, _)| (*quitter, *when) == (process, round)).map(|(_, _, quit)| quit)
    }
}
