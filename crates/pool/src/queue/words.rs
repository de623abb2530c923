//! Two words that the home of a queue shares with one of its ends.
//!
//! The first is the [`Turn`] of what the end was given: which items it may take, and which it has taken. The second is
//! the end's own: below that number it holds nothing any more. They lie in the arena of the home, whose memory the end
//! reaches; so an item is taken, or taken back from an end, without a message, and both stay known in whatever way the
//! end's process ends.
//!
//! What arrives may be a copy, where a node has lent all that it may. So the end writes [`KNOCK`] first, and the home
//! looks whether it sees that.

use crate::turn::Turn;
use sheave_base::{NodeId, Result};
use sheave_mesh::Mesh;
use sheave_net::{Medium, Part};
#[cfg(not(feature = "simulated"))]
use sheave_tensor::Dtype;
use sheave_tensor::{Mode, Tensor};
#[cfg(any(test, feature = "simulated"))]
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// What an end writes to see whether its home reads it. No count begins there.
const KNOCK: u64 = u64::from_le_bytes(*b"sheave q");

/// A line of the cache, which nothing else is on.
#[cfg(not(feature = "simulated"))]
const BYTES: u64 = 64;

/// The words, of either side.
#[derive(Clone, Debug)]
pub(crate) struct Words(Memory);

#[derive(Clone, Debug)]
enum Memory {
    #[cfg_attr(feature = "simulated", expect(dead_code, reason = "a simulation has none"))]
    Lent(Tensor),
    #[cfg(any(test, feature = "simulated"))]
    Here(Arc<[AtomicU64; 2]>),
}

#[cfg(not(feature = "simulated"))]
impl Words {
    /// Words in the arena of this node, and how they are sent to an end on that one; nothing if it does not reach them.
    pub(super) fn of(mesh: &Mesh, end: NodeId) -> Result<Option<(Self, Part)>> {
        if !reaches(mesh, end) {
            return Ok(None);
        }
        let tensor = Tensor::empty(mesh.node().arena(), Dtype::U8, [BYTES])?;
        tensor.overwrite(&[0; BYTES as usize], "queue")?;
        tensor.buffer().share()?;
        Ok(Some((Self(Memory::Lent(tensor.clone())), Part::new(tensor, Mode::Share))))
    }

    /// The words that have arrived.
    pub(super) fn arrived(tensor: &Tensor) -> Result<Self> {
        if tensor.len_bytes() < BYTES as usize || !(tensor.ptr() as usize).is_multiple_of(align_of::<AtomicU64>()) {
            return Err(super::protocol::unreadable());
        }
        Ok(Self(Memory::Lent(tensor.clone())))
    }
}

/// Words of processes that are threads of one, by a number that is sent in place of their memory.
#[cfg(feature = "simulated")]
impl Words {
    pub(super) fn of(_: &Mesh, end: NodeId) -> Result<Option<(Self, Part)>> {
        // Some are far away.
        if end.0.is_multiple_of(4) {
            return Ok(None);
        }
        let words: Arc<[AtomicU64; 2]> = Arc::default();
        let mut known = KNOWN.lock();
        known.push(Arc::clone(&words));
        let tensor = Tensor::from_slice(&[known.len() as u64 - 1], [1])?;
        Ok(Some((Self(Memory::Here(words)), Part::new(tensor, Mode::Copy))))
    }

    pub(super) fn arrived(tensor: &Tensor) -> Result<Self> {
        let number = tensor.to_vec::<u64>()?.first().copied().unwrap_or(u64::MAX);
        let words = KNOWN.lock().get(number as usize).cloned();
        words.map(|words| Self(Memory::Here(words))).ok_or_else(super::protocol::unreadable)
    }
}

#[cfg(feature = "simulated")]
static KNOWN: parking_lot::Mutex<Vec<Arc<[AtomicU64; 2]>>> = parking_lot::Mutex::new(Vec::new());

/// Whether memory of this node can be shared with that one.
pub(super) fn reaches(mesh: &Mesh, node: NodeId) -> bool {
    let link = mesh.link_to(node).and_then(|link| mesh.node().link(link));
    link.is_ok_and(|link| link.medium() != Medium::Tcp)
}

impl Words {
    #[cfg(test)]
    pub(crate) fn here() -> Self {
        Self(Memory::Here(Arc::default()))
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        match &self.0 {
            // SAFETY: the tensor has `BYTES` bytes, of which these are eight of the first sixteen, and is aligned, as
            // was checked where it was made. It lives as long as `self`. Nobody makes a reference to its elements: it
            // is kept by this module alone, on both sides, and the peer changes it by atomic instructions or, if it
            // breaks the protocol, as plain bytes of a shared mapping, which atomic loads and stores tolerate.
            Memory::Lent(tensor) => unsafe { &*tensor.ptr().cast::<AtomicU64>().add(at.min(1)) },
            #[cfg(any(test, feature = "simulated"))]
            Memory::Here(words) => &words[at.min(1)],
        }
    }

    /// The first word.
    pub(crate) fn turn_word(&self) -> &AtomicU64 {
        self.word(0)
    }

    /// Which items the end may take.
    pub(crate) fn turn(&self) -> Turn {
        Turn::on(self.clone())
    }

    pub(crate) fn knock(&self) {
        self.word(1).store(KNOCK, SeqCst);
    }

    /// Whether the other side was heard to knock; it has settled nothing from then on.
    pub(crate) fn answer_knock(&self) -> bool {
        self.word(1).compare_exchange(KNOCK, 0, SeqCst, SeqCst).is_ok()
    }

    /// Says that nothing below this number is held any more.
    pub(crate) fn settle(&self, number: u32) {
        self.word(1).store(number.into(), SeqCst);
    }

    /// The number below which nothing is held.
    pub(crate) fn settled(&self) -> u32 {
        self.word(1).load(SeqCst) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::ErrorKind;

    #[test]
    fn a_knock_is_answered_once() {
        let words = Words::here();
        assert!(!words.answer_knock());
        words.knock();
        assert!(words.answer_knock() && !words.answer_knock());
        words.settle(7);
        assert_eq!((words.settled(), words.turn().begun()), (7, 0));
    }

    #[cfg(not(feature = "simulated"))]
    #[test]
    fn what_is_too_short_is_refused() {
        let short = Tensor::from_slice(&[0_u8; 8], [8]).expect("memory");
        assert_eq!(Words::arrived(&short).map(drop).map_err(|error| error.kind()), Err(ErrorKind::Protocol));
    }
}
