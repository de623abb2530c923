//! What a node has to tell another one about references, until it goes: one entry for each thing, however often it is
//! said.
//!
//! **Order.** A word that takes something back (`Release`) must not be heard before one that gives it (`Count`), and is
//! always taken out last. All other words commute: a count is added, a confirmation is one of many that are alike, and
//! the rest says what is so for ever. So words of one kind may be joined, and may be put back.

use super::words::{Cause, Word};
use sheave_base::NodeId;
use sheave_base::planted::{self, Bug};
use std::collections::{BTreeMap, BTreeSet};

/// How many other words one that carries a reason may be as long as.
const BROKEN_WEIGHT: usize = 256;

#[derive(Default)]
pub(super) struct Outbox {
    /// By object and giver.
    counts: BTreeMap<(u64, NodeId), u64>,
    /// By holder, owner and object.
    confirms: BTreeMap<(NodeId, NodeId, u64), u64>,
    gone: BTreeSet<u64>,
    broken: BTreeMap<u64, Cause>,
    releases: BTreeMap<u64, u64>,
}

impl Outbox {
    pub(super) fn len(&self) -> usize {
        self.counts.len() + self.confirms.len() + self.gone.len() + self.broken.len() + self.releases.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn say(&mut self, word: Word) {
        let more = |count: &mut u64, times| *count = count.saturating_add(times);
        match word {
            Word::Count { id, giver, times } => more(self.counts.entry((id, giver)).or_default(), times),
            Word::Confirm { holder, owner, id, times } => {
                more(self.confirms.entry((holder, owner, id)).or_default(), times);
            }
            Word::Gone { id } => drop(self.gone.insert(id)),
            // The first one counts.
            Word::Broken { id, cause } => drop(self.broken.entry(id).or_insert(cause)),
            Word::Release { .. } if planted::strikes(Bug::ReleaseLost) => {}
            Word::Release { id, counts } => more(self.releases.entry(id).or_default(), counts),
        }
    }

    /// Takes out what would ask for counts of this object, `most` of them: its givers, and how often. What is left is
    /// for a hold that was made when the one that ends had been let go.
    pub(super) fn take_counts(&mut self, id: u64, most: u64) -> Vec<(NodeId, u64)> {
        let (mut taken, mut left) = (Vec::new(), most);
        for ((_, giver), times) in self.counts.range_mut((id, NodeId(0))..=(id, NodeId(u64::MAX))) {
            let now = left.min(*times);
            if now > 0 {
                (*times, left) = (*times - now, left - now);
                taken.push((*giver, now));
            }
        }
        for (giver, _) in &taken {
            if self.counts.get(&(id, *giver)) == Some(&0) {
                self.counts.remove(&(id, *giver));
            }
        }
        taken
    }

    /// Takes out so many words, or all, those that give before those that take back. One with a reason counts for as
    /// many as are as long.
    pub(super) fn take(&mut self, most: usize) -> Vec<Word> {
        let mut words = Vec::with_capacity(most.min(self.len()));
        let mut weight = 0;
        let gives = self.len() - self.releases.len();
        if gives == 0 && self.releases.len() <= most {
            let releases = std::mem::take(&mut self.releases);
            words.extend(releases.into_iter().map(|(id, counts)| Word::Release { id, counts }));
            return words;
        }
        while weight < most
            && let Some(word) = self.next()
        {
            weight += if matches!(word, Word::Broken { .. }) { BROKEN_WEIGHT } else { 1 };
            words.push(word);
        }
        words
    }

    fn next(&mut self) -> Option<Word> {
        if let Some(((id, giver), times)) = self.counts.pop_first() {
            return Some(Word::Count { id, giver, times });
        }
        if let Some(((holder, owner, id), times)) = self.confirms.pop_first() {
            return Some(Word::Confirm { holder, owner, id, times });
        }
        if let Some(id) = self.gone.pop_first() {
            return Some(Word::Gone { id });
        }
        if let Some((id, cause)) = self.broken.pop_first() {
            return Some(Word::Broken { id, cause });
        }
        self.releases.pop_first().map(|(id, counts)| Word::Release { id, counts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::ErrorKind;

    #[test]
    fn what_is_said_again_is_one_word_and_what_takes_back_comes_last() {
        let mut outbox = Outbox::default();
        let (one, two) = (NodeId(1), NodeId(2));
        for _ in 0..1000 {
            outbox.say(Word::Release { id: 8, counts: 2 });
            outbox.say(Word::Count { id: 8, giver: one, times: 1 });
            outbox.say(Word::Count { id: 8, giver: two, times: 1 });
            outbox.say(Word::Confirm { holder: one, owner: two, id: 4, times: 1 });
            outbox.say(Word::Gone { id: 12 });
            outbox.say(Word::Broken { id: 6, cause: Cause::new(ErrorKind::Cancelled, "first") });
            outbox.say(Word::Broken { id: 6, cause: Cause::new(ErrorKind::Closed, "second") });
        }
        assert_eq!(outbox.len(), 6);
        let words = outbox.take(999);
        let released = words.iter().position(|word| *word == Word::Release { id: 8, counts: 2000 });
        assert_eq!((words.len(), released), (6, Some(5)), "{words:?}");
        assert!(words.contains(&Word::Count { id: 8, giver: two, times: 1000 }), "{words:?}");
        assert!(words.contains(&Word::Broken { id: 6, cause: Cause::new(ErrorKind::Cancelled, "first") }), "{words:?}");
        assert!(outbox.is_empty());
        // Put back, some at a time.
        words.into_iter().for_each(|word| outbox.say(word));
        assert_eq!(outbox.take_counts(8, 1001), [(one, 1000), (two, 1)], "the rest is not of the one that ends");
        assert_eq!(outbox.take_counts(8, 1001), [(two, 999)]);
        assert_eq!((outbox.take(3).len(), outbox.take(3).len(), outbox.is_empty()), (3, 1, true));
    }
}
