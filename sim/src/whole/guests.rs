//! What a guest does: it calls its host, is called by it, and leaves.

use super::ledger::{Intent, Ledger};
use super::scenario::Scenario;
use super::services::serve_as_guest;
use crate::jobs::{JOIN_TIMEOUT, node_config, pause};
use sheave_base::clock::SeededEntropy;
use sheave_base::{ErrorKind, Work, clock};
use sheave_mesh::{Answer, Call, Guest, GuestConfig};
use sheave_wire::Value;
use std::sync::Arc;
use std::time::Duration;

/// Calls of a burst.
const BURST: u64 = 8;

pub(super) fn run(scenario: &Scenario, process: usize, ledger: &Arc<Ledger>) {
    ledger.now();
    let Some(guest) = attach(scenario, process, ledger) else { return };
    serve_as_guest(&guest, process, ledger);
    ledger.joined(process, guest.node().id());
    let mut part = Part { guest, process, ledger: Arc::clone(ledger), dice: SeededEntropy::new(scenario.seed ^ 7) };
    for _ in 0..scenario.rounds * scenario.steps {
        if !part.guest.is_attached() {
            break;
        }
        part.act();
    }
    part.end();
}

fn attach(scenario: &Scenario, process: usize, ledger: &Ledger) -> Option<Guest> {
    let begun = clock::now();
    let invitation = loop {
        match ledger.invitation(process) {
            Some(text) => break text,
            // Its host has not joined, and may have met with trouble.
            None if clock::since(begun) > JOIN_TIMEOUT * 2 => return None,
            None => pause(Duration::from_millis(3)),
        }
    };
    let config = GuestConfig {
        node: node_config(scenario.hosts[process]),
        timeout: JOIN_TIMEOUT,
        ..GuestConfig::new(invitation.parse().expect("it was written so"))
    };
    match Guest::attach(config) {
        Ok(guest) => Some(guest),
        Err(_) if ledger.is_troubled() => None,
        Err(error) => {
            ledger.fault(format!("guest {process} could not attach: {error}"));
            None
        }
    }
}

struct Part {
    guest: Guest,
    process: usize,
    ledger: Arc<Ledger>,
    dice: SeededEntropy,
}

impl Part {
    fn act(&mut self) {
        let number = self.dice.below(5);
        let calls = 1 + self.dice.below(BURST);
        let works: Vec<Work<Answer>> = match number {
            0 => return pause(Duration::from_micros(self.dice.below(50_000))),
            1 => (0..calls).filter_map(|_| self.call("pool", "back", Intent::Wait)).collect(),
            2 => {
                let works: Vec<_> = (0..2).filter_map(|_| self.call("pool", "nap", Intent::Cancel)).collect();
                works.iter().for_each(Work::cancel);
                works
            }
            3 => return self.overreach(),
            _ => (0..calls).filter_map(|_| self.call("serial", "echo", Intent::Wait)).collect(),
        };
        works.into_iter().for_each(|work| drop(work.wait()));
    }

    fn call(&self, service: &'static str, method: &str, intent: Intent) -> Option<Work<Answer>> {
        let make = |call| self.guest.call(service, method, call);
        self.ledger.call(self.process, Call::from(Value::Int(1)), intent, make).ok()
    }

    /// Calls what is for members alone.
    fn overreach(&self) {
        let made = self.guest.call("pool", "down", Call::from(Value::List(vec![Value::Int(0), Value::Int(0)])));
        match made.and_then(|work| work.wait()) {
            Ok(_) => self.ledger.fault(format!("guest {} was let in where members are alone", self.process)),
            Err(error) if error.kind() == ErrorKind::NotPermitted => {}
            Err(error) if self.ledger.may_fail(self.process, &error) => {}
            Err(error) => self.ledger.fault(format!("guest {} was not refused but told: {error:?}", self.process)),
        }
    }

    fn end(self) {
        self.ledger.comes_to_its_end(self.process);
        if let Err(error) = self.guest.leave()
            && !self.ledger.may_fail(self.process, &error)
        {
            self.ledger.fault(format!("guest {} could not leave: {error:?}", self.process));
        }
    }
}
