//! What each process does.

use super::ledger::{Counted, Intent, Ledger};
use super::scenario::{End, Quit, Scenario};
use super::services::{NAMES, next_of, serve, step};
use super::start::join;
use crate::jobs::pause;
use sheave_base::clock::{Entropy, SeededEntropy};
use sheave_base::{Error, NodeId, Work, clock};
use sheave_mesh::{Answer, Call, Group, Mesh};
use sheave_net::Part as Sent;
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use smallvec::smallvec;
use std::sync::Arc;
use std::time::Duration;

/// Calls of a burst.
const BURST: u64 = 12;
/// So many that they do not fit into a socket.
const LAST_ELEMENTS: usize = 1 << 19;
/// How deep the deepest circles go.
const DEPTH: u64 = 24;
/// How long those who are through wait for the others.
const PATIENCE: Duration = Duration::from_secs(8);
/// After the last one has come to its end all objects are freed within this time.
const FREED_WITHIN: Duration = Duration::from_secs(3);

pub(super) fn run(scenario: &Scenario, process: usize, ledger: &Arc<Ledger>) {
    let Some(mesh) = join(scenario, process, ledger) else { return };
    serve(&mesh, process, ledger);
    ledger.is_ready(process);
    let dice = SeededEntropy::new(scenario.seed ^ (process as u64) << 40);
    Part { mesh, process, ledger: Arc::clone(ledger), dice }.play(scenario);
}

struct Part {
    mesh: Mesh,
    process: usize,
    ledger: Arc<Ledger>,
    dice: SeededEntropy,
}

impl Part {
    fn play(mut self, scenario: &Scenario) {
        for guest in scenario.guests_of(self.process) {
            let invitation = self.mesh.invite("guest").expect("there is room");
            self.ledger.invite(guest, &invitation.to_text());
        }
        // Nobody is called before it serves.
        let mut group = Some(self.mesh.world());
        let mut number = 0;
        self.meet(&mut group, &mut number);
        // A barrier that fails has not waited for all.
        while !self.ledger.are_all_ready() {
            pause(Duration::from_millis(1));
        }
        for round in 0..scenario.rounds {
            match self.ledger.quit_in(self.process, round) {
                Some(Quit::Fails) => {
                    self.ledger.quits(self.process);
                    return self.mesh.fail("on purpose");
                }
                Some(Quit::Returns) => return self.ledger.quits(self.process),
                None => {}
            }
            for _ in 0..self.dice.below(scenario.steps + 1) {
                if !self.mesh.is_member() {
                    break;
                }
                self.act();
            }
            self.meet(&mut group, &mut number);
        }
        self.end(scenario);
    }

    /// All who are there meet, and go on with those who are left.
    fn meet(&mut self, group: &mut Option<Group>, number: &mut u64) {
        let Some(present) = group.as_ref() else { return };
        *number += 1;
        let label = format!("{} {:?}", present.label(), present.nodes());
        self.ledger.enters(self.process, &label, *number);
        match present.barrier() {
            Ok(()) => self.ledger.passes(self.process, &label, *number, present.nodes()),
            Err(error) => {
                if !self.ledger.may_fail(self.process, &error) {
                    self.ledger.fault(format!("a barrier of {} accuses the wrong one: {error:?}", self.process));
                }
                // Some may have passed the barrier at which others have failed: from here on they do not keep step.
                match present.shrink() {
                    Ok(left) => self.ledger.shrinks(self.process, left.nodes(), &self.mesh.deaths()),
                    Err(error) if self.ledger.may_fail(self.process, &error) => {}
                    Err(error) => self.ledger.fault(format!("{} cannot shrink: {error:?}", self.process)),
                }
                *group = None;
            }
        }
    }

    fn act(&mut self) {
        match self.dice.below(13) {
            0 | 1 => self.burst(),
            2 => self.circle(),
            3 => self.cancelled(),
            4 => self.late(),
            5 => self.export(),
            6 => self.pass_on(),
            7 => self.promise(),
            8 => self.look(),
            9 => self.tasks(),
            10 => self.ask_guests(),
            11 => self.casts(),
            _ => pause(Duration::from_micros(self.dice.below(300_000))),
        }
    }

    fn somebody(&mut self) -> NodeId {
        let members = self.mesh.members();
        members[self.dice.below(members.len() as u64) as usize].node
    }

    fn call(
        &self,
        to: NodeId,
        service: &'static str,
        method: &str,
        call: Call,
        intent: Intent,
    ) -> Option<Work<Answer>> {
        // What becomes of it is in the ledger.
        let make = |call| self.mesh.call(to, service, method, call);
        self.ledger.call(self.process, call, intent, make).ok()
    }

    fn wait(works: impl IntoIterator<Item = Work<Answer>>) {
        works.into_iter().for_each(|work| drop(work.wait()));
    }

    fn burst(&mut self) {
        let to = self.somebody();
        let service = NAMES[self.dice.below(3) as usize];
        let count = 1 + self.dice.below(BURST);
        let elements = [1, 100, 4000][self.dice.below(3) as usize];
        let works: Vec<_> = (0..count)
            .filter_map(|number| {
                let method = if service == "pool" && number == 0 { "back" } else { "echo" };
                let tensor = Tensor::from_slice(&vec![number as f32; elements], [elements as u64]).expect("it fits");
                let tensors = smallvec![Sent::new(tensor, Mode::Copy)];
                let args = Value::Int(number.cast_signed());
                self.call(to, service, method, Call { args, tensors, ..Call::default() }, Intent::Wait)
            })
            .collect();
        Self::wait(works);
    }

    /// One-way calls, some of which fail, and one behind them that is answered: by then all have begun, and every
    /// failure is told, once.
    fn casts(&mut self) {
        let to = self.somebody();
        let service = ["inline", "serial"][self.dice.below(2) as usize];
        let (mut sent, mut failed, mut told) = (Vec::new(), 0, 0);
        for _ in 0..1 + self.dice.below(2 * BURST) {
            let method = if self.dice.below(4) == 0 { "fail" } else { "echo" };
            let make = |call| self.mesh.cast(to, service, method, call);
            match self.ledger.cast(self.process, Call::from(Value::Int(1)), make) {
                (number, Ok(())) => {
                    sent.push(number);
                    failed += u64::from(method == "fail");
                }
                (_, Err(error)) => told += self.failures_in(to, &error),
            }
        }
        let Some(work) = self.call(to, service, "echo", Call::from(Value::Int(2)), Intent::Wait) else { return };
        if work.wait().is_err() || !self.ledger.is_sound_between(self.process, to) {
            return;
        }
        self.ledger.have_begun(&sent);
        if let Err(error) = self.mesh.check_one_way(to, service) {
            told += self.failures_in(to, &error);
        }
        if told != failed {
            let what = format!("{} was told of {told} of {failed} failures of its one-way calls", self.process);
            self.ledger.fault(what);
        }
    }

    /// How many one-way calls have failed, as this error says.
    fn failures_in(&self, to: NodeId, error: &Error) -> u64 {
        let Some(what) = error.what().strip_prefix("an earlier one-way call of this service: ") else {
            if !self.ledger.may_fail(self.process, error) {
                self.ledger.fault(format!("a one-way call of {} accuses the wrong one: {error:?}", self.process));
            }
            return 0;
        };
        if self.ledger.is_sound_between(self.process, to) && error.operation_name() != Some("fail") {
            self.ledger.fault(format!("a one-way call of {} has failed that should not: {error:?}", self.process));
        }
        let count = what.strip_prefix("the first of ").and_then(|rest| rest.split(' ').next());
        count.map_or(1, |count| count.parse().expect("a number"))
    }

    fn circle(&mut self) {
        let depth = if self.dice.below(8) == 0 { DEPTH } else { self.dice.below(8) };
        let dice = (self.dice.next_u64() >> 2).cast_signed();
        let (to, service) = next_of(&self.mesh, dice);
        let call = Call::from(step(depth.cast_signed(), dice.wrapping_add(1)));
        let Some(work) = self.call(to, service, "down", call, Intent::Wait) else { return };
        if let Ok(answer) = work.wait() {
            assert_eq!(answer.value, Value::Int(depth.cast_signed()));
        }
    }

    fn cancelled(&mut self) {
        let to = self.somebody();
        let service = ["pool", "serial"][self.dice.below(2) as usize];
        let works: Vec<_> =
            (0..4).filter_map(|_| self.call(to, service, "nap", Call::from(Value::None), Intent::Cancel)).collect();
        pause(Duration::from_micros(self.dice.below(3000)));
        works.iter().for_each(Work::cancel);
        Self::wait(works);
    }

    fn late(&mut self) {
        let to = self.somebody();
        let works: Vec<_> = (0..4)
            .filter_map(|_| {
                let deadline = Duration::from_millis(1 + self.dice.below(30));
                let call = Call { deadline: Some(deadline), ..Call::default() };
                self.call(to, "pool", "nap", call, Intent::Late(deadline))
            })
            .collect();
        Self::wait(works);
    }

    fn export(&mut self) {
        let to = self.somebody();
        let refs: Vec<_> =
            (0..3).filter_map(|_| self.mesh.export(Counted::new(&self.ledger, self.process)).ok()).collect();
        let names = Value::List(refs.iter().map(sheave_mesh::Ref::value).collect());
        let works = self.call(to, "inline", "keep", Call::from(names), Intent::Wait);
        drop(refs);
        Self::wait(works);
    }

    fn pass_on(&mut self) {
        let to = self.somebody();
        let Some(held) = self.ledger.take_one(self.process) else { return };
        let works = self.call(to, "pool", "keep", Call::from(held.value()), Intent::Wait);
        drop(held);
        Self::wait(works);
    }

    /// Has the owner of something that is held here look at it.
    fn look(&mut self) {
        let Some(held) = self.ledger.take_one(self.process) else { return };
        let work = self.call(held.owner(), "pool", "look", Call::from(held.value()), Intent::Use);
        Self::wait(work);
        self.ledger.keep(self.process, vec![held]);
    }

    /// Calls all who are attached.
    fn ask_guests(&mut self) {
        for guest in self.mesh.guests() {
            // It serves from then on.
            if !self.ledger.sees_guest(self.process, guest.node) {
                continue;
            }
            let calls = 1 + self.dice.below(4);
            let make = |number: u64| {
                let call = Call::from(Value::Int(number.cast_signed()));
                self.call(guest.node, "inline", "echo", call, Intent::Wait)
            };
            Self::wait((0..calls).filter_map(make).collect::<Vec<_>>());
        }
    }

    /// Some tasks, each of which waits for a call, and sleeps, and waits for another; some are cancelled. When the end
    /// of one is known its future is gone.
    fn tasks(&mut self) {
        let kept = Arc::new(());
        let works: Vec<_> = (0..1 + self.dice.below(4))
            .filter_map(|_| {
                let (one, other) = (self.somebody(), self.somebody());
                let span = Duration::from_micros(self.dice.below(5000));
                let (mesh, ledger, process) = (self.mesh.clone(), Arc::clone(&self.ledger), self.process);
                let ask = move |to: NodeId| {
                    let make = |call| mesh.call(to, "pool", "echo", call);
                    ledger.call(process, Call::from(Value::Int(1)), Intent::Wait, make)
                };
                let (runtime, own) = (self.mesh.runtime().clone(), Arc::clone(&kept));
                let steps = async move {
                    let _own = own;
                    ask(one)?.await?;
                    runtime.sleep_until(runtime.after(span))?.await;
                    ask(other)?.await.map(drop)
                };
                self.mesh.spawn("a task", steps).ok()
            })
            .collect();
        if self.dice.below(3) == 0 {
            pause(Duration::from_micros(self.dice.below(3000)));
            works.iter().take(2).for_each(Work::cancel);
        }
        works.into_iter().for_each(|work| drop(work.wait()));
        if Arc::strong_count(&kept) > 1 {
            self.ledger.fault(format!("tasks of {} have ended, and their futures live", self.process));
        }
    }

    /// Uses what a call is to make before it is made, here and by way of a third node.
    fn promise(&mut self) {
        let (owner, third) = (self.somebody(), self.somebody());
        let Ok(promised) = self.mesh.promise(owner) else { return };
        let dice = Value::Int(self.dice.below(3).cast_signed());
        let early = self.call(owner, "pool", "use", Call::from(promised.value()), Intent::Use);
        let kept = self.call(third, "inline", "keep", Call::from(promised.value()), Intent::Wait);
        let make = Call::from(Value::List(vec![dice, promised.to_fill()]));
        let made = if self.dice.below(2) == 0 {
            self.call(owner, "pool", "make", make, Intent::Wait)
        } else {
            // What becomes of it is told by those who use what it makes.
            let (_, made) = self.ledger.cast(self.process, make, |call| self.mesh.cast(owner, "pool", "make", call));
            made.err().into_iter().for_each(|error| _ = self.failures_in(owner, &error));
            None
        };
        let late = self.call(owner, "pool", "use", Call::from(promised.value()), Intent::Use);
        drop(promised);
        Self::wait([early, kept, made, late].into_iter().flatten());
    }

    fn end(self, scenario: &Scenario) {
        let Self { mesh, process, ledger, .. } = self;
        ledger.comes_to_its_end(process);
        let must_stay = scenario.must_go_on() && !ledger.is_doomed(process);
        if must_stay && !mesh.is_member() {
            return ledger.fault(format!("{process} was taken out, and nobody has touched it"));
        }
        Self::await_freedom(process, &ledger, must_stay);
        // A guest that has ended is taken for attached no longer than that.
        let begun = clock::now();
        let has_dead_guest = || mesh.guests().iter().any(|guest| ledger.has_ended(guest.node));
        while has_dead_guest() && clock::since(begun) < FREED_WITHIN {
            pause(Duration::from_millis(5));
        }
        for guest in mesh.guests() {
            ledger.sees_guest(process, guest.node);
        }
        let left = match scenario.end {
            End::Finish => mesh.finish(),
            End::Leave => {
                Self::say_last(&mesh, process, &ledger);
                mesh.leave()
            }
        };
        if let Err(error) = left
            && !ledger.may_fail(process, &error)
        {
            ledger.fault(format!("{process} could not leave: {error:?}"));
        }
    }

    /// Calls the first one, and does not wait for it: who hears that another one has left has heard before what that
    /// one has said. The first one waits for it.
    fn say_last(mesh: &Mesh, process: usize, ledger: &Arc<Ledger>) {
        if ledger.is_troubled() {
            return;
        }
        if process == 0 {
            return match mesh.until_gone(|_| true) {
                Ok(()) => ledger.has_heard_all(),
                Err(error) => ledger.fault(format!("somebody was lost who has left: {error:?}")),
            };
        }
        let to = mesh.members()[0].node;
        let tensor = Tensor::from_slice(&vec![0.5_f32; LAST_ELEMENTS], [LAST_ELEMENTS as u64]).expect("it fits");
        let call = Call { tensors: smallvec![Sent::new(tensor, Mode::Copy)], ..Call::from(Value::Int(0)) };
        let make = |call| mesh.call(to, "inline", "echo", call);
        let (number, made) = ledger.numbered_call(process, call, Intent::Last, make);
        if made.is_ok() {
            ledger.is_last(number);
        }
    }

    /// Waits until the others have let go of everything, and then until this process's objects are freed.
    fn await_freedom(process: usize, ledger: &Ledger, must_be_free: bool) {
        let within = |limit: Duration, is_so: &dyn Fn() -> bool| {
            let begun = clock::now();
            while !is_so() && clock::since(begun) < limit {
                pause(Duration::from_millis(5));
            }
            is_so()
        };
        // One that was at its last barrier while others failed there is waited for by those.
        if !within(PATIENCE, &|| ledger.have_all_ended()) || !must_be_free {
            return;
        }
        // What the dead have held is free when their deaths are known.
        if !within(FREED_WITHIN, &|| ledger.objects_of(process) == 0) {
            ledger.fault(format!("{} objects of {process} are held by nobody", ledger.objects_of(process)));
        }
    }
}
