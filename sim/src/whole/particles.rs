//! A job whose processes have particles that send each other messages, some of which wait for others.
//!
//! The book ([`Book`]) knows who was sent what, which handlers run, and for what each waits. Of one sender and particle
//! messages begin in their order, each once at most; a particle that is not re-entrant has one handler at a time, and
//! any other begins one while all that run wait. Each message has one outcome, its own; what was cancelled before it
//! began never does. A wait that closes a circle within a process ends with `Deadlock`, and no other one does. And all
//! that was sent by those who live has ended at the end, after a death within the time in which it must be known.
//!
//! Between processes handlers wait without a deadline for those of higher numbers alone, so those waits close no
//! circles; for others they wait by the work behind the answer, for a while.

pub(super) mod book;

use super::ledger::Ledger;
use super::scenario::{End, Quit, Scenario};
use super::start::{await_others, join};
use crate::jobs::pause;
pub(super) use book::Book;
use book::{Place, Plan, Sender, planned};
use sheave_base::clock::SeededEntropy;
use sheave_base::{Error, ErrorKind, NodeId, Result, clock, thread};
use sheave_mesh::{Mesh, Runtime};
use sheave_particle::{Answer, Behavior, Context, Message, ParticleId, Particles};
use sheave_wire::Value;
use std::sync::Arc;
use std::time::Duration;

/// How deep messages send others.
const DEPTH_MAX: u64 = 4;

/// Longer than everything that is under way may take, once nobody sends any more and all troubles are over.
const SETTLED: Duration = Duration::from_secs(40);

/// How long after it must be known a death may be told to those who wait for particles.
const SLACK: Duration = Duration::from_millis(500);

pub(super) fn run(scenario: &Scenario, process: usize, ledger: &Arc<Ledger>, book: &Arc<Book>) {
    let Some(mesh) = join(scenario, process, ledger) else { return };
    let nodes = mesh.members().iter().map(|member| member.node).collect();
    let (runtime, book) = (mesh.runtime().clone(), Arc::clone(book));
    let part = Arc::new(Part { process, seed: scenario.seed, nodes, runtime, book });
    let particles = Particles::new(&mesh, "particles").expect("nobody did before");
    let mut dice = SeededEntropy::new(scenario.seed ^ (process as u64 + 1) << 40);
    for _ in 0..2 + dice.below(3) {
        part.make(&particles, dice.below(3) == 0);
    }
    await_others(process, ledger);
    play(scenario, &mesh, &particles, &part, dice);
}

/// Does what the users of a process do, and waits until all that they have sent has ended.
fn play(scenario: &Scenario, mesh: &Mesh, particles: &Particles, part: &Arc<Part>, mut dice: SeededEntropy) {
    let (process, ledger) = (part.process, &part.book.ledger);
    let acts = scenario.rounds * scenario.steps;
    let others: Vec<_> = (0..dice.below(3)).map(|_| (part.user(particles, dice.below(1 << 40)), acts)).collect();
    let threads: Vec<_> = others
        .into_iter()
        .map(|(user, acts)| thread::spawn("user", move || user.play(acts)).expect("there is room for a thread"))
        .collect();
    let mut user = part.user(particles, dice.below(1 << 40));
    for round in 0..scenario.rounds {
        match ledger.quit_in(process, round) {
            Some(Quit::Fails) => {
                ledger.quits(process);
                return mesh.fail("on purpose");
            }
            Some(Quit::Returns) => return ledger.quits(process),
            None => {}
        }
        user.act_some(1 + scenario.steps);
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    settles(scenario, process, &part.book);
    leaves(scenario, mesh, process, ledger);
}

/// Waits until all that a process has sent has ended, and returns whether it has.
pub(super) fn settles(scenario: &Scenario, process: usize, book: &Book) -> bool {
    let begun = clock::now();
    let ledger = &book.ledger;
    let mut open = book.open_of(process);
    while !open.is_empty() && clock::since(begun) < SETTLED {
        pause(Duration::from_millis(20));
        if !ledger.is_doomed(process) && scenario.must_go_on() {
            book.expects_nothing_of_the_dead(process, SLACK);
        }
        open = book.open_of(process);
    }
    if !open.is_empty() && !ledger.is_doomed(process) && scenario.must_go_on() {
        book.fault(format!("what {process} has sent does not end: {}", book.tells_of(&open)));
    }
    open.is_empty()
}

/// Comes to the end of the job.
pub(super) fn leaves(scenario: &Scenario, mesh: &Mesh, process: usize, ledger: &Ledger) {
    ledger.comes_to_its_end(process);
    let left = match scenario.end {
        End::Finish => mesh.finish(),
        End::Leave => mesh.leave(),
    };
    if let Err(error) = left
        && !ledger.may_fail(process, &error)
    {
        ledger.fault(format!("leave of {process} accuses the wrong one, or nobody: {error:?}"));
    }
}

/// What all handlers and users of a process know.
struct Part {
    process: usize,
    seed: u64,
    nodes: Vec<NodeId>,
    runtime: Runtime,
    book: Arc<Book>,
}

impl Part {
    fn make(self: &Arc<Self>, particles: &Particles, is_reentrant: bool) {
        let (polled, blocking) = (Arc::clone(self), Arc::clone(self));
        let behavior = Behavior::new(())
            .on("poll", move |context, message| {
                let part = Arc::clone(&polled);
                async move { part.polled(&context, &message).await }
            })
            .on_blocking("block", move |context, message| blocking.blocking(context, &message));
        let behavior = if is_reentrant { behavior.reentrant() } else { behavior };
        match particles.create(behavior) {
            Ok(made) => self.book.makes((self.process, made.number), is_reentrant),
            Err(error) if self.book.ledger.may_fail(self.process, &error) => {}
            Err(error) => self.book.fault(format!("{} makes no particle: {error:?}", self.process)),
        }
    }

    fn user(self: &Arc<Self>, particles: &Particles, seed: u64) -> User {
        let (part, particles, sender) = (Arc::clone(self), particles.clone(), self.book.user(self.process));
        User { part, particles, sender, dice: SeededEntropy::new(seed) }
    }

    /// Draws a particle of one of these processes.
    fn place(&self, dice: &mut SeededEntropy, processes: &[usize]) -> Option<Place> {
        let process = *processes.get(dice.below(processes.len().max(1) as u64) as usize)?;
        let places = self.book.places_of(process);
        places.get(dice.below(places.len().max(1) as u64) as usize).copied()
    }

    /// Sends a message to one of these processes.
    fn send(
        &self,
        particles: &Particles,
        sender: Sender,
        dice: &mut SeededEntropy,
        processes: &[usize],
    ) -> Option<(i64, Answer)> {
        let to = self.place(dice, processes)?;
        let plan = match dice.below(12) {
            0 => Plan::Fails,
            1 => Plan::Panics,
            _ => Plan::Answers,
        };
        let name = ["poll", "block"][dice.below(2) as usize];
        let depth = match sender {
            Sender::User(..) => 0,
            Sender::Handler(number) => self.book.depth_of(number) + 1,
        };
        let number = self.book.sends(sender, self.process, to, plan, depth);
        let answer = particles.send(ParticleId { node: self.nodes[to.0], number: to.1 }, name, number);
        let book = Arc::clone(&self.book);
        answer.work().on_complete(move |outcome| book.ends(number, outcome));
        Some((number, answer))
    }

    /// What a handler does, drawn by its number.
    fn steps(&self, number: i64) -> (SeededEntropy, u64) {
        let mut dice = SeededEntropy::new(self.seed ^ number.unsigned_abs() << 24);
        let count = if self.book.depth_of(number) < DEPTH_MAX { dice.below(3) } else { 0 };
        (dice, count)
    }

    /// What handlers do that may block and those that may not: sends without a wait, and ends of particles.
    fn common(self: &Arc<Self>, context: &Context, number: i64, dice: &mut SeededEntropy) {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        match dice.below(8) {
            0 => {
                let places = self.book.places_of(self.process);
                if places.len() > 1 {
                    self.replace(&context.particles(), (self.process, context.id().number), dice);
                }
            }
            1 => {
                if let Some((number, answer)) =
                    self.send(&context.particles(), Sender::Handler(number), dice, &[self.process])
                {
                    self.cancel(number, &answer);
                }
            }
            _ => drop(self.send(&context.particles(), Sender::Handler(number), dice, &all)),
        }
    }

    /// Removes a particle, and makes another one.
    fn replace(self: &Arc<Self>, particles: &Particles, place: Place, dice: &mut SeededEntropy) {
        self.book.removes(place);
        let _ = particles.remove(ParticleId { node: self.nodes[place.0], number: place.1 });
        self.make(particles, dice.below(3) == 0);
    }

    fn cancel(&self, number: i64, answer: &Answer) {
        let must_end = self.book.cancels(number);
        answer.cancel();
        if must_end && !answer.is_done() {
            self.book.fault(format!("message {number} has not begun and was cancelled, and has not ended"));
        }
    }

    fn outcome(number: i64, plan: Plan) -> Result<Message> {
        match plan {
            Plan::Answers => Ok(Message::from(number)),
            Plan::Fails => Err(Error::new(ErrorKind::Mismatch, planned(number))),
            Plan::Panics => std::panic::resume_unwind(Box::new(planned(number))),
        }
    }

    fn later(&self) -> Vec<usize> {
        (self.process + 1..self.nodes.len()).collect()
    }

    async fn polled(self: &Arc<Self>, context: &Context, message: &Message) -> Result<Message> {
        let number = number_of(message);
        let (plan, _running) = self.book.begins(number, (self.process, context.id().number));
        let (mut dice, count) = self.steps(number);
        let (own, particles) = ([self.process], context.particles());
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        for _ in 0..count {
            if !self.book.has_room() {
                break;
            }
            let whom = match dice.below(10) {
                0..5 => &own[..],
                5 => &self.later()[..],
                6 => {
                    if let Some((_, answer)) = self.send(&particles, Sender::Handler(number), &mut dice, &all) {
                        let span = Duration::from_micros(dice.below(20_000));
                        let work = answer.work().clone();
                        drop(self.runtime.until(self.runtime.after(span), work).await);
                    }
                    continue;
                }
                7 => {
                    let span = Duration::from_micros(dice.below(5000));
                    self.runtime.sleep_until(self.runtime.after(span))?.await;
                    continue;
                }
                _ => {
                    self.common(context, number, &mut dice);
                    continue;
                }
            };
            let sent: Vec<_> = (0..1 + dice.below(2))
                .filter_map(|_| self.send(&particles, Sender::Handler(number), &mut dice, whom))
                .collect();
            for (target, answer) in sent {
                let circle = self.book.waits(number, target, false);
                let outcome = answer.await;
                self.book.waited(number, target, circle, &outcome);
            }
        }
        Self::outcome(number, plan)
    }

    fn blocking(self: &Arc<Self>, context: &Context, message: &Message) -> Result<Message> {
        let number = number_of(message);
        let (plan, _running) = self.book.begins(number, (self.process, context.id().number));
        let (mut dice, count) = self.steps(number);
        let (own, particles) = ([self.process], context.particles());
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        for _ in 0..count {
            if !self.book.has_room() {
                break;
            }
            let whom = match dice.below(10) {
                0..5 => &own[..],
                5 => &self.later()[..],
                6 => {
                    if let Some((_, answer)) = self.send(&particles, Sender::Handler(number), &mut dice, &all) {
                        drop(answer.work().wait_timeout(Duration::from_micros(dice.below(20_000))));
                    }
                    continue;
                }
                7 => {
                    pause(Duration::from_micros(dice.below(5000)));
                    continue;
                }
                _ => {
                    self.common(context, number, &mut dice);
                    continue;
                }
            };
            let sent: Vec<_> = (0..1 + dice.below(2))
                .filter_map(|_| self.send(&particles, Sender::Handler(number), &mut dice, whom))
                .collect();
            for (target, answer) in sent {
                let is_timed = dice.below(4) == 0;
                let circle = self.book.waits(number, target, is_timed);
                let outcome = match is_timed {
                    true => answer.wait_timeout(Duration::from_micros(dice.below(20_000))),
                    false => answer.wait(),
                };
                self.book.waited(number, target, circle, &outcome);
            }
        }
        Self::outcome(number, plan)
    }
}

pub(super) fn number_of(message: &Message) -> i64 {
    match message.value {
        Value::Int(number) => number,
        _ => 0,
    }
}

/// A thread that sends messages.
struct User {
    part: Arc<Part>,
    particles: Particles,
    sender: Sender,
    dice: SeededEntropy,
}

impl User {
    fn play(mut self, acts: u64) {
        self.act_some(acts);
    }

    fn act_some(&mut self, most: u64) {
        for _ in 0..1 + self.dice.below(most) {
            self.act();
        }
    }

    fn send(&mut self) -> Option<(i64, Answer)> {
        let all: Vec<usize> = (0..self.part.nodes.len()).collect();
        let own = [self.part.process];
        let whom = if self.dice.below(3) == 0 { &all[..] } else { &own[..] };
        self.part.send(&self.particles, self.sender, &mut self.dice, whom)
    }

    fn act(&mut self) {
        match self.dice.below(12) {
            0..3 => {
                if let Some((number, answer)) = self.send() {
                    self.judge(number, &answer.wait());
                }
            }
            3 | 4 => {
                let count = 2 + self.dice.below(6);
                let sent: Vec<_> = (0..count).filter_map(|_| self.send()).collect();
                for (number, answer) in &sent {
                    if self.dice.below(6) == 0 {
                        self.part.cancel(*number, answer);
                    }
                }
                sent.iter().rev().for_each(|(number, answer)| self.judge(*number, &answer.wait()));
            }
            5 => {
                if let Some((number, answer)) = self.send() {
                    let span = Duration::from_micros(self.dice.below(30_000));
                    match answer.wait_timeout(span) {
                        Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {}
                        outcome => self.judge(number, &outcome),
                    }
                }
            }
            6 => drop(self.send()),
            7 | 8 => self.begin_task(),
            9 => {
                if let Some(place) = self.part.place(&mut self.dice, &[self.part.process])
                    && self.dice.below(3) == 0
                {
                    self.part.replace(&self.particles, place, &mut self.dice);
                }
            }
            _ => pause(Duration::from_micros(self.dice.below(30_000))),
        }
    }

    /// Whoever is no handler is part of no circle.
    fn judge(&self, number: i64, outcome: &Result<Message>) {
        if let Err(error) = outcome
            && error.kind() == ErrorKind::Deadlock
        {
            self.part.book.fault(format!("a user waits for {number} and is told {error:?}"));
        }
    }

    /// Has a task send and wait.
    fn begin_task(&mut self) {
        let mut user = self.part.user(&self.particles, self.dice.below(1 << 40));
        let begun = self.part.runtime.spawn(async move {
            for _ in 0..1 + user.dice.below(3) {
                if let Some((number, answer)) = user.send() {
                    user.judge(number, &answer.await);
                }
            }
        });
        // It may have been told that the node leaves.
        begun.into_iter().for_each(sheave_mesh::Task::detach);
    }
}
