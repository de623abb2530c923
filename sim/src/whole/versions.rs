//! A job that is a table of versioned objects: process 0 serves it, and starts processes that push, compare, pull,
//! watch and pin, are killed, stop, are cut off, and leave.
//!
//! The book ([`Book`]) knows what every version is made of before it is pushed. Whoever pulls one sees just that, whole
//! or by what has changed. What has become of all pushes, and which version was the newest to whom, is linearizable for
//! each key, as compare and push says. A watch does not outlast a version that was accepted since its caller has seen
//! the one that it has. A version that somebody has pinned is there. And when all others are gone, nothing that they
//! held is.

use super::fates::{Fates, PROMPT, SILENCE};
use super::ledger::Ledger;
use super::scenario::Scenario;
use crate::jobs::{JOIN_TIMEOUT, node_config, pause, rank_config};
use crate::linearizable::{Model, Operation, is_linearizable};
use crate::lockstep::World;
use parking_lot::Mutex;
use sheave_base::clock::SeededEntropy;
use sheave_base::{Error, ErrorKind, Result, clock};
use sheave_mesh::{Guest, GuestConfig, Mesh};
use sheave_rpc::{Contents, Entry, Pin, Pulled, PushOutcome, Pushed, Rpc};
use sheave_rpc::{Versions, VersionsClient, VersionsReport, VersionsSettings, Wanted};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const GROUP: &str = "all";
const NAME: &str = "objects";
const KEYS: [&str; 2] = ["one", "other"];
const ENTRIES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// How long somebody watches.
const WATCHES: [Duration; 3] = [Duration::from_millis(2), Duration::from_millis(300), Duration::from_secs(3)];

/// A lease that is over in no job.
const LEASE: Duration = Duration::from_secs(1000);

/// Entries by their names.
type Plain = BTreeMap<String, i64>;

/// A key of the table, as its users see it: its newest version.
struct Newest;

#[derive(Clone, Debug)]
enum Call {
    /// The version, the one that it was made from, and what became of it: whether it was accepted, and the newest one.
    Push(i64, Option<i64>, Option<(bool, Option<i64>)>),
    Pull(Option<i64>),
    Remove(Option<bool>),
}

impl Model for Newest {
    type State = Option<i64>;
    type Call = Call;

    fn initial(&self) -> Option<i64> {
        None
    }

    fn step(&self, state: &Option<i64>, call: &Call) -> Option<Option<i64>> {
        match *call {
            Call::Push(version, previous, known) => {
                let is_accepted = previous == *state;
                let after = if is_accepted { Some(version) } else { *state };
                known.is_none_or(|known| known == (is_accepted, after)).then_some(after)
            }
            Call::Pull(newest) => (newest == *state).then_some(newest),
            Call::Remove(known) => known.is_none_or(|known| known == state.is_some()).then_some(None),
        }
    }
}

/// A push that was accepted: when it began and when that was known.
struct Accepted {
    version: i64,
    begun: Duration,
    known: Duration,
}

#[derive(Default)]
struct OfKey {
    history: Vec<Operation<Call>>,
    accepted: Vec<Accepted>,
    /// Removals that have begun, and those that have ended.
    removals: (u64, u64),
}

#[derive(Default)]
struct Books {
    /// What each version is made of.
    contents: BTreeMap<i64, Plain>,
    keys: BTreeMap<&'static str, OfKey>,
    /// Counts begins and ends of calls.
    turn: u64,
    fates: Fates,
    /// Those that were troubled and go on are to end.
    is_over: bool,
}

impl Books {
    fn turn(&mut self) -> u64 {
        self.turn += 1;
        self.turn
    }

    fn key(&mut self, key: &'static str) -> &mut OfKey {
        self.keys.entry(key).or_default()
    }
}

struct Book {
    ledger: Arc<Ledger>,
    home_ends: bool,
    books: Mutex<Books>,
}

impl Book {
    fn fault(&self, what: String) {
        self.ledger.fault(what);
    }

    /// A call begins. Returns its place in the history of its key.
    fn begins(&self, key: &'static str, call: Call) -> usize {
        let mut books = self.books.lock();
        let begun = books.turn();
        books.key(key).removals.0 += u64::from(matches!(call, Call::Remove(_)));
        let history = &mut books.key(key).history;
        history.push(Operation { call, begun, ended: None });
        history.len() - 1
    }

    /// A call has ended, and this is what it was.
    fn ends(&self, key: &'static str, at: usize, call: Call) {
        let mut books = self.books.lock();
        let ended = books.turn();
        books.key(key).removals.1 += u64::from(matches!(call, Call::Remove(_)));
        let operation = &mut books.key(key).history[at];
        (operation.call, operation.ended) = (call, Some(ended));
    }

    /// A call had no effect, and has seen nothing.
    fn is_void(&self, key: &'static str, at: usize) {
        let mut books = self.books.lock();
        let ended = books.turn();
        let operation = &mut books.key(key).history[at];
        // One that sees whatever is there.
        (operation.call, operation.ended) = (Call::Push(0, Some(-1), None), Some(ended));
    }

    /// Removals of a key that have ended.
    fn removals(&self, key: &'static str) -> u64 {
        self.books.lock().key(key).removals.1
    }

    /// Whether the key may have been removed since so many removals had ended.
    fn may_be_removed(&self, key: &'static str, removals: u64) -> bool {
        self.books.lock().key(key).removals.0 != removals
    }

    fn contents(&self, version: i64) -> Option<Plain> {
        self.books.lock().contents.get(&version).cloned()
    }

    /// Whether what somebody has pulled is what was pushed.
    fn sees(&self, process: usize, version: i64, seen: &Plain) {
        let pushed = self.contents(version);
        if pushed.as_ref() != Some(seen) {
            self.fault(format!("process {process} sees version {version} as {seen:?}; it is {pushed:?}"));
        }
    }

    /// Somebody has watched from `begun` on for another version than it has seen at `since`, and was told of none.
    fn heard_nothing(&self, process: usize, key: &'static str, seen: &Seen, begun: Duration) {
        let (now, &Seen { version: has, since, removals }) = (self.ledger.now(), seen);
        let may_be_removed = self.may_be_removed(key, removals);
        let mut books = self.books.lock();
        // The answer takes its time too.
        let is_prompt = now < books.fates.stirred().max(begun) + PROMPT;
        let is_excused = books.fates.is_troubled(process) || is_prompt || self.home_ends;
        let of_key = books.key(key);
        let is_newer = |one: &&Accepted| Some(one.version) != has && one.begun >= since && one.known + PROMPT < now;
        let missed = of_key.accepted.iter().find(is_newer).map(|one| one.version);
        drop(books);
        if let Some(version) = missed.filter(|_| !is_excused && !may_be_removed) {
            self.fault(format!("process {process} has watched {key} and was not told of version {version}"));
        }
    }

    fn is_troubled(&self, process: usize) -> bool {
        self.home_ends || self.books.lock().fates.is_troubled(process)
    }

    fn has_ended(&self, process: usize) {
        self.books.lock().fates.ends(process);
    }

    /// The number of a process that is started.
    fn starts(&self) -> usize {
        self.books.lock().fates.starts()
    }

    fn have_ended(&self) -> bool {
        self.books.lock().fates.have_ended()
    }

    /// An operation has failed. It may if something has befallen the server or this process.
    fn fails(&self, process: usize, error: &Error) {
        if !self.is_troubled(process) {
            self.fault(format!("process {process} is told {error:?}"));
        }
    }

    fn settle(&self) {
        let books = self.books.lock();
        let wrong: Vec<&str> = books
            .keys
            .iter()
            .filter(|(_, of_key)| !is_linearizable(&Newest, &of_key.history))
            .map(|(key, _)| *key)
            .collect();
        drop(books);
        for key in wrong {
            self.fault(format!("what was seen of {key} is not linearizable"));
        }
    }
}

/// The table, as a process has it.
enum Face {
    Home(Versions),
    Client(VersionsClient),
}

impl Face {
    fn push(&self, key: &str, entry: Entry, version: i64, previous: Option<i64>) -> Result<Pushed> {
        let previous = previous.map(Value::Int);
        match self {
            Self::Home(own) => own.push(key, entry, version, previous),
            Self::Client(client) => client.push(key, entry, version, previous)?.wait(),
        }
    }

    fn push_changes(&self, key: &str, entry: Entry, removed: &[&str], version: i64, previous: i64) -> Result<Pushed> {
        match self {
            Self::Home(own) => {
                let removed = removed.iter().map(|name| (*name).to_owned()).collect();
                own.push_changes(key, entry, removed, version, previous)
            }
            Self::Client(client) => client.push_changes(key, entry, removed, version, previous)?.wait(),
        }
    }

    fn pull(&self, key: &str, wanted: Wanted) -> Result<Option<Pulled>> {
        match self {
            Self::Home(own) => own.pull(key, wanted, Mode::Copy),
            Self::Client(client) => client.pull(key, wanted, Mode::Share)?.wait(),
        }
    }

    fn watch(&self, key: &str, has: Option<i64>, span: Duration) -> Result<Pulled> {
        match self {
            Self::Home(own) => {
                let watch = own.watch(key, has.map(Value::Int), Mode::Copy)?;
                let outcome = watch.wait_timeout(span);
                watch.cancel();
                outcome
            }
            Self::Client(client) => {
                client.clone().with_timeout(Some(span)).watch(key, has.map(Value::Int), Mode::Copy)?.wait()
            }
        }
    }

    fn pin(&self, key: &str) -> Result<Option<Pin>> {
        match self {
            Self::Home(own) => own.pin(key, None, LEASE),
            Self::Client(client) => client.pin(key, None, LEASE)?.wait(),
        }
    }

    fn remove(&self, key: &str) -> Result<bool> {
        match self {
            Self::Home(own) => own.remove(key),
            Self::Client(client) => client.remove(key)?.wait(),
        }
    }
}

/// An entry of this number: by its own value, or as a tensor.
fn item(number: i64) -> Option<Tensor> {
    let count = number.unsigned_abs() % 150 + 1;
    (number % 3 == 0).then(|| Tensor::from_slice(&vec![number; count as usize], [count]).expect("it fits"))
}

fn entry(plain: &Plain) -> Entry {
    let mut entry = Entry::default();
    let mut value = |number: i64| match item(number) {
        None => Value::Int(number),
        Some(tensor) => {
            entry.tensors.push(sheave_net::Part::new(tensor, Mode::Copy));
            Value::Tensor(entry.tensors.len() as u32 - 1)
        }
    };
    entry.value = Value::Map(plain.iter().map(|(name, number)| (name.clone(), value(*number))).collect());
    entry
}

fn read(value: &Value, tensors: &[Tensor]) -> Option<Plain> {
    let Value::Map(entries) = value else { return None };
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number),
        Value::Tensor(at) => {
            let numbers = tensors.get(*at as usize)?.to_vec::<i64>().ok()?;
            let first = *numbers.first()?;
            let expected = item(first)?.to_vec::<i64>().ok()?;
            (numbers == expected).then_some(first)
        }
        _ => None,
    };
    entries.iter().map(|(name, value)| Some((name.clone(), number(value)?))).collect()
}

fn number_of(version: &Value) -> i64 {
    match version {
        Value::Int(number) => *number,
        _ => -1,
    }
}

/// What a process knows of a key: the version that it has seen last, and when.
#[derive(Clone, Default)]
struct Seen {
    version: Option<i64>,
    since: Duration,
    /// Removals of the key that had ended by then.
    removals: u64,
}

/// What each process does with the table.
struct User {
    process: usize,
    face: Face,
    book: Arc<Book>,
    dice: SeededEntropy,
    pushed: i64,
    seen: BTreeMap<&'static str, Seen>,
    /// Pins that it holds, their keys, and how often those had been removed.
    pins: Vec<(Pin, &'static str, u64)>,
}

impl User {
    fn new(process: usize, face: Face, book: &Arc<Book>, dice: SeededEntropy) -> Self {
        let (book, seen, pins) = (Arc::clone(book), BTreeMap::new(), Vec::new());
        Self { process, face, book, dice, pushed: 0, seen, pins }
    }

    fn below(&mut self, count: usize) -> usize {
        self.dice.below(count as u64) as usize
    }

    fn sees(&mut self, key: &'static str, version: Option<i64>) {
        let (since, removals) = (self.book.ledger.now(), self.book.removals(key));
        self.seen.insert(key, Seen { version, since, removals });
    }

    /// Does something. None if it cannot go on.
    fn act(&mut self) -> Option<()> {
        let key = KEYS[self.below(2)];
        let done = match self.below(16) {
            0..5 => self.push(key),
            5..8 => self.pull(key),
            8 | 9 => self.catch_up(key),
            10 | 11 => self.watch(key),
            12 | 13 => self.pin(key),
            14 => self.remove(key),
            _ => {
                pause(Duration::from_micros(self.dice.below(200_000)));
                Ok(())
            }
        };
        done.map_err(|error| self.book.fails(self.process, &error)).ok()
    }

    fn push(&mut self, key: &'static str) -> Result<()> {
        let version = (self.process as i64 + 1) * 1_000_000 + self.pushed;
        self.pushed += 1;
        let seen = self.seen.get(key).cloned().unwrap_or_default();
        let previous = if self.below(8) == 0 { None } else { seen.version };
        let names: BTreeSet<&str> = ENTRIES.into_iter().filter(|_| self.dice.below(2) == 0).collect();
        let named = names.iter().map(|name| ((*name).to_owned(), version * 10 + self.dice.below(10) as i64));
        let plain: Plain = named.collect();
        let base = previous.and_then(|version| self.book.contents(version));
        let (mut whole, mut removed) = (plain.clone(), Vec::new());
        let changes = base.filter(|_| self.below(2) == 0);
        if let Some(base) = &changes {
            let others: Vec<&str> = base.keys().map(String::as_str).filter(|name| !names.contains(name)).collect();
            removed = others.into_iter().filter(|_| self.dice.below(3) == 0).collect();
            let kept = base.iter().filter(|(name, _)| !removed.contains(&name.as_str()));
            for (name, number) in kept {
                whole.entry(name.clone()).or_insert(*number);
            }
        }
        self.book.books.lock().contents.insert(version, whole);
        let (at, begun) = (self.book.begins(key, Call::Push(version, previous, None)), self.book.ledger.now());
        let pushed = match (changes.is_some(), previous) {
            (true, Some(previous)) => self.face.push_changes(key, entry(&plain), &removed, version, previous),
            _ => self.face.push(key, entry(&plain), version, previous),
        };
        let pushed = match pushed {
            Err(error) if error.kind() == ErrorKind::LimitExceeded => {
                self.book.is_void(key, at);
                return Ok(());
            }
            other => other?,
        };
        let newest = pushed.newest.as_ref().map(number_of);
        self.book.ends(key, at, Call::Push(version, previous, Some((pushed.is_accepted(), newest))));
        match pushed.outcome {
            PushOutcome::Accepted => {
                let known = self.book.ledger.now();
                self.book.books.lock().key(key).accepted.push(Accepted { version, begun, known });
                self.book.ledger.counts("accepted");
            }
            PushOutcome::Stale => self.book.ledger.counts("stale"),
            other => self.book.fault(format!("a push of version {version}, which is new, ends with {other:?}")),
        }
        self.sees(key, newest);
        Ok(())
    }

    fn pull(&mut self, key: &'static str) -> Result<()> {
        let at = self.book.begins(key, Call::Pull(None));
        let pulled = self.face.pull(key, Wanted::Newest);
        if pulled.is_err() {
            self.book.is_void(key, at);
        }
        let pulled = pulled?;
        let version = pulled.as_ref().map(|pulled| number_of(&pulled.version));
        self.book.ends(key, at, Call::Pull(version));
        pulled.into_iter().for_each(|pulled| self.reads(pulled, None));
        self.sees(key, version);
        Ok(())
    }

    /// Checks what has come, to one who has this version.
    fn reads(&self, pulled: Pulled, has: Option<i64>) {
        let version = number_of(&pulled.version);
        let before = has.and_then(|version| self.book.contents(version)).unwrap_or_default();
        if pulled.is_unchanged() && has != Some(version) {
            self.book.fault(format!("version {version} is said to be {has:?}"));
        }
        self.book.ledger.counts(match pulled.contents {
            Contents::Unchanged => "unchanged",
            Contents::Whole { .. } => "whole",
            Contents::Changes { .. } => "changes",
        });
        let entry = entry(&before);
        let tensors = entry.tensors.into_iter().map(sheave_net::Part::into_tensor).collect();
        let seen = pulled.applied_to((entry.value, tensors)).ok();
        match seen.and_then(|(value, tensors)| read(&value, &tensors)) {
            Some(seen) => self.book.sees(self.process, version, &seen),
            None => self.book.fault(format!("process {} cannot read version {version}", self.process)),
        }
    }

    /// Pulls what is newer than what it has.
    fn catch_up(&mut self, key: &'static str) -> Result<()> {
        let Some(has) = self.seen.get(key).and_then(|seen| seen.version) else { return self.pull(key) };
        let at = self.book.begins(key, Call::Pull(None));
        let pulled = self.face.pull(key, Wanted::NewerThan(Value::Int(has)));
        if pulled.is_err() {
            self.book.is_void(key, at);
        }
        let pulled = pulled?;
        let version = pulled.as_ref().map(|pulled| number_of(&pulled.version));
        self.book.ends(key, at, Call::Pull(version));
        pulled.into_iter().for_each(|pulled| self.reads(pulled, Some(has)));
        self.sees(key, version);
        Ok(())
    }

    fn watch(&mut self, key: &'static str) -> Result<()> {
        let seen = self.seen.get(key).cloned().filter(|seen| seen.version.is_some());
        let (since, removals) = (self.book.ledger.now(), self.book.removals(key));
        let seen = seen.unwrap_or(Seen { version: None, since, removals });
        let has = seen.version;
        let (begun, span) = (self.book.ledger.now(), WATCHES[self.below(3)]);
        match self.face.watch(key, has, span) {
            Ok(pulled) => {
                let version = number_of(&pulled.version);
                if has == Some(version) {
                    self.book.fault(format!("a watch for another version than {version} ends with it"));
                }
                self.reads(pulled, has);
                self.book.ledger.counts("watched");
                // It was the newest when it was told of; whether it is now nobody says.
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {
                self.book.heard_nothing(self.process, key, &seen, begun);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn pin(&mut self, key: &'static str) -> Result<()> {
        if self.pins.len() > 2 {
            let at = self.below(self.pins.len());
            let (pin, key, removals) = self.pins.swap_remove(at);
            let version = pin.version().clone();
            let pulled = self.face.pull(key, Wanted::Version(version.clone()))?;
            match pulled {
                Some(pulled) => self.reads(pulled, None),
                None if !self.book.may_be_removed(key, removals) => {
                    self.book.fault(format!("version {version:?} of {key} is pinned, and is not there"));
                }
                None => {}
            }
            return match self.below(2) {
                0 => pin.release()?.wait().map(drop),
                _ => Ok(()),
            };
        }
        let removals = self.book.removals(key);
        if let Some(pin) = self.face.pin(key)? {
            self.book.ledger.counts("pinned");
            self.pins.push((pin, key, removals));
        }
        Ok(())
    }

    fn remove(&mut self, key: &'static str) -> Result<()> {
        if self.below(3) > 0 {
            return Ok(());
        }
        let at = self.book.begins(key, Call::Remove(None));
        let was_there = self.face.remove(key)?;
        self.book.ends(key, at, Call::Remove(Some(was_there)));
        self.sees(key, None);
        Ok(())
    }
}

pub(super) fn run(scenario: &Scenario, world: &World, ledger: &Arc<Ledger>) {
    ledger.now();
    let mut dice = SeededEntropy::new(scenario.seed ^ 0x0e51);
    let mesh = Mesh::join(rank_config(0, scenario.hosts[0], 1)).expect("it is alone");
    ledger.joined(0, mesh.me().node);
    let depth = 1 + dice.below(3) as usize;
    let settings = VersionsSettings { depth, has_guests: true, ..VersionsSettings::default() };
    let versions = Versions::new(&mesh, settings).expect("it makes sense");
    let group = Rpc::serve(&mesh).expect("once").create_group(GROUP, &[mesh.me().node], None).wait();
    let served = group.and_then(|group| group.register(NAME, versions.service(), None)?.wait());
    served.expect("it is alone");
    let book =
        Arc::new(Book { ledger: Arc::clone(ledger), home_ends: !scenario.hits.is_empty(), books: Mutex::default() });
    assert_eq!(book.starts(), 0, "it is the first");
    let user = User::new(0, Face::Home(versions.clone()), &book, SeededEntropy::new(dice.below(1 << 40)));
    let host = scenario.hosts[0];
    let mut home = Home { mesh, world: world.clone(), seed: scenario.seed, host, book, versions, user, dice };
    for _ in 0..scenario.guests.len() {
        home.start();
    }
    for _ in 0..scenario.rounds * (2 + home.dice.below(2 * scenario.steps)) {
        home.act();
    }
    home.end();
}

/// What the server does.
struct Home {
    mesh: Mesh,
    world: World,
    seed: u64,
    host: usize,
    book: Arc<Book>,
    versions: Versions,
    user: User,
    dice: SeededEntropy,
}

impl Home {
    fn start(&mut self) {
        let Ok(invitation) = self.mesh.invite("client") else { return };
        let process = self.book.starts();
        let client = Client {
            process,
            host: self.host,
            invitation: invitation.to_text(),
            book: Arc::clone(&self.book),
            dice: SeededEntropy::new(self.seed ^ (process as u64 + 1) << 32),
            steps: 6 + self.dice.below(36),
        };
        let started = self.world.start(&format!("client {process}"), self.host, || client.run());
        assert_eq!(started, process, "nobody else starts processes");
    }

    fn act(&mut self) {
        match self.dice.below(12) {
            0..6 => drop(self.user.act()),
            6 => self.trouble(),
            7 => {
                self.trouble();
                self.start();
            }
            8 => self.start(),
            _ => pause(Duration::from_micros(self.dice.below(300_000))),
        }
    }

    fn trouble(&mut self) {
        let now = self.book.ledger.now();
        let trouble = self.book.books.lock().fates.befalls(&mut self.dice, now);
        trouble.into_iter().for_each(|trouble| self.world.strike(trouble));
    }

    /// Waits for the others, and looks what they have left.
    fn end(mut self) {
        let begun = clock::now();
        while !self.book.have_ended() {
            if clock::since(begun) > Duration::from_secs(60) {
                self.book.fault("not all have come to their ends".to_owned());
                break;
            }
            pause(Duration::from_millis(20));
        }
        self.book.books.lock().is_over = true;
        self.user.pins.clear();
        // As long as what somebody does last may take, and its end may stay unnoticed.
        let (begun, is_free) = (clock::now(), |report: &VersionsReport| (report.pins, report.watches) == (0, 0));
        while !is_free(&self.versions.report()) && clock::since(begun) < WATCHES[2] + 3 * SILENCE {
            pause(Duration::from_millis(100));
        }
        for key in KEYS {
            let pulled = self.user.pull(key);
            pulled.unwrap_or_else(|error| self.book.fails(0, &error));
        }
        let report = self.versions.report();
        if !is_free(&report) {
            let (pins, watches) = (report.pins, report.watches);
            self.book.fault(format!("all others are gone, and {pins} pins and {watches} watches are left"));
        }
        self.book.settle();
        drop((self.user, self.versions));
        drop(self.mesh.leave());
    }
}

/// A process that has attached itself.
struct Client {
    process: usize,
    host: usize,
    invitation: String,
    book: Arc<Book>,
    dice: SeededEntropy,
    steps: u64,
}

impl Client {
    fn run(mut self) {
        let config = GuestConfig {
            node: node_config(self.host),
            timeout: JOIN_TIMEOUT,
            ..GuestConfig::new(self.invitation.parse().expect("it was written so"))
        };
        match Guest::attach(config) {
            Ok(guest) => {
                match VersionsClient::of_host(&guest, GROUP, NAME) {
                    Ok(client) => self.play(&guest, client),
                    Err(error) => self.book.fails(self.process, &error),
                }
                drop(guest.leave());
            }
            Err(error) => self.book.fails(self.process, &error),
        }
        self.book.has_ended(self.process);
    }

    fn play(&mut self, guest: &Guest, client: VersionsClient) {
        let dice = SeededEntropy::new(self.dice.below(1 << 40));
        let waits = client.clone();
        let mut user = User::new(self.process, Face::Client(client), &self.book, dice);
        for _ in 0..self.steps {
            if user.act().is_none() || self.book.books.lock().is_over {
                break;
            }
        }
        if self.dice.below(2) == 0 {
            // It leaves with a watch that nobody ends, and with its pins.
            drop(waits.watch("never", None, Mode::Copy));
            drop(guest.leave());
        }
    }
}
