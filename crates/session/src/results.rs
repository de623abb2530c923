//! Results of one command, which stay on the workers, by their names.

use crate::commands::Commands;
use sheave_base::Result;
use sheave_mesh::Ref;
use std::sync::{Arc, OnceLock};

/// The names of a command's results, one of each worker that lives. They are drawn once somebody needs them: most
/// commands of a program are issued for what they do, and nobody asks what has come of them.
pub(crate) struct Results(OnceLock<Result<Vec<Option<Ref>>>>);

impl Results {
    /// Those that have names already.
    pub(crate) fn drawn(refs: Vec<Option<Ref>>) -> Arc<Self> {
        Arc::new(Self(Ok(refs).into()))
    }

    /// Those that have none yet.
    pub(crate) fn undrawn() -> Arc<Self> {
        Arc::new(Self(OnceLock::new()))
    }

    /// By worker, none of one that was gone. Does not block.
    ///
    /// # Errors
    ///
    /// Why they could not be drawn; so it stays.
    pub(crate) fn refs(&self, commands: &Commands) -> Result<&[Option<Ref>]> {
        match self.0.get_or_init(|| commands.draw()) {
            Ok(refs) => Ok(refs),
            Err(error) => Err(error.clone()),
        }
    }

    /// The name of what a worker has, where there are names and it was not gone.
    pub(crate) fn of(&self, worker: usize) -> Option<&Ref> {
        self.0.get()?.as_ref().ok()?.get(worker)?.as_ref()
    }
}

impl Drop for Results {
    fn drop(&mut self) {
        if let Some(Ok(refs)) = self.0.take() {
            Ref::drop_all(refs.into_iter().flatten());
        }
    }
}
