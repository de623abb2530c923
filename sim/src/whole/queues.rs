//! A job that is a queue: process 0 is its home, and starts processes that attach themselves, put and take, are killed,
//! stop, are cut off, and leave.
//!
//! The book ([`Book`]) knows of each item who has put it and who has taken it. No item is taken twice. What somebody
//! has put whom nothing has befallen is taken at the end, or reported: no more is reported than those may have held who
//! have met with trouble. Nobody waits for an item while one is free, nor for room in an empty queue. Once somebody was
//! told that there is nothing any more, nobody takes anything.

use super::fates::{Fates, PROMPT, SILENCE};
use super::ledger::Ledger;
use super::scenario::Scenario;
use crate::jobs::{JOIN_TIMEOUT, node_config, pause, rank_config};
use crate::lockstep::World;
use parking_lot::Mutex;
use sheave_base::clock::SeededEntropy;
use sheave_base::{Error, ErrorKind, clock};
use sheave_mesh::{Guest, GuestConfig, Mesh};
use sheave_pool::{Packet, Queue};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "jobs";

/// How long is waited for an item, or for room.
const WAITS: [Duration; 3] = [Duration::from_millis(1), Duration::from_millis(100), Duration::from_secs(5)];

/// Longer than any message takes that nothing befalls.
const WAYS: Duration = Duration::from_millis(500);

/// Bytes of large items: some of these are more than a window has.
const LARGE_BYTES: [u64; 3] = [4 << 10, 20 << 10, 100 << 10];

/// What an end may hold at most, as its home knows: what its user has, and what has come for the next call.
const HELD_MAX: usize = 2;

#[derive(Default)]
struct Entry {
    putter: usize,
    /// When whoever has put it was told so.
    accepted: Option<Duration>,
    takers: Vec<usize>,
}

#[derive(Default)]
struct Books {
    entries: BTreeMap<i64, Entry>,
    fates: Fates,
    closed: Option<Duration>,
    /// When somebody was told first that there will be nothing any more.
    over: Option<Duration>,
}

/// Who has put and taken what.
struct Book {
    ledger: Arc<Ledger>,
    home_ends: bool,
    books: Mutex<Books>,
}

impl Book {
    fn fault(&self, what: String) {
        self.ledger.fault(what);
    }

    fn tries(&self, process: usize, number: i64) {
        let entry = Entry { putter: process, ..Entry::default() };
        self.books.lock().entries.insert(number, entry);
    }

    fn accepts(&self, number: i64) {
        let now = self.ledger.now();
        if let Some(entry) = self.books.lock().entries.get_mut(&number) {
            entry.accepted = Some(now);
        }
        self.ledger.counts("put");
    }

    /// An item is taken by somebody who has waited from `begun` on.
    fn takes(&self, process: usize, number: i64, begun: Duration) {
        let now = self.ledger.now();
        let wrong = {
            let mut books = self.books.lock();
            let over = books.over.filter(|over| *over + WAYS < now && !books.fates.is_troubled(process));
            if let Some(over) = over {
                self.fault(format!("process {process} has taken {number}, and at {over:?} there was nothing any more"));
            }
            let since = begun.max(books.fates.stirred()) + PROMPT;
            let may_wait = now < since || self.home_ends || books.fates.is_troubled(process);
            match books.entries.get_mut(&number) {
                None => Some(format!("process {process} has taken {number}, which nobody has put")),
                Some(entry) => {
                    entry.takers.push(process);
                    let (twice, accepted) = (entry.takers.len() > 1, entry.accepted);
                    if twice {
                        Some(format!("item {number} was taken by processes {:?}", entry.takers))
                    } else {
                        let late = accepted.is_some_and(|at| at + PROMPT < now) && !may_wait;
                        late.then(|| format!("process {process} has waited from {begun:?} on for {number}"))
                    }
                }
            }
        };
        wrong.into_iter().for_each(|wrong| self.fault(wrong));
        self.ledger.counts("taken");
    }

    fn is_troubled(&self, process: usize) -> bool {
        self.home_ends || self.books.lock().fates.is_troubled(process)
    }

    fn ends(&self, process: usize) {
        let now = self.ledger.now();
        let fates = &mut self.books.lock().fates;
        fates.stirs(now);
        fates.ends(process);
    }

    /// The number of a process that is started.
    fn starts(&self) -> usize {
        self.books.lock().fates.starts()
    }

    fn have_ended(&self) -> bool {
        self.books.lock().fates.have_ended()
    }

    fn closes(&self) {
        let now = self.ledger.now();
        self.books.lock().closed.get_or_insert(now);
    }

    /// A process is told that there will be nothing any more.
    fn is_over(&self, process: usize) {
        let now = self.ledger.now();
        let mut books = self.books.lock();
        if !self.home_ends && !books.fates.is_troubled(process) {
            books.over.get_or_insert(now);
        }
    }

    fn is_closed(&self) -> bool {
        self.books.lock().closed.is_some()
    }

    /// Somebody has waited from `begun` on and got nothing.
    fn got_nothing(&self, process: usize, begun: Duration) {
        let now = self.ledger.now();
        let books = self.books.lock();
        let since = begun.max(books.fates.stirred()) + PROMPT;
        if now < since || self.home_ends || books.fates.is_troubled(process) {
            return;
        }
        let troubled = books.fates.troubled();
        let closed = books.closed.unwrap_or(now);
        let is_there = |entry: &&Entry| {
            let is_whole = !books.fates.is_troubled(entry.putter);
            // What was put while the queue was closed may not have come.
            let is_in = entry.accepted.is_some_and(|at| at + PROMPT < now && at + WAYS < closed);
            entry.takers.is_empty() && is_whole && is_in
        };
        let there = books.entries.values().filter(is_there).count();
        drop(books);
        if there > HELD_MAX * troubled {
            self.fault(format!("process {process} has got nothing from {begun:?} on, and {there} items are there"));
        }
    }

    /// Somebody has waited from `begun` on and found no room for this item.
    fn found_no_room(&self, process: usize, number: i64, begun: Duration) {
        let now = self.ledger.now();
        let books = self.books.lock();
        let since = begun.max(books.fates.stirred()) + PROMPT;
        // One that somebody has put who was not told so may be there.
        let is_gone = |(other, entry): (&i64, &Entry)| *other == number || !entry.takers.is_empty();
        let is_empty = books.entries.iter().all(is_gone);
        let is_wrong = now > since && is_empty && !self.home_ends && !books.fates.is_troubled(process);
        drop(books);
        if is_wrong {
            self.fault(format!("process {process} has found no room from {begun:?} on, and nothing is there"));
        }
    }

    /// All is over, and so many items were lost.
    fn settle(&self, lost: u64) {
        let books = self.books.lock();
        let troubled = books.fates.troubled();
        let closed = books.closed.unwrap_or_default();
        let is_missing = |(_, entry): &(&i64, &Entry)| {
            let is_whole = !books.fates.is_troubled(entry.putter);
            // As above.
            let was_in = entry.accepted.is_some_and(|at| at + WAYS < closed);
            entry.takers.is_empty() && is_whole && was_in
        };
        let missing: Vec<i64> = books.entries.iter().filter(is_missing).map(|(number, _)| *number).collect();
        drop(books);
        if missing.len() as u64 > lost {
            self.fault(format!("{missing:?} were put and not taken, and {lost} are reported"));
        }
        if lost as usize > HELD_MAX * troubled {
            self.fault(format!("{lost} items are reported, and {troubled} processes have met with trouble"));
        }
    }
}

pub(super) fn run(scenario: &Scenario, world: &World, ledger: &Arc<Ledger>) {
    ledger.now();
    let mut dice = SeededEntropy::new(scenario.seed ^ 0x90e0);
    let mesh = Mesh::join(rank_config(0, scenario.hosts[0], 1)).expect("it is alone");
    ledger.joined(0, mesh.me().node);
    let capacity = (dice.below(3) == 0).then(|| 1 + dice.below(4) as usize);
    let queue = Queue::new(&mesh, NAME, capacity).expect("the name is free");
    let home_ends = !scenario.hits.is_empty();
    let book = Arc::new(Book { ledger: Arc::clone(ledger), home_ends, books: Mutex::default() });
    assert_eq!(book.starts(), 0, "it is the first");
    let host = scenario.hosts[0];
    let mut home = Home { mesh, world: world.clone(), seed: scenario.seed, host, book, queue, dice, put: 0 };
    for _ in 0..scenario.guests.len() {
        home.start();
    }
    for _ in 0..scenario.rounds * (2 + home.dice.below(2 * scenario.steps)) {
        home.act();
    }
    home.end();
}

/// What the home does.
struct Home {
    mesh: Mesh,
    world: World,
    seed: u64,
    host: usize,
    book: Arc<Book>,
    queue: Queue,
    dice: SeededEntropy,
    put: i64,
}

impl Home {
    fn start(&mut self) {
        let Ok(invitation) = self.mesh.invite("end") else { return };
        let process = self.book.starts();
        let end = End {
            process,
            host: self.host,
            invitation: invitation.to_text(),
            book: Arc::clone(&self.book),
            dice: SeededEntropy::new(self.seed ^ (process as u64 + 1) << 32),
            steps: 4 + self.dice.below(40),
        };
        let started = self.world.start(&format!("end {process}"), self.host, || end.run());
        assert_eq!(started, process, "nobody else starts processes");
    }

    fn act(&mut self) {
        match self.dice.below(12) {
            0..4 => {
                let count = 1 + self.dice.below(30);
                put_some(&self.book, 0, &self.queue, &mut self.dice, &mut self.put, count);
            }
            4 | 5 => drop(take_some(&self.book, 0, &self.queue, &mut self.dice)),
            6 => self.trouble(),
            7 => {
                self.trouble();
                self.start();
            }
            8 => self.start(),
            9 => {
                if let Ok(length) = self.queue.len()
                    && length > 24 * 16
                {
                    self.book.fault(format!("{length} items are there"));
                }
            }
            _ => pause(Duration::from_micros(self.dice.below(300_000))),
        }
    }

    fn trouble(&mut self) {
        let now = self.book.ledger.now();
        let trouble = self.book.books.lock().fates.befalls(&mut self.dice, now);
        trouble.into_iter().for_each(|trouble| self.world.strike(trouble));
    }

    /// Closes the queue, takes what is left, and waits for the others.
    fn end(mut self) {
        match self.dice.below(2) {
            0 => pause(PROMPT + PROMPT),
            // Ends are busy with these when it is closed.
            _ => put_some(&self.book, 0, &self.queue, &mut self.dice, &mut self.put, 30),
        }
        self.book.closes();
        self.queue.close();
        if self.queue.put(packet(-1, 0), None, None).is_ok() {
            self.book.fault("a queue that is closed takes an item".to_owned());
        }
        let begun = clock::now();
        // What ends have met with trouble may come back for as long as that stays unnoticed.
        while !self.book.have_ended() || clock::since(begun) < 2 * SILENCE {
            while take(&self.book, 0, &self.queue, WAITS[1]) {}
            if clock::since(begun) > 8 * SILENCE {
                self.book.fault("not all have come to their ends".to_owned());
                break;
            }
            pause(Duration::from_millis(20));
        }
        let (lost, last) = self.queue.lost().expect("it is here");
        if last.len() as u64 != lost {
            self.book.fault(format!("{lost} are lost, and of {} is told", last.len()));
        }
        self.book.settle(lost);
        self.dice.below(2);
        drop(self.queue);
        drop(self.mesh.leave());
    }
}

fn packet(number: i64, bytes: u64) -> Packet {
    let elements = (bytes / 8) as usize;
    let tensor = || Tensor::from_slice(&vec![number; elements], [elements as u64]).expect("it fits");
    let tensors = (elements > 0).then(tensor).into_iter().collect();
    Packet::new(&Value::Int(number), tensors).expect("it is short enough")
}

fn put_some(book: &Book, process: usize, queue: &Queue, dice: &mut SeededEntropy, put: &mut i64, count: u64) {
    for _ in 0..count {
        let number = process as i64 * 1_000_000 + *put;
        *put += 1;
        let bytes = if dice.below(16) == 0 { LARGE_BYTES[dice.below(3) as usize] } else { 0 };
        let (begun, wait) = (book.ledger.now(), WAITS[dice.below(3) as usize]);
        book.tries(process, number);
        match queue.put(packet(number, bytes), Some(wait), None) {
            Ok(()) => book.accepts(number),
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {
                return book.found_no_room(process, number, begun);
            }
            Err(error) => return fails(book, process, &error),
        }
    }
}

/// An operation has failed. It may if the queue was closed, or something has befallen its home or this process.
fn fails(book: &Book, process: usize, error: &Error) {
    let may_fail = book.is_troubled(process) || error.kind() == ErrorKind::Closed && book.is_closed();
    if !may_fail {
        book.fault(format!("process {process} is told {error:?}"));
    }
}

/// Takes an item, and holds it for no time.
fn take(book: &Book, process: usize, queue: &Queue, wait: Duration) -> bool {
    take_and_hold(book, process, queue, wait, Duration::ZERO) == Some(true)
}

/// Whether there was one; nothing if there will be none.
fn take_and_hold(book: &Book, process: usize, queue: &Queue, wait: Duration, span: Duration) -> Option<bool> {
    let begun = book.ledger.now();
    match queue.get(Some(wait), None) {
        Ok(item) => {
            match item.value() {
                Ok(Value::Int(number)) => book.takes(process, number, begun),
                other => book.fault(format!("an item is {other:?}")),
            }
            if !span.is_zero() {
                pause(span);
            }
            Some(true)
        }
        Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {
            book.got_nothing(process, begun);
            Some(false)
        }
        Err(error) => {
            if error.kind() == ErrorKind::Closed {
                book.is_over(process);
            }
            fails(book, process, &error);
            None
        }
    }
}

fn take_some(book: &Book, process: usize, queue: &Queue, dice: &mut SeededEntropy) -> Option<()> {
    for _ in 0..1 + dice.below(30) {
        let span = match dice.below(24) {
            0 => Duration::from_millis(2000 + dice.below(2000)),
            1..4 => Duration::from_micros(dice.below(400_000)),
            _ => Duration::ZERO,
        };
        if !take_and_hold(book, process, queue, WAITS[dice.below(3) as usize], span)? {
            break;
        }
    }
    Some(())
}

/// A process that has attached itself.
struct End {
    process: usize,
    host: usize,
    invitation: String,
    book: Arc<Book>,
    dice: SeededEntropy,
    steps: u64,
}

impl End {
    fn run(mut self) {
        let config = GuestConfig {
            node: node_config(self.host),
            timeout: JOIN_TIMEOUT,
            ..GuestConfig::new(self.invitation.parse().expect("it was written so"))
        };
        match Guest::attach(config) {
            Ok(guest) => {
                match Queue::attach_guest(&guest, NAME, None) {
                    Ok(queue) => self.play(&queue),
                    Err(error) => fails(&self.book, self.process, &error),
                }
                drop(guest.leave());
            }
            Err(error) => fails(&self.book, self.process, &error),
        }
        self.book.ends(self.process);
    }

    fn play(&mut self, queue: &Queue) {
        let mut put = 0;
        let book = Arc::clone(&self.book);
        let inclination = self.dice.below(3);
        for _ in 0..self.steps {
            if book.is_closed() && self.dice.below(4) == 0 {
                // Takes what there is until it is told that there is nothing any more.
                while let Some(true) = take_and_hold(&book, self.process, queue, WAITS[2], Duration::ZERO) {}
                return;
            }
            match (inclination, self.dice.below(6)) {
                (_, 0) => pause(Duration::from_micros(self.dice.below(200_000))),
                (0, _) | (1, 1..3) => {
                    let count = 1 + self.dice.below(20);
                    put_some(&book, self.process, queue, &mut self.dice, &mut put, count);
                }
                _ => {
                    if take_some(&book, self.process, queue, &mut self.dice).is_none() {
                        return;
                    }
                }
            }
        }
        if self.dice.below(2) == 0 {
            queue.close();
        }
    }
}
