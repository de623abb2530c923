//! Operations of a worker that have not ended, by the keys that they are on.

use parking_lot::Mutex;
use sheave_base::{Result, Work};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Outstanding {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last: u64,
    operations: BTreeMap<u64, (Box<[u64]>, Work<()>)>,
}

/// An operation is outstanding until this is dropped.
pub(super) struct Entry {
    outstanding: Arc<Outstanding>,
    number: u64,
}

impl Outstanding {
    /// Notes an operation on keys of these numbers. It leaves the table with the entry that is returned.
    pub(super) fn begin(self: &Arc<Self>, mut keys: Vec<u64>, work: &Work<()>) -> Entry {
        keys.sort_unstable();
        let mut table = self.table.lock();
        table.last += 1;
        let number = table.last;
        table.operations.insert(number, (keys.into_boxed_slice(), work.clone()));
        Entry { outstanding: Arc::clone(self), number }
    }

    /// Blocks until every operation on one of `keys` has ended, on any key if there are none. The first error of those
    /// that had not.
    pub(super) fn wait(&self, keys: Option<&[u64]>) -> Result<()> {
        let concerns = |known: &[u64]| keys.is_none_or(|keys| keys.iter().any(|key| known.binary_search(key).is_ok()));
        let works: Vec<Work<()>> = {
            let table = self.table.lock();
            let concerned = table.operations.values().filter(|(known, _)| concerns(known));
            concerned.map(|(_, work)| work.clone()).collect()
        };
        let outcomes: Vec<Result<()>> = works.iter().map(Work::wait).collect();
        outcomes.into_iter().collect()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let removed = self.outstanding.table.lock().operations.remove(&self.number);
        // With no lock held: a work may run what was asked of it.
        drop(removed);
    }
}
