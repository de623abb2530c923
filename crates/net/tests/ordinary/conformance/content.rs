//! Tensors whose every byte says where it belongs.

use sheave_base::LinkId;
use sheave_base::Tag;
use sheave_base::clock::{Entropy, SeededEntropy};
use sheave_net::{Envelope, Message, Outgoing, Part, Tensors, Wanted};
use sheave_tensor::{Arena, Dtype, Mode, Tensor};
use smallvec::SmallVec;

fn word(seed: u64, at: u64) -> u64 {
    (at ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29)
}

/// Writes the pattern of `seed`.
pub(crate) fn fill(bytes: &mut [u8], seed: u64) {
    let (words, rest) = bytes.as_chunks_mut();
    for (at, chunk) in words.iter_mut().enumerate() {
        *chunk = word(seed, at as u64).to_le_bytes();
    }
    let last = word(seed, words.len() as u64).to_le_bytes();
    rest.copy_from_slice(&last[..rest.len()]);
}

fn first_wrong(bytes: &[u8], seed: u64) -> Option<usize> {
    let (words, rest) = bytes.as_chunks();
    let wrong = |(at, chunk): &(usize, &[u8; 8])| **chunk != word(seed, *at as u64).to_le_bytes();
    let among_words = words.iter().enumerate().find(wrong).map(|(at, _)| at * 8);
    let last = word(seed, words.len() as u64).to_le_bytes();
    among_words.or_else(|| (*rest != last[..rest.len()]).then_some(words.len() * 8))
}

/// Fails unless `tensor` has that length and the pattern of `seed`.
#[track_caller]
pub(crate) fn check(tensor: &Tensor, length_bytes: usize, seed: u64) {
    assert_eq!(tensor.len_bytes(), length_bytes, "length of message {seed}");
    let bytes = tensor.bytes().expect("nobody writes it");
    assert_eq!(first_wrong(&bytes, seed), None, "first wrong byte of message {seed}");
}

/// A private tensor of bytes with the pattern of `seed`.
pub(crate) fn private(length_bytes: usize, seed: u64) -> Tensor {
    let mut tensor = Tensor::private(Dtype::U8, [length_bytes as u64]).expect("memory");
    fill(tensor.bytes_mut().expect("the only handle"), seed);
    tensor
}

/// A tensor of bytes in an arena with the pattern of `seed`.
pub(crate) fn in_arena(arena: &Arena, length_bytes: usize, seed: u64) -> Tensor {
    let mut tensor = Tensor::empty(arena, Dtype::U8, [length_bytes as u64]).expect("room in the arena");
    fill(tensor.bytes_mut().expect("the only handle"), seed);
    tensor
}

/// An empty place for so many bytes.
pub(crate) fn place(length_bytes: usize) -> Tensor {
    let mut tensor = Tensor::private(Dtype::U8, [length_bytes as u64]).expect("memory");
    tensor.bytes_mut().expect("the only handle").fill(0xee);
    tensor
}

/// A message of one tensor.
pub(crate) fn message(tag: u64, tensor: Tensor, mode: Mode) -> Outgoing {
    Outgoing::tensor(Envelope::data(0, Tag(tag)), tensor, mode)
}

/// A message of several tensors, by copy.
pub(crate) fn message_of(tag: u64, tensors: impl IntoIterator<Item = Tensor>, control: Vec<u8>) -> Outgoing {
    let parts = tensors.into_iter().map(|tensor| Part::new(tensor, Mode::Copy)).collect();
    Outgoing { envelope: Envelope::data(0, Tag(tag)), control, parts }
}

/// A receive of `tag` in context 0.
pub(crate) fn wanted(source: Option<LinkId>, tag: u64) -> Wanted {
    Wanted { source, context: 0, tag: Tag(tag) }
}

/// No places.
pub(crate) fn anywhere() -> Tensors {
    SmallVec::new()
}

/// One place.
pub(crate) fn at(place: &Tensor) -> Tensors {
    SmallVec::from_iter([place.clone()])
}

/// The only tensor of a message.
#[track_caller]
pub(crate) fn only(message: &Message) -> &Tensor {
    assert_eq!(message.parts.len(), 1);
    &message.parts[0]
}

/// Lengths as traffic has them: mostly small, a few that take every way through a link.
pub(crate) struct Lengths(SeededEntropy);

impl Lengths {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SeededEntropy::new(seed))
    }
}

impl Iterator for Lengths {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let most = match self.0.next_u64() % 1000 {
            0 => 2_000_000,
            1..=10 => 300_000,
            11..=100 => 20_000,
            _ => 1_500,
        };
        Some(self.0.below(most + 1) as usize)
    }
}
