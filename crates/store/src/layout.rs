//! Where a key's elements are, and how pieces of many keys travel in one message.
//!
//! A tensor of fewer than `cut_elements` elements lives whole on the server that its key's number picks, its home; a
//! larger one is cut into even ranges, one for each server from the home on. What a server has of a tensor is cut again
//! into slices of `slice_elements`, each of which is stored, merged and sent for itself. So an important slice can
//! overtake a big tensor, and a server works on what its cache still holds. Borders lie at multiples of
//! [`BLOCK_ELEMENTS`] where ranges are that long. Every node computes all this alone, from the same numbers.
//!
//! In a message small pieces are packed into one tensor of bytes, each at a multiple of [`ALIGN_BYTES`], and every
//! other piece is a tensor of its own; so 10,000 small keys are one message with one tensor.

use crate::protocol::Piece;
use serde::{Deserialize, Serialize};
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

/// Most slices of one key: those of 2^38 elements, as large as stores cut them by default. What is known of slices is
/// told and compared slice by slice.
pub(crate) const SLICES_MAX: u64 = 1 << 20;

/// Most slices that one store has on one server: some hundred bytes each, besides their elements.
pub(crate) const STORE_SLICES_MAX: usize = 1 << 22;

/// Elements between two possible borders of long ranges: those that an optimizer sums up at once when it needs a norm
/// ([`sheave_optim`]), so that no sum depends on how a tensor is cut.
pub(crate) const BLOCK_ELEMENTS: u64 = 4096;

/// How the tensors of a store are cut. All nodes of a job say the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cutting {
    pub(crate) servers: u32,
    pub(crate) cut_elements: u64,
    pub(crate) slice_elements: u64,
}

/// One slice of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// The rank of the server that has it.
    pub(crate) server: usize,
    /// Its own number; the first slice has the key's.
    pub(crate) number: u64,
    pub(crate) range: Range<u64>,
}

/// The slices of a tensor, in order.
pub(crate) type Slices = SmallVec<[Slice; 2]>;

impl Cutting {
    /// The server that has the first slice of a key.
    pub(crate) fn home(&self, number: u64) -> usize {
        (number % u64::from(self.servers.max(1))) as usize
    }

    /// The slices of a tensor.
    pub(crate) fn slices(&self, number: u64, elements: u64) -> Slices {
        let longest = self.longest();
        let mut slices = Slices::new();
        for (server, range) in self.ranges(number, elements) {
            let mut start = range.start;
            loop {
                let end = range.end.min(start.saturating_add(longest));
                slices.push(Slice { server, number: slice_number(number, slices.len() as u64), range: start..end });
                start = end;
                if start >= range.end {
                    break;
                }
            }
        }
        slices
    }

    /// Returns the elements of a slice that is not the last one of its server.
    fn longest(&self) -> u64 {
        match self.slice_elements.max(1) {
            longest if longest < BLOCK_ELEMENTS => longest,
            longest => longest - longest % BLOCK_ELEMENTS,
        }
    }

    /// Returns how many slices a tensor has, without making them: there may be more than memory has room for.
    pub(crate) fn count(&self, number: u64, elements: u64) -> u64 {
        let ranges = self.ranges(number, elements);
        let counts = ranges.iter().map(|(_, range)| (range.end - range.start).div_ceil(self.longest()).max(1));
        counts.fold(0, u64::saturating_add)
    }

    /// Returns the elements of one slice of a tensor, as [`Cutting::slices`] has them.
    pub(crate) fn slice(&self, number: u64, elements: u64, mut slice: u64) -> Option<Range<u64>> {
        let longest = self.longest();
        for (_, range) in self.ranges(number, elements) {
            let count = (range.end - range.start).div_ceil(longest).max(1);
            if slice < count {
                let start = range.start + slice * longest;
                return Some(start..range.end.min(start.saturating_add(longest)));
            }
            slice -= count;
        }
        None
    }

    /// What each server has of a tensor.
    fn ranges(&self, number: u64, elements: u64) -> Ranges {
        let grain = if elements / u64::from(self.servers.max(1)) >= BLOCK_ELEMENTS { BLOCK_ELEMENTS } else { 1 };
        self.spread(number, elements, elements >= self.cut_elements, grain)
    }

    /// The slices of a table of rows: one for each server, with borders between rows. The ranges are those of rows.
    pub(crate) fn row_slices(&self, number: u64, rows: u64, row_elements: u64) -> Slices {
        let is_cut = rows.saturating_mul(row_elements) >= self.cut_elements;
        let ranges = self.spread(number, rows, is_cut, 1).into_iter().enumerate();
        let slice = |(at, (server, range))| Slice { server, number: slice_number(number, at as u64), range };
        ranges.map(slice).collect()
    }

    /// Even ranges of so many things, one for each server from the home on, if they are cut and enough.
    fn spread(&self, number: u64, things: u64, is_cut: bool, grain: u64) -> Ranges {
        let (servers, home) = (u64::from(self.servers), self.home(number));
        if servers < 2 || things < servers || !is_cut {
            return smallvec![(home, 0..things)];
        }
        let border = |at: u64| match at == servers {
            true => things,
            false => (u128::from(things) * u128::from(at) / u128::from(servers)) as u64 / grain * grain,
        };
        (0..servers).map(|at| ((home + at as usize) % servers as usize, border(at)..border(at + 1))).collect()
    }
}

/// Servers, and what each of them has.
type Ranges = SmallVec<[(usize, Range<u64>); 2]>;

/// The number of a key's slice. That of one key may be that of another's slice, as two keys may have one number, and is
/// refused as that is.
pub(crate) fn slice_number(number: u64, slice: u64) -> u64 {
    number.wrapping_add(slice.wrapping_mul(0x9e37_79b9_7f4a_7c15))
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
    use crate::protocol::Form;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn slices_cover_every_element_once_and_are_even(
            number in any::<u64>(), elements in 0u64..1 << 24, servers in 1u32..64, bound in 1u64..1 << 25,
            longest in prop_oneof![1u64 << 14..1 << 30, (1u64 << 14..1 << 30).prop_map(|longest| longest * 2 + 1)],
        ) {
            let cutting = Cutting { servers, cut_elements: bound, slice_elements: longest };
            let slices = cutting.slices(number, elements);
            let mut next = 0;
            let mut shares = vec![0; servers as usize];
            for slice in &slices {
                prop_assert_eq!(slice.range.start, next);
                prop_assert!(slice.range.end - slice.range.start <= longest);
                shares[slice.server] += slice.range.end - slice.range.start;
                next = slice.range.end;
            }
            prop_assert_eq!(next, elements);
            prop_assert_eq!(slices.len() as u64, cutting.count(number, elements));
            for (at, slice) in slices.iter().enumerate() {
                prop_assert_eq!(cutting.slice(number, elements, at as u64), Some(slice.range.clone()));
            }
            prop_assert_eq!(cutting.slice(number, elements, slices.len() as u64), None);
            let numbers: HashSet<u64> = slices.iter().map(|slice| slice.number).collect();
            prop_assert!(numbers.len() == slices.len() && slices[0].number == number);
            prop_assert_eq!(slices[0].server, cutting.home(number));
            let is_cut = servers > 1 && elements >= bound.max(servers.into());
            let servers_used = shares.iter().filter(|share| **share > 0).count();
            prop_assert_eq!(servers_used, if is_cut { servers as usize } else { usize::from(elements > 0) });
            if is_cut {
                let is_long = elements / u64::from(servers) >= BLOCK_ELEMENTS;
                let unevenness = if is_long { 2 * BLOCK_ELEMENTS } else { 1 };
                prop_assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= unevenness);
                prop_assert!(!is_long || slices.iter().all(|slice| slice.range.start % BLOCK_ELEMENTS == 0));
            }
        }

        #[test]
        fn packed_pieces_do_not_overlap(lengths in proptest::collection::vec((0u64..100_000, any::<bool>()), 0..50)) {
            let piece = |(len_bytes, packed): &(u64, bool)| {
                let len_bytes = if *packed { len_bytes % PACKED_BELOW_BYTES } else { *len_bytes };
                Piece { number: 0, len_bytes, packed: *packed, form: Form::Plain }
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
            let cutting = Cutting { servers: 4, cut_elements: 1_000_000, slice_elements: 1 << 18 };
            counts[cutting.slices(number, 16)[0].server] += 1;
        }
        assert!(counts.iter().all(|count| (2_200..2_800).contains(count)), "{counts:?}");
    }

    #[test]
    fn defect_14_lengths_have_64_bits() {
        let elements = (3 << 40) + 5;
        let cutting = Cutting { servers: 3, cut_elements: 1, slice_elements: 1 << 33 };
        let slices = cutting.slices(7, elements);
        let borders: Vec<u64> = slices.iter().map(|slice| slice.range.end).collect();
        assert_eq!(slices.len(), 3 * 128 + 1);
        assert!(borders.is_sorted() && borders.last() == Some(&elements));
        assert!(slices.iter().all(|slice| slice.range.end - slice.range.start <= 1 << 33));
        let rows = cutting.row_slices(7, 3 << 40, 64);
        let borders: Vec<u64> = rows.iter().map(|slice| slice.range.end).collect();
        assert_eq!(borders, [1 << 40, 2 << 40, 3 << 40]);
        let piece = Piece { number: 7, len_bytes: 1 << 40, packed: false, form: Form::Plain };
        assert_eq!(Layout::of(&[piece, piece]).unwrap().spots, [Spot::Part(0), Spot::Part(1)]);
    }
}
