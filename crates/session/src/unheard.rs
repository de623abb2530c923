//! Answers that nobody has waited for to the end.
//!
//! A worker tells what has failed once, to who asks whether all is well. Where that wait ends before the answer is
//! there, by its timeout or because it was interrupted, the question goes on, and its answer is for whoever waits for
//! this worker next: nothing that has failed stays unsaid.
//!
//! Who asks again though nothing was issued meanwhile waits for the answer of the same question. So there are no more
//! of them than commands that a worker has not done, but for one of each thread that waits, and
//! [`commands`](crate::commands) bounds these.

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
        self.0.lock()[worker as usize].push_back(question);
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
    use sheave_base::ErrorKind;
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
}
