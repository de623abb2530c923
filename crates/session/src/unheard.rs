//! Answers that nobody has waited for to the end.
//!
//! A worker tells what has failed once, to who asks whether all is well. Where that wait ends before the answer is
//! there, by its timeout or because it was interrupted, the question goes on, and its answer is for whoever waits for
//! this worker next: nothing that has failed stays unsaid.
//!
//! **Bounds.** A wait that begins though nothing was issued meanwhile is for the answer of the same question, and
//! answers that tell of nothing are dropped. So there are no more questions than commands that a worker has not done,
//! which [`commands`](crate::commands) bounds, but for one of each thread that waits, and for failures of which nobody
//! has heard yet.

use parking_lot::Mutex;
use sheave_base::{Result, Work};
use sheave_mesh::Answer;
use std::collections::VecDeque;

/// A question, and the number of the last command that had been issued then.
type Question = (u64, Work<Answer>);

/// The questions whose answers nobody has heard, by worker.
pub(crate) struct Unheard(Mutex<Vec<VecDeque<Question>>>);

impl Unheard {
    pub(crate) fn of(workers: usize) -> Self {
        Self(Mutex::new((0..workers).map(|_| VecDeque::new()).collect()))
    }

    /// Keeps a question for whoever waits next.
    pub(crate) fn keep(&self, worker: u32, question: Question) {
        let is_well = |(_, work): &Question| work.result().is_some_and(|answer| answer.is_ok());
        let questions = &mut self.0.lock()[worker as usize];
        // Whoever is interrupted each time hears of none. Their answers hold nothing whose drop could do anything.
        questions.retain(|question| !is_well(question));
        questions.push_back(question);
    }

    /// Takes the last question, if nothing was issued since.
    pub(crate) fn take_last(&self, worker: u32, number: u64) -> Option<Work<Answer>> {
        let questions = &mut self.0.lock()[worker as usize];
        let is_last = questions.back().is_some_and(|(asked, _)| *asked == number);
        if is_last { questions.pop_back().map(|(_, work)| work) } else { None }
    }

    /// Fails with the first failure among the answers that are there. Further ones stay.
    pub(crate) fn hear(&self, worker: u32) -> Result<()> {
        let next = || {
            let questions = &mut self.0.lock()[worker as usize];
            if questions.front().is_some_and(|(_, work)| work.is_done()) { questions.pop_front() } else { None }
        };
        // What an answer holds is not dropped under the lock.
        while let Some((_, work)) = next() {
            work.taken()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Args, Function, Held, Session, register_function};
    use sheave_base::{Error, ErrorKind};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn who_asks_again_though_nothing_was_issued_waits_for_the_same_answer() {
        let (go, gone) = channel();
        let gone = Mutex::new(gone);
        let blocks = Function::new("until told", move |_| Ok(gone.lock().recv().map(Held::of).unwrap_or_default()));
        register_function(blocks).unwrap();
        let session = Session::threads(1, 1).unwrap();
        let questions = || session.0.unheard.0.lock()[0].len();
        for issued in 1..=3 {
            session.call_named("until told", &Args::new(), None, &mut |blocking| blocking(None)).unwrap();
            for _ in 0..50 {
                let late = session.sync_all(Some(Duration::from_millis(1))).unwrap_err();
                assert_eq!(late.kind(), ErrorKind::DeadlineExceeded, "{late}");
            }
            assert_eq!(questions(), issued);
        }
        (0..3).for_each(|_| go.send(1).expect("it waits"));
        session.sync_all(None).unwrap();
        assert_eq!(questions(), 0);
        session.shutdown().unwrap();
    }

    #[test]
    fn answers_that_tell_of_nothing_are_not_kept_and_failures_are() {
        let unheard = Unheard::of(1);
        for number in 0..10 {
            let failed = || Error::new(ErrorKind::Remote, format!("command {number}"));
            let answer = if number % 5 == 4 { Err(failed()) } else { Ok(Answer::default()) };
            unheard.keep(0, (number, Work::ready("sync", answer)));
        }
        assert_eq!(unheard.0.lock()[0].len(), 2);
        for number in [4, 9] {
            let told = unheard.hear(0).expect_err("it has failed").to_string();
            assert!(told.contains(&format!("command {number}")), "{told}");
        }
        unheard.hear(0).expect("each is told once");
    }
}
