//! Questions for what became of gradients, which wait until all secondaries are gone that they take for gone.
//!
//! A node that one member holds for dead is dead for all soon, or that member is. So a question has an answer soon, or
//! nobody who waits for it; and one that takes a node for gone that stays is answered with an error, after a time in
//! which any death would have been agreed. None keeps its place for ever.

use crate::ledger::Ledger;
use crate::protocol::{Outcome, Settle};
use sheave_base::clock::Time;
use sheave_base::{Error, ErrorKind, NodeId, Result, limits};
use std::time::Duration;

/// How long a question waits at most: many times as long as it takes to agree that a member is dead.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// A question, and who asks.
struct Question<R> {
    from: NodeId,
    settle: Settle,
    reply: R,
    came: Time,
}

/// Questions in the order in which they came. `R` is what they are answered by.
pub(crate) struct Questions<R>(Vec<Question<R>>);

impl<R> Questions<R> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= limits::LEARNER_CLIENTS_MAX
    }

    /// Adds one that came now. If there are too many it is given back.
    pub(crate) fn add(&mut self, from: NodeId, settle: Settle, reply: R, now: Time) -> Result<(), R> {
        if self.is_full() {
            return Err(reply);
        }
        self.0.push(Question { from, settle, reply, came: now });
        Ok(())
    }

    /// Takes out those that wait for nothing any more, with their answers. Nobody hears that of one who is gone, or of
    /// whom it is not so that he `is_wanted`.
    pub(crate) fn answered(
        &mut self,
        ledger: &mut Ledger,
        now: Time,
        is_wanted: impl Fn(&R) -> bool,
    ) -> Vec<(R, Result<Vec<Outcome>>)> {
        let is_over = |question: &Question<R>| {
            ledger.can_settle(&question.settle.asked)
                || ledger.is_fenced(question.from)
                || now >= question.came.after(WAIT_MAX)
                || !is_wanted(&question.reply)
        };
        let over: Vec<_> = self.0.extract_if(.., |question| is_over(question)).collect();
        let answer = |Question { from, settle, reply, .. }: Question<R>| {
            let outcomes = match ledger.alive(&settle.asked) {
                None => ledger.settle(from, settle.client, settle.floor, &settle.asked),
                Some(node) => Err(stays(node)),
            };
            (reply, outcomes)
        };
        over.into_iter().map(answer).collect()
    }

    /// When the first of them has waited long enough.
    pub(crate) fn due(&self) -> Option<Time> {
        self.0.first().map(|question| question.came.after(WAIT_MAX))
    }

    /// Takes out all of them.
    pub(crate) fn clear(&mut self) -> Vec<R> {
        std::mem::take(&mut self.0).into_iter().map(|question| question.reply).collect()
    }
}

/// Why there is no answer.
fn stays(node: NodeId) -> Error {
    let what = format!("a gradient went to {node}, which was taken for gone and lives for the primary");
    Error::new(ErrorKind::DeadlineExceeded, what).hint("ask again once it is reached, or gone for all")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Asked;

    const CLIENT: NodeId = NodeId(1);
    const SECONDARY: NodeId = NodeId(2);

    fn question(gone: Option<NodeId>) -> Settle {
        Settle { client: 0, floor: 1, asked: vec![Asked { number: 1, gone, was_taken: true }] }
    }

    /// A table that is full of questions for one that lives, of which the first came at 1.
    fn full() -> (Questions<u64>, Ledger) {
        let (mut questions, mut ledger) = (Questions::new(), Ledger::default());
        ledger.open(CLIENT, 0).unwrap();
        (1..=limits::LEARNER_CLIENTS_MAX as u64)
            .for_each(|reply| questions.add(CLIENT, question(Some(SECONDARY)), reply, Time(reply)).unwrap());
        assert_eq!(questions.add(CLIENT, question(None), 0, Time(0)), Err(0), "there is no room");
        assert!(questions.answered(&mut ledger, Time(9), |_| true).is_empty());
        (questions, ledger)
    }

    #[test]
    fn a_question_is_answered_once_all_are_gone_that_it_takes_for_gone() {
        let (mut questions, mut ledger) = full();
        ledger.fence(SECONDARY);
        let answered = questions.answered(&mut ledger, Time(9), |_| true);
        assert!(answered.len() == limits::LEARNER_CLIENTS_MAX && questions.due().is_none());
        assert!(answered.iter().all(|(_, outcome)| *outcome.as_ref().unwrap() == [Outcome::Lost]));
    }

    #[test]
    fn who_takes_one_for_gone_that_stays_is_told_in_the_end() {
        let (mut questions, mut ledger) = full();
        let due = questions.due().unwrap();
        assert_eq!(due, Time(1).after(WAIT_MAX));
        let answered = questions.answered(&mut ledger, due, |_| true);
        let told: Vec<_> = answered.iter().map(|(reply, told)| (*reply, told.as_ref().unwrap_err().kind())).collect();
        assert_eq!(told, [(1, ErrorKind::DeadlineExceeded)]);
        assert_eq!(questions.due(), Some(Time(2).after(WAIT_MAX)));
        questions.add(CLIENT, question(None), 0, due).unwrap();
        let answered = questions.answered(&mut ledger, due, |_| true);
        assert_eq!(answered.len(), 1, "it waits for nobody");
        assert_eq!(*answered[0].1.as_ref().unwrap(), [Outcome::Pending]);
    }

    #[test]
    fn who_waits_no_more_keeps_no_place() {
        let (mut questions, mut ledger) = full();
        let answered = questions.answered(&mut ledger, Time(9), |reply| *reply > 3);
        assert_eq!(answered.iter().map(|(reply, _)| *reply).collect::<Vec<_>>(), [1, 2, 3]);
        ledger.fence(CLIENT);
        let answered = questions.answered(&mut ledger, Time(9), |_| true);
        assert_eq!(answered.len() + 3, limits::LEARNER_CLIENTS_MAX);
        assert!(questions.clear().is_empty());
    }
}
