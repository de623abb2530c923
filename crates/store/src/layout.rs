//! Where a key's elements are, and how pieces of many keys travel in one message.
//!
//! A tensor of fewer than `cut_elements` elements lives whole on the server that its key's number picks; a larger one
//! is cut into as many even slices as there are servers. Every node computes this alone, from the same numbers.
//!
//! In a message small pieces are packed into one tensor of bytes, each at a multiple of [`ALIGN_BYTES`], and every
//! other piece is a tensor of its own; so 10,000 small keys are one message with one tensor.

use crate::protocol::Piece;
use sheave_base::{Error, ErrorKind, Result};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// Pieces below this size are packed: about where a copy costs as much as a tensor of its own.
pub(crate) const PACKED_BELOW_BYTES: u64 = 16 << 10;

/// Enough for every element type.
const ALIGN_BYTES: u64 = 16;

/// Most bytes of packed pieces in one message.
pub(crate) const PACKED_BYTES_MAX: u64 = 32 << 20;

/// Most pieces in one message; its head stays far below the limit of a control part.
pub(crate) const PIECES_MAX: usize = 65_536;

/// Most tensors of one message, the packed one included.
pub(crate) const PARTS_MAX: usize = 1024;

/// Most keys that one message describes: with names and shapes of any length they fit in a control part.
pub(crate) const KEYS_MAX: usize = 8192;

/// Most bytes of one answer, unless it is a single piece: what a request may make a server copy at once.
pub(crate) const ANSWER_BYTES_MAX: u64 = 1 << 30;

/// The server and the elements of each piece of a tensor.
pub(crate) fn cut(number: u64, elements: u64, servers: usize, cut_elements: u64) -> SmallVec<[(usize, Range<u64>); 2]> {
    let count = servers as u64;
    if servers < 2 || elements < cut_elements.max(count) {
        return smallvec![((number % count.max(1)) as usize, 0..elements)];
    }
    let border = |server: u64| (u128::from(elements) * u128::from(server) / u128::from(count)) as u64;
    (0..count).map(|server| (server as usize, border(server)..border(server + 1))).collect()
}

/// Where a piece is in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// In the packed tensor, which is part 0, at this byte.
    Packed(u64),
    /// The part of this index.
    Part(usize),
}

/// Where the pieces of a message are, how many bytes are packed, and how many parts there are.
pub(crate) struct Layout {
    pub(crate) spots: Vec<Spot>,
    pub(crate) packed_bytes: u64,
    pub(crate) parts: usize,
}

impl Layout {
    /// # Errors
    ///
    /// `Protocol` for more or larger pieces than this crate ever puts in one message.
    pub(crate) fn of(pieces: &[Piece]) -> Result<Self> {
        if pieces.len() > PIECES_MAX {
            return Err(Error::new(ErrorKind::Protocol, format!("{} pieces in one message", pieces.len())));
        }
        let mut packed_bytes = 0u64;
        let mut parts = usize::from(pieces.iter().any(|piece| piece.packed));
        let mut spots = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if !piece.packed {
                spots.push(Spot::Part(parts));
                parts += 1;
                continue;
            }
            spots.push(Spot::Packed(packed_bytes));
            let len_bytes = padded(piece.len_bytes).filter(|len_bytes| *len_bytes <= PACKED_BELOW_BYTES);
            // The sum cannot overflow: pieces are few and small.
            packed_bytes += len_bytes.ok_or_else(|| Error::new(ErrorKind::Protocol, "a packed piece that is large"))?;
        }
        if packed_bytes > PACKED_BYTES_MAX + PACKED_BELOW_BYTES || parts > PARTS_MAX {
            let what = format!("a message of {parts} tensors with {packed_bytes} packed bytes");
            return Err(Error::new(ErrorKind::Protocol, what));
        }
        Ok(Self { spots, packed_bytes, parts })
    }
}

/// The length that a packed piece takes up.
pub(crate) fn padded(len_bytes: u64) -> Option<u64> {
    len_bytes.checked_next_multiple_of(ALIGN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slices_cover_every_element_once_and_are_even(
            number in any::<u64>(), elements in 0u64..1 << 40, servers in 1usize..64, bound in 1u64..1 << 41,
        ) {
            let pieces = cut(number, elements, servers, bound);
            let mut next = 0;
            for (server, range) in &pieces {
                prop_assert!(*server < servers);
                prop_assert_eq!(range.start, next);
                next = range.end;
            }
            prop_assert_eq!(next, elements);
            let lengths: Vec<u64> = pieces.iter().map(|(_, range)| range.end - range.start).collect();
            prop_assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1);
            prop_assert_eq!(pieces.len() > 1, servers > 1 && elements >= bound.max(servers as u64));
        }

        #[test]
        fn packed_pieces_do_not_overlap(lengths in proptest::collection::vec((0u64..100_000, any::<bool>()), 0..50)) {
            let piece = |(len_bytes, packed): &(u64, bool)| {
                let len_bytes = if *packed { len_bytes % PACKED_BELOW_BYTES } else { *len_bytes };
                Piece { number: 0, len_bytes, packed: *packed }
            };
            let pieces: Vec<Piece> = lengths.iter().map(piece).collect();
            let layout = Layout::of(&pieces).unwrap();
            let mut end = 0;
            let mut parts = Vec::new();
            for (piece, spot) in pieces.iter().zip(&layout.spots) {
                match spot {
                    Spot::Packed(at) => {
                        prop_assert!(piece.packed && *at >= end && at % ALIGN_BYTES == 0);
                        end = at + piece.len_bytes;
                    }
                    Spot::Part(index) => parts.push(*index),
                }
            }
            prop_assert!(end <= layout.packed_bytes);
            let first = usize::from(pieces.iter().any(|piece| piece.packed));
            prop_assert!(parts.iter().copied().eq(first..layout.parts));
        }
    }

    #[test]
    fn small_keys_are_spread() {
        let mut counts = [0; 4];
        for key in 0..10_000i64 {
            let number = crate::key::Key::from(key).number();
            counts[cut(number, 16, 4, 1_000_000)[0].0] += 1;
        }
        assert!(counts.iter().all(|count| (2_200..2_800).contains(count)), "{counts:?}");
    }
}
