//! The part table: what each tensor of a message is, and where its bytes are.
//!
//! The table stands at the start of a message's control area and has one entry for each part that the header counts:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | dtype code, see [`dtype_size`] |
//! | 1 | number of dimensions |
//! | 1 | placement: 0 inline, 1 block, 2 home, 3 stream, 4 borrow |
//! | 1 | flags: bit 0 is *shared*, the others are zero |
//! | 4 | reserved, zero |
//! | 8 × dimensions | dimensions, little-endian |
//! | 24, block and borrow only | segment, offset, loan |
//! | 8, home only | loan |
//!
//! **Correctness.** Memory is asked for only after the bytes that justify it were seen: an entry takes at least eight
//! bytes of input, a dimension exactly eight. A spec that was decoded has a length in bytes that cannot overflow, even
//! if a user replaces its zero dimensions by ones.

use sheave_base::{Error, ErrorKind, Result, limits};
use smallvec::{Array, SmallVec};

use crate::dtype::dtype_size;
use crate::reader::{Reader, protocol};

/// Bytes of an entry before its dimensions.
const ENTRY_BYTES: usize = 8;

/// The flag of a part whose memory its sender goes on using.
const FLAG_SHARED: u8 = 1;

/// The tensor parts of a message. One or two parts of up to four dimensions need no memory of their own.
pub type Parts = SmallVec<[Part; 2]>;

/// Element type and shape of a dense, row-major tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// Element type, see [`dtype_size`].
    pub dtype: u8,
    /// Number of elements along each axis, slowest first; none for a scalar.
    pub dims: SmallVec<[u64; 4]>,
}

impl TensorSpec {
    /// A spec of these dimensions; not checked until [`TensorSpec::length_bytes`].
    #[must_use]
    pub fn new(dtype: u8, dims: &[u64]) -> Self {
        Self { dtype, dims: SmallVec::from_slice(dims) }
    }

    /// Bytes of the tensor's elements.
    ///
    /// # Errors
    ///
    /// `Protocol` if nobody knows the dtype, `LimitExceeded` if there are too many dimensions or bytes. Zero dimensions
    /// count as one for the limit, so that no stride computed from an empty shape can overflow.
    ///
    /// ```
    /// use sheave_wire::TensorSpec;
    ///
    /// assert_eq!(TensorSpec::new(8, &[3, 4]).length_bytes().unwrap(), 48);
    /// assert_eq!(TensorSpec::new(8, &[]).length_bytes().unwrap(), 4);
    /// assert_eq!(TensorSpec::new(8, &[3, 0]).length_bytes().unwrap(), 0);
    /// assert!(TensorSpec::new(8, &[1 << 32, 1 << 32]).length_bytes().is_err());
    /// ```
    pub fn length_bytes(&self) -> Result<u64> {
        let Some(size_bytes) = dtype_size(self.dtype) else {
            return Err(protocol(format!("unknown dtype {} of a tensor", self.dtype)));
        };
        if self.dims.len() > limits::DIMENSIONS_MAX {
            return Err(too_many_dimensions(self.dims.len()));
        }
        let mut length_bytes = u64::from(size_bytes);
        let mut empty = false;
        for &dim in &self.dims {
            empty |= dim == 0;
            length_bytes = match length_bytes.checked_mul(dim.max(1)) {
                Some(product) if product <= limits::PART_BYTES_MAX => product,
                _ => return Err(too_large(&self.dims)),
            };
        }
        Ok(if empty { 0 } else { length_bytes })
    }
}

/// Where the bytes of a part are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Behind the control area, on the link itself, in the order of the table.
    Inline,
    /// In shared memory: a block of the sender's, lent to the receiver.
    Block {
        /// The segment, as its owner numbered it.
        segment: u64,
        /// Where in the segment the block starts, in bytes.
        offset: u64,
        /// The loan, to be named when the block is given back.
        loan: u64,
    },
    /// In the receiver's own block, which comes back to it.
    Home {
        /// The loan under which the receiver of this message lent the block.
        loan: u64,
    },
    /// In later messages of kind [`Stream`](crate::Kind::Stream).
    Stream,
    /// In the sender's own tensor, in shared memory: to be copied out and given back at once.
    Borrow {
        /// The segment, as its owner numbered it.
        segment: u64,
        /// Where in the segment the tensor starts, in bytes.
        offset: u64,
        /// The loan, to be named when the tensor is given back.
        loan: u64,
    },
}

impl Placement {
    fn code(&self) -> u8 {
        match self {
            Self::Inline => 0,
            Self::Block { .. } => 1,
            Self::Home { .. } => 2,
            Self::Stream => 3,
            Self::Borrow { .. } => 4,
        }
    }
}

/// One tensor of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Element type and shape.
    pub spec: TensorSpec,
    /// Where its bytes are.
    pub placement: Placement,
    /// Whether the sender goes on using the memory: an alias, at the user's risk.
    pub shared: bool,
}

impl Part {
    /// A part whose bytes travel behind the control area.
    #[must_use]
    pub fn inline(spec: TensorSpec) -> Self {
        Self { spec, placement: Placement::Inline, shared: false }
    }

    /// Checks the part as a receiver would, and gives the length of its tensor in bytes.
    fn check(&self) -> Result<u64> {
        let length_bytes = self.spec.length_bytes()?;
        if let Placement::Block { offset, .. } | Placement::Borrow { offset, .. } = self.placement
            && offset.checked_add(length_bytes).is_none()
        {
            return Err(protocol(format!("a block of {length_bytes} bytes at offset {offset} ends beyond all memory")));
        }
        Ok(length_bytes)
    }
}

/// A growing row of bytes that a table is written to: a `Vec<u8>`, or a `SmallVec` of bytes such as
/// `SmallVec<[u8; 128]>`, which holds the table of two parts with four dimensions without asking for memory.
pub trait Sink {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl<A: Array<Item = u8>> Sink for SmallVec<A> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Appends the table of `parts` to `out`.
///
/// # Errors
///
/// What [`decode`] would refuse is refused here too; `out` then holds an undefined part of the table.
///
/// ```
/// use sheave_wire::{Part, TensorSpec, parts};
///
/// let part = Part::inline(TensorSpec::new(8, &[2, 3]));
/// let mut control = Vec::new();
/// parts::encode(&[part.clone()], &mut control).unwrap();
/// control.extend_from_slice(b"what follows");
/// let (table, rest) = parts::decode(&control, 1).unwrap();
/// assert_eq!((table.as_slice(), rest), ([part].as_slice(), b"what follows".as_slice()));
/// ```
pub fn encode(parts: &[Part], out: &mut impl Sink) -> Result<()> {
    if parts.len() > limits::PARTS_MAX {
        return Err(too_many_parts(parts.len()));
    }
    for part in parts {
        part.check()?;
        let dims = &part.spec.dims;
        let flags = if part.shared { FLAG_SHARED } else { 0 };
        out.put(&[part.spec.dtype, dims.len() as u8, part.placement.code(), flags, 0, 0, 0, 0]);
        for dim in dims {
            out.put(&dim.to_le_bytes());
        }
        match part.placement {
            Placement::Inline | Placement::Stream => {}
            Placement::Block { segment, offset, loan } | Placement::Borrow { segment, offset, loan } => {
                for field in [segment, offset, loan] {
                    out.put(&field.to_le_bytes());
                }
            }
            Placement::Home { loan } => out.put(&loan.to_le_bytes()),
        }
    }
    Ok(())
}

/// Reads the table of `part_count` parts from the start of a control area, and returns it with what follows it.
///
/// Whether a block lies within its segment, and whether a loan exists, is the link's to check.
///
/// # Errors
///
/// `Protocol` if the bytes are no table, `LimitExceeded` if a tensor or the table is over its limit.
pub fn decode(control: &[u8], part_count: usize) -> Result<(Parts, &[u8])> {
    if part_count > limits::PARTS_MAX {
        return Err(too_many_parts(part_count));
    }
    if part_count > control.len() / ENTRY_BYTES {
        return Err(protocol(format!("cut off: {part_count} parts announced, {} bytes left", control.len())));
    }
    let mut reader = Reader::new(control);
    let mut parts = Parts::with_capacity(part_count);
    for _ in 0..part_count {
        parts.push(decode_part(&mut reader)?);
    }
    Ok((parts, reader.rest()))
}

fn decode_part(reader: &mut Reader<'_>) -> Result<Part> {
    let [dtype, dimension_count, placement, flags, reserved @ ..] = reader.array::<ENTRY_BYTES>()?;
    if flags & !FLAG_SHARED != 0 || reserved != [0; 4] {
        return Err(protocol("a reserved field of a part is not zero"));
    }
    let dimension_count = usize::from(dimension_count);
    if dimension_count > limits::DIMENSIONS_MAX {
        return Err(too_many_dimensions(dimension_count));
    }
    let dims = reader.take(dimension_count * size_of::<u64>())?;
    let dims = dims.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    let placement = match placement {
        0 => Placement::Inline,
        1 => Placement::Block { segment: reader.u64()?, offset: reader.u64()?, loan: reader.u64()? },
        2 => Placement::Home { loan: reader.u64()? },
        3 => Placement::Stream,
        4 => Placement::Borrow { segment: reader.u64()?, offset: reader.u64()?, loan: reader.u64()? },
        other => return Err(protocol(format!("unknown placement {other} of a part"))),
    };
    let part = Part { spec: TensorSpec { dtype, dims }, placement, shared: flags & FLAG_SHARED != 0 };
    part.check()?;
    Ok(part)
}

/// Bytes that travel behind the control area for `parts`: what a header with this table must say in `payload_bytes`.
///
/// # Errors
///
/// As [`TensorSpec::length_bytes`].
pub fn inline_bytes(parts: &[Part]) -> Result<u64> {
    let mut total_bytes = 0u64;
    for part in parts.iter().filter(|part| part.placement == Placement::Inline) {
        total_bytes = total_bytes.saturating_add(part.spec.length_bytes()?);
    }
    Ok(total_bytes)
}

#[cold]
fn too_many_parts(count: usize) -> Error {
    let limit = limits::PARTS_MAX;
    Error::new(ErrorKind::LimitExceeded, format!("a message of {count} tensor parts; the limit is {limit}"))
        .hint("pack small tensors into one part")
}

#[cold]
fn too_many_dimensions(count: usize) -> Error {
    let limit = limits::DIMENSIONS_MAX;
    Error::new(ErrorKind::LimitExceeded, format!("a tensor of {count} dimensions; the limit is {limit}"))
}

#[cold]
fn too_large(dims: &[u64]) -> Error {
    let limit = limits::PART_BYTES_MAX;
    Error::new(ErrorKind::LimitExceeded, format!("a tensor of shape {dims:?}; the limit is {limit} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(part: &Part) -> Vec<u8> {
        let mut out = Vec::new();
        encode(std::slice::from_ref(part), &mut out).unwrap();
        out
    }

    #[test]
    fn two_parts_of_four_dimensions_need_no_memory() {
        let placement = Placement::Block { segment: 1, offset: 2, loan: 3 };
        let part = Part { spec: TensorSpec::new(8, &[1, 2, 3, 4]), placement, shared: true };
        let mut out = SmallVec::<[u8; 128]>::new();
        encode(&[part.clone(), part.clone()], &mut out).unwrap();
        assert!(!out.spilled());
        let (parts, rest) = decode(&out, 2).unwrap();
        assert!(!parts.spilled() && !parts[0].spec.dims.spilled());
        assert_eq!(parts.as_slice(), [part.clone(), part]);
        assert!(rest.is_empty());
    }

    #[test]
    fn every_field_that_lies_is_refused() {
        let good = table(&Part::inline(TensorSpec::new(8, &[2])));
        for (offset, value) in [(0, 17), (1, 65), (2, 4), (3, 2), (4, 1), (7, 1), (14, 1), (15, 1)] {
            let mut bad = good.clone();
            bad[offset] = value;
            assert!(decode(&bad, 1).is_err(), "offset {offset}");
        }
        assert!(decode(&good, 2).is_err());
        assert!(decode(&[0; 64], usize::MAX).is_err());
        for length_bytes in 0..good.len() {
            assert!(decode(&good[..length_bytes], 1).is_err());
        }
    }

    #[test]
    fn the_largest_part_is_allowed_and_one_byte_more_is_not() {
        let largest = limits::PART_BYTES_MAX;
        assert_eq!(TensorSpec::new(1, &[largest]).length_bytes().unwrap(), largest);
        for dims in [&[largest + 1][..], &[0, largest + 1], &[largest + 1, 0], &[1 << 63, 2, 0], &[u64::MAX; 3]] {
            let error = TensorSpec::new(1, dims).length_bytes().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{dims:?}");
        }
        let dims = [1; limits::DIMENSIONS_MAX + 1];
        assert!(TensorSpec::new(1, &dims[1..]).length_bytes().is_ok());
        assert!(TensorSpec::new(1, &dims).length_bytes().is_err());
    }

    #[test]
    fn a_block_that_ends_beyond_all_memory_is_refused_on_both_sides() {
        let block = |offset| Part {
            spec: TensorSpec::new(1, &[2]),
            placement: Placement::Block { segment: 0, offset, loan: 0 },
            shared: false,
        };
        let mut bytes = table(&block(u64::MAX - 2));
        assert!(decode(&bytes, 1).is_ok());
        bytes[24] = 0xff;
        assert!(decode(&bytes, 1).is_err());
        assert!(encode(&[block(u64::MAX - 1)], &mut bytes).is_err());
    }

    #[test]
    fn only_inline_parts_count_as_payload() {
        let spec = TensorSpec::new(5, &[10]);
        let stream = Part { spec: spec.clone(), placement: Placement::Stream, shared: false };
        let home = Part { spec: spec.clone(), placement: Placement::Home { loan: 1 }, shared: false };
        assert_eq!(inline_bytes(&[Part::inline(spec.clone()), stream, home, Part::inline(spec)]).unwrap(), 160);
    }
}
