//! Which of the names that one node has drawn its owner has heard of from that node: each of them once, in any order.
//!
//! Kept as ranges. A gap is a name that the node holds and has not used yet, and it has a limit of those; so the
//! ranges of a node that keeps to it are few, however many names it draws.

use std::collections::BTreeMap;

/// The first and the last number of each range.
#[derive(Default)]
pub(super) struct Announced(BTreeMap<u64, u64>);

impl Announced {
    pub(super) fn contains(&self, number: u64) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, last)| number <= *last)
    }

    /// Whether this is the number behind the last one.
    pub(super) fn follows(&self, number: u64) -> bool {
        self.0.last_key_value().is_some_and(|(_, last)| last.checked_add(1) == Some(number))
    }

    /// Adds a number. False if it was there.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        // Most come one behind the other.
        if let Some(mut last) = self.0.last_entry()
            && last.get().checked_add(1) == Some(number)
        {
            *last.get_mut() = number;
            return true;
        }
        if self.contains(number) {
            return false;
        }
        let (mut first, mut last) = (number, number);
        let before = self.0.range(..number).next_back().map(|(first, last)| (*first, *last));
        if let Some((start, _)) = before.filter(|(_, end)| end.checked_add(1) == Some(number)) {
            first = start;
        }
        if let Some(end) = number.checked_add(1).and_then(|next| self.0.remove(&next)) {
            last = end;
        }
        self.0.insert(first, last);
        true
    }

    /// How many ranges there are.
    pub(super) fn ranges(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn it_is_a_set_that_joins_neighbours() {
        let (mut announced, mut model, mut random) = (Announced::default(), HashSet::new(), 7u64);
        for _ in 0..5000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = random >> 33 & 1023;
            assert_eq!(announced.contains(number), model.contains(&number));
            assert_eq!(announced.insert(number), model.insert(number));
            let starts = model.iter().filter(|number| **number == 0 || !model.contains(&(**number - 1))).count();
            assert_eq!(announced.ranges(), starts);
        }
        assert!(model.len() > 900);
        let mut ends = Announced::default();
        assert!(ends.insert(u64::MAX) && ends.insert(0) && !ends.insert(u64::MAX) && ends.ranges() == 2);
    }
}
