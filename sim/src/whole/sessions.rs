//! A job that is a session: process 0 leads, the others work.
//!
//! The model knows which commands fail on which worker, and so which registers are poisoned. A worker runs each command
//! whose arguments it has, once and in order; what it has is what the controller fetches; and who is told of a failure
//! is told of one that has been, once. What all workers do together comes out right on all of them, or fails on all,
//! for what one of them was to fail by or because one is dead; and nobody waits for one that has nothing to give.

use super::ledger::Ledger;
use super::scenario::Scenario;
use crate::jobs::{pause, rank_config};
use parking_lot::Mutex;
use sheave_base::clock::SeededEntropy;
use sheave_base::{Error, ErrorKind, Result, clock};
use sheave_collective::Operator;
use sheave_session::{Args, Function, Register, Scope, Session, Worker};
use sheave_session::{register_function, unregister_function, work_as};
use sheave_tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Registers that the controller keeps.
const KEPT: usize = 6;

/// A command with this text leaves alone; others are kept for each other.
const LONG: &str = "a text that is longer than what commands may have that leave together with others behind them";

/// Longer than a command may take where all are well.
const PATIENCE: Duration = Duration::from_secs(10);

/// The commands that workers have run, in the order in which they did.
#[derive(Default)]
pub(super) struct Steps(Mutex<BTreeMap<u32, Vec<u64>>>);

impl Steps {
    fn note(&self, worker: u32, number: u64) {
        self.0.lock().entry(worker).or_default().push(number);
    }

    fn of(&self, worker: u32) -> Vec<u64> {
        self.0.lock().get(&worker).cloned().unwrap_or_default()
    }
}

pub(super) fn run(scenario: &Scenario, process: usize, ledger: &Arc<Ledger>, steps: &Arc<Steps>) {
    ledger.now();
    let config = rank_config(process, scenario.hosts[process], scenario.ranks() as u32);
    if process > 0 {
        if let Err(error) = work_as(config) {
            // Whoever died before all had met is missing.
            if error.operation_name() != Some("join") || !ledger.is_troubled() {
                judge(ledger, process, "working", &error);
            }
        }
        return ledger.comes_to_its_end(process);
    }
    let session = match Session::lead(config, 1) {
        Ok(session) => session,
        Err(error) if ledger.is_troubled() => return assert_ne!(error.kind(), ErrorKind::Internal, "{error}"),
        Err(error) => return ledger.fault(format!("{process} could not lead: {error}")),
    };
    for (process, member) in session.mesh().members().iter().enumerate() {
        ledger.joined(process, member.node);
    }
    let names = serve(steps);
    let dice = SeededEntropy::new(scenario.seed ^ 0x5e55);
    let workers = session.workers();
    let (ledger, steps) = (Arc::clone(ledger), Arc::clone(steps));
    let (kept, expected, untold) = (Vec::new(), vec![Vec::new(); workers as usize], vec![false; workers as usize]);
    // The workers agree, then tell what is wrong or add up, each perhaps around all of them.
    let hop = Duration::from_nanos(scenario.way.delay_ns + scenario.way.jitter_ns);
    let (sums, sum) = (Duration::ZERO, hop * (3 * workers));
    Part { session, ledger, steps, dice, number: 0, kept, expected, untold, sums, sum }.play(&names, scenario);
    names.iter().for_each(|name| unregister_function(name));
}

/// Registers the functions of this run. Names are of one length: runs of one seed send the same bytes.
fn serve(steps: &Arc<Steps>) -> [String; 3] {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let run = RUNS.fetch_add(1, SeqCst);
    let names = ["step", "give", "read"].map(|name| format!("{name} {run:08}"));
    let steps = Arc::clone(steps);
    let step = move |mut arguments: sheave_session::Arguments| {
        let (number, unlucky): (u64, Option<u32>) = (arguments.take()?, arguments.take()?);
        let worker = Worker::current()?.id;
        steps.note(worker, number);
        if unlucky == Some(worker) {
            return Err(Error::new(ErrorKind::Mismatch, format!("planned {number}")));
        }
        Ok(sheave_session::Held::of(number))
    };
    let give = Function::typed(&names[1], |(number, unlucky): (u64, Option<u32>)| {
        let worker = Worker::current()?.id;
        if unlucky == Some(worker) {
            return Err(Error::new(ErrorKind::Mismatch, format!("planned {number}")));
        }
        Tensor::from_slice(&[number, number * u64::from(worker)], [2])
    });
    let read = Function::typed(&names[2], |(tensor,): (Tensor,)| Ok(tensor.to_vec::<u64>()?[1]));
    for function in [Function::new(&names[0], step), give, read] {
        register_function(function).expect("no other run has its name");
    }
    names
}

fn judge(ledger: &Ledger, process: usize, what: &str, error: &Error) {
    if !ledger.may_fail(process, error) {
        ledger.fault(format!("{what} of {process} accuses the wrong one, or nobody: {error:?}"));
    }
}

/// A register, its number, and the workers on which it is poisoned.
#[derive(Clone)]
struct Made {
    register: Register,
    number: u64,
    poisoned: BTreeSet<u32>,
    /// It comes of what all workers have done together: a death may have poisoned it on any of them.
    is_shared: bool,
}

struct Part {
    session: Session,
    ledger: Arc<Ledger>,
    steps: Arc<Steps>,
    dice: SeededEntropy,
    number: u64,
    kept: Vec<Made>,
    /// By worker, the commands that it runs, and whether one needs what a death may have poisoned.
    expected: Vec<Vec<(u64, bool)>>,
    /// By worker, whether it has failures of which nobody was told.
    untold: Vec<bool>,
    /// How long the sums may take that nobody has waited for.
    sums: Duration,
    /// How long one may take.
    sum: Duration,
}

impl Part {
    fn play(mut self, names: &[String; 3], scenario: &Scenario) {
        let mut functions = Vec::new();
        for name in names {
            let Some(function) = self.judged("naming a function", self.session.function(name)) else { return };
            functions.push(function);
        }
        for _ in 0..scenario.rounds * (5 + self.dice.below(4 * scenario.steps)) {
            if !self.session.mesh().is_member() {
                break;
            }
            match self.dice.below(12) {
                10 | 11 => self.reduce(&functions[1], &functions[2]),
                0 => pause(Duration::from_micros(self.dice.below(50_000))),
                1 => self.sync(),
                2 | 3 => self.fetch(),
                _ => self.call(&functions[0]),
            }
        }
        for worker in 0..self.session.workers() {
            self.wait(worker, "the last sync", |part| part.session.sync(worker, Some(PATIENCE)));
        }
        self.check();
        self.ledger.comes_to_its_end(0);
        let ended = self.session.shutdown();
        if let Err(error) = ended {
            judge(&self.ledger, 0, "the end", &error);
        }
    }

    fn judged<T>(&self, what: &str, outcome: Result<T>) -> Option<T> {
        outcome.inspect_err(|error| judge(&self.ledger, 0, what, error)).ok()
    }

    fn call(&mut self, step: &Register) {
        self.number += 1;
        let workers = self.session.workers();
        let unlucky = (self.dice.below(6) == 0).then(|| self.dice.below(workers.into()) as u32);
        let mut args = Args::new().value(self.number).value(unlucky);
        if self.dice.below(2) == 0 {
            args = args.value(LONG);
        }
        let (mut poisoned, mut is_shared) = (BTreeSet::new(), false);
        if !self.kept.is_empty() && self.dice.below(3) > 0 {
            let before = &self.kept[self.dice.below(self.kept.len() as u64) as usize];
            poisoned.clone_from(&before.poisoned);
            is_shared = before.is_shared;
            args = args.register(&before.register);
        }
        let called = self.session.call(step, &args);
        let Some(register) = self.judged("a call", called) else { return };
        for worker in 0..workers {
            if !poisoned.contains(&worker) {
                self.expected[worker as usize].push((self.number, is_shared));
            }
        }
        poisoned.extend(unlucky);
        poisoned.iter().for_each(|worker| self.untold[*worker as usize] = true);
        self.keep(Made { register, number: self.number, poisoned, is_shared });
    }

    /// Has all workers add up what each gives, which one of them may not have.
    fn reduce(&mut self, give: &Register, read: &Register) {
        self.number += 1;
        self.sums += self.sum;
        let workers = self.session.workers();
        let unlucky = (self.dice.below(4) == 0).then(|| self.dice.below(workers.into()) as u32);
        let scope = if self.dice.below(2) == 0 { Scope::World } else { Scope::Group };
        let args = Args::new().value(self.number).value(unlucky);
        let given = self.judged("a call", self.session.call(give, &args));
        let sum =
            given.and_then(|given| self.judged("a sum", self.session.all_reduce(&given, None, Operator::Sum, scope)));
        let total = sum.and_then(|sum| self.judged("a call", self.session.call(read, &Args::new().register(&sum))));
        let poisoned: BTreeSet<u32> = if unlucky.is_none() { BTreeSet::new() } else { (0..workers).collect() };
        poisoned.iter().for_each(|worker| self.untold[*worker as usize] = true);
        let Some(register) = total else { return };
        let number = self.number * (0..u64::from(workers)).sum::<u64>();
        self.keep(Made { register, number, poisoned, is_shared: true });
    }

    fn keep(&mut self, made: Made) {
        if self.kept.len() >= KEPT {
            self.kept.swap_remove(self.dice.below(KEPT as u64) as usize);
        }
        self.kept.push(made);
    }

    fn sync(&mut self) {
        let worker = self.dice.below(self.session.workers().into()) as u32;
        self.wait(worker, "a sync", |part| part.session.sync(worker, Some(PATIENCE)));
    }

    fn fetch(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let made = self.kept[self.dice.below(self.kept.len() as u64) as usize].clone();
        let worker = self.dice.below(self.session.workers().into()) as u32;
        let was_untold = self.untold[worker as usize];
        let fetched = self.wait(worker, "a fetch", |_| made.register.get::<u64>(worker, Some(PATIENCE)));
        match fetched {
            Some(number) if made.poisoned.contains(&worker) || was_untold => {
                self.ledger.fault(format!("worker {worker} has {number} in a register, and has not told a failure"));
            }
            Some(number) if number != made.number => {
                self.ledger.fault(format!("worker {worker} has {number} in register {}", made.number));
            }
            _ => {}
        }
        if !was_untold && made.poisoned.contains(&worker) {
            // The poison was told, which is no news of its own.
            self.untold[worker as usize] = false;
        }
    }

    /// Waits for a worker, and judges what it says.
    fn wait<T>(&mut self, worker: u32, what: &str, act: impl FnOnce(&Self) -> Result<T>) -> Option<T> {
        let begun = clock::now();
        let outcome = act(self);
        let sums = std::mem::take(&mut self.sums);
        self.ledger.ends_in_time(0, what, clock::since(begun).saturating_sub(sums));
        let was_untold = std::mem::take(&mut self.untold[worker as usize]);
        match outcome {
            Ok(done) => {
                if was_untold && what.ends_with("sync") {
                    self.ledger.fault(format!("worker {worker} has not told what has failed"));
                }
                Some(done)
            }
            Err(error) if error.kind() == ErrorKind::Mismatch => {
                let is_its = error.to_string().contains(&format!("worker {worker}"));
                if !is_its || !error.to_string().contains("planned ") {
                    self.ledger.fault(format!("{what} of worker {worker} tells another failure: {error}"));
                }
                if !was_untold && what.ends_with("sync") {
                    self.ledger.fault(format!("worker {worker} tells a failure that was told: {error}"));
                }
                None
            }
            Err(error) => {
                // It may have had something to tell besides, unless it is what a worker has told of an operation.
                self.untold[worker as usize] = was_untold && !error.to_string().contains("call of sheave.all_reduce");
                judge(&self.ledger, 0, what, &error);
                None
            }
        }
    }

    /// Each worker that lives has run what it had to.
    fn check(&self) {
        if self.ledger.is_doomed(0) || self.ledger.may_be_dead(0) {
            return;
        }
        for (worker, expected) in (0..).zip(&self.expected) {
            let run = self.steps.of(worker);
            let may_lack = self.ledger.is_doomed(worker as usize) || self.ledger.may_be_dead(worker as usize);
            let mut left = run.iter().peekable();
            let missing = expected.iter().find(|(number, is_shared)| {
                let is_run = left.next_if(|run| *run == number).is_some();
                !(is_run || *is_shared && self.ledger.is_troubled())
            });
            if left.next().is_some() || missing.is_some() && !may_lack {
                self.ledger.fault(format!("worker {worker} has run {run:?}; expected {expected:?}"));
            }
        }
    }
}
