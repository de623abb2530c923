//! One work out of several calls.

use crate::client::Losses;
use crate::protocol::Gone;
use parking_lot::Mutex;
use sheave_base::work::Completer;
use sheave_base::work::awaited::{Account, Awaited, Describe, Which, joined, listed};
use sheave_base::{Error, Result, Work};
use sheave_mesh::Answer;
use std::sync::{Arc, Weak};

/// An answer to what waits for other workers.
pub(crate) type Told = Answer<Gone>;

struct Gather<F> {
    losses: Arc<Losses>,
    state: Mutex<State<F>>,
}

struct State<F> {
    left: usize,
    error: Option<Error>,
    /// Those that have not failed: once one has, they are cancelled.
    calls: Vec<Work<Told>>,
    end: Option<(Completer<()>, F)>,
}

/// Completes when all `calls` have ended: with the first error, or with what `finish` says of their success.
///
/// The first error cancels all other calls. So an operation that needs a server which is gone does not wait for what
/// the others say, and still no call receives into a place after the end. What answers know of losses is known before
/// the end.
pub(crate) fn gather<F>(calls: Vec<Work<Told>>, losses: &Arc<Losses>, completer: Completer<()>, finish: F)
where
    F: FnOnce() -> Result<()> + Send + 'static,
{
    // One more than there are calls, so that none of them ends it before all are in.
    let state = State { left: calls.len() + 1, error: None, calls: calls.clone(), end: Some((completer, finish)) };
    let gather = Arc::new(Gather { losses: Arc::clone(losses), state: Mutex::new(state) });
    let knows: Weak<Gather<F>> = Arc::downgrade(&gather);
    if let Some((completer, _)) = &gather.state.lock().end {
        completer.awaits(Awaited::new(knows, [0; 2]));
    }
    for call in calls {
        let gather = Arc::clone(&gather);
        call.on_complete(move |outcome| {
            let learned = outcome.as_ref().map_err(Error::clone).and_then(|answer| gather.losses.learn(&answer.value));
            gather.one_ended(learned.err().as_ref());
        });
    }
    gather.one_ended(None);
}

/// The calls that are not answered.
impl<F: Send> Describe for Gather<F> {
    fn describe(&self, _: Which) -> Option<Account> {
        let calls = self.unanswered();
        let whom = calls.iter().filter_map(|awaited| awaited.describe()?.whom);
        Some(Account { what: None, whom: Some(listed(whom)).filter(|whom| !whom.is_empty()) })
    }

    fn ask(&self, _: Which) -> Option<Work<String>> {
        let calls = self.unanswered();
        let asked = calls.iter().filter_map(|awaited| Some((awaited.describe()?.whom?, awaited.ask())));
        Some(joined(asked.collect()))
    }
}

impl<F> Gather<F> {
    fn unanswered(&self) -> Vec<Awaited> {
        self.state.lock().calls.iter().filter_map(Work::awaited).collect()
    }
}

impl<F: FnOnce() -> Result<()>> Gather<F> {
    fn one_ended(&self, error: Option<&Error>) {
        let mut needless = Vec::new();
        let ended = {
            let mut state = self.state.lock();
            if let Some(error) = error.filter(|_| state.error.is_none()) {
                state.error = Some(error.clone());
                needless = std::mem::take(&mut state.calls);
            }
            state.left -= 1;
            if state.left == 0 { state.end.take().map(|end| (end, state.error.take())) } else { None }
        };
        // With no lock held: each of them ends here.
        needless.iter().for_each(Work::cancel);
        let Some(((completer, finish), error)) = ended else { return };
        completer.complete(error.map_or_else(finish, Err));
    }
}
