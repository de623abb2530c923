//! Who holds an object: other nodes, and how often each.

use sheave_base::NodeId;
use smallvec::SmallVec;

/// Counts by holder, in the order of their names. Most objects have one holder, for which nothing is allocated.
#[derive(Default)]
pub(super) struct Holders(SmallVec<[(NodeId, u64); 1]>);

impl Holders {
    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, holder: NodeId) -> bool {
        self.place(holder).is_ok()
    }

    /// Adds counts of a holder.
    pub(super) fn count(&mut self, holder: NodeId, times: u64) {
        match self.place(holder) {
            Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(times),
            Err(at) => self.0.insert(at, (holder, times)),
        }
    }

    /// Takes counts of a holder back, who is none without any.
    pub(super) fn uncount(&mut self, holder: NodeId, times: u64) {
        let Ok(at) = self.place(holder) else { return };
        self.0[at].1 = self.0[at].1.saturating_sub(times);
        if self.0[at].1 == 0 {
            self.0.remove(at);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    fn place(&self, holder: NodeId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&holder, |(node, _)| *node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_counted_each_for_itself() {
        let (one, two, three) = (NodeId(1), NodeId(2), NodeId(3));
        let mut holders = Holders::default();
        holders.count(two, 2);
        holders.count(one, 1);
        holders.count(two, u64::MAX);
        assert_eq!((holders.len(), holders.contains(one), holders.contains(three)), (2, true, false));
        holders.uncount(three, 1);
        holders.uncount(one, 1);
        holders.uncount(two, u64::MAX - 1);
        assert_eq!((holders.len(), holders.contains(two)), (1, true));
        holders.uncount(two, 7);
        assert!(holders.is_empty());
    }
}
