//! A job that has gradient servers: one process is the primary, some are secondaries, and all are learners.
//!
//! Each gradient has an element of its own that is one, so what is published tells which gradients are in it, and in
//! which step each came. The book ([`Book`]) holds against that what the pushes have ended with, and what the clients
//! report. No gradient is in two steps, nor is one whose push has failed for good. Versions go up by one, and a mean is
//! divided by how many gradients are in its step. When all is over, each gradient that was taken is in a step, or is
//! reported as dropped or lost, which happens only where something has befallen a server or a queue may drop.

use super::ledger::Ledger;
use super::scenario::{End, Quit, Scenario};
use super::start::{await_others, join};
use crate::jobs::pause;
use parking_lot::Mutex;
use sheave_base::clock::SeededEntropy;
use sheave_base::{Error, ErrorKind, NodeId, Result, clock};
use sheave_learner::{
    Choice, ClientReport, GradientClient, GradientServer, Method, Model, Overflow, Servers, Settings, Tensors,
};
use sheave_mesh::Mesh;
use sheave_optim::Rule;
use sheave_rpc::{Rpc, RpcGroup};
use sheave_tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Gradients that a process pushes at most.
const SLOTS: usize = 48;

/// How long a process waits for the others where they may never come.
const PATIENCE: Duration = Duration::from_secs(4);

/// What became of all gradients is known by then, once nobody pushes any more and all troubles are over.
const SETTLED: Duration = Duration::from_secs(20);

/// What a seed draws for all servers of a job.
#[derive(Clone)]
struct Plan {
    primary: usize,
    secondaries: Vec<usize>,
    settings: Settings,
    /// The primary has an optimizer, and not a step of the user's.
    is_native: bool,
    /// How long publishing takes.
    pause: Duration,
    /// The step that makes this version fails.
    fails_at: Option<u64>,
}

impl Plan {
    fn of(scenario: &Scenario) -> Self {
        let mut dice = SeededEntropy::new(scenario.seed ^ 0x96ad);
        let ranks = scenario.ranks() as u64;
        let primary = dice.below(ranks) as usize;
        let mut secondaries: Vec<usize> = (0..scenario.ranks()).filter(|_| dice.below(2) == 0).collect();
        if secondaries.is_empty() {
            secondaries.push(dice.below(ranks) as usize);
        }
        let batch = 1 + dice.below(4) as usize;
        let settings = Settings {
            method: [Method::Sum, Method::Mean][dice.below(2) as usize],
            batch,
            queue_max: batch + 1 + dice.below(4) as usize,
            overflow: [Overflow::PushBack, Overflow::DropOldest][dice.below(2) as usize],
            flush_after: (dice.below(2) == 0).then(|| Duration::from_millis(5 + dice.below(100))),
        };
        let pause = match dice.below(3) {
            0 => Duration::from_millis(1 + dice.below(40)),
            _ => Duration::ZERO,
        };
        let fails_at = (dice.below(8) == 0).then(|| 1 + dice.below(6));
        Self { primary, secondaries, settings, is_native: dice.below(2) == 0, pause, fails_at }
    }

    fn serves(&self, process: usize) -> bool {
        self.primary == process || self.secondaries.contains(&process)
    }
}

/// What a push has ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It has not ended, or may have been taken though it has failed.
    Open,
    Taken(u64),
    /// It has failed, and will be in no step.
    Failed,
}

#[derive(Default)]
struct Books {
    pushes: BTreeMap<usize, Fate>,
    /// What was published last, and its version.
    parameters: Vec<f64>,
    version: u64,
    /// By gradient, the version that it came with.
    steps: BTreeMap<usize, u64>,
    /// Somebody has had partial batches go on.
    is_hurried: bool,
    has_failed: bool,
    /// How long publishing has taken so far.
    paused: Duration,
    served: BTreeSet<usize>,
    settled: BTreeSet<usize>,
}

/// What all processes have pushed, what was published, and what they were told.
pub(super) struct Book {
    ledger: Arc<Ledger>,
    plan: Plan,
    ranks: usize,
    books: Mutex<Books>,
}

impl Book {
    pub(super) fn new(scenario: &Scenario, ledger: &Arc<Ledger>) -> Self {
        let (plan, ranks) = (Plan::of(scenario), scenario.ranks());
        let books = Books { parameters: vec![0.0; ranks * SLOTS], ..Books::default() };
        Self { ledger: Arc::clone(ledger), plan, ranks, books: Mutex::new(books) }
    }

    fn fault(&self, what: String) {
        self.ledger.fault(what);
    }

    /// Nothing befalls this process and the primary.
    fn is_sound(&self, process: usize) -> bool {
        [process, self.plan.primary].iter().all(|one| !self.ledger.is_doomed(*one) && !self.ledger.may_be_dead(*one))
    }

    /// All that there is to come has come, of whom that is to be expected.
    fn are_all_in(&self, of: impl Fn(&Books) -> &BTreeSet<usize>, whom: impl Fn(usize) -> bool) -> bool {
        let books = self.books.lock();
        (0..self.ranks).all(|one| !whom(one) || of(&books).contains(&one) || self.ledger.may_be_dead(one))
    }

    /// An operation has failed. It may for a step that was to fail, or if something has befallen whom the error names.
    fn fails(&self, process: usize, what: &str, error: &Error) {
        let is_planned = self.books.lock().has_failed && error.to_string().contains("planned");
        if !is_planned && !self.ledger.may_fail(process, error) {
            self.fault(format!("{what} of {process} accuses the wrong one, or nobody: {error:?}"));
        }
    }

    fn ends(&self, slot: usize, outcome: &Result<u64>) {
        let process = slot / SLOTS;
        let fate = match outcome {
            Ok(number) => Fate::Taken(*number),
            Err(error) if matches!(error.kind(), ErrorKind::DeadlineExceeded | ErrorKind::Cancelled) => Fate::Open,
            Err(_) if !self.is_sound(process) => Fate::Open,
            Err(_) => Fate::Failed,
        };
        let mut books = self.books.lock();
        books.pushes.insert(slot, fate);
        let version = books.steps.get(&slot).copied();
        drop(books);
        if let Some(version) = version.filter(|_| fate == Fate::Failed) {
            self.fault(format!("the push of gradient {slot} has failed, and it is in version {version}: {outcome:?}"));
        }
        self.ledger.counts(if outcome.is_ok() { "taken" } else { "refused" });
    }

    /// Parameters are published.
    fn publishes(&self, parameters: &[f64], version: u64) {
        let mut wrong = Vec::new();
        let mut books = self.books.lock();
        if version != books.version + 1 {
            wrong.push(format!("version {version} is published after {}", books.version));
        }
        let before = std::mem::replace(&mut books.parameters, parameters.to_vec());
        books.version = version;
        let changed = |(_, (before, now)): &(usize, (&f64, &f64))| before != now;
        let new: Vec<(usize, f64, f64)> = (before.iter().zip(parameters).enumerate().filter(changed))
            .map(|(slot, (before, now))| (slot, *before, *now))
            .collect();
        let count = new.len();
        let one = if self.plan.settings.method == Method::Mean { -(1.0 / count.max(1) as f64) } else { -1.0 };
        for (slot, before, now) in new {
            match books.pushes.get(&slot) {
                _ if before != 0.0 => wrong.push(format!("gradient {slot} is in version {version} again")),
                None => wrong.push(format!("gradient {slot}, which nobody has pushed, is in version {version}")),
                Some(Fate::Failed) => wrong.push(format!("gradient {slot} has failed, and is in version {version}")),
                Some(_) if now != one => wrong.push(format!("gradient {slot} counts {now} in a step of {count}")),
                Some(_) => {}
            }
            books.steps.insert(slot, version);
        }
        let most = self.plan.settings.batch * self.plan.settings.batch;
        let may_be_partial = books.is_hurried || self.plan.settings.flush_after.is_some();
        if count > most || count == 0 || count < most && !may_be_partial {
            wrong.push(format!("version {version} has {count} gradients in it; a step takes {most}"));
        }
        drop(books);
        wrong.into_iter().for_each(|wrong| self.fault(wrong));
        self.ledger.counts("published");
        if !self.plan.pause.is_zero() {
            pause(self.plan.pause);
            self.books.lock().paused += self.plan.pause;
        }
    }

    /// A step of the user's: with which reduced gradient, and how many are said to be in it.
    fn steps(&self, reduced: &[f64], count: u64) -> Result<Vec<f64>> {
        let found = reduced.iter().filter(|one| **one != 0.0).count() as u64;
        if found != count {
            self.fault(format!("a step is said to be of {count} gradients, and {found} are in it"));
        }
        let mut books = self.books.lock();
        if self.plan.fails_at == Some(books.version + 1) {
            books.has_failed = true;
            return Err(Error::new(ErrorKind::Remote, "planned"));
        }
        Ok(books.parameters.iter().zip(reduced).map(|(parameter, one)| parameter - one).collect())
    }

    /// Everything that a process has pushed is settled, as its client says.
    fn settles(&self, process: usize, report: &ClientReport) {
        let books = self.books.lock();
        let own: Vec<(usize, Fate)> =
            books.pushes.range(process * SLOTS..(process + 1) * SLOTS).map(|(slot, fate)| (*slot, *fate)).collect();
        let is_applied = |slot: &usize| books.steps.contains_key(slot);
        let applied = own.iter().filter(|(slot, _)| is_applied(slot)).count() as u64;
        let taken = own.iter().filter(|(_, fate)| matches!(fate, Fate::Taken(_))).count() as u64;
        let is_gone = |(slot, fate): &&(usize, Fate)| matches!(fate, Fate::Taken(_)) && !is_applied(slot);
        let gone = own.iter().filter(is_gone).count() as u64;
        let open = own.iter().filter(|(slot, fate)| *fate == Fate::Open && !is_applied(slot)).count() as u64;
        let is_wrongly_lost = |number: &u64| {
            let slot = own.iter().find(|(_, fate)| *fate == Fate::Taken(*number)).map(|(slot, _)| slot);
            slot.is_none_or(is_applied)
        };
        let wrongly_lost: Vec<u64> = report.lost_numbers.iter().copied().filter(is_wrongly_lost).collect();
        let has_failed = books.has_failed;
        drop(books);
        let reported = report.dropped + report.lost;
        let says = format!("process {process} has pushed {}, {taken} were taken: {report:?}", own.len());
        if (report.pushed, report.acknowledged, report.applied) != (own.len() as u64, taken, applied) {
            self.fault(format!("{applied} are in steps; {says}"));
        }
        if !(gone..=gone + open).contains(&reported) || !wrongly_lost.is_empty() {
            self.fault(format!("{gone} were taken and are in no step, {open} are not known; {says}"));
        }
        // Where a step has failed a secondary's program may leave with what it had taken.
        let has_left =
            |one: &usize| self.ledger.has_come_to_its_end(*one) && report.gone.contains(&format!("rank-{one}"));
        let may_lose = self.ledger.is_troubled() || has_failed && self.plan.secondaries.iter().any(has_left);
        if report.lost > 0 && !may_lose {
            self.fault(format!("nothing has befallen anybody; {says}"));
        }
        let may_drop = self.plan.settings.overflow == Overflow::DropOldest || has_failed || self.ledger.is_troubled();
        if report.dropped > open && !may_drop {
            self.fault(format!("no queue may drop, and {open} pushes were given up; {says}"));
        }
    }
}

pub(super) fn run(scenario: &Scenario, process: usize, ledger: &Arc<Ledger>, book: &Arc<Book>) {
    let Some(mesh) = join(scenario, process, ledger) else { return };
    let rpc = Rpc::serve(&mesh).expect("nobody did before");
    await_others(process, ledger);
    let dice = SeededEntropy::new(scenario.seed ^ (process as u64 + 1) << 40);
    let book = Arc::clone(book);
    Learner { mesh, process, book, dice, pushed: 0 }.run(scenario, &rpc);
}

struct Learner {
    mesh: Mesh,
    process: usize,
    book: Arc<Book>,
    dice: SeededEntropy,
    pushed: usize,
}

impl Learner {
    fn run(mut self, scenario: &Scenario, rpc: &Rpc) {
        let ledger = Arc::clone(&self.book.ledger);
        let is_over = self.meet(rpc).and_then(|(server, client)| self.play(scenario, server.as_ref(), &client));
        self.book.books.lock().settled.insert(self.process);
        if is_over.is_none() && self.has_quit(scenario) {
            return;
        }
        ledger.comes_to_its_end(self.process);
        let left = match scenario.end {
            End::Finish => self.mesh.finish(),
            End::Leave => self.mesh.leave(),
        };
        if let Err(error) = left {
            self.book.fails(self.process, "leave", &error);
        }
    }

    fn has_quit(&self, scenario: &Scenario) -> bool {
        scenario.quits.is_some_and(|(quitter, ..)| quitter == self.process)
            && self.book.ledger.may_be_dead(self.process)
    }

    fn judged<T>(&self, what: &str, outcome: Result<T>) -> Option<T> {
        outcome.inspect_err(|error| self.book.fails(self.process, what, error)).ok()
    }

    /// What has to end in time, whatever it ends with. Steps that take their time are no part of that.
    fn timed<T>(&self, what: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let (begun, paused) = (clock::now(), self.book.books.lock().paused);
        let outcome = act();
        let steps = self.book.books.lock().paused - paused + self.book.plan.pause;
        self.book.ledger.ends_in_time(self.process, what, clock::since(begun).saturating_sub(steps));
        outcome
    }

    /// Starts a server where there is to be one, and connects to all.
    fn meet(&self, rpc: &Rpc) -> Option<(Option<GradientServer>, GradientClient)> {
        let (book, plan, ledger) = (&self.book, &self.book.plan, &self.book.ledger);
        let nodes: Vec<NodeId> = self.mesh.members().iter().map(|member| member.node).collect();
        let timeout = ledger.is_troubled().then_some(PATIENCE);
        let group = match rpc.create_group("learners", &nodes, timeout).wait() {
            Ok(group) => group,
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded && ledger.is_troubled() => return None,
            Err(error) => return self.judged("making a group", Err(error)),
        };
        let secondaries = plan.secondaries.iter().map(|process| nodes[*process]).collect();
        let servers = Servers { name: "gradients".into(), primary: nodes[plan.primary], secondaries };
        let server = match plan.serves(self.process) {
            true => Some(self.judged("starting a server", self.start(&group, &servers))?),
            false => None,
        };
        book.books.lock().served.insert(self.process);
        let begun = clock::now();
        while !book.are_all_in(|books| &books.served, |one| plan.serves(one)) && clock::since(begun) < SETTLED {
            pause(Duration::from_millis(1));
        }
        let choice = match self.process % 3 {
            0 => Choice::Fixed(self.process % plan.secondaries.len()),
            _ => Choice::RoundRobin,
        };
        let may_lack = || ledger.is_troubled() || book.books.lock().has_failed;
        match GradientClient::connect(&self.mesh, &group, &servers, choice, None).and_then(|work| work.wait()) {
            Ok(client) => Some((server, client)),
            // One that was to be a server has met with trouble before it was one, or has ended with all of them.
            Err(error) if error.kind() == ErrorKind::NotFound && may_lack() => None,
            Err(error) => self.judged("connecting", Err(error)),
        }
    }

    fn start(&self, group: &RpcGroup, servers: &Servers) -> Result<GradientServer> {
        let (elements, plan) = (self.book.ranks * SLOTS, self.book.plan.clone());
        let start = tensors(&vec![0.0; elements])?;
        let book = Arc::clone(&self.book);
        let builder = GradientServer::builder(&self.mesh, group, servers, &Model::of(&start)?)
            .settings(plan.settings)
            .start_from(0, start)
            .publish(move |parameters, version| {
                book.publishes(&parameters["w"].to_vec::<f64>()?, version);
                Ok(())
            });
        let book = Arc::clone(&self.book);
        let builder = match plan.is_native && plan.fails_at.is_none() {
            true => builder.optimizer(Rule::sgd(1.0).into()),
            false => builder.step(move |reduced, count| {
                book.steps(&reduced["w"].to_vec::<f64>()?, count).and_then(|stepped| tensors(&stepped)).map(Some)
            }),
        };
        builder.start(None)?.wait()
    }

    /// Does what a learner does, until it has heard of all that it has pushed. None if it cannot go on.
    fn play(&mut self, scenario: &Scenario, server: Option<&GradientServer>, client: &GradientClient) -> Option<()> {
        for round in 0..scenario.rounds {
            match self.book.ledger.quit_in(self.process, round) {
                Some(Quit::Fails) => {
                    self.book.ledger.quits(self.process);
                    self.mesh.fail("on purpose");
                    return None;
                }
                Some(Quit::Returns) => {
                    self.book.ledger.quits(self.process);
                    return None;
                }
                None => {}
            }
            for _ in 0..2 + self.dice.below(2 * scenario.steps) {
                self.act(server, client)?;
            }
        }
        let settled = self.settle(client);
        self.book.books.lock().settled.insert(self.process);
        // Those who have not settled need the servers.
        let begun = clock::now();
        while !self.book.are_all_in(|books| &books.settled, |_| true) && clock::since(begun) < 2 * SETTLED {
            pause(Duration::from_millis(20));
        }
        if let Some(server) = server {
            self.agrees(server);
        }
        settled
    }

    /// The primary's report agrees with what was published. Gradients of those that are gone may be in a step that is
    /// under way, of which no program waits to hear, so that it has been published and is not counted yet.
    fn agrees(&self, server: &GradientServer) {
        let patience = if self.book.ledger.is_troubled() { SETTLED } else { Duration::ZERO };
        let begun = clock::now();
        while let Some(primary) = server.report().primary {
            let books = self.book.books.lock();
            let (applied, version) = (books.steps.len() as u64, books.version);
            drop(books);
            if (primary.applied, primary.version) == (applied, version) {
                return;
            }
            if clock::since(begun) >= patience {
                let what = format!("{applied} gradients are in version {version}, and the primary has {primary:?}");
                return self.book.fault(what);
            }
            pause(Duration::from_millis(1));
        }
    }

    fn act(&mut self, server: Option<&GradientServer>, client: &GradientClient) -> Option<()> {
        match self.dice.below(16) {
            0..6 => self.push(client, 1, None),
            6..9 => {
                let count = 2 + self.dice.below(8) as usize;
                self.push(client, count, None)
            }
            9 => {
                let patience = Duration::from_micros(100 + self.dice.below(20_000));
                self.push(client, 1, Some(patience))
            }
            10 => self.flush(client),
            11 => self.judged("a report", self.timed("a report", || client.report()?.wait())).map(drop),
            12 if self.dice.below(3) == 0 => {
                self.book.books.lock().is_hurried = true;
                server.into_iter().for_each(GradientServer::flush);
                Some(())
            }
            _ => {
                pause(Duration::from_micros(self.dice.below(200_000)));
                Some(())
            }
        }
    }

    fn push(&mut self, client: &GradientClient, count: usize, patience: Option<Duration>) -> Option<()> {
        let slots: Vec<usize> =
            (0..count.min(SLOTS - self.pushed)).map(|at| self.process * SLOTS + self.pushed + at).collect();
        self.pushed += slots.len();
        let mut sent = Vec::new();
        for slot in slots {
            let mut gradient = vec![0.0; self.book.ranks * SLOTS];
            gradient[slot] = 1.0;
            let gradient = tensors(&gradient).expect("it fits");
            self.book.books.lock().pushes.insert(slot, Fate::Open);
            sent.push((slot, client.push_within(&gradient, patience)));
        }
        let mut goes_on = Some(());
        for (slot, work) in sent {
            let outcome = self.timed("a push", || work?.wait());
            self.book.ends(slot, &outcome);
            match outcome {
                Err(error) if patience.is_some() && error.kind() == ErrorKind::DeadlineExceeded => {}
                outcome => goes_on = goes_on.and(self.judged("a push", outcome).map(drop)),
            }
        }
        // After a failure others are told the same, and what became of all is to be known all the same.
        goes_on.or_else(|| self.book.is_sound(self.process).then_some(()))
    }

    /// Has all applied that was taken before.
    fn flush(&self, client: &GradientClient) -> Option<()> {
        let own = self.process * SLOTS..(self.process + 1) * SLOTS;
        let taken: Vec<usize> = {
            let mut books = self.book.books.lock();
            books.is_hurried = true;
            let taken = books.pushes.range(own).filter(|(_, fate)| matches!(fate, Fate::Taken(_)));
            taken.map(|(slot, _)| *slot).collect()
        };
        let version = match self.timed("a flush", || client.flush()?.wait()) {
            Ok(version) => version,
            Err(error) => {
                return self.judged("a flush", Err(error)).or_else(|| self.book.is_sound(self.process).then_some(()));
            }
        };
        let books = self.book.books.lock();
        let is_in = |slot: &&usize| books.steps.get(*slot).is_some_and(|step| *step <= version);
        let late: Vec<usize> = taken.iter().filter(|slot| !is_in(slot)).copied().collect();
        drop(books);
        let may_miss = self.book.plan.settings.overflow == Overflow::DropOldest || self.book.ledger.is_troubled();
        if !late.is_empty() && !may_miss {
            self.book.fault(format!("{} has flushed as of version {version}, without {late:?}", self.process));
        }
        Some(())
    }

    /// Waits until it is known what became of all that it has pushed.
    fn settle(&self, client: &GradientClient) -> Option<()> {
        let (begun, flushes) = (clock::now(), self.book.plan.settings.flush_after.is_none());
        loop {
            if flushes {
                self.flush(client)?;
            }
            let report = self.judged("a report", self.timed("a report", || client.report()?.wait()))?;
            if report.pending == 0 {
                if self.book.is_sound(self.process) {
                    self.book.settles(self.process, &report);
                }
                return Some(());
            }
            if clock::since(begun) > SETTLED {
                if self.book.is_sound(self.process) {
                    self.book.fault(format!("{} does not hear of all that it has pushed: {report:?}", self.process));
                }
                return None;
            }
            pause(Duration::from_millis(20));
        }
    }
}

fn tensors(values: &[f64]) -> Result<Tensors> {
    Ok(Tensors::from([("w".to_owned(), Tensor::from_slice(values, [values.len() as u64])?)]))
}
