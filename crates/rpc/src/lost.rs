//! Keys whose owners have died, as an index remembers them.

use crate::entry::EntryName;
use sheave_base::collections::HashMap;
use sheave_base::{NodeId, limits};
use std::collections::BTreeMap;

/// Keys that were lost with their owners, at most [`limits::RPC_LOST_MAX`] of them: the oldest are forgotten.
#[derive(Default)]
pub(crate) struct Lost {
    /// By key, the owner that died with it, and when that was, as a number.
    owners: HashMap<EntryName, (NodeId, u64)>,
    order: BTreeMap<u64, EntryName>,
    count: u64,
}

impl Lost {
    /// The owner that died with this key.
    pub(crate) fn owner(&self, entry: &EntryName) -> Option<NodeId> {
        self.owners.get(entry).map(|(owner, _)| *owner)
    }

    /// A member has died with this key.
    pub(crate) fn note(&mut self, entry: EntryName, owner: NodeId) {
        self.forget(&entry);
        if self.owners.len() >= limits::RPC_LOST_MAX
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.owners.remove(&oldest);
        }
        self.count += 1;
        self.order.insert(self.count, entry.clone());
        self.owners.insert(entry, (owner, self.count));
    }

    /// The key has another owner.
    pub(crate) fn forget(&mut self, entry: &EntryName) {
        if let Some((_, number)) = self.owners.remove(entry) {
            self.order.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Sort;
    use sheave_wire::Value;

    #[test]
    fn the_oldest_are_forgotten() {
        let entry = |key: usize| EntryName::new(Sort::Value, &Value::Int(key as i64)).expect("a key");
        let mut lost = Lost::default();
        (0..limits::RPC_LOST_MAX).for_each(|key| lost.note(entry(key), NodeId(1)));
        lost.forget(&entry(7));
        // The first is lost again, and so the second is the oldest.
        lost.note(entry(0), NodeId(2));
        lost.note(entry(limits::RPC_LOST_MAX), NodeId(1));
        assert_eq!(lost.owner(&entry(1)), Some(NodeId(1)), "there was room for one");
        lost.note(entry(7), NodeId(3));
        assert_eq!((lost.owner(&entry(0)), lost.owner(&entry(1))), (Some(NodeId(2)), None));
        assert_eq!(lost.owner(&entry(7)), Some(NodeId(3)));
        assert_eq!((lost.owners.len(), lost.order.len()), (limits::RPC_LOST_MAX, limits::RPC_LOST_MAX));
    }
}
