//! Reading bytes that somebody else wrote, and writing them.
//!
//! Integers of varying size are written in groups of seven bits, lowest first, each group but the last with its top bit
//! set. There is exactly one accepted way to write each number, so that equal values have equal bytes.

use sheave_base::{Error, ErrorKind, Result};

/// Most bytes of a number in groups of seven bits: ten groups hold 64 bits.
const VARINT_BYTES_MAX: usize = 10;

/// A `Protocol` error; out of line, because the paths that do not need it are hot.
#[cold]
#[inline(never)]
pub(crate) fn protocol(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Protocol, what)
}

/// A cursor over outside input. Every length is checked against what is left before it is believed.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    /// What is not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn remaining_bytes(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn take(&mut self, length_bytes: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(length_bytes) else {
            return Err(self.cut_off(length_bytes));
        };
        self.rest = rest;
        Ok(taken)
    }

    #[cold]
    fn cut_off(&self, wanted_bytes: usize) -> Error {
        protocol(format!("cut off: {wanted_bytes} bytes expected, {} left", self.rest.len()))
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.cut_off(N));
        };
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for index in 0..VARINT_BYTES_MAX {
            let byte = self.u8()?;
            let group = u64::from(byte & 0x7f);
            // The tenth group has room for one bit only.
            if index == VARINT_BYTES_MAX - 1 && group > 1 {
                break;
            }
            value |= group << (7 * index);
            if byte & 0x80 == 0 {
                if byte == 0 && index > 0 {
                    return Err(protocol("a number is written longer than it needs to be"));
                }
                return Ok(value);
            }
        }
        Err(protocol("a number has more than 64 bits"))
    }

    /// A count or length that must fit what is left: each of the things counted has at least `each_bytes`.
    pub(crate) fn count(&mut self, each_bytes: usize) -> Result<usize> {
        let count = self.varint()?;
        match usize::try_from(count) {
            Ok(count) if count <= self.rest.len() / each_bytes.max(1) => Ok(count),
            _ => Err(protocol(format!("cut off: {count} items announced, {} bytes left", self.rest.len()))),
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let length_bytes = self.count(1)?;
        self.take(length_bytes)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| protocol("a text is not UTF-8"))
    }

    /// Refuses anything left over.
    pub(crate) fn end(&self) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(protocol(format!("{left} bytes too many"))),
        }
    }
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Folds the sign into the lowest bit, so that small negative numbers are short too.
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_at_the_borders_round_trip() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::MAX >> 1, u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut reader = Reader::new(&out);
            assert_eq!(reader.varint().unwrap(), value);
            reader.end().unwrap();
        }
        assert_eq!([0, -1, 1, i64::MIN, i64::MAX].map(zigzag), [0, 1, 2, u64::MAX, u64::MAX - 1]);
    }

    #[test]
    fn a_number_has_one_way_to_be_written() {
        for bad in [&[0x80u8, 0x00][..], &[0xff, 0x00], &[0xff; 10], &[0x80; 11], &[0x80]] {
            assert_eq!(Reader::new(bad).varint().unwrap_err().kind(), ErrorKind::Protocol, "{bad:x?}");
        }
        let mut most = [0xff; 10];
        most[9] = 2;
        assert!(Reader::new(&most).varint().is_err(), "65 bits");
    }

    proptest! {
        #[test]
        fn zigzag_round_trips(value: i64) {
            prop_assert_eq!(unzigzag(zigzag(value)), value);
        }

        #[test]
        fn what_a_number_is_read_from_is_what_it_is_written_as(input: Vec<u8>) {
            let mut reader = Reader::new(&input);
            if let Ok(value) = reader.varint() {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                prop_assert_eq!(&out[..], &input[..input.len() - reader.remaining_bytes()]);
            }
        }
    }
}
