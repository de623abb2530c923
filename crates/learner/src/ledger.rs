//! What became of each gradient, as the primary knows it.
//!
//! Each client numbers its gradients, and the sums that secondaries send carry the numbers that are in them. The
//! primary notes them, so that a client can ask. Numbers of which a client says that it knows what became of them are
//! forgotten, for none of them comes again; of a client that is gone it is remembered which have come, so that none of
//! them is applied twice ([`parted`](crate::parted)).
//!
//! A secondary that is gone is *fenced*: nothing that it has sent is taken any more. So what is not noted by then will
//! never be, and who asks for a gradient that went there hears that it is lost, for good. That is why a push whose
//! secondary died before it was answered can be sent to another one and is still applied at most once.

use crate::parted::Parted;
use crate::protocol::{Asked, Outcome};
use crate::reducer::GradientId;
use sheave_base::collections::{HashMap, HashSet};
use sheave_base::planted::{self, Bug};
use sheave_base::{Error, ErrorKind, NodeId, Result, limits};
use std::collections::{BTreeMap, VecDeque};

/// The numbers of what was lost or dropped: all are counted, and the latest kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The number of all of them.
    pub count: u64,
    /// The numbers that they had, the latest last, at most
    /// [`LEARNER_REPORTED_MAX`](sheave_base::limits::LEARNER_REPORTED_MAX) of them.
    pub latest: VecDeque<GradientId>,
}

impl Losses {
    pub(crate) fn add(&mut self, ids: impl IntoIterator<Item = GradientId>) {
        for id in ids {
            self.count += 1;
            self.latest.push_back(id);
            if self.latest.len() > limits::LEARNER_REPORTED_MAX {
                self.latest.pop_front();
            }
        }
    }
}

/// What is known of the gradients of one client.
#[derive(Debug, Default)]
struct Notes {
    numbers: BTreeMap<u64, Outcome>,
    /// Of those below this number the client knows what became of them.
    floor: u64,
}

impl Notes {
    fn insert(&mut self, number: u64, outcome: Outcome) {
        self.numbers.insert(number, outcome);
        // One that never says what it knows has twice the room that it may use.
        if self.numbers.len() > 2 * limits::LEARNER_UNSETTLED_MAX {
            self.numbers.pop_first();
        }
    }

    /// Whether this one has come, or is of those that will not come again.
    fn has(&self, number: u64) -> bool {
        number < self.floor || self.numbers.contains_key(&number)
    }

    fn forget_below(&mut self, floor: u64) {
        // A question that had to wait is older than others that were answered meanwhile.
        self.floor = self.floor.max(floor);
        self.numbers = self.numbers.split_off(&self.floor);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    clients: HashMap<(NodeId, u32), Notes>,
    parted: Parted,
    fenced: HashSet<NodeId>,
    pub(crate) lost: Losses,
    pub(crate) dropped: Losses,
}

impl Ledger {
    /// Takes notes of a client's gradients from now on.
    pub(crate) fn open(&mut self, node: NodeId, client: u32) -> Result<()> {
        if self.clients.len() >= limits::LEARNER_CLIENTS_MAX {
            let what = format!("{} clients of this gradient server", self.clients.len());
            return Err(Error::new(ErrorKind::LimitExceeded, what).hint("drop clients that are not used"));
        }
        // It would never be closed.
        if self.is_fenced(node) {
            return Err(Error::new(ErrorKind::NotPermitted, format!("a client of {node}, which is gone")));
        }
        self.clients.entry((node, client)).or_default();
        Ok(())
    }

    pub(crate) fn close(&mut self, node: NodeId, client: u32) {
        if let Some(notes) = self.clients.remove(&(node, client)) {
            self.parted.part((node, client), notes.floor, notes.numbers.into_keys());
        }
    }

    /// A node is gone: nothing comes from it any more, and nobody on it asks.
    pub(crate) fn fence(&mut self, node: NodeId) {
        for (client, notes) in self.clients.extract_if(|(other, _), _| *other == node) {
            self.parted.part(client, notes.floor, notes.numbers.into_keys());
        }
        self.fenced.insert(node);
    }

    pub(crate) fn is_fenced(&self, node: NodeId) -> bool {
        self.fenced.contains(&node)
    }

    /// The first of these that has come already.
    pub(crate) fn known(&self, ids: &[GradientId]) -> Option<GradientId> {
        let is_known = |id: &&GradientId| match self.clients.get(&(id.node, id.client)) {
            Some(notes) if notes.has(id.number) => true,
            _ => self.parted.knows(**id),
        };
        ids.iter().find(is_known).copied()
    }

    /// Takes a note of those of a sum that was refused: they are in none, unless another one has brought them.
    pub(crate) fn refuse(&mut self, mut ids: Vec<GradientId>) {
        ids.retain(|id| self.known(&[*id]).is_none());
        ids.sort_unstable();
        ids.dedup();
        self.note(&ids, Outcome::Dropped);
    }

    pub(crate) fn note(&mut self, ids: &[GradientId], outcome: Outcome) {
        if outcome == Outcome::Dropped {
            self.dropped.add(ids.iter().copied());
        }
        for id in ids {
            match self.clients.get_mut(&(id.node, id.client)) {
                Some(notes) => notes.insert(id.number, outcome),
                None => self.parted.note(*id),
            }
        }
    }

    /// Whether all secondaries are fenced that these questions take for gone.
    pub(crate) fn can_settle(&self, asked: &[Asked]) -> bool {
        self.alive(asked).is_none()
    }

    /// One that these questions take for gone and that is not fenced.
    pub(crate) fn alive(&self, asked: &[Asked]) -> Option<NodeId> {
        asked.iter().filter_map(|asked| asked.gone).find(|node| !self.is_fenced(*node))
    }

    /// What became of these gradients of a client, which asks for nothing below `floor` any more.
    pub(crate) fn settle(&mut self, from: NodeId, client: u32, floor: u64, asked: &[Asked]) -> Result<Vec<Outcome>> {
        let Some(notes) = self.clients.get_mut(&(from, client)) else {
            let what = "this gradient server does not know the client: it was started after that had connected";
            return Err(Error::new(ErrorKind::NotFound, what).hint("connect a new client"));
        };
        notes.forget_below(floor);
        let (numbers, fenced) = (&notes.numbers, &self.fenced);
        let outcome = |asked: &Asked| match numbers.get(&asked.number) {
            Some(outcome) => *outcome,
            None if asked.was_taken && planted::strikes(Bug::LossUnsaid) => Outcome::Applied,
            None if asked.gone.is_some_and(|node| fenced.contains(&node)) => Outcome::Lost,
            None => Outcome::Pending,
        };
        let outcomes: Vec<Outcome> = asked.iter().map(outcome).collect();
        let is_asked = |asked: &Asked| asked.was_taken && asked.number >= notes.floor;
        let is_new = |asked: &Asked| is_asked(asked) && !numbers.contains_key(&asked.number);
        let is_lost = |(asked, outcome): &(&Asked, &Outcome)| **outcome == Outcome::Lost && is_new(asked);
        let lost: Vec<u64> = asked.iter().zip(&outcomes).filter(is_lost).map(|(asked, _)| asked.number).collect();
        for number in &lost {
            // Whoever asks again is told the same, and it is counted once.
            notes.insert(*number, Outcome::Lost);
        }
        self.lost.add(lost.into_iter().map(|number| GradientId { node: from, client, number }));
        Ok(outcomes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: NodeId = NodeId(1);
    const SECONDARY: NodeId = NodeId(2);

    fn ids(numbers: &[u64]) -> Vec<GradientId> {
        numbers.iter().map(|number| GradientId { node: CLIENT, client: 0, number: *number }).collect()
    }

    fn asked(number: u64, gone: Option<NodeId>, was_taken: bool) -> Asked {
        Asked { number, gone, was_taken }
    }

    #[test]
    fn what_is_not_known_of_a_fenced_secondary_is_lost() {
        let mut ledger = Ledger::default();
        ledger.open(CLIENT, 0).unwrap();
        ledger.note(&ids(&[1, 2]), Outcome::Queued);
        ledger.note(&ids(&[1]), Outcome::Applied);
        ledger.note(&ids(&[3]), Outcome::Dropped);
        assert_eq!((ledger.known(&ids(&[7, 2])), ledger.known(&ids(&[7]))), (Some(ids(&[2])[0]), None));
        let there = Some(SECONDARY);
        let questions = [1, 2, 3, 4].map(|number| asked(number, there, true));
        assert!(!ledger.can_settle(&questions));
        ledger.fence(SECONDARY);
        assert!(ledger.can_settle(&questions) && ledger.is_fenced(SECONDARY));
        let expected = [Outcome::Applied, Outcome::Queued, Outcome::Dropped, Outcome::Lost];
        for _ in 0..2 {
            assert_eq!(ledger.settle(CLIENT, 0, 1, &questions).unwrap(), expected);
            assert_eq!((ledger.lost.count, ledger.dropped.count), (1, 1));
        }
        // One that nobody has answered for is sent again, and not lost.
        let again = [asked(5, there, false), asked(6, None, true)];
        assert_eq!(ledger.settle(CLIENT, 0, 5, &again).unwrap(), [Outcome::Lost, Outcome::Pending]);
        assert_eq!(ledger.lost.count, 1);
        assert!(ledger.clients[&(CLIENT, 0)].numbers.is_empty(), "nobody asks for them any more");
        assert_eq!(ledger.known(&ids(&[6, 5, 4, 3])), Some(ids(&[4])[0]), "none of them comes again");
    }

    /// A question waits until a secondary is fenced, and meanwhile its client learns what became of the gradient.
    #[test]
    fn what_its_client_knows_is_not_counted_as_lost() {
        let mut ledger = Ledger::default();
        ledger.open(CLIENT, 0).unwrap();
        ledger.note(&ids(&[1]), Outcome::Applied);
        assert_eq!(ledger.settle(CLIENT, 0, 1, &[asked(1, None, true)]).unwrap(), [Outcome::Applied]);
        ledger.settle(CLIENT, 0, 2, &[]).unwrap();
        ledger.fence(SECONDARY);
        ledger.settle(CLIENT, 0, 1, &[asked(1, Some(SECONDARY), true), asked(2, Some(SECONDARY), true)]).unwrap();
        assert_eq!(ledger.lost.latest, ids(&[2]));
    }

    #[test]
    fn no_client_has_very_many_notes() {
        const COUNT: u64 = 2 * limits::LEARNER_UNSETTLED_MAX as u64 + 100;
        let mut ledger = Ledger::default();
        ledger.open(CLIENT, 0).unwrap();
        ledger.fence(SECONDARY);
        let questions: Vec<_> = (0..COUNT).map(|number| asked(number, Some(SECONDARY), true)).collect();
        ledger.settle(CLIENT, 0, 0, &questions).unwrap();
        let numbers = ledger.clients[&(CLIENT, 0)].numbers.len();
        assert!(numbers <= 2 * limits::LEARNER_UNSETTLED_MAX, "{numbers}");
    }

    #[test]
    fn a_node_that_is_gone_opens_nothing() {
        let mut ledger = Ledger::default();
        ledger.fence(CLIENT);
        assert_eq!(ledger.open(CLIENT, 0).unwrap_err().kind(), ErrorKind::NotPermitted);
        assert!(ledger.clients.is_empty());
    }

    #[test]
    fn what_came_twice_stays_what_it_was() {
        let mut ledger = Ledger::default();
        ledger.open(CLIENT, 0).unwrap();
        ledger.note(&ids(&[1]), Outcome::Applied);
        ledger.refuse(ids(&[3, 1, 2, 3]));
        let questions = [1, 2, 3].map(|number| asked(number, None, true));
        let expected = [Outcome::Applied, Outcome::Dropped, Outcome::Dropped];
        assert_eq!(ledger.settle(CLIENT, 0, 1, &questions).unwrap(), expected);
        assert_eq!((ledger.dropped.count, ledger.dropped.latest.into()), (2, ids(&[2, 3])));
    }

    #[test]
    fn clients_that_are_gone_are_forgotten() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.settle(CLIENT, 0, 1, &[]).unwrap_err().kind(), ErrorKind::NotFound);
        ledger.open(CLIENT, 0).unwrap();
        ledger.open(CLIENT, 1).unwrap();
        ledger.close(CLIENT, 1);
        ledger.note(&ids(&[1]), Outcome::Queued);
        ledger.fence(CLIENT);
        ledger.note(&ids(&[2]), Outcome::Queued);
        assert_eq!((ledger.known(&ids(&[3])), ledger.clients.len()), (None, 0));
        (0..limits::LEARNER_CLIENTS_MAX as u32).for_each(|client| ledger.open(SECONDARY, client).unwrap());
        assert_eq!(ledger.open(CLIENT, 0).unwrap_err().kind(), ErrorKind::LimitExceeded);
    }

    /// A client may say goodbye, or its node die, while its gradients are with secondaries.
    #[test]
    fn what_has_come_of_a_client_that_is_gone_does_not_come_again() {
        for is_dead in [false, true] {
            let mut ledger = Ledger::default();
            ledger.open(CLIENT, 0).unwrap();
            ledger.note(&ids(&[1, 2, 4]), Outcome::Applied);
            ledger.settle(CLIENT, 0, 2, &[]).unwrap();
            if is_dead {
                ledger.fence(CLIENT);
            } else {
                ledger.close(CLIENT, 0);
            }
            for number in [1, 2, 4] {
                assert_eq!(ledger.known(&ids(&[7, number])), Some(ids(&[number])[0]), "dead: {is_dead}");
            }
            // What has not come is taken, once.
            assert_eq!(ledger.known(&ids(&[3, 5])), None);
            ledger.note(&ids(&[3, 5]), Outcome::Queued);
            ledger.refuse(ids(&[3, 6]));
            assert_eq!(ledger.known(&ids(&[5])), Some(ids(&[5])[0]));
            assert_eq!(ledger.dropped.latest, ids(&[6]));
        }
    }

    #[test]
    fn the_latest_losses_are_kept() {
        let mut losses = Losses::default();
        losses.add(ids(&(0..2000).collect::<Vec<_>>()));
        assert_eq!((losses.count, losses.latest.len()), (2000, limits::LEARNER_REPORTED_MAX));
        assert_eq!(losses.latest.back().map(|id| id.number), Some(1999));
    }
}
