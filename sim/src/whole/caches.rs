//! A job whose processes have devices with room for some of their models, and particles that use them.
//!
//! The first particle of each process stands for the device, as in Python: operations are messages to it, from its own
//! process and others, and it has a model on the device for the time of each. Other particles pin models themselves,
//! as threads and as futures, and keep them while they sleep, or wait for others who may need the same room.
//!
//! The book of [particles](super::particles) knows who was sent what: operations of one sender come in their order,
//! each once, and all of them end. The [store](store) sees what moves: no more models are on a device than it has room
//! for, none is moved while somebody uses it, and each holds all that was applied to it, in order. At the end all
//! models are free: no guard was lost, and nobody waits.
//!
//! Whoever keeps a model while it waits for a particle does so for a while only, for the room that this one may need is
//! none that a cache knows of.

mod store;

use super::ledger::Ledger;
use super::particles::book::{Book, Plan, Sender, planned};
use super::particles::{number_of, settles};
use super::scenario::{Quit, Scenario};
use super::start::{await_others, join};
use crate::jobs::pause;
use sheave_base::clock::SeededEntropy;
use sheave_base::{Error, ErrorKind, NodeId, Result, thread};
use sheave_mesh::{Mesh, Runtime};
use sheave_particle::{Answer, Behavior, Context, Message, ParticleId, Particles};
use std::sync::Arc;
use std::time::Duration;
use store::Store;

/// How deep messages send others.
const DEPTH_MAX: u64 = 3;

pub(super) fn run(scenario: &Scenario, process: usize, ledger: &Arc<Ledger>, book: &Arc<Book>) {
    let Some(mesh) = join(scenario, process, ledger) else { return };
    let nodes = mesh.members().iter().map(|member| member.node).collect();
    let mut dice = SeededEntropy::new(scenario.seed ^ (process as u64 + 1) << 36);
    let store = Store::new(ledger, process, &mut dice);
    let (runtime, book) = (mesh.runtime().clone(), Arc::clone(book));
    let part = Arc::new(Part { process, seed: scenario.seed, nodes, runtime, book, store });
    let particles = Particles::new(&mesh, "models").expect("nobody did before");
    part.make(&particles, Behavior::new(()), false);
    for _ in 0..2 + dice.below(3) {
        let is_reentrant = dice.below(3) == 0;
        let behavior = if is_reentrant { Behavior::new(()).reentrant() } else { Behavior::new(()) };
        part.make(&particles, behavior, is_reentrant);
    }
    await_others(process, ledger);
    play(scenario, &mesh, &particles, &part, dice);
}

/// Does what the users of a process do, waits until all that they have sent has ended, and looks at what is left.
fn play(scenario: &Scenario, mesh: &Mesh, particles: &Particles, part: &Arc<Part>, mut dice: SeededEntropy) {
    let (process, ledger) = (part.process, &part.book.ledger);
    let others: Vec<_> = (0..1 + dice.below(3)).map(|_| part.user(particles, dice.below(1 << 40))).collect();
    let acts = scenario.rounds * scenario.steps;
    let threads: Vec<_> = others
        .into_iter()
        .map(|mut user| thread::spawn("user", move || user.act_some(acts)).expect("there is room for a thread"))
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
    if settles(scenario, process, &part.book) {
        part.store.settles();
    }
    super::particles::leaves(scenario, mesh, process, ledger);
}

/// What all handlers and users of a process know.
struct Part {
    process: usize,
    seed: u64,
    nodes: Vec<NodeId>,
    runtime: Runtime,
    book: Arc<Book>,
    store: Store,
}

/// What is kept while a handler does other things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    Nothing,
    ForSleep,
    ForWait,
}

impl Part {
    fn make(self: &Arc<Self>, particles: &Particles, behavior: Behavior, is_reentrant: bool) {
        let (steps, touches, polled) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        let behavior = behavior
            .on_blocking("step", move |context, message| steps.step(context, &message))
            .on_blocking("touch", move |context, message| touches.touch(context, &message))
            .on("poll", move |context, message| {
                let part = Arc::clone(&polled);
                async move { part.polled(&context, &message).await }
            });
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

    /// Sends a message to one of these processes: an operation to its device, or another one to somebody else.
    fn send(
        &self,
        particles: &Particles,
        sender: Sender,
        dice: &mut SeededEntropy,
        processes: &[usize],
    ) -> Option<(i64, Answer)> {
        let process = *processes.get(dice.below(processes.len().max(1) as u64) as usize)?;
        let places = self.book.places_of(process);
        let is_operation = dice.below(2) == 0;
        let at = if is_operation { 0 } else { 1 + dice.below((places.len() as u64).saturating_sub(1).max(1)) as usize };
        let to = *places.get(at)?;
        let name = if is_operation { "step" } else { ["touch", "poll"][dice.below(2) as usize] };
        let depth = match sender {
            Sender::User(..) => 0,
            Sender::Handler(number) => self.book.depth_of(number) + 1,
        };
        let plan = if dice.below(12) == 0 { Plan::Fails } else { Plan::Answers };
        let number = self.book.sends(sender, self.process, to, plan, depth);
        let answer = particles.send(ParticleId { node: self.nodes[to.0], number: to.1 }, name, number);
        let book = Arc::clone(&self.book);
        answer.work().on_complete(move |outcome| book.ends(number, outcome));
        Some((number, answer))
    }

    /// What a handler draws: its dice, the model that it uses, and what it does meanwhile.
    fn drawn(&self, number: i64) -> (SeededEntropy, u64, Keeps) {
        let mut dice = SeededEntropy::new(self.seed ^ number.unsigned_abs() << 20);
        let key = self.store.draw(&mut dice);
        let may_send = self.book.depth_of(number) < DEPTH_MAX && self.book.has_room();
        let keeps = match dice.below(4) {
            0 => Keeps::ForSleep,
            1 if may_send => Keeps::ForWait,
            _ => Keeps::Nothing,
        };
        (dice, key, keeps)
    }

    fn outcome(number: i64, plan: Plan) -> Result<Message> {
        match plan {
            Plan::Answers => Ok(Message::from(number)),
            Plan::Fails | Plan::Panics => Err(Error::new(ErrorKind::Mismatch, planned(number))),
        }
    }

    /// Whom a handler may wait for: its own process, or those behind it.
    fn whom(&self, dice: &mut SeededEntropy) -> Vec<usize> {
        if dice.below(4) == 0 { (self.process + 1..self.nodes.len()).collect() } else { vec![self.process] }
    }

    /// An operation of the device: it has the model for that time, and waits for nobody else.
    fn step(self: &Arc<Self>, context: &Context, message: &Message) -> Result<Message> {
        let number = number_of(message);
        let (plan, _running) = self.book.begins(number, (self.process, context.id().number));
        let (mut dice, key, keeps) = self.drawn(number);
        if let Some(model) = self.store.acquire(key, None) {
            model.apply(number);
            if keeps != Keeps::Nothing {
                pause(Duration::from_micros(dice.below(4000)));
            }
        }
        Self::outcome(number, plan)
    }

    /// Keeps a model while it waits for others.
    fn touch(self: &Arc<Self>, context: &Context, message: &Message) -> Result<Message> {
        let number = number_of(message);
        let (plan, _running) = self.book.begins(number, (self.process, context.id().number));
        let (mut dice, key, keeps) = self.drawn(number);
        let limit = (keeps == Keeps::ForWait).then(|| Duration::from_micros(dice.below(20_000)));
        let model = self.store.acquire(key, limit);
        model.iter().for_each(|model| model.apply(number));
        match keeps {
            Keeps::Nothing => {}
            Keeps::ForSleep => pause(Duration::from_micros(dice.below(5000))),
            Keeps::ForWait => {
                let whom = self.whom(&mut dice);
                if let Some((target, answer)) =
                    self.send(&context.particles(), Sender::Handler(number), &mut dice, &whom)
                {
                    let circle = self.book.waits(number, target, true);
                    let outcome = answer.wait_timeout(Duration::from_micros(dice.below(30_000)));
                    self.book.waited(number, target, circle, &outcome);
                }
            }
        }
        drop(model);
        Self::outcome(number, plan)
    }

    async fn polled(self: &Arc<Self>, context: &Context, message: &Message) -> Result<Message> {
        let number = number_of(message);
        let (plan, _running) = self.book.begins(number, (self.process, context.id().number));
        let (mut dice, key, keeps) = self.drawn(number);
        let model = self.store.acquire_async(key).await;
        model.iter().for_each(|model| model.apply(number));
        let span = Duration::from_micros(dice.below(5000));
        match keeps {
            Keeps::Nothing => {}
            Keeps::ForSleep => self.runtime.sleep_until(self.runtime.after(span))?.await,
            Keeps::ForWait => {
                let whom = self.whom(&mut dice);
                let sent = self.send(&context.particles(), Sender::Handler(number), &mut dice, &whom);
                if let Some((_, answer)) = sent {
                    let work = answer.work().clone();
                    drop(self.runtime.until(self.runtime.after(span), work).await);
                }
            }
        }
        drop(model);
        Self::outcome(number, plan)
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
        match self.dice.below(10) {
            0..3 => {
                if let Some((_, answer)) = self.send() {
                    drop(answer.wait());
                }
            }
            3..6 => {
                let count = 2 + self.dice.below(6);
                let sent: Vec<_> = (0..count).filter_map(|_| self.send()).collect();
                for (number, answer) in &sent {
                    if self.dice.below(6) == 0 {
                        self.part.book.cancels(*number);
                        answer.cancel();
                    }
                }
                sent.iter().rev().for_each(|(_, answer)| drop(answer.wait()));
            }
            6 => drop(self.send()),
            7 => {
                let key = self.part.store.draw(&mut self.dice);
                let limit = Duration::from_micros(self.dice.below(10_000));
                if let Some(_model) = self.part.store.acquire(key, Some(limit)) {
                    pause(Duration::from_micros(self.dice.below(3000)));
                }
            }
            8 if self.dice.below(2) == 0 => {
                let key = self.part.store.draw(&mut self.dice);
                self.part.store.replace(key);
            }
            _ => pause(Duration::from_micros(self.dice.below(20_000))),
        }
    }
}
