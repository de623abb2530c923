//! What changes in the table bring about, and what must be done with no lock held: answers, whose callers may go on at
//! once, calls to other servers, and user code.

use super::backlog::Parked;
use super::norms::Halfway;
use super::norms::closed;
use super::pending::Waiting;
use super::store::Store;
use super::{Holder, Table, of};
use crate::user_merge::UserMerge;
use parking_lot::MutexGuard;
use sheave_mesh::ServiceName;
use std::sync::Arc;

/// The lane of updaters. They run one at a time, in the order in which their merges became due.
const UPDATERS: ServiceName = ServiceName::new("store.updaters");

/// A merge that user code is to do.
pub(super) struct Aside {
    pub(super) store: u32,
    /// The slice's number.
    pub(super) slice: u64,
    pub(super) merge: UserMerge,
}

/// What is to be done with no lock held.
#[derive(Default)]
pub(super) struct After {
    pub(super) ended: Vec<Waiting>,
    pub(super) halfway: Vec<Halfway>,
    pub(super) aside: Vec<Aside>,
    /// Requests that need not be held up any more.
    pub(super) released: Vec<Parked>,
}

impl After {
    pub(super) fn extend(&mut self, other: Self) {
        self.ended.extend(other.ended);
        self.halfway.extend(other.halfway);
        self.aside.extend(other.aside);
        self.released.extend(other.released);
    }
}

impl Holder {
    /// Lets the lock go, and does what was left for that moment.
    pub(super) fn release(self: &Arc<Self>, mut table: MutexGuard<'_, Table>, after: After) {
        let mut hopeless = Vec::new();
        if !table.gatherings.is_empty() {
            let Table { gatherings, stores, .. } = &mut *table;
            gatherings.retain(|(store, key), said| {
                let refused = stores.get(store).map_or_else(|| Err(closed()), |store| store.whole(*key).map(drop));
                if let Err(error) = &refused {
                    hopeless.extend(std::mem::take(said).into_values().map(|said| (said.reply, error.clone())));
                }
                refused.is_ok()
            });
        }
        // A caller of this very node may go on at once.
        drop(table);
        after.released.into_iter().for_each(Parked::release);
        hopeless.into_iter().for_each(|(reply, error)| reply.error(error));
        after.ended.into_iter().for_each(Waiting::answer);
        after.halfway.into_iter().for_each(|halfway| self.ask_norms(halfway));
        after.aside.into_iter().for_each(|aside| self.run_updater(aside));
    }

    /// Has user code do a merge, on its lane.
    fn run_updater(self: &Arc<Self>, Aside { store, slice, mut merge }: Aside) {
        let Some(mesh) = self.mesh.upgrade() else { return };
        let holder = Arc::clone(self);
        mesh.submit(&UPDATERS, 0, move |turn| {
            holder.with_store(store, Store::begun);
            let outcome = turn.and_then(|()| merge.run());
            holder.with_store(store, |store| store.take_back(slice, merge, outcome));
        });
    }

    /// Does something with a store, if it is still open, and then what that has brought about.
    pub(super) fn with_store(self: &Arc<Self>, store: u32, act: impl FnOnce(&mut Store)) {
        let mut table = self.table.lock();
        let Ok(store) = of(&mut table, store) else { return };
        act(store);
        let after = store.take_after();
        self.release(table, after);
    }
}
