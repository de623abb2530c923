//! What waits for the engine of a mesh.

use sheave_base::limits::{ENGINE_WORDS_BYTES_MAX, ENGINE_WORDS_MAX};
use sheave_base::{Error, LinkId, NodeId};
use std::collections::VecDeque;

/// What happened on the links, for the engine.
pub(crate) enum Told {
    Made {
        link: LinkId,
        node: NodeId,
    },
    Ended {
        link: LinkId,
        node: NodeId,
        reason: Error,
    },
    Word {
        from: NodeId,
        word: Vec<u8>,
    },
    Unreachable {
        node: NodeId,
        reason: Error,
    },
    /// This node lacks descriptors, threads or memory.
    Short(Error),
    /// The coordinator of the rendezvous answers at this end.
    Reached(NodeId),
    /// A stranger was turned away.
    Turned(String),
}

impl Told {
    /// Bytes of what a peer has said.
    fn bytes(&self) -> usize {
        match self {
            Self::Word { word, .. } => word.len(),
            _ => 0,
        }
    }
}

/// What was told and not handled yet. Words are bounded, in number and in bytes; all else there is once for a link.
#[derive(Default)]
pub(crate) struct ToldQueue {
    waiting: VecDeque<Told>,
    bytes: usize,
}

impl ToldQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a word of so many bytes may come in. A single longer one may where no other waits.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let fits = self.bytes == 0 || self.bytes.saturating_add(bytes) <= ENGINE_WORDS_BYTES_MAX;
        fits && self.waiting.len() < ENGINE_WORDS_MAX
    }

    pub(crate) fn push(&mut self, told: Told) {
        self.bytes += told.bytes();
        self.waiting.push_back(told);
    }

    pub(crate) fn pop(&mut self) -> Option<Told> {
        let told = self.waiting.pop_front()?;
        self.bytes -= told.bytes();
        Some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::limits::CONTROL_BYTES_MAX;

    /// How many words of so many bytes there is room for.
    fn fill(queue: &mut ToldQueue, bytes: usize) -> usize {
        let mut count = 0;
        while queue.has_room(bytes) && count <= ENGINE_WORDS_MAX {
            queue.push(Told::Word { from: NodeId(1), word: vec![0; bytes] });
            count += 1;
        }
        count
    }

    #[test]
    fn f15_words_for_the_engine_are_bounded_in_bytes_and_in_number() {
        let mut queue = ToldQueue::default();
        let most = ENGINE_WORDS_BYTES_MAX / CONTROL_BYTES_MAX;
        assert_eq!(fill(&mut queue, CONTROL_BYTES_MAX), most);
        assert!(queue.has_room(0) && queue.pop().is_some());
        assert_eq!(fill(&mut queue, CONTROL_BYTES_MAX), 1);
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), most);
        assert_eq!(fill(&mut queue, 40), ENGINE_WORDS_MAX);
    }
}
