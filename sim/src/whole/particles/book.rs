//! What all particles of a job were sent, and what came of it.

use super::super::ledger::Ledger;
use parking_lot::Mutex;
use sheave_base::{Error, ErrorKind, Result};
use sheave_particle::Message;
use sheave_wire::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Messages of a job at most: handlers send no others.
const MESSAGES_MAX: i64 = 500;

/// A particle: its process, and its number there.
pub(in super::super) type Place = (usize, u64);

/// Somebody who sends one message after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Sender {
    /// A thread or a task of a process.
    User(usize, u64),
    /// The handler of this message.
    Handler(i64),
}

/// What a message is to end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Plan {
    Answers,
    Fails,
    Panics,
}

/// Whether a wait closes a circle of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Circle {
    None,
    /// One that ends by itself, when another one of its waits has lasted for long enough.
    Timed,
    Closed,
}

struct Sent {
    sender: Sender,
    /// The process that has sent it.
    process: usize,
    to: Place,
    plan: Plan,
    /// How many handlers have led to it, one after the other.
    depth: u64,
    begun: u32,
    ended: u32,
    is_running: bool,
    is_cancelled: bool,
    /// What its handler waits for, whether for a while only, and how many waits there are.
    targets: Vec<(i64, bool)>,
    waits: u32,
}

#[derive(Default)]
struct Kept {
    is_reentrant: bool,
    is_removed: bool,
    running: BTreeSet<i64>,
    /// By sender, the last message that has begun.
    last: BTreeMap<Sender, i64>,
}

#[derive(Default)]
struct Books {
    sent: BTreeMap<i64, Sent>,
    count: i64,
    kept: BTreeMap<Place, Kept>,
    senders: u64,
    /// By process and message to one that is gone, since when that should be known.
    overdue: BTreeMap<i64, Duration>,
}

impl Books {
    /// The messages that keep this one from being answered.
    fn keepers(&self, number: i64) -> Vec<i64> {
        let Some(sent) = self.sent.get(&number).filter(|sent| sent.ended == 0) else { return Vec::new() };
        let Some(kept) = self.kept.get(&sent.to) else { return Vec::new() };
        match (sent.is_running, kept.is_reentrant) {
            (true, _) => vec![number],
            (false, false) if sent.begun == 0 => kept.running.iter().copied().collect(),
            _ => Vec::new(),
        }
    }

    /// Whether `target` is answered only after the handler of `waiter` has ended, or others have waited for long enough
    /// (`with_timed`).
    fn is_circle(&self, waiter: i64, target: i64, with_timed: bool) -> bool {
        let (mut seen, mut next) = (BTreeSet::new(), self.keepers(target));
        while let Some(keeper) = next.pop() {
            if keeper == waiter {
                return true;
            }
            if seen.insert(keeper)
                && let Some(sent) = self.sent.get(&keeper)
            {
                let lasting = sent.targets.iter().filter(|(_, is_timed)| with_timed || !is_timed);
                next.extend(lasting.flat_map(|(target, _)| self.keepers(*target)));
            }
        }
        false
    }
}

/// What is held against all that particles do.
pub(in super::super) struct Book {
    pub(in super::super) ledger: Arc<Ledger>,
    books: Mutex<Books>,
}

/// A handler that runs, until this is dropped.
pub(in super::super) struct Running {
    book: Arc<Book>,
    number: i64,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut books = self.book.books.lock();
        let Some(sent) = books.sent.get_mut(&self.number) else { return };
        sent.is_running = false;
        let to = sent.to;
        if let Some(kept) = books.kept.get_mut(&to) {
            kept.running.remove(&self.number);
        }
    }
}

impl Book {
    pub(in super::super) fn new(ledger: &Arc<Ledger>) -> Self {
        Self { ledger: Arc::clone(ledger), books: Mutex::default() }
    }

    pub(in super::super) fn fault(&self, what: String) {
        self.ledger.fault(what);
    }

    /// Somebody new who sends.
    pub(in super::super) fn user(&self, process: usize) -> Sender {
        let mut books = self.books.lock();
        books.senders += 1;
        Sender::User(process, books.senders)
    }

    pub(in super::super) fn makes(&self, place: Place, is_reentrant: bool) {
        self.books.lock().kept.insert(place, Kept { is_reentrant, ..Kept::default() });
    }

    /// A particle is going to be removed.
    pub(in super::super) fn removes(&self, place: Place) {
        if let Some(kept) = self.books.lock().kept.get_mut(&place) {
            kept.is_removed = true;
        }
    }

    /// The particles of a process.
    pub(in super::super) fn places_of(&self, process: usize) -> Vec<Place> {
        let books = self.books.lock();
        let own = books.kept.range((process, 0)..(process + 1, 0));
        own.filter(|(_, kept)| !kept.is_removed).map(|(place, _)| *place).collect()
    }

    /// Whether handlers may send more.
    pub(in super::super) fn has_room(&self) -> bool {
        self.books.lock().count < MESSAGES_MAX
    }

    /// Somebody sends a message, of which the number is returned.
    pub(in super::super) fn sends(&self, sender: Sender, process: usize, to: Place, plan: Plan, depth: u64) -> i64 {
        let mut books = self.books.lock();
        books.count += 1;
        let number = books.count;
        let (begun, ended, is_running, is_cancelled, targets, waits) = (0, 0, false, false, Vec::new(), 0);
        let sent = Sent { sender, process, to, plan, depth, begun, ended, is_running, is_cancelled, targets, waits };
        books.sent.insert(number, sent);
        number
    }

    /// How many handlers have led to this message.
    pub(in super::super) fn depth_of(&self, number: i64) -> u64 {
        self.books.lock().sent.get(&number).map_or(0, |sent| sent.depth)
    }

    /// A handler of this particle begins.
    pub(in super::super) fn begins(self: &Arc<Self>, number: i64, place: Place) -> (Plan, Running) {
        let mut wrong = Vec::new();
        let mut books = self.books.lock();
        let Books { sent, kept, .. } = &mut *books;
        let (mut plan, running) = (Plan::Answers, Running { book: Arc::clone(self), number });
        if let Some(own) = sent.get_mut(&number) {
            (own.begun, own.is_running, plan) = (own.begun + 1, true, own.plan);
            if own.begun > 1 || own.to != place {
                wrong
                    .push(format!("message {number} to {:?} begins at {place:?} for the {}th time", own.to, own.begun));
            }
            // Within a process the end is known at once.
            if own.ended > 0 && own.process == place.0 {
                wrong.push(format!("message {number} begins, and has ended; cancelled: {}", own.is_cancelled));
            }
        }
        let sender = sent.get(&number).map_or(Sender::User(place.0, 0), |own| own.sender);
        let particle = kept.entry(place).or_default();
        let last = particle.last.insert(sender, number).unwrap_or(0);
        if last > number {
            wrong.push(format!("message {number} of {sender:?} begins behind {last} at {place:?}"));
        }
        let waits = |other: &i64| particle.is_reentrant && sent.get(other).is_some_and(|other| other.waits > 0);
        let beside: Vec<i64> = particle.running.iter().copied().filter(|other| !waits(other)).collect();
        if !beside.is_empty() {
            wrong.push(format!("message {number} begins at {place:?} beside {beside:?}"));
        }
        particle.running.insert(number);
        drop(books);
        wrong.into_iter().for_each(|what| self.fault(what));
        (plan, running)
    }

    /// The handler of a message begins to wait for another one. Returns whether that closes a circle in a process.
    pub(in super::super) fn waits(&self, waiter: i64, target: i64, is_timed: bool) -> Circle {
        let mut books = self.books.lock();
        let process = |number: &i64, books: &Books| books.sent.get(number).map(|sent| sent.to.0);
        let is_near = process(&waiter, &books) == process(&target, &books);
        // A handler whose wait is over may not have gone on yet.
        let circle = match is_near && books.is_circle(waiter, target, true) {
            false => Circle::None,
            true if books.is_circle(waiter, target, false) => Circle::Closed,
            true => Circle::Timed,
        };
        if let Some(sent) = books.sent.get_mut(&waiter) {
            sent.waits += 1;
            sent.targets.extend(is_near.then_some((target, is_timed)));
        }
        circle
    }

    /// It waits for it no more, and the wait has ended like this.
    pub(in super::super) fn waited(&self, waiter: i64, target: i64, circle: Circle, outcome: &Result<Message>) {
        let mut books = self.books.lock();
        if let Some(sent) = books.sent.get_mut(&waiter) {
            sent.waits -= 1;
            if let Some(at) = sent.targets.iter().position(|(known, _)| *known == target) {
                sent.targets.swap_remove(at);
            }
        }
        drop(books);
        let is_told = matches!(outcome, Err(error) if error.kind() == ErrorKind::Deadlock);
        let may_be = circle == Circle::Timed || is_told == (circle == Circle::Closed);
        if !may_be {
            let error = outcome.as_ref().err();
            self.fault(format!(
                "the wait of {waiter} for {target} closes a circle: {circle:?}; it ends with {error:?}"
            ));
        }
        self.ledger.counts(if is_told { "circles" } else { "waits" });
    }

    /// Somebody cancels a message. Returns whether it has not begun, and nothing but the cancel ends it.
    pub(in super::super) fn cancels(&self, number: i64) -> bool {
        let mut books = self.books.lock();
        let Some(sent) = books.sent.get_mut(&number) else { return false };
        sent.is_cancelled = true;
        sent.process == sent.to.0 && sent.begun == 0 && sent.ended == 0
    }

    /// A message has come to its end.
    pub(in super::super) fn ends(&self, number: i64, outcome: &Result<Message>) {
        let mut books = self.books.lock();
        let Some(sent) = books.sent.get_mut(&number) else { return };
        sent.ended += 1;
        let (ended, begun, to, process, plan) = (sent.ended, sent.begun, sent.to, sent.process, sent.plan);
        let (is_running, is_cancelled) = (sent.is_running, sent.is_cancelled);
        let is_removed = books.kept.get(&to).is_some_and(|kept| kept.is_removed);
        drop(books);
        let has_begun = begun > 0;
        let may_be = match outcome {
            Ok(message) => message.value == Value::Int(number) && has_begun && !is_running && plan == Plan::Answers,
            Err(error) => match error.kind() {
                ErrorKind::Cancelled if is_cancelled => !has_begun || process != to.0,
                ErrorKind::NotFound if is_removed => !has_begun,
                ErrorKind::LimitExceeded => !has_begun,
                ErrorKind::Mismatch => plan == Plan::Fails && has_begun && is_planned(error, number),
                ErrorKind::Remote => plan == Plan::Panics && has_begun && is_planned(error, number),
                _ => self.ledger.may_fail(process, error),
            },
        };
        if !may_be || ended > 1 {
            self.fault(format!(
                "message {number} of {process} to {to:?}, {plan:?}, begun: {begun}, runs: {is_running}, cancelled: \
                 {is_cancelled}, removed: {is_removed}, ends for the {ended}th time with {outcome:?}"
            ));
        }
        self.ledger.counts(&outcome.as_ref().map_or_else(|error| format!("{:?}", error.kind()), |_| "Ok".to_owned()));
    }

    /// Messages of a process that have not ended.
    pub(in super::super) fn open_of(&self, process: usize) -> Vec<i64> {
        let books = self.books.lock();
        let is_open = |(_, sent): &(&i64, &Sent)| sent.process == process && sent.ended == 0;
        books.sent.iter().filter(is_open).map(|(number, _)| *number).collect()
    }

    /// What is known of messages.
    pub(in super::super) fn tells_of(&self, numbers: &[i64]) -> String {
        let books = self.books.lock();
        let told = numbers.iter().filter_map(|number| books.sent.get(number).map(|sent| (number, sent)));
        let told = told.map(|(number, sent)| {
            let Sent { sender, to, begun, targets, waits, .. } = sent;
            let kept = books.kept.get(to).map(|kept| (kept.is_reentrant, &kept.running));
            format!("{number} of {sender:?} to {to:?}, begun: {begun}, {waits} waits, for {targets:?}; {kept:?}")
        });
        told.collect::<Vec<_>>().join("; ")
    }

    /// Looks whether a process waits for others that are gone, as it must know by now.
    pub(in super::super) fn expects_nothing_of_the_dead(&self, process: usize, slack: Duration) {
        let now = self.ledger.now();
        let mut books = self.books.lock();
        let Books { sent, overdue, .. } = &mut *books;
        let is_hopeless =
            |sent: &Sent| sent.process == process && sent.ended == 0 && self.ledger.is_long_gone(sent.to.0);
        let mut late = Vec::new();
        for (number, _) in sent.iter().filter(|(_, sent)| is_hopeless(sent)) {
            if now > *overdue.entry(*number).or_insert(now) + slack {
                overdue.insert(*number, now + Duration::from_secs(1000));
                late.push(*number);
            }
        }
        drop(books);
        if !late.is_empty() {
            self.fault(format!("{process} waits for the dead: {}", self.tells_of(&late)));
        }
    }
}

/// How a handler fails that is to.
pub(in super::super) fn planned(number: i64) -> String {
    format!("planned [{number}]")
}

fn is_planned(error: &Error, number: i64) -> bool {
    error.to_string().contains(&planned(number))
}
