//! The five messages of a handshake, and how they are cut out of a stream.
//!
//! Each is a length (four bytes, little-endian), a type byte and a content. The length is held against its limit before
//! anything is allocated for it.

use sheave_base::{Result, limits};

use super::hello::Hello;
use super::proof::{PROOF_BYTES, Proof};
use crate::header::coded;
use crate::reader::{Reader, protocol};

const HELLO: u8 = 1;
const CHALLENGE: u8 = 2;
const PROOF: u8 = 3;
const ACCEPTED: u8 = 4;
const REJECT: u8 = 5;

const LENGTH_BYTES: usize = size_of::<u32>();

/// Longest encoded hello: a challenge holds one beside its type and a proof.
pub(super) const HELLO_BYTES_MAX: usize = limits::HANDSHAKE_BYTES_MAX - 1 - PROOF_BYTES;

coded! {
    /// Why a side ends a handshake, as far as it tells a stranger. Codes are append-only.
    RejectReason {
        /// There is no protocol version that both speak.
        Version = 1,
        /// The proof is not one of the job's secret.
        Unauthenticated = 2,
        /// A side meets itself, or its own words come back.
        Reflected = 3,
        /// The sides disagree about the medium.
        Medium = 4,
        /// The sides disagree about limits.
        Limits = 5,
        /// The bytes are no handshake.
        Malformed = 6,
        /// The listener has too many handshakes in progress.
        Busy = 7,
    }
}

pub(super) enum Message<'a> {
    Hello { hello: &'a [u8] },
    Challenge { proof: Proof, hello: &'a [u8] },
    Proof { proof: Proof },
    Accepted { proof: Proof },
    Reject { reason: Option<RejectReason>, version_min: u8, version_max: u8 },
}

impl<'a> Message<'a> {
    /// Reads a message; its hello stays as it is, for the transcript is made of the very bytes that were sent.
    pub(super) fn decode(body: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(body);
        let message = match reader.u8()? {
            HELLO => return Ok(Self::Hello { hello: reader.rest() }),
            CHALLENGE => return Ok(Self::Challenge { proof: reader.array()?, hello: reader.rest() }),
            PROOF => Self::Proof { proof: reader.array()? },
            ACCEPTED => Self::Accepted { proof: reader.array()? },
            REJECT => Self::Reject {
                reason: RejectReason::from_code(reader.u8()?),
                version_min: reader.u8()?,
                version_max: reader.u8()?,
            },
            other => return Err(protocol(format!("unknown type {other} of handshake message"))),
        };
        reader.end()?;
        Ok(message)
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "a hello",
            Self::Challenge { .. } => "a challenge",
            Self::Proof { .. } => "a proof",
            Self::Accepted { .. } => "an acceptance",
            Self::Reject { .. } => "a rejection",
        }
    }
}

fn frame(message_type: u8, contents: [&[u8]; 2]) -> Vec<u8> {
    let length_bytes = 1 + contents[0].len() + contents[1].len();
    let mut out = Vec::with_capacity(LENGTH_BYTES + length_bytes);
    out.extend_from_slice(&(length_bytes as u32).to_le_bytes());
    out.push(message_type);
    out.extend_from_slice(contents[0]);
    out.extend_from_slice(contents[1]);
    out
}

pub(super) fn hello(hello: &[u8]) -> Vec<u8> {
    frame(HELLO, [hello, &[]])
}

pub(super) fn challenge(proof: &Proof, hello: &[u8]) -> Vec<u8> {
    frame(CHALLENGE, [proof, hello])
}

pub(super) fn proof(proof: &Proof) -> Vec<u8> {
    frame(PROOF, [proof, &[]])
}

pub(super) fn accepted(proof: &Proof) -> Vec<u8> {
    frame(ACCEPTED, [proof, &[]])
}

/// The message with which a side that says `own` ends a handshake; it tells nothing but a reason and its versions.
///
/// The state machines send it by themselves; a listener needs it to turn somebody away with
/// [`Busy`](RejectReason::Busy).
#[must_use]
pub fn reject(reason: RejectReason, own: &Hello) -> Vec<u8> {
    frame(REJECT, [&[reason.code()], &[own.version_min, own.version_max]])
}

/// Cuts messages out of a stream that arrives in pieces.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    /// Takes what the current message still needs from `input`. Returns how many bytes that was, and the message
    /// without its length once it is whole.
    pub(super) fn feed(&mut self, input: &[u8]) -> Result<(usize, Option<Vec<u8>>)> {
        let mut consumed_bytes = self.fill(LENGTH_BYTES, input);
        let Some(length) = self.bytes.first_chunk::<LENGTH_BYTES>() else {
            return Ok((consumed_bytes, None));
        };
        let length_bytes = u32::from_le_bytes(*length) as usize;
        if length_bytes == 0 || length_bytes > limits::HANDSHAKE_BYTES_MAX {
            let limit = limits::HANDSHAKE_BYTES_MAX;
            return Err(protocol(format!("a handshake message of {length_bytes} bytes; the limit is {limit}"))
                .hint("is the other side a process of sheave?"));
        }
        consumed_bytes += self.fill(LENGTH_BYTES + length_bytes, &input[consumed_bytes..]);
        if self.bytes.len() < LENGTH_BYTES + length_bytes {
            return Ok((consumed_bytes, None));
        }
        let mut body = std::mem::take(&mut self.bytes);
        body.drain(..LENGTH_BYTES);
        Ok((consumed_bytes, Some(body)))
    }

    fn fill(&mut self, target_bytes: usize, input: &[u8]) -> usize {
        let wanted_bytes = target_bytes.saturating_sub(self.bytes.len()).min(input.len());
        self.bytes.extend_from_slice(&input[..wanted_bytes]);
        wanted_bytes
    }
}
