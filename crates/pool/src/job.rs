//! Many tasks that belong together, and their outcomes as they come.

use crate::task::Outcome;
use parking_lot::Mutex;
use sheave_base::Work;
use sheave_base::planted::{self, Bug};
use sheave_base::work::Completer;
use sheave_base::work::awaited::Awaited;
use sheave_net::Node;
use std::collections::VecDeque;

/// The outcomes of tasks that belong together, which are taken one after the other: in the order in which the tasks
/// were submitted, or as they end.
pub struct Job {
    node: Node,
    is_ordered: bool,
    awaited: Awaited,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    submitted: u64,
    settled: u64,
    /// The place of the first of `outcomes` among all tasks.
    first: u64,
    /// What has come and was not taken, of an ordered job by place.
    outcomes: VecDeque<Option<(u64, Outcome)>>,
    /// Those who wait until something can be taken, and until all is there.
    for_next: Vec<Completer<()>>,
    for_all: Vec<Completer<()>>,
}

impl State {
    fn has_next(&self) -> bool {
        self.outcomes.front().is_some_and(Option::is_some)
    }

    fn is_whole(&self) -> bool {
        self.settled == self.submitted
    }

    /// All that was submitted has been taken.
    fn has_no_next(&self) -> bool {
        self.outcomes.is_empty() && self.is_whole()
    }

    /// Those whose wait is over, for the next outcome and for all.
    fn take_ended(&mut self) -> (Vec<Completer<()>>, Vec<Completer<()>>) {
        let is_next = self.has_next() || self.has_no_next();
        let next = if is_next { std::mem::take(&mut self.for_next) } else { Vec::new() };
        let all = if self.is_whole() { std::mem::take(&mut self.for_all) } else { Vec::new() };
        (next, all)
    }
}

impl Job {
    pub(crate) fn new(node: &Node, is_ordered: bool, awaited: Awaited) -> Self {
        Self { node: node.clone(), is_ordered, awaited, state: Mutex::default() }
    }

    /// Returns the place of one more task, which nothing can refuse any more.
    pub(crate) fn add(&self) -> u64 {
        let mut state = self.state.lock();
        let place = state.submitted;
        state.submitted += 1;
        if self.is_ordered {
            state.outcomes.push_back(None);
        }
        place
    }

    pub(crate) fn settle(&self, place: u64, outcome: Outcome) {
        let (next, all) = {
            let mut state = self.state.lock();
            state.settled += 1;
            if self.is_ordered {
                let mut at = (place - state.first) as usize;
                let other = state.outcomes.iter().position(Option::is_none);
                if let Some(other) = other.filter(|_| planted::strikes(Bug::PlaceTurned)) {
                    at = other;
                }
                if let Some(slot) = state.outcomes.get_mut(at) {
                    *slot = Some((place, outcome));
                }
            } else {
                state.outcomes.push_back(Some((place, outcome)));
            }
            state.take_ended()
        };
        next.into_iter().chain(all).for_each(|completer| completer.complete(Ok(())));
    }

    /// Takes the next outcome, with the place of its task, if it is there.
    pub fn take(&self) -> Option<(u64, Outcome)> {
        let mut state = self.state.lock();
        let taken = if state.has_next() { state.outcomes.pop_front().flatten()? } else { return None };
        state.first += 1;
        Some(taken)
    }

    /// A work that ends when an outcome can be taken, or there is none to come.
    #[must_use]
    pub fn next(&self) -> Work<()> {
        let mut state = self.state.lock();
        if state.has_next() || state.has_no_next() {
            return Work::ready("pool", Ok(()));
        }
        let (completer, work) = self.node.described("pool", None, self.awaited.clone());
        state.for_next.retain(Completer::is_awaited);
        state.for_next.push(completer);
        work
    }

    /// A work that ends when the outcomes of all tasks are there that were submitted.
    #[must_use]
    pub fn all(&self) -> Work<()> {
        let mut state = self.state.lock();
        if state.is_whole() {
            return Work::ready("pool", Ok(()));
        }
        let (completer, work) = self.node.described("pool", None, self.awaited.clone());
        state.for_all.retain(Completer::is_awaited);
        state.for_all.push(completer);
        work
    }

    /// Returns how many tasks were submitted whose outcomes were not taken.
    #[must_use]
    pub fn left(&self) -> u64 {
        let state = self.state.lock();
        state.submitted - state.first
    }

    /// Returns how many tasks have ended.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.state.lock().settled
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Job")
            .field("submitted", &state.submitted)
            .field("settled", &state.settled)
            .finish_non_exhaustive()
    }
}
