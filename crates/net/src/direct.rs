//! The short way of a receive: the caller takes the next message of a link itself, without a work and without a match.
//!
//! It is open while nothing waits in the matcher and nobody leads the node's waiting. Then the oldest message that the
//! link will bring is the first that can fit, and the receive is the first that it can meet; the poll token, which the
//! link holds while it looks, keeps it so. Nothing else is touched: no link is disarmed, so none has to be settled, and
//! a leader that comes meanwhile arms the link and looks at it as ever. Whatever is not a small message for just this
//! receive stays where it is, and the receive goes the long way.

use crate::drive::BRIEF_ROUNDS;
use crate::intake::Intake;
use crate::matching::Wanted;
use crate::message::{Envelope, Tensors};
use crate::node::Inner;
use std::sync::atomic::Ordering::SeqCst;

impl Inner {
    /// Envelope and number of the next message of the wanted link, if it comes at once and is small; its tensor is then
    /// in `places`, which else do not change.
    pub(crate) fn take_at_once(&self, wanted: &Wanted, places: &mut Tensors) -> Option<(Envelope, u64)> {
        self.fork.check("node").ok()?;
        let entry = self.links.told(wanted.source?).ok()?;
        if self.progress.is_led() || self.links.paused.load(SeqCst) > 0 {
            return None;
        }
        self.progress.note_activity();
        let rounds = if self.patience.may_keep() { BRIEF_ROUNDS } else { 1 };
        entry.link.take(&Intake::new(self, &entry), wanted, places, rounds)
    }
}
