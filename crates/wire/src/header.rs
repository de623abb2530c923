//! The frame header: 64 bytes, one cache line, little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | magic `sv` |
//! | 2 | 1 | protocol version |
//! | 3 | 1 | kind |
//! | 4 | 2 | flags |
//! | 6 | 2 | part count |
//! | 8 | 8 | sequence |
//! | 16 | 8 | tag |
//! | 24 | 8 | context |
//! | 32 | 8 | correlation |
//! | 40 | 4 | control bytes |
//! | 44 | 4 | aux |
//! | 48 | 8 | payload bytes |
//! | 56 | 1 | endpoint |
//! | 57 | 3 | reserved, zero |
//! | 60 | 4 | CRC-32 of the 60 bytes before it, or zero where the medium needs none |
//!
//! Messages of users are of the kinds [`Kind::Data`] and, where they overtake data, [`Kind::Urgent`]. The *endpoint*
//! says who takes one: 0 stands for the receives of the node, which are matched by source, context and tag; any other
//! number for whoever is registered under it there. What tag, context, correlation and aux mean is decided by the
//! endpoint's owner; `docs/design` lists the owners.
//!
//! **Pieces.** On a stream the control area and the payload of a data message that are together longer than
//! [`PIECE_BYTES`] come in pieces: as many bytes right behind the message's header, then as many behind a header of
//! kind [`Kind::Chunk`], whose payload bytes say how many they are, and so on; the last piece is the rest. Between two
//! pieces stand urgent messages and what is the link's own, but no other data message and no piece of one.
//!
//! **Correctness.** A header is decoded from an array that the caller owns, never in place: in shared memory the other
//! side could change a field between its check and its use. The check sum guards against accidents (a cut, a mixed-up
//! stream), not against attackers; those are kept out by the [handshake](crate::handshake).

use sheave_base::{Error, ErrorKind, Result, limits};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::reader::protocol;

/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 64;

/// The first two bytes of every header, `sv`.
pub const MAGIC: u16 = u16::from_le_bytes(*b"sv");

/// The version of everything in this crate that is written on a link.
pub const PROTOCOL_VERSION: u8 = 3;

/// Bytes of a data message behind one header of a stream: what an urgent message waits for at most, besides what the
/// kernel holds. A tensor of 1 MiB and its head fit in one.
pub const PIECE_BYTES: usize = (1 << 20) + (64 << 10);

/// Bytes of a header that its check sum covers.
const SUMMED_BYTES: usize = HEADER_BYTES - size_of::<u32>();

macro_rules! coded {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum $name { $($(#[$variant_doc])* $variant = $code,)* }

        impl $name {
            /// Everything that there is, by ascending code.
            pub const ALL: &[$name] = &[$(Self::$variant,)*];

            /// The code on the wire.
            #[must_use]
            pub fn code(self) -> u8 {
                self as u8
            }

            /// What a code on the wire stands for; `None` if this version does not know it.
            #[must_use]
            pub fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use coded;

coded! {
    /// What a message is. Codes are append-only; 2, 3, 10 and 11 belonged to version 1.
    Kind {
        /// A message from a user of one node to one of another; the header's endpoint says whom it is for.
        Data = 1,
        /// A sign of life, with nothing in it.
        Beat = 4,
        /// Blocks that were lent are given back.
        Return = 5,
        /// The last message of a link; its tag is the code of a [`CloseReason`].
        Close = 6,
        /// A shared-memory segment that later messages refer to.
        Segment = 7,
        /// Another piece of the data message that has begun: so many payload bytes of its control area and payload.
        Chunk = 8,
        /// Payload of parts that were announced with placement `Stream`.
        Stream = 9,
        /// As `Data`, without tensors: overtakes data, and keeps its order among its like.
        Urgent = 12,
        /// The sender has used as many bytes of frames of data, their headers included, as the tag says.
        Room = 13,
    }
}

impl Kind {
    /// Whether it is a message of a node's user, which every link carries; the rest is the link's own.
    #[must_use]
    pub fn is_message(self) -> bool {
        matches!(self, Self::Data | Self::Urgent)
    }
}

coded! {
    /// Why a link was closed by its other end. Codes are append-only.
    CloseReason {
        /// Everything is said.
        Finished = 1,
        /// The other end failed and says why in the control part.
        Failed = 2,
        /// The other end read something that is not the protocol.
        Protocol = 3,
        /// The receiver of this message was declared dead and must join again.
        DeclaredDead = 4,
        /// The other end lacks file descriptors, memory or threads.
        Short = 5,
    }
}

/// The header as it lies in memory.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: U16,
    version: u8,
    kind: u8,
    flags: U16,
    part_count: U16,
    sequence: U64,
    tag: U64,
    context: U64,
    correlation: U64,
    control_bytes: U32,
    aux: U32,
    payload_bytes: U64,
    endpoint: u8,
    reserved: [u8; 3],
    crc: U32,
}

const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);

/// What stands at the head of every message.
///
/// ```
/// use sheave_wire::{Header, Kind};
///
/// let header = Header { sequence: 7, tag: 42, payload_bytes: 1 << 20, part_count: 1, ..Header::new(Kind::Data) };
/// assert_eq!(Header::decode(&header.encode()).unwrap(), header);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// Bits whose meaning the kind decides.
    pub flags: u16,
    /// Entries of the part table.
    pub part_count: u16,
    /// Number of the message on its link and direction; every message counts.
    pub sequence: u64,
    /// What a tagged message is matched by.
    pub tag: u64,
    /// The group or service that the message is for.
    pub context: u64,
    /// What an answer and its request have in common.
    pub correlation: u64,
    /// Length of the control area: the part table and what follows it.
    pub control_bytes: u32,
    /// What the owner of the endpoint makes of it.
    pub aux: u32,
    /// Bytes of tensor parts that travel behind the control area on the link itself.
    pub payload_bytes: u64,
    /// Whom a message of a user is for; 0 for a matched receive, and in what is the link's own.
    pub endpoint: u8,
}

impl Header {
    /// A header of `kind`, everything else zero.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            flags: 0,
            part_count: 0,
            sequence: 0,
            tag: 0,
            context: 0,
            correlation: 0,
            control_bytes: 0,
            aux: 0,
            payload_bytes: 0,
            endpoint: 0,
        }
    }

    /// The bytes of this header, with a check sum.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = self.encode_unsummed();
        let crc = crc32fast::hash(&bytes[..SUMMED_BYTES]);
        bytes[SUMMED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The bytes of this header without a check sum, for media that cannot damage them (shared memory).
    #[must_use]
    #[inline]
    pub fn encode_unsummed(&self) -> [u8; HEADER_BYTES] {
        zerocopy::transmute!(Raw {
            magic: U16::new(MAGIC),
            version: PROTOCOL_VERSION,
            kind: self.kind.code(),
            flags: U16::new(self.flags),
            part_count: U16::new(self.part_count),
            sequence: U64::new(self.sequence),
            tag: U64::new(self.tag),
            context: U64::new(self.context),
            correlation: U64::new(self.correlation),
            control_bytes: U32::new(self.control_bytes),
            aux: U32::new(self.aux),
            payload_bytes: U64::new(self.payload_bytes),
            endpoint: self.endpoint,
            reserved: [0; 3],
            crc: U32::ZERO,
        })
    }

    /// Reads a header, check sum included.
    ///
    /// # Errors
    ///
    /// `Protocol` if the bytes are no header of this version, `LimitExceeded` if a length in it is over its limit.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self> {
        Self::decode_with(bytes, true)
    }

    /// Reads a header; its check sum counts only if `verify_crc` says so.
    ///
    /// `bytes` is memory that nobody else writes: copy a header out of shared memory before it is read.
    ///
    /// # Errors
    ///
    /// As [`Header::decode`].
    #[inline]
    pub fn decode_with(bytes: &[u8; HEADER_BYTES], verify_crc: bool) -> Result<Self> {
        let raw: Raw = zerocopy::transmute!(*bytes);
        if raw.magic != MAGIC {
            return Err(wrong_magic(bytes));
        }
        if raw.version != PROTOCOL_VERSION {
            return Err(wrong_version(raw.version));
        }
        if verify_crc && raw.crc != crc32fast::hash(&bytes[..SUMMED_BYTES]) {
            return Err(protocol("the header's check sum is wrong"));
        }
        let Some(kind) = Kind::from_code(raw.kind) else {
            return Err(protocol(format!("unknown kind {} of message", raw.kind)));
        };
        if raw.reserved != [0; 3] {
            return Err(protocol("a reserved field of the header is not zero"));
        }
        let header = Self {
            kind,
            flags: raw.flags.get(),
            part_count: raw.part_count.get(),
            sequence: raw.sequence.get(),
            tag: raw.tag.get(),
            context: raw.context.get(),
            correlation: raw.correlation.get(),
            control_bytes: raw.control_bytes.get(),
            aux: raw.aux.get(),
            payload_bytes: raw.payload_bytes.get(),
            endpoint: raw.endpoint,
        };
        header.check_limits()?;
        Ok(header)
    }

    /// Holds the lengths and the endpoint against their limits; what [`Header::decode`] does for the receiver, a sender
    /// does with this.
    ///
    /// # Errors
    ///
    /// `LimitExceeded`, naming the limit.
    #[inline]
    pub fn check_limits(&self) -> Result<()> {
        check("control bytes", self.control_bytes.into(), limits::CONTROL_BYTES_MAX as u64)?;
        if usize::from(self.endpoint) >= limits::ENDPOINTS_MAX {
            return Err(no_endpoint(self.endpoint));
        }
        check("tensor parts", self.part_count.into(), limits::PARTS_MAX as u64)?;
        // A chunk or a stream carries payload of a part that was announced before it.
        let parts_carried = u64::from(self.part_count).max(1);
        check("payload bytes", self.payload_bytes, limits::PART_BYTES_MAX * parts_carried)
    }
}

#[inline]
fn check(what: &str, value: u64, limit: u64) -> Result<()> {
    if value <= limit { Ok(()) } else { Err(over_limit(what, value, limit)) }
}

#[cold]
fn over_limit(what: &str, value: u64, limit: u64) -> Error {
    Error::new(ErrorKind::LimitExceeded, format!("a message of {value} {what}; the limit is {limit}"))
}

#[cold]
fn no_endpoint(number: u8) -> Error {
    let what = format!("a message for endpoint {number}; the limit is {}", limits::ENDPOINTS_MAX - 1);
    Error::new(ErrorKind::LimitExceeded, what)
}

#[cold]
fn wrong_magic(bytes: &[u8; HEADER_BYTES]) -> Error {
    protocol(format!("not a sheave message: it starts with {:02x} {:02x}", bytes[0], bytes[1]))
}

#[cold]
fn wrong_version(theirs: u8) -> Error {
    protocol(format!("the message is of protocol version {theirs}, this process speaks version {PROTOCOL_VERSION}"))
        .hint("run the same release of sheave on all sides")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Header {
        Header {
            kind: Kind::Data,
            flags: 0x0102,
            part_count: 3,
            sequence: 4,
            tag: 5,
            context: 6,
            correlation: 7,
            control_bytes: 8,
            aux: 9,
            payload_bytes: 10,
            endpoint: 11,
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed_by_the_check_sum() {
        let bytes = full().encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_header_without_sum_is_read_only_where_none_is_asked_for() {
        let bytes = full().encode_unsummed();
        assert_eq!(Header::decode_with(&bytes, false).unwrap(), full());
        assert_eq!(Header::decode(&bytes).unwrap_err().kind(), ErrorKind::Protocol);
    }

    #[test]
    fn a_wrong_version_names_both() {
        let mut bytes = full().encode_unsummed();
        bytes[2] = 9;
        let error = Header::decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.what().contains("version 9") && error.what().contains("version 3"), "{error}");
    }

    #[test]
    fn what_the_fields_may_not_be_is_refused() {
        let with = |offset: usize, value: &[u8]| {
            let mut bytes = full().encode_unsummed();
            bytes[offset..offset + value.len()].copy_from_slice(value);
            Header::decode_with(&bytes, false).map_err(|error| error.kind())
        };
        assert_eq!(with(0, b"xx"), Err(ErrorKind::Protocol));
        assert_eq!(with(3, &[0]), Err(ErrorKind::Protocol));
        assert_eq!(with(3, &[255]), Err(ErrorKind::Protocol));
        for reserved in 57..60 {
            assert_eq!(with(reserved, &[1]), Err(ErrorKind::Protocol), "byte {reserved}");
        }
        for of_version_1 in [2, 3, 10, 11] {
            assert_eq!(with(3, &[of_version_1]), Err(ErrorKind::Protocol), "kind {of_version_1}");
        }
        assert!(with(56, &[limits::ENDPOINTS_MAX as u8 - 1]).is_ok());
        assert_eq!(with(56, &[limits::ENDPOINTS_MAX as u8]), Err(ErrorKind::LimitExceeded));
        assert_eq!(with(6, &(limits::PARTS_MAX as u16 + 1).to_le_bytes()), Err(ErrorKind::LimitExceeded));
        assert_eq!(with(40, &(limits::CONTROL_BYTES_MAX as u32 + 1).to_le_bytes()), Err(ErrorKind::LimitExceeded));
        assert_eq!(with(48, &(3 * limits::PART_BYTES_MAX + 1).to_le_bytes()), Err(ErrorKind::LimitExceeded));
        assert!(with(48, &(3 * limits::PART_BYTES_MAX).to_le_bytes()).is_ok());
    }

    #[test]
    fn codes_and_kinds_are_one_to_one() {
        for code in 0..=u8::MAX {
            if let Some(kind) = Kind::from_code(code) {
                assert_eq!(kind.code(), code);
                assert!(Kind::ALL.contains(&kind));
            }
        }
        assert_eq!(Kind::ALL.len(), (0..=u8::MAX).filter_map(Kind::from_code).count());
        assert_eq!(CloseReason::from_code(CloseReason::DeclaredDead.code()), Some(CloseReason::DeclaredDead));
    }
}
