//! Who answers: signs of life that somebody asks for, sooner than silence counts as death.
//!
//! Only the coordinator hears from everybody, and what it has heard may be a beat old; so those who are asked about are
//! asked anew, by a number that is in their answer. The coordinator has a link to each of them, so the question goes
//! through it. Whoever has not answered when half of the time is over is asked directly, because it may be the
//! coordinator that is silent. Whoever forwards keeps nothing: both messages say who asks and who is asked.

use super::{Engine, Message, OperationId, Outcome, Pending};
use sheave_base::NodeId;
use sheave_base::clock::Time;
use std::collections::BTreeSet;

impl Engine {
    pub(super) fn begin_ask(&mut self, operation: OperationId, mut nodes: BTreeSet<NodeId>, until: Time) {
        if let Err(error) = self.check_active().and_then(|()| self.check_new(operation)) {
            return self.complete(operation, Err(error.operation("num_dead_node")));
        }
        nodes.retain(|node| *node != self.me && self.is_living(*node));
        let coordinator = self.acting_coordinator();
        for whom in &nodes {
            // A coordinator asks directly, and is asked so.
            let to = if coordinator == self.me { *whom } else { coordinator };
            self.send(to, self.question(operation, *whom));
        }
        let begun = self.now;
        self.operations.insert(operation, Pending::Ask { silent: nodes, begun, until, is_direct: false });
        self.poll_asks();
    }

    fn question(&self, operation: OperationId, whom: NodeId) -> Message {
        Message::Ask { epoch: self.epoch, asker: self.me, number: operation.0, whom }
    }

    /// Somebody asks whether `whom` answers.
    pub(super) fn asked_about(&mut self, from: NodeId, asker: NodeId, number: u64, whom: NodeId) {
        let epoch = self.epoch;
        if whom == self.me {
            self.send(from, Message::Answer { epoch, asker, number, whom });
        } else if from == asker && self.is_living(whom) {
            self.send(whom, Message::Ask { epoch, asker, number, whom });
        }
    }

    /// `whom` has answered.
    pub(super) fn answered(&mut self, from: NodeId, asker: NodeId, number: u64, whom: NodeId) {
        if asker == self.me {
            if let Some(Pending::Ask { silent, .. }) = self.operations.get_mut(&OperationId(number)) {
                silent.remove(&whom);
            }
            self.poll_asks();
        } else if from == whom && self.is_living(asker) {
            self.send(asker, Message::Answer { epoch: self.epoch, asker, number, whom });
        }
    }

    /// Ends what is over, and asks those directly who have not answered in half of the time.
    pub(super) fn poll_asks(&mut self) {
        let now = self.now;
        let living: BTreeSet<NodeId> = self.living().collect();
        let (mut over, mut late) = (Vec::new(), Vec::new());
        for (operation, pending) in &mut self.operations {
            let Pending::Ask { silent, begun, until, is_direct } = pending else { continue };
            silent.retain(|node| living.contains(node));
            if silent.is_empty() || now >= *until {
                over.push((*operation, std::mem::take(silent)));
            } else if now >= half_of(*begun, *until) && !std::mem::replace(is_direct, true) {
                late.extend(silent.iter().map(|whom| (*operation, *whom)));
            }
        }
        for (operation, whom) in late {
            self.send(whom, self.question(operation, whom));
        }
        for (operation, silent) in over {
            self.complete(operation, Ok(Outcome::Silent(silent)));
        }
    }

    pub(super) fn ask_timer(&self) -> Option<Time> {
        let next = |pending: &Pending| match pending {
            Pending::Ask { begun, until, is_direct: false, .. } => Some(half_of(*begun, *until)),
            Pending::Ask { until, .. } => Some(*until),
            _ => None,
        };
        self.operations.values().filter_map(next).min()
    }
}

fn half_of(begun: Time, until: Time) -> Time {
    begun.after(until.since(begun) / 2)
}
