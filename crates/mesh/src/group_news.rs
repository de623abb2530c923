//! Those who hear that groups may have changed.

use crate::driver::Shared;
use sheave_base::contain;

/// Somebody whose operations belong to groups. It is called with no lock held, by any thread, by several at once and
/// from within itself; it must not block.
pub trait GroupNews: Send + Sync {
    /// Hears that the mesh has heard news: groups may be broken now.
    fn groups_changed(&self);
}

impl Shared {
    /// Tells all who want to hear it that groups may have changed.
    pub(crate) fn tell_group_news(&self) {
        // Called without the lock: whoever hears it may name another.
        let listeners = self.group_news.read().clone();
        for listener in listeners.iter().filter_map(std::sync::Weak::upgrade) {
            // What one of them leaves undone by a panic must not keep the others, or whoever polled, from going on.
            contain::told("news of a group", || listener.groups_changed());
        }
    }
}
