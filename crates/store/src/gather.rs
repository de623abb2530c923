//! One work out of several calls.

use parking_lot::Mutex;
use sheave_base::work::Completer;
use sheave_base::{Error, Result, Work};
use sheave_mesh::Answer;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

struct Gather<F> {
    left: AtomicUsize,
    error: Mutex<Option<Error>>,
    end: Mutex<Option<(Completer<()>, F)>>,
}

/// Completes when all `calls` have ended: with the first error, or with what `finish` says of their success.
pub(crate) fn gather<F>(calls: Vec<Work<Answer>>, completer: Completer<()>, finish: F)
where
    F: FnOnce() -> Result<()> + Send + 'static,
{
    // One more than there are calls, so that none of them ends it before all are in.
    let (left, error) = (AtomicUsize::new(calls.len() + 1), Mutex::new(None));
    let gather = Arc::new(Gather { left, error, end: Mutex::new(Some((completer, finish))) });
    for call in calls {
        let gather = Arc::clone(&gather);
        call.on_complete(move |outcome| gather.one_ended(outcome.as_ref().err()));
    }
    gather.one_ended(None);
}

impl<F: FnOnce() -> Result<()>> Gather<F> {
    fn one_ended(&self, error: Option<&Error>) {
        if let Some(error) = error {
            self.error.lock().get_or_insert_with(|| error.clone());
        }
        if self.left.fetch_sub(1, SeqCst) > 1 {
            return;
        }
        let Some((completer, finish)) = self.end.lock().take() else { return };
        let outcome = match self.error.lock().take() {
            Some(error) => Err(error),
            None => finish(),
        };
        completer.complete(outcome);
    }
}
