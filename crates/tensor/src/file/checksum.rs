//! The checksum of a file: CRC-32 of all its bytes, with zeros where the checksum itself is written.
//!
//! Pieces are written in any order, and their sums are put together at the end, in the order of the file. The sum
//! stands among the metadata with as many digits always, so that its place is known when the header is written.

use std::io::Read;

use crc32fast::Hasher;
use sheave_base::{Error, ErrorKind, Result};

use super::corrupt;

/// The metadata key of the checksum.
pub(super) const KEY: &str = "sheave.crc32";

/// What stands there before the sum is known, and is summed up in its place.
pub(super) const NONE: &str = "00000000";

/// Bytes that are read at a time to be summed up.
const READ_BYTES: usize = 1 << 20;

/// Pieces of a file that have been written.
pub(super) struct Sums {
    /// Of the length and the header.
    head: Hasher,
    head_bytes: u64,
    /// Where the digits are in the file.
    at: u64,
    pieces: Vec<Piece>,
}

struct Piece {
    start: u64,
    len_bytes: u64,
    sum: u32,
}

impl Sums {
    pub(super) fn new(length: [u8; 8], header: &[u8]) -> Result<Self> {
        let at = find(header).ok_or_else(|| Error::new(ErrorKind::Internal, "a header without a checksum"))?;
        let mut head = Hasher::new();
        head.update(&length);
        head.update(header);
        let head_bytes = (length.len() + header.len()) as u64;
        Ok(Self { head, head_bytes, at: (length.len() + at) as u64, pieces: Vec::new() })
    }

    /// Notes a piece that lies at this byte of the file.
    pub(super) fn add(&mut self, start: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.pieces.push(Piece { start, len_bytes: bytes.len() as u64, sum: crc32fast::hash(bytes) });
        }
    }

    /// Returns where the digits are to be written, and what they are.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if some bytes were written twice, and so others never.
    pub(super) fn digits(mut self) -> Result<(u64, String)> {
        self.pieces.sort_unstable_by_key(|piece| piece.start);
        let mut end = self.head_bytes;
        for Piece { start, len_bytes, sum } in self.pieces {
            if start != end {
                let what = format!("elements were written twice, and those before byte {start} never");
                return Err(Error::new(ErrorKind::InvalidArgument, what));
            }
            end += len_bytes;
            self.head.combine(&Hasher::new_with_initial_len(sum, len_bytes));
        }
        Ok((self.at, format!("{:08x}", self.head.finalize())))
    }
}

/// Compares a file, of which length and header were read, with the checksum that it may have.
pub(super) fn check(length: [u8; 8], header: &[u8], rest: &mut impl Read) -> Result<()> {
    let Some(at) = find(header) else { return Ok(()) };
    let digits = at..at + NONE.len();
    let said = std::str::from_utf8(&header[digits.clone()]).ok();
    let said = said.and_then(|said| u32::from_str_radix(said, 16).ok());
    let mut sum = Hasher::new();
    sum.update(&length);
    sum.update(&header[..digits.start]);
    sum.update(NONE.as_bytes());
    sum.update(&header[digits.end..]);
    let mut bytes = vec![0_u8; READ_BYTES];
    loop {
        match rest.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => sum.update(&bytes[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let found = sum.finalize();
    if said == Some(found) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&header[digits]).into_owned();
    Err(corrupt(format!("its checksum is {found:08x}, and {} was expected", said.escape_debug())))
}

/// Finds the digits in a header: they stand behind the only text of this form, because quotes within texts are escaped.
fn find(header: &[u8]) -> Option<usize> {
    let field = format!("\"{KEY}\":\"");
    let at = header.windows(field.len()).position(|window| window == field.as_bytes())? + field.len();
    (at + NONE.len() <= header.len()).then_some(at)
}
