//! What each node of a torture does.

use super::job::Media;
use super::ledger::{Counted, Intent, Ledger};
use super::services::{next_of, step};
use sheave_base::clock::{Entropy, SeededEntropy};
use sheave_base::config::Transport;
use sheave_base::{Error, NodeId, Work};
use sheave_mesh::{Answer, Call, Mesh};
use sheave_net::Part as Sent;
use sheave_tensor::{Dtype, Mode, Tensor};
use sheave_wire::Value;
use smallvec::smallvec;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Calls of a node at a time.
const BURST: u64 = 100;

/// Bytes of a big tensor.
const BIG_BYTES: u64 = 16 << 20;

/// How deep the deepest circles go.
const DEPTH: u64 = 100;

pub(crate) struct Part {
    mesh: Mesh,
    ledger: Arc<Ledger>,
    dice: SeededEntropy,
    media: Media,
}

impl Part {
    pub(crate) fn new(mesh: &Mesh, ledger: &Arc<Ledger>, media: Media, seed: u64) -> Self {
        Self { mesh: mesh.clone(), ledger: Arc::clone(ledger), dice: SeededEntropy::new(seed), media }
    }

    /// One thing after the other until then, or until this node is taken out.
    pub(crate) fn play(mut self, until: Instant) {
        // One node has so much under way to another one that most of it waits for room.
        if self.mesh.me().rank.0 as usize + 1 == self.mesh.members().len() {
            self.big();
        }
        while Instant::now() < until && self.mesh.is_member() {
            match self.dice.below(10) {
                9 => self.casts(),
                8 => self.promise(),
                0 | 1 => self.burst(),
                2 | 3 => self.circle(),
                4 => self.cancelled(),
                5 => self.late(),
                6 => self.export(),
                _ => self.pass_on(),
            }
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
        self.ledger.call(self.mesh.me().node, call, intent, make).ok()
    }

    fn wait(&self, works: impl IntoIterator<Item = Work<Answer>>) {
        works.into_iter().for_each(|work| drop(self.ledger.wait(&work)));
    }

    fn burst(&mut self) {
        let to = self.somebody();
        let service = ["inline", "serial", "pool"][self.dice.below(3) as usize];
        let count = 1 + self.dice.below(BURST);
        let works: Vec<_> = (0..count)
            .filter_map(|number| {
                let args = Value::Int(number.cast_signed());
                self.call(to, service, "echo", Call::from(args), Intent::Wait)
            })
            .collect();
        self.wait(works);
    }

    /// One-way calls, some of which fail, and one behind them that is answered: by then all have begun, and every
    /// failure is told, once.
    fn casts(&mut self) {
        let to = self.somebody();
        let service = ["inline", "serial"][self.dice.below(2) as usize];
        let (mut sent, mut failed, mut told) = (Vec::new(), 0, 0);
        for _ in 0..1 + self.dice.below(BURST) {
            let method = if self.dice.below(4) == 0 { "fail" } else { "echo" };
            let make = |call| self.mesh.cast(to, service, method, call);
            match self.ledger.cast(Call::from(Value::Int(1)), make) {
                (number, Ok(())) => {
                    sent.push(number);
                    failed += u64::from(method == "fail");
                }
                (_, Err(error)) => told += self.failures_in(&error),
            }
        }
        let Some(work) = self.call(to, service, "echo", Call::from(Value::Int(2)), Intent::Wait) else { return };
        let answer = self.ledger.wait(&work);
        if let Err(error) = self.mesh.check_one_way(to, service) {
            told += self.failures_in(&error);
        }
        if answer.is_ok() && !self.ledger.may_die(to) && !self.ledger.may_die(self.mesh.me().node) {
            self.ledger.have_begun(&sent, failed, told);
        }
    }

    /// How many one-way calls have failed, as this error says.
    fn failures_in(&self, error: &Error) -> u64 {
        let told = error.what().strip_prefix("an earlier one-way call of this service: ");
        let Some(what) = told.filter(|_| error.operation_name() == Some("fail")) else {
            self.ledger.judge(error, self.mesh.me().node, Intent::Wait);
            return 0;
        };
        let count = what.strip_prefix("the first of ").and_then(|rest| rest.split(' ').next());
        count.map_or(1, |count| count.parse().expect("a number"))
    }

    fn circle(&mut self) {
        let depth = if self.dice.below(8) == 0 { DEPTH } else { self.dice.below(10) };
        let dice = (self.dice.next_u64() >> 2).cast_signed();
        let (to, service) = next_of(&self.mesh, dice);
        let call = Call::from(step(depth.cast_signed(), dice.wrapping_add(1)));
        let Some(work) = self.call(to, service, "down", call, Intent::Wait) else { return };
        if let Ok(answer) = self.ledger.wait(&work) {
            assert_eq!(answer.value, Value::Int(depth.cast_signed()));
        }
    }

    fn cancelled(&mut self) {
        let to = self.somebody();
        let works: Vec<_> =
            (0..10).filter_map(|_| self.call(to, "pool", "nap", Call::from(Value::None), Intent::Cancel)).collect();
        std::thread::sleep(Duration::from_micros(self.dice.below(3000)));
        works.iter().for_each(Work::cancel);
        self.wait(works);
    }

    fn late(&mut self) {
        let to = self.somebody();
        let works: Vec<_> = (0..10)
            .filter_map(|_| {
                let deadline = Some(Duration::from_millis(1 + self.dice.below(30)));
                self.call(to, "pool", "nap", Call { deadline, ..Call::default() }, Intent::Late)
            })
            .collect();
        self.wait(works);
    }

    fn export(&mut self) {
        let to = self.somebody();
        let refs: Vec<_> =
            (0..5).filter_map(|_| self.mesh.export(Counted::new(&self.ledger, self.mesh.me().node)).ok()).collect();
        let names = Value::List(refs.iter().map(sheave_mesh::Ref::value).collect());
        let works = self.call(to, "inline", "keep", Call::from(names), Intent::Wait);
        drop(refs);
        self.wait(works);
    }

    fn pass_on(&mut self) {
        let to = self.somebody();
        let Some(held) = self.ledger.take_one(self.mesh.me().node) else { return };
        let works = self.call(to, "pool", "keep", Call::from(held.value()), Intent::Wait);
        drop(held);
        self.wait(works);
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
            let (_, made) = self.ledger.cast(make, |call| self.mesh.cast(owner, "pool", "make", call));
            made.err().into_iter().for_each(|error| _ = self.failures_in(&error));
            None
        };
        let late = self.call(owner, "pool", "use", Call::from(promised.value()), Intent::Use);
        drop(promised);
        self.wait([early, kept, made, late].into_iter().flatten());
    }

    /// A hundred calls with big tensors, whose handlers call back while the others wait for room.
    fn big(&self) {
        let is_shared = self.media != Media::Link(Transport::Tcp);
        let mode = if is_shared { Mode::Share } else { Mode::Copy };
        let members = self.mesh.members();
        let to = members[members.len() - 2].node;
        let tensor = Tensor::empty(
            self.mesh.node().arena(),
            Dtype::U8,
            sheave_tensor::Shape::new(&[BIG_BYTES]).expect("a shape"),
        );
        let tensor = tensor.expect("there is room");
        let works: Vec<_> = (0..BURST)
            .filter_map(|_| {
                let tensors = smallvec![Sent::new(tensor.clone(), mode)];
                self.call(to, "pool", "back", Call { tensors, ..Call::default() }, Intent::Wait)
            })
            .collect();
        drop(tensor);
        self.wait(works);
    }
}
