//! A job that is a pool: process 0 is its host, and in place of a fleet it starts workers, kills them, has them stop,
//! replaces them, and says how they ended.
//!
//! The book ([`Book`]) knows of each task where it has begun and ended, and of each worker what was done to it. A task
//! ends once, as it should; it begins once more than there may be tries at most, each time because the worker before
//! has met with trouble, and never when it has ended; one that has ended on a worker is not failed by its death; and
//! none waits while a worker has nothing to do.

mod book;
mod worker;

use super::ledger::Ledger;
use super::scenario::{End, Scenario};
use crate::jobs::{pause, rank_config};
use crate::lockstep::{Trouble, World};
use book::{Book, Order, Setup, What, death_of};
use sheave_base::clock::SeededEntropy;
use sheave_base::{Error, ErrorKind, Peer, Work, clock, thread};
use sheave_mesh::{AttachedGuest, Mesh};
use sheave_pool::{Function, Job, Packet, Settings, Tasker, Turn, Workers};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::sync::Arc;
use std::time::Duration;

/// How often is looked whether a process has ended.
const LOOK: Duration = Duration::from_millis(10);
/// Longer than a worker takes to come.
const ARRIVAL: Duration = Duration::from_secs(5);
/// How long is waited for something before it is asked whether it is late.
const PATIENCE: Duration = Duration::from_millis(200);
/// Bytes of large arguments: some of these are more than a window has.
const LARGE_BYTES: [u64; 3] = [4 << 10, 20 << 10, 100 << 10];

pub(super) fn run(scenario: &Scenario, world: &World, ledger: &Arc<Ledger>) {
    ledger.now();
    let mut dice = SeededEntropy::new(scenario.seed ^ 0x900c);
    let mesh = Mesh::join(rank_config(0, scenario.hosts[0], 1)).expect("it is alone");
    ledger.joined(0, mesh.me().node);
    let slots = scenario.guests.len();
    let tasks_per_worker = (dice.below(4) == 0).then(|| 1 + dice.below(8) as usize);
    let setup = [Setup::None, Setup::BySlot, Setup::Fails][[0, 0, 0, 0, 1, 1, 1, 1, 2][dice.below(9) as usize]];
    let packet = |slot: usize| Packet::new(&setup.of(slot), Default::default()).expect("it is short");
    let setups = (0..slots).filter(|_| setup != Setup::None).map(packet).collect();
    let workers = Workers::new(&mesh, slots, Settings { setups, tasks_per_worker }).expect("the name is free");
    let book = Arc::new(Book::new(ledger, scenario, tasks_per_worker, setup));
    let keepers: Vec<_> = (0..slots)
        .map(|slot| {
            let keeper = Keeper {
                mesh: mesh.clone(),
                workers: workers.clone(),
                world: world.clone(),
                book: Arc::clone(&book),
                dice: SeededEntropy::new(scenario.seed ^ (slot as u64 + 1) << 32),
                slot,
                scenario: scenario.clone(),
            };
            thread::spawn("keeper", move || keeper.run()).expect("there is room for a thread")
        })
        .collect();
    let tasker = workers.tasker();
    let functions = (0..3).map(|number| function(&tasker, number)).collect();
    let mut part = Part { world: world.clone(), book, tasker, workers, functions, dice, jobs: Vec::new() };
    part.play(scenario);
    part.end(scenario, mesh, keepers);
}

/// A function that workers find by its number.
fn function(tasker: &Tasker, number: i64) -> Function {
    tasker.function(Packet::new(&Value::Int(number), Default::default()).expect("it is short"))
}

/// Sees to it that there is a process in a slot, as a fleet does.
struct Keeper {
    mesh: Mesh,
    workers: Workers,
    world: World,
    book: Arc<Book>,
    dice: SeededEntropy,
    slot: usize,
    scenario: Scenario,
}

impl Keeper {
    fn run(mut self) {
        while !self.book.is_closing() {
            let turn = Turn::here();
            let Ok(invitation) = self.mesh.invite_own("worker") else { return };
            let Ok(arrival) = self.mesh.guest_arrival(invitation.name()) else { return };
            let process = self.book.starts(self.slot);
            let worker = worker::Part {
                process,
                slot: self.slot,
                host: self.scenario.hosts[0],
                invitation: invitation.to_text(),
                turn: turn.clone(),
                world: self.world.clone(),
                book: Arc::clone(&self.book),
            };
            let started = self.world.start(&format!("worker {process}"), self.scenario.hosts[0], || worker.run());
            assert_eq!(started, process, "nobody else starts processes");
            match self.await_guest(process, arrival) {
                Some(guest) => self.serve(process, &guest, turn),
                None => drop(self.mesh.withdraw_invitation(invitation.name())),
            }
            pause(Duration::from_micros(self.dice.below(20_000)));
        }
    }

    /// Waits until the worker has come and is ready; nothing if it has died before.
    fn await_guest(&self, process: usize, arrival: Work<AttachedGuest>) -> Option<AttachedGuest> {
        let begun = clock::now();
        let has_ended = || self.book.is_gone(process) || self.book.is_closing();
        self.await_unless(&arrival, &has_ended);
        let guest = arrival.result()?.ok()?;
        let ready = self.mesh.guest_ready(guest.node).ok()?;
        self.await_unless(&ready, &has_ended);
        if clock::since(begun) > ARRIVAL && !self.book.is_troubled(process) {
            self.book.fault(format!("worker {process} has not come within {ARRIVAL:?}"));
        }
        ready.result()?.ok().map(|()| guest)
    }

    fn await_unless<T: Clone + Send + 'static>(&self, work: &Work<T>, is_over: &dyn Fn() -> bool) {
        while !work.is_done() && !is_over() {
            let _ = work.wait_until(Some(clock::now() + LOOK), None);
        }
    }

    /// Has the pool hire a worker, and says how it ended, before the node has lost it or after.
    fn serve(&mut self, process: usize, guest: &AttachedGuest, turn: Turn) {
        // One that is gone again is told of.
        let _ = self.workers.hire(self.slot, guest, turn);
        let Ok(end) = self.mesh.guest_end(guest.node) else { return };
        let is_hasty = self.dice.below(2) == 0;
        self.await_unless(&end, &|| is_hasty && self.book.is_gone(process) || self.book.is_over());
        if self.book.is_over() {
            return;
        }
        if !self.book.is_gone(process) {
            // It is no guest any more, and may run on for a while.
            let span = if self.book.is_troubled(process) { 2_000_000 } else { 20_000 };
            pause(Duration::from_micros(self.dice.below(span)));
            self.book.kills(process);
            self.world.strike(Trouble::Kill(process));
        }
        pause(Duration::from_micros([0, 300, 20_000][self.dice.below(3) as usize]));
        self.book.stirs();
        self.workers.ended(guest.node, &death_of(process).peer(Peer::named(&guest.name)));
    }
}

/// A job whose outcomes were not taken.
struct Batch {
    job: Arc<Job>,
    is_ordered: bool,
    tasks: Vec<u64>,
}

/// Who submits.
struct Part {
    world: World,
    book: Arc<Book>,
    tasker: Tasker,
    workers: Workers,
    functions: Vec<Function>,
    dice: SeededEntropy,
    jobs: Vec<Batch>,
}

impl Part {
    fn play(&mut self, scenario: &Scenario) {
        for _ in 0..scenario.rounds * (2 + self.dice.below(2 * scenario.steps)) {
            if self.book.has_given_up() {
                return;
            }
            self.act();
        }
    }

    fn act(&mut self) {
        match self.dice.below(16) {
            0..4 => {
                let count = 1 + self.dice.below(12);
                self.burst(count);
            }
            4 | 5 => self.long(),
            6 => self.large(),
            7 => self.cancel(),
            8 => self.kill(),
            9 => self.stop(),
            10 | 11 => self.batch(),
            12 => self.take_all(),
            13 => {
                let number = self.dice.below(self.functions.len() as u64) as usize;
                self.functions[number] = function(&self.tasker, number as i64);
            }
            14 => self.await_end(),
            _ => pause(Duration::from_micros(self.dice.below(50_000))),
        }
    }

    /// Something short, or that its worker dies of, or that fails.
    fn short(&mut self) -> Order {
        let what = match self.dice.below(24) {
            0 => What::Dies,
            1 => What::Fails,
            2 => What::DiesLater,
            _ => What::Returns,
        };
        let span = Duration::from_micros([0, 0, 30, 400][self.dice.below(4) as usize]);
        let result_bytes = if self.dice.below(16) == 0 { 3000 } else { 0 };
        let tries = [0, 0, 1, 2][self.dice.below(4) as usize];
        Order { what, span, bytes: 0, is_tensor: false, result_bytes, tries }
    }

    /// A function, the number of a task, and what that is called with.
    fn prepare(&mut self, order: &Order, is_of_job: bool) -> (u64, Function, Packet) {
        let function = self.dice.below(self.functions.len() as u64) as usize;
        let number = self.book.submits(order, is_of_job);
        let elements = (order.bytes / 8) as usize;
        let tensor = || Tensor::from_slice(&vec![number; elements], [elements as u64]).expect("it fits");
        let tensors = order.is_tensor.then(tensor).into_iter().collect();
        let packet = Packet::new(&order.to_value(number, function), tensors).expect("it is short enough");
        (number, self.functions[function].clone(), packet)
    }

    fn submit(&mut self, order: Order) -> Option<(u64, Work<Packet>)> {
        self.await_room();
        let (number, function, packet) = self.prepare(&order, false);
        match self.tasker.submit(&function, packet, order.tries) {
            Ok(work) => {
                let book = Arc::clone(&self.book);
                work.on_complete(move |outcome| book.ends(number, outcome));
                Some((number, work))
            }
            Err(error) => {
                self.book.ends(number, &Err(error));
                None
            }
        }
    }

    fn await_room(&self) {
        if let Ok(room) = self.tasker.room() {
            self.await_in_time("room", &room);
            if let Some(Err(error)) = room.result() {
                self.book.fault(format!("a wait for room has failed: {error:?}"));
            }
        }
    }

    /// Waits for something that is there when tasks have ended.
    fn await_in_time<T: Clone + Send + 'static>(&self, what: &str, work: &Work<T>) {
        while !work.is_done() {
            let _ = work.wait_until(Some(clock::now() + PATIENCE), None);
            if !work.is_done() && self.book.now() > self.book.due() {
                self.book.fault(format!("{what} has not come by {:?}", self.book.due()));
                return self.book.gives_up();
            }
        }
    }

    fn burst(&mut self, count: u64) {
        for _ in 0..count {
            let order = self.short();
            drop(self.submit(order));
        }
    }

    /// A long task, and others that are not to wait for it.
    fn long(&mut self) {
        for _ in 0..1 + self.dice.below(2) {
            let span = Duration::from_millis(5 + self.dice.below(600));
            let tries = self.dice.below(2) as u32;
            let what = What::Returns;
            drop(self.submit(Order { what, span, bytes: 0, is_tensor: false, result_bytes: 0, tries }));
        }
        let count = self.dice.below(8);
        self.burst(count);
    }

    fn large(&mut self) {
        for _ in 0..1 + self.dice.below(4) {
            let bytes = LARGE_BYTES[self.dice.below(3) as usize];
            let order = Order { bytes, is_tensor: self.dice.below(2) == 0, ..self.short() };
            drop(self.submit(order));
        }
    }

    fn cancel(&mut self) {
        let orders: Vec<Order> = (0..2 + self.dice.below(6)).map(|_| self.short()).collect();
        let works: Vec<_> = orders.into_iter().filter_map(|order| self.submit(order)).collect();
        pause(Duration::from_micros(self.dice.below(500)));
        for (number, work) in works.iter().rev().take(1 + self.dice.below(4) as usize) {
            self.book.is_cancelled(*number);
            work.cancel();
        }
    }

    /// Kills some workers at once.
    fn kill(&mut self) {
        let workers = self.book.living();
        if workers.is_empty() {
            return;
        }
        for _ in 0..1 + self.dice.below(workers.len() as u64) {
            let process = workers[self.dice.below(workers.len() as u64) as usize];
            self.book.kills(process);
            self.world.strike(Trouble::Kill(process));
        }
    }

    /// Has a worker do nothing for a while, for which it may be held dead, or breaks its link: it runs on.
    fn stop(&mut self) {
        let workers = self.book.living();
        if workers.is_empty() {
            return;
        }
        let process = workers[self.dice.below(workers.len() as u64) as usize];
        if self.dice.below(3) == 0 {
            self.book.stops(process, Duration::ZERO);
            return self.world.strike(Trouble::Cut(0, process));
        }
        let span = [self.dice.below(300), 500 + self.dice.below(2500)][self.dice.below(2) as usize];
        let span = Duration::from_millis(span);
        self.book.stops(process, span);
        self.world.strike(Trouble::Stop(process, span));
    }

    fn batch(&mut self) {
        let is_ordered = self.dice.below(2) == 0;
        let Ok(job) = self.tasker.job(is_ordered) else { return };
        let mut tasks = Vec::new();
        for _ in 0..1 + self.dice.below(8) {
            self.await_room();
            let order = self.short();
            let (number, function, packet) = self.prepare(&order, true);
            match self.tasker.submit_to(&job, &function, packet, order.tries) {
                Ok(()) => tasks.push(number),
                Err(error) => self.book.ends(number, &Err(error)),
            }
        }
        if self.dice.below(4) == 0 {
            tasks.iter().for_each(|number| self.book.is_cancelled(*number));
            self.tasker.cancel(&job);
        }
        self.jobs.push(Batch { job, is_ordered, tasks });
    }

    /// Takes the outcomes of all jobs, each of which is there once.
    fn take_all(&mut self) {
        for Batch { job, is_ordered, tasks } in std::mem::take(&mut self.jobs) {
            let mut places = Vec::new();
            while places.len() < tasks.len() && !self.book.has_given_up() {
                self.await_in_time("an outcome of a job", &job.next());
                while let Some((place, outcome)) = job.take() {
                    places.push(place);
                    match tasks.get(place as usize) {
                        Some(number) => self.book.ends(*number, &outcome),
                        None => self.book.fault(format!("an outcome of place {place} of {}", tasks.len())),
                    }
                }
            }
            if is_ordered && !places.is_sorted() {
                self.book.fault(format!("outcomes of an ordered job come as {places:?}"));
            }
            if job.left() > 0 && !self.book.has_given_up() || job.take().is_some() {
                self.book.fault(format!("{} outcomes of a job are left", job.left()));
            }
        }
    }

    /// Waits until all tasks have ended that were submitted.
    fn await_end(&mut self) {
        if let Ok(ended) = self.tasker.all_ended() {
            self.await_in_time("the end of all tasks", &ended);
        }
        self.take_all();
        self.book.have_ended();
    }

    fn end(mut self, scenario: &Scenario, mesh: Mesh, keepers: Vec<thread::Thread>) {
        match self.dice.below(4) {
            0 => {
                // At once, whatever runs.
                let closed = Error::new(ErrorKind::Closed, "the pool was terminated");
                self.book.closes();
                self.workers.break_by(&closed);
                for process in self.book.living() {
                    self.book.kills(process);
                    self.world.strike(Trouble::Kill(process));
                }
                self.await_end();
            }
            1 if scenario.end == End::Leave => {
                self.book.closes();
                drop(mesh.leave());
                self.await_end();
                self.workers.break_by(&Error::new(ErrorKind::Closed, "the pool was dropped"));
            }
            _ => {
                self.tasker.close();
                self.await_end();
                if self.tasker.submit(&self.functions[0], Packet::default(), 0).is_ok() {
                    self.book.fault("a pool that is closed takes a task".to_owned());
                }
                self.book.closes();
                for guest in mesh.guests() {
                    drop(mesh.dismiss(guest.node));
                }
            }
        }
        self.workers.end();
        self.book.is_through();
        keepers.into_iter().for_each(|keeper| drop(keeper.join()));
        drop(mesh.leave());
    }
}
