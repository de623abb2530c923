//! Proofs that a side knows the secret, and the key that both sides have in common afterwards.
//!
//! Each is HMAC-SHA256 under the secret over a label and the transcript. No label is the start of another, so no proof
//! can pass for a proof of another kind or of the other side.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use sheave_base::{Error, ErrorKind, Result, Secret};

/// Length of a proof in bytes.
pub(super) const PROOF_BYTES: usize = 32;

pub(super) type Proof = [u8; PROOF_BYTES];

/// Who proves what.
#[derive(Clone, Copy)]
pub(super) enum Label {
    Responder,
    Initiator,
    Accepted,
    Session,
}

impl Label {
    fn bytes(self) -> &'static [u8] {
        match self {
            Self::Responder => b"sheave v1 responder",
            Self::Initiator => b"sheave v1 initiator",
            Self::Accepted => b"sheave v1 accepted",
            Self::Session => b"sheave v1 session",
        }
    }
}

/// Everything that both sides said, in order and framed by lengths, so that it can be read in one way only.
#[derive(Clone)]
pub(super) struct Transcript(Vec<u8>);

impl Transcript {
    pub(super) fn new(hello_of_initiator: &[u8], hello_of_responder: &[u8]) -> Self {
        let mut transcript = Self(Vec::with_capacity(8 + hello_of_initiator.len() + hello_of_responder.len()));
        transcript.push(hello_of_initiator);
        transcript.push(hello_of_responder);
        transcript
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.0.extend_from_slice(bytes);
    }

    fn keyed(&self, label: Label, secret: &Secret) -> Result<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose())
            .map_err(|_| Error::new(ErrorKind::Internal, "the secret cannot be a key"))?;
        mac.update(label.bytes());
        mac.update(&self.0);
        Ok(mac)
    }

    pub(super) fn prove(&self, label: Label, secret: &Secret) -> Result<Proof> {
        Ok(self.keyed(label, secret)?.finalize().into_bytes().into())
    }

    /// Compares in constant time.
    pub(super) fn is_proven(&self, label: Label, secret: &Secret, proof: &Proof) -> Result<bool> {
        Ok(self.keyed(label, secret)?.verify_slice(proof).is_ok())
    }
}
