//! Those who do things on the threads that poll a node's links, beside the mesh itself.

use crate::driver::Shared;
use sheave_base::contain;

/// Somebody with small tasks that messages and deaths set going. It is called with no lock held, by any thread, by
/// several at once and from within itself; it must not block.
pub trait Attendant: Send + Sync {
    /// A thread has polled, and [`sheave_net::Node::remind_observer`] was called before.
    fn attend(&self);

    /// The mesh has heard news: groups may be broken now.
    fn groups_changed(&self);
}

impl Shared {
    pub(crate) fn each_attendant(&self, act: impl Fn(&dyn Attendant)) {
        // Called without the lock: whoever attends may name another.
        let attendants = self.attendants.read().clone();
        for attendant in attendants.iter().filter_map(std::sync::Weak::upgrade) {
            // What one of them leaves undone by a panic must not keep the others, or whoever polled, from going on.
            contain::told("an attendant of the mesh", || act(&*attendant));
        }
    }
}
