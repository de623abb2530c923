//! Links that are made because there are words for a node: one at a time for each, so often, and no more.
//!
//! A member that cannot be reached is soon known to be gone, and its words go with it. One that lives for the others
//! and not for this node is tried again after pauses that grow, and then left alone; what there is to tell it stays,
//! one entry for each thing, and goes with the next message to it if there ever is one.

use super::table::References;
use sheave_base::clock::Time;
use sheave_base::{NodeId, limits};
use std::time::Duration;

/// The first pause; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(10);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What is known of the making of a link for words.
#[derive(Default)]
pub(super) struct Linking {
    is_making: bool,
    failures: u32,
    paused_until: Time,
}

/// What comes after a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It is tried again after this.
    Pause(Duration),
    /// It is not tried any more.
    GiveUp,
}

impl References {
    /// Whether a link to that node is to be made now.
    pub(super) fn begins_linking(&self, to: NodeId, now: Time) -> bool {
        let is_foreign = self.members.get().is_some_and(|members| !self.knows(members, to));
        let mut tables = self.tables.lock();
        if tables.is_deaf(to) || is_foreign {
            return false;
        }
        let linking = tables.linking.entry(to).or_default();
        if linking.is_making || now < linking.paused_until || linking.failures >= limits::REFERENCE_LINK_TRIES {
            return false;
        }
        linking.is_making = true;
        true
    }

    /// A link stands, or words were sent over one.
    pub(super) fn linked(&self, to: NodeId) {
        self.tables.lock().linking.remove(&to);
    }

    /// A link could not be made, or takes no words.
    pub(super) fn linking_failed(&self, to: NodeId, now: Time) -> Next {
        let mut tables = self.tables.lock();
        if tables.is_deaf(to) {
            return Next::GiveUp;
        }
        let linking = tables.linking.entry(to).or_default();
        linking.is_making = false;
        let pause = PAUSE_MAX.min(PAUSE * 2_u32.saturating_pow(linking.failures));
        linking.failures += 1;
        linking.paused_until = now.after(pause);
        if linking.failures < limits::REFERENCE_LINK_TRIES { Next::Pause(pause) } else { Next::GiveUp }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Name, Word};
    use super::*;
    use std::sync::Weak;

    /// A member to which no link can be made is tried so often, with growing pauses, and left alone.
    #[test]
    fn f17_links_for_words_are_tried_so_often_and_no_more() {
        let (me, other) = (NodeId(1), NodeId(2));
        let references = References::new(me, Weak::new());
        references.joined([me, other]);
        references.tables.lock().say(other, Word::Release { id: 4, counts: 1 });
        let (mut now, mut tries, mut spent) = (Time(0), 0, Duration::ZERO);
        for _ in 0..10_000 {
            if references.begins_linking(other, now) {
                assert!(!references.begins_linking(other, now), "one at a time");
                tries += 1;
                match references.linking_failed(other, now) {
                    Next::Pause(pause) => spent += pause,
                    Next::GiveUp => assert_eq!(tries, limits::REFERENCE_LINK_TRIES),
                }
            }
            now = now.after(Duration::from_millis(10));
        }
        assert_eq!(tries, limits::REFERENCE_LINK_TRIES);
        assert!(spent > Duration::from_secs(1) && spent < Duration::from_secs(30), "{spent:?}");
        assert!(
            references.has_words_for(other, 1) || references.begin_flush() == [other],
            "what there is to say stays"
        );
        // A link that comes to be by other means begins it anew.
        references.linked(other);
        assert!(references.begins_linking(other, now));
        assert!(references.find(Name { owner: other, id: 4 }).is_err());
    }

    #[test]
    fn f17_nobody_else_is_ever_connected_to() {
        let (me, stranger) = (NodeId(1), NodeId(9));
        let references = References::new(me, Weak::new());
        references.joined([me, NodeId(2)]);
        assert!(!references.begins_linking(stranger, Time(0)));
        references.lost(NodeId(2));
        assert!(!references.begins_linking(NodeId(2), Time(0)), "nor to who is gone");
        assert_eq!(references.tables.lock().linking.len(), 0, "nothing is kept");
    }
}
