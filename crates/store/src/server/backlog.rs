//! What waits for user code, and whom that holds up.
//!
//! Merges by user code are done one after the other ([`super::after`]), and pushes may come faster. A push that comes
//! while others wait for the code is taken, and its request is *parked*: it keeps its place in its worker's window, and
//! slices are not yet said to be taken. So a worker that is too fast is held up by its window, as by any service that
//! has not begun, and slices of more importance still leave before those that wait at the worker.
//!
//! A request is parked until as many merges have begun as waited when it came, whosever they are. Each of them waits
//! for nothing but the code, so it begins; and nobody is parked for longer because others go on pushing. Rounds that
//! wait for other workers are not counted: a worker that is held up for them would wait for those who wait for it.

use sheave_mesh::{Room, TypedReply};
use std::collections::VecDeque;

/// The merges of one store that wait for user code.
#[derive(Default)]
pub(super) struct Backlog {
    /// Merges that ever had to wait.
    enqueued: u64,
    /// Those that wait now.
    waiting: u64,
    /// By how many must have begun. In order, which each follows at the latest with the one after it.
    parked: VecDeque<(u64, Parked)>,
}

/// A request that is taken, and may not say so yet.
pub(super) struct Parked {
    pub(super) room: Room,
    pub(super) reply: Option<TypedReply<()>>,
}

impl Parked {
    /// Lets its worker go on. With no lock held.
    pub(super) fn release(self) {
        drop(self.room);
        if let Some(reply) = self.reply {
            reply.ok(&());
        }
    }
}

impl Backlog {
    /// Notes that of the merges that can wait, `before` did and now `now` do.
    pub(super) fn changed(&mut self, before: usize, now: usize) {
        self.enqueued += now.saturating_sub(before) as u64;
        self.waiting = (self.waiting + now as u64).saturating_sub(before as u64);
    }

    /// Takes a request that has pushed something. It is due at once if nothing waits.
    pub(super) fn park(&mut self, parked: Parked) {
        self.parked.push_back((self.enqueued, parked));
    }

    /// Takes those out that have waited long enough.
    pub(super) fn take_due(&mut self) -> Vec<Parked> {
        let begun = self.enqueued - self.waiting;
        let due = self.parked.iter().take_while(|(after, _)| *after <= begun).count();
        self.parked.drain(..due).map(|(_, parked)| parked).collect()
    }
}
