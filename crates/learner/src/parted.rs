//! The gradients that have come of clients that are gone.
//!
//! The last gradients of a client may still be with secondaries when it says goodbye or its node dies, and are applied
//! all the same; but each of them once. So what has come is remembered here, of the clients that went last. Where
//! clients come and go for ever there is an end to that, and what comes again after thousands of goodbyes is taken for
//! new. To refuse all that is not known would be worse: the gradients of as many clients that push once each may lie
//! with a secondary until its batch is full.

use crate::reducer::GradientId;
use sheave_base::collections::HashMap;
use sheave_base::{NodeId, limits};
use std::collections::{BTreeSet, VecDeque};

/// Numbers that are kept of a client beside the one below which all have come: the latest of those behind a gap.
const NUMBERS_MAX: usize = limits::LEARNER_SETTLE_EACH;

/// The gradients of one client that have come.
#[derive(Debug)]
struct Came {
    /// Below this number all have, or never will.
    floor: u64,
    /// These have too.
    numbers: BTreeSet<u64>,
}

impl Came {
    /// None yet: the first number of a client is 1.
    fn none() -> Self {
        Self { floor: 1, numbers: BTreeSet::new() }
    }

    fn add(&mut self, floor: u64, numbers: impl IntoIterator<Item = u64>) {
        self.floor = self.floor.max(floor);
        self.numbers.extend(numbers);
        self.numbers = self.numbers.split_off(&self.floor);
        while self.numbers.remove(&self.floor) {
            self.floor += 1;
        }
        while self.numbers.len() > NUMBERS_MAX {
            self.numbers.pop_first();
        }
    }

    fn has(&self, number: u64) -> bool {
        number < self.floor || self.numbers.contains(&number)
    }
}

/// Clients that are gone, by node and number.
#[derive(Debug, Default)]
pub(crate) struct Parted {
    clients: HashMap<(NodeId, u32), Came>,
    /// In the order in which they went.
    order: VecDeque<(NodeId, u32)>,
}

impl Parted {
    /// A client has gone, of whose gradients these have come, and all below `floor` that ever will.
    pub(crate) fn part(&mut self, client: (NodeId, u32), floor: u64, numbers: impl IntoIterator<Item = u64>) {
        if !self.clients.contains_key(&client) {
            self.order.push_back(client);
        }
        self.clients.entry(client).or_insert_with(Came::none).add(floor, numbers);
        if self.order.len() > limits::LEARNER_CLIENTS_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.clients.remove(&first);
        }
    }

    /// Notes that this gradient has come, if it is of one of them.
    pub(crate) fn note(&mut self, id: GradientId) {
        if let Some(came) = self.clients.get_mut(&(id.node, id.client)) {
            came.add(0, [id.number]);
        }
    }

    /// Whether this gradient has come before.
    pub(crate) fn knows(&self, id: GradientId) -> bool {
        self.clients.get(&(id.node, id.client)).is_some_and(|came| came.has(id.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(1);

    fn id(client: u32, number: u64) -> GradientId {
        GradientId { node: NODE, client, number }
    }

    #[test]
    fn what_has_come_is_known_and_nothing_else() {
        let mut parted = Parted::default();
        parted.note(id(0, 1));
        assert!(!parted.knows(id(0, 1)), "its client is not gone");
        parted.part((NODE, 0), 3, [2, 4, 6]);
        let known = |parted: &Parted| (1..9).filter(|number| parted.knows(id(0, *number))).collect::<Vec<_>>();
        assert_eq!(known(&parted), [1, 2, 4, 6]);
        assert!(!parted.knows(id(1, 1)));
        parted.note(id(0, 5));
        assert_eq!(known(&parted), [1, 2, 4, 5, 6]);
        // Without a gap one number says it all.
        parted.note(id(0, 3));
        assert_eq!((known(&parted), parted.clients[&(NODE, 0)].numbers.len()), (vec![1, 2, 3, 4, 5, 6], 0));
        // One that comes and goes again is the same.
        parted.part((NODE, 0), 0, [8]);
        assert_eq!((known(&parted), parted.order.len()), (vec![1, 2, 3, 4, 5, 6, 8], 1));
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered() {
        let mut parted = Parted::default();
        let most = limits::LEARNER_CLIENTS_MAX as u32;
        (0..=most).for_each(|client| parted.part((NODE, client), 0, [1]));
        assert!(!parted.knows(id(0, 1)) && parted.knows(id(1, 1)) && parted.knows(id(most, 1)));
        assert_eq!((parted.clients.len(), parted.order.len()), (most as usize, most as usize));
        // The second one never comes.
        let count = 2 * NUMBERS_MAX as u64;
        (3..=count).for_each(|number| parted.note(id(most, number)));
        assert!(parted.knows(id(most, 1)) && !parted.knows(id(most, 2)) && parted.knows(id(most, count)));
        assert_eq!(parted.clients[&(NODE, most)].numbers.len(), NUMBERS_MAX);
    }
}
